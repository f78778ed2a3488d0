"""Storages by shape: which call owns a number, what is in place, a view, a list, a copy of a weight, and how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from handwritten_kineto import Call, backward, conv_net, imported, iteration_of, saved, saved_sizes, warnings_of

from slackswap.models.problem import Problem
from slackswap.models.traces.pytorch.kineto_events import CpuOperator
from slackswap.models.traces.pytorch.shape_dataflow import Dataflow, arguments_of, follow_storages

X = [4, 16]  # 64 elements: 256 bytes of floats


def flow_of(calls: Sequence[Call], folder: Path) -> Dataflow:
    read = iteration_of(calls, folder)
    return follow_storages(read.nodes, read.iteration, read.event_of, frozenset())


def op(name: str, sequence: int, *shapes: Any, types: Sequence[str] | None = None, us: float = 10) -> Call:
    return Call(name, shapes, types, sequence=sequence, kernels=[("k", us)])


def chain(
    *calls: tuple[str, str, Sequence[Any], Sequence[int]], types: Sequence[str] | None = None, kind: str = "float"
) -> list[Call]:
    """Forward calls (name, backward node, argument shapes, output shape), and their backward nodes in reverse."""
    forward = [op(name, i, *shapes, types=types) for i, (name, _, shapes, _) in enumerate(calls)]
    engine = [backward(node, output, i, kernel_us=5, kind=kind) for i, (_, node, _, output) in enumerate(calls)]
    return forward + engine[::-1]


def sizes(problem: Problem) -> list[int]:
    return sorted(saved_sizes(problem).elements())


RELU = ("aten::relu", "ReluBackward0", [X], X)


# ---- who owns a sequence number -------------------------------------------------------------------------------------


def test_of_nested_calls_with_one_number_the_last_to_start_owns_it(tmp_path: Path) -> None:
    """aten::linear, the transposition of its weight and the product carry one number: the product is what is undone."""
    inside = Call("aten::addmm", [[8], X, [16, 8]], sequence=1, kernels=[("gemm", 30)])
    weight = Call("aten::t", [[8, 16]], sequence=1)
    linear = Call("aten::linear", [X, [8, 16], [8]], sequence=1, children=[weight, inside])
    relu, relu_backward = op("aten::relu", 0, X), backward("ReluBackward0", X, 0)
    problem = imported([relu, linear, backward("AddmmBackward0", [4, 8], 1), relu_backward], tmp_path)
    # mat1 is the second argument of addmm; of linear, which starts first, it would be a weight.
    assert saved(problem) == [("relu.0", 256, "AddmmBackward0.2")]


def test_numbers_without_a_call_in_the_step_keep_nothing_and_are_said(tmp_path: Path) -> None:
    problem = imported([*conv_net(), backward("MulBackward0", X, 77)], tmp_path)
    assert "1 backward nodes have no forward call of their number in the step: they keep nothing." in warnings_of(
        problem
    )
    assert sizes(problem) == [2048, 4096]


# ---- storages -------------------------------------------------------------------------------------------------------


def test_an_in_place_call_shares_the_storage_that_it_overwrites(tmp_path: Path) -> None:
    in_place = imported(chain(RELU, ("aten::sigmoid_", "SigmoidBackward0", [X], X)), tmp_path)
    # sigmoid_ overwrites what relu wrote: both nodes read one storage, and its rebuild runs both.
    (tensor,) = [tensor for tensor in in_place.tensors() if tensor.producer == 0]
    assert (tensor.bytes, tensor.readers) == (256, (1, 2, 3))
    assert tensor.rebuild is not None
    assert tensor.rebuild.duration_s == pytest.approx(20e-6)
    apart = imported(chain(RELU, ("aten::sigmoid", "SigmoidBackward0", [X], X)), tmp_path)
    assert sizes(apart) == [256, 256]
    dunder = imported(chain(RELU, ("aten::__xor__", "SigmoidBackward0", [X], X)), tmp_path)
    assert sizes(dunder) == [256, 256]


def test_a_view_is_the_storage_that_it_shows(tmp_path: Path) -> None:
    flat = [64]
    calls = chain(RELU, ("aten::view", "ViewBackward0", [X], flat), ("aten::sigmoid", "SigmoidBackward0", [flat], flat))
    problem = imported(calls, tmp_path)
    # sigmoid reads relu's storage through the view, under another shape.
    assert sorted(saved(problem)) == [("relu.0", 256, "ReluBackward0.5"), ("sigmoid.2", 256, "SigmoidBackward0.3")]
    assert [2 in tensor.readers for tensor in problem.tensors() if tensor.producer == 0] == [True]


def test_an_expanded_view_is_no_larger_than_what_it_shows(tmp_path: Path) -> None:
    small, large = [16], [4, 16]
    calls = chain(
        ("aten::relu", "ReluBackward0", [small], small),
        ("aten::expand", "ExpandBackward0", [small], large),
        ("aten::mm", "MmBackward0", [large, [16, 8]], [4, 8]),
    )
    assert sizes(imported(calls, tmp_path)) == [64]


def test_every_tensor_of_a_list_is_read(tmp_path: Path) -> None:
    """cat keeps nothing, but a rebuild of what it wrote needs both of its parts."""
    part, whole = [4, 16], [8, 16]
    calls = chain(
        ("aten::relu", "ReluBackward0", [part], part),
        ("aten::sigmoid", "SigmoidBackward0", [part], part),
        ("aten::cat", "CatBackward0", [[part, part], []], whole),
        ("aten::mm", "MmBackward0", [whole, [16, 2]], [8, 2]),
    )
    calls[2].types = ["TensorList", "Scalar"]  # the element type is not recorded
    tensors = imported(calls, tmp_path).tensors()
    assert [tensor.producer for tensor in tensors if tensor.bytes == 256 and 2 in tensor.readers] == [0, 1]
    (cat,) = [tensor for tensor in tensors if tensor.producer == 2]
    assert (cat.bytes, cat.rebuild.inputs if cat.rebuild else None) == (512, (0, 1))


@pytest.mark.parametrize("kind", ["TensorList", "GenericList"])
def test_what_reads_lists_without_shapes_is_not_rebuilt_for_nothing(tmp_path: Path, kind: str) -> None:
    whole = [8, 16]
    calls = chain(
        RELU,
        ("aten::cat", "CatBackward0", [[], []], whole),
        ("aten::mm", "MmBackward0", [whole, [16, 2]], [8, 2]),
    )
    calls[1].types = [kind, "Scalar"]
    problem = imported(calls, tmp_path)
    assert [(size, problem.rebuildable[t]) for t, (_, size, _) in enumerate(saved(problem))] == [
        (256, True),
        (512, False),
    ]
    assert "1 calls read lists of tensors (cat, stack) whose shapes are not recorded" in warnings_of(problem)


def test_what_existed_before_the_step_is_no_activation(tmp_path: Path) -> None:
    """The input of the first layer and the weights are resident: no call of the step wrote them."""
    problem = imported(chain(("aten::mm", "MmBackward0", [X, [16, 8]], [4, 8]), RELU), tmp_path)
    assert sizes(problem) == [256]  # relu's output


def test_casts_of_weights_are_no_activations_and_casts_of_activations_are(tmp_path: Path) -> None:
    """Under autocast the weight is cast in every step, and the cast is kept: it is no activation."""
    weight, half = [16, 8], "c10::BFloat16"

    def cast(sequence: int, shape: list[int]) -> Call:
        copy = Call("aten::_to_copy", [shape], ["float"], sequence=sequence, kernels=[("copy", 3)])
        return Call("aten::to", [shape], ["float"], children=[copy])

    mm = Call("aten::mm", [X, weight], [half, half], sequence=3, kernels=[("gemm", 9)])
    calls = [
        op("aten::relu", 0, X),
        cast(1, X),
        cast(2, weight),
        mm,
        backward("MmBackward0", [4, 8], 3, kind=half),
        backward("ToCopyBackward0", weight, 2, kind=half),
        backward("ToCopyBackward0", X, 1, kind=half),
        backward("ReluBackward0", X, 0),
    ]
    # 128 bytes: the cast of relu's output, which the product keeps; the cast weight would be 256 bytes of mm's.
    assert sorted(saved(imported(calls, tmp_path))) == [
        ("relu.0", 256, "ReluBackward0.7"),
        ("to.1", 128, "MmBackward0.4"),
    ]


def test_outputs_that_nothing_reads_again_are_not_saved(tmp_path: Path) -> None:
    """ "Every forward output is saved" is wrong: batch norm's output feeds an addition, which keeps nothing."""
    norm = "NativeBatchNormBackward0"
    image = [2, 4, 8, 8]
    calls = chain(
        ("aten::conv2d", "ConvolutionBackward0", [image, [4, 4, 1, 1]], image),
        ("aten::native_batch_norm", norm, [image, [4], [4]], image),
        ("aten::add", "AddBackward0", [image, image], image),
        ("aten::sum", "SumBackward0", [image], []),
    )
    # The convolution's output, and two statistics of four floats.
    assert sizes(imported(calls, tmp_path)) == [16, 16, 2048]


