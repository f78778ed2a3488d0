"""Two implementations of one set of rules: the compiled engine and the SimPy reference agree on random problems."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import crowded_chains, problems
from reference_event_model import PolicyName, ReferenceScore, reference_score

from slackswap.models.event_model import Score, peak_bytes, simulate
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem

TIMES = ("step_s", "recompute_s", "forward_stall_s", "backward_stall_s")
BYTES = ("d2h_bytes", "h2d_bytes", "peak_bytes")


@st.composite
def letters(draw: st.DrawFn, problem: Problem) -> str:
    """Decisions that lean to swapping or to recomputing, so that copies crowd and rebuilds chain."""
    favourite = draw(st.sampled_from("SRK"))
    chosen = ""
    for saved, rebuildable in zip(problem.saved, problem.rebuildable, strict=True):
        options = ("K" + "S" + "R" * bool(rebuildable)) if saved else "K"
        chosen += draw(st.sampled_from(options + (favourite * 3 if favourite in options else "")))
    return chosen


def floor_bytes(problem: Problem) -> int:
    """What some operator needs at once: below it no plan fits, little above it copies queue and tensors are evicted."""
    return max(
        int(problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum())
        for i in range(problem.n_operators)
    )


@pytest.mark.parametrize("policy", ["default", "barriers"])
def test_kernel_agrees_with_the_reference(policy: PolicyName) -> None:
    seen: Counter[str] = Counter()

    @settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True)
    @given(st.data())
    def agree(data: st.DataObject) -> None:
        problem = data.draw(st.one_of(problems(max_forward=9), crowded_chains()))
        plan = data.draw(letters(problem))
        low, high = floor_bytes(problem), peak_bytes(problem)
        share = data.draw(st.sampled_from([0.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, -0.3]))
        budget_bytes = max(0, int(low + share * (high - low if share >= 0 else low)))
        expected = reference_score(problem, plan, budget_bytes, policy)
        score = simulate(problem, Plan.from_letters(plan), budget_bytes, policy=policy)
        compare(score, expected)
        count(seen, expected)

    agree()
    # The comparison means something only if the rules were at work.
    for what, at_least in {
        "fits": 150,
        "does not fit": 30,
        "swaps": 100,
        "chains": 20,
        "evictions": 5,
        "stalls": 60,
    }.items():
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
    seen["evictions"] += bool(run.evictions)
    seen["stalls"] += run.forward_stall_s + run.backward_stall_s > 0
    rebuilds = [step.rebuilds for step in run.steps if step.rebuilds is not None]
    seen["chains"] += any(t in step.reads for step in run.steps if step.rebuilds is not None for t in rebuilds)
