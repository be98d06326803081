"""The record: the bytes that a job is."""

from __future__ import annotations

import json
import math

import pytest

from penstock import BadArgument
from penstock.core.record import MAX_RECORD, check_size, encode_body, encode_head, parse_record


def test_the_shortest_record() -> None:
    """A version and an empty line; JSON is named."""
    assert encode_head() == (b"1\n", b"1;c=json\n")


def test_lease_and_ttl_come_first() -> None:
    """Where the scripts look for them; then the codec, then the headers."""
    head, json_head = encode_head(lease_ms=60_000, ttl_ms=1, headers={"a": "b", "c": ""})
    assert head == b"1;l=60000;t=1;h.a=b;h.c=\n"
    assert json_head == b"1;l=60000;t=1;c=json;h.a=b;h.c=\n"
    assert encode_head(ttl_ms=5)[0] == b"1;t=5\n"
    assert encode_head(lease_ms=0, ttl_ms=5)[0] == b"1;l=0;t=5\n"


@pytest.mark.parametrize(
    "text", ["a;b", "a=b", "50%", "x\ny", "\r", "\0", "é", "日本", "a b", "%3B"]
)
def test_headers_are_escaped_where_they_must_be(text: str) -> None:
    """No header breaks the line that holds it, and each comes back."""
    head, _ = encode_head(headers={text: text})
    assert head.count(b"\n") == 1
    assert head.isascii()
    assert parse_record(head + b"body").headers == {text: text}


def test_a_record_is_taken_apart() -> None:
    """Lease, ttl, codec, headers; the body is all after the first line."""
    record = parse_record(b"1;l=5;t=70;c=json;h.a=%0A;h.b=c\n[1]\n2")
    assert (record.lease_ms, record.ttl_ms, record.codec) == (5, 70, "json")
    assert (record.headers, record.raw) == ({"a": "\n", "b": "c"}, b"[1]\n2")


def test_unknown_fields_are_ignored() -> None:
    """A newer writer may say more."""
    record = parse_record(b"1;l=5;z=9;flag;d=x;h.a=b\nbody")
    assert (record.lease_ms, record.headers, record.body()) == (5, {"a": "b"}, b"body")


def test_an_unknown_codec_is_told_when_the_body_is_asked_for() -> None:
    """The raw bytes are there all the same."""
    record = parse_record(b"1;c=cbor\n\xa0")
    assert record.raw == b"\xa0"
    with pytest.raises(ValueError, match="unknown codec 'cbor'"):
        record.body()


def test_json_that_is_none() -> None:
    """A ValueError when the body is asked for, the bytes in reach."""
    record = parse_record(b"1;c=json\nno json")
    with pytest.raises(ValueError, match="Expecting value"):
        record.body()
    assert record.raw == b"no json"


@pytest.mark.parametrize("body", [None, "text", 5, [1, {"a": None}], {"b": [1.5, True]}, "日本"])
def test_json_is_compact_and_readable(body: object) -> None:
    """No blanks, and text as it is."""
    raw, is_json = encode_body(body)
    assert is_json
    assert json.loads(raw) == body
    assert b" " not in raw
    assert b"\\u" not in raw


@pytest.mark.parametrize("body", [b"", b"\xff", bytearray(b"x"), memoryview(b"xyz")[1:2]])
def test_bytes_are_no_json(body: bytes) -> None:
    """They pass as they are."""
    assert encode_body(body) == (bytes(body), False)


@pytest.mark.parametrize("body", [math.nan, math.inf, {1}, object(), {(1,): 2}, "\ud800", 1j])
def test_what_json_can_not_say(body: object) -> None:
    """Is refused with the reason."""
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
    """Are refused at any depth: they would come back as others."""
    with pytest.raises(BadArgument, match=r"the key \S+ must be a str") as caught:
        encode_body(body)
    assert caught.value.argument == "body"


def test_keys_that_are_a_kind_of_text() -> None:
    """Pass."""

    class Text(str):
        __slots__ = ()

    assert encode_body([{Text("a"): {"": 1}}, (), {}, "{"])[0] == b'[{"a":{"":1}},[],{},"{"]'


def test_the_largest_record() -> None:
    """Below 512 MiB, head and body together."""
    check_size(MAX_RECORD - 1)
    assert MAX_RECORD == 1 << 29
    with pytest.raises(BadArgument, match=r"body='<536870912 bytes>': .*below 512 MiB"):
        check_size(MAX_RECORD)


@pytest.mark.parametrize(
    "field, value", [("x", None), ("", None), ("12abc", 12), ("5000", 5000), ("\u0663", None)]
)
def test_a_number_as_the_scripts_read_it(field: str, value: int | None) -> None:
    """Digits at its start; without any the record says nothing, as for the scripts."""
    record = parse_record(f"1;l={field};t={field}\n".encode())
    assert (record.lease_ms, record.ttl_ms) == (value, value)
