"""The problem file format: every rule with its message, the canonical JSON and its hash."""

from __future__ import annotations

import copy
import gzip
import hashlib
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from instances import MB, MS, PLAIN_LINK, chain, columns, one_operator, problems, two_layers, zero_sizes
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import KINDS, MAX_TOTAL_BYTES, Operator, Problem, Rebuild, Tensor
from slackswap.models.problem_file import (
    looks_like_problem,
    problem_from_json,
    problem_sha256,
    problem_to_json,
    read_problem,
    write_problem,
)

VALID: dict[str, Any] = json.loads(problem_to_json(two_layers()))
DELETE = object()


def changed(path: tuple[str | int, ...], value: object) -> bytes:
    """Return the JSON of two_layers with one value set, or removed."""
    document = copy.deepcopy(VALID)
    parent = document
    for key in path[:-1]:
        parent = parent[key]  # type: ignore[index]
    if value is DELETE:
        del parent[path[-1]]  # type: ignore[arg-type]
    else:
        parent[path[-1]] = value  # type: ignore[index]
    return json.dumps(document).encode()


def refusal(content: bytes) -> tuple[str, str]:
    """Return the place and the rule of the refusal of `content`."""
    with pytest.raises(InputError) as refused:
        problem_from_json(content, source="problem.json")
    error = refused.value
    assert error.source == "problem.json"
    assert "\n" not in str(error)
    return error.place, error.rule


f0, f1, b1 = ("operators", 0), ("operators", 1), ("operators", 2)
a0, a1 = ("tensors", 0), ("tensors", 1)

