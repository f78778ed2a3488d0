"""Rows for the look-ahead of rule 6, where every operator is a point.

A fetch is admitted while an operator runs only if, beside all that is in use, the allocations of the next three steps fit too;
otherwise compute stands still until its copy has ended. For the window of operator i, from its start to the start of the next:

- what begins to come back in the window is admitted while i runs, or after it has ended. In the second case either rebuilds stand
  in the window, or compute waits for this very copy (under the default policy the head of the queue is then an input of the step
  at hand; under the others compute waits for what it fetches then): the stall is at least the time of the copy.
- if anything is admitted while i runs, then memory during i, with it, and the allocations of the three operators after i fit in
  the budget. A rebuild in between is a step of its own, and pushes at most one operator out of the three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slackswap.planners.bound_model import ROUNDING, BoundModel, TensorClass, Terms

if TYPE_CHECKING:
    import pulp

LOOK_AHEAD = 3


def add_admission_rows(model: BoundModel) -> None:
    """Add the rows for every window of the backward pass; the points of `model` are all operators."""
    n_forward, n = model.facts.problem.n_forward, model.facts.problem.n_operators
    for k in range(n_forward, n):
        _window_rows(model, k, running=k > n_forward)


def _window_rows(model: BoundModel, k: int, *, running: bool) -> None:
    """Window of operator k - 1; before the first backward operator nothing is admitted while one runs."""
    if k in model.uncounted_windows:
        return
    rebuilds = _rebuilds_at(model, k, k)
    while_running: list[tuple[TensorClass, pulp.LpVariable]] = []
    stalled: Terms = []
    for one in model.classes:
        if one.swapped is None:
            continue
        terms = _newly_coming(one, k)
        if terms is None:
            continue
        late = model.variable(one.tensors.size)
        terms.append((late, -1.0))
        each = float(model.facts.fetch_s[one.first]) * model.second
        stalled.append((late, each))
        if each > model.most_cost:  # no plan below the known step waits for it
            model.row([(late, 1.0), *((r, -float(one.tensors.size)) for r in rebuilds)], high=0.0)
        if running:
            soon = model.variable(one.tensors.size, whole=True)
            terms.append((soon, -1.0))
            while_running.append((one, soon))
        model.row(terms, 0.0, 0.0)
    if not stalled:
        return
    most = sum(each * float(late.upBound) for late, each in stalled)
    model.row([*stalled, (model.stall[k], -1.0), *((r, -most) for r in rebuilds)], high=0.0)
    if while_running and not model.uncounted_windows.intersection(range(k, k + LOOK_AHEAD)):
        _look_ahead_row(model, k, while_running)


def _newly_coming(one: TensorClass, k: int) -> Terms | None:
    """Terms for how many of a class begin to come back between the points k - 1 and k."""
    now = one.coming.get(k, one.swapped if one.due == k else None)
    if now is None:
        return None
    before = one.coming.get(k - 1)
    return [(now, 1.0)] if before is None else [(now, 1.0), (before, -1.0)]


def _rebuilds_at(model: BoundModel, first: int, last: int) -> list[pulp.LpVariable]:
    """Counts of the rebuilds that stand right before one of the operators first .. last."""
    return [placed for one in model.classes for window, placed in one.placed.items() if first <= window <= last]


def _look_ahead_row(model: BoundModel, k: int, soon: list[tuple[TensorClass, pulp.LpVariable]]) -> None:
    problem, byte = model.facts.problem, model.byte
    ahead = problem.allocation_bytes[k : k + LOOK_AHEAD]
    excess = float(int(model.facts.most_bytes[k - 1]) - model.budget_bytes) * byte
    room = float(ahead.sum()) * byte
    if excess + room <= 0:
        return
    any_soon = model.variable(1, whole=True)
    for one, admitted in soon:
        model.row([(admitted, 1.0), (any_soon, -float(one.tensors.size))], high=0.0)
    freed: Terms = []
    for one in model.classes:
        if one.swapped is None or not one.free <= k - 1 < one.due:
            continue
        n_bytes = float(problem.tensor_bytes[one.first]) * byte
        gone = one.gone.get(k, one.swapped)  # what leaves while the operator runs is counted as gone
        freed.append((gone, n_bytes))
        if k - 1 in one.coming:
            freed.append((one.coming[k - 1], -n_bytes))
        if one.recomputed is not None:
            freed.append((one.recomputed, n_bytes))
    freed += [(admitted, -float(problem.tensor_bytes[one.first]) * byte) for one, admitted in soon]
    pushed_out = float(np.max(ahead, initial=0)) * byte
    freed += [(rebuilt, pushed_out) for rebuilt in _rebuilds_at(model, k, k + LOOK_AHEAD - 1)]
    # Without an admission this is the memory row of operator k - 1.
    model.row([*freed, (any_soon, -room)], low=excess - abs(excess) * ROUNDING)
