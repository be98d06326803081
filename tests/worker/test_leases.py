"""Leases and sweeps that a queue refuses, without a server."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from redis.exceptions import ResponseError

from penstock.client._sync.transport.driver import Driver
from penstock.core.flows import SweepDue
from penstock.core.job import Delivery, set_term
from penstock.core.operations import QueueOps
from penstock.errors import QueueDamaged
from penstock.wire.keys import QueueKeys
from penstock.worker import heartbeat_process
from penstock.worker._sync import heartbeat
from penstock.worker.terms import Term
from tests.worker.deliveries import made

SCRIPT_ERROR = ResponseError("user_script:7: attempt to compare number with nil")
DAMAGED = QueueDamaged("key 'dead' has the wrong type")


def test_a_lease_that_is_refused_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a job makes the server refuse the renewal of many, those of the others are renewed."""
    jobs = [made(number) for number in range(300)]
    kept: list[int] = []

    def renewed(_node: Any, _lease: float, part: Sequence[Delivery]) -> Sequence[Delivery]:
        if jobs[123] in part:
            raise SCRIPT_ERROR
        kept.extend(job.body for job in part)
        return [job for job in part if job.body == 5]

    monkeypatch.setattr(heartbeat, "renewed", renewed)
    lost: list[Delivery] = []
    with pytest.raises(ResponseError):
        heartbeat.renew_each(cast(Any, None), 30.0, jobs, lost)
    assert sorted(kept) == [number for number in range(300) if number != 123]
    assert lost == [jobs[5]]


def test_the_helper_renews_the_leases_of_the_other_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that refuses a renewal is left alone for a moment; the others are not."""
    asked: list[str] = []

    def renewed(_node: Any, _lease: float, jobs: Sequence[Delivery], _lost: Any) -> None:
        asked.append(jobs[0].body)
        if jobs[0].body == "bad":
            raise DAMAGED

    def due(jobs: Any, *_: Any) -> list[tuple[float, list[Delivery]]]:
        return [(30.0, [job]) for job in jobs]

    monkeypatch.setattr(heartbeat_process, "renew_each", renewed)
    monkeypatch.setattr(heartbeat_process, "due", due)
    line: Any = SimpleNamespace(send=lambda _: None)
    helper = heartbeat_process._Helper(line)
    helper._node = cast(Any, object())
    for key, name in enumerate(["bad", "good"]):
        job = made(name)
        set_term(job, Term(130.0, 30.0))
        ops = QueueOps(QueueKeys(name, "penstock"), "me", ())
        monkeypatch.setattr(job._reservation, "ops", ops, raising=False)
        helper._held[key] = job
    helper._beat()
    helper._beat()
    assert asked == ["bad", "good", "good"]
    assert helper._next == 0.0


def test_a_queue_that_can_not_be_swept_does_not_stop_the_others() -> None:
    """A worker sweeps its other queues."""
    swept: list[str] = []

    def run(call: Any) -> Any:
        swept.append(call.ops.name)
        if call.ops.name == "bad":
            raise DAMAGED
        return SimpleNamespace(expired=0, trimmed=0, more=0, removed=b"")

    driver = Driver(cast(Any, SimpleNamespace(run=run)), "penstock")
    turns = SimpleNamespace(is_due=lambda *_: True, listed=lambda _: 0)
    driver._turns = cast(Any, turns)
    sources = [QueueOps(QueueKeys(name, "penstock"), "me", ()) for name in ("bad", "good")]
    driver.answer(SweepDue(tuple(sources)))
    assert swept == ["bad", "good"]
