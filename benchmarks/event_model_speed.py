"""How fast the event model scores plans: plans per second, against the SimPy reference, and growth with model depth.

Ratios are taken within one run, and times are medians of several: machines are noisy. Run it with `make benchmarks`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from slackswap.hardware import load_hardware
from slackswap.models import Plan, Problem, peak_bytes, simulate_many
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import registry, run_planner

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from reference_event_model import reference_score

BUDGETS = (0.5, 0.3, 0.2)
REPEATS = 7
REFERENCE_PLANS = 3
DEPTHS = (48, 96, 192, 384, 768)


def main() -> None:
    problem = WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4"))
    print(f"GPT-2 XL: {problem.n_operators} operators, {problem.n_tensors} tensors; one core")
    per_plan_s = {}
    for share in BUDGETS:
        budget_bytes = int(share * peak_bytes(problem))
        plans = neighbours(problem, budget_bytes, 1000)
        seconds = median_s(lambda p=plans, b=budget_bytes: simulate_many(problem, p, b)) / len(plans)  # type: ignore[misc]
        per_plan_s[share] = seconds
        print(
            f"  neighbours of slackswap's plan at {share:.0%}: {seconds * 1e6:6.1f} us a plan, {1 / seconds:9,.0f} plans/s"
        )
    compare_with_reference(problem, per_plan_s[BUDGETS[0]])
    show_growth()


def neighbours(problem: Problem, budget_bytes: int, count: int) -> npt.NDArray[np.int8]:
    """Plans as a search meets them: slackswap's, with about 2% of the decisions changed."""
    plan = slackswap_plan(problem, budget_bytes)
    rng = np.random.default_rng(0)
    rows = np.repeat(plan.decisions[None, :], count, axis=0)
    change = (rng.random(rows.shape) < 0.02) & problem.saved
    rows[change] = rng.integers(0, 3, int(change.sum()))
    rows[(rows == 2) & ~problem.rebuildable] = 0
    return rows


def slackswap_plan(problem: Problem, budget_bytes: int) -> Plan:
    plan = run_planner(registry()["slackswap"], problem, budget_bytes).plan
    assert isinstance(plan, Plan)
    return plan


def compare_with_reference(problem: Problem, kernel_s: float) -> None:
    budget_bytes = int(BUDGETS[0] * peak_bytes(problem))
    plans = neighbours(problem, budget_bytes, REFERENCE_PLANS)
    began_s = time.perf_counter()
    for row in plans:
        reference_score(problem, Plan(row).letters, budget_bytes)
    reference_s = (time.perf_counter() - began_s) / REFERENCE_PLANS
    print(
        f"  SimPy reference: {reference_s * 1e3:.1f} ms a plan; the kernel is {reference_s / kernel_s:,.0f} times as fast"
    )


def show_growth() -> None:
    print("growth with depth, slackswap's plan at 50%:")
    first_s = None
    for layers in DEPTHS:
        problem = WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4"), layers=layers)
        budget_bytes = peak_bytes(problem) // 2
        row = slackswap_plan(problem, budget_bytes).decisions[None, :]
        plans = np.repeat(row, max(1, 9600 // layers), axis=0)
        seconds = median_s(lambda p=plans, b=budget_bytes, q=problem: simulate_many(q, p, b)) / len(plans)  # type: ignore[misc]
        per_operator_s = seconds / problem.n_operators
        first_s = first_s or per_operator_s
        print(
            f"  {layers:4} layers, {problem.n_operators:6} operators: {seconds * 1e6:8.1f} us a plan, "
            f"{per_operator_s * 1e9:5.1f} ns an operator ({per_operator_s / first_s:.2f}x)"
        )


def median_s(work: Callable[[], object]) -> float:
    work()
    times_s = []
    for _ in range(REPEATS):
        began_s = time.perf_counter()
        work()
        times_s.append(time.perf_counter() - began_s)
    return statistics.median(times_s)


if __name__ == "__main__":
    main()
