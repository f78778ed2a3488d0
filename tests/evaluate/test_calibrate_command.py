"""`slackswap calibrate`: refusals in one line, and a file that `--hardware` takes, measured on a simulated GPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from simulated_gpu import SimulatedGpu

from slackswap.evaluate.calibrate_command import calibrate
from slackswap.evaluate.command_line import cli
from slackswap.evaluate.sources import load_source
from slackswap.hardware import calibration_device
from slackswap.hardware.catalog import Hardware, catalog, load_hardware

Run = Callable[..., CompletedProcess[str]]
Install = Callable[..., SimulatedGpu]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.commands, "calibrate", calibrate)


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a simulated GPU where torch would find one."""

    def put(truth: Hardware, name: str) -> SimulatedGpu:
        gpu = SimulatedGpu(truth, name=name)

        @contextmanager
        def lend(dtype: str) -> Iterator[SimulatedGpu]:
            gpu.dtype = dtype
            yield gpu

        monkeypatch.setattr(calibration_device, "cuda_name", lambda: name)
        monkeypatch.setattr(calibration_device, "cuda_device", lend)
        return gpu

    return put


def slower_v100() -> Hardware:
    known = catalog()["v100"]
    return replace(
        known,
        gpu=replace(known.gpu, gemm_efficiency=0.61, convolution_efficiency=0.43, launch_s=6e-6),
        link=replace(known.link, d2h_bytes_per_s=11e9, duplex_factor=0.7),
    )


# ---- a measurement ----------------------------------------------------------------------------------------------------


def test_the_file_is_the_machine_that_was_measured(run: Run, install: Install) -> None:
    truth = slower_v100()
    install(truth, "Tesla V100-SXM2-16GB")
    ran = run("calibrate", "-o", "lab.toml", "--name", "lab", "--seconds", "5")
    assert (ran.returncode, ran.stderr) == (0, "hardware written to lab.toml\n")
    found = load_hardware("lab.toml")
    assert (found.name, found.gpu.name) == ("lab", "Tesla V100-SXM2-16GB")
    assert found.gpu.peak_flops_per_s == {"fp16": 125e12, "fp32": 15.7e12}
    for key in ("gemm_efficiency", "attention_backward_efficiency", "convolution_efficiency", "launch_s"):
        assert getattr(found.gpu, key) == pytest.approx(getattr(truth.gpu, key), rel=1e-3)
    for key in ("d2h_bytes_per_s", "h2d_bytes_per_s", "duplex_factor", "latency_s"):
        assert getattr(found.link, key) == pytest.approx(getattr(truth.link, key), rel=1e-3)
    assert found.sources[0].startswith("measured by slackswap calibrate on 20")
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "lab.toml", "two.json"]


def test_the_file_is_what_hardware_takes(run: Run, install: Install) -> None:
    install(slower_v100(), "Tesla V100-SXM2-16GB")
    run("calibrate", "-o", "lab.toml", "--seconds", "1")
    link = load_source("chain.json", "lab.toml").link
    assert (link.d2h_bytes_per_s, link.h2d_bytes_per_s) == pytest.approx((11e9, 12e9), rel=1e-3)


def test_the_table_shows_what_was_measured_and_of_which_peak(run: Run, install: Install) -> None:
    install(slower_v100(), "Tesla V100-SXM2-16GB")
    ran = run("calibrate", "--seconds", "1")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = {line.split()[1]: line for line in ran.stdout.splitlines() if line.startswith("│")}
    assert "Tesla V100-SXM2-16GB, fp16; peaks as v100 of the catalog" in ran.stdout
    assert "76.25 TFLOP/s" in lines["gemm_efficiency"]  # 0.61 x 125
    assert "0.610 to 0.610 over 4 shapes" in lines["gemm_efficiency"]
    assert "765 GB/s" in lines["memory_efficiency"]  # 0.85 x 900
    assert "6 us" in lines["launch_s"]
    assert "11 GB/s" in lines["d2h_bytes_per_s"]
    assert "0.700" in lines["duplex_factor"]
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "two.json"]


def test_the_machine_is_called_after_its_gpu(run: Run, install: Install) -> None:
    install(slower_v100(), "Tesla V100-SXM2-16GB")
    run("calibrate", "-o", "lab.toml", "--seconds", "1")
    assert load_hardware("lab.toml").name == "tesla-v100-sxm2-16gb"


