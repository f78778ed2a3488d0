"""LP relaxation of formulation B, rounded: keep what the relaxation keeps for the most part, rebuild what is then missing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from slackswap.planners.checkmate.finding import Finding, Report
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.milp import StagedModel
from slackswap.planners.checkmate.schedule import Steps, fits, steps_of_stages, without_waste
from slackswap.planners.checkmate.stages import first_stages
from slackswap.planners.linear_solver import Answer, Verdict, solve

# The relaxation is solved with some of the budget in reserve, since rounding needs more; less where none of it fits.
SHARES = (0.9, 0.8, 0.7, 1.0)
THRESHOLDS = tuple(k / 10 for k in range(1, 10))


@dataclass(eq=False)
class Rounding:
    """Solves the relaxation at 0.9 of the budget, rounds S at 0.1 ... 0.9, and keeps the cheapest steps that fit.

    Parameters
    ----------
    known : steps that fit, or None
    ends_s : when time is up, on the clock of `time.monotonic`
    """

    graph: RematerializationGraph
    report: Report
    ends_s: float
    known: Steps | None = None
    max_columns: int = 120_000

    def run(self) -> None:
        """Solve and round; `report` hears of the result."""
        finding = Finding("HiGHS", steps=self.known)
        for share in SHARES:
            left_s = self.ends_s - time.monotonic()
            if left_s <= 0:
                break
            model, answer = self._relaxation(share, left_s)
            finding = finding._replace(
                version=answer.version, unavailable=answer.verdict is Verdict.UNAVAILABLE, steps=self.known
            )
            if finding.unavailable:
                break
            if answer.objective is not None and self._round(model):
                finding = finding._replace(steps=self.known)
                break
        self.report(finding)

    def _relaxation(self, share: float, left_s: float) -> tuple[StagedModel, Answer]:
        graph = self.graph
        budget = max(int(share * graph.budget), int(graph.working_sets.max()))
        model = StagedModel(replace(graph, budget=budget), first_stages(graph, self.max_columns))
        return model, solve(model.model, relaxed=True, time_limit_s=left_s)

    def _round(self, model: StagedModel) -> bool:
        """Return whether any rounding fits; `known` is then the cheapest."""
        any_fits = False
        for steps in self._roundings(model):
            if fits(self.graph, steps):
                any_fits = True
                lean = without_waste(self.graph, steps)
                if self.known is None or self.graph.rebuild_cost(lean) < self.graph.rebuild_cost(self.known):
                    self.known = lean
        return any_fits

    def _roundings(self, model: StagedModel) -> Iterator[Steps]:
        for threshold in THRESHOLDS:
            plan = model.plan(threshold)
            # R follows from S: what is read and not there is rebuilt, and nothing else.
            yield steps_of_stages(self.graph, replace(plan, rebuilt=tuple(frozenset() for _ in plan.ends)))
