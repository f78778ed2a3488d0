"""Algorithm 1 part by part on instances worked out by hand, and the paper's figures for it (sections 3 and 4).

Links move 1 MB per ms without latency, so a copy of x MB takes x ms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK, chain

from slackswap.models.event_model import simulate
from slackswap.models.event_model.buffers import buffers_of
from slackswap.models.lowering import lower
from slackswap.models.plan import DecisionArray, Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.planners import registry, run_planner
from slackswap.planners.slackswap import GUARD, SLACKSWAP, TwoPasses
from slackswap.planners.slackswap_kernel import memory_profile, spend_link_budget


def iteration(forward_ms: Sequence[float], backward_ms: Sequence[float], tensors: Sequence[Tensor]) -> Problem:
    """Operators f0, f1, ... and then b0, b1, ... in order of execution; backward operator j has index n_forward + j."""
    operators = [Operator(f"f{i}", "forward", ms * MS) for i, ms in enumerate(forward_ms)]
    operators += [Operator(f"b{i}", "backward", ms * MS) for i, ms in enumerate(backward_ms)]
    return Problem.from_records("by hand", operators, tensors, PLAIN_LINK)


def letters_of(decisions: DecisionArray) -> str:
    return Plan(decisions).letters


def pass_1(problem: Problem, deficit_mb: float, *, guard: float = GUARD, rank: str = "cost", before: str = "") -> str:
    """Return what Pass 1 alone decides for a deficit of D = P - M megabytes."""
    passes = TwoPasses(problem, rank)
    decisions = np.array(Plan.from_letters(before or "K" * problem.n_tensors).decisions)
    columns = buffers_of(problem).problem
    spend_link_budget(
        columns,
        passes.order,
        passes.by_deadline,
        passes.by_release,
        passes.start_s,
        guard,
        int(deficit_mb * MB),
        decisions,
    )
    return letters_of(decisions)


def pass_2(problem: Problem, budget_mb: float, before: str = "") -> tuple[str, bool]:
    """Return what Pass 2 makes of the decisions, and whether it covered everything."""
    decisions = np.array(Plan.from_letters(before or "K" * problem.n_tensors).decisions)
    never_swap = np.zeros(problem.n_tensors, np.bool_)
    covered = TwoPasses(problem, "cost").run(int(budget_mb * MB), GUARD, decisions, never_swap, swaps=False)
    return letters_of(decisions), covered


def four_costs() -> Problem:
    """Four tensors, and one without bytes; rho = c / s in ms per MB.

    ::

        a0 10 MB  no rebuild       rho = infinity, as for block inputs
        a1 10 MB  rebuilt in  5    rho = 0.5
        a2 20 MB  rebuilt in 30    rho = 1.5
        a3 10 MB  rebuilt in  5    rho = 0.5
        a4  0 MB  rebuilt in  1    frees nothing
    """
    sizes_mb, rebuild_ms = [10, 10, 20, 10, 0], [None, 5, 30, 5, 1]
    tensors = [
        Tensor(f"a{i}", mb * MB, i, (9 - i,), rebuild=None if ms is None else Rebuild(ms * MS))
        for i, (mb, ms) in enumerate(zip(sizes_mb, rebuild_ms, strict=True))
    ]
    return iteration([10] * 5, [20] * 5, tensors)


def test_candidates_stand_by_decreasing_cost_per_byte() -> None:
    # Infinity, 1.5, then the two of 0.5 in order of production; the empty tensor is none.
    assert TwoPasses(four_costs(), "cost").order.tolist() == [0, 2, 1, 3]


def test_swap_first_takes_candidates_as_they_are_produced() -> None:
    assert TwoPasses(four_costs(), "production").order.tolist() == [0, 1, 2, 3]


def test_only_what_is_saved_is_a_candidate() -> None:
    # `unread` has no backward reader, `gradient` is produced in the backward pass.
    tensors = [
        Tensor("unread", 10 * MB, 0, (1,)),
        Tensor("saved", 10 * MB, 0, (3,)),
        Tensor("gradient", 10 * MB, 2, (3,)),
    ]
    assert TwoPasses(iteration([1, 1], [1, 1], tensors), "cost").order.tolist() == [1]


def one_offload(size_mb: float) -> Problem:
    """T_F = 10 + 90 = 100 ms. a is produced at 10 ms, so its offload ends at 10 + its size.

    The prefetch has all the time it needs: `kept`, 100 MB, is released at 110 ms, and a is read at 100 + 10 + 200 ms.
    """
    tensors = [Tensor("a", int(size_mb * MB), 0, (4,)), Tensor("kept", 100 * MB, 1, (2,), rebuild=Rebuild(0.0))]
    return iteration([10, 90], [10, 200, 1], tensors)


@pytest.mark.parametrize(
    ("size_mb", "guard", "decision"),
    [
        (87.9, 0.02, "S"),  # ends at 97.9 ms, before (1 - 2%) T_F = 98 ms
        (88.1, 0.02, "K"),  # ends at 98.1 ms
        (88.1, 0.01, "S"),  # before 99 ms
        (89.9, 0.0, "S"),  # before T_F itself
        (90.1, 0.0, "K"),
        (39.9, 0.5, "S"),  # before 50 ms
        (40.1, 0.5, "K"),
    ],
)
def test_offloads_end_a_guard_before_the_forward_pass_does(size_mb: float, guard: float, decision: str) -> None:
    assert pass_1(one_offload(size_mb), deficit_mb=1, guard=guard)[0] == decision


def test_the_guard_is_two_percent() -> None:
    assert GUARD == 0.02


def offload_queue(size_mb: float) -> Problem:
    """T_F = 100 ms; a (30 MB), b (of the given size) and c (20 MB) are produced at 10, 20 and 20 ms.

    FIFO: a is copied from 10 to 40 ms, b from 40 ms, although b alone could start at 20 ms.
    Prefetches have all the time they need. None can be rebuilt: rho is infinite for all, in order of production.
    """
    sizes_mb = (30, size_mb, 20)
    tensors = [Tensor(f"a{i}", int(mb * MB), min(i, 1), (7,)) for i, mb in enumerate(sizes_mb)]
    tensors.append(Tensor("kept", 300 * MB, 2, (3,), rebuild=Rebuild(0.0)))
    return iteration([10, 10, 80], [1, 1, 1, 300, 1], tensors)


def test_offloads_queue_in_order_of_production() -> None:
    # b's 57 MB leave from 40 to 97 ms, in time; then c's 20 MB would end at 117 ms.
    assert pass_1(offload_queue(57), deficit_mb=300) == "SSKK"


def test_a_candidate_that_fails_leaves_the_link_to_the_next() -> None:
    # b's 59 MB would end at 99 ms; c leaves in its place, from 40 to 60 ms.
    assert pass_1(offload_queue(59), deficit_mb=300) == "SKSK"


def test_the_engine_waits_for_production() -> None:
    # Two of 10 MB produced at 10 and 80 ms: the second is copied from 80 to 90 ms, not from 20 ms; a third, produced at
    # 95 ms, would end at 105 ms. T_F = 100 ms.
    tensors = [Tensor(f"a{i}", 10 * MB, i, (6,)) for i in range(3)]
    tensors.append(Tensor("kept", 100 * MB, 3, (4,), rebuild=Rebuild(0.0)))
    assert pass_1(iteration([10, 70, 15, 5], [1, 200, 1], tensors), deficit_mb=100) == "SSKK"


def credited_prefetch(*, released_mb: Sequence[float], read_after_ms: float) -> Problem:
    """T_F = 100 ms; a (10 MB, produced at 10 ms) is read `read_after_ms` after the backward pass began.

    Backward operators of 10 ms each release kept tensors of the given sizes when they end; then nothing until a is read.
    """
    n_kept = len(released_mb)
    tensors = [Tensor("a", 10 * MB, 0, (2 + n_kept + 1,))]
    tensors += [Tensor(f"k{i}", int(mb * MB), 1, (2 + i,), rebuild=Rebuild(0.0)) for i, mb in enumerate(released_mb)]
    return iteration([10, 90], [*[10] * n_kept, read_after_ms - 10 * n_kept, 1], tensors)


@pytest.mark.parametrize(
    ("released_mb", "read_after_ms", "decision"),
    [
        # Memory is full at T_F. k0 gives 10 MB at 10 ms, so a's copy runs from 10 to 20 ms.
        ([10], 20.5, "S"),
        ([10], 19.5, "K"),
        # 5 MB are not enough for a's buffer: the second 5 MB come at 20 ms, and the copy ends at 30 ms.
        ([5, 5], 30.5, "S"),
        ([5, 5], 29.5, "K"),
        # A release of more than a needs is no better than one of just as much.
        ([50, 5], 20.5, "S"),
        # The backward pass never releases enough before a is read.
        ([4, 5], 500.0, "K"),
    ],
)
def test_prefetches_wait_for_memory_that_the_backward_pass_releases(
    released_mb: list[float], read_after_ms: float, decision: str
) -> None:
    problem = credited_prefetch(released_mb=released_mb, read_after_ms=read_after_ms)
    assert pass_1(problem, deficit_mb=1)[0] == decision


def test_recomputed_and_swapped_tensors_are_not_credited() -> None:
    problem = credited_prefetch(released_mb=[10, 10], read_after_ms=25)
    # k0 gives its 10 MB at 10 ms: the copy runs until 20 ms, and a is read at 25 ms.
    assert pass_1(problem, deficit_mb=1) == "SKK"
    # Were k0 recomputed, the memory at T_F would not hold it: k1's bytes at 20 ms come too late, until 30 ms.
    assert pass_1(problem, deficit_mb=1, before="KRK") == "KRK"


def two_deadlines(first_read_ms: float) -> Problem:
    """T_F = 100 ms. a and c, 10 MB each, leave from 10 to 20 and from 20 to 30 ms.

    c, produced second, is read first, `first_read_ms` after T_F; a 50 ms after T_F. k gives 20 MB at 10 ms.
    Earliest deadline first: c from 10 to 20 ms, a from 20 to 30 ms. First in first out would bring c at 30 ms.
    """
    tensors = [
        Tensor("a", 10 * MB, 0, (5,)),
        Tensor("c", 10 * MB, 0, (4,)),
        Tensor("k", 20 * MB, 1, (2,), rebuild=Rebuild(0.0)),
    ]
    return iteration([10, 90], [10, first_read_ms - 10, 50 - first_read_ms, 1], tensors)


@pytest.mark.parametrize(("first_read_ms", "decisions"), [(20.5, "SSK"), (19.5, "SKK")])
def test_prefetches_run_in_order_of_deadline(first_read_ms: float, decisions: str) -> None:
    assert pass_1(two_deadlines(first_read_ms), deficit_mb=100) == decisions


@pytest.mark.parametrize(
    ("rebuild_of_a", "decisions"),
    [
        (None, "SKK"),  # a is taken first; c would be copied before it, and a would end at 30 ms
        (Rebuild(1 * MS), "KSK"),  # c is taken first, and is in time; a after it is not
    ],
)
def test_a_candidate_must_not_make_another_late(rebuild_of_a: Rebuild | None, decisions: str) -> None:
    # T_F = 100 ms, k gives 20 MB at 10 ms. c (10 MB) is read at 21 ms, a (10 MB) at 25 ms: alone each is in time, from 10
    # to 20 ms.
    tensors = [
        Tensor("a", 10 * MB, 0, (5,), rebuild=rebuild_of_a),
        Tensor("c", 10 * MB, 0, (4,), rebuild=Rebuild(100 * MS)),
        Tensor("k", 20 * MB, 1, (2,), rebuild=Rebuild(0.0)),
    ]
    assert pass_1(iteration([10, 90], [10, 11, 4, 1], tensors), deficit_mb=100) == decisions


@pytest.mark.parametrize(
    ("deficit_mb", "decisions"),
    [
        (0, "KKKKK"),  # nothing to free
        (1, "SKKKK"),  # a0's 10 MB cover it
        (10, "SKKKK"),  # just
        (10.1, "SKSKK"),  # then the next most expensive, a2, 20 MB
        (30, "SKSKK"),
        (30.1, "SSSKK"),
    ],
)
def test_pass_1_stops_when_the_deficit_is_covered(deficit_mb: float, decisions: str) -> None:
    # T_F = 60 ms. With all three swapped, a0 leaves from 10 to 20 ms, a1 from 20 to 30, a2 from 30 to 50. a3 and a4 give
    # 50 MB at 80 ms, and the copies back run until 120 ms; a1 and a2 are read at 140 ms, a0 at 160 ms.
    tensors = [
        Tensor("a0", 10 * MB, 0, (9,)),
        Tensor("a1", 10 * MB, 1, (8,), rebuild=Rebuild(5 * MS)),
        Tensor("a2", 20 * MB, 2, (8,), rebuild=Rebuild(30 * MS)),
        Tensor("a3", 10 * MB, 3, (6,), rebuild=Rebuild(0.0)),
        Tensor("a4", 40 * MB, 4, (6,), rebuild=Rebuild(0.0)),
    ]
    assert pass_1(iteration([10] * 6, [20, 60, 20, 20], tensors), deficit_mb=deficit_mb) == decisions


def profile_mb(problem: Problem, letters: str) -> list[float]:
    """Return the memory profile m(i) over operators, in MB."""
    passes, buffers = TwoPasses(problem, "cost"), buffers_of(problem)
    plan = Plan.from_letters(letters)
    lower(problem, plan)  # leaves in the buffers where each tensor is rebuilt and used
    profile_bytes = np.zeros(problem.n_operators, np.int64)
    first_use = np.zeros(problem.n_tensors, np.int64)
    by_step = np.zeros(problem.n_operators + problem.n_tensors + 1, np.int64)
    memory_profile(
        buffers.problem,
        buffers.schedule,
        buffers.scratch,
        passes.start_s,
        plan.decisions,
        profile_bytes,
        first_use,
        by_step,
    )
    return [n_bytes / MB for n_bytes in profile_bytes]


@pytest.mark.parametrize(
    ("letters", "expected_mb"),
    [
        # f0 f1 f2 f3 b3 b2 b1 b0; tensor i is read by f(i + 1) and b(i).
        ("KKKK", [1, 2, 3, 4, 4, 3, 2, 1]),
        # a1 goes after f2; it is back, rebuilt, from b1 on.
        ("KRKK", [1, 2, 3, 3, 3, 2, 2, 1]),
        # Before b2, a1 is rebuilt from a0 and a2 from a1: a0, a1 and a2 are there. a3 has gone after b3.
        ("KRRK", [1, 2, 3, 3, 2, 3, 2, 1]),
        # a3 is rebuilt before b3, from a2, from a1, from a0. In the forward pass only a0 and two neighbours are there.
        ("KRRR", [1, 2, 3, 3, 4, 3, 2, 1]),
        # a0 leaves from 1 to 2 ms, when f1, its last forward reader, ends as well; it is back for b0.
        ("SKKK", [1, 2, 2, 3, 3, 2, 1, 1]),
        # Each until its forward reader ends, when its copy has ended too. Back for b2, b1, b0.
        ("SSSK", [1, 2, 2, 2, 1, 1, 1, 1]),
        # A rebuild reads a0 before b1: there it must be back.
        ("SRKK", [1, 2, 2, 2, 2, 1, 2, 1]),
    ],
)
def test_memory_profile(letters: str, expected_mb: list[float]) -> None:
    assert profile_mb(chain(4), letters) == expected_mb


def test_memory_profile_counts_workspaces_and_slow_offloads() -> None:
    # a (20 MB) leaves from 10 to 30 ms: f1 (10-15 ms) and f2 (15-30 ms) still see it, f3 no more; f2 has 7 MB of workspace.
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 5 * MS),
        Operator("f2", "forward", 15 * MS, 7 * MB),
        Operator("f3", "forward", 10 * MS),
        Operator("b0", "backward", 10 * MS, 1 * MB),
    ]
    rebuild = Rebuild(1 * MS, (), 3 * MB)
    problem = Problem.from_records("profile", operators, [Tensor("a", 20 * MB, 0, (4,), None, rebuild)], PLAIN_LINK)
    assert profile_mb(problem, "S") == [20, 20, 27, 0, 21]
    # Recomputed, it goes after f0; the rebuild's own 3 MB before b0 are more than b0's.
    assert profile_mb(problem, "R") == [20, 0, 7, 0, 23]


def two_sizes() -> Problem:
    """Every tensor is there when f2 ends: P = 20 + 5 + 30 = 55 MB.

    ::

        x 20 MB  rebuilt in 10 ms   0.5 ms per MB
        y  5 MB  rebuilt in  4 ms   0.8 ms per MB
        z 30 MB  no rebuild, read first in the backward pass
    """
    tensors = [
        Tensor("x", 20 * MB, 0, (5,), rebuild=Rebuild(10 * MS)),
        Tensor("y", 5 * MB, 1, (4,), rebuild=Rebuild(4 * MS)),
        Tensor("z", 30 * MB, 2, (3,)),
    ]
    return iteration([1, 1, 1], [1, 1, 1], tensors)


@pytest.mark.parametrize(
    ("budget_mb", "letters"),
    [
        (55, "KKK"),
        # E = 5: x costs 10 / min(20, 5) = 2 ms per MB of the excess, y 4 / min(5, 5) = 0.8: no need to rebuild the large one.
        (50, "KRK"),
        # E = 20: x costs 10 / 20 = 0.5, y still 0.8.
        (35, "RKK"),
        # They meet at E = 12.5, where 10 / 12.5 = 4 / 5. At 12, y comes first, and then x for the 7 MB left; at 13, x alone.
        (43, "RRK"),
        (42, "RKK"),
        # E = 25: x, then y.
        (30, "RRK"),
    ],
)
def test_pass_2_takes_the_cheapest_byte_of_the_excess(budget_mb: float, letters: str) -> None:
    assert pass_2(two_sizes(), budget_mb) == (letters, True)


def test_pass_2_reports_what_it_cannot_cover() -> None:
    # z alone has 30 MB, and nothing rebuilds it.
    assert pass_2(two_sizes(), 29) == ("RRK", False)


def test_pass_2_leaves_alone_what_is_read_at_the_excess_or_before() -> None:
    """Where f2 runs, which reads x, only y may go; where b0 runs, which reads y, only x.

    ::

              f0   f1   f2        b0        b1
        KK    10   20   20 + 10   20 + 10   10     peak 30, budget 20 MB
        KR    10   20   10 + 10   20 + 10   10     y goes after f1, although x is far cheaper
        RR    10   20   10 + 10   10 + 10   10     x goes after f2
    """
    operators = [
        Operator("f0", "forward", 1 * MS),
        Operator("f1", "forward", 1 * MS),
        Operator("f2", "forward", 1 * MS, 10 * MB),
        Operator("b0", "backward", 1 * MS, 10 * MB),
        Operator("b1", "backward", 1 * MS),
    ]
    tensors = [
        Tensor("x", 10 * MB, 0, (2, 4), rebuild=Rebuild(1 * MS)),
        Tensor("y", 10 * MB, 1, (3,), rebuild=Rebuild(50 * MS)),
    ]
    problem = Problem.from_records("busy", operators, tensors, PLAIN_LINK)
    for letters, expected_mb in {
        "KK": [10, 20, 30, 30, 10],
        "KR": [10, 20, 20, 30, 10],
        "RR": [10, 20, 20, 20, 10],
    }.items():
        assert profile_mb(problem, letters) == expected_mb
    assert pass_2(problem, 20) == ("RR", True)


def slow_offload(block: int | None) -> Problem:
    """Swapping a (10 MB, 10-20 ms) does not free it for f1 (10-20 ms), which writes w (10 MB). P = 20 MB."""
    tensors = [
        Tensor("a", 10 * MB, 0, (5,), block=block, rebuild=Rebuild(10 * MS)),
        Tensor("w", 10 * MB, 1, (3,)),
    ]
    return iteration([10, 10, 10], [10, 15, 10], tensors)


def test_where_no_candidate_is_left_the_earliest_block_is_recomputed() -> None:
    # M = 15 MB. f1 needs 20 MB while a is still being copied, and Pass 2 has no candidate: a is swapped, w is being written.
    # Block checkpointing is the fallback: a is recomputed after all.
    assert profile_mb(slow_offload(block=0), "SK") == [10, 20, 10, 10, 0, 10]
    assert pass_2(slow_offload(block=0), 15, before="SK") == ("RK", True)


def test_without_blocks_there_is_no_fallback() -> None:
    assert pass_2(slow_offload(block=None), 15, before="SK") == ("SK", False)


def test_the_fallback_converts_block_after_block_earliest_first() -> None:
    """Three blocks of one swapped tensor each; at f3 none has left yet.

    a0, a1, a2 (10 MB) are produced at 1, 2, 3 ms and leave from 1 to 31 ms, while f3 (3-4 ms) allocates w, 25 MB: 55 MB in
    use. M = 45 MB: recomputing the block of a0 is enough; M = 35: that of a1 as well.
    """
    tensors = [Tensor(f"a{i}", 10 * MB, i, (8 - i,), block=5 + i, rebuild=Rebuild(1 * MS)) for i in range(3)]
    tensors.append(Tensor("w", 25 * MB, 3, (5,)))
    problem = iteration([1, 1, 1, 1, 96], [1, 1, 1, 1], tensors)
    assert profile_mb(problem, "SSSK")[3] == 55
    assert pass_2(problem, 55, before="SSSK") == ("SSSK", True)
    assert pass_2(problem, 45, before="SSSK") == ("RSSK", True)
    assert pass_2(problem, 35, before="SSSK") == ("RRSK", True)


def test_recomputations_chain() -> None:
    """Chain of 6, M = 4 of 6 MB: each a(i) is rebuilt from a(i - 1), all at 1 ms per MB.

    The first excess is at f4, 5 MB; the largest, E, is 2 MB. All candidates cost the same, so the lowest indices go: a1 and
    a2, rebuilt one after the other before b2. The step takes these two rebuilds longer, 20 instead of 18 ms.
    """
    assert pass_2(chain(6), 4) == ("KRRKKK", True)
    score = simulate(chain(6), Plan.from_letters("KRRKKK"), 4 * MB)
    assert score.fits
    assert score.step_s == pytest.approx(20 * MS)


def test_the_two_passes_together() -> None:
    # The same chain and budget: the link, 1 MB per operator, hides two tensors, and nothing is recomputed.
    outcome = run_planner(SLACKSWAP, chain(6), 4 * MB)
    assert isinstance(outcome.plan, Plan)
    assert outcome.plan.letters.count("S") == 2
    assert outcome.claimed_step_s == pytest.approx(18 * MS)
    without_link = run_planner(registry()["recompute-only"], chain(6), 4 * MB)
    assert without_link.claimed_step_s == pytest.approx(20 * MS)
