"""Workers that are killed while they hand over: the next jobs are neither lost nor doubled."""

from __future__ import annotations

import pytest
import redis

from penstock import Penstock, Worker
from penstock.wire.scripts import script
from tests.crash.tasks import QUEUE, STEPS, handing_over
from tests.support.workers import Nursery, until


@pytest.mark.parametrize("name", ["claim", "hand_over"])
@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_at_a_step_of_a_hand_over(
    step: str,
    name: str,
    client: Penstock,
    raw: redis.Redis,
    crash_server: object,
    nursery: Nursery,
) -> None:
    """The next jobs of both queues run once, whichever step of either call was the last."""
    queue = client.queue(QUEUE)
    queue.configure(lease=0.3)
    queue.enqueue({"number": 7}, headers={"handler": "first"})
    for known in ("claim", "hand_over"):
        raw.script_load(script(known).source)  # the first call of the worker runs
    child = nursery.start("handed_over", url=crash_server.url, script_name=name, step=step)  # type: ignore[attr-defined]  # a server
    child.wait()
    assert child.killed
    ran: list[tuple[str, int]] = []
    handlers = handing_over(lambda *what: ran.append(what))
    queues = [client.queue(name) for name in (QUEUE, "other")]

    def is_empty() -> bool:
        found = [one.stats() for one in queues]
        return not any(one.ready + one.scheduled + one.active for one in found)

    with Worker(client, queues, handlers):
        until(is_empty)
    assert sorted(ran) == [("then", 7), ("there", 7)]
