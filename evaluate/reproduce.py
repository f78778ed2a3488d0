"""Reproduces the paper: every table and figure computed anew, each value beside the paper's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec

from slackswap.evaluate.paper import paper
from slackswap.evaluate.reproduction_budgets import BUDGET_ITEM
from slackswap.evaluate.reproduction_comparison import Comparison
from slackswap.evaluate.reproduction_figures import FIGURE_ITEMS, STEP_ITEM
from slackswap.evaluate.reproduction_item import Computed, Item, Rows
from slackswap.evaluate.reproduction_report import (
    Reproduced,
    comparisons_csv,
    lasting_points,
    points_csv,
    to_markdown,
)
from slackswap.evaluate.reproduction_sensitivity import SENSITIVITY_ITEMS
from slackswap.evaluate.reproduction_tables import TABLE_ITEMS
from slackswap.evaluate.sweeps import Case, run_cases
from slackswap.hardware.input_error import InputError
from slackswap.models.atomic_file import write_atomically

ITEMS: dict[str, Item] = {
    item.name: item for item in (*TABLE_ITEMS, *FIGURE_ITEMS, BUDGET_ITEM, STEP_ITEM, *SENSITIVITY_ITEMS)
}
ALL = "all"
STORE_NAME, PAGE_NAME = "cases.jsonl", "reproduction.md"


def find_items(names: Iterable[str]) -> list[Item]:
    """Return the items that are named, each once, or every one for ``all`` or no name."""
    wanted = list(dict.fromkeys(names))
    for name in wanted:
        if name not in (*ITEMS, ALL):
            raise InputError(f"'{name}' is no table or figure here: use {', '.join(ITEMS)}, or {ALL}", source="ITEM")
    return list(ITEMS.values()) if not wanted or ALL in wanted else [ITEMS[name] for name in wanted]


def reproduce(
    items: Sequence[Item],
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    search_s: float | None = None,
    progress: bool = True,
) -> list[Reproduced]:
    """Compute items: the cases of all of them first, on all cores, then each from their results.

    Parameters
    ----------
    jobs : processes, as in `run_cases`
    folder : keeps the results of finished cases, so that an interrupted run goes on where it stopped; or None
    search_s : seconds for each genetic search, in place of the number of plans that makes its result repeatable; or None

    Raises
    ------
    InputError
        The folder cannot be used.
    """
    stated = paper()
    cases = {case: _within(case, search_s) for item in items for case in item.cases(stated)}
    store = None if folder is None else folder / STORE_NAME
    results = run_cases(cases.values(), jobs=jobs, store=store, progress=progress)
    rows = Rows({case: result.row for case, result in zip(cases, results, strict=True)})
    return [_compared(item, item.compute(stated, rows)) for item in items]


def _within(case: Case, search_s: float | None) -> Case:
    """Return the case, or if it searches, the same with a time limit."""
    if search_s is None or case.evaluation_limit is None:
        return case
    return msgspec.structs.replace(case, evaluation_limit=None, time_limit_s=search_s)


def _compared(item: Item, computed: Computed) -> Reproduced:
    comparisons = [
        Comparison(statement, computed.values[statement.id], item.cause(statement.id))
        for statement in paper().of_item(item.name)
    ]
    return Reproduced(item, computed, comparisons)


def make_folder(path: str) -> Path:
    """Return the folder for results, made where it is missing.

    Raises
    ------
    InputError
        It is a file, or cannot be made.
    """
    if not path:
        raise InputError("names no folder to write to", source="--out")
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"is no folder to write to: {reason.lower()}", source=path) from None
    return folder


def figures_can_be_drawn() -> bool:
    """Whether matplotlib, which comes with the ``plot`` extra, is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write(reproduced: Sequence[Reproduced], folder: Path) -> Iterator[Path]:
    """Write CSV files, figures where they can be drawn and, of a whole reproduction, its page; yield each path.

    Raises
    ------
    InputError
        A file cannot be written.
    """
    for one in reproduced:
        yield _written(folder / f"{one.item.name}.csv", comparisons_csv(one))
        if lasting_points(one):
            yield _written(folder / f"{one.item.name}_points.csv", points_csv(lasting_points(one)))
        if one.computed.draw is not None and figures_can_be_drawn():
            from slackswap.evaluate.figures import save

            yield from save(one.computed.draw(), folder, one.item.name)
    if {one.item.name for one in reproduced} == set(ITEMS):
        yield _written(folder / PAGE_NAME, to_markdown(reproduced))


def _written(path: Path, text: str) -> Path:
    write_atomically(path, text.encode())
    return path