def test_products_with_a_number_keep_nothing(tmp_path: Path) -> None:
    scale = ("aten::div", "DivBackward0", [X, []], X)
    plain = ("aten::add", "AddBackward0", [X], X)

    def kept(*types: str) -> list[int]:
        calls = chain(("aten::add", "AddBackward0", [X], X), scale, plain)
        calls[1].types = types
        return sizes(
            imported([*calls[:3], op("aten::relu", 9, X), backward("ReluBackward0", X, 9), *calls[3:]], tmp_path)
        )

    assert kept("float", "double") == [256]  # relu's output alone
    assert kept("float", "Scalar") == [256]
    assert kept("float", "float") == [256, 256]  # a learned scale: its gradient reads the other factor


def test_a_shortcut_is_added_to_the_newer_storage(tmp_path: Path) -> None:
    """`out += shortcut` overwrites `out`; both are new storages of one size that nobody has read."""
    calls = chain(
        ("aten::conv2d", "ConvolutionBackward0", [X, [16]], X),
        ("aten::conv2d", "ConvolutionBackward0", [[4, 8], [16]], X),
        ("aten::add_", "AddBackward0", [X, X], X),
        ("aten::relu_", "ReluBackward0", [X], X),
    )
    problem = imported(calls, tmp_path)
    assert saved(problem) == [("conv2d.0", 256, "ReluBackward0.4")]
    assert "1 saved tensors are changed in place" in " ".join(problem.metadata["heuristics"])


