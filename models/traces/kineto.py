"""Kineto (Chrome) trace: CPU operators by thread, and the device work that each stretch of a thread launched.

Names changed over the years (``Operator``/``Kernel``/``Runtime`` in 2021, ``cpu_op``/``kernel``/``cuda_runtime`` now);
both are read. Device work belongs to the operator that launched it, found by correlation id: it runs later than its
launch, so its own time stamp says nothing about the operator. Times inside are microseconds, as in the file.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.execution_trace import EVALUATE_FUNCTION
from slackswap.models.traces.trace_content import decode, decode_list

Scalar = int | float | str | None
Thread = tuple[Scalar, Scalar]
WorkKind = Literal["compute", "host to device", "device to host", "collective"]

_OPERATOR_CATEGORIES = frozenset({"cpu_op", "Operator", "user_annotation"})
_LAUNCH_CATEGORIES = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "runtime", "xpu_runtime", "privateuse1_runtime"}
)
_WORK_CATEGORIES = frozenset({"kernel", "Kernel", "gpu_memcpy", "Memcpy", "gpu_memset", "Memset"})
_COLLECTIVE_NAMES = ("nccl", "rccl", "oneccl")
_BACKWARD_NAMES = (EVALUATE_FUNCTION, "torch::autograd::")


class _Arguments(msgspec.Struct):
    """The arguments that are used; the others are skipped."""

    correlation: Scalar = None
    external_id: Scalar = msgspec.field(default=None, name="External id")
    external_id_2021: Scalar = msgspec.field(default=None, name="external id")
    sequence: Scalar = msgspec.field(default=None, name="Sequence number")
    forward_thread: Scalar = msgspec.field(default=None, name="Fwd thread id")
    record_function: Scalar = msgspec.field(default=None, name="Record function id")
    index: Scalar = msgspec.field(default=None, name="Ev Idx")
    collective: Scalar = msgspec.field(default=None, name="Collective name")


class _Event(msgspec.Struct):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Scalar = None
    tid: Scalar = None
    ts: Scalar = None
    dur: Scalar = None
    args: _Arguments | None = None


class _Device(msgspec.Struct):
    id: Scalar = None
    name: Scalar = None


class _File(msgspec.Struct):
    traceEvents: msgspec.Raw  # noqa: N815 - the trace format's name
    deviceProperties: list[_Device] | None = None  # noqa: N815


@dataclass(frozen=True, slots=True)
class CpuOperator:
    """One call or annotation on a CPU thread; `sequence` is -1 and `record_function` 0 where not recorded."""

    name: str
    thread: Thread
    start_us: float
    end_us: float
    index: int
    sequence: int
    record_function: int


@dataclass(frozen=True, slots=True)
class DeviceWork:
    """One kernel, memset or copy on the device, with the time at which a CPU thread launched it."""

    launched_us: float
    duration_us: float
    kind: WorkKind


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """What a Kineto trace says.

    Attributes
    ----------
    operators : every CPU operator and annotation, in file order
    work : device work by launching thread, in order of launch
    orphan_s : time of the device work whose launch is not in the file
    device_names : name of each device, by its number
    """

    operators: tuple[CpuOperator, ...]
    work: dict[Thread, tuple[DeviceWork, ...]]
    orphan_s: float
    device_names: dict[Scalar, str]

    @property
    def has_device_work(self) -> bool:
        """Whether any kernel, memset or copy was recorded."""
        return bool(self.work) or self.orphan_s > 0

    @property
    def has_backward(self) -> bool:
        """Whether autograd's engine ran."""
        return any(
            operator.name.startswith(_BACKWARD_NAMES) or "Backward" in operator.name for operator in self.operators
        )

    @property
    def processes(self) -> set[Scalar]:
        """Processes that the CPU operators ran in."""
        return {operator.thread[0] for operator in self.operators}

    def launched_within(self, operator: CpuOperator) -> Sequence[DeviceWork]:
        """Device work that was launched between the start and the end of an operator, on its thread."""
        work = self.work.get(operator.thread, ())
        first = bisect_left(work, operator.start_us, key=_launched)
        return work[first : bisect_right(work, operator.end_us, key=_launched)]


