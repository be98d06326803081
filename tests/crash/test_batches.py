"""Producers and workers of a batch are killed: its callback runs, and was added once."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from penstock import Penstock, Queue, Worker
from penstock.wire.scripts import script
from tests.crash.tasks import QUEUE, STEPS, in_batches
from tests.support.keyspace import check_invariant
from tests.support.workers import Log, Nursery, until, whole_lines

CALLS = {
    "open_batch": "batched",
    "enqueue": "batched",
    "close_batch": "batched",
    "ack": "worked",
}
"""Scripts at which a client dies -> its task."""
BEFORE = ("before", "torn")


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("step", STEPS)
def test_a_client_killed_at_a_step_of_a_batch(
    step: str,
    name: str,
    client: Penstock,
    raw: redis.Redis,
    crash_server: object,
    nursery: Nursery,
    tmp_path: Path,
) -> None:
    """A batch is whole or not there, whichever step was the last; another client closes it.

    `ack` ends the last job of a batch and makes the callback due, in one script.
    """
    log = tmp_path / "log"
    log.touch()
    queue = client.queue(QUEUE)
    handlers, member, summary = in_batches(Log(str(log)).write)
    queue.configure(lease=0.3, max_crashes=0)
    before = queue.stats()
    for known in CALLS:
        raw.script_load(script(known).source)
    if name == "ack":
        with queue.batch(then=summary.job()) as batch:
            batch.enqueue(member.job(0))
    url: str = crash_server.url  # type: ignore[attr-defined]  # a server
    child = nursery.start(CALLS[name], url=url, log=str(log), script_name=name, step=step)
    child.wait()
    assert child.killed
    has_run = step not in (*BEFORE, "sent")  # a sent call may run
    found = queue.batches.list()
    is_sure = name != "open_batch" or step in (*BEFORE, "answered", "read")
    assert not is_sure or len(found) == (name != "open_batch" or has_run)
    with Worker(client, queue, handlers):
        until(lambda: _left(queue) == 0)
    stats = queue.stats()
    assert stats.acked - before.acked == stats.enqueued - before.enqueued
    check_invariant(raw)
    ran = [line.split(" ") for line in whole_lines(log.read_bytes())]
    jobs = {
        (kind, number): {row[2] for row in ran if row[:2] == [kind, number]}
        for kind, number, _ in ran
    }
    assert all(len(ids) == 1 for ids in jobs.values()), "a job was added twice"
    assert [row[0] for row in ran].count("summary") <= 1
    members = sum(kind == "member" for kind, _ in jobs)
    wanted = {"open_batch": 0, "ack": 1}.get(name, 3)
    assert members == wanted or (name == "enqueue" and not has_run and members == 0)
    assert ("summary", "-") in jobs or not found
    assert queue.batches.list() == []


def _left(queue: Queue) -> int:
    """Close open batches, and return the number of jobs."""
    for one in queue.batches.list():
        if one.state == "open":
            queue.batches.close(one.id)
    stats = queue.stats()
    return int(stats.ready + stats.scheduled + stats.active + stats.dead)
