"""The arrays that the compiled engine reads and writes, made once per problem and thread."""

from __future__ import annotations

import threading
import weakref
from typing import NamedTuple

import numpy as np

from slackswap.models.event_model.kernel.columns import (
    N_FLOATS,
    N_INTEGERS,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)
from slackswap.models.problem import KINDS, IntArray, Problem, read_only
from slackswap.models.schedule import Schedule

HEAVY_KINDS = ("gemm", "attention", "convolution")


class Buffers(NamedTuple):
    """Everything the engine needs for plans of one problem; `schedule` has room for any lowered plan."""

    problem: ProblemColumns
    schedule: ScheduleColumns
    scratch: Scratch
    no_log: Log


class _PerThread(threading.local):
    # Two threads must not share scratch memory.
    def __init__(self) -> None:
        self.of_problem: weakref.WeakKeyDictionary[Problem, Buffers] = weakref.WeakKeyDictionary()


_cache = _PerThread()


def buffers_of(problem: Problem) -> Buffers:
    """Return this thread's buffers for `problem`."""
    buffers = _cache.of_problem.get(problem)
    if buffers is None:
        n_steps = problem.n_operators + problem.n_tensors
        buffers = Buffers(
            _problem_columns(problem),
            _schedule_room(n_steps, problem.n_tensors),
            new_scratch(problem, n_steps, problem.n_tensors),
            new_log(0, 0, 0),
        )
        _cache.of_problem[problem] = buffers
    return buffers


def schedule_columns(schedule: Schedule) -> ScheduleColumns:
    """Return the engine's view of a schedule."""
    counts = np.array([schedule.n_steps, schedule.offload_tensor.size, schedule.prefetch_tensor.size])
    return ScheduleColumns(
        counts,
        *(
            # A writable copy has the one array type that the engine is compiled for.
            np.array(column)
            for column in (
                schedule.steps,
                schedule.drops_start,
                schedule.drops,
                schedule.offload_tensor,
                schedule.offload_after,
                schedule.prefetch_tensor,
                schedule.prefetch_deadline,
                schedule.prefetch_after,
            )
        ),
    )


def _problem_columns(problem: Problem) -> ProblemColumns:
    link = problem.link
    return ProblemColumns(
        n_forward=problem.n_forward,
        duration_s=problem.duration_s,
        layer=problem.layer,
        heavy=_heavy(problem),
        workspace_bytes=problem.workspace_bytes,
        allocation_bytes=problem.allocation_bytes,
        reads_start=problem.reads_start,
        reads=problem.reads,
        tensor_bytes=problem.tensor_bytes,
        producer=problem.producer,
        last_forward_use=problem.last_forward_use,
        first_backward_reader=problem.first_backward_reader,
        last_use=problem.last_use,
        rebuild_s=problem.rebuild_s,
        rebuild_workspace_bytes=problem.rebuild_workspace_bytes,
        rebuild_inputs_start=problem.rebuild_inputs_start,
        rebuild_inputs=problem.rebuild_inputs,
        bytes_per_s=read_only(np.array([link.d2h_bytes_per_s, link.h2d_bytes_per_s])),
        duplex_factor=float(link.duplex_factor),
        latency_s=float(link.latency_s),
    )


def _heavy(problem: Problem) -> IntArray:
    """1 where an operator is heavy enough to prefetch for, by its kind (policy ``on-demand``)."""
    return read_only(np.isin(problem.kind, [KINDS.index(kind) for kind in HEAVY_KINDS]).astype(np.int64))


def _schedule_room(n_steps: int, n_tensors: int) -> ScheduleColumns:
    def room(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.zeros(size, np.int64)

    return ScheduleColumns(
        counts=room(3),
        steps=room(n_steps),
        drops_start=room(n_steps + 1),
        drops=room(2 * n_tensors),
        offload_tensor=room(n_tensors),
        offload_after=room(n_tensors),
        prefetch_tensor=room(n_tensors),
        prefetch_deadline=room(n_tensors),
        prefetch_after=room(n_tensors),
    )


def new_scratch(problem: Problem, n_steps: int, n_prefetches: int) -> Scratch:
    """Return working memory for schedules of up to `n_steps` steps and `n_prefetches` prefetches."""

    def integers(size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.zeros(size, np.int64)

    def floats(size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.zeros(size, np.float64)

    n = problem.n_tensors
    return Scratch(
        integers=integers(N_INTEGERS),
        floats=floats(N_FLOATS),
        phase=integers(2),
        cargo=integers(2),
        copy_log=integers(2),
        event_s=floats(2),
        since_s=floats(2),
        left_bytes=floats(2),
        rate=floats(2),
        on_device=integers(n),
        on_host=integers(n),
        swapped=integers(n),
        offload=integers(n),
        release_waits=integers(n),
        entry=integers(n),
        entry_next=integers(n_prefetches),
        entry_state=integers(n_prefetches),
        step_s=floats(n_steps),
        step_bytes=integers(n_steps),
        step_frees=integers(n_steps),
        step_flags=integers(n_steps),
        layer_last=integers(n_steps),
        next_heavy=integers(n_steps),
        # A tensor comes to it at each drop before a prefetch: in schedules of the richer space more than once.
        least_recent=integers(max(n, n_prefetches)),
        least_recent_place=integers(n),
        rebuilt=integers(n),
        first_late_step=integers(n),
        last_step=integers(n),
        step_of=integers(problem.n_operators),
        bucket=integers(n_steps + 1),
        stack=integers(n),
        stack_position=integers(n),
    )


def new_log(n_steps: int, n_copies: int, n_samples: int) -> Log:
    """Return room for a timeline; sizes of 0 switch it off."""
    return Log(
        start_s=np.zeros(n_steps),
        end_s=np.zeros(n_steps),
        input_wait_s=np.zeros(n_steps),
        memory_wait_s=np.zeros(n_steps),
        barrier_wait_s=np.zeros(n_steps),
        awaited=np.full(n_steps, -1, np.int64),
        copy_engine=np.zeros(n_copies, np.int64),
        copy_tensor=np.zeros(n_copies, np.int64),
        copy_start_s=np.zeros(n_copies),
        copy_end_s=np.zeros(n_copies),
        memory_s=np.zeros(n_samples),
        memory_bytes=np.zeros(n_samples, np.int64),
    )
