"""Importer for Chakra execution traces: a PyTorch execution trace and its Kineto trace, merged by Chakra's converter.

Calls and kernels stand in one file, so times and tensors need no linking; `chakra_calls` undoes what the converter did
to the calls. The backward pass is what runs on autograd's thread, and what follows it is the optimizer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem
from slackswap.models.traces.chakra_calls import Call, ChakraTrace, gather_calls, nodes_of
from slackswap.models.traces.chakra_protobuf import COMMUNICATION_TYPES, ChakraNode, looks_like_chakra
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, exact, rebuild_costs
from slackswap.models.traces.operator_kind import is_collective
from slackswap.models.traces.pytorch.execution_trace import (
    ACCUMULATE_GRAD,
    SCOPE_ANNOTATION,
    Iteration,
    Node,
    cut_iteration,
    is_backward_name,
)
from slackswap.models.traces.pytorch.operator_times import OperatorTimes
from slackswap.models.traces.pytorch.traced_problem import TracedProblem, build_records, compute_device
from slackswap.models.traces.storage_lifetimes import Lifetime, find_lifetimes
from slackswap.models.traces.trace_file import TraceFile, as_trace_file, problem_name

__all__ = ["import_chakra", "looks_like_chakra"]


def import_chakra(file: TraceFile | Path | str, *, link: Link, kernel_outputs: bool = True) -> Problem:
    """Read one Chakra trace of a training step on one GPU.

    Parameters
    ----------
    file : the ``.et`` file of one rank, plain or compressed
    link : the host link to plan for
    kernel_outputs : bool
        Whether a call also returns what its kernels return. The converter keeps the outer call, which has one output
        where the kernel had several (the indices of a max pooling, the statistics of a batch norm).

    Raises
    ------
    InputError
        The file is torn or no Chakra trace; it holds no calls, tensors, kernels or durations; it has no backward pass,
        or several. The message names the file and, for damage, the offset.
    """
    file = as_trace_file(file)
    trace = gather_calls(file)
    nodes = nodes_of(trace, file.source, kernel_outputs=kernel_outputs)
    _refuse_what_lacks_a_fact(trace, nodes, file.source)
    iteration = cut_iteration(nodes, file.source)
    times = _measure(trace, iteration)
    if not any(times.duration_s):
        raise InputError("records no kernel durations in the two passes: record it with Kineto", source=file.source)
    lifetimes = find_lifetimes(nodes, iteration)
    device = compute_device(lifetimes)
    gradients = _weight_gradients(lifetimes, iteration, device)
    is_gradient = {id(gradient) for gradient in gradients}
    kept = [lifetime for lifetime in lifetimes if id(lifetime) not in is_gradient]
    records = build_records(nodes, iteration, kept, device, times)
    unborn = _unborn(lifetimes, iteration, device)
    metadata: dict[str, Any] = {
        "source": f"{file.name}, a Chakra execution trace",
        "step": iteration.step or "unnamed",
        "cpu_nodes": len(trace.call_of),
        "kernel_nodes": len(trace.kernels),
        "calls": len(trace.calls),
        "dangling_dependencies": trace.n_dangling,
        "heuristics": [*_how_it_was_read(trace, iteration, kernel_outputs=kernel_outputs), *records.heuristics],
        "left_out": [*_left_out(records, gradients, unborn), *_said_of(times.dropped)],
    }
    try:
        problem = Problem.from_records(problem_name(file), records.operators, records.tensors, link, metadata)
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=file.source) from None
    derivation = _derivation(problem, trace, times.dropped, unborn)
    return replace(problem, metadata={**problem.metadata, KEY: derivation.as_metadata()})


def _refuse_what_lacks_a_fact(trace: ChakraTrace, nodes: Sequence[Node], source: str) -> None:
    """Say which of the facts of a problem the file does not hold at all."""
    if not nodes:
        raise InputError(
            "holds no CPU calls: convert the execution trace together with its Kineto trace", source=source
        )
    if not any(node.inputs or node.outputs for node in nodes):
        raise InputError(
            "names no tensors (a feeder's or a synthetic trace?): convert PyTorch's execution trace", source=source
        )
    if not any(node.is_backward for node in nodes):
        raise InputError("has no backward pass: it is not a trace of training", source=source)
    if not trace.kernels:
        raise InputError(
            "holds no kernels, so it has no times: link a Kineto trace with ProfilerActivity.CUDA first", source=source
        )


def _measure(trace: ChakraTrace, iteration: Iteration) -> OperatorTimes:
    """Add up the kernels of each operator, and say what was left out."""
    duration_us = [0] * len(iteration.operators)
    communication, host_copies = [], []
    collective: set[int] = set()
    outside: dict[bool, list[Call]] = {False: [], True: []}
    last_backward = iteration.backward[-1].node.id
    for call in trace.calls:
        operator = iteration.operator_of.get(call.node.id)
        communication += [kernel for kernel in call.kernels if _communicates(kernel)]
        if operator is None:
            if call.kernels or call.node.numbers.get("scope") != SCOPE_ANNOTATION:
                outside[call.node.id > last_backward].append(call)
            continue
        if any(_communicates(kernel) for kernel in call.kernels):
            collective.add(operator)
        host_copies += [kernel for kernel in call.kernels if _copies_from_or_to_host(kernel)]
        duration_us[operator] += sum(kernel.duration_us for kernel in call.kernels if not _communicates(kernel))
    left_aside = (
        Dropped("collective kernels (NCCL/RCCL)", len(communication), _seconds(communication)),
        Dropped("calls after the backward pass (optimizer)", len(outside[True]), _compute_s(outside[True])),
        Dropped("calls before and beside the two passes", len(outside[False]), _compute_s(outside[False])),
        Dropped("kernels whose call is not in the file", len(trace.orphans), _seconds(trace.orphans)),
    )
    instant = sum(kernel.duration_us == 0 for kernel in trace.kernels)
    heuristics = [
        "An operator's time is the sum of the kernels, memsets and copies that it launched; device gaps do not count.",
        f"Durations are whole microseconds: {instant} of the {len(trace.kernels)} kernels are shorter and count as 0 s.",
    ]
    if host_copies:
        heuristics.append(
            f"{len(host_copies)} host copies ({_seconds(host_copies) * 1e3:.3f} ms) count as the time of their operators."
        )
    return OperatorTimes(
        duration_s=tuple(duration * 1e-6 for duration in duration_us),
        collective=frozenset(collective),
        heuristics=tuple(heuristics),
        dropped=tuple(item for item in left_aside if item.count),
    )


def _communicates(kernel: ChakraNode) -> bool:
    return kernel.kind in COMMUNICATION_TYPES or is_collective(kernel.name.lower())


def _copies_from_or_to_host(kernel: ChakraNode) -> bool:
    return kernel.name.startswith(("Memcpy HtoD", "Memcpy DtoH"))


def _seconds(kernels: Iterable[ChakraNode]) -> float:
    return sum(kernel.duration_us for kernel in kernels) * 1e-6


def _compute_s(calls: Iterable[Call]) -> float:
    return _seconds(kernel for call in calls for kernel in call.kernels if not _communicates(kernel))


def _weight_gradients(lifetimes: Sequence[Lifetime], iteration: Iteration, device: str) -> list[Lifetime]:
    """Return the gradients that stay after the step: autograd detaches what it keeps.

    Where its ``AccumulateGrad`` is in the file, `build_records` finds them itself.
    """
    if any(root.node.name.endswith(ACCUMULATE_GRAD) for root in iteration.backward):
        return []
    n_forward = len(iteration.forward)
    return [
        lifetime
        for lifetime in lifetimes
        if lifetime.device == device and (lifetime.operator or 0) >= n_forward and lifetime.detachers
    ]


def _unborn(lifetimes: Sequence[Lifetime], iteration: Iteration, device: str) -> list[Lifetime]:
    """Return the storages that the backward pass reads first, though no call returned them: further outputs."""
    n_forward = len(iteration.forward)
    return [
        lifetime
        for lifetime in lifetimes
        if lifetime.operator is None
        and lifetime.device == device
        and lifetime.readers
        and lifetime.readers[0] >= n_forward
        and lifetime.readers[0] not in lifetime.writers
    ]


def _how_it_was_read(trace: ChakraTrace, iteration: Iteration, *, kernel_outputs: bool) -> list[str]:
    """Say which rules stand in for what the converter dropped or changed."""
    said = [
        f"The parts `name(0)`, `name(1)`, ... of a call are one operator: {len(trace.calls)} calls of"
        f" {len(trace.call_of)} nodes."
    ]
    if any(root.node.id in trace.backward and not is_backward_name(root.node.name) for root in iteration.backward):
        said.append(
            "Autograd's own calls are not in the file: backward is what its thread runs, by `..._backward` calls."
        )
    if trace.n_contradicting:
        said.append(
            f"Every call stands alone: {trace.n_contradicting} control dependencies name nodes that cannot be the"
            " parent of a call."
        )
    if kernel_outputs:
        said.append("A call also returns what its kernels put into storages that it was not given.")
    return said


def _left_out(records: TracedProblem, gradients: Sequence[Lifetime], unborn: Sequence[Lifetime]) -> list[str]:
    said = list(records.left_out)
    if gradients:
        said = [sentence for sentence in said if not sentence.startswith("Weight gradients: ")]
        said.append(
            f"Weight gradients: {len(gradients)} storages ({_megabytes(gradients)}), detached in the backward pass,"
            " that stay after it."
        )
    return [*said, *_missing_outputs(unborn)]


def _said_of(dropped: Sequence[Dropped]) -> list[str]:
    return [f"{item.count} {item.what}: {(item.seconds or 0) * 1e3:.3f} ms." for item in dropped]


def _missing_outputs(unborn: Sequence[Lifetime]) -> list[str]:
    if not unborn:
        return []
    return [
        f"Of the resident storages, {len(unborn)} ({_megabytes(unborn)}) were saved by a forward call that does not"
        " record them: of several outputs (indices of a max pooling, statistics of a norm) the outer call has one."
    ]


def _megabytes(lifetimes: Iterable[Lifetime]) -> str:
    return f"{sum(lifetime.bytes for lifetime in lifetimes) / 1e6:.3f} MB"


def _derivation(
    problem: Problem, trace: ChakraTrace, dropped: Sequence[Dropped], unborn: Sequence[Lifetime]
) -> Derivation:
    n_operators, n_saved = problem.n_operators, int(problem.saved.sum())
    warnings = ["Durations are whole microseconds: the times of short operators are coarse.", *_missing_outputs(unborn)]
    if trace.n_dangling:
        warnings.append(
            f"{trace.n_dangling} control dependencies name nodes that the converter dropped: the parents of these calls"
            " are unknown."
        )
    if trace.orphans:
        warnings.append(f"{len(trace.orphans)} kernels name no call of the file: no operator has their time.")
    return Derivation(
        kind="Chakra trace",
        facts={
            "order": exact(n_operators, "The ids of the calls are in the order in which they were made."),
            "times": exact(n_operators, "Recorded durations of the kernels that each call launched."),
            "sizes": exact(n_saved, "The furthest byte that any recorded use of a storage reaches."),
            "producers": exact(n_saved, "The call that first returns a storage that it was not given."),
            "readers": exact(n_saved, "Storages among the inputs of each call; views are not reads."),
            "first backward use": exact(n_saved, "The first backward call that has the storage among its inputs."),
            "rebuild costs": rebuild_costs(
                problem, "The producer, its in-place writers, and what makes the unsaved temporaries that these read."
            ),
        },
        dropped=dropped,
        warnings=warnings,
    )
