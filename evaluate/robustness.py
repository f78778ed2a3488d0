"""How much of a plan's throughput is left where the times that it was made from are off.

A plan stays as it is, and is lowered and scored by the event model, under its budget and its planner's policy, on problems
whose times and bandwidths differ from those that it was made for. Sizes, order and the link's latency stay. With an error e,
a factor is ``(1 + e) ** u`` with u uniform in [-1, 1): off by at most e in either direction, as often too slow as too fast,
and exactly 1 where e is 0. An iteration draws one factor for the bandwidth of the link, one for all operators, and one of
its own for each operator, all independent; a rebuild follows the factors of the operator that first produced its tensor.

Iteration i of a seed draws the same u for every planner, budget, guard and error: comparisons are paired.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec
import numpy as np

from slackswap.evaluate.budget import Budget, parse_budget
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import TIME_LIMIT_S, judge
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import FloatArray, Problem, read_only
from slackswap.models.schedule import Schedule
from slackswap.planners import Planner, PlannerFunction, as_planner, registry, run_planner
from slackswap.planners.slackswap import SLACKSWAP, SlackSwap

ERRORS = (0.05, 0.1, 0.2)
SAMPLES = 100
# What is off: the bandwidth of the link, all operators by one factor, each operator by a factor of its own.
LINK, COMPUTE, OPERATORS = "link", "compute", "operators"
PARTS = (LINK, COMPUTE, OPERATORS)


@dataclass(frozen=True, eq=False)
class Draw:
    """What one iteration draws for a problem: numbers in [-1, 1), from which factors follow once an error is given.

    Attributes
    ----------
    link, compute : for the bandwidth of both directions, and for all operators
    operators : (n,) for each operator
    """

    link: float
    compute: float
    operators: FloatArray

    @classmethod
    def of(cls, problem: Problem, seed: int, iteration: int) -> Draw:
        """Draw iteration `iteration` of a seed: the same whatever number of them is drawn."""
        rng = np.random.default_rng([seed, iteration])
        link, compute = rng.uniform(-1.0, 1.0, 2)
        return cls(float(link), float(compute), rng.uniform(-1.0, 1.0, problem.n_operators))

    def applied(self, problem: Problem, error: float, parts: Sequence[str] = PARTS) -> Problem:
        """Return the problem with the `parts` of it off by at most `error`, a fraction."""
        exponent = self.operators if OPERATORS in parts else np.zeros(problem.n_operators)
        exponent = exponent + self.compute if COMPUTE in parts else exponent
        link = (1.0 + error) ** self.link if LINK in parts else 1.0
        return perturbed(problem, (1.0 + error) ** exponent, link)


def perturbed(problem: Problem, operator_factors: FloatArray | float, link_factor: float = 1.0) -> Problem:
    """Return a problem with other operator times and bandwidths.

    Parameters
    ----------
    operator_factors : (n,) factors of the operator times, or one for all; the rebuild of a tensor follows its producer
    link_factor : factor of the bandwidth of both directions
    """
    link, factors = problem.link, np.broadcast_to(operator_factors, problem.n_operators)
    return replace(
        problem,
        # Read-only as the originals: the engine is compiled for no other.
        duration_s=read_only(problem.duration_s * factors),
        rebuild_s=read_only(problem.rebuild_s * factors[problem.producer]),
        link=replace(
            link,
            d2h_bytes_per_s=link.d2h_bytes_per_s * link_factor,
            h2d_bytes_per_s=link.h2d_bytes_per_s * link_factor,
        ),
    )


class RobustnessRow(msgspec.Struct, frozen=True, kw_only=True):
    """One plan on one problem and budget, replayed under one error. None where there is no plan, or where it never fits.

    Attributes
    ----------
    guard : of a row of the guard sweep, the guard g that was planned with
    replanned : whether every iteration was planned anew, with the times that it has
    parts : what is off, joined by ``+``
    ideal_s, step_s, throughput : of the problem as it was planned for
    not_fitting : iterations that the plan does not fit; no other column counts them
    median_throughput, mean_throughput, worst_throughput, best_throughput : ideal step over step, both of the iteration
    median_of_planned_ideal, worst_of_planned_ideal : ideal step as it was planned for, over the iteration's step
    throughputs : `throughput` of each iteration, in order; None where the plan does not fit
    """

    problem: str
    budget_bytes: int
    budget_fraction: float
    planner: str
    guard: float | None = None
    replanned: bool = False
    status: str
    parts: str
    error: float
    samples: int
    seed: int
    ideal_s: float
    step_s: float | None
    throughput: float | None
    not_fitting: int | None = None
    median_throughput: float | None = None
    mean_throughput: float | None = None
    worst_throughput: float | None = None
    best_throughput: float | None = None
    median_of_planned_ideal: float | None = None
    worst_of_planned_ideal: float | None = None
    throughputs: tuple[float | None, ...] = ()


COLUMNS = tuple(column for column in RobustnessRow.__struct_fields__ if column != "throughputs")


@dataclass(frozen=True)
class Replayed:
    """One planner on one problem and budget: what it planned, and a row for each error."""

    result: Result
    rows: tuple[RobustnessRow, ...]


@dataclass(frozen=True)
class Conditions:
    """Under what plans are replayed.

    Attributes
    ----------
    errors : fractions from 0
    samples : iterations for each error
    seed : of the iterations, and of randomized planners
    parts : what is off, of `PARTS`

    Raises
    ------
    InputError
        A value is out of range.
    """

    errors: Sequence[float] = ERRORS
    samples: int = SAMPLES
    seed: int = 0
    parts: Sequence[str] = PARTS

    def __post_init__(self) -> None:
        for error in self.errors:
            if not (math.isfinite(error) and 0 <= error <= 1):
                raise InputError(f"an error is a fraction from 0 to 1, not {error}", place="errors")
        if not self.errors:
            raise InputError("names no error", place="errors")
        if self.samples < 1:
            raise InputError(f"one iteration or more is replayed, not {self.samples}", place="samples")
        wrong = [part for part in self.parts if part not in PARTS]
        if wrong or not self.parts:
            named = f"'{wrong[0]}' is nothing that can be off" if wrong else "names nothing that is off"
            raise InputError(f"{named}: use {', '.join(PARTS)}", place="parts")


def robustness(
    problems: Iterable[Problem],
    budgets: Sequence[Budget | str],
    planners: Sequence[Planner | PlannerFunction],
    conditions: Conditions | None = None,
    *,
    guards: Sequence[float] = (),
    replanners: Sequence[Planner | PlannerFunction] = (),
    time_limit_s: float | None = TIME_LIMIT_S,
    announce: Callable[[Problem, str, str], object] = lambda *_: None,
) -> Iterator[Replayed]:
    """Yield each planner on each problem and budget, as soon as its plan has been replayed.

    Parameters
    ----------
    budgets : fractions of the peak or bytes, such as ``"0.5"``, ``"50%"``, ``"8GiB"``
    planners : planner objects, or functions ``(problem, budget_bytes) -> Plan | Schedule | Outcome | None``
    guards : guards g that `slackswap` plans with besides, fractions of the forward time from 0
    replanners : planners that besides plan each iteration anew: what it would be worth to know the times
    time_limit_s : for each plan of a planner that searches; None leaves it to the planner
    announce : called with problem, budget and the planner that begins

    Raises
    ------
    InputError
        A guard is out of range, or a planner returns what is no plan of the problem.
    """
    limits = [parse_budget(budget) if isinstance(budget, str) else budget for budget in budgets]
    fixed = [*map(as_planner, planners), *map(guarded_slackswap, guards)]
    anew = [as_planner(planner) for planner in replanners]
    for problem in problems:
        for budget in limits:
            cell = _Cell(problem, budget, conditions or Conditions(), time_limit_s)
            for planner in fixed:
                announce(problem, budget.text, planner.name)
                yield cell.replayed(planner)
            for planner in anew:
                announce(problem, budget.text, f"{planner.name}, replanned")
                yield cell.replanned(planner)


@dataclass(frozen=True)
class _Cell:
    """One problem and budget."""

    problem: Problem
    budget: Budget
    conditions: Conditions
    time_limit_s: float | None

    @cached_property
    def peak_bytes(self) -> int:
        return peak_bytes(self.problem)

    @cached_property
    def budget_bytes(self) -> int:
        return self.budget.bytes_of(self.peak_bytes)

    def replayed(self, planner: Planner) -> Replayed:
        """Plan once, and replay that plan."""
        result = self._planned(planner)
        plan = None if result.row.step_s is None else result.outcome.plan
        return Replayed(result, self._rows(planner, result, lambda _: plan))

    def replanned(self, planner: Planner) -> Replayed:
        """Plan each iteration anew."""

        def plan_of(problem: Problem) -> Plan | Schedule | None:
            rng = np.random.default_rng(self.conditions.seed)
            return planner.plan(problem, self.budget_bytes, rng=rng, time_limit_s=self.time_limit_s).plan

        result = self._planned(planner)
        rows = self._rows(planner, result, plan_of)
        return Replayed(result, tuple(msgspec.structs.replace(row, replanned=True) for row in rows))

    def _planned(self, planner: Planner) -> Result:
        outcome = run_planner(
            planner, self.problem, self.budget_bytes, seed=self.conditions.seed, time_limit_s=self.time_limit_s
        )
        return judge(self.problem, self.budget_bytes, self.peak_bytes, planner, outcome)

    def _rows(
        self, planner: Planner, result: Result, plan_of: Callable[[Problem], Plan | Schedule | None]
    ) -> tuple[RobustnessRow, ...]:
        row = result.row
        rows = []
        for error in self.conditions.errors:
            bare = RobustnessRow(
                **{name: getattr(row, name) for name in _FROM_RESULT},
                # Only of what the guards were swept with: registered planners have the paper's.
                guard=planner.guard if isinstance(planner, SlackSwap) and planner.name not in registry() else None,
                parts="+".join(part for part in PARTS if part in self.conditions.parts),
                error=error,
                samples=self.conditions.samples,
                seed=self.conditions.seed,
            )
            if row.step_s is not None:
                bare = with_iterations(bare, *self._iterations(planner.policy, error, plan_of))
            rows.append(bare)
        return tuple(rows)

    def _iterations(
        self, policy: str, error: float, plan_of: Callable[[Problem], Plan | Schedule | None]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the step of each iteration, infinite where the plan does not fit, and the ideal step."""
        conditions = self.conditions
        steps_s, ideals_s = np.full(conditions.samples, math.inf), np.zeros(conditions.samples)
        for i in range(conditions.samples):
            draw = Draw.of(self.problem, conditions.seed, i)
            problem = draw.applied(self.problem, error, conditions.parts)
            ideals_s[i] = problem.ideal_s
            plan = plan_of(problem)
            score = None if plan is None else simulate(problem, plan, self.budget_bytes, policy=policy)
            if score is not None and score.fits:
                steps_s[i] = score.step_s
        return steps_s, ideals_s


