"""Profiled graphs: what a problem takes from one, and what is refused."""

from __future__ import annotations

import copy
import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest
from instances import MB, PLAIN_LINK
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes
from slackswap.models.problem import Problem, Rebuild
from slackswap.models.problem_file import problem_from_json, problem_to_json
from slackswap.models.traces.profiled_graph import (
    activation_budget_bytes,
    import_profiled_graph,
    looks_like_profiled_graph,
)


def node(i: int, name: str, phase: str, cost_10us: int, megabytes: int, workspace_mb: float = 0.0) -> dict[str, Any]:
    return {
        "id": i,
        "name": name,
        "phase": phase,
        "cost_10us": cost_10us,
        "duration_ms": cost_10us / 100 + 0.001,
        "bytes": megabytes * MB,
        "workspace_mb": workspace_mb,
    }


# Two layers and a loss. The gradients read what the forward pass wrote; that of the parameters writes nothing.
SMALL: dict[str, Any] = {
    "note": "written by hand",
    "name": "small",
    "batch": 2,
    "loss": 2,
    "fixed_bytes": 7 * MB,
    "nodes": [
        node(0, "aten::_convolution", "forward", 30, 10, 1.5),
        node(1, "aten::relu_", "forward", 5, 10),
        node(2, "loss", "forward", 0, 1),
        node(3, "aten::relu__ip_grad", "backward", 5, 10, -10.0),
        node(4, "aten::_convolution_param_grad", "backward", 60, 0),
    ],
    "edges": [[0, 1], [1, 2], [1, 3], [2, 3], [0, 4], [3, 4]],
    "published": {"10": {"best": 100, "bound": 99, "seconds": 1.5}},
}


def written(folder: Path, graph: object) -> Path:
    path = folder / "small.json"
    path.write_text(graph if isinstance(graph, str) else json.dumps(graph))
    return path


def imported(folder: Path, graph: object, *, workspaces: bool = False) -> Problem:
    return import_profiled_graph(written(folder, graph), link=PLAIN_LINK, workspaces=workspaces)


def test_operators_are_nodes(tmp_path: Path) -> None:
    problem = imported(tmp_path, SMALL)
    assert (problem.name, problem.n_forward, problem.link) == ("small", 3, PLAIN_LINK)
    assert problem.operator_names == (
        "_convolution.0",
        "relu_.1",
        "loss.2",
        "relu__ip_grad.3",
        "_convolution_param_grad.4",
    )
    # Costs count, in units of 10 us, not the finer `duration_ms`: published totals are sums of them.
    assert problem.duration_s.tolist() == pytest.approx([30e-5, 5e-5, 0.0, 5e-5, 60e-5])
    assert [operator.kind for operator in problem.operators()] == [
        "convolution",
        "elementwise",
        "loss",
        "elementwise",
        "convolution",
    ]
    assert problem.workspace_bytes.tolist() == [0, 0, 0, 0, 0]
    assert problem.layer.tolist() == [0, 1, 2, 3, 4]


def test_tensors_are_outputs(tmp_path: Path) -> None:
    problem = imported(tmp_path, SMALL)
    assert problem.tensor_bytes.tolist() == [10 * MB, 10 * MB, 1 * MB, 10 * MB, 0]
    assert [problem.readers_of(t).tolist() for t in range(5)] == [[1, 4], [2, 3], [3], [4], []]
    assert [tensor.rebuild for tensor in problem.tensors()] == [
        Rebuild(30e-5),
        Rebuild(5e-5, (0,)),
        Rebuild(0.0, (1,)),
        Rebuild(5e-5, (1, 2)),
        Rebuild(60e-5, (0, 3)),
    ]
    # Gradients are tensors of their own: 10 + 10 + 1 + 10 MB while relu's gradient is computed.
    assert peak_bytes(problem) == 31 * MB


def test_workspaces_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    problem = imported(tmp_path, SMALL, workspaces=True)
    # 1.5 MiB; minus 10 MiB means that the output is written in place, which frees nothing here.
    assert problem.workspace_bytes.tolist() == [1572864, 0, 0, 0, 0]
    assert problem.rebuild_workspace_bytes.tolist() == [1572864, 0, 0, 0, 0]
    assert not any("Workspaces" in sentence for sentence in problem.metadata["left_out"])
    assert any("Workspaces" in sentence for sentence in imported(tmp_path, SMALL).metadata["left_out"])


