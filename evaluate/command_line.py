"""The command line ``slackswap``: results on stdout, progress and errors on stderr.

Exit codes: 0 a result, 1 no plan fits (`plan` then writes no file), 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackswap.evaluate.calibrate_command import calibrate
from slackswap.evaluate.capture_command import capture
from slackswap.evaluate.command_options import (
    BOUND,
    CSV,
    HARDWARE,
    JSON,
    PLANNERS,
    SEED,
    positive_seconds,
    time_limit_of,
)
from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.evaluate.problem_command import problem
from slackswap.evaluate.report_command import report
from slackswap.evaluate.robustness_command import robustness
from slackswap.evaluate.score_command import score
from slackswap.evaluate.survey_command import survey
from slackswap.evaluate.sweep_command import sweep
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.evaluate.results import Result

NO_PLAN_FITS, BAD_INPUT, INTERRUPTED = 1, 2, 130


def main() -> None:
    """Run the command line; one line on stderr for bad input, never a traceback."""
    _prepare_streams()
    try:
        with cli.make_context("slackswap", sys.argv[1:]) as context:
            cli.invoke(context)
        sys.exit(_flushed())
    except InputError as error:
        _stop(f"error: {error}", BAD_INPUT)
    except click.exceptions.Exit as stop:
        sys.exit(_flushed() or stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, click.Abort):
        _stop("interrupted", INTERRUPTED)
    except OSError as error:
        sys.exit(_output_failed(error))


def _prepare_streams() -> None:
    """Results go nowhere where there is no stdout; letters that a terminal lacks are escaped."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - open for as long as the process runs
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _flushed() -> int:
    try:
        sys.stdout.flush()
    except OSError as error:
        return _output_failed(error)
    return 0


def _output_failed(error: OSError) -> int:
    """Return the exit code for a stdout that takes no more: of a reader that has seen enough, or of a full disk."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is buffered goes nowhere when the process ends
    if isinstance(error, BrokenPipeError):
        return 0
    print(f"slackswap: error: stdout: {(error.strerror or str(error)).lower()}", file=sys.stderr)
    return BAD_INPUT


def _stop(message: str, code: int) -> None:
    print(f"slackswap: {message}", file=sys.stderr)
    sys.exit(_flushed() or code)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="slackswap")
def cli() -> None:
    """Compare planners for training neural networks in too little GPU memory.

    SOURCE is a workload (see `slackswap list workloads`), a problem file, or trace files; files that belong together are
    joined by `+`. Budgets are fractions of the peak (0.5, 50%) or bytes (8GB, 8GiB).
    """


@cli.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@HARDWARE
@click.option("--budget", default="0.7,0.5,0.3", show_default=True, metavar="B,...", help="Budgets, comma-separated.")
@PLANNERS
@time_limit_of(0.5)
@BOUND
@SEED
@JSON
@CSV
def shootout(
    sources: tuple[str, ...],
    hardware: str | None,
    budget: str,
    planner: str,
    time_limit: float,
    bound: bool,
    seed: int,
    json_path: str | None,
    csv_path: str | None,
) -> None:
    """Run every planner on every SOURCE and budget, and compare.

    Without SOURCE: the paper's workloads and the recorded trace that ships with slackswap.
    """
    from slackswap.evaluate.bounds import certified_bound_s
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.progress import Progress, collect, shown_at_work
    from slackswap.evaluate.results import to_csv, to_json_lines
    from slackswap.evaluate.shootout import shootout as run
    from slackswap.evaluate.sources import DEFAULT_SOURCES, load_source
    from slackswap.planners import find_planners

    check_outputs(json_path, csv_path)
    planners, budgets, names = find_planners(planner), parse_budgets(budget), sources or DEFAULT_SOURCES
    with shown_at_work("reading the sources"):
        problems = [load_source(name, hardware) for name in names]
    results: list[Result] = []
    with Progress(len(names) * len(budgets) * (len(planners) + bound)) as progress:
        cells = run(
            problems,
            budgets,
            planners,
            seed=seed,
            time_limit_s=time_limit,
            bound=certified_bound_s if bound else None,
            announce=progress.announce,
        )
        finished = collect(cells, results.extend)
    rows = [result.row for result in results]
    write_output(json_path, to_json_lines(rows))
    write_output(csv_path, to_csv(rows))
    if "-" not in (json_path, csv_path):
        _print_tables(results)
    if not finished:
        raise KeyboardInterrupt


def _print_tables(results: list[Result]) -> None:
    from slackswap.evaluate.report import explain_infeasibility, print_table
    from slackswap.evaluate.results import table

    for _, group in itertools.groupby(results, key=lambda result: id(result.problem)):
        of_problem = list(group)
        print_table(table([result.row for result in of_problem]))
        for line in explain_infeasibility(of_problem):
            click.echo(line)
        click.echo()


@cli.command()
@click.argument("source")
@HARDWARE
@click.option("--planner", default="slackswap", show_default=True, metavar="NAME")
@click.option("--budget", required=True, metavar="B", help="A fraction of the peak, or bytes.")
@time_limit_of(None)
@SEED
@click.option("-o", "--output", metavar="FILE", help="Write the plan here.")
def plan(
    source: str,
    hardware: str | None,
    planner: str,
    budget: str,
    time_limit: float | None,
    seed: int,
    output: str | None,
) -> None:
    """Plan one SOURCE within one budget; write the plan with -o."""
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.progress import collect
    from slackswap.evaluate.report import stored_planner
    from slackswap.evaluate.shootout import shootout as run
    from slackswap.evaluate.sources import load_source
    from slackswap.models.plan_file import write_plan
    from slackswap.planners import find_planners

    check_outputs(output)
    planners, budgets = find_planners(planner), parse_budgets(budget)
    if len(planners) != 1 or len(budgets) != 1:
        raise InputError(
            "`plan` takes one planner and one budget; `shootout` compares several", source="--planner, --budget"
        )
    problem = load_source(source, hardware)
    results: list[Result] = []
    if not collect(run([problem], budgets, planners, seed=seed, time_limit_s=time_limit, bound=None), results.extend):
        raise KeyboardInterrupt
    (result,) = results
    _print_tables([result])
    if result.outcome.plan is None or result.score is None or not result.score.fits:
        sys.exit(NO_PLAN_FITS)
    if output is not None:
        write_plan(output, problem, result.outcome.plan, result.row.budget_bytes, stored_planner(result))
        click.echo(f"plan written to {output}", err=True)


@cli.command()
@click.argument("source")
@HARDWARE
@click.option("--budget", required=True, metavar="B", help="A fraction of the peak, or bytes.")
@PLANNERS
@time_limit_of(10.0)
@SEED
@click.option("--plot", metavar="FILE.png", help="Draw the gap of each planner over its planning time (.png or .svg).")
@JSON
@CSV
def gap(
    source: str,
    hardware: str | None,
    budget: str,
    planner: str,
    time_limit: float,
    seed: int,
    plot: str | None,
    json_path: str | None,
    csv_path: str | None,
) -> None:
    """Measure how far each planner's step on one SOURCE is from the lower bound, and from the best plan known."""
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.gap import COLUMNS, draw_gaps, gap_rows, gap_table, measure_gaps
    from slackswap.evaluate.gap_figure import check_figure_path
    from slackswap.evaluate.progress import Progress, collect
    from slackswap.evaluate.report import explain_infeasibility, print_table
    from slackswap.evaluate.results import to_csv, to_json_lines
    from slackswap.evaluate.sources import load_source
    from slackswap.planners import find_planners

    check_outputs(json_path, csv_path, plot)
    if plot is not None:
        check_figure_path(plot)
    planners, budgets = find_planners(planner), parse_budgets(budget)
    if len(budgets) != 1:
        raise InputError("`gap` takes one budget; `shootout` compares several", source="--budget")
    problem = load_source(source, hardware)
    results: list[Result] = []
    with Progress(len(planners) + 1) as progress:
        cells = measure_gaps(problem, budgets[0], planners, seed, time_limit, progress.announce)
        finished = collect(cells, results.extend)
    rows = gap_rows(results)
    write_output(json_path, to_json_lines(rows))
    write_output(csv_path, to_csv(rows, COLUMNS))
    if "-" not in (json_path, csv_path):
        print_table(gap_table(rows))
        for line in explain_infeasibility(results):
            click.echo(line)
    if plot is not None:
        click.echo(f"figure written to {plot}" if draw_gaps(rows, plot) else "no plan fits: nothing to draw", err=True)
    if not finished:
        raise KeyboardInterrupt


