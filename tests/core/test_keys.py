"""Key names."""

from __future__ import annotations

import pytest

from penstock import BadArgument
from penstock.core.calls.troubles import KEY_TYPES
from penstock.wire.keys import (
    KEY_KINDS,
    LASTING_KINDS,
    QueueKeys,
    check_prefix,
    node_key,
    partition_name,
    queue_crc,
    registry_entry,
    registry_key,
    tag,
)


def test_the_names_of_a_queues_keys() -> None:
    """A key has prefix, hash tag and kind."""
    keys = QueueKeys("emails")
    assert keys["ready"] == b"penstock:{emails}:ready"
    assert keys.of(("wake", "space")) == (b"penstock:{emails}:wake", b"penstock:{emails}:space")
    assert len(keys.names) == len(set(keys.names.values())) == len(KEY_KINDS + LASTING_KINDS) == 27
    assert set(KEY_TYPES) == set(KEY_KINDS)
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


@pytest.mark.parametrize("name", ["emails", partition_name("emails", 3)])
def test_an_entry_of_the_registry(name: str) -> None:
    """An entry has checksum and epoch, and the name of a queue or of a partition."""
    field = f"{queue_crc(name):08x}1f2e3d4c".encode()
    assert registry_entry(field, name.encode()) == (name, "1f2e3d4c")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025, "q\0/003-zzz", "q\0/300-aaa"])
def test_an_entry_that_names_no_queue(name: str) -> None:
    """Other clients write the registry, so a reader leaves out what is no name of a queue."""
    field = f"{queue_crc(name):08x}1f2e3d4c".encode()
    assert registry_entry(field, name.encode()) is None


@pytest.mark.parametrize("field", [b"", b"\xff", b"4c81e8521f2e3d4cff", b"000000001f2e3d4c"])
def test_an_entry_with_another_field(field: bytes) -> None:
    """The field is no checksum and epoch, or the checksum of another name."""
    assert registry_entry(field, b"emails") is None
