"""Sweeps on a Dask cluster: workers that die and runs that are interrupted lose nothing and repeat nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from instances import chain

from slackswap.evaluate import sweep_engine_dask
from slackswap.evaluate.sweep_engine_dask import Dask
from slackswap.evaluate.sweep_engines import Engine, Failure, Serial, Task
from slackswap.evaluate.sweep_grid import read_grid
from slackswap.evaluate.sweep_islands import search_islands
from slackswap.evaluate.sweep_problems import pack
from slackswap.evaluate.sweep_results import sweep_csv
from slackswap.evaluate.sweep_store import SweepStore
from slackswap.evaluate.sweeps import finished_cases
from slackswap.hardware.input_error import InputError
from slackswap.models.problem_file import write_problem

pytest.importorskip("distributed", reason="needs the cluster extra")

PATIENCE_S = 180  # the first process on a machine compiles the event model
# As in test_sweep_engines: a worker knows no function of this file, but `eval`.
KILLED = "__import__('os').kill(__import__('os').getpid(), 9)"
# The command, whether or not the command line of this version lists it.
SWEEP = (
    "from slackswap.evaluate.command_line import cli, main; from slackswap.evaluate.sweep_command import sweep;"
    " 'sweep' in cli.commands or cli.add_command(sweep); main()"
)


class Cluster:
    """A scheduler and workers, each a process without a nanny that would start it again."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "scheduler.json"
        self.processes: list[subprocess.Popen[Any]] = []  # all of them end with the cluster
        self.scheduler = self._start(
            "scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"
        )
        wait_for(lambda: self._file.exists() and self._file.read_bytes().endswith(b"}"))
        self.address: str = json.loads(self._file.read_bytes())["address"]

    def add_worker(self) -> subprocess.Popen[bytes]:
        return self._start("worker", "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard")

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(self._file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "4"}  # as batch systems set it
        process = subprocess.Popen(
            command, cwd=self._file.parent, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        running.add_worker()
        yield running


def wait_for(happened: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < ends_s
        time.sleep(0.01)


def ended(engine: Engine, *specs: str) -> list[Any]:
    """Run expressions; return what came of each, and check that each came once."""
    tasks = [Task(f"{time.time()} {i}", spec) for i, spec in enumerate(specs)]
    results = [(task.key, value) for task, value in engine.run(eval, tasks)]
    assert sorted(key for key, _ in results) == sorted(task.key for task in tasks)
    return [dict(results)[task.key] for task in tasks]


# The whole of it


def test_a_killed_worker_and_an_interruption_change_nothing(tmp_path: Path) -> None:
    # 1 problem file and 1 trace x 5 budgets x (1 planner without seeds + 19 seeds of another one) = 200 jobs
    write_problem(chain(40), tmp_path / "chain.json")
    grid = tmp_path / "grid.toml"
    grid.write_text(
        'sources = ["chain.json", "small-gpt"]\nbudgets = ["70%", "60%", "50%", "40%", "30%"]\n'
        f'planners = ["slackswap", "ga-random"]\nevaluation_limits = [1000]\nseeds = {list(range(19))}\n'
    )
    table, store = tmp_path / "results.csv", tmp_path / "results.csv.jsonl"
    with running_cluster(tmp_path) as cluster:
        victim, _ = cluster.add_worker(), cluster.add_worker()
        command = [
            sys.executable,
            "-c",
            SWEEP,
            "sweep",
            str(grid),
            "-o",
            str(table),
            "--engine",
            f"dask://{cluster.address}",
        ]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        cluster.processes.append(process)
        wait_for(lambda: lines(store) >= 40)
        victim.send_signal(signal.SIGKILL)
        wait_for(lambda: lines(store) >= 90)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 130, said
        n_kept = lines(store)
        assert 90 <= n_kept < 190
        assert f"{n_kept} jobs finished, {200 - n_kept} remain" in said
        assert len(rows(table.read_text())) == n_kept
        resumed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
        assert (resumed.returncode, "200 jobs finished\n" in resumed.stderr) == (0, True), resumed.stderr
    stored = [json.loads(line)["key"] for line in store.read_bytes().splitlines()]
    assert len(stored) == len(set(stored)) == 200
    in_table = rows(table.read_text())
    assert sorted(row["job"] for row in in_table) == sorted(stored)
    assert in_table == serial_rows(grid)


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a table, without the planning times: all else is the same in every run."""
    table = list(csv.DictReader(text.splitlines()))
    assert all(float(row.pop("planning_s")) >= 0 for row in table)
    return table


def serial_rows(grid_file: Path) -> list[dict[str, str]]:
    grid = read_grid(grid_file)
    with SweepStore(None) as kept:
        results = {
            key: value
            for key, _, value in finished_cases(grid.cases, engine=Serial(), kept=kept, carried=grid.problems)
        }
    return rows(sweep_csv(grid.cases, results))


# The engine


def test_a_value_may_be_nothing(cluster: Cluster) -> None:
    assert ended(Dask(cluster.address), "None", "None") == [None, None]


def test_what_raises_on_a_worker_is_a_failure_of_that_task_alone(cluster: Cluster) -> None:
    five, failure = ended(Dask(cluster.address), "2 + 3", "1 / 0")
    assert five == 5
    assert failure.reason == "ZeroDivisionError: division by zero"


def test_tasks_run_on_the_worker_on_one_core_each(cluster: Cluster) -> None:
    pid, threads = ended(
        Dask(cluster.address), "__import__('os').getpid()", "__import__('os').environ['OMP_NUM_THREADS']"
    )
    assert pid in [process.pid for process in cluster.processes]
    assert threads == "1"


def test_many_tasks_share_a_problem(cluster: Cluster) -> None:
    packed = pack(chain(3))
    name = (
        f"__import__('slackswap.evaluate.sweep_problems').evaluate.sweep_problems.kept_problem('{packed.sha256}').name"
    )
    tasks = [Task(f"{time.time()} {i}", name, packed) for i in range(20)]
    assert [value for _, value in Dask(cluster.address).run(eval, tasks)] == ["chain of 3"] * 20


def test_no_task_needs_no_cluster() -> None:
    assert list(Dask("127.0.0.1:1").run(eval, [])) == []


def test_islands_give_the_same_best_plan_as_one_after_the_other(cluster: Cluster) -> None:
    def best(engine: Engine) -> Any:
        return search_islands(chain(40), "40%", planner="ga-random", islands=3, evaluation_limit=600, engine=engine)

    there, here = best(Dask(cluster.address)), best(Serial())
    assert there.row.step_s == here.row.step_s
    assert there.row.seed == here.row.seed
    assert (there.outcome.plan.decisions == here.outcome.plan.decisions).all()


def test_a_worker_of_other_code_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_engine_dask, "code_digest", lambda: "a release later")
    with pytest.raises(InputError, match="a Dask worker runs another slackswap than this process: install the same"):
        ended(Dask(cluster.address), "1", "2")


def test_a_function_that_workers_lack_is_said(cluster: Cluster) -> None:
    with pytest.raises(InputError, match=r"the Dask workers cannot run the jobs .*: install the same slackswap"):
        list(Dask(cluster.address).run(lines, [Task("a", Path())]))


def test_closing_takes_the_tasks_back(cluster: Cluster) -> None:
    seconds = (0, 0.3, 60, 60)  # all four are given out; the second one is at work when the first one has ended
    specs = [f"__import__('time').sleep({s})" for s in seconds]
    running = Dask(cluster.address).run(eval, [Task(f"{time.time()} {i}", spec) for i, spec in enumerate(specs)])
    next(running)
    running.close()
    assert ended(Dask(cluster.address), "6 * 7") == [42]  # within the timeout of this test, not after two minutes


def test_a_scheduler_that_does_not_answer_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_engine_dask, "CONNECT_S", 0.3)
    with pytest.raises(InputError, match=r"--engine: no Dask scheduler answers at tcp://127.0.0.1:1: ") as refused:
        ended(Dask("tcp://127.0.0.1:1"), "1")
    assert "\n" not in str(refused.value)


def test_a_lost_scheduler_ends_the_run_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running_cluster(tmp_path) as cluster:
        monkeypatch.setattr(sweep_engine_dask, "FIRST_WORKER_S", 0.2)
        with pytest.raises(InputError, match="has no worker after 0 s: start some, `dask worker tcp://127"):
            ended(Dask(cluster.address), "1")
        monkeypatch.setattr(sweep_engine_dask, "FIRST_WORKER_S", PATIENCE_S)
        cluster.add_worker()
        running = Dask(cluster.address).run(eval, [Task(f"{i}", f"__import__('time').sleep({i})") for i in (0, 60)])
        next(running)
        cluster.scheduler.kill()
        with pytest.raises(InputError, match=r"the Dask scheduler was lost.*: what is finished is kept, run the same"):
            next(running)


def test_a_sweep_without_workers_says_so_once_and_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def echo(text: str, *, err: bool) -> None:
        assert err
        said.append(text)

    monkeypatch.setattr("click.echo", echo)
    with running_cluster(tmp_path) as cluster, ThreadPoolExecutor(1) as pool:
        only_worker = cluster.add_worker()
        tasks = [Task(f"{i}", f"__import__('time').sleep(0.2) or {i}") for i in range(4)]
        running = Dask(cluster.address).run(eval, tasks)
        values: list[Any] = [next(running)[1]]
        only_worker.kill()
        rest = pool.submit(lambda: [value for _, value in running])
        wait_for(lambda: bool(said) or rest.done())
        assert not rest.done()
        cluster.add_worker()
        values += rest.result(PATIENCE_S)
    assert sorted(values) == [0, 1, 2, 3]
    assert said == ["no worker is left: waiting for one (Ctrl-C keeps what is finished)"]


def test_a_cluster_of_its_own_survives_what_kills_its_workers() -> None:
    import dask

    # Without patience the scheduler gives up on a task at the first death of its worker; by default at the fourth.
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        one, failure, *others = ended(Dask(jobs=1), "1", KILLED, "3", "4", "5")
    assert [one, *others] == [1, 3, 4, 5]  # some of them under suspicion, since the worker had them when it died
    assert failure == Failure("every worker that ran it died, also when it ran alone")
