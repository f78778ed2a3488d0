"""Results as files: readable by whoever reads CSV or JSON lines, with the columns of the format."""

from __future__ import annotations

import csv
import io
import json

import msgspec
import pytest
from instances import MB, chain, two_layers
from rich.console import Console

from slackswap.evaluate.results import COLUMNS, Row, gigabytes, shown_gap, table, to_csv, to_json_lines
from slackswap.evaluate.shootout import shootout
from slackswap.planners import find_planners

# The format's own list.
HEADER = (
    "problem,budget_bytes,budget_fraction,planner,status,step_s,ideal_s,throughput,recompute_s,forward_stall_s,"
    "backward_stall_s,d2h_bytes,h2d_bytes,peak_bytes,keep_bytes,swap_bytes,recompute_bytes,planning_s,evaluations,"
    "lower_bound_s,gap,seed"
)
FORMAT_COLUMNS = next(csv.reader([HEADER]))
WHERE_A_PLAN_IS = FORMAT_COLUMNS[5:6] + FORMAT_COLUMNS[7:17]


def rows() -> list[Row]:
    """Three planners at 80% of chain(6), without a bound: `keep` does not fit, the others do."""
    planners = find_planners("keep,slackswap,recompute-only")
    return [result.row for cell in shootout([chain(6)], ["80%"], planners, bound=None) for result in cell]


def row(**changes: object) -> Row:
    return msgspec.structs.replace(rows()[1], **changes)


def test_columns_are_those_of_the_format() -> None:
    assert list(COLUMNS) == FORMAT_COLUMNS
    assert to_csv([]) == HEADER + "\n"


def test_csv_reads_back() -> None:
    expected = rows()
    read = list(csv.DictReader(io.StringIO(to_csv(expected))))
    assert [line["planner"] for line in read] == ["keep", "slackswap", "recompute-only"]
    for line, wanted in zip(read, expected, strict=True):
        assert list(line) == FORMAT_COLUMNS
        for column in FORMAT_COLUMNS:
            value = getattr(wanted, column)
            # Floats with all their digits, whole numbers without a point: 4.8 MB is 4800000.
            assert line[column] == ("" if value is None else str(value))
            if isinstance(value, float):
                assert float(line[column]) == value
            elif isinstance(value, int):
                assert int(line[column]) == value


def test_empty_where_there_is_no_plan_or_no_bound() -> None:
    keep, slackswap, _ = csv.DictReader(io.StringIO(to_csv(rows())))
    assert keep["status"] == "infeasible"
    assert [keep[column] for column in WHERE_A_PLAN_IS] == [""] * len(WHERE_A_PLAN_IS)
    assert keep["ideal_s"] == slackswap["ideal_s"] != ""
    assert "" not in [slackswap[column] for column in WHERE_A_PLAN_IS]
    # Nobody certified a bound, and no planner is randomized.
    assert [slackswap[column] for column in ("lower_bound_s", "gap", "seed")] == ["", "", ""]


def test_json_lines_read_back() -> None:
    expected = rows()
    lines = to_json_lines(expected).splitlines()
    assert len(lines) == 3
    for line, wanted in zip(lines, expected, strict=True):
        read = json.loads(line)
        assert list(read) == FORMAT_COLUMNS
        assert read == {column: getattr(wanted, column) for column in FORMAT_COLUMNS}


def test_no_rows() -> None:
    assert to_json_lines([]) == ""


@pytest.mark.parametrize("name", ['a, "b"', "two\nlines", "h\u00e9llo \u6a21\u578b \U0001f680", "[/]", "", " ", "=1+1"])
def test_any_name_survives(name: str) -> None:
    (read,) = csv.DictReader(io.StringIO(to_csv([row(problem=name)]), newline=""))
    assert read["problem"] == name
    (line,) = to_json_lines([row(problem=name)]).splitlines()
    assert json.loads(line)["problem"] == name


def text_of(rows: list[Row]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_table_shows_every_row_once() -> None:
    text = text_of(rows())
    assert text.count("80.0%") == 1
    for planner in ("keep", "slackswap", "recompute-only"):
        assert text.count(f" {planner} ") == 1
    assert text.count("infeasible") == 1


@pytest.mark.parametrize("name", ["[red]x[/red]", "[/]", "[/foo] bar", "[link=x", "a[b]", "\\[x]"])
def test_table_shows_brackets_as_they_are(name: str) -> None:
    assert name in text_of([row(problem=name)])
    assert name in text_of([row(planner=name)])


def test_table_shows_gaps_in_percent() -> None:
    assert [shown_gap(gap) for gap in (None, 0.0, 0.00032, 0.1111)] == ["-", "0.00%", "0.03%", "11.11%"]
    text = text_of([row(gap=0.0123)])
    assert text.index("gap") < text.index("step ms")
    assert " 1.23% " in text


def test_table_of_an_instant_step() -> None:
    # An ideal step of 0 s: shares of it are not numbers.
    assert " - " in text_of([row(ideal_s=0.0, step_s=0.0, throughput=1.0)])


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [(0, "0.0000"), (4_800_000, "0.0048"), (999_999_999, "1.0000"), (10**9, "1.00"), (11_571_314_688, "11.57")],
)
def test_gigabytes(n_bytes: int, text: str) -> None:
    assert gigabytes(n_bytes) == text


def test_numbers_are_python_numbers() -> None:
    # numpy's would print as np.float64(1.0), and JSON would refuse them.
    cells = shootout([two_layers()], [f"{30 * MB}B"], find_planners("all"))
    for result in next(cells):
        for column in COLUMNS:
            assert type(getattr(result.row, column)) in (str, int, float, type(None)), column
