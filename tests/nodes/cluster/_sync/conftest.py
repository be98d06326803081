# From tests/nodes/cluster/_async/conftest.py by tools/unasync.py; do not edit.
"""Fixtures: a client of the cluster, and a queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock import Penstock, Queue
from tests.support.cluster import Cluster, RawCluster
from tests.support.keyspace import check_invariant


@pytest.fixture
def raw(cluster: Cluster) -> Iterator[Any]:
    """A plain client of the cluster, which also inspects the queues at the end."""
    with RawCluster(cluster) as client:
        yield client
        cluster.settle()
        client.nodes_manager.initialize()
        check_invariant(client)


@pytest.fixture
def ps(cluster: Cluster, raw: Any) -> Iterator[Penstock]:
    """A client with the address of one server."""
    with Penstock(cluster.url, owner="tester", retry_for=20) as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue that does not exist yet, with a typical name."""
    return ps.queue("mail to {all} 100%")
