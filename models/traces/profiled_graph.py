"""Imports profiled training graphs: one JSON object of nodes with a cost and an output size, and the edges between them.

The form in which rematerialization results are published with the graphs that they hold for: the Checkmate MILP on
P100 profiles of MONeT (utsaslab/monet-schedules).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.problem import MAX_TOTAL_BYTES, Operator, Problem, Rebuild, Tensor
from slackswap.models.traces.derivation import KEY, Derivation, exact, rebuild_costs
from slackswap.models.traces.json_stream import decode_whole
from slackswap.models.traces.operator_kind import operator_kind
from slackswap.models.traces.trace_file import TraceFile, as_trace_file

_COSTS_PER_S = 100_000  # `cost_10us`
_MIB = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_OWN_KEY = re.compile(rb'"(?:cost_10us|fixed_bytes)"\s*:')


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    id: int
    name: str
    phase: str
    cost_10us: int
    bytes: int
    duration_ms: float | None = None
    workspace_mb: float = 0.0


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published result at one budget: best total cost and bound in units of 10 us, and the seconds they took."""

    best: int
    bound: int
    seconds: float


class _File(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    loss: int
    nodes: list[_Node]
    edges: list[tuple[int, int]]
    fixed_bytes: int = 0
    batch: int | None = None
    note: str = ""
    published: dict[str, Published] = {}


def looks_like_profiled_graph(content: bytes) -> bool:
    """Whether the start of an unpacked file is that of a profiled graph: a JSON object with keys that only they have."""
    return content.removeprefix(_BYTE_ORDER_MARK).lstrip()[:1] == b"{" and bool(_OWN_KEY.search(content))


def import_profiled_graph(file: TraceFile | Path | str, *, link: Link, workspaces: bool = False) -> Problem:
    """Derive a problem from a profiled graph.

    Every node becomes one operator, in the file's order: forward up to the node `loss`, backward after it. It writes one
    tensor, which the nodes behind its edges read and which the node itself can rebuild.

    Parameters
    ----------
    file : plain or gzip
    link : Link
        The host link; the graph says nothing about one.
    workspaces : bool
        Whether the recorded workspaces count (what is negative, an output written in place, as 0). They are left out by
        default: the published totals are without them.

    Returns
    -------
    Problem
        Times are ``cost_10us`` in seconds, so a published total is a step time in units of 10 us. The metadata holds
        ``fixed_bytes`` (see `activation_budget_bytes`) and ``published``, by total budget in GiB.

    Raises
    ------
    InputError
        The file cannot be read, is no such graph, or breaks a rule: with the file and the JSON path.
    """
    trace = as_trace_file(file)
    graph = decode_whole(trace.read().removeprefix(_BYTE_ORDER_MARK), _File, trace.source)
    try:
        _check(graph)
        operators = [_operator(node, i, graph.loss, workspaces=workspaces) for i, node in enumerate(graph.nodes)]
        tensors = _tensors(graph, workspaces=workspaces)
        problem = Problem.from_records(graph.name, operators, tensors, link)
    except InputError as error:
        raise error.within(trace.source) from None
    metadata = _metadata(graph, trace.name, workspaces)
    return replace(problem, metadata={**metadata, KEY: _derivation(problem).as_metadata()})


def activation_budget_bytes(problem: Problem, total_bytes: float) -> int:
    """Budget for what a plan decides, where `total_bytes` also hold the problem's ``metadata["fixed_bytes"]``.

    Inputs, parameters and parameter gradients stay on the device, so published budgets of 10 GiB, say, leave
    ``10 * 2**30 - fixed_bytes``; rounded down to a whole byte, at least 0.
    """
    return max(0, math.floor(total_bytes) - int(problem.metadata.get("fixed_bytes", 0)))


def _check(graph: _File) -> None:
    n = len(graph.nodes)
    if not n:
        raise InputError("a graph has at least one node", place="$.nodes")
    if not 0 <= graph.loss < n:
        raise InputError(f"names node {graph.loss}, but there are {n}", place="$.loss")
    if not 0 <= graph.fixed_bytes <= MAX_TOTAL_BYTES:
        raise InputError(f"is a number of bytes from 0, not {graph.fixed_bytes}", place="$.fixed_bytes")
    for i, node in enumerate(graph.nodes):
        _check_node(node, i, graph.loss)
    _check_edges(graph.edges, n)


def _check_node(node: _Node, i: int, loss: int) -> None:
    at = f"$.nodes[{i}]"
    if node.id != i:
        raise InputError(f"nodes stand in topological order, numbered from 0: this is number {i}", place=f"{at}.id")
    phase = "forward" if i <= loss else "backward"
    if node.phase != phase:
        side = "up to" if i <= loss else "after"
        raise InputError(f"is '{phase}' {side} the loss, node {loss}, not '{node.phase}'", place=f"{at}.phase")
    if node.cost_10us < 0:
        raise InputError(f"a cost is a whole number from 0, not {node.cost_10us}", place=f"{at}.cost_10us")
    if not 0 <= node.bytes <= MAX_TOTAL_BYTES:
        raise InputError(f"a size is a whole number of bytes from 0, not {node.bytes}", place=f"{at}.bytes")
    if not math.isfinite(node.workspace_mb) or abs(node.workspace_mb) > MAX_TOTAL_BYTES // _MIB:
        raise InputError(f"a workspace is a finite number of MiB, not {node.workspace_mb}", place=f"{at}.workspace_mb")


def _check_edges(edges: Sequence[tuple[int, int]], n: int) -> None:
    seen = set[tuple[int, int]]()
    for k, edge in enumerate(edges):
        place = f"$.edges[{k}]"
        for end in edge:
            if not 0 <= end < n:
                raise InputError(f"node {end} does not exist: there are {n}", place=place)
        if edge[0] >= edge[1]:
            raise InputError(
                f"an edge runs from an earlier node to a later one, not {edge[0]} to {edge[1]}", place=place
            )
        if edge in seen:
            raise InputError(f"the edge {edge[0]} to {edge[1]} stands twice", place=place)
        seen.add(edge)


def _operator(node: _Node, i: int, loss: int, *, workspaces: bool) -> Operator:
    return Operator(
        name=f"{node.name.removeprefix('aten::')}.{i}",
        phase="forward" if i <= loss else "backward",
        duration_s=node.cost_10us / _COSTS_PER_S,
        workspace_bytes=_workspace_bytes(node, workspaces=workspaces),
        layer=i,
        kind=operator_kind(node.name),
    )


def _workspace_bytes(node: _Node, *, workspaces: bool) -> int:
    return max(0, math.ceil(node.workspace_mb * _MIB)) if workspaces else 0


def _tensors(graph: _File, *, workspaces: bool) -> list[Tensor]:
    inputs: list[list[int]] = [[] for _ in graph.nodes]
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for source, target in sorted(graph.edges):
        inputs[target].append(source)
        readers[source].append(target)
    blocks = _blocks(readers, graph.loss)
    return [
        Tensor(
            name=f"{node.name.removeprefix('aten::')}.{i}",
            bytes=node.bytes,
            producer=i,
            readers=tuple(readers[i]),
            block=blocks[i],
            rebuild=Rebuild(
                node.cost_10us / _COSTS_PER_S, tuple(inputs[i]), _workspace_bytes(node, workspaces=workspaces)
            ),
        )
        for i, node in enumerate(graph.nodes)
    ]


def _blocks(readers: Sequence[Sequence[int]], loss: int) -> list[int | None]:
    """Cut the forward pass where one output alone is handed on, after every sqrt(n) of n saved ones (Chen et al. 2016).

    The output handed on belongs to no block: the next block is recomputed from it.
    """
    blocks: list[int | None] = [None] * len(readers)
    saved = [bool(later) and later[-1] > loss for later in readers[: loss + 1]]
    last_forward = [max([i, *(k for k in later if k <= loss)]) for i, later in enumerate(readers[: loss + 1])]
    length, block, inside, alive = math.sqrt(sum(saved)), 0, list[int](), set[int]()
    for i in range(loss + 1):
        inside.append(i)
        alive = {t for t in (*alive, i) if last_forward[t] > i}
        if len(alive) == 1 and sum(saved[t] for t in inside) >= length:
            for t in inside:
                blocks[t] = None if t in alive else block
            block, inside = block + 1, []
    for t in inside:
        blocks[t] = block
    return blocks


def _derivation(problem: Problem) -> Derivation:
    n, saved = problem.n_operators, int(problem.saved.sum())
    return Derivation(
        kind="profiled graph",
        facts={
            "order": exact(n, "order of the nodes"),
            "times": exact(n, "cost of each node, in units of 10 us"),
            "sizes": exact(saved, "bytes of each node's output"),
            "producers": exact(saved, "the node itself"),
            "readers": exact(saved, "edges of the graph"),
            "first backward use": exact(saved, "edges of the graph"),
            "rebuild costs": rebuild_costs(problem, "the node's own cost"),
        },
    )


def _metadata(graph: _File, file_name: str, workspaces: bool) -> dict[str, object]:
    left_out = [
        f"The {graph.fixed_bytes / 1e6:.1f} MB of inputs, parameters and their gradients: they stay on the device."
    ]
    if not workspaces:
        largest = max(node.workspace_mb for node in graph.nodes)
        left_out.append(f"Workspaces, of up to {largest:.1f} MiB: the published totals are without them.")
    return {
        "source": f"{file_name}, a profiled graph",
        "note": graph.note,
        "batch": graph.batch,
        "fixed_bytes": graph.fixed_bytes,
        "published": {budget: msgspec.to_builtins(result) for budget, result in graph.published.items()},
        "heuristics": [
            "Every node can run again, random ones included, at its own cost and from the outputs that it read.",
            "Outputs written in place count as buffers of their own.",
            "A block ends where one output alone is handed on, after every sqrt(n) of n saved outputs.",
        ],
        "left_out": left_out,
    }
