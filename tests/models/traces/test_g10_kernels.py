"""G10's kernel lists: what a problem takes from them, and what it refuses."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import MB, MS, PLAIN_LINK, columns
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem, Rebuild, Tensor
from slackswap.models.problem_file import problem_from_json, problem_to_json
from slackswap.models.traces.g10_kernels import DEFAULT_CLOCK_HZ, import_g10, looks_like_g10, looks_like_g10_times

RULE = "____________________________________________________________________"
BERT = "traces/g10/bert_base_b256_a100.kernels.config.gz"
BERT_TIMES = "traces/g10/bert_base_b256_a100.cudnn256.txt"

# Tensors: w is a weight, x an input, a..d activations, ga..gd their gradients, gw the weight's gradient.
SIZES_MB = {
    "w": 5,
    "x": 3,
    "a": 10,
    "b": 20,
    "c": 4,
    "d": 2,
    "gd": 2,
    "gc": 4,
    "gb": 20,
    "ga": 10,
    "gw": 5,
    "m": 1,
    "y": 0,
    "z": 0,
}
NUMBERS = {name: number for number, name in enumerate(SIZES_MB)}


def tensor(name: str) -> str:
    # All at address 0: addresses may be used again, so they say nothing.
    size = SIZES_MB[name] * MB
    return f"tensor{NUMBERS[name]} Is weight (global)?: {int(name == 'w')}, Size in byte: {size}, Range:0--{size}"


def kernel(number: int, name: str, ms: float, reads: str, writes: str, parent: int = 0) -> list[str]:
    return [
        f"Kernel ID: {number}, Name: {name}",
        f"Parent OP ID:{parent}; Name: {name.split('_', maxsplit=1)[0]}",
        f"Execution Time: {round(ms * MS * DEFAULT_CLOCK_HZ)}",
        "Input Tensors:",
        *(tensor(read) for read in reads.split()),
        "Output Tensors:",
        *(tensor(written) for written in writes.split()),
        RULE,
    ]


def listed(*kernels: tuple[str, float, str, str, int]) -> str:
    return "\n".join(itertools.chain(*(kernel(i, *fields) for i, fields in enumerate(kernels)))) + "\n"


# A layer in small. Operators are the kernels but 9, the update:
#
#   0 a = x w   1 b = relu(a)   2 c = sum(b)   3 d = tanh(c) | 4 gd = loss(d)   5 gc = tanh'(c, gd)   6 gb = sum'(gc)
#   7 ga = relu'(a, gb)   8 gw = x ga   9 w += gw   10 gx, here gb again, = ga w
SMALL = (
    ("Linear_Forward", 1, "x w", "a", 10),
    ("ReLU_Forward", 2, "a", "b", 11),
    ("Sum_Forward", 3, "b", "c", 12),
    ("Tanh_Forward", 4, "c", "d", 13),
    ("makeLoss", 0.5, "d", "gd", 13),
    ("Tanh_Backward", 5, "c gd", "gc", 13),
    ("Sum_Backward", 6, "gc", "gb", 12),
    ("ReLU_Backward", 7, "a gb", "ga", 11),
    ("Linear_Backward_Weight", 8, "x ga", "gw", 10),
    ("Linear_Apply_Grad_Weight", 9, "w gw", "w", 10),
    ("Linear_Backward_Input", 10, "ga w", "gb", 10),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "small.kernels.config"


def imported(path: Path, text: str, *, clock_hz: float = DEFAULT_CLOCK_HZ, weight_updates: bool = False) -> Problem:
    path.write_text(text)
    return import_g10(path, link=PLAIN_LINK, clock_hz=clock_hz, weight_updates=weight_updates)


def refusal(path: Path, text: str) -> str:
    with pytest.raises(InputError) as refused:
        imported(path, text)
    message = str(refused.value)
    assert message.startswith(f"{path}: ")
    return message.removeprefix(f"{path}: ")


def test_operators(path: Path) -> None:
    problem = imported(path, listed(*SMALL))
    assert (problem.name, problem.n_forward, problem.n_operators) == ("small", 4, 10)
    assert problem.operator_names[3:5] == ("Tanh_Forward.3", "makeLoss.4")
    assert problem.operator_names[-1] == "Linear_Backward_Input.10"  # the kernel's number, not the operator's
    assert problem.forward_s == pytest.approx((1 + 2 + 3 + 4) * MS)
    assert problem.backward_s == pytest.approx((0.5 + 5 + 6 + 7 + 8 + 10) * MS)
    assert problem.layer.tolist() == list(range(10))
    kinds = [operator.kind for operator in problem.operators()]
    assert (kinds[0], kinds[1], kinds[4], kinds[8]) == ("gemm", "elementwise", "loss", "gemm")


def test_tensors(path: Path) -> None:
    # Saved: a, read by 7; c, read by 5; d, read by the loss, which is backward. b is not: its gradient needs no value.
    # The rebuild of c needs b, which is gone: 1 runs again as well, from a, and b's 20 MB are the workspace meanwhile.
    # The rebuild of a reads the batch and the weight, which stay on the device.
    assert imported(path, listed(*SMALL)).tensors() == [
        Tensor("Linear_Forward.0", 10 * MB, 0, (1, 7), None, Rebuild(1 * MS)),
        Tensor("ReLU_Forward.1", 20 * MB, 1, (2,), None, Rebuild(2 * MS, (0,))),
        Tensor("Sum_Forward.2", 4 * MB, 2, (3, 5), None, Rebuild(5 * MS, (0,), 20 * MB)),
        Tensor("Tanh_Forward.3", 2 * MB, 3, (4,), None, Rebuild(4 * MS, (2,))),
        Tensor("makeLoss.4", 2 * MB, 4, (5,), None, None),
        Tensor("Tanh_Backward.5", 4 * MB, 5, (6,), None, None),
        Tensor("Sum_Backward.6", 20 * MB, 6, (7, 9), None, None),
        Tensor("ReLU_Backward.7", 10 * MB, 7, (8, 9), None, None),
    ]


def test_saved_bytes_are_those_of_activations(path: Path) -> None:
    assert imported(path, listed(*SMALL)).saved_bytes == (10 + 4 + 2) * MB


def test_updates_are_dropped_or_kept(path: Path) -> None:
    problem = imported(path, listed(*SMALL))
    [dropped] = problem.metadata["derivation"]["dropped"]
    assert (dropped["what"], dropped["count"]) == ("weight updates between the backward kernels", 1)
    assert dropped["seconds"] == pytest.approx(9 * MS)
    assert problem.workspace_bytes[8] == 5 * MB  # the weight's gradient
    kept = imported(path, listed(*SMALL), weight_updates=True)
    assert kept.operator_names[9] == "Linear_Apply_Grad_Weight.9"
    assert kept.backward_s == pytest.approx(problem.backward_s + dropped["seconds"])
    assert kept.metadata["derivation"]["dropped"] == []
    assert Tensor("Linear_Backward_Weight.8", 5 * MB, 8, (9,), None, None) in kept.tensors()
    assert kept.saved_bytes == problem.saved_bytes


def test_clock(path: Path) -> None:
    problem = imported(path, listed(*SMALL), clock_hz=2.4e9)
    assert problem.forward_s == pytest.approx(5 * MS)
    assert "2.4 GHz" in problem.metadata["heuristics"][0]
    for wrong in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="clock_hz: a clock is a finite number"):
            imported(path, listed(*SMALL), clock_hz=wrong)


def test_in_place_writers_are_part_of_a_rebuild(path: Path) -> None:
    # 1 adds x to a in place; b reads the sum. Both run again for a; b's rebuild takes a as it is now.
    text = listed(
        ("Linear_Forward", 1, "x w", "a", 0),
        ("Add_Forward", 2, "a x", "a", 1),
        ("ReLU_Forward", 4, "a", "b", 2),
        ("makeLoss", 1, "b", "gb", 2),
        ("Add_MultiGredient", 1, "gb x", "gb", 2),
        ("ReLU_Backward", 1, "a gb", "ga", 2),
        ("Linear_Backward_Weight", 1, "x ga", "gw", 0),
    )
    a, b, gradient, _ = imported(path, text).tensors()
    assert a == Tensor("Linear_Forward.0", 10 * MB, 0, (1, 2, 5), None, Rebuild(3 * MS))
    assert b == Tensor("ReLU_Forward.2", 20 * MB, 2, (3,), None, Rebuild(4 * MS, (0,)))
    assert gradient.readers == (4, 5)  # made by the loss, added to in place


def test_what_no_kernel_writes_is_no_activation(path: Path) -> None:
    # The mask m is recorded as an input of dropout, x is loaded: both stay, though backward kernels read them.
    text = listed(
        ("LoadData_A0", 6, "", "x", 0),
        ("Linear_Forward", 1, "x w", "a", 0),
        ("Dropout_Forward", 1, "a m", "b", 1),
        ("makeLoss", 1, "b", "gb", 1),
        ("Dropout_Backward", 1, "m gb", "ga", 1),
        ("Linear_Backward_Weight", 1, "x ga", "gw", 0),
    )
    problem = imported(path, text)
    assert problem.operator_names[0] == "Linear_Forward.1"
    assert problem.saved_bytes == 20 * MB  # b, which the loss reads
    left_out = " ".join(problem.metadata["left_out"])
    assert "batch, masks, constants): 2 (4.0 MB)" in left_out
    assert "the masks of dropout, which G10 records as inputs: 1.0 MB." in left_out
    assert "The weights stay on the device and do not count: 1 tensors (5.0 MB)." in left_out
    [loading] = problem.metadata["derivation"]["dropped"]
    assert (loading["what"], loading["count"]) == ("loading of the batch", 1)
    assert loading["seconds"] == pytest.approx(6 * MS)


def test_running_statistics_are_no_activation(path: Path) -> None:
    # m is read and written back by the kernel that sees it first, as G10 lists batch normalization.
    text = listed(
        ("BatchNorm2d_Forward", 1, "x m", "a m", 0),
        ("makeLoss", 1, "a", "ga", 0),
        ("BatchNorm2d_Backward", 1, "ga m", "gb", 0),
    )
    assert imported(path, text).saved_bytes == 10 * MB


def test_dead_outputs_are_workspace_of_the_kernel_and_of_its_rebuild(path: Path) -> None:
    text = listed(
        ("BatchNorm2d_Forward", 1, "x", "a b c", 0),
        ("makeLoss", 1, "a", "ga", 0),
        ("BatchNorm2d_Backward", 1, "ga a", "gb", 0),
    )
    problem = imported(path, text)
    assert problem.workspace_bytes.tolist() == [24 * MB, 0, 20 * MB]
    assert problem.tensors()[0].rebuild == Rebuild(1 * MS, (), 24 * MB)


def test_empty_tensors_count_if_they_are_saved(path: Path) -> None:
    # z is empty and saved; y is empty and read in the forward pass only.
    text = listed(
        ("Linear_Forward", 1, "x w", "y z", 0),
        ("ReLU_Forward", 1, "y z", "a", 1),
        ("makeLoss", 1, "a", "ga", 1),
        ("ReLU_Backward", 1, "z ga", "gb", 1),
    )
    problem = imported(path, text)
    assert problem.tensor_names == ("Linear_Forward.0", "ReLU_Forward.1", "makeLoss.2")
    assert problem.tensors()[0] == Tensor("Linear_Forward.0", 0, 0, (1, 3), None, Rebuild(1 * MS))


def test_metadata(path: Path) -> None:
    metadata = imported(path, listed(*SMALL)).metadata
    assert metadata["source"] == "small.kernels.config, a G10 kernel list"
    derivation = metadata["derivation"]
    assert derivation["kind"] == "G10 kernel list"
    assert (derivation["facts"]["times"]["exact"], derivation["facts"]["sizes"]["exact"]) == (10, 3)
    assert derivation["facts"]["rebuild costs"]["by_rule"] == 3
    assert derivation["warnings"] == []  # 36.5 ms backward is less than four times 10 ms


def test_naive_kernels_and_a_cut_list_are_warned_of(path: Path) -> None:
    slow = [(name, ms * (1 + ("Backward" in name)), reads, writes, parent) for name, ms, reads, writes, parent in SMALL]
    [naive] = imported(path, listed(*slow)).metadata["derivation"]["warnings"]
    assert naive.startswith("The backward pass takes 7.2 times as long")  # (0.5 + 2 * 36) / 10 = 7.25
    [cut] = imported(path, listed(*SMALL[:8])).metadata["derivation"]["warnings"]
    assert cut == "No backward kernel belongs to the layer of the first one, Linear_Forward: the list may be cut."


def test_lists_of_convolutional_networks_and_of_forks(path: Path) -> None:
    # Layers instead of operators, a line with the layer's shape, times under page faults, no ranges.
    lines = listed(*SMALL).replace("Parent OP ID:10; Name: Linear", "Parent Layer ID:10; Name:Linear").splitlines()
    lines = [line.split(", Range")[0] for line in lines]
    for extra in ("(256,3,224,224)", "Execution Time (input pf): 17"):
        at = next(i for i, line in enumerate(lines) if line.startswith("Execution Time"))
        lines.insert(at + 1, extra)
    assert columns(imported(path, "\r\n".join(lines))) == columns(imported(path, listed(*SMALL)))


def test_recognized_by_content(path: Path) -> None:
    assert looks_like_g10(listed(*SMALL).encode()[:4096])
    assert not looks_like_g10(b"0000 0.197632 ms\n")
    assert not looks_like_g10(b'{"schema": "Kernel ID: 0, Name: x"}')
    for times in (b"0000 0.197632 ms\n0001 0.2068", b"0000 0.197632 ms", b"0 3 ms\r\n1 4 ms\r\n"):
        assert looks_like_g10_times(times)
    for other in (
        b"",
        b"\n",
        b"0000 0.197632\n",
        b"node1 -- Input0 -- forward_compute_time=0.000\n",
        listed(*SMALL).encode(),
    ):
        assert not looks_like_g10_times(other)
    gzipped = path.with_suffix(".config.gz")
    gzipped.write_bytes(gzip.compress(listed(*SMALL).encode()))
    assert import_g10(gzipped, link=PLAIN_LINK).name == "small"


def test_times_alone_are_refused(path: Path) -> None:
    message = refusal(path, "0000 0.197632 ms\n0001 0.206848 ms\n")
    assert message == (
        "holds the times of G10's kernels only, not their names, tensors and passes: give the kernels.config that G10 writes"
        " from it (into the folder statistics/ of its output)"
    )


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Name: Sum_Forward", "Name: Sum", "line 18: the name of kernel 'Sum' does not say which pass it belongs to"),
        ("Name: Sum_Backward", "Name: Sum_Backwards", "line 51: the name of kernel 'Sum_Backwards' does not say"),
        ("Name: Sum_Backward", "Name: Sum_Forward", "line 51: Sum_Forward stands after makeLoss of line 34: a list holds one"),
        ("Name: makeLoss", "Name: Apply_Grad", "line 34: Apply_Grad stands before the first backward kernel"),
        ("Kernel ID: 2,", "Kernel ID: 3,", "line 18: kernels are numbered from 0 without gaps, and here stands not 'Kernel"),
        ("Execution Time: 2400000\n", "", "line 10: kernel 1, ReLU_Forward, has no execution time"),
        ("Execution Time: 2400000", "Execution Time: -1", "line 12: is not a line before the tensors of a kernel, but 'Exec"),
        ("Execution Time: 2400000", "Execution Time: 1e6", "line 12: is not a line before the tensors of a kernel"),
        ("Size in byte: 4000000,", "Size in byte: -1,", "line 24: is not 'tensorN Is weight (global)?: 0 or 1"),
        ("Size in byte: 4000000,", f"Size in byte: {1 << 61},", "line 24: a size is at most 1152921504606846976 bytes, not"),
        ("(global)?: 1, Size", "(global)?: 0, Size", "line 81: states tensor0 with another size or another kind than line 6"),
        ("byte: 4000000,", "byte: 4000001,", "line 30: states tensor4 with another size or another kind than line 24"),
        ("Output Tensors:\ntensor4 ", "tensor4 ", "line 18: kernel 2, Sum_Forward, has no list of output tensors"),
        (f"{RULE}\nKernel ID: 1,", "Kernel ID: 1,", "line 9: is not 'tensorN Is weight (global)?"),
    ],
)  # fmt: skip
def test_malformed_lists_are_refused(path: Path, old: str, new: str, message: str) -> None:
    text = listed(*SMALL)
    assert old in text
    assert refusal(path, text.replace(old, new, 1)).startswith(message)


def test_one_pass_alone_is_refused(path: Path) -> None:
    assert refusal(path, listed(*SMALL[:4])).startswith(
        "has no backward kernel: without them, nothing says what is saved"
    )
    assert refusal(path, listed(*SMALL[4:8])) == "has no forward kernel"
    assert refusal(path, "Layer ID:0; Name:Conv2d\n").startswith("is no G10 kernel list: it does not begin with")


def test_two_steps_are_refused(path: Path) -> None:
    assert "one backward pass; cut out one step" in refusal(path, listed(*SMALL, *SMALL))


def test_torn_lists_are_refused(path: Path) -> None:
    text = listed(*SMALL)
    at = text.index("Kernel ID: 7,")
    assert refusal(path, text[: at + 60]).startswith(
        "line 60: ends within kernel 7, before its line of underscores: the file is"
    )


def refused_or_valid(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    looks_like_g10(content[:4096])
    looks_like_g10_times(content[:4096])
    try:
        problem = import_g10(path, link=PLAIN_LINK)
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
        assert len(str(error).splitlines()) == 1
        return
    assert columns(problem_from_json(problem_to_json(problem))) == columns(problem)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
def test_damaged_lists_are_refused_or_valid(path: Path, data: st.DataObject) -> None:
    content = bytearray(listed(*SMALL).encode())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
        content[at] = data.draw(st.integers(0, 255))
    refused_or_valid(path, bytes(content[: data.draw(st.integers(0, len(content)))]))


def test_bert_has_the_published_numbers() -> None:
    problem = import_g10(shared_file(BERT), link=PLAIN_LINK)
    assert (problem.name, problem.n_forward) == ("bert_base_b256_a100", 477)
    [updates] = problem.metadata["derivation"]["dropped"]
    assert problem.n_operators + updates["count"] == 1369
    assert problem.forward_s == pytest.approx(0.744, abs=0.0005)
    assert problem.backward_s + updates["seconds"] == pytest.approx(6.542, abs=0.0005)
    assert problem.saved_bytes == pytest.approx(33.3e9, rel=0.002)
    assert int(problem.saved.sum()) == 263
    assert problem.rebuildable[problem.saved].all()
    assert "takes 8.7 times as long" in problem.metadata["derivation"]["warnings"][0]


def test_bert_cycles_are_the_measured_milliseconds() -> None:
    # The list was written from the file of times: the same numbers at 1.2 GHz, cut to whole cycles.
    problem = import_g10(shared_file(BERT), link=PLAIN_LINK, weight_updates=True)
    measured_ms = [float(line.split()[1]) for line in shared_file(BERT_TIMES).read_text().splitlines()]
    assert (problem.duration_s * 1e3).tolist() == pytest.approx(measured_ms, abs=1.01e3 / DEFAULT_CLOCK_HZ)
    assert problem.backward_s == pytest.approx(6.542, abs=0.0005)


def test_bert_readers_are_those_of_the_list() -> None:
    # tensor20, the difference of the first normalization, is read by kernels 7 and 12; tensor35, its deviation, by 12.
    problem = import_g10(shared_file(BERT), link=PLAIN_LINK)
    forward = {name: problem.readers_of(t).tolist() for t, name in enumerate(problem.tensor_names)}
    assert forward["Subtract_Forward.6"][:2] == [7, 12]
    assert forward["Sqrt_Forward.11"][0] == 12


def test_bert_times_are_recognized_and_refused() -> None:
    times = shared_file(BERT_TIMES)
    assert looks_like_g10_times(times.read_bytes()[:4096])
    with pytest.raises(InputError, match=r"cudnn256\.txt: holds the times of G10's kernels only"):
        import_g10(times, link=PLAIN_LINK)
