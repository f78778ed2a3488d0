"""From what was measured and a datasheet's peaks to a machine: shares of the peaks, and where each number comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackswap.hardware.calibration import Calibration, Rates
from slackswap.hardware.calibration_device import convolution_layout
from slackswap.hardware.catalog import Hardware
from slackswap.hardware.gpu import DTYPE_BYTES, Gpu
from slackswap.hardware.gpu_names import find_gpu
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link

# Timing noise lifts a link that loses nothing this far above 1; further, the times contradict each other.
DUPLEX_NOISE = 0.05


@dataclass(frozen=True, slots=True)
class Peaks:
    """What efficiencies are shares of.

    Attributes
    ----------
    flops_per_s : mapping
        Dense peak by dtype, a key of `DTYPE_BYTES`.
    memory_bytes_per_s : float
    source : str
        Where they come from, for the hardware file.
    """

    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    source: str

    @property
    def training_dtype(self) -> str:
        """The dtype to measure in: the first of bf16, fp16, tf32, fp32 that has a peak."""
        return next(dtype for dtype in DTYPE_BYTES if dtype in self.flops_per_s)


def peaks_of(device_name: str, flops_per_s: Mapping[str, float], memory_bytes_per_s: float | None) -> Peaks:
    """Return the peaks that the user gives, and for the rest those of the GPU in the catalog.

    Parameters
    ----------
    device_name : str
        As the driver prints it.
    flops_per_s : mapping
        By dtype; may be empty.
    memory_bytes_per_s : float or None

    Raises
    ------
    InputError
        The catalog does not have the GPU, and a peak is missing.
    """
    machine = find_gpu(device_name)
    if machine is None and not (flops_per_s and memory_bytes_per_s):
        raise InputError(
            "is not in the catalog, so that its peaks are unknown: "
            "give the datasheet's with --peak-tflops DTYPE=X and --memory-gb-per-s X",
            source=device_name,
        )
    given = [f"--peak-tflops {dtype}={peak / 1e12:g}" for dtype, peak in flops_per_s.items()]
    if memory_bytes_per_s:
        given.append(f"--memory-gb-per-s {memory_bytes_per_s / 1e9:g}")
    sources = ([] if machine is None else [f"as {machine.name} of the catalog"]) + (
        [f"given as {' '.join(given)}"] if given else []
    )
    known = {} if machine is None else machine.gpu.peak_flops_per_s
    bandwidth = memory_bytes_per_s or (machine.gpu.memory_bytes_per_s if machine else 0.0)
    return Peaks({**known, **flops_per_s}, bandwidth, ", ".join(sources))


def efficiencies(calibration: Calibration, peaks: Peaks) -> dict[str, Rates]:
    """Return for each efficiency of a `Gpu` the shares of the peak that were measured; they may exceed 1."""
    flops_per_s = peaks.flops_per_s[calibration.dtype]
    return {
        "gemm_efficiency": calibration.gemm.over(flops_per_s),
        "attention_forward_efficiency": calibration.attention_forward.over(flops_per_s),
        "attention_backward_efficiency": calibration.attention_backward.over(flops_per_s),
        "convolution_efficiency": calibration.convolution.over(flops_per_s),
        "memory_efficiency": calibration.memory.over(peaks.memory_bytes_per_s),
    }


def hardware_of(calibration: Calibration, peaks: Peaks, *, name: str, date: str) -> Hardware:
    """Return the machine that was measured, each number with four digits.

    Parameters
    ----------
    calibration : Calibration
    peaks : Peaks
    name : str
        What the machine is called in its file.
    date : str
        Of the measurement, for the sources.

    Raises
    ------
    InputError
        An efficiency is above 1, or both directions of the link were faster together than alone.
    """
    shares = efficiencies(calibration, peaks)
    _check_shares(calibration, peaks, shares)
    if calibration.duplex_factor > 1 + DUPLEX_NOISE:
        raise InputError(
            f"is {calibration.duplex_factor:.3g}: copies in both directions were faster than one alone; "
            "was the link busy? Measure it idle",
            source=calibration.device_name,
            place="duplex_factor",
        )
    gpu = Gpu(
        name=calibration.device_name,
        peak_flops_per_s=peaks.flops_per_s,
        memory_bytes_per_s=peaks.memory_bytes_per_s,
        launch_s=_digits(calibration.launch_s),
        memory_bytes=calibration.memory_bytes,
        **{key: _digits(share.median) for key, share in shares.items()},
    )
    link = Link(
        d2h_bytes_per_s=_digits(calibration.d2h.bytes_per_s),
        h2d_bytes_per_s=_digits(calibration.h2d.bytes_per_s),
        duplex_factor=min(1.0, _digits(calibration.duplex_factor)),
        latency_s=_digits((calibration.d2h.latency_s + calibration.h2d.latency_s) / 2),
    )
    return Hardware(name, gpu, link, _sources(calibration, peaks, shares, date))


def _check_shares(calibration: Calibration, peaks: Peaks, shares: Mapping[str, Rates]) -> None:
    """Refuse what no file holds: then the peak is another GPU's, and the user can give the right one."""
    above = [f"{key} {share.median:.3f}" for key, share in shares.items() if share.median > 1]
    if not above:
        return
    advice = []
    reached = max(share.median for key, share in shares.items() if key != "memory_efficiency")
    if reached > 1:
        sustained = reached * peaks.flops_per_s[calibration.dtype] / 1e12
        advice.append(f"--peak-tflops {calibration.dtype}=X, X at least {sustained:.4g}")
    if shares["memory_efficiency"].median > 1:
        sustained = shares["memory_efficiency"].median * peaks.memory_bytes_per_s / 1e9
        advice.append(f"--memory-gb-per-s X, X at least {sustained:.4g}")
    raise InputError(
        f"sustained more than its peaks ({peaks.source}), and a hardware file holds no efficiency above 1: "
        f"{', '.join(above)}. Give the peaks of this very GPU at its highest clock: {' and '.join(advice)}",
        source=calibration.device_name,
    )


