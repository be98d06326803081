"""Clusters of real servers."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster


@pytest.fixture(scope="session")
def lasting_cluster() -> Iterator[Cluster]:
    """Three primaries for all tests; their timeouts are long, so that load causes no failover."""
    began = time.monotonic()
    with Cluster(3, node_timeout=15_000) as cluster:
        assert time.monotonic() - began < 10
        yield cluster


@pytest.fixture
def cluster(lasting_cluster: Cluster) -> Iterator[Cluster]:
    """Three empty primaries whose slots may be moved."""
    lasting_cluster.empty()
    yield lasting_cluster
    lasting_cluster.settle()


@pytest.fixture
def frail_cluster() -> Iterator[Cluster]:
    """Three primaries with a replica each, which takes over after a second."""
    began = time.monotonic()
    with Cluster(3, replicas=1, node_timeout=1000) as cluster:
        assert time.monotonic() - began < 10
        yield cluster
