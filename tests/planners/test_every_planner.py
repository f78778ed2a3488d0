"""What every registered planner must do, on tiny, random and small real problems.

A planner that is added to the registry is tested here without a line of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, columns, one_operator, problems, two_layers, zero_sizes

from slackswap.evaluate.shootout import judge
from slackswap.hardware import load_hardware
from slackswap.models.event_model import peak_bytes, simulate, simulate_many
from slackswap.models.plan import RECOMPUTE, SWAP, DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Tensor
from slackswap.models.schedule import Schedule
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Infeasibility, Outcome, Planner, Status, exhaustive, registry, run_planner
from slackswap.planners.exhaustive import count_plans

# A searching planner gets this long for each plan: these instances are small.
TIME_LIMIT_S = 0.5
PLANNERS = list(registry().values())
every_planner = pytest.mark.parametrize("planner", PLANNERS, ids=[planner.name for planner in PLANNERS])


def no_backward() -> Problem:
    """Two forward operators and no backward pass: nothing is saved, so nothing can be decided. P = 10 + 20 = 30 MB."""
    operators = [Operator("f0", "forward", 1 * MS), Operator("f1", "forward", 1 * MS)]
    tensors = [Tensor("a0", 10 * MB, producer=0, readers=(1,)), Tensor("a1", 20 * MB, producer=1, readers=())]
    return Problem.from_records("no backward", operators, tensors, PLAIN_LINK)


def no_tensors() -> Problem:
    """Nothing but operators with temporaries: 5 MB, then 7 MB. P = 7 MB."""
    operators = [Operator("f0", "forward", 1 * MS, 5 * MB), Operator("b0", "backward", 2 * MS, 7 * MB)]
    return Problem.from_records("no tensors", operators, [], PLAIN_LINK)


def nothing_at_all() -> Problem:
    """One operator without time or bytes: P = 0."""
    return Problem.from_records("nothing", [Operator("f0", "forward", 0.0)], [], PLAIN_LINK)


@cache
def small_gpt() -> Problem:
    """Three layers of GPT-2 XL's kind, four sequences of 64 tokens: 85 operators, a step of about a millisecond."""
    parameters = {"layers": 3, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence": 64, "batch": 4}
    return WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4"), **parameters)


def small_gpt_on_a_fast_link() -> Problem:
    """The same on NVLink-C2C: here the link hides nearly everything."""
    return small_gpt().with_link(load_hardware("gh200").link)


INSTANCES: dict[str, Callable[[], Problem]] = {
    "two layers": two_layers,
    "chain of 6": lambda: chain(6),
    "one operator": one_operator,
    "zero sizes": zero_sizes,
    "no backward": no_backward,
    "no tensors": no_tensors,
    "nothing at all": nothing_at_all,
    "small gpt": small_gpt,
    "small gpt on a fast link": small_gpt_on_a_fast_link,
}


def floor_bytes(problem: Problem) -> int:
    """What some operator needs at once; below it no plan fits."""
    return max(
        int(problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum())
        for i in range(problem.n_operators)
    )


def interesting_budgets(problem: Problem) -> list[int]:
    peak, floor = peak_bytes(problem), floor_bytes(problem)
    fractions = [int(share * peak) for share in (0.1, 0.2, 0.3, 0.5, 0.7, 0.9)]
    between = [floor + (peak - floor) * k // 4 for k in (1, 2, 3)]
    budgets = {0, 1, floor - 1, floor, floor + 1, *fractions, *between, peak - 1, peak, peak + 1, 10 * peak}
    return sorted(budget for budget in budgets if budget >= 0)


def planned(planner: Planner, problem: Problem, budget_bytes: int, seed: int = 0) -> Outcome:
    return run_planner(planner, problem, budget_bytes, seed=seed, time_limit_s=TIME_LIMIT_S)


def decided(plan: Plan | Schedule) -> DecisionArray:
    """Decisions of a plan; a planner with a richer space answers for its schedule elsewhere (`legality.check`)."""
    return plan.decisions if isinstance(plan, Plan) else np.zeros(0, np.int8)


def check_outcome(planner: Planner, problem: Problem, budget_bytes: int) -> Outcome:
    """Check what holds for one planner, problem and budget, whatever they are."""
    outcome = planned(planner, problem, budget_bytes)
    assert (outcome.plan is not None) == (outcome.status in (Status.OPTIMAL, Status.FEASIBLE)), outcome.status
    assert (outcome.infeasibility is not None) == (outcome.status is Status.INFEASIBLE), outcome.status
    assert outcome.seconds >= 0
    assert outcome.evaluations >= 0
    assert (outcome.seed == 0) if planner.supports.randomized else (outcome.seed is None)
    if outcome.plan is not None:
        check_plan_is_what_was_claimed(planner, problem, budget_bytes, outcome, outcome.plan)
    elif outcome.status is Status.INFEASIBLE:
        check_infeasibility(planner, problem, budget_bytes, outcome)
    return outcome


def check_plan_is_what_was_claimed(
    planner: Planner, problem: Problem, budget_bytes: int, outcome: Outcome, plan: Plan | Schedule
) -> None:
    if isinstance(plan, Plan):
        decisions = decided(plan)
        assert decisions.shape == (problem.n_tensors,)
        assert planner.supports.swaps or SWAP not in decisions
        assert planner.supports.recomputes or RECOMPUTE not in decisions
    # `barriers` plans for the default policy what it then runs with barriers; the others plan for their own.
    scores = [simulate(problem, plan, budget_bytes, policy=policy) for policy in {planner.policy, "default"}]
    fitting = [score for score in scores if score.fits]
    assert fitting
    assert max(score.peak_bytes for score in fitting) <= budget_bytes
    score = min(fitting, key=lambda one: one.step_s)
    if not outcome.solver:  # a solver claims its own objective; the others have asked the event model
        assert outcome.claimed_step_s in [one.step_s for one in fitting]
    if outcome.lower_bound_s is not None:
        assert outcome.lower_bound_s <= score.step_s * (1 + 1e-9)
    row = judge(problem, budget_bytes, peak_bytes(problem), planner, outcome).row
    if planner.policy == "default":
        assert row.status == outcome.status
    if row.step_s is not None:
        assert row.step_s >= problem.ideal_s * (1 - 1e-12)


def check_infeasibility(planner: Planner, problem: Problem, budget_bytes: int, outcome: Outcome) -> None:
    """It names an operator (or a rebuild) and the bytes it lacks, and a budget that really does."""
    why = outcome.infeasibility
    assert why is not None
    names = {*problem.operator_names, *(f"rebuild {name}" for name in problem.tensor_names)}
    assert why.operator in names
    assert why.missing_bytes > 0
    assert budget_bytes < peak_bytes(problem)
    if why.smallest_feasible_bytes is not None:
        assert budget_bytes < why.smallest_feasible_bytes <= peak_bytes(problem)
        again = planned(planner, problem, why.smallest_feasible_bytes)
        assert again.plan is not None, f"{why.smallest_feasible_bytes} bytes do not do"
        assert simulate(problem, again.plan, why.smallest_feasible_bytes).fits
    check_known_facts(planner, problem, budget_bytes, why)


def check_known_facts(planner: Planner, problem: Problem, budget_bytes: int, why: Infeasibility) -> None:
    """Whichever planner failed: what is proved lies below what is known, and below what the planner ever does."""
    assert why.smallest_known_bytes is not None
    assert why.known_plan
    assert why.smallest_known_bytes <= min(peak_bytes(problem), why.smallest_feasible_bytes or peak_bytes(problem))
    proved_bytes = -1 if why.largest_infeasible_bytes is None else why.largest_infeasible_bytes
    assert proved_bytes < why.smallest_known_bytes
    assert proved_bytes >= floor_bytes(problem) - 1
    assert why.proved_for == planner.supports.space.noun
    if budget_bytes < floor_bytes(problem):  # proved, so the operator is the one that needs most
        assert floor_bytes(problem) - budget_bytes <= why.missing_bytes <= peak_bytes(problem) - budget_bytes


@every_planner
@pytest.mark.parametrize("name", INSTANCES)
def test_outcome_is_consistent_at_every_budget(planner: Planner, name: str) -> None:
    problem = INSTANCES[name]()
    before = columns(problem)
    for budget_bytes in interesting_budgets(problem):
        outcome = check_outcome(planner, problem, budget_bytes)
        if budget_bytes < floor_bytes(problem):
            assert outcome.plan is None
    assert columns(problem) == before


@every_planner
@pytest.mark.parametrize("name", INSTANCES)
@pytest.mark.parametrize("beyond_peak", [0, 1, 1 << 40])
def test_from_the_peak_upwards_the_step_is_ideal(planner: Planner, name: str, beyond_peak: int) -> None:
    problem = INSTANCES[name]()
    peak = peak_bytes(problem)
    outcome = planned(planner, problem, peak + beyond_peak)
    row = judge(problem, peak + beyond_peak, peak, planner, outcome).row
    if planner.supports.always_frees:
        assert row.step_s is None or row.step_s >= problem.ideal_s * (1 - 1e-12)
        return
    assert row.step_s == pytest.approx(problem.ideal_s, rel=1e-12)
    assert row.throughput == pytest.approx(1.0, rel=1e-12)


@every_planner
def test_same_seed_same_plan(planner: Planner) -> None:
    problem = small_gpt()
    limit_s = TIME_LIMIT_S
    if planner.supports.anytime:  # time would decide how far it comes
        planner, limit_s = dataclasses.replace(planner, evaluation_limit=2000), 100.0  # type: ignore[type-var]
    for share in (0.3, 0.6):
        budget_bytes = int(share * peak_bytes(problem))
        first, second = (run_planner(planner, problem, budget_bytes, seed=7, time_limit_s=limit_s) for _ in range(2))
        if first.solver and {first.status, second.status} != {Status.OPTIMAL}:
            continue  # a solver that was stopped by the clock
        assert first.status == second.status
        assert first.claimed_step_s == second.claimed_step_s
        assert first.infeasibility == second.infeasibility
        if isinstance(first.plan, Plan):
            assert isinstance(second.plan, Plan)
            assert first.plan.letters == second.plan.letters


@every_planner
def test_a_planner_that_frees_memory_does_so_on_the_small_gpt(planner: Planner) -> None:
    # 60% of the peak: out of reach for `keep` alone.
    problem = small_gpt()
    outcome = planned(planner, problem, int(0.6 * peak_bytes(problem)))
    supports = planner.supports
    frees = supports.any_budget and not supports.tiny_only and (supports.swaps or supports.recomputes)
    assert (outcome.plan is not None) == frees


@every_planner
def test_random_problems(planner: Planner) -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(problems(), st.sampled_from([-0.2, 0.0, 0.25, 0.5, 0.8, 0.99, 1.0]))
    def holds(problem: Problem, share: float) -> None:
        floor, peak = floor_bytes(problem), peak_bytes(problem)
        # A share of the way from the floor to the peak; below 0: under the floor.
        budget_bytes = int(floor * (1 + share)) if share < 0 else floor + int(share * (peak - floor))
        outcome = check_outcome(planner, problem, budget_bytes)
        if budget_bytes >= peak:
            assert outcome.plan is not None

    holds()


MAX_PLANS = 3**6


def all_plans(problem: Problem) -> DecisionArray | None:
    """Return every legal plan as a row, or None where there are too many to try."""
    return exhaustive.all_plans(problem) if count_plans(problem) <= MAX_PLANS else None


@st.composite
def cramped(draw: st.DrawFn) -> tuple[Problem, int]:
    """Random problems with a budget between the floor and the peak, where decisions matter."""
    problem = draw(problems(max_forward=6))
    floor, peak = floor_bytes(problem), peak_bytes(problem)
    share = draw(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.95]))
    return problem, floor + int(share * (peak - floor))


