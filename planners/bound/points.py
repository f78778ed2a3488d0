"""At which operators the bound looks at a plan: where memory can be short, and where the link can run dry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackswap.models.problem import FloatArray, IntArray
from slackswap.planners.bound.facts import BoundFacts

FIRST_PRODUCERS, LAST_PRODUCERS = 6, 2


def first_points(facts: BoundFacts) -> set[int]:
    """Return the points to begin with.

    The turn of the passes, the operator at which most bytes would be in use, and the producers between which the D2H engine
    starts and ends its work.
    """
    problem = facts.problem
    points = {int(np.argmax(facts.most_bytes)), max(0, problem.n_forward - 1)}
    if problem.n_forward < problem.n_operators:
        points.add(problem.n_forward)
    producers = np.unique(problem.producer[facts.candidates])
    return points | set(producers[:FIRST_PRODUCERS].tolist()) | set(producers[-LAST_PRODUCERS:].tolist())


@dataclass(frozen=True, eq=False)
class Shortage:
    """How a fractional plan would run if nothing stalled beyond what the model allows for.

    Attributes
    ----------
    excess_bytes : (n,) bytes over the budget while each operator runs
    late_s : (n,) how much too late fetches for each operator would end that start when memory can take them
    """

    excess_bytes: FloatArray
    late_s: FloatArray

    def worst(self, known: set[int], tolerance_bytes: float, tolerance_s: float) -> int | None:
        """Return the operator outside `known` that lacks most; None where none lacks more than the tolerances."""
        for lack, tolerance in ((self.excess_bytes, tolerance_bytes), (self.late_s, tolerance_s)):
            order = np.argsort(-lack, kind="stable")
            for operator in order[:8].tolist():
                if lack[operator] <= tolerance:
                    break
                if operator not in known:
                    return int(operator)
        return None


def shortage(
    facts: BoundFacts, budget_bytes: int, swap: FloatArray, recompute: FloatArray, delay_s: FloatArray
) -> Shortage:
    """Return what a plan of the given shares lacks, operator by operator.

    Parameters
    ----------
    swap, recompute : (m,) share of each tensor that is swapped and recomputed
    delay_s : (n + 1,) how much later than in the ideal step each operator starts
    """
    problem = facts.problem
    start_s = facts.start_s + delay_s
    candidates = facts.candidates
    away, back = _absence(facts, start_s, swap)
    changes = np.zeros(problem.n_operators + 1)
    n_bytes = problem.tensor_bytes.astype(np.float64)
    swapped = candidates[swap[candidates] > 0]
    gone = swapped[away[swapped] < back[swapped]]
    np.add.at(changes, away[gone], -(n_bytes * swap)[gone])
    np.add.at(changes, back[gone], (n_bytes * swap)[gone])
    rebuilt = candidates[recompute[candidates] > 0]
    np.add.at(changes, problem.last_forward_use[rebuilt] + 1, -(n_bytes * recompute)[rebuilt])
    np.add.at(changes, problem.first_backward_reader[rebuilt], (n_bytes * recompute)[rebuilt])
    excess_bytes = facts.most_bytes - budget_bytes + np.cumsum(changes)[:-1]
    late_s = np.zeros(problem.n_operators)
    early = start_s[problem.n_forward] - _latest_fetch_s(facts, start_s, swap)
    np.maximum.at(late_s, problem.first_backward_reader[swapped], early[swapped])
    return Shortage(excess_bytes, late_s)


def _absence(facts: BoundFacts, start_s: FloatArray, swap: FloatArray) -> tuple[IntArray, IntArray]:
    """First operator at which each swapped tensor is gone, and the first at which its buffer is taken again."""
    problem = facts.problem
    n = problem.n_operators
    away = np.full(problem.n_tensors, n, np.int64)
    free_s = 0.0
    for t in map(int, facts.candidates[swap[facts.candidates] > 0]):
        produced = int(problem.producer[t])
        free_s = max(free_s, start_s[produced] + float(problem.duration_s[produced])) + swap[t] * facts.offload_s[t]
        ended = int(np.searchsorted(start_s[:n], free_s - 1e-12))
        away[t] = max(ended, int(problem.last_forward_use[t]) + 1)
    back = np.searchsorted(start_s[:n], _latest_fetch_s(facts, start_s, swap))
    return away, np.minimum(np.maximum(back, problem.n_forward), problem.first_backward_reader)


def _latest_fetch_s(facts: BoundFacts, start_s: FloatArray, swap: FloatArray) -> FloatArray:
    """(m,) latest start of each fetch for which every tensor is back in time, in order of deadline."""
    problem = facts.problem
    latest = np.full(problem.n_tensors, np.inf)
    next_s = np.inf
    swapped = facts.candidates[swap[facts.candidates] > 0]
    for t in swapped[np.argsort(-problem.first_backward_reader[swapped], kind="stable")].tolist():
        next_s = min(next_s, float(start_s[problem.first_backward_reader[t]])) - swap[t] * facts.fetch_s[t]
        latest[t] = next_s
    return latest
