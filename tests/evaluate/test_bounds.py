"""Bounds of cells: certified, computed once, and the same in every run where they have to be."""

from __future__ import annotations

import math

import pytest
from instances import MB, MS, chain, two_layers

from slackswap.evaluate import bounds
from slackswap.evaluate.bounds import certified_bound_s, relaxed_bound_s
from slackswap.hardware import load_hardware
from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.workloads import WORKLOADS


def test_no_plan_fits_below_the_memory_floor() -> None:
    # f1 needs 30 MB; a solver is not asked.
    assert certified_bound_s(two_layers(), 30 * MB - 1) == relaxed_bound_s(two_layers(), 30 * MB - 1) == math.inf
    assert certified_bound_s(two_layers(), 30 * MB) == pytest.approx(90 * MS)


@pytest.mark.parametrize("bound", [certified_bound_s, relaxed_bound_s])
def test_a_bound_is_at_most_what_a_plan_takes(bound: bounds.BoundFunction) -> None:
    problem = chain(6)
    bound_s = bound(problem, 4 * MB)
    assert bound_s is not None
    assert problem.ideal_s * (1 - 1e-9) <= bound_s <= simulate(problem, Plan.from_letters("KRRKKK"), 4 * MB).step_s


def test_a_bound_is_computed_once_for_each_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[tuple[int, bool, float | None]] = []

    def compute(_problem: object, effort: tuple[int, bool, float | None]) -> float:
        computed.append(effort)
        return 1.0

    monkeypatch.setattr(bounds, "_compute_s", compute)
    problem = chain(6)
    for _ in range(2):
        certified_bound_s(problem, 4 * MB)
        certified_bound_s(problem, 5 * MB)
        certified_bound_s(problem, 4 * MB, 7.0)
        relaxed_bound_s(problem, 4 * MB)
    assert computed == [(4 * MB, True, 1.0), (5 * MB, True, 1.0), (4 * MB, True, 7.0), (4 * MB, False, None)]
    certified_bound_s(chain(6), 4 * MB)  # another problem, though an equal one
    assert len(computed) == 5


def test_the_relaxed_bound_is_the_same_in_every_run() -> None:
    # docs/reproduction.md holds gaps to it.
    def run() -> float:
        problem = WORKLOADS["bert-large"].build(load_hardware("a100-pcie4"))
        return relaxed_bound_s(problem, peak_bytes(problem) // 2)

    assert run() == run()
