"""Compiled passes of the SlackSwap planner: the two feasibility checks, the memory profile, the cheapest cover."""

from __future__ import annotations

from slackswap.models.compilation import compiled_entry, compiled_part
from slackswap.models.event_model.kernel.columns import ProblemColumns, ScheduleColumns, Scratch
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray
from slackswap.models.problem import BoolArray, FloatArray, IntArray


@compiled_entry
def spend_link_budget(
    problem: ProblemColumns,
    order: IntArray,
    by_deadline: IntArray,
    by_release: IntArray,
    start_s: FloatArray,
    guard: float,
    deficit_bytes: int,
    decisions: DecisionArray,
) -> None:
    """Pass 1 (Algorithm 1, lines 2-6): admit tensors to the swap set, in `order`, while both schedules stay feasible.

    Parameters
    ----------
    order : candidates, most expensive to recompute first
    by_deadline, by_release : all tensors by first backward read, and by end of last use
    start_s : (n + 1,) start of each operator in the ideal step; the last entry is its end
    guard : share of the forward time that must be left when the last offload ends
    decisions : in: recomputed tensors are never credited; out: the swap set is marked
    """
    forward_end_s = start_s[problem.n_forward]
    swapped_bytes = 0
    for candidate in order:
        if swapped_bytes >= deficit_bytes:
            break
        before = decisions[candidate]
        decisions[candidate] = SWAP
        if _offloads_end_s(problem, start_s, decisions) <= (1.0 - guard) * forward_end_s and _prefetches_meet_deadlines(
            problem, by_deadline, by_release, start_s, decisions
        ):
            swapped_bytes += problem.tensor_bytes[candidate]
        else:
            decisions[candidate] = before


@compiled_part
def _offloads_end_s(problem: ProblemColumns, start_s: FloatArray, decisions: DecisionArray) -> float:
    """FifoD2H: end of the last copy when swapped tensors leave in order of production."""
    free_s = 0.0
    for t in range(decisions.size):
        if decisions[t] == SWAP:
            produced_s = start_s[problem.producer[t] + 1]
            free_s = max(free_s, produced_s) + problem.latency_s + problem.tensor_bytes[t] / problem.bytes_per_s[0]
    return free_s


@compiled_part
def _prefetches_meet_deadlines(
    problem: ProblemColumns, by_deadline: IntArray, by_release: IntArray, start_s: FloatArray, decisions: DecisionArray
) -> bool:
    """EdfH2D: memory is full when the forward pass ends, and each tensor's bytes are credited after its last use.

    The paper credits kept tensors (section 3.2). A fetched tensor gives back what it took as well; without that no more
    than half of the activations could ever be swapped, and the paper swaps 16.7 of 22.3 GB on a fast link (section 4.5).
    """
    free_s = start_s[problem.n_forward]
    fetched_bytes, credited_bytes = 0, 0
    next_release = 0
    for t in by_deadline:
        if decisions[t] != SWAP:
            continue
        fetched_bytes += problem.tensor_bytes[t]
        while credited_bytes < fetched_bytes:
            if next_release == by_release.size:
                return False
            released = by_release[next_release]
            next_release += 1
            if decisions[released] != RECOMPUTE:
                credited_bytes += problem.tensor_bytes[released]
                free_s = max(free_s, start_s[problem.last_use[released] + 1])
        free_s += problem.latency_s + problem.tensor_bytes[t] / problem.bytes_per_s[1]
        if free_s > start_s[problem.first_backward_reader[t]]:
            return False
    return True


