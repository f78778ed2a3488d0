"""Validation and repair (paper, section 3.4) on instances worked out by hand.

Links move 1 MB per ms without latency, so a copy of x MB takes x ms.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from instances import MB, MS, PLAIN_LINK, chain, two_layers

from slackswap.hardware.link import Link
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.plan import KEEP, RECOMPUTE, DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners import run_planner
from slackswap.planners.slackswap import GUARD, RECOMPUTE_ONLY, ROUNDS, SLACKSWAP, TwoPasses, _Repair, _Search


def learned(problem: Problem, letters: str, budget_mb: float, repair: _Repair | None = None) -> _Repair:
    """Return what one replay of a plan teaches."""
    plan = Plan.from_letters(letters)
    taught = repair or _Repair(problem)
    taught.learn(plan.decisions, simulate(problem, plan, int(budget_mb * MB), timeline=True))
    return taught


def late_prefetch(rebuild_ms: float) -> Problem:
    """A swapped tensor that comes back 5 ms late.

    ::

        f0 10   writes a, 10 MB      offload 10-20 ms
        f1 20   writes w, 20 MB      30 ms: T_F
        b1  5   reads w              30-35 ms; prefetch of a 30-40 ms
        b0 20   reads a              waits from 35 to 40 ms
    """
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 20 * MS),
        Operator("b1", "backward", 5 * MS),
        Operator("b0", "backward", 20 * MS),
    ]
    tensors = [
        Tensor("a", 10 * MB, 0, (3,), rebuild=Rebuild(rebuild_ms * MS)),
        Tensor("w", 20 * MB, 1, (2,), rebuild=Rebuild(100 * MS)),
    ]
    return Problem.from_records("late prefetch", operators, tensors, PLAIN_LINK)


@pytest.mark.parametrize(
    ("rebuild_ms", "recomputed"),
    [
        (4, True),  # cheaper than the wait of 5 ms
        (6, False),  # dearer: kept, or recomputed where Pass 2 says so, but not swapped
    ],
)
def test_a_late_prefetch_is_recomputed_if_that_is_cheaper_than_the_wait(rebuild_ms: float, recomputed: bool) -> None:
    repair = learned(late_prefetch(rebuild_ms), "SK", 30)
    assert repair.recompute.tolist() == [recomputed, False]
    assert repair.never_swap.tolist() == [not recomputed, False]
    # Nothing else was wrong: no stall in the forward pass, no wait for memory.
    assert repair.guard == GUARD
    assert repair.shrink == 0.0


def test_a_prefetch_in_time_teaches_nothing() -> None:
    # On a link of 2 MB per ms the prefetch ends at 35 ms, when b1 does.
    problem = late_prefetch(4).with_link(Link(2e9, 2e9, duplex_factor=1.0, latency_s=0.0))
    repair = _Repair(problem)
    plan = Plan.from_letters("SK")
    assert not repair.learn(plan.decisions, simulate(problem, plan, 30 * MB, timeline=True))


def lagging_offload(second_ms: float) -> Problem:
    """f0 (10 ms) writes a, 10 MB, copied from 10 to 20 ms; then f1; then f2 (20 ms) writes w, 20 MB. a is read last."""
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", second_ms * MS),
        Operator("f2", "forward", 20 * MS),
        Operator("b1", "backward", 40 * MS),
        Operator("b0", "backward", 20 * MS),
    ]
    tensors = [Tensor("a", 10 * MB, 0, (4,)), Tensor("w", 20 * MB, 2, (3,))]
    return Problem.from_records("lagging offload", operators, tensors, PLAIN_LINK)


@pytest.mark.parametrize(
    ("second_ms", "guard"),
    [
        # With 25 MB, w has to wait for a's copy: f2 stands from 12 to 20 ms. T_F = 32 ms, and 8 / 32 = 25%.
        (2, 0.02 + 0.25),
        # From 19.9 to 20 ms: 0.1 / 49.9 = 0.2%, less than the least step of 1%.
        (9.9, 0.02 + 0.01),
        # f1 ends when the copy does.
        (10, 0.02),
    ],
)
def test_offloads_that_lag_raise_the_guard(second_ms: float, guard: float) -> None:
    assert learned(lagging_offload(second_ms), "SK", 25).guard == pytest.approx(guard)


def test_the_guard_keeps_rising_while_offloads_lag() -> None:
    repair = _Repair(lagging_offload(2))
    for rounds in (1, 2, 3):
        learned(repair.problem, "SK", 25, repair)
        assert repair.guard == pytest.approx(0.02 + 0.25 * rounds)


def test_plans_that_do_not_fit_are_made_for_budgets_1_2_4_percent_smaller() -> None:
    repair = _Repair(two_layers())
    shrinks = []
    for _ in range(4):
        learned(repair.problem, "KK", 29, repair)  # the peak is 30 MB
        shrinks.append(repair.shrink)
    assert shrinks == [0.01, 0.02, 0.04, 0.08]


def test_a_wait_for_memory_in_the_backward_pass_shrinks_the_budget_too() -> None:
    # a's 30 MB leave from 10 to 40 ms; T_F is 20 ms. With 40 MB, b0's 20 MB of workspace wait from 20 to 40 ms.
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 10 * MS),
        Operator("b0", "backward", 10 * MS, 20 * MB),
        Operator("b1", "backward", 10 * MS),
    ]
    problem = Problem.from_records("transient", operators, [Tensor("a", 30 * MB, 0, (3,))], PLAIN_LINK)
    score = simulate(problem, Plan.from_letters("S"), 40 * MB, timeline=True)
    assert score.timeline is not None
    assert score.timeline.memory_wait_s[2] == pytest.approx(20 * MS)
    assert learned(problem, "S", 40).shrink == 0.01


def test_budgets_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    # No plan of `two_layers` fits into 20 MB: while f1 runs, its input and its output are there, 30 MB. Six rounds (section
    # 3.4): the plan without swaps, then five with them for the budget shrunk by 0, 1, 2, 4, 8%.
    asked: list[tuple[int, bool]] = []
    run = TwoPasses.run

    def record(
        self: TwoPasses,
        budget_bytes: int,
        guard: float,
        decisions: DecisionArray,
        never_swap: npt.NDArray[np.bool_],
        *,
        swaps: bool,
    ) -> bool:
        asked.append((budget_bytes, swaps))
        return run(self, budget_bytes, guard, decisions, never_swap, swaps=swaps)

    monkeypatch.setattr(TwoPasses, "run", record)
    search = SLACKSWAP.search(TwoPasses(two_layers(), "cost"), 20 * MB)
    shrunk = [int(20 * MB * (1 - share)) for share in (0, 0.01, 0.02, 0.04, 0.08)]
    assert asked == [(20 * MB, False), *((n_bytes, True) for n_bytes in shrunk)]
    assert search.best is None
    assert ROUNDS == 6


def test_no_more_rounds_than_there_are_things_to_repair() -> None:
    # M = P: keeping everything fits. M = 80%: one round without swaps and one with them show nothing to repair.
    assert run_planner(SLACKSWAP, chain(6), 6 * MB).evaluations == 1
    assert run_planner(SLACKSWAP, chain(6), int(4.8 * MB)).evaluations == 3
    assert run_planner(RECOMPUTE_ONLY, chain(6), int(4.8 * MB)).evaluations == 2


def test_what_repair_forbids_and_forces_is_obeyed() -> None:
    passes = TwoPasses(chain(6), "cost")
    decisions = np.full(6, KEEP, np.int8)
    never_swap = np.zeros(6, np.bool_)
    passes.run(4 * MB, GUARD, decisions, never_swap, swaps=True)
    swapped = np.flatnonzero(decisions == 1)
    assert swapped.tolist() == [0, 1]  # as they stand; a0 has no rebuild, a1 is the first of equals
    never_swap[0] = True
    forced = np.full(6, KEEP, np.int8)
    forced[1] = RECOMPUTE
    passes.run(4 * MB, GUARD, forced, never_swap, swaps=True)
    assert forced[0] == KEEP
    assert forced[1] == RECOMPUTE


def test_the_fastest_plan_seen_is_kept() -> None:
    # In 5 MB, one rebuild (19 ms), then two (20 ms), then a swap that hides (18 ms), then one rebuild again.
    search = _Search(TwoPasses(chain(6), "cost"), 5 * MB)
    fastest_ms = []
    for letters in ("KKRKKK", "KRRKKK", "SKKKKK", "KKRKKK"):
        search.try_plan(Plan.from_letters(letters))
        fastest_ms.append(search.best_s / MS)
    assert fastest_ms == pytest.approx([19, 19, 18, 18])
    assert search.best is not None
    assert search.best.letters == "SKKKKK"


def test_where_no_plan_fits_the_closest_is_remembered() -> None:
    # `two_layers` in 25 MB: kept or not, a0 is there while f1 writes 20 MB; 5 MB are missing.
    search = _Search(TwoPasses(two_layers(), "cost"), 25 * MB)
    search.try_plan(Plan.from_letters("KK"))
    assert search.closest is not None
    assert search.closest_missing_bytes == 5 * MB


def test_smallest_budget_is_within_a_thousandth() -> None:
    # chain(100) has 100 MB; what the planner can do below that is bisected.
    problem = chain(100)
    outcome = run_planner(RECOMPUTE_ONLY, problem, 1 * MB)
    why = outcome.infeasibility
    assert why is not None
    assert why.smallest_feasible_bytes is not None
    assert why.smallest_feasible_bytes < peak_bytes(problem)
    below = why.smallest_feasible_bytes - why.smallest_feasible_bytes // 1000 - 1
    assert run_planner(RECOMPUTE_ONLY, problem, below).plan is None
