"""A planner during which the user presses Ctrl-C."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners import Outcome, Status, Supports


@dataclass(frozen=True)
class Interrupted:
    """Keeps everything from `least_bytes` on, and is interrupted at any smaller budget."""

    least_bytes: int = 6_000_000  # the peak of chain(6)
    name: str = "interrupted"
    description: str = "is interrupted"
    policy: str = "default"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del rng, time_limit_s
        if budget_bytes < self.least_bytes:
            raise KeyboardInterrupt
        return Outcome(Status.FEASIBLE, Plan.keep_everything(problem))
