"""The planner shootout: every planner on every problem and budget, judged by one event model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from slackswap.evaluate.bounds import BoundFunction, certified_bound_s
from slackswap.evaluate.budget import Budget, parse_budget
from slackswap.evaluate.results import Result, Row
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule
from slackswap.planners import Infeasibility, Outcome, Planner, PlannerFunction, Status, as_planner, run_planner
from slackswap.planners.infeasibility import with_known_facts

TIME_LIMIT_S = 0.5
BOUND = "lower bound"


def shootout(
    problems: Iterable[Problem],
    budgets: Sequence[Budget | str],
    planners: Sequence[Planner | PlannerFunction],
    *,
    seed: int = 0,
    time_limit_s: float | None = TIME_LIMIT_S,
    bound: BoundFunction | None = certified_bound_s,
    announce: Callable[[Problem, str, str], object] = lambda *_: None,
) -> Iterator[list[Result]]:
    """Yield the results of one (problem, budget) at a time, a result per planner, as soon as they are there.

    An interruption first yields what is finished of the budget under way.

    Parameters
    ----------
    budgets : fractions of the peak or bytes, such as ``"0.5"``, ``"50%"``, ``"8GiB"``
    planners : planner objects, or functions ``(problem, budget_bytes) -> Plan | Schedule | Outcome | None``
    time_limit_s : for each plan of a planner that searches; None leaves it to the planner
    bound : what the gaps are measured against, in seconds; None computes no bound
    announce : called with problem, budget and what begins: the name of a planner, or `BOUND`
    """
    ready = [as_planner(planner) for planner in planners]
    limits = [parse_budget(budget) if isinstance(budget, str) else budget for budget in budgets]
    for problem in problems:
        for budget in limits:
            yield from _Cell(problem, budget, seed, time_limit_s, announce).results(ready, bound)


@dataclass(frozen=True)
class _Cell:
    """One problem and budget."""

    problem: Problem
    budget: Budget
    seed: int
    time_limit_s: float | None
    announce: Callable[[Problem, str, str], object]

    @cached_property
    def peak_bytes(self) -> int:
        return peak_bytes(self.problem)

    @property
    def budget_bytes(self) -> int:
        return self.budget.bytes_of(self.peak_bytes)

    def results(self, planners: Sequence[Planner], bound: BoundFunction | None) -> Iterator[list[Result]]:
        """Yield one list: of every planner, or of those that are done when an interruption comes, which goes on."""
        bound_s = None if bound is None else self._bound_s(bound)
        results: list[Result] = []
        try:
            results.extend(map(self._run, planners))
        except KeyboardInterrupt:
            yield with_gaps(results, bound_s)
            raise
        yield with_gaps(results, bound_s)

    def _bound_s(self, bound: BoundFunction) -> float | None:
        self.announce(self.problem, self.budget.text, BOUND)
        return bound(self.problem, self.budget_bytes)

    def _run(self, planner: Planner) -> Result:
        self.announce(self.problem, self.budget.text, planner.name)
        outcome = run_planner(planner, self.problem, self.budget_bytes, seed=self.seed, time_limit_s=self.time_limit_s)
        return judge(self.problem, self.budget_bytes, self.peak_bytes, planner, outcome)


def judge(problem: Problem, budget_bytes: int, peak: int, planner: Planner, outcome: Outcome) -> Result:
    """Score an outcome: every number of its row but the planning effort comes from the event model."""
    row = Row(
        problem=problem.name,
        budget_bytes=budget_bytes,
        budget_fraction=budget_bytes / peak if peak else 0.0,
        planner=planner.name,
        status=outcome.status.value,
        ideal_s=problem.ideal_s,
        planning_s=outcome.seconds,
        evaluations=outcome.evaluations,
        lower_bound_s=outcome.lower_bound_s,
        seed=outcome.seed,
    )
    if outcome.plan is None:
        return Result(_without_plan(row), problem, outcome, None, outcome.infeasibility)
    try:
        score = simulate(problem, outcome.plan, budget_bytes, policy=planner.policy)
    except InputError as error:
        raise error.within(f"plan of '{planner.name}'") from None
    if not score.fits:
        seen = Infeasibility(score.failed_step or "", score.missing_bytes)
        why = with_known_facts(problem, budget_bytes, planner.supports.space, planner.policy, seen)
        return Result(_without_plan(row), problem, outcome, score, why)
    measured = {column: getattr(score, column) for column in MEASURED}
    if outcome.status is Status.INFEASIBLE:
        measured["status"] = Status.FEASIBLE.value
    return Result(msgspec.structs.replace(row, **measured), problem, outcome, score, None)


def _without_plan(row: Row) -> Row:
    """Planners claim, the event model judges: without a plan that fits, nothing is feasible or optimal."""
    claimed = row.status in (Status.FEASIBLE.value, Status.OPTIMAL.value)
    return msgspec.structs.replace(row, status=Status.INFEASIBLE.value) if claimed else row


MEASURED = (
    *("step_s", "throughput", "recompute_s", "forward_stall_s", "backward_stall_s", "d2h_bytes", "h2d_bytes"),
    *("peak_bytes", "keep_bytes", "swap_bytes", "recompute_bytes"),
)


def with_gaps(results: Sequence[Result], bound_s: float | None = None) -> list[Result]:
    """Give every row of one (problem, budget) the best certified lower bound, and its gap to it.

    A bound is one of plans, a decision per tensor. A schedule that no plan lowers to may rebuild a tensor twice, and be
    faster: it gets neither, unless the bound is the ideal step. A bound above the step that the event model measured of a
    plan is none; a planner's claim of such a bound stays in its own row, without a gap.

    Parameters
    ----------
    bound_s : of `BoundFunction`; planners may certify better ones
    """
    plans = [result.row.step_s for result in results if not isinstance(result.outcome.plan, Schedule)]
    fastest_s = min((step_s for step_s in plans if step_s is not None), default=math.inf)
    claimed_s = [bound_s, *(result.row.lower_bound_s for result in results)]
    bounds_s = [one for one in claimed_s if one is not None and math.isfinite(one) and one <= fastest_s * (1 + 1e-9)]
    if not bounds_s:
        return list(results)
    return [_measured_against(max(bounds_s), result) for result in results]


def _measured_against(bound_s: float, result: Result) -> Result:
    row = result.row
    if isinstance(result.outcome.plan, Schedule) and bound_s > row.ideal_s:
        return result
    gap = None if row.step_s is None or bound_s <= 0 else row.step_s / bound_s - 1.0
    return replace(result, row=msgspec.structs.replace(row, lower_bound_s=bound_s, gap=gap))
