"""Reads the bytes of a file that a user gave: plain or gzip, whole or refused."""

from __future__ import annotations

import contextlib
import stat
import zlib
from pathlib import Path

from slackswap.hardware.input_error import InputError

GZIP_MAGIC = b"\x1f\x8b"
GIT_LFS_POINTER = b"version https://git-lfs"
DEFAULT_LIMIT_BYTES = 8 << 30
_CHUNK_BYTES = 1 << 20


def read_input_bytes(path: Path | str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
    """Return the content of a file, unpacked if it starts with the gzip magic, whatever its suffix.

    Parameters
    ----------
    path : path to a regular file
    limit_bytes : int
        The most bytes that the unpacked content may have; a guard against decompression bombs.

    Raises
    ------
    InputError
        The file is missing, unreadable, empty, a Git LFS pointer, torn or corrupt gzip, or too large.
        The message names the file and, for torn gzip, the offset.
    """
    source = str(path)
    raw = _read_raw(Path(path))
    if raw.startswith(GIT_LFS_POINTER):
        raise InputError("is a Git LFS pointer, not the data: run `git lfs pull` where it came from", source=source)
    content = _gunzip(raw, source, limit_bytes) if raw.startswith(GZIP_MAGIC) else raw
    if len(content) > limit_bytes:
        raise InputError(f"has {len(content)} bytes, more than the limit of {limit_bytes}", source=source)
    if not content.strip():
        raise InputError("is empty", source=source)
    return content


def read_input_start(path: Path | str, n_bytes: int = 4096) -> bytes:
    """Return up to the first `n_bytes` of a file's unpacked content, to tell what kind of file it is.

    What is damaged may return less: whoever reads the file whole says what is wrong with it.

    Raises
    ------
    InputError
        The file is missing or cannot be read.
    """
    raw = _read_raw(Path(path), n_bytes)
    if not raw.startswith(GZIP_MAGIC):
        return raw
    with contextlib.suppress(zlib.error):
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(raw, n_bytes)
    return b""


def _read_raw(path: Path, n_bytes: int = -1) -> bytes:
    """Read a file as it lies on disk, or its first `n_bytes`."""
    try:
        _refuse_endless(path)
        with path.open("rb") as file:
            return file.read(n_bytes)
    except OSError as error:
        raise InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", source=str(path)) from None
    except InputError:
        raise
    except ValueError as error:  # a path with a NUL byte
        raise InputError(f"is not a path: {error}", source=str(path)) from None


def _refuse_endless(path: Path) -> None:
    """Refuse what is no regular file: a pipe or a device might have no end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError("is a pipe or a device: save what it gives to a file", source=str(path))


def _gunzip(raw: bytes, source: str, limit_bytes: int) -> bytes:
    """Unpack every gzip member of `raw`; refuse torn, corrupt and oversized streams."""
    pieces: list[bytes] = []
    size_bytes, offset = 0, 0
    while offset < len(raw):
        if not raw.startswith(GZIP_MAGIC, offset):
            if raw[offset:].strip(b"\0"):
                raise InputError(f"has bytes after its gzip data, at offset {offset}", source=source)
            break  # zero padding, as tape and tar tools leave it
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            chunk = raw[offset : offset + _CHUNK_BYTES]
            if not chunk:
                raise InputError(
                    f"is torn gzip: the data ends at offset {len(raw)} before the stream does; copy the file again",
                    source=source,
                )
            try:
                piece = member.decompress(chunk, limit_bytes + 1 - size_bytes)
            except zlib.error as error:
                raise InputError(f"is corrupt gzip near offset {offset}: {error}", source=source) from None
            pieces.append(piece)
            size_bytes += len(piece)
            if size_bytes > limit_bytes:
                raise InputError(f"unpacks to more than the limit of {limit_bytes} bytes", source=source)
            offset += len(chunk) - len(member.unconsumed_tail) - len(member.unused_data)
    return b"".join(pieces)
