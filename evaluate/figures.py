"""The paper's figures: what they show comes from the caller, how they show it is the paper's.

Each function returns a `matplotlib.figure.Figure`, which notebooks show as it is and `save` writes. All of them raise
InputError where matplotlib, the ``plot`` extra, is not installed. Names may hold any characters.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from slackswap.evaluate.figure_style import (
    COLUMN_INCHES,
    PAGE_INCHES,
    CurveStyle,
    as_label,
    curve_styles,
    display_name,
    laid_out,
    legend_above,
    log_extent,
    log_ticks,
    new_figure,
    paper_style,
)
from slackswap.hardware.input_error import InputError
from slackswap.models.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slackswap.models.event_model import Score, Timeline
    from slackswap.models.problem import FloatArray

Decision = Literal["keep", "swap", "recompute"]
DECISION_COLOURS: dict[Decision, str] = {"swap": "#0072B2", "keep": "#A6A6A6", "recompute": "#E69F00"}
LANES = (("compute", "#4D4D4D"), ("D2H copy", "#D55E00"), ("H2D copy", "#0072B2"))
MERGE_GAP_S = 0.25e-3  # caption of Figure 5's axis
DOTS_PER_INCH = 200


@paper_style()
def figure1(shares: Mapping[str, Mapping[str, float]], balances: Mapping[str, float]) -> Figure:
    """Figure 1: share of saved activations that the host link copies out during the forward pass, as grouped bars.

    Parameters
    ----------
    shares : GPU -> workload -> hideable fraction f of Eq. 1; a GPU's name may have several lines
    balances : GPU -> GEMM FLOP/s per link byte/s, the last line under it
    """
    import matplotlib

    figure = new_figure(COLUMN_INCHES, 2.3)
    axes = figure.add_subplot()
    workloads = list(dict.fromkeys(name for by_workload in shares.values() for name in by_workload))
    # From dark to light: ordered in lightness, so that a print without colour keeps them apart.
    colours = matplotlib.colormaps["cividis"](np.linspace(0.05, 0.95, len(workloads)))
    width = 0.8 / max(1, len(workloads))
    bars = []
    for i, workload in enumerate(workloads):
        at = [gpu + (i - (len(workloads) - 1) / 2) * width for gpu in range(len(shares))]
        heights = [100 * by_workload.get(workload, math.nan) for by_workload in shares.values()]
        bars.append(axes.bar(at, heights, width, color=colours[i], edgecolor="black", linewidth=0.4))
    axes.set_xticks(range(len(shares)), [_gpu_label(gpu, balances.get(gpu)) for gpu in shares])
    axes.tick_params(axis="x", length=0)
    axes.set(ylabel="Hideable activations (%)", ylim=(0, 105))
    axes.grid(axis="y")
    legend_above(figure, {workload: bars[i][0] for i, workload in enumerate(workloads)})
    return laid_out(figure)


def _gpu_label(gpu: str, balance: float | None) -> str:
    lines = [as_label(line) for line in gpu.splitlines()]
    return "\n".join(lines if balance is None else [*lines, f"{balance / 1e3:.1f}K FLOP/B"])


@paper_style()
def figure2(rebuild_ps_per_byte: Mapping[str, float], copy_ps_per_byte: Mapping[str, float]) -> Figure:
    """Figure 2: time per byte to free each tensor, by recomputation (bars) or by an exposed copy (lines); log scale.

    Parameters
    ----------
    rebuild_ps_per_byte : tensor -> ps per byte; infinity where no operator rebuilds it
    copy_ps_per_byte : link -> ps per byte
    """
    figure = new_figure(COLUMN_INCHES, 0.75 + 0.19 * max(4, len(rebuild_ps_per_byte)))
    axes = figure.add_subplot()
    costs = list(rebuild_ps_per_byte.values())
    least, most = log_extent([*costs, *copy_ps_per_byte.values()])
    left, right = least / 1.8, most * 1.4
    for row, cost in enumerate(costs):
        end = min(max(cost, left), right)
        axes.barh(row, end - left, 0.66, left=left, color=DECISION_COLOURS["recompute"])
        # The white box keeps a value readable where it reaches a link's line.
        box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
        axes.annotate(
            _short(cost),
            (end, row),
            xytext=(2, 0),
            textcoords="offset points",
            va="center",
            fontsize=6.5,
            bbox=box,
        )
    for link, cost in copy_ps_per_byte.items():
        axes.axvline(cost, color=DECISION_COLOURS["swap"], linestyle="--")
        written = axes.annotate(
            f"{as_label(link, most_letters=16)} ({_short(cost)})",
            (cost, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(-1.5, 0),
            textcoords="offset points",
            rotation=90,
            ha="right",
            va="top",
            fontsize=6.5,
        )
        written.set_in_layout(False)  # it stands within the panel
    axes.set_xscale("log")
    ticks = log_ticks(left, right)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set(xlim=(left, right), ylim=(len(costs) - 0.4, -0.6))
    axes.set_yticks(range(len(costs)), [as_label(tensor) for tensor in rebuild_ps_per_byte])
    axes.tick_params(axis="y", length=0)
    figure.supxlabel("Critical-path cost per byte freed (ps/B, log)", fontsize=7.5)
    return laid_out(figure)


def _short(ps_per_byte: float) -> str:
    if math.isinf(ps_per_byte):
        return "∞"
    return f"{ps_per_byte:.1f}" if ps_per_byte < 12 else f"{ps_per_byte:.0f}"


@paper_style()
def figure3(groups: Sequence[tuple[str, Decision, float, float]]) -> Figure:
    """Figure 3: a plan, as bars whose width is size and whose height is recompute cost per byte, the dearest first.

    Parameters
    ----------
    groups : (label, decision, bytes, ps per byte) of groups of saved tensors
        The cost is infinity where no operator rebuilds them: drawn above the logarithmic axis.
    """
    figure = new_figure(COLUMN_INCHES, 2.6)
    axes = figure.add_subplot()
    decisions = list(DECISION_COLOURS)
    # To six digits: groups of equal cost differ in the last ones, and their colours would alternate.
    ordered = sorted(groups, key=lambda group: (-float(f"{group[3]:.6g}"), decisions.index(group[1])))
    least, most = log_extent([cost for *_, cost in groups])
    floor, infinity = least * 0.6, most * 3
    widths_gb = [n_bytes / 1e9 for _, _, n_bytes, _ in ordered]
    heights = [max(floor, min(cost, infinity)) for *_, cost in ordered]
    starts_gb = np.cumsum([0.0, *widths_gb])[:-1]
    axes.bar(
        starts_gb,
        [height - floor for height in heights],
        widths_gb,
        bottom=floor,
        align="edge",
        color=[DECISION_COLOURS[decision] for _, decision, _, _ in ordered],
        edgecolor="white",
        linewidth=0.3,
    )
    axes.set_yscale("log")
    axes.set(xlim=(0, max(sum(widths_gb), 1e-9)), ylim=(floor, infinity * 1.2))
    ticks = log_ticks(floor, most * 1.2)
    axes.set_yticks([*ticks, infinity], [*(f"{tick:g}" for tick in ticks), "∞"])
    axes.minorticks_off()
    axes.spines["left"].set_bounds(floor, most * 1.6)  # the scale ends below infinity
    axes.set(xlabel="Saved activations, sorted by recompute cost (GB)", ylabel="Recompute cost (ps/B)")
    _write_group_labels(axes, [label for label, *_ in ordered], starts_gb, widths_gb, heights)
    _decision_legend(figure, groups)
    return laid_out(figure)


def _write_group_labels(
    axes: Axes, labels: Sequence[str], starts_gb: FloatArray, widths_gb: Sequence[float], heights: Sequence[float]
) -> None:
    """Write each group's name above its bar where the bar is wide enough for a line of text."""
    least_gb = 0.022 * sum(widths_gb)
    for label, start, width, height in zip(labels, starts_gb, widths_gb, heights, strict=True):
        if width >= least_gb:
            axes.annotate(
                as_label(label, most_letters=18),
                (start + width / 2, height),
                xytext=(0, 2),
                textcoords="offset points",
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=5.5,
            )


