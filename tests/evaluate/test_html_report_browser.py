"""The HTML report in a browser: it loads without errors and without a request, its charts draw, its tables sort.

Skipped where no Chromium is installed. The browser is spoken to through a pipe, by its own protocol.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from instances import chain, two_layers

pytest.importorskip("plotly", reason="reports need the plot extra")

from slackswap.evaluate.html_report import Report, chosen_timelines, html_report
from slackswap.evaluate.html_report_rows import reported_results
from slackswap.evaluate.shootout import shootout
from slackswap.planners import find_planners

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
WAIT_S = 60.0
HOSTILE = "<img src=x onerror=attacked=1><script>attacked=1</script>\"'&lt;"


# The browser reads commands from descriptor 3 and answers on 4, whatever numbers the pipe has here.
START = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3])
os.dup2(commands, 3)
os.dup2(answers, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """A headless browser with one page."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        ends = str(commands), str(answers)
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, *ends, program, *OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(commands, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._unread, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        """Take hold of the page."""
        pages = [target for target in self.call("Target.getTargets")["targetInfos"] if target["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)

    def call(self, method: str, **parameters: Any) -> Any:
        """Send a command and return its result; what happens in the meantime is kept in `events`."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self) -> dict[str, Any]:
        until = time.monotonic() + WAIT_S
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._answers, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self._unread += more
        answer, _, self._unread = self._unread.partition(b"\0")
        return json.loads(answer)  # type: ignore[no-any-return]  # an object by the protocol

    def run(self, script: str) -> Any:
        """Return the value of an expression on the page."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, path: Path) -> None:
        """Load a report and wait until its charts are drawn."""
        self.events.clear()
        self.call("Emulation.setEmulatedMedia", features=[])
        self.call("Page.navigate", url=path.as_uri())
        self.wait_until("document.documentElement?.dataset.charts === 'drawn'")

    def wait_until(self, condition: str) -> None:
        until = time.monotonic() + WAIT_S
        while not self.run(condition):
            assert time.monotonic() < until, f"never true: {condition}"
            time.sleep(0.05)

    def of_kind(self, *methods: str) -> list[dict[str, Any]]:
        return [event["params"] for event in self.events if event.get("method") in methods]

    def close(self) -> None:
        os.close(self._commands)  # by which the browser ends
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium is installed here")
    started = Browser(program, tmp_path_factory.mktemp("profile"))
    try:
        started.attach()
        yield started
    finally:
        started.close()


def write_report(path: Path, *, name: str) -> Path:
    """Write a report on chain(6), which has plans at both budgets, and on two_layers, which has none at the lower one."""
    planners = find_planners("keep,slackswap,vdnn")
    problems = [replace(chain(6), name=name), two_layers()]
    results = [result for cell in shootout(problems, ["100%", "60%"], planners) for result in cell]
    reported = reported_results(results)
    timelines = chosen_timelines(reported, planners, ["slackswap", "vdnn"])
    path.write_text(html_report(Report(reported, timelines, [("date", "2031-02-03")])), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("report") / "report.html", name="chain of 6")


@pytest.fixture
def page(browser: Browser, report: Path) -> Browser:
    browser.open(report)
    return browser


def test_it_loads_without_errors_and_without_a_request(page: Browser, report: Path) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_until("[...document.querySelectorAll('.chart')].every((one) => one.dataset.drawn === 'yes')")
    assert page.of_kind("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    assert [request["request"]["url"] for request in page.of_kind("Network.requestWillBeSent")] == [report.as_uri()]
    assert page.of_kind("Network.webSocketCreated") == []


def test_every_chart_draws_all_of_its_traces(page: Browser) -> None:
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait_until("[...document.querySelectorAll('.chart')].every((one) => one.dataset.drawn === 'yes')")
    charts = page.run(
        "[...document.querySelectorAll('.chart')].map((one) => [one.dataset.kind, one.data.length,"
        " one.querySelectorAll('.scatterlayer .trace').length, one.querySelector('.main-svg').getBoundingClientRect().width])"
    )
    # Both problems over budget, all gaps, and slackswap and vdnn where they have a plan: three times.
    assert [kind for kind, *_ in charts] == ["throughput", "throughput", "gap", *["timeline"] * 6]
    for _, n_traces, n_drawn, width in charts:
        assert n_drawn == n_traces > 0
        assert width > 300


def test_no_button_sends_a_chart_away(page: Browser) -> None:
    titles = page.run("[...new Set([...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title))]")
    assert titles == ["Download plot as a PNG", "Zoom", "Pan", "Reset axes"]
    assert page.run("document.querySelectorAll('a[href^=http]').length") == 0


def column(page: Browser, heading: str) -> list[str]:
    """Click a heading of the table of all rows; return its column."""
    found: list[str] = page.run(
        f"""(() => {{
          const headings = [...document.querySelectorAll("#all-rows th")];
          const place = headings.findIndex((one) => one.textContent === {json.dumps(heading)});
          headings[place].querySelector("button").click();
          return [...document.querySelector("#all-rows").tBodies[0].rows].map((row) => row.cells[place].textContent);
        }})()"""
    )
    return found


def test_tables_sort(page: Browser) -> None:
    falling = column(page, "step ms")
    assert len(falling) == 12
    assert page.run("document.querySelector('#all-rows th[aria-sort]').textContent") == "step ms"
    steps_ms = [float(text.replace(",", "")) for text in falling if text != "-"]
    assert steps_ms == sorted(steps_ms, reverse=True)
    assert len(set(steps_ms)) > 2
    missing = falling.count("-")
    # What has no value stays last, whichever way round.
    assert falling[-missing:] == ["-"] * missing
    rising = column(page, "step ms")
    assert rising == [*falling[:-missing][::-1], *["-"] * missing]
    # By their values and not by their digits: 3.6 MB, 6 MB, 18 MB and 30 MB.
    falling = column(page, "budget")
    assert [text.split(" ", 1)[1] for text in falling[::3]] == ["0.0300 GB", "0.0180 GB", "0.0060 GB", "0.0036 GB"]
    names = column(page, "planner")
    assert names == sorted(names, key=str.lower)


def test_rows_are_filtered(page: Browser) -> None:
    def shown_after(field: str, value: str) -> str:
        page.run(
            f"""(() => {{
              const field = document.querySelector("[data-filter={field}]");
              field.value = {json.dumps(value)};
              field.dispatchEvent(new Event("input"));
            }})()"""
        )
        text: str = page.run("document.getElementById('shown-rows').textContent")
        return text

    assert shown_after("text", "VDNN") == "4 of 12 rows"
    assert shown_after("problem", "two layers") == "2 of 12 rows"
    assert page.run("document.querySelectorAll('#all-rows tbody tr:not([hidden])').length") == 2
    assert shown_after("text", "") == "6 of 12 rows"


def test_the_legend_hides_a_planner_in_every_chart(page: Browser) -> None:
    visible = (
        "[...document.querySelectorAll('.chart')].filter((one) => one.data && one.dataset.kind !== 'timeline')"
        ".map((one) => one.data.filter((trace) => trace.meta === 'slackswap')[0].visible)"
    )
    page.run("document.querySelector('.legend [data-planner=slackswap]').click()")
    assert page.run(visible) == [False] * 3
    states = page.run(
        "[...document.querySelectorAll('.legend [data-planner=slackswap]')].map((one) => one.ariaPressed)"
    )
    assert states == ["false", "false"]
    page.run("document.querySelector('.legend [data-all=show]').click()")
    assert page.run(visible) == [True] * 3


def test_pointing_at_a_bar_says_what_it_is(page: Browser) -> None:
    # Compute is lane 2 of the second y axis; f0 of two_layers runs from 0 to 10 ms.
    place = page.run(
        """(() => {
          const chart = [...document.querySelectorAll(".chart[data-kind=timeline]")]
            .filter((one) => one.dataset.drawn === "yes" && one.data.some((trace) => trace.text?.[0].startsWith("f0")))
            .at(-1);
          chart.scrollIntoView({ block: "center" });
          const { xaxis, yaxis2 } = chart._fullLayout;
          const box = chart.getBoundingClientRect();
          return [box.x + xaxis._offset + xaxis.l2p(5), box.y + yaxis2._offset + yaxis2.l2p(2)];
        })()"""
    )
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0] - 2, y=place[1])
    page.call("Input.dispatchMouseEvent", type="mouseMoved", x=place[0], y=place[1])
    page.wait_until("document.querySelector('.hoverlayer .hovertext') !== null")
    text = page.run("document.querySelector('.hoverlayer .hovertext').textContent")
    assert text.startswith("f0")
    assert "forward, 10 ms" in text


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const light = (colour) => parts(colour).map((part) => part / 255)
    .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
  const card = light(getComputedStyle(document.querySelector("section")).backgroundColor);
  const against = (element, property) => {
    const ink = light(getComputedStyle(element)[property]);
    return (Math.max(ink, card) + 0.05) / (Math.min(ink, card) + 0.05);
  };
  const texts = document.querySelectorAll("section h2, section p, #all-rows td, #all-rows th, dd, dt, summary");
  const drawn = document.querySelectorAll(".chart .main-svg text");
  return [card, Math.min(...[...texts].map((one) => against(one, "color"))),
    Math.min(...[...drawn].map((one) => against(one, "fill"))), drawn.length];
})()"""


def test_text_is_readable_in_light_and_in_dark(page: Browser) -> None:
    cards = {}
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        cards[scheme], texts, drawn, n_drawn = page.run(CONTRAST)
        assert n_drawn > 20
        assert texts > 4.5  # WCAG 2, level AA
        assert drawn > 4.5
    assert cards["light"] > 0.9
    assert cards["dark"] < 0.05


def test_a_print_has_every_chart_and_the_page_is_as_before(page: Browser) -> None:
    assert page.run("[...document.querySelectorAll('.chart')].filter((one) => !one.dataset.drawn).length") > 0
    width = page.run("document.querySelector('.chart')._fullLayout.width")
    # A print begins right after its event: what is drawn later is missing on paper.
    drawn_for_print = page.run(
        "window.dispatchEvent(new Event('beforeprint')) &&"
        " [...document.querySelectorAll('.chart')].every((one) => one.querySelector('.scatterlayer .trace'))"
    )
    assert drawn_for_print
    page.run("window.dispatchEvent(new Event('afterprint'))")
    printed = base64.b64decode(page.call("Page.printToPDF", printBackground=True)["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000
    assert page.run("[...document.querySelectorAll('.chart')].filter((one) => !one.dataset.drawn).length") == 0
    page.wait_until(f"Math.abs(document.querySelector('.chart')._fullLayout.width - {width}) < 2")


def test_a_narrow_screen_is_not_scrolled_sideways(page: Browser) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=400, height=800, deviceScaleFactor=1, mobile=False)
    try:
        page.wait_until("document.documentElement.scrollWidth <= 400")
        page.wait_until("document.querySelector('.chart')._fullLayout.width < 400")
    finally:
        page.call("Emulation.setDeviceMetricsOverride", width=1200, height=900, deviceScaleFactor=1, mobile=False)


def test_names_of_files_do_nothing(browser: Browser, tmp_path: Path) -> None:
    path = write_report(tmp_path / "hostile.html", name=HOSTILE)
    browser.open(path)
    assert browser.run("typeof attacked") == "undefined"
    assert browser.run("document.querySelector('#all-rows td').textContent") == HOSTILE
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.of_kind("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded") == []
    # Were markup to slip through, the page's policy would still run no script and request nothing.
    browser.run("document.body.insertAdjacentHTML('beforeend', '<img src=http://example.com/x onerror=attacked=1>')")
    browser.run("document.body.append(Object.assign(document.createElement('script'), { text: 'attacked = 1' }))")
    assert browser.run("new Promise((done) => setTimeout(() => done(typeof attacked), 200))") == "undefined"
    refused = [entry["entry"]["text"] for entry in browser.of_kind("Log.entryAdded")]
    assert sum("Content Security Policy" in text for text in refused) >= 2
