"""Says in words why a schedule is illegal, independent of the event model."""

from __future__ import annotations

from collections.abc import Iterator

from slackswap.models.problem import Problem
from slackswap.models.schedule import Schedule, step_name


def check(problem: Problem, schedule: Schedule) -> list[str]:
    """Return every reason why the event model cannot execute `schedule`; an empty list if it can.

    Legal means: operators in order, each once; a tensor is read, dropped or offloaded only where it can be on the device;
    rebuilds name tensors that can be rebuilt and are not there; each prefetch serves a step that reads the tensor, has a
    host copy to come from, and may start before that step. Whether it fits the budget is the event model's to say.
    """
    shape = list(_check_shape(problem, schedule))
    if shape:
        return shape  # the walk below would stumble over indices that do not exist
    return [*_check_order(problem, schedule), *_check_copies(problem, schedule), *_walk(problem, schedule)]


def _check_shape(problem: Problem, schedule: Schedule) -> Iterator[str]:
    n_codes, n_tensors, n_steps = problem.n_operators + problem.n_tensors, problem.n_tensors, schedule.n_steps
    start = schedule.drops_start
    if start.size != n_steps + 1 or start[0] != 0 or start[-1] != schedule.drops.size or (start[1:] < start[:-1]).any():
        yield "drops: starts do not describe one list per step"
    if schedule.offload_tensor.size != schedule.offload_after.size:
        yield "offloads: tensors and steps differ in number"
    sizes = {schedule.prefetch_tensor.size, schedule.prefetch_deadline.size, schedule.prefetch_after.size}
    if len(sizes) > 1:
        yield "prefetches: tensors, deadlines and steps differ in number"
    for name, column, end in (
        ("steps", schedule.steps, n_codes),
        ("drops", schedule.drops, n_tensors),
        ("offloads: tensor", schedule.offload_tensor, n_tensors),
        ("prefetches: tensor", schedule.prefetch_tensor, n_tensors),
        ("prefetches: deadline", schedule.prefetch_deadline, n_steps),
        ("offloads: step", schedule.offload_after, n_steps),
    ):
        if column.size and (column.min() < 0 or column.max() >= end):
            yield f"{name}: {int(column[(column < 0) | (column >= end)][0])} lies outside 0 .. {end - 1}"


def _check_order(problem: Problem, schedule: Schedule) -> Iterator[str]:
    operators = schedule.steps[schedule.steps < problem.n_operators].tolist()
    if operators != list(range(problem.n_operators)):
        yield "steps: every operator stands once, in the order of the problem"
    offloaded = set(schedule.offload_tensor.tolist())
    for code in schedule.steps[schedule.steps >= problem.n_operators].tolist():
        if code - problem.n_operators in offloaded:
            yield f"{step_name(problem, code)}: the tensor is offloaded too; a schedule brings it back one way or the other"
        if not problem.rebuildable[code - problem.n_operators]:
            yield f"{step_name(problem, code)}: the tensor has no rebuild"


def _check_copies(problem: Problem, schedule: Schedule) -> Iterator[str]:
    names = problem.tensor_names
    offloads = schedule.offload_tensor.tolist()
    if len(set(offloads)) < len(offloads):
        yield "offloads: a tensor is offloaded at most once, its host copy stays valid"
    if (schedule.offload_after[1:] < schedule.offload_after[:-1]).any():
        yield "offloads: the queue is in order of the steps after which its copies may start"
    entries = list(zip(schedule.prefetch_deadline.tolist(), schedule.prefetch_tensor.tolist(), strict=True))
    if entries != sorted(set(entries)):
        yield "prefetches: the queue is in order of (deadline, tensor), each pair once"
    for (deadline, t), after in zip(entries, schedule.prefetch_after.tolist(), strict=True):
        if t not in offloads:
            yield f"prefetch of '{names[t]}': it is never offloaded"
        if after >= deadline:
            yield f"prefetch of '{names[t]}': it may start after step {after}, but is read at step {deadline}"
        if t not in _inputs(problem, int(schedule.steps[deadline])):
            yield f"prefetch of '{names[t]}': step {deadline} does not read it"


def _inputs(problem: Problem, code: int) -> list[int]:
    read = (
        problem.reads_of(code) if code < problem.n_operators else problem.rebuild_inputs_of(code - problem.n_operators)
    )
    return [int(t) for t in read]


def _outputs(problem: Problem, code: int) -> list[int]:
    return list(problem.writes_of(code)) if code < problem.n_operators else [code - problem.n_operators]


def _walk(problem: Problem, schedule: Schedule) -> Iterator[str]:
    """Follow which tensors can be on the device, step by step."""
    there: set[int] = set()
    produced: set[int] = set()
    fetched = set(zip(schedule.prefetch_tensor.tolist(), schedule.prefetch_deadline.tolist(), strict=True))
    offload_after = dict(zip(schedule.offload_tensor.tolist(), schedule.offload_after.tolist(), strict=True))
    to_offload = sorted(offload_after.items(), key=lambda item: item[1])
    for k, code in enumerate(schedule.steps.tolist()):
        name = step_name(problem, code)
        for t in _inputs(problem, code):
            if t not in there and (t, k) in fetched and offload_after.get(t, k) < k:
                there.add(t)
            if t not in there:
                yield f"step {k}, {name}, reads '{problem.tensor_names[t]}', which is not on the device by then"
        for t in _outputs(problem, code):
            if code >= problem.n_operators and t not in produced:
                yield f"step {k}, {name}: the tensor has not been produced yet"
            if t in there:
                yield f"step {k}, {name}: the tensor is still on the device"
            there.add(t)
            produced.add(t)
        while to_offload and to_offload[0][1] <= k:
            t, _ = to_offload.pop(0)
            if t not in there:
                yield f"offload of '{problem.tensor_names[t]}' after step {k}: it is not on the device by then"
        for t in schedule.drops_after(k).tolist():
            if t not in there:
                yield f"step {k}, {name}, is followed by a drop of '{problem.tensor_names[t]}', which is not on the device"
            there.discard(t)
