"""What `checkmate` knows by now: the best schedule, judged by the event model, and what solvers have proved."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from slackswap.models.event_model import peak_bytes, simulate
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule
from slackswap.planners.checkmate.finding import Finding
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import Steps, schedule_of, without_waste
from slackswap.planners.infeasibility import Infeasibility
from slackswap.planners.protocol import Improvement, Outcome, Status, infeasible


@dataclass(eq=False)
class Known:
    """Collects schedules and proofs, and makes an outcome of them.

    Parameters
    ----------
    began_s : when planning began, on the clock of `time.perf_counter`
    few_stays : whether the space is that of the retention intervals, so that their bound is one

    Attributes
    ----------
    steps : the best list of steps that fits, or None
    lowest : the best plan: of those that fit the fastest, else the one with the lowest peak
    """

    problem: Problem
    budget_bytes: int
    graph: RematerializationGraph
    began_s: float
    few_stays: bool = False
    evaluations: int = 1
    steps: Steps | None = None
    history: list[Improvement] = field(default_factory=list)
    _schedule: Schedule | None = None
    _step_s: float = math.inf
    _cost: float = math.inf  # in units: the least of any steps that fit
    _bound: int = 0
    _bound_in_formulation: int = 0
    _infeasible: bool = False
    _infeasible_everywhere: bool = False
    _versions: dict[str, str] = field(default_factory=dict)
    _unavailable: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lowest = Plan.keep_everything(self.problem)
        self._lowest_rank = (peak_bytes(self.problem), self.problem.ideal_s)
        self._smallest_bytes = self._lowest_rank[0]

    def offer_plan(self, plan: Plan, *, for_any_budget: bool = False) -> None:
        """Judge a plan that copies nothing.

        `for_any_budget` says that it is offered at every budget, so its peak is a budget that does.
        """
        score = simulate(self.problem, plan, math.inf)
        self.evaluations += 1
        if for_any_budget:
            self._smallest_bytes = min(self._smallest_bytes, score.peak_bytes)
        rank = (max(score.peak_bytes, self.budget_bytes), score.step_s)
        if rank < self._lowest_rank:
            self.lowest, self._lowest_rank = plan, rank
        if score.peak_bytes <= self.budget_bytes:
            self.offer([int(step) for step in lower(self.problem, plan).steps])

    def spare_waste(self) -> None:
        """Judge the best steps without rebuilds that they can do without."""
        if self.steps is not None:
            self.offer(without_waste(self.graph, self.steps))

    def offer(self, steps: Steps) -> None:
        """Judge steps; keep the fastest that fit."""
        schedule = schedule_of(self.problem, steps)
        score = simulate(self.problem, schedule, self.budget_bytes)
        self.evaluations += 1
        if score.fits:
            self._cost = min(self._cost, self.graph.rebuild_cost(steps))
        if score.fits and score.step_s < self._step_s:
            self._schedule, self.steps, self._step_s = schedule, steps, score.step_s
            self.history.append(Improvement(time.perf_counter() - self.began_s, self.evaluations, score.step_s))

    def learn(self, finding: Finding) -> None:
        """Take in what a solver reports."""
        if finding.unavailable:
            self._unavailable.append(finding.solver)
            return
        self._versions[finding.solver] = finding.version
        if finding.steps is not None and finding.steps != self.steps:
            self.offer(finding.steps)
        self._bound = max(self._bound, finding.bound)
        if finding.in_own_space or self.few_stays:
            self._bound_in_formulation = max(self._bound_in_formulation, finding.bound_in_formulation)
            self._infeasible = self._infeasible or finding.infeasible
        self._infeasible_everywhere = self._infeasible_everywhere or finding.infeasible_everywhere

    @property
    def is_proved(self) -> bool:
        """Whether nothing is left to find."""
        if self.steps is None:
            return self._infeasible_everywhere
        return bool(self._versions) and self._cost <= self._bound

    @property
    def is_decided(self) -> bool:
        """Whether nothing is left to find in the formulation."""
        if self.steps is None:
            return self._infeasible or self._infeasible_everywhere
        return bool(self._versions) and self._cost <= max(self._bound, self._bound_in_formulation)

    @property
    def nothing_ran(self) -> bool:
        """Whether every solver that was asked is missing."""
        return bool(self._unavailable) and not self._versions

    def outcome(self, *, time_is_up: bool) -> Outcome:
        """Return the best schedule with what is proved of it, or why there is none."""
        if self.nothing_ran:
            missing = ", ".join(self._unavailable)
            return Outcome(Status.UNAVAILABLE, evaluations=self.evaluations, reason=f"not installed: {missing}")
        outcome = self._with_schedule() if self._schedule is not None else self._without_schedule(time_is_up)
        return replace(
            outcome,
            evaluations=self.evaluations,
            solver=", ".join(self._versions),
            solver_version=", ".join(self._versions.values()),
            history=tuple(self.history),
        )

    def _with_schedule(self) -> Outcome:
        if not self._versions or self.steps is None:
            return Outcome(Status.FEASIBLE, self._schedule, claimed_step_s=self._step_s)
        bound = min(self._cost, max(self._bound, self._bound_in_formulation))
        return Outcome(
            Status.OPTIMAL if self.is_proved else Status.FEASIBLE,
            self._schedule,
            claimed_step_s=self._seconds(self._cost),
            claimed_bound_s=self._seconds(bound) if bound or self.is_proved else None,
        )

    def _seconds(self, cost: float) -> float:
        return self.problem.ideal_s + cost * self.graph.seconds_per_unit

    def _without_schedule(self, time_is_up: bool) -> Outcome:
        proved = self._infeasible or self._infeasible_everywhere
        if time_is_up and not proved:
            return Outcome(Status.TIME_LIMIT)
        reason = "no schedule tried fits"
        if self._infeasible_everywhere:
            reason = "proved: no schedule that only rebuilds fits"
        elif self._infeasible:
            reason = f"proved: no schedule of the {'retention intervals' if self.few_stays else 'formulation'} fits"
        outcome = infeasible(
            self.problem,
            self.lowest,
            self.budget_bytes,
            smallest_feasible_bytes=self._smallest_bytes,
            reason=reason,
        )
        assert outcome.infeasibility is not None
        # Where sizes are rounded, the proof holds for the rounded problem only.
        rigorous = self._infeasible_everywhere and self.graph.exact_memory
        why: Infeasibility = replace(
            outcome.infeasibility, largest_infeasible_bytes=self.budget_bytes if rigorous else None
        )
        return replace(outcome, infeasibility=why)
