"""The charts of an HTML report over its rows, as plotly's JSON. Colours of text, grids and backgrounds come from the page.

plotly is an extra: it is imported where it is used. What it draws it takes for a little HTML, so every text is escaped.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackswap.evaluate.figure_style import PAPER_CURVES, display_name
from slackswap.evaluate.html_report_rows import Cell, ReportedProblem
from slackswap.evaluate.results import Row, gigabytes, printable, shown_gap
from slackswap.hardware.input_error import InputError

MAX_NAME_LETTERS = 90
SMALLEST_PERCENT, EARLIEST_S = 1e-4, 1e-5  # a logarithmic axis has no zero
BOUND_COLOUR = "#8a8f98"
_SYMBOLS = {"o": "circle", "s": "square", "^": "triangle-up", "D": "diamond", "v": "triangle-down"}
# Planners that the paper does not draw, on white and on black alike; their dashes tell apart those of equal colour.
_OTHER_COLOURS = ("#56b4e9", "#9b6dd6", "#a67c52", "#7b8794", "#b3a100", "#2fa8a0")
_OTHER_SYMBOLS = ("cross", "x", "star", "pentagon", "hexagon", "triangle-left", "triangle-right", "bowtie")
_UPRIGHT = {"textangle": -90, "showarrow": False, "yref": "paper"}
_DASHES = ("solid", "dash", "dot", "dashdot")


@dataclass(frozen=True, slots=True)
class Look:
    """How a planner is drawn, the same in every chart."""

    colour: str
    symbol: str
    dash: str = "solid"


def shown(name: object, *, most_letters: int = MAX_NAME_LETTERS) -> str:
    """Return a text from a file as text of a page or a chart: on one line, not too long, nothing in it is markup."""
    text = printable(str(name)[: most_letters + 1])
    if len(text) > most_letters:
        text = text[: most_letters - 1] + "…"
    return html.escape(text)


def looks(planners: Iterable[str]) -> dict[str, Look]:
    """Return the look of each planner: the paper's keep the paper's colours, the others take theirs in order."""
    of_paper = {one.planner: Look(one.colour, _SYMBOLS[one.marker]) for one in PAPER_CURVES}
    turn = itertools.count()
    chosen: dict[str, Look] = {}
    for planner in planners:
        if planner in of_paper:
            chosen[planner] = of_paper[planner]
            continue
        i = next(turn)
        dash = _DASHES[i // len(_OTHER_COLOURS) % len(_DASHES)]
        chosen[planner] = Look(_OTHER_COLOURS[i % len(_OTHER_COLOURS)], _OTHER_SYMBOLS[i % len(_OTHER_SYMBOLS)], dash)
    return chosen


def graph_objects() -> Any:
    """Return `plotly.graph_objects`.

    Raises
    ------
    InputError
        plotly is not installed.
    """
    try:
        import plotly.graph_objects
    except ModuleNotFoundError as error:
        package = (error.name or "plotly").split(".")[0]
        raise InputError(
            f'{package} is not installed: install the plot extra, pip install "slackswap[plot]"', source="report"
        ) from None
    return plotly.graph_objects


def chart_json(figure: Any) -> str:
    """Return a figure as JSON that may stand inside of a script element: the same figure, the same text."""
    from plotly.io import to_json

    # plotly escapes what ends a script element, but does not promise to.
    text: str = to_json(figure, engine="json", remove_uids=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def new_chart(height: int, **layout: Any) -> Any:
    """Return an empty figure that leaves its width, and most of its colours, to the page."""
    go = graph_objects()
    clear = "rgba(0,0,0,0)"
    return go.Figure(
        layout={
            "template": go.layout.Template(),  # plotly's own would stand in each chart, all of it
            "height": height,
            "margin": {"l": 62, "r": 18, "t": 14, "b": 48},
            "paper_bgcolor": clear,
            "plot_bgcolor": clear,
            "modebar": {"bgcolor": clear},
            "font": {"family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif", "size": 12},
            "showlegend": False,
            "hovermode": "closest",
            **layout,
        }
    )


def axis_title(text: str) -> dict[str, Any]:
    """Return an axis's title, close to its ticks."""
    return {"text": text, "standoff": 8}


def throughput_chart(problem: ReportedProblem, styles: Mapping[str, Look]) -> Any:
    """Return the throughput of every planner over the budget, and the bound that no plan exceeds."""
    go = graph_objects()
    cells = sorted(problem.cells, key=lambda cell: cell.budget_fraction)
    figure = new_chart(330, meta={"kind": "throughput"})
    bounds = [(cell, cell.bound_s) for cell in cells]
    bounded = [(cell, bound_s) for cell, bound_s in bounds if bound_s]
    figure.add_trace(
        go.Scatter(
            x=[cell.budget_fraction for cell, _ in bounded],
            y=[min(1.0, cell.rows[0].ideal_s / bound_s) for cell, bound_s in bounded],
            text=[f"{gigabytes(cell.budget_bytes)} GB" for cell, _ in bounded],
            mode="lines+markers" if len(bounded) == 1 else "lines",
            line={"color": BOUND_COLOUR, "width": 7},
            marker={"color": BOUND_COLOUR, "size": 14, "symbol": "line-ew-open"},
            opacity=0.45,
            meta="lower bound",
            hovertemplate="no plan is faster: %{y:.2%} of the ideal step<br>budget %{x:.1%}, %{text}<extra></extra>",
        )
    )
    for cell in cells:
        if not cell.fastest:
            figure.add_annotation(x=cell.budget_fraction, y=0.06, yanchor="bottom", text="no plan fits", **_UPRIGHT)
    for planner, look in styles.items():
        rows = [row for cell in cells for row in cell.rows if row.planner == planner and row.throughput is not None]
        if rows:
            figure.add_trace(_throughput_trace(planner, rows, look))
    figure.update_xaxes(title=axis_title("Budget, share of the peak"), tickformat=".4~%", **_budget_ticks(cells))
    figure.update_yaxes(title=axis_title("Throughput / ideal"), tickformat=".4~%", range=[0, 1.06])
    return figure


