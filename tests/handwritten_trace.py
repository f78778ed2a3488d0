"""Writes tiny traces by hand: one list of calls becomes an execution trace and the Kineto trace recorded with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.pytorch.execution_trace import ExecutionTrace, Node, cut_iteration
from slackswap.models.traces.pytorch.pair import import_pytorch
from slackswap.models.traces.storage_lifetimes import find_lifetimes

ENGINE = "autograd::engine::evaluate_function: "
PROCESS = 77
Json = dict[str, Any]


def tensor(storage: int, size_bytes: int, device: str = "cpu") -> list[Any]:
    """Tensor `storage + 1000` that shows the first `size_bytes` one-byte elements of `storage`."""
    return [storage + 1000, storage, 0, size_bytes, 1, device]


@dataclass
class Call:
    """A call of `us` microseconds of its own and whatever its children take; `kernels` are (name, microseconds)."""

    name: str
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    children: Sequence[Call] = ()
    us: float = 10
    sequence: int = -1
    scope: int = 0
    forward_thread: int = 0
    schema: str = ""
    kernels: Sequence[tuple[str, float]] = ()

    @property
    def duration_us(self) -> float:
        return self.us + sum(child.duration_us for child in self.children)


def annotation(name: str, *children: Call) -> Call:
    return Call(name, children=children, scope=7, us=0)


def backward(name: str, *children: Call, gradient: list[Any], sequence: int, us: float = 10) -> Call:
    """An engine call: the node that autograd evaluates, and what it calls."""
    node = Call(name, [gradient], children=children, sequence=sequence, scope=1, forward_thread=1, us=0)
    return Call(ENGINE + name, children=[node], us=us)


@dataclass(frozen=True)
class Pair:
    """The two traces as JSON values; change them at will before writing."""

    execution_trace: Json
    kineto: Json

    def write(self, folder: Path) -> list[Path]:
        paths = [folder / "step.et.json", folder / "step.kineto.json"]
        for path, trace in zip(paths, (self.execution_trace, self.kineto), strict=True):
            path.write_text(json.dumps(trace))
        return paths


def write_pair(
    calls: Sequence[Call], *, ids: bool = True, flat: bool = False, iterations: int = 1, chosen: int = 0
) -> Pair:
    """Record `calls` once in an execution trace, and `iterations` times in a Kineto trace.

    Parameters
    ----------
    ids : record function ids stand in both files; otherwise 0 everywhere
    flat : schema 1.0.1 instead of 1.1.1
    chosen : the iteration of the Kineto trace that the execution trace recorded
    """
    period = 1 + max((call.sequence for call in _walk(calls)), default=0)
    nodes = [_node(2, 1, Call("[pytorch|profiler|execution_trace|thread]", scope=7), 0, 0, flat)]
    events: list[Json] = []
    for iteration in range(iterations):
        shift = iteration * period
        if iteration == chosen:
            _add_nodes(calls, 2, nodes, shift, ids, flat)
        _add_events(calls, iteration * 1e6, events, shift, ids)
    execution_trace = {"schema": "1.0.1" if flat else "1.1.1-chakra.0.0.4", "pid": PROCESS, "nodes": nodes}
    devices = [{"id": 0, "name": "Toy GPU"}]
    return Pair(execution_trace, {"schemaVersion": 1, "deviceProperties": devices, "traceEvents": events})


def _walk(calls: Sequence[Call]) -> Iterator[Call]:
    for call in calls:
        yield call
        yield from _walk(call.children)


def _add_nodes(calls: Sequence[Call], parent: int, nodes: list[Json], shift: int, ids: bool, flat: bool) -> None:
    for call in calls:
        node_id = nodes[-1]["id"] + 1 if nodes else 3
        nodes.append(_node(node_id, parent, call, shift, node_id if ids else 0, flat))
        _add_nodes(call.children, node_id, nodes, shift, ids, flat)


def _node(node_id: int, parent: int, call: Call, shift: int, record_function: int, flat: bool) -> Json:
    sequence = call.sequence + shift if call.sequence >= 0 else -1
    numbers = {
        "rf_id": record_function,
        "seq_id": sequence,
        "scope": call.scope,
        "tid": 1,
        "fw_tid": call.forward_thread,
        "op_schema": call.schema,
    }
    if flat:
        return {
            "id": node_id,
            "name": call.name,
            "parent": parent,
            "inputs": call.inputs,
            "outputs": call.outputs,
            **numbers,
        }
    return {
        "id": node_id,
        "name": call.name,
        "ctrl_deps": parent,
        "inputs": {"values": call.inputs, "shapes": [], "types": []},
        "outputs": {"values": call.outputs, "shapes": [], "types": []},
        "attrs": [{"name": name, "type": "uint64", "value": value} for name, value in numbers.items()],
    }


def _add_events(calls: Sequence[Call], start_us: float, events: list[Json], shift: int, ids: bool) -> None:
    for call in calls:
        number = len(events)
        arguments: Json = {"External id": number, "Ev Idx": number}
        if ids:
            arguments["Record function id"] = 3 + sum("External id" in event["args"] for event in events)
        if call.sequence >= 0:
            arguments["Sequence number"] = call.sequence + shift
        events.append(
            {
                "ph": "X",
                "cat": "user_annotation" if call.scope == 7 else "cpu_op",
                "name": call.name,
                "pid": PROCESS,
                "tid": PROCESS,
                "ts": start_us,
                "dur": call.duration_us,
                "args": arguments,
            }
        )
        for name, kernel_us in call.kernels:
            events.extend(_launch(name, kernel_us, start_us, len(events)))
        _add_events(call.children, start_us, events, shift, ids)
        start_us += call.duration_us


def _launch(name: str, kernel_us: float, start_us: float, correlation: int) -> list[Json]:
    """A launch inside the call, and the kernel half a second later: its own time stamp must not matter."""
    launch = {
        "cat": "cuda_runtime",
        "name": "cudaLaunchKernel",
        "pid": PROCESS,
        "tid": PROCESS,
        "ts": start_us + 1,
        "dur": 1,
    }
    category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
    work = {"cat": category, "name": name, "pid": 0, "tid": 7, "ts": start_us + 5e5, "dur": kernel_us}
    return [{"ph": "X", **event, "args": {"correlation": correlation}} for event in (launch, work)]


def two_linears() -> list[Call]:
    """Two linear layers with an in-place ReLU between them, loss and backward pass; sizes in bytes.

    ::

        0 linear 100 us   writes a (10), 4000                  4 LossBackward0 40      reads b, writes gb (20), 8000
        1 relu_   20 us   overwrites a                         5 AddmmBackward0 400    reads gb, a, writes gw1, ga (22), 4000
        2 linear 200 us   reads a, writes b (11), 8000         6 AccumulateGrad 1      keeps gw1
        3 loss    30 us   reads b, writes l (13), 4            7 ReluBackward0 25      reads ga, a, writes gz (23), 4000
                                                               8 AddmmBackward0 150    reads gz, writes gw0
                                                               9 AccumulateGrad 1      keeps gw0
    """
    x, weight_0, weight_1, seed = tensor(1, 50), tensor(2, 70), tensor(3, 90), tensor(4, 1)
    a, b, loss = tensor(10, 4000), tensor(11, 8000), tensor(13, 4)
    gb, gw1, ga, gz, gw0 = tensor(20, 8000), tensor(21, 90), tensor(22, 4000), tensor(23, 4000), tensor(24, 70)
    relu = "aten::relu_(Tensor(a!) self) -> Tensor(a!)"
    return [
        Call("aten::linear", [x, weight_0], [a], us=100, sequence=0),
        Call("aten::relu_", [a], [a], us=20, sequence=1, schema=relu),
        Call("aten::linear", [a, weight_1], [b], us=200, sequence=2),
        Call("aten::mse_loss", [b], [loss], us=30, sequence=3),
        backward("LossBackward0", Call("aten::mse_loss_backward", [b], [gb], us=40), gradient=seed, sequence=3, us=0),
        backward(
            "AddmmBackward0",
            Call("aten::mm", [gb, a], [gw1], us=200),
            Call("aten::mm", [gb, weight_1], [ga], us=200),
            gradient=gb,
            sequence=2,
            us=0,
        ),
        accumulate_grad(gw1),
        backward(
            "ReluBackward0", Call("aten::threshold_backward", [ga, a], [gz], us=25), gradient=ga, sequence=1, us=0
        ),
        backward("AddmmBackward0", Call("aten::mm", [gz, x], [gw0], us=150), gradient=gz, sequence=0, us=0),
        accumulate_grad(gw0),
    ]


def accumulate_grad(gradient: list[Any]) -> Call:
    """Keep a weight's gradient: a view of it outlives the step."""
    keep = Call("aten::detach", [gradient], [gradient], us=1, schema="aten::detach(Tensor(a) self) -> Tensor(a)")
    return backward("torch::autograd::AccumulateGrad", keep, gradient=gradient, sequence=-1, us=0)


