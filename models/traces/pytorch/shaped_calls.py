"""Calls with the shapes of their tensors: what a roofline needs to know; read from an execution trace, or from a fake step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from slackswap.models.problem import MAX_TOTAL_BYTES
from slackswap.models.traces.json_stream import ItemDecoder, stream_items
from slackswap.models.traces.pytorch.execution_trace import TENSOR_FIELDS, Node, is_tensor
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

# How execution traces name element types; the names of `DTYPE_BYTES`, where there is one.
_DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::half": "fp16",
    "half": "fp16",
    "c10::bfloat16": "bf16",
    "bfloat16": "bf16",
}


@dataclass(frozen=True, slots=True)
class ShapedTensor:
    """One tensor argument.

    Attributes
    ----------
    storage : which storage it shows; equal numbers are one storage
    bytes : what a kernel that goes over all its elements moves: an expanded tensor has more elements than bytes
    dtype : ``bf16``, ``fp16``, ``fp32``, ``fp64``; empty for integers and where it is not recorded
    """

    storage: int
    shape: tuple[int, ...]
    bytes: int
    dtype: str = ""


@dataclass(frozen=True, slots=True)
class ShapedCall:
    """A call of the trace with its arguments in the order of its schema.

    Attributes
    ----------
    arguments, results : `ShapedTensor`, lists that hold some, numbers, whatever else was recorded; None where undefined
    """

    node: Node
    arguments: tuple[Any, ...]
    results: tuple[Any, ...]

    @property
    def inputs(self) -> list[ShapedTensor]:
        """Tensors among the arguments, those in lists too."""
        return list(tensors_in(self.arguments))

    @property
    def outputs(self) -> list[ShapedTensor]:
        """Tensors among the results."""
        return list(tensors_in(self.results))

    def argument(self, index: int) -> Any:
        """Return an argument; None where it is not recorded."""
        return self.arguments[index] if index < len(self.arguments) else None

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a tensor argument; empty where it is none, or not recorded."""
        argument = self.argument(index)
        return argument.shape if isinstance(argument, ShapedTensor) else ()


def tensors_in(value: Any) -> Iterator[ShapedTensor]:
    """Yield the tensors in a value, lists searched, in order."""
    stack = [value]
    while stack:
        top = stack.pop()
        if isinstance(top, ShapedTensor):
            yield top
        elif isinstance(top, list | tuple):
            stack.extend(reversed(top))


class _Described(msgspec.Struct):
    values: list[Any] = []
    shapes: list[Any] = []
    types: list[Any] = []
    strides: list[Any] = []


class _RawCall(msgspec.Struct):
    id: int
    inputs: list[Any] | _Described | None = None
    outputs: list[Any] | _Described | None = None
    input_shapes: list[Any] = []
    input_types: list[Any] = []
    output_shapes: list[Any] = []
    output_types: list[Any] = []


def read_shaped_calls(file: TraceFile | bytes, nodes: Iterable[Node], source: str = "") -> tuple[ShapedCall, ...]:
    """Read the shapes of an execution trace's calls, of either schema.

    Parameters
    ----------
    file : the execution trace, or its content, which messages then call `source`
    nodes : the calls that are wanted, as `read_execution_trace` returns them

    Raises
    ------
    InputError
        The file is torn, not JSON, or a value has the wrong type.
    """
    trace = as_trace_file(file, source)
    decoder = ItemDecoder(_RawCall, trace.source)
    wanted = {node.id: node for node in nodes}
    calls: dict[int, ShapedCall] = {}
    for item in stream_items(trace):
        if item.key == "nodes":
            raw = decoder.decode(item)
            if raw.id in wanted:
                calls[raw.id] = _shaped(wanted[raw.id], raw)
    return tuple(calls[node_id] for node_id in sorted(calls))


def _shaped(node: Node, raw: _RawCall) -> ShapedCall:
    inputs, outputs = raw.inputs, raw.outputs
    if not isinstance(inputs, _Described):
        inputs = _Described(inputs or [], raw.input_shapes, raw.input_types)
    if not isinstance(outputs, _Described):
        outputs = _Described(outputs or [], raw.output_shapes, raw.output_types)
    return ShapedCall(node, _values(inputs), _values(outputs))


def _values(described: _Described) -> tuple[Any, ...]:
    return tuple(
        _value(value, _item(described.shapes, i), _item(described.types, i), _item(described.strides, i))
        for i, value in enumerate(described.values)
    )


def _value(value: Any, shape: Any, kind: Any, strides: Any) -> Any:
    """Turn one recorded value into a tensor, a list of values, or leave it as it is."""
    if not isinstance(value, list):
        return value
    if not is_tensor(value):
        inside = kind[len("GenericList[") : -1].split(",") if isinstance(kind, str) else []
        return [
            _value(item, _item(shape, i), _item(inside, i), _item(strides, i))
            if isinstance(item, list) and len(item) == TENSOR_FIELDS
            else item
            for i, item in enumerate(value)
        ]
    _tensor, storage, _offset, numel, item_bytes, _device = value
    dimensions = _lengths(shape)
    if not storage or dimensions is None or not 0 <= numel * item_bytes <= MAX_TOTAL_BYTES:
        return None
    if math.prod(dimensions) != numel:
        return None
    return ShapedTensor(storage, dimensions, _touched(dimensions, _lengths(strides)) * item_bytes, _dtype(kind))


def _item(items: Any, index: int) -> Any:
    return items[index] if isinstance(items, list) and index < len(items) else None


def _lengths(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(type(number) is int and number >= 0 for number in value):
        return tuple(value)
    return None


def _touched(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> int:
    """Count the elements in memory: along an expanded dimension, of stride 0, there is one."""
    if strides is None or len(strides) != len(shape):
        return math.prod(shape)
    return math.prod(1 if stride == 0 else length for length, stride in zip(shape, strides, strict=True))


def _dtype(kind: Any) -> str:
    name = str(kind).removeprefix("Tensor(").removesuffix(")").lower()
    return _DTYPES.get(name, "")
