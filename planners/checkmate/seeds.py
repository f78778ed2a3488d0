"""Schedules to begin with: what other planners make of recomputation alone, and an annealing over their plans.

A plan rebuilds a tensor once, before its first backward reader: a small part of all rematerialization schedules, but one in
which the event model scores some 30,000 candidates a second. Nothing is copied, so neither the peak nor the time depends on
the budget, and the time is the ideal one plus the costs of what is recomputed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from slackswap.models.event_model import simulate_many
from slackswap.models.plan import KEEP, RECOMPUTE, DecisionArray, Plan
from slackswap.models.problem import FloatArray, IntArray, Problem
from slackswap.planners.checkpoint import Checkpoint
from slackswap.planners.slackswap import RECOMPUTE_ONLY, TwoPasses

_ROWS = 64
_CYCLE_EVALUATIONS = 100  # per tensor that can be recomputed; a cycle after a fruitless one is twice as long
_STALE_CYCLES = 4
# Temperatures as shares of the recomputation that is under way, per tensor recomputed.
_HOT, _COLD = 0.5, 0.005
_NEAR = 6  # candidates on either side of one that a move exchanges for it
# How many recomputed tensors a move keeps, and how many kept ones it recomputes.
_MOVES = np.array([(1, 0), (1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2)])


def rebuild_everything(problem: Problem) -> Plan:
    """Return the plan that recomputes every tensor that it can."""
    return Plan(np.where(problem.saved & problem.rebuildable & (problem.tensor_bytes > 0), RECOMPUTE, KEEP))


def seed_plans(
    problem: Problem, budget_bytes: int, rng: np.random.Generator, ends_s: float
) -> Iterator[tuple[Plan, int]]:
    """Yield plans that only recompute, and how many were scored for each; `ends_s` is on `time.perf_counter`'s clock."""
    passes = TwoPasses(problem, RECOMPUTE_ONLY.rank)
    search = RECOMPUTE_ONLY.search(passes, budget_bytes, ends_s)  # its `plan` would look for a smallest budget too
    plan = search.best or search.closest
    if plan is not None:
        yield plan, search.evaluations
    if time.perf_counter() < ends_s:
        outcome = Checkpoint().plan(problem, budget_bytes, rng=rng, time_limit_s=None)
        if isinstance(outcome.plan, Plan):
            yield outcome.plan, outcome.evaluations


