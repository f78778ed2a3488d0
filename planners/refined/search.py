"""The refined planner's search over time: cycles of annealing side by side, merged in a fixed order."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from slackswap.hardware.link import Link
from slackswap.models.event_model.batch import usable_cores
from slackswap.models.event_model.buffers import buffers_of
from slackswap.models.plan import DecisionArray
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners.protocol import Improvement
from slackswap.planners.refined.columns import (
    BEST,
    EVALUATIONS,
    STARTED,
    Candidates,
    candidates_of,
    new_chain,
    saved_per_byte_s,
)
from slackswap.planners.refined.kernel import CLEARLY, anneal
from slackswap.planners.refined.start import starts

# Temperatures in ideal steps: a cycle begins warm and ends cold. Once the starts are used up, some begin hot, and hotter after
# each cycle that found nothing.
HOT, WARM, COLD = 1e-4, 5e-5, 5e-7
HOTTER, HOTTEST = 3.0, 5
TEMPERATURES = 6  # per cycle; each cycle that finds nothing makes the next so much longer
DRAWS_PER_CANDIDATE, LEAST_DRAWS = 80, 2_000  # random numbers at one temperature
DRAWS_TIMES_CANDIDATES = 20_000_000  # per round: some 10 ms, so that a time limit is kept
SLACK_PRICE, SPARE_PRICE = 0.15, 0.2  # shares of what slack could save, and of what spare link time could give as slack


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop: at a moment of `time.perf_counter`, after so many plans, or after cycles without improvement."""

    ends_s: float
    evaluations: float
    stale_cycles: int


class Searcher:
    """A chain, with its look at the turn and a generator of its own."""

    def __init__(
        self, problem: Problem, candidates: Candidates, budget_bytes: int, generator: np.random.Generator
    ) -> None:
        self.chain = new_chain(problem, candidates)
        self._problem = problem
        self._candidates = candidates
        self._budget_bytes = budget_bytes
        self._generator = generator
        bytes_per_s = problem.link.d2h_bytes_per_s
        saved_s = saved_per_byte_s(candidates, budget_bytes, bytes_per_s)
        self._price = SLACK_PRICE * saved_s * np.array([1.0, SPARE_PRICE * bytes_per_s])
        n = candidates.tensor.size
        draws = max(LEAST_DRAWS, DRAWS_PER_CANDIDATE * n)
        self.rounds = max(1, round(draws * n / DRAWS_TIMES_CANDIDATES))  # at one temperature
        self._n_draws = draws // self.rounds

    def restart(self, start: DecisionArray) -> None:
        """Go on from another plan."""
        self.chain.choice[:] = start[self._candidates.tensor]
        self.chain.integers[STARTED] = 0

    def prepare(self, temperature: float, hope: float, evaluations: int) -> Callable[[], None]:
        """Return a round to run, on any thread; it does the same work on each. `temperature` is in ideal steps."""
        draws = self._generator.random(self._n_draws)

        def run() -> None:
            buffers = buffers_of(self._problem)  # of the thread that runs it
            anneal(
                buffers.problem,
                buffers.schedule,
                buffers.scratch,
                buffers.no_log,
                self._candidates,
                self._budget_bytes,
                temperature * self._problem.ideal_s,
                hope,
                self._price,
                draws,
                evaluations,
                self.chain,
            )

        return run


