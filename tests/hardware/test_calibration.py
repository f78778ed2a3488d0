"""The numbers of a simulated GPU are recovered from its times."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from simulated_gpu import LAB, TINY, SimulatedGpu

from slackswap.hardware.calibrated_hardware import Peaks, hardware_of
from slackswap.hardware.calibration import (
    FEWEST_REPEATS,
    Meter,
    duplex_factor,
    fit_line,
    measure,
    measure_copies,
    measure_launch,
)
from slackswap.hardware.calibration_device import (
    GemmShape,
    Work,
)
from slackswap.hardware.catalog import Hardware, catalog
from slackswap.hardware.input_error import InputError


def numbers_of(hardware: Hardware) -> dict[str, float]:
    parts = (hardware.gpu, hardware.link)
    values = {item.name: getattr(part, item.name) for part in parts for item in fields(part)}
    return {key: value for key, value in values.items() if isinstance(value, float)}


def measured(truth: Hardware, seconds: float = 30.0, noise: float = 0.0, disturbed: float = 0.0) -> Hardware:
    gpu = truth.gpu
    peaks = Peaks(gpu.peak_flops_per_s, gpu.memory_bytes_per_s, "datasheet")
    result = measure(SimulatedGpu(truth, noise=noise, disturbed=disturbed), seconds=seconds)
    return hardware_of(result, peaks, name=truth.name, date="2026-01-31")


# ---- recovery ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("truth", [LAB, *catalog().values()], ids=["lab", *catalog()])
def test_without_noise_every_number_comes_back(truth: Hardware) -> None:
    found = measured(truth)
    assert numbers_of(found) == pytest.approx(numbers_of(truth), rel=5e-4)  # four digits are kept
    assert (found.gpu.name, found.gpu.memory_bytes) == (truth.gpu.name, truth.gpu.memory_bytes)
    assert found.gpu.peak_flops_per_s == truth.gpu.peak_flops_per_s


@pytest.mark.parametrize("truth", [LAB, catalog()["titan-x"], catalog()["gh200"]], ids=["lab", "titan-x", "gh200"])
def test_noise_and_disturbances_move_no_number_by_a_percent(truth: Hardware) -> None:
    # Each timing is off by 1%, and one in twenty takes three times as long. At 12.8 GB/s the shortest copy takes 3 times its
    # latency, which so many repeats of it find to 0.3%.
    found = measured(truth, seconds=120.0, noise=0.01, disturbed=0.05)
    assert numbers_of(found) == pytest.approx(numbers_of(truth), rel=0.01)


def test_measuring_takes_as_long_as_asked_for() -> None:
    gpu = SimulatedGpu(LAB)
    measure(gpu, seconds=20.0)
    # Above it: what runs before the first timing that counts, and the last timing of each share.
    assert 18 < gpu.timed_s < 26


def test_a_slow_device_is_still_repeated() -> None:
    # One product of 0.55 PFLOP at 1 TFLOP/s.
    gpu = SimulatedGpu(replace(LAB, gpu=replace(LAB.gpu, peak_flops_per_s={"fp16": 1e12 / 0.71})))
    runs = [0]
    product = gpu.gemm(GemmShape(65536, 65536, 65536))

    def counted() -> None:
        runs[0] += 1
        product()

    assert Meter(gpu, 0.1).run_s(counted) == pytest.approx(563, rel=1e-2)
    assert runs[0] == 2 + 1 + FEWEST_REPEATS  # two to find the count, one that does not count


def test_progress_names_each_step() -> None:
    steps: list[str] = []
    measure(SimulatedGpu(LAB), TINY, seconds=0.1, announce=steps.append)
    assert steps == [
        "matrix products",
        "kernel launches",
        "matrix products",
        "fused attention",
        "convolutions",
        "memory-bound kernels",
        "copies to the host",
        "copies to the device",
        "copies in both directions",
    ]


# ---- statistics -------------------------------------------------------------------------------------------------------


def test_a_line_through_two_points() -> None:
    # y = 1 + 2 x
    line = fit_line([1, 2], [3, 5])
    assert (line.intercept, line.slope) == pytest.approx((1, 2))
    assert line.residual == pytest.approx(0, abs=1e-12)


def test_long_times_do_not_drown_the_latency() -> None:
    # y = 10 + x, but the third is off by 2%, which is twice the latency. Unweighted, the intercept is 16.
    line = fit_line([1, 2, 4, 1000, 2000], [11, 12, 14, 1010 * 1.02, 2010])
    assert line.intercept == pytest.approx(10, rel=5e-3)
    assert line.residual == pytest.approx(0.02, rel=0.5)


def test_a_line_through_the_origin() -> None:
    # Shares x / y are 1 and 1/2: slope = (1 + 1/2) / (1 + 1/4) = 1.2; deviations 0.2 and 1 - 0.6 = 0.4.
    line = fit_line([1, 2], [1, 4], through_origin=True)
    assert (line.intercept, line.slope, line.residual) == pytest.approx((0, 1.2, 0.4))


@pytest.mark.parametrize(
    ("out_s", "in_s", "together_s", "factor"),
    [
        (3, 3, 4, 0.75),  # both at 3/4 of their rate
        (3, 3, 3, 1.0),  # neither slows the other
        (3, 3, 6, 0.5),  # one after the other
        (2, 5, 5.5, 0.8),  # 2 / 0.8 = 2.5 together, then 3 at full rate
        (5, 2, 5.5, 0.8),
    ],
)
def test_duplex_factors_worked_by_hand(out_s: float, in_s: float, together_s: float, factor: float) -> None:
    assert duplex_factor(out_s, in_s, together_s) == pytest.approx(factor)


def test_copies_that_are_faster_together_than_one_alone() -> None:
    with pytest.raises(InputError, match=r"^duplex_factor: copies in both directions took 4 s together, and 5 s one"):
        duplex_factor(1, 5, 4)


class Altered(SimulatedGpu):
    """Its timings pass through a function of (seconds, timings before this one)."""

    def __init__(self, alter: Any) -> None:
        super().__init__(LAB)
        self.alter, self.n_timings = alter, 0

    def _timed(self, seconds: float) -> float:
        self.n_timings += 1
        return float(self.alter(seconds, self.n_timings - 1))


def test_what_every_timing_adds_is_no_launch_cost() -> None:
    # The events around n launches take 50 us, more than ten launches.
    gpu = Altered(lambda seconds, _: seconds + 50e-6)
    assert measure_launch(Meter(gpu, 0.1), (50, 100, 200, 400)) == pytest.approx(4e-6)


def test_the_first_timing_does_not_count() -> None:
    gpu = Altered(lambda seconds, before: seconds + (1.0 if before == 0 else 0.0))
    assert Meter(gpu, 0.0).median_s(lambda: gpu.elapsed_s(gpu.tiny_kernel(), 1)) == pytest.approx(4e-6)
    assert gpu.n_timings == 1 + FEWEST_REPEATS


class Copying:
    """Copies whose times are given by size; what else a device does is not asked for."""

    name, dtype, memory_bytes, software = "Copying", "fp16", 1, ""

    def __init__(self, times_s: dict[int, float]) -> None:
        self.times_s = times_s
        self.last_s = 0.0

    def copy(self, direction: str, n_bytes: int) -> Work:
        del direction
        return lambda: setattr(self, "last_s", self.times_s[n_bytes])

    def elapsed_s(self, work: Work, count: int) -> float:
        work()
        return count * self.last_s


def test_a_latency_is_never_negative() -> None:
    # The line through both points has the intercept -1 and slope 2; through the origin: shares 1/1 and 3/5, slope
    # (1 + 3/5) / (1 + 9/25) = 20/17, deviations 3/17 and 5/17.
    device: Any = Copying({1: 1.0, 3: 5.0})
    copies = measure_copies(Meter(device, 0.0), "d2h", (1, 3))
    assert (copies.latency_s, copies.bytes_per_s, copies.residual) == pytest.approx((0, 17 / 20, 5 / 17))


def test_copies_that_do_not_grow_with_their_bytes() -> None:
    device: Any = Copying({10: 2.0, 1000: 2.0, 5000: 1.0})
    with pytest.raises(InputError, match=r"^Copying: d2h copies of 5000 bytes took no longer than of 10: is the link"):
        measure_copies(Meter(device, 0.0), "d2h", (10, 1000, 5000))


def test_launches_that_take_no_time() -> None:
    gpu = Altered(lambda _, before: 1 / (1 + before))  # ever faster
    with pytest.raises(InputError, match=r"^Lab GPU: 200 kernel launches took no longer than 50: is the device busy"):
        measure(gpu, TINY, seconds=0.1)


def test_kernels_that_take_no_longer_than_their_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = replace(LAB.gpu, launch_s=1.0)
    gpu = SimulatedGpu(replace(LAB, gpu=lazy))
    monkeypatch.setattr(gpu, "gemm", lambda _: gpu._takes(0.5))
    with pytest.raises(InputError, match=r"^Lab GPU: launch_s: a kernel took 5e\+05 us and its launches alone 1e\+06"):
        measure(gpu, TINY, seconds=0.1)


@pytest.mark.parametrize(
    ("method", "what"),
    [("attention", "fused attention in fp16"), ("copy", "copies to the host in fp16")],
)
def test_what_a_device_refuses_is_one_line(monkeypatch: pytest.MonkeyPatch, method: str, what: str) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("CUDA out of memory.\nSee the manual")

    gpu = SimulatedGpu(LAB)
    monkeypatch.setattr(gpu, method, refuse)
    with pytest.raises(InputError) as caught:
        measure(gpu, TINY, seconds=0.1)
    assert str(caught.value) == f"Lab GPU: {what} cannot be measured: CUDA out of memory."
