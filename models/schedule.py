"""A schedule: the explicit steps, drops, offloads and prefetches that the event model executes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import IntArray, Problem, read_only


@dataclass(frozen=True, eq=False)
class Schedule:
    """What runs, in which order, and what leaves and returns when. `lower` makes one from a plan.

    With n operators. A richer planner (several rebuilds of one tensor, rebuilds anywhere, drops at any step, explicit
    prefetch points) writes its own with `from_lists`; `check` says in words whether it is legal.

    Attributes
    ----------
    steps : (s,) array
        Operator i is i; the rebuild of tensor t is ``n + t``. Operators stand in order, each once.
    drops_start, drops : (s + 1,), (d,) arrays
        CSR: tensors whose device copy is released when the step ends. Where an offload of the tensor is queued or under
        way, the release waits for its end, and is void if a later step reads the tensor before that (rules 5 and 7).
    offload_tensor, offload_after : (o,) arrays
        D2H queue, first in first out: each copy may start once the step has ended. At most one per tensor.
    prefetch_tensor, prefetch_deadline, prefetch_after : (p,) arrays
        H2D queue in order of (deadline, tensor): the copy that serves the read at step `deadline`, not before step
        `after` has ended. It waits in the queue from the moment the host has the tensor and the device has not.
    """

    steps: IntArray
    drops_start: IntArray
    drops: IntArray
    offload_tensor: IntArray
    offload_after: IntArray
    prefetch_tensor: IntArray
    prefetch_deadline: IntArray
    prefetch_after: IntArray

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            column = np.array(getattr(self, name), dtype=np.int64)
            if column.ndim != 1:
                raise InputError(f"is one list of numbers, not {column.ndim}-dimensional", place=f"schedule.{name}")
            object.__setattr__(self, name, read_only(column))

    @classmethod
    def from_lists(
        cls,
        steps: Sequence[int],
        drops: Sequence[Iterable[int]],
        offloads: Iterable[tuple[int, int]] = (),
        prefetches: Iterable[tuple[int, int, int]] = (),
    ) -> Schedule:
        """Build a schedule from plain lists.

        Parameters
        ----------
        steps : step codes
        drops : the tensors dropped when each step ends, one collection per step
        offloads : (tensor, after step), in queue order
        prefetches : (tensor, deadline step, after step), in any order
        """
        rows = [sorted(row) for row in drops]
        start = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
        offload_rows = np.array(list(offloads), np.int64).reshape(-1, 2)
        prefetch_rows = np.array(sorted(prefetches, key=lambda row: (row[1], row[0])), np.int64).reshape(-1, 3)
        return cls(
            steps=np.array(steps, np.int64),
            drops_start=start,
            drops=np.array([t for row in rows for t in row], np.int64),
            offload_tensor=offload_rows[:, 0],
            offload_after=offload_rows[:, 1],
            prefetch_tensor=prefetch_rows[:, 0],
            prefetch_deadline=prefetch_rows[:, 1],
            prefetch_after=prefetch_rows[:, 2],
        )

    @property
    def n_steps(self) -> int:
        """Number of steps, s."""
        return self.steps.size

    def drops_after(self, step: int) -> IntArray:
        """Tensors dropped when `step` ends."""
        return self.drops[self.drops_start[step] : self.drops_start[step + 1]]

    def rebuilds(self, problem: Problem) -> IntArray:
        """Tensor rebuilt at each step; negative where the step is an operator."""
        return self.steps - problem.n_operators


def step_name(problem: Problem, step_code: int) -> str:
    """Name of a step for people: the operator's, or ``rebuild <tensor>``."""
    if step_code < problem.n_operators:
        return problem.operator_names[step_code]
    return f"rebuild {problem.tensor_names[step_code - problem.n_operators]}"
