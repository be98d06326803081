"""The fields of log records: their names, and that they cost nothing when nobody reads them."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock.core.job import Batch, Delivery, Place
from penstock.core.logs import FIELDS, fields
from penstock.worker.logs import WorkerLog

PLACE = Place("emails", "deadbeef", 0xCAFEBABE, "01020304")


def delivery(data: bytes = b"1;h.handler=greet\nbody") -> Delivery:
    """The second attempt at a job."""
    batch = Batch(None, PLACE, "host:1", tag=0x0AB, now=1_700_000_002_345, lease_ms=30_000)
    return Delivery(batch, b"1700000000000-1000000005", b"2 1 0 0", data)


def test_the_fields_of_a_job() -> None:
    """All of them, and no attribute of a record that logging itself fills in."""
    job = delivery()
    assert fields(job) == {
        "job_id": job.id, "queue": "emails", "handler": "greet", "worker": "host:1", "attempt": 2,
    }  # fmt: skip
    assert tuple(fields(job)) == FIELDS
    assert fields(delivery(b"1\n"))["handler"] is None
    record = logging.LogRecord("penstock", logging.INFO, "", 1, "", None, None)
    assert not {*FIELDS} & {*vars(record), "message", "asctime", "taskName"}


def test_a_record_has_them(caplog: pytest.LogCaptureFixture) -> None:
    """With the worker's own name; what is said at the call comes last."""
    log = WorkerLog("worker 1")
    job = delivery()
    with caplog.at_level(logging.INFO, "penstock"):
        log.warning("%s is lost", job.id, job=job, fields={"seconds": 1.5})
        log.info("stopped")
        log.info("%s", "of another", fields={"worker": "worker 2"}, extra={"more": 1})
    lost, stopped, other = map(vars, caplog.records)
    assert (lost["name"], lost["levelname"]) == ("penstock.worker", "WARNING")
    assert lost["msg"] % lost["args"] == f"{job.id} is lost"
    assert {name: lost[name] for name in FIELDS} == {**fields(job), "worker": "worker 1"}
    assert lost["seconds"] == 1.5
    assert lost["funcName"] == "test_a_record_has_them"
    assert (stopped["worker"], "job_id" in stopped) == ("worker 1", False)
    assert (other["worker"], other["more"]) == ("worker 2", 1)


def test_what_is_not_written_is_not_put_together() -> None:
    """At a level that nobody reads the job is not even looked at."""
    quiet = logging.getLogger("penstock.tests.quiet")
    quiet.setLevel(logging.ERROR)
    log = WorkerLog("worker 1", quiet)
    job: Any = object()
    log.info("%s", 1, job=job)
    with pytest.raises(AttributeError):
        log.error("%s", 1, job=job)
