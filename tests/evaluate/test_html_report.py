"""The HTML report: what stands on the page and in its charts, and that nothing from a file becomes markup."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import PLAIN_LINK, chain, one_operator, problems, two_layers, zero_sizes

pytest.importorskip("plotly", reason="reports need the plot extra")

from slackswap.evaluate.html_report import FASTEST, Report, chosen_timelines, html_report, machine_facts, run_facts
from slackswap.evaluate.html_report_charts import chart_json, gap_chart, link_charts, looks, shown, throughput_chart
from slackswap.evaluate.html_report_rows import ReportedProblem, read_rows, reported_results, reported_rows
from slackswap.evaluate.html_report_tables import answers_table
from slackswap.evaluate.html_report_timeline import PlannedTimeline, timeline_chart
from slackswap.evaluate.results import Result, Row, to_csv, to_json_lines
from slackswap.evaluate.shootout import judge, shootout
from slackswap.evaluate.sources import load_source
from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
from slackswap.hardware.input_error import InputError
from slackswap.hardware.link import Link
from slackswap.models.event_model import peak_bytes
from slackswap.models.plan import Plan
from slackswap.models.problem import Problem
from slackswap.models.traces.derivation import FACTS, Derivation, Dropped, by_rule
from slackswap.planners import Outcome, Status, find_planners

PLANNERS = find_planners("keep,slackswap,vdnn")
HOSTILE = "<script>alert(1)</script>\"'&lt;%{x}$y$</td>\u202e\x00\x1b[2J\n`--><img src=x onerror=alert(1)>"


def results_of(given: Sequence[Problem], budgets: Sequence[str] = ("80%", "50%")) -> list[Result]:
    return [result for cell in shootout(given, budgets, PLANNERS) for result in cell]


def report_of(given: Sequence[Problem], budgets: Sequence[str] = ("80%", "50%")) -> Report:
    reported = reported_results(results_of(given, budgets))
    return Report(reported, chosen_timelines(reported, PLANNERS, ["fastest"]), [("date", "2031-02-03 04:05 UTC")])


class Page(HTMLParser):
    """Elements with their attributes, tables as rows of texts, scripts and data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.values: dict[str, list[list[str | None]]] = {}
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.text = ""
        self._table, self._cell, self._script = "", False, False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag == "table":
            self._table = attributes.get("id") or f"table {len(self.tables)}"
            self.tables[self._table], self.values[self._table] = [], []
        elif tag == "tr":
            self.tables[self._table].append([])
            self.values[self._table].append([])
        elif tag in ("td", "th"):
            self._cell = True
            self.tables[self._table][-1].append("")
            self.values[self._table][-1].append(attributes.get("data-value"))
        elif tag == "script":
            self._script = True
            self.scripts.append((attributes, ""))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False
        elif tag == "script":
            self._script = False

    def handle_data(self, data: str) -> None:
        if self._script:
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
            return
        self.text += data
        if self._cell:
            self.tables[self._table][-1][-1] += data

    @property
    def shape(self) -> list[tuple[str, tuple[str, ...]]]:
        """Elements and the names of their attributes: what a name from a file must not change."""
        return [(tag, tuple(attributes)) for tag, attributes in self.elements]

    @property
    def figures(self) -> list[dict[str, Any]]:
        return [json.loads(text) for attributes, text in self.scripts if attributes.get("type") == "application/json"]


