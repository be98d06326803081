"""Tests of `penstock batches`."""

from __future__ import annotations

from penstock import Penstock
from tests.cli.support import Cli


def test_batches_are_listed_and_closed(cli: Cli, client: Penstock) -> None:
    """A row for each with the numbers of its jobs; a batch that is closed can be called."""
    queue = client.queue("q")
    with queue.batch(then="sum") as batch:
        batch.enqueue_many(["a", "b", "c"])
        (job,) = queue.reserve(1)
        assert f"batch {batch.id}" in " ".join(cli("show", "q", job.id).out.split())
        job.ack()
        head, _, line = cli("batches", "q").out.splitlines()
        assert head.split()[:4] == ["batch", "state", "on", "jobs"]
        assert line.split() == [batch.id, "open", "success", "3", "1", "0", "0", "33%"]
        assert cli("batches", "q", "close", batch.id).out == f"{batch.id}: waiting\n"
    document = cli("batches", "q", "--json").document
    (one,) = document["batches"]
    (stats,) = cli("stats", "q", "--json").document["queues"]
    assert stats["batches"] == 1
    assert "batches" in cli("stats", "q").out
    assert (document["queue"], one["id"], one["state"]) == ("q", batch.id, "waiting")
    assert (one["total"], one["done"]) == (3, 1)
    queue.bury(queue.reserve(2), "broken")
    assert "waiting for dead letters  success" in cli("batches", "q").out
    lines = [line.split() for line in cli("batches", "q").out.splitlines()]
    assert lines[2][-2:] == ["2", "33%"]
    assert [(line[0], line[-1]) for line in lines[-2:]] == [(batch.id, "broken")] * 2
    (one,) = cli("batches", "q", "--json").document["batches"]
    assert [failure["error"] for failure in one["failures"]] == ["broken"] * 2


def test_a_batch_that_is_not_there(cli: Cli, client: Penstock) -> None:
    """A queue without batches has an empty list; closing needs the id of a batch."""
    job = client.queue("q").enqueue("x")
    assert cli("batches", "q", "--json").document == {"queue": "q", "batches": []}
    refused = cli("batches", "q", "close", job.id)
    assert (refused.code, "there is no batch" in refused.err) == (1, True)
    assert cli("batches", "q", "close").code == 2


def test_members(cli: Cli, client: Penstock) -> None:
    """Those that wait, run or are dead, each with its state; and the counts of all."""
    queue = client.queue("q")
    with queue.batch(then="sum") as batch:
        batch.enqueue_many(["a", "b", "c", "d"])
    queue.enqueue("other")
    done, dead, held = queue.reserve(3, block=0)
    done.ack()
    dead.bury("no stock")
    document = cli("batches", "q", "members", batch.id, "--json").document
    states = {one["id"]: one["state"] for one in document["members"]}
    [waiting] = [one for one in states if one not in (dead.id, held.id)]
    assert states == {dead.id: "dead", held.id: "active", waiting: "ready"}
    assert (document["total"], document["done"]) == (4, 1)
    shown = cli("batches", "q", "members", batch.id).out
    assert shown.splitlines()[2].split()[:4] == [batch.id, "waiting", "success", "4"]
    assert "no stock" in shown
    assert cli("batches", "q", "members").code == 2
    result = cli("batches", "q", "members", queue.enqueue("x").id)
    assert (result.code, result.out) == (1, "")
    assert "there is no batch" in result.err
