"""What limits a plan, for people as tables and lines, and for machines as one JSON object (`slackswap score --why`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from slackswap.evaluate.report import print_table
from slackswap.evaluate.results import Row, gigabytes, plain, printable
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model.copies_made import Reload
from slackswap.models.event_model.explanation import Explanation, Failure
from slackswap.models.event_model.occupancy import Occupancy
from slackswap.models.event_model.stalls import CopyName, Stall

if TYPE_CHECKING:
    from rich.table import Table

MOST_ROWS = 12  # of stalls and reloads; JSON has them all
CAUSES = {"input": "a tensor is late", "memory": "no room for an allocation", "barrier": "a barrier of the policy"}


def explanation_json(row: Row, why: Explanation) -> str:
    """Return one line: the score's row with ``why``, the explanation without its single waits.

    Raises
    ------
    InputError
        A name holds half a surrogate pair, which JSON has no letters for.
    """
    explained = msgspec.to_builtins(why)
    del explained["waits"]  # the stalls hold the same times by step and cause
    try:
        return msgspec.json.encode({**msgspec.to_builtins(row), "why": explained}).decode() + "\n"
    except UnicodeEncodeError:
        raise InputError("a name holds half a surrogate pair, which is no character", source=row.problem) from None


def print_explanation(why: Explanation) -> None:
    """Print what limits a plan: why it does not fit, where its time goes, stalls, the link, reloads, memory."""
    if why.failure is not None:
        for line in failure_lines(why.failure):
            click.echo(line)
        _print_memory(why.failure.occupancy, "memory where it does not fit")
    print_table(time_table(why))
    if why.stalls:
        print_table(stall_table(why.stalls))
        _echo_rest(len(why.stalls), "stall")
    if any(use.copies for use in why.link):
        print_table(link_table(why))
        for line in reload_lines(why):
            click.echo(line)
    _print_memory(why.peak, "memory at the peak")


def _print_memory(memory: Occupancy, heading: str) -> None:
    click.echo(memory_line(memory, heading))
    print_table(memory_table(memory))
    if memory.largest:
        print_table(tensor_table(memory))


def _echo_rest(count: int, what: str) -> None:
    if count > MOST_ROWS:
        click.echo(f"and {_many(count - MOST_ROWS, what)} that are shorter; --json has them all")


def failure_lines(failure: Failure) -> Iterator[str]:
    """Say why the plan does not fit: the terms of the missing bytes, which add up."""
    yield f"does not fit: '{printable(failure.step_name)}' lacks {failure.missing_bytes:,} bytes"
    yield f"  {failure.occupancy.used_bytes:,} in use + {failure.allocation_bytes:,} that it allocates"
    for name, n_bytes in failure.missing_inputs:
        yield f"  + {n_bytes:,} of '{printable(name)}', which it reads and which is not on the device"
    yield f"  - {failure.budget_bytes:,} of budget"


def time_table(why: Explanation) -> Table:
    """Return where the time of the step goes; its parts add up to the step."""
    parts = [("ideal: every operator once", why.ideal_s, "")] if why.fits else [_ran(why)]
    for rebuild in why.rebuilds:
        many = f"{_many(rebuild.steps, 'step')}, {gigabytes(rebuild.bytes)} GB"
        parts.append((f"rebuild, {rebuild.kind}", rebuild.seconds, many))
    for forward, (cause, said) in itertools.product((True, False), CAUSES.items()):
        stalls = [stall for stall in why.stalls if stall.forward == forward and stall.cause == cause]
        if stalls:
            seconds = math.fsum(stall.seconds for stall in stalls)
            parts.append((f"{_phase(forward)} stall, {said}", seconds, _many(len(stalls), "stall")))
    table = _table(f"{printable(why.problem)}: where the time goes", "what", ">ms", ">share", "how much")
    for what, seconds, many in parts:
        table.add_row(what, _ms(seconds), f"{seconds / why.step_s:.1%}" if why.step_s > 0 else "-", many)
    table.add_section()
    table.add_row("step" if why.fits else "until it failed", _ms(why.step_s), "100.0%" if why.step_s > 0 else "-", "")
    return table


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _ran(why: Explanation) -> tuple[str, float, str]:
    other_s = why.recompute_s + why.forward_stall_s + why.backward_stall_s
    return "operators that ran", max(0.0, why.step_s - other_s), ""


def stall_table(stalls: Sequence[Stall]) -> Table:
    """Return the longest stalls: which step waited for what, and how long."""
    table = _table("stalls, longest first", "pass", "step", ">waits ms", "for")
    for stall in stalls[:MOST_ROWS]:
        table.add_row(_phase(stall.forward), plain(stall.step_name), _ms(stall.seconds), plain(stall_reason(stall)))
    return table


def stall_reason(stall: Stall, most: int = 3) -> str:
    """Say what a stall waits for, in words; of the copies that it waits for, name at most so many."""
    awaited = _shortly([_awaited(copy, delay, seconds) for copy, delay, seconds in stall.behind], most)
    if stall.cause == "input":
        return f"'{stall.tensor}', late by {_ms(stall.seconds)} ms: {awaited}"
    if stall.cause == "memory":
        return f"room for its {gigabytes(stall.allocation_bytes)} GB: {awaited}"
    return f"a barrier: {awaited}"


def _awaited(copy: CopyName | None, delay: str | None, seconds: float) -> str:
    if copy is None:
        return f"{_ms(seconds)} ms"
    named = f"the copy {'out' if copy.direction == 'D2H' else 'in'} of '{copy.tensor}'"
    said = {None: named, "copied": "its own copy", "queued": f"behind {named}", "no room": f"no room before {named}"}
    return f"{said[delay]} {_ms(seconds)} ms"


def _shortly(parts: Sequence[str], most: int = 3) -> str:
    return ", ".join(parts[:most]) + (f", and {len(parts) - most} more" if len(parts) > most else "")


def link_table(why: Explanation) -> Table:
    """Return the use of the link in each direction."""
    table = _table("link", "direction", ">copies", ">GB", ">busy ms", ">of the step", ">mean GB/s", ">link GB/s")
    for use in why.link:
        mean = "-" if use.mean_bytes_per_s is None else f"{use.mean_bytes_per_s / 1e9:.2f}"
        busy = (_ms(use.busy_s), f"{use.busy_share:.1%}")
        link = f"{use.bandwidth_bytes_per_s / 1e9:g}"
        table.add_row(use.direction, f"{use.copies:,}", gigabytes(use.bytes), *busy, mean, link)
    table.caption = f"both directions at once: {_ms(why.duplex_s)} ms"
    table.caption_justify = "left"
    return table


def reload_lines(why: Explanation) -> Iterator[str]:
    """Say for the reloads with the least slack when each has to start; for tensors that never left, how many and why."""
    if why.reloads:
        yield "reloads, the least slack first:"
    for reload in why.reloads[:MOST_ROWS]:
        yield f"  {reload_line(reload)}, read by '{printable(reload.reader)}'"
    if len(why.reloads) > MOST_ROWS:
        yield f"  and {len(why.reloads) - MOST_ROWS} with more slack; --json has them all"
    for copied_out, reason in ((False, "no copy out began before that"), (True, "before its copy out had ended")):
        stayed = [stay for stay in why.stays if stay.copied_out == copied_out]
        if stayed:
            names = _shortly([f"'{printable(stay.tensor)}'" for stay in stayed])
            yield f"read where they were, {reason}: {len(stayed)} of the swapped tensors, {names}"
    if why.evictions:
        n_bytes = sum(eviction.bytes for eviction in why.evictions)
        yield f"reloaded in vain and released again: {len(why.evictions)} times, {gigabytes(n_bytes)} GB"


def reload_line(reload: Reload) -> str:
    """Say by when a reload has to start, and how much later that is than its start."""
    late = reload.margin_s < 0
    slack = f"late by {_ms(-reload.margin_s)} ms" if late else f"margin {_ms(reload.margin_s)} ms"
    before = "the first operator" if reload.before is None else f"'{printable(reload.before)}'"
    return f"start reload of '{printable(reload.tensor)}' before {before} ({slack})"


def memory_line(memory: Occupancy, heading: str) -> str:
    """Say how much is in use at one moment, when that is, and which step runs."""
    during = f", while '{printable(memory.running)}' runs" if memory.running is not None else ""
    return f"{heading}: {gigabytes(memory.used_bytes)} GB at {_ms(memory.at_s)} ms{during}"


def memory_table(memory: Occupancy) -> Table:
    """Return memory by kind at one moment; the kinds add up to what is in use."""
    table = _table("", "kind", ">bytes", ">share")
    for kind, n_bytes in memory.by_kind.items():
        share = n_bytes / memory.used_bytes if memory.used_bytes else 0.0
        table.add_row(kind, f"{n_bytes:,}", f"{share:.1%}")
    table.add_section()
    table.add_row("in use", f"{memory.used_bytes:,}", "100.0%" if memory.used_bytes else "-")
    return table


def tensor_table(memory: Occupancy) -> Table:
    """Return the largest tensors in memory at one moment."""
    table = _table("", f"largest of {memory.n_tensors:,} tensors there", "kind", ">bytes")
    for tensor in memory.largest:
        table.add_row(plain(tensor.tensor), tensor.kind, f"{tensor.bytes:,}")
    return table


def _table(title: str, *headings: str) -> Table:
    """Return a table; a heading that begins with > is that of numbers."""
    from rich.table import Table

    table = Table(title=plain(title) if title else None, title_justify="left", title_style="bold")
    for heading in headings:
        numbers = heading.startswith(">")
        table.add_column(heading.removeprefix(">"), justify="right" if numbers else "left", no_wrap=numbers)
    return table


def _phase(forward: bool) -> str:
    return "forward" if forward else "backward"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.3f}"
