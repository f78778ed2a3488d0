"""The shared problem: one profiled training iteration and the tensors that it saves.

Records (`Operator`, `Tensor`, `Rebuild`) are how importers, workloads and files speak of a problem; `Problem` holds
the same facts as read-only numpy columns, which is what planners and the event model read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link

if TYPE_CHECKING:
    import networkx

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
Array = TypeVar("Array", bound=npt.NDArray[Any])

PHASES = ("forward", "backward")
KINDS = ("gemm", "attention", "convolution", "norm", "elementwise", "dropout", "embedding", "loss", "copy", "other")
NO_BLOCK = -1
# Sums of sizes and times stay exact int64 and finite float64 below these.
MAX_TOTAL_BYTES = 1 << 60
MAX_TOTAL_S = 1e12


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One operator of the iteration, in execution order (``spec``: slackswap-problem/1)."""

    name: str
    phase: str
    duration_s: float
    workspace_bytes: int = 0
    layer: int = 0
    kind: str = "other"


class Rebuild(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a tensor is recomputed: time, the tensors read (by index), temporaries while it runs."""

    duration_s: float
    inputs: tuple[int, ...] = ()
    workspace_bytes: int = 0


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tensor, in order of production. `producer` and `readers` are operator indices; no `rebuild` means c = infinity."""

    name: str
    bytes: int
    producer: int
    readers: tuple[int, ...]
    block: int | None = None
    rebuild: Rebuild | None = None


@dataclass(frozen=True, eq=False)
class Problem:
    """One training iteration as columns; build it with `Problem.from_records`.

    With n operators and m tensors. Ragged columns are in CSR form: row i of `x` is ``x[x_start[i]:x_start[i + 1]]``.
    All arrays are read-only.

    Attributes
    ----------
    duration_s, workspace_bytes, layer, kind : (n,) arrays
        Operator columns; `kind` holds indices into `KINDS`.
    n_forward : int
        Operators ``0 .. n_forward - 1`` are the forward pass, the rest the backward pass.
    tensor_bytes, producer, block : (m,) arrays
        Tensor columns; `block` is `NO_BLOCK` where the tensor belongs to none.
    readers_start, readers : (m + 1,), (r,) arrays
        Operators that read each tensor, ascending.
    rebuild_s, rebuild_workspace_bytes : (m,) arrays
        Recompute cost c (infinity: no operator rebuilds it) and its temporaries.
    rebuild_inputs_start, rebuild_inputs : (m + 1,), (q,) arrays
        Tensors that each rebuild reads, ascending.
    link : Link
    metadata : mapping
        Free: model, GPU, source trace, FLOPs, the importer's declared heuristics.
    """

    name: str
    operator_names: tuple[str, ...]
    n_forward: int
    duration_s: FloatArray
    workspace_bytes: IntArray
    layer: IntArray
    kind: IntArray
    tensor_names: tuple[str, ...]
    tensor_bytes: IntArray
    producer: IntArray
    readers_start: IntArray
    readers: IntArray
    block: IntArray
    rebuild_s: FloatArray
    rebuild_workspace_bytes: IntArray
    rebuild_inputs_start: IntArray
    rebuild_inputs: IntArray
    link: Link
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A column that can be written to has another type for the compiler: the engine would be compiled once more.
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray) and column.flags.writeable:
                object.__setattr__(self, name, read_only(column.view()))

    @classmethod
    def from_records(
        cls,
        name: str,
        operators: Sequence[Operator],
        tensors: Sequence[Tensor],
        link: Link,
        metadata: Mapping[str, Any] | None = None,
    ) -> Problem:
        """Check every rule of the format and build the columns.

        Raises
        ------
        InputError
            A rule is broken; the place is the JSON path, as in ``$.tensors[3].readers[1]``.
        """
        n_forward = _check_operators(operators)
        _check_tensors(tensors, operators)
        readers_start, readers = _csr([tensor.readers for tensor in tensors])
        inputs_start, inputs = _csr([sorted(t.rebuild.inputs) if t.rebuild else () for t in tensors])
        return cls(
            name=name,
            operator_names=tuple(operator.name for operator in operators),
            n_forward=n_forward,
            duration_s=_floats([operator.duration_s for operator in operators]),
            workspace_bytes=_ints([operator.workspace_bytes for operator in operators]),
            layer=_ints([operator.layer for operator in operators]),
            kind=_ints([KINDS.index(operator.kind) for operator in operators]),
            tensor_names=tuple(tensor.name for tensor in tensors),
            tensor_bytes=_ints([tensor.bytes for tensor in tensors]),
            producer=_ints([tensor.producer for tensor in tensors]),
            readers_start=readers_start,
            readers=readers,
            block=_ints([NO_BLOCK if tensor.block is None else tensor.block for tensor in tensors]),
            rebuild_s=_floats([t.rebuild.duration_s if t.rebuild else math.inf for t in tensors]),
            rebuild_workspace_bytes=_ints([t.rebuild.workspace_bytes if t.rebuild else 0 for t in tensors]),
            rebuild_inputs_start=inputs_start,
            rebuild_inputs=inputs,
            link=link,
            metadata=dict(metadata or {}),
        )

    def operators(self) -> list[Operator]:
        """Return the operator records, in execution order."""
        return [
            Operator(
                name=self.operator_names[i],
                phase=PHASES[i >= self.n_forward],
                duration_s=float(self.duration_s[i]),
                workspace_bytes=int(self.workspace_bytes[i]),
                layer=int(self.layer[i]),
                kind=KINDS[self.kind[i]],
            )
            for i in range(self.n_operators)
        ]

    def tensors(self) -> list[Tensor]:
        """Return the tensor records, in order of production."""
        return [
            Tensor(
                name=self.tensor_names[t],
                bytes=int(self.tensor_bytes[t]),
                producer=int(self.producer[t]),
                readers=tuple(self.readers_of(t).tolist()),
                block=None if self.block[t] == NO_BLOCK else int(self.block[t]),
                rebuild=self._rebuild(t),
            )
            for t in range(self.n_tensors)
        ]

    def _rebuild(self, tensor: int) -> Rebuild | None:
        if not self.rebuildable[tensor]:
            return None
        return Rebuild(
            duration_s=float(self.rebuild_s[tensor]),
            inputs=tuple(self.rebuild_inputs_of(tensor).tolist()),
            workspace_bytes=int(self.rebuild_workspace_bytes[tensor]),
        )

    def with_link(self, link: Link) -> Problem:
        """Return the same problem on another host link; operator times stay."""
        return replace(self, link=link)

    @property
    def n_operators(self) -> int:
        """Number of operators, n."""
        return len(self.operator_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors, m."""
        return len(self.tensor_names)

    def readers_of(self, tensor: int) -> IntArray:
        """Operators that read `tensor`, ascending."""
        return self.readers[self.readers_start[tensor] : self.readers_start[tensor + 1]]

    def rebuild_inputs_of(self, tensor: int) -> IntArray:
        """Tensors that the rebuild of `tensor` reads, ascending."""
        return self.rebuild_inputs[self.rebuild_inputs_start[tensor] : self.rebuild_inputs_start[tensor + 1]]

    def reads_of(self, operator: int) -> IntArray:
        """Tensors that `operator` reads, ascending."""
        return self.reads[self.reads_start[operator] : self.reads_start[operator + 1]]

    def writes_of(self, operator: int) -> range:
        """Tensors that `operator` writes: neighbours, since tensors stand in order of production."""
        return range(int(self.writes_start[operator]), int(self.writes_start[operator + 1]))

    @cached_property
    def _reads(self) -> tuple[IntArray, IntArray]:
        tensor_of = np.repeat(np.arange(self.n_tensors, dtype=np.int64), np.diff(self.readers_start))
        order = np.argsort(self.readers, kind="stable")
        start = np.zeros(self.n_operators + 1, np.int64)
        np.cumsum(np.bincount(self.readers, minlength=self.n_operators), out=start[1:])
        return read_only(start), read_only(tensor_of[order])

    @property
    def reads_start(self) -> IntArray:
        """(n + 1,) CSR starts of `reads`."""
        return self._reads[0]

    @property
    def reads(self) -> IntArray:
        """(r,) tensors that each operator reads, ascending within an operator."""
        return self._reads[1]

    @cached_property
    def writes_start(self) -> IntArray:
        """(n + 1,) operator i writes the tensors ``writes_start[i] .. writes_start[i + 1] - 1``."""
        return read_only(np.searchsorted(self.producer, np.arange(self.n_operators + 1)).astype(np.int64))

    @cached_property
    def allocation_bytes(self) -> IntArray:
        """(n,) bytes that each operator allocates when it starts: every tensor it writes, and its workspace (rule 1)."""
        sums = np.concatenate(([0], np.cumsum(self.tensor_bytes)))
        return read_only(self.workspace_bytes + sums[self.writes_start[1:]] - sums[self.writes_start[:-1]])

    @cached_property
    def rebuildable(self) -> BoolArray:
        """(m,) whether an operator rebuilds the tensor (c < infinity)."""
        return read_only(np.isfinite(self.rebuild_s))

    @cached_property
    def saved(self) -> BoolArray:
        """(m,) whether the tensor is produced by a forward operator and read by a backward one."""
        return read_only((self.producer < self.n_forward) & (self.first_backward_reader < self.n_operators))

    @cached_property
    def first_backward_reader(self) -> IntArray:
        """(m,) first backward operator that reads the tensor; n where there is none."""
        return self._first_reader_from(self.n_forward)

    def _first_reader_from(self, operator: int) -> IntArray:
        first = np.full(self.n_tensors, self.n_operators, np.int64)
        late = self.readers >= operator
        tensor_of = np.repeat(np.arange(self.n_tensors), np.diff(self.readers_start))
        np.minimum.at(first, tensor_of[late], self.readers[late])
        return read_only(first)

    @cached_property
    def last_forward_use(self) -> IntArray:
        """(m,) last forward operator that reads the tensor, or its producer where none does."""
        last = self.producer.copy()
        early = self.readers < self.n_forward
        tensor_of = np.repeat(np.arange(self.n_tensors), np.diff(self.readers_start))
        np.maximum.at(last, tensor_of[early], self.readers[early])
        return read_only(last)

    @cached_property
    def last_use(self) -> IntArray:
        """(m,) last operator that reads the tensor, or its producer where none does."""
        last = self.producer.copy()
        tensor_of = np.repeat(np.arange(self.n_tensors), np.diff(self.readers_start))
        np.maximum.at(last, tensor_of, self.readers)
        return read_only(last)

    @cached_property
    def forward_s(self) -> float:
        """Forward time T_F, in seconds."""
        return _running_sum(self.duration_s[: self.n_forward])

    @cached_property
    def backward_s(self) -> float:
        """Backward time T_B, in seconds."""
        return _running_sum(self.duration_s[self.n_forward :])

    @cached_property
    def ideal_s(self) -> float:
        """Sum of all operator times, added up in execution order (as the event model's clock does)."""
        return _running_sum(self.duration_s)

    @cached_property
    def saved_bytes(self) -> int:
        """Saved activations A, in bytes."""
        return int(self.tensor_bytes[self.saved].sum())

    def graph(self) -> networkx.DiGraph[tuple[str, int]]:
        """Return a new networkx view: nodes ``("operator", i)`` and ``("tensor", t)`` with their columns as attributes.

        Edges run from a producer to its tensor (role ``writes``), from a tensor to its readers (role ``reads``) and from a
        tensor to the tensors whose rebuild reads it (role ``rebuilds``). A fact of one `Problem`: changes to the graph do
        not reach the problem.
        """
        from slackswap.models.problem_graph import build_graph

        return build_graph(self)


def _check_operators(operators: Sequence[Operator]) -> int:
    """Check the operator rules; return the number of forward operators."""
    if not operators:
        raise InputError("a problem has at least one operator", place="$.operators")
    n_forward = 0
    for i, operator in enumerate(operators):
        at = f"$.operators[{i}]"
        if operator.phase not in PHASES:
            raise InputError(f"is 'forward' or 'backward', not '{operator.phase}'", place=f"{at}.phase")
        if operator.phase == "forward":
            if n_forward != i:
                raise InputError(
                    "a forward operator stands after a backward one: all forward, then all backward",
                    place=f"{at}.phase",
                )
            n_forward += 1
        _check_duration(operator.duration_s, f"{at}.duration_s")
        _check_size(operator.workspace_bytes, f"{at}.workspace_bytes")
        if i and operator.layer < operators[i - 1].layer:
            raise InputError(
                f"layers never decrease: {operator.layer} stands after {operators[i - 1].layer}", place=f"{at}.layer"
            )
        _check_int(operator.layer, f"{at}.layer")
        if operator.kind not in KINDS:
            raise InputError(f"'{operator.kind}' is not a kind: use one of {', '.join(KINDS)}", place=f"{at}.kind")
    if sum(operator.duration_s for operator in operators) > MAX_TOTAL_S:
        raise InputError(f"the durations add up to more than {MAX_TOTAL_S:g} s", place="$.operators")
    return n_forward


def _check_tensors(tensors: Sequence[Tensor], operators: Sequence[Operator]) -> None:
    total_bytes = sum(operator.workspace_bytes for operator in operators)
    for t, tensor in enumerate(tensors):
        at = f"$.tensors[{t}]"
        _check_size(tensor.bytes, f"{at}.bytes")
        total_bytes += tensor.bytes + (tensor.rebuild.workspace_bytes if tensor.rebuild else 0)
        if not 0 <= tensor.producer < len(operators):
            raise InputError(
                f"operator {tensor.producer} does not exist: there are {len(operators)}", place=f"{at}.producer"
            )
        if t and tensor.producer < tensors[t - 1].producer:
            raise InputError(
                f"tensors stand in order of production: producer {tensor.producer} comes after {tensors[t - 1].producer}",
                place=f"{at}.producer",
            )
        _check_readers(tensor, len(operators), at)
        if tensor.block is not None:
            _check_int(tensor.block, f"{at}.block")
            if tensor.block < 0:
                raise InputError(f"a block is a number from 0, or null; not {tensor.block}", place=f"{at}.block")
        if tensor.rebuild is not None:
            _check_rebuild(tensor.rebuild, t, tensors, f"{at}.rebuild")
    if total_bytes > MAX_TOTAL_BYTES:
        raise InputError(f"tensors and workspaces add up to more than {MAX_TOTAL_BYTES} bytes", place="$.tensors")


def _check_readers(tensor: Tensor, n_operators: int, at: str) -> None:
    before = tensor.producer
    for j, reader in enumerate(tensor.readers):
        place = f"{at}.readers[{j}]"
        if not 0 <= reader < n_operators:
            raise InputError(f"operator {reader} does not exist: there are {n_operators}", place=place)
        if reader <= before:
            what = "the producer" if before == tensor.producer else "the reader before it"
            raise InputError(
                f"readers ascend and come after the producer: {reader} is not after {what}, {before}", place=place
            )
        before = reader


def _check_rebuild(rebuild: Rebuild, t: int, tensors: Sequence[Tensor], at: str) -> None:
    _check_duration(rebuild.duration_s, f"{at}.duration_s")
    _check_size(rebuild.workspace_bytes, f"{at}.workspace_bytes")
    for j, source in enumerate(rebuild.inputs):
        place = f"{at}.inputs[{j}]"
        if not 0 <= source < len(tensors):
            raise InputError(f"tensor {source} does not exist: there are {len(tensors)}", place=place)
        if source >= t or tensors[source].producer >= tensors[t].producer:
            raise InputError(f"tensor {source} is not produced earlier than tensor {t}, which it rebuilds", place=place)
        if source in rebuild.inputs[:j]:
            raise InputError(f"tensor {source} is named twice", place=place)


def _check_duration(value: float, place: str) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InputError(f"a duration is a finite number of seconds, at least 0, not {value}", place=place)
    if value > MAX_TOTAL_S:
        raise InputError(f"a duration is at most {MAX_TOTAL_S:g} s, not {value}", place=place)


def _check_size(value: int, place: str) -> None:
    if not 0 <= value <= MAX_TOTAL_BYTES:
        raise InputError(f"a size is a whole number of bytes from 0 to {MAX_TOTAL_BYTES}, not {value}", place=place)


def _check_int(value: int, place: str) -> None:
    if abs(value) > 1 << 53:
        raise InputError(f"is out of range: {value}", place=place)


def _csr(rows: Sequence[Sequence[int]]) -> tuple[IntArray, IntArray]:
    start = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(row) for row in rows], out=start[1:])
    return read_only(start), _ints([value for row in rows for value in row])


def _ints(values: Sequence[int]) -> IntArray:
    return read_only(np.array(values, dtype=np.int64))


def _floats(values: Sequence[float]) -> FloatArray:
    return read_only(np.array(values, dtype=np.float64) + 0.0)  # -0.0 becomes 0.0: equal problems hash equally


def read_only(array: Array) -> Array:
    """Return the array itself, which can no longer be written to."""
    array.setflags(write=False)
    return array


def _running_sum(values: FloatArray) -> float:
    # cumsum adds left to right; numpy's sum adds pairwise and differs in the last bits.
    return float(np.cumsum(values)[-1]) if values.size else 0.0
