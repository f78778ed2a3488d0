"""Why no plan was found: what is too large, which budget is known to do, and which is proved not to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slackswap.models.problem import Problem
from slackswap.planners.memory_floor import Space, memory_floor
from slackswap.planners.smallest_known import SmallestKnown, smallest_known

OWN_PLAN = "its own plan"


@dataclass(frozen=True, slots=True)
class Infeasibility:
    """Why no plan fits, and what would do. A planner states what it saw; `with_known_facts` adds the rest.

    Attributes
    ----------
    operator, missing_bytes : what cannot start, and the bytes that it lacks
        Where infeasibility is proved, the operator with the largest need of all; else where the planner's best try failed.
    smallest_feasible_bytes : the smallest budget for which this planner itself is known to find a plan, or None
    smallest_known_bytes : the smallest for which any plan of its kind is known to run under its policy, or None
        It can lie below the budget at which the planner found nothing.
    known_plan : that plan in words
    largest_infeasible_bytes : the largest budget for which it is proved that nothing of its kind fits, under any policy; or None
    proved_for : the kind in words, as in "no plan without swaps fits"
        A "plan" decides for each saved tensor to keep, swap or recompute it; a "schedule" is free in what it does when.
    reason : what else the planner has to say
    """

    operator: str
    missing_bytes: int
    smallest_feasible_bytes: int | None = None
    largest_infeasible_bytes: int | None = None
    reason: str = ""
    smallest_known_bytes: int | None = None
    known_plan: str = ""
    proved_for: str = ""


def with_known_facts(
    problem: Problem, budget_bytes: int, space: Space, policy: str, seen: Infeasibility | None
) -> Infeasibility:
    """Add what is known and proved without the planner to what the planner has `seen`; None if it said nothing.

    Parameters
    ----------
    space, policy : what its plans may hold, and the runtime policy that they are made for
    """
    floor, known = memory_floor(problem, space), smallest_known(problem, space, policy)
    why = seen or Infeasibility("", 0)
    if budget_bytes < floor.n_bytes:
        operator = problem.operator_names[floor.operator]
        why = replace(why, operator=operator, missing_bytes=floor.n_bytes - budget_bytes)
    own_bytes, claimed_bytes = why.smallest_feasible_bytes, why.largest_infeasible_bytes
    if own_bytes is not None and floor.n_bytes <= own_bytes < known.n_bytes:
        known = SmallestKnown(own_bytes, OWN_PLAN)
    proved_bytes = floor.n_bytes - 1
    if claimed_bytes is not None and claimed_bytes < known.n_bytes:
        proved_bytes = max(proved_bytes, claimed_bytes)  # a solver may prove more than the floor does
    return replace(
        why,
        largest_infeasible_bytes=proved_bytes if proved_bytes >= 0 else None,
        proved_for=space.noun,
        smallest_known_bytes=known.n_bytes,
        known_plan=known.how,
    )
