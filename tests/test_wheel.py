"""The installed wheel holds the product, all of it and nothing else."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("hardware", "models", "planners", "evaluate")
DATA_SUFFIXES = {".py", ".toml", ".gz", ".json", ".md", ".typed", ".css", ".js"}


@pytest.fixture(scope="module")
def wheel() -> metadata.Distribution:
    """The installed distribution, where it was installed from a wheel."""
    distribution = metadata.distribution("slackswap")
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if origin.get("dir_info", {}).get("editable") or not any(
        file.name == "budget.py" for file in distribution.files or []
    ):
        pytest.skip("slackswap is installed in editable mode here; `make test` installs the wheel")
    return distribution


@pytest.fixture(scope="module")
def installed(wheel: metadata.Distribution) -> set[PurePosixPath]:
    """Files of the distribution that stand inside site-packages, without byte code."""
    files = [PurePosixPath(file) for file in wheel.files or []]
    return {file for file in files if "__pycache__" not in file.parts and file.parts[0] != ".."}


def sources() -> set[PurePosixPath]:
    """Files of the four floors in the checkout, as they should be installed."""
    return {
        PurePosixPath("slackswap", path.relative_to(ROOT).as_posix())
        for floor in FLOORS
        for path in (ROOT / floor).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix in DATA_SUFFIXES
    }


def test_every_file_of_the_four_floors_is_installed(installed: set[PurePosixPath]) -> None:
    assert sources() - installed == set()


@pytest.mark.parametrize(
    "name",
    [
        *(f"{floor}/{file}" for floor in FLOORS for file in ("__init__.py", "py.typed")),
        "hardware/catalog.toml",
        "evaluate/command_line.py",
    ],
)
def test_what_must_not_be_missing(installed: set[PurePosixPath], name: str) -> None:
    assert PurePosixPath("slackswap", name) in installed


def test_the_recorded_trace_is_installed(installed: set[PurePosixPath]) -> None:
    from slackswap.models.traces.recorded import recorded_trace_paths

    for path in recorded_trace_paths():
        assert path.is_file()
        assert PurePosixPath("slackswap/models/traces/recorded", path.name) in installed


def test_nothing_else_is_installed(installed: set[PurePosixPath]) -> None:
    expected = sources()
    for file in installed:
        if not file.parts[0].endswith(".dist-info"):
            assert file in expected, f"{file} does not belong into the wheel"


def test_outside_site_packages_stands_only_the_console_script(wheel: metadata.Distribution) -> None:
    outside = [PurePosixPath(file) for file in wheel.files or [] if PurePosixPath(file).parts[0] == ".."]
    assert {file.stem for file in outside} <= {"slackswap"}


def test_the_tests_see_the_wheel(wheel: metadata.Distribution) -> None:
    # Not the folders beside them: `python -m pytest` puts the current folder on the path.
    import slackswap.models.problem

    assert Path(slackswap.models.problem.__file__).is_relative_to(Path(str(wheel.locate_file(""))))


def test_licence_and_metadata(wheel: metadata.Distribution) -> None:
    assert wheel.metadata["Name"] == "slackswap"
    assert wheel.metadata["License-Expression"] == "MIT"
    assert any(PurePosixPath(file).name == "LICENSE" for file in wheel.files or [])
    assert wheel.metadata["Requires-Python"] == ">=3.11"


def test_console_script() -> None:
    # In editable mode too.
    (script,) = (entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "slackswap")
    assert script.value == "slackswap.evaluate.command_line:main"
    assert callable(script.load())
