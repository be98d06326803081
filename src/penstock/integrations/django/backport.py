"""The backend of penstock for `django_tasks`."""

from __future__ import annotations

from django_tasks import base, exceptions, signals
from django_tasks.backends.base import BaseTaskBackend

from penstock.integrations.django.tasks_backend import TaskBackend

__all__ = ["PenstockBackport"]


class PenstockBackport(TaskBackend, BaseTaskBackend):
    """Adds tasks as jobs; `manage.py penstock_worker` runs them. See `TaskBackend`."""

    base = base
    exceptions = exceptions
    invalid = exceptions.InvalidTaskError
    signals = signals
