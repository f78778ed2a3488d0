"""What a planner is, and what it returns."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import Score, simulate
from slackswap.models.event_model.kernel.columns import UNLIMITED_BYTES
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule
from slackswap.planners.infeasibility import Infeasibility as Infeasibility  # part of the protocol
from slackswap.planners.infeasibility import with_known_facts
from slackswap.planners.memory_floor import Space, memory_floor, plan_floor_bytes
from slackswap.planners.warm_up import warm_up


class Status(StrEnum):
    """How a planner ended."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    TIME_LIMIT = "time_limit"
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Improvement:
    """One point of an anytime curve: the best step known after so many seconds and scored plans."""

    seconds: float
    evaluations: int
    step_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a planner returns. The event model judges `plan`; `claimed_step_s` is the planner's own figure beside it.

    Attributes
    ----------
    lower_bound_s : certified lower bound on the step time of every plan within the budget, or None
    claimed_bound_s : the solver's own bound within the planner's own space, or None: a claim, like `claimed_step_s`
    seconds, seed : filled in by `run_planner`
    evaluations : plans that the planner scored
    infeasibility : set where `status` is infeasible
    reason : why it is unavailable: a missing solver, a problem that is too large for it
    history : each improvement of a planner that searches, first to last
    """

    status: Status
    plan: Plan | Schedule | None = None
    lower_bound_s: float | None = None
    claimed_step_s: float | None = None
    claimed_bound_s: float | None = None
    evaluations: int = 0
    seconds: float = 0.0
    seed: int | None = None
    solver: str = ""
    solver_version: str = ""
    infeasibility: Infeasibility | None = None
    history: tuple[Improvement, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Supports:
    """Facts about what a planner can do; tables and tests read them.

    Attributes
    ----------
    swaps, recomputes : whether its plans may do so
    randomized : whether the result depends on the seed
    any_budget : whether it plans below the keep-everything peak at all
    needs_blocks : whether it frees nothing in a problem that names no blocks
    needs_heavy_kinds : whether it frees nothing in a problem without operators of a heavy kind
    always_frees : whether it frees memory even where everything fits
    anytime : whether it searches until its limit; such a planner has a field ``evaluation_limit``, under which the result
        depends on the seed alone
    tiny_only : whether it plans only where few tensors can be decided
    schedules : whether it may return a `Schedule` that no plan lowers to, with several rebuilds of one tensor, say
    """

    swaps: bool = True
    recomputes: bool = True
    randomized: bool = False
    any_budget: bool = True
    needs_blocks: bool = False
    needs_heavy_kinds: bool = False
    always_frees: bool = False
    anytime: bool = False
    tiny_only: bool = False
    schedules: bool = False

    @property
    def space(self) -> Space:
        """What it may return: where a proof of infeasibility has to hold."""
        return Space(self.swaps, self.recomputes, self.schedules)


@runtime_checkable
class Planner(Protocol):
    """An interchangeable solver: a problem and a budget in, a plan out.

    `policy` names the runtime policy of the event model that the plan is made for.
    """

    @property
    def name(self) -> str:
        """Name in tables and on the command line."""
        ...

    @property
    def description(self) -> str:
        """One line for people."""
        ...

    @property
    def supports(self) -> Supports:
        """What it can do."""
        ...

    @property
    def policy(self) -> str:
        """Runtime policy under which its plans run."""
        ...

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Plan one iteration; an infeasible budget is an outcome, not an error."""
        ...


PlannerFunction = Callable[[Problem, int], "Plan | Schedule | Outcome | None"]