# What is changed in two_layers | the value | the place | the rule
RULES: list[tuple[tuple[str | int, ...], object, str, str]] = [
    # The object and its keys.
    (
        ("format",),
        "slackswap-problem/2",
        "$.format",
        "is 'slackswap-problem/1' in files of this version, not 'slackswap-problem/2'",
    ),
    (("format",), DELETE, "$", "object missing required field `format`"),
    (("format",), 1, "$.format", "expected `str`, got `int`"),
    (("name",), DELETE, "$", "object missing required field `name`"),
    (("name",), None, "$.name", "expected `str`, got `null`"),
    (("note",), "mine", "$", "object contains unknown field `note`"),
    (("operators",), {}, "$.operators", "expected `array`, got `object`"),
    (("operators",), [], "$.operators", "a problem has at least one operator"),
    (("link",), DELETE, "$", "object missing required field `link`"),
    (("metadata",), [], "$.metadata", "expected `object`, got `array`"),
    (("metadata",), None, "$.metadata", "expected `object`, got `null`"),
    # Operators.
    ((*f1, "duration_s"), "fast", "$.operators[1].duration_s", "expected `float`, got `str`"),
    ((*f1, "duration_s"), True, "$.operators[1].duration_s", "expected `float`, got `bool`"),
    (
        (*f1, "duration_s"),
        -1e-9,
        "$.operators[1].duration_s",
        "a duration is a finite number of seconds, at least 0, not -1e-09",
    ),
    ((*f1, "duration_s"), 2e12, "$.operators[1].duration_s", "a duration is at most 1e+12 s, not 2000000000000.0"),
    ((*f1, "duration_s"), DELETE, "$.operators[1]", "object missing required field `duration_s`"),
    ((*f1, "flops"), 3, "$.operators[1]", "object contains unknown field `flops`"),
    ((*f1, "phase"), "update", "$.operators[1].phase", "is 'forward' or 'backward', not 'update'"),
    (
        (*f0, "phase"),
        "backward",
        "$.operators[1].phase",
        "a forward operator stands after a backward one: all forward, then all backward",
    ),
    (
        (*f1, "workspace_bytes"),
        -1,
        "$.operators[1].workspace_bytes",
        f"a size is a whole number of bytes from 0 to {1 << 60}, not -1",
    ),
    ((*f1, "workspace_bytes"), 1.0, "$.operators[1].workspace_bytes", "expected `int`, got `float`"),
    ((*f1, "workspace_bytes"), False, "$.operators[1].workspace_bytes", "expected `int`, got `bool`"),
    ((*b1, "layer"), 0, "$.operators[2].layer", "layers never decrease: 0 stands after 1"),
    ((*f0, "layer"), -(1 << 60), "$.operators[0].layer", f"is out of range: {-(1 << 60)}"),
    ((*f0, "kind"), "matmul", "$.operators[0].kind", f"'matmul' is not a kind: use one of {', '.join(KINDS)}"),
    # Tensors.
    ((*a0, "bytes"), -1, "$.tensors[0].bytes", f"a size is a whole number of bytes from 0 to {1 << 60}, not -1"),
    (
        (*a0, "bytes"),
        1 << 70,
        "$.tensors[0].bytes",
        f"a size is a whole number of bytes from 0 to {1 << 60}, not {1 << 70}",
    ),
    ((*a0, "bytes"), 1 << 60, "$.tensors", f"tensors and workspaces add up to more than {MAX_TOTAL_BYTES} bytes"),
    ((*a0, "producer"), 4, "$.tensors[0].producer", "operator 4 does not exist: there are 4"),
    ((*a0, "producer"), -1, "$.tensors[0].producer", "operator -1 does not exist: there are 4"),
    ((*a1, "producer"), 1 << 70, "$.tensors[1].producer", f"operator {1 << 70} does not exist: there are 4"),
    (
        (*a0, "producer"),
        2,
        "$.tensors[0].readers[0]",
        "readers ascend and come after the producer: 1 is not after the producer, 2",
    ),
    ((*a1, "producer"), -1, "$.tensors[1].producer", "operator -1 does not exist: there are 4"),
    ((*a0, "readers"), [1, 4], "$.tensors[0].readers[1]", "operator 4 does not exist: there are 4"),
    ((*a0, "readers"), [-1], "$.tensors[0].readers[0]", "operator -1 does not exist: there are 4"),
    (
        (*a0, "readers"),
        [0],
        "$.tensors[0].readers[0]",
        "readers ascend and come after the producer: 0 is not after the producer, 0",
    ),
    (
        (*a0, "readers"),
        [3, 1],
        "$.tensors[0].readers[1]",
        "readers ascend and come after the producer: 1 is not after the reader before it, 3",
    ),
    (
        (*a0, "readers"),
        [1, 1],
        "$.tensors[0].readers[1]",
        "readers ascend and come after the producer: 1 is not after the reader before it, 1",
    ),
    ((*a0, "readers"), DELETE, "$.tensors[0]", "object missing required field `readers`"),
    ((*a0, "readers"), [1, "3"], "$.tensors[0].readers[1]", "expected `int`, got `str`"),
    ((*a0, "block"), -1, "$.tensors[0].block", "a block is a number from 0, or null; not -1"),
    ((*a0, "block"), 1 << 60, "$.tensors[0].block", f"is out of range: {1 << 60}"),
    ((*a0, "block"), "b", "$.tensors[0].block", "expected `int | null`, got `str`"),
    # Rebuilds.
    ((*a1, "rebuild"), 1.0, "$.tensors[1].rebuild", "expected `object | null`, got `float`"),
    ((*a1, "rebuild", "cost"), 1, "$.tensors[1].rebuild", "object contains unknown field `cost`"),
    (
        (*a1, "rebuild", "duration_s"),
        -1,
        "$.tensors[1].rebuild.duration_s",
        "a duration is a finite number of seconds, at least 0, not -1.0",
    ),
    (
        (*a1, "rebuild", "workspace_bytes"),
        -2,
        "$.tensors[1].rebuild.workspace_bytes",
        f"a size is a whole number of bytes from 0 to {1 << 60}, not -2",
    ),
    ((*a1, "rebuild", "inputs"), [2], "$.tensors[1].rebuild.inputs[0]", "tensor 2 does not exist: there are 2"),
    ((*a1, "rebuild", "inputs"), [-1], "$.tensors[1].rebuild.inputs[0]", "tensor -1 does not exist: there are 2"),
    ((*a1, "rebuild", "inputs"), [0, 0], "$.tensors[1].rebuild.inputs[1]", "tensor 0 is named twice"),
    (
        (*a1, "rebuild", "inputs"),
        [1],
        "$.tensors[1].rebuild.inputs[0]",
        "tensor 1 is not produced earlier than tensor 1, which it rebuilds",
    ),
    # The link.
    (("link", "d2h_bytes_per_s"), 0, "$.link.d2h_bytes_per_s", "a bandwidth is a finite number above 0, not 0.0"),
    (("link", "h2d_bytes_per_s"), -1, "$.link.h2d_bytes_per_s", "a bandwidth is a finite number above 0, not -1.0"),
    (("link", "duplex_factor"), 1.5, "$.link.duplex_factor", "lies in (0, 1], not 1.5"),
    (("link", "latency_s"), -1, "$.link.latency_s", "a latency is a finite number of seconds, at least 0, not -1.0"),
    (("link", "latency_s"), DELETE, "$.link", "object missing required field `latency_s`"),
    (("link", "lanes"), 16, "$.link", "object contains unknown field `lanes`"),
]


