"""Reads the long arrays of a JSON trace item by item, so that memory does not grow with the file.

A compiled scanner finds where each item begins and ends; the items are then decoded one by one, and repaired where real
profilers write what is no JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from slackswap.hardware.input_error import InputError
from slackswap.models.compilation import compiled_entry
from slackswap.models.traces.trace_file import TraceFile

Item = TypeVar("Item")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The longest item that is believed: an event with a call stack takes kilobytes, a call with thousands of tensors megabytes.
_MAX_ITEM_BYTES = 256 << 20
_MAX_SPANS = 1 << 16
_QUOTE, _BACKSLASH, _NEWLINE, _RETURN = ord('"'), ord("\\"), ord("\n"), ord("\r")
_OPENING, _CLOSING = (ord("{"), ord("[")), (ord("}"), ord("]"))
_LINE_ENDS = (ord(","), ord("{"), ord("}"), ord("["), ord("]"))
# What the scanner remembers between two pieces of a file.
_DEPTH, _IN_STRING, _ESCAPED, _OPEN_AT, _OUTER, _PREVIOUS = range(6)
_IS_KEY, _IS_ITEM = 0, 1

# Python's json accepts Infinity and NaN; C++ writers print `inf` and `nan` (pytorch/kineto issue 105).
_BARE_NUMBER = re.compile(r"(?<=[:\[,\s])-?(?:inf|nan|Infinity|NaN)(?=[,\]}\s])")
_CONTROL = re.compile(r"[\x00-\x1f]")
# Backslashes of Windows paths that start no escape (pytorch issue 98432).
_LONE_BACKSLASH = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
# A name up to the key that follows it: quotes inside are the name's own (pytorch/kineto issue 1459).
_NAME = re.compile(r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|id|s|bp)"\s*:|\}))', re.DOTALL)
_INNER_QUOTE = re.compile(r'(?<!\\)"')


@dataclass(frozen=True, slots=True)
class StreamedItem:
    """One item of an array at the top of the file.

    Attributes
    ----------
    key : of the array; empty where the file itself is the array
    index : position in its array
    offset : of the unpacked file, in bytes
    text : the item, undecoded
    """

    key: str
    index: int
    offset: int
    text: bytes


def stream_items(file: TraceFile) -> Iterator[StreamedItem]:
    """Yield the objects and arrays that stand in the arrays at the top of a JSON file, in the file's order.

    Raises
    ------
    InputError
        The file cannot be read, is torn, or is no JSON object or array of arrays and objects; with the offset.
    """
    scanner = _Scanner(file.source)
    for chunk in file.chunks():
        yield from scanner.feed(chunk)
    scanner.finish()


class _Scanner:
    def __init__(self, source: str) -> None:
        self._source = source
        self._state: npt.NDArray[np.int64] | None = None
        self._spans = np.zeros((_MAX_SPANS, 3), np.int64)
        self._rest = b""  # from the start of an unfinished item or key
        self._offset = 0  # of the rest in the file
        self._key, self._index = "", 0

    def feed(self, chunk: bytes) -> Iterator[StreamedItem]:
        if self._state is None:
            chunk = self._start(self._rest + chunk)
            if self._state is None:
                self._rest = chunk
                return
        fresh = len(self._rest)
        buffer = self._rest + chunk
        columns = np.frombuffer(buffer, np.uint8)
        position = fresh
        while position < len(buffer):
            n_spans, position = scan(columns, position, self._state, self._spans)
            if n_spans < 0:
                raise InputError(
                    f"is not valid JSON: a bracket closes what no bracket opened, at offset {self._offset + position}",
                    source=self._source,
                )
            for kind, start, end in self._spans[:n_spans].tolist():
                if kind == _IS_KEY:
                    self._key, self._index = buffer[start + 1 : end - 1].decode(errors="replace"), 0
                else:
                    yield StreamedItem(self._key, self._index, self._offset + start, buffer[start:end])
                    self._index += 1
        open_at = int(self._state[_OPEN_AT])
        keep_from = open_at if open_at >= 0 else len(buffer)
        self._rest = buffer[keep_from:]
        self._offset += keep_from
        if open_at >= 0:
            self._state[_OPEN_AT] = 0
        if len(self._rest) > _MAX_ITEM_BYTES:
            raise InputError(
                f"is not valid JSON: what starts at offset {self._offset} does not end within {_MAX_ITEM_BYTES >> 20} MiB",
                source=self._source,
            )

    def finish(self) -> None:
        """Refuse a file that ends too early."""
        if self._state is None:
            raise InputError("is empty", source=self._source)
        if self._state[_DEPTH]:
            raise InputError(
                f"is truncated JSON: it ends at offset {self._offset + len(self._rest)} before the document does;"
                " copy or record it again",
                source=self._source,
            )

    def _start(self, content: bytes) -> bytes:
        """Find out at the first character at which depth the items stand."""
        if _BYTE_ORDER_MARK.startswith(content):
            return content  # it may end in the next piece
        stripped = content.removeprefix(_BYTE_ORDER_MARK).lstrip()
        self._offset += len(content) - len(stripped)
        if stripped:
            if stripped[:1] not in (b"{", b"["):
                raise InputError("is not JSON", source=self._source)
            self._state = np.zeros(6, np.int64)
            self._state[_OPEN_AT] = -1
            self._state[_OUTER] = 1 if stripped[:1] == b"[" else 2
            self._rest = b""
        return stripped


@compiled_entry
def scan(
    text: npt.NDArray[np.uint8], position: int, state: npt.NDArray[np.int64], spans: npt.NDArray[np.int64]
) -> tuple[int, int]:
    """Scan `text` from `position`; write (kind, start, end) of keys and items into `spans`.

    Strings at the depth of the outermost keys count as keys. JSON has no newline inside of a string: one behind a comma or
    bracket is the end of a line that an unescaped quote has turned inside out, and the next line starts afresh; any other
    is part of a name.

    Returns
    -------
    number of spans and the position reached; -1 spans where a bracket closes that was not opened.
    """
    depth, in_string, escaped = state[_DEPTH], state[_IN_STRING], state[_ESCAPED]
    open_at, outer, previous = state[_OPEN_AT], state[_OUTER], state[_PREVIOUS]
    n_spans = 0
    while position < len(text) and n_spans < len(spans):
        byte, before = text[position], previous
        previous = before if byte == _RETURN else byte  # Windows ends lines with both
        position += 1
        if in_string and escaped:
            escaped = 0
        elif in_string and byte == _BACKSLASH:
            escaped = 1
        elif in_string and (byte == _QUOTE or (byte == _NEWLINE and before in _LINE_ENDS)):
            in_string = 0
            if depth == outer - 1 and open_at >= 0:
                spans[n_spans] = (_IS_KEY, open_at, position)
                n_spans += 1
                open_at = -1
        elif in_string:
            continue
        elif byte == _QUOTE:
            in_string = 1
            open_at = position - 1 if depth == outer - 1 else open_at
        elif byte in _OPENING:
            open_at = position - 1 if depth == outer else open_at
            depth += 1
        elif byte in _CLOSING:
            depth -= 1
            if depth < 0:
                return -1, position - 1
            if depth == outer and open_at >= 0:
                spans[n_spans] = (_IS_ITEM, open_at, position)
                n_spans += 1
                open_at = -1
    state[_DEPTH], state[_IN_STRING], state[_ESCAPED] = depth, in_string, escaped
    state[_OPEN_AT], state[_PREVIOUS] = open_at, previous
    return n_spans, position


class ItemDecoder:
    """Decodes items into one record type, repairing what real profilers write wrong.

    That is: bare ``inf``, control characters, bad UTF-8, lone backslashes, and quotes inside of names.
    """

    def __init__(self, kind: type[Any], source: str) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._source = source

    def decode(self, item: StreamedItem) -> Any:
        """Return the record.

        Raises
        ------
        InputError
            The text is no JSON (with the offset in the file), or a value has another type (with its JSON path).
        """
        try:
            return _decoded(self._decoder, item.text)
        except msgspec.ValidationError as error:
            rule, path = validation_rule(error)
            raise InputError(rule, place=self._place(item) + path, source=self._source) from None
        except msgspec.DecodeError as error:
            raise InputError(
                f"is not valid JSON in what starts at offset {item.offset}: {malformed(error)}",
                place=self._place(item),
                source=self._source,
            ) from None
        except RecursionError:
            raise InputError("is nested too deeply", place=self._place(item), source=self._source) from None

    def _place(self, item: StreamedItem) -> str:
        return f"$.{item.key}[{item.index}]" if item.key else f"$[{item.index}]"


def decode_whole(content: bytes, kind: type[Item], source: str) -> Item:
    """Decode the whole content of a small file, repaired like items.

    Raises
    ------
    InputError
        The text is torn or not JSON (with the offset), or a value has another type (with its JSON path).
    """
    decoder: msgspec.json.Decoder[Item] = msgspec.json.Decoder(kind)
    try:
        return _decoded(decoder, content)
    except msgspec.ValidationError as error:
        rule, path = validation_rule(error)
        raise InputError(rule, place="$" + path, source=source) from None
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise InputError(
                f"is truncated JSON: it ends at offset {len(content)} before the document does; copy or record it again",
                source=source,
            ) from None
        raise InputError(f"is not valid JSON: {malformed(error)}{_near(error)}", source=source) from None
    except RecursionError:
        raise InputError("is nested too deeply", place="$", source=source) from None


def _decoded(decoder: msgspec.json.Decoder[Item], text: bytes) -> Item:
    """Decode text as it is, or as it was meant."""
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, RecursionError):
        return decoder.decode(repaired(text))


def _near(error: msgspec.DecodeError) -> str:
    at = re.search(r" \(byte (\d+)\)$", str(error))
    return f" near offset {at[1]}" if at else ""


def repaired(text: bytes) -> bytes:
    """Return the JSON that was meant, for the mistakes of writers that are known; other text comes back as it is."""
    meant = _CONTROL.sub(" ", text.decode("utf-8-sig", errors="replace"))
    meant = _BARE_NUMBER.sub("null", _LONE_BACKSLASH.sub(r"\\\\", meant))
    return _NAME.sub(lambda name: name[1] + _INNER_QUOTE.sub(r"\"", name[2]) + name[3], meant).encode()


def malformed(error: msgspec.DecodeError) -> str:
    """Return what msgspec says is wrong, without its offset."""
    return re.sub(r" \(byte \d+\)$", "", str(error)).removeprefix("JSON is malformed: ")


def validation_rule(error: msgspec.ValidationError) -> tuple[str, str]:
    """Split msgspec's message into the rule and the JSON path below the decoded value."""
    parts = re.match(r"^(?P<rule>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", str(error), re.DOTALL)
    rule, path = (parts["rule"], parts["path"] or "") if parts else (str(error), "")
    return rule[:1].lower() + rule[1:], path
