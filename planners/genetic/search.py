"""The genetic search itself, in DEAP's terms: individuals, fitness, toolbox, hall of fame, logbook.

It imports DEAP, and is imported where a search begins. DEAP's own operators draw from the global `random`; those registered
here draw from the generator of the run, and nothing else in DEAP that is used here draws at all.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from deap import base, tools

from slackswap.models.event_model.batch import Batch
from slackswap.models.event_model.kernel import columns as at
from slackswap.models.plan import DecisionArray, Plan, decision_array
from slackswap.models.problem import IntArray, Problem
from slackswap.planners.genetic.operators import Genes, cross, mutate, plans_of, random_plans
from slackswap.planners.protocol import Improvement

_HALL_OF_FAME = 20
_FRUITLESS_POPULATIONS = 7
_DIGITS = 12  # of a share of the ideal step: what sums in another order leave behind it is noise
# Some 20 ms of simulation, after which the clock is read: a generation of a large problem takes longer.
_OPERATORS_AND_TENSORS_AT_ONCE = 500_000

Values = tuple[float, float]


class StepFitness(base.Fitness):  # type: ignore[misc]  # DEAP has no types
    """Two numbers to be minimized, the first one first.

    A plan that fits has (0, step in seconds). One that does not has (1 + the share of the operator time that it left undone,
    the bytes that were missing): what gets further is fitter, and of those that get equally far, what lacks fewer bytes.
    """

    weights = (-1.0, -1.0)


@dataclass(slots=True, eq=False)
class Individual:
    """A plan of a population: the decisions of the saved tensors, and their fitness once they have been scored."""

    genes: DecisionArray
    fitness: StepFitness = field(default_factory=StepFitness)

    @property
    def values(self) -> Values:
        """What `StepFitness` describes; a smaller pair is a fitter plan."""
        values: Values = self.fitness.values
        return values


def same_genes(one: Individual, other: Individual) -> bool:
    """Whether two are the same plan; DEAP's default, ``==``, is no answer for arrays."""
    return np.array_equal(one.genes, other.genes)


