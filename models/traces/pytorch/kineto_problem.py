"""Imports a Kineto trace that stands alone: recorded with shapes, without the execution trace that knows the tensors.

Order and times are what the profiler recorded. Sizes, producers, readers and first backward uses follow from the shapes of
the calls and a rule per backward node; where the allocator's events were recorded too, they confirm sizes and producers.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import KEY, Derivation, Fact, by_rule, exact, rebuild_costs
from slackswap.models.traces.plausibility import computed_too_fast
from slackswap.models.traces.pytorch.call_tree import nest_working_calls, numbered_nodes
from slackswap.models.traces.pytorch.execution_trace import Iteration, Node, cut_iteration
from slackswap.models.traces.pytorch.kineto import KinetoTrace
from slackswap.models.traces.pytorch.kineto_events import CpuOperator
from slackswap.models.traces.pytorch.kineto_flops import kineto_flops
from slackswap.models.traces.pytorch.kineto_memory import SavedBlocks, saved_blocks
from slackswap.models.traces.pytorch.kineto_step import KinetoSurvey, Step, choose_step, read_step, survey_kineto
from slackswap.models.traces.pytorch.operator_times import OperatorTimes, dropped_calls, measure
from slackswap.models.traces.pytorch.shape_dataflow import DEVICE, Dataflow, follow_storages
from slackswap.models.traces.pytorch.trace_link import TraceLink
from slackswap.models.traces.pytorch.traced_problem import TracedProblem, build_records, is_checkpointed
from slackswap.models.traces.trace_file import TraceFile, as_trace_file, problem_name

# The allocator gives multiples of 512 bytes, and of 2 MiB where a block is large.
_LARGEST_ROUNDING_BYTES = 2 << 20
# The largest share of the backward time whose nodes may be without a save rule.
_MAX_UNKNOWN_SHARE = 0.2
_RECORD = (
    "record with record_shapes=True, and best with execution_trace_observer=ExecutionTraceObserver() as well,"
    " and give both files joined by '+'"
)
_FOUND = (
    "Saved tensors follow from a rule per backward node (PyTorch's derivatives.yaml), linked to its forward call by sequence"
    " number; their sizes from the recorded shapes.",
    "A call reads the storage last written among those of its argument's size, of the same shape if there is one; a sum reads"
    " what nobody has read yet, and else the sum before it (the shortcut of a residual block).",
    "Gradients are the workspace of the backward operator that reads or writes them.",
)
_LEFT_OUT = (
    "Weights, their gradients, optimizer state, precision copies of weights, and inputs made before the step: resident.",
    "Temporaries inside of a call: their sizes are not recorded.",
)


@dataclass(frozen=True, slots=True)
class KinetoIteration:
    """One step of a Kineto trace as operators.

    Attributes
    ----------
    step : which one
    kineto : its events
    nodes, event_of : its calls in order, and the event of each
    iteration : its forward and backward operators
    """

    step: Step
    kineto: KinetoTrace
    nodes: list[Node]
    event_of: dict[int, CpuOperator]
    iteration: Iteration

    def saved_blocks(self) -> SavedBlocks:
        """Return what the allocator's events say that the forward pass leaves."""
        return saved_blocks(self.iteration, self.event_of, self.kineto)


def read_kineto_iteration(file: TraceFile, survey: KinetoSurvey, step_name: str = "") -> KinetoIteration:
    """Read the operators of one step of a trace that was looked at before.

    Raises
    ------
    InputError
        No step has a forward and a backward pass, or it has several backward passes, or those of several processes.
    """
    step = choose_step(survey, file.source, step_name)
    kineto = read_step(file, step)
    nodes, event_of = numbered_nodes(nest_working_calls(kineto))
    iteration = cut_iteration(nodes, file.source)
    if len({event_of[root.node.id].thread[0] for root in iteration.operators}) > 1:
        raise InputError("holds the passes of several processes: give the trace of one rank", source=file.source)
    return KinetoIteration(step, kineto, nodes, event_of, iteration)


