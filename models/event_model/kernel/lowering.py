"""Lowering: from one decision per tensor to steps, drops and queues (first section of the rules)."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.event_model.kernel.columns import NO_ENTRY, ProblemColumns, ScheduleColumns, Scratch
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray


@compiled_part
def lower(problem: ProblemColumns, decisions: DecisionArray, out: ScheduleColumns, scratch: Scratch) -> None:
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
