"""PyTorch execution trace (ET): reads the nodes of both schemas and cuts one iteration out of them.

Schema 1.0.1 is flat (``parent``, ``inputs``, ``rf_id``); from 1.0.2 on ``ctrl_deps`` is the parent, values stand under
``inputs.values`` and the rest in a list of attributes. Node ids are pre-order; the file is in order of completion.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import MAX_TOTAL_BYTES
from slackswap.models.traces.json_stream import ItemDecoder, stream_items
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

EVALUATE_FUNCTION = "autograd::engine::evaluate_function: "
ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"
STEP_MARKER = "ProfilerStep#"
# at::RecordScope: what a node records.
SCOPE_BACKWARD_FUNCTION = 1
SCOPE_ANNOTATION = 7
_CONTAINER = "[pytorch|"  # the process node and one node per thread
_DATA_LOADING = "enumerate(DataLoader)"
_NOT_MODEL_WORK = ("Optimizer.", _DATA_LOADING)
TENSOR_FIELDS = 6
# Stands at the top of the file, before the nodes.
_PROCESS = re.compile(rb'"pid"\s*:\s*(\d{1,18})')


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Values(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    strides: list[Any] = []


class _RawNode(msgspec.Struct):
    id: int
    name: str
    parent: int | None = None
    ctrl_deps: int | None = None
    inputs: list[Any] | _Values | None = None
    outputs: list[Any] | _Values | None = None
    attrs: list[_Attribute] = []
    rf_id: int | None = None
    seq_id: int | None = None
    scope: int | None = None
    tid: int | None = None
    fw_tid: int | None = None
    op_schema: str | None = None


def is_backward_name(name: str) -> bool:
    """Whether only autograd's engine makes calls of this name."""
    return name.startswith((EVALUATE_FUNCTION, "torch::autograd::"))


@dataclass(frozen=True, slots=True)
class TensorUse:
    """One tensor argument: its storage, and how many bytes of it are reached.

    That is ``(offset + numel) * itemsize``; where strides are recorded, the furthest element counts instead of `numel`
    (an expanded tensor has more elements than its storage, a slice reaches further than it has elements).
    """

    storage: int
    bytes: int
    device: str


@dataclass(frozen=True, slots=True)
class Node:
    """One recorded call. `parent` is 0 at the top; `sequence` is -1 where autograd gave the call no number."""

    id: int
    name: str
    parent: int
    inputs: tuple[TensorUse, ...]
    outputs: tuple[TensorUse, ...]
    record_function: int
    sequence: int
    scope: int
    thread: int
    forward_thread: int
    schema: str

    @property
    def is_container(self) -> bool:
        """Whether the node stands for the process or a thread."""
        return self.name.startswith(_CONTAINER)

    @property
    def is_annotation(self) -> bool:
        """Whether the node is a region that somebody named (``record_function``), not a call."""
        return self.scope == SCOPE_ANNOTATION

    @property
    def is_backward(self) -> bool:
        """Whether autograd's engine made the call (spec: names, forward thread, record scope)."""
        return is_backward_name(self.name) or self.forward_thread > 0 or self.scope == SCOPE_BACKWARD_FUNCTION


@dataclass(frozen=True, slots=True)
class ExecutionTrace:
    """The nodes of a trace in order of id, which is the order of calls, and the process that it was recorded in."""

    nodes: tuple[Node, ...]
    process: int | None


@dataclass(frozen=True, slots=True)
class RootOperator:
    """An outermost call and the annotations around it, outermost first."""

    node: Node
    annotations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Iteration:
    """One training iteration of a trace.

    Attributes
    ----------
    forward, backward : outermost operators, in order of execution
    operator_of : the index of the operator (forward, then backward) that each of their nodes lies in
    step : name of the step marker, empty where there is none
    dropped : number of outermost operators in this step that belong to neither pass
    """

    forward: tuple[RootOperator, ...]
    backward: tuple[RootOperator, ...]
    operator_of: dict[int, int]
    step: str
    dropped: int

    @property
    def operators(self) -> tuple[RootOperator, ...]:
        """Forward, then backward operators."""
        return self.forward + self.backward


