"""The reproduction for people and for machines: tables on stdout, Markdown, CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slackswap.evaluate.reproduction_comparison import Comparison
from slackswap.evaluate.reproduction_item import Cell, Computed, Item, Points

if TYPE_CHECKING:
    from rich.table import Table

MARKDOWN_HEAD = """\
# The paper's numbers, reproduced

The results that the SlackSwap paper (arXiv:2610.13003) states in its tables, figures and text, beside what this project
computes. `slackswap reproduce all --out DIR` writes this page as `DIR/reproduction.md`; a test regenerates it.

A deviation is ours over the paper's, minus 1; of a range, that of the end that is further off. One above 2% has its cause
beside it, unless our value rounds to the digits that the paper prints. Planning times depend on the machine: the command
prints them and leaves them out here. In the tables of points "-" says that no plan fits.
"""
HEADINGS = ("what", "section", "unit", "paper", "ours", "deviation", "cause")


@dataclass(frozen=True)
class Reproduced:
    """One item: what it computed, beside what the paper states, in the paper's order."""

    item: Item
    computed: Computed
    comparisons: Sequence[Comparison]


def comparison_table(reproduced: Reproduced) -> Table:
    """Return the table for stdout."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=reproduced.item.title, title_justify="left", title_style="bold")
    for heading in HEADINGS:
        right = heading in ("paper", "ours", "deviation")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    for comparison in reproduced.comparisons:
        table.add_row(*map(Text, _cells(comparison)))
    return table


def summary(comparisons: Iterable[Comparison]) -> str:
    """Return one line: how many values agree."""
    every = list(comparisons)
    there = [one for one in every if one.ours is not None]
    off = sum(one.needs_cause for one in there)
    text = f"{len(there)} values: {len(there) - off} within 2% of the paper's or equal as printed, {off} further off"
    missing = len(every) - len(there)
    return f"{text}; {missing} not yet implemented" if missing else text


def to_markdown(reproduced: Iterable[Reproduced]) -> str:
    """Return the page of all items, without planning times."""
    every = list(reproduced)
    parts = [MARKDOWN_HEAD, f"{summary(c for one in every for c in lasting(one))}.\n"]
    for one in every:
        parts.append(f"## {one.item.title}\n")
        parts.append(_markdown_table(HEADINGS, [_cells(comparison) for comparison in lasting(one)]))
        parts.extend(f"{remark}\n" for remark in one.computed.remarks)
        for points in lasting_points(one):
            parts.append(f"{points.title}:\n\n{_markdown_table(points.headings, _texts(points))}")
    return "\n".join(parts)


def lasting(reproduced: Reproduced) -> list[Comparison]:
    """Return the comparisons that are the same in every run: all but planning times."""
    return [comparison for comparison in reproduced.comparisons if not comparison.statement.timing]


def lasting_points(reproduced: Reproduced) -> list[Points]:
    """Return the tables of points that are the same in every run."""
    return [points for points in reproduced.computed.points if not points.timing]


def points_table(points: Points) -> Table:
    """Return a table of points for stdout."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=points.title, title_justify="left", title_style="bold")
    for i, heading in enumerate(points.headings):
        table.add_column(Text(heading), justify="right" if i else "left", no_wrap=True)
    for row in _texts(points):
        table.add_row(*map(Text, row))
    return table


def comparisons_csv(reproduced: Reproduced) -> str:
    """Return the comparisons, without planning times: ours also with all its digits, the low end of a range first."""
    rows = [[one.statement.id, *_cells(one), *_ends(one)] for one in lasting(reproduced)]
    return _csv(["id", *HEADINGS, "ours_low", "ours_high"], rows)


def points_csv(points: Iterable[Points]) -> str:
    """Return what a figure shows in long form: a line for each value; empty where no plan fits."""
    rows = [
        [panel.title, row[0], heading, "" if value is None else value]
        for panel in points
        for row in panel.rows
        for heading, value in zip(panel.headings[1:], row[1:], strict=True)
    ]
    return _csv(["panel", "at", "series", "value"], rows)


def _cells(comparison: Comparison) -> list[str]:
    stated = comparison.statement
    texts = comparison.ours_text, comparison.deviation_text, comparison.cause_text
    return [stated.what, stated.section, stated.unit, stated.value, *texts]


def _ends(comparison: Comparison) -> list[float | str]:
    ours = comparison.ours
    if ours is None or isinstance(ours, str):
        return ["", ""]
    return list(ours) if isinstance(ours, tuple) else [ours, ours]


def _texts(points: Points) -> list[list[str]]:
    return [[_shown(value, points.decimals) for value in row] for row in points.rows]


def _shown(value: Cell, decimals: int) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.{decimals}f}"


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines)


def _csv(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows([repr(cell) if isinstance(cell, float) else cell for cell in row] for row in rows)
    return text.getvalue()
