"""Events of a Kineto (Chrome) trace, one by one: calls on CPU threads, launches, device work and memory events.

Names changed over the years (``Operator``/``Kernel``/``Runtime`` in 2021, ``cpu_op``/``kernel``/``cuda_runtime`` now);
both are read. Times inside are microseconds, as in the file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import MAX_TOTAL_BYTES
from slackswap.models.traces.json_stream import ItemDecoder, stream_items
from slackswap.models.traces.pytorch.execution_trace import is_backward_name
from slackswap.models.traces.trace_file import TraceFile

Scalar = int | float | str | None
Thread = tuple[Scalar, Scalar]
WorkKind = Literal["compute", "device copy", "host to device", "device to host", "collective"]
EventKind = Literal["operator", "launch", "work", "memory", "other"]

_ANNOTATION = "user_annotation"
_KINDS: dict[str | None, EventKind] = {
    **dict.fromkeys(("cpu_op", "Operator", _ANNOTATION), "operator"),
    **dict.fromkeys(
        ("cuda_runtime", "cuda_driver", "Runtime", "runtime", "xpu_runtime", "privateuse1_runtime"), "launch"
    ),
    **dict.fromkeys(("kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"), "work"),
}
_COPIES = ("gpu_memcpy", "Memcpy")
_COLLECTIVE_NAMES = ("nccl", "rccl", "oneccl")
# CUPTI: `Memcpy HtoD (Pageable -> Device)`; ROCm: `Memcpy HtoD (Host -> Device)`, before that `CopyHostToDevice`.
_HOST_TO_DEVICE = ("htod", "host -> device", "hosttodevice")
_DEVICE_TO_HOST = ("dtoh", "device -> host", "device -> pageable", "device -> pinned", "devicetohost")
_MEMORY = "[memory]"
# In 2021 annotations were of the category of operators.
_ANNOTATION_NAMES = ("ProfilerStep#", "Optimizer.", "enumerate(DataLoader)", "DistributedDataParallel.", "##")
_CPU_DEVICE = 0


class Arguments(msgspec.Struct):
    """The arguments that are used; the others are skipped."""

    correlation: Scalar = None
    external_id: Scalar = msgspec.field(default=None, name="External id")
    external_id_2021: Scalar = msgspec.field(default=None, name="external id")
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    forward_thread: Scalar = msgspec.field(default=None, name="Fwd thread id")
    record_function: Scalar = msgspec.field(default=None, name="Record function id")
    index: Scalar = msgspec.field(default=None, name="Ev Idx")
    collective: Scalar = msgspec.field(default=None, name="Collective name")
    shapes: Any = msgspec.field(default=None, name="Input Dims")
    types: Any = msgspec.field(default=None, name="Input type")
    device_type: Scalar = msgspec.field(default=None, name="Device Type")
    device_id: Scalar = msgspec.field(default=None, name="Device Id")
    address: Scalar = msgspec.field(default=None, name="Addr")
    bytes: Scalar = msgspec.field(default=None, name="Bytes")


class Event(msgspec.Struct):
    """One trace event, as far as it is used."""

    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: Arguments | None = None


class _Device(msgspec.Struct):
    id: Scalar = None
    name: Scalar = None


@dataclass(frozen=True, slots=True)
class CpuOperator:
    """One call or annotation on a CPU thread.

    `sequence` is -1, `record_function` and `forward_thread` are 0 where not recorded; `shapes` and `types` of the inputs are
    None then.
    """

    name: str
    thread: Thread
    start_us: float
    end_us: float
    index: int
    sequence: int
    record_function: int
    forward_thread: int = 0
    is_annotation: bool = False
    shapes: Any = None
    types: Any = None

    @property
    def is_backward(self) -> bool:
        """Whether autograd's engine made the call: by its name, or by the forward thread that is recorded with it."""
        return is_backward_name(self.name) or self.forward_thread > 0


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One kernel, memset or copy on the device, with the time at which a CPU thread launched it."""

    launched_us: float
    duration_us: float
    kind: WorkKind


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """Bytes that a device's allocator gave (positive) or took back (negative); `address` is None where not recorded."""

    thread: Thread
    time_us: float
    bytes: int
    address: int | None
    device: Scalar


