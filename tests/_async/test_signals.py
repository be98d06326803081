"""Steps that wait for a signal: early, late, twice, in time or not; the first outcome stays."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncSteps,
    AsyncWorker,
    BadArgument,
    BadJobId,
    Dedup,
    Handlers,
    Outcome,
    OutcomeUnknown,
    Retry,
    Signalled,
    StepTimeout,
    WrongEpoch,
    WrongQueue,
)
from penstock.client._async.transport.connection import AsyncProducerConnection
from penstock.embedded import EmbeddedServer
from penstock.wire.scripts import script
from tests.support.backends import Backend
from tests.support.keyspace import Raw, advance, check_invariant, dump
from tests.support.proxy import Proxy
from tests.support.twins import aspawn

from .conftest import AsyncWaits

AT = 1_800_000_000_000
TAKEN, THERE, GONE, AT_MOST_ONCE = Signalled


@pytest.fixture
def handlers() -> Handlers:
    """A set of handlers for the queue q."""
    return Handlers(queue="q")


class Answers(list[Any]):
    """Collects what the waits of a handler returned, in order; None for a timeout."""


@pytest.fixture
def answers(handlers: Handlers) -> Answers:
    """The answers of the handler `order`, which waits for an approval for a day."""
    seen = Answers()

    @handlers.handler("order")
    async def order(steps: AsyncSteps) -> None:
        await steps.run("stock", str, "blue")
        try:
            seen.append(await steps.wait("approval", timeout=86400))
        except StepTimeout:
            seen.append(None)

    return seen


async def work(ps: AsyncPenstock, handlers: Handlers, **options: Any) -> dict[str, int]:
    """Run a worker until the queue has no job that can be taken."""
    worker = AsyncWorker(ps, handlers=handlers, burst=True, **options)
    await worker.run()
    return dict(worker.status().stats.counts)


async def add(q: AsyncQueue, **options: Any) -> str:
    """Add a job of the handler `order`, and return its id."""
    return (await q.enqueue({}, headers={"handler": "order"}, **options)).id


def notes(raw: Raw, q: AsyncQueue) -> dict[bytes, bytes]:
    """Return the fields of tally that belong to steps."""
    fields: dict[bytes, bytes] = raw.hgetall(q.ops.keys["tally"])
    return {name: value for name, value in fields.items() if name[:1] == b"n"}


async def test_a_signal_ends_a_wait(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """No worker is held meanwhile. The job is due at once, and the wait returns the value."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    assert await work(ps, handlers) == {}
    check_invariant(raw)
    assert await q.signal(job, "approval", {"by": ("ada", 7)}) is TAKEN
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [{"by": ["ada", 7]}]
    assert await q.signal(job, "approval", "late") is GONE
    assert not raw.exists(q.ops.keys["tally"])


async def test_an_early_signal(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """A job that was never delivered keeps the signal until its wait. It keeps its place."""
    await q.enqueue({}, headers={"handler": "order"})
    second = await add(q)
    await q.enqueue({}, headers={"handler": "order"})
    assert await q.signal(second, "approval", 2) is TAKEN
    assert await q.signal(second, "other") is TAKEN
    check_invariant(raw)
    assert (await q.reserve(1, block=0))[0].id != second
    [job] = await q.reserve(1, block=0)
    assert job.id == second
    await q.release([job])
    assert (await work(ps, handlers))["done"] == 1
    assert answers == [2]


async def test_a_signal_while_the_handler_runs(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """It comes between the start of the run and its wait: the job does not wait."""
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps, job: AsyncJob = None) -> None:  # type: ignore[assignment]  # given
        async def send() -> str:
            return str(await q.signal(job.id, "approval", 1))

        seen.append(await steps.run("send", send))
        seen.append(await steps.wait("approval"))

    await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1, "done": 1}
    assert seen == ["taken", "taken", 1]
    assert not raw.exists(q.ops.keys["tally"])


