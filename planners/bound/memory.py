"""Rows for the device memory: what is in use at each point fits in the budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackswap.planners.bound.model import SLACK, BoundModel, Terms

if TYPE_CHECKING:
    import pulp


def add_memory_rows(model: BoundModel) -> None:
    """Add a row for each point at which not everything fits."""
    for k in model.tight:
        operator = model.points[k]
        chains = model.chains.at.get(operator, {})
        absent_of: dict[int, pulp.LpVariable] = {t: model.variable(1) for t in chains}
        freed: Terms = []
        for one in model.classes:
            if k not in one.gone:
                continue
            n_bytes = float(model.facts.problem.tensor_bytes[one.first]) * model.byte
            absent: Terms = [(one.gone[k], 1.0)]
            if k in one.coming:
                absent.append((one.coming[k], -1.0))
            if one.recomputed is not None:
                absent.append((one.recomputed, 1.0))
            if one.first in chains:
                seen = absent_of[one.first]
                model.row([(seen, 1.0), *((variable, -sign) for variable, sign in absent)], high=0.0)
                absent = [(seen, 1.0)]
            freed += [(variable, sign * n_bytes) for variable, sign in absent]
        _chain_rows(model, operator, absent_of)
        excess = float(int(model.facts.most_bytes[operator]) - model.budget_at(operator)) * model.byte
        # A plan that fits to the byte must not fail for the solver's rounding.
        model.row(freed or [(model.variable(0), 1.0)], low=excess - SLACK)


def _chain_rows(model: BoundModel, operator: int, absent_of: dict[int, pulp.LpVariable]) -> None:
    """A source is there as soon as one of its users has been rebuilt: absent <= 1 - recomputed + user absent."""
    for source, users in model.chains.at.get(operator, {}).items():
        for user in (*users.present, *users.perhaps):
            of_user = model.class_of.get(user)
            if of_user is None or of_user.recomputed is None:
                continue
            terms: Terms = [(absent_of[source], 1.0), (of_user.recomputed, 1.0)]
            if user in absent_of and user not in users.present:
                terms.append((absent_of[user], -1.0))
            model.row(terms, high=1.0)
