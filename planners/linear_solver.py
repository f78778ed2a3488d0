"""Solves PuLP models and says honestly what came of it."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pulp

SOLVERS = ("highs", "cbc")


class Verdict(StrEnum):
    """What a solver can say of a model."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"  # stopped, or failed, without a solution
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a solver says of a minimization.

    Attributes
    ----------
    verdict : `OPTIMAL` only where the solver proved it; values stand in the model's variables where there is a solution
    objective : of the solution, or None
    bound : proved lower bound on the objective; minus infinity where none is known
    solver, version : who says so
    """

    verdict: Verdict
    objective: float | None
    bound: float
    solver: str
    version: str


def solve(
    model: pulp.LpProblem,
    *,
    solver: str = "highs",
    relaxed: bool = False,
    time_limit_s: float | None = None,
    gap_abs: float = 0.0,
    start: Sequence[tuple[pulp.LpVariable, float]] = (),
) -> Answer:
    """Minimize `model`, whose objective and rows are scaled to about 1 .. 10^4.

    Parameters
    ----------
    relaxed : ignore that variables are whole numbers
    gap_abs : stop within this distance of the optimum; the answer is then `FEASIBLE`, with its bound
    start : values of some whole variables to begin with; HiGHS completes them, CBC ignores them
    """
    if time_limit_s is not None and time_limit_s <= 0:
        return Answer(Verdict.UNKNOWN, None, -math.inf, solver, "")
    if solver == "highs":
        return _solve_with_highs(model, relaxed, time_limit_s, gap_abs, start)
    return _solve_with_cbc(model, relaxed, time_limit_s, gap_abs)


def impossible(model: pulp.LpProblem, choices: Sequence[pulp.LpVariable], time_limit_s: float) -> list[pulp.LpVariable]:
    """Return those 0-1 choices that the relaxation cannot make, probed one by one with HiGHS until time is up.

    A solver that knows them proves in a minute what it did not prove in ten.
    """
    ends_s = time.perf_counter() + time_limit_s
    if solve(model, relaxed=True, time_limit_s=time_limit_s).verdict is not Verdict.OPTIMAL:
        return []
    import highspy

    highs, found = model.solverModel, []
    for choice in choices:
        if time.perf_counter() > ends_s:
            break
        highs.changeColBounds(choice.index, 1.0, 1.0)
        highs.run()
        never = highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible
        highs.changeColBounds(choice.index, 0.0, 0.0 if never else 1.0)
        if never:
            found.append(choice)
    return found


def _solve_with_highs(
    model: pulp.LpProblem,
    relaxed: bool,
    time_limit_s: float | None,
    gap_abs: float,
    start: Sequence[tuple[pulp.LpVariable, float]],
) -> Answer:
    try:
        import highspy
    except ImportError:
        return Answer(Verdict.UNAVAILABLE, None, -math.inf, "HiGHS", "")
    import pulp

    # HiGHS fails silently where the number of threads changes within a process.
    highspy.Highs.resetGlobalScheduler(True)

    # PuLP has no warm start for HiGHS, and no types.
    class StartedHighs(pulp.HiGHS):  # type: ignore[misc]
        def callSolver(self, lp: Any) -> None:  # noqa: N802 - PuLP's name
            if start:
                places = np.array([variable.index for variable, _ in start], np.int32)
                lp.solverModel.setSolution(len(start), places, np.array([value for _, value in start], np.float64))
            super().callSolver(lp)

    command = StartedHighs(mip=not relaxed, msg=False, timeLimit=time_limit_s, gapAbs=gap_abs, gapRel=0.0, threads=1)
    model.solve(command)
    highs = model.solverModel
    version = str(highs.version())
    status, known, info = highs.getModelStatus(), highspy.HighsModelStatus, highs.getInfo()
    if status == known.kInfeasible:
        return Answer(Verdict.INFEASIBLE, None, math.inf, "HiGHS", version)
    whole = not relaxed and any(variable.cat == "Integer" for variable in model.variables())
    optimal = status in (known.kOptimal, known.kModelEmpty)
    # PuLP says "Optimal" wherever HiGHS stopped with an incumbent; HiGHS itself knows, and knows its bound.
    bound = info.mip_dual_bound if whole else info.objective_function_value if optimal else -math.inf
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible and status != known.kModelEmpty:
        return Answer(Verdict.UNKNOWN, None, bound, "HiGHS", version)
    objective = float(info.objective_function_value)
    proved = optimal and (not whole or objective - bound <= 1e-9 * max(1.0, abs(objective)))
    return Answer(Verdict.OPTIMAL if proved else Verdict.FEASIBLE, objective, float(bound), "HiGHS", version)


def _solve_with_cbc(model: pulp.LpProblem, relaxed: bool, time_limit_s: float | None, gap_abs: float) -> Answer:
    import pulp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PuLP 4 drops the CBC it bundles; we are below it
        command = pulp.PULP_CBC_CMD(mip=not relaxed, msg=False, timeLimit=time_limit_s, gapAbs=gap_abs, threads=1)
    version = f"bundled with PuLP {pulp.__version__}"
    if not command.available():
        return Answer(Verdict.UNAVAILABLE, None, -math.inf, "CBC", "")
    began_s = time.perf_counter()
    model.solve(command)
    ran_out = time_limit_s is not None and time.perf_counter() - began_s >= 0.9 * time_limit_s
    solved: Any = model.sol_status
    if solved == pulp.LpSolutionOptimal or (solved == pulp.LpSolutionIntegerFeasible):
        objective = float(pulp.value(model.objective) or 0.0)
        # CBC's bound does not come back through its solution file: it is known only where CBC proved the optimum.
        if solved == pulp.LpSolutionOptimal and not ran_out:
            return Answer(Verdict.OPTIMAL, objective, objective - gap_abs, "CBC", version)
        return Answer(Verdict.FEASIBLE, objective, -math.inf, "CBC", version)
    # CBC also says "Infeasible" where time ran out before it found a solution.
    if solved == pulp.LpSolutionInfeasible and not ran_out:
        return Answer(Verdict.INFEASIBLE, None, math.inf, "CBC", version)
    return Answer(Verdict.UNKNOWN, None, -math.inf, "CBC", version)
