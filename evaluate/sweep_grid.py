"""Grids of jobs from a small TOML file: every planner on every problem, budget, machine, link, seed and limit.

The file, each key of which but `budgets` and `planners` may be left out::

    planners = ["slackswap", "ga-seeded"]   # or "all"
    budgets = ["70%", "50%", "8GB"]         # as on the command line
    hardware = ["a100-pcie4", "mine.toml"]  # catalog names or files; without it the default, and a problem file's own link
    sources = ["bert-large", "problem.json.gz", "step.et.json+step.kineto.json"]  # as on the command line
    links_bytes_per_s = [12e9, 25e9]        # in place of the hardware's, both directions
    seeds = [0, 1, 2]
    time_limits_s = [0.5, 5]                # for each plan of a planner that searches; without it the planner's own
    evaluation_limits = [1000]              # plans that it may score: its result then depends on the seed alone
    repeat = 3                              # of each job, for who measures planning times
    certified = true                        # a lower bound, that of the linear relaxation, and the gap to it in each row

    [[workloads]]                           # a workload with parameters of its own
    name = "gpt2-xl"
    batch = [4, 8]                          # a list is an axis of the grid

    [[traces]]                              # trace files with options
    files = ["trace.json.gz"]
    step = "ProfilerStep#3"
    roofline = false

A value that is no list stands for a list of one. Relative paths start at the folder of the grid's file. A planner that draws
nothing has one job for all seeds, and one that does not search has one for all evaluation limits.

Problems are read and built here, once, and travel with their jobs, which know them by the hash of their content: a trace that
changed is other work, and one that moved is not.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from slackswap.evaluate.budget import parse_budget
from slackswap.evaluate.sources import AS_RECORDED, TraceOptions, load_source, named_sources
from slackswap.evaluate.sweep_problems import PackedProblem, pack
from slackswap.evaluate.sweeps import Case, Parameter
from slackswap.hardware import DEFAULT_HARDWARE, load_hardware
from slackswap.hardware.catalog import catalog
from slackswap.hardware.input_error import InputError
from slackswap.hardware.toml_document import parse_toml
from slackswap.models.input_file import read_input_bytes
from slackswap.models.problem import Problem
from slackswap.models.workloads import WORKLOADS
from slackswap.planners import Planner, find_planners

Item = TypeVar("Item")
KEYS = (
    *("planners", "budgets", "hardware", "sources", "workloads", "traces", "links_bytes_per_s"),
    *("seeds", "time_limits_s", "evaluation_limits", "repeat", "certified"),
)
# A grid takes a few kilobytes; more is some other file.
MAX_FILE_BYTES = 1 << 20
MAX_JOBS, MAX_PROBLEMS = 1_000_000, 10_000


@dataclass(frozen=True)
class Grid:
    """The jobs of a grid, the last axis running fastest, and the problems that they carry, by hash."""

    cases: tuple[Case, ...]
    problems: Mapping[str, PackedProblem]


def read_grid(path: Path | str) -> Grid:
    """Read a grid and all problems that it names.

    Raises
    ------
    InputError
        The file, or one that it names, cannot be read or breaks a rule; the message names file, key and rule.
    """
    source = Path(path)
    try:
        axes = _axes(parse_toml(read_input_bytes(source, limit_bytes=MAX_FILE_BYTES)), source.parent)
        problems: dict[str, PackedProblem] = {}
        cases = tuple(case for one in axes.problems for case in _cases(one, axes, problems))
        return Grid(cases, problems)
    except InputError as error:
        raise error if error.source == str(path) else error.within(str(path)) from None


@dataclass(frozen=True)
class _Source:
    """Something that gives a problem for each machine; `place` is the key that it stands under."""

    place: str
    label: str
    parameters: tuple[tuple[str, Parameter], ...] = ()
    path: str = ""
    options: TraceOptions = AS_RECORDED

    def load(self, hardware: str | None) -> Problem:
        if self.label in WORKLOADS and not self.path:
            return WORKLOADS[self.label].build(load_hardware(hardware or DEFAULT_HARDWARE), **dict(self.parameters))
        return load_source(self.path or self.label, hardware, self.options)

    @property
    def default_hardware(self) -> str:
        """What a row says where the grid names no hardware: files have a link, and need no more."""
        return DEFAULT_HARDWARE if self.label in WORKLOADS and not self.path else ""


@dataclass(frozen=True)
class _Placed:
    """A source on one machine and link."""

    source: _Source
    hardware: str | None
    hardware_label: str
    link_bytes_per_s: float | None


@dataclass(frozen=True)
class _Axes:
    problems: Sequence[_Placed]
    planners: Sequence[Planner]
    budgets: Sequence[str]
    seeds: Sequence[int]
    time_limits_s: Sequence[float | None]
    evaluation_limits: Sequence[int | None]
    repeat: int
    certified: bool


def _cases(placed: _Placed, axes: _Axes, problems: dict[str, PackedProblem]) -> Iterator[Case]:
    """Yield the jobs of one problem, which is loaded here and added to `problems`."""
    packed = _packed(placed)
    problems[packed.sha256] = packed
    for budget, planner in itertools.product(axes.budgets, axes.planners):
        seeds = axes.seeds if planner.supports.randomized else axes.seeds[:1]
        limits = axes.evaluation_limits if planner.supports.anytime else (None,)
        runs = itertools.product(seeds, axes.time_limits_s, limits, range(axes.repeat))
        for seed, time_limit_s, evaluation_limit, repetition in runs:
            yield Case(
                workload=placed.source.label,
                planner=planner.name,
                budget=budget,
                hardware=placed.hardware_label,
                parameters=placed.source.parameters,
                link_bytes_per_s=placed.link_bytes_per_s,
                seed=seed,
                time_limit_s=time_limit_s,
                evaluation_limit=evaluation_limit,
                certified=axes.certified,
                carried=packed.sha256,
                repetition=repetition,
            )


def _packed(placed: _Placed) -> PackedProblem:
    try:
        problem = placed.source.load(placed.hardware)
        if placed.link_bytes_per_s is not None:
            link_bytes_per_s = placed.link_bytes_per_s
            link = replace(problem.link, d2h_bytes_per_s=link_bytes_per_s, h2d_bytes_per_s=link_bytes_per_s)
            problem = problem.with_link(link)
        return pack(problem)
    except InputError as error:
        raise InputError(str(error), place=placed.source.place) from None


def _axes(document: Mapping[str, Any], folder: Path) -> _Axes:
    for key in document:
        if key not in KEYS:
            raise InputError(f"is not a key that is known here: use {', '.join(KEYS)}", place=key)
    sources = list(_sources(document, folder))
    if not sources:
        raise InputError("names no problem: give sources, [[workloads]] or [[traces]]")
    machines = _axis(document, "hardware", lambda value, place: _machine(value, place, folder), default=[(None, "")])
    links = _axis(document, "links_bytes_per_s", _above_zero, default=[None])
    _check_count("problems", MAX_PROBLEMS, sources, machines, links)
    placed = [
        _Placed(source, hardware, label or source.default_hardware, link)
        for source, (hardware, label), link in itertools.product(sources, machines, links)
    ]
    axes = _Axes(
        problems=placed,
        planners=_planners(document),
        budgets=_axis(document, "budgets", _budget),
        seeds=_axis(document, "seeds", _from(0), default=[0]),
        time_limits_s=_axis(document, "time_limits_s", _above_zero, default=[None]),
        evaluation_limits=_axis(document, "evaluation_limits", _from(1), default=[None]),
        repeat=_from(1)(document.get("repeat", 1), "repeat"),
        certified=_boolean(document.get("certified", False), "certified"),
    )
    limits = axes.time_limits_s, axes.evaluation_limits
    _check_count("jobs", MAX_JOBS, placed, axes.planners, axes.budgets, axes.seeds, *limits, range(axes.repeat))
    return axes


def _check_count(what: str, most: int, *axes: Sequence[object]) -> None:
    if math.prod(map(len, axes)) > most:
        raise InputError(f"has more than {most:,} {what}: split it")


def _sources(document: Mapping[str, Any], folder: Path) -> Iterator[_Source]:
    for label, place in _placed(document, "sources", _text):
        path = "" if label in named_sources() else _path(label, folder)
        yield _Source(place, label, path=path)
    for table, place in _tables(document, "workloads"):
        yield from _workloads(table, place)
    for table, place in _tables(document, "traces"):
        yield _trace(table, place, folder)


def _workloads(table: Mapping[str, Any], place: str) -> Iterator[_Source]:
    """Yield a source for each combination of the parameters' values."""
    name = _text(_required(table, "name", place), f"{place}.name")
    if name not in WORKLOADS:
        raise InputError(f"'{name}' is not a workload: use {', '.join(WORKLOADS)}", place=f"{place}.name")
    keys = sorted(set(table) - {"name"})
    values = [[value for value, _ in _placed(table, key, _parameter, place)] for key in keys]
    _check_count("problems", MAX_PROBLEMS, *values)
    for chosen in itertools.product(*values):
        yield _Source(place, name, parameters=tuple(zip(keys, chosen, strict=True)))


