"""Damaged problem files: refused with an `InputError`, or a valid problem; nothing else escapes, nothing hangs."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import chain, columns, problems

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.problem_file import looks_like_problem, problem_from_json, problem_to_json, read_problem

# A read takes about a millisecond; a hang fails.
hangs_fail = settings(deadline=2000)


def refused_or_valid(content: bytes) -> Problem | None:
    """Read `content`; what is accepted must survive another round."""
    looks_like_problem(content)
    try:
        problem = problem_from_json(content, source="fuzzed")
    except InputError as error:
        assert str(error).startswith("fuzzed: ")
        assert len(str(error).splitlines()) == 1
        return None
    assert columns(problem_from_json(problem_to_json(problem))) == columns(problem)
    return problem


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "fuzzed.json.gz"


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([-1, 0, 1, 2, 1 << 53, 1 << 60, 1 << 63, -(1 << 63), 1 << 64, 10**30])
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["forward", "backward", "gemm", "slackswap-problem/1"]),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(max_size=5), values, max_size=3),
    max_leaves=5,
)


def places(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the path of every value below the root."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


def at(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


@st.composite
def mutated_documents(draw: st.DrawFn) -> Any:
    """Return the tree of a valid problem after one to three changes."""
    document: Any = json.loads(problem_to_json(draw(problems(max_forward=3))))
    for _ in range(draw(st.integers(1, 3))):
        paths = list(places(document))
        path = draw(st.sampled_from(paths))
        parent, key = at(document, path[:-1]), path[-1]
        action = draw(st.sampled_from(["replace", "remove", "double", "overwrite"]))
        if action == "replace":
            parent[key] = draw(json_values)
        elif action == "remove":
            del parent[key]
        elif action == "overwrite":
            parent[key] = copy.deepcopy(at(document, draw(st.sampled_from(paths))))
        elif isinstance(parent, list):
            parent.append(copy.deepcopy(parent[-1]))
        else:
            parent[draw(st.text(max_size=5))] = copy.deepcopy(parent[key])
    return document


@hangs_fail
@given(mutated_documents())
def test_mutated_trees(document: Any) -> None:
    refused_or_valid(json.dumps(document).encode())


@hangs_fail
@given(json_values)
def test_any_json(value: Any) -> None:
    assert refused_or_valid(json.dumps(value).encode()) is None


@hangs_fail
@given(st.data())
def test_replaced_bytes(data: st.DataObject) -> None:
    content = bytearray(problem_to_json(chain(2)))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"}", b"[", b"]", b",", b"-", b"\\", b"e9"])
        )
        content[at : at + data.draw(st.integers(0, 3))] = piece
    refused_or_valid(bytes(content))


@hangs_fail
@given(st.binary(max_size=200))
def test_random_bytes(content: bytes) -> None:
    assert refused_or_valid(content) is None


@hangs_fail
@given(st.data())
def test_spliced_texts(data: st.DataObject) -> None:
    # Pieces of a valid text in another order meet parser states that single bytes do not.
    content = problem_to_json(chain(2))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), min_size=3, max_size=3)))
    a, b, c = cuts
    refused_or_valid(content[:a] + content[b:c] + content[a:b] + content[c:])


def read_packed(path: Path, packed: bytes, original: Problem) -> None:
    """Read damaged gzip; a checksum guards the content, so that what is accepted is what was packed."""
    path.write_bytes(packed)
    try:
        problem = read_problem(path)
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
        return
    assert columns(problem) == columns(original)


@hangs_fail
@given(st.data())
def test_truncated_gzip(scratch: Path, data: st.DataObject) -> None:
    packed = gzip.compress(problem_to_json(chain(3)))
    scratch.write_bytes(packed[: data.draw(st.integers(0, len(packed) - 1))])
    with pytest.raises(InputError):
        read_problem(scratch)


@hangs_fail
@given(st.data())
def test_flipped_bits_in_gzip(scratch: Path, data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(problem_to_json(chain(3))))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, 8 * len(packed) - 1))
        packed[at // 8] ^= 1 << at % 8
    read_packed(scratch, bytes(packed), chain(3))


@hangs_fail
@given(st.binary(max_size=20), st.integers(0, 2000))
def test_bytes_after_gzip(scratch: Path, tail: bytes, zeros: int) -> None:
    packed = gzip.compress(problem_to_json(chain(3)))
    read_packed(scratch, packed + tail + b"\0" * zeros, chain(3))


@pytest.mark.parametrize("opening", ['{"metadata":' + '{"a":' * 100_000, "[" * 1_000_000, '{"format":' * 50_000])
def test_deep_nesting(opening: str) -> None:
    assert refused_or_valid(opening.encode()) is None


def test_deep_nesting_in_metadata_near_the_limit() -> None:
    # Where the parser's limit lies depends on the caller's stack: accepted or refused, but no RecursionError.
    content = problem_to_json(chain(1)).decode()
    for depth in range(50, 1500, 50):
        nested = content.replace('"metadata": {}', '"metadata": {"a":' + "[" * depth + "]" * depth + "}")
        with contextlib.suppress(InputError):
            problem = problem_from_json(nested.encode())
            problem_to_json(problem)
