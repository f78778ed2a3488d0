"""The whole model of formulation A: its variables and all of its rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from slackswap.planners.bound.admission import add_admission_rows
from slackswap.planners.bound.facts import BoundFacts
from slackswap.planners.bound.link import add_link_rows
from slackswap.planners.bound.memory import add_memory_rows
from slackswap.planners.bound.model import BoundModel


def link_budget_model(
    facts: BoundFacts,
    budget_bytes: int,
    points: Sequence[int],
    *,
    reserved_bytes: Mapping[int, int] | None = None,
    below_s: float = math.inf,
) -> BoundModel:
    """Return the model at the given points, ready for `linear_solver.solve`; its `classes` hold the solution afterwards.

    Where every operator is a point, the look-ahead of rule 6 has its rows too.

    Parameters
    ----------
    reserved_bytes : by operator, memory to leave unused there: the cost is then no bound any more
    below_s : a step that is known to be reached; only plans that are no slower are looked for; if there are none, it is the bound
    """
    model = BoundModel(facts, budget_bytes, points, reserved_bytes or {}, below_s)
    add_link_rows(model)
    add_memory_rows(model)
    if model.looks_ahead:
        add_admission_rows(model)
    return model