@pytest.fixture(scope="module")
def text() -> str:
    return html_report(report_of([two_layers(), chain(6)]))


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def numbers(values: Any) -> list[float]:
    """Return the values of a trace, which plotly writes as a list or as base64 of an array."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).astype(float).tolist()  # type: ignore[no-any-return]  # numpy's tolist
    return [float(value) for value in values]


def traces(figure: Any) -> list[dict[str, Any]]:
    return json.loads(chart_json(figure))["data"]  # type: ignore[no-any-return]  # a list by plotly's schema


# The page alone


def test_nothing_is_loaded_from_anywhere(text: str, page: Page) -> None:
    for tag, attributes in page.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form")
        assert "src" not in attributes
        assert (attributes.get("href") or "#").startswith("#")
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style


def test_only_the_two_scripts_of_the_page_may_run(page: Page) -> None:
    (policy,) = (
        attributes["content"] or "" for tag, attributes in page.elements if attributes.get("http-equiv") is not None
    )
    scripts = [script for attributes, script in page.scripts if "type" not in attributes]
    assert len(scripts) == 2
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert f"default-src 'none'; script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}';" in policy
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)


def test_plotly_stands_there_once_and_the_rest_is_small(text: str, page: Page) -> None:
    plotly = page.scripts[-2][1]
    assert "plotly.js v" in plotly[:200]
    assert text.count(plotly[:200]) == 1
    assert len(text.encode()) - len(plotly.encode()) < 120_000


def test_the_same_report_is_the_same_page_but_for_the_date() -> None:
    report = report_of([two_layers(), chain(6)])
    first, again = html_report(report), html_report(report)
    assert first == again
    later = html_report(replace(report, facts=[("date", "2099-12-31 23:59 UTC")]))
    assert later == first.replace("2031-02-03 04:05 UTC", "2099-12-31 23:59 UTC")
    assert first.count("2031-02-03") == 1


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.delitem(sys.modules, "plotly.graph_objects", raising=False)
    with pytest.raises(InputError) as refused:
        html_report(Report([]))
    assert (
        str(refused.value) == 'report: plotly is not installed: install the plot extra, pip install "slackswap[plot]"'
    )


# Names from files


def hostile_problem(name: str) -> Problem:
    """Return two_layers where every text is `name`, and an importer declares things of all types."""
    problem = two_layers()
    derivation = Derivation(
        name, {fact: by_rule(2, name) for fact in FACTS}, [Dropped(name, 3, 0.25)], [name]
    ).as_metadata()
    return replace(
        problem,
        name=name,
        operator_names=(name,) * 4,
        tensor_names=(name,) * 2,
        metadata={"derivation": derivation, "heuristics": [name, 7], "left_out": {"no": "list"}},
    )


def test_names_never_become_markup() -> None:
    pages = []
    for name in ("harmless", HOSTILE):
        report = report_of([hostile_problem(name)], ["100%", "80%"])
        rows = [msgspec.structs.replace(result.row, planner=name) for result in report.problems[0].results]
        named = ReportedProblem(name, tuple(rows), report.problems[0].results, name=name)
        pages.append(Page(html_report(replace(report, problems=[named], facts=[(name, name)], remarks=[name]))))
    harmless, hostile = pages
    assert hostile.shape == harmless.shape
    assert hostile.text.count("<script>alert(1)</script>") == harmless.text.count("harmless")
    for control in ("\x00", "\x1b", "\u202e"):
        assert control not in hostile.text
    # plotly takes what it draws for a little HTML: its texts are escaped once more. `meta` is not drawn.
    kinds = [figure["layout"]["meta"]["kind"] for figure in hostile.figures]
    assert kinds == ["throughput", "gap", "timeline"]
    for figure in hostile.figures:
        drawn = [{key: value for key, value in trace.items() if key != "meta"} for trace in figure["data"]]
        assert "&lt;script&gt;alert(1)" in json.dumps(drawn)
        assert set(re.findall("<[^>]*>", json.dumps(drawn))) <= {"<br>", "<extra>", "</extra>"}
        assert not any("script" in trace.get("hovertemplate", "") for trace in drawn)


def test_data_cannot_end_their_script(text: str) -> None:
    hostile = html_report(report_of([hostile_problem(HOSTILE)], ["80%"]))
    assert hostile.lower().count("</script") - hostile.count('type="application/json"') == 2
    assert text.lower().count("</script") - text.count('type="application/json"') == 2


@pytest.mark.parametrize(
    "derivation", [7, [], {}, {"facts": []}, {"facts": {"order": 3}, "dropped": [1], "warnings": 5}]
)
def test_metadata_of_any_type_is_shown_or_left_out(derivation: object) -> None:
    problem = replace(two_layers(), metadata={"derivation": derivation, "heuristics": 5, "forward_flops": "many"})
    assert "Where they come from" in Page(html_report(report_of([problem], ["80%"]))).text


def test_long_lists_and_names_are_cut() -> None:
    metadata = {"heuristics": [f"number {i}" for i in range(10_000)], "left_out": ["x" * 100_000]}
    page = Page(html_report(report_of([replace(two_layers(), name="n" * 100_000, metadata=metadata)], ["80%"])))
    assert "number 199" in page.text
    assert "number 200" not in page.text
    assert "and 9,800 more" in page.text
    assert len(page.text) < 50_000


def test_shown() -> None:
    assert shown('a<b>"c"&') == "a&lt;b&gt;&quot;c&quot;&amp;"
    assert shown("x" * 200) == "x" * 89 + "…"
    assert shown("a\nb") == "a\N{REPLACEMENT CHARACTER}b"


# What the page says


def test_every_row_stands_in_the_table(page: Page) -> None:
    heading, *rows = page.tables["all-rows"]
    assert heading[:5] == ["problem", "budget", "planner", "status", "throughput"]
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (problem, budget, planner)
        for problem, budgets in (
            ("two layers", ("80.0% 0.0240 GB", "50.0% 0.0150 GB")),
            ("chain of 6", ("80.0% 0.0048 GB", "50.0% 0.0030 GB")),
        )
        for budget in budgets
        for planner in ("keep", "SlackSwap", "vDNN")
    ]
    # In 24 MB nothing of two_layers fits: f1 reads and writes 30 MB. It sorts as having no value.
    assert rows[0][3:6] == ["infeasible", "-", "-"]
    assert page.values["all-rows"][1][4:7] == [None, None, None]


def test_the_table_sorts_by_full_numbers(page: Page) -> None:
    for result, values in zip(results_of([chain(6)]), page.values["all-rows"][7:], strict=True):
        step_s = result.row.step_s
        assert (values[6] is None) == (step_s is None)
        assert step_s is None or float(values[6] or "") == step_s
        assert float(values[1] or "") == result.row.budget_bytes


def test_the_fastest_plan_of_each_budget() -> None:
    # chain(6) in 6 MB: all of it is kept, and every planner takes the ideal 18 ms.
    page = Page(html_report(report_of([chain(6), two_layers()], ["100%", "80%"])))
    rows = page.tables["table 0"][1:]
    assert rows[0][:3] == ["chain of 6", "100.0% 0.0060 GB", "keep and SlackSwap, vDNN"]
    assert rows[0][3:6] == ["100.00%", "0.00%", "18.00"]
    assert rows[0][6] == "100% 0% 0%"
    # The second name of the same problem is left out; of two_layers in 24 MB nothing fits, in 30 MB everything.
    assert rows[1][0] == ""
    assert rows[3][2] == "no plan fits; 0.0300 GB would do"


def test_the_planners_by_how_often_they_win(page: Page) -> None:
    rows = {row[0]: row[1:] for row in page.tables["planners-table"][1:]}
    # Only chain(6) has plans, at both budgets; keep fits in neither.
    assert rows["keep"][:2] == ["0 of 4", "0"]
    assert rows["SlackSwap"][:2] == ["2 of 4", "2"]


def test_the_link_budget_of_a_problem() -> None:
    # A = 10 + 20 MB, T_F = 10 + 20 ms, W = 1 GB/s: W T_F = 30 MB = A. F = 6e9: I = 6e9 / 30e6 = 200 FLOP/B = beta.
    slow = two_layers(replace(PLAIN_LINK, d2h_bytes_per_s=0.5e9))
    report = report_of([replace(two_layers(), metadata={"forward_flops": 6e9}), slow], ["100%"])
    page = Page(html_report(report))
    (table,) = (rows for rows in page.tables.values() if "A GB" in rows[0])
    assert table[0][3:] == ["ideal ms", "TF ms", "A GB", "P GB", "I FLOP/B", "β FLOP/B", "f", "link GB/s"]
    assert table[1] == [
        *("two layers", "4", "2", "90.00", "30.00", "0.0300", "0.0300"),
        *("200", "200", "100.0%", "1"),
    ]
    # At half the bandwidth half of it is hidden; without FLOPs I and beta are unknown. The same name gets a number.
    assert table[2][0] == "two layers (2)"
    assert table[2][7:] == ["-", "-", "50.0%", "0.5 out, 1 in"]


def test_how_an_imported_problem_was_derived() -> None:
    page = Page(html_report(report_of([load_source("small-gpt")], ["60%"])))
    (table,) = (rows for rows in page.tables.values() if rows[0] == ["fact", "recorded", "by rule", "unknown", "how"])
    assert [row[0] for row in table[1:]] == list(FACTS)
    assert table[1][1:4] == ["424", "-", "-"]
    assert "The trace does not record the host link" in page.text


def test_planners_with_the_same_answer_share_a_line() -> None:
    (one,) = reported_results(results_of([two_layers()], ["24MB"]))
    rows = Page(answers_table([one])).tables["answers-table"][1:]
    # keep may keep everything only; the others are told what any plan needs.
    assert [row[2] for row in rows] == ["keep", "SlackSwap, vDNN"]
    assert rows[1][3].startswith("no plan found that fits; operator 'f1' lacks 6,000,000 bytes; smallest feasible")


def test_where_the_numbers_come_from() -> None:
    facts = dict(run_facts(report_of([chain(6)]).problems, load_hardware(DEFAULT_HARDWARE)) + machine_facts())
    assert facts["seeds"] == "no planner is randomized"
    assert facts["hardware"].startswith("a100-pcie4: NVIDIA A100")
    assert "plotly " in facts["packages"]
    searched = [
        result for cell in shootout([chain(6)], ["50%"], find_planners("milp,ga-seeded"), seed=3) for result in cell
    ]
    facts = dict(run_facts(reported_results(searched), None))
    assert facts["seeds"] == "3"
    assert re.fullmatch(r"milp: HiGHS \d+\.\d+\.\d+", facts["solvers"])


# Charts


def test_throughput_over_budget() -> None:
    (one,) = reported_results(results_of([chain(6)], ["100%", "50%", "10%"]))
    figure = throughput_chart(one, looks(["keep", "slackswap", "vdnn"]))
    by_planner = {trace["meta"]: trace for trace in traces(figure)}
    for planner in ("keep", "slackswap", "vdnn"):
        rows = sorted(row.budget_fraction for row in one.rows if row.planner == planner and row.step_s is not None)
        assert numbers(by_planner[planner]["x"]) == rows
    assert numbers(by_planner["slackswap"]["x"]) == [0.5, 1.0]
    # No plan exceeds the bound, and at the peak it is the ideal step.
    bound = dict(zip(*(numbers(by_planner["lower bound"][axis]) for axis in "xy"), strict=True))
    assert bound[1.0] == 1.0
    for row in one.rows:
        assert row.throughput is None or row.throughput <= bound[row.budget_fraction] * (1 + 1e-9)
    # Nothing fits in a tenth of the peak: f1 reads and writes 2 of the 6 MB.
    assert [(note["x"], note["text"]) for note in figure.to_dict()["layout"]["annotations"]] == [(0.1, "no plan fits")]


def test_a_bound_that_no_gap_is_measured_against_is_not_drawn() -> None:
    # A planner's claim of a bound above the fastest step stays in its row, without a gap.
    row = results_of([chain(6)], ["80%"])[1].row
    one = ReportedProblem("x", (msgspec.structs.replace(row, gap=None, lower_bound_s=99.0),))
    assert one.cells[0].bound_s is None
    assert numbers(traces(throughput_chart(one, looks(["slackswap"])))[0]["x"]) == []


def test_gap_over_planning_time_on_logarithmic_axes() -> None:
    row = results_of([chain(6)], ["80%"])[1].row
    rows = tuple(
        msgspec.structs.replace(row, gap=gap, planning_s=planning_s)
        for gap, planning_s in ((0.02, 0.5), (0.0, 0.0), (None, 1.0), (-1e-12, 3.0))
    )
    figure = gap_chart([ReportedProblem("x", rows)], looks(["slackswap"]))
    assert figure is not None
    (trace,) = traces(figure)
    # Zero has no logarithm: it is drawn at the foot of the axis.
    assert numbers(trace["x"]) == [0.5, 1e-5, 3.0]
    assert numbers(trace["y"]) == [2.0, 1e-4, 1e-4]
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")
    assert gap_chart([ReportedProblem("x", rows[2:3])], looks(["slackswap"])) is None


def test_planners_of_one_colour_differ_in_their_symbol() -> None:
    names = [planner.name for planner in find_planners("all")]
    chosen = looks(names)
    assert len({(look.colour, look.symbol, look.dash) for look in chosen.values()}) == len(names)
    assert len({(look.colour, look.symbol) for look in chosen.values()}) == len(names)
    assert chosen["slackswap"].colour == "#0072B2"


# Timelines


def planned(
    problem: Problem, decisions: str, budget_bytes: int | None = None, policy: str = "default"
) -> PlannedTimeline:
    (planner,) = find_planners("slackswap")
    outcome = Outcome(Status.FEASIBLE, Plan.from_letters(decisions))
    peak = peak_bytes(problem)
    return PlannedTimeline(judge(problem, budget_bytes or peak, peak, planner, outcome), policy)


def bars(planned: PlannedTimeline) -> dict[str, list[tuple[float, float]]]:
    """Return the intervals (ms) of each kind as they are drawn."""
    drawn = {}
    for trace in traces(timeline_chart(planned)):
        x = numbers(trace["x"])
        if trace.get("hoverinfo") == "skip":
            assert np.isnan(x[2::3]).all()
            drawn[trace["meta"]] = [(round(a, 4), round(b, 4)) for a, b in zip(x[::3], x[1::3], strict=True)]
    return drawn


def test_lanes_of_a_swap() -> None:
    # a0 is out from 10 to 20 ms, while f1 runs; it comes back as soon as f1 is done, and long before b0 at 70 ms.
    drawn = bars(planned(two_layers(), "SK"))
    assert drawn == {
        "forward": [(0.0, 10.0), (10.0, 30.0)],
        "backward": [(30.0, 70.0), (70.0, 90.0)],
        "D2H copy": [(10.0, 20.0)],
        "H2D copy": [(30.0, 40.0)],
    }


def test_a_rebuild_stands_in_the_compute_lane() -> None:
    drawn = bars(planned(two_layers(), "RK"))
    assert drawn["rebuild"] == [(70.0, 80.0)]
    assert drawn["backward"] == [(30.0, 70.0), (80.0, 100.0)]


def test_a_stall_is_marked_with_what_it_waits_for() -> None:
    # a0 takes 100 ms to come back, from 30 to 130 ms; b0 could start at 70.
    waiting = planned(two_layers(Link(1e9, 0.1e9, 1.0, 0.0)), "SK")
    assert bars(waiting)["waits for a tensor"] == [(70.0, 130.0)]
    texts = [text for trace in traces(timeline_chart(waiting)) for text in trace.get("text", ())]
    assert "b0 waits for a tensor a0<br>waits for a tensor, 60 ms" in texts


def test_what_the_runtime_holds_is_marked() -> None:
    # Barriers: a layer waits for the copies that began during the one before. a0 is on its way out from 10 to 50 ms.
    slow = planned(two_layers(Link(0.25e9, 1e9, 1.0, 0.0)), "SK", policy="barriers")
    assert bars(slow)["held by the runtime"] == [(30.0, 50.0)]


def test_memory_stays_under_the_budget() -> None:
    drawn = {trace["meta"]: trace for trace in traces(timeline_chart(planned(two_layers(), "SK")))}
    # 10 MB while f0 runs, 30 while f1 does, 20 when a0 is gone, 30 with a0 back, 10 in b0, then nothing.
    assert max(numbers(drawn["memory"]["y"])) == pytest.approx(0.03)
    assert numbers(drawn["memory"]["y"])[-1] == 0.0
    assert numbers(drawn["budget"]["y"]) == pytest.approx([0.03, 0.03])
    assert numbers(drawn["budget"]["x"]) == pytest.approx([0.0, 90.0])


@given(problems())
@settings(max_examples=25)
def test_bars_cover_what_the_score_says(problem: Problem) -> None:
    swap_all = "".join("S" if saved else "K" for saved in problem.saved)
    one = planned(problem, swap_all)
    row = one.result.row
    if row.step_s is None:
        return
    drawn = bars(one)
    width_ms = 1e3 * row.step_s / 1500
    busy_ms = {kind: sum(b - a for a, b in drawn.get(kind, ())) for kind in ("forward", "backward")}
    # What begins within one pixel is drawn together, over gaps that are shorter than a pixel.
    slack_ms = 1e-3 + width_ms * (1 + len(problem.operator_names))
    assert busy_ms["forward"] + busy_ms["backward"] == pytest.approx(1e3 * problem.ideal_s, abs=slack_ms)
    stalls_ms = sum(b - a for kind in drawn if "wait" in kind or "held" in kind for a, b in drawn[kind])
    wanted_ms = 1e3 * ((row.forward_stall_s or 0) + (row.backward_stall_s or 0))
    assert stalls_ms == pytest.approx(wanted_ms, abs=slack_ms)


@pytest.mark.parametrize("problem", [one_operator(), zero_sizes()])
def test_smallest_problems_have_a_page(problem: Problem) -> None:
    assert "All rows" in Page(html_report(report_of([problem], ["100%", "1B"]))).text


def test_a_step_of_no_time_has_a_page() -> None:
    problem = one_operator()
    still = replace(problem, duration_s=np.zeros_like(problem.duration_s))
    assert "All rows" in Page(html_report(report_of([still], ["100%"]))).text


def test_many_operators_stay_a_small_chart_with_its_peak() -> None:
    problem = chain(4000)
    one = planned(problem, "S" * 4000)
    figure = timeline_chart(one)
    assert len(chart_json(figure)) < 1_000_000
    drawn = {trace["meta"]: trace for trace in traces(figure) if trace.get("hoverinfo") != "skip"}
    assert one.result.score is not None
    assert max(numbers(drawn["memory"]["y"])) == pytest.approx(one.result.score.peak_bytes / 1e9)
    assert len(drawn["forward"]["text"]) <= 3 * 1502
    assert re.match(r"f\d+ and \d+ more<br>forward, ", drawn["forward"]["text"][0])


def test_timelines_are_chosen_by_name() -> None:
    reported = reported_results(results_of([chain(6)], ["80%", "50%"]))

    def chosen(*wanted: str) -> list[tuple[int, str]]:
        timelines = chosen_timelines(reported, PLANNERS, wanted)
        return [(one.result.row.budget_bytes, one.result.row.planner) for one in timelines]

    assert chosen(FASTEST) == [(4_800_000, "slackswap"), (3_000_000, "slackswap")]
    assert chosen("keep", "none") == []
    assert (4_800_000, "vdnn") in chosen("vdnn", FASTEST)
    assert chosen("slackswap", FASTEST) == chosen(FASTEST)
    assert {one.policy for one in chosen_timelines(reported, PLANNERS, ["vdnn"])} == {"barriers"}
    with pytest.raises(InputError, match="--timeline: 'milp' did not run: use fastest, none, keep, slackswap, vdnn"):
        chosen("milp")


# Rows of files


def written(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return [result.row for result in results_of([chain(6), two_layers()])]


def test_rows_read_back(tmp_path: Path, rows: list[Row]) -> None:
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(to_csv(rows).encode()))
    store = "".join(json.dumps({"key": "ab", "row": msgspec.to_builtins(row)}) + "\n" for row in rows)
    for path in (
        written(tmp_path / "rows.csv", to_csv(rows)),
        written(tmp_path / "rows.jsonl", to_json_lines(rows)),
        written(tmp_path / "store.jsonl", store),
        str(tmp_path / "rows.csv.gz"),
    ):
        assert [one.row for one in read_rows(path).rows] == rows


def test_rows_that_passed_through_a_table_of_floats(tmp_path: Path, rows: list[Row]) -> None:
    # pandas writes whole numbers of a column with gaps as 12.0, and keeps further columns.
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    text = io.StringIO()
    writer = csv.DictWriter(text, ["index", *read[0]], lineterminator="\r\n")
    writer.writeheader()
    for i, line in enumerate(read):
        floats = {key: f"{value}.0" if value.isdigit() else value or "NaN" for key, value in line.items()}
        writer.writerow({"index": i, **floats})
    assert [one.row for one in read_rows(written(tmp_path / "pandas.csv", "\ufeff" + text.getvalue())).rows] == rows


def test_an_infinite_bound_is_none(tmp_path: Path, rows: list[Row]) -> None:
    infinite = msgspec.structs.replace(rows[0], lower_bound_s=float("inf"))
    path = written(tmp_path / "rows.csv", to_csv([infinite]))
    assert read_rows(path).rows[0].row.lower_bound_s is None


def test_the_same_name_with_another_step_is_another_problem(tmp_path: Path, rows: list[Row]) -> None:
    longer = msgspec.structs.replace(rows[1], ideal_s=1.0)
    path = written(tmp_path / "rows.csv", to_csv([rows[1], longer, rows[2]]))
    assert [(one.label, len(one.rows)) for one in reported_rows(read_rows(path).rows)] == [
        ("chain of 6", 2),
        ("chain of 6 (2)", 1),
    ]


def test_the_table_of_a_sweep_over_links(tmp_path: Path, rows: list[Row]) -> None:
    row = rows[1]
    lines = [
        ["source", "parameters", "hardware", "link_bytes_per_s", *row.__struct_fields__, "reason"],
        *(
            ["chain", "", "v100", link, *map(str_or_empty, msgspec.structs.astuple(row)), ""]
            for link in ("25000000000.0", "5e10")
        ),
    ]
    failed = ["chain", "n=7", "v100", "", *[""] * len(row.__struct_fields__), "it broke"]
    failed[4 + row.__struct_fields__.index("planner")] = "milp"
    failed[4 + row.__struct_fields__.index("status")] = "error"
    text = io.StringIO()
    csv.writer(text).writerows([*lines, failed])
    stored = read_rows(written(tmp_path / "sweep.csv", text.getvalue()))
    reported = reported_rows(stored.rows)
    assert [one.label for one in reported] == ["chain of 6, on v100, link 25 GB/s", "chain of 6, on v100, link 50 GB/s"]
    assert stored.failures == ("chain n=7 v100 milp: it broke",)
    ((label, figure),) = link_charts(reported, looks(["slackswap"]))
    assert label == "chain of 6, 0.0048 GB"
    assert numbers(traces(figure)[0]["x"]) == [25.0, 50.0]
    page = Page(html_report(Report(reported, failures=stored.failures)))
    assert "chain n=7 v100 milp: it broke" in page.text
    assert "This page was made from rows alone" in page.text
    assert not any(figure["layout"]["meta"]["kind"] == "timeline" for figure in page.figures)


def str_or_empty(value: object) -> str:
    return "" if value is None else str(value)


def test_rows_that_are_repeated_are_said_to_be() -> None:
    row = results_of([chain(6)], ["80%"])[1].row
    page = Page(html_report(Report([ReportedProblem("x", (row, row, row))])))
    assert "2 rows share problem, budget and planner" in page.text


GOOD = {
    **{"problem": "p", "budget_bytes": 5, "budget_fraction": 0.5, "planner": "x", "status": "feasible"},
    **{"ideal_s": 1.0, "planning_s": 0.1, "evaluations": 1},
}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\n", "is empty"),
        ("step 7\n", "line 1: is no table of results, it lacks problem, budget_bytes"),
        (",".join(GOOD) + "\n", "holds no rows"),
        (",".join(GOOD) + ",planner\n", "line 1: names a column twice"),
        (",".join(GOOD) + "\np,5\n", "line 2: has 2 values for 8 columns"),
        (",".join(GOOD) + "\np,five,0.5,x,feasible,1,0.1,1\n", "line 2: is no row of results: Expected `int`"),
        (
            ",".join(GOOD) + "\np,5,0.5,x,feasible,inf,0.1,1\n",
            "line 2, ideal_s: a finite number from 0 belongs here, not inf",
        ),
        (",".join(GOOD) + "\np,5,-1,x,feasible,1,0.1,1\n", "line 2, budget_fraction: a finite number from 0"),
        (",".join(GOOD) + f"\np,{10**30},0.5,x,feasible,1,0.1,1\n", "line 2"),
        (",".join(GOOD) + '\n"p,5\n', "line 2: is no CSV"),
        ('{"problem": 1}', "line 1: is no row of results"),
        ("{", "line 1: is no JSON object"),
        (json.dumps(GOOD) + "\n[]\n", "line 2: is no JSON object"),
        ('{"key": "a", "row": 3}', "line 1: is no JSON object"),
        ('{"key": "a", "error": "it broke"}', "holds no rows, and 1 failed jobs"),
        (json.dumps({**GOOD, "ideal_s": 1e300}), "line 1, ideal_s"),
        (json.dumps({**GOOD, "link_bytes_per_s": "fast"}), "line 1, link_bytes_per_s: a bandwidth belongs here"),
        ("[" * 100_000, "line 1: is no table"),
        ('{"a":' * 100_000, "line 1: is no JSON object"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, rule: str) -> None:
    path = written(tmp_path / "rows", text)
    with pytest.raises(InputError) as refused:
        read_rows(path)
    assert str(refused.value).startswith(f"{path}: {rule}")


@given(st.data())
@settings(max_examples=150)
def test_damaged_files_are_refused_or_shown(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    rows = [result.row for result in results_of_chain()]
    encode = data.draw(st.sampled_from([to_csv, to_json_lines]))
    content = bytearray(encode(rows).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        stored = read_rows(str(path))
    except InputError:
        return
    for one in reported_rows(stored.rows):
        styles = looks(row.planner for row in one.rows)
        assert chart_json(throughput_chart(one, styles))
        gap_chart([one], styles)


_CHAIN: list[Result] = []


def results_of_chain() -> list[Result]:
    _CHAIN[:] = _CHAIN or results_of([chain(6)])
    return _CHAIN
