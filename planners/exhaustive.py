"""Exhaustive search over the plans of a tiny problem: the oracle of tests and notebooks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

import numpy as np

from slackswap.models.event_model import simulate_many
from slackswap.models.event_model.batch import usable_cores
from slackswap.models.plan import DecisionArray, Plan
from slackswap.models.problem import IntArray, Problem
from slackswap.planners.protocol import Improvement, Outcome, Status, Supports, infeasible

PLAN_LIMIT = 3**12  # 531,441
# Some 20 ms of simulation at a time, so that a time limit is kept, and memory that does not grow with the number of plans.
_OPERATORS_AND_TENSORS_AT_ONCE = 500_000
_MAX_ROWS_AT_ONCE = 1 << 15


def count_plans(problem: Problem) -> int:
    """Return the number of legal plans: 3 to the power of the tensors with all choices, 2 for those without a rebuild."""
    n_saved = int(problem.saved.sum())
    n_rebuildable = int((problem.saved & problem.rebuildable).sum())
    n_plans: int = 3**n_rebuildable * 2 ** (n_saved - n_rebuildable)
    return n_plans


def all_plans(problem: Problem) -> DecisionArray:
    """Return every legal plan as a row, in lexicographic order: the first one keeps everything.

    Returns
    -------
    (k, m) int8 array, with k as in `count_plans`
    """
    return plans_between(problem, 0, count_plans(problem))


def plans_between(problem: Problem, first: int, last: int) -> DecisionArray:
    """Return the legal plans number `first` .. `last` - 1 in lexicographic order, without those before.

    Plan k is the number k in a mixed radix, a digit per saved tensor, the last tensor's digit the lowest. Its decisions are
    the digits, since keep is 0, swap 1 and recompute 2.
    """
    rows = np.zeros((last - first, problem.n_tensors), np.int8)
    number = np.arange(first, last, dtype=np.int64)
    for t in reversed(_decidable(problem)):
        number, rows[:, t] = np.divmod(number, 3 if problem.rebuildable[t] else 2)
    return rows


def _decidable(problem: Problem) -> IntArray:
    return np.flatnonzero(problem.saved)


@dataclass(frozen=True)
class Exhaustive:
    """Scores every legal plan; its best is the optimum among plans, under the default policy.

    Where it gets through, the status is optimal and the bound is the optimum itself. A plan that takes no longer than the
    ideal step ends the search, since nothing is faster. Schedules that no plan lowers to are not tried.

    Parameters
    ----------
    plan_limit : most plans to try; a problem with more is refused, unless keeping everything fits
    threads : how many threads score; None takes every core
    """

    name: str = "exhaustive"
    description: str = "every plan of a tiny problem, up to 3^12 of them: the optimum"
    policy: str = "default"
    supports: Supports = Supports(tiny_only=True)
    plan_limit: int = PLAN_LIMIT
    threads: int | None = None

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Score all plans, some thousand at a time; without a time limit, however long that takes."""
        del rng  # nothing is left to chance
        began_s = time.perf_counter()
        ends_s = math.inf if time_limit_s is None else began_s + time_limit_s
        sweep = _Sweep(problem, budget_bytes, self.threads or usable_cores(), began_s)
        n_plans = count_plans(problem)
        sweep.score(1)
        if sweep.best_s > problem.ideal_s and n_plans > self.plan_limit:
            return Outcome(
                Status.UNAVAILABLE,
                evaluations=sweep.scored,
                reason=f"tries at most {self.plan_limit:,} plans, and there are more",
            )
        while sweep.scored < n_plans and sweep.best_s > problem.ideal_s and time.perf_counter() < ends_s:
            sweep.score(min(n_plans, sweep.scored + sweep.rows_at_once))
        return sweep.outcome(complete=sweep.scored == n_plans or sweep.best_s <= problem.ideal_s)


@dataclass
class _Sweep:
    """How far the plans have been scored, in lexicographic order."""

    problem: Problem
    budget_bytes: int
    threads: int
    began_s: float
    scored: int = 0
    best: Plan | None = None
    best_s: float = math.inf
    closest: Plan | None = None
    closest_missing_bytes: int = 1 << 62
    history: list[Improvement] = field(default_factory=list)

    @property
    def rows_at_once(self) -> int:
        size = self.problem.n_operators + self.problem.n_tensors
        return min(_MAX_ROWS_AT_ONCE, max(1, _OPERATORS_AND_TENSORS_AT_ONCE // size))

    def score(self, last: int) -> None:
        """Score the plans up to number `last`, which is not among them."""
        rows = plans_between(self.problem, self.scored, last)
        scores = simulate_many(self.problem, rows, self.budget_bytes, threads=self.threads)
        k = int(np.argmin(scores.step_s))
        if scores.step_s[k] < self.best_s:
            self.best, self.best_s = Plan(rows[k]), float(scores.step_s[k])
            self.history.append(Improvement(time.perf_counter() - self.began_s, self.scored + k + 1, self.best_s))
        if self.best is None:
            k = int(np.argmin(scores.missing_bytes))  # none of them fits
            if scores.missing_bytes[k] < self.closest_missing_bytes:
                self.closest, self.closest_missing_bytes = Plan(rows[k]), int(scores.missing_bytes[k])
        self.scored = last

    def outcome(self, *, complete: bool) -> Outcome:
        if self.best is not None:
            return Outcome(
                Status.OPTIMAL if complete else Status.FEASIBLE,
                self.best,
                lower_bound_s=self.best_s if complete else None,
                claimed_step_s=self.best_s,
                evaluations=self.scored,
                history=tuple(self.history),
            )
        if not complete or self.closest is None:
            return Outcome(Status.TIME_LIMIT, evaluations=self.scored)
        seen = infeasible(self.problem, self.closest, self.budget_bytes, evaluations=self.scored)
        assert seen.infeasibility is not None
        proved = replace(seen.infeasibility, largest_infeasible_bytes=self.budget_bytes)
        return replace(seen, infeasibility=proved)
