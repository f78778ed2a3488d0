"""What the refined planner's compiled search reads and writes.

A *candidate* is a saved tensor, in order of production; the others are kept. The *turn* is the start of the first backward
operator. Up to there nothing is rebuilt or fetched, so that what is on the device follows from the decisions and from the D2H
queue alone (`refined_turn`). Where the link is further behind at an earlier instant, that is looked at as well, as if it were
the turn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from slackswap.models.plan import DecisionArray
from slackswap.models.problem import FloatArray, IntArray, Problem

# An end this close to the turn still counts (rule 10 of the event model takes a nanosecond as one instant).
_SAME_INSTANT_S = 0.5e-9
LOG_ROOM = 4096


class Candidates(NamedTuple):
    """Facts of the n candidates.

    Attributes
    ----------
    tensor : (n,) index of each
    turn_bytes : (n,) bytes that swapping or recomputing it frees at the turn; 0 for those that are there whatever was decided,
        because the operator at the turn or a forward one after it reads them, and for those that are not there yet
    ready_s, copy_s : (n,) end of the producer in the ideal step; time on the D2H engine
    group, group_start, members : candidates of equal bytes and rebuild, in CSR form; group i is
        ``members[group_start[i]:group_start[i + 1]]``
    dearest, largest : candidates that free bytes at the turn: those with a rebuild, most seconds per byte first; all, most bytes
        first
    """

    tensor: IntArray
    turn_bytes: IntArray
    rebuild_s: FloatArray
    ready_s: FloatArray
    copy_s: FloatArray
    group: IntArray
    group_start: IntArray
    members: IntArray
    dearest: IntArray
    largest: IntArray
    ideal_s: float
    turn_s: float
    turn_allocation_bytes: int
    s_per_byte: float


class Chain(NamedTuple):
    """State of one search; `choice` changes with every move, the log takes moves back."""

    choice: DecisionArray  # (n,) decision of each candidate
    decisions: DecisionArray  # (m,) plan that was simulated last
    best: DecisionArray  # (m,) fastest plan simulated
    changed: IntArray  # log: candidates, and their decisions before
    before: DecisionArray
    integers: IntArray
    floats: FloatArray


# Chain.integers
CURSOR, LOGGED, RESIDENT, SLACK, EVALUATIONS, PATIENCE, PENDING, STARTED, N_INTEGERS = 0, 1, 2, 3, 4, 5, 6, 7, 8
# Chain.floats; those from `SAFE_WORK` on: the state of the last plan simulated, to return to
WORK, STALL, SPARE, BEYOND, ENERGY, LIMIT, BEST, SAFE_WORK, SAFE_ENERGY, N_FLOATS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9


def turns(problem: Problem, budget_bytes: int) -> list[int]:
    """Return the operators at whose start to look at memory, of a problem that has a backward pass.

    The first is the turn of the passes. A second may be the forward operator with most bytes in use beyond what the link can
    have copied out by then, of those that need more than the budget.
    """
    upto = problem.n_forward + 1
    used_bytes = _used_bytes(problem)[:upto]
    behind_bytes = used_bytes - problem.link.d2h_bytes_per_s * _start_s(problem)[:upto]
    behind_bytes[:-1][used_bytes[:-1] <= budget_bytes] = -np.inf
    furthest = int(np.argmax(behind_bytes))
    return [problem.n_forward] if behind_bytes[furthest] <= behind_bytes[-1] else [problem.n_forward, furthest]


def candidates_of(problem: Problem, turn: int) -> Candidates:
    """Return the facts for a look at the start of operator `turn`."""
    tensor = np.flatnonzero(problem.saved).astype(np.int64)
    n_bytes, rebuild_s = problem.tensor_bytes[tensor], problem.rebuild_s[tensor]
    start_s, used_bytes = _start_s(problem), _used_bytes(problem)
    may_leave = (problem.last_forward_use[tensor] < turn) & (problem.first_backward_reader[tensor] > turn)
    turn_bytes = np.where(may_leave, n_bytes, 0).astype(np.int64)
    group = _alike(np.stack([turn_bytes.astype(np.float64), n_bytes.astype(np.float64), rebuild_s], axis=1))
    frees = np.flatnonzero(turn_bytes > 0)
    rebuilt = frees[np.isfinite(rebuild_s[frees])]
    return Candidates(
        tensor=tensor,
        turn_bytes=turn_bytes,
        rebuild_s=rebuild_s.copy(),
        ready_s=start_s[problem.producer[tensor] + 1],
        copy_s=problem.link.latency_s + n_bytes / problem.link.d2h_bytes_per_s,
        group=group,
        group_start=np.concatenate(([0], np.cumsum(np.bincount(group)))).astype(np.int64),
        members=np.argsort(group, kind="stable").astype(np.int64),
        dearest=rebuilt[np.argsort(-rebuild_s[rebuilt] / turn_bytes[rebuilt], kind="stable")].astype(np.int64),
        largest=frees[np.argsort(-turn_bytes[frees], kind="stable")].astype(np.int64),
        ideal_s=problem.ideal_s,
        turn_s=float(start_s[turn]) + _SAME_INSTANT_S,
        turn_allocation_bytes=int(used_bytes[turn] - turn_bytes.sum()),
        s_per_byte=1.0 / problem.link.d2h_bytes_per_s,
    )


def _used_bytes(problem: Problem) -> IntArray:
    """(n,) bytes in use while each operator runs, if everything is kept."""
    changes = np.zeros(problem.n_operators + 1, np.int64)
    np.add.at(changes, problem.producer, problem.tensor_bytes)
    np.add.at(changes, problem.last_use + 1, -problem.tensor_bytes)
    used_bytes: IntArray = np.cumsum(changes)[:-1] + problem.workspace_bytes
    return used_bytes


def _start_s(problem: Problem) -> FloatArray:
    """(n + 1,) start of each operator in the ideal step, and its end."""
    return np.concatenate(([0.0], np.cumsum(problem.duration_s)))


def _alike(rows: FloatArray) -> IntArray:
    """(n,) number of each row among the different ones."""
    return np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def new_chain(problem: Problem, candidates: Candidates) -> Chain:
    """Return the state of a search that has not started."""
    n, m = candidates.tensor.size, problem.n_tensors
    chain = Chain(
        choice=np.zeros(n, np.int8),
        decisions=np.zeros(m, np.int8),
        best=np.zeros(m, np.int8),
        changed=np.zeros(LOG_ROOM, np.int64),
        before=np.zeros(LOG_ROOM, np.int8),
        integers=np.zeros(N_INTEGERS, np.int64),
        floats=np.zeros(N_FLOATS),
    )
    chain.floats[BEST] = np.inf
    return chain


def saved_per_byte_s(candidates: Candidates, budget_bytes: int, bytes_per_s: float) -> float:
    """Rebuild time that a byte saves at the turn, where memory and link are full; 0 where they never are."""
    room_bytes = budget_bytes - candidates.turn_allocation_bytes + candidates.turn_s * bytes_per_s
    room_bytes -= int(candidates.turn_bytes[~np.isfinite(candidates.rebuild_s)].sum())
    full = int(np.searchsorted(np.cumsum(candidates.turn_bytes[candidates.dearest]), room_bytes, side="right"))
    if full == candidates.dearest.size:
        return 0.0
    c = candidates.dearest[full]
    return float(candidates.rebuild_s[c] / candidates.turn_bytes[c])
