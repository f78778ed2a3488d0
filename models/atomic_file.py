"""Writes a file whole or not at all: under a temporary name beside it, then renamed."""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from pathlib import Path

from slackswap.hardware.input_error import InputError


def write_atomically(path: Path | str, content: bytes) -> None:
    """Write `content` to `path`; a path that ends in ``.gz`` is compressed (without a time stamp: same input, same bytes).

    Raises
    ------
    InputError
        The folder is missing or read-only; nothing is left behind.
    """
    target = Path(path)
    packed = gzip.compress(content, mtime=0) if target.suffix == ".gz" else content
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(packed)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # noqa: PTH101 - mkstemp's 0600 would surprise whoever shares the file
        os.replace(temporary, target)  # noqa: PTH105 - both ends are plain strings here
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL byte
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError(f"cannot be written: {reason.lower()}", source=str(path)) from None
