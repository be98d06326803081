# From tests/_async/test_steps.py by tools/unasync.py; do not edit.
"""Steps of a handler: a value is noted once, and no step begins behind a refused note."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import (
    contextmanager,
)
from typing import Annotated, Any

import pytest

from penstock import (
    BadArgument,
    Dedup,
    Handlers,
    Job,
    Middleware,
    Penstock,
    Queue,
    Retry,
    RunEvent,
    Steps,
    Worker,
)
from penstock.client._sync.transport.executor import Executor
from penstock.errors import DuplicateStep, StepNotKept, StepOverlap, StepsChanged
from penstock.worker import RunEnded, Suspended
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, check_invariant, numbers

TALLY = "tally"


@pytest.fixture
def handlers() -> Handlers:
    """A set of handlers for the queue q."""
    return Handlers(queue="q")


class Effects(list[Any]):
    """The calls of the functions of steps, in order."""

    def add(self, value: Any) -> Any:
        """Note a call; return its value."""
        self.append(value)
        return value


def work(ps: Penstock, handlers: Handlers, **options: Any) -> dict[str, int]:
    """Run a worker until the queue has no job that can be taken."""
    worker = Worker(ps, handlers=handlers, burst=True, **options)
    worker.run()
    return dict(worker.status().stats.counts)


def notes(raw: Raw, q: Queue) -> dict[bytes, bytes]:
    """Return the fields of tally that belong to steps."""
    fields: dict[bytes, bytes] = raw.hgetall(q.ops.keys[TALLY])
    return {name: value for name, value in fields.items() if name[:1] == b"n"}


@pytest.mark.parametrize("annotation", [Steps | None, Annotated[Steps, "of the order"]])
def test_the_steps_may_be_a_part_of_an_annotation(
    ps: Penstock, q: Queue, handlers: Handlers, annotation: Any
) -> None:
    """A function that can be called without steps gets them from a worker."""
    effects = Effects()

    def order(number: int, steps: Any = None) -> None:
        effects.add(steps.run("stock", effects.add, number))

    order.__annotations__["steps"] = annotation
    handlers.handler(order).enqueue(q, 7)
    assert work(ps, handlers) == {"done": 1}
    assert effects == [7, 7]


def test_a_retry_does_not_repeat_a_step(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """The second attempt gets the values of the first one, and goes on behind them."""
    effects, values = Effects(), []

    @handlers.handler
    def order(steps: Steps, order_id: str, times: int = 1) -> None:
        values.append(steps.run("stock", effects.add, (order_id, times)))
        values.append(steps.run("nothing", effects.add, None))
        if len(values) == 2:
            raise Retry(after=0)
        values.append(steps.run("ship", effects.add, value="now"))

    order.enqueue(q, "7", times=2)
    assert work(ps, handlers) == {"retried": 1, "done": 1}
    assert effects == [("7", 2), None, "now"]
    assert values == [["7", 2], None, ["7", 2], None, "now"]
    assert not raw.exists(q.ops.keys[TALLY])
    check_invariant(raw)


def test_a_coroutine_function_is_awaited(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """A step may be a function of either kind."""
    values = []

    def fetch(name: str) -> str:
        return name.upper()

    @handlers.handler
    def order(steps: Steps) -> None:
        values.append(steps.run("fetch", fetch, "ada"))

    order.enqueue(q)
    assert work(ps, handlers) == {"done": 1}
    assert values == ["ADA"]


def test_the_trips_of_a_run(
    ps: Penstock,
    q: Queue,
    real_ps: Penstock,
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step costs one call, a resumed run one more for all its notes."""
    del ps, q
    counts: list[int] = []
    names, run = list[str](), Executor.run

    def note_name(executor: Executor, call: Any, **options: Any) -> Any:
        names.append(call.script.name)
        return run(executor, call, **options)

    monkeypatch.setattr(Executor, "run", note_name)

    def trips() -> int:
        """Count the calls, but for those that a worker makes once a second."""
        return len([name for name in names if name not in ("beat", "extend", "measure", "stats")])

    @handlers.handler
    def order(steps: Steps, job: Job = None) -> None:  # type: ignore[assignment]  # given
        before = trips()
        for number in range(100 if job.attempt == 1 and job.deliveries == 1 else 101):
            steps.run(f"step {number}", str, number)
        counts.append(trips() - before)
        if len(counts) == 1:
            raise Retry(after=0)

    queue = real_ps.queue("q")
    order.enqueue(queue)
    assert work(real_ps, handlers) == {"retried": 1, "done": 1}
    assert counts == [100, 2]


