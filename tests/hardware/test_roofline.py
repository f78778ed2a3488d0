"""Roofline times, worked out by hand on a GPU with round numbers."""

from __future__ import annotations

import pytest

from slackswap.hardware import roofline
from slackswap.hardware.gpu import Gpu
from slackswap.hardware.input_error import InputError

# 100 FLOP/s in BF16 of which a GEMM sustains half, attention 0.4 forward and 0.2 backward, a convolution 0.25;
# 10 bytes/s of which 0.8 are sustained; 1 s per launch.
GPU = Gpu(
    name="round numbers",
    peak_flops_per_s={"bf16": 100.0, "fp32": 10.0},
    gemm_efficiency=0.5,
    attention_forward_efficiency=0.4,
    attention_backward_efficiency=0.2,
    convolution_efficiency=0.25,
    memory_efficiency=0.8,
    memory_bytes_per_s=10.0,
    launch_s=1.0,
    memory_bytes=1000,
)


def test_a_gemm_runs_at_its_share_of_the_peak() -> None:
    assert roofline.gemm_s(GPU, 100.0, "bf16") == pytest.approx(100 / 50 + 1)
    # FP32: a tenth of the peak. Two GEMMs of 100 FLOPs together: two launches.
    assert roofline.gemm_s(GPU, 200.0, "fp32", launches=2) == pytest.approx(200 / 5 + 2)


def test_attention_backward_does_two_and_a_half_times_the_flops_at_another_share() -> None:
    assert roofline.attention_forward_s(GPU, 80.0, "bf16") == pytest.approx(80 / 40 + 1)
    assert roofline.attention_backward_s(GPU, 80.0, "bf16") == pytest.approx(2.5 * 80 / 20 + 1)


def test_a_convolution_runs_at_its_own_share_of_the_peak() -> None:
    assert roofline.convolution_s(GPU, 100.0, "bf16") == pytest.approx(100 / 25 + 1)
    assert roofline.convolution_s(GPU, 100.0, "bf16", launches=2) == pytest.approx(100 / 25 + 2)


def test_a_memory_bound_kernel_runs_at_its_share_of_the_bandwidth() -> None:
    assert roofline.memory_bound_s(GPU, 80.0) == pytest.approx(80 / 8 + 1)
    assert roofline.memory_bound_s(GPU, 0.0, launches=3) == pytest.approx(3.0)


def test_a_dtype_that_the_gpu_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"^dtype: the round numbers has no peak for 'fp16'"):
        roofline.gemm_s(GPU, 1.0, "fp16")
