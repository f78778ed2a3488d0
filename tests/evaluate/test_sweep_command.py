"""The command `slackswap sweep`: the table, the store beside it, errors as rows, and an interruption as a process has it."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest

import slackswap.planners
from slackswap.evaluate import sweep_engines
from slackswap.evaluate.command_line import cli
from slackswap.evaluate.results import COLUMNS as RESULT_COLUMNS
from slackswap.evaluate.sweep_command import sweep
from slackswap.evaluate.sweep_engines import Serial
from slackswap.evaluate.sweep_results import COLUMNS, PLACE
from slackswap.evaluate.sweep_store import SweepStore
from slackswap.hardware.input_error import InputError
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners import Outcome, Status, Supports
from slackswap.planners.keep import Keep

Run = Callable[..., CompletedProcess[str]]
PATIENCE_S = 120
GRID = 'sources = ["two.json", "chain.json"]\nbudgets = ["100%", "50%"]\nplanners = ["slackswap", "ga-random"]\nseeds = [0, 1]\n'
SWEEP = (
    "from slackswap.evaluate.command_line import cli, main; from slackswap.evaluate.sweep_command import sweep;"
    " 'sweep' in cli.commands or cli.add_command(sweep); main()"
)


@pytest.fixture(autouse=True)
def grid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Path:
    monkeypatch.setitem(cli.commands, "sweep", sweep)
    (folder / "grid.toml").write_text(GRID)
    return folder / "grid.toml"


def table(name: str = "results.csv") -> list[dict[str, str]]:
    return list(csv.DictReader(Path(name).read_text().splitlines()))


def stored(name: str = "results.csv") -> list[bytes]:
    return Path(f"{name}.jsonl").read_bytes().splitlines()


def without_times(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    return [{key: value for key, value in row.items() if key != "planning_s"} for row in rows]


def test_a_row_says_where_its_job_stands_and_what_came_of_it(run: Run) -> None:
    done = run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    # 2 problems x 2 budgets x (1 job of slackswap + 2 seeds of the genetic search)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "table written to results.csv: 12 jobs finished\n"
    rows = table()
    assert tuple(rows[0]) == COLUMNS == (*PLACE, *RESULT_COLUMNS, "reason")
    assert len(rows) == len(stored()) == len({row["job"] for row in rows}) == 12
    assert [row["source"] for row in rows] == ["two.json"] * 6 + ["chain.json"] * 6
    assert [(row["budget"], row["planner"], row["seed"]) for row in rows[3:6]] == [
        ("50%", "slackswap", ""),
        ("50%", "ga-random", "0"),
        ("50%", "ga-random", "1"),
    ]
    # At the peak nothing is freed: the ideal step of 90 ms. Half of the peak of 30 MB is 15 MB, less than a1 and its input.
    assert (rows[0]["problem"], rows[0]["budget_bytes"], rows[0]["step_s"]) == (
        "two layers",
        "30000000",
        rows[0]["ideal_s"],
    )
    assert (rows[3]["budget_bytes"], rows[3]["status"], rows[3]["step_s"]) == ("15000000", "infeasible", "")


def test_two_processes_write_the_same_table(run: Run) -> None:
    run("sweep", "grid.toml", "-o", "one.csv", "--engine", "serial")
    done = run("sweep", "grid.toml", "-o", "two.csv", "--jobs", "2")
    assert done.returncode == 0
    assert without_times(table("one.csv")) == without_times(table("two.csv"))


def test_a_finished_sweep_is_read_and_a_larger_grid_goes_on(run: Run, grid: Path) -> None:
    run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    before = table()
    run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    assert table() == before  # planning times too are those of the first run
    grid.write_text(GRID.replace("[0, 1]", "[0, 1, 2]"))
    run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    assert len(table()) == len(stored()) == 16
    assert [row for row in table() if row["seed"] != "2"] == before


@dataclass(frozen=True)
class Breaks:
    """A planner that fails below the peak, until it is mended."""

    how: type[BaseException] = ZeroDivisionError
    name: str = "breaks"
    description: str = "breaks"
    policy: str = "default"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del rng, time_limit_s
        if budget_bytes < 6_000_000:
            raise self.how("of the\nplanner")
        return Outcome(Status.FEASIBLE, Plan.keep_everything(problem))


def test_a_job_that_fails_is_a_row_and_is_run_again_on_demand(
    run: Run, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.write_text('sources = "chain.json"\nbudgets = ["100%", "50%", "40%"]\nplanners = "breaks"\n')
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Breaks(),))
    command = ("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    done = run(*command)
    assert done.returncode == 1
    assert done.stderr == (
        "table written to results.csv: 3 jobs finished, 2 of them failed\nfailed: ZeroDivisionError: of the planner\n"
    )
    fits, fails, _ = table()
    assert (fits["status"], fits["reason"]) == ("feasible", "")
    assert (fails["status"], fails["reason"], fails["step_s"]) == ("error", "ZeroDivisionError: of the planner", "")
    assert (fails["budget"], fails["planner"], fails["source"]) == ("50%", "breaks", "chain.json")
    # An error is a result: the next run keeps it, unless it is told not to. The planner is mended meanwhile.
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Breaks(how=KeyboardInterrupt),))
    assert (run(*command).returncode, len(stored())) == (1, 3)
    mended = Keep()
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (type("Mended", (Breaks,), {"plan": mended.plan})(),))
    done = run(*command, "--retry-errors")
    assert (done.returncode, done.stderr) == (0, "table written to results.csv: 3 jobs finished\n")
    assert [row["status"] for row in table()] == ["feasible", "infeasible", "infeasible"]
    assert len(stored()) == 5  # the later line of a job counts
    assert run(*command).returncode == 0


def test_an_interruption_keeps_what_is_finished_and_says_what_remains(
    run: Run, grid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid.write_text('sources = "chain.json"\nbudgets = ["100%", "50%", "40%"]\nplanners = "breaks"\n')
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Breaks(how=KeyboardInterrupt),))
    done = run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial")
    assert done.returncode == 130
    assert done.stderr == (
        "table written to results.csv: 1 jobs finished, 2 remain\n"
        "what is finished is kept in results.csv.jsonl: run the same command to go on\nslackswap: interrupted\n"
    )
    assert [row["budget"] for row in table()] == ["100%"]
    assert len(stored()) == 1


class Lost(Serial):
    """An engine whose cluster is gone after five jobs."""

    def run(self, function: Any, tasks: Any) -> Any:
        yield from super().run(function, tasks[:5])
        raise InputError("the Dask scheduler was lost", source="--engine")


def test_a_lost_cluster_too_keeps_what_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sweep_engines, "find_engine", lambda *_: Lost())
        done = run("sweep", "grid.toml", "-o", "results.csv")
    assert done.returncode == 2
    assert done.stderr == (
        "table written to results.csv: 5 jobs finished, 7 remain\n"
        "what is finished is kept in results.csv.jsonl: run the same command to go on\n"
        "slackswap: error: --engine: the Dask scheduler was lost\n"
    )
    kept = table()
    assert len(kept) == len(stored()) == 5
    assert run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial").returncode == 0
    assert table()[:5] == kept
    assert len(table()) == len(stored()) == 12


@pytest.mark.parametrize(
    "engine",
    [
        "local",
        pytest.param(
            "dask",
            marks=pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs the cluster extra"),
        ),
    ],
)
def test_ctrl_c_in_a_terminal_ends_every_process_without_a_traceback(grid: Path, engine: str) -> None:
    # chain.json takes no time; after it come 60 searches of gpt2-xl at 0.6 s each.
    grid.write_text(
        'sources = ["chain.json", "gpt2-xl"]\nbudgets = ["60%", "50%"]\nplanners = "ga-random"\n'
        f"time_limits_s = 0.6\nseeds = {list(range(30))}\n"
    )
    command = [
        sys.executable,
        "-c",
        SWEEP,
        "sweep",
        "grid.toml",
        "-o",
        "results.csv",
        "--engine",
        engine,
        "--jobs",
        "2",
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        wait_for(lambda: process.poll() is not None or (Path("results.csv.jsonl").exists() and len(stored()) >= 61))
        began_s = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        took_s = time.monotonic() - began_s
        wait_for(lambda: not running(process.pid))  # joblib's own bookkeeper ends a moment after the others
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, said
    assert said.splitlines()[-1] == "slackswap: interrupted"
    assert len(said.splitlines()) == 3, said
    assert len(table()) == len(stored())
    assert took_s < 15


def wait_for(happened: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def running(group: int) -> list[str]:
    """Processes of a group that have not ended, where the system lists them in /proc."""
    stats = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            stats.append(path.read_text())
    facts = [(stat, stat.rpartition(")")[2].split()) for stat in stats]
    return [stat for stat, (state, _, its_group, *_) in facts if its_group == str(group) and state != "Z"]


# Refusals


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "-"), "--output: a sweep writes to a file"),
        (("-o", "gone/results.csv"), "gone/results.csv: cannot be written: no such file or directory"),
        (("-o", "grid.toml"), "grid.toml: would overwrite the grid: name another file"),
        (("-o", "results.csv", "--engine", "slurm"), "--engine: 'slurm' is not an engine"),
        (("-o", "results.csv", "--engine", "serial", "--jobs", "2"), "--jobs: 'serial' takes no number of jobs"),
    ],
)
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("sweep", "grid.toml", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"slackswap: error: {message}")
    assert done.stderr.count("\n") == 1
    assert not Path("results.csv").exists()


def test_a_bad_grid_is_one_line(run: Run, grid: Path) -> None:
    grid.write_text(GRID + "wings = 2\n")
    done = run("sweep", "grid.toml", "-o", "results.csv")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("slackswap: error: grid.toml: wings: is not a key that is known here: use planners,")
    assert not Path("results.csv.jsonl").exists()


def test_a_store_of_something_else_is_refused_and_left_alone(run: Run) -> None:
    Path("results.csv.jsonl").write_text('{"key":"1"}\n')
    done = run("sweep", "grid.toml", "-o", "results.csv")
    assert done.returncode == 2
    assert "results.csv.jsonl: line 1: is no result of a sweep (it needs either a row or an error)" in done.stderr
    assert Path("results.csv.jsonl").read_text() == '{"key":"1"}\n'


@pytest.mark.skipif(importlib.util.find_spec("fcntl") is None, reason="this system has no such locks")
def test_two_runs_do_not_share_a_store(run: Run) -> None:
    with SweepStore("results.csv.jsonl"):
        done = run("sweep", "grid.toml", "-o", "results.csv")
        assert done.returncode == 2
        assert "results.csv.jsonl: is in use by another run: wait for it, or name another file" in done.stderr
        with pytest.raises(InputError, match="in use by another run"), SweepStore("results.csv.jsonl"):
            pass
    assert run("sweep", "grid.toml", "-o", "results.csv", "--engine", "serial").returncode == 0
