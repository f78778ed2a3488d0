"""Policy ``on-demand`` (SuperNeurons): what the event model's docstring says under its name."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.columns import (
    D2H,
    D2H_BYTES,
    H2D,
    IDLE,
    LEAST_RECENT,
    LOWEST,
    MAY_LEAVE,
    NO_ENTRY,
    RUNNING,
    STEP,
    UNDER_WAY,
    USED,
    WAITING,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
    inputs_of,
)
from slackswap.models.event_model.kernel.copies import start_copy
from slackswap.models.event_model.kernel.memory import release


@compiled_part
def find_next_heavy(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
    """For each step the next one after it that is a heavy operator; beyond the last step where there is none."""
    n_operators, n_steps = problem.duration_s.size, schedule.counts[0]
    heavy_step = n_steps
    for k in range(n_steps - 1, -1, -1):
        scratch.next_heavy[k] = heavy_step
        step = schedule.steps[k]
        if step < n_operators and problem.heavy[step] == 1:
            heavy_step = k


@compiled_part
def may_leave(t: int, scratch: Scratch) -> None:
    """From now the tensor is copied out when memory is needed; what came to it first was used least recently."""
    place = scratch.integers[MAY_LEAVE]
    scratch.release_waits[t] = 1
    scratch.least_recent[place] = t
    scratch.least_recent_place[t] = place
    scratch.integers[MAY_LEAVE] = place + 1


@compiled_part
def allowed_on_demand(schedule: ScheduleColumns, e: int, scratch: Scratch) -> bool:
    """Whether a tensor is fetched now: the step at hand waits for it, or it is for the next heavy operator."""
    k, deadline = scratch.integers[STEP], schedule.prefetch_deadline[e]
    if scratch.integers[RUNNING] == 0:
        return bool(deadline == k)
    return bool(deadline == scratch.next_heavy[k])


@compiled_part
def make_room(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch, log: Log
) -> bool:
    """Compute waits for memory: release or copy out the least recently used tensor. Return whether there was one."""
    if not _lacks_memory(problem, schedule, budget_bytes, scratch):
        return False
    integers, k = scratch.integers, scratch.integers[STEP]
    for place in range(integers[LEAST_RECENT], integers[MAY_LEAVE]):
        t = scratch.least_recent[place]
        e = scratch.entry[t]
        here = scratch.release_waits[t] == 1 and scratch.on_device[t] == 1
        if not here or e == NO_ENTRY or schedule.prefetch_deadline[e] <= k:
            continue
        integers[LEAST_RECENT] = place
        if scratch.on_host[t] == 1:
            scratch.release_waits[t] = 0
            release(problem, t, scratch, log)
        else:
            scratch.offload[t] = UNDER_WAY
            integers[D2H_BYTES] += problem.tensor_bytes[t]
            start_copy(problem, D2H, t, t, scratch, log)
        return True
    return False


@compiled_part
def _lacks_memory(problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch) -> bool:
    """Whether the step at hand lacks nothing but memory, or a tensor that it waits for cannot be fetched for lack of it."""
    integers, k = scratch.integers, scratch.integers[STEP]
    tensors, first, last = inputs_of(problem, schedule, k)
    for j in range(first, last):
        if scratch.on_device[tensors[j]] == 0:
            return scratch.phase[H2D] == IDLE and _fetch_lacks_memory(problem, schedule, budget_bytes, scratch)
    return bool(integers[USED] + scratch.step_bytes[k] > budget_bytes)


@compiled_part
def _fetch_lacks_memory(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, scratch: Scratch
) -> bool:
    k = scratch.integers[STEP]
    for e in range(scratch.integers[LOWEST], schedule.counts[2]):
        if scratch.entry_state[e] == WAITING and schedule.prefetch_deadline[e] == k:
            return bool(scratch.integers[USED] + problem.tensor_bytes[schedule.prefetch_tensor[e]] > budget_bytes)
    return False