def _sources(calibration: Calibration, peaks: Peaks, shares: Mapping[str, Rates], date: str) -> tuple[str, ...]:
    sizes, d2h, h2d = calibration.sizes, calibration.d2h, calibration.h2d
    shapes: dict[str, Sequence[object]] = {
        "gemm_efficiency": sizes.gemm,
        "attention_forward_efficiency": sizes.attention,
        "attention_backward_efficiency": sizes.attention,
        "convolution_efficiency": sizes.convolution,
        "memory_efficiency": [f"{n_bytes / 1e6:g} MB" for n_bytes in sizes.memory_bytes],
    }
    layout = convolution_layout(calibration.dtype)
    copied = f"{min(sizes.copy_bytes) / 1e6:.3g} to {max(sizes.copy_bytes) / 1e6:.3g} MB"
    return (
        f"measured by slackswap calibrate on {date}: {calibration.device_name}, {calibration.software}",
        f"peak_flops_per_s, memory_bytes_per_s: {peaks.source}, not measured; memory_bytes: as the driver reports it",
        *(_source(key, shares[key], of, calibration.dtype) for key, of in shapes.items()),
        "attention: causal, batch x heads x sequence x units of a head",
        f"convolution: 3x3, {layout}, with both gradients; batch x channels x height x width",
        f"launch_s: {min(sizes.launches)} to {max(sizes.launches)} tiny kernels",
        f"link: pinned memory, {copied} a copy; fit of latency and bandwidth within {max(d2h.residual, h2d.residual):.1%}",
        f"latency_s: the mean of {d2h.latency_s * 1e6:.3g} us to the host and {h2d.latency_s * 1e6:.3g} us to the device",
        f"duplex_factor: {sizes.duplex_bytes / 1e6:.3g} MB a copy in both directions, {calibration.duplex_factor:.4g} measured",
    )


def _source(key: str, share: Rates, shapes: Sequence[object], dtype: str) -> str:
    measured = ", ".join(f"{value:.3f} for {shape}" for value, shape in zip(share.values, shapes, strict=True))
    return f"{key}: the median of {measured}, in {dtype}"


def _digits(value: float) -> float:
    return float(f"{value:.4g}")
