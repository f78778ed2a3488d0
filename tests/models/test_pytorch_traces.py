"""PyTorch traces: storages, times and recipes of hand-written steps, and the published numbers of a real pair."""

from __future__ import annotations

import gzip
import json
import tarfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from handwritten_trace import Call, annotation, backward, tensor, two_linears, write_pair
from instances import MB, MS, PLAIN_LINK
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Tensor
from slackswap.models.traces.execution_trace import ExecutionTrace, Node, cut_iteration, read_execution_trace
from slackswap.models.traces.pytorch import import_pytorch
from slackswap.models.traces.storage_lifetimes import find_lifetimes
from slackswap.models.traces.trace_content import looks_like_pytorch, read_trace

US = 1e-6


def imported(calls: list[Call], folder: Path, **how: Any) -> Problem:
    return import_pytorch(write_pair(calls, **how).write(folder), link=PLAIN_LINK)


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
    assert any(said.startswith("2 operators before") for said in problem.metadata["left_out"])


def test_of_several_marked_steps_the_last_whole_one_counts(tmp_path: Path) -> None:
    def slower(call: Call) -> Call:
        return replace(call, us=2 * call.us, children=[slower(child) for child in call.children])

    steps = [annotation("ProfilerStep#4", *two_linears()), annotation("ProfilerStep#5", *map(slower, two_linears()))]
    torn = annotation("ProfilerStep#6", *two_linears()[:3])
    problem = imported([*steps, torn], tmp_path)
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


def saved_bytes(trace: ExecutionTrace) -> list[tuple[int, int]]:
    """Operator and bytes of each forward storage that is read in the backward pass."""
    iteration = cut_iteration(trace.nodes, "trace")
    n = len(iteration.forward)
    return [
        (lifetime.operator, lifetime.bytes)
        for lifetime in find_lifetimes(trace.nodes, iteration)
        if lifetime.operator is not None and lifetime.operator < n and any(reader >= n for reader in lifetime.readers)
    ]


def leaves_only(trace: ExecutionTrace) -> ExecutionTrace:
    """Mutate a trace to what a naive reader sees: tensors of calls with calls inside are forgotten."""
    parents = {node.parent for node in trace.nodes}

    def bare(node: Node) -> Node:
        return replace(node, inputs=(), outputs=()) if node.id in parents else node

    return ExecutionTrace(tuple(map(bare, trace.nodes)), trace.process)


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
    calls[7].children[0].children = [view, unsafe, *calls[7].children[0].children]
    # b is still read by the loss and its backward only, although operator 7 makes views of it.
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
    s, p, m = tensor(10, 100), tensor(11, 150), tensor(12, 100)
    calls = [
        Call("aten::linear", [tensor(1, 9)], [s], us=10, sequence=0),
        Call("aten::linear", [s], [p], us=50, sequence=1),
        Call("aten::add", [p, s], [m], us=5, sequence=2),
        backward("AddmmBackward0", Call("aten::mm", [s, m], [tensor(20, 9)]), gradient=tensor(19, 1), sequence=1),
    ]
    found = by_name(imported(calls, tmp_path))
    rebuild = found["add.2"].rebuild
    assert rebuild is not None
    # m = p + s: p is not saved, so linear 50 us runs again before add 5 us, from s; p needs 150 bytes meanwhile.
    assert rebuild.duration_s == pytest.approx(55 * US)
    assert (rebuild.inputs, rebuild.workspace_bytes) == ((0,), 150)
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


def on_gpu(calls: list[Call]) -> list[Call]:
    """The same calls on ``cuda:0``, each with one kernel of ten times its own microseconds."""

    def moved(values: list[Any]) -> list[Any]:
        return [[*value[:-1], "cuda:0"] for value in values]

    def launched(call: Call) -> Call:
        kernels = [("void gemm_kernel<float>", 10 * call.us)] if call.us else []
        inside = [launched(child) for child in call.children]
        return replace(call, inputs=moved(call.inputs), outputs=moved(call.outputs), children=inside, kernels=kernels)

    return [launched(call) for call in calls]


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
    assert "Collectives (NCCL/RCCL): 5.000 ms on their own stream." in problem.metadata["left_out"]
    assert any("Host copies of 1 operators (0.070 ms)" in said for said in problem.metadata["heuristics"])


def test_kernels_whose_launch_is_missing_are_reported(tmp_path: Path) -> None:
    pair = write_pair(on_gpu(two_linears()))
    orphan = {"ph": "X", "cat": "kernel", "name": "late", "ts": 5, "dur": 3000, "args": {"correlation": 987654}}
    pair.kineto["traceEvents"].append(orphan)
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    assert "Device work whose launch is not in the file: 3.000 ms." in problem.metadata["left_out"]


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


