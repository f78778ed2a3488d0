"""SwapAdvisor: Belady eviction on the planned schedule, copies as early as possible (Huang et al., ASPLOS 2020)."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.models.plan import SWAP, Plan
from slackswap.models.problem import Problem
from slackswap.planners.protocol import Outcome, Supports, judged


@dataclass(frozen=True)
class SwapAdvisor:
    """Swaps what Belady's rule evicts: whenever memory runs out, the tensor whose next use is furthest away.

    As in the paper, section 4.1, without its genetic search over operator order and memory pools.
    """

    name: str = "swapadvisor"
    description: str = "SwapAdvisor: swap what is used furthest in the future, as early as possible"
    policy: str = "default"
    supports: Supports = Supports(recomputes=False)

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Walk the schedule once, evict where memory runs out, and let the event model judge."""
        del rng, time_limit_s  # deterministic, one walk
        return judged(problem, Plan(_Walk(problem, budget_bytes).decisions()), budget_bytes)


class _Walk:
    """Memory along the operators; a saved tensor may be evicted once its last forward reader has ended."""

    def __init__(self, problem: Problem, budget_bytes: int) -> None:
        self.problem = problem
        self.budget_bytes = budget_bytes
        self.there: set[int] = set()
        self.used_bytes = 0
        self.swapped = np.zeros(problem.n_tensors, np.bool_)
        # Next use first negated: the heap's head is what is used furthest from now; equal: the lower index.
        self.evictable: list[tuple[int, int]] = []

    def decisions(self) -> npt.NDArray[np.int8]:
        for i in range(self.problem.n_operators):
            self._run(i)
        return np.where(self.swapped, SWAP, 0).astype(np.int8)

    def _run(self, i: int) -> None:
        problem = self.problem
        reads = [int(t) for t in problem.reads_of(i)]
        needed = [t for t in reads if t not in self.there]
        need_bytes = int(problem.allocation_bytes[i]) + sum(int(problem.tensor_bytes[t]) for t in needed)
        self._evict_for(need_bytes, keep=set(reads))
        self.there.update(needed, problem.writes_of(i))
        self.used_bytes += need_bytes - int(problem.workspace_bytes[i])
        for t in (*reads, *problem.writes_of(i)):
            if problem.last_use[t] == i:
                self._leave(t)
            elif problem.saved[t] and problem.last_forward_use[t] == i:
                heapq.heappush(self.evictable, (-int(problem.first_backward_reader[t]), t))

    def _evict_for(self, need_bytes: int, keep: set[int]) -> None:
        kept = []
        while self.used_bytes + need_bytes > self.budget_bytes and self.evictable:
            entry = heapq.heappop(self.evictable)
            t = entry[1]
            if t in keep:
                kept.append(entry)
            elif t in self.there:
                self.swapped[t] = True
                self._leave(t)
        for entry in kept:
            heapq.heappush(self.evictable, entry)

    def _leave(self, t: int) -> None:
        self.there.discard(t)
        self.used_bytes -= int(self.problem.tensor_bytes[t])
