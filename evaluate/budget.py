"""Budgets as people write them: a fraction of the peak, or bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from slackswap.hardware.input_error import InputError

UNITS_BYTES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
MAX_FRACTION = 100
# Thirty digits are more bytes than there are; thousands would be slow to convert.
_BUDGET = re.compile(r"(\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})\s*(%|[KMGT]?i?B)?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class Budget:
    """A budget before the problem is known; exact, so that a fraction of P is rounded down to the right byte (rule 3)."""

    text: str
    amount: Fraction
    is_fraction: bool

    def bytes_of(self, peak_bytes: int) -> int:
        """Whole bytes for a problem with the given peak P."""
        return int(self.amount * peak_bytes if self.is_fraction else self.amount)


def parse_budget(text: str) -> Budget:
    """Read ``0.5`` or ``50%`` as a fraction of the peak, ``8GB`` or ``8GiB`` as bytes.

    Raises
    ------
    InputError
        It is neither; a number that looks like bytes lacks its unit.
    """
    match = _BUDGET.fullmatch(text.strip())
    if match is None:
        raise InputError(
            f"'{text}' is not a budget: write a fraction of the peak (0.5, 50%) or bytes (8GB, 8GiB, 512MB, 1B)",
            source="--budget",
        )
    number, unit = Fraction(match[1]), match[2]
    if unit is not None and unit != "%":
        return Budget(text.strip(), number * UNITS_BYTES[_unit_name(unit)], is_fraction=False)
    fraction = number / 100 if unit == "%" else number
    if fraction > MAX_FRACTION:
        raise InputError(
            f"'{text}' is more than {MAX_FRACTION} peaks: for bytes add a unit, as in {text}B", source="--budget"
        )
    return Budget(text.strip(), fraction, is_fraction=True)


def parse_budgets(text: str) -> list[Budget]:
    """Read a comma-separated list of budgets."""
    budgets = [parse_budget(part) for part in text.split(",") if part.strip()]
    if not budgets:
        raise InputError("names no budget", source="--budget")
    return budgets


def _unit_name(unit: str) -> str:
    letters = unit.upper()
    return letters.replace("IB", "iB") if letters.endswith("IB") else letters
