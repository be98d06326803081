"""Key names."""

from __future__ import annotations

import pytest

from penstock import BadArgument
from penstock.core.troubles import TYPES
from penstock.wire.keys import (
    KINDS,
    STAGING,
    QueueKeys,
    check_prefix,
    node_key,
    queue_crc,
    registry_key,
    tag,
)


def test_the_names_of_a_queues_keys() -> None:
    """A key has prefix, hash tag and kind."""
    keys = QueueKeys("emails")
    assert keys["ready"] == b"penstock:{emails}:ready"
    assert keys.of(("wake", "space")) == (b"penstock:{emails}:wake", b"penstock:{emails}:space")
    assert len(keys.names) == len(set(keys.names.values())) == len(KINDS + STAGING) == 23
    assert set(TYPES) == set(KINDS)
    assert (registry_key("p"), node_key("p")) == (b"p:queues", b"p:node")


@pytest.mark.parametrize(
    "name, expected",
    [
        ("a b/ü:", "a b/ü:"),
        ("{", "%7B"),
        ("}", "%7D"),
        ("%7B", "%257B"),
        ("a{b}c", "a%7Bb%7Dc"),
        ("\n\x7f", "%0A%7F"),
    ],
)
def test_characters_that_would_break_the_tag_are_encoded(name: str, expected: str) -> None:
    """Braces, percent signs and control bytes are encoded; other characters are not."""
    assert tag(name) == expected
    assert QueueKeys(name, "x:y")["held"] == f"x:y:{{{expected}}}:held".encode()


def test_no_two_names_share_a_tag() -> None:
    """Different names have different tags, as the encoding is reversible."""
    names = ["{", "}", "%", "%7B", "%257B", "{}", "%7B%7D", "a", "\x01", "%01"]
    assert len({tag(name) for name in names}) == len(names)


@pytest.mark.parametrize("name", ["", "\0", "a\0", "x" * 1025, "ü" * 513, "\ud800", None, b"q", 5])
def test_invalid_queue_names(name: object) -> None:
    """An invalid queue name is refused."""
    with pytest.raises(BadArgument, match="queue="):
        QueueKeys(name)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("prefix", ["", "{", "}", "%", "\n", "x" * 101, None, b"p", "\ud800"])
def test_invalid_prefixes(prefix: object) -> None:
    """An invalid prefix, such as one with braces, is refused."""
    with pytest.raises(BadArgument, match="prefix="):
        check_prefix(prefix)


def test_the_checksum_of_a_name() -> None:
    """The checksum is the CRC-32 of the name's UTF-8 bytes, as in ids."""
    assert queue_crc("123456789") == 0xCBF43926
    assert queue_crc("ü") == 0x63D969D5
