"""Worked examples for the reference event model: sizes in MB, times in ms, a link that moves 1 MB per ms."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import msgspec
import pytest
from reference_event_model import Interval, PolicyName, ReferenceScore, reference_score
from reference_policies import layers
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor

MB = 10**6
MS = 1e-3
LINK = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9, duplex_factor=0.85, latency_s=0.01 * MS)


def step(name: str, duration_ms: float, workspace_mb: int = 0, layer: int = 0, kind: str = "other") -> Operator:
    """Return an operator; names that start with f are the forward pass."""
    phase = "forward" if name.startswith("f") else "backward"
    return Operator(name, phase, duration_ms * MS, workspace_bytes=workspace_mb * MB, layer=layer, kind=kind)


def saved(name: str, size_mb: int, producer: int, readers: tuple[int, ...], rebuild: Rebuild | None = None) -> Tensor:
    return Tensor(name, size_mb * MB, producer, readers, rebuild=rebuild)


def score(
    operators: list[Operator],
    tensors: list[Tensor],
    decisions: str,
    budget_mb: int,
    link: Link = LINK,
    policy: PolicyName = "default",
) -> ReferenceScore:
    """Score a tiny instance, and check on the way what must hold of every run."""
    problem = Problem.from_records("tiny", operators, tensors, link)
    result = reference_score(problem, decisions, budget_mb * MB, policy)
    check_invariants(problem, result, budget_mb * MB)
    return result


def check_invariants(problem: Problem, result: ReferenceScore, budget_bytes: int) -> None:
    assert all(0 <= used <= budget_bytes for _, used in result.used)
    assert max(used for _, used in result.used) == result.peak_bytes
    for name in ("compute", "d2h", "h2d"):
        for before, after in itertools.pairwise(one for one in result.intervals if one.lane == name):
            assert before.end_s is not None
            assert before.end_s <= after.start_s
    for one in result.intervals:
        if one.lane == "compute":
            assert all(was_there(result, tensor, one.start_s) for tensor in result.steps[one.subject].reads)
    if result.fits:
        stall_s = result.forward_stall_s + result.backward_stall_s
        # Less than 1 ns per step is neither work nor stall: where rule 10 makes two ends one instant, the later.
        snapped_s = 1e-9 * len(result.steps)
        assert result.step_s == pytest.approx(problem.ideal_s + result.recompute_s + stall_s, abs=snapped_s)
        assert result.missing_bytes == 0
    else:
        assert result.missing_bytes > 0


def was_there(result: ReferenceScore, tensor: int, at_s: float) -> bool:
    """Whether something wrote, rebuilt or fetched the tensor before."""
    return any(
        one.end_s is not None
        and one.end_s <= at_s
        and (one.subject == tensor if one.lane == "h2d" else tensor in result.steps[one.subject].writes)
        for one in result.intervals
        if one.lane != "d2h"
    )


def lane(result: ReferenceScore, name: str) -> list[tuple[int, float, float | None]]:
    """Return (subject, start, end) of a lane in ms, to the nanosecond."""
    return [
        (one.subject, in_ms(one.start_s), one.end_s and in_ms(one.end_s))
        for one in result.intervals
        if one.lane == name
    ]


def in_ms(seconds: float) -> float:
    return round(seconds / MS, 6)


def used_mb(result: ReferenceScore) -> list[float]:
    return [used / MB for used in dict(result.used).values()]  # the last at each instant


# One tensor of 10 MB that neither f2 nor b2 reads; f2's workspace does not fit beside it in a budget of 10 MB.
def one_swap(b2_ms: float) -> tuple[list[Operator], list[Tensor]]:
    operators = [step("f0", 10), step("f1", 20), step("f2", 10, workspace_mb=10), step("b2", b2_ms), step("b1", 10)]
    return operators, [saved("t0", 10, 0, (1, 4))]


def test_keep_everything_takes_the_sum_of_the_operator_times_and_lacks_what_the_peak_says() -> None:
    operators, tensors = one_swap(b2_ms=30)
    # f2 holds t0 and its workspace: P = 20 MB.
    assert score(operators, tensors, "K", 20).step_s == sum(operator.duration_s for operator in operators)
    tight = score(operators, tensors, "K", 19)
    assert (tight.fits, tight.failed_step, tight.missing_bytes) == (False, "f2", MB)


def test_swap_is_hidden() -> None:
    result = score(*one_swap(b2_ms=30), "S", 10)
    # Offload: produced at 10, 0.01 of latency and 10 of bytes; the buffer goes when its last forward reader ends, at 30.
    assert lane(result, "d2h") == [(0, 10, 20.01)]
    # Prefetch: the forward pass ends at 40; b1 needs it at 40 + 30 = 70.
    assert lane(result, "h2d") == [(0, 40, 50.01)]
    assert lane(result, "compute") == [(0, 0, 10), (1, 10, 30), (2, 30, 40), (3, 40, 70), (4, 70, 80)]
    assert (result.forward_stall_s, result.backward_stall_s) == (0, 0)
    assert used_mb(result)[-1] == 0
    assert result.peak_bytes == 10 * MB


def test_prefetch_is_exposed() -> None:
    result = score(*one_swap(b2_ms=4), "S", 10)
    # b2 ends at 44, the prefetch at 50.01: b1 waits for 6.01. Operators take 10 + 20 + 10 + 4 + 10 = 54.
    assert in_ms(result.backward_stall_s) == 6.01
    assert in_ms(result.step_s) == 60.01
    assert (result.d2h_bytes, result.h2d_bytes) == (10 * MB, 10 * MB)


def test_offload_is_exposed_in_the_forward_pass() -> None:
    operators = [step("f0", 10), step("f1", 2), step("f2", 10, workspace_mb=10), step("b2", 30), step("b1", 10)]
    result = score(operators, [saved("t0", 10, 0, (1, 4))], "S", 10)
    # f2 needs all of the budget at 12; the offload ends at 20.01.
    assert in_ms(result.forward_stall_s) == 8.01
    assert result.backward_stall_s == 0


def test_engines_slow_each_other_only_while_both_move_bytes() -> None:
    link = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9, duplex_factor=0.5, latency_s=MS)
    operators = [step("f0", 10), step("f1", 10), step("f2", 2), step("b2", 20), step("b1", 20), step("b0", 1)]
    tensors = [saved("t0", 8, 0, (2, 4)), saved("t1", 12, 1, (5,))]
    result = score(operators, tensors, "SS", 40, link)
    # D2H t1 starts at 20 and moves from 21. H2D t0 starts at 22 (end of forward), its latency lasts to 23: until then
    # t1 moves 2 MB at full rate. From 23 both run at 0.5 MB/ms: t0 needs 16 ms, to 39, in which t1 moves 8 MB more.
    # The last 2 MB of t1 go at full rate again: to 41. Then t1 comes back alone: 41 + 1 + 12 = 54.
    assert lane(result, "d2h") == [(0, 10, 19), (1, 20, 41)]
    assert lane(result, "h2d") == [(0, 22, 39), (1, 41, 54)]
    assert in_ms(result.step_s) == 63


# t2 is rebuilt from t1, t1 from t0.
CHAIN = [step("f0", 10), step("f1", 10), step("f2", 10), step("b2", 10), step("b1", 10), step("b0", 10)]
CHAINED = [
    saved("t0", 4, 0, (1, 5)),
    saved("t1", 5, 1, (2, 4), Rebuild(2 * MS, (0,))),
    saved("t2", 6, 2, (3,), Rebuild(3 * MS, (1,), 1 * MB)),
]


def test_rebuild_chain_goes_depth_first() -> None:
    result = score(CHAIN, CHAINED, "KRR", 16)
    assert [one.name for one in result.steps] == ["f0", "f1", "f2", "t1", "t2", "b2", "b1", "b0"]
    assert in_ms(result.recompute_s) == 5
    assert in_ms(result.step_s) == 65
    # From 0, 10, 20: t0 (4 MB), t1 (5) beside it, t2 (6) beside them. At 30 t1 has had its last forward reader and t2,
    # which has none, its producer: both go, and the rebuild of t1 starts. At 32 t2 and 1 MB of workspace, which goes at
    # 35 (b2 starts). b2 is t2's last use (45), b1 t1's (55), b0 t0's (65).
    assert used_mb(result) == [4, 9, 15, 9, 16, 15, 9, 4, 0]
    assert result.peak_bytes == 16 * MB


def test_rebuild_brings_forward_the_deadline_of_a_swapped_input() -> None:
    result = score(CHAIN, CHAINED, "SRR", 16)
    # t0 is back at 30 + 4.01, at the latest moment at which the rebuild of t1 can use it, not when b0 reads it.
    assert lane(result, "h2d") == [(0, 30, 34.01)]
    assert in_ms(result.backward_stall_s) == 4.01


def test_offload_is_cancelled_when_a_backward_reader_starts_first() -> None:
    operators = [step("f0", 10), step("f1", 1), step("b1", 1), step("b0", 1)]
    result = score(operators, [saved("t0", 20, 0, (3,)), saved("t1", 5, 1, (2,))], "SS", 25)
    # t0 moves from 10 to 30.01; t1 queues at 11, and b1 starts at 11 and reads it. b0 reads t0 where it is, at 12.
    # The iteration ends at 13 without waiting for t0, whose bytes count.
    assert lane(result, "d2h") == [(0, 10, None)]
    assert (result.d2h_bytes, result.h2d_bytes) == (20 * MB, 0)
    assert in_ms(result.step_s) == 13


def test_buffer_under_a_moving_offload_outlives_the_last_use() -> None:
    operators = [step("f0", 10), step("b1", 2), step("b0", 1, workspace_mb=10)]
    result = score(operators, [saved("t0", 10, 0, (1,))], "S", 10)
    # b1 is t0's last use and ends at 12, but the copy runs to 20.01, and b0 needs all of the budget.
    assert lane(result, "compute")[-1] == (2, 20.01, 21.01)
    assert in_ms(result.backward_stall_s) == 8.01


@pytest.mark.parametrize(
    ("f1_ends_later_by_ns", "fetched_mb"),
    [
        (-2, 0),  # compute already reads t0 when its copy ends: it stays
        (-0.5, 0),  # one instant
        (0, 0),
        (0.5, 0),  # one instant: the step's end goes first, compute stands at b1 and so counts as reading t0
        (2, 10),  # the copy ended while f1 ran: released at f1's end, and fetched again
    ],
)
def test_ends_within_a_nanosecond_are_one_instant(f1_ends_later_by_ns: float, fetched_mb: int) -> None:
    operators = [step("f0", 10), step("f1", 10.01 + f1_ends_later_by_ns * 1e-6), step("b1", 1)]
    result = score(operators, [saved("t0", 10, 0, (1, 2))], "S", 10)  # the copy ends at 20.01
    assert result.h2d_bytes == fetched_mb * MB


def test_one_instant_is_the_later_end() -> None:
    operators = [step("f0", 10), step("f1", 10.01 - 0.5e-6), step("b1", 1)]
    result = score(operators, [saved("t0", 10, 0, (1, 2))], "S", 10)
    assert result.intervals[-1].start_s == pytest.approx(20.01 * MS, abs=1e-13)


def test_furthest_tensor_is_evicted_and_fetched_again() -> None:
    backward = [step(f"b{i}", 10) for i in (6, 5, 4, 3)]
    big = [step("b2", 5, workspace_mb=14), step("b1", 1), step("b0", 1)]
    operators = [step("f0", 10), step("f1", 20), *backward, *big]
    result = score(operators, [saved("t0", 6, 0, (7,)), saved("t1", 4, 0, (8,))], "SS", 20)
    # Out: t0 10 to 16.01, t1 to 20.02, both while f1 runs (10 to 30). Back: t0 from 30 to 36.01, t1 to 40.02, admitted
    # while b6 runs (30 to 40), whose next three steps allocate nothing.
    # At 70 b2 finds 10 of 20 MB in use and needs 14: t1, read last, goes, and b2 starts with no stall. At 75 b1 starts,
    # and t1 fits again: 75 to 79.01. b1 ends at 76, so that b0 waits for 3.01.
    assert [(in_ms(at_s), tensor) for at_s, tensor in result.evictions] == [(70, 1)]
    assert lane(result, "h2d") == [(0, 30, 36.01), (1, 36.01, 40.02), (1, 75, 79.01)]
    assert in_ms(result.backward_stall_s) == 3.01
    assert result.h2d_bytes == 14 * MB


def test_look_ahead_refuses_a_prefetch_that_the_next_three_steps_have_no_room_for() -> None:
    operators = [step("f0", 10), step("f1", 20), step("b3", 20), step("b2", 1), step("b1", 5, 15), step("b0", 1)]
    result = score(operators, [saved("t0", 10, 0, (5,))], "S", 20)
    # While b3 and b2 run, b1's 15 MB are among the next three; while b1 runs they are in use. b0 waits from 56 on.
    assert lane(result, "h2d") == [(0, 56, 66.01)]
    assert result.evictions == ()


def test_plan_that_does_not_fit_counts_the_inputs_that_are_away() -> None:
    operators = [step("f0", 10), step("f1", 20), step("f2", 1), step("b1", 1, workspace_mb=15), step("b0", 1)]
    tensors = [saved("t0", 10, 0, (3,)), saved("t1", 12, 2, (4,))]
    result = score(operators, tensors, "SK", 20)
    # At 31 t1 holds 12 MB. b1 needs t0 (10 MB, does not fit beside t1) and 15 MB: 12 + 15 + 10 - 20 = 17.
    assert (result.fits, result.failed_step, result.missing_bytes) == (False, "b1", 17 * MB)
    assert result.h2d_bytes == 0


def test_input_is_fetched_even_where_its_reader_does_not_fit_beside_it() -> None:
    operators = [step("f0", 10), step("f1", 20), step("b0", 1, workspace_mb=15)]
    result = score(operators, [saved("t0", 10, 0, (2,))], "S", 20)
    # b0 waits for t0, so that it is admitted at 30; at 40.01 it is there: 10 + 15 - 20 = 5. It is not evicted for itself.
    assert lane(result, "h2d") == [(0, 30, 40.01)]
    assert (result.fits, result.failed_step, result.missing_bytes) == (False, "b0", 5 * MB)


def test_failed_rebuild_is_named_by_its_tensor() -> None:
    # 15 MB are enough for the forward pass, but not for t2's rebuild with its workspace.
    result = score(CHAIN, CHAINED, "KRR", 15)
    assert (result.fits, result.failed_step, result.missing_bytes) == (False, "t2", MB)


@pytest.mark.parametrize(
    ("decisions", "rule"),
    [
        ("SK", "one letter per tensor"),
        ("KKX", "K, S or R"),
        ("RKK", "no operator rebuilds"),
    ],
)
def test_plans_that_cannot_be_lowered_are_refused(decisions: str, rule: str) -> None:
    with pytest.raises(InputError, match=rule):
        score(CHAIN, CHAINED, decisions, 100)


def test_only_saved_tensors_are_swapped() -> None:
    with pytest.raises(InputError, match="saved tensor"):
        score([step("f0", 1), step("f1", 1), step("b0", 1)], [saved("t0", 1, 0, (1,))], "S", 100)


# ---- barriers -----------------------------------------------------------------------------------------------------


def test_barrier_waits_for_the_copies_that_overlapped_the_layer() -> None:
    operators = [step(name, 10, layer=i) for i, name in enumerate(("f0", "f1", "f2", "b2", "b1"))]
    tensors = [saved("t0", 30, 0, (1, 4))]
    assert in_ms(score(operators, tensors, "S", 60).step_s) == 50  # the offload, 10 to 40.01, is still under way at b1
    result = score(operators, tensors, "S", 60, policy="barriers")
    # The offload starts as f0 ends, so f1 need not wait; it overlaps f1, so f2 waits from 20 to 40.01. b2 reads nothing
    # that is swapped, so nothing is fetched beside it; it ends at 60.01, and b1 waits for t0 until 90.02.
    assert lane(result, "compute") == [
        (0, 0, 10), (1, 10, 20), (2, 40.01, 50.01), (3, 50.01, 60.01), (4, 90.02, 100.02),
    ]  # fmt: skip
    assert (in_ms(result.forward_stall_s), in_ms(result.backward_stall_s)) == (20.01, 30.01)


@pytest.mark.parametrize(
    ("policy", "fetches", "step_ms"),
    [
        ("default", [(2, 40, 45.01), (1, 45.01, 50.02), (0, 50.02, 60.03)], 105.01),
        # t2 first, which b2 waits for. Beside b2 (45.01 to 85.01) only t1, which b1 reads; t0 beside b1, and b0 waits.
        ("barriers", [(2, 40, 45.01), (1, 45.01, 50.02), (0, 85.01, 95.02)], 105.02),
    ],
)
def test_barriers_prefetch_for_the_closest_layer_only(
    policy: PolicyName, fetches: list[tuple[int, float, float]], step_ms: float
) -> None:
    times = {"f0": 10, "f1": 30, "b2": 40, "b1": 10, "b0": 10}
    operators = [step(name, duration_ms, layer=i) for i, (name, duration_ms) in enumerate(times.items())]
    tensors = [saved("t0", 10, 0, (4,)), saved("t1", 5, 0, (3,)), saved("t2", 5, 0, (2,))]
    result = score(operators, tensors, "SSS", 40, policy=policy)
    assert lane(result, "h2d") == fetches
    assert in_ms(result.step_s) == step_ms


@pytest.mark.parametrize(("policy", "b1_starts_ms"), [("default", 40), ("barriers", 50.01)])
def test_barriers_fetch_the_inputs_of_a_whole_layer_first(policy: PolicyName, b1_starts_ms: float) -> None:
    # b2 leaves no room; b1 and b0 are one layer, and b0 reads t0: with barriers b1 waits for b0's input.
    operators = [step("f0", 10), step("f1", 20), step("b2", 10, 20, 1), step("b1", 10, 0, 2), step("b0", 10, 0, 2)]
    result = score(operators, [saved("t0", 10, 0, (4,))], "S", 20, policy=policy)
    assert lane(result, "h2d") == [(0, 40, 50.01)]
    assert lane(result, "compute")[3][1] == b1_starts_ms


def test_barriers_stop_waiting_for_inputs_that_cannot_be_fetched() -> None:
    # b1 needs 15 of 20 MB, so that b0's t0 (10 MB) is not admitted before b1, though both are one layer.
    operators = [step("f0", 10), step("f1", 20), step("b1", 10, 15, 2), step("b0", 10, 0, 2)]
    result = score(operators, [saved("t0", 10, 0, (3,))], "S", 20, policy="barriers")
    assert lane(result, "compute")[2:] == [(2, 30, 40), (3, 50.01, 60.01)]


def test_rebuild_is_a_layer_of_its_own() -> None:
    operators = [step("f0", 1, layer=0), step("f1", 1, layer=0), step("b1", 1, layer=1), step("b0", 1, layer=1)]
    tensors = [saved("t0", 1, 0, (1, 3), Rebuild(MS))]
    assert layers(score(operators, tensors, "R", 9).steps, n_forward=2) == [0, 0, 1, 2, 3]


# ---- on-demand ----------------------------------------------------------------------------------------------------


def on_demand(
    operators: list[Operator], tensors: list[Tensor], decisions: str, budget_mb: int, link: Link = LINK
) -> ReferenceScore:
    """Score a tiny instance on demand, in both implementations."""
    result = score(operators, tensors, decisions, budget_mb, link, "on-demand")
    problem = Problem.from_records("tiny", operators, tensors, link)
    kernel = simulate(problem, Plan.from_letters(decisions), budget_mb * MB, policy="on-demand")
    for column in ("fits", "d2h_bytes", "h2d_bytes", "peak_bytes", "missing_bytes"):
        assert getattr(kernel, column) == getattr(result, column), column
    if result.fits:
        for column in ("step_s", "forward_stall_s", "backward_stall_s"):
            assert getattr(kernel, column) == pytest.approx(getattr(result, column), abs=1e-12), column
    return result


def test_on_demand_an_allocation_waits_for_a_copy() -> None:
    result = on_demand(*one_swap(b2_ms=30), "S", 10)
    # f2 needs all of the budget at 30, when t0's last forward reader has ended. b1 is not heavy: it lacks t0 from
    # 40.01 + 10 + 30 = 80.01 on.
    assert lane(result, "d2h") == [(0, 30, 40.01)]
    assert lane(result, "h2d") == [(0, 80.01, 90.02)]
    assert (in_ms(result.forward_stall_s), in_ms(result.backward_stall_s)) == (10.01, 10.01)
    assert on_demand(*one_swap(b2_ms=30), "S", 20).d2h_bytes == 0  # it need not leave


@pytest.mark.parametrize(
    ("t0_readers", "t1_readers", "f2_ms", "leaves"),
    [
        ((2, 4), (1, 5), 10, 1),  # f1 ended before f2
        ((1, 5), (2, 4), 10, 0),
        ((2, 4), (2, 5), 10, 0),  # equal: lower index
        ((2, 4), (1, 5), 0, 1),  # f1 ended before f2, though at the same time
    ],
)
def test_on_demand_the_least_recently_used_leaves(
    t0_readers: tuple[int, ...], t1_readers: tuple[int, ...], f2_ms: float, leaves: int
) -> None:
    operators = [step("f0", 10), step("f1", 10), step("f2", f2_ms), step("f3", 10, 5), step("b1", 1), step("b0", 1)]
    result = on_demand(operators, [saved("t0", 5, 0, t0_readers), saved("t1", 6, 0, t1_readers)], "SS", 11)
    assert [tensor for tensor, _, _ in lane(result, "d2h")] == [leaves]


@pytest.mark.parametrize(
    ("kind", "fetched_from_ms"), [("gemm", 50.01), ("attention", 50.01), ("convolution", 50.01), ("norm", 70.01)]
)
def test_on_demand_only_the_next_heavy_operator_is_fetched_for(kind: str, fetched_from_ms: float) -> None:
    backward = [step("b2", 20), step("b1", 20, kind="gemm"), step("b0", 20, kind=kind)]
    result = on_demand([step("f0", 10), step("f1", 10, 10), *backward], [saved("t0", 10, 0, (4,))], "S", 15)
    # t0 leaves from 10 to 20.01 for f1, which ends at 30.01. While b2 runs (to 50.01), b1 is the next heavy operator and
    # reads nothing that is away; while b1 runs (to 70.01) it is b0, if that is heavy. Else b0 stands and waits.
    assert lane(result, "h2d") == [(0, fetched_from_ms, round(fetched_from_ms + 10.01, 6))]
    assert in_ms(result.backward_stall_s) == (10.01 if kind == "norm" else 0)


def test_on_demand_what_was_fetched_ahead_leaves_at_once() -> None:
    backward = [*(step(f"b{i}", 10) for i in (5, 4, 3, 2)), step("b1", 10, 15), step("b0", 10, kind="gemm")]
    result = on_demand([step("f0", 10), step("f1", 10, 20), *backward], [saved("t0", 10, 0, (7,))], "S", 20)
    # Out from 10 to 20.01; f1 ends at 30.01. Back while b5 runs, whose next three steps allocate nothing. At 70.01 b1
    # needs 15 beside t0's 10: the host has a copy, and b1 starts. b0 fetches t0 again from 80.01 on.
    assert lane(result, "h2d") == [(0, 30.01, 40.02), (0, 80.01, 90.02)]
    assert [(in_ms(at_s), tensor) for at_s, tensor in result.evictions] == [(70.01, 0)]
    assert (result.d2h_bytes, in_ms(result.backward_stall_s)) == (10 * MB, 10.01)


def test_on_demand_room_is_made_for_an_input_that_is_away() -> None:
    operators = [step(name, 10) for name in ("f0", "f1", "f2", "b2", "b1", "b0")]
    tensors = [saved("t0", 10, 0, (3,)), saved("t1", 10, 1, (4,)), saved("t2", 10, 2, (5,))]
    result = on_demand(operators, tensors, "SSS", 20)
    # f2 waits from 20 until t0 has gone, at 30.01, and ends at 40.01. b2 reads t0, but t1 and t2 fill the budget: t1
    # goes until 50.02, then t0 comes until 60.03. b1 waits from 70.03 to 80.04 for t1, which fits in t0's place.
    assert lane(result, "d2h") == [(0, 20, 30.01), (1, 40.01, 50.02)]
    assert lane(result, "h2d") == [(0, 50.02, 60.03), (1, 70.03, 80.04)]


def test_on_demand_room_for_an_allocation_is_made_beside_a_fetch() -> None:
    link = Link(d2h_bytes_per_s=1e9, h2d_bytes_per_s=1e9, duplex_factor=1, latency_s=0.01 * MS)
    backward = [*(step(f"b{i}", 1) for i in (6, 5, 4, 3)), step("b2", 1, 15), step("b1", 1, kind="gemm"), step("b0", 1)]
    tensors = [saved("t0", 20, 0, (8,)), saved("t1", 10, 2, (9,))]
    result = on_demand([step("f0", 10), step("f1", 10, 40), step("f2", 10), *backward], tensors, "SS", 40, link)
    # t0 leaves for f1 until 30.01; f2 ends at 50.01, and t0 comes back for b1. At 54.01 10 + 20 MB are in use, and b2
    # needs 15: t1 leaves while t0 is under way, and b2 starts at 64.02, b1 at 70.02.
    assert lane(result, "d2h") == [(0, 10, 30.01), (1, 54.01, 64.02)]
    assert lane(result, "h2d")[0] == (0, 50.01, 70.02)
    assert lane(result, "compute")[7:9] == [(7, 64.02, 65.02), (8, 70.02, 71.02)]


def test_on_demand_does_not_fit_when_nothing_is_left_to_evict() -> None:
    tensors = [saved("t0", 10, 0, (2,)), saved("t1", 8, 0, (2,))]
    result = on_demand([step("f0", 10), step("f1", 10, 15), step("b0", 10)], tensors, "SK", 20)
    # t0 has left by 20.01; t1 stays: 8 + 15 - 20 = 3.
    assert (result.failed_step, result.missing_bytes, lane(result, "d2h")) == ("f1", 3 * MB, [(0, 10, 20.01)])


# ---- the shared conformance file ----------------------------------------------------------------------------------


def conformance_cases() -> list[Any]:
    return [
        (entry["problem"], case)
        for entry in json.loads(shared_file("spec/conformance.json").read_bytes())
        for case in entry["cases"]
    ]


def conformance_problem(record: dict[str, Any]) -> Problem:
    operators = msgspec.convert(record["operators"], list[Operator])
    tensors = msgspec.convert(record["tensors"], list[Tensor])
    return Problem.from_records(record["name"], operators, tensors, Link(**record["link"]))


def differences(result: ReferenceScore, case: dict[str, Any]) -> list[str]:
    """Name what differs from a case: times to 1e-9, bytes exactly; the file writes a rebuild as R and its tensor."""
    found = {"fits": result.fits == case["fits"]}
    if case["fits"]:
        times = ("step_s", "recompute_s", "forward_stall_s", "backward_stall_s")
        found |= {key: math.isclose(getattr(result, key), case[key], rel_tol=1e-9, abs_tol=1e-12) for key in times}
        sizes = ("d2h_bytes", "h2d_bytes", "peak_bytes")
        found |= {key: getattr(result, key) == case[key] for key in sizes}
    else:
        found["missing_bytes"] = result.missing_bytes == case["missing_bytes"]
        found["step"] = case["step"] in (result.failed_step, f"R{result.failed_step}")
    return [key for key, agrees in found.items() if not agrees]


def test_every_conformance_case_agrees() -> None:
    wrong = []
    cases = conformance_cases()
    for record, case in cases:
        problem = conformance_problem(record)
        result = reference_score(problem, case["decisions"], case["budget_bytes"])
        check_invariants(problem, result, case["budget_bytes"])
        if different := differences(result, case):
            wrong.append((record["name"], case["decisions"], case["budget_bytes"], case.get("why"), different))
    assert cases
    assert wrong == []


def test_same_input_gives_the_same_result_bit_for_bit() -> None:
    for record, case in conformance_cases()[::10]:
        problem = conformance_problem(record)
        first, second = (reference_score(problem, case["decisions"], case["budget_bytes"]) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("policy", ["barriers", "on-demand"])
def test_policies_keep_the_invariants_on_every_conformance_problem(policy: PolicyName) -> None:
    for record, case in conformance_cases():
        problem = conformance_problem(record)
        result = reference_score(problem, case["decisions"], case["budget_bytes"], policy)
        check_invariants(problem, result, case["budget_bytes"])


def test_intervals_say_what_is_still_in_flight() -> None:
    result = score([step("f0", 1), step("b0", 1)], [saved("t0", 5, 0, (1,))], "S", 9)
    assert result.intervals[1] == Interval("d2h", 0, 0.001, None)
