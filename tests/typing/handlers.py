"""Handlers as written by users. Not run: the type checker is the test."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tenacity import stop_after_attempt, wait_exponential, wait_fixed
from typing_extensions import assert_type

from penstock import AsyncJob, AsyncQueue, Enqueued, Job, Queue
from penstock.core.policy import RetryPolicy
from penstock.worker import (
    Done,
    Handler,
    Handlers,
    JobArgs,
    Reject,
    Result,
    Retry,
    Snooze,
    Verdict,
)

handlers = Handlers()


@handlers.handler
def bare(job: Job) -> None: ...


@handlers.handler()
async def tried(job: AsyncJob) -> Result | None:
    return Retry(after=timedelta(minutes=1)) if job.attempt == 1 else None


@handlers.handler(
    "welcome", lease=60, retry=RetryPolicy(max_attempts=3, on={OSError: RetryPolicy()})
)
def welcome(user_id: int, lang: str = "en") -> str:
    return f"{user_id} {lang}"


@handlers.handler("resize", wait=wait_exponential() + wait_fixed(1), stop=stop_after_attempt(5))
async def resize(job: AsyncJob, path: str, *, width: int | None = None) -> None: ...


@handlers.handler("mixed")
def mixed(path: str, *sizes: int, job: Job | None = None) -> Done:
    return Done()


@handlers.handler("anything")
def anything(value: Any, job: Any = None) -> None: ...


@handlers.batch("index", size=100, wait=timedelta(milliseconds=50), retry=RetryPolicy(base=1))
def index(jobs: list[Job]) -> list[Result | None]:
    return [Done(dedup_window=5), Snooze(10), Reject("no"), None, *(None for _ in jobs)]


@handlers.batch(size=10)
async def rest(jobs: list[AsyncJob]) -> None: ...


async def calling(job: Job, other: AsyncJob) -> None:
    assert_type(welcome(7, lang="de"), str)
    assert_type(bare(job), None)
    assert_type(await resize(other, "a.png", width=5), None)
    assert_type(index([job]), list[Result | None])
    assert_type(mixed("a", 1, 2, job=job), Done)


async def enqueueing(q: Queue, aq: AsyncQueue) -> None:
    assert_type(welcome.job(7), JobArgs)
    assert_type(q.enqueue(**welcome.job(7, lang="de"), delay=3), Enqueued)
    assert_type(welcome.enqueue(q, 7, lang="de"), Enqueued)
    assert_type(await resize.enqueue(aq, "a.png", width=5), Enqueued)
    welcome.enqueue(q, "x")  # type: ignore[call-overload]  # not the type of the parameter
    assert_type(await aq.enqueue(**resize.job("a.png", width=5), ttl=60), Enqueued)
    q.enqueue(**index.job({"page": 1}))
    q.enqueue(**bare.job([1, 2]))
    q.enqueue(**mixed.job("a", 1, 2))
    q.enqueue(**anything.job(5))
    q.enqueue_many([welcome.body(n) for n in range(5)], headers=welcome.headers)


def looking(job: Job, other: Handlers) -> None:
    handlers.include(other)
    assert_type(other.handler(bare), Handler[[Any], None])
    found = handlers.find(job)
    assert_type(found, Handler[..., Any] | None)
    if found is None:
        assert_type(handlers.missing(job), str)
    else:
        assert_type(found.is_async, bool)
        assert_type(found.size, int | None)
        assert_type(found.arguments(job), tuple[tuple[Any, ...], dict[str, Any]])
        assert_type(found.returned(job, 5), Verdict)
        assert_type(found.failed(job, ValueError()).delay_ms, int)
        assert_type(found.returned_batch([job], None), list[Verdict] | None)


def mistakes(job: Job) -> None:
    def one(job: Job) -> None: ...

    welcome.job("x")  # type: ignore[arg-type]  # not the type of the parameter
    welcome.job(7, language="de")  # type: ignore[call-arg]  # no such argument
    welcome.job()  # type: ignore[call-arg]  # one is missing
    welcome("x")  # type: ignore[arg-type]  # the function itself has the same types
    resize.job(job, "a.png")  # type: ignore[call-arg, arg-type]  # the job is not one of the arguments
    bare.job()  # type: ignore[call-arg]  # the body is missing
    handlers.handler("x", wait=5)  # type: ignore[call-overload]  # not an object of tenacity
    handlers.batch("x")  # type: ignore[call-arg]  # no size
    handlers.batch(size=1)(one)  # type: ignore[arg-type]  # gets a list
    Snooze()  # type: ignore[call-arg]  # needs seconds
    Reject(5)  # type: ignore[arg-type]  # not a text
