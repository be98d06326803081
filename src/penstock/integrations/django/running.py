"""Run the tasks of Django's task backends in a worker."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.core.jobs.job import Delivery
from penstock.integrations.django.project import DEFAULT_ALIAS
from penstock.worker import Reject

if TYPE_CHECKING:
    from penstock.integrations.django.tasks_backend import TaskBackend

__all__ = ["configured_backends", "run_task"]

TASK_PACKAGES = ("django.tasks", "django_tasks")


def configured_backends() -> list[TaskBackend]:
    """Return the backends of penstock in the setting TASKS."""
    from django.conf import settings

    if not getattr(settings, "TASKS", None):
        return []
    from penstock.integrations.django.tasks_backend import TaskBackend

    found = []
    for package in TASK_PACKAGES:
        if package in sys.modules or find_spec(package) is not None:
            every: Any = import_module(package).task_backends
            found += [every[alias] for alias in settings.TASKS]
    return [backend for backend in found if isinstance(backend, TaskBackend)]


def run_task(job: Delivery) -> Any:
    """Run a job that a backend has added: the default handler of the worker."""
    alias = job.headers.get(DEFAULT_ALIAS)
    for backend in configured_backends():
        if backend.alias == alias:
            return backend.run(job)
    name = job.headers.get("handler")
    raise Reject(f'no handler "{name}"' if alias is None else f"no task backend {alias!r}")
