"""Which prefetch is admitted, and what makes room when nothing else can (rules 6 and 9)."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.barriers import allowed_by_barrier
from slackswap.models.event_model.kernel.columns import (
    BARRIERS,
    EARLIEST_FETCH,
    FETCHED,
    FORWARD_STEPS,
    H2D,
    H2D_BYTES,
    HIGHEST,
    LOWEST,
    N_WAITING,
    NO_ENTRY,
    ON_DEMAND,
    PLANNED,
    RUNNING,
    STEP,
    USED,
    WAITING,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)
from slackswap.models.event_model.kernel.copies import start_copy
from slackswap.models.event_model.kernel.memory import release, use
from slackswap.models.event_model.kernel.on_demand import allowed_on_demand


@compiled_part
def admit_prefetch(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Rule 6: start the head of the H2D queue if it fits; its buffer counts from now."""
    if scratch.integers[N_WAITING] == 0 or scratch.integers[EARLIEST_FETCH] >= scratch.integers[STEP]:
        return
    e = head(schedule, policy, scratch)
    if e == NO_ENTRY or not _fits(problem, schedule, budget_bytes, e, scratch):
        return
    t = schedule.prefetch_tensor[e]
    scratch.entry_state[e] = PLANNED
    scratch.integers[N_WAITING] -= 1
    scratch.integers[H2D_BYTES] += problem.tensor_bytes[t]
    use(problem.tensor_bytes[t], scratch, log)
    start_copy(problem, H2D, e, t, scratch, log)


@compiled_part
def head(schedule: ScheduleColumns, policy: int, scratch: Scratch) -> int:
    """Rule 6: the waiting prefetch with the earliest deadline that may start by now, and that the policy allows."""
    e, n_prefetches = scratch.integers[LOWEST], schedule.counts[2]
    while e < n_prefetches and scratch.entry_state[e] != WAITING:
        e += 1
    scratch.integers[LOWEST] = e
    while e < n_prefetches:
        may_start = scratch.entry_state[e] == WAITING and schedule.prefetch_after[e] < scratch.integers[STEP]
        if may_start and _allowed(schedule, e, policy, scratch):
            return int(e)
        e += 1
    return NO_ENTRY


@compiled_part
def _allowed(schedule: ScheduleColumns, e: int, policy: int, scratch: Scratch) -> bool:
    if policy == BARRIERS:
        return allowed_by_barrier(schedule, e, scratch)
    if policy == ON_DEMAND:
        return allowed_on_demand(schedule, e, scratch)
    return True


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
def evict(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> bool:
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
    release(problem, schedule.prefetch_tensor[victim], scratch, log)
    return True