def _decision_legend(figure: Figure, groups: Sequence[tuple[str, Decision, float, float]]) -> None:
    from matplotlib.patches import Patch

    totals = {decision: sum(group[2] for group in groups if group[1] == decision) for decision in DECISION_COLOURS}
    entries = {
        f"{decision} {n_bytes / 1e9:.1f} GB": Patch(color=DECISION_COLOURS[decision])
        for decision, n_bytes in totals.items()
    }
    legend_above(figure, entries)


Curve = Sequence[tuple[float, float | None]]


@paper_style()
def figure4(curves: Mapping[str, Mapping[str, Curve]]) -> Figure:
    """Figure 4: throughput of each planner as the budget shrinks, a panel per workload.

    Parameters
    ----------
    curves : workload -> planner -> (budget as a fraction of the peak, throughput as a fraction of the ideal)
        None where no plan fits: the point is missing and the line broken.
    """
    figure = new_figure(PAGE_INCHES, 2.0)
    panels = figure.subplots(1, max(1, len(curves)), sharey=True, squeeze=False)[0]
    styles = curve_styles(planner for by_planner in curves.values() for planner in by_planner)
    for axes, (workload, by_planner) in zip(panels, curves.items(), strict=False):
        for planner, curve in by_planner.items():
            points = sorted(curve, reverse=True)
            _draw_curve(axes, [100 * budget for budget, _ in points], [y for _, y in points], styles[planner])
        _budget_axis(axes, [100 * budget for curve in by_planner.values() for budget, _ in curve])
        axes.set(ylim=(0, 1.05), title=as_label(workload))
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.grid()
    panels[0].set_ylabel("Throughput / ideal")
    figure.supxlabel("Activation memory budget (% of the no-swap peak)", fontsize=7.5)
    _curve_legend(figure, styles)
    return laid_out(figure)


