"""The event model, slow and plainly written on SimPy: what the kernel must agree with.

It shares no code with the kernel, its own lowering included. Three SimPy processes do the work (a step on the compute
stream, a copy on each engine); a fourth, `Iteration._coordinate`, wakes at every instant at which one of them ends and
says what starts next, in the order of rule 10. Numbers in comments are the rules of the event model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import simpy
from reference_lowering import Step, check_decisions, first_backward_use, last_use, lower
from reference_policies import Barriers, OnDemand, Policy
from simpy.events import Process, ProcessGenerator

from slackswap.models.problem import Problem

PolicyName = Literal["default", "barriers", "on-demand"]
LaneName = Literal["compute", "d2h", "h2d"]
LOOK_AHEAD_STEPS = 3  # rule 6
ONE_INSTANT_S = 1e-9  # rule 10
POLICIES: dict[PolicyName, type[Policy]] = {"default": Policy, "barriers": Barriers, "on-demand": OnDemand}


@dataclass(frozen=True)
class Interval:
    """One step or copy of the run. `subject` is a step's place in the schedule, or the tensor that is copied."""

    lane: LaneName
    subject: int
    start_s: float
    end_s: float | None  # None: still in flight when the run ended


@dataclass(frozen=True)
class ReferenceScore:
    """What the rules give for one plan; where it does not fit, the totals reach as far as the run did.

    `intervals` are in order of their start; `used` holds (time, bytes) after every change; `evictions` holds (time,
    tensor) of what was released for room alone, with no copy: by rule 9, or on demand; `failed_step` is the name of an
    operator or of the tensor whose rebuild does not fit.
    """

    fits: bool
    step_s: float
    recompute_s: float
    forward_stall_s: float
    backward_stall_s: float
    d2h_bytes: int
    h2d_bytes: int
    peak_bytes: int
    missing_bytes: int
    failed_step: str | None
    steps: tuple[Step, ...]
    intervals: tuple[Interval, ...]
    used: tuple[tuple[float, int], ...]
    evictions: tuple[tuple[float, int], ...]


def reference_score(
    problem: Problem, decisions: str, budget_bytes: int, policy: PolicyName = "default"
) -> ReferenceScore:
    """Score a plan: one letter of K (keep), S (swap), R (recompute) per tensor.

    Raises
    ------
    InputError
        The plan is refused, with the letter at fault.
    """
    check_decisions(problem, decisions)
    return Iteration(problem, decisions, budget_bytes, policy).run()


# ---- The three lanes ----------------------------------------------------------------------------------------------


class Lane:
    """What runs on one lane: `subject` from its start until the coordinator has processed its end."""

    def __init__(self, env: simpy.Environment) -> None:
        self.env = env
        self.subject: int | None = None
        self.job: Process | None = None
        self.due_s = 0.0

    @property
    def busy(self) -> bool:
        return self.subject is not None

    def start(self, subject: int, job: ProcessGenerator) -> None:
        self.subject, self.job = subject, self.env.process(job)

    def ended_subject(self) -> int | None:
        """Return what has ended, once, and become free; None if nothing has."""
        if self.job is None or self.job.is_alive:
            return None
        subject, self.subject, self.job = self.subject, None, None
        return subject


class Compute(Lane):
    """The compute stream."""

    def run(self, duration_s: float) -> ProcessGenerator:
        """SimPy process of one step."""
        yield self.env.timeout(duration_s)

    def start_step(self, place: int, duration_s: float) -> None:
        self.due_s = self.env.now + duration_s
        self.start(place, self.run(duration_s))


