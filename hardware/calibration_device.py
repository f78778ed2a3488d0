"""The GPU that is measured: its kernels and copies as work to run, and the clock that times them.

Not verified on a GPU: where this was written, `cuda_device` and `CudaTimer` have only run against a stand-in for
``torch.cuda``. The kernels run on a CPU in the tests, with `CpuTimer`.

torch, the ``torch`` extra, is imported where it is used.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from slackswap.hardware.input_error import InputError

Work = Callable[[], object]  # enqueues one run of a kernel or of a copy
Direction = Literal["d2h", "h2d"]

_TORCH_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "tf32": "float32", "fp32": "float32"}
_NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, slots=True)
class GemmShape:
    """A matrix product of (`rows`, `inner`) and (`inner`, `columns`)."""

    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """One multiplication and one addition per element of the inner dimension."""
        return 2 * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        return f"{self.rows}x{self.inner}x{self.columns}"


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Causal self-attention of `batch` sequences, with `heads` heads of `head_units` each."""

    batch: int
    heads: int
    sequence: int
    head_units: int

    @property
    def flops(self) -> int:
        """Of the forward pass: two products, half of each under the causal mask."""
        return 2 * self.batch * self.heads * self.sequence**2 * self.head_units

    def __str__(self) -> str:
        return f"{self.batch}x{self.heads}x{self.sequence}x{self.head_units}"


@dataclass(frozen=True, slots=True)
class ConvolutionShape:
    """A 3x3 convolution, padded, of `batch` square images of `pixels` a side, with `channels` in and out."""

    batch: int
    channels: int
    pixels: int

    @property
    def flops(self) -> int:
        """Of the forward pass; each of the two gradients takes as many."""
        return 2 * self.batch * self.channels**2 * 9 * self.pixels**2

    def __str__(self) -> str:
        return f"{self.batch}x{self.channels}x{self.pixels}x{self.pixels}"


def convolution_layout(dtype: str) -> str:
    """Return the layout of a convolution's tensors: that of the kernels for tensor cores, or for `fp32` the usual one."""
    return "channels first" if dtype == "fp32" else "channels last"


class Timer(Protocol):
    """Times work on a device."""

    def elapsed_s(self, work: Work, count: int) -> float:
        """Return the seconds of `count` runs of `work`, one after another."""

    def together_s(self, works: Sequence[tuple[Work, int]]) -> float:
        """Return the seconds until the last of several works ends that start together, each run so many times."""


class Device(Timer, Protocol):
    """What `calibration.measure` asks of a device. A work may be run any number of times; `dtype` is one of `DTYPE_BYTES`."""

    name: str
    dtype: str
    memory_bytes: int
    software: str

    def gemm(self, shape: GemmShape) -> Work:
        """Return a matrix product."""

    def attention(self, shape: AttentionShape) -> tuple[Work, Work]:
        """Return the forward and the backward pass of a fused causal attention."""

    def convolution(self, shape: ConvolutionShape) -> tuple[Work, Work]:
        """Return the forward pass of a convolution, and the pass of its two gradients."""

    def elementwise(self, moved_bytes: int) -> Work:
        """Return a kernel that reads half of `moved_bytes` and writes the other half."""

    def tiny_kernel(self) -> Work:
        """Return a kernel of next to no work."""

    def copy(self, direction: Direction, n_bytes: int) -> Work:
        """Return a copy between the device and pinned host memory."""


