"""One HTML file about a shootout or a sweep: tables, charts, timelines, and where the numbers come from.

The file holds all it needs, plotly included, and asks no network for anything. The same input gives the same bytes, apart
from the date.
"""

from __future__ import annotations

import itertools
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata

from slackswap.evaluate.figure_style import display_name
from slackswap.evaluate.html_report_charts import (
    Look,
    gap_chart,
    graph_objects,
    link_charts,
    looks,
    shown,
    throughput_chart,
)
from slackswap.evaluate.html_report_page import Charts, Section, colour_keys, definitions, legend, page
from slackswap.evaluate.html_report_rows import Cell, ReportedProblem, planners_of
from slackswap.evaluate.html_report_tables import (
    DECISIONS,
    all_rows_table,
    answers_table,
    fastest_table,
    link_budget_table,
    listing,
    origin,
    planners_table,
)
from slackswap.evaluate.html_report_timeline import COLOURS, PlannedTimeline, timeline_chart
from slackswap.evaluate.results import Result, gigabytes
from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.planners import Planner

FASTEST, NO_TIMELINES = "fastest", "none"
PACKAGES = ("numpy", "numba", "scipy", "networkx", "pulp", "highspy", "ortools", "deap", "plotly")
ROWS_ALONE = (
    "This page was made from rows alone: they hold neither the problems nor the plans, so there are no timelines, no link"
    " budgets, no derivations and no reasons for plans that were not found. A report on the sources themselves has them."
)


@dataclass(frozen=True)
class Report:
    """What a page shows.

    Attributes
    ----------
    timelines : plans whose iteration is drawn
    facts : name and value of what the numbers come from: command, date, versions, seeds, hardware
    remarks : sentences that stand at the top, such as that the run was interrupted
    failures : of each job of a sweep that failed, which one and why
    """

    problems: Sequence[ReportedProblem]
    timelines: Sequence[PlannedTimeline] = ()
    facts: Sequence[tuple[str, str]] = ()
    remarks: Sequence[str] = ()
    failures: Sequence[str] = ()


def html_report(report: Report) -> str:
    """Return the page.

    Raises
    ------
    InputError
        plotly, the ``plot`` extra, is not installed.
    """
    graph_objects()
    problems, styles, charts = report.problems, looks(planners_of(report.problems)), Charts()
    sections = [
        Section("fastest", "Fastest plans", _fastest(problems, styles)),
        Section("throughput", "Throughput over budget", _throughput(problems, styles, charts)),
        Section("link", "Throughput over the link", _links(problems, styles, charts)),
        Section("gap", "Gap over planning time", _gaps(problems, styles, charts)),
        Section("planners", "Planners", f'<div class="scroll">{planners_table(problems, styles)}</div>'),
        Section("timelines", "Timelines", _timelines(report, charts)),
        Section("problems", "Problems", _problems(problems)),
        Section("answers", "Where no plan was found", _answers(problems)),
        Section(
            "failures",
            "Failed jobs",
            listing(f"{len(report.failures):,} jobs", report.failures) if report.failures else "",
        ),
        Section("rows", "All rows", _all_rows(problems, styles)),
        Section("provenance", "Provenance", definitions(report.facts)),
    ]
    return page(_title(problems), _lead(report), _tiles(problems), sections, charts)


def _title(problems: Sequence[ReportedProblem]) -> str:
    if len(problems) == 1:
        return f"SlackSwap: {problems[0].label}"
    return f"SlackSwap: planners on {len(problems)} problems"


def _lead(report: Report) -> str:
    planned = (
        "Plans for training in less memory than the activations need. Every number comes from one event model; throughput is"
        " the ideal step, in unlimited memory, over the step of the plan."
    )
    repeated = sum(one.repeated for one in report.problems)
    remarks = list(report.remarks)
    if not any(one.results for one in report.problems):
        remarks.append(ROWS_ALONE)
    if repeated:
        remarks.append(
            f"{repeated:,} rows share problem, budget and planner with another one, as in a sweep over seeds, or in a store,"
            " which does not say the link: each is a point of its own."
        )
    said = "".join(f'<p class="remark">{shown(remark, most_letters=1000)}</p>' for remark in remarks)
    return f'<p class="lead">{planned}</p>{said}'


