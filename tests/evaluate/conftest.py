"""The command line, run in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from instances import chain, two_layers

from slackswap.evaluate.command_line import main
from slackswap.models.problem_file import write_problem


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Work in a folder of nothing but the problem files two.json and chain.json."""
    monkeypatch.chdir(tmp_path)
    write_problem(two_layers(), "two.json")
    write_problem(chain(6), "chain.json")
    return tmp_path


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
) -> Callable[..., CompletedProcess[str]]:
    """Run `slackswap` with some arguments in `folder`: in this process, since a new one takes a second."""
    del folder

    def call(*arguments: str) -> CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["slackswap", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        code, captured = ended.value.code, capsys.readouterr()
        assert code is None or isinstance(code, int)
        return CompletedProcess(arguments, code or 0, captured.out, captured.err)

    return call
