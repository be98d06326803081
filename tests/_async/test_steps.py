"""Steps of a handler: a value is noted once, and no step begins behind a refused note."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import (
    contextmanager,
    suppress,  # async only
)
from typing import Annotated, Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncSteps,
    AsyncWorker,
    BadArgument,
    Dedup,
    Handlers,
    Middleware,
    Retry,
    RunEvent,
)
from penstock.client._async.transport.executor import AsyncExecutor
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


async def work(ps: AsyncPenstock, handlers: Handlers, **options: Any) -> dict[str, int]:
    """Run a worker until the queue has no job that can be taken."""
    worker = AsyncWorker(ps, handlers=handlers, burst=True, **options)
    await worker.run()
    return dict(worker.status().stats.counts)


def notes(raw: Raw, q: AsyncQueue) -> dict[bytes, bytes]:
    """Return the fields of tally that belong to steps."""
    fields: dict[bytes, bytes] = raw.hgetall(q.ops.keys[TALLY])
    return {name: value for name, value in fields.items() if name[:1] == b"n"}


@pytest.mark.parametrize("annotation", [AsyncSteps | None, Annotated[AsyncSteps, "of the order"]])
async def test_the_steps_may_be_a_part_of_an_annotation(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, annotation: Any
) -> None:
    """A function that can be called without steps gets them from a worker."""
    effects = Effects()

    async def order(number: int, steps: Any = None) -> None:
        effects.add(await steps.run("stock", effects.add, number))

    order.__annotations__["steps"] = annotation
    await handlers.handler(order).enqueue(q, 7)
    assert await work(ps, handlers) == {"done": 1}
    assert effects == [7, 7]


async def test_a_retry_does_not_repeat_a_step(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """The second attempt gets the values of the first one, and goes on behind them."""
    effects, values = Effects(), []

    @handlers.handler
    async def order(steps: AsyncSteps, order_id: str, times: int = 1) -> None:
        values.append(await steps.run("stock", effects.add, (order_id, times)))
        values.append(await steps.run("nothing", effects.add, None))
        if len(values) == 2:
            raise Retry(after=0)
        values.append(await steps.run("ship", effects.add, value="now"))

    await order.enqueue(q, "7", times=2)
    assert await work(ps, handlers) == {"retried": 1, "done": 1}
    assert effects == [("7", 2), None, "now"]
    assert values == [["7", 2], None, ["7", 2], None, "now"]
    assert not raw.exists(q.ops.keys[TALLY])
    check_invariant(raw)


async def test_a_coroutine_function_is_awaited(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """A step may be a function of either kind."""
    values = []

    async def fetch(name: str) -> str:
        return name.upper()

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        values.append(await steps.run("fetch", fetch, "ada"))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"done": 1}
    assert values == ["ADA"]


async def test_the_trips_of_a_run(
    ps: AsyncPenstock,
    q: AsyncQueue,
    real_ps: AsyncPenstock,
    handlers: Handlers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step costs one call, a resumed run one more for all its notes."""
    del ps, q
    counts: list[int] = []
    names, run = list[str](), AsyncExecutor.run

    async def note_name(executor: AsyncExecutor, call: Any, **options: Any) -> Any:
        names.append(call.script.name)
        return await run(executor, call, **options)

    monkeypatch.setattr(AsyncExecutor, "run", note_name)

    def trips() -> int:
        """Count the calls, but for those that a worker makes once a second."""
        return len([name for name in names if name not in ("beat", "extend", "measure", "stats")])

    @handlers.handler
    async def order(steps: AsyncSteps, job: AsyncJob = None) -> None:  # type: ignore[assignment]  # given
        before = trips()
        for number in range(100 if job.attempt == 1 and job.deliveries == 1 else 101):
            await steps.run(f"step {number}", str, number)
        counts.append(trips() - before)
        if len(counts) == 1:
            raise Retry(after=0)

    queue = real_ps.queue("q")
    await order.enqueue(queue)
    assert await work(real_ps, handlers) == {"retried": 1, "done": 1}
    assert counts == [100, 2]


