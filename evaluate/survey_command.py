"""The command ``slackswap survey``: every planner on every trace of a folder, as one page."""

from __future__ import annotations

from pathlib import Path

import click

from slackswap.evaluate.command_options import HARDWARE, PLANNERS, SEED, TIMES, time_limit_of
from slackswap.evaluate.command_output import check_outputs, write_output


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@HARDWARE
@click.option("--budget", default="80%,60%,40%", show_default=True, metavar="B,...", help="Budgets, comma-separated.")
@TIMES
@PLANNERS
@time_limit_of(0.5)
@SEED
@click.option("-o", "--output", metavar="FILE.md", help="Write the page here; without it, to stdout.")
def survey(
    paths: tuple[str, ...],
    hardware: str | None,
    budget: str,
    times: str,
    planner: str,
    time_limit: float,
    seed: int,
    output: str | None,
) -> None:
    """Run every planner on every trace among files and folders; show one page of Markdown."""
    from slackswap.evaluate.budget import parse_budgets
    from slackswap.evaluate.progress import Progress, collect, shown_at_work
    from slackswap.evaluate.survey import Surveyed, import_everything, markdown
    from slackswap.evaluate.survey import survey as run
    from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
    from slackswap.planners import find_planners

    check_outputs(output)
    planners, budgets = find_planners(planner), parse_budgets(budget)
    machine = load_hardware(hardware or DEFAULT_HARDWARE)
    with shown_at_work("reading traces"):
        imported, refused = import_everything(paths, machine, roofline=times == "roofline")
    surveyed: list[Surveyed] = []
    with Progress(len(imported) * len(budgets) * (len(planners) + 1)) as progress:
        pages = run(imported, budgets, planners, seed=seed, time_limit_s=time_limit, announce=progress.announce)
        finished = collect(pages, surveyed.append)
    named = " ".join(Path(path).name for path in paths)
    command = f"slackswap survey {named} --budget {budget} --times {times} --time-limit {time_limit:g}"
    write_output(output or "-", markdown(surveyed, refused, hardware=machine, command=command))
    if output is not None:
        click.echo(f"page written to {output}: {len(surveyed)} problems, {len(refused)} files refused", err=True)
    if not finished:
        raise KeyboardInterrupt
