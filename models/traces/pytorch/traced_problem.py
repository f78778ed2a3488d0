"""Builds the problem's records from an iteration, its storages and its times."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from slackswap.models.problem import Operator, Tensor
from slackswap.models.traces.operator_kind import is_collective, is_random, shown_name
from slackswap.models.traces.pytorch.execution_trace import ACCUMULATE_GRAD, Iteration, Node
from slackswap.models.traces.pytorch.operator_times import OperatorTimes
from slackswap.models.traces.rebuild_recipes import is_saved
from slackswap.models.traces.storage_lifetimes import Lifetime
from slackswap.models.traces.storage_records import TimedCall, problem_records

CPU = "cpu"
# An annotation that numbers a repeated part of a model: `block.3`, `transformer.h.3`, `layers.11`.
_NUMBERED = re.compile(r"[A-Za-z_]\w*\.\d+$")


STORAGE_IDS = (
    "Saved tensors are storages born in a forward operator and read in a backward one; views are not reads.",
    "Temporaries and gradients last until their last recorded use.",
)


@dataclass(frozen=True, slots=True)
class TracedProblem:
    """Records of a problem, and sentences for its metadata."""

    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    heuristics: tuple[str, ...]
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Storages:
    """Storages of the compute device, by what they become in the problem.

    Attributes
    ----------
    tensors : used by a later operator than the one they were born in, in order of birth
    temporaries : die in the operator that they were born in
    weight_gradients : stay after the step
    resident : existed before the trace, or were made outside of the two passes
    elsewhere_bytes : bytes born in the iteration on other devices
    """

    tensors: tuple[Lifetime, ...]
    temporaries: tuple[Lifetime, ...]
    weight_gradients: tuple[Lifetime, ...]
    resident: tuple[Lifetime, ...]
    elsewhere_bytes: int


def compute_device(lifetimes: Sequence[Lifetime]) -> str:
    """Return the accelerator that holds most bytes, or ``cpu`` where the trace names no accelerator."""
    bytes_on: Counter[str] = Counter()
    for lifetime in lifetimes:
        bytes_on[lifetime.device] += lifetime.bytes
    accelerators = [device for device in bytes_on if device not in (CPU, "meta", "")]
    return max(accelerators, key=lambda device: (bytes_on[device], device), default=CPU)


def build_records(
    nodes: Sequence[Node],
    iteration: Iteration,
    lifetimes: Sequence[Lifetime],
    device: str,
    times: OperatorTimes,
    found: Sequence[str] = STORAGE_IDS,
) -> TracedProblem:
    """Turn an iteration into operators and tensors.

    Parameters
    ----------
    nodes : all calls of the trace
    lifetimes : of all storages, on all devices, in order of birth
    device : the storages that count are on this one
    found : sentences on how the storages were found
    """
    storages = _classify(iteration, lifetimes, device)
    calls = [
        TimedCall(name, root.node.name, duration_s)
        for name, root, duration_s in zip(
            _operator_names(iteration), iteration.operators, times.duration_s, strict=True
        )
    ]
    operators, tensors = problem_records(
        calls,
        len(iteration.forward),
        storages.tensors,
        storages.temporaries,
        blocks=_blocks(iteration, storages.tensors),
        can_repeat=_repeatable(iteration, times).__contains__,
    )
    heuristics = (*found, *_heuristics(nodes, iteration, storages.tensors, tensors), *times.heuristics)
    return TracedProblem(operators, tensors, heuristics, _left_out(storages))


def _classify(iteration: Iteration, lifetimes: Sequence[Lifetime], device: str) -> _Storages:
    tensors, temporaries, gradients, resident = [], [], [], []
    accumulating = {i for i, root in enumerate(iteration.operators) if root.node.name.endswith(ACCUMULATE_GRAD)}
    n_forward = len(iteration.forward)
    elsewhere_bytes = 0
    for lifetime in lifetimes:
        if lifetime.device != device:
            elsewhere_bytes += lifetime.bytes if lifetime.operator is not None else 0
        elif lifetime.operator is None:
            if lifetime.readers:
                resident.append(lifetime)
        elif lifetime.operator >= n_forward and (
            lifetime.operator in accumulating or not accumulating.isdisjoint(lifetime.detachers)
        ):
            gradients.append(lifetime)
        elif lifetime.later_users and (lifetime.bytes or is_saved(lifetime, n_forward)):
            tensors.append(lifetime)
        else:
            temporaries.append(lifetime)
    tensors.sort(key=lambda lifetime: (lifetime.operator or 0, lifetime.creator))
    return _Storages(tuple(tensors), tuple(temporaries), tuple(gradients), tuple(resident), elsewhere_bytes)


def _operator_names(iteration: Iteration) -> list[str]:
    """Name each operator by the numbered part of the model that it lies in, its call and its index."""
    names = []
    for i, root in enumerate(iteration.operators):
        region = _numbered_region(root.annotations)
        names.append(f"{region + '/' if region else ''}{shown_name(root.node.name)}.{i}")
    return names


def _numbered_region(annotations: Sequence[str]) -> str:
    return next((annotation for annotation in annotations if _NUMBERED.search(annotation)), "")


def _repeatable(iteration: Iteration, times: OperatorTimes) -> frozenset[int]:
    """Operators that can run again: collectives cannot, since the other ranks would have to join."""
    calls = enumerate(iteration.operators)
    return frozenset(i for i, root in calls if i not in times.collective and not is_collective(root.node.name))


def _blocks(iteration: Iteration, lifetimes: Sequence[Lifetime]) -> list[int | None]:
    """Return the number of the annotated part of the model that makes and uses each tensor.

    A tensor that leaves its part in the forward pass is the input of what follows: it belongs to no block, so that
    block checkpointing keeps it.
    """
    regions = [_numbered_region(root.annotations) for root in iteration.forward]
    number: dict[str, int] = {}
    for region in regions:
        if region:
            number.setdefault(region, len(number))
    blocks: list[int | None] = []
    for lifetime in lifetimes:
        uses = [operator for operator in (lifetime.operator or 0, *lifetime.later_users) if operator < len(regions)]
        inside = {regions[operator] for operator in uses}
        blocks.append(number.get(inside.pop()) if len(inside) == 1 else None)
    return blocks


def _heuristics(
    nodes: Sequence[Node],
    iteration: Iteration,
    lifetimes: Sequence[Lifetime],
    tensors: Sequence[Tensor],
) -> tuple[str, ...]:
    """Say what was assumed of the storages, however they were found."""
    n_forward = len(iteration.forward)
    forward = [
        (lifetime, tensor) for lifetime, tensor in zip(lifetimes, tensors, strict=True) if tensor.producer < n_forward
    ]
    saved = [(lifetime, tensor) for lifetime, tensor in forward if is_saved(lifetime, n_forward)]
    random = {
        iteration.operator_of[node.id] for node in nodes if node.id in iteration.operator_of and is_random(node.name)
    }
    said = [
        "A rebuild repeats the operator that made a storage, its in-place writers, and what makes the unsaved"
        " temporaries that these read.",
    ]
    overwritten = sum(len(set(lifetime.writers) - {tensor.producer}) > 0 for lifetime, tensor in saved)
    if overwritten:
        said.append(
            f"{overwritten} saved tensors are changed in place after their producer: the writer counts as a reader, and"
            " an offload may start before it."
        )
    n_random = sum(tensor.producer in random for _, tensor in saved)
    if n_random:
        said.append(
            f"{n_random} saved tensors come from operators that may draw random numbers: a rebuild assumes that the"
            " generator's state is kept."
        )
    free = sum(tensor.rebuild is not None and tensor.rebuild.duration_s == 0 for _, tensor in saved)
    if free:
        said.append(f"{free} saved tensors have a rebuild time of 0 s in this trace.")
    if any(tensor.block is not None for tensor in tensors):
        said.append(
            "Blocks are the numbered annotations (`name.N`) of the trace; a tensor that leaves its block has none."
        )
    if is_checkpointed(nodes, iteration):
        said.append(
            "Forward operators run inside backward ones (activation checkpointing): they count as backward time."
        )
    return tuple(said)


def is_checkpointed(nodes: Sequence[Node], iteration: Iteration) -> bool:
    """Whether autograd numbered a forward call inside a backward operator."""
    n_forward = len(iteration.forward)
    return any(
        node.sequence >= 0
        and not node.is_backward
        and not node.is_annotation
        and iteration.operator_of.get(node.id, -1) >= n_forward
        for node in nodes
    )


def _left_out(storages: _Storages) -> tuple[str, ...]:
    """Say which bytes and operators are not part of the problem."""
    resident = sum(lifetime.bytes for lifetime in storages.resident)
    gradients = sum(lifetime.bytes for lifetime in storages.weight_gradients)
    said = []
    if storages.resident:
        said.append(
            f"Resident: {len(storages.resident)} storages ({resident / 1e6:.3f} MB) that existed before (weights, inputs)."
        )
    if storages.weight_gradients:
        said.append(
            f"Weight gradients: {len(storages.weight_gradients)} storages ({gradients / 1e6:.3f} MB) that stay after it."
        )
    if storages.elsewhere_bytes:
        said.append(f"{storages.elsewhere_bytes / 1e6:.3f} MB of storages on other devices.")
    return tuple(said)
