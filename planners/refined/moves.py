"""Moves of the refined planner's search: each changes some decisions, and can be taken back."""

from __future__ import annotations

import numpy as np

from slackswap.models.compilation import compiled_part
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP
from slackswap.models.problem import FloatArray
from slackswap.planners.refined.columns import CURSOR, LOGGED, SLACK, SPARE, STALL, Candidates, Chain
from slackswap.planners.refined.turn import decide, look_at_turn

# Shares of the moves; what is left repacks the link.
FLIP, WITHIN_GROUP, EXCHANGE, EJECT = 0.2, 0.2, 0.3, 0.24
TAKEN = 0.7  # chance that a candidate which fits is taken: moves from one plan differ
MOST_FREED, MOST_CHANGED = 16, 40  # per move
TRIES = 8


@compiled_part
def draw(draws: FloatArray, chain: Chain) -> float:
    """Next random number in [0, 1)."""
    i = chain.integers[CURSOR]
    chain.integers[CURSOR] = i + 1
    return float(draws[i % draws.size])


@compiled_part
def draw_below(draws: FloatArray, n: int, chain: Chain) -> int:
    """Random index below n."""
    return int(draw(draws, chain) * n)


@compiled_part
def change(candidates: Candidates, c: int, decision: int, chain: Chain) -> None:
    """Change a decision, and log it."""
    k = chain.integers[LOGGED]
    chain.changed[k] = c
    chain.before[k] = chain.choice[c]
    chain.integers[LOGGED] = k + 1
    decide(candidates, c, decision, chain)


@compiled_part
def take_back(candidates: Candidates, mark: int, chain: Chain) -> None:
    """Undo the changes logged since the log was `mark` entries long."""
    k = chain.integers[LOGGED]
    while k > mark:
        k -= 1
        decide(candidates, chain.changed[k], chain.before[k], chain)
    chain.integers[LOGGED] = mark


@compiled_part
def move(candidates: Candidates, budget_bytes: int, draws: FloatArray, chain: Chain) -> bool:
    """Make a random move; return whether there is one. A move that failed half-way is still in the log."""
    kind = draw(draws, chain)
    if kind < FLIP:
        return _flip(candidates, draws, chain)
    if kind < FLIP + WITHIN_GROUP + EXCHANGE:
        return _exchange(candidates, kind < FLIP + WITHIN_GROUP, draws, chain)
    if kind < FLIP + WITHIN_GROUP + EXCHANGE + EJECT:
        return _eject(candidates, budget_bytes, draws, chain)
    return _repack(candidates, budget_bytes, draws, chain)


@compiled_part
def _flip(candidates: Candidates, draws: FloatArray, chain: Chain) -> bool:
    """Decide otherwise about one tensor."""
    c = draw_below(draws, chain.choice.size, chain)
    decision = draw_below(draws, 3, chain)
    if decision == chain.choice[c] or (decision == RECOMPUTE and not np.isfinite(candidates.rebuild_s[c])):
        return False
    change(candidates, c, decision, chain)
    return True


@compiled_part
def _exchange(candidates: Candidates, alike: bool, draws: FloatArray, chain: Chain) -> bool:
    """Exchange the decisions of two tensors: of the same group, or any."""
    a = draw_below(draws, chain.choice.size, chain)
    b = _of_group(candidates, a, draws, chain) if alike else draw_below(draws, chain.choice.size, chain)
    for_a, for_b = chain.choice[b], chain.choice[a]
    if for_a == for_b:
        return False
    if for_a == RECOMPUTE and not np.isfinite(candidates.rebuild_s[a]):
        return False
    if for_b == RECOMPUTE and not np.isfinite(candidates.rebuild_s[b]):
        return False
    change(candidates, a, for_a, chain)
    change(candidates, b, for_b, chain)
    return True


@compiled_part
def _of_group(candidates: Candidates, c: int, draws: FloatArray, chain: Chain) -> int:
    first, last = candidates.group_start[candidates.group[c]], candidates.group_start[candidates.group[c] + 1]
    return int(candidates.members[first + draw_below(draws, last - first, chain)])


