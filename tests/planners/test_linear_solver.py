"""What solvers say, and what is true: the traps of PuLP, HiGHS and CBC that were seen."""

from __future__ import annotations

import math
import sys

import numpy as np
import pulp
import pytest

from slackswap.planners.linear_solver import SOLVERS, Verdict, solve

every_solver = pytest.mark.parametrize("solver", SOLVERS)


def knapsack(cover: int = 10) -> pulp.LpProblem:
    """Cover 10 with pieces of 6 and 5 at a cost of 6 and 4.9: 5 + 5 costs 9.8, and the relaxation pays 0.98 per unit.

    Cover 9: 5 + 5 at 9.8 against 6 + 5 at 10.9; the relaxation pays 9 x 0.98 = 8.82.
    """
    model = pulp.LpProblem("knapsack", pulp.LpMinimize)
    six, five = model.add_variable("six", 0, 9, "Integer"), model.add_variable("five", 0, 9, "Integer")
    model += 6 * six + 4.9 * five
    model += 6 * six + 5 * five >= cover
    return model


def market_split(rows: int = 5, columns: int = 40) -> pulp.LpProblem:
    """Split random orders exactly in half: no solver finds a solution, or proves that there is none, in a second."""
    rng = np.random.default_rng(0)
    model = pulp.LpProblem("market", pulp.LpMinimize)
    take = [model.add_variable(f"x{j}", 0, 1, "Integer") for j in range(columns)]
    model += pulp.lpSum(take)
    for _ in range(rows):
        orders = rng.integers(1, 100, columns)
        model += (
            pulp.LpAffineExpression([(x, int(n)) for x, n in zip(take, orders, strict=True)]) == int(orders.sum()) // 2
        )
    return model


def hard_cover() -> pulp.LpProblem:
    """A set cover on which an incumbent is found at once and a proof takes long."""
    rng = np.random.default_rng(1)
    model = pulp.LpProblem("cover", pulp.LpMinimize)
    take = [model.add_variable(f"x{j}", 0, 1, "Integer") for j in range(150)]
    model += pulp.LpAffineExpression([(x, int(rng.integers(50, 100))) for x in take])
    for _ in range(300):
        model += pulp.LpAffineExpression([(take[int(j)], 1) for j in rng.choice(150, 6, replace=False)]) >= 1
    return model


@every_solver
def test_optimum_and_bound_agree(solver: str) -> None:
    answer = solve(knapsack(), solver=solver)
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.objective == pytest.approx(9.8)
    assert answer.bound == pytest.approx(9.8)
    assert answer.version


@every_solver
def test_relaxed_ignores_whole_numbers(solver: str) -> None:
    answer = solve(knapsack(cover=9), solver=solver, relaxed=True)
    assert answer.verdict is Verdict.OPTIMAL
    assert answer.bound == pytest.approx(8.82)
    assert solve(knapsack(cover=9), solver=solver).objective == pytest.approx(9.8)


@every_solver
def test_infeasible(solver: str) -> None:
    model = knapsack()
    model += model.variables()[0] + model.variables()[1] <= 1
    answer = solve(model, solver=solver)
    assert answer.verdict is Verdict.INFEASIBLE
    assert answer.bound == math.inf


def test_pulp_calls_an_incumbent_at_the_time_limit_optimal_and_we_do_not() -> None:
    model = hard_cover()
    answer = solve(model, time_limit_s=0.3)
    assert model.status == pulp.LpStatusOptimal  # what PuLP says
    assert answer.verdict is Verdict.FEASIBLE
    assert answer.objective is not None
    assert 0 < answer.bound < answer.objective


@every_solver
def test_time_over_without_a_solution_is_not_infeasible(solver: str) -> None:
    # CBC says "Infeasible" here.
    answer = solve(market_split(), solver=solver, time_limit_s=0.5)
    assert answer.verdict is Verdict.UNKNOWN
    assert answer.objective is None
    assert answer.bound < math.inf


def test_a_gap_that_is_allowed_is_not_called_optimal() -> None:
    answer = solve(hard_cover(), time_limit_s=5, gap_abs=1e6)
    assert answer.verdict is Verdict.FEASIBLE
    assert answer.objective is not None
    assert answer.bound < answer.objective


def test_another_number_of_threads_before_does_no_harm() -> None:
    # HiGHS then fails with the status "Not Set", unless its scheduler is reset.
    knapsack().solve(pulp.HiGHS(msg=False, threads=2))
    assert solve(knapsack()).verdict is Verdict.OPTIMAL
    knapsack().solve(pulp.HiGHS(msg=False, threads=2))
    assert solve(knapsack()).verdict is Verdict.OPTIMAL


def test_start_values_are_taken() -> None:
    model = hard_cover()
    everything = [(variable, 1.0) for variable in model.variables()]
    answer = solve(model, time_limit_s=0.05, start=everything)
    assert answer.objective is not None  # within so short a time the start itself, or better


def test_missing_solver_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    answer = solve(knapsack())
    assert answer.verdict is Verdict.UNAVAILABLE
    assert answer.bound == -math.inf


def test_no_time_no_answer() -> None:
    assert solve(knapsack(), time_limit_s=0.0).verdict is Verdict.UNKNOWN
