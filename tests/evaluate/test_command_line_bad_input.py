"""Bad input on the command line: exit code 2, one line on stderr, never a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from instances import chain

from slackswap.models.problem_file import write_problem

Run = Callable[..., CompletedProcess[str]]


def refused(ran: CompletedProcess[str]) -> str:
    """Check that bad input ends in one line on stderr and nothing on stdout; return the line."""
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.startswith("slackswap: error: ")
    assert ran.stderr.count("\n") == 1
    assert ran.stderr.endswith("\n")
    return ran.stderr


def edited(path: str, **changes: object) -> None:
    content = json.loads(Path(path).read_text())
    Path(path).write_text(json.dumps({**content, **changes}))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["shootout", "missing.json"], "missing.json: is no file, and no workload"),
        (["problem", "."], ".: cannot be read: is a directory"),
        (["shootout", "chain.json", "--planner", "fastest"], "--planner: 'fastest' is not a planner"),
        (["shootout", "chain.json", "--planner", ","], "--planner: names no planner"),
        (["shootout", "chain.json", "--budget", "1e9"], "--budget: '1e9' is not a budget"),
        (["shootout", "chain.json", "--budget", "-5"], "--budget: '-5' is not a budget"),
        (["shootout", "chain.json", "--budget", "50%%"], "--budget: '50%%' is not a budget"),
        (["shootout", "chain.json", "--budget", "0.5,,x"], "--budget: 'x' is not a budget"),
        (["shootout", "chain.json", "--budget", ""], "--budget: names no budget"),
        (["shootout", "chain.json", "--budget", "8000000000"], "for bytes add a unit, as in 8000000000B"),
        (["shootout", "chain.json", "--hardware", "a1000"], "a1000: no hardware has this name: use a100-pcie4"),
        (["shootout", "chain.json", "--hardware", "missing.toml"], "missing.toml: cannot be read"),
        (["shootout", "chain.json", "--hardware", "chain.json"], "chain.json: is not TOML"),
        (["plan", "chain.json", "--budget", "0.8,0.5"], "`plan` takes one planner and one budget"),
        (["plan", "chain.json", "--budget", "0.8", "--planner", "all"], "`plan` takes one planner and one budget"),
        (["problem", "chain.json", "two.json", "-o", "out.json"], "-o: takes one SOURCE"),
        (["score", "chain.json", "missing.json"], "missing.json: cannot be read: no such file or directory"),
        (["score", "chain.json", "two.json"], "two.json: $.format: is 'slackswap-plan/1' in files of this version"),
        (["score", "chain.json", "plan.json", "--policy", "lru"], "--policy: 'lru' is not a runtime policy"),
        (["score", "two.json", "plan.json"], "plan.json: $.problem_sha256: the plan was made for another problem"),
        (["score", "chain.json", "plan.json", "--json", "no/where.json"], "no/where.json: cannot be written"),
        (["shootout", "chain.json", "--budget", "1", "--csv", "chain.json/x"], "chain.json/x: cannot be written"),
        (["shootout", "chain.json", "--budget", "1", "--json", "."], ".: cannot be written"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    assert run("plan", "chain.json", "--budget", "0.8", "-o", "plan.json").returncode == 0
    assert message in refused(run(*arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["shootout", "--sedd", "1"],
        ["shootout", "--seed", "-1"],
        ["shootout", "--time-limit", "0"],
        ["shootout", "--time-limit", "nan"],
        ["plan", "chain.json"],
        ["plan"],
        ["list", "secrets"],
        ["frobnicate"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage(run: Run, arguments: list[str]) -> None:
    ran = run(*arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Usage: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tensors": 3}, "chain.json: $.tensors: expected `array`, got `int`"),
        ({"operators": []}, "chain.json: $.operators: a problem has at least one operator"),
        ({"extra": 1}, "chain.json: $: object contains unknown field `extra`"),
        ({"format": "slackswap-problem/9"}, "chain.json: $.format: is 'slackswap-problem/1' in files of this version"),
        (
            {"link": {"d2h_bytes_per_s": 0, "h2d_bytes_per_s": 1, "duplex_factor": 1, "latency_s": 0}},
            "chain.json: $.link.d2h_bytes_per_s: a bandwidth is a finite number above 0",
        ),
    ],
)
def test_a_problem_that_breaks_a_rule(run: Run, changes: dict[str, object], message: str) -> None:
    edited("chain.json", **changes)
    assert message in refused(run("shootout", "chain.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decisions": "KKK"}, "has 6 decisions, this one has 3"),
        ({"decisions": "KKKKKX"}, "decisions[5]: 'X' is not a decision: use K, S or R"),
        ({"decisions": "RKKKKK"}, "tensor 'a0' has no rebuild"),
        ({"decisions": None}, "a plan has either decisions or a schedule"),
        ({"budget_bytes": -1}, "$.budget_bytes: a budget is a number of bytes from 0, not -1"),
        ({"budget_bytes": 1.5}, "$.budget_bytes: expected `int`, got `float`"),
        ({"budget_bytes": 10**400}, "$.budget_bytes: "),
        ({"problem_sha256": "0"}, "the plan was made for another problem ('chain of 6'), or for another version"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_plan_that_breaks_a_rule(run: Run, changes: dict[str, object], message: str) -> None:
    run("plan", "chain.json", "--budget", "0.8", "-o", "plan.json")
    edited("plan.json", **changes)
    line = refused(run("score", "chain.json", "plan.json"))
    assert line.startswith("slackswap: error: plan.json: ")
    assert message in line


def test_a_plan_of_an_unknown_planner_is_scored(run: Run) -> None:
    # Plans outlive the package whose planner made them.
    run("plan", "chain.json", "--budget", "0.8", "-o", "plan.json")
    edited("plan.json", planner={"name": "gone"})
    assert json.loads(run("score", "chain.json", "plan.json", "--json", "-").stdout)["planner"] == "gone"


@pytest.mark.parametrize("cut", [-1, -20, 30, 11])
def test_torn_gzip(run: Run, cut: int) -> None:
    write_problem(chain(6), "whole.json.gz")
    Path("torn.json.gz").write_bytes(Path("whole.json.gz").read_bytes()[:cut])
    assert "torn.json.gz: is torn gzip" in refused(run("problem", "torn.json.gz"))


def test_flipped_bits_never_make_a_traceback(run: Run) -> None:
    rng = np.random.default_rng(0)
    for path in ("chain.json", "chain.json.gz"):
        write_problem(chain(6), path)
        whole = bytearray(Path(path).read_bytes())
        for _ in range(150):
            content = whole.copy()
            content[rng.integers(len(content))] ^= 1 << int(rng.integers(8))
            Path("flipped").write_bytes(content)
            ran = run("problem", "flipped")
            if ran.returncode != 0:
                refused(ran)


def test_pipes_and_devices_are_not_read(run: Run) -> None:
    os.mkfifo("pipe")
    assert "pipe: is a pipe or a device" in refused(run("problem", "pipe"))
    assert "/dev/zero: is a pipe or a device" in refused(run("problem", "/dev/zero"))
    run("plan", "chain.json", "--budget", "0.8", "-o", "plan.json")
    assert "pipe: is a pipe or a device" in refused(run("score", "chain.json", "pipe"))
