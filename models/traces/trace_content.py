"""Tells trace files apart by their content, whatever they are called."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.json_stream import StreamedItem, stream_items
from slackswap.models.traces.trace_file import TraceFile

TraceKind = Literal[
    "Kineto trace",
    "execution trace",
    "Chakra trace",
    "DTR log",
    "PipeDream graph",
    "profiled graph",
    "G10 kernel list",
    "memory snapshot",
    "memory timeline",
]
RECORD_BOTH = "give a PyTorch execution trace and the Kineto trace recorded with it, joined by '+'"
_SQLITE_MAGIC = b"SQLite format 3\0"
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_KNOWN_KEYS: dict[str, TraceKind] = {"traceEvents": "Kineto trace", "nodes": "execution trace"}
# How many items of unknown arrays are looked at before the content counts as unknown.
_MAX_ITEMS = 100_000


@dataclass(frozen=True, slots=True)
class _Signature:
    """A kind of file that its first kilobytes give away."""

    kind: TraceKind
    looks_alike: Callable[[bytes], bool]


def recognise(file: TraceFile, *, instead: str = RECORD_BOTH) -> TraceKind:
    """Say by its content what kind of trace a file is.

    Parameters
    ----------
    instead : what to do where it is of no kind that is known, for the message

    Raises
    ------
    InputError
        It is of no kind that can be used, or it cannot be read; the message says what it is, if that is known.
    """
    start = file.start()
    for signature in _signatures():
        if signature.looks_alike(start):
            return signature.kind
    _refuse_known_to_be_useless(start, file.source, instead)
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] in (b"{", b"["):
        return _recognise_json(file, start, instead)
    next(file.chunks(), b"")  # a damaged file is refused for its damage
    what = (
        "is binary, and no kind of trace that is known" if _is_binary(start) else "is text, and no trace that is known"
    )
    raise InputError(f"{what}; {instead}", source=file.source)


def _signatures() -> tuple[_Signature, ...]:
    # The importers are loaded when a file is to be read, not with the package.
    from slackswap.models.traces import (
        chakra_protobuf,
        dtr_log,
        g10_kernels,
        memory_snapshot,
        memory_timeline,
        pipedream,
        profiled_graph,
    )

    return (
        _Signature("memory snapshot", memory_snapshot.looks_like_memory_snapshot),
        _Signature("memory timeline", memory_timeline.looks_like_memory_timeline),
        _Signature("PipeDream graph", pipedream.looks_like_pipedream),
        _Signature("profiled graph", profiled_graph.looks_like_profiled_graph),
        _Signature("G10 kernel list", g10_kernels.looks_like_g10),
        _Signature("DTR log", dtr_log.looks_like_dtr),
        _Signature("Chakra trace", chakra_protobuf.looks_like_chakra),
    )


def _refuse_known_to_be_useless(start: bytes, source: str, instead: str) -> None:
    from slackswap.models.traces.g10_kernels import looks_like_g10_times

    if start.startswith(_SQLITE_MAGIC):
        raise InputError(
            "is an SQLite file, as Nsight Systems exports it: it holds times, but no tensor sizes unless emit_nvtx put them"
            f" into its text, so it is not supported; {instead}",
            source=source,
        )
    if _PICKLE.match(start):
        raise InputError(
            "is a pickle, and none of a CUDA memory snapshot: others are never unpacked, since unpacking runs code;"
            f" {instead}",
            source=source,
        )
    if looks_like_g10_times(start):
        raise InputError(
            "holds kernel times of G10 alone, without tensors: give its statistics/kernels.config", source=source
        )


def _recognise_json(file: TraceFile, start: bytes, instead: str) -> TraceKind:
    for item in itertools.islice(stream_items(file), _MAX_ITEMS):
        if item.key in _KNOWN_KEYS:
            return _KNOWN_KEYS[item.key] if item.key == "traceEvents" else _execution_trace(item, start, file.source)
        if not item.key:
            return _listed(item, file.source, instead)
    if b'"traceEvents"' in start:
        return "Kineto trace"
    raise InputError(
        f"is JSON, but neither a Kineto trace ('traceEvents') nor an execution trace ('nodes' and 'schema'); {instead}",
        source=file.source,
    )


def _execution_trace(item: StreamedItem, start: bytes, source: str) -> TraceKind:
    if b'"schema"' in start or b'"inputs"' in item.text:
        return "execution trace"
    raise InputError(
        "holds nodes without a schema and without tensors (the JSON that Chakra feeds to simulators?): give the trace that it"
        " was made from",
        source=source,
    )


def _listed(item: StreamedItem, source: str, instead: str) -> TraceKind:
    """Tell a bare list of events from other lists by its first item."""
    if item.text.startswith(b"{") and b'"ph"' in item.text:
        return "Kineto trace"
    raise InputError(f"is a JSON array, but not of trace events; {instead}", source=source)


def _is_binary(start: bytes) -> bool:
    return any(byte < ord(" ") and byte not in b"\t\n\r\f" for byte in start[:512])
