"""Why compute waited: every wait between two instants of a timeline, and stalls, the waits of one step for one cause.

A wait lasts from the moment compute stands at a step to the next end of a copy, and so on until the step starts: these are
the pieces that the event model adds up to forward and backward stall (rule 8). Added in order of time they give the same
floats.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np

from slackswap.models.event_model.residency import Ledger, Steps
from slackswap.models.event_model.score import RunTimeline
from slackswap.models.problem import FloatArray
from slackswap.models.schedule import step_name

Cause = Literal["input", "memory", "barrier"]
Delay = Literal["copied", "queued", "no room"]


class CopyName(msgspec.Struct, frozen=True):
    """A copy, by its direction and tensor."""

    direction: Literal["D2H", "H2D"]
    tensor: str


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """Compute stands at `step` from `start_s` to `end_s`, the end of a copy.

    Attributes
    ----------
    cause : ``input`` where a tensor that the step reads was missing, ``memory`` where nothing but room for its allocation
        was, ``barrier`` where the runtime policy held it
    tensor : the missing one, the lowest index of several; None unless the cause is ``input``
    delay : of the missing tensor: its own copy was under way (``copied``), that of another one was (``queued``), or none
        could be admitted (``no room``)
    copy : the copy that compute waited for
    """

    step: int
    step_name: str
    forward: bool
    start_s: float
    end_s: float
    cause: Cause
    tensor: str | None = None
    delay: Delay | None = None
    copy: CopyName | None = None

    @property
    def seconds(self) -> float:
        """How long it lasted."""
        return self.end_s - self.start_s


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """The waits of one step for one cause; `behind` holds what it waited for and how long, in order of time."""

    step: int
    step_name: str
    forward: bool
    start_s: float
    seconds: float
    cause: Cause
    tensor: str | None
    allocation_bytes: int
    behind: tuple[tuple[CopyName | None, Delay | None, float], ...]


def waits_of(timeline: RunTimeline, steps: Steps, ledger: Ledger, until_s: float) -> tuple[Wait, ...]:
    """Return every wait in order of time; of a plan that does not fit also those of the step that did not start.

    Parameters
    ----------
    until_s : the end of the iteration, or when it failed
    """
    return tuple(_Waits(timeline, steps, ledger, until_s))


def stalls_of(waits: Iterable[Wait], steps: Steps) -> tuple[Stall, ...]:
    """Return the stalls that the waits add up to, the longest first; equal ones in order of time."""
    groups: dict[tuple[int, Cause, str | None], list[Wait]] = {}
    for wait in waits:
        groups.setdefault((wait.step, wait.cause, wait.tensor), []).append(wait)
    stalls = [_stall(group, steps.allocation_bytes(step)) for (step, _, _), group in groups.items()]
    return tuple(sorted(stalls, key=lambda stall: (-stall.seconds, stall.start_s)))


def _stall(waits: Sequence[Wait], allocation_bytes: int) -> Stall:
    first = waits[0]
    behind: dict[tuple[CopyName | None, Delay | None], list[float]] = {}
    for wait in waits:
        behind.setdefault((wait.copy, wait.delay), []).append(wait.seconds)
    return Stall(
        step=first.step,
        step_name=first.step_name,
        forward=first.forward,
        start_s=first.start_s,
        seconds=math.fsum(wait.seconds for wait in waits),
        cause=first.cause,
        tensor=first.tensor,
        allocation_bytes=allocation_bytes,
        behind=tuple((copy, delay, math.fsum(seconds)) for (copy, delay), seconds in behind.items()),
    )


class _Waits:
    """The waits of a timeline, found step by step."""

    def __init__(self, timeline: RunTimeline, steps: Steps, ledger: Ledger, until_s: float) -> None:
        self.timeline, self.steps, self.ledger, self.until_s = timeline, steps, ledger, until_s
        self.problem = timeline.run.problem
        ends_s = timeline.copy_end_s
        self.instants_s: FloatArray = np.unique(ends_s[np.isfinite(ends_s)])
        self.arrivals_s: dict[int, list[float]] = {}
        back = ~timeline.copy_is_d2h
        for t, end_s in zip(timeline.copy_tensor[back].tolist(), ends_s[back].tolist(), strict=True):
            self.arrivals_s.setdefault(t, []).append(end_s)

    def __iter__(self) -> Iterator[Wait]:
        stands_s = [0.0, *self.ledger.ended_s]
        starts_s = self.timeline.start_s.tolist()
        if len(starts_s) < len(self.steps.codes):
            starts_s.append(self.until_s)  # the step that did not fit
        for k, start_s in enumerate(starts_s):
            if start_s > stands_s[k]:
                yield from self._of_step(k, stands_s[k], start_s)

    def _of_step(self, k: int, stands_s: float, start_s: float) -> Iterator[Wait]:
        first, last = np.searchsorted(self.instants_s, (stands_s, start_s), side="right")
        within_s = [one for one in self.instants_s[first:last].tolist() if stands_s < one < start_s]
        bounds_s = [stands_s, *within_s, start_s]
        waits = [self._wait(k, a, b, start_s) for a, b in itertools.pairwise(bounds_s)]
        return self._told_apart(k, waits)

    def _wait(self, k: int, start_s: float, end_s: float, step_start_s: float) -> Wait:
        missing = next((t for t in self.steps.inputs(k) if self._is_missing(k, t, start_s, step_start_s)), None)
        names = self.problem.tensor_names
        copy, delay = self._ended_at(end_s), None
        if missing is not None:
            copy, delay = self._delay(missing, start_s, end_s)
        return Wait(
            step=k,
            step_name=step_name(self.problem, self.steps.codes[k]),
            forward=k < self.steps.n_forward,
            start_s=start_s,
            end_s=end_s,
            cause="memory" if missing is None else "input",
            tensor=None if missing is None else names[missing],
            delay=delay,
            copy=None if copy is None else self._name(copy),
        )

    def _is_missing(self, k: int, t: int, at_s: float, step_start_s: float) -> bool:
        """Whether an input comes between now and the step's start, or, of a step that did not start, never."""
        if k == len(self.timeline.start_s) and t not in self.ledger.arrived:
            return True
        return any(at_s < end_s <= step_start_s for end_s in self.arrivals_s.get(t, ()))

    def _delay(self, t: int, start_s: float, end_s: float) -> tuple[int | None, Delay]:
        lanes = self.timeline
        under_way = (lanes.copy_start_s <= start_s) & (lanes.copy_end_s >= end_s) & (lanes.copy_end_s > start_s)
        coming = np.flatnonzero(under_way & ~lanes.copy_is_d2h).tolist()
        if not coming:
            return self._ended_at(end_s), "no room"
        return coming[0], "copied" if lanes.copy_tensor[coming[0]] == t else "queued"

    def _ended_at(self, end_s: float) -> int | None:
        """The copy that ended there; of two, the one out, which is what makes room."""
        ended = np.flatnonzero(self.timeline.copy_end_s == end_s).tolist()
        return max(ended, key=lambda c: bool(self.timeline.copy_is_d2h[c]), default=None)

    def _name(self, copy: int) -> CopyName:
        tensor = self.problem.tensor_names[self.timeline.copy_tensor[copy]]
        return CopyName("D2H" if self.timeline.copy_is_d2h[copy] else "H2D", tensor)

    def _told_apart(self, k: int, waits: list[Wait]) -> Iterator[Wait]:
        """Call the first of the waits that lack no input a barrier's, as many as the timeline counts: a barrier comes first.

        The step that did not start is not in the timeline; what it lacks in the end is memory.
        """
        left_s = float(self.timeline.barrier_wait_s[k]) if k < len(self.timeline.start_s) else 0.0
        for wait in waits:
            if wait.cause == "memory" and left_s > wait.seconds / 2:
                left_s -= wait.seconds
                yield msgspec.structs.replace(wait, cause="barrier")
            else:
                yield wait
