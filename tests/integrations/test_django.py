"""Django: the worker of a project, its database connections, and the backends of tasks (DEP 14)."""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from threading import Barrier, current_thread
from types import SimpleNamespace
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.cache import caches
from django.core.management import CommandError, call_command
from django.core.management.base import SystemCheckError
from django.db import connections, transaction
from django.test import override_settings
from django.utils.translation import activate, get_language

from penstock import Penstock, Worker
from penstock.errors import JobFailed
from penstock.integrations import django as integration
from penstock.integrations.django import project
from penstock.integrations.django.running import TaskHandler
from tests.support.backends import Backend

PACKAGES = {
    "django.tasks": "backend.PenstockBackend",
    "django_tasks": "backport.PenstockBackport",
}
INSTALLED = [package for package in PACKAGES if find_spec(package) is not None]
"""The one of Django is there from 6.0 on, which needs Python 3.12."""

if not settings.configured:
    settings.configure(
        INSTALLED_APPS=["penstock.integrations.django"],
        DATABASES={
            name: {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
            for name in ("default", "file")
        },
        USE_TZ=True,
    )
    django.setup()

TASKS = """
from {package} import task
from penstock.worker import Reject

seen = []

@task
def add(a, b=1):
    seen.append((a, b))
    return a + b

@task(queue_name="slow")
async def later(text):
    seen.append(text)

@task(takes_context=True)
def fails(context, text):
    seen.append(context.attempt)
    raise ValueError(text)

def plain():
    pass
"""


@pytest.fixture(params=INSTALLED)
def api(
    request: pytest.FixtureRequest,
    brief_backend: Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """A project with the backend of one of the packages."""
    package: str = request.param
    name = f"tasks_of_{package.replace('.', '_')}"
    (tmp_path / f"{name}.py").write_text(TASKS.format(package=package))
    monkeypatch.syspath_prepend(tmp_path)
    path = f"penstock.integrations.django.{PACKAGES[package]}"
    found = {"default": {"BACKEND": path, "QUEUES": ["default", "slow"]}}
    found["other"] = {**found["default"], "OPTIONS": {"max_attempts": 2}}
    found["commit"] = {**found["default"], "OPTIONS": {"enqueue_on_commit": True}}
    found["kept"] = {**found["default"], "OPTIONS": {"result_ttl": 60}}
    middleware = [integration.DatabaseConnections()]
    with (
        override_settings(TASKS=found),
        Penstock(brief_backend.sync_client(), middleware=middleware) as client,
    ):
        monkeypatch.setattr(project, "client", lambda: client)
        importlib.import_module(f"{package}.signals").clear_tasks_handlers(setting="TASKS")
        module = importlib.import_module(name)
        exceptions = importlib.import_module(f"{package}.exceptions")
        yield SimpleNamespace(
            tasks=module,
            client=client,
            signals=importlib.import_module(f"{package}.signals"),
            gone=exceptions.TaskResultDoesNotExist,
            invalid=getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError,
        )
    sys.modules.pop(name)


def worked() -> None:
    """Run all jobs of the project."""
    integration.make_worker(burst=True, concurrency=1).run()


def test_a_task_runs(api: Any) -> None:
    """Its job is in the task's queue, under the name of its function; signals are sent."""
    events: list[tuple[str, str, str]] = []

    def note(name: str) -> Any:
        def receive(task_result: Any, **_: Any) -> None:
            events.append((name, task_result.status.name, task_result.id))

        return receive

    receivers = [note(name) for name in ("task_enqueued", "task_started", "task_finished")]
    for name, receiver in zip(
        ("task_enqueued", "task_started", "task_finished"), receivers, strict=True
    ):
        getattr(api.signals, name).connect(receiver)
    result = api.tasks.add.enqueue(1, b=2)
    assert (result.status.name, result.args, result.kwargs) == ("READY", [1], {"b": 2})
    [view] = api.client.queue("default").peek()
    assert view.id == result.id
    assert view.headers["handler"] == api.tasks.add.module_path
    worked()
    assert api.tasks.seen == [(1, 2)]
    assert events == [
        ("task_enqueued", "READY", result.id),
        ("task_started", "RUNNING", result.id),
        ("task_finished", "SUCCESSFUL", result.id),
    ]


async def test_a_task_is_enqueued_by_a_coroutine(api: Any) -> None:
    """`aenqueue` adds it too; a task that is a coroutine function runs, from its own queue."""
    result = await api.tasks.later.aenqueue("x")
    assert result.task.queue_name == "slow"
    await asyncio.to_thread(worked)
    assert api.tasks.seen == ["x"]


def test_a_task_runs_later(api: Any) -> None:
    """`run_after` is the time from which its job is delivered."""
    at = datetime.now(timezone.utc) + timedelta(hours=1)
    api.tasks.add.using(run_after=at).enqueue(1)
    [view] = api.client.queue("default").peek(state="scheduled")
    assert abs(view.due - at.timestamp()) < 1
    with override_settings(USE_TZ=False, TIME_ZONE="UTC"):
        api.tasks.add.using(run_after=at.replace(tzinfo=None)).enqueue(2)
    both = api.client.queue("default").peek(state="scheduled")
    assert abs(both[0].due - both[1].due) < 1


def test_a_task_with_a_priority_comes_first(api: Any) -> None:
    """The priorities of Django are those of jobs, in steps."""
    for priority in (0, 1, 50, 100):
        api.tasks.add.using(priority=priority).enqueue(priority)
    assert [view.priority for view in api.client.queue("default").peek()] == [9, 5, 1, 0]
    worked()
    assert [first for first, _ in api.tasks.seen] == [100, 50, 1, 0]


def test_tasks_that_can_not_run_are_refused(api: Any) -> None:
    """As DEP 14 demands, when the task is made: another queue, a priority below the usual one, a
    naive time, a local function.
    """
    add = api.tasks.add
    for changes in (
        {"queue_name": "unknown"},
        {"priority": -1},
        {"priority": 101},
        {"run_after": datetime.now(timezone.utc).replace(tzinfo=None)},
    ):
        with pytest.raises(api.invalid):
            add.using(**changes)
    with pytest.raises(api.invalid):
        type(add)(func=lambda: None)
    with pytest.raises(TypeError):
        add.enqueue(object())
    assert api.client.queue("default").stats().ready == 0
    backend = add.get_backend()
    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert [getattr(backend, flag) for flag in flags] == [True, True, False, True]
    with pytest.raises(NotImplementedError):
        add.get_result("1")


def test_a_task_that_raises_has_failed(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Its job becomes a dead letter, at once or after `max_attempts`; the signal has the error, and
    the log says which attempt it was, of how many.
    """
    caplog.set_level(logging.INFO, "penstock")
    failures: list[Any] = []

    def note(task_result: Any, **_: Any) -> None:
        failures.append(task_result)

    api.signals.task_finished.connect(note)
    queue = api.client.queue("default")
    queue.configure(backoff_base=0.001)
    api.tasks.fails.enqueue("first")
    worked()
    api.tasks.fails.using(backend="other").enqueue("second")
    while queue.stats().dead < 2:
        worked()
    assert api.tasks.seen == [1, 1, 2]
    assert sorted(view.error for view in queue.peek(state="dead")) == [
        "builtins.ValueError: first",
        "builtins.ValueError: second",
    ]
    told = [re.findall(r"attempt (\d+) of (\d+)", message) for message in caplog.messages]
    assert [found for found in told if found] == [[("1", "1")], [("1", "2")], [("2", "2")]]
    assert [failure.status.name for failure in failures] == ["FAILED", "FAILED"]
    [error] = failures[-1].errors
    assert error.exception_class is ValueError
    assert "in fails" in error.traceback


async def test_results_of_tasks(api: Any) -> None:
    """With `result_ttl` a result can be retrieved from any process while the task waits, and after
    it has succeeded or failed; other ids don't exist.
    """
    add, fails = (one.using(backend="kept") for one in (api.tasks.add, api.tasks.fails))
    done, failed = add.enqueue(1, b=2), fails.using(queue_name="slow").enqueue("text")
    fresh = add.get_result(done.id)
    assert (fresh.status.name, fresh.args, fresh.attempts) == ("READY", [1], 0)
    await asyncio.to_thread(worked)
    done.refresh()
    await failed.arefresh()
    assert (done.status.name, done.return_value, done.attempts) == ("SUCCESSFUL", 3, 1)
    assert done.enqueued_at <= done.started_at == done.last_attempted_at
    assert done.finished_at is not None
    assert (failed.status.name, failed.attempts) == ("FAILED", 1)
    assert failed.errors[0].exception_class is ValueError
    assert "in fails" in failed.errors[0].traceback
    assert failed.errors[0].traceback.rstrip().endswith("ValueError: text")
    assert (await add.aget_result(done.id)).kwargs == {"b": 2}
    assert add.get_backend().supports_get_result
    unkept, cancelled = api.tasks.add.enqueue(1), add.enqueue(1)
    api.client.queue("default").cancel([cancelled.id])
    await asyncio.to_thread(worked)
    for job_id in (unkept.id, cancelled.id, "no id"):
        with pytest.raises(api.gone):
            add.get_result(job_id)


def test_jobs_that_are_no_tasks_have_no_task_results(api: Any) -> None:
    """The id of a job of a handler is no id of a task, before and after the job is done."""
    queue, add = api.client.queue("default"), api.tasks.add.using(backend="kept")
    job = queue.enqueue({"a": 1}, headers={"handler": "welcome"}, result_ttl=60)
    with pytest.raises(api.gone):
        add.get_result(job.id)
    for value in (7, {"a": 1}):
        Worker(api.client, queue, lambda _, value=value: value, burst=True).run()
        with pytest.raises(api.gone):
            add.get_result(job.id)
        job = queue.enqueue(1, result_ttl=60)


def test_a_task_waits_for_the_commit(api: Any) -> None:
    """With `enqueue_on_commit` its job is added when the transaction commits, and else never."""
    queue, task = api.client.queue("default"), api.tasks.add.using(backend="commit")
    with transaction.atomic():
        result = task.enqueue(1)
        assert (result.id, queue.stats().ready) == ("", 0)
    assert [view.id for view in queue.peek()] == [result.id]
    with transaction.atomic():
        task.enqueue(2)
        transaction.set_rollback(True)
    assert queue.stats().ready == 1


def test_jobs_that_are_no_tasks(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs without a task are given back with the reason: a worker of newer code may have it."""
    queue = api.client.queue("default")
    body, name = {"args": [], "kwargs": {}}, api.tasks.__name__
    named = [("x", None), ("nosuch.task", "default"), (f"{name}.plain", "default")]
    named.append((f"{name}.add", "gone"))
    headers = [
        {"handler": one} | ({"django-tasks": alias} if alias else {}) for one, alias in named
    ]
    jobs = [queue.enqueue(body, headers=one) for one in headers]
    worked()
    assert sum("is given back" in text for text in caplog.messages) == len(jobs)
    assert not any("dead" in text for text in caplog.messages)
    views = {view.id: view for view in queue.peek(state="scheduled")}
    assert [views[job.id].error.partition(":")[0] for job in jobs] == [
        'no handler "x"',
        "no task nosuch.task",
        f"{name}.plain is not a task of this backend",
        "no task backend 'gone'",
    ]


def test_a_task_that_came_with_a_deploy(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of older code leaves it; a worker that has it runs it."""
    queue = api.client.queue("default")
    job = api.tasks.add.enqueue(1)
    with monkeypatch.context() as older:
        older.delattr(api.tasks, "add")
        worked()
    assert queue.show(job.id).state == "scheduled"
    queue.promote([job.id])
    worked()
    assert api.tasks.seen == [(1, 1)]


def test_results_of_tasks_that_were_removed(api: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of a task that the code has no more does not exist."""
    add = api.tasks.add.using(backend="kept")
    done = add.enqueue(1)
    worked()
    waiting = add.enqueue(2)
    monkeypatch.delattr(api.tasks, "add")
    for job in (done, waiting):
        with pytest.raises(api.gone, match="is not in this code"):
            add.get_result(job.id)


@pytest.mark.parametrize(
    "error, kind",
    [
        ("builtins.ValueError: text", ValueError),
        ("ValueError: text", ValueError),
        ("buried: by hand", JobFailed),
        ("os.path: no class", JobFailed),
        ("", JobFailed),
    ],
)
def test_the_error_of_a_task_is_a_class(api: Any, error: str, kind: type) -> None:
    """A dead letter whose error is no exception has one of penstock's, and the text as trace."""
    add, queue = api.tasks.add.using(backend="kept"), api.client.queue("default")
    job = add.enqueue(1)
    [held] = queue.reserve(block=0)
    held.bury(error)
    [found] = add.get_result(job.id).errors
    assert (found.exception_class, found.traceback) == (kind, error)


def test_the_start_line_has_the_tasks(api: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A worker tells the tasks that it has."""
    caplog.set_level(logging.INFO, "penstock")
    handler = TaskHandler(print, None, key="")
    name = api.tasks.__name__
    assert handler.title == "no task yet"
    sys.modules[f"{name}.tasks"] = api.tasks
    assert handler.title == f"{name}.add, {name}.fails, {name}.later"
    worked()
    del sys.modules[f"{name}.tasks"]
    assert f"handlers: {name}.add, {name}.fails, {name}.later;" in caplog.text


def test_connections_are_closed_after_each_job(
    brief_backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database connections of a run are closed after it, but for those that CONN_MAX_AGE keeps;
    of these, one that is broken is dropped before the next run.
    """
    options = connections.databases["file"]
    monkeypatch.setitem(options, "NAME", str(tmp_path / "db"))
    monkeypatch.setitem(options, "CONN_HEALTH_CHECKS", True)
    seen: list[Any] = []
    broken: list[Any] = []
    wrapper = type(connections["file"])  # SQLite's has no broken ones: each counts as usable
    monkeypatch.setattr(wrapper, "is_usable", lambda self: self.connection not in broken)

    def handle(job: Any) -> None:
        seen.append(connections["file"].connection)
        with connections["file"].cursor() as cursor:
            cursor.execute("SELECT 1")
        seen.append(connections["file"].connection)
        if job.body == "breaks":
            broken.append(seen[-1])
            connections["file"].errors_occurred = True

    handlers = integration.Handlers()
    handlers.handler(None)(handle)
    middleware = [integration.DatabaseConnections()]
    with Penstock(brief_backend.sync_client(), middleware=middleware) as client:
        for age in (0, None):
            monkeypatch.setitem(options, "CONN_MAX_AGE", age)
            client.queue("q").enqueue_many(["a", "breaks", "c", "d"])
            integration.Worker(client, "q", handlers, burst=True, concurrency=1).run()
    before, used = seen[::2], seen[1::2]
    assert before == [None] * 5 + [used[4], None, used[6]]
    assert None not in used
    used[-1].close()  # its thread has ended, and from Python 3.13 on that is a warning


def test_caches_belong_to_the_threads_of_a_worker(
    brief_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a thread share them, jobs of two threads do not. A language is that of its job. A
    cache that can't be made fails the handler that uses it.
    """
    options = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    options["broken"] = {"BACKEND": "nosuch.Cache"}
    both, seen = Barrier(2), dict[str, list[Any]]()

    def handle(job: Any) -> None:
        if job.body == "broken":
            caches["broken"].get("x")
        seen.setdefault(current_thread().name, []).append(caches["default"])
        assert get_language() == "en-us"
        activate("de")
        both.wait(60)

    integration.client.cache_clear()
    server = brief_backend.sync_client()
    monkeypatch.setattr(project, "Penstock", lambda _, **options: Penstock(server, **options))
    handlers = integration.Handlers()
    handlers.handler(None)(handle)
    with override_settings(CACHES=options), integration.client() as client:
        queue = client.queue("q")
        queue.configure(max_attempts=1)
        queue.enqueue_many(["broken", *range(6)])
        Worker(client, "q", handlers, burst=True, concurrency=2).run()
        assert [view.body for view in queue.peek(state="dead")] == ["broken"]
    integration.client.cache_clear()
    first, second = [{id(one) for one in found} for found in seen.values()]
    assert (len(first), len(second), first & second) == (1, 1, set())


def test_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """It passes its options to the worker, and tells bad ones in one line."""
    given: list[Any] = []

    class Made:
        def run(self) -> None:
            """Do nothing."""

    command = importlib.import_module(
        "penstock.integrations.django.management.commands.penstock_worker"
    )
    monkeypatch.setattr(command, "make_worker", lambda **options: given.append(options) or Made())
    call_command("penstock_worker", "--queues", "a,b", "--time-limit", "5", "--burst")
    assert given == [{"queues": ["a", "b"], "time_limit": 5.0, "burst": True}]
    monkeypatch.undo()
    with pytest.raises(CommandError, match=r"concurrency=0"):
        call_command("penstock_worker", "--concurrency", "0", stderr=StringIO())


def test_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client has the URL and options of the setting, else PENSTOCK_URL."""
    integration.client.cache_clear()
    options = {"URL": "redis://127.0.0.1:1", "OPTIONS": {"owner": "web"}}
    with override_settings(PENSTOCK=options):
        made = integration.client()
        assert (made.owner, integration.client()) == ("web", made)
    integration.client.cache_clear()
    monkeypatch.setenv("PENSTOCK_URL", "nothing://")
    with pytest.raises(ValueError, match="must be a URL"):
        integration.client()
    integration.client.cache_clear()


@pytest.mark.parametrize(
    "settings_given, fault",
    [
        ({"PENSTOCK": {"URI": "redis://:secret@a"}}, "PENSTOCK['URI']='<not shown>': no such key"),
        ({"PENSTOCK": {"OPTIONS": {"retry": 1}}}, "(did you mean 'retry_for'?)"),
        (
            {"TASKS": {"default": {"OPTIONS": {"max_atempts": 3}}}},
            "OPTIONS['max_atempts']='<not shown>': no such key (did you mean 'max_attempts'?)",
        ),
    ],
    ids=["setting", "option", "backend"],
)
def test_settings_that_are_misspelled(settings_given: dict[str, Any], fault: str) -> None:
    """`manage.py check` tells of them, and so does a worker at its start."""
    integration.client.cache_clear()
    path = f"penstock.integrations.django.{PACKAGES[INSTALLED[0]]}"
    for one in settings_given.get("TASKS", {}).values():
        one["BACKEND"] = path
    signals = importlib.import_module(f"{INSTALLED[0]}.signals")
    with override_settings(**settings_given):
        signals.clear_tasks_handlers(setting="TASKS")
        with pytest.raises(SystemCheckError) as caught:
            call_command("check")
        assert fault in str(caught.value)
        assert "secret" not in str(caught.value)
        with pytest.raises(CommandError, match=re.escape(fault)):
            call_command("penstock_worker", "--burst", skip_checks=True)
    signals.clear_tasks_handlers(setting="TASKS")
    assert not call_command("check", stdout=StringIO())
