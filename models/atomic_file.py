"""Writes a file whole or not at all: under a temporary name beside it, then renamed."""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import tempfile
from pathlib import Path

from slackswap.hardware.input_error import InputError


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`; ``.gz`` is compressed, without a time stamp: same input, same bytes.

    Links are followed. What is no regular file, a pipe or a device, is written to and not replaced.

    Raises
    ------
    InputError
        The folder is missing or read-only; nothing is left behind.
    """
    packed = gzip.compress(content, mtime=0) if str(path).endswith(".gz") else content
    try:
        check_writable(path)
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(packed)
        else:
            _replace(target, packed)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise _cannot_be_written(path, error) from None


def check_writable(path: Path | str) -> None:
    """Refuse a path that cannot be written to, before the work whose result it is meant for.

    Raises
    ------
    InputError
        It is a folder, or its folder is missing or read-only.
    """
    try:
        target = Path(path).resolve()
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not target.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        if not os.access(target.parent, os.W_OK) and not (target.exists() and not target.is_file()):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, ValueError, RuntimeError) as error:  # ValueError: a path with a NUL byte
        raise _cannot_be_written(path, error) from None


def _replace(target: Path, content: bytes) -> None:
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name[:200]}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # noqa: PTH101 - mkstemp's 0600 would surprise whoever shares the file
        os.replace(temporary, target)  # noqa: PTH105 - a string from mkstemp
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise


def _cannot_be_written(path: Path | str, error: Exception) -> InputError:
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return InputError(f"cannot be written: {reason.lower()}", source=str(path))
