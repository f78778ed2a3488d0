"""The event model's compiled engine: lowering, one iteration, batches of plans.

All compiled code stands in this one file, because numba's cache on disk watches only the file of the function that it
caches: a kernel split over files would run stale code after an edit. Nothing here allocates; every array comes from the
caller. Rule numbers in comments are those of the event model (models/event_model/__init__.py lists them).

A *step* is an operator (its index) or a rebuild (number of operators + tensor index). A prefetch *entry* is one H2D copy
that the schedule foresees: a tensor, the step by which it is read (its deadline), the step after which it may start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackswap.models.event_model.compilation import compiled_entry, compiled_part
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray
from slackswap.models.problem import FloatArray, IntArray

DEFAULT, BARRIERS = 0, 1
INSTANT_S = 1e-9  # rule 10: ends closer than this are one instant
UNLIMITED_BYTES = 1 << 62


class ProblemColumns(NamedTuple):
    """What the engine reads of a `Problem`; shapes as there."""

    n_forward: int
    duration_s: FloatArray
    layer: IntArray
    workspace_bytes: IntArray
    allocation_bytes: IntArray
    reads_start: IntArray
    reads: IntArray
    tensor_bytes: IntArray
    producer: IntArray
    last_forward_use: IntArray
    first_backward_reader: IntArray
    last_use: IntArray
    rebuild_s: FloatArray
    rebuild_workspace_bytes: IntArray
    rebuild_inputs_start: IntArray
    rebuild_inputs: IntArray
    bytes_per_s: FloatArray
    duplex_factor: float
    latency_s: float


class ScheduleColumns(NamedTuple):
    """A schedule in arrays that may be longer than needed; `counts` holds (steps, offloads, prefetches)."""

    counts: IntArray
    steps: IntArray
    drops_start: IntArray
    drops: IntArray
    offload_tensor: IntArray
    offload_after: IntArray
    prefetch_tensor: IntArray
    prefetch_deadline: IntArray
    prefetch_after: IntArray


class Scratch(NamedTuple):
    """Working memory of one iteration: state vectors, then one entry per tensor, step or prefetch."""

    integers: IntArray
    floats: FloatArray
    phase: IntArray  # (2,) per engine
    cargo: IntArray  # (2,) offload or prefetch entry under way
    copy_log: IntArray  # (2,) where the copy under way stands in the log
    event_s: FloatArray  # (2,) end of the latency, or of the copy
    since_s: FloatArray  # (2,) when `left_bytes` was true
    left_bytes: FloatArray  # (2,) bytes still to move
    rate: FloatArray  # (2,) bytes per second now
    on_device: IntArray
    on_host: IntArray
    swapped: IntArray
    offload: IntArray
    release_waits: IntArray
    entry: IntArray
    entry_next: IntArray
    entry_state: IntArray
    step_s: FloatArray
    step_bytes: IntArray  # allocation of each step
    step_frees: IntArray  # its workspace and the tensors that go with it and have no offload
    step_flags: IntArray
    layer_last: IntArray
    rebuilt: IntArray
    first_late_step: IntArray
    last_step: IntArray
    step_of: IntArray
    bucket: IntArray
    stack: IntArray
    stack_position: IntArray


class Log(NamedTuple):
    """The timeline, written only when its arrays have room; sizes are in `Scratch.integers`."""

    start_s: FloatArray
    end_s: FloatArray
    input_wait_s: FloatArray
    memory_wait_s: FloatArray
    awaited: IntArray
    copy_engine: IntArray
    copy_tensor: IntArray
    copy_start_s: FloatArray
    copy_end_s: FloatArray
    memory_s: FloatArray
    memory_bytes: IntArray


# Scratch.integers
USED, PEAK, STEP, RUNNING, FORWARD_STEPS, LOWEST, HIGHEST = 0, 1, 2, 3, 4, 5, 6
NEXT_OFFLOAD, BARRIER_D2H, BARRIER_H2D, TARGET_LAST, FAILED, MISSING = 7, 8, 9, 10, 11, 12
D2H_BYTES, H2D_BYTES, COPIES, SAMPLES, N_WAITING, EARLIEST_FETCH, FETCHES_FIRST = 13, 14, 15, 16, 17, 18, 19
N_INTEGERS = 20
# Scratch.floats
NOW, STEP_END, RECOMPUTE_S, FORWARD_STALL, BACKWARD_STALL, NEXT_EVENT, N_FLOATS = 0, 1, 2, 3, 4, 5, 6
# engines and their phases; an engine in its latency moves no bytes, an empty copy never does
D2H, H2D = 0, 1
IDLE, LATENCY, MOVING, EMPTY = 0, 1, 2, 3
# Scratch.offload
NONE, QUEUED, UNDER_WAY, DONE = 0, 1, 2, 3
# Scratch.entry_state
PLANNED, WAITING, FETCHED = 0, 1, 2
# Scratch.step_flags: only steps that read or drop a tensor with an offload need a look at single tensors
READS_SWAPPED, DROPS_SWAPPED = 1, 2
NO_ENTRY = -1


@compiled_part
def _lower(problem: ProblemColumns, decisions: DecisionArray, out: ScheduleColumns, scratch: Scratch) -> None:
    """Write the schedule of one decision per tensor into `out` (lowering, first section of the rules)."""
    n_operators, n_tensors = problem.duration_s.size, problem.producer.size
    n_forward = problem.n_forward
    for i in range(n_forward):
        out.steps[i] = i
        scratch.step_of[i] = i
    for t in range(n_tensors):
        scratch.rebuilt[t] = NO_ENTRY
    n_steps = n_forward
    for i in range(n_forward, n_operators):
        for j in range(problem.reads_start[i], problem.reads_start[i + 1]):
            t = problem.reads[j]
            if decisions[t] == RECOMPUTE and scratch.rebuilt[t] == NO_ENTRY:
                n_steps = _rebuild_depth_first(problem, decisions, t, n_steps, out, scratch)
        out.steps[n_steps] = i
        scratch.step_of[i] = n_steps
        n_steps += 1
    out.counts[0] = n_steps
    _find_uses(problem, n_steps, out, scratch)
    _write_drops(problem, decisions, n_steps, out, scratch)
    _write_copies(problem, decisions, n_steps, out, scratch)


@compiled_part
def _rebuild_depth_first(
    problem: ProblemColumns, decisions: DecisionArray, tensor: int, n_steps: int, out: ScheduleColumns, scratch: Scratch
) -> int:
    """Append the rebuild of `tensor`, its recomputed inputs first; return the new number of steps."""
    n_operators = problem.duration_s.size
    depth = 0
    scratch.stack[0] = tensor
    scratch.stack_position[0] = problem.rebuild_inputs_start[tensor]
    while depth >= 0:
        t = scratch.stack[depth]
        j = scratch.stack_position[depth]
        if j == problem.rebuild_inputs_start[t + 1]:
            out.steps[n_steps] = n_operators + t
            scratch.rebuilt[t] = n_steps
            n_steps += 1
            depth -= 1
            continue
        scratch.stack_position[depth] = j + 1
        source = problem.rebuild_inputs[j]
        if decisions[source] == RECOMPUTE and scratch.rebuilt[source] == NO_ENTRY:
            depth += 1
            scratch.stack[depth] = source
            scratch.stack_position[depth] = problem.rebuild_inputs_start[source]
    return n_steps


@compiled_part
def _find_uses(problem: ProblemColumns, n_steps: int, out: ScheduleColumns, scratch: Scratch) -> None:
    """First use after the forward pass and last use of each tensor, counted in the lowered schedule."""
    n_operators = problem.duration_s.size
    for t in range(problem.producer.size):
        first = problem.first_backward_reader[t]
        scratch.first_late_step[t] = scratch.step_of[first] if first < n_operators else n_steps
        scratch.last_step[t] = scratch.step_of[problem.last_use[t]]
    for k in range(problem.n_forward, n_steps):
        rebuilt = out.steps[k] - n_operators
        if rebuilt < 0:
            continue
        for j in range(problem.rebuild_inputs_start[rebuilt], problem.rebuild_inputs_start[rebuilt + 1]):
            t = problem.rebuild_inputs[j]
            scratch.first_late_step[t] = min(scratch.first_late_step[t], k)
            scratch.last_step[t] = max(scratch.last_step[t], k)


@compiled_part
def _write_drops(
    problem: ProblemColumns, decisions: DecisionArray, n_steps: int, out: ScheduleColumns, scratch: Scratch
) -> None:
    """Rule 2 as drops: after the last use; swapped and recomputed tensors also after the last forward reader."""
    for k in range(n_steps + 1):
        out.drops_start[k] = 0
    for t in range(decisions.size):
        out.drops_start[scratch.last_step[t] + 1] += 1
        if decisions[t] != KEEP:
            out.drops_start[problem.last_forward_use[t] + 1] += 1
    for k in range(n_steps):
        out.drops_start[k + 1] += out.drops_start[k]
        scratch.bucket[k] = out.drops_start[k]
    for t in range(decisions.size):
        k = scratch.last_step[t]
        out.drops[scratch.bucket[k]] = t
        scratch.bucket[k] += 1
        if decisions[t] != KEEP:
            k = problem.last_forward_use[t]
            out.drops[scratch.bucket[k]] = t
            scratch.bucket[k] += 1


@compiled_part
def _write_copies(
    problem: ProblemColumns, decisions: DecisionArray, n_steps: int, out: ScheduleColumns, scratch: Scratch
) -> None:
    """Rules 5 and 6 as queues: offloads in order of production, prefetches in order of (deadline, tensor)."""
    for k in range(n_steps + 1):
        scratch.bucket[k] = 0
    n_swapped = 0
    for t in range(decisions.size):
        if decisions[t] == SWAP:
            out.offload_tensor[n_swapped] = t
            out.offload_after[n_swapped] = problem.producer[t]
            n_swapped += 1
            scratch.bucket[scratch.first_late_step[t] + 1] += 1
    out.counts[1] = n_swapped
    out.counts[2] = n_swapped
    if n_swapped == 0:
        return
    for k in range(n_steps):
        scratch.bucket[k + 1] += scratch.bucket[k]
    for j in range(n_swapped):
        t = out.offload_tensor[j]
        k = scratch.first_late_step[t]
        e = scratch.bucket[k]
        scratch.bucket[k] += 1
        out.prefetch_tensor[e] = t
        out.prefetch_deadline[e] = k
        out.prefetch_after[e] = problem.n_forward - 1


@compiled_part
def _run(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Simulate one iteration; results stand in `scratch.integers` and `scratch.floats`, the timeline in `log`."""
    _reset(problem, schedule, policy, scratch)
    integers, phase = scratch.integers, scratch.phase
    n_steps = schedule.counts[0]
    _stand_at_step(problem, schedule, scratch)
    while integers[STEP] < n_steps:
        # Rule 10: what ended has been processed; now a D2H copy, the next step, an H2D copy.
        if phase[D2H] == IDLE:
            _start_offload(problem, schedule, scratch, log)
        if (
            policy == DEFAULT
            and integers[RUNNING] == 0
            and _run_undisturbed(problem, schedule, budget_bytes, scratch, log)
        ):
            continue
        if integers[RUNNING] == 0:
            _try_step(problem, schedule, budget_bytes, policy, scratch, log)
        if phase[H2D] == IDLE:
            _admit_prefetch(problem, schedule, budget_bytes, policy, scratch, log)
        if integers[RUNNING] == 0 and phase[D2H] == IDLE and phase[H2D] == IDLE:
            if policy == BARRIERS and _stops_fetching_first(schedule, scratch):
                continue
            if not _evict(problem, schedule, scratch, log):
                _fail(problem, schedule, budget_bytes, scratch)
                return
        else:
            _advance(problem, schedule, scratch, log)


