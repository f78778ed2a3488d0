"""The tables of an HTML report; everything that comes from a file is escaped here, by `shown`."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackswap.evaluate.figure_style import display_name
from slackswap.evaluate.html_report_charts import Look, shown
from slackswap.evaluate.html_report_rows import Cell, ReportedProblem, planners_of
from slackswap.evaluate.report import explain_infeasibility
from slackswap.evaluate.results import Result, Row, gigabytes, printable, shown_gap
from slackswap.models.event_model import peak_bytes
from slackswap.models.link_budget import link_budget
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import FACTS, KEY
from slackswap.planners import Status

SHORT_NAME_LETTERS = 28  # these are not broken over lines
MAX_LIST = 200  # a file may hold any number of remarks
DECISIONS = (
    ("kept", "#8a8f98", "keep_bytes"),
    ("swapped", "#0072b2", "swap_bytes"),
    ("recomputed", "#e69f00", "recompute_bytes"),
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of a table: HTML, and what the table is sorted by; a number stands to the right."""

    html: str
    value: float | str | None = None
    classes: str = ""


NOTHING = Entry("-", None, "n none")


def number(text: str, value: float) -> Entry:
    """Return a cell with a number."""
    return Entry(text, float(value), "n")


def words(text: object, classes: str = "") -> Entry:
    """Return a cell with a text, which may come from a file."""
    escaped = shown(text)
    return Entry(escaped, escaped, classes)


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Entry]], *, sortable: str = "", breaks: Iterable[int] = ()
) -> str:
    """Return an HTML table.

    Parameters
    ----------
    headings : a leading ``#`` says that the column holds numbers
    sortable : the table's id, where a click on a heading sorts it
    breaks : numbers of the rows that begin a group
    """
    head = "".join(_heading(heading, bool(sortable)) for heading in headings)
    first = dict.fromkeys(breaks, ' class="first"')
    body = "\n".join(f"<tr{first.get(i, '')}>{''.join(map(_entry, row))}</tr>" for i, row in enumerate(rows))
    name = f' id="{sortable}"' if sortable else ""
    return f"<table{name}><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"


def _heading(heading: str, sortable: bool) -> str:
    is_number, text = heading.startswith("#"), heading.removeprefix("#")
    inside = f'<button type="button">{text}</button>' if sortable else text
    kind = ' class="n" data-type="number"' if is_number else ""
    return f'<th scope="col"{kind}>{inside}</th>'


def _entry(entry: Entry) -> str:
    value = "" if entry.value is None else f' data-value="{entry.value}"'
    classes = f' class="{entry.classes}"' if entry.classes else ""
    return f"<td{classes}{value}>{entry.html}</td>"


def planner_entry(planner: str, styles: Mapping[str, Look], classes: str = "") -> Entry:
    """Return a planner's name with its colour in the charts."""
    name = shown(display_name(planner))
    return Entry(
        f'<span class="dot" style="--c:{styles[planner].colour}"></span>{name}', name, f"name {classes}".strip()
    )


def _optional(value: float | None, scale: float, form: str) -> Entry:
    return NOTHING if value is None else number(format(value * scale, form), value)


def budget_entry(budget_bytes: int, fraction: float) -> Entry:
    """Return a budget as a share of the peak and in GB."""
    return number(f"{fraction:.1%} <span class='none'>{gigabytes(budget_bytes)} GB</span>", budget_bytes)


