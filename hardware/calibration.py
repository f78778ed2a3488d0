"""What a GPU and its link sustain, measured: the numbers of a hardware file that no datasheet states.

Not verified on a GPU: where this was written there was none. The measurements have run on a CPU, and on a simulated device
whose numbers they recover; `calibration_device` says what of the calls to CUDA has run.

How each number is defined, so that the roofline and the event model give back the times that were measured:

- Kernels run one after another, so that the host's part hides behind the kernel before; a time is the median of repeats.
- `launch_s` is the slope of the time of n tiny kernels over n: what one more launch adds, as PyTorch launches from Python.
- A kernel's rate is its work over its time less its launches; the efficiency is the median rate of several shapes over the
  peak. A convolution's rate counts the forward pass and the two gradients, as the roofline gives all three one efficiency.
- A copy takes ``latency + bytes / bandwidth`` (event model, rule 4), fitted over several sizes of pinned memory, each
  repeated on one stream. The two directions share one latency in the file: the mean, as each swap copies out and in.
- The duplex factor is the one with which the event model takes as long as copies in both directions at once took.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from slackswap.hardware.calibration_device import AttentionShape, ConvolutionShape, Device, Direction, GemmShape, Work
from slackswap.hardware.input_error import InputError
from slackswap.hardware.roofline import ATTENTION_BACKWARD_PER_FORWARD_FLOPS

# The resolution of a CUDA event is 0.5 us, and a first launch takes 10 us: neither counts in 20 ms.
TIMED_S, MOST_RUNS = 0.02, 1000
# Fewest, even where that takes longer than was asked for; most, since more would not move the median.
FEWEST_REPEATS, MOST_REPEATS = 5, 200
DUPLEX_S = 0.05

Announce = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured. The default needs about 4 GB of free device memory, and 1 GB of host memory that can be pinned.

    Attributes
    ----------
    gemm, attention, convolution
        Shapes like those of large transformers and of VGG.
    memory_bytes : tuple of int
        Bytes that a memory-bound kernel reads and writes: many times the caches.
    launches : tuple of int
        Numbers of tiny kernels; two at least.
    copy_bytes : tuple of int
        Two at least. From where a copy takes longer than PyTorch takes to enqueue it, to where latency does not count.
    duplex_bytes : int
        Of each copy while both directions move bytes.
    """

    gemm: tuple[GemmShape, ...] = (
        GemmShape(8192, 4096, 4096),
        GemmShape(8192, 4096, 16384),
        GemmShape(8192, 16384, 4096),
        GemmShape(8192, 8192, 8192),
    )
    attention: tuple[AttentionShape, ...] = (
        AttentionShape(16, 16, 1024, 64),
        AttentionShape(8, 16, 2048, 64),
        AttentionShape(8, 16, 2048, 128),
        AttentionShape(4, 16, 4096, 128),
    )
    convolution: tuple[ConvolutionShape, ...] = (
        ConvolutionShape(32, 64, 224),
        ConvolutionShape(32, 128, 112),
        ConvolutionShape(32, 256, 56),
        ConvolutionShape(32, 512, 28),
    )
    memory_bytes: tuple[int, ...] = (1 << 28, 1 << 29, 1 << 30)
    launches: tuple[int, ...] = (250, 500, 1000, 2000)
    copy_bytes: tuple[int, ...] = (1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28)
    duplex_bytes: int = 1 << 28

    @property
    def n_timings(self) -> int:
        """How many medians `measure` takes, the warm-up among them."""
        kernels = len(self.gemm) + 2 * len(self.attention) + 2 * len(self.convolution) + len(self.memory_bytes)
        return 1 + len(self.launches) + kernels + 2 * len(self.copy_bytes) + 3


@dataclass(frozen=True, slots=True)
class Rates:
    """What one kind of kernel sustains, for each shape: FLOP/s, bytes/s, or shares of a peak."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The one number that stands for all."""
        return statistics.median(self.values)

    def over(self, peak: float) -> Rates:
        """Return shares of `peak`."""
        return Rates(tuple(value / peak for value in self.values))


@dataclass(frozen=True, slots=True)
class Line:
    """A fit of ``y = intercept + slope x``; `residual` is its largest deviation as a share of the y measured."""

    intercept: float
    slope: float
    residual: float


