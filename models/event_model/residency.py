"""Who is on the device when: each sample of a timeline's memory, with the step or tensor whose bytes came or went.

A timeline says when steps and copies began and ended, and how many bytes were in use, not whose they were. That follows from
the schedule: nothing is decided here, every instant is one of the timeline's, and every change of `used` is accounted for
by exactly one event. What leaves without a trace in the schedule, an eviction (rule 9, or room made under ``on-demand``),
is the sample that nothing else accounts for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from slackswap.models.event_model.kernel.columns import INSTANT_S
from slackswap.models.event_model.score import RunTimeline
from slackswap.models.problem import IntArray, Problem
from slackswap.models.schedule import Schedule

START, END, FETCH, RELEASE = 0, 1, 2, 3
NO_TENSOR = -1
QUEUED, NOT_QUEUED, UNDER_WAY, DONE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, eq=False)
class Ledger:
    """What each of the q samples of memory stands for.

    Attributes
    ----------
    what : (q,) array of `START`, `END` (of a step), `FETCH` (the start of a copy in), `RELEASE` (of a tensor)
    index : (q,) array
        The step, or the tensor; `NO_TENSOR` for an eviction of no bytes.
    ended_s : list, one entry per step
        When compute stood at the next step: the step's end, or that of a copy within the same instant (rule 10).
    arrived : set of tensors that are on the device and complete after the last sample
    evictions : (time in s, tensor), in order of time
    """

    what: IntArray
    index: IntArray
    ended_s: list[float]
    arrived: frozenset[int]
    evictions: list[tuple[float, int]]


class Steps:
    """What each step of a schedule reads, writes, allocates and frees at its end."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.codes = schedule.steps.tolist()
        self.sizes = problem.tensor_bytes.tolist()
        self.offloaded = frozenset(schedule.offload_tensor.tolist())
        self._workspace = problem.workspace_bytes.tolist()
        self._rebuild_workspace = problem.rebuild_workspace_bytes.tolist()
        forward = [k for k, code in enumerate(self.codes) if code < problem.n_forward]
        self.n_forward = forward[-1] + 1 if forward else 0

    def rebuilt(self, step: int) -> int:
        """Tensor that the step rebuilds; negative where it is an operator."""
        return int(self.codes[step]) - self.problem.n_operators

    def inputs(self, step: int) -> list[int]:
        """Tensors that the step reads, ascending."""
        t = self.rebuilt(step)
        read = self.problem.reads_of(self.codes[step]) if t < 0 else self.problem.rebuild_inputs_of(t)
        return [int(one) for one in read]

    def outputs(self, step: int) -> range:
        """Tensors that the step writes."""
        t = self.rebuilt(step)
        return self.problem.writes_of(self.codes[step]) if t < 0 else range(t, t + 1)

    def workspace_bytes(self, step: int) -> int:
        """Bytes of its temporaries, which live while it runs."""
        t = self.rebuilt(step)
        return int(self._workspace[self.codes[step]] if t < 0 else self._rebuild_workspace[t])

    def allocation_bytes(self, step: int) -> int:
        """Bytes that it allocates when it starts (rule 1)."""
        return self.workspace_bytes(step) + self.bytes_of(self.outputs(step))

    def plain_drops(self, step: int) -> list[int]:
        """Tensors without an offload that go when it ends."""
        return [t for t in self.schedule.drops_after(step).tolist() if t not in self.offloaded]

    def bytes_of(self, tensors: Iterable[int]) -> int:
        """Bytes of some tensors together."""
        return sum(self.sizes[t] for t in tensors)


def account(timeline: RunTimeline, steps: Steps) -> Ledger:
    """Say of every sample of memory what it stands for."""
    return _Walk(timeline, steps).ledger()


class _Lane:
    """The copies of one direction, in order."""

    def __init__(self, timeline: RunTimeline, is_d2h: bool) -> None:
        mine = timeline.copy_is_d2h == is_d2h
        self.tensors = timeline.copy_tensor[mine].tolist()
        self.starts_s = [*timeline.copy_start_s[mine].tolist(), math.inf]
        self.ends_s = timeline.copy_end_s[mine].tolist()
        self.next = 0
        self.busy = False

    @property
    def end_s(self) -> float:
        """When the copy under way ends; infinity if none is."""
        return float(self.ends_s[self.next - 1]) if self.busy else math.inf

    def begin(self) -> int:
        """Start the next copy; return its tensor."""
        self.busy = True
        self.next += 1
        return int(self.tensors[self.next - 1])


