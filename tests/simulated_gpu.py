"""A GPU whose numbers are known: what `calibration.measure` has to recover from noisy times, and a stand-in for torch.cuda."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

from slackswap.hardware.calibration import Sizes
from slackswap.hardware.calibration_device import (
    AttentionShape,
    ConvolutionShape,
    Direction,
    GemmShape,
    Work,
)
from slackswap.hardware.catalog import Hardware
from slackswap.hardware.gpu import DTYPE_BYTES, Gpu
from slackswap.hardware.link import Link
from slackswap.hardware.roofline import (
    attention_backward_s,
    attention_forward_s,
    convolution_s,
    gemm_s,
    memory_bound_s,
)

# No two numbers alike, so that none passes for another.
LAB = Hardware(
    "lab",
    Gpu("Lab GPU", {"fp16": 100e12}, 0.71, 0.53, 0.37, 0.46, 0.83, 1e12, 4e-6, 24 * 10**9),
    Link(21e9, 24e9, duplex_factor=0.8, latency_s=7e-6),
)
TINY = Sizes(
    gemm=(GemmShape(256, 256, 256),),
    attention=(AttentionShape(2, 2, 128, 32),),
    convolution=(ConvolutionShape(2, 16, 24),),
    memory_bytes=(1 << 22,),
    launches=(50, 200),
    copy_bytes=(1 << 16, 1 << 22),
    duplex_bytes=1 << 20,
)


class SimulatedGpu:
    """Times by the roofline and by the event model's rule 4; each timing is off by noise, and a few are disturbed."""

    software = "torch 0.0, CUDA 0.0, driver 0.0"

    def __init__(self, hardware: Hardware, *, name: str = "", noise: float = 0.0, disturbed: float = 0.0) -> None:
        self.hardware, self.name = hardware, name or hardware.gpu.name
        self.dtype = next(dtype for dtype in DTYPE_BYTES if dtype in hardware.gpu.peak_flops_per_s)
        self.memory_bytes = hardware.gpu.memory_bytes
        self.noise, self.disturbed = noise, disturbed
        self.timed_s = 0.0  # of all timings
        self._random = random.Random(7)
        self._clock_s = 0.0

    def elapsed_s(self, work: Work, count: int) -> float:
        start_s = self._clock_s
        for _ in range(count):
            work()
        return self._timed(self._clock_s - start_s)

    def together_s(self, works: Sequence[tuple[Work, int]]) -> float:
        left_s = [self._alone_s(work, count) for work, count in works]
        share = self.hardware.link.duplex_factor
        clock_s = 0.0
        while any(left_s):
            rate = share if all(left_s) and len(left_s) == 2 else 1.0
            step_s = min(seconds for seconds in left_s if seconds)
            left_s = [max(0.0, seconds - step_s) for seconds in left_s]
            clock_s += step_s / rate
        return self._timed(clock_s)

    def gemm(self, shape: GemmShape) -> Work:
        return self._takes(gemm_s(self.hardware.gpu, shape.flops, self.dtype))

    def attention(self, shape: AttentionShape) -> tuple[Work, Work]:
        passes = attention_forward_s, attention_backward_s
        forward, backward = (self._takes(one(self.hardware.gpu, shape.flops, self.dtype)) for one in passes)
        return forward, backward

    def convolution(self, shape: ConvolutionShape) -> tuple[Work, Work]:
        gpu = self.hardware.gpu
        forward_s = convolution_s(gpu, shape.flops, self.dtype)
        return self._takes(forward_s), self._takes(convolution_s(gpu, 2 * shape.flops, self.dtype, launches=2))

    def elementwise(self, moved_bytes: int) -> Work:
        return self._takes(memory_bound_s(self.hardware.gpu, moved_bytes))

    def tiny_kernel(self) -> Work:
        return self._takes(self.hardware.gpu.launch_s)

    def copy(self, direction: Direction, n_bytes: int) -> Work:
        link = self.hardware.link
        bytes_per_s = link.d2h_bytes_per_s if direction == "d2h" else link.h2d_bytes_per_s
        return self._takes(link.latency_s + n_bytes / bytes_per_s)

    def _takes(self, seconds: float) -> Work:
        def work() -> None:
            self._clock_s += seconds

        return work

    def _alone_s(self, work: Work, count: int) -> float:
        start_s = self._clock_s
        for _ in range(count):
            work()
        return self._clock_s - start_s

    def _timed(self, seconds: float) -> float:
        seconds *= 1 + self.noise * self._random.gauss(0, 1)
        if self._random.random() < self.disturbed:
            seconds *= 3
        self.timed_s += seconds
        return seconds


class FakeCuda:
    """``torch.cuda`` with streams that are clocks: work on the current stream takes `busy` seconds of that stream."""

    def __init__(self) -> None:
        self.main = self._stream()
        self.current = self.main
        self.log: list[str] = []

    def busy(self, seconds: float) -> Callable[[], None]:
        """Return work of so many seconds."""

        def work() -> None:
            self.current.clock_s += seconds

        return work

    def module(self) -> ModuleType:
        """Return a module `torch` that has nothing but this."""
        torch: Any = ModuleType("torch")
        torch.cuda = SimpleNamespace(
            Event=self._event,
            Stream=self._stream,
            stream=self._on,
            current_stream=lambda: self.current,
            synchronize=lambda: self.log.append("synchronize"),
        )
        module: ModuleType = torch
        return module

    def _stream(self) -> Any:
        stream = SimpleNamespace(clock_s=0.0)

        def wait(other_s: float) -> None:
            stream.clock_s = max(stream.clock_s, other_s)

        stream.wait_event = lambda event: wait(event.at_s)
        stream.wait_stream = lambda other: wait(other.clock_s)
        return stream

    def _event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        event = SimpleNamespace(at_s=None)

        def record(stream: Any = None) -> None:
            event.at_s = (stream or self.current).clock_s

        event.record = record
        event.synchronize = lambda: self.log.append("event")
        event.elapsed_time = lambda end: 1e3 * (end.at_s - event.at_s)
        return event

    @contextmanager
    def _on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before
