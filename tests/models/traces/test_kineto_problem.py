"""A Kineto trace alone becomes a problem: worked out by hand, what is declared, what is refused, and damaged bytes."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from handwritten_kineto import (
    US,
    Call,
    annotation,
    backward,
    conv_net,
    dropped_by,
    every_call,
    imported,
    recorded,
    refused,
    saved,
    saved_sizes,
    warnings_of,
)
from hypothesis import given
from hypothesis import strategies as st
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.pytorch.kineto_problem import import_kineto
from slackswap.models.traces.recorded import recorded_trace_paths

HTOD = "Memcpy HtoD (Pageable -> Device)"
X = [4, 16]


# ---- one problem, by hand -------------------------------------------------------------------------------------------


def test_a_step_becomes_a_problem(tmp_path: Path) -> None:
    problem = import_kineto(recorded(*conv_net()).write(tmp_path), link=PLAIN_LINK)
    assert problem.name == "step"
    assert problem.operator_names == (
        *("conv2d.0", "relu_.1", "conv2d.2", "mse_loss.3"),
        *("MseLossBackward0.4", "ConvolutionBackward0.5", "ReluBackward0.6", "ConvolutionBackward0.7"),
    )
    assert problem.n_forward == 4
    a, b = problem.tensors()
    assert (a.bytes, a.producer, a.readers) == (2048, 0, (1, 2, 5, 6))
    assert a.rebuild is not None
    assert a.rebuild.duration_s == pytest.approx(120 * US)  # conv2d and relu_
    assert a.rebuild.inputs == ()
    assert (b.bytes, b.producer, b.readers) == (4096, 2, (3, 4))
    assert b.rebuild is not None
    assert b.rebuild.duration_s == pytest.approx(200 * US)
    assert b.rebuild.inputs == (0,)
    kinds = [operator.kind for operator in problem.operators()]
    assert kinds == [
        "convolution",
        "elementwise",
        "convolution",
        "loss",
        "loss",
        "convolution",
        "elementwise",
        "convolution",
    ]
    # The loss dies in the call that makes it. Backward operators hold the gradient that they read, and one as large as each
    # activation that their call read: the loss 4 + 4096, the second convolution 4096 + 2048, relu 2048 + 2048, the first
    # convolution 2048 (its input takes none).
    assert [operator.workspace_bytes for operator in problem.operators()] == [0, 0, 0, 4, 4100, 6144, 4096, 2048]


def test_what_was_derived_and_how_is_declared(tmp_path: Path) -> None:
    problem = imported(conv_net(), tmp_path)
    assert problem.metadata["source"] == ["step.pt.trace.json"]
    assert problem.metadata["gpu"] == "Toy GPU"
    assert problem.metadata["step"] == "the whole file"
    derivation = problem.metadata["derivation"]
    counts = {name: (fact["exact"], fact["by_rule"], fact["unknown"]) for name, fact in derivation["facts"].items()}
    assert counts == {
        "order": (8, 0, 0),
        "times": (8, 0, 0),
        "sizes": (0, 2, 0),
        "producers": (0, 2, 0),
        "readers": (0, 2, 0),
        "first backward use": (0, 2, 0),
        "rebuild costs": (0, 2, 0),
    }
    assert "4 of 4 are linked" in derivation["facts"]["first backward use"]["how"]
    assert derivation["kind"] == "Kineto trace"
    assert (derivation["dropped"], derivation["warnings"]) == ([], [])


def test_rules_find_what_the_recorded_execution_trace_holds() -> None:
    """The small GPT that ships with the project was recorded both ways: all but a few bytes agree, tensor by tensor."""
    pair = recorded_trace_paths()
    kineto = next(path for path in pair if "kineto" in path.name)
    exact = import_traces(pair, link=PLAIN_LINK)
    by_rule = import_traces([kineto], link=PLAIN_LINK)
    missing = Counter(saved(exact)) - Counter(saved(by_rule))
    # What autograd has no node for: position numbers, the weight of the loss, and the 1.0 that starts the backward pass.
    assert {(name.partition(".")[0], size) for name, size, _ in missing} == {
        ("arange", 1024),
        ("cross_entropy_loss", 4),
        ("ones_like", 4),
    }
    assert Counter(saved(by_rule)) - Counter(saved(exact)) == Counter()
    assert by_rule.duration_s.tolist() == exact.duration_s.tolist()

    def readers(problem: Problem) -> Counter[tuple[int, ...]]:
        return Counter(tensor.readers for t, tensor in enumerate(problem.tensors()) if problem.saved[t])

    # Readers in both passes, which are guessed by shape, are the same as well, but for the first shortcut: what it adds to is
    # no sum, but a sum's dropout.
    assert readers(by_rule) - readers(exact) == {(5, 415): 1}
    assert (5, 19, 415) in readers(exact)


def test_on_a_cpu_calls_take_their_own_time(tmp_path: Path) -> None:
    calls = conv_net()
    for call in every_call(calls):
        call.kernels = ()
    problem = imported(calls, tmp_path)
    # Forward calls take 10 us; backward ones 2 us and the node in them 2 us.
    assert problem.duration_s.tolist() == pytest.approx([10 * US] * 4 + [4 * US] * 4)
    assert problem.metadata["derivation"]["kind"] == "Kineto trace of a CPU"


def test_numbered_annotations_are_blocks(tmp_path: Path) -> None:
    calls = conv_net()
    problem = imported([annotation("layers.0", *calls[:2]), annotation("layers.1", *calls[2:4]), *calls[4:]], tmp_path)
    assert problem.operator_names[2] == "layers.1/conv2d.2"
    # a leaves its block; b is made and read in the second.
    assert [tensor.block for tensor in problem.tensors()] == [None, 1]


# ---- copies and communication ---------------------------------------------------------------------------------------


def with_input(*kernels: tuple[str, float]) -> list[Call]:
    """conv_net whose input comes from the host in the step: 2x3x8x8 floats are 1,536 bytes."""
    x = [2, 3, 8, 8]
    copy = Call("aten::copy_", [x, x], kernels=kernels)
    return [Call("aten::to", [x], children=[copy]), *conv_net()]


@pytest.mark.parametrize(
    "name", [HTOD, "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Host -> Device)", "CopyHostToDevice"]
)
def test_copies_from_the_host_take_no_time_and_cannot_be_repeated(tmp_path: Path, name: str) -> None:
    recording = recorded(*with_input((name, 70)))
    for item in recording.named(name):
        item["cat"] = "gpu_memcpy"
    problem = imported(recording, tmp_path)
    assert problem.duration_s[0] == 0
    x = problem.tensors()[0]
    # What came from the host is an activation: the first convolution's backward pass reads it again.
    assert (x.bytes, x.producer, x.readers, x.rebuild) == (1536, 0, (1, 8), None)
    assert dropped_by(problem) == {"copies between host and device": (1, pytest.approx(70))}
    assert problem.metadata["derivation"]["facts"]["rebuild costs"]["unknown"] == 1
    # Nor can the first convolution's output be rebuilt without it: it is there, as a saved tensor.
    rebuild = problem.tensors()[1].rebuild
    assert rebuild is not None
    assert rebuild.inputs == (0,)


def test_copies_on_the_device_take_time(tmp_path: Path) -> None:
    problem = imported(with_input(("Memcpy DtoD (Device -> Device)", 70)), tmp_path)
    assert problem.duration_s[0] == pytest.approx(70 * US)
    assert saved_sizes(problem) == {2048: 1, 4096: 1}


@pytest.mark.parametrize("by", ["name", "argument"])
def test_communication_takes_no_time_and_cannot_be_repeated(tmp_path: Path, by: str) -> None:
    name = {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "argument": "generic_kernel<4>"}[by]
    calls = conv_net()
    calls[2].kernels = [*calls[2].kernels, (name, 5000)]
    recording = recorded(*calls)
    if by == "argument":
        (kernel,) = [item for item in recording.named(name) if item["cat"] == "kernel"]
        kernel["args"]["Collective name"] = "allreduce"
    problem = imported(recording, tmp_path)
    assert problem.forward_s == pytest.approx(350 * US)
    assert dropped_by(problem) == {"communication (NCCL, RCCL) on its own stream": (1, pytest.approx(5000))}
    assert [tensor.rebuild is None for tensor in problem.tensors()] == [False, True]


# ---- what is not known ----------------------------------------------------------------------------------------------


def with_unknown(kernel_us: float) -> list[Call]:
    """conv_net with a custom operator in it whose backward node no rule knows: its share of 615 us and its own."""
    calls = conv_net()
    custom = Call("MyFunction", [[2, 8, 8, 8]], sequence=9, kernels=[("mine", 5)])
    return [
        *calls[:3],
        custom,
        *calls[3:5],
        backward("MyFunctionBackward", [2, 8, 8, 8], 9, kernel_us=kernel_us),
        *calls[5:],
    ]


def test_a_little_custom_code_is_warned_of(tmp_path: Path) -> None:
    problem = imported(with_unknown(150), tmp_path)  # 150 of 765 us
    assert (
        "No save rule for 'MyFunctionBackward' (1 calls): taken to keep nothing, so A may be too low."
        in warnings_of(problem)
    )
    assert 4096 in saved_sizes(problem)


def test_much_custom_or_compiled_code_is_refused(tmp_path: Path) -> None:
    said = refused(with_unknown(160), tmp_path)  # 160 of 775 us
    assert "has no known saved tensors for 21% of its backward pass" in said
    assert "compiled or custom code ('MyFunctionBackward')" in said
    assert "it holds 10 operators with 1.1 ms of kernels; record with record_shapes=True" in said


def test_without_shapes_only_what_the_allocator_knows_is_offered(tmp_path: Path) -> None:
    calls = [replace(call, shapes=()) for call in conv_net()]
    for call in calls[4:]:
        call.children = [replace(call.children[0], shapes=())]
    assert "is a Kineto trace without shapes" in refused(calls, tmp_path)
    assert "memory events" not in refused(calls, tmp_path)
    calls[0].memory = [(1_000_000, 1)]
    said = refused(calls, tmp_path)
    assert "8 operators with 1.0 ms of kernels, and A = 1.0 MB in 1 tensors by its memory events" in said


def test_recomputation_inside_of_the_backward_pass_is_said(tmp_path: Path) -> None:
    """With checkpointing, forward calls with numbers run inside of a backward one: its time holds them."""
    calls = conv_net()
    again = Call("aten::relu", [[2, 4, 8, 8]], sequence=11, kernels=[("forward_kernel", 20)])
    calls[6] = backward("ReluBackward0", [2, 4, 8, 8], 1, again, kernel_us=25)
    problem = imported(calls, tmp_path)
    assert "Forward calls run inside backward ones (activation checkpointing)" in warnings_of(problem)
    assert problem.duration_s[6] == pytest.approx(45 * US)
    assert "checkpointing" not in warnings_of(imported(conv_net(), tmp_path))


def test_operators_without_time_that_write_are_said(tmp_path: Path) -> None:
    calls = conv_net()
    calls[0].kernels = calls[1].kernels = ()
    said = warnings_of(imported(calls, tmp_path))
    assert "1 of 8 operators take 0 s and yet write 0.0 MB" in said
    assert "1 saved tensors (0.0 MB) cost 0 s to rebuild" in said


def test_the_allocators_device_gives_the_name(tmp_path: Path) -> None:
    calls = conv_net()
    calls[0].memory = [(2048, 1)]
    recording = recorded(*calls)
    recording.named("[memory]")[0]["args"]["Device Id"] = 5
    assert imported(recording, tmp_path).metadata["gpu"] == ""  # there is no name of device 5


# ---- files ----------------------------------------------------------------------------------------------------------


def test_gzip_and_plain_files_give_the_same_problem(tmp_path: Path) -> None:
    plain = imported(conv_net(), tmp_path)
    packed = tmp_path / "packed.json"
    packed.write_bytes(gzip.compress(recorded(*conv_net()).content()))
    assert import_traces([packed], link=PLAIN_LINK).tensors() == plain.tensors()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (b'"aten::mse_loss"', b'"aten::mse_loss<"a">"'),
        (b'"aten::mse_loss"', b'"aten::mse_loss 5""'),
        (b'"aten::mse_loss"', b'"aten::mse_loss C:\\Users\\x"'),
        (b'"aten::mse_loss"', b'"aten::mse_loss \x01\t\xff"'),
        (b'"External id":', b'"memory bandwidth (GB/s)": inf, "External id":'),
    ],
)
def test_what_writers_get_wrong_changes_no_number(tmp_path: Path, right: bytes, wrong: bytes) -> None:
    path = tmp_path / "wrong.json"
    content = json.dumps(json.loads(recorded(*conv_net()).content()), indent=1).encode()
    path.write_bytes(content.replace(right, wrong))
    problem = import_traces([path], link=PLAIN_LINK)
    assert problem.forward_s == pytest.approx(350 * US)
    assert saved_sizes(problem) == {2048: 1, 4096: 1}
    assert problem.operator_names[3].startswith("mse_loss")


def test_torn_and_truncated_files_say_where(tmp_path: Path) -> None:
    content = recorded(*conv_net()).content()
    path = tmp_path / "torn.json"
    path.write_bytes(content[:-100])
    with pytest.raises(InputError, match=f"is truncated JSON: it ends at offset {len(content) - 100} before"):
        import_traces([path], link=PLAIN_LINK)
    packed = gzip.compress(content)
    path.write_bytes(packed[:-100])
    with pytest.raises(InputError, match=f"is torn gzip: the data ends at offset {len(packed) - 100} before"):
        import_traces([path], link=PLAIN_LINK)


TRACE = recorded(annotation("ProfilerStep#1", *[replace(call, memory=[(512, 7)]) for call in conv_net()])).content()
VALUES = list(re.finditer(rb'(?<=: )(-?[\d.]+|"[^"]*"|\[\[.*?\]\])', TRACE))
WRONG = [
    *(
        b"null",
        b"-1",
        b"1e999",
        b"0.5",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b'"x"',
        b"inf",
        b"[[1099511627775, 1099511627775]]",
    ),
    *(
        b"36893488147419103232",
        b'"aten::mm"',
        b'"MmBackward0"',
        b'"kernel"',
        b'"cpu_op"',
        b'"ProfilerStep#2"',
        b"[[[2]]]",
    ),
]


@st.composite
def damaged(draw: Callable[[st.SearchStrategy[int]], int]) -> bytes:
    """The trace with flipped bytes, a lost piece, or values in place of others."""
    content = bytearray(TRACE)
    how = draw(st.integers(0, 3))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        if how == 0 and content:
            content[at] = draw(st.integers(0, 255))
        elif how == 1:
            del content[at : at + draw(st.integers(1, 40))]
        elif how == 2:
            return bytes(content[:at])
    if how < 3:
        return bytes(content)
    value = VALUES[draw(st.integers(0, len(VALUES) - 1))]
    return TRACE[: value.start()] + WRONG[draw(st.integers(0, len(WRONG) - 1))] + TRACE[value.end() :]


@given(damaged())
def test_damage_is_refused_in_one_line_or_leaves_a_problem(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.json"
    path.write_bytes(content)
    try:
        problem = import_traces([path], link=PLAIN_LINK)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        assert str(path) in str(error)
    else:
        assert isinstance(problem, Problem)
        assert 0 < problem.n_forward < problem.n_operators
        assert all(len(entry) == 3 for entry in saved(problem))
