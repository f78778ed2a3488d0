"""What a problem's saved bytes are checked against, and what a difference is said to mean."""

from __future__ import annotations

import dataclasses
import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from instances import MB, PLAIN_LINK, chain, two_layers
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces.cross_check import MOST_ABOVE, MOST_BELOW, RECORDINGS, CrossCheck, cross_check
from slackswap.models.traces.pipedream import import_pipedream
from slackswap.models.traces.trace_file import TraceFile

PROBLEM = two_layers()  # saves 30 MB in 2 tensors
PREEXISTING, CREATE, ACTIVATION = 1, 2, 4


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "recording"


def timeline(size_bytes: int) -> bytes:
    return json.dumps([[-1, PREEXISTING, 4 * MB, 0], [1, CREATE, 2 * MB, 2], [2, CREATE, size_bytes, 4]]).encode()


def frames(name: str) -> list[dict[str, object]]:
    return [{"name": name, "filename": "model.py", "line": 1}]


def snapshot(*sizes_bytes: int) -> bytes:
    events = [
        {"action": "alloc", "addr": i, "size": size, "frames": frames("forward")} for i, size in enumerate(sizes_bytes)
    ]
    backward = {"action": "alloc", "addr": 999, "size": 1, "frames": frames("torch::autograd::Engine::thread_main()")}
    frees = [{"action": "free_completed", "addr": i} for i in (*range(len(sizes_bytes)), 555)]
    return pickle.dumps({"segments": [], "device_traces": [[*events, backward, *frees]]})


def checked(file: Path, content: bytes, problem: Problem = PROBLEM) -> CrossCheck:
    file.write_bytes(content)
    return cross_check(problem, file)


def test_a_timeline(file: Path) -> None:
    # 30.3 MB against 30: 1% more, in blocks.
    check = checked(file, timeline(30_300_000))
    assert (check.kind, check.saved_bytes, check.n_tensors) == ("memory timeline", 30_300_000, None)
    assert check.problem_bytes == 30 * MB
    assert check.difference == pytest.approx(0.01)
    assert check.agrees
    assert check.verdict == (
        "Agrees: the memory timeline has 30.3 MB, 1.0% more than the problem's A of 30.0 MB; up to 1.5% is explained by"
        " the allocator's rounding (512 bytes a block, up to 1 MiB of a large one)."
    )
    assert any("PARAMETER 4.0 MB, INPUT 2.0 MB" in remark for remark in check.remarks)


def test_a_snapshot(file: Path) -> None:
    check = checked(file, gzip.compress(snapshot(10 * MB, 20 * MB)))
    assert (check.kind, check.saved_bytes, check.n_tensors) == ("CUDA memory snapshot", 30 * MB, 2)
    assert (check.difference, check.agrees) == (0, True)
    assert check.verdict == "Agrees: the CUDA memory snapshot has the problem's A of 30.0 MB exactly."
    assert check.remarks == (
        "2 tensors are saved, and 2 in the problem.",
        "1 frees are of blocks older than the first event.",
    )


@pytest.mark.parametrize(
    ("saved_bytes", "agrees", "verdict"),
    [
        (30_450_000, True, "Agrees: the memory timeline has 30.4 MB, 1.5% more than"),  # 1 + MOST_ABOVE
        (30_460_000, False, "Differs: the memory timeline has 30.5 MB, 1.5% more than"),
        (29_850_000, True, "Agrees: the memory timeline has 29.9 MB, 0.5% less than"),  # 1 - MOST_BELOW
        (29_840_000, False, "Differs: the memory timeline has 29.8 MB, 0.5% less than"),
    ],
)
def test_tolerance(file: Path, saved_bytes: int, agrees: bool, verdict: str) -> None:
    assert (MOST_ABOVE, MOST_BELOW) == (0.015, 0.005)
    check = checked(file, timeline(saved_bytes))
    assert check.agrees is agrees
    assert check.verdict.startswith(verdict)


def test_what_a_difference_means(file: Path) -> None:
    more = checked(file, timeline(40 * MB)).verdict
    assert "33.3% more" in more
    assert "another batch size, model or step" in more
    assert "autocast's copies of weights" in more
    less = checked(file, snapshot(10 * MB)).verdict
    assert "66.7% less" in less
    assert "rounding never makes it less" in less
    for sentence in (more, less):
        assert sentence.count(".") - sum(sentence.count(number) for number in (".0 MB", "1.5%", "33.3%", "66.7%")) == 1


@pytest.mark.parametrize(
    ("saved_mb", "factor"), [(60, 2), (60.5, 2), (120.5, 4), (15, 2), (10, 3), (66, None), (38, None), (0.001, None)]
)
def test_a_likely_factor_is_named(file: Path, saved_mb: float, factor: int | None) -> None:
    named = [remark for remark in checked(file, timeline(int(saved_mb * MB))).remarks if " times the other" in remark]
    assert [remark.split()[2] for remark in named] == ([] if factor is None else [str(factor)])


def test_nothing_saved(file: Path) -> None:
    # All is freed before the backward pass: a difference of -100%, and nothing divided by 0.
    events = [
        {"action": "alloc", "addr": 1, "size": 5, "frames": frames("forward")},
        {"action": "free_completed", "addr": 1},
        {"action": "alloc", "addr": 2, "size": 5, "frames": frames("torch::autograd::Engine::execute()")},
    ]
    check = checked(file, pickle.dumps({"segments": [], "device_traces": [events]}))
    assert (check.saved_bytes, check.n_tensors, check.difference, check.agrees) == (0, 0, -1, False)
    assert check.remarks == ("0 tensors are saved, and 2 in the problem.",)
    without = dataclasses.replace(chain(1), readers_start=chain(1).readers_start * 0, readers=chain(1).readers[:0])
    assert without.saved_bytes == 0
    with pytest.raises(InputError, match="the problem has no saved tensors"):
        checked(file, timeline(5), without)


