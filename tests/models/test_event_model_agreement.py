"""Two implementations of one set of rules: the compiled engine and the SimPy reference agree on random problems."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, crowded_chains, links, problems
from reference_event_model import PolicyName, ReferenceScore, reference_score

from slackswap.models.event_model import Score, peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Operator, Problem, Rebuild, Tensor

TIMES = ("step_s", "recompute_s", "forward_stall_s", "backward_stall_s")
BYTES = ("d2h_bytes", "h2d_bytes", "peak_bytes")
# The comparison means something only if the rules were at work: about half of what 600 examples show.
COMMON = {"fits": 120, "does not fit": 150, "swaps": 60, "chains": 50, "stalls": 80, "evictions": 8, "fetches again": 5}
AT_LEAST: dict[PolicyName, dict[str, int]] = {
    "default": COMMON,
    "barriers": COMMON,
    # Here an eviction is what the host has a copy of and is released at once.
    "on-demand": COMMON | {"offloads": 100, "fetches ahead": 15, "fetches into room made for them": 8},
}


@st.composite
def letters(draw: st.DrawFn, problem: Problem) -> str:
    """Decisions that lean to swapping or to recomputing, so that copies crowd and rebuilds chain."""
    favourite = draw(st.sampled_from("SRK"))
    chosen = ""
    for saved, rebuildable in zip(problem.saved, problem.rebuildable, strict=True):
        options = ("K" + "S" + "R" * bool(rebuildable)) if saved else "K"
        chosen += draw(st.sampled_from(options + (favourite * 3 if favourite in options else "")))
    return chosen


@st.composite
def thrashing_chains(draw: st.DrawFn) -> Problem:
    """Chains that empty the device at the end of the forward pass, and whose next heavy operator is mostly far away.

    What is fetched ahead for it stands in the way of a workspace beyond the three steps that admission looks ahead.
    """
    n, large, n_backward = draw(st.integers(1, 5)), draw(st.integers(4, 6)), 9
    # With 5 MB the budget is so small that tensors stand in each other's way.
    workspace_mb, to_heavy = draw(st.sampled_from([(80, 9), (80, 9), (5, 1)]))
    operators: list[Operator] = []

    def add(phase: str, workspaces_mb: list[int], kinds: list[str]) -> None:
        duration_s, workspace_bytes = draw(st.integers(0, 10)) * MS, draw(st.sampled_from(workspaces_mb)) * MB
        kind = draw(st.sampled_from(kinds))
        operators.append(Operator(f"{phase[0]}{len(operators)}", phase, duration_s, workspace_bytes, 0, kind))

    for _ in range(n):
        add("forward", [0, 0, 5], ["gemm"])
    add("forward", [workspace_mb], ["gemm"])
    for _ in range(large):
        add("backward", [0, 0, 5], [*["norm"] * 9, "gemm"])
    add("backward", [workspace_mb // 2, workspace_mb], ["other"])
    heavy = len(operators)
    add("backward", [0, 0, 5], ["attention"])
    while len(operators) < n + 1 + n_backward:
        add("backward", [0, 0, 5], ["convolution", "norm"])
    tensors = []
    for i in range(n):
        readers = draw(st.sets(st.integers(i + 1, n), max_size=1))
        readers |= {draw(st.sampled_from([*[heavy] * to_heavy, *range(n + 1, len(operators))]))}
        readers |= draw(st.sets(st.integers(heavy, len(operators) - 1), max_size=1))
        rebuild = draw(st.sampled_from([None, None, None, Rebuild(MS, (i - 1,) if i else ())]))
        tensors.append(Tensor(f"t{i}", draw(st.integers(1, 15)) * MB, i, tuple(sorted(readers)), None, rebuild))
    return Problem.from_records("thrashing chain", operators, tensors, draw(links()))


def floor_bytes(problem: Problem) -> int:
    """What some operator needs at once: below it no plan fits, little above it copies queue and tensors are evicted."""
    return max(
        int(problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum())
        for i in range(problem.n_operators)
    )


@pytest.mark.parametrize("policy", ["default", "barriers", "on-demand"])
def test_kernel_agrees_with_the_reference(policy: PolicyName) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(st.data())
    def agree(data: st.DataObject) -> None:
        problem = data.draw(st.one_of(problems(max_forward=9), crowded_chains(), thrashing_chains()))
        plan = data.draw(letters(problem))
        low, high = floor_bytes(problem), peak_bytes(problem)
        share = data.draw(st.sampled_from([0.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, -0.3]))
        budget_bytes = max(0, int(low + share * (high - low if share >= 0 else low)))
        expected = reference_score(problem, plan, budget_bytes, policy)
        score = simulate(problem, Plan.from_letters(plan), budget_bytes, policy=policy)
        compare(score, expected)
        count(seen, expected)

    agree()
    for what, at_least in AT_LEAST[policy].items():
        assert seen[what] >= at_least, (what, seen)


def compare(score: Score, expected: ReferenceScore) -> None:
    assert score.fits == expected.fits
    for column in BYTES:
        assert getattr(score, column) == getattr(expected, column), column
    if not expected.fits:
        assert score.missing_bytes == expected.missing_bytes
        assert score.failed_step in (expected.failed_step, f"rebuild {expected.failed_step}")
        return  # totals up to where a plan stops are nobody's result
    for column in TIMES:
        assert getattr(score, column) == pytest.approx(getattr(expected, column), rel=1e-9, abs=1e-12), column


def count(seen: Counter[str], run: ReferenceScore) -> None:
    seen["fits" if run.fits else "does not fit"] += 1
    seen["swaps"] += run.h2d_bytes > 0
    seen["offloads"] += run.d2h_bytes > 0
    seen["evictions"] += bool(run.evictions)
    seen["stalls"] += run.forward_stall_s + run.backward_stall_s > 0
    fetches = [one for one in run.intervals if one.lane == "h2d"]
    seen["fetches again"] += len({one.subject for one in fetches}) < len(fetches)
    seen["fetches ahead"] += any(computes(run, one.start_s) for one in fetches)
    room_s = {one.end_s for one in run.intervals if one.lane == "d2h"} | {at_s for at_s, _ in run.evictions}
    seen["fetches into room made for them"] += any(
        one.start_s in room_s and not computes(run, one.start_s) for one in fetches
    )
    rebuilds = [step.rebuilds for step in run.steps if step.rebuilds is not None]
    seen["chains"] += any(t in step.reads for step in run.steps if step.rebuilds is not None for t in rebuilds)


def computes(run: ReferenceScore, at_s: float) -> bool:
    """Whether a step runs, or starts, at a moment."""
    steps = (one for one in run.intervals if one.lane == "compute")
    return any(one.end_s is not None and one.start_s <= at_s < one.end_s for one in steps)
