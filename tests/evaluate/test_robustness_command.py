"""`slackswap robustness`: tables for people, rows for machines, a page, a figure."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from instances import chain
from interrupted import Interrupted

import slackswap.planners
from slackswap.evaluate.command_line import cli
from slackswap.evaluate.robustness import COLUMNS, Replayed, RobustnessRow, with_iterations
from slackswap.evaluate.robustness_command import Grid, as_markdown, grids_of, parse_shares, robustness
from slackswap.evaluate.shootout import shootout
from slackswap.hardware.input_error import InputError
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.planners import Outcome, Status, Supports, registry
from slackswap.planners.keep import Keep

Run = Callable[..., CompletedProcess[str]]
PAGE = Path(__file__).parents[2] / "docs" / "robustness.md"
CELL = "### gpt2-xl on a100-pcie4, 50.0% of the peak, 11.57 GB"
PLANS, GUARDS = (
    f"{CELL}: {what} where link, compute, operators are off, 100 iterations" for what in ("plans", "slackswap's guard")
)
CHAIN = ("robustness", "chain.json", "--budget", "5MB", "--samples", "4")


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.commands, "robustness", robustness)


@pytest.fixture
def three_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Keep(), registry()["checkpoint"], registry()["slackswap"]))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("│").split("│")]


@pytest.mark.usefixtures("three_planners")
def test_the_table_has_the_best_plan_first_and_says_why_nothing_fits(run: Run) -> None:
    ran = run(*CHAIN, "--errors", "0,20%", "--guard", "0,50%", "--replan", "slackswap")
    assert (ran.returncode, ran.stderr) == (0, "")
    for what in ("plans", "slackswap's guard"):
        title = f"chain of 6, 83.3% of the peak, 0.0050 GB: {what} where link, compute, operators are off, 4 iterations"
        assert " ".join(ran.stdout.split()).count(title) == 1  # a title is broken where its table is narrow
    lines = {cells(line)[0]: cells(line)[1:] for line in ran.stdout.splitlines() if line.startswith("│")}
    assert list(lines) == ["slackswap", "slackswap, replanned", "checkpoint", "keep", "0%", "50%"]
    # In 5 MB one tensor has to go. slackswap swaps a0, which costs nothing: 18 ms; checkpoint recomputes a1, 19 ms.
    assert lines["slackswap"][:4] == ["100.00%"] * 4
    assert lines["checkpoint"][:4] == ["94.74%"] * 4
    assert lines["keep"] == ["infeasible", *["-"] * 9]
    assert lines["slackswap"][-2:] == ["4", "0"]
    assert lines["slackswap, replanned"][-2:] == ["-", "0"]
    assert "keep at 5,000,000 bytes: no plan found that fits; operator 'f5' lacks 1,000,000 bytes" in ran.stdout
    assert ran.stdout.count("no plan found that fits") == 1


@pytest.mark.usefixtures("three_planners")
def test_rows_for_machines(run: Run) -> None:
    ran = run(*CHAIN, "--guard", "10%", "--csv", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    read = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert tuple(read[0]) == COLUMNS
    assert [(row["planner"], row["error"]) for row in read[::3]] == [
        ("keep", "0.05"),
        ("checkpoint", "0.05"),
        ("slackswap", "0.05"),
        ("slackswap g=10%", "0.05"),
    ]
    assert [row["error"] for row in read[:3]] == ["0.05", "0.1", "0.2"]
    assert (read[0]["throughput"], read[0]["not_fitting"], read[-1]["guard"]) == ("", "", "0.1")
    lines = [json.loads(line) for line in run(*CHAIN, "--guard", "10%", "--json", "-").stdout.splitlines()]
    assert [len(line["throughputs"]) for line in lines] == [0] * 3 + [4] * 9
    assert [line["worst_throughput"] for line in lines[3:]] == [min(line["throughputs"]) for line in lines[3:]]
    assert float(read[5]["worst_throughput"]) == lines[5]["worst_throughput"]


@pytest.mark.usefixtures("three_planners")
def test_seed_samples_and_parts_reach_the_replay(run: Run) -> None:
    def throughputs(*options: str) -> list[float]:
        ran = run(*CHAIN, "--planner", "checkpoint", "--errors", "20%", *options, "--json", "-")
        assert ran.returncode == 0
        return list(json.loads(ran.stdout)["throughputs"])

    assert throughputs() == throughputs("--seed", "0")
    assert throughputs() != throughputs("--seed", "1")
    assert throughputs("--samples", "9")[:4] == throughputs()
    # Recomputation takes as long a share of the step however fast the link and all operators are.
    assert throughputs("--parts", "link, compute") == pytest.approx([18 / 19] * 4)
    assert throughputs("--parts", "operators") == pytest.approx(throughputs())


@pytest.mark.usefixtures("three_planners")
def test_the_page_has_the_same_numbers_as_the_table(run: Run) -> None:
    shown = run(*CHAIN, "--guard", "0").stdout
    ran = run(*CHAIN, "--guard", "0", "--markdown", "-")
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [line for line in ran.stdout.splitlines() if line.startswith("| ")]
    assert lines[0].startswith("| planner | planned | ±5% median | ±5% mean | ±5% worst | ±10% median |")
    assert lines[0].endswith("| ±20% worst | ±20% worst (planned ideal) | ±20% fastest | does not fit |")
    assert {line.count("|") for line in lines} == {lines[0].count("|")}
    by_name = {line.split(" | ")[0].strip("| "): line.replace("*", "") for line in lines}
    for line in (line for line in shown.splitlines() if line.startswith("│")):
        assert by_name[cells(line)[0]] == f"| {' | '.join(cells(line))} |"
    assert run(*CHAIN, "--markdown", "page.md").returncode == 0
    assert Path("page.md").read_text().startswith("### chain of 6, 83.3% of the peak")


@pytest.mark.usefixtures("three_planners")
def test_more_errors_than_fit_into_a_table(run: Run) -> None:
    ran = run(*CHAIN, "--planner", "checkpoint", "--errors", "1%,2%,3%,4%", "--markdown", "-")
    headings = [line for line in ran.stdout.splitlines() if line.startswith("| planner")]
    assert ["±3%" in heading for heading in headings] == [True, False]
    assert ["±4%" in heading for heading in headings] == [False, True]


def lines_of(*throughputs: tuple[float | None, ...], replanned: int | None = None) -> list[list[str]]:
    """Return the lines of the table of plans with these throughputs in the iterations of one error."""
    plans = []
    for i, values in enumerate(throughputs):
        planned = RobustnessRow(
            problem="p",
            budget_bytes=1,
            budget_fraction=0.5,
            planner=f"p{i}",
            replanned=i == replanned,
            status="feasible",
            parts="link",
            error=0.1,
            samples=len(values),
            seed=0,
            ideal_s=1.0,
            step_s=1.0,
            throughput=1.0,
        )
        steps_s = np.array([math.inf if value is None else 1 / value for value in values])
        result = next(iter(shootout([chain(6)], ["1"], [Keep()], bound=None)))[0]
        plans.append(Replayed(result, (with_iterations(planned, steps_s, np.ones(len(values))),)))
    (grid,) = grids_of(plans)
    return [line.strip("| ").split(" | ") for line in as_markdown(grid).splitlines()[4:]]


def test_the_fastest_of_each_iteration_is_counted_and_the_best_of_a_column_marked() -> None:
    first, second, anew = lines_of((0.9, 0.5, 0.8), (0.8, 0.5, None), (1.0, 1.0, 1.0), replanned=2)
    # The first is fastest in all three, once together with the second; what is planned anew does not count.
    assert (first[0], second[0], anew[0]) == ("p0", "p1", "p2, replanned")
    assert (first[-2], second[-2], anew[-2]) == ("3", "1", "-")
    assert (first[-1], second[-1]) == ("0", "1 of 3")
    assert (first[2], second[2], anew[2]) == ("**80.00%**", "65.00%", "100.00%")
    assert (first[4], second[4]) == ("**50.00%**", "**50.00%**")


def test_a_plan_that_never_fits_has_dashes() -> None:
    first, never = lines_of((0.9, 0.5, 0.8), (None, None, None))
    assert never[2:] == ["-", "-", "-", "-", "0", "3 of 3"]
    assert first[-2] == "3"


def test_names_break_no_table() -> None:
    page = as_markdown(Grid("a|b\n<c>", ("planner",), (("x|y\x1b[0m",),), frozenset()))
    assert page.splitlines()[0] == "### a\\|b\N{REPLACEMENT CHARACTER}&lt;c>"
    assert page.splitlines()[-1] == "| x\\|y\N{REPLACEMENT CHARACTER}[0m |"


@pytest.mark.usefixtures("three_planners")
@pytest.mark.parametrize(("name", "start"), [("spread.png", b"\x89PNG"), ("SPREAD.SVG", b"<?xml")])
def test_the_command_draws(run: Run, name: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    ran = run("robustness", "chain.json", "two.json", "--budget", "90%,1", "--samples", "3", "--plot", name)
    assert (ran.returncode, ran.stderr) == (0, f"figure written to {name}\n")
    assert Path(name).read_bytes().startswith(start)


@pytest.mark.usefixtures("three_planners")
def test_where_no_plan_fits_there_is_nothing_to_draw(run: Run) -> None:
    pytest.importorskip("matplotlib")
    ran = run("robustness", "chain.json", "--budget", "0.1MB", "--plot", "spread.png")
    assert (ran.returncode, ran.stderr) == (0, "no plan fits: nothing to draw\n")
    assert not Path("spread.png").exists()


def test_without_matplotlib_one_line_says_what_to_install(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran = run(*CHAIN, "--plot", "spread.png")
    assert (ran.returncode, ran.stdout) == (2, "")  # before any planner has run
    assert ran.stderr.startswith("slackswap: error: figures: matplotlib is not installed: install the plot extra")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--errors", "5"], "slackswap: error: --errors: '5' is no share: write a fraction from 0 to 1 (0.05), or 5%"),
        (["--errors", "-5%"], "slackswap: error: --errors: '-5%' is no share"),
        (["--errors", "x"], "slackswap: error: --errors: 'x' is no share"),
        (["--errors", ","], "slackswap: error: errors: names no error"),
        (["--guard", "150%"], "slackswap: error: --guard: '150%' is no share"),
        (["--guard", "100%"], "slackswap: error: a guard is a fraction of the forward time from 0 to below 1, not 1.0"),
        (["--parts", "gpu"], "slackswap: error: parts: 'gpu' is nothing that can be off: use link, compute, operators"),
        (["--parts", ""], "slackswap: error: parts: names nothing that is off"),
        (["--samples", "0"], "slackswap: error: samples: one iteration or more is replayed, not 0"),
        (["--replan", "none"], "slackswap: error: --planner: 'none' is not a planner"),
        (["--planner", "none"], "slackswap: error: --planner: 'none' is not a planner"),
        (["--plot", "spread.pdf"], "slackswap: error: spread.pdf: ends in .png or .svg"),
        (["--plot", "no/spread.png"], "slackswap: error: no/spread.png: cannot be written"),
        (["--markdown", "x.md", "--csv", "x.md"], "two outputs would overwrite each other"),
        (["--budget", "x"], "slackswap: error: --budget: 'x' is not a budget"),
        (["--time-limit", "0"], "Invalid value for '--time-limit'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_line(run: Run, arguments: list[str], message: str) -> None:
    ran = run("robustness", "chain.json", "--budget", "5MB", "--planner", "keep", *arguments)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert message in ran.stderr


def test_sources_and_budgets_are_needed(run: Run) -> None:
    assert "Missing argument 'SOURCE...'" in run("robustness", "--budget", "0.5").stderr
    assert "Missing option '--budget'" in run("robustness", "chain.json").stderr


def test_shares_are_fractions_or_percent() -> None:
    assert parse_shares("5%, .1,0.1, 20 %,1,0,", "x") == [0.05, 0.1, 0.2, 1.0, 0.0]
    assert parse_shares("", "x") == []
    for text in ("101%", "1.01", "1e-3", "%", "5%%", "0.1;0.2"):
        with pytest.raises(InputError, match="is no share"):
            parse_shares(text, "x")


def test_ctrl_c_keeps_what_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (registry()["checkpoint"], Interrupted(), Keep()))
    ran = run(*CHAIN, "--csv", "rows.csv", "--plot", "spread.png")
    assert ran.returncode == 130
    assert ran.stderr.splitlines() == ["figure written to spread.png", "slackswap: interrupted"]
    rows = list(csv.DictReader(Path("rows.csv").read_text().splitlines()))
    assert [row["planner"] for row in rows] == ["checkpoint"] * 3
    assert "checkpoint" in ran.stdout
    assert "keep" not in ran.stdout


def test_ctrl_c_before_anything_is_finished(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (Interrupted(),))
    ran = run(*CHAIN)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "slackswap: interrupted\n")


def test_progress_goes_to_stderr(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    ran = run(*CHAIN, "--planner", "keep,checkpoint", "--json", "-")
    assert ran.returncode == 0
    assert "chain of 6, 5MB: checkpoint" in ran.stderr
    assert {json.loads(line)["planner"] for line in ran.stdout.splitlines()} == {"keep", "checkpoint"}


@dataclass(frozen=True)
class Patient:
    """A planner that remembers its time limits."""

    asked: list[float | None]
    name: str = "patient"
    description: str = "takes the time that it gets"
    policy: str = "default"
    supports: Supports = Supports()

    def plan(
        self, problem: Problem, budget_bytes: int, *, rng: np.random.Generator, time_limit_s: float | None
    ) -> Outcome:
        del budget_bytes, rng
        self.asked.append(time_limit_s)
        return Outcome(Status.FEASIBLE, Plan.from_letters("KR" + "K" * (problem.n_tensors - 2)))


def test_time_limits_reach_planners_and_replanners(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    patient = Patient([])
    monkeypatch.setattr(slackswap.planners, "BUILT_IN", (patient,))
    assert run(*CHAIN, "--time-limit", "2.5").returncode == 0
    assert patient.asked == [2.5]
    assert run(*CHAIN, "--errors", "1%", "--replan", "patient").returncode == 0
    assert (
        patient.asked[1:] == [0.5] * 6
    )  # once for the plan, once for the nominal plan of what is replanned, four anew


def test_the_page_in_the_documentation_is_what_the_command_writes(run: Run) -> None:
    # The planners that do not search: their plans depend on no clock.
    ran = run(
        *("robustness", "gpt2-xl", "--budget", "50%", "--planner", "slackswap,recompute-only"),
        *("--guard", "0,2%,5%,10%,20%", "--replan", "slackswap", "--markdown", "-"),
    )
    assert ran.returncode == 0
    page = [line.replace("*", "") for line in PAGE.read_text(encoding="utf-8").splitlines()]
    lines = [line.replace("*", "") for line in ran.stdout.splitlines() if line]
    plans, guards = lines.index(PLANS), lines.index(GUARDS)
    assert (plans, guards, len(lines)) == (0, 6, 14)
    assert lines[guards:] == [line for line in page[page.index(GUARDS) :] if line][:8]
    # How often a plan is the fastest depends on the others of the table, which here are few.
    table = page[page.index(PLANS) : page.index(GUARDS)]
    shown = {" | ".join(line.split(" | ")[:-2]) for line in lines[:guards]}
    assert shown <= {" | ".join(line.split(" | ")[:-2]) for line in table}