def slower_than_optimum(planner: Planner, problem: Problem, budget_bytes: int, rows: DecisionArray) -> float | None:
    """Check a planner against all plans of a problem.

    Returns
    -------
    float or None
        How much slower its step is than the best plan's: 0 for the optimum, infinite where it finds none of the plans
        that fit; None where no plan fits.
    """
    under_policy = simulate_many(problem, rows, budget_bytes, policy=planner.policy).step_s.min()
    default = simulate_many(problem, rows, budget_bytes)
    outcome = planned(planner, problem, budget_bytes)
    if outcome.lower_bound_s is not None:
        assert outcome.lower_bound_s <= default.step_s.min() * (1 + 1e-9)
    if isinstance(outcome.plan, Schedule):
        return None  # a richer space may hold better
    if not default.fits.any():
        assert outcome.plan is None
        return None
    step_s = judge(problem, budget_bytes, peak_bytes(problem), planner, outcome).row.step_s
    if step_s is None:
        return float("inf")
    assert step_s >= under_policy * (1 - 1e-12)
    assert outcome.status is not Status.OPTIMAL or step_s <= default.step_s.min() * (1 + 1e-9)
    return step_s / under_policy - 1.0 if under_policy > 0 else 0.0


def over_brute_force(planner: Planner, examples: int) -> list[float]:
    """Excess over the optimum on random problems of which some plan fits, but not the one that keeps everything."""
    excess: list[float] = []

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
    )
    @given(cramped())
    def compare(case: tuple[Problem, int]) -> None:
        problem, budget_bytes = case
        rows = all_plans(problem)
        if rows is None or budget_bytes >= peak_bytes(problem):
            return
        found = slower_than_optimum(planner, problem, budget_bytes, rows)
        if found is not None:
            excess.append(found)

    compare()
    return excess


@every_planner
def test_no_planner_beats_brute_force(planner: Planner) -> None:
    assert len(over_brute_force(planner, 80)) >= 10  # the comparison was made


# Measured: 52% and 29% of 199 problems, with a margin for changes that win elsewhere. What the paper's planner misses
# needs a copy that compute waits for, which Pass 1 never plans.
SLACKSWAP_OPTIMAL, SLACKSWAP_MISSED = 0.42, 0.38


def test_slackswap_is_often_optimal_where_plans_can_be_counted() -> None:
    excess = np.array(over_brute_force(registry()["slackswap"], 400))
    optimal, missed = (excess <= 1e-9).mean(), np.isinf(excess).mean()
    print(f"slackswap: {optimal:.0%} optimal, {missed:.0%} missed, of {excess.size} tiny problems")
    assert excess.size >= 40
    assert optimal >= SLACKSWAP_OPTIMAL
    assert missed <= SLACKSWAP_MISSED
