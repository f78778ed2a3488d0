"""Engines of sweeps: every task ends once, whatever raises and whatever dies."""

from __future__ import annotations

import gc
import importlib.util
from typing import Any

import pytest
from instances import chain

from slackswap.evaluate import sweep_islands, sweep_problems
from slackswap.evaluate.results import Result
from slackswap.evaluate.sweep_engines import Engine, Failure, Local, Serial, Task, failure_of, find_engine, one_line
from slackswap.evaluate.sweep_islands import search_islands
from slackswap.evaluate.sweep_problems import PackedProblem, keep, kept_problem, pack
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import simulate
from slackswap.models.plan import Plan
from slackswap.models.problem_file import problem_to_json

# Workers know no function of this file. `eval` they know: a task's specification is then what it does.
DIES = "__import__('os')._exit(3)"
KILLED = "__import__('os').kill(__import__('os').getpid(), 9)"
FAILS = "1 / 0"
INPUT_ERROR = "__import__('slackswap.hardware.input_error').hardware.input_error.InputError"
BAD_INPUT = f"(_ for _ in ()).throw({INPUT_ERROR}('too wide', place='x'))"


def tasks(*specs: str) -> list[Task[str]]:
    return [Task(f"key {i}", spec) for i, spec in enumerate(specs)]


def ended(engine: Engine, *specs: str) -> dict[str, Any]:
    """Run expressions; return what came of each, by its number, and check that each came once."""
    results = [(task.key, value) for task, value in engine.run(eval, tasks(*specs))]
    gc.collect()  # what joblib's pool leaves behind is warned about here, if at all
    assert sorted(key for key, _ in results) == sorted(task.key for task in tasks(*specs))
    return {key.removeprefix("key "): value for key, value in results}


@pytest.mark.parametrize("engine", [Serial(), Local(2), Local(1)], ids=["serial", "two processes", "one process"])
def test_what_raises_is_a_failure_of_that_task_alone(engine: Engine) -> None:
    results = ended(engine, "2 + 3", FAILS, BAD_INPUT, "__import__('sys').exit(4)", "7 * 6")
    assert (results["0"], results["4"]) == (5, 42)
    assert results["1"].reason == "ZeroDivisionError: division by zero"
    assert "eval" in results["1"].traceback
    assert (results["2"].reason, results["2"].bad_input) == ("x: too wide", True)
    assert (results["3"].reason, results["3"].bad_input) == ("SystemExit: 4", False)


def test_one_process_keeps_the_order_of_the_tasks() -> None:
    assert list(ended(Serial(), *map(str, range(20)))) == list(map(str, range(20)))


def test_an_interruption_is_no_failure() -> None:
    with pytest.raises(KeyboardInterrupt):
        ended(Serial(), "1", "(_ for _ in ()).throw(KeyboardInterrupt)")


def test_two_processes_are_other_processes() -> None:
    import os

    pids = ended(Local(2), *["__import__('os').getpid()"] * 8).values()
    assert 1 <= len(set(pids)) <= 2
    assert os.getpid() not in pids


def test_scoring_threads_do_not_fight_over_cores() -> None:
    threads = "__import__('slackswap.models.event_model.batch').models.event_model.batch.usable_cores()"
    assert set(ended(Local(2), threads, threads, threads).values()) == {1}


@pytest.mark.parametrize("death", [DIES, KILLED])
def test_a_task_that_kills_its_process_is_a_failure_and_costs_no_other_task(death: str) -> None:
    # Twelve tasks, the fourth of which dies whenever it runs: it and what was at work beside it run alone.
    specs = [str(i) if i != 3 else death for i in range(12)]
    results = ended(Local(2), *specs)
    failure = results.pop("3")
    assert isinstance(failure, Failure)
    assert failure.reason.startswith("the process that ran it died of ")
    assert "3" in failure.reason if death == DIES else "SIGKILL" in failure.reason
    assert results == {str(i): i for i in range(12) if i != 3}


def test_a_process_that_dies_once_costs_nothing(tmp_path: Any) -> None:
    # The first run leaves a mark and is killed; the second one finds the mark.
    mark = tmp_path / "mark"
    once = f"7 if __import__('os').path.exists({str(mark)!r}) else (open({str(mark)!r}, 'w').close(), {KILLED})"
    assert ended(Local(2), "1", once, "3", "4") == {"0": 1, "1": 7, "2": 3, "3": 4}


def test_closing_stops_what_is_under_way() -> None:
    running = Local(2).run(eval, tasks("1", "2", *["__import__('time').sleep(60)"] * 4))
    first = next(running)
    assert first[1] in (1, 2)
    running.close()  # within the timeout of this test, and not after a minute
    assert list(running) == []
    gc.collect()


def test_no_task_is_no_work() -> None:
    assert ended(Local(2)) == ended(Serial()) == {}


# Problems on the way


