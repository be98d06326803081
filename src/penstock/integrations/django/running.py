"""Run the tasks of Django's task backends in a worker."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from penstock.core.jobs.job import Delivery
from penstock.integrations.django.project import ALIAS_HEADER
from penstock.worker.calling import Handler
from penstock.worker.failures import Backoff
from penstock.worker.messages import shortened
from penstock.worker.missing import NoHandler
from penstock.worker.results import Verdict

if TYPE_CHECKING:
    from penstock.integrations.django.tasks_backend import TaskBackend

__all__ = ["TaskBackoff", "TaskHandler", "configured_backends", "run_task"]

TASK_MODULES = ("tasks", "jobs")
"""Modules of each app that a worker imports."""
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


class TaskHandler(Handler[..., ..., Any]):
    """The default handler of a worker, which runs the tasks of its backends."""

    @property
    def title(self) -> str:
        """Names of the tasks in the modules that the worker has imported."""
        kinds = tuple({backend.task_class for backend in configured_backends()})
        modules = [module for name, module in sorted(sys.modules.items()) if _has_tasks(name)]
        found = [one for module in modules for one in vars(module).values()]
        names = {one.module_path: None for one in found if isinstance(one, kinds)}
        return shortened(sorted(names)) or "no task yet"


def _has_tasks(module: str) -> bool:
    return module.rpartition(".")[2] in TASK_MODULES


class TaskBackoff(Backoff):
    """The retries of tasks: the queue's pauses, and the limit of attempts of their backend."""

    def verdict(self, job: Delivery, error: BaseException, text: str) -> Verdict:
        """Return the verdict on a task that has raised."""
        backend = _backend_of(job)
        limit = 0 if backend is None else backend.max_attempts
        return super().verdict(job, error, text)._replace(limit=limit)


def _backend_of(job: Delivery) -> TaskBackend | None:
    alias = job.headers.get(ALIAS_HEADER)
    return next((one for one in configured_backends() if one.alias == alias), None)


def run_task(job: Delivery) -> Any:
    """Run a job that a backend has added: the default handler of the worker.

    Raises:
        NoHandler: there is no such task or backend; another worker, of newer code, may have it.
    """
    backend = _backend_of(job)
    if backend is not None:
        return backend.run(job)
    name, alias = job.headers.get("handler"), job.headers.get(ALIAS_HEADER)
    raise NoHandler(f'no handler "{name}"' if alias is None else f"no task backend {alias!r}")
