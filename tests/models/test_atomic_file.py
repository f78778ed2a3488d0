"""Files are written whole or not at all, and nothing is left behind."""

from __future__ import annotations

import gzip
import os
import stat
from pathlib import Path

import pytest

from slackswap.hardware.input_error import InputError
from slackswap.models import atomic_file
from slackswap.models.atomic_file import write_atomically


def test_content_is_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    for content in (b"first", b"second, longer", b""):
        write_atomically(path, content)
        assert path.read_bytes() == content
    write_atomically(str(path), b"as text")
    assert path.read_bytes() == b"as text"
    assert list(tmp_path.iterdir()) == [path]


def test_gz_gives_the_same_bytes_at_any_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9)
    write_atomically(tmp_path / "first.gz", b"content")
    monkeypatch.setattr("time.time", lambda: 2e9)
    write_atomically(tmp_path / "second.gz", b"content")
    packed = (tmp_path / "first.gz").read_bytes()
    assert packed == (tmp_path / "second.gz").read_bytes()
    assert gzip.decompress(packed) == b"content"


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("plan.json", b"here")
    assert (tmp_path / "plan.json").read_bytes() == b"here"


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    # 0666 without the group's and the others' write bit: what `open` would give, not the 0600 of a temporary file.
    before = os.umask(0o022)
    try:
        write_atomically(tmp_path / "plan.json", b"shared")
        assert os.umask(0o022) == 0o022  # restored
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "plan.json").stat().st_mode) == 0o644


def test_missing_folder(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(InputError) as refused:
        write_atomically(path, b"content")
    assert str(refused.value) == f"{path}: cannot be written: no such file or directory"


def test_target_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "plan.json").mkdir()
    with pytest.raises(InputError, match="cannot be written: is a directory"):
        write_atomically(tmp_path / "plan.json", b"content")
    assert list(tmp_path.iterdir()) == [tmp_path / "plan.json"]


def test_failure_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fdopen", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic_file.os, step, full)  # type: ignore[attr-defined]
            with pytest.raises(InputError, match="cannot be written: no space left on device"):
                write_atomically(path, b"new")
        assert path.read_bytes() == b"old"
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(InputError, match="cannot be written: permission denied"):
            write_atomically(tmp_path / "plan.json", b"content")
    finally:
        tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []
