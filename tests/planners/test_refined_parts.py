"""Parts of the refined planner against the event model and brute force: the look at the turn, and the best numbers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, chain, decisions, problems

from slackswap.models.event_model import simulate
from slackswap.models.plan import KEEP, RECOMPUTE, Plan
from slackswap.models.problem import IntArray, Problem
from slackswap.planners.refined.columns import (
    BEST,
    RESIDENT,
    SAFE_WORK,
    SLACK,
    SPARE,
    STALL,
    WORK,
    Chain,
    candidates_of,
    turns,
)
from slackswap.planners.refined.numbers import Numbers, best_numbers
from slackswap.planners.refined.search import Searcher
from slackswap.planners.refined.start import starts

any_problem = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), database=None)


def looked_at(problem: Problem, letters: str, budget_bytes: int, *, turn: int = 0, evaluations: int = 1) -> Chain:
    """Return a chain after its first plan has been simulated, or after more `evaluations`."""
    candidates = candidates_of(problem, turns(problem, budget_bytes)[turn])
    searcher = Searcher(problem, candidates, budget_bytes, np.random.default_rng(0))
    searcher.restart(Plan.from_letters(letters).decisions)
    searcher.prepare(temperature=1e-2, hope=1.0, evaluations=evaluations)()
    return searcher.chain


def test_the_turn_of_a_chain_by_hand() -> None:
    # Four layers: f0 .. f3 take 1 ms each and write 1 MB each, a copy takes 1 ms. The first backward operator starts at 4 ms; it
    # reads a3, which is there in any case. a0 is copied from 1 to 2 ms, a1 from 2 to 3: both have left.
    chained = looked_at(chain(4), "SSKK", 2 * MB)
    assert chained.floats[WORK] == pytest.approx(12 * MS)
    assert chained.integers[RESIDENT] == 4 * MB  # before any copy
    assert (chained.integers[SLACK], chained.floats[STALL]) == (0, 0.0)
    assert chained.floats[SPARE] == pytest.approx(1 * MS)
    # With 1 MB less, one more has to leave, and no copy is left that could.
    assert looked_at(chain(4), "SSKK", 1 * MB).floats[STALL] > 0.0
    # a2, copied from 3 to 4 ms, ends just in time; recomputing it instead leaves the link a millisecond to spare.
    assert looked_at(chain(4), "SSSK", 2 * MB).integers[SLACK] == 1 * MB
    recomputed = looked_at(chain(4), "SSRK", 2 * MB)
    assert recomputed.floats[WORK] == pytest.approx((12 + 1) * MS)
    assert recomputed.integers[SLACK] == 1 * MB
    assert recomputed.floats[SPARE] == pytest.approx(1 * MS)


@st.composite
def plans(draw: st.DrawFn) -> tuple[Problem, str]:
    problem = draw(problems())
    assume(problem.saved.any())
    return problem, draw(decisions(problem))


@any_problem
@given(plans(), st.sampled_from([0.4, 0.6, 0.8, 1.0]))
def test_the_model_never_promises_less_than_the_engine_needs(case: tuple[Problem, str], share: float) -> None:
    problem, letters = case
    budget_bytes = int(share * simulate(problem, Plan.keep_everything(problem), math.inf).peak_bytes)
    score = simulate(problem, Plan.from_letters(letters), budget_bytes)
    for turn in range(len(turns(problem, budget_bytes))):
        chained = looked_at(problem, letters, budget_bytes, turn=turn)
        assert chained.floats[BEST] == (score.step_s if score.fits else np.inf)
        if score.fits:
            assert chained.floats[WORK] == pytest.approx(problem.ideal_s + score.recompute_s, abs=1e-12)
            stall_s = score.forward_stall_s + score.backward_stall_s
            assert chained.floats[STALL] <= stall_s + 1e-8


@any_problem
@given(plans())
def test_slack_is_what_the_engine_leaves_at_the_turn(case: tuple[Problem, str]) -> None:
    # With less by the slack, the first backward operator still starts at once; with a byte less than that, something waits.
    problem, letters = case
    plan = Plan.from_letters(letters)
    budget_bytes = 2 * simulate(problem, Plan.keep_everything(problem), math.inf).peak_bytes
    tight_bytes = budget_bytes - int(looked_at(problem, letters, budget_bytes).integers[SLACK])
    if tight_bytes > 0:
        tighter = simulate(problem, plan, tight_bytes - 1)
        assert not tighter.fits or tighter.forward_stall_s + tighter.backward_stall_s > 0.0
    read_at_turn = plan.decisions[problem.reads_of(problem.n_forward)]
    assume((plan.decisions != RECOMPUTE).all() and (read_at_turn == KEEP).all())  # rebuilds keep what they read
    lanes = simulate(problem, plan, tight_bytes, timeline=True).timeline
    assert lanes is not None
    assert not lanes.memory_wait_s[problem.n_forward : problem.n_forward + 1].any()


@any_problem
@given(plans(), st.sampled_from([0.5, 0.7, 0.9]))
def test_moves_keep_the_books(case: tuple[Problem, str], share: float) -> None:
    # After hundreds of moves, made and taken back, the sums are those of the decisions at hand.
    problem, letters = case
    budget_bytes = int(share * simulate(problem, Plan.keep_everything(problem), math.inf).peak_bytes)
    chained = looked_at(problem, letters, budget_bytes, evaluations=200)
    candidates = candidates_of(problem, problem.n_forward)
    rebuilt = chained.choice == RECOMPUTE
    assert chained.floats[WORK] == pytest.approx(problem.ideal_s + candidates.rebuild_s[rebuilt].sum(), abs=1e-9)
    assert chained.integers[RESIDENT] == candidates.turn_allocation_bytes + candidates.turn_bytes[~rebuilt].sum()
    assert np.isfinite(candidates.rebuild_s[rebuilt]).all()
    assert np.isfinite(chained.floats[SAFE_WORK])
    if np.isfinite(chained.floats[BEST]):
        score = simulate(problem, Plan(chained.best), budget_bytes)
        assert score.fits
        assert score.step_s == chained.floats[BEST]


def numbers_of(groups: list[tuple[int, float, int]], latency_s: float) -> Numbers:
    """Columns of (MB, ms of rebuild, tensors) on a link of 1 MB per ms; infinite ms: no rebuild."""
    groups = sorted(groups, key=lambda group: -group[1] / group[0])
    n_bytes = np.array([mb * MB for mb, _, _ in groups], np.int64)
    size = np.array([n for _, _, n in groups], np.int64)
    rebuildable = np.array([math.isfinite(ms) for _, ms, _ in groups])

    def room(more: int = 0) -> IntArray:
        return np.zeros(size.size + more, np.int64)

    return Numbers(
        n_bytes=n_bytes,
        gain_s=np.array([ms * MS if math.isfinite(ms) else 0.0 for _, ms, _ in groups]),
        copy_s=latency_s + n_bytes.astype(np.float64) * 1e-9,
        least_kept=np.where(rebuildable, 0, size),
        most_kept=size,
        least_swapped=room(),
        most_swapped=size.copy(),
        largest=np.argsort(-n_bytes, kind="stable").astype(np.int64),
        reduced_s=np.zeros(size.size),
        promise_s=np.zeros(size.size + 1),
        kept=room(),
        swapped=room(),
        best_kept=room(),
        best_swapped=room(),
        room_bytes=room(1),
        gained_s=np.zeros(size.size + 1),
        bound_s=np.zeros(size.size + 1),
    )


def counted(numbers: Numbers, room_bytes: int, link_s: float, most_wait_s: float) -> float:
    """Try all numbers kept and swapped; return the most that any save, or -1."""
    best_s = -1.0
    options = [
        [(kept, swapped) for kept in range(least, most + 1) for swapped in range(kept + 1)]
        for least, most in zip(numbers.least_kept, numbers.most_kept, strict=True)
    ]
    for chosen in itertools.product(*options):
        kept, swapped = (np.array(column) for column in zip(*chosen, strict=True))
        wait_s = max(0.0, float(swapped @ numbers.copy_s) - link_s)
        if ((kept - swapped) @ numbers.n_bytes) <= room_bytes and wait_s <= most_wait_s + 1e-12:
            best_s = max(best_s, float(kept @ numbers.gain_s) - wait_s)
    return best_s


_groups = st.lists(
    st.tuples(st.integers(1, 12), st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0, math.inf]), st.integers(1, 3)),
    min_size=1,
    max_size=4,
)


@settings(any_problem, max_examples=400)
@given(_groups, st.integers(0, 30), st.integers(0, 20), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from([0.0, 2.0]))
def test_numbers_are_the_best_of_all(
    groups: list[tuple[int, float, int]], room_mb: int, link_ms: int, latency_ms: float, wait_ms: float
) -> None:
    numbers = numbers_of(groups, latency_ms * MS)
    link_s = link_ms * MS + 1e-12  # sums of copies are rounded
    expected_s = counted(numbers, room_mb * MB, link_s, wait_ms * MS)
    gained_s = best_numbers(numbers, room_mb * MB, link_s, 1e9, wait_ms * MS, -1.0)
    assert gained_s == pytest.approx(expected_s, abs=1e-8)
    if gained_s >= 0:
        assert (numbers.best_swapped <= numbers.best_kept).all()
        kept_bytes = (numbers.best_kept - numbers.best_swapped) @ numbers.n_bytes
        assert kept_bytes <= room_mb * MB
        assert numbers.best_swapped @ numbers.copy_s <= (link_ms + wait_ms) * MS + 1e-9


def test_only_what_beats_the_given_gain_counts() -> None:
    numbers = numbers_of([(4, 2.0, 3)], 0.0)  # room for two of three
    assert best_numbers(numbers, 8 * MB, 0.0, 1e9, 0.0, -1.0) == pytest.approx(4 * MS)
    assert best_numbers(numbers, 8 * MB, 0.0, 1e9, 0.0, 4 * MS) == -1.0


def test_starts_give_each_group_its_numbers() -> None:
    # Six layers of 1 MB, the link makes 1 MB per ms; the turn is at 6 ms. a0 has no rebuild and a5 is read at once. In 3 MB: at
    # the turn a5 and two others, so of a0 .. a4 three have to go, and copies from 1 ms on reach that without recomputation.
    problem = chain(6)
    plans = starts(problem, candidates_of(problem, problem.n_forward), 3 * MB)
    assert Plan(plans[0]).letters.count("R") == 0
    assert Plan(plans[0]).letters.startswith("SSS")  # the first are swapped, the last are kept
    slow = chain(
        6, PLAIN_LINK.__class__(0.4e9, 1e9, 1.0, 0.0)
    )  # 2.5 ms a copy: two end by 6 ms, the third is recomputed
    assert sorted(Plan(starts(slow, candidates_of(slow, slow.n_forward), 3 * MB)[0]).letters) == sorted("SSRKKK")


def test_where_the_link_is_further_behind_earlier_memory_is_looked_at_there_too() -> None:
    # f2 needs 3 MB at 2 ms, when a0 has just left: 1 MB more than at the turn, at 4 ms, where a0, a1 and a2 may have left.
    assert turns(chain(4), 2 * MB) == [4, 2]
    assert turns(chain(4), 4 * MB) == [4]
    assert candidates_of(chain(4), 4).turn_bytes.tolist() == [MB, MB, MB, 0]  # a3 is read at the turn
    assert candidates_of(chain(4), 2).turn_bytes.tolist() == [MB, 0, 0, 0]  # f2 reads a1 and writes a2
