"""The timeline of a plan as a chart of an HTML report: compute with its stalls, both copy lanes, memory under the budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slackswap.evaluate.html_report_charts import axis_title, graph_objects, new_chart, shown
from slackswap.evaluate.results import Result
from slackswap.models.event_model import Score, simulate
from slackswap.models.event_model.score import Timeline
from slackswap.models.lowering import lower
from slackswap.models.problem import BoolArray, FloatArray, IntArray, Problem
from slackswap.models.schedule import Schedule

# What is closer than this share of the step is drawn together: less than a pixel of a wide screen.
RESOLUTION = 1500
COLOURS = {
    "forward": "#4c86b8",
    "backward": "#6c7a96",
    "rebuild": "#e69f00",
    "waits for a tensor": "#e11d48",
    "waits for memory": "#a21caf",
    "held by the runtime": "#f472b6",
    "D2H copy": "#d55e00",
    "H2D copy": "#0072b2",
    "memory": "#009e73",
    "budget": "#e11d48",
}
_COMPUTE, _OUT, _IN = 2, 1, 0  # lanes, from the bottom
_LANE_PIXELS = 24


@dataclass(frozen=True)
class PlannedTimeline:
    """A plan whose iteration is drawn: a result that fits, and the runtime policy that it was made for."""

    result: Result
    policy: str


@dataclass(frozen=True)
class _Bars:
    """Intervals of one lane and kind, each with what it says when pointed at; times in ms."""

    lane: int
    kind: str
    start_ms: FloatArray
    end_ms: FloatArray
    texts: Sequence[str]


def timeline_chart(planned: PlannedTimeline) -> Any:
    """Return the chart of one iteration: three lanes, and memory on the same time axis."""
    result = planned.result
    assert result.outcome.plan is not None
    problem, budget_bytes = result.problem, result.row.budget_bytes
    score = simulate(problem, result.outcome.plan, budget_bytes, policy=planned.policy, timeline=True)
    assert score.timeline is not None
    plan = result.outcome.plan
    schedule = plan if isinstance(plan, Schedule) else lower(problem, plan)
    codes = np.asarray(schedule.steps)[: score.timeline.start_s.size]
    figure = new_chart(330, meta={"kind": "timeline"})
    width_ms = 1e3 * score.step_s / RESOLUTION
    for bars in _all_bars(problem, score.timeline, codes, score.step_s):
        if bars.start_ms.size:
            for trace in _bar_traces(_drawn_together(bars, width_ms)):
                figure.add_trace(trace)
    for trace in _memory_traces(score, budget_bytes, width_ms):
        figure.add_trace(trace)
    _lay_out(figure, score, budget_bytes)
    return figure


def _all_bars(problem: Problem, timeline: Timeline, codes: IntArray, step_s: float) -> Iterator[_Bars]:
    start_ms, end_ms = 1e3 * timeline.start_s, 1e3 * timeline.end_s
    for kind, mine in {
        "forward": codes < problem.n_forward,
        "backward": (codes >= problem.n_forward) & (codes < problem.n_operators),
        "rebuild": codes >= problem.n_operators,
    }.items():
        names = [timeline.step_names[i] for i in np.flatnonzero(mine)]
        yield _Bars(_COMPUTE, kind, start_ms[mine], end_ms[mine], names)
    yield from _stalls(problem, timeline)
    ends_ms = 1e3 * np.minimum(timeline.copy_end_s, step_s)  # a copy that outlives the step ends with it
    for kind, lane, mine in (
        ("D2H copy", _OUT, timeline.copy_is_d2h),
        ("H2D copy", _IN, ~timeline.copy_is_d2h),
    ):
        tensors = timeline.copy_tensor[mine]
        texts = [f"{problem.tensor_names[t]}, {problem.tensor_bytes[t] / 1e6:,.1f} MB" for t in tensors]
        yield _Bars(lane, kind, 1e3 * timeline.copy_start_s[mine], ends_ms[mine], texts)


def _stalls(problem: Problem, timeline: Timeline) -> Iterator[_Bars]:
    """Gaps before steps, by what caused most of each."""
    waits_s = np.stack([timeline.input_wait_s, timeline.memory_wait_s, timeline.barrier_wait_s])
    total_s = waits_s.sum(axis=0)
    cause = waits_s.argmax(axis=0)
    kinds = ("waits for a tensor", "waits for memory", "held by the runtime")
    for number, kind in enumerate(kinds):
        mine: BoolArray = (total_s > 0) & (cause == number)
        texts = []
        for i in np.flatnonzero(mine):
            tensor = timeline.awaited[i]
            what = f" {problem.tensor_names[tensor]}" if number == 0 and tensor >= 0 else ""
            texts.append(f"{timeline.step_names[i]} {kind}{what}")
        ends_ms = 1e3 * timeline.start_s[mine]
        yield _Bars(_COMPUTE, kind, ends_ms - 1e3 * total_s[mine], ends_ms, texts)


def _drawn_together(bars: _Bars, width_ms: float) -> _Bars:
    """Merge neighbours that begin within the same `width_ms`, so that a long step stays a small page."""
    if not width_ms > 0 or bars.start_ms.size <= 1:
        return bars
    order = np.argsort(bars.start_ms, kind="stable")
    starts, ends = bars.start_ms[order], bars.end_ms[order]
    column = np.floor(starts / width_ms)
    firsts = np.flatnonzero(np.append(True, np.diff(column) > 0))
    counts = np.diff(np.append(firsts, starts.size))
    texts = [
        bars.texts[order[first]] if n == 1 else f"{bars.texts[order[first]]} and {n - 1} more"
        for first, n in zip(firsts, counts, strict=True)
    ]
    return _Bars(bars.lane, bars.kind, starts[firsts], np.maximum.reduceat(ends, firsts), texts)


def _bar_traces(bars: _Bars) -> Iterator[Any]:
    """Yield the bars as one thick line with gaps, which draws fast, and the points that say what they are."""
    go = graph_objects()
    start, end = bars.start_ms, bars.end_ms
    gap = np.full(start.size, np.nan)
    x = np.column_stack((start, end, gap)).ravel()
    colour = COLOURS[bars.kind]
    lane = {"yaxis": "y2", "mode": "lines", "meta": bars.kind}
    yield go.Scatter(
        x=x.astype(np.float32),
        y=np.full(x.size, bars.lane, np.int8),
        line={"color": colour, "width": _LANE_PIXELS, "simplify": False},
        hoverinfo="skip",
        **lane,
    )
    points = np.column_stack((start + 0.02 * (end - start), (start + end) / 2, end - 0.02 * (end - start))).ravel()
    took = [_took(ms) for ms in end - start]
    texts = [f"{shown(text)}<br>{bars.kind}, {ms}" for text, ms in zip(bars.texts, took, strict=True)]
    yield go.Scatter(
        x=points.astype(np.float32),
        y=np.full(points.size, bars.lane, np.int8),
        text=[text for text in texts for _ in range(3)],
        line={"color": colour, "width": 0},
        opacity=0,
        hovertemplate="%{text}, at %{x:,.3~f} ms<extra></extra>",
        **lane,
    )


def _took(ms: float) -> str:
    return f"{ms:.3g} ms" if ms < 1000 else f"{ms:,.0f} ms"


def _memory_traces(score: Score, budget_bytes: int, width_ms: float) -> Iterator[Any]:
    go = graph_objects()
    timeline = score.timeline
    assert timeline is not None
    at_ms, used_gb = _envelope(1e3 * timeline.memory_s, timeline.memory_bytes / 1e9, width_ms)
    yield go.Scatter(
        x=at_ms.astype(np.float32),
        y=used_gb.astype(np.float32),
        mode="lines",
        line={"color": COLOURS["memory"], "width": 1.4, "shape": "hv"},
        fill="tozeroy",
        fillcolor="rgba(0,158,115,0.18)",
        meta="memory",
        hovertemplate="%{y:.4~f} GB in use at %{x:,.3~f} ms<extra></extra>",
    )
    yield go.Scatter(
        x=[0, 1e3 * score.step_s],
        y=[budget_bytes / 1e9] * 2,
        mode="lines",
        line={"color": COLOURS["budget"], "width": 1.5, "dash": "dash"},
        meta="budget",
        hovertemplate="budget %{y:.4~f} GB<extra></extra>",
    )


def _envelope(at_ms: FloatArray, used: FloatArray, width_ms: float) -> tuple[FloatArray, FloatArray]:
    """Keep of the samples within each `width_ms` the first, the largest and the last: peaks stay as high as they are."""
    if not width_ms > 0 or at_ms.size <= 3 * RESOLUTION:
        return at_ms, used
    column = np.floor(at_ms / width_ms)
    firsts = np.flatnonzero(np.append(True, np.diff(column) > 0))
    lasts = np.append(firsts[1:], at_ms.size) - 1
    peaks = [first + int(np.argmax(used[first : last + 1])) for first, last in zip(firsts, lasts, strict=True)]
    kept = np.unique(np.concatenate((firsts, peaks, lasts)))
    return at_ms[kept], used[kept]


def _lay_out(figure: Any, score: Score, budget_bytes: int) -> None:
    end_ms = 1e3 * score.step_s or 1.0
    figure.update_layout(
        xaxis={"title": axis_title("Time (ms)"), "range": [0, 1.005 * end_ms], "anchor": "y"},
        yaxis={
            "title": axis_title("GB in use"),
            "domain": [0, 0.5],
            "range": [0, 1.12 * max(budget_bytes, score.peak_bytes) / 1e9 or 1.0],
        },
        yaxis2={
            "domain": [0.56, 1],
            "range": [-0.6, 2.6],
            "tickvals": [_COMPUTE, _OUT, _IN],
            "ticktext": ["compute", "D2H", "H2D"],
            "fixedrange": True,
            "showgrid": False,
            "zeroline": False,
        },
        hoverdistance=30,
    )
