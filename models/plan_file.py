"""Plan files (format slackswap-plan/1): decisions, or a schedule, for one named problem and budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.atomic_file import write_atomically
from slackswap.models.input_file import read_input_bytes
from slackswap.models.legality import check
from slackswap.models.plan import Plan, check_plan
from slackswap.models.problem import Problem
from slackswap.models.problem_file import problem_sha256
from slackswap.models.schedule import Schedule
from slackswap.models.strict_json import decode_record

FORMAT = "slackswap-plan/1"
LIMIT_BYTES = 1 << 30
MAX_BUDGET_BYTES = 10**60  # any budget that the command line takes


class PlannerRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who made the plan."""

    name: str
    version: str = ""
    seed: int | None = None
    seconds: float | None = None


class _ScheduleRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    steps: tuple[int, ...]
    drops: tuple[tuple[int, ...], ...]
    offloads: tuple[tuple[int, int], ...] = ()
    prefetches: tuple[tuple[int, int, int], ...] = ()


class _PlanRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    problem: str
    problem_sha256: str
    budget_bytes: int
    planner: PlannerRecord
    decisions: str | None = None
    schedule: _ScheduleRecord | None = None


@dataclass(frozen=True)
class StoredPlan:
    """A plan with what it was made for, and by whom."""

    plan: Plan | Schedule
    budget_bytes: int
    planner: PlannerRecord


def write_plan(
    path: Path | str, problem: Problem, plan: Plan | Schedule, budget_bytes: int, planner: PlannerRecord
) -> None:
    """Write a plan file, whole or not at all; ``.gz`` is compressed.

    Raises
    ------
    InputError
        The file cannot be written, or the budget is none that it could hold.
    """
    _check_budget(budget_bytes)
    record = _PlanRecord(
        format=FORMAT,
        problem=problem.name,
        problem_sha256=problem_sha256(problem),
        budget_bytes=int(budget_bytes),
        planner=planner,
        decisions=plan.letters if isinstance(plan, Plan) else None,
        schedule=None if isinstance(plan, Plan) else _schedule_record(plan),
    )
    try:
        content = msgspec.json.format(msgspec.json.encode(record), indent=1)
    except UnicodeEncodeError:
        raise InputError("a name holds half a surrogate pair, which is no character", source=str(path)) from None
    write_atomically(path, content + b"\n")


def read_plan(path: Path | str, problem: Problem) -> StoredPlan:
    """Read a plan file that was made for `problem`.

    Raises
    ------
    InputError
        The file breaks a rule of the format, or was made for another problem.
    """
    source = str(path)
    content = read_input_bytes(path, limit_bytes=LIMIT_BYTES)
    try:
        record = decode_record(content, _PlanRecord, FORMAT)
        _check_record(record, problem)
        plan = _plan_of(record)
        if isinstance(plan, Plan):
            check_plan(problem, plan)
        else:
            _check_schedule(problem, plan)
    except InputError as error:
        raise error.within(source) from None
    return StoredPlan(plan, record.budget_bytes, record.planner)


def _check_record(record: _PlanRecord, problem: Problem) -> None:
    _check_budget(record.budget_bytes)
    if record.problem_sha256 != problem_sha256(problem):
        raise InputError(
            f"the plan was made for another problem ('{record.problem}'), or for another version of '{problem.name}': "
            "score it against that one, or plan again",
            place="$.problem_sha256",
        )


def _check_budget(budget_bytes: int) -> None:
    if not budget_bytes >= 0:
        raise InputError(f"a budget is a number of bytes from 0, not {budget_bytes}", place="$.budget_bytes")
    if budget_bytes > MAX_BUDGET_BYTES:
        raise InputError("a budget has at most 60 digits", place="$.budget_bytes")
    if int(budget_bytes) != budget_bytes:
        raise InputError(f"a budget is a whole number of bytes, not {budget_bytes}", place="$.budget_bytes")


def _check_schedule(problem: Problem, schedule: Schedule) -> None:
    reasons = check(problem, schedule)
    if reasons:
        raise InputError(reasons[0], place="$.schedule")


def _plan_of(record: _PlanRecord) -> Plan | Schedule:
    if record.decisions is not None and record.schedule is None:
        return Plan.from_letters(record.decisions)
    if record.schedule is None or record.decisions is not None:
        raise InputError("a plan has either decisions or a schedule", place="$")
    if len(record.schedule.drops) != len(record.schedule.steps):
        raise InputError("has one list for each step", place="$.schedule.drops")
    try:
        return Schedule.from_lists(
            record.schedule.steps, record.schedule.drops, record.schedule.offloads, record.schedule.prefetches
        )
    except OverflowError:
        raise InputError("holds a number that is no index", place="$.schedule") from None


def _schedule_record(schedule: Schedule) -> _ScheduleRecord:
    def rows(*columns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[int]]:
        return [[int(value) for value in row] for row in zip(*columns, strict=True)]

    return msgspec.convert(
        {
            "steps": schedule.steps.tolist(),
            "drops": [schedule.drops_after(k).tolist() for k in range(schedule.n_steps)],
            "offloads": rows(schedule.offload_tensor, schedule.offload_after),
            "prefetches": rows(schedule.prefetch_tensor, schedule.prefetch_deadline, schedule.prefetch_after),
        },
        _ScheduleRecord,
    )
