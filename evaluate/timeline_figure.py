"""A step as a picture: what computes, what is copied, where compute waits, and whose bytes fill memory meanwhile."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slackswap.evaluate.explain import stall_reason
from slackswap.evaluate.figure_style import PAGE_INCHES, as_label, laid_out, legend_above, new_figure, paper_style
from slackswap.evaluate.figures import DECISION_COLOURS, busy_intervals
from slackswap.evaluate.gap_figure import write_figure
from slackswap.models.event_model.explanation import Explanation, steps_of
from slackswap.models.event_model.kernel.columns import UNLIMITED_BYTES
from slackswap.models.event_model.occupancy import MEMORY_KINDS, memory_by_kind
from slackswap.models.event_model.residency import Steps, account

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slackswap.models.event_model import Score
    from slackswap.models.event_model.score import RunTimeline
    from slackswap.models.problem import FloatArray, IntArray

LANES = ("compute", "D2H copy", "H2D copy")
STALL = "#D7191C"
COLOURS = {"forward": "#404040", "backward": "#8C8C8C", "rebuild": DECISION_COLOURS["recompute"], "stall": STALL}
COPY = DECISION_COLOURS["swap"]
MEMORY_COLOURS = (
    *(DECISION_COLOURS["keep"], DECISION_COLOURS["swap"], DECISION_COLOURS["recompute"]),
    *("#CC79A7", "#009E73", "#F0E442"),  # temporaries, gradients, workspace: Okabe and Ito
)
COLUMNS = 1500  # about what a page's width resolves: shorter gaps are merged, shorter stalls widened
MOST_STEPS_APART = 60  # with more, single steps are too narrow to tell apart
LETTERS_PER_PAGE = 90  # of the small print, across the axes
LETTERS_OF_A_NOTE = 112
NUMBERED_STALLS = 3
MOST_SAMPLES_OUTLINED = 400  # the outline of more would hide what is within
BAR = 0.74
FURTHEST_BUDGET = 2.0  # times the peak; a line further up would press the curve to the floor


class _Scale(NamedTuple):
    unit: str
    per_unit: float


def write_timeline_figure(path: Path | str, score: Score) -> None:
    """Write the figure of a score's timeline as the ``.png`` or ``.svg`` that its name says, whole or not at all.

    Raises
    ------
    InputError
        The score has no timeline, matplotlib is missing, or the file cannot be written.
    """
    write_figure(timeline_figure(score), str(path))


@paper_style()
def timeline_figure(score: Score) -> Figure:
    """Lanes of compute and copies above memory by kind, on one time axis; stalls in red, the longest ones numbered.

    Raises
    ------
    InputError
        The score has no timeline, or matplotlib is missing.
    """
    timeline, why = score.run_timeline, score.explain()
    steps = steps_of(timeline.run)
    time = _time_scale(score.step_s)
    figure = new_figure(PAGE_INCHES, 4.3)
    lanes, memory = figure.subplots(2, 1, sharex=True, height_ratios=(0.8, 1.0))
    shown = _draw_lanes(lanes, score, timeline, steps, why, time)
    _draw_memory(memory, timeline, steps, score, time)
    _shade_stalls(memory, why, score, time)
    shown |= _end_forward((lanes, memory), timeline, steps, time)
    lanes.set_xlim(0, time.per_unit * score.step_s if score.step_s > 0 else 1.0)
    lanes.set_title(_title(score, timeline), loc="left")
    memory.set_xlabel("\n".join([f"Time ({time.unit})", *_stall_notes(why)]), loc="left", linespacing=1.4, fontsize=7)
    legend_above(figure, shown)
    return laid_out(figure)


def _time_scale(step_s: float) -> _Scale:
    if step_s >= 10:
        return _Scale("s", 1.0)
    return _Scale("ms", 1e3) if step_s >= 1e-4 else _Scale("µs", 1e6)


def _memory_scale(most_bytes: float) -> _Scale:
    for unit, per_unit in (("GB", 1e-9), ("MB", 1e-6), ("KB", 1e-3)):
        if most_bytes * per_unit >= 0.5:
            return _Scale(unit, per_unit)
    return _Scale("B", 1.0)


def _title(score: Score, timeline: RunTimeline) -> str:
    run = timeline.run
    name = as_label(run.problem.name, most_letters=40)
    if not score.fits:
        failed = as_label(score.failed_step or "", most_letters=24)
        return f"{name}: does not fit, {failed} lacks {score.missing_bytes:,} bytes"
    time, memory = _time_scale(score.step_s), _memory_scale(score.peak_bytes)
    took, ideal = time.per_unit * score.step_s, time.per_unit * score.ideal_s
    limited = run.budget_bytes < UNLIMITED_BYTES
    budget = f" of {memory.per_unit * run.budget_bytes:,.2f}" if limited else ""
    return (
        f"{name}: {took:,.2f} {time.unit} per step (ideal {ideal:,.2f}), "
        f"peak {memory.per_unit * score.peak_bytes:,.2f}{budget} {memory.unit}, policy {run.policy}"
    )


def _draw_lanes(
    axes: Axes, score: Score, timeline: RunTimeline, steps: Steps, why: Explanation, time: _Scale
) -> dict[str, Artist]:
    apart = len(timeline.start_s) <= MOST_STEPS_APART
    phases = np.array([_phase(steps, k) for k in range(len(timeline.start_s))])
    shown: dict[str, Artist] = {}
    for phase in ("forward", "backward", "rebuild"):
        mine = phases == phase
        if mine.any():
            spans = _spans(timeline.start_s[mine], timeline.end_s[mine], score.step_s, apart)
            shown[phase] = _bars(axes, 0, spans, COLOURS[phase], time, apart)
    stalls = _stall_spans(why, score.step_s)
    if len(stalls):
        shown["stall"] = _bars(axes, 0, stalls, STALL, time, False)
    for lane, is_d2h in ((1, True), (2, False)):
        mine = timeline.copy_is_d2h == is_d2h
        ends_s = np.minimum(timeline.copy_end_s[mine], score.step_s)
        few = int(mine.sum()) <= MOST_STEPS_APART
        spans = _spans(timeline.copy_start_s[mine], ends_s, score.step_s, few)
        if len(spans):
            _bars(axes, lane, spans, COPY, time, few)
    if apart:
        _name_steps(axes, timeline, score.step_s, time)
    _number_stalls(axes, why, time)
    axes.set_yticks(range(len(LANES)), LANES)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelbottom=False)
    axes.set_ylim(len(LANES) - 0.5, -0.75)
    return shown


def _phase(steps: Steps, k: int) -> str:
    if steps.rebuilt(k) >= 0:
        return "rebuild"
    return "forward" if steps.codes[k] < steps.problem.n_forward else "backward"


def _spans(start_s: FloatArray, end_s: FloatArray, step_s: float, apart: bool) -> FloatArray:
    if apart:
        return np.column_stack((start_s, end_s))
    return busy_intervals(start_s, end_s, step_s / COLUMNS)


def _stall_spans(why: Explanation, step_s: float) -> FloatArray:
    """Intervals of the waits, each wide enough to see."""
    start_s = np.array([wait.start_s for wait in why.waits])
    end_s = np.array([wait.end_s for wait in why.waits])
    least_s = step_s / COLUMNS
    spans = busy_intervals(start_s, end_s, least_s / 4)
    short_s = np.maximum(0.0, least_s - (spans[:, 1] - spans[:, 0]))
    return spans + np.column_stack((-short_s / 2, short_s / 2))


def _bars(axes: Axes, lane: int, spans_s: FloatArray, colour: str, time: _Scale, apart: bool) -> Artist:
    bars = [(time.per_unit * start, time.per_unit * (end - start)) for start, end in spans_s.tolist()]
    width = 0.4 if apart else 0.0
    return axes.broken_barh(bars, (lane - BAR / 2, BAR), facecolor=colour, edgecolor="white", linewidth=width)


def _name_steps(axes: Axes, timeline: RunTimeline, step_s: float, time: _Scale) -> None:
    """Write the names of steps and copies into their bars, where they have room."""
    names = timeline.run.problem.tensor_names
    copies = zip(*(timeline.copy_is_d2h, timeline.copy_tensor, timeline.copy_start_s, timeline.copy_end_s), strict=True)
    bars = [(0, *row) for row in zip(timeline.step_names, timeline.start_s, timeline.end_s, strict=True)]
    bars += [(1 if out else 2, names[t], start_s, min(end_s, step_s)) for out, t, start_s, end_s in copies]
    for lane, name, start_s, end_s in bars:
        room = int(LETTERS_PER_PAGE * (end_s - start_s) / step_s) if step_s > 0 else 0
        if len(name) <= room:
            middle = time.per_unit * (start_s + end_s) / 2
            text = as_label(name, most_letters=room)
            axes.text(middle, lane, text, color="white", ha="center", va="center", fontsize=6.5, clip_on=True, zorder=5)


def _number_stalls(axes: Axes, why: Explanation, time: _Scale) -> None:
    """Number the longest stalls above the lane; those that stand close together share a place."""
    places: dict[float, list[str]] = {}
    for number, stall in enumerate(why.stalls[:NUMBERED_STALLS], start=1):
        middle_s = stall.start_s + stall.seconds / 2
        near = (place for place in places if abs(place - middle_s) < why.step_s / 40)
        places.setdefault(next(near, middle_s), []).append(str(number))
    for middle_s, numbers in places.items():
        axes.annotate(
            ",".join(numbers),
            (time.per_unit * middle_s, -BAR / 2),
            xytext=(0, 1),
            textcoords="offset points",
            color=STALL,
            ha="center",
            va="bottom",
            fontsize=7,
            fontweight="bold",
        )


def _stall_notes(why: Explanation) -> list[str]:
    notes = []
    for number, stall in enumerate(why.stalls[:NUMBERED_STALLS], start=1):
        said = f"{stall.step_name} waits {1e3 * stall.seconds:,.3f} ms for {stall_reason(stall, most=1)}"
        notes.append(f"{number}: {as_label(said, most_letters=LETTERS_OF_A_NOTE)}")
    more = len(why.stalls) - NUMBERED_STALLS
    if more > 0:
        notes.append(f"and {more:,} shorter stall{'s' if more > 1 else ''}")
    return notes


def _draw_memory(axes: Axes, timeline: RunTimeline, steps: Steps, score: Score, time: _Scale) -> None:
    """Memory by kind, stacked; the budget as a line, unless it is far above."""
    by_kind = memory_by_kind(steps, account(timeline, steps))
    chosen = _columns(timeline.memory_s, timeline.memory_bytes, score.step_s)
    budget_bytes = timeline.run.budget_bytes
    near = not score.fits or budget_bytes <= FURTHEST_BUDGET * max(score.peak_bytes, 1)
    most_bytes = max(score.peak_bytes, budget_bytes if near else 0)
    scale = _memory_scale(most_bytes)
    at = np.concatenate(([0.0], time.per_unit * timeline.memory_s[chosen], [time.per_unit * score.step_s]))
    floor = np.zeros(len(at))
    shown: dict[str, Artist] = {}
    for kind, name in enumerate(MEMORY_KINDS):
        values = scale.per_unit * by_kind[chosen, kind].astype(float)
        if values.any():
            top = floor + np.concatenate(([0.0], values, values[-1:]))
            colour = MEMORY_COLOURS[kind]
            shown[name] = axes.fill_between(at, floor, top, step="post", facecolor=colour, linewidth=0)
            floor = top
    if len(at) <= MOST_SAMPLES_OUTLINED:
        axes.plot(at, floor, color="black", linewidth=0.5, drawstyle="steps-post")
    if score.peak_bytes > 0:
        peak = int(np.argmax(timeline.memory_bytes))
        place = (time.per_unit * float(timeline.memory_s[peak]), scale.per_unit * score.peak_bytes)
        (shown["peak"],) = axes.plot(*([one] for one in place), "kv", markersize=3.5)
    if near:
        budget = [scale.per_unit * budget_bytes] * 2
        (shown["budget"],) = axes.plot([0, 1], budget, "k--", linewidth=0.9, transform=axes.get_yaxis_transform())
    axes.set(ylabel=f"In use ({scale.unit})", ylim=(0, 1.08 * scale.per_unit * most_bytes or 1.0))
    axes.legend(
        list(shown.values()),
        list(shown),
        loc="lower right",
        bbox_to_anchor=(1.0, 0.98),
        ncols=max(1, len(shown)),
        handlelength=1.6,
        columnspacing=1.2,
    )


def _columns(memory_s: FloatArray, memory_bytes: IntArray, step_s: float) -> IntArray:
    """Samples to draw: of each instant, or of each column of the picture where there are more, the fullest and the last."""
    column = memory_s
    if len(np.unique(memory_s)) > 2 * COLUMNS:
        column = np.floor(memory_s * (COLUMNS / step_s))
    lasts = np.flatnonzero(np.diff(column, append=math.inf))
    firsts = np.concatenate(([0], lasts[:-1] + 1)).astype(np.int64)
    fullest = [
        first + int(np.argmax(memory_bytes[first : last + 1])) for first, last in zip(firsts, lasts, strict=False)
    ]
    return np.unique(np.concatenate((np.array(fullest, np.int64), lasts)))


def _shade_stalls(axes: Axes, why: Explanation, score: Score, time: _Scale) -> None:
    spans = _stall_spans(why, score.step_s)
    bars = [(time.per_unit * start, time.per_unit * (end - start)) for start, end in spans.tolist()]
    axes.broken_barh(
        bars, (0.0, 1.0), facecolor=STALL, alpha=0.15, linewidth=0, zorder=0, transform=axes.get_xaxis_transform()
    )


def _end_forward(panels: tuple[Axes, Axes], timeline: RunTimeline, steps: Steps, time: _Scale) -> dict[str, Artist]:
    if not 0 < steps.n_forward <= len(timeline.end_s):
        return {}
    at = time.per_unit * float(timeline.end_s[steps.n_forward - 1])
    line, _ = (axes.axvline(at, color="black", linewidth=0.8) for axes in panels)
    return {"end of the forward pass": line}
