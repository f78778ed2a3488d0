"""Finds the Kineto event of each execution-trace node.

Recent PyTorch writes one id into both files (``rf_id``, ``Record function id``). Where it does not, or writes 0
everywhere, the two call trees are aligned thread by thread, by name, in the iteration whose autograd sequence numbers
fit best.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.call_alignment import align_calls
from slackswap.models.traces.call_tree import ROUNDING_US
from slackswap.models.traces.execution_trace import EVALUATE_FUNCTION, Iteration, Node
from slackswap.models.traces.kineto import KinetoTrace
from slackswap.models.traces.kineto_events import CpuOperator

_SAME_NAMES = 0.9


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
