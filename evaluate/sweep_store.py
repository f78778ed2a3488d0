"""Keeps finished results of a sweep in a file of JSON lines, each written as soon as it is there."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import ExitStack
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


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A finished result, or why there is none: `key` is the digest of what it depends on."""

    key: str
    row: Row | None = None
    error: str | None = None


class SweepStore:
    """Results by key, in memory and, given a path, in a file that grows by a line for each.

    Lines are handed to the operating system one by one: what ends this process, however hard, costs none of them. Of two lines
    with one key the later one counts. Whatever is no whole line at the end of the file, after a crash or a full disk, is cut off.

    Raises
    ------
    InputError
        The file cannot be read or written, holds something else, or is in use by another run.
    """

    def __init__(self, path: Path | str | None) -> None:
        self._path = None if path is None else Path(path)
        self._lines: dict[str, Line] = {}
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
        line = self._lines.get(digest(depends_on))
        return None if line is None else line.row

    def error(self, depends_on: bytes) -> str | None:
        """Return why the same dependencies and code gave no row, or None."""
        line = self._lines.get(digest(depends_on))
        return None if line is None else line.error

    def add(self, depends_on: bytes, row: Row) -> None:
        """Keep a row: in the file before the next result is waited for."""
        self._add(Line(digest(depends_on), row))

    def add_error(self, depends_on: bytes, reason: str) -> None:
        """Keep the reason why there is no row."""
        self._add(Line(digest(depends_on), error=reason))

    def _add(self, line: Line) -> None:
        self._lines[line.key] = line
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
        with ExitStack() as stack:
            file = stack.enter_context(path.open("ab", buffering=0))
            _lock(file, path)
            content = path.read_bytes()
            whole = content.rfind(b"\n") + 1
            for number, text in enumerate(content[:whole].splitlines(), start=1):
                self._read_line(text, number)
            torn = content[whole:]
            if not LINE_START.startswith(torn[: len(LINE_START)]):
                raise InputError(f"holds no results of sweeps: {HINT}", source=str(path))
            os.truncate(path, whole)
            self._file = file
            stack.pop_all()

    def _read_line(self, text: bytes, number: int) -> None:
        try:
            line = msgspec.json.decode(text, type=Line)
            if (line.row is None) == (line.error is None):
                raise msgspec.ValidationError("it needs either a row or an error")
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InputError(
                f"is no result of a sweep ({error}): {HINT}", place=f"line {number}", source=str(self._path)
            ) from None
        self._lines[line.key] = line

    def _unusable(self, error: OSError) -> InputError:
        return InputError(f"cannot be used: {(error.strerror or str(error)).lower()}", source=str(self._path))


def _lock(file: BinaryIO, path: Path) -> None:
    """Refuse a file that another run appends to: it would cut off the line that the other one is writing."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InputError("is in use by another run: wait for it, or name another file", source=str(path)) from None
    except OSError:  # a file system without locks
        return


def digest(depends_on: bytes) -> str:
    """Return the key of a result: what it depends on, and the code that makes it."""
    return hashlib.blake2b(_code() + depends_on, digest_size=16).hexdigest()


def code_digest() -> str:
    """Return the hash of the code that results come from."""
    return _code().hex()


@cache
def _code() -> bytes:
    """Version and sources of the floors that results come from: results of other code are not taken for this one's."""
    state = hashlib.blake2b(metadata.version("slackswap").encode(), digest_size=16)
    for floor in (slackswap.hardware, slackswap.models, slackswap.planners):
        folder = Path(str(floor.__file__)).parent
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".toml")):
            state.update(path.read_bytes())
    return state.digest()
