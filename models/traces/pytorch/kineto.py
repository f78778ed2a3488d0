"""Kineto trace: CPU operators by thread, and the device work that each stretch of a thread launched.

Device work belongs to the operator that launched it, found by correlation id: it runs later than its launch, so its own
time stamp says nothing about the operator.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.pytorch.kineto_events import (
    CpuOperator,
    DeviceWork,
    EventStream,
    MemoryEvent,
    PlacedEvent,
    Scalar,
    Thread,
    WorkKind,
    number,
)
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

Window = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Orphans:
    """Device work whose launch is not at hand: how many kernels, memsets and copies, and their time."""

    count: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """What a Kineto trace says, or a window of it.

    Attributes
    ----------
    operators : every CPU operator and annotation, in file order
    work : device work by launching thread, in order of launch
    orphans : device work whose launch is not in the file; of a window: that ran in it and was launched outside of it
    device_names : name of each device, by its number
    memory : what the allocators of devices did, in order of time
    """

    operators: tuple[CpuOperator, ...]
    work: dict[Thread, tuple[DeviceWork, ...]]
    orphans: Orphans
    device_names: dict[Scalar, str]
    memory: tuple[MemoryEvent, ...] = ()

    @property
    def has_device_work(self) -> bool:
        """Whether any kernel, memset or copy was recorded."""
        return bool(self.work) or self.orphans.count > 0

    @property
    def processes(self) -> set[Scalar]:
        """Processes that the CPU operators ran in."""
        return {operator.thread[0] for operator in self.operators}

    def device_name(self, number: str) -> str:
        """Return the name of a device by its number; empty where the trace does not name it."""
        return {str(key): name for key, name in self.device_names.items()}.get(number, "")

    def launched_within(self, operator: CpuOperator) -> Sequence[DeviceWork]:
        """Device work that was launched between the start and the end of an operator, on its thread."""
        work = self.work.get(operator.thread, ())
        first = bisect_left(work, operator.start_us, key=_launched)
        return work[first : bisect_right(work, operator.end_us, key=_launched)]


def read_kineto(file: TraceFile | bytes, source: str = "", *, window: Window | None = None) -> KinetoTrace:
    """Read a Kineto trace: an object with ``traceEvents``, or the bare list of the old autograd profiler.

    Parameters
    ----------
    file : the file, or its content, which messages then call `source`
    window : in microseconds; only calls that start in it and the device work that they launched are kept

    Raises
    ------
    InputError
        The file is torn or not JSON, or a value has the wrong type; the place is the JSON path.
    """
    events = EventStream(as_trace_file(file, source))
    found = _Found(window)
    for placed in events:
        try:
            found.add(placed)
        except InputError as error:
            raise events.located(error, placed) from None
    if window is not None:
        # Device work may stand before the launches in the file: it is sought once they are known.
        for placed in events:
            try:
                found.add_work(placed)
            except InputError as error:
                raise events.located(error, placed) from None
    work, orphans = found.attached()
    memory = tuple(sorted(found.memory, key=lambda event: event.time_us))
    return KinetoTrace(tuple(found.operators), work, orphans, events.device_names, memory)


@dataclass
class _Found:
    """What a file's events come down to; launches by what device events name them by."""

    window: Window | None
    operators: list[CpuOperator] = field(default_factory=list)
    launches: dict[Hashable, tuple[Thread, float]] = field(default_factory=dict)
    by_external_id: dict[Hashable, tuple[Thread, float]] = field(default_factory=dict)
    memory: list[MemoryEvent] = field(default_factory=list)
    launched_elsewhere: set[Scalar] = field(default_factory=set)  # correlation ids outside of the window
    work: list[tuple[Scalar, Scalar, float, WorkKind]] = field(default_factory=list)

    def add(self, placed: PlacedEvent) -> None:
        """Take what a CPU thread did; device work as well where there is no window."""
        if placed.kind == "work":
            if self.window is None:
                self._keep_work(placed)
        elif placed.kind != "other" and self._lies_in_window(placed):
            self._add_host(placed)
        elif placed.kind == "launch" and placed.correlation is not None:
            self.launched_elsewhere.add(placed.correlation)

    def _add_host(self, placed: PlacedEvent) -> None:
        if placed.kind == "operator":
            operator = placed.operator()
            self.operators.append(operator)
            if placed.external_id is not None:
                self.by_external_id[placed.external_id] = (operator.thread, operator.start_us)
        elif placed.kind == "launch" and placed.correlation is not None:
            self.launches[placed.correlation] = (placed.thread, number(placed.event.ts, "ts"))
        elif placed.kind == "memory":
            event = placed.memory()
            if event is not None:
                self.memory.append(event)

    def add_work(self, placed: PlacedEvent) -> None:
        """Take device work that the window launched, or that ran in it."""
        if placed.kind == "work" and (self._launch(placed.correlation, placed.external_id) or self._ran_in(placed)):
            self._keep_work(placed)

    def _keep_work(self, placed: PlacedEvent) -> None:
        self.work.append((placed.correlation, placed.external_id, placed.duration_us, placed.work_kind))

    def _ran_in(self, placed: PlacedEvent) -> bool:
        return placed.event.ts is not None and self._lies_in_window(placed)

    def _lies_in_window(self, placed: PlacedEvent) -> bool:
        if self.window is None:
            return True
        start_us, end_us = self.window
        return start_us <= number(placed.event.ts, "ts") <= end_us

    def _launch(self, correlation: Scalar, external_id: Scalar) -> tuple[Thread, float] | None:
        launch = self.launches.get(correlation) if correlation is not None else None
        if launch is not None or external_id is None or correlation in self.launched_elsewhere:
            return launch
        # In some files external ids are correlation ids: only what has no launch anywhere is looked up by them.
        return self.by_external_id.get(external_id)

    def attached(self) -> tuple[dict[Thread, tuple[DeviceWork, ...]], Orphans]:
        """Group device work by the thread that launched it; count what was launched by none."""
        work: dict[Thread, list[DeviceWork]] = defaultdict(list)
        orphans_us: list[float] = []
        for correlation, external_id, duration_us, kind in self.work:
            launch = self._launch(correlation, external_id)
            if launch is None:
                orphans_us.append(duration_us)
            else:
                work[launch[0]].append(DeviceWork(launch[1], duration_us, kind))
        grouped = {thread: tuple(sorted(items, key=_launched)) for thread, items in work.items()}
        return grouped, Orphans(len(orphans_us), sum(orphans_us) * 1e-6)


def _launched(work: DeviceWork) -> float:
    return work.launched_us
