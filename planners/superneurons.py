"""SuperNeurons: recompute what is cheap, evict what is heavy on demand (Wang et al., PPoPP 2018)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.models.event_model import simulate
from slackswap.models.event_model.buffers import HEAVY_KINDS
from slackswap.models.plan import RECOMPUTE, SWAP, Plan
from slackswap.models.problem import KINDS, Problem
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible

CHEAP_KINDS = ("norm", "elementwise", "dropout")


@dataclass(frozen=True)
class SuperNeurons:
    """Recomputes outputs of norm, activation and dropout layers; outputs of heavy operators leave when memory runs out.

    Its plans run under the policy ``on-demand``, an LRU tensor cache with one prefetch ahead (the paper, section 4.1). A
    tensor is cheap if its producer is of a cheap kind and its rebuild runs nothing else. Where everything fits, it frees
    nothing.
    """

    name: str = "superneurons"
    description: str = "SuperNeurons: recompute cheap outputs, evict heavy ones on demand in LRU order"
    policy: str = "on-demand"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Return the plan that frees nothing, or else the one that its rules give."""
        del rng, time_limit_s  # two plans, nothing to search
        plan = Plan.keep_everything(problem)
        for tried in (1, 2):
            score = simulate(problem, plan, budget_bytes, policy=self.policy)
            if score.fits:
                return Outcome(Status.FEASIBLE, plan, claimed_step_s=score.step_s, evaluations=tried)
            plan = Plan(_decisions(problem))
        return infeasible(problem, plan, budget_bytes, policy=self.policy, evaluations=2)


def _decisions(problem: Problem) -> npt.NDArray[np.int8]:
    runs_producer_only = problem.rebuild_s <= problem.duration_s[problem.producer]
    cheap = problem.saved & problem.rebuildable & _made_by(problem, CHEAP_KINDS) & runs_producer_only
    heavy = problem.saved & _made_by(problem, HEAVY_KINDS)
    return np.select([cheap, heavy], [RECOMPUTE, SWAP], 0).astype(np.int8)


def _made_by(problem: Problem, kinds: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return np.isin(problem.kind[problem.producer], [KINDS.index(kind) for kind in kinds])
