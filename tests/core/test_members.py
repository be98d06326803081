"""The list of nodes, and how addresses are written."""

from __future__ import annotations

import fakeredis
import pytest
import redis

from penstock.core import members
from penstock.core.members import Entry
from penstock.errors import BadArgument


@pytest.mark.parametrize(
    "source, address",
    [
        ("redis://h:6379", "redis://h:6379/0"),
        ("redis://me:secret@h:6379/2?socket_timeout=3", "redis://h:6379/2"),
        ("rediss://:secret@h/", "rediss://h/0"),
        ("redis://h?db=3", "redis://h/3"),
        ("unix:///tmp/s", "unix:///tmp/s?db=0"),
        ("unix://me:secret@/tmp/s?db=4", "unix:///tmp/s?db=4"),
        ("redis+sentinel://me@a:1,b:2/service/1", "redis+sentinel://a:1,b:2/service/1"),
        ("nonsense", ""),
        (redis.Redis(host="h", port=5, db=2, password="secret"), "redis://h:5/2"),
        (redis.Redis(host="h", ssl=True), "rediss://h:6379/0"),
        (redis.Redis(unix_socket_path="/tmp/s"), "unix:///tmp/s?db=0"),
        (fakeredis.FakeRedis(), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_an_address_tells_nothing_of_who_may(source: object, address: str) -> None:
    """Only where it is; and nothing where nobody else could get to."""
    assert members.address_of(source) == address
    if address.startswith("redis://"):
        assert members.address_of(address) == address


@pytest.mark.parametrize(
    "source, url",
    [
        ("redis://h:1/0", "redis://new:6379/2"),
        ("redis://me:se%2Fcret@h:1/0?socket_timeout=3&db=9",
         "redis://me:se%2Fcret@new:6379/2?socket_timeout=3"),
        (redis.Redis(username="me", password="se/cret"), "redis://me:se%2Fcret@new:6379/2"),
        (redis.Redis(), "redis://new:6379/2"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_a_learned_node_is_reached_as_the_others(source: object, url: str) -> None:
    """With the name, password and options of a source that the user gave."""
    assert members.joined("redis://new:6379/2", source) == url


def test_the_youngest_entry_counts() -> None:
    """Of each node, whichever list it is in; what nobody understands is left out."""
    lists = [
        {"a": "5 redis://a/0", "b": "7 ", "c": "nonsense"},
        {"a": "6 redis://a2/0", "b": "6 redis://b/0", "d": "1 redis://d/0"},
    ]
    assert members.merged_members(lists) == {
        "a": Entry(6, "redis://a2/0"),
        "b": Entry(7, ""),
        "d": Entry(1, "redis://d/0"),
    }
    assert str(Entry(6, "redis://a/0")) == "6 redis://a/0"
    assert members.read_entry("-1 x") is None


@pytest.mark.parametrize("value", ["", "host:6379", 5, None, "redis://h#x"])
def test_what_is_no_url(value: object) -> None:
    """Is refused before anything is written."""
    with pytest.raises(BadArgument):
        members.check_url("url", value)