@compiled_part
def _alike(candidates: Candidates, c: int, draws: FloatArray, chain: Chain) -> int:
    """A random tensor of the same group and decision; the same one where the draw misses."""
    other = _of_group(candidates, c, draws, chain)
    return other if chain.choice[other] == chain.choice[c] else c


@compiled_part
def _eject(candidates: Candidates, budget_bytes: int, draws: FloatArray, chain: Chain) -> bool:
    """Turn one recomputation on or off; at the turn, make room with the cheapest others or use the room for the dearest.

    One large tensor against several small ones: no sequence of single exchanges gets there.
    """
    c = draw_below(draws, chain.choice.size, chain)
    if not np.isfinite(candidates.rebuild_s[c]):
        return False
    mark = chain.integers[LOGGED]
    change(candidates, c, draw_below(draws, 2, chain) if chain.choice[c] == RECOMPUTE else RECOMPUTE, chain)
    look_at_turn(candidates, budget_bytes, chain)
    i = candidates.dearest.size - 1
    while chain.floats[STALL] > 0.0 and i >= 0:
        if chain.integers[LOGGED] - mark > MOST_FREED:
            return False
        other = candidates.dearest[i]
        i -= 1
        if other != c and chain.choice[other] != RECOMPUTE and draw(draws, chain) < TAKEN:
            other = _alike(candidates, other, draws, chain)
            if other != c:
                change(candidates, other, RECOMPUTE, chain)
                look_at_turn(candidates, budget_bytes, chain)
    _use_room(candidates, c, mark, draws, chain)
    return True


@compiled_part
def _use_room(candidates: Candidates, but: int, mark: int, draws: FloatArray, chain: Chain) -> None:
    """Recompute no more what fits into the slack at the turn, dearest first; leave one tensor alone."""
    room_bytes = chain.integers[SLACK]
    i = 0
    while room_bytes > 0 and i < candidates.dearest.size and chain.integers[LOGGED] - mark < MOST_CHANGED:
        c = candidates.dearest[i]
        i += 1
        fits = chain.choice[c] == RECOMPUTE and candidates.turn_bytes[c] <= room_bytes and c != but
        if fits and draw(draws, chain) < TAKEN:
            c = _alike(candidates, c, draws, chain)
            if c != but:
                room_bytes -= candidates.turn_bytes[c]
                change(candidates, c, draw_below(draws, 2, chain), chain)


@compiled_part
def _repack(candidates: Candidates, budget_bytes: int, draws: FloatArray, chain: Chain) -> bool:
    """Keep some of the swapped tensors, and fill the link again until the turn, with the largest copies that end by then."""
    mark = chain.integers[LOGGED]
    for _ in range(1 + draw_below(draws, 3, chain)):
        for _ in range(TRIES):
            c = draw_below(draws, chain.choice.size, chain)
            if chain.choice[c] == SWAP:
                change(candidates, c, KEEP, chain)
                break
    if chain.integers[LOGGED] == mark or not _drop_late_copies(candidates, mark, draws, chain):
        return False
    look_at_turn(candidates, budget_bytes, chain)
    for i in range(candidates.largest.size):
        if chain.integers[LOGGED] - mark >= MOST_CHANGED:
            break
        c = candidates.largest[i]
        if chain.choice[c] == KEEP and candidates.copy_s[c] <= chain.floats[SPARE] and draw(draws, chain) < TAKEN:
            c = _alike(candidates, c, draws, chain)
            change(candidates, c, SWAP, chain)
            look_at_turn(candidates, budget_bytes, chain)
    return True


@compiled_part
def _drop_late_copies(candidates: Candidates, mark: int, draws: FloatArray, chain: Chain) -> bool:
    """Keep about half of the swapped tensors whose copies end after the turn; return whether they were few."""
    free_s = 0.0
    for c in range(chain.choice.size):
        if chain.choice[c] != SWAP:
            continue
        free_s = max(free_s, candidates.ready_s[c]) + candidates.copy_s[c]
        if free_s > candidates.turn_s and draw(draws, chain) < 0.5:
            if chain.integers[LOGGED] - mark >= MOST_CHANGED:
                return False
            change(candidates, c, KEEP, chain)
    return True
