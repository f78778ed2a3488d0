"""Regressions of the event model and of what feeds it: each test is a defect that an attack found, and its cure."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import simulate, simulate_many
from slackswap.models.legality import check
from slackswap.models.plan import SWAP, Plan
from slackswap.models.plan_file import PlannerRecord, read_plan, write_plan
from slackswap.models.problem import PHASES, Operator, Problem, Tensor
from slackswap.models.schedule import Schedule


def test_simulate_many_leaves_the_callers_array_writable() -> None:
    decisions = np.zeros((2, 2), np.int8)
    simulate_many(two_layers(), decisions, math.inf)
    decisions[0, 0] = 1


def test_no_tensor_is_both_offloaded_and_rebuilt() -> None:
    # a0 leaves after f0, goes after f1, is rebuilt (code 4) before b0: its copy back could be under way at the rebuild.
    schedule = Schedule.from_lists([0, 1, 2, 4, 3], [[], [0], [1], [], [0]], [(0, 0)])
    with pytest.raises(InputError, match="the tensor is offloaded too"):
        simulate(two_layers(), schedule, 1000 * MB)


def test_a_legal_schedule_fits_without_a_budget() -> None:
    # b is queued behind a (1 GB) when b1 reads it: its offload is cancelled (rule 7). The drop after b1 then is void: it
    # would release the only copy, and b0's prefetch would have no host copy to come from.
    phases = [("f0", "forward"), ("f1", "forward"), ("b1", "backward"), ("b0", "backward")]
    operators = [Operator(name, phase, MS) for name, phase in phases]
    tensors = [Tensor("a", 1000 * MB, 0, (3,)), Tensor("b", 1 * MB, 1, (2, 3))]
    problem = Problem.from_records("queue", operators, tensors, PLAIN_LINK)
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [1], [1], [0, 1]], [(0, 0), (1, 1)], [(1, 2, 1), (1, 3, 2)])
    assert check(problem, schedule) == []
    score = simulate(problem, schedule, math.inf)
    assert score.fits, (score.failed_step, score.missing_bytes)


def test_no_offload_before_its_tensor_is_produced() -> None:
    # offload_after = -1 passes `check` for tensors of step 0; the copy starts at time 0, before f0 has written a0.
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], [0]], [(0, -1)], [(0, 3, 1)])
    assert check(two_layers(), schedule) != []


@pytest.mark.parametrize("rows", [[[256, 257]], [[0.9, 1.9]]])
def test_decisions_do_not_wrap_or_round(rows: list[list[float]]) -> None:
    with pytest.raises(InputError):
        simulate_many(two_layers(), np.array(rows), math.inf)  # an int8 would hold 0 and 1


def test_plans_do_not_wrap() -> None:
    with pytest.raises((InputError, OverflowError)):
        Plan(np.array([256, 257]))


def test_huge_budgets() -> None:
    assert simulate(two_layers(), Plan.from_letters("KK"), 10**400).fits


@pytest.mark.parametrize("budget_bytes", [-1, 1.5, math.inf, math.nan])
def test_what_is_written_can_be_read(tmp_path: Path, budget_bytes: float) -> None:
    # write_plan takes any budget; read_plan then refuses the file. Refusing at once (InputError) would do as well.
    path = tmp_path / "plan.json"
    try:
        write_plan(path, two_layers(), Plan.from_letters("KK"), budget_bytes, PlannerRecord("x"))  # type: ignore[arg-type]
    except InputError:
        return
    read_plan(path, two_layers())


def test_numpy_integers_can_be_written(tmp_path: Path) -> None:
    write_plan(tmp_path / "p.json", two_layers(), Plan.from_letters("KK"), np.int64(5), PlannerRecord("x"))  # type: ignore[arg-type]


def test_waiting_at_a_barrier_is_no_wait_for_memory() -> None:
    # Budget: infinite. b1 waits from 30 to 50 for a0's offload, because of the barrier.
    problem = two_layers(Link(2.5e8, 1e9, 1.0, 0.0))
    score = simulate(problem, Plan.from_letters("SK"), math.inf, policy="barriers", timeline=True)
    assert score.timeline is not None
    assert score.timeline.memory_wait_s.sum() == 0
    assert score.timeline.barrier_wait_s.tolist() == pytest.approx([0, 0, 20 * MS, 0])


def test_two_copies_that_end_at_one_instant_end_together() -> None:
    # Copies of 5 MB at 1 GB/s. a0 leaves from 5 to 10 ms, a1 from 10 to 15 ms, while a0 comes back for b0, from 10 to 15 ms.
    # When a1's copy ended, the rest of a0's, nothing, was timed anew, and rounding put its end behind 15 ms: rule 10 says
    # that both end before anything starts.
    times_ms = (5, 1, 1, 5, 2, 3)
    operators = [Operator(f"o{i}", PHASES[i >= 3], ms * MS, layer=i) for i, ms in enumerate(times_ms)]
    sizes = (5 * MB, 5 * MB, 20 * MB)
    tensors = [Tensor(f"a{i}", size, i, (i + 1, 5 - i) if i < 2 else (3,)) for i, size in enumerate(sizes)]
    link = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9, duplex_factor=1.0, latency_s=0.0)
    problem = Problem.from_records("instant", operators, tensors, link)
    timeline = simulate(problem, Plan(np.full(3, SWAP, np.int8)), 200 * MB, timeline=True).timeline
    assert timeline is not None
    assert timeline.copy_start_s.tolist() == [0.005, 0.01, 0.01]
    assert timeline.copy_end_s[1] == timeline.copy_end_s[2] == 0.015
