"""The refined planner's search: annealing on rebuild time and memory at the turn, checked by the event model's engine."""

from __future__ import annotations

import numpy as np

from slackswap.models.compilation import compiled_entry, compiled_part
from slackswap.models.event_model.kernel.columns import (
    DEFAULT,
    FAILED,
    MISSING,
    NOW,
    Log,
    ProblemColumns,
    ScheduleColumns,
    Scratch,
)
from slackswap.models.event_model.kernel.iteration import run_iteration
from slackswap.models.event_model.kernel.lowering import lower
from slackswap.models.plan import RECOMPUTE
from slackswap.models.problem import FloatArray
from slackswap.planners.refined.columns import (
    BEST,
    BEYOND,
    CURSOR,
    ENERGY,
    EVALUATIONS,
    LIMIT,
    LOG_ROOM,
    LOGGED,
    PATIENCE,
    PENDING,
    RESIDENT,
    SAFE_ENERGY,
    SAFE_WORK,
    SLACK,
    SPARE,
    STALL,
    STARTED,
    WORK,
    Candidates,
    Chain,
)
from slackswap.planners.refined.moves import MOST_CHANGED, draw, move, take_back
from slackswap.planners.refined.turn import look_at_turn

MOST_PATIENCE = 32
DOES_NOT_FIT = 100.0  # ideal steps: beyond any plan that fits
CLEARLY = 1e-9  # share of the step by which a plan must be faster to count: less is rounding


