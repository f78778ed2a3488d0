"""Lowering: from a plan (a decision per tensor) to the schedule that carries it out."""

from __future__ import annotations

from slackswap.models.event_model.buffers import buffers_of
from slackswap.models.event_model.kernel.iteration import lower_decisions
from slackswap.models.plan import Plan, check_plan
from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule


def lower(problem: Problem, plan: Plan) -> Schedule:
    """Return the schedule of a plan.

    Forward operators, then backward operators with rebuild steps inserted: a recomputed tensor is rebuilt immediately
    before its first backward reader, recomputed inputs first (depth first, lower tensor index first), once; it stays until
    its last use. Swapped tensors are offloaded in order of production and prefetched by (deadline, index).

    Raises
    ------
    InputError
        The plan does not belong to the problem (see `check_plan`).
    """
    check_plan(problem, plan)
    buffers = buffers_of(problem)
    columns = buffers.schedule
    lower_decisions(buffers.problem, plan.decisions, columns, buffers.scratch)
    n_steps, n_offloads, n_prefetches = (int(count) for count in columns.counts)
    return Schedule(
        steps=columns.steps[:n_steps],
        drops_start=columns.drops_start[: n_steps + 1],
        drops=columns.drops[: columns.drops_start[n_steps]],
        offload_tensor=columns.offload_tensor[:n_offloads],
        offload_after=columns.offload_after[:n_offloads],
        prefetch_tensor=columns.prefetch_tensor[:n_prefetches],
        prefetch_deadline=columns.prefetch_deadline[:n_prefetches],
        prefetch_after=columns.prefetch_after[:n_prefetches],
    )