def imported(calls: list[Call], folder: Path, **how: Any) -> Problem:
    return import_pytorch(write_pair(calls, **how).write(folder), link=PLAIN_LINK)


def on_gpu(calls: list[Call]) -> list[Call]:
    """The same calls on ``cuda:0``, each with one kernel of ten times its own microseconds."""

    def moved(values: list[Any]) -> list[Any]:
        return [[*value[:-1], "cuda:0"] for value in values]

    def launched(call: Call) -> Call:
        kernels = [("void gemm_kernel<float>", 10 * call.us)] if call.us else []
        inside = [launched(child) for child in call.children]
        return replace(call, inputs=moved(call.inputs), outputs=moved(call.outputs), children=inside, kernels=kernels)

    return [launched(call) for call in calls]


def saved_bytes(trace: ExecutionTrace) -> list[tuple[int, int]]:
    """Operator and bytes of each forward storage that is read in the backward pass."""
    iteration = cut_iteration(trace.nodes, "trace")
    n = len(iteration.forward)
    return [
        (lifetime.operator, lifetime.bytes)
        for lifetime in find_lifetimes(trace.nodes, iteration)
        if lifetime.operator is not None and lifetime.operator < n and any(reader >= n for reader in lifetime.readers)
    ]


def leaves_only(trace: ExecutionTrace) -> ExecutionTrace:
    """Mutate a trace to what a naive reader sees: tensors of calls with calls inside are forgotten."""
    parents = {node.parent for node in trace.nodes}

    def bare(node: Node) -> Node:
        return replace(node, inputs=(), outputs=()) if node.id in parents else node

    return ExecutionTrace(tuple(map(bare, trace.nodes)), trace.process)


def refusal(paths: list[Path]) -> str:
    with pytest.raises(InputError) as caught:
        import_traces(paths, link=PLAIN_LINK)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)
