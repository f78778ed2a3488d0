"""The robustness figure: what it shows, and that it survives whatever it is given."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from instances import chain, two_layers
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from slackswap.evaluate.gap_figure import write_figure
from slackswap.evaluate.robustness import Conditions, Replayed, robustness
from slackswap.evaluate.robustness_figure import HIGHEST, LOWEST, Panel, Spread, panels_of, robustness_figure
from slackswap.planners import find_planners

VALUES = (0.80, 0.92, 0.94, 0.96, 0.97)
PANEL = Panel(
    "gpt2-xl on a100-pcie4",
    "50.0% of the peak, 11.57 GB",
    {
        "SlackSwap": Spread(0.97, {0.1: VALUES, 0.2: (0.6, 0.7, 0.8)}),
        "vDNN": Spread(0.36, {0.1: (0.3, 0.4), 0.2: ()}, not_fitting=3),
    },
)


def horizontal_lines(axes: Axes) -> list[tuple[float, float, float]]:
    """Return (y, left, right) of each horizontal line."""
    lines = []
    for collection in axes.collections:
        assert isinstance(collection, LineCollection)
        for segment in collection.get_segments():
            (x0, y0), (x1, y1) = np.asarray(segment).tolist()
            lines += [(y0, x0, x1)] if y0 == y1 else []
    return lines


def bars(axes: Axes) -> list[LineCollection]:
    return [one for one in axes.collections if isinstance(one, LineCollection) and np.max(one.get_linewidth()) > 2]


def planned_marks(axes: Axes) -> list[float]:
    segments = [s for c in axes.collections if isinstance(c, LineCollection) for s in c.get_segments()]
    return [float(segment[0][0]) for segment in segments if segment[0][0] == segment[1][0]]


def notes(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def legend_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_line_from_worst_to_best_a_bar_of_quartiles_and_a_dot_at_the_median() -> None:
    figure = robustness_figure([PANEL])
    (axes,) = figure.axes
    lines = horizontal_lines(axes)
    # Of five values the quartiles are the second and the fourth.
    assert [(left, right) for _, left, right in lines[:2]] == [(0.80, 0.97), (0.92, 0.96)]
    assert [float(np.asarray(dot.get_xdata())[0]) for dot in axes.lines] == pytest.approx([0.94, 0.7, 0.35])
    assert planned_marks(axes) == [0.97, 0.36]
    # The smaller error stands above, around the row of its plan; the axis runs down.
    assert lines[0][0] < 0 < lines[2][0] < 0.5
    assert axes.get_ylim()[0] > axes.get_ylim()[1]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["SlackSwap", "vDNN"]
    assert notes(axes) == ["3 do not fit"]
    assert axes.get_title() == "gpt2-xl on a100-pcie4\n50.0% of the peak, 11.57 GB"
    assert legend_of(figure) == ["as planned", "off by up to 10%", "off by up to 20%"]


def test_the_axis_spreads_where_throughputs_are_high_and_holds_all_values() -> None:
    (axes,) = robustness_figure([PANEL]).axes
    assert axes.get_xscale() == "logit"
    low, high = axes.get_xlim()
    assert 0 < low < 0.3
    assert 0.97 < high < 1
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert labels == ["30", "50", "70", "80", "90", "95"]
    light, dark = (np.asarray(handle.get_edgecolor())[0, :3].sum() for handle in bars(axes)[:2])
    assert light > dark  # the larger error


def test_values_that_the_axis_lacks_stand_at_its_ends() -> None:
    (axes,) = robustness_figure([Panel("x", "y", {"a": Spread(1.0, {0.1: (0.0, 1.0)})})]).axes
    assert horizontal_lines(axes)[0][1:] == (LOWEST, HIGHEST)
    assert all(0 < end < 1 for end in axes.get_xlim())


def test_panels_share_the_order_of_the_first_and_say_where_there_is_no_plan() -> None:
    second = Panel("x", "y", {"vDNN": Spread(0.5, {0.1: (0.5,)}), "keep": Spread(1.0, {0.1: (1.0,)})})
    figure = robustness_figure([PANEL, second, PANEL])
    assert len(figure.axes) == 4
    assert not figure.axes[3].axison
    first, other = figure.axes[:2]
    assert [label.get_text() for label in first.get_yticklabels()] == ["SlackSwap", "vDNN", "keep"]
    assert notes(other) == ["no plan"]
    assert notes(first) == ["3 do not fit", "no plan"]
    assert {round(y) for y, *_ in horizontal_lines(other)} == {1, 2}


def cell(budget: str, planners: str = "slackswap,keep,checkpoint") -> list[Replayed]:
    conditions = Conditions((0.1, 0.2), 3)
    return list(
        robustness(
            [chain(6)],
            [budget],
            find_planners(planners),
            conditions,
            guards=(0.1, 0.0),
            replanners=find_planners("slackswap"),
        )
    )


def test_panels_of_rows() -> None:
    cells = [[row for one in cell(budget) for row in one.rows] for budget in ("5MB", "0.1MB")]
    (panel,) = panels_of(cells)  # in 0.1 MB nothing fits
    assert (panel.problem, panel.budget) == ("chain of 6", "83.3% of the peak, 0.0050 GB")
    names = list(panel.spreads)
    assert names[-2:] == ["SlackSwap, g = 0%", "SlackSwap, g = 10%"]
    assert set(names[:-2]) == {"SlackSwap", "SlackSwap, replanned", "Checkpoint"}
    planned = [panel.spreads[name].planned for name in names[:-2]]
    assert planned == sorted(planned, reverse=True)
    spread = panel.spreads["SlackSwap"]
    assert list(spread.throughputs) == [0.1, 0.2]
    assert all(len(values) == 3 for values in spread.throughputs.values())
    robustness_figure([panel])


def test_no_rows_no_panels_and_an_empty_figure() -> None:
    assert panels_of([]) == []
    assert panels_of([[]]) == []
    robustness_figure([])


@pytest.mark.parametrize("name", ["$x$", "[red]", "a" * 200, "h\u00e9llo \u6a21\u578b", "_", ""])
def test_any_name_can_be_drawn(name: str, tmp_path: Path) -> None:
    panel = Panel(name, name, {name: Spread(0.5, {0.1: (0.4, 0.5)})})
    write_figure(robustness_figure([panel]), str(tmp_path / "x.png"))


@pytest.mark.parametrize(("panels", "plans"), list(itertools.product((1, 2, 5), (1, 25))))
def test_labels_stay_within_the_figure(panels: int, plans: int) -> None:
    spreads = {f"a planner with a long name {i}": Spread(0.9, {0.05: (0.8, 0.9)}) for i in range(plans)}
    figure = robustness_figure([Panel("p" * 60, "b" * 60, spreads)] * panels)
    width, height = figure.get_size_inches() * figure.dpi
    for axes in (axes for axes in figure.axes if axes.axison):
        box = axes.get_tightbbox()
        assert box is not None
        assert box.x0 >= -1
        assert box.y0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for kind in ("png", "svg"):
        for name in ("a", "b"):
            write_figure(robustness_figure([PANEL, PANEL]), str(tmp_path / f"{name}.{kind}"))
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()


def test_one_error_and_many_errors() -> None:
    for count in (1, 7):
        errors = [0.05 * (i + 1) for i in range(count)]
        figure = robustness_figure([Panel("x", "y", {"a": Spread(0.9, dict.fromkeys(errors, (0.8, 0.9)))})])
        assert len(legend_of(figure)) == count + 1
        ys = [y for y, *_ in horizontal_lines(figure.axes[0])]
        assert max(map(abs, ys)) < 0.5
        assert not any(math.isnan(y) for y in ys)


def test_two_layers_can_be_drawn() -> None:
    rows = [row for one in robustness([two_layers()], ["100%"], find_planners("keep")) for row in one.rows]
    (panel,) = panels_of([rows])
    robustness_figure([panel])
