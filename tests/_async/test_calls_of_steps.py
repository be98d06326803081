"""Jobs that a step calls: each is added once, and its end resumes the job that waits for it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    AsyncSteps,
    AsyncWorker,
    BadArgument,
    Dedup,
    Done,
    Handlers,
    Outcome,
    Reject,
    Retry,
    StepFailed,
    chain,
)
from penstock.core.calls.operations.consuming import JobsOfStep
from penstock.errors import StepNotKept, StepsChanged
from penstock.worker.registered import AnyHandler
from tests.support.keyspace import Raw, advance, check_invariant, dump, evalshas

DAY = 86_400


@pytest.fixture
def handlers() -> Handlers:
    """A set of handlers for the queue q."""
    return Handlers(queue="q")


class Seen(list[Any]):
    """Collects what handlers have done, in order."""

    def add(self, value: Any) -> Any:
        """Note a value; return it."""
        self.append(value)
        return value


@pytest.fixture
def seen() -> Seen:
    """The runs and values of handlers, in order."""
    return Seen()


@pytest.fixture
def ship(handlers: Handlers, seen: Seen) -> AnyHandler:
    """A handler that is called: it fails for an argument that says so."""

    @handlers.handler("ship")
    def ship(order: str) -> str:
        if seen.add(order).startswith("bad"):
            raise Reject(f"no such order: {order}")
        return f"label of {order}"

    return ship


@pytest.fixture
def order(handlers: Handlers, seen: Seen, ship: AnyHandler) -> AnyHandler:
    """A handler that calls `ship`, and notes what it gets."""

    @handlers.handler("order")
    async def order(steps: AsyncSteps, order: str) -> str:
        seen.append("run")
        label: str = await steps.call("ship", ship.job(order))
        return str(seen.add(label))

    return order


@pytest.fixture
def album(handlers: Handlers, seen: Seen, ship: AnyHandler) -> AnyHandler:
    """A handler that calls `ship` for each of its arguments, and notes what it gets."""

    @handlers.handler("album")
    async def album(steps: AsyncSteps, orders: list[str]) -> None:
        seen.append(await steps.gather("ship", [ship.job(one) for one in orders]))

    return album


async def work(ps: AsyncPenstock, handlers: Handlers, **options: Any) -> dict[str, int]:
    """Run a worker until the queue has no job that can be taken."""
    worker = AsyncWorker(ps, handlers=handlers, burst=True, **options)
    await worker.run()
    return dict(worker.status().stats.counts)


async def suspend(ps: AsyncPenstock, handlers: Handlers, q: AsyncQueue) -> str:
    """Run the first ready job up to its call, and return its id."""
    worker = AsyncWorker(ps, handlers=handlers, max_jobs=1, concurrency=1, prefetch=0)
    await worker.run()
    [job] = await q.peek(state="scheduled")
    return job.id


def calls_of(raw: Raw, q: AsyncQueue) -> dict[bytes, bytes]:
    """Return the members of the queue, and the notes of called jobs without their times."""
    fields: dict[bytes, bytes] = raw.hgetall(q.ops.keys["tally"])
    found = dict(raw.hgetall(q.ops.keys["members"]))
    return found | {name: value for name, value in fields.items() if value[:2] == b"c\t"}


async def test_a_call_returns_a_value(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, order: AnyHandler, seen: Seen
) -> None:
    """The called job is one of its own, and the caller goes on with its value; nothing stays."""
    job = await q.enqueue(order.job("7"), result_ttl=60)
    assert await work(ps, handlers) == {"suspended": 1, "done": 2}
    assert seen == ["run", "7", "run", "label of 7"]
    assert await job.result(timeout=10) == "label of 7"
    assert not calls_of(raw, q)
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])
    check_invariant(raw)


async def test_the_trips_of_a_call(
    real_ps: AsyncPenstock, real_raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """One to call and suspend, and one to read the notes of the resumed run."""
    counts: list[int] = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        before = evalshas(real_raw)
        try:
            await steps.call("ship", ship.job("7"))
        finally:
            counts.append(evalshas(real_raw) - before)

    q = real_ps.queue("q")
    await order.enqueue(q)
    before = evalshas(real_raw)
    assert await work(real_ps, handlers) == {"suspended": 1, "done": 2}
    assert counts == [0, 1]
    del before


async def test_gather_returns_values_in_order(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, album: AnyHandler, seen: Seen
) -> None:
    """All are called at once; the caller runs twice, however many they are."""
    orders = [str(number) for number in range(30)]
    await album.enqueue(q, orders)
    assert await work(ps, handlers, concurrency=4) == {"suspended": 1, "done": 31}
    assert sorted(seen[:-1], key=int) == orders
    assert seen[-1] == [f"label of {one}" for one in orders]
    assert not calls_of(raw, q)
    check_invariant(raw)


async def test_an_empty_gather(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, album: AnyHandler, seen: Seen
) -> None:
    """It returns an empty list at once."""
    await album.enqueue(q, [])
    assert await work(ps, handlers) == {"done": 1}
    assert seen == [[]]


async def _delete(q: AsyncQueue, job_id: str) -> None:
    assert all(await q.delete([job_id]))


async def _cancel(q: AsyncQueue, job_id: str) -> None:
    assert all(await q.cancel([job_id]))


async def _bury(q: AsyncQueue, job_id: str) -> None:
    assert all(await q.bury([job_id], "no use"))


async def _purge(q: AsyncQueue, job_id: str) -> None:
    del job_id
    assert await q.purge("ready") == 1


async def _ack(q: AsyncQueue, job_id: str) -> None:
    assert all(await q.ack([job_id]))


@pytest.mark.parametrize(
    "end, state, error",
    [
        (_delete, "removed", ""),
        (_cancel, "cancelled", ""),
        (_purge, "removed", ""),
        (_bury, "dead", "no use"),
    ],
)
async def test_a_called_job_that_fails(
    end: Callable[[AsyncQueue, str], Any],
    state: str,
    error: str,
    ps: AsyncPenstock,
    q: AsyncQueue,
    raw: Raw,
    handlers: Handlers,
    order: AnyHandler,
    seen: Seen,
) -> None:
    """The caller is told how, and is a dead letter if it does not catch that."""
    caller = (await order.enqueue(q, "7")).id
    await suspend(ps, handlers, q)
    view = await q.show(caller)
    assert view is not None
    [step] = view.steps
    assert (view.state, view.waits_for, step.state) == ("scheduled", "1 job of step ship", "open")
    assert step.job is not None
    called = await q.show(step.job)
    assert called is not None
    assert called.caller == caller
    assert called.batch is None
    await end(q, step.job)
    check_invariant(raw)
    assert await work(ps, handlers) == {"rejected": 1}
    assert seen == ["run", "run"]
    view = await q.show(caller)
    assert view is not None
    assert view.state == "dead"
    assert [one.state for one in view.steps] == [state]
    assert view.error.startswith("StepFailed: step 'ship': job ")
    assert view.error.endswith(error)
    check_invariant(raw)


async def test_an_error_names_the_called_job(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, ship: AnyHandler
) -> None:
    """A handler may catch it, and go on."""
    errors: list[StepFailed] = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.call("ship", ship.job("bad"))
        except StepFailed as error:
            errors.append(error)
        await steps.run("refund", str)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "rejected": 1, "done": 1}
    [error] = errors
    assert (error.step, error.state, error.error) == ("ship", "dead", "no such order: bad")
    [letter] = await q.peek(state="dead")
    assert error.job_id == letter.id


async def test_a_called_job_that_expires(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """The end of its ttl resumes the caller."""
    states: list[str] = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.call("ship", ship.options(ttl=60, delay=50).job("7"))
        except StepFailed as error:
            states.append(error.state)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1}
    advance(raw, q.ops, 61)
    assert await work(ps, handlers) == {"done": 1}
    assert states == ["expired"]
    check_invariant(raw)


async def test_an_ack_by_another_client(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, order: AnyHandler, seen: Seen
) -> None:
    """A consumer that gives no value leaves None."""
    await order.enqueue(q, "7")
    await suspend(ps, handlers, q)
    await q.ack(await q.reserve(1, block=0))
    assert await work(ps, handlers) == {"done": 1}
    assert seen == ["run", "run", None] or seen == ["run", "run", "None"]


async def test_a_redrive_calls_failed_jobs_again(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, album: AnyHandler, seen: Seen
) -> None:
    """It keeps the values of the others; each redrive calls what has failed again, once."""
    job = await album.enqueue(q, ["1", "bad 2", "3", "bad 4"])
    for count in (4, 2):
        outcomes = await work(ps, handlers)
        assert outcomes.pop("done", 0) == count - 2
        assert outcomes == {"suspended": 1, "rejected": 3}
        check_invariant(raw)
        assert await q.redrive([job.id])
    assert sorted(seen) == ["1", "3", "bad 2", "bad 2", "bad 4", "bad 4"]


async def test_a_redriven_called_job_is_an_ordinary_one(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler, seen: Seen
) -> None:
    """Its end was noted by its death; what it does later changes nothing for the caller."""

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.gather("first", [ship.job("bad"), ship.job("1")])
        except StepFailed as error:
            seen.append(error.job_id)
        seen.append(await steps.gather("second", [ship.job("2"), ship.job("3")]))

    await order.enqueue(q)
    assert await work(ps, handlers, concurrency=1, max_jobs=4) == {
        "suspended": 2,
        "rejected": 1,
        "done": 1,
    }
    dead = await q.peek(state="dead")
    assert seen[2] == dead[0].id
    assert await q.redrive([dead[0].id])
    check_invariant(raw)
    assert await q.ack([dead[0].id])
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 3}
    assert seen[-1] == ["label of 2", "label of 3"]
    check_invariant(raw)


@pytest.mark.parametrize("is_active", [False, True])
async def test_a_ttl_of_the_caller(
    ps: AsyncPenstock,
    q: AsyncQueue,
    raw: Raw,
    handlers: Handlers,
    order: AnyHandler,
    *,
    is_active: bool,
) -> None:
    """Its end is no death, and its called jobs run on; while it lasts, they resume it."""
    await q.enqueue(order.job("7"), ttl=60)
    caller = await suspend(ps, handlers, q)
    if is_active:
        await q.ack(await q.reserve(1, block=0))
        [again] = await q.reserve(1, block=0)
        assert again.id == caller
    advance(raw, q.ops, 61)
    await q.sweep()
    assert await q.show(caller) is None
    assert await work(ps, handlers) == ({} if is_active else {"done": 1})
    stats = await q.stats()
    assert (stats.expired, stats.dead) == (1, 0)
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])
    check_invariant(raw)


async def test_a_step_never_calls_twice(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, album: AnyHandler, seen: Seen
) -> None:
    """A caller that was buried and redriven waits for the jobs that it has called before."""
    await album.enqueue(q, ["1", "2"])
    caller = await suspend(ps, handlers, q)
    assert all(await q.bury([caller], "by hand"))
    assert await work(ps, handlers, max_jobs=1, concurrency=1, prefetch=0) == {"done": 1}
    check_invariant(raw)
    assert await q.redrive([caller])
    assert await work(ps, handlers, max_jobs=1, concurrency=1, prefetch=0) == {"suspended": 1}
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 2}
    assert seen == ["1", "2", ["label of 1", "label of 2"]]
    assert (await q.stats()).enqueued == 3
    check_invariant(raw)


async def test_a_late_run_calls_nothing(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, order: AnyHandler, seen: Seen
) -> None:
    """A consumer whose lease has ended, or that repeats its call, adds no job."""
    await order.enqueue(q, "7")
    [late] = await q.reserve(1, block=0)
    advance(raw, q.ops, 61)
    await suspend(ps, handlers, q)
    part = q.route.part
    assert part is not None
    before = dump(raw)
    step = JobsOfStep(1, "ship", 1, (1,), "-")
    call = q.ops.call_jobs(late, step, [(0, b"1\nx")])
    assert list(await part.executor.run(call)) == [Outcome.STALE]
    assert dump(raw) == before
    assert await work(ps, handlers) == {"done": 2}
    assert seen == ["run", "7", "run", "label of 7"]


async def test_a_repeated_call_adds_nothing(q: AsyncQueue, raw: Raw) -> None:
    """After a lost reply the receipt tells that the delivery has ended."""
    await q.enqueue(b"x")
    [job] = await q.reserve(1, block=0)
    part = q.route.part
    assert part is not None
    step = JobsOfStep(1, "ship", 1, (1,), "-")
    assert list(await part.executor.run(q.ops.call_jobs(job, step, [(0, b"1\nx")]))) == [
        Outcome.DONE
    ]
    before = dump(raw)
    assert list(await part.executor.run(q.ops.call_jobs(job, step, [(0, b"1\nx")]))) == [
        Outcome.ENDED
    ]
    assert dump(raw) == before
    check_invariant(raw)


async def test_a_cancelled_caller_calls_nothing(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler, seen: Seen
) -> None:
    """It ends in the step that would call."""

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        assert await q.cancel([caller]) == 1
        await steps.call("ship", ship.job("7"))

    caller = (await order.enqueue(q)).id
    assert await work(ps, handlers) == {"cancelled": 1}
    assert not seen
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"], q.ops.keys["held"])
    check_invariant(raw)


@pytest.mark.parametrize("end", [_cancel, _delete])
async def test_the_called_jobs_of_a_caller_that_ends(
    end: Callable[[AsyncQueue, str], Any],
    ps: AsyncPenstock,
    q: AsyncQueue,
    raw: Raw,
    handlers: Handlers,
    order: AnyHandler,
    seen: Seen,
) -> None:
    """They run on, and their ends leave nothing."""
    await order.enqueue(q, "7")
    caller = await suspend(ps, handlers, q)
    await end(q, caller)
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert seen == ["run", "7"]
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])
    check_invariant(raw)


async def test_what_leaves_a_caller_that_waits(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, order: AnyHandler
) -> None:
    """A promote is refused, and a purge and a duplicate change nothing."""
    await q.enqueue(order.job("7"), dedup=Dedup("seven", on_duplicate="update"))
    caller = await suspend(ps, handlers, q)
    before = dump(raw)
    promoted = await q.promote([caller])
    assert [*promoted] == [Outcome.REFUSED]
    assert await q.purge("scheduled") == 0
    added = await q.enqueue(order.job("8"), dedup=Dedup("seven", on_duplicate="update"))
    assert added.action == "refused"
    assert {name: value for name, value in dump(raw).items() if b"meta" not in name} == {
        name: value for name, value in before.items() if b"meta" not in name
    }
    assert await work(ps, handlers) == {"done": 2}


async def test_the_place_of_a_job_that_hands_over(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """One job that follows gets the place; of several the called job keeps it."""
    values: list[Any] = []

    @handlers.handler
    def pack(then: list[str]) -> Done:
        return Done("packed", then=[ship.job(one) for one in then])

    @handlers.handler
    def add(value: str, more: str) -> str:
        return value + more

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        one = await steps.call("one", pack.job(["7"]))
        two = await steps.call("two", pack.job(["8", "9"]))
        links = (partial(add, more="!"), partial(add, more="?"))
        whole = await steps.call("chain", chain(ship.job("10"), *links))
        try:
            await steps.call("dead link", pack.job(["bad"]))
        except StepFailed as error:
            values.extend((one, two, whole, error.state))

    await order.enqueue(q)
    outcomes = await work(ps, handlers)
    assert outcomes == {"suspended": 4, "done": 10, "rejected": 1}
    assert values == ["label of 7", "packed", "label of 10!?", "dead"]
    assert not raw.exists(q.ops.keys["members"])
    check_invariant(raw)


async def test_a_batch_that_follows_a_called_job(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """Its callback gets the place."""
    values: list[Any] = []

    @handlers.handler
    def pack() -> Done:
        return Done(batch=[ship.job("1"), ship.job("2")], then=ship.job("last"))

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        values.append(await steps.call("pack", pack.job()))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "done": 5}
    assert values == ["label of last"]
    check_invariant(raw)


async def test_retries_of_a_called_job(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, seen: Seen
) -> None:
    """They are its own; the caller waits for its end."""

    @handlers.handler
    def flaky() -> int:
        if len(seen) < 3:
            seen.append("failed")
            raise Retry(after=0)
        return 7

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.call("flaky", flaky.job()))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "retried": 3, "done": 2}
    assert seen == ["failed"] * 3 + [7]


async def test_called_jobs_call_others(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, seen: Seen
) -> None:
    """A called job may itself call jobs."""

    @handlers.handler
    async def count(steps: AsyncSteps, number: int) -> int:
        if number == 0:
            return 0
        parts = await steps.gather("parts", [count.job(number - 1)] * 2)
        return sum(parts) + 1

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.call("count", count.job(3)))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 8, "done": 16}
    assert seen == [7]
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])
    check_invariant(raw)


async def test_changed_steps(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, ship: AnyHandler
) -> None:
    """Other jobs than those that were called, or another kind of step, are refused."""
    versions: list[Callable[[AsyncSteps], Any]] = [
        lambda steps: steps.gather("ship", [ship.job("1"), ship.job("2")]),
        lambda steps: steps.gather("ship", [ship.job("1")]),
        lambda steps: steps.gather("ship", [ship.job("2"), ship.job("1")]),
        lambda steps: steps.run("ship", str),
        lambda steps: steps.call("ship", ship.job("1")),
        lambda steps: steps.gather("ship", [ship.job("1"), ship.job("2")]),
    ]
    version = 0

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await versions[version](steps)

    job = await order.enqueue(q)
    assert await work(ps, handlers, max_jobs=1, concurrency=1) == {"suspended": 1}
    await q.ack([view.id for view in await q.peek(state="ready")])
    texts = []
    for version in range(1, len(versions)):  # noqa: B007  # the handler reads it
        outcomes = await work(ps, handlers)
        view = await q.show(job.id)
        texts.append(view and view.error)
        assert outcomes == ({"done": 1} if view is None else {"rejected": 1})
        await q.redrive([job.id])
    assert [text and text.partition(":")[2].partition(":")[0] for text in texts] == [
        " step 'ship' called 2 jobs before, and calls 1 now",
        " step 'ship' called jobs with other arguments before, or in another order",
        " step 'ship' was noted as another kind of step",
        " step 'ship' called 2 jobs before, and calls 1 now",
        None,
    ]
    assert StepsChanged.__name__ in str(texts[0])


async def test_jobs_that_no_step_can_call(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler, seen: Seen
) -> None:
    """They are refused before anything is written."""
    other = Handlers(queue="elsewhere").handler("ship")(lambda order: order)
    jobs: list[Any] = [
        ship,
        "7",
        other.job("7"),
        ship.options(at=4e9).job("7"),
        ship.options(dedup=Dedup("7")).job("7"),
        ship.job("x" * 1_048_600),
    ]

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        for number, job in enumerate(jobs):
            with pytest.raises(BadArgument) as caught:
                await steps.call(f"call {number}", job)
            seen.append(caught.value.argument)
        with pytest.raises(StepNotKept, match="at most 1000 steps and called jobs"):
            await steps.gather("many", [ship.job("7")] * 1001)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"done": 1}
    assert seen == ["job", "job", "queue", "at", "dedup", "jobs"]
    check_invariant(raw)


async def test_a_key_that_would_wait_for_itself(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """On an ordered queue a job with the caller's key is refused; another key is none the less."""
    await q.configure(ordered=True)
    values: list[Any] = []

    @handlers.handler
    async def order(steps: AsyncSteps, key: str) -> None:
        values.append(await steps.call("ship", ship.options(key=key).job("7")))

    for key in ("a", "b"):
        await q.enqueue(order.job(key), key="b")
    outcomes = await work(ps, handlers)
    assert outcomes["suspended"] == 1
    assert values == ["label of 7"]
    [view] = await q.peek(state="scheduled")
    assert "own_key" in view.error
    assert not raw.exists(q.ops.keys["members"])
    check_invariant(raw)


