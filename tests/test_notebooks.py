"""Notebooks run from top to bottom, and stay readable."""

from __future__ import annotations

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
    assert notebook.read_text().count("# %%") <= 15


def test_custom_planner_of_the_shootout_notebook_fits() -> None:
    names = runpy.run_path(str(NOTEBOOKS[[n.stem for n in NOTEBOOKS].index("planner_shootout")]))
    row = next(result.row for result in names["own"] if result.row.planner == "biggest-first")
    assert row.status == "feasible"
    assert 0.5 < row.throughput < 1.0
