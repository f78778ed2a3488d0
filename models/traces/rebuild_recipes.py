"""Rebuild recipes: which operators run again to bring a forward tensor back, and which saved tensors they need.

A tensor is rebuilt by the operator that it was born in and by those that changed it in place. What these read is either
a saved tensor that was produced earlier and is not overwritten later (an input of the recipe), or has to be made again
by the recipe itself: an unsaved temporary, or an older state of an overwritten storage. Weights and input data are
resident.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from slackswap.models.traces.storage_lifetimes import Lifetime


@dataclass(frozen=True, slots=True)
class Recipe:
    """The operators of a rebuild in order, the saved storages they read, and the peak of what they make on the side."""

    operators: tuple[int, ...]
    inputs: tuple[Lifetime, ...]
    workspace_bytes: int


def is_saved(lifetime: Lifetime, n_forward: int) -> bool:
    """Whether a storage is born in the forward pass and used in the backward one."""
    users = lifetime.later_users
    return lifetime.operator is not None and lifetime.operator < n_forward and bool(users) and users[-1] >= n_forward


class RecipeBook:
    """Recipes for the forward storages of one iteration.

    Parameters
    ----------
    lifetimes : the storages on the compute device that an operator of the iteration gave birth to
    n_forward : number of forward operators
    workspace_bytes : temporaries of each operator that die inside it
    """

    def __init__(self, lifetimes: Sequence[Lifetime], n_forward: int, workspace_bytes: Sequence[int]) -> None:
        self._workspace_bytes = workspace_bytes
        self._n_forward = n_forward
        self._read_by: dict[int, list[Lifetime]] = defaultdict(list)
        self._born_in: dict[int, list[Lifetime]] = defaultdict(list)
        self._saved = {id(lifetime) for lifetime in lifetimes if is_saved(lifetime, n_forward)}
        for lifetime in lifetimes:
            if lifetime.operator is None or lifetime.operator >= n_forward:
                continue
            self._born_in[lifetime.operator].append(lifetime)
            for reader in lifetime.readers:
                self._read_by[reader].append(lifetime)

    def recipe(self, target: Lifetime, can_repeat: Callable[[int], bool]) -> Recipe | None:
        """Return how `target`, a forward storage, is rebuilt; None if one of the operators cannot be repeated."""
        needed: set[int] = set()
        inputs: dict[int, Lifetime] = {}
        pending = list(self._makers(target))
        while pending:
            operator = pending.pop()
            if operator in needed:
                continue
            if not can_repeat(operator):
                return None
            needed.add(operator)
            for read in self._read_by[operator]:
                if read is target or read.operator == operator:
                    continue
                if self._is_input(read, target, operator):
                    inputs[id(read)] = read
                else:
                    pending.extend(maker for maker in self._makers(read) if maker < operator)
        operators = tuple(sorted(needed))
        ordered = sorted(inputs.values(), key=lambda lifetime: (lifetime.operator or 0, lifetime.creator))
        return Recipe(operators, tuple(ordered), self._peak_bytes(operators, target))

    def _makers(self, lifetime: Lifetime) -> Iterable[int]:
        """Operators whose work the final state of a forward storage is."""
        born = -1 if lifetime.operator is None else lifetime.operator
        return [born, *(writer for writer in lifetime.writers if born < writer < self._n_forward)]

    def _is_input(self, read: Lifetime, target: Lifetime, operator: int) -> bool:
        """Whether `operator` finds `read` in memory, in the state that it needs, when `target` is rebuilt."""
        earlier = read.operator is not None and target.operator is not None and read.operator < target.operator
        return earlier and id(read) in self._saved and max(self._makers(read)) < operator

    def _peak_bytes(self, operators: Sequence[int], target: Lifetime) -> int:
        """Peak of what the operators allocate beside the target; each storage lives to its last use among them."""
        last_use: dict[int, list[int]] = defaultdict(list)
        members = set(operators)
        used_bytes, peak_bytes = 0, 0
        for operator in operators:
            for lifetime in self._born_in[operator]:
                if lifetime is target:
                    continue
                last = max((user for user in lifetime.later_users if user in members), default=operator)
                last_use[last].append(lifetime.bytes)
                used_bytes += lifetime.bytes
            peak_bytes = max(peak_bytes, used_bytes + self._workspace_bytes[operator])
            used_bytes -= sum(last_use[operator])
        return peak_bytes
