"""Steps to schedules: drops, memory, waste, and staged plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, decisions, problems, two_layers

from slackswap.models.event_model import simulate
from slackswap.models.legality import check
from slackswap.models.lowering import lower
from slackswap.models.plan import KEEP, RECOMPUTE, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import (
    Life,
    StagePlan,
    lives,
    memory_profile,
    pruned,
    schedule_of,
    steps_of_stages,
    without_waste,
)

# The steps of two_layers(): f0 = 0, f1 = 1, b1 = 2, b0 = 3; its rebuilds: a0 = 4, a1 = 5.


def test_drops_follow_from_the_steps() -> None:
    # a0 is last read by f1 before it is rebuilt, a1 by b1, the new a0 by b0.
    schedule = schedule_of(two_layers(), [0, 1, 2, 4, 3])
    assert [schedule.drops_after(k).tolist() for k in range(5)] == [[], [0], [1], [], [0]]
    assert check(two_layers(), schedule) == []
    # 10 MB | 30 MB | 20 MB | 10 MB | 10 MB: f1 needs both.
    score = simulate(two_layers(), schedule, 30 * MB)
    assert (score.fits, score.peak_bytes) == (True, 30 * MB)
    assert score.step_s == pytest.approx(100 * MS)


def test_profile_and_lives_by_hand() -> None:
    graph = RematerializationGraph.of(two_layers(), 30 * MB)
    steps = [0, 1, 4, 5, 2, 3]  # a0 and a1 are rebuilt before b1: a0's first stay ends with f1, a1's with its producer
    assert lives(graph, steps) == [Life(0, 0, 1), Life(1, 1, 1), Life(0, 2, 5), Life(1, 3, 4)]
    assert memory_profile(graph, steps).tolist() == [1, 3, 1, 3, 3, 1]


def test_rebuilds_that_nobody_reads_go() -> None:
    graph = RematerializationGraph.of(two_layers(), 30 * MB)
    # The first rebuild of a0 is read by the rebuild of a1 alone, which is evaluated again before anyone reads it.
    assert pruned(graph, [0, 1, 4, 5, 4, 5, 2, 3]) == [0, 1, 4, 5, 2, 3]
    assert pruned(graph, [0, 1, 2, 3, 4]) == [0, 1, 2, 3]


def test_waste_is_what_memory_does_not_ask_for() -> None:
    problem = two_layers()
    roomy = RematerializationGraph.of(problem, 30 * MB)
    assert without_waste(roomy, [0, 1, 4, 5, 2, 4, 3]) == [0, 1, 2, 3]


def test_waste_is_spared_dearest_first() -> None:
    """Two tensors of 1 MB are away while `peak` works with 2 MB; at 3 MB one of them can stay: the dearer."""
    operators = [
        Operator("f0", "forward", MS),
        Operator("f1", "forward", MS),
        Operator("peak", "forward", MS, workspace_bytes=2 * MB),
        Operator("b", "backward", MS),
    ]
    tensors = [
        Tensor("cheap", 1 * MB, 0, (3,), None, Rebuild(1 * MS)),
        Tensor("dear", 1 * MB, 1, (3,), None, Rebuild(5 * MS)),
    ]
    problem = Problem.from_records("two away", operators, tensors, PLAIN_LINK)
    both = [0, 1, 2, 4, 5, 3]
    assert without_waste(RematerializationGraph.of(problem, 2 * MB), both) == both
    assert without_waste(RematerializationGraph.of(problem, 3 * MB), both) == [0, 1, 2, 4, 3]
    assert without_waste(RematerializationGraph.of(problem, 4 * MB), both) == [0, 1, 2, 3]


def test_a_stage_rebuilds_on_demand_or_in_order() -> None:
    """Chain of 4: b2 and b1 (operators 5 and 6) read a2 and a1, which are away; a1 is rebuilt from a0."""
    graph = RematerializationGraph.of(chain(4), 4 * MB)
    kept = (frozenset[int](), frozenset({0, 3}), frozenset({0}))
    rebuilt = (frozenset[int](), frozenset({1, 2}), frozenset[int]())
    plan = StagePlan((3, 6, 7), kept, rebuilt)
    # On demand: b3, then a1 and from it a2 for b2, then b1. Operator i is i, tensor t is rebuilt by 8 + t.
    assert steps_of_stages(graph, plan) == [0, 1, 2, 3, 4, 9, 10, 5, 6, 7]
    in_order = StagePlan((3, 6, 7), kept, rebuilt, frozenset({1}))
    assert steps_of_stages(graph, in_order) == [0, 1, 2, 3, 9, 10, 4, 5, 6, 7]


def test_what_a_rounded_plan_forgot_is_rebuilt() -> None:
    graph = RematerializationGraph.of(chain(4), 4 * MB)
    nothing = (frozenset[int](),) * 3
    plan = StagePlan((3, 6, 7), (frozenset(), frozenset({0}), frozenset({0})), nothing)
    # a3 too: from a1 and a2, which stay for b2 and b1.
    assert steps_of_stages(graph, plan) == [0, 1, 2, 3, 9, 10, 11, 4, 5, 6, 7]


def test_a_chain_of_thousands_needs_no_recursion() -> None:
    n = 3000
    graph = RematerializationGraph.of(chain(n), n * MB)
    plan = StagePlan((n - 1, 2 * n - 1), (frozenset(), frozenset({0})), (frozenset(), frozenset()))
    steps = steps_of_stages(graph, plan)
    assert len(steps) == 2 * n + n - 1
    assert steps[n : 2 * n - 1] == [2 * n + t for t in range(1, n)]


def test_steps_of_a_plan_are_its_schedule() -> None:
    """A plan without swaps and the schedule made from its steps alone play the same: no drop is late."""

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(problems().flatmap(lambda problem: st.tuples(st.just(problem), decisions(problem))))
    def holds(case: tuple[Problem, str]) -> None:
        problem, letters = case
        plan = Plan.from_letters(letters.replace("S", "K"))
        steps = [int(step) for step in lower(problem, plan).steps]
        schedule = schedule_of(problem, steps)
        assert check(problem, schedule) == []
        theirs, ours = simulate(problem, plan, np.inf), simulate(problem, schedule, np.inf)
        assert ours.step_s == theirs.step_s
        assert ours.peak_bytes <= theirs.peak_bytes

    holds()


def test_profiles_are_the_event_models() -> None:
    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(problems())
    def holds(problem: Problem) -> None:
        everything = problem.saved & problem.rebuildable & (problem.tensor_bytes > 0)
        steps = [int(step) for step in lower(problem, Plan(np.where(everything, RECOMPUTE, KEEP))).steps]
        graph = RematerializationGraph.of(problem, 0)
        lean = pruned(graph, steps)
        score = simulate(problem, schedule_of(problem, lean), np.inf)
        assert int(memory_profile(graph, lean).max(initial=0)) * graph.bytes_per_unit == score.peak_bytes
        assert score.step_s == pytest.approx(problem.ideal_s + graph.rebuild_cost(lean) * graph.seconds_per_unit)

    holds()