def test_ids_that_belong_to_other_calls_are_not_believed(tmp_path: Path) -> None:
    pair = write_pair(two_linears())
    for node in pair.execution_trace["nodes"]:
        node["attrs"][0]["value"] += 2  # each id now names the call after the next
    problem = import_pytorch(pair.write(tmp_path), link=PLAIN_LINK)
    assert problem.ideal_s == pytest.approx(967 * US)
    assert any(said.startswith("No record function ids") for said in problem.metadata["heuristics"])


def test_recomputation_inside_the_backward_pass_is_said(tmp_path: Path) -> None:
    calls = two_linears()
    calls[7].children[0].children = [*calls[7].children[0].children, Call("aten::conv2d", sequence=9)]
    assert any("activation checkpointing" in said for said in imported(calls, tmp_path).metadata["heuristics"])


# ---- refusals -------------------------------------------------------------------------------------------------------


def refusal(paths: list[Path]) -> str:
    with pytest.raises(InputError) as caught:
        import_pytorch(paths, link=PLAIN_LINK)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_half_a_pair_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()).write(tmp_path)
    assert "has no times: give the Kineto trace" in refusal([execution_trace])
    assert "does not say which tensor an operator reads: give the execution trace" in refusal([kineto])
    assert "is a second Kineto trace" in refusal([kineto, kineto])
    assert "give the two files" in refusal([])


def test_a_forward_pass_alone_is_no_training(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()[:4]).write(tmp_path)
    assert "has no backward pass" in refusal([execution_trace])
    assert "has no backward pass" in refusal([kineto])
    assert "has no backward pass" in refusal([execution_trace, kineto])


def test_gradient_accumulation_is_refused(tmp_path: Path) -> None:
    assert "several backward passes" in refusal(write_pair(two_linears() + two_linears()).write(tmp_path))


def test_a_broken_call_tree_is_refused(tmp_path: Path) -> None:
    """An exception leaves a call unseen: what follows is recorded as if it lay inside of that call."""
    pair = write_pair(two_linears())
    outer, inner = [node for node in pair.execution_trace["nodes"] if node["name"].endswith("AddmmBackward0")][::2]
    inner["ctrl_deps"] = outer["id"]
    assert "its call tree is broken" in refusal(pair.write(tmp_path))


def test_traces_of_two_runs_are_refused(tmp_path: Path) -> None:
    pair = write_pair(two_linears())
    pair.execution_trace["pid"] = 78
    assert "was not recorded in the execution trace's process, 78" in refusal(pair.write(tmp_path))
    other = write_pair([replace(call, name=f"other::{call.name}") for call in two_linears()])
    mixed = replace(write_pair(two_linears(), ids=False), kineto=other.kineto)
    assert "does not belong to the execution trace" in refusal(mixed.write(tmp_path))


def test_a_gpu_model_without_kernels_is_refused(tmp_path: Path) -> None:
    pair = write_pair(on_gpu(two_linears()))
    pair.kineto["traceEvents"] = [event for event in pair.kineto["traceEvents"] if event["cat"] == "cpu_op"]
    assert "holds no kernels, but the model ran on cuda:0" in refusal(pair.write(tmp_path))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"SQLite format 3\0", "SQLite"),
        (b"\x80\x04\x95\x00", "pickles are never unpacked"),
        (b"^\x12\x10\n\x06schema", "Chakra protobuf"),
        (b"0000 0.197632 ms", "is not JSON"),
        (b"[[-1, 1, 37888, 7]]", "memory timeline"),
        (b'{"graph": []}', "neither a Kineto trace"),
        (b'{"traceEvents": [{"ph": "X"', "is truncated JSON: it ends at offset 27"),
        (b'{"traceEvents": [{"name": "a"b"}]}', "is not valid JSON"),
        (b'{"traceEvents": ' + b"[" * 100_000, "is nested too deeply"),
        (b'{"schema": "1.1.1", "nodes": [{"id": "x", "name": ""}]}', "$.nodes[0].id"),
        (b'{"schema": "1.1.1", "nodes": [{"id": 1, "name": "", "inputs": 5}]}', "$.nodes[0].inputs"),
        (b'{"schema": "1.1.1", "nodes": [{"id": 1, "name": ""}, {"id": 1, "name": ""}]}', "the id 1 stands twice"),
        (b'{"traceEvents": [{}, {"ph": "X", "cat": "kernel", "dur": -4}]}', "$.traceEvents[1].dur"),
        (b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "ts": "soon"}]}', "$.traceEvents[0].ts"),
    ],
)
def test_other_and_damaged_files_are_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "trace.bin"
    path.write_bytes(content)
    said = refusal([path])
    assert said.startswith(f"{path}: ")
    assert reason in said


