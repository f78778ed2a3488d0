"""The MILP planner: optimal where it says so, honest where it is not, within its time."""

from __future__ import annotations

import sys
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, chain, problems, two_layers

from slackswap.hardware import load_hardware
from slackswap.hardware.link import Link
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Status, run_planner
from slackswap.planners.memory_floor import plan_floor_bytes
from slackswap.planners.milp import Milp, single_changes
from slackswap.planners.slackswap import SLACKSWAP

PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
SLOW_LINK = Link(d2h_bytes_per_s=1e8, h2d_bytes_per_s=1e8, duplex_factor=1.0, latency_s=0.0)  # 10 ms per MB


def test_one_recomputation_on_a_slow_link_is_proved_optimal() -> None:
    # See test_lower_bound: 13 ms, by recomputing one tensor of four.
    outcome = run_planner(Milp(), chain(4, SLOW_LINK), 3 * MB)
    assert outcome.status is Status.OPTIMAL
    assert outcome.claimed_step_s == pytest.approx(13 * MS)
    assert outcome.lower_bound_s == pytest.approx(13 * MS, rel=1e-6)
    assert outcome.solver == "HiGHS"
    assert outcome.solver_version


def test_keeping_everything_is_optimal_at_the_peak() -> None:
    problem = two_layers()
    outcome = run_planner(Milp(), problem, peak_bytes(problem))
    assert outcome.status is Status.OPTIMAL
    assert outcome.claimed_step_s == problem.ideal_s


def test_never_worse_than_slackswap_and_never_below_its_own_bound() -> None:
    @settings(PATIENT, max_examples=60)
    @given(problems(max_forward=6), st.sampled_from([0.0, 0.25, 0.5, 0.95]))
    def holds(problem: object, share: float) -> None:
        floor, peak = plan_floor_bytes(problem), peak_bytes(problem)  # type: ignore[arg-type]  # drawn as a Problem
        budget_bytes = floor + int(share * (peak - floor))
        own = run_planner(Milp(), problem, budget_bytes, time_limit_s=0.5)  # type: ignore[arg-type]
        seed = run_planner(SLACKSWAP, problem, budget_bytes)  # type: ignore[arg-type]
        if seed.claimed_step_s is not None:
            assert own.claimed_step_s is not None
            assert own.claimed_step_s <= seed.claimed_step_s
        if own.claimed_step_s is not None and own.lower_bound_s is not None:
            assert own.lower_bound_s <= own.claimed_step_s * (1 + 1e-9)

    holds()


def test_llama_7b_at_half_the_memory_is_solved() -> None:
    problem = WORKLOADS["llama-7b"].build(load_hardware("a100-pcie4"))
    budget_bytes = peak_bytes(problem) // 2
    outcome = run_planner(Milp(), problem, budget_bytes, time_limit_s=20.0)
    assert outcome.status is Status.OPTIMAL
    assert outcome.lower_bound_s is not None
    assert isinstance(outcome.plan, Plan)
    step_s = simulate(problem, outcome.plan, budget_bytes).step_s
    assert outcome.claimed_step_s == step_s
    assert step_s / outcome.lower_bound_s - 1 < 1e-6
    assert [point.step_s for point in outcome.history] == sorted(
        (point.step_s for point in outcome.history), reverse=True
    )


def test_time_limit_is_kept() -> None:
    problem = WORKLOADS["bert-large"].build(load_hardware("a100-pcie4"))
    began_s = time.perf_counter()
    outcome = run_planner(Milp(), problem, int(0.2 * peak_bytes(problem)), time_limit_s=2.0)
    assert time.perf_counter() - began_s < 2.0 * 1.1 + 1.0  # and a second for a machine that does other things
    assert outcome.plan is not None
    assert outcome.status is Status.FEASIBLE
    assert outcome.lower_bound_s is not None


def test_below_the_floor_no_solver_is_asked() -> None:
    outcome = run_planner(Milp(), two_layers(), 30 * MB - 1)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.infeasibility is not None
    assert outcome.infeasibility.operator == "f1"
    assert outcome.infeasibility.largest_infeasible_bytes == 30 * MB - 1


def test_a_missing_solver_makes_it_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    outcome = run_planner(Milp(), chain(4, SLOW_LINK), 3 * MB)
    assert (outcome.status, outcome.reason) == (Status.UNAVAILABLE, "HiGHS is not installed")


def test_cbc_plans_too() -> None:
    outcome = run_planner(Milp(solver="cbc"), chain(4, SLOW_LINK), 3 * MB)
    assert outcome.claimed_step_s == pytest.approx(13 * MS)
    assert outcome.solver == "CBC"


def test_single_changes_are_all_legal_plans_one_decision_away() -> None:
    # chain(3): a0 cannot be rebuilt (2 choices), a1 and a2 can (3 each): 1 + 2 + 2 changes.
    problem = chain(3)
    decisions = np.zeros(3, np.int8)
    rows = single_changes(problem, decisions)
    assert sorted("".join("KSR"[d] for d in row) for row in rows) == ["KKR", "KKS", "KRK", "KSK", "SKK"]
