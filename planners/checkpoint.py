"""Block checkpointing: the fewest blocks recomputed from their inputs that fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.models.event_model import simulate_many
from slackswap.models.plan import RECOMPUTE, Plan
from slackswap.models.problem import NO_BLOCK, Problem
from slackswap.planners.protocol import Outcome, Status, Supports, infeasible


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
        """Score every number of blocks, and choose."""
        del rng, time_limit_s  # deterministic, and done in milliseconds
        rows = np.concatenate([_prefixes(problem, order) for order in _orders(problem)])
        scores = simulate_many(problem, rows, budget_bytes)
        n_blocks = np.concatenate([np.arange(len(order) + 1) for order in _orders(problem)])
        if scores.fits.any():
            fewest = n_blocks[scores.fits].min()
            steps_s = np.where(n_blocks == fewest, scores.step_s, np.inf)
            best = int(np.argmin(steps_s))
            return Outcome(
                Status.FEASIBLE, Plan(rows[best]), claimed_step_s=float(scores.step_s[best]), evaluations=len(rows)
            )
        peaks_bytes = simulate_many(problem, rows, np.inf).peak_bytes
        closest = int(np.argmin(peaks_bytes))
        return infeasible(
            problem,
            Plan(rows[closest]),
            budget_bytes,
            evaluations=2 * len(rows),
            smallest_feasible_bytes=int(peaks_bytes[closest]),
            reason="" if len(rows) > 2 else "the problem names no blocks to recompute",
        )


def block_tensors(problem: Problem, block: int) -> npt.NDArray[np.bool_]:
    """Saved tensors that recomputing `block` rebuilds, as a mask over tensors."""
    mask: npt.NDArray[np.bool_] = (problem.block == block) & problem.saved & problem.rebuildable
    return mask


def rebuildable_blocks(problem: Problem) -> list[int]:
    """Blocks with something to rebuild, in order of their number."""
    mask = problem.saved & problem.rebuildable & (problem.block != NO_BLOCK)
    return [int(block) for block in np.unique(problem.block[mask])]


def _orders(problem: Problem) -> list[list[int]]:
    earliest = rebuildable_blocks(problem)
    freed = {block: int(problem.tensor_bytes[block_tensors(problem, block)].sum()) for block in earliest}
    largest = sorted(earliest, key=lambda block: -freed[block])
    return [earliest, largest]


def _prefixes(problem: Problem, order: list[int]) -> npt.NDArray[np.int8]:
    """One plan per prefix of `order`, from no block to all of them."""
    rows = np.zeros((len(order) + 1, problem.n_tensors), np.int8)
    for k, block in enumerate(order):
        rows[k + 1 :, block_tensors(problem, block)] = RECOMPUTE
    return rows
