"""The command ``slackswap robustness``: every planner's plan, replayed where times and bandwidths are off."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from slackswap.evaluate.command_options import CSV, HARDWARE, JSON, PLANNERS, time_limit_of
from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from slackswap.evaluate.robustness import Replayed, RobustnessRow

_SHARE = re.compile(r"(\d{1,9}(?:\.\d{0,30})?|\.\d{1,30})\s*(%?)", re.ASCII)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@HARDWARE
@click.option("--budget", required=True, metavar="B,...", help="Budgets, comma-separated.")
@PLANNERS
@click.option("--errors", default="5%,10%,20%", show_default=True, metavar="E,...", help="How far times may be off.")
@click.option("--parts", default="link,compute,operators", show_default=True, metavar="PART,...", help="What is off.")
@click.option("--samples", type=int, default=100, show_default=True, metavar="K", help="Iterations for each error.")
@click.option("--guard", default="", metavar="G,...", help="Guards g to plan slackswap with besides, as in 0,2%,10%.")
@click.option("--replan", default="", metavar="NAME,...", help="Planners that besides plan each iteration anew.")
@time_limit_of(0.5)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of iterations and planners.")
@click.option("--plot", metavar="FILE.png", help="Draw how each planner's throughput spreads (.png or .svg).")
@click.option("--markdown", metavar="FILE|-", help="Write the tables as Markdown; - is stdout, without tables.")
@JSON
@CSV
def robustness(
    sources: tuple[str, ...],
    hardware: str | None,
    budget: str,
    planner: str,
    errors: str,
    parts: str,
    samples: int,
    guard: str,
    replan: str,
    time_limit: float,
    seed: int,
    **outputs: str | None,
) -> None:
    """Replay every planner's plan for each SOURCE where times and bandwidths are not those that it was made from.

    With an error of 20%, the link of an iteration is up to 1.2 times as fast or as slow (`link`), so are all operators
    together (`compute`), and each operator besides (`operators`). All planners see the same iterations. Throughput is the
    iteration's own ideal step over its step: a slower GPU is not the plan's fault.
    """
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.progress import Progress, collect, shown_at_work
    from slackswap.evaluate.robustness import Conditions
    from slackswap.evaluate.robustness import robustness as run
    from slackswap.evaluate.sources import load_source
    from slackswap.planners import find_planners

    written = _Outputs(**outputs)
    written.check()
    named_parts = [part.strip() for part in parts.split(",") if part.strip()]
    conditions = Conditions(parse_shares(errors, "--errors"), samples, seed, named_parts)
    guards = parse_shares(guard, "--guard")
    planners, budgets = find_planners(planner), parse_budgets(budget)
    replanners = find_planners(replan) if replan else []
    with shown_at_work("reading the sources"):
        problems = [load_source(name, hardware) for name in sources]
    replayed: list[Replayed] = []
    with Progress(len(problems) * len(budgets) * (len(planners) + len(guards) + len(replanners))) as progress:
        plans = run(
            problems,
            budgets,
            planners,
            conditions,
            guards=guards,
            replanners=replanners,
            time_limit_s=time_limit,
            announce=progress.announce,
        )
        finished = collect(plans, replayed.append)
    written.write(replayed)
    if not finished:
        raise KeyboardInterrupt


def parse_shares(text: str, option: str) -> list[float]:
    """Read a comma-separated list of shares, each as ``0.05`` or ``5%``; each counts once.

    Raises
    ------
    InputError
        One is no share of 1.
    """
    shares = []
    for part in (part.strip() for part in text.split(",")):
        match = _SHARE.fullmatch(part)
        share = float(match[1]) / (100 if match[2] else 1) if match else 2.0
        if part and share > 1:
            raise InputError(f"'{part}' is no share: write a fraction from 0 to 1 (0.05), or 5%", source=option)
        shares += [share] if part else []
    return list(dict.fromkeys(shares))


@dataclass(frozen=True)
class _Outputs:
    """Where results go besides the terminal."""

    json_path: str | None
    csv_path: str | None
    markdown: str | None
    plot: str | None

    def check(self) -> None:
        """Refuse what cannot be written, before the work whose results it is meant for."""
        from slackswap.evaluate.gap_figure import check_figure_path

        check_outputs(self.json_path, self.csv_path, self.markdown, self.plot)
        if self.plot is not None:
            check_figure_path(self.plot)

    def write(self, replayed: Sequence[Replayed]) -> None:
        """Write every file that is asked for, and tables to stdout where no file goes there."""
        from slackswap.evaluate.report import explain_infeasibility, print_table
        from slackswap.evaluate.results import to_csv, to_json_lines
        from slackswap.evaluate.robustness import COLUMNS

        rows = [row for one in replayed for row in one.rows]
        grids = [grid for cell in cells_of(replayed) for grid in grids_of(cell)]
        write_output(self.json_path, to_json_lines(rows))
        write_output(self.csv_path, to_csv(rows, COLUMNS))
        write_output(self.markdown, "\n".join(map(as_markdown, grids)))
        if "-" not in (self.json_path, self.csv_path, self.markdown):
            for grid in grids:
                print_table(as_table(grid))
            for line in explain_infeasibility(one.result for one in replayed if not one.rows[0].replanned):
                click.echo(line)
        if self.plot is not None:
            self._draw(replayed)

    def _draw(self, replayed: Sequence[Replayed]) -> None:
        from slackswap.evaluate.gap_figure import write_figure
        from slackswap.evaluate.robustness_figure import panels_of, robustness_figure

        panels = panels_of([row for one in cell for row in one.rows] for cell in cells_of(replayed))
        if panels:
            write_figure(robustness_figure(panels), str(self.plot))
        click.echo(f"figure written to {self.plot}" if panels else "no plan fits: nothing to draw", err=True)


def cells_of(replayed: Sequence[Replayed]) -> Iterator[list[Replayed]]:
    """Yield what belongs to one problem and budget."""
    for _, cell in itertools.groupby(replayed, lambda one: (id(one.result.problem), one.result.row.budget_bytes)):
        yield list(cell)


@dataclass(frozen=True)
class Grid:
    """A table, for a terminal or for a page: headings, and lines of cells of which some are the best of their column."""

    title: str
    headings: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    best: frozenset[tuple[int, int]]


def grids_of(cell: Sequence[Replayed]) -> Iterator[Grid]:
    """Yield the tables of one problem and budget: the planners, the best plan first, then the guards.

    Three errors go into a table; where there are more, others follow.
    """
    planners = sorted(
        (one for one in cell if one.rows[0].guard is None), key=lambda one: -(one.rows[0].throughput or -1)
    )
    guards = [one for one in cell if one.rows[0].guard is not None]
    for first, group in (("planner", planners), ("guard", guards)):
        for i in range(0, len(group[0].rows) if group else 0, ERRORS_IN_A_TABLE):
            yield _grid(first, [one.rows[i : i + ERRORS_IN_A_TABLE] for one in group])


def _grid(first: str, table: Sequence[Sequence[RobustnessRow]]) -> Grid:
    """Return a table of rows; column by column the highest throughput is the best, of plans that are not made anew."""
    rows = table[0]
    errors = [f"\N{PLUS-MINUS SIGN}{row.error * 100:g}%" for row in rows]
    headings = [first, "planned", *(f"{error} {what}" for error in errors for what in _STATISTICS)]
    headings += [f"{errors[-1]} worst (planned ideal)", f"{errors[-1]} fastest", "does not fit"]
    won = _fastest(table)
    lines = [(_name(rows[-1]), *_cells(rows, count)) for rows, count in zip(table, won, strict=True)]
    rivals = [i for i, rows in enumerate(table) if not rows[0].replanned]
    best = set()
    for column in range(1, len(headings) - 2):
        shown = [lines[i][column] for i in rivals if lines[i][column].endswith("%")]
        highest = max(shown, key=lambda text: float(text.rstrip("%")), default=None)
        best |= {(i, column) for i in rivals if lines[i][column] == highest}
    return Grid(_title(rows[-1]), tuple(headings), tuple(lines), frozenset(best))


ERRORS_IN_A_TABLE = 3  # more are too wide
_STATISTICS = ("median", "mean", "worst")


def _title(row: RobustnessRow) -> str:
    from slackswap.evaluate.results import gigabytes
    from slackswap.planners.slackswap import SLACKSWAP

    budget = f"{row.budget_fraction:.1%} of the peak, {gigabytes(row.budget_bytes)} GB"
    plans = "plans" if row.guard is None else f"{SLACKSWAP.name}'s guard"
    return f"{row.problem}, {budget}: {plans} where {row.parts.replace('+', ', ')} are off, {row.samples} iterations"


def _name(row: RobustnessRow) -> str:
    if row.guard is not None:
        return f"{row.guard * 100:g}%"
    return f"{row.planner}, replanned" if row.replanned else row.planner


def _cells(rows: Sequence[RobustnessRow], won: int | None) -> tuple[str, ...]:
    """Return the cells of one plan, after its name."""
    if rows[0].throughput is None:
        return (rows[0].status, *["-"] * (len(_STATISTICS) * len(rows) + 3))
    values = [getattr(row, f"{what}_throughput") for row in rows for what in _STATISTICS]
    shown = [_percent(value) for value in (rows[0].throughput, *values, rows[-1].worst_of_planned_ideal)]
    failed = [row.not_fitting or 0 for row in rows]
    share = f"{sum(failed)} of {sum(row.samples for row in rows)}" if any(failed) else "0"
    return (*shown, "-" if won is None else str(won), share)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _fastest(table: Sequence[Sequence[RobustnessRow]]) -> list[int | None]:
    """Count for each plan the iterations of the last error in which none is faster; None for what is made anew."""
    rivals = [rows[-1].throughputs for rows in table if not rows[0].replanned and rows[-1].throughputs]
    highest = [max((value or 0.0 for value in values), default=0.0) for values in zip(*rivals, strict=True)]
    return [None if rows[0].replanned else _count(rows[-1].throughputs, highest) for rows in table]


def _count(throughputs: Sequence[float | None], highest: Sequence[float]) -> int:
    fits = [(value, top) for value, top in zip(throughputs, highest, strict=False) if value is not None]
    return sum(value >= top * (1 - 1e-9) for value, top in fits)


def as_table(grid: Grid) -> Table:
    """Return the table for a terminal."""
    from rich.table import Table
    from rich.text import Text

    from slackswap.evaluate.results import plain

    table = Table(title=plain(grid.title), title_justify="left", title_style="bold")
    for column, heading in enumerate(grid.headings):
        table.add_column(
            textwrap.fill(heading, 7, break_long_words=False), justify="right" if column else "left", no_wrap=True
        )
    for i, line in enumerate(grid.lines):
        styles = ["bold" if (i, column) in grid.best else "" for column in range(len(line))]
        table.add_row(plain(line[0]), *(Text(text, style) for text, style in zip(line[1:], styles[1:], strict=True)))
    return table


def as_markdown(grid: Grid) -> str:
    """Return the table as Markdown, its title as a heading."""
    lines = [
        [f"**{text}**" if (i, column) in grid.best else _escaped(text) for column, text in enumerate(line)]
        for i, line in enumerate(grid.lines)
    ]
    shown = [grid.headings, ["---"] * len(grid.headings), *lines]
    return f"### {_escaped(grid.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in shown)


def _escaped(text: str) -> str:
    """Return text that breaks no table and no markup."""
    from slackswap.evaluate.results import printable

    return printable(text).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
