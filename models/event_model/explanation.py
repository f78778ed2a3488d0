"""What limits a plan: where its time goes, what compute waited for, how the link is used, what fills memory.

Everything follows from the timeline that the event model left and from the schedule that it played; nothing is simulated
again. All parts are records that `msgspec.json.encode` writes; times are in seconds from the start of the iteration.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from slackswap.models.event_model.copies_made import LinkUse, Reload, Stay, duplex_s, link_use, reloads_of, stays_of
from slackswap.models.event_model.kernel.columns import UNLIMITED_BYTES
from slackswap.models.event_model.occupancy import Occupancy, occupancy
from slackswap.models.event_model.residency import Ledger, Steps, account
from slackswap.models.event_model.score import RunTimeline, Score
from slackswap.models.event_model.stalls import Stall, Wait, stalls_of, waits_of
from slackswap.models.lowering import lower
from slackswap.models.problem import KINDS
from slackswap.models.schedule import Schedule, step_name

if TYPE_CHECKING:
    from slackswap.models.event_model.score import Run


class RebuildTime(msgspec.Struct, frozen=True):
    """Rebuild steps of one kind, the kind of the operator that first wrote the tensor."""

    kind: str
    steps: int
    seconds: float
    bytes: int


class Eviction(msgspec.Struct, frozen=True):
    """A tensor that was on the device, with a copy on the host, and had to go once more before it was read (rule 9)."""

    tensor: str
    bytes: int
    at_s: float


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a plan does not fit: what the step needs beside what is there.

    ``missing_bytes = used + allocation + missing inputs - budget`` (rule 9).
    """

    step: int
    step_name: str
    missing_bytes: int
    budget_bytes: int
    allocation_bytes: int
    missing_inputs: tuple[tuple[str, int], ...]
    occupancy: Occupancy


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """What limits one plan in one iteration.

    Attributes
    ----------
    waits : in order of time; their sum in this order is the score's forward and backward stall, to the last bit
    stalls : the same waits by step and cause, the longest first
    rebuilds : rebuild time by kind of operator, the longest first
    link : D2H, H2D
    duplex_s : time in which both directions moved bytes
    reloads : copies in that a step read, the least slack first
    stays : tensors with an offload that were read where they were
    peak : what is in memory at the first moment of the highest use
    failure : None where the plan fits
    """

    problem: str
    policy: str
    budget_bytes: int | None
    fits: bool
    step_s: float
    ideal_s: float
    recompute_s: float
    forward_stall_s: float
    backward_stall_s: float
    stalls: tuple[Stall, ...]
    waits: tuple[Wait, ...]
    rebuilds: tuple[RebuildTime, ...]
    link: tuple[LinkUse, LinkUse]
    duplex_s: float
    reloads: tuple[Reload, ...]
    stays: tuple[Stay, ...]
    evictions: tuple[Eviction, ...]
    peak: Occupancy
    failure: Failure | None


def explain(score: Score, timeline: RunTimeline) -> Explanation:
    """Return what limits the plan of a score; `Score.explain` is the way to call it."""
    run = timeline.run
    steps = steps_of(run)
    ledger = account(timeline, steps)
    waits = waits_of(timeline, steps, ledger, score.step_s)
    names, sizes = run.problem.tensor_names, steps.sizes
    peak_sample = int(np.argmax(timeline.memory_bytes)) if len(timeline.memory_bytes) else -1
    return Explanation(
        problem=run.problem.name,
        policy=run.policy,
        budget_bytes=None if run.budget_bytes >= UNLIMITED_BYTES else run.budget_bytes,
        fits=score.fits,
        step_s=score.step_s,
        ideal_s=score.ideal_s,
        recompute_s=score.recompute_s,
        forward_stall_s=score.forward_stall_s,
        backward_stall_s=score.backward_stall_s,
        stalls=stalls_of(waits, steps),
        waits=waits,
        rebuilds=_rebuilds(timeline, steps),
        link=link_use(timeline, score.step_s),
        duplex_s=duplex_s(timeline, score.step_s),
        reloads=reloads_of(timeline, steps, ledger),
        stays=stays_of(timeline, steps),
        evictions=tuple(Eviction(names[t], sizes[t], at_s) for at_s, t in ledger.evictions),
        peak=occupancy(timeline, steps, ledger, peak_sample),
        failure=None if score.fits else _failure(score, timeline, steps, ledger),
    )


def steps_of(run: Run) -> Steps:
    """Return the steps of the schedule that was played."""
    schedule = run.plan if isinstance(run.plan, Schedule) else lower(run.problem, run.plan)
    return Steps(run.problem, schedule)


def _rebuilds(timeline: RunTimeline, steps: Steps) -> tuple[RebuildTime, ...]:
    problem = timeline.run.problem
    by_kind: dict[str, list[int]] = {}
    for k in range(len(timeline.start_s)):
        t = steps.rebuilt(k)
        if t >= 0:
            by_kind.setdefault(KINDS[problem.kind[problem.producer[t]]], []).append(t)
    times = [
        RebuildTime(kind, len(rebuilt), math.fsum(problem.rebuild_s[rebuilt].tolist()), steps.bytes_of(rebuilt))
        for kind, rebuilt in by_kind.items()
    ]
    return tuple(sorted(times, key=lambda time: (-time.seconds, time.kind)))


def _failure(score: Score, timeline: RunTimeline, steps: Steps, ledger: Ledger) -> Failure:
    k, names = len(timeline.start_s), timeline.run.problem.tensor_names
    return Failure(
        step=k,
        step_name=step_name(timeline.run.problem, steps.codes[k]),
        missing_bytes=score.missing_bytes,
        budget_bytes=timeline.run.budget_bytes,
        allocation_bytes=steps.allocation_bytes(k),
        missing_inputs=tuple((names[t], steps.sizes[t]) for t in steps.inputs(k) if t not in ledger.arrived),
        occupancy=occupancy(timeline, steps, ledger, len(ledger.what) - 1),
    )
