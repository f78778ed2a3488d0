"""Chakra traces: a small protobuf encoder, a step written by hand, and one file for each thing that goes wrong."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces.chakra import import_chakra, looks_like_chakra
from slackswap.models.traces.chakra_protobuf import RecordedTensor, read_nodes, tensors_in
from slackswap.models.traces.trace_file import TraceFile

US = 1e-6
COMPUTE, COLLECTIVE = 4, 7
FORWARD_THREAD, AUTOGRAD_THREAD, STREAM = 1, 2, 7


# ---- a protobuf encoder ---------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = b""
    while number >= 0x80:
        encoded += bytes([number & 0x7F | 0x80])
        number >>= 7
    return encoded + bytes([number])


def encoded(number: int, value: int | str | bytes) -> bytes:
    """One field: a varint, or text, message or packed numbers behind their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content


def attribute(name: str, member: int, value: int | str) -> bytes:
    return encoded(10, encoded(1, name) + encoded(member, value))


def values(items: Sequence[Any]) -> bytes:
    return encoded(1, str(list(items))) + encoded(2, "[[]]") + encoded(3, "['Tensor(float)']")


METADATA = encoded(2, encoded(1, "schema") + encoded(29, "1.0.1")) + encoded(2, encoded(1, "pid") + encoded(13, 7))


def framed(messages: Sequence[bytes]) -> bytes:
    return b"".join(varint(len(message)) + message for message in messages)


