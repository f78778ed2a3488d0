"""From counts to plans: which tensors of a class are swapped, recomputed, kept."""

from __future__ import annotations

import numpy as np

from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray
from slackswap.planners.bound.model import BoundModel

# How many of the largest copies may wait in the D2H queue when one more joins it; 0: swap only when the link runs dry.
BACKLOGS = (0.0, *np.geomspace(0.05, 40.0, 31).tolist())


def counted_plans(model: BoundModel) -> DecisionArray:
    """Return (k, m) plans with the counts of a solved model.

    The model does not tell the tensors of a class apart. Kept are the last: the backward pass releases them first. Swapped are
    those at whose production the D2H queue is short, so that the engine is busy from the first tensor to the last; each row
    allows another backlog. Fractional counts are rounded.
    """
    rows = [_plan(model, backlog) for backlog in BACKLOGS]
    return np.unique(np.array(rows, np.int8).reshape(len(rows), -1), axis=0)


def _plan(model: BoundModel, backlog: float) -> DecisionArray:
    facts, problem = model.facts, model.facts.problem
    decisions = np.full(problem.n_tensors, KEEP, np.int8)
    allowed_s = backlog * float(facts.offload_s[facts.candidates].max(initial=0.0))
    quotas = {id(one): _Quota(one.tensors.size, *model.counts(one)) for one in model.classes}
    free_s = 0.0
    for t in map(int, facts.candidates):
        produced_s = float(facts.start_s[problem.producer[t] + 1])
        decision = quotas[id(model.class_of[t])].take(link_is_short=free_s - produced_s <= allowed_s)
        if decision == SWAP:
            free_s = max(free_s, produced_s) + float(facts.offload_s[t])
        decisions[t] = decision
    return decisions


class _Quota:
    """What is left to decide of a class."""

    def __init__(self, size: int, swapped: float, recomputed: float) -> None:
        self.swap = min(size, round(swapped))
        self.recompute = min(size - self.swap, round(recomputed))
        self.keep = size - self.swap - self.recompute

    def take(self, *, link_is_short: bool) -> int:
        """Decide the next tensor."""
        others = self.recompute + self.keep
        if self.swap and (link_is_short or not others):
            self.swap -= 1
            return SWAP
        if self.recompute:
            self.recompute -= 1
            return RECOMPUTE
        if self.swap and self.keep:  # those after it wait: the last ones are kept
            self.swap -= 1
            return SWAP
        self.keep -= 1
        return KEEP
