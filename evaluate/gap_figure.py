"""The anytime figure: how far each planner is from the lower bound, over its planning time."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slackswap.evaluate.figure_style import (
    PAGE_INCHES,
    as_label,
    curve_styles,
    laid_out,
    legend_above,
    log_extent,
    new_figure,
    paper_style,
)
from slackswap.hardware.input_error import InputError
from slackswap.models.atomic_file import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from slackswap.evaluate.gap import GapCurve

KINDS = (".png", ".svg")
EARLIEST_S = 1e-4  # a logarithmic axis has no zero
SMALLEST_PERCENT = 1e-3


@paper_style()
def anytime_figure(curves: Mapping[str, GapCurve], title: str, against: str = "the lower bound") -> Figure:
    """Gap over planning time, both logarithmic: a line for a planner that searches, a marker for one that only answers.

    Parameters
    ----------
    curves : planner -> (seconds, gap as a fraction) of each improvement, and where it ended
        Gaps below 0.001% are drawn on the axis, at its foot.
    """
    figure = new_figure(PAGE_INCHES, 3.8)
    axes = figure.add_subplot()
    styles = curve_styles(curves)
    shown = {}
    for planner, style in styles.items():
        seconds = [max(EARLIEST_S, at_s) for at_s, _ in curves[planner]]
        percents = [max(SMALLEST_PERCENT, 100 * gap) for _, gap in curves[planner]]
        # Every improvement of a search is a step of its line; the marker stands where the planner ended.
        (line,) = axes.plot(seconds, percents, drawstyle="steps-post", markevery=[len(seconds) - 1], **style.line)
        shown[style.display_name] = line
    _log_axes(axes, curves)
    axes.set(
        xlabel="Planning time (s)", ylabel=f"Gap to {as_label(against)} (%)", title=as_label(title, most_letters=80)
    )
    legend_above(figure, shown)
    return laid_out(figure)


def _log_axes(axes: Axes, curves: Mapping[str, GapCurve]) -> None:
    axes.set(xscale="log", yscale="log")
    points = [point for curve in curves.values() for point in curve]
    first_s, last_s = log_extent([max(EARLIEST_S, seconds) for seconds, _ in points])
    least, most = log_extent([max(SMALLEST_PERCENT, 100 * gap) for _, gap in points])
    axes.set(xlim=(first_s / 1.5, last_s * 1.5), ylim=(least / 1.5, most * 1.5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(lambda value, _: _minor(value))
    axes.tick_params(which="both", pad=3, labelsize=7)
    axes.grid(which="major")


def _minor(value: float) -> str:
    """Label 2 and 5 of each decade, so that an axis of less than a decade has numbers too."""
    digit = value / 10 ** math.floor(math.log10(value)) if value > 0 else 0.0
    return f"{value:g}" if round(digit) in (2, 5) else ""


def check_figure_path(path: str) -> None:
    """Refuse a file that `write_figure` could not write, before the work whose results it is meant for.

    Raises
    ------
    InputError
        Its name has no ending of a picture, or matplotlib is not installed.
    """
    if Path(path).suffix.lower() not in KINDS:
        raise InputError(f"ends in {' or '.join(KINDS)}", source=path)
    with paper_style():
        pass


@paper_style()
def write_figure(figure: Figure, path: str, dots_per_inch: int = 200) -> None:
    """Write a figure as the picture that the ending of `path` names, whole or not at all.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    kind = Path(path).suffix.lower().removeprefix(".")
    metadata = {"Software": None} if kind == "png" else {"Date": None}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=dots_per_inch, metadata=metadata)
    write_atomically(Path(path), buffer.getvalue())
