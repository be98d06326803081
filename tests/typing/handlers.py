"""Handlers as written by users. Not run: the type checker is the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterator
from datetime import timedelta
from typing import Any

from tenacity import stop_after_attempt, wait_exponential, wait_fixed
from typing_extensions import assert_type

from penstock import (
    AsyncBoundHandler,
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncSteps,
    AsyncWorker,
    BoundHandler,
    BulkEnqueued,
    Dedup,
    Enqueued,
    Handler,
    Job,
    NewJob,
    NewJobs,
    Penstock,
    Queue,
    Steps,
    Worker,
)
from penstock.core.values.policy import RetryPolicy
from penstock.worker import (
    STATE,
    Done,
    Handlers,
    Reject,
    Result,
    Retry,
    Snooze,
    State,
    Verdict,
)
from penstock.worker.registered import AnyHandler

POLICY = RetryPolicy(max_attempts=3)
handlers = Handlers()
emails = Penstock().queue("emails")
sms = AsyncPenstock().queue("sms")


@handlers.handler(None)
def bare(job: Job) -> None: ...


@handlers.handler
def named(to: str, lang: str = "en") -> int:
    return 1


@handlers.handler
def given(job: Job, to: str) -> None: ...


@handlers.handler
def stepped(steps: Steps, to: str) -> int:
    value = steps.run("a", named.function, to, lang="de")
    assert_type(steps.run("b", len, [1]), int)
    assert_type(steps.key("a"), str)
    steps.run("c", len, 7)  # type: ignore[arg-type]
    assert_type(steps.call("d", named.job(to)), int)
    assert_type(steps.gather("e", [named.job(to)]), list[int])
    assert_type(steps.call("f", stepped_later.job(to)), str)
    assert isinstance(value, int)
    return value


@handlers.handler("later", lease=60)
async def stepped_later(steps: AsyncSteps, to: str) -> str:
    assert_type(await steps.run("a", fetched, to), bytes)
    assert_type(await steps.run("b", len, [1]), int)
    assert_type(await steps.call("d", named.job(to)), int)
    assert_type(await steps.gather("e", [stepped_later.job(to)]), list[str])
    return to


async def fetched(name: str) -> bytes:
    return name.encode()


async def enqueue_stepped() -> None:
    """Steps are no argument of a job; a call of the function needs them."""
    stepped.enqueue(emails, "ada")
    await stepped_later.enqueue(sms, to="ada")
    stepped.enqueue(emails, Steps.local(), "ada")  # type: ignore[call-overload]
    assert_type(stepped(Steps.local(), "ada"), int)


@emails.handler
def bound(to: str, lang: str = "en") -> int:
    return 1


@emails.handler("bound-2", lease=60, retry=RetryPolicy(3), time_limit=5)
def bound_job(job: Job, to: str) -> None: ...


@emails.handler(None)
def bound_bare(job: Job) -> None: ...


@sms.handler()
async def text(to: str) -> int:
    return 1


@handlers.handler(None, queue="emails")
async def tried(job: AsyncJob) -> Result | None:
    return Retry(after=timedelta(minutes=1)) if job.attempt == 1 else None


@handlers.handler("welcome", queue="emails", lease=60, retry=RetryPolicy(on={OSError: POLICY}))
def welcome(user_id: int, lang: str = "en") -> str:
    return f"{user_id} {lang}"


@handlers.handler("resize", wait=wait_exponential() + wait_fixed(1), stop=stop_after_attempt(5))
async def resize(job: AsyncJob, path: str, *, width: int | None = None) -> None: ...


@handlers.handler("mixed")
def mixed(path: str, *sizes: int, job: Job | None = None) -> Done:
    return Done()


@handlers.handler("anything")
def anything(value: Any, job: Any = None) -> None: ...


@handlers.chunk("index", size=100, wait=timedelta(milliseconds=50), retry=RetryPolicy(base=1))
def index(jobs: list[Job]) -> list[Result | None]:
    return [Done(dedup_window=5), Snooze(10), Reject("no"), None, *(None for _ in jobs)]


@handlers.chunk(None, size=10)
async def rest(jobs: list[AsyncJob]) -> None: ...


async def calling(job: Job, other: AsyncJob) -> None:
    assert_type(welcome(7, lang="de"), str)
    assert_type(bare(job), None)
    assert_type(await resize(other, "a.png", width=5), None)
    assert_type(index([job]), list[Result | None])
    assert_type(mixed("a", 1, 2, job=job), Done)


async def enqueueing(q: Queue, aq: AsyncQueue) -> None:
    assert_type(welcome.job(7), NewJob[str])
    assert_type(q.enqueue(welcome.job(7, lang="de"), delay=3), Enqueued)
    assert_type(welcome.enqueue(q, 7, lang="de"), Enqueued)
    assert_type(await resize.enqueue(aq, "a.png", width=5), Enqueued)
    welcome.enqueue(q, "x")  # type: ignore[call-overload]  # not the type of the parameter
    welcome.enqueue(7)  # type: ignore[call-overload]  # the queue is missing
    welcome.options(delay=5).enqueue(7)  # type: ignore[call-overload]  # same
    welcome.enqueue_many([7])  # type: ignore[call-overload]  # same
    assert_type(await aq.enqueue(resize.job("a.png", width=5), ttl=60), Enqueued)
    q.enqueue(index.job({"page": 1}))
    q.enqueue(bare.job([1, 2]))
    q.enqueue(mixed.job("a", 1, 2))
    q.enqueue(anything.job(5))
    assert_type(named.enqueue(q, "ada", lang="de"), Enqueued)
    assert_type(given.enqueue(q, "ada"), Enqueued)
    given.enqueue(q)  # type: ignore[call-overload]  # an argument is missing
    later = welcome.options(delay=60, ttl=3600, retry=RetryPolicy(1), lease=5, headers={"a": "b"})
    kept: Handler[..., ..., str] = later
    assert_type(kept.lease, timedelta | int | float | None)
    assert_type(later.options(dedup=Dedup("x"), key="k").enqueue(q, 7, lang="de"), Enqueued)
    assert_type(await later.enqueue(aq, 7), Enqueued)
    later.enqueue(q, "x")  # type: ignore[call-overload]  # not the type of the parameter
    assert_type(welcome.jobs([1, 2], lang="de"), NewJobs)
    assert_type(q.enqueue_many(welcome.jobs(range(5))), BulkEnqueued)
    assert_type(q.enqueue_many([welcome.job(1), named.job("a")]), BulkEnqueued)
    assert_type(welcome.enqueue_many(q, range(5), lang="de"), BulkEnqueued)
    assert_type(await welcome.enqueue_many(aq, range(5)), BulkEnqueued)


async def enqueueing_in_one_queue(ps: Penstock, aps: AsyncPenstock) -> None:
    first: BoundHandler[..., ..., int] = bound
    second: AsyncBoundHandler[..., ..., Coroutine[Any, Any, int]] = text
    third: Handler[..., ..., int] = bound  # type: ignore[assignment]  # another type
    fourth: BoundHandler[..., ..., int] = named  # type: ignore[assignment]  # same
    del first, second, third, fourth
    assert_type(bound("ada"), int)
    assert_type(bound.enqueue("ada", lang="de"), Enqueued)
    assert_type(bound_job.enqueue("ada"), Enqueued)
    assert_type(bound_bare.enqueue({"any": "thing"}), Enqueued)
    assert_type(await text.enqueue("ada"), Enqueued)
    assert_type(bound.options(delay=5).enqueue("ada"), Enqueued)
    assert_type(await text.options(delay=5).enqueue("ada"), Enqueued)
    assert_type(bound.enqueue_many(["ada"], lang="de"), BulkEnqueued)
    assert_type(await text.enqueue_many(["ada"]), BulkEnqueued)
    assert_type(bound.job("ada"), NewJob)
    bound.enqueue(emails, "ada")  # type: ignore[arg-type]  # it has a queue
    bound.enqueue()  # type: ignore[call-arg]  # one is missing
    bound_job.enqueue("ada", 5)  # type: ignore[call-arg]  # no such argument
    bound.options(delay=5).enqueue(emails, "ada")  # type: ignore[arg-type]  # it has a queue
    assert_type(emails.handlers, Handlers)
    Worker(ps, emails)
    Worker(ps, [emails, "other"], handlers)
    Worker(ps, {emails: 3, "other": 1}, handlers)
    Worker(ps, handlers=handlers)
    AsyncWorker(aps, sms)
    AsyncWorker(aps, [sms], handlers)


def looking(job: Job, other: Handlers) -> None:
    handlers.include(other)
    assert_type(other.handler(bare), Handler[[Job], [object], None])
    assert_type(other.handler(bound).enqueue("ada"), Enqueued)
    found = handlers.find(job)
    assert_type(found, AnyHandler | None)
    if found is None:
        assert_type(handlers.missing(job), str)
    else:
        assert_type(found.is_async, bool)
        assert_type(found.size, int | None)
        assert_type(found.arguments(job), tuple[tuple[Any, ...], dict[str, Any]])
        assert_type(found.verdict_on_value(job, 5), Verdict)
        assert_type(found.verdict_on_error(job, ValueError()).delay_ms, int)
        assert_type(found.verdicts_on_chunk([job], None), list[Verdict] | None)


def mistakes(job: Job) -> None:
    def one(job: Job) -> None: ...

    welcome.job("x")  # type: ignore[arg-type]  # not the type of the parameter
    welcome.job(7, language="de")  # type: ignore[call-arg]  # no such argument
    welcome.job()  # type: ignore[call-arg]  # one is missing
    welcome("x")  # type: ignore[arg-type]  # the function itself has the same types
    resize.job(job, "a.png")  # type: ignore[call-arg, arg-type]  # the job is not one of the arguments
    welcome.delay(7)  # type: ignore[attr-defined]  # a call of another library
    bare.job()  # type: ignore[call-arg]  # the body is missing
    welcome.options(urgency=5)  # type: ignore[call-arg]  # no such option
    welcome.options(delay="5")  # type: ignore[arg-type]  # no duration
    handlers.handler("x", wait=5)  # type: ignore[call-overload]  # not an object of tenacity
    handlers.chunk("x")  # type: ignore[call-arg]  # no size
    handlers.chunk(size=1)(one)  # type: ignore[arg-type]  # gets a list
    Snooze()  # type: ignore[call-arg]  # needs seconds
    Reject(5)  # type: ignore[arg-type]  # not a text


class Pool:
    """A resource of handlers."""


@handlers.handler("pooled")
def pooled(name: str, pool: State[Pool] = STATE) -> int:
    assert_type(pool, Pool)
    return len(name)


def lifespans(threads: Worker, loop: AsyncWorker, ps: Penstock) -> None:
    """Lifespans and hooks keep their types; a `State` parameter needs no argument."""

    @threads.lifespan
    def plain() -> Iterator[Pool]:
        yield Pool()

    @loop.lifespan
    async def own(worker: AsyncWorker) -> AsyncIterator[Pool]:
        assert_type(worker.name, str)
        yield Pool()

    @threads.on_start
    def begin() -> None: ...

    @loop.on_stop
    async def end() -> None: ...

    assert_type(begin(), None)
    assert_type(plain(), Iterator[Pool])
    assert_type(pooled.enqueue(ps.queue("q"), "ada"), Enqueued)
    del own, end
