"""The paper's figures by their structure: what is drawn where, not pixels."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, two_layers

pytest.importorskip("matplotlib", reason="figures need the plot extra")

import matplotlib
from matplotlib.axes import Axes
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from slackswap.evaluate.figure_style import PAPER_CURVES, as_label, curve_styles, display_name
from slackswap.evaluate.figures import (
    DECISION_COLOURS,
    Curve,
    Decision,
    busy_intervals,
    figure1,
    figure2,
    figure3,
    figure4,
    figure5,
    figure6,
    save,
)
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models import Plan, Score, simulate

GB = 1e9


def bars_of(axes: Axes) -> list[tuple[float, float, float]]:
    """Left edge, width and top of every bar, in the order in which they were drawn."""
    bars = [bar for container in axes.containers if isinstance(container, BarContainer) for bar in container]
    return [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height()) for bar in bars]


def legend_of(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    return [text.get_text() for text in legend.get_texts()]


def tick_labels(labels: object) -> list[str]:
    return [label.get_text() for label in labels]  # type: ignore[attr-defined]  # matplotlib's Text


# Figure 1


def test_figure_1_groups_a_bar_per_workload_over_each_gpu() -> None:
    shares = {"Titan X\n2015, FP32": {"A": 1.0, "B": 1.0}, "A100\n2020": {"A": 0.11, "B": 0.38}}
    figure = figure1(shares, {"Titan X\n2015, FP32": 410.0, "A100\n2020": 9360.0})
    (axes,) = figure.axes
    # Two workloads share 0.8 of a GPU's place: A's bars begin at 0 - 0.4 and 1 - 0.4, B's at 0 and 1.
    bars = bars_of(axes)
    assert [left for left, _, _ in bars] == pytest.approx([-0.4, 0.6, 0.0, 1.0])
    assert [top for _, _, top in bars] == pytest.approx([100, 11, 100, 38])
    # The last line under each GPU is its balance.
    assert tick_labels(axes.get_xticklabels()) == [
        "Titan X\n2015, FP32\n0.4K FLOP/B",
        "A100\n2020\n9.4K FLOP/B",
    ]
    assert legend_of(figure) == ["A", "B"]


def test_figure_1_leaves_out_what_was_not_computed() -> None:
    (axes,) = figure1({"V100": {"A": 0.5}, "H100": {"B": 0.25}}, {}).axes
    tops = [top for _, _, top in bars_of(axes)]
    assert tops == pytest.approx([50, math.nan, math.nan, 25], nan_ok=True)
    assert tick_labels(axes.get_xticklabels()) == ["V100", "H100"]


# Figure 2


def test_figure_2_bars_end_at_the_rebuild_cost_and_lines_stand_at_the_copy_cost() -> None:
    (axes,) = figure2({"mask": 1.0, "mid": 10.6}, {"PCIe 4.0": 40.0, "PCIe 5.0": 20.0}).axes
    assert axes.get_xscale() == "log"
    assert [left + width for left, width, _ in bars_of(axes)] == pytest.approx([1.0, 10.6])
    assert [float(np.asarray(line.get_xdata())[0]) for line in axes.lines] == [40.0, 20.0]
    assert [text.get_text() for text in axes.texts] == ["1.0", "10.6", "PCIe 4.0 (40)", "PCIe 5.0 (20)"]
    # The first tensor stands at the top: the y axis runs downwards.
    bottom, top = axes.get_ylim()
    assert top < 0 < 1 < bottom


def test_figure_2_shows_what_a_logarithm_cannot() -> None:
    (axes,) = figure2({"input": math.inf, "free": 0.0, "fc1": 7.0}, {}).axes
    left, right = axes.get_xlim()
    ends = [start + width for start, width, _ in bars_of(axes)]
    assert ends == pytest.approx([right, left, 7.0])  # infinity fills the axis, nothing is an empty bar
    assert [text.get_text() for text in axes.texts] == ["∞", "0.0", "7.0"]


# Figure 3

PLAN: list[tuple[str, Decision, float, float]] = [
    ("gelu", "recompute", 5 * GB, 1.2),
    ("input", "swap", 1 * GB, math.inf),
    ("fc1", "keep", 2 * GB, 6.9),
    ("fc1", "recompute", 3 * GB, 6.9000001),  # as dear as the one above, but for rounding
    ("mid", "swap", 1.25 * GB, 10.6),
]


def test_figure_3_sorts_groups_by_cost_and_gives_each_its_size_as_width() -> None:
    figure = figure3(PLAN)
    (axes,) = figure.axes
    bars = bars_of(axes)
    # input, mid, fc1 kept, fc1 recomputed, gelu: 1 + 1.25 + 2 + 3 + 5 = 12.25 GB without gaps.
    assert [width for _, width, _ in bars] == pytest.approx([1, 1.25, 2, 3, 5])
    assert [left for left, _, _ in bars] == pytest.approx([0, 1, 2.25, 4.25, 7.25])
    assert axes.get_xlim() == pytest.approx((0, 12.25))
    assert [top for _, _, top in bars][1:] == pytest.approx([10.6, 6.9, 6.9, 1.2])
    assert axes.get_yscale() == "log"
    container = axes.containers[0]
    assert isinstance(container, BarContainer)
    drawn = [bar.get_facecolor() for bar in container]
    decided: list[Decision] = ["swap", "swap", "keep", "recompute", "recompute"]
    assert drawn == [to_rgba(DECISION_COLOURS[decision]) for decision in decided]
    # Totals: 1 + 1.25, 2, 3 + 5.
    assert legend_of(figure) == ["swap 2.2 GB", "keep 2.0 GB", "recompute 8.0 GB"]
    assert [text.get_text() for text in axes.texts] == ["input", "mid", "fc1", "fc1", "gelu"]


def test_figure_3_draws_infinity_above_the_scale() -> None:
    (axes,) = figure3(PLAN).axes
    top = bars_of(axes)[0][2]
    assert tick_labels(axes.get_yticklabels()) == ["1", "3", "10", "∞"]
    assert axes.get_yticks()[-1] == pytest.approx(top)
    assert top > axes.spines["left"].get_bounds()[1] > 10.6


groups = st.lists(
    st.tuples(
        st.text(max_size=5),
        st.sampled_from(list(DECISION_COLOURS)),
        st.integers(0, 10**12).map(float),
        st.floats(0, 1e9) | st.just(math.inf),
    ),
    max_size=8,
)


@given(groups)
@settings(max_examples=15, deadline=None)
def test_figure_3_widths_add_up_to_the_bytes(plan: list[tuple[str, Decision, float, float]]) -> None:
    (axes,) = figure3(plan).axes
    bars = bars_of(axes)
    assert sum(width for _, width, _ in bars) == pytest.approx(sum(n_bytes for _, _, n_bytes, _ in plan) / GB)
    tops = [top for _, _, top in bars]
    assert tops == pytest.approx(sorted(tops, reverse=True), rel=1e-5)


# Figure 4

CURVES: dict[str, dict[str, Curve]] = {
    "GPT-2 XL": {
        "checkpoint": [(1.0, 1.0), (0.5, 0.88), (0.1, None)],
        "slackswap": [(0.1, 0.84), (1.0, 1.0), (0.5, 0.976)],
        "mine": [(1.0, 0.9), (0.5, None), (0.1, 0.2)],
    },
    "VGG-16": {"slackswap": [(1.0, 1.0), (0.65, 0.95)], "vdnn": [(1.0, 1.0), (0.65, None)]},
}


def points(axes: Axes, curve: int) -> list[tuple[float, float]]:
    line = axes.lines[curve]
    return list(zip(np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist(), strict=True))


def test_figure_4_has_a_panel_per_workload_whose_budget_shrinks_to_the_right() -> None:
    figure = figure4({**CURVES, "a third": {}, "a fourth": {}})
    assert [axes.get_title() for axes in figure.axes] == ["GPT-2 XL", "VGG-16", "a third", "a fourth"]
    lefts, rights = zip(*(axes.get_xlim() for axes in figure.axes), strict=True)
    assert min(lefts) > 100 > 10 > rights[0]
    assert 70 > rights[1] > 60  # down to 65%, although one plan does not fit there
    assert all(axes.get_ylim() == (0, 1.05) for axes in figure.axes)
    assert figure.axes[0].get_xticks().tolist() == [100, 75, 50, 25, 10]
    assert figure.axes[1].get_xticks().tolist() == [100, 90, 80, 70]


def test_figure_4_sorts_points_and_breaks_the_line_where_no_plan_fits() -> None:
    first = figure4(CURVES).axes[0]
    missing = pytest.approx(math.nan, nan_ok=True)
    assert points(first, 0) == [(100, 1.0), (50, 0.88), (10, missing)]
    assert points(first, 1) == [(100, 1.0), (50, 0.976), (10, 0.84)]
    assert points(first, 2) == [(100, 0.9), (50, missing), (10, 0.2)]  # nan in the middle: two lone markers


def test_a_planner_looks_the_same_in_every_figure() -> None:
    four = figure4(CURVES)
    six = figure6({"vdnn": [(25 * GB, 0.4)], "slackswap": [(25 * GB, 0.97)]}, {})
    assert four.axes[0].lines[1].get_color() == four.axes[1].lines[0].get_color() == six.axes[0].lines[1].get_color()
    assert four.axes[1].lines[1].get_color() == six.axes[0].lines[0].get_color()
    # The legend keeps the paper's order and spelling; who is not in the paper comes last.
    assert legend_of(four) == ["SlackSwap", "Checkpoint", "vDNN", "mine"]
    assert legend_of(six) == ["SlackSwap", "vDNN"]


def test_planners_that_the_paper_does_not_draw_look_different_from_those_that_it_does() -> None:
    names = [*(style.planner for style in PAPER_CURVES), "barriers", "exact", "a third"]
    styles = curve_styles(reversed(names))
    assert len({style.colour for style in styles.values()}) == len(names)
    assert len({style.marker for style in styles.values()}) == len(names)
    assert list(styles)[:5] == names[:5]
    assert display_name("superneurons") == "SuperNeurons"
    assert display_name("barriers") == "barriers"


# Figure 5


@pytest.mark.parametrize(
    ("intervals_ms", "busy_ms"),
    [
        # A gap of 0.24 ms is closed, one of 0.26 ms stays.
        ([(0, 1), (1.24, 2), (2.26, 3)], [(0, 2), (2.26, 3)]),
        # In any order; what lies within a longer interval does not end it.
        ([(5, 6), (0, 10), (11, 12)], [(0, 10), (11, 12)]),
        ([(0, 10), (2, 3), (10.1, 11)], [(0, 11)]),
        ([(4, 5)], [(4, 5)]),
        ([], []),
    ],
)
def test_busy_intervals_merges_small_gaps(
    intervals_ms: list[tuple[float, float]], busy_ms: list[tuple[float, float]]
) -> None:
    start_s, end_s = np.array(intervals_ms).reshape(-1, 2).T * MS
    assert busy_intervals(start_s, end_s) == pytest.approx(np.array(busy_ms).reshape(-1, 2) * MS)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0, 5)), max_size=20), st.floats(0.01, 3))
def test_busy_intervals_cover_every_interval_and_lie_a_gap_apart(
    intervals: list[tuple[float, float]], gap_s: float
) -> None:
    start_s = np.array([start for start, _ in intervals])
    end_s = start_s + np.array([length for _, length in intervals])
    busy = busy_intervals(start_s, end_s, gap_s)
    for start, end in zip(start_s, end_s, strict=True):
        assert ((busy[:, 0] <= start) & (end <= busy[:, 1])).sum() == 1
    assert (busy[1:, 0] - busy[:-1, 1] >= gap_s).all()
    # Ends are those of intervals: nothing is invented.
    assert set(busy[:, 0]) <= set(start_s)
    assert set(busy[:, 1]) <= set(end_s)


def slow_step() -> Score:
    """`two_layers` with a0 swapped over a link of 0.25 GB/s: its 10 MB take 40 ms in each direction.

    ::

        compute   f0 0-10 | f1 10-30 | b1 30-70 | b0 waits for a0, 90-110     step 110 ms, ideal 90 ms
        D2H       a0 10-50
        H2D       a0 50-90
    """
    link = replace(PLAIN_LINK, d2h_bytes_per_s=0.25e9, h2d_bytes_per_s=0.25e9)
    assert isinstance(link, Link)
    return simulate(two_layers(link), Plan.from_letters("SK"), math.inf, timeline=True)


def lanes_ms(axes: Axes) -> list[list[tuple[float, float]]]:
    """Starts and ends of the bars in each lane."""
    lanes = []
    for collection in axes.collections:
        xs = [np.asarray(path.vertices)[:, 0] for path in collection.get_paths()]
        lanes.append([(float(x.min()), float(x.max())) for x in xs])
    return lanes


def test_figure_5_has_three_lanes_with_the_stall_as_a_gap() -> None:
    (axes,) = figure5([("vdnn", slow_step(), 30 * MS)]).axes
    compute, d2h, h2d = lanes_ms(axes)
    assert compute == [pytest.approx((0, 70)), pytest.approx((90, 110))]
    assert d2h == [pytest.approx((10, 50))]
    assert h2d == [pytest.approx((50, 90))]
    assert tick_labels(axes.get_yticklabels()) == ["compute", "D2H copy", "H2D copy"]
    assert np.asarray(axes.lines[0].get_xdata()) == pytest.approx([30, 30])  # the end of the forward pass
    assert axes.get_title(loc="left") == "vDNN: 110 ms per step (ideal 90 ms)"


def test_figure_5_gives_all_runs_one_time_axis() -> None:
    fast = simulate(two_layers(), Plan.from_letters("KK"), math.inf, timeline=True)
    figure = figure5([("slow", slow_step(), 30 * MS), ("slackswap", fast, 30 * MS)])
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim()
    assert first.get_xlim() == pytest.approx((0, 1.01 * 110))
    assert lanes_ms(second)[1:] == [[], []]  # nothing was copied
    assert second.get_title(loc="left") == "SlackSwap: 90 ms per step (ideal 90 ms)"


def test_figure_5_counts_thousands_with_a_comma() -> None:
    long = replace(slow_step(), step_s=1.1049, ideal_s=0.399)
    (axes,) = figure5([("vdnn", long, 0.5)]).axes
    assert axes.get_title(loc="left") == "vDNN: 1,105 ms per step (ideal 399 ms)"


def test_figure_5_of_a_plan_that_does_not_fit() -> None:
    # At 25 MB, f1 finds no room for a1's 20 beside a0's 10, and nothing that leaves would make some.
    short = simulate(two_layers(), Plan.from_letters("KK"), 25 * MB, timeline=True)
    (axes,) = figure5([("keep", short, 10 * MS)]).axes
    assert axes.get_title(loc="left") == "keep: does not fit (ideal 90 ms)"
    assert lanes_ms(axes)[0] == [pytest.approx((0, 10))]


def test_figure_5_ends_copies_with_the_iteration() -> None:
    score = slow_step()
    assert score.timeline is not None
    endless = replace(score, timeline=replace(score.timeline, copy_end_s=np.array([0.05, math.inf])))
    (axes,) = figure5([("endless", endless, 30 * MS)]).axes
    assert lanes_ms(axes)[2] == [pytest.approx((50, 110))]


def test_figure_5_needs_timelines() -> None:
    with pytest.raises(InputError, match="vdnn: has no timeline"):
        figure5([("vdnn", replace(slow_step(), timeline=None), 0.03)])


# Figure 6


def test_figure_6_spaces_the_values_of_a_sweep_evenly() -> None:
    bandwidth: dict[str, Curve] = {
        "slackswap": [(450 * GB, 1.0), (12 * GB, 0.9), (25 * GB, 0.92)],
        "vdnn": [(25 * GB, None), (100 * GB, 0.5)],
    }
    sequence = {"slackswap": [(2048, 0.97), (32768, 0.998), (5000, 0.98)]}
    first, second = figure6(bandwidth, sequence, titles=("left", "right")).axes
    # Places: 12, 25, 100, 450 GB/s are 0, 1, 2, 3.
    assert tick_labels(first.get_xticklabels()) == ["12", "25", "100", "450"]
    assert points(first, 0) == [(0, 0.9), (1, 0.92), (3, 1.0)]
    assert points(first, 1) == [(1, pytest.approx(math.nan, nan_ok=True)), (2, 0.5)]
    assert tick_labels(second.get_xticklabels()) == ["2K", "5000", "32K"]
    assert first.get_ylim()[0] == 0
    assert second.get_ylim()[0] == pytest.approx(0.7)  # as the paper's caption warns
    assert [axes.get_title() for axes in (first, second)] == ["(a) left", "(b) right"]


# All of them: files, names, matplotlib itself


def test_save_writes_both_files_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    paths = save(figure4(CURVES), tmp_path, "fig4")
    assert paths == [tmp_path / "fig4.png", tmp_path / "fig4.svg"]
    first = [path.read_bytes() for path in paths]
    assert first[0].startswith(b"\x89PNG")
    assert int.from_bytes(first[0][16:20]) == 1400  # 7 inches at 200 dots
    assert b"dc:date" not in first[1]
    again = figure4(CURVES)
    for _ in range(2):  # saving changes nothing in a figure
        assert [path.read_bytes() for path in save(again, tmp_path, "again")] == first


def test_save_into_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        save(figure6({}, {}), tmp_path / "missing", "fig6")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", [r"$\nosuch{$", "cost $", r"a\$b$", "_hidden", "<b>&amp;", "two\x00\x1b[31m", "層", "w" * 500]
)
def test_names_may_hold_any_characters(name: str, tmp_path: Path) -> None:
    svg = save(figure4({name: {name: [(1.0, 1.0), (0.5, None)]}}), tmp_path, "fig")[1]
    ElementTree.parse(svg)
    save(figure3([(name, "keep", 1e9, 1.0)]), tmp_path, "fig")
    save(figure2({name: 1.0}, {name: 2.0}), tmp_path, "fig")
    save(figure1({name: {name: 0.5}}, {name: 1e4}), tmp_path, "fig")


@given(st.text(max_size=20))
def test_labels_are_never_read_as_formulas(name: str) -> None:
    label = as_label(name)
    assert not is_math_text(label)
    # Outside math mode matplotlib draws an escaped dollar sign as a dollar sign.
    drawn = label.replace(r"\$", "$")
    assert len(drawn) == len(name)
    assert all(shown == letter for shown, letter in zip(drawn, name, strict=True) if letter.isprintable())


def test_nothing_to_draw_is_no_error(tmp_path: Path) -> None:
    for figure in (figure1({}, {}), figure2({}, {}), figure3([]), figure4({}), figure5([]), figure6({}, {})):
        save(figure, tmp_path, "empty")


def settings_of_matplotlib() -> dict[str, str]:
    # Reading "backend" would choose one and import pyplot.
    return {key: repr(matplotlib.rcParams[key]) for key in matplotlib.rcParams if key != "backend"}


def test_figures_leave_matplotlib_as_they_found_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would raise
    with matplotlib.rc_context({"font.size": 31.0, "svg.hashsalt": "theirs"}):
        before = settings_of_matplotlib()
        theirs = save(figure6({"vdnn": [(1e9, 0.5)]}, {}), tmp_path, "theirs")
        assert settings_of_matplotlib() == before
    ours = save(figure6({"vdnn": [(1e9, 0.5)]}, {}), tmp_path, "ours")
    # Nor does a user's own style change the figures.
    assert [path.read_bytes() for path in ours] == [path.read_bytes() for path in theirs]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r'matplotlib is not installed.*pip install "slackswap\[plot\]"'):
        figure1({}, {})
