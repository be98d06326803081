"""Codecs of a client's own: names, what they make, and what they raise."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from penstock import AsyncPenstock, BadArgument, Codec, Penstock, UndecodableBody
from penstock.core.record import encode_body, encode_head, parse_record

UPPER = Codec("x-upper", lambda body: body.upper().encode(), lambda raw: raw.decode().lower())
LINES = Codec("json", lambda body: json.dumps(body, indent=1).encode(), json.loads)


@pytest.mark.parametrize("name", ["json", "x-a", "x-msgpack", "x-0", "x-a.b_c-d", "x-" + "a" * 62])
def test_names(name: str) -> None:
    """Are kept with each job."""
    codec = Codec(name, bytes, bytes)
    record = parse_record(encode_head(codec=codec.name)[1] + b"z")
    assert (record.codec, record.raw) == (name, b"z")
    head = encode_head(codec=name, lease_ms=5, headers={"a": "b"})[1]
    assert head == f"1;l=5;c={name};h.a=b\n".encode()


@pytest.mark.parametrize(
    "name", ["", "x-", "msgpack", "X-a", "x-A", "x-a;", "x-a\n", "x-" + "a" * 63, 5]
)
def test_names_that_can_not_be(name: Any) -> None:
    """Would be another field, or one that the protocol may use some day."""
    with pytest.raises(BadArgument, match="name="):
        Codec(name, bytes, bytes)


def test_functions_that_are_none() -> None:
    """Each is named."""
    bad: Any = "json.dumps"
    with pytest.raises(BadArgument, match="encode="):
        Codec("json", bad, bytes)
    with pytest.raises(BadArgument, match="decode="):
        Codec("json", bytes, bad)


def test_bodies_through_a_codec() -> None:
    """Bytes pass untouched; the rest is the codec's, and what it can't do is a typed error."""
    assert encode_body("ada", UPPER) == (b"ADA", True)
    assert encode_body(b"ada", UPPER) == (b"ada", False)
    assert parse_record(b"1;c=x-upper\nADA").body(UPPER) == "ada"
    assert parse_record(b"1\nADA").body(UPPER) == b"ADA"
    assert parse_record(b'1;c=json\n"ADA"').body(UPPER) == "ADA"
    with pytest.raises(BadArgument, match="body=5: codec x-upper: 'int' object") as caught:
        encode_body(5, UPPER)
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(BadArgument, match="codec x-text returned str: it must return bytes"):
        encode_body(5, Codec("x-text", str, str))  # type: ignore[arg-type]  # what is tested
    with pytest.raises(UndecodableBody, match=r"codec x-upper: .*utf-8"):
        parse_record(b"1;c=x-upper\n\xff").body(UPPER)
    for codec in (None, LINES):
        with pytest.raises(UndecodableBody, match=r"'x-upper': pass it as Penstock\(codec"):
            parse_record(b"1;c=x-upper\nADA").body(codec)


@pytest.mark.parametrize("kind", [Penstock, AsyncPenstock])
@pytest.mark.parametrize("codec", ["json", json, object()])
def test_what_is_no_codec(kind: Any, codec: Any) -> None:
    """Is refused when the client is made."""
    with pytest.raises(BadArgument, match="codec="):
        kind(codec=codec)


def test_a_codec_can_be_pickled() -> None:
    """If its functions can."""
    made = Codec("x-int", bytes, bytes)
    assert pickle.loads(pickle.dumps(made)) == made
