"""The fields of log records: their names, and that they cost nothing when nobody reads them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.core.job import Batch, Delivery, Place
from penstock.core.logs import FIELDS, Fields

PLACE = Place("emails", "deadbeef", 0xCAFEBABE, "01020304")


def delivery(data: bytes = b"1;h.handler=greet\nbody") -> Delivery:
    """The second attempt at a job."""
    batch = Batch(None, PLACE, "host:1", tag=0x0AB, now=1_700_000_002_345, lease_ms=30_000)
    return Delivery(batch, b"1700000000000-1000000005", b"2 1 0 0", data)


def test_the_fields_of_a_job() -> None:
    """All of them; the default handler has no name."""
    job = delivery()
    assert Fields(job) == {
        "job_id": job.id, "queue": "emails", "handler": "greet", "worker": "host:1", "attempt": 2,
    }  # fmt: skip
    assert (tuple(Fields(job)), len(Fields(job))) == (FIELDS, 5)
    assert Fields(delivery(b"1\n"))["handler"] is None
    assert dict(Fields(job, seconds=1.5)) == {**Fields(job), "seconds": 1.5}


def test_a_record_has_them(caplog: pytest.LogCaptureFixture) -> None:
    """As its attributes, beside those that logging itself fills in."""
    job = delivery()
    with caplog.at_level(logging.WARNING, "penstock"):
        logging.getLogger("penstock").warning("%s is lost", job.id, extra=Fields(job, why="late"))
    [record] = caplog.records
    assert {name: vars(record)[name] for name in FIELDS} == Fields(job)
    assert (record.getMessage(), vars(record)["why"]) == (f"{job.id} is lost", "late")


def test_what_is_not_written_is_not_put_together() -> None:
    """At a level that nobody reads the job is not even looked at."""
    quiet = logging.getLogger("penstock.tests.quiet")
    quiet.setLevel(logging.ERROR)
    job: Any = object()
    quiet.info("%s", 1, extra=Fields(job))
    with pytest.raises(AttributeError):
        quiet.error("%s", 1, extra=Fields(job))
