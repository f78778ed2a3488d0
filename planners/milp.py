"""The MILP planner: formulation A for whole tensors, its plans repaired in the event model."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from slackswap.models.event_model import Score, simulate, simulate_many
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, DecisionArray, Plan
from slackswap.models.problem import Problem
from slackswap.planners.bound.facts import BoundFacts
from slackswap.planners.bound.model import ROUNDING
from slackswap.planners.bound.points import first_points
from slackswap.planners.counted_plans import counted_plans
from slackswap.planners.linear_solver import solve
from slackswap.planners.link_budget_model import link_budget_model
from slackswap.planners.lower_bound import GAP_UNITS, Bound, lower_bound
from slackswap.planners.protocol import Improvement, Outcome, Status, Supports
from slackswap.planners.slackswap import SLACKSWAP

ROUND_SHARE = 0.2  # of the time, for one model; what stalls in its plans is added to the next
BOUND_SHARE = 0.5  # of the time, for the first bound
MAX_ROUNDS = 40


@dataclass(frozen=True)
class Milp:
    """Whole tensors swapped, recomputed and kept at least cost (formulation A), solved by HiGHS through PuLP.

    The model looks at a plan at a few operators (`bound_model`). Its counts become plans, the event model replays them, and the
    operator that stalls or does not fit in the best of them is looked at too in the next round. The best plan seen is
    returned, SlackSwap's among them, which also warm-starts the first solve.

    The lower bound is that of the models; the status is optimal where the best plan meets it within the solver's tolerances.
    """

    name: str = "milp"
    description: str = "the link-budget MILP (PuLP, HiGHS), its plans repaired in the event model; certifies a bound"
    policy: str = "default"
    supports: Supports = Supports()
    solver: str = "highs"
    default_time_limit_s: float = 30.0

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Plan until the bound is met, nothing is left to look at, or time is up."""
        limit_s = self.default_time_limit_s if time_limit_s is None else time_limit_s
        began_s = time.perf_counter()
        rounds = _Rounds(problem, budget_bytes, self.solver, began_s, began_s + limit_s, ROUND_SHARE * limit_s)
        first = SLACKSWAP.plan(problem, budget_bytes, rng=rng, time_limit_s=limit_s)
        if isinstance(first.plan, Plan):
            rounds.replay(first.plan.decisions[None])
        rounds.convert()
        bound = lower_bound(
            problem,
            budget_bytes,
            solver=self.solver,
            time_limit_s=BOUND_SHARE * limit_s,
            known_step_s=rounds.best_s,
        )
        if bound.unavailable:
            return Outcome(Status.UNAVAILABLE, reason=f"{bound.solver} is not installed")
        rounds.begin(bound)
        rounds.run()
        return rounds.outcome(first)


