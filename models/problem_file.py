"""Problems as files: format slackswap-problem/1, JSON, plain or gzip, read whole or refused."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.atomic_file import write_atomically
from slackswap.models.input_file import read_input_bytes
from slackswap.models.problem import Operator, Problem, Tensor
from slackswap.models.strict_json import BYTE_ORDER_MARK, decode_record

FORMAT = "slackswap-problem/1"
MAX_UNPACKED_BYTES = 1 << 30
_SNIFFED_BYTES = 4096


class _Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    d2h_bytes_per_s: float
    h2d_bytes_per_s: float
    duplex_factor: float
    latency_s: float


class _ProblemFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: str
    name: str
    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    link: _Link
    metadata: dict[str, Any] = {}


# Sorts the keys of metadata; the keys of a record keep the order of its fields.
_ENCODER = msgspec.json.Encoder(order="deterministic")


def read_problem(path: Path | str) -> Problem:
    """Read a problem file, plain or gzip.

    Raises
    ------
    InputError
        The file cannot be read, unpacks to more than `MAX_UNPACKED_BYTES`, or breaks a rule of the format; the message
        names the file, the JSON path and the rule.
    """
    return problem_from_json(read_input_bytes(path, limit_bytes=MAX_UNPACKED_BYTES), source=str(path))


def write_problem(problem: Problem, path: Path | str) -> None:
    """Write the canonical JSON of a problem, whole or not at all; a path that ends in ``.gz`` is compressed.

    Raises
    ------
    InputError
        The folder is missing or read-only, or the problem holds what JSON cannot.
    """
    try:
        content = problem_to_json(problem)
    except InputError as error:
        raise error.within(str(path)) from None
    write_atomically(path, content)


def looks_like_problem(content: bytes) -> bool:
    """Whether unpacked content is meant as a problem file: a JSON object with the format's name in its first 4 KiB."""
    start = content[:_SNIFFED_BYTES].removeprefix(BYTE_ORDER_MARK)
    return start.lstrip().startswith(b"{") and b'"slackswap-problem/' in start


def problem_from_json(content: bytes, source: str = "") -> Problem:
    """Decode a problem strictly: unknown and repeated keys, wrong types and broken rules are refused.

    Raises
    ------
    InputError
        With `source`, the JSON path and the rule.
    """
    try:
        file = decode_record(content, _ProblemFile, FORMAT)
        return Problem.from_records(file.name, file.operators, file.tensors, _checked_link(file.link), file.metadata)
    except InputError as error:
        raise error.within(source) from None


def problem_to_json(problem: Problem) -> bytes:
    """Return the canonical JSON: keys in the format's order, metadata keys sorted, one operator or tensor per line.

    The same problem always gives the same bytes. Where nothing rebuilds a tensor (c = infinity), ``rebuild`` is null.
    JSON has no NaN and no infinity: in metadata they are written as null.

    Raises
    ------
    InputError
        A name or the metadata holds what JSON cannot (an object of another type, half a surrogate pair).
    """
    fields = {
        "format": _encoded(FORMAT, "$.format"),
        "name": _encoded(problem.name, "$.name"),
        "operators": _encoded_rows(problem.operators(), "$.operators"),
        "tensors": _encoded_rows(problem.tensors(), "$.tensors"),
        "link": _encoded({key: float(getattr(problem.link, key)) for key in _Link.__struct_fields__}, "$.link"),
        "metadata": _encoded(dict(problem.metadata), "$.metadata"),
    }
    return b"{\n" + b",\n".join(b'"%s": %s' % (key.encode(), value) for key, value in fields.items()) + b"\n}\n"


def problem_sha256(problem: Problem) -> str:
    """Return the SHA-256 of the canonical JSON without its metadata, which is what plans refer to.

    Metadata does not enter, so that a note about the source does not invalidate plans.
    """
    return hashlib.sha256(problem_to_json(replace(problem, metadata={}))).hexdigest()


def _checked_link(link: _Link) -> Link:
    try:
        return Link(**msgspec.structs.asdict(link))
    except InputError as error:
        raise InputError(error.rule, place=f"$.link.{error.place}") from None


def _encoded(value: object, place: str) -> bytes:
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"cannot be written as JSON: {error}", place=place) from None


def _encoded_rows(records: Sequence[Operator] | Sequence[Tensor], place: str) -> bytes:
    """Encode an array with one record per line, so that a diff of two files shows the records that differ."""
    rows = [_encoded(record, f"{place}[{i}]") for i, record in enumerate(records)]
    return b"[\n" + b",\n".join(rows) + b"\n]" if rows else b"[]"
