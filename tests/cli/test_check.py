"""The command `check`."""

from __future__ import annotations

import pytest

from penstock import Penstock
from tests.cli.support import Cli
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance


@pytest.fixture
def raw(real_backend: Backend) -> Raw:
    """A plain client of the server."""
    return real_backend.sync_client()


def test_what_is_wrong(client: Penstock, cli: Cli, raw: Raw) -> None:
    """The exit code says whether anything is; each problem has a command."""
    assert cli("check").code == 0
    q = client.queue("it's mail")
    q.enqueue_many(range(3))
    result = cli("check")
    assert (result.code, result.out) == (0, "nothing is wrong with 1 queue\n")
    advance(raw, q.ops, 400)
    client.queue("other").enqueue(1)
    client.queue("other").reserve(block=0)[0].bury("no")
    result = cli("check", "--json")
    assert result.code == 1
    kinds = [(one["kind"], one["queue"]) for one in result.document["problems"]]
    assert kinds == [("worker", "it's mail"), ("dead", "other")]
    shown = cli("check").out
    assert "no worker: 3 jobs could be delivered" in shown
    assert """--queues 'it'"'"'s mail'""" in shown
    assert cli("check", "o*", "--most-dead", "1").code == 0
    assert cli("check", "i*", "--longest-wait", "1000").code == 0
    result = cli("check", "it's mial")
    assert (result.code, result.out) == (1, "")
    assert 'no queue matches "it\'s mial": `penstock queues` lists the queues' in result.err


def test_bounds_of_a_queue_and_of_deaths(client: Penstock, cli: Cli, raw: Raw) -> None:
    """A queue has its own longest wait; deaths of long ago can be left out."""
    q = client.queue("slow")
    q.enqueue("ada")
    assert cli("configure", "slow", "longest_wait=3600").code == 0
    advance(raw, q.ops, 400)
    assert cli("check").code == 0
    q.reserve(block=0)[0].bury("no")
    assert cli("check", "--dead-since", "60").code == 1
    advance(raw, q.ops, 400)
    assert "1 dead letter, the last one 6.7 min ago" in cli("check").out
    assert cli("check", "--dead-since", "60").code == 0


def test_a_batch_that_can_not_end(client: Penstock, cli: Cli) -> None:
    """It waits for a dead letter; the command mends it."""
    q = client.queue("shop")
    with q.batch(then="report") as batch:
        batch.enqueue_many(range(2))
    first, second = q.reserve(2, block=0)
    q.ack([first])
    assert cli("check").code == 0
    second.bury("no")
    [problem, _] = cli("check", "--json").document["problems"]
    assert problem["text"] == f"batch {batch.id} waits only for 1 dead letter"
    assert cli(*problem["remedy"].split()[1:]).code == 0
    assert cli("check").out == "nothing is wrong with 1 queue\n"


def test_a_schedule_whose_job_fails(client: Penstock, cli: Cli) -> None:
    """The second failure of its last job is one of the schedule, with its error."""
    q = client.queue("shop")
    q.schedules.add("hourly", every=3600, job="count")
    q.schedules.run("hourly")
    for failures in range(2):
        assert cli("check").code == 0, failures
        [job] = q.reserve(block=0)
        q.nack([job], error="no stock", delay=0)
    [problem] = cli("check", "--json").document["problems"]
    text = "the last job of schedule 'hourly' has failed 2 times: no stock"
    assert (problem["kind"], problem["text"]) == ("schedule", text)
