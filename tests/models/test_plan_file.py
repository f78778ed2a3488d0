"""Plan files: round trips, every rule with its message, damaged files, and nothing half-written."""

from __future__ import annotations

import copy
import gzip
import json
import tempfile
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import chain, decisions, one_operator, problems, two_layers

from slackswap.hardware.input_error import InputError
from slackswap.models.legality import check
from slackswap.models.lowering import lower
from slackswap.models.plan import Plan, check_plan
from slackswap.models.plan_file import PlannerRecord, StoredPlan, read_plan, write_plan
from slackswap.models.problem import Problem
from slackswap.models.problem_file import problem_sha256
from slackswap.models.schedule import Schedule

PLANNER = PlannerRecord("by hand", version="1", seed=7, seconds=0.5)
PROBLEM = two_layers()
# a0 leaves after f0, goes after f1 and comes back for b0.
SCHEDULE = Schedule.from_lists([0, 1, 2, 3], [[], [0], [1], [0]], [(0, 0)], [(0, 3, 1)])


def written(folder: Path, plan: Plan | Schedule, problem: Problem = PROBLEM) -> Path:
    path = folder / "plan.json"
    write_plan(path, problem, plan, 25_000_000, PLANNER)
    return path


def columns(schedule: Schedule) -> dict[str, list[int]]:
    return {field.name: getattr(schedule, field.name).tolist() for field in fields(Schedule)}


# ---- Round trips ----------------------------------------------------------------------------------------------------------


def test_a_plan_makes_the_round_trip(tmp_path: Path) -> None:
    path = written(tmp_path, Plan.from_letters("SR"))
    assert json.loads(path.read_text()) == {
        "format": "slackswap-plan/1",
        "problem": "two layers",
        "problem_sha256": problem_sha256(PROBLEM),
        "budget_bytes": 25_000_000,
        "planner": {"name": "by hand", "version": "1", "seed": 7, "seconds": 0.5},
        "decisions": "SR",
    }
    stored = read_plan(path, PROBLEM)
    assert isinstance(stored.plan, Plan)
    assert stored.plan.letters == "SR"
    assert (stored.budget_bytes, stored.planner) == (25_000_000, PLANNER)


def test_a_schedule_makes_the_round_trip(tmp_path: Path) -> None:
    path = written(tmp_path, SCHEDULE)
    document = json.loads(path.read_text())
    assert "decisions" not in document
    assert document["schedule"] == {
        "steps": [0, 1, 2, 3],
        "drops": [[], [0], [1], [0]],
        "offloads": [[0, 0]],
        "prefetches": [[0, 3, 1]],
    }
    stored = read_plan(path, PROBLEM)
    assert isinstance(stored.plan, Schedule)
    assert columns(stored.plan) == columns(SCHEDULE)


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_random_plans_and_schedules_make_the_round_trip(data: st.DataObject) -> None:
    problem = data.draw(problems(max_forward=4))
    plan = Plan.from_letters(data.draw(decisions(problem)))
    with tempfile.TemporaryDirectory() as folder:
        kept = read_plan(written(Path(folder), plan, problem), problem).plan
        assert isinstance(kept, Plan)
        assert kept.letters == plan.letters
        schedule = lower(problem, plan)
        lowered = read_plan(written(Path(folder), schedule, problem), problem).plan
        assert isinstance(lowered, Schedule)
        assert columns(lowered) == columns(schedule)


def test_a_plan_of_no_tensors_is_an_empty_string(tmp_path: Path) -> None:
    problem = Problem.from_records("bare", one_operator().operators(), [], one_operator().link)
    path = written(tmp_path, Plan.from_letters(""), problem)
    assert json.loads(path.read_text())["decisions"] == ""
    stored = read_plan(path, problem)
    assert isinstance(stored.plan, Plan)
    assert stored.plan.letters == ""


def test_gz_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "plan.json.gz"
    write_plan(path, PROBLEM, SCHEDULE, 1, PLANNER)
    content = gzip.decompress(path.read_bytes())
    assert read_plan(path, PROBLEM).budget_bytes == 1
    marked = tmp_path / "marked.json"
    marked.write_bytes(b"\xef\xbb\xbf" + content)
    assert read_plan(marked, PROBLEM).budget_bytes == 1