def test_remarks_of_a_snapshot(file: Path) -> None:
    # Two steps on device 1, each with the loss (in `main`) and a cast; the last leaves the loss. A block in use at 70 has
    # a stack, but no event. Device 0 saves less.
    def alloc(address: int, size_mb: int, *names: str) -> dict[str, object]:
        stack = [frame for name in names for frame in frames(name)]
        return {"action": "alloc", "addr": address, "size": size_mb * MB, "frames": stack}

    def step(weight_mb: int) -> list[dict[str, object]]:
        return [
            *(alloc(1, weight_mb, "at::autocast::cached_cast()", "forward"), alloc(2, 20, "main")),
            *(alloc(3, 1, "torch::autograd::Engine::execute()"), {"action": "free_completed", "addr": 1}),
        ]

    block = {"size": 9, "state": "active_allocated", "frames": frames("forward")}
    content = {
        "device_traces": [step(1), [*step(4), {"action": "free_completed", "addr": 2}, *step(10)]],
        "segments": [{"device": 1, "address": 70, "blocks": [block]}],
    }
    assert checked(file, pickle.dumps(content)).remarks == (
        "2 tensors are saved, and 2 in the problem.",
        "Device 1 was measured, which saves most (0: 21.0 MB, 1: 30.0 MB).",
        "Backward pass 2 of 2 was measured; they save 24.0 MB to 30.0 MB.",
        "Of it, 20.0 MB (1 tensor) was allocated outside of any module's forward: the loss.",
        "Of it, 20.0 MB (1 tensor) is never freed: Python names hold it (logits), it is a library's workspace, or the"
        " recording ends before the backward pass does.",
        "Of it, 10.0 MB (1 tensor) is autocast's copies, of activations and of weights.",
        "The ring buffer was full and the oldest events are lost, such as those of 1 blocks in use: record with a larger"
        " max_entries.",
    )


def test_a_round_number_of_events_is_remarked(file: Path) -> None:
    # 2 allocations, 1 of the backward pass, 3 frees, and more to make 1000.
    content = pickle.loads(snapshot(10 * MB, 20 * MB))
    content["device_traces"][0] += [{"action": "free_requested", "addr": 1}] * 994
    assert "There are exactly 1000 events: if that was max_entries, the oldest are lost." in (
        checked(file, pickle.dumps(content)).remarks
    )


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"SQLite format 3\0 and so on", "is an SQLite file, as Nsight Systems exports it"),
        (pickle.dumps({"weights": [1]}), "is a pickle, and none of a CUDA memory snapshot"),
        (b'{"traceEvents": []}', "holds no memory events of a device: record with profile_memory=True"),
        (b"[[1, 2, 3], [[0, 1]]]", "is a JSON array, but not of trace events; check against a CUDA memory snapshot"),
        (b"node1 -- A() -- forward_compute_time=1.0, ", "is a PipeDream graph, which does not count saved bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not the data"),
        (b"", "is empty"),
        (gzip.compress(timeline(5), mtime=0)[:-9], "is torn gzip"),
        (timeline(5)[:-1], "is torn or no JSON after row 2"),
        (snapshot(5)[:-1], "is a torn pickle"),
    ],
)
def test_what_cannot_be_checked_against_is_refused(file: Path, content: bytes, rule: str) -> None:
    with pytest.raises(InputError) as refused:
        checked(file, content)
    assert refused.value.rule.startswith(rule)
    assert refused.value.source == str(file)


def test_refusals_name_every_kind_of_recording(file: Path) -> None:
    with pytest.raises(InputError) as refused:
        checked(file, b"{}")
    for recording in RECORDINGS.values():
        assert f"a {recording.kind} ({recording.how_to_record})" in refused.value.rule


@pytest.mark.parametrize("as_file", [TraceFile, str])
def test_files_are_named_in_any_way(file: Path, as_file: Callable[[Path], TraceFile | str]) -> None:
    file.write_bytes(timeline(30 * MB))
    assert cross_check(PROBLEM, as_file(file)).difference == 0


def test_resnet_50_from_two_sources() -> None:
    # PipeDream's profile is of batch 128, the timeline of batch 32. A quarter of A with pool indices is 2,730.0 MB, and the
    # timeline's 2,746.5 MB are 0.6% more.
    problem = import_pipedream(shared_file("traces/pipedream/resnet50.graph.txt"), link=PLAIN_LINK, pool_indices=True)
    recording = shared_file("traces/memory_timeline/resnet50_b32.memory_timeline.raw.json.gz")
    check = cross_check(problem, recording)
    assert not check.agrees
    assert check.remarks[0].startswith("One is 4 times the other")
    check = cross_check(dataclasses.replace(problem, tensor_bytes=problem.tensor_bytes // 4), recording)
    assert check.agrees
    assert check.difference == pytest.approx(0.006, abs=0.0005)


def test_real_files_that_count_no_bytes() -> None:
    with pytest.raises(InputError, match=r"is an SQLite file.* check against a CUDA memory snapshot"):
        cross_check(PROBLEM, shared_file("traces/nsys/NEG_h100_2gpu_forward_only.sqlite.gz"))
