"""`slackswap gap`: how far each planner is from the bound and from the best plan, and how it came there."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from instances import MB, MS, chain, two_layers
from rich.console import Console

import slackswap.planners
from slackswap.evaluate import gap
from slackswap.evaluate.gap import COLUMNS, GapRow, gap_curves, gap_rows, gap_table
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import shootout
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners import Improvement, Outcome, Planner, Status, Supports, registry
from slackswap.planners.keep import Keep

Run = Callable[..., CompletedProcess[str]]


@dataclass(frozen=True)
class Searches:
    """A planner that finds 20 ms after 2 ms and 19 ms after 30 ms on chain(6) in 5 MB, as it says."""

    name: str = "searches"
    description: str = "finds what it is told to"
    policy: str = "default"
    supports: Supports = Supports(randomized=True, anytime=True)
    evaluation_limit: int | None = None

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del rng, time_limit_s
        if budget_bytes < 5 * MB:
            return Outcome(Status.TIME_LIMIT, evaluations=9)
        history = (Improvement(0.002, 3, 20 * MS), Improvement(0.03, 70, 19 * MS))
        plan = Plan.from_letters("KR" + "K" * (problem.n_tensors - 2))
        return Outcome(Status.FEASIBLE, plan, evaluations=80, solver="Sol", solver_version="1", history=history)


def results(budget: str = "5MB") -> list[Result]:
    planners: list[Planner] = [Keep(), Searches(), registry()["checkpoint"]]
    return next(shootout([chain(6)], [budget], planners, bound=lambda *_: 18 * MS))


def rows(budget: str = "5MB") -> dict[str, GapRow]:
    return {row.planner: row for row in gap_rows(results(budget))}


def test_gaps_to_the_bound_and_to_the_best_plan() -> None:
    # In 5 MB one tensor is recomputed, a1, 19 ms; checkpoint recomputes the first block, which holds a1 alone, too.
    row = rows()["searches"]
    assert row.step_s == pytest.approx(19 * MS)
    assert row.lower_bound_s == 18 * MS
    assert row.gap == pytest.approx(1 / 18)
    assert (row.best_known_s, row.gap_to_best) == (row.step_s, 0.0)
    assert (row.solver, row.seed, row.evaluations) == ("Sol 1", 0, 80)
    assert row.history == ((0.002, 3, 20 * MS), (0.03, 70, 19 * MS))
    keep = rows()["keep"]
    assert (keep.status, keep.step_s, keep.gap, keep.gap_to_best) == ("infeasible", None, None, None)
    assert keep.best_known_s == row.step_s


def test_the_second_best_is_measured_against_the_best() -> None:
    planners: list[Planner] = [registry()["recompute-only"], registry()["barriers"], registry()["slackswap"]]
    found = gap_rows(next(shootout([chain(6)], ["80%"], planners, bound=None)))
    best_s = min(row.step_s for row in found if row.step_s is not None)
    for row in found:
        assert row.step_s is not None
        assert row.gap is None
        assert row.gap_to_best == pytest.approx(row.step_s / best_s - 1)
    assert min(row.gap_to_best or 0.0 for row in found) == 0.0


def test_no_plan_at_all() -> None:
    for row in rows("1MB").values():
        assert (row.step_s, row.best_known_s, row.gap_to_best) == (None, None, None)


def text_of(rows: list[GapRow]) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(gap_table(rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_table_has_the_smallest_gap_first_and_what_failed_last() -> None:
    text = text_of(list(rows().values()))
    assert "chain of 6, 83.3% of the peak, 0.0050 GB: no plan is faster than 18.00 ms (100.00% of ideal)" in text
    assert text.index("searches") < text.index("keep")
    (line,) = (line for line in text.splitlines() if "searches" in line)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells[1:5] == ["feasible", "19.00", "94.74%", "5.56%"]
    assert cells[5] == "0.000%"
    assert cells[7:] == ["0.030", "80"]


def test_a_table_of_nothing_and_without_a_bound() -> None:
    assert "planner" in text_of([])
    text = text_of(gap_rows(next(shootout([two_layers()], ["1"], [Keep()], bound=None))))
    assert "100.0% of the peak, 0.0300 GB: no plan is faster than 90.00 ms" in text  # keep certifies the ideal step
    text = text_of(gap_rows(next(shootout([two_layers()], ["1"], [registry()["checkpoint"]], bound=None))))
    assert "no lower bound" in text


def test_curves_hold_every_improvement_and_where_it_ended() -> None:
    curves = gap_curves(rows().values())
    assert list(curves) == ["searches", "checkpoint"]  # keep has no plan
    seconds, gaps = zip(*curves["searches"], strict=True)
    assert seconds[:2] == (0.002, 0.03)
    assert gaps == pytest.approx([20 / 18 - 1, 19 / 18 - 1, 19 / 18 - 1])
    assert len(curves["checkpoint"]) == 1


def test_curves_without_a_bound_are_against_the_best_plan() -> None:
    found = gap_rows(next(shootout([chain(6)], ["5MB"], [Searches()], bound=None)))
    assert [value for _, value in gap_curves(found)["searches"]] == [pytest.approx(20 / 19 - 1), pytest.approx(0), 0]


# The command


@pytest.fixture
def two_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Keep(), Searches(), registry()["checkpoint"]))


@pytest.mark.usefixtures("two_planners")
def test_the_command_prints_a_table_and_says_why_nothing_fits(run: Run) -> None:
    ran = run("gap", "chain.json", "--budget", "5MB")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "gap to bound" in ran.stdout
    assert "keep at 5,000,000 bytes: no plan found that fits; operator 'f5' lacks 1,000,000 bytes" in ran.stdout


@pytest.mark.usefixtures("two_planners")
def test_rows_for_machines(run: Run) -> None:
    ran = run("gap", "chain.json", "--budget", "5MB", "--csv", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    read = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [row["planner"] for row in read] == ["keep", "searches", "checkpoint"]
    assert tuple(read[0]) == COLUMNS
    assert float(read[1]["gap"]) >= 0
    assert read[0]["gap"] == ""
    lines = [
        json.loads(line) for line in run("gap", "chain.json", "--budget", "5MB", "--json", "-").stdout.splitlines()
    ]
    assert lines[1]["history"] == [[0.002, 3, 20 * MS], [0.03, 70, 19 * MS]]
    assert lines[0]["step_s"] is None


@pytest.mark.usefixtures("two_planners")
@pytest.mark.parametrize(("name", "start"), [("gap.png", b"\x89PNG"), ("GAP.SVG", b"<?xml")])
def test_the_command_draws_the_curve(run: Run, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    ran = run("gap", "chain.json", "--budget", "5MB", "--plot", name)
    assert (ran.returncode, ran.stderr) == (0, f"figure written to {name}\n")
    assert Path(name).read_bytes().startswith(start)


@pytest.mark.usefixtures("two_planners")
def test_where_no_plan_fits_there_is_nothing_to_draw(run: Run) -> None:
    pytest.importorskip("matplotlib")
    ran = run("gap", "chain.json", "--budget", "1MB", "--plot", "gap.png")
    assert (ran.returncode, ran.stderr) == (0, "no plan fits: nothing to draw\n")
    assert not Path("gap.png").exists()


def test_without_matplotlib_one_line_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run("gap", "chain.json", "--budget", "5MB", "--plot", "gap.png")
    assert ran.returncode == 2
    assert ran.stdout == ""  # before any planner has run
    assert ran.stderr.startswith("slackswap: error: figures: matplotlib is not installed: install the plot extra")
    assert ran.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0.5,0.6"], "slackswap: error: --budget: `gap` takes one budget; `shootout` compares several"),
        (["--budget", "0.5", "--plot", "gap.pdf"], "slackswap: error: gap.pdf: ends in .png or .svg"),
        (["--budget", "0.5", "--plot", "no/gap.png"], "slackswap: error: no/gap.png: cannot be written"),
        (["--budget", "0.5", "--plot", "x.png", "--csv", "x.png"], "two outputs would overwrite each other"),
        (["--budget", "0.5", "--planner", "none"], "slackswap: error: --planner: 'none' is not a planner"),
        (["--budget", "0.5", "--time-limit", "0"], "Invalid value for '--time-limit'"),
        ([], "Missing option '--budget'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    ran = run("gap", "chain.json", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr


@dataclass(frozen=True)
class Interrupted(Searches):
    """A planner during which the user presses Ctrl-C."""

    name: str = "interrupted"

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del problem, budget_bytes, rng, time_limit_s
        raise KeyboardInterrupt


def test_ctrl_c_keeps_what_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Searches(), Interrupted(), Keep()))
    ran = run("gap", "chain.json", "--budget", "5MB", "--csv", "rows.csv", "--plot", "gap.png")
    assert ran.returncode == 130
    assert ran.stderr.splitlines() == ["figure written to gap.png", "slackswap: interrupted"]
    (row,) = csv.DictReader(Path("rows.csv").read_text().splitlines())
    assert row["planner"] == "searches"
    assert float(row["lower_bound_s"]) > 0
    assert "searches" in ran.stdout


def test_progress_goes_to_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run("gap", "chain.json", "--budget", "5MB", "--planner", "keep,checkpoint", "--json", "-")
    assert ran.returncode == 0
    assert "chain of 6, 5MB: checkpoint" in ran.stderr
    assert [json.loads(line)["planner"] for line in ran.stdout.splitlines()] == ["keep", "checkpoint"]


def test_time_limit_reaches_planners_and_the_bound(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    monkeypatch.setattr(gap, "certified_bound_s", lambda *_, time_limit_s: asked.append(time_limit_s))
    assert run("gap", "chain.json", "--budget", "5MB", "--planner", "keep", "--time-limit", "2.5").returncode == 0
    assert run("gap", "chain.json", "--budget", "5MB", "--planner", "keep").returncode == 0
    assert asked == [2.5, 10.0]
