"""From steps to schedules: what a list of operators and rebuilds needs, holds and costs, and what of it is waste.

A list of steps decides everything else: each tensor leaves after the last step that reads it before it is evaluated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from slackswap.models.problem import IntArray, Problem
from slackswap.models.schedule import Schedule
from slackswap.planners.checkmate.graph import RematerializationGraph

Steps = list[int]


class Life(NamedTuple):
    """One stay of a tensor on the device: from the step that evaluates it to the last one that reads it."""

    tensor: int
    first: int
    last: int


def schedule_of(problem: Problem, steps: Sequence[int]) -> Schedule:
    """Return the schedule that runs `steps` and drops every tensor as soon as it can.

    Parameters
    ----------
    steps : operator i is i, the rebuild of tensor t is n + t; every tensor that a step reads was evaluated before
    """
    n = problem.n_operators
    drops: list[list[int]] = [[] for _ in steps]
    later: set[int] = set()
    for k in reversed(range(len(steps))):
        step = steps[k]
        reads = problem.reads_of(step) if step < n else problem.rebuild_inputs_of(step - n)
        writes = problem.writes_of(step) if step < n else (step - n,)
        # What nobody reads again goes now; what is evaluated here was not there before.
        drops[k] = [int(t) for t in (*reads, *writes) if int(t) not in later]
        later.difference_update(int(t) for t in writes)
        later.update(int(t) for t in reads)
    return Schedule.from_lists(steps, drops)


def pruned(graph: RematerializationGraph, steps: Sequence[int]) -> Steps:
    """Return `steps` without the rebuilds that no later step reads before the tensor is evaluated again."""
    kept: Steps = []
    needed: set[int] = set()
    for step in reversed(steps):
        outputs = graph.outputs_of(step)
        if step >= graph.n_operators and outputs[0] not in needed:
            continue
        needed.difference_update(outputs)
        needed.update(graph.inputs_of(step))
        kept.append(step)
    return kept[::-1]


def lives(graph: RematerializationGraph, steps: Sequence[int]) -> list[Life]:
    """Return every stay of every tensor, by its first step."""
    last_read: dict[int, int] = {}
    found: list[Life] = []
    for k in reversed(range(len(steps))):
        found.extend(Life(t, k, last_read.pop(t, k)) for t in graph.outputs_of(steps[k]))
        for t in graph.inputs_of(steps[k]):
            last_read.setdefault(t, k)
    return found[::-1]


def memory_profile(graph: RematerializationGraph, steps: Sequence[int]) -> IntArray:
    """(s,) units in use while each step runs (rules 1 and 2 of the event model)."""
    change = np.zeros(len(steps) + 1, np.int64)
    for life in lives(graph, steps):
        change[life.first] += graph.sizes[life.tensor]
        change[life.last + 1] -= graph.sizes[life.tensor]
    profile: IntArray = np.cumsum(change[:-1])
    return profile + np.array([graph.workspace_of(step) for step in steps], np.int64)


def fits(graph: RematerializationGraph, steps: Sequence[int]) -> bool:
    """Whether `steps` run within the budget of the graph."""
    return not steps or int(memory_profile(graph, steps).max()) <= graph.budget


def without_waste(graph: RematerializationGraph, steps: Sequence[int]) -> Steps:
    """Return steps without rebuilds that memory does not ask for: where a tensor can as well stay, dearest first."""
    steps = pruned(graph, steps)
    while spared := _spared(graph, steps):
        steps = pruned(graph, [step for k, step in enumerate(steps) if k not in spared])
    return steps


def _spared(graph: RematerializationGraph, steps: Steps) -> set[int]:
    """Places of rebuilds for which there is room to stay instead."""
    profile = memory_profile(graph, steps)
    spared: set[int] = set()
    for _, left_at, rebuilt_at in _absences(graph, steps):
        away = profile[left_at + 1 : rebuilt_at]
        size = graph.sizes[steps[rebuilt_at] - graph.n_operators]
        if int(away.max(initial=0)) + size <= graph.budget:
            away += size
            profile[rebuilt_at] = 0  # no step runs there any more
            spared.add(rebuilt_at)
    return spared


def _absences(graph: RematerializationGraph, steps: Steps) -> list[tuple[int, int, int]]:
    """Between two stays of a tensor: minus its cost, the last step of the one, the first of the other; dearest first."""
    before: dict[int, Life] = {}
    found = []
    for life in lives(graph, steps):
        if life.tensor in before:
            found.append((-graph.costs[life.tensor], before[life.tensor].last, life.first))
        before[life.tensor] = life
    return sorted(found)


@dataclass(frozen=True, eq=False)
class StagePlan:
    """What a staged model decides. Stage s ends with the operator ``ends[s]``.

    Attributes
    ----------
    kept : tensors on the device when each stage starts
    rebuilt : tensors evaluated again in each stage
    in_order : stages whose rebuilds run in tensor order, before the operator, as formulation B has them; in the others each
        runs when a step first needs it
    """

    ends: tuple[int, ...]
    kept: tuple[frozenset[int], ...]
    rebuilt: tuple[frozenset[int], ...]
    in_order: frozenset[int] = frozenset()


def steps_of_stages(graph: RematerializationGraph, plan: StagePlan) -> Steps:
    """Return the steps of a staged plan, rebuilding also what it forgot (a rounded one does)."""
    there: set[int] = set()
    steps: Steps = []
    begin = 0
    for s, end in enumerate(plan.ends):
        there &= plan.kept[s]
        if s in plan.in_order:
            _append(graph, steps, there, sorted(plan.rebuilt[s]))
        kept_next = plan.kept[s + 1] if s + 1 < len(plan.ends) else frozenset()
        for operator in range(begin, end + 1):
            wanted = list(graph.reads[operator])
            if operator == end:
                wanted += sorted(plan.rebuilt[s] & kept_next)
            _append(graph, steps, there, wanted)
            steps.append(operator)
            there.update(graph.writes[operator])
        begin = end + 1
    return pruned(graph, steps)


def _append(graph: RematerializationGraph, steps: Steps, there: set[int], wanted: Collection[int]) -> None:
    """Append the rebuilds of what is `wanted` and not `there`, inputs first, depth first."""
    for t in wanted:
        for source in _missing(graph, there, t):
            steps.append(graph.n_operators + source)
            there.add(source)


def _missing(graph: RematerializationGraph, there: set[int], tensor: int) -> Iterator[int]:
    """Yield what has to be rebuilt for `tensor`, and it last; without recursion, since chains can be long."""
    stack = [tensor]
    while stack:
        t = stack[-1]
        above = [source for source in graph.inputs[t] if source not in there] if t not in there else []
        if t in there:
            stack.pop()
        elif above:
            stack.append(above[0])
        else:
            yield stack.pop()