@pytest.mark.parametrize("way", ["a call", "hand-over", "batch", "chain"])
async def test_a_key_that_a_caller_has_above(
    way: str, ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler
) -> None:
    """On an ordered queue no job whose end a caller awaits gets that caller's key."""
    await q.configure(ordered=True)

    @handlers.handler
    async def pack(steps: AsyncSteps) -> Done | None:
        if way == "a call":
            await steps.call("ship", ship.options(key="b").job("7"))
        if way == "batch":
            return Done(batch=[ship.options(key="b").job("7")], then=ship.job("8"))
        return Done(then=[ship.options(key="b").job("7")]) if way == "hand-over" else None

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        first = pack.options(key="a").job()
        await steps.call("pack", chain(first, ship.options(key="b")) if way == "chain" else first)

    await q.enqueue(order.job(), key="b")
    assert await work(ps, handlers) == {"suspended": 1, "retried": 1}
    views = await q.peek(state="scheduled")
    [refused] = [view for view in views if view.error]
    assert "own_key" in refused.error
    assert not raw.exists(q.ops.keys["parked"])
    check_invariant(raw)


async def test_a_limit_of_a_key(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler, seen: Seen
) -> None:
    """The caller gives its ticket back, so the called job of its key can run."""
    await q.configure(per_key=1)

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.call("ship", ship.options(key="a").job("7")))

    await q.enqueue(order.job(), key="a")
    assert await work(ps, handlers) == {"suspended": 1, "done": 2}
    assert seen == ["7", "label of 7"]
    check_invariant(raw)