@dataclass(frozen=True, slots=True)
class CopyTimes:
    """The fit of one direction: seconds for a copy's start, bytes per second after it, and how far off the fit is."""

    latency_s: float
    bytes_per_s: float
    residual: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Everything that was measured, before it is compared with peaks.

    Attributes
    ----------
    device_name, dtype, software : str
        The GPU, the dtype of its kernels, and the versions that it ran under.
    memory_bytes : int
        As the driver reports it.
    sizes : Sizes
    gemm, attention_forward, attention_backward, convolution : Rates
        FLOP/s for each shape.
    memory : Rates
        Bytes per second that memory-bound kernels move.
    launch_s : float
    d2h, h2d : CopyTimes
    duplex_factor : float
        As computed: noise can lift it above 1.
    """

    device_name: str
    dtype: str
    software: str
    memory_bytes: int
    sizes: Sizes
    gemm: Rates
    attention_forward: Rates
    attention_backward: Rates
    convolution: Rates
    memory: Rates
    launch_s: float
    d2h: CopyTimes
    h2d: CopyTimes
    duplex_factor: float


def measure(
    device: Device, sizes: Sizes | None = None, *, seconds: float, announce: Announce | None = None
) -> Calibration:
    """Measure a device.

    Parameters
    ----------
    device : Device
    sizes : Sizes, optional
    seconds : float
        Device time for all measurements together, split evenly; a slow kernel is repeated 5 times even if that takes longer.
    announce : callable, optional
        Told what is measured next.

    Raises
    ------
    InputError
        The device refuses a measurement (memory, no fused attention), or its times contradict what they are fitted to.
    """
    sizes = sizes or Sizes()
    meter = Meter(device, seconds / sizes.n_timings)
    with _step(device, announce, "matrix products"):
        meter.run_s(device.gemm(sizes.gemm[0]))  # the clocks of an idle GPU rise
    with _step(device, announce, "kernel launches"):
        launch_s = measure_launch(meter, sizes.launches)
    with _step(device, announce, "matrix products"):
        gemm = Rates(tuple(_rate(shape.flops, meter.run_s(device.gemm(shape)), launch_s) for shape in sizes.gemm))
    with _step(device, announce, "fused attention"):
        attention_forward, attention_backward = measure_attention(meter, sizes.attention, launch_s)
    with _step(device, announce, "convolutions"):
        convolution = measure_convolution(meter, sizes.convolution, launch_s)
    with _step(device, announce, "memory-bound kernels"):
        moved = {n_bytes: meter.run_s(device.elementwise(n_bytes)) for n_bytes in sizes.memory_bytes}
        memory = Rates(tuple(_rate(n_bytes, seconds, launch_s) for n_bytes, seconds in moved.items()))
    with _step(device, announce, "copies to the host"):
        d2h = measure_copies(meter, "d2h", sizes.copy_bytes)
    with _step(device, announce, "copies to the device"):
        h2d = measure_copies(meter, "h2d", sizes.copy_bytes)
    with _step(device, announce, "copies in both directions"):
        duplex = measure_duplex(meter, sizes.duplex_bytes)
    return Calibration(
        device_name=device.name,
        dtype=device.dtype,
        software=device.software,
        memory_bytes=device.memory_bytes,
        sizes=sizes,
        gemm=gemm,
        attention_forward=attention_forward,
        attention_backward=attention_backward,
        convolution=convolution,
        memory=memory,
        launch_s=launch_s,
        d2h=d2h,
        h2d=h2d,
        duplex_factor=duplex,
    )


@dataclass(frozen=True, slots=True)
class Meter:
    """Takes medians of what a device measures, over about `seconds` of device time for each."""

    device: Device
    seconds: float

    def median_s(self, timed: Callable[[], float]) -> float:
        """Return the median of what `timed` returns in seconds; its first call, which may compile and choose, is left out."""
        timed()
        times_s: list[float] = []
        spent_s = 0.0
        while len(times_s) < FEWEST_REPEATS or (spent_s < self.seconds and len(times_s) < MOST_REPEATS):
            times_s.append(timed())
            spent_s += times_s[-1]
        return statistics.median(times_s)

    def run_s(self, work: Work) -> float:
        """Return the seconds of one run of `work` among many, one after another."""
        self.device.elapsed_s(work, 1)
        n_runs = _runs_in(TIMED_S, self.device.elapsed_s(work, 1))
        return self.median_s(partial(self.device.elapsed_s, work, n_runs)) / n_runs


def measure_launch(meter: Meter, numbers: Sequence[int]) -> float:
    """Return the seconds that one kernel launch adds.

    Raises
    ------
    InputError
        More launches took no longer than fewer.
    """
    work = meter.device.tiny_kernel()
    times_s = [meter.median_s(partial(meter.device.elapsed_s, work, number)) for number in numbers]
    launch_s = fit_line(numbers, times_s).slope
    if launch_s <= 0:
        raise InputError(
            f"{numbers[-1]} kernel launches took no longer than {numbers[0]}: is the device busy? Measure it idle",
            source=meter.device.name,
        )
    return launch_s


def measure_attention(meter: Meter, shapes: Sequence[AttentionShape], launch_s: float) -> tuple[Rates, Rates]:
    """Return the FLOP/s of fused attention's forward and backward pass."""
    forward_rates, backward_rates = [], []
    for shape in shapes:
        forward, backward = meter.device.attention(shape)
        forward_rates.append(_rate(shape.flops, meter.run_s(forward), launch_s))
        backward_flops = ATTENTION_BACKWARD_PER_FORWARD_FLOPS * shape.flops
        backward_rates.append(_rate(backward_flops, meter.run_s(backward), launch_s))
    return Rates(tuple(forward_rates)), Rates(tuple(backward_rates))