def test_what_has_defaults_may_be_missing(tmp_path: Path) -> None:
    document = valid(SCHEDULE)
    document["planner"] = {"name": "someone"}
    document["schedule"] = {"steps": [0, 1, 2, 3], "drops": [[], [], [], []]}
    stored = read_plan(saved(tmp_path, document), PROBLEM)
    assert stored.planner == PlannerRecord("someone", version="", seed=None, seconds=None)
    assert isinstance(stored.plan, Schedule)
    assert stored.plan.offload_tensor.size == 0


def test_a_note_about_the_problem_does_not_invalidate_its_plans(tmp_path: Path) -> None:
    path = written(tmp_path, Plan.from_letters("SR"))
    assert read_plan(path, replace(PROBLEM, metadata={"note": "checked"})).budget_bytes == 25_000_000


# ---- Rules -----------------------------------------------------------------------------------------------------------------


def valid(plan: Plan | Schedule) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        document: dict[str, Any] = json.loads(written(Path(folder), plan).read_text())
    return document


def saved(folder: Path, document: object) -> Path:
    path = folder / "changed.json"
    path.write_text(json.dumps(document))
    return path


def refusal(path: Path, problem: Problem = PROBLEM) -> tuple[str, str]:
    with pytest.raises(InputError) as refused:
        read_plan(path, problem)
    assert refused.value.source == str(path)
    assert len(str(refused.value).splitlines()) == 1
    return refused.value.place, refused.value.rule


OTHER = (
    "the plan was made for another problem ('two layers'), or for another version of 'two layers': "
    "score it against that one, or plan again"
)
DELETE = object()
# What is changed in a plan file of two_layers with decisions | the value | the place | the rule
PLAN_RULES: list[tuple[tuple[str, ...], object, str, str]] = [
    (
        ("format",),
        "slackswap-plan/2",
        "$.format",
        "is 'slackswap-plan/1' in files of this version, not 'slackswap-plan/2'",
    ),
    (
        ("format",),
        "slackswap-problem/1",
        "$.format",
        "is 'slackswap-plan/1' in files of this version, not 'slackswap-problem/1'",
    ),
    (("format",), DELETE, "$", "object missing required field `format`"),
    (("format",), 1, "$.format", "expected `str`, got `int`"),
    (("problem",), DELETE, "$", "object missing required field `problem`"),
    (("problem",), 3, "$.problem", "expected `str`, got `int`"),
    (("problem_sha256",), "0" * 64, "$.problem_sha256", OTHER),
    (("problem_sha256",), "", "$.problem_sha256", OTHER),
    (("problem_sha256",), DELETE, "$", "object missing required field `problem_sha256`"),
    (("problem_sha256",), None, "$.problem_sha256", "expected `str`, got `null`"),
    (("budget_bytes",), -1, "$.budget_bytes", "a budget is a number of bytes from 0, not -1"),
    (("budget_bytes",), -(1 << 70), "$.budget_bytes", f"a budget is a number of bytes from 0, not {-(1 << 70)}"),
    (("budget_bytes",), 10**60 + 1, "$.budget_bytes", "a budget has at most 60 digits"),
    (("budget_bytes",), 1.5, "$.budget_bytes", "expected `int`, got `float`"),
    (("budget_bytes",), "25 GB", "$.budget_bytes", "expected `int`, got `str`"),
    (("budget_bytes",), DELETE, "$", "object missing required field `budget_bytes`"),
    (("planner",), DELETE, "$", "object missing required field `planner`"),
    (("planner",), "hand", "$.planner", "expected `object`, got `str`"),
    (("planner", "name"), DELETE, "$.planner", "object missing required field `name`"),
    (("planner", "seed"), "7", "$.planner.seed", "expected `int | null`, got `str`"),
    (("planner", "mood"), "good", "$.planner", "object contains unknown field `mood`"),
    (("note",), "mine", "$", "object contains unknown field `note`"),
    (("decisions",), DELETE, "$", "a plan has either decisions or a schedule"),
    (("decisions",), None, "$", "a plan has either decisions or a schedule"),
    (("decisions",), 12, "$.decisions", "expected `str | null`, got `int`"),
    (("decisions",), "SX", "decisions[1]", "'X' is not a decision: use K, S or R"),
    (("decisions",), "sr", "decisions[0]", "'s' is not a decision: use K, S or R"),
    (("decisions",), "S", "decisions", "a plan for 'two layers' has 2 decisions, this one has 1"),
    (("decisions",), "", "decisions", "a plan for 'two layers' has 2 decisions, this one has 0"),
    (("decisions",), "SRK", "decisions", "a plan for 'two layers' has 2 decisions, this one has 3"),
]
# The same for a file with a schedule.
SCHEDULE_RULES: list[tuple[tuple[str, ...], object, str, str]] = [
    (("decisions",), "SR", "$", "a plan has either decisions or a schedule"),
    (("schedule",), DELETE, "$", "a plan has either decisions or a schedule"),
    (("schedule",), [], "$.schedule", "expected `object | null`, got `array`"),
    (("schedule", "steps"), DELETE, "$.schedule", "object missing required field `steps`"),
    (("schedule", "drops"), DELETE, "$.schedule", "object missing required field `drops`"),
    (("schedule", "notes"), [], "$.schedule", "object contains unknown field `notes`"),
    (("schedule", "steps"), [0, 1, 2.5, 3], "$.schedule.steps[2]", "expected `int`, got `float`"),
    (("schedule", "steps"), [0, 1, 2], "$.schedule.drops", "has one list for each step"),
    (("schedule", "drops"), [[], [0], [1], [0], []], "$.schedule.drops", "has one list for each step"),
    (("schedule", "drops"), [[], 0, [1], [0]], "$.schedule.drops[1]", "expected `array`, got `int`"),
    (("schedule", "steps"), [0, 1, 2, 1 << 63], "$.schedule", "holds a number that is no index"),
    (("schedule", "steps"), [0, 1, 2, -(1 << 80)], "$.schedule", "holds a number that is no index"),
    (("schedule", "drops"), [[], [0], [1], [1 << 64]], "$.schedule", "holds a number that is no index"),
    (("schedule", "offloads"), [[0, 1 << 63]], "$.schedule", "holds a number that is no index"),
    (("schedule", "prefetches"), [[0, 3, 1 << 63]], "$.schedule", "holds a number that is no index"),
    (("schedule", "offloads"), [[0]], "$.schedule.offloads[0]", "expected `array` of length 2"),
    (("schedule", "prefetches"), [[0, 3]], "$.schedule.prefetches[0]", "expected `array` of length 3"),
    # What `check` says of the schedule itself; tests of legality go through its reasons.
    (("schedule", "steps"), [0, 1, 2, 6], "$.schedule", "steps: 6 lies outside 0 .. 5"),
    (("schedule", "steps"), [0, 1, 2, -1], "$.schedule", "steps: -1 lies outside 0 .. 5"),
    (("schedule", "offloads"), [], "$.schedule", "prefetch of 'a0': it is never offloaded"),
    (
        ("schedule", "prefetches"),
        [],
        "$.schedule",
        "step 3, b0, reads 'a0', which is not on the device by then",
    ),
]