@pytest.mark.parametrize(("path", "value", "place", "rule"), RULES)
def test_every_rule_names_its_place(path: tuple[str | int, ...], value: object, place: str, rule: str) -> None:
    assert refusal(changed(path, value)) == (place, rule)


def test_tensors_stand_in_order_of_production() -> None:
    document = copy.deepcopy(VALID)
    document["tensors"].reverse()
    document["tensors"][0]["rebuild"] = None
    place = ("$.tensors[1].producer", "tensors stand in order of production: producer 0 comes after 1")
    assert refusal(json.dumps(document).encode()) == place


def test_outputs_of_one_operator_do_not_rebuild_each_other() -> None:
    # a0 and a1 both come from f0: rebuilding a1 runs f0 again, which cannot read its own output.
    document = copy.deepcopy(VALID)
    document["tensors"][1]["producer"] = 0
    place = "$.tensors[1].rebuild.inputs[0]"
    rule = "tensor 0 is not produced earlier than tensor 1, which it rebuilds"
    assert refusal(json.dumps(document).encode()) == (place, rule)


def test_durations_add_up_to_a_finite_sum() -> None:
    document = copy.deepcopy(VALID)
    for operator in document["operators"]:
        operator["duration_s"] = 0.5e12
    assert refusal(json.dumps(document).encode()) == ("$.operators", "the durations add up to more than 1e+12 s")


TEXT = problem_to_json(two_layers()).decode()

# A piece of the canonical text | what it becomes | the place | the rule
TEXTS: list[tuple[str, str, str, str]] = [
    ('"duration_s":0.02', '"duration_s":NaN', "", "JSON is malformed: invalid character (byte 211)"),
    ('"duration_s":0.02', '"duration_s":Infinity', "", "JSON is malformed: invalid character (byte 211)"),
    ('"duration_s":0.02', '"duration_s":1e400', "$.operators[1].duration_s", "number out of range"),
    ('"duration_s":0.02', '"duration_s":' + "9" * 400, "$.operators[1].duration_s", "number out of range"),
    ('"bytes":10000000', '"bytes":' + "9" * 5000, "$.tensors[0].bytes", "integer value out of range"),
    ('"name":"f1"', '"name":"\\ud800"', "", "JSON is malformed: half a surrogate pair"),
    ('"name":"f1"', '"name":"\\ud800\\u0041"', "", "JSON is malformed: half a surrogate pair"),
    ('"name":"f1"', '"name":"\\udc00"', "", "JSON is malformed: invalid utf-16 surrogate pair"),
    ('"name":"f1"', '"name":"f1","name":"f2"', "$.operators[1].name", "this key stands twice in one object"),
    ('"name":"f1"', '"name":"f1","\\u006eame":"f2"', "$.operators[1].name", "this key stands twice in one object"),
    ('"metadata": {}', '"metadata": {"a":{"b c":1,"b c":2}}', '$.metadata.a["b c"]', "this key stands twice"),
    ('"metadata": {}', '"metadata": {"a":[0,{"b":1,"b":1}]}', "$.metadata.a[1].b", "this key stands twice"),
    ('"metadata": {}', '"metadata": {},"metadata":{}', "$.metadata", "this key stands twice in one object"),
    (
        '"metadata": {}',
        '"metadata": {"a":' + "[" * 100_000 + "]" * 100_000 + "}",
        "$",
        "nests too deep for slackswap-problem/1",
    ),
    ('"metadata": {}', '"metadata": {"a":1e999}', "$.metadata[...]", "number out of range"),
    ('"metadata": {}\n}', '"metadata": {}\n} {}', "", "JSON is malformed: trailing characters"),
    ('"metadata": {}\n}', '"metadata": {}', "", "input data was truncated"),
    ('"metadata": {}\n}', "}", "", "JSON is malformed: trailing comma in object"),
]


