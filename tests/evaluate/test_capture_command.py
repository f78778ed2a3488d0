"""``slackswap capture``: what it prints, what it writes, and what stops it."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from typing import get_args

import click
import pytest

from slackswap.evaluate.capture_command import capture
from slackswap.hardware import InputError, load_hardware
from slackswap.models.problem_file import read_problem
from slackswap.models.traces.capture import Device

needs_torch = pytest.mark.torch


def run(*arguments: str) -> None:
    with capture.make_context("capture", list(arguments)) as context:
        capture.invoke(context)


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    with pytest.raises(InputError) as caught:
        run("train:step")
    assert str(caught.value) == 'capture: needs PyTorch, which is not installed: pip install "slackswap[torch]"'


def test_the_output_is_checked_before_anything_else(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or directory"):
        run("no_such_module:step", "-o", str(tmp_path / "missing" / "problem.json"))
    with pytest.raises(InputError, match="no hardware has this name"):
        run("no_such_module:step", "--hardware", "abacus")


def test_devices_are_those_that_a_step_can_run_on() -> None:
    (device,) = (option for option in capture.params if option.name == "device")
    assert isinstance(device.type, click.Choice)
    assert tuple(device.type.choices) == get_args(Device)


def test_help_says_what_the_function_returns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        capture.main(["--help"], prog_name="slackswap capture")
    shown = " ".join(capsys.readouterr().out.split())
    assert "returns (model, inputs, loss)" in shown
    assert 'pip install "slackswap[torch]"' in shown


@needs_torch
@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_a_step_becomes_a_problem_file(device: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "problem.json.gz"
    run("captured_models:perceptron", "--device", device, "--hardware", "a100-40", "--steps", "2", "-o", str(path))
    printed = capsys.readouterr()
    problem = read_problem(path)
    assert problem.link == load_hardware("a100-40").link
    assert problem.name.startswith("captured_models:perceptron on ")
    assert "A, saved activations" in printed.out and "heuristics used:" in printed.out
    assert "Rebuild costs are the sum of the times" in printed.out
    assert "Autograd saves 128 bytes more" in printed.out
    assert "derived from: PyTorch step" in printed.out
    assert f"problem written to {path}" in printed.err
    if device == "fake":
        assert problem.metadata["gpu"] == load_hardware("a100-40").gpu.name
    else:
        assert "warming up 2 times, then recording 2 steps on cpu" in printed.err


@needs_torch
@pytest.mark.parametrize("device", ["cpu", "fake"])
def test_an_interrupt_leaves_nothing_behind(device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    source = """
import torch
from torch import nn

class Interrupted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.steps = nn.ModuleList(nn.Sequential(nn.Linear(4, 4)) for _ in range(2)), 0

    def forward(self, x):
        self.steps += 1
        x = self.layers[1](self.layers[0](x))
        if self.steps == 2:
            raise KeyboardInterrupt
        return x

def step():
    return Interrupted(), torch.randn(2, 4), lambda y: y.sum()
"""
    (tmp_path / "train.py").write_text(source)
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    output = tmp_path / "problem.json"
    with pytest.raises(KeyboardInterrupt):
        run(f"{tmp_path / 'train.py'}:step", "--device", device, "-o", str(output))
    assert list(folder.iterdir()) == []
    assert not output.exists()
    # PyTorch is as it was: real tensors, and the next capture works.
    assert type(torch.zeros(1)) is torch.Tensor
    run("captured_models:perceptron", "--device", device, "--steps", "1", "-o", str(output))
    assert read_problem(output).saved_bytes > 0