@compiled_part
def _reset(problem: ProblemColumns, schedule: ScheduleColumns, policy: int, scratch: Scratch) -> None:
    n_offloads, n_prefetches = schedule.counts[1], schedule.counts[2]
    scratch.integers[:] = 0
    scratch.floats[:] = 0.0
    scratch.floats[NEXT_EVENT] = np.inf
    scratch.phase[:] = IDLE
    scratch.integers[FAILED] = NO_ENTRY
    scratch.integers[HIGHEST] = NO_ENTRY
    scratch.integers[TARGET_LAST] = NO_ENTRY
    scratch.integers[FETCHES_FIRST] = 1
    scratch.integers[EARLIEST_FETCH] = schedule.counts[0]
    for t in range(problem.producer.size):
        scratch.on_device[t] = 1  # a legal schedule reads nothing before it is there; only what leaves can be missing
        scratch.on_host[t] = 0
        scratch.swapped[t] = 0
        scratch.offload[t] = NONE
        scratch.release_waits[t] = 0
        scratch.entry[t] = NO_ENTRY
    for j in range(n_offloads):
        scratch.swapped[schedule.offload_tensor[j]] = 1
        scratch.offload[schedule.offload_tensor[j]] = QUEUED
    for e in range(n_prefetches - 1, -1, -1):
        t = schedule.prefetch_tensor[e]
        scratch.entry_state[e] = PLANNED
        scratch.entry_next[e] = scratch.entry[t]
        scratch.entry[t] = e
        scratch.integers[EARLIEST_FETCH] = min(scratch.integers[EARLIEST_FETCH], schedule.prefetch_after[e])
    _measure_steps(problem, schedule, scratch)
    if policy == BARRIERS:
        _find_layers(problem, schedule, scratch)