@dataclass(frozen=True, slots=True)
class PlacedEvent:
    """An event and its index in the file, which error messages name."""

    event: Event
    index: int
    kind: EventKind

    def operator(self) -> CpuOperator:
        """Return the call that an event of kind ``operator`` records."""
        event, arguments = self.event, self.event.args or Arguments()
        start_us = number(event.ts, "ts")
        name = event.name or ""
        return CpuOperator(
            name=name,
            thread=self.thread,
            start_us=start_us,
            end_us=start_us + self.duration_us,
            index=_whole(arguments.index, self.index),
            sequence=_whole(arguments.sequence, -1),
            record_function=_whole(arguments.record_function, 0),
            forward_thread=_whole(arguments.forward_thread, 0),
            is_annotation=event.cat == _ANNOTATION or name.startswith(_ANNOTATION_NAMES),
            shapes=arguments.shapes,
            types=arguments.types,
        )

    def memory(self) -> MemoryEvent | None:
        """Return what an event of kind ``memory`` records of a device; None for host memory and for no bytes."""
        arguments = self.event.args or Arguments()
        size, kind = _whole(arguments.bytes, 0), _whole(arguments.device_type, _CPU_DEVICE)
        if not size or kind == _CPU_DEVICE:
            return None
        if abs(size) > MAX_TOTAL_BYTES:
            raise InputError(f"a block has at most {MAX_TOTAL_BYTES} bytes", place="args.Bytes")
        address = arguments.address if isinstance(arguments.address, int) else None
        return MemoryEvent(self.thread, number(self.event.ts, "ts"), size, address, arguments.device_id)

    @property
    def thread(self) -> Thread:
        """Process and thread; ids in quotes (2021) are the same as without."""
        return _unquoted(self.event.pid), _unquoted(self.event.tid)

    @property
    def duration_us(self) -> float:
        """Duration, 0 where not recorded."""
        duration_us = 0.0 if self.event.dur is None else number(self.event.dur, "dur")
        if duration_us < 0:
            raise InputError(f"a duration is not negative: {duration_us}", place="dur")
        return duration_us

    @property
    def correlation(self) -> Scalar:
        """The id that a launch and its device work share."""
        return self.event.args.correlation if self.event.args else None

    @property
    def external_id(self) -> Scalar:
        """The id of the operator that device work belongs to, under either of its names."""
        if self.event.args is None:
            return None
        new, old = self.event.args.external_id, self.event.args.external_id_2021
        return new if new is not None else old

    @property
    def work_kind(self) -> WorkKind:
        """What an event of kind ``work`` does."""
        name = (self.event.name or "").lower()
        collective = self.event.args is not None and self.event.args.collective is not None
        if collective or any(library in name for library in _COLLECTIVE_NAMES):
            return "collective"
        if any(direction in name for direction in _HOST_TO_DEVICE):
            return "host to device"
        if any(direction in name for direction in _DEVICE_TO_HOST):
            return "device to host"
        return "device copy" if self.event.cat in _COPIES else "compute"


class EventStream:
    """The events of a trace file, in the file's order; iterate as often as needed, each time the file is read anew.

    Attributes
    ----------
    device_names : name of each device by its number, known after one iteration
    """

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self.device_names: dict[Scalar, str] = {}

    def __iter__(self) -> Iterator[PlacedEvent]:
        """Yield events.

        Raises
        ------
        InputError
            The file is torn or not JSON, or a value has the wrong type; the place is the JSON path.
        """
        decoder, devices = ItemDecoder(Event, self._file.source), ItemDecoder(_Device, self._file.source)
        for item in stream_items(self._file):
            if item.key in ("traceEvents", ""):
                event: Event = decoder.decode(item)
                yield PlacedEvent(event, item.index, _kind(event))
            elif item.key == "deviceProperties":
                device = devices.decode(item)
                if device.name is not None:
                    self.device_names[device.id] = str(device.name)

    def located(self, error: InputError, placed: PlacedEvent) -> InputError:
        """Return the error with the file and the event that it came from."""
        return InputError(error.rule, place=f"$.traceEvents[{placed.index}].{error.place}", source=self._file.source)


def _kind(event: Event) -> EventKind:
    if event.ph == "X":
        return _KINDS.get(event.cat, "other")
    return "memory" if event.name == _MEMORY and event.ph == "i" else "other"


def number(value: Scalar, place: str) -> float:
    """Read a time stamp or duration; some writers put them in quotes."""
    try:
        read = float(value) if value is not None else math.nan
    except (ValueError, OverflowError):
        read = math.nan
    if not math.isfinite(read):
        raise InputError(f"is a finite number of microseconds, not {str(value)[:40]!r}", place=place)
    return read


def _whole(value: Scalar, default: int) -> int:
    """Read an optional id; what is not a whole number counts as not recorded."""
    return value if isinstance(value, int) else default


def _unquoted(value: Scalar) -> Scalar:
    return int(value) if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20 else value