def _tiles(problems: Sequence[ReportedProblem]) -> list[tuple[str, str]]:
    rows = [row for one in problems for row in one.rows]
    cells = [cell for one in problems for cell in one.cells]
    fits = sum(row.step_s is not None for row in rows)
    gaps = [cell.fastest[0].gap for cell in cells if cell.fastest]
    certified = [gap for gap in gaps if gap is not None]
    tiles = [
        (str(len(problems)), "problems"),
        (str(len(cells)), "problems at a budget"),
        (str(len(planners_of(problems))), "planners"),
        (f"{fits:,}<span> of {len(rows):,}</span>", "runs found a plan that fits"),
    ]
    if certified:
        tiles.append((f"{max(certified):.2%}", "largest gap of a fastest plan to its bound"))
    return tiles


def _fastest(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> str:
    keys = colour_keys((word, colour) for word, colour, _ in DECISIONS)
    return (
        '<p class="note">The plan with the shortest step at each budget. The gap is to a certified lower bound on the step'
        f" of every plan. Saved activations:{keys}</p>"
        f'<div class="scroll">{fastest_table(problems, styles)}</div>'
    )


def _throughput(problems: Sequence[ReportedProblem], styles: Mapping[str, Look], charts: Charts) -> str:
    figures = "".join(
        f"<figure><h3>{shown(one.label)}</h3>"
        f"{charts.place(throughput_chart(one, styles), f'Throughput of each planner over the budget, {shown(one.label)}')}"
        "</figure>"
        for one in problems
    )
    return (
        '<p class="note">No plan lies above the grey line, where a lower bound is known. A planner stands where its plan'
        f' fits.</p>{legend(styles)}<div class="grid">{figures}</div>'
    )


def _links(problems: Sequence[ReportedProblem], styles: Mapping[str, Look], charts: Charts) -> str:
    figures = "".join(
        f"<figure><h3>{shown(label)}</h3>{charts.place(figure, f'Throughput over the link, {shown(label)}')}</figure>"
        for label, figure in link_charts(problems, styles)
    )
    return f'{legend(styles)}<div class="grid">{figures}</div>' if figures else ""


def _gaps(problems: Sequence[ReportedProblem], styles: Mapping[str, Look], charts: Charts) -> str:
    figure = gap_chart(problems, styles)
    if figure is None:
        return ""
    return (
        '<p class="note">Each point is a plan: further down is closer to the lower bound, further left took less time to'
        f" find. Gaps below 0.0001% are drawn there.</p>{legend(styles)}"
        f"{charts.place(figure, 'Gap to the lower bound over planning time')}"
    )


def _timelines(report: Report, charts: Charts) -> str:
    """Return a chart for each timeline; of each problem, the last one, as a rule of the tightest budget, is open."""
    parts = []
    labels = {id(result.problem): one.label for one in report.problems for result in one.results}
    by_problem = itertools.groupby(report.timelines, key=lambda planned: id(planned.result.problem))
    for problem, group in by_problem:
        of_problem = list(group)
        least_bytes = min(planned.result.row.budget_bytes for planned in of_problem)
        label = shown(labels[problem])
        parts.append(f"<h3>{label}</h3>")
        for planned in of_problem:
            opened = " open" if planned.result.row.budget_bytes == least_bytes else ""
            plan = _plan_name(planned.result)
            chart = charts.place(timeline_chart(planned), f"Timeline of one iteration, {label}, {plan}")
            summary = f"<summary><b>{plan}</b>: {_totals(planned.result)}</summary>"
            parts.append(f"<details{opened}>{summary}{chart}</details>")
    if not parts:
        return ""
    keys = colour_keys(COLOURS.items())
    note = (
        "One iteration in the event model. A gap before a step has the colour of what caused most of it; intervals that"
        " begin within the same 1,500th of the step are drawn as one. Drag to zoom, double-click to go back."
    )
    return f'<p class="note">{note}</p><p class="small">{keys}</p>{"".join(parts)}'


def _plan_name(result: Result) -> str:
    row = result.row
    return f"{row.budget_fraction:.1%} ({gigabytes(row.budget_bytes)} GB), {shown(display_name(row.planner))}"


def _totals(result: Result) -> str:
    row = result.row
    stalls_ms = 1e3 * ((row.forward_stall_s or 0.0) + (row.backward_stall_s or 0.0))
    return (
        f"step {1e3 * (row.step_s or 0.0):,.2f} ms, {row.throughput or 0.0:.2%} of ideal;"
        f" recompute {1e3 * (row.recompute_s or 0.0):,.2f} ms, stalls {stalls_ms:,.2f} ms,"
        f" D2H {gigabytes(row.d2h_bytes or 0)} GB"
    )


def _problems(problems: Sequence[ReportedProblem]) -> str:
    if not any(one.results for one in problems):
        return ""
    note = (
        "A: saved activations; P: peak if all is kept; I = F / A: FLOPs of the forward pass per saved byte;"
        " &beta;: FLOPs that the machine computes in the time of one byte on the link;"
        " f = min(1, I / &beta;): the share of A that the link can copy out during the forward pass (Eq. 1)."
        " A dash: the FLOPs are unknown."
    )
    origins = "".join(map(origin, problems))
    return (
        f'<p class="note">{note}</p><div class="scroll">{link_budget_table(problems)}</div>'
        f"<h3>Where they come from</h3>{origins}"
    )


def _answers(problems: Sequence[ReportedProblem]) -> str:
    answers = answers_table(problems)
    return f'<div class="scroll tall">{answers}</div>' if answers else ""


def _all_rows(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> str:
    options = "".join(f'<option value="{shown(one.label)}">{shown(one.label)}</option>' for one in problems)
    total = sum(len(one.rows) for one in problems)
    tools = (
        '<div class="tools"><input type="search" data-filter="text" placeholder="filter" aria-label="Filter the rows">'
        f'<select data-filter="problem" aria-label="Problem"><option value="">all problems</option>{options}</select>'
        f'<span class="small" id="shown-rows">{total} of {total} rows</span></div>'
    )
    rows = all_rows_table(problems, styles)
    return f'<p class="note">A click on a heading sorts.</p>{tools}<div class="scroll tall">{rows}</div>'


def chosen_timelines(
    problems: Iterable[ReportedProblem], planners: Sequence[Planner], wanted: Sequence[str]
) -> list[PlannedTimeline]:
    """Return the plans to draw: at each budget, those of the named planners that fit.

    Parameters
    ----------
    wanted : names of planners; `FASTEST` is the fastest one of each budget, the first of equals; `NO_TIMELINES` is none

    Raises
    ------
    InputError
        A name is none of the planners that ran.
    """
    policies = {planner.name: planner.policy for planner in planners}
    for name in wanted:
        if name not in (*policies, FASTEST, NO_TIMELINES):
            raise InputError(
                f"'{name}' did not run: use {', '.join([FASTEST, NO_TIMELINES, *policies])}", source="--timeline"
            )
    chosen = []
    for one in problems:
        results = {id(result.row): result for result in one.results}
        for cell in one.cells if results else ():
            fitting = [row for row in cell.rows if row.step_s is not None and row.planner in _named(wanted, cell)]
            chosen += [PlannedTimeline(results[id(row)], policies[row.planner]) for row in fitting]
    return chosen


def _named(wanted: Sequence[str], cell: Cell) -> set[str]:
    fastest = {row.planner for row in cell.fastest[:1]} if FASTEST in wanted else set()
    return fastest | set(wanted)


def machine_facts() -> list[tuple[str, str]]:
    """Return the versions of what computes and draws, and the kind of machine that planning times are of."""
    versions = []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    system = f"{platform.system()} on {platform.machine()}, {os.cpu_count()} processors"
    return [
        ("slackswap", metadata.version("slackswap")),
        ("Python", f"{platform.python_version()} ({platform.python_implementation()}), {system}"),
        ("packages", ", ".join(versions)),
    ]


def run_facts(problems: Sequence[ReportedProblem], hardware: Hardware | None) -> list[tuple[str, str]]:
    """Return the solvers and seeds that the rows are of, and the hardware that was chosen."""
    results = [result for one in problems for result in one.results]
    # A planner may end before its solver says its version: the longest name has it.
    solvers: dict[str, str] = {}
    for result in results:
        named = f"{result.outcome.solver} {result.outcome.solver_version}".strip()
        if named:
            solvers[result.row.planner] = max(named, solvers.get(result.row.planner, ""), key=len)
    seeds = {row.seed for one in problems for row in one.rows if row.seed is not None}
    facts = [("seeds", ", ".join(map(str, sorted(seeds))) or "no planner is randomized")]
    if solvers:
        facts.append(("solvers", "; ".join(f"{planner}: {solver}" for planner, solver in solvers.items())))
    if hardware is not None:
        facts.append(("hardware", f"{hardware.name}: {hardware.gpu.name}; {'; '.join(hardware.sources)}"))
    return facts
