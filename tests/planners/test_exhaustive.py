"""The exhaustive search, on chains small enough to play by hand: sizes in MB, times in ms.

A chain of 4 at 3 MB: f0 f1 f2 f3 of 1 ms, b3 b2 b1 b0 of 2 ms, a tensor of 1 MB each, so the ideal step takes 12 ms. At 3 ms,
when f3 begins, a0, a1 and a2 are there and a3 needs room; f3 reads a2, so a0 or a1 has to go. a0 has no rebuild.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, columns, one_operator, problems, two_layers, zero_sizes

from slackswap.hardware.link import Link
from slackswap.models.event_model import peak_bytes, simulate, simulate_many
from slackswap.models.plan import DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Tensor
from slackswap.planners import Outcome, Status, run_planner
from slackswap.planners.exhaustive import Exhaustive, all_plans, count_plans, plans_between
from slackswap.planners.memory_floor import plan_floor_bytes

SLOW_LINK = Link(1e8, 1e8, duplex_factor=1.0, latency_s=0.0)  # 10 ms a tensor
EXHAUSTIVE = Exhaustive(threads=1)
random_problems = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
)


def letters(outcome: Outcome) -> str:
    assert isinstance(outcome.plan, Plan)
    return outcome.plan.letters


# ---- What all plans are --------------------------------------------------------------------------------------------


def test_every_combination_of_decisions_is_a_plan() -> None:
    # a0 has no rebuild: keep or swap; a1 all three.
    assert [Plan(row).letters for row in all_plans(chain(2))] == ["KK", "KS", "KR", "SK", "SS", "SR"]
    assert count_plans(chain(4)) == 2 * 3 * 3 * 3
    assert count_plans(two_layers()) == 9


@pytest.mark.parametrize("problem", [one_operator(), chain(1), zero_sizes()], ids=lambda problem: problem.name)
def test_what_is_not_saved_is_kept(problem: Problem) -> None:
    # Nobody reads the one operator's output. In zero_sizes, a0 has no rebuild.
    expected = {"one operator": ["K"], "chain of 1": ["K", "S"], "zero sizes": ["KK", "KS", "KR", "SK", "SS", "SR"]}
    assert [Plan(row).letters for row in all_plans(problem)] == expected[problem.name]


def test_a_problem_without_tensors_has_one_plan() -> None:
    problem = Problem.from_records("no tensors", [Operator("f0", "forward", MS, 5 * MB)], [], PLAIN_LINK)
    assert all_plans(problem).shape == (1, 0)
    assert run_planner(EXHAUSTIVE, problem, 5 * MB).status is Status.OPTIMAL
    assert run_planner(EXHAUSTIVE, problem, 5 * MB - 1).status is Status.INFEASIBLE


def product_of_choices(problem: Problem) -> DecisionArray:
    """Build the same table another way."""
    choices = [
        (0,) if not saved else (0, 1, 2) if rebuildable else (0, 1)
        for saved, rebuildable in zip(problem.saved, problem.rebuildable, strict=True)
    ]
    rows = list(itertools.product(*choices))
    return np.array(rows, np.int8).reshape(len(rows), problem.n_tensors)


@random_problems
@given(problems(max_forward=5), st.integers(1, 50))
def test_parts_of_the_table_are_the_table(problem: Problem, at_once: int) -> None:
    n_plans = count_plans(problem)
    if n_plans > 2000:
        return
    rows = all_plans(problem)
    assert np.array_equal(rows, product_of_choices(problem))
    parts = [plans_between(problem, k, min(n_plans, k + at_once)) for k in range(0, n_plans, at_once)]
    assert np.array_equal(np.concatenate(parts), rows)
    simulate_many(problem, rows, math.inf)  # refuses what is illegal


def test_plans_far_down_the_table_need_none_before_them() -> None:
    problem = chain(38)  # 2 * 3^37 plans
    rows = plans_between(problem, count_plans(problem) - 2, count_plans(problem))
    assert [Plan(row).letters for row in rows] == ["S" + "R" * 36 + "S", "S" + "R" * 37]


# ---- What it finds -------------------------------------------------------------------------------------------------


def test_on_a_fast_link_the_swap_is_free() -> None:
    # a1 leaves from 2 to 3 ms, while f2 reads it. There is room again at 6 ms, when b3 ends, and it comes back by 7 ms; b1 reads
    # it at 8. a0 would do as well; of equal plans the first in the table is taken.
    outcome = run_planner(EXHAUSTIVE, chain(4), 3 * MB)
    assert letters(outcome) == "KSKK"
    assert outcome.status is Status.OPTIMAL
    assert outcome.claimed_step_s == outcome.lower_bound_s == pytest.approx(12 * MS)


def test_on_a_slow_link_a_rebuild_is_cheaper() -> None:
    # a0's copy would end at 11 ms, 8 ms after f3 could have begun. a1 goes at 3 ms and is rebuilt from a0 in 1 ms.
    outcome = run_planner(EXHAUSTIVE, chain(4, SLOW_LINK), 3 * MB)
    assert letters(outcome) == "KRKK"
    assert outcome.status is Status.OPTIMAL
    assert outcome.claimed_step_s == outcome.lower_bound_s == pytest.approx(13 * MS)
    assert outcome.evaluations == 54


def test_history_ends_with_the_plan() -> None:
    problem = chain(6, SLOW_LINK)
    outcome = run_planner(EXHAUSTIVE, problem, 4 * MB)
    steps_s = [point.step_s for point in outcome.history]
    assert steps_s == sorted(steps_s, reverse=True)
    assert steps_s[-1] == outcome.claimed_step_s
    assert [point.evaluations for point in outcome.history] == sorted(point.evaluations for point in outcome.history)


def test_where_nothing_fits_every_plan_says_so() -> None:
    # f1 reads a0 and writes a1: 2 MB whatever is decided.
    outcome = run_planner(EXHAUSTIVE, chain(4), 2 * MB - 1)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.evaluations == 54
    why = outcome.infeasibility
    assert why is not None
    assert (why.missing_bytes, why.largest_infeasible_bytes) == (1, 2 * MB - 1)
    assert run_planner(EXHAUSTIVE, chain(4), 2 * MB).status is Status.OPTIMAL


def test_the_plan_that_lacks_least_says_where() -> None:
    # b1 needs a1 and 5 MB: one byte more than there is. With a0 still there it lacks 1 MB more.
    operators = [Operator(name, "forward", MS) for name in ("f0", "f1")]
    operators += [Operator("b1", "backward", MS, 5 * MB), Operator("b0", "backward", MS)]
    tensors = [Tensor("a0", MB, 0, (3,)), Tensor("a1", MB, 1, (2,))]
    problem = Problem.from_records("late peak", operators, tensors, PLAIN_LINK)
    rng = np.random.default_rng(0)
    why = EXHAUSTIVE.plan(problem, 6 * MB - 1, rng=rng, time_limit_s=None).infeasibility
    assert why is not None
    assert (why.operator, why.missing_bytes) == ("b1", 1)


@random_problems
@given(problems(max_forward=6), st.sampled_from([-1, 0, 1, 2_500_000, 9_000_000]))
def test_it_finds_the_fastest_of_all_plans_and_a_plan_exactly_from_the_floor_upwards(
    problem: Problem, above: int
) -> None:
    budget_bytes = plan_floor_bytes(problem) + above
    if count_plans(problem) > 3000 or budget_bytes < 0:
        return
    before = columns(problem)
    scores = simulate_many(problem, product_of_choices(problem), budget_bytes)
    outcome = run_planner(EXHAUSTIVE, problem, budget_bytes)
    assert (outcome.plan is not None) == bool(scores.fits.any()) == (above >= 0)
    if isinstance(outcome.plan, Plan):
        assert outcome.status is Status.OPTIMAL
        assert outcome.claimed_step_s == outcome.lower_bound_s == scores.step_s.min()
        assert simulate(problem, outcome.plan, budget_bytes).step_s == outcome.claimed_step_s
    assert columns(problem) == before


@pytest.mark.parametrize("threads", [None, 2, 5])
def test_the_answer_does_not_depend_on_threads_nor_on_the_size_of_parts(
    monkeypatch: pytest.MonkeyPatch, threads: int | None
) -> None:
    problem = chain(9, SLOW_LINK)
    expected = run_planner(EXHAUSTIVE, problem, 5 * MB)
    monkeypatch.setattr("slackswap.planners.exhaustive._MAX_ROWS_AT_ONCE", 1000)
    outcome = run_planner(Exhaustive(threads=threads), problem, 5 * MB)
    assert letters(outcome) == letters(expected)
    assert outcome.evaluations == expected.evaluations == count_plans(problem)
    assert [point.step_s for point in outcome.history][-1] == expected.claimed_step_s


# ---- What it refuses -----------------------------------------------------------------------------------------------


def test_a_problem_with_too_many_plans_is_refused() -> None:
    problem = chain(4, SLOW_LINK)
    outcome = run_planner(replace(EXHAUSTIVE, plan_limit=53), problem, 3 * MB)
    assert (outcome.status, outcome.plan, outcome.lower_bound_s) == (Status.UNAVAILABLE, None, None)
    assert outcome.evaluations == 1  # the plan that keeps everything
    assert outcome.reason == "tries at most 53 plans, and there are more"
    assert letters(run_planner(replace(EXHAUSTIVE, plan_limit=54), problem, 3 * MB)) == "KRKK"


def test_where_keeping_everything_fits_nothing_is_too_large() -> None:
    problem = chain(500)
    outcome = run_planner(EXHAUSTIVE, problem, peak_bytes(problem))
    assert outcome.status is Status.OPTIMAL
    assert outcome.lower_bound_s == problem.ideal_s
    assert outcome.evaluations == 1


def test_time_is_kept_and_what_was_found_by_then_is_no_optimum() -> None:
    # 2 * 3^15 plans, 28 million: most of a minute. Four tensors have to go by 15 ms, when f15 begins, and a link that copies one
    # in 10 ms cannot hide that, so no plan takes the ideal step and ends the search before its time.
    problem = chain(16, SLOW_LINK)
    outcome = run_planner(replace(EXHAUSTIVE, plan_limit=3**20), problem, 12 * MB, time_limit_s=0.3)
    assert 0.3 <= outcome.seconds < 0.6  # 0.31 s, if nobody else is at work
    assert outcome.status is Status.FEASIBLE
    assert outcome.lower_bound_s is None
    assert outcome.evaluations < count_plans(problem)
    assert outcome.history[-1].step_s == outcome.claimed_step_s


def test_time_that_is_over_at_once() -> None:
    outcome = run_planner(EXHAUSTIVE, chain(8, SLOW_LINK), 5 * MB, time_limit_s=0.0)
    assert (outcome.status, outcome.plan, outcome.evaluations) == (Status.TIME_LIMIT, None, 1)


def test_nothing_faster_than_the_ideal_step_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # KSKK is plan number 1 * 3^2 = 9 of the table, from 0, and takes the ideal step.
    monkeypatch.setattr("slackswap.planners.exhaustive._MAX_ROWS_AT_ONCE", 5)
    outcome = run_planner(EXHAUSTIVE, chain(4), 3 * MB)
    assert outcome.history[-1].evaluations == 10
    assert outcome.evaluations == 1 + 2 * 5  # the plan that keeps everything, then five at a time
