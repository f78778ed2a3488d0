"""From what a user names, a workload, a problem file or trace files, to problems."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.input_file import read_input_start
from slackswap.models.problem import Problem
from slackswap.models.problem_file import looks_like_problem, read_problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.operator_kind import read_kind_table, with_kinds
from slackswap.models.traces.recorded import SMALL_GPT, recorded_trace_paths
from slackswap.models.workloads import WORKLOADS

SMALL_GPT_LINK = Link(d2h_bytes_per_s=0.125e9, h2d_bytes_per_s=0.125e9)
SMALL_GPT_LINK_REASON = (
    "0.125 GB/s per direction, slow enough that it hides about as much (17%) as PCIe 4.0 does of GPT-2 XL on an A100: "
    "a CPU computes so slowly that a real link would hide everything and leave planners nothing to decide"
)
# What runs when nothing is named: the paper's workloads and the recorded trace that ships with the project.
DEFAULT_SOURCES = (*WORKLOADS, SMALL_GPT)


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How a trace is read, where it leaves a choice.

    Attributes
    ----------
    step : of a Kineto trace of several steps, the name or number of the one to take; empty: the last whole one
    roofline : whether the roofline of the hardware gives the operator times of an execution trace that has none
    kinds : a table of operator kinds of the user's own, in TOML
    """

    step: str = ""
    roofline: bool = False
    kinds: str | None = None


AS_RECORDED = TraceOptions()


def load_source(source: str, hardware: str | None = None, options: TraceOptions = AS_RECORDED) -> Problem:
    """Return the problem that `source` names.

    Parameters
    ----------
    source : name of a workload or recorded trace, path of a problem file, or paths of trace files joined by ``+``
    hardware : catalog name or path of a TOML file; None means the default
        Workloads are built for it; for traces and problem files it only sets the link, which problem files have already.
    options : how a trace is read; for what is no trace only the kinds count

    Raises
    ------
    InputError
        No such name or file, or the file is refused.
    """
    problem = _load(source, hardware, options)
    return problem if options.kinds is None else with_kinds(problem, read_kind_table(options.kinds))


def _load(source: str, hardware: str | None, options: TraceOptions) -> Problem:
    chosen = load_hardware(hardware or DEFAULT_HARDWARE)
    if source in WORKLOADS:
        return WORKLOADS[source].build(chosen)
    if source == SMALL_GPT:
        link, why = (chosen.link, f"that of {chosen.name}") if hardware else (SMALL_GPT_LINK, SMALL_GPT_LINK_REASON)
        problem = _declare_link(import_traces(recorded_trace_paths(), link=link), why)
        return replace(problem, name=f"{SMALL_GPT} on a CPU")
    paths = _paths(source)
    if len(paths) == 1 and looks_like_problem(read_input_start(paths[0])):
        problem = read_problem(paths[0])
        return problem.with_link(chosen.link) if hardware else problem
    problem = import_traces(paths, link=chosen.link, step=options.step, roofline=chosen if options.roofline else None)
    return _declare_link(problem, f"that of {chosen.name}")


def _declare_link(problem: Problem, link: str) -> Problem:
    """Add to the declared heuristics which link stands beside the times of a trace."""
    heuristics = [*problem.metadata.get("heuristics", ()), f"The trace does not record the host link: it is {link}."]
    return replace(problem, metadata={**problem.metadata, "heuristics": heuristics})


def named_sources() -> dict[str, str]:
    """Return what can be named without a file, with one line on each."""
    names = {name: workload.description for name, workload in WORKLOADS.items()}
    names[SMALL_GPT] = "recorded trace: one training step of a small GPT on a CPU, by torch's profiler"
    return names


def _paths(source: str) -> list[Path]:
    if os.path.exists(source):  # noqa: PTH110 - False for a name that no file can have, where Path raises
        return [Path(source)]  # a name may hold a plus sign of its own
    paths = [Path(part) for part in source.split("+") if part]
    if not paths:
        raise InputError("names nothing", source="SOURCE")
    for path in paths:
        if not os.path.exists(path):  # noqa: PTH110 - as above
            raise InputError(
                f"is no file, and no workload: {', '.join(DEFAULT_SOURCES)} come with the project", source=str(path)
            )
    return paths