@dataclass
class _Rounds:
    problem: Problem
    budget_bytes: int
    solver: str
    began_s: float
    ends_s: float
    round_s: float
    bound_s: float = 0.0
    best: DecisionArray | None = None
    best_s: float = math.inf
    evaluations: int = 0
    points: set[int] = field(default_factory=set)
    facts: BoundFacts = field(init=False)
    reserved_bytes: dict[int, int] = field(default_factory=dict)
    history: list[Improvement] = field(default_factory=list)
    solver_name: str = ""
    solver_version: str = ""

    def __post_init__(self) -> None:
        self.facts = BoundFacts(self.problem)

    def begin(self, bound: Bound) -> None:
        self.bound_s = bound.step_s
        if bound.solver_version:  # else there was nothing to solve
            self.solver_name, self.solver_version = bound.solver, bound.solver_version
        self.points = first_points(self.facts)
        if bound.model is not None:
            self.replay(counted_plans(bound.model))

    def run(self) -> None:
        for _ in range(MAX_ROUNDS):
            left_s = self.ends_s - time.perf_counter()
            if self.met() or math.isinf(self.bound_s) or left_s <= 0.02:
                return
            model = link_budget_model(
                self.facts, self.budget_bytes, sorted(self.points), reserved_bytes=self.reserved_bytes
            )
            answer = solve(
                model.model,
                solver=self.solver,
                time_limit_s=min(self.round_s, left_s),
                gap_abs=GAP_UNITS,
                start=[] if self.best is None else model.start(self.best),
            )
            if not self.reserved_bytes:  # else it is no bound
                self.bound_s = (
                    max(self.bound_s, model.step_s(answer.bound)) if answer.bound > -math.inf else self.bound_s
                )
            if answer.objective is None or not self.tighten(self.replay(counted_plans(model))):
                return
            self.convert()

    def tighten(self, trouble: _Trouble | None) -> bool:
        """Let the next model see what this one's best plan stumbled over; return whether there was anything."""
        if trouble is None:
            return False
        if trouble.operator in self.points:
            before = self.reserved_bytes.get(trouble.operator, 0)
            self.reserved_bytes[trouble.operator] = before + max(trouble.n_bytes, before)
        self.points.add(trouble.operator)
        return True

    def convert(self) -> None:
        """Change one tensor of the best plan at a time, for as long as that helps."""
        ends_s = min(self.ends_s, time.perf_counter() + self.round_s)
        while self.best is not None and not self.met() and time.perf_counter() < ends_s:
            before_s = self.best_s
            self.replay(single_changes(self.problem, self.best))
            if self.best_s >= before_s:
                return

    def replay(self, rows: DecisionArray) -> _Trouble | None:
        """Score plans and keep the best; return what the best of these stumbles over."""
        if not len(rows):
            return None
        table = simulate_many(self.problem, rows, self.budget_bytes)
        self.evaluations += len(rows)
        best = table.best()
        if best is not None and table.step_s[best] < self.best_s:
            self.best, self.best_s = rows[best], float(table.step_s[best])
            self.history.append(Improvement(time.perf_counter() - self.began_s, self.evaluations, self.best_s))
        closest = int(np.argmin(table.missing_bytes)) if best is None else best
        score = simulate(self.problem, Plan(rows[closest]), self.budget_bytes, timeline=True)
        return _trouble(self.problem, score)

    def met(self) -> bool:
        """Whether the best plan meets the bound within what the bound gives away for rounding."""
        return self.best_s <= self.bound_s * (1.0 + 3 * ROUNDING)

    def outcome(self, first: Outcome) -> Outcome:
        evaluations = self.evaluations + first.evaluations
        if self.best is None and first.infeasibility is not None:
            return replace(first, evaluations=evaluations)
        outcome = Outcome(
            Status.TIME_LIMIT,
            lower_bound_s=self.bound_s if 0 < self.bound_s < math.inf else None,
            evaluations=evaluations,
            solver=self.solver_name,
            solver_version=self.solver_version,
            history=tuple(self.history),
        )
        if self.best is None:
            return outcome
        status = Status.OPTIMAL if self.met() else Status.FEASIBLE
        return replace(outcome, status=status, plan=Plan(self.best), claimed_step_s=self.best_s)


class _Trouble(NamedTuple):
    """The operator at which a plan waits longest or does not fit, and the bytes that would have helped."""

    operator: int
    n_bytes: int


def _trouble(problem: Problem, score: Score) -> _Trouble | None:
    lanes = score.timeline
    if lanes is None:
        return None
    operators = set(problem.operator_names)
    wait_s = lanes.input_wait_s + lanes.memory_wait_s
    if score.fits and (not wait_s.size or wait_s.max() <= 0):
        return None
    at, n_bytes = len(lanes.step_names), score.missing_bytes
    if score.fits:
        at = int(np.argmax(wait_s))
        n_bytes = int(wait_s[at] * problem.link.d2h_bytes_per_s)
    # A rebuild counts for the operator that it precedes.
    ran = sum(name in operators for name in lanes.step_names[:at])
    return _Trouble(min(ran, problem.n_operators - 1), max(1, n_bytes))


def single_changes(problem: Problem, decisions: DecisionArray) -> DecisionArray:
    """Return (k, m) every plan that differs in one tensor that matters."""
    tensors = np.flatnonzero(problem.saved & (problem.tensor_bytes > 0))
    changes = [
        (t, decision)
        for t in tensors.tolist()
        for decision in (KEEP, SWAP, RECOMPUTE)
        if decision != decisions[t] and (decision != RECOMPUTE or problem.rebuildable[t])
    ]
    rows = np.repeat(decisions[None], len(changes), axis=0)
    for row, (t, decision) in zip(rows, changes, strict=True):
        row[t] = decision
    return rows
