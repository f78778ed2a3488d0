"""Finds the Kineto event of each execution-trace node.

Recent PyTorch writes one id into both files (``rf_id``, ``Record function id``). Where it does not, or writes 0
everywhere, the two call trees are aligned thread by thread, by name, in the iteration whose autograd sequence numbers
fit best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.execution_trace import EVALUATE_FUNCTION, STEP_MARKER, Iteration, Node
from slackswap.models.traces.kineto import CpuOperator, KinetoTrace, Thread

# Integer-microsecond traces round a child's end past its parent's.
_ROUNDING_US = 1.0
_SAME_NAMES = 0.9
# Longer lists of siblings that are not the same stay unlinked: comparing them would take minutes.
_MAX_COMPARISONS = 25_000_000


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
class _Call:
    """A Kineto event and the events nested in it."""

    event: CpuOperator
    children: list[_Call] = field(default_factory=list)


def link_traces(nodes: Sequence[Node], kineto: KinetoTrace) -> TraceLink:
    """Link the nodes of an execution trace to the events of the Kineto trace recorded with it."""
    calls = [node for node in nodes if not node.is_container]
    by_id = _by_record_function(calls, kineto.operators)
    if by_id is not None:
        return TraceLink(by_id, len(calls), "The two files are linked by record function id.")
    offset = _sequence_offset(calls, kineto.operators)
    shown = f" (sequence numbers differ by {offset})" if offset else ""
    method = f"No record function ids: call trees aligned by name where sequence numbers fit{shown}."
    return TraceLink(_align(nodes, kineto.operators, offset), len(calls), method)


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
        if inner and outer and inner.start_us > outer.end_us + _ROUNDING_US:
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
    """Find the constant difference of sequence numbers at which most (name, number) pairs meet; the least of equals."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for operator in operators:
        if operator.sequence >= 0:
            numbers[operator.name].add(operator.sequence)
    wanted = [(node.name, node.sequence) for node in calls if node.sequence >= 0]
    rarest = min(wanted, key=lambda pair: len(numbers.get(pair[0], ())) or len(operators) + 1, default=None)
    if rarest is None:
        return 0
    candidates = {number - rarest[1] for number in numbers.get(rarest[0], ())} | {0}

    def met(offset: int) -> int:
        return sum(sequence + offset in numbers.get(name, ()) for name, sequence in wanted)

    return max(candidates, key=lambda offset: (met(offset), -abs(offset), offset))


def _align(nodes: Sequence[Node], operators: Sequence[CpuOperator], offset: int) -> dict[int, CpuOperator]:
    """Align each thread of the execution trace with the Kineto thread that shares most of its numbered calls."""
    children: dict[int, list[Node]] = defaultdict(list)
    for node in nodes:
        children[node.parent].append(node)
    threads: dict[Thread, list[CpuOperator]] = defaultdict(list)
    for operator in operators:
        threads[operator.thread].append(operator)
    tops = {thread: _without_steps(_nest(events)) for thread, events in threads.items()}
    linked: dict[int, CpuOperator] = {}
    for thread_node in [node for node in nodes if node.is_container]:
        top_nodes = _without_step_nodes(children[thread_node.id], children)
        top_nodes = [node for node in top_nodes if not node.is_container]
        wanted = {(n.name, n.sequence + offset) for n in nodes if n.thread == thread_node.thread and n.sequence >= 0}
        best = max(tops, key=lambda thread: len(wanted & {(o.name, o.sequence) for o in threads[thread]}), default=None)
        if best is not None and wanted:
            _match(top_nodes, _window(tops[best], wanted, len(top_nodes)), children, linked)
    return linked


def _window(calls: list[_Call], wanted: set[tuple[str, int]], margin: int) -> list[_Call]:
    """Cut a thread's outermost calls down to the iteration that holds the wanted numbered calls, and a margin."""
    hits = [i for i, call in enumerate(calls) if any((event.name, event.sequence) in wanted for event in _events(call))]
    if not hits:
        return []
    # Calls without a number before the first hit and after the last one belong to the iteration too, as many as fit.
    spare = max(0, margin - len(hits))
    return calls[max(0, hits[0] - spare) : hits[-1] + spare + 1]


def _events(call: _Call) -> Iterable[CpuOperator]:
    stack = [call]
    while stack:
        top = stack.pop()
        yield top.event
        stack.extend(top.children)


def _match(
    nodes: list[Node], calls: list[_Call], children: dict[int, list[Node]], linked: dict[int, CpuOperator]
) -> None:
    """Match two lists of siblings by name, in order, then what is inside of each matched pair."""
    stack = [(nodes, calls)]
    while stack:
        some_nodes, some_calls = stack.pop()
        for node, call in _pairs(some_nodes, some_calls):
            linked[node.id] = call.event
            stack.append((children[node.id], call.children))


def _pairs(nodes: list[Node], calls: list[_Call]) -> list[tuple[Node, _Call]]:
    node_names = [node.name for node in nodes]
    call_names = [call.event.name for call in calls]
    if node_names == call_names:
        return list(zip(nodes, calls, strict=True))
    if len(nodes) * len(calls) > _MAX_COMPARISONS:
        return []
    blocks = SequenceMatcher(None, node_names, call_names, autojunk=False).get_matching_blocks()
    return [(nodes[block.a + i], calls[block.b + i]) for block in blocks for i in range(block.size)]


def _nest(events: list[CpuOperator]) -> list[_Call]:
    """Nest a thread's events by interval; ties by event number."""
    top: list[_Call] = []
    open_calls: list[_Call] = []
    for event in sorted(events, key=lambda event: (event.start_us, -event.end_us, event.index)):
        while open_calls and not (
            event.start_us < open_calls[-1].event.end_us and event.end_us <= open_calls[-1].event.end_us + _ROUNDING_US
        ):
            open_calls.pop()
        call = _Call(event)
        (open_calls[-1].children if open_calls else top).append(call)
        open_calls.append(call)
    return top


def _without_steps(calls: list[_Call]) -> list[_Call]:
    """Replace step markers by what is inside: only one of the two files may have them."""
    return [inner for call in calls for inner in (call.children if call.event.name.startswith(STEP_MARKER) else [call])]


def _without_step_nodes(nodes: list[Node], children: dict[int, list[Node]]) -> list[Node]:
    return [inner for node in nodes for inner in (children[node.id] if node.name.startswith(STEP_MARKER) else [node])]