def fastest_table(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> str:
    """Return the fastest planner of each problem and budget, and what its plan does with the saved activations."""
    rows: list[list[Entry]] = []
    breaks: list[int] = []
    for one in problems:
        breaks.append(len(rows))
        for cell in one.cells:
            name = words(one.label, "name") if len(rows) == breaks[-1] else Entry("")
            rows.append([name, budget_entry(cell.budget_bytes, cell.budget_fraction), *_fastest(one, cell, styles)])
    headings = ["problem", "#budget", "fastest", "throughput / ideal", "#gap", "#step ms", "saved activations"]
    return table(headings, rows, breaks=breaks)


def _fastest(one: ReportedProblem, cell: Cell, styles: Mapping[str, Look]) -> list[Entry]:
    if not cell.fastest:
        return [Entry(f"no plan fits{_smallest_known(one, cell)}", None, "infeasible"), *[NOTHING] * 4]
    row, *ties = cell.fastest
    who = planner_entry(row.planner, styles, "best")
    if ties:
        names = ", ".join(shown(display_name(tie.planner)) for tie in ties)
        who = Entry(f'{who.html} <span class="small">and {names}</span>', who.value, "name best")
    share = row.throughput or 0.0
    bar = f'<span class="bar"><i style="--c:{styles[row.planner].colour};left:0;width:{100 * share:.2f}%"></i></span>'
    gap = NOTHING if row.gap is None else number(shown_gap(row.gap), row.gap)
    return [
        who,
        Entry(f"{bar}{share:.2%}", None, "line"),
        gap,
        _optional(row.step_s, 1e3, ",.2f"),
        Entry(_decision_bar(row), None, "line"),
    ]


def _smallest_known(one: ReportedProblem, cell: Cell) -> str:
    answers = [
        result.infeasibility.smallest_known_bytes
        for result in one.results
        if result.row.budget_bytes == cell.budget_bytes and result.infeasibility is not None
    ]
    known = [n_bytes for n_bytes in answers if n_bytes is not None]
    return f"; {gigabytes(min(known))} GB would do" if known else ""


def _decision_bar(row: Row) -> str:
    """Return the shares of the saved bytes that are kept, swapped and recomputed, as one bar with its numbers."""
    sizes = [getattr(row, column) or 0 for _, _, column in DECISIONS]
    total = sum(sizes)
    if not total:
        return "-"
    left, parts = 0.0, []
    for size, (_, colour, _) in zip(sizes, DECISIONS, strict=True):
        parts.append(f'<i style="--c:{colour};left:{left:.2f}%;width:{100 * size / total:.2f}%"></i>')
        left += 100 * size / total
    said = " ".join(f"{size / total:.0%}" for size in sizes)
    return f'<span class="bar">{"".join(parts)}</span><span class="small">{said}</span>'


def planners_table(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> str:
    """Return how often each planner found a plan, how often the fastest one, its gaps and its planning times."""
    cells = [cell for one in problems for cell in one.cells]
    fastest = [row.planner for cell in cells for row in cell.fastest]
    rows = []
    for planner in planners_of(problems):
        own = [row for cell in cells for row in cell.rows if row.planner == planner]
        fits = [row for row in own if row.step_s is not None]
        gaps = [row.gap for row in fits if row.gap is not None]
        times = [row.planning_s for row in own if row.status != Status.UNAVAILABLE.value]
        rows.append(
            [
                planner_entry(planner, styles),
                number(f"{len(fits)} of {len(own)}", len(fits)),
                number(str(fastest.count(planner)), fastest.count(planner)),
                number(shown_gap(statistics.median(gaps)), statistics.median(gaps)) if gaps else NOTHING,
                number(shown_gap(max(gaps)), max(gaps)) if gaps else NOTHING,
                _optional(statistics.median(times) if times else None, 1e3, ",.1f"),
                _optional(max(times) if times else None, 1e3, ",.1f"),
            ]
        )
    headings = ["planner", "#found a plan", "#fastest", "#median gap", "#largest gap", "#median ms", "#longest ms"]
    return table(headings, rows, sortable="planners-table")


ALL_HEADINGS = (
    *("problem", "#budget", "planner", "status", "#throughput", "#gap", "#step ms", "#recompute ms", "#fwd stall ms"),
    *("#bwd stall ms", "#D2H GB", "#H2D GB", "#peak GB", "#planning ms", "#plans scored"),
)


def all_rows_table(problems: Sequence[ReportedProblem], styles: Mapping[str, Look]) -> str:
    """Return every row, sortable."""
    rows = []
    for one in problems:
        best = {id(row) for cell in one.cells for row in cell.fastest}
        rows += [_all_columns(one.label, row, styles, "best" if id(row) in best else "") for row in one.rows]
    return table(ALL_HEADINGS, rows, sortable="all-rows")


def _all_columns(label: str, row: Row, styles: Mapping[str, Look], classes: str) -> list[Entry]:
    status = row.status if row.status in set(Status) else ""
    throughput = _optional(row.throughput, 1, ".2%")
    return [
        words(label, "line" if len(label) <= SHORT_NAME_LETTERS else "name"),
        budget_entry(row.budget_bytes, row.budget_fraction),
        planner_entry(row.planner, styles),
        words(row.status.replace("_", " "), status),
        Entry(throughput.html, throughput.value, f"{throughput.classes} {classes}".strip()),
        NOTHING if row.gap is None else number(shown_gap(row.gap), row.gap),
        *(
            _optional(seconds, 1e3, ",.2f")
            for seconds in (row.step_s, row.recompute_s, row.forward_stall_s, row.backward_stall_s)
        ),
        *(
            NOTHING if n_bytes is None else number(gigabytes(n_bytes), n_bytes)
            for n_bytes in (row.d2h_bytes, row.h2d_bytes, row.peak_bytes)
        ),
        number(f"{row.planning_s * 1e3:,.1f}", row.planning_s),
        number(f"{row.evaluations:,}", row.evaluations),
    ]


def link_budget_table(problems: Sequence[ReportedProblem]) -> str:
    """Return what is derived from each problem, with the link budget of Eq. 1."""
    rows = [_derived(one.label, one.problem) for one in problems if one.problem is not None]
    headings = ["problem", "#operators", "#saved tensors", "#ideal ms", "#T<sub>F</sub> ms", "#A GB", "#P GB"]
    return table([*headings, "#I FLOP/B", "#&beta; FLOP/B", "#f", "#link GB/s"], rows)


def _derived(label: str, problem: Problem) -> list[Entry]:
    budget, saved, peak = link_budget(problem), int(problem.saved.sum()), peak_bytes(problem)
    out, back = problem.link.d2h_bytes_per_s / 1e9, problem.link.h2d_bytes_per_s / 1e9
    return [
        words(label, "name"),
        number(f"{problem.n_operators:,}", problem.n_operators),
        number(f"{saved:,}", saved),
        number(f"{problem.ideal_s * 1e3:,.2f}", problem.ideal_s),
        number(f"{problem.forward_s * 1e3:,.2f}", problem.forward_s),
        number(gigabytes(problem.saved_bytes), problem.saved_bytes),
        number(gigabytes(peak), peak),
        _optional(budget.intensity_flops_per_byte, 1, ",.0f"),
        _optional(budget.balance_flops_per_byte, 1, ",.0f"),
        number(f"{budget.hideable_fraction:.1%}", budget.hideable_fraction),
        number(f"{out:g}" if out == back else f"{out:g} out, {back:g} in", out),
    ]


def origin(one: ReportedProblem) -> str:
    """Return how a problem was derived and what was assumed: the importer's declaration, which a file may hold."""
    if one.problem is None:
        return ""
    metadata = one.problem.metadata
    derivation = metadata.get(KEY)
    kind = "a workload or problem file"
    parts = []
    if isinstance(derivation, Mapping):
        kind = str(derivation.get("kind", "a trace"))
        parts.append(f'<div class="scroll">{_facts_table(derivation)}</div>')
        parts.append(listing("Dropped", map(_dropped, _listed(derivation.get("dropped")))))
        parts.append(listing("Warnings", _listed(derivation.get("warnings"))))
    parts.append(listing("Heuristics used", _listed(metadata.get("heuristics"))))
    parts.append(listing("Left out", _listed(metadata.get("left_out"))))
    opened = " open" if isinstance(derivation, Mapping) else ""
    return (
        f"<details{opened}><summary><b>{shown(one.label)}</b>: from {shown(kind)}</summary>{''.join(parts)}</details>"
    )


def _facts_table(derivation: Mapping[str, Any]) -> str:
    facts = derivation.get("facts")
    rows = []
    for name in FACTS:
        fact = facts.get(name) if isinstance(facts, Mapping) else None
        if isinstance(fact, Mapping):
            counts = [Entry(shown(fact.get(key) or "-"), None, "n") for key in ("exact", "by_rule", "unknown")]
            rows.append([words(name), *counts, Entry(_sentence(fact.get("how", "")))])
    return table(["fact", "#recorded", "#by rule", "#unknown", "how"], rows)


def _dropped(item: object) -> str:
    if not isinstance(item, Mapping):
        return str(item)
    seconds = item.get("seconds")
    times = f", {seconds * 1e3:.3f} ms" if isinstance(seconds, float) and seconds else ""
    return f"{item.get('what')}: {item.get('count')}{times}"


def _listed(items: object) -> list[object]:
    return list(items) if isinstance(items, list | tuple) else []


def listing(heading: str, items: Iterable[object]) -> str:
    """Return texts of a file as a list under a heading, the first of them where there are very many."""
    said = list(items)
    if not said:
        return f'<p class="small">{heading}: none stated</p>'
    more = f'<li class="none">and {len(said) - MAX_LIST:,} more</li>' if len(said) > MAX_LIST else ""
    listed = "".join(f"<li>{_sentence(item)}</li>" for item in said[:MAX_LIST])
    return f'<p class="small">{heading}:</p><ul class="small">{listed}{more}</ul>'


def _sentence(text: object) -> str:
    return shown(text, most_letters=1000)


def answers_table(problems: Sequence[ReportedProblem]) -> str:
    """Return why planners found no plan; one line for those with the same answer. Empty where all found one."""
    answers: dict[tuple[str, int, float, str], list[str]] = {}
    for one in problems:
        for result in one.results:
            for answer in _answers(result):
                row = result.row
                key = (one.label, row.budget_bytes, row.budget_fraction, answer)
                answers.setdefault(key, []).append(display_name(row.planner))
    rows = [
        [
            words(label, "name"),
            budget_entry(n_bytes, fraction),
            Entry(", ".join(map(shown, planners))),
            Entry(_sentence(why)),
        ]
        for (label, n_bytes, fraction, why), planners in answers.items()
    ]
    return table(["problem", "#budget", "planner", "answer"], rows, sortable="answers-table") if rows else ""


def _answers(result: Result) -> Iterator[str]:
    planner = printable(result.row.planner)
    for line in explain_infeasibility([result]):
        yield line.removeprefix(planner).removeprefix(f" at {result.row.budget_bytes:,} bytes").removeprefix(": ")
