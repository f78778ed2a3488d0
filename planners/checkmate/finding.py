"""What the solvers of `checkmate` tell the planner, from another process too."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from slackswap.planners.checkmate.schedule import Steps


class Finding(NamedTuple):
    """What a solver has found out by now; times are in the units of the graph.

    Attributes
    ----------
    steps : steps that fit the budget, or None
    bound : no rematerialization schedule spends less time on rebuilds
    bound_in_formulation : no schedule of the solver's own formulation does
    infeasible : it is proved that no schedule of the formulation fits
    infeasible_everywhere : it is proved that no rematerialization schedule fits
    in_own_space : the formulation is B, the planner's own; that of the retention intervals is smaller
    unavailable : the solver is not installed
    solver, version : who says so
    """

    solver: str
    version: str = ""
    steps: Steps | None = None
    bound: int = 0
    bound_in_formulation: int = 0
    infeasible: bool = False
    infeasible_everywhere: bool = False
    in_own_space: bool = True
    unavailable: bool = False


Report = Callable[[Finding], None]