_FROM_RESULT = (
    *("problem", "budget_bytes", "budget_fraction", "planner", "status"),
    *("ideal_s", "step_s", "throughput"),
)


def with_iterations(row: RobustnessRow, steps_s: FloatArray, ideals_s: FloatArray) -> RobustnessRow:
    """Return a row with the statistics of its iterations.

    Parameters
    ----------
    steps_s : (k,) step of each; infinite where the plan does not fit, which is counted, and goes into nothing else
    ideals_s : (k,) ideal step of each
    """
    fits = np.isfinite(steps_s)
    of_own, of_planned = _ratios(ideals_s[fits], steps_s[fits]), _ratios(row.ideal_s, steps_s[fits])
    throughputs = np.full(steps_s.size, math.nan)
    throughputs[fits] = of_own
    counted = msgspec.structs.replace(
        row,
        not_fitting=int(steps_s.size - fits.sum()),
        throughputs=tuple(None if math.isnan(value) else value for value in throughputs.tolist()),
    )
    if not fits.any():
        return counted
    return msgspec.structs.replace(
        counted,
        median_throughput=float(np.median(of_own)),
        mean_throughput=float(of_own.mean()),
        worst_throughput=float(of_own.min()),
        best_throughput=float(of_own.max()),
        median_of_planned_ideal=float(np.median(of_planned)),
        worst_of_planned_ideal=float(of_planned.min()),
    )


def _ratios(ideals_s: FloatArray | float, steps_s: FloatArray) -> FloatArray:
    """Return ideal over step; 1 where a step takes no time, as `Score.throughput` has it."""
    ideals_s = np.broadcast_to(ideals_s, steps_s.shape)
    return np.divide(ideals_s, steps_s, out=np.ones(steps_s.shape), where=steps_s > 0)


def guarded_slackswap(guard: float) -> SlackSwap:
    """Return SlackSwap with another guard g, in its name.

    Raises
    ------
    InputError
        The guard is out of range.
    """
    return replace(
        SLACKSWAP,
        name=f"{SLACKSWAP.name} g={100 * guard:g}%",
        description="the paper's two-pass planner with another guard",
        guard=guard,
    )