@pytest.mark.parametrize(("old", "new", "place", "rule"), TEXTS)
def test_malformed_text_is_refused(old: str, new: str, place: str, rule: str) -> None:
    assert old in TEXT
    found_place, found_rule = refusal(TEXT.replace(old, new, 1).encode())
    assert found_place == place
    assert found_rule.startswith(rule)


@pytest.mark.parametrize(
    ("content", "place", "rule"),
    [
        (b"", "", "input data was truncated"),
        (b"[]", "$", "expected `object`, got `array`"),
        (b"null", "$", "expected `object`, got `null`"),
        (b"{}", "$", "object missing required field `format`"),
        (b"\x00\x01\x02", "", "JSON is malformed: invalid character (byte 0)"),
        (TEXT.encode("utf-16"), "", "JSON is malformed: invalid character (byte 0)"),
        (TEXT.replace("two", "tw\xf6").encode("latin-1"), "", "invalid UTF-8 encoded string"),
        (TEXT.encode().replace(b"two", b"\xed\xa0\x80"), "", "invalid UTF-8 encoded string"),
    ],
)
def test_other_content_is_refused(content: bytes, place: str, rule: str) -> None:
    assert refusal(content) == (place, rule)


def test_a_byte_order_mark_is_no_harm() -> None:
    content = b"\xef\xbb\xbf" + problem_to_json(two_layers())
    assert columns(problem_from_json(content)) == columns(two_layers())
    assert looks_like_problem(content)


def test_metadata_is_free() -> None:
    metadata = {"gpu": "A100", "nested": {"a": [1, 2.5, None, True]}, "big": 1 << 70, "": "\u20ac \U00010000"}
    problem = replace(two_layers(), metadata=metadata)
    assert problem_from_json(problem_to_json(problem)).metadata == metadata


def test_metadata_may_be_missing() -> None:
    assert problem_from_json(changed(("metadata",), DELETE)).metadata == {}


@pytest.mark.parametrize("instance", [two_layers, one_operator, zero_sizes, lambda: chain(5)])
def test_named_instances_survive_a_file(instance: Callable[[], Problem], tmp_path: Path) -> None:
    for name in ("problem.json", "problem.json.gz"):
        write_problem(instance(), tmp_path / name)
        assert columns(read_problem(tmp_path / name)) == columns(instance())


def test_gz_is_packed_and_plain_is_not(tmp_path: Path) -> None:
    write_problem(two_layers(), tmp_path / "p.json")
    write_problem(two_layers(), tmp_path / "p.json.gz")
    plain = (tmp_path / "p.json").read_bytes()
    assert plain == problem_to_json(two_layers())
    assert gzip.decompress((tmp_path / "p.json.gz").read_bytes()) == plain


@given(problems())
def test_reading_gives_back_what_was_written(problem: Problem) -> None:
    content = problem_to_json(problem)
    again = problem_from_json(content)
    assert columns(again) == columns(problem)
    assert problem_to_json(again) == content
    assert problem_sha256(again) == problem_sha256(problem)


@given(problems())
def test_canonical_json_is_json_in_the_formats_order(problem: Problem) -> None:
    document = json.loads(problem_to_json(problem))
    assert list(document) == ["format", "name", "operators", "tensors", "link", "metadata"]
    for operator in document["operators"]:
        assert list(operator) == ["name", "phase", "duration_s", "workspace_bytes", "layer", "kind"]
    for t, tensor in enumerate(document["tensors"]):
        assert list(tensor) == ["name", "bytes", "producer", "readers", "block", "rebuild"]
        assert (tensor["rebuild"] is None) == (problem.rebuild_s[t] == math.inf)


def test_key_order_and_spaces_do_not_change_the_hash() -> None:
    shuffled = json.dumps(dict(reversed(VALID.items())), indent=2).encode()
    assert problem_sha256(problem_from_json(shuffled)) == problem_sha256(two_layers())


