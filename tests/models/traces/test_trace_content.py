"""Files are told apart by what is in them, whatever they are called and however long their preamble is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.traces import trace_content
from slackswap.models.traces.trace_content import recognise
from slackswap.models.traces.trace_file import TraceFile, as_trace_file, open_trace_files

EVENT = {"ph": "X", "name": "a", "ts": 1}
NODE = {"id": 1, "name": "a", "inputs": []}
PREAMBLE = {"deviceProperties": [{"id": i, "name": "GPU", "x": "y" * 500} for i in range(20)], "displayTimeUnit": "ms"}


def kind_of(document: object) -> str:
    return recognise(TraceFile(Path("file.bin"), content=json.dumps(document).encode()))


def refusal_of(content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        recognise(TraceFile(Path("file.bin"), content=content))
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_json_traces_are_told_apart_by_their_arrays() -> None:
    assert kind_of({"traceEvents": [EVENT]}) == "Kineto trace"
    assert kind_of([EVENT]) == "Kineto trace"  # the old autograd profiler
    assert kind_of({"schema": "1.1.1", "nodes": [NODE]}) == "execution trace"
    assert kind_of({"nodes": [NODE], "schema": "1.1.1"}) == "execution trace"


def test_the_preamble_may_be_longer_than_what_is_looked_at_first() -> None:
    assert kind_of(PREAMBLE | {"traceEvents": [EVENT]}) == "Kineto trace"
    assert kind_of(PREAMBLE | {"schema": "1.1.1", "nodes": [NODE]}) == "execution trace"
    assert kind_of({"nodes": [NODE] * 500, "schema": "1.1.1"}) == "execution trace"


def test_an_empty_list_of_events_is_a_kineto_trace() -> None:
    assert kind_of({"traceEvents": []}) == "Kineto trace"
    assert kind_of({"schemaVersion": 1, "traceEvents": [], "traceName": "/tmp/t.json"}) == "Kineto trace"


def test_arrays_that_are_no_trace_are_not_read_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_content, "_MAX_ITEMS", 5)
    assert "is JSON, but neither a Kineto trace" in refusal_of(json.dumps({"rows": [{}] * 10 + [EVENT]}).encode())
    torn_later = json.dumps({"rows": [{}] * 10}).encode()[:-3]
    assert "is JSON, but neither" in refusal_of(torn_later)


def test_what_is_no_trace_says_what_it_is() -> None:
    assert "is a JSON array, but not of trace events" in refusal_of(b"[[1, 2]]")
    assert "neither a Kineto trace" in refusal_of(b"[]")
    assert "nodes without a schema" in refusal_of(b'{"nodes": [{"id": 1}]}')
    assert "is text, and no trace that is known" in refusal_of(b"step 3: 20 ms\n")
    assert "is binary" in refusal_of(b"\x7fELF\x02\x01\x01\0")
    assert "is a pickle" in refusal_of(b"\x80\x04K\x01.")


def test_damage_is_named_before_the_kind(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"rows": ["x" * 99] * 999}).encode(), 0)[:2000])
    with pytest.raises(InputError, match="torn gzip: the data ends at offset 2000"):
        recognise(as_trace_file(path))
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")
    with pytest.raises(InputError, match="is a Git LFS pointer, not the data"):
        recognise(as_trace_file(path))
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({"traceEvents": [EVENT]}).encode())
    assert recognise(as_trace_file(path)) == "Kineto trace"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kineto/minitoy_mi250_train.json.gz", "Kineto trace"),
        ("kineto/NEG_alexnet_a100_forward_only.json.gz", "Kineto trace"),
        ("et/resnet18_2080ti_et_schema1.0.1.json.gz", "execution trace"),
        ("et/hf_gpt2_large_et_only_schema1.1.0.json.tar.gz", "execution trace"),
        ("chakra/resnet50_b32_ddp_chakra_et_protobuf.tar.gz", "Chakra trace"),
        ("pipedream/gnmt.graph.txt", "PipeDream graph"),
        ("g10/bert_base_b256_a100.kernels.config.gz", "G10 kernel list"),
        ("snapshot/medium24L_ctx128_training.pickle.gz", "memory snapshot"),
        ("memory_timeline/resnet50_b32.memory_timeline.raw.json.gz", "memory timeline"),
    ],
)
def test_real_files_are_recognised(name: str, kind: str) -> None:
    (file,) = open_trace_files(shared_file(f"traces/{name}"))
    assert recognise(file) == kind