@dataclass(frozen=True)
class FunctionPlanner:
    """A bare function ``(problem, budget_bytes) -> Plan | Schedule | Outcome | None`` as a planner."""

    function: PlannerFunction
    policy: str = "default"
    supports: Supports = Supports(schedules=True)

    @property
    def name(self) -> str:
        """The function's name, with dashes."""
        return str(getattr(self.function, "__name__", "function")).strip("<>").replace("_", "-")

    @property
    def description(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or "a function of the user").splitlines()[0]

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Call the function; no plan, or one that does not fit, is infeasible."""
        del rng, time_limit_s  # a bare function takes neither
        result = self.function(problem, budget_bytes)
        if isinstance(result, Outcome):
            return result
        if result is None:
            return infeasible(problem, Plan.keep_everything(problem), budget_bytes, policy=self.policy)
        if not isinstance(result, Plan | Schedule):
            raise InputError(
                f"returned {type(result).__name__}: return a Plan, a Schedule, an Outcome or None", source=self.name
            )
        return judged(problem, result, budget_bytes, policy=self.policy)


def as_planner(planner: Planner | PlannerFunction) -> Planner:
    """Return a planner; a bare function is wrapped.

    Raises
    ------
    InputError
        It is neither.
    """
    if isinstance(planner, Planner):
        return planner
    if callable(planner):
        return FunctionPlanner(planner)
    raise InputError(
        f"{type(planner).__name__} is not a planner: pass an object with `plan`, or a function", place="planner"
    )


def run_planner(
    planner: Planner | PlannerFunction,
    problem: Problem,
    budget_bytes: int,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
) -> Outcome:
    """Run one planner on one problem and budget, timed after compilation, with its own generator seeded by `seed`.

    Where it finds no plan, what is known and proved about such budgets is added, outside of its time (see `explained`).
    """
    ready = as_planner(planner)
    warm_up()
    began_s = time.perf_counter()
    budget_bytes = min(int(budget_bytes), UNLIMITED_BYTES)
    outcome = ready.plan(problem, budget_bytes, rng=np.random.default_rng(seed), time_limit_s=time_limit_s)
    seconds = time.perf_counter() - began_s
    outcome = replace(outcome, seconds=seconds, seed=seed if ready.supports.randomized else None)
    return explained(ready, problem, budget_bytes, outcome)


def explained(planner: Planner, problem: Problem, budget_bytes: int, outcome: Outcome) -> Outcome:
    """Add to an infeasible outcome what is known without its planner.

    A planner whose time was over below the memory floor of its space has not failed: no plan fits, and the outcome says so.
    """
    space = planner.supports.space
    too_low = outcome.status is Status.TIME_LIMIT and budget_bytes < memory_floor(problem, space).n_bytes
    if outcome.plan is not None or not (too_low or outcome.status is Status.INFEASIBLE):
        return outcome
    why = with_known_facts(problem, budget_bytes, space, planner.policy, outcome.infeasibility)
    return replace(outcome, status=Status.INFEASIBLE, infeasibility=why)


def without_search(problem: Problem, budget_bytes: int) -> Outcome | None:
    """Answer where the plan that keeps everything fits, since none is faster, or where no plan at all does."""
    keeping = Plan.keep_everything(problem)
    score = simulate(problem, keeping, budget_bytes)
    if score.fits:
        return Outcome(
            Status.OPTIMAL, keeping, lower_bound_s=problem.ideal_s, claimed_step_s=score.step_s, evaluations=1
        )
    if budget_bytes < plan_floor_bytes(problem):
        return infeasible(problem, Plan.swap_everything(problem), budget_bytes, evaluations=2)
    return None


def judged(
    problem: Problem, plan: Plan | Schedule, budget_bytes: int, *, policy: str = "default", evaluations: int = 1
) -> Outcome:
    """Return the outcome of a finished plan: feasible where the event model can run it, else infeasible with the place."""
    score = simulate(problem, plan, budget_bytes, policy=policy)
    if score.fits:
        return Outcome(Status.FEASIBLE, plan, claimed_step_s=score.step_s, evaluations=evaluations)
    return infeasible(problem, plan, budget_bytes, policy=policy, evaluations=evaluations, score=score)


def infeasible(
    problem: Problem,
    plan: Plan | Schedule,
    budget_bytes: int,
    *,
    policy: str = "default",
    evaluations: int = 1,
    smallest_feasible_bytes: int | None = None,
    reason: str = "",
    score: Score | None = None,
) -> Outcome:
    """Return the outcome of a budget for which the best try, `plan`, does not fit."""
    tried = score or simulate(problem, plan, budget_bytes, policy=policy)
    if smallest_feasible_bytes is None:
        # Without swaps the peak does not depend on the budget, so this budget is known to do.
        alone = simulate(problem, plan, math.inf, policy=policy)
        smallest_feasible_bytes = alone.peak_bytes if alone.d2h_bytes == 0 and alone.fits else None
    return Outcome(
        Status.INFEASIBLE,
        evaluations=evaluations,
        infeasibility=Infeasibility(
            tried.failed_step or "", tried.missing_bytes, smallest_feasible_bytes, reason=reason
        ),
    )
