"""Schedules: created, listed, paused, triggered and removed; workers add their jobs."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from penstock import (
    AsyncPenstock,
    AsyncQueue,
    AsyncWorker,
    BadArgument,
    Handlers,
    QueueClosed,
    QueueFull,
    QueuePaused,
    Retry,
    ScheduleView,
)
from penstock.core.values.partitions import partition_of
from penstock.wire.keys import QueueKeys
from tests.support.backends import Backend
from tests.support.keyspace import Raw, dump, raw_time
from tests.support.twins import await_for

HOUR = 3_600_000


async def work(ps: AsyncPenstock, handlers: Any, **options: Any) -> None:
    """Work until no job is left."""
    await AsyncWorker(ps, "q", handlers, burst=True, **options).run()


def handlers_for(ran: list[Any]) -> Handlers:
    """Return a default handler that notes bodies and ticks."""
    handlers = Handlers()

    @handlers.default
    async def note(job: Any) -> None:
        ran.append((job.body, job.scheduled_for))

    return handlers


def set_tick(raw: Raw, q: AsyncQueue, name: str, ago: float) -> float:
    """Put the tick of a schedule into the past, as after an outage; return it."""
    tick = int((raw_time(raw) - ago) * 1000)
    raw.zadd(q.ops.keys["ticks"], {name: tick})
    return tick / 1000


async def one(q: AsyncQueue) -> ScheduleView:
    """Return the only schedule."""
    [found] = await q.schedules.list()
    return found


async def test_a_schedule_is_listed(q: AsyncQueue, raw: Raw) -> None:
    """The queue is created with its first schedule."""
    assert await q.schedules.add("report", cron="0 3 * * *", tz="Europe/Berlin", job={"n": 1})
    assert await q.schedules.add("a beat", every="15m", job=b"x", overlap=True, missed="skip")
    first, second = await q.schedules.list()
    assert (first.name, first.spec, first.every, first.cron) == ("a beat", "every 15m", 900.0, None)
    assert (first.overlap, first.missed, first.tz) == (True, "skip", None)
    assert (second.spec, second.tz) == ("0 3 * * * Europe/Berlin", "Europe/Berlin")
    assert first.next is not None
    assert first.next % 900 == 0
    assert 0 < first.next - raw_time(raw) <= 900
    assert (second.last, second.last_run, second.runs, second.paused) == (None, None, 0, False)
    stats = await q.stats()
    assert stats.exists
    assert stats.has_schedules


async def test_the_same_schedule_changes_nothing(q: AsyncQueue, raw: Raw) -> None:
    """Another spec replaces it."""
    assert await q.schedules.add("s", every=HOUR, job="x")
    before = dump(raw)
    assert not await q.schedules.add("s", every=HOUR, job="x")
    assert dump(raw) == before
    assert await q.schedules.add("s", every=60, job="x")
    assert (await one(q)).spec == "every 1m"


async def test_a_replaced_schedule_needs_force(q: AsyncQueue) -> None:
    """An older version of a program does not undo what a newer one has stored."""
    await q.schedules.add("s", every=60, job="x")
    await q.schedules.add("s", every=90, job="x")
    with pytest.raises(BadArgument, match=r"^name='s': this version was replaced by a later one"):
        await q.schedules.add("s", every=60, job="x")
    assert (await one(q)).every == 90
    assert await q.schedules.restore("s", every=60, job="x")
    assert (await one(q)).every == 60


@pytest.mark.parametrize(
    "given, argument",
    [
        ({"every": 60, "job": "x", "name": ""}, "name"),
        ({"every": 60, "cron": "* * * * *", "job": "x"}, "cron"),
        ({"cron": "99 * * * *", "job": "x"}, "cron"),
        ({"cron": "* * * * *", "tz": "Nowhere", "job": "x"}, "tz"),
        ({"every": "often", "job": "x"}, "every"),
        ({"every": 60, "job": {1: 2}}, "body"),
        ({"every": 60, "job": "x", "missed": "all"}, "missed"),
    ],
)
async def test_bad_arguments(q: AsyncQueue, raw: Raw, given: Any, argument: str) -> None:
    """They are refused before anything is written."""
    with pytest.raises(BadArgument, match=f"^{argument}="):
        await q.schedules.add(**{"name": "s", **given})
    assert not [key for key in raw.scan_iter() if b"{q}" in key]


async def test_unknown_names(q: AsyncQueue) -> None:
    """Calls about a schedule that is not there say so."""
    assert not await q.schedules.remove("s")
    for call in (q.schedules.run, q.schedules.pause, q.schedules.resume):
        with pytest.raises(BadArgument, match=r"^name='s': no such schedule: schedules.list"):
            await call("s")
        with pytest.raises(BadArgument, match=r"^name=''"):
            await call("")


async def test_unschedule_leaves_nothing(q: AsyncQueue, raw: Raw) -> None:
    """The jobs of the schedule stay."""
    await q.schedules.add("s", every=60, job="x")
    await q.schedules.run("s")
    assert await q.schedules.remove("s")
    assert await q.schedules.list() == []
    assert not raw.exists(q.ops.keys["ticks"], q.ops.keys["schedules"])
    assert (await q.stats()).ready == 1
    await q.sweep()
    assert not (await q.stats()).has_schedules


async def test_clear_removes_schedules(q: AsyncQueue, raw: Raw) -> None:
    """A cleared queue has none."""
    await q.schedules.add("s", every=60, job="x")
    await q.clear()
    assert not [key for key in raw.scan_iter() if b"{q}" in key]


async def test_trigger_adds_a_job_now(q: AsyncQueue, raw: Raw) -> None:
    """Ticks stay; a pause and a running job do not matter."""
    await q.schedules.add("s", every=60, job={"n": 1})
    tick = (await one(q)).next
    await q.schedules.pause("s")
    added = await q.schedules.run("s")
    again = await q.schedules.run("s")
    found = await one(q)
    assert (found.runs, found.last_run, found.last_state) == (2, again.id, "ready")
    assert found.last is None
    [job, _] = await q.reserve(2, block=0)
    assert (job.id, job.body) == (added.id, {"n": 1})
    assert job.scheduled_for == pytest.approx(raw_time(raw), abs=30)
    await q.schedules.resume("s")
    assert (await one(q)).next == pytest.approx(tick, abs=61)


async def test_schedules_whose_runs_are_large(q: AsyncQueue) -> None:
    """Schedules are listed with the states of their last runs, which no single reply can hold."""
    for number in range(20):
        await q.schedules.add(f"s{number}", every=3600, job="x" * 60_000)
        await q.schedules.run(f"s{number}")
    assert {view.last_state for view in await q.schedules.list()} == {"ready"}


async def test_trigger_is_an_enqueue(q: AsyncQueue) -> None:
    """A queue that takes no jobs refuses it."""
    await q.schedules.add("s", every=60, job="x")
    await q.configure(max_length=1)
    await q.schedules.run("s")
    with pytest.raises(QueueFull):
        await q.schedules.run("s")
    await q.pause("in")
    with pytest.raises(QueuePaused):
        await q.schedules.run("s")
    await q.resume()
    await q.close()
    with pytest.raises(QueueClosed):
        await q.schedules.run("s")


async def test_a_pause_stays_after_a_change(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A paused schedule has no ticks, also with another spec; those are not made up for."""
    await q.schedules.add("s", every=60, job="x")
    set_tick(raw, q, "s", 30)
    await q.schedules.pause("s")
    await q.schedules.pause("s")
    await q.schedules.add("s", every=90, job="x")
    assert ((await one(q)).paused, (await one(q)).next) == (True, None)
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    assert not ran
    await q.schedules.resume("s")
    found = await one(q)
    assert found.next is not None
    assert (found.paused, found.next % 90) == (False, 0)
    assert found.next > raw_time(raw)


