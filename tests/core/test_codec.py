"""Codecs of a client: names, encoding and errors."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest

from penstock import AsyncPenstock, BadArgument, Codec, Penstock, UndecodableBody
from penstock.core.jobs.record import encode_body, encode_head, parse_record

UPPER = Codec("x-upper", lambda body: body.upper().encode(), lambda raw: raw.decode().lower())
LINES = Codec("json", lambda body: json.dumps(body, indent=1).encode(), json.loads)


@pytest.mark.parametrize("name", ["json", "x-a", "x-msgpack", "x-0", "x-a.b_c-d", "x-" + "a" * 62])
def test_names(name: str) -> None:
    """A codec's name is stored with each job."""
    codec = Codec(name, bytes, bytes)
    record = parse_record(encode_head(codec=codec.name)[1] + b"z")
    assert (record.codec, record.raw) == (name, b"z")
    head = encode_head(codec=name, lease_ms=5, headers={"a": "b"})[1]
    assert head == f"1;l=5;c={name};h.a=b\n".encode()


@pytest.mark.parametrize(
    "name", ["", "x-", "msgpack", "X-a", "x-A", "x-a;", "x-a\n", "x-" + "a" * 63, 5]
)
def test_invalid_names_of_codecs(name: Any) -> None:
    """A name is refused if it would be another field or is reserved by the protocol."""
    with pytest.raises(BadArgument, match="name="):
        Codec(name, bytes, bytes)


def test_invalid_functions() -> None:
    """An argument that is not a function is refused by name."""
    bad: Any = "json.dumps"
    with pytest.raises(BadArgument, match="encode="):
        Codec("json", bad, bytes)
    with pytest.raises(BadArgument, match="decode="):
        Codec("json", bytes, bad)


def test_bodies_through_a_codec() -> None:
    """Bytes are not encoded; for other bodies errors of the codec become typed errors."""
    assert encode_body("ada", UPPER) == (b"ADA", True)
    assert encode_body(b"ada", UPPER) == (b"ada", False)
    assert parse_record(b"1;c=x-upper\nADA").body(UPPER) == "ada"
    assert parse_record(b"1\nADA").body(UPPER) == b"ADA"
    assert parse_record(b'1;c=json\n"ADA"').body(UPPER) == "ADA"
    with pytest.raises(BadArgument, match="body=5: codec x-upper: 'int' object") as caught:
        encode_body(5, UPPER)
    assert isinstance(caught.value.__cause__, AttributeError)
    with pytest.raises(BadArgument, match="codec x-text returned str: it must return bytes"):
        encode_body(5, Codec("x-text", str, str))  # type: ignore[arg-type]  # on purpose
    with pytest.raises(UndecodableBody, match=r"codec x-upper: .*utf-8"):
        parse_record(b"1;c=x-upper\n\xff").body(UPPER)
    for codec in (None, LINES):
        with pytest.raises(UndecodableBody, match=r"'x-upper': pass it as Penstock\(codec"):
            parse_record(b"1;c=x-upper\nADA").body(codec)


@pytest.mark.parametrize("kind", [Penstock, AsyncPenstock])
@pytest.mark.parametrize("codec", ["json", json, object()])
def test_invalid_codecs(kind: Any, codec: Any) -> None:
    """An invalid codec is refused when the client is constructed."""
    with pytest.raises(BadArgument, match="codec="):
        kind(codec=codec)


def test_a_codec_can_be_pickled() -> None:
    """A codec can be pickled if its functions can."""
    made = Codec("x-int", bytes, bytes)
    assert pickle.loads(pickle.dumps(made)) == made
