"""What `run_planner` adds to a planner, and how functions become planners."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK, chain, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule
from slackswap.planners import FunctionPlanner, Outcome, Planner, Status, Supports, as_planner, run_planner
from slackswap.planners.protocol import infeasible, judged


@dataclass(frozen=True)
class Recorder:
    """A planner that notes how it was called."""

    supports: Supports
    name: str = "recorder"
    description: str = "notes how it was called"
    policy: str = "default"
    calls: list[tuple[object, ...]] = field(default_factory=list)

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        self.calls.append((budget_bytes, type(budget_bytes), float(rng.random()), time_limit_s))
        return Outcome(Status.FEASIBLE, Plan.keep_everything(problem), seconds=-1.0, seed=99)


def test_seed_is_recorded_only_where_the_result_depends_on_it() -> None:
    for randomized, seed in ((True, 5), (False, None)):
        outcome = run_planner(Recorder(Supports(randomized=randomized)), two_layers(), 30 * MB, seed=5)
        assert outcome.seed == seed
        assert outcome.seconds >= 0  # whatever the planner says


def test_each_run_has_its_own_generator() -> None:
    planner = Recorder(Supports(randomized=True))
    for seed in (1, 2, 1):
        run_planner(planner, two_layers(), 30 * MB, seed=seed)
    first, second, third = (call[2] for call in planner.calls)
    assert first == third == np.random.default_rng(1).random()
    assert first != second


def test_budget_and_time_limit_reach_the_planner() -> None:
    planner = Recorder(Supports())
    run_planner(planner, two_layers(), np.int64(30 * MB), time_limit_s=2.5)  # type: ignore[arg-type]  # as users pass it
    run_planner(planner, two_layers(), 30 * MB)
    assert [(call[0], call[1], call[3]) for call in planner.calls] == [(30 * MB, int, 2.5), (30 * MB, int, None)]


def test_an_outcome_is_frozen() -> None:
    outcome = run_planner(Recorder(Supports()), two_layers(), 30 * MB)
    with pytest.raises(dataclasses.FrozenInstanceError):
        outcome.status = Status.OPTIMAL  # type: ignore[misc]


def recompute_a1(problem: Problem, _budget_bytes: int) -> Plan:
    """Recompute the second tensor.

    More text.
    """
    return Plan.from_letters("KR" + "K" * (problem.n_tensors - 2))


def test_a_function_becomes_a_planner() -> None:
    planner = as_planner(recompute_a1)
    assert isinstance(planner, FunctionPlanner)
    assert isinstance(planner, Planner)
    assert planner.name == "recompute-a1"
    assert planner.description == "Recompute the second tensor."
    outcome = run_planner(recompute_a1, two_layers(), 30 * MB)
    assert outcome.status is Status.FEASIBLE
    assert outcome.claimed_step_s == pytest.approx(110 * MS)  # 90 + 20


def test_a_function_without_a_docstring() -> None:
    planner = as_planner(lambda problem, _: Plan.keep_everything(problem))
    assert planner.name == "lambda"
    assert planner.description == "a function of the user"


def test_a_planner_stays_what_it_is() -> None:
    planner = Recorder(Supports())
    assert as_planner(planner) is planner


def test_a_function_whose_plan_does_not_fit() -> None:
    # While f1 runs, a0 and a1 are there: 30 MB; one byte is missing. Recomputation does not help: it needs no less.
    outcome = run_planner(recompute_a1, two_layers(), 30 * MB - 1)
    assert outcome.status is Status.INFEASIBLE
    assert outcome.plan is None
    why = outcome.infeasibility
    assert why is not None
    assert (why.operator, why.missing_bytes, why.smallest_feasible_bytes) == ("f1", 1, 30 * MB)


def test_a_function_that_finds_nothing() -> None:
    outcome = run_planner(lambda _problem, _budget: None, two_layers(), 10 * MB)
    assert outcome.status is Status.INFEASIBLE
    why = outcome.infeasibility
    assert why is not None
    # What is known without it: keeping everything lacks 20 MB at f1, and does with 30 MB.
    assert (why.operator, why.missing_bytes, why.smallest_feasible_bytes) == ("f1", 20 * MB, 30 * MB)


def test_a_function_may_return_an_outcome_or_a_schedule() -> None:
    theirs = Outcome(Status.TIME_LIMIT, evaluations=3)
    outcome = run_planner(lambda _problem, _budget: theirs, two_layers(), 30 * MB)
    assert (outcome.status, outcome.evaluations) == (Status.TIME_LIMIT, 3)

    def schedule(problem: Problem, _budget_bytes: int) -> Schedule:
        return lower(problem, Plan.from_letters("SR"))

    assert run_planner(schedule, two_layers(), 40 * MB).status is Status.FEASIBLE


@pytest.mark.parametrize("wrong", ["KK", 3, [0, 1], {"plan": "KK"}, np.zeros(2, np.int8)])
def test_a_function_that_returns_something_else(wrong: object) -> None:
    def guess(_problem: Problem, _budget_bytes: int) -> object:
        return wrong

    with pytest.raises(InputError, match=r"^guess: returned .*: return a Plan, a Schedule, an Outcome or None$"):
        run_planner(guess, two_layers(), 30 * MB)  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize("letters", ["KKK", "K", "", "RR"])
def test_a_function_whose_plan_is_illegal(letters: str) -> None:
    # Tensor 0 of a chain has no rebuild; other plans have the wrong length.
    with pytest.raises(InputError, match="decisions"):
        run_planner(lambda _problem, _budget: Plan.from_letters(letters), chain(2), 30 * MB)


@pytest.mark.parametrize("wrong", [None, 3, "slackswap", object()])
def test_what_is_no_planner(wrong: object) -> None:
    with pytest.raises(InputError, match="is not a planner: pass an object with `plan`, or a function"):
        as_planner(wrong)  # type: ignore[arg-type]  # the mistake under test


def test_judged_asks_the_policy_too() -> None:
    # a0 (1 MB) leaves at 0.25 MB per ms, from 1 to 5 ms. Its copy overlaps f1 (1-2 ms); with barriers f2 waits for it.
    slow = chain(3).with_link(dataclasses.replace(PLAIN_LINK, d2h_bytes_per_s=2.5e8))
    free, held = (judged(slow, Plan.from_letters("SKK"), 9 * MB, policy=policy) for policy in ("default", "barriers"))
    assert free.claimed_step_s == pytest.approx(9 * MS)
    # f2 runs from 5 to 6 ms instead of 2 to 3; b2 and b1 read nothing swapped, so that b0 waits from 10 to 11 for a0.
    assert held.claimed_step_s == pytest.approx(13 * MS)


def test_a_smallest_budget_is_only_claimed_where_it_is_known() -> None:
    # Without swaps the peak does not depend on the budget.
    known = infeasible(two_layers(), Plan.from_letters("KK"), 10 * MB).infeasibility
    assert known is not None
    assert known.smallest_feasible_bytes == 30 * MB
    # With them it does: how long a copy keeps its buffer depends on who waits for what.
    unknown = infeasible(two_layers(), Plan.from_letters("SK"), 10 * MB).infeasibility
    assert unknown is not None
    assert unknown.smallest_feasible_bytes is None