async def test_a_pause_and_a_change_repeat_no_tick(q: AsyncQueue, raw: Raw) -> None:
    """After a small step back of the server's clock the next tick is later than the last one."""
    await q.schedules.add("s", every=10, job="x")
    last = int(raw_time(raw) // 10 + 3) * 10
    key = q.ops.keys["schedules"]
    front, line, value = raw.hget(key, "s").partition(b"\n")
    run, _, rest = front.split(b" ", 2)
    raw.hset(key, "s", b"%b %d000 %b%b%b" % (run, last, rest, line, value))
    await q.schedules.pause("s")
    await q.schedules.resume("s")
    assert (await one(q)).next == last + 10
    await q.schedules.add("s", every=10, job="y")
    assert (await one(q)).next == last + 10


async def test_a_worker_runs_a_due_tick(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """The job knows the time of its tick; the next tick is that of the spec."""
    await q.schedules.add("s", every=HOUR, job={"n": 1})
    tick, ran = set_tick(raw, q, "s", 5), list[Any]()
    await work(ps, handlers_for(ran))
    assert ran == [({"n": 1}, tick)]
    found = await one(q)
    assert (found.last, found.runs, found.skipped, found.last_state) == (tick, 1, 0, None)
    assert found.next is not None
    assert found.next > raw_time(raw)


async def test_short_delays_lose_no_tick(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """Ticks up to a minute late all run; their handlers begin in any order."""
    await q.schedules.add("s", every=10, job="x", overlap=True)
    now = int(raw_time(raw) * 1000)
    first = now // 10_000 * 10_000 - 30_000
    raw.zadd(q.ops.keys["ticks"], {"s": first})
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    await work(ps, handlers_for(ran))
    assert sorted(tick for _, tick in ran)[:4] == [first / 1000 + 10 * i for i in range(4)]
    assert len({tick for _, tick in ran}) == len(ran)


async def test_more_ticks_than_one_look_returns(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """All ticks that are due at once run."""
    names = [f"s{i}" for i in range(250)]
    for name in names:
        await q.schedules.add(name, every=HOUR, job=name)
        set_tick(raw, q, name, 5)
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    await work(ps, handlers_for(ran))
    await work(ps, handlers_for(ran))
    assert sorted(body for body, _ in ran) == sorted(names)


@pytest.mark.parametrize("missed, runs, skipped", [("one", 1, 0), ("skip", 0, 1)])
async def test_an_outage(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, missed: Any, runs: int, skipped: int
) -> None:
    """After an outage of many ticks one job is added, or none."""
    await q.schedules.add("s", every=HOUR, job="x", missed=missed)
    set_tick(raw, q, "s", 50 * 3600)
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    found = await one(q)
    assert (len(ran), found.runs, found.skipped) == (runs, runs, skipped)
    assert found.next is not None
    assert 0 < found.next - raw_time(raw) <= HOUR


async def test_overlap(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """While the last job waits or runs, ticks are skipped and counted; with `overlap` they run."""
    await q.schedules.add("alone", every=HOUR, job="alone")
    await q.schedules.add("both", every=HOUR, job="both", overlap=True)
    handlers = declaring(HOUR, [])
    held = [await q.schedules.run("alone"), await q.schedules.run("both")]
    jobs = await q.reserve(2, block=0)
    assert [job.id for job in jobs] == [job.id for job in held]
    for name in ("alone", "both"):
        set_tick(raw, q, name, 5)
    await work(ps, handlers)  # it has no handler for the job of `both`, and gives it back
    alone, both, _ = await q.schedules.list()
    assert (alone.runs, alone.skipped, alone.last_state) == (1, 1, "active")
    assert (both.runs, both.skipped, both.last_state) == (2, 0, "scheduled")
    await jobs[0].bury("no use")
    set_tick(raw, q, "alone", 5)
    await work(ps, handlers)
    assert ((await q.schedules.list())[0].runs, (await q.stats()).dead) == (2, 1)


async def test_a_job_that_waits_for_its_retry_runs_at_the_tick(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """Tick and retry become one run: an hourly job does not come hours late after an outage."""
    await q.schedules.add("s", every=HOUR, job="x")
    await q.schedules.run("s")
    handlers, ran = Handlers(), list[float | None]()

    @handlers.default
    async def fail_twice(job: Any) -> None:
        ran.append(job.scheduled_for)
        if len(ran) < 3:
            raise Retry(6 * 3600)

    for runs in range(1, 4):
        await work(ps, handlers)
        assert len(ran) == runs
        set_tick(raw, q, "s", 5)
    found, stats = await one(q), await q.stats()
    assert (found.runs, found.skipped, len({*ran})) == (1, 2, 1)
    assert (stats.promoted, stats.nacked, stats.acked, stats.enqueued) == (2, 2, 1, 1)


async def test_a_job_that_was_snoozed_keeps_its_time(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """It has not failed: its handler has chosen the time."""
    await q.schedules.add("s", every=HOUR, job="x")
    await q.schedules.run("s")
    [job] = await q.reserve(1, block=0)
    await job.release(delay=6 * 3600)
    set_tick(raw, q, "s", 5)
    await work(ps, handlers_for([]))
    assert ((await one(q)).skipped, (await one(q)).last_state) == (1, "scheduled")


async def test_a_lost_job_stops_nothing(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A purge of the waiting job does not stop the schedule, and the next tick is not skipped."""
    await q.schedules.add("s", every=HOUR, job="x")
    await q.schedules.run("s")
    assert await q.purge() == 1
    set_tick(raw, q, "s", 5)
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    assert len(ran) == 1


@pytest.mark.parametrize("refused", ["full", "paused", "closed"])
async def test_a_queue_that_takes_no_jobs(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, refused: str
) -> None:
    """The tick waits, and runs when the queue takes jobs again."""
    await q.schedules.add("s", every=HOUR, job="x")
    tick = set_tick(raw, q, "s", 5)
    await q.enqueue("waiting", delay=900)
    if refused == "full":
        await q.configure(max_length=1)
    elif refused == "paused":
        await q.pause("in")
    else:
        await q.close()
    ran: list[Any] = []
    await work(ps, handlers_for(ran))
    assert not ran
    assert (await one(q)).next == tick
    await q.configure(max_length=None)
    await q.resume()
    await q.reopen()
    await work(ps, handlers_for(ran))
    assert ran == [("x", tick)]


async def test_a_clock_that_was_ahead(ps: AsyncPenstock, q: AsyncQueue, raw: Raw) -> None:
    """A worker that starts brings forward a tick that a wrong clock has put far ahead."""
    await q.schedules.add("s", every=HOUR, job="x")
    set_tick(raw, q, "s", -86_400 * 20)
    await work(ps, handlers_for([]))
    found = await one(q)
    assert found.next is not None
    assert 0 < found.next - raw_time(raw) <= HOUR
    assert (found.runs, found.skipped) == (0, 0)


async def test_a_schedule_that_a_worker_can_not_run(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker leaves it to others, says so once, and runs the ticks of the other schedules."""
    await q.schedules.add("good", every=HOUR, job="x")
    tick = set_tick(raw, q, "good", 5)
    key = q.ops.keys["schedules"]
    for name, spec in (("a word", b'{"cron":"nonsense"}'), ("a list", b"[]")):
        raw.hset(key, name, b"- 0 0 0 0 " + b"a" * 16 + b"\n" + spec + b"\n1\n")
        set_tick(raw, q, name, 5)
    ran: list[Any] = []
    with caplog.at_level(logging.WARNING, "penstock"):
        await work(ps, handlers_for(ran))
    assert ran == [("x", tick)]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert all("can't be run by this worker" in text for text in told)


# -- handlers with schedules ---------------------------------------------------------------------


def declaring(every: Any, ran: list[Any]) -> Handlers:
    """Return a handler with a schedule."""
    handlers = Handlers()

    @handlers.handler("report", queue="q", every=every, lease=90)
    async def report(kind: str = "daily") -> None:
        ran.append(kind)

    return handlers


async def test_a_worker_stores_the_schedules_of_its_handlers(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw, caplog: pytest.LogCaptureFixture
) -> None:
    """The schedule has the handler's name and options; another start changes nothing."""
    caplog.set_level(logging.INFO, "penstock")
    ran: list[Any] = []
    await work(ps, declaring("1h", ran))
    assert (await one(q)).spec == "every 1h"
    assert "; schedules: report;" in caplog.text
    schedules = raw.hgetall(q.ops.keys["schedules"])
    assert b";h.handler=report" in schedules[b"report"]
    assert b"1;l=90000;" in schedules[b"report"]
    await work(ps, declaring("1h", ran))
    assert raw.hgetall(q.ops.keys["schedules"]) == schedules
    set_tick(raw, q, "report", 5)
    await work(ps, declaring("1h", ran))
    assert ran == ["daily"]


async def test_a_deploy_of_two_versions(
    ps: AsyncPenstock, q: AsyncQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """The newer version wins, whatever starts last, until the schedule is forced back."""
    caplog.set_level("INFO", "penstock")
    await work(ps, declaring("1h", []))
    assert "has replaced another value" not in caplog.text
    await work(ps, declaring("2h", []))
    text = "schedule 'report' of queue 'q' has replaced another value of this name, of an earlier"
    assert text in caplog.text
    await work(ps, declaring("1h", []))
    assert (await one(q)).spec == "every 2h"
    assert "schedule 'report' stays as it is: a later version has replaced" in caplog.text


async def test_a_tick_that_was_due_before_a_deploy_is_not_lost(
    ps: AsyncPenstock, q: AsyncQueue, raw: Raw
) -> None:
    """A worker runs what is due before it stores another spec."""
    ran: list[Any] = []
    await work(ps, declaring("1h", ran))
    set_tick(raw, q, "report", 5)
    await work(ps, declaring("2h", ran))
    assert ran == ["daily"]
    assert ((await one(q)).spec, (await one(q)).runs) == ("every 2h", 1)


async def test_a_handler_of_a_queue_has_schedules_too(ps: AsyncPenstock, q: AsyncQueue) -> None:
    """`q.handler(every=...)` names the queue by itself."""

    @q.handler(cron="0 3 * * *", tz="Europe/Berlin")
    async def nightly() -> None:
        """Do nothing."""

    await AsyncWorker(ps, q, burst=True).run()
    assert [(found.name, found.spec) for found in await q.schedules.list()] == [
        ("nightly", "0 3 * * * Europe/Berlin")
    ]


@pytest.mark.parametrize(
    "name, options, argument",
    [
        ("x", {"every": "1h"}, "queue"),
        ("x", {"every": "1h", "cron": "* * * * *", "queue": "q"}, "cron"),
        ("x", {"tz": "UTC", "queue": "q"}, "cron"),
        ("x", {"overlap": True, "queue": "q"}, "cron"),
        (None, {"every": "1h", "queue": "q"}, "name"),
        ("x", {"every": "never", "queue": "q"}, "every"),
    ],
)
def test_a_handler_that_can_not_have_a_schedule(
    name: str | None, options: Any, argument: str
) -> None:
    """It is refused when it is decorated."""
    with pytest.raises(BadArgument, match=f"^{argument}="):
        Handlers().handler(name, **options)(lambda job=None: job)  # type: ignore[call-overload]  # any name


def test_a_handler_that_needs_arguments() -> None:
    """Its schedule has none to give."""
    with pytest.raises(BadArgument, match="its schedule calls it without arguments"):

        @Handlers().handler("x", queue="q", every=60)
        async def needs(to: str) -> None:
            """Do nothing."""


# -- running workers -----------------------------------------------------------------------------


async def test_an_idle_worker_learns_of_a_schedule(
    real_backend: Backend, real_ps: AsyncPenstock, real_q: AsyncQueue
) -> None:
    """A schedule that is created while a worker waits runs on time, and so does a change.

    With `overlap`: a job that a busy machine runs a second late would skip the next tick.
    """
    del real_backend
    ran: list[Any] = []
    async with AsyncWorker(real_ps, "q", handlers_for(ran)):
        await real_q.enqueue("first")
        await await_for(lambda: len(ran) == 1)
        await real_q.schedules.add("s", every=1, job="x", overlap=True)
        await await_for(lambda: len(ran) >= 4)
        await real_q.schedules.remove("s")
    ticks = sorted(tick for body, tick in ran if body == "x")
    assert ticks == [ticks[0] + i for i in range(len(ticks))]


@pytest.mark.parametrize("is_cleared", [False, True], ids=["flushed", "cleared"])
async def test_a_worker_stores_lost_schedules_again(
    real_backend: Backend, real_ps: AsyncPenstock, real_q: AsyncQueue, is_cleared: bool
) -> None:
    """It does not have to start anew after its server has lost the data of the queue."""
    raw, schedules = real_backend.sync_client(), real_q.ops.keys["schedules"]
    async with AsyncWorker(real_ps, "q", declaring("1h", [])):
        await await_for(lambda: raw.exists(schedules) == 1)
        if is_cleared:
            await real_q.clear()
        else:
            raw.flushdb()
        assert raw.exists(schedules) == 0
        raw.rpush(real_q.ops.keys["wake"], "1")  # the worker looks now
        await await_for(lambda: raw.exists(schedules) == 1)


# -- partitions -----------------------------------------------------------------------------------


async def test_a_schedule_lies_in_one_partition(ps: AsyncPenstock, raw: Raw) -> None:
    """Its name chooses the partition; workers of all partitions find it there."""
    q = ps.queue("q", partitions=3)
    names = ["a", "b", "c", "d"]
    for name in names:
        await q.schedules.add(name, every=HOUR, job=name)
    assert [found.name for found in await q.schedules.list()] == names
    for number in range(3):
        keys = QueueKeys("q", partition=number)
        placed = [name for name in names if partition_of(name, 3) == number]
        assert sorted(raw.hkeys(keys["schedules"])) == [name.encode() for name in placed]
        for name in placed:
            raw.zadd(keys["ticks"], {name: int(raw_time(raw) * 1000) - 5000})
    ran: list[Any] = []
    await AsyncWorker(ps, [q], handlers_for(ran), burst=True).run()
    assert sorted(body for body, _ in ran) == names
    added = await q.schedules.run("b")
    assert (await q.show(added.id)) is not None
    await q.schedules.pause("b")
    assert [found.name for found in await q.schedules.list() if found.paused] == ["b"]
    assert await q.schedules.remove("b")
    await AsyncWorker(ps, [q], declaring("1h", []), burst=True).run()
    assert [found.name for found in await q.schedules.list()] == ["a", "c", "d", "report"]


@pytest.mark.parametrize("partitions", [None, 3])
async def test_a_changed_rule_stays(ps: AsyncPenstock, partitions: int | None) -> None:
    """Workers whose code declares another one leave it, and it still goes with this code."""
    q = ps.queue("mail", partitions=partitions)
    handlers = Handlers()

    @handlers.handler(queue="mail", every="1h")
    def digest() -> None:
        pass

    await AsyncWorker(ps, q, handlers, burst=True).run()
    [declared] = await q.schedules.list()
    assert declared.app
    assert await q.schedules.change(declared.name, every="2h", overlap=True)
    await AsyncWorker(ps, q, handlers, burst=True).run()
    [kept] = await q.schedules.list()
    assert (kept.spec, kept.overlap, kept.app) == ("every 2h", True, declared.app)
    with pytest.raises(BadArgument, match="no such schedule"):
        await q.schedules.change("nosuch", every="2h")