def test_a_shortcut_that_was_read_before_is_not_what_is_overwritten(tmp_path: Path) -> None:
    """In a block without a convolution in its shortcut, `out += x` finds one new storage, and two that were read."""
    norm = "NativeBatchNormBackward0"
    calls = chain(
        ("aten::relu", "ReluBackward0", [X], X),
        ("aten::conv2d", "ConvolutionBackward0", [X, [16]], X),
        ("aten::native_batch_norm", norm, [X, [16], [16]], X),
        ("aten::add_", "AddBackward0", [X, X], X),
        ("aten::relu_", "ReluBackward0", [X], X),
    )
    large = [item for item in saved(imported(calls, tmp_path)) if item[1] == 256]
    assert large == [
        ("relu.0", 256, "ConvolutionBackward0.8"),
        ("conv2d.1", 256, "NativeBatchNormBackward0.7"),
        ("native_batch_norm.2", 256, "ReluBackward0.5"),
    ]


def test_a_shortcut_is_the_last_sum(tmp_path: Path) -> None:
    """A residual block starts with a sum: what it reads last is that, not the newer storages of its branch."""
    calls = chain(
        ("aten::mul", "MulBackward0", [X, [16]], X),
        ("aten::add", "AddBackward0", [X, [16]], X),
        ("aten::gelu", "GeluBackward0", [X], X),
        ("aten::sigmoid", "SigmoidBackward0", [X], X),
        ("aten::tanh", "TanhBackward0", [X], X),
        ("aten::add", "AddBackward0", [X, X], X),
        ("aten::gelu", "GeluBackward0", [X], X),
    )
    readers = {tensor.producer: tensor.readers for tensor in imported(calls, tmp_path).tensors() if tensor.producer < 7}
    # The first sum is read by gelu, the second sum, and gelu's backward node (operator 11); sigmoid by tanh and its own.
    assert readers[1] == (2, 5, 11)
    assert readers[3] == (4, 10)


