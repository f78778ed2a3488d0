"""Islands: one randomized search from several seeds at once, on the engine of a sweep, of which the best plan counts."""

from __future__ import annotations

import math
from contextlib import closing

from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import judge
from slackswap.evaluate.sweep_engines import Engine, Failure, Local, Task
from slackswap.evaluate.sweep_problems import pack
from slackswap.evaluate.sweeps import Case, case_key, full_result, planner_of
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes
from slackswap.models.problem import Problem
from slackswap.planners import Outcome


def search_islands(
    problem: Problem,
    budget: str,
    *,
    planner: str = "ga-seeded",
    islands: int = 4,
    first_seed: int = 0,
    time_limit_s: float | None = None,
    evaluation_limit: int | None = None,
    engine: Engine | None = None,
) -> Result:
    """Run the same search with `islands` seeds, and return the result with the shortest step; of equals, the first seed's.

    Parameters
    ----------
    budget : a fraction of the peak or bytes, as on the command line
    planner : the name of a randomized planner
    first_seed : the islands have this seed and those after it
    time_limit_s, evaluation_limit : of each island; under the second one the result depends on the seeds alone
    engine : where the islands run; None takes the cores of this machine

    Raises
    ------
    InputError
        The planner is unknown, draws nothing or takes no such limit, the budget is none, or an island fails.
    """
    packed, limit = pack(problem), parse_budget(budget)
    cases = [
        Case(
            workload=problem.name,
            planner=planner,
            budget=budget,
            seed=first_seed + island,
            time_limit_s=time_limit_s,
            evaluation_limit=evaluation_limit,
            carried=packed.sha256,
        )
        for island in range(islands)
    ]
    if not cases:
        raise InputError("a search has at least one island", place="islands")
    searching = planner_of(cases[0])
    if not searching.supports.randomized:
        raise InputError("draws nothing: every island would be the same", source=planner)
    outcomes: dict[int, Outcome] = {}
    tasks = [Task(case_key(case), case, packed) for case in cases]
    with closing((engine or Local()).run(outcome_of, tasks)) as ended:
        for task, value in ended:
            if isinstance(value, Failure):
                raise InputError(f"island of seed {task.spec.seed} failed: {value.reason}", source=planner)
            outcomes[task.spec.seed] = value
    peak = peak_bytes(problem)
    results = [judge(problem, limit.bytes_of(peak), peak, searching, outcomes[case.seed]) for case in cases]
    return min(results, key=lambda result: math.inf if result.row.step_s is None else result.row.step_s)


def outcome_of(case: Case) -> Outcome:
    """Run a case; return its outcome, with the plan, and leave the score to who asks."""
    return full_result(case).outcome