def read_kineto(content: bytes, source: str) -> KinetoTrace:
    """Decode a Kineto trace: an object with ``traceEvents``, or the bare list of the old autograd profiler.

    Raises
    ------
    InputError
        The file is torn or not JSON, or a value has the wrong type; the place is the JSON path.
    """
    if content.lstrip()[:1] == b"[":
        file = _File(traceEvents=msgspec.Raw(content))
        place = "$"
    else:
        file = decode(content, _File, source)
        place = "$.traceEvents"
    found = _Found([], {}, {}, [])
    for i, event in enumerate(decode_list(bytes(file.traceEvents), _Event, source, place)):
        try:
            found.add(event, i)
        except InputError as error:
            raise InputError(error.rule, place=f"{place}[{i}].{error.place}", source=source) from None
    work, orphan_us = _attach(found.device_events, found.launches, found.by_external_id)
    names = {device.id: str(device.name) for device in file.deviceProperties or [] if device.name is not None}
    return KinetoTrace(tuple(found.operators), work, orphan_us * 1e-6, names)


@dataclass
class _Found:
    """What a file's events come down to; launches by what device events name them by."""

    operators: list[CpuOperator]
    launches: dict[Hashable, tuple[Thread, float]]
    by_external_id: dict[Hashable, tuple[Thread, float]]
    device_events: list[_Event]

    def add(self, event: _Event, index: int) -> None:
        if event.ph != "X":
            return
        if event.cat in _OPERATOR_CATEGORIES:
            operator = _cpu_operator(event, index)
            self.operators.append(operator)
            external_id = _external_id(event)
            if external_id is not None:
                self.by_external_id[external_id] = (operator.thread, operator.start_us)
        elif event.cat in _LAUNCH_CATEGORIES and event.args and event.args.correlation is not None:
            self.launches[event.args.correlation] = ((event.pid, event.tid), _number(event.ts, "ts"))
        elif event.cat in _WORK_CATEGORIES:
            _duration_us(event)
            self.device_events.append(event)


def _attach(
    events: Iterable[_Event],
    launches: dict[Hashable, tuple[Thread, float]],
    by_external_id: dict[Hashable, tuple[Thread, float]],
) -> tuple[dict[Thread, tuple[DeviceWork, ...]], float]:
    """Group device events by the thread that launched them; add up the time of those whose launch is missing."""
    work: dict[Thread, list[DeviceWork]] = defaultdict(list)
    orphan_us = 0.0
    for event in events:
        correlation = event.args.correlation if event.args else None
        launch = launches.get(correlation) if correlation is not None else None
        launch = launch or by_external_id.get(_external_id(event))
        if launch is None:
            orphan_us += _duration_us(event)
        else:
            work[launch[0]].append(DeviceWork(launch[1], _duration_us(event), _work_kind(event)))
    return {thread: tuple(sorted(items, key=_launched)) for thread, items in work.items()}, orphan_us


def _cpu_operator(event: _Event, position: int) -> CpuOperator:
    arguments = event.args or _Arguments()
    start_us = _number(event.ts, "ts")
    return CpuOperator(
        name=event.name or "",
        thread=(event.pid, event.tid),
        start_us=start_us,
        end_us=start_us + _duration_us(event),
        index=_whole(arguments.index, position),
        sequence=_whole(arguments.sequence, -1),
        record_function=_whole(arguments.record_function, 0),
    )


def _work_kind(event: _Event) -> WorkKind:
    name = (event.name or "").lower()
    if (event.args and event.args.collective is not None) or any(library in name for library in _COLLECTIVE_NAMES):
        return "collective"
    if "htod" in name or "host -> device" in name:
        return "host to device"
    if "dtoh" in name or "device -> host" in name or "device -> pageable" in name or "device -> pinned" in name:
        return "device to host"
    return "compute"


def _external_id(event: _Event) -> Scalar:
    if event.args is None:
        return None
    return event.args.external_id if event.args.external_id is not None else event.args.external_id_2021


def _duration_us(event: _Event) -> float:
    duration_us = 0.0 if event.dur is None else _number(event.dur, "dur")
    if duration_us < 0:
        raise InputError(f"a duration is not negative: {duration_us}", place="dur")
    return duration_us


def _number(value: Scalar, place: str) -> float:
    """Read a time stamp or duration; some writers put them in quotes."""
    try:
        number = float(value) if value is not None else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"is a finite number of microseconds, not {str(value)[:40]!r}", place=place)
    return number


def _whole(value: Scalar, default: int) -> int:
    """Read an optional id; what is not a whole number counts as not recorded."""
    return value if isinstance(value, int) else default


def _launched(work: DeviceWork) -> float:
    return work.launched_us
