"""Handlers: registration, lookup by a job's name, and the verdict on a job."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import pickle
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal

import fakeredis
import pytest
from tenacity import (
    RetryCallState,
    stop_after_attempt,
    stop_after_delay,
    stop_before_delay,
    wait_exception,
    wait_exponential,
    wait_fixed,
)
from tenacity.wait import wait_base

from penstock import AsyncPenstock, BadArgument, Job, Penstock, UndecodableBody
from penstock.core.jobs.middleware import EnqueueEvent, Middleware
from penstock.core.values.policy import RetryPolicy
from penstock.worker import (
    ACK,
    Done,
    Handler,
    Handlers,
    Reject,
    Result,
    Retry,
    Snooze,
    Unfit,
    Verdict,
)
from tests.support.backends import Backend
from tests.worker.deliveries import made, named, stored

LEFT = Verdict("nack", text="ValueError: x")


def asked(delay_ms: int, text: str = "") -> Verdict:
    """Return a failure whose handler chose the delay."""
    return Verdict("nack", delay_ms, text, is_asked=True)


"""A failure whose handling is left to the script."""


def nothing(job: Any) -> None:
    """A handler."""


async def anothing(job: Any) -> None:
    """A handler that is a coroutine function."""


def alone(**options: Any) -> Handler[..., ..., Any]:
    """Return a named handler without parameters."""

    def function() -> None: ...

    handler: Handler[..., ..., Any] = Handlers().handler("f", **options)(function)
    return handler


# Registration and lookup


def test_decorators() -> None:
    """Decorators work with and without parentheses and keep the function callable."""
    handlers, others = Handlers(), Handlers()

    @handlers.handler
    def first(job: Job) -> int:
        """Its text."""
        return 1

    @others.handler()
    def second(job: Job) -> int:
        return 2

    @handlers.handler("third")
    def function(a: int, b: int = 2) -> int:
        return a + b

    third, job = function, made(1)
    whole = handlers.handler(None)(nothing)
    assert (first(job), second(job), third(1), third(1, b=5)) == (1, 2, 3, 6)  # type: ignore[arg-type]  # a stand-in
    assert (first.name, second.name, third.name, whole.name) == ("first", "second", "third", None)
    assert (first.size, first.wait, first.retry, first.lease) == (None, 0.0, None, None)
    assert first.__doc__ == "Its text."
    assert [handler.name for handler in handlers] == ["first", "third", None]
    assert repr(handlers) == "<Handlers first, third, without a name>"
    assert repr(third) == f"<Handler 'third': {__name__}.{third.function.__qualname__}>"


def test_finding() -> None:
    """A handler is found by the name header; a job without a name gets the unnamed handler."""
    handlers = Handlers()
    default = handlers.handler(None)(nothing)
    odd = 'a;b=ä "c"\\%'
    other = handlers.handler(odd)(lambda: None)
    assert handlers.find(made(b"")) is default
    assert handlers.find(made([1], {"handler": odd, "trace": "1"})) is other
    assert handlers.find(made([1], {"trace": "1", "handler": odd}, lease_ms=5)) is other
    assert handlers.find(made([1], {"my.handler": odd, "handlers": odd})) is default
    assert handlers.find(made(b"\n;h.handler=x", lease_ms=5)) is default
    assert handlers.find(stored(b'1;h.handler=%61%3Bb%3D%c3%a4 "c"%5C%25\n')) is other
    assert handlers.find(stored(b"1;h.handler=x")) is None


@pytest.mark.parametrize("name", ["missing", "", "x" * 500, "ä;", "%"])
def test_an_unknown_name(name: str) -> None:
    """An unknown name has no handler; the reason has the name."""
    handlers = Handlers()
    handlers.handler(None)(nothing)
    job = named(name, {})
    assert handlers.find(job) is None
    assert handlers.missing(job) == f'no handler "{name[:200]}"'


def test_no_default() -> None:
    """Without a default handler a job without a name has no handler."""
    handlers = Handlers()
    assert handlers.find(made(1)) is None
    assert handlers.find(made(1, {"a": "b"})) is None
    assert handlers.missing(made(1)) == "no handler for jobs without a name"


def test_the_default_handler() -> None:
    """The default handler gets all other jobs; there is at most one."""
    handlers, others = Handlers(), Handlers()
    rest = others.default(nothing)
    handlers.include(others)
    assert handlers.find(made(1)) is handlers.find(named("x", {})) is rest
    x, nameless = handlers.handler("x")(lambda: None), handlers.handler(None)(nothing)
    assert handlers.find(made(1)) is nameless
    assert (handlers.find(named("x", {})), handlers.find(named("y", {}))) == (x, rest)
    assert list(handlers) == [rest, x, nameless]
    assert repr(handlers) == "<Handlers default, x, without a name>"
    assert repr(rest).startswith("<Handler default: ")
    with pytest.raises(BadArgument, match="there is a default handler: "):
        handlers.default()(nothing)
    handlers.include(others)  # it is there already
    with pytest.raises(BadArgument, match="is a handler already"):
        Handlers().default(rest)
    with pytest.raises(BadArgument, match="RetryPolicy"):
        Handlers().default(retry=5)  # type: ignore[call-overload]  # on purpose
    with pytest.raises(BadArgument, match="must take one argument"):
        Handlers().default(lambda: None)  # type: ignore[call-overload,arg-type,misc]  # on purpose


def test_registered_twice() -> None:
    """A second handler of one name is refused with the name of the first; nothing changes."""
    handlers = Handlers()
    first = handlers.handler("f")(nothing)
    default = handlers.handler(None)(nothing)
    handlers.handler(nothing)
    for attempt in (
        lambda: handlers.handler("f")(nothing),
        lambda: handlers.handler("f", queue="q")(nothing),
        lambda: handlers.chunk("f", size=1)(nothing),
        lambda: handlers.handler(nothing),
        lambda: handlers.handler()(nothing),
        lambda: handlers.handler(None)(nothing),
        lambda: handlers.chunk(None, size=1)(nothing),
        lambda: handlers.chunk(size=1)(nothing),
    ):
        with pytest.raises(BadArgument, match=rf"{__name__}.nothing"):
            attempt()
    decorate = handlers.handler("g")
    decorate(nothing)
    with pytest.raises(BadArgument, match="a handler with this name"):
        decorate(nothing)
    assert list(handlers)[:2] == [first, default]


@pytest.mark.parametrize(
    "register, reason",
    [
        (
            lambda it: it.handler(max_retries=3),
            "(did you mean 'retry'?): the options are convert, ",
        ),
        (
            lambda it: it.default(timeout=3),
            "(did you mean 'time_limit'?): the options are queue",
        ),
        (
            lambda it: it.chunk(size=2, cron="@daily"),
            "no such option: the options are lease, on_dead, q",
        ),
        (
            lambda it: it.on_dead(lease=3),
            "no such option: the options are retry, stop, time_limit, wait",
        ),
        (lambda it: it.handler(delay=3), "use the handler's options(delay=...).enqueue(...)"),
    ],
)
def test_an_option_that_does_not_exist(register: Callable[[Any], object], reason: str) -> None:
    """The error lists the options, and names the nearest one; for one of a job, the right call."""
    with pytest.raises(BadArgument, match=re.escape(reason)):
        register(Handlers())


def test_an_option_that_does_not_exist_for_a_queue() -> None:
    """The decorator of a queue takes `convert`, too."""
    q: Any = Penstock().queue("q")
    with pytest.raises(BadArgument, match="the options are convert, cron, every"):
        q.handler(max_retries=3)
    assert q.handler(convert=None)(nothing).name == "nothing"


@pytest.mark.parametrize(
    "name, call",
    [
        ("delay", "nothing.{}"),
        ("send", "nothing.{}"),
        ("apply_async", "nothing.options(delay=seconds).{}"),
        ("send_with_options", "nothing.options(delay=seconds).{}"),
    ],
)
def test_a_call_of_another_library_is_answered(name: str, call: str) -> None:
    """The AttributeError names the call with or without a queue, as the handler needs it."""
    free, bound = Handlers().handler(nothing), Penstock().queue("q").handler(nothing)
    for handler, usage in ((free, "enqueue(queue, ...)"), (bound, "enqueue(...)")):
        assert not hasattr(handler, name)
        with pytest.raises(AttributeError) as caught:
            getattr(handler, name)
        assert str(caught.value) == f"nothing has no {name}(): use {call.format(usage)}"


def test_including() -> None:
    """Including handlers is all or nothing."""
    handlers, other, third = Handlers(), Handlers(), Handlers()
    first = other.handler("f")(nothing)
    default = other.handler(None)(nothing)
    third.handler("new")(nothing)
    third.handler("f")(nothing)
    handlers.include(other)
    assert handlers.find(named("f", {})) is first
    assert handlers.find(made(1)) is default
    with pytest.raises(BadArgument, match="a handler with this name"):
        handlers.include(third)
    assert handlers.find(named("new", {})) is None


def test_a_handler_of_another_set() -> None:
    """A handler of another set is included unchanged, and can't be decorated again."""
    other, handlers = Handlers(), Handlers()
    batch = other.chunk("index", size=5)(nothing)
    assert handlers.handler(batch) is batch
    assert handlers.find(named("index", {})) is batch
    with pytest.raises(BadArgument, match="a handler with this name"):
        handlers.handler(batch)
    for decorate in (handlers.handler("new"), handlers.handler(), handlers.chunk(size=1)):
        with pytest.raises(BadArgument, match="is a handler already"):
            decorate(batch)  # type: ignore[operator]  # decorators of several types


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "x" * 201, "ä" * 101, 5, b"f", ["f"]])
def test_bad_names(name: Any) -> None:
    """A name is printable text, not empty, and at most 200 bytes."""
    with pytest.raises(BadArgument) as caught:
        Handlers().handler(name)
    assert caught.value.argument == "name"
    with pytest.raises(BadArgument):
        Handlers().chunk(name, size=1)
    Handlers().handler("ä" * 100)(nothing)


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        functools.partial(nothing),
        functools.partial(nothing, job=1),
        type("Callable", (), {"__call__": lambda _self, _to: None})(),
        type("Callable", (), {"__call__": lambda _self: None, "__name__": "no name"})(),
        type("Callable", (), {"__call__": lambda _self: None, "__name__": 5})(),
    ],
)
def test_functions_without_a_name(function: Any) -> None:
    """A function whose name can't be used is refused when it is decorated without one."""
    queue, reason = Penstock().queue("q"), r'name the handler, @handlers\.handler\("name"\)'
    for register in (Handlers(), queue):
        for decorate in (register.handler, register.handler()):
            with pytest.raises(BadArgument, match=reason):
                decorate(function)
    with pytest.raises(BadArgument, match=reason):
        Handlers().chunk(size=5)(function)
    with pytest.raises(BadArgument, match="at most 200 bytes"):
        Handlers().handler(renamed("x" * 201))
    assert Handlers().handler("name")(function).name == "name"
    assert [*queue.handlers] == []