class _Walk:
    """Goes from instant to instant of a timeline, in the order of rule 10."""

    def __init__(self, timeline: RunTimeline, steps: Steps) -> None:
        self.steps = steps
        self.on_demand = timeline.run.policy == "on-demand"
        self.starts_s, self.ends_s = timeline.start_s.tolist(), timeline.end_s.tolist()
        self.out, self.back = _Lane(timeline, True), _Lane(timeline, False)
        self.sample_s = timeline.memory_s.tolist()
        self.change_bytes = np.diff(timeline.memory_bytes, prepend=0).tolist()
        self.what: list[int] = []
        self.index: list[int] = []
        self.ended_s: list[float] = []
        self.evictions: list[tuple[float, int]] = []
        self.now_s, self.running = 0.0, False
        self.there: set[int] = set()
        self.host: set[int] = set()
        self.waits: set[int] = set()  # dropped: goes when its copy out ends
        self.may_leave: list[int] = []  # under on-demand, the least recently used first
        self.fetched: set[int] = set()  # copied in and not read since
        self.offload = dict.fromkeys(steps.offloaded, NOT_QUEUED if self.on_demand else QUEUED)
        self.offload_after = dict(
            zip(steps.schedule.offload_tensor.tolist(), steps.schedule.offload_after.tolist(), strict=True)
        )
        self.deadlines: dict[int, list[int]] = {}  # of the prefetches that no step has read yet
        schedule = steps.schedule
        for t, deadline in zip(schedule.prefetch_tensor.tolist(), schedule.prefetch_deadline.tolist(), strict=True):
            self.deadlines.setdefault(t, []).append(deadline)

    def ledger(self) -> Ledger:
        if self.starts_s or self.sample_s:
            self._stand_at(0)
        while self._starts() or self._advance():
            pass
        self._pass_over_nothing()
        if self._next_change() is not None:
            raise RuntimeError(f"memory changed at {self.sample_s[len(self.what)]} s, and nothing accounts for it")
        arrived = frozenset(self.there)
        return Ledger(
            np.array(self.what, np.int64), np.array(self.index, np.int64), self.ended_s, arrived, self.evictions
        )

    def _take(self, what: int, index: int, change_bytes: int) -> None:
        """Ascribe the next sample. Those of no bytes are alike: at one instant their order is not told, nor does it matter."""
        if change_bytes:
            self._pass_over_nothing()
        elif not (self._next_change() == 0 and self.sample_s[len(self.what)] <= self.now_s):
            return
        if self._next_change() != change_bytes:
            raise RuntimeError(
                f"memory does not change by {change_bytes} bytes at {self.now_s} s, as its schedule says"
            )
        self._ascribe(what, index)

    def _pass_over_nothing(self) -> None:
        while self._next_change() == 0:
            self._ascribe(RELEASE, NO_TENSOR)

    def _ascribe(self, what: int, index: int) -> None:
        self.what.append(what)
        self.index.append(index)

    def _next_change(self) -> int | None:
        i = len(self.what)
        return int(self.change_bytes[i]) if i < len(self.change_bytes) else None

    def _changes_now_by(self, change_bytes: int) -> bool:
        if change_bytes == 0:
            return True
        i = len(self.what)
        while i < len(self.sample_s) and self.change_bytes[i] == 0:
            i += 1
        return i < len(self.sample_s) and self.change_bytes[i] == change_bytes and self.sample_s[i] == self.now_s

    def _starts(self) -> bool:
        """Start what starts now, in the order of rule 10; return whether compute stands there and something was evicted."""
        k, out, back = len(self.ended_s), self.out, self.back
        if not out.busy and out.starts_s[out.next] == self.now_s and self._may_go_out(out.tensors[out.next], k):
            self.offload[out.begin()] = UNDER_WAY
        if not self.running and k < len(self.starts_s) and self.starts_s[k] == self.now_s and self._may_start(k):
            self._start_step(k)
        if not back.busy and back.starts_s[back.next] == self.now_s and self._may_come_back(back.tensors[back.next]):
            t = back.begin()
            self._take(FETCH, t, self.steps.sizes[t])
            self.there.discard(t)
        return not self.running and self._is_evicted(k)

    def _may_go_out(self, t: int, k: int) -> bool:
        return t in self.there and (self.on_demand or self.offload_after[t] < k)

    def _may_come_back(self, t: int) -> bool:
        """Whether it has gone, or may have unseen: the eviction of no bytes leaves no trace."""
        gone = t not in self.there or t in self.fetched or t in self.may_leave
        return t in self.host and gone and self._changes_now_by(self.steps.sizes[t])

    def _may_start(self, k: int) -> bool:
        return self.there.issuperset(self.steps.inputs(k)) and self._changes_now_by(self.steps.allocation_bytes(k))

    def _start_step(self, k: int) -> None:
        self._take(START, k, self.steps.allocation_bytes(k))
        self.running = True
        self.there.update(self.steps.outputs(k))
        for t in self.steps.inputs(k):
            self.fetched.discard(t)
            if self.offload.get(t) == QUEUED and k >= self.steps.n_forward:
                self.offload[t] = NOT_QUEUED  # rule 7
            if t in self.deadlines:
                self.deadlines[t] = [deadline for deadline in self.deadlines[t] if deadline > k]

    def _is_evicted(self, k: int) -> bool:
        i = len(self.what)
        if i >= len(self.sample_s) or self.sample_s[i] != self.now_s or self.change_bytes[i] > 0:
            return False
        t = self._victim(-self.change_bytes[i], k)
        self._ascribe(RELEASE, t)
        if t != NO_TENSOR:
            self.there.discard(t)
            self.fetched.discard(t)
            self.waits.discard(t)
            self.evictions.append((self.now_s, t))
        return True

    def _victim(self, n_bytes: int, k: int) -> int:
        """Tensor of so many bytes that goes first: read furthest away (rule 9), or least recently used."""
        if self.on_demand:
            leaving = [t for t in self.may_leave if t in self.there & self.host & self.waits]
            fitting = [t for t in leaving if self.steps.sizes[t] == n_bytes and self._next_deadline(t) > k]
        else:
            fitting = [t for t in self.fetched if self.steps.sizes[t] == n_bytes]
            fitting.sort(key=lambda t: (-self._next_deadline(t), t))
        if not fitting and n_bytes:
            raise RuntimeError(f"{n_bytes} bytes go at {self.now_s} s, and no tensor of that size may")
        return fitting[0] if fitting else NO_TENSOR

    def _next_deadline(self, t: int) -> int:
        later = self.deadlines.get(t)
        return later[0] if later else -1

    def _advance(self) -> bool:
        """Go to the next end of a step or copy; return whether there is one."""
        k = len(self.ended_s)
        step_end_s = float(self.ends_s[k]) if self.running else math.inf
        copy_end_s = min(self.out.end_s, self.back.end_s)
        if math.isinf(min(step_end_s, copy_end_s)):
            return False
        one_instant = copy_end_s >= step_end_s and copy_end_s - step_end_s < INSTANT_S
        self.now_s = copy_end_s if one_instant else min(step_end_s, copy_end_s)
        if step_end_s <= self.now_s:
            self._end_step(k)
        if self.out.end_s <= self.now_s:
            self._end_out()
        if self.back.end_s <= self.now_s:
            self._end_back()
        return True

    def _end_step(self, k: int) -> None:
        dropped = self.steps.plain_drops(k)
        self._take(END, k, -self.steps.workspace_bytes(k) - self.steps.bytes_of(dropped))
        self.there.difference_update(dropped)
        for t in self.steps.schedule.drops_after(k).tolist():
            if t in self.steps.offloaded:
                self._drop(t)
        self.running = False
        self.ended_s.append(self.now_s)
        self._stand_at(k + 1)

    def _drop(self, t: int) -> None:
        """What the end of a step does to an offloaded tensor that the schedule drops there (rules 2, 5 and 7)."""
        if self.on_demand and self.deadlines.get(t):
            self.waits.add(t)
            self.may_leave.append(t)
        elif self.offload[t] in (QUEUED, UNDER_WAY):
            self.waits.add(t)
        elif t in self.host or not self.deadlines.get(t):
            self._release(t)

    def _release(self, t: int) -> None:
        self._take(RELEASE, t, -self.steps.sizes[t])
        self.there.discard(t)
        self.fetched.discard(t)

    def _stand_at(self, k: int) -> None:
        if k < len(self.steps.codes) and self.waits:
            self.waits.difference_update(self.steps.inputs(k))

    def _end_out(self) -> None:
        t = self.out.tensors[self.out.next - 1]
        self.out.busy = False
        self.offload[t] = DONE
        self.host.add(t)
        if t in self.waits:
            self.waits.discard(t)
            self._release(t)

    def _end_back(self) -> None:
        t = self.back.tensors[self.back.next - 1]
        self.back.busy = False
        self.there.add(t)
        self.fetched.add(t)
        if self.may_leave:
            self.waits.add(t)