def _trace(table: Mapping[str, Any], place: str, folder: Path) -> _Source:
    known = ("files", "step", "roofline")
    for key in table:
        if key not in known:
            raise InputError(f"is not a key that is known here: use {', '.join(known)}", place=f"{place}.{key}")
    _required(table, "files", place)
    files = [name for name, _ in _placed(table, "files", _text, place)]
    options = TraceOptions(
        step=_text(table["step"], f"{place}.step") if "step" in table else "",
        roofline=_boolean(table.get("roofline", False), f"{place}.roofline"),
    )
    label = "+".join(files)
    return _Source(place, label, path=_path(label, folder), options=options)


def _path(label: str, folder: Path) -> str:
    """Return a source with its paths from here; a file's name may hold the plus sign that else joins two."""
    try:
        whole = (folder / label).exists()
    except (OSError, ValueError):  # a name that no file can have
        return label
    return str(folder / label) if whole else "+".join(str(folder / part) for part in label.split("+") if part)


def _planners(document: Mapping[str, Any]) -> list[Planner]:
    names = _axis(document, "planners", _text)
    try:
        return find_planners(",".join(names))
    except InputError as error:
        raise InputError(error.rule, place="planners") from None


def _machine(value: object, place: str, folder: Path) -> tuple[str, str]:
    """Return a machine for `load_hardware`, and as the grid calls it."""
    label = _text(value, place)
    name = label if label in catalog() or not label.endswith(".toml") else str(folder / label)
    try:
        load_hardware(name)
    except InputError as error:
        raise InputError(str(error), place=place) from None
    return name, label


