"""What no plan can do without: for each operator the bytes that are on the device while it runs, whatever was decided.

Below the largest of these sums nothing fits, which is proved here from the rules of the event model
(`slackswap.models.event_model`), under every runtime policy.

**Schedules.** By rule 1 an operator starts when all that it reads is on the device and its allocation, all that it writes
and its workspace, fits beside it. Readers come after the producer, so these are different tensors: their sum, the *working
set*, is at most the budget. In a space without swaps, moreover, a tensor that no operator rebuilds cannot come back: it is
there from its producer to its last reader.

**Plans.** Lowering fixes when a tensor may leave. While operator i runs, these are on the device:

- a tensor that is not saved, for producer <= i <= last reader: a plan keeps it, and it goes after its last use (rule 2);
- a saved tensor, for producer <= i <= last forward reader (the producer if none): kept and recomputed ones are released
  after that reader at the earliest (rule 2), a swapped one when its copy and that reader have ended (rule 5);
- a saved tensor, for first backward reader <= i <= last reader. The first of them needs it on the device (rule 1). A kept
  or rebuilt one stays until its last use (rule 2), a swapped one too: what makes room later, eviction (rule 9) and the
  policy ``on-demand``, takes only what no backward step has read yet;
- in between, a saved tensor that can neither be swapped nor be recomputed in the space at hand.

Their bytes and the operator's workspace are part of `used` when it runs, so their sum is at most the budget.

**How tight.** With swaps the floor of plans is exact: the plan that swaps every saved tensor fits there. Compute that cannot
start waits for copies. In the forward pass all offloads end at last and leave just what is listed. In the backward pass they
end too, what was fetched too early and has not been read is evicted (rule 9), and the inputs of the step at hand come one
by one. Recomputation alone may need more than its floor: a rebuild reads inputs that the sum does not see.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import numpy as np

from slackswap.models.problem import BoolArray, IntArray, Problem


class Space(NamedTuple):
    """What a planner may return.

    Attributes
    ----------
    swaps, recomputes : whether its plans may do so
    schedules : whether it writes schedules of its own, in which a tensor may leave and return at any step
    """

    swaps: bool = True
    recomputes: bool = True
    schedules: bool = False

    @property
    def noun(self) -> str:
        """What it holds, for people, as in "no plan without swaps fits"."""
        if not (self.swaps or self.recomputes):
            return "plan that keeps everything"
        return ("schedule" if self.schedules else "plan") + ("" if self.swaps else " without swaps")


class MemoryFloor(NamedTuple):
    """No plan of a space fits in less than `n_bytes`; `operator`, the first that needs them, is an index."""

    n_bytes: int
    operator: int


PLANS, SCHEDULES = Space(), Space(schedules=True)
_floors: weakref.WeakKeyDictionary[Problem, dict[Space, MemoryFloor]] = weakref.WeakKeyDictionary()


def plan_floor_bytes(problem: Problem) -> int:
    """Smallest budget of any plan, a decision per tensor; the plan that swaps everything fits in it."""
    return memory_floor(problem, PLANS).n_bytes


def working_set_bytes(problem: Problem) -> int:
    """Return what some operator reads, writes and works with: no schedule of any kind fits in less."""
    return memory_floor(problem, SCHEDULES).n_bytes


def memory_floor(problem: Problem, space: Space) -> MemoryFloor:
    """Return the largest need of any operator; a problem remembers it."""
    floors = _floors.setdefault(problem, {})
    if space not in floors:
        needs_bytes = bytes_needed(problem, space)
        operator = int(np.argmax(needs_bytes))
        floors[space] = MemoryFloor(int(needs_bytes[operator]), operator)
    return floors[space]


def bytes_needed(problem: Problem, space: Space) -> IntArray:
    """Return the (n,) bytes that are on the device while each operator runs, under any plan of `space`."""
    can_return = np.full(problem.n_tensors, space.swaps) | (space.recomputes & problem.rebuildable)
    leaves = can_return if space.schedules else can_return & problem.saved
    needs_bytes = problem.workspace_bytes + _during(problem, problem.producer, problem.last_use, ~leaves)
    if not space.schedules:
        needs_bytes += _during(problem, problem.producer, problem.last_forward_use, leaves)
        return needs_bytes + _during(problem, problem.first_backward_reader, problem.last_use, leaves)
    tensor_of_read = np.repeat(np.arange(problem.n_tensors), np.diff(problem.readers_start))
    read_bytes = np.where(leaves, problem.tensor_bytes, 0)[tensor_of_read]
    np.add.at(needs_bytes, problem.readers, read_bytes)
    return needs_bytes + _during(problem, problem.producer, problem.producer, leaves)


def _during(problem: Problem, first: IntArray, last: IntArray, tensors: BoolArray) -> IntArray:
    """Bytes of `tensors` that are there at each operator, each from `first` to `last`, both included."""
    change_bytes = np.zeros(problem.n_operators + 1, np.int64)
    np.add.at(change_bytes, first[tensors], problem.tensor_bytes[tensors])
    np.add.at(change_bytes, last[tensors] + 1, -problem.tensor_bytes[tensors])
    present_bytes: IntArray = np.cumsum(change_bytes[:-1])
    return present_bytes