def renamed(name: str) -> Any:
    """Return a function of this name."""

    def function() -> None: ...

    function.__name__ = name
    return function


def test_functions_name_their_handlers() -> None:
    """The function's name is the handler's, also of a wrapped or nested function or a batch."""
    handlers = Handlers()
    found = [
        handlers.handler(renamed("größe")),
        handlers.handler()(wrapped(renamed("wrapped"))),
        handlers.handler(lease=5)(renamed("leased")),
        handlers.handler(queue="emails")(renamed("queued")),
        handlers.chunk(size=5)(nothing),
    ]
    assert [one.name for one in found] == ["größe", "wrapped", "leased", "queued", "nothing"]
    assert [one.queue for one in found] == [None, None, None, "emails", None]
    for one in found:
        assert handlers.find(made({}, one.headers)) is one


@pytest.mark.parametrize(
    "argument, options",
    [
        ("retry", {"retry": 5}),
        ("retry", {"retry": wait_fixed(1)}),
        ("wait", {"wait": 5}),
        ("wait", {"wait": stop_after_attempt(5)}),
        ("wait", {"wait": wait_fixed}),
        ("stop", {"stop": 5}),
        ("stop", {"stop": wait_fixed(1)}),
        ("lease", {"lease": -1}),
        ("lease", {"lease": "60"}),
    ],
)
def test_bad_options(argument: str, options: dict[str, Any]) -> None:
    """A bad option is refused by name when a function is decorated."""
    with pytest.raises(BadArgument) as caught:
        Handlers().handler("f", **options)(nothing)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "argument, options",
    [
        ("size", {"size": 0}),
        ("size", {"size": 1001}),
        ("size", {"size": "5"}),
        ("wait", {"size": 1, "wait": -1}),
        ("wait", {"size": 1, "wait": math.inf}),
        ("retry", {"size": 1, "retry": "no"}),
        ("lease", {"size": 1, "lease": -1}),
    ],
)
def test_bad_batches(argument: str, options: dict[str, Any]) -> None:
    """A bad batch option is refused by name when a function is decorated."""
    with pytest.raises(BadArgument) as caught:
        Handlers().chunk("f", **options)(nothing)
    assert caught.value.argument == argument


