"""Keeps finished results of a sweep in a file of JSON lines, each written as soon as it is there."""

from __future__ import annotations

import errno
import hashlib
import os
from functools import cache
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

import slackswap.hardware
import slackswap.models
import slackswap.planners
from slackswap.evaluate.results import Row
from slackswap.hardware.input_error import InputError
from slackswap.models.atomic_file import check_writable

HINT = "name another file, or remove it"
LINE_START = b'{"key":"'


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A finished result: `key` is the digest of what it depends on."""

    key: str
    row: Row


class SweepStore:
    """Results by key, in memory and, given a path, in a file that grows by a line for each.

    Whatever is no whole line at the end of the file, after a crash or a full disk, is cut off.

    Raises
    ------
    InputError
        The file cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else Path(path)
        self._rows: dict[str, Row] = {}
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._path is not None:
            check_writable(self._path)
            try:
                self._open(self._path)
            except OSError as error:
                raise self._unusable(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def row(self, depends_on: bytes) -> Row | None:
        """Return the row that was stored for the same dependencies and code, or None."""
        return self._rows.get(_digest(depends_on))

    def add(self, depends_on: bytes, row: Row) -> None:
        """Keep a row: in the file before the next result is waited for."""
        line = Line(_digest(depends_on), row)
        self._rows[line.key] = row
        if self._file is None:
            return
        try:
            text = msgspec.json.encode(line) + b"\n"
            if self._file.write(text) < len(text):  # unbuffered: a disk that fills up takes a part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise self._unusable(error) from None

    def _open(self, path: Path) -> None:
        if path.exists() and not path.is_file():
            raise InputError(f"is not a regular file: {HINT}", source=str(path))
        content = path.read_bytes() if path.exists() else b""
        whole = content.rfind(b"\n") + 1
        for number, text in enumerate(content[:whole].splitlines(), start=1):
            self._read_line(text, number)
        torn = content[whole:]
        if not LINE_START.startswith(torn[: len(LINE_START)]):
            raise InputError(f"holds no results of sweeps: {HINT}", source=str(path))
        self._file = path.open("ab", buffering=0)
        os.truncate(path, whole)

    def _read_line(self, text: bytes, number: int) -> None:
        try:
            line = msgspec.json.decode(text, type=Line)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(
                f"is no result of a sweep ({error}): {HINT}", place=f"line {number}", source=str(self._path)
            ) from None
        self._rows[line.key] = line.row

    def _unusable(self, error: OSError) -> InputError:
        return InputError(f"cannot be used: {(error.strerror or str(error)).lower()}", source=str(self._path))


def _digest(depends_on: bytes) -> str:
    return hashlib.blake2b(_code() + depends_on, digest_size=16).hexdigest()


@cache
def _code() -> bytes:
    """Version and sources of the floors that results come from: results of other code are not taken for this one's."""
    state = hashlib.blake2b(metadata.version("slackswap").encode(), digest_size=16)
    for floor in (slackswap.hardware, slackswap.models, slackswap.planners):
        folder = Path(str(floor.__file__)).parent
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
            state.update(path.read_bytes())
    return state.digest()
