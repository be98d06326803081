"""Leads the clients of a process to another server and back, for tests.

Clients are often made when a module is imported, and their queues are kept in variables. So a test
can't replace them: it leads those that exist, and those that are made meanwhile, elsewhere.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["redirect_all", "register"]


class _Redirectable(Protocol):
    """The connections of a client; see `AsyncTopology`."""

    source: Any
    redis_class: type

    def redirect(self, source: Any) -> None: ...
    def return_home(self) -> None: ...


_KNOWN = weakref.WeakSet[_Redirectable]()
_TARGETS = list[Mapping[type, Any]]()  # the last one applies


def register(topology: _Redirectable) -> None:
    """Note a new client; lead it elsewhere if a test has redirected all clients.

    A client of fakeredis stays where it is: a test has chosen its server.
    """
    if not _is_fake(topology.source):
        _KNOWN.add(topology)
        if _TARGETS:
            topology.redirect(_TARGETS[-1][topology.redis_class])


@contextmanager
def redirect_all(target: Mapping[type, Any]) -> Iterator[None]:
    """Lead all clients of the process to another server in this block.

    Args:
        target: a client of redis-py to that server, for each of its two classes.
    """
    _TARGETS.append(target)
    _lead_all()
    try:
        yield
    finally:
        _TARGETS.remove(target)
        _lead_all()


def _lead_all() -> None:
    for topology in list(_KNOWN):
        if _TARGETS:
            topology.redirect(_TARGETS[-1][topology.redis_class])
        else:
            topology.return_home()


def _is_fake(source: object) -> bool:
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes)):
        return any(map(_is_fake, source))
    return any(kind.__module__.partition(".")[0] == "fakeredis" for kind in type(source).__mro__)