class Engine(Lane):
    """A copy engine (rule 4); `other` is the engine of the other direction."""

    other: Engine

    def __init__(self, env: simpy.Environment, bytes_per_s: float, duplex_factor: float, latency_s: float) -> None:
        super().__init__(env)
        self.bytes_per_s, self.duplex_factor, self.latency_s = bytes_per_s, duplex_factor, latency_s
        self.moving = False
        self.toggled = env.event()  # succeeds when `moving` changes

    def rate_bytes_per_s(self) -> float:
        return self.bytes_per_s * (self.duplex_factor if self.other.moving else 1.0)

    def copy(self, size_bytes: int) -> ProcessGenerator:
        """SimPy process of one copy: latency, then bytes; the rate changes when the other engine starts or stops."""
        self.due_s = self.env.now + self.latency_s + size_bytes / self.rate_bytes_per_s()
        yield self.env.timeout(self.latency_s)  # moves no bytes and does not slow the other
        self.set_moving(True)
        left_bytes = float(size_bytes)
        while left_bytes > 0:
            since_s, rate_bytes_per_s = self.env.now, self.rate_bytes_per_s()
            self.due_s = since_s + left_bytes / rate_bytes_per_s
            done = self.env.timeout(left_bytes / rate_bytes_per_s)
            yield done | self.other.toggled
            moved_bytes = rate_bytes_per_s * (self.env.now - since_s)
            left_bytes = 0.0 if done.processed else max(0.0, left_bytes - moved_bytes)
        self.set_moving(False)

    def set_moving(self, moving: bool) -> None:
        self.moving = moving
        self.toggled.succeed()
        self.toggled = self.env.event()


class Memory:
    """The bytes in use, and their history."""

    def __init__(self, env: simpy.Environment, budget_bytes: int) -> None:
        self.env, self.budget_bytes = env, budget_bytes
        self.used_bytes = self.peak_bytes = 0
        self.history: list[tuple[float, int]] = [(0.0, 0)]

    def fits(self, size_bytes: int) -> bool:
        return self.used_bytes + size_bytes <= self.budget_bytes

    def change(self, by_bytes: int) -> None:
        self.used_bytes += by_bytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        self.history.append((self.env.now, self.used_bytes))


# ---- One iteration ------------------------------------------------------------------------------------------------


