"""The rematerialization graph of a problem: units, rounding, and what can still be useful when."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from instances import MB, MS, PLAIN_LINK, chain, one_operator, problems, two_layers, zero_sizes

from slackswap.models.event_model import simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners.checkmate.graph import MAX_BUDGET_UNITS, MAX_COST_UNITS, RematerializationGraph


def odd_sizes(size_bytes: int, rebuild_s: float = 1 * MS) -> Problem:
    """One saved tensor of any size beside one of 1 byte."""
    operators = [Operator("f", "forward", 1 * MS), Operator("b", "backward", 1 * MS, workspace_bytes=3)]
    tensors = [
        Tensor("large", size_bytes, producer=0, readers=(1,), rebuild=Rebuild(rebuild_s)),
        Tensor("small", 1, producer=0, readers=(1,), rebuild=Rebuild(2 * rebuild_s, workspace_bytes=2)),
    ]
    return Problem.from_records("odd sizes", operators, tensors, PLAIN_LINK)


def test_two_layers_by_hand() -> None:
    # Sizes 10 and 20 MB have the divisor 10 MB, costs 10 and 20 ms the divisor 10 ms.
    graph = RematerializationGraph.of(two_layers(), 25 * MB)
    assert graph.bytes_per_unit == 10 * MB
    assert graph.seconds_per_unit == pytest.approx(10 * MS)
    assert (graph.sizes, graph.costs, graph.budget) == ((1, 2), (1, 2), 2)  # 25 MB are two whole units
    assert graph.exact_memory
    assert graph.reads == ((), (0,), (1,), (0,))
    assert graph.writes == ((0,), (1,), (), ())
    assert graph.allocations == (1, 2, 0, 0)
    assert graph.inputs == ((), (0,))
    assert graph.kept_profile.tolist() == [1, 3, 3, 1]
    assert graph.working_sets.tolist() == [1, 3, 2, 1]
    # Steps 4 and 5 are the rebuilds of a0 and a1.
    assert graph.rebuild_cost([0, 1, 2, 4, 3, 5]) == 3
    assert (graph.inputs_of(5), graph.outputs_of(5), graph.workspace_of(5)) == ((0,), (1,), 0)


def test_sizes_are_rounded_up_and_budgets_down() -> None:
    # A trap of CP-SAT and MILP models alike: a budget rounded up gives plans over budget.
    problem = odd_sizes(10**12 + 7)
    for budget_bytes in (10**12 + 6, 10**12 + 12, 2 * 10**12 - 1):
        graph = RematerializationGraph.of(problem, budget_bytes)
        unit = graph.bytes_per_unit
        assert graph.budget <= MAX_BUDGET_UNITS
        assert budget_bytes - unit < graph.budget * unit <= budget_bytes
        assert 0 <= graph.sizes[0] * unit - (10**12 + 7) < unit
        assert graph.sizes[1] == 1
        assert graph.workspace_of(1) == 1
        assert graph.rebuild_workspaces == (0, 1)
        assert not graph.exact_memory


def test_small_sizes_are_exact_whatever_the_divisor() -> None:
    graph = RematerializationGraph.of(odd_sizes(1007), 1009)
    assert (graph.bytes_per_unit, graph.budget, graph.exact_memory) == (1, 1009, True)


def test_costs_are_rounded_down() -> None:
    # 2^30 units at most: 1,000 and some 2,000 s are counted in steps of 3,000 / 2^30 s.
    problem = dataclasses.replace(odd_sizes(1000), rebuild_s=np.array([1000.0, 2000.000000001]))
    graph = RematerializationGraph.of(problem, 1000)
    assert 0.9 * MAX_COST_UNITS < sum(graph.costs) <= MAX_COST_UNITS
    for cost, true_s in zip(graph.costs, problem.rebuild_s, strict=True):
        assert true_s - graph.seconds_per_unit < cost * graph.seconds_per_unit <= true_s


def test_whole_costs_stay_whole() -> None:
    # 0.00659 s is not a float, but 659 units of 10 us are exact.
    problem = odd_sizes(1000, rebuild_s=659e-5)
    graph = RematerializationGraph.of(problem, 1000)
    assert [cost * graph.seconds_per_unit / 1e-5 for cost in graph.costs] == pytest.approx([659, 1318], abs=1e-9)


def test_empty_tensors_are_left_out() -> None:
    # a1 of `zero_sizes` has no bytes: nothing is gained by dropping it, and nobody has to hold it.
    graph = RematerializationGraph.of(zero_sizes(), 0)
    assert graph.rebuildable == (False, False)
    assert graph.reads == ((), (0,), (), (0,))
    assert graph.writes == ((0,), (), (), ())


def test_no_tensors_no_time_no_bytes() -> None:
    problem = Problem.from_records("nothing", [Operator("f0", "forward", 0.0)], [], PLAIN_LINK)
    graph = RematerializationGraph.of(problem, 0)
    assert (graph.n_tensors, graph.budget, graph.kept_profile.tolist()) == (0, 0, [0])
    assert RematerializationGraph.of(one_operator(), 1 * MB).kept_profile.tolist() == [1]


def test_useful_until_follows_what_can_be_rebuilt() -> None:
    # In a chain of 3, a0 (no rebuild) is read last by b0, operator 5, a1 by b1, operator 4, a2 by b2, operator 3.
    graph = RematerializationGraph.of(chain(3), 3 * MB)
    nothing = (False, False, False)
    assert graph.useful_until(nothing) == [5, 4, 3]
    # a1 is rebuilt from a0, and a2 from a1, but those are needed no longer than their readers anyway.
    assert graph.useful_until(graph.worth_rebuilding(None)) == [5, 4, 3]
    # If b0 read a2, a1 would serve its rebuild up to there.
    late = dataclasses.replace(graph, readers=((1, 5), (2, 4), (3, 5)))
    assert late.useful_until(nothing) == [5, 4, 5]
    assert late.useful_until((False, True, True)) == [5, 5, 5]


def test_rebuilds_that_cost_more_than_a_known_schedule_are_not_worth_it() -> None:
    graph = RematerializationGraph.of(two_layers(), 30 * MB)
    assert graph.worth_rebuilding(None) == (True, True)
    assert graph.worth_rebuilding(2) == (True, True)
    assert graph.worth_rebuilding(1) == (True, False)


def test_kept_profile_is_the_event_models() -> None:
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(problems())
    def holds(problem: Problem) -> None:
        graph = RematerializationGraph.of(problem, 0)
        peak = simulate(problem, Plan.keep_everything(problem), np.inf).peak_bytes
        assert int(graph.kept_profile.max()) * graph.bytes_per_unit == peak

    holds()
