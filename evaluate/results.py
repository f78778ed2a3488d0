"""Results of a shootout: one row per (problem, budget, planner), for people and for machines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from slackswap.models.event_model import Score
    from slackswap.models.problem import Problem
    from slackswap.planners import Infeasibility, Outcome


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of a shootout; the columns of the results format. None where there is no plan, or no bound."""

    problem: str
    budget_bytes: int
    budget_fraction: float
    planner: str
    status: str
    step_s: float | None = None
    ideal_s: float
    throughput: float | None = None
    recompute_s: float | None = None
    forward_stall_s: float | None = None
    backward_stall_s: float | None = None
    d2h_bytes: int | None = None
    h2d_bytes: int | None = None
    peak_bytes: int | None = None
    keep_bytes: int | None = None
    swap_bytes: int | None = None
    recompute_bytes: int | None = None
    planning_s: float
    evaluations: int
    lower_bound_s: float | None = None
    gap: float | None = None
    seed: int | None = None


COLUMNS = Row.__struct_fields__


@dataclass(frozen=True)
class Result:
    """A row, with what does not fit into a table: the problem, the outcome, its score, why there is no plan."""

    row: Row
    problem: Problem
    outcome: Outcome
    score: Score | None
    infeasibility: Infeasibility | None


def to_csv(rows: Iterable[msgspec.Struct], columns: Sequence[str] = COLUMNS) -> str:
    """Return rows as CSV with a header; empty where there is no value."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        values = (getattr(row, column) for column in columns)
        writer.writerow("" if value is None else repr(value) if isinstance(value, float) else value for value in values)
    return text.getvalue()


def to_json_lines(rows: Iterable[msgspec.Struct]) -> str:
    """Return rows as JSON lines; null where there is no value."""
    return "".join(msgspec.json.encode(row).decode() + "\n" for row in rows)


def table(rows: Sequence[Row]) -> Table:
    """Return the table for people: the best throughput of each budget is marked."""
    from rich.table import Table

    shown = Table(title=plain(rows[0].problem) if rows else None, title_justify="left", title_style="bold")
    for heading in ("budget", "planner", "status"):
        shown.add_column(heading, no_wrap=True)
    for heading in (
        "% of ideal",
        "gap",
        "step ms",
        "recompute",
        "fwd stall",
        "bwd stall",
        "D2H GB",
        "peak GB",
        "planning ms",
    ):
        shown.add_column(heading, justify="right", no_wrap=True)
    for i, row in enumerate(rows):
        begins = i == 0 or rows[i - 1].budget_bytes != row.budget_bytes
        if begins and i:
            shown.add_section()
        budget = f"{row.budget_fraction:.1%} {gigabytes(row.budget_bytes)} GB" if begins else ""
        shown.add_row(budget, plain(row.planner), *_cells(row, rows))
    return shown


def plain(name: str) -> Text:
    """Return a name from a file as it is: no markup, and nothing that moves the cursor of a terminal."""
    from rich.text import Text

    return Text(printable(name))


def printable(name: str) -> str:
    """Return a name on one line, with a replacement character for each one that does not print."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in name)


def gigabytes(n_bytes: int) -> str:
    """Return GB (10^9 bytes) with two decimals, four below one GB."""
    return f"{n_bytes / 1e9:.{2 if n_bytes >= 1e9 else 4}f}"


def shown_gap(gap: float | None) -> str:
    """Return a gap in percent, or a dash."""
    return "-" if gap is None else f"{gap:.2%}"


def _cells(row: Row, rows: Sequence[Row]) -> list[str]:
    planning_ms = f"{row.planning_s * 1e3:.1f}"
    if row.throughput is None or row.step_s is None:
        return [row.status, *["-"] * 8, planning_ms]
    rivals = [other.throughput or 0.0 for other in rows if other.budget_bytes == row.budget_bytes]
    best = row.throughput >= max(rivals) - 1e-12
    multiples = [row.recompute_s or 0.0, row.forward_stall_s or 0.0, row.backward_stall_s or 0.0]
    return [
        row.status,
        f"[bold]{row.throughput:.2%}[/bold]" if best else f"{row.throughput:.2%}",
        shown_gap(row.gap),
        f"{row.step_s * 1e3:.2f}",
        *(f"{seconds / row.ideal_s:.3f}" if row.ideal_s > 0 else "-" for seconds in multiples),
        gigabytes(row.d2h_bytes or 0),
        gigabytes(row.peak_bytes or 0),
        planning_ms,
    ]