def changed(document: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    document = copy.deepcopy(document)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    if value is DELETE:
        del parent[path[-1]]
    else:
        parent[path[-1]] = value
    return document


@pytest.mark.parametrize(("path", "value", "place", "rule"), PLAN_RULES)
def test_every_rule_of_a_plan(tmp_path: Path, path: tuple[str, ...], value: object, place: str, rule: str) -> None:
    assert refusal(saved(tmp_path, changed(valid(Plan.from_letters("SR")), path, value))) == (place, rule)


@pytest.mark.parametrize(("path", "value", "place", "rule"), SCHEDULE_RULES)
def test_every_rule_of_a_schedule(tmp_path: Path, path: tuple[str, ...], value: object, place: str, rule: str) -> None:
    assert refusal(saved(tmp_path, changed(valid(SCHEDULE), path, value))) == (place, rule)


def test_a_plan_of_another_problem_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, Plan.from_letters("KK"))
    place, rule = refusal(path, chain(2))
    assert place == "$.problem_sha256"
    assert rule.startswith(
        "the plan was made for another problem ('two layers'), or for another version of 'chain of 2'"
    )
    # Another link is another problem: the plan was made for the first.
    assert refusal(path, PROBLEM.with_link(replace(PROBLEM.link, latency_s=1e-5)))[0] == "$.problem_sha256"


def test_decisions_are_checked_against_the_problem(tmp_path: Path) -> None:
    # Tensor 0 of a chain has no rebuild.
    document = valid(Plan.from_letters("RK"))
    document["problem_sha256"] = problem_sha256(chain(2))
    place, rule = refusal(saved(tmp_path, document), chain(2))
    assert (place, rule) == ("decisions[0]", "tensor 'a0' has no rebuild, so it is not recomputed: keep or swap it")


