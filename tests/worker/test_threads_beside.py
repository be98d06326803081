"""Plain functions in an AsyncWorker run in threads."""

from __future__ import annotations

import contextvars
from typing import Any

import pytest

from penstock import Queue
from penstock.worker import AsyncWorker
from tests.worker.support import add


@pytest.mark.parametrize("error", [StopIteration, ValueError, KeyboardInterrupt])
async def test_an_exception_is_the_failure_of_its_job(
    error: type[BaseException], queue: Queue, worker_url: str
) -> None:
    """Any exception is the job's failure, also StopIteration, which a future can't hold."""

    def luckless(job: Any) -> None:
        raise error("no luck")

    queue.configure(max_attempts=1)
    add(queue, 2)
    await AsyncWorker(worker_url, "work", luckless, concurrency=1, burst=True).run()
    assert [error.__name__ in job.error for job in queue.peek(state="dead")] == [True, True]


async def test_a_function_sees_the_context_of_its_task(queue: Queue, worker_url: str) -> None:
    """Context variables set at the worker's start or by a hook are visible in the thread."""
    seen: list[str] = []
    where = contextvars.ContextVar("where", default="nowhere")
    where.set("here")

    def look(job: Any) -> None:
        seen.append(where.get())

    add(queue, 1)
    await AsyncWorker(worker_url, "work", look, burst=True).run()
    assert seen == ["here"]
