"""The backend of penstock for `django.tasks`."""

from __future__ import annotations

from django.tasks import base, exceptions, signals
from django.tasks.backends.base import BaseTaskBackend

from penstock.integrations.django.tasks_backend import TaskBackend

__all__ = ["PenstockBackend"]


class PenstockBackend(TaskBackend, BaseTaskBackend):
    """Adds tasks as jobs; `manage.py penstock_worker` runs them. See `TaskBackend`."""

    base = base
    exceptions = exceptions
    invalid = exceptions.InvalidTask
    signals = signals
