"""Solvers in processes of their own: what they say arrives, and none of them outlives its use."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from reference_rematerialization import unit_chain

from slackswap.planners.checkmate import process as checkmate_process
from slackswap.planners.checkmate.finding import Finding
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.process import Child, findings_of


def graph() -> RematerializationGraph:
    return RematerializationGraph.of(unit_chain(8), 6)


def hard_graph() -> RematerializationGraph:
    """A chain of 60 in 8 bytes: minutes of work for either solver."""
    return RematerializationGraph.of(unit_chain(60), 8)


def test_both_solvers_report() -> None:
    found = list(findings_of(["milp", "intervals"], graph(), None, time.monotonic() + 60, {}))
    assert {finding.solver for finding in found} == {"HiGHS", "CP-SAT"}
    last = {finding.solver: finding for finding in found}
    assert {solver: finding.bound_in_formulation for solver, finding in last.items()} == {"HiGHS": 4, "CP-SAT": 4}
    assert last["HiGHS"].bound == 4
    assert all(finding.version for finding in found)


def test_who_stops_listening_ends_the_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first proof wins: what still runs is ended, not waited for."""
    started: list[Child] = []
    start = Child.start

    def remember(name: str, *arguments: Any) -> Child:
        # The intervals get a chain that takes them minutes.
        started.append(start(name, hard_graph() if name == "intervals" else arguments[0], *arguments[1:]))
        return started[-1]

    monkeypatch.setattr(Child, "start", remember)
    began_s = time.monotonic()
    listening = findings_of(["milp", "intervals"], graph(), None, began_s + 100, {})
    assert next(listening).bound == 4
    listening.close()
    assert [child.name for child in started] == ["milp", "intervals"]
    assert all(child.process.poll() is not None for child in started)
    assert not any(child.thread.is_alive() for child in started)
    assert time.monotonic() - began_s < 30


def test_time_is_kept_whatever_a_solver_does() -> None:
    began_s = time.monotonic()
    list(findings_of(["milp", "intervals"], hard_graph(), None, began_s + 0.3, {}))
    assert time.monotonic() - began_s < 3


def test_a_killed_solver_ends_the_waiting() -> None:
    findings: queue.SimpleQueue[Finding | None] = queue.SimpleQueue()
    child = Child.start("milp", hard_graph(), None, time.monotonic() + 100, {}, findings)
    child.process.kill()
    assert findings.get(timeout=20) is None
    child.stop()
    child.stop()  # twice does no harm


def test_a_child_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed cannot end its solvers; they see that its end of the pipe is gone."""
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, queue, sys, time\n"
        "from reference_rematerialization import unit_chain\n"
        "from slackswap.planners.checkmate.graph import RematerializationGraph\n"
        "from slackswap.planners.checkmate.process import Child\n"
        "graph = RematerializationGraph.of(unit_chain(60), 8)\n"
        "child = Child.start('milp', graph, None, time.monotonic() + 100, {}, queue.SimpleQueue())\n"
        "print(child.process.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    pid = int(ended.stdout)
    for _ in range(100):
        if not _is_alive(pid):
            return
        time.sleep(0.1)
    pytest.fail(f"process {pid} lives on without its parent")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie, which nobody in a container may have reaped, has ended too.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_users_script_is_not_run_again(tmp_path: Path) -> None:
    """A script without ``if __name__ == "__main__"``, as multiprocessing would run it in each child."""
    script = tmp_path / "plain.py"
    script.write_text(
        "import time\n"
        "from reference_rematerialization import unit_chain\n"
        "from slackswap.planners.checkmate.graph import RematerializationGraph\n"
        "from slackswap.planners.checkmate.process import findings_of\n"
        "print('once')\n"
        "graph = RematerializationGraph.of(unit_chain(8), 6)\n"
        "found = list(findings_of(['milp'], graph, None, time.monotonic() + 60, {}))\n"
        "print(found[-1].bound)\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, str(script)]
    environment = {**os.environ, "PYTHONPATH": paths}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.split() == ["once", "4"]


def test_what_a_solver_prints_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    """highspy 1.16.0 prints a banner to stdout that no option stops."""
    noisy = (
        "import os; from slackswap.planners.checkmate import process; solver_of = process.solver_of; "
        "process.solver_of = lambda name: [print('banner', flush=True), os.write(1, b'raw'), solver_of(name)][-1]; "
        "process.main()"
    )
    monkeypatch.setattr(checkmate_process, "_COMMAND", noisy)
    found = list(findings_of(["milp"], graph(), None, time.monotonic() + 60, {}))
    assert found[-1].bound == 4
