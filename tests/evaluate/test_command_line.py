"""The command line from outside: what it prints where, and what it writes."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from instances import columns

import slackswap.planners
from slackswap.evaluate.results import COLUMNS
from slackswap.models.problem_file import read_problem

Run = Callable[..., CompletedProcess[str]]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_shootout_prints_a_table_for_each_problem(run: Run) -> None:
    ran = run("shootout", "two.json", "chain.json", "--planner", "keep,slackswap", "--budget", "0.8,100%")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.index("two layers") < ran.stdout.index("chain of 6")
    assert ran.stdout.count(" 80.0% ") == ran.stdout.count(" 100.0% ") == 2
    # In 24 MB nothing of two_layers fits: f1 has 30 MB there.
    assert (
        "keep at 24,000,000 bytes: no plan found that fits; operator 'f1' lacks 6,000,000 bytes; "
        "smallest feasible budget known: 30,000,000 bytes, keeping everything; "
        "proved: no plan that keeps everything fits in 29,999,999 bytes"
    ) in ran.stdout


def test_why_nothing_fits_is_one_line(run: Run) -> None:
    # Without swaps f2 has a0, which nothing rebuilds, a1 and a2 there; with swaps 2 MB do, what f1 reads and writes.
    ran = run("shootout", "chain.json", "--planner", "recompute-only,slackswap,swapadvisor", "--budget", "1MB")
    lines = [line for line in ran.stdout.splitlines() if "no plan found" in line]
    assert lines[0] == (
        "recompute-only at 1,000,000 bytes: no plan found that fits; operator 'f2' lacks 2,000,000 bytes; "
        "it is known to plan for 4,000,487 bytes; "
        "smallest feasible budget known: 4,000,000 bytes, recomputing 3 of 6 saved tensors; "
        "proved: no plan without swaps fits in 2,999,999 bytes"
    )
    for line in lines[1:]:
        assert "operator 'f1' lacks 1,000,000 bytes; " in line
        assert line.endswith(
            "smallest feasible budget known: 2,000,000 bytes, swapping everything; "
            "proved: no plan fits in 1,999,999 bytes"
        )
    assert len(lines) == 3


def test_the_gaps_of_a_shootout_can_be_left_out(run: Run) -> None:
    arguments = ["shootout", "chain.json", "--planner", "slackswap", "--budget", "0.8", "--csv", "-"]
    (certified,), (plain,) = (rows_of(run(*arguments, *option).stdout) for option in ([], ["--no-bound"]))
    assert float(certified["gap"]) >= 0
    assert float(certified["lower_bound_s"]) == pytest.approx(
        float(certified["step_s"]) / (1 + float(certified["gap"]))
    )
    assert (plain["lower_bound_s"], plain["gap"]) == ("", "")


def test_csv_on_stdout_is_nothing_but_csv(run: Run) -> None:
    ran = run("shootout", "two.json", "chain.json", "--budget", "0.8,1", "--planner", "keep,slackswap", "--csv", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert tuple(ran.stdout.splitlines()[0].split(",")) == COLUMNS
    rows = rows_of(ran.stdout)
    assert [(row["problem"], row["budget_fraction"], row["planner"]) for row in rows] == [
        (problem, fraction, planner)
        for problem in ("two layers", "chain of 6")
        for fraction in ("0.8", "1.0")
        for planner in ("keep", "slackswap")
    ]


def test_json_on_stdout_is_nothing_but_json_lines(run: Run) -> None:
    ran = run("shootout", "chain.json", "--budget", "0.8", "--planner", "keep,slackswap", "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [json.loads(line)["planner"] for line in ran.stdout.splitlines()] == ["keep", "slackswap"]


def test_files_hold_the_same_rows_as_the_table(run: Run) -> None:
    ran = run("shootout", "chain.json", "--budget", "0.8", "--json", "rows.jsonl", "--csv", "rows.csv.gz")
    assert ran.returncode == 0
    assert "chain of 6" in ran.stdout
    lines = [json.loads(line) for line in Path("rows.jsonl").read_text().splitlines()]
    rows = rows_of(gzip.decompress(Path("rows.csv.gz").read_bytes()).decode())
    assert (
        [line["planner"] for line in lines] == [row["planner"] for row in rows] == list(slackswap.planners.registry())
    )
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "rows.csv.gz", "rows.jsonl", "two.json"]


def test_progress_goes_to_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # rich takes stderr for a terminal then; stdout stays for results.
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run("shootout", "chain.json", "--budget", "0.8,0.5", "--json", "-")
    assert ran.returncode == 0
    assert ran.stderr != ""
    for line in ran.stdout.splitlines():
        json.loads(line)


def test_duplicate_planners_run_once(run: Run) -> None:
    ran = run("shootout", "chain.json", "--budget", "0.8", "--planner", "keep,slackswap,keep", "--csv", "-")
    assert [row["planner"] for row in rows_of(ran.stdout)] == ["keep", "slackswap"]


def test_hardware_sets_the_link_of_a_problem_file(run: Run) -> None:
    out = run("problem", "chain.json").stdout, run("problem", "chain.json", "--hardware", "v100").stdout
    assert ["1 GB/s out" in text for text in out] == [True, False]
    assert "12 GB/s out" in out[1]


def test_plan_then_score(run: Run) -> None:
    planned = run("plan", "chain.json", "--budget", "4MB", "--planner", "recompute-only", "-o", "plan.json")
    assert (planned.returncode, planned.stderr) == (0, "plan written to plan.json\n")
    file = json.loads(Path("plan.json").read_text())
    assert (file["format"], file["problem"], file["budget_bytes"]) == ("slackswap-plan/1", "chain of 6", 4_000_000)
    assert file["decisions"] == "KRRKKK"
    assert file["planner"]["name"] == "recompute-only"
    scored = run("score", "chain.json", "plan.json", "--json", "-")
    row = json.loads(scored.stdout)
    # Two rebuilds of 1 ms: 20 ms for 18.
    assert (row["planner"], row["status"], row["budget_bytes"]) == ("recompute-only", "feasible", 4_000_000)
    assert row["throughput"] == pytest.approx(0.9)
    assert "90.00%" in run("score", "chain.json", "plan.json").stdout


def test_score_runs_under_the_planners_policy_unless_told_otherwise(run: Run) -> None:
    assert run("plan", "gpt2-xl", "--budget", "0.5", "--planner", "barriers", "-o", "plan.json").returncode == 0
    own, barriers, default = (
        json.loads(run("score", "gpt2-xl", "plan.json", "--json", "-", *policy).stdout)["throughput"]
        for policy in ((), ("--policy", "barriers"), ("--policy", "default"))
    )
    assert own == barriers < 0.7 < 0.95 < default


def test_plan_prints_without_writing(run: Run) -> None:
    ran = run("plan", "chain.json", "--budget", "0.8")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "slackswap" in ran.stdout
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "two.json"]


@pytest.mark.parametrize("planner", ["keep", "slackswap", "checkpoint"])
def test_plan_where_none_fits(run: Run, planner: str) -> None:
    ran = run("plan", "two.json", "--budget", "29MB", "--planner", planner, "-o", "plan.json")
    assert ran.returncode == 1
    assert "operator 'f1' lacks 1,000,000 bytes; smallest feasible budget known: 30,000,000 bytes" in ran.stdout
    assert not Path("plan.json").exists()


def test_problem_writes_what_it_shows(run: Run) -> None:
    ran = run("problem", "gpt2-xl", "-o", "gpt.json.gz")
    assert (ran.returncode, ran.stderr) == (0, "problem written to gpt.json.gz\n")
    assert "operators" in ran.stdout
    again = run("problem", "gpt.json.gz", "-o", "again.json")
    assert again.stdout == ran.stdout
    assert columns(read_problem("again.json")) == columns(read_problem("gpt.json.gz"))


def test_problem_shows_every_source(run: Run) -> None:
    ran = run("problem", "two.json", "chain.json")
    assert ran.returncode == 0
    assert ran.stdout.index("two layers") < ran.stdout.index("chain of 6")


@pytest.mark.parametrize(
    ("what", "some"),
    [
        ("planners", ["slackswap", "checkpoint"]),
        ("workloads", ["gpt2-xl", "small-gpt"]),
        ("hardware", ["gh200", "450"]),
    ],
)
def test_lists(run: Run, what: str, some: list[str]) -> None:
    ran = run("list", what)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert all(name in ran.stdout for name in some)


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["shootout", "--help"], ["--version"]])
def test_help_is_a_result(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "slackswap" in ran.stdout
