"""What the engine reads and writes: columns of a problem and of a schedule, working memory, the timeline.

Nothing in the engine allocates; every array comes from the caller. A *step* is an operator (its index) or a rebuild
(number of operators + tensor index). A prefetch *entry* is one H2D copy that the schedule foresees: a tensor, the step by
which it is read (its deadline), the step after which it may start.
"""

from __future__ import annotations

from typing import NamedTuple

from slackswap.models.compilation import compiled_part
from slackswap.models.problem import FloatArray, IntArray

DEFAULT, BARRIERS, ON_DEMAND = 0, 1, 2
INSTANT_S = 1e-9  # rule 10: ends closer than this are one instant
UNLIMITED_BYTES = 1 << 62


class ProblemColumns(NamedTuple):
    """What the engine reads of a `Problem`; shapes as there."""

    n_forward: int
    duration_s: FloatArray
    layer: IntArray
    heavy: IntArray
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
    cargo: IntArray  # (2,) the tensor (D2H) or prefetch entry (H2D) under way
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
    next_heavy: IntArray
    least_recent: IntArray  # tensors that may leave, in the order in which they came to it
    least_recent_place: IntArray
    rebuilt: IntArray
    first_late_step: IntArray
    last_step: IntArray
    step_of: IntArray
    bucket: IntArray
    stack: IntArray
    stack_position: IntArray


class Log(NamedTuple):
    """The timeline, written only where its arrays have room; how much was written is in `Scratch.integers`."""

    start_s: FloatArray
    end_s: FloatArray
    input_wait_s: FloatArray
    memory_wait_s: FloatArray
    barrier_wait_s: FloatArray
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
LEAST_RECENT, MAY_LEAVE, N_INTEGERS = 20, 21, 22
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
def inputs_of(problem: ProblemColumns, schedule: ScheduleColumns, k: int) -> tuple[IntArray, int, int]:
    """Array and bounds of the tensors that step k reads."""
    step = schedule.steps[k]
    if step < problem.duration_s.size:
        return problem.reads, problem.reads_start[step], problem.reads_start[step + 1]
    t = step - problem.duration_s.size
    return problem.rebuild_inputs, problem.rebuild_inputs_start[t], problem.rebuild_inputs_start[t + 1]
