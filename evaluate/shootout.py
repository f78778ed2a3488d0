"""The planner shootout: every planner on every problem and budget, judged by one event model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from slackswap.evaluate.budget import Budget, parse_budget
from slackswap.evaluate.results import Result, Row
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.problem import Problem
from slackswap.planners import Infeasibility, Outcome, Planner, PlannerFunction, Status, as_planner, run_planner


def shootout(
    problems: Iterable[Problem],
    budgets: Sequence[Budget | str],
    planners: Sequence[Planner | PlannerFunction],
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    announce: Callable[[Problem, str, Planner], object] = lambda *_: None,
) -> Iterator[list[Result]]:
    """Yield the results of one (problem, budget) at a time, a result per planner, as soon as they are there.

    An interruption first yields what is finished of the budget under way.

    Parameters
    ----------
    budgets : fractions of the peak or bytes, such as ``"0.5"``, ``"50%"``, ``"8GiB"``
    planners : planner objects, or functions ``(problem, budget_bytes) -> Plan | Schedule | Outcome | None``
    announce : called before each planner runs
    """
    ready = [as_planner(planner) for planner in planners]
    limits = [parse_budget(budget) if isinstance(budget, str) else budget for budget in budgets]
    for problem in problems:
        peak = peak_bytes(problem)
        for budget in limits:
            results: list[Result] = []
            runs = (_run(problem, budget, peak, planner, seed, time_limit_s, announce) for planner in ready)
            try:
                results.extend(runs)
            except KeyboardInterrupt:
                yield with_gaps(results)
                raise
            yield with_gaps(results)


def _run(
    problem: Problem,
    budget: Budget,
    peak: int,
    planner: Planner,
    seed: int,
    time_limit_s: float | None,
    announce: Callable[[Problem, str, Planner], object],
) -> Result:
    announce(problem, budget.text, planner)
    budget_bytes = budget.bytes_of(peak)
    outcome = run_planner(planner, problem, budget_bytes, seed=seed, time_limit_s=time_limit_s)
    return judge(problem, budget_bytes, peak, planner, outcome)


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
        why = Infeasibility(score.failed_step or "", score.missing_bytes)
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


def with_gaps(results: Sequence[Result]) -> list[Result]:
    """Give every row of one (problem, budget) the best lower bound that any planner certified, and its gap to it.

    A claimed bound above a step that the event model measured is none; it stays in its own row, without a gap.
    """
    fastest_s = min((result.row.step_s for result in results if result.row.step_s is not None), default=math.inf)
    claimed_s = [result.row.lower_bound_s for result in results if result.row.lower_bound_s is not None]
    bounds_s = [bound_s for bound_s in claimed_s if bound_s <= fastest_s * (1 + 1e-9)]
    if not bounds_s:
        return list(results)
    bound_s = max(bounds_s)
    return [
        replace(
            result, row=msgspec.structs.replace(result.row, lower_bound_s=bound_s, gap=_gap(result.row.step_s, bound_s))
        )
        for result in results
    ]


def _gap(step_s: float | None, bound_s: float) -> float | None:
    if step_s is None or bound_s <= 0:
        return None
    return step_s / bound_s - 1.0