def read_execution_trace(file: TraceFile | bytes, source: str = "") -> ExecutionTrace:
    """Read an execution trace of either schema.

    Parameters
    ----------
    file : the file, or its content, which messages then call `source`

    Raises
    ------
    InputError
        The file is torn or not JSON, a value has the wrong type or is out of range, or an id stands twice; the place is the
        JSON path.
    """
    trace = as_trace_file(file, source)
    decoder = ItemDecoder(_RawNode, trace.source)
    nodes: dict[int, Node] = {}
    for item in stream_items(trace):
        if item.key != "nodes":
            continue
        place = f"$.nodes[{item.index}]"
        try:
            node = _normalise(decoder.decode(item))
        except InputError as error:
            if error.source:
                raise
            raise InputError(error.rule, place=f"{place}.{error.place}", source=trace.source) from None
        if node.id in nodes:
            raise InputError(f"the id {node.id} stands twice", place=f"{place}.id", source=trace.source)
        nodes[node.id] = node
    process = _PROCESS.search(trace.start())
    return ExecutionTrace(
        tuple(nodes[node_id] for node_id in sorted(nodes)), int(process[1]) if process is not None else None
    )


def _normalise(raw: _RawNode) -> Node:
    """Bring a node of either schema into one form."""
    parent = raw.parent if raw.parent is not None else raw.ctrl_deps
    numbers = {name: getattr(raw, name) for name in ("rf_id", "seq_id", "scope", "tid", "fw_tid")}
    schema = raw.op_schema
    for attribute in raw.attrs:
        if attribute.name in numbers and numbers[attribute.name] is None:
            if not isinstance(attribute.value, int):
                raise InputError(f"{attribute.name} is a whole number", place="attrs")
            numbers[attribute.name] = int(attribute.value)
        elif attribute.name == "op_schema" and isinstance(attribute.value, str):
            schema = attribute.value
    return Node(
        id=raw.id,
        name=raw.name,
        # Ids are pre-order, so what is not smaller cannot be a parent (the process node names itself).
        parent=parent if parent is not None and 0 < parent < raw.id else 0,
        inputs=tuple(_tensor_uses(raw.inputs, "inputs")),
        outputs=tuple(_tensor_uses(raw.outputs, "outputs")),
        record_function=numbers["rf_id"] or 0,
        sequence=-1 if numbers["seq_id"] is None else numbers["seq_id"],
        scope=numbers["scope"] or 0,
        thread=numbers["tid"] or 0,
        forward_thread=numbers["fw_tid"] or 0,
        schema=schema or "",
    )


def _tensor_uses(values: list[Any] | _Values | None, place: str) -> Iterator[TensorUse]:
    """Yield the tensors among a call's values; lists of tensors are searched, undefined tensors (id 0) left out."""
    described = values if isinstance(values, _Values) else _Values(values or [])
    stack: list[tuple[Any, Any, Any]] = [(described.values, described.shapes, described.strides)]
    while stack:
        value, shapes, strides = stack.pop()
        if not isinstance(value, list):
            continue
        if not is_tensor(value):
            n = len(value)
            stack.extend(reversed(list(zip(value, _padded(shapes, n), _padded(strides, n), strict=True))))
            continue
        _tensor, storage, offset, numel, item_bytes, device = value
        reached = _furthest(shapes, strides)
        size = (offset + (numel if reached is None else reached)) * item_bytes
        if min(offset, numel, item_bytes, size) < 0 or size > MAX_TOTAL_BYTES:
            raise InputError(
                f"a tensor's offset, elements and element size are from 0, and reach at most {MAX_TOTAL_BYTES} bytes",
                place=place,
            )
        if storage:
            yield TensorUse(storage=storage, bytes=size, device=device)


def is_tensor(value: list[Any]) -> bool:
    """Whether a list is ``[tensor id, storage id, offset, numel, itemsize, device]``, not a list of plain numbers."""
    return (
        len(value) == TENSOR_FIELDS and isinstance(value[-1], str) and all(type(number) is int for number in value[:-1])
    )


def _padded(items: Any, length: int) -> list[Any]:
    """Return `items` if it is a list of that length, else as many Nones: what describes other values is ignored."""
    return items if isinstance(items, list) and len(items) == length else [None] * length


