"""A survey of traces: every file of a folder that can be imported, and every planner on it at a few budgets, as one page.

Execution traces are paired with the Kineto trace of the same folder that was recorded with them. What cannot be imported
stands on the page too, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from slackswap.evaluate.budget import Budget
from slackswap.evaluate.results import Result
from slackswap.evaluate.shootout import shootout
from slackswap.hardware.catalog import Hardware
from slackswap.hardware.input_error import InputError
from slackswap.models.event_model import peak_bytes
from slackswap.models.link_budget import link_budget
from slackswap.models.problem import Problem
from slackswap.models.traces import import_traces
from slackswap.models.traces.derivation import FACTS, KEY
from slackswap.planners import Planner

_MAX_FILES = 1000


@dataclass(frozen=True, slots=True)
class Imported:
    """A problem, and the files that it came from, relative to the folder that was named."""

    files: tuple[str, ...]
    problem: Problem


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that gives no problem, and why."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class Surveyed:
    """One imported problem with the results of every planner at every budget, by budget."""

    imported: Imported
    cells: tuple[tuple[Budget, tuple[Result, ...]], ...]


def import_everything(
    paths: Sequence[Path | str], hardware: Hardware, *, roofline: bool = False
) -> tuple[list[Imported], list[Refused]]:
    """Import every trace among files and folders, pairs together; return the problems, and the files without one.

    Parameters
    ----------
    roofline : whether execution traces without times are timed by the roofline of the hardware

    Raises
    ------
    InputError
        A path does not exist, or there are too many files.
    """
    imported: list[Imported] = []
    refused: list[Refused] = []
    for root, files in _folders(paths):
        used: set[Path] = set()
        for pair, problem in _pairs(files, hardware):
            used.update(pair)
            imported.append(Imported(tuple(_named(path, root) for path in pair), problem))
        for path in files:
            if path in used:
                continue
            try:
                problem = import_traces([path], link=hardware.link, roofline=hardware if roofline else None)
                imported.append(Imported((_named(path, root),), problem))
            except InputError as error:
                refused.append(Refused(_named(path, root), _reason(error)))
    return imported, refused


def _folders(paths: Sequence[Path | str]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the files of each folder, with the path that they are named relative to."""
    for named in map(Path, paths):
        if named.is_file():
            yield named.parent, [named]
            continue
        if not named.is_dir():
            raise InputError("is no file and no folder", source=str(named))
        files = sorted(path for path in named.rglob("*") if path.is_file())
        if len(files) > _MAX_FILES:
            raise InputError(f"holds more than {_MAX_FILES} files: name a smaller folder", source=str(named))
        for folder in sorted({path.parent for path in files}):
            yield named, [path for path in files if path.parent == folder]


def _pairs(files: Sequence[Path], hardware: Hardware) -> Iterator[tuple[tuple[Path, Path], Problem]]:
    """Yield the execution traces of one folder that have their Kineto trace beside them."""
    by_kind: dict[str, list[Path]] = {"execution trace": [], "Kineto trace": []}
    for path in files:
        by_kind.setdefault(_kind(path), []).append(path)
    for execution_trace in by_kind["execution trace"]:
        for kineto in by_kind["Kineto trace"]:
            try:
                problem = import_traces([execution_trace, kineto], link=hardware.link)
            except InputError:
                continue  # of another run
            yield (execution_trace, kineto), problem
            break


def _kind(path: Path) -> str:
    from slackswap.models.traces.trace_content import recognise
    from slackswap.models.traces.trace_file import open_trace_files

    try:
        (file,) = open_trace_files(path)
        return recognise(file)
    except (InputError, ValueError):  # refused, or an archive of several files
        return ""