class TorchDevice:
    """Kernels and copies by PyTorch, on the device that torch knows as `where`.

    Parameters
    ----------
    where : str
        A torch device: ``cuda``, ``cpu``.
    dtype : str
        A key of `DTYPE_BYTES`: of the matrix products, attention, convolutions and memory-bound kernels.
    timer : Timer
    name, memory_bytes, software
        What the device is called, its memory, and the versions that it runs under.
    """

    def __init__(self, where: str, dtype: str, timer: Timer, *, name: str, memory_bytes: int, software: str) -> None:
        import torch

        self.name, self.dtype, self.memory_bytes, self.software = name, dtype, memory_bytes, software
        self.elapsed_s, self.together_s = timer.elapsed_s, timer.together_s
        self._torch, self._where = torch, torch.device(where)
        self._numbers = getattr(torch, _TORCH_DTYPES[dtype])

    def gemm(self, shape: GemmShape) -> Work:
        """Return a matrix product."""
        left, right = self._random(shape.rows, shape.inner), self._random(shape.inner, shape.columns)
        out = self._random(shape.rows, shape.columns)
        return lambda: self._torch.mm(left, right, out=out)

    def attention(self, shape: AttentionShape) -> tuple[Work, Work]:
        """Return the passes of `scaled_dot_product_attention`, by a fused kernel or not at all."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        size = (shape.batch, shape.heads, shape.sequence, shape.head_units)
        query, key, value = (self._random(*size).requires_grad_() for _ in range(3))
        # Without MATH: it writes the whole matrix of scores, and would stand in for a fused kernel that is not there.
        fused = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]

        def forward() -> Any:
            with sdpa_kernel(fused):
                return scaled_dot_product_attention(query, key, value, is_causal=True)

        return forward, self._gradients(forward(), [query, key, value])

    def convolution(self, shape: ConvolutionShape) -> tuple[Work, Work]:
        """Return the passes of a convolution without bias, in the layout of `convolution_layout`."""
        from torch.nn.functional import conv2d

        last = convolution_layout(self.dtype) == "channels last"
        layout = self._torch.channels_last if last else self._torch.contiguous_format

        def laid_out(*size: int) -> Any:
            return self._random(*size).to(memory_format=layout).requires_grad_()

        images = laid_out(shape.batch, shape.channels, shape.pixels, shape.pixels)
        weights = laid_out(shape.channels, shape.channels, 3, 3)

        def forward() -> Any:
            return conv2d(images, weights, padding=1)

        return forward, self._gradients(forward(), [images, weights])

    def elementwise(self, moved_bytes: int) -> Work:
        """Return a multiplication by a number, out of place."""
        n_elements = moved_bytes // 2 // self._numbers.itemsize
        source, target = self._random(n_elements), self._random(n_elements)
        return lambda: self._torch.mul(source, 2.0, out=target)

    def tiny_kernel(self) -> Work:
        """Return an addition to a single number."""
        number = self._torch.zeros(1, device=self._where)
        return lambda: number.add_(1.0)

    def copy(self, direction: Direction, n_bytes: int) -> Work:
        """Return a copy that does not wait for its end; host memory is pinned where there is a GPU to pin it for."""
        device = self._torch.ones(n_bytes, dtype=self._torch.uint8, device=self._where)
        host = self._torch.ones(n_bytes, dtype=self._torch.uint8, pin_memory=self._where.type == "cuda")
        source, target = (device, host) if direction == "d2h" else (host, device)
        return lambda: target.copy_(source, non_blocking=True)

    def _random(self, *size: int) -> Any:
        # Random numbers, as in training: of zeros a GPU draws less power, and clocks higher.
        return self._torch.randn(*size, device=self._where, dtype=self._numbers)

    def _gradients(self, output: Any, inputs: Sequence[Any]) -> Work:
        gradient = self._torch.randn_like(output)
        return lambda: self._torch.autograd.grad(output, inputs, gradient, retain_graph=True)


class CudaTimer:
    """Times by CUDA events: what the GPU takes, without the host's wait for it."""

    def __init__(self) -> None:
        import torch

        self._cuda: Any = torch.cuda
        self._streams = (self._cuda.Stream(), self._cuda.Stream())

    def elapsed_s(self, work: Work, count: int) -> float:
        """Return the seconds between an event before and an event after `count` runs."""
        start, end = self._events()
        start.record()
        for _ in range(count):
            work()
        end.record()
        return self._between_s(start, end)

    def together_s(self, works: Sequence[tuple[Work, int]]) -> float:
        """Return the seconds between an event that all streams wait for, and one that waits for all streams.

        Each of at most two works has a stream of its own.
        """
        start, end = self._events()
        main = self._cuda.current_stream()
        start.record(main)
        for (work, count), stream in zip(works, self._streams[: len(works)], strict=True):
            stream.wait_event(start)
            with self._cuda.stream(stream):
                for _ in range(count):
                    work()
        for stream in self._streams[: len(works)]:
            main.wait_stream(stream)
        end.record(main)
        return self._between_s(start, end)

    def _events(self) -> tuple[Any, Any]:
        self._cuda.synchronize()
        return self._cuda.Event(enable_timing=True), self._cuda.Event(enable_timing=True)

    @staticmethod
    def _between_s(start: Any, end: Any) -> float:
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3  # milliseconds


