"""Puts the storages of a call log into the execution trace that was recorded with it.

The trace has the tree of calls: which outermost call, forward or backward, a kernel belongs to. The log has the storages
of the calls that reached a kernel. A call around others gets its storages through the ids that the trace gives tensors,
which name a tensor for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from slackswap.models.traces.capture.call_log import MARKER, CallLog, LoggedCall
from slackswap.models.traces.pytorch.execution_trace import EVALUATE_FUNCTION, Node, TensorUse, is_tensor
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall, ShapedTensor, tensors_in

# What the dispatcher records of the way to a kernel that Python wrote.
_DISPATCH = "PythonDispatchMode"
_DEVICE = "cpu"


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Values(msgspec.Struct):
    values: list[Any] = []


class RawNode(msgspec.Struct):
    """One node of the execution trace, as its file has it (schema 1.0.2 and later)."""

    id: int
    name: str
    ctrl_deps: int
    inputs: _Values
    outputs: _Values
    attrs: list[_Attribute] = []


class _File(msgspec.Struct):
    nodes: list[RawNode]


@dataclass(slots=True)
class _Open:
    """A call that has begun; `inputs` in order, by tensor id, with the storage as far as it is known."""

    raw: RawNode
    parent: int
    last_inside: int
    logged: LoggedCall | None
    inputs: dict[int, int | None] = field(default_factory=dict)


def merge(execution_trace: bytes, log: CallLog) -> tuple[ShapedCall, ...]:
    """Return the calls of a step, in order of id, each with the storages that it was given and returned.

    Calls that a kernel makes on its way to a fake result are left out.
    """
    raw_nodes = sorted(msgspec.json.decode(execution_trace, type=_File).nodes, key=lambda raw: raw.id)
    return _Merger(raw_nodes, log).merged()


class _Merger:
    def __init__(self, raw_nodes: Sequence[RawNode], log: CallLog) -> None:
        self._log = log
        self._raw = raw_nodes
        self._by_id = {raw.id: raw for raw in raw_nodes}
        # By tensor id: the storage, and the kernel that was last seen with it.
        self._storage_of: dict[int, int] = {}
        self._seen_in: dict[int, int] = {}
        self._open: list[_Open] = []
        # The storage that a result would share if it were no fake tensor.
        self._shares: dict[int, int] = {}
        self._calls: dict[int, ShapedCall] = {}

    def merged(self) -> tuple[ShapedCall, ...]:
        kernels = self._kernels()
        last_inside = self._last_inside()
        skipped_to = 0
        parents: dict[int, int] = {}
        for raw in self._raw:
            parent = parents.get(raw.ctrl_deps, raw.ctrl_deps)
            is_aside = raw.id <= skipped_to or raw.name == _DISPATCH or MARKER.match(raw.name)
            if is_aside and raw.id not in kernels:
                parents[raw.id] = parent  # what is inside belongs to the call around
                continue
            self._close_before(raw.id)
            self._enter(raw, parent if parent < raw.id else 0, last_inside[raw.id], kernels.get(raw.id))
            if raw.id in kernels:
                skipped_to = max(skipped_to, last_inside[raw.id])
        self._close_before(self._raw[-1].id + 1)
        return tuple(self._calls[i] for i in sorted(self._calls))

    def _kernels(self) -> dict[int, LoggedCall]:
        """Map the calls that reached a kernel to what the log has of them: the call of that name around a marker.

        A call that the trace does not have (some are not recorded) stands where its marker is.
        """
        kernels: dict[int, LoggedCall] = {}
        for raw in self._raw:
            match = MARKER.match(raw.name)
            logged = self._log.calls[int(match[1])] if match else None
            if logged is None:
                continue
            kernels[self._recorded_as(raw, logged.name).id] = logged
        return kernels

    def _recorded_as(self, marker: RawNode, name: str) -> RawNode:
        """Return the outermost of the calls of a name around a marker (`aten::detach` makes a `detach`), or the marker."""
        found, around = marker, self._by_id.get(marker.ctrl_deps)
        while around is not None and around.name in (_DISPATCH, name, name.rpartition(":")[2]):
            if around.name != _DISPATCH:
                found = around
            around = self._by_id.get(around.ctrl_deps)
        return found

    def _last_inside(self) -> dict[int, int]:
        last = {raw.id: raw.id for raw in self._raw}
        for raw in reversed(self._raw):
            if raw.ctrl_deps in last and raw.ctrl_deps < raw.id:
                last[raw.ctrl_deps] = max(last[raw.ctrl_deps], last[raw.id])
        return last

    def _enter(self, raw: RawNode, parent: int, last_inside: int, logged: LoggedCall | None) -> None:
        opened = _Open(raw, parent, last_inside, self._as_in_memory(logged, parent) if logged else None)
        ids = _tensor_ids(raw.inputs.values)
        if opened.logged is None:
            opened.inputs = {tensor: self._storage_of.get(tensor) for tensor in ids}
        else:
            for tensor, shown in zip(ids, tensors_in(opened.logged.arguments), strict=False):
                self._see(tensor, shown.storage, raw.id)
                self._tell_around(tensor, shown.storage)
        self._open.append(opened)

    def _tell_around(self, tensor: int, storage: int) -> None:
        """Let the calls around know the storage of a tensor that they were given and that no call made before."""
        for around in self._open:
            if tensor in around.inputs and around.inputs[tensor] is None:
                around.inputs[tensor] = storage

    def _as_in_memory(self, logged: LoggedCall, parent: int) -> LoggedCall:
        """Return a call with the storages that it would have if tensors had memory: see `LoggedCall.overwrites`."""
        around = self._by_id.get(parent)
        name = logged.name
        if logged.overwrites and around is not None and around.name.startswith(EVALUATE_FUNCTION):
            added_to, total = (next(tensors_in(values)).storage for values in (logged.arguments, logged.results))
            self._shares[total] = self._shares.get(added_to, added_to)
            name += "_"
        return replace(
            logged, name=name, arguments=self._in_memory(logged.arguments), results=self._in_memory(logged.results)
        )

    def _in_memory(self, value: Any) -> Any:
        if isinstance(value, ShapedTensor):
            return replace(value, storage=self._shares.get(value.storage, value.storage))
        if isinstance(value, tuple | list):
            return type(value)(self._in_memory(item) for item in value)
        return value

    def _close_before(self, node_id: int) -> None:
        while self._open and self._open[-1].last_inside < node_id:
            closed = self._open.pop()
            ids = _tensor_ids(closed.raw.outputs.values)
            if closed.logged is not None:
                for tensor, shown in zip(ids, tensors_in(closed.logged.results), strict=False):
                    self._see(tensor, shown.storage, closed.raw.id)
                self._add(closed, closed.logged.arguments, closed.logged.results)
            else:
                # An id of a tensor that no kernel inside had is what is left of another one: ids are used again.
                outputs = [
                    self._storage_of[tensor]
                    for tensor in ids
                    if tensor in self._storage_of
                    and (tensor in closed.inputs or self._seen_in[tensor] >= closed.raw.id)
                ]
                self._add(closed, _known(closed.inputs.values()), _known(outputs))

    def _see(self, tensor: int, storage: int, kernel: int) -> None:
        self._storage_of[tensor] = storage
        self._seen_in[tensor] = kernel

    def _add(self, closed: _Open, arguments: tuple[Any, ...], results: tuple[Any, ...]) -> None:
        raw = closed.raw
        attributes = {attribute.name: attribute.value for attribute in raw.attrs}
        logged = closed.logged
        node = Node(
            id=raw.id,
            name=raw.name if logged is None else logged.name,
            parent=closed.parent,
            inputs=self._uses(arguments),
            outputs=self._uses(results),
            record_function=int(attributes.get("rf_id") or 0),
            sequence=int(attributes.get("seq_id", -1)),
            scope=int(attributes.get("scope") or 0) if logged is None else 0,
            thread=int(attributes.get("tid") or 0),
            forward_thread=int(attributes.get("fw_tid") or 0),
            # An addition that was made one in place has the schema of another call.
            schema="" if logged is not None and logged.name != raw.name else str(attributes.get("op_schema") or ""),
        )
        shaped = ((), ()) if logged is None else (arguments, results)
        self._calls[raw.id] = ShapedCall(node, *shaped)

    def _uses(self, values: tuple[Any, ...]) -> tuple[TensorUse, ...]:
        return tuple(
            TensorUse(tensor.storage, self._log.storage_bytes[tensor.storage], _DEVICE) for tensor in tensors_in(values)
        )


def _known(storages: Iterable[int | None]) -> tuple[ShapedTensor, ...]:
    """Return tensors without shapes: of a call around others only the storages count."""
    return tuple(ShapedTensor(storage, (), 0) for storage in storages if storage is not None)


def _tensor_ids(values: list[Any]) -> list[int]:
    """Return the ids of the tensors in a node's values, lists searched, undefined ones left out."""
    found: list[int] = []
    stack: list[Any] = [values]
    while stack:
        top = stack.pop()
        if not isinstance(top, list):
            continue
        if is_tensor(top):
            if top[1]:
                found.append(top[0])
        else:
            stack.extend(reversed(top))
    return found
