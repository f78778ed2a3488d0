"""Shares of peaks, the peaks of a GPU by its name, and what a hardware file says of its sources."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_gpu import LAB, TINY, SimulatedGpu

from slackswap.hardware.calibrated_hardware import Peaks, efficiencies, hardware_of, peaks_of
from slackswap.hardware.calibration import (
    Calibration,
    Rates,
    measure,
)
from slackswap.hardware.calibration_device import GemmShape
from slackswap.hardware.input_error import InputError


@pytest.fixture
def result() -> Calibration:
    return measure(SimulatedGpu(LAB), TINY, seconds=0.1)


def lab_peaks(tflops: float = 100, memory_bytes_per_s: float = 1e12) -> Peaks:
    return Peaks({"fp16": tflops * 1e12}, memory_bytes_per_s, "datasheet")


def test_an_efficiency_above_1_names_the_peaks_to_give(result: Calibration) -> None:
    # 71 TFLOP/s of products and 53 of attention, of a peak of 50; 830 GB/s of 500.
    assert efficiencies(result, lab_peaks(50))["gemm_efficiency"].median == pytest.approx(1.42)
    with pytest.raises(InputError) as caught:
        hardware_of(result, lab_peaks(50, 5e11), name="lab", date="today")
    assert str(caught.value) == (
        "Lab GPU: sustained more than its peaks (datasheet), and a hardware file holds no efficiency above 1: "
        "gemm_efficiency 1.420, attention_forward_efficiency 1.060, memory_efficiency 1.660. Give the peaks of this very "
        "GPU at its highest clock: --peak-tflops fp16=X, X at least 71 and --memory-gb-per-s X, X at least 830"
    )
    hardware_of(result, lab_peaks(71.01, 8.301e11), name="lab", date="today")


def test_only_the_peak_that_is_exceeded_is_asked_for(result: Calibration) -> None:
    with pytest.raises(
        InputError, match=r"memory_efficiency 1\.660\. [^-]*clock: --memory-gb-per-s X, X at least 830$"
    ):
        hardware_of(result, lab_peaks(memory_bytes_per_s=5e11), name="lab", date="today")


def test_a_duplex_factor_above_1_by_noise_is_1_and_the_file_says_so(result: Calibration) -> None:
    found = hardware_of(replace(result, duplex_factor=1.012), lab_peaks(), name="lab", date="today")
    assert found.link.duplex_factor == 1
    assert any("duplex_factor: " in source and "1.012 measured" in source for source in found.sources)
    with pytest.raises(InputError, match=r"^Lab GPU: duplex_factor: is 1\.06: copies in both directions were faster"):
        hardware_of(replace(result, duplex_factor=1.06), lab_peaks(), name="lab", date="today")


def test_the_latency_is_the_mean_of_both_directions(result: Calibration) -> None:
    out, back = replace(result.d2h, latency_s=4e-6), replace(result.h2d, latency_s=10e-6)
    found = hardware_of(replace(result, d2h=out, h2d=back), lab_peaks(), name="lab", date="today")
    assert found.link.latency_s == pytest.approx(7e-6)
    assert "latency_s: the mean of 4 us to the host and 10 us to the device" in found.sources


def test_the_median_shape_counts(result: Calibration) -> None:
    three = Rates((90e12, 60e12, 70e12))
    sizes = replace(result.sizes, gemm=tuple(GemmShape(n, n, n) for n in (1, 2, 3)))
    found = hardware_of(replace(result, gemm=three, sizes=sizes), lab_peaks(), name="lab", date="today")
    assert found.gpu.gemm_efficiency == 0.7
    assert "gemm_efficiency: the median of 0.900 for 1x1x1, 0.600 for 2x2x2, 0.700 for 3x3x3, in fp16" in found.sources


def test_sources_say_when_where_and_with_what(result: Calibration) -> None:
    found = hardware_of(result, lab_peaks(), name="lab", date="2026-01-31")
    assert found.sources[0] == (
        "measured by slackswap calibrate on 2026-01-31: Lab GPU, torch 0.0, CUDA 0.0, driver 0.0"
    )
    text = "\n".join(found.sources)
    assert "memory_bytes_per_s: datasheet, not measured" in text
    assert "latency_s: the mean of 7 us to the host and 7 us to the device" in text
    assert "0.0655 to 4.19 MB a copy" in text
    assert "channels last" in text
    assert "channels first" in "".join(
        hardware_of(replace(result, dtype="fp32"), Peaks({"fp32": 1e14}, 1e12, "x"), name="lab", date="today").sources
    )


def test_peaks_of_the_catalog() -> None:
    peaks = peaks_of("Tesla V100-SXM2-16GB", {}, None)
    assert (peaks.flops_per_s, peaks.memory_bytes_per_s) == ({"fp16": 125e12, "fp32": 15.7e12}, 900e9)
    assert (peaks.source, peaks.training_dtype) == ("as v100 of the catalog", "fp16")


def test_peaks_that_are_given_go_before_the_catalogs() -> None:
    peaks = peaks_of("NVIDIA H200", {"fp16": 900e12}, 5e12)
    assert peaks.flops_per_s == {"bf16": 989e12, "fp16": 900e12, "tf32": 494e12, "fp32": 67e12}
    assert peaks.memory_bytes_per_s == 5e12
    assert peaks.source == "as h200 of the catalog, given as --peak-tflops fp16=900 --memory-gb-per-s 5000"


def test_a_gpu_that_the_catalog_lacks_needs_both_peaks() -> None:
    name = "NVIDIA GeForce RTX 2080 Ti"
    peaks = peaks_of(name, {"fp32": 13.4e12, "fp16": 107e12}, 616e9)
    assert (peaks.training_dtype, peaks.source) == (
        "fp16",
        "given as --peak-tflops fp32=13.4 --peak-tflops fp16=107 --memory-gb-per-s 616",
    )
    for flops, memory in (({}, None), ({"fp16": 107e12}, None), ({}, 616e9)):
        with pytest.raises(InputError, match=f"^{name}: is not in the catalog.*--peak-tflops DTYPE=X and --memory-gb"):
            peaks_of(name, flops, memory)