@pytest.mark.parametrize(
    ("content", "place", "rule"),
    [
        ("", "", "is empty"),
        ("[]", "$", "expected `object`, got `array`"),
        ("{", "", "input data was truncated"),
        ('{"format": "slackswap-plan/1"', "", "input data was truncated"),
        ("plan: SR", "", "JSON is malformed: invalid character (byte 0)"),
    ],
)
def test_what_is_no_plan(tmp_path: Path, content: str, place: str, rule: str) -> None:
    path = tmp_path / "no plan.json"
    path.write_text(content)
    assert refusal(path) == (place, rule)


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.json"
    text = json.dumps(valid(Plan.from_letters("SR")))
    path.write_text(text.replace('"decisions"', '"decisions": "KK", "decisions"'))
    assert refusal(path) == ("$.decisions", "this key stands twice in one object")


def test_missing_files_are_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.json") == ("", "cannot be read: no such file or directory")


# ---- Damaged files -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "damaged.json"


def refused_or_valid(path: Path) -> StoredPlan | None:
    try:
        stored = read_plan(path, PROBLEM)
    except InputError as error:
        assert str(error).startswith(f"{path}: ")
        assert len(str(error).splitlines()) == 1
        return None
    # What is accepted can be used, and written again.
    assert stored.budget_bytes >= 0
    if isinstance(stored.plan, Plan):
        check_plan(PROBLEM, stored.plan)
    else:
        assert check(PROBLEM, stored.plan) == []
    write_plan(path, PROBLEM, stored.plan, stored.budget_bytes, stored.planner)
    assert read_plan(path, PROBLEM).planner == stored.planner
    return stored


def content_of(plan: Plan | Schedule) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        return written(Path(folder), plan).read_bytes()


CONTENTS = [content_of(Plan.from_letters("SR")), content_of(SCHEDULE)]
fuzz = settings(max_examples=200, deadline=2000)  # a read takes about a millisecond; a hang fails


def test_every_truncation_is_refused(scratch: Path) -> None:
    for content in CONTENTS:
        whole = content.rstrip()
        for length in range(len(whole)):
            scratch.write_bytes(whole[:length])
            assert refused_or_valid(scratch) is None, length
    packed = gzip.compress(CONTENTS[1])
    for length in range(len(packed)):
        scratch.write_bytes(packed[:length])
        assert refused_or_valid(scratch) is None, length


@fuzz
@given(
    st.sampled_from(CONTENTS), st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=3)
)
def test_replaced_bytes(scratch: Path, content: bytes, changes: list[tuple[int, int]]) -> None:
    damaged = bytearray(content)
    for position, byte in changes:
        damaged[position % len(damaged)] = byte
    scratch.write_bytes(damaged)
    refused_or_valid(scratch)


numbers = st.one_of(
    st.integers(-2, 7), st.sampled_from([1 << 31, 1 << 53, 1 << 63, -(1 << 63), (1 << 63) - 1, 1 << 64, 10**40])
)
values = st.one_of(
    st.none(),
    st.booleans(),
    numbers,
    st.floats(),
    st.text(max_size=3),
    st.text("KSR", min_size=1, max_size=3),
    st.lists(numbers, max_size=4),
    st.lists(st.lists(numbers, max_size=3), max_size=4),
    st.dictionaries(st.sampled_from(["steps", "drops", "name", "seed"]), numbers),
)


def places(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield (*path, key)
        yield from places(child, (*path, key))


@fuzz
@given(st.data())
def test_mutated_trees(scratch: Path, data: st.DataObject) -> None:
    document = json.loads(data.draw(st.sampled_from(CONTENTS)))
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(list(places(document))))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        if data.draw(st.booleans()):
            parent[path[-1]] = data.draw(values)
        else:
            del parent[path[-1]]
    scratch.write_text(json.dumps(document))
    refused_or_valid(scratch)


# ---- Nothing half-written ------------------------------------------------------------------------------------------------------


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, Plan.from_letters("SR"))
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"plan\.json: cannot be written: no space left on device"):
        write_plan(path, PROBLEM, SCHEDULE, 1, PLANNER)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plan\.json: cannot be written: .*(no such file|does not exist)"):
        write_plan(tmp_path / "none" / "plan.json", PROBLEM, SCHEDULE, 1, PLANNER)
    assert list(tmp_path.iterdir()) == []


def test_same_plan_same_bytes(tmp_path: Path) -> None:
    contents = set()
    for name in ("first.json.gz", "second.json.gz"):
        write_plan(tmp_path / name, PROBLEM, SCHEDULE, 1, PLANNER)
        contents.add((tmp_path / name).read_bytes())
    assert len(contents) == 1