def _budget_axis(axes: Axes, budgets_percent: Sequence[float]) -> None:
    """Let the budget shrink to the right, from 100% or more down to the smallest, whether or not a plan fits there."""
    highest, lowest = max([100.0, *budgets_percent]), min([99.0, *budgets_percent])
    margin = 0.04 * (highest - lowest)
    ticks = (100, 75, 50, 25, 10) if lowest < 50 else range(100, 49, -10)
    axes.set_xticks([tick for tick in ticks if tick >= lowest - margin])
    axes.set_xlim(highest + margin, lowest - margin)


def _draw_curve(axes: Axes, x: Sequence[float], y: Sequence[float | None], style: CurveStyle) -> None:
    axes.plot(x, [math.nan if value is None else value for value in y], **style.line)


def _curve_legend(figure: Figure, styles: Mapping[str, CurveStyle]) -> None:
    from matplotlib.lines import Line2D

    legend_above(figure, {style.display_name: Line2D([], [], **style.line) for style in styles.values()})


@paper_style()
def figure5(runs: Sequence[tuple[str, Score, float]]) -> Figure:
    """Figure 5: one step of each run in three lanes, compute and both copy directions, on a common time axis.

    Stalls are the gaps in the compute lane; the vertical line ends the forward pass.

    Parameters
    ----------
    runs : (planner or any label, score with its timeline, when the forward pass ended in s)

    Raises
    ------
    InputError
        A score has no timeline.
    """
    figure = new_figure(COLUMN_INCHES, 0.4 + 0.95 * max(1, len(runs)))
    panels = figure.subplots(max(1, len(runs)), 1, sharex=True, squeeze=False)[:, 0]
    for axes, (label, score, forward_end_s) in zip(panels, runs, strict=False):
        if score.timeline is None:
            raise InputError("has no timeline: simulate with timeline=True", source=label)
        for lane, intervals_s in enumerate(_lanes(score.timeline, score.step_s)):
            bars_ms = [(1e3 * start, 1e3 * (end - start)) for start, end in intervals_s]
            axes.broken_barh(bars_ms, (lane - 0.36, 0.72), facecolor=LANES[lane][1], linewidth=0)
        axes.axvline(1e3 * forward_end_s, color="black", linewidth=0.9)
        axes.set_yticks(range(len(LANES)), [name for name, _ in LANES])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(LANES) - 0.5, -0.5)
        axes.set_title(_step_title(label, score), loc="left")
    panels[-1].set_xlim(0, 1.01e3 * (max((score.step_s for _, score, _ in runs), default=0.0) or 1.0))
    figure.supxlabel("Time (ms); busy intervals, gaps under 0.25 ms merged", fontsize=7.5)
    return laid_out(figure)


def _step_title(label: str, score: Score) -> str:
    took = f"{1e3 * score.step_s:,.0f} ms per step" if score.fits else "does not fit"
    return f"{as_label(display_name(label))}: {took} (ideal {1e3 * score.ideal_s:,.0f} ms)"