def test_a_task_brings_its_problem_along(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(chain(3))
    name = (
        f"__import__('slackswap.evaluate.sweep_problems').evaluate.sweep_problems.kept_problem('{packed.sha256}').name"
    )
    for engine in (Serial(), Local(2)):
        run = engine.run(eval, [Task("a", name, packed), Task("b", name, packed)])
        assert [value for _, value in run] == ["chain of 3", "chain of 3"]
    monkeypatch.setattr(sweep_problems, "_kept", type(sweep_problems._kept)())
    (result,) = Serial().run(eval, [Task("a", name)])
    assert isinstance(result[1], Failure)  # nothing else would know the problem
    assert result[1].reason.startswith("KeyError")


def test_a_problem_comes_back_as_it_was() -> None:
    packed = pack(chain(4))
    keep(PackedProblem(packed.sha256, packed.content))
    assert problem_to_json(kept_problem(packed.sha256)) == problem_to_json(chain(4))
    assert pack(chain(4)) == packed
    assert pack(chain(5)).sha256 != packed.sha256


def test_a_process_forgets_the_problems_of_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_problems, "MAX_KEPT", 2)
    monkeypatch.setattr(sweep_problems, "_kept", type(sweep_problems._kept)())
    first, second, third = (pack(chain(n)) for n in (2, 3, 4))
    for packed in (first, second, first, third):  # the second one was used least lately
        keep(packed)
    assert kept_problem(first.sha256).name == "chain of 2"
    with pytest.raises(KeyError):
        kept_problem(second.sha256)


# Islands


def test_the_best_of_several_searches_is_the_best_of_each_alone() -> None:
    def search(**choice: int) -> Result:
        return search_islands(chain(60), "30%", planner="ga-random", evaluation_limit=300, engine=Serial(), **choice)

    alone = {seed: search(islands=1, first_seed=seed).row for seed in (5, 6, 7)}
    together = search(islands=3, first_seed=5)
    steps = {seed: row.step_s for seed, row in alone.items() if row.step_s is not None}
    assert len(set(steps.values())) > 1  # the seeds do matter here
    assert together.row.step_s == min(steps.values())
    assert together.row.seed == min(steps, key=lambda seed: steps[seed])
    assert isinstance(together.outcome.plan, Plan)
    assert simulate(chain(60), together.outcome.plan, together.row.budget_bytes).step_s == together.row.step_s


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"planner": "slackswap"}, "slackswap: draws nothing: every island would be the same"),
        ({"planner": "nobody"}, "'nobody' is not a planner"),
        ({"islands": 0}, "islands: a search has at least one island"),
        ({"budget": "half"}, "'half' is not a budget"),
    ],
)
def test_islands_that_make_no_sense_are_refused(choice: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refused:
        search_islands(chain(3), **{"budget": "50%", "engine": Serial(), **choice})
    assert message in str(refused.value)


def test_an_island_that_fails_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_islands, "outcome_of", lambda case: 1 // (case.seed - 1))
    with pytest.raises(InputError, match="ga-random: island of seed 1 failed: ZeroDivisionError"):
        search_islands(chain(3), "50%", planner="ga-random", islands=2, engine=Serial())


# Names


def test_an_engine_has_a_name() -> None:
    assert find_engine("serial") == Serial()
    assert find_engine("local") == Local(None)
    assert find_engine("local", 3) == Local(3)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs the cluster extra")
@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("dask", None),
        ("dask://tcp://10.0.0.1:8786", "tcp://10.0.0.1:8786"),
        ("dask://node7:8786", "node7:8786"),
        ("dask://tls://[fe80::1]:8786", "tls://[fe80::1]:8786"),
    ],
)
def test_a_dask_engine_has_an_address_or_starts_its_own_cluster(name: str, address: str | None) -> None:
    assert getattr(find_engine(name), "address", "none") == address


@pytest.mark.parametrize(
    ("name", "jobs", "message"),
    [
        ("slurm", None, "--engine: 'slurm' is not an engine: use serial, local, dask or dask://tcp://host:8786"),
        ("", None, "'' is not an engine"),
        ("dask:/tcp", None, "'dask:/tcp' is not an engine"),
        ("dask://", None, "'dask://' is not an engine"),
        ("serial", 2, "--jobs: 'serial' takes no number of jobs"),
        ("dask://node7:8786", 2, "--jobs: 'dask://node7:8786' takes no number of jobs"),
    ],
)
def test_what_is_no_engine_is_refused(name: str, jobs: int | None, message: str) -> None:
    with pytest.raises(InputError) as refused:
        find_engine(name, jobs)
    assert message in str(refused.value)


@pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs the cluster extra")
@pytest.mark.parametrize("address", ["nonsense", "tcp://node7", "ftp://node7:21", "node7:8786/x", "node 7:1", "a:b:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match="is no address of a Dask scheduler: write dask://tcp://host:8786"):
        find_engine(f"dask://{address}")


def test_dask_that_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "dask.distributed", None)
    with pytest.raises(InputError, match=r'needs the cluster extra: pip install "slackswap\[cluster\]"'):
        find_engine("dask")


# Reasons


def test_a_reason_is_one_line_that_prints() -> None:
    assert (
        failure_of(ValueError("first\n  second\x1b[2J")).reason
        == "ValueError: first second\N{REPLACEMENT CHARACTER}[2J"
    )
    assert failure_of(ValueError()).reason == "ValueError"
    assert failure_of(InputError("is no number", place="a.b", source="x.toml")).reason == "x.toml: a.b: is no number"
    assert one_line("x" * 10_000) == "x" * 500 + " ..."
