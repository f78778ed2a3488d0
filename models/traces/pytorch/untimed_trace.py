"""An execution trace without the Kineto trace that has its times: refused, or timed by the roofline of a GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import KEY, Derivation, Dropped, by_rule, exact, rebuild_costs
from slackswap.models.traces.pytorch.pair import StoragesOfTrace, read_storages, trace_warnings
from slackswap.models.traces.pytorch.roofline_times import flops_by_operator, roofline_operator_times
from slackswap.models.traces.pytorch.shaped_calls import read_shaped_calls
from slackswap.models.traces.pytorch.traced_problem import build_records
from slackswap.models.traces.trace_file import TraceFile, problem_name

_IDS = "storage ids of the execution trace"


def refuse_untimed_trace(file: TraceFile) -> InputError:
    """Return why an execution trace alone is not enough, what it supports, and what helps.

    Raises
    ------
    InputError
        The file is damaged, or has no training step.
    """
    storages = read_storages(file)
    saved = storages.saved
    return InputError(
        f"is an execution trace, which has no times; it holds {len(storages.iteration.operators)} operators and"
        f" A = {sum(item.bytes for item in saved) / 1e6:.1f} MB in {len(saved)} tensors; give the Kineto trace recorded with"
        " it too, joined by '+', or let `slackswap problem --times roofline` estimate times for a GPU of the catalog",
        source=file.source,
    )


def import_untimed_trace(file: TraceFile, *, link: Link, hardware: Hardware) -> Problem:
    """Derive a problem from an execution trace alone; operator times are the roofline of a GPU.

    Parameters
    ----------
    link : the host link to plan for
    hardware : whose GPU gives the times

    Raises
    ------
    InputError
        The file is damaged, has no training step, or was recorded without shapes.
    """
    storages = read_storages(file)
    iteration = storages.iteration
    calls = read_shaped_calls(file, storages.trace.nodes)
    times = roofline_operator_times(calls, iteration, hardware)
    if not any(times.duration_s):
        raise InputError("holds no shapes, so that nothing can be timed by the roofline", source=file.source)
    records = build_records(storages.trace.nodes, iteration, storages.lifetimes, storages.device, times)
    try:
        problem = Problem.from_records(problem_name(file), records.operators, records.tensors, link)
    except InputError as error:
        raise InputError(f"gives no valid problem: {error}", source=file.source) from None
    metadata: dict[str, Any] = {
        "source": [file.name],
        "gpu": hardware.gpu.name,
        "step": iteration.step or "unnamed",
        "heuristics": list(records.heuristics),
        "left_out": list(records.left_out),
        KEY: _derivation(problem, storages, hardware).as_metadata(),
    }
    flops = sum(flops_by_operator(calls, iteration)[: len(iteration.forward)])
    if flops:
        metadata["forward_flops"] = flops
    return replace(problem, metadata=metadata)


def _derivation(problem: Problem, storages: StoragesOfTrace, hardware: Hardware) -> Derivation:
    saved = int(problem.saved.sum())
    n_aside = storages.iteration.dropped
    return Derivation(
        kind="PyTorch execution trace, timed by the roofline",
        facts={
            "order": exact(problem.n_operators, "order of the calls"),
            "times": by_rule(problem.n_operators, f"roofline of the {hardware.gpu.name}: none are in the trace"),
            "sizes": exact(saved, "furthest byte that any call reaches"),
            "producers": exact(saved, _IDS),
            "readers": exact(saved, _IDS),
            "first backward use": exact(saved, _IDS),
            "rebuild costs": rebuild_costs(
                problem, "times of the producer, its in-place writers and unsaved temporaries"
            ),
        },
        dropped=[Dropped("calls before, beside and after the two passes", n_aside)] if n_aside else [],
        warnings=trace_warnings(storages),
    )
