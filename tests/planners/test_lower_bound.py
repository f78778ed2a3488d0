"""The lower bound is one: no plan beats it, it says infeasible only where nothing fits, and it is as tight as it claims."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, crowded_chains, one_operator, problems, two_layers, zero_sizes
from reference_bound import plain_bound_s

from slackswap.hardware import load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, peak_bytes, simulate, simulate_many
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import run_planner
from slackswap.planners.exhaustive import all_plans, count_plans
from slackswap.planners.lower_bound import lower_bound
from slackswap.planners.memory_floor import plan_floor_bytes
from slackswap.planners.slackswap import SLACKSWAP

PATIENT = settings(deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
MAX_PLANS = 3**6

# --- by hand

SLOW_LINK = Link(d2h_bytes_per_s=1e8, h2d_bytes_per_s=1e8, duplex_factor=1.0, latency_s=0.0)  # 10 ms per MB


def test_a_chain_on_a_fast_link_costs_nothing() -> None:
    # chain(4): 12 ms, 4 MB. In 3 MB something has to be gone when f3 starts, at 3 ms: a0, produced at 1 ms, has left by 2 ms
    # and comes back long before b0, at 10 ms.
    bound = lower_bound(chain(4), 3 * MB)
    assert bound.step_s == pytest.approx(12 * MS)


def test_a_chain_on_a_slow_link_recomputes_one_tensor() -> None:
    # On 10 ms per MB, nothing leaves by 3 ms without a stall of 8. Recomputing a1 (or a2) costs 1 ms: 13. The relaxation swaps a
    # fifth of a0 in the 2 ms that are there, and recomputes the rest: 12.8.
    bound = lower_bound(chain(4, SLOW_LINK), 3 * MB)
    assert bound.relaxed_s == pytest.approx(12.8 * MS, rel=1e-6)
    assert bound.step_s == pytest.approx(13 * MS, rel=1e-6)


def test_below_the_floor_it_is_infeasible_and_from_the_peak_on_ideal() -> None:
    problem = two_layers()  # f1 reads a0 and writes a1: 30 MB, whatever is decided
    assert lower_bound(problem, 30 * MB - 1).infeasible
    assert lower_bound(problem, 30 * MB).step_s == problem.ideal_s
    assert lower_bound(problem, 1 << 61).step_s == problem.ideal_s


@pytest.mark.parametrize("problem", [one_operator(), zero_sizes()], ids=lambda problem: problem.name)
def test_nothing_to_decide(problem: Problem) -> None:
    peak = peak_bytes(problem)
    assert lower_bound(problem, peak).step_s == problem.ideal_s
    assert lower_bound(problem, peak - 1).infeasible
    assert lower_bound(problem, 0).infeasible


def test_at_the_floor_to_the_byte_a_plan_fits() -> None:
    # Swapping everything runs there. Rows without slack made the solver say that nothing does, up to a few bytes above.
    operators = [Operator(f"f{i}", "forward", MS) for i in range(8)]
    operators += [Operator(f"b{i}", "backward", MS, 25 * MB if i == 5 else 0) for i in reversed(range(8))]
    tensors = [
        Tensor(f"t{i}", (9 if i == 3 else 5) * MB, i, (15 - i,), None, Rebuild(MS, (i - 1,) if i else ()))
        for i in range(8)
    ]
    problem = Problem.from_records("to the byte", operators, tensors, SLOW_LINK)
    floor = plan_floor_bytes(problem)
    assert simulate(problem, Plan(np.ones(8, np.int8)), floor).fits
    bounds_s = [lower_bound(problem, floor + more).step_s for more in (0, 1, 10, 1000)]
    assert bounds_s == pytest.approx([21 * MS] * 4, rel=1e-6)


# --- against all plans


@st.composite
def skips(draw: st.DrawFn) -> Problem:
    """Chains whose tensors are also read some operators later, forward and backward: skip connections, and diamonds."""
    n = draw(st.integers(3, 6))
    skip = draw(st.integers(2, 3))
    sizes = st.integers(1, 30).map(lambda mb: mb * MB)
    times = st.integers(1, 12).map(lambda ms: ms * MS)
    readers: list[set[int]] = [set() for _ in range(n)]
    for i in range(1, n):
        inputs = {i - 1} | ({i - skip} if i >= skip and draw(st.booleans()) else set())
        for t in inputs:
            readers[t] |= {i, 2 * n - 1 - i}
    operators = [Operator(f"f{i}", "forward", draw(times), layer=i) for i in range(n)]
    operators += [
        Operator(f"b{i}", "backward", draw(times), draw(st.sampled_from([0, MB, 20 * MB])), 2 * n - 1 - i)
        for i in reversed(range(n))
    ]
    tensors = []
    for i in range(n):
        sources = tuple(t for t in range(i) if i in readers[t])
        rebuild = Rebuild(draw(times), sources) if draw(st.sampled_from([True, True, False])) else None
        tensors.append(Tensor(f"a{i}", draw(sizes), i, tuple(sorted({*readers[i], 2 * n - 1 - i})), None, rebuild))
    link = Link(draw(st.sampled_from([1e8, 1e9, 4e9])), 1e9, draw(st.sampled_from([1.0, 0.85, 0.5])), 1e-5)
    return Problem.from_records("skips", operators, tensors, link)


def check_against_all_plans(problem: Problem, share: float, found: list[float]) -> None:
    floor, peak = plan_floor_bytes(problem), peak_bytes(problem)
    budget_bytes = floor + int(share * (peak - floor))
    if count_plans(problem) > MAX_PLANS or budget_bytes >= peak:
        return
    rows = all_plans(problem)
    bound = lower_bound(problem, budget_bytes, time_limit_s=0.5)
    best_s = min(float(simulate_many(problem, rows, budget_bytes, policy=policy).step_s.min()) for policy in POLICIES)
    assert not bound.infeasible  # from the floor on, swapping everything fits
    assert math.isfinite(best_s)
    assert bound.relaxed_s <= bound.step_s <= best_s * (1 + 1e-9)
    assert bound.step_s >= problem.ideal_s
    found.append(best_s / bound.step_s - 1.0 if bound.step_s > 0 else 0.0)


SHARES = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.95])


@pytest.mark.parametrize("family", ["random", "skips", "crowded chains"])
def test_no_plan_beats_it(family: str) -> None:
    strategy = {"random": problems(max_forward=6), "skips": skips(), "crowded chains": crowded_chains()}[family]
    found: list[float] = []

    @settings(PATIENT, max_examples=150)
    @given(strategy, SHARES)
    def holds(problem: Problem, share: float) -> None:
        check_against_all_plans(problem, share, found)

    holds()
    exact = np.mean(np.array(found) < 1e-6)
    print(f"{family}: {len(found)} problems, exact in {exact:.0%}, mean gap {np.mean(found):.2%}")
    assert len(found) >= (30 if family != "crowded chains" else 5)
    assert exact >= 0.5  # measured: 80 to 90%


def test_a_known_step_does_no_harm() -> None:
    # With a step that is known to be reached, what is proved is the smaller of both, and never more than the optimum.
    @settings(PATIENT, max_examples=40)
    @given(problems(max_forward=6), SHARES)
    def holds(problem: Problem, share: float) -> None:
        floor, peak = plan_floor_bytes(problem), peak_bytes(problem)
        budget_bytes = floor + int(share * (peak - floor))
        if count_plans(problem) > MAX_PLANS or budget_bytes >= peak:
            return
        rows = all_plans(problem)
        best_s = float(simulate_many(problem, rows, budget_bytes).step_s.min())
        bound = lower_bound(problem, budget_bytes, time_limit_s=0.5, known_step_s=best_s)
        assert bound.step_s <= best_s * (1 + 1e-9)

    holds()


@settings(PATIENT, max_examples=60)
@given(problems(max_forward=6), SHARES)
def test_at_least_as_tight_as_the_plain_formulation(problem: Problem, share: float) -> None:
    floor, peak = plan_floor_bytes(problem), peak_bytes(problem)
    budget_bytes = floor + int(share * (peak - floor))
    if budget_bytes >= peak:
        return
    bound = lower_bound(problem, budget_bytes, time_limit_s=2.0)
    assert bound.step_s >= plain_bound_s(problem, budget_bytes) * (1 - 1e-6)


# --- on the paper's workloads


@cache
def workload(name: str) -> Problem:
    return WORKLOADS[name].build(load_hardware("a100-pcie4"))


# Percent of ideal throughput that the plain formulation leaves possible, as the specification states it. 94.02 for Llama-7B at
# 20% is none: a plan reaches 94.048 (see `reference_bound`); the 87.43 for BERT-Large stems from the same reading.
SPECIFIED = {
    ("bert-large", 0.5): 96.36,
    ("bert-large", 0.2): 87.43,
    ("gpt2-xl", 0.5): 97.60,
    ("gpt2-xl", 0.2): 88.45,
    ("llama-7b", 0.5): 99.67,
    ("llama-7b", 0.2): 94.02,
}


@pytest.mark.parametrize(("name", "share"), SPECIFIED)
def test_table_3(name: str, share: float) -> None:
    problem = workload(name)
    budget_bytes = int(share * peak_bytes(problem))
    bound = lower_bound(problem, budget_bytes, time_limit_s=5.0)
    percent = 100 * problem.ideal_s / bound.step_s
    assert percent <= SPECIFIED[name, share] + 0.03
    if name == "llama-7b":  # the quickest for SciPy
        assert bound.step_s >= plain_bound_s(problem, budget_bytes) * (1 - 1e-6)
    outcome = run_planner(SLACKSWAP, problem, budget_bytes)
    assert outcome.claimed_step_s is not None
    assert bound.step_s <= outcome.claimed_step_s


@pytest.mark.parametrize("share", [0.9, 0.8, 0.7])
def test_vgg_16_is_bounded_by_its_relaxation_at_once(share: float) -> None:
    problem = workload("vgg-16")
    budget_bytes = int(share * peak_bytes(problem))
    bound = lower_bound(problem, budget_bytes, time_limit_s=2.0)
    assert problem.ideal_s <= bound.relaxed_s <= bound.step_s
    outcome = run_planner(SLACKSWAP, problem, budget_bytes)
    assert isinstance(outcome.plan, Plan)
    assert bound.step_s <= simulate(problem, outcome.plan, budget_bytes).step_s


# --- what it is asked with


def test_cbc_proves_the_same() -> None:
    problem = chain(4, SLOW_LINK)
    assert lower_bound(problem, 3 * MB, solver="cbc").step_s == pytest.approx(
        lower_bound(problem, 3 * MB).step_s, rel=1e-5
    )


def test_unknown_solver() -> None:
    with pytest.raises(InputError, match="use highs or cbc"):
        lower_bound(chain(4), 3 * MB, solver="gurobi")


def test_without_time_it_is_ideal() -> None:
    problem = chain(4, SLOW_LINK)
    bound = lower_bound(problem, 3 * MB, time_limit_s=1e-9)
    assert bound.step_s == problem.ideal_s


def test_a_missing_solver_leaves_the_ideal_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "highspy", None)
    bound = lower_bound(chain(4, SLOW_LINK), 3 * MB)
    assert bound.unavailable
    assert bound.step_s == pytest.approx(12 * MS)


def test_same_problem_same_bound() -> None:
    first, second = (lower_bound(chain(5, PLAIN_LINK), 3 * MB).step_s for _ in range(2))
    assert first == second


def test_times_and_sizes_of_any_scale() -> None:
    # A step of 13 hours and tensors of a petabyte, a step of 13 ns and tensors of a byte: the same ratios, the same bound.
    base = lower_bound(chain(4, SLOW_LINK), 3 * MB).step_s / (12 * MS)
    for time, size in ((3.6e6, 10**9), (1e-6, 1)):
        scaled = chain(4, Link(1e8 * size / MB / time, 1e8 * size / MB / time, 1.0, 0.0))
        problem = Problem.from_records(
            "scaled",
            [Operator(o.name, o.phase, o.duration_s * time) for o in scaled.operators()],
            [
                Tensor(t.name, size, t.producer, t.readers, None, t.rebuild and Rebuild(MS * time, t.rebuild.inputs))
                for t in scaled.tensors()
            ],
            scaled.link,
        )
        assert lower_bound(problem, 3 * size).step_s / problem.ideal_s == pytest.approx(base, rel=1e-6)
