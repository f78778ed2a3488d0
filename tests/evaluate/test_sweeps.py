"""Sweeps: which cases they have, that every core gives the same results, and that an interrupted run goes on."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import slackswap.planners
from slackswap.evaluate import sweep_store, sweeps
from slackswap.evaluate.bounds import relaxed_bound_s
from slackswap.evaluate.shootout import shootout
from slackswap.evaluate.sweeps import (
    Case,
    CaseResult,
    bandwidth_sweep,
    budget_sweep,
    describe,
    generation_sweep,
    problem_of,
    run_cases,
    sequence_sweep,
)
from slackswap.hardware import load_hardware
from slackswap.hardware.catalog import CATALOG_FILE
from slackswap.hardware.input_error import InputError
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Outcome, Status, Supports, find_planners

# A model of two layers plans in a millisecond.
TINY = (("batch", 2), ("hidden", 64), ("layers", 2), ("sequence", 16), ("vocabulary", 100))
CASES = [
    Case(workload="llama-7b", planner=planner, budget=budget, parameters=(*TINY, ("heads", 4)))
    for budget in ("100%", "70%", "50%")
    for planner in ("checkpoint", "slackswap")
]


def without_times(results: list[CaseResult]) -> list[CaseResult]:
    return [msgspec.structs.replace(r, row=msgspec.structs.replace(r.row, planning_s=0.0)) for r in results]


# What the sweeps hold


def test_a_budget_sweep_has_each_planner_at_each_budget_of_each_workload() -> None:
    cases = budget_sweep(["gpt2-xl", "vgg-16"], ["50%", "8GB"], ["keep", "slackswap"])
    assert [(case.workload, case.budget, case.planner) for case in cases] == list(
        itertools.product(["gpt2-xl", "vgg-16"], ["50%", "8GB"], ["keep", "slackswap"])
    )
    assert {case.hardware for case in cases} == {"a100-pcie4"}


def test_a_bandwidth_sweep_changes_both_directions_of_the_link_and_nothing_else() -> None:
    cases = bandwidth_sweep("gpt2-xl", "30%", ["slackswap"])
    assert [case.link_bytes_per_s for case in cases] == [12e9, 25e9, 50e9, 100e9, 200e9, 450e9]
    slow, paper = problem_of(cases[0]), problem_of(cases[1])
    assert (slow.link.d2h_bytes_per_s, slow.link.h2d_bytes_per_s) == (12e9, 12e9)
    assert slow.link.duplex_factor == paper.link.duplex_factor
    assert slow.ideal_s == paper.ideal_s == WORKLOADS["gpt2-xl"].build(load_hardware("a100-pcie4")).ideal_s


def test_a_sequence_sweep_keeps_16k_tokens_a_batch_but_for_a_longer_sequence() -> None:
    cases = sequence_sweep("llama-7b", "30%", ["slackswap"])
    # 8 x 2K, 4 x 4K, 2 x 8K, 1 x 16K; 32K is one sequence.
    assert [dict(case.parameters) for case in cases] == [
        {"batch": 8, "sequence": 2048},
        {"batch": 4, "sequence": 4096},
        {"batch": 2, "sequence": 8192},
        {"batch": 1, "sequence": 16384},
        {"batch": 1, "sequence": 32768},
    ]


def test_a_generation_sweep_trains_in_what_each_gpu_has() -> None:
    cases = generation_sweep(["gpt2-xl"], "30%", ["slackswap"])
    assert [case.hardware for case in cases] == ["v100", "a100-pcie4", "h100-sxm"]
    assert [problem_of(case).metadata["model"]["dtype"] for case in cases] == ["fp16", "bf16", "bf16"]


def test_a_case_says_what_it_is() -> None:
    (case,) = sequence_sweep("llama-7b", "30%", ["keep"], sequences=[4096])
    assert describe(case) == "llama-7b batch=4 sequence=4096 on a100-pcie4, 30%: keep"
    (case,) = bandwidth_sweep("gpt2-xl", "30%", ["keep"], links_bytes_per_s=[12e9])
    assert describe(case) == "gpt2-xl 12 GB/s on a100-pcie4, 30%: keep"
    case = Case(workload="vgg-16", planner="x", budget="80%", evaluation_limit=14_000)
    assert describe(case) == "vgg-16 on a100-pcie4, 80%: x, 14,000 plans"
    assert describe(msgspec.structs.replace(case, evaluation_limit=None, time_limit_s=2.5)).endswith("80%: x, 2.5 s")


# Results


def test_a_case_gives_the_row_of_the_shootout() -> None:
    (result,) = run_cases(CASES[-1:], jobs=1)
    ((expected,),) = shootout([problem_of(CASES[-1])], ["50%"], find_planners("slackswap"), bound=None)
    assert without_times([result]) == without_times([CaseResult(CASES[-1], expected.row)])


@dataclass(frozen=True)
class Searches:
    """A planner that reports its limits as what it scored."""

    name: str = "searches"
    description: str = "reports its limits"
    policy: str = "default"
    supports: Supports = Supports(anytime=True)
    evaluation_limit: int | None = None

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del budget_bytes, rng
        evaluations = self.evaluation_limit or int(1000 * (time_limit_s or 0.0))
        return Outcome(Status.TIME_LIMIT, Plan.keep_everything(problem), evaluations=evaluations)


@pytest.mark.parametrize(
    ("limits", "evaluations"), [({}, 0), ({"time_limit_s": 1.5}, 1500), ({"evaluation_limit": 7}, 7)]
)
def test_limits_reach_the_planner(monkeypatch: pytest.MonkeyPatch, limits: dict[str, float], evaluations: int) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Searches(),))
    case = msgspec.structs.replace(CASES[0], planner="searches", **limits)
    (result,) = run_cases([case], jobs=1)
    assert result.row.evaluations == evaluations


def test_a_case_has_a_bound_where_it_asks_for_one() -> None:
    case = Case(workload="llama-7b", planner="slackswap", budget="70%", parameters=(*TINY, ("heads", 4)))
    plain, certified = run_cases([case, msgspec.structs.replace(case, certified=True)], jobs=1)
    assert (plain.row.lower_bound_s, plain.row.gap) == (None, None)
    assert certified.row.lower_bound_s == relaxed_bound_s(problem_of(case), certified.row.budget_bytes)
    assert certified.row.gap is not None
    assert certified.row.step_s == plain.row.step_s


def test_results_come_in_the_order_of_the_cases_equal_ones_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = counting(monkeypatch)
    twice = [*CASES, *reversed(CASES)]
    results = run_cases(twice, jobs=1)
    assert [result.case for result in results] == twice
    assert ran == CASES


def test_other_processes_give_the_same_results() -> None:
    assert without_times(run_cases(CASES, jobs=2)) == without_times(run_cases(CASES, jobs=1))
    gc.collect()  # what joblib's pool leaves behind is warned about here, if at all


def counting(monkeypatch: pytest.MonkeyPatch, stop_after: int | None = None) -> list[Case]:
    """Note every case that runs in this process; interrupt the one after `stop_after`."""
    ran: list[Case] = []
    run_case: Callable[[Case], CaseResult] = sweeps.run_case

    def noted(case: Case) -> CaseResult:
        if len(ran) == stop_after:
            raise KeyboardInterrupt
        ran.append(case)
        return run_case(case)

    monkeypatch.setattr(sweeps, "run_case", noted)
    return ran


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"planner": "nobody"}, "'nobody' is not a planner"),
        ({"planner": "all"}, "all: names several planners: a case has one"),
        ({"planner": "keep,slackswap"}, "keep,slackswap: names several planners"),
        ({"workload": "gpt9"}, "gpt9: is not a workload: use bert-large"),
        ({"budget": "half"}, "'half' is not a budget"),
        ({"hardware": "abacus"}, "abacus: no hardware has this name"),
        ({"parameters": (("wings", 2),)}, "llama-7b: wings: is not a parameter"),
        ({"link_bytes_per_s": 0.0}, "d2h_bytes_per_s: a bandwidth is"),
        ({"evaluation_limit": 100}, "checkpoint: does not search, so it takes no evaluation limit"),
    ],
)
def test_a_case_that_cannot_run_is_refused_before_any_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, object], message: str
) -> None:
    ran = counting(monkeypatch)
    with pytest.raises(InputError, match=message):
        run_cases([*CASES, msgspec.structs.replace(CASES[0], **change)], jobs=1, store=tmp_path / "store.jsonl")
    assert ran == []
    assert list(tmp_path.iterdir()) == []


# The store


def test_an_interrupted_run_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"
    with monkeypatch.context() as patch:
        ran = counting(patch, stop_after=4)
        with pytest.raises(KeyboardInterrupt):
            run_cases(CASES, jobs=1, store=store)
        assert ran == CASES[:4]
    assert len(store.read_bytes().splitlines()) == 4
    ran = counting(monkeypatch)
    results = run_cases(CASES, jobs=1, store=store)
    assert ran == CASES[4:]
    assert without_times(results) == without_times(run_cases(CASES, jobs=1))


def test_a_finished_run_is_read_not_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    results = run_cases(CASES, jobs=2, store=tmp_path / "store.jsonl")
    ran = counting(monkeypatch)
    # Planning times too are those of the first run.
    assert run_cases(CASES, jobs=1, store=tmp_path / "store.jsonl") == results
    assert ran == []


CHANGES: list[dict[str, object]] = [
    {"seed": 1},
    {"time_limit_s": 1.0},
    {"certified": True},
    {"link_bytes_per_s": 12e9},
    {"budget": "0.5"},
    {"hardware": "v100"},
    {"parameters": (*TINY, ("heads", 8))},
    {"planner": "slackswap"},
    {"workload": "gpt2-xl"},
]


@pytest.mark.parametrize("change", CHANGES, ids=[next(iter(change)) for change in CHANGES])
def test_another_case_is_not_taken_from_the_store(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: dict[str, object]
) -> None:
    other = msgspec.structs.replace(CASES[0], **change)
    run_cases(CASES[:1], jobs=1, store=tmp_path / "store.jsonl")
    ran = counting(monkeypatch)
    run_cases([CASES[0], other], jobs=1, store=tmp_path / "store.jsonl")
    assert ran == [other]


def test_results_of_other_code_are_computed_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run_cases(CASES[:1], jobs=1, store=tmp_path / "store.jsonl")
    ran = counting(monkeypatch)
    monkeypatch.setattr(sweep_store, "_code", lambda: b"a release later")
    run_cases(CASES[:1], jobs=1, store=tmp_path / "store.jsonl")
    assert ran == CASES[:1]
    assert len((tmp_path / "store.jsonl").read_bytes().splitlines()) == 2


def test_a_hardware_file_that_changed_is_other_hardware(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = CATALOG_FILE.read_text().partition("[a100-pcie4]")[2].partition("[a100-40]")[0]
    file = tmp_path / "mine.toml"
    file.write_text("[a100-pcie4]" + machine)
    case = msgspec.structs.replace(CASES[0], hardware=str(file))
    (before,) = run_cases([case], jobs=1, store=tmp_path / "store.jsonl")
    ran = counting(monkeypatch)
    file.write_text("[a100-pcie4]" + machine.replace("gemm_efficiency = 0.75", "gemm_efficiency = 0.25"))
    (after,) = run_cases([case], jobs=1, store=tmp_path / "store.jsonl")
    assert ran == [case]
    assert after.row.ideal_s > before.row.ideal_s


@pytest.fixture(scope="module")
def whole_store(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    store = tmp_path_factory.mktemp("whole") / "store.jsonl"
    run_cases(CASES, jobs=1, store=store)
    return store.read_bytes()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_store_that_was_cut_anywhere_is_gone_on_with(data: st.DataObject, whole_store: bytes, tmp_path: Path) -> None:
    # A crash leaves any prefix of what was to be written.
    store = tmp_path / "store.jsonl"
    store.write_bytes(whole_store[: data.draw(st.integers(0, len(whole_store)))])
    results = run_cases(CASES, jobs=1, store=store)
    assert [result.case for result in results] == CASES
    lines = store.read_bytes().splitlines(keepends=True)
    assert len(lines) == len(CASES)
    assert all(line.endswith(b"}\n") for line in lines)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"budget,planner\n50%,keep\n", "store.jsonl: line 1: is no result of a sweep"),
        (b'{"key":"1","row":{}}\n', "store.jsonl: line 1: is no result of a sweep .*name another file, or remove it"),
        (b"\xff\xfe\n", "store.jsonl: line 1: is no result of a sweep"),
        (b"one line of something else", "store.jsonl: holds no results of sweeps: name another file, or remove it"),
    ],
)
def test_a_file_of_something_else_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    store = tmp_path / "store.jsonl"
    store.write_bytes(content)
    with pytest.raises(InputError, match=message):
        run_cases(CASES, jobs=1, store=store)
    assert store.read_bytes() == content


def test_a_store_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written: no such file or directory"):
        run_cases(CASES, jobs=1, store=tmp_path / "missing" / "store.jsonl")
    with pytest.raises(InputError, match="cannot be written: is a directory"):
        run_cases(CASES, jobs=1, store=tmp_path)
    with pytest.raises(InputError, match=r"/dev/null: is not a regular file"):
        run_cases(CASES, jobs=1, store="/dev/null")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_a_full_disk_is_said_in_one_line(tmp_path: Path) -> None:
    store = tmp_path / "store.jsonl"
    (result,) = run_cases(CASES[:1], jobs=1)
    with sweep_store.SweepStore(store) as kept, Path("/dev/full").open("ab", buffering=0) as full:
        assert kept._file is not None
        kept._file.close()
        kept._file = full
        with pytest.raises(InputError, match=r"store.jsonl: cannot be used: no space left on device"):
            kept.add(b"case", result.row)