@compiled_part
def _measure_steps(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
    """Time, allocation and release of each step; tensors with an offload are left to the simulation."""
    n_operators = problem.duration_s.size
    for k in range(schedule.counts[0]):
        step = schedule.steps[k]
        if step < n_operators:
            scratch.step_s[k] = problem.duration_s[step]
            scratch.step_bytes[k] = problem.allocation_bytes[step]
            frees_bytes = problem.workspace_bytes[step]
            if step < problem.n_forward:
                scratch.integers[FORWARD_STEPS] = k + 1
        else:
            t = step - n_operators
            scratch.step_s[k] = problem.rebuild_s[t]
            scratch.step_bytes[k] = problem.tensor_bytes[t] + problem.rebuild_workspace_bytes[t]
            frees_bytes = problem.rebuild_workspace_bytes[t]
        flags = 0
        for j in range(schedule.drops_start[k], schedule.drops_start[k + 1]):
            t = schedule.drops[j]
            if scratch.swapped[t] == 0:
                frees_bytes += problem.tensor_bytes[t]
            else:
                flags = DROPS_SWAPPED
        if schedule.counts[1] > 0:
            tensors, first, last = _inputs(problem, schedule, k)
            for j in range(first, last):
                if scratch.swapped[tensors[j]] == 1:
                    flags |= READS_SWAPPED
        scratch.step_frees[k] = frees_bytes
        scratch.step_flags[k] = flags


@compiled_part
def _run_undisturbed(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch, log: Log
) -> bool:
    """Run steps for as long as no copy starts, ends or changes its rate, and none touches a tensor with an offload.

    A short cut of the same rules: such steps follow each other without a wait. Return whether any ran.
    """
    integers, floats = scratch.integers, scratch.floats
    last = schedule.counts[0]
    if scratch.phase[H2D] == IDLE and integers[N_WAITING] > 0:
        last = min(last, integers[EARLIEST_FETCH] + 1)
    j = integers[NEXT_OFFLOAD]
    if scratch.phase[D2H] == IDLE and j < schedule.counts[1]:
        last = min(last, schedule.offload_after[j] + 1)  # its copy starts when that step ends
    first, used_bytes, peak_bytes = integers[STEP], integers[USED], integers[PEAK]
    k = first
    now, recompute_s, quiet_until_s = floats[NOW], floats[RECOMPUTE_S], floats[NEXT_EVENT] - INSTANT_S
    while k < last and scratch.step_flags[k] == 0:
        end_s = now + scratch.step_s[k]
        if used_bytes + scratch.step_bytes[k] > budget_bytes or end_s >= quiet_until_s:
            break
        used_bytes += scratch.step_bytes[k]
        peak_bytes = max(peak_bytes, used_bytes)
        if k < log.start_s.size:
            _log_step(scratch, log, k, now, end_s, used_bytes)
        used_bytes -= scratch.step_frees[k]
        if schedule.steps[k] >= problem.duration_s.size:
            recompute_s += scratch.step_s[k]
        now = end_s
        k += 1
    integers[STEP], integers[USED], integers[PEAK] = k, used_bytes, peak_bytes
    floats[NOW], floats[RECOMPUTE_S] = now, recompute_s
    if k == first:
        return False
    _stand_at_step(problem, schedule, scratch)
    return True


@compiled_part
def _log_step(scratch: Scratch, log: Log, k: int, start_s: float, end_s: float, used_bytes: int) -> None:
    log.start_s[k] = start_s
    log.end_s[k] = end_s
    _log_memory(scratch, log, start_s, used_bytes)
    _log_memory(scratch, log, end_s, used_bytes - scratch.step_frees[k])


@compiled_part
def _log_memory(scratch: Scratch, log: Log, at_s: float, used_bytes: int) -> None:
    n = scratch.integers[SAMPLES]
    if n < log.memory_s.size:
        log.memory_s[n] = at_s
        log.memory_bytes[n] = used_bytes
    scratch.integers[SAMPLES] = n + 1


@compiled_part
def _find_layers(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
    """Last step of each step's layer: neighbouring operators of one pass and layer; a rebuild is a layer of its own."""
    n_operators, n_steps = problem.duration_s.size, schedule.counts[0]
    for k in range(n_steps - 1, -1, -1):
        step = schedule.steps[k]
        scratch.layer_last[k] = k
        if k + 1 < n_steps and step < n_operators and k + 1 != scratch.integers[FORWARD_STEPS]:
            after = schedule.steps[k + 1]
            if after < n_operators and problem.layer[after] == problem.layer[step]:
                scratch.layer_last[k] = scratch.layer_last[k + 1]


@compiled_part
def _inputs(problem: ProblemColumns, schedule: ScheduleColumns, k: int) -> tuple[IntArray, int, int]:
    """Array and bounds of the tensors that step k reads."""
    step = schedule.steps[k]
    if step < problem.duration_s.size:
        return problem.reads, problem.reads_start[step], problem.reads_start[step + 1]
    t = step - problem.duration_s.size
    return problem.rebuild_inputs, problem.rebuild_inputs_start[t], problem.rebuild_inputs_start[t + 1]


@compiled_part
def _stand_at_step(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
    """Rule 7: from the moment compute stands at a step, a tensor that it reads no longer leaves with its offload."""
    k = scratch.integers[STEP]
    if k < schedule.counts[0] and scratch.step_flags[k] & READS_SWAPPED:
        tensors, first, last = _inputs(problem, schedule, k)
        for j in range(first, last):
            scratch.release_waits[tensors[j]] = 0


@compiled_part
def _start_offload(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> None:
    """Rule 5: the next queued tensor, once it is produced."""
    j, n_offloads = scratch.integers[NEXT_OFFLOAD], schedule.counts[1]
    while j < n_offloads and scratch.offload[schedule.offload_tensor[j]] != QUEUED:
        j += 1  # cancelled by rule 7
    scratch.integers[NEXT_OFFLOAD] = j
    if j < n_offloads and schedule.offload_after[j] < scratch.integers[STEP]:
        t = schedule.offload_tensor[j]
        scratch.offload[t] = UNDER_WAY
        scratch.integers[NEXT_OFFLOAD] = j + 1
        scratch.integers[D2H_BYTES] += problem.tensor_bytes[t]
        _start_copy(problem, D2H, j, t, scratch, log)


@compiled_part
def _start_copy(problem: ProblemColumns, engine: int, cargo: int, tensor: int, scratch: Scratch, log: Log) -> None:
    now, n_bytes = scratch.floats[NOW], problem.tensor_bytes[tensor]
    scratch.cargo[engine] = cargo
    scratch.phase[engine] = LATENCY if n_bytes > 0 else EMPTY
    scratch.event_s[engine] = now + problem.latency_s
    scratch.left_bytes[engine] = n_bytes
    n = scratch.integers[COPIES]
    if n < log.copy_tensor.size:
        log.copy_engine[n] = engine
        log.copy_tensor[n] = tensor
        log.copy_start_s[n] = now
        log.copy_end_s[n] = np.inf
    scratch.copy_log[engine] = n
    scratch.integers[COPIES] = n + 1
    _find_next_event(scratch)


@compiled_part
def _find_next_event(scratch: Scratch) -> None:
    next_s = np.inf
    for engine in range(2):
        if scratch.phase[engine] != IDLE:
            next_s = min(next_s, scratch.event_s[engine])
    scratch.floats[NEXT_EVENT] = next_s


@compiled_part
def _try_step(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Rule 1: start the step if its inputs are on the device and its allocation fits."""
    integers, k = scratch.integers, scratch.integers[STEP]
    if policy == BARRIERS and _held_by_barrier(schedule, scratch):
        return
    if integers[USED] + scratch.step_bytes[k] > budget_bytes:
        return
    if scratch.step_flags[k] & READS_SWAPPED:
        tensors, first, last = _inputs(problem, schedule, k)
        for j in range(first, last):
            if scratch.on_device[tensors[j]] == 0:
                return
        _consume_inputs(schedule, tensors, first, last, scratch)
    if policy == BARRIERS and _begins_layer(scratch, k):
        _choose_target(schedule, scratch, k)
    _start_step(problem, schedule, scratch, log)


@compiled_part
def _consume_inputs(schedule: ScheduleColumns, tensors: IntArray, first: int, last: int, scratch: Scratch) -> None:
    """Rule 7: reading cancels a queued offload in the backward pass, and fulfils the prefetches due by now."""
    k = scratch.integers[STEP]
    for j in range(first, last):
        t = tensors[j]
        if scratch.offload[t] == QUEUED and k >= scratch.integers[FORWARD_STEPS]:
            scratch.offload[t] = NONE
        e = scratch.entry[t]
        while e != NO_ENTRY and schedule.prefetch_deadline[e] <= k:
            scratch.entry_state[e] = PLANNED
            e = scratch.entry_next[e]
        scratch.entry[t] = e


@compiled_part
def _start_step(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> None:
    integers, floats, k = scratch.integers, scratch.floats, scratch.integers[STEP]
    step, n_operators = schedule.steps[k], problem.duration_s.size
    if step >= n_operators:
        floats[RECOMPUTE_S] += scratch.step_s[k]
        scratch.on_device[step - n_operators] = 1
    _use(scratch.step_bytes[k], scratch, log)
    integers[RUNNING] = 1
    floats[STEP_END] = floats[NOW] + scratch.step_s[k]
    if k < log.start_s.size:
        log.start_s[k] = floats[NOW]
        log.end_s[k] = floats[STEP_END]


@compiled_part
def _use(n_bytes: int, scratch: Scratch, log: Log) -> None:
    """Count an allocation (or, negative, a release)."""
    integers = scratch.integers
    integers[USED] += n_bytes
    integers[PEAK] = max(integers[PEAK], integers[USED])
    if log.memory_s.size > 0:
        _log_memory(scratch, log, scratch.floats[NOW], integers[USED])


@compiled_part
def _head(schedule: ScheduleColumns, policy: int, scratch: Scratch) -> int:
    """Rule 6: the waiting prefetch with the earliest deadline that may start by now, and that the policy allows."""
    e, n_prefetches = scratch.integers[LOWEST], schedule.counts[2]
    while e < n_prefetches and scratch.entry_state[e] != WAITING:
        e += 1
    scratch.integers[LOWEST] = e
    while e < n_prefetches:
        may_start = scratch.entry_state[e] == WAITING and schedule.prefetch_after[e] < scratch.integers[STEP]
        if may_start and (policy == DEFAULT or _allowed_by_barrier(schedule, e, scratch)):
            return int(e)
        e += 1
    return NO_ENTRY


@compiled_part
def _fits(problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, e: int, scratch: Scratch) -> bool:
    """Rule 6: room for the tensor, and for the next three steps unless compute waits for just this tensor."""
    integers, k = scratch.integers, scratch.integers[STEP]
    need_bytes = integers[USED] + problem.tensor_bytes[schedule.prefetch_tensor[e]]
    if integers[RUNNING] == 0 and schedule.prefetch_deadline[e] == k:
        return bool(need_bytes <= budget_bytes)
    first = k + integers[RUNNING]
    for ahead in range(first, min(first + 3, schedule.counts[0])):
        need_bytes += scratch.step_bytes[ahead]
    return bool(need_bytes <= budget_bytes)


@compiled_part
def _admit_prefetch(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    if scratch.integers[N_WAITING] == 0 or scratch.integers[EARLIEST_FETCH] >= scratch.integers[STEP]:
        return
    e = _head(schedule, policy, scratch)
    if e == NO_ENTRY or not _fits(problem, schedule, budget_bytes, e, scratch):
        return
    t = schedule.prefetch_tensor[e]
    scratch.entry_state[e] = PLANNED
    scratch.integers[N_WAITING] -= 1
    scratch.integers[H2D_BYTES] += problem.tensor_bytes[t]
    _use(problem.tensor_bytes[t], scratch, log)
    _start_copy(problem, H2D, e, t, scratch, log)


@compiled_part
def _evict(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> bool:
    """Rule 9: release the fetched tensor that is read furthest from now, and queue it again."""
    k = scratch.integers[STEP]
    e = scratch.integers[HIGHEST]
    while e >= 0 and scratch.entry_state[e] != FETCHED:
        e -= 1
    scratch.integers[HIGHEST] = e
    if k < scratch.integers[FORWARD_STEPS] or e < 0 or schedule.prefetch_deadline[e] <= k:
        return False
    victim, j = e, e - 1
    while j >= 0 and schedule.prefetch_deadline[j] == schedule.prefetch_deadline[e]:
        if scratch.entry_state[j] == FETCHED:
            victim = j  # equal deadlines: entries stand in order of tensor index, the lower one goes
        j -= 1
    _release(problem, schedule.prefetch_tensor[victim], scratch, log)
    return True


@compiled_part
def _release(problem: ProblemColumns, t: int, scratch: Scratch, log: Log) -> None:
    """Free the device copy; if the host has one and a prefetch is foreseen, that prefetch waits from now."""
    scratch.on_device[t] = 0
    _use(-problem.tensor_bytes[t], scratch, log)
    e = scratch.entry[t]
    if scratch.on_host[t] == 1 and e != NO_ENTRY:
        scratch.entry_state[e] = WAITING
        scratch.integers[N_WAITING] += 1
        scratch.integers[LOWEST] = min(scratch.integers[LOWEST], e)


@compiled_part
def _fail(problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch) -> None:
    """Rule 9: the plan does not fit; say where and by how much."""
    integers, k = scratch.integers, scratch.integers[STEP]
    missing_bytes = integers[USED] + scratch.step_bytes[k] - budget_bytes
    tensors, first, last = _inputs(problem, schedule, k)
    for j in range(first, last):
        if scratch.on_device[tensors[j]] == 0:
            missing_bytes += problem.tensor_bytes[tensors[j]]
    integers[FAILED] = k
    integers[MISSING] = missing_bytes


@compiled_part
def _advance(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> None:
    """Go to the next instant at which a step or a copy ends, and process what ends there (rule 10)."""
    integers, floats, phase, event_s = scratch.integers, scratch.floats, scratch.phase, scratch.event_s
    while True:
        earliest_s = floats[STEP_END] if integers[RUNNING] == 1 else np.inf
        for engine in range(2):
            if phase[engine] >= MOVING:
                earliest_s = min(earliest_s, event_s[engine])
        begins = NO_ENTRY
        for engine in range(2):
            if phase[engine] == LATENCY and (begins == NO_ENTRY or event_s[engine] < event_s[begins]):
                begins = engine
        if begins == NO_ENTRY or event_s[begins] > earliest_s:
            break
        _begin_moving(problem, begins, scratch)
    now = earliest_s
    _find_next_event(scratch)
    if integers[RUNNING] == 1 and floats[STEP_END] - earliest_s < INSTANT_S:
        now = max(now, floats[STEP_END])
    for engine in range(2):
        if phase[engine] >= MOVING and event_s[engine] - earliest_s < INSTANT_S:
            now = max(now, event_s[engine])
    if integers[RUNNING] == 0:
        _count_wait(problem, schedule, now - floats[NOW], scratch, log)
    floats[NOW] = now
    if integers[RUNNING] == 1 and floats[STEP_END] <= now:
        _end_step(problem, schedule, scratch, log)
    for engine in range(2):
        if phase[engine] >= MOVING and event_s[engine] <= now:
            _end_copy(problem, schedule, engine, scratch, log)


@compiled_part
def _begin_moving(problem: ProblemColumns, engine: int, scratch: Scratch) -> None:
    """The latency is over: bytes move, slower if the other engine moves some too, which slows down as well."""
    at_s, other = scratch.event_s[engine], 1 - engine
    scratch.phase[engine] = MOVING
    factor = problem.duplex_factor if scratch.phase[other] == MOVING else 1.0
    scratch.since_s[engine] = at_s
    scratch.rate[engine] = problem.bytes_per_s[engine] * factor
    scratch.event_s[engine] = at_s + scratch.left_bytes[engine] / scratch.rate[engine]
    if scratch.phase[other] == MOVING:
        _change_rate(problem, other, factor, at_s, scratch)


@compiled_part
def _change_rate(problem: ProblemColumns, engine: int, factor: float, at_s: float, scratch: Scratch) -> None:
    elapsed_s = max(at_s - scratch.since_s[engine], 0.0)
    left_bytes = max(scratch.left_bytes[engine] - elapsed_s * scratch.rate[engine], 0.0)
    scratch.left_bytes[engine] = left_bytes
    scratch.since_s[engine] = at_s
    scratch.rate[engine] = problem.bytes_per_s[engine] * factor
    scratch.event_s[engine] = at_s + left_bytes / scratch.rate[engine]


@compiled_part
def _count_wait(problem: ProblemColumns, schedule: ScheduleColumns, wait_s: float, scratch: Scratch, log: Log) -> None:
    """Rule 8: a wait before the end of the forward pass is forward stall, after it backward stall."""
    k = scratch.integers[STEP]
    scratch.floats[FORWARD_STALL if k < scratch.integers[FORWARD_STEPS] else BACKWARD_STALL] += wait_s
    if k >= log.awaited.size:
        return
    tensors, first, last = _inputs(problem, schedule, k)
    for j in range(first, last):
        if scratch.on_device[tensors[j]] == 0:
            log.awaited[k] = tensors[j]
            log.input_wait_s[k] += wait_s
            return
    log.memory_wait_s[k] += wait_s


@compiled_part
def _end_step(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> None:
    """Rules 1 and 2: the workspace goes, then what the schedule drops; a drop waits for an offload of its tensor."""
    integers, k = scratch.integers, scratch.integers[STEP]
    _use(-scratch.step_frees[k], scratch, log)
    if scratch.step_flags[k] & DROPS_SWAPPED:
        for j in range(schedule.drops_start[k], schedule.drops_start[k + 1]):
            t = schedule.drops[j]
            if scratch.offload[t] == QUEUED or scratch.offload[t] == UNDER_WAY:
                scratch.release_waits[t] = 1
            elif scratch.swapped[t] == 1:
                _release(problem, t, scratch, log)
    integers[RUNNING] = 0
    integers[STEP] = k + 1
    integers[BARRIER_D2H] = scratch.phase[D2H]
    integers[BARRIER_H2D] = scratch.phase[H2D]
    _stand_at_step(problem, schedule, scratch)


@compiled_part
def _end_copy(problem: ProblemColumns, schedule: ScheduleColumns, engine: int, scratch: Scratch, log: Log) -> None:
    """The copy is there: an offloaded tensor may leave (rule 5), a prefetched one may be read."""
    other, now = 1 - engine, scratch.floats[NOW]
    if scratch.copy_log[engine] < log.copy_end_s.size:
        log.copy_end_s[scratch.copy_log[engine]] = now
    if scratch.phase[engine] == MOVING and scratch.phase[other] == MOVING:
        _change_rate(problem, other, 1.0, now, scratch)
    scratch.phase[engine] = IDLE
    _find_next_event(scratch)
    if engine == D2H:
        t = schedule.offload_tensor[scratch.cargo[D2H]]
        scratch.integers[BARRIER_D2H] = 0
        scratch.offload[t] = DONE
        scratch.on_host[t] = 1
        if scratch.release_waits[t] == 1:
            scratch.release_waits[t] = 0
            _release(problem, t, scratch, log)
    else:
        e = scratch.cargo[H2D]
        scratch.integers[BARRIER_H2D] = 0
        scratch.entry_state[e] = FETCHED
        scratch.on_device[schedule.prefetch_tensor[e]] = 1
        scratch.integers[HIGHEST] = max(scratch.integers[HIGHEST], e)


# Policy `barriers` (vDNN): what the package's docstring says under its name.


@compiled_part
def _begins_layer(scratch: Scratch, k: int) -> bool:
    return k == 0 or scratch.layer_last[k - 1] == k - 1


@compiled_part
def _held_by_barrier(schedule: ScheduleColumns, scratch: Scratch) -> bool:
    """Whether the layer that begins with this step waits, for copies of the layer before or for its own inputs."""
    integers, k = scratch.integers, scratch.integers[STEP]
    if not _begins_layer(scratch, k):
        return False
    if integers[BARRIER_D2H] != IDLE or integers[BARRIER_H2D] != IDLE:
        return True
    if k < integers[FORWARD_STEPS] or integers[FETCHES_FIRST] == 0:
        return False
    if scratch.phase[H2D] != IDLE and schedule.prefetch_deadline[scratch.cargo[H2D]] <= scratch.layer_last[k]:
        return True
    e = _head(schedule, BARRIERS, scratch)
    return e != NO_ENTRY and schedule.prefetch_deadline[e] <= scratch.layer_last[k]


@compiled_part
def _stops_fetching_first(schedule: ScheduleColumns, scratch: Scratch) -> bool:
    """Nothing is under way or admissible: the layer no longer waits for its inputs. Return whether it did."""
    held = _held_by_barrier(schedule, scratch)
    scratch.integers[FETCHES_FIRST] = 0
    return held


@compiled_part
def _choose_target(schedule: ScheduleColumns, scratch: Scratch, k: int) -> None:
    """The layer whose inputs are fetched while the layer of step k runs: the closest one that misses some."""
    scratch.integers[FETCHES_FIRST] = 1
    scratch.integers[TARGET_LAST] = NO_ENTRY
    for e in range(scratch.integers[LOWEST], schedule.counts[2]):
        deadline = schedule.prefetch_deadline[e]
        if scratch.entry_state[e] == WAITING and deadline > scratch.layer_last[k]:
            scratch.integers[TARGET_LAST] = scratch.layer_last[deadline]
            return


@compiled_part
def _allowed_by_barrier(schedule: ScheduleColumns, e: int, scratch: Scratch) -> bool:
    """Whether a tensor is fetched now: for the layer at hand or, once that has begun, for the one chosen."""
    k, deadline = scratch.integers[STEP], schedule.prefetch_deadline[e]
    if k < scratch.integers[FORWARD_STEPS] or deadline <= scratch.layer_last[k]:
        return True
    begun = scratch.integers[RUNNING] == 1 or not _begins_layer(scratch, k)
    return begun and scratch.layer_last[deadline] == scratch.integers[TARGET_LAST]


@compiled_entry
def lower_decisions(problem: ProblemColumns, decisions: DecisionArray, out: ScheduleColumns, scratch: Scratch) -> None:
    """Write the schedule of one decision per tensor into `out`."""
    _lower(problem, decisions, out, scratch)


@compiled_entry
def run_schedule(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Simulate one iteration; results stand in `scratch.integers` and `scratch.floats`, the timeline in `log`."""
    _run(problem, schedule, budget_bytes, policy, scratch, log)


@compiled_entry
def run_batch(
    problem: ProblemColumns,
    decisions: DecisionArray,
    budget_bytes: int,
    policy: int,
    schedule: ScheduleColumns,
    scratch: Scratch,
    log: Log,
    integers: IntArray,
    floats: FloatArray,
) -> None:
    """Lower and simulate every row of `decisions`; row i of `integers` and `floats` receives its results."""
    for i in range(decisions.shape[0]):
        _lower(problem, decisions[i], schedule, scratch)
        _run(problem, schedule, budget_bytes, policy, scratch, log)
        for j in range(N_INTEGERS):
            integers[i, j] = scratch.integers[j]
        for j in range(N_FLOATS):
            floats[i, j] = scratch.floats[j]
