"""Our own planner: the best numbers at the turn of the passes, then a search that the event model checks."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from slackswap.models.event_model import simulate
from slackswap.models.plan import DecisionArray, Plan
from slackswap.models.problem import Problem
from slackswap.planners.checkpoint import Checkpoint
from slackswap.planners.exhaustive import Exhaustive, count_plans
from slackswap.planners.protocol import Improvement, Outcome, Status, Supports, without_search
from slackswap.planners.refined.columns import Candidates, candidates_of, turns
from slackswap.planners.refined.search import Limits, Search, Searcher, compile_search
from slackswap.planners.refined.start import starts
from slackswap.planners.slackswap import RECOMPUTE_ONLY, SLACKSWAP, SWAP_FIRST, TwoPasses

COUNTABLE = 3**9  # plans: fewer are all simulated
# Cycles without improvement after which a search is over; more for more tensors.
LEAST_STALE_CYCLES, MOST_STALE_CYCLES, CANDIDATES_PER_CYCLE = 5, 24, 3


@dataclass(frozen=True)
class Refined:
    """Starts from the baselines and from the best numbers at the turn, and anneals until nothing stalls and nothing is left.

    Where few plans exist, all of them are simulated. Otherwise: SlackSwap, its ablations, block checkpointing and swapping
    everything, which fits wherever a plan does; then `refined_start`, then `refined_search`. Never slower than the best of
    the plans it starts from.

    Parameters
    ----------
    chains : searches side by side, a thread each; their number is part of what the result depends on
    evaluation_limit : most plans to simulate; the result depends on the seed alone
    default_time_limit_s : where the caller sets none
    """

    name: str = "slackswap-refined"
    description: str = "packs memory at the turn of the passes, then anneals in the event model until nothing stalls"
    policy: str = "default"
    supports: Supports = Supports(randomized=True, anytime=True)
    chains: int = 2
    evaluation_limit: int | None = None
    default_time_limit_s: float = 1.0

    def prepare(self) -> None:
        """Compile the search, or load it; planning then finds it ready."""
        compile_search()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Plan until time is up, the evaluation limit is reached, or cycle after cycle finds nothing better."""
        self.prepare()  # not for two threads at once
        began_s = time.perf_counter()
        if time_limit_s is None:
            time_limit_s = self.default_time_limit_s if self.evaluation_limit is None else math.inf
        decided = without_search(problem, budget_bytes)
        if decided is not None:
            return decided
        limit = math.inf if self.evaluation_limit is None else self.evaluation_limit
        if count_plans(problem) <= min(COUNTABLE, limit):
            return Exhaustive().plan(problem, budget_bytes, rng=rng, time_limit_s=time_limit_s)
        seeds = _Seeds(problem, budget_bytes, began_s, began_s + time_limit_s)
        seeds.try_all()
        if seeds.best is None:
            return Outcome(Status.TIME_LIMIT, evaluations=seeds.evaluations)
        looks = [candidates_of(problem, turn) for turn in turns(problem, budget_bytes)]
        search = Search(
            problem,
            [
                Searcher(problem, looks[i % len(looks)], budget_bytes, generator)
                for i, generator in enumerate(rng.spawn(self.chains))
            ],
            Limits(began_s + time_limit_s, limit, _stale_cycles(looks[0])),
            seeds.best,
            seeds.best_s,
            seeds.evaluations,
            began_s,
            seeds.history,
        )
        if not search.is_over:
            search.run(_first_plans(problem, looks, budget_bytes, seeds.best))
        return _outcome(search, budget_bytes)


def _stale_cycles(candidates: Candidates) -> int:
    return min(MOST_STALE_CYCLES, max(LEAST_STALE_CYCLES, candidates.tensor.size // CANDIDATES_PER_CYCLE))


def _first_plans(
    problem: Problem, looks: list[Candidates], budget_bytes: int, best_seed: DecisionArray
) -> list[DecisionArray]:
    """Plans from the turn, best first, from each look in turn; the best seed is the second."""
    by_look = [starts(problem, candidates, budget_bytes) for candidates in looks]
    plans = [plan for plans in zip_longest(*by_look) for plan in plans if plan is not None]
    return [*plans[:1], best_seed, *plans[1:]]


def _outcome(search: Search, budget_bytes: int) -> Outcome:
    problem, plan = search.problem, Plan(search.best)
    step_s = simulate(problem, plan, budget_bytes).step_s
    ideal = step_s <= problem.ideal_s
    return Outcome(
        Status.OPTIMAL if ideal else Status.FEASIBLE,
        plan,
        lower_bound_s=problem.ideal_s if ideal else None,
        claimed_step_s=step_s,
        evaluations=search.evaluations,
        history=tuple(search.history),
    )


@dataclass(eq=False)
class _Seeds:
    """Plans of others to start from, and the best of them."""

    problem: Problem
    budget_bytes: int
    began_s: float
    ends_s: float
    best: DecisionArray | None = None
    best_s: float = math.inf
    evaluations: int = 1

    def __post_init__(self) -> None:
        self.history: list[Improvement] = []

    def try_all(self) -> None:
        """Try the cheapest first: for a large problem, time can be up before the last."""
        self._take(Plan.swap_everything(self.problem), 1)
        for planner in (SLACKSWAP, SWAP_FIRST, RECOMPUTE_ONLY):
            if time.perf_counter() > self.ends_s:
                return
            passes = TwoPasses(self.problem, planner.rank)
            found = planner.search(passes, self.budget_bytes, self.ends_s)
            self._take(found.best, found.evaluations)
        if time.perf_counter() < self.ends_s:
            outcome = Checkpoint().plan(
                self.problem, self.budget_bytes, rng=np.random.default_rng(0), time_limit_s=None
            )
            self._take(outcome.plan if isinstance(outcome.plan, Plan) else None, outcome.evaluations)

    def _take(self, plan: Plan | None, evaluations: int) -> None:
        self.evaluations += evaluations
        if plan is None:
            return
        score = simulate(self.problem, plan, self.budget_bytes)
        if score.fits and score.step_s < self.best_s:
            self.best, self.best_s = np.array(plan.decisions), score.step_s
            self.history.append(Improvement(time.perf_counter() - self.began_s, self.evaluations, score.step_s))
