"""Nests the events of CPU threads into calls, and numbers them as an execution trace does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from slackswap.models.traces.pytorch.execution_trace import SCOPE_ANNOTATION, STEP_MARKER, Node
from slackswap.models.traces.pytorch.kineto import KinetoTrace
from slackswap.models.traces.pytorch.kineto_events import CpuOperator, Thread

# Integer-microsecond traces round a child's end past its parent's.
ROUNDING_US = 1.0


@dataclass(slots=True)
class Call:
    """A Kineto event and the events nested in it."""

    event: CpuOperator
    children: list[Call] = field(default_factory=list)

    def events(self) -> Iterator[CpuOperator]:
        """Yield the event and those inside of it."""
        stack = [self]
        while stack:
            top = stack.pop()
            yield top.event
            stack.extend(top.children)


def nest_calls(operators: Iterable[CpuOperator]) -> dict[Thread, list[Call]]:
    """Nest each thread's events by interval; return the outermost calls of each thread in order of time.

    Of events with the same start, the longer is the outer one; of equal intervals, the one that was recorded first.
    """
    threads: dict[Thread, list[CpuOperator]] = defaultdict(list)
    for operator in operators:
        threads[operator.thread].append(operator)
    return {thread: _nest(events) for thread, events in threads.items()}


def _nest(events: list[CpuOperator]) -> list[Call]:
    top: list[Call] = []
    # Open calls and their ends: a child that is rounded past its parent's end must not catch what comes after both.
    open_calls: list[tuple[Call, float]] = []
    for event in sorted(events, key=lambda event: (event.start_us, -event.end_us, event.index)):
        while open_calls and not _lies_in(event, open_calls[-1][1]):
            open_calls.pop()
        call, end_us = Call(event), event.end_us
        if open_calls:
            outer, outer_end_us = open_calls[-1]
            outer.children.append(call)
            end_us = min(end_us, outer_end_us)
        else:
            top.append(call)
        open_calls.append((call, end_us))
    return top


def _lies_in(event: CpuOperator, outer_end_us: float) -> bool:
    # In whole microseconds, the last call inside of another may seem to start at its end and to take no time.
    starts_inside = event.start_us < outer_end_us or event.start_us == event.end_us == outer_end_us
    return starts_inside and event.end_us <= outer_end_us + ROUNDING_US


def nest_working_calls(kineto: KinetoTrace) -> dict[Thread, list[Call]]:
    """Nest the calls of a trace without annotations that hold no call and launched nothing.

    Such is `zero_grad` where it only drops the gradients; an annotation that launched a hand-written kernel stays.
    """
    calls_of = nest_calls(kineto.operators)
    empty = {
        id(call.event)
        for calls in calls_of.values()
        for call, _ in _walk(calls)
        if call.event.is_annotation
        and not call.children
        and not call.event.name.startswith(STEP_MARKER)
        and not kineto.launched_within(call.event)
    }
    return nest_calls(event for event in kineto.operators if id(event) not in empty) if empty else calls_of


def numbered_nodes(calls_of: dict[Thread, list[Call]]) -> tuple[list[Node], dict[int, CpuOperator]]:
    """Number the calls of all threads as an execution trace does: by start, a call before what is inside of it.

    Returns
    -------
    nodes, without tensors, in order of id; and the event of each
    """
    thread_numbers = {thread: number for number, thread in enumerate(calls_of, start=1)}
    parent_of: dict[int, CpuOperator] = {}
    ordered: list[CpuOperator] = []
    for calls in calls_of.values():
        for call, parent in _walk(calls):
            ordered.append(call.event)
            if parent is not None:
                parent_of[id(call.event)] = parent.event
    # The sort is stable: within a thread an outer call stays before an inner one with the same start.
    ordered.sort(key=lambda event: event.start_us)
    id_of = {id(event): number for number, event in enumerate(ordered, start=1)}
    nodes = [
        Node(
            id=id_of[id(event)],
            name=event.name,
            parent=id_of[id(parent_of[id(event)])] if id(event) in parent_of else 0,
            inputs=(),
            outputs=(),
            record_function=event.record_function,
            sequence=event.sequence,
            scope=SCOPE_ANNOTATION if event.is_annotation else 0,
            thread=thread_numbers[event.thread],
            forward_thread=event.forward_thread,
            schema="",
        )
        for event in ordered
    ]
    return nodes, {node.id: event for node, event in zip(nodes, ordered, strict=True)}


def _walk(calls: Sequence[Call]) -> Iterator[tuple[Call, Call | None]]:
    """Yield every call, outer before inner, with the one around it."""
    stack: list[tuple[Call, Call | None]] = [(call, None) for call in reversed(calls)]
    while stack:
        call, parent = stack.pop()
        yield call, parent
        stack.extend((child, call) for child in reversed(call.children))
