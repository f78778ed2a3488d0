"""Plans replayed where times and bandwidths are off: what is drawn, what is scored, what is counted."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import MB, MS, chain, decisions, problems, two_layers

from slackswap.evaluate import robustness as module
from slackswap.evaluate.robustness import (
    ERRORS,
    PARTS,
    Conditions,
    Draw,
    Replayed,
    RobustnessRow,
    guarded_slackswap,
    perturbed,
    robustness,
    with_iterations,
)
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import POLICIES, Score, peak_bytes, simulate
from slackswap.models.lowering import lower
from slackswap.models.plan import SWAP, Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule
from slackswap.planners import find_planners, run_planner
from slackswap.planners.slackswap import GUARD, SLACKSWAP

QUICK = "slackswap,recompute-only,barriers,checkpoint,swapadvisor,superneurons,vdnn-all"


def replayed(
    problem: Problem, budget: str, planners: str = QUICK, conditions: Conditions | None = None
) -> dict[str, Replayed]:
    ran = robustness([problem], [budget], find_planners(planners), conditions)
    return {one.result.row.planner: one for one in ran}


# What is off


def test_a_slower_link_delays_a_chain_that_swaps() -> None:
    # two_layers, 1 MB per ms times the factor l: a0 (10 MB) leaves from 10 ms on, for 10/l ms, and comes back in 10/l ms, from
    # the end of the forward pass, 30 ms, on. b0, its reader, starts at 70 ms, or when a0 is there, and takes 20 ms.
    plan = Plan.from_letters("SK")
    steps_ms = []
    for slower in (1, 2, 3, 4, 5):
        problem = perturbed(two_layers(), 1.0, 1 / slower)
        assert problem.ideal_s == two_layers().ideal_s
        steps_ms.append(1e3 * simulate(problem, plan, 30 * MB).step_s)
    # There and back: 30 + 10, 30 + 20, 40 + 30 and so on: only from the fourth on is it later than 70.
    assert steps_ms == pytest.approx([90, 90, 90, 90 + 20, 110 + 20])
    assert steps_ms == sorted(steps_ms)


def test_a_rebuild_follows_the_operator_that_wrote_its_tensor() -> None:
    # f0 takes 20 ms instead of 10, and so does the rebuild of a0; f1 and that of a1 stay at 20 ms, or take 60.
    slow_f0 = perturbed(two_layers(), np.array([2.0, 1.0, 1.0, 1.0]))
    assert slow_f0.rebuild_s == pytest.approx([20 * MS, 20 * MS])
    assert slow_f0.ideal_s == pytest.approx(100 * MS)
    assert simulate(slow_f0, Plan.from_letters("RK"), 30 * MB).step_s == pytest.approx(120 * MS)
    slow_f1 = perturbed(two_layers(), np.array([1.0, 3.0, 1.0, 1.0]))
    assert slow_f1.rebuild_s == pytest.approx([10 * MS, 60 * MS])
    slow_backward = perturbed(two_layers(), np.array([1.0, 1.0, 3.0, 3.0]))
    assert slow_backward.rebuild_s == pytest.approx([10 * MS, 20 * MS])


def test_only_times_and_bandwidths_change() -> None:
    before = chain(4)
    after = perturbed(before, np.linspace(1, 2, 8), 0.5)
    for column in dataclasses.fields(Problem):
        if column.name in ("duration_s", "rebuild_s", "link"):
            continue
        assert np.array_equal(getattr(after, column.name), getattr(before, column.name)), column.name
    assert after.link == dataclasses.replace(before.link, d2h_bytes_per_s=0.5e9, h2d_bytes_per_s=0.5e9)
    assert math.isinf(after.rebuild_s[0])  # a0 has no rebuild, however fast its producer is
    assert not after.duration_s.flags.writeable
    assert before.duration_s.tolist() == chain(4).duration_s.tolist()


def test_a_draw_lies_within_the_error_and_grows_with_it() -> None:
    problem = chain(50)
    for i in range(20):
        draw = Draw.of(problem, 3, i)
        assert all(-1 <= u < 1 for u in (draw.link, draw.compute, *draw.operators))
        small, large = (draw.applied(problem, error) for error in (0.1, 0.21))
        # 1.21 = 1.1 ^ 2: the exponents are the same, so the factors are the squares.
        factors, squares = (one.duration_s / problem.duration_s for one in (small, large))
        assert squares == pytest.approx(factors**2)
        link_factors = [one.link.d2h_bytes_per_s / problem.link.d2h_bytes_per_s for one in (small, large)]
        assert 1 / 1.1 <= link_factors[0] <= 1.1
        assert link_factors[1] == pytest.approx(link_factors[0] ** 2)
        assert small.link.h2d_bytes_per_s == small.link.d2h_bytes_per_s


def test_each_part_alone() -> None:
    problem = chain(50)
    draw = Draw.of(problem, 0, 0)
    by_link, by_compute, by_operators, by_all = (
        draw.applied(problem, 0.2, parts) for parts in (("link",), ("compute",), ("operators",), PARTS)
    )
    assert by_link.duration_s.tolist() == problem.duration_s.tolist()
    assert by_link.link.h2d_bytes_per_s == problem.link.h2d_bytes_per_s * 1.2**draw.link
    assert by_compute.link == by_operators.link == problem.link
    common = by_compute.duration_s / problem.duration_s
    assert common == pytest.approx(1.2**draw.compute)
    own = by_operators.duration_s / problem.duration_s
    assert own.min() >= 1 / 1.2
    assert own.max() <= 1.2
    assert len(set(own.tolist())) > 90  # a factor of its own for each of the 100 operators
    assert by_all.duration_s == pytest.approx(problem.duration_s * common * own)
    assert by_all.link == by_link.link


def test_iterations_depend_on_seed_and_number_alone() -> None:
    problem = chain(6)
    first, again = Draw.of(problem, 0, 1), Draw.of(problem, 0, 1)
    assert (first.link, first.compute, first.operators.tolist()) == (
        again.link,
        again.compute,
        again.operators.tolist(),
    )
    others = [Draw.of(problem, seed, i) for seed, i in ((0, 0), (0, 2), (1, 1), (1, 0))]
    assert len({first.link, *(other.link for other in others)}) == 5
    # The link of iteration 1 is the same on another problem: comparisons between problems are paired, too.
    assert Draw.of(two_layers(), 0, 1).link == first.link


# What is measured


def test_no_error_gives_the_nominal_score_exactly() -> None:
    conditions = Conditions(errors=(0.0,), samples=5)
    for problem, budget in ((chain(6), "60%"), (two_layers(), "25MB")):
        for one in replayed(problem, budget, conditions=conditions).values():
            (row,) = one.rows
            if row.throughput is None:
                continue
            assert (row.median_throughput, row.worst_throughput, row.best_throughput) == (row.throughput,) * 3
            assert (row.median_of_planned_ideal, row.worst_of_planned_ideal) == (row.throughput,) * 2
            assert row.throughputs == (row.throughput,) * 5
            assert row.not_fitting == 0


def test_statistics_by_hand() -> None:
    row = nominal()
    # Own ideal over step: 1/2, none, 3/4, 2/2; planned ideal, 1, over step: 1/2, none, 1/4, 1/2.
    full = with_iterations(row, np.array([2.0, math.inf, 4.0, 2.0]), np.array([1.0, 2.0, 3.0, 2.0]))
    assert full.not_fitting == 1
    assert full.throughputs == (0.5, None, 0.75, 1.0)
    assert (full.median_throughput, full.worst_throughput, full.best_throughput) == (0.75, 0.5, 1.0)
    assert full.mean_throughput == pytest.approx(0.75)
    assert (full.median_of_planned_ideal, full.worst_of_planned_ideal) == (0.5, 0.25)


def test_what_never_fits_has_no_throughput() -> None:
    row = with_iterations(nominal(), np.array([math.inf, math.inf]), np.array([1.0, 1.0]))
    assert (row.not_fitting, row.throughputs) == (2, (None, None))
    assert (row.median_throughput, row.mean_throughput, row.worst_of_planned_ideal) == (None, None, None)


def test_a_step_of_no_time_is_ideal() -> None:
    row = with_iterations(nominal(ideal_s=0.0), np.array([0.0]), np.array([0.0]))
    assert (row.median_throughput, row.worst_of_planned_ideal) == (1.0, 1.0)


def nominal(ideal_s: float = 1.0) -> RobustnessRow:
    return RobustnessRow(
        problem="p",
        budget_bytes=1,
        budget_fraction=0.5,
        planner="x",
        status="feasible",
        parts="link",
        error=0.1,
        samples=4,
        seed=0,
        ideal_s=ideal_s,
        step_s=1.0,
        throughput=1.0,
    )


def test_a_slower_gpu_is_not_the_plans_fault() -> None:
    # Everything is kept: each step is its own ideal one, and as long as that of the plan over the common factor.
    (row,) = replayed(chain(6), "100%", "keep", Conditions((0.2,), 10, parts=("compute",)))["keep"].rows
    assert list(row.throughputs) == pytest.approx([1.0] * 10)
    slowest = max(1.2 ** Draw.of(chain(6), 0, i).compute for i in range(10))
    assert row.worst_of_planned_ideal == pytest.approx(1 / slowest)


def test_rows_agree_with_replays_by_hand() -> None:
    problem = chain(6)
    one = replayed(problem, "60%", "slackswap", Conditions((0.1, 0.2), 7, seed=5))["slackswap"]
    plan = one.result.outcome.plan
    assert plan is not None
    for row in one.rows:
        drawn = [Draw.of(problem, 5, i).applied(problem, row.error) for i in range(7)]
        scores = [simulate(each, plan, one.result.row.budget_bytes) for each in drawn]
        assert list(row.throughputs) == [score.throughput for score in scores]
        assert row.median_of_planned_ideal == np.median([problem.ideal_s / score.step_s for score in scores])
    assert [row.error for row in one.rows] == [0.1, 0.2]
    assert one.rows[0].parts == "link+compute+operators"


def test_each_planners_plan_runs_under_its_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    policies = set()

    def seen(problem: Problem, plan: Plan | Schedule, budget_bytes: int, *, policy: str) -> Score:
        policies.add(policy)
        return simulate(problem, plan, budget_bytes, policy=policy)

    monkeypatch.setattr(module, "simulate", seen)
    for planner, policy in (("slackswap", "default"), ("barriers", "barriers"), ("superneurons", "on-demand")):
        policies.clear()
        replayed(chain(6), "60%", planner, Conditions(samples=1))
        assert policies == {policy}


def test_all_planners_see_the_same_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[float, ...]] = []

    def spying(problem: Problem, plan: Plan | Schedule, budget_bytes: int, *, policy: str) -> Score:
        seen.append((problem.link.d2h_bytes_per_s, *problem.duration_s.tolist()))
        return simulate(problem, plan, budget_bytes, policy=policy)

    monkeypatch.setattr(module, "simulate", spying)
    names = [
        name for name, one in replayed(chain(6), "60%", conditions=Conditions(samples=4)).items() if one.rows[0].step_s
    ]
    each = 4 * len(ERRORS)
    assert len(names) >= 4
    assert len(seen) == each * len(names)
    assert len(set(seen)) == each
    for i in range(len(names)):
        assert seen[i * each : (i + 1) * each] == seen[:each]


def test_the_same_seed_gives_the_same_rows_and_more_samples_begin_with_fewer() -> None:
    def rows(samples: int, seed: int) -> list[tuple[float | None, ...]]:
        ran = replayed(chain(6), "60%", "slackswap,swapadvisor", Conditions(samples=samples, seed=seed))
        return [row.throughputs for one in ran.values() for row in one.rows]

    assert rows(6, 0) == rows(6, 0)
    assert rows(6, 0) != rows(6, 1)
    assert [throughputs[:6] for throughputs in rows(9, 0)] == rows(6, 0)


def test_schedules_are_replayed_as_they_are() -> None:
    # What a plan lowers to is replayed like the plan; a schedule that was lowered anew could not rebuild a tensor twice.
    plan = Plan.from_letters("SSKKRK")

    def planned(_problem: Problem, _budget_bytes: int) -> Plan:
        return plan

    def scheduled(problem: Problem, _budget_bytes: int) -> Schedule:
        return lower(problem, plan)

    by_plan, by_schedule = robustness([chain(6)], ["5MB"], [planned, scheduled], Conditions((0.0, 0.2), 5))
    assert isinstance(by_schedule.result.outcome.plan, Schedule)
    assert by_plan.rows[1].step_s is not None
    assert [row.throughputs for row in by_schedule.rows] == [row.throughputs for row in by_plan.rows]
    assert len(set(by_plan.rows[1].throughputs)) == 5


def test_iterations_that_do_not_fit_are_counted_and_averaged_into_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain(6)

    def fails_on_slow_links(changed: Problem, plan: Plan | Schedule, budget_bytes: int, *, policy: str) -> Score:
        score = simulate(changed, plan, budget_bytes, policy=policy)
        slow = changed.link.d2h_bytes_per_s < problem.link.d2h_bytes_per_s
        return dataclasses.replace(score, fits=False, step_s=1e-9) if slow else score

    monkeypatch.setattr(module, "simulate", fails_on_slow_links)
    (row,) = replayed(problem, "60%", "slackswap", Conditions((0.2,), 10))["slackswap"].rows
    slow = [Draw.of(problem, 0, i).link < 0 for i in range(10)]
    assert 0 < sum(slow) < 10
    assert row.not_fitting == sum(slow)
    assert [value is None for value in row.throughputs] == slow
    values = [value for value in row.throughputs if value is not None]
    assert row.best_throughput == max(values) <= 1.0
    assert row.median_throughput == np.median(values)


def test_a_budget_without_a_plan_is_a_row_that_says_so() -> None:
    one = replayed(chain(6), "5MB", "keep")["keep"]
    assert len(one.rows) == len(ERRORS)
    for row in one.rows:
        assert (row.status, row.step_s, row.not_fitting, row.throughputs) == ("infeasible", None, None, ())
    assert one.result.infeasibility is not None


def test_planners_budgets_and_problems_come_in_order() -> None:
    announced: list[str] = []
    ran = robustness(
        [chain(6), two_layers()],
        ["60%", "90%"],
        find_planners("keep"),
        Conditions((0.1,), 1),
        guards=(0.1,),
        replanners=find_planners("checkpoint"),
        announce=lambda problem, budget, what: announced.append(f"{problem.name} {budget} {what}"),
    )
    rows = [one.rows[0] for one in ran]
    assert announced[:4] == [
        "chain of 6 60% keep",
        "chain of 6 60% slackswap g=10%",
        "chain of 6 60% checkpoint, replanned",
        "chain of 6 90% keep",
    ]
    assert [(row.planner, row.guard, row.replanned) for row in rows[:3]] == [
        ("keep", None, False),
        ("slackswap g=10%", 0.1, False),
        ("checkpoint", None, True),
    ]
    assert [row.problem for row in rows] == ["chain of 6"] * 6 + ["two layers"] * 6


def test_an_interruption_comes_after_what_is_finished() -> None:
    def pressed(_problem: Problem, _budget_bytes: int) -> Plan:
        raise KeyboardInterrupt

    kept: list[Replayed] = []
    with pytest.raises(KeyboardInterrupt):
        kept.extend(robustness([chain(6)], ["60%"], [*find_planners("slackswap"), pressed], Conditions(samples=2)))
    assert [one.rows[0].planner for one in kept] == ["slackswap"]


@settings(max_examples=40)
@given(st.data())
def test_no_plan_beats_the_ideal_of_its_iteration(data: st.DataObject) -> None:
    problem = data.draw(problems())
    plan = Plan.from_letters(data.draw(decisions(problem)))
    ran = robustness([problem], ["100%"], [lambda *_: plan], Conditions((0.2, 1.0), 3))
    for row in (row for one in ran for row in one.rows if row.step_s is not None):
        fitting = [value for value in row.throughputs if value is not None]
        assert len(fitting) + (row.not_fitting or 0) == 3
        assert all(0 < value <= 1 + 1e-9 for value in fitting)


@settings(max_examples=60, derandomize=True)  # no law of the event model, but what the page reports
@given(st.data())
def test_whether_a_plan_fits_does_not_depend_on_the_times(data: st.DataObject) -> None:
    problem = data.draw(problems())
    plan = Plan.from_letters(data.draw(decisions(problem)))
    budget_bytes = peak_bytes(problem) * data.draw(st.integers(30, 95)) // 100
    for policy in POLICIES:
        planned = simulate(problem, plan, budget_bytes, policy=policy)
        for i in range(3):
            changed = Draw.of(problem, 0, i).applied(problem, 1.0)
            assert simulate(changed, plan, budget_bytes, policy=policy).fits == planned.fits


# Planning with another guard, and planning anew


def test_the_papers_guard_gives_the_papers_plan() -> None:
    for budget_bytes in (4 * MB, 5 * MB):
        plans = [run_planner(planner, chain(8), budget_bytes).plan for planner in (SLACKSWAP, guarded_slackswap(GUARD))]
        assert all(isinstance(plan, Plan) for plan in plans)
        assert len({plan.letters for plan in plans if isinstance(plan, Plan)}) == 1


def test_a_guard_ends_offloads_earlier() -> None:
    # chain(8): the forward pass takes 8 ms. Tensor i is there at i + 1 ms and leaves in 1 ms; 3 MB have to go. Without a
    # guard those are a0, a1 and a2, the last of them gone at 4 ms; with half of the forward pass they may, just so; with
    # 0.6 of it all have to have left by 3.2 ms, a0 and a1 only, and the rest is recomputed.
    def swapped(guard: float) -> list[int]:
        plan = run_planner(guarded_slackswap(guard), chain(8), 5 * MB).plan
        assert isinstance(plan, Plan)
        return np.flatnonzero(plan.decisions == SWAP).tolist()

    assert (swapped(0.0), swapped(0.49), swapped(0.6), swapped(0.99)) == ([0, 1, 2], [0, 1, 2], [0, 1], [])


def test_a_guard_below_the_memory_floor_is_infeasible() -> None:
    ran = list(robustness([chain(6)], ["1MB"], [], Conditions((0.1,), 2), guards=(0.1,)))
    assert [(one.rows[0].status, one.rows[0].guard) for one in ran] == [("infeasible", 0.1)]


@pytest.mark.parametrize("guard", [-0.01, 1.0, math.nan, math.inf])
def test_guards_out_of_range(guard: float) -> None:
    with pytest.raises(InputError, match="a guard is a fraction of the forward time from 0 to below 1"):
        list(robustness([chain(6)], ["60%"], [], guards=(guard,)))


def test_planning_anew_knows_the_times_of_each_iteration() -> None:
    # As a planner it answers with the plan of the problem that it is given: both tensors swapped where the link is fast.
    fast = two_layers().link.d2h_bytes_per_s

    def by_link(problem: Problem, _budget_bytes: int) -> Plan | None:
        return Plan.from_letters("SK" if problem.link.d2h_bytes_per_s >= fast else "RK")

    conditions = Conditions((0.2,), 10, parts=("link",))
    fixed, anew = robustness([two_layers()], ["30MB"], [by_link], conditions, replanners=[by_link])
    assert (fixed.rows[0].replanned, anew.rows[0].replanned) == (False, True)
    assert fixed.rows[0].throughputs == (1.0,) * 10  # even 20% slower, a0 is back at 54 ms, in time for 70
    slow = [Draw.of(two_layers(), 0, i).link < 0 for i in range(10)]
    assert list(anew.rows[0].throughputs) == pytest.approx([0.9 if one else 1.0 for one in slow])
    assert 0 < sum(slow) < 10


def test_where_planning_anew_finds_nothing_the_iteration_does_not_fit() -> None:
    fast = two_layers().link.d2h_bytes_per_s

    def on_fast_links(problem: Problem, _budget_bytes: int) -> Plan | None:
        return Plan.from_letters("SK") if problem.link.d2h_bytes_per_s >= fast else None

    (anew,) = robustness([two_layers()], ["30MB"], [], Conditions((0.2,), 10), replanners=[on_fast_links])
    slow = sum(Draw.of(two_layers(), 0, i).link < 0 for i in range(10))
    assert anew.rows[0].not_fitting == slow > 0
    assert anew.rows[0].throughput == 1.0


BAD_CONDITIONS: list[tuple[dict[str, object], str]] = [
    ({"errors": (0.1, -0.1)}, "errors: an error is a fraction from 0 to 1, not -0.1"),
    ({"errors": (math.nan,)}, "errors: an error is a fraction from 0 to 1, not nan"),
    ({"errors": (1.5,)}, "errors: an error is a fraction from 0 to 1, not 1.5"),
    ({"errors": ()}, "errors: names no error"),
    ({"samples": 0}, "samples: one iteration or more is replayed, not 0"),
    ({"parts": ("link", "gpu")}, "parts: 'gpu' is nothing that can be off: use link, compute, operators"),
    ({"parts": ()}, "parts: names nothing that is off"),
]


@pytest.mark.parametrize(("values", "message"), BAD_CONDITIONS)
def test_conditions_out_of_range(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as raised:
        Conditions(**values)  # type: ignore[arg-type]  # that is the point
    assert str(raised.value).startswith(message)


def test_budgets_are_those_of_the_shootout() -> None:
    one = replayed(chain(6), "50%", "slackswap", Conditions(samples=1))["slackswap"]
    assert one.rows[0].budget_bytes == peak_bytes(chain(6)) // 2
    assert one.rows[0].step_s == one.result.row.step_s
