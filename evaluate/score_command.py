"""The command ``slackswap score``: a plan file's score, what limits it, and its timeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from slackswap.evaluate.command_options import HARDWARE, JSON
from slackswap.evaluate.command_output import check_outputs, write_output
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from slackswap.evaluate.results import Result
    from slackswap.models.event_model import Score

TRACES, PICTURES = (".json", ".json.gz"), (".png", ".svg")


@click.command()
@click.argument("source")
@click.argument("plan_file", metavar="PLAN.JSON")
@HARDWARE
@click.option(
    "--policy", default=None, metavar="NAME", help="Runtime policy; by default the one of the plan's planner."
)
@click.option("--why", is_flag=True, help="Say what limits the plan: stalls, rebuilds, the link, slack, memory.")
@click.option(
    "--timeline",
    "timeline_path",
    metavar="FILE",
    help="Write the step's timeline: .json or .json.gz for Perfetto and chrome://tracing, .png or .svg to look at.",
)
@JSON
def score(
    source: str,
    plan_file: str,
    hardware: str | None,
    policy: str | None,
    why: bool,
    timeline_path: str | None,
    json_path: str | None,
) -> None:
    """Score a plan file on the SOURCE that it was made for; with --why, say what limits it."""
    from slackswap.evaluate.explain import explanation_json, print_explanation
    from slackswap.evaluate.report import score_stored_plan
    from slackswap.evaluate.results import to_json_lines
    from slackswap.evaluate.sources import load_source

    check_outputs(json_path, timeline_path)
    write = None if timeline_path is None else _timeline_writer(timeline_path)
    result = score_stored_plan(load_source(source, hardware), plan_file, policy)
    played = _with_timeline(result, policy) if why or write else None
    explanation = played.explain() if played and why else None
    rows = to_json_lines([result.row]) if explanation is None else explanation_json(result.row, explanation)
    write_output(json_path, rows)
    if json_path != "-":
        _print_result(result)
        if explanation is not None:
            print_explanation(explanation)
    if played and write and timeline_path:
        write(timeline_path, played)
        click.echo(f"timeline written to {timeline_path}", err=True)


def _timeline_writer(path: str) -> Callable[[str, Score], None]:
    """Return what writes a timeline of this kind; refuse other kinds, and pictures without matplotlib, before the work."""
    if path.endswith(TRACES):
        from slackswap.evaluate.timeline_file import write_timeline_file

        return write_timeline_file
    if path.lower().endswith(PICTURES):
        from slackswap.evaluate.gap_figure import check_figure_path
        from slackswap.evaluate.timeline_figure import write_timeline_figure

        check_figure_path(path)
        return write_timeline_figure
    raise InputError(f"ends in {', '.join((*TRACES, *PICTURES))}: '{path}' does not", source="--timeline")


def _with_timeline(result: Result, policy: str | None) -> Score:
    """Return the score again, with its timeline, under the policy that it was scored under."""
    from slackswap.evaluate.report import policy_of
    from slackswap.models.event_model import simulate

    runs_under = policy or policy_of(result.row.planner)
    if result.outcome.plan is None:
        raise InputError("holds no plan", source=result.row.planner)
    return simulate(result.problem, result.outcome.plan, result.row.budget_bytes, policy=runs_under, timeline=True)


def _print_result(result: Result) -> None:
    from slackswap.evaluate.report import explain_infeasibility, print_table
    from slackswap.evaluate.results import table

    print_table(table([result.row]))
    for line in explain_infeasibility([result]):
        click.echo(line)
    click.echo()