async def test_attempts_count_since_the_last_step(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A job that makes progress between its failures does not die of them."""
    await q.configure(max_attempts=2, backoff_base=0.001, backoff_cap=0.001)
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps, job: AsyncJob = None) -> None:  # type: ignore[assignment]  # given
        seen.append(job.attempt)
        for number in range(len(seen)):
            await steps.run(f"step {number}", str, number)
        assert job.attempt == 1
        if len(seen) < 5:
            raise OSError

    await order.enqueue(q)
    counts: dict[str, int] = {}
    while counts.get("done", 0) + counts.get("dead", 0) == 0:
        for name, count in (await work(ps, handlers)).items():
            counts[name] = counts.get(name, 0) + count
        advance(raw, q.ops, 1)
    assert counts == {"retried": 4, "done": 1}
    assert seen == [1, 2, 2, 2, 2]


async def test_a_dead_letter_keeps_its_notes(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A redrive runs the steps that are missing, and the key of a step stays the same."""
    effects, keys, is_broken = Effects(), set[str](), [True]

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await steps.run("first", effects.add, 1)
        keys.add(steps.key("charge"))
        if is_broken:
            raise_bad_argument()
        await steps.run("second", effects.add, 2)

    def raise_bad_argument() -> None:
        raise StepNotKept("as another error of a step")

    added = await order.enqueue(q)
    assert await work(ps, handlers) == {"rejected": 1}
    [letter] = await q.peek(state="dead")
    assert "StepNotKept" in letter.error
    assert len(notes(raw, q)) == 2
    is_broken.clear()
    await q.redrive([letter.id])
    [head] = [value for value in notes(raw, q).values() if value[-2:] == b" -"]
    assert head.split()[0] == head.split()[2] == b"1"
    assert await work(ps, handlers) == {"done": 1}
    assert effects == [1, 2]
    assert keys == {f"{added.stable_id}-charge"}
    assert notes(raw, q) == {}


@pytest.mark.parametrize("swallow", [False, True])
async def test_no_step_begins_after_a_lost_lease(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, *, swallow: bool
) -> None:
    """If another consumer holds the job, the note is refused, whatever the handler makes of it."""
    effects = Effects()
    stolen: list[AsyncJob] = []

    async def steal() -> str:
        effects.append("steal")
        advance(raw, q.ops, 61)
        stolen.extend(await q.reserve(1, block=0))
        return "late"

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.run("steal", steal)
        except RunEnded:
            if not swallow:
                raise
        await steps.run("more", effects.add, "more")

    await q.configure(lease=60)
    await order.enqueue(q)
    assert await work(ps, handlers) == {"lost": 1}
    assert effects == ["steal"]
    [job] = stolen
    assert notes(raw, q) == {}
    assert await job.ack()


async def test_a_cancelled_job_takes_no_other_step(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """The note of a cancelled job ends its run."""
    effects = Effects()

    async def cancel(job: AsyncJob) -> None:
        await q.cancel([job.id])
        effects.append("cancel")

    @handlers.handler
    async def order(steps: AsyncSteps, job: AsyncJob = None) -> None:  # type: ignore[assignment]  # given
        await steps.run("cancel", cancel, job)
        await steps.run("more", effects.add, "more")

    await order.enqueue(q)
    assert await work(ps, handlers) == {"cancelled": 1}
    assert effects == ["cancel"]
    assert notes(raw, q) == {}
    assert numbers(raw, q.ops, "held") == []


@pytest.mark.parametrize("flag", ["lost", "cancelled"])
async def test_no_step_begins_for_a_job_known_to_have_ended(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, flag: str
) -> None:
    """A run whose job is lost or cancelled between two steps does not begin the next one."""
    effects = Effects()

    @handlers.handler
    async def order(steps: AsyncSteps, job: AsyncJob = None) -> None:  # type: ignore[assignment]  # given
        await steps.run("first", effects.add, 1)
        await q.cancel([job.id])
        setattr(job, flag, True)
        try:
            await steps.run("second", effects.add, 2)
        except RunEnded:
            effects.append("ended")
        await steps.sleep("third", 10)

    await order.enqueue(q)
    assert await work(ps, handlers) == {flag: 1}
    assert effects == [1, "ended"]


async def test_a_run_ended_by_the_handler_itself_is_a_failure(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """Its job would else come back at once, without end."""

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        raise RunEnded("by hand")

    await q.configure(max_attempts=1)
    await order.enqueue(q)
    assert await work(ps, handlers) == {"dead": 1}
    [letter] = await q.peek(state="dead")
    assert letter.error == "RunEnded: by hand"


# [async only
async def test_a_time_out_around_a_note_is_a_failure(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """No step begins behind a note whose outcome is not known; the attempt has failed."""
    import asyncio

    effects = Effects()

    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        steps._ask = wait
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(steps.run("first", effects.add, 1), 0.01)
        await steps.run("second", effects.add, 2)

    await q.configure(max_attempts=1)
    await order.enqueue(q)
    assert await work(ps, handlers) == {"dead": 1}
    [letter] = await q.peek(state="dead")
    assert letter.error.startswith("RunEnded: the outcome of an earlier note is not known")
    assert effects == [1]


# async only]


async def test_a_strict_handler_that_catches_its_sleep(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """The sleep decides, so what the handler makes behind it needs no use."""
    handlers = Handlers(queue="q", strict=True)

    @handlers.handler
    async def order(steps: AsyncSteps) -> object:
        try:
            return await steps.sleep("a day", 86400)
        except Suspended:
            return Retry(after=100)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1}


async def test_a_name_identifies_a_step(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """A second step with a name is refused, and so is a step inside of another one."""
    effects, errors = Effects(), []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        async def inner() -> None:
            await steps.run("inner", effects.add, "inner")

        await steps.run("a", effects.add, "a")
        for name, function in (("a", effects.append), ("outer", inner), ("", effects.append)):
            try:
                await steps.run(name, function)
            except (DuplicateStep, StepOverlap, BadArgument) as error:  # noqa: PERF203  # each must fail
                errors.append(type(error))
        await steps.run("inner", effects.add, "later")

    await order.enqueue(q)
    assert await work(ps, handlers) == {"done": 1}
    assert effects == ["a", "later"]
    assert errors == [DuplicateStep, StepOverlap, BadArgument]


# [async only
async def test_two_steps_at_once_are_refused(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """A second task takes no step while one runs."""
    import asyncio

    errors = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        both = [steps.run("a", asyncio.sleep, 0), steps.run("b", asyncio.sleep, 0)]
        errors.extend(await asyncio.gather(*both, return_exceptions=True))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"done": 1}
    assert [type(one) for one in errors] == [type(None), StepOverlap]


# async only]


VALUES: dict[str, tuple[Callable[[], object], str]] = {
    "no JSON": (object, "JSON"),
    "bytes": (lambda: b"x", "JSON"),
    "too large": (lambda: "x" * 70_000, "result_size"),
}


@pytest.mark.parametrize("case", VALUES)
async def test_a_value_that_cannot_be_kept(
    case: str, ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """The job becomes a dead letter at once, with the reason, and keeps its other notes."""
    make, reason = VALUES[case]

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await steps.run("good", str)
        await steps.run("bad", make)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"rejected": 1}
    [letter] = await q.peek(state="dead")
    assert letter.error.startswith("StepNotKept: step 'bad': its value")
    assert reason in letter.error
    assert len(notes(raw, q)) == 2


async def test_the_server_says_how_large_a_value_may_be(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """The settings that the worker has read do not count; and a refused value ends no run."""
    sizes = []

    async def allow() -> None:
        await q.configure(result_size=200_000)

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        with pytest.raises(StepNotKept, match=r"'before': its value of 100002 bytes.* is 65536"):
            await steps.run("before", lambda: "x" * 100_000)
        await steps.run("allow", allow)
        sizes.append(len(await steps.run("behind", lambda: "x" * 100_000)))

    await q.configure(result_size=0)
    await order.enqueue(q)
    assert await work(ps, handlers) == {"done": 1}
    assert sizes == [100_000]


async def test_the_bounds_of_a_job(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A job has at most 1 MiB of notes; the next step fails, and nothing is written."""
    await q.configure(result_size=200_000)

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        for number in range(6):
            await steps.run(f"step {number}", lambda: "x" * 199_000)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"rejected": 1}
    [letter] = await q.peek(state="dead")
    assert "step 'step 5'" in letter.error
    assert "1048576 bytes" in letter.error
    assert len(notes(raw, q)) == 6


async def test_a_job_has_at_most_1000_steps(handlers: Handlers) -> None:
    """The next step does not begin."""
    del handlers
    steps, effects = AsyncSteps.local(), Effects()
    for number in range(1000):
        await steps.run(f"step {number}", str)
    with pytest.raises(StepNotKept, match="'one more' has not begun: a job has at most 1000 steps"):
        await steps.run("one more", effects.add, 1)
    assert effects == []


async def test_notes_of_another_version(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A note that this version can't read is no reason to guess: no step begins."""
    effects = Effects()

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await steps.run("a", effects.add, "a")
        if len(effects) == 1:
            for name, value in notes(raw, q).items():
                if name[-2:] == b":1":
                    raw.hset(q.ops.keys[TALLY], name, b"z" + value[1:])
            effects.append("changed")
            raise Retry(after=0)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"retried": 1, "rejected": 1}
    assert effects == ["a", "changed"]
    [letter] = await q.peek(state="dead")
    assert letter.error.startswith(StepsChanged.__name__)


async def test_who_can_have_steps(ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers) -> None:
    """Jobs that are delivered once, and handlers of whole jobs, have no steps."""

    async def order(steps: AsyncSteps) -> None:
        await steps.run("a", str)

    async def whole(steps: AsyncSteps) -> None: ...

    with pytest.raises(BadArgument, match="lease=0"):
        handlers.handler("order", lease=0)(order)
    for decorate in (handlers.handler(None), handlers.chunk("c", size=2), handlers.default):
        with pytest.raises(BadArgument, match="whole jobs"):
            decorate(whole)  # type: ignore[operator]  # decorators of several types

    handler = handlers.handler(order)
    with pytest.raises(BadArgument, match="steps"):
        handler.job(steps=1)  # type: ignore[call-arg]  # it is refused
    assert handler.job().body == {}
    await handler.options(lease=0, ttl=60).enqueue(q)
    await work(ps, handlers)
    assert (await q.stats()).ready == 0


async def test_steps_without_a_server(handlers: Handlers) -> None:
    """A handler can be called with local steps."""

    @handlers.handler
    async def order(steps: AsyncSteps, order_id: str) -> list[str]:
        await steps.run("charge", str, steps.key("charge"))
        return await steps.run("ship", lambda: (order_id, "blue"))  # type: ignore[return-value]  # JSON has no tuples

    assert await order(AsyncSteps.local(), "7") == ["7", "blue"]
    assert repr(AsyncSteps.local()) == "<AsyncSteps local>"


async def test_a_duplicate_leaves_a_begun_job(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """New arguments do not come under the notes of old ones: the job counts as busy."""

    @handlers.handler
    async def order(steps: AsyncSteps, order_id: str) -> None:
        await steps.run("a", str, order_id)
        raise Retry(after=100)

    await order.options(dedup=Dedup("x", on_duplicate="update")).enqueue(q, "old")
    assert await work(ps, handlers) == {"retried": 1}
    again = await order.options(dedup=Dedup("x", on_duplicate="update")).enqueue(q, "new")
    assert again.action == "refused"
    [view] = await q.peek(state="scheduled")
    assert view.body == {"order_id": "old"}
    assert await q.purge("scheduled") == 0


async def test_a_step_that_fails_is_not_noted(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers
) -> None:
    """The exception of its function is the handler's; the next attempt runs it again."""
    effects = Effects()

    async def fail() -> None:
        effects.append("fail")
        if len(effects) == 1:
            raise LookupError

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.run("a", fail)
        except LookupError:
            raise Retry(after=0) from None

    await order.enqueue(q)
    assert await work(ps, handlers) == {"retried": 1, "done": 1}
    assert effects == ["fail", "fail"]


async def test_a_note_without_an_answer_ends_the_run(
    real_ps: AsyncPenstock, real_raw: Raw, handlers: Handlers
) -> None:
    """If it is not known whether the note was made, no step begins, whatever the handler does."""
    effects, q = Effects(), real_ps.queue("q")

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        if len(effects) == 0:
            real_raw.hset(q.ops.keys["meta"], "v", "9")
        for name in "ab":
            try:
                await steps.run(name, effects.add, name)
            except BaseException as error:  # noqa: BLE001, PERF203  # RunEnded is no Exception
                effects.append(type(error).__name__)
        real_raw.hset(q.ops.keys["meta"], "v", "3")

    await q.configure(backoff_base=600)
    await order.enqueue(q)
    assert (await work(real_ps, handlers)).get("done", 0) == 0
    assert effects[:3] == ["a", "UnsupportedVersion", "RunEnded"]


async def test_notes_of_ended_jobs_go_in_parts(q: AsyncQueue, raw: Raw) -> None:
    """One call removes 2,000 places of notes, and a sweep the others. Each job has one more, 0."""
    await q.enqueue_many(range(3))
    jobs = await q.reserve(3, block=0)
    tally, numbers_of = q.ops.keys[TALLY], numbers(raw, q.ops, "active")
    for number in numbers_of:
        values = {b"n%b:%d" % (number, place): "r" * 20 for place in range(1, 1001)}
        raw.hset(tally, mapping={b"n" + number: "1000 20000 0 0 -", **values})
    raw.hset(q.ops.keys["meta"], mapping={"uses": "mn", "v": "3"})
    await q.ack(jobs)
    assert raw.hlen(tally) == 1003
    check_invariant(raw)
    await q.enqueue("more")
    await q.sweep()
    assert not raw.exists(tally)


@pytest.mark.parametrize("swallow", [False, True])
async def test_a_sleep_holds_no_worker(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, *, swallow: bool
) -> None:
    """The run ends, and the next one, after the sleep, passes it. Crashes count since then."""
    effects = Effects()

    @handlers.handler
    async def remind(steps: AsyncSteps, to: str) -> None:
        await steps.run("write", effects.add, f"written to {to}")
        try:
            await steps.sleep("a day", 86400)
        except Suspended:
            if not swallow:
                raise
        await steps.run("send", effects.add, "sent")

    await remind.enqueue(q, "ada")
    assert await work(ps, handlers) == {"suspended": 1}
    assert effects == ["written to ada"]
    [view] = await q.peek(state="scheduled")
    assert view.due is not None
    assert 86399 < view.due - view.created < 86460
    advance(raw, q.ops, 86300)
    assert await work(ps, handlers) == {}
    advance(raw, q.ops, 200)
    assert await work(ps, handlers) == {"done": 1}
    assert effects == ["written to ada", "sent"]
    assert notes(raw, q) == {}


async def test_a_promote_ends_a_sleep(ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers) -> None:
    """The next run passes it: the sleep was noted when it began."""
    effects = Effects()

    @handlers.handler
    async def remind(steps: AsyncSteps) -> None:
        await steps.sleep("a day", 86400)
        await steps.sleep("a week", 604800)
        await steps.run("send", effects.add, "sent")

    added = await remind.enqueue(q)
    for outcome in ("suspended", "suspended", "done"):
        assert await work(ps, handlers) == {outcome: 1}
        await q.promote([added.id])
    assert effects == ["sent"]


async def test_a_cancel_or_a_ttl_ends_a_sleep(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """The job is gone with its notes, and its handler runs no more."""

    @handlers.handler
    async def remind(steps: AsyncSteps) -> None:
        await steps.sleep("a day", 86400)
        raise AssertionError

    added = await remind.enqueue(q)
    await remind.options(ttl=3600).enqueue(q)
    assert await work(ps, handlers) == {"suspended": 2}
    await q.cancel([added.id])
    advance(raw, q.ops, 3700)
    await q.sweep()
    assert await work(ps, handlers) == {}
    assert notes(raw, q) == {}
    stats = await q.stats()
    assert (stats.cancelled, stats.expired) == (1, 1)


async def test_middleware_sees_that_a_job_sleeps(backend: Backend, handlers: Handlers) -> None:
    """The outcome of the run is suspended, and nothing is raised at its hooks."""
    seen: list[Any] = []

    class Watch(Middleware):
        @contextmanager
        def run(self, event: RunEvent) -> Iterator[None]:
            yield
            seen.append((event.outcome, event.error))

    @handlers.handler
    async def remind(steps: AsyncSteps) -> None:
        await steps.sleep("a day", 86400)

    async with backend.async_client() as lent:
        client = AsyncPenstock(lent, middleware=[Watch()])
        await remind.enqueue(client.queue("q"))
        assert await work(client, handlers) == {"suspended": 1}
        await client.close()
    assert seen == [("suspended", None)]


async def test_a_step_of_another_kind(ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers) -> None:
    """A name that was noted for a step is none for a sleep: nothing is guessed."""
    runs = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        runs.append(1)
        if len(runs) == 1:
            await steps.run("a", str)
            raise Retry(after=0)
        await steps.sleep("a", 1)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"retried": 1, "rejected": 1}
    [letter] = await q.peek(state="dead")
    assert letter.error.startswith("StepsChanged: step 'a' was noted as another kind of step")


async def test_a_sleep_without_a_server() -> None:
    """It does not sleep."""
    steps = AsyncSteps.local()
    await steps.sleep("a day", 86400)
    with pytest.raises(DuplicateStep):
        await steps.sleep("a day", 86400)
    with pytest.raises(BadArgument, match="seconds"):
        await steps.sleep("a week", -1)