async def test_the_first_signal_stays(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, answers: Answers
) -> None:
    """A later one is told so, whether the job waits or not, and with the same value too."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    assert await q.signal(job, "approv", 0) is TAKEN  # another name ends no wait
    assert await work(ps, handlers) == {}
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await q.signal(job, "approval", 1) is THERE
    assert await q.signal(job, "approval", 2) is THERE
    assert [bool(one) for one in Signalled] == [True, False, False, False]
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_timeout(ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers) -> None:
    """It is noted before it is raised: later runs time out as well, and a signal is late."""
    seen: list[Any] = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        try:
            seen.append(await steps.wait("approval", timeout=3600))
        except StepTimeout as error:
            seen.append(str(error))
            if len(seen) == 1:
                raise Retry(after=0) from error

    added = await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1}
    advance(raw, q.ops, 3500)
    assert await work(ps, handlers) == {}
    advance(raw, q.ops, 101)
    [job] = await q.reserve(1, block=0)
    assert await q.release([job])
    check_invariant(raw)
    assert await work(ps, handlers) == {"retried": 1, "done": 1}
    assert seen == ["no signal 'approval' came before the timeout of the wait"] * 2
    assert await q.signal(added.id, "approval") is GONE


@pytest.mark.parametrize("first", ["signal", "timeout"])
async def test_a_signal_against_a_timeout(
    first: str, ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """The time is over. Until a run has read its notes a signal is taken, and then it is late."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    advance(raw, q.ops, 86401)
    if first == "timeout":
        [taken] = await q.reserve(1, block=0)
        part = q.route.part
        assert part is not None
        await part.executor.run(q.ops.read_notes(taken))
        check_invariant(raw)
        assert await q.signal(job, "approval", 1) is THERE
        await q.release([taken])
    else:
        assert await q.signal(job, "approval", 1) is TAKEN
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1 if first == "signal" else None]


