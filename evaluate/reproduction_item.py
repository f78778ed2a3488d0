"""One table or figure of the paper to reproduce: which cases it runs, and what it computes from their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from slackswap.evaluate.paper import Paper
from slackswap.evaluate.reproduction_comparison import DOES_NOT_FIT, Value
from slackswap.evaluate.results import Row
from slackswap.evaluate.sweeps import Case
from slackswap.planners import BUILT_IN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = float | int | str | None


@dataclass(frozen=True)
class Points:
    """What a figure shows, as a table: numbers, texts, and None where no plan fits.

    Attributes
    ----------
    decimals : digits behind the point for people; files for machines have all digits
    timing : whether it holds planning times, which no two runs agree on: they are printed, and in no file
    printed : whether the command prints it too
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    decimals: int = 1
    timing: bool = False
    printed: bool = False


@dataclass(frozen=True)
class Computed:
    """What one item computes.

    Attributes
    ----------
    values : statement id -> our value
    points : what the figure shows
    remarks : sentences that say what was assumed or seen
    draw : returns the figure; needs matplotlib
    """

    values: Mapping[str, Value]
    points: Sequence[Points] = ()
    remarks: Sequence[str] = ()
    draw: Callable[[], Figure] | None = None


@dataclass(frozen=True)
class Rows:
    """Rows of finished cases; a case of a planner that does not exist yet has none."""

    by_case: Mapping[Case, Row]

    def row(self, case: Case) -> Row | None:
        """Return the row of a case, or None where its planner is not there yet."""
        return self.by_case.get(case)

    def throughput(self, case: Case) -> float | None:
        """Return throughput as a fraction of the ideal; None where no plan fits or no planner is there."""
        row = self.by_case.get(case)
        return None if row is None else row.throughput

    def percent(self, case: Case) -> Value:
        """Return throughput in percent of the ideal as a value to compare."""
        row = self.by_case.get(case)
        if row is None:
            return None
        return DOES_NOT_FIT if row.throughput is None else 100 * row.throughput


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper, or a check in its text.

    Attributes
    ----------
    causes : patterns of statement ids (as in `fnmatch`) -> why our value is more than 2% off, in one sentence
    """

    name: str
    title: str
    compute: Callable[[Paper, Rows], Computed]
    cases: Callable[[Paper], Iterable[Case]] = lambda _: ()
    causes: Mapping[str, str] = field(default_factory=dict)

    def cause(self, statement_id: str) -> str:
        """Return the cause of a statement's deviation: that of the first pattern that matches."""
        matching = (cause for pattern, cause in self.causes.items() if fnmatchcase(statement_id, pattern))
        return next(matching, "")


def implemented(planners: Iterable[str]) -> list[str]:
    """Return those of the planners that this project has."""
    known = {planner.name for planner in BUILT_IN}
    return [planner for planner in planners if planner in known]


def cases_of(cases: Iterable[Case]) -> list[Case]:
    """Return those of the cases whose planner exists."""
    return [case for case in cases if implemented([case.planner])]


def under(limit: float, values: Iterable[Value]) -> Value:
    """Return ``under LIMIT`` where all values are, as the paper says it, else the highest."""
    whole = span(values)
    if not isinstance(whole, tuple):
        return whole
    return f"under {limit:g}" if whole[1] < limit else whole[1]


def span(values: Iterable[Value]) -> Value:
    """Return the lowest and the highest of some numbers; words or None where one of them is no number."""
    numbers: list[float] = []
    for value in values:
        if value is None or isinstance(value, str):
            return value
        numbers.extend(value if isinstance(value, tuple) else (value,))
    return (min(numbers), max(numbers)) if numbers else None


def best_baseline(paper: Paper, rows: Rows, case: Case) -> float | None:
    """Return the highest throughput of the baselines at the place of `case`; None where one is not there yet."""
    baselines = paper.sweeps.planners[1:]
    if len(implemented(baselines)) < len(baselines):
        return None
    rivals = [rows.throughput(msgspec.structs.replace(case, planner=planner)) for planner in baselines]
    return max((rival for rival in rivals if rival is not None), default=None)


def lead(paper: Paper, rows: Rows, case: Case) -> Value:
    """Return throughput at `case` over that of the best baseline that fits there."""
    own, best = rows.throughput(case), best_baseline(paper, rows, case)
    return None if best is None else DOES_NOT_FIT if own is None else own / best