def generator(job: Any) -> Iterator[int]:
    """Yield nothing."""
    yield 1


async def agenerator(job: Any) -> AsyncIterator[int]:
    """Yield nothing, asynchronously."""
    yield 1


class Mailer:
    """A class with functions of three kinds."""

    def send(self, job: Any) -> None:
        """Need an object."""

    def make(cls, job: Any) -> None:  # noqa: N805  # as written before it becomes a class method
        """Need a class."""

    @staticmethod
    def post(job: Any) -> None:
        """Need nothing."""


def test_a_static_method_is_a_function() -> None:
    """It can be a handler, as it needs no object; so can a bound method."""
    assert Handlers().handler(None)(Mailer.post).arguments(made(1))[0]
    assert Handlers().handler(None)(Mailer().send).arguments(made(1))[0]


@pytest.mark.parametrize(
    "function, reason",
    [
        (5, "can be called"),
        ("f", "can be called"),
        (generator, "generator"),
        (agenerator, "generator"),
        (functools.partial(generator), "generator"),
        (contextlib.contextmanager(generator), "generator"),
        (lambda: None, "must take one argument"),
        (lambda _job, _other: None, "must take one argument"),
        (lambda *, _job: None, "must take one argument"),
        (Mailer.send, "must not be a method"),
        (Mailer.make, "must not be a method"),
        (classmethod(Mailer.make), "must not be a method"),
    ],
)
def test_bad_functions(function: Any, reason: str) -> None:
    """Functions that can't be called with a job, and generators, are refused."""
    with pytest.raises(BadArgument, match=reason):
        Handlers().handler(None)(function)
    with pytest.raises(BadArgument, match=reason):
        Handlers().chunk(None, size=5)(function)


