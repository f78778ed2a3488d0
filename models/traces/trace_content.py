"""Trace files as bytes: unpacks them, says what they are, and decodes their JSON or refuses it in one line."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import DEFAULT_LIMIT_BYTES, read_input_bytes

Item = TypeVar("Item")
TraceKind = Literal["execution trace", "Kineto trace"]

_TAR_MAGIC = b"ustar"
_TAR_MAGIC_OFFSET = 257
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_SQLITE_MAGIC = b"SQLite format 3\0"
_RECORD_BOTH = "give a PyTorch execution trace and the Kineto trace recorded with it"
# Python's json accepts Infinity and NaN; C++ writers print `inf` and `nan` (pytorch/kineto issue 105).
_BARE_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:inf|nan|Infinity|NaN)(?=[,\]}\s])")
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1f]")
_CONTROL = re.compile(r"[\x00-\x1f]")
_OFFSET = re.compile(r" \(byte (\d+)\)$")
_VALIDATION = re.compile(r"^(?P<rule>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)


class _Head(msgspec.Struct):
    """The top level of a trace file; values stay undecoded."""

    schema: msgspec.Raw = msgspec.Raw(b"")
    nodes: msgspec.Raw = msgspec.Raw(b"")
    traceEvents: msgspec.Raw = msgspec.Raw(b"")  # noqa: N815 - the trace format's name


def read_trace(path: Path | str) -> bytes:
    """Return the JSON text of a trace file: plain, gzip, or the one JSON file of a tar archive.

    Raises
    ------
    InputError
        The file cannot be read, or is of a kind that holds too little for a problem; the message says what it lacks.
    """
    source = str(path)
    content = read_input_bytes(path)
    if _is_tar(content):
        content = _only_json_member(content, source)
    if content.startswith(_SQLITE_MAGIC):
        raise InputError(
            f"is an SQLite file (Nsight Systems?): it holds no tensor sizes, so it is not supported; {_RECORD_BOTH}",
            source=source,
        )
    if _PICKLE.match(content):
        raise InputError(
            "is a pickle (a CUDA memory snapshot?): pickles are never unpacked, and it holds no operator times;"
            f" {_RECORD_BOTH}",
            source=source,
        )
    if content.lstrip()[:1] not in (b"{", b"["):
        what = "is binary, not JSON (a Chakra protobuf trace?)" if _BINARY.search(content[:512]) else "is not JSON"
        raise InputError(f"{what}: it is not supported; {_RECORD_BOTH}", source=source)
    return content


def recognise(content: bytes, source: str) -> TraceKind:
    """Say by its content which half of a pair a JSON file is.

    Raises
    ------
    InputError
        It is neither, or not valid JSON.
    """
    if content.lstrip()[:1] == b"[":
        first = decode_list(content, msgspec.Raw, source, "$")[:1]
        if first and b'"ph"' in bytes(first[0]):
            return "Kineto trace"
        raise InputError(
            f"is a JSON array, but not of trace events (a memory timeline?): it holds no operators; {_RECORD_BOTH}",
            source=source,
        )
    head = decode(content, _Head, source)
    if bytes(head.traceEvents):
        return "Kineto trace"
    if bytes(head.nodes) and bytes(head.schema):
        return "execution trace"
    raise InputError(
        "is JSON, but neither a Kineto trace ('traceEvents') nor an execution trace ('nodes' and 'schema');"
        f" {_RECORD_BOTH}",
        source=source,
    )


def decode(content: bytes, kind: type[Item], source: str, place: str = "$") -> Item:
    """Decode JSON into `kind`, repairing what real profilers write wrong: bare ``inf``, control characters, bad UTF-8.

    Raises
    ------
    InputError
        The text is torn or not JSON (with the offset), or a value has another type (with its JSON path).
    """
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(error, source, place) from None
    except msgspec.DecodeError:
        repaired = _repair(content)
    except RecursionError:
        raise InputError("is nested too deeply", place=place, source=source) from None
    try:
        return msgspec.json.decode(repaired, type=kind)
    except msgspec.ValidationError as error:
        raise _wrong_type(error, source, place) from None
    except msgspec.DecodeError as error:
        raise _malformed(error, len(content), source) from None
    except RecursionError:
        raise InputError("is nested too deeply", place=place, source=source) from None


def decode_list(content: bytes, item: type[Item], source: str, place: str) -> list[Item]:
    """Decode a JSON array; an item of the wrong type is named by its index."""
    array: Any = list[item]  # type: ignore[valid-type]  # the item's type is a run-time value here
    try:
        decoded: list[Item] = msgspec.json.decode(content, type=array)
    except (msgspec.DecodeError, RecursionError):
        pass
    else:
        return decoded
    raw: list[msgspec.Raw] = decode(content, list[msgspec.Raw], source, place)
    return [decode(bytes(value), item, source, f"{place}[{i}]") for i, value in enumerate(raw)]


def _is_tar(content: bytes) -> bool:
    return content[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + len(_TAR_MAGIC)] == _TAR_MAGIC


def _only_json_member(content: bytes, source: str) -> bytes:
    """Read the one JSON file of a tar archive in memory; nothing is extracted to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
            files = [member for member in archive.getmembers() if member.isfile()]
            chosen = [member for member in files if member.name.endswith(".json")] or files
            if len(chosen) != 1:
                raise InputError(f"is an archive of {len(chosen)} traces: unpack it and give one file", source=source)
            stream = archive.extractfile(chosen[0])
            return stream.read(DEFAULT_LIMIT_BYTES) if stream else b""
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"is a torn or corrupt tar archive: {error}", source=source) from None


def _repair(content: bytes) -> bytes:
    text = content.decode("utf-8-sig", errors="replace")
    return _BARE_NUMBER.sub("null", _CONTROL.sub(" ", text)).encode()


def _malformed(error: msgspec.DecodeError, size_bytes: int, source: str) -> InputError:
    message = str(error)
    if "truncated" in message:
        return InputError(
            f"is truncated JSON: it ends at offset {size_bytes} before the document does; copy or record it again",
            source=source,
        )
    at = _OFFSET.search(message)
    what = _OFFSET.sub("", message).removeprefix("JSON is malformed: ")
    return InputError(f"is not valid JSON: {what}{f' near offset {at[1]}' if at else ''}", source=source)


def _wrong_type(error: msgspec.ValidationError, source: str, place: str) -> InputError:
    parts = _VALIDATION.match(str(error))
    path, rule = (parts["path"] or "", parts["rule"]) if parts else ("", str(error))
    return InputError(rule[:1].lower() + rule[1:], place=place + path, source=source)