def tensor(storage: int, n_bytes: int, *, id: int = 0, numel: int | None = None) -> list[Any]:  # noqa: A002 - the trace's name
    return [id or 1000 + storage, storage, 0, n_bytes // 4 if numel is None else numel, 4, "cuda:0"]


# ---- calls, as somebody would write them down -----------------------------------------------------------------------


@dataclass(frozen=True)
class Kernel:
    us: int
    name: str = "void kernel<float>(float*)"
    kind: int = COMPUTE
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()


@dataclass(frozen=True)
class Call:
    """A call before the converter splits it; `parent` is what its control dependency names."""

    name: str
    inputs: Sequence[Any] = ()
    outputs: Sequence[Any] = ()
    kernels: Sequence[Kernel] = ()
    thread: int = FORWARD_THREAD
    sequence: int = -1
    schema: str = ""
    parent: int = 3  # a node that the converter dropped
    scope: int = 0
    rf_id: int | None = None
    forward_thread: int = 0
    kind: int = COMPUTE
    more: bytes = field(default=b"", repr=False)


def call_message(call: Call, node_id: int, name: str, rf_id: int, previous: int) -> bytes:
    return (
        encoded(1, node_id)
        + encoded(2, name)
        + encoded(3, call.kind)
        + (encoded(4, varint(call.parent)) if call.parent else b"")
        + (encoded(5, varint(previous)) if previous else b"")
        + encoded(7, 12)
        + encoded(8, values(call.inputs))
        + encoded(9, values(call.outputs))
        + attribute("is_cpu_op", 27, 1)
        + attribute("fw_tid", 9, call.forward_thread)
        + attribute("seq_id", 9, call.sequence)
        + attribute("rf_id", 9, rf_id)
        + attribute("scope", 9, call.scope)
        + attribute("tid", 9, call.thread)
        + attribute("op_schema", 29, call.schema)
        + call.more
    )


def kernel_message(kernel: Kernel, node_id: int, launcher: int) -> bytes:
    return (
        encoded(1, node_id)
        + encoded(2, kernel.name)
        + encoded(3, kernel.kind)
        + encoded(4, varint(launcher))
        + encoded(5, varint(launcher) + varint(2))
        + (encoded(7, kernel.us) if kernel.us else b"")  # protobuf leaves a zero out
        + encoded(8, values(kernel.inputs))
        + encoded(9, values(kernel.outputs))
        + attribute("is_cpu_op", 27, 0)
        + attribute("tid", 9, STREAM)
    )


def messages_of(calls: Sequence[Call]) -> list[bytes]:
    """Split calls as the converter does, `name(0)`, kernel, `name(1)`, ...; ids count from 10 in the order of the file."""
    messages: list[bytes] = []
    for number, call in enumerate(calls, start=1):
        rf_id = number if call.rf_id is None else call.rf_id
        previous = 0
        if not call.kernels:
            messages.append(call_message(call, 10 + len(messages), call.name, rf_id, 0))
        for part in range(len(call.kernels) + 1 if call.kernels else 0):
            node_id = 10 + len(messages)
            messages.append(call_message(call, node_id, f"{call.name}({part})", rf_id, previous))
            previous = node_id
            if part < len(call.kernels):
                messages.append(kernel_message(call.kernels[part], node_id + 1, node_id))
    return messages


def write(tmp_path: Path, calls: Sequence[Call] | bytes) -> Path:
    path = tmp_path / "step.et"
    path.write_bytes(calls if isinstance(calls, bytes) else framed([METADATA, *messages_of(calls)]))
    return path


def imported(tmp_path: Path, calls: Sequence[Call] | bytes, *, kernel_outputs: bool = False) -> Problem:
    return import_chakra(write(tmp_path, calls), link=PLAIN_LINK, kernel_outputs=kernel_outputs)


def refusal(tmp_path: Path, calls: Sequence[Call] | bytes) -> str:
    with pytest.raises(InputError) as error:
        imported(tmp_path, calls)
    message = str(error.value)
    assert message.startswith(str(tmp_path / "step.et"))
    assert "\n" not in message
    return message


# ---- a step of two linear layers ------------------------------------------------------------------------------------

X, W1, W2, TARGET = tensor(1, 4000), tensor(2, 400), tensor(3, 800), tensor(4, 8000)
A, B, LOSS = tensor(10, 4000), tensor(11, 8000), tensor(12, 4)
GB, GA, GW2, GZ, GW1 = tensor(20, 8000), tensor(21, 4000), tensor(22, 800), tensor(23, 4000), tensor(24, 400)
IN_PLACE = "aten::op_(Tensor(a!) self) -> Tensor(a!)"


def forward(name: str, inputs: Sequence[Any], outputs: Sequence[Any], us: int, sequence: int, **more: Any) -> Call:
    return Call(name, inputs, outputs, [Kernel(us)], sequence=sequence, **more)


def backward(name: str, inputs: Sequence[Any], outputs: Sequence[Any], *us: int, **more: Any) -> Call:
    return Call(name, inputs, outputs, [Kernel(n) for n in us], thread=AUTOGRAD_THREAD, **more)


FORWARD = [
    forward("aten::linear", [X, W1], [A], 100, 0),
    forward("aten::relu_", [A], [A], 20, 1, schema=IN_PLACE),
    forward("aten::linear", [A, W2], [B], 200, 2),
    forward("aten::mse_loss", [B, TARGET, 1], [LOSS], 30, 3),
]
BACKWARD = [
    backward("aten::mse_loss_backward", [LOSS, B, TARGET], [GB], 40),
    backward("aten::mm", [GB, W2], [GA], 290, 10),
    backward("aten::mm", [GB, A], [GW2], 100),
    backward("aten::detach", [GW2], [tensor(22, 800, id=99)]),
    backward("aten::threshold_backward", [GA, A, 0], [GZ], 25),
    backward("aten::mm", [GZ, X], [GW1], 150),
]
ALL_REDUCE = Call(
    "c10d::allreduce_",
    [[GW2], "<Object>"],
    [[GW2], "<Object>"],
    [Kernel(500, "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", COLLECTIVE)],
    thread=AUTOGRAD_THREAD,
    kind=COLLECTIVE,
)
OPTIMIZER = Call("aten::_foreach_add_", [[W1, W2], [GW1, GW2]], [], [Kernel(60), Kernel(7)])
STEP = [*FORWARD, *BACKWARD, ALL_REDUCE, OPTIMIZER]


def test_a_step_becomes_a_problem(tmp_path: Path) -> None:
    problem = imported(tmp_path, STEP)
    assert problem.name == "step"
    # Parts are one operator; 100 + 20 + 200 + 30 us forward, 40 + 300 + 100 + 0 + 25 + 150 us backward.
    assert problem.operator_names == (
        "linear.0",
        "relu_.1",
        "linear.2",
        "mse_loss.3",
        "mse_loss_backward.4",
        "mm.5",
        "mm.6",
        "detach.7",
        "threshold_backward.8",
        "mm.9",
        "c10d::allreduce_.10",
    )
    assert problem.n_forward == 4
    assert problem.duration_s.tolist() == pytest.approx(
        [us * US for us in (100, 20, 200, 30, 40, 300, 100, 0, 25, 150, 0)]
    )
    a, b, loss, *gradients = problem.tensors()
    # a is born in 0, overwritten by 1, read by 2 and in the backward pass by 6 (for gw2) and 8 (for gz).
    assert (a.bytes, a.producer, a.readers) == (4000, 0, (1, 2, 6, 8))
    assert (b.bytes, b.producer, b.readers) == (8000, 2, (3, 4))
    assert (loss.bytes, loss.producer, loss.readers) == (4, 3, (4,))
    # gb (4, read by both mm), ga (5 -> 8), gz (8 -> 9); gw2 is detached: it stays as a weight gradient; gw1 has no reader.
    assert [(g.bytes, g.producer, g.readers) for g in gradients] == [
        (8000, 4, (5, 6)),
        (4000, 5, (8,)),
        (4000, 8, (9,)),
    ]
    assert problem.saved.tolist() == [True, True, True, False, False, False]
    assert a.rebuild is not None
    assert b.rebuild is not None
    # a: linear and relu_ from resident storages; b: linear from a.
    assert [a.rebuild.duration_s, b.rebuild.duration_s] == pytest.approx([120 * US, 200 * US])
    assert (a.rebuild.inputs, b.rebuild.inputs) == ((), (0,))


def test_what_was_derived_and_what_was_not_is_declared(tmp_path: Path) -> None:
    metadata = imported(tmp_path, STEP).metadata
    assert metadata["source"] == "step.et, a Chakra execution trace"
    # 11 calls launch 13 kernels (an mm and the optimizer two each): 11 + 13 parts, and the detach.
    assert (metadata["cpu_nodes"], metadata["kernel_nodes"], metadata["calls"]) == (25, 13, 12)
    derivation = metadata["derivation"]
    assert derivation["kind"] == "Chakra trace"
    counts = {name: (fact["exact"], fact["by_rule"], fact["unknown"]) for name, fact in derivation["facts"].items()}
    assert counts == {
        "order": (11, 0, 0),
        "times": (11, 0, 0),
        "sizes": (3, 0, 0),
        "producers": (3, 0, 0),
        "readers": (3, 0, 0),
        "first backward use": (3, 0, 0),
        "rebuild costs": (0, 3, 0),
    }
    assert any("whole microseconds" in warning for warning in derivation["warnings"])


# ---- what the converter does to a trace -----------------------------------------------------------------------------


def test_calls_of_one_name_in_a_row_stay_apart(tmp_path: Path) -> None:
    # Recorded numbers tell them apart; without (0 everywhere), each part (0) starts anew.
    unnumbered = [replace(call, rf_id=0) for call in STEP]
    assert imported(tmp_path, unnumbered).tensors() == imported(tmp_path, STEP).tensors()
    assert imported(tmp_path, unnumbered).operators() == imported(tmp_path, STEP).operators()


def test_parts_in_any_order_of_the_file_are_merged(tmp_path: Path) -> None:
    head, *messages = [METADATA, *messages_of(STEP)]
    assert imported(tmp_path, framed([head, *reversed(messages)])).operators() == imported(tmp_path, STEP).operators()


def test_a_name_that_only_looks_like_a_part_stays(tmp_path: Path) -> None:
    odd = replace(BACKWARD[3], name="aten::detach(2)")
    problem = imported(tmp_path, [*FORWARD, *BACKWARD[:3], odd, *BACKWARD[4:]])
    assert problem.operator_names[7] == "detach(2).7"


def test_dropped_parents_are_unknown_and_counted(tmp_path: Path) -> None:
    problem = imported(tmp_path, STEP)
    # Every CPU node names node 3, which is not there; kernels name the call that launched them.
    assert problem.metadata["dangling_dependencies"] == 25
    assert "25 control dependencies name nodes that the converter dropped" in " ".join(
        problem.metadata["derivation"]["warnings"]
    )
    assert not any("cannot be the parent" in said for said in problem.metadata["heuristics"])


def inner(parent: int) -> list[Call]:
    """The step with the work of the first call in a call inside of it; the outer call is node 10."""
    outer = replace(FORWARD[0], kernels=())
    within = replace(FORWARD[0], name="aten::addmm", parent=parent, sequence=-1)
    return [outer, within, *STEP[1:]]


def test_a_parent_that_is_there_takes_the_work_of_its_calls(tmp_path: Path) -> None:
    nested = imported(tmp_path, inner(parent=10))
    assert nested.operators() == imported(tmp_path, STEP).operators()
    assert nested.tensors() == imported(tmp_path, STEP).tensors()


@pytest.mark.parametrize("wrong", [12, 14], ids=["a kernel", "a later call"])
def test_parents_that_cannot_be_make_every_call_stand_alone(tmp_path: Path, wrong: int) -> None:
    # Nodes: 10 linear, 11 addmm(0), 12 its kernel, 13 addmm(1), 14 relu_(0).
    calls = inner(parent=10)
    calls[4] = replace(calls[4], parent=wrong) if wrong == 12 else calls[4]
    calls[1] = replace(calls[1], parent=wrong) if wrong == 14 else calls[1]
    problem = imported(tmp_path, calls)
    assert problem.operator_names[:3] == ("linear.0", "addmm.1", "relu_.2")
    assert problem.duration_s[:2].tolist() == pytest.approx([0, 100 * US])
    assert any(
        "2 control dependencies name nodes that cannot be the parent" in s for s in problem.metadata["heuristics"]
    )


def test_durations_are_whole_microseconds(tmp_path: Path) -> None:
    short = replace(FORWARD[1], kernels=[Kernel(0), Kernel(0), Kernel(20)])
    problem = imported(tmp_path, [FORWARD[0], short, *STEP[2:]])
    assert problem.duration_s[1] == pytest.approx(20 * US)
    assert (
        "Durations are whole microseconds: 2 of the 15 kernels are shorter and count as 0 s."
        in (problem.metadata["heuristics"])
    )


def test_collectives_are_left_out_of_the_times(tmp_path: Path) -> None:
    problem = imported(tmp_path, STEP)
    assert problem.backward_s == pytest.approx(615 * US)
    assert {"what": "collective kernels (NCCL/RCCL)", "count": 1, "seconds": pytest.approx(500 * US)} in (
        problem.metadata["derivation"]["dropped"]
    )
    assert "1 collective kernels (NCCL/RCCL): 0.500 ms." in problem.metadata["left_out"]
    # By its name alone as well, where the type does not say it.
    by_name = replace(ALL_REDUCE, kind=COMPUTE, kernels=[replace(ALL_REDUCE.kernels[0], kind=COMPUTE)])
    assert imported(tmp_path, [*FORWARD, *BACKWARD, by_name]).backward_s == pytest.approx(615 * US)
    # And by its type alone.
    by_type = replace(ALL_REDUCE, kernels=[replace(ALL_REDUCE.kernels[0], name="void reduce()")])
    assert imported(tmp_path, [*FORWARD, *BACKWARD, by_type]).backward_s == pytest.approx(615 * US)


def test_a_call_that_communicates_is_not_repeated(tmp_path: Path) -> None:
    gathering = replace(FORWARD[2], kernels=[*FORWARD[2].kernels, Kernel(9, "ncclKernel_AllGather", COLLECTIVE)])
    b = imported(tmp_path, [*FORWARD[:2], gathering, *STEP[3:]]).tensors()[1]
    assert b.rebuild is None


def test_the_optimizer_is_cut_off(tmp_path: Path) -> None:
    with_it, without = imported(tmp_path, STEP), imported(tmp_path, STEP[:-1])
    assert with_it.operators() == without.operators()
    dropped = {item["what"]: item for item in with_it.metadata["derivation"]["dropped"]}
    assert dropped["calls after the backward pass (optimizer)"]["count"] == 1
    assert dropped["calls after the backward pass (optimizer)"]["seconds"] == pytest.approx(67 * US)
    assert "calls after the backward pass (optimizer)" not in str(without.metadata)


def test_what_ran_on_autograds_thread_before_its_first_backward_call_is_set_aside(tmp_path: Path) -> None:
    tail_of_the_last_step = backward("aten::copy_", [W1, GW1], [W1], 80, schema=IN_PLACE)
    problem = imported(tmp_path, [tail_of_the_last_step, *STEP])
    assert problem.operators() == imported(tmp_path, STEP).operators()
    assert "1 calls before and beside the two passes: 0.080 ms." in problem.metadata["left_out"]


def pooling(*, recorded_inside: bool = True) -> list[Call]:
    """The step with a pooling of `a`, whose indices (16,000 bytes) only its kernel names, read in the backward pass."""
    pooled, indices = tensor(13, 2000), tensor(14, 16000)
    kernel = Kernel(50, inputs=[A, [2, 2]], outputs=[pooled, indices] if recorded_inside else [pooled])
    pool = Call("aten::max_pool2d", [A, [2, 2]], [pooled], [kernel], sequence=4)
    back = backward("aten::max_pool2d_with_indices_backward", [GA, A, [2, 2], indices], [tensor(25, 4000)], 70)
    return [*FORWARD[:2], pool, *FORWARD[2:], *BACKWARD, back]


def test_a_second_output_that_the_call_does_not_record_is_declared(tmp_path: Path) -> None:
    problem = imported(tmp_path, pooling())
    assert problem.saved_bytes == 4000 + 8000 + 4
    said = "Of the resident storages, 1 (0.016 MB) were saved by a forward call that does not record them"
    assert any(sentence.startswith(said) for sentence in problem.metadata["left_out"])
    assert any(warning.startswith(said) for warning in problem.metadata["derivation"]["warnings"])
    assert "does not record them" not in str(imported(tmp_path, STEP).metadata)


def test_a_second_output_can_be_taken_from_the_kernel(tmp_path: Path) -> None:
    problem = imported(tmp_path, pooling(), kernel_outputs=True)
    assert problem.saved_bytes == 4000 + 8000 + 4 + 16000
    (indices,) = [t for t in problem.tensors() if t.bytes == 16000]
    # Operators: 0 linear, 1 relu_, 2 max_pool2d, 3 linear, 4 mse_loss; 11 is the pooling's backward call.
    assert (indices.producer, indices.readers) == (2, (11,))
    assert indices.rebuild is not None
    assert indices.rebuild.duration_s == pytest.approx(50 * US)
    assert "does not record them" not in str(problem.metadata)
    # Where the kernel does not name it either, it stays unknown.
    assert imported(tmp_path, pooling(recorded_inside=False), kernel_outputs=True).saved_bytes == 12004


def test_what_a_kernel_was_given_is_no_further_output(tmp_path: Path) -> None:
    # The running mean (storage 5) is updated by the kernel; the backward pass does not make it a saved tensor.
    mean = tensor(5, 64)
    norm = Call("aten::batch_norm", [A], [A], [Kernel(5, inputs=[A, mean], outputs=[A, mean])], sequence=4)
    reads_it = backward("aten::batch_norm_backward", [GZ, mean], [tensor(26, 4000)], 5)
    problem = imported(tmp_path, [*FORWARD, norm, *BACKWARD, reads_it], kernel_outputs=True)
    assert 64 not in problem.tensor_bytes.tolist()


def test_a_bucket_of_gradients_is_no_missing_output(tmp_path: Path) -> None:
    # It existed before, and is first written: aten::mul(gw2, 0.5, out=bucket).
    bucket = tensor(50, 1200)
    fills = backward("aten::mul", [GW2, 0.5, bucket], [bucket], 3, schema="aten::mul.out(.., *, Tensor(a!) out)")
    assert "does not record them" not in str(imported(tmp_path, [*FORWARD, *BACKWARD, fills]).metadata)


def test_a_detached_activation_is_no_weight_gradient(tmp_path: Path) -> None:
    shown = Call("aten::detach", [LOSS], [tensor(12, 4, id=98)], thread=AUTOGRAD_THREAD)
    problem = imported(tmp_path, [*FORWARD, *BACKWARD, shown])
    assert problem.saved_bytes == 12004
    assert any(said.startswith("Weight gradients: 1 storages (0.001 MB)") for said in problem.metadata["left_out"])


def test_where_the_file_keeps_it_accumulate_grad_says_what_a_weight_gradient_is(tmp_path: Path) -> None:
    before = [*FORWARD, *BACKWARD[:3]]
    accumulate = Call("torch::autograd::AccumulateGrad", thread=AUTOGRAD_THREAD)
    kept = replace(BACKWARD[3], parent=10 + len(messages_of(before)))
    # A detach of ga elsewhere does not keep it.
    not_kept = backward("aten::detach", [GA], [tensor(21, 4000, id=97)])
    problem = imported(tmp_path, [*before, accumulate, kept, not_kept, *BACKWARD[4:]])
    # gb, ga and gz are gradients that pass by; gw2 is accumulated.
    assert [t.bytes for t in problem.tensors()] == [4000, 8000, 4, 8000, 4000, 4000]
    assert any(said.startswith("Weight gradients: 1 storages") for said in problem.metadata["left_out"])


def test_an_expanded_view_is_not_larger_than_its_storage(tmp_path: Path) -> None:
    # The gradient of a mean: 4 bytes, expanded to 8,000 and reshaped, then read.
    g, wide, wider = tensor(30, 4), tensor(30, 4, id=77, numel=2000), tensor(30, 4, id=78, numel=2000)
    calls = [
        backward("aten::sum_backward", [LOSS], [g], 1),
        backward("aten::expand", [g, [2000]], [wide]),
        backward("aten::view", [wide, [2000]], [wider]),
        backward("aten::div", [wider, 2], [tensor(31, 8000)], 9),
    ]
    problem = imported(tmp_path, [*FORWARD, *calls, *BACKWARD])
    assert [t.bytes for t in problem.tensors() if t.producer == 4] == [4]
    # The same ids later name a storage that is that large.
    reused = backward("aten::clone", [LOSS], [tensor(30, 8000, id=77)], 1)
    reads_it = backward("aten::neg", [tensor(30, 8000, id=77)], [tensor(32, 8000)], 1)
    problem = imported(tmp_path, [*FORWARD, *calls, reused, reads_it, *BACKWARD])
    assert [t.bytes for t in problem.tensors() if t.producer == 8] == [8000]


def test_host_copies_count_and_are_declared(tmp_path: Path) -> None:
    loading = Call("aten::to", [tensor(6, 4000)], [X], [Kernel(300, "Memcpy HtoD (Pageable -> Device)")], sequence=9)
    problem = imported(tmp_path, [loading, *STEP])
    assert problem.forward_s == pytest.approx(650 * US)
    assert "1 host copies (0.300 ms) count as the time of their operators." in problem.metadata["heuristics"]


def test_kernels_without_their_call_are_dropped(tmp_path: Path) -> None:
    orphan = kernel_message(Kernel(44), 900, 899)
    undirected = encoded(1, 901) + encoded(7, 5) + attribute("is_cpu_op", 27, 0)
    problem = imported(tmp_path, framed([METADATA, *messages_of(STEP), orphan, undirected]))
    assert problem.ideal_s == pytest.approx(965 * US)
    assert "2 kernels whose call is not in the file: 0.049 ms." in problem.metadata["left_out"]


def test_a_kernel_without_data_dependencies_belongs_to_its_control_dependency(tmp_path: Path) -> None:
    # 10 is the first part of the first call.
    kernel = encoded(1, 900) + encoded(4, 10) + encoded(7, 5) + attribute("is_cpu_op", 27, 0)
    problem = imported(tmp_path, framed([METADATA, *messages_of(STEP), kernel]))
    assert problem.duration_s[0] == pytest.approx(105 * US)


# ---- where the backward pass is -------------------------------------------------------------------------------------


def test_autograds_own_calls_are_the_operators_where_the_file_keeps_them(tmp_path: Path) -> None:
    # The forward pass has nodes 10 to 21 (two parts and a kernel each), so autograd's call is node 22.
    engine = Call("autograd::engine::evaluate_function: MmBackward0", thread=AUTOGRAD_THREAD)
    problem = imported(tmp_path, [*FORWARD, engine, *[replace(call, parent=22) for call in BACKWARD]])
    assert problem.operator_names[4:] == ("MmBackward0.4",)
    assert problem.backward_s == pytest.approx(615 * US)
    said = "Autograd's own calls are not in the file"
    assert not any(sentence.startswith(said) for sentence in problem.metadata["heuristics"])
    assert any(sentence.startswith(said) for sentence in imported(tmp_path, STEP).metadata["heuristics"])


def test_on_one_thread_the_backward_pass_ends_with_its_last_named_call(tmp_path: Path) -> None:
    one_thread = [replace(call, thread=FORWARD_THREAD) for call in [*FORWARD, *BACKWARD[:5], OPTIMIZER]]
    problem = imported(tmp_path, one_thread)
    assert (problem.n_forward, problem.n_operators) == (4, 9)
    assert problem.operators() == imported(tmp_path, [*FORWARD, *BACKWARD[:5]]).operators()


def test_a_backward_name_on_the_forward_thread_is_forward_where_autograd_has_a_thread(tmp_path: Path) -> None:
    odd = Call("aten::max_pool2d_backward", [A], [tensor(41, 4000)], [Kernel(5)])
    problem = imported(tmp_path, [FORWARD[0], odd, *STEP[1:]])
    assert (problem.n_forward, problem.operator_names[1]) == (5, "max_pool2d_backward.1")


def test_annotations_in_the_backward_pass_are_no_operators(tmp_path: Path) -> None:
    # Five calls of two parts and a kernel come before, nodes 10 to 24, so the annotation is node 25.
    bucket = Call("Reducer::copy_bucket", thread=AUTOGRAD_THREAD, scope=7)
    inside = [replace(call, parent=25) for call in BACKWARD[1:3]]
    problem = imported(tmp_path, [*FORWARD, BACKWARD[0], bucket, *inside, *BACKWARD[3:]])
    assert problem.operators() == imported(tmp_path, [*FORWARD, *BACKWARD]).operators()


def test_annotations_outside_of_the_passes_are_not_counted_as_dropped(tmp_path: Path) -> None:
    step = Call("ProfilerStep#7", scope=7)
    problem = imported(tmp_path, [step, *STEP])
    assert problem.metadata["step"] == "ProfilerStep#7"
    assert "calls before and beside the two passes" not in str(problem.metadata)
    assert problem.operators() == imported(tmp_path, STEP).operators()


def test_recomputation_inside_the_backward_pass_is_noticed(tmp_path: Path) -> None:
    again = replace(FORWARD[0], thread=AUTOGRAD_THREAD, sequence=9, outputs=[tensor(40, 4000)])
    problem = imported(tmp_path, [*FORWARD, BACKWARD[0], again, *BACKWARD[1:]])
    assert problem.n_forward == 4
    assert any("activation checkpointing" in said for said in problem.metadata["heuristics"])


def test_two_steps_in_one_file_are_refused(tmp_path: Path) -> None:
    assert "several backward passes" in refusal(tmp_path, [*STEP, *STEP])


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_a_forward_pass_alone_is_refused(tmp_path: Path) -> None:
    assert "has no backward pass" in refusal(tmp_path, FORWARD)


def test_a_backward_pass_alone_is_refused(tmp_path: Path) -> None:
    assert "no forward operator" in refusal(tmp_path, BACKWARD)


def test_a_trace_without_tensors_is_refused(tmp_path: Path) -> None:
    bare = [replace(call, inputs=[1, True, "x"], outputs=[]) for call in STEP]
    assert "names no tensors" in refusal(tmp_path, bare)
    undefined = [replace(call, inputs=[[5, 0, 0, 0, 0, ""]], outputs=[]) for call in STEP]
    assert "names no tensors" in refusal(tmp_path, undefined)


def test_a_trace_without_kernels_is_refused(tmp_path: Path) -> None:
    assert "holds no kernels" in refusal(tmp_path, [replace(call, kernels=()) for call in STEP])


def test_a_trace_without_durations_is_refused(tmp_path: Path) -> None:
    instant = [replace(call, kernels=[replace(kernel, us=0) for kernel in call.kernels]) for call in STEP]
    assert "records no kernel durations" in refusal(tmp_path, instant)


def test_a_trace_without_calls_is_refused(tmp_path: Path) -> None:
    assert "holds no CPU calls" in refusal(tmp_path, framed([METADATA]))
    assert "holds no CPU calls" in refusal(tmp_path, framed([METADATA, kernel_message(Kernel(1), 5, 4)]))


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    messages = messages_of(STEP)
    offset = len(framed([METADATA, *messages]))
    message = refusal(tmp_path, framed([METADATA, *messages, messages[0]]))
    assert message.endswith(f"offset {offset}: the id 10 stands twice")


def test_a_torn_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    # Inside of a message the offset of that message is named; between two messages a shorter trace is left.
    messages = [METADATA, *messages_of([*FORWARD[:1], *BACKWARD[:1]])]
    content = framed(messages)
    starts = [len(framed(messages[:n])) for n in range(len(messages) + 1)]
    for end in range(1, len(content)):
        start = max(start for start in starts if start <= end)
        if start != end:
            expected = f"offset {start}: is torn: the file ends {end - start} bytes into a message"
            assert expected in refusal(tmp_path, content[:end]), end


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (b"\x0b", "unknown wire type 3"),
        (encoded(1, b"\x01"), "a number is stored as bytes"),
        (encoded(2, 5), "a text or a message is stored as a number"),
        (encoded(2, b"\xff\xfe"), "utf-8"),
        (encoded(8, 1), "stored as a number"),
        (encoded(10, encoded(1, "tid") + b"\x48"), "cut off"),
        (encoded(10, b"\x0a\x09tid"), "cut off"),
        (b"\x08" + b"\xff" * 10, "more than 64 bits"),
        (b"\x08" + b"\xff" * 9 + b"\x7f", "more than 64 bits"),
        (encoded(4, b"\x80"), "cut off"),
    ],
)
def test_bytes_that_are_no_node_are_refused_with_their_offset(tmp_path: Path, node: bytes, reason: str) -> None:
    message = refusal(tmp_path, framed([METADATA, node]))
    assert f"offset {len(framed([METADATA]))}: is no Chakra node" in message
    assert reason in message


