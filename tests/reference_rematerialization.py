"""The cheapest rematerialization by brute force, and the tiny problems that planners are compared on.

Brute force is a shortest path over (what ran, what is on the device).

Every legal schedule without copies is a path: rebuild anything at any time, drop anything after any step, memory as in
rules 1 and 2 of the event model. Written from those rules, without a line of the planner.
"""

from __future__ import annotations

import heapq
import math

from hypothesis import strategies as st
from instances import PLAIN_LINK, problems

from slackswap.models.event_model import peak_bytes
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor

MAX_TENSORS = 8  # with bytes: brute force holds every set of them

# (operators that have run, highest tensor rebuilt since the last of them, what is on the device)
State = tuple[int, int, frozenset[int]]


def cheapest_rebuild_s(problem: Problem, budget_bytes: int, *, in_order: bool = False) -> float:
    """Return the least time of all rebuilds, infinity where nothing fits.

    Parameters
    ----------
    in_order : bool
        Formulation B's space: between two operators, each tensor is rebuilt at most once, in tensor order.
    """
    start: State = (0, -1, frozenset())
    best_s = {start: 0.0}
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    count = 0
    while queue:
        spent_s, _, state = heapq.heappop(queue)
        if spent_s > best_s[state]:
            continue
        if state[0] == problem.n_operators:
            return spent_s
        for cost_s, after in _next(problem, budget_bytes, state, in_order):
            if spent_s + cost_s < best_s.get(after, math.inf):
                best_s[after] = spent_s + cost_s
                count += 1
                heapq.heappush(queue, (spent_s + cost_s, count, after))
    return math.inf


def _next(problem: Problem, budget_bytes: int, state: State, in_order: bool) -> list[tuple[float, State]]:
    ran, last, there = state
    used_bytes = sum(int(problem.tensor_bytes[t]) for t in there)
    after: list[tuple[float, State]] = [(0.0, (ran, last, there - {t})) for t in there if problem.tensor_bytes[t]]
    reads = set(problem.reads_of(ran).tolist())
    if reads <= there and used_bytes + int(problem.allocation_bytes[ran]) <= budget_bytes:
        after.append((0.0, (ran + 1, -1, there | set(problem.writes_of(ran)))))
    for t in range(problem.n_tensors):
        if not problem.rebuildable[t] or t in there or problem.producer[t] >= ran or (in_order and t <= last):
            continue
        inputs = set(problem.rebuild_inputs_of(t).tolist())
        allocation_bytes = int(problem.tensor_bytes[t] + problem.rebuild_workspace_bytes[t])
        if inputs <= there and used_bytes + allocation_bytes <= budget_bytes:
            after.append((float(problem.rebuild_s[t]), (ran, t if in_order else -1, there | {t})))
    return after


def unit_chain(n: int) -> Problem:
    """n forward nodes, a loss, n backward nodes; every node takes 1 s and writes 1 byte, every one can be evaluated again.

    Node i of the forward pass reads i - 1; its backward node reads the backward node of i + 1 (the loss for the last) and i.
    """
    inputs = [[i - 1] if i else [] for i in range(n + 1)]
    inputs += [[n + k, n - 1 - k] for k in range(n)]
    operators = [Operator(f"v{i}", "forward" if i <= n else "backward", 1.0) for i in range(2 * n + 1)]
    tensors = [
        Tensor(
            name=f"t{i}",
            bytes=1,
            producer=i,
            readers=tuple(k for k, row in enumerate(inputs) if i in row),
            rebuild=Rebuild(1.0, tuple(sorted(inputs[i]))),
        )
        for i in range(2 * n + 1)
    ]
    return Problem.from_records(f"unit chain of {n}", operators, tensors, PLAIN_LINK)


@st.composite
def tight(draw: st.DrawFn) -> tuple[Problem, int]:
    """Tiny problems with a budget between what some operator needs and the peak."""
    problem = draw(problems(max_forward=5).filter(lambda one: int((one.tensor_bytes > 0).sum()) <= MAX_TENSORS))
    needs = [
        problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum()
        for i in range(problem.n_operators)
    ]
    floor, peak = int(max(needs)), peak_bytes(problem)
    return problem, floor + int(draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 0.9])) * (peak - floor))