def _lanes(timeline: Timeline, step_s: float) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the busy intervals of compute, D2H and H2D; a copy that outlives the step ends with it."""
    out = timeline.copy_is_d2h
    start_s, end_s = timeline.copy_start_s, np.minimum(timeline.copy_end_s, step_s)
    return (
        busy_intervals(timeline.start_s, timeline.end_s),
        busy_intervals(start_s[out], end_s[out]),
        busy_intervals(start_s[~out], end_s[~out]),
    )


def busy_intervals(start_s: FloatArray, end_s: FloatArray, gap_s: float = MERGE_GAP_S) -> FloatArray:
    """Return the (k, 2) starts and ends of busy intervals, in order, those less than `gap_s` apart merged.

    Parameters
    ----------
    start_s, end_s : (n,) arrays, in any order; intervals may overlap
    """
    order = np.argsort(start_s, kind="stable")
    starts = start_s[order]
    ends = np.maximum.accumulate(end_s[order])
    begins = np.ones(starts.size, dtype=bool)
    begins[1:] = starts[1:] - ends[:-1] >= gap_s
    lasts = np.roll(begins, -1)  # the one before a beginning; the last one of all precedes the first, cyclically
    return np.column_stack((starts[begins], ends[lasts]))


@paper_style()
def figure6(
    bandwidth: Mapping[str, Sequence[tuple[float, float | None]]],
    sequence: Mapping[str, Sequence[tuple[int, float | None]]],
    *,
    titles: tuple[str, str] = ("GPT-2 XL, 30% budget", "Llama-7B, 30% budget"),
) -> Figure:
    """Figure 6: throughput over (a) the link's bandwidth and (b) the sequence length, which starts at 0.7 as there.

    Parameters
    ----------
    bandwidth : planner -> (bytes/s per direction, throughput as a fraction of the ideal); None where no plan fits
    sequence : planner -> (tokens per sequence, throughput); likewise
    """
    figure = new_figure(COLUMN_INCHES, 2.3)
    panels = figure.subplots(1, 2)
    styles = curve_styles([*bandwidth, *sequence])
    _draw_sweep(panels[0], bandwidth, styles, [f"{x / 1e9:g}" for x in _places(bandwidth)])
    _draw_sweep(panels[1], sequence, styles, [_tokens(int(x)) for x in _places(sequence)])
    panels[0].set(xlabel="Host link (GB/s per direction)", ylabel="Throughput / ideal", ylim=(0, 1.05))
    panels[1].set(xlabel="Sequence length", ylim=(0.7, 1.015))
    panels[0].set_yticks(np.linspace(0, 1, 5))
    panels[1].set_yticks(np.linspace(0.7, 1, 4))
    for axes, letter, title in zip(panels, "ab", titles, strict=True):
        axes.set_title(f"({letter}) {as_label(title)}", fontsize=7)
    _curve_legend(figure, styles)
    return laid_out(figure)


def _places(sweep: Mapping[str, Curve]) -> list[float]:
    return sorted({x for curve in sweep.values() for x, _ in curve})


def _draw_sweep(axes: Axes, sweep: Mapping[str, Curve], styles: Mapping[str, CurveStyle], labels: list[str]) -> None:
    """Draw curves over the values of a sweep, each as far from the next: they grow by factors."""
    places = {x: place for place, x in enumerate(_places(sweep))}
    for planner, curve in sweep.items():
        points = sorted(curve)
        _draw_curve(axes, [places[x] for x, _ in points], [y for _, y in points], styles[planner])
    axes.set_xticks(range(len(places)), labels)
    axes.grid()


def _tokens(tokens: int) -> str:
    return f"{tokens // 1024}K" if tokens % 1024 == 0 else str(tokens)


@paper_style()
def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.png`` (200 dpi) and ``NAME.svg`` into `folder`, whole or not at all; return both paths.

    The same figure gives the same bytes: no time stamp, no random identifier.

    Raises
    ------
    InputError
        The folder is missing or read-only.
    """
    drawn = {}
    for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
        drawn[folder / f"{name}.{kind}"] = buffer.getvalue()
    for path, content in drawn.items():
        write_atomically(path, content)
    return list(drawn)
