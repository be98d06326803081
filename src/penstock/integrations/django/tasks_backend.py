"""The backend of Django's tasks (DEP 14), for `django.tasks` and for the package `django-tasks`.

Both have the same classes in other modules; `backend.py` and `backport.py` name them.
"""

from __future__ import annotations

from datetime import datetime, timezone
from traceback import format_exception
from types import ModuleType
from typing import Any

from django.db import transaction
from django.utils import timezone as django_time
from django.utils.module_loading import import_string

from penstock.client._sync.queue import Queue
from penstock.core.job import Delivery, Enqueued
from penstock.core.options import check_count
from penstock.integrations.django.running import ALIAS
from penstock.worker import Reject
from penstock.worker.results import described

__all__ = ["TaskBackend"]


class TaskBackend:
    """Mixed into the base class of backends.

    A task is a job in the queue with the task's `queue_name`; its handler is the path of its
    function. The options (`OPTIONS` of the backend):

    - `enqueue_on_commit`: add the job when the transaction of the default database commits. Until
      then the result has no id. Default: False.
    - `max_attempts`: how often a task that raises is tried; default 1, as with Django's own
      backends. After the last attempt the task has failed, and its job is a dead letter. A task
      whose worker dies runs again in any case.
    """

    base: ModuleType
    signals: ModuleType
    alias: str
    queues: set[str]
    options: dict[str, Any]
    task_class: Any
    validate_task: Any

    supports_defer = True
    supports_async_task = True
    supports_get_result = False
    supports_priority = False

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        make: Any = super().__init__
        make(alias, params)
        self._max_attempts = self.options.get("max_attempts", 1)
        check_count("max_attempts", self._max_attempts)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Add a task's job, at once or when the transaction commits.

        Raises:
            InvalidTaskError (django-tasks), InvalidTask (Django): the task can't run here.
            As `Queue.enqueue`; nothing was added.
        """
        self.validate_task(task)
        result = self._result(task, "", "READY", args, kwargs)

        def add() -> None:
            job = self._add(task, result)
            _set(result, id=job.id, enqueued_at=django_time.now())
            self.signals.task_enqueued.send(type(self), task_result=result)

        if self.options.get("enqueue_on_commit"):
            transaction.on_commit(add)
        else:
            add()
        return result

    def _add(self, task: Any, result: Any) -> Enqueued:
        at = task.run_after
        if at is not None and at.tzinfo is None:  # without USE_TZ
            at = django_time.make_aware(at)
        headers = {"handler": task.module_path, ALIAS: self.alias}
        body = {"args": result.args, "kwargs": result.kwargs}
        return self._queue(task).enqueue(body, at=at, headers=headers)

    def _queue(self, task: Any) -> Queue:
        from penstock.integrations.django import client

        return client().queue(task.queue_name)

    def _result(self, task: Any, job_id: str, status: str, args: Any, kwargs: Any) -> Any:
        return self.base.TaskResult(
            task=task,
            id=job_id,
            status=self.base.TaskResultStatus[status],
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs=dict(kwargs),
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    # In a worker

    def run(self, job: Delivery) -> Any:
        """Run the task of a job; return the value of its function.

        Raises:
            Reject: the task can't be run, or has failed for the last time.
            Any exception of the function: it is tried again.
        """
        path = job.headers["handler"]
        try:
            task = import_string(path)
        except ImportError as error:
            raise Reject(f"no task {path}: {error}") from error
        if not isinstance(task, self.task_class):
            raise Reject(f"{path} is not a task of this backend")
        result = self._result(task, job.id, "RUNNING", **job.body)
        _set(
            result,
            enqueued_at=datetime.fromtimestamp(job.created, timezone.utc),
            started_at=django_time.now(),
            last_attempted_at=django_time.now(),
        )
        result.worker_ids.extend([job.owner] * job.attempt)
        self.signals.task_started.send(type(self), task_result=result)
        context = [self.base.TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = task.call(*context, *result.args, **result.kwargs)
        except Exception as error:
            if job.attempt < self._max_attempts:
                raise
            self._failed(result, error)
            raise Reject(described(error)) from error
        _set(result, _return_value=value)
        self._finished(result, "SUCCESSFUL")
        return value

    def _failed(self, result: Any, error: Exception) -> None:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        trace = "".join(format_exception(error))
        result.errors.append(self.base.TaskError(exception_class_path=path, traceback=trace))
        self._finished(result, "FAILED")

    def _finished(self, result: Any, status: str) -> None:
        _set(result, finished_at=django_time.now(), status=self.base.TaskResultStatus[status])
        self.signals.task_finished.send(type(self), task_result=result)


def _set(result: Any, **values: Any) -> None:
    """Set attributes of a result, which is frozen, as Django's own backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
