"""Log records: their fields, and that no foreign text can forge a line."""

from __future__ import annotations

import ast
import io
import logging
import re
import unicodedata
from pathlib import Path
from types import FunctionType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

import penstock
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation
from penstock.core.jobs.logs import (
    LOG_FIELDS,
    Fields,
    counted,
    get_logger,
    log_failure,
    printable,
    span,
)
from penstock.core.jobs.marks import OWN_CODE
from tests.support.hostile import HOSTILE, is_harmless

SPANS = {
    0.0: "0 s", 0.01234: "0.0123 s", 1.5: "1.5 s", 99.44: "99.4 s", 100.4: "100 s", 119.6: "120 s",
    120.0: "2.0 min", 7199.0: "120.0 min", 7200.0: "2.0 h", 172_799.0: "48.0 h",
    172_800.0: "2.0 d",
}  # fmt: skip
PLACE = QueueIdentity("emails", "deadbeef", 0xCAFEBABE, "01020304")


def delivery(data: bytes = b"1;h.handler=greet\nbody") -> Delivery:
    """Return the second delivery of a job."""
    reservation = Reservation(
        None, PLACE, "host:1", tag=0x0AB, now=1_700_000_002_345, lease_ms=30_000
    )
    return Delivery(reservation, b"1700000000000-1000000005", b"2 1 0 0", data)


def test_the_fields_of_a_job() -> None:
    """A job has all fields; the default handler has no name."""
    job = delivery()
    assert Fields(job) == {
        "job_id": job.id, "queue": "emails", "handler": "greet", "worker": "host:1", "attempt": 2,
    }  # fmt: skip
    assert (tuple(Fields(job)), len(Fields(job))) == (LOG_FIELDS, 5)
    assert Fields(delivery(b"1\n"))["handler"] is None
    assert dict(Fields(job, seconds=1.5)) == {**Fields(job), "seconds": 1.5}


def test_a_record_has_them(caplog: pytest.LogCaptureFixture) -> None:
    """The fields are attributes of the record."""
    job = delivery()
    with caplog.at_level(logging.WARNING, "penstock"):
        logging.getLogger("penstock").warning("%s is lost", job.id, extra=Fields(job, why="late"))
    [record] = caplog.records
    assert {name: vars(record)[name] for name in LOG_FIELDS} == Fields(job)
    assert (record.getMessage(), vars(record)["why"]) == (f"{job.id} is lost", "late")


def test_unlogged_records_are_not_built() -> None:
    """At a level that is not logged the job is not accessed."""
    quiet = logging.getLogger("penstock.tests.quiet")
    quiet.setLevel(logging.ERROR)
    job: Any = object()
    quiet.info("%s", 1, extra=Fields(job))
    with pytest.raises(AttributeError):
        quiet.error("%s", 1, extra=Fields(job))


# -- hostile text ------------------------------------------------------------------------------


@given(HOSTILE)
def test_printable_text_is_one_harmless_line(text: str) -> None:
    """Escaped text is one harmless line; Python can restore the original."""
    shown = printable(text)
    assert is_harmless(shown)
    assert printable(shown) == shown
    if "\\" not in text:
        quoted = shown.replace('"', '\\"')
        assert ast.literal_eval(f'"{quoted}"') == text


@given(st.text(st.characters(categories=["L", "N", "P", "S"])))
def test_harmless_text_stays_as_it_is(text: str) -> None:
    """Harmless text in any language is not changed."""
    assert printable(text) == text


def test_characters_that_are_escaped() -> None:
    """C0, DEL, C1, marks of text direction and line separators are escaped."""
    bidi = [c for c in map(chr, range(0x110000)) if is_bidi_control(c)]
    assert len(bidi) == 12
    for char in [*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *bidi, "\u2028", "\u2029"]:
        assert printable(char) == repr(char)[1:-1]


def is_bidi_control(char: str) -> bool:
    """Tell if a character has Unicode's property Bidi_Control."""
    explicit = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    return unicodedata.bidirectional(char) in explicit or char in "\u200e\u200f\u061c"


@pytest.fixture(scope="module")
def lines() -> Any:
    """Return the lines that a plain logging formatter writes, with the fields of a job."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    shown = "%(levelname)s %(message)s [%(job_id)s %(queue)s %(handler)s %(worker)s]"
    handler.setFormatter(logging.Formatter(shown))
    logger = logging.getLogger("penstock")
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    yield stream
    logger.setLevel(level)
    logger.removeHandler(handler)


@given(HOSTILE, HOSTILE, HOSTILE)
def test_hostile_text_in_a_record(lines: io.StringIO, name: str, owner: str, error: str) -> None:
    """Hostile names, owners and errors give one harmless line per record, also with a traceback."""
    place = QueueIdentity(name, "deadbeef", 0xCAFEBABE, "01020304")
    reservation = Reservation(None, place, owner, tag=0x0AB, now=1_700_000_002_345, lease_ms=30_000)
    job = Delivery(
        reservation, b"1700000000000-1000000005", b"2 1 0 0", b"1;h.handler=%1B%0A\nbody"
    )
    raised = ValueError(error)
    lines.seek(0)
    lines.truncate()
    log_failure(job, f"ValueError: {error}", raised, ending="a dead letter")
    get_logger("penstock").warning("%s %r", name, owner, extra=Fields(job))
    get_logger("penstock").info(error, extra=Fields(job))
    written = lines.getvalue().removesuffix("\n").split("\n")
    assert all(map(is_harmless, written))
    starts = [line.split(" ")[0] for line in written if not line.startswith("  ")]
    if starts[1].startswith("ValueError"):  # its message is harmless
        del starts[1]
    assert starts == ["ERROR", "WARNING", "INFO"]
    assert r"\x1b\n" in written[0]


def test_the_traceback_of_a_failure_begins_with_the_handler(lines: io.StringIO) -> None:
    """The frames of the worker that has called it are left out; those behind it stay."""
    code = compile("handler()", f"{OWN_CODE}worker/runners.py", "exec")
    worker = FunctionType(code, {"handler": lambda: span("a text")})  # type: ignore[arg-type]  # so it raises
    with pytest.raises(TypeError) as caught:
        worker()
    assert caught.value.__traceback__ is not None
    raised = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    lines.seek(0)
    lines.truncate()
    log_failure(delivery(), "TypeError", raised, ending="a dead letter")
    frames = re.findall(r'File "(.*)", line', lines.getvalue())
    assert [Path(frame).name for frame in frames] == ["test_logs.py", "logs.py"]


def test_every_module_takes_its_logger_from_one_place() -> None:
    """Every module uses the same logger, so no record bypasses the filter."""
    root = Path(penstock.__file__).parent
    for path in root.rglob("*.py"):
        if path != root / "core" / "logs.py":
            for line in path.read_text().splitlines():
                assert "getLogger(__name__)" not in line, path
                assert 'getLogger("penstock' not in line or ".addHandler(" in line, path


@pytest.mark.parametrize(
    "count, text", [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1200, "1,200 jobs")]
)
def test_numbers_of_things(count: int, text: str) -> None:
    """One thing has no s."""
    assert counted(count, "job") == text


def test_spans() -> None:
    """A duration is in the largest unit of which it has two."""
    assert {seconds: span(seconds) for seconds in SPANS} == SPANS
