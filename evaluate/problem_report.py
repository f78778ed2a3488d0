"""What `slackswap problem` shows: a problem's derived quantities, how they were derived, and what a check says of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from slackswap.evaluate.report import print_table
from slackswap.evaluate.results import plain, printable
from slackswap.models.event_model import peak_bytes
from slackswap.models.link_budget import link_budget
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import FACTS, KEY

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_SMALL_BYTES = 10**8


def print_problem(problem: Problem) -> None:
    """Print the facts of a problem and, of an imported one, how each was derived."""
    facts, remarks = describe_problem(problem)
    print_table(facts)
    derivation = problem.metadata.get(KEY)
    if isinstance(derivation, Mapping):
        print_table(derivation_table(derivation))
        for line in _aside(derivation):
            click.echo(line)
    for line in remarks:
        click.echo(line)


def describe_problem(problem: Problem) -> tuple[Table, list[str]]:
    """Return the derived quantities (paper, Eq. 1) as a table, and the importer's declarations as lines."""
    from rich.table import Table

    budget = link_budget(problem)
    saved = int(problem.saved.sum())
    rebuildable = int((problem.saved & problem.rebuildable).sum())
    table = Table(title=plain(problem.name), title_justify="left", title_style="bold", show_header=False)
    facts = [
        (
            "operators",
            f"{problem.n_operators}: {problem.n_forward} forward, {problem.n_operators - problem.n_forward} backward",
        ),
        ("T_F, T_B", f"{problem.forward_s * 1e3:.3f} ms, {problem.backward_s * 1e3:.3f} ms"),
        ("ideal step", f"{problem.ideal_s * 1e3:.3f} ms"),
        ("tensors", f"{problem.n_tensors}: {saved} saved, {rebuildable} of them with a rebuild"),
        ("A, saved activations", _size(problem.saved_bytes)),
        ("P, keep-everything peak", _size(peak_bytes(problem))),
        (
            "I, intensity",
            "unknown: no FLOPs"
            if budget.intensity_flops_per_byte is None
            else f"{budget.intensity_flops_per_byte:.0f} FLOP/B",
        ),
        (
            "beta, machine balance",
            "unknown: no FLOPs"
            if budget.balance_flops_per_byte is None
            else f"{budget.balance_flops_per_byte:.0f} FLOP/B",
        ),
        ("f, hideable fraction", f"{budget.hideable_fraction:.1%}"),
        ("link", f"{problem.link.d2h_bytes_per_s / 1e9:g} GB/s out, {problem.link.h2d_bytes_per_s / 1e9:g} GB/s in"),
    ]
    for fact in facts:
        table.add_row(*fact)
    return table, [*_remarks(problem, "heuristics", "heuristics used"), *_remarks(problem, "left_out", "left out")]


def _remarks(problem: Problem, key: str, heading: str) -> list[str]:
    """Lines of a list in the metadata; whatever else a file holds there is not ours to explain."""
    remarks = problem.metadata.get(key)
    if not isinstance(remarks, list | tuple) or not remarks:
        return [f"{heading}: none stated"]
    return [f"{heading}:", *(f"  - {printable(str(remark))}" for remark in remarks)]


def derivation_table(derivation: Mapping[str, Any]) -> Table:
    """Return the table of an importer's declaration: how many of each fact are recorded, follow from a rule, are unknown."""
    from rich.table import Table

    table = Table(title=f"derived from: {plain(str(derivation.get('kind', 'a trace')))}", title_justify="left")
    for heading in ("fact", "recorded", "by rule", "unknown"):
        table.add_column(heading, justify="left" if heading == "fact" else "right")
    table.add_column("how")
    facts = derivation.get("facts")
    for name in FACTS:
        fact = facts.get(name) if isinstance(facts, Mapping) else None
        if isinstance(fact, Mapping):
            counts = (_shown(fact.get(key)) for key in ("exact", "by_rule", "unknown"))
            table.add_row(name, *counts, plain(str(fact.get("how", ""))))
    return table


def _size(size_bytes: int) -> str:
    """Return a size with four digits behind the point, in megabytes where gigabytes would leave nothing to see."""
    return f"{size_bytes / 1e9:.4f} GB" if size_bytes >= _SMALL_BYTES else f"{size_bytes / 1e6:.4f} MB"


def _shown(count: object) -> Text | str:
    return plain(str(count)) if count else "-"


def _aside(derivation: Mapping[str, Any]) -> Iterator[str]:
    """Lines on what was dropped and what is doubtful; what a file holds there otherwise is not ours to explain."""
    dropped = [item for item in _listed(derivation, "dropped") if isinstance(item, Mapping)]
    yield "dropped:" if dropped else "dropped: nothing"
    for item in dropped:
        seconds, count = item.get("seconds"), item.get("count")
        times = f", {seconds * 1e3:.3f} ms" if isinstance(seconds, float) and seconds else ""
        yield f"  - {printable(str(item.get('what')))}: {count}{times}"
    warnings = _listed(derivation, "warnings")
    yield "warnings:" if warnings else "warnings: none"
    for warning in warnings:
        yield f"  - {printable(str(warning))}"


def _listed(derivation: Mapping[str, Any], key: str) -> list[Any]:
    items = derivation.get(key)
    return list(items) if isinstance(items, list | tuple) else []


def describe_check(problem: Problem, path: str) -> Iterator[str]:
    """Lines on what another recording of the same step says about the saved bytes."""
    from slackswap.models.traces.cross_check import cross_check
    from slackswap.models.traces.trace_file import open_trace_files

    for file in open_trace_files(path):
        check = cross_check(problem, file)
        yield f"check against {printable(file.source)}:"
        yield f"  {printable(check.verdict)}"
        for remark in check.remarks:
            yield f"  - {printable(remark)}"
