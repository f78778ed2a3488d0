"""PipeDream's graph.txt: what a problem takes from it, and what it refuses."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, columns
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Rebuild, Tensor
from slackswap.models.problem_file import problem_from_json, problem_to_json
from slackswap.models.traces.pipedream import import_pipedream, looks_like_pipedream


def node(number: int, description: str, forward_ms: float, backward_ms: float, *sizes_mb: float) -> str:
    sizes = [f"{size * MB:.3f}" for size in sizes_mb]
    size = sizes[0] if len(sizes) == 1 else f"[{'; '.join(sizes)}]"
    return (
        f"node{number} -- {description} -- forward_compute_time={forward_ms:.3f}, "
        f"backward_compute_time={backward_ms:.3f}, activation_size={size}, parameter_size=4000.000"
    )


def edges(*pairs: tuple[int, int]) -> list[str]:
    return [f"\tnode{a} -- node{b}" for a, b in pairs]


# A residual network in small: the pooled tensor skips one convolution and is added in place.
#
#   1 Input > 2 Conv > 3 BN > 4 ReLU > 5 MaxPool > 6 Conv > 7 BN > 8 Add > 9 ReLU > 11 View > 12 Dropout > 13 Linear
#                                          \______________________/          \ 10 Size /
#
# Operators are the nodes but 1, 10 and 11: Conv.2 is 0, ... ReLU.9 is 7, Dropout.12 is 8, Linear.13 is 9; the backward
# operator of i is 19 - i.
RESIDUAL = [
    node(1, "Input", 500, 0, 4),
    node(2, "Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1), bias=False)", 2, 4, 8),
    node(3, "BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)", 1, 1, 8),
    node(4, "ReLU(inplace)", 0.5, 0.5, 8),
    node(5, "MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)", 0.5, 1, 2),
    node(6, "Conv2d(8, 8, kernel_size=(3, 3), stride=(1, 1), bias=False)", 1, 2, 2),
    node(7, "BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)", 0.25, 0.25, 2),
    node(8, "Add(inplace)", 0, 0, 2),
    node(9, "ReLU(inplace)", 0.25, 0.25, 2),
    node(10, "Size(0)", 0, 0, 4e-6),
    node(11, "View(-1)", 0, 0, 2),
    node(12, "Dropout(p=0.5)", 0, 0, 2),
    node(13, "Linear(in_features=100, out_features=50, bias=True)", 3, 6, 1),
    # The first edge into the addition comes from the skip: the storage it writes is the other one's, produced later.
    *edges((5, 8), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 9), (9, 10), (9, 11), (10, 11)),
    *edges((11, 12), (12, 13)),
]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    return tmp_path / "small.graph.txt"


def imported(graph: Path, lines: list[str], *, pool_indices: bool = False) -> Problem:
    graph.write_text("\n".join(lines) + "\n")
    return import_pipedream(graph, link=PLAIN_LINK, pool_indices=pool_indices)


def test_residual_network_operators(graph: Path) -> None:
    problem = imported(graph, RESIDUAL)
    assert (problem.name, problem.n_forward, problem.n_operators) == ("small", 10, 20)
    assert problem.operator_names[:3] == ("Conv2d.2", "BatchNorm2d.3", "ReLU.4")
    assert problem.operator_names[10:12] == ("Linear.13.backward", "Dropout.12.backward")
    # Without the 500 ms of Input: 2 + 1 + 0.5 + 0.5 + 1 + 0.25 + 0 + 0.25 + 0 + 3, and backward likewise.
    assert problem.forward_s == pytest.approx(8.5 * MS)
    assert problem.backward_s == pytest.approx(15 * MS)
    kinds = [operator.kind for operator in problem.operators()]
    assert kinds[:10] == [
        *("convolution", "norm", "elementwise", "other", "convolution"),
        *("norm", "elementwise", "elementwise", "dropout", "gemm"),
    ]
    assert kinds[10:] == kinds[9::-1]
    assert problem.layer.tolist() == list(range(20))


def test_residual_network_tensors(graph: Path) -> None:
    # Save rules, with the backward operator 19 - i of the layer that keeps the tensor:
    #   BN keeps its input (18, 14), ReLU its output (17, 12), MaxPool its input (16), Conv and Linear theirs (15, 10).
    # In-place layers have no tensor of their own: they read the one they write, and its rebuild runs them too.
    assert imported(graph, RESIDUAL).tensors() == [
        Tensor("Conv2d.2", 8 * MB, 0, (1, 18), 0, Rebuild(2 * MS)),
        Tensor("BatchNorm2d.3", 8 * MB, 1, (2, 3, 16, 17), 0, Rebuild(1.5 * MS, (0,))),
        Tensor("MaxPool2d.5", 2 * MB, 3, (4, 6, 15), None, Rebuild(0.5 * MS, (1,))),
        Tensor("Conv2d.6", 2 * MB, 4, (5, 14), 1, Rebuild(1 * MS, (2,))),
        Tensor("BatchNorm2d.7", 2 * MB, 5, (6, 7, 8, 12), 1, Rebuild(0.5 * MS, (2, 3))),
        Tensor("Dropout.12", 2 * MB, 8, (9, 10), None, None),
        Tensor("Linear.13", 1 * MB, 9, (), 2, Rebuild(3 * MS, (5,))),
    ]


def test_saved_bytes(graph: Path) -> None:
    # All but the last: 8 + 8 + 2 + 2 + 2 + 2. The pool's int64 indices are 8 bytes for each of 2 MB / 4 elements: + 4.
    assert imported(graph, RESIDUAL).saved_bytes == 24 * MB
    problem = imported(graph, RESIDUAL, pool_indices=True)
    assert problem.saved_bytes == 28 * MB
    # Rebuilt by pooling again; read by the pool's backward operator, 16.
    indices = problem.tensors()[3]
    assert indices == Tensor("MaxPool2d.5.indices", 4 * MB, 3, (16,), 0, Rebuild(0.5 * MS, (1,)))


def test_backward_workspace_holds_the_gradients_of_output_and_inputs(graph: Path) -> None:
    workspace = imported(graph, RESIDUAL).workspace_bytes
    assert not workspace[:10].any()
    assert workspace[19 - 0] == 8 * MB  # Conv.2: output 8; the input batch needs no gradient
    assert workspace[19 - 3] == 10 * MB  # MaxPool.5: output 2, input 8
    assert workspace[19 - 6] == 6 * MB  # Add.8: output 2, two inputs of 2


def test_metadata_declares_what_is_guessed_and_what_is_missing(graph: Path) -> None:
    metadata = imported(graph, RESIDUAL).metadata
    assert metadata["source"] == "small.graph.txt, a PipeDream graph.txt"
    assert "Saved tensors that nothing rebuilds: 1 (2.0 MB)" in " ".join(metadata["heuristics"])
    left_out = " ".join(metadata["left_out"])
    assert "The input batch (4.0 MB) stays on the device and does not count; the 500.000 ms of its node" in left_out
    assert "The int64 indices that max pooling keeps (4.0 MB)." in left_out
    assert "The masks that dropout keeps (0.5 MB)." in left_out  # 2 MB / 4 elements of one byte
    assert "indices" not in " ".join(imported(graph, RESIDUAL, pool_indices=True).metadata["left_out"])


@given(st.randoms(use_true_random=False))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_line_order_does_not_matter(graph: Path, shuffler: random.Random) -> None:
    lines = list(RESIDUAL)
    shuffler.shuffle(lines)
    assert columns(imported(graph, lines)) == columns(imported(graph, RESIDUAL))


def test_ready_nodes_run_by_number(graph: Path) -> None:
    # 5 needs nothing, 2 and 3 need 1, 4 needs 2: the lowest ready number first gives 1 2 3 4 5.
    names = {n: f"Sigmoid{n}()" for n in (5, 4, 3, 2, 1)}
    problem = imported(graph, [*(node(n, d, 1, 1, 1) for n, d in names.items()), *edges((1, 2), (1, 3), (2, 4))])
    assert problem.operator_names[:5] == ("Sigmoid1.1", "Sigmoid2.2", "Sigmoid3.3", "Sigmoid4.4", "Sigmoid5.5")


# A sentence in, a word out: 3 has a list of outputs; 5, its second one, feeds nothing that is kept.
RECURRENT = [
    node(1, "Input0", 0, 0, 0),
    node(2, "Embedding(100, 8, padding_idx=0)", 1, 1, 2),
    node(3, "LSTM(8, 8)", 4, 6, 4, 0.5, 0.25),
    node(4, "__getitem__(0)", 0, 0, 4),
    node(5, "__getitem__(-2)", 0, 0, 0.5),
    node(6, "Concat(2)", 0, 0, 4),
    node(7, "Classifier(  (classifier): Linear(in_features=8, out_features=100, bias=True))", 2, 3, 10),
    *edges((1, 2), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6), (6, 7)),
]


def test_lists_of_outputs(graph: Path) -> None:
    # Operators: Embedding 0, LSTM 1, Concat 2, Classifier 3; backward 7 - i. The LSTM keeps its input and first output.
    # Item -2 of three outputs is the second.
    problem = imported(graph, RECURRENT)
    assert problem.tensors() == [
        Tensor("Embedding.2", 2 * MB, 0, (1, 6), 0, Rebuild(1 * MS)),
        Tensor("LSTM.3[0]", 4 * MB, 1, (2, 6), 0, Rebuild(4 * MS, (0,))),
        Tensor("LSTM.3[1]", MB // 2, 1, (2,), 0, Rebuild(4 * MS, (0,))),
        Tensor("LSTM.3[2]", MB // 4, 1, (), 0, Rebuild(4 * MS, (0,))),
        Tensor("Concat.6", 4 * MB, 2, (3, 4), None, Rebuild(0.0, (1, 2))),
        Tensor("Classifier.7", 10 * MB, 3, (), 1, Rebuild(2 * MS, (4,))),
    ]


def test_too_few_bytes_are_declared(graph: Path) -> None:
    metadata = imported(graph, RECURRENT).metadata
    assert (
        "Saved tensors that cost 0 s to rebuild: 1 (4.0 MB), because the profile gives their layers a time of "
        "0.000 ms; planners recompute them for nothing."
    ) in metadata["heuristics"]
    # 4 MB and 0.5 MB do not join to 4 MB: the profiler took the size of the first.
    warnings = metadata["derivation"]["warnings"]
    assert "Concatenations recorded as smaller than their inputs: Concat.6." in warnings
    assert "What LSTM keep inside is not recorded: the saved bytes are too few." in warnings


def test_item_that_does_not_exist(graph: Path) -> None:
    lines = [*RECURRENT[:3], node(4, "__getitem__(3)", 0, 0, 4), *edges((2, 3), (3, 4))]
    with pytest.raises(InputError) as refused:
        imported(graph, lines)
    assert str(refused.value) == f"{graph}: line 4: takes item 3 of 3 outputs"


def test_views_that_take_time_are_operators(graph: Path) -> None:
    lines = [node(1, "Linear(1, 1)", 1, 1, 1), node(2, "Transpose(0, 1)", 0.5, 0, 1), *edges((1, 2))]
    problem = imported(graph, lines)
    assert problem.operator_names[:2] == ("Linear.1", "Transpose.2")
    assert problem.tensors() == [Tensor("Linear.1", 1 * MB, 0, (1,), None, None)]  # the storage is shared


def test_source_that_is_no_input_cannot_be_rebuilt(graph: Path) -> None:
    lines = [node(1, "hidden", 0, 0, 1), node(2, "Linear(1, 1)", 1, 1, 1), *edges((1, 2))]
    problem = imported(graph, lines)
    assert problem.tensors()[0] == Tensor("hidden.1", 1 * MB, 0, (1, 2), None, None)
    assert "Layers without a rule, taken to keep nothing: hidden." in problem.metadata["heuristics"]


def test_overwritten_input_cannot_rebuild(graph: Path) -> None:
    # 2 is read by 3, then overwritten by 4: running 3 again would read 4's values. 5 reads those, and can run again.
    lines = [
        node(1, "Input", 0, 0, 1),
        node(2, "Linear(1, 1)", 1, 1, 1),
        node(3, "Sigmoid()", 1, 1, 1),
        node(4, "ReLU(inplace)", 1, 1, 1),
        node(5, "Sigmoid()", 1, 1, 1),
        *edges((1, 2), (2, 3), (2, 4), (4, 5)),
    ]
    rebuilds = {tensor.name: tensor.rebuild for tensor in imported(graph, lines).tensors()}
    assert rebuilds == {"Linear.2": Rebuild(2 * MS), "Sigmoid.3": None, "Sigmoid.5": Rebuild(1 * MS, (0,))}


def test_outputs_of_one_operator_added_in_place_cannot_be_rebuilt(graph: Path) -> None:
    # 4 adds one output of 1 into another: rebuilding the sum would need the first output from before.
    lines = [
        node(1, "LSTM(8, 8)", 1, 1, 1, 1),
        node(2, "__getitem__(0)", 0, 0, 1),
        node(3, "__getitem__(1)", 0, 0, 1),
        node(4, "Add(inplace)", 1, 1, 1),
        node(5, "Input", 0, 0, 1),
        *edges((5, 1), (1, 2), (1, 3), (2, 4), (3, 4)),
    ]
    problem = imported(graph, lines)
    assert problem.rebuildable.tolist() == [False, True]
    assert problem.tensors()[0].readers == (1, 3)  # read by the addition, kept by the LSTM as its first output


@pytest.mark.parametrize(
    ("description", "in_place"),
    [
        ("ReLU(inplace)", True),
        ("ReLU(inplace=True)", True),
        ("ReLU()", False),
        ("ReLU(inplace=False)", False),
        ("Branch(  (relu): ReLU(inplace))", False),  # the module has an output of its own
    ],
)
def test_in_place_layers(description: str, in_place: bool, graph: Path) -> None:
    lines = [node(1, "Linear(1, 1)", 1, 1, 1), node(2, description, 1, 1, 1), *edges((1, 2))]
    assert imported(graph, lines).n_tensors == (1 if in_place else 2)


@pytest.mark.parametrize(
    ("description", "rebuildable"),
    [
        ("Dropout(p=0.5)", False),
        ("Dropout", False),
        ("Attention(  (dropout): Dropout(p=0.10))", False),
        ("Attention(  (dropout): Dropout(p=0))", True),
        ("Attention(  (dropout): Dropout2d(p=0.0))", True),
    ],
)
def test_random_layers_cannot_be_rebuilt(description: str, rebuildable: bool, graph: Path) -> None:
    lines = [node(1, "Input", 0, 0, 1), node(2, description, 1, 1, 1), *edges((1, 2))]
    assert imported(graph, lines).rebuildable.tolist() == [rebuildable]


def test_blocks_of_a_chain(graph: Path) -> None:
    # Ten linear layers keep nine inputs (the batch does not count), so a block ends after every sqrt(9) = 3 saved
    # tensors; the tensor handed on belongs to none.
    lines = [node(0, "Input", 0, 0, 1), *(node(i, "Linear(1, 1)", 1, 1, 1) for i in range(1, 11))]
    problem = imported(graph, lines + edges(*((i, i + 1) for i in range(10))))
    blocks = [tensor.block for tensor in problem.tensors()]
    assert blocks == [0, 0, None, 1, 1, None, 2, 2, None, 3]


def test_no_block_ends_inside_a_skip(graph: Path) -> None:
    # The same chain, but layer 10 also reads the first one's output: two tensors are handed on everywhere until then.
    lines = [node(0, "Input", 0, 0, 1), *(node(i, "Linear(1, 1)", 1, 1, 1) for i in range(1, 11))]
    problem = imported(graph, lines + edges(*((i, i + 1) for i in range(10)), (1, 10)))
    assert [tensor.block for tensor in problem.tensors()] == [0] * 10


def test_an_empty_tensor_does_not_keep_a_block_open(graph: Path) -> None:
    # The chain again, beside a tensor of no bytes that every layer reads, as a recurrent network's missing state.
    lines = [node(0, "hidden", 0, 0, 0), *(node(i, "Linear(1, 1)", 1, 1, 1) for i in range(1, 11))]
    pairs = [*((0, i) for i in range(1, 11)), *((i, i + 1) for i in range(1, 10))]
    problem = imported(graph, lines + edges(*pairs))
    # Ten saved tensors now, so a block ends after four: hidden and 1 to 3, then 4 to 7.
    assert [tensor.block for tensor in problem.tensors()] == [0, 0, 0, None, 1, 1, 1, None, 2, 2, 2]


def test_partitioned_graphs_and_windows_line_ends(graph: Path) -> None:
    lines = [f"{line} -- stage_id=1\r" if "compute" in line else f"{line}\r" for line in RESIDUAL]
    assert columns(imported(graph, ["", *lines, "  "])) == columns(imported(graph, RESIDUAL))


def test_gzip_and_names(tmp_path: Path) -> None:
    for name in ("vgg16.graph.txt", "vgg16.txt", "vgg16.graph.txt.gz", "vgg16"):
        (tmp_path / name).write_bytes(gzip.compress("\n".join(RESIDUAL).encode()))
        assert import_pipedream(tmp_path / name, link=PLAIN_LINK).name == "vgg16"


def test_graphs_are_recognized_by_content() -> None:
    assert looks_like_pipedream("\n".join(RESIDUAL).encode())
    assert looks_like_pipedream("\n".join(reversed(RESIDUAL)).encode())
    assert not looks_like_pipedream(b"node1 -- node2\n")
    assert not looks_like_pipedream(b'{"node1": " -- forward_compute_time="}')
    assert not looks_like_pipedream(b"")


GOOD = node(1, "Linear(1, 1)", 1, 1, 1)
NEITHER = "is neither a PipeDream node nor an edge, `nodeA -- nodeB`"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["hello"], f"line 1: {NEITHER}"),
        ([GOOD, "node2 -- Linear(1, 1)"], f"line 2: {NEITHER}"),
        ([GOOD, GOOD.replace("parameter_size", "params")], f"line 2: {NEITHER}"),
        ([GOOD.replace("node1", "nodeA")], f"line 1: {NEITHER}"),
        ([GOOD.replace("node1", "node" + "1" * 5000)], f"line 1: {NEITHER}"),
        ([GOOD + ", flops=3"], f"line 1: {NEITHER}"),
        ([GOOD.replace("1000000.000", "[1.0; 2.0")], f"line 1: {NEITHER}"),
        ([GOOD.replace("1000000.000", "[]")], "line 1: activation_size is a finite number, at least 0, not ''"),
        ([GOOD.replace("1000000.000", "nan")], "line 1: activation_size is a finite number, at least 0, not 'nan'"),
        ([GOOD.replace("1000000.000", "0.5")], "line 1: a size is a whole number of bytes, not 0.5"),
        ([GOOD.replace("4000.000", "-1")], "line 1: parameter_size is a finite number, at least 0, not '-1'"),
        ([GOOD.replace("e=1.000", "e=-1")], "line 1: forward_compute_time is a finite number, at least 0, not '-1'"),
        ([GOOD.replace("e=1.000", "e=inf")], "line 1: forward_compute_time is a finite number, at least 0, not 'inf'"),
        ([GOOD, "", GOOD], "line 3: node1 stands on line 1 already"),
        ([GOOD, *edges((1, 2))], "line 2: the edge names node2, which has no line of its own"),
        ([*edges((2, 1)), GOOD], "line 1: the edge names node2, which has no line of its own"),
        ([GOOD, *edges((1, 1))], "line 1: the edges form a cycle through node1"),
        ([node(1, "Input", 1, 1, 1)], "has no layer besides inputs and views"),
        ([""], "is empty"),
        ([GOOD.replace("1000000.000", "1e30")], "$.operators[1].workspace_bytes: a size is a whole number of bytes"),
    ],
)
def test_refusals(lines: list[str], message: str, graph: Path) -> None:
    with pytest.raises(InputError) as refused:
        imported(graph, lines)
    assert str(refused.value).startswith(f"{graph}: {message}")


def test_cycle_names_a_node_on_it(graph: Path) -> None:
    # 1 -> 2 -> 3 -> 4 -> 2, and 5 hangs off it: 2, 3 and 4 are on the cycle, 5 only behind it.
    lines = [*(node(i, "Linear(1, 1)", 1, 1, 1) for i in range(1, 6)), *edges((1, 2), (2, 3), (3, 4), (4, 2), (4, 5))]
    with pytest.raises(InputError, match=r"the edges form a cycle through node[234]$"):
        imported(graph, lines)


def test_binary_junk(graph: Path) -> None:
    graph.write_bytes(b"node1 \xff\xfe\x00")
    with pytest.raises(InputError, match="is not text: byte 6 is not UTF-8"):
        import_pipedream(graph, link=PLAIN_LINK)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "line",
    [
        GOOD + " -- stage_id=" * 100_000 + ",",
        "node1 -- " + " -- forward_compute_time=" * 100_000,
        GOOD.replace("Linear", "Dropout" * 100_000),
        GOOD.replace("Linear(1, 1)", "Linear(" + "inplace" * 100_000),
        "node1" + " " * 500_000,
    ],
)
def test_long_lines_take_no_time(line: str, graph: Path) -> None:
    # Patterns that try every split of a long line would run for hours.
    graph.write_text(line)
    try:
        import_pipedream(graph, link=PLAIN_LINK)
    except InputError as error:
        assert "line 1" in str(error)


def test_a_wide_and_a_long_graph(graph: Path) -> None:
    # 20,000 layers that all read the first, then a chain through all: half a second, because nothing is quadratic.
    n = 20_000
    lines = [node(i, "Linear(1, 1)", 1, 1, 1e-6) for i in range(n)]
    pairs = [(0, i) for i in range(1, n)] + [(i, i + 1) for i in range(1, n - 1)]
    assert imported(graph, lines + edges(*pairs)).n_operators == 2 * n


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=2000)
def test_damaged_graphs(graph: Path, data: st.DataObject) -> None:
    # Lines removed, doubled and moved, bytes replaced: refused, or a valid problem that survives a file.
    lines = data.draw(st.lists(st.sampled_from(RESIDUAL + RECURRENT), max_size=4)) + RESIDUAL
    for _ in range(data.draw(st.integers(0, 3))):
        del lines[data.draw(st.integers(0, len(lines) - 1))]
    content = bytearray("\n".join(lines).encode())
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        piece = data.draw(
            st.binary(max_size=3) | st.sampled_from([b"-", b"e9", b"nan", b"; ", b"[", b",", b" -- ", b"1"])
        )
        content[at : at + data.draw(st.integers(0, 3))] = piece
    looks_like_pipedream(bytes(content))
    graph.write_bytes(content)
    try:
        problem = import_pipedream(graph, link=PLAIN_LINK, pool_indices=data.draw(st.booleans()))
    except InputError as error:
        assert str(error).startswith(f"{graph}: ")
        return
    assert columns(problem_from_json(problem_to_json(problem))) == columns(problem)


@pytest.mark.parametrize(
    ("model", "forward_ms", "backward_ms", "n_saved", "saved_gb", "indices_gb"),
    [
        ("vgg16", 233.9, 438.6, 22, 7.728, 1.567),
        ("resnet50", 182.5, 260.9, 104, 10.714, 0.206),
        ("alexnet", 44.8, 40.5, 11, 0.600, 0.181),
        ("densenet121", 177.4, 148.8, 243, 8.022, 0.103),
        ("inception_v3", 289.3, 399.8, 215, 11.717, 0.726),
        ("gnmt", 33.5, 55.9, 14, 0.087, 0.0),
    ],
)
def test_real_profiles(
    model: str, forward_ms: float, backward_ms: float, n_saved: int, saved_gb: float, indices_gb: float
) -> None:
    path = shared_file(f"traces/pipedream/{model}.graph.txt")
    problem = import_pipedream(path, link=PLAIN_LINK)
    assert problem.forward_s / MS == pytest.approx(forward_ms, abs=0.051)
    assert problem.backward_s / MS == pytest.approx(backward_ms, abs=0.051)
    assert problem.saved.sum() == n_saved
    assert problem.saved_bytes / 1e9 == pytest.approx(saved_gb, abs=0.0005)
    with_indices = import_pipedream(path, link=PLAIN_LINK, pool_indices=True)
    assert (with_indices.saved_bytes - problem.saved_bytes) / 1e9 == pytest.approx(indices_gb, abs=0.0005)


def test_free_rebuilds_of_a_real_profile_are_declared() -> None:
    problem = import_pipedream(shared_file("traces/pipedream/densenet121.graph.txt"), link=PLAIN_LINK)
    assert (problem.saved & (problem.rebuild_s == 0)).sum() == 58
    assert any("cost 0 s to rebuild: 58 " in sentence for sentence in problem.metadata["heuristics"])
