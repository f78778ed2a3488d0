"""The command ``slackswap sweep``: the jobs of a grid on one machine or many, each kept as soon as it is finished.

The rows stand in two files: the table that ``-o`` names, written when the run ends or is interrupted, and beside it, with
``.jsonl`` added, the store, which grows by a line for each finished job and which the next run goes on from.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.evaluate.results import Row
    from slackswap.evaluate.sweep_engines import Engine, Failure
    from slackswap.evaluate.sweep_grid import Grid

STORE_SUFFIX = ".jsonl"
SOME_FAILED = 1
_SHOWN_FAILURES = 5


@click.command()
@click.argument("grid_file", metavar="GRID.TOML")
@click.option(
    "-o", "--output", required=True, metavar="FILE.csv", help="Write the table here; FILE.csv.jsonl keeps each job."
)
@click.option(
    "--engine",
    "engine_name",
    default="local",
    show_default=True,
    metavar="ENGINE",
    help="serial, local (all cores), dask (a cluster on this machine) or dask://tcp://HOST:8786 (a scheduler that runs).",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Processes of local and dask; by default one for each core.")
@click.option("--retry-errors", is_flag=True, help="Run jobs again that ended in an error before.")
def sweep(grid_file: str, output: str, engine_name: str, jobs: int | None, retry_errors: bool) -> None:
    """Run every planner of a grid on its problems, budgets and machines, and go on where an earlier run stopped.

    GRID.TOML names planners, budgets, sources, hardware, seeds and limits; every combination is a job. A job that fails is
    a row with the status `error` and its reason; the exit code is then 1.
    """
    from slackswap.evaluate.progress import shown_at_work
    from slackswap.evaluate.sweep_engines import Failure, find_engine
    from slackswap.evaluate.sweep_grid import read_grid
    from slackswap.evaluate.sweep_results import sweep_csv

    store = _check_files(grid_file, output)
    engine = find_engine(engine_name, jobs)
    with shown_at_work("reading the problems of the grid"):
        grid = read_grid(grid_file)
    ended: dict[str, Row | Failure] = {}
    stopped = _collect(grid, engine, store, retry_errors, ended)
    if isinstance(stopped, InputError) and not ended:
        raise stopped
    write_output(output, sweep_csv(grid.cases, ended))
    failures = [value for value in ended.values() if isinstance(value, Failure)]
    _report(grid, ended, failures, output)
    if stopped is not None:
        click.echo(f"what is finished is kept in {store}: run the same command to go on", err=True)
        raise stopped
    if failures:
        sys.exit(SOME_FAILED)


def _check_files(grid_file: str, output: str) -> str:
    """Return the name of the store."""
    if output == "-":
        raise InputError("a sweep writes to a file, beside which it keeps each finished job", source="--output")
    store = output + STORE_SUFFIX
    check_outputs(output, store)
    if Path(grid_file).resolve() in (Path(output).resolve(), Path(store).resolve()):
        raise InputError("would overwrite the grid: name another file", source=output)
    return store


def _collect(
    grid: Grid, engine: Engine, store: str, retry: bool, ended: dict[str, Row | Failure]
) -> KeyboardInterrupt | InputError | None:
    """Gather results as they come; return what stopped that before all were there: Ctrl-C, a full disk, a lost cluster."""
    from slackswap.evaluate.sweep_store import SweepStore
    from slackswap.evaluate.sweeps import finished_cases

    try:
        with SweepStore(store) as kept:
            for key, _, value in finished_cases(
                grid.cases, engine=engine, kept=kept, carried=grid.problems, retry=retry
            ):
                ended[key] = value
    except (KeyboardInterrupt, InputError) as stopped:
        return stopped
    return None


def _report(grid: Grid, ended: dict[str, Row | Failure], failures: list[Failure], output: str) -> None:
    from slackswap.evaluate.sweeps import case_key

    n_left = len({case_key(case) for case in grid.cases}) - len(ended)
    parts = [f"{len(ended)} jobs finished", f"{len(failures)} of them failed" if failures else ""]
    parts.append(f"{n_left} remain" if n_left else "")
    click.echo(f"table written to {output}: {', '.join(part for part in parts if part)}", err=True)
    reasons = list(dict.fromkeys(failure.reason for failure in failures))
    for reason in reasons[:_SHOWN_FAILURES]:
        click.echo(f"failed: {reason}", err=True)
    if len(reasons) > _SHOWN_FAILURES:
        click.echo(f"... and {len(reasons) - _SHOWN_FAILURES} other reasons, in the table", err=True)
