"""The streaming reader: the same items wherever chunks end, what real writers get wrong, and torn documents."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackswap.hardware.input_error import InputError
from slackswap.models.traces import json_stream
from slackswap.models.traces.json_stream import ItemDecoder, StreamedItem, decode_whole, stream_items
from slackswap.models.traces.trace_file import TraceFile


@dataclass(frozen=True)
class Chunked(TraceFile):
    """A file in memory that comes in chunks which end at `cuts`."""

    cuts: tuple[int, ...] = ()

    def chunks(self) -> Iterator[bytes]:
        assert self.content is not None
        for start, end in itertools.pairwise((0, *sorted(self.cuts), len(self.content))):
            yield self.content[start:end]


def items_of(content: bytes, *cuts: int) -> list[StreamedItem]:
    return list(stream_items(Chunked(Path("t.json"), content=content, cuts=cuts)))


def records_of(content: bytes, *cuts: int) -> list[Any]:
    decoder = ItemDecoder(dict, "t.json")
    return [decoder.decode(item) for item in items_of(content, *cuts)]


def refusal_of(content: bytes, *cuts: int) -> str:
    with pytest.raises(InputError) as caught:
        records_of(content, *cuts)
    assert len(str(caught.value).splitlines()) == 1
    assert caught.value.source == "t.json"
    return str(caught.value)


# ---- chunks ---------------------------------------------------------------------------------------------------------

TRICKY = (
    b'\xef\xbb\xbf {"a\\"b": "x, [ {", "list": [{"name": "q\\\\\\"]}, {", "n": [1, [2]]} , ["y", {}], 3, null, {}],\r\n'
    b' "empty": [], "object": {"deep": {"k": "v"}}, "last": [{"u": "\xc3\xa9\\u00e9"}]} \n'
)
# What stands in the arrays at the top, and as a value of an object there; numbers and strings are no items.
TRICKY_ITEMS = [
    ("list", 0, {"name": 'q\\"]}, {', "n": [1, [2]]}),
    ("list", 1, ["y", {}]),
    ("list", 2, {}),
    ("object", 0, {"k": "v"}),
    ("last", 0, {"u": "éé"}),
]


def read(items: list[StreamedItem]) -> list[tuple[str, int, Any]]:
    return [(item.key, item.index, json.loads(item.text)) for item in items]


def test_a_chunk_may_end_anywhere() -> None:
    whole = items_of(TRICKY)
    assert read(whole) == TRICKY_ITEMS
    for cut in range(len(TRICKY) + 1):
        assert items_of(TRICKY, cut) == whole
    assert items_of(TRICKY, *range(1, len(TRICKY))) == whole  # byte by byte
    for item in whole:
        assert TRICKY[item.offset : item.offset + len(item.text)] == item.text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=6)
    | st.sampled_from(["[", "}", '"', "\\", ",\n", "\r\n"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
ITEMS = st.lists(st.dictionaries(st.text(max_size=4), VALUES, max_size=3), max_size=4)
DOCUMENTS = st.dictionaries(st.text(max_size=5), ITEMS | st.text(max_size=5) | st.integers(), max_size=4)


@given(DOCUMENTS | ITEMS, st.lists(st.integers(0, 300), max_size=12), st.sampled_from([None, 2]), st.booleans())
def test_items_are_those_of_json_wherever_chunks_end(document: Any, cuts: list[int], indent: int, ascii_: bool) -> None:
    content = json.dumps(document, indent=indent, ensure_ascii=ascii_).encode(errors="surrogatepass")
    found = items_of(content, *(min(cut, len(content)) for cut in cuts))
    arrays = document if isinstance(document, dict) else {"": document}
    expected = [
        (key, index, item)
        for key, items in arrays.items()
        if isinstance(items, list)
        for index, item in enumerate(items)
    ]
    # The scanner does not decode escapes in keys: no key of a trace has any.
    plain = [(json.loads(f'"{key}"') if key else "", index, item) for key, index, item in read(found)]
    assert plain == expected


def test_more_items_than_the_scanner_returns_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MAX_SPANS", 3)
    assert [record["i"] for record in records_of(json.dumps([{"i": i} for i in range(20)]).encode())] == list(range(20))


def test_what_does_not_end_is_refused_before_it_fills_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_stream, "_MAX_ITEM_BYTES", 1 << 20)
    endless = b'{"traceEvents": [{"name": "' + b"x" * (3 << 20)
    said = refusal_of(endless, 1 << 20, 2 << 20)
    assert "what starts at offset 17 does not end within 1 MiB" in said


# ---- torn documents ---------------------------------------------------------------------------------------------------


def test_every_proper_prefix_is_truncated_and_says_where() -> None:
    document = b'{"schemaVersion": 1, "traceEvents": [{"name": "a\\"]}", "ts": 1}, {"args": {"x": [1]}}]}'
    assert len(records_of(document)) == 2
    for end in range(1, len(document)):
        said = refusal_of(document[:end])
        assert f"is truncated JSON: it ends at offset {end} before the document does" in said


def test_an_empty_document_and_one_that_is_no_json() -> None:
    assert "is empty" in refusal_of(b" \n ")
    assert "is not JSON" in refusal_of(b"hello {}")
    assert "a bracket closes what no bracket opened, at offset 11" in refusal_of(b'{"a": [{}]}}]', 7)


def test_an_item_that_is_no_json_is_named_with_its_offset() -> None:
    said = refusal_of(b'{"traceEvents": [{"a": 1}, {"a": 1 2}]}')
    assert "$.traceEvents[1]: is not valid JSON in what starts at offset 27" in said
    with pytest.raises(InputError, match=r"\$\[0\]\.ts: expected `int`, got `str`"):
        kind = msgspec.defstruct("Kind", [("ts", int)])
        ItemDecoder(kind, "t.json").decode(items_of(b'[{"ts": "x"}]')[0])


def test_a_small_file_is_decoded_whole_with_the_same_repairs() -> None:
    assert decode_whole(b'{"rate": [inf, -nan, 1]}', dict, "t.json") == {"rate": [None, None, 1]}
    with pytest.raises(InputError, match="is truncated JSON: it ends at offset 5"):
        decode_whole(b'{"a":', dict, "t.json")
    with pytest.raises(InputError, match="is nested too deeply"):
        decode_whole(b"[" * 100_000 + b"]" * 100_000, list, "t.json")
    with pytest.raises(InputError, match=r"\$: expected `object`, got `array`"):
        decode_whole(b"[]", dict, "t.json")


# ---- what real writers get wrong --------------------------------------------------------------------------------------


def events(*lines: str, newline: str = "\n") -> bytes:
    """Events as Kineto writes them: the name on a line of its own, before the arguments."""
    text = "".join(
        f'  {{\n    "ph": "X", "cat": "cpu_op", {line}, "pid": 1, "tid": 1,\n    "ts": 5, "dur": 2,\n'
        '    "args": {\n      "External id": 3\n    }\n  },\n'
        for line in lines
    )
    return (
        (f'{{\n  "traceEvents": [\n{text}  {{"name": "end"}}\n]}}')
        .replace("\n", newline)
        .encode(errors="surrogateescape")
    )


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        pytest.param('"name": "f("a")"', 'f("a")', id="an even number of quotes"),
        pytest.param('"name": "5" disk"', '5" disk', id="an odd number of quotes"),
        pytest.param('"name": "x[""]", "cat": "y"', 'x[""]', id="two quotes side by side"),
        pytest.param('"name": "C:\\Users\\Data\\train.py"', "C:\\Users\\Data\train.py", id="backslashes of Windows"),
        pytest.param('"name": "\\x \\u12"', "\\x \\u12", id="escapes that are none"),
        pytest.param('"name": "a\tb\x01c"', "a b c", id="control characters"),
        pytest.param('"name": "two\nlines"', "two lines", id="a line break"),
        pytest.param('"name": "f(\n[{"', "f( [{", id="a line break before brackets"),
        pytest.param('"name": "caf\udce9"', "caf�", id="bytes that are no UTF-8"),
        pytest.param('"name": "a\\"b\\\\"', 'a"b\\', id="right escapes stay"),
    ],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_names_are_read_as_they_were_meant(written: str, meant: str, newline: str) -> None:
    content = events('"name": "before"', written, '"name": "after"', newline=newline)
    for cuts in ((), tuple(range(1, len(content))), (content.index(b"before") + 60,)):
        names = [record["name"].replace("  ", " ") for record in records_of(content, *cuts)]
        assert names == ["before", meant, "after", "end"]  # a line break of Windows becomes two spaces
    for record in records_of(content)[:3]:
        assert record["args"] == {"External id": 3}


@pytest.mark.parametrize("bare", ["inf", "-inf", "nan", "-nan", "Infinity", "-Infinity", "NaN"])
def test_bare_numbers_that_json_lacks_count_as_not_recorded(bare: str) -> None:
    content = f'[{{"args": {{"memory bandwidth (GB/s)": {bare}, "list": [{bare},{bare}], "name": "inf"}}}}]'
    assert records_of(content.encode()) == [
        {"args": {"memory bandwidth (GB/s)": None, "list": [None, None], "name": "inf"}}
    ]


def test_integers_beyond_64_bits_stay_apart() -> None:
    record = msgspec.defstruct("Record", [("id", int | float | str | None)])
    numbers = [2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
    decoder = ItemDecoder(record, "t.json")
    content = json.dumps([{"id": number} for number in numbers]).encode()
    assert [decoder.decode(item).id for item in items_of(content)] == numbers


def test_an_odd_quote_where_one_line_is_one_event_is_one_clear_error() -> None:
    lines = [json.dumps({"ph": "X", "name": name, "ts": 1, "args": {}}) for name in ("a", "b?c", "d")]
    content = ('{"traceEvents": [\n' + ",\n".join(lines) + "\n]}").replace("?", '"').encode()
    assert "JSON" in refusal_of(content)


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_any_bytes_give_items_or_one_line(rest: bytes, cuts: list[int]) -> None:
    content = b'{"traceEvents": [' + rest
    results = []
    for at in ((), tuple(min(cut, len(content)) for cut in cuts)):
        try:
            results.append([(item.key, item.offset, item.text) for item in items_of(content, *at)])
        except InputError as error:
            assert len(str(error).splitlines()) == 1
            results.append([])
    assert results[0] == results[1]
