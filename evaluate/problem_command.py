"""The command ``slackswap problem``: what was derived from a source, and how."""

from __future__ import annotations

import click

from slackswap.evaluate.command_options import HARDWARE, TIMES
from slackswap.evaluate.command_output import check_outputs
from slackswap.hardware.input_error import InputError


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@HARDWARE
@click.option(
    "--step", default="", metavar="NAME", help="Of a trace of several steps, the one to take (`#18` or `18`)."
)
@TIMES
@click.option("--kinds", metavar="FILE.toml", help="Operator kinds by name, before the built-in table.")
@click.option("--check", metavar="FILE", help="Compare A with a memory snapshot, memory timeline or Kineto trace.")
@click.option("-o", "--output", metavar="FILE", help="Write the problem here (.json or .json.gz); one SOURCE only.")
def problem(
    sources: tuple[str, ...],
    hardware: str | None,
    step: str,
    times: str,
    kinds: str | None,
    check: str | None,
    output: str | None,
) -> None:
    """Show what was derived from each SOURCE, and how; write the problem with -o."""
    from slackswap.evaluate.problem_report import describe_check, print_problem
    from slackswap.evaluate.progress import shown_at_work
    from slackswap.evaluate.sources import TraceOptions, load_source
    from slackswap.models.problem_file import write_problem

    if output is not None and len(sources) > 1:
        raise InputError("takes one SOURCE: a file holds one problem", source="-o")
    check_outputs(output)
    options = TraceOptions(step, times == "roofline", kinds)
    for source in sources:
        with shown_at_work(f"reading {source}"):
            derived = load_source(source, hardware, options)
        print_problem(derived)
        if check is not None:
            for line in describe_check(derived, check):
                click.echo(line)
        if output is not None:
            write_problem(derived, output)
            click.echo(f"problem written to {output}", err=True)
