"""Trace files: which are refused, with what reason, and what real profilers write that is read all the same."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from handwritten_trace import (
    on_gpu,
    refusal,
    two_linears,
    write_pair,
)
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.pytorch.pair import import_pytorch

US = 1e-6


# ---- refusals -------------------------------------------------------------------------------------------------------


def test_half_a_pair_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()).write(tmp_path)
    # Which two are saved: see test_pytorch_traces.
    assert "has no times; it holds 10 operators and A = 0.0 MB in 2 tensors; give the Kineto" in refusal(
        [execution_trace]
    )
    assert "does not say which tensor an operator reads; it holds 10 operators" in refusal([kineto])
    assert "only an execution trace and its Kineto trace belong together" in refusal([kineto, kineto])
    assert "give a trace file" in refusal([])
    with pytest.raises(InputError, match="is a second Kineto trace"):
        import_pytorch([kineto, kineto], link=PLAIN_LINK)
    with pytest.raises(InputError, match=r"not execution trace$"):
        import_pytorch([execution_trace], link=PLAIN_LINK)


def test_a_forward_pass_alone_is_no_training(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()[:4]).write(tmp_path)
    assert "has no backward pass" in refusal([execution_trace])
    assert "has no backward pass" in refusal([kineto])
    assert "has no backward pass" in refusal([execution_trace, kineto])


def test_gradient_accumulation_is_refused(tmp_path: Path) -> None:
    assert "several backward passes" in refusal(write_pair(two_linears() + two_linears()).write(tmp_path))


def test_a_broken_call_tree_is_refused(tmp_path: Path) -> None:
    """An exception leaves a call unseen: what follows is recorded as if it lay inside of that call."""
    pair = write_pair(two_linears())
    outer, inner = [node for node in pair.execution_trace["nodes"] if node["name"].endswith("AddmmBackward0")][::2]
    inner["ctrl_deps"] = outer["id"]
    assert "its call tree is broken" in refusal(pair.write(tmp_path))


def test_traces_of_two_runs_are_refused(tmp_path: Path) -> None:
    pair = write_pair(two_linears())
    pair.execution_trace["pid"] = 78
    assert "was not recorded in the execution trace's process, 78" in refusal(pair.write(tmp_path))
    other = write_pair([replace(call, name=f"other::{call.name}") for call in two_linears()])
    mixed = replace(write_pair(two_linears(), ids=False), kineto=other.kineto)
    assert "does not belong to the execution trace" in refusal(mixed.write(tmp_path))


def test_a_gpu_model_without_kernels_is_refused(tmp_path: Path) -> None:
    pair = write_pair(on_gpu(two_linears()))
    pair.kineto["traceEvents"] = [event for event in pair.kineto["traceEvents"] if event["cat"] == "cpu_op"]
    assert "holds no kernels, but the model ran on cuda:0" in refusal(pair.write(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"SQLite format 3\0", "SQLite"),
        (b"\x80\x04\x95\x00", "is a pickle, and none of a CUDA memory snapshot"),
        (b"\x01\x02\x03", "is binary, and no kind of trace that is known"),
        (b"some notes of mine", "is text, and no trace that is known"),
        (b"[[-1, 1, 37888, 7]]", "is a memory timeline: it holds no operator times"),
        (b'["a", "b"]', "is JSON, but neither"),
        (b'[{"a": 1}]', "is a JSON array, but not of trace events"),
        (b'{"nodes": [{"id": 1}]}', "holds nodes without a schema and without tensors"),
        (b'{"graph": []}', "neither a Kineto trace"),
        (b'{"traceEvents": [{"ph": "X"', "is truncated JSON: it ends at offset 27"),
        (
            b'{"traceEvents": [{"ph": "X", "ts": 1 2}]}',
            "$.traceEvents[0]: is not valid JSON in what starts at offset 17",
        ),
        (b'{"traceEvents": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}", "$.traceEvents[0]"),
        (b'{"traceEvents": [' + b'{"args":' * 100_000 + b"1" + b"}" * 100_000 + b"]}", "$.traceEvents[0]"),
        (b'{"traceEvents": [' + b"[" * 100_000, "is truncated JSON"),
        (b'{"traceEvents": []}}', "a bracket closes what no bracket opened, at offset 19"),
        (b'{"schema": "1.1.1", "nodes": [{"id": "x", "name": ""}]}', "$.nodes[0].id"),
        (b'{"schema": "1.1.1", "nodes": [{"id": 1, "name": "", "inputs": 5}]}', "$.nodes[0].inputs"),
        (b'{"schema": "1.1.1", "nodes": [{"id": 1, "name": ""}, {"id": 1, "name": ""}]}', "the id 1 stands twice"),
        (b'{"traceEvents": [{}, {"ph": "X", "cat": "kernel", "dur": -4}]}', "$.traceEvents[1].dur"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": "soon"}]}', "$.traceEvents[0].ts"),
    ],
)
def test_other_and_damaged_files_are_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(content)
    said = refusal([path])
    assert said.startswith(f"{path}: ")
    assert reason in said


# ---- what real writers do -------------------------------------------------------------------------------------------


def kineto_as(change: Callable[[dict[str, Any]], bytes], folder: Path) -> Problem:
    pair = write_pair(two_linears())
    paths = pair.write(folder)
    paths[1].write_bytes(change(pair.kineto))
    return import_pytorch(paths, link=PLAIN_LINK)


def text(kineto: dict[str, Any]) -> str:
    return json.dumps(kineto)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda kineto: json.dumps(kineto["traceEvents"]).encode(), id="a bare list"),
        pytest.param(lambda kineto: gzip.compress(text(kineto).encode()), id="gzip under any suffix"),
        pytest.param(lambda kineto: b"\n " + text(kineto).encode(), id="leading space"),
        pytest.param(lambda kineto: text(kineto).replace('"ts": 0.0', '"ts": "0.0"').encode(), id="times in quotes"),
        pytest.param(lambda kineto: text(kineto).replace("Toy GPU", "Toy\n\x01").encode(), id="control characters"),
        pytest.param(lambda kineto: text(kineto).encode().replace(b"Toy GPU", b"\xff\xfe"), id="invalid UTF-8"),
        pytest.param(
            lambda kineto: text(kineto).replace('"args": {', '"args": {"memory bandwidth (GB/s)": inf, ').encode(),
            id="bare inf",
        ),
        pytest.param(
            lambda kineto: text(kineto).replace('"External id": ', '"External id": 18446744073709551').encode(),
            id="huge ids",
        ),
        pytest.param(
            lambda kineto: (
                text(kineto)
                .replace('"traceEvents": [', '"traceEvents": [{"ph": "X"}, {"ph": "i", "pid": ""}, ')
                .encode()
            ),
            id="events without anything",
        ),
        pytest.param(lambda kineto: text(kineto).replace('"cpu_op"', '"Operator"').encode(), id="names of 2021"),
    ],
)
def test_what_real_profilers_write_is_read(tmp_path: Path, change: Callable[[dict[str, Any]], bytes]) -> None:
    assert kineto_as(change, tmp_path).ideal_s == pytest.approx(967 * US)


def test_an_archive_of_one_trace_is_read_in_memory(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()).write(tmp_path)
    archive = tmp_path / "step.json.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(execution_trace, arcname="step.json")
    assert import_traces([archive, kineto], link=PLAIN_LINK).name == "step"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(execution_trace, arcname="a.json")
        tar.add(execution_trace, arcname="b.json")
    assert "found 3 files" in refusal([archive, kineto])


def test_an_archive_of_a_pair_and_of_other_files_is_a_pair(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()).write(tmp_path)
    (tmp_path / "notes.txt").write_text("step 7, second run")
    archive = tmp_path / "run.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for path in (tmp_path / "notes.txt", kineto, execution_trace):
            tar.add(path, arcname=f"run/{path.name}")
    alone = import_traces([execution_trace, kineto], link=PLAIN_LINK)
    assert import_traces([archive], link=PLAIN_LINK).operators() == alone.operators()


def test_a_torn_archive_is_one_line(tmp_path: Path) -> None:
    execution_trace, _ = write_pair(two_linears()).write(tmp_path)
    archive = tmp_path / "run.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(execution_trace, arcname="step.json")
    archive.write_bytes(archive.read_bytes()[:1500])
    assert "torn or corrupt tar archive" in refusal([archive])
    with tarfile.open(archive, "w") as tar:
        tar.addfile(tarfile.TarInfo("folder/"))
    assert "is an archive without files" in refusal([archive])
