"""The anytime figure: what it shows, and that it survives whatever it is given."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap.evaluate.figure_style import curve_styles
from slackswap.evaluate.gap import GapCurve
from slackswap.evaluate.gap_figure import anytime_figure, write_figure
from slackswap.hardware.input_error import InputError

CURVES: dict[str, GapCurve] = {
    "slackswap": [(0.003, 0.0003)],
    "ga-random": [(0.05, 0.4), (0.5, 0.1), (2.0, 0.02), (10.0, 0.02)],
    "exhaustive": [(0.0, 0.0)],
}


def points(axes: Axes, curve: int) -> list[tuple[float, float]]:
    line = axes.lines[curve]
    return list(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist(), strict=True))


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_line_falls_with_each_improvement_and_ends_with_a_marker() -> None:
    figure = anytime_figure(CURVES, "gpt2-xl, 50% of the peak")
    (axes,) = figure.axes
    assert legend_of(figure) == ["SlackSwap", "ga-random", "exhaustive"]
    assert points(axes, 1) == [(0.05, 40), (0.5, 10), (2.0, 2), (10.0, 2)]
    assert axes.lines[1].get_drawstyle() == "steps-post"  # what was found lasts until something better is
    assert axes.lines[1].get_markevery() == [3]
    ((seconds, percent),) = points(axes, 0)
    assert (seconds, round(percent, 9)) == (0.003, 0.03)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_title() == "gpt2-xl, 50% of the peak"


def test_no_time_and_no_gap_stand_at_the_ends_of_the_axes() -> None:
    (axes,) = anytime_figure(CURVES, "x").axes
    ((seconds, percent),) = points(axes, 2)
    assert 0 < seconds < 0.001
    assert 0 < percent < 0.01
    for low, high in (axes.get_xlim(), axes.get_ylim()):
        assert 0 < low < high < math.inf
    assert axes.get_ylim()[0] < percent
    assert axes.get_xlim()[0] < seconds


def test_it_says_what_gaps_are_measured_against() -> None:
    (axes,) = anytime_figure(CURVES, "x", "the best plan known").axes
    assert axes.get_ylabel() == "Gap to the best plan known (%)"


@pytest.mark.parametrize("name", ["$x$", "[red]", "a" * 200, "h\u00e9llo \u6a21\u578b", "_", ""])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    write_figure(anytime_figure({name: [(1.0, 0.5)]}, name), str(tmp_path / "x.png"))


def test_every_planner_looks_different() -> None:
    names = [f"planner {i}" for i in range(20)]
    styles = curve_styles(names).values()
    assert len({(style.colour, style.marker) for style in styles}) == 20


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for kind in ("png", "svg"):
        for name in ("a", "b"):
            write_figure(anytime_figure(CURVES, "x"), str(tmp_path / f"{name}.{kind}"))
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_a_figure_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_figure(anytime_figure(CURVES, "x"), str(tmp_path / "missing" / "x.png"))
