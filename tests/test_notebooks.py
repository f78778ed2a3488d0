"""Notebooks run from top to bottom, and stay readable."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.py"))


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(notebook: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(notebook), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_short(notebook: Path) -> None:
    assert notebook.read_text().count("# %%") <= 24


def test_the_new_heuristic_beats_slackswap_in_fewer_than_40_lines(capsys: pytest.CaptureFixture[str]) -> None:
    (notebook,) = [path for path in NOTEBOOKS if path.stem == "new_heuristic"]
    names = runpy.run_path(str(notebook))
    capsys.readouterr()
    rows = {result.row.planner: result.row for result in names["third"]}
    tries = [rows[name].throughput for name in ("cheapest-first", "swap-the-dear", "climb")]
    assert tries == sorted(tries)
    assert rows["swap-the-dear"].throughput < rows["slackswap"].throughput < rows["climb"].throughput
    lines = [
        line
        for function in ast.parse(notebook.read_text()).body
        if isinstance(function, ast.FunctionDef)
        for line in ast.unparse(function).splitlines()
    ]
    assert len(lines) < 40