def test_a_decorated_class_method_is_refused() -> None:
    """It stands in the place of a name, as it can't be called."""
    with pytest.raises(BadArgument, match="must not be a method"):
        Handlers().handler(classmethod(Mailer.make))  # type: ignore[call-overload]  # refused


def test_functions_without_a_signature() -> None:
    """Builtins without a signature are accepted."""
    assert Handlers().handler(None)(dict).arguments(made(1))[1] == {}


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap functions of both kinds, as a typical decorator does."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Calls:
    """A callable object."""

    def __call__(self, job: Any) -> None: ...


class AsyncCalls:
    """A callable object for asyncio."""

    async def __call__(self, job: Any) -> None: ...

    async def method(self, job: Any) -> None: ...

    @staticmethod
    async def static(job: Any) -> None: ...


@pytest.mark.parametrize("around", [lambda function: function, functools.partial, wrapped])
@pytest.mark.parametrize(
    "function, is_async",
    [
        (nothing, False),
        (lambda _: None, False),
        (Calls(), False),
        (print, False),
        (dict, False),
        (anothing, True),
        (AsyncCalls(), True),
        (AsyncCalls().method, True),
        (AsyncCalls.static, True),
        (wrapped(functools.partial(anothing)), True),
    ],
)
def test_is_async(function: Any, is_async: bool, around: Callable[..., Any]) -> None:
    """A coroutine function is recognised inside wrappers."""
    assert Handlers().chunk(None, size=1)(around(function)).is_async is is_async


# Jobs


def test_the_default_handler_gets_the_job() -> None:
    """The default handler gets the job itself, with an undecoded body."""
    job = stored(b"1;c=x-pack\n\xff")
    assert Handlers().handler(None)(nothing).arguments(job) == ((job,), {})


def test_describing_jobs() -> None:
    """A job of a handler has body and name header, and the lease and stored policy if given."""
    handlers = Handlers()
    rule = {OSError: RetryPolicy(max_attempts=1)}

    @handlers.handler("f", lease=60, retry=RetryPolicy(max_attempts=3, base=1, on=rule))
    def function(job: Job, n: int) -> None: ...

    assert function.job(5) == function.job(n=5)
    assert (function.job(5).body, function.job(5).options.by_name) == (
        {"n": 5},
        {
            "headers": {"handler": "f"},
            "retry": RetryPolicy(max_attempts=3, base=1),
            "lease": 60,
        },
    )
    function.headers["trace"] = "1"
    assert function.headers == {"handler": "f"}
    only_rules = handlers.handler("g", retry=RetryPolicy(on=rule))(nothing)
    assert only_rules.job().options.by_name == {"headers": {"handler": "g"}}