def test_budgets_hold_what_is_fixed(tmp_path: Path) -> None:
    problem = imported(tmp_path, SMALL)
    assert problem.metadata["fixed_bytes"] == 7 * MB
    assert activation_budget_bytes(problem, 10 * MB) == 3 * MB
    assert activation_budget_bytes(problem, 10 * MB + 0.9) == 3 * MB  # down
    assert activation_budget_bytes(problem, 6 * MB) == 0
    assert problem.metadata["published"] == {"10": {"best": 100, "bound": 99, "seconds": 1.5}}
    assert problem.metadata["batch"] == 2


def test_metadata_survives_a_problem_file(tmp_path: Path) -> None:
    problem = imported(tmp_path, SMALL)
    again = problem_from_json(problem_to_json(problem))
    assert again.metadata == problem.metadata
    assert activation_budget_bytes(again, 10 * MB) == 3 * MB


def test_blocks_end_where_one_output_is_handed_on(tmp_path: Path) -> None:
    """A chain of nine saved outputs: a cut after every third, and what is handed on belongs to no block.

    Node 4 is read by node 6 too, so after node 5 two are handed on and the cut comes a node later.
    """
    forward = [node(i, "aten::relu", "forward", 1, 1) for i in range(9)]
    backward = [node(9 + k, "aten::relu_ip_grad", "backward", 1, 1) for k in range(9)]
    edges = [[i, i + 1] for i in range(17)] + [[i, 17 - i] for i in range(8)] + [[4, 6]]
    graph = {"name": "chain", "loss": 8, "nodes": forward + backward, "edges": edges}
    problem = imported(tmp_path, graph)
    assert problem.block[:9].tolist() == [0, 0, -1, 1, 1, 1, -1, 2, 2]
    assert problem.block[9:].tolist() == [-1] * 9


def test_one_node_is_a_graph(tmp_path: Path) -> None:
    graph = {"name": "one", "loss": 0, "nodes": [node(0, "loss", "forward", 0, 0)], "edges": []}
    problem = imported(tmp_path, graph)
    assert (problem.n_operators, problem.n_forward, problem.metadata["fixed_bytes"]) == (1, 1, 0)


def test_gzip_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + json.dumps(SMALL).encode()))
    assert import_profiled_graph(path, link=PLAIN_LINK).n_operators == 5


def test_the_start_of_a_file_tells(tmp_path: Path) -> None:
    assert looks_like_profiled_graph(written(tmp_path, SMALL).read_bytes()[:200])
    assert looks_like_profiled_graph(b'\xef\xbb\xbf {"nodes": [{"id": 0, "cost_10us" : 3')
    for other in (
        b"",
        b"node1 -- Input0 -- forward_compute_time=1.000",
        b'{"format": "slackswap-problem/1", "name": "x"',
        b'{"schema": "1.1.0", "pid": 1, "nodes": [{"id": 1',
        b'{"traceEvents": [{"name": "cost_10us"',
        b'["cost_10us", "fixed_bytes"]',
    ):
        assert not looks_like_profiled_graph(other)


def changed(*path: str | int, value: object) -> dict[str, Any]:
    graph = copy.deepcopy(SMALL)
    place: Any = graph
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return graph


