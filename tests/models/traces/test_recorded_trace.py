"""The recorded trace that ships with the project: what it holds, what damage to it does, and that its script still runs."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from handwritten_trace import two_linears, write_pair
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import read_input_bytes
from slackswap.models.problem import Problem
from slackswap.models.traces.pytorch.pair import import_pytorch
from slackswap.models.traces.recorded import SMALL_GPT_FILES, recorded_trace_paths

# One hidden tensor: 8 sequences of 128 tokens, 256 floats of 4 bytes.
UNIT_BYTES = 8 * 128 * 256 * 4
STATISTICS_BYTES = 8 * 128 * 4  # one float per token; a layer norm saves mean and reciprocal deviation


@pytest.fixture(scope="module")
def small_gpt() -> Problem:
    return import_pytorch(recorded_trace_paths(), link=PLAIN_LINK)


def test_small_gpt_saves_what_its_blocks_save(small_gpt: Problem) -> None:
    # Per block, in units: norm output 1, qkv 3, attention output 1, dropout mask 1 (floats on a CPU), sum 1, norm output 1,
    # fc_1 4, gelu 4, mask 1, sum 1; and two norms' statistics, and the log-sum-exp of 4 heads.
    block_bytes = 18 * UNIT_BYTES + 4 * STATISTICS_BYTES + 8 * 4 * 128 * 4
    # Embedding sum after dropout, and its mask; the last norm; log-softmax over 2048 words; 128 positions of 8 bytes; the
    # weight of the loss and the gradient 1.0 that starts the backward pass.
    ends_bytes = 3 * UNIT_BYTES + 2 * STATISTICS_BYTES + 8 * 128 * 2048 * 4 + 128 * 8 + 4 + 4
    assert small_gpt.saved_bytes == 6 * block_bytes + ends_bytes
    # 15 tensors per block; 1 + 1 around the embedding, 3 of the last norm, 2 of the loss, positions, 1.0.
    assert small_gpt.saved.sum() == 6 * 15 + 9


def test_small_gpt_is_linked_by_ids_and_complete(small_gpt: Problem) -> None:
    # 7 annotations: the step and six blocks.
    assert small_gpt.metadata["nodes"] - small_gpt.metadata["matched_nodes"] == 7
    assert "The two files are linked by record function id." in small_gpt.metadata["heuristics"]
    assert (small_gpt.n_forward, small_gpt.n_operators) == (137, 424)
    assert small_gpt.rebuildable[small_gpt.saved].all()
    assert (small_gpt.duration_s > 0).all()
    assert small_gpt.backward_s > small_gpt.forward_s > 0.01


def test_small_gpt_has_blocks_and_keeps_their_inputs_outside(small_gpt: Problem) -> None:
    saved_in_block = np.bincount(small_gpt.block[small_gpt.saved & (small_gpt.block >= 0)])
    # 15 saved tensors per block, of which the last sum is the next block's input: 14 to recompute.
    assert saved_in_block.tolist() == [14] * 6


def test_the_files_name_no_home_and_no_host() -> None:
    for path in recorded_trace_paths():
        content = read_input_bytes(path)
        assert path.stat().st_size < 300_000
        assert not any(word in content for word in (b"/home/", b"/root/", b"/tmp/", b"/Users/", b"host_name"))


# ---- damage ---------------------------------------------------------------------------------------------------------

Place = tuple[Any, ...]  # the keys and indices that lead to a value
scraps = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from(
        [2**63, 2**64 + 1, -(2**70), 1e308, "", "x", "inf", [], {}, [[]], [1, 2, 3, 4, 5, "cpu"], {"values": 3}]
    ),
)


def places(value: Any, place: Place = ()) -> list[Place]:
    """Every place inside a JSON value, by the keys and indices that lead to it."""
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    else:
        inner = []
    return [place, *(found for key, child in inner for found in places(child, (*place, key)))][0 if place else 1 :]


def damage(trace: Any, data: st.DataObject, all_places: list[Place]) -> None:
    """Drop what stands at one place, or put something else there."""
    *way, last = all_places[data.draw(st.integers(0, len(all_places) - 1))]
    parent = trace
    for key in way:
        parent = parent[key]
    if data.draw(st.booleans()):
        del parent[last]
    else:
        parent[last] = copy.deepcopy(data.draw(scraps))  # a later damage may change it


def refused_or_valid(contents: list[bytes]) -> None:
    """Import; what comes back is a problem that passed every rule, or one line about one of the files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("a.json", "b.json")]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        try:
            problem = import_pytorch(paths, link=PLAIN_LINK)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            assert str(error).startswith(folder)
        else:
            again = Problem.from_records("again", problem.operators(), problem.tensors(), problem.link)
            assert again.saved_bytes == problem.saved_bytes


@settings(max_examples=250, deadline=2000)
@given(data=st.data(), ids=st.booleans(), flat=st.booleans())
def test_damage_to_a_small_pair_is_refused_or_harmless(data: st.DataObject, ids: bool, flat: bool) -> None:
    pair = write_pair(two_linears(), ids=ids, flat=flat)
    traces = [pair.execution_trace, pair.kineto]
    for trace in traces:
        for _ in range(data.draw(st.integers(0, 2))):
            damage(trace, data, places(trace))
    refused_or_valid([json.dumps(trace).encode() for trace in traces])


@settings(max_examples=100, deadline=2000)
@given(data=st.data())
def test_torn_and_garbled_bytes_are_refused_or_harmless(data: st.DataObject) -> None:
    pair = write_pair(two_linears())
    contents = [json.dumps(trace).encode() for trace in (pair.execution_trace, pair.kineto)]
    which = data.draw(st.integers(0, 1))
    start = data.draw(st.integers(0, len(contents[which])))
    length = data.draw(st.sampled_from([0, 1, 5, len(contents[which])]))
    garbage = data.draw(st.binary(max_size=4))
    contents[which] = contents[which][:start] + garbage + contents[which][start + length :]
    refused_or_valid(contents)


@pytest.fixture(scope="module")
def recorded() -> list[tuple[bytes, list[Place]]]:
    contents = [read_input_bytes(path) for path in recorded_trace_paths()]
    return [(content, places(json.loads(content))) for content in contents]


@settings(max_examples=20, deadline=5000)
@given(data=st.data())
def test_damage_to_the_recorded_pair_is_refused_or_harmless(
    recorded: list[tuple[bytes, list[Place]]], data: st.DataObject
) -> None:
    contents = []
    for content, all_places in recorded:
        trace = msgspec.json.decode(content)
        damage(trace, data, all_places)
        contents.append(msgspec.json.encode(trace))
    refused_or_valid(contents)


# ---- the script -----------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_the_script_records_the_same_storages_again(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from slackswap.models.traces.recorded.record_small_gpt import SmallGpt, record

    tiny = SmallGpt(blocks=2, hidden=32, heads=2, sequence=16, batch=2, vocabulary=64)
    paths = record(tmp_path, tiny, warmup_steps=1, recordings=1)
    assert [path.name for path in paths] == list(SMALL_GPT_FILES)
    problem = import_pytorch(paths, link=PLAIN_LINK)
    # The same operators per block as in the recorded trace: 15 saved tensors each, and 9 at the ends.
    assert problem.saved.sum() == 2 * 15 + 9