def test_hash_is_that_of_the_canonical_json() -> None:
    problem = two_layers()
    assert problem_sha256(problem) == hashlib.sha256(problem_to_json(problem)).hexdigest()
    # Frozen: plans on disk name it. If the canonical form must change, so must the format's version.
    assert problem_sha256(problem) == "e2477935d82b522407616b285f77659bb97cad1923d1a1573e198ba974fb4aeb"


def test_hash_ignores_metadata_and_nothing_else() -> None:
    problem = two_layers()
    assert problem_sha256(replace(problem, metadata={"note": "mine"})) == problem_sha256(problem)
    others = [
        replace(problem, name="other"),
        problem.with_link(replace(PLAIN_LINK, latency_s=1e-6)),
        problem_from_json(changed((*f0, "layer"), -1)),
        problem_from_json(changed((*f0, "name"), "g0")),
        problem_from_json(changed((*a0, "bytes"), 1)),
        problem_from_json(changed((*a0, "rebuild"), None)),
    ]
    assert problem_sha256(problem) not in {problem_sha256(other) for other in others}
    assert len({problem_sha256(other) for other in others}) == len(others)


def test_metadata_keys_are_written_sorted() -> None:
    first = replace(two_layers(), metadata={"b": 1, "a": {"d": 2, "c": 3}})
    second = replace(two_layers(), metadata={"a": {"c": 3, "d": 2}, "b": 1})
    assert problem_to_json(first) == problem_to_json(second)


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({"gpu": object()}, "Encoding objects of type object is unsupported"),
        ({1: 2}, "Only dicts with str keys are supported"),
        ({"name": "\ud800"}, "surrogates not allowed"),
    ],
)
def test_metadata_that_is_no_json_is_refused(metadata: dict[str, Any], rule: str, tmp_path: Path) -> None:
    path = tmp_path / "problem.json"
    with pytest.raises(InputError, match=rule) as refused:
        write_problem(replace(two_layers(), metadata=metadata), path)
    assert str(refused.value).startswith(f"{path}: $.metadata: cannot be written as JSON: ")
    assert list(tmp_path.iterdir()) == []


def test_name_that_is_no_text_is_refused() -> None:
    tensors = [Tensor("\ud800", 1, 0, ())]
    problem = Problem.from_records("surrogate", [Operator("f0", "forward", 1.0)], tensors, PLAIN_LINK)
    with pytest.raises(InputError, match=r"^\$\.tensors\[0\]: cannot be written as JSON"):
        problem_to_json(problem)


def test_file_is_named_in_the_refusal(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(changed((*f1, "duration_s"), "fast"))
    with pytest.raises(InputError) as refused:
        read_problem(path)
    assert str(refused.value) == f"{path}: $.operators[1].duration_s: expected `float`, got `str`"


def test_problems_are_recognized_by_content() -> None:
    assert looks_like_problem(b"\n  " + problem_to_json(two_layers()))
    assert looks_like_problem(b'{"format": "slackswap-problem/2"}')  # the reader says what is wrong with it
    assert not looks_like_problem(b'{"format": "slackswap-plan/1"}')
    assert not looks_like_problem(b'["slackswap-problem/1"]')
    assert not looks_like_problem(b'{"x": "' + b" " * 5000 + b'", "format": "slackswap-problem/1"}')
    assert not looks_like_problem(b"")


def test_a_large_problem_reads_in_well_under_a_second() -> None:
    # As large as a GPT model of 768 layers: 17,000 operators and 7,700 tensors. Takes about 0.1 s.
    n, m = 17_000, 7_700
    operators = [Operator(f"op.{i}", "forward" if i < n // 2 else "backward", i * MS, MB, i, "gemm") for i in range(n)]
    tensors = [
        Tensor(f"t.{t}", t * MB, t, (t + 1, n - 1 - t), t // 20, Rebuild(1 * MS, (t - 1,) if t else ()))
        for t in range(m)
    ]
    content = problem_to_json(Problem.from_records("large", operators, tensors, PLAIN_LINK))
    start = time.perf_counter()
    problem_from_json(content)
    assert time.perf_counter() - start < 1.0


def test_conformance_problems_are_read() -> None:
    cases = json.loads(shared_file("spec/conformance.json").read_bytes())
    for case in cases:
        problem = problem_from_json(json.dumps(case["problem"]).encode())
        assert json.loads(problem_to_json(problem)) == case["problem"]