def test_describing_jobs_for_handlers_of_whole_jobs() -> None:
    """For a handler of whole jobs the only argument is the body."""
    handlers = Handlers()
    default = handlers.handler(None)(nothing)
    batch = handlers.chunk("index", size=5)(nothing)
    assert (default.job(5).body, default.headers) == (5, {})
    assert (batch.job([1]).body, batch.headers) == ([1], {"handler": "index"})
    wrong: Any = batch
    for args, kwargs in (((), {}), ((1, 2), {}), ((), {"body": 5})):
        with pytest.raises(BadArgument, match="the body of the job"):
            wrong.job(*args, **kwargs)


def test_a_job_from_end_to_end() -> None:
    """Arguments enqueued through the handler reach it unchanged."""
    handlers = Handlers()

    policy = RetryPolicy(max_attempts=3)

    @handlers.handler("welcome", lease=60, retry=policy)
    def welcome(job: Job, user_id: int, lang: str = "en") -> tuple[int, str, float]:
        return user_id, lang, job.lease

    client = fakeredis.FakeRedis(server=fakeredis.FakeServer())
    queue = Penstock(client).queue("q")
    welcome.enqueue(queue, 7, lang="de")
    queue.enqueue_many(welcome.jobs((8, 9)), retry=RetryPolicy(max_attempts=7))
    queue.enqueue(welcome.job(10), lease=5)
    found = []
    for job in queue.reserve(10):
        handler = handlers.find(job)
        assert handler is welcome
        assert job.retry == (policy if job.body["user_id"] in (7, 10) else RetryPolicy(7))
        args, kwargs = handler.arguments(job)
        found.append(handler(*args, **kwargs))
    client.close()
    assert found == [(7, "de", 60), (8, "en", 60), (9, "en", 60), (10, "en", 5)]


async def test_a_handler_enqueues_in_each_kind_of_client(brief_backend: Backend) -> None:
    """`handler.enqueue` adds what `queue.enqueue(handler.job())` adds, also through hooks."""
    handlers, events = Handlers(), list[EnqueueEvent]()

    class Hook(Middleware):
        @contextlib.contextmanager
        def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
            events.append(event)
            yield

    @handlers.handler("welcome")
    def welcome(to: str, lang: str = "en") -> None: ...

    @handlers.handler(None)
    def bare(job: Job) -> None: ...

    lent = brief_backend.sync_client()
    with Penstock(lent) as ps, Penstock(lent, middleware=[Hook()]) as observed:
        results = [welcome.enqueue(ps.queue("q"), "ada"), bare.enqueue(ps.queue("q"), b"raw")]
        results.append(welcome.enqueue(observed.queue("q"), "bob", lang="de"))
        results.append(welcome.enqueue(ps.queue("parts", partitions=2), "eve"))
    async with brief_backend.async_client() as other, AsyncPenstock(other) as aps:
        results.append(await welcome.enqueue(aps.queue("q"), "ann"))
    with Penstock(lent) as ps:
        jobs = ps.queue("q").reserve(10) + ps.queue("parts", partitions=2).reserve(10)
    assert {job.id for job in jobs} == {result.id for result in results}
    found = sorted((str(job.body), job.headers.get("handler", "")) for job in jobs)
    assert found == [
        ("b'raw'", ""),
        ("{'to': 'ada'}", "welcome"),
        ("{'to': 'ann'}", "welcome"),
        ("{'to': 'bob', 'lang': 'de'}", "welcome"),
        ("{'to': 'eve'}", "welcome"),
    ]
    assert [event.queue for event in events] == ["q"]


def test_a_call_that_does_not_fit_adds_nothing() -> None:
    """An argument that does not fit is an error at the call."""
    handlers = Handlers()
    ps = Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer()))

    @handlers.handler("welcome")
    def welcome(to: str, *, lang: Literal["de", "en"] = "en") -> None: ...

    queue = ps.queue("q")
    welcome.enqueue(queue, "ada")
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((1,), {}),
        ((None,), {}),
        (("ada", "de"), {}),
        (("ada",), {"to": "eve"}),
        (("ada",), {"lang": "fr"}),
        (("ada",), {"other": 1}),
    ]
    for args, kwargs in wrong:
        with pytest.raises(BadArgument):
            welcome.enqueue(queue, *args, **kwargs)
    assert queue.stats().enqueued == 1
    ps.close()


# Returned values


@pytest.mark.parametrize("value", [None, 5, "Retry", [], {}, object(), Verdict("bury"), Done()])
def test_success(value: Any) -> None:
    """Any other returned value is success, which is a single object."""
    assert alone().verdict_on_value(made(1), value) is ACK


