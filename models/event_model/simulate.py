"""Scores plans and schedules: the one entry to the event model's engine."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model.batch import Batch
from slackswap.models.event_model.buffers import Buffers, buffers_of, new_log, new_scratch, schedule_columns
from slackswap.models.event_model.kernel import columns as at
from slackswap.models.event_model.kernel.iteration import lower_decisions, run_schedule
from slackswap.models.event_model.score import Run, RunTimeline, Score, ScoreTable, Timeline
from slackswap.models.legality import check
from slackswap.models.plan import KEEP, RECOMPUTE, SWAP, Plan, broken_rules, check_plan, decision_array
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule, step_name

POLICIES = {"default": at.DEFAULT, "barriers": at.BARRIERS, "on-demand": at.ON_DEMAND}


def simulate(
    problem: Problem,
    plan: Plan | Schedule,
    budget_bytes: float,
    *,
    policy: str = "default",
    timeline: bool = False,
) -> Score:
    """Play one iteration of `problem` under a plan or a schedule.

    Parameters
    ----------
    budget_bytes : whole number of bytes, or infinity
    policy : one of `POLICIES`
        ``default`` is the paper's barrier-free runtime (section 3.4), ``barriers`` synchronizes layers as vDNN does,
        ``on-demand`` copies out only when memory runs out, as SuperNeurons does.
    timeline : whether the score carries the timeline of all lanes and of memory

    Raises
    ------
    InputError
        Unknown policy, a plan of another problem, or an illegal schedule. A plan that does not fit is no error.
    """
    code = _policy_code(policy)
    buffers = buffers_of(problem)
    if isinstance(plan, Plan):
        check_plan(problem, plan)
        columns, scratch = buffers.schedule, buffers.scratch
        lower_decisions(buffers.problem, plan.decisions, columns, scratch)
    else:
        reasons = check(problem, plan)
        if reasons:
            raise InputError(reasons[0], place="schedule")
        columns = schedule_columns(plan)
        scratch = new_scratch(problem, plan.n_steps, plan.prefetch_tensor.size)
    budget = _whole_bytes(budget_bytes)
    run_schedule(buffers.problem, columns, budget, code, scratch, buffers.no_log)
    run = Run(problem, plan, budget, policy)
    lanes = _timeline(run, buffers, columns, scratch, code) if timeline else None
    return _score(problem, plan, columns, scratch, lanes)


def simulate_many(
    problem: Problem,
    decisions: npt.NDArray[np.int8],
    budget_bytes: float,
    *,
    policy: str = "default",
    threads: int = 1,
) -> ScoreTable:
    """Score many plans in one call, without Python between them.

    Parameters
    ----------
    decisions : (k, m) array, a plan per row
    threads : most threads that share the work; the scores do not depend on it

    Raises
    ------
    InputError
        As in `simulate`; the place names the row. Also for fewer than one thread.
    """
    code = _policy_code(policy)
    rows = decision_array(decisions)
    if rows.ndim != 2:
        raise InputError(f"plans come as a table of (plans, tensors), not in {rows.ndim} dimensions", place="decisions")
    if threads < 1:
        raise InputError(f"plans are scored by one thread or more, not by {threads}", place="threads")
    _check_rows(problem, rows)
    batch = Batch(problem, rows, _whole_bytes(budget_bytes), code)
    batch.run(threads)
    integers, floats = batch.integers, batch.floats
    fits = integers[:, at.FAILED] < 0
    return ScoreTable(
        fits=fits,
        step_s=np.where(fits, floats[:, at.NOW], math.inf),
        recompute_s=floats[:, at.RECOMPUTE_S],
        forward_stall_s=floats[:, at.FORWARD_STALL],
        backward_stall_s=floats[:, at.BACKWARD_STALL],
        d2h_bytes=integers[:, at.D2H_BYTES],
        h2d_bytes=integers[:, at.H2D_BYTES],
        peak_bytes=integers[:, at.PEAK],
        missing_bytes=integers[:, at.MISSING],
    )


def peak_bytes(problem: Problem) -> int:
    """Peak P: the largest `used` of the keep-everything plan (rule 3)."""
    return simulate(problem, Plan.keep_everything(problem), math.inf).peak_bytes


def _policy_code(policy: str) -> int:
    if policy not in POLICIES:
        raise InputError(f"'{policy}' is not a runtime policy: use one of {', '.join(POLICIES)}", place="policy")
    return POLICIES[policy]


def _whole_bytes(budget_bytes: float) -> int:
    if not budget_bytes >= 0:  # NaN is not, either
        raise InputError(f"a budget is a number of bytes from 0, not {budget_bytes}", place="budget")
    return int(min(budget_bytes, at.UNLIMITED_BYTES))


def _check_rows(problem: Problem, rows: npt.NDArray[np.int8]) -> None:
    if rows.shape[1] != problem.n_tensors or not len(rows):
        check_plan(problem, Plan(np.zeros(rows.shape[1], np.int8)))
    wrong_rows = np.logical_or.reduce([wrong.any(axis=1) for wrong, _ in broken_rules(problem, rows)])
    if wrong_rows.any():
        row = int(np.argmax(wrong_rows))
        try:
            check_plan(problem, Plan(rows[row]))
        except InputError as error:
            raise error.within(f"plan {row}") from None


def _timeline(run: Run, buffers: Buffers, columns: at.ScheduleColumns, scratch: at.Scratch, policy: int) -> RunTimeline:
    """Run again with room for everything that the first run counted."""
    n_steps = int(columns.counts[0])
    n_copies = int(scratch.integers[at.COPIES])
    # `used` changes twice a step, at each drop of an offloaded tensor, and around each copy.
    n_samples = 2 * n_steps + int(columns.drops_start[n_steps]) + 3 * n_copies
    log = new_log(n_steps, n_copies, n_samples)
    run_schedule(buffers.problem, columns, run.budget_bytes, policy, scratch, log)
    ran = n_steps if scratch.integers[at.FAILED] < 0 else int(scratch.integers[at.FAILED])
    n_used = int(scratch.integers[at.SAMPLES])
    return RunTimeline(
        run=run,
        step_names=tuple(step_name(run.problem, int(code)) for code in columns.steps[:ran]),
        start_s=log.start_s[:ran],
        end_s=log.end_s[:ran],
        input_wait_s=log.input_wait_s[:ran],
        memory_wait_s=log.memory_wait_s[:ran],
        barrier_wait_s=log.barrier_wait_s[:ran],
        awaited=log.awaited[:ran],
        copy_is_d2h=log.copy_engine == at.D2H,
        copy_tensor=log.copy_tensor,
        copy_start_s=log.copy_start_s,
        copy_end_s=log.copy_end_s,
        memory_s=log.memory_s[:n_used],
        memory_bytes=log.memory_bytes[:n_used],
    )


def _score(
    problem: Problem,
    plan: Plan | Schedule,
    columns: at.ScheduleColumns,
    scratch: at.Scratch,
    lanes: Timeline | None,
) -> Score:
    integers, floats = scratch.integers, scratch.floats
    failed = int(integers[at.FAILED])
    keep_bytes, swap_bytes, recompute_bytes = _bytes_by_decision(problem, plan)
    return Score(
        fits=failed < 0,
        step_s=float(floats[at.NOW]),
        ideal_s=problem.ideal_s,
        recompute_s=float(floats[at.RECOMPUTE_S]),
        forward_stall_s=float(floats[at.FORWARD_STALL]),
        backward_stall_s=float(floats[at.BACKWARD_STALL]),
        d2h_bytes=int(integers[at.D2H_BYTES]),
        h2d_bytes=int(integers[at.H2D_BYTES]),
        peak_bytes=int(integers[at.PEAK]),
        keep_bytes=keep_bytes,
        swap_bytes=swap_bytes,
        recompute_bytes=recompute_bytes,
        failed_step=None if failed < 0 else step_name(problem, int(columns.steps[failed])),
        missing_bytes=int(integers[at.MISSING]),
        timeline=lanes,
    )


def _bytes_by_decision(problem: Problem, plan: Plan | Schedule) -> tuple[int, int, int]:
    """Saved bytes kept, swapped, recomputed; in a schedule: never freed, offloaded, rebuilt without an offload."""
    if isinstance(plan, Plan):
        decisions = plan.decisions
    else:
        decisions = np.full(problem.n_tensors, KEEP, np.int8)
        rebuilt = plan.rebuilds(problem)
        decisions[rebuilt[rebuilt >= 0]] = RECOMPUTE
        decisions[plan.offload_tensor] = SWAP
    saved_bytes = np.where(problem.saved, problem.tensor_bytes, 0)
    keep, swap, recompute = (int(saved_bytes[decisions == decision].sum()) for decision in (KEEP, SWAP, RECOMPUTE))
    return keep, swap, recompute
