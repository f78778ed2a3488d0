"""Block checkpointing: the fewest blocks recomputed from their inputs that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from slackswap.models.event_model import simulate_many
from slackswap.models.plan import RECOMPUTE, Plan
from slackswap.models.problem import NO_BLOCK, IntArray, Problem
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible

_PLANS_AT_ONCE = 64


@dataclass(frozen=True)
class Checkpoint:
    """Recomputes whole blocks, as ZeRO-Offload and Megatron-LM do (paper, section 4.1; Chen et al. 2016).

    A recomputed block keeps its input and rebuilds every other saved tensor. Blocks are taken earliest first, since the
    earliest is rebuilt last, when memory is free again; where blocks differ in size, largest first is tried too. The
    fewest blocks that fit win, then the faster step.
    """

    name: str = "checkpoint"
    description: str = "block checkpointing: the fewest blocks recomputed from their inputs that fit"
    policy: str = "default"
    supports: Supports = Supports(swaps=False, needs_blocks=True)

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Try one block more at a time in each order, and choose."""
        del rng, time_limit_s  # deterministic, and done in milliseconds
        blocks = blocks_to_rebuild(problem)
        largest_first = sorted(blocks, key=lambda tensors: -int(problem.tensor_bytes[tensors].sum()))
        tries = [_add_blocks(problem, order, budget_bytes) for order in (blocks, largest_first)]
        evaluations = sum(one.evaluations for one in tries)
        fitting = [one for one in tries if one.peak_bytes <= budget_bytes]
        if fitting:
            best = min(fitting, key=lambda one: (one.n_blocks, one.step_s))
            return Outcome(Status.FEASIBLE, best.plan, claimed_step_s=best.step_s, evaluations=evaluations)
        closest = min(tries, key=lambda one: one.peak_bytes)
        return infeasible(
            problem,
            closest.plan,
            budget_bytes,
            evaluations=evaluations,
            smallest_feasible_bytes=closest.peak_bytes,
            reason="" if blocks else "the problem names no blocks to recompute",
        )


def blocks_to_rebuild(problem: Problem) -> list[IntArray]:
    """Tensors that recomputing each block rebuilds, ascending; the earliest block, by its first such tensor, first."""
    in_block = np.flatnonzero(problem.saved & problem.rebuildable & (problem.block != NO_BLOCK))
    by_block = in_block[np.argsort(problem.block[in_block], kind="stable")]
    _, first = np.unique(problem.block[by_block], return_index=True)
    return sorted(np.split(by_block, first[1:]), key=lambda tensors: int(tensors[0])) if by_block.size else []


class _Try(NamedTuple):
    """The fewest blocks of one order that fit or, where none do, those with the lowest peak."""

    plan: Plan
    n_blocks: int
    step_s: float
    peak_bytes: int
    evaluations: int


def _add_blocks(problem: Problem, order: list[IntArray], budget_bytes: int) -> _Try:
    best: _Try | None = None
    for first in range(0, len(order) + 1, _PLANS_AT_ONCE):
        rows = _prefixes(problem, order, first)
        # Nothing is copied, so neither the peak nor the time depends on the budget.
        scores = simulate_many(problem, rows, np.inf)
        fits = scores.peak_bytes <= budget_bytes
        k = int(np.argmax(fits)) if fits.any() else int(np.argmin(scores.peak_bytes))
        found = _Try(Plan(rows[k]), first + k, float(scores.step_s[k]), int(scores.peak_bytes[k]), first + len(rows))
        if best is None or found.peak_bytes < best.peak_bytes:
            best = found
        if fits.any():
            break
    assert best is not None  # there is at least the plan without a block
    return best._replace(evaluations=first + len(rows))


def _prefixes(problem: Problem, order: list[IntArray], first: int) -> npt.NDArray[np.int8]:
    """Plans that recompute the first `first`, `first` + 1, ... blocks of `order`, up to `_PLANS_AT_ONCE` of them."""
    count = min(_PLANS_AT_ONCE, len(order) + 1 - first)
    rows = np.zeros((count, problem.n_tensors), np.int8)
    for k, tensors in enumerate(order[: first + count - 1]):
        rows[max(0, k + 1 - first) :, tensors] = RECOMPUTE
    return rows