def _named(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _reason(error: InputError) -> str:
    return f"{error.place}: {error.rule}" if error.place else error.rule


def survey(
    imported: Sequence[Imported],
    budgets: Sequence[Budget],
    planners: Sequence[Planner],
    *,
    seed: int = 0,
    time_limit_s: float | None,
    announce: Callable[[Problem, str, str], object] = lambda *_: None,
) -> Iterator[Surveyed]:
    """Yield the results for one problem at a time; an interruption loses the one under way."""
    for item in imported:
        cells = shootout([item.problem], budgets, planners, seed=seed, time_limit_s=time_limit_s, announce=announce)
        yield Surveyed(item, tuple(zip(budgets, map(tuple, cells), strict=True)))


def markdown(surveyed: Sequence[Surveyed], refused: Sequence[Refused], *, hardware: Hardware, command: str) -> str:
    """Return the page: what was imported and how, the planners' throughputs, and what was refused."""
    parts = [
        "# Planners on recorded traces",
        f"Generated by `{command}`.",
        "Throughput is the ideal step over the planned step, in percent, scored by the event model; a dash: no plan found that"
        " fits; bold: the best of a budget. The bound is certified: no plan is faster. A, P and f are the saved activations, the"
        f" keep-everything peak, and the hideable fraction on the link of {hardware.name}"
        f" ({hardware.link.d2h_bytes_per_s / 1e9:g} GB/s per direction). What was derived by rule is said by"
        " `slackswap problem FILE`.",
        "## What was imported",
        _facts_table(surveyed),
    ]
    for item in surveyed:
        parts += [f"## {_cell(item.imported.problem.name)}", _provenance(item.imported), _results(item)]
    if refused:
        rows = [[f"`{_cell(item.file)}`", _cell(item.reason)] for item in refused]
        parts += ["## What was refused", _table(["file", "why"], rows)]
    return "\n\n".join(parts) + "\n"


def _facts_table(surveyed: Sequence[Surveyed]) -> str:
    headings = ["problem", "kind", "operators", "saved", "T_F ms", "T_B ms", "A GB", "P GB", "f"]
    rows = []
    for item in surveyed:
        problem = item.imported.problem
        rows.append(
            [
                _cell(problem.name),
                _cell(str(problem.metadata.get(KEY, {}).get("kind", ""))),
                f"{problem.n_forward} + {problem.n_operators - problem.n_forward}",
                str(int(problem.saved.sum())),
                f"{problem.forward_s * 1e3:.3f}",
                f"{problem.backward_s * 1e3:.3f}",
                f"{problem.saved_bytes / 1e9:.4f}",
                f"{peak_bytes(problem) / 1e9:.4f}",
                f"{link_budget(problem).hideable_fraction:.1%}",
            ]
        )
    return _table(headings, rows)


def _provenance(imported: Imported) -> str:
    """Return one sentence on the files, the GPU and what follows from rules."""
    derivation = imported.problem.metadata.get(KEY, {})
    facts = derivation.get("facts", {})
    ruled = [name for name in FACTS if facts.get(name, {}).get("by_rule")]
    files = ", ".join(f"`{name}`" for name in imported.files)
    gpu = imported.problem.metadata.get("gpu") or "not stated"
    warnings = len(derivation.get("warnings", ()))
    return (
        f"From {files}; GPU: {_cell(str(gpu))}; at least in part by rule: {', '.join(ruled) or 'nothing'};"
        f" {warnings} warning{'' if warnings == 1 else 's'}."
    )


def _results(item: Surveyed) -> str:
    """Return the table of the planners that have a plan at one of the budgets, and a line on those that have none."""
    headings = ["planner", *(f"{budget.text}" for budget, _ in item.cells)]
    planners = [result.row.planner for result in item.cells[0][1]] if item.cells else []
    best = [max((r.row.throughput or 0.0 for r in results), default=0.0) for _, results in item.cells]
    rows, without = [], []
    for i, name in enumerate(planners):
        throughputs = [results[i].row.throughput for _, results in item.cells]
        if any(value is not None for value in throughputs):
            rows.append([name, *(_percent(value, top) for value, top in zip(throughputs, best, strict=True))])
        else:
            without.append(name)
    rows.append(["*bound*", *(_bound(results) for _, results in item.cells)])
    said = [_table(headings, rows)] if len(rows) > 1 else []
    if without:
        said.append(f"No plan at any of these budgets: {', '.join(without)}.")
    return "\n\n".join([*said, *_floors(item)])


def _floors(item: Surveyed) -> list[str]:
    """Say of the budgets that nothing fits in what is known."""
    peak = peak_bytes(item.imported.problem)
    too_small: list[str] = []
    known: list[int] = []
    for budget, results in item.cells:
        if all(result.row.throughput is None for result in results):
            too_small.append(budget.text)
            why = [result.infeasibility.smallest_known_bytes for result in results if result.infeasibility is not None]
            known += [size for size in why if size is not None]
    if not too_small:
        return []
    said = f"Nothing fits in {', '.join(too_small)}"
    return [
        f"{said}; the smallest budget known to do is {min(known):,} bytes, {min(known) / peak:.1%} of P."
        if known and peak
        else f"{said}."
    ]


def _percent(throughput: float | None, best: float) -> str:
    if throughput is None:
        return "-"
    shown = f"{100 * throughput:.2f}"
    return f"**{shown}**" if throughput >= best * (1 - 5e-5) else shown


def _bound(results: Sequence[Result]) -> str:
    bounds = [(r.row.lower_bound_s, r.row.ideal_s) for r in results if r.row.lower_bound_s]
    return f"{100 * bounds[0][1] / bounds[0][0]:.2f}" if bounds and bounds[0][0] else "-"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    """Return text that breaks no table and no markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
