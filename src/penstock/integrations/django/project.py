"""The client of a Django project, and the hooks around its handlers."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.db import close_old_connections

from penstock.client._sync.client import Penstock
from penstock.core.jobs.middleware import Middleware, RunEvent
from penstock.core.values.near import did_you_mean
from penstock.core.values.urls import FROM_ENVIRONMENT, NOT_SHOWN
from penstock.errors import BadArgument

__all__ = ["ALIAS_HEADER", "CacheConnections", "DatabaseConnections", "client"]

ALIAS_HEADER = "django-tasks"
"""The header with the alias of the backend that has added a job."""


SETTING_KEYS = ("URL", "OPTIONS", "QUEUES")
CLIENT_OPTIONS = tuple(inspect.signature(Penstock).parameters)[1:]


class DatabaseConnections(Middleware):
    """Closes Django's database connections around each run of a handler, as around a request.

    Before the run it drops those that are broken or too old. After the run it closes them, but for
    those that `CONN_MAX_AGE` keeps. They belong to the thread that runs the handler.
    """

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        """Return the context of one run of a handler."""
        del event
        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()


class CacheConnections(Middleware):
    """Gives each run of a handler the `caches` of its thread, with their connections.

    Django keeps caches in context variables, and each run has a context of its own. So without this
    each job would make its own caches, and connect to their servers again.
    """

    def __init__(self) -> None:
        self._thread = threading.local()

    @contextmanager
    def run(self, event: RunEvent) -> Iterator[None]:
        """Return the context of one run of a handler."""
        del event
        if not hasattr(self._thread, "caches"):
            self._thread.caches = _make_caches()
        for alias, cache in self._thread.caches.items():
            caches[alias] = cache
        yield


def _make_caches() -> dict[str, Any]:
    found = {}
    for alias in caches:
        with suppress(Exception):  # the handler that uses it will fail
            found[alias] = caches[alias]
    return found


def check_names(setting: str, values: Mapping[str, object], names: Sequence[str]) -> None:
    """Refuse the keys of a setting that have no meaning.

    Raises:
        BadArgument: there is one; its value is not shown, as it may be a URL with a password.
    """
    for name in values:
        if name not in names:
            hint = did_you_mean(name, names)
            reason = f"no such key{hint}: there are {', '.join(names)}"
            raise BadArgument(f"{setting}[{name!r}]", NOT_SHOWN, reason)


def checked_settings() -> Mapping[str, Any]:
    """Return the setting `PENSTOCK`.

    Raises:
        BadArgument: it, or its `OPTIONS`, has a key that has no meaning.
    """
    found: Mapping[str, Any] = getattr(settings, "PENSTOCK", {})
    check_names("PENSTOCK", found, SETTING_KEYS)
    check_names("PENSTOCK['OPTIONS']", found.get("OPTIONS", {}), CLIENT_OPTIONS)
    return found


@functools.cache
def client() -> Penstock:
    """Return the client of the project, made from the setting `PENSTOCK`.

    Its `URL` is what `Penstock` takes; without one the variable PENSTOCK_URL counts, and then
    `redis://localhost:6379/0`. `OPTIONS` are other arguments of `Penstock`.

    Raises:
        BadArgument: the setting can't be used.
    """
    given = checked_settings()
    source = given.get("URL") or FROM_ENVIRONMENT
    options = dict(given.get("OPTIONS", {}))
    options["middleware"] = [
        DatabaseConnections(),
        CacheConnections(),
        *options.get("middleware", ()),
    ]
    return Penstock(source, **options)