REFUSED = {
    "no nodes": (changed("nodes", value=[]), "$.nodes: a graph has at least one node"),
    "loss beyond the end": (changed("loss", value=5), "$.loss: names node 5, but there are 5"),
    "loss before the start": (changed("loss", value=-1), "$.loss: names node -1"),
    "fixed bytes": (changed("fixed_bytes", value=-1), "$.fixed_bytes: is a number of bytes from 0, not -1"),
    "numbering": (changed("nodes", 1, "id", value=2), "$.nodes[1].id: nodes stand in topological order"),
    "phase after the loss": (
        changed("nodes", 3, "phase", value="forward"),
        "$.nodes[3].phase: is 'backward' after the loss, node 2, not 'forward'",
    ),
    "phase up to the loss": (
        changed("nodes", 0, "phase", value="backward"),
        "$.nodes[0].phase: is 'forward' up to the loss",
    ),
    "cost": (
        changed("nodes", 0, "cost_10us", value=-3),
        "$.nodes[0].cost_10us: a cost is a whole number from 0, not -3",
    ),
    "broken cost": (changed("nodes", 0, "cost_10us", value=1.5), "$.nodes[0].cost_10us: expected `int`"),
    "endless cost": (changed("nodes", 0, "cost_10us", value=10**18), "duration"),
    "size": (
        changed("nodes", 0, "bytes", value=-1),
        "$.nodes[0].bytes: a size is a whole number of bytes from 0, not -1",
    ),
    "endless size": (changed("nodes", 0, "bytes", value=1 << 62), "$.nodes[0].bytes: a size is a whole number"),
    "endless workspace": (changed("nodes", 0, "workspace_mb", value=1e300), "$.nodes[0].workspace_mb: a workspace is"),
    "edge to nowhere": (changed("edges", 0, value=[0, 5]), "$.edges[0]: node 5 does not exist: there are 5"),
    "edge backwards": (
        changed("edges", 1, value=[2, 1]),
        "$.edges[1]: an edge runs from an earlier node to a later one",
    ),
    "edge to itself": (
        changed("edges", 1, value=[1, 1]),
        "$.edges[1]: an edge runs from an earlier node to a later one",
    ),
    "edge twice": (changed("edges", 1, value=[0, 1]), "$.edges[1]: the edge 0 to 1 stands twice"),
    "edge of three": (changed("edges", 1, value=[0, 1, 2]), "$.edges[1]: expected `array` of length 2"),
    "unknown key": (changed("color", value="red"), "unknown field `color`"),
    "unknown key of a node": (
        changed("nodes", 0, "color", value="red"),
        "$.nodes[0]: object contains unknown field `color`",
    ),
    "missing key": ({key: value for key, value in SMALL.items() if key != "edges"}, "missing required field `edges`"),
    "a list": ([SMALL], "expected `object`"),
    "torn": (json.dumps(SMALL)[:300], "small.json"),
    "not JSON": ("fixed_bytes: 3", "small.json"),
    "empty": ("", "is empty"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_breaks_a_rule_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    graph, message = REFUSED[name]
    with pytest.raises(InputError) as refusal:
        imported(tmp_path, graph)
    text = str(refusal.value)
    assert message.lower() in text.lower()
    assert text.startswith(str(tmp_path / "small.json"))
    assert "\n" not in text


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: cannot be read"):
        import_profiled_graph(tmp_path / "nowhere.json", link=PLAIN_LINK)


def test_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    """Whatever happens to a byte, the answer is a problem or one line, never another exception."""
    content = json.dumps(SMALL)
    generator = random.Random(0)
    refused = 0
    for _ in range(400):
        place = generator.randrange(len(content))
        damaged = content[:place] + generator.choice('0-9}]{["e.,n ') + content[place + generator.randrange(1, 4) :]
        try:
            imported(tmp_path, damaged)
        except InputError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100


@pytest.mark.parametrize(
    ("name", "n_operators", "n_forward", "total"),
    [
        ("vgg16_176", 97, 41, 245618),
        ("un_11", 154, 68, 188252),
        ("resnet50_184", 405, 176, 101898),
        ("mobilenet_v2_272", 343, 154, 61047),
    ],
)
def test_published_graphs(name: str, n_operators: int, n_forward: int, total: int) -> None:
    path = shared_file(f"graphs/{name}_p100.json")
    assert looks_like_profiled_graph(path.read_bytes()[:4096])
    problem = import_profiled_graph(path, link=PLAIN_LINK)
    assert (problem.n_operators, problem.n_forward) == (n_operators, n_forward)
    assert problem.ideal_s / 1e-5 == pytest.approx(total)
    assert problem.rebuildable.all()
    for gib, result in problem.metadata["published"].items():
        assert result["bound"] <= result["best"]
        assert total < result["best"]
        budget_bytes = activation_budget_bytes(problem, int(gib) * 2**30)
        assert budget_bytes == int(gib) * 2**30 - problem.metadata["fixed_bytes"]
        assert budget_bytes < peak_bytes(problem)
