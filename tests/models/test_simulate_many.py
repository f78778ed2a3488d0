"""Batches of plans on several threads: the same scores, whoever plays which plan."""

from __future__ import annotations

import dataclasses
import gc
import threading
import weakref
from functools import cache

import numpy as np
import pytest
from instances import chain, one_operator, two_layers

from slackswap.hardware import load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import POLICIES, batch, peak_bytes, simulate_many
from slackswap.models.event_model.batch import Batch, usable_cores
from slackswap.models.event_model.score import ScoreTable
from slackswap.models.plan import DecisionArray
from slackswap.models.problem import Problem
from slackswap.models.workloads import WORKLOADS

ROWS = 700  # some ten shares of the small GPT's plans


@cache
def small_gpt() -> Problem:
    parameters = {"layers": 3, "hidden": 256, "heads": 4, "vocabulary": 1000, "sequence": 64, "batch": 4}
    return WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4"), **parameters)


def random_rows(problem: Problem, count: int = ROWS) -> DecisionArray:
    rng = np.random.default_rng(0)
    # The first plans free next to nothing and fail early, the last ones free nearly everything.
    freed = rng.random((count, problem.n_tensors)) < np.linspace(0, 1, count)[:, np.newaxis]
    rows = np.where(freed & problem.saved, rng.integers(1, 3, (count, problem.n_tensors)), 0).astype(np.int8)
    rows[(rows == 2) & ~problem.rebuildable] = 1
    return rows


def columns(table: ScoreTable) -> dict[str, list[float]]:
    return {field.name: getattr(table, field.name).tolist() for field in dataclasses.fields(table)}


@pytest.mark.parametrize("policy", POLICIES)
def test_scores_do_not_depend_on_the_number_of_threads(policy: str) -> None:
    problem = small_gpt()
    rows, budget_bytes = random_rows(problem), int(0.4 * peak_bytes(problem))
    serial = simulate_many(problem, rows, budget_bytes, policy=policy)
    assert 50 < serial.fits.sum() < ROWS - 50  # plans of both kinds
    for threads in (2, 3, 16):
        assert columns(simulate_many(problem, rows, budget_bytes, policy=policy, threads=threads)) == columns(serial)


def test_problems_do_not_get_in_each_others_way() -> None:
    big, small = small_gpt(), chain(6)
    rows = {problem: random_rows(problem, 3000) for problem in (big, small)}
    serial = {problem: columns(simulate_many(problem, rows[problem], 3e6)) for problem in rows}
    for problem in (big, small, big, small):
        assert columns(simulate_many(problem, rows[problem], 3e6, threads=3)) == serial[problem]


def test_more_threads_than_plans() -> None:
    rows = np.zeros((2, 2), np.int8)
    assert columns(simulate_many(two_layers(), rows, 3e7, threads=8)) == columns(simulate_many(two_layers(), rows, 3e7))
    assert simulate_many(one_operator(), np.zeros((1, 1), np.int8), 1e6, threads=2).fits.tolist() == [True]


def test_the_work_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, played = small_gpt(), dict[int, int]()
    original = Batch._play
    everybody_is_here = threading.Barrier(3)

    def play(self: Batch, buffers: object, first: int, last: int) -> None:
        ident = threading.get_ident()
        if last > first and not played.get(ident):
            everybody_is_here.wait(timeout=30)  # nobody gets a second share before everybody has a first one
        played[ident] = played.get(ident, 0) + last - first
        original(self, buffers, first, last)  # type: ignore[arg-type]

    monkeypatch.setattr(Batch, "_play", play)
    simulate_many(problem, random_rows(problem), 1e9, threads=3)
    assert len(played) == 3
    assert sum(played.values()) >= ROWS


def test_helpers_are_gone_when_the_scores_are_there() -> None:
    problem, before = small_gpt(), set(threading.enumerate())
    simulate_many(problem, random_rows(problem), 1e9, threads=4)
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("threads", [0, -1])
def test_no_thread_at_all_is_refused(threads: int) -> None:
    with pytest.raises(InputError, match="one thread or more"):
        simulate_many(two_layers(), np.zeros((1, 2), np.int8), 3e7, threads=threads)


@pytest.mark.parametrize("where", ["a helper", "the caller"])
def test_a_failure_of_any_thread_reaches_the_caller(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    problem, rows = small_gpt(), random_rows(small_gpt())
    expected = columns(simulate_many(problem, rows, 1e9))
    caller, original = threading.get_ident(), Batch._take

    def take(self: Batch, buffers: object) -> None:
        if (threading.get_ident() == caller) == (where == "the caller"):
            raise KeyboardInterrupt if where == "the caller" else MemoryError
        original(self, buffers)  # type: ignore[arg-type]

    with monkeypatch.context() as patched, pytest.raises((KeyboardInterrupt, MemoryError)):
        patched.setattr(Batch, "_take", take)
        simulate_many(problem, rows, 1e9, threads=2)
    # Nothing is left over that the next batch could stumble over.
    assert columns(simulate_many(problem, rows, 1e9, threads=2)) == expected


def test_buffers_go_with_their_problem() -> None:
    problem = chain(7)
    simulate_many(problem, random_rows(problem, 5000), 3e6, threads=2)
    gone = weakref.ref(problem)
    assert problem in batch._spare.of_problem
    del problem
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("declared", "cores"), [("1", 1), ("", None), ("many", None), ("0", None), ("2,1", None), ("100000", None)]
)
def test_parallel_runners_say_how_many_cores_there_are(
    monkeypatch: pytest.MonkeyPatch, declared: str, cores: int | None
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    all_cores = usable_cores()
    assert all_cores >= 1
    monkeypatch.setenv("OMP_NUM_THREADS", declared)
    assert usable_cores() == (cores or all_cores)
