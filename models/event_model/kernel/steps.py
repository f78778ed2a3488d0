"""Steps on the compute stream: when they start, what their end releases, why they wait (rules 1, 2, 7, 8)."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.barriers import begins_layer, choose_target, held_by_barrier
from slackswap.models.event_model.kernel.columns import (
    BACKWARD_STALL,
    BARRIER_D2H,
    BARRIER_H2D,
    BARRIERS,
    D2H,
    DROPS_SWAPPED,
    EARLIEST_FETCH,
    FAILED,
    FORWARD_STALL,
    FORWARD_STEPS,
    H2D,
    IDLE,
    INSTANT_S,
    MISSING,
    N_WAITING,
    NEXT_EVENT,
    NEXT_OFFLOAD,
    NO_ENTRY,
    NONE,
    NOW,
    ON_DEMAND,
    PEAK,
    PLANNED,
    QUEUED,
    READS_SWAPPED,
    RECOMPUTE_S,
    RUNNING,
    STEP,
    STEP_END,
    UNDER_WAY,
    USED,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
    inputs_of,
)
from slackswap.models.event_model.kernel.memory import log_memory, release, use
from slackswap.models.event_model.kernel.on_demand import may_leave
from slackswap.models.problem import IntArray


@compiled_part
def run_undisturbed(
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
    stand_at_step(problem, schedule, scratch)
    return True


@compiled_part
def _log_step(scratch: Scratch, log: Log, k: int, start_s: float, end_s: float, used_bytes: int) -> None:
    log.start_s[k] = start_s
    log.end_s[k] = end_s
    log_memory(scratch, log, start_s, used_bytes)
    log_memory(scratch, log, end_s, used_bytes - scratch.step_frees[k])


@compiled_part
def try_step(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Rule 1: start the step if its inputs are on the device and its allocation fits."""
    integers, k = scratch.integers, scratch.integers[STEP]
    if policy == BARRIERS and held_by_barrier(schedule, scratch):
        return
    if integers[USED] + scratch.step_bytes[k] > budget_bytes:
        return
    if scratch.step_flags[k] & READS_SWAPPED:
        tensors, first, last = inputs_of(problem, schedule, k)
        for j in range(first, last):
            if scratch.on_device[tensors[j]] == 0:
                return
        _consume_inputs(schedule, tensors, first, last, scratch)
    if policy == BARRIERS and begins_layer(scratch, k):
        choose_target(schedule, scratch, k)
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
    use(scratch.step_bytes[k], scratch, log)
    integers[RUNNING] = 1
    floats[STEP_END] = floats[NOW] + scratch.step_s[k]
    if k < log.start_s.size:
        log.start_s[k] = floats[NOW]
        log.end_s[k] = floats[STEP_END]


@compiled_part
def end_step(problem: ProblemColumns, schedule: ScheduleColumns, policy: int, scratch: Scratch, log: Log) -> None:
    """Rules 1 and 2: the workspace goes, then what the schedule drops; a drop waits for an offload of its tensor."""
    integers, k = scratch.integers, scratch.integers[STEP]
    use(-scratch.step_frees[k], scratch, log)
    if scratch.step_flags[k] & DROPS_SWAPPED:
        for j in range(schedule.drops_start[k], schedule.drops_start[k + 1]):
            t = schedule.drops[j]
            if policy == ON_DEMAND and scratch.entry[t] != NO_ENTRY:
                may_leave(t, scratch)
            elif scratch.offload[t] == QUEUED or scratch.offload[t] == UNDER_WAY:
                scratch.release_waits[t] = 1
            elif scratch.swapped[t] == 1 and (scratch.on_host[t] == 1 or scratch.entry[t] == NO_ENTRY):
                release(problem, t, scratch, log)  # else it was not offloaded (rule 7), and the only copy is read again
    integers[RUNNING] = 0
    integers[STEP] = k + 1
    integers[BARRIER_D2H] = scratch.phase[D2H]
    integers[BARRIER_H2D] = scratch.phase[H2D]
    stand_at_step(problem, schedule, scratch)


@compiled_part
def stand_at_step(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
    """Rule 7: from the moment compute stands at a step, a tensor that it reads no longer leaves with its offload."""
    k = scratch.integers[STEP]
    if k < schedule.counts[0] and scratch.step_flags[k] & READS_SWAPPED:
        tensors, first, last = inputs_of(problem, schedule, k)
        for j in range(first, last):
            scratch.release_waits[tensors[j]] = 0


@compiled_part
def count_wait(
    problem: ProblemColumns, schedule: ScheduleColumns, policy: int, wait_s: float, scratch: Scratch, log: Log
) -> None:
    """Rule 8: a wait before the end of the forward pass is forward stall, after it backward stall."""
    k = scratch.integers[STEP]
    scratch.floats[FORWARD_STALL if k < scratch.integers[FORWARD_STEPS] else BACKWARD_STALL] += wait_s
    if k >= log.awaited.size:
        return
    tensors, first, last = inputs_of(problem, schedule, k)
    for j in range(first, last):
        if scratch.on_device[tensors[j]] == 0:
            log.awaited[k] = tensors[j]
            log.input_wait_s[k] += wait_s
            return
    if policy == BARRIERS and held_by_barrier(schedule, scratch):
        log.barrier_wait_s[k] += wait_s
    else:
        log.memory_wait_s[k] += wait_s


@compiled_part
def fail(problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch) -> None:
    """Rule 9: the plan does not fit; say where and by how much."""
    integers, k = scratch.integers, scratch.integers[STEP]
    missing_bytes = integers[USED] + scratch.step_bytes[k] - budget_bytes
    tensors, first, last = inputs_of(problem, schedule, k)
    for j in range(first, last):
        if scratch.on_device[tensors[j]] == 0:
            missing_bytes += problem.tensor_bytes[tensors[j]]
    integers[FAILED] = k
    integers[MISSING] = missing_bytes
