"""Raw memory timelines: bytes by category, added as they are signed."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shared_data import shared_file

from slackswap.hardware.input_error import InputError
from slackswap.models.traces.memory_timeline import (
    CATEGORIES,
    MemoryTimeline,
    looks_like_memory_timeline,
    read_memory_timeline,
)

PREEXISTING, CREATE, INCREMENT_VERSION, DESTROY = 1, 2, 3, 4
PARAMETER, INPUT, TEMPORARY, ACTIVATION, GRADIENT = (
    CATEGORIES.index(name) for name in ("PARAMETER", "INPUT", "TEMPORARY", "ACTIVATION", "GRADIENT")
)
NO_CATEGORY = 7

# What each category holds after each row:                 PARAMETER  INPUT  TEMPORARY  ACTIVATION  GRADIENT
ROWS = [
    [-1, PREEXISTING, 500, PARAMETER],  #                  500
    [10, CREATE, 30, INPUT],  #                            500        30
    [20, CREATE, 100, ACTIVATION],  #                      500        30                100
    [30, INCREMENT_VERSION, -100, ACTIVATION],  #          500        30                0
    [30, INCREMENT_VERSION, 100, ACTIVATION],  #           500        30                100
    [40, CREATE, 40, TEMPORARY],  #                        500        30     40         100
    [50, INCREMENT_VERSION, -40, TEMPORARY],  #            500        30     0          100
    [50, INCREMENT_VERSION, 40, ACTIVATION],  #            500        30     0          140
    [60, DESTROY, -100, ACTIVATION],  #                    500        30     0          40
    [70, CREATE, 90, ACTIVATION],  #                       500        30     0          130
    [80, CREATE, 500, GRADIENT],  #                        500        30     0          130         500
    [90, DESTROY, -90, ACTIVATION],  #                     500        30     0          40          500
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "timeline.raw.json"


def read(file: Path, content: object) -> MemoryTimeline:
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_memory_timeline(file)


def refusal(file: Path, content: object) -> str:
    with pytest.raises(InputError) as refused:
        read(file, content)
    assert refused.value.source == str(file)
    return f"{refused.value.place}: {refused.value.rule}".removeprefix(": ")


def test_maxima_by_category(file: Path) -> None:
    # Adding both halves of a new version would give ACTIVATION 330 and more, and the largest row 100.
    timeline = read(file, ROWS)
    assert timeline == MemoryTimeline((500, 0, 30, 40, 140, 500, 0, 0), 12)
    assert timeline.peak_of("ACTIVATION") == 140


def test_a_new_version_in_another_category_moves_the_bytes(file: Path) -> None:
    rows = [[1, CREATE, 7, NO_CATEGORY], [2, INCREMENT_VERSION, -7, NO_CATEGORY], [2, INCREMENT_VERSION, 7, ACTIVATION]]
    assert read(file, [*rows, [3, CREATE, 2, NO_CATEGORY]]).peak_bytes == (0, 0, 0, 0, 7, 0, 0, 7)


@pytest.mark.parametrize("chunk_bytes", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("indent", [None, 1])
def test_rows_across_chunks(file: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, indent: int | None) -> None:
    monkeypatch.setattr("slackswap.models.input_file._CHUNK_BYTES", chunk_bytes)
    text = f" \n{json.dumps(ROWS, indent=indent)} \n "
    assert read(file, text) == MemoryTimeline((500, 0, 30, 40, 140, 500, 0, 0), 12)


@pytest.mark.parametrize("chunk_bytes", [json.dumps(ROWS).index("], [20") + 1, 1000])
def test_pieces_that_end_with_a_row_are_no_long_rows(
    file: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    # The last bracket of a piece is followed by nothing, or is the file's; the rows before it are read all the same.
    monkeypatch.setattr("slackswap.models.input_file._CHUNK_BYTES", chunk_bytes)
    monkeypatch.setattr("slackswap.models.traces.memory_timeline._MAX_ROW_BYTES", 30)
    assert read(file, ROWS).n_rows == 12


def test_gzip(file: Path) -> None:
    file.write_bytes(gzip.compress(json.dumps(ROWS).encode()))
    assert read_memory_timeline(file).n_rows == 12


def test_long_files_are_not_held_in_memory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # 200,000 rows, 3 MB of JSON, unpacked in pieces of 64 KiB; as 200,000 tuples of 88 bytes, they would be 17 MB.
    monkeypatch.setattr("slackswap.models.input_file._MAX_PIECE_BYTES", 1 << 16)
    rows = json.dumps([[1, CREATE, 10, ACTIVATION], [2, DESTROY, -10, ACTIVATION]] * 1000)[1:-1]
    file.write_bytes(gzip.compress(f"[{', '.join([rows] * 100)}]".encode(), 1))
    tracemalloc.start()
    try:
        timeline = read_memory_timeline(file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (timeline.n_rows, timeline.peak_of("ACTIVATION")) == (200_000, 10)
    assert peak_bytes < 3_000_000


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("[]", "has no bytes of category ACTIVATION (4): record with profile(profile_memory=True"),
        (ROWS[:2], "has no bytes of category ACTIVATION (4): "),
        ("{}", "is not a JSON array of rows"),
        ("", "is empty"),
        (" ", "is torn or no JSON after row 0: "),
        ([[1, 0, 5, 4]], "$[0]: is [time, action of 1 to 4, bytes, category of 0 to 7], and only allocations add"),
        ([[1, 5, 5, 4]], "$[0]: is [time, action of 1 to 4"),
        ([*ROWS, [1, CREATE, 5, 8]], "$[12]: is [time, action of 1 to 4"),
        ([[1, CREATE, 5, -1]], "$[0]: is [time, action of 1 to 4"),
        ([[1, CREATE, -5, 4]], "$[0]: is [time, action of 1 to 4"),
        ([*ROWS, [1, PREEXISTING, -5, 4]], "$[12]: is [time, action of 1 to 4"),
        ([*ROWS, [1, DESTROY, 5, 4]], "$[12]: is [time, action of 1 to 4"),  # unsigned bytes
        ([*ROWS, [1, CREATE, 5]], "$[12]: expected `array` of length 4"),
        ([*ROWS, [1, CREATE, 5.5, 4]], "$[12][2]: expected `int`, got `float`"),
        ([*ROWS, "row"], "$[12]: expected `array`, got `str`"),
        ([*ROWS, [1, CREATE, [5], 4]], "$[12][2]: expected `int`, got `array`"),
        ("[[1, 2, 3, 4], [1, 2", "is torn or no JSON after row 1: "),
        ("[[1, 2, 3, 4]", "is torn or no JSON after row 0: "),
        ("[[1, 2, 3, 4]] x", "is torn or no JSON after row 0: "),
        ("[[1, 2, 3, 4] [1, 2, 3, 4]]", "is torn or no JSON after row 0: "),
        ("[[[[[1, 2]]]]", "$[0][0]: expected `int | float`, got `array`"),
    ],
)
def test_what_is_no_timeline_is_refused(file: Path, content: object, rule: str) -> None:
    assert refusal(file, content).startswith(rule)


def test_the_row_that_breaks_a_rule_is_named_across_chunks(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackswap.models.input_file._CHUNK_BYTES", 50)
    assert refusal(file, [*ROWS, [1, CREATE, "5", 4], *ROWS]).startswith("$[12][2]: expected `int`, got `str`")
    assert refusal(file, [*ROWS, [1, DESTROY, 5, 4], *ROWS]).startswith("$[12]: is [time")


def test_a_row_without_end_is_refused(file: Path) -> None:
    assert refusal(file, "[[" + "1" * (3 << 20)) == f"has a row of more than {1 << 20} bytes"


def test_torn_gzip_is_refused(file: Path) -> None:
    file.write_bytes(gzip.compress(json.dumps(ROWS).encode())[:-12])
    with pytest.raises(InputError, match="torn gzip"):
        read_memory_timeline(file)


TEXT = json.dumps(ROWS).encode()


@given(seed=st.integers(0, 1 << 32), chunk_bytes=st.sampled_from([5, 64, 1 << 18]))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files(file: Path, seed: int, chunk_bytes: int) -> None:
    chance = random.Random(seed)
    content = bytearray(TEXT)
    for _ in range(chance.randint(0, 3)):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    if chance.random() < 0.4:
        del content[chance.randrange(len(content)) :]
    file.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackswap.models.input_file._CHUNK_BYTES", chunk_bytes)
        try:
            assert read_memory_timeline(file).peak_of("ACTIVATION") > 0
        except InputError as error:
            assert error.source == str(file)
            assert "\n" not in str(error)


def test_recognition() -> None:
    assert looks_like_memory_timeline(TEXT)
    assert looks_like_memory_timeline(json.dumps(ROWS, indent=2).encode())
    # The export that is not raw is [[times], [sizes]]; a Kineto trace can be a list of events.
    assert not looks_like_memory_timeline(json.dumps([[1, 2, 3, 4, 5, 6], [[0, 1]]]).encode())
    assert not looks_like_memory_timeline(b'[{"ph": "X"}]')
    assert not looks_like_memory_timeline(b"[[1, 9, 3, 4]]")
    assert not looks_like_memory_timeline(b"")


def test_real_timeline() -> None:
    timeline = read_memory_timeline(shared_file("traces/memory_timeline/resnet50_b32.memory_timeline.raw.json.gz"))
    assert timeline.n_rows == 16845
    peaks_mb = {name: timeline.peak_of(name) / 1e6 for name in ("ACTIVATION", "PARAMETER", "INPUT")}
    assert peaks_mb == pytest.approx({"ACTIVATION": 2746.5, "PARAMETER": 102.4, "INPUT": 19.4}, abs=0.05)
