"""FLOPs and roofline times of calls with shapes: by hand, against PyTorch's counter, and on recorded traces."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from handwritten_trace import ENGINE
from shared_data import shared_file

from slackswap.hardware import Gpu, Hardware, InputError, Link, load_hardware
from slackswap.models.traces.pytorch.call_flops import work_of
from slackswap.models.traces.pytorch.execution_trace import Iteration, Node, cut_iteration, read_execution_trace
from slackswap.models.traces.pytorch.roofline_times import flops_by_operator, moved_by, roofline_operator_times
from slackswap.models.traces.pytorch.shaped_calls import ShapedCall, ShapedTensor, read_shaped_calls
from slackswap.models.traces.recorded import recorded_trace_paths
from slackswap.models.traces.trace_file import as_trace_file, open_trace_files

# Round numbers: 1000 FLOP/s in FP32, 2000 in BF16, half of each sustained; 100 B/s, a launch of 1 s.
GPU = Gpu("toy", {"fp32": 1000, "bf16": 2000}, 0.5, 0.5, 0.25, 0.5, 1.0, 100, 1.0, 1)
TOY = Hardware("toy", GPU, Link(1e9, 1e9))
_sizes = {"fp32": 4, "bf16": 2, "fp16": 2, "": 8}


def tensor(storage: int, *shape: int, dtype: str = "fp32") -> ShapedTensor:
    count = 1
    for length in shape:
        count *= length
    return ShapedTensor(storage, shape, count * _sizes[dtype], dtype)


def call(
    name: str, arguments: list[Any], results: list[Any], *, call_id: int = 2, parent: int = 1, schema: str = ""
) -> ShapedCall:
    node = Node(call_id, name, parent, (), (), 0, -1, 0, 1, 0, schema)
    return ShapedCall(node, tuple(arguments), tuple(results))


def test_flops_of_products() -> None:
    # 2 m k n, whatever the batch; addmm's first argument is the bias.
    matrix = work_of(call("aten::mm", [tensor(1, 3, 5), tensor(2, 5, 7)], [tensor(3, 3, 7)]))
    assert matrix is not None and matrix.flops == 2 * 3 * 5 * 7
    product = work_of(call("aten::addmm", [tensor(9, 7), tensor(1, 3, 5), tensor(2, 5, 7)], [tensor(3, 3, 7)]))
    assert product is not None and (product.engine, product.flops, product.launches) == ("gemm", 210, 1)
    batched = work_of(call("aten::bmm", [tensor(1, 4, 3, 5), tensor(2, 4, 5, 7)], [tensor(3, 4, 3, 7)]))
    assert batched is not None and batched.flops == 4 * 210
    vector = work_of(call("aten::mv", [tensor(1, 3, 5), tensor(2, 5)], [tensor(3, 3)]))
    assert vector is not None and vector.flops == 30
    assert work_of(call("aten::mm", [tensor(1, 3, 5), None], [])) is None
    assert work_of(call("aten::linear", [tensor(1, 3, 5), tensor(2, 7, 5)], [tensor(3, 3, 7)])) is None


def test_flops_of_convolutions() -> None:
    # 2 images, 3 -> 4 channels, 5 x 5 weights, 6 x 6 positions.
    x, weight, out = tensor(1, 2, 3, 8, 8), tensor(2, 4, 3, 5, 5), tensor(3, 2, 4, 6, 6)
    rest = [None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1]
    forward = work_of(call("aten::convolution", [x, weight, *rest], [out]))
    assert forward is not None and forward.flops == 2 * 2 * (4 * 3 * 5 * 5) * 36

    def backward(results: list[Any], *mask: list[bool]) -> tuple[int, int] | None:
        work = work_of(call("aten::convolution_backward", [out, x, weight, [0], *rest[1:], *mask], results))
        return None if work is None else (work.flops, work.launches)

    assert backward([x, weight, None], [True, True, False]) == (2 * forward.flops, 2)
    assert backward([None, weight, None], [False, True, False]) == (forward.flops, 1)
    # Where the mask is not recorded, the results say which gradients there are.
    assert backward([None, weight, None]) == (forward.flops, 1)
    assert backward([None, None, out], [False, False, True]) is None
    # Transposed, the positions are the input's: weights are [in, out, ...].
    up = work_of(call("aten::convolution", [out, weight, None, *rest[1:4], True, [0, 0], 1], [x]))
    assert up is not None and up.flops == 2 * 2 * 300 * 36
    # Depthwise: the weight has one input channel per group.
    depthwise = work_of(call("aten::convolution", [x, tensor(2, 3, 1, 5, 5), *rest], [tensor(3, 2, 3, 6, 6)]))
    assert depthwise is not None and depthwise.flops == 2 * 2 * 75 * 36


@pytest.mark.parametrize(
    ("name", "before", "between", "engine"),
    [
        ("_scaled_dot_product_flash_attention_for_cpu", [], [0.0], "attention"),
        ("_scaled_dot_product_flash_attention", [], [0.0], "attention"),
        ("_scaled_dot_product_efficient_attention", [], [None, True, 0.0], "attention"),
        ("_scaled_dot_product_cudnn_attention", [], [None, True, 0.0], "attention"),
        (
            "_scaled_dot_product_flash_attention_for_cpu_backward",
            [tensor(9, 2, 3, 4, 8)],
            [None] * 2 + [0.0],
            "attention backward",
        ),
        ("_scaled_dot_product_flash_attention_backward", [None], [None] * 6 + [0.0], "attention backward"),
        ("_scaled_dot_product_efficient_attention_backward", [None], [None] * 6 + [[True]], "attention backward"),
        ("_scaled_dot_product_cudnn_attention_backward", [None], [None] * 9 + [0.0], "attention backward"),
    ],
)
@pytest.mark.parametrize("causal", [True, False])
def test_flops_of_attention(name: str, before: list[Any], between: list[Any], engine: str, causal: bool) -> None:
    # 2 samples, 3 heads, 4 queries, 6 keys of width 8: two products of 2 x 8 FLOPs for each pair.
    q, k = tensor(1, 2, 3, 4, 8), tensor(2, 2, 3, 6, 8)
    work = work_of(call(f"aten::{name}", [*before, q, k, k, *between, causal], [q]))
    assert work is not None
    pairs = 2 * 3 * 4 * 6
    assert (work.engine, work.flops) == (engine, 2 * 2 * 8 * pairs)
    assert work.needed_flops == work.flops // (2 if causal else 1)


def test_bytes_that_calls_move() -> None:
    x, y, z = tensor(1, 10), tensor(2, 10), tensor(3, 10)
    assert moved_by(call("aten::add", [x, y, 1], [z])) == 120
    assert moved_by(call("aten::mul", [x, x], [z])) == 80  # one storage is read once
    assert moved_by(call("aten::cat", [[x, y], 0], [tensor(3, 20)])) == 160
    # In place: read and written. `copy_` and the like do not read what they overwrite.
    assert moved_by(call("aten::add_", [x, y, 1], [x])) == 120
    assert moved_by(call("aten::copy_", [x, y], [x])) == 80
    assert moved_by(call("aten::zero_", [x], [x])) == 40
    # A view, an allocation, a call of the engine, an annotation.
    assert moved_by(call("aten::view", [x], [tensor(1, 2, 5)])) is None
    assert moved_by(call("aten::empty_like", [x], [z])) is None
    assert moved_by(call("MulBackward0", [x], [z])) is None
    # Rows of a table, not the table; the gradient of a table is all of it.
    table, words, rows = tensor(1, 1000, 10), tensor(2, 3, dtype=""), tensor(3, 3, 10)
    assert moved_by(call("aten::embedding", [table, words], [rows])) == 120 + 24 + 120
    assert moved_by(call("aten::embedding_dense_backward", [rows, words, 1000], [table])) == 120 + 24 + 40_000


def test_times_are_the_longer_of_flops_and_traffic_and_a_launch() -> None:
    def seconds(*calls: ShapedCall) -> float:
        root, nodes = calls[0].node, [one.node for one in calls]
        operators = cut_iteration([root, replace(root, id=99, name=ENGINE + "X")], "")
        iteration = replace(operators, operator_of={node.id: 0 for node in nodes})
        return roofline_operator_times(calls, iteration, TOY).duration_s[0]

    # 1600 FLOPs at 500 FLOP/s against 4 x (100 + 80 + 80) bytes at 100 B/s: memory; in BF16 likewise.
    thin = call("aten::mm", [tensor(1, 10, 10), tensor(2, 10, 8)], [tensor(3, 10, 8)], parent=0)
    assert seconds(thin) == pytest.approx(4 * 260 / 100 + 1)
    # 128,000 FLOPs at 500 FLOP/s; 2 x 40 x 40 x 40 in BF16 at 1000 FLOP/s.
    square = [tensor(i, 40, 40) for i in (1, 2, 3)]
    assert seconds(call("aten::mm", square[:2], square[2:], parent=0)) == pytest.approx(256 + 1)
    halves = [tensor(i, 40, 40, dtype="bf16") for i in (1, 2, 3)]
    assert seconds(call("aten::mm", halves[:2], halves[2:], parent=0)) == pytest.approx(128 + 1)
    # FP16 tensors on a GPU without FP16: at the BF16 peak.
    odd = [tensor(i, 40, 40, dtype="fp16") for i in (1, 2, 3)]
    assert seconds(call("aten::mm", odd[:2], odd[2:], parent=0)) == pytest.approx(128 + 1)
    # A call around others: what it calls, if that is longer; its own traffic, if the trace only shows allocations.
    x, mask, y = tensor(1, 100), tensor(2, 100), tensor(3, 100)
    around = call("aten::dropout", [x, 0.1, True], [y], parent=0)
    inside = [
        call("aten::bernoulli_", [mask], [mask], call_id=3, parent=2),
        call("aten::mul", [x, mask], [y], call_id=4, parent=2),
    ]
    assert seconds(around, *inside) == pytest.approx((400 + 1200) / 100 + 2)
    assert seconds(around, call("aten::empty_like", [x], [y], call_id=3, parent=2)) == pytest.approx(800 / 100 + 1)
    # What lies inside of a product (the bias, expanded and copied) is part of it.
    product = call("aten::addmm", [tensor(5, 40), *square[:2]], square[2:], parent=0)
    copy = call("aten::copy_", [square[2], tensor(5, 40, 40)], [square[2]], call_id=3, parent=2)
    assert seconds(product, copy) == seconds(product) == pytest.approx(257)


def trace_of(nodes: list[dict[str, Any]]) -> bytes:
    return json.dumps({"schema": "1.1.0", "pid": 1, "nodes": nodes}).encode()


def test_both_schemas_say_the_same_shapes() -> None:
    x, weight, out = [11, 1, 0, 15, 4, "cpu"], [12, 2, 0, 35, 4, "cpu"], [13, 3, 0, 21, 4, "cpu"]
    shapes, types = [[3, 5], [5, 7], []], ["Tensor(float)", "Tensor(float)", "Int"]
    flat = {
        "id": 2,
        "name": "aten::mm",
        "parent": 1,
        "inputs": [x, weight, 3],
        "input_shapes": shapes,
        "input_types": types,
        "outputs": [out],
        "output_shapes": [[3, 7]],
        "output_types": ["Tensor(float)"],
    }
    nested = {
        "id": 2,
        "name": "aten::mm",
        "ctrl_deps": 1,
        "inputs": {"values": [x, weight, 3], "shapes": shapes, "types": types},
        "outputs": {"values": [out], "shapes": [[3, 7]], "types": ["Tensor(float)"]},
    }
    for node in (flat, nested):
        content = trace_of([node])
        (found,) = read_shaped_calls(content, read_execution_trace(content, "x").nodes, "x")
        assert found.arguments == (tensor(1, 3, 5), tensor(2, 5, 7), 3)
        assert found.results == (tensor(3, 3, 7),)


def test_strange_shapes_are_no_tensors_and_lists_are_searched() -> None:
    x = [11, 1, 0, 15, 4, "cpu"]
    node = {
        "id": 2,
        "name": "aten::cat",
        "ctrl_deps": 1,
        "inputs": {
            "values": [[x, x], x, x, [9, 0, 0, 0, 0, ""], x],
            "shapes": [[[3, 5], [15]], [4, 4], "?", [], [3, 5]],
            "types": ["GenericList[Tensor(float),Tensor(c10::BFloat16)]", "Tensor(float)"],
            # Expanded along the first dimension: 5 elements in memory.
            "strides": [[[5, 1], [1]], [4, 1], [], [], [0, 1]],
        },
        "outputs": {"values": []},
    }
    content = trace_of([node])
    (found,) = read_shaped_calls(content, read_execution_trace(content, "x").nodes, "x")
    assert found.arguments[0] == [ShapedTensor(1, (3, 5), 60, "fp32"), ShapedTensor(1, (15,), 60, "bf16")]
    assert found.arguments[1:4] == (None, None, None)
    assert found.arguments[4] == ShapedTensor(1, (3, 5), 20, "")
    with pytest.raises(InputError, match="x"):
        read_shaped_calls(content[:-9], [], "x")


def iteration_of(source: str) -> tuple[tuple[ShapedCall, ...], Iteration]:
    file = open_trace_files(source)[0] if source.endswith(".tar.gz") else as_trace_file(source)
    nodes = read_execution_trace(file).nodes
    return read_shaped_calls(file, nodes), cut_iteration(nodes, source)


# GFLOP of a forward pass, from the literature's multiply-adds: ResNet-18 1.814 x 2 x 128 images, ResNet-50 4.089 x 2 x 32.
@pytest.mark.parametrize(
    ("name", "gflop", "forward_s"),
    [
        ("et/resnet18_2080ti_et_schema1.0.1.json.gz", 1.814 * 2 * 128, (8e-3, 12e-3)),
        ("et/resnet50_ddp_et_only_schema1.1.0.json.gz", 4.089 * 2 * 32, (8e-3, 12e-3)),
    ],
)
def test_recorded_resnets_have_the_known_flops(name: str, gflop: float, forward_s: tuple[float, float]) -> None:
    calls, iteration = iteration_of(str(shared_file(f"traces/{name}")))
    flops = flops_by_operator(calls, iteration)
    n_forward = len(iteration.forward)
    assert sum(flops[:n_forward]) == pytest.approx(gflop * 1e9, rel=2e-3)
    # Every convolution has two gradients, except the first, whose input needs none.
    assert 1.9 < sum(flops[n_forward:]) / sum(flops[:n_forward]) < 2
    seconds = roofline_operator_times(calls, iteration, load_hardware("a100-pcie4")).duration_s
    assert forward_s[0] < sum(seconds[:n_forward]) < forward_s[1]


def test_the_small_gpt_has_the_flops_of_its_shape() -> None:
    calls, iteration = iteration_of(str(recorded_trace_paths()[0]))
    tokens, hidden, vocabulary = 8 * 128, 256, 2048
    products = 2 * tokens * (6 * 12 * hidden**2 + hidden * vocabulary)
    attention = 6 * 4 * 128 * hidden * tokens
    n_forward = len(iteration.forward)
    whole = flops_by_operator(calls, iteration, skip_masked=False)
    assert sum(whole[:n_forward]) == products + attention
    assert sum(flops_by_operator(calls, iteration)[:n_forward]) == products + attention / 2
    assert sum(whole[n_forward:]) == 2 * products + 2.5 * attention
    # Everything that computes takes time; views take none.
    seconds = roofline_operator_times(calls, iteration, load_hardware("a100-pcie4")).duration_s
    names = [root.node.name for root in iteration.operators]
    assert all(s == 0 for s, name in zip(seconds, names, strict=True) if name in ("aten::view", "aten::transpose"))
    assert all(s > 0 for s, name in zip(seconds, names, strict=True) if name in ("aten::gelu", "aten::layer_norm"))
