"""Imports a PyTorch execution trace, with the Kineto trace recorded with it, as a problem.

The execution trace knows which storage each call reads and writes, the Kineto trace knows how long each call took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import KEY, Derivation, Fact, exact, rebuild_costs
from slackswap.models.traces.plausibility import computed_too_fast
from slackswap.models.traces.pytorch.execution_trace import (
    ExecutionTrace,
    Iteration,
    cut_iteration,
    read_execution_trace,
)
from slackswap.models.traces.pytorch.kineto import KinetoTrace, read_kineto
from slackswap.models.traces.pytorch.operator_times import OperatorTimes, dropped_calls, measure
from slackswap.models.traces.pytorch.roofline_times import flops_by_operator
from slackswap.models.traces.pytorch.shaped_calls import read_shaped_calls
from slackswap.models.traces.pytorch.trace_link import TraceLink, check_nesting, find_iteration, link_traces
from slackswap.models.traces.pytorch.traced_problem import CPU, build_records, compute_device, is_checkpointed
from slackswap.models.traces.rebuild_recipes import is_saved
from slackswap.models.traces.storage_lifetimes import Lifetime, find_lifetimes
from slackswap.models.traces.trace_content import TraceKind, recognise
from slackswap.models.traces.trace_file import TraceFile, as_trace_file, problem_name

_COMPILED = "CompiledFunctionBackward"


def import_pytorch(paths: Sequence[TraceFile | Path | str], *, link: Link, name: str = "") -> Problem:
    """Read one pair of traces, in any order, plain or compressed.

    Parameters
    ----------
    paths : the execution trace and the Kineto trace of one run
    link : the host link to plan for
    name : the problem's name; empty: made from the file names

    Raises
    ------
    InputError
        A file is damaged, is no PyTorch trace, lacks its other half, has no backward pass, or the two do not belong
        together. The message names the file.
    """
    found: dict[TraceKind, TraceFile] = {}
    for path in paths:
        file = as_trace_file(path)
        kind = recognise(file)
        if kind in found:
            raise InputError(f"is a second {kind} beside {found[kind].source}: give one pair", source=file.source)
        found[kind] = file
    if set(found) != {"execution trace", "Kineto trace"}:
        shown = " and ".join(found) or "nothing"
        raise InputError(f"give the two files of one run, execution trace and Kineto trace; not {shown}")
    return import_pair(found["execution trace"], found["Kineto trace"], link=link, name=name)


@dataclass(frozen=True, slots=True)
class StoragesOfTrace:
    """What an execution trace alone says: one iteration and its storages.

    Attributes
    ----------
    lifetimes : on all devices, in order of birth
    device : the one that computes
    """

    trace: ExecutionTrace
    iteration: Iteration
    lifetimes: list[Lifetime]
    device: str

    @property
    def saved(self) -> list[Lifetime]:
        """Storages of the computing device that the forward pass saves for the backward pass."""
        n_forward = len(self.iteration.forward)
        return [item for item in self.lifetimes if item.device == self.device and is_saved(item, n_forward)]


def read_storages(file: TraceFile) -> StoragesOfTrace:
    """Read an execution trace and find the storages of its last iteration.

    Raises
    ------
    InputError
        The file is damaged, or has no training step.
    """
    trace = read_execution_trace(file)
    iteration = cut_iteration(trace.nodes, file.source)
    lifetimes = find_lifetimes(trace.nodes, iteration)
    return StoragesOfTrace(trace, iteration, lifetimes, compute_device(lifetimes))


def import_pair(trace_file: TraceFile, kineto_file: TraceFile, *, link: Link, name: str = "") -> Problem:
    """Read an execution trace and the Kineto trace recorded with it, which were told apart before; see `import_pytorch`."""
    storages = read_storages(trace_file)
    trace, iteration, device = storages.trace, storages.iteration, storages.device
    found = find_iteration(trace.nodes, iteration, kineto_file)
    kineto = read_kineto(kineto_file, window=found.window)
    if trace.process is not None and trace.process not in kineto.processes:
        raise InputError(
            f"was not recorded in the execution trace's process, {trace.process}: record both in one run (of one rank)",
            source=kineto_file.source,
        )
    if device != CPU and not kineto.has_device_work:
        raise InputError(
            f"holds no kernels, but the model ran on {device}: record with ProfilerActivity.CUDA",
            source=kineto_file.source,
        )
    trace_link = link_traces(trace.nodes, kineto)
    check_nesting(trace.nodes, iteration, trace_link, trace_file.source)
    times = measure(iteration, trace_link, kineto, on_device=device != CPU, source=kineto_file.source)
    records = build_records(trace.nodes, iteration, storages.lifetimes, device, times)
    metadata: dict[str, Any] = {
        "source": [trace_file.name, kineto_file.name],
        "gpu": _device_name(device, kineto),
        "step": iteration.step or "unnamed",
        "kineto_iteration": f"index {found.index} of {found.of}" if found.of else "unknown",
        "nodes": trace_link.n_nodes,
        "matched_nodes": sum(node.id in trace_link.event_of and not node.is_annotation for node in trace.nodes),
        "heuristics": [*records.heuristics, trace_link.method],
        "left_out": list(records.left_out),
    }
    try:
        problem = Problem.from_records(
            name or problem_name(trace_file), records.operators, records.tensors, link, metadata
        )
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=trace_file.source) from None
    flops = flops_by_operator(read_shaped_calls(trace_file, trace.nodes), iteration)
    if any(flops):
        metadata["forward_flops"] = sum(flops[: len(iteration.forward)])
    derivation = _derivation(problem, storages, trace_link, kineto, times)
    said = computed_too_fast(problem.duration_s, flops, str(metadata["gpu"]))
    derivation = replace(derivation, warnings=[*derivation.warnings, *said])
    return replace(problem, metadata={**metadata, KEY: derivation.as_metadata()})


def _derivation(
    problem: Problem, storages: StoragesOfTrace, link: TraceLink, kineto: KinetoTrace, times: OperatorTimes
) -> Derivation:
    n, saved = problem.n_operators, int(problem.saved.sum())
    timed = "CPU events" if storages.device == CPU else "sum of the device work that it launched, by correlation id"
    ids = "storage ids of the execution trace"
    return Derivation(
        kind="PyTorch execution trace with its Kineto trace",
        facts={
            "order": exact(n, "order of the calls"),
            "times": Fact(
                n - times.n_untimed, 0, times.n_untimed, f"{timed}; {link.method[0].lower()}{link.method[1:-1]}"
            ),
            "sizes": exact(saved, "furthest byte that any call reaches"),
            "producers": exact(saved, ids),
            "readers": exact(saved, ids),
            "first backward use": exact(saved, ids),
            "rebuild costs": rebuild_costs(
                problem, "times of the producer, its in-place writers and unsaved temporaries"
            ),
        },
        dropped=(*dropped_calls(storages.trace.nodes, storages.iteration, link.event_of, kineto), *times.dropped),
        warnings=trace_warnings(storages),
    )


def trace_warnings(storages: StoragesOfTrace) -> list[str]:
    """Return what makes a problem from an execution trace doubtful."""
    said = []
    steps = sum(node.is_annotation and node.name.startswith("ProfilerStep#") for node in storages.trace.nodes)
    if steps > 1:
        said.append(f"The trace marks {steps} steps; taken: {storages.iteration.step}.")
    if is_checkpointed(storages.trace.nodes, storages.iteration):
        said.append("Forward calls run inside backward ones (activation checkpointing): their time is backward time.")
    compiled = sum(_COMPILED in root.node.name for root in storages.iteration.backward)
    if compiled:
        said.append(
            f"Compiled code: {compiled} backward nodes stand for whole graphs, so all that they read counts as read at once."
        )
    return said


def _device_name(device: str, kineto: KinetoTrace) -> str:
    if device == CPU:
        return "none (CPU trace)"
    number = device.rpartition(":")[2]
    names = {str(key): value for key, value in kineto.device_names.items()}
    return names.get(number, device)
