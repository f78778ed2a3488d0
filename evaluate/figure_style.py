"""How figures look: sizes of a two-column paper, colours that colour-blind readers can tell apart, names as text.

matplotlib is an extra: it is imported where it is used. pyplot, which keeps figures in a global list, never is.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from slackswap.evaluate.results import printable
from slackswap.hardware.input_error import InputError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

COLUMN_INCHES, PAGE_INCHES = 3.4, 7.0
NOTEBOOK_DOTS_PER_INCH = 130
MAX_NAME_LETTERS = 32  # longer names would leave no room to draw in
LETTERS_PER_INCH, LETTERS_PER_SAMPLE = 18, 6.5  # about, of a legend's font; a sample of colour and the space around it

# What a user's own matplotlibrc may change and a figure's layout or bytes depend on.
_SETTINGS: dict[Any, Any] = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib: the same text extents everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.grid": False,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.color": "0.88",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "text.usetex": False,
    "text.parse_math": True,
    "savefig.bbox": None,
    "savefig.facecolor": "white",
    "savefig.transparent": False,
    "svg.fonttype": "path",  # letters as outlines: no viewer needs the font
    "svg.hashsalt": "slackswap",  # identifiers would be random otherwise
}


@dataclass(frozen=True, slots=True)
class CurveStyle:
    """A planner's name for people and how its curve is drawn, the same in every figure."""

    planner: str
    display_name: str
    colour: str
    marker: str
    dashes: str = "-"

    @property
    def line(self) -> dict[str, Any]:
        """Properties of its line; SlackSwap's lies on top, and the markers of curves beneath show around its own."""
        first = self.planner == PAPER_CURVES[0].planner
        return {
            "color": self.colour,
            "marker": self.marker,
            "linestyle": self.dashes,
            "markersize": 3.0 if first else 4.2,
            "zorder": 4 if first else 3,
        }


# The paper's legend, in its order; colours by Okabe and Ito, markers for prints without colour.
PAPER_CURVES = (
    CurveStyle("slackswap", "SlackSwap", "#0072B2", "o"),
    CurveStyle("checkpoint", "Checkpoint", "#009E73", "s"),
    CurveStyle("swapadvisor", "SwapAdvisor", "#D55E00", "^"),
    CurveStyle("superneurons", "SuperNeurons", "#CC79A7", "D"),
    CurveStyle("vdnn", "vDNN", "#E69F00", "v"),
)
# Looks for planners that the paper does not draw, in the order in which they come; more of them differ in their dashes.
_OTHER_LOOKS = (("#000000", "P"), ("#56B4E9", "X"), ("#7F7F7F", "<"), ("#8C510A", ">"), ("#762A83", "*"))
_DASHES = ("-", "--", ":", "-.")


def curve_styles(planners: Iterable[str]) -> dict[str, CurveStyle]:
    """Return the style of each planner: those of the paper first, in its order, then the others in theirs."""
    wanted = list(dict.fromkeys(planners))
    styles = {style.planner: style for style in PAPER_CURVES if style.planner in wanted}
    others = (name for name in wanted if name not in styles)
    for i, name in enumerate(others):
        turn, place = divmod(i, len(_OTHER_LOOKS))
        colour, marker = _OTHER_LOOKS[place][0], _OTHER_LOOKS[(place + turn) % len(_OTHER_LOOKS)][1]
        styles[name] = CurveStyle(name, name, colour, marker, _DASHES[turn % len(_DASHES)])
    return styles


def display_name(planner: str) -> str:
    """Return a planner's name as the paper writes it; a name that the paper does not know stays."""
    return next((style.display_name for style in PAPER_CURVES if style.planner == planner), planner)


def as_label(name: str, *, most_letters: int = MAX_NAME_LETTERS) -> str:
    """Return a name as text to draw: on one line, without math mode, shortened where it is very long."""
    shown = printable(name)
    if len(shown) > most_letters:
        shown = shown[: most_letters - 1] + "…"
    return shown.replace("$", r"\$")


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure whose layout keeps every label inside, and that notebooks show."""
    figure: Figure = _shown_figure()(figsize=(width_inches, height_inches), layout="constrained")
    return figure


@cache
def _shown_figure() -> type[Figure]:
    """Return the class of figures that show themselves in a notebook, which only pyplot's do otherwise."""
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            buffer = io.BytesIO()
            self.savefig(buffer, format="png", dpi=NOTEBOOK_DOTS_PER_INCH)
            return buffer.getvalue()

    return ShownFigure


def log_extent(values: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and largest value that a logarithmic axis can show; (1, 10) where there is none."""
    shown = [value for value in values if math.isfinite(value) and value > 0]
    return (min(shown), max(shown)) if shown else (1.0, 10.0)


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 3, 10, 30, ... from `low` to `high`."""
    return [tick for tick in (m * 10.0**power for power in range(-12, 13) for m in (1, 3)) if low <= tick <= high]


def laid_out(figure: Figure) -> Figure:
    """Return a finished figure with its layout made, once: another one would move everything by a hair."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def legend_above(figure: Figure, entries: Mapping[str, Artist]) -> None:
    """Put a legend above the panels, where it covers nothing, in as many columns as there is room for."""
    labels = [as_label(name) for name in entries]
    letters = [LETTERS_PER_SAMPLE + len(label) for label in labels]
    room = figure.get_figwidth() * LETTERS_PER_INCH
    columns = len(labels) if sum(letters) <= room else int(room / max(letters))
    figure.legend(
        list(entries.values()),
        labels,
        loc="outside upper center",
        ncols=max(1, columns),
        handlelength=1.6,
        columnspacing=1.2,
    )


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Draw by the settings of the paper's figures, as a context or a decorator; afterwards all settings are as before.

    Raises
    ------
    InputError
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise InputError(
            f'{error.name} is not installed: install the plot extra, pip install "slackswap[plot]"', source="figures"
        ) from None
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box, which says as much.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        yield
