"""Imports a PyTorch execution trace and the Kineto trace recorded with it as a problem.

The execution trace knows which storage each call reads and writes, the Kineto trace knows how long each call took.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem
from slackswap.models.traces.execution_trace import Iteration, cut_iteration, read_execution_trace
from slackswap.models.traces.kineto import KinetoTrace, read_kineto
from slackswap.models.traces.operator_times import measure
from slackswap.models.traces.storage_lifetimes import find_lifetimes
from slackswap.models.traces.trace_content import TraceKind, read_trace, recognise
from slackswap.models.traces.trace_link import TraceLink, check_nesting, link_traces
from slackswap.models.traces.traced_problem import CPU, build_records, compute_device

_PAIR = 2
_SUFFIXES = frozenset({".gz", ".tar", ".json", ".et", ".trace", ".pt"})


def import_pytorch(paths: Sequence[Path | str], *, link: Link, name: str = "") -> Problem:
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
    (trace_path, trace_content), (kineto_path, kineto_content) = _pair(paths)
    trace = read_execution_trace(trace_content, trace_path)
    nodes = trace.nodes
    iteration = cut_iteration(nodes, trace_path)
    kineto = read_kineto(kineto_content, kineto_path)
    if trace.process is not None and trace.process not in kineto.processes:
        raise InputError(
            f"was not recorded in the execution trace's process, {trace.process}: record both in one run (of one rank)",
            source=kineto_path,
        )
    lifetimes = find_lifetimes(nodes, iteration)
    device = compute_device(lifetimes)
    if device != CPU and not kineto.has_device_work:
        raise InputError(
            f"holds no kernels, but the model ran on {device}: record with ProfilerActivity.CUDA", source=kineto_path
        )
    trace_link = link_traces(nodes, kineto)
    check_nesting(nodes, iteration, trace_link, trace_path)
    times = measure(iteration, trace_link, kineto, on_device=device != CPU, source=kineto_path)
    records = build_records(nodes, iteration, lifetimes, device, times)
    metadata: dict[str, Any] = {
        "source": [Path(trace_path).name, Path(kineto_path).name],
        "gpu": _device_name(device, kineto),
        "step": iteration.step or "unnamed",
        "kineto_iteration": _kineto_iteration(iteration, trace_link, kineto),
        "nodes": trace_link.n_nodes,
        "matched_nodes": sum(node.id in trace_link.event_of and not node.is_annotation for node in nodes),
        "heuristics": list(records.heuristics),
        "left_out": [*records.left_out, *times.left_out],
    }
    try:
        return Problem.from_records(name or _name(trace_path), records.operators, records.tensors, link, metadata)
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=trace_path) from None


def _pair(paths: Sequence[Path | str]) -> tuple[tuple[str, bytes], tuple[str, bytes]]:
    """Read the files and tell the halves apart by content; refuse what is no pair, the most telling reason first."""
    found: dict[TraceKind, tuple[str, bytes]] = {}
    for path in paths:
        source, content = str(path), read_trace(path)
        kind = recognise(content, source)
        if kind in found:
            raise InputError(f"is a second {kind} beside {found[kind][0]}: give one pair", source=source)
        found[kind] = (source, content)
    if len(found) == _PAIR:
        return found["execution trace"], found["Kineto trace"]
    if "execution trace" in found:
        source, content = found["execution trace"]
        cut_iteration(read_execution_trace(content, source).nodes, source)
        raise InputError(
            "is an execution trace, which has no times: give the Kineto trace recorded with it too, joined by '+'",
            source=source,
        )
    if "Kineto trace" in found:
        source, content = found["Kineto trace"]
        if not read_kineto(content, source).has_backward:
            raise InputError("has no backward pass: it is not a trace of training", source=source)
        raise InputError(
            "is a Kineto trace, which does not say which tensor an operator reads:"
            " give the execution trace recorded with it too, joined by '+'",
            source=source,
        )
    raise InputError("give the two files of one run: execution trace and Kineto trace")


def _name(trace_path: str) -> str:
    """Name the problem after the file, without the suffixes that say what kind of file it is."""
    path = Path(trace_path)
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path.name


def _device_name(device: str, kineto: KinetoTrace) -> str:
    if device == CPU:
        return "none (CPU trace)"
    number = device.rpartition(":")[2]
    names = {str(key): value for key, value in kineto.device_names.items()}
    return names.get(number, device)


def _kineto_iteration(iteration: Iteration, link: TraceLink, kineto: KinetoTrace) -> str:
    """Say which of the iterations in the Kineto trace the execution trace recorded, by its first backward operator."""
    first = next((link.event_of[root.node.id] for root in iteration.backward if root.node.id in link.event_of), None)
    if first is None:
        return "unknown"
    starts = sorted(
        event.start_us for event in kineto.operators if event.name == first.name and event.thread == first.thread
    )
    each = max(1, sum(root.node.name == first.name for root in iteration.backward))
    return f"index {starts.index(first.start_us) // each} of {-(-len(starts) // each)}"
