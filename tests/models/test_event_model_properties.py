"""What must hold of every run, whatever the plan, the budget and the policy; plans, and schedules of the richer space."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import chain, crowded_chains, decisions, problems

from slackswap.models.event_model import POLICIES, Score, Timeline, peak_bytes, simulate, simulate_many
from slackswap.models.legality import check
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule

INSTANT_S = 1e-9  # rule 10: ends closer than this are one instant, the later
examples = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
LANES = [field.name for field in dataclasses.fields(Timeline)]


def least_bytes(problem: Problem) -> int:
    """What some operator needs at once; near it copies crowd, stall and are evicted."""
    return max(
        int(problem.allocation_bytes[i] + problem.tensor_bytes[problem.reads_of(i)].sum())
        for i in range(problem.n_operators)
    )


def budgets(problem: Problem) -> st.SearchStrategy[int]:
    low, high = least_bytes(problem), peak_bytes(problem)
    within = st.sampled_from([0.0, 0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0]).map(
        lambda share: int(low + share * (high - low))
    )
    return st.sampled_from([True] * 7 + [False]).flatmap(lambda fits: within if fits else st.integers(0, low))


class Run(NamedTuple):
    """One input of the event model."""

    problem: Problem
    plan: Plan
    budget_bytes: int
    policy: str

    def score(self, timeline: bool = False) -> Score:
        return simulate(self.problem, self.plan, self.budget_bytes, policy=self.policy, timeline=timeline)


@st.composite
def runs(draw: st.DrawFn, policies: Sequence[str] = tuple(POLICIES)) -> Run:
    problem = draw(st.one_of(problems(), crowded_chains()))
    letters = draw(decisions(problem))
    if draw(st.booleans()):  # swap whatever can be
        letters = "".join("S" if saved else "K" for saved in problem.saved)
    return Run(problem, Plan.from_letters(letters), draw(budgets(problem)), draw(st.sampled_from(policies)))


def totals(score: Score) -> dict[str, object]:
    """Everything but the timeline, floats as they are: equal means bit for bit."""
    return {field.name: getattr(score, field.name) for field in dataclasses.fields(Score) if field.name != "timeline"}


def lanes(score: Score) -> Timeline:
    assert score.timeline is not None
    return score.timeline


# ---- Same input, same result ----------------------------------------------------------------------------------------------


@examples
@given(runs(), runs())
def test_same_input_same_result(run: Run, other: Run) -> None:
    first = run.score(timeline=True)
    other.score()  # leaves nothing behind
    Run(run.problem, Plan.keep_everything(run.problem), 0, "barriers").score()
    again = run.score(timeline=True)
    # Another object with the same content has buffers of its own.
    fresh = Problem.from_records("again", run.problem.operators(), run.problem.tensors(), run.problem.link)
    for score in (again, run._replace(problem=fresh).score(timeline=True)):
        assert totals(score) == totals(first)
        for lane in LANES:
            assert np.array_equal(getattr(lanes(score), lane), getattr(lanes(first), lane)), lane


@examples
@given(runs())
def test_looking_changes_nothing(run: Run) -> None:
    assert totals(run.score(timeline=True)) == totals(run.score(timeline=False))


@examples
@given(runs())
def test_a_lowered_plan_scores_as_the_plan(run: Run) -> None:
    schedule = lower(run.problem, run.plan)
    score = simulate(run.problem, schedule, run.budget_bytes, policy=run.policy)
    assert totals(score) == totals(run.score())


@examples
@given(st.data())
def test_a_table_scores_as_its_rows(data: st.DataObject) -> None:
    run = data.draw(runs())
    letters = [run.plan.letters, *data.draw(st.lists(decisions(run.problem), max_size=5))]
    rows = np.array([Plan.from_letters(row).decisions for row in letters]).reshape(len(letters), -1)
    table = simulate_many(run.problem, rows, run.budget_bytes, policy=run.policy)
    for i, row in enumerate(letters):
        expected = totals(run._replace(plan=Plan.from_letters(row)).score())
        if not expected["fits"]:
            expected["step_s"] = math.inf
        for column in dataclasses.fields(table):
            assert getattr(table, column.name)[i] == expected[column.name], column.name


def test_threads_do_not_share_memory() -> None:
    problem = chain(40)
    plans = [Plan.from_letters("K" + letters * 13) for letters in ("SSR", "RKS", "KSK", "RRR", "SKK", "SSS")]
    budget_bytes = peak_bytes(problem) // 2

    def score(plan: Plan) -> dict[str, object]:
        return totals(simulate(problem, plan, budget_bytes))

    expected = [score(plan) for plan in plans]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(score, plans * 20)) == expected * 20


# ---- Times ----------------------------------------------------------------------------------------------------------------


@examples
@given(problems(), st.sampled_from(list(POLICIES)))
def test_keeping_everything_at_the_peak_is_ideal(problem: Problem, policy: str) -> None:
    peak = peak_bytes(problem)
    score = simulate(problem, Plan.keep_everything(problem), peak, policy=policy)
    assert score.fits
    assert score.step_s == problem.ideal_s  # exactly: the same sum in the same order
    assert (score.recompute_s, score.forward_stall_s, score.backward_stall_s) == (0, 0, 0)
    assert (score.d2h_bytes, score.h2d_bytes) == (0, 0)
    assert score.peak_bytes == peak
    if peak > 0:
        assert not simulate(problem, Plan.keep_everything(problem), peak - 1, policy=policy).fits


@examples
@given(runs())
def test_the_step_is_work_and_stalls(run: Run) -> None:
    score = run.score(timeline=True)
    stall_s = score.forward_stall_s + score.backward_stall_s
    assert min(score.recompute_s, score.forward_stall_s, score.backward_stall_s) >= 0
    # What the lanes say, they say of the same stalls.
    told = lanes(score)
    waits_s = told.input_wait_s.sum() + told.memory_wait_s.sum() + told.barrier_wait_s.sum()
    if not score.fits:
        assert (
            waits_s <= stall_s + INSTANT_S
        )  # the step that does not fit has waited too, and has no place in the lanes
        return
    tolerance_s = INSTANT_S * len(lanes(score).start_s)
    work_s = run.problem.ideal_s + score.recompute_s
    assert score.step_s >= work_s - tolerance_s
    assert score.step_s == pytest.approx(work_s + stall_s, rel=0, abs=tolerance_s)
    assert waits_s == pytest.approx(stall_s, rel=0, abs=tolerance_s)
    rebuild_s = run.problem.rebuild_s[run.plan.decisions == 2].sum()
    assert score.recompute_s == pytest.approx(rebuild_s)
    # The ideal step is a certified lower bound.
    assert score.step_s >= run.problem.ideal_s - tolerance_s
    assert score.throughput is not None
    assert 0 <= score.throughput <= 1 + 1e-6


# ---- Lanes and memory -----------------------------------------------------------------------------------------------------


@examples
@given(runs())
def test_lanes_do_one_thing_at_a_time(run: Run) -> None:
    check_lanes(run.problem, run.score(timeline=True))


def check_lanes(problem: Problem, score: Score) -> None:
    lane = lanes(score)
    assert np.all(lane.end_s >= lane.start_s)
    for is_d2h in (True, False):
        mine = lane.copy_is_d2h == is_d2h
        assert np.all(lane.copy_end_s[mine][:-1] <= lane.copy_start_s[mine][1:])
        assert np.all(lane.copy_end_s[mine] >= lane.copy_start_s[mine])
        # A copy takes at least its latency and its bytes at full bandwidth.
        bandwidth = problem.link.d2h_bytes_per_s if is_d2h else problem.link.h2d_bytes_per_s
        least_s = problem.link.latency_s + problem.tensor_bytes[lane.copy_tensor[mine]] / bandwidth
        assert np.all(lane.copy_end_s[mine] - lane.copy_start_s[mine] >= least_s - INSTANT_S)
        copied = int(problem.tensor_bytes[lane.copy_tensor[mine]].sum())
        assert copied == (score.d2h_bytes if is_d2h else score.h2d_bytes)
    # At most one offload per tensor, before its first prefetch.
    out = lane.copy_tensor[lane.copy_is_d2h].tolist()
    assert len(set(out)) == len(out)
    left_s = dict(zip(out, lane.copy_end_s[lane.copy_is_d2h].tolist(), strict=True))
    back = ~lane.copy_is_d2h
    assert all(
        left_s[t] <= start_s
        for t, start_s in zip(lane.copy_tensor[back].tolist(), lane.copy_start_s[back].tolist(), strict=True)
    )


@examples
@given(runs())
def test_memory_stays_within_the_budget_and_returns_to_nothing(run: Run) -> None:
    score = run.score(timeline=True)
    lane = lanes(score)
    used = lane.memory_bytes
    assert np.all(np.diff(lane.memory_s) >= 0)
    assert np.all((used >= 0) & (used <= run.budget_bytes))  # where the plan does not fit, too: up to there
    assert score.peak_bytes == max(used, default=0)
    if score.fits:
        # What is still being copied out as the iteration ends is still there; nothing else is.
        in_flight = lane.copy_tensor[np.isinf(lane.copy_end_s)]
        assert used[-1] == run.problem.tensor_bytes[in_flight].sum()
        assert score.missing_bytes == 0
    else:
        assert score.missing_bytes > 0
        assert score.failed_step is not None


class Audit:
    """Replays a timeline against its schedule, sharing nothing with the engine but the rules.

    It keeps only who is where. Every start must find what it needs at its instant: a step its inputs, an offload its
    tensor, a prefetch its host copy. An eviction (rule 9) leaves no trace of its own: it is inferred when a tensor that
    is there comes in once more, and from then on memory is no longer compared.
    """

    def __init__(self, problem: Problem, schedule: Schedule, lane: Timeline) -> None:
        self.problem, self.schedule = problem, schedule
        self.n_forward_steps = int(np.max(np.flatnonzero(schedule.steps < problem.n_forward), initial=-1)) + 1
        self.there: set[int] = set()
        self.host: set[int] = set()
        self.leaves_with_copy: set[int] = set()  # dropped while its offload was queued or under way
        self.queue = list(zip(schedule.offload_tensor.tolist(), schedule.offload_after.tolist(), strict=True))
        self.leaving: int | None = None
        self.coming: int | None = None
        self.step, self.running = 0, False
        self.used, self.evictions = 0, 0
        self.used_at: dict[float, int] = {}
        self.starts = {"step": lane.start_s.tolist(), "out": [], "in": []}
        self.ends = {"step": lane.end_s.tolist(), "out": [], "in": []}
        self.tensors: dict[str, list[int]] = {"out": [], "in": []}
        for is_d2h, t, start_s, end_s in zip(
            *(lane.copy_is_d2h, lane.copy_tensor, lane.copy_start_s, lane.copy_end_s), strict=True
        ):
            name = "out" if is_d2h else "in"
            self.starts[name].append(float(start_s))
            self.ends[name].append(float(end_s))
            self.tensors[name].append(int(t))
        self.done = {"step": 0, "out": 0, "in": 0}

    def inputs(self, step: int) -> list[int]:
        code = int(self.schedule.steps[step])
        n = self.problem.n_operators
        read = self.problem.reads_of(code) if code < n else self.problem.rebuild_inputs_of(code - n)
        return [int(t) for t in read]

    def outputs(self, step: int) -> list[int]:
        code = int(self.schedule.steps[step])
        n = self.problem.n_operators
        return list(self.problem.writes_of(code)) if code < n else [code - n]

    def workspace(self, step: int) -> int:
        code = int(self.schedule.steps[step])
        n = self.problem.n_operators
        return int(self.problem.workspace_bytes[code] if code < n else self.problem.rebuild_workspace_bytes[code - n])

    def run(self) -> None:
        """Go through the instants; what is due at one and cannot happen is an error of the engine."""
        for now_s in _instants([*self.starts.values(), *self.ends.values()]):
            while self.happens(now_s) or self.is_evicted(now_s):
                pass
            for name, starts in self.starts.items():
                late = starts[self.done[name] :]
                assert not late or late[0] > now_s, f"{name} {self.done[name]} starts too early, at {now_s}"
            self.used_at[now_s] = self.used

    def happens(self, now_s: float) -> bool:
        """Go through an instant in the order of rule 10; return whether anything did happen."""
        ends = [self.end_step(now_s), self.end_out(now_s), self.end_in(now_s)]
        starts = [self.start_out(now_s), self.start_step(now_s), self.start_in(now_s)]
        return any(ends) or any(starts)

    def is_evicted(self, now_s: float) -> bool:
        """Rule 9, only when nothing else can happen: what comes in once more must have gone, some time before."""
        if self.coming is not None or not self.due("in", now_s):
            return False
        self.evictions += 1
        self.remove(self.tensors["in"][self.done["in"]])
        return True

    def due(self, name: str, now_s: float) -> bool:
        i = self.done[name]
        return i < len(self.starts[name]) and self.starts[name][i] <= now_s

    def start_step(self, now_s: float) -> bool:
        if self.running or not self.due("step", now_s) or not self.there.issuperset(self.inputs(self.step)):
            return False
        if self.step >= self.n_forward_steps:  # rule 7
            self.queue = [(t, after) for t, after in self.queue if t not in self.inputs(self.step)]
        self.used += self.workspace(self.step) + sum(self.problem.tensor_bytes[t] for t in self.outputs(self.step))
        self.running = True
        self.done["step"] += 1
        return True

    def end_step(self, now_s: float) -> bool:
        if not self.running or self.ends["step"][self.step] > now_s:
            return False
        self.used -= self.workspace(self.step)
        self.there.update(self.outputs(self.step))
        for t in self.schedule.drops_after(self.step).tolist():
            if t == self.leaving or t in [queued for queued, _ in self.queue]:
                self.leaves_with_copy.add(t)
            else:
                self.remove(t)
        self.running = False
        self.step += 1
        if self.step < self.schedule.n_steps:  # rule 7: compute stands at it
            self.leaves_with_copy.difference_update(self.inputs(self.step))
        return True

    def remove(self, tensor: int) -> None:
        self.there.remove(tensor)
        self.used -= int(self.problem.tensor_bytes[tensor])

    def start_out(self, now_s: float) -> bool:
        if self.leaving is not None or not self.due("out", now_s) or not self.queue or self.queue[0][1] >= self.step:
            return False
        t = self.tensors["out"][self.done["out"]]
        assert t == self.queue.pop(0)[0], "the D2H queue is first in, first out"
        assert t in self.there
        self.leaving = t
        self.done["out"] += 1
        return True

    def end_out(self, now_s: float) -> bool:
        if self.leaving is None or self.ends["out"][self.done["out"] - 1] > now_s:
            return False
        self.host.add(self.leaving)
        if self.leaving in self.leaves_with_copy:
            self.leaves_with_copy.remove(self.leaving)
            self.remove(self.leaving)
        self.leaving = None
        return True

    def start_in(self, now_s: float) -> bool:
        if self.coming is not None or not self.due("in", now_s):
            return False
        t = self.tensors["in"][self.done["in"]]
        if (
            t not in self.host
            or t in self.there
            or not any(
                tensor == t and after < self.step <= deadline
                for tensor, deadline, after in zip(
                    *(self.schedule.prefetch_tensor, self.schedule.prefetch_deadline, self.schedule.prefetch_after),
                    strict=True,
                )
            )
        ):
            return False
        self.used += int(self.problem.tensor_bytes[t])
        self.coming = t
        self.done["in"] += 1
        return True

    def end_in(self, now_s: float) -> bool:
        if self.coming is None or self.ends["in"][self.done["in"] - 1] > now_s:
            return False
        self.there.add(self.coming)
        self.coming = None
        return True


def _instants(lanes_s: list[list[float]]) -> list[float]:
    """Finite times in order; those less than 1 ns after the first of an instant belong to it, and the last names it."""
    instants: list[float] = []
    first_s = -math.inf
    for at_s in sorted({at_s for lane in lanes_s for at_s in lane if math.isfinite(at_s)}):
        if at_s - first_s < INSTANT_S:
            instants[-1] = at_s
        else:
            instants.append(at_s)
            first_s = at_s
    return instants


def audit(problem: Problem, schedule: Schedule, score: Score) -> Audit:
    lane = lanes(score)
    seen = Audit(problem, schedule, lane)
    seen.run()
    if score.fits:
        assert seen.done == {name: len(starts) for name, starts in seen.starts.items()}
        assert seen.step == schedule.n_steps
    if score.fits and seen.evictions == 0:
        told = {at_s: int(used) for at_s, used in zip(lane.memory_s.tolist(), lane.memory_bytes, strict=True)}
        for instant_s, used in seen.used_at.items():
            last_s = max((at_s for at_s in told if at_s <= instant_s), default=None)
            assert used == (0 if last_s is None else told[last_s]), f"memory at {instant_s}"
    return seen


# The audit follows the schedule's queues; under `on-demand` there are none, the reference model alone watches it.
AUDITED = ("default", "barriers")


def test_plans_pass_the_audit() -> None:
    seen: Counter[str] = Counter()

    @settings(examples, max_examples=900, derandomize=True, database=None)
    @given(runs(AUDITED))
    def pass_audit(run: Run) -> None:
        score = run.score(timeline=True)
        book = audit(run.problem, lower(run.problem, run.plan), score)
        seen["fits"] += score.fits
        seen["evictions"] += book.evictions
        seen["offloads"] += book.done["out"]
        seen["prefetches"] += book.done["in"]

    pass_audit()
    for what, at_least in {"fits": 150, "offloads": 500, "prefetches": 300, "evictions": 1}.items():
        assert seen[what] >= at_least, (what, seen)


# ---- The richer space -------------------------------------------------------------------------------------------------------


@st.composite
def rich_schedules(draw: st.DrawFn, problem: Problem) -> Schedule:
    """Return legal schedules with drops at any step, several rebuilds and fetches of one tensor, prefetch points.

    A tensor is pinned, offloaded, or rebuilt wherever it is missing; inputs of rebuilds come first. An offloaded tensor is
    not dropped for another fetch once a backward step has read it: that reading may have cancelled its offload (rule 7).
    """
    n = problem.n_operators
    some_modes = ["pinned", "offloaded", draw(st.sampled_from(["offloaded", "rebuilt"])), "rebuilt"]
    modes = [
        draw(st.sampled_from(some_modes if rebuildable else some_modes[:2])) for rebuildable in problem.rebuildable
    ]
    steps: list[int] = []
    drops: list[list[int]] = []
    offloads: list[tuple[int, int]] = []
    prefetches: list[tuple[int, int, int]] = []
    there: set[int] = set()
    read_late: set[int] = set()
    inputs: list[list[int]] = []

    def supply(tensors: list[int]) -> None:
        for t in tensors:
            if t not in there and modes[t] == "rebuilt":
                add(n + t, problem.rebuild_inputs_of(t).tolist(), [t])

    def add(code: int, reads: list[int], writes: list[int]) -> None:
        while any(modes[t] == "rebuilt" and t not in there for t in reads):
            supply(reads)  # again: what one rebuild drops, another may need
        for t in reads:
            if t not in there:
                prefetches.append((t, len(steps), draw(st.integers(-1, len(steps) - 1))))
                there.add(t)
        there.update(writes)
        if problem.n_forward - 1 in steps:
            read_late.update(reads)
        steps.append(code)
        inputs.append(reads)
        drops.append([])
        offloads.extend((t, len(steps) - 1) for t in writes if modes[t] == "offloaded")
        for t in sorted(there):
            may_drop = modes[t] == "rebuilt" or (modes[t] == "offloaded" and t not in read_late)
            if may_drop and draw(st.booleans()):
                drops[-1].append(t)
                there.discard(t)

    for i in range(n):
        add(i, problem.reads_of(i).tolist(), list(problem.writes_of(i)))
    for t in there:
        uses = [k for k, reads in enumerate(inputs) if t in reads]
        made = [k for k, code in enumerate(steps) if code in (int(problem.producer[t]), n + t)]
        drops[max(uses + made)].append(t)
    return Schedule.from_lists(steps, drops, offloads, prefetches)


def test_rich_schedules_pass_the_audit() -> None:
    seen: Counter[str] = Counter()

    @settings(examples, max_examples=700, derandomize=True, database=None)
    @given(st.data())
    def pass_audit(data: st.DataObject) -> None:
        problem = data.draw(problems(max_forward=5))
        schedule = data.draw(rich_schedules(problem))
        assert check(problem, schedule) == []
        budget_bytes = data.draw(st.one_of(st.just(math.inf), budgets(problem)))
        policy = data.draw(st.sampled_from(AUDITED))
        score = simulate(problem, schedule, budget_bytes, policy=policy, timeline=True)
        assert totals(score) == totals(simulate(problem, schedule, budget_bytes, policy=policy))
        check_lanes(problem, score)
        book = audit(problem, schedule, score)
        assert budget_bytes < math.inf or (score.fits and book.evictions == 0)
        assert score.peak_bytes <= budget_bytes
        if score.fits:
            rebuilds = Counter(t for t in schedule.rebuilds(problem).tolist() if t >= 0)
            rebuild_s = sum(problem.rebuild_s[t] * times for t, times in rebuilds.items())
            assert score.recompute_s == pytest.approx(rebuild_s)
            seen["rebuilt twice"] += max(rebuilds.values(), default=0) > 1
            seen["prefetches"] += book.done["in"] > 0
            seen["forward prefetches"] += any(a < problem.n_forward for a in schedule.prefetch_deadline.tolist())
            seen["fits"] += 1

    pass_audit()
    for what, at_least in {"fits": 300, "rebuilt twice": 50, "prefetches": 70, "forward prefetches": 40}.items():
        assert seen[what] >= at_least, (what, seen)


@examples
@given(runs())
def test_more_memory_than_the_peak_is_never_missed(run: Run) -> None:
    # A law that does hold: with room for everything at once (every tensor twice, every workspace), each plan fits.
    problem = run.problem
    room = 2 * problem.tensor_bytes.sum() + problem.workspace_bytes.sum() + problem.rebuild_workspace_bytes.sum()
    assert run._replace(budget_bytes=int(room)).score().fits
