"""PyTorch traces: storages, times and recipes of hand-written steps, and the published numbers of a real pair."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from handwritten_trace import (
    Call,
    annotation,
    backward,
    imported,
    leaves_only,
    on_gpu,
    saved_bytes,
    tensor,
    two_linears,
    write_pair,
)
from instances import PLAIN_LINK

from slackswap.models.problem import Problem, Tensor
from slackswap.models.traces.operator_kind import operator_kind
from slackswap.models.traces.pytorch.execution_trace import read_execution_trace
from slackswap.models.traces.pytorch.pair import import_pytorch

US = 1e-6


def by_name(problem: Problem) -> dict[str, Tensor]:
    return {tensor.name: tensor for tensor in problem.tensors()}


# ---- a whole step, by hand ------------------------------------------------------------------------------------------


def test_a_step_becomes_a_problem(tmp_path: Path) -> None:
    problem = imported(two_linears(), tmp_path)
    # 100 + 20 + 200 + 30 us forward; 40 + 400 + 1 + 25 + 150 + 1 us backward.
    assert problem.forward_s == pytest.approx(350 * US)
    assert problem.backward_s == pytest.approx(617 * US)
    assert problem.operator_names[:6] == (
        "linear.0",
        "relu_.1",
        "linear.2",
        "mse_loss.3",
        "LossBackward0.4",
        "AddmmBackward0.5",
    )
    a, b, gb, ga, gz = problem.tensors()
    # a is born in operator 0, overwritten by 1, read by 2, and read in the backward pass by 5 (for gw1) and 7 (for gz).
    assert (a.bytes, a.producer, a.readers) == (4000, 0, (1, 2, 5, 7))
    assert (b.bytes, b.producer, b.readers) == (8000, 2, (3, 4))
    assert problem.saved.tolist() == [True, True, False, False, False]
    # Gradients live from the operator that makes them to the one that uses them; weight gradients are not activations.
    assert [(g.bytes, g.producer, g.readers) for g in (gb, ga, gz)] == [
        (8000, 4, (5,)),
        (4000, 5, (7,)),
        (4000, 7, (8,)),
    ]
    assert "Weight gradients: 2 storages (0.000 MB) that stay after it." in problem.metadata["left_out"]


def test_a_rebuild_repeats_the_producer_and_its_in_place_writers(tmp_path: Path) -> None:
    a, b, *gradients = imported(two_linears(), tmp_path).tensors()
    assert a.rebuild is not None
    assert b.rebuild is not None
    # a: linear 100 us + relu_ 20 us, from the resident x and weight. b: linear 200 us, from a as relu_ left it.
    assert a.rebuild.duration_s == pytest.approx(120 * US)
    assert b.rebuild.duration_s == pytest.approx(200 * US)
    assert (a.rebuild.inputs, b.rebuild.inputs) == ((), (0,))
    assert all(gradient.rebuild is None for gradient in gradients)


def test_both_schemas_and_both_orders_of_the_files_give_the_same_problem(tmp_path: Path) -> None:
    modern = imported(two_linears(), tmp_path)
    flat = write_pair(two_linears(), flat=True).write(tmp_path)
    assert import_pytorch(flat, link=PLAIN_LINK).tensors() == modern.tensors()
    assert import_pytorch(flat[::-1], link=PLAIN_LINK).operators() == modern.operators()


def test_an_optimizer_and_data_loading_are_left_out(tmp_path: Path) -> None:
    loading = annotation("enumerate(DataLoader)#next", Call("aten::stack", [], [tensor(1, 50)], us=900))
    step = annotation("Optimizer.step#SGD.step", Call("aten::_foreach_add_", [tensor(2, 70), tensor(24, 70)], us=900))
    problem = imported([loading, *two_linears(), step], tmp_path)
    assert problem.ideal_s == pytest.approx(967 * US)
    # x was made by the data loader: it is resident, not a tensor of the problem.
    assert [t.producer for t in problem.tensors()] == [0, 2, 4, 5, 7]
    # A CPU trace launches nothing: the calls are counted, without device time.
    assert problem.metadata["derivation"]["dropped"] == [
        {"what": "data loading", "count": 1, "seconds": 0},
        {"what": "optimizer", "count": 1, "seconds": 0},
    ]


def test_an_empty_annotation_is_an_operator_without_time_unless_it_loads_data(tmp_path: Path) -> None:
    zero_grad = Call("Optimizer.zero_grad#SGD.zero_grad", scope=7, us=800)
    loading = Call("enumerate(DataLoader)#next", scope=7, us=800)
    problem = imported([loading, zero_grad, *two_linears()], tmp_path)
    # Its 800 us are Python's; on a GPU, kernels launched in it would count.
    assert problem.operator_names[:2] == ("Optimizer.zero_grad#SGD.zero_grad.0", "linear.1")
    assert problem.duration_s[:2].tolist() == pytest.approx([0, 100 * US])


def test_of_several_marked_steps_the_last_whole_one_counts(tmp_path: Path) -> None:
    def slower(call: Call) -> Call:
        return replace(call, us=2 * call.us, children=[slower(child) for child in call.children])

    steps = [annotation("ProfilerStep#4", *two_linears()), annotation("ProfilerStep#5", *map(slower, two_linears()))]
    torn = [annotation("ProfilerStep#6", *two_linears()[:3]), annotation("ProfilerStep#7", *two_linears()[4:])]
    problem = imported([*steps, *torn], tmp_path)
    assert problem.metadata["step"] == "ProfilerStep#5"
    assert problem.ideal_s == pytest.approx(2 * 967 * US)


# ---- storages -------------------------------------------------------------------------------------------------------


def reused_address(leaf_fill: bool = True) -> list[Call]:
    """y (4000 bytes at 10) is never read in backward; z (at 11) is, by a call that has a call inside."""
    fill = Call(
        "aten::fill_", [tensor(10, 4000)], [tensor(10, 4000)], schema="aten::fill_(Tensor(a!) self) -> Tensor(a!)"
    )
    return [
        Call("aten::conv2d", [tensor(1, 50)], [tensor(10, 4000)], sequence=0),
        Call("aten::conv2d", [tensor(10, 4000)], [tensor(11, 8000)], sequence=1),
        Call("aten::mse_loss", [tensor(11, 8000)], [tensor(12, 4)], sequence=2),
        backward(
            "ConvolutionBackward0",
            # By now y is gone and its address is used again: the call returns storage 10 without being given it. The
            # kernel allocates without a recorded aten::empty, so only the outer call says so.
            Call("aten::zeros", [], [tensor(10, 4000)], children=[fill] if leaf_fill else []),
            Call("aten::convolution_backward", [tensor(11, 8000)], [tensor(13, 50)], children=[Call("aten::empty")]),
            gradient=tensor(19, 4),
            sequence=2,
        ),
    ]


def test_lifetimes_are_decided_on_entry_to_the_outer_call() -> None:
    pair = write_pair(reused_address())
    trace = read_execution_trace(json.dumps(pair.execution_trace).encode(), "trace")
    # Only z, born in operator 1, is read in the backward pass.
    assert saved_bytes(trace) == [(1, 8000)]
    # The leaves alone lose the read of z, which the outer convolution_backward holds, and take fill_ for a read of y.
    assert saved_bytes(leaves_only(trace)) == [(0, 4000)]


def test_a_view_is_not_a_read(tmp_path: Path) -> None:
    view = Call("aten::t", [tensor(11, 8000)], [tensor(11, 8000)], schema="aten::t(Tensor(a) self) -> Tensor(a)")
    unsafe = Call(
        "aten::_unsafe_view", [tensor(11, 8000)], [tensor(11, 8000)], schema="aten::_unsafe_view(Tensor self) -> Tensor"
    )
    calls = two_linears()
    like = Call("aten::zeros_like", [tensor(11, 8000)], [tensor(40, 8000)])
    calls[7].children[0].children = [view, unsafe, like, *calls[7].children[0].children]
    # b is still read by the loss and its backward only, although operator 7 makes views of it and looks at its shape.
    assert by_name(imported(calls, tmp_path))["linear.2"].readers == (3, 4)


def test_a_storage_is_as_large_as_the_furthest_use_reaches(tmp_path: Path) -> None:
    calls = two_linears()
    calls[3].inputs = [[1, 11, 6000, 1000, 4, "cpu"]]  # (6000 + 1000) * 4 bytes, beyond the 8000 seen before
    assert by_name(imported(calls, tmp_path))["linear.2"].bytes == 28_000


def test_with_strides_an_expanded_tensor_is_as_large_as_its_storage(tmp_path: Path) -> None:
    pair = write_pair(two_linears())
    loss = next(node for node in pair.execution_trace["nodes"] if node["name"] == "aten::mse_loss")
    # b expanded to 5 rows of 8000: 40000 elements, all in the same 8000 bytes.
    loss["inputs"] = {"values": [[1, 11, 0, 40_000, 1, "cpu"]], "shapes": [[5, 8000]], "strides": [[0, 1]], "types": []}
    assert by_name(import_pytorch(pair.write(tmp_path), link=PLAIN_LINK))["linear.2"].bytes == 8000


def test_temporaries_of_one_operator_are_its_workspace(tmp_path: Path) -> None:
    first = Call("aten::mul", [], [tensor(30, 600)], children=[Call("aten::empty", [], [tensor(30, 600)])])
    second = Call("aten::mul", [], [tensor(31, 500)])
    third = Call("aten::add", [tensor(31, 500)], [tensor(32, 300)])
    calls = two_linears()
    calls[2].children = [first, second, third]
    problem = imported(calls, tmp_path)
    # 600 is gone when 500 + 300 are there: the peak inside operator 2 is 800 bytes. Nobody reads the loss's 4 bytes.
    assert problem.workspace_bytes.tolist() == [0, 0, 800, 4, 0, 0, 0, 0, 0, 0]


# ---- recipes --------------------------------------------------------------------------------------------------------


def test_an_unsaved_temporary_is_made_again_inside_the_recipe(tmp_path: Path) -> None:
    s, p, q, r, m = tensor(10, 100), tensor(11, 150), tensor(12, 40), tensor(13, 30), tensor(14, 100)
    calls = [
        Call("aten::linear", [tensor(1, 9)], [s], us=10, sequence=0),
        Call("aten::linear", [s], [p], us=50, sequence=1),
        Call("aten::mul", [p], [q], us=7, sequence=2),
        Call("aten::mul", [q], [r], us=3, sequence=3),
        Call("aten::add", [r, s], [m], us=5, sequence=4),
        backward("AddmmBackward0", Call("aten::mm", [s, m], [tensor(20, 9)]), gradient=tensor(19, 1), sequence=1),
    ]
    found = by_name(imported(calls, tmp_path))
    rebuild = found["add.4"].rebuild
    assert rebuild is not None
    # m = r + s, and p, q, r are not saved: 50 + 7 + 3 us run again before add 5 us, all from s. Meanwhile there are at
    # most p and q, 150 + 40 bytes: p is gone when r comes.
    assert rebuild.duration_s == pytest.approx(65 * US)
    assert (rebuild.inputs, rebuild.workspace_bytes) == ((0,), 190)
    # p itself lives from operator 1 to operator 2.
    assert (found["linear.1"].producer, found["linear.1"].readers) == (1, (2,))


def test_an_older_state_of_an_overwritten_storage_is_made_again(tmp_path: Path) -> None:
    a, b = tensor(10, 100), tensor(11, 100)
    relu = Call("aten::relu_", [a], [a], us=3, sequence=2, schema="aten::relu_(Tensor(a!) self) -> Tensor(a!)")
    calls = [
        Call("aten::linear", [tensor(1, 9)], [a], us=10, sequence=0),
        Call("aten::mul", [a], [b], us=50, sequence=1),  # reads a before relu_ changes it
        relu,
        backward("MulBackward0", Call("aten::mul", [a, b], [tensor(20, 9)]), gradient=tensor(19, 1), sequence=1),
    ]
    found = by_name(imported(calls, tmp_path))
    rebuild = found["mul.1"].rebuild
    assert rebuild is not None
    # The saved a is what relu_ left: b needs the a before, so linear 10 us + mul 50 us, with 100 bytes for it.
    assert rebuild.duration_s == pytest.approx(60 * US)
    assert (rebuild.inputs, rebuild.workspace_bytes) == ((), 100)


def test_a_collective_is_not_repeated(tmp_path: Path) -> None:
    calls = two_linears()
    calls[0].name = "c10d::allgather_"
    a, b, *_ = imported(calls, tmp_path).tensors()
    assert a.rebuild is None
    assert b.rebuild is not None
    assert b.rebuild.inputs == (0,)


def test_blocks_are_numbered_annotations_and_what_leaves_one_has_none(tmp_path: Path) -> None:
    calls = two_linears()
    problem = imported(
        [annotation("model.h.3", *calls[:2]), annotation("model.h.7", *calls[2:4]), *calls[4:]], tmp_path
    )
    # a is made in h.3 and read in h.7: an input of the next block. b is made and read in h.7, the second block.
    assert [t.block for t in problem.tensors() if t.producer < problem.n_forward] == [None, 1]
    assert problem.operator_names[0] == "model.h.3/linear.0"


# ---- times ----------------------------------------------------------------------------------------------------------


def test_on_a_gpu_an_operator_takes_as_long_as_the_kernels_that_it_launched(tmp_path: Path) -> None:
    problem = imported(on_gpu(two_linears()), tmp_path)
    # Kernels run half a second after their launch, and in another order than the CPU's: only the correlation id counts.
    assert problem.duration_s[:4].tolist() == pytest.approx([1000 * US, 200 * US, 2000 * US, 300 * US])
    assert problem.metadata["gpu"] == "Toy GPU"


def test_collectives_take_no_time_and_host_copies_do(tmp_path: Path) -> None:
    calls = on_gpu(two_linears())
    calls[0].kernels = [("Memcpy HtoD (Pageable -> Device)", 70), ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5000)]
    problem = imported(calls, tmp_path)
    assert problem.duration_s[0] == pytest.approx(70 * US)
    (communication,) = problem.metadata["derivation"]["dropped"]
    assert communication == {
        "what": "communication (NCCL, RCCL) on its own stream",
        "count": 1,
        "seconds": pytest.approx(5e-3),
    }
    assert any("Host copies of 1 operators (0.070 ms)" in said for said in problem.metadata["heuristics"])


def test_kernels_without_a_launch_belong_to_the_operator_of_their_external_id(tmp_path: Path) -> None:
    pair = write_pair(on_gpu(two_linears()))
    loss = next(event for event in pair.kineto["traceEvents"] if event["name"] == "aten::mse_loss")
    stray = {"External id": loss["args"]["External id"]}
    pair.kineto["traceEvents"].append({"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 4, "args": stray})
    # 300 us of its own kernel and 4 us of the one that names it.
    assert import_pytorch(pair.write(tmp_path), link=PLAIN_LINK).duration_s[3] == pytest.approx(304 * US)


def test_kernels_whose_launch_is_missing_are_reported(tmp_path: Path) -> None:
    pair = write_pair(on_gpu(two_linears()))
    orphan = {"ph": "X", "cat": "kernel", "name": "late", "ts": 5, "dur": 3000, "args": {"correlation": 987654}}
    pair.kineto["traceEvents"].append(orphan)
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    (orphan,) = problem.metadata["derivation"]["dropped"]
    assert orphan["what"].startswith("device work that ran meanwhile, launched outside")
    assert (orphan["count"], orphan["seconds"]) == (1, pytest.approx(3e-3))


@pytest.mark.parametrize("chosen", [0, 1, 3])
def test_without_ids_the_iteration_is_found_by_sequence_numbers(tmp_path: Path, chosen: int) -> None:
    pair = write_pair(two_linears(), ids=False, iterations=4, chosen=chosen)
    for event in pair.kineto["traceEvents"]:
        iteration, inside_us = divmod(event["ts"], 1_000_000)
        event["ts"] = iteration * 1_000_000 + inside_us * (iteration + 1)
        event["dur"] *= iteration + 1  # iteration i takes i + 1 times as long
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    assert problem.metadata["kineto_iteration"] == f"index {chosen} of 4"
    assert problem.ideal_s == pytest.approx((chosen + 1) * 967 * US)
    assert problem.metadata["matched_nodes"] == problem.metadata["nodes"]


def test_sequence_numbers_may_differ_by_a_constant(tmp_path: Path) -> None:
    pair = write_pair(two_linears(), ids=False)
    for event in pair.kineto["traceEvents"]:
        if "Sequence number" in event["args"]:
            event["args"]["Sequence number"] += 996
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    assert problem.ideal_s == pytest.approx(967 * US)
    assert any("sequence numbers differ by 996" in said for said in problem.metadata["heuristics"])


def test_missing_events_do_not_shift_equal_layers(tmp_path: Path) -> None:
    # 20 layers of the same two calls, layer i of i + 1 us each: by name alone, every layer fits every other.
    layers = [
        [
            Call("aten::linear", [tensor(9 + i, 8)], [tensor(10 + i, 8)], us=i + 1, sequence=i),
            Call("aten::mul", us=i + 1),
        ]
        for i in range(20)
    ]
    engine = [
        backward("AddmmBackward0", Call("aten::mm", [tensor(9 + i, 8)]), gradient=tensor(99, 1), sequence=i)
        for i in reversed(range(20))
    ]
    pair = write_pair([call for layer in layers for call in layer] + engine, ids=False)
    muls = [event for event in pair.kineto["traceEvents"] if event["name"] == "aten::mul"]
    for layer in (4, 19):
        pair.kineto["traceEvents"].remove(muls[layer])
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    expected_us = [
        0 if (i, call) in ((4, "mul"), (19, "mul")) else i + 1 for i in range(20) for call in ("linear", "mul")
    ]
    assert problem.duration_s[:40].tolist() == pytest.approx([us * US for us in expected_us])
    assert "2 operators have no event in the Kineto trace: they take no time." in problem.metadata["heuristics"]


def test_calls_without_a_number_are_those_of_the_same_iteration(tmp_path: Path) -> None:
    # Both ends of an iteration are aten::zeros: the one before the forward pass follows that of the iteration before.
    calls = [Call("aten::zeros", us=5), *two_linears(), Call("aten::zeros", us=7)]
    problem = import_pytorch(write_pair(calls, ids=False, iterations=3, chosen=1).write(tmp_path), link=PLAIN_LINK)
    assert problem.duration_s[0] == pytest.approx(5 * US)


def test_ids_that_belong_to_other_calls_are_not_believed(tmp_path: Path) -> None:
    pair = write_pair(two_linears())
    for node in pair.execution_trace["nodes"]:
        node["attrs"][0]["value"] += 2  # each id now names the call after the next
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    assert problem.ideal_s == pytest.approx(967 * US)
    assert any(said.startswith("No record function ids") for said in problem.metadata["heuristics"])


def test_recomputation_inside_the_backward_pass_is_said(tmp_path: Path) -> None:
    def says(calls: list[Call]) -> bool:
        return any("activation checkpointing" in said for said in imported(calls, tmp_path).metadata["heuristics"])

    calls = two_linears()
    assert not says(calls)
    calls[7].children[0].children = [*calls[7].children[0].children, Call("aten::conv2d", sequence=9)]
    assert says(calls)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::linear", "gemm"),
        ("aten::bmm", "gemm"),
        ("aten::add", "elementwise"),
        ("aten::conv2d", "convolution"),
        ("aten::scaled_dot_product_attention", "attention"),
        ("aten::layer_norm", "norm"),
        ("aten::native_dropout", "dropout"),
        ("aten::embedding", "embedding"),
        ("aten::cross_entropy_loss", "loss"),
        ("aten::_to_copy", "copy"),
        ("aten::max_pool2d", "other"),
        ("autograd::engine::evaluate_function: CudnnBatchNormBackward0", "norm"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "gemm"),
        ("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "other"),
    ],
)
def test_kinds_follow_from_names(name: str, kind: str) -> None:
    assert operator_kind(name) == kind
