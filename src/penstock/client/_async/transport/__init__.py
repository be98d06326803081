"""Connections to one server, to one behind Sentinel, to a Redis Cluster; the calls on them."""
