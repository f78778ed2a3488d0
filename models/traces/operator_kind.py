"""Names of operators: what kind of work they are, and how they are shown.

The kinds stand in one table, ``operator_kinds.toml``; users put a table of their own before it.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import read_input_bytes
from slackswap.models.problem import KINDS, Problem, read_only
from slackswap.models.traces.pytorch.execution_trace import EVALUATE_FUNCTION

KindTable = tuple[tuple[str, re.Pattern[str]], ...]

_TABLE_FILE = Path(__file__).with_name("operator_kinds.toml")
_MAX_FILE_BYTES = 1 << 20
_PREFIXES = (EVALUATE_FUNCTION, "torch::autograd::", "aten::")
# Problems name operators by region, call and index: `block.3/linear.17`.
_REGION = re.compile(r"^.*/(?=[^/]*$)")
_RANDOM = re.compile(r"dropout|bernoulli|multinomial|(^|::)(rand|normal|uniform|exponential)")
_COLLECTIVE = re.compile(r"nccl|rccl|c10d|record_param_comms|gloo")


def shown_name(name: str) -> str:
    """Return an operator's name without the prefix that says who called it."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def operator_kind(name: str, table: KindTable = ()) -> str:
    """Return the kind of the problem format that a forward or backward operator belongs to.

    Parameters
    ----------
    table : rows that go before those of ``operator_kinds.toml``
    """
    return _kind_of(shown_name(name).lower(), table)


def read_kind_table(path: Path | str) -> KindTable:
    """Read a table of the form of ``operator_kinds.toml``: ``[[kind]]`` with ``kind`` and ``patterns``.

    Raises
    ------
    InputError
        The file is no such table; the message names the file, the entry and the rule.
    """
    content = read_input_bytes(path, limit_bytes=_MAX_FILE_BYTES)
    try:
        return _table(tomllib.loads(content.decode("utf-8-sig")))
    except InputError as error:
        raise error.within(str(path)) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not TOML: {error}", source=str(path)) from None


def with_kinds(problem: Problem, table: KindTable) -> Problem:
    """Return the problem with the kinds that the rows of `table` give its operators; others keep theirs."""
    kinds = problem.kind.copy()
    for i, name in enumerate(problem.operator_names):
        plain = shown_name(_REGION.sub("", name)).lower()
        found = next((kind for kind, pattern in table if pattern.search(plain)), None)
        if found is not None:
            kinds[i] = KINDS.index(found)
    return replace(problem, kind=read_only(np.asarray(kinds, np.int64)))


def is_random(name: str) -> bool:
    """Whether a call draws random numbers."""
    return bool(_RANDOM.search(name))


def is_collective(name: str) -> bool:
    """Whether a call communicates with other processes."""
    return bool(_COLLECTIVE.search(name))


@lru_cache(maxsize=1 << 16)
def _kind_of(name: str, table: KindTable) -> str:
    return next((kind for kind, pattern in (*table, *_built_in()) if pattern.search(name)), "other")


@cache
def _built_in() -> KindTable:
    return _table(tomllib.loads(_TABLE_FILE.read_text(encoding="utf-8")))


def _table(parsed: dict[str, Any]) -> KindTable:
    rows = parsed.get("kind")
    if set(parsed) != {"kind"} or not isinstance(rows, list):
        raise InputError("holds [[kind]] entries, each with `kind` and `patterns`, and nothing else")
    compiled = []
    for i, row in enumerate(rows):
        place = f"kind[{i}]"
        if not isinstance(row, dict) or set(row) != {"kind", "patterns"}:
            raise InputError("has `kind` and `patterns`", place=place)
        if row["kind"] not in KINDS:
            raise InputError(f"is one of {', '.join(KINDS)}, not {row['kind']!r}", place=f"{place}.kind")
        if not isinstance(row["patterns"], list) or not all(isinstance(text, str) for text in row["patterns"]):
            raise InputError("is a list of regular expressions", place=f"{place}.patterns")
        compiled += [(row["kind"], _pattern(text, f"{place}.patterns[{j}]")) for j, text in enumerate(row["patterns"])]
    return tuple(compiled)


def _pattern(text: str, place: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InputError(f"is no regular expression: {error}", place=place) from None
