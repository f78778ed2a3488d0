"""Strict JSON: typed, no unknown or repeated keys, every refusal one line with its JSON path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from slackswap.hardware.input_error import InputError

Record = TypeVar("Record")

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# msgspec calls JSON truncated, or the next escape wrong, where the second half of a surrogate pair is missing.
_LONE_SURROGATE = re.compile(rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])")


class _Header(msgspec.Struct):
    """The one key that says whether the others can be understood."""

    format: str


def decode_record(content: bytes, record: type[Record], format_name: str) -> Record:
    """Decode a JSON object of one of the project's formats into a record.

    Parameters
    ----------
    content : UTF-8 JSON, with or without a byte order mark
    record : msgspec Struct that forbids unknown fields
    format_name : value of its key ``format``, checked first: it says whether the others can be understood

    Raises
    ------
    InputError
        Malformed JSON (with the byte offset), another format, an unknown, missing or repeated key, a value of a wrong
        type; the place is the JSON path.
    """
    content = content.removeprefix(BYTE_ORDER_MARK)
    try:
        header = msgspec.json.decode(content, type=_Header)
        if header.format != format_name:
            raise InputError(f"is '{format_name}' in files of this version, not '{header.format}'", place="$.format")
        decoded = msgspec.json.decode(content, type=record)
        _refuse_repeated_keys(content.decode())
    except msgspec.DecodeError as error:
        raise _decoding_error(error, content) from None
    except RecursionError:
        raise InputError(f"nests too deep for {format_name}", place="$") from None
    return decoded


def _decoding_error(error: msgspec.DecodeError, content: bytes) -> InputError:
    """Split msgspec's message into the rule and the JSON path."""
    message, at, place = str(error).rpartition(" - at `")
    rule, place = (message, place.rstrip("`")) if at else (place, "$")
    if not isinstance(error, msgspec.ValidationError):
        place = ""  # malformed JSON: the message holds the byte offset
        if re.search("truncated|hex escape|surrogate", rule) and _LONE_SURROGATE.search(content):
            rule = "JSON is malformed: half a surrogate pair is not a character"
    # An acronym keeps its capitals.
    return InputError(rule if rule.startswith("JSON") else rule[:1].lower() + rule[1:], place=place)


def _refuse_repeated_keys(text: str) -> None:
    """Refuse a key that stands twice in one object: msgspec would take the last without a word."""
    repeated = False

    def look(pairs: list[tuple[str, object]]) -> None:
        nonlocal repeated
        repeated = repeated or len({key for key, _ in pairs}) < len(pairs)

    # Numbers are left as text: they were checked, and long ones are slow to convert.
    json.loads(text, object_pairs_hook=look, parse_int=str, parse_float=str, strict=False)
    if repeated:
        raise InputError("this key stands twice in one object", place=next(_places_of_repeated_keys(text)))


def _places_of_repeated_keys(text: str) -> Iterator[str]:
    # Objects become tuples of pairs, arrays stay lists.
    stack: list[tuple[str, Any]] = [("$", json.loads(text, object_pairs_hook=tuple, parse_int=str, strict=False))]
    while stack:
        place, value = stack.pop()
        if isinstance(value, list):
            stack.extend((f"{place}[{i}]", child) for i, child in enumerate(value))
        if not isinstance(value, tuple):
            continue
        seen = set()
        for key, child in value:
            child_place = f"{place}.{key}" if key.isidentifier() else f"{place}[{json.dumps(key)}]"
            if key in seen:
                yield child_place
            seen.add(key)
            stack.append((child_place, child))
