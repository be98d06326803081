"""URLs of servers: refused ones, and that no part of a password is ever shown."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import redis
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import AsyncPenstock, BadArgument, Penstock, ServerUnreachable
from penstock.cli import main
from penstock.core.values.urls import check_url, redacted, shown
from penstock.pressure import AsyncPressureQueue, PressureQueue
from tests.support.passwords import MARKS, URLS, seen_in
from tests.support.profiles import at_most


def use(source: Any) -> None:
    """Make a client of the source, and call the server."""
    with contextlib.closing(Penstock(source, retry_for=0)) as ps:
        ps.queue("q").enqueue(1)


def ause(source: Any) -> None:
    """Make an asyncio client of the source, and call the server."""

    async def call() -> None:
        ps = AsyncPenstock(source, retry_for=0)
        try:
            await ps.queue("q").enqueue(1)
        finally:
            await ps.close()

    asyncio.run(call())


def admit(source: Any) -> None:
    """Add a node to a federation, and remove it."""
    with contextlib.closing(Penstock(["redis://127.0.0.1:1/0"], retry_for=0)) as ps:
        for call in (ps.nodes.add, ps.nodes.forget):
            with contextlib.suppress(OSError):
                call(source)


def press(source: Any) -> None:
    """Use a queue of the protocol pressure."""
    PressureQueue("q", source=source)


def apress(source: Any) -> None:
    """Use an asyncio queue of the protocol pressure."""
    AsyncPressureQueue("q", source=source)


ENTRIES: dict[str, Callable[[Any], None]] = {
    "Penstock": use,
    "AsyncPenstock": ause,
    "federation": lambda url: use(["redis://127.0.0.1:1/0", url]),
    "federation of asyncio": lambda url: ause([url, "redis://127.0.0.1:1/0"]),
    "twice in a federation": lambda url: use([url, url]),
    "bytes": lambda url: use(url.encode()),
    "dict": lambda url: use({"url": url}),
    "nodes.add": admit,
    "pressure": press,
    "pressure of asyncio": apress,
}


@pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)
@at_most(60)
@given(url=URLS)
def test_no_part_of_a_password_is_in_an_error(
    caplog: pytest.LogCaptureFixture, entry: Callable[[Any], None], url: str
) -> None:
    """No part of a password is in an error's text, attributes, pickle and causes, or in the log."""
    caplog.clear()
    caplog.set_level(logging.DEBUG)
    try:
        entry(url)
    except Exception as error:  # noqa: BLE001  # every error is checked
        found = [mark for mark in MARKS if mark in seen_in(error)]
        assert not found
    assert not [mark for mark in MARKS if mark in caplog.text]


@pytest.mark.parametrize(
    "command",
    [["queues"], ["stats"], ["doctor"], ["nodes"], ["--json", "doctor"]],
    ids=" ".join,
)
@at_most(25)
@given(url=URLS, behind=st.booleans())
@example(url="redis://127.0.0.1:1/0?password=hunter2secret 918273645", behind=True)
@example(url="redis://:hunter2secret918273645", behind=True)
@example(url="redis://127.0.0.1:1/0?password=hunter2secret@918273645", behind=True)
@example(url="redis://hunter2secret '918273645@127.0.0.1:1/0", behind=False)
def test_no_part_of_a_password_is_on_a_terminal(command: list[str], url: str, behind: bool) -> None:
    """No part of a password is on stdout or stderr, with or without `--url`."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch("penstock.cli.app.RETRY_SECONDS", 0.0),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        for arguments in (
            ([*command, "--url", url], [*command, url]) if behind else [["--url", url, *command]]
        ):
            assert main(arguments) != 0
    assert err.getvalue() or out.getvalue()
    assert "No such command" not in err.getvalue()
    assert not [mark for mark in MARKS if mark in out.getvalue() + err.getvalue()]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("redis://ada:s3cret@h:1/0", "redis://h:1/0"),
        ("rediss://:s3cret@h", "rediss://h"),
        ("unix:///run/s?password=s3cret", "unix:///run/s"),
        ("redis://h:1", "redis://h:1"),
        ("redis+sentinel://u:p@a:1,[::1]:2/jobs/3?x=1", "redis+sentinel://a:1,[::1]:2/jobs/3"),
        ("redis://:s3cret/x@h:1/0", "redis://<not shown>"),
        ("s3cret://h", "<not shown>"),
        ("s3cret", "<not shown>"),
        (b"redis://:s3cret@h", "redis://h"),
        (["redis://:s3cret@h", 5], "[redis://h, <builtins.int>]"),
    ],
)
def test_the_shown_part_of_a_source(source: object, expected: str) -> None:
    """A source is shown by its place, if that can be separated from the rest."""
    assert shown(source) == expected


@pytest.mark.parametrize(
    "url",
    ["redis://h:6379/0", "rediss://u:p%40ss%2F@h", "unix:///run/redis.sock?db=1", "redis://[::1]:6379",
     "redis+sentinel://u:p@a,b:26379/jobs/0?sentinel_password=x", "redis://:a@b@h"],
)  # fmt: skip
def test_sound_urls(url: str) -> None:
    """Valid URLs are used unchanged."""
    assert check_url("source", url) == url


def test_a_client_whose_host_cannot_be_looked_up() -> None:
    """The error is that of a server that can't be reached, and says what is wrong."""
    client = redis.Redis(host="a" * 64)
    with pytest.raises(ServerUnreachable, match="1 to 63 characters"):
        use(client)