def import_kineto(file: TraceFile | Path | str, *, link: Link, step: str = "") -> Problem:
    """Derive a problem from a Kineto trace with shapes.

    Parameters
    ----------
    file : plain or gzip, of any size: only the chosen step is kept in memory
    link : the host link to plan for
    step : name or number of the profiler step; by default the last one with a forward and a backward pass

    Raises
    ------
    InputError
        The file is damaged, is no trace of training, or holds too little to plan on: the message says what it supports and
        what to record instead.
    """
    trace = as_trace_file(file)
    survey = survey_kineto(trace)
    read = read_kineto_iteration(trace, survey, step)
    _refuse_without_shapes(trace, survey, read)
    _refuse_without_kernels(trace, survey, read)
    events = [read.event_of[root.node.id] for root in read.iteration.operators]
    host_copies = frozenset(
        i
        for i, event in enumerate(events)
        if any(work.kind == "host to device" for work in read.kineto.launched_within(event))
    )
    on_device = read.kineto.has_device_work
    trace_link = TraceLink(read.event_of, len(read.nodes), "")
    times = measure(
        read.iteration, trace_link, read.kineto, on_device=on_device, source=trace.source, host_copies=False
    )
    flow = follow_storages(read.nodes, read.iteration, read.event_of, host_copies)
    _refuse_unknown_rules(trace, survey, read, times, flow)
    records = build_records(
        read.nodes, read.iteration, flow.lifetimes, DEVICE, _with_fixed(times, host_copies | flow.blind), found=_FOUND
    )
    try:
        problem = Problem.from_records(problem_name(trace), records.operators, records.tensors, link)
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=trace.source) from None
    return _declared(problem, trace, survey, read, times, flow, records)


def _with_fixed(times: OperatorTimes, fixed: frozenset[int]) -> OperatorTimes:
    """Return the times with more among what cannot be repeated.

    That is copies from the host, which may have changed its data, and what reads tensors that are not recorded.
    """
    return OperatorTimes(times.duration_s, times.collective | fixed, times.heuristics, times.dropped)


def _refuse_without_shapes(trace: TraceFile, survey: KinetoSurvey, read: KinetoIteration) -> None:
    """Refuse a trace that says nothing of tensors, and say what it supports."""
    if survey.n_with_shapes and any(event.shapes for event in read.event_of.values()):
        return
    raise InputError(
        "is a Kineto trace without shapes, which does not say which tensor an operator reads; it holds"
        f" {_supported(survey, read)}; {_RECORD}",
        source=trace.source,
    )


def _refuse_without_kernels(trace: TraceFile, survey: KinetoSurvey, read: KinetoIteration) -> None:
    """Refuse a step on a device whose kernels were not recorded: the times of its calls are not those of operators."""
    if read.kineto.has_device_work or not (survey.n_work or survey.n_launches or survey.n_memory):
        return
    raise InputError(
        f"holds no kernels of {read.step.name}, but the model ran on a device: profile with activities=[CPU, CUDA]",
        source=trace.source,
    )


def _refuse_unknown_rules(
    trace: TraceFile, survey: KinetoSurvey, read: KinetoIteration, times: OperatorTimes, flow: Dataflow
) -> None:
    """Refuse a trace of which too much is compiled or custom code, whose saved tensors no rule knows."""
    backward_s = sum(times.duration_s[len(read.iteration.forward) :])
    unknown_s = {operator: times.duration_s[operator] for operator in flow.unknown_operators}
    share = sum(unknown_s.values()) / backward_s if backward_s else 0.0
    if share <= _MAX_UNKNOWN_SHARE:
        return
    name = flow.unknown_operators[max(unknown_s, key=lambda operator: unknown_s[operator])]
    raise InputError(
        f"has no known saved tensors for {share:.0%} of its backward pass: one node of compiled or custom"
        f" code ('{name}') does not say which tensor is read when; it holds {_supported(survey, read)}; {_RECORD}",
        source=trace.source,
    )


def _supported(survey: KinetoSurvey, read: KinetoIteration) -> str:
    """Say what a trace supports that is refused."""
    seconds = sum(
        work.duration_us
        for root in read.iteration.operators
        for work in read.kineto.launched_within(read.event_of[root.node.id])
        if work.kind == "compute"
    )
    supports = f"{len(read.iteration.operators)} operators with {seconds / 1e3:.1f} ms of kernels"
    if survey.n_memory:
        blocks = read.saved_blocks()
        supports += f", and A = {blocks.bytes / 1e6:.1f} MB in {len(blocks.blocks)} tensors by its memory events"
    return supports