def test_a_gpu_that_the_catalog_lacks_is_measured_by_peaks_that_are_given(run: Run, install: Install) -> None:
    truth = slower_v100()
    turing = replace(truth, gpu=replace(truth.gpu, peak_flops_per_s={"fp16": 107e12}, memory_bytes_per_s=616e9))
    install(turing, "NVIDIA GeForce RTX 2080 Ti")
    peaks = ("--peak-tflops", "fp16=107", "--peak-tflops", "fp32=13.4", "--memory-gb-per-s", "616")
    assert run("calibrate", "-o", "lab.toml", "--seconds", "1", *peaks).returncode == 0
    found = load_hardware("lab.toml")
    assert found.gpu.peak_flops_per_s == pytest.approx({"fp16": 107e12, "fp32": 13.4e12})
    assert found.gpu.memory_bytes_per_s == pytest.approx(616e9)
    assert found.gpu.gemm_efficiency == pytest.approx(0.61, rel=1e-3)


def test_progress_goes_to_stderr(run: Run, install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal then
    install(slower_v100(), "Tesla V100-SXM2-16GB")
    ran = run("calibrate", "--seconds", "1")
    assert "measuring" in ran.stderr
    assert "measuring" not in ran.stdout


# ---- refusals ---------------------------------------------------------------------------------------------------------


def refused(ran: CompletedProcess[str]) -> str:
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert sorted(path.name for path in Path().iterdir()) == ["chain.json", "two.json"]
    return ran.stderr


def test_more_than_the_peak_is_shown_and_not_written(run: Run, install: Install) -> None:
    install(slower_v100(), "Tesla V100-SXM2-16GB")
    ran = run("calibrate", "-o", "lab.toml", "--seconds", "1", "--peak-tflops", "fp16=60")
    assert "1.271" in ran.stdout  # 76.25 / 60
    assert "no efficiency above 1: gemm_efficiency 1.271, " in refused(ran)
    assert "--peak-tflops fp16=X, X at least 76.25" in ran.stderr


def test_without_torch_the_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(run("calibrate", "-o", "lab.toml")) == (
        'slackswap: error: calibrate: torch is not installed: install the torch extra, pip install "slackswap[torch]"\n'
    )


def test_without_a_gpu_nothing_is_measured(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = ModuleType("torch")
    torch.__version__, torch.cuda = "2.6.0", SimpleNamespace(is_available=lambda: False)
    monkeypatch.setitem(sys.modules, "torch", torch)
    ran = run("calibrate", "-o", "lab.toml")
    assert "error: calibrate: torch 2.6.0 sees no CUDA GPU, and nothing else is measured" in refused(ran)
    assert ran.stdout == ""


@pytest.mark.torch
def test_torch_for_cpus_measures_nothing(run: Run) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    assert "sees no CUDA GPU" in refused(run("calibrate", "-o", "lab.toml"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "lab.json"], "-o: lab.json: ends in .toml"),
        (["-o", "nowhere/lab.toml"], "nowhere/lab.toml: cannot be written: no such file or directory"),
        (["--name", ""], "--name: '': is a name that prints"),
        (["--name", "a\nb"], r"--name: 'a\nb': is a name that prints"),
        (["--name", "h200"], "--name: h200: is a machine of the catalog: choose another name"),
        (
            ["--peak-tflops", "fp8=100"],
            "--peak-tflops: fp8=100: is DTYPE=X with one of the dtypes bf16, fp16, tf32, fp32",
        ),
        (["--peak-tflops", "fp16"], "--peak-tflops: fp16: gives a finite number above 0"),
        (["--peak-tflops", "fp16=nan"], "--peak-tflops: fp16=nan: gives a finite number above 0"),
        (["--peak-tflops", "fp16=-1"], "--peak-tflops: fp16=-1: gives a finite number above 0"),
        (["--peak-tflops", "fp16=1e300"], "--peak-tflops: fp16=1e300: gives a finite number above 0"),
        (["--peak-tflops", "fp16=1", "--peak-tflops", "fp16=2"], "--peak-tflops: fp16=2: gives a dtype twice"),
        (["--memory-gb-per-s", "0"], "--memory-gb-per-s: 0.0: gives a finite number above 0"),
        (["--memory-gb-per-s", "inf"], "--memory-gb-per-s: inf: gives a finite number above 0"),
    ],
)
def test_bad_options_are_refused_before_anything_is_measured(
    run: Run, install: Install, arguments: list[str], message: str
) -> None:
    gpu = install(slower_v100(), "Tesla V100-SXM2-16GB")
    assert f"slackswap: error: {message}" in refused(run("calibrate", *arguments))
    assert gpu.timed_s == 0


def test_an_unknown_gpu_asks_for_its_peaks_before_anything_is_measured(run: Run, install: Install) -> None:
    gpu = install(slower_v100(), "AMD Instinct MI300X")
    message = refused(run("calibrate", "-o", "lab.toml", "--peak-tflops", "bf16=1307"))
    assert "AMD Instinct MI300X: is not in the catalog" in message
    assert "--memory-gb-per-s X" in message
    assert gpu.timed_s == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "soon"])
def test_seconds_are_above_0(run: Run, seconds: str) -> None:
    assert run("calibrate", "--seconds", seconds).returncode == 2
