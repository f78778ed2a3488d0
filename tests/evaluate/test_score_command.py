"""`slackswap score` from outside: --why, --timeline, and that the plain score is as it was."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def planned(run: Run) -> Run:
    """`run`, with plan.json for chain.json at 80% of its peak, made by a planner that swaps under the policy barriers."""
    assert run("plan", "chain.json", "--planner", "vdnn", "--budget", "0.8", "-o", "plan.json").returncode == 0
    return run


def test_the_plain_score_says_no_more_than_before(planned: Run) -> None:
    ran = planned("score", "chain.json", "plan.json", "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "why" not in json.loads(ran.stdout)
    assert "where the time goes" not in planned("score", "chain.json", "plan.json").stdout


def test_why_is_shown_in_tables(planned: Run) -> None:
    ran = planned("score", "chain.json", "plan.json", "--why")
    assert (ran.returncode, ran.stderr) == (0, "")
    for heading in ("where the time goes", "stalls, longest first", "link", "memory at the peak", "largest of"):
        assert heading in ran.stdout
    assert "start reload of 'a" in ran.stdout


def test_why_is_one_json_object_with_the_row(planned: Run) -> None:
    ran = planned("score", "chain.json", "plan.json", "--why", "--json", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    (line,) = ran.stdout.splitlines()
    told = json.loads(line)
    plain = json.loads(planned("score", "chain.json", "plan.json", "--json", "-").stdout)
    assert {key: value for key, value in told.items() if key != "why"} == plain
    why = told["why"]
    assert (why["policy"], why["budget_bytes"], why["fits"]) == ("barriers", plain["budget_bytes"], True)
    stall_s = sum(stall["seconds"] for stall in why["stalls"])
    assert stall_s == pytest.approx(plain["forward_stall_s"] + plain["backward_stall_s"])
    assert sum(why["peak"]["by_kind"].values()) == plain["peak_bytes"]
    # Tables and JSON at once: the JSON goes to its file.
    both = planned("score", "chain.json", "plan.json", "--why", "--json", "why.json")
    assert "where the time goes" in both.stdout
    assert json.loads(Path("why.json").read_text()) == told


def test_why_is_asked_under_the_policy_that_was_scored(planned: Run) -> None:
    for policy in ("default", "barriers", "on-demand"):
        ran = planned("score", "chain.json", "plan.json", "--policy", policy, "--why", "--json", "-")
        told = json.loads(ran.stdout)
        assert told["why"]["policy"] == policy
        assert told["why"]["step_s"] == told["step_s"]


def test_a_plan_that_does_not_fit_says_why(run: Run) -> None:
    run("plan", "two.json", "--planner", "keep", "--budget", "1", "-o", "plan.json")
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps({**plan, "budget_bytes": 25_000_000}))
    ran = run("score", "two.json", "plan.json", "--why")
    assert ran.returncode == run("score", "two.json", "plan.json").returncode == 0
    assert "does not fit: 'f1' lacks 5,000,000 bytes" in ran.stdout
    assert "  10,000,000 in use + 20,000,000 that it allocates" in ran.stdout
    told = json.loads(run("score", "two.json", "plan.json", "--why", "--json", "-").stdout)
    assert (told["status"], told["why"]["failure"]["missing_bytes"]) == ("infeasible", 5_000_000)


@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_a_timeline_for_perfetto(planned: Run, name: str) -> None:
    ran = planned("score", "chain.json", "plan.json", "--timeline", name)
    assert (ran.returncode, ran.stderr) == (0, f"timeline written to {name}\n")
    content = Path(name).read_bytes()
    whole = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)
    assert whole["otherData"]["policy"] == "barriers"
    assert {event["name"] for event in whole["traceEvents"] if event["ph"] == "X"} >= {"f0", "b0"}


@pytest.mark.parametrize(("name", "start"), [("t.png", b"\x89PNG"), ("T.SVG", b"<?xml")])
def test_a_timeline_to_look_at(planned: Run, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    ran = planned("score", "chain.json", "plan.json", "--timeline", name, "--why", "--json", "-")
    assert ran.returncode == 0
    json.loads(ran.stdout)
    assert Path(name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--timeline", "t.pdf"], "--timeline: ends in .json, .json.gz, .png, .svg: 't.pdf' does not"),
        (["--timeline", "-"], "--timeline: ends in .json"),
        (["--timeline", "no/where.json"], "no/where.json: cannot be written"),
        (["--timeline", "t.json", "--json", "t.json"], "two outputs would overwrite each other"),
        (["--why", "--policy", "lru"], "--policy: 'lru' is not a runtime policy"),
    ],
)
def test_bad_input_is_one_line(planned: Run, arguments: list[str], message: str) -> None:
    before = sorted(path.name for path in Path().iterdir())
    ran = planned("score", "chain.json", "plan.json", *arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    assert message in line
    assert sorted(path.name for path in Path().iterdir()) == before


def test_any_budget_that_a_plan_file_holds(planned: Run) -> None:
    plan = json.loads(Path("plan.json").read_text())
    Path("plan.json").write_text(json.dumps({**plan, "budget_bytes": 10**60}))
    ran = planned("score", "chain.json", "plan.json", "--why", "--timeline", "t.json")
    assert ran.returncode == 0
    assert json.loads(Path("t.json").read_text())["otherData"]["budget_bytes"] == "unlimited"
