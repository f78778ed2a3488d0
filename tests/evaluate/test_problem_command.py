"""`slackswap problem`: the report of an import, its options, and the check against another recording."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from handwritten_trace import two_linears, write_pair

from slackswap.models.problem_file import read_problem
from slackswap.models.traces.operator_kind import operator_kind, read_kind_table

Run = Callable[..., CompletedProcess[str]]

KINDS = """
[[kind]]
kind = "attention"
patterns = ["^linear"]
"""


@pytest.fixture
def pair(folder: Path) -> str:
    execution_trace, kineto = write_pair(two_linears()).write(folder)
    return f"{execution_trace.name}+{kineto.name}"


def test_the_report_says_of_each_fact_how_it_was_derived(run: Run, pair: str) -> None:
    ran = run("problem", pair)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = ran.stdout.splitlines()
    assert "derived from: PyTorch execution trace with its Kineto trace" in ran.stdout
    # Ten operators; two saved tensors, with a rebuild each.
    (times,) = [line for line in lines if line.startswith("│ times")]
    assert times.split("│")[2:5] == ["       10 ", "       - ", "       - "]
    (rebuilds,) = [line for line in lines if line.startswith("│ rebuild costs")]
    assert rebuilds.split("│")[2:5] == ["        - ", "       2 ", "       - "]
    assert "dropped: nothing" in lines
    assert "heuristics used:" in lines


def test_what_was_dropped_and_what_is_doubtful_is_listed(run: Run, folder: Path) -> None:
    lines = [
        "node1 -- Input0 -- forward_compute_time=4.0, backward_compute_time=0.0, activation_size=8.0, parameter_size=0.0"
    ]
    lines += [
        f"node{i} -- Linear(1, 1) -- forward_compute_time=0.0, backward_compute_time=1.0, activation_size=1000000.0,"
        " parameter_size=0.0"
        for i in (2, 3)
    ]
    (folder / "graph.txt").write_text("\n".join([*lines, "\tnode1 -- node2", "\tnode2 -- node3"]))
    shown = run("problem", "graph.txt").stdout
    assert "  - data loading: the time of input nodes: 1, 4.000 ms" in shown
    assert "  - 2 of 4 operators take 0 s and yet write 2.0 MB" in shown
    assert "  - 1 saved tensors (1.0 MB) cost 0 s to rebuild: planners recompute them for nothing." in shown


def test_a_problem_file_keeps_the_declaration(run: Run, pair: str, folder: Path) -> None:
    imported = run("problem", pair, "-o", "pair.json").stdout
    read = run("problem", "pair.json").stdout
    assert read.splitlines()[1:] == imported.splitlines()[1:]
    assert read_problem(folder / "pair.json").metadata["derivation"]["facts"]["order"]["exact"] == 10


def test_a_declaration_of_another_form_does_no_harm(run: Run, folder: Path) -> None:
    problem = json.loads((folder / "two.json").read_text())
    odd: list[Any] = [5, [], {}, {"facts": 3, "dropped": {"a": 1}, "warnings": "x"}]
    for derivation in [*odd, {"dropped": [1, {}], "facts": {"order": 1}}]:
        problem["metadata"] = {"derivation": derivation}
        (folder / "odd.json").write_text(json.dumps(problem))
        ran = run("problem", "odd.json")
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "two layers" in ran.stdout


def test_kinds_of_the_users_own_go_first(run: Run, pair: str, folder: Path) -> None:
    (folder / "kinds.toml").write_text(KINDS)
    assert run("problem", pair, "--kinds", "kinds.toml", "-o", "kinds.json").returncode == 0
    assert run("problem", pair, "-o", "plain.json").returncode == 0
    plain, mine = read_problem(folder / "plain.json"), read_problem(folder / "kinds.json")
    linear = [name.startswith("linear") for name in plain.operator_names]
    assert any(linear)
    for i, of_linear in enumerate(linear):
        expected = "attention" if of_linear else plain.operators()[i].kind
        assert mine.operators()[i].kind == expected
    # A problem file takes them as well.
    assert run("problem", "plain.json", "--kinds", "kinds.toml", "-o", "again.json").returncode == 0
    assert read_problem(folder / "again.json").operators() == mine.operators()
    table = read_kind_table(folder / "kinds.toml")
    assert (operator_kind("aten::linear", table), operator_kind("aten::linear")) == ("attention", "gemm")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[kind]", "is not TOML"),
        ("a = 1", "holds [[kind]] entries"),
        ('[[kind]]\nkind = "gemm"', "kind[0]: has `kind` and `patterns`"),
        ('[[kind]]\nkind = "gem"\npatterns = []', "kind[0].kind: is one of gemm, attention"),
        ('[[kind]]\nkind = "gemm"\npatterns = "mm"', "kind[0].patterns: is a list of regular expressions"),
        ('[[kind]]\nkind = "gemm"\npatterns = ["ok", "(mm"]', "kind[0].patterns[1]: is no regular expression"),
    ],
)
def test_a_table_of_kinds_that_is_none(run: Run, folder: Path, content: str, message: str) -> None:
    (folder / "kinds.toml").write_text(content)
    ran = run("problem", "two.json", "--kinds", "kinds.toml")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("slackswap: error: kinds.toml: ")
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_times_by_the_roofline_need_shapes(run: Run, folder: Path) -> None:
    execution_trace, _ = write_pair(two_linears()).write(folder)
    ran = run("problem", execution_trace.name)
    assert ran.returncode == 2
    assert "which has no times; it holds 10 operators" in ran.stderr
    ran = run("problem", execution_trace.name, "--times", "roofline")
    assert ran.returncode == 2
    assert "holds no shapes, so that nothing can be timed by the roofline" in ran.stderr


def test_a_step_that_is_not_there(run: Run, folder: Path) -> None:
    _, kineto = write_pair(two_linears()).write(folder)
    ran = run("problem", kineto.name, "--step", "7")
    assert ran.returncode == 2
    assert f"{kineto.name}: 7: has no training step of this name; usable: the whole file" in ran.stderr


def test_a_check_says_whether_the_saved_bytes_agree(run: Run, folder: Path) -> None:
    # two_layers saves 30 MB; a timeline row is [time, action, bytes, category], category 4 an activation.
    saved = read_problem(folder / "two.json").saved_bytes
    (folder / "half.json").write_text(json.dumps([[0, 1, saved // 2, 4], [1, 1, 100, 0]]))
    ran = run("problem", "two.json", "--check", "half.json")
    assert ran.returncode == 0
    assert "check against half.json:" in ran.stdout
    assert "  Differs: the memory timeline has" in ran.stdout
    assert "One is 2 times the other" in ran.stdout
    ran = run("problem", "two.json", "--check", "chain.json")
    assert ran.returncode == 2
    assert "chain.json" in ran.stderr
    assert "check against a CUDA memory snapshot" in ran.stderr
