"""Files that a user gives: whole or refused, with the file's name and what to do."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap.hardware.input_error import InputError
from slackswap.models.input_file import read_input_bytes

CONTENT = b"node1 -- Input\n" * 10


def refusal(path: Path | str, limit_bytes: int = 1 << 20) -> str:
    """Return the rule by which the file is refused."""
    with pytest.raises(InputError) as refused:
        read_input_bytes(path, limit_bytes=limit_bytes)
    assert refused.value.source == str(path)
    return refused.value.rule


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "input"


def test_plain_file(file: Path) -> None:
    file.write_bytes(CONTENT)
    assert read_input_bytes(file) == CONTENT
    assert read_input_bytes(str(file)) == CONTENT


def test_gzip_is_unpacked_whatever_the_suffix(file: Path) -> None:
    for name in ("input.txt", "input.json.gz", "input"):
        path = file.with_name(name)
        path.write_bytes(gzip.compress(CONTENT))
        assert read_input_bytes(path) == CONTENT


def test_plain_file_with_a_gz_suffix(file: Path) -> None:
    path = file.with_name("input.gz")
    path.write_bytes(CONTENT)
    assert read_input_bytes(path) == CONTENT


def test_several_gzip_members_are_one_file(file: Path) -> None:
    # `cat a.gz b.gz` unpacks to a then b; an empty member in between adds nothing.
    file.write_bytes(gzip.compress(b"first ") + gzip.compress(b"") + gzip.compress(b"second"))
    assert read_input_bytes(file) == b"first second"


def test_zeros_after_gzip_are_padding(file: Path) -> None:
    file.write_bytes(gzip.compress(CONTENT) + bytes(511))
    assert read_input_bytes(file) == CONTENT


def test_other_bytes_after_gzip_are_refused(file: Path) -> None:
    packed = gzip.compress(CONTENT)
    file.write_bytes(packed + b"\0\0rest")
    assert refusal(file) == f"has bytes after its gzip data, at offset {len(packed)}"


def test_missing_file(file: Path) -> None:
    assert refusal(file) == "cannot be read: no such file or directory"
    assert refusal(file / "below") == "cannot be read: no such file or directory"


def test_folder(tmp_path: Path) -> None:
    assert refusal(tmp_path) == "cannot be read: is a directory"


def test_path_below_a_file(file: Path) -> None:
    file.write_bytes(CONTENT)
    assert refusal(file / "below") == "cannot be read: not a directory"


def test_path_with_a_nul(file: Path) -> None:
    assert refusal(f"{file}\0").startswith("is not a path: ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_file(file: Path) -> None:
    file.write_bytes(CONTENT)
    file.chmod(0)
    assert refusal(file) == "cannot be read: permission denied"


@pytest.mark.parametrize("content", [b"", b" \r\n\t\n", gzip.compress(b"", mtime=0), gzip.compress(b"\n", mtime=0)])
def test_empty_file(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    assert refusal(file) == "is empty"


def test_git_lfs_pointer(file: Path) -> None:
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 130\n")
    assert refusal(file) == "is a Git LFS pointer, not the data: run `git lfs pull` where it came from"


def test_torn_gzip_names_the_offset(file: Path) -> None:
    torn = gzip.compress(CONTENT)[:-5]
    file.write_bytes(torn)
    rule = f"is torn gzip: the data ends at offset {len(torn)} before the stream does; copy the file again"
    assert refusal(file) == rule


def test_torn_second_member(file: Path) -> None:
    torn = gzip.compress(CONTENT) + gzip.compress(CONTENT)[:15]
    file.write_bytes(torn)
    assert refusal(file).startswith(f"is torn gzip: the data ends at offset {len(torn)} ")


def test_corrupt_gzip(file: Path) -> None:
    # Each gzip member ends with a checksum and a length: a wrong one is refused, and so is a wrong method in its head.
    packed = gzip.compress(CONTENT)
    for at in (2, len(packed) - 8, len(packed) - 1):
        file.write_bytes(packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :])
        assert refusal(file).startswith("is corrupt gzip near offset 0: ")


def test_limit_counts_unpacked_bytes(file: Path) -> None:
    # 150 bytes of content: a limit of 150 takes them, 149 does not, packed or plain.
    assert len(CONTENT) == 150
    for raw in (CONTENT, gzip.compress(CONTENT)):
        file.write_bytes(raw)
        assert read_input_bytes(file, limit_bytes=150) == CONTENT
    assert refusal(file, 149) == "unpacks to more than the limit of 149 bytes"
    file.write_bytes(CONTENT)
    assert refusal(file, 149) == "has more bytes than the limit of 149"


def test_limit_counts_all_members_together(file: Path) -> None:
    file.write_bytes(gzip.compress(b"12345") * 3)
    assert read_input_bytes(file, limit_bytes=15) == b"12345" * 3
    assert refusal(file, 14) == "unpacks to more than the limit of 14 bytes"


def test_decompression_bomb_stops_at_the_limit(file: Path) -> None:
    # 64 MB of zeros pack to 64 kB; the reader must stop at 1000 bytes, not unpack all and then look.
    file.write_bytes(gzip.compress(bytes(64_000_000)))
    assert file.stat().st_size < 100_000
    tracemalloc.start()
    try:
        assert refusal(file, 1000) == "unpacks to more than the limit of 1000 bytes"
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@given(st.binary(min_size=1, max_size=3000).filter(bytes.strip), st.integers(1, 3))
def test_any_content_survives_packing(tmp_path_factory: pytest.TempPathFactory, content: bytes, n_members: int) -> None:
    file = tmp_path_factory.getbasetemp() / "packed"
    file.write_bytes(gzip.compress(content) * n_members)
    assert read_input_bytes(file) == content * n_members


def test_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    # A named pipe without a writer blocks whoever opens it.
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a pipe or a device"):
        read_input_bytes(pipe)
