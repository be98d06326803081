"""Django: a worker as a management command, and a backend for Django's tasks. Extra `django`.

    INSTALLED_APPS = [..., "penstock.integrations.django"]
    PENSTOCK = {"URL": "redis://localhost:6379/0"}

Handlers are in the module `tasks` or `jobs` of an app:

    from penstock.integrations.django import client, handlers

    @handlers.handler("welcome")
    def welcome(user: int) -> None: ...

    transaction.on_commit(lambda: welcome.enqueue(client().queue("default"), user.pk))

`python manage.py penstock_worker` runs them. `backend.PenstockBackend` is for `django.tasks` (from
Django 6.0), `backport.PenstockBackport` for the package `django-tasks`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    from django.conf import settings
    from django.core.cache import caches
    from django.db import close_old_connections
    from django.utils.module_loading import autodiscover_modules
except ModuleNotFoundError as error:
    reason = "penstock.integrations.django needs django: pip install 'penstock[django]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.client._sync.client import Penstock
from penstock.core.jobs.middleware import Middleware, RunEvent
from penstock.integrations.django.running import configured_backends, run_task
from penstock.worker import Handlers, Worker

__all__ = ["CacheConnections", "DatabaseConnections", "client", "handlers", "make_worker"]

TASK_MODULES = ("tasks", "jobs")
"""Modules of each app that a worker imports."""

handlers = Handlers()
"""The handlers of all apps."""


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


@functools.cache
def client() -> Penstock:
    """Return the client of the project, made from the setting `PENSTOCK`.

    Its `URL` is what `Penstock` takes; without one the variable PENSTOCK_URL counts, and then
    `redis://localhost:6379/0`. `OPTIONS` are other arguments of `Penstock`.
    """
    given = getattr(settings, "PENSTOCK", {})
    url = given.get("URL") or os.environ.get("PENSTOCK_URL") or "redis://localhost:6379/0"
    options = dict(given.get("OPTIONS", {}))
    options["middleware"] = [
        DatabaseConnections(),
        CacheConnections(),
        *options.get("middleware", ()),
    ]
    return Penstock(url, **options)


def make_worker(**options: Any) -> Worker:
    """Return the worker of the project, with the handlers of all apps and Django's tasks.

    It imports the modules `tasks` and `jobs` of each app. `django.setup()` has to come first.

    Args:
        **options: as of `Worker`. Without `queues` it takes those of the setting
            `PENSTOCK["QUEUES"]`, else those of the task backends, else `default`.
    """
    autodiscover_modules(*TASK_MODULES)
    backends = configured_backends()
    whole = Handlers()
    whole.include(handlers)
    if backends:
        whole.default(run_task)
    own = getattr(settings, "PENSTOCK", {}).get("QUEUES")
    found = sorted({name for backend in backends for name in backend.queues})
    queues = options.pop("queues", None) or own or found or ["default"]
    return Worker(client(), queues, whole, **options)