def test_parts_of_one_storage_are_read_from_it(tmp_path: Path) -> None:
    """Query, key and value are parts of one product, shown as heads: attention reads that product, not older storages."""
    part, heads = [2, 4, 8], [2, 2, 4, 4]
    storages = [("aten::relu", "ReluBackward0", [part], part)] * 2
    whole = [2, 4, 24]
    forward = [op(name, i, *shapes) for i, (name, _, shapes, _) in enumerate(storages)]
    forward += [op("aten::mm", 2, [2, 4, 9], [9, 24]), op("aten::split", 3, whole)]
    forward += [op("aten::view", 4 + i, part) for i in range(3)]
    attend = "ScaledDotProductFlashAttentionBackward0"
    forward += [op("aten::_scaled_dot_product_flash_attention", 7, heads, heads, heads)]
    split = backward("SplitBackward0", part, 3, kernel_us=5)
    split.children[0].shapes, split.children[0].types = [part] * 3, ["float"] * 3
    engine = [backward(attend, heads, 7, kernel_us=5)]
    engine += [backward("ViewBackward0", heads, 4 + i) for i in (2, 1, 0)]
    engine += [split, backward("MmBackward0", whole, 2)]
    engine += [backward("ReluBackward0", part, i) for i in (1, 0)]
    found = {name: (size, reader) for name, size, reader in saved(imported(forward + engine, tmp_path))}
    assert found["mm.2"] == (768, f"{attend}.8")
    assert {found[name][1] for name in ("relu.0", "relu.1")} == {"ReluBackward0.14", "ReluBackward0.15"}


def test_arguments_of_one_size_are_told_apart_by_shape(tmp_path: Path) -> None:
    rows, columns = [2, 3, 4], [2, 4, 3]
    product = ("aten::mm", "MmBackward0", [[6, 5], [5, 4]], rows)
    calls = chain(
        ("aten::mul", "MulBackward0", [columns, [3]], columns),
        ("aten::sum", "SumBackward0", [columns], []),
        product,
        product,
        ("aten::bmm", "BmmBackward0", [rows, columns], [2, 3, 3]),
    )
    # The second product and the columns, though these were read before and the first product was not.
    assert [name for name, _, reader in saved(imported(calls, tmp_path)) if reader == "BmmBackward0.5"] == [
        "mul.0",
        "mm.3",
    ]


def test_choices_are_counted(tmp_path: Path) -> None:
    flow = flow_of(chain(RELU, ("aten::sigmoid", "SigmoidBackward0", [X], X), RELU), tmp_path)
    # The first relu finds nothing; sigmoid finds one storage, the second relu two.
    assert (flow.lookups, flow.guesses) == (2, 1)
    assert (flow.linked, flow.n_backward_nodes) == (3, 3)
    assert flow.unknown == {}


# ---- extras ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "node", "shapes", "output", "expected"),
    [
        # 2x4x4x4 outputs: 128 indices of 8 bytes in every element type.
        ("aten::max_pool2d_with_indices", "MaxPool2DWithIndicesBackward0", [[2, 4, 8, 8]], [2, 4, 4, 4], [1024]),
        # 4 rows of 16: a mean and a deviation for each.
        ("aten::native_layer_norm", "NativeLayerNormBackward0", [X], X, [16, 16]),
        ("aten::native_dropout", "NativeDropoutBackward0", [X], X, [64]),
        ("aten::max", "MaxBackward0", [X], [4], [32]),
        ("aten::softmax", "SoftmaxBackward0", [X], X, [256]),
    ],
)
def test_what_is_written_beside_the_output_is_sized_by_rule(
    tmp_path: Path, name: str, node: str, shapes: Any, output: Any, expected: list[int]
) -> None:
    assert sizes(imported(chain((name, node, shapes, output)), tmp_path)) == expected