@compiled_entry
def memory_profile(
    problem: ProblemColumns,
    schedule: ScheduleColumns,
    scratch: Scratch,
    start_s: FloatArray,
    decisions: DecisionArray,
    profile_bytes: IntArray,
    first_use: IntArray,
    by_step: IntArray,
) -> None:
    """Memory profile m(i) of a lowered plan (section 3.3); call `lower_decisions` first: it fills `scratch`.

    Parameters
    ----------
    profile_bytes : (n,) out: the most bytes in use while operator i, or a rebuild right before it, runs
    first_use : (m,) out: first backward operator at which each tensor must be there, for itself or for a rebuild
    by_step : room for one number per step, and one
    """
    n_operators, n_steps = problem.duration_s.size, schedule.counts[0]
    for k in range(n_steps + 1):
        by_step[k] = 0
    free_s = 0.0
    operator = 0  # first operator that starts after the copy's end; offloads end in order
    for t in range(decisions.size):
        produced = scratch.step_of[problem.producer[t]]
        gone = scratch.last_step[t] + 1
        n_bytes = problem.tensor_bytes[t]
        by_step[produced] += n_bytes
        by_step[gone] -= n_bytes
        if decisions[t] == RECOMPUTE:
            by_step[problem.last_forward_use[t] + 1] -= n_bytes
            by_step[scratch.rebuilt[t]] += n_bytes
        elif decisions[t] == SWAP:
            produced_s = start_s[problem.producer[t] + 1]
            free_s = max(free_s, produced_s) + problem.latency_s + n_bytes / problem.bytes_per_s[0]
            while operator < n_operators and start_s[operator] < free_s:
                operator += 1
            leaves = max(operator, problem.last_forward_use[t] + 1)
            away = scratch.step_of[leaves] if leaves < n_operators else n_steps
            if away < scratch.first_late_step[t]:
                by_step[away] -= n_bytes
                by_step[scratch.first_late_step[t]] += n_bytes
    _profile_by_operator(problem, schedule, scratch, by_step, profile_bytes)
    for t in range(decisions.size):
        k = scratch.first_late_step[t]
        first_use[t] = scratch.bucket[k] if k < n_steps else n_operators


@compiled_part
def _profile_by_operator(
    problem: ProblemColumns, schedule: ScheduleColumns, scratch: Scratch, by_step: IntArray, profile_bytes: IntArray
) -> None:
    """Add up the changes; a rebuild counts for the operator that it precedes. Leaves that operator in `scratch.bucket`."""
    n_operators, n_steps = problem.duration_s.size, schedule.counts[0]
    used_bytes, operator = 0, 0
    for i in range(n_operators):
        profile_bytes[i] = 0
    for k in range(n_steps):
        used_bytes += by_step[k]
        step = schedule.steps[k]
        if step < n_operators:
            workspace_bytes = problem.workspace_bytes[step]
        else:
            workspace_bytes = problem.rebuild_workspace_bytes[step - n_operators]
        profile_bytes[operator] = max(profile_bytes[operator], used_bytes + workspace_bytes)
        scratch.bucket[k] = operator
        if step < n_operators:
            operator += 1


@compiled_entry
def cover_excess(
    problem: ProblemColumns,
    candidate: BoolArray,
    budget_bytes: int,
    profile_bytes: IntArray,
    first_use: IntArray,
    decisions: DecisionArray,
) -> int:
    """Pass 2 (Algorithm 1, lines 7-12) on one profile: recompute the cheapest bytes wherever it exceeds the budget.

    Updates `profile_bytes` by what each recomputation frees between the tensor's last forward use and its first use
    afterwards; what rebuild chains add is seen by the next exact profile.

    Returns
    -------
    int
        -1 if the profile is covered, else the first operator for whose excess no candidate is left.
    """
    i = 0
    while i < profile_bytes.size:
        if profile_bytes[i] <= budget_bytes:
            i += 1
            continue
        excess_bytes = _largest(profile_bytes, i) - budget_bytes
        best, best_cost = -1, 0.0
        for t in range(decisions.size):
            if not candidate[t] or decisions[t] != KEEP or problem.last_forward_use[t] >= i or first_use[t] <= i:
                continue
            cost = problem.rebuild_s[t] / min(problem.tensor_bytes[t], excess_bytes)
            if best < 0 or cost < best_cost:
                best, best_cost = t, cost
        if best < 0:
            return i
        decisions[best] = RECOMPUTE
        for j in range(problem.last_forward_use[best] + 1, first_use[best]):
            profile_bytes[j] -= problem.tensor_bytes[best]
    return -1


@compiled_part
def _largest(values: IntArray, first: int) -> int:
    """Largest of ``values[first:]``; numpy's own allocates."""
    largest = values[first]
    for i in range(first + 1, values.size):
        largest = max(largest, values[i])
    return int(largest)
