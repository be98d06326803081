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

from typing import Any

try:
    from django.utils.module_loading import autodiscover_modules
except ModuleNotFoundError as error:
    reason = "penstock.integrations.django needs django: pip install 'penstock[django]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.integrations.django import project
from penstock.integrations.django.project import CacheConnections, DatabaseConnections, client
from penstock.integrations.django.running import (
    TASK_MODULES,
    TaskBackoff,
    TaskHandler,
    configured_backends,
    run_task,
)
from penstock.worker import Handlers, Worker
from penstock.worker.registered import DEFAULT_KEY

__all__ = ["CacheConnections", "DatabaseConnections", "client", "handlers", "make_worker"]

handlers = Handlers()
"""The handlers of all apps."""


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
        own_options = {"key": DEFAULT_KEY, "backoff": TaskBackoff()}
        whole.make_decorator(TaskHandler, None, {}, own=own_options)(run_task)
    own = project.checked_settings().get("QUEUES")
    found = sorted({name for backend in backends for name in backend.queues})
    queues = options.pop("queues", None) or own or found or ["default"]
    return Worker(project.client(), queues, whole, **options)
