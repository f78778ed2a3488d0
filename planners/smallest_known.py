"""The smallest budget for which a plan is known, found in milliseconds and verified in the event model."""

from __future__ import annotations

import math
import weakref
from typing import NamedTuple

import numpy as np

from slackswap.models.event_model import peak_bytes, simulate, simulate_many
from slackswap.models.plan import RECOMPUTE, DecisionArray, Plan
from slackswap.models.problem import NO_BLOCK, IntArray, Problem
from slackswap.planners.memory_floor import PLANS, Space, memory_floor

KEEPING, SWAPPING = "keeping everything", "swapping everything"
# Where the search for recomputation starts, and how many steps it simulates from there: some 50 ms each.
_STARTS, _MAX_STEPS = 3, 2_000_000


class SmallestKnown(NamedTuple):
    """A plan fits in `n_bytes`; `how` says in words which."""

    n_bytes: int
    how: str


_known: weakref.WeakKeyDictionary[Problem, dict[tuple[Space, str], SmallestKnown]] = weakref.WeakKeyDictionary()


def smallest_known(problem: Problem, space: Space, policy: str) -> SmallestKnown:
    """Return the smallest budget for which a plan of `space` is known to run under `policy`; a problem remembers it.

    With swaps it is the floor of `memory_floor`, to the byte: there the plan that swaps everything fits. With recomputation
    alone it is the lowest peak of a short search. Whoever writes schedules may also return lowered plans.
    """
    known = _known.setdefault(problem, {})
    key = space, policy
    if key not in known:
        known[key] = _find(problem, space, policy)
    return known[key]


def _find(problem: Problem, space: Space, policy: str) -> SmallestKnown:
    everything = SmallestKnown(peak_bytes(problem), KEEPING)
    if space.swaps:
        floor_bytes = memory_floor(problem, PLANS).n_bytes
        plan = Plan.swap_everything(problem)
        fits = floor_bytes < everything.n_bytes and simulate(problem, plan, floor_bytes, policy=policy).fits
        return SmallestKnown(floor_bytes, SWAPPING) if fits else everything
    if not space.recomputes:
        return everything
    decisions, lowest_bytes = _lowest_peak(problem)
    if lowest_bytes >= everything.n_bytes:
        return everything
    n_rebuilt, n_saved = int((decisions == RECOMPUTE).sum()), int(problem.saved.sum())
    return SmallestKnown(lowest_bytes, f"recomputing {n_rebuilt} of {n_saved} saved tensors")


def _lowest_peak(problem: Problem) -> tuple[DecisionArray, int]:
    """Search for the lowest peak of recomputation alone; copies nothing, so the peak does not depend on the budget.

    From the best three of some families of plans, single changes for as long as one helps and there is time.
    """
    candidates = np.flatnonzero(problem.saved & problem.rebuildable & (problem.tensor_bytes > 0))
    rows = _families(problem, candidates)
    peaks_bytes = simulate_many(problem, rows, math.inf).peak_bytes
    starts = np.argsort(peaks_bytes, kind="stable")[:_STARTS]
    found = [_descend(problem, candidates, rows[k], int(peaks_bytes[k])) for k in starts]
    return min(found, key=lambda one: one[1])


def _descend(
    problem: Problem, candidates: IntArray, plan: DecisionArray, lowest_bytes: int
) -> tuple[DecisionArray, int]:
    """Change the decision that lowers the peak most, until none does or the time is over."""
    steps = (problem.n_operators + problem.n_tensors) * max(1, candidates.size)
    for _ in range(_MAX_STEPS // steps if candidates.size else 0):
        changed = np.repeat(plan[np.newaxis], candidates.size, axis=0)
        changed[np.arange(candidates.size), candidates] ^= RECOMPUTE
        peaks_bytes = simulate_many(problem, changed, math.inf).peak_bytes
        best = int(np.argmin(peaks_bytes))
        if peaks_bytes[best] >= lowest_bytes:
            break
        plan, lowest_bytes = changed[best], int(peaks_bytes[best])
    return plan, lowest_bytes


def _families(problem: Problem, candidates: IntArray) -> DecisionArray:
    """Return plans as rows: keep everything; rebuild chains of 1, 2, 3, ... tensors; whole blocks, the first k of them."""
    depth = _chain_depths(problem, candidates)
    longest = int(depth.max(initial=0))
    lengths = sorted({*range(1, 5), *(int(1.5**k) for k in range(4, 40))})
    rebuilt = [(depth > 0) & (depth % (length + 1) > 0) for length in lengths if length < longest]
    rebuilt += [depth > 0]
    in_block = candidates[problem.block[candidates] != NO_BLOCK]
    blocks = np.unique(problem.block[in_block])
    for last in blocks[np.unique(np.linspace(0, blocks.size - 1, 16).astype(int))] if blocks.size else ():
        mask = np.zeros(problem.n_tensors, np.bool_)
        mask[in_block[problem.block[in_block] <= last]] = True
        rebuilt.append(mask)
    return np.where([np.zeros(problem.n_tensors, np.bool_), *rebuilt], RECOMPUTE, 0).astype(np.int8)


def _chain_depths(problem: Problem, candidates: IntArray) -> IntArray:
    """How many tensors a rebuild runs through if all candidates are recomputed, itself included; 0 for the others."""
    depth = np.zeros(problem.n_tensors, np.int64)
    for t in candidates:
        depth[t] = 1 + int(depth[problem.rebuild_inputs_of(t)].max(initial=0))
    return depth