@pytest.mark.parametrize(
    "result, verdict",
    [
        (Done(dedup_window=60), Verdict("ack", window_ms=60_000)),
        (Retry(), Verdict("nack")),
        (Retry(5, "busy"), asked(5000, "busy")),
        (Snooze(timedelta(seconds=1)), Verdict("release", 1000)),
        (Reject("no"), Verdict("bury", text="no")),
        (Retry, Verdict("nack")),
        (ValueError("x"), LEFT),
    ],
)
def test_results(result: Any, verdict: Verdict) -> None:
    """Results have the same effect returned and raised; other exceptions are failures."""
    assert alone().verdict_on_value(made(1), result) == verdict
    raised = result if isinstance(result, Exception) else result()
    assert alone().verdict_on_error(made(1), raised) == verdict


def test_a_result_class_that_cannot_be_constructed() -> None:
    """Returning the class Snooze without seconds is a failure with a reason."""
    verdict = alone().verdict_on_value(made(1), Snooze)
    assert verdict.kind == "nack"
    assert verdict.text.startswith("TypeError: Snooze.__init__() missing")


def test_returned_coroutines_and_generators() -> None:
    """A returned coroutine or generator is a failure, as it has not run."""
    handler = alone()
    for value in (anothing(1), generator(1), agenerator(1)):
        verdict = handler.verdict_on_value(made(1), value)
        kind = type(value).__name__
        assert verdict == Verdict("nack", text=f"TypeError: the handler returned a {kind}")


def test_batches() -> None:
    """A chunk handler returns None for success, a list for each job, or one result for all."""
    handler = Handlers().chunk(None, size=5)(nothing)
    jobs = [made(n) for n in range(3)]
    for done in (None, [None, None, None], (1, Done(), None), [5], [], "abc", {}, Done()):
        assert handler.verdicts_on_chunk(jobs, done) is None
    mixed = [None, Retry(5), ValueError("x")]
    assert handler.verdicts_on_chunk(jobs, mixed) == [ACK, asked(5000), LEFT]
    assert handler.verdicts_on_chunk(jobs, Snooze(1)) == [Verdict("release", 1000)] * 3
    wrong = handler.verdicts_on_chunk(jobs, [Retry(), None])
    assert wrong == [Verdict("nack", text="ValueError: 2 results for 3 jobs")] * 3


async def test_tasks_that_were_not_awaited() -> None:
    """A handler that returns a Task fails, as its result would be lost."""
    task = asyncio.ensure_future(anothing(1))
    verdict = alone().verdict_on_value(made(1), task)
    await task
    assert verdict == Verdict("nack", text="TypeError: the handler returned a Task")


async def test_batches_of_gathered_results() -> None:
    """A batch may return the result of `asyncio.gather(return_exceptions=True)`."""

    async def one(n: int) -> None:
        if n == 1:
            raise ValueError("x")

    handler = Handlers().chunk(None, size=5)(nothing)
    jobs = [made(n) for n in range(3)]
    results = await asyncio.gather(*(one(job.body) for job in jobs), return_exceptions=True)
    assert handler.verdicts_on_chunk(jobs, results) == [ACK, LEFT, ACK]


# Raised exceptions

ATTEMPT_3 = b"3 1 1 0 before"
"""Counters: one nack and one crash came before."""


def failed(error: BaseException | None = None, **options: Any) -> Verdict:
    """Return the verdict of a handler with these options on the third attempt's failure."""
    return alone(**options).verdict_on_error(made(1, counts=ATTEMPT_3), error or ValueError("x"))


def test_without_a_policy() -> None:
    """Without a policy the script decides, by the policy of the job or the queue."""
    assert failed() == LEFT


def test_the_policy_of_the_handler() -> None:
    """The handler's policy is evaluated in the worker, so jobs enqueued without it have it too."""
    assert failed(retry=RetryPolicy(max_attempts=4)) == LEFT._replace(limit=4)
    assert failed(retry=RetryPolicy(max_attempts=0)) == LEFT
    dead = Verdict("bury", text="ValueError: x", limit=3)
    assert failed(retry=RetryPolicy(max_attempts=3)) == dead
    delays = [failed(retry=RetryPolicy(base=10, cap=20)).delay_ms for _ in range(50)]
    assert all(0 < delay <= 20_000 for delay in delays)
    assert len(set(delays)) > 10
    assert 0 < failed(retry=RetryPolicy(base=10)).delay_ms <= 40_000  # the third attempt
    assert 0 < failed(retry=RetryPolicy(cap=0.5)).delay_ms <= 500


