"""Importers: from files that profilers wrote to a `Problem`. `import_traces` is the one door; it goes by content.

One module per kind of trace. What a trace does not hold is derived by declared rules (``metadata["derivation"]``), and what
is not enough to plan on is refused with what to record instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import Problem

if TYPE_CHECKING:
    from slackswap.hardware.catalog import Hardware
    from slackswap.models.traces.trace_content import TraceKind
    from slackswap.models.traces.trace_file import TraceFile

_PAIR = frozenset({"execution trace", "Kineto trace"})


def import_traces(
    paths: Sequence[Path | str], *, link: Link, step: str = "", roofline: Hardware | None = None
) -> Problem:
    """Import the trace files that belong to one iteration, recognized by their content.

    Parameters
    ----------
    paths : one file of any kind that is known, or an execution trace and its Kineto trace in any order; plain, gzip, or in
        a tar archive
    link : host link of the problem; traces do not record it
    step : of a Kineto trace of several steps, the name or number of the one to take; by default the last whole one
    roofline : the machine to estimate operator times for, where an execution trace comes without times

    Raises
    ------
    InputError
        No importer takes the files, or the importer refuses them; the message says why, and what to record instead.
    """
    found = _recognised(paths)
    kinds = [kind for _, kind in found]
    if len(found) == len(_PAIR) and set(kinds) == _PAIR:
        from slackswap.models.traces.pytorch.pair import import_pair

        by_kind = {kind: file for file, kind in found}
        problem = import_pair(by_kind["execution trace"], by_kind["Kineto trace"], link=link)
    elif len(found) > 1:
        shown = "; ".join(f"{file.source} ({kind})" for file, kind in found[:4])
        raise InputError(
            f"only an execution trace and its Kineto trace belong together; found {len(found)} files: {shown}",
            source=str(paths[0]),
        )
    else:
        problem = _import_alone(*found[0], link=link, step=step, roofline=roofline)
    return _with_remarks(problem)


def _recognised(paths: Sequence[Path | str]) -> list[tuple[TraceFile, TraceKind]]:
    """Open every path, archives too, and say what each file is; what an archive holds beside traces is passed over."""
    from slackswap.models.traces.trace_content import recognise
    from slackswap.models.traces.trace_file import open_trace_files

    found: list[tuple[TraceFile, TraceKind]] = []
    refused: list[InputError] = []
    for file in (file for path in paths for file in open_trace_files(path)):
        try:
            found.append((file, recognise(file)))
        except InputError as error:
            if not file.member:
                raise
            refused.append(error)
    if not found:
        raise refused[0] if refused else InputError("give a trace file")
    return found


def _import_alone(file: TraceFile, kind: TraceKind, *, link: Link, step: str, roofline: Hardware | None) -> Problem:
    """Import a file of a kind that stands alone, or say what it lacks."""
    if kind == "Kineto trace":
        from slackswap.models.traces.pytorch.kineto_problem import import_kineto

        return import_kineto(file, link=link, step=step)
    if kind == "execution trace":
        from slackswap.models.traces.pytorch.untimed_trace import import_untimed_trace, refuse_untimed_trace

        if roofline is None:
            raise refuse_untimed_trace(file)
        return import_untimed_trace(file, link=link, hardware=roofline)
    importer = _importers().get(kind)
    if importer is None:
        raise InputError(
            f"is a {kind}: it holds no operator times, so it is no source of a problem; compare one with it by --check",
            source=file.source,
        )
    return importer(file, link=link)


def _importers() -> dict[TraceKind, Callable[..., Problem]]:
    from slackswap.models.traces import chakra, dtr_log, g10_kernels, pipedream, profiled_graph

    return {
        "Chakra trace": chakra.import_chakra,
        "DTR log": dtr_log.import_dtr,
        "PipeDream graph": pipedream.import_pipedream,
        "profiled graph": profiled_graph.import_profiled_graph,
        "G10 kernel list": g10_kernels.import_g10,
    }


def _with_remarks(problem: Problem) -> Problem:
    """Add to the declared warnings what every imported problem is examined for."""
    from slackswap.models.traces.derivation import KEY
    from slackswap.models.traces.plausibility import remarks_on

    derivation = problem.metadata.get(KEY)
    if not isinstance(derivation, dict):
        return problem
    warnings = [*derivation.get("warnings", ()), *remarks_on(problem)]
    return replace(problem, metadata={**problem.metadata, KEY: {**derivation, "warnings": warnings}})
