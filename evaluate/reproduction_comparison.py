"""A value of the paper beside the one that is computed here, and how far apart they are."""

from __future__ import annotations

import math
from dataclasses import dataclass

from slackswap.evaluate.paper import Statement

# A number, both ends of a range, words such as "does not fit"; None where what computes it is not there yet.
Value = float | tuple[float, float] | str | None

DOES_NOT_FIT = "does not fit"
NOT_YET = "not yet implemented"
NEEDS_CAUSE_ABOVE = 0.02


@dataclass(frozen=True)
class Comparison:
    """A statement of the paper, our value, and why they differ if they do."""

    statement: Statement
    ours: Value
    cause: str = ""

    @property
    def deviation(self) -> float | None:
        """Ours over the paper's, minus 1; of a range, the end that is further off. None where that means nothing.

        Infinite where the paper has 0 and we do not, and where one is a number and the other is not.
        """
        bounds, ours = self.statement.bounds, _numbers(self.ours)
        if self.ours is None:
            return None
        if not bounds and not ours:
            return 0.0 if self.ours == self.statement.value else math.inf
        if len(bounds) != len(ours):
            return math.inf if bounds else None
        return max((_relative(*pair) for pair in zip(ours, bounds, strict=True)), key=abs)

    @property
    def agrees_as_printed(self) -> bool:
        """Whether ours, rounded to the digits that the paper prints, is the paper's."""
        ours = _numbers(self.ours)
        if not ours:
            return self.ours == self.statement.value
        return self.ours_text == "-".join(_rounded(bound, self.statement.decimals) for bound in self.statement.bounds)

    @property
    def needs_cause(self) -> bool:
        """Whether ours is more than 2% off and that is more than rounding."""
        if self.ours is None or self.agrees_as_printed:
            return False
        deviation = self.deviation
        return deviation is None or abs(deviation) > NEEDS_CAUSE_ABOVE

    @property
    def ours_text(self) -> str:
        """Our value in the paper's digits."""
        if self.ours is None:
            return NOT_YET
        if isinstance(self.ours, str):
            return self.ours
        decimals = self.statement.decimals if self.statement.bounds else 2
        return "-".join(_rounded(number, decimals) for number in _numbers(self.ours))

    @property
    def deviation_text(self) -> str:
        """The deviation in percent, or in words."""
        deviation = self.deviation
        if self.ours is None:
            return ""
        if not self.statement.bounds or deviation is None:
            return "agrees" if self.agrees_as_printed else "see cause"
        if math.isinf(deviation):
            return "as printed" if self.agrees_as_printed else "differs"
        text = f"{100 * deviation:+.1f}%"
        return "0.0%" if text in ("+0.0%", "-0.0%") else text

    @property
    def cause_text(self) -> str:
        """Why ours differs: nothing where it is within 2%, else the cause or that only rounding does."""
        if self.needs_cause:
            return self.cause
        deviation = self.deviation
        large = deviation is not None and abs(deviation) > NEEDS_CAUSE_ABOVE
        return "the digits printed agree" if large else ""


def _numbers(value: Value) -> tuple[float, ...]:
    if value is None or isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (float(value),)


def _relative(ours: float, paper: float) -> float:
    if paper == 0:
        return 0.0 if ours == 0 else math.inf
    return ours / paper - 1.0


def _rounded(number: float, decimals: int) -> str:
    text = f"{number:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text