def test_the_policy_of_the_job() -> None:
    """A job's policy precedes the handler's and is left to the script; rules and
    tenacity precede it.
    """
    job = made({}, {"handler": "f"}, ATTEMPT_3, retry=RetryPolicy(max_attempts=9))
    error = ValueError("x")
    once = RetryPolicy(max_attempts=1, on={KeyError: RetryPolicy(base=0.001, cap=0.001)})
    assert alone(retry=once).verdict_on_error(job, error) == LEFT
    assert alone(retry=once).verdict_on_error(job, KeyError("k")) == Verdict(
        "nack", 1, "KeyError: 'k'"
    )
    assert alone(wait=wait_fixed(1)).verdict_on_error(job, error).delay_ms == 1000
    assert alone(stop=stop_after_attempt(3)).verdict_on_error(job, error).kind == "bury"


def test_a_damaged_record() -> None:
    """A failure of a job with a damaged record is judged without its unreadable parts."""
    handler = alone(retry=RetryPolicy(max_attempts=1))
    assert (
        handler.verdict_on_error(stored(b"1;l=x;h.handler=f\n{}"), ValueError("x")).kind == "bury"
    )


def test_rules_for_exceptions() -> None:
    """Only the matching rule counts; the script decides what it leaves open."""
    never, soon = RetryPolicy(max_attempts=1), RetryPolicy(base=0.001, cap=0.001)
    retry = RetryPolicy(
        max_attempts=3, on={LookupError: never, KeyError: soon, OSError: RetryPolicy()}
    )
    assert failed(IndexError("i"), retry=retry) == Verdict("bury", text="IndexError: i", limit=1)
    assert failed(KeyError("k"), retry=retry) == Verdict("nack", 1, "KeyError: 'k'")
    assert failed(OSError("o"), retry=retry) == Verdict("nack", text="OSError: o")
    assert failed(retry=retry) == Verdict("bury", text="ValueError: x", limit=3)
    assert failed(IndexError("i"), retry=retry, wait=wait_fixed(1)).kind == "bury"


def test_the_end_of_the_attempts_counts_for_retry_too() -> None:
    """Retry sets the delay of the next attempt, but does not raise the maximum."""
    assert failed(Retry(5), retry=RetryPolicy(max_attempts=4)) == asked(5000)._replace(limit=4)
    dead = Verdict("bury", text="e", limit=3)
    assert failed(Retry(5, "e"), retry=RetryPolicy(max_attempts=3)) == dead
    assert failed(Retry(5), stop=stop_after_attempt(3)) == Verdict("bury")
    assert failed(Retry(5), wait=wait_fixed(9)) == asked(5000)
    assert failed(Retry(0), wait=wait_fixed(9)) == asked(0)
    assert failed(Retry(), wait=wait_fixed(9)) == Verdict("nack", 9000)


def test_rules_for_results() -> None:
    """A rule for all exceptions does not apply to Retry; a rule for Retry does."""

    class Busy(Retry):
        pass

    retry = RetryPolicy(
        on={Exception: RetryPolicy(max_attempts=1), Busy: RetryPolicy(max_attempts=2)}
    )
    assert failed(Retry(5), retry=retry) == asked(5000)
    assert failed(Busy(5), retry=retry) == Verdict("bury", limit=2)
    assert failed(retry=retry).kind == "bury"


def test_retry_from_another_exception() -> None:
    """For `raise Retry from error` the rules and the text use that error."""

    def raised(result: Result) -> Result:
        try:
            raise result from KeyError("k")
        except Result as error:
            return error

    retry = RetryPolicy(on={KeyError: RetryPolicy(max_attempts=3)})
    dead = Verdict("bury", text="KeyError: 'k'", limit=3)
    assert failed(raised(Retry(5)), retry=retry) == dead
    assert failed(raised(Retry(5))) == asked(5000, "KeyError: 'k'")
    assert failed(raised(Retry(5, "mine"))) == asked(5000, "mine")
    assert failed(raised(Reject("no"))) == Verdict("bury", text="no")


