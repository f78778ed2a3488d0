"""Rows for the look-ahead of rule 6, where every operator is a point.

A fetch is admitted while a step runs only if, beside all that is in use, the allocations of the next three steps fit too;
otherwise compute stands still until its copy has ended. What begins to come back between the starts of the operators k - 1 and k
is admitted

- *early*, while operator k - 1 runs: memory during k - 1, with it, and the allocations of the operators k, k + 1, k + 2 fit;
- *during* a rebuild that stands before k: what is in use before k, with it, and the allocations of the next three steps fit;
- *awaited*: compute waits. Under the default policy the head of the queue is then an input of the step at hand, under the others
  compute waits for what it fetches: the stall is at least the time of the copy.

A rebuild that stands before one of the three operators is a step of its own, and pushes at most one of them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from slackswap.planners.bound.model import SLACK, BoundModel, TensorClass, Terms

if TYPE_CHECKING:
    import pulp

LOOK_AHEAD = 3


@dataclass
class _Window:
    """What begins to come back before operator k, by how it is admitted."""

    k: int
    early: list[tuple[TensorClass, pulp.LpVariable]] = field(default_factory=list)
    during: list[tuple[TensorClass, pulp.LpVariable]] = field(default_factory=list)
    awaited: Terms = field(default_factory=list)


def add_admission_rows(model: BoundModel) -> None:
    """Add the rows for every operator of the backward pass; the points of `model` are all operators."""
    n_forward = model.facts.problem.n_forward
    for k in range(n_forward, model.facts.problem.n_operators):
        if k not in model.uncounted_windows:
            # No fetch starts while the last forward operator runs.
            _add_window(model, k, operator_runs=k > n_forward)


def _add_window(model: BoundModel, k: int, *, operator_runs: bool) -> None:
    rebuilds = _rebuilds_before(model, k, k)
    window = _Window(k)
    for one in model.classes:
        terms = _newly_coming(one, k)
        if terms is None:
            continue
        size = one.tensors.size
        copy = float(model.facts.fetch_s[one.first]) * model.second
        if copy <= model.most_cost:  # else no plan below the known step waits for it
            awaited = model.variable(size)
            window.awaited.append((awaited, copy))
            terms.append((awaited, -1.0))
        if operator_runs:
            early = model.variable(size, whole=True)
            window.early.append((one, early))
            terms.append((early, -1.0))
        if rebuilds:
            during = model.variable(size, whole=True)
            window.during.append((one, during))
            terms.append((during, -1.0))
            model.row([(during, 1.0), *((rebuild, -float(size)) for rebuild in rebuilds)], high=0.0)
        model.row(terms, 0.0, 0.0)
    if window.awaited:
        model.row([*window.awaited, (model.stall[k], -1.0)], high=0.0)
    if not model.uncounted_windows.intersection(range(k, k + LOOK_AHEAD)):
        _early_row(model, window)
        _during_row(model, window)


def _newly_coming(one: TensorClass, k: int) -> Terms | None:
    """Terms for how many of a class begin to come back between the points k - 1 and k."""
    now = one.coming.get(k, one.swapped if one.due == k else None)
    if now is None:
        return None
    before = one.coming.get(k - 1)
    return [(now, 1.0)] if before is None else [(now, 1.0), (before, -1.0)]


def _rebuilds_before(model: BoundModel, first: int, last: int) -> list[pulp.LpVariable]:
    """Counts of the rebuilds that stand right before one of the operators first .. last."""
    return [placed for one in model.classes for window, placed in one.placed.items() if first <= window <= last]


def _early_row(model: BoundModel, window: _Window) -> None:
    k = window.k
    freed = _freed(model, k - 1, k, window.early)
    in_use = int(model.facts.most_bytes[k - 1])
    _look_ahead_row(model, k, freed, in_use, window.early, own_step=0)


def _during_row(model: BoundModel, window: _Window) -> None:
    k, problem = window.k, model.facts.problem
    freed = _freed(model, k, k, [*window.early, *window.during])
    in_use = int(model.facts.most_bytes[k]) - int(problem.allocation_bytes[k])
    _look_ahead_row(model, k, freed, in_use, window.during, own_step=1)


def _freed(model: BoundModel, at: int, k: int, admitted: list[tuple[TensorClass, pulp.LpVariable]]) -> Terms:
    """Bytes that may be absent at some time before operator k starts: of tensors that are in their gap, or due, at `at`."""
    terms: Terms = []
    for one in model.classes:
        absent = one.free <= at < one.due or (at == k == one.due and one.free < k)
        if one.swapped is None or not absent:
            continue
        n_bytes = float(model.facts.problem.tensor_bytes[one.first]) * model.byte
        terms.append((one.gone.get(k, one.swapped), n_bytes))  # what leaves in the meantime counts as gone
        if k - 1 in one.coming:
            terms.append((one.coming[k - 1], -n_bytes))
        if one.recomputed is not None:
            terms.append((one.recomputed, n_bytes))
        terms += [(variable, -n_bytes) for other, variable in admitted if other is one]
    return terms


def _look_ahead_row(
    model: BoundModel,
    k: int,
    freed: Terms,
    in_use_bytes: int,
    admitted: list[tuple[TensorClass, pulp.LpVariable]],
    *,
    own_step: int,
) -> None:
    """Freed bytes cover the excess and, where anything is admitted, the look-ahead; `own_step` rebuilds are the one that runs."""
    ahead = model.facts.problem.allocation_bytes[k : k + LOOK_AHEAD]
    room, pushed_out = float(ahead.sum()) * model.byte, float(np.max(ahead, initial=0)) * model.byte
    excess = float(in_use_bytes - model.budget_bytes) * model.byte
    if not admitted or excess + room <= 0:
        return
    any_admitted = model.variable(1, whole=True)
    model.admissions.append(any_admitted)
    for one, variable in admitted:
        model.row([(variable, 1.0), (any_admitted, -float(one.tensors.size))], high=0.0)
    rebuilds = [(placed, pushed_out) for placed in _rebuilds_before(model, k, k + LOOK_AHEAD - 1)]
    needed = room + own_step * pushed_out
    model.row([*freed, *rebuilds, (any_admitted, -needed)], low=excess - SLACK)
