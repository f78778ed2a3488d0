"""The event model on instances small enough to play by hand: sizes in MB, times in ms, a link of 1 MB per ms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK, chain, one_operator, two_layers, zero_sizes

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, Timeline, peak_bytes, simulate, simulate_many
from slackswap.models.legality import check
from slackswap.models.plan import Plan
from slackswap.models.problem import FloatArray, Operator, Problem, Rebuild, Tensor
from slackswap.models.schedule import Schedule


def score(problem: Problem, letters: str, budget_mb: float = math.inf, policy: str = "default") -> Score:
    return simulate(problem, Plan.from_letters(letters), budget_mb * MB, policy=policy, timeline=True)


def in_ms(seconds: FloatArray | float) -> list[float] | float:
    """Milliseconds, to the nanosecond."""
    return (np.round(np.asarray(seconds) / MS, 6) + 0.0).tolist()  # type: ignore[no-any-return]


def times(result: Score) -> tuple[float | list[float], ...]:
    """Step, recompute, forward stall, backward stall."""
    return tuple(
        in_ms(seconds)
        for seconds in (result.step_s, result.recompute_s, result.forward_stall_s, result.backward_stall_s)
    )


def copied(result: Score) -> tuple[float, float]:
    """D2H and H2D megabytes."""
    return result.d2h_bytes / MB, result.h2d_bytes / MB


def lanes(result: Score) -> Timeline:
    assert result.timeline is not None
    return result.timeline


def compute(result: Score) -> list[tuple[object, ...]]:
    """(step, start, end) of the compute lane."""
    lane = lanes(result)
    rows = zip(lane.step_names, in_ms(lane.start_s), in_ms(lane.end_s), strict=True)  # type: ignore[arg-type]
    return list(rows)


def copies(result: Score) -> list[tuple[object, ...]]:
    """(direction, tensor, start, end) of both copy lanes, in order of start."""
    lane = lanes(result)
    directions = np.where(lane.copy_is_d2h, "out", "in").tolist()
    spans = (in_ms(lane.copy_start_s), in_ms(lane.copy_end_s))
    return list(zip(directions, lane.copy_tensor.tolist(), *spans, strict=True))  # type: ignore[arg-type]


def memory(result: Score) -> list[tuple[float, float]]:
    """(time, MB in use), the last at each instant."""
    lane = lanes(result)
    return list(dict(zip(in_ms(lane.memory_s), (lane.memory_bytes / MB).tolist(), strict=True)).items())  # type: ignore[arg-type]


# ---- Plans of two_layers: f0 10, f1 20, b1 40, b0 20; a0 10 MB for f1 and b0, a1 20 MB for b1; P = 30 MB -------------


def test_keep_everything() -> None:
    result = score(two_layers(), "KK", 30)
    assert times(result) == (90, 0, 0, 0)
    assert result.step_s == two_layers().ideal_s
    assert result.throughput == 1.0
    assert copied(result) == (0, 0)
    assert result.peak_bytes == 30 * MB
    assert (result.keep_bytes, result.swap_bytes, result.recompute_bytes) == (30 * MB, 0, 0)
    assert compute(result) == [("f0", 0, 10), ("f1", 10, 30), ("b1", 30, 70), ("b0", 70, 90)]
    # f0 writes 10, f1 20 more; b1 is the last to read a1, b0 the last to read a0.
    assert memory(result) == [(0, 10), (10, 30), (30, 30), (70, 10), (90, 0)]


def test_a_swap_that_hides_behind_compute() -> None:
    result = score(two_layers(), "SK", 30)
    # Out: f0 ends at 10, 10 MB take 10 ms. f1 reads a0 until 30: then it goes. In: admitted at 30 beside a1 (20 + 10 <= 30).
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 30, 40)]
    assert times(result) == (90, 0, 0, 0)
    assert copied(result) == (10, 10)
    assert (result.keep_bytes, result.swap_bytes) == (20 * MB, 10 * MB)
    assert memory(result) == [(0, 10), (10, 30), (30, 30), (70, 10), (90, 0)]


def test_an_offload_that_its_reader_overtakes_is_read_where_it_is() -> None:
    result = score(two_layers(), "KS", 30)
    # a1 starts to leave at 30, and b1 starts to read it at 30: it stays (rule 7). Its bytes count all the same.
    assert copies(result) == [("out", 1, 30, 50)]
    assert times(result) == (90, 0, 0, 0)
    assert copied(result) == (20, 0)


def test_a_rebuild_takes_its_time() -> None:
    # a0 goes after f1 at 30 and is rebuilt after b1 at 70, for 10 ms.
    result = score(two_layers(), "RK", 30)
    assert times(result) == (100, 10, 0, 0)
    assert compute(result)[3:] == [("rebuild a0", 70, 80), ("b0", 80, 100)]
    assert memory(result) == [(0, 10), (10, 30), (30, 20), (70, 10), (80, 10), (100, 0)]
    assert result.recompute_bytes == 10 * MB
    assert result.multiple_of_ideal(result.recompute_s) == pytest.approx(10 / 90)
    assert result.throughput == pytest.approx(90 / 100)


def test_a_rebuild_waits_for_the_prefetch_of_its_input() -> None:
    result = score(two_layers(), "SR", 30)
    # Both are gone at 30. a1's rebuild needs a0: in from 30 to 40, then 20 ms of rebuild, b1 60 to 100, b0 until 120.
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 30, 40)]
    assert compute(result)[2:] == [("rebuild a1", 40, 60), ("b1", 60, 100), ("b0", 100, 120)]
    assert times(result) == (90 + 20 + 10, 20, 0, 10)
    lane = lanes(result)
    assert lane.step_names[2] == "rebuild a1"
    assert in_ms(lane.input_wait_s) == [0, 0, 10, 0, 0]
    assert in_ms(lane.memory_wait_s) == [0, 0, 0, 0, 0]
    assert lane.awaited.tolist() == [-1, -1, 0, -1, -1]


@pytest.mark.parametrize("letters", ["KK", "SK", "KS", "SS", "RK", "KR", "RR", "SR", "RS"])
def test_around_the_peak(letters: str) -> None:
    problem = two_layers()
    peak = peak_bytes(problem)
    assert peak == 30 * MB
    plan = Plan.from_letters(letters)
    # f1 reads a0 while it writes a1: no plan needs less than P.
    assert simulate(problem, plan, peak).fits
    assert simulate(problem, plan, peak + 1).step_s == simulate(problem, plan, peak).step_s
    short = simulate(problem, plan, peak - 1)
    assert (short.fits, short.failed_step, short.missing_bytes) == (False, "f1", 1)
    assert short.throughput is None


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("budget_bytes", "missing_bytes"), [(0, 10 * MB), (1, 10 * MB - 1), (10 * MB - 1, 1)])
def test_nothing_fits(policy: str, budget_bytes: int, missing_bytes: int) -> None:
    for letters in ("KK", "SS", "RR"):
        result = simulate(two_layers(), Plan.from_letters(letters), budget_bytes, policy=policy, timeline=True)
        assert (result.fits, result.failed_step, result.missing_bytes) == (False, "f0", missing_bytes)
        assert (result.step_s, result.peak_bytes) == (0, 0)
        assert lanes(result).step_names == ()
        assert memory(result) == []


def test_a_plan_that_does_not_fit_says_how_far_it_came() -> None:
    # f1 needs 10 + 20 of 25 MB. It waits for a0's offload, from 10 to 20; a0 stays, since f1 reads it.
    result = score(two_layers(), "SK", 25)
    assert (result.fits, result.failed_step, result.missing_bytes) == (False, "f1", 5 * MB)
    assert times(result) == (20, 0, 10, 0)
    assert copied(result) == (10, 0)
    assert compute(result) == [("f0", 0, 10)]


def test_missing_inputs_count_as_missing_bytes() -> None:
    # b0 has a workspace of 25 MB and reads a0 (10 MB): 35 MB, which no plan avoids.
    operators = two_layers().operators()
    operators[3] = Operator("b0", "backward", 20 * MS, 25 * MB, layer=3)
    problem = Problem.from_records("wide b0", operators, two_layers().tensors(), PLAIN_LINK)
    for letters in ("KK", "SK"):
        result = score(problem, letters, 30)
        assert (result.fits, result.failed_step, result.missing_bytes) == (False, "b0", 5 * MB)


def test_budgets_are_whole_bytes_or_infinity() -> None:
    problem, plan = two_layers(), Plan.from_letters("SR")
    free = simulate(problem, plan, math.inf)
    assert free.fits
    assert free.step_s == simulate(problem, plan, 1e30).step_s == simulate(problem, plan, 1 << 70).step_s
    # A fraction of P is rounded down to a whole byte (rule 3): f1 needs 30 MB.
    assert simulate(problem, plan, 30 * MB + 0.9).fits
    assert simulate(problem, plan, 30 * MB - 0.1).missing_bytes == 1
    assert simulate(problem, plan, np.float64(30 * MB)).fits


# ---- Copies -----------------------------------------------------------------------------------------------------------


def two_ways(duplex_factor: float, latency_ms: float) -> Problem:
    """Return a problem where x (10 MB) comes in while y (20 MB) goes out."""
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 10 * MS),
        Operator("b2", "backward", 10 * MS),
        Operator("b1", "backward", 5 * MS),
        Operator("b0", "backward", 10 * MS),
    ]
    tensors = [Tensor("x", 10 * MB, 0, (3,)), Tensor("y", 20 * MB, 1, (4,))]
    return Problem.from_records("two ways", operators, tensors, Link(1e9, 1e9, duplex_factor, latency_ms * MS))


def test_both_directions_share_the_link() -> None:
    result = score(two_ways(duplex_factor=0.5, latency_ms=0), "SS")
    # At 20 both engines start: x moves its 10 MB at 0.5 MB/ms until 40. y has 10 of 20 MB left then, and takes 10 ms more.
    assert copies(result) == [("out", 0, 10, 20), ("out", 1, 20, 50), ("in", 0, 20, 40)]
    # b1 waits for x from 30 to 40. At 45 b0 stands at y, which is still leaving: it reads it there.
    assert compute(result)[2:] == [("b2", 20, 30), ("b1", 40, 45), ("b0", 45, 55)]
    assert times(result) == (55, 0, 0, 10)


def test_latency_moves_no_bytes() -> None:
    result = score(two_ways(duplex_factor=0.5, latency_ms=2), "SS")
    # x leaves from 10 to 22, which is 2 ms into the backward pass. Then y leaves and x comes, both idle for 2 ms:
    # until 24, and from there each moves 0.5 MB/ms: x until 44. y has 10 MB left, until 54.
    assert copies(result) == [("out", 0, 10, 22), ("out", 1, 22, 54), ("in", 0, 22, 44)]
    assert compute(result)[2:] == [("b2", 20, 30), ("b1", 44, 49), ("b0", 49, 59)]
    assert times(result) == (59, 0, 0, 14)


def test_a_copy_in_flight_is_not_waited_for() -> None:
    # A link of 0.1 MB/ms: a0 needs 100 ms from 10 on, and the step is over at 90. Its bytes count when it starts.
    result = score(two_layers(Link(1e8, 1e8, 1.0, 0.0)), "SK")
    assert times(result) == (90, 0, 0, 0)
    assert copied(result) == (10, 0)
    assert copies(result) == [("out", 0, 10, math.inf)]


def test_an_offload_that_has_not_started_is_cancelled_by_its_reader() -> None:
    # x (100 MB) leaves from 10 on, until 110; y, from f1, is queued behind it when b1 reads it at 20: it never leaves.
    operators = [
        Operator(name, phase, 10 * MS)
        for name, phase in zip(("f0", "f1", "b1", "b0"), ("forward", "forward", "backward", "backward"), strict=True)
    ]
    tensors = [Tensor("x", 100 * MB, 0, (3,)), Tensor("y", 20 * MB, 1, (2,))]
    result = score(Problem.from_records("queue", operators, tensors, PLAIN_LINK), "SS")
    assert copies(result) == [("out", 0, 10, math.inf)]
    assert copied(result) == (100, 0)
    assert times(result) == (40, 0, 0, 0)
    # y goes after b1, at 30; x is still leaving at 40.
    assert memory(result) == [(0, 100), (10, 120), (20, 120), (30, 100), (40, 100)]


@pytest.mark.parametrize(("f2_ms", "copy_is_first"), [(8, True), (11, False)])
def test_ends_that_differ_by_rounding_are_one_instant(f2_ms: int, copy_is_first: bool) -> None:
    # x leaves from 1 on, while f1 and f2 run, and takes as long as both: 1 ms and f2_ms. In floating point one end comes
    # first, by far less than 1 ns; by rule 10 the step's end does: b0 stands at x before it has left, and x stays.
    assert (1 * MS + (1 + f2_ms) * MB / 1e9 < 1 * MS + 1 * MS + f2_ms * MS) == copy_is_first
    operators = [
        Operator("f0", "forward", 1 * MS),
        Operator("f1", "forward", 1 * MS),
        Operator("f2", "forward", f2_ms * MS),
        Operator("b0", "backward", 1 * MS),
    ]
    tensors = [Tensor("x", (1 + f2_ms) * MB, 0, (3,))]
    result = score(Problem.from_records("tie", operators, tensors, PLAIN_LINK), "S")
    assert copied(result) == (1 + f2_ms, 0)
    assert times(result) == (1 + 1 + f2_ms + 1, 0, 0, 0)


def test_more_bandwidth_can_make_a_step_slower() -> None:
    # x: 3 MB from f0 (3 ms) for b0 (2 ms). y: 4 MB from f1 (1 ms) for b1 (1 ms). x is swapped.
    operators = [
        Operator("f0", "forward", 3 * MS),
        Operator("f1", "forward", 1 * MS),
        Operator("b1", "backward", 1 * MS),
        Operator("b0", "backward", 2 * MS),
    ]
    tensors = [Tensor("x", 3 * MB, 0, (3,)), Tensor("y", 4 * MB, 1, (2,))]
    slow = Problem.from_records("a race", operators, tensors, Link(1e9, 1e9, 1.0, 0.0))
    fast = slow.with_link(Link(2e9, 1e9, 1.0, 0.0))
    # Slow: x leaves from 3 to 6, and b0 stands at it from 5 on: it stays, nobody waits.
    assert times(score(slow, "SK", 7)) == (7, 0, 0, 0)
    # Fast: x has left at 4.5, and comes back from 4.5 to 7.5; b0 waits for it from 5 on.
    assert copies(score(fast, "SK", 7)) == [("out", 0, 3, 4.5), ("in", 0, 4.5, 7.5)]
    assert times(score(fast, "SK", 7)) == (9.5, 0, 0, 2.5)
    # So monotonicity is no law of this model, and no test asserts it.


# ---- The timeline -------------------------------------------------------------------------------------------------------


def one_in_memory() -> Problem:
    """Return two tensors of 10 MB; in 15 MB, only one fits."""
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 5 * MS),
        Operator("b1", "backward", 5 * MS),
        Operator("b0", "backward", 5 * MS),
    ]
    return Problem.from_records(
        "one in memory", operators, [Tensor("a", 10 * MB, 0, (3,)), Tensor("b", 10 * MB, 1, (2,))], PLAIN_LINK
    )


def test_timeline_says_what_was_waited_for() -> None:
    result = score(one_in_memory(), "SK", 15)
    # f1 has no input, but no room until a has left at 20. a does not fit beside b until b1 ends at 30; b0 waits for it.
    assert compute(result) == [("f0", 0, 10), ("f1", 20, 25), ("b1", 25, 30), ("b0", 40, 45)]
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 30, 40)]
    assert memory(result) == [(0, 10), (10, 10), (20, 10), (25, 10), (30, 10), (40, 10), (45, 0)]
    lane = lanes(result)
    assert in_ms(lane.memory_wait_s) == [0, 10, 0, 0]
    assert in_ms(lane.input_wait_s) == [0, 0, 0, 10]
    assert lane.awaited.tolist() == [-1, -1, -1, 0]
    assert times(result) == (45, 0, 10, 10)


def test_timeline_holds_every_change_of_memory() -> None:
    lane = lanes(score(one_in_memory(), "SK", 15))
    changes = [
        *((0, 10), (10, 10)),  # f0 writes a, and frees nothing at its end
        *((20, 0), (20, 10), (25, 10)),  # a has left; f1 writes b
        *((25, 10), (30, 0), (30, 10)),  # b1 writes nothing, b goes, a's buffer counts from its admission
        *((40, 10), (45, 10), (45, 0)),  # b0; a goes
    ]
    assert list(zip(in_ms(lane.memory_s), lane.memory_bytes / MB, strict=True)) == changes  # type: ignore[arg-type]


def in_the_way(*backward: int) -> Problem:
    """Return a problem whose x (10 MB) is written by f0 and read by the last operator; b2 needs 25 MB of workspace."""
    operators = [Operator(f"f{i}", "forward", duration_ms * MS) for i, duration_ms in enumerate((10, 10, 20))]
    operators += [Operator(f"b{i}", "backward", 10 * MS, 25 * MB if i == 2 else 0) for i in backward]
    return Problem.from_records("in the way", operators, [Tensor("x", 10 * MB, 0, (len(operators) - 1,))], PLAIN_LINK)


def test_admission_looks_three_steps_ahead() -> None:
    result = score(in_the_way(5, 4, 3, 2, 1), "S", 30)
    # At 40 b5 runs, and the three after it are b4, b3 and b2: 10 + 25 MB do not fit, and so on until b2 has ended at 80.
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 80, 90)]
    assert times(result) == (90 + 10, 0, 0, 10)


def test_what_was_fetched_too_early_is_evicted() -> None:
    result = score(in_the_way(6, 5, 4, 3, 2, 1), "S", 30)
    # At 40 b6 runs, and b5, b4, b3 need nothing: x comes back. At 80 b2 cannot start beside it and no copy is in flight,
    # so x goes (rule 9). It returns once b2 has ended at 90, and b1 waits for it.
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 40, 50), ("in", 0, 90, 100)]
    assert compute(result)[-2:] == [("b2", 80, 90), ("b1", 100, 110)]
    assert times(result) == (100 + 10, 0, 0, 10)
    assert copied(result) == (10, 20)
    assert memory(result) == [
        *((0, 10), (10, 10), (20, 0), (40, 10)),  # the instants at which steps start and change nothing are there too
        *((50, 10), (60, 10), (70, 10), (80, 25), (90, 10), (100, 10), (110, 0)),
    ]


def test_without_timeline_there_is_none() -> None:
    assert simulate(two_layers(), Plan.from_letters("SR"), math.inf).timeline is None


# ---- Schedules of the richer space --------------------------------------------------------------------------------------


def play(problem: Problem, schedule: Schedule, budget_mb: float = math.inf) -> Score:
    assert check(problem, schedule) == []
    return simulate(problem, schedule, budget_mb * MB, timeline=True)


def test_a_tensor_rebuilt_twice() -> None:
    # chain(3): f 1 ms each, b 2 ms each, 1 MB each; codes 7 and 8 rebuild a1 (from a0) and a2 (from a1) in 1 ms.
    # a1 is rebuilt for a2's sake, dropped at once, and rebuilt again for b1: b2 runs beside 2 MB instead of 3.
    schedule = Schedule.from_lists(
        steps=[0, 1, 2, 7, 8, 3, 7, 4, 5],
        drops=[[], [], [1, 2], [], [1], [2], [], [1], [0]],
    )
    result = play(chain(3), schedule)
    assert compute(result) == [
        *(("f0", 0, 1), ("f1", 1, 2), ("f2", 2, 3)),
        *(("rebuild a1", 3, 4), ("rebuild a2", 4, 5), ("b2", 5, 7)),
        *(("rebuild a1", 7, 8), ("b1", 8, 10), ("b0", 10, 12)),
    ]
    assert times(result) == (9 + 3, 3, 0, 0)
    assert memory(result) == [(0, 1), (1, 2), (2, 3), (3, 2), (4, 3), (5, 2), (7, 2), (8, 2), (10, 1), (12, 0)]
    assert (result.keep_bytes, result.swap_bytes, result.recompute_bytes) == (1 * MB, 0, 2 * MB)
    # The plan KRR rebuilds a1 once, 1 ms less, and holds 3 MB while b2 runs.
    assert times(score(chain(3), "KRR")) == (9 + 2, 2, 0, 0)


def test_a_tensor_dropped_and_rebuilt_in_the_forward_pass() -> None:
    # two_layers, code 4 rebuilds a0 in 10 ms: it goes right after f0, and f1 waits for nothing but the rebuild.
    result = play(two_layers(), Schedule.from_lists([0, 4, 1, 2, 3], [[0], [], [], [1], [0]]), 30)
    assert compute(result)[:3] == [("f0", 0, 10), ("rebuild a0", 10, 20), ("f1", 20, 40)]
    assert times(result) == (100, 10, 0, 0)


def twice_read() -> Problem:
    """Return a problem whose x (10 MB, written by f0) is read by b3 and again by b1; b2 lies between."""
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 20 * MS),
        Operator("b3", "backward", 20 * MS),
        Operator("b2", "backward", 40 * MS),
        Operator("b1", "backward", 20 * MS),
    ]
    return Problem.from_records("twice read", operators, [Tensor("x", 10 * MB, 0, (2, 4))], PLAIN_LINK)


def test_a_tensor_dropped_and_fetched_again() -> None:
    schedule = Schedule.from_lists(
        steps=[0, 1, 2, 3, 4],
        drops=[[0], [], [0], [], [0]],
        offloads=[(0, 0)],
        prefetches=[(0, 2, 1), (0, 4, 2)],
    )
    result = play(twice_read(), schedule, 10)
    # Out from 10 to 20, and gone. f1 ends at 30: in from 30 to 40, b3 waits, and runs until 60. x goes again; the host
    # copy stays valid: in from 60 to 70, beside b2, which runs until 100.
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 30, 40), ("in", 0, 60, 70)]
    assert times(result) == (110 + 10, 0, 0, 10)
    assert copied(result) == (10, 20)
    # The same without the second drop: the plan S.
    assert copied(score(twice_read(), "S", 10)) == (10, 10)


@pytest.mark.parametrize(
    ("after", "fetched", "step_ms", "stalls"),
    [
        # The moment x has left, during f1: nobody waits.
        (0, (20, 30), 110, (0, 0)),
        # After the forward pass, as every plan has it: b3 waits from 30 to 40.
        (1, (30, 40), 120, (0, 10)),
    ],
)
def test_an_early_prefetch_point(
    after: int, fetched: tuple[float, float], step_ms: float, stalls: tuple[float, float]
) -> None:
    schedule = Schedule.from_lists([0, 1, 2, 3, 4], [[0], [], [], [], [0]], [(0, 0)], [(0, 2, after)])
    result = play(twice_read(), schedule)
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, *fetched)]
    assert times(result) == (step_ms, 0, *stalls)


def test_a_late_prefetch_point_leaves_the_memory_to_others() -> None:
    # two_layers: a0 may come back only after b1 (step 2) has ended at 70; b0 waits 10 ms, and b1 ran beside 20 MB.
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 0)], [(0, 3, 2)])
    result = play(two_layers(), schedule, 30)
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 70, 80)]
    assert times(result) == (100, 0, 0, 10)
    assert memory(result) == [(0, 10), (10, 30), (30, 20), (70, 10), (80, 10), (100, 0)]


def test_a_fetch_in_the_forward_pass_is_a_forward_stall() -> None:
    # two_layers: a0 goes right after f0: out from 10 to 20; f1 (step 1) reads it: in from 20 to 30.
    schedule = Schedule.from_lists([0, 1, 2, 3], [[0], [], [1], [0]], [(0, 0)], [(0, 1, 0)])
    result = play(two_layers(), schedule)
    # f1 stands at a0 from 10 on, while it leaves: it is read where it is (rule 7), and the drop is void.
    assert copies(result) == [("out", 0, 10, 20)]
    assert times(result) == (90, 0, 0, 0)
    # With a step between that does not read it, it is gone: f1 waits from 15 to 30.
    operators = [Operator("f0", "forward", 10 * MS), Operator("g", "forward", 5 * MS), *two_layers().operators()[1:]]
    tensors = [Tensor("a0", 10 * MB, 0, (3, 4))]
    operators = [*operators[:2], Operator("h", "forward", 10 * MS), *operators[2:]]
    problem = Problem.from_records("pause", operators, tensors, PLAIN_LINK)
    # f0 0-10, g 10-15, h 15-25, f1 stands at 25: a0 has left at 20, and comes back from 20 to 30.
    schedule = Schedule.from_lists([0, 1, 2, 3, 4, 5], [[0], [], [], [], [0], []], [(0, 0)], [(0, 3, 0)])
    result = play(problem, schedule)
    assert copies(result) == [("out", 0, 10, 20), ("in", 0, 20, 30)]
    assert compute(result)[3] == ("f1", 30, 50)
    assert times(result) == (10 + 5 + 10 + 20 + 40 + 20 + 5, 0, 5, 0)


def test_an_offload_may_start_later_than_its_tensor_is_there() -> None:
    # two_layers: a0 leaves only after f1 (step 1): from 30 to 40, and comes back from 40 to 50.
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 1)], [(0, 3, 1)])
    result = play(two_layers(), schedule, 30)
    assert copies(result) == [("out", 0, 30, 40), ("in", 0, 40, 50)]
    assert times(result) == (90, 0, 0, 0)


def test_an_illegal_schedule_is_refused_with_its_reason() -> None:
    problem = two_layers()
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], []])
    with pytest.raises(InputError) as refused:
        simulate(problem, schedule, math.inf)
    assert refused.value.place == "schedule"
    assert refused.value.rule == check(problem, schedule)[0]
    assert refused.value.rule == "step 3, b0, reads 'a0', which is not on the device by then"


# ---- Barriers -----------------------------------------------------------------------------------------------------------


def test_barriers_wait_for_the_copies_of_the_layer_before() -> None:
    # Out at 0.25 MB/ms: a0 leaves from 10 to 50, in takes 10 ms. f1 ends at 30, and the next layer waits until 50.
    problem = two_layers(Link(2.5e8, 1e9, 1.0, 0.0))
    result = score(problem, "SK", policy="barriers")
    # b1 runs from 50 to 90 and reads nothing that is swapped, so it fetches nothing for others: b0 waits for a0 until 100.
    assert copies(result) == [("out", 0, 10, 50), ("in", 0, 90, 100)]
    assert times(result) == (120, 0, 0, 30)
    # Without barriers b1 runs from 30 on, and a0 is back before it ends.
    assert times(score(problem, "SK")) == (90, 0, 0, 0)


# ---- Odd problems ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_one_operator(policy: str) -> None:
    result = score(one_operator(), "K", 1, policy)
    assert times(result) == (1, 0, 0, 0)
    assert memory(result) == [(0, 1), (1, 0)]
    assert peak_bytes(one_operator()) == 1 * MB
    short = simulate(one_operator(), Plan.from_letters("K"), 1 * MB - 1, policy=policy)
    assert (short.fits, short.failed_step, short.missing_bytes) == (False, "f0", 1)


@pytest.mark.parametrize(("letters", "copied_mb"), [("KK", (0, 0)), ("SK", (1, 0)), ("KR", (0, 0)), ("SR", (1, 0))])
def test_zero_sizes(letters: str, copied_mb: tuple[float, float]) -> None:
    # f0 1 ms, f1 0, b1 0, b0 2 ms; a0 1 MB for f1 and b0. Offloaded from 1 on, a0 is needed at 1: it is read where it is.
    result = score(zero_sizes(), letters, 1)
    assert times(result) == (3, 0, 0, 0)
    assert copied(result) == copied_mb


def test_barriers_without_time() -> None:
    # f1 takes no time, but a0 is leaving when it ends: b1 waits from 1 to 2. Then a0 is gone: b0 waits for it until 3.
    result = score(zero_sizes(), "SK", 1, "barriers")
    assert copies(result) == [("out", 0, 1, 2), ("in", 0, 2, 3)]
    assert times(result) == (5, 0, 0, 2)


def test_an_empty_tensor_costs_a_copy_only_its_latency() -> None:
    # zero_sizes with 0.25 ms of latency: a1 (0 bytes) starts out at 1, when b1 needs it: read where it is.
    result = score(zero_sizes(Link(1e9, 1e9, 0.5, 0.25 * MS)), "KS", 1)
    assert copies(result) == [("out", 1, 1, 1.25)]
    assert times(result) == (3, 0, 0, 0)


@pytest.mark.parametrize("policy", POLICIES)
def test_without_tensors(policy: str) -> None:
    # Only a workspace: 2 MB for 1 ms.
    problem = Problem.from_records("bare", [Operator("f0", "forward", MS, 2 * MB)], [], PLAIN_LINK)
    result = score(problem, "", 2, policy)
    assert times(result) == (1, 0, 0, 0)
    assert memory(result) == [(0, 2), (1, 0)]
    assert simulate(problem, Plan.from_letters(""), 2 * MB - 1, policy=policy).missing_bytes == 1
    table = simulate_many(problem, np.zeros((3, 0), np.int8), 2 * MB, policy=policy)
    assert table.step_s.tolist() == [MS] * 3


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_backward_pass(policy: str) -> None:
    # Inference: t0 goes after f1. All stalls would be forward stalls; nothing is saved.
    operators = [Operator("f0", "forward", 1 * MS), Operator("f1", "forward", 2 * MS)]
    problem = Problem.from_records(
        "inference", operators, [Tensor("t0", MB, 0, (1,)), Tensor("t1", MB, 1, ())], PLAIN_LINK
    )
    result = score(problem, "KK", 2, policy)
    assert times(result) == (3, 0, 0, 0)
    assert memory(result) == [(0, 1), (1, 2), (3, 0)]


@pytest.mark.parametrize("policy", POLICIES)
def test_without_a_forward_pass(policy: str) -> None:
    # Only backward operators: the gradient g0 is no saved tensor. What waits here is backward stall.
    operators = [Operator("b1", "backward", 1 * MS), Operator("b0", "backward", 2 * MS)]
    tensors = [Tensor("g0", MB, 0, (1,), rebuild=Rebuild(MS))]
    problem = Problem.from_records("gradients", operators, tensors, PLAIN_LINK)
    assert times(score(problem, "K", 1, policy)) == (3, 0, 0, 0)
    with pytest.raises(InputError, match="'g0' is not saved"):
        score(problem, "R", 1, policy)
    # The richer space may swap it all the same. It leaves from 1 on, and b0 reads it where it is.
    schedule = Schedule.from_lists([0, 1], [[0], [0]], [(0, 0)], [(0, 1, 0)])
    assert times(simulate(problem, schedule, 1 * MB, policy="default")) == (3, 0, 0, 0)


def test_no_time_at_all_is_full_throughput() -> None:
    problem = Problem.from_records("instant", [Operator("f0", "forward", 0.0)], [], PLAIN_LINK)
    result = score(problem, "")
    assert (result.step_s, result.throughput, result.multiple_of_ideal(0.0)) == (0, 1.0, 0.0)


# ---- Wrong input --------------------------------------------------------------------------------------------------------


def refusal(*args: object, **options: object) -> tuple[str, str]:
    with pytest.raises(InputError) as refused:
        simulate(*args, **options)  # type: ignore[arg-type]
    return refused.value.place, refused.value.rule


def test_unknown_policy() -> None:
    expected = ("policy", "'lru' is not a runtime policy: use one of default, barriers, on-demand")
    assert refusal(two_layers(), Plan.from_letters("KK"), 1, policy="lru") == expected
    with pytest.raises(InputError, match="'' is not a runtime policy"):
        simulate_many(two_layers(), np.zeros((1, 2), np.int8), 1, policy="")


@pytest.mark.parametrize("budget", [math.nan, -1, -math.inf, -0.5])
def test_budgets_that_are_none(budget: float) -> None:
    expected = ("budget", f"a budget is a number of bytes from 0, not {budget}")
    assert refusal(two_layers(), Plan.from_letters("KK"), budget) == expected
    with pytest.raises(InputError, match="a budget is a number of bytes from 0"):
        simulate_many(two_layers(), np.zeros((1, 2), np.int8), budget)


def test_plans_of_other_problems() -> None:
    assert refusal(two_layers(), Plan.from_letters("KKK"), 1)[0] == "decisions"
    assert refusal(chain(2), Plan.from_letters("RK"), 1)[0] == "decisions[0]"


# ---- Many plans in one call -----------------------------------------------------------------------------------------------


TOTALS = (
    "fits",
    "recompute_s",
    "forward_stall_s",
    "backward_stall_s",
    "d2h_bytes",
    "h2d_bytes",
    "peak_bytes",
    "missing_bytes",
)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("budget_mb", [0, 2, 3, 4, math.inf])
def test_a_table_equals_its_rows(policy: str, budget_mb: float) -> None:
    # All plans of chain(4): its P is 4 MB, and the forward pass needs 2 MB at any time.
    problem = chain(4)
    plans = ["".join(letters) for letters in itertools.product("KS", *["KSR"] * 3)]
    table = simulate_many(
        problem, np.array([Plan.from_letters(plan).decisions for plan in plans]), budget_mb * MB, policy=policy
    )
    for row, plan in enumerate(plans):
        result = simulate(problem, Plan.from_letters(plan), budget_mb * MB, policy=policy)
        assert table.step_s[row] == (result.step_s if result.fits else math.inf), plan
        for column in TOTALS:
            assert getattr(table, column)[row] == getattr(result, column), (plan, column)
    assert table.fits.any() == (budget_mb >= 2)
    best = table.best()
    if best is None:
        assert not table.fits.any()
    else:
        assert table.step_s[best] == table.step_s.min()
        assert best == table.step_s.tolist().index(table.step_s.min())  # the first of equals


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0, 0], [0, 0], [2, 0]], "plan 2: decisions[0]: tensor 'a0' has no rebuild, so it is not recomputed"),
        ([[0, 0], [0, 3], [2, 0]], "plan 1: decisions[1]: tensor 'a1' is decided by no known decision"),
        ([[0, -1]], "plan 0: decisions[1]: tensor 'a1' is decided by no known decision"),
        ([[0, 0, 0]], "decisions: a plan for 'chain of 2' has 2 decisions, this one has 3"),
        ([0, 0], "decisions: plans come as a table of (plans, tensors), not in 1 dimensions"),
        ([[[0, 0]]], "decisions: plans come as a table of (plans, tensors), not in 3 dimensions"),
    ],
)
def test_bad_rows_are_named(rows: list[object], message: str) -> None:
    with pytest.raises(InputError) as refused:
        simulate_many(chain(2), np.array(rows, np.int8), math.inf)
    assert str(refused.value).startswith(message)


def test_an_empty_table() -> None:
    table = simulate_many(chain(2), np.zeros((0, 2), np.int8), math.inf)
    assert table.step_s.size == 0
    assert table.best() is None
    with pytest.raises(InputError, match="this one has 3"):
        simulate_many(chain(2), np.zeros((0, 3), np.int8), math.inf)


def test_a_table_may_be_a_view() -> None:
    # Every second column of an array of another type, in reverse order.
    wide = np.array([[0, 9, 2], [1, 9, 0]])
    table = simulate_many(chain(2), wide[::-1, ::2], math.inf)
    expected = [simulate(chain(2), Plan.from_letters(letters), math.inf).step_s for letters in ("SK", "KR")]
    assert table.step_s.tolist() == expected
