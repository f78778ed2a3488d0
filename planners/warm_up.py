"""Compiles what planners share before any of them is timed."""

from __future__ import annotations

from functools import cache

import numpy as np

from slackswap.hardware.link import Link
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor


@cache
def warm_up() -> None:
    """Run the compiled planners once, on two operators and a budget that makes them use every compiled function.

    The first run in a process loads the compiled code, and the first ever compiles it; neither is planning time.
    """
    from slackswap.planners.checkpoint import Checkpoint
    from slackswap.planners.slackswap import SLACKSWAP

    operators = [Operator("f0", "forward", 1.0), Operator("f1", "forward", 1.0), Operator("b", "backward", 1.0)]
    tensors = [
        Tensor("t0", 2, producer=0, readers=(2,), block=0, rebuild=Rebuild(0.5)),
        Tensor("t1", 2, producer=1, readers=(2,), block=0, rebuild=Rebuild(0.5)),
    ]
    problem = Problem.from_records("warm-up", operators, tensors, Link(1.0, 1.0))
    for planner in (SLACKSWAP, Checkpoint()):
        planner.plan(problem, 3, rng=np.random.default_rng(0), time_limit_s=None)
