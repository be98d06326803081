"""The list of nodes, and the form of their addresses."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
import redis

from penstock.core.calls.config import check_hosts
from penstock.core.nodes import node_list as members
from penstock.core.nodes.node_list import Entry
from penstock.errors import BadArgument, ConfigurationError


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
        (redis.Redis(host="::1", port=5), "redis://[::1]:5/0"),
        (redis.Redis(unix_socket_path="/tmp/s"), "unix:///tmp/s?db=0"),
        (fakeredis.FakeRedis(), ""),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)  # fmt: skip
def test_an_address_has_no_credentials(source: object, address: str) -> None:
    """An address has no password; one that other clients can't use is empty."""
    assert members.address_of(source) == address
    if address.startswith("redis://"):
        assert members.address_of(address) == address


HERE = "redis://new:6379/2"
PLAIN, TLS = "redis://h:1/0", "rediss://h:1/0"
USER = "redis://me:se%2Fcret@h:1/0?socket_timeout=3&db=9"


@pytest.mark.parametrize(
    "source, address, url",
    [
        (PLAIN, HERE, HERE),
        (PLAIN, "rediss://new:6379/2", "rediss://new:6379/2"),
        (PLAIN, "redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        (PLAIN, "unix:///tmp/s?db=3", "unix:///tmp/s?db=3"),
        (PLAIN + "?socket_timeout=3", "unix:///tmp/s?db=3", "unix:///tmp/s?db=3&socket_timeout=3"),
        (TLS + "?ssl_ca_certs=/ca.pem&db=4", "rediss://new:6379/2",
         "rediss://new:6379/2?ssl_ca_certs=/ca.pem"),
        (PLAIN, "redis+sentinel://a:1,b:2/service/1", "redis+sentinel://a:1,b:2/service/1"),
    ],
)  # fmt: skip
def test_a_listed_node_is_reached_with_the_given_options(
    source: str, address: str, url: str
) -> None:
    """A listed node is reached with the options of the given URL; only the place differs."""
    assert members.learned(address, [source], ()) == url


def test_a_listed_node_is_reached_with_the_settings_of_a_client() -> None:
    """A listed node is reached with the client's user, password, timeouts and TLS settings."""
    source = redis.Redis(
        host="h", db=9, username="me", password="se/cret", ssl=True, ssl_ca_certs="/ca.pem",
        ssl_check_hostname=True, socket_timeout=3, protocol=2,
    )  # fmt: skip
    made = members.learned("rediss://new:7000/2", [source], ["new"])
    assert isinstance(made, redis.Redis)
    pool = made.connection_pool
    assert issubclass(pool.connection_class, redis.SSLConnection)
    asked = ("host", "port", "db", "username", "password", "ssl_ca_certs", "ssl_check_hostname",
             "socket_timeout", "protocol")  # fmt: skip
    found = [pool.connection_kwargs[name] for name in asked]
    assert found == ["new", 7000, 2, "me", "se/cret", "/ca.pem", True, 3, 2]
    with pytest.raises(ConfigurationError, match="object can't be used"):
        members.learned(HERE, [object()], ())


SECRETS: list[Any] = [
    USER, "redis://:secret@h", "REDIS://:secret@h", "redis://h?password=secret", "redis://h?username=me",
    "rediss://h?ssl_certfile=/me.pem", redis.Redis(password="secret"),
    redis.Redis(credential_provider=redis.UsernamePasswordCredentialProvider("me", "secret")),
    redis.Redis(ssl=True, ssl_certfile="/me.pem"),
]  # fmt: skip


@pytest.mark.parametrize("source", SECRETS, ids=range(len(SECRETS)))
def test_a_foreign_host_gets_no_password(source: Any) -> None:
    """A foreign host gets a password only if the user named it or a pattern of hosts."""
    scheme = "rediss" if members.address_of(source).startswith("rediss") else "redis"
    address = f"{scheme}://Db7.internal:6379/0"
    for hosts in ((), ("internal",), ("db8.internal", "*.internal.example")):
        with pytest.raises(ConfigurationError, match=r"db7\.internal is not among its node_hosts"):
            members.learned(address, [source], hosts)
        with pytest.raises(ConfigurationError, match="node_hosts"):
            members.learned(address, [f"{scheme}://other", source], hosts)
    for hosts in (("db7.internal",), ("no", "*.internal"), ("*",)):
        assert members.learned(address, [source], hosts)
    many = f"{scheme}+sentinel://db7.internal:1,evil:2/service/0"
    with pytest.raises(ConfigurationError, match="evil"):
        members.learned(many, [source], ["*.internal"])


def test_a_password_stays_as_it_is_in_its_url() -> None:
    """A percent-encoded password is used unchanged."""
    found = members.learned(HERE, [USER], ["new"])
    assert found == "redis://me:se%2Fcret@new:6379/2?socket_timeout=3"


@pytest.mark.parametrize("address", [HERE, "unix:///tmp/s?db=0", "redis+sentinel://new/service/0"])
@pytest.mark.parametrize("source", [TLS, redis.Redis(ssl=True)], ids=["URL", "client"])
def test_a_listed_node_without_tls_is_refused(source: object, address: str) -> None:
    """An address without TLS is refused if any source has TLS, even for trusted hosts."""
    for given in ([source], [PLAIN, source]):
        with pytest.raises(ConfigurationError, match="has no TLS"):
            members.learned(address, given, ["*"])


@pytest.mark.parametrize(
    "address",
    [
        "", "evil", "http://evil:1/0", "redis://evil", "redis://evil:6379/0?ssl_cert_reqs=none",
        "rediss://evil/0?ssl_cert_reqs=none", "redis://me:pw@evil/0", "redis://evil/0#x",
        "redis://evil/0?", "redis://a%2eb/0", "redis://a\\b/0", "redis://a:1:2/0", "redis:// /0",
        "redis://evil/0\n", "redis://\x1b[2J/0", "unix:///tmp/s", "unix:///tmp/s?db=0&password=x",
        "redis+sentinel://a:1,/service/0", "REDIS://evil/0",
    ],
)  # fmt: skip
def test_an_address_has_only_a_place(address: str) -> None:
    """An address with an option, a user or an ambiguous part is unusable."""
    with pytest.raises(ConfigurationError, match="scheme, host, port and database, and nothing"):
        members.learned(address, [PLAIN], ["*"])


@pytest.mark.parametrize("value", ["host", b"host", 5, None, [5], [""], ["a b"], ["redis://h"]])
def test_invalid_lists_of_hosts(value: Any) -> None:
    """A URL, a single text or another value is refused as a list of hosts."""
    with pytest.raises(BadArgument, match="node_hosts"):
        check_hosts(value)


def test_the_newest_entry_counts() -> None:
    """The newest entry of each node counts; entries that cannot be parsed are left out."""
    a, b, c, d = (letter * 40 for letter in "abcd")
    lists = [
        {a: "5 redis://a/0", b: "7 ", c: "nonsense", "e\x1b": "9 redis://e/0"},
        {a: "6 redis://a2/0", b: "6 redis://b/0", d: "1 redis://d/0"},
    ]
    assert members.merged_members(lists) == {
        a: Entry(6, "redis://a2/0"),
        b: Entry(7, ""),
        d: Entry(1, "redis://d/0"),
    }
    assert str(Entry(6, "redis://a/0")) == "6 redis://a/0"
    assert members.read_entry("-1 x") is None
    assert members.others(lists[1], a) == ["redis://b/0", "redis://d/0"]
    assert members.others({b: "7 ", d: "1 redis://d/0"}, d) == []
