"""One step of a Kineto trace: which one is taken, its two passes, and which device work belongs to them."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from handwritten_kineto import (
    ENGINE_THREAD,
    MAIN_THREAD,
    PROCESS,
    US,
    Call,
    Recording,
    annotation,
    backward,
    conv_net,
    dropped_by,
    every_call,
    imported,
    iteration_of,
    recorded,
    refused,
    saved_sizes,
    warnings_of,
)
from instances import PLAIN_LINK

from slackswap.models.traces import import_traces
from slackswap.models.traces.pytorch.kineto_step import choose_step, survey_kineto
from slackswap.models.traces.trace_file import as_trace_file

FORWARD_US, BACKWARD_US = 350, 615  # of conv_net


# ---- which step -----------------------------------------------------------------------------------------------------


def steps(*numbers: int, last_is_torn: bool = False) -> Recording:
    """Steps of `number` times the microseconds of conv_net; sequence numbers go on."""
    recording = Recording()
    for i, number in enumerate(numbers):
        calls = conv_net(sequence=4 * i)
        for call in every_call(calls):
            call.kernels = [(name, us * number) for name, us in call.kernels]
        if last_is_torn and i == len(numbers) - 1:
            calls = calls[:4]
        recording.add(annotation(f"ProfilerStep#{number}", *calls))
    return recording


def test_the_last_step_with_both_passes_is_taken_and_said(tmp_path: Path) -> None:
    problem = imported(steps(3, 4, 5, last_is_torn=True), tmp_path)
    assert problem.metadata["step"] == "ProfilerStep#4"
    assert (problem.forward_s, problem.backward_s) == pytest.approx((4 * FORWARD_US * US, 4 * BACKWARD_US * US))
    assert "The trace holds 2 training steps; taken: ProfilerStep#4." in warnings_of(problem)
    assert saved_sizes(problem) == {2048: 1, 4096: 1}


@pytest.mark.parametrize("name", ["3", "ProfilerStep#3"])
def test_another_step_may_be_asked_for(tmp_path: Path, name: str) -> None:
    problem = imported(steps(3, 4, 5), tmp_path, step=name)
    assert problem.forward_s == pytest.approx(3 * FORWARD_US * US)


@pytest.mark.parametrize("name", ["6", "4", "Step#3"])
def test_a_step_that_is_not_there_or_of_no_use_is_refused(tmp_path: Path, name: str) -> None:
    said = refused(steps(3, 5, 4, last_is_torn=True), tmp_path, step=name)
    assert f"{name}: has no training step of this name; usable: ProfilerStep#3, ProfilerStep#5" in said


def test_a_trace_of_torn_steps_is_refused(tmp_path: Path) -> None:
    calls = conv_net()
    recording = recorded(annotation("ProfilerStep#1", *calls[:4]), annotation("ProfilerStep#2", *calls[4:]))
    assert "none of its 2 steps holds a forward and a backward pass" in refused(recording, tmp_path)


def test_markers_of_the_device_are_none(tmp_path: Path) -> None:
    """``gpu_user_annotation`` repeats the names, with the times of the device: later, here past the last step."""
    recording = steps(3, 4)
    for marker in recording.named("ProfilerStep#3") + recording.named("ProfilerStep#4"):
        recording.events.append({**marker, "cat": "gpu_user_annotation", "tid": 7, "ts": marker["ts"] - 50, "dur": 9e5})
    file = as_trace_file(recording.write(tmp_path))
    assert [step.name for step in survey_kineto(file).steps()] == ["ProfilerStep#3", "ProfilerStep#4"]
    assert imported(recording, tmp_path).forward_s == pytest.approx(4 * FORWARD_US * US)


def test_a_step_that_starts_where_the_one_before_ends_does_not_mix_with_it(tmp_path: Path) -> None:
    recording = Recording()
    for number in (3, 4):  # no gap between them, as in whole microseconds
        recording.add(annotation(f"ProfilerStep#{number}", *conv_net(sequence=4 * number)))
        recording.clock_us -= 1
    for name in ("3", "4"):
        read = iteration_of(recording, tmp_path, name)
        assert (len(read.iteration.forward), len(read.iteration.backward)) == (4, 4)
        assert read.iteration.step == f"ProfilerStep#{name}"


OPTIMIZER = Call("aten::add_", kernels=[("optimizer_kernel", 7)])


def between_optimizers(n: int, marker: str) -> Recording:
    recording = Recording()
    for i in range(n):
        aside = annotation(marker, OPTIMIZER)
        before = [aside] if "zero_grad" in marker else []
        recording.add(*before, *conv_net(sequence=4 * i), *([] if before else [aside]))
    return recording


@pytest.mark.parametrize(
    ("marker", "aside"),
    [
        ("Optimizer.step#SGD.step", "optimizer"),
        ("Optimizer.zero_grad#SGD.zero_grad", "zeroing of gradients"),
    ],
)
def test_without_step_markers_the_optimizer_ends_a_step(tmp_path: Path, marker: str, aside: str) -> None:
    recording = between_optimizers(3, marker)
    problem = imported(recording, tmp_path)
    assert (problem.n_forward, problem.n_operators) == (4, 8)
    assert problem.metadata["step"] == "#2 of 3 between optimizer calls"
    assert (problem.forward_s, problem.backward_s) == pytest.approx((FORWARD_US * US, BACKWARD_US * US))
    assert dropped_by(problem)[aside] == (1, pytest.approx(7))
    first = imported(recording, tmp_path, step="0")
    assert first.metadata["step"] == "#0 of 3 between optimizer calls"
    assert (first.n_forward, first.n_operators) == (4, 8)


def test_what_follows_the_last_optimizer_call_is_no_step_unless_it_trains(tmp_path: Path) -> None:
    recording = between_optimizers(2, "Optimizer.step#SGD.step").add(*conv_net(sequence=8)[:4])
    file = as_trace_file(recording.write(tmp_path))
    assert choose_step(survey_kineto(file), "t").name == "#1 of 2 between optimizer calls"


def test_markers_of_2021_are_operators(tmp_path: Path) -> None:
    recording = steps(3, 4)
    for item in recording.events:
        item["cat"] = {
            "cpu_op": "Operator",
            "user_annotation": "Operator",
            "kernel": "Kernel",
            "cuda_runtime": "Runtime",
        }[item["cat"]]
        item["tid"] = str(item["tid"])  # and thread ids are in quotes
    problem = imported(recording, tmp_path)
    assert problem.metadata["step"] == "ProfilerStep#4"
    assert (problem.n_forward, problem.n_operators) == (4, 8)
    assert problem.forward_s == pytest.approx(4 * FORWARD_US * US)


# ---- the two passes -------------------------------------------------------------------------------------------------


def test_the_backward_pass_is_known_by_marks_not_by_names(tmp_path: Path) -> None:
    x = [2, 4, 8, 8]
    calls = [
        Call("aten::max_pool2d_with_indices_backward", [x], sequence=0),  # in the forward pass of a model
        Call("MyLossBackwards", [x], sequence=1),
        backward("SumBackward0", x, 1),
        Call(
            "aten::ones_like", [x], forward_thread=0, thread=ENGINE_THREAD
        ),  # what the engine's thread does belongs to it
    ]
    read = iteration_of(calls, tmp_path)
    assert [root.node.name for root in read.iteration.forward] == [call.name for call in calls[:2]]
    assert len(read.iteration.backward) == 1
    assert read.iteration.dropped == 1  # after the last backward call


def test_nodes_of_2021_have_no_engine_call_around_them(tmp_path: Path) -> None:
    """Bare names, and a forward thread: 0 is the mark of a call that is not of the backward pass."""
    calls = conv_net()
    bare = [call.children[0] for call in calls[4:]]
    for call in calls[:4]:
        call.forward_thread = 0
    names = ["MseLossBackward", "CudnnConvolutionBackward", "ReluBackward1", "CudnnConvolutionBackward"]
    for call, name in zip(bare, names, strict=True):
        call.name = name
    problem = imported(calls[:4] + bare, tmp_path)
    assert (problem.n_forward, problem.n_operators) == (4, 8)
    assert saved_sizes(problem) == {2048: 1, 4096: 1}
    for call in bare:
        call.forward_thread = 0
    assert "has no backward pass" in refused(calls[:4] + bare, tmp_path)


def test_both_passes_may_run_on_one_thread(tmp_path: Path) -> None:
    alone = imported(conv_net(thread=MAIN_THREAD), tmp_path)
    assert alone.operators() == imported(conv_net(), tmp_path).operators()
    assert alone.tensors() == imported(conv_net(), tmp_path).tensors()


def test_gradient_accumulation_is_refused(tmp_path: Path) -> None:
    assert "several backward passes" in refused(conv_net() + conv_net(sequence=4), tmp_path)


def test_two_ranks_in_one_file_are_refused(tmp_path: Path) -> None:
    recording = recorded(*conv_net())
    for item in [item for item in recording.events if item["tid"] == ENGINE_THREAD]:
        recording.events.append({**item, "pid": PROCESS + 1})
    assert "holds the passes of several processes: give the trace of one rank" in refused(recording, tmp_path)


def test_a_forward_pass_alone_has_sequence_numbers_too(tmp_path: Path) -> None:
    assert "has no backward pass" in refused(conv_net()[:4], tmp_path)


def test_an_empty_trace_says_so(tmp_path: Path) -> None:
    assert "records no calls: it is empty" in refused(Recording(), tmp_path)
    kernels = recorded(Call("aten::relu", kernels=[("k", 5)]))
    kernels.events = [item for item in kernels.events if item["cat"] == "kernel"]
    assert "records no calls: it is empty" in refused(kernels, tmp_path)


# ---- device work ----------------------------------------------------------------------------------------------------


def test_kernels_belong_to_their_launch_however_late_and_in_whatever_order(tmp_path: Path) -> None:
    """In conv_net kernels run in the opposite order of their launches, half a second later: in no call at all."""
    problem = imported(conv_net(), tmp_path)
    assert problem.duration_s.tolist() == pytest.approx([us * US for us in (100, 20, 200, 30, 40, 400, 25, 150)])


def test_kernels_of_another_step_that_run_meanwhile_are_orphans(tmp_path: Path) -> None:
    recording = steps(3, 4)
    start_us = recording.named("ProfilerStep#4")[0]["ts"]
    kernels = [item for item in recording.events if item["cat"] == "kernel"]
    kernels[0]["ts"] = start_us + 5  # of step 3, 300 us long
    recording.events.append({"ph": "X", "cat": "kernel", "name": "unknown", "ts": start_us + 6, "dur": 11})
    problem = imported(recording, tmp_path)
    assert problem.forward_s == pytest.approx(4 * FORWARD_US * US)
    assert dropped_by(problem) == {
        "device work that ran meanwhile, launched outside of the step or before the recording": (2, pytest.approx(311))
    }


def test_external_ids_find_the_call_where_the_launch_is_missing(tmp_path: Path) -> None:
    recording = recorded(*conv_net())
    loss = recording.named("aten::mse_loss")[0]["args"]["External id"]
    for key in ("External id", "external id"):  # the second in 2021
        recording.events.append({"ph": "X", "cat": "kernel", "name": "k", "ts": 5, "dur": 4, "args": {key: loss}})
    assert imported(recording, tmp_path).duration_s[3] == pytest.approx(38 * US)


def test_external_ids_that_are_correlation_ids_mislead_nobody(tmp_path: Path) -> None:
    """A kernel of another step, whose external id names a call of this one."""
    recording = steps(3, 4)
    kernel = next(item for item in recording.events if item["cat"] == "kernel")
    kernel["args"]["External id"] = recording.named("aten::mse_loss")[1]["args"]["External id"]
    assert imported(recording, tmp_path).duration_s[3] == pytest.approx(4 * 30 * US)


def test_kernels_that_no_call_launched_are_said(tmp_path: Path) -> None:
    """A hand-written kernel that an annotation around calls launches itself has no operator."""
    own = annotation("fused part", *conv_net()[:4])
    own.us, own.kernels = 5, [("triton_kernel", 90)]
    problem = imported([own, *conv_net()[4:]], tmp_path)
    assert problem.forward_s == pytest.approx(FORWARD_US * US)
    assert dropped_by(problem) == {
        "device work launched outside of any call (hand-written kernels)": (1, pytest.approx(90))
    }


def test_an_annotation_that_is_all_there_is_of_a_kernel_is_an_operator(tmp_path: Path) -> None:
    own = annotation("my_kernel")
    own.us, own.kernels = 5, [("triton_kernel", 90)]
    problem = imported([own, *conv_net()], tmp_path)
    assert problem.operator_names[0] == "my_kernel.0"
    assert problem.duration_s[0] == pytest.approx(90 * US)


def test_a_device_without_kernels_is_refused(tmp_path: Path) -> None:
    """The times of CPU calls say nothing about the device: a step whose kernels are not there has no times."""
    recording = steps(3, 4)
    last_us = recording.named("ProfilerStep#4")[0]["ts"]
    launches = {
        item["args"]["correlation"]
        for item in recording.events
        if item["cat"] == "cuda_runtime" and item["ts"] > last_us
    }
    recording.events = [
        item for item in recording.events if item["cat"] != "kernel" or item["args"]["correlation"] not in launches
    ]
    assert "holds no kernels of ProfilerStep#4, but the model ran on a device" in refused(recording, tmp_path)
    assert imported(recording, tmp_path, step="3").forward_s == pytest.approx(3 * FORWARD_US * US)


# ---- what writers do with numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(str, id="times in quotes"),
        pytest.param(lambda ts: round(ts + 1.7e15, 3), id="absolute times beyond 2 ** 50"),
        pytest.param(lambda ts: ts - 1e9, id="negative times"),
    ],
)
def test_times_may_be_written_in_many_ways(tmp_path: Path, change: Any) -> None:
    recording = steps(3, 4)
    for item in recording.events:
        item["ts"] = change(item["ts"])
    problem = imported(recording, tmp_path)
    assert (problem.n_forward, problem.n_operators) == (4, 8)
    assert problem.forward_s == pytest.approx(4 * FORWARD_US * US)
    assert saved_sizes(problem) == {2048: 1, 4096: 1}


def test_the_unit_of_display_is_not_that_of_times(tmp_path: Path) -> None:
    path = recorded(*conv_net()).write(tmp_path)
    path.write_bytes(
        path.read_bytes().replace(b"{", b'{"displayTimeUnit": "ns", "baseTimeNanoseconds": 1700000000, ', 1)
    )
    assert import_traces([path], link=PLAIN_LINK).forward_s == pytest.approx(FORWARD_US * US)


def test_correlation_ids_may_be_as_large_as_64_bits_and_more(tmp_path: Path) -> None:
    recording = recorded(*conv_net())
    for item in recording.events:
        if "correlation" in item["args"]:
            item["args"]["correlation"] += 2**64 - 500
    assert imported(recording, tmp_path).forward_s == pytest.approx(FORWARD_US * US)


def test_events_may_lack_what_others_have(tmp_path: Path) -> None:
    recording = recorded(*conv_net())
    del recording.named("aten::relu_")[0]["dur"]  # then it has no length, and its launch no operator
    recording.events += [
        {"ph": "X", "cat": "overhead", "name": "Unrecognized"},
        {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
        {"ph": "i", "name": "[memory]", "pid": PROCESS, "tid": MAIN_THREAD, "ts": 3},
        {"ph": "X", "cat": "kernel", "name": "k"},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 3},
        {"ph": "X", "cat": "cpu_op", "ts": 1e9},
    ]
    problem = imported(recording, tmp_path)
    assert problem.forward_s == pytest.approx((FORWARD_US - 20) * US)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"ts": None}, "$.traceEvents[0].ts: is a finite number of microseconds, not 'None'"),
        ({"ts": "1e999"}, "$.traceEvents[0].ts"),
        ({"dur": -1}, "$.traceEvents[0].dur: a duration is not negative"),
        ({"pid": []}, "$.traceEvents[0].pid"),
        ({"args": []}, "$.traceEvents[0].args"),
        ({"args": {"correlation": {}}}, "$.traceEvents[0].args.correlation"),
    ],
)
def test_values_that_are_none_are_named(tmp_path: Path, change: Any, place: str) -> None:
    recording = recorded(*conv_net())
    recording.events[0].update(change)
    assert place in refused(recording, tmp_path)


# ---- size -----------------------------------------------------------------------------------------------------------


def write_large(path: Path, n_steps: int, padding_bytes: int) -> int:
    """Write steps of conv_net whose events carry call stacks; return the bytes of one."""
    written = 0
    with path.open("wb") as file:
        file.write(b'{"traceEvents": [\n')
        stack = json.dumps("x" * padding_bytes)
        for i in range(n_steps):
            recording = Recording(clock_us=i * 1e7)
            recording.add(annotation(f"ProfilerStep#{i}", *conv_net(sequence=4 * i)))
            for item in recording.events:
                if "correlation" in item["args"]:
                    item["args"]["correlation"] += 1000 * i
                text = json.dumps(item)
                written += file.write(re.sub(r"\}\}$", f', "Call stack": {stack}}}}}', text).encode() + b",\n")
        file.write(b"{}]}")
    return written // n_steps


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """60 MB in 20 steps of 3 MB: one step is kept, and of that only what is used."""
    path = tmp_path / "large.json"
    step_bytes = write_large(path, 20, 100_000)
    assert path.stat().st_size > 55e6
    import_traces([write_small(tmp_path)], link=PLAIN_LINK)  # what is compiled and imported once does not count
    tracemalloc.start()
    problem = import_traces([path], link=PLAIN_LINK)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert problem.metadata["step"] == "ProfilerStep#19"
    assert (problem.n_forward, problem.n_operators) == (4, 8)
    assert problem.forward_s == pytest.approx(FORWARD_US * US)
    assert peak_bytes < 3 * step_bytes


def write_small(folder: Path) -> Path:
    return recorded(*conv_net()).write(folder)
