# From tests/_async/test_calling.py by tools/unasync.py; do not edit.
"""Calls of handlers: options, bulk, jobs as bodies, handlers of a queue, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock import (
    BadArgument,
    Codec,
    Dedup,
    Durable,
    EnqueueEvent,
    Handlers,
    IncompleteEnqueue,
    Job,
    Middleware,
    NewJob,
    Penstock,
    Queue,
    RetryPolicy,
    Worker,
)
from penstock.worker import BoundHandler, Handler
from tests.support.backends import Backend

handlers = Handlers()


@handlers.handler("welcome", lease=60, retry=RetryPolicy(3))
def welcome(to: str, lang: str = "en") -> None: ...


@handlers.handler
def resize(job: Job, path: str, *, width: int = 1) -> None: ...


@handlers.chunk("index", size=5)
def index(jobs: list[Job]) -> None: ...


@pytest.fixture
def backend(brief_backend: Backend) -> Backend:
    """A call of a handler runs scripts that other tests know: two back ends."""
    return brief_backend


class Recording(Middleware):
    """A middleware that records events."""

    def __init__(self) -> None:
        self.events: list[tuple[str | None, int | None, dict[str, str]]] = []

    @contextmanager
    def enqueue(self, event: EnqueueEvent) -> Iterator[None]:
        self.events.append((event.handler, event.count, dict(event.headers)))
        event.headers["trace"] = "1"
        yield


def taken(q: Queue, n: int = 10) -> list[tuple[Any, str]]:
    """Take the jobs that wait; return body and handler of each."""
    return [(job.body, job.headers.get("handler", "")) for job in q.reserve(n, block=0)]


# -- options -----------------------------------------------------------------------------------


def test_options_go_with_the_job(q: Queue) -> None:
    """A copy of the handler enqueues with its options; the handler itself has none of them."""
    later = welcome.options(delay=3600, ttl=7200, retry=RetryPolicy(9), headers={"trace": "1"})
    first = later.enqueue(q, "ada", lang="de")
    assert welcome.enqueue(q, "bob")
    view = q.show(first.id)
    assert view is not None
    assert (view.state, view.ttl, view.lease, view.retry) == ("scheduled", 7200, 60, RetryPolicy(9))
    assert view.headers == {"handler": "welcome", "trace": "1"}
    assert view.body == {"to": "ada", "lang": "de"}
    [job] = q.reserve(10, block=0)
    assert (job.body, job.ttl, job.retry) == ({"to": "bob"}, None, RetryPolicy(3))
    assert job.headers == {"handler": "welcome"}


def test_options_are_chained_and_kept(q: Queue) -> None:
    """Later values win, copies can be used again, and each keeps its own options."""
    once = welcome.options(delay=3600, headers={"a": "1", "b": "1"}, dedup_id="x")
    soon = once.options(delay=0, headers={"b": "2"}, dedup=Dedup("y"), lease=None)
    ids = [soon.enqueue(q, "ada").id, soon.enqueue(q, "eve").id]
    assert ids[0] == ids[1]
    for _ in range(2):
        assert once.enqueue(q, "bob").state == "scheduled"
    [job] = q.reserve(10, block=0)
    assert (job.body, job.dedup_id, job.lease) == ({"to": "ada"}, "y", 30)
    assert job.headers == {"handler": "welcome", "a": "1", "b": "2"}
    assert (soon.name, soon.function, once.lease, soon.lease) == (
        "welcome", welcome.function, 60, None,
    )  # fmt: skip
    assert isinstance(soon, Handler)
    assert soon("ada") is None  # it can be called like the function


def test_options_keep_no_reference(q: Queue) -> None:
    """A dict of headers may be changed after it was passed: it was copied."""
    headers = {"a": "1"}
    plain = Handlers().handler(None)(lambda _: None)
    later = plain.options(headers=headers)
    headers["a"] = "2"
    later.enqueue(q, "x")
    q.enqueue(later.job("y"), headers={"b": "1"})
    q.enqueue(later.options(headers=None).job("z"))
    found = [job.headers for job in q.reserve(10, block=0)]
    assert found == [{"a": "1"}, {"a": "1", "b": "1"}, {"a": "1"}]


@pytest.mark.parametrize(
    "before, after",
    [
        ({"delay": 3600}, {"at": 1}),
        ({"at": 2**32}, {"delay": 0}),
        ({"replicas": 5}, {"durable": Durable(0)}),
        ({"durable": Durable(5)}, {"replicas": 0}),
        ({"max_length": 1, "block": 60}, {"max_length": None, "block": 0}),
    ],
    ids=str,
)
def test_the_other_form_of_an_option_wins(
    q: Queue, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """An option replaces an earlier one in its other form; those of the call win over all."""
    q.enqueue("first")
    earlier = welcome.options(**before)
    earlier.options(**after).enqueue(q, "ada")
    assert q.stats().ready == 2
    given = {name: value for name, value in after.items() if value is not None}
    if "max_length" not in before:
        q.enqueue(earlier.job("bob"), **given)
        assert q.stats().ready == 3


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"priority": 10}, "priority"),
        ({"urgency": 5}, "urgency"),
        ({"delai": 5}, "delai"),
        ({"delay": "5"}, "delay"),
        ({"delay": None}, "delay"),
        ({"delay": 1, "at": 5}, "at"),
        ({"ttl": 0}, "ttl"),
        ({"lease": -1}, "lease"),
        ({"retry": 5}, "retry"),
        ({"retry": RetryPolicy(on={OSError: RetryPolicy(1)})}, "retry"),
        ({"headers": {"handler": "other"}}, "headers"),
        ({"headers": {"a": 1}}, "headers"),
        ({"headers": 5}, "headers"),
        ({"dedup": "x"}, "dedup"),
        ({"dedup_id": len}, "dedup_id"),
        ({"dedup_id": "x", "dedup": Dedup("x")}, "dedup_id"),
        ({"key": ""}, "key"),
        ({"max_length": 0}, "max_length"),
        ({"block": -1}, "block"),
        ({"replicas": -1}, "replicas"),
        ({"durable": 1}, "durable"),
        ({"result_ttl": -1}, "result_ttl"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_at_once(options: Any, argument: str) -> None:
    """An option that does not exist or can't be used is refused where it is given."""
    with pytest.raises(BadArgument) as caught:
        welcome.options(**options)
    assert caught.value.argument == argument


