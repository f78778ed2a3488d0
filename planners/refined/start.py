"""Where the refined planner's search starts: how many tensors of each group to swap, recompute and keep, solved at the turn.

At the turn a plan is a knapsack. What is not recomputed is on the device, except whole copies that the D2H engine has made by
then, one after the other, each with its latency. Tensors of a group are the same there, so only their numbers count, and the
best numbers are found in milliseconds. Where the turn is all that binds, as in most transformers, they are optimal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray
from slackswap.models.problem import IntArray, Problem
from slackswap.planners.refined.columns import Candidates, saved_per_byte_s
from slackswap.planners.refined.numbers import Numbers, best_numbers

FIRST_COPIES = 5  # how many candidates are tried as the one whose copy starts the link
MOST_LEADERS = 4  # copies chosen one by one so that the link does not fall idle again
IDLE_S = 1e-6  # idle for less: not worth a copy
WORTH_A_TRY = 5e-4  # plans that lag behind the best by so many ideal steps are no starts
MOST_WAIT = 2e-3  # ideal steps: longest wait for copies at the turn that is looked at
BEFORE, AFTER, LEADER = 0, 1, 2  # ... + i


def starts(problem: Problem, candidates: Candidates, budget_bytes: int) -> list[DecisionArray]:
    """Return plans that are best at the turn, each with another tensor as the first to be copied; the best of them first.

    None where every plan has to wait there for long.
    """
    found = _Starts(problem, candidates, budget_bytes, np.flatnonzero(candidates.turn_bytes > 0))
    for first in found.frees[:FIRST_COPIES].tolist():
        leaders: tuple[int, ...] | None = (first,)
        while leaders is not None:
            leaders = found.look_at(leaders)
    return [plan for _, plan in sorted(found.plans, key=lambda one: -one[0])]


@dataclass(eq=False)
class _Starts:
    """Plans found, with the rebuild time that they save, less what they lose by waiting and by an idle link."""

    problem: Problem
    candidates: Candidates
    budget_bytes: int
    frees: IntArray
    plans: list[tuple[float, DecisionArray]] = field(default_factory=list)

    @cached_property
    def idle_price(self) -> float:
        """Rebuild time lost per second of idle link."""
        bytes_per_s = self.problem.link.d2h_bytes_per_s
        return saved_per_byte_s(self.candidates, self.budget_bytes, bytes_per_s) * bytes_per_s

    def look_at(self, leaders: tuple[int, ...]) -> tuple[int, ...] | None:
        """Add the best plans with these leaders; return longer leaders that keep the link busy, or None."""
        table = _Table(self.problem, self.candidates, self.frees, leaders)
        idle_s, filler = self._add(table, 0.0)
        if idle_s > 0.0:
            self._add(table, idle_s)
        return None if filler is None or len(leaders) == MOST_LEADERS else (*leaders, filler)

    def _add(self, table: _Table, idle_s: float) -> tuple[float, int | None]:
        """Solve for a link that is idle for a while, without and with a wait; return how long it is, and what would fill it."""
        best_s = max((saved_s for saved_s, _ in self.plans), default=0.0)
        beat_s = best_s - WORTH_A_TRY * self.problem.ideal_s if self.plans else -1.0
        found_idle_s, filler = 0.0, None
        for most_wait_s in (0.0, MOST_WAIT * self.problem.ideal_s):
            gained_s = table.solve(self.budget_bytes, idle_s, most_wait_s, beat_s)
            if gained_s < 0.0:
                continue
            plan = table.plan()
            found_idle_s, filler = _idle_link(self.candidates, plan[self.candidates.tensor])
            lost_s = max(0.0, found_idle_s - idle_s) * self.idle_price
            self.plans.append((gained_s - lost_s, plan))
            beat_s = gained_s
        return found_idle_s, filler


def _idle_link(candidates: Candidates, choice: DecisionArray) -> tuple[float, int | None]:
    """Return how long the link is idle between its copies, and what could be copied when it first is.

    That is the largest tensor produced by then, but none before the first that is copied; None if there is none.
    """
    swapped = np.flatnonzero(choice == SWAP)
    free_s = float(candidates.ready_s[swapped[0]]) if swapped.size else 0.0
    idle_s, filler = 0.0, None
    for c in swapped:
        wait_s = float(candidates.ready_s[c]) - free_s
        if wait_s > IDLE_S and idle_s == 0.0:
            there = (candidates.ready_s <= free_s) & (choice != SWAP) & (candidates.turn_bytes > 0)
            waiting = np.flatnonzero(there[swapped[0] :]) + swapped[0]
            filler = int(waiting[np.argmax(candidates.turn_bytes[waiting])]) if waiting.size else None
        idle_s += wait_s if wait_s > IDLE_S else 0.0
        free_s = max(free_s, float(candidates.ready_s[c])) + float(candidates.copy_s[c])
    return idle_s, filler


@dataclass(frozen=True, eq=False)
class _Table:
    """The groups when `leaders` are swapped and nothing that is produced before the first of them is."""

    problem: Problem
    candidates: Candidates
    frees: IntArray
    leaders: tuple[int, ...]

    @cached_property
    def groups(self) -> list[IntArray]:
        """Candidates of each group in order of production; most rebuild time per byte first, without a rebuild before all."""
        place = np.where(self.frees < self.leaders[0], BEFORE, AFTER)
        for i, leader in enumerate(self.leaders):
            place[self.frees == leader] = LEADER + i
        key = (LEADER + len(self.leaders)) * self.candidates.group[self.frees] + place
        order = np.argsort(key, kind="stable")
        groups = np.split(self.frees[order], np.flatnonzero(np.diff(key[order])) + 1)
        return sorted(groups, key=lambda members: -self._density(int(members[0])))

    def _density(self, candidate: int) -> float:
        return float(self.candidates.rebuild_s[candidate] / self.candidates.turn_bytes[candidate])

    @cached_property
    def numbers(self) -> Numbers:
        """The groups as columns."""
        one_of_each = np.array([members[0] for members in self.groups])
        size = np.array([members.size for members in self.groups], np.int64)
        n_bytes, rebuild_s = self.candidates.turn_bytes[one_of_each], self.candidates.rebuild_s[one_of_each]
        leads = np.isin(one_of_each, self.leaders).astype(np.int64)
        g = size.size
        return Numbers(
            n_bytes=n_bytes,
            gain_s=np.where(np.isfinite(rebuild_s), rebuild_s, 0.0),
            copy_s=self.candidates.copy_s[one_of_each],
            least_kept=np.where(np.isfinite(rebuild_s), leads, size),
            most_kept=size,
            least_swapped=leads,
            most_swapped=np.where(one_of_each < self.leaders[0], 0, size),
            largest=np.argsort(-n_bytes, kind="stable").astype(np.int64),
            reduced_s=np.zeros(g),
            promise_s=np.zeros(g + 1),
            kept=np.zeros(g, np.int64),
            swapped=np.zeros(g, np.int64),
            best_kept=np.zeros(g, np.int64),
            best_swapped=np.zeros(g, np.int64),
            room_bytes=np.zeros(g + 1, np.int64),
            gained_s=np.zeros(g + 1),
            bound_s=np.zeros(g + 1),
        )

    def solve(self, budget_bytes: int, idle_s: float, most_wait_s: float, beat_s: float) -> float:
        """Find the best numbers; return what they save, or -1 if none saves more than `beat_s`."""
        link, candidates = self.problem.link, self.candidates
        room_bytes = budget_bytes - candidates.turn_allocation_bytes
        link_s = candidates.turn_s - float(candidates.ready_s[self.leaders[0]]) - idle_s
        return best_numbers(self.numbers, room_bytes, link_s, link.d2h_bytes_per_s, most_wait_s, beat_s)

    def plan(self) -> DecisionArray:
        """Give each group its numbers.

        The first are swapped: their copies can start early, and the backward pass reads them last. The last are kept: their
        memory comes back first, and nothing has to be rebuilt while memory is still full.
        """
        decisions = np.full(self.problem.n_tensors, KEEP, np.int8)
        for members, kept, swapped in zip(self.groups, self.numbers.best_kept, self.numbers.best_swapped, strict=True):
            decisions[self.candidates.tensor[members[:swapped]]] = SWAP
            decisions[self.candidates.tensor[members[swapped : swapped + members.size - kept]]] = RECOMPUTE
        return decisions
