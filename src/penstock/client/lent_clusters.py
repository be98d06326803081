"""Connection settings and node addresses of a redis-py cluster client that the caller lends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.cluster import ClusterPipeline

__all__ = ["acluster_settings", "cluster_nodes", "cluster_settings"]


def acluster_settings(source: object) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Return what makes connections for a client of a cluster, and its keyword arguments.

    None = `source` is no client of a cluster.
    """
    if not isinstance(source, AsyncRedisCluster):
        return None
    node = cluster_nodes(source)[0]
    return node.connection_class, {**node.connection_kwargs, "redis_connect_func": None}


def cluster_settings(source: object) -> tuple[Callable[..., Any], dict[str, Any]] | None:
    """Return the same as `acluster_settings`, its plain twin."""
    if not isinstance(source, RedisCluster) or isinstance(source, ClusterPipeline):
        return None
    pool = source.get_redis_connection(cluster_nodes(source)[-1]).connection_pool
    own = source.user_on_connect_func
    # That of redis-py makes replicas answer.
    connect = own and (lambda conn: (conn.on_connect(), own(conn)))
    return pool.connection_class, {**pool.connection_kwargs, "redis_connect_func": connect}


def cluster_nodes(source: Any) -> list[Any]:
    """Return the nodes that a client of a cluster knows; each has a host and a port."""
    manager = source.nodes_manager
    return [*manager.startup_nodes.values(), *manager.nodes_cache.values()]
