"""A worker is killed while it hands over in a chain: each link is added once, and it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from penstock import Penstock, Worker, chain
from penstock.wire.scripts import script
from tests.crash.tasks import QUEUE, STEPS, in_chain
from tests.support.keyspace import check_invariant
from tests.support.workers import Log, Nursery, whole_lines


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_as_it_hands_over(
    step: str,
    client: Penstock,
    raw: redis.Redis,
    crash_server: object,
    nursery: Nursery,
    tmp_path: Path,
) -> None:
    """A link whose ack got through ran once; the handle finds the way in any case."""
    log = tmp_path / "log"
    log.touch()
    queue = client.queue(QUEUE)
    handlers, count = in_chain(Log(str(log)).write)
    queue.configure(lease=0.3, max_crashes=0)
    raw.script_load(script("hand_over").source)
    job = queue.enqueue(chain(count.job(0), count, count))
    url: str = crash_server.url  # type: ignore[attr-defined]  # a server
    child = nursery.start("linked", url=url, log=str(log), script_name="hand_over", step=step)
    child.wait()
    assert child.killed
    with Worker(client, queue, handlers):
        assert job.result(timeout=30) == 3
    assert (job.status().done, job.status().state) == (3, "done")
    ran = [line.split(" ") for line in whole_lines(log.read_bytes())]
    ids = {number: {row[2] for row in ran if row[1] == number} for _, number, _ in ran}
    assert sorted(ids) == ["0", "1", "2"]
    assert all(len(own) == 1 for own in ids.values()), "a link was added twice"
    check_invariant(raw)
