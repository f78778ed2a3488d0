"""The robustness figure: how far each plan's throughput spreads as times and bandwidths are off."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from slackswap.evaluate.figure_style import (
    PAGE_INCHES,
    as_label,
    display_name,
    laid_out,
    legend_above,
    new_figure,
    paper_style,
)
from slackswap.evaluate.results import gigabytes

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slackswap.evaluate.robustness import RobustnessRow

# The axis is that of log(x / (1 - x)), on which 1% and 2% are as far apart as 98% and 99%; it has neither 0 nor 1.
LOWEST, HIGHEST = 0.01, 0.9995
TICKS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
PLANNED_COLOUR = "#D55E00"
PANELS_IN_A_ROW = 2
LETTERS_OF_A_PANEL = 36


@dataclass(frozen=True)
class Spread:
    """One plan: its throughput as planned, and in each iteration that it fits, as fractions of the ideal.

    Attributes
    ----------
    throughputs : error -> one value per iteration
    not_fitting : iterations of all errors that the plan does not fit
    """

    planned: float
    throughputs: Mapping[float, Sequence[float]]
    not_fitting: int = 0


@dataclass(frozen=True)
class Panel:
    """One problem and budget: two lines of title, and plan -> spread, the fastest first."""

    problem: str
    budget: str
    spreads: Mapping[str, Spread]


def panels_of(cells: Iterable[Sequence[RobustnessRow]]) -> list[Panel]:
    """Return a panel for the rows of each problem and budget with a plan: the planners, the best first, then guards."""
    panels = []
    for rows in cells:
        planned = [row for row in rows if row.throughput is not None]
        ordered = sorted(planned, key=lambda row: (row.guard is not None, row.guard or 0.0, -(row.throughput or 0.0)))
        plans: dict[str, list[RobustnessRow]] = {}
        for row in ordered:
            plans.setdefault(_name(row), []).append(row)
        if plans:
            budget = f"{rows[0].budget_fraction:.1%} of the peak, {gigabytes(rows[0].budget_bytes)} GB"
            panels.append(Panel(rows[0].problem, budget, {name: _spread(plan) for name, plan in plans.items()}))
    return panels


def _name(row: RobustnessRow) -> str:
    if row.guard is not None:
        return f"{display_name('slackswap')}, g = {100 * row.guard:g}%"
    return f"{display_name(row.planner)}{', replanned' if row.replanned else ''}"


def _spread(rows: Sequence[RobustnessRow]) -> Spread:
    fitting = {row.error: [value for value in row.throughputs if value is not None] for row in rows}
    return Spread(rows[0].throughput or 0.0, fitting, sum(row.not_fitting or 0 for row in rows))


@paper_style()
def robustness_figure(panels: Sequence[Panel]) -> Figure:
    """Throughput of each plan as planned and where times are off, a panel per problem and budget, two in a row.

    All panels have the plans in the order of the first. Throughputs below 1% and above 99.95% stand at the ends of the axis.
    """
    columns = min(PANELS_IN_A_ROW, max(1, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    plans = list(dict.fromkeys(name for panel in panels for name in panel.spreads))
    figure = new_figure(PAGE_INCHES, 0.6 + rows * (0.6 + 0.22 * max(2, len(plans))))
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    errors = sorted({error for panel in panels for spread in panel.spreads.values() for error in spread.throughputs})
    colours = _colours(errors)
    for axes, panel in zip(grid.flat, panels, strict=False):
        _draw_panel(axes, panel, plans, colours)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    grid[0, 0].set_yticks(range(len(plans)), [as_label(name) for name in plans])
    grid[0, 0].set_ylim(max(1, len(plans)) - 0.4, -0.6)
    figure.supxlabel(
        "Throughput (% of the ideal step of the same iteration); line: worst to best, bar: quartiles, dot: median",
        fontsize=7.5,
    )
    legend_above(figure, _legend(colours))
    return laid_out(figure)


def _colours(errors: Sequence[float]) -> dict[float, str]:
    """From light to dark with the error: ordered in lightness, so that a print without colour keeps them apart."""
    import matplotlib
    from matplotlib.colors import to_hex

    shades = np.linspace(1.0 - 0.3 * min(2, len(errors) - 1), 1.0, len(errors)).tolist() if errors else []
    return {error: to_hex(matplotlib.colormaps["Blues"](shade)) for error, shade in zip(errors, shades, strict=True)}


def _draw_panel(axes: Axes, panel: Panel, plans: Sequence[str], colours: Mapping[float, str]) -> None:
    lane = 0.78 / max(1, len(colours))
    for row, name in enumerate(plans):
        spread = panel.spreads.get(name)
        if spread is None:
            _note(axes, row, "no plan")
            continue
        axes.vlines(shown(spread.planned), row - 0.42, row + 0.42, color=PLANNED_COLOUR, linewidth=1.1, zorder=4)
        for i, (error, colour) in enumerate(colours.items()):
            _draw_spread(axes, spread.throughputs.get(error, ()), row + (i - (len(colours) - 1) / 2) * lane, colour)
        if spread.not_fitting:
            _note(axes, row, f"{spread.not_fitting} do not fit")
    axes.tick_params(axis="y", length=0)
    axes.set_title("\n".join(as_label(line, most_letters=LETTERS_OF_A_PANEL) for line in (panel.problem, panel.budget)))
    _throughput_axis(axes, panel)


def _note(axes: Axes, row: int, text: str) -> None:
    axes.annotate(text, (0.01, row), xycoords=("axes fraction", "data"), va="center", fontsize=6, color="0.35")


def _draw_spread(axes: Axes, values: Sequence[float], y: float, colour: str) -> None:
    if not values:
        return
    worst, first, median, third, best = (shown(float(value)) for value in np.percentile(values, (0, 25, 50, 75, 100)))
    axes.hlines(y, worst, best, color=colour, linewidth=0.8)
    axes.hlines(y, first, third, color=colour, linewidth=2.6)
    axes.plot(median, y, marker="o", markersize=2.4, color=colour, markerfacecolor="white", zorder=5)


def shown(throughput: float) -> float:
    """Return where a throughput is drawn: an axis of this kind has no ends."""
    return min(max(throughput, LOWEST), HIGHEST)


def _throughput_axis(axes: Axes, panel: Panel) -> None:
    """Give the axis a little more room than the panel's values take."""
    values = [shown(spread.planned) for spread in panel.spreads.values()] or [0.5]
    for spread in panel.spreads.values():
        values += [shown(value) for of_error in spread.throughputs.values() for value in of_error]
    low, high = (math.log(value / (1 - value)) for value in (min(values), max(values)))
    margin = 0.04 * (high - low) + 0.05
    left, right = 1 / (1 + math.exp(margin - low)), 1 / (1 + math.exp(-margin - high))
    axes.set_xscale("logit")
    axes.set_xlim(left, right)
    ticks = [tick for tick in TICKS if left <= tick <= right]
    axes.set_xticks(ticks, [f"{100 * tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="x")


def _legend(colours: Mapping[float, str]) -> dict[str, Artist]:
    from matplotlib.lines import Line2D

    entries: dict[str, Artist] = {
        "as planned": Line2D([], [], color=PLANNED_COLOUR, marker="|", linestyle="", markersize=8)
    }
    for error, colour in colours.items():
        line = Line2D([], [], color=colour, linewidth=2.6, marker="o", markerfacecolor="white", markersize=2.4)
        entries[f"off by up to {100 * error:g}%"] = line
    return entries
