"""Legality: every reason with a smallest schedule that triggers it alone; what is legal runs, what is not is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import chain, decisions, problems, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import POLICIES, peak_bytes, simulate
from slackswap.models.legality import check
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule

Rows = list[list[int]]
Copies = list[tuple[int, ...]]

# two_layers: a0 (tensor 0) is written by f0, read by f1 and b0; a1 (tensor 1) is written by f1, read by b1.
# Steps 0 .. 3 are f0, f1, b1, b0; codes 4 and 5 rebuild a0 (from nothing) and a1 (from a0).
KEEP_ALL = Schedule.from_lists([0, 1, 2, 3], [[], [], [1], [0]])
# a0 is offloaded after f0, dropped after f1, fetched for b0 (step 3) once f1 (step 1) has ended.
SWAP_A0 = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 0)], [(0, 3, 1)])
REBUILD_A0 = Schedule.from_lists([0, 1, 2, 4, 3], [[], [0], [1], [], [0]])


@pytest.mark.parametrize("schedule", [KEEP_ALL, SWAP_A0, REBUILD_A0])
def test_the_schedules_that_the_others_start_from_are_legal(schedule: Schedule) -> None:
    assert check(two_layers(), schedule) == []


def of(steps: list[int], drops: Rows, offloads: Copies = [], prefetches: Copies = []) -> Schedule:  # noqa: B006 - only read
    return Schedule.from_lists(steps, drops, offloads, prefetches)  # type: ignore[arg-type]


LEGAL_BUT_ODD = {
    "nothing is ever dropped": of([0, 1, 2, 3], [[], [], [], []]),
    "a0 dropped in the forward pass and rebuilt there": of([0, 4, 1, 2, 3], [[0], [], [], [1], [0]]),
    "a0 dropped and fetched in the forward pass": of([0, 1, 2, 3], [[0], [], [1], [0]], [(0, 0)], [(0, 1, 0)]),
    "a1, dropped for good after its last use, rebuilt": of([0, 1, 2, 5, 3], [[], [], [1], [1], [0]]),
    "a0 rebuilt twice": of([0, 4, 1, 4, 2, 3], [[0], [], [0], [], [1], [0]]),
    "a0 fetched twice": of([0, 1, 2, 3], [[0], [0], [1], [0]], [(0, 0)], [(0, 1, 0), (0, 3, 1)]),
    "an offload that nobody fetches": of([0, 1, 2, 3], [[], [], [1], [0]], [(0, 3)]),
    "a prefetch of what was never dropped": of([0, 1, 2, 3], [[], [], [1], [0]], [(0, 0)], [(0, 3, 1)]),
}


@pytest.mark.parametrize("schedule", LEGAL_BUT_ODD.values(), ids=LEGAL_BUT_ODD.keys())
def test_the_richer_space_is_legal(schedule: Schedule) -> None:
    assert check(two_layers(), schedule) == []
    # 30 MB hold both tensors, 40 MB also one that is there twice for a moment.
    assert simulate(two_layers(), schedule, 40e6).fits


ints = np.array
REASONS: list[tuple[Schedule, str]] = [
    # The shape: columns that do not belong together, indices that do not exist.
    (replace(KEEP_ALL, drops_start=ints([0, 0, 1, 2])), "drops: starts do not describe one list per step"),
    (replace(KEEP_ALL, drops_start=ints([0, 0, 0, 1, 1])), "drops: starts do not describe one list per step"),
    (replace(KEEP_ALL, drops_start=ints([0, 1, 0, 1, 2])), "drops: starts do not describe one list per step"),
    (replace(KEEP_ALL, drops_start=ints([1, 1, 1, 1, 2])), "drops: starts do not describe one list per step"),
    (replace(KEEP_ALL, drops_start=ints([])), "drops: starts do not describe one list per step"),
    (replace(SWAP_A0, offload_after=ints([])), "offloads: tensors and steps differ in number"),
    (replace(SWAP_A0, prefetch_after=ints([])), "prefetches: tensors, deadlines and steps differ in number"),
    (replace(SWAP_A0, prefetch_tensor=ints([0, 0])), "prefetches: tensors, deadlines and steps differ in number"),
    (of([0, 1, 2, 6], [[], [], [], []]), "steps: 6 lies outside 0 .. 5"),
    (of([0, 1, -1, 3], [[], [], [], []]), "steps: -1 lies outside 0 .. 5"),
    (of([0, 1, 2, 3], [[], [], [2], []]), "drops: 2 lies outside 0 .. 1"),
    (of([0, 1, 2, 3], [[], [], [-1], []]), "drops: -1 lies outside 0 .. 1"),
    (of([0, 1, 2, 3], [[], [], [], []], [(2, 0)]), "offloads: tensor: 2 lies outside 0 .. 1"),
    (of([0, 1, 2, 3], [[], [], [], []], [], [(-1, 3, 1)]), "prefetches: tensor: -1 lies outside 0 .. 1"),
    (of([0, 1, 2, 3], [[], [], [], []], [(0, 0)], [(0, 4, 1)]), "prefetches: deadline: 4 lies outside 0 .. 3"),
    # The order.
    (of([0, 1, 2], [[], [], [1]]), "steps: every operator stands once, in the order of the problem"),
    (of([0, 1, 2, 3, 3], [[], [], [1], [], [0]]), "steps: every operator stands once, in the order of the problem"),
    # b0 reads only a0: to run it before b1 is refused for its place alone.
    (of([0, 1, 3, 2], [[], [], [], []]), "steps: every operator stands once, in the order of the problem"),
    # The copies.
    (
        of([0, 1, 2, 3], [[], [], [1], [0]], [(0, 0), (0, 1)]),
        "offloads: a tensor is offloaded at most once, its host copy stays valid",
    ),
    (
        of([0, 1, 2, 3], [[], [], [1], [0]], [(1, 1), (0, 0)]),
        "offloads: the queue is in order of the steps after which its copies may start",
    ),
    (
        # b1 and b0 are steps 2 and 3: the later deadline stands first.
        replace(
            of([0, 1, 2, 3], [[], [], [1], [0]], [(0, 0), (1, 1)], [(1, 2, 1), (0, 3, 1)]),
            prefetch_tensor=ints([0, 1]),
            prefetch_deadline=ints([3, 2]),
        ),
        "prefetches: the queue is in order of (deadline, tensor), each pair once",
    ),
    (
        of([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 0)], [(0, 3, 1), (0, 3, 2)]),
        "prefetches: the queue is in order of (deadline, tensor), each pair once",
    ),
    (of([0, 1, 2, 3], [[], [], [1], [0]], [], [(0, 3, 1)]), "prefetch of 'a0': it is never offloaded"),
    (
        of([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 0)], [(0, 3, 3)]),
        "prefetch of 'a0': it may start after step 3, but is read at step 3",
    ),
    (of([0, 1, 2, 3], [[], [], [1], [0]], [(0, 0)], [(0, 2, 1)]), "prefetch of 'a0': step 2 does not read it"),
    # What is on the device.
    (of([0, 1, 2, 3], [[], [0], [1], []]), "step 3, b0, reads 'a0', which is not on the device by then"),
    # A rebuild and a prefetch of one tensor could both be under way.
    (
        of([0, 1, 4, 2, 3], [[], [0], [], [1], [0]], [(0, 0)]),
        "rebuild a0: the tensor is offloaded too; a schedule brings it back one way or the other",
    ),
    (of([4, 0, 1, 2, 3], [[0], [], [], [1], [0]]), "step 0, rebuild a0: the tensor has not been produced yet"),
    (of([0, 4, 1, 2, 3], [[], [], [], [1], [0]]), "step 1, rebuild a0: the tensor is still on the device"),
    (
        of([0, 1, 2, 3], [[], [], [1], [0]], [(1, 3)]),
        "offload of 'a1' after step 3: it is not on the device by then",
    ),
    (
        of([0, 1, 2, 3], [[], [], [1], [0]], [(1, 0)]),
        "offload of 'a1' after step 0: it is not on the device by then",
    ),
    (of([0, 1, 2, 3], [[], [], [1], [0]], [(1, 4)]), "offloads: step: 4 lies outside 0 .. 3"),
    (of([0, 1, 2, 3], [[], [0], [1], [0]], [(0, -1)], [(0, 3, 1)]), "offloads: step: -1 lies outside 0 .. 3"),
    (
        of([0, 1, 2, 3], [[], [], [1], [0, 0]]),
        "step 3, b0, is followed by a drop of 'a0', which is not on the device",
    ),
    (
        of([0, 1, 2, 3], [[1], [], [1], [0]]),
        "step 0, f0, is followed by a drop of 'a1', which is not on the device",
    ),
]


@pytest.mark.parametrize(("schedule", "reason"), REASONS, ids=[reason for _, reason in REASONS])
def test_each_reason_is_given_alone_and_refuses_the_schedule(schedule: Schedule, reason: str) -> None:
    assert check(two_layers(), schedule) == [reason]
    for policy in POLICIES:
        with pytest.raises(InputError) as refused:
            simulate(two_layers(), schedule, math.inf, policy=policy)
        assert (refused.value.place, refused.value.rule) == ("schedule", reason)


def test_only_what_has_a_rebuild_is_rebuilt() -> None:
    # chain(2): f0 f1 b1 b0; code 4 would rebuild a0, which has no rebuild.
    schedule = Schedule.from_lists([0, 1, 2, 4, 3], [[], [0], [1], [], [0]])
    assert check(chain(2), schedule) == ["rebuild a0: the tensor has no rebuild"]


def test_every_reason_is_listed() -> None:
    # a1 is dropped twice, and a0 is fetched without an offload for a step that does not read it.
    schedule = Schedule.from_lists([0, 1, 2, 3], [[], [], [1, 1], [0]], [], [(0, 2, 1)])
    assert check(two_layers(), schedule) == [
        "prefetch of 'a0': it is never offloaded",
        "prefetch of 'a0': step 2 does not read it",
        "step 2, b1, is followed by a drop of 'a1', which is not on the device",
    ]
    # A wrong shape hides the rest: the walk would stumble over it.
    schedule = Schedule.from_lists([0, 1, 2, 9], [[], [], [1, 7], [0]], [(5, 0)])
    assert check(two_layers(), schedule) == [
        "steps: 9 lies outside 0 .. 5",
        "drops: 7 lies outside 0 .. 1",
        "offloads: tensor: 5 lies outside 0 .. 1",
    ]


@settings(deadline=None)
@given(st.data())
def test_every_lowered_plan_is_legal(data: st.DataObject) -> None:
    problem = data.draw(problems())
    schedule = lower(problem, Plan.from_letters(data.draw(decisions(problem))))
    assert check(problem, schedule) == []


class Draft:
    """A schedule as lists, to be changed."""

    def __init__(self, schedule: Schedule) -> None:
        self.steps: list[int] = schedule.steps.tolist()
        self.drops: Rows = [schedule.drops_after(k).tolist() for k in range(schedule.n_steps)]
        self.offloads: Copies = _rows(schedule.offload_tensor, schedule.offload_after)
        self.prefetches: Copies = _rows(schedule.prefetch_tensor, schedule.prefetch_deadline, schedule.prefetch_after)

    def schedule(self) -> Schedule:
        return of(self.steps, self.drops, self.offloads, self.prefetches)


def _rows(*columns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Copies:
    return [tuple(int(value) for value in row) for row in zip(*columns, strict=True)]


def _mutate(draw: Callable[[st.SearchStrategy[Any]], Any], problem: Problem, draft: Draft) -> str:
    """Change one thing; return what."""
    step, tensor = st.integers(0, len(draft.steps) - 1), st.integers(0, problem.n_tensors - 1)
    dropping = [k for k, row in enumerate(draft.drops) if row]
    possible = ["swap steps", "insert rebuild", "add drop"]
    possible += ["remove drop", "move drop"] * bool(dropping)
    possible += ["remove offload", "move offload"] * bool(draft.offloads)
    possible += ["remove prefetch", "move deadline", "move start", "move start"] * bool(draft.prefetches)
    kind: str = draw(st.sampled_from(possible))
    if kind == "swap steps":
        k = draw(step)
        draft.steps[k - 1], draft.steps[k] = draft.steps[k], draft.steps[k - 1]
    elif kind == "insert rebuild":
        k = draw(step)
        draft.steps.insert(k, problem.n_operators + draw(tensor))
        draft.drops.insert(k, [])
    elif kind == "add drop":
        draft.drops[draw(step)].append(draw(tensor))
    elif kind in ("remove drop", "move drop"):
        row = draft.drops[draw(st.sampled_from(dropping))]
        dropped = row.pop(draw(st.integers(0, len(row) - 1)))
        if kind == "move drop":
            draft.drops[draw(step)].append(dropped)
    elif kind in ("remove offload", "move offload"):
        j = draw(st.integers(0, len(draft.offloads) - 1))
        t, _ = draft.offloads.pop(j)
        if kind == "move offload":
            draft.offloads = sorted([*draft.offloads, (t, draw(step))], key=lambda offload: offload[1])
    else:
        j = draw(st.integers(0, len(draft.prefetches) - 1))
        t, deadline, after = draft.prefetches.pop(j)
        if kind == "move deadline":
            draft.prefetches.append((t, draw(step), after))
        elif kind == "move start":
            draft.prefetches.append((t, deadline, draw(step)))
    return kind


def test_mutated_schedules_run_or_are_refused() -> None:
    outcomes: Counter[tuple[str, bool]] = Counter()

    # A run takes well under a millisecond; a hang fails.
    @settings(max_examples=500, deadline=2000, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(st.data())
    def run_or_refuse(data: st.DataObject) -> None:
        problem = data.draw(problems(max_forward=6).filter(lambda problem: problem.n_tensors > 0))
        draft = Draft(lower(problem, Plan.from_letters(data.draw(decisions(problem)))))
        kind = ""
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
            kind = _mutate(data.draw, problem, draft)
        schedule = draft.schedule()
        reasons = check(problem, schedule)
        outcomes[kind, not reasons] += 1
        budget_bytes = data.draw(st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.5])) * peak_bytes(problem)
        for policy in POLICIES:
            if reasons:
                with pytest.raises(InputError) as refused:
                    simulate(problem, schedule, budget_bytes, policy=policy)
                assert refused.value.rule == reasons[0]
            else:
                score = simulate(problem, schedule, budget_bytes, policy=policy, timeline=True)
                assert score.peak_bytes <= budget_bytes
                assert score.fits == (score.failed_step is None)

    with_compiled_engine()
    run_or_refuse()
    legal = sum(count for (_, is_legal), count in outcomes.items() if is_legal)
    refused = outcomes.total() - legal
    assert min(legal, refused) >= 100, outcomes  # both ways were walked


def with_compiled_engine() -> None:
    """Compile before a deadline counts."""
    for policy in POLICIES:
        simulate(two_layers(), KEEP_ALL, math.inf, policy=policy, timeline=True)