class CpuTimer:
    """Times by the host's clock; works that start together run in threads."""

    def elapsed_s(self, work: Work, count: int) -> float:
        """Return the seconds of `count` runs."""
        start_s = time.perf_counter()
        for _ in range(count):
            work()
        return time.perf_counter() - start_s

    def together_s(self, works: Sequence[tuple[Work, int]]) -> float:
        """Return the seconds until the last thread ends."""
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(len(works)) as threads:
            start_s = time.perf_counter()
            for done in [threads.submit(self.elapsed_s, work, count) for work, count in works]:
                done.result()
            return time.perf_counter() - start_s


def cuda_name() -> str:
    """Return the name of the GPU that torch uses: the first that CUDA_VISIBLE_DEVICES leaves.

    Raises
    ------
    InputError
        torch is not installed, sees no GPU, or cannot use it.
    """
    try:
        import torch
    except ImportError as error:  # torch itself, or a library that it needs
        raise InputError(
            f'{error.name or "torch"} is not installed: install the torch extra, pip install "slackswap[torch]"',
            source="calibrate",
        ) from None
    if not torch.cuda.is_available():
        raise InputError(
            f"torch {torch.__version__} sees no CUDA GPU, and nothing else is measured: run on the machine with the GPU, "
            "with a torch that is built for its driver",
            source="calibrate",
        )
    try:
        return str(torch.cuda.get_device_name())
    except RuntimeError as error:  # taken by another process in exclusive mode, or broken
        raise InputError(f"the GPU cannot be used: {str(error).splitlines()[0]}", source="calibrate") from error


@contextmanager
def cuda_device(dtype: str) -> Iterator[TorchDevice]:
    """Lend the GPU that torch uses, with the precision of `dtype` in force and the fastest convolutions chosen.

    Raises
    ------
    InputError
        As `cuda_name`.
    """
    name = cuda_name()
    import torch

    platform = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    with _precision(dtype):
        yield TorchDevice(
            "cuda",
            dtype,
            CudaTimer(),
            name=name,
            memory_bytes=int(torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory),
            software=f"torch {torch.__version__}, {platform}, driver {nvidia_driver() or 'of an unknown version'}",
        )


def cpu_device(dtype: str) -> TorchDevice:
    """Return the CPU, on which the measurements can be tried; no hardware file is made of it."""
    import torch

    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    software = f"torch {torch.__version__}, CPU"
    return TorchDevice("cpu", dtype, CpuTimer(), name="CPU", memory_bytes=memory_bytes, software=software)


@contextmanager
def _precision(dtype: str) -> Iterator[None]:
    """Let float32 products round to TF32 for ``tf32`` only."""
    import torch

    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    try:
        torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
        cudnn.allow_tf32, cudnn.benchmark = dtype == "tf32", True
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32, cudnn.benchmark = before[1:]


def nvidia_driver(version_file: Path = _NVIDIA_DRIVER) -> str | None:
    """Return the version of NVIDIA's kernel driver, or None where it does not say (Windows, ROCm, some containers)."""
    try:
        said = version_file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"Kernel Module.*?\b(\d+\.\d+(?:\.\d+)*)", said)
    return found[1] if found else None
