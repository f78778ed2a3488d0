"""A GPU refuses numbers that no machine has, and is a value: comparable, hashable, picklable, read-only."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from slackswap.hardware.catalog import catalog
from slackswap.hardware.gpu import Gpu
from slackswap.hardware.input_error import InputError

A100 = catalog()["a100-pcie4"].gpu


def changed(field: str, value: Any) -> Gpu:
    changes: dict[str, Any] = {field: value}
    return dataclasses.replace(A100, **changes)


@pytest.mark.parametrize("efficiency", [item.name for item in dataclasses.fields(Gpu) if "efficiency" in item.name])
@pytest.mark.parametrize("value", [0.0, -0.5, 1.01, float("nan")])
def test_an_efficiency_is_a_share_of_the_peak(efficiency: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"^{efficiency}: lies in \(0, 1\]"):
        changed(efficiency, value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("memory_bytes_per_s", 0.0),
        ("memory_bytes_per_s", float("inf")),
        ("memory_bytes", 0),
        ("launch_s", -1e-6),
        ("launch_s", float("inf")),
    ],
)
def test_bandwidth_memory_and_launch_are_finite_and_not_negative(field: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"^{field}: "):
        changed(field, value)


def test_a_launch_may_take_no_time() -> None:
    assert dataclasses.replace(A100, launch_s=0.0).launch_s == 0.0


@pytest.mark.parametrize(
    ("peaks", "message"),
    [
        ({}, "^peak_flops_per_s: gives the peak of at least one dtype"),
        ({"fp8": 1e15}, r"^peak_flops_per_s\.fp8: is not a dtype that is known here: use bf16, fp16, tf32, fp32"),
        ({"bf16": 0.0}, r"^peak_flops_per_s\.bf16: is a finite number above 0"),
    ],
)
def test_peaks_are_given_for_known_dtypes(peaks: dict[str, float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dataclasses.replace(A100, peak_flops_per_s=peaks)


def test_a_missing_peak_lists_those_that_there_are() -> None:
    # Volta's tensor cores know FP16, not BF16.
    with pytest.raises(InputError, match="V100 SXM2 32GB has no peak for 'bf16': use fp16, fp32"):
        catalog()["v100"].gpu.peak("bf16")


@pytest.mark.parametrize(("name", "dtype"), [("a100-pcie4", "bf16"), ("v100", "fp16"), ("titan-x", "fp32")])
def test_training_uses_16_bits_where_the_gpu_has_them(name: str, dtype: str) -> None:
    assert catalog()[name].gpu.training_dtype == dtype


def test_a_gpu_is_a_read_only_value() -> None:
    peaks = {"bf16": 312e12}
    gpu = dataclasses.replace(A100, peak_flops_per_s=peaks)
    peaks["bf16"] = 1.0  # whoever made the mapping may go on changing it
    assert gpu.peak("bf16") == 312e12
    with pytest.raises(TypeError):
        gpu.peak_flops_per_s["bf16"] = 1.0  # type: ignore[index]  # that it is refused is the test
    copy = pickle.loads(pickle.dumps(gpu))
    assert copy == gpu
    assert hash(copy) == hash(gpu)
