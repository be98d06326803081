"""Figures, times, bodies and paths as text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from penstock.web.shapes import (
    MAX_SHOWN_BYTES,
    TEMPLATE_FILTERS,
    body_text,
    queue_path,
    sparkline,
    when,
)


@pytest.mark.parametrize(
    "name, value, expected",
    [
        ("count", 1234567, "1,234,567"),
        ("count", None, "-"),
        ("rate", 0.0, "0"),
        ("rate", None, "-"),
        ("rate", 0.5, "0.50"),
        ("rate", 1234.4, "1,234"),
        ("duration", 90, "90 s"),
        ("duration", None, "-"),
        ("size", 0, "0 B"),
        ("size", 1536, "1.50 KiB"),
        ("size", 5 << 30, "5.00 GiB"),
        ("size", None, "-"),
        ("lines", "a\nb\x1b", "a\nb\\x1b"),
    ],
)
def test_figures(name: str, value: object, expected: str) -> None:
    """They are short, and what is not known is a dash."""
    assert TEMPLATE_FILTERS[name](value) == expected  # type: ignore[operator]  # of one argument each


def test_times() -> None:
    """A time is told from now; its exact form is its title."""
    assert ">in 30 s<" in when(1030, 1000)
    assert ">30 s ago<" in when(970, 1000)
    assert 'title="1970-01-01T00:16:10+00:00"' in when(970, 1000)
    assert when(None, 1000) == "-"


@pytest.mark.parametrize(
    "text, expected",
    [
        ("shop.payments.run", "shop.payments.run"),
        ("<b> & c", "&lt;b&gt; &amp; c"),
        ("n" * 24, "n" * 24),
        ("n" * 25, "n" * 24 + "<wbr>n"),
        ("a " + "n" * 60, "a " + ("n" * 24 + "<wbr>") * 2 + "n" * 12),
        ("\x1b", "\\x1b"),
    ],
)
def test_long_words(text: str, expected: str) -> None:
    """They may be broken, short ones not; markup stays text."""
    assert TEMPLATE_FILTERS["wrapped"](text) == expected  # type: ignore[operator]  # of one argument


@pytest.mark.parametrize(
    "raw, codec, expected",
    [
        (b'{"a":[1,"\xc3\xa9"]}', "json", '{\n  "a": [\n    1,\n    "é"\n  ]\n}'),
        (b"{", "json", "{"),
        (b'"\\u202e"', "json", '"\\u202e"'),
        (b"[" * 50_000, "json", "[" * 50_000),
        (b"text\n\x1b[1m", "", "text\n\\x1b[1m"),
        (b"\xff\x00", "", "\\xff\\x00"),
        (b"", "", ""),
    ],
)
def test_bodies(raw: bytes, codec: str, expected: str) -> None:
    """JSON is indented, other text stays, and what does not show is escaped."""
    assert body_text(raw, codec) == expected


@pytest.mark.parametrize(
    "raw",
    [b"x" * (MAX_SHOWN_BYTES + 1), b"\xff" * (MAX_SHOWN_BYTES + 1), b"[" * (MAX_SHOWN_BYTES + 1)],
)
def test_long_bodies(raw: bytes) -> None:
    """They are cut, and the page says so."""
    shown = body_text(raw, "json")
    assert shown.endswith("\n… the rest is not shown")
    assert len(shown) < 5 * MAX_SHOWN_BYTES


@pytest.mark.parametrize("values", [[], [1.0], [0.0, 0.0], [1, 5, 2.5], [1e9] * 90])
def test_lines(values: list[float]) -> None:
    """A line is SVG without styles; it needs two values."""
    drawn = sparkline([*enumerate(values)], 60)
    HTMLParser().feed(drawn)
    assert drawn.startswith('<svg class="spark"')
    assert ("polyline" in drawn) == (len(values) > 1)
    assert "style" not in drawn


def test_a_line_follows_time() -> None:
    """A gap of nine steps between two values is nine times as wide as one step."""
    drawn = sparkline([(100, 1), (101, 2), (110, 1)], 10)
    [line] = re.findall(r'points="([^"]*)"', drawn)
    assert [point.partition(",")[0] for point in line.split()] == ["0.0", "12.0", "120.0"]


@pytest.mark.parametrize(
    "name, query, expected",
    [
        ("a/b?", {}, "/queues/a%2Fb%3F"),
        ("..", {"state": "dead"}, "/queues/?name=..&state=dead"),
        ("a", {"state": "dead", "error": "", "handler": None}, "/queues/a?state=dead"),
        ("ä", {"error": "&="}, "/queues/%C3%A4?error=%26%3D"),
    ],
)
def test_paths(name: str, query: dict[str, object], expected: str) -> None:
    """Any name makes one part of a path; a browser would resolve dots."""
    assert queue_path(name, **query) == expected
