"""The record: the encoded bytes of a job."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import BadArgument
from penstock.core.enqueuing.prepared import MAX_RECORD_BYTES, check_size, warn_of_size
from penstock.core.jobs.record import (
    encode_body,
    encode_head,
    parse_record,
)


def test_the_shortest_record() -> None:
    """The shortest record is a version and an empty line; JSON is named."""
    assert encode_head() == (b"1\n", b"1;c=json\n")


def test_lease_and_ttl_come_first() -> None:
    """Lease and ttl come first for the scripts, then the codec, then the headers."""
    head, json_head = encode_head(lease_ms=60_000, ttl_ms=1, headers={"a": "b", "c": ""})
    assert head == b"1;l=60000;t=1;h.a=b;h.c=\n"
    assert json_head == b"1;l=60000;t=1;c=json;h.a=b;h.c=\n"
    assert encode_head(ttl_ms=5)[0] == b"1;t=5\n"
    assert encode_head(lease_ms=0, ttl_ms=5)[0] == b"1;l=0;t=5\n"


@pytest.mark.parametrize(
    "text", ["a;b", "a=b", "50%", "x\ny", "\r", "\0", "é", "日本", "a b", "%3B"]
)
def test_headers_are_escaped_where_they_must_be(text: str) -> None:
    """Headers are escaped so that they stay in one line, and are decoded unchanged."""
    head, _ = encode_head(headers={text: text})
    assert head.count(b"\n") == 1
    assert head.isascii()
    assert parse_record(head + b"body").headers == {text: text}


def test_a_record_is_parsed() -> None:
    """A record has lease, ttl, codec and headers in its first line; the body follows."""
    record = parse_record(b"1;l=5;t=70;c=json;h.a=%0A;h.b=c\n[1]\n2")
    assert (record.lease_ms, record.ttl_ms, record.codec) == (5, 70, "json")
    assert (record.headers, record.raw) == ({"a": "\n", "b": "c"}, b"[1]\n2")


def test_unknown_fields_are_ignored() -> None:
    """Unknown fields of a newer writer are ignored."""
    record = parse_record(b"1;l=5;z=9;flag;d=x;h.a=b\nbody")
    assert (record.lease_ms, record.headers, record.body()) == (5, {"a": "b"}, b"body")


def test_an_unknown_codec_raises_on_access_to_the_body() -> None:
    """An unknown codec raises on access to the body; the raw bytes are available."""
    record = parse_record(b"1;c=cbor\n\xa0")
    assert record.raw == b"\xa0"
    with pytest.raises(ValueError, match="unknown codec 'cbor'"):
        record.body()


def test_invalid_json() -> None:
    """Invalid JSON raises ValueError on access to the body; the raw bytes are available."""
    record = parse_record(b"1;c=json\nno json")
    with pytest.raises(ValueError, match="Expecting value"):
        record.body()
    assert record.raw == b"no json"


@pytest.mark.parametrize("body", [None, "text", 5, [1, {"a": None}], {"b": [1.5, True]}, "日本"])
def test_json_is_compact_and_readable(body: object) -> None:
    """JSON has no blanks and no escaped text."""
    raw, is_json = encode_body(body)
    assert is_json
    assert json.loads(raw) == body
    assert b" " not in raw
    assert b"\\u" not in raw


@pytest.mark.parametrize("body", [b"", b"\xff", bytearray(b"x"), memoryview(b"xyz")[1:2]])
def test_bytes_are_stored_unchanged(body: bytes) -> None:
    """Bytes are stored unchanged."""
    assert encode_body(body) == (bytes(body), False)


@pytest.mark.parametrize("body", [math.nan, math.inf, {1}, object(), {(1,): 2}, "\ud800", 1j])
def test_values_that_json_cannot_express(body: object) -> None:
    """A value that JSON can't express is refused with a reason."""
    with pytest.raises(BadArgument, match=r"body=.*can't be written as JSON") as caught:
        encode_body(body)
    assert isinstance(caught.value.__cause__, (TypeError, ValueError))


@pytest.mark.parametrize(
    "body",
    [
        {1: 2},
        {"a": {None: 1}},
        [({"x": [{True: 0}]},)],
        {"a": 1, 2.5: 3},
        {"a": [1, {"b": {0: 0}}]},
    ],
    ids=str,
)
def test_keys_that_json_would_make_text(body: object) -> None:
    """Keys that JSON would turn into text are refused at any depth."""
    with pytest.raises(BadArgument, match=r"the key \S+ must be a str") as caught:
        encode_body(body)
    assert caught.value.argument == "body"


def test_keys_that_are_a_kind_of_text() -> None:
    """Keys of a subclass of str are accepted."""

    class Text(str):
        __slots__ = ()

    assert encode_body([{Text("a"): {"": 1}}, (), {}, "{"])[0] == b'[{"a":{"":1}},[],{},"{"]'


def test_the_largest_record() -> None:
    """A record must be below 512 MiB, header and body together."""
    check_size(MAX_RECORD_BYTES - 1)
    assert MAX_RECORD_BYTES == 1 << 29
    with pytest.raises(BadArgument, match=r"body='<536870912 bytes>': .*below 512 MiB"):
        check_size(MAX_RECORD_BYTES)


def test_a_large_record_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """A job above 1 MB delays other clients: a process says so once."""
    warn_of_size.cache_clear()
    check_size(1_000_000)
    assert not caplog.records
    for size in (1_000_001, 2_000_000):
        check_size(size)
    [record] = caplog.records
    assert "more than 1 MB" in record.getMessage()


@pytest.mark.parametrize(
    "field, value", [("x", None), ("", None), ("12abc", 12), ("5000", 5000), ("\u0663", None)]
)
def test_a_number_as_the_scripts_read_it(field: str, value: int | None) -> None:
    """Numbers are parsed as the scripts do: leading digits; without any the field is absent."""
    record = parse_record(f"1;l={field};t={field}\n".encode())
    assert (record.lease_ms, record.ttl_ms) == (value, value)


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


@given(JSON)
def test_json_is_that_of_the_standard_library(body: Any) -> None:
    """Bodies are encoded by a faster way than `json.dumps`, with the same result."""
    wanted = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    assert encode_body(body) == (wanted.encode(), True)