async def test_priorities(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, ship: AnyHandler, seen: Seen
) -> None:
    """A caller with a priority keeps it, and so does the job that it calls."""

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.call("ship", ship.options(priority=7).job("7")))

    await q.enqueue(order.job(), priority=5)
    await suspend(ps, handlers, q)
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 2}
    assert seen == ["7", "label of 7"]
    check_invariant(raw)


@pytest.mark.parametrize("size", [65_000, 66_000])
async def test_large_values(
    size: int, ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, seen: Seen
) -> None:
    """A value beyond `result_size` is none; large bodies are no matter."""

    @handlers.handler
    def big(text: str) -> str:
        return text

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            seen.append(len(await steps.call("big", big.job("x" * size))))
        except StepFailed as error:
            seen.append(error.error)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "done": 2}
    assert seen in (
        [65_000],
        ["its value is not kept: it is larger than the queue's result_size"],
    )
    check_invariant(raw)


async def test_values_without_room(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, seen: Seen
) -> None:
    """The values of a step have 1 MiB; those beyond it are missed by the step."""

    @handlers.handler
    def big(number: int) -> str:
        return "x" * 60_000

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            await steps.gather("big", [big.job(number) for number in range(20)])
        except StepFailed as error:
            seen.append(error.error)

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "done": 21}
    assert seen == ["its value is not kept: the steps of the job have no room for it"]
    check_invariant(raw)