def test_attempts_count_since_the_last_step(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """A job that makes progress between its failures does not die of them."""
    q.configure(max_attempts=2, backoff_base=0.001, backoff_cap=0.001)
    seen = []

    @handlers.handler
    def order(steps: Steps, job: Job = None) -> None:  # type: ignore[assignment]  # given
        seen.append(job.attempt)
        for number in range(len(seen)):
            steps.run(f"step {number}", str, number)
        assert job.attempt == 1
        if len(seen) < 5:
            raise OSError

    order.enqueue(q)
    counts: dict[str, int] = {}
    while counts.get("done", 0) + counts.get("dead", 0) == 0:
        for name, count in work(ps, handlers).items():
            counts[name] = counts.get(name, 0) + count
        advance(raw, q.ops, 1)
    assert counts == {"retried": 4, "done": 1}
    assert seen == [1, 2, 2, 2, 2]


def test_a_dead_letter_keeps_its_notes(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """A redrive runs the steps that are missing, and the key of a step stays the same."""
    effects, keys, is_broken = Effects(), set[str](), [True]

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("first", effects.add, 1)
        keys.add(steps.key("charge"))
        if is_broken:
            raise_bad_argument()
        steps.run("second", effects.add, 2)

    def raise_bad_argument() -> None:
        raise StepNotKept("as another error of a step")

    added = order.enqueue(q)
    assert work(ps, handlers) == {"rejected": 1}
    [letter] = q.peek(state="dead")
    assert "StepNotKept" in letter.error
    assert len(notes(raw, q)) == 2
    is_broken.clear()
    q.redrive([letter.id])
    [head] = [value for value in notes(raw, q).values() if value[-2:] == b" -"]
    assert head.split()[0] == head.split()[2] == b"1"
    assert work(ps, handlers) == {"done": 1}
    assert effects == [1, 2]
    assert keys == {f"{added.stable_id}-charge"}
    assert notes(raw, q) == {}


@pytest.mark.parametrize("swallow", [False, True])
def test_no_step_begins_after_a_lost_lease(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers, *, swallow: bool
) -> None:
    """If another consumer holds the job, the note is refused, whatever the handler makes of it."""
    effects = Effects()
    stolen: list[Job] = []

    def steal() -> str:
        effects.append("steal")
        advance(raw, q.ops, 61)
        stolen.extend(q.reserve(1, block=0))
        return "late"

    @handlers.handler
    def order(steps: Steps) -> None:
        try:
            steps.run("steal", steal)
        except RunEnded:
            if not swallow:
                raise
        steps.run("more", effects.add, "more")

    q.configure(lease=60)
    order.enqueue(q)
    assert work(ps, handlers) == {"lost": 1}
    assert effects == ["steal"]
    [job] = stolen
    assert notes(raw, q) == {}
    assert job.ack()


def test_a_cancelled_job_takes_no_other_step(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """The note of a cancelled job ends its run."""
    effects = Effects()

    def cancel(job: Job) -> None:
        q.cancel([job.id])
        effects.append("cancel")

    @handlers.handler
    def order(steps: Steps, job: Job = None) -> None:  # type: ignore[assignment]  # given
        steps.run("cancel", cancel, job)
        steps.run("more", effects.add, "more")

    order.enqueue(q)
    assert work(ps, handlers) == {"cancelled": 1}
    assert effects == ["cancel"]
    assert notes(raw, q) == {}
    assert numbers(raw, q.ops, "held") == []


@pytest.mark.parametrize("flag", ["lost", "cancelled"])
def test_no_step_begins_for_a_job_known_to_have_ended(
    ps: Penstock, q: Queue, handlers: Handlers, flag: str
) -> None:
    """A run whose job is lost or cancelled between two steps does not begin the next one."""
    effects = Effects()

    @handlers.handler
    def order(steps: Steps, job: Job = None) -> None:  # type: ignore[assignment]  # given
        steps.run("first", effects.add, 1)
        q.cancel([job.id])
        setattr(job, flag, True)
        try:
            steps.run("second", effects.add, 2)
        except RunEnded:
            effects.append("ended")
        steps.sleep("third", 10)

    order.enqueue(q)
    assert work(ps, handlers) == {flag: 1}
    assert effects == [1, "ended"]


def test_a_run_ended_by_the_handler_itself_is_a_failure(
    ps: Penstock, q: Queue, handlers: Handlers
) -> None:
    """Its job would else come back at once, without end."""

    @handlers.handler
    def order(steps: Steps) -> None:
        raise RunEnded("by hand")

    q.configure(max_attempts=1)
    order.enqueue(q)
    assert work(ps, handlers) == {"dead": 1}
    [letter] = q.peek(state="dead")
    assert letter.error == "RunEnded: by hand"


def test_a_strict_handler_that_catches_its_sleep(ps: Penstock, q: Queue) -> None:
    """The sleep decides, so what the handler makes behind it needs no use."""
    handlers = Handlers(queue="q", strict=True)

    @handlers.handler
    def order(steps: Steps) -> object:
        try:
            return steps.sleep("a day", 86400)
        except Suspended:
            return Retry(after=100)

    order.enqueue(q)
    assert work(ps, handlers) == {"suspended": 1}


def test_a_name_identifies_a_step(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """A second step with a name is refused, and so is a step inside of another one."""
    effects, errors = Effects(), []

    @handlers.handler
    def order(steps: Steps) -> None:
        def inner() -> None:
            steps.run("inner", effects.add, "inner")

        steps.run("a", effects.add, "a")
        for name, function in (("a", effects.append), ("outer", inner), ("", effects.append)):
            try:
                steps.run(name, function)
            except (DuplicateStep, StepOverlap, BadArgument) as error:  # noqa: PERF203  # each must fail
                errors.append(type(error))
        steps.run("inner", effects.add, "later")

    order.enqueue(q)
    assert work(ps, handlers) == {"done": 1}
    assert effects == ["a", "later"]
    assert errors == [DuplicateStep, StepOverlap, BadArgument]


VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "no JSON": (object, "JSON"),
    "bytes": (lambda: b"x", "JSON"),
    "too large": (lambda: "x" * 70_000, "result_size"),
}


@pytest.mark.parametrize("case", VALUES)
def test_a_value_that_cannot_be_kept(
    case: str, ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """The job becomes a dead letter at once, with the reason, and keeps its other notes."""
    make, reason = VALUES[case]

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("good", str)
        steps.run("bad", make)

    order.enqueue(q)
    assert work(ps, handlers) == {"rejected": 1}
    [letter] = q.peek(state="dead")
    assert letter.error.startswith("StepNotKept: step 'bad': its value")
    assert reason in letter.error
    assert len(notes(raw, q)) == 2


def test_the_server_says_how_large_a_value_may_be(
    ps: Penstock, q: Queue, handlers: Handlers
) -> None:
    """The settings that the worker has read do not count; and a refused value ends no run."""
    sizes = []

    def allow() -> None:
        q.configure(result_size=200_000)

    @handlers.handler
    def order(steps: Steps) -> None:
        with pytest.raises(StepNotKept, match=r"'before': its value of 100002 bytes.* is 65536"):
            steps.run("before", lambda: "x" * 100_000)
        steps.run("allow", allow)
        sizes.append(len(steps.run("behind", lambda: "x" * 100_000)))

    q.configure(result_size=0)
    order.enqueue(q)
    assert work(ps, handlers) == {"done": 1}
    assert sizes == [100_000]


def test_the_bounds_of_a_job(ps: Penstock, q: Queue, raw: Raw, handlers: Handlers) -> None:
    """A job has at most 1 MiB of notes; the next step fails, and nothing is written."""
    q.configure(result_size=200_000)

    @handlers.handler
    def order(steps: Steps) -> None:
        for number in range(6):
            steps.run(f"step {number}", lambda: "x" * 199_000)

    order.enqueue(q)
    assert work(ps, handlers) == {"rejected": 1}
    [letter] = q.peek(state="dead")
    assert "step 'step 5'" in letter.error
    assert "1048576 bytes" in letter.error
    assert len(notes(raw, q)) == 6


def test_a_job_has_at_most_1000_steps(handlers: Handlers) -> None:
    """The next step does not begin."""
    del handlers
    steps, effects = Steps.local(), Effects()
    for number in range(1000):
        steps.run(f"step {number}", str)
    with pytest.raises(StepNotKept, match="'one more' has not begun: a job has at most 1000 steps"):
        steps.run("one more", effects.add, 1)
    assert effects == []


def test_notes_of_another_version(ps: Penstock, q: Queue, raw: Raw, handlers: Handlers) -> None:
    """A note that this version can't read is no reason to guess: no step begins."""
    effects = Effects()

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("a", effects.add, "a")
        if len(effects) == 1:
            for name, value in notes(raw, q).items():
                if name[-2:] == b":1":
                    raw.hset(q.ops.keys[TALLY], name, b"z" + value[1:])
            effects.append("changed")
            raise Retry(after=0)

    order.enqueue(q)
    assert work(ps, handlers) == {"retried": 1, "rejected": 1}
    assert effects == ["a", "changed"]
    [letter] = q.peek(state="dead")
    assert letter.error.startswith(StepsChanged.__name__)


def test_who_can_have_steps(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """Jobs that are delivered once, and handlers of whole jobs, have no steps."""

    def order(steps: Steps) -> None:
        steps.run("a", str)

    def whole(steps: Steps) -> None: ...

    with pytest.raises(BadArgument, match="lease=0"):
        handlers.handler("order", lease=0)(order)
    for decorate in (handlers.handler(None), handlers.chunk("c", size=2), handlers.default):
        with pytest.raises(BadArgument, match="whole jobs"):
            decorate(whole)  # type: ignore[operator]  # decorators of several types

    handler = handlers.handler(order)
    with pytest.raises(BadArgument, match="steps"):
        handler.job(steps=1)  # type: ignore[call-arg]  # it is refused
    assert handler.job().body == {}
    handler.options(lease=0, ttl=60).enqueue(q)
    work(ps, handlers)
    assert q.stats().ready == 0


def test_steps_without_a_server(handlers: Handlers) -> None:
    """A handler can be called with local steps."""

    @handlers.handler
    def order(steps: Steps, order_id: str) -> list[str]:
        steps.run("charge", str, steps.key("charge"))
        return steps.run("ship", lambda: (order_id, "blue"))  # type: ignore[return-value]  # JSON has no tuples

    assert order(Steps.local(), "7") == ["7", "blue"]
    assert repr(Steps.local()) == "<Steps local>"


def test_a_duplicate_leaves_a_begun_job(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """New arguments do not come under the notes of old ones: the job counts as busy."""

    @handlers.handler
    def order(steps: Steps, order_id: str) -> None:
        steps.run("a", str, order_id)
        raise Retry(after=100)

    order.options(dedup=Dedup("x", on_duplicate="update")).enqueue(q, "old")
    assert work(ps, handlers) == {"retried": 1}
    again = order.options(dedup=Dedup("x", on_duplicate="update")).enqueue(q, "new")
    assert again.action == "refused"
    [view] = q.peek(state="scheduled")
    assert view.body == {"order_id": "old"}
    assert q.purge("scheduled") == 0


def test_a_step_that_fails_is_not_noted(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """The exception of its function is the handler's; the next attempt runs it again."""
    effects = Effects()

    def fail() -> None:
        effects.append("fail")
        if len(effects) == 1:
            raise LookupError

    @handlers.handler
    def order(steps: Steps) -> None:
        try:
            steps.run("a", fail)
        except LookupError:
            raise Retry(after=0) from None

    order.enqueue(q)
    assert work(ps, handlers) == {"retried": 1, "done": 1}
    assert effects == ["fail", "fail"]


def test_a_note_without_an_answer_ends_the_run(
    real_ps: Penstock, real_raw: Raw, handlers: Handlers
) -> None:
    """If it is not known whether the note was made, no step begins, whatever the handler does."""
    effects, q = Effects(), real_ps.queue("q")

    @handlers.handler
    def order(steps: Steps) -> None:
        if len(effects) == 0:
            real_raw.hset(q.ops.keys["meta"], "v", "9")
        for name in "ab":
            try:
                steps.run(name, effects.add, name)
            except BaseException as error:  # noqa: BLE001, PERF203  # RunEnded is no Exception
                effects.append(type(error).__name__)
        real_raw.hset(q.ops.keys["meta"], "v", "3")

    q.configure(backoff_base=600)
    order.enqueue(q)
    assert work(real_ps, handlers).get("done", 0) == 0
    assert effects[:3] == ["a", "UnsupportedVersion", "RunEnded"]


def test_notes_of_ended_jobs_go_in_parts(q: Queue, raw: Raw) -> None:
    """One call removes 2,000 places of notes, and a sweep the others. Each job has one more, 0."""
    q.enqueue_many(range(3))
    jobs = q.reserve(3, block=0)
    tally, numbers_of = q.ops.keys[TALLY], numbers(raw, q.ops, "active")
    for number in numbers_of:
        values = {b"n%b:%d" % (number, place): "r" * 20 for place in range(1, 1001)}
        raw.hset(tally, mapping={b"n" + number: "1000 20000 0 0 -", **values})
    raw.hset(q.ops.keys["meta"], mapping={"uses": "mn", "v": "3"})
    q.ack(jobs)
    assert raw.hlen(tally) == 1003
    check_invariant(raw)
    q.enqueue("more")
    q.sweep()
    assert not raw.exists(tally)


@pytest.mark.parametrize("swallow", [False, True])
def test_a_sleep_holds_no_worker(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers, *, swallow: bool
) -> None:
    """The run ends, and the next one, after the sleep, passes it. Crashes count since then."""
    effects = Effects()

    @handlers.handler
    def remind(steps: Steps, to: str) -> None:
        steps.run("write", effects.add, f"written to {to}")
        try:
            steps.sleep("a day", 86400)
        except Suspended:
            if not swallow:
                raise
        steps.run("send", effects.add, "sent")

    remind.enqueue(q, "ada")
    assert work(ps, handlers) == {"suspended": 1}
    assert effects == ["written to ada"]
    [view] = q.peek(state="scheduled")
    assert view.due is not None
    assert 86399 < view.due - view.created < 86460
    advance(raw, q.ops, 86300)
    assert work(ps, handlers) == {}
    advance(raw, q.ops, 200)
    assert work(ps, handlers) == {"done": 1}
    assert effects == ["written to ada", "sent"]
    assert notes(raw, q) == {}


def test_a_promote_ends_a_sleep(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """The next run passes it: the sleep was noted when it began."""
    effects = Effects()

    @handlers.handler
    def remind(steps: Steps) -> None:
        steps.sleep("a day", 86400)
        steps.sleep("a week", 604800)
        steps.run("send", effects.add, "sent")

    added = remind.enqueue(q)
    for outcome in ("suspended", "suspended", "done"):
        assert work(ps, handlers) == {outcome: 1}
        q.promote([added.id])
    assert effects == ["sent"]


def test_a_cancel_or_a_ttl_ends_a_sleep(
    ps: Penstock, q: Queue, raw: Raw, handlers: Handlers
) -> None:
    """The job is gone with its notes, and its handler runs no more."""

    @handlers.handler
    def remind(steps: Steps) -> None:
        steps.sleep("a day", 86400)
        raise AssertionError

    added = remind.enqueue(q)
    remind.options(ttl=3600).enqueue(q)
    assert work(ps, handlers) == {"suspended": 2}
    q.cancel([added.id])
    advance(raw, q.ops, 3700)
    q.sweep()
    assert work(ps, handlers) == {}
    assert notes(raw, q) == {}
    stats = q.stats()
    assert (stats.cancelled, stats.expired) == (1, 1)


def test_middleware_sees_that_a_job_sleeps(backend: Backend, handlers: Handlers) -> None:
    """The outcome of the run is suspended, and nothing is raised at its hooks."""
    seen: list[Any] = []

    class Watch(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            seen.append((event.outcome, event.error))

    @handlers.handler
    def remind(steps: Steps) -> None:
        steps.sleep("a day", 86400)

    with backend.sync_client() as lent:
        client = Penstock(lent, middleware=[Watch()])
        remind.enqueue(client.queue("q"))
        assert work(client, handlers) == {"suspended": 1}
        client.close()
    assert seen == [("suspended", None)]


def test_a_step_of_another_kind(ps: Penstock, q: Queue, handlers: Handlers) -> None:
    """A name that was noted for a step is none for a sleep: nothing is guessed."""
    runs = []

    @handlers.handler
    def order(steps: Steps) -> None:
        runs.append(1)
        if len(runs) == 1:
            steps.run("a", str)
            raise Retry(after=0)
        steps.sleep("a", 1)

    order.enqueue(q)
    assert work(ps, handlers) == {"retried": 1, "rejected": 1}
    [letter] = q.peek(state="dead")
    assert letter.error.startswith("StepsChanged: step 'a' was noted as another kind of step")


def test_a_sleep_without_a_server() -> None:
    """It does not sleep."""
    steps = Steps.local()
    steps.sleep("a day", 86400)
    with pytest.raises(DuplicateStep):
        steps.sleep("a day", 86400)
    with pytest.raises(BadArgument, match="seconds"):
        steps.sleep("a week", -1)
