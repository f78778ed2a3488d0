"""Lowers plans for the reference event model: "The schedule", in plain Python, apart from the product's lowering."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Tensor

HEAVY_KINDS = ("gemm", "attention", "convolution")


@dataclass(frozen=True)
class Step:
    """One step of the schedule: an operator, or the rebuild of a tensor (then `rebuilds` is not None).

    Rule 1: `allocation_bytes` is all that it writes, saved or not, plus its workspace. `layer` is None for a rebuild, which
    is no heavy operator either, whatever it runs.
    """

    name: str
    duration_s: float
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    workspace_bytes: int
    allocation_bytes: int
    layer: int | None
    rebuilds: int | None = None
    heavy: bool = False


def check_decisions(problem: Problem, decisions: str) -> None:
    """Refuse what cannot be lowered.

    Raises
    ------
    InputError
        Not one letter per tensor, an unknown letter, or a tensor that is not saved or that nothing rebuilds.
    """
    if len(decisions) != problem.n_tensors:
        raise InputError(f"a plan has one letter per tensor: {problem.n_tensors}, not {len(decisions)}")
    for t, letter in enumerate(decisions):
        place = f"decisions[{t}]"
        if letter not in "KSR":
            raise InputError(f"is K, S or R, not '{letter}'", place=place)
        if letter != "K" and not problem.saved[t]:
            raise InputError("only a saved tensor is swapped or recomputed", place=place)
        if letter == "R" and not problem.rebuildable[t]:
            raise InputError("no operator rebuilds this tensor", place=place)


def lower(problem: Problem, decisions: str) -> tuple[Step, ...]:
    """Operators in order, each recomputed tensor rebuilt immediately before its first backward reader."""
    tensors = problem.tensors()
    steps: list[Step] = []
    rebuilt: set[int] = set()

    def rebuild_absent(reads: tuple[int, ...]) -> None:
        for t in reads:  # lower index first
            if decisions[t] == "R" and t not in rebuilt:
                step = rebuild_step(tensors, t)
                rebuild_absent(step.reads)  # depth first
                rebuilt.add(t)  # once: it stays until its last use
                steps.append(step)

    for i, step in enumerate(operator_steps(problem, tensors)):
        if i >= problem.n_forward:
            rebuild_absent(step.reads)
        steps.append(step)
    return tuple(steps)


def operator_steps(problem: Problem, tensors: list[Tensor]) -> list[Step]:
    """Return the steps of the operators, in order."""
    reads: list[list[int]] = [[] for _ in range(problem.n_operators)]
    writes: list[list[int]] = [[] for _ in range(problem.n_operators)]
    for t, tensor in enumerate(tensors):
        writes[tensor.producer].append(t)
        for reader in tensor.readers:
            reads[reader].append(t)
    return [
        Step(
            name=operator.name,
            duration_s=operator.duration_s,
            reads=tuple(reads[i]),
            writes=tuple(writes[i]),
            workspace_bytes=operator.workspace_bytes,
            allocation_bytes=operator.workspace_bytes + sum(tensors[t].bytes for t in writes[i]),
            layer=operator.layer,
            heavy=operator.kind in HEAVY_KINDS,
        )
        for i, operator in enumerate(problem.operators())
    ]


def rebuild_step(tensors: list[Tensor], tensor: int) -> Step:
    """Return the step that rebuilds a tensor; it reads the inputs, lower index first."""
    rebuild = tensors[tensor].rebuild
    assert rebuild is not None, "check_decisions lets only rebuildable tensors be recomputed"
    return Step(
        name=tensors[tensor].name,
        duration_s=rebuild.duration_s,
        reads=tuple(sorted(rebuild.inputs)),
        writes=(tensor,),
        workspace_bytes=rebuild.workspace_bytes,
        allocation_bytes=rebuild.workspace_bytes + tensors[tensor].bytes,
        layer=None,
        rebuilds=tensor,
    )


def last_use(steps: tuple[Step, ...], tensor: int) -> int:
    """Place of the last of `steps` that reads or writes `tensor`; -1 if none does."""
    return max((i for i, step in enumerate(steps) if tensor in step.reads or tensor in step.writes), default=-1)


def first_backward_use(steps: tuple[Step, ...], tensor: int, n_forward: int) -> int:
    """Place of the first step after the last forward operator that reads `tensor`, which is saved."""
    return min(i for i, step in enumerate(steps) if i >= n_forward and tensor in step.reads)
