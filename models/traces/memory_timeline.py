"""Memory timelines: bytes by category over time, as ``torch.profiler.profile.export_memory_timeline`` writes them raw.

A timeline names no tensors and no operators, so no problem comes from it; the maximum of its category ACTIVATION is A,
rounded up by the allocator. Rows are ``[time in ns, action, signed bytes, category]``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

# Order and names of torch.profiler._memory_profiler; the last one is of memory that it cannot tell.
CATEGORIES = (
    *("PARAMETER", "OPTIMIZER_STATE", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT", "AUTOGRAD_DETAIL"),
    "unknown",
)
_ACTIVATION = CATEGORIES.index("ACTIVATION")
_PREEXISTING, _CREATE, _INCREMENT_VERSION, _DESTROY = range(1, 5)
_FIRST_ROW = re.compile(rb"\s*\[\s*\[\s*-?[0-9.eE+]+\s*,\s*[1-4]\s*,\s*-?[0-9]+\s*,\s*[0-7]\s*\]")
_MAX_ROW_BYTES = 1 << 20
_RECORD = (
    "record with profile(profile_memory=True, record_shapes=True, with_stack=True) and"
    " export_memory_timeline('NAME.raw.json.gz')"
)

_Row = tuple[int | float, int, int, int]


@dataclass(frozen=True, slots=True)
class MemoryTimeline:
    """What a timeline says.

    Attributes
    ----------
    peak_bytes : the most bytes that each category of `CATEGORIES` ever holds, as the allocator rounds them
    n_rows : rows of the file
    """

    peak_bytes: tuple[int, ...]
    n_rows: int

    def peak_of(self, category: str) -> int:
        """Return the most bytes that a category ever holds."""
        return self.peak_bytes[CATEGORIES.index(category)]


def looks_like_memory_timeline(start: bytes) -> bool:
    """Whether a file that starts with these bytes is a JSON array whose first row is one of a raw timeline."""
    return _FIRST_ROW.match(start) is not None


def read_memory_timeline(file: TraceFile | Path | str) -> MemoryTimeline:
    """Add up a raw memory timeline by category; the file is never in memory as a whole.

    Bytes are added as they are signed: a new version of a tensor is a row that takes its bytes from one category and a
    row that gives them to another, most often the same.

    Raises
    ------
    InputError
        The file is torn or no array of rows, a row breaks the format, or nothing is an activation.
    """
    file = as_trace_file(file)
    held_bytes, peak_bytes = [0] * len(CATEGORIES), [0] * len(CATEGORIES)
    n_rows = 0
    for rows in _pieces(file):
        for _, action, size_bytes, category in _decoded(rows, n_rows, file.source):
            if not _is_valid(action, size_bytes, category):
                raise InputError(
                    "is [time, action of 1 to 4, bytes, category of 0 to 7], and only allocations add bytes",
                    place=f"$[{n_rows}]",
                    source=file.source,
                )
            held_bytes[category] += size_bytes
            peak_bytes[category] = max(peak_bytes[category], held_bytes[category])
            n_rows += 1
    if not peak_bytes[_ACTIVATION]:
        raise InputError(f"has no bytes of category ACTIVATION ({_ACTIVATION}): {_RECORD}", source=file.source)
    return MemoryTimeline(tuple(peak_bytes), n_rows)


def _is_valid(action: int, size_bytes: int, category: int) -> bool:
    if not (_PREEXISTING <= action <= _DESTROY and 0 <= category < len(CATEGORIES)):
        return False
    if action == _INCREMENT_VERSION:
        return True
    return size_bytes <= 0 if action == _DESTROY else size_bytes >= 0


def _pieces(file: TraceFile) -> Iterator[bytes]:
    """Yield the file as JSON arrays of some of its rows."""
    rest, is_begun = b"", False
    for chunk in file.chunks():
        rest += chunk
        if not is_begun:
            rest = rest.lstrip()
            is_begun = rest.startswith(b"[")
            if rest and not is_begun:
                raise InputError("is not a JSON array of rows", source=file.source)
            rest = rest[1:]
        end = _end_of_rows(rest)
        if end:
            yield b"[" + rest[:end] + b"]"
            rest = rest[end:].lstrip()[1:]
        elif len(rest) > _MAX_ROW_BYTES:
            raise InputError(f"has a row of more than {_MAX_ROW_BYTES} bytes", source=file.source)
    yield b"[" + rest  # its last bracket is the file's


def _end_of_rows(text: bytes) -> int:
    """Return where the last row ends that a comma follows; 0 if none does."""
    end = len(text)
    # The last bracket can be followed by the end of the piece; the one before it, by the outer array's end.
    for _ in range(3):
        end = text.rfind(b"]", 0, end)
        if end < 0:
            return 0
        if text[end + 1 :].lstrip().startswith(b","):
            return end + 1
    return 0


def _decoded(rows: bytes, n_before: int, source: str) -> list[_Row]:
    try:
        return msgspec.json.decode(rows, type=list[_Row])
    except msgspec.ValidationError as error:
        rule, _, path = str(error).partition(" - at `$[")
        index, _, inner = path.rstrip("`").partition("]")
        row = f"$[{n_before + int(index)}]{inner}" if index.isdigit() else "$"
        raise InputError(rule[:1].lower() + rule[1:], place=row, source=source) from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"is torn or no JSON after row {n_before}: {error}", source=source) from None
