"""The command line as a process: interrupted, at the end of a pipe, on a terminal, at its start."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from instances import chain
from interrupted import Interrupted

import slackswap.planners
from slackswap.models.problem_file import write_problem
from slackswap.planners.keep import Keep

Run = Callable[..., CompletedProcess[str]]
# The first process on a machine compiles the event model, in 15 s where nothing else runs.
PATIENCE_S = 180


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Keep(), Interrupted(), replace(Keep(), name="after")))


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_keeps_finished_rows(run: Run) -> None:
    ran = run("shootout", "chain.json", "--budget", "1,0.5,0.2", "--csv", "rows.csv")
    assert ran.returncode == 130
    assert ran.stderr.strip() == "slackswap: interrupted"
    rows = rows_of(Path("rows.csv").read_text())
    assert [row["planner"] for row in rows[:3]] == ["keep", "interrupted", "after"]
    assert "100.0%" in ran.stdout


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_keeps_finished_rows_of_the_budget_under_way(run: Run) -> None:
    # With one problem and one budget, everything would be lost otherwise.
    run("shootout", "chain.json", "--budget", "0.5", "--csv", "rows.csv")
    assert [row["planner"] for row in rows_of(Path("rows.csv").read_text())] == ["keep"]


@pytest.mark.usefixtures("interrupted")
def test_ctrl_c_while_planning_writes_nothing(run: Run) -> None:
    ran = run("plan", "chain.json", "--budget", "0.5", "--planner", "interrupted", "-o", "plan.json")
    assert (ran.returncode, ran.stdout, ran.stderr.strip()) == (130, "", "slackswap: interrupted")
    assert not Path("plan.json").exists()


SLEEPER = """
import pathlib, time
from slackswap.models.plan import Plan

def sleeper(problem, budget_bytes):
    if budget_bytes < 6_000_000:
        pathlib.Path("asleep").touch()
        time.sleep(60)
    return Plan.keep_everything(problem)
"""


def test_a_signal_ends_it_at_once(folder: Path) -> None:
    # The real thing, with a planner of another package that never comes back.
    (folder / "sleeper.py").write_text(SLEEPER)
    metadata = folder / "sleeper-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sleeper\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[slackswap.planners]\nsleeper = sleeper:sleeper\n")
    with started(
        ["shootout", "chain.json", "--planner", "sleeper", "--budget", "1,0.5", "--csv", "rows.csv"]
    ) as process:
        wait_for(folder / "asleep", process)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.strip() == b"slackswap: interrupted"
    assert [row["planner"] for row in rows_of((folder / "rows.csv").read_text())] == ["sleeper"]


@contextlib.contextmanager
def started(arguments: list[str], **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command line in the current folder, which is on its path; it never outlives the test."""
    code = "from slackswap.evaluate.command_line import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(path: Path, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until_s
        time.sleep(0.02)


def ran_with_stdout(stdout: int | None, *arguments: str) -> tuple[int, str]:
    """Run in a process of its own whose stdout is a file descriptor, or closed; return exit code and stderr."""

    def close() -> None:
        os.close(1)
        return

    code = "from slackswap.evaluate.command_line import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        preexec_fn=close if stdout is None else None,
        timeout=PATIENCE_S,
        check=False,
    )
    return ended.returncode, ended.stderr.decode()


@pytest.mark.parametrize("arguments", [["problem", "chain.json"], ["list", "hardware"], ["--help"]], ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_a_reader_that_has_seen_enough(arguments: list[str]) -> None:
    # As in `slackswap ... | head -1`: nobody reads any more. That is no error, and nothing to talk about.
    reader, writer = os.pipe()
    os.close(reader)
    try:
        code, errors = ran_with_stdout(writer, *arguments)
    finally:
        os.close(writer)
    assert (code, errors) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", [["problem", "chain.json"], ["--help"]], ids=" ".join)
@pytest.mark.usefixtures("folder")
def test_a_full_disk(arguments: list[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, errors = ran_with_stdout(full, *arguments)
    finally:
        os.close(full)
    assert code not in (0, 130)
    assert "Traceback" not in errors
    assert errors.count("\n") == 1


@pytest.mark.usefixtures("folder")
def test_no_stdout_at_all() -> None:
    # As in `slackswap ... >&-`, or under a daemon.
    _, errors = ran_with_stdout(None, "shootout", "chain.json", "--budget", "1", "--csv", "rows.csv")
    assert "Traceback" not in errors
    assert rows_of(Path("rows.csv").read_text())


@pytest.mark.usefixtures("folder")
def test_a_terminal_without_unicode() -> None:
    write_problem(replace(chain(6), name="h\u00e9llo \u6a21\u578b"), "named.json")
    with started(["shootout", "named.json", "--budget", "1"], PYTHONIOENCODING="ascii") as process:
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (0, b"")


HEAVY = (
    "numba",
    "numpy",
    "ortools",
    "pulp",
    "highspy",
    "deap",
    "scipy",
    "rich",
    "networkx",
    "msgspec",
    "joblib",
    "torch",
)


def imported_by(code: str) -> set[str]:
    """Return which of the heavy libraries a new interpreter holds after `code`."""
    report = f"import sys; print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    ended = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, check=True, timeout=PATIENCE_S
    )
    return set(ended.stderr.decode().split())


def test_help_imports_nothing_heavy() -> None:
    # Why `slackswap --help` answers at once.
    code = (
        "import sys; sys.argv = ['slackswap', '--help']\n"
        "from slackswap.evaluate.command_line import main\n"
        "try: main()\nexcept SystemExit as ended: assert not ended.code"
    )
    assert imported_by(code) == set()


def test_planners_import_their_solvers_when_they_use_them() -> None:
    solvers = {"ortools", "pulp", "highspy", "deap", "scipy", "torch", "rich", "joblib", "networkx"}
    assert not imported_by("from slackswap.planners import registry; registry()") & solvers
