"""Keep everything: the ideal step, where it fits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible


@dataclass(frozen=True)
class Keep:
    """Frees nothing. Fits from the peak P upwards, and is optimal there: no plan is faster than the ideal step."""

    name: str = "keep"
    description: str = "keep every tensor; fits from the peak upwards"
    policy: str = "default"
    supports: Supports = Supports(swaps=False, recomputes=False, any_budget=False)

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Return the plan without a decision to make."""
        del rng, time_limit_s  # nothing to search
        plan = Plan.keep_everything(problem)
        score = simulate(problem, plan, budget_bytes)
        if score.fits:
            return Outcome(
                Status.OPTIMAL, plan, lower_bound_s=problem.ideal_s, claimed_step_s=score.step_s, evaluations=1
            )
        return infeasible(problem, plan, budget_bytes, score=score, smallest_feasible_bytes=peak_bytes(problem))
