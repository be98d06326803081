"""Replies have the names and types of their headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from penstock.wire.replies import PARSERS
from tests.protocol.clock import T0
from tests.protocol.vectors import placed, scripts_with_vectors, vectors_of
from tools import replies


def _raw(value: Any) -> Any:
    if isinstance(value, list):
        return [_raw(part) for part in value]
    return value.encode() if isinstance(value, str) else value


def _is(value: Any, kind: Any) -> bool:
    """Tell if a value has a type of the generated classes."""
    if kind is Any:
        return True
    if get_origin(kind) is list:
        return isinstance(value, list) and all(_is(part, get_args(kind)[0]) for part in value)
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        return len(value) == len(kinds) and all(map(_is, value, kinds))
    return isinstance(value, kind)


@pytest.mark.parametrize("name", scripts_with_vectors())
def test_replies_are_parsed_to_their_types(name: str) -> None:
    """Each reply of a vector is parsed to a tuple with names of the declared types."""
    for vector in vectors_of(name):
        raw = _raw(placed(vector.reply, T0))
        if not isinstance(raw, list) or raw[0] < 0:
            continue
        reply = PARSERS[name](raw)
        hints = get_type_hints(type(reply))
        assert [getattr(reply, field) for field in hints] == list(reply)
        for field, kind in hints.items():
            assert _is(getattr(reply, field), kind), (vector.name, field, kind)


def test_the_file_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`python tools/replies.py` would change nothing; the check detects a stale file."""
    assert replies.main(["--check"]) == 0, "run python tools/replies.py"
    copy = tmp_path / "replies.py"
    copy.write_text("", "utf-8")
    assert replies.main(["--check", "--file", str(copy)]) == 1
    assert copy.read_text("utf-8") == ""
    assert "stale" in capsys.readouterr().err
