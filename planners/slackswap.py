"""The two-pass SlackSwap planner (paper, section 3), and its ablations."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import Score, Timeline, peak_bytes, simulate
from slackswap.models.event_model.buffers import buffers_of
from slackswap.models.event_model.kernel.iteration import lower_decisions
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, Plan
from slackswap.models.problem import IntArray, Problem
from slackswap.planners.checkpoint import blocks_to_rebuild
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible
from slackswap.planners.slackswap_kernel import cover_excess, memory_profile, spend_link_budget

GUARD = 0.02  # section 3.2: offloads end 2% of the forward time before its end
ROUNDS = 6  # section 3.4: the fastest plan seen in at most six rounds

Decisions = npt.NDArray[np.int8]


@dataclass(frozen=True)
class SlackSwap:
    """Algorithm 1 with validation and repair.

    Pass 1 fills the link budget with the tensors that cost most to recompute, Pass 2 covers the rest with the cheapest
    recomputation, and the event model's replay repairs what both overlook.

    Parameters
    ----------
    rank : ``cost`` or ``production``
        Order in which Pass 1 takes candidates: by decreasing recompute cost per byte, or as they are produced.
    swaps : whether Pass 1 runs at all
    guard : g of section 3.2, in [0, 1): the share of the forward time that is left when the last offload ends; a repair
        round that shows a forward stall widens it
    """

    name: str = "slackswap"
    description: str = "the paper's two-pass planner: spend the link budget, recompute the cheapest rest, repair"
    policy: str = "default"
    supports: Supports = Supports()
    rank: str = "cost"
    swaps: bool = True
    guard: float = GUARD

    def __post_init__(self) -> None:
        if not 0 <= self.guard < 1:
            raise InputError(f"a guard is a fraction of the forward time from 0 to below 1, not {self.guard}")

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Plan in at most six rounds; where none fits, find the smallest budget that does."""
        del rng  # deterministic
        ends_s = math.inf if time_limit_s is None else time.perf_counter() + time_limit_s
        passes = TwoPasses(problem, self.rank)
        search = self.search(passes, budget_bytes, ends_s)
        if search.best is not None:
            return Outcome(Status.FEASIBLE, search.best, claimed_step_s=search.best_s, evaluations=search.evaluations)
        if time.perf_counter() > ends_s:
            return Outcome(Status.TIME_LIMIT, evaluations=search.evaluations)
        smallest_bytes, evaluations = self._smallest_budget(passes, budget_bytes, ends_s)
        return infeasible(
            problem,
            search.closest or Plan.keep_everything(problem),
            budget_bytes,
            evaluations=search.evaluations + evaluations,
            smallest_feasible_bytes=smallest_bytes,
        )

    def search(self, passes: TwoPasses, budget_bytes: int, ends_s: float = math.inf) -> _Search:
        """Plan in at most six rounds, and no more: where none fits, `closest` came nearest."""
        search = _Search(passes, budget_bytes, ends_s, self.guard)
        search.try_plan(Plan.keep_everything(passes.problem))
        if search.best is not None:
            return search
        search.repair_rounds(1 if self.swaps else ROUNDS, swaps=False)
        if self.swaps:
            search.repair_rounds(ROUNDS - 1, swaps=True)
        return search

    def _smallest_budget(self, passes: TwoPasses, budget_bytes: int, ends_s: float) -> tuple[int, int]:
        """Bisect for the smallest budget, to within 0.1%, at which planning succeeds; the peak is known to.

        Returns the budget, and how many plans were scored on the way.
        """
        low, high = budget_bytes, passes.peak_bytes
        evaluations = 0
        while high - low > max(1, high // 1000) and time.perf_counter() < ends_s:
            middle = (low + high) // 2
            search = self.search(passes, middle, ends_s)
            evaluations += search.evaluations
            if search.best is None:
                low = middle
            else:
                high = middle
        return high, evaluations


@dataclass
class TwoPasses:
    """Passes 1 and 2 of Algorithm 1 for one problem."""

    problem: Problem
    rank: str

    @cached_property
    def peak_bytes(self) -> int:
        """Peak P of the keep-everything plan."""
        return peak_bytes(self.problem)

    @cached_property
    def start_s(self) -> npt.NDArray[np.float64]:
        """(n + 1,) start of each operator in the ideal step, and its end."""
        return np.concatenate(([0.0], np.cumsum(self.problem.duration_s)))

    @cached_property
    def order(self) -> npt.NDArray[np.int64]:
        """Pass 1's candidates in order; an empty tensor frees nothing."""
        problem = self.problem
        candidates = np.flatnonzero(problem.saved & (problem.tensor_bytes > 0))
        if self.rank == "production":
            return candidates
        cost_per_byte = problem.rebuild_s[candidates] / problem.tensor_bytes[candidates]
        return candidates[np.argsort(-cost_per_byte, kind="stable")]

    @cached_property
    def by_deadline(self) -> npt.NDArray[np.int64]:
        """Tensors by first backward read."""
        return np.argsort(self.problem.first_backward_reader, kind="stable")

    @cached_property
    def by_release(self) -> npt.NDArray[np.int64]:
        """Tensors that the backward pass releases, by the end of their last use."""
        last = self.problem.last_use
        order = np.argsort(last, kind="stable")
        return order[last[order] >= self.problem.n_forward]

    def run(
        self, budget_bytes: int, guard: float, decisions: Decisions, never_swap: npt.NDArray[np.bool_], *, swaps: bool
    ) -> bool:
        """Fill `decisions`, in which forced recomputations are already marked; return whether Pass 2 covered everything."""
        columns = buffers_of(self.problem).problem
        if swaps:
            order = self.order[(~never_swap & (decisions == KEEP))[self.order]]
            deficit_bytes = self.peak_bytes - budget_bytes
            spend_link_budget(
                columns, order, self.by_deadline, self.by_release, self.start_s, guard, deficit_bytes, decisions
            )
        return self._cover(budget_bytes, decisions)

    def _cover(self, budget_bytes: int, decisions: Decisions) -> bool:
        problem, buffers = self.problem, buffers_of(self.problem)
        candidate = problem.saved & problem.rebuildable & (problem.tensor_bytes > 0)
        profile_bytes = np.zeros(problem.n_operators, np.int64)
        first_use = np.zeros(problem.n_tensors, np.int64)
        by_step = np.zeros(problem.n_operators + problem.n_tensors + 1, np.int64)
        blocks = iter(blocks_to_rebuild(problem))
        seen = decisions.view()
        seen.setflags(write=False)  # the array type that the engine is compiled for
        while True:
            lower_decisions(buffers.problem, seen, buffers.schedule, buffers.scratch)
            memory_profile(
                buffers.problem,
                buffers.schedule,
                buffers.scratch,
                self.start_s,
                seen,
                profile_bytes,
                first_use,
                by_step,
            )
            if profile_bytes.max() <= budget_bytes:
                return True
            uncovered = cover_excess(buffers.problem, candidate, budget_bytes, profile_bytes, first_use, decisions)
            if uncovered >= 0 and not _recompute_earliest_block(blocks, decisions):
                return False


def _recompute_earliest_block(blocks: Iterator[IntArray], decisions: Decisions) -> bool:
    """Pass 2's fallback, block checkpointing: recompute what is left of the earliest block. Return whether any was."""
    for tensors in blocks:
        if (decisions[tensors] != RECOMPUTE).any():
            decisions[tensors] = RECOMPUTE
            return True
    return False


@dataclass
class _Search:
    """Validation and repair (section 3.4): replay each plan, mend what it shows, keep the fastest that fits."""

    passes: TwoPasses
    budget_bytes: int
    ends_s: float = math.inf
    guard: float = GUARD
    best: Plan | None = None
    best_s: float = math.inf
    closest: Plan | None = None
    closest_missing_bytes: int = 1 << 62
    evaluations: int = 0

    def try_plan(self, plan: Plan, *, timeline: bool = False) -> Score:
        score = simulate(self.passes.problem, plan, self.budget_bytes, timeline=timeline)
        self.evaluations += 1
        if score.fits and score.step_s < self.best_s:
            self.best, self.best_s = plan, score.step_s
        if not score.fits and score.missing_bytes < self.closest_missing_bytes:
            self.closest, self.closest_missing_bytes = plan, score.missing_bytes
        return score

    def repair_rounds(self, rounds: int, *, swaps: bool) -> None:
        problem = self.passes.problem
        repair = _Repair(problem, self.guard)
        for _ in range(rounds):
            if time.perf_counter() > self.ends_s:
                return
            decisions = np.where(repair.recompute, RECOMPUTE, KEEP).astype(np.int8)
            target_bytes = int(self.budget_bytes * (1.0 - repair.shrink))
            self.passes.run(target_bytes, repair.guard, decisions, repair.never_swap, swaps=swaps)
            score = self.try_plan(Plan(decisions), timeline=True)
            if not repair.learn(decisions, score):
                break


@dataclass
class _Repair:
    """What the replays have shown so far."""

    problem: Problem
    guard: float = GUARD
    shrink: float = 0.0
    never_swap: npt.NDArray[np.bool_] = field(init=False)
    recompute: npt.NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.never_swap = np.zeros(self.problem.n_tensors, np.bool_)
        self.recompute = np.zeros(self.problem.n_tensors, np.bool_)

    def learn(self, decisions: Decisions, score: Score) -> bool:
        """Change the next round by what this one showed; return whether there is anything to change."""
        lanes = score.timeline
        if lanes is None:
            return False
        changed = self._blame_prefetches(decisions, lanes)
        if score.forward_stall_s > 0:  # offloads lag behind the allocations that wait for them
            share = score.forward_stall_s / self.problem.forward_s if self.problem.forward_s > 0 else 1.0
            self.guard += max(0.01, share)
            changed = True
        # The profile knows nothing of prefetch buffers: where they, or the transients at the turn from the forward to the
        # backward pass, make compute wait for memory, the profile has to stay further below the budget.
        if not score.fits or lanes.memory_wait_s[self.problem.n_forward :].any():
            self.shrink = max(0.01, 2 * self.shrink)
            changed = True
        return changed

    def _blame_prefetches(self, decisions: Decisions, lanes: Timeline) -> bool:
        """Recompute a tensor whose prefetch held up compute if that costs less than the wait, else swap it no more."""
        wait_s = np.zeros(self.problem.n_tensors)
        waited = lanes.awaited >= 0
        np.add.at(wait_s, lanes.awaited[waited], lanes.input_wait_s[waited])
        blamed = (wait_s > 0) & (decisions == SWAP)
        cheaper = blamed & (self.problem.rebuild_s < wait_s)
        self.recompute |= cheaper
        self.never_swap |= blamed & ~cheaper
        return bool(blamed.any())


SLACKSWAP = SlackSwap()
SWAP_FIRST = replace(
    SLACKSWAP,
    name="swap-first",
    description="ablation: Pass 1 takes tensors in order of production instead of recompute cost",
    rank="production",
)
RECOMPUTE_ONLY = replace(
    SLACKSWAP,
    name="recompute-only",
    description="ablation: Pass 2 alone, nothing crosses the link",
    supports=Supports(swaps=False),
    swaps=False,
)
BARRIERS = replace(
    SLACKSWAP,
    name="barriers",
    description="slackswap's plan run with vDNN's per-layer synchronization",
    policy="barriers",
)
