"""Names that hold markup, and output files that are none: shown as they are, left as they are."""

from __future__ import annotations

import csv
import io
import json
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from instances import chain, two_layers

from slackswap.models.problem_file import write_problem

Run = Callable[..., CompletedProcess[str]]


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


NAMES = [
    "[red]x[/red]",
    "[/]",
    "[/foo] bar",
    "[link=x",
    "a[b]c",
    "h\u00e9llo \u6a21\u578b \U0001f680",
    "\\[x]",
    "100%{x}",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_as_they_are(run: Run, name: str) -> None:
    problem = replace(two_layers(), name=name, operator_names=(name,) * 4, tensor_names=(name,) * 2)
    write_problem(problem, "named.json")
    for arguments in (["problem"], ["shootout", "--budget", "0.5,1"], ["plan", "--budget", "1"]):
        ran = run(arguments[0], "named.json", *arguments[1:])
        assert (ran.returncode, ran.stderr) == (0, "")
        assert name in ran.stdout
    assert f"operator '{name}' lacks" in run("plan", "named.json", "--budget", "0.5").stdout


@pytest.mark.parametrize("name", NAMES)
def test_names_do_not_disturb_the_progress(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    write_problem(replace(two_layers(), name=name), "named.json")
    assert run("shootout", "named.json", "--budget", "1", "--csv", "-").returncode == 0


@pytest.mark.parametrize("name", NAMES)
def test_planner_names_in_plan_files_are_shown_as_they_are(run: Run, name: str) -> None:
    run("plan", "chain.json", "--budget", "0.8", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps({**plan, "planner": {"name": name}}))
    ran = run("score", "chain.json", "plan.json")
    assert ran.returncode == 0
    assert name in ran.stdout


def test_problems_of_one_name_have_a_table_each(run: Run) -> None:
    write_problem(replace(chain(3), name="same"), "a.json")
    write_problem(replace(two_layers(), name="same"), "b.json")
    ran = run("shootout", "a.json", "b.json", "--planner", "keep", "--budget", "1")
    assert ran.stdout.count("same") == 2
    # chain(3) needs 3 MB, two_layers 30.
    assert ran.stdout.index("0.0030 GB") < ran.stdout.index("0.0300 GB")


@pytest.mark.parametrize(
    "arguments",
    [
        ["shootout", "chain.json", "--budget", "1", "--csv"],
        ["shootout", "chain.json", "--budget", "1", "--json"],
        ["plan", "chain.json", "--budget", "1", "-o"],
        ["problem", "chain.json", "-o"],
    ],
    ids=lambda arguments: f"{arguments[0]} {arguments[-1]}",
)
def test_pipes_and_devices_are_not_replaced(run: Run, arguments: list[str]) -> None:
    # `--csv /dev/null` run as root must not turn /dev/null into a file. A pipe stands for the device here.
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDWR | os.O_NONBLOCK)
    try:
        run(*arguments, "pipe")
        assert stat.S_ISFIFO(Path("pipe").stat().st_mode)
    finally:
        os.close(reader)


def test_links_are_followed(run: Run) -> None:
    Path("kept").mkdir()
    Path("kept/rows.csv").write_text("old")
    Path("rows.csv").symlink_to("kept/rows.csv")
    run("shootout", "chain.json", "--budget", "1", "--csv", "rows.csv")
    assert Path("rows.csv").is_symlink()
    assert rows_of(Path("kept/rows.csv").read_text())