def test_an_option_needs_the_others() -> None:
    """Options are checked together with those given before."""
    with pytest.raises(BadArgument, match="must be longer than the delay"):
        welcome.options(delay=60).options(ttl=5)
    with pytest.raises(BadArgument, match=r"no such option \(did you mean 'priority'"):
        welcome.options(prio=5)  # type: ignore[call-arg]  # on purpose


# -- jobs as bodies ----------------------------------------------------------------------------


def test_a_job_of_a_handler_is_a_body(q: Queue) -> None:
    """`enqueue` takes a described job; its options win over those of the handler, even a 0."""
    job = welcome.options(delay=3600).job("ada")
    assert isinstance(job, NewJob)
    assert q.enqueue(job).state == "scheduled"
    assert q.enqueue(job, delay=0, lease=5, headers={"a": "1"}).state == "ready"
    assert q.enqueue(job, at=1).state == "ready"
    first, second = q.reserve(10, block=0)
    assert (first.body, first.lease, first.retry) == ({"to": "ada"}, 5, RetryPolicy(3))
    assert first.headers == {"handler": "welcome", "a": "1"}
    assert (second.lease, second.headers) == (60, {"handler": "welcome"})
    with pytest.raises(BadArgument, match="names the job's handler"):
        q.enqueue(job, headers={"handler": "other"})
    with pytest.raises(BadArgument, match="must be longer than the delay"):
        q.enqueue(job, ttl=60)
    with pytest.raises(BadArgument, match="must be an iterable of bodies"):
        q.enqueue_many(job)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadArgument, match="body="):
        q.enqueue(welcome.jobs(["ada"]))


