"""Reads the bytes of a file that a user gave: plain or gzip, whole or refused."""

from __future__ import annotations

import contextlib
import stat
import zlib
from collections.abc import Iterator
from pathlib import Path

from slackswap.hardware.input_error import InputError

GZIP_MAGIC = b"\x1f\x8b"
GIT_LFS_POINTER = b"version https://git-lfs"
DEFAULT_LIMIT_BYTES = 8 << 30
_CHUNK_BYTES = 1 << 18
# One chunk of a bomb unpacks to a thousand times its size: it comes in pieces.
_MAX_PIECE_BYTES = 4 << 20


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
    content = b"".join(read_input_chunks(path, limit_bytes=limit_bytes))
    if not content.strip():
        raise InputError("is empty", source=str(path))
    return content


def read_input_chunks(path: Path | str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[bytes]:
    """Yield the content that `read_input_bytes` returns in pieces of about a megabyte, without holding all of it.

    Raises
    ------
    InputError
        As `read_input_bytes`, when the damaged place is reached.
    """
    source = str(path)
    raw = _raw_chunks(Path(path))
    first = next(raw, b"")
    if first.startswith(GIT_LFS_POINTER):
        raise InputError("is a Git LFS pointer, not the data: run `git lfs pull` where it came from", source=source)
    if first.startswith(GZIP_MAGIC):
        yield from _gunzip(first, raw, source, limit_bytes)
        return
    size_bytes, chunk = 0, first
    while chunk:
        size_bytes += len(chunk)
        if size_bytes > limit_bytes:
            raise InputError(f"has more bytes than the limit of {limit_bytes}", source=source)
        yield chunk
        chunk = next(raw, b"")
    if not size_bytes:
        raise InputError("is empty", source=source)


def gunzip_chunks(raw: Iterator[bytes], source: str, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> Iterator[bytes]:
    """Yield the unpacked content of a gzip stream, such as a file inside of an archive.

    Raises
    ------
    InputError
        The data is torn, corrupt or too large, when that place is reached.
    """
    return _gunzip(next(raw, b""), raw, source, limit_bytes)


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


def _read_raw(path: Path, n_bytes: int) -> bytes:
    """Read the first `n_bytes` of a file as it lies on disk."""
    try:
        _refuse_endless(path)
        with path.open("rb") as file:
            return file.read(n_bytes)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _raw_chunks(path: Path) -> Iterator[bytes]:
    """Yield a file as it lies on disk in pieces."""
    try:
        _refuse_endless(path)
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError | ValueError) -> InputError:
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError):
        return InputError(f"cannot be read: {(error.strerror or str(error)).lower()}", source=str(path))
    return InputError(f"is not a path: {error}", source=str(path))  # a path with a NUL byte


def _refuse_endless(path: Path) -> None:
    """Refuse what is no regular file: a pipe or a device might have no end."""
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError("is a pipe or a device: save what it gives to a file", source=str(path))


def _gunzip(first: bytes, more: Iterator[bytes], source: str, limit_bytes: int) -> Iterator[bytes]:
    """Unpack every gzip member of a stream; refuse torn, corrupt and oversized ones."""
    member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    size_bytes, offset, chunk = 0, 0, first  # the chunk starts at this offset of the file
    while chunk or not member.eof:
        if member.eof:
            rest = chunk if len(chunk) >= len(GZIP_MAGIC) else chunk + next(more, b"")
            if not rest.startswith(GZIP_MAGIC):
                _refuse_rest(rest, more, offset, source)
                return
            member, chunk = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16), rest
        try:
            piece = member.decompress(chunk, min(limit_bytes + 1 - size_bytes, _MAX_PIECE_BYTES))
        except zlib.error as error:
            raise InputError(f"is corrupt gzip near offset {offset}: {error}", source=source) from None
        # A limited call may leave output inside of zlib, which an empty chunk brings out.
        if not (chunk or piece or member.eof):
            raise InputError(
                f"is torn gzip: the data ends at offset {offset} before the stream does; copy the file again",
                source=source,
            )
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise InputError(f"unpacks to more than the limit of {limit_bytes} bytes", source=source)
        rest = member.unused_data if member.eof else member.unconsumed_tail
        offset += len(chunk) - len(rest)
        chunk = rest or next(more, b"")
        if piece:
            yield piece


def _refuse_rest(rest: bytes, more: Iterator[bytes], offset: int, source: str) -> None:
    """Refuse what stands behind the last gzip member, apart from zero padding, as tape and tar tools leave it."""
    while rest:
        if rest.strip(b"\0"):
            raise InputError(f"has bytes after its gzip data, at offset {offset}", source=source)
        rest = next(more, b"")
