"""Marks: progress as it is stored, and as it is read."""

from __future__ import annotations

import pytest

from penstock.core.jobs.marks import (
    Failure,
    Progress,
    progress_text,
    read_failures,
    read_progress,
)


def test_progress_comes_back() -> None:
    """The server puts the time before the text."""
    text = progress_text(3, 10, "nearly  there")
    assert read_progress(b"1800000000000 " + text.encode()) == Progress(
        1_800_000_000, 3, 10, "nearly there"
    )


@pytest.mark.parametrize("mark", [b"", b"1800000000000 half", b"1800000000000 3 10", b"x 3 10 "])
def test_progress_of_another_form_is_none(mark: bytes) -> None:
    """The scripts store any text, so a reader of the job must not fail."""
    assert read_progress(mark) is None


def test_failures_come_back() -> None:
    """A failure whose delivery has no start has no length."""
    mark = b"1800000000000\t1500\tada\tbroke\n1800000001000\t\t\tlost\n\ntrace\n\nmore"
    failures = (
        Failure(1_800_000_000, 1.5, "ada", "broke"),
        Failure(1_800_000_001, None, "", "lost"),
    )
    assert read_failures(mark) == (failures, "trace\n\nmore")
    assert read_failures(b"") == ((), "")