async def test_a_promote_ends_the_time_of_a_wait(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """It is a timeout: nothing was approved."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    assert await q.promote([job])
    check_invariant(raw)
    assert await q.signal(job, "approval", 1) is THERE
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [None]


async def test_a_wait_goes_on_after_a_crash(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """Its time counts from the first run that waits; what wakes the job before does not end it."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    raw.zadd(q.ops.keys["scheduled"], {raw.zrange(q.ops.keys["scheduled"], 0, 0)[0]: 0})
    advance(raw, q.ops, 80000)
    assert await work(ps, handlers) == {"suspended": 1}
    [view] = await q.peek(state="scheduled")
    assert view.due is not None
    assert 6300 < view.due - view.now < 6401
    advance(raw, q.ops, 6401)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [None]
    assert await q.signal(job, "approval") is GONE


async def test_an_uncaught_timeout_rejects_the_job(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """Another attempt would end likewise. After a redrive the job waits again."""
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.wait("approval", timeout=3600))

    added = await order.enqueue(q)
    assert await work(ps, handlers) == {"suspended": 1}
    await q.promote([added.id])
    assert await work(ps, handlers) == {"rejected": 1}
    [letter] = await q.peek(state="dead")
    assert letter.error.startswith("StepTimeout: no signal 'approval' came")
    assert await q.signal(added.id, "approval", "too late") is THERE
    await q.redrive([letter.id])
    check_invariant(raw)
    assert await work(ps, handlers) == {"suspended": 1}
    await q.promote([added.id])
    assert await work(ps, handlers) == {"rejected": 1}
    await q.redrive([letter.id])
    assert await q.signal(added.id, "approval", "now") is TAKEN
    assert await q.signal(added.id, "approval", "later") is THERE
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert seen == ["now"]


async def test_a_dead_letter_takes_a_signal(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """It has it after its redrive."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    await q.bury([job], "by hand")
    assert await q.signal(job, "approval", 1) is TAKEN
    check_invariant(raw)
    await q.redrive([job])
    assert await q.signal(job, "approval", 2) is THERE
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_signal_to_a_job_that_is_delivered(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """Its holder keeps it; the next run has the signal."""
    job = await add(q)
    [taken] = await q.reserve(1, block=0)
    assert await q.signal(job, "approval", 1) is TAKEN
    check_invariant(raw)
    assert await q.nack([taken], delay=0)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_job_delivered_at_most_once(q: AsyncQueue, raw: Raw) -> None:
    """It can't wait: nothing is written, before its delivery and behind."""
    ids = [await add(q, lease=0, ttl=60), await add(q, lease=0, ttl=60, delay=10)]
    for job in ids:
        assert await q.signal(job, "approval") is AT_MOST_ONCE
    await q.reserve(1, block=0)
    assert await q.signal(ids[0], "approval") is AT_MOST_ONCE
    assert notes(raw, q) == {}


ENDS: dict[str, Callable[[AsyncQueue, str], Any]] = {
    "cancel": lambda q, job: q.cancel([job]),
    "delete": lambda q, job: q.delete([job]),
    "withdraw": lambda q, job: q.delete([job], if_undelivered=True),
    "ack": lambda q, job: q.ack([job]),
    "clear": lambda q, _: q.clear(),
}


@pytest.mark.parametrize("state", ["ready", "scheduled", "parked", "active", "waiting"])
@pytest.mark.parametrize("end", [*ENDS, "ttl"])
async def test_an_end_leaves_nothing(
    end: str,
    state: str,
    ps: AsyncPenstock,
    q: AsyncQueue,
    raw: Raw,
    handlers: Handlers,
    answers: Answers,
) -> None:
    """Whatever ends a job that has a signal also removes it, in each state."""
    if state == "parked":
        await q.configure(per_key=1)
        await q.enqueue({}, headers={"handler": "order"}, key="ada")
    options: dict[str, Any] = {"delay": 600} if state == "scheduled" else {}
    job = await add(q, ttl=172_800, key="ada" if state == "parked" else None, **options)
    if state == "waiting":
        assert await work(ps, handlers) == {"suspended": 1}
    if state == "active":
        await q.reserve(1, block=0)
    assert await q.signal(job, "later", "x" * 60_000) is TAKEN
    check_invariant(raw)
    if end == "ttl":
        advance(raw, q.ops, 172_900)
        assert await q.signal(job, "more") is GONE
        await q.sweep()
    else:
        await ENDS[end](q, job)
    if (end, state) in {("cancel", "active"), ("withdraw", "active"), ("withdraw", "waiting")}:
        await q.delete([job])
    assert notes(raw, q) == {}
    if end != "clear":
        check_invariant(raw)


async def test_a_purge_leaves_a_job_with_a_signal(q: AsyncQueue, raw: Raw) -> None:
    """A purge of due jobs leaves a job that has a signal."""
    job = await add(q)
    await q.enqueue({}, headers={"handler": "order"})
    await q.signal(job, "approval")
    assert await q.purge("ready") == 1
    check_invariant(raw)
    assert await q.show(job) is not None


async def test_bad_arguments(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """Each error names the argument, and nothing was written."""
    job = await add(q)
    strange = await ps.queue("other").enqueue({})
    for name in ("", "a\nb", "x" * 201, 7):
        with pytest.raises(BadArgument, match=r"^name="):
            await q.signal(job, name)  # type: ignore[arg-type]  # they are refused
    for value in (object(), b"bytes"):
        with pytest.raises(BadArgument, match=r"^value=.*JSON"):
            await q.signal(job, "approval", value)
    with pytest.raises(BadArgument, match=r"^value=.*limit of queue 'q' is 65536 bytes"):
        await q.signal(job, "approval", "x" * 70_000)
    with pytest.raises(WrongQueue):
        await q.signal(strange.id, "approval")
    with pytest.raises(BadJobId):
        await q.signal("7", "approval")
    assert notes(raw, q) == {}
    await q.configure(result_size=100_000)
    assert await q.signal(job, "approval", "x" * 70_000) is TAKEN
    await q.clear()
    await q.enqueue({})
    with pytest.raises(WrongEpoch):
        await q.signal(job, "approval")


@pytest.mark.parametrize("name", [b"\xff", b"a\x80", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98a"])
async def test_a_name_that_is_not_utf8(
    name: bytes, ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """The script refuses it. If it is there all the same, the job goes on."""
    job = await add(q)
    part = q.route.part
    assert part is not None
    number, epoch = q.ops.number_of(job)
    with pytest.raises(BadArgument, match=r"^name="):
        await part.executor.run(q.ops.call("signal", epoch, number, name, b"1"))
    assert notes(raw, q) == {}
    assert await q.signal(job, "naïve € 😀", 1) is TAKEN
    assert await work(ps, handlers) == {"suspended": 1}
    [head] = (field for field in notes(raw, q) if b":" not in field)
    tally = q.ops.keys["tally"]
    count, size, rest = raw.hget(tally, head).split(b" ", 2)
    strange = b"\n%b\ts\t%d\t1" % (name, AT)
    waits = raw.hget(tally, head + b":0") + strange
    head_now = b"%b %d %b" % (count, int(size) + len(strange), rest)
    raw.hset(tally, mapping={head: head_now, head + b":0": waits})
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await q.show(job) is not None
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_strangers_cannot_fill_a_job(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """Its signals have 256 KiB at most, so three quarters are left for its own steps."""
    job = await add(q)
    for number in range(3):
        assert await q.signal(job, f"junk {number}", "x" * 65_000) is TAKEN
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await q.signal(job, "more", "x" * 60_000) is TAKEN
    with pytest.raises(BadArgument, match="all signals of a job have at most 262144 bytes"):
        await q.signal(job, "junk", "x" * 65_000)
    check_invariant(raw)
    assert await work(ps, handlers) == {"suspended": 1, "done": 1}
    assert answers == [1]


def seed_timeouts(raw: Raw, q: AsyncQueue, names: Iterable[str]) -> None:
    """Note timeouts of the only job, which has a note or a wait."""
    [head] = (field for field in notes(raw, q) if b":" not in field)
    tally, waits = q.ops.keys["tally"], "".join(f"\n{name}\tt\t{AT}\t" for name in names)
    count, size, rest = raw.hget(tally, head).split(b" ", 2)
    head_now = b"%b %d %b" % (count, int(size) + len(waits), rest)
    raw.hset(tally, mapping={head: head_now, head + b":0": waits})
    check_invariant(raw)


def seed_size(raw: Raw, q: AsyncQueue, size: int) -> None:
    """Note a timeout of the only job, so that its notes have this size."""
    [head] = (field for field in notes(raw, q) if b":" not in field)
    used = int(raw.hget(q.ops.keys["tally"], head).split(b" ")[1])
    seed_timeouts(raw, q, ["x" * (size - used - len(f"\n\tt\t{AT}\t"))])


async def test_timeouts_leave_the_room_of_signals(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """However often the time of a wait was over, signals have their whole quarter."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    seed_timeouts(raw, q, (f"{number:0200}" for number in range(998)))
    for number in range(4):
        assert await q.signal(job, f"answer {number}", "x" * 65_400) is TAKEN
    with pytest.raises(BadArgument, match=r"^value='<602 bytes>': can't be kept: all signals of"):
        await q.signal(job, "approval", "x" * 600)
    check_invariant(raw)
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_job_has_at_most_1000_timeouts(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """Notes count with them. A wait that could not note the end of its time does not begin."""
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await steps.run("stock", str, "blue")
        for number in range(997, 1001):
            with suppress(StepTimeout):
                seen.append(await steps.wait(f"answer {number}", timeout=60))

    job = (await order.enqueue(q)).id
    assert await work(ps, handlers) == {"suspended": 1}
    seed_timeouts(raw, q, (f"answer {number}" for number in range(997)))
    for ended in ("suspended", "rejected"):
        assert await q.promote([job])
        assert await work(ps, handlers) == {ended: 1}
    check_invariant(raw)
    [letter] = await q.peek(state="dead")
    assert "StepNotKept: wait 'answer 999' has not begun: a job has at most 1000" in letter.error


@pytest.mark.parametrize("full", ["places", "bytes"])
async def test_a_wait_without_room(full: str, ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """The script refuses what a worker refuses: the job comes back at once, and does not wait."""
    job = await add(q)
    [taken] = await q.reserve(1, block=0)
    part = q.route.part
    assert part is not None
    await part.executor.run(q.ops.note(taken, 1, "stock", b"1"))
    if full == "places":
        seed_timeouts(raw, q, map(str, range(999)))
    else:
        seed_size(raw, q, 1_048_555)
    before = notes(raw, q)
    assert await part.executor.run(q.ops.suspend([taken], 0, "more", 60_000))
    assert notes(raw, q) == before
    [again] = await q.reserve(1, block=0)
    assert again.id == job


async def test_a_signal_leaves_room_for_the_end_of_a_wait(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """Those of other names are refused before, and that of the wait is taken."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    seed_size(raw, q, 1_048_576 - 27)
    with pytest.raises(BadArgument, match="the steps and signals of a job have at most 1048576"):
        await q.signal(job, "other", 1)
    assert await q.signal(job, "approval", 1) is TAKEN
    check_invariant(raw)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


@pytest.mark.parametrize("is_over", [False, True])
async def test_a_lost_reply(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    """The repeat finds its own signal. If the job has ended with it, the outcome is not known."""
    repeat = AsyncProducerConnection.exchange_again
    with Proxy(server.address) as proxy:
        async with AsyncPenstock(server.url) as other, AsyncPenstock(proxy.url) as ps:
            q = ps.queue("q")
            job = await add(q)
            await q.signal(job, "first")  # the server knows the script

            async def repeat_later(*args: Any, **kwargs: Any) -> Any:
                if is_over:
                    await other.queue("q").ack(await other.queue("q").reserve(block=0))
                return await repeat(*args, **kwargs)

            monkeypatch.setattr(AsyncProducerConnection, "exchange_again", repeat_later)
            fault = proxy.eat_reply(after=script("signal").sha.encode())
            if is_over:
                with pytest.raises(OutcomeUnknown, match=r"signal 'approval'.* the job is gone"):
                    await q.signal(job, "approval", 1)
            else:
                assert await q.signal(job, "approval", 1) is TAKEN
            fault.wait()
            assert await q.signal(job, "approval", 1) is (GONE if is_over else THERE)


async def test_a_resumed_run_pays_one_trip(
    real_ps: AsyncPenstock, real_backend: Backend, handlers: Handlers, answers: Answers
) -> None:
    """The outcome of its wait comes with its notes."""
    q = real_ps.queue("q")
    job = await add(q)
    assert await work(real_ps, handlers) == {"suspended": 1}
    await q.signal(job, "approval", 1)
    assert await work(real_ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_keyed_job_gives_its_ticket_back(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """Other jobs of its key run while it waits."""
    await q.configure(per_key=1)
    first, second = await add(q, key="ada"), await add(q, key="ada")
    assert await work(ps, handlers) == {"suspended": 2}
    check_invariant(raw)
    for job in (second, first):
        assert await q.signal(job, "approval", job) is TAKEN
        check_invariant(raw)
    assert await work(ps, handlers) == {"done": 2}
    assert answers == [first, second]


@pytest.mark.usefixtures("no_ticks")
async def test_a_signal_wakes_a_consumer(
    ps: AsyncPenstock, q: AsyncQueue, waits: AsyncWaits, handlers: Handlers, answers: Answers
) -> None:
    """One that waits for jobs gets the job at once."""
    del answers
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    consumer = aspawn(q.reserve, 1, block=30)
    await waits.reach(1)
    assert await q.signal(job, "approval", 1) is TAKEN
    [taken] = await consumer.result()
    assert taken.id == job


async def test_a_late_run_does_not_suspend(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """A consumer whose lease has ended changes nothing of the wait of the next one."""
    job = await add(q)
    [late] = await q.reserve(1, block=0)
    advance(raw, q.ops, 61)
    assert await work(ps, handlers) == {"suspended": 1}
    part = q.route.part
    assert part is not None
    before = dump(raw)
    for call in (q.ops.suspend([late], 0, "other", 0), q.ops.suspend([late], 0, "approval", 0)):
        assert list(await part.executor.run(call)) == [Outcome.STALE]
    assert dump(raw) == before
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_a_duplicate_leaves_a_job_that_waits(
    ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, answers: Answers
) -> None:
    """So it does one that has only a signal: its arguments are those that were approved."""
    dedup = Dedup("x", on_duplicate="update")
    job = await add(q, dedup=dedup)
    assert await q.signal(job, "other") is TAKEN
    for _ in range(2):
        again = await q.enqueue({"new": 1}, dedup=dedup)
        assert again.action == "refused"
        await work(ps, handlers)
    assert await q.signal(job, "approval", 1) is TAKEN
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


async def test_crashes_count_since_the_last_wait(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A job of many waits does not die of a crash beside each of them."""
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        for number in range(4):
            value = await steps.wait(f"go {number}", timeout=600)
            seen.append(value)

    await q.configure(max_crashes=2, lease=60)
    job = (await order.enqueue(q)).id
    for number in range(4):
        assert len(await q.reserve(1, block=0)) == 1
        advance(raw, q.ops, 61)
        assert await work(ps, handlers) == {"suspended": 1}
        assert await q.signal(job, f"go {number}", number) is TAKEN
    assert await work(ps, handlers) == {"done": 1}
    assert seen[-4:] == [0, 1, 2, 3]


async def test_a_wait_that_is_over_does_not_shorten_a_backoff(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """An attempt fails before its first step: its retry waits for no signal, and keeps its time."""
    job = await add(q)
    assert await work(ps, handlers) == {"suspended": 1}
    advance(raw, q.ops, 86401)
    [taken] = await q.reserve(1, block=0)
    assert await q.nack([taken], delay=600)
    for _ in range(2):
        view = await q.show(job)
        assert view is not None
        assert (view.state, view.signal, view.waits_for) == ("scheduled", None, None)
        assert view.next_in is not None
        assert view.next_in > 500
        await q.signal(job, "approval", 1)
        check_invariant(raw)
    assert await q.reserve(1, block=0) == []
    advance(raw, q.ops, 601)
    assert await work(ps, handlers) == {"done": 1}
    assert answers == [1]


@pytest.mark.parametrize("ttl", [3600, 172_800])
async def test_a_view_of_a_wait_until_the_end_of_a_ttl(
    ttl: int, ps: AsyncPenstock, q: AsyncQueue, handlers: Handlers, answers: Answers
) -> None:
    """The job is due at the earlier one of the two ends, and waits for its signal until then."""
    job = await add(q, ttl=ttl)
    assert await work(ps, handlers) == {"suspended": 1}
    view = await q.show(job)
    assert view is not None
    assert (view.state, view.signal) == ("scheduled", "approval")
    assert await q.signal(job, "approval", 1) is TAKEN
    view = await q.show(job)
    assert view is not None
    assert (view.state, view.signal) == ("ready", None)
    del answers


async def test_a_view_tells_what_a_job_waits_for(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """A signal, or the end of a sleep; and it lists the steps, in order."""

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        await steps.sleep("a day", 86400)
        await steps.run("stock", str, "blue")
        with suppress(StepTimeout):
            await steps.wait("approval", timeout=3600)
        if await steps.wait("payment", timeout=60) == 0:
            raise Retry(after=600)

    async def seen() -> tuple[Any, ...]:
        view = await q.show(job)
        assert view is not None
        steps = [(step.kind, step.name) for step in view.steps]
        wait = None if view.next_in is None else round(view.next_in, -1)
        return view.waits_for, view.is_asleep, view.signal, wait, steps

    job = (await order.enqueue(q)).id
    assert await seen() == (None, False, None, None, [])
    assert await work(ps, handlers) == {"suspended": 1}
    known = [("sleep", "a day")]
    assert await seen() == ("the end of a sleep", True, None, 86400, known)
    advance(raw, q.ops, 86401)
    assert await q.signal(job, "more") is TAKEN
    assert await work(ps, handlers) == {"suspended": 1}
    known += [("signal", "more"), ("run", "stock")]
    assert await seen() == ("signal approval", False, "approval", 3600, known)
    advance(raw, q.ops, 3601)
    assert await work(ps, handlers) == {"suspended": 1}
    known.append(("timeout", "approval"))
    assert await seen() == ("signal payment", False, "payment", 60, known)
    assert await q.signal(job, "payment", 0) is TAKEN
    assert await work(ps, handlers) == {"retried": 1}
    known.append(("signal", "payment"))
    assert await seen() == (None, False, None, 600, known)


async def test_a_wait_without_a_timeout(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers
) -> None:
    """It has no end but that of the ttl, so there is no time at which it is due."""
    seen = []

    @handlers.handler
    async def order(steps: AsyncSteps) -> None:
        seen.append(await steps.wait("approval"))

    job = (await order.enqueue(q)).id
    mortal = (await order.options(ttl=3600).enqueue(q)).id
    assert await work(ps, handlers) == {"suspended": 2}
    views = [await q.show(one) for one in (job, mortal)]
    assert [view.waits_for for view in views if view] == ["signal approval"] * 2
    assert [view.due == view.expires for view in views if view] == [True, True]
    advance(raw, q.ops, 86_400)
    assert await work(ps, handlers) == {}
    assert await q.signal(mortal, "approval") is GONE
    assert await q.signal(job, "approval") is TAKEN
    assert await work(ps, handlers) == {"done": 1}
    assert seen == [None]


async def test_later_jobs_of_a_key_in_order_wait(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, handlers: Handlers, answers: Answers
) -> None:
    """The order of a key holds while its first job waits, whatever signals the others have."""
    await q.configure(ordered=True)
    first, second = await add(q, key="ada"), await add(q, key="ada")
    assert await work(ps, handlers) == {"suspended": 1}
    assert await q.signal(second, "approval", 2) is TAKEN
    check_invariant(raw)
    assert await work(ps, handlers) == {}
    assert await q.signal(first, "approval", 1) is TAKEN
    assert await work(ps, handlers) == {"suspended": 1, "done": 2}
    assert answers == [1, 2]


async def test_waits_without_a_server() -> None:
    """Their signals are given; a wait for another one times out at once."""
    steps = AsyncSteps.local({"approval": ("ada", 7), "none": None})
    assert await steps.wait("approval", timeout=10) == ["ada", 7]
    assert await steps.wait("none") is None
    with pytest.raises(StepTimeout, match="signal 'more' is not among the values"):
        await steps.wait("more")
    with pytest.raises(BadArgument, match="timeout"):
        await steps.wait("last", timeout=-1)
