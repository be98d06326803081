"""The Redis server of the examples: the one in PENSTOCK_URL, or an embedded one."""

from __future__ import annotations

import os
from functools import cache

from penstock.embedded import EmbeddedServer


@cache  # one server for the whole process, which ends with it
def own_server() -> EmbeddedServer:
    return EmbeddedServer()


def url() -> str:
    return os.environ.get("PENSTOCK_URL") or own_server().url
