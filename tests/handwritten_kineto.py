"""Writes tiny Kineto traces by hand: calls with shapes laid out one after the other, their launches, kernels and memory."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from instances import PLAIN_LINK

from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.pytorch.kineto_problem import KinetoIteration, read_kineto_iteration
from slackswap.models.traces.pytorch.kineto_step import survey_kineto
from slackswap.models.traces.trace_file import as_trace_file

ENGINE = "autograd::engine::evaluate_function: "
PROCESS, MAIN_THREAD, ENGINE_THREAD = 77, 77, 88
US = 1e-6
Json = dict[str, Any]


@dataclass
class Call:
    """A call of `us` microseconds of its own, in which it launches and allocates, and after that what its children take.

    Attributes
    ----------
    types : of the arguments; all ``float`` where not given
    kernels : (name, microseconds) of the device work that it launches; names in ``Memcpy`` are copies
    memory : (bytes, address) of what the allocator does meanwhile; None for no address
    """

    name: str
    shapes: Sequence[Any] = ()
    types: Sequence[str] | None = None
    us: float = 10
    children: Sequence[Call] = ()
    sequence: int = -1
    forward_thread: int | None = None
    kernels: Sequence[tuple[str, float]] = ()
    memory: Sequence[tuple[int, int | None]] = ()
    thread: int | str = MAIN_THREAD
    category: str = "cpu_op"

    @property
    def duration_us(self) -> float:
        return self.us + sum(child.duration_us for child in self.children)


def annotation(name: str, *children: Call) -> Call:
    return Call(name, children=children, us=0, category="user_annotation")


def backward(
    name: str,
    gradient: Sequence[int],
    sequence: int,
    *children: Call,
    kernel_us: float = 0,
    thread: int | str = ENGINE_THREAD,
    kind: str = "float",
) -> Call:
    """A call of autograd's engine: the node that it evaluates, and what that calls."""
    kernels = [("backward_kernel", kernel_us)] if kernel_us else []
    inside = [replace(child, thread=thread) for child in children]
    node = Call(
        name,
        [list(gradient)],
        [kind],
        us=2,
        children=inside,
        sequence=sequence,
        forward_thread=1,
        kernels=kernels,
        thread=thread,
    )
    return Call(ENGINE + name, us=2, children=[node], sequence=sequence, forward_thread=1, thread=thread)


def every_call(calls: Sequence[Call]) -> list[Call]:
    """Calls, each with those in it."""
    return [inner for call in calls for inner in (call, *every_call(call.children))]


def conv_net(sequence: int = 0, thread: int | str = ENGINE_THREAD) -> list[Call]:
    """Two convolutions with an in-place ReLU between them, loss and backward pass; kernels in microseconds.

    ::

        0 conv2d    100   reads x, writes a, 2x4x8x8 floats = 2048 bytes      4 MseLossBackward0      40   reads b
        1 relu_      20   overwrites a                                        5 ConvolutionBackward0 400   reads a
        2 conv2d    200   reads a, writes b, 2x8x8x8 floats = 4096 bytes      6 ReluBackward0         25   reads a
        3 mse_loss   30   reads b, writes the loss, 4 bytes                   7 ConvolutionBackward0 150   reads x
    """
    x, a, b = [2, 3, 8, 8], [2, 4, 8, 8], [2, 8, 8, 8]

    def calls(name: str, shapes: Sequence[Any], number: int, us: float) -> Call:
        return Call(name, shapes, sequence=sequence + number, kernels=[("forward_kernel", us)])

    return [
        calls("aten::conv2d", [x, [4, 3, 3, 3], [4]], 0, 100),
        calls("aten::relu_", [a], 1, 20),
        calls("aten::conv2d", [a, [8, 4, 3, 3], [8]], 2, 200),
        calls("aten::mse_loss", [b, b], 3, 30),
        backward("MseLossBackward0", [], sequence + 3, kernel_us=40, thread=thread),
        backward("ConvolutionBackward0", b, sequence + 2, kernel_us=400, thread=thread),
        backward("ReluBackward0", a, sequence + 1, kernel_us=25, thread=thread),
        backward("ConvolutionBackward0", a, sequence, kernel_us=150, thread=thread),
    ]