def _axis(
    table: Mapping[str, Any], key: str, read: Callable[[object, str], Item], *, default: list[Any] | None = None
) -> list[Item]:
    """Return the values of an axis, each once; without a default the key has to be there."""
    if key not in table:
        if default is None:
            raise InputError("is missing", place=key)
        return default
    return [value for value, _ in _placed(table, key, read)]


def _placed(
    table: Mapping[str, Any], key: str, read: Callable[[object, str], Item], within: str = ""
) -> Iterator[tuple[Item, str]]:
    """Yield each value of a list, or the one value that stands in place of a list, with its place."""
    if key not in table:
        return
    at = f"{within}.{key}" if within else key
    listed = isinstance(table[key], list)
    values = table[key] if listed else [table[key]]
    if not values:
        raise InputError("is an empty list: give a value", place=at)
    seen: list[Item] = []
    for i, item in enumerate(values):
        place = f"{at}[{i}]" if listed else at
        value = read(item, place)
        if value in seen:
            raise InputError("stands in the list twice", place=place)
        seen.append(value)
        yield value, place


def _tables(document: Mapping[str, Any], key: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    values = document.get(key, [])
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise InputError(f"is an array of tables: write [[{key}]]", place=key)
    yield from ((table, f"{key}[{i}]") for i, table in enumerate(values))


def _required(table: Mapping[str, Any], key: str, place: str) -> object:
    if key not in table:
        raise InputError("is missing", place=f"{place}.{key}")
    return table[key]


def _budget(value: object, place: str) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InputError("is a fraction of the peak (0.5, '50%') or bytes ('8GB')", place=place)
    text = str(value).strip()
    try:
        parse_budget(text)
    except InputError as error:
        raise InputError(error.rule, place=place) from None
    return text


def _parameter(value: object, place: str) -> Parameter:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InputError("is a whole number or a text", place=place)
    return value


def _text(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError("is a text that is not empty", place=place)
    return value


def _boolean(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise InputError("is true or false", place=place)
    return value


def _above_zero(value: object, place: str) -> float:
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not 0 < number <= 1e300:
        raise InputError("is a number above 0, and not infinite", place=place)
    return float(number)


def _from(least: int) -> Callable[[object, str], int]:
    """Return the reader of whole numbers from `least`."""

    def read(value: object, place: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 63:
            raise InputError(f"is a whole number from {least}", place=place)
        return value

    return read
