"""Memory at the turn from the forward to the backward pass, without a simulation."""

from __future__ import annotations

from slackswap.models.compilation import compiled_part
from slackswap.models.plan import RECOMPUTE, SWAP
from slackswap.planners.refined.columns import RESIDENT, SLACK, SPARE, STALL, WORK, Candidates, Chain

MISSING_BYTE = 10.0  # as bad as so many bytes that have to be copied


@compiled_part
def look_at_turn(candidates: Candidates, budget_bytes: int, chain: Chain) -> None:
    """Find out how the first backward operator gets its memory.

    When it starts, everything that was not recomputed is on the device, except swapped tensors whose whole copy has ended
    (rules 2 and 5 of the event model); the queue is first in, first out. A plan that lacks memory there waits for copies, no
    matter what it does elsewhere: earlier stalls only delay them. Sets `SLACK` (bytes left over), `STALL` (how long compute
    waits at least) and `SPARE` (how long before the turn the last copy ended that made it). A plan that does not fit however
    long it waits is charged for what it lacks, so that a search sees which way is out.
    """
    over_bytes = chain.integers[RESIDENT] - budget_bytes
    free_s, stall_s, spare_s = 0.0, 0.0, candidates.turn_s
    for c in range(chain.choice.size):
        if chain.choice[c] != SWAP:
            continue
        free_s = max(free_s, candidates.ready_s[c]) + candidates.copy_s[c]
        if free_s <= candidates.turn_s:
            spare_s = candidates.turn_s - free_s
        elif over_bytes > 0:
            stall_s = free_s - candidates.turn_s
        else:
            break
        over_bytes -= candidates.turn_bytes[c]
    chain.integers[SLACK] = max(0, -over_bytes) if stall_s == 0.0 else 0
    if over_bytes > 0:
        stall_s += MISSING_BYTE * over_bytes * candidates.s_per_byte
    chain.floats[STALL] = stall_s
    chain.floats[SPARE] = spare_s


@compiled_part
def decide(candidates: Candidates, c: int, decision: int, chain: Chain) -> None:
    """Change a decision, and with it the rebuild time and what is on the device at the turn."""
    if chain.choice[c] == RECOMPUTE:
        chain.floats[WORK] -= candidates.rebuild_s[c]
        chain.integers[RESIDENT] += candidates.turn_bytes[c]
    if decision == RECOMPUTE:
        chain.floats[WORK] += candidates.rebuild_s[c]
        chain.integers[RESIDENT] -= candidates.turn_bytes[c]
    chain.choice[c] = decision