def _budget_ticks(cells: Sequence[Cell]) -> dict[str, Any]:
    """Ticks at the budgets themselves where there are few of them."""
    fractions = [cell.budget_fraction for cell in cells]
    if not 0 < len(fractions) <= 8 or min(fractions) <= 0:
        return {}
    margin = 0.06 * (max(fractions) - min(fractions)) or 0.1
    return {"tickvals": fractions, "range": [min(fractions) - margin, max(fractions) + margin]}


def _throughput_trace(planner: str, rows: Sequence[Row], look: Look) -> Any:
    return graph_objects().Scatter(
        x=[row.budget_fraction for row in rows],
        y=[row.throughput for row in rows],
        text=[
            f"{shown(display_name(planner))}, gap {shown_gap(row.gap)}, step {1e3 * (row.step_s or 0):.2f} ms"
            for row in rows
        ],
        customdata=[gigabytes(row.budget_bytes) for row in rows],
        mode="lines+markers",
        line={"color": look.colour, "width": 2, "dash": look.dash},
        marker={"color": look.colour, "symbol": look.symbol, "size": 8},
        meta=printable(planner),
        hovertemplate="%{text}<br>%{y:.2%} of the ideal step<br>budget %{x:.1%}, %{customdata} GB<extra></extra>",
    )


def link_charts(problems: Iterable[ReportedProblem], styles: Mapping[str, Look]) -> list[tuple[str, Any]]:
    """Return, of what a sweep put on several links, throughput over the link, a chart per budget with what it shows."""
    points: dict[tuple[str, float, int], dict[float, list[Row]]] = {}
    for one in problems:
        for row in one.rows if one.link_bytes_per_s is not None else ():
            by_link = points.setdefault((one.name, row.ideal_s, row.budget_bytes), {})
            by_link.setdefault(one.link_bytes_per_s or 0.0, []).append(row)
    return [
        (f"{name}, {gigabytes(budget_bytes)} GB", _link_chart(dict(sorted(by_link.items())), styles))
        for (name, _, budget_bytes), by_link in points.items()
        if len(by_link) > 1 and any(row.throughput is not None for rows in by_link.values() for row in rows)
    ]


def _link_chart(by_link: Mapping[float, Sequence[Row]], styles: Mapping[str, Look]) -> Any:
    figure = new_chart(330, meta={"kind": "link"})
    for planner, look in styles.items():
        own = [(link, row) for link, rows in by_link.items() for row in rows if row.planner == planner]
        fitting = [(link / 1e9, row) for link, row in own if row.throughput is not None]
        if fitting:
            trace = _throughput_trace(planner, [row for _, row in fitting], look)
            trace.update(
                x=[link for link, _ in fitting], hovertemplate="%{text}<br>%{y:.2%} at %{x:,} GB/s<extra></extra>"
            )
            figure.add_trace(trace)
    ticks = [link / 1e9 for link in by_link]
    few = {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]} if len(ticks) <= 12 else {}
    figure.update_xaxes(title=axis_title("Host link (GB/s per direction)"), type="log", **few)
    figure.update_yaxes(title=axis_title("Throughput / ideal"), tickformat=".4~%", range=[0, 1.06])
    return figure


def gap_chart(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> Any | None:
    """Return the gap of every plan over the time it took, both logarithmic; None where no row has a gap."""
    go = graph_objects()
    points = [
        (one.label, row) for one in problems for row in one.rows if row.gap is not None and row.step_s is not None
    ]
    if not points:
        return None
    figure = new_chart(460, meta={"kind": "gap"})
    for planner, look in styles.items():
        own = [(label, row) for label, row in points if row.planner == planner]
        if not own:
            continue
        figure.add_trace(
            go.Scatter(
                x=[max(EARLIEST_S, row.planning_s) for _, row in own],
                y=[max(SMALLEST_PERCENT, 100 * (row.gap or 0.0)) for _, row in own],
                text=[
                    f"{shown(label)}<br>budget {row.budget_fraction:.1%}, gap {_finely(row.gap)}" for label, row in own
                ],
                customdata=[shown(display_name(planner))] * len(own),
                mode="markers",
                marker={"color": look.colour, "symbol": look.symbol, "size": 9, "opacity": 0.8},
                meta=printable(planner),
                hovertemplate="%{customdata} after %{x:.3~s}s<br>%{text}<extra></extra>",
            )
        )
    ticks = {"type": "log", "dtick": 1, "minor": {"ticks": ""}}
    figure.update_xaxes(title=axis_title("Planning time (s)"), exponentformat="none", **ticks)
    figure.update_yaxes(title=axis_title("Gap to the lower bound (%)"), exponentformat="none", **ticks)
    return figure


def _finely(gap: float | None) -> str:
    return "-" if gap is None else f"{gap:.4%}"