def _furthest(shape: Any, strides: Any) -> int | None:
    """Count the elements from the first to the furthest that a shape with strides reaches; None if not recorded."""
    if not (isinstance(shape, list) and isinstance(strides, list) and strides and len(shape) == len(strides)):
        return None
    if not all(type(number) is int and number >= 0 for number in shape + strides):
        return None
    return 0 if 0 in shape else 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def cut_iteration(nodes: Sequence[Node], source: str) -> Iteration:
    """Find the forward and the backward pass: of the last step that has both, if the trace marks several.

    Raises
    ------
    InputError
        There is no backward pass, no forward pass, or more than one backward pass in the step.
    """
    root_of = _outermost(nodes)
    ordered = _roots(root_of)
    if not any(root.node.is_backward for root in ordered):
        raise InputError("has no backward pass: it is not a trace of training", source=source)
    step, in_step = _choose_step(nodes, ordered)
    forward, backward, dropped = _passes(in_step, source)
    index = {root.node.id: i for i, root in enumerate(forward + backward)}
    operator_of = {
        node_id: index[root.id] for node_id, (root, _) in root_of.items() if root is not None and root.id in index
    }
    return Iteration(forward, backward, operator_of, step, dropped)


def outermost_calls(nodes: Sequence[Node]) -> list[RootOperator]:
    """Return the outermost calls of all threads, in order of id, with the annotations around each."""
    return _roots(_outermost(nodes))


def _roots(root_of: dict[int, tuple[Node | None, tuple[str, ...]]]) -> list[RootOperator]:
    unique = {node.id: RootOperator(node, annotations) for node, annotations in root_of.values() if node is not None}
    return [unique[node_id] for node_id in sorted(unique)]


def _outermost(nodes: Sequence[Node]) -> dict[int, tuple[Node | None, tuple[str, ...]]]:
    """Map each node to the outermost call around it (None for annotations and threads) and the annotations around that.

    An annotation with no call inside is a call itself: what it launched (a hand-written kernel, say) has no other node.
    """
    parents = {node.parent for node in nodes}
    found: dict[int, tuple[Node | None, tuple[str, ...]]] = {}
    for node in nodes:
        root, annotations = found.get(node.parent, (None, ()))
        if root is None:
            if node.is_container:
                pass
            elif node.is_annotation and (node.id in parents or node.name.startswith(STEP_MARKER)):
                annotations = (*annotations, node.name)
            else:
                root = node
        found[node.id] = (root, annotations)
    return found


def _choose_step(nodes: Sequence[Node], roots: list[RootOperator]) -> tuple[str, list[RootOperator]]:
    """Choose the last marked step that has a forward and a backward operator; without markers, the whole trace."""
    markers = [node for node in nodes if node.is_annotation and node.name.startswith(STEP_MARKER)]
    end = nodes[-1].id + 1
    for marker in reversed(markers):
        inside = [root for root in roots if marker.id < root.node.id < end]
        if inside and not inside[0].node.is_backward and any(root.node.is_backward for root in inside):
            return marker.name, inside
        end = marker.id
    return "", roots


def _passes(roots: list[RootOperator], source: str) -> tuple[tuple[RootOperator, ...], tuple[RootOperator, ...], int]:
    """Split a step's operators into forward, backward and the number of others (data loading, optimizer)."""
    backward_at = [i for i, root in enumerate(roots) if root.node.is_backward]
    first, last = backward_at[0], backward_at[-1]
    thread = _forward_thread(roots)
    # Worker threads of a CPU kernel record stray calls; an engine's thread is one that the engine made a call on.
    engine_threads = {roots[i].node.thread for i in backward_at} - {thread}
    between = roots[first : last + 1]
    backward = [root for root in between if root.node.is_backward or root.node.thread in engine_threads]
    again = [root for root in between if not root.node.is_backward and root.node.thread == thread and not _aside(root)]
    if again:
        raise InputError(
            f"has several backward passes ('{again[0].node.name}', node {again[0].node.id}, runs between two):"
            " record one step, without gradient accumulation",
            source=source,
        )
    forward = [root for root in roots[:first] if root.node.thread == thread and not _aside(root)]
    if not forward:
        raise InputError("has no forward operator before its backward pass: record a whole step", source=source)
    return tuple(forward), tuple(backward), len(roots) - len(forward) - len(backward)


def _forward_thread(roots: Sequence[RootOperator]) -> int:
    """Name the thread that most calls before the backward pass ran on."""
    before: Counter[int] = Counter()
    for root in roots:
        if root.node.is_backward:
            break
        before[root.node.thread] += 1
    return before.most_common(1)[0][0] if before else 0


def _aside(root: RootOperator) -> bool:
    """Whether a call is data loading or the optimizer's work.

    ``zero_grad`` itself stays: where it only drops the gradients it makes no call, and is an operator without work.
    """
    if root.node.is_annotation and root.node.name.startswith(_DATA_LOADING):
        return True
    return any(annotation.startswith(_NOT_MODEL_WORK) for annotation in root.annotations)
