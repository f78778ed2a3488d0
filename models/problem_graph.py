"""The networkx view of a problem, for heuristics and checks that think in graphs."""

from __future__ import annotations

import networkx

from slackswap.models.problem import Problem

Node = tuple[str, int]


def build_graph(problem: Problem) -> networkx.DiGraph[Node]:
    """Return operators and tensors as nodes; see `Problem.graph`."""
    graph: networkx.DiGraph[Node] = networkx.DiGraph(name=problem.name)
    for i, operator in enumerate(problem.operators()):
        graph.add_node(
            ("operator", i),
            name=operator.name,
            phase=operator.phase,
            kind=operator.kind,
            layer=operator.layer,
            duration_s=operator.duration_s,
            workspace_bytes=operator.workspace_bytes,
        )
    for t, tensor in enumerate(problem.tensors()):
        node = ("tensor", t)
        graph.add_node(
            node,
            name=tensor.name,
            bytes=tensor.bytes,
            block=tensor.block,
            saved=bool(problem.saved[t]),
            rebuild_s=float(problem.rebuild_s[t]),
        )
        graph.add_edge(("operator", tensor.producer), node, role="writes")
        graph.add_edges_from(((node, ("operator", reader)) for reader in tensor.readers), role="reads")
        if tensor.rebuild is not None:
            graph.add_edges_from(((("tensor", source), node) for source in tensor.rebuild.inputs), role="rebuilds")
    return graph