class Bad(wait_base):
    """A wait strategy that returns a given value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, retry_state: RetryCallState) -> float:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value  # type: ignore[no-any-return]


def test_tenacity() -> None:
    """Tenacity's objects get the attempt's number, the exception and the job's age."""
    text = "ValueError: x"
    assert failed(wait=wait_exponential(multiplier=1)) == Verdict("nack", 4000, text)
    assert failed(wait=wait_exception(lambda e: len(str(e)))) == Verdict("nack", 1000, text)
    assert failed(wait=wait_fixed(1), stop=stop_after_attempt(3)) == Verdict("bury", text=text)
    assert failed(wait=wait_fixed(1), stop=stop_after_attempt(4)) == Verdict("nack", 1000, text)
    assert failed(stop=stop_after_attempt(4)) == LEFT
    # The job was created a minute before this delivery.
    assert failed(stop=stop_after_delay(59)) == Verdict("bury", text=text)
    assert failed(stop=stop_after_delay(61)) == LEFT
    assert failed(wait=wait_fixed(10), stop=stop_before_delay(69)).kind == "bury"
    assert failed(wait=wait_fixed(10), stop=stop_before_delay(71)).kind == "nack"


def test_tenacity_before_the_policy_of_the_handler() -> None:
    """Tenacity precedes the handler's policy, which decides the rest."""
    retry = RetryPolicy(max_attempts=3)
    assert failed(retry=retry, wait=wait_fixed(1)) == Verdict("nack", 1000, "ValueError: x")
    assert failed(retry=retry, stop=stop_after_attempt(9)).kind == "bury"


@pytest.mark.parametrize(
    "value, delay_ms",
    [(math.inf, 3_162_240_000_000), (-5, 0), (0.0001, 1), (10**400, -1), (math.nan, -1)],
)
def test_odd_delays(value: Any, delay_ms: int) -> None:
    """An invalid delay is bounded or left to the next policy."""
    assert failed(wait=Bad(value)) == Verdict("nack", delay_ms, "ValueError: x")


def test_tenacity_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    """A failure of tenacity is logged, and the next policy decides."""
    with caplog.at_level(logging.ERROR, "penstock.worker"):
        assert failed(wait=Bad(KeyError("k"))) == LEFT
    assert "wait or stop failed" in caplog.text


@pytest.mark.parametrize(
    "data, reason",
    [
        (b"1;c=json\n{", "Expecting property name"),
        (b"1;c=x-pack\n", "unknown codec 'x-pack'"),
        (b"1;c=json\n" + b"[" * 200_000, "while decoding a JSON array"),
    ],
)
def test_bodies_that_cannot_be_decoded(data: bytes, reason: str) -> None:
    """An undecodable body in the default handler is a dead letter, as a retry can't help."""
    handler = Handlers().handler(nothing)
    job = stored(data)
    with pytest.raises(UndecodableBody) as caught:
        job.body  # noqa: B018  # it is parsed here
    verdict = handler.verdict_on_error(job, caught.value)
    assert verdict.kind == "bury"
    assert verdict.text.startswith("body can't be decoded: ")
    assert reason in verdict.text
    other = handler.verdict_on_error(made(5), caught.value)
    assert other.kind == "nack"
    assert other.text.startswith("UndecodableBody: ")
    assert reason in other.text


def test_unfit_jobs_name_the_handler() -> None:
    """The reason of an unfit job has the handler's name."""
    handler = Handlers().handler("welcome")(nothing)
    with pytest.raises(Unfit, match=r"^arguments don't fit welcome: x=1: unexpected$"):
        handler.arguments(named("welcome", {"x": 1}))


# -- process pools -------------------------------------------------------------------------------

POOLED = Handlers()


@POOLED.handler
def double(n: int) -> int:
    """Return twice the number."""
    return 2 * n


@Penstock("redis://127.0.0.1:1").queue("q").handler
def triple(n: int) -> int:
    """Return three times the number."""
    return 3 * n


class Sums:
    """The name of a handler may have dots."""

    @POOLED.handler("more")
    @staticmethod
    def more(n: int) -> int:
        """Return the number after this one."""
        return n + 1


def less(n: int) -> int:
    """Return the number before this one."""
    return n - 1


def test_process_pools_take_handlers() -> None:
    """A decorated function can be the function of a pool, as it can without the decorator."""
    for handler in (double, triple, Sums.more):
        assert pickle.loads(ForkingPickler.dumps(handler)) is handler
    registered = POOLED.handler("less")(less)  # its function has kept its name
    assert pickle.loads(ForkingPickler.dumps(registered))(3) == 2


def test_a_set_without_a_handler() -> None:
    """Its repr says so."""
    assert repr(Handlers()) == "<Handlers without a handler>"
