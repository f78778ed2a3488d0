"""What limits a plan: worked by hand on tiny problems, and laws that hold of every run: sums are the score's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import (
    MB,
    MS,
    PLAIN_LINK,
    chain,
    crowded_chains,
    decisions,
    one_operator,
    problems,
    two_layers,
    zero_sizes,
)

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, peak_bytes, simulate
from slackswap.models.event_model.explanation import steps_of
from slackswap.models.event_model.occupancy import MEMORY_KINDS, memory_by_kind
from slackswap.models.event_model.residency import END, FETCH, NO_TENSOR, START, account
from slackswap.models.event_model.stalls import CopyName
from slackswap.models.legality import check
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor
from slackswap.models.schedule import Schedule

SLOW = Link(0.25e9, 0.25e9, duplex_factor=1.0, latency_s=0.0)  # 4 ms per MB


def ms(milliseconds: float) -> Any:
    """A time, in ms, as close as floats get."""
    return pytest.approx(milliseconds)


def slow_step() -> Score:
    """`two_layers` with a0 swapped over a link of 0.25 GB/s: its 10 MB take 40 ms in each direction.

    ::

        compute   f0 0-10 | f1 10-30 | b1 30-70 | b0 waits for a0, 90-110     step 110 ms, ideal 90 ms
        D2H       a0 10-50
        H2D       a0 50-90
    """
    return simulate(two_layers(SLOW), Plan.from_letters("SK"), 100 * MB, timeline=True)


def evicting(policy: str) -> Score:
    """A tensor that comes back too early and has to go again (rule 9, and on-demand): 10 MB, a budget of 30 MB.

    ::

        default    f0 0-10 | f1 10-20 | b2..b5 20-40 | b6, whose 25 MB have no room beside t0, 40-45 | b7 waits, 55-60
        D2H        t0 10-20                     H2D  t0 20-30 and, evicted at 40, 45-55
        on-demand  f0 0-10 | f1 waits for room, 20-30 | b2..b5 30-50 | b6 50-55 | b7 waits, 65-70
        D2H        t0 10-20                     H2D  t0 30-40, for the next heavy operator, and 55-65
    """
    workspace_bytes = [0, 25 * MB if policy == "on-demand" else 0, 0, 0, 0, 0, 25 * MB, 0]
    times = [10, 10, 5, 5, 5, 5, 5, 5]
    operators = [
        Operator(f"{'f' if i < 2 else 'b'}{i}", "forward" if i < 2 else "backward", times[i] * MS, workspace_bytes[i])
        for i in range(7)
    ]
    operators.append(Operator("b7", "backward", 5 * MS, kind="gemm"))
    problem = Problem.from_records("evicting", operators, [Tensor("t0", 10 * MB, 0, (7,))], PLAIN_LINK)
    return simulate(problem, Plan.from_letters("S"), 30 * MB, policy=policy, timeline=True)


# ---- Stalls -----------------------------------------------------------------------------------------------------------------


def test_a_late_tensor_is_named_with_how_late_it_is() -> None:
    why = slow_step().explain()
    (stall,) = why.stalls
    assert (stall.step_name, stall.cause, stall.tensor, stall.forward) == ("b0", "input", "a0", False)
    assert stall.seconds / MS == ms(20)
    assert stall.behind == ((CopyName("H2D", "a0"), "copied", stall.seconds),)
    (wait,) = why.waits
    assert (wait.start_s / MS, wait.end_s / MS) == (ms(70), ms(90))


def test_an_allocation_waits_for_the_copy_that_makes_room() -> None:
    # 25 MB: f1 allocates 20 beside a0's 10, which f1 reads: nothing makes room. With a1 read by nobody but b1 and a0 gone:
    # chain of 3 with 2 MB: f2 (1 MB) beside a0 and a1 waits until a0 is out, at 2 ms: D2H a0 1-2, f1 1-2, then f2 2-3.
    # On a link half as fast a0 is out at 3 ms: f2 waits 1 ms.
    half = Link(0.5e9, 0.5e9, duplex_factor=1.0, latency_s=0.0)
    why = simulate(chain(3, half), Plan.from_letters("SSS"), 2 * MB, timeline=True).explain()
    first = min(why.stalls, key=lambda stall: stall.start_s)
    assert (first.step_name, first.cause, first.tensor, first.forward) == ("f2", "memory", None, True)
    assert first.allocation_bytes == 1 * MB
    assert first.seconds / MS == ms(1)
    assert first.behind[0][:2] == (CopyName("D2H", "a0"), None)


def test_a_barrier_is_told_from_missing_memory() -> None:
    # f1 begins when a0's copy, which overlapped nothing yet, may go on; the layer after f1 waits for it: 10 to 50 ms.
    why = simulate(two_layers(SLOW), Plan.from_letters("SK"), 100 * MB, policy="barriers", timeline=True).explain()
    held = [stall for stall in why.stalls if stall.cause == "barrier"]
    (stall,) = held
    # a0's copy starts at 10 ms as f1 does, and is under way at its end, at 30: b1 waits until 50.
    assert (stall.step_name, stall.forward) == ("b1", False)
    assert stall.seconds / MS == ms(20)
    assert stall.behind[0][0] == CopyName("D2H", "a0")


def test_a_reload_without_room_waits_for_what_is_in_its_way() -> None:
    # b1 has a workspace of 10 MB, b0 reads both: t0 (10 MB) fits only when t1's copy out has ended.
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 10 * MS),
        Operator("b1", "backward", 10 * MS),
        Operator("b0", "backward", 10 * MS),
    ]
    tensors = [Tensor("t0", 10 * MB, 0, (2,)), Tensor("t1", 10 * MB, 1, (3,))]
    slow = Link(1e9, 1e9, duplex_factor=1.0, latency_s=0.0)
    problem = Problem.from_records("crossing", operators, tensors, slow)
    score = simulate(problem, Plan.from_letters("SS"), 10 * MB, timeline=True)
    # f1 waits for room until t0 is out (20 ms), runs to 30; t1 is out at 40 while b1 stands, lacking t0, with no room.
    why = score.explain()
    assert [(s.step_name, s.cause, round(s.seconds / MS)) for s in sorted(why.stalls, key=lambda s: s.start_s)] == [
        ("f1", "memory", 10),
        ("b1", "input", 20),
        ("b0", "input", 10),
    ]
    assert why.stalls[0].behind == (
        (CopyName("D2H", "t1"), "no room", ms(10 * MS)),
        (CopyName("H2D", "t0"), "copied", ms(10 * MS)),
    )


def test_a_reload_waits_behind_another_one() -> None:
    """t1 reaches the host when t0, which is read later, is already on its way back.

    ::

        compute   f0 0-10 | f1 10-20 | bx 20-32 | b1 waits for t1, 60-70 | b0 70-80
        D2H       t0 10-20, t1 20-30             H2D, half as fast   t0 20-40, t1 40-60
    """
    operators = [Operator("f0", "forward", 10 * MS), Operator("f1", "forward", 10 * MS)]
    operators += [Operator(name, "backward", span * MS) for name, span in (("bx", 12), ("b1", 10), ("b0", 10))]
    tensors = [Tensor("t0", 10 * MB, 0, (4,)), Tensor("t1", 10 * MB, 1, (3,))]
    problem = Problem.from_records("behind", operators, tensors, Link(1e9, 0.5e9, duplex_factor=1.0, latency_s=0.0))
    why = simulate(problem, Plan.from_letters("SS"), math.inf, timeline=True).explain()
    (stall,) = why.stalls
    assert (stall.step_name, stall.tensor, stall.seconds) == ("b1", "t1", ms(28 * MS))
    assert stall.behind == (
        (CopyName("H2D", "t0"), "queued", ms(8 * MS)),
        (CopyName("H2D", "t1"), "copied", ms(20 * MS)),
    )
    # t0 is there at 40 and read at 70; t1 should have started 28 ms earlier, at 12, when f1 ran.
    assert [(r.tensor, r.margin_s / MS, r.before) for r in why.reloads] == [("t1", ms(-28), "f1"), ("t0", ms(30), "bx")]


def test_a_barrier_and_then_missing_memory() -> None:
    """f2 is held until t0 is out, and then lacks room for its 15 MB until t1 is out: a budget of 20 MB, 4 ms per MB.

    ::

        compute   f0 0-10 | f1 10-20 | f2 held 20-50, without room 50-90, runs until 100 | ...
        D2H       t0 (10 MB) 10-50, t1 (10 MB) 50-90
    """
    operators = [Operator(f"f{i}", "forward", 10 * MS, 15 * MB if i == 2 else 0, layer=i) for i in range(3)]
    operators.append(Operator("b", "backward", 10 * MS, layer=3))
    tensors = [Tensor("t0", 10 * MB, 0, (3,)), Tensor("t1", 10 * MB, 1, (3,))]
    problem = Problem.from_records("both", operators, tensors, SLOW)
    score = simulate(problem, Plan.from_letters("SS"), 20 * MB, policy="barriers", timeline=True)
    first, second = (wait for wait in score.explain().waits if wait.step_name == "f2")
    assert (first.cause, first.start_s / MS, first.end_s / MS) == ("barrier", ms(20), ms(50))
    assert (second.cause, second.start_s / MS, second.end_s / MS) == ("memory", ms(50), ms(90))
    assert (first.copy, second.copy) == (CopyName("D2H", "t0"), CopyName("D2H", "t1"))


def test_of_two_copies_that_end_at_once_the_one_out_made_room() -> None:
    """b5 lacks room for its 15 MB in 30 from 24 ms on, until t1 is out, at 30, when t0 is in, too."""
    operators = [Operator(f"f{i}", "forward", 10 * MS) for i in range(2)]
    operators += [Operator(f"b{i}", "backward", MS, 15 * MB if i == 6 else 0) for i in range(2, 8)]
    tensors = [Tensor("t0", 10 * MB, 0, (7,)), Tensor("t1", 10 * MB, 1, (7,))]
    link = Link(1e9, 1e9 * (1 - 5e-8), duplex_factor=1.0, latency_s=0.0)  # 0.5 ns more: one instant (rule 10)
    problem = Problem.from_records("at once", operators, tensors, link)
    score = simulate(problem, Plan.from_letters("SS"), 30 * MB, timeline=True)
    told = score.run_timeline
    assert told.copy_end_s[1] == told.copy_end_s[2]
    stall = min(score.explain().stalls, key=lambda stall: stall.start_s)
    assert (stall.step_name, stall.cause, stall.seconds / MS) == ("b6", "memory", ms(6))
    assert stall.behind[0][0] == CopyName("D2H", "t1")


def test_within_one_instant_nothing_waits() -> None:
    # t0's copy ends 0.5 ns after f1, which is the same instant (rule 10): b0 starts there, and has not waited.
    link = Link(1e9, 1e9, duplex_factor=1.0, latency_s=0.5e-9)
    operators = [Operator(f"f{i}", "forward", 10 * MS) for i in range(2)]
    operators += [Operator(f"b{i}", "backward", 10 * MS) for i in range(2)]
    problem = Problem.from_records("instant", operators, [Tensor("t0", 10 * MB, 0, (3,))], link)
    score = simulate(problem, Plan.from_letters("S"), math.inf, timeline=True)
    told = score.run_timeline
    assert told.start_s[2] == told.copy_end_s[0] > told.end_s[1]
    assert score.forward_stall_s == score.backward_stall_s == 0.0
    assert score.explain().waits == ()


def test_a_wait_in_vain_is_told_too() -> None:
    """b0 reads t0, for whose 10 MB there is no room in 25 beside kept k's 16, not even when x is out.

    ::

        compute   f0 0-10 | f1 waits for room, 20-30 | f2 30-35 | f3 35-36 | b0 stands from 36 and fails at 43
        D2H       t0 10-20                             x (8 MB) 35-43
    """
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 10 * MS),
        Operator("f2", "forward", 5 * MS),
        Operator("f3", "forward", 1 * MS),
        Operator("b0", "backward", 10 * MS),
        Operator("b1", "backward", 10 * MS),
    ]
    tensors = [
        Tensor("t0", 10 * MB, 0, (4,)),
        Tensor("k", 16 * MB, 1, (5,)),
        Tensor("x", 8 * MB, 2, (3, 5)),
    ]
    problem = Problem.from_records("in vain", operators, tensors, PLAIN_LINK)
    why = simulate(problem, Plan.from_letters("SKS"), 25 * MB, timeline=True).explain()
    assert [(s.step_name, s.cause, s.tensor) for s in why.stalls] == [("f1", "memory", None), ("b0", "input", "t0")]
    assert why.stalls[1].behind == ((CopyName("D2H", "x"), "no room", ms(7 * MS)),)
    assert why.failure is not None
    assert why.failure.missing_inputs == (("t0", 10 * MB),)
    assert why.failure.missing_bytes == (16 + 10 - 25) * MB
    assert (why.stays, why.reloads) == ((), ())


def test_of_two_late_tensors_the_last_one_alone_is_late() -> None:
    """b0 stands from 32 ms and reads t0, there at 40, and t1, there at 60: the reload of t0 has 20 ms to spare."""
    operators = [Operator("f0", "forward", 10 * MS), Operator("f1", "forward", 10 * MS)]
    operators += [Operator("bx", "backward", 12 * MS), Operator("b0", "backward", 10 * MS)]
    tensors = [Tensor("t0", 10 * MB, 0, (3,)), Tensor("t1", 10 * MB, 1, (3,))]
    problem = Problem.from_records("two late", operators, tensors, Link(1e9, 0.5e9, duplex_factor=1.0, latency_s=0.0))
    why = simulate(problem, Plan.from_letters("SS"), math.inf, timeline=True).explain()
    assert [(r.tensor, r.margin_s / MS) for r in why.reloads] == [("t1", ms(-20)), ("t0", ms(20))]
    assert [(s.tensor, s.seconds / MS) for s in why.stalls] == [("t1", ms(20)), ("t0", ms(8))]


def test_without_copies_nothing_waits() -> None:
    for problem in (two_layers(), one_operator(), zero_sizes()):
        score = simulate(problem, Plan.keep_everything(problem), math.inf, timeline=True)
        why = score.explain()
        assert (why.stalls, why.waits, why.rebuilds, why.reloads, why.stays, why.evictions) == ((), (), (), (), (), ())
        assert why.budget_bytes is None
        assert [use.copies for use in why.link] == [0, 0]
        assert [use.mean_bytes_per_s for use in why.link] == [None, None]
        assert why.peak.used_bytes == peak_bytes(problem)


def test_only_a_simulated_timeline_is_explained() -> None:
    score = simulate(two_layers(), Plan.from_letters("KK"), math.inf)
    with pytest.raises(InputError, match="simulate with timeline=True"):
        score.explain()


# ---- Rebuilds ---------------------------------------------------------------------------------------------------------------


def test_rebuild_time_goes_by_the_kind_of_operator() -> None:
    operators = [
        Operator("load", "forward", MS, kind="copy"),
        Operator("f0", "forward", 10 * MS, kind="norm"),
        Operator("f1", "forward", 20 * MS, kind="gemm"),
        Operator("b1", "backward", 40 * MS, kind="other"),
        Operator("b0", "backward", 20 * MS, kind="other"),
    ]
    tensors = [
        Tensor("a0", 10 * MB, 1, (2, 4), rebuild=Rebuild(10 * MS)),
        Tensor("a1", 20 * MB, 2, (3,), rebuild=Rebuild(20 * MS, inputs=(0,))),
    ]
    problem = Problem.from_records("kinds", operators, tensors, PLAIN_LINK)
    why = simulate(problem, Plan.from_letters("RR"), math.inf, timeline=True).explain()
    # a1 is rebuilt from a0, which is rebuilt first: 20 ms of a gemm's output, 10 ms of a norm's.
    assert [(r.kind, r.steps, round(r.seconds / MS), r.bytes) for r in why.rebuilds] == [
        ("gemm", 1, 20, 20 * MB),
        ("norm", 1, 10, 10 * MB),
    ]


# a1 is rebuilt twice; a0 leaves in the forward pass and comes back twice: no plan lowers to this.
RICHER = Schedule.from_lists(
    steps=[0, 1, 2, 7, 8, 3, 7, 4, 5],
    drops=[[], [0], [1, 2], [], [1], [2], [], [1], [0]],
    offloads=[(0, 0)],
    prefetches=[(0, 3, 1), (0, 6, 3)],
)


def test_a_schedule_that_no_plan_lowers_to_is_explained() -> None:
    problem = chain(3)
    assert check(problem, RICHER) == []
    score = simulate(problem, RICHER, 4 * MB, timeline=True)
    why = score.explain()
    assert score.fits
    assert [(r.kind, r.steps) for r in why.rebuilds] == [("gemm", 3)]
    assert {r.kind for r in why.peak.largest} <= {"swapped", "recomputed"}
    # The first rebuild of a1 reads a0; b1 and b0 read it later, from the same reload.
    assert [(r.tensor, r.reader) for r in why.reloads] == [("a0", "rebuild a1")]


# ---- The link and the slack of reloads --------------------------------------------------------------------------------------


def test_a_late_reload_has_negative_slack() -> None:
    why = slow_step().explain()
    (reload,) = why.reloads
    # Read by b0, which stands at 70; 40 ms of copy could have started at 30, when b1 did, not at 50.
    assert (reload.tensor, reload.reader, reload.before) == ("a0", "b0", "b1")
    assert (reload.start_s / MS, reload.end_s / MS) == (ms(50), ms(90))
    assert (reload.latest_start_s / MS, reload.margin_s / MS) == (ms(30), ms(-20))


def test_an_early_reload_has_slack() -> None:
    # At 1 GB/s: out 10-20, in 30-40; b0 starts at 70: 30 ms later would do, at 60, while b1 (30-70) runs.
    why = simulate(two_layers(), Plan.from_letters("SK"), 100 * MB, timeline=True).explain()
    (reload,) = why.reloads
    assert (reload.start_s / MS, reload.margin_s / MS, reload.latest_start_s / MS) == (ms(30), ms(30), ms(60))
    assert (reload.before, reload.reader) == ("b1", "b0")


def test_the_latest_start_is_right_and_a_later_one_is_not() -> None:
    # A schedule that holds the reload back as long as the slack says costs nothing; one step longer does.
    problem = chain(6)
    plan = Plan.from_letters("SKKKKK")
    base = simulate(problem, plan, math.inf, timeline=True)
    (reload,) = base.explain().reloads
    assert reload.before_step is not None
    schedule = steps_of(base.run_timeline.run).schedule

    def held_until(step: int) -> float:
        later = replace(schedule, prefetch_after=np.array([step - 1]))
        return simulate(problem, later, math.inf).step_s

    assert held_until(reload.before_step) == pytest.approx(base.step_s)
    assert held_until(reload.before_step + 1) > base.step_s + 0.5 * MS


def test_the_use_of_the_link() -> None:
    out, back = slow_step().explain().link
    assert (out.direction, out.copies, out.bytes, out.unfinished_bytes) == ("D2H", 1, 10 * MB, 0)
    assert (out.busy_s / MS, out.busy_share) == (ms(40), ms(40 / 110))
    assert back.mean_bytes_per_s == pytest.approx(0.25e9)
    assert (out.bandwidth_bytes_per_s, back.bandwidth_bytes_per_s) == (0.25e9, 0.25e9)
    assert slow_step().explain().duplex_s == 0


def test_both_directions_at_once_are_counted_while_bytes_move() -> None:
    # 2 ms per MB and 0.5 ms of latency: out a0 1-3.5, a1 3.5-6; in a0 from the end of the forward pass, 4-6.5, then a1.
    link = Link(0.5e9, 0.5e9, duplex_factor=1.0, latency_s=0.5 * MS)
    score = simulate(chain(4, link), Plan.from_letters("SSKK"), math.inf, timeline=True)
    told = score.run_timeline
    assert (told.copy_start_s / MS).tolist() == [ms(1), ms(3.5), ms(4), ms(6.5)]
    # a1 moves 4-6, a0 4.5-6.5.
    assert score.explain().duplex_s / MS == ms(1.5)


def test_tensors_that_never_left_are_named() -> None:
    # a0's offload starts at 10; a1 is produced at 30 and b1 stands at it at once: no copy of it begins before that.
    why = simulate(two_layers(SLOW), Plan.from_letters("SS"), 100 * MB, timeline=True).explain()
    assert [(stay.tensor, stay.copied_out) for stay in why.stays] == [("a1", False)]
    # Alone, a1 is copied out from 30, while b1 reads it.
    why = simulate(two_layers(SLOW), Plan.from_letters("KS"), 100 * MB, timeline=True).explain()
    assert [(stay.tensor, stay.copied_out) for stay in why.stays] == [("a1", True)]


@pytest.mark.parametrize(("policy", "at_ms", "starts_ms"), [("default", 40, (20, 45)), ("on-demand", 50, (30, 55))])
def test_an_eviction_is_found(policy: str, at_ms: float, starts_ms: tuple[float, float]) -> None:
    score = evicting(policy)
    why = score.explain()
    assert [(e.tensor, e.bytes, round(e.at_s / MS)) for e in why.evictions] == [("t0", 10 * MB, at_ms)]
    told = score.run_timeline
    assert (told.copy_start_s[~told.copy_is_d2h] / MS).tolist() == [ms(start) for start in starts_ms]
    # Only the second copy was read: b7 waits 10 ms for it.
    (reload,) = why.reloads
    assert (reload.start_s / MS, reload.margin_s / MS) == (ms(starts_ms[1]), ms(-10))
    assert [stall.step_name for stall in why.stalls if stall.tensor == "t0"] == ["b7"]


def test_of_two_tensors_the_one_that_is_read_last_is_evicted() -> None:
    # As in `evicting`, with t1 beside t0 and 40 MB: b6's 25 MB have room when one of them, of one size, is gone.
    times = [10, 10, *[20] * 4, 5, 5, 5]
    operators = [
        Operator(f"o{i}", "forward" if i < 2 else "backward", times[i] * MS, 25 * MB if i == 6 else 0) for i in range(9)
    ]
    tensors = [Tensor("t0", 10 * MB, 0, (8,)), Tensor("t1", 10 * MB, 1, (7,))]
    problem = Problem.from_records("two", operators, tensors, PLAIN_LINK)
    score = simulate(problem, Plan.from_letters("SS"), 40 * MB, timeline=True)
    why = score.explain()
    assert [eviction.tensor for eviction in why.evictions] == ["t0"]
    assert [(reload.tensor, reload.reader) for reload in why.reloads] == [("t0", "o8"), ("t1", "o7")]
    assert why.peak.by_kind["swapped"] == 10 * MB


# ---- Memory -----------------------------------------------------------------------------------------------------------------


def test_memory_at_the_peak_by_kind() -> None:
    # b1's workspace of 7 MB and its gradient g of 3 MB, beside a0 (kept), a1 (rebuilt); u (2 MB) is nobody's from f1 on.
    operators = [
        Operator("f0", "forward", 10 * MS),
        Operator("f1", "forward", 10 * MS),
        Operator("b1", "backward", 10 * MS, workspace_bytes=7 * MB),
        Operator("b0", "backward", 10 * MS),
    ]
    tensors = [
        Tensor("a0", 10 * MB, 0, (3,)),
        Tensor("u", 2 * MB, 0, (1,)),
        Tensor("a1", 5 * MB, 1, (2,)),
        Tensor("g", 3 * MB, 2, (3,)),
    ]
    problem = Problem.from_records("kinds", operators, tensors, PLAIN_LINK)
    why = simulate(problem, Plan.keep_everything(problem), math.inf, timeline=True).explain()
    assert (why.peak.running, why.peak.used_bytes, why.peak.at_s / MS) == ("b1", 25 * MB, ms(20))
    assert why.peak.by_kind == {
        "kept": 15 * MB,
        "swapped": 0,
        "recomputed": 0,
        "temporaries": 0,
        "gradients": 3 * MB,
        "workspace": 7 * MB,
    }
    assert [(tensor.tensor, tensor.kind) for tensor in why.peak.largest] == [
        ("a0", "kept"),
        ("a1", "kept"),
        ("g", "gradients"),
    ]
    swapped = simulate(problem, Plan.from_letters("SKKK"), math.inf, timeline=True).explain()
    assert swapped.peak.by_kind["swapped"] == 10 * MB  # it comes back while b1 runs
    assert tuple(why.peak.by_kind) == MEMORY_KINDS


def test_why_a_plan_does_not_fit() -> None:
    # 25 MB: f1 allocates a1's 20 MB beside a0's 10 MB: 5 MB are missing.
    score = simulate(two_layers(), Plan.from_letters("KK"), 25 * MB, timeline=True)
    why = score.explain()
    failure = why.failure
    assert failure is not None
    assert (failure.step_name, failure.missing_bytes, failure.allocation_bytes) == ("f1", 5 * MB, 20 * MB)
    assert (failure.missing_inputs, failure.budget_bytes) == ((), 25 * MB)
    assert [tensor.tensor for tensor in failure.occupancy.largest] == ["a0"]
    assert failure.occupancy.running is None


def test_a_step_that_does_not_fit_for_lack_of_an_input() -> None:
    # b1's workspace of 15 MB and t0's 10 MB never fit into 20 MB, each alone does.
    operators = [Operator("f0", "forward", 10 * MS), Operator("f1", "forward", 10 * MS)]
    operators.append(Operator("b0", "backward", 10 * MS, workspace_bytes=15 * MB))
    problem = Problem.from_records("crowded", operators, [Tensor("t0", 10 * MB, 0, (2,))], PLAIN_LINK)
    failure = simulate(problem, Plan.from_letters("S"), 20 * MB, timeline=True).explain().failure
    assert failure is not None
    used = failure.occupancy.used_bytes + sum(n_bytes for _, n_bytes in failure.missing_inputs)
    assert (failure.step_name, failure.missing_bytes) == ("b0", 5 * MB)
    assert used + failure.allocation_bytes - failure.budget_bytes == failure.missing_bytes


def test_nothing_fits_into_nothing() -> None:
    failure = simulate(one_operator(), Plan.from_letters("K"), 0, timeline=True).explain().failure
    assert failure is not None
    assert (failure.missing_bytes, failure.occupancy.n_tensors, failure.occupancy.used_bytes) == (1 * MB, 0, 0)


# ---- Laws -------------------------------------------------------------------------------------------------------------------


@st.composite
def scores(draw: st.DrawFn) -> Score:
    """Runs of every policy, with budgets from too little to enough."""
    problem = draw(st.one_of(problems(), crowded_chains()))
    plan = Plan.from_letters(draw(decisions(problem)))
    if draw(st.booleans()):
        plan = Plan.swap_everything(problem)
    needed = [
        int(problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum())
        for i in range(problem.n_operators)
    ]
    low, high = max(needed), peak_bytes(problem)
    share = draw(st.sampled_from([-0.3, 0.0, 0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]))
    budget_bytes = max(0, int(low + share * (high - low)))
    return simulate(problem, plan, budget_bytes, policy=draw(st.sampled_from(list(POLICIES))), timeline=True)


examples = settings(max_examples=80, suppress_health_check=list(HealthCheck))


@examples
@given(scores())
def test_the_waits_are_the_stalls_of_the_score_to_the_last_bit(score: Score) -> None:
    why = score.explain()
    forward_s = backward_s = 0.0
    for wait in why.waits:  # in this order, as the clock does
        assert wait.seconds > 0
        assert wait.copy is not None
        if wait.forward:
            forward_s += wait.seconds
        else:
            backward_s += wait.seconds
    assert (forward_s, backward_s) == (score.forward_stall_s, score.backward_stall_s)
    by_cause = math.fsum(stall.seconds for stall in why.stalls)
    assert by_cause == pytest.approx(score.forward_stall_s + score.backward_stall_s, rel=1e-12, abs=1e-15)
    assert [stall.seconds for stall in why.stalls] == sorted((stall.seconds for stall in why.stalls), reverse=True)
    for stall in why.stalls:
        assert math.fsum(seconds for _, _, seconds in stall.behind) == pytest.approx(stall.seconds, rel=1e-12)


@examples
@given(scores())
def test_each_step_waits_for_what_the_timeline_says(score: Score) -> None:
    told, why = score.run_timeline, score.explain()
    problem = told.run.problem
    columns: dict[str, Any] = {"input": told.input_wait_s, "memory": told.memory_wait_s, "barrier": told.barrier_wait_s}
    for cause, column in columns.items():
        waited_s = np.zeros(len(told.start_s) + 1)
        for wait in why.waits:
            waited_s[wait.step] += wait.seconds if wait.cause == cause else 0.0
        assert waited_s[:-1] == pytest.approx(column, rel=1e-12, abs=1e-12), cause
    last = {wait.step: wait.tensor for wait in why.waits if wait.cause == "input"}
    for step, name in last.items():
        # Of no bytes it may come at the same instant as the one before it, and is then the last one missed.
        if step < len(told.start_s) and problem.tensor_bytes[told.awaited[step]] > 0:
            assert name == problem.tensor_names[told.awaited[step]]


@examples
@given(scores())
def test_every_byte_in_use_has_an_owner(score: Score) -> None:
    told = score.run_timeline
    steps = steps_of(told.run)
    ledger = account(told, steps)
    assert (memory_by_kind(steps, ledger).sum(axis=1) == told.memory_bytes).all()
    assert (memory_by_kind(steps, ledger) >= 0).all()
    assert len(ledger.ended_s) == len(told.start_s)
    there: set[int] = set()
    workspace_bytes = 0
    some = {t for t in range(steps.problem.n_tensors) if steps.sizes[t]}  # of no bytes the order is not told
    for what, index, used_bytes in zip(ledger.what.tolist(), ledger.index.tolist(), told.memory_bytes, strict=True):
        if what == START:
            assert there >= some & set(steps.inputs(index))
            there |= set(steps.outputs(index))
            workspace_bytes = steps.workspace_bytes(index)
        elif what == END:
            workspace_bytes = 0
            there -= set(steps.plain_drops(index))
        elif what == FETCH:
            assert index not in some & there
            there.add(index)
        elif index != NO_TENSOR:
            assert index in there or index not in some
            there.discard(index)
        assert steps.bytes_of(there) + workspace_bytes == used_bytes


@examples
@given(scores())
def test_memory_and_rebuilds_add_up(score: Score) -> None:
    why = score.explain()
    assert sum(why.peak.by_kind.values()) == why.peak.used_bytes == score.peak_bytes
    assert math.fsum(rebuild.seconds for rebuild in why.rebuilds) == pytest.approx(score.recompute_s, rel=1e-12)
    assert (why.link[0].bytes, why.link[1].bytes) == (score.d2h_bytes, score.h2d_bytes)
    assert why.duplex_s <= min(use.busy_s for use in why.link) + 1e-12
    assert all(0 <= use.busy_share <= 1 + 1e-9 for use in why.link)
    if why.failure is None:
        assert score.fits
        return
    inputs_bytes = sum(n_bytes for _, n_bytes in why.failure.missing_inputs)
    needed_bytes = why.failure.occupancy.used_bytes + why.failure.allocation_bytes + inputs_bytes
    assert needed_bytes - why.failure.budget_bytes == why.failure.missing_bytes == score.missing_bytes


@examples
@given(scores())
def test_a_late_reload_is_a_stall(score: Score) -> None:
    why = score.explain()
    stalled = {(wait.step, wait.tensor) for wait in why.waits}
    problem = score.run_timeline.run.problem
    sizes = dict(zip(problem.tensor_names, problem.tensor_bytes.tolist(), strict=True))
    for reload in why.reloads:
        assert reload.start_s + reload.margin_s == reload.latest_start_s
        assert reload.end_s <= score.run_timeline.start_s[reload.reader_step]
        if reload.margin_s < 0 and sizes[reload.tensor] and problem.link.latency_s == 0:
            assert any(step == reload.reader_step for step, _ in stalled)
        if reload.before_step is not None:
            assert score.run_timeline.start_s[reload.before_step] <= reload.latest_start_s