def test_many_jobs_of_a_handler(q: Queue) -> None:
    """`jobs` describes jobs as `map` calls a function; keyword arguments are constants."""
    results = q.enqueue_many(welcome.jobs(["ada", "eve"], lang="de"))
    assert len(results) == 2
    q.enqueue_many(welcome.jobs(iter(["bob", "ann", "cut"]), ["fr", "en"]))
    resize.enqueue_many(q, ["a.png"], width=5)
    index.enqueue_many(q, [[1], {"page": 2}])
    assert taken(q) == [
        ({"to": "ada", "lang": "de"}, "welcome"),
        ({"to": "eve", "lang": "de"}, "welcome"),
        ({"to": "bob", "lang": "fr"}, "welcome"),
        ({"to": "ann", "lang": "en"}, "welcome"),
        ({"path": "a.png", "width": 5}, "resize"),
        ([1], "index"),
        ({"page": 2}, "index"),
    ]


def test_many_jobs_have_the_options(q: Queue) -> None:
    """Jobs in bulk have lease and policy of their handler; options of the call win."""
    some = welcome.options(delay=3600, ttl=7200)
    results = q.enqueue_many(some.jobs(["ada", "eve"]), delay=0, key="k")
    assert [result.state for result in results] == ["ready", "ready"]
    jobs = q.reserve(10, block=0)
    assert {(job.lease, job.ttl, job.retry) for job in jobs} == {(60, 7200, RetryPolicy(3))}
    assert results.ids == [job.id for job in jobs]
    assert list(some.jobs(["ada"])) == [some.job("ada")]
    by_name = q.enqueue_many(welcome.jobs(["x", "y", "x"]), dedup_id=lambda body: body["to"])
    assert by_name.duplicates == 1


def test_jobs_are_read_as_they_go_out(q: Queue) -> None:
    """A generator is read chunk by chunk; an argument that does not fit stops it there."""
    read = []

    def names() -> Iterator[Any]:
        for number in range(1, 2500):
            read.append(number)
            yield number if number == 2200 else str(number)

    jobs = welcome.jobs(names())
    assert read == []
    with pytest.raises(IncompleteEnqueue) as caught:
        q.enqueue_many(jobs)
    assert (len(caught.value.results), read[-1]) == (2000, 2200)
    assert isinstance(caught.value.__cause__, BadArgument)
    assert "to=2200: must be str" in str(caught.value.__cause__)
    with pytest.raises(BadArgument, match="must be str"):
        welcome.enqueue_many(q, [None])


@pytest.mark.parametrize("iterables", [(), ("ada",), (b"ada",), (5,), (["ada"], "de"), ({},)])
def test_arguments_of_many_jobs_are_iterables(iterables: tuple[Any, ...]) -> None:
    """A text or a single value in place of a list is refused at once."""
    with pytest.raises(BadArgument) as caught:
        welcome.jobs(*iterables)
    assert caught.value.argument == "iterables"


def test_several_handlers_in_one_call(q: Queue) -> None:
    """Jobs of several handlers and plain bodies keep their order, each with its own options."""
    later = welcome.options(delay=3600)
    results = q.enqueue_many(
        [
            welcome.job("ada"), resize.job("a.png"), b"raw", later.job("eve"), later.job("bob"),
            {"any": "thing"}, welcome.options(ttl=60).job("ann"),
            welcome.options(dedup_id="one").job("one"), welcome.options(dedup_id="two").job("two"),
            resize.options(dedup_id="one").job("duplicate"), resize.job("last.png"),
        ]
    )  # fmt: skip
    states = [result.state for result in results]
    assert (len(results), results.duplicates) == (11, 1)
    assert [at for at, state in enumerate(states) if state == "scheduled"] == [3, 4]
    assert results[9].id == results[7].id == results[-4].id
    jobs = {job.id: job for job in q.reserve(100, block=0)}
    found = [
        (jobs[one.id].body, jobs[one.id].headers.get("handler"))
        for one in results
        if one.id in jobs and not one.duplicate
    ]
    assert found == [
        ({"to": "ada"}, "welcome"),
        ({"path": "a.png"}, "resize"),
        (b"raw", None),
        ({"any": "thing"}, None),
        ({"to": "ann"}, "welcome"),
        ({"to": "one"}, "welcome"),
        ({"to": "two"}, "welcome"),
        ({"path": "last.png"}, "resize"),
    ]
    assert {job.lease for job in jobs.values() if job.headers.get("handler") == "welcome"} == {60}


