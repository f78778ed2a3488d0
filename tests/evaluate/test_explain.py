"""What `slackswap score --why` says: tables and lines for people, one JSON object for machines."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, decisions, one_operator, problems, two_layers, zero_sizes
from rich.console import Console
from rich.table import Table
from shared_data import shared_file

from slackswap.evaluate.explain import (
    explanation_json,
    failure_lines,
    link_table,
    memory_line,
    memory_table,
    print_explanation,
    reload_line,
    reload_lines,
    stall_reason,
    stall_table,
    tensor_table,
    time_table,
)
from slackswap.evaluate.results import Row
from slackswap.evaluate.sources import load_source
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.schedule import Schedule
from slackswap.planners import find_planners, run_planner

SLOW = Link(0.25e9, 0.25e9, duplex_factor=1.0, latency_s=0.0)  # 4 ms per MB
ROW = Row(problem="p", budget_bytes=1, budget_fraction=1.0, planner="x", status="feasible", ideal_s=1.0, planning_s=0.0,
          evaluations=0)  # fmt: skip


def slow_step() -> Score:
    """`two_layers` with a0 swapped, 40 ms each way: b0 waits for it from 70 to 90 ms of 110."""
    return simulate(two_layers(SLOW), Plan.from_letters("SK"), 100 * MB, timeline=True)


def text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    printed = console.file
    assert isinstance(printed, io.StringIO)
    return printed.getvalue()


def cells(table: Table) -> list[list[str]]:
    return [[str(cell) for cell in row] for row in zip(*(column.cells for column in table.columns), strict=True)]


def test_where_the_time_goes_adds_up_to_the_step() -> None:
    rows = cells(time_table(slow_step().explain()))
    assert rows == [
        ["ideal: every operator once", "90.000", "81.8%", ""],
        ["backward stall, a tensor is late", "20.000", "18.2%", "1 stall"],
        ["step", "110.000", "100.0%", ""],
    ]


def test_rebuilds_stand_by_kind() -> None:
    why = simulate(two_layers(), Plan.from_letters("KR"), math.inf, timeline=True).explain()
    assert ["rebuild, gemm", "20.000", "18.2%", "1 step, 0.0200 GB"] in cells(time_table(why))


def test_a_stall_says_what_it_waits_for() -> None:
    why = slow_step().explain()
    assert cells(stall_table(why.stalls)) == [
        ["backward", "b0", "20.000", "'a0', late by 20.000 ms: its own copy 20.000 ms"]
    ]
    half = Link(0.5e9, 0.5e9, duplex_factor=1.0, latency_s=0.0)
    tight = simulate(chain(3, half), Plan.from_letters("SSS"), 2 * MB, timeline=True).explain()
    said = [stall_reason(stall) for stall in tight.stalls if stall.forward]
    assert said == ["room for its 0.0010 GB: the copy out of 'a0' 1.000 ms"]
    held = simulate(two_layers(SLOW), Plan.from_letters("SK"), 100 * MB, policy="barriers", timeline=True).explain()
    assert "a barrier: the copy out of 'a0' 20.000 ms" in map(stall_reason, held.stalls)


def test_a_reload_is_a_line() -> None:
    (late,) = slow_step().explain().reloads
    assert reload_line(late) == "start reload of 'a0' before 'b1' (late by 20.000 ms)"
    (early,) = simulate(two_layers(), Plan.from_letters("SK"), 100 * MB, timeline=True).explain().reloads
    assert reload_line(early) == "start reload of 'a0' before 'b1' (margin 30.000 ms)"
    hopeless = msgspec.structs.replace(late, before=None, before_step=None)
    assert reload_line(hopeless) == "start reload of 'a0' before the first operator (late by 20.000 ms)"


def test_what_never_left_is_said() -> None:
    why = simulate(two_layers(SLOW), Plan.from_letters("SS"), 100 * MB, timeline=True).explain()
    assert list(reload_lines(why))[-1] == (
        "read where they were, no copy out began before that: 1 of the swapped tensors, 'a1'"
    )


def test_the_link_by_direction() -> None:
    rows = cells(link_table(slow_step().explain()))
    assert rows == [
        ["D2H", "1", "0.0100", "40.000", "36.4%", "0.25", "0.25"],
        ["H2D", "1", "0.0100", "40.000", "36.4%", "0.25", "0.25"],
    ]


def test_memory_adds_up_to_what_is_in_use() -> None:
    peak = slow_step().explain().peak
    # f1 runs beside a0, which is being copied out.
    assert memory_line(peak, "peak") == "peak: 0.0300 GB at 10.000 ms, while 'f1' runs"
    rows = cells(memory_table(peak))
    assert rows[:2] == [["kept", "20,000,000", "66.7%"], ["swapped", "10,000,000", "33.3%"]]
    assert rows[-1] == ["in use", "30,000,000", "100.0%"]
    assert cells(tensor_table(peak)) == [["a1", "kept", "20,000,000"], ["a0", "swapped", "10,000,000"]]


def test_why_a_plan_does_not_fit() -> None:
    why = simulate(two_layers(), Plan.from_letters("KK"), 25 * MB, timeline=True).explain()
    assert why.failure is not None
    assert list(failure_lines(why.failure)) == [
        "does not fit: 'f1' lacks 5,000,000 bytes",
        "  10,000,000 in use + 20,000,000 that it allocates",
        "  - 25,000,000 of budget",
    ]
    assert cells(time_table(why))[-1][:2] == ["until it failed", "10.000"]


def test_one_json_object_with_everything() -> None:
    score = slow_step()
    line = explanation_json(ROW, score.explain())
    assert line.endswith("\n") and line.count("\n") == 1
    told = json.loads(line)
    assert (told["planner"], told["why"]["peak"]["used_bytes"]) == ("x", 30 * MB)
    (stall,) = told["why"]["stalls"]
    assert stall["behind"] == [[{"direction": "H2D", "tensor": "a0"}, "copied", stall["seconds"]]]
    assert stall["seconds"] == pytest.approx(score.backward_stall_s)
    assert told["why"]["reloads"][0]["before"] == "b1"
    assert "waits" not in told["why"]


HARD_NAMES = ["[red]x[/red]", "[/]", "a\nb\x1b[2J", "\\[x]", "'", "\u200f\u6a21\U0001f680"]


@pytest.mark.parametrize("name", HARD_NAMES)
def test_names_are_shown_and_do_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    problem = replace(two_layers(SLOW), name=name, operator_names=(name,) * 4, tensor_names=(name,) * 2)
    for letters, budget_bytes in (("SK", 100 * MB), ("KK", 25 * MB), ("SR", 35 * MB)):
        score = simulate(problem, Plan.from_letters(letters), budget_bytes, timeline=True)
        print_explanation(score.explain())
        assert json.loads(explanation_json(ROW, score.explain()))["why"]["problem"] == name
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "".join(letter if letter.isprintable() else "\ufffd" for letter in name) in printed


def test_half_a_letter_is_refused_by_name() -> None:
    problem = replace(two_layers(), tensor_names=("\ud800", "b"))
    score = simulate(problem, Plan.from_letters("SK"), math.inf, timeline=True)
    with pytest.raises(InputError, match="half a surrogate pair"):
        explanation_json(ROW, score.explain())


def test_long_lists_are_cut_and_say_so(capsys: pytest.CaptureFixture[str]) -> None:
    slow = Link(0.2e9, 0.2e9, duplex_factor=1.0, latency_s=0.0)
    why = simulate(chain(40, slow), Plan.from_letters("S" * 40), 10 * MB, timeline=True).explain()
    print_explanation(why)
    printed = capsys.readouterr().out
    assert len(why.stalls) > 20
    assert f"and {len(why.stalls) - 12} stalls that are shorter; --json has them all" in printed
    assert f"  and {len(why.reloads) - 12} with more slack; --json has them all" in printed


def test_a_schedule_of_a_richer_planner_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    (planner,) = find_planners("checkmate")
    problem = chain(8)
    outcome = run_planner(planner, problem, 4 * MB, seed=0, time_limit_s=5.0)
    assert isinstance(outcome.plan, Schedule)
    score = simulate(problem, outcome.plan, 4 * MB, timeline=True)
    why = score.explain()
    print_explanation(why)
    assert "rebuild, gemm" in capsys.readouterr().out
    assert why.peak.by_kind["recomputed"] > 0
    assert math.fsum(rebuild.seconds for rebuild in why.rebuilds) == pytest.approx(score.recompute_s)


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_happened_is_said(data: st.DataObject) -> None:
    problem = data.draw(st.one_of(problems(), st.sampled_from([one_operator(), zero_sizes(), two_layers(PLAIN_LINK)])))
    plan = Plan.from_letters(data.draw(decisions(problem)))
    budget_bytes = data.draw(st.sampled_from([0, 10 * MB, 40 * MB, 100 * MB, math.inf]))
    policy = data.draw(st.sampled_from(list(POLICIES)))
    score = simulate(problem, plan, budget_bytes, policy=policy, timeline=True)
    why = score.explain()
    said = text(time_table(why))
    assert ("until it failed" in said) == (not score.fits)
    shown_ms = [float(row[1].replace(",", "")) for row in cells(time_table(why))]
    assert sum(shown_ms[:-1]) == pytest.approx(score.step_s / MS, abs=1e-3 * len(shown_ms))
    told = json.loads(explanation_json(ROW, why))["why"]
    assert sum(told["peak"]["by_kind"].values()) == score.peak_bytes
    assert np.isfinite([stall["seconds"] for stall in told["stalls"]]).all()
    assert len(list(reload_lines(why))) <= 20


def test_a_real_trace_is_explained_to_the_last_bit() -> None:
    problem = load_source(str(shared_file("traces/pipedream/densenet121.graph.txt")), None)
    plan, budget_bytes = Plan.swap_everything(problem), int(0.3 * peak_bytes(problem))
    for policy in POLICIES:
        score = simulate(problem, plan, budget_bytes, policy=policy, timeline=True)
        why = score.explain()
        stall_s = dict.fromkeys((True, False), 0.0)
        for wait in why.waits:
            stall_s[wait.forward] += wait.seconds
        assert stall_s == {True: score.forward_stall_s, False: score.backward_stall_s}
        assert sum(why.peak.by_kind.values()) == score.peak_bytes
        assert len(why.stalls) > 50
