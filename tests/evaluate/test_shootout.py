"""The shootout: rows by problem, budget and planner, all judged by the event model."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass

import numpy as np
import pytest
from instances import MB, MS, chain, two_layers, zero_sizes

from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import TIME_LIMIT_S, shootout
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners import Outcome, Planner, Status, Supports, find_planners, registry


@dataclass(frozen=True)
class Claims:
    """A planner that returns the outcome it was given."""

    outcome: Outcome
    name: str = "claims"
    description: str = "returns a given outcome"
    policy: str = "default"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del problem, budget_bytes, rng, time_limit_s
        return self.outcome


def one(planner: Planner, problem: Problem, budget: str) -> Result:
    (result,) = next(shootout([problem], [budget], [planner], bound=None))
    return result


def test_the_entry_function_reads_as_a_parts_list() -> None:
    assert len(inspect.getsource(shootout).splitlines()) <= 40


def test_a_row_per_problem_budget_and_planner_in_order() -> None:
    planners = find_planners("keep,checkpoint")
    cells = list(shootout([two_layers(), chain(6)], ["100%", parse_budget("5MB")], planners))
    assert [[(r.row.problem, r.row.budget_bytes, r.row.planner) for r in cell] for cell in cells] == [
        [("two layers", 30 * MB, "keep"), ("two layers", 30 * MB, "checkpoint")],
        [("two layers", 5 * MB, "keep"), ("two layers", 5 * MB, "checkpoint")],
        [("chain of 6", 6 * MB, "keep"), ("chain of 6", 6 * MB, "checkpoint")],
        [("chain of 6", 5 * MB, "keep"), ("chain of 6", 5 * MB, "checkpoint")],
    ]
    assert cells[3][0].row.budget_fraction == pytest.approx(5 / 6)


def test_numbers_of_a_row() -> None:
    # chain(6) in 4 MB without swaps: a1 and a2 are recomputed, 1 ms each, beside an ideal step of 18 ms.
    result = one(registry()["recompute-only"], chain(6), "4MB")
    row = result.row
    assert (row.status, row.budget_bytes) == ("feasible", 4 * MB)
    assert row.step_s == pytest.approx(20 * MS)
    assert row.ideal_s == pytest.approx(18 * MS)
    assert row.throughput == pytest.approx(0.9)
    assert row.recompute_s == pytest.approx(2 * MS)
    assert (row.forward_stall_s, row.backward_stall_s) == (0, 0)
    assert (row.d2h_bytes, row.h2d_bytes) == (0, 0)
    assert (row.keep_bytes, row.swap_bytes, row.recompute_bytes) == (4 * MB, 0, 2 * MB)
    assert row.peak_bytes == 4 * MB
    assert row.evaluations == result.outcome.evaluations > 0
    assert row.planning_s == result.outcome.seconds > 0
    assert result.infeasibility is None


def test_results_come_as_soon_as_they_are_there() -> None:
    begun: list[str] = []
    cells = shootout(
        [chain(6)],
        ["50%", "100%"],
        find_planners("keep,checkpoint"),
        announce=lambda problem, budget, what: begun.append(f"{problem.name} {budget} {what}"),
    )
    assert begun == []
    next(cells)
    assert begun == ["chain of 6 50% lower bound", "chain of 6 50% keep", "chain of 6 50% checkpoint"]
    next(cells)
    assert begun[3:] == ["chain of 6 100% lower bound", "chain of 6 100% keep", "chain of 6 100% checkpoint"]


def test_a_wrong_budget_or_planner_is_refused_before_anything_runs() -> None:
    begun: list[str] = []
    for budgets, planners in ((["50%", "x"], find_planners("keep")), (["50%"], [*find_planners("keep"), 3])):
        with pytest.raises(InputError):
            next(
                shootout(
                    [chain(6)],
                    budgets,
                    planners,  # type: ignore[arg-type]  # the mistake under test
                    announce=lambda _problem, _budget, what: begun.append(what),
                )
            )
    assert begun == []


def test_functions_take_part() -> None:
    def recompute_a1(problem: Problem, _budget_bytes: int) -> Plan:
        return Plan.from_letters("KR" + "K" * (problem.n_tensors - 2))

    (result,) = next(shootout([chain(6)], ["5MB"], [recompute_a1]))
    assert result.row.planner == "recompute-a1"
    assert result.row.step_s == pytest.approx(19 * MS)


def test_planners_claim_and_the_event_model_judges() -> None:
    # Keeping everything needs 30 MB; the planner says that it fits, and is fast.
    liar = Claims(Outcome(Status.OPTIMAL, Plan.from_letters("KK"), claimed_step_s=1 * MS, lower_bound_s=1 * MS))
    result = one(liar, two_layers(), "29MB")
    assert result.row.status == "infeasible"
    assert result.row.step_s is None
    assert result.row.throughput is None
    assert result.infeasibility is not None
    assert (result.infeasibility.operator, result.infeasibility.missing_bytes) == ("f1", 1 * MB)
    assert result.outcome.claimed_step_s == 1 * MS  # the claim stands beside it
    # Where it fits, the step is the event model's 90 ms.
    assert one(liar, two_layers(), "30MB").row.step_s == pytest.approx(90 * MS)


def test_a_plan_is_judged_under_its_planners_policy() -> None:
    plan = Plan.from_letters("SKK")
    slow = chain(3).with_link(Link(2.5e8, 1e9, duplex_factor=1.0, latency_s=0.0))
    free = one(Claims(Outcome(Status.FEASIBLE, plan)), slow, "9MB").row.step_s
    held = one(Claims(Outcome(Status.FEASIBLE, plan), policy="barriers"), slow, "9MB").row.step_s
    # a0's copy takes 4 ms and overlaps f1; with barriers f2 waits for it, 3 ms, and b0 for the 1 ms of its way back.
    assert free == pytest.approx(9 * MS)
    assert held == pytest.approx(13 * MS)


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome(Status.FEASIBLE),
        Outcome(Status.OPTIMAL),
        Outcome(Status.INFEASIBLE, Plan.from_letters("KK")),
        Outcome(Status.TIME_LIMIT),
        Outcome(Status.UNAVAILABLE),
    ],
    ids=lambda outcome: f"{outcome.status} {'with' if outcome.plan else 'without'} a plan",
)
def test_status_says_whether_there_is_a_plan(outcome: Outcome) -> None:
    # Whatever a planner claims, in the table a status of feasible or optimal stands beside a step, and only there.
    row = one(Claims(outcome), two_layers(), "100%").row
    assert (row.step_s is not None) == (row.status in ("feasible", "optimal"))


# Bounds and gaps


def claim(lower_bound_s: float, name: str) -> Claims:
    return Claims(Outcome(Status.TIME_LIMIT, lower_bound_s=lower_bound_s), name=name)


def test_every_row_is_measured_against_the_bound() -> None:
    asked: list[tuple[str, int]] = []

    def bound(problem: Problem, budget_bytes: int) -> float:
        asked.append((problem.name, budget_bytes))
        return 16 * MS

    # Without swaps chain(6) takes 20 ms in 4 MB: 20 / 16 - 1 = 25%. It is computed once for all planners.
    planners = find_planners("keep,recompute-only,checkpoint")
    cell = next(shootout([chain(6)], ["4MB"], planners, bound=bound))
    assert asked == [("chain of 6", 4 * MB)]
    assert [result.row.lower_bound_s for result in cell] == [16 * MS] * 3
    assert [result.row.gap for result in cell[:2]] == [None, pytest.approx(0.25)]


def test_the_bound_is_certified_by_default() -> None:
    cell = next(shootout([chain(6)], ["4MB"], find_planners("slackswap,recompute-only")))
    (bound_s,) = {result.row.lower_bound_s for result in cell}
    assert bound_s is not None
    assert bound_s >= 18 * MS
    for result in cell:
        assert result.row.step_s is not None
        assert result.row.gap == pytest.approx(result.row.step_s / bound_s - 1)
        assert result.row.step_s >= bound_s


@pytest.mark.parametrize("nothing", [None, math.inf])
def test_where_nothing_is_proved_or_no_plan_fits_there_is_no_gap(nothing: float | None) -> None:
    cell = next(shootout([chain(6)], ["4MB"], find_planners("keep,recompute-only"), bound=lambda *_: nothing))
    assert [(result.row.lower_bound_s, result.row.gap) for result in cell] == [(None, None)] * 2


def test_the_best_of_all_bounds_counts() -> None:
    # Of bounds of 14, 15 and 16 ms the last says most.
    planners: list[Planner] = [claim(15 * MS, "loose"), registry()["recompute-only"], claim(16 * MS, "tight")]
    cell = next(shootout([chain(6)], ["4MB"], planners, bound=lambda *_: 14 * MS))
    assert [result.row.lower_bound_s for result in cell] == [16 * MS] * 3
    assert [result.row.gap for result in cell] == [None, pytest.approx(0.25), None]
    # Each outcome keeps what its planner said.
    assert [result.outcome.lower_bound_s for result in cell] == [15 * MS, None, 16 * MS]


def test_bounds_belong_to_one_problem_and_budget() -> None:
    # `keep` certifies the ideal step at the peak; at 4 MB nobody certifies anything.
    at_peak, below = shootout([chain(6)], ["100%", "4MB"], find_planners("keep,recompute-only"), bound=None)
    assert [result.row.gap for result in at_peak] == [0, 0]
    assert [result.row.gap for result in below] == [None, None]


def test_a_bound_above_a_measured_step_is_none() -> None:
    # `keep` takes the ideal 18 ms at the peak and certifies them; whoever claims that nothing beats 20 ms is wrong.
    liar = Claims(Outcome(Status.INFEASIBLE, lower_bound_s=20 * MS))
    for bound in (None, lambda *_: 21 * MS):
        honest, lying = next(shootout([chain(6)], ["100%"], [*find_planners("keep"), liar], bound=bound))
        assert honest.row.lower_bound_s == lying.row.lower_bound_s == pytest.approx(18 * MS)
        assert honest.row.gap == 0


def test_a_schedule_is_not_measured_against_a_bound_of_plans() -> None:
    # A schedule may rebuild a tensor twice, which no plan does, and be faster than all of them.
    problem = chain(6)
    schedule = Claims(Outcome(Status.FEASIBLE, lower(problem, Plan.from_letters("KRRKKK"))), name="schedule")
    planners: list[Planner] = [schedule, registry()["recompute-only"]]
    free, plan = next(shootout([problem], ["4MB"], planners, bound=lambda *_: 19 * MS))
    assert free.row.step_s == plan.row.step_s == pytest.approx(20 * MS)
    assert (free.row.lower_bound_s, free.row.gap) == (None, None)
    assert plan.row.gap == pytest.approx(20 / 19 - 1)
    # It does not refute the bound either. What holds for anything that runs, the ideal step, holds for it too.
    free, plan = next(shootout([problem], ["4MB"], [schedule, claim(21 * MS, "none")], bound=lambda *_: 20.5 * MS))
    assert plan.row.lower_bound_s == 21 * MS
    free, plan = next(shootout([problem], ["4MB"], planners, bound=lambda *_: problem.ideal_s))
    assert free.row.gap == plan.row.gap == pytest.approx(2 / 18)


def test_no_gap_over_a_bound_of_nothing() -> None:
    result = one(Claims(Outcome(Status.OPTIMAL, Plan.from_letters("KK"), 0.0)), zero_sizes(), "100%")
    assert result.row.lower_bound_s == 0.0
    assert result.row.gap is None


def test_an_interruption_keeps_the_gaps_of_what_is_finished() -> None:
    def interrupted(_problem: Problem, _budget_bytes: int) -> None:
        raise KeyboardInterrupt

    cells = shootout([chain(6)], ["4MB"], [registry()["recompute-only"], interrupted], bound=lambda *_: 16 * MS)
    (finished,) = next(cells)
    assert finished.row.gap == pytest.approx(0.25)
    with pytest.raises(KeyboardInterrupt):
        next(cells)


# What no plan fits


def test_a_plan_that_does_not_fit_is_explained_like_no_plan() -> None:
    claims = Claims(Outcome(Status.FEASIBLE, Plan.keep_everything(chain(6))))
    for result in (one(claims, chain(6), "1MB"), one(Claims(Outcome(Status.INFEASIBLE)), chain(6), "1MB")):
        assert result.infeasibility is not None
        assert (result.infeasibility.operator, result.infeasibility.missing_bytes) == ("f1", 1 * MB)
        assert result.infeasibility.smallest_known_bytes == 2 * MB
        assert result.infeasibility.largest_infeasible_bytes == 2 * MB - 1


def test_seed_and_time_limit_reach_every_planner() -> None:
    seen: list[tuple[float, float | None]] = []

    @dataclass(frozen=True)
    class Draws(Claims):
        supports: Supports = Supports(randomized=True)

        def plan(
            self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
        ) -> Outcome:
            seen.append((float(rng.random()), time_limit_s))
            return super().plan(problem, budget_bytes, rng=rng, time_limit_s=time_limit_s)

    draws = Draws(Outcome(Status.TIME_LIMIT))
    (cell,) = shootout([chain(6)], ["50%"], [draws, draws], seed=3, time_limit_s=1.5)
    assert seen == [(np.random.default_rng(3).random(), 1.5)] * 2
    # So that a shootout of everything ends soon; None leaves it to each planner.
    seen.clear()
    next(shootout([chain(6)], ["50%"], [draws], bound=None))
    next(shootout([chain(6)], ["50%"], [draws], bound=None, time_limit_s=None))
    assert [limit_s for _, limit_s in seen] == [TIME_LIMIT_S, None]
    assert [result.row.seed for result in cell] == [3, 3]


def test_budget_fraction_of_a_problem_without_bytes() -> None:

    problem = Problem.from_records("nothing", zero_sizes().operators(), [], zero_sizes().link)
    (result,) = next(shootout([problem], ["50%"], find_planners("keep")))
    assert result.row.budget_fraction == 0.0
    assert result.row.status == "optimal"
