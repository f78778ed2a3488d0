"""How good the genetic searches are, how many plans they score, and which of their parts does what.

``python benchmarks/genetic_search.py [SECONDS]``: seconds for each search, 10 if not said; the paper gives each 45. Run it with
`make benchmarks`.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import cache

import numpy as np

from slackswap.hardware import load_hardware
from slackswap.models import Problem, peak_bytes
from slackswap.models.event_model.batch import usable_cores
from slackswap.models.plan import DecisionArray
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import registry, run_planner
from slackswap.planners.genetic.operators import Genes, genes_of, random_plans
from slackswap.planners.genetic.planner import GA_RANDOM, GA_SEEDED
from slackswap.planners.genetic.search import Search, Values
from slackswap.planners.lower_bound import lower_bound

CELLS = [(name, share) for share in (0.5, 0.2) for name in ("bert-large", "gpt2-xl", "llama-7b")]
TIGHT = [(name, share) for share in (0.2, 0.1) for name in ("bert-large", "gpt2-xl", "llama-7b")]
SECONDS, PAPER_SECONDS = 10.0, 45.0
FEASIBILITY_PLANS, OPERATOR_PLANS, SEEDS = 20_000, (5_000, 20_000), 3


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else SECONDS
    compare_with_bound(seconds)
    show_what_finds_feasible_plans()
    show_what_operators_do()


def compare_with_bound(seconds: float) -> None:
    print(f"throughput in % of ideal after {seconds:g} s on {usable_cores()} cores")
    for name, share in CELLS:
        problem, budget_bytes = problem_and_budget(name, share)
        bound = percent(problem, lower_bound(problem, budget_bytes).step_s)
        slackswap = percent(problem, run_planner(registry()["slackswap"], problem, budget_bytes).claimed_step_s)
        print(f"  {name:10} at {share:.0%}: bound {bound}, slackswap {slackswap}")
        for planner in (GA_SEEDED, GA_RANDOM):
            outcome = run_planner(planner, problem, budget_bytes, time_limit_s=seconds)
            per_paper = outcome.evaluations / outcome.seconds * PAPER_SECONDS
            curve = ", ".join(
                f"{percent(problem, best_after(outcome.history, s))} at {s:g} s" for s in (1.0, 3.0) if s < seconds
            )
            print(
                f"    {planner.name:9}: {percent(problem, outcome.claimed_step_s)} ({curve}); {outcome.evaluations:,} plans "
                f"in {outcome.seconds:.2f} s, so {per_paper:,.0f} in {PAPER_SECONDS:g} s"
            )


def best_after(history: tuple[object, ...], seconds: float) -> float | None:
    steps_s = [point.step_s for point in history if point.seconds <= seconds]  # type: ignore[attr-defined]
    return min(steps_s, default=None)


def show_what_finds_feasible_plans() -> None:
    print(f"plans scored until the first one fits, of {FEASIBILITY_PLANS:,}: first population x what counts as fitter")
    for name, share in TIGHT:
        cells = [
            f"{start.__name__} x {fitness.__name__}: {first_feasible(name, share, start, fitness)}"
            for start in (uniform, mixed)
            for fitness in (fits_only, missing_bytes, progress)
        ]
        print(f"  {name:10} at {share:.0%}: {'; '.join(cells)}")


def uniform(genes: Genes, count: int, rng: np.random.Generator) -> DecisionArray:
    """Keep, swap and recompute with a third each."""
    table: DecisionArray = rng.integers(0, genes.n_choices, size=(count, genes.tensors.size), dtype=np.int8)
    return table


def mixed(genes: Genes, count: int, rng: np.random.Generator) -> DecisionArray:
    """What ga-random starts from: each plan with shares of its own."""
    return random_plans(genes, count, rng)


def fits_only(values: Values) -> Values:
    return values if values[0] == 0 else (1.0, 0.0)


def missing_bytes(values: Values) -> Values:
    return values if values[0] == 0 else (1.0, values[1])


def progress(values: Values) -> Values:
    return values


def first_feasible(
    name: str,
    share: float,
    start: Callable[[Genes, int, np.random.Generator], DecisionArray],
    fitness: Callable[[Values], Values],
) -> str:
    found = []
    for seed in range(SEEDS):
        search = search_for(name, share, FEASIBILITY_PLANS, seed)
        search.toolbox.register("random_plans", start, search.genes, rng=search.rng)
        search.toolbox.register("evaluate", lambda table, s=search: [fitness(values) for values in s.evaluate(table)])
        search.stops_when_it_fits = True
        search.run([], GA_RANDOM.population)
        found.append(search.history[0].evaluations if search.history else math.inf)
    return " ".join("never" if math.isinf(n) else f"{n:,}" for n in found)


class UntilItFits(Search):
    """A search that is over as soon as any plan fits, if asked to."""

    stops_when_it_fits = False

    @property
    def over(self) -> bool:
        return super().over or (self.stops_when_it_fits and self.best_s < math.inf)


def show_what_operators_do() -> None:
    first, last = OPERATOR_PLANS
    print(f"ga-random without one of its parts: % of ideal after {first:,} and {last:,} plans, mean of {SEEDS} seeds")
    for name, share in (("gpt2-xl", 0.2), ("bert-large", 0.2)):
        problem, _ = problem_and_budget(name, share)
        for part, change in ABLATIONS.items():
            steps_s = np.array([after_plans(name, share, change, seed) for seed in range(SEEDS)])
            means = " ".join(f"{(100 * problem.ideal_s / steps_s[:, k]).mean():.3f}" for k in range(2))
            print(f"  {name:10} at {share:.0%}, {part:22}: {means}")


def after_plans(name: str, share: float, change: Callable[[Search], None], seed: int) -> list[float]:
    search = search_for(name, share, OPERATOR_PLANS[1], seed)
    change(search)
    search.run([], GA_RANDOM.population)
    return [
        min(point.step_s for point in search.history if point.evaluations <= plans + GA_RANDOM.population)
        for plans in OPERATOR_PLANS
    ]


def nothing(search: Search) -> None:
    del search


def crossover(search: Search) -> None:
    search.toolbox.register("mate", lambda mothers, _fathers: mothers.copy())


def mutation(search: Search) -> None:
    search.toolbox.register("mutate", lambda table: table)


def selection(search: Search) -> None:
    search.toolbox.register("choose", lambda n_sorted, count: search.rng.integers(0, n_sorted, size=count))


ABLATIONS: dict[str, Callable[[Search], None]] = {
    "nothing left out": nothing,
    "no crossover": crossover,
    "no mutation": mutation,
    "no tournaments": selection,
}


def search_for(name: str, share: float, evaluation_limit: int, seed: int) -> UntilItFits:
    problem, budget_bytes = problem_and_budget(name, share)
    return UntilItFits(
        problem,
        budget_bytes,
        genes_of(problem),
        np.random.default_rng(seed),
        threads=usable_cores(),
        began_s=time.perf_counter(),
        ends_s=math.inf,
        evaluation_limit=evaluation_limit,
    )


@cache
def problem_and_budget(name: str, share: float) -> tuple[Problem, int]:
    problem = WORKLOADS[name].build(load_hardware("a100-pcie4"))
    return problem, int(share * peak_bytes(problem))


def percent(problem: Problem, step_s: float | None) -> str:
    return "-" if step_s is None else f"{100 * problem.ideal_s / step_s:.3f}"


if __name__ == "__main__":
    main()
