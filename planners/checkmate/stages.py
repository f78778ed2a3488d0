"""Which operators end a stage: where formulation B looks at memory.

In formulation B every operator ends a stage of its own, and memory is counted at every evaluation in it. Most of those rows
never bind. Here a stage may hold several operators, and memory is counted while its last one runs. That is a relaxation, of
every rematerialization schedule and not only of formulation B's:

- let K(s, t) say that tensor t is on the device when the stage before s has ended, and R(s, t) that it is rebuilt in s at
  least once; any schedule gives such values, in whatever order and however often it rebuilds;
- what an operator or a rebuild of s reads was written in s, is in K(s), or is rebuilt in s; what is in K(s + 1) likewise;
- all in K(s + 1) that the last operator does not write is on the device while it runs, beside what it reads and allocates;
- the time of all rebuilds is at least the sum of the costs in R.

So its optimum bounds them all, and a solution whose steps fit everywhere is an optimum. Where they do not, the operators at
which they exceed the budget end stages too, and once a rebuild is what exceeds it, the stage is cut down to one operator
and gets formulation B's own rows (`detailed`). With all of that it is formulation B.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slackswap.planners.checkmate.graph import RematerializationGraph
from slackswap.planners.checkmate.schedule import Steps, memory_profile

# Operators to either side: of those the one that needs most is looked at first, since the others often follow.
_FIRST_WINDOW, _REFINED_WINDOW = 3, 3
_LEAST_NEW = 3  # stages that a refinement may add, or half as many as there are: a model that grows fast gets hard fast


@dataclass(frozen=True)
class Stages:
    """Stage s holds the operators after ``ends[s - 1]`` up to ``ends[s]``, ascending; the last one ends with the last.

    Stages that end with an operator in `detailed` hold no other one, and have the rows of formulation B.
    """

    ends: tuple[int, ...]
    detailed: frozenset[int] = frozenset()

    @property
    def begins(self) -> tuple[int, ...]:
        """First operator of each stage."""
        return (0, *(end + 1 for end in self.ends[:-1]))

    def stage_of(self, operator: int) -> int:
        """Return the stage that an operator is in."""
        return int(np.searchsorted(self.ends, operator))

    def refined(self, graph: RematerializationGraph, steps: Steps) -> Stages:
        """Return the stages that rule out what exceeds the budget in `steps`; the same ones if nothing can be added."""
        profile = memory_profile(graph, steps)
        over = np.flatnonzero(profile > graph.budget).tolist()
        use = {steps[k]: int(profile[k]) for k in over if steps[k] < graph.n_operators}
        operators = sorted(set(use) - set(self.ends))
        if operators:
            worst = _standing_out(operators, use, use, _REFINED_WINDOW)[: max(_LEAST_NEW, len(self.ends) // 2)]
            return Stages(tuple(sorted({*self.ends, *worst})), self.detailed)
        ahead = {self._operator_after(graph, steps, k) for k in over}
        new = ahead - self.detailed
        ends = {*self.ends, *new, *(i - 1 for i in new if i)}
        return Stages(tuple(sorted(ends)), self.detailed | new)

    @staticmethod
    def _operator_after(graph: RematerializationGraph, steps: Steps, k: int) -> int:
        return next(step for step in steps[k:] if step < graph.n_operators)


def every_stage(graph: RematerializationGraph) -> Stages:
    """Formulation B as it stands: every operator ends a stage, with rows for every evaluation."""
    n = graph.n_operators
    return Stages(tuple(range(n)), frozenset(range(n)))


def first_stages(graph: RematerializationGraph, max_columns: int) -> Stages:
    """Return the stages to begin with: few, since fewer give a smaller model and often a tighter relaxation.

    Candidates are the local maxima above the budget of what would be in use if everything stayed; of those, the ones with
    the largest working set among their neighbours. The neighbourhood grows until the model has at most `max_columns`.
    """
    profile = graph.kept_profile
    padded = np.concatenate(([-1], profile, [-1]))
    peaks = np.flatnonzero((profile > graph.budget) & (profile >= padded[:-2]) & (profile >= padded[2:])).tolist()
    working_sets, in_use = (dict(enumerate(column.tolist())) for column in (graph.working_sets, profile))
    window = _FIRST_WINDOW
    while True:
        ends = _standing_out(peaks, working_sets, in_use, window)
        stages = Stages(tuple(sorted({*ends, graph.n_operators - 1})))
        if len(ends) <= 1 or count_columns(graph, stages) <= max_columns:
            return stages
        window *= 2


def _standing_out(
    candidates: Sequence[int], needs: Mapping[int, int], among_equals: Mapping[int, int], window: int
) -> list[int]:
    """Candidates that need most among those near them, the neediest first; among equals near each other only one."""
    from scipy.ndimage import maximum_filter1d

    if not candidates:
        return []
    column = np.full(max(candidates) + 1, -1, np.int64)
    column[list(candidates)] = [needs[i] for i in candidates]
    largest = maximum_filter1d(column, 2 * window + 1, mode="constant", cval=-1)
    chosen: list[int] = []
    in_place: list[int] = []
    for i in sorted(candidates, key=lambda i: (-needs[i], -among_equals[i])):
        place = bisect.bisect(in_place, i)
        near = any(abs(j - i) <= window for j in in_place[max(0, place - 1) : place + 1])
        if needs[i] >= largest[i] and not near:
            chosen.append(i)
            in_place.insert(place, i)
    return chosen


def count_columns(graph: RematerializationGraph, stages: Stages) -> int:
    """Return about how many columns a staged model has: two for each tensor that is there when a stage starts."""
    until = graph.useful_until(graph.rebuildable)
    begins = np.array(stages.begins)
    first = np.searchsorted(begins, np.array(graph.producers) + 1)
    last = np.searchsorted(begins, np.array(until), side="right")
    return 2 * int(np.maximum(0, last - first).sum())