def measure_convolution(meter: Meter, shapes: Sequence[ConvolutionShape], launch_s: float) -> Rates:
    """Return the FLOP/s of convolutions, each with its two gradients."""
    rates = []
    for shape in shapes:
        forward, gradients = meter.device.convolution(shape)
        rates.append(_rate(3 * shape.flops, meter.run_s(forward) + meter.run_s(gradients), 3 * launch_s))
    return Rates(tuple(rates))


def measure_copies(meter: Meter, direction: Direction, sizes_bytes: Sequence[int]) -> CopyTimes:
    """Return latency and bandwidth of one direction, the other idle.

    Raises
    ------
    InputError
        The times do not grow with the bytes.
    """
    times_s = [meter.run_s(meter.device.copy(direction, n_bytes)) for n_bytes in sizes_bytes]
    line = fit_line(sizes_bytes, times_s)
    if line.intercept < 0:  # no copy starts before it is asked for; the residual says what the fit is worth then
        line = fit_line(sizes_bytes, times_s, through_origin=True)
    if line.slope <= 0:
        raise InputError(
            f"{direction} copies of {sizes_bytes[-1]} bytes took no longer than of {sizes_bytes[0]}: "
            "is the link busy? Measure it idle",
            source=meter.device.name,
        )
    return CopyTimes(line.intercept, 1 / line.slope, line.residual)


def measure_duplex(meter: Meter, n_bytes: int) -> float:
    """Return the share of its bandwidth that each direction keeps while both move bytes."""
    device = meter.device
    copies = [device.copy("d2h", n_bytes), device.copy("h2d", n_bytes)]
    # As many of each as take equally long, so that both directions move bytes nearly all the time.
    works = [(copy, _runs_in(DUPLEX_S, device.elapsed_s(copy, 2) / 2)) for copy in copies]
    alone_s = [meter.median_s(partial(device.together_s, [work])) for work in works]
    return duplex_factor(alone_s[0], alone_s[1], meter.median_s(partial(device.together_s, works)))


def duplex_factor(out_s: float, in_s: float, together_s: float) -> float:
    """Return the duplex factor d that explains how long copies in both directions take together.

    By the event model (rule 4) both run at d of their rate until the shorter is done, after ``min / d``, and the rest of the
    longer one runs at full rate: ``together = min / d + max - min``. Two copies that do not overlap at all have
    ``together = out + in`` and d = 1/2 where both take equally long.

    Raises
    ------
    InputError
        Both together took no longer than what one takes more than the other: no such factor exists.
    """
    shorter_s, longer_s = sorted((out_s, in_s))
    overlapped_s = together_s - (longer_s - shorter_s)
    if overlapped_s <= 0:
        raise InputError(
            f"copies in both directions took {together_s:.3g} s together, and {longer_s:.3g} s one of them alone: "
            "is the link busy? Measure it idle",
            place="duplex_factor",
        )
    return shorter_s / overlapped_s


def fit_line(x: Sequence[float], y: Sequence[float], *, through_origin: bool = False) -> Line:
    """Fit ``y = intercept + slope x`` by least squares of the deviations as shares of y.

    Times over four orders of magnitude scatter by shares: without the weights, the longest copy's noise would be larger than
    the latency.

    Parameters
    ----------
    x, y : sequence of float
        Two points at least, of different x; y is positive.
    through_origin : bool
        Whether the intercept is held at 0.
    """
    import numpy as np

    xs, ys = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    scale = xs.max()
    columns = np.stack([xs / scale, np.ones_like(xs)][: 1 if through_origin else 2], axis=1) / ys[:, None]
    solution, *_ = np.linalg.lstsq(columns, np.ones_like(ys), rcond=None)
    residual = np.abs(columns @ solution - 1).max()
    intercept = 0.0 if through_origin else float(solution[1])
    return Line(intercept, float(solution[0] / scale), float(residual))


def _runs_in(seconds: float, one_s: float) -> int:
    return min(MOST_RUNS, max(1, math.ceil(seconds / max(one_s, 1e-9))))


def _rate(amount: float, seconds: float, launches_s: float) -> float:
    """Return `amount` per second of a kernel's time without its launches (roofline: amount / rate + launches)."""
    if seconds <= launches_s:
        raise InputError(
            f"a kernel took {seconds * 1e6:.3g} us and its launches alone {launches_s * 1e6:.3g} us: "
            "is the device or the host busy? Measure them idle",
            place="launch_s",
        )
    return amount / (seconds - launches_s)


@contextmanager
def _step(device: Device, announce: Announce | None, what: str) -> Iterator[None]:
    """Announce a step, and say in one line why the device refuses it: what torch raises is a RuntimeError."""
    if announce is not None:
        announce(what)
    try:
        yield
    except InputError as error:
        raise error.within(device.name) from None
    except RuntimeError as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{what} in {device.dtype} cannot be measured: {reason}", source=device.name) from error
