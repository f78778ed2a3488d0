"""The two copy engines: what starts, at which rate it moves, what its end brings (rules 4 and 5)."""

from __future__ import annotations

import numpy as np

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.columns import (
    BARRIER_D2H,
    BARRIER_H2D,
    COPIES,
    D2H,
    D2H_BYTES,
    DONE,
    EMPTY,
    FETCHED,
    H2D,
    HIGHEST,
    IDLE,
    LATENCY,
    LEAST_RECENT,
    MAY_LEAVE,
    MOVING,
    NEXT_EVENT,
    NEXT_OFFLOAD,
    NOW,
    QUEUED,
    STEP,
    UNDER_WAY,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)
from slackswap.models.event_model.kernel.memory import release


@compiled_part
def start_offload(problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, log: Log) -> None:
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
        start_copy(problem, D2H, t, t, scratch, log)


@compiled_part
def start_copy(problem: ProblemColumns, engine: int, cargo: int, tensor: int, scratch: Scratch, log: Log) -> None:
    """Put a tensor on an engine; `cargo` is what its end is told: the tensor (D2H) or the prefetch entry (H2D)."""
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
    find_next_event(scratch)


@compiled_part
def find_next_event(scratch: Scratch) -> None:
    """Note when an engine next ends its latency or its copy, for steps that run undisturbed until then."""
    next_s = np.inf
    for engine in range(2):
        if scratch.phase[engine] != IDLE:
            next_s = min(next_s, scratch.event_s[engine])
    scratch.floats[NEXT_EVENT] = next_s


@compiled_part
def begin_moving(problem: ProblemColumns, engine: int, scratch: Scratch) -> None:
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
def end_copy(problem: ProblemColumns, schedule: ScheduleColumns, engine: int, scratch: Scratch, log: Log) -> None:
    """The copy is there: an offloaded tensor may leave (rule 5), a prefetched one may be read."""
    other, now = 1 - engine, scratch.floats[NOW]
    if scratch.copy_log[engine] < log.copy_end_s.size:
        log.copy_end_s[scratch.copy_log[engine]] = now
    if scratch.phase[engine] == MOVING and scratch.phase[other] == MOVING:
        _change_rate(problem, other, 1.0, now, scratch)
    scratch.phase[engine] = IDLE
    find_next_event(scratch)
    if engine == D2H:
        t = scratch.cargo[D2H]
        scratch.integers[BARRIER_D2H] = 0
        scratch.offload[t] = DONE
        scratch.on_host[t] = 1
        if scratch.release_waits[t] == 1:
            scratch.release_waits[t] = 0
            release(problem, t, scratch, log)
    else:
        e = scratch.cargo[H2D]
        scratch.integers[BARRIER_H2D] = 0
        scratch.entry_state[e] = FETCHED
        t = schedule.prefetch_tensor[e]
        scratch.on_device[t] = 1
        if scratch.integers[MAY_LEAVE] > 0:  # policy on-demand: what was fetched early may leave again
            scratch.release_waits[t] = 1
            scratch.integers[LEAST_RECENT] = min(scratch.integers[LEAST_RECENT], scratch.least_recent_place[t])
        scratch.integers[HIGHEST] = max(scratch.integers[HIGHEST], e)
