"""Marks: progress as it is stored, and as it is read."""

from __future__ import annotations

import pytest

from penstock.core.jobs.marks import Progress, progress_text, read_progress


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
