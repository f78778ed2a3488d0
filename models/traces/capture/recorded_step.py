"""Records training steps under PyTorch's profiler; storages are those of one step, times the medians over all."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.capture.captured_problem import CapturedStep, with_seed_in_backward
from slackswap.models.traces.capture.training_step import TrainingStep
from slackswap.models.traces.pytorch.execution_trace import (
    STEP_MARKER,
    Iteration,
    Node,
    cut_iteration,
    read_execution_trace,
)
from slackswap.models.traces.pytorch.kineto import KinetoTrace, read_kineto
from slackswap.models.traces.pytorch.operator_times import OperatorTimes, measure
from slackswap.models.traces.pytorch.shaped_calls import read_shaped_calls
from slackswap.models.traces.pytorch.trace_link import check_nesting, link_traces

Announce = Callable[[str], None]


def record_step(
    step: TrainingStep, *, device: str, source: str, n_steps: int, n_warmup: int, announce: Announce
) -> CapturedStep:
    """Warm up, record `n_steps` steps, and return the last one with the times of all.

    Parameters
    ----------
    device : ``cpu`` or ``cuda``
    source : what messages name
    announce : is told what happens, a line at a time

    Raises
    ------
    InputError
        The step raised an exception, or its recording cannot be read.
    """
    announce("counting what autograd saves")
    saved = step.run_and_count()
    announce(f"warming up {n_warmup} times, then recording {n_steps} steps on {device}")
    with early_stop_off(), step.numbered_blocks():
        execution_trace, kineto_content = _profile(step, device, n_steps, n_warmup)
    announce("reading the recording")
    nodes = read_execution_trace(execution_trace, source).nodes
    kineto = read_kineto(kineto_content, source)
    slices = _steps(nodes)
    iterations = [with_seed_in_backward(cut_iteration(part, source)) for part in slices]
    chosen, agreeing, remarks = _agreement(iterations)
    times = _median_times(nodes, iterations, agreeing, kineto, device, source)
    times_from = f"the median of {len(agreeing)} recorded steps"
    return CapturedStep(
        nodes=slices[chosen],
        iteration=iterations[chosen],
        calls=read_shaped_calls(execution_trace, slices[chosen], source),
        times=replace(times, heuristics=(*times.heuristics, f"An operator's time is {times_from}.")),
        times_from=times_from,
        saved=saved,
        remarks=remarks,
    )


@contextlib.contextmanager
def early_stop_off() -> Iterator[None]:
    """Let checkpointed parts recompute to their end: the exception that stops them early breaks the recorded call tree."""
    import torch.utils.checkpoint

    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        yield


def _profile(step: TrainingStep, device: str, n_steps: int, n_warmup: int) -> tuple[bytes, bytes]:
    """Return the execution trace and the Kineto trace of the recorded steps."""
    from torch import profiler

    activities = [profiler.ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(profiler.ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        observed, exported = Path(folder) / "et.json", Path(folder) / "kineto.json"
        with (
            execution_trace_to(observed) as observer,
            profiler.profile(
                activities=activities,
                schedule=profiler.schedule(wait=0, warmup=n_warmup, active=n_steps, repeat=1),
                on_trace_ready=lambda profile: profile.export_chrome_trace(str(exported)),
                record_shapes=True,
                execution_trace_observer=observer,
            ) as profile,
        ):
            for _ in range(n_warmup + n_steps):
                step.run()
                profile.step()
        return observed.read_bytes(), exported.read_bytes()


@contextlib.contextmanager
def execution_trace_to(path: Path) -> Iterator[Any]:
    """Give an observer that writes an execution trace; the file is whole when the context ends."""
    from torch.profiler import ExecutionTraceObserver

    observer = ExecutionTraceObserver().register_callback(str(path))
    try:
        yield observer
    finally:
        observer.unregister_callback()


def quiet_torch() -> None:
    """Keep PyTorch from logging on stderr that it profiles; works before the first import of it."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _steps(nodes: Sequence[Node]) -> list[tuple[Node, ...]]:
    """Cut the trace at its step markers; the nodes of the threads belong to every step.

    Storages live on between steps (weights), but what one step reads first, no other one has to explain.
    """
    starts = [node.id for node in nodes if node.is_annotation and node.name.startswith(STEP_MARKER)]
    if not starts:
        return [tuple(nodes)]
    ends = [*starts[1:], nodes[-1].id + 1]
    return [
        tuple(node for node in nodes if node.is_container or start <= node.id < end)
        for start, end in zip(starts, ends, strict=True)
    ]


def _agreement(iterations: Sequence[Iteration]) -> tuple[int, list[int], tuple[str, ...]]:
    """Return the step to take the storages from, the steps that have its operators, and what to say about the others."""
    made = [tuple(root.node.name for root in iteration.operators) for iteration in iterations]
    counts = Counter(made)
    chosen = max(range(len(made)), key=lambda i: (counts[made[i]], i))
    agreeing = [i for i, names in enumerate(made) if names == made[chosen]]
    if len(agreeing) == len(made):
        return chosen, agreeing, ()
    other = len(made) - len(agreeing)
    remark = f"{other} of {len(made)} recorded steps ran other operators than the rest: they do not count."
    return chosen, agreeing, (remark,)


def _median_times(
    nodes: Sequence[Node],
    iterations: Sequence[Iteration],
    agreeing: Sequence[int],
    kineto: KinetoTrace,
    device: str,
    source: str,
) -> OperatorTimes:
    """Time every agreeing step and take the median of each operator."""
    link = link_traces(nodes, kineto)
    timed = []
    for i in agreeing:
        check_nesting(nodes, iterations[i], link, source)
        timed.append(measure(iterations[i], link, kineto, on_device=device != "cpu", source=source))
    columns = zip(*(times.duration_s for times in timed), strict=True)
    return replace(timed[-1], duration_s=tuple(statistics.median(column) for column in columns))


def check_device(device: str) -> None:
    """Refuse a device that is not there.

    Raises
    ------
    InputError
        It is ``cuda``, and this PyTorch finds no GPU.
    """
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError(
            "this PyTorch finds no GPU: capture with --device cpu, or with --device fake and the GPU's name as --hardware",
            source="--device",
        )


def device_name(device: str) -> str:
    """Return the name of the GPU, or say that there is none."""
    import torch

    return str(torch.cuda.get_device_name()) if device == "cuda" else "none (CPU trace)"
