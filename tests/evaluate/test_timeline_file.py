"""Timelines as Trace Event JSON: a validator of the format, and what the events say of steps worked out by hand."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

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

from slackswap.evaluate.sources import load_source
from slackswap.evaluate.timeline_file import timeline_json, write_timeline_file
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Tensor
from slackswap.models.schedule import Schedule

SLOW = Link(0.25e9, 0.25e9, duplex_factor=1.0, latency_s=0.0)
Event = dict[str, Any]

# What each phase has to have, by the Trace Event Format.
REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid", "bp"},
    "C": {"name", "ts", "pid", "args"},
    "i": {"name", "ts", "pid", "tid", "s"},
    "M": {"name", "pid", "args"},
}
METADATA_ARGS = {"process_name": "name", "thread_name": "name", "thread_sort_index": "sort_index"}


def ns(microseconds: float) -> int:
    """Times are whole nanoseconds, written in microseconds."""
    whole = round(microseconds * 1000)
    assert microseconds == whole / 1000
    return whole


def validate(content: bytes) -> list[Event]:
    """Check a file against the format; return its events."""
    whole = json.loads(content)
    assert set(whole) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert whole["displayTimeUnit"] in ("ms", "ns")
    assert all(isinstance(value, str) for value in whole["otherData"].values())
    events: list[Event] = whole["traceEvents"]
    for event in events:
        assert set(event) >= REQUIRED[event["ph"]], event
        assert isinstance(event["name"], str) and event["name"].isprintable()
        assert all(math.isfinite(event[key]) and event[key] >= 0 for key in ("ts", "dur") if key in event), event
        if event["ph"] == "M":
            assert METADATA_ARGS[event["name"]] in event["args"]
        if event["ph"] == "C":
            assert event["args"] and all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert times == sorted(times)
    assert [event["ph"] for event in events[: -len(times) or None]] == ["M"] * (len(events) - len(times))
    slices = [event for event in events if event["ph"] == "X"]
    check_nesting(slices)
    check_arrows(events, slices)
    return events


def check_nesting(slices: list[Event]) -> None:
    """On each lane slices follow each other, or lie within one another; here they never do the latter."""
    for lane in {event["tid"] for event in slices}:
        mine = [(ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in slices if event["tid"] == lane]
        assert all(end <= start for (_, end), (start, _) in pairwise(mine)), lane


def check_arrows(events: list[Event], slices: list[Event]) -> None:
    """Every arrow has one tail and one head, in this order, and both lie in a slice of their lane."""
    arrows = [event for event in events if event["ph"] in "sf"]
    assert set(Counter(event["id"] for event in arrows).values()) <= {2}
    for number in {event["id"] for event in arrows}:
        tail, head = (event for event in arrows if event["id"] == number)
        assert (tail["ph"], head["ph"], head["bp"]) == ("s", "f", "e")
        assert (tail["name"], tail["cat"]) == (head["name"], head["cat"])
        assert ns(tail["ts"]) <= ns(head["ts"])
        for end in (tail, head):
            around = [
                one
                for one in slices
                if one["tid"] == end["tid"] and ns(one["ts"]) <= ns(end["ts"]) <= ns(one["ts"]) + ns(one["dur"])
            ]
            assert around, end


def slow_step() -> Score:
    """`two_layers` with a0 swapped, 40 ms each way: f0 0-10, f1 10-30, b1 30-70, b0 waits for a0, 90-110 ms."""
    return simulate(two_layers(SLOW), Plan.from_letters("SK"), 100 * MB, timeline=True)


def lane(events: list[Event], name: str) -> list[tuple[str, str, float, float]]:
    (number,) = (e["tid"] for e in events if e["name"] == "thread_name" and e["args"]["name"] == name)
    return [
        (e["name"], e["cat"], e["ts"] / 1000, (e["ts"] + e["dur"]) / 1000)
        for e in events
        if e["ph"] == "X" and e["tid"] == number
    ]


def test_three_lanes_with_the_stall_named_by_its_cause() -> None:
    events = validate(timeline_json(slow_step()))
    assert lane(events, "compute") == [
        ("f0", "forward", 0, 10),
        ("f1", "forward", 10, 30),
        ("b1", "backward", 30, 70),
        ("stall: a0 is late", "stall", 70, 90),
        ("b0", "backward", 90, 110),
    ]
    assert lane(events, "D2H copies") == [("a0", "offload", 10, 50)]
    assert lane(events, "H2D copies") == [("a0", "prefetch", 50, 90)]
    (stall,) = (event for event in events if event.get("cat") == "stall")
    assert stall["args"] == {"step": "b0", "waits for": "'a0', late by 20.000 ms: its own copy 20.000 ms"}


def test_arrows_lead_from_the_copy_out_over_the_copy_in_to_the_reader() -> None:
    events = validate(timeline_json(slow_step()))
    arrows = [(e["ph"], e["name"], e["id"], e["tid"], e["ts"] / 1000) for e in events if e["ph"] in "sf"]
    assert sorted(arrows, key=lambda arrow: arrow[2:3] + arrow[4:]) == [
        ("s", "host copy", 0, 2, 30),
        ("f", "host copy", 0, 3, 50),
        ("s", "read", 1, 3, 70),
        ("f", "read", 1, 1, 90),
    ]


def test_memory_is_a_counter_against_the_budget() -> None:
    events = validate(timeline_json(slow_step()))
    used = [(e["ts"] / 1000, e["args"]["bytes"] // MB) for e in events if e["name"] == "memory in use"]
    # a0 10 from 0, a1 20 from 10; a0 leaves at 50 and comes back from there; a1 goes at 70, a0 at 110.
    assert used[0] == (0, 0)
    assert [used[i] for i in (1, 2)] == [(0, 10), (10, 30)]
    assert (70, 10) in used and used[-1] == (110, 0)
    assert max(value for _, value in used) == 30
    budget = [(e["ts"] / 1000, e["args"]["bytes"]) for e in events if e["name"] == "memory budget"]
    assert budget == [(0, 100 * MB), (110, 100 * MB)]
    kinds = {e["ts"] / 1000: e["args"] for e in events if e["name"] == "memory by kind"}
    assert (kinds[10]["kept"], kinds[10]["swapped"]) == (20 * MB, 10 * MB)


def test_a_peak_of_no_length_is_seen() -> None:
    # f1 takes no time and needs 30 MB meanwhile.
    operators = [
        Operator("f0", "forward", MS),
        Operator("f1", "forward", 0.0, workspace_bytes=30 * MB),
        Operator("b0", "backward", MS),
    ]
    problem = Problem.from_records("spike", operators, [Tensor("t", MB, 0, (2,))], PLAIN_LINK)
    events = validate(timeline_json(simulate(problem, Plan.from_letters("K"), math.inf, timeline=True)))
    assert max(e["args"]["bytes"] for e in events if e["name"] == "memory in use") == 31 * MB
    assert not [e for e in events if e["name"] == "memory budget"]  # there is none


def test_rebuilds_and_the_end_of_the_forward_pass() -> None:
    events = validate(timeline_json(simulate(two_layers(), Plan.from_letters("KR"), math.inf, timeline=True)))
    assert ("rebuild a1", "rebuild", 30, 50) in lane(events, "compute")
    (mark,) = (e for e in events if e["ph"] == "i")
    assert (mark["name"], mark["ts"]) == ("end of the forward pass", 30_000)


def test_a_plan_that_does_not_fit_ends_with_a_mark() -> None:
    events = validate(timeline_json(simulate(two_layers(), Plan.from_letters("KK"), 25 * MB, timeline=True)))
    assert lane(events, "compute") == [("f0", "forward", 0, 10)]
    (mark,) = (e for e in events if e["ph"] == "i")
    assert (mark["name"], mark["ts"], mark["args"]) == ("does not fit: f1", 10_000, {"missing_bytes": 5 * MB})


def test_a_copy_that_outlives_the_step_ends_with_it() -> None:
    # a1 is copied out from 30 ms on, for 80 ms at 0.25 GB/s; the step ends at 90.
    score = simulate(two_layers(SLOW), Plan.from_letters("KS"), 100 * MB, timeline=True)
    events = validate(timeline_json(score))
    assert lane(events, "D2H copies") == [("a1", "offload", 30, 90)]
    (copy,) = (e for e in events if e.get("cat") == "offload")
    assert copy["args"] == {"bytes": 20 * MB, "unfinished": True}


def test_an_eviction_is_marked_and_its_first_copy_is_read_by_nobody() -> None:
    # Rule 9: t0 comes back 20-30 ms, has to go at 40 for b6's workspace, and comes back again, 45-55.
    operators = [Operator(f"f{i}", "forward", 10 * MS) for i in range(2)]
    operators += [Operator(f"b{i}", "backward", 5 * MS, 25 * MB if i == 6 else 0) for i in range(2, 8)]
    problem = Problem.from_records("evicting", operators, [Tensor("t0", 10 * MB, 0, (7,))], PLAIN_LINK)
    events = validate(timeline_json(simulate(problem, Plan.from_letters("S"), 30 * MB, timeline=True)))
    assert [(e["name"], e["ts"] / 1000) for e in events if e["ph"] == "i"] == [
        ("end of the forward pass", 20),
        ("evicted: t0", 40),
    ]
    tails = [(e["name"], e["ts"] / 1000) for e in events if e["ph"] == "s"]
    assert tails == [("host copy", 15), ("host copy", 15), ("read", 50)]


@pytest.mark.parametrize("name", ["[red]", "a\nb\x1b[2J\x00", '"\\', "<script>", "\ud800", "\u6a21\U0001f680"])
def test_names_do_not_break_the_file(name: str) -> None:
    problem = replace(two_layers(SLOW), name=name, operator_names=(name,) * 4, tensor_names=(name,) * 2)
    content = timeline_json(simulate(problem, Plan.from_letters("SR"), 35 * MB, timeline=True))
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in name)
    assert any(event["name"] == shown for event in validate(content))


@pytest.mark.parametrize("problem", [one_operator(), zero_sizes(), chain(3)], ids=lambda problem: problem.name)
@pytest.mark.parametrize("policy", list(POLICIES))
def test_odd_problems(problem: Problem, policy: str) -> None:
    for plan in (Plan.keep_everything(problem), Plan.swap_everything(problem)):
        for budget_bytes in (0, MB, 2 * MB, math.inf):
            validate(timeline_json(simulate(problem, plan, budget_bytes, policy=policy, timeline=True)))


def test_a_schedule_that_no_plan_lowers_to() -> None:
    richer = Schedule.from_lists(
        steps=[0, 1, 2, 7, 8, 3, 7, 4, 5],
        drops=[[], [0], [1, 2], [], [1], [2], [], [1], [0]],
        offloads=[(0, 0)],
        prefetches=[(0, 3, 1), (0, 6, 3)],
    )
    events = validate(timeline_json(simulate(chain(3), richer, 4 * MB, timeline=True)))
    assert [name for name, category, _, _ in lane(events, "compute") if category == "rebuild"] == [
        "rebuild a1",
        "rebuild a2",
        "rebuild a1",
    ]


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_every_run_gives_a_valid_file(data: st.DataObject) -> None:
    problem = data.draw(st.one_of(problems(), crowded_chains()))
    plan = Plan.from_letters(data.draw(decisions(problem)))
    budget_bytes = data.draw(st.sampled_from([10 * MB, 40 * MB, 60 * MB, 100 * MB, math.inf]))
    score = simulate(problem, plan, budget_bytes, policy=data.draw(st.sampled_from(list(POLICIES))), timeline=True)
    content = timeline_json(score)
    events = validate(content)
    assert content == timeline_json(score)
    told = score.run_timeline
    slices = [event for event in events if event["ph"] == "X"]
    n_stalls = sum(event["cat"] == "stall" for event in slices)
    assert len(slices) == len(told.start_s) + len(told.copy_start_s) + n_stalls
    stall_ms = sum(event["dur"] for event in slices if event["cat"] == "stall") / 1000
    assert stall_ms == pytest.approx((score.forward_stall_s + score.backward_stall_s) / MS, abs=2e-6 * (n_stalls + 1))
    used = [event["args"]["bytes"] for event in events if event["name"] == "memory in use"]
    assert max(used, default=0) == score.peak_bytes


def test_a_file_is_written_whole_plain_or_compressed(tmp_path: Path) -> None:
    score = slow_step()
    write_timeline_file(tmp_path / "a.json", score)
    write_timeline_file(tmp_path / "a.json.gz", score)
    content = (tmp_path / "a.json").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == content == timeline_json(score)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.gz"]
    with pytest.raises(InputError, match="cannot be written"):
        write_timeline_file(tmp_path / "no" / "a.json", score)


def test_a_score_without_a_timeline_is_refused() -> None:
    with pytest.raises(InputError, match="timeline=True"):
        timeline_json(simulate(two_layers(), Plan.from_letters("KK"), math.inf))


def test_gpt2_xl_is_small_and_quick() -> None:
    problem = load_source("gpt2-xl", None)
    for policy in POLICIES:
        plan = Plan.swap_everything(problem)  # the most copies and stalls
        score = simulate(problem, plan, int(0.3 * peak_bytes(problem)), policy=policy, timeline=True)
        begin_s = time.process_time()
        content = timeline_json(score)
        took_s = time.process_time() - begin_s
        assert len(content) < 2_000_000
        assert took_s < 1.0
        validate_slices = [event for event in json.loads(content)["traceEvents"] if event["ph"] == "X"]
        check_nesting(validate_slices)
