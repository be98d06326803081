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
