"""How long an operator takes: compute-bound or memory-bound at a sustained share of the peak, plus its launches."""

from __future__ import annotations

from slackswap.hardware.gpu import Gpu

# FlashAttention's backward pass does five matrix products where the forward pass does two.
ATTENTION_BACKWARD_PER_FORWARD_FLOPS = 2.5


def gemm_s(gpu: Gpu, flops: float, dtype: str, *, launches: int = 1) -> float:
    """Return the seconds of `launches` matrix products of `flops` in total."""
    return flops / (gpu.peak(dtype) * gpu.gemm_efficiency) + launches * gpu.launch_s


def attention_forward_s(gpu: Gpu, flops: float, dtype: str) -> float:
    """Return the seconds of a fused attention forward pass of `flops`."""
    return flops / (gpu.peak(dtype) * gpu.attention_forward_efficiency) + gpu.launch_s


def attention_backward_s(gpu: Gpu, forward_flops: float, dtype: str) -> float:
    """Return the seconds of the backward pass of a fused attention whose forward pass takes `forward_flops`."""
    flops = ATTENTION_BACKWARD_PER_FORWARD_FLOPS * forward_flops
    return flops / (gpu.peak(dtype) * gpu.attention_backward_efficiency) + gpu.launch_s


def convolution_s(gpu: Gpu, flops: float, dtype: str, *, launches: int = 1) -> float:
    """Return the seconds of `launches` convolutions (implicit GEMM) of `flops` in total."""
    return flops / (gpu.peak(dtype) * gpu.convolution_efficiency) + launches * gpu.launch_s


def memory_bound_s(gpu: Gpu, moved_bytes: float, *, launches: int = 1) -> float:
    """Return the seconds of `launches` kernels that read and write `moved_bytes` in total."""
    return moved_bytes / (gpu.memory_bytes_per_s * gpu.memory_efficiency) + launches * gpu.launch_s
