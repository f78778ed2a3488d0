"""Rematerialization alone, planned by solvers: Checkmate's MILP, retention intervals in CP-SAT, and LP rounding."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import simulate
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.known import Known
from slackswap.planners.checkmate.process import findings_of
from slackswap.planners.checkmate.refinement import FIRST_COLUMNS, Refinement
from slackswap.planners.checkmate.rounding import Rounding
from slackswap.planners.checkmate.seeds import PlanSearch, rebuild_everything, seed_plans
from slackswap.planners.checkmate.stages import Stages, count_columns, first_stages
from slackswap.planners.infeasibility import Infeasibility
from slackswap.planners.memory_floor import memory_floor
from slackswap.planners.protocol import Outcome, Status, Supports

MODES = ("auto", "milp", "intervals", "rounding", "race")
# So long the MILP runs in this process, where it begins at once; then in one that Ctrl-C ends, in `auto` beside the intervals.
_HERE_S = 10.0
_COLUMNS_PER_S = 8_000  # what a second of search is worth: a small model is solved before the search would help it
_SEARCH_SHARE, _SEARCH_LEAST_S = 0.15, 0.1
_FIRST_SHARE, _FIRST_MOST_S = 0.2, 2.0  # of the time, to find a plan that fits at all: maybe only schedules do
# Solvers are told to end this share of the limit early: what they answer has to be read and judged.
_MARGIN_SHARE = 0.04
_LEAST_S = 0.05


@dataclass(frozen=True)
class Checkmate:
    """Rebuilds tensors as often and where it pays, and copies nothing; schedules of formulations B and C.

    It begins with what other planners make of recomputation, anneals their plans in the event model (`checkmate_seeds`), and
    then solves, from the best schedule known, by its `mode`:

    - ``milp``: formulation B (Jain et al. 2020) over merged stages, refined where a solution exceeds the budget
      (`checkmate_stages`, `checkmate_refinement`); PuLP and HiGHS.
    - ``intervals``: formulation C (Bartan et al. 2023) with at most `copies` stays per tensor; CP-SAT, in a process of its own.
    - ``rounding``: the relaxation of B at 0.9 of the budget, rounded; proves nothing.
    - ``race``: ``milp`` and ``intervals`` side by side, each in a process; the best schedule of either and the bound of the
      first end both as soon as they meet.
    - ``auto``: ``milp`` and, if that proves nothing in ten seconds, ``race``.

    What is exact: the bound of ``milp`` holds for every schedule that only rebuilds, in whatever order and however often, as
    long as merged stages suffice; after that, for formulation B, which rebuilds a tensor at most once between two operators,
    in tensor order. Status optimal means proved in the first sense, and a schedule that swaps may be faster all the same. Both
    hold for the rounded problem: sizes are rounded up to the units of `RematerializationGraph`, the budget down. Where those
    units divide all sizes, as they mostly do, that is the problem itself. What is not exact: everything else. The bound of
    ``intervals`` holds for at most `copies` stays of a tensor only. ``milp`` stops refining at 120,000 columns: its bound is
    then true but may be loose, and the schedule may be the best seed. Whatever happens, it is no slower than `recompute-only`
    and, where there is time to try it, `checkpoint`.

    Parameters
    ----------
    copies : most stays of a tensor on the device in ``intervals``
    evaluation_limit : plans to score; the result then depends on the seed alone, for no solver runs
    default_time_limit_s : where the caller sets none
    """

    name: str = "checkmate"
    description: str = (
        "rematerialization alone, several rebuilds of one tensor allowed: MILP, retention intervals, LP rounding"
    )
    policy: str = "default"
    supports: Supports = Supports(swaps=False, randomized=True, anytime=True, schedules=True)
    mode: str = "auto"
    copies: int = 2
    evaluation_limit: int | None = None
    default_time_limit_s: float = 20.0

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InputError(f"'{self.mode}' is not a mode: use one of {', '.join(MODES)}", place="mode")

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        """Plan until the best schedule is proved, or time is up."""
        began_s = time.perf_counter()
        limit_s = self.default_time_limit_s if time_limit_s is None else time_limit_s
        if self.evaluation_limit is not None:
            limit_s = math.inf
        decided = self._without_search(problem, budget_bytes)
        if decided is not None:
            return decided
        graph = RematerializationGraph.of(problem, budget_bytes)
        known = Known(problem, budget_bytes, graph, began_s, few_stays=self.mode == "intervals")
        self._seed(known, rng, limit_s)
        ends_s = began_s + (1.0 - _MARGIN_SHARE) * limit_s
        if self.evaluation_limit is None:
            self._solve(known, ends_s)
        # The others end before their time only with a schedule or a proof.
        gave_up = self.evaluation_limit is not None or (self.mode == "rounding" and time.perf_counter() < ends_s)
        return known.outcome(time_is_up=not gave_up)

    def _without_search(self, problem: Problem, budget_bytes: int) -> Outcome | None:
        """Answer where what keeps everything fits, since nothing is faster, or where some operator alone does not."""
        keeping = lower(problem, Plan.keep_everything(problem))
        score = simulate(problem, keeping, budget_bytes)
        if score.fits:
            return Outcome(
                Status.OPTIMAL, keeping, lower_bound_s=problem.ideal_s, claimed_step_s=score.step_s, evaluations=1
            )
        floor = memory_floor(problem, self.supports.space)
        if budget_bytes >= floor.n_bytes:
            return None
        operator = problem.operator_names[floor.operator]
        why = Infeasibility(
            operator,
            floor.n_bytes - budget_bytes,
            largest_infeasible_bytes=floor.n_bytes - 1,
            reason=f"'{operator}' alone needs {floor.n_bytes} bytes",
        )
        return Outcome(Status.INFEASIBLE, evaluations=1, infeasibility=why)

    def _seed(self, known: Known, rng: np.random.Generator, limit_s: float) -> None:
        """Take the best of some plans, and anneal from there."""
        ends_s = known.began_s + limit_s
        for plan, evaluations in seed_plans(known.problem, known.budget_bytes, rng, ends_s):
            known.evaluations += evaluations
            known.offer_plan(plan)
        if known.steps is None:
            known.offer_plan(rebuild_everything(known.problem), for_any_budget=True)
        if time.perf_counter() >= ends_s:
            return
        search = PlanSearch(known.problem, known.budget_bytes, rng, known.lowest.decisions, known.offer_plan)
        limit = (self.evaluation_limit or math.inf) - known.evaluations
        first_s = min(_FIRST_SHARE * limit_s, _FIRST_MOST_S) if self.evaluation_limit is None else math.inf
        search.run(time.perf_counter() + first_s, limit, until_fits=True)
        # A small model is solved sooner than a longer search would help it.
        columns = count_columns(known.graph, first_stages(known.graph, FIRST_COLUMNS))
        search_s = min(_SEARCH_SHARE * limit_s, max(_SEARCH_LEAST_S, columns / _COLUMNS_PER_S))
        if search.fits:
            search.run(time.perf_counter() + (search_s if self.evaluation_limit is None else math.inf), limit)
        known.evaluations += search.evaluations
        known.spare_waste()

    def _solve(self, known: Known, ends_s: float) -> None:
        """Let the solvers of the mode work until the best schedule is proved."""
        if self.mode in ("auto", "milp"):
            stages = self._solve_here(known, min(ends_s, time.perf_counter() + _HERE_S))
            others: tuple[str, ...] = ("milp", "intervals") if self.mode == "auto" else ("milp",)
            if known.nothing_ran:
                others = ("intervals",) if self.mode == "auto" else ()
            if not known.is_decided:
                self._solve_elsewhere(known, others, ends_s, {"stages": stages})
        elif self.mode == "rounding":
            Rounding(known.graph, known.learn, _monotonic(ends_s), known.steps).run()
        elif self.mode == "intervals":
            self._solve_elsewhere(known, ("intervals",), ends_s, {})
        else:
            self._solve_elsewhere(known, ("milp", "intervals"), ends_s, {})

    def _solve_here(self, known: Known, ends_s: float) -> Stages | None:
        """Refine formulation B; return the stages it has come to."""
        refinement = Refinement(known.graph, known.learn, _monotonic(ends_s), known.steps)
        refinement.run()
        return refinement.stages

    def _solve_elsewhere(self, known: Known, modes: tuple[str, ...], ends_s: float, milp: dict[str, Any]) -> None:
        if ends_s - time.perf_counter() < _LEAST_S:
            return
        options = {"milp": milp, "intervals": {"copies": self.copies}}
        for finding in findings_of(modes, known.graph, known.steps, _monotonic(ends_s), options):
            known.learn(finding)
            if known.is_decided:
                return


def _monotonic(ends_s: float) -> float:
    """A time of `time.perf_counter` on the clock of `time.monotonic`, which other processes share."""
    return time.monotonic() + ends_s - time.perf_counter()
