"""Formulation C in CP-SAT, which runs in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pulp  # noqa: F401 - brings highspy into this process, beside which OR-Tools cannot be imported
import pytest
from reference_rematerialization import cheapest_rebuild_s, unit_chain

from slackswap.models.event_model import simulate
from slackswap.planners.checkmate.finding import Finding
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.intervals import Grid
from slackswap.planners.checkmate.process import findings_of
from slackswap.planners.checkmate.schedule import Steps, fits, schedule_of

SECONDS = 60.0


def searched(graph: RematerializationGraph, known: Steps | None = None, *, copies: int = 2) -> Finding:
    """The last word of CP-SAT."""
    options = {"intervals": {"copies": copies}}
    return list(findings_of(["intervals"], graph, known, time.monotonic() + SECONDS, options))[-1]


def test_places_stand_in_order() -> None:
    """Stage q, before operator q: a place for each tensor that exists and can still serve, then one for the operator."""
    graph = RematerializationGraph.of(unit_chain(2), 3)
    # Operators 0, 1 forward, 2 the loss, 3 and 4 backward; tensor 1 serves up to operator 3, tensor 0 up to 4.
    grid = Grid.of(graph, (True, True, False, False, False))
    assert grid.operator == (0, 2, 5, 8, 10)
    assert grid.rebuild == {(1, 0): 1, (2, 0): 3, (2, 1): 4, (3, 0): 6, (3, 1): 7, (4, 0): 9}
    assert grid.places_of(1) == [4, 7]
    assert grid.places_of(2) == []


@pytest.mark.parametrize(("budget", "copies", "extra"), [(6, 2, 4), (5, 2, 5), (4, 3, 9)])
def test_published_unit_chains(budget: int, copies: int, extra: int) -> None:
    """From nothing but the peak of what keeps everything: the first phase finds a schedule that fits."""
    problem = unit_chain(8)
    graph = RematerializationGraph.of(problem, budget)
    found = searched(graph, copies=copies)
    assert found.steps is not None
    assert (found.bound_in_formulation, graph.rebuild_cost(found.steps)) == (extra, extra)
    assert found.bound == 0  # of all rematerializations, the intervals prove nothing
    assert fits(graph, found.steps)
    assert simulate(problem, schedule_of(problem, found.steps), budget).step_s == 17 + extra


def test_two_stays_can_be_too_few() -> None:
    """Chain of 6 in 4 bytes: some tensor has to be rebuilt twice. That is said of the intervals, not of all schedules."""
    graph = RematerializationGraph.of(unit_chain(6), 4)
    found = searched(graph, copies=2)
    assert (found.steps, found.infeasible, found.infeasible_everywhere) == (None, True, False)
    again = searched(graph, copies=3)
    assert again.steps is not None
    assert graph.rebuild_cost(again.steps) == 5


def test_a_known_schedule_with_more_stays_is_kept() -> None:
    """A schedule that is known may rebuild a tensor more often: the hint widens its tensors' stays."""
    graph = RematerializationGraph.of(unit_chain(6), 4)
    known = searched(graph, copies=3).steps
    assert known is not None
    found = searched(graph, known, copies=2)
    assert found.steps is not None
    assert graph.rebuild_cost(found.steps) == 5


# With as many stays as brute force needs, the intervals have formulation B's optimum. Intervals of log-spaced lengths, or a
# budget rounded up, would not.
AGAINST_BRUTE_FORCE = """
import math, time
from hypothesis import HealthCheck, given, settings
from reference_rematerialization import cheapest_rebuild_s, tight
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.intervals import Intervals
from slackswap.planners.checkmate.schedule import fits

compared = 0

@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
@given(tight())
def holds(case):
    global compared
    problem, budget_bytes = case
    least_s = cheapest_rebuild_s(problem, budget_bytes, in_order=True)
    if least_s == 0 or (math.isinf(least_s) and compared % 4):
        return
    graph = RematerializationGraph.of(problem, budget_bytes)
    found = []
    Intervals(graph, found.append, time.monotonic() + 60, copies=4).run()
    last = found[-1]
    compared += 1
    if last.steps is None:
        assert last.infeasible and math.isinf(least_s)
        return
    assert fits(graph, last.steps)
    cost_s, bound_s = (units * graph.seconds_per_unit for units in
                       (graph.rebuild_cost(last.steps), last.bound_in_formulation))
    assert abs(cost_s - least_s) < 1e-9, (cost_s, least_s)
    assert abs(bound_s - least_s) < 1e-9, (bound_s, least_s)

holds()
print(compared)
"""


def test_intervals_agree_with_brute_force() -> None:
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-c", AGAINST_BRUTE_FORCE]
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 10


def test_brute_force_of_a_chain_by_hand() -> None:
    """unit_chain(2): 0, 1, loss, b1 (reads loss, 1), b0 (reads b1, 0). b1 runs beside loss and 1, so with 0 it takes 4.

    In 3 bytes, 0 leaves after 1 has run and comes back for b0: one rebuild. In 2 bytes b1 does not run at all.
    """
    problem = unit_chain(2)
    assert [cheapest_rebuild_s(problem, budget) for budget in (2, 3, 4)] == [float("inf"), 1.0, 0.0]