def test_jobs_that_fit_together_share_a_trip(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of two handlers in turn go out in one chunk."""
    q.enqueue("first")
    chunks = []
    add = q.route.add_chunk

    def noted(chunk: list[bytes], *args: Any) -> None:
        chunks.append(len(chunk))
        add(chunk, *args)

    monkeypatch.setattr(q.route, "add_chunk", noted)  # counts the trips
    makers = [lambda: welcome.job("ada"), lambda: resize.job("a.png"), lambda: "plain"]
    q.enqueue_many(makers[n % 3]() for n in range(300))
    assert chunks == [300]


def test_a_queue_with_partitions(ps: Penstock) -> None:
    """The key of a handler's job chooses its partition, alone, in bulk and among others."""
    q = ps.queue("parts", partitions=4)
    keyed = welcome.options(key="k")
    keyed.enqueue(q, "1")
    q.enqueue_many(keyed.jobs(["2", "3"]))
    mixed = [keyed.job("4"), resize.options(key="k").job("5"), keyed.job("6"), resize.job("x.png")]
    results = q.enqueue_many([*mixed, welcome.options(key="other").job("y")])
    assert len(results) == 5
    by_key = q.enqueue_many([keyed.job("7"), resize.job("z.png")], key=lambda _: "k")
    assert len(by_key) == 2
    jobs = q.reserve(100, block=0)
    assert len(jobs) == 10
    assert {job.body["to"] for job in jobs if "to" in job.body} == set("123467y")
    order = [job.body["to"] for job in jobs if job.body.get("to", "") in set("123467")]
    assert order == list("123467")


def test_hooks_see_the_handler(backend: Backend) -> None:
    """The event of a handler's enqueue has its name and headers; a hook can add one."""
    hook = Recording()
    with backend.sync_client() as lent, Penstock(lent, middleware=[hook]) as client:
        q = client.queue("q")
        bound = q.handler("bound")(welcome.function)
        tagged = welcome.options(headers={"a": "1"})
        tagged.enqueue(q, "ada")
        q.enqueue(tagged.job("ada"), headers={"b": "2"})
        q.enqueue_many(tagged.jobs(["ada"]))
        q.enqueue_many([tagged.job("ada")])
        bound.enqueue("ada")
        with pytest.raises(BadArgument, match="names the job's handler"):
            q.enqueue(tagged.job("ada"), headers={"handler": "other"})
        jobs = q.reserve(10, block=0)
    own = {"handler": "welcome", "a": "1"}
    assert hook.events == [
        ("welcome", 1, own),
        ("welcome", 1, own | {"b": "2"}),
        ("welcome", None, own),
        (None, None, {}),
        ("bound", 1, {"handler": "bound"}),
    ]
    headers = [own, own | {"b": "2"}, own, own, {"handler": "bound"}]
    assert [job.headers for job in jobs] == [one | {"trace": "1"} for one in headers]


def test_a_codec_of_the_client(backend: Backend) -> None:
    """One handler serves clients with and without a codec."""
    codec = Codec("x-repr", lambda body: repr(body).encode(), lambda raw: raw.decode())
    later = welcome.options(headers={"a": "1"})
    with backend.sync_client() as lent, Penstock(lent, codec=codec) as client:
        q = client.queue("q")
        later.enqueue(q, "ada")
        q.enqueue_many(later.jobs(["eve"]))
        q.enqueue_many([later.job("bob")], ttl=60)
        bodies = [job.body for job in q.reserve(10, block=0)]
    assert bodies == ["{'to': 'ada'}", "{'to': 'eve'}", "{'to': 'bob'}"]


# -- handlers of a queue -----------------------------------------------------------------------


def test_a_handler_of_a_queue(ps: Penstock) -> None:
    """`queue.handler` registers a function; it is enqueued without the queue, and a worker of the
    queue runs it.
    """
    emails = ps.queue("emails")
    seen: list[Any] = []

    @emails.handler
    def greet(to: str, lang: str = "en") -> None:
        seen.append((to, lang))

    @emails.handler("resize", lease=60, retry=RetryPolicy(3))
    def smaller(job: Any, path: str) -> None:
        seen.append((path, job.lease))

    @emails.handler(None)
    def other(job: Any) -> None:
        seen.append(job.body)

    assert isinstance(greet, BoundHandler)
    assert (greet.name, greet.queue, smaller.name) == ("greet", "emails", "resize")
    assert greet.enqueue("ada", lang="de")
    assert greet.options(delay=3600).enqueue("late").state == "scheduled"
    greet.enqueue_many(["eve", "bob"])
    emails.enqueue(greet.job("ann"))
    emails.enqueue_many(greet.jobs(["joe"]))
    smaller.enqueue("a.png")
    other.enqueue({"any": "thing"})
    Worker(ps, emails, concurrency=1, burst=True).run()
    assert seen == [
        ("ada", "de"), ("eve", "en"), ("bob", "en"), ("ann", "en"), ("joe", "en"), ("a.png", 60),
        {"any": "thing"},
    ]  # fmt: skip


def test_what_a_worker_serves(ps: Penstock) -> None:
    """A worker finds the handlers of its queues, and the queues that its handlers name."""
    first, second = ps.queue("first"), ps.queue("second", partitions=2)
    shared = Handlers()
    seen: list[str] = []

    @first.handler
    def one(n: int) -> None:
        seen.append(f"one {n}")

    @second.handler
    def two(n: int) -> None:
        seen.append(f"two {n}")

    @shared.handler(queue="third")
    def three(n: int) -> None:
        seen.append(f"three {n}")

    def worked(*args: Any, **options: Any) -> list[str]:
        seen.clear()
        one.enqueue(1)
        two.enqueue(2)
        three.enqueue(ps.queue("third"), 3)
        Worker(ps, *args, burst=True, **options).run()
        for queue in (first, second, ps.queue("third")):
            assert queue.peek(state="dead") == []
            queue.purge()
        return sorted(seen)

    assert worked(first) == ["one 1"]
    assert worked("first") == ["one 1"]
    assert worked([first, second]) == ["one 1", "two 2"]
    assert worked({first: 3, "second": 1}) == ["one 1", "two 2"]
    assert worked(handlers=shared) == ["three 3"]
    assert worked(handlers=first.handlers) == ["one 1"]
    assert worked([first, "third"], shared) == ["one 1", "three 3"]
    shared.include(first.handlers)
    assert worked([first, "third"], shared) == ["one 1", "three 3"]
    assert worked(handlers=shared) == ["one 1", "three 3"]

    worker = Worker(ps, [first, second], burst=True)

    @second.handler  # after the worker was made
    def late(n: int) -> None:
        seen.append(f"late {n}")

    late.enqueue(4)
    worker.run()
    assert seen[-1] == "late 4"


@pytest.mark.parametrize("bound", [True, False])
def test_one_name_in_two_queues(bound: bool, ps: Penstock) -> None:
    """Each handler gets the jobs of its queue. Those of a third queue have no handler."""
    queues = [ps.queue(name) for name in ("first", "second", "third")]
    given, seen = Handlers(), list[str]()

    def register(name: str | None, queue: Queue) -> None:
        decorate: Any = queue.handler(name) if bound else given.handler(name, queue=queue.name)

        @decorate
        def add(job: Job) -> None:
            seen.append(f"{queue.name} {name} {job.queue_name}")

    for queue in queues[:2]:
        register("add", queue)
        register(None, queue)
    for queue in queues:
        queue.enqueue({}, headers={"handler": "add"})
        queue.enqueue("whole")
    Worker(ps, queues, None if bound else given, burst=True).run()
    assert sorted(seen) == [
        f"{name} {handler} {name}" for name in ("first", "second") for handler in ("None", "add")
    ]
    back = queues[2].peek(state="scheduled")
    assert {view.error for view in back} == {
        'no handler "add"',
        "no handler for jobs without a name",
    }


def test_defaults_and_batches_of_queues(ps: Penstock) -> None:
    """Default and chunk handlers of a queue object get the jobs of that queue only."""
    queues = [ps.queue(name) for name in ("first", "second", "third")]
    seen: list[str] = []

    def register(queue: Queue) -> None:
        @queue.handlers.chunk("many", size=5)
        def many(jobs: list[Job]) -> None:
            seen.extend(f"{queue.name} many {job.queue_name}" for job in jobs)

        @queue.handlers.default
        def other(job: Job) -> None:
            seen.append(f"{queue.name} other {job.queue_name}")

    for queue in queues[:2]:
        register(queue)
    for queue in queues:
        queue.enqueue({}, headers={"handler": "many"})
        queue.enqueue({}, headers={"handler": "fax"})
        queue.enqueue("whole")
    Worker(ps, queues, burst=True).run()
    assert sorted(seen) == [
        f"{name} {handler} {name}"
        for name in ("first", "second")
        for handler in ("many", "other", "other")
    ]
    assert {view.error for view in queues[2].peek(state="scheduled")} == {
        'no handler "many"', 'no handler "fax"', "no handler for jobs without a name",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["default", "without a name"])
def test_a_handler_of_one_queue_without_a_name(kind: str, ps: Penstock) -> None:
    """It gets no job of another queue, also if it is the only one of its kind."""
    first, second, tasks = ps.queue("first"), ps.queue("second"), Handlers()
    seen: list[str] = []

    def handle(job: Job) -> None:
        seen.append(job.queue_name)

    if kind == "default":
        tasks.default(queue="first")(handle)
    else:
        tasks.handler(None, queue="first")(handle)
    for queue in (first, second):
        queue.enqueue("whole")
    Worker(ps, [first, second], tasks, burst=True).run()
    assert seen == ["first"]
    assert len(second.peek(state="scheduled")) == 1


def test_handlers_of_a_queue_have_its_name(ps: Penstock) -> None:
    """All handlers of a queue object belong to it; another queue is refused."""
    mail = ps.queue("mail").handlers
    assert mail.handler("a")(welcome.function).queue == "mail"
    assert mail.handler("b", queue="mail")(welcome.function).queue == "mail"
    assert mail.chunk("c", size=1)(index.function).queue == "mail"
    assert mail.default(index.function).queue == "mail"
    with pytest.raises(BadArgument, match=r"queue='bills': .* for queue 'mail': omit"):
        mail.handler("d", queue="bills")(welcome.function)
    with pytest.raises(BadArgument, match=r"a default handler: .*; give each of the two a queue"):
        mail.default(index.function)
    with pytest.raises(BadArgument, match="a queue's name"):
        Handlers(queue="")


def test_what_a_worker_refuses(ps: Penstock) -> None:
    """A worker needs a queue and a handler, and names that differ, when it is made."""
    first, second = ps.queue("first"), ps.queue("second")
    with pytest.raises(BadArgument, match="handlers=None: pass at least one handler"):
        Worker(ps, "first")
    with pytest.raises(BadArgument, match=r"queues=None: pass at least one queue, or name it"):
        Worker(ps, handlers=handlers)
    with pytest.raises(BadArgument, match="queues="):
        Worker(ps)
    with pytest.raises(BadArgument, match="each queue once"):
        Worker(ps, [first, "first"], handlers)
    first.handler("same")(welcome.function)
    given = Handlers()
    given.handler("same")(welcome.function)
    reason = "there is a handler with this name: .*; choose another name, or give each of the two"
    with pytest.raises(BadArgument, match=reason):
        Worker(ps, [first, second], given)
    with pytest.raises(BadArgument, match=reason):
        first.handler("same")(welcome.function)
    with pytest.raises(BadArgument, match="a queue's name"):
        Handlers().handler("x", queue="")(welcome.function)
    with pytest.raises(BadArgument, match="a queue's name"):
        Handlers().chunk("x", size=1, queue=first)(welcome.function)  # type: ignore[arg-type]  # on purpose


# -- calls that do not fit ---------------------------------------------------------------------


def test_forgetting_the_queue(ps: Penstock, q: Queue) -> None:
    """A call without the queue, or with one too many, is refused with the way out."""
    bound: Any = q.handler("bound")(welcome.function)
    whole: Any = q.handler(None)(lambda _: None)
    free: Any = welcome
    for args in ((), ("ada",), ("ada", "de"), (None, "ada"), ("q", "ada"), (ps, "ada")):
        with pytest.raises(BadArgument, match=r"welcome\.enqueue\(queue, \.\.\.\)") as caught:
            free.enqueue(*args)
        assert caught.value.argument == "queue"
        with pytest.raises(BadArgument, match="the first argument is the queue"):
            free.options(delay=5).enqueue(*args)
        with pytest.raises(BadArgument, match="the first argument is the queue"):
            free.enqueue_many(*args)
    for handler in (bound, bound.options(delay=5), whole):
        for call in (handler.enqueue, handler.enqueue_many):
            with pytest.raises(BadArgument, match="adds to queue 'q': omit the queue") as caught:
                call(q, ["ada"])
            assert caught.value.argument == "queue"
    with pytest.raises(BadArgument, match="omit the queue"):
        bound.job(q, "ada")
    with pytest.raises(BadArgument, match="omit the queue"):
        whole.enqueue(q)
    assert q.stats().ready == 0


def test_a_handler_is_not_a_body(backend: Backend) -> None:
    """A handler that is enqueued itself is refused with the way out, whatever the codec."""
    codec = Codec("x-repr", lambda body: repr(body).encode(), lambda raw: raw.decode())
    for options in ({}, {"codec": codec}):
        with backend.sync_client() as lent, Penstock(lent, **options) as client:  # type: ignore[arg-type]  # a dict of options
            q = client.queue("q")
            bound = q.handler("bound")(welcome.function)
            reason = r"use queue\.enqueue\(welcome\.job\(\.\.\.\)\) or welcome\.enqueue"
            for handler, arguments in ((welcome, "queue, "), (bound, "")):
                with pytest.raises(BadArgument, match=rf"{reason}\({arguments}\.\.\.\)"):
                    q.enqueue(handler)
                with pytest.raises(BadArgument, match=reason):
                    q.enqueue_many([handler])
            assert q.stats().ready == 0


def test_calls_that_do_not_fit_add_nothing(ps: Penstock, q: Queue) -> None:
    """Arguments that do not fit the function are an error at the call, in every form of it."""
    bound: Any = q.handler("bound")(welcome.function)
    free: Any = welcome
    wrong: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((), {}),
        ((1,), {}),
        ((None,), {}),
        (("ada", "de", 5), {}),
        (("ada",), {"to": "eve"}),
        (("ada",), {"other": 1}),
        ((), {"lang": "de"}),
    ]
    for args, kwargs in wrong:
        for call in (bound.enqueue, bound.options(delay=5).enqueue):
            with pytest.raises(BadArgument):
                call(*args, **kwargs)
        with pytest.raises(BadArgument):
            free.options(delay=5).enqueue(q, *args, **kwargs)
        with pytest.raises(BadArgument):
            bound.job(*args, **kwargs)
    stats = q.stats()
    assert (stats.ready, stats.scheduled) == (0, 0)


