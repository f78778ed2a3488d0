"""What the SlackSwap paper states in numbers, read from ``paper.toml``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import msgspec

PAPER_FILE = Path(__file__).with_name("paper.toml")
_NUMBER = r"\d+(?:\.\d+)?"
_VALUE = re.compile(rf"({_NUMBER})(?:-({_NUMBER}))?")


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One value of the paper.

    Attributes
    ----------
    id : item of the reproduction and what within it, joined by dots
    section : where the paper states it
    what : what is stated, in words
    value : as printed: a number, a range ``low-high``, or words
    unit : of the value; empty for words
    timing : whether it is a planning time, which no two runs agree on
    """

    id: str
    section: str
    what: str
    value: str
    unit: str = ""
    timing: bool = False

    @property
    def item(self) -> str:
        """The table or figure that it belongs to."""
        return self.id.split(".", 1)[0]

    @property
    def bounds(self) -> tuple[float, ...]:
        """The number, both ends of the range, or nothing for words."""
        match = _VALUE.fullmatch(self.value)
        return () if match is None else tuple(float(number) for number in match.groups() if number is not None)

    @property
    def decimals(self) -> int:
        """Digits behind the decimal point, as printed."""
        return len(self.value.partition("-")[0].partition(".")[2]) if self.bounds else 0


class _Column(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    what: str = ""
    unit: str = ""
    timing: bool = False


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    of: tuple[str, ...]
    values: tuple[str, ...]


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    item: str
    section: str
    columns: tuple[_Column, ...]
    rows: tuple[_Line, ...]


class Sweeps(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the paper's figures sweep over; the first of `planners` is the paper's own, the others are its baselines."""

    planners: tuple[str, ...]
    swap_centric: tuple[str, ...]
    transformers: tuple[str, ...]
    transformer_budgets_pct: tuple[int, ...]
    image_classifiers: tuple[str, ...]
    image_classifier_budgets_pct: tuple[int, ...]
    generations: tuple[str, ...]
    pcie4_gb_per_s: float

    @property
    def workloads(self) -> tuple[str, ...]:
        """All workloads, in the paper's order."""
        return (*self.transformers, *self.image_classifiers)

    def budgets_of(self, workload: str) -> list[str]:
        """Budgets of Figure 4 for a workload, from the peak down."""
        small = workload in self.image_classifiers
        return [f"{pct}%" for pct in (self.image_classifier_budgets_pct if small else self.transformer_budgets_pct)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: dict[str, str]
    sweeps: Sweeps
    tables: tuple[_Table, ...]
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Paper:
    """The paper: its statements in order, its sweeps, and how it writes the names of workloads, machines and planners."""

    _document: _Document

    @property
    def sweeps(self) -> Sweeps:
        """What the figures sweep over."""
        return self._document.sweeps

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """Every statement: the entries of tables, then those of the text."""
        items = dict.fromkeys(table.item for table in self._document.tables)
        entries = [entry for item in items for entry in self.entries_of(item)]
        return (*entries, *self._document.statements)

    def entries_of(self, item: str) -> list[Statement]:
        """Return the entries of an item's tables."""
        return [entry for table in self._document.tables if table.item == item for entry in self._entries(table)]

    def of_item(self, item: str) -> list[Statement]:
        """Return the statements of one table or figure."""
        return [statement for statement in self.statements if statement.item == item]

    def rows_of(self, item: str) -> list[tuple[str, ...]]:
        """Return what the rows of an item's tables are of, such as (workload, planner)."""
        return [line.of for table in self._document.tables if table.item == item for line in table.rows]

    def name(self, key: str) -> str:
        """Return a name as the paper writes it; one that it does not use stays."""
        return self._document.names.get(key, key)

    def _entries(self, table: _Table) -> Sequence[Statement]:
        return [
            Statement(
                id=".".join([table.item, *line.of, column.name]),
                section=table.section,
                what=f"{', '.join(map(self.name, line.of))}: {column.what or self.name(column.name)}",
                value=value,
                unit=column.unit,
                timing=column.timing,
            )
            for line in table.rows
            for column, value in zip(table.columns, line.values, strict=True)
        ]


@cache
def paper() -> Paper:
    """Return what the paper states."""
    return Paper(msgspec.toml.decode(PAPER_FILE.read_bytes(), type=_Document))
