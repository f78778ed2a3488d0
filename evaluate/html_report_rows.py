"""What an HTML report is about: results of a run or rows that an earlier run wrote, by problem and by budget."""

from __future__ import annotations

import csv
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from slackswap.evaluate.results import COLUMNS, Result, Row
from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import read_input_bytes
from slackswap.models.problem import Problem

MAX_ROWS_BYTES = 256 << 20
TIE = 1e-9  # relative: the event model adds the same durations in another order
_LARGEST = 10**18  # more bytes, or plans, than there are
_HINT = "give the CSV or the JSON lines that `slackswap shootout` or `slackswap sweep` wrote"
_ERROR = "error"  # status of a job of a sweep that gave no row
_NUMBERS = tuple(column for column in COLUMNS if column not in ("problem", "planner", "status"))
# A planner may prove that nothing fits by an infinite bound, which stands for no bound in a table.
_MAY_BE_INFINITE = ("lower_bound_s",)
_MAY_BE_NEGATIVE = ("gap",)  # by a rounding error


@dataclass(frozen=True)
class Cell:
    """The rows of one problem at one budget, a row per planner."""

    budget_bytes: int
    budget_fraction: float
    rows: tuple[Row, ...]

    @property
    def fastest(self) -> tuple[Row, ...]:
        """The rows with the highest throughput, several where planners are equally fast; none where no plan fits."""
        steps_s = [row.step_s for row in self.rows if row.step_s is not None]
        least_s = min(steps_s, default=math.inf)
        return tuple(row for row in self.rows if row.step_s is not None and row.step_s <= least_s * (1 + TIE))

    @property
    def bound_s(self) -> float | None:
        """The certified lower bound that the gaps are measured against; None where there is none, or no plan."""
        bounds_s = [row.lower_bound_s for row in self.rows if row.gap is not None and row.lower_bound_s]
        return max(bounds_s, default=None)


@dataclass(frozen=True)
class ReportedProblem:
    """One problem with all of its rows.

    Attributes
    ----------
    label : its name, with what else tells it apart: its link, or a number where another problem has the same name
    rows : in the order of the run
    results : one per row, with the problem and the plan; empty where only rows are at hand
    name : its name alone
    link_bytes_per_s : bandwidth of both directions that a sweep gave it in place of the hardware's, or None
    """

    label: str
    rows: tuple[Row, ...]
    results: tuple[Result, ...] = ()
    name: str = ""
    link_bytes_per_s: float | None = None

    @property
    def problem(self) -> Problem | None:
        """The problem itself, where it is at hand."""
        return self.results[0].problem if self.results else None

    @property
    def cells(self) -> list[Cell]:
        """A cell per budget, in the order of the run."""
        by_budget: dict[int, list[Row]] = {}
        for row in self.rows:
            by_budget.setdefault(row.budget_bytes, []).append(row)
        return [Cell(budget, rows[0].budget_fraction, tuple(rows)) for budget, rows in by_budget.items()]

    @property
    def repeated(self) -> int:
        """How many rows share budget and planner with an earlier one."""
        return len(self.rows) - len({(row.budget_bytes, row.planner) for row in self.rows})


@dataclass(frozen=True)
class StoredRow:
    """A row of a file, with what the table of a sweep says beside it about its problem."""

    row: Row
    hardware: str = ""
    link_bytes_per_s: float | None = None

    @property
    def label(self) -> str:
        """The problem's name, with the hardware and the link that it does not name itself."""
        parts = [self.row.problem]
        if self.hardware and self.hardware not in self.row.problem:
            parts.append(f"on {self.hardware}")
        if self.link_bytes_per_s is not None:
            parts.append(f"link {self.link_bytes_per_s / 1e9:g} GB/s")
        return ", ".join(parts)


@dataclass(frozen=True)
class StoredRows:
    """The rows of a file, and of each job of a sweep that failed, which one and why."""

    rows: tuple[StoredRow, ...]
    failures: tuple[str, ...] = ()


def reported_results(results: Sequence[Result]) -> list[ReportedProblem]:
    """Group the results of a shootout by problem."""
    by_problem: dict[int, list[Result]] = {}
    for result in results:
        by_problem.setdefault(id(result.problem), []).append(result)
    groups = [(tuple(one.row for one in group), tuple(group)) for group in by_problem.values()]
    labels = _distinct([rows[0].problem for rows, _ in groups])
    return [
        ReportedProblem(label, rows, results, name=rows[0].problem)
        for label, (rows, results) in zip(labels, groups, strict=True)
    ]


def reported_rows(stored: Iterable[StoredRow]) -> list[ReportedProblem]:
    """Group rows by problem; the same name with another link or ideal step is another problem."""
    by_problem: dict[tuple[str, float], list[StoredRow]] = {}
    for one in stored:
        by_problem.setdefault((one.label, one.row.ideal_s), []).append(one)
    labels = _distinct([label for label, _ in by_problem])
    return [
        ReportedProblem(
            label,
            tuple(one.row for one in group),
            name=group[0].row.problem,
            link_bytes_per_s=group[0].link_bytes_per_s,
        )
        for label, group in zip(labels, by_problem.values(), strict=True)
    ]


