"""A server kept busy by another client's script, so that it answers BUSY."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError
from redis.retry import Retry

from tests.support.twins import spawn, wait_for

__all__ = ["busy", "is_busy"]

FOREVER = "while true do end"


def is_busy(raw: redis.Redis) -> bool:
    """Tell if the server answers BUSY."""
    try:
        raw.ping()
    except ResponseError as error:
        return str(error).startswith("BUSY ")
    return False


@contextmanager
def busy(url: str) -> Iterator[None]:
    """Keep the server at this URL busy until the end of the block."""
    patient: dict[str, Any] = {"socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
    with redis.Redis.from_url(url) as raw, redis.Redis.from_url(url, **patient) as running:
        limit = raw.config_get("lua-time-limit")
        raw.config_set("lua-time-limit", 5)
        script = spawn(running.eval, FOREVER, 0)
        wait_for(lambda: is_busy(raw))
        try:
            yield
        finally:
            raw.script_kill()
            try:
                script.result()
            except ResponseError as error:
                if "killed" not in str(error):
                    raise
            raw.config_set("lua-time-limit", limit["lua-time-limit"])