@dataclass(eq=False)
class Search:
    """The best plan so far, and how it came about.

    The result depends neither on the number of threads nor on which is faster: each searcher does a fixed amount of work per
    round, and rounds are merged in the order of the searchers.
    """

    problem: Problem
    searchers: Sequence[Searcher]
    limits: Limits
    best: DecisionArray
    best_s: float
    evaluations: int
    began_s: float
    history: list[Improvement] = field(default_factory=list)
    round_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to find, or to spend."""
        spent = self.evaluations >= self.limits.evaluations
        late = time.perf_counter() + self.round_s > self.limits.ends_s
        return spent or late or self.best_s <= self.problem.ideal_s * (1.0 + CLEARLY)

    def run(self, starts: Sequence[DecisionArray]) -> None:
        """Go through cycles: the first ones begin at `starts`, a searcher at each, the others mostly at the best plan."""
        threads = min(len(self.searchers), usable_cores())
        stale, cycle = 0, 0
        with ThreadPoolExecutor(max(1, threads - 1)) as pool:
            run_all = _side_by_side(pool) if threads > 1 else _one_by_one
            while stale < self.limits.stale_cycles and not self.is_over:
                before_s, fresh = self.best_s, cycle * len(self.searchers) < len(starts)
                hottest = [self._begin(i, starts, cycle, stale) for i in range(len(self.searchers))]
                self._cycle(hottest, TEMPERATURES * (1 + stale) * self.searchers[0].rounds, run_all)
                stale = 0 if fresh or self.best_s < before_s else stale + 1
                cycle += 1

    def _begin(self, i: int, starts: Sequence[DecisionArray], cycle: int, stale: int) -> float:
        """Send searcher i to where its cycle begins; return at which temperature."""
        searcher, turn = self.searchers[i], cycle * len(self.searchers) + i
        if turn < len(starts):
            searcher.restart(starts[turn])
            return WARM
        if (i + cycle) % 2 == 1 and cycle % 4 < 2:  # another way from the same start
            searcher.restart(starts[cycle // 4 % len(starts)])
            return WARM
        searcher.restart(self.best)
        return HOT * HOTTER ** (stale % HOTTEST) if (i + cycle) % 2 == 1 else WARM

    def _cycle(self, hottest: list[float], rounds: int, run_all: RunAll) -> None:
        for k in range(rounds):
            if self.is_over:
                return
            left = int(min(self.limits.evaluations - self.evaluations, 1 << 40))
            n = len(self.searchers)
            hope = float(2 * k >= rounds)  # first mend a plan as it is, then change its numbers
            began_s = time.perf_counter()
            run_all(
                [
                    searcher.prepare(hot * (COLD / hot) ** (k / (rounds - 1)), hope, (left + i) // n)
                    for i, (searcher, hot) in enumerate(zip(self.searchers, hottest, strict=True))
                ]
            )
            self.round_s = time.perf_counter() - began_s
            self._merge()

    def _merge(self) -> None:
        chains = [searcher.chain for searcher in self.searchers]
        for chain in chains:
            self.evaluations += int(chain.integers[EVALUATIONS])
            chain.integers[EVALUATIONS] = 0
            if chain.floats[BEST] < self.best_s:
                self.best, self.best_s = chain.best.copy(), float(chain.floats[BEST])
                self.history.append(Improvement(time.perf_counter() - self.began_s, self.evaluations, self.best_s))
        for chain in chains:
            chain.floats[BEST] = self.best_s


RunAll = Callable[[list[Callable[[], None]]], None]


def _one_by_one(rounds: list[Callable[[], None]]) -> None:
    for run in rounds:
        run()


def _side_by_side(pool: ThreadPoolExecutor) -> RunAll:
    def run_all(rounds: list[Callable[[], None]]) -> None:
        others = [pool.submit(run) for run in rounds[1:]]
        rounds[0]()
        for other in others:
            other.result()

    return run_all


@cache
def compile_search() -> None:
    """Run the compiled parts once, on one tensor."""
    operators = [Operator("f", "forward", 1.0), Operator("w", "backward", 1.0, 1), Operator("b", "backward", 1.0)]
    tensors = [Tensor("t", 1, producer=0, readers=(2,), rebuild=Rebuild(1.0))]
    problem = Problem.from_records("warm-up", operators, tensors, Link(1.0, 1.0))
    candidates = candidates_of(problem, problem.n_forward)
    starts(problem, candidates, 1)
    searcher = Searcher(problem, candidates, 1, np.random.default_rng(0))
    searcher.restart(np.zeros(1, np.int8))
    searcher.prepare(1.0, 1.0, 2)()
