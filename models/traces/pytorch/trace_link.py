"""Finds the Kineto event of each execution-trace node.

Recent PyTorch writes one id into both files (``rf_id``, ``Record function id``). Where it does not, or writes 0
everywhere, the two call trees are aligned thread by thread, by name, in the iteration whose autograd sequence numbers
fit best.
"""

from __future__ import annotations

import math
from array import array
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.pytorch.call_alignment import align_calls
from slackswap.models.traces.pytorch.call_tree import ROUNDING_US
from slackswap.models.traces.pytorch.execution_trace import EVALUATE_FUNCTION, Iteration, Node
from slackswap.models.traces.pytorch.kineto import KinetoTrace, Window
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, EventStream
from slackswap.models.traces.trace_file import TraceFile

_SAME_NAMES = 0.9
_NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class TraceLink:
    """The event of each linked node, and how the two files were linked.

    Attributes
    ----------
    event_of : Kineto event by node id
    n_nodes : calls and annotations of the execution trace, linked or not
    method : one sentence for the problem's metadata
    """

    event_of: dict[int, CpuOperator]
    n_nodes: int
    method: str


@dataclass(slots=True)
class _Sighting:
    """Where in a Kineto trace the calls of an execution trace were seen.

    Attributes
    ----------
    by_id_us : starts of the events that share a record function id and the name with a call
    n_other : events that share only the id: it is of another recording then
    numbered : sequence number and start of the events with the name of a numbered call, by name
    marks_us : starts of the events with the name that marks an iteration
    """

    by_id_us: array[float] = field(default_factory=lambda: array("d"))
    n_other: int = 0
    numbered: dict[str, tuple[array[int], array[float]]] = field(default_factory=dict)
    marks_us: array[float] = field(default_factory=lambda: array("d"))


@dataclass(frozen=True, slots=True)
class IterationWindow:
    """The part of a Kineto trace that an execution trace recorded.

    Attributes
    ----------
    window : in microseconds
    index, of : which iteration of the file it is, counted by its first backward call; `of` is 0 where that was not seen
    """

    window: Window
    index: int
    of: int


