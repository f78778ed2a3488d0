"""A trace file as a user names it: plain or gzip, alone or in a tar archive, read whole or as a stream of chunks."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import (
    DEFAULT_LIMIT_BYTES,
    GZIP_MAGIC,
    gunzip_chunks,
    read_input_bytes,
    read_input_chunks,
    read_input_start,
)

_TAR_MAGIC = b"ustar"
_TAR_MAGIC_OFFSET = 257
_START_BYTES = 4096
_PIECE_BYTES = 1 << 20
_SUFFIXES = frozenset({".gz", ".tar", ".tgz", ".json", ".et", ".trace", ".pt", ".log", ".config", ".chakra"})
_MAX_MEMBERS = 10_000


@dataclass(frozen=True, slots=True)
class TraceFile:
    """One file, or one file of a tar archive.

    Attributes
    ----------
    path : the file on disk
    member : name of the file inside the archive; empty where the path is the file itself
    content : the unpacked content where it is in memory already, of a recording that was never written
    """

    path: Path
    member: str = ""
    content: bytes | None = field(default=None, repr=False)

    @property
    def source(self) -> str:
        """What error messages call it."""
        return f"{self.path}:{self.member}" if self.member else str(self.path)

    @property
    def name(self) -> str:
        """File name, as metadata record it."""
        return Path(self.member).name if self.member else self.path.name

    def start(self) -> bytes:
        """Return up to the first 4,096 bytes of the unpacked content, to tell what kind of file it is."""
        if self.member or self.content is not None:
            return next(self.chunks(), b"")[:_START_BYTES]
        return read_input_start(self.path, _START_BYTES)

    def read(self, *, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> bytes:
        """Return the whole unpacked content.

        Raises
        ------
        InputError
            See `read_input_bytes`; a member that is torn or missing as well.
        """
        if self.member or self.content is not None:
            return b"".join(self.chunks())
        return read_input_bytes(self.path, limit_bytes=limit_bytes)

    def chunks(self) -> Iterator[bytes]:
        """Yield the unpacked content in pieces of about a megabyte; a file is never in memory as a whole.

        Raises
        ------
        InputError
            As `read` does, when the damaged place is reached.
        """
        if self.content is not None:
            yield from (self.content[at : at + _PIECE_BYTES] for at in range(0, len(self.content), _PIECE_BYTES))
            return
        if not self.member:
            yield from read_input_chunks(self.path)
            return
        with _opened(self.path) as archive:
            # A stream is read in one direction: the member is found on the way.
            stream = next((archive.extractfile(item) for item in archive if item.name == self.member), None)
            if stream is None:
                raise InputError("is no regular file of the archive", source=self.source)
            yield from _member_chunks(stream, self.source)


def open_trace_files(path: Path | str) -> list[TraceFile]:
    """Return the file itself, or every regular file of a tar archive (gzip or not), in the archive's order.

    Raises
    ------
    InputError
        The file cannot be read, or is a torn archive or one without files.
    """
    path = Path(path)
    start = read_input_start(path, _START_BYTES)
    if start[_TAR_MAGIC_OFFSET : _TAR_MAGIC_OFFSET + len(_TAR_MAGIC)] != _TAR_MAGIC:
        return [TraceFile(path)]
    with _opened(path) as archive:
        members = []
        for member in archive:
            if member.isfile() and member.size and not Path(member.name).name.startswith("."):
                members.append(TraceFile(path, member.name))
            if len(members) > _MAX_MEMBERS:
                raise InputError(f"is an archive of more than {_MAX_MEMBERS} files: unpack it", source=str(path))
    if not members:
        raise InputError("is an archive without files", source=str(path))
    return members


def as_trace_file(file: TraceFile | Path | str | bytes, source: str = "") -> TraceFile:
    """Return the trace file that a path names, or one of content in memory that is called `source`."""
    if isinstance(file, TraceFile):
        return file
    return TraceFile(Path(source), content=file) if isinstance(file, bytes) else TraceFile(Path(file))


def problem_name(file: TraceFile) -> str:
    """Return the name of the file, or of its archive, without the suffixes that say what kind of file it is."""
    path = Path(file.path.name)
    while path.suffix in _SUFFIXES:
        path = path.with_suffix("")
    return path.name


class _opened:  # noqa: N801 - reads as the function that it replaces
    """A tar archive, read as a stream: nothing is extracted to disk, and only what is asked for is in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> tarfile.TarFile:
        stream = _ChunkStream(read_input_chunks(self._path))
        try:
            # Streams cannot seek: members are found by reading on.
            self._archive = tarfile.open(fileobj=io.BufferedReader(stream), mode="r|")
        except (tarfile.TarError, EOFError, OSError) as error:
            raise self._torn(error) from None
        return self._archive

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._archive.close()
        if isinstance(error, KeyError | tarfile.TarError | EOFError | OSError | ValueError) and not isinstance(
            error, InputError
        ):
            raise self._torn(error) from None

    def _torn(self, error: BaseException) -> InputError:
        return InputError(f"is a torn or corrupt tar archive: {error}", source=str(self._path))


class _ChunkStream(io.RawIOBase):
    """Chunks as a readable stream."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # typeshed's Buffer is Python 3.12's
        if not self._rest:
            self._rest = next(self._chunks, b"")
        n = min(len(buffer), len(self._rest))
        buffer[:n] = self._rest[:n]
        self._rest = self._rest[n:]
        return n


def _member_chunks(stream: IO[bytes], source: str) -> Iterator[bytes]:
    pieces = iter(lambda: stream.read(_PIECE_BYTES), b"")
    first = next(pieces, b"")
    whole = itertools.chain([first], pieces)
    yield from gunzip_chunks(whole, source) if first.startswith(GZIP_MAGIC) else whole
