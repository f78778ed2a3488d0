"""Chakra execution traces (``.et``, protobuf) as bytes: messages, fields, and the tensors that a call's values name.

A file is a sequence of messages, each behind its length as a varint: one ``GlobalMetadata`` (version 1, attr 2), then
``Node`` after ``Node`` (id 1, name 2, type 3, ctrl_deps 4, data_deps 5, start_time_micros 6, duration_micros 7,
inputs 8, outputs 9, attr 10). Inputs and outputs hold their values as the text of a Python list, which is parsed here
and never evaluated. Schema: mlcommons/chakra, ``et_def.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import MAX_TOTAL_BYTES
from slackswap.models.traces.pytorch.execution_trace import TENSOR_FIELDS
from slackswap.models.traces.trace_file import TraceFile

# et_def.proto, NodeType: communication of a node, as sender, as receiver, or collectively.
COMMUNICATION_TYPES = frozenset({5, 6, 7})

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_FIXED_WIDTHS = {_FIXED64: 8, _FIXED32: 4}
_MAX_MESSAGE_BYTES = 16 << 20
_MAX_DEPTH = 64
_MAX_VARINT_BYTES = 10
# et_def.proto, AttributeProto: which member of `value` a field is.
_SIGNED, _UNSIGNED, _ZIGZAG, _BOOLEAN, _STRING = {7, 9}, {11, 13}, {15, 17}, 27, 29
# What a Node starts with: its id, or, where that is 0 and so left out, its name.
_NODE_STARTS = (0x08, 0x12)
_VERSION = re.compile(r"[0-9]+(\.[0-9]+)+[\w.+-]*")

_TOKEN = re.compile(
    r"""\s*(?:(?P<punctuation>[\[\],])
    |(?P<integer>-?[0-9]{1,20})(?=\s*[\],])
    |(?P<text>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<other>True|False|None|-?(?:inf|nan|[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?)))""",
    re.VERBOSE | re.DOTALL,
)


class _MalformedError(ValueError):
    """What is wrong with the bytes of a message; the caller adds where."""


class _CutOffError(_MalformedError):
    """The bytes end inside of a value."""


@dataclass(slots=True)
class ChakraNode:
    """One node: a call on the CPU (or a part of one), or a kernel.

    Attributes
    ----------
    kind : et_def.proto's NodeType
    control_dependencies : node ids; the first is the parent, if the file keeps it
    launcher : the first data dependency; of a kernel, the call that launched it
    duration_us : whole microseconds; 0 where it is not recorded
    inputs, outputs : values as text, for `tensors_in`
    numbers, texts : attributes by name
    offset : where in the file the node's message starts
    """

    id: int = 0
    name: str = ""
    kind: int = 0
    control_dependencies: list[int] = field(default_factory=list)
    launcher: int | None = None
    duration_us: int = 0
    inputs: str = ""
    outputs: str = ""
    numbers: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    offset: int = 0


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """One tensor among a call's values, as PyTorch's observer writes it.

    Attributes
    ----------
    tensor : id of the tensor (a view has its own)
    storage : id of the storage that it lies in; 0: undefined
    bytes : from the start of the storage to the end of the tensor, ``(offset + numel) * itemsize``
    """

    tensor: int
    storage: int
    bytes: int
    device: str


def looks_like_chakra(start: bytes) -> bool:
    """Whether a file that starts with `start` (its first 4,096 bytes) begins with Chakra's metadata and a node.

    The first message has to be a ``GlobalMetadata`` with a version or a ``schema`` attribute; what follows is a node.
    """
    try:
        length, at = _varint(start, 0)
        metadata = start[at : at + length]
        if not _names_a_version(metadata, whole=len(metadata) == length):
            return False
        rest = start[at + length :]
        if not rest:
            return True
        length, at = _varint(rest, 0)
    except _CutOffError:
        return False
    except (_MalformedError, UnicodeDecodeError):
        return False
    return length > 0 and (at == len(rest) or rest[at] in _NODE_STARTS)


def read_nodes(file: TraceFile) -> Iterator[ChakraNode]:
    """Yield the nodes of a trace in the order of the file, which is never in memory as a whole.

    Raises
    ------
    InputError
        The file is torn, or holds something else than a ``GlobalMetadata`` and nodes; the place is the offset.
    """
    messages = _messages(file.chunks(), file.source)
    offset, first = next(messages, (0, b""))
    try:
        if not _names_a_version(first, whole=True):
            raise _MalformedError("it names no schema version")
    except (_MalformedError, UnicodeDecodeError) as error:
        raise InputError(
            f"does not start with Chakra's GlobalMetadata: {error}", place=f"offset {offset}", source=file.source
        ) from None
    for offset, message in messages:
        try:
            node = _node(message)
        except (_MalformedError, UnicodeDecodeError) as error:
            raise InputError(f"is no Chakra node: {error}", place=f"offset {offset}", source=file.source) from None
        node.offset = offset
        yield node


def tensors_in(values: str) -> list[RecordedTensor]:
    """Return the tensors among a call's values, in order; lists of tensors are searched, undefined ones left out.

    A tensor is ``[tensor id, storage id, offset, numel, itemsize, device]``.

    Raises
    ------
    InputError
        The text is no list of numbers, texts and lists, or a tensor's numbers are out of range. It names no place.
    """
    text = values.strip()
    found: list[RecordedTensor] = []
    if not text:
        return found
    # The outermost list is not inside of a list itself: this one stands around it.
    open_lists: list[list[int | str | None]] = [[]]
    at, expects_value = 0, True
    while at < len(text) and (token := _TOKEN.match(text, at)):
        kind, word = token.lastgroup, token.group(token.lastgroup or 0)
        inside = len(open_lists) > 1
        if word == "[" and expects_value and len(open_lists) <= _MAX_DEPTH:
            open_lists.append([])
        elif word == "]" and inside and not (expects_value and open_lists[-1]):
            found.extend(_tensor(open_lists.pop()))
            open_lists[-1].append(None)
            expects_value = False
        elif word == "," and inside and not expects_value:
            expects_value = True
        elif kind != "punctuation" and inside and expects_value:
            open_lists[-1].append(_scalar(kind, word))
            expects_value = False
        else:
            break
        at = token.end()
    if at < len(text) or len(open_lists) > 1:
        raise InputError(f"values are no list of numbers, texts and lists (at character {at} of {len(text)})")
    return found


def _scalar(kind: str | None, word: str) -> int | str | None:
    if kind == "integer":
        return int(word)
    return word[1:-1] if kind == "text" else None


def _tensor(values: list[int | str | None]) -> Iterator[RecordedTensor]:
    """Yield the tensor that a list of plain values stands for, if it is one and is defined."""
    device, numbers = values[-1] if values else None, [value for value in values[:-1] if isinstance(value, int)]
    if len(values) != TENSOR_FIELDS or not isinstance(device, str) or len(numbers) < TENSOR_FIELDS - 1:
        return
    tensor, storage, offset, numel, item_bytes = numbers
    size_bytes = (offset + numel) * item_bytes
    if min(storage, offset, numel, item_bytes) < 0 or size_bytes > MAX_TOTAL_BYTES:
        raise InputError(
            f"a tensor's storage, offset, elements and element size are from 0, and reach at most {MAX_TOTAL_BYTES} bytes"
        )
    if storage:
        yield RecordedTensor(tensor, storage, size_bytes, device)


def _messages(chunks: Iterable[bytes], source: str) -> Iterator[tuple[int, bytes]]:
    """Yield every message of a stream and the offset that its length stands at."""
    rest, offset = b"", 0
    for chunk in chunks:
        rest += chunk
        at = 0
        while (bounds := _next_message(rest, at, offset, source)) is not None:
            yield offset + at, rest[bounds[0] : bounds[1]]
            at = bounds[1]
        rest, offset = rest[at:], offset + at
    if rest:
        raise InputError(
            f"is torn: the file ends {len(rest)} bytes into a message; copy or record it again",
            place=f"offset {offset}",
            source=source,
        )


def _next_message(data: bytes, at: int, offset: int, source: str) -> tuple[int, int] | None:
    """Return where the message behind `at` starts and ends; None if its end is not there yet."""
    try:
        length, start = _varint(data, at)
        if length > _MAX_MESSAGE_BYTES:
            raise _MalformedError(f"a message has more than {_MAX_MESSAGE_BYTES} bytes")
    except _CutOffError:
        return None
    except _MalformedError as error:
        raise InputError(f"is no Chakra trace: {error}", place=f"offset {offset + at}", source=source) from None
    return (start, start + length) if start + length <= len(data) else None


def _names_a_version(metadata: bytes, *, whole: bool) -> bool:
    """Whether a ``GlobalMetadata`` has a version, its own or that of the schema; it may end early unless `whole`."""
    named = False
    try:
        for number, value in _fields(metadata):
            name, entry = ("schema", _text(value)) if number == 1 else _attribute(_bytes(value))
            if number not in (1, 2):
                raise _MalformedError(f"field {number} is unknown")
            named = named or (name == "schema" and isinstance(entry, str) and bool(_VERSION.fullmatch(entry)))
    except _CutOffError:
        if whole:
            raise
    return named


def _node(message: bytes) -> ChakraNode:
    node = ChakraNode()
    for number, value in _fields(message):
        match number:
            case 1:
                node.id = _number(value)
            case 2:
                node.name = _text(value)
            case 3:
                node.kind = _number(value)
            case 4:
                node.control_dependencies.extend(_numbers(value))
            case 5:
                node.launcher = next(_numbers(value), None) if node.launcher is None else node.launcher
            case 7:
                node.duration_us = _number(value)
            case 8:
                node.inputs = _values(_bytes(value))
            case 9:
                node.outputs = _values(_bytes(value))
            case 10:
                name, entry = _attribute(_bytes(value))
                if isinstance(entry, int):
                    node.numbers[name] = entry
                elif entry is not None:
                    node.texts[name] = entry
    return node


def _values(message: bytes) -> str:
    """Return the field `values` of an ``IOInfo``; shapes (2) and types (3) repeat what the tensors say."""
    return "".join(_text(value) for number, value in _fields(message) if number == 1)


def _attribute(message: bytes) -> tuple[str, int | str | None]:
    """Return name and value of an ``AttributeProto``; None for a value that is neither whole number, truth nor text."""
    name = ""
    entry: int | str | None = None
    for number, value in _fields(message):
        if number == 1:
            name = _text(value)
        elif number in _SIGNED:
            entry = _number(value) - (_number(value) >> 63 << 64)
        elif number in _UNSIGNED or number == _BOOLEAN:
            entry = _number(value)
        elif number in _ZIGZAG:
            entry = (_number(value) >> 1) ^ -(_number(value) & 1)
        elif number == _STRING:
            entry = _text(value)
    return name, entry


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field: a number, or the bytes of a text, a message or packed numbers."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire_type = key >> 3, key & 7
        if wire_type == _VARINT:
            value, at = _varint(message, at)
            yield number, value
            continue
        if wire_type == _LENGTH:
            width, at = _varint(message, at)
        elif wire_type in _FIXED_WIDTHS:
            width = _FIXED_WIDTHS[wire_type]
        else:
            raise _MalformedError(f"field {number} has the unknown wire type {wire_type}")
        if at + width > len(message):
            raise _CutOffError(f"field {number} is cut off")
        yield number, message[at : at + width]
        at += width


def _number(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise _MalformedError("a number is stored as bytes")
    return value


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise _MalformedError("a text or a message is stored as a number")
    return value


def _text(value: int | bytes) -> str:
    return _bytes(value).decode("utf-8")


def _numbers(value: int | bytes) -> Iterator[int]:
    """Yield the numbers of a repeated field, packed or not."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at `at`, and where it ends."""
    if at < len(data) and data[at] < 0x80:  # nearly all of them
        return data[at], at + 1
    value = 0
    for i, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80 and not value >> 64:
            return value, at + i + 1
    if value >> 64 or len(data) - at >= _MAX_VARINT_BYTES:
        raise _MalformedError("a number has more than 64 bits")
    raise _CutOffError("a number is cut off")