@dataclass
class Recording:
    """Events of a trace in the order of the file; change them at will before writing."""

    events: list[Json] = field(default_factory=list)
    clock_us: float = 0.0

    def add(self, *calls: Call) -> Recording:
        """Lay calls out one after the other, a microsecond apart."""
        for call in calls:
            self._add(call, self.clock_us)
            self.clock_us += call.duration_us + 1
        return self

    def named(self, name: str) -> list[Json]:
        return [event for event in self.events if event["name"] == name]

    def content(self) -> bytes:
        devices = [{"id": 0, "name": "Toy GPU"}]
        return json.dumps({"schemaVersion": 1, "deviceProperties": devices, "traceEvents": self.events}).encode()

    def write(self, folder: Path) -> Path:
        path = folder / "step.pt.trace.json"
        path.write_bytes(self.content())
        return path

    def _add(self, call: Call, start_us: float) -> None:
        number = len(self.events)
        arguments: Json = {"External id": number, "Ev Idx": number}
        if call.shapes:
            types = ["float"] * len(call.shapes) if call.types is None else call.types
            arguments |= {"Input Dims": list(call.shapes), "Input type": list(types)}
        if call.sequence >= 0:
            arguments["Sequence number"] = call.sequence
        if call.forward_thread is not None:
            arguments["Fwd thread id"] = call.forward_thread
        self._event(call.category, call.name, start_us, call.duration_us, call.thread, arguments)
        for nth, (name, kernel_us) in enumerate(call.kernels):
            self._launch(name, kernel_us, start_us + 0.01 * (nth + 1), call.thread)
        for nth, (size_bytes, address) in enumerate(call.memory):
            self.memory(size_bytes, start_us + 0.01 * (nth + 1), address=address, thread=call.thread)
        start_us += call.us
        for child in call.children:
            self._add(child, start_us)
            start_us += child.duration_us

    def _event(self, category: str, name: str, ts: float, dur: float, thread: int | str, arguments: Json) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": category,
                "name": name,
                "pid": PROCESS,
                "tid": thread,
                "ts": ts,
                "dur": dur,
                "args": arguments,
            }
        )

    def _launch(self, name: str, kernel_us: float, launched_us: float, thread: int | str) -> None:
        """A launch, and its work half a second later, in the opposite order: the work's own time must not matter."""
        arguments = {"correlation": len(self.events)}
        self._event("cuda_runtime", "cudaLaunchKernel", launched_us, 0, thread, arguments)
        category = "gpu_memcpy" if name.startswith("Memcpy") else "kernel"
        self._event(category, name, 1e6 - launched_us, kernel_us, 7, dict(arguments))

    def memory(
        self,
        size_bytes: int,
        at_us: float,
        *,
        address: int | None = None,
        device_type: int = 1,
        thread: int | str = MAIN_THREAD,
    ) -> None:
        """What an allocator gave (positive) or took back (negative)."""
        arguments: Json = {"Device Type": device_type, "Device Id": 0, "Bytes": size_bytes}
        if address is not None:
            arguments["Addr"] = address
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "name": "[memory]",
                "pid": PROCESS,
                "tid": thread,
                "ts": at_us,
                "args": arguments,
            }
        )


def recorded(*calls: Call) -> Recording:
    return Recording().add(*calls)


def imported(calls: Sequence[Call] | Recording, folder: Path, **how: Any) -> Problem:
    recording = calls if isinstance(calls, Recording) else recorded(*calls)
    return import_traces([recording.write(folder)], link=PLAIN_LINK, **how)


def iteration_of(calls: Sequence[Call] | Recording, folder: Path, step: str = "") -> KinetoIteration:
    recording = calls if isinstance(calls, Recording) else recorded(*calls)
    file = as_trace_file(recording.write(folder))
    return read_kineto_iteration(file, survey_kineto(file), step)


def refused(calls: Sequence[Call] | Recording, folder: Path, **how: Any) -> str:
    with pytest.raises(InputError) as caught:
        imported(calls, folder, **how)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def saved(problem: Problem) -> list[tuple[str, int, str]]:
    """Producer, bytes and first backward reader of each saved tensor."""
    names = problem.operator_names
    return [
        (
            names[problem.producer[t]],
            int(problem.tensor_bytes[t]),
            names[problem.first_backward_reader[t]],
        )
        for t in np.flatnonzero(problem.saved)
    ]


def saved_sizes(problem: Problem) -> Counter[int]:
    return Counter(size for _, size, _ in saved(problem))


def warnings_of(problem: Problem) -> str:
    return "\n".join(problem.metadata["derivation"]["warnings"])


def dropped_by(problem: Problem) -> dict[str, Any]:
    """Count and microseconds of what the problem leaves out."""
    return {item["what"]: (item["count"], item["seconds"] / US) for item in problem.metadata["derivation"]["dropped"]}
