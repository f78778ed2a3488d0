"""A problem as a rematerialization graph: what can be evaluated again, in whole units of memory and time.

Operators run once, in order. A tensor with a rebuild can be evaluated again at any time after its producer; its rebuild
reads tensors that are produced earlier, so tensor order is topological. Empty tensors are left out: to keep one is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slackswap.models.problem import FloatArray, IntArray, Problem

# Whole numbers of these sizes stay exact in a MILP solver's arithmetic; finer units would not change a plan.
MAX_BUDGET_UNITS = 1 << 24
MAX_COST_UNITS = 1 << 30
_NANOSECOND_S = 1e-9


@dataclass(frozen=True, eq=False)
class RematerializationGraph:
    """The graph at one budget. Sizes are rounded up and the budget down, so that what fits here fits in bytes too.

    With n operators and m tensors. Costs are rounded down, so that no sum of them is more than it takes.

    Attributes
    ----------
    n_operators : n
    sizes, costs, rebuild_workspaces : (m,) units of memory, of time, of memory
    rebuildable : (m,) whether the tensor can be evaluated again within the budget; False for empty ones
    producers : (m,) operator that writes each tensor
    readers : (m,) operators that read each tensor, ascending
    inputs : (m,) tensors that each rebuild reads, ascending, without empty ones
    reads, writes : (n,) tensors that each operator reads and writes, ascending, without empty ones
    allocations : (n,) what each operator allocates when it starts: what it writes, and its workspace
    budget : units of memory
    bytes_per_unit, seconds_per_unit : the units
    exact_memory : whether every size is a whole number of units, so that rounding changes nothing
    """

    n_operators: int
    sizes: tuple[int, ...]
    costs: tuple[int, ...]
    rebuild_workspaces: tuple[int, ...]
    rebuildable: tuple[bool, ...]
    producers: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    inputs: tuple[tuple[int, ...], ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    allocations: tuple[int, ...]
    budget: int
    bytes_per_unit: int
    seconds_per_unit: float
    exact_memory: bool

    @classmethod
    def of(cls, problem: Problem, budget_bytes: int) -> RematerializationGraph:
        """Read a problem at a budget of `budget_bytes`, a whole number from 0."""
        columns = (problem.tensor_bytes, problem.workspace_bytes, problem.rebuild_workspace_bytes)
        unit = _memory_unit(np.concatenate(columns), budget_bytes)
        sizes, workspaces, rebuild_workspaces = (_units_up(column, unit) for column in columns)
        costs, seconds_per_unit = _costs(np.where(problem.rebuildable, problem.rebuild_s, 0.0))
        writes = [_filled(problem.writes_of(i), sizes) for i in range(problem.n_operators)]
        inputs = [_filled(problem.rebuild_inputs_of(t).tolist(), sizes) for t in range(problem.n_tensors)]
        needs = [sizes[t] + rebuild_workspaces[t] + sum(sizes[i] for i in row) for t, row in enumerate(inputs)]
        can = problem.rebuildable & (np.array(sizes) > 0) & (np.array(needs) <= budget_bytes // unit)
        return cls(
            n_operators=problem.n_operators,
            sizes=sizes,
            costs=costs,
            rebuild_workspaces=rebuild_workspaces,
            rebuildable=tuple(can.tolist()),
            producers=tuple(problem.producer.tolist()),
            readers=tuple(tuple(problem.readers_of(t).tolist()) for t in range(problem.n_tensors)),
            inputs=tuple(inputs),
            reads=tuple(_filled(problem.reads_of(i).tolist(), sizes) for i in range(problem.n_operators)),
            writes=tuple(writes),
            allocations=tuple(workspaces[i] + sum(sizes[t] for t in row) for i, row in enumerate(writes)),
            budget=budget_bytes // unit,
            bytes_per_unit=unit,
            seconds_per_unit=seconds_per_unit,
            exact_memory=all((column % unit == 0).all() for column in columns),
        )

    @property
    def n_tensors(self) -> int:
        """Number of tensors, m."""
        return len(self.sizes)

    def inputs_of(self, step: int) -> tuple[int, ...]:
        """Tensors that a step reads; operator i is step i, the rebuild of tensor t is step n + t (as in `Schedule`)."""
        return self.reads[step] if step < self.n_operators else self.inputs[step - self.n_operators]

    def outputs_of(self, step: int) -> tuple[int, ...]:
        """Tensors that a step writes."""
        return self.writes[step] if step < self.n_operators else (step - self.n_operators,)

    def workspace_of(self, step: int) -> int:
        """Temporaries of a step, in units."""
        if step >= self.n_operators:
            return self.rebuild_workspaces[step - self.n_operators]
        return self.allocations[step] - sum(self.sizes[t] for t in self.writes[step])

    def rebuild_cost(self, steps: Sequence[int]) -> int:
        """Units of time that the rebuilds among `steps` take."""
        return sum(self.costs[step - self.n_operators] for step in steps if step >= self.n_operators)

    @cached_property
    def last_reader(self) -> tuple[int, ...]:
        """(m,) last operator that reads each tensor, or its producer."""
        return tuple(max((producer, *row)) for producer, row in zip(self.producers, self.readers, strict=True))

    @cached_property
    def kept_profile(self) -> IntArray:
        """(n,) units in use while each operator runs if every tensor stays until its last reader."""
        change = np.zeros(self.n_operators + 1, np.int64)
        for t, size in enumerate(self.sizes):
            change[self.producers[t]] += size
            change[self.last_reader[t] + 1] -= size
        workspaces = [self.workspace_of(i) for i in range(self.n_operators)]
        profile: IntArray = np.cumsum(change[:-1]) + np.array(workspaces, np.int64)
        return profile

    @cached_property
    def working_sets(self) -> IntArray:
        """(n,) units that each operator needs at once: what it reads, writes and works with."""
        sums = [self.allocations[i] + sum(self.sizes[t] for t in row) for i, row in enumerate(self.reads)]
        return np.array(sums, np.int64)

    def worth_rebuilding(self, max_cost: int | None) -> tuple[bool, ...]:
        """(m,) whether one rebuild of the tensor costs no more than a schedule that is known; None: none is known."""
        return tuple(
            can and (max_cost is None or cost <= max_cost)
            for can, cost in zip(self.rebuildable, self.costs, strict=True)
        )

    def useful_until(self, worth: Sequence[bool]) -> list[int]:
        """(m,) last operator before which each tensor can serve a reader, or a rebuild of what can serve one."""
        until = list(self.last_reader)
        for t in reversed(range(self.n_tensors)):
            if worth[t]:
                for source in self.inputs[t]:
                    until[source] = max(until[source], until[t])
        return until


def _memory_unit(sizes_bytes: IntArray, budget_bytes: int) -> int:
    """Bytes per unit: what divides every size or, where that is too fine for the budget, a multiple of it."""
    divisor = int(np.gcd.reduce(sizes_bytes)) if sizes_bytes.size else 0
    divisor = max(1, divisor)
    return divisor * max(1, -(-budget_bytes // (divisor * MAX_BUDGET_UNITS)))


def _units_up(sizes_bytes: IntArray, unit: int) -> tuple[int, ...]:
    return tuple((-(-sizes_bytes // unit)).tolist())


def _costs(rebuild_s: FloatArray) -> tuple[tuple[int, ...], float]:
    """Costs in units of time, rounded down, and the unit: what divides all nanoseconds or, where too fine, more."""
    total_s = float(rebuild_s.sum())
    nanoseconds = np.rint(np.minimum(rebuild_s, 1e9) / _NANOSECOND_S).astype(np.int64)
    divisor = max(1, int(np.gcd.reduce(nanoseconds))) if nanoseconds.size else 1
    # A thousandth of a nanosecond is the noise of what was a whole number before it was a float.
    whole = (np.abs(rebuild_s / _NANOSECOND_S - nanoseconds) < 1e-3).all()
    if whole and total_s / _NANOSECOND_S <= divisor * MAX_COST_UNITS:
        return tuple((nanoseconds // divisor).tolist()), divisor * _NANOSECOND_S
    unit_s = total_s / MAX_COST_UNITS
    return tuple(np.floor(rebuild_s / unit_s).astype(np.int64).tolist()), unit_s


def _filled(tensors: Sequence[int], sizes: Sequence[int]) -> tuple[int, ...]:
    return tuple(int(t) for t in tensors if sizes[t] > 0)