@dataclass
class Search:
    """One run of the genetic search.

    Parameters
    ----------
    evaluation_limit, ends_s : after so many plans, or at this moment of `time.perf_counter`, it stops
    evaluations : plans that have been scored
    """

    problem: Problem
    budget_bytes: int
    genes: Genes
    rng: np.random.Generator
    threads: int
    began_s: float
    ends_s: float
    evaluation_limit: float
    evaluations: int = 0
    best_s: float = math.inf
    toolbox: Any = field(init=False)
    hall_of_fame: Any = field(init=False)
    logbook: Any = field(init=False)

    def __post_init__(self) -> None:
        self.hall_of_fame = tools.HallOfFame(_HALL_OF_FAME, similar=same_genes)
        self.logbook = tools.Logbook()
        self.toolbox = base.Toolbox()
        self.toolbox.register("random_plans", random_plans, self.genes, rng=self.rng)
        self.toolbox.register("choose", choose, rng=self.rng)
        self.toolbox.register("mate", cross, self.genes, rng=self.rng)
        self.toolbox.register("mutate", mutate, self.genes, rng=self.rng)
        self.toolbox.register("select", survivors)
        self.toolbox.register("evaluate", self.evaluate)
        self.toolbox.register("map", map_table)

    @property
    def over(self) -> bool:
        """Whether a limit is reached, or nothing better exists."""
        return (
            self.evaluations >= self.evaluation_limit
            or self.best_s <= self.problem.ideal_s
            or time.perf_counter() >= self.ends_s
        )

    @property
    def best(self) -> Plan | None:
        """The fastest plan that fits, or None."""
        if not len(self.hall_of_fame) or self.hall_of_fame[0].values[0] > 0:
            return None
        return Plan(plans_of(self.problem, self.genes, self.hall_of_fame[0].genes[np.newaxis])[0])

    @property
    def history(self) -> tuple[Improvement, ...]:
        """Each improvement of the best plan."""
        return tuple(Improvement(**record) for record in self.logbook)

    def run(self, seeds: Sequence[DecisionArray], population: int) -> None:
        """Evolve one population after the other, the first one with the `seeds`, until a limit is reached.

        Each evolves from random plans until it stands still; then the best plans of those before it join, and it goes on until
        it stands still again. Their sizes are multiples of `population` (`restart_sizes`). The search ends by itself when
        seven populations in a row have improved nothing.
        """
        given = self._score([Individual(decisions[self.genes.tensors]) for decisions in seeds], limited=False)
        self.hall_of_fame.update(survivors(given, _HALL_OF_FAME))
        champions: list[Individual] = []
        fruitless, sizes = 0, restart_sizes()
        while not self.over and fruitless < _FRUITLESS_POPULATIONS:
            before_s, size = self.best_s, population * next(sizes)
            newcomers = map(Individual, self.toolbox.random_plans(max(0, size - len(given))))
            grown = self._evolve([*given, *self._score(list(newcomers))], size, n_children=max(population, size // 2))
            if champions:
                grown = self._evolve([*grown, *champions], size, n_children=max(population, size // 2))
            self.hall_of_fame.update(grown)
            given, champions = [], list(self.hall_of_fame)
            fruitless = fruitless + 1 if self.best_s == before_s < math.inf else 0

    def _evolve(self, population: list[Individual], size: int, n_children: int) -> list[Individual]:
        """Run (mu + lambda) generations until none has been an improvement for a while; the fittest stands first."""
        toolbox = self.toolbox
        patience = size * (20 + 0.3 * self.genes.tensors.size)
        population = toolbox.select(population, size)
        waited = 0
        while waited < patience and not self.over:
            parents = np.array([individual.genes for individual in population])
            mothers, fathers = (parents[toolbox.choose(len(parents), n_children)] for _ in range(2))
            children = map(Individual, toolbox.mutate(toolbox.mate(mothers, fathers)))
            best = population[0].values
            population = toolbox.select([*population, *self._score(list(children))], size)
            waited = 0 if population[0].values < best else waited + n_children
        return population

    def _score(self, individuals: list[Individual], *, limited: bool = True) -> list[Individual]:
        """Give individuals their fitness, and return those for which the limits left room."""
        at_once = max(1, _OPERATORS_AND_TENSORS_AT_ONCE // (self.problem.n_operators + self.problem.n_tensors))
        if limited:
            individuals = individuals[: max(0, int(min(len(individuals), self.evaluation_limit - self.evaluations)))]
        for first in range(0, len(individuals), at_once):
            if limited and first and self.over:
                return individuals[:first]
            part = individuals[first : first + at_once]
            scores = self.toolbox.map(self.toolbox.evaluate, part)
            for individual, values in zip(part, scores, strict=True):
                individual.fitness.values = values
            self.evaluations += len(part)
            self._record(min(scores))
        return individuals

    def _record(self, values: Values) -> None:
        if values[0] == 0 and values[1] < self.best_s:
            self.best_s = values[1]
            seconds = time.perf_counter() - self.began_s
            self.logbook.record(seconds=seconds, evaluations=self.evaluations, step_s=self.best_s)

    def evaluate(self, table: DecisionArray) -> list[Values]:
        """Return the values of `StepFitness` for a table of plans, scored on all threads."""
        rows = decision_array(plans_of(self.problem, self.genes, table))
        batch = Batch(self.problem, rows, self.budget_bytes, at.DEFAULT)
        batch.run(self.threads)
        floats, integers = batch.floats, batch.integers
        fits = integers[:, at.FAILED] < 0
        now_s = floats[:, at.NOW]
        waits_s = floats[:, at.RECOMPUTE_S] + floats[:, at.FORWARD_STALL] + floats[:, at.BACKWARD_STALL]
        ideal_s = self.problem.ideal_s
        undone = 1.0 - (now_s - waits_s) / ideal_s if ideal_s > 0 else np.zeros(len(table))
        first = np.where(fits, 0.0, 1.0 + np.round(undone, _DIGITS))
        second = np.where(fits, now_s, integers[:, at.MISSING])
        return list(zip(first.tolist(), second.tolist(), strict=True))


def restart_sizes() -> Iterator[int]:
    """Yield 1, 1, 2, 1, 1, 2, 4, ..., which restarts any search well whose best length is unknown (Luby et al., 1993)."""
    for place in itertools.count(1):
        k = place
        while (k + 1) & k:  # not of the form 2^i - 1, where 2^(i - 1) stands: what follows that repeats the beginning
            k -= (1 << (k.bit_length() - 1)) - 1
        yield (k + 1) // 2


def map_table(function: Callable[[DecisionArray], list[Values]], individuals: Sequence[Individual]) -> list[Values]:
    """Call `function` once for all individuals: what ``toolbox.map`` is here."""
    return function(np.array([individual.genes for individual in individuals]))


def choose(n_sorted: int, count: int, rng: np.random.Generator) -> IntArray:
    """Hold `count` tournaments of two among individuals that stand fittest first; return the places of the winners."""
    winners: IntArray = rng.integers(0, n_sorted, size=(count, 2)).min(axis=1)
    return winners


def survivors(individuals: Iterable[Individual], size: int) -> list[Individual]:
    """Return the fittest, best first, and one only of those with equal fitness, the first: the rest are nearly copies."""
    by_fitness = sorted(individuals, key=_weighted, reverse=True)
    return [next(equal) for _, equal in itertools.islice(itertools.groupby(by_fitness, key=_weighted), size)]


def _weighted(individual: Individual) -> Values:
    """Return DEAP's own order, the fittest highest, as plain numbers: comparing `StepFitness` costs ten times as much."""
    values: Values = individual.fitness.wvalues
    return values
