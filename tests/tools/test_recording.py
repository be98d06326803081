"""The recorder of terminals: frames of a program, and their picture."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET

import pytest

from tools.recording import Frame, drawn, recorded

PROGRAM = """
import sys
print("\\x1b[32mgreen\\x1b[0m <plain>", flush=True)
print("\\rgone", end="\\x1b[2K\\rlast", flush=True)
print(sys.stdout.isatty())
"""


def test_a_program_sees_a_terminal_and_its_last_screen_is_kept() -> None:
    """Colours are kept, erased text is gone."""
    last = recorded([sys.executable, "-c", PROGRAM])[-1]
    assert last.lines[0][0] == ("green", "green")
    assert last.lines[0][1][0].rstrip() == " <plain>"
    assert last.lines[1][0][0].rstrip() == "lastTrue"


def test_a_program_that_fails_is_no_recording() -> None:
    """Its exit code is reported."""
    with pytest.raises(SystemExit, match="exit code 3"):
        recorded([sys.executable, "-c", "print(1); raise SystemExit(3)"])


def test_frames_follow_each_other_in_one_picture() -> None:
    """Each is moved into view at its time; the last one is seen first, and for a while."""
    frames = [Frame(0.0, ((("one & two", "red"),),)), Frame(2.0, ((("three", "default"),),))]
    picture = drawn(frames, "a <title>")
    root = ET.fromstring(picture)
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["one & two", "three"]
    assert root.get("aria-label") == "a <title>"
    assert "0.000%{transform:translateY(0px)}20.000%{transform:translateY(-46px)}" in picture
    assert ".film{transform:translateY(-46px)}" in picture
    assert ".film{animation:film 10.00s step-end -2.00s infinite}" in picture
