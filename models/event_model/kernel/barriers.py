"""Policy ``barriers`` (vDNN): what the event model's docstring says under its name."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.columns import (
    BARRIER_D2H,
    BARRIER_H2D,
    FETCHES_FIRST,
    FORWARD_STEPS,
    H2D,
    IDLE,
    LOWEST,
    NO_ENTRY,
    READS_SWAPPED,
    RUNNING,
    STEP,
    TARGET_LAST,
    WAITING,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)


@compiled_part
def find_layers(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch) -> None:
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
def begins_layer(scratch: Scratch, k: int) -> bool:
    """Whether step k is the first of its layer."""
    return k == 0 or scratch.layer_last[k - 1] == k - 1


@compiled_part
def held_by_barrier(schedule: ScheduleColumns, scratch: Scratch) -> bool:
    """Whether the layer that begins with this step waits, for copies of the layer before or for its own inputs."""
    integers, k = scratch.integers, scratch.integers[STEP]
    if not begins_layer(scratch, k):
        return False
    if integers[BARRIER_D2H] != IDLE or integers[BARRIER_H2D] != IDLE:
        return True
    if k < integers[FORWARD_STEPS] or integers[FETCHES_FIRST] == 0:
        return False
    if scratch.phase[H2D] != IDLE and schedule.prefetch_deadline[scratch.cargo[H2D]] <= scratch.layer_last[k]:
        return True
    for e in range(integers[LOWEST], schedule.counts[2]):
        if schedule.prefetch_deadline[e] > scratch.layer_last[k]:
            return False
        if scratch.entry_state[e] == WAITING and schedule.prefetch_after[e] < k:
            return True
    return False


@compiled_part
def stops_fetching_first(schedule: ScheduleColumns, scratch: Scratch) -> bool:
    """Nothing is under way or admissible: the layer no longer waits for its inputs. Return whether it did."""
    held = held_by_barrier(schedule, scratch)
    scratch.integers[FETCHES_FIRST] = 0
    return held


@compiled_part
def choose_target(schedule: ScheduleColumns, scratch: Scratch, k: int) -> None:
    """The layer whose inputs are fetched while the layer of step k runs: the closest one that misses some.

    None, if the layer of step k reads nothing that is swapped.
    """
    scratch.integers[FETCHES_FIRST] = 1
    scratch.integers[TARGET_LAST] = NO_ENTRY
    if not _reads_swapped(scratch, k):
        return
    for e in range(scratch.integers[LOWEST], schedule.counts[2]):
        deadline = schedule.prefetch_deadline[e]
        if scratch.entry_state[e] == WAITING and deadline > scratch.layer_last[k]:
            scratch.integers[TARGET_LAST] = scratch.layer_last[deadline]
            return


@compiled_part
def _reads_swapped(scratch: Scratch, k: int) -> bool:
    """Whether the layer that begins with step k reads a tensor that has an offload."""
    flags = 0
    for step in range(k, scratch.layer_last[k] + 1):
        flags |= scratch.step_flags[step]
    return bool(flags & READS_SWAPPED)


@compiled_part
def allowed_by_barrier(schedule: ScheduleColumns, e: int, scratch: Scratch) -> bool:
    """Whether a tensor is fetched now: for the layer at hand or, once that has begun, for the one chosen."""
    k, deadline = scratch.integers[STEP], schedule.prefetch_deadline[e]
    if k < scratch.integers[FORWARD_STEPS] or deadline <= scratch.layer_last[k]:
        return True
    begun = scratch.integers[RUNNING] == 1 or not begins_layer(scratch, k)
    return begun and scratch.layer_last[deadline] == scratch.integers[TARGET_LAST]
