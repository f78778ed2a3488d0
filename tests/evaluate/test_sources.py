"""What a user may name as SOURCE."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from instances import chain, columns

from slackswap.evaluate.sources import DEFAULT_SOURCES, load_source, named_sources
from slackswap.hardware import load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.problem_file import write_problem
from slackswap.models.traces.recorded import SMALL_GPT, recorded_trace_paths
from slackswap.models.workloads import WORKLOADS


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads_are_built_for_the_hardware(name: str) -> None:
    assert columns(load_source(name)) == columns(WORKLOADS[name].build(load_hardware("a100-pcie4")))
    if name != "vgg-16":
        assert load_source(name, "h100-sxm").ideal_s < load_source(name).ideal_s


def test_problem_files_keep_their_link_unless_hardware_is_named(folder: Path) -> None:
    write_problem(chain(3), folder / "chain.json.gz")
    assert columns(load_source("chain.json.gz")) == columns(chain(3))
    on_v100 = load_source("chain.json.gz", "v100")
    assert on_v100.link == load_hardware("v100").link
    assert columns(on_v100.with_link(chain(3).link)) == columns(chain(3))  # times stay


def test_a_suffix_says_nothing(folder: Path) -> None:
    write_problem(chain(3), folder / "chain.json.gz")
    (folder / "chain.json.gz").rename(folder / "chain")
    assert columns(load_source("chain")) == columns(chain(3))


def test_recorded_trace_by_name_and_by_its_files() -> None:
    by_name = load_source(SMALL_GPT, "a100-pcie4")
    by_file = load_source("+".join(map(str, recorded_trace_paths())), "a100-pcie4")
    assert columns(replace(by_name, name="")) == columns(replace(by_file, name=""))
    assert by_name.link == load_hardware("a100-pcie4").link


def test_the_link_beside_a_trace_is_declared() -> None:
    assert any("host link" in heuristic for heuristic in load_source(SMALL_GPT).metadata["heuristics"])


def test_a_name_may_hold_a_plus_sign(folder: Path) -> None:
    write_problem(chain(3), folder / "a+b.json")
    assert load_source("a+b.json").name == "chain of 3"


@pytest.mark.parametrize("source", ["chain.json+", "+chain.json", "+chain.json+"])
def test_a_plus_sign_without_a_file_names_nothing_more(folder: Path, source: str) -> None:
    write_problem(chain(3), folder / "chain.json")
    assert load_source(source).name == "chain of 3"


@pytest.mark.parametrize("source", ["+", "++"])
def test_nothing_named(source: str) -> None:
    with pytest.raises(InputError, match="SOURCE: names nothing"):
        load_source(source)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("missing.json", "missing.json"),
        ("missing+chain.json", "missing"),
        ("chain.json+missing", "missing"),
        ("chain.json/x", "chain.json/x"),
        ("GPT2-XL", "GPT2-XL"),
        ("~", "~"),
        ("-", "-"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_no_such_file_or_workload(source: str, named: str) -> None:
    with pytest.raises(InputError) as refused:
        load_source(source)
    assert str(refused.value).startswith(f"{named}: is no file, and no workload: bert-large, gpt2-xl, ")


NO_FILE_NAMES = {"long name": "a" * 300, "long path": "a/" * 3000, "long part": "a" * 300 + "+b", "nul": "nul\0byte"}


@pytest.mark.parametrize("name", NO_FILE_NAMES.values(), ids=NO_FILE_NAMES)
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(InputError):
        load_source(name)
    with pytest.raises(InputError):
        load_source("gpt2-xl", hardware=name)


def test_one_problem_file_at_a_time(folder: Path) -> None:
    # Files joined by + are one trace.
    for name in ("a.json", "b.json"):
        write_problem(chain(3), folder / name)
    with pytest.raises(InputError, match=r"^a\.json: "):
        load_source("a.json+b.json")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("folder", "cannot be read: is a directory"),
        ("empty", "is empty"),
        ("garbage", ""),
        ("text", ""),
        ("other.json", ""),
        ("half.json", ""),
    ],
)
def test_files_that_are_nothing(folder: Path, name: str, message: str) -> None:
    (folder / "folder").mkdir()
    (folder / "empty").write_bytes(b"")
    (folder / "garbage").write_bytes(bytes(range(256)) * 8)
    (folder / "text").write_text("hello\n")
    (folder / "other.json").write_text('{"format": "something-else/1"}')
    write_problem(chain(3), folder / "half.json")
    whole = (folder / "half.json").read_bytes()
    (folder / "half.json").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError) as refused:
        load_source(name)
    assert str(refused.value).startswith(f"{name}: {message}")
    assert "\n" not in str(refused.value)


def test_every_default_source_has_a_line() -> None:
    assert list(named_sources()) == list(DEFAULT_SOURCES)
    assert all(named_sources().values())
