"""Calls of a Chakra trace: undoes what its converter did, and brings them into the form of an execution trace.

A call is split into ``name(0)``, ``name(1)``, ... around each kernel that it launches. Calls without a kernel are
dropped, among them autograd's, and with them most parents. Ids were given anew without those in the control
dependencies, so that these may name any node.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.chakra_protobuf import ChakraNode, RecordedTensor, read_nodes, tensors_in
from slackswap.models.traces.pytorch.execution_trace import SCOPE_BACKWARD_FUNCTION, Node, TensorUse
from slackswap.models.traces.trace_file import TraceFile

_PART = re.compile(r"(.+)\((\d{1,9})\)", re.DOTALL)
_EXPANDING = frozenset({"aten::expand", "aten::expand_as", "aten::broadcast_to"})


@dataclass(slots=True)
class Call:
    """A call, put together from its parts; `node` is the first of them, `kernels` are those that it launched."""

    node: ChakraNode
    name: str
    n_parts: int = 1
    kernels: list[ChakraNode] = field(default_factory=list)


@dataclass(slots=True)
class ChakraTrace:
    """What the file holds, before it is cut.

    Attributes
    ----------
    calls : in order of id
    call_of : the call that each CPU node is a part of
    kernels : all GPU nodes, in order of the file
    orphans : kernels whose launching call is not in the file
    backward : ids of the calls on autograd's thread
    n_dangling : control dependencies on nodes that are not in the file
    n_contradicting : calls whose control dependency cannot be their parent
    """

    calls: list[Call] = field(default_factory=list)
    call_of: dict[int, Call] = field(default_factory=dict)
    kernels: list[ChakraNode] = field(default_factory=list)
    orphans: list[ChakraNode] = field(default_factory=list)
    backward: frozenset[int] = frozenset()
    n_dangling: int = 0
    n_contradicting: int = 0


def gather_calls(file: TraceFile) -> ChakraTrace:
    """Put the parts of each call together and give it its kernels.

    Raises
    ------
    InputError
        See `read_nodes`; also where an id stands twice.
    """
    trace = ChakraTrace()
    seen: set[int] = set()
    cpu_nodes: list[ChakraNode] = []
    dependencies: list[tuple[int, list[int]]] = []
    for node in read_nodes(file):
        if node.id in seen:
            raise InputError(f"the id {node.id} stands twice", place=f"offset {node.offset}", source=file.source)
        seen.add(node.id)
        dependencies.append((node.id, node.control_dependencies))
        # As Chakra's own feeder reads it: what does not say is a call.
        (cpu_nodes if node.numbers.get("is_cpu_op", 1) else trace.kernels).append(node)
    unfinished: dict[tuple[int, int, str], Call] = {}
    for node in sorted(cpu_nodes, key=lambda node: node.id):
        trace.call_of[node.id] = _call_of(node, unfinished, trace.calls)
    for kernel in trace.kernels:
        launcher = kernel.launcher if kernel.launcher is not None else next(iter(kernel.control_dependencies), None)
        call = trace.call_of.get(launcher) if launcher is not None else None
        (call.kernels if call else trace.orphans).append(kernel)
    trace.n_dangling = sum(named not in seen for _, names in dependencies for named in names)
    trace.n_contradicting = sum(
        names[0] in seen and not _may_be_parent(names[0], trace.call_of[node_id], trace.call_of)
        for node_id, names in dependencies
        if names and node_id in trace.call_of
    )
    trace.backward = _autograd_calls(trace.calls)
    return trace


def _call_of(node: ChakraNode, unfinished: dict[tuple[int, int, str], Call], calls: list[Call]) -> Call:
    """Return the call that a CPU node is a part of: the one of its thread and number that waits for this part."""
    part = _PART.fullmatch(node.name)
    number, thread = node.numbers.get("rf_id", 0), node.numbers.get("tid", 0)
    if part:
        call = unfinished.get((thread, number, part[1]))
        if call is not None and call.n_parts == int(part[2]):
            call.n_parts += 1
            node.inputs = node.outputs = ""  # parts repeat the arguments of the call
            return call
    is_first = part is not None and int(part[2]) == 0
    call = Call(node, part[1] if part and is_first else node.name)
    calls.append(call)
    if is_first:
        unfinished[thread, number, call.name] = call
    return call


def _may_be_parent(parent: int, call: Call, call_of: Mapping[int, Call]) -> bool:
    """Whether a node can be what the format says that a control dependency is: the call around this one."""
    around = call_of.get(parent)
    return around is not None and around.node.id < call.node.id


def nodes_of(trace: ChakraTrace, source: str, *, kernel_outputs: bool) -> tuple[Node, ...]:
    """Bring the calls into the form of a PyTorch execution trace, in order.

    Parameters
    ----------
    kernel_outputs : whether a call also returns what its kernels return

    Raises
    ------
    InputError
        The values of a call cannot be read; the place is its id and offset.
    """
    expanded: dict[tuple[int, int], int] = {}
    nodes = []
    for call in trace.calls:
        node, numbers = call.node, call.node.numbers
        try:
            inputs, outputs = tensors_in(node.inputs), tensors_in(node.outputs)
            if kernel_outputs:
                outputs += _further_outputs(call.kernels, {tensor.storage for tensor in inputs + outputs})
        except InputError as error:
            place = f"node {node.id} at offset {node.offset}"
            raise InputError(error.rule, place=place, source=source) from None
        named = node.control_dependencies[:1] if not trace.n_contradicting else []
        around = trace.call_of.get(named[0]) if named else None
        nodes.append(
            Node(
                id=node.id,
                name=call.name,
                parent=around.node.id if around else 0,
                inputs=_uses(inputs, expanded),
                outputs=_output_uses(call.name, inputs, outputs, expanded),
                record_function=numbers.get("rf_id", 0),
                sequence=numbers.get("seq_id", -1),
                scope=SCOPE_BACKWARD_FUNCTION if node.id in trace.backward else numbers.get("scope", 0),
                thread=numbers.get("tid", 0),
                forward_thread=numbers.get("fw_tid", 0),
                schema=node.texts.get("op_schema", ""),
            )
        )
    return tuple(nodes)


def _further_outputs(kernels: Iterable[ChakraNode], known: set[int]) -> list[RecordedTensor]:
    """Return what kernels put into storages that neither their call nor they themselves were given."""
    found = []
    for kernel in kernels:
        given = known | {tensor.storage for tensor in tensors_in(kernel.inputs)}
        found += [tensor for tensor in tensors_in(kernel.outputs) if tensor.storage not in given]
    return found


def _uses(tensors: Iterable[RecordedTensor], expanded: dict[tuple[int, int], int]) -> tuple[TensorUse, ...]:
    uses = []
    for tensor in tensors:
        reached_bytes = expanded.get((tensor.tensor, tensor.storage), tensor.bytes)
        uses.append(TensorUse(tensor.storage, min(reached_bytes, tensor.bytes), tensor.device))
    return tuple(uses)


def _output_uses(
    name: str, inputs: Sequence[RecordedTensor], outputs: Sequence[RecordedTensor], expanded: dict[tuple[int, int], int]
) -> tuple[TensorUse, ...]:
    """Return a call's outputs; an expanded view, which has more elements than its storage, reaches as far as its source.

    Strides, which would say so, are not in the file.
    """
    source_bytes: dict[int, int] = {}
    for tensor, use in zip(inputs, _uses(inputs, expanded), strict=True):
        if name in _EXPANDING or (tensor.tensor, tensor.storage) in expanded:
            source_bytes[use.storage] = max(use.bytes, source_bytes.get(use.storage, 0))
    for tensor in outputs:
        key = (tensor.tensor, tensor.storage)
        expanded.pop(key, None)
        if tensor.storage in source_bytes:
            expanded[key] = source_bytes[tensor.storage]
    return _uses(outputs, expanded)


def _autograd_calls(calls: Sequence[Call]) -> frozenset[int]:
    """Return the ids of the calls of the backward pass, which the file may hold without autograd's own calls around.

    Autograd's engine has a thread, on which the ``..._backward`` calls stand; numbered calls on it are recomputation.
    If all is on one thread, the backward pass lasts from the first to the last of the ``..._backward`` calls.
    """
    unnumbered = [call for call in calls if _number(call, "seq_id", -1) < 0 and not _number(call, "scope", 0)]
    numbered = [call for call in calls if _number(call, "seq_id", -1) >= 0]
    forward_thread = _number((numbered or calls)[0], "tid", 0) if calls else 0
    named: dict[int, list[int]] = {}
    for call in unnumbered:
        if "backward" in call.name.lower():
            named.setdefault(_number(call, "tid", 0), []).append(call.node.id)
    on_one_thread = set(named) == {forward_thread}
    spans = {
        thread: (ids[0], ids[-1] if on_one_thread else calls[-1].node.id)
        for thread, ids in named.items()
        if on_one_thread or thread != forward_thread
    }
    nowhere = (0, -1)
    return frozenset(
        call.node.id
        for call in unnumbered
        if (span := spans.get(_number(call, "tid", 0), nowhere))[0] <= call.node.id <= span[1]
    )


def _number(call: Call, name: str, default: int) -> int:
    return call.node.numbers.get(name, default)