def _declared(
    problem: Problem,
    trace: TraceFile,
    survey: KinetoSurvey,
    read: KinetoIteration,
    times: OperatorTimes,
    flow: Dataflow,
    records: TracedProblem,
) -> Problem:
    n, saved = problem.n_operators, int(problem.saved.sum())
    confirmed, remarks = _confirmed(problem, read, survey)
    gpu = read.kineto.device_name(_busiest_device(read))
    flops = kineto_flops(read.nodes, read.iteration, read.event_of)
    remarks += computed_too_fast(problem.duration_s, flops, gpu)
    timed = (
        "sum of the device work that it launched, by correlation id" if read.kineto.has_device_work else "CPU events"
    )
    sized = "shapes and element types of the calls"
    if survey.n_memory:
        sized += "; exact where the allocator's events hold a block that fits"
    derivation = Derivation(
        kind="Kineto trace" if read.kineto.has_device_work else "Kineto trace of a CPU",
        facts={
            "order": exact(n, "order of the calls"),
            "times": exact(n, timed),
            "sizes": Fact(confirmed, saved - confirmed, 0, sized),
            "producers": Fact(confirmed, saved - confirmed, 0, "the call that a save rule names; exact as for sizes"),
            "readers": by_rule(
                saved, f"storages that fit by size: {flow.guesses} of {flow.lookups} lookups had a choice"
            ),
            "first backward use": by_rule(
                saved,
                f"a rule per backward node; {flow.linked} of {flow.n_backward_nodes} are linked to a forward call",
            ),
            "rebuild costs": rebuild_costs(problem, "times of the producer and its in-place writers"),
        },
        dropped=(*dropped_calls(read.nodes, read.iteration, read.event_of, read.kineto), *times.dropped),
        warnings=(*_warnings(survey, read, flow), *remarks),
    )
    metadata: dict[str, Any] = {
        "source": [trace.name],
        "gpu": gpu,
        "step": read.step.name,
        "heuristics": list(records.heuristics),
        "left_out": [*_LEFT_OUT, *records.left_out],
        KEY: derivation.as_metadata(),
    }
    if any(flops[: problem.n_forward]):
        metadata["forward_flops"] = sum(flops[: problem.n_forward])
    return replace(problem, metadata=metadata)


def _busiest_device(read: KinetoIteration) -> str:
    """Return the number of the device that memory events name most, or the first one."""
    counts: dict[str, int] = defaultdict(int)
    for event in read.kineto.memory:
        counts[str(event.device)] += 1
    return max(counts, key=lambda device: (counts[device], device), default="0")


def _confirmed(problem: Problem, read: KinetoIteration, survey: KinetoSurvey) -> tuple[int, list[str]]:
    """Count the saved tensors whose producer allocated a block of their size that lives until the backward pass.

    Returns
    -------
    their number, and sentences on what the allocator's events say beyond
    """
    if not survey.n_memory:
        return 0, []
    blocks = read.saved_blocks()
    free: dict[int, list[int]] = defaultdict(list)
    for block in blocks.blocks:
        free[block.producer or 0].append(block.bytes)
    confirmed, explained_bytes = 0, 0
    for t in sorted(problem.saved.nonzero()[0].tolist(), key=lambda t: -int(problem.tensor_bytes[t])):
        size_bytes = int(problem.tensor_bytes[t])
        fitting = [b for b in free[int(problem.producer[t])] if 0 <= b - size_bytes <= _LARGEST_ROUNDING_BYTES]
        if fitting:
            best = min(fitting)
            free[int(problem.producer[t])].remove(best)
            confirmed, explained_bytes = confirmed + 1, explained_bytes + best
    said = [
        f"Memory events: {len(blocks.blocks)} blocks of {blocks.bytes / 1e6:.1f} MB are left for the backward pass, as the"
        f" allocator rounds; the rules give {problem.saved_bytes / 1e6:.1f} MB and explain {explained_bytes / 1e6:.1f} MB of"
        " them."
    ]
    if blocks.ambiguous_frees:
        said.append(
            f"No addresses in the memory events: {blocks.ambiguous_frees} of {blocks.frees} frees fitted several blocks and"
            " took the newest."
        )
    return confirmed, said


def _warnings(survey: KinetoSurvey, read: KinetoIteration, flow: Dataflow) -> list[str]:
    said: list[str] = []
    usable = survey.usable_steps()
    if len(usable) > 1:
        said.append(f"The trace holds {len(usable)} training steps; taken: {read.step.name}.")
    for name, count in flow.unknown.items():
        said.append(f"No save rule for '{name}' ({count} calls): taken to keep nothing, so A may be too low.")
    if flow.blind:
        said.append(
            f"{len(flow.blind)} calls read lists of tensors (cat, stack) whose shapes are not recorded: their readers are"
            " missing, and nothing rebuilds what they write."
        )
    if is_checkpointed(read.nodes, read.iteration):
        said.append("Forward calls run inside backward ones (activation checkpointing): their time is backward time.")
    if flow.linked < flow.n_backward_nodes:
        missing = flow.n_backward_nodes - flow.linked
        said.append(f"{missing} backward nodes have no forward call of their number in the step: they keep nothing.")
    return said