@pytest.fixture
def other(backend: Backend) -> Iterator[Queue]:
    """A queue of a second client."""
    with backend.sync_client() as lent, Penstock(lent) as client:
        yield client.queue("q")


def test_a_handler_belongs_to_a_queue_object(q: Queue, other: Queue) -> None:
    """Handlers are those of one queue object: another client's queue has its own."""
    bound = q.handler("bound")(welcome.function)
    assert [*q.handlers] == [bound]
    assert [*other.handlers] == []
    other.enqueue(bound.job("ada"))  # a described job goes where it is enqueued
    assert taken(q) == [({"to": "ada"}, "bound")]


def test_arguments_behind_a_body(q: Queue) -> None:
    """A handler with its arguments is no body: the error names the right call; so in a batch."""
    enqueue: Any = q.enqueue
    with pytest.raises(BadArgument, match=r"use queue\.enqueue\(welcome\.job\("):
        enqueue(welcome, "ada")
    with pytest.raises(BadArgument, match="a job has one body"):
        enqueue("ada", "eve")
    with q.batch(then="end") as batch:
        enqueue = batch.enqueue
        with pytest.raises(BadArgument, match="a handler is not a body"):
            enqueue(welcome, "ada")
        batch.enqueue("member")
    assert q.stats().ready == 1