def find_iteration(nodes: Sequence[Node], iteration: Iteration, file: TraceFile) -> IterationWindow:
    """Look at a whole Kineto trace once and return the stretch in which the calls of an execution trace ran.

    Without record function ids the stretch is widened by its own length on either side, for the calls without a number.
    """
    calls = [node for node in nodes if not node.is_container]
    mark = iteration.backward[0].node.name
    seen = _look(calls, mark, file)
    if seen.by_id_us and len(seen.by_id_us) >= _SAME_NAMES * (len(seen.by_id_us) + seen.n_other):
        start_us, end_us = min(seen.by_id_us), max(seen.by_id_us)
    else:
        start_us, end_us = _numbered_stretch(calls, seen)
    each = max(1, sum(root.node.name == mark for root in iteration.backward))
    before = sum(mark_us < start_us for mark_us in seen.marks_us)
    margin_us = 0.0 if seen.by_id_us and start_us == min(seen.by_id_us) else end_us - start_us
    window = (start_us - margin_us, end_us + margin_us)
    return IterationWindow(window, before // each, -(-len(seen.marks_us) // each))


def _look(calls: Sequence[Node], mark: str, file: TraceFile) -> _Sighting:
    by_id = {node.record_function: node.name for node in calls if node.record_function > 0}
    names = {node.name for node in calls if node.sequence >= 0}
    seen, events = _Sighting(), EventStream(file)
    for placed in events:
        if placed.kind != "operator":
            continue
        try:
            operator = placed.operator()
        except InputError as error:
            raise events.located(error, placed) from None
        if operator.record_function in by_id:
            if by_id[operator.record_function] == operator.name:
                seen.by_id_us.append(operator.start_us)
            else:
                seen.n_other += 1
        if operator.sequence >= 0 and operator.name in names:
            numbers, starts_us = seen.numbered.setdefault(operator.name, (array("q"), array("d")))
            numbers.append(operator.sequence)
            starts_us.append(operator.start_us)
        if operator.name == mark:
            seen.marks_us.append(operator.start_us)
    return seen


def _numbered_stretch(calls: Sequence[Node], seen: _Sighting) -> Window:
    """Return the stretch of the calls whose numbers fit best; all times where there is none."""
    offset = _best_offset(calls, {name: set(numbers) for name, (numbers, _) in seen.numbered.items()})
    wanted = {(node.name, node.sequence + offset) for node in calls if node.sequence >= 0}
    hits_us = [
        start_us
        for name, (numbers, starts_us) in seen.numbered.items()
        for number, start_us in zip(numbers, starts_us, strict=True)
        if (name, number) in wanted
    ]
    return (min(hits_us), max(hits_us)) if hits_us else (-math.inf, math.inf)


def link_traces(nodes: Sequence[Node], kineto: KinetoTrace) -> TraceLink:
    """Link the nodes of an execution trace to the events of the Kineto trace recorded with it."""
    calls = [node for node in nodes if not node.is_container]
    by_id = _by_record_function(calls, kineto.operators)
    if by_id is not None:
        return TraceLink(by_id, len(calls), "The two files are linked by record function id.")
    offset = _sequence_offset(calls, kineto.operators)
    shown = f" (sequence numbers differ by {offset})" if offset else ""
    method = f"No record function ids: call trees aligned by name where sequence numbers fit{shown}."
    return TraceLink(align_calls(nodes, kineto.operators, offset), len(calls), method)


def check_nesting(nodes: Sequence[Node], iteration: Iteration, link: TraceLink, source: str) -> None:
    """Refuse an execution trace whose call tree is broken, since times and storages would go to the wrong operator.

    The recorder does not see an exception leave a call: everything after it is nested too deeply. That happens in
    every checkpointed block that stops its recomputation early.

    Raises
    ------
    InputError
        An engine call lies inside an operator, but did not run during it.
    """
    for node in nodes:
        operator = iteration.operator_of.get(node.id)
        if operator is None or not node.name.startswith(EVALUATE_FUNCTION):
            continue
        inner = link.event_of.get(node.id)
        outer = link.event_of.get(iteration.operators[operator].node.id)
        if inner and outer and inner.start_us > outer.end_us + ROUNDING_US:
            raise InputError(
                f"its call tree is broken: node {node.id} did not run during the operator that it lies in;"
                " with activation checkpointing, record under torch.utils.checkpoint.set_checkpoint_early_stop(False)",
                source=source,
            )


def _by_record_function(calls: Sequence[Node], operators: Sequence[CpuOperator]) -> dict[int, CpuOperator] | None:
    """Link by id; None where ids were not recorded (0 everywhere) or belong to another recording (other names)."""
    by_id = {operator.record_function: operator for operator in operators if operator.record_function > 0}
    found = {node.id: by_id[node.record_function] for node in calls if node.record_function in by_id}
    same = {node.id: found[node.id] for node in calls if node.id in found and found[node.id].name == node.name}
    return same if same and len(same) >= _SAME_NAMES * len(found) else None


def _sequence_offset(calls: Sequence[Node], operators: Sequence[CpuOperator]) -> int:
    numbers: dict[str, set[int]] = defaultdict(set)
    for operator in operators:
        if operator.sequence >= 0:
            numbers[operator.name].add(operator.sequence)
    return _best_offset(calls, numbers)


def _best_offset(calls: Sequence[Node], numbers: Mapping[str, Collection[int]]) -> int:
    """Find the constant difference of sequence numbers at which most (name, number) pairs meet; the least of equals."""
    wanted = [(node.name, node.sequence) for node in calls if node.sequence >= 0]
    rarest = min(wanted, key=lambda pair: len(numbers.get(pair[0], ())) or _NEVER, default=None)
    if rarest is None:
        return 0
    candidates = {number - rarest[1] for number in numbers.get(rarest[0], ())} | {0}

    def met(offset: int) -> int:
        return sum(sequence + offset in numbers.get(name, ()) for name, sequence in wanted)

    return max(candidates, key=lambda offset: (met(offset), -abs(offset), offset))
