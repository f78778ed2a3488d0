"""Importers: from files that profilers wrote to a `Problem`. One module per kind of trace; `import_traces` tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.input_file import read_input_start
from slackswap.models.problem import Problem


def import_traces(paths: Sequence[Path], *, link: Link) -> Problem:
    """Import the trace files that belong to one iteration, by their content.

    Parameters
    ----------
    paths : a PipeDream ``graph.txt``, a profiled graph of the Checkmate form, or a PyTorch execution trace and its Kineto trace
        in any order
    link : host link of the problem; traces do not record it

    Raises
    ------
    InputError
        No importer takes the files, or the importer refuses them; the message says why.
    """
    from slackswap.models.traces import pipedream, profiled_graph, pytorch

    for looks_alike, importer, kind in (
        (pipedream.looks_like_pipedream, pipedream.import_pipedream, "PipeDream"),
        (profiled_graph.looks_like_profiled_graph, profiled_graph.import_profiled_graph, "profiled"),
    ):
        if any(looks_alike(read_input_start(path)) for path in paths):
            if len(paths) > 1:
                raise InputError(f"a {kind} graph stands alone: give it without '+'", source=str(paths[0]))
            return importer(paths[0], link=link)
    return pytorch.import_pytorch(paths, link=link)
