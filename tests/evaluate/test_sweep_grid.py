"""Grids: which jobs a TOML file stands for, what they carry, and what is refused in which words."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from instances import chain, two_layers

from slackswap.evaluate import sweep_grid
from slackswap.evaluate.sources import load_source
from slackswap.evaluate.sweep_grid import Grid, read_grid
from slackswap.evaluate.sweep_problems import keep, kept_problem
from slackswap.evaluate.sweeps import Case, case_key, describe, problem_of
from slackswap.hardware import load_hardware
from slackswap.hardware.catalog import CATALOG_FILE
from slackswap.hardware.input_error import InputError
from slackswap.models.problem import Problem
from slackswap.models.problem_file import problem_to_json, write_problem
from slackswap.models.traces.recorded import SMALL_GPT, recorded_trace_paths
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import BUILT_IN

SMALLEST = 'planners = ["keep"]\nbudgets = ["50%"]\n'
TINY = '[[workloads]]\nname = "llama-7b"\nlayers = 2\nhidden = 64\nheads = 4\nsequence = 16\nvocabulary = 100\n'


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Stand elsewhere than the grid: relative paths start at its folder."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    write_problem(two_layers(), tmp_path / "two.json")
    write_problem(chain(6), tmp_path / "chain.json.gz")
    return tmp_path


def grid_of(folder: Path, text: str) -> Grid:
    (folder / "grid.toml").write_text(text)
    return read_grid(folder / "grid.toml")


def carried(grid: Grid, case: Case) -> Problem:
    assert case.carried is not None
    keep(grid.problems[case.carried])
    return problem_of(case)


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(InputError) as refused:
        grid_of(folder, text)
    assert refused.value.source == str(folder / "grid.toml")
    assert "\n" not in str(refused.value)
    return str(refused.value).removeprefix(f"{folder / 'grid.toml'}: ")


# Jobs


def test_every_combination_is_a_job_the_last_axis_running_fastest(folder: Path) -> None:
    grid = grid_of(
        folder,
        'sources = ["two.json"]\nplanners = ["ga-random", "ga-seeded"]\nbudgets = [0.5, "20MB"]\nseeds = [3, 1]\n'
        "evaluation_limits = [10, 20]\ntime_limits_s = [1, 2.5]\nrepeat = 2\nlinks_bytes_per_s = [1e9, 2e9]\n",
    )
    assert len(grid.cases) == len(set(grid.cases)) == len(set(map(case_key, grid.cases))) == 2**7
    first, second, *_, last = grid.cases
    assert first == Case(
        workload="two.json",
        planner="ga-random",
        budget="0.5",
        hardware="",
        link_bytes_per_s=1e9,
        seed=3,
        time_limit_s=1.0,
        evaluation_limit=10,
        carried=first.carried,
    )
    assert second == msgspec.structs.replace(first, repetition=1)
    assert (last.link_bytes_per_s, last.budget, last.planner) == (2e9, "20MB", "ga-seeded")
    assert (last.seed, last.time_limit_s, last.evaluation_limit, last.repetition) == (1, 2.5, 20, 1)


def test_a_planner_has_no_more_jobs_than_it_can_give_results(folder: Path) -> None:
    # slackswap draws nothing and does not search: one job. The genetic search: 2 seeds x 2 limits.
    axes = "seeds = [4, 5]\nevaluation_limits = [10, 20]\n"
    grid = grid_of(folder, f'sources = "two.json"\nbudgets = "50%"\nplanners = ["slackswap", "ga-random"]\n{axes}')
    assert [(case.planner, case.seed, case.evaluation_limit) for case in grid.cases] == [
        ("slackswap", 4, None),
        ("ga-random", 4, 10),
        ("ga-random", 4, 20),
        ("ga-random", 5, 10),
        ("ga-random", 5, 20),
    ]


def test_all_is_every_planner_and_a_value_is_a_list_of_one(folder: Path) -> None:
    grid = grid_of(folder, 'sources = "two.json"\nbudgets = 1\nplanners = "all"\ncertified = true\n')
    assert [case.planner for case in grid.cases] == [planner.name for planner in BUILT_IN]
    assert {(case.budget, case.certified, case.seed, case.time_limit_s) for case in grid.cases} == {
        ("1", True, 0, None)
    }


# Problems


def test_a_workload_is_built_for_each_machine(folder: Path) -> None:
    grid = grid_of(folder, SMALLEST + 'sources = ["vgg-16"]\nhardware = ["v100", "h100-sxm"]\n')
    assert [(case.workload, case.hardware) for case in grid.cases] == [("vgg-16", "v100"), ("vgg-16", "h100-sxm")]
    for case in grid.cases:
        expected = WORKLOADS["vgg-16"].build(load_hardware(case.hardware))
        assert problem_to_json(carried(grid, case)) == problem_to_json(expected)


def test_parameters_of_a_workload_are_axes(folder: Path) -> None:
    grid = grid_of(
        folder, SMALLEST + TINY + "batch = [1, 2]\n" + '[[workloads]]\nname = "vgg-16"\ndtype = ["fp32", "bf16"]\n'
    )
    same = (("heads", 4), ("hidden", 64), ("layers", 2), ("sequence", 16), ("vocabulary", 100))
    assert [case.parameters for case in grid.cases] == [
        (("batch", 1), *same),
        (("batch", 2), *same),
        (("dtype", "fp32"),),
        (("dtype", "bf16"),),
    ]
    assert {case.hardware for case in grid.cases} == {"a100-pcie4"}
    built = WORKLOADS["llama-7b"].build(load_hardware("a100-pcie4"), **dict(grid.cases[1].parameters))
    assert problem_to_json(carried(grid, grid.cases[1])) == problem_to_json(built)


def test_a_problem_file_has_its_own_link_unless_the_grid_names_a_machine(folder: Path) -> None:
    grid = grid_of(folder, SMALLEST + 'sources = ["two.json", "chain.json.gz"]\n')
    assert [carried(grid, case).name for case in grid.cases] == ["two layers", "chain of 6"]
    assert carried(grid, grid.cases[0]).link == two_layers().link
    assert describe(grid.cases[0]) == "two.json on its own link, 50%: keep"
    (case,) = (grid := grid_of(folder, SMALLEST + 'sources = ["two.json"]\nhardware = "v100"\n')).cases
    assert carried(grid, case).link == load_hardware("v100").link
    assert case.hardware == "v100"


def test_a_link_of_the_grid_counts_in_both_directions(folder: Path) -> None:
    (case,) = (grid := grid_of(folder, SMALLEST + 'sources = "two.json"\nlinks_bytes_per_s = 3e9\n')).cases
    link = carried(grid, case).link
    assert (link.d2h_bytes_per_s, link.h2d_bytes_per_s, link.duplex_factor) == (
        3e9,
        3e9,
        two_layers().link.duplex_factor,
    )


def test_traces_are_read_from_beside_the_grid(folder: Path) -> None:
    for path in recorded_trace_paths():
        shutil.copy(path, folder)
    names = [path.name for path in recorded_trace_paths()]
    text = f'sources = ["{SMALL_GPT}", "{"+".join(names)}"]\nhardware = "v100"\n[[traces]]\nfiles = {names}\n'
    (named, joined, listed) = (grid := grid_of(folder, SMALLEST + text)).cases
    assert joined.carried == listed.carried  # one problem, and as many packed ones
    assert len(grid.problems) == 2
    assert problem_to_json(carried(grid, named)) == problem_to_json(load_source(SMALL_GPT, "v100"))
    assert carried(grid, joined).n_operators == carried(grid, named).n_operators


def test_a_machine_of_a_file_beside_the_grid(folder: Path) -> None:
    machine = CATALOG_FILE.read_text().partition("[a100-pcie4]")[2].partition("[a100-40]")[0]
    (folder / "mine.toml").write_text("[mine]" + machine.replace("[a100-pcie4.", "[mine."))
    (case,) = (grid := grid_of(folder, SMALLEST + 'sources = "vgg-16"\nhardware = "mine.toml"\n')).cases
    assert case.hardware == "mine.toml"
    assert carried(grid, case).name.endswith("on mine")


# What a job's key depends on


def key_in(folder: Path, text: str) -> str:
    (case,) = grid_of(folder, text).cases
    return case_key(case)


def test_a_file_that_moved_is_the_same_job_and_one_that_changed_is_not(folder: Path) -> None:
    before = key_in(folder, SMALLEST + 'sources = "two.json"\n')
    (folder / "sub").mkdir()
    (folder / "two.json").rename(folder / "sub" / "renamed.json")
    assert key_in(folder, SMALLEST + 'sources = "sub/renamed.json"\n') == before
    write_problem(chain(3), folder / "sub" / "renamed.json")
    assert key_in(folder, SMALLEST + 'sources = "sub/renamed.json"\n') != before


@pytest.mark.parametrize(
    "change",
    [
        {"planner": "ga-seeded"},
        {"budget": "51%"},
        {"seed": 1},
        {"time_limit_s": 1.0},
        {"evaluation_limit": 7},
        {"certified": True},
        {"repetition": 1},
        {"carried": "0" * 64},
    ],
    ids=lambda change: next(iter(change)),
)
def test_each_of_these_makes_another_job(folder: Path, change: dict[str, Any]) -> None:
    (case,) = grid_of(folder, 'sources = "two.json"\nplanners = "ga-random"\nbudgets = "50%"\n').cases
    assert case_key(msgspec.structs.replace(case, **change)) != case_key(case)


# Refusals


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("planners = [", "is not TOML: "),
        ("planner = 1", "planner: is not a key that is known here: use planners, budgets, hardware"),
        ("", "is empty"),
        (SMALLEST, "names no problem: give sources, [[workloads]] or [[traces]]"),
        ('sources = "two.json"\nbudgets = "50%"', "planners: is missing"),
        ('sources = "two.json"\nplanners = "keep"', "budgets: is missing"),
        (SMALLEST + "sources = []", "sources: is an empty list: give a value"),
        (SMALLEST + "sources = [1]", "sources[0]: is a text that is not empty"),
        (SMALLEST + 'sources = ["two.json", "two.json"]', "sources[1]: stands in the list twice"),
        (
            SMALLEST + 'sources = ["two.json", "gone.json"]',
            "sources[1]: {folder}/gone.json: is no file, and no workload",
        ),
        (SMALLEST + 'sources = "grid.toml"', "sources: {folder}/grid.toml: "),
        (SMALLEST + 'sources = "' + "x" * 5000 + '"', "sources: "),
        ('sources = "two.json"\nbudgets = "50%"\nplanners = ["keep", "nobody"]', "planners: 'nobody' is not a planner"),
        ('sources = "two.json"\nbudgets = ["50%", "half"]\nplanners = "keep"', "budgets[1]: 'half' is not a budget"),
        ('sources = "two.json"\nbudgets = [8000000000]\nplanners = "keep"', "budgets[0]: '8000000000' is more than"),
        ('sources = "two.json"\nbudgets = true\nplanners = "keep"', "budgets: is a fraction of the peak"),
        (SMALLEST + 'sources = "two.json"\nhardware = ["v100", "abacus"]', "hardware[1]: abacus: no hardware has this"),
        (SMALLEST + 'sources = "two.json"\nhardware = "a.toml"', "hardware: {folder}/a.toml: cannot be read: no such"),
        (SMALLEST + 'sources = "two.json"\nseeds = [0, -1]', "seeds[1]: is a whole number from 0"),
        (SMALLEST + 'sources = "two.json"\nseeds = [true]', "seeds[0]: is a whole number from 0"),
        (SMALLEST + 'sources = "two.json"\nrepeat = 0', "repeat: is a whole number from 1"),
        (SMALLEST + 'sources = "two.json"\nrepeat = [2]', "repeat: is a whole number from 1"),
        (SMALLEST + 'sources = "two.json"\nrepeat = 2000000', "has more than 1,000,000 jobs: split it"),
        (SMALLEST + 'sources = "two.json"\nevaluation_limits = 0', "evaluation_limits: is a whole number from 1"),
        (SMALLEST + 'sources = "two.json"\ntime_limits_s = [1, inf]', "time_limits_s[1]: is a number above 0"),
        (SMALLEST + 'sources = "two.json"\ntime_limits_s = nan', "time_limits_s: is a number above 0"),
        (SMALLEST + 'sources = "two.json"\nlinks_bytes_per_s = 0', "links_bytes_per_s: is a number above 0"),
        (SMALLEST + 'sources = "two.json"\nlinks_bytes_per_s = "1GB"', "links_bytes_per_s: is a number above 0"),
        (SMALLEST + 'sources = "two.json"\ncertified = 1', "certified: is true or false"),
        (SMALLEST + "workloads = 1", "workloads: is an array of tables: write [[workloads]]"),
        (SMALLEST + "[[workloads]]\nbatch = 1", "workloads[0].name: is missing"),
        (SMALLEST + '[[workloads]]\nname = "gpt9"', "workloads[0].name: 'gpt9' is not a workload: use bert-large"),
        (SMALLEST + '[[workloads]]\nname = "vgg-16"\nwings = 2', "workloads[0]: vgg-16: wings: is not a parameter"),
        (SMALLEST + '[[workloads]]\nname = "vgg-16"\nbatch = [1, 0]', "workloads[0]: vgg-16: batch: is a whole number"),
        (SMALLEST + '[[workloads]]\nname = "vgg-16"\nbatch = 1.5', "workloads[0].batch: is a whole number or a text"),
        (SMALLEST + "[[traces]]\nstep = 'x'", "traces[0].files: is missing"),
        (SMALLEST + '[[traces]]\nfiles = "two.json"\nname = "x"', "traces[0].name: is not a key that is known here"),
        (SMALLEST + '[[traces]]\nfiles = "two.json"\nroofline = 1', "traces[0].roofline: is true or false"),
        (SMALLEST + '[[traces]]\nfiles = ["gone"]', "traces[0]: {folder}/gone: is no file"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_file_key_and_rule(folder: Path, text: str, message: str) -> None:
    assert refusal(folder, text).startswith(message.format(folder=folder))


def test_what_cannot_be_read_is_refused(folder: Path) -> None:
    for name, rule in (
        ("gone.toml", "cannot be read: no such file or directory"),
        ("elsewhere", "cannot be read: is a"),
    ):
        with pytest.raises(InputError, match=re.escape(f"{folder / name}: {rule}")):
            read_grid(folder / name)
    (folder / "grid.toml").write_bytes(b"planners = 'keep'\nbudgets = '\xff'")
    with pytest.raises(InputError, match=r"grid.toml: line 2: is not UTF-8"):
        read_grid(folder / "grid.toml")
    (folder / "grid.toml").write_bytes(b"#" * (sweep_grid.MAX_FILE_BYTES + 1))
    with pytest.raises(InputError, match=r"grid.toml: has more bytes than the limit"):
        read_grid(folder / "grid.toml")


def test_a_grid_of_too_many_problems_is_refused_before_any_is_built(folder: Path) -> None:
    many = list(range(1, 102))
    text = f'{SMALLEST}[[workloads]]\nname = "gpt2-xl"\nbatch = {many}\nlayers = {many}\n'
    assert refusal(folder, text) == "has more than 10,000 problems: split it"
    text = f'{SMALLEST}sources = "vgg-16"\nlinks_bytes_per_s = {list(range(1, 10_002))}\n'
    assert refusal(folder, text) == "has more than 10,000 problems: split it"


WHOLE = (
    SMALLEST.encode()
    + b'sources = ["two.json"]\nhardware = "v100"\nseeds = [1]\n[[workloads]]\nname = "x"\nbatch = [2]\n'
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_files_are_read_or_refused(data: st.DataObject, folder: Path) -> None:
    content = bytearray(WHOLE[: data.draw(st.integers(0, len(WHOLE)))])
    for place in data.draw(st.lists(st.integers(0, max(0, len(content) - 1)), max_size=3)):
        if content:
            content[place] = data.draw(st.integers(0, 255))
    (folder / "grid.toml").write_bytes(content)
    try:
        assert read_grid(folder / "grid.toml").cases
    except InputError as error:
        assert str(error).startswith(str(folder / "grid.toml"))


def test_kept_problems_are_those_of_the_grid(folder: Path) -> None:
    grid = grid_of(folder, SMALLEST + 'sources = "two.json"\n')
    (sha256,) = grid.problems
    keep(grid.problems[sha256])
    assert problem_to_json(kept_problem(sha256)) == problem_to_json(two_layers())
