"""The registry: built-in planners, and those of other packages by entry point."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from instances import MB, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import POLICIES
from slackswap.planners import BUILT_IN, ENTRY_POINT_GROUP, Planner, Status, find_planners, registry, run_planner

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a distribution on the path, as pip would: a module, and metadata with entry points."""

    def write(package: str, code: str, **entry_points: str) -> None:
        (tmp_path / f"{package}.py").write_text(textwrap.dedent(code))
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"{name.replace('_', '-')} = {value}" for name, value in entry_points.items()]
        (metadata / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINT_GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(tmp_path)

    return write


OBJECT = """
    from dataclasses import dataclass
    from slackswap.planners import Status, Outcome, Supports
    from slackswap.models.plan import Plan

    @dataclass(frozen=True)
    class Mine:
        name: str = "mine"
        description: str = "keeps everything"
        policy: str = "default"
        supports: Supports = Supports(swaps=False, recomputes=False)

        def plan(self, problem, budget_bytes, *, rng, time_limit_s):
            return Outcome(Status.FEASIBLE, Plan.keep_everything(problem))

    INSTANCE = Mine(name="mine-too")
"""


def test_names_are_unique_and_fit_a_command_line() -> None:
    names = [planner.name for planner in BUILT_IN]
    assert len(set(names)) == len(names)
    assert list(registry())[: len(names)] == names
    for planner in BUILT_IN:
        assert isinstance(planner, Planner)
        assert planner.name == planner.name.lower()
        assert not set(planner.name) & set(", \t\n")
        assert planner.name != "all"
        assert planner.description.strip()
        assert "\n" not in planner.description
        assert planner.policy in POLICIES


def test_classes_and_objects_of_other_packages(install: Install) -> None:
    install("registry_objects", OBJECT, a="registry_objects:Mine", b="registry_objects:INSTANCE")
    known = registry()
    assert list(known)[-2:] == ["mine", "mine-too"]
    assert run_planner(known["mine"], two_layers(), 30 * MB).status is Status.FEASIBLE
    assert [planner.name for planner in find_planners("mine-too,keep")] == ["mine-too", "keep"]
    assert "mine" in [planner.name for planner in find_planners("all")]


def test_functions_of_other_packages(install: Install) -> None:
    code = """
    from slackswap.models.plan import Plan

    def keep_all(problem, budget_bytes):
        "Keep, as a function."
        return Plan.keep_everything(problem)
    """
    install("registry_functions", code, a="registry_functions:keep_all")
    planner = registry()["keep-all"]
    assert planner.description == "Keep, as a function."
    assert run_planner(planner, two_layers(), 30 * MB).claimed_step_s == pytest.approx(0.09)
    assert run_planner(planner, two_layers(), 29 * MB).status is Status.INFEASIBLE


@pytest.mark.parametrize(
    ("name", "code", "value", "message"),
    [
        ("registry_gone", "", "registry_gone_too:X", "ModuleNotFoundError: No module named 'registry_gone_too'"),
        ("registry_lacks", "", "registry_lacks:Missing", "AttributeError: module 'registry_lacks' has no attribute"),
        (
            "registry_raises",
            "raise RuntimeError('no licence\\n found')",
            "registry_raises:X",
            "RuntimeError: no licence",
        ),
        ("registry_syntax", "def broken(:", "registry_syntax:X", "SyntaxError"),
        ("registry_needs", "class X:\n    def __init__(self, key): ...", "registry_needs:X", "TypeError"),
        ("registry_number", "X = 3", "registry_number:X", "int is not a planner: pass an object with `plan`"),
        (
            "registry_half",
            "class X:\n    name = 'half'\n    def plan(self): ...",
            "registry_half:X",
            "X is not a planner",
        ),
    ],
)
def test_what_cannot_be_loaded_is_named_in_one_line(
    install: Install, name: str, code: str, value: str, message: str
) -> None:
    install(name, code, broken=value)
    with pytest.raises(InputError) as refused:
        registry()
    assert str(refused.value).startswith(f"entry point 'broken' ({value}): ")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_taken(install: Install) -> None:
    code = "def keep(problem, budget_bytes):\n    return None"
    install("registry_clash", code, other="registry_clash:keep")
    with pytest.raises(InputError, match="the name 'keep' is taken: choose another"):
        registry()


@pytest.mark.parametrize("names", ["keep,keep", " keep , keep,", ",keep"])
def test_a_name_given_twice_counts_once(names: str) -> None:
    assert [planner.name for planner in find_planners(names)] == ["keep"]


def test_planners_stand_in_the_order_asked_for() -> None:
    assert [planner.name for planner in find_planners("checkpoint,slackswap,keep")] == [
        "checkpoint",
        "slackswap",
        "keep",
    ]


@pytest.mark.parametrize("names", ["", ",", "  "])
def test_no_planner_named(names: str) -> None:
    with pytest.raises(InputError, match="--planner: names no planner"):
        find_planners(names)


@pytest.mark.parametrize("names", ["keeper", "keep,Keep", "keep slackswap", "[/]"])
def test_unknown_planner(names: str) -> None:
    with pytest.raises(InputError, match=r"--planner: '.*' is not a planner: use keep, slackswap, .*, or all"):
        find_planners(names)
