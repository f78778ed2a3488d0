"""The command ``slackswap calibrate``: measures the GPU at hand and writes a hardware file of it.

Not verified on a GPU; `slackswap.hardware.calibration` says what has run instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from slackswap.evaluate.command_options import positive_seconds
from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.hardware.gpu import DTYPE_BYTES
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from slackswap.hardware.calibrated_hardware import Peaks
    from slackswap.hardware.calibration import Announce, Calibration


@click.command()
@click.option(
    "-o", "--output", metavar="FILE.toml", help="Write the hardware file here, for --hardware; without it, only show."
)
@click.option("--name", metavar="NAME", help="What the machine is called; by default after its GPU.")
@click.option(
    "--seconds",
    type=float,
    default=30.0,
    show_default=True,
    callback=positive_seconds,
    metavar="S",
    help="GPU time for all measurements together; a slow GPU takes longer.",
)
@click.option(
    "--peak-tflops",
    multiple=True,
    metavar="DTYPE=X",
    help="Dense peak of a datasheet in TFLOP/s, for each dtype; needed for a GPU that the catalog lacks.",
)
@click.option("--memory-gb-per-s", type=float, metavar="X", help="Peak memory bandwidth of a datasheet, likewise.")
def calibrate(
    output: str | None, name: str | None, seconds: float, peak_tflops: tuple[str, ...], memory_gb_per_s: float | None
) -> None:
    """Measure the efficiencies, launches and link of this machine's GPU (extra `torch`, needs CUDA).

    The GPU and its link should be idle. Of several GPUs, the first that CUDA_VISIBLE_DEVICES leaves is measured.
    """
    from slackswap.evaluate.report import print_table
    from slackswap.hardware.calibrated_hardware import hardware_of, peaks_of
    from slackswap.hardware.calibration import measure
    from slackswap.hardware.calibration_device import cuda_device, cuda_name
    from slackswap.hardware.hardware_file import hardware_toml

    _check_output(output)
    given = _peaks_given(peak_tflops), _bandwidth_given(memory_gb_per_s)
    device_name = cuda_name()
    machine = _machine_name(name, device_name)
    peaks = peaks_of(device_name, *given)
    with cuda_device(peaks.training_dtype) as device, _progress() as announce:
        calibration = measure(device, seconds=seconds, announce=announce)
    print_table(_table(calibration, peaks))  # before anything that was measured is refused
    today = datetime.now(UTC).date().isoformat()
    hardware = hardware_of(calibration, peaks, name=machine, date=today)
    if output is not None:
        write_output(output, hardware_toml(hardware))
        click.echo(f"hardware written to {output}", err=True)


def _check_output(output: str | None) -> None:
    if output is not None and not output.endswith(".toml"):
        raise InputError("ends in .toml, so that --hardware knows it for a file", source="-o", place=output)
    check_outputs(output)


def _machine_name(name: str | None, device_name: str) -> str:
    from slackswap.hardware.catalog import catalog

    if name is None:
        return re.sub(r"[^a-z0-9]+", "-", device_name.lower()).strip("-") or "gpu"
    if not name.strip() or not name.isprintable():
        raise InputError("is a name that prints", source="--name", place=repr(name))
    if name in catalog():
        raise InputError("is a machine of the catalog: choose another name", source="--name", place=name)
    return name


def _peaks_given(options: tuple[str, ...]) -> dict[str, float]:
    """Return FLOP/s by dtype from ``DTYPE=X`` in TFLOP/s."""
    peaks: dict[str, float] = {}
    for option in options:
        dtype, _, text = option.partition("=")
        if dtype not in DTYPE_BYTES:
            raise InputError(
                f"is DTYPE=X with one of the dtypes {', '.join(DTYPE_BYTES)}", source="--peak-tflops", place=option
            )
        if dtype in peaks:
            raise InputError("gives a dtype twice", source="--peak-tflops", place=option)
        peaks[dtype] = 1e12 * _positive(text, "--peak-tflops", option)
    return peaks


def _bandwidth_given(gigabytes_per_s: float | None) -> float | None:
    if gigabytes_per_s is None:
        return None
    return 1e9 * _positive(str(gigabytes_per_s), "--memory-gb-per-s", str(gigabytes_per_s))


def _positive(text: str, source: str, place: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:  # times 10^12, a float still holds it
        raise InputError("gives a finite number above 0, of a datasheet", source=source, place=place)
    return value


@contextmanager
def _progress() -> Iterator[Announce | None]:
    """Show on stderr what is measured; silent where stderr is no terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with console.status("measuring") as status:
        yield lambda what: status.update(f"measuring {what}")


def _table(calibration: Calibration, peaks: Peaks) -> Table:
    from rich.table import Table

    from slackswap.evaluate.results import plain
    from slackswap.hardware.calibrated_hardware import efficiencies

    title = f"{calibration.device_name}, {calibration.dtype}; peaks {peaks.source}"
    table = Table("", "measured", "share of the peak", "how", title=plain(title), title_justify="left")
    for key, share in efficiencies(calibration, peaks).items():
        of_memory = key == "memory_efficiency"
        peak = peaks.memory_bytes_per_s / 1e9 if of_memory else peaks.flops_per_s[calibration.dtype] / 1e12
        table.add_row(
            key,
            f"{share.median * peak:.4g} {'GB/s' if of_memory else 'TFLOP/s'}",
            f"{share.median:.3f}",
            f"{min(share.values):.3f} to {max(share.values):.3f} over {len(share.values)} shapes",
        )
    table.add_row("launch_s", f"{calibration.launch_s * 1e6:.3g} us", "", "slope over the number of tiny kernels")
    for key, copies in (("d2h", calibration.d2h), ("h2d", calibration.h2d)):
        fit = f"fit of latency and bandwidth within {copies.residual:.1%}"
        table.add_row(f"{key}_bytes_per_s", f"{copies.bytes_per_s / 1e9:.4g} GB/s", "", fit)
        table.add_row(f"{key} latency", f"{copies.latency_s * 1e6:.3g} us", "", fit)
    table.add_row("duplex_factor", f"{calibration.duplex_factor:.3f}", "", "copies in both directions at once")
    return table