@compiled_entry
def anneal(
    problem: ProblemColumns,
    schedule: ScheduleColumns,
    scratch: Scratch,
    log: Log,
    candidates: Candidates,
    budget_bytes: int,
    temperature_s: float,
    hope: float,
    price: FloatArray,
    draws: FloatArray,
    most_evaluations: int,
    chain: Chain,
) -> None:
    """Search on from the state of `chain` until the random numbers `draws` or `most_evaluations` simulations are used up.

    The energy of a plan is its step time less the value of slack at the turn and of spare time on the link: slack is what the
    next recomputation can be taken off with. The step is modelled as the rebuild time and the stall at the turn. A move is
    simulated when it promises a new best plan, or when the plan at hand takes longer than modelled; else several moves are
    simulated together. If the engine does not confirm them, all go back. How many are tried at once follows from how often it
    does.

    Parameters
    ----------
    temperature_s : a move that costs so much is made with probability 1 / e
    hope : share of what the plan at hand takes longer than modelled that any move may be expected to end. At 0 a move must not
        cost more by the model, which mends a plan and leaves its numbers alone. What does not fit is always expected to end.
    price : (2,) seconds per byte of slack, and per second of spare time on the link
    """
    integers, floats = chain.integers, chain.floats
    integers[CURSOR] = 0
    last = integers[EVALUATIONS] + most_evaluations
    if integers[STARTED] == 0:
        _start(candidates, budget_bytes, chain)
    while integers[CURSOR] < draws.size and integers[EVALUATIONS] < last:
        if integers[STARTED] == 1:
            made = _step(candidates, budget_bytes, temperature_s, hope, price, draws, chain)
            if not made or not _is_due(chain):
                continue
        modelled_s, value_s = floats[WORK] + floats[STALL], _value_s(price, chain)
        limit_s = floats[LIMIT] + value_s if floats[BEYOND] > 0.0 else modelled_s + temperature_s
        step_s = _simulate(problem, schedule, scratch, log, candidates, budget_bytes, limit_s, chain)
        integers[PENDING] = 0
        if step_s < np.inf:
            floats[BEYOND] = max(0.0, step_s - modelled_s)
            floats[ENERGY] = step_s - value_s
            integers[PATIENCE] = min(MOST_PATIENCE, 2 * integers[PATIENCE])
            _make_safe(step_s, scratch.integers[FAILED] < 0, chain)
        else:
            take_back(candidates, 0, chain)
            look_at_turn(candidates, budget_bytes, chain)
            floats[WORK], floats[ENERGY] = floats[SAFE_WORK], floats[SAFE_ENERGY]
            integers[PATIENCE] = max(1, integers[PATIENCE] // 2)
        integers[STARTED] = 1


@compiled_part
def _start(candidates: Candidates, budget_bytes: int, chain: Chain) -> None:
    """Count what `decide` then keeps up to date."""
    chain.floats[WORK] = candidates.ideal_s
    chain.integers[RESIDENT] = candidates.turn_allocation_bytes
    for c in range(chain.choice.size):
        if chain.choice[c] == RECOMPUTE:
            chain.floats[WORK] += candidates.rebuild_s[c]
        else:
            chain.integers[RESIDENT] += candidates.turn_bytes[c]
    chain.integers[LOGGED] = 0
    chain.integers[PENDING] = 0
    chain.integers[PATIENCE] = 1
    chain.floats[BEYOND] = np.inf  # not simulated yet
    chain.floats[LIMIT] = np.inf
    look_at_turn(candidates, budget_bytes, chain)


@compiled_part
def _value_s(price: FloatArray, chain: Chain) -> float:
    """What slack at the turn and spare time on the link are worth."""
    return float(price[0] * chain.integers[SLACK] + price[1] * chain.floats[SPARE])


@compiled_part
def _step(
    candidates: Candidates,
    budget_bytes: int,
    temperature_s: float,
    hope: float,
    price: FloatArray,
    draws: FloatArray,
    chain: Chain,
) -> bool:
    """Make a move, or none; return whether it was made."""
    integers, floats = chain.integers, chain.floats
    limit_s = floats[ENERGY] - temperature_s * np.log(1.0 - draw(draws, chain))
    mark, slack_bytes = integers[LOGGED], integers[SLACK]
    work_s, stall_s, spare_s = floats[WORK], floats[STALL], floats[SPARE]
    beyond_s = floats[BEYOND] if floats[BEYOND] < candidates.ideal_s else 0.0
    made = move(candidates, budget_bytes, draws, chain)
    most_value_s = price[0] * budget_bytes + price[1] * candidates.turn_s
    if made and floats[WORK] - most_value_s <= limit_s:
        look_at_turn(candidates, budget_bytes, chain)
        energy_s = floats[WORK] + floats[STALL] + (1.0 - hope) * beyond_s - _value_s(price, chain)
        if energy_s <= limit_s:
            floats[ENERGY], floats[LIMIT] = energy_s, limit_s
            integers[PENDING] += 1
            return True
    take_back(candidates, mark, chain)
    integers[SLACK] = slack_bytes
    floats[WORK], floats[STALL], floats[SPARE] = work_s, stall_s, spare_s
    return False


@compiled_part
def _is_due(chain: Chain) -> bool:
    """Whether to simulate: a plan that may be the best, one of which the turn does not tell all, or after enough moves."""
    integers, floats = chain.integers, chain.floats
    if floats[BEYOND] > 0.0 or floats[WORK] + floats[STALL] < floats[BEST] * (1.0 - CLEARLY):
        return True
    full = integers[LOGGED] > LOG_ROOM - 2 * MOST_CHANGED
    return bool(full or integers[PENDING] >= integers[PATIENCE])


@compiled_part
def _simulate(
    problem: ProblemColumns,
    schedule: ScheduleColumns,
    scratch: Scratch,
    log: Log,
    candidates: Candidates,
    budget_bytes: int,
    limit_s: float,
    chain: Chain,
) -> float:
    """Step time of the plan at hand; infinite if it is above `limit_s`. What does not fit costs more than all that does."""
    chain.integers[EVALUATIONS] += 1
    for c in range(chain.choice.size):
        chain.decisions[candidates.tensor[c]] = chain.choice[c]
    lower(problem, chain.decisions, schedule, scratch)
    if run_iteration(problem, schedule, budget_bytes, DEFAULT, scratch, log, limit_s - chain.floats[WORK]):
        return float(scratch.floats[NOW])
    if scratch.integers[FAILED] < 0:
        return np.inf
    left = 1.0 - scratch.integers[FAILED] / schedule.counts[0]
    missing_s = scratch.integers[MISSING] / problem.bytes_per_s[0]
    cost_s = (DOES_NOT_FIT + left) * candidates.ideal_s + missing_s
    return cost_s if cost_s <= limit_s else np.inf


@compiled_part
def _make_safe(step_s: float, fits: bool, chain: Chain) -> None:
    """The plan simulated last is where the search returns to; it may be the best."""
    floats = chain.floats
    floats[SAFE_WORK], floats[SAFE_ENERGY] = floats[WORK], floats[ENERGY]
    chain.integers[LOGGED] = 0
    if fits and step_s < floats[BEST] * (1.0 - CLEARLY):
        floats[BEST] = step_s
        for t in range(chain.best.size):
            chain.best[t] = chain.decisions[t]