def test_a_length_out_of_bounds_is_refused(tmp_path: Path) -> None:
    assert "more than 16777216 bytes" in refusal(tmp_path, framed([METADATA]) + varint(1 << 40))
    assert "more than 64 bits" in refusal(tmp_path, framed([METADATA]) + b"\xff" * 11)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    assert "does not start with Chakra's GlobalMetadata" in refusal(tmp_path, framed([encoded(2, encoded(1, "pid"))]))
    assert "does not start with Chakra's GlobalMetadata" in refusal(tmp_path, framed([messages_of(STEP)[0]]))


def test_unknown_fields_and_unpacked_lists_are_read_over(tmp_path: Path) -> None:
    # A later schema: fields of every wire type; packed and single numbers mean the same.
    more = encoded(99, "new") + encoded(98, 7) + varint(97 << 3 | 1) + b"12345678" + varint(96 << 3 | 5) + b"1234"
    more += attribute("weights", 4, "doubles") + encoded(4, 3)
    problem = imported(tmp_path, [replace(call, more=more) for call in STEP])
    assert problem.operators() == imported(tmp_path, STEP).operators()
    assert problem.metadata["dangling_dependencies"] == 50


# ---- the text of a call's values ------------------------------------------------------------------------------------


def test_tensors_are_found_wherever_they_stand() -> None:
    text = "[[5, 6, 2, 3, 4, 'cuda:0'], [[7, 8, 0, 1, 2, \"cpu\"]], 1e-05, -inf, True, '<None>', [[], []], None, -3]"
    assert tensors_in(text) == [RecordedTensor(5, 6, 20, "cuda:0"), RecordedTensor(7, 8, 2, "cpu")]
    assert tensors_in("") == tensors_in("[]") == tensors_in(" [ ] ") == []
    # Undefined; text that looks like a tensor; lists of other lengths; a truth value in place of a number.
    assert tensors_in("[[5, 0, 0, 0, 0, '']]") == []
    assert tensors_in("['[5, 6, 2, 3, 4, \\'cuda:0\\']', \"it's\"]") == []
    assert (
        tensors_in("[[5, 6, 2, 3, 4], [6, 2, 3, 4, 'cuda:0'], [5, True, 2, 3, 4, 'x'], [5, 6, 2, 3, 4, 'x', 1]]") == []
    )


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "[__import__('os')]",
        "[1 + 1]",
        "[1 2]",
        "[1,]",
        "[,1]",
        "[1]]",
        "[1][2]",
        "[1], [2]",
        "[[1]",
        "5",
        "{'a': 1}",
        "['open]",
        "[1] # comment",
        "[" * 100 + "]" * 100,
    ],
)
def test_values_that_are_no_list_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match="values are no list"):
        tensors_in(text)
    broken = framed([METADATA, encoded(1, 10) + encoded(2, "aten::op") + encoded(8, encoded(1, text))])
    assert f"node 10 at offset {len(framed([METADATA]))}: values are no list" in refusal(tmp_path, broken)


