"""The backend of Django's tasks (DEP 14), for `django.tasks` and for the package `django-tasks`.

Both have the same classes in other modules; `backend.py` and `backport.py` name them.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timezone
from math import ceil
from traceback import format_exception
from types import ModuleType
from typing import Any

from django.db import transaction
from django.utils import timezone as django_time
from django.utils.module_loading import import_string

from penstock.client._sync.client import Penstock
from penstock.core.jobs.enqueued import Enqueued
from penstock.core.jobs.job import Delivery
from penstock.core.jobs.views import JobView
from penstock.core.values.caught import message_of
from penstock.core.values.checks import check_count, check_text, duration_ms
from penstock.errors import BadJobId, JobFailed, ResultGone
from penstock.integrations.django import project
from penstock.integrations.django.project import ALIAS_HEADER, check_names
from penstock.worker import Reject
from penstock.worker.missing import NoHandler
from penstock.worker.results import MAX_TEXT_BYTES

__all__ = ["TaskBackend"]

BACKEND_OPTIONS = ("enqueue_on_commit", "max_attempts", "result_ttl")
STATUS_OF_STATE = {"active": "RUNNING", "dead": "FAILED", "expired": "FAILED"}
"""The statuses of tasks by the states of their jobs; all others are ready."""


class TaskBackend:
    """Mixed into the base class of backends.

    A task is a job in the queue with the task's `queue_name`; its handler is the path of its
    function. The options (`OPTIONS` of the backend):

    - `enqueue_on_commit`: add the job when the transaction of the default database commits. Until
      then the result has no id. Default: False.
    - `max_attempts`: how often a task that raises is tried; default 1, as with Django's own
      backends. After the last attempt the task has failed, and its job is a dead letter. A task
      whose worker dies runs again in any case.
    - `result_ttl`: seconds for which the result of a task that has succeeded is kept. Default: 0,
      and then results can't be retrieved.
    """

    base: ModuleType
    exceptions: ModuleType
    invalid: type[Exception]
    signals: ModuleType
    alias: str
    queues: set[str]
    options: dict[str, Any]
    task_class: Any

    supports_defer = True
    supports_async_task = True
    supports_get_result = False
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        make: Any = super().__init__
        make(alias, params)
        check_names("OPTIONS", self.options, BACKEND_OPTIONS)
        self.max_attempts = self.options.get("max_attempts", 1)
        check_count("max_attempts", self.max_attempts)
        self._result_ttl = self.options.get("result_ttl", 0)
        self.supports_get_result = duration_ms("result_ttl", self._result_ttl) > 0

    def validate_task(self, task: Any) -> None:
        """Check a task when it is made, and when it is enqueued.

        Raises:
            InvalidTaskError (django-tasks), InvalidTask (Django): the task can't run here.
        """
        inherited: Any = super()
        inherited.validate_task(task)
        if task.priority < 0:
            text = f"priority={task.priority}: must be 0 to 100; no job comes after the usual ones."
            raise self.invalid(text)

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
        headers = {"handler": task.module_path, ALIAS_HEADER: self.alias}
        body = {"args": result.args, "kwargs": result.kwargs}
        ttl = self._result_ttl or None
        return self._client.queue(task.queue_name).enqueue(
            body, at=at, headers=headers, result_ttl=ttl, priority=ceil(task.priority * 9 / 100)
        )

    @property
    def _client(self) -> Penstock:
        return project.client()

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

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task, with its present status. Other jobs have none.

        Raises:
            TaskResultDoesNotExist: there is no such task, or its result is kept no longer, or the
                code has no more the function of the task.
            NotImplementedError: the backend has no `result_ttl`.
        """
        if not self.supports_get_result:
            inherited: Any = super()
            return inherited.get_result(result_id)
        for name in self.queues or self._client.queues():
            queue = self._client.queue(name)
            try:
                view = queue.show(result_id)
                if view is not None and view.state == "done":
                    kept = queue.result(result_id, timeout=0)
                    if isinstance(kept, dict) and ALIAS_HEADER in kept:
                        return self._kept(view, kept)
                elif view is not None and ALIAS_HEADER in view.headers:
                    return self._waiting(view)
            except (BadJobId, ResultGone):  # of another queue; removed between the calls
                pass
        raise self.exceptions.TaskResultDoesNotExist(result_id)

    def _waiting(self, view: JobView) -> Any:
        status = STATUS_OF_STATE.get(view.state, "READY")
        task = self._task(view.headers["handler"], view.id)
        result = self._result(task, view.id, status, **view.body)
        at, ended = _moment(view.delivered), _moment(view.died)
        _set(result, enqueued_at=_moment(view.created), last_attempted_at=at, started_at=at)
        _set(result, finished_at=ended)
        result.worker_ids.extend([view.owner] * view.deliveries)
        if status == "FAILED":
            path, make = _class_path(view.error), self.base.TaskError
            trace = view.trace or view.error
            result.errors.append(make(exception_class_path=path, traceback=trace))
        return result

    def _task(self, path: str, job_id: str) -> Any:
        try:
            return import_string(path)
        except ImportError as error:
            reason = f"{job_id}: its task {path} is not in this code"
            raise self.exceptions.TaskResultDoesNotExist(reason) from error

    def _kept(self, view: JobView, kept: dict[str, Any]) -> Any:
        task = self._task(kept["task"], view.id)
        result = self._result(task, view.id, "SUCCESSFUL", kept["args"], kept["kwargs"])
        started, finished = _moment(kept["started"]), _moment(view.finished or view.now)
        _set(result, enqueued_at=_moment(kept["enqueued"]), _return_value=kept["value"])
        _set(result, started_at=started, last_attempted_at=started, finished_at=finished)
        result.worker_ids.extend(kept["workers"])
        return result

    # In a worker

    def run(self, job: Delivery) -> Any:
        """Run the task of a job; return the value of its function.

        Raises:
            NoHandler: this code has no such task.
            Reject: the task has failed for the last time.
            Any exception of the function: it is tried again.
        """
        path = job.headers["handler"]
        try:
            task = import_string(path)
        except ImportError as error:
            raise NoHandler(f"no task {path}: {error}") from error
        if not isinstance(task, self.task_class):
            raise NoHandler(f"{path} is not a task of this backend")
        result = self._result(task, job.id, "RUNNING", **job.body)
        now = django_time.now()
        _set(result, enqueued_at=_moment(job.created), started_at=now, last_attempted_at=now)
        result.worker_ids.extend([job.owner] * job.attempt)
        self.signals.task_started.send(type(self), task_result=result)
        context = [self.base.TaskContext(task_result=result)] if task.takes_context else []
        try:
            value = self.base.normalize_json(task.call(*context, *result.args, **result.kwargs))
        except Exception as error:
            if job.attempt < self.max_attempts:
                raise
            self._failed(result, error)
            text = f"{_path(error)}: {message_of(error)}"
            last = Reject(check_text("error", text, limit=MAX_TEXT_BYTES))
            last.verdict = last.verdict._replace(limit=self.max_attempts)
            raise last from error
        _set(result, _return_value=value)
        self._finished(result, "SUCCESSFUL")
        if not self.supports_get_result:
            return None
        return {  # all that `get_result` needs: the job itself is removed
            ALIAS_HEADER: self.alias,
            "task": path,
            "args": result.args,
            "kwargs": result.kwargs,
            "value": value,
            "enqueued": job.created,
            "started": result.started_at.timestamp(),
            "workers": result.worker_ids,
        }

    def _failed(self, result: Any, error: Exception) -> None:
        trace = "".join(format_exception(error))
        failure = self.base.TaskError(exception_class_path=_path(error), traceback=trace)
        result.errors.append(failure)
        self._finished(result, "FAILED")

    def _finished(self, result: Any, status: str) -> None:
        _set(result, finished_at=django_time.now(), status=self.base.TaskResultStatus[status])
        self.signals.task_finished.send(type(self), task_result=result)


def _path(error: Exception) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _class_path(error: str) -> str:
    """Return the path of the exception in the error of a job; other errors are a `JobFailed`."""
    path = error.partition(": ")[0]
    with suppress(ImportError, ValueError):
        found = import_string(path if "." in path else f"builtins.{path}")
        if isinstance(found, type) and issubclass(found, BaseException):
            return f"{found.__module__}.{found.__qualname__}"
    return f"{JobFailed.__module__}.{JobFailed.__qualname__}"


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)


def _set(result: Any, **values: Any) -> None:
    """Set attributes of a result, which is frozen, as Django's own backends do."""
    for name, value in values.items():
        object.__setattr__(result, name, value)