def test_indices_do_not_shrink_with_the_element_type(tmp_path: Path) -> None:
    pool = ("aten::max_pool2d_with_indices", "MaxPool2DWithIndicesBackward0", [[2, 4, 8, 8]], [2, 4, 4, 4])
    assert sizes(imported(chain(pool, types=["c10::Half"], kind="c10::Half"), tmp_path)) == [1024]


def test_dropout_by_multiplication_keeps_the_mask(tmp_path: Path) -> None:
    mul = Call("aten::mul", [X, X], sequence=1, kernels=[("k", 5)])
    dropout = Call("aten::dropout", [X], children=[mul])
    calls = [op("aten::relu", 0, X), dropout, backward("MulBackward0", X, 1), backward("ReluBackward0", X, 0)]
    problem = imported(calls, tmp_path)
    # relu's output for relu alone, and the mask of floats.
    assert sorted(saved(problem)) == [("dropout.1", 256, "MulBackward0.2"), ("relu.0", 256, "ReluBackward0.3")]
    assert "may draw random numbers" in " ".join(problem.metadata["heuristics"])


# ---- arguments ------------------------------------------------------------------------------------------------------


def arguments(shapes: Any, types: Any, **how: int) -> list[tuple[int, tuple[int, ...], int]]:
    event = CpuOperator("aten::x", (1, 1), 0, 1, 0, 0, 0, shapes=shapes, types=types)
    return [(argument.position, argument.shape, argument.bytes) for argument in arguments_of(event, **how)]


@pytest.mark.parametrize(
    ("kind", "item_bytes"),
    [
        ("float", 4),
        ("double", 8),
        ("c10::Half", 2),
        ("c10::BFloat16", 2),
        ("long int", 8),
        ("long long", 8),
        ("long", 8),
        ("int", 4),
        ("unsigned char", 1),
        ("signed char", 1),
        ("bool", 1),
        ("c10::complex<float>", 8),
        ("c10::complex<double>", 16),
        ("c10::Float8_e4m3fn", 1),
    ],
)
def test_types_are_those_of_cpp(kind: str, item_bytes: int) -> None:
    assert arguments([[2, 3]], [kind]) == [(0, (2, 3), 6 * item_bytes)]


def test_what_is_no_tensor_is_no_argument() -> None:
    # [] of a tensor is a number with one element; of a scalar, a string or nothing, it is none.
    assert arguments([[], [], [], [2]], ["float", "Scalar", "", "ScalarList"]) == [(0, (), 4)]
    assert arguments([[0, 5]], ["float"]) == [(0, (0, 5), 0)]
    assert arguments(None, None) == arguments([[2]], None) == arguments(None, ["float"]) == arguments({}, "float") == []
    assert arguments([[2], [3]], ["float"]) == [(0, (2,), 8)]


def test_lists_are_nested() -> None:
    assert arguments([[[2], [3]]], ["[float, c10::Half]"]) == [(0, (2,), 8), (0, (3,), 6)]
    assert arguments([[[2], [3]], [4]], ["float", "float"]) == [(0, (2,), 8), (0, (3,), 12), (1, (4,), 16)]
    assert arguments([[[2], [3]]], ["TensorList"]) == []
    assert arguments([[[2], [3]]], ["TensorList"], list_item_bytes=2) == [(0, (2,), 4), (0, (3,), 6)]
    assert arguments([[], []], ["TensorList", "Scalar"], list_item_bytes=4) == []


@pytest.mark.parametrize(
    "shapes",
    [
        [[-1]],
        [["2"]],
        [[2.0]],
        [[True]],
        [[1 << 41]],
        [[[2], 3]],
        [7],
        [None],
        ["ab"],
        [[1 << 39] * 2],
        [[1] * 65],
        [[[[2]]]],
    ],
)
def test_malformed_shapes_count_as_not_recorded(shapes: Any) -> None:
    assert arguments(shapes, ["float"]) == []