@pytest.mark.parametrize("numbers", ["[1, -6, 0, 4, 4, 'c']", "[1, 6, -1, 4, 4, 'c']", f"[1, 6, 0, {1 << 62}, 4, 'c']"])
def test_a_tensor_out_of_range_is_refused(numbers: str) -> None:
    with pytest.raises(InputError, match="a tensor's storage, offset"):
        tensors_in(f"[{numbers}]")


# ---- telling the format from others ---------------------------------------------------------------------------------


def test_the_format_is_recognised() -> None:
    content = framed([METADATA, *messages_of(STEP)])
    assert looks_like_chakra(content[:4096])
    assert looks_like_chakra(framed([METADATA]))
    assert looks_like_chakra(framed([encoded(1, "0.0.4"), *messages_of(STEP)]))
    # Metadata that are longer than what one looks at; a first node without an id, which protobuf leaves out where it is 0.
    long = METADATA + encoded(2, encoded(1, "command") + encoded(29, "x" * 5000))
    assert looks_like_chakra(framed([long, *messages_of(STEP)])[:4096])
    assert looks_like_chakra(framed([METADATA, encoded(2, "aten::op")]))


@pytest.mark.parametrize(
    "start",
    [
        b"",
        b"\x00",
        b"\x05",
        gzip.compress(b"x" * 100, mtime=0),
        b"SQLite format 3\0" + bytes(100),
        pickle.dumps({"segments": [], "device_traces": []}),
        b'{"schema": "1.0.1", "nodes": []}',
        b"[1, 2, 3]",
        b"\x7fELF" + bytes(60),
        b"\x80" * 20,
        framed([encoded(2, encoded(1, "pid") + encoded(13, 7))]),
        framed([encoded(1, "no version")]),
        framed([METADATA, encoded(3, 4)]),
        framed([METADATA]) + b"\x00",
        framed([METADATA + encoded(3, 1)]),
        framed([METADATA + encoded(3, b"")]),
        framed([messages_of(STEP)[0]]),
    ],
)
def test_other_files_are_not_taken(start: bytes) -> None:
    assert not looks_like_chakra(start)


def test_an_archive_is_not_taken() -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("step.et"))
    assert not looks_like_chakra(stream.getvalue()[:4096])


def test_a_file_is_read_as_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = framed([METADATA, *messages_of(STEP)])
    monkeypatch.setattr(TraceFile, "chunks", lambda _: iter([content[i : i + 1] for i in range(len(content))]))
    piecemeal = [node.name for node in read_nodes(TraceFile(tmp_path / "step.et"))]
    assert piecemeal[:3] == ["aten::linear(0)", "void kernel<float>(float*)", "aten::linear(1)"]
    assert len(piecemeal) == 38


# ---- damage ---------------------------------------------------------------------------------------------------------

CONTENT = framed([METADATA, *messages_of(STEP)])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_gives_a_problem_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(CONTENT)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(1, len(content))))
    path = tmp_path_factory.getbasetemp() / "damaged.et"
    path.write_bytes(bytes(content[:end]))
    looks_like_chakra(bytes(content[:4096]))
    try:
        problem = import_chakra(path, link=PLAIN_LINK, kernel_outputs=data.draw(st.booleans()))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert problem.n_forward >= 1