@pytest.mark.parametrize(
    "url, reason",
    [
        ("redis://:pa/ss@h/0", "percent-encoded"),
        ("redis://:12?a=b@h/0", "percent-encoded"),
        ("redis://:12#b@h/0", "percent-encoded"),
        ("redis://:pass", "host name and a port"),
        ("rdis://h", "begins with redis://"),
        ("localhost:6379", "such as redis://localhost:6379/0"),
        (f"redis://{'a' * 64}:6379", "1 to 63 characters"),
        (f"redis://{'a' * 63}.{'é' * 60}/0", "1 to 63 characters"),
        ("redis+sentinel://a,b..c:26379/jobs", "1 to 63 characters"),
        ("redis://\u05d0a:6379", "characters that IDNA allows"),
    ],
)
def test_urls_that_are_refused(url: str, reason: str) -> None:
    """An invalid URL is refused with advice."""
    with pytest.raises(BadArgument, match=reason):
        Penstock(url)


@pytest.mark.parametrize("kind", [Penstock, AsyncPenstock])
@pytest.mark.parametrize(
    "query, reason",
    [
        ("scoket_timeout=5", "unknown option 'scoket_timeout'"),
        ("db=0&decode_respones=1", "unknown option 'decode_respones'"),
        ("socket_timeout=soon", "the value of option 'socket_timeout' can't be used"),
    ],
)
@pytest.mark.parametrize("start", ["redis://h:1/0", "redis+sentinel://h:1/jobs"])
def test_an_option_that_is_not_known(
    kind: Callable[[str], Any], start: str, query: str, reason: str
) -> None:
    """An unknown option raises a typed error with its name before anything is sent."""
    with pytest.raises(BadArgument, match=reason) as caught:
        kind(f"{start}?{query}")
    assert caught.value.argument == "source"
    assert caught.value.value == start


def test_an_option_for_the_sentinels_that_is_not_known() -> None:
    """An unknown option for the sentinels has the name of the URL in the error."""
    with pytest.raises(BadArgument, match="unknown option 'sentinel_foo'"):
        Penstock("redis+sentinel://h:1/jobs?sentinel_foo=1")


@pytest.mark.parametrize("value", ["", "host:6379", 5, None, "redis://h#x@"])
def test_invalid_urls(value: object) -> None:
    """A text that is not a URL is refused before anything is written."""
    with pytest.raises(BadArgument):
        check_url("url", value)


def test_text_with_a_url_in_it() -> None:
    """In a text with a URL the part before the last @ is removed."""
    assert redacted("Got 'redis://:a b@c@h:1'") == "Got 'redis://<not shown>@h:1'"
    assert redacted("argument (redis:/:a@h)") == "argument (redis:/<not shown>@h)"
    assert redacted("argument (:a@h)") == "argument (:<not shown>@h)"
    for text in ("redis://h:1 is away", "penstock: not found: 'me@h'"):
        assert redacted(text) == text


@pytest.mark.parametrize("kind", [Penstock, AsyncPenstock])
def test_a_client_without_a_source(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It uses the servers in PENSTOCK_URL, or else the usual address; None is refused."""
    for text, address in (
        ("redis://here:6391/2", "here:6391"),
        ("redis://a:1 redis://b:2", "a:1, b:2"),
        ("", "localhost:6379"),
    ):
        monkeypatch.setenv("PENSTOCK_URL", text)
        assert kind().topology.current.address == address
        assert kind("redis://there:1").topology.current.address == "there:1"
    monkeypatch.delenv("PENSTOCK_URL")
    assert kind().topology.current.address == "localhost:6379"
    monkeypatch.setenv("PENSTOCK_URL", "http://ada:secret@here")
    with pytest.raises(BadArgument, match=r"^PENSTOCK_URL=.*must be a URL") as caught:
        kind()
    assert "secret" not in str(caught.value)
    with pytest.raises(BadArgument, match="source"):
        kind(None)
