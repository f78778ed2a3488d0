"""The state before the first step."""

from __future__ import annotations

import numpy as np

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.barriers import find_layers
from slackswap.models.event_model.kernel.columns import (
    BARRIERS,
    DROPS_SWAPPED,
    EARLIEST_FETCH,
    FAILED,
    FETCHES_FIRST,
    FORWARD_STEPS,
    HIGHEST,
    IDLE,
    NEXT_EVENT,
    NEXT_OFFLOAD,
    NO_ENTRY,
    NONE,
    ON_DEMAND,
    PLANNED,
    QUEUED,
    READS_SWAPPED,
    TARGET_LAST,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
    inputs_of,
)
from slackswap.models.event_model.kernel.on_demand import find_next_heavy


@compiled_part
def reset(problem: ProblemColumns, schedule: ScheduleColumns, policy: int, scratch: Scratch) -> None:
    """Nothing has run, nothing is on the host, every copy of the schedule lies ahead."""
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
        scratch.offload[schedule.offload_tensor[j]] = NONE if policy == ON_DEMAND else QUEUED
    for e in range(n_prefetches - 1, -1, -1):
        t = schedule.prefetch_tensor[e]
        scratch.entry_state[e] = PLANNED
        scratch.entry_next[e] = scratch.entry[t]
        scratch.entry[t] = e
        scratch.integers[EARLIEST_FETCH] = min(scratch.integers[EARLIEST_FETCH], schedule.prefetch_after[e])
    _measure_steps(problem, schedule, scratch)
    if policy == BARRIERS:
        find_layers(problem, schedule, scratch)
    if policy == ON_DEMAND:
        scratch.integers[NEXT_OFFLOAD] = n_offloads  # nothing is offloaded ahead
        find_next_heavy(problem, schedule, scratch)


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
        scratch.step_flags[k] = 0
        for j in range(schedule.drops_start[k], schedule.drops_start[k + 1]):
            t = schedule.drops[j]
            if scratch.swapped[t] == 0:
                frees_bytes += problem.tensor_bytes[t]
            else:
                scratch.step_flags[k] = DROPS_SWAPPED
        scratch.step_frees[k] = frees_bytes
        if schedule.counts[1] > 0:
            _flag_reads(problem, schedule, k, scratch)


@compiled_part
def _flag_reads(problem: ProblemColumns, schedule: ScheduleColumns, k: int, scratch: Scratch) -> None:
    tensors, first, last = inputs_of(problem, schedule, k)
    for j in range(first, last):
        if scratch.swapped[tensors[j]] == 1:
            scratch.step_flags[k] |= READS_SWAPPED
