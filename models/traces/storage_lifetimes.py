"""Storages of an execution trace: when each was born, which operators read it, and how large it is.

Storage ids are addresses, so an id names many storages one after the other. A call whose output storage is not among
its inputs starts a new lifetime, unless the current one was started by a call around it (parents list their outputs
first). That must be decided on entry to the parent: kernels allocate without a recorded ``aten::empty``, so the leaves
alone attribute reads to storages that are long gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slackswap.models.traces.pytorch.execution_trace import Iteration, Node, TensorUse

# PyTorch's own calls read what they were given or made, as a user's function need not.
_KERNELS = "aten::"
_NUMBER_BYTES = 16  # the largest number: complex, of two doubles
# Read or change what describes a tensor, never its elements.
_METADATA_CALLS = frozenset(
    f"aten::{name}"
    for name in (
        *("empty_like", "full_like", "ones_like", "rand_like", "randn_like", "zeros_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros"),
        *("detach_", "record_stream", "requires_grad_", "resize_", "resize_as_", "result_type", "set_"),
    )
)


@dataclass(slots=True)
class Lifetime:
    """One storage from its birth to its last use.

    Attributes
    ----------
    creator : id of the call that it was born in; 0 if it existed before the trace
    operator : index of the operator that it was born in; None if it existed before or was born outside of both passes
    bytes : the furthest byte that any use reaches
    readers, writers : operators that read it or change it in place, in order of execution, the creator included
    detachers : operators that made a view of it outside of the autograd graph; ``AccumulateGrad`` keeps a gradient so
    last_call_end : id of the last call inside the last use, for peaks within one operator
    """

    creator: int
    operator: int | None
    device: str
    bytes: int = 0
    readers: list[int] = field(default_factory=list)
    writers: list[int] = field(default_factory=list)
    detachers: list[int] = field(default_factory=list)
    last_call_end: int = 0

    @property
    def later_users(self) -> tuple[int, ...]:
        """Operators after the creator that read or change it, ascending."""
        return tuple(
            sorted({user for user in self.readers + self.writers if self.operator is not None and user > self.operator})
        )


def find_lifetimes(nodes: Sequence[Node], iteration: Iteration) -> list[Lifetime]:
    """Walk the calls in order and return every storage lifetime, in order of birth.

    Parameters
    ----------
    nodes : all calls of the trace, in order of id
    iteration : the operators that births and uses are attributed to
    """
    by_id = {node.id: node for node in nodes}
    last_inside = _last_inside(nodes)
    current: dict[int, Lifetime] = {}
    born_bytes: dict[int, int] = {}
    lifetimes: list[Lifetime] = []
    wrapped = _WrappedNumbers(by_id, last_inside, current)

    def started(storage: int, creator: int, operator: int | None, device: str) -> Lifetime:
        lifetimes.append(Lifetime(creator, operator, device))
        current[storage] = lifetimes[-1]
        return lifetimes[-1]

    def created_around(node: Node, lifetime: Lifetime | None) -> bool:
        # Ids are pre-order: what lies inside a call has an id between its own and the last one inside of it.
        if lifetime is None or not lifetime.creator:
            return False
        inside = lifetime.creator < node.id <= last_inside[lifetime.creator]
        return inside and by_id[lifetime.creator].thread == node.thread

    def born(node: Node, use: TensorUse, operator: int | None) -> Lifetime:
        lifetime = current.get(use.storage)
        if lifetime is None or not created_around(node, lifetime):
            born_bytes[use.storage] = use.bytes
            return started(use.storage, node.id, operator, use.device)
        # Before what the call around returns, something else of this call may have been at its address.
        lifetime.bytes = born_bytes[use.storage]
        return lifetime

    for node in nodes:
        operator = iteration.operator_of.get(node.id)
        entered = {use.storage for use in node.inputs}
        numbers = wrapped.storages_of(node)
        reads, writes = reads_inputs(node), changes_inputs(node)
        for use in node.inputs:
            if use.storage in numbers:
                continue
            lifetime = current.get(use.storage) or started(use.storage, 0, None, use.device)
            lifetime.bytes = max(lifetime.bytes, use.bytes)
            if operator is not None and reads:
                note(lifetime.readers, operator)
                lifetime.last_call_end = max(lifetime.last_call_end, last_inside[node.id])
            elif operator is not None and node.name == "aten::detach":
                note(lifetime.detachers, operator)
        for use in [use for use in node.outputs if use.storage not in numbers]:
            lifetime = current[use.storage] if use.storage in entered else born(node, use, operator)
            wrapped.note_returned(use, is_new=lifetime.creator == node.id)
            lifetime.bytes = max(lifetime.bytes, use.bytes)
            lifetime.last_call_end = max(lifetime.last_call_end, last_inside[node.id])
            if operator is not None and writes and use.storage in entered:
                note(lifetime.writers, operator)
    return lifetimes


class _WrappedNumbers:
    """Inputs that are numbers: `x * 2` wraps 2 into a tensor that no call made.

    The id of its storage is new, or that of a storage that is long gone, whose reader the call would then seem to be. What
    gives it away: no call returned so small a part of that storage, or a call inside of another one was not given it.
    """

    def __init__(
        self, by_id: Mapping[int, Node], last_inside: Mapping[int, int], current: Mapping[int, Lifetime]
    ) -> None:
        self._by_id = by_id
        self._last_inside = last_inside
        self._current = current
        self._found: dict[int, frozenset[int]] = {}
        self._returned_bytes: defaultdict[int, set[int]] = defaultdict(set)

    def storages_of(self, node: Node) -> frozenset[int]:
        """Return the storages of a call's inputs that are numbers; calls are asked about in order of id."""
        around = self._by_id.get(node.parent)
        numbers = frozenset(use.storage for use in node.inputs if self._is_number(use, around))
        if numbers:
            self._found[node.id] = numbers
        return numbers

    def note_returned(self, use: TensorUse, *, is_new: bool) -> None:
        """Note how much of a storage a call returned; `is_new` where the storage was born in it."""
        if is_new:
            self._returned_bytes[use.storage].clear()
        self._returned_bytes[use.storage].add(use.bytes)

    def _is_number(self, use: TensorUse, around: Node | None) -> bool:
        if use.bytes > _NUMBER_BYTES:
            return False
        lifetime = self._current.get(use.storage)
        if lifetime is not None and lifetime.creator and use.bytes not in self._returned_bytes[use.storage]:
            return True
        if around is None or not around.name.startswith(_KERNELS):
            return False
        if any(given.storage == use.storage for given in around.inputs):
            return use.storage in self._found.get(around.id, ())
        return lifetime is None or not around.id <= lifetime.creator <= self._last_inside[around.id]


def changes_inputs(node: Node) -> bool:
    """Whether a call writes an argument in place: its schema marks one with ``!``, or its name ends in ``_``."""
    if node.name in _METADATA_CALLS:
        return False
    return "!" in node.schema if node.schema else node.name.endswith("_")


def reads_inputs(node: Node) -> bool:
    """Whether a call reads the elements of its inputs: views and calls that only look at shapes do not.

    A view is a call that changes nothing and returns only storages that it was given.
    """
    if node.name in _METADATA_CALLS:
        return False
    if changes_inputs(node):
        return True
    given = {use.storage for use in node.inputs}
    return not node.outputs or any(use.storage not in given for use in node.outputs)


def _last_inside(nodes: Sequence[Node]) -> dict[int, int]:
    """Map each call to the id of the last call inside it."""
    last = {node.id: node.id for node in nodes}
    for node in reversed(nodes):
        if node.parent in last:
            last[node.parent] = max(last[node.parent], last[node.id])
    return last


def note(operators: list[int], operator: int) -> None:
    """Add an operator to a list in order of execution, once."""
    if not operators or operators[-1] != operator:
        operators.append(operator)
