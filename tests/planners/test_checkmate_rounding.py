"""LP rounding: the third mode of `checkmate`."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, given, settings
from instances import PLAIN_LINK
from reference_rematerialization import cheapest_rebuild_s, tight, unit_chain
from shared_data import shared_file

from slackswap.models.problem import Problem
from slackswap.models.traces.profiled_graph import activation_budget_bytes, import_profiled_graph
from slackswap.planners.checkmate.finding import Finding
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.rounding import Rounding
from slackswap.planners.checkmate.schedule import Steps, fits


def rounded(graph: RematerializationGraph, known: Steps | None = None) -> Finding:
    found: list[Finding] = []
    Rounding(graph, found.append, time.monotonic() + 30.0, known).run()
    assert len(found) == 1
    return found[0]


def test_rounded_schedules_fit_and_prove_nothing() -> None:
    found_any = 0

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(tight())
    def holds(case: tuple[Problem, int]) -> None:
        nonlocal found_any
        problem, budget_bytes = case
        graph = RematerializationGraph.of(problem, budget_bytes)
        found = rounded(graph)
        assert (found.bound, found.bound_in_formulation, found.infeasible) == (0, 0, False)
        if found.steps is not None:
            assert fits(graph, found.steps)
            least_s = cheapest_rebuild_s(problem, budget_bytes)
            assert graph.rebuild_cost(found.steps) * graph.seconds_per_unit >= least_s - 1e-9
            found_any += 1

    holds()
    assert found_any >= 20


def test_unit_chain() -> None:
    """The optimum in 8 bytes is 2 rebuilds; the rounding of the relaxation at 0.9 of them needs at most twice that."""
    graph = RematerializationGraph.of(unit_chain(8), 8)
    found = rounded(graph)
    assert found.steps is not None
    assert 2 <= graph.rebuild_cost(found.steps) <= 4


def test_a_known_schedule_is_never_lost() -> None:
    graph = RematerializationGraph.of(unit_chain(8), 8)
    best = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    roomy = RematerializationGraph.of(unit_chain(8), 10)
    assert rounded(roomy, best).steps == best
    first = rounded(graph).steps
    assert first is not None
    again = rounded(graph, first).steps
    assert again is not None
    assert graph.rebuild_cost(again) <= graph.rebuild_cost(first)


@pytest.mark.parametrize(("name", "gib", "optimum"), [("vgg16_176", 10, 250600), ("un_11", 10, 192792)])
def test_published_graphs_are_close(name: str, gib: int, optimum: int) -> None:
    problem = import_profiled_graph(shared_file(f"graphs/{name}_p100.json"), link=PLAIN_LINK)
    graph = RematerializationGraph.of(problem, activation_budget_bytes(problem, gib * 2**30))
    found = rounded(graph)
    assert found.steps is not None
    total = round(problem.ideal_s / graph.seconds_per_unit) + graph.rebuild_cost(found.steps)
    assert optimum <= total <= 1.01 * optimum