class Iteration:
    """One simulated iteration: the state that the rules speak of, and the rules."""

    def __init__(self, problem: Problem, decisions: str, budget_bytes: int, policy: PolicyName) -> None:
        self.steps = lower(problem, decisions)
        self.n_forward = problem.n_forward
        self.decisions = decisions
        self.tensor_bytes = [int(size) for size in problem.tensor_bytes]
        self.swapped = [t for t, letter in enumerate(decisions) if letter == "S"]
        tensors = range(problem.n_tensors)
        # "The schedule": uses are counted in the lowered schedule, whose first n_forward steps are the forward pass.
        self.last_use = [last_use(self.steps, t) for t in tensors]
        self.last_forward_use = [last_use(self.steps[: self.n_forward], t) for t in tensors]
        self.deadline = {t: first_backward_use(self.steps, t, self.n_forward) for t in self.swapped}  # 6

        self.env = simpy.Environment()
        self.memory = Memory(self.env, budget_bytes)
        self.compute = Compute(self.env)
        link = problem.link
        self.d2h = Engine(self.env, link.d2h_bytes_per_s, link.duplex_factor, link.latency_s)
        self.h2d = Engine(self.env, link.h2d_bytes_per_s, link.duplex_factor, link.latency_s)
        self.d2h.other, self.h2d.other = self.h2d, self.d2h

        self.place = 0  # the step that compute runs or stands at
        self.stands_since_s = 0.0
        self.on_device: set[int] = set()  # readable: a tensor that is being written or fetched is not yet
        self.host_copy: set[int] = set()
        self.offload_queue: list[int] = []
        self.policy = POLICIES[policy](self)

        self.fits = True
        self.missing_bytes = 0
        self.recompute_s = self.forward_stall_s = self.backward_stall_s = 0.0
        self.d2h_bytes = self.h2d_bytes = 0
        self.intervals: list[Interval] = []
        self.evictions: list[tuple[float, int]] = []

    def run(self) -> ReferenceScore:
        self.env.run(until=self.env.process(self._coordinate()))
        return ReferenceScore(
            fits=self.fits,
            step_s=self.env.now,  # 11: the last step's end; copies in flight are not waited for
            recompute_s=self.recompute_s,
            forward_stall_s=self.forward_stall_s,
            backward_stall_s=self.backward_stall_s,
            d2h_bytes=self.d2h_bytes,
            h2d_bytes=self.h2d_bytes,
            peak_bytes=self.memory.peak_bytes,
            missing_bytes=self.missing_bytes,
            failed_step=None if self.fits else self.steps[self.place].name,
            steps=self.steps,
            intervals=tuple(self.intervals),
            used=tuple(self.memory.history),
            evictions=tuple(self.evictions),
        )

    # ---- 10: the order at one instant ----

    def _coordinate(self) -> ProcessGenerator:
        while self.place < len(self.steps):
            self._start_offload()
            self._start_step()
            self._start_prefetch()
            self._make_room()
            if not self.fits:
                return
            yield from self._next_instant()
            self._process_ends()

    def _next_instant(self) -> Iterator[simpy.Event]:
        """10: wait for the next end, and for those less than 1 ns after it; the later is the instant."""
        busy = [lane for lane in (self.compute, self.d2h, self.h2d) if lane.job is not None]
        yield self.env.any_of([lane.job for lane in busy if lane.job is not None])
        first_s = self.env.now
        for lane in busy:
            if lane.job is not None and lane.due_s - first_s < ONE_INSTANT_S:
                yield lane.job

    def _process_ends(self) -> None:
        """10: the step's end before the copies' ends."""
        if (place := self.compute.ended_subject()) is not None:
            self._end_step(place)
        if (tensor := self.d2h.ended_subject()) is not None:
            self._end_offload(tensor)
        if (tensor := self.h2d.ended_subject()) is not None:
            self._close_interval("h2d")
            self.on_device.add(tensor)

    # ---- 1, 2, 8: steps ----

    def standing_step(self) -> Step | None:
        """Return the step that compute stands at, waiting; None while one runs."""
        return None if self.compute.busy else self.steps[self.place]

    def next_place(self) -> int:
        """Place of the first step that has not started."""
        return self.place + 1 if self.compute.busy else self.place

    def backward_begun(self) -> bool:
        """Whether the last forward operator has ended."""
        return self.place >= self.n_forward

    def missing(self, step: Step) -> list[int]:
        return [t for t in step.reads if t not in self.on_device]

    def _start_step(self) -> None:
        step = self.standing_step()
        if step is None or self.policy.holds_compute() or self.missing(step):
            return
        if not self.memory.fits(step.allocation_bytes):  # 1
            return
        self._count_stall()
        self.memory.change(step.allocation_bytes)
        self.recompute_s += step.duration_s if step.rebuilds is not None else 0.0
        if self.backward_begun():  # 7: not offloaded at all
            self.offload_queue = [t for t in self.offload_queue if t not in step.reads]
        self.compute.start_step(self.place, step.duration_s)
        self._open_interval("compute", self.place)
        self.policy.step_started(self.place)

    def _count_stall(self) -> None:
        stall_s = self.env.now - self.stands_since_s  # 8
        if self.backward_begun():
            self.backward_stall_s += stall_s
        else:
            self.forward_stall_s += stall_s

    def _end_step(self, place: int) -> None:
        step = self.steps[place]
        self._close_interval("compute")
        self.on_device.update(step.writes)
        self.memory.change(-step.workspace_bytes)  # 1
        for t in sorted({*step.reads, *step.writes}):
            self._release_after(place, t)
        # 5: "as soon as it is produced". A swapped tensor is saved, so a forward operator writes it, once.
        if self.policy.offloads_ahead():
            self.offload_queue += [t for t in step.writes if self.decisions[t] == "S"]
        self.place, self.stands_since_s = place + 1, self.env.now
        self.policy.step_ended(place)

    def _release_after(self, place: int, tensor: int) -> None:
        """2: what the end of the step at `place` releases of a tensor that it read or wrote."""
        decision = self.decisions[tensor]
        last_forward_use = place == self.last_forward_use[tensor]
        if place == self.last_use[tensor]:
            # A swapped tensor whose offload is under way is released when that copy ends.
            if self.d2h.subject != tensor:
                self._release(tensor)
        elif last_forward_use and (decision == "R" or (decision == "S" and tensor in self.host_copy)):  # 2, 5
            self._release(tensor)

    def _release(self, tensor: int) -> None:
        self.on_device.remove(tensor)
        self.memory.change(-self.tensor_bytes[tensor])

    # ---- 5, 7: offloads ----

    def _start_offload(self) -> None:
        if self.offload_queue and not self.d2h.busy:
            self.offload(self.offload_queue.pop(0))  # 5: in the order in which they are produced

    def offload(self, tensor: int) -> None:
        self.d2h_bytes += self.tensor_bytes[tensor]  # 11
        self._open_interval("d2h", tensor)
        self.d2h.start(tensor, self.d2h.copy(self.tensor_bytes[tensor]))

    def _end_offload(self, tensor: int) -> None:
        self._close_interval("d2h")
        self.host_copy.add(tensor)
        # 7: `place` is the step that runs or that compute stands at, and either counts as reading its inputs.
        unread = self.place < self.deadline[tensor]
        if self.last_use[tensor] < self.place or (unread and self.last_forward_use[tensor] < self.place):  # 2, 5
            self._release(tensor)

    # ---- 6: prefetches ----

    def prefetch_queue(self) -> list[int]:
        """Tensors to fetch, in order of deadline."""
        queue = [
            t
            for t in self.swapped
            if t in self.host_copy
            and t not in self.on_device
            and t != self.h2d.subject
            and self.last_use[t] >= self.next_place()
        ]
        return sorted(queue, key=lambda t: (self.deadline[t], t))

    def _start_prefetch(self) -> None:
        if not self.backward_begun() or self.h2d.busy:
            return
        queue = [t for t in self.prefetch_queue() if self.policy.may_fetch(t)]
        if queue and self._admits(queue[0]):
            tensor = queue[0]
            self.memory.change(self.tensor_bytes[tensor])  # counts from admission
            self.h2d_bytes += self.tensor_bytes[tensor]  # 11
            self._open_interval("h2d", tensor)
            self.h2d.start(tensor, self.h2d.copy(self.tensor_bytes[tensor]))

    def _admits(self, tensor: int) -> bool:
        step = self.standing_step()
        if step is not None and tensor in step.reads:  # compute waits and lacks it
            return self.memory.fits(self.tensor_bytes[tensor])
        place = self.next_place()
        ahead_bytes = sum(step.allocation_bytes for step in self.steps[place : place + LOOK_AHEAD_STEPS])
        return self.memory.fits(self.tensor_bytes[tensor] + ahead_bytes)

    # ---- 9: no room ----

    def nothing_under_way(self) -> bool:
        return not (self.compute.busy or self.d2h.busy or self.h2d.busy)

    def _make_room(self) -> None:
        """9: one tensor at a time until something runs; else the plan does not fit."""
        while self.policy.needs_room():
            if not self.policy.makes_room():
                if self.nothing_under_way():
                    self._does_not_fit()
                return
            self._start_step()
            self._start_prefetch()

    def evict(self, tensor: int) -> None:
        """Release what the host has a copy of."""
        self._release(tensor)  # which queues it again: it has a host copy and is not on the device
        self.evictions.append((self.env.now, tensor))

    def _does_not_fit(self) -> None:
        step = self.steps[self.place]
        inputs_bytes = sum(self.tensor_bytes[t] for t in self.missing(step))
        self.fits = False
        self.missing_bytes = self.memory.used_bytes + step.allocation_bytes + inputs_bytes - self.memory.budget_bytes

    # ---- the log ----

    def _open_interval(self, lane: LaneName, subject: int) -> None:
        self.intervals.append(Interval(lane, subject, self.env.now, None))

    def _close_interval(self, lane: LaneName) -> None:
        is_open = (i for i, one in enumerate(self.intervals) if one.end_s is None and one.lane == lane)
        i = next(is_open)  # a lane does one thing at a time
        self.intervals[i] = replace(self.intervals[i], end_s=self.env.now)
