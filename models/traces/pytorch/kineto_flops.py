"""FLOPs of a Kineto step whose calls have shapes: what the roofline's rules can read off them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slackswap.models.traces.pytorch.execution_trace import Iteration, Node
from slackswap.models.traces.pytorch.kineto_events import CpuOperator
from slackswap.models.traces.pytorch.roofline_times import flops_by_operator
from slackswap.models.traces.pytorch.shape_dataflow import Argument, arguments_of
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall, ShapedTensor


def kineto_flops(nodes: Sequence[Node], iteration: Iteration, event_of: Mapping[int, CpuOperator]) -> tuple[float, ...]:
    """Return the FLOPs of each operator of a step, 0 where they are not known.

    The shape of what a forward call returns is that of the gradient which its backward node is given.
    """
    written: dict[int, Argument] = {}
    for node in nodes:
        if node.sequence >= 0 and "Backward" in node.name:
            gradients = arguments_of(event_of[node.id])
            if gradients:
                written.setdefault(node.sequence, gradients[0])
    calls = [_shaped(node, arguments_of(event_of[node.id]), written.get(node.sequence)) for node in nodes]
    return flops_by_operator(calls, iteration)


def _shaped(node: Node, arguments: Sequence[Argument], written: Argument | None) -> ShapedCall:
    positions: list[Any] = [None] * (1 + max((argument.position for argument in arguments), default=-1))
    for argument in arguments:
        positions[argument.position] = _tensor(argument)
    return ShapedCall(node, tuple(positions), () if written is None else (_tensor(written),))


def _tensor(argument: Argument) -> ShapedTensor:
    return ShapedTensor(0, argument.shape, argument.bytes)