# ---- what real writers do -------------------------------------------------------------------------------------------


def kineto_as(change: Callable[[dict[str, Any]], bytes], folder: Path) -> Problem:
    pair = write_pair(two_linears())
    paths = pair.write(folder)
    paths[1].write_bytes(change(pair.kineto))
    return import_pytorch(paths, link=PLAIN_LINK)


def text(kineto: dict[str, Any]) -> str:
    return json.dumps(kineto)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda kineto: json.dumps(kineto["traceEvents"]).encode(), id="a bare list"),
        pytest.param(lambda kineto: gzip.compress(text(kineto).encode()), id="gzip under any suffix"),
        pytest.param(lambda kineto: b"\n " + text(kineto).encode(), id="leading space"),
        pytest.param(lambda kineto: text(kineto).replace('"ts": 0.0', '"ts": "0.0"').encode(), id="times in quotes"),
        pytest.param(lambda kineto: text(kineto).replace("Toy GPU", "Toy\n\x01").encode(), id="control characters"),
        pytest.param(lambda kineto: text(kineto).encode().replace(b"Toy GPU", b"\xff\xfe"), id="invalid UTF-8"),
        pytest.param(
            lambda kineto: text(kineto).replace('"args": {', '"args": {"memory bandwidth (GB/s)": inf, ').encode(),
            id="bare inf",
        ),
        pytest.param(
            lambda kineto: text(kineto).replace('"External id": ', '"External id": 18446744073709551').encode(),
            id="huge ids",
        ),
        pytest.param(
            lambda kineto: (
                text(kineto)
                .replace('"traceEvents": [', '"traceEvents": [{"ph": "X"}, {"ph": "i", "pid": ""}, ')
                .encode()
            ),
            id="events without anything",
        ),
        pytest.param(lambda kineto: text(kineto).replace('"cpu_op"', '"Operator"').encode(), id="names of 2021"),
    ],
)
def test_what_real_profilers_write_is_read(tmp_path: Path, change: Callable[[dict[str, Any]], bytes]) -> None:
    assert kineto_as(change, tmp_path).ideal_s == pytest.approx(967 * US)


def test_an_archive_of_one_trace_is_read_in_memory(tmp_path: Path) -> None:
    execution_trace, kineto = write_pair(two_linears()).write(tmp_path)
    archive = tmp_path / "step.json.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(execution_trace, arcname="step.json")
    assert import_pytorch([archive, kineto], link=PLAIN_LINK).name == "step"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(execution_trace, arcname="a.json")
        tar.add(execution_trace, arcname="b.json")
    assert "is an archive of 2 traces" in refusal([archive, kineto])


def test_content_tells_pytorch_traces_from_other_files(tmp_path: Path) -> None:
    for path in write_pair(two_linears()).write(tmp_path):
        assert looks_like_pytorch(path.read_bytes())
    assert not looks_like_pytorch(b'{"format": "slackswap-problem/1"}')
    assert not looks_like_pytorch(b"node1 -- Input0 -- forward_compute_time=0.0")


# ---- real traces ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet18() -> Problem:
    pair = ["resnet18_2080ti_kineto.json.gz", "resnet18_2080ti_et_schema1.0.1.json.gz"]
    return import_pytorch([shared_file(f"traces/et/{name}") for name in pair], link=PLAIN_LINK)


def megabytes_by(problem: Problem, operator_of: Callable[[int], int]) -> dict[str, float]:
    """Saved megabytes by the class of an operator, without the few bytes of the loss."""
    sums: Counter[str] = Counter()
    for t in np.flatnonzero(problem.saved):
        sums[problem.operator_names[operator_of(int(t))].split(".")[0]] += int(problem.tensor_bytes[t])
    return {name: round(size / MB, 1) for name, size in sums.items() if size > 1 * MB}


def test_resnet18_has_the_published_operators_and_times(resnet18: Problem) -> None:
    assert (resnet18.n_forward, resnet18.n_operators - resnet18.n_forward) == (94, 134)
    # 42.652 ms of kernels and 22.971 ms of host copies; 92.351 ms of kernels.
    assert resnet18.forward_s == pytest.approx(65.623 * MS)
    assert resnet18.backward_s == pytest.approx(92.351 * MS)
    assert resnet18.metadata["kineto_iteration"] == "index 10 of 30"
    assert (resnet18.metadata["matched_nodes"], resnet18.metadata["nodes"]) == (1307, 1310)
    assert resnet18.metadata["gpu"] == "NVIDIA GeForce RTX 2080 Ti"