async def test_a_thousand_calls(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, album: AnyHandler, seen: Seen
) -> None:
    """A job has 1,000 places, and its end removes them."""
    await album.enqueue(q, [str(number) for number in range(1000)])
    outcomes = await work(ps, handlers, concurrency=1, prefetch=100)
    assert outcomes == {"suspended": 1, "done": 1001}
    assert len(seen[-1]) == 1000
    assert seen[-1][999] == "label of 999"
    assert not raw.exists(q.ops.keys["tally"], q.ops.keys["members"])


async def test_calls_without_a_server(order: AnyHandler, album: AnyHandler, seen: Seen) -> None:
    """The values are given; a call without one fails."""
    assert await order(AsyncSteps.local({"ship": "a label"}), "7") == "a label"
    await album(AsyncSteps.local({"ship": ["a", "b"]}), ["1", "2"])
    assert seen == ["run", "a label", ["a", "b"]]
    for values in ({}, {"ship": ["a"]}):
        with pytest.raises(StepFailed, match=r"no list of 2 values is among those given"):
            await album(AsyncSteps.local(values), ["1", "2"])


async def test_a_resumed_consumer_is_woken(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, order: AnyHandler
) -> None:
    """The end of a called job adds the wake token."""
    await order.enqueue(q, "7")
    await suspend(ps, handlers, q)
    [called] = await q.reserve(1, block=0)
    raw.delete(q.ops.keys["wake"])
    await called.ack()
    assert raw.llen(q.ops.keys["wake"]) == 1
    [caller] = await q.reserve(1, block=0)
    assert json.loads(caller.raw) == {"order": "7"}


async def test_suspended_jobs_are_found(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, order: AnyHandler
) -> None:
    """A search finds the jobs whose steps sleep, or wait for a signal or for jobs; no others."""

    @handlers.handler
    async def nap(steps: AsyncSteps) -> None:
        await steps.sleep("nap", 3600)

    @handlers.handler
    async def ask(steps: AsyncSteps) -> None:
        await steps.wait("answer")

    ids = {(await order.enqueue(q, "red")).id}
    await suspend(ps, handlers, q)
    called = await q.reserve(1, block=0)
    ids |= {(await nap.enqueue(q)).id, (await ask.enqueue(q)).id}
    await work(ps, handlers)
    await q.enqueue("later", delay=600)
    await q.enqueue("now")
    assert {view.id async for view in q.jobs(suspended=True)} == ids
    assert {view.id async for view in q.jobs("scheduled", suspended=True, newest=True)} == ids
    with pytest.raises(BadArgument, match=r"^suspended="):
        q.jobs(suspended=1)  # type: ignore[arg-type]  # on purpose
    with pytest.raises(BadArgument, match=r"^state='ready': a suspended job is scheduled"):
        q.jobs("ready", suspended=True)
    assert await q.ack(called)
