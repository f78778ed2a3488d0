"""The picture of a step: what it shows of steps worked out by hand, and that it survives whatever it is given."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from instances import MB, MS, PLAIN_LINK, chain, one_operator, two_layers, zero_sizes

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from slackswap.evaluate.sources import load_source
from slackswap.evaluate.timeline_figure import (
    COLOURS,
    COPY,
    MEMORY_COLOURS,
    STALL,
    timeline_figure,
    write_timeline_figure,
)
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import POLICIES, Score, peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Tensor

SLOW = Link(0.25e9, 0.25e9, duplex_factor=1.0, latency_s=0.0)
Span = tuple[float, float]


def slow_step() -> Score:
    """`two_layers` with a0 swapped, 40 ms each way: f0 0-10, f1 10-30, b1 30-70, b0 waits for a0, 90-110 ms."""
    return simulate(two_layers(SLOW), Plan.from_letters("SK"), 40 * MB, timeline=True)


def bars(axes: Axes, colour: str) -> list[tuple[Span, float]]:
    """Start and end, and the height of the middle, of every bar of a colour."""
    found = []
    for collection in axes.collections:
        if to_hex(np.asarray(collection.get_facecolor())[0]) != to_hex(colour):
            continue
        for path in collection.get_paths():
            x, y = np.asarray(path.vertices).T
            found.append(((round(float(x.min()), 6), round(float(x.max()), 6)), round(float(y.mean()), 1)))
    return found


def top_of(axes: Axes, colour: str) -> float:
    (area,) = (one for one in axes.collections if to_hex(np.asarray(one.get_facecolor())[0]) == to_hex(colour))
    return float(max(np.asarray(path.vertices)[:, 1].max() for path in area.get_paths()))


def words(figure: Figure) -> list[str]:
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend() is not None)]
    return [text.get_text() for legend in legends if legend is not None for text in legend.get_texts()]


def test_lanes_with_the_stall_in_its_place() -> None:
    figure = timeline_figure(slow_step())
    lanes, memory = figure.axes
    assert [span for span, _ in bars(lanes, COLOURS["forward"])] == [(0, 10), (10, 30)]
    assert [span for span, _ in bars(lanes, COLOURS["backward"])] == [(30, 70), (90, 110)]
    assert [span for span, _ in bars(lanes, STALL)] == [(70, 90)]
    copies = bars(lanes, COPY)
    assert [span for span, _ in copies] == [(10, 50), (50, 90)]
    assert copies[0][1] < copies[1][1]  # D2H above H2D: the axis points down
    assert [label.get_text() for label in lanes.get_yticklabels()] == ["compute", "D2H copy", "H2D copy"]
    assert bars(memory, STALL)[0][0] == (70, 90)
    assert lanes.get_title(loc="left") == (
        "two layers: 110.00 ms per step (ideal 90.00), peak 30.00 of 40.00 MB, policy default"
    )
    assert {text.get_text() for text in lanes.texts} >= {"f1", "b1", "a0", "1"}


def test_stalls_are_numbered_and_explained() -> None:
    _, memory = timeline_figure(slow_step()).axes
    assert memory.get_xlabel().splitlines() == [
        "Time (ms)",
        "1: b0 waits 20.000 ms for 'a0', late by 20.000 ms: its own copy 20.000 ms",
    ]


def test_memory_is_stacked_to_the_peak_under_the_budget() -> None:
    figure = timeline_figure(slow_step())
    _, memory = figure.axes
    assert top_of(memory, MEMORY_COLOURS[0]) == pytest.approx(20)  # a1, kept
    assert top_of(memory, MEMORY_COLOURS[1]) == pytest.approx(30)  # and a0, swapped, upon it
    (peak,) = (line for line in memory.lines if line.get_marker() == "v")
    assert (np.asarray(peak.get_xdata()).tolist(), np.asarray(peak.get_ydata()).tolist()) == ([pytest.approx(10)], [30])
    assert words(figure) == [
        *("forward", "backward", "stall", "end of the forward pass"),
        *("kept", "swapped", "peak", "budget"),
    ]
    (budget,) = (line for line in memory.lines if line.get_linestyle() == "--")
    assert np.asarray(budget.get_ydata()).tolist() == [40, 40]
    assert memory.get_ylabel() == "In use (MB)"


def test_a_budget_far_above_would_press_the_curve_to_the_floor() -> None:
    figure = timeline_figure(simulate(two_layers(), Plan.from_letters("KK"), 1000 * MB, timeline=True))
    assert "budget" not in words(figure)
    assert "peak 30.00 of 1,000.00 MB" in figure.axes[0].get_title(loc="left")
    figure = timeline_figure(simulate(two_layers(), Plan.from_letters("KK"), math.inf, timeline=True))
    assert "peak 30.00 MB" in figure.axes[0].get_title(loc="left")


def test_a_plan_that_does_not_fit() -> None:
    figure = timeline_figure(simulate(two_layers(), Plan.from_letters("KK"), 25 * MB, timeline=True))
    assert figure.axes[0].get_title(loc="left") == "two layers: does not fit, f1 lacks 5,000,000 bytes"
    assert [span for span, _ in bars(figure.axes[0], COLOURS["forward"])] == [(0, 10)]
    assert "budget" in words(figure)


def test_a_peak_of_no_length_is_drawn() -> None:
    operators = [
        Operator("f0", "forward", MS),
        Operator("f1", "forward", 0.0, workspace_bytes=30 * MB),
        Operator("b0", "backward", MS),
    ]
    problem = Problem.from_records("spike", operators, [Tensor("t", MB, 0, (2,))], PLAIN_LINK)
    _, memory = timeline_figure(simulate(problem, Plan.from_letters("K"), math.inf, timeline=True)).axes
    assert top_of(memory, MEMORY_COLOURS[5]) == pytest.approx(31)


def test_a_thousand_operators_are_merged_and_no_stall_is_lost() -> None:
    problem = load_source("gpt2-xl", None)
    score = simulate(problem, Plan.swap_everything(problem), int(0.3 * peak_bytes(problem)), timeline=True)
    lanes, memory = timeline_figure(score).axes
    assert len(score.run_timeline.start_s) > 1000
    assert not lanes.texts or {text.get_text() for text in lanes.texts} <= {"1", "2", "3", "1,2", "2,3", "1,3", "1,2,3"}
    shown = [span for span, _ in bars(lanes, STALL)]
    for wait in score.explain().waits:
        assert any(start <= wait.start_s / MS + 1e-6 and wait.end_s / MS <= end + 1e-6 for start, end in shown)
    width_ms = score.step_s / MS
    assert all(end - start >= 0.9 * width_ms / 1500 for start, end in shown)
    tops = [top_of(memory, colour) for colour in (MEMORY_COLOURS[1], MEMORY_COLOURS[5])]
    assert max(tops) == pytest.approx(score.peak_bytes / 1e9)
    assert memory.get_xlabel().splitlines()[-1].startswith("and ")


NAMES = ["$x$", "$", "a" * 500, "\n\t\x00", "[red]", "\ud800", "\u6a21\U0001f680", "%s{x}\\frac"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_letters_are_drawn(name: str, tmp_path: Path) -> None:
    problem = replace(two_layers(SLOW), name=name, operator_names=(name,) * 4, tensor_names=(name,) * 2)
    score = simulate(problem, Plan.from_letters("SR"), 35 * MB, timeline=True)
    write_timeline_figure(tmp_path / "a.svg", score)
    assert (tmp_path / "a.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("problem", [one_operator(), zero_sizes(), chain(3)], ids=lambda problem: problem.name)
def test_odd_problems_are_drawn(problem: Problem) -> None:
    runs = [(policy, Plan.swap_everything(problem), 2 * MB) for policy in POLICIES]
    for policy, plan, budget_bytes in (*runs, ("default", Plan.keep_everything(problem), 0)):
        figure = timeline_figure(simulate(problem, plan, budget_bytes, policy=policy, timeline=True))
        for axes in figure.axes:
            assert all(low < high for low, high in (axes.get_xlim(), sorted(axes.get_ylim())))


def test_a_step_of_no_time_is_drawn() -> None:
    operators = [Operator("f0", "forward", 0.0), Operator("b0", "backward", 0.0)]
    problem = Problem.from_records("at once", operators, [Tensor("t", MB, 0, (1,))], PLAIN_LINK)
    figure = timeline_figure(simulate(problem, Plan.from_letters("K"), math.inf, timeline=True))
    assert "0.00 µs per step" in figure.axes[0].get_title(loc="left")


def test_the_same_score_gives_the_same_picture(tmp_path: Path) -> None:
    for kind, start in (("png", b"\x89PNG"), ("svg", b"<?xml")):
        for name in ("a", "b"):
            write_timeline_figure(tmp_path / f"{name}.{kind}", slow_step())
        first, second = (tmp_path / f"{name}.{kind}" for name in ("a", "b"))
        assert first.read_bytes() == second.read_bytes()
        assert first.read_bytes().startswith(start)
    assert len(list(tmp_path.iterdir())) == 4


def test_everything_stays_within_the_picture() -> None:
    for score in (slow_step(), simulate(chain(30, SLOW), Plan.from_letters("S" * 30), 5 * MB, timeline=True)):
        figure = timeline_figure(score)
        box = figure.get_tightbbox()
        assert box.x0 >= 0 and box.y0 >= 0
        assert box.x1 <= figure.get_figwidth() + 1e-6 and box.y1 <= figure.get_figheight() + 1e-6


def test_a_score_without_a_timeline_is_refused() -> None:
    with pytest.raises(InputError, match="timeline=True"):
        timeline_figure(simulate(two_layers(), Plan.from_letters("KK"), math.inf))
