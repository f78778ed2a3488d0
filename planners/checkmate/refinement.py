"""Solves formulation B exactly: over few merged stages first, with more of them where a solution exceeds the budget."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slackswap.planners.checkmate.finding import Finding, Report
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.milp import StagedModel
from slackswap.planners.checkmate.schedule import Steps, fits, steps_of_stages, without_waste
from slackswap.planners.checkmate.stages import Stages, count_columns, first_stages
from slackswap.planners.linear_solver import Answer, Verdict, solve

# Few columns first: what is solved in seconds with 4,000 of them can take minutes with 40,000, for a looser relaxation.
FIRST_COLUMNS, MAX_COLUMNS = 4_000, 120_000
# All costs are whole units: closer than one is solved. A little less, for the solver's tolerances.
_GAP_UNITS = 0.99
_TOLERANCE = 1e-3
_LEAST_S = 0.02
# PuLP takes about so many times as long to hand a model to HiGHS, outside of HiGHS's time limit, as it takes to build it.
_HAND_OVER = 3.0


@dataclass(eq=False)
class Refinement:
    """Rounds of solving and refining, until the best steps meet the bound, nothing can be refined, or time is up.

    Parameters
    ----------
    known : steps that fit, or None
    ends_s : when time is up, on the clock of `time.monotonic`, which all processes share
    stages : to begin with; None leaves the choice to `first_stages`
    """

    graph: RematerializationGraph
    report: Report
    ends_s: float
    known: Steps | None = None
    stages: Stages | None = None
    first_columns: int = FIRST_COLUMNS
    max_columns: int = MAX_COLUMNS
    bound: int = 0
    bound_in_formulation: int = 0
    version: str = ""

    def run(self) -> None:
        """Solve and refine; `report` hears of every round, and `stages` are those of the next one when time is up."""
        stages: Stages | None = self.stages or first_stages(self.graph, self.first_columns)
        while stages is not None and time.monotonic() < self.ends_s - _LEAST_S:
            self.stages = stages
            stages = self._round(stages)

    def _round(self, stages: Stages) -> Stages | None:
        """Solve one model; return the stages of the next round, None where there is none."""
        began_s = time.monotonic()
        model = StagedModel(self.graph, stages, self._best_cost)
        built_s = time.monotonic()
        answer = solve(
            model.model,
            time_limit_s=self.ends_s - built_s - _HAND_OVER * (built_s - began_s),
            gap_abs=_GAP_UNITS,
            start=[] if self.known is None else model.start(self.known),
        )
        self.version = answer.version or self.version
        if answer.verdict is Verdict.UNAVAILABLE:
            self._tell(unavailable=True)
            return None
        self._learn_bound(answer, stages)
        if answer.verdict is Verdict.INFEASIBLE and self.known is None:
            self._tell(infeasible=True, infeasible_everywhere=not stages.detailed)
            return None
        steps = None if answer.objective is None else steps_of_stages(self.graph, model.plan())
        if steps is not None:
            self._learn_steps(steps)
        self._tell()
        solved = answer.objective is not None and answer.bound >= answer.objective - 1.0 + _TOLERANCE
        if steps is None or not solved or self._met:
            return None
        refined = stages.refined(self.graph, steps)
        return None if refined == stages or count_columns(self.graph, refined) > self.max_columns else refined

    @property
    def _best_cost(self) -> int | None:
        return None if self.known is None else self.graph.rebuild_cost(self.known)

    @property
    def _met(self) -> bool:
        best = self._best_cost
        return best is not None and best <= self.bound_in_formulation

    def _learn_bound(self, answer: Answer, stages: Stages) -> None:
        best = self._best_cost
        bound = 0 if math.isinf(answer.bound) else math.ceil(answer.bound - _TOLERANCE)
        if answer.verdict is Verdict.INFEASIBLE and best is not None:
            bound = best  # rebuilds that cost more than the known schedule were left out: nothing beats it
        if best is not None:
            bound = min(bound, best)  # for the same reason
        self.bound_in_formulation = max(self.bound_in_formulation, bound)
        if not stages.detailed:
            self.bound = max(self.bound, bound)

    def _learn_steps(self, steps: Sequence[int]) -> None:
        if not fits(self.graph, steps):
            return
        steps = without_waste(self.graph, steps)
        if self._best_cost is None or self.graph.rebuild_cost(steps) < self._best_cost:
            self.known = steps

    def _tell(
        self, *, infeasible: bool = False, infeasible_everywhere: bool = False, unavailable: bool = False
    ) -> None:
        finding = Finding(
            solver="HiGHS",
            version=self.version,
            steps=self.known,
            bound=self.bound,
            bound_in_formulation=self.bound_in_formulation,
            infeasible=infeasible,
            infeasible_everywhere=infeasible_everywhere,
            unavailable=unavailable,
        )
        self.report(finding)
