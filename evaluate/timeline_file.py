"""A step as a file for https://ui.perfetto.dev and chrome://tracing: JSON in the Trace Event Format of Chromium.

Three lanes, compute with its stalls and both copy engines, and memory as counters. Arrows lead from each copy out to the copy
in of the same tensor, and from there to the step that reads it. Times are whole nanoseconds, written in microseconds as the
format asks for; ends are rounded like starts, so that neighbours on a lane never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from slackswap.evaluate.explain import stall_reason
from slackswap.evaluate.results import printable
from slackswap.models.atomic_file import write_atomically
from slackswap.models.event_model import Score
from slackswap.models.event_model.copies_made import readers_of_copies
from slackswap.models.event_model.explanation import steps_of
from slackswap.models.event_model.kernel.columns import UNLIMITED_BYTES
from slackswap.models.event_model.occupancy import MEMORY_KINDS, memory_by_kind
from slackswap.models.event_model.residency import Ledger, Steps, account
from slackswap.models.event_model.score import RunTimeline
from slackswap.models.event_model.stalls import stalls_of, waits_of
from slackswap.models.problem import KINDS

PROCESS = 1
COMPUTE, D2H, H2D = 1, 2, 3
LANES = {COMPUTE: "compute", D2H: "D2H copies", H2D: "H2D copies"}
# Colours that chrome://tracing knows by these names; Perfetto chooses its own.
COLOURS = {
    "forward": "thread_state_running",
    "backward": "thread_state_runnable",
    "rebuild": "bad",
    "stall": "terrible",
    "offload": "thread_state_iowait",
    "prefetch": "rail_load",
}
Event = dict[str, Any]


def write_timeline_file(path: Path | str, score: Score) -> None:
    """Write the timeline of a score, whole or not at all; ``.gz`` is compressed.

    Raises
    ------
    InputError
        The score has no timeline, or the file cannot be written.
    """
    write_atomically(path, timeline_json(score))


def timeline_json(score: Score) -> bytes:
    """Return the timeline of a score as Trace Event JSON, the same bytes for the same score.

    Raises
    ------
    InputError
        The score has no timeline.
    """
    timeline = score.run_timeline
    run = timeline.run
    steps = steps_of(run)
    ledger = account(timeline, steps)
    events = [
        *_steps(timeline, steps),
        *_stalls(score, timeline, steps, ledger),
        *_copies(timeline, score.step_s),
        *_arrows(timeline, steps, score.step_s),
        *_marks(score, timeline, steps, ledger),
        *_counters(score, timeline, steps, ledger),
    ]
    events.sort(key=lambda event: event["ts"])  # stable: slices stand before the arrows that begin or end in them
    other = {
        "problem": printable(run.problem.name),
        "policy": run.policy,
        "budget_bytes": "unlimited" if run.budget_bytes >= UNLIMITED_BYTES else str(run.budget_bytes),
        "step_s": repr(score.step_s),
        "ideal_s": repr(score.ideal_s),
    }
    whole = {"displayTimeUnit": "ms", "otherData": other, "traceEvents": [*_names(run.problem.name), *events]}
    return msgspec.json.encode(whole) + b"\n"


def _names(problem: str) -> Iterator[Event]:
    yield _named("process_name", 0, {"name": f"slackswap: {printable(problem)}"})
    for lane, name in LANES.items():
        yield _named("thread_name", lane, {"name": name})
        yield _named("thread_sort_index", lane, {"sort_index": lane})


def _named(what: str, lane: int, args: Event) -> Event:
    return {"name": what, "ph": "M", "pid": PROCESS, "tid": lane, "args": args}


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)


def _slice(lane: int, name: str, category: str, start_s: float, end_s: float, args: Event) -> Event:
    start_ns, end_ns = _ns(start_s), _ns(end_s)
    return {
        "name": printable(name),
        "cat": category,
        "ph": "X",
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "pid": PROCESS,
        "tid": lane,
        "cname": COLOURS[category],
        "args": args,
    }


def _steps(timeline: RunTimeline, steps: Steps) -> Iterator[Event]:
    problem = timeline.run.problem
    times = zip(timeline.step_names, timeline.start_s.tolist(), timeline.end_s.tolist(), strict=True)
    for k, (name, start_s, end_s) in enumerate(times):
        t = steps.rebuilt(k)
        operator = steps.codes[k] if t < 0 else int(problem.producer[t])
        category = "rebuild" if t >= 0 else "forward" if operator < problem.n_forward else "backward"
        args = {
            "kind": KINDS[problem.kind[operator]],
            "layer": int(problem.layer[operator]),
            "allocates": steps.allocation_bytes(k),
        }
        yield _slice(COMPUTE, name, category, start_s, end_s, args)


def _stalls(score: Score, timeline: RunTimeline, steps: Steps, ledger: Ledger) -> Iterator[Event]:
    for wait in waits_of(timeline, steps, ledger, score.step_s):
        (stall,) = stalls_of([wait], steps)
        names = {"input": f"{wait.tensor} is late", "memory": "no room", "barrier": "barrier"}
        args = {"step": printable(wait.step_name), "waits for": printable(stall_reason(stall))}
        yield _slice(COMPUTE, f"stall: {names[wait.cause]}", "stall", wait.start_s, wait.end_s, args)


def _copies(timeline: RunTimeline, step_s: float) -> Iterator[Event]:
    """Slices of the copies; one that outlives the step ends with it."""
    problem = timeline.run.problem
    for c, t in enumerate(timeline.copy_tensor.tolist()):
        start_s, end_s, lane = _copy_span(timeline, c, step_s)
        args: Event = {"bytes": int(problem.tensor_bytes[t])}
        if timeline.copy_end_s[c] > step_s:
            args["unfinished"] = True
        category = "offload" if lane == D2H else "prefetch"
        yield _slice(lane, problem.tensor_names[t], category, start_s, end_s, args)


def _copy_span(timeline: RunTimeline, copy: int, step_s: float) -> tuple[float, float, int]:
    start_s = float(timeline.copy_start_s[copy])
    end_s = max(start_s, min(float(timeline.copy_end_s[copy]), step_s))
    return start_s, end_s, D2H if timeline.copy_is_d2h[copy] else H2D


def _arrows(timeline: RunTimeline, steps: Steps, step_s: float) -> Iterator[Event]:
    """From the middle of one slice to the start of another: viewers look for the slice around each end."""
    readers = readers_of_copies(timeline, steps)
    offload_of: dict[int, int] = {}
    number = 0
    for c, t in enumerate(timeline.copy_tensor.tolist()):
        start_s, end_s, lane = _copy_span(timeline, c, step_s)
        if lane == D2H:
            offload_of[t] = c
            continue
        from_s, until_s, _ = _copy_span(timeline, offload_of[t], step_s)
        yield from _arrow(number, "host copy", (D2H, _ns(from_s), _ns(until_s)), (H2D, _ns(start_s)))
        number += 1
        if c in readers:
            read_ns = _ns(float(timeline.start_s[readers[c]]))
            yield from _arrow(number, "read", (H2D, _ns(start_s), _ns(end_s)), (COMPUTE, read_ns))
            number += 1


def _arrow(number: int, name: str, tail: tuple[int, int, int], head: tuple[int, int]) -> Iterator[Event]:
    both = {"name": name, "cat": "copy", "id": number, "pid": PROCESS}
    lane, start_ns, end_ns = tail
    yield {**both, "ph": "s", "ts": (start_ns + (end_ns - start_ns) // 2) / 1000, "tid": lane}
    yield {**both, "ph": "f", "bp": "e", "ts": head[1] / 1000, "tid": head[0]}


def _marks(score: Score, timeline: RunTimeline, steps: Steps, ledger: Ledger) -> Iterator[Event]:
    """Instants: the end of the forward pass, evictions, and where a plan does not fit."""
    if 0 < steps.n_forward <= len(ledger.ended_s):
        yield _mark("end of the forward pass", "p", COMPUTE, ledger.ended_s[steps.n_forward - 1], {})
    problem = timeline.run.problem
    for at_s, t in ledger.evictions:
        name = f"evicted: {problem.tensor_names[t]}"
        yield _mark(name, "t", H2D, at_s, {"bytes": int(problem.tensor_bytes[t])})
    if not score.fits:
        args = {"missing_bytes": score.missing_bytes}
        yield _mark(f"does not fit: {score.failed_step}", "p", COMPUTE, score.step_s, args)


def _mark(name: str, scope: str, lane: int, at_s: float, args: Event) -> Event:
    where = {"pid": PROCESS, "tid": lane, "args": args}
    return {"name": printable(name), "cat": "mark", "ph": "i", "s": scope, "ts": _ns(at_s) / 1000, **where}


def _counters(score: Score, timeline: RunTimeline, steps: Steps, ledger: Ledger) -> Iterator[Event]:
    """Memory in use, the highest and the last of each instant; by kind, the last; the budget, twice."""
    at_ns = [_ns(at_s) for at_s in timeline.memory_s.tolist()]
    used_bytes = timeline.memory_bytes.tolist()
    by_kind = memory_by_kind(steps, ledger)
    lasts = np.flatnonzero(np.diff(at_ns, append=-1)).tolist()
    first, before = 0, None
    yield _counter("memory in use", 0, {"bytes": 0})
    for last in lasts:
        highest = max(used_bytes[first : last + 1])
        if highest > used_bytes[last]:
            yield _counter("memory in use", at_ns[last], {"bytes": highest})
        yield _counter("memory in use", at_ns[last], {"bytes": used_bytes[last]})
        kinds = by_kind[last].tolist()
        if kinds != before:
            yield _counter("memory by kind", at_ns[last], dict(zip(MEMORY_KINDS, kinds, strict=True)))
        first, before = last + 1, kinds
    if timeline.run.budget_bytes < UNLIMITED_BYTES:
        for at_s in (0.0, score.step_s):
            yield _counter("memory budget", _ns(at_s), {"bytes": timeline.run.budget_bytes})


def _counter(name: str, at_ns: int, args: Event) -> Event:
    return {"name": name, "ph": "C", "ts": at_ns / 1000, "pid": PROCESS, "tid": 0, "args": args}
