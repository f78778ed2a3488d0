"""The command ``slackswap report``: a shootout, or the rows of an earlier one, as one HTML file."""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from slackswap.evaluate.command_options import BOUND, HARDWARE, PLANNERS, SEED, time_limit_of
from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.evaluate.html_report import Report
    from slackswap.evaluate.results import Result

# What decides how rows are made says nothing about rows that are there.
_OF_A_RUN = ("sources", "hardware", "budget", "planner", "time_limit", "bound", "seed", "timeline")


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@HARDWARE
@click.option("--budget", default="70%,50%,30%", show_default=True, metavar="B,...", help="Budgets, comma-separated.")
@PLANNERS
@time_limit_of(0.5)
@BOUND
@SEED
@click.option(
    "--timeline",
    default="fastest",
    show_default=True,
    metavar="NAME,...",
    help="Planners whose plans are drawn over time: names, `fastest` at each budget, or `none`.",
)
@click.option("--rows", metavar="FILE", help="Show the rows that a shootout or sweep wrote (CSV or JSON lines).")
@click.option("-o", "--output", required=True, metavar="FILE.html", help="Write the page here; - is stdout.")
@click.pass_context
def report(
    context: click.Context,
    sources: tuple[str, ...],
    hardware: str | None,
    budget: str,
    planner: str,
    time_limit: float,
    bound: bool,
    seed: int,
    timeline: str,
    rows: str | None,
    output: str,
) -> None:
    """Run every planner on every SOURCE and budget; write one HTML page with tables, charts and timelines.

    Without SOURCE: the paper's workloads and the recorded trace that ships with slackswap. The page needs no network
    (extra `plot`).
    """
    from slackswap.evaluate.html_report import html_report
    from slackswap.evaluate.html_report_charts import graph_objects

    check_outputs(output)
    graph_objects()  # before the work: without plotly there is no page
    if rows is not None:
        _refuse_options_of_a_run(context)
        made, finished = _of_rows(rows), True
    else:
        made, finished = _of_run(sources, hardware, budget, planner, time_limit, bound, seed, timeline)
    if made.problems:
        page = html_report(made)
        write_output(output, page)
        if output != "-":
            click.echo(f"page written to {output}: {len(page.encode()) / 1e6:.1f} MB", err=True)
    if not finished:
        raise KeyboardInterrupt


def _refuse_options_of_a_run(context: click.Context) -> None:
    default = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
    for name in _OF_A_RUN:
        if context.get_parameter_source(name) not in default:
            given = "SOURCE" if name == "sources" else f"--{name.replace('_', '-')}"
            raise InputError(f"shows rows that are there: it takes no {given}", source="--rows")


def _of_rows(path: str) -> Report:
    from slackswap.evaluate.html_report import Report, machine_facts, run_facts
    from slackswap.evaluate.html_report_rows import read_rows, reported_rows

    stored = read_rows(path)
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    problems = reported_rows(stored.rows)
    facts = [
        (
            "rows",
            f"{len(stored.rows):,} of {Path(path).name}, SHA-256 {digest}; the versions that made them are not recorded there",
        ),
        *run_facts(problems, None),
        *machine_facts(),
    ]
    return Report(problems, facts=[*_command_facts(), *facts], failures=stored.failures)


def _of_run(
    sources: Sequence[str],
    hardware: str | None,
    budget: str,
    planner: str,
    time_limit_s: float,
    bound: bool,
    seed: int,
    timeline: str,
) -> tuple[Report, bool]:
    """Run the shootout; return what the page shows, of an interrupted run what is finished, and whether all is."""
    from slackswap.evaluate.bounds import certified_bound_s
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.html_report import Report, chosen_timelines, machine_facts, run_facts
    from slackswap.evaluate.html_report_rows import reported_results
    from slackswap.evaluate.progress import Progress, collect, shown_at_work
    from slackswap.evaluate.shootout import shootout
    from slackswap.evaluate.sources import DEFAULT_SOURCES, load_source
    from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
    from slackswap.planners import find_planners

    planners, budgets, names = find_planners(planner), parse_budgets(budget), sources or DEFAULT_SOURCES
    wanted = [name.strip() for name in timeline.split(",") if name.strip()]
    chosen_timelines([], planners, wanted)  # refuses what did not run before anything does
    machine = load_hardware(hardware or DEFAULT_HARDWARE)
    with shown_at_work("reading the sources"):
        problems = [load_source(name, hardware) for name in names]
    results: list[Result] = []
    total = len(names) * len(budgets) * len(planners)
    with Progress(total + bound * len(names) * len(budgets)) as progress:
        cells = shootout(
            problems,
            budgets,
            planners,
            seed=seed,
            time_limit_s=time_limit_s,
            bound=certified_bound_s if bound else None,
            announce=progress.announce,
        )
        finished = collect(cells, results.extend)
    reported = reported_results(results)
    remarks = [] if finished else [f"Interrupted: {len(results)} of {total} runs are finished."]
    limits = f"{time_limit_s:g} s for each plan of a planner that searches, on the machine that made this page"
    facts = [*_command_facts(), ("sources", ", ".join(names)), ("planning time", limits)]
    facts += [*run_facts(reported, machine), *machine_facts()]
    return Report(reported, chosen_timelines(reported, planners, wanted), facts, remarks), finished


def _command_facts() -> list[tuple[str, str]]:
    return [("command", f"slackswap {shlex.join(sys.argv[1:])}"), ("date", _now())]


def _now() -> str:
    """Return the date; SOURCE_DATE_EPOCH fixes it for builds that are to be the same each time."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.fromtimestamp(int(epoch), UTC) if epoch.isdigit() and len(epoch) < 12 else datetime.now(UTC)
    return now.strftime("%Y-%m-%d %H:%M UTC")
