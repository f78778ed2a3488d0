"""CUDA as far as it goes without a GPU, and the kernels of PyTorch on a CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from simulated_gpu import TINY, FakeCuda

from slackswap.hardware import calibration
from slackswap.hardware.calibration import measure
from slackswap.hardware.calibration_device import (
    AttentionShape,
    ConvolutionShape,
    CudaTimer,
    Direction,
    GemmShape,
    TorchDevice,
    Work,
    cpu_device,
    cuda_device,
    cuda_name,
    nvidia_driver,
)
from slackswap.hardware.input_error import InputError

# ---- CUDA, as far as it goes without a GPU ----------------------------------------------------------------------------


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", cuda.module())
    return cuda


def test_cuda_events_count_milliseconds(fake: FakeCuda) -> None:
    assert CudaTimer().elapsed_s(fake.busy(2e-3), 3) == pytest.approx(6e-3)
    assert fake.log == ["synchronize", "event"]  # nothing from before is in it, and its end is waited for


def test_cuda_streams_start_together_and_the_last_one_counts(fake: FakeCuda) -> None:
    # The main stream is 5 s ahead of the others: they wait for it, and it for them.
    timer = CudaTimer()
    fake.main.clock_s = 5.0
    works: Sequence[tuple[Work, int]] = [(fake.busy(0.1), 2), (fake.busy(0.1), 3)]
    assert timer.together_s(works) == pytest.approx(0.3)
    assert timer.together_s(works[:1]) == pytest.approx(0.2)
    assert fake.main.clock_s == pytest.approx(5.5)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r'^calibrate: torch is not installed: .*pip install "slackswap\[torch\]"$'):
        cuda_name()


def fake_torch(available: bool) -> ModuleType:
    torch: Any = ModuleType("torch")

    def broken() -> str:
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nCompile with ...")

    torch.__version__ = "2.6.0"
    torch.cuda = SimpleNamespace(is_available=lambda: available, get_device_name=broken)
    module: ModuleType = torch
    return module


@pytest.mark.parametrize(
    ("available", "message"),
    [
        (False, r"^calibrate: torch 2\.6\.0 sees no CUDA GPU, and nothing else is measured: run on the machine with"),
        (True, r"^calibrate: the GPU cannot be used: CUDA error: all CUDA-capable devices are busy or unavailable$"),
    ],
)
def test_without_a_gpu_nothing_is_measured(monkeypatch: pytest.MonkeyPatch, available: bool, message: str) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch(available))
    with pytest.raises(InputError, match=message):
        cuda_name()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\nGCC 12.2", "560.35.03"),
        ("something else 1.2\n", None),
    ],
)
def test_driver_versions(tmp_path: Path, text: str, version: str | None) -> None:
    file = tmp_path / "version"
    assert nvidia_driver(file) is None
    file.write_text(text)
    assert nvidia_driver(file) == version


@pytest.mark.parametrize("direction", ["d2h", "h2d"])
def test_copies_go_between_pinned_memory_and_the_gpu(monkeypatch: pytest.MonkeyPatch, direction: Direction) -> None:
    class Buffer:
        def __init__(self, n_elements: int, dtype: str, device: Any = None, pin_memory: bool = False) -> None:
            self.where = ("gpu" if device else "pageable") if not pin_memory else "pinned"
            self.size = n_elements, dtype

        def copy_(self, source: Buffer, *, non_blocking: bool) -> tuple[str, str, bool]:
            assert source.size == self.size == (1000, "a byte")
            return source.where, self.where, non_blocking

    torch: Any = ModuleType("torch")
    torch.device, torch.float16, torch.uint8, torch.ones = (
        (lambda where: SimpleNamespace(type=where)),
        2,
        "a byte",
        Buffer,
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    timer: Any = SimpleNamespace(elapsed_s=None, together_s=None)
    gpu = TorchDevice("cuda", "fp16", timer, name="", memory_bytes=1, software="")
    expected = ("gpu", "pinned", True) if direction == "d2h" else ("pinned", "gpu", True)
    assert gpu.copy(direction, 1000)() == expected


def test_flops_worked_by_hand() -> None:
    assert GemmShape(2, 3, 4).flops == 2 * 24
    # Scores of 4 x 4 from 8 units: 2 x 128 operations; their product with the values as many; the mask hides half of each.
    assert AttentionShape(1, 1, 4, 8).flops == 256
    assert AttentionShape(3, 5, 4, 8).flops == 15 * 256
    # 5 x 5 pixels of 2 channels, each the sum of 3 x 3 x 2 products.
    assert ConvolutionShape(1, 2, 5).flops == 2 * 50 * 18


# ---- PyTorch on a CPU -------------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Run PyTorch in one thread: on a busy machine, threads that wait for each other take any time."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.torch
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_all_measurements_run_on_a_cpu(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    monkeypatch.setattr(calibration, "TIMED_S", 0.002)
    monkeypatch.setattr(calibration, "DUPLEX_S", 0.002)
    found = measure(cpu_device(dtype), TINY, seconds=0.2)
    # Wide bounds: that the right unit comes out, whatever else the machine does.
    kernels = (found.gemm, found.attention_forward, found.attention_backward, found.convolution)
    assert all(1e7 < rates.median < 1e15 for rates in kernels)
    assert 1e8 < found.memory.median < 1e13
    assert 1e-8 < found.launch_s < 1e-3
    assert all(copies.latency_s >= 0 and 1e8 < copies.bytes_per_s < 1e13 for copies in (found.d2h, found.h2d))
    assert found.duplex_factor > 0
    assert (found.device_name, found.dtype) == ("CPU", dtype)
    assert found.memory_bytes > 1e8


@pytest.mark.torch
def test_kernels_compute_what_their_flops_count() -> None:
    torch = pytest.importorskip("torch")
    device = cpu_device("fp32")
    assert torch.as_tensor(device.gemm(GemmShape(2, 3, 4))()).shape == (2, 4)
    forward, backward = device.attention(AttentionShape(2, 3, 8, 16))
    assert torch.as_tensor(forward()).shape == (2, 3, 8, 16)
    gradients: Any = backward()
    assert [tuple(gradient.shape) for gradient in gradients] == [(2, 3, 8, 16)] * 3
    forward, backward = device.convolution(ConvolutionShape(2, 4, 6))
    assert torch.as_tensor(forward()).shape == (2, 4, 6, 6)
    gradients = backward()
    assert [tuple(gradient.shape) for gradient in gradients] == [(2, 4, 6, 6), (4, 4, 3, 3)]
    moved: Any = device.elementwise(1000)()
    assert moved.numel() * 4 == 500  # read as many and written as many
    for direction in ("d2h", "h2d"):
        copied: Any = device.copy(direction, 1000)()
        assert copied.numel() * copied.element_size() == 1000


@pytest.mark.torch
def test_flops_are_those_that_pytorch_counts() -> None:
    pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    device = cpu_device("fp32")
    gemm, convolution = GemmShape(8, 16, 4), ConvolutionShape(2, 4, 6)
    for work, flops in (
        (device.gemm(gemm), gemm.flops),
        (device.convolution(convolution)[0], convolution.flops),
        (device.convolution(convolution)[1], 2 * convolution.flops),
    ):
        with FlopCounterMode(display=False) as counter:
            work()
        assert counter.get_total_flops() == flops


@pytest.mark.torch
@pytest.mark.parametrize(("dtype", "rounds"), [("tf32", True), ("fp32", False), ("bf16", False)])
def test_the_gpu_is_lent_with_its_precision_in_force(monkeypatch: pytest.MonkeyPatch, dtype: str, rounds: bool) -> None:
    torch = pytest.importorskip("torch")
    properties = SimpleNamespace(total_memory=85_097_971_712)
    for name, value in {
        "is_available": lambda: True,
        "get_device_name": lambda: "NVIDIA A100-SXM4-80GB",
        "current_device": lambda: 0,
        "get_device_properties": lambda index: properties if index == 0 else None,
        "Stream": SimpleNamespace,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    cudnn = torch.backends.cudnn
    before = (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark)
    with cuda_device(dtype) as device:
        assert (device.name, device.memory_bytes, device.dtype) == ("NVIDIA A100-SXM4-80GB", 85_097_971_712, dtype)
        assert device.software.startswith(f"torch {torch.__version__}, CUDA ")
        assert torch.get_float32_matmul_precision() == ("high" if rounds else "highest")
        assert (cudnn.allow_tf32, cudnn.benchmark) == (rounds, True)
    assert (torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark) == before
