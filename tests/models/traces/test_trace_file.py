"""Trace files as users name them: plain, gzip, in archives; read in pieces, named in messages, damaged in one line."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from slackswap.hardware.input_error import InputError
from slackswap.models.traces import trace_file
from slackswap.models.traces.trace_file import TraceFile, as_trace_file, open_trace_files, problem_name

# Longer than a piece, and not the same everywhere: a piece that comes twice or not at all is seen.
LONG = b"".join(b"%09d\n" % i for i in range(250_000))


def archive_of(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]  # the mode is one of the literals
        for name, content in members.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return path


def test_a_plain_and_a_packed_file_are_read_in_pieces(tmp_path: Path) -> None:
    for content in (LONG, gzip.compress(LONG, 1)):
        path = tmp_path / "trace.anything"
        path.write_bytes(content)
        (file,) = open_trace_files(path)
        pieces = list(file.chunks())
        assert b"".join(pieces) == LONG == file.read()
        assert max(map(len, pieces)) <= 4 << 20
        assert len(pieces) > 1
        assert file.start() == LONG[:4096]
        assert (file.source, file.name) == (str(path), "trace.anything")


def test_content_in_memory_is_a_file_too() -> None:
    file = as_trace_file(LONG, "step 3")
    assert b"".join(file.chunks()) == LONG == file.read()
    assert max(map(len, file.chunks())) == 1 << 20
    assert file.start() == LONG[:4096]
    assert file.source == "step 3"
    assert as_trace_file(file) is file
    assert as_trace_file("a/b.json").path == Path("a/b.json")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_the_files_of_an_archive_are_read_without_unpacking_it(tmp_path: Path, mode: str) -> None:
    members = {
        "run/first.json": LONG,
        "run/second.json.gz": gzip.compress(b"[2]"),
        "run/empty": b"",
        "run/.hidden": b"x",
    }
    path = archive_of(tmp_path / "run.tgz", members, mode)
    first, second = open_trace_files(path)
    assert first.source == f"{path}:run/first.json"
    assert (first.name, second.name) == ("first.json", "second.json.gz")
    assert b"".join(first.chunks()) == LONG
    assert second.read() == b"[2]"  # packed a second time
    assert second.start() == b"[2]"
    assert first.start() == LONG[:4096]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["run.tgz"]


def test_folders_and_links_of_an_archive_are_no_files(tmp_path: Path) -> None:
    path = tmp_path / "run.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
    with pytest.raises(InputError, match="is an archive without files"):
        open_trace_files(path)


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "run.tar", {"a.json": b"[]"})
    with pytest.raises(InputError, match=r"run\.tar:b\.json: is no regular file of the archive"):
        TraceFile(path, "b.json").read()


def test_an_archive_that_is_torn_inside_of_a_member_is_one_line(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "run.tar", {"a.json": LONG})
    path.write_bytes(path.read_bytes()[: 1 << 20])
    with pytest.raises(InputError) as caught:
        open_trace_files(path)[0].read()
    assert "is a torn or corrupt tar archive" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_packed_member_that_is_torn_is_named(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "run.tar", {"a.json.gz": gzip.compress(LONG)[:1000]})
    (file,) = open_trace_files(path)
    with pytest.raises(InputError, match=r"run\.tar:a\.json\.gz: is torn gzip: the data ends at offset 1000"):
        file.read()


def test_torn_gzip_around_an_archive_is_one_line(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "run.tgz", {"a.json": LONG}, "w:gz")
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match="torn gzip") as caught:
        open_trace_files(path)[0].read()
    assert len(str(caught.value).splitlines()) == 1


def test_an_archive_of_very_many_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive_of(tmp_path / "run.tar", {f"{i}.json": b"[]" for i in range(4)})
    assert len(open_trace_files(path)) == 4
    monkeypatch.setattr(trace_file, "_MAX_MEMBERS", 3)
    with pytest.raises(InputError, match="of more than 3 files: unpack it"):
        open_trace_files(path)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("run7.rank3.pt.trace.json.gz", "run7.rank3"),
        ("step.json", "step"),
        ("resnet.tar.gz", "resnet"),
        ("v1.5", "v1.5"),
    ],
)
def test_problems_are_called_after_their_file(name: str, shown: str) -> None:
    assert problem_name(TraceFile(Path("folder") / name)) == shown
