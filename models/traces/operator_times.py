"""Time of each operator of an iteration: its device work, or on a CPU trace its own duration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.execution_trace import Iteration, RootOperator
from slackswap.models.traces.kineto import CpuOperator, KinetoTrace
from slackswap.models.traces.trace_link import TraceLink

# Below this share of linked operators the two files do not describe the same run.
MIN_LINKED = 0.95


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Seconds per operator, and what was decided on the way.

    Attributes
    ----------
    duration_s : by operator index
    collective : operators that communicated
    heuristics, left_out : sentences for the problem's metadata
    """

    duration_s: tuple[float, ...]
    collective: frozenset[int]
    heuristics: tuple[str, ...]
    left_out: tuple[str, ...]


def measure(
    iteration: Iteration, link: TraceLink, kineto: KinetoTrace, *, on_device: bool, source: str
) -> OperatorTimes:
    """Time the operators of an iteration.

    Parameters
    ----------
    on_device : bool
        True: an operator takes as long as the device work that it launched. False: as long as its CPU event.

    Raises
    ------
    InputError
        Fewer than `MIN_LINKED` of the operators have an event in the Kineto trace.
    """
    operators = iteration.operators
    events = [link.event_of.get(root.node.id) for root in operators]
    n_linked = sum(event is not None for event in events)
    if n_linked < MIN_LINKED * len(operators):
        raise InputError(
            f"does not belong to the execution trace: only {n_linked} of its {len(operators)} operators are found;"
            " record both in one run",
            source=source,
        )
    heuristics = [link.method]
    if n_linked < len(operators):
        heuristics.append(
            f"{len(operators) - n_linked} operators have no event in the Kineto trace: they take no time."
        )
    timed = _on_device(events, kineto) if on_device else _on_cpu(operators, events)
    return OperatorTimes(timed.duration_s, timed.collective, (*heuristics, *timed.heuristics), timed.left_out)


def _on_cpu(operators: Sequence[RootOperator], events: Sequence[CpuOperator | None]) -> OperatorTimes:
    durations = [
        0.0 if event is None or root.node.is_annotation else (event.end_us - event.start_us) * 1e-6
        for root, event in zip(operators, events, strict=True)
    ]
    note = "CPU trace: an operator's time is the duration of its CPU event, profiler overhead included."
    return OperatorTimes(tuple(durations), frozenset(), (note,), ())


def _on_device(events: Sequence[CpuOperator | None], kineto: KinetoTrace) -> OperatorTimes:
    durations: list[float] = []
    collective: set[int] = set()
    host_copy_us, collective_us, n_copying = 0.0, 0.0, 0
    for i, event in enumerate(events):
        work = kineto.launched_within(event) if event else ()
        durations.append(sum(item.duration_us for item in work if item.kind != "collective") * 1e-6)
        communicated_us = [item.duration_us for item in work if item.kind == "collective"]
        collective_us += sum(communicated_us)
        if communicated_us:
            collective.add(i)
        copies_us = [item.duration_us for item in work if item.kind in ("host to device", "device to host")]
        host_copy_us += sum(copies_us)
        n_copying += bool(copies_us)
    heuristics = [
        "An operator's time is the sum of the kernels, memsets and copies that it launched; device gaps do not count."
    ]
    if n_copying:
        heuristics.append(
            f"Host copies of {n_copying} operators ({host_copy_us / 1e3:.3f} ms) count as their time, and as the"
            " rebuild of what they copied."
        )
    left_out = _left_out(events, kineto, collective_us)
    return OperatorTimes(tuple(durations), frozenset(collective), tuple(heuristics), left_out)


def _left_out(events: Sequence[CpuOperator | None], kineto: KinetoTrace, collective_us: float) -> tuple[str, ...]:
    """Say what device time of the iteration no operator has."""
    linked = [event for event in events if event is not None]
    start_us, end_us = min(event.start_us for event in linked), max(event.end_us for event in linked)
    inside_us = sum(
        item.duration_us for work in kineto.work.values() for item in work if start_us <= item.launched_us <= end_us
    )
    counted_us = sum(item.duration_us for event in linked for item in kineto.launched_within(event))
    sentences = []
    if collective_us:
        sentences.append(f"Collectives (NCCL/RCCL): {collective_us / 1e3:.3f} ms on their own stream.")
    if inside_us - counted_us > 1:
        sentences.append(
            f"Device work launched during the iteration by no operator of it: {(inside_us - counted_us) / 1e3:.3f} ms."
        )
    if kineto.orphan_s:
        sentences.append(f"Device work whose launch is not in the file: {kineto.orphan_s * 1e3:.3f} ms.")
    return tuple(sentences)
