"""The frame of an HTML report: one file with its style, its scripts and plotly inside, which loads nothing from anywhere."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slackswap.evaluate.figure_style import display_name
from slackswap.evaluate.html_report_charts import Look, chart_json, shown
from slackswap.evaluate.results import printable

FOLDER = Path(__file__).parent
# Corners of the legend's symbols, which plotly draws in the charts, in a square from -5 to 5.
_CORNERS = {
    "square": "-4,-4 4,-4 4,4 -4,4",
    "triangle-up": "0,-4.5 4.5,3.5 -4.5,3.5",
    "triangle-down": "0,4.5 4.5,-3.5 -4.5,-3.5",
    "triangle-left": "-4.5,0 3.5,-4.5 3.5,4.5",
    "triangle-right": "4.5,0 -3.5,-4.5 -3.5,4.5",
    "diamond": "0,-5 5,0 0,5 -5,0",
    "cross": "-1.6,-5 1.6,-5 1.6,-1.6 5,-1.6 5,1.6 1.6,1.6 1.6,5 -1.6,5 -1.6,1.6 -5,1.6 -5,-1.6 -1.6,-1.6",
    "x": "-4.6,-2.4 -2.4,-4.6 0,-2.2 2.4,-4.6 4.6,-2.4 2.2,0 4.6,2.4 2.4,4.6 0,2.2 -2.4,4.6 -4.6,2.4 -2.2,0",
    "star": "0,-5 1.2,-1.7 4.8,-1.5 1.9,.6 2.9,4 0,2 -2.9,4 -1.9,.6 -4.8,-1.5 -1.2,-1.7",
    "pentagon": "0,-5 4.8,-1.5 2.9,4 -2.9,4 -4.8,-1.5",
    "hexagon": "-2.5,-4.3 2.5,-4.3 5,0 2.5,4.3 -2.5,4.3 -5,0",
    "bowtie": "-4.5,-4 0,0 4.5,-4 4.5,4 0,0 -4.5,4",
}
_DASH_ARRAYS = {"solid": "none", "dash": "7 4", "dot": "2 3", "dashdot": "7 3 2 3"}


@dataclass(frozen=True)
class Section:
    """A part of the page: its anchor, its heading, and its HTML; without HTML there is no such part."""

    anchor: str
    heading: str
    content: str


@dataclass
class Charts:
    """Gathers the figures of a page, each as data that its place on the page names."""

    data: list[str] = field(default_factory=list)

    def place(self, figure: Any, label: str) -> str:
        """Return the element in which a figure will be drawn.

        Parameters
        ----------
        label : what the chart shows, for those who do not see it
        """
        name = f"figure-{len(self.data) + 1}"
        self.data.append(f'<script type="application/json" id="{name}">{chart_json(figure)}</script>')
        kind, height = figure.layout.meta["kind"], figure.layout.height
        return (
            f'<div class="chart" data-kind="{kind}" data-figure="{name}" role="img" aria-label="{label}"'
            f' style="min-height:{height}px"></div>'
        )


def page(title: str, lead: str, tiles: Sequence[tuple[str, str]], sections: Sequence[Section], charts: Charts) -> str:
    """Return the whole page.

    The policy in its head names the two scripts by their digests: a browser runs no other, and requests nothing, whatever
    names from files might have smuggled past the escaping.

    Parameters
    ----------
    title : plain text
    lead : HTML under the title
    tiles : figure and what it counts, as HTML
    """
    from plotly.offline import get_plotlyjs

    plotly, script = _as_parsed(get_plotlyjs()), _as_parsed(_part("html_report.js"))
    there = [section for section in sections if section.content]
    links = "".join(f'<a href="#{section.anchor}">{section.heading}</a>' for section in there)
    tiled = "".join(f'<div class="tile"><b>{figure}</b><span>{counts}</span></div>' for figure, counts in tiles)
    content = "\n".join(
        f'<section id="{section.anchor}"><h2>{section.heading}</h2>\n{section.content}</section>' for section in there
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{shown(title)}</title>
<style>
{_part("html_report.css")}</style>
</head>
<body>
<header><div><h1>{shown(title)}</h1>
{lead}
<noscript><p class="remark">The charts need JavaScript; the tables do not.</p></noscript>
<div class="tiles">{tiled}</div></div></header>
<nav aria-label="Sections"><div>{links}</div></nav>
<main>
{content}
</main>
<footer></footer>
{chr(10).join(charts.data)}
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


def _part(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _as_parsed(script: str) -> str:
    """Return a script as a browser reads it; one that would end its own element could not stand in a page."""
    text = script.replace("\r\n", "\n").replace("\r", "\n")
    assert "</script" not in text.lower() and "<!--" not in text
    return text


def _policy(*scripts: str) -> str:
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none';"
        " form-action 'none'"
    )


def legend(styles: Mapping[str, Look]) -> str:
    """Return the legend of all charts by planner; its buttons show and hide a planner everywhere."""
    keys = "".join(
        f'<button type="button" aria-pressed="true" data-planner="{html.escape(printable(planner))}">{_swatch(look)}'
        f"{shown(display_name(planner))}</button>"
        for planner, look in styles.items()
    )
    both = "".join(f'<button type="button" data-all="{what}">{what} all</button>' for what in ("show", "hide"))
    return f'<div class="legend">{keys}{both}</div>'


def _swatch(look: Look) -> str:
    corners = _CORNERS.get(look.symbol)
    mark = f'<polygon points="{corners}"/>' if corners else '<circle r="4"/>'
    return (
        f'<svg width="30" height="12" viewBox="-15 -6 30 12" aria-hidden="true" fill="{look.colour}">'
        f'<line x1="-15" x2="15" stroke="{look.colour}" stroke-width="2" stroke-dasharray="{_DASH_ARRAYS[look.dash]}"/>'
        f"{mark}</svg>"
    )


def colour_keys(colours: Iterable[tuple[str, str]]) -> str:
    """Return a legend of plain colours."""
    return "".join(
        f'<span class="line"><span class="key" style="--c:{colour}"></span>{what}</span> ' for what, colour in colours
    )


def definitions(facts: Iterable[tuple[str, str]]) -> str:
    """Return facts as a list of names and values, both plain text."""
    listed = "".join(f"<dt>{shown(name)}</dt><dd>{shown(value, most_letters=2000)}</dd>" for name, value in facts)
    return f"<dl>{listed}</dl>"