def _distinct(names: Sequence[str]) -> Iterator[str]:
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"


def read_rows(path: str) -> StoredRows:
    """Read rows that a shootout or a sweep wrote: CSV, JSON lines, or the store of a sweep; plain or gzip.

    Numbers may have passed through a table of floats, as in pandas, which writes 12 as 12.0 and no value as NaN.

    Raises
    ------
    InputError
        The file is something else, a column is missing, or a value is none; the message names the line.
    """
    try:
        text = read_input_bytes(path, limit_bytes=MAX_ROWS_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"is no text: {_HINT}", source=path) from None
    records = _json_records(text) if text.lstrip().startswith("{") else _csv_records(text)
    rows, failures = [], []
    try:
        for line, record in records:
            if _failed(record):
                failures.append(_failure(record))
            else:
                rows.append(_stored_row(record, line))
    except InputError as error:
        raise error.within(path) from None
    if not rows:
        raise InputError(f"holds no rows, and {len(failures)} failed jobs: {_HINT}", source=path)
    return StoredRows(tuple(rows), tuple(failures))


def _failed(record: dict[str, Any]) -> bool:
    return record.get("status") == _ERROR or record.keys() == {"key", _ERROR}


def _failure(record: dict[str, Any]) -> str:
    """Return which job failed and why, on one line."""
    which = [record.get(column) for column in ("source", "parameters", "hardware", "budget", "planner")]
    named = " ".join(str(part) for part in which if part) or f"job {record.get('key', '')}"
    return f"{named}: {record.get('reason') or record.get(_ERROR) or 'no reason is stated'}"


def _stored_row(record: dict[str, Any], line: int) -> StoredRow:
    hardware, link = record.get("hardware"), record.get("link_bytes_per_s")
    if _is_nothing(link):
        return StoredRow(_row(record, line), hardware if isinstance(hardware, str) else "")
    try:
        link_bytes_per_s = float(str(link))
    except ValueError:
        link_bytes_per_s = math.nan
    if not 0 < link_bytes_per_s <= _LARGEST:
        raise InputError(f"a bandwidth belongs here, not {str(link)[:40]!r}", place=f"line {line}, link_bytes_per_s")
    return StoredRow(_row(record, line), hardware if isinstance(hardware, str) else "", link_bytes_per_s)


def _json_records(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the line and the object of each line; of a sweep's store, the row inside."""
    for line, part in enumerate(text.split("\n"), start=1):
        if not part.strip():
            continue
        try:
            record = msgspec.json.decode(part)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise InputError(f"is no JSON object ({error}): {_HINT}", place=f"line {line}") from None
        if isinstance(record, dict) and record.keys() == {"key", "row"}:
            record = record["row"]
        if not isinstance(record, dict):
            raise InputError(f"is no JSON object: {_HINT}", place=f"line {line}")
        yield line, record


def _csv_records(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        missing = [column for column in required_columns() if column not in header]
        if missing or len(set(header)) < len(header):
            raise InputError(
                f"is no table of results, it lacks {', '.join(missing)}: {_HINT}"
                if missing
                else "names a column twice",
                place="line 1",
            )
        for values in filter(None, reader):
            if len(values) != len(header):
                raise InputError(f"has {len(values)} values for {len(header)} columns", place=f"line {reader.line_num}")
            yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise InputError(f"is no CSV ({error}): {_HINT}", place=f"line {reader.line_num}") from None


def required_columns() -> list[str]:
    """Return the columns that every row has a value in."""
    return [field.name for field in msgspec.structs.fields(Row) if field.required]


def _row(record: dict[str, Any], line: int) -> Row:
    """Return the row of a record of texts or JSON values; columns of other tables are left out."""
    values = {column: record[column] for column in COLUMNS if column in record}
    known = {column: value for column, value in values.items() if column not in _NUMBERS or not _is_nothing(value)}
    try:
        row = msgspec.convert(known, Row, strict=False)
    except (msgspec.ValidationError, OverflowError) as error:
        raise InputError(f"is no row of results: {error}", place=f"line {line}") from None
    for column in _NUMBERS:
        value = getattr(row, column)
        if value is not None:
            _check_number(column, value, line)
    unbounded = {column: None for column in _MAY_BE_INFINITE if math.isinf(getattr(row, column) or 0.0)}
    return msgspec.structs.replace(row, **unbounded)


def _is_nothing(value: object) -> bool:
    if isinstance(value, str):
        return not value.strip() or value.strip().lower() == "nan"
    return value is None


def _check_number(column: str, value: float, line: int) -> None:
    infinite = isinstance(value, float) and value == math.inf and column in _MAY_BE_INFINITE
    in_range = abs(value) <= _LARGEST and (value >= 0 or column in _MAY_BE_NEGATIVE)
    if not (infinite or in_range):
        raise InputError(f"a finite number from 0 belongs here, not {value}", place=f"line {line}, {column}")


def planners_of(problems: Iterable[ReportedProblem]) -> list[str]:
    """Return the names of all planners, in the order in which they first stand in the rows."""
    return list(dict.fromkeys(row.planner for row in itertools.chain(*(one.rows for one in problems))))
