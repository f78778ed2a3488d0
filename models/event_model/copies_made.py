"""What the link did: use of each direction, and how much later each reload could have started."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from typing import Literal

import msgspec
import numpy as np

from slackswap.models.event_model.residency import Ledger, Steps
from slackswap.models.event_model.score import RunTimeline
from slackswap.models.problem import FloatArray, Problem
from slackswap.models.schedule import step_name


class LinkUse(msgspec.Struct, frozen=True, kw_only=True):
    """One direction of the link during the iteration.

    Attributes
    ----------
    copies, bytes : of the copies that started; `unfinished_bytes` of the one that the iteration's end cut off
    busy_s, busy_share : time with a copy under way, its latency included, and that as a share of the step
    mean_bytes_per_s : of the copies that ended, latency included; None where none did
    bandwidth_bytes_per_s : of the link, while the other direction is idle
    """

    direction: Literal["D2H", "H2D"]
    copies: int
    bytes: int
    unfinished_bytes: int
    busy_s: float
    busy_share: float
    mean_bytes_per_s: float | None
    bandwidth_bytes_per_s: float


class Reload(msgspec.Struct, frozen=True, kw_only=True):
    """A copy in and the first step that read what it brought.

    `latest_start_s` is when the same copy, as long as it took, could have started without holding up that step; the slack
    `margin_s` is how much later that is than its start, negative where the step waited for it. Other reloads, which would be
    queued behind a later start, are not regarded. `before` is the last step that starts by then; None where it would have to
    start before all of them.
    """

    tensor: str
    bytes: int
    reader: str
    reader_step: int
    start_s: float
    end_s: float
    latest_start_s: float
    margin_s: float
    before: str | None
    before_step: int | None


class Stay(msgspec.Struct, frozen=True):
    """A tensor that has an offload and never left for it: no copy out began (False), or it was read meanwhile (True)."""

    tensor: str
    bytes: int
    copied_out: bool


def link_use(timeline: RunTimeline, step_s: float) -> tuple[LinkUse, LinkUse]:
    """Return the use of D2H and of H2D."""
    return _direction_use(timeline, step_s, True), _direction_use(timeline, step_s, False)


def _direction_use(timeline: RunTimeline, step_s: float, is_d2h: bool) -> LinkUse:
    problem = timeline.run.problem
    mine = timeline.copy_is_d2h == is_d2h
    n_bytes = problem.tensor_bytes[timeline.copy_tensor[mine]]
    start_s, end_s = timeline.copy_start_s[mine], timeline.copy_end_s[mine]
    ended = np.isfinite(end_s)
    busy_s = math.fsum((np.minimum(end_s, step_s) - start_s).tolist())
    ended_s = math.fsum((end_s[ended] - start_s[ended]).tolist())
    return LinkUse(
        direction="D2H" if is_d2h else "H2D",
        copies=len(n_bytes),
        bytes=int(n_bytes.sum()),
        unfinished_bytes=int(n_bytes[~ended].sum()),
        busy_s=busy_s,
        busy_share=busy_s / step_s if step_s > 0 else 0.0,
        mean_bytes_per_s=int(n_bytes[ended].sum()) / ended_s if ended_s > 0 else None,
        bandwidth_bytes_per_s=problem.link.d2h_bytes_per_s if is_d2h else problem.link.h2d_bytes_per_s,
    )


def duplex_s(timeline: RunTimeline, step_s: float) -> float:
    """Return how long both engines moved bytes, each slowed by the other (rule 4)."""
    out, back = (_moving(timeline, step_s, is_d2h) for is_d2h in (True, False))
    shared, i, j = [], 0, 0
    while i < len(out) and j < len(back):
        shared.append(max(0.0, min(out[i, 1], back[j, 1]) - max(out[i, 0], back[j, 0])))
        if out[i, 1] <= back[j, 1]:
            i += 1
        else:
            j += 1
    return math.fsum(shared)


def _moving(timeline: RunTimeline, step_s: float, is_d2h: bool) -> FloatArray:
    """(k, 2) intervals in which a direction moves bytes; an empty copy never does."""
    problem = timeline.run.problem
    mine = (timeline.copy_is_d2h == is_d2h) & (problem.tensor_bytes[timeline.copy_tensor] > 0)
    start_s = timeline.copy_start_s[mine] + problem.link.latency_s
    return np.column_stack((start_s, np.maximum(start_s, np.minimum(timeline.copy_end_s[mine], step_s))))


def reloads_of(timeline: RunTimeline, steps: Steps, ledger: Ledger) -> tuple[Reload, ...]:
    """Return the reloads that a step read, the least slack first; not those that were evicted before."""
    found = readers_of_copies(timeline, steps)
    made = [_reload(timeline, steps, ledger, copy, k) for copy, k in found.items()]
    return tuple(sorted(made, key=lambda reload: (reload.margin_s, reload.start_s)))


def readers_of_copies(timeline: RunTimeline, steps: Steps) -> dict[int, int]:
    """Return, for each copy in, by its number in the timeline, the first step that read what it brought."""
    reads: dict[int, list[int]] = {}
    for k in range(len(timeline.start_s)):
        for t in steps.inputs(k):
            if t in steps.offloaded:
                reads.setdefault(t, []).append(k)
    starts_s = timeline.start_s.tolist()
    found: dict[int, int] = {}
    copies = np.flatnonzero(~timeline.copy_is_d2h)
    next_start_s: dict[int, float] = {}  # of the same tensor's next copy in: an eviction lies between
    for c in copies[::-1].tolist():
        t = int(timeline.copy_tensor[c])
        steps_of_t = reads.get(t, [])
        i = bisect_left(steps_of_t, float(timeline.copy_end_s[c]), key=starts_s.__getitem__)
        if i < len(steps_of_t) and starts_s[steps_of_t[i]] <= next_start_s.get(t, math.inf):
            found[c] = steps_of_t[i]
        next_start_s[t] = float(timeline.copy_start_s[c])
    return dict(sorted(found.items()))


def _reload(timeline: RunTimeline, steps: Steps, ledger: Ledger, copy: int, k: int) -> Reload:
    problem, t = timeline.run.problem, int(timeline.copy_tensor[copy])
    start_s, end_s = float(timeline.copy_start_s[copy]), float(timeline.copy_end_s[copy])
    margin_s = _needed_s(timeline, steps, ledger, copy, k) - end_s
    latest_start_s = start_s + margin_s
    before = bisect_right(timeline.start_s, latest_start_s) - 1
    return Reload(
        tensor=problem.tensor_names[t],
        bytes=steps.sizes[t],
        reader=_name(problem, steps, k),
        reader_step=k,
        start_s=start_s,
        end_s=end_s,
        latest_start_s=latest_start_s,
        margin_s=margin_s,
        before=_name(problem, steps, before) if before >= 0 else None,
        before_step=before if before >= 0 else None,
    )


def _needed_s(timeline: RunTimeline, steps: Steps, ledger: Ledger, copy: int, k: int) -> float:
    """Return when the step would have started, had this copy come at once: where it came last, when the rest was there."""
    start_s, end_s = float(timeline.start_s[k]), float(timeline.copy_end_s[copy])
    if start_s > end_s:
        return start_s
    stands_s = ledger.ended_s[k - 1] if k else 0.0
    others = np.isin(timeline.copy_tensor, steps.inputs(k)) & ~timeline.copy_is_d2h
    others &= (timeline.copy_end_s < end_s) & (timeline.copy_end_s > stands_s)
    return float(np.max(timeline.copy_end_s[others], initial=min(stands_s, end_s)))


def _name(problem: Problem, steps: Steps, k: int) -> str:
    return step_name(problem, steps.codes[k])


def stays_of(timeline: RunTimeline, steps: Steps) -> tuple[Stay, ...]:
    """Return the tensors with an offload, that the last step is past, which were never reloaded, in the schedule's order."""
    out = set(timeline.copy_tensor[timeline.copy_is_d2h].tolist())
    back = set(timeline.copy_tensor[~timeline.copy_is_d2h].tolist())
    read = {t for k in range(steps.n_forward, len(timeline.start_s)) for t in steps.inputs(k)}
    names = steps.problem.tensor_names
    stayed = [t for t in steps.schedule.offload_tensor.tolist() if t in read and t not in back]
    return tuple(Stay(names[t], steps.sizes[t], t in out) for t in stayed)
