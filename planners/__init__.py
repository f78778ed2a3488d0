"""Floor 3: interchangeable solvers, a problem and a budget in, a plan out.

All planners of the project stand once, in `BUILT_IN`; `registry` adds those that other packages register under the
entry-point group ``slackswap.planners``. Notebooks pass a planner object, or a bare function, directly.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from slackswap.hardware.input_error import InputError
from slackswap.planners.checkmate.planner import Checkmate
from slackswap.planners.checkpoint import Checkpoint
from slackswap.planners.exhaustive import Exhaustive
from slackswap.planners.genetic.planner import GA_RANDOM, GA_SEEDED
from slackswap.planners.keep import Keep
from slackswap.planners.milp import Milp
from slackswap.planners.protocol import (
    FunctionPlanner,
    Improvement,
    Infeasibility,
    Outcome,
    Planner,
    PlannerFunction,
    Status,
    Supports,
    as_planner,
    run_planner,
)
from slackswap.planners.refined.planner import Refined
from slackswap.planners.slackswap import BARRIERS, RECOMPUTE_ONLY, SLACKSWAP, SWAP_FIRST, SlackSwap
from slackswap.planners.superneurons import SuperNeurons
from slackswap.planners.swapadvisor import SwapAdvisor
from slackswap.planners.vdnn import VDNN, VDNN_ALL, VDNN_CONV

ENTRY_POINT_GROUP = "slackswap.planners"

BUILT_IN: tuple[Planner, ...] = (
    Keep(),
    SLACKSWAP,
    Refined(),
    Milp(),
    GA_SEEDED,
    GA_RANDOM,
    Checkmate(),
    Exhaustive(),
    SWAP_FIRST,
    RECOMPUTE_ONLY,
    BARRIERS,
    Checkpoint(),
    SwapAdvisor(),
    SuperNeurons(),
    VDNN,
    VDNN_CONV,
    VDNN_ALL,
)


def registry() -> Mapping[str, Planner]:
    """Return every planner by name: the built-in ones, then those of other packages.

    Raises
    ------
    InputError
        A package registers something that is no planner, cannot be imported, or takes a name that is taken.
    """
    planners = {planner.name: planner for planner in BUILT_IN}
    for entry in metadata.entry_points(group=ENTRY_POINT_GROUP):
        source = f"entry point '{entry.name}' ({entry.value})"
        try:
            loaded = entry.load()
            planner = as_planner(loaded() if isinstance(loaded, type) else loaded)
        except InputError as error:
            raise error.within(source) from None
        except Exception as error:  # anything can go wrong in foreign code; one line says in whose
            raise InputError(f"cannot be loaded: {type(error).__name__}: {error}", source=source) from None
        if planner.name in planners:
            raise InputError(f"the name '{planner.name}' is taken: choose another", source=source)
        planners[planner.name] = planner
    return planners


def find_planners(names: str) -> list[Planner]:
    """Return the planners named in a list such as ``slackswap,keep``, or every one for ``all``."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise InputError("names no planner", source="--planner")
    known: Mapping[str, Planner] = {planner.name: planner for planner in BUILT_IN}
    if not known.keys() >= set(wanted):  # else a broken planner of another package is nobody's concern
        known = registry()
    if "all" in wanted:
        return list(known.values())
    for name in wanted:
        if name not in known:
            raise InputError(f"'{name}' is not a planner: use {', '.join(known)}, or all", source="--planner")
    return [known[name] for name in dict.fromkeys(wanted)]


__all__ = [
    "BUILT_IN",
    "ENTRY_POINT_GROUP",
    "FunctionPlanner",
    "Improvement",
    "Infeasibility",
    "Outcome",
    "Planner",
    "PlannerFunction",
    "SlackSwap",
    "Status",
    "Supports",
    "as_planner",
    "find_planners",
    "registry",
    "run_planner",
]