@dataclass(eq=False)
class PlanSearch:
    """Annealing over what to recompute: under the lowest peak first, then, within the budget, in the least time.

    Cycles of falling temperature, until several in a row find nothing better, or a limit is reached.

    Parameters
    ----------
    best : decisions to begin with, which only keep and recompute
    on_better : told after each cycle that found a better plan, if it fits
    """

    problem: Problem
    budget_bytes: int
    rng: np.random.Generator
    best: DecisionArray
    on_better: Callable[[Plan], object]
    evaluations: int = 0
    _current: DecisionArray = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem
        self._candidates: IntArray = np.flatnonzero(problem.saved & problem.rebuildable & (problem.tensor_bytes > 0))
        self._costs_s = np.where(problem.rebuildable, problem.rebuild_s, 0.0)
        self._peak_bytes = int(simulate_many(problem, self.best[None], math.inf).peak_bytes[0])
        self._best_s = self._cost_s(self.best)
        self._current = self.best.copy()

    @property
    def _rank(self) -> tuple[int, float]:
        return max(self._peak_bytes, self.budget_bytes), self._best_s

    def _cost_s(self, decisions: DecisionArray) -> float:
        return float(self._costs_s[decisions == RECOMPUTE].sum())

    @property
    def fits(self) -> bool:
        """Whether the best plan does."""
        return self._peak_bytes <= self.budget_bytes

    def run(self, ends_s: float, evaluation_limit: float = math.inf, *, until_fits: bool = False) -> None:
        """Search until `ends_s` on the clock of `time.perf_counter`, or until so many plans were scored."""
        cycle = _CYCLE_EVALUATIONS * self._candidates.size
        stale = 0
        while stale < _STALE_CYCLES and cycle and not self._is_over(ends_s, evaluation_limit):
            if until_fits and self.fits:
                return
            before = self._rank
            self._cycle(cycle << stale, ends_s, evaluation_limit)
            better = self._rank < before
            stale = 0 if better else stale + 1
            if better and self.fits:
                self.on_better(Plan(self.best))

    def _is_over(self, ends_s: float, evaluation_limit: float) -> bool:
        return self.evaluations + _ROWS > evaluation_limit or time.perf_counter() >= ends_s

    def _cycle(self, evaluations: int, ends_s: float, evaluation_limit: float) -> None:
        self._current = self.best.copy()
        first = self.evaluations
        while self.evaluations < first + evaluations and not self._is_over(ends_s, evaluation_limit):
            share = (self.evaluations - first) / evaluations
            count = max(1, int((self._current == RECOMPUTE).sum()))
            temperature_s = self._cost_s(self._current) / count * _HOT * (_COLD / _HOT) ** share
            rows = self._neighbours(temperature_s)
            peaks_bytes = simulate_many(self.problem, rows, math.inf).peak_bytes
            self.evaluations += len(rows)
            self._move(rows, peaks_bytes)

    def _neighbours(self, temperature_s: float) -> DecisionArray:
        """Plans that the temperature accepts, if they fit."""
        rng, candidates = self.rng, self._candidates
        chosen = self._current[candidates] == RECOMPUTE
        on, off = candidates[chosen], candidates[~chosen]
        less = on[rng.integers(max(1, on.size), size=(_ROWS, 2))] if on.size else np.zeros((_ROWS, 2), np.int64)
        more = _some_near(off, less[:, 0], rng)
        counts = _MOVES[rng.integers(len(_MOVES), size=_ROWS)]
        if not self.fits:
            counts = counts[:, ::-1]
        rows = np.repeat(self._current[None], _ROWS, axis=0)
        for tensors, n, decision, some in (
            (less, counts[:, 0], KEEP, on.size),
            (more, counts[:, 1], RECOMPUTE, off.size),
        ):
            for place in range(2 if some else 0):
                changed = np.flatnonzero(n > place)
                rows[changed, tensors[changed, place]] = decision
        if not self.fits:
            return rows
        dearer_s = self._costs_of(rows) - self._cost_s(self._current)
        fine = dearer_s <= rng.exponential(temperature_s, _ROWS) if temperature_s > 0 else dearer_s <= 0
        return rows[fine] if fine.any() else rows[:1]

    def _costs_of(self, rows: DecisionArray) -> FloatArray:
        costs_s: FloatArray = (rows == RECOMPUTE) @ self._costs_s
        return costs_s

    def _move(self, rows: DecisionArray, peaks_bytes: IntArray) -> None:
        if not self.fits:
            lowest = int(np.argmin(peaks_bytes))
            if peaks_bytes[lowest] >= self._peak_bytes:
                return
            self._take(rows[lowest], int(peaks_bytes[lowest]))
            return
        fitting = np.flatnonzero(peaks_bytes <= self.budget_bytes)
        if not fitting.size:
            return
        costs_s = self._costs_of(rows[fitting])
        k = int(np.argmin(costs_s)) if self.rng.random() < 0.5 else 0
        self._current = rows[fitting[k]].copy()
        if costs_s[k] < self._best_s:
            self._take(self._current, int(peaks_bytes[fitting[k]]))

    def _take(self, decisions: DecisionArray, peak_bytes: int) -> None:
        self.best, self._current = decisions.copy(), decisions.copy()
        self._peak_bytes, self._best_s = peak_bytes, self._cost_s(decisions)


def _some_near(tensors: IntArray, near: IntArray, rng: np.random.Generator) -> IntArray:
    """(k, 2) of `tensors` for each of k others: half of the pairs at random, half of them close by."""
    if not tensors.size:
        return np.zeros((near.size, 2), np.int64)
    anywhere = rng.integers(tensors.size, size=(near.size, 2))
    close = np.searchsorted(tensors, near)[:, None] + rng.integers(-_NEAR, _NEAR, size=(near.size, 2))
    is_close = rng.random(near.size) < 0.5
    places = np.where(is_close[:, None], np.clip(close, 0, tensors.size - 1), anywhere)
    return tensors[places]
