"""`slackswap report`: one page from a run, or from the rows of an earlier one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from interrupted import Interrupted

pytest.importorskip("plotly", reason="reports need the plot extra")

import slackswap.planners
from slackswap.evaluate.command_line import cli
from slackswap.evaluate.report_command import report
from slackswap.planners.keep import Keep

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.commands, "report", report)


def test_a_run_makes_a_page(run: Run) -> None:
    ran = run(
        "report", "chain.json", "two.json", "--planner", "keep,slackswap", "--budget", "100%,80%", "-o", "page.html"
    )
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("page written to page.html: ")
    page = Path("page.html").read_text()
    for text in (
        "<!DOCTYPE html>",
        "slackswap report chain.json two.json --planner keep,slackswap --budget 100%,80% -o page.html",
        "chain of 6",
        "two layers",
        "Timeline of one iteration, chain of 6, 80.0% (0.0048 GB), SlackSwap",
        "operator &#x27;f1&#x27; lacks 6,000,000 bytes",
        "a100-pcie4: NVIDIA A100",
    ):
        assert text in page
    # Of three budgets where anything fits, the fastest plan of each.
    assert page.count('data-kind="timeline"') == 3


def test_planners_are_drawn_by_name_or_not_at_all(run: Run) -> None:
    drawn = {}
    for timeline in ("none", "vdnn", "fastest,vdnn"):
        options = ("--planner", "slackswap,vdnn", "--budget", "80%", "--timeline", timeline, "-o", "page.html")
        assert run("report", "chain.json", *options).returncode == 0
        drawn[timeline] = Path("page.html").read_text().count('data-kind="timeline"')
    assert drawn == {"none": 0, "vdnn": 1, "fastest,vdnn": 2}
    ran = run("report", "chain.json", "--planner", "keep", "--timeline", "vdnn", "-o", "other.html")
    assert ran.returncode == 2
    assert ran.stderr == "slackswap: error: --timeline: 'vdnn' did not run: use fastest, none, keep\n"
    assert not Path("other.html").exists()


@pytest.mark.parametrize("file", ["rows.csv", "rows.jsonl", "rows.csv.gz"])
def test_rows_of_a_shootout_make_a_page(run: Run, file: str) -> None:
    kind = "--json" if file == "rows.jsonl" else "--csv"
    options = ("--planner", "keep,slackswap", "--budget", "80%,50%")
    assert run("shootout", "chain.json", "two.json", *options, kind, file).returncode == 0
    ran = run("report", "--rows", file, "-o", "page.html")
    assert (ran.returncode, ran.stdout) == (0, "")
    page = Path("page.html").read_text()
    assert "This page was made from rows alone" in page
    assert f"8 of {file}, SHA-256 " in page
    assert 'data-kind="timeline"' not in page
    assert page.count('data-kind="throughput"') == 2


def test_rows_of_a_sweep_make_a_page(run: Run, tmp_path: Path) -> None:
    from slackswap.evaluate.sweeps import budget_sweep, run_cases

    store = tmp_path / "sweep.jsonl"
    run_cases(budget_sweep(["vgg-16"], ["80%", "70%"], ["keep", "slackswap"]), jobs=1, store=store, progress=False)
    assert run("report", "--rows", str(store), "-o", "page.html").returncode == 0
    assert "4 of sweep.jsonl, SHA-256 " in Path("page.html").read_text()


def test_the_page_goes_to_stdout(run: Run) -> None:
    run("shootout", "chain.json", "--planner", "keep", "--csv", "rows.csv")
    ran = run("report", "--rows", "rows.csv", "-o", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("<!DOCTYPE html>")
    assert ran.stdout.endswith("</html>\n")


def test_a_fixed_date_gives_the_same_bytes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1000000000")
    run("shootout", "chain.json", "--planner", "keep,slackswap", "--csv", "rows.csv")
    pages = []
    for _ in range(2):
        assert run("report", "--rows", "rows.csv", "-o", "page.html").returncode == 0
        pages.append(Path("page.html").read_bytes())
    assert pages[0] == pages[1]
    assert b"2001-09-09 01:46 UTC" in pages[0]


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["chain.json"], "Missing option '-o'"),
        (["--rows", "none.csv", "-o", "page.html"], "error: none.csv: cannot be read: no such file or directory\n"),
        (["--rows", "two.json", "-o", "page.html"], "error: two.json: line 1: is no"),
        (
            ["chain.json", "--rows", "x.csv", "-o", "page.html"],
            "--rows: shows rows that are there: it takes no SOURCE\n",
        ),
        (["--rows", "x.csv", "--seed", "1", "-o", "page.html"], "it takes no --seed\n"),
        (["--rows", "x.csv", "--no-bound", "-o", "page.html"], "it takes no --bound\n"),
        (["--rows", "x.csv", "--time-limit", "1", "-o", "page.html"], "it takes no --time-limit\n"),
        (["chain.json", "-o", "no/page.html"], "error: no/page.html: cannot be written: no such file or directory\n"),
        (["chain.json", "--budget", "much", "-o", "page.html"], "error: --budget: 'much' is not a budget"),
        (["chain.json", "--planner", "none", "-o", "page.html"], "error: --planner: 'none' is not a planner"),
        (["chain.json", "--hardware", "abacus", "-o", "page.html"], "abacus: no hardware has this name"),
        (["chain.json", "--time-limit", "0", "-o", "page.html"], "not a number of seconds above 0"),
    ],
)
def test_bad_input_is_one_line_and_no_page(run: Run, arguments: list[str], rule: str) -> None:
    ran = run("report", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert rule in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not Path("page.html").exists()


def test_without_plotly_nothing_is_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.graph_objects", raising=False)
    monkeypatch.setattr(slackswap.planners, "find_planners", lambda _: pytest.fail("a run began"))
    ran = run("report", "chain.json", "-o", "page.html")
    assert ran.returncode == 2
    assert ran.stderr == (
        'slackswap: error: report: plotly is not installed: install the plot extra, pip install "slackswap[plot]"\n'
    )


def test_ctrl_c_writes_what_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Keep(), Interrupted(), replace(Keep(), name="after")))
    ran = run("report", "chain.json", "--budget", "1,0.5,0.2", "-o", "page.html")
    assert ran.returncode == 130
    # All three at 6 MB, then `keep` at 3 MB, where the next one was interrupted.
    assert "Interrupted: 4 of 9 runs are finished." in Path("page.html").read_text()


def test_ctrl_c_before_anything_is_finished_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Interrupted(),))
    assert run("report", "chain.json", "--budget", "0.5", "-o", "page.html").returncode == 130
    assert not Path("page.html").exists()
