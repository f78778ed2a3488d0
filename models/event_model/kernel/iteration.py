"""One iteration from instant to instant (rule 10), and the functions that Python calls."""

from __future__ import annotations

import numpy as np

from slackswap.models.compilation import compiled_entry, compiled_part
from slackswap.models.event_model.kernel.barriers import stops_fetching_first
from slackswap.models.event_model.kernel.columns import (
    BACKWARD_STALL,
    BARRIERS,
    D2H,
    DEFAULT,
    FORWARD_STALL,
    H2D,
    IDLE,
    INSTANT_S,
    LATENCY,
    MOVING,
    N_FLOATS,
    N_INTEGERS,
    NO_ENTRY,
    NOW,
    ON_DEMAND,
    RUNNING,
    STEP,
    STEP_END,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)
from slackswap.models.event_model.kernel.copies import begin_moving, end_copy, find_next_event, start_offload
from slackswap.models.event_model.kernel.lowering import lower
from slackswap.models.event_model.kernel.on_demand import make_room
from slackswap.models.event_model.kernel.prefetches import admit_prefetch, evict
from slackswap.models.event_model.kernel.setup import reset
from slackswap.models.event_model.kernel.steps import (
    count_wait,
    end_step,
    fail,
    run_undisturbed,
    stand_at_step,
    try_step,
)
from slackswap.models.plan import DecisionArray
from slackswap.models.problem import FloatArray, IntArray


@compiled_part
def run_iteration(
    problem: ProblemColumns,
    schedule: ScheduleColumns,
    budget_bytes: int,
    policy: int,
    scratch: Scratch,
    log: Log,
    most_stall_s: float,
) -> bool:
    """Simulate one iteration; results stand in `scratch.integers` and `scratch.floats`, the timeline in `log`.

    Return whether it went to its end. One that does not fit does not, nor one that stalls for longer than `most_stall_s`: a
    search knows then that the plan is too slow, and the rest is not simulated.
    """
    reset(problem, schedule, policy, scratch)
    integers, floats, phase = scratch.integers, scratch.floats, scratch.phase
    n_steps = schedule.counts[0]
    stand_at_step(problem, schedule, scratch)
    while integers[STEP] < n_steps:
        # Rule 10: what ended has been processed; now a D2H copy, the next step, an H2D copy.
        if phase[D2H] == IDLE:
            start_offload(problem, schedule, scratch, log)
        if (
            policy == DEFAULT
            and integers[RUNNING] == 0
            and run_undisturbed(problem, schedule, budget_bytes, scratch, log)
        ):
            continue
        if integers[RUNNING] == 0:
            try_step(problem, schedule, budget_bytes, policy, scratch, log)
        if phase[H2D] == IDLE:
            admit_prefetch(problem, schedule, budget_bytes, policy, scratch, log)
        waits = integers[RUNNING] == 0
        if (
            policy == ON_DEMAND
            and waits
            and phase[D2H] == IDLE
            and make_room(problem, schedule, budget_bytes, scratch, log)
        ):
            continue
        if waits and phase[D2H] == IDLE and phase[H2D] == IDLE:
            if policy == BARRIERS and stops_fetching_first(schedule, scratch):
                continue
            if policy == ON_DEMAND or not evict(problem, schedule, scratch, log):
                fail(problem, schedule, budget_bytes, scratch)
                return False
        else:
            _advance(problem, schedule, policy, scratch, log)
            if floats[FORWARD_STALL] + floats[BACKWARD_STALL] > most_stall_s:
                return False
    return True


@compiled_part
def _advance(problem: ProblemColumns, schedule: ScheduleColumns, policy: int, scratch: Scratch, log: Log) -> None:
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
        begin_moving(problem, begins, scratch)
    now = earliest_s
    find_next_event(scratch)
    if integers[RUNNING] == 1 and floats[STEP_END] - earliest_s < INSTANT_S:
        now = max(now, floats[STEP_END])
    for engine in range(2):
        if phase[engine] >= MOVING and event_s[engine] - earliest_s < INSTANT_S:
            now = max(now, event_s[engine])
    if integers[RUNNING] == 0:
        count_wait(problem, schedule, policy, now - floats[NOW], scratch, log)
    floats[NOW] = now
    # Decided before any of them ends: the end of one copy changes the rate of the other, and rounding would move an end at
    # this instant behind it.
    d2h_ends = phase[D2H] >= MOVING and event_s[D2H] <= now
    h2d_ends = phase[H2D] >= MOVING and event_s[H2D] <= now
    if integers[RUNNING] == 1 and floats[STEP_END] <= now:
        end_step(problem, schedule, policy, scratch, log)
    if d2h_ends:
        end_copy(problem, schedule, D2H, scratch, log)
    if h2d_ends:
        end_copy(problem, schedule, H2D, scratch, log)


@compiled_entry
def lower_decisions(problem: ProblemColumns, decisions: DecisionArray, out: ScheduleColumns, scratch: Scratch) -> None:
    """Write the schedule of one decision per tensor into `out`."""
    lower(problem, decisions, out, scratch)


@compiled_entry
def run_schedule(
    problem: ProblemColumns, schedule: ScheduleColumns, budget_bytes: int, policy: int, scratch: Scratch, log: Log
) -> None:
    """Simulate one iteration; results stand in `scratch.integers` and `scratch.floats`, the timeline in `log`."""
    run_iteration(problem, schedule, budget_bytes, policy, scratch, log, np.inf)


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
        lower(problem, decisions[i], schedule, scratch)
        run_iteration(problem, schedule, budget_bytes, policy, scratch, log, np.inf)
        for j in range(N_INTEGERS):
            integers[i, j] = scratch.integers[j]
        for j in range(N_FLOATS):
            floats[i, j] = scratch.floats[j]