for _command in (score, problem, survey, capture, calibrate, robustness, report, sweep):
    cli.add_command(_command)


@cli.command("list")
@click.argument("what", type=click.Choice(["planners", "workloads", "hardware"]))
def list_(what: str) -> None:
    """List planners, workloads or hardware."""
    from slackswap.evaluate.report import catalog_table, print_table

    print_table(catalog_table(what))


@cli.command()
@click.argument("items", nargs=-1, metavar="[ITEM]...")
@click.option("--out", metavar="DIR", help="Write CSV, figures and reproduction.md here; an interrupted run goes on.")
@click.option("--jobs", type=click.IntRange(min=1), help="Processes; by default one for each core.")
@click.option(
    "--ga-seconds",
    type=float,
    callback=positive_seconds,
    metavar="S",
    help="Time for each genetic search of Table 3, 45 in the paper; by default 14,000 plans, the paper's most.",
)
def reproduce(items: tuple[str, ...], out: str | None, jobs: int | None, ga_seconds: float | None) -> None:
    """Compute the paper's tables and figures, each value beside the paper's.

    ITEM is table1, table2, table3, fig1 to fig6, titanx, generations, or all, which is the default.
    """
    from slackswap.evaluate.report import print_table
    from slackswap.evaluate.reproduce import figures_can_be_drawn, find_items, make_folder, write
    from slackswap.evaluate.reproduce import reproduce as run
    from slackswap.evaluate.reproduction_report import comparison_table, points_table, summary

    chosen = find_items(items)
    folder = None if out is None else make_folder(out)
    reproduced = run(chosen, jobs=jobs, folder=folder, search_s=ga_seconds)
    for one in reproduced:
        print_table(comparison_table(one))
        for points in one.computed.points:
            if points.printed:
                print_table(points_table(points))
        for remark in one.computed.remarks:
            click.echo(remark)
        click.echo()
    click.echo(summary(comparison for one in reproduced for comparison in one.comparisons))
    if folder is not None:
        click.echo(f"files written to {folder}: {len(list(write(reproduced, folder)))}", err=True)
        if not figures_can_be_drawn():
            click.echo('no figures: they need the plot extra, pip install "slackswap[plot]"', err=True)
