"""Time of each operator of an iteration: its device work, or on a CPU trace its own duration."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.derivation import Dropped
from slackswap.models.traces.pytorch.execution_trace import Iteration, Node, RootOperator, outermost_calls
from slackswap.models.traces.pytorch.kineto import KinetoTrace
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, DeviceWork
from slackswap.models.traces.pytorch.trace_link import TraceLink

_HOST_COPIES = ("host to device", "device to host")
# Below this share of linked operators the two files do not describe the same run.
MIN_LINKED = 0.95


@dataclass(frozen=True, slots=True)
class OperatorTimes:
    """Seconds per operator, and what was decided on the way.

    Attributes
    ----------
    duration_s : by operator index
    collective : operators that communicated
    heuristics : sentences for the problem's metadata
    dropped : device work that no operator's time holds
    n_untimed : operators whose time is not recorded
    """

    duration_s: tuple[float, ...]
    collective: frozenset[int]
    heuristics: tuple[str, ...]
    dropped: tuple[Dropped, ...] = ()
    n_untimed: int = 0


def measure(
    iteration: Iteration,
    link: TraceLink,
    kineto: KinetoTrace,
    *,
    on_device: bool,
    source: str,
    host_copies: bool = True,
) -> OperatorTimes:
    """Time the operators of an iteration.

    Parameters
    ----------
    on_device : bool
        True: an operator takes as long as the device work that it launched. False: as long as its CPU event.
    host_copies : bool
        Whether copies from and to the host count as their operator's time.

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
    timed = _on_device(events, kineto, host_copies=host_copies) if on_device else _on_cpu(operators, events)
    n_untimed = len(operators) - n_linked
    untimed = (f"{n_untimed} operators have no event in the Kineto trace: they take no time.",) if n_untimed else ()
    return replace(timed, heuristics=(*untimed, *timed.heuristics), n_untimed=n_untimed)


def _on_cpu(operators: Sequence[RootOperator], events: Sequence[CpuOperator | None]) -> OperatorTimes:
    durations = [
        0.0 if event is None or root.node.is_annotation else (event.end_us - event.start_us) * 1e-6
        for root, event in zip(operators, events, strict=True)
    ]
    note = "CPU trace: an operator's time is the duration of its CPU event, profiler overhead included."
    return OperatorTimes(tuple(durations), frozenset(), (note,))


def _on_device(events: Sequence[CpuOperator | None], kineto: KinetoTrace, *, host_copies: bool) -> OperatorTimes:
    counted = {"compute", "device copy", *(_HOST_COPIES if host_copies else ())}
    durations: list[float] = []
    collective: set[int] = set()
    copies_us, collectives_us = [], []
    n_copying = 0
    for i, work in enumerate(_work_of(events, kineto)):
        durations.append(sum(item.duration_us for item in work if item.kind in counted) * 1e-6)
        communicated_us = [item.duration_us for item in work if item.kind == "collective"]
        collectives_us += communicated_us
        if communicated_us:
            collective.add(i)
        copied_us = [item.duration_us for item in work if item.kind in _HOST_COPIES]
        copies_us += copied_us
        n_copying += bool(copied_us)
    heuristics = [
        "An operator's time is the sum of the kernels, memsets and copies that it launched; device gaps do not count."
    ]
    if n_copying and host_copies:
        heuristics.append(
            f"Host copies of {n_copying} operators ({sum(copies_us) / 1e3:.3f} ms) count as their time, and as the"
            " rebuild of what they copied."
        )
    dropped = []
    if collectives_us:
        dropped.append(
            Dropped("communication (NCCL, RCCL) on its own stream", len(collectives_us), sum(collectives_us) * 1e-6)
        )
    if copies_us and not host_copies:
        dropped.append(Dropped("copies between host and device", len(copies_us), sum(copies_us) * 1e-6))
    return OperatorTimes(tuple(durations), frozenset(collective), tuple(heuristics), (*dropped, *_orphans(kineto)))


def _work_of(events: Sequence[CpuOperator | None], kineto: KinetoTrace) -> list[list[DeviceWork]]:
    """Return each operator's device work; what was launched just where one ends and the next starts is the next one's."""
    claimed: set[int] = set()
    found: list[list[DeviceWork]] = []
    for event in reversed(events):
        launched = kineto.launched_within(event) if event else ()
        found.append([work for work in launched if id(work) not in claimed])
        claimed.update(map(id, launched))
    return found[::-1]


def _orphans(kineto: KinetoTrace) -> tuple[Dropped, ...]:
    if not kineto.orphans.count:
        return ()
    what = "device work that ran meanwhile, launched outside of the step or before the recording"
    return (Dropped(what, kineto.orphans.count, kineto.orphans.seconds),)


def dropped_calls(
    nodes: Sequence[Node], iteration: Iteration, event_of: Mapping[int, CpuOperator], kineto: KinetoTrace
) -> tuple[Dropped, ...]:
    """Return the outermost calls of the step that belong to neither pass, by what they are, with their device work.

    Device work that no call launched is among them: which operator it belongs to is not recorded.
    """
    counts: Counter[str] = Counter()
    seconds: defaultdict[str, float] = defaultdict(float)
    held: set[int] = set()
    for root in outermost_calls(nodes):
        event = event_of.get(root.node.id)
        work = kineto.launched_within(event) if event is not None else ()
        held.update(map(id, work))
        if root.node.id not in iteration.operator_of:
            what = _what_is_aside(root)
            counts[what] += 1
            seconds[what] += sum(item.duration_us for item in work) * 1e-6
    beside_us = [item.duration_us for works in kineto.work.values() for item in works if id(item) not in held]
    if beside_us:
        what = "device work launched outside of any call (hand-written kernels)"
        counts[what], seconds[what] = len(beside_us), sum(beside_us) * 1e-6
    return tuple(Dropped(what, counts[what], seconds[what]) for what in counts)


def _what_is_aside(root: RootOperator) -> str:
    names = (*root.annotations, root.node.name)
    if any(name.startswith("Optimizer.zero_grad") for name in names):
        return "zeroing of gradients"
    if any(name.startswith("Optimizer.") for name in names):
        return "optimizer"
    if any("DataLoader" in name for name in names):
        return "data loading"
    return "calls before, beside and after the two passes"
