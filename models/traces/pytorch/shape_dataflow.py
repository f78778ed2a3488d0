"""Follows storages through a step whose calls have shapes but no tensor ids: by save rules and by the shapes that fit.

A call reads the storage that was written last among those with as many bytes and elements as its argument, of the same
shape if there is one: exact where one storage fits, a guess where several do. What the backward pass reads follows from a
rule per backward node (`save_rules`), linked to the forward call by autograd's sequence number.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackswap.models.problem import MAX_TOTAL_BYTES
from slackswap.models.traces.operator_kind import shown_name
from slackswap.models.traces.pytorch.execution_trace import Iteration, Node
from slackswap.models.traces.pytorch.kineto_events import CpuOperator
from slackswap.models.traces.pytorch.save_rules import Extra, SaveRule, is_view, save_rule
from slackswap.models.traces.storage_lifetimes import Lifetime

DEVICE = "device"
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "long int", "long long", "int64", "c10::complex<float>", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32", "unsigned int", "c10::complex<c10::Half>"), 4),
    **dict.fromkeys(("c10::Half", "c10::BFloat16", "short", "short int", "unsigned short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("bool", "char", "signed char", "unsigned char", "c10::Float8_e4m3fn", "c10::Float8_e5m2"), 1),
    "c10::complex<double>": 16,
}
_INDEX_BYTES, _STATISTIC_BYTES, _NUMBER_BYTES = 8, 4, 8
_MAX_DIMENSIONS = 64
_LIST = "TensorList"
# Arguments that are weights: never looked up among activations.
_WEIGHTS: tuple[tuple[str, frozenset[int]], ...] = (
    ("conv", frozenset({1, 2})),
    ("norm", frozenset({1, 2, 3, 4})),
    ("addmm", frozenset({0, 2})),
    ("linear", frozenset({1, 2})),
    ("embedding", frozenset({0})),
    ("nll_loss", frozenset({2})),
)
_Shape = tuple[int, ...]
_Size = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Argument:
    """A tensor argument: its position, shape and bytes per element."""

    position: int
    shape: _Shape
    item_bytes: int

    @property
    def bytes(self) -> int:
        """Size of its elements."""
        return math.prod(self.shape) * self.item_bytes

    @property
    def size(self) -> _Size:
        """What a storage fits by: bytes, and bytes per element."""
        return self.bytes, self.item_bytes


@dataclass(slots=True)
class Dataflow:
    """What was found.

    Attributes
    ----------
    lifetimes : storages in order of birth, with their readers in both passes; gradients are temporaries
    linked : backward nodes with a forward call of their sequence number, of `n_backward_nodes`
    guesses : arguments that more storages fitted than there were arguments, of `lookups`
    unknown : backward nodes without a rule, by name
    unknown_operators : the name of each, by its backward operator
    blind : forward operators that read a list of tensors whose shapes are not recorded: nothing is known to rebuild them from
    """

    lifetimes: list[Lifetime] = field(default_factory=list)
    linked: int = 0
    n_backward_nodes: int = 0
    guesses: int = 0
    lookups: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    unknown_operators: dict[int, str] = field(default_factory=dict)
    blind: set[int] = field(default_factory=set)


def follow_storages(
    nodes: Sequence[Node],
    iteration: Iteration,
    event_of: Mapping[int, CpuOperator],
    host_copies: frozenset[int],
) -> Dataflow:
    """Derive the storages of a step.

    Parameters
    ----------
    nodes, event_of : all calls of the step and their events, with shapes
    host_copies : operators that copied from the host: what they return is an activation of its own
    """
    follower = _Follower(nodes, iteration, event_of, host_copies)
    follower.follow()
    flow = follower.flow
    flow.lifetimes.sort(key=lambda lifetime: (lifetime.operator or 0, lifetime.creator))
    return flow


@dataclass(slots=True)
class _BackwardNode:
    operator: int
    root: Node
    name: str
    gradients: tuple[Argument, ...]


class _Follower:
    def __init__(
        self,
        nodes: Sequence[Node],
        iteration: Iteration,
        event_of: Mapping[int, CpuOperator],
        host_copies: frozenset[int],
    ) -> None:
        self.flow = Dataflow()
        self._nodes, self._iteration, self._event_of = nodes, iteration, event_of
        self._host_copies = host_copies
        self._known: dict[_Size, list[tuple[Lifetime, _Shape]]] = defaultdict(list)  # last written last
        self._views: Counter[tuple[int, _Shape]] = Counter()  # how often each storage is shown under a shape
        self._sums: set[int] = set()  # storages that an addition wrote
        self._backward = self._backward_nodes()
        self._owners = self._owning_calls()

    def follow(self) -> None:
        """Go through the forward calls in order."""
        n_forward = len(self._iteration.forward)
        for node in self._nodes:
            operator = self._iteration.operator_of.get(node.id)
            if operator is None or operator >= n_forward:
                continue
            backward = self._owners.get(node.id)
            if backward is not None:
                self._run(node, operator, backward)
            elif operator in self._host_copies and node.name == "aten::copy_":
                arguments = arguments_of(self._event_of[node.id])
                if arguments:
                    self._write(self._born(node, operator, arguments[0].bytes), arguments[0])

    def _backward_nodes(self) -> dict[int, _BackwardNode]:
        """Map sequence numbers to the backward nodes that have them."""
        found: dict[int, _BackwardNode] = {}
        n_forward = len(self._iteration.forward)
        roots = self._iteration.operators
        for node in self._nodes:
            operator = self._iteration.operator_of.get(node.id, -1)
            if operator < n_forward or node.sequence < 0 or "Backward" not in node.name:
                continue
            gradients = arguments_of(self._event_of[node.id])
            known = found.get(node.sequence)
            if known is None:
                self.flow.n_backward_nodes += 1
                found[node.sequence] = _BackwardNode(operator, roots[operator].node, node.name, gradients)
            elif not known.gradients:
                known.gradients = gradients  # engine call outside, the node itself inside
        return found

    def _owning_calls(self) -> dict[int, _BackwardNode]:
        """Map forward calls to their backward node: of several calls with one number the one that starts last owns it."""
        owner: dict[int, int] = {}
        n_forward = len(self._iteration.forward)
        for node in self._nodes:
            if node.sequence in self._backward and self._iteration.operator_of.get(node.id, n_forward) < n_forward:
                owner[node.sequence] = node.id
        self.flow.linked = len(owner)
        return {node_id: self._backward[sequence] for sequence, node_id in owner.items()}

    def _run(self, node: Node, operator: int, backward: _BackwardNode) -> None:
        """Let one forward call read its arguments, write its output, and keep what its backward node reads."""
        rule = self._rule(operator, backward)
        # The element type of a list is not recorded: that of the output, where a wrong guess keeps nothing (cat, stack).
        item_bytes = backward.gradients[0].item_bytes if rule.nothing and backward.gradients else 0
        arguments = arguments_of(self._event_of[node.id], list_item_bytes=item_bytes)
        if not arguments and _takes_list(self._event_of[node.id]):
            self.flow.blind.add(operator)
        # A mask is made without autograd: it is no storage that could be found.
        adds = "AddBackward" in backward.name
        read = self._looked_up(node, arguments[:1] if "mask" in rule.extras else arguments, after_sums=adds)
        reads = not is_view(backward.name)
        for index, lifetime in read.items():
            if reads:
                lifetime.readers.append(operator)
            if rule.keeps(arguments[index].position) and not (rule.product and _multiplies_numbers(arguments, index)):
                lifetime.readers.append(backward.operator)
        self._keep_gradients(backward, read)
        output = self._output(node, operator, backward, arguments, read)
        if output is None:
            return
        if adds:
            self._sums.add(id(output))
        if rule.output:
            output.readers.append(backward.operator)
        written = _written(backward, arguments)
        for size_bytes in (size for extra in rule.extras for size in _extra_bytes(extra, written, arguments)):
            self._born(node, operator, size_bytes).readers.append(backward.operator)

    def _rule(self, operator: int, backward: _BackwardNode) -> SaveRule:
        if "dropout" in self._iteration.operators[operator].node.name and "Mul" in backward.name:
            return SaveRule(extras=("mask",))  # a multiplication by the mask; its input is not kept
        rule = save_rule(backward.name)
        if rule is None:
            name = shown_name(backward.name)
            self.flow.unknown[name] += 1
            self.flow.unknown_operators[backward.operator] = name
            return SaveRule()
        return rule

    def _looked_up(self, node: Node, arguments: Sequence[Argument], *, after_sums: bool) -> dict[int, Lifetime]:
        """Find the storage behind each argument, by its index; weights, and what existed before, have none."""
        weights = next((positions for part, positions in _WEIGHTS if part in node.name), frozenset())
        alike: dict[tuple[_Size, _Shape | None], list[int]] = defaultdict(list)
        for index, argument in enumerate(arguments):
            if argument.position not in weights and argument.bytes:
                known = any(shape == argument.shape for _, shape in self._known.get(argument.size, ()))
                alike[argument.size, argument.shape if known else None].append(index)
        read: dict[int, Lifetime] = {}
        for indices in alike.values():
            found = self._find([arguments[index] for index in indices], after_sums=after_sums)
            read.update(zip(indices, found, strict=False))
        return read

    def _find(self, arguments: Sequence[Argument], *, after_sums: bool) -> list[Lifetime]:
        """Choose storages for arguments of one size: what nobody has read yet first, in the order in which it was written.

        So `out += shortcut` changes `out` where both branches end in new storages; where the shortcut was read before, it is the
        last sum, as a residual block starts with one (`after_sums`). One argument takes what was written last.
        """
        fitting: dict[int, tuple[Lifetime, bool]] = {}
        shapes = {argument.shape for argument in arguments}
        for lifetime, shape in self._known.get(arguments[0].size, ()):
            known = fitting.pop(id(lifetime), (lifetime, False))
            fitting[id(lifetime)] = (lifetime, known[1] or shape in shapes)
        if not fitting:
            return []
        self.flow.lookups += len(arguments)
        self.flow.guesses += len(arguments) if len(fitting) > len(arguments) else 0
        recent = list(fitting.values())
        same_shape = [item for item, same in recent if same]
        if same_shape and self._views[id(same_shape[-1]), arguments[0].shape] >= len(arguments):
            return same_shape[-1:] * len(arguments)  # parts of one storage: query, key and value of one product
        candidates = same_shape if len(same_shape) >= len(arguments) else [item for item, _ in recent]
        if len(arguments) == 1:
            return candidates[-1:]
        unread = [item for item in candidates if not item.readers][-len(arguments) :]
        others = [item for item in reversed(candidates) if all(item is not other for other in unread)]
        if after_sums:
            others.sort(key=lambda item: id(item) not in self._sums)
        return (unread + others)[: len(arguments)]

    def _output(
        self,
        node: Node,
        operator: int,
        backward: _BackwardNode,
        arguments: Sequence[Argument],
        read: Mapping[int, Lifetime],
    ) -> Lifetime | None:
        """Return the storage that a call writes: a new one, or for views and in-place calls that of the first argument."""
        written = _written(backward, arguments)
        first = read.get(0)
        if is_view(backward.name):
            for gradient in backward.gradients or arguments[:1]:
                if first is not None:
                    self._write(first, gradient)
                    self._views[id(first), gradient.shape] += 1
            return first
        if not written:
            return None
        if node.name.endswith("_") and not node.name.endswith("__"):
            if first is not None:
                first.writers.append(operator)
                self._write(first, written[0])
            return first
        if "copy" in backward.name.lower() and not read and operator not in self._host_copies:
            return None  # a weight in another precision (autocast): no activation
        output = self._born(node, operator, written[0].bytes)
        self._write(output, written[0])
        return output

    def _born(self, node: Node, operator: int, size_bytes: int) -> Lifetime:
        lifetime = Lifetime(node.id, operator, DEVICE, size_bytes, writers=[operator], last_call_end=node.id)
        self.flow.lifetimes.append(lifetime)
        return lifetime

    def _write(self, lifetime: Lifetime, shown_as: Argument) -> None:
        known = self._known[shown_as.size]
        known[:] = [(other, shape) for other, shape in known if other is not lifetime or shape != shown_as.shape]
        known.append((lifetime, shown_as.shape))

    def _keep_gradients(self, backward: _BackwardNode, read: Mapping[int, Lifetime]) -> None:
        """The gradients that a backward node reads and writes live while it runs."""
        sizes = [gradient.bytes for gradient in backward.gradients] + [lifetime.bytes for lifetime in read.values()]
        if sum(sizes):
            root = backward.root.id
            self.flow.lifetimes.append(
                Lifetime(root, backward.operator, DEVICE, sum(sizes), writers=[backward.operator], last_call_end=root)
            )


def arguments_of(event: CpuOperator, *, list_item_bytes: int = 0) -> tuple[Argument, ...]:
    """Return the tensor arguments of a call whose types are known; the tensors of a list count one by one.

    Parameters
    ----------
    list_item_bytes : bytes per element in lists whose type is not recorded; 0 leaves these out
    """
    shapes = event.shapes if isinstance(event.shapes, list) else []
    types = event.types if isinstance(event.types, list) else []
    return tuple(
        Argument(position, tuple(shape), item_bytes)
        for position, (shapes_of, kinds_of) in enumerate(zip(shapes, types, strict=False))
        for shape, kind in _tensors(shapes_of, kinds_of)
        if (item_bytes := list_item_bytes if kind == _LIST and shape else _ITEM_BYTES.get(kind, 0))
    )


def _tensors(shape: Any, kind: Any) -> Iterator[tuple[list[int], str]]:
    """Yield shape and type of a tensor, or of each tensor of a list; what is malformed counts as not recorded."""
    if not isinstance(shape, list) or not isinstance(kind, str):
        return
    if shape and all(isinstance(inner, list) for inner in shape):
        kinds = kind.strip("[]").split(", ") if kind.startswith("[") else [kind] * len(shape)
        yield from ((inner, inner_kind) for inner, inner_kind in zip(shape, kinds, strict=False) if _is_shape(inner))
    elif _is_shape(shape):
        yield shape, kind


def _takes_list(event: CpuOperator) -> bool:
    # The second is the name of 2021.
    return isinstance(event.types, list) and not {_LIST, "GenericList"}.isdisjoint(map(str, event.types))


def _is_shape(lengths: list[Any]) -> bool:
    return (
        len(lengths) <= _MAX_DIMENSIONS
        and all(type(length) is int and 0 <= length < 1 << 40 for length in lengths)
        and math.prod(lengths) <= MAX_TOTAL_BYTES
    )


def _multiplies_numbers(arguments: Sequence[Argument], index: int) -> bool:
    """Whether a product's other factors are numbers of Python, which come as tensors of 8 bytes without a shape."""
    return all(
        not other.shape and other.item_bytes == _NUMBER_BYTES != arguments[index].item_bytes
        for i, other in enumerate(arguments)
        if i != index
    )


def _written(backward: _BackwardNode, arguments: Sequence[Argument]) -> Sequence[Argument]:
    """Return what a forward call returns: the backward node's gradient has its shape; else that of the first argument."""
    return backward.gradients[:1] or tuple(arguments[:1])


def _extra_bytes(extra: Extra, written: Sequence[Argument], arguments: Sequence[Argument]) -> tuple[int, ...]:
    """Return the size of each storage that a call writes beside its output."""
    output = written[0]
    elements = math.prod(output.shape)
    first = arguments[0].shape if arguments else output.shape
    rows = math.prod(first[:-1])
    if extra == "indices":
        return (elements * _INDEX_BYTES,)
    if extra == "mask":
        same = [argument for argument in arguments[1:] if argument.shape == output.shape]
        return (elements * (same[0].item_bytes if same else 1),)  # fused dropout keeps one byte per element
    if extra == "channel statistics":
        return (_STATISTIC_BYTES * (first[1] if len(first) > 1 else 1),) * 2
    return (_STATISTIC_BYTES * rows,) * (2 if extra == "row statistics" else 1)
