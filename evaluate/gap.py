"""How far each planner is from the best possible step, and how it came there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackswap.evaluate.bounds import certified_bound_s
from slackswap.evaluate.budget import Budget
from slackswap.evaluate.results import Result, gigabytes, plain, shown_gap
from slackswap.evaluate.shootout import shootout
from slackswap.models.problem import Problem
from slackswap.planners import Planner, PlannerFunction

if TYPE_CHECKING:
    from rich.table import Table

# Seconds of planning -> gap to what the step is measured against, as a fraction; improvements in order, the last one lasts.
GapCurve = Sequence[tuple[float, float]]


class GapRow(msgspec.Struct, frozen=True, kw_only=True):
    """One planner on one problem and budget. None where there is no plan, or no bound.

    Attributes
    ----------
    lower_bound_s, gap : the certified bound on the step of every plan, and the step over it, minus 1
    best_known_s, gap_to_best : the fastest step of all planners that ran, and the step over that, minus 1
    history : (seconds, plans scored, step in seconds) of each improvement of a planner that searches
    """

    problem: str
    budget_bytes: int
    budget_fraction: float
    planner: str
    status: str
    step_s: float | None
    ideal_s: float
    throughput: float | None
    lower_bound_s: float | None
    gap: float | None
    best_known_s: float | None
    gap_to_best: float | None
    planning_s: float
    evaluations: int
    solver: str
    seed: int | None
    history: tuple[tuple[float, int, float], ...] = ()


COLUMNS = tuple(column for column in GapRow.__struct_fields__ if column != "history")
_SHARED = tuple(set(COLUMNS) - {"best_known_s", "gap_to_best", "solver"})


def measure_gaps(
    problem: Problem,
    budget: Budget,
    planners: Sequence[Planner | PlannerFunction],
    seed: int,
    time_limit_s: float,
    announce: Callable[[Problem, str, str], object],
) -> Iterator[list[Result]]:
    """Yield the results of all planners on one problem and budget; of those that are finished, where it is interrupted.

    Parameters
    ----------
    time_limit_s : for each planner that searches, and for the bound
    """
    bound = partial(certified_bound_s, time_limit_s=time_limit_s)
    return shootout([problem], [budget], planners, seed=seed, time_limit_s=time_limit_s, bound=bound, announce=announce)


def gap_rows(results: Sequence[Result]) -> list[GapRow]:
    """Return the gaps of the planners on one problem and budget."""
    steps_s = [result.row.step_s for result in results if result.row.step_s is not None]
    best_s = min(steps_s, default=None)
    return [_gap_row(result, best_s) for result in results]


def _gap_row(result: Result, best_s: float | None) -> GapRow:
    step_s = result.row.step_s
    return GapRow(
        **{column: getattr(result.row, column) for column in _SHARED},
        best_known_s=best_s,
        gap_to_best=step_s / best_s - 1.0 if step_s is not None and best_s else None,
        solver=f"{result.outcome.solver} {result.outcome.solver_version}".strip(),
        history=tuple((one.seconds, one.evaluations, one.step_s) for one in result.outcome.history),
    )


def gap_table(rows: Sequence[GapRow]) -> Table:
    """Return the table for people: the smallest gap first, what found no plan last."""
    from rich.table import Table

    table = Table(title=plain(_title(rows)), title_justify="left", title_style="bold")
    for heading in ("planner", "status"):
        table.add_column(heading, no_wrap=True)
    for heading in (
        "step ms",
        "% of ideal",
        "gap to bound",
        "gap to best",
        "planning s",
        "best after s",
        "plans scored",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(rows, key=lambda row: (row.step_s is None, row.step_s or 0.0)):
        table.add_row(plain(row.planner), *_cells(row))
    return table


def _title(rows: Sequence[GapRow]) -> str:
    if not rows:
        return ""
    row = rows[0]
    title = f"{row.problem}, {row.budget_fraction:.1%} of the peak, {gigabytes(row.budget_bytes)} GB"
    bound_s = next((row.lower_bound_s for row in rows if row.lower_bound_s is not None), None)
    if bound_s is None:
        return f"{title}: no lower bound"
    of_ideal = f" ({row.ideal_s / bound_s:.2%} of ideal)" if bound_s > 0 else ""
    return f"{title}: no plan is faster than {bound_s * 1e3:.2f} ms{of_ideal}"


def _cells(row: GapRow) -> list[str]:
    effort = [f"{row.planning_s:.3f}", "-", f"{row.evaluations:,}"]
    if row.step_s is None or row.throughput is None:
        return [row.status, *["-"] * 4, *effort]
    if row.history:
        effort[1] = f"{row.history[-1][0]:.3f}"
    best = row.gap_to_best == 0
    step = f"{row.step_s * 1e3:.2f}"
    return [
        row.status,
        f"[bold]{step}[/bold]" if best else step,
        f"{row.throughput:.2%}",
        _finely(row.gap),
        _finely(row.gap_to_best),
        *effort,
    ]


def _finely(gap: float | None) -> str:
    """Return a gap in percent, a small one with a digit more: planners that search differ there."""
    return f"{gap:.3%}" if gap is not None and gap < 0.01 else shown_gap(gap)


def gap_curves(rows: Iterable[GapRow]) -> Mapping[str, GapCurve]:
    """Return the gap of each planner over its planning time; of one that does not search, where it ended.

    Measured against the certified bound, or without one against the best plan known.
    """
    curves: dict[str, GapCurve] = {}
    for row in rows:
        against_s = row.lower_bound_s or row.best_known_s
        if row.step_s is None or not against_s:
            continue
        improvements = [(seconds, step_s / against_s - 1.0) for seconds, _, step_s in row.history]
        curves[row.planner] = [*improvements, (row.planning_s, row.step_s / against_s - 1.0)]
    return curves


def draw_gaps(rows: Sequence[GapRow], path: str) -> bool:
    """Write the anytime figure to a file; return whether there was anything to draw."""
    from slackswap.evaluate.gap_figure import anytime_figure, write_figure

    curves = gap_curves(rows)
    if curves:
        bounded = any(row.lower_bound_s for row in rows)
        title = f"{rows[0].problem}, {rows[0].budget_fraction:.1%} of the peak"
        write_figure(anytime_figure(curves, title, "the lower bound" if bounded else "the best plan known"), path)
    return bool(curves)
