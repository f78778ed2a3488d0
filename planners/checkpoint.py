"""Block checkpointing: the fewest blocks recomputed from their inputs that fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from slackswap.models.event_model import simulate_many
from slackswap.models.plan import RECOMPUTE, Plan
from slackswap.models.problem import NO_BLOCK, Problem
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
        evaluations = 0
        best: tuple[int, float, Plan] | None = None
        lowest: tuple[int, Plan] | None = None
        for order in _orders(problem):
            for first in range(0, len(order) + 1, _PLANS_AT_ONCE):
                rows = _prefixes(problem, order, first)
                scores = simulate_many(problem, rows, budget_bytes)
                evaluations += len(rows)
                if scores.fits.any():
                    k = int(np.argmax(scores.fits))
                    found = (first + k, float(scores.step_s[k]), Plan(rows[k]))
                    best = min(best or found, found, key=lambda one: one[:2])
                    break
                peaks_bytes = simulate_many(problem, rows, np.inf).peak_bytes
                k = int(np.argmin(peaks_bytes))
                tried = (int(peaks_bytes[k]), Plan(rows[k]))
                lowest = min(lowest or tried, tried, key=lambda one: one[0])
        if best is not None:
            return Outcome(Status.FEASIBLE, best[2], claimed_step_s=best[1], evaluations=evaluations)
        smallest_bytes, closest = lowest or (None, Plan.keep_everything(problem))
        return infeasible(
            problem,
            closest,
            budget_bytes,
            evaluations=evaluations,
            smallest_feasible_bytes=smallest_bytes,
            reason="" if rebuildable_blocks(problem) else "the problem names no blocks to recompute",
        )


def block_tensors(problem: Problem, block: int) -> npt.NDArray[np.bool_]:
    """Saved tensors that recomputing `block` rebuilds, as a mask over tensors."""
    mask: npt.NDArray[np.bool_] = (problem.block == block) & problem.saved & problem.rebuildable
    return mask


def rebuildable_blocks(problem: Problem) -> list[int]:
    """Blocks with something to rebuild, earliest first: in order of their first such tensor."""
    mask = problem.saved & problem.rebuildable & (problem.block != NO_BLOCK)
    return list(dict.fromkeys(problem.block[mask].tolist()))


def _orders(problem: Problem) -> list[list[int]]:
    earliest = rebuildable_blocks(problem)
    freed = {block: int(problem.tensor_bytes[block_tensors(problem, block)].sum()) for block in earliest}
    largest = sorted(earliest, key=lambda block: -freed[block])
    return [earliest, largest]


def _prefixes(problem: Problem, order: list[int], first: int) -> npt.NDArray[np.int8]:
    """Plans that recompute the first `first`, `first` + 1, ... blocks of `order`, up to `_PLANS_AT_ONCE` of them."""
    count = min(_PLANS_AT_ONCE, len(order) + 1 - first)
    rows = np.zeros((count, problem.n_tensors), np.int8)
    for k, block in enumerate(order[: first + count - 1]):
        rows[max(0, k + 1 - first) :, block_tensors(problem, block)] = RECOMPUTE
    return rows
