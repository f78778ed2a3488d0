"""Certified lower bounds for the cells of a shootout, each computed once."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NamedTuple

from slackswap.models.problem import Problem

# Problem and budget in bytes -> no plan has a shorter step, in seconds: infinite where none fits, None where nothing is proved.
BoundFunction = Callable[[Problem, int], float | None]

BOUND_LIMIT_S = 1.0
_known_s: weakref.WeakKeyDictionary[Problem, dict[_Effort, float]] = weakref.WeakKeyDictionary()


class _Effort(NamedTuple):
    """Which bound of a problem."""

    budget_bytes: int
    whole: bool
    time_limit_s: float | None = None


def certified_bound_s(problem: Problem, budget_bytes: int, time_limit_s: float = BOUND_LIMIT_S) -> float:
    """Return the tightest bound that the solver proves within a time limit.

    Covers every plan, a decision per tensor, under every runtime policy; see `slackswap.planners.lower_bound`.
    """
    return _bound_s(problem, _Effort(budget_bytes, True, time_limit_s))


def relaxed_bound_s(problem: Problem, budget_bytes: int) -> float:
    """Return the bound of the linear relaxation: a little lower, ten times as fast, and the same in every run."""
    return _bound_s(problem, _Effort(budget_bytes, False))


def _bound_s(problem: Problem, effort: _Effort) -> float:
    known_s = _known_s.setdefault(problem, {})
    if effort not in known_s:
        known_s[effort] = _compute_s(problem, effort)
    return known_s[effort]


def _compute_s(problem: Problem, effort: _Effort) -> float:
    from slackswap.planners.lower_bound import lower_bound

    budget_bytes, whole, time_limit_s = effort
    return float(lower_bound(problem, budget_bytes, whole=whole, time_limit_s=time_limit_s).step_s)