def test_resnet18_has_the_published_saved_tensors(resnet18: Problem) -> None:
    assert resnet18.saved.sum() == 86
    assert resnet18.saved_bytes / MB == pytest.approx(2839.6, abs=0.05)
    assert (resnet18.tensor_bytes[resnet18.saved] >= 64 << 10).sum() == 42
    made_by = megabytes_by(resnet18, lambda t: int(resnet18.producer[t]))
    assert made_by == {"conv2d": 1271.7, "batch_norm": 1181.8, "max_pool2d": 308.3, "to": 77.1}
    read_by = megabytes_by(resnet18, lambda t: int(resnet18.first_backward_reader[t]))
    assert read_by == {
        "CudnnBatchNormBackward0": 1271.7,
        "ConvolutionBackward0": 937.7,
        "MaxPool2DWithIndicesBackward0": 616.6,
        "ReluBackward0": 12.8,
    }


def test_resnet18_rebuild_costs_are_known(resnet18: Problem) -> None:
    assert resnet18.rebuildable[resnet18.saved].all()
    large = resnet18.saved & (resnet18.tensor_bytes >= 64 << 10)
    cost_ps_per_byte = resnet18.rebuild_s[large] / resnet18.tensor_bytes[large] * 1e12
    producer_ps_per_byte = resnet18.duration_s[resnet18.producer[large]] / resnet18.tensor_bytes[large] * 1e12
    # The cheapest producer is a batch norm, 59 us for 12.8 MB; with its add_ and relu_ it costs 106 us, and then a
    # convolution (243 us for 51.4 MB) is the cheapest to rebuild.
    assert producer_ps_per_byte.min() == pytest.approx(4.59, abs=0.01)
    assert cost_ps_per_byte.min() == pytest.approx(4.73, abs=0.01)


@pytest.mark.parametrize(
    ("name", "saved_mb", "n_large", "leaves_mb"),
    [
        # 2730.2 MB is what four other kinds of trace of ResNet-50 say too.
        ("resnet50_ddp_et_only_schema1.1.0.json.gz", 2730.2, 106, 1573.9),
        ("hf_gpt2_large_et_only_schema1.1.0.json.tar.gz", 4497.2, 580, None),
    ],
)
def test_storages_of_traces_without_times(name: str, saved_mb: float, n_large: int, leaves_mb: float | None) -> None:
    path = shared_file(f"traces/et/{name}")
    trace = read_execution_trace(read_trace(path), name)
    sizes = [size for _, size in saved_bytes(trace)]
    assert sum(sizes) / MB == pytest.approx(saved_mb, abs=0.05)
    assert sum(size >= 64 << 10 for size in sizes) == n_large
    if leaves_mb is not None:
        naive = [size for _, size in saved_bytes(leaves_only(trace))]
        assert sum(naive) / MB == pytest.approx(leaves_mb, abs=0.05)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kineto/NEG_alexnet_a100_forward_only.json.gz", "has no backward pass"),
        ("et/NEG_pt2_triton_forward_only_et_schema1.1.1.json.tar.gz", "has no backward pass"),
        ("kineto/minitoy_mi250_train.json.gz", "give the execution trace"),
        ("et/hf_gpt2_large_et_only_schema1.1.0.json.tar.gz", "has no times"),
        ("chakra/resnet50_b32_ddp_chakra_et_protobuf.tar.gz", "Chakra protobuf"),
        ("nsys/NEG_h100_2gpu_forward_only.sqlite.gz", "SQLite"),
        ("snapshot/medium24L_ctx128_training.pickle.gz", "pickles are never unpacked"),
        ("memory_timeline/resnet50_b32.memory_timeline.raw.json.gz", "memory timeline"),
    ],
)
def test_real_files_that_hold_too_little_are_refused(name: str, reason: str) -> None:
    assert reason in refusal([shared_file(f"traces/{name}")])


def test_two_resnets_of_different_processes_are_no_pair() -> None:
    names = [
        "et/resnet50_ddp_et_only_schema1.1.0.json.gz",
        "kineto/resnet50_v100_float_ts_fwdbwd_noshapes.pt.trace.json.gz",
    ]
    assert "was not recorded in the execution trace's process" in refusal(
        [shared_file(f"traces/{name}") for name in names]
    )
