"""A certified lower bound on the step time of every plan within a budget (formulation A).

`bound_model` holds the rows and why they hold. The bound looks at a few operators first, asks where the plan it imagines would
lack memory or time, looks there too, and at last counts whole tensors.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes
from slackswap.models.problem import FloatArray, Problem
from slackswap.planners.bound.facts import BoundFacts
from slackswap.planners.bound.model import BoundModel
from slackswap.planners.bound.points import first_points, shortage
from slackswap.planners.linear_solver import SOLVERS, Answer, Verdict, impossible, solve
from slackswap.planners.link_budget_model import link_budget_model
from slackswap.planners.memory_floor import PLANS, memory_floor

MAX_POINTS = 48
FEW_OPERATORS = 64  # up to so many, all are points
PROBING_S, PROBING_SHARE = 8.0, 0.3  # with so much time, that share of it goes into fixing admissions
NEGLIGIBLE = 0.005  # of the peak: where all operators are points, smaller tensors are gone at no cost
WHOLE_S = 0.6  # time for whole numbers where the caller sets no limit
GAP_UNITS = 0.004  # 4e-6 of the ideal step


@dataclass(frozen=True, eq=False)
class Bound:
    """What is proved of every plan within a budget, under every runtime policy.

    Attributes
    ----------
    step_s : no plan has a shorter step; infinite where no plan fits, the ideal step where nothing better is proved
    relaxed_s : the same from the linear relaxation alone
    seconds : time that it took
    points : operators at which plans were looked at
    swap, recompute : (m,) share of each tensor that the model's best solution swaps and recomputes; alike tensors share
    solver, solver_version : who proved it: a solver, or the plain fact that everything fits (``peak``) or that not even what one
        operator needs at once does (``memory floor``)
    model : the last one solved; its classes hold the counts of the solution
    unavailable : the solver is missing: the ideal step is all that bounds
    """

    step_s: float
    relaxed_s: float
    seconds: float
    solver: str
    solver_version: str
    points: tuple[int, ...] = ()
    swap: FloatArray = field(default_factory=lambda: np.zeros(0))
    recompute: FloatArray = field(default_factory=lambda: np.zeros(0))
    model: BoundModel | None = None
    unavailable: bool = False

    @property
    def infeasible(self) -> bool:
        """Whether it is proved that no plan fits."""
        return math.isinf(self.step_s)


def lower_bound(
    problem: Problem,
    budget_bytes: int,
    *,
    whole: bool = True,
    time_limit_s: float | None = None,
    known_step_s: float = math.inf,
    solver: str = "highs",
) -> Bound:
    """Return a lower bound on the step time of every plan (keep, swap or recompute per tensor) within `budget_bytes`.

    Parameters
    ----------
    whole : whether to count whole tensors after the linear relaxation, which tightens the bound
    time_limit_s : for all of it; whatever is proved by then counts. Without one, whole numbers get half a second.
    known_step_s : step that some plan is known to take, as the event model measured it; it makes proofs quicker
    solver : ``highs`` or ``cbc``

    Raises
    ------
    InputError
        Unknown solver.
    """
    if solver not in SOLVERS:
        raise InputError(f"'{solver}' is not a solver: use {' or '.join(SOLVERS)}", place="solver")
    began_s = time.perf_counter()
    nothing = np.zeros(problem.n_tensors)
    if budget_bytes >= peak_bytes(problem):
        return Bound(problem.ideal_s, problem.ideal_s, time.perf_counter() - began_s, "peak", "", (), nothing, nothing)
    if budget_bytes < memory_floor(problem, PLANS).n_bytes:
        return Bound(math.inf, math.inf, time.perf_counter() - began_s, "memory floor", "", (), nothing, nothing)
    search = _Search(BoundFacts(problem), budget_bytes, solver, began_s, time_limit_s, known_step_s)
    search.relax()
    if whole:
        search.count_whole()
    return search.result()


@dataclass
class _Search:
    facts: BoundFacts
    budget_bytes: int
    solver: str
    began_s: float
    time_limit_s: float | None
    known_s: float
    relaxed_s: float = 0.0
    whole_s: float = 0.0
    answer: Answer | None = None
    model: BoundModel | None = None
    shares: tuple[FloatArray, FloatArray] | None = None

    def __post_init__(self) -> None:
        self.relaxed_s = self.facts.problem.ideal_s
        self.points = first_points(self.facts)
        self.few = frozenset(self.points)

    def left_s(self) -> float | None:
        if self.time_limit_s is None:
            return None
        return self.time_limit_s - (time.perf_counter() - self.began_s)

    def relax(self) -> None:
        """Solve the relaxation, and look where its plan would lack something, until it lacks nothing."""
        while True:
            model = link_budget_model(self.facts, self.budget_bytes, sorted(self.points))
            answer = solve(model.model, solver=self.solver, relaxed=True, time_limit_s=self.left_s())
            self.answer = answer
            if answer.verdict is not Verdict.OPTIMAL:
                return
            self.model, self.shares = model, model.fractions()
            self.relaxed_s = max(self.relaxed_s, model.step_s(answer.bound))
            more = self._look_at(model)
            if more is None or len(self.points) >= MAX_POINTS:
                return
            self.points.add(more)

    def _look_at(self, model: BoundModel) -> int | None:
        problem = self.facts.problem
        swap, recompute = model.fractions()
        delays = [float(delay.varValue or 0.0) / model.second for delay in model.delay]
        ends = problem.n_operators
        delay_s = np.interp(np.arange(ends + 1), [*model.points, ends], [*delays, delays[-1]])
        lacks = shortage(self.facts, self.budget_bytes, swap, recompute, delay_s)
        return lacks.worst(self.points, 1e-6 * self.budget_bytes + 1.0, 1e-6 * problem.ideal_s)

    def count_whole(self) -> None:
        """Solve for whole tensors: at the first points, where many are alike and proofs are quick, then at all of them."""
        ends_s = time.perf_counter() + (WHOLE_S if self.time_limit_s is None else self.left_s() or 0.0)
        tries = [(self.facts, self.few), (self.facts, frozenset(self.points))]
        if self.facts.problem.n_operators <= FEW_OPERATORS:
            everywhere = frozenset(range(self.facts.problem.n_operators))
            tries[1] = (BoundFacts(self.facts.problem, self._negligible_bytes()), everywhere)
        for facts, points in tries:
            self._count_whole(facts, points, ends_s - time.perf_counter())

    def _negligible_bytes(self) -> int:
        return max(1, int(NEGLIGIBLE * int(self.facts.most_bytes.max())))

    def _count_whole(self, facts: BoundFacts, points: frozenset[int], limit_s: float) -> None:
        ends_s = time.perf_counter() + limit_s
        model = link_budget_model(facts, self.budget_bytes, sorted(points), below_s=self.known_s)
        if self.solver == "highs" and limit_s >= PROBING_S:
            for admission in impossible(model.model, model.admissions, PROBING_SHARE * limit_s):
                admission.upBound = 0
        limit_s = ends_s - time.perf_counter()
        answer = solve(model.model, solver=self.solver, time_limit_s=limit_s, gap_abs=GAP_UNITS)
        if answer.verdict is Verdict.INFEASIBLE:
            # From the floor on some plan fits (`memory_floor`): then none is below the known step.
            self.whole_s = max(self.whole_s, self.known_s if math.isfinite(self.known_s) else 0.0)
        elif math.isfinite(answer.bound):
            self.whole_s = max(self.whole_s, min(self.known_s, model.step_s(answer.bound)))
        if answer.objective is not None:
            self.answer, self.model, self.shares = answer, model, model.fractions()

    def result(self) -> Bound:
        problem, answer = self.facts.problem, self.answer
        swap, recompute = self.shares or (np.zeros(problem.n_tensors), np.zeros(problem.n_tensors))
        return Bound(
            step_s=max(self.relaxed_s, self.whole_s),
            relaxed_s=self.relaxed_s,
            seconds=time.perf_counter() - self.began_s,
            solver="" if answer is None else answer.solver,
            solver_version="" if answer is None else answer.version,
            points=tuple(sorted(self.points)),
            swap=swap,
            recompute=recompute,
            model=self.model,
            unavailable=answer is not None and answer.verdict is Verdict.UNAVAILABLE,
        )
