"""The helpers of the fixtures: handlers in the test's thread, a clock to move, assertions."""

from __future__ import annotations

from collections.abc import Callable

from tests.plugin.conftest import Run

RunPytest = Callable[..., Run]
HANDLERS = """
import pytest
from penstock import BadArgument, Handlers, Reject, Retry, RetryPolicy, Snooze

handlers = Handlers()
calls = []

@handlers.handler("welcome")
def welcome(to: str, lang: str = "en") -> None:
    calls.append(to)
    if to == "eve":
        raise ValueError("no eve")

@pytest.fixture(autouse=True)
def no_calls():
    calls.clear()
"""


def passed(run: Run, count: int) -> None:
    """Check that all tests of a run have passed."""
    assert (run.code, run.counts) == (0, {"passed": count}), run.out


def test_handlers_run_in_the_tests_own_thread(run_pytest: RunPytest) -> None:
    """`work` runs what can be taken now, and what the handlers add, and counts the outcomes."""
    run = run_pytest(
        HANDLERS
        + """
import threading

def test_all_queues(penstock):
    ps = penstock
    here = threading.get_ident()
    more = Handlers()

    @more.handler("first")
    def first():
        assert threading.get_ident() == here
        welcome.enqueue(ps.queue("others"), "bob")

    more.include(handlers)
    first.enqueue(ps.queue("emails"))
    welcome.enqueue(ps.queue("emails"), "ada")
    assert ps.work(more) == {"done": 3}
    assert calls == ["ada", "bob"]
    assert ps.work(more) == {}

def test_one_queue(penstock):
    for name in ("a", "b"):
        welcome.enqueue(penstock.queue(name), name)
    assert penstock.work(handlers, "b") == {"done": 1}
    assert calls == ["b"]

def test_a_failure(penstock):
    q = penstock.queue("emails")
    welcome.enqueue(q, "eve")
    with pytest.raises(ValueError, match="no eve"):
        penstock.work(handlers)
    [later] = q.peek(state="scheduled") or q.peek()  # its random delay may be over
    assert later.error == "ValueError: no eve"
    assert q.delete([later.id])
    q.enqueue(welcome.job("eve"), retry=RetryPolicy(1))
    assert penstock.work(handlers, raising=False) == {"dead": 1}

def test_results(penstock):
    q = penstock.queue("q")
    q.enqueue_many(["retry", "snooze", "reject", "own", "none"])

    def handle(job):
        if job.body == "own":
            job.ack()
        return {"retry": Retry(60), "snooze": Snooze(60), "reject": Reject("no")}.get(job.body)

    assert penstock.work(handle) == {
        "retried": 1, "snoozed": 1, "rejected": 1, "settled": 1, "done": 1,
    }

def test_batches(penstock):
    batches = Handlers()
    sizes = []

    @batches.chunk("store", size=2, wait=60)
    def store(jobs):
        sizes.append(len(jobs))

    penstock.queue("q").enqueue_many(range(3), headers=store.headers)
    assert penstock.work(batches) == {"done": 3}
    assert sizes == [2, 1]

def test_coroutines_need_the_other_fixture(penstock):
    async def handle(job): ...

    with pytest.raises(BadArgument, match="AsyncWorker"):
        penstock.work(handle)

@pytest.mark.asyncio
async def test_coroutines(apenstock):
    seen = []

    async def handle(job):
        seen.append(job.body)

    await apenstock.queue("q").enqueue_many([1, 2])
    assert await apenstock.work(handle) == {"done": 2}
    assert seen == [1, 2]
"""
    )
    passed(run, 7)


def test_the_clock(run_pytest: RunPytest) -> None:
    """`travel` ends delays, leases and ttls; the next test is in the present again."""
    run = run_pytest(
        HANDLERS
        + """
import time

def test_delays(penstock):
    q = penstock.queue("q")
    q.enqueue(welcome.job("ada"), delay=60)
    assert penstock.work(handlers) == {}
    penstock.travel(59)
    assert penstock.work(handlers) == {}
    penstock.travel(2)
    assert penstock.work(handlers) == {"done": 1}

def test_leases_and_ttls(penstock):
    q = penstock.queue("q")
    q.enqueue("x")
    q.reserve(block=0)
    assert q.reserve(block=0) == []
    penstock.travel(31)
    [job] = q.reserve(block=0)
    assert job.crashes == 1
    job.ack()
    q.enqueue("x", ttl=100)
    penstock.travel(101)
    assert q.reserve(block=0) == []

def test_the_present(penstock):
    before = time.time()
    q = penstock.queue("q")
    q.enqueue("x")
    assert before - 1 < q.peek()[0].created < time.time() + 1

@pytest.mark.asyncio
async def test_both_clients(penstock, apenstock):
    await apenstock.queue("q").enqueue("x", delay=60)
    apenstock.travel(61)
    assert penstock.queue("q").reserve(block=0)

def test_wrong(penstock):
    with pytest.raises(BadArgument):
        penstock.travel(-1)
"""
    )
    passed(run, 5)


def test_schedules(run_pytest: RunPytest) -> None:
    """`work` runs the ticks that are due by the moved clock, one after the other."""
    run = run_pytest(
        HANDLERS
        + """
def test_ticks(penstock):
    queue = penstock.queue("emails", partitions=2)
    queue.schedules.add("welcome", every="20s", job=welcome.job("ada"))
    penstock.travel(40)
    counts = penstock.work(handlers)
    [schedule] = queue.schedules.list()
    assert (schedule.skipped, counts) == (0, {"done": schedule.runs})
    assert schedule.runs >= 2
    penstock.travel(3600)
    assert penstock.work(handlers, "emails")["done"] < 5  # one for all that were missed

@pytest.mark.asyncio
async def test_with_asyncio(apenstock):
    await apenstock.queue("emails").schedules.add("bob", every="1h", job=welcome.job("bob"))
    apenstock.travel(3600)
    assert await apenstock.work(handlers) == {"done": 1}
"""
    )
    passed(run, 2)


def test_assertions(run_pytest: RunPytest) -> None:
    """`assert_enqueued` looks at handler and arguments, also of delayed and parked jobs."""
    run = run_pytest(
        HANDLERS
        + """
def test_found(penstock):
    welcome.enqueue(penstock.queue("emails"), "ada", lang="de")
    penstock.queue("later").enqueue(welcome.job("bob"), delay=60)
    assert penstock.assert_enqueued(welcome, "ada", lang="de").queue == "emails"
    assert penstock.assert_enqueued(welcome, "bob").state == "scheduled"
    penstock.assert_enqueued(welcome)

def test_parked(penstock):
    queue = penstock.queue("emails")
    queue.configure(per_key=1)
    for name in ("ada", "bob"):
        welcome.options(key="one").enqueue(queue, name)
    assert penstock.assert_enqueued(welcome, "bob").state == "parked"
    assert penstock.work(handlers) == {"done": 2}

def test_not_found(penstock):
    with pytest.raises(AssertionError, match="no job of welcome waits; there are no jobs"):
        penstock.assert_enqueued(welcome)
    welcome.enqueue(penstock.queue("emails"), "ada")
    with pytest.raises(AssertionError, match="no job of welcome.'bob'. waits; .*'ada'"):
        penstock.assert_enqueued(welcome, "bob")
    with pytest.raises(BadArgument):
        penstock.assert_enqueued(welcome, 7)
    penstock.work(handlers)
    with pytest.raises(AssertionError):
        penstock.assert_enqueued(welcome, "ada")

@pytest.mark.asyncio
async def test_with_asyncio(apenstock):
    await welcome.enqueue(apenstock.queue("emails"), "ada")
    await apenstock.assert_enqueued(welcome, "ada")
"""
    )
    passed(run, 4)


def test_assertions_of_queue_delay_and_count(run_pytest: RunPytest) -> None:
    """`assert_enqueued` looks at them, `assert_not_enqueued` finds none; both tell what waits."""
    run = run_pytest(
        HANDLERS
        + """
def test_queue(penstock):
    welcome.enqueue(penstock.queue("emails"), "ada")
    assert penstock.assert_enqueued(welcome, "ada", queue="emails").queue == "emails"
    with pytest.raises(AssertionError) as told:
        penstock.assert_enqueued(welcome, "ada", lang="de", queue="others")
    assert str(told.value) == (
        "no job of welcome('ada', lang='de') in 'others' waits; "
        "there are welcome: {'to': 'ada'} in 'emails'"
    )
    penstock.assert_not_enqueued(welcome, "ada", queue="others")
    penstock.assert_not_enqueued(welcome, "bob")
    with pytest.raises(AssertionError, match="a job of welcome.'ada'. waits; there are"):
        penstock.assert_not_enqueued(welcome, "ada")

def test_delay(penstock):
    queue = penstock.queue("emails")
    welcome.options(delay=60).enqueue(queue, "ada")
    welcome.enqueue(queue, "bob")
    penstock.assert_enqueued(welcome, "ada", delay=60)
    penstock.assert_enqueued(welcome, "bob", delay=0)
    with pytest.raises(AssertionError, match="delay of 30 s waits; .* with a delay of 60 s"):
        penstock.assert_enqueued(welcome, "ada", delay=30)

def test_count(penstock):
    for name in ("ada", "bob", "ada"):
        welcome.enqueue(penstock.queue("emails"), name)
    penstock.assert_enqueued(welcome, count=3)
    penstock.assert_enqueued(welcome, "ada", count=2)
    with pytest.raises(AssertionError, match="2 jobs of welcome.'ada'., not 1; "):
        penstock.assert_enqueued(welcome, "ada", count=1)
    for wrong in ({"count": 0}, {"queue": ""}, {"delay": -1}):
        with pytest.raises(BadArgument):
            penstock.assert_enqueued(welcome, **wrong)
"""
    )
    passed(run, 3)


def test_a_failed_assertion_shows_the_tests_line(run_pytest: RunPytest) -> None:
    """The traceback ends in the test: no line of penstock stands between it and the message."""
    run = run_pytest(
        HANDLERS
        + """
def test_missing(penstock):
    penstock.assert_enqueued(welcome)

def test_there(penstock):
    welcome.enqueue(penstock.queue("emails"), "ada")
    penstock.assert_not_enqueued(welcome)

@pytest.mark.asyncio
async def test_with_asyncio(apenstock):
    await apenstock.assert_enqueued(welcome)
"""
    )
    assert run.counts == {"failed": 3}, run.out
    assert "kit.py" not in run.out, run.out


def test_results_and_rare_outcomes(run_pytest: RunPytest) -> None:
    """`work` keeps the results of jobs and counts their outcomes as a worker does."""
    run = run_pytest(
        HANDLERS
        + """
def test_a_result_is_kept(penstock):
    @handlers.handler(result_ttl=60)
    def double(number: int) -> int:
        return 2 * number

    job = double.enqueue(penstock.queue("q"), 4)
    assert penstock.work(handlers) == {"done": 1}
    assert job.result(timeout=0) == 8

def test_cancelled_and_lost(penstock):
    queue, more = penstock.queue("q"), Handlers()

    @more.handler
    def cancels(job):
        queue.cancel([job])
        return Retry()

    @more.handler
    def loses(job):
        penstock.travel(100)
        queue.reserve()

    cancels.enqueue(queue)
    assert penstock.work(more) == {"cancelled": 1}
    loses.enqueue(queue)
    assert penstock.work(more) == {"lost": 1}
"""
    )
    passed(run, 2)


def test_it_travels_over_sleeps(run_pytest: RunPytest) -> None:
    """A handler with steps goes on when its sleep is over, a plain one in an event loop, too."""
    run = run_pytest(
        HANDLERS
        + """
import asyncio
from penstock import AsyncSteps, Steps, StepTimeout

@handlers.handler
def remind(steps: Steps, to: str):
    steps.run("first", calls.append, f"{to}, today")
    steps.sleep("a day", 86400)
    steps.run("second", calls.append, f"{to}, the next day")

@handlers.handler
async def aremind(steps: AsyncSteps, to: str):
    await steps.run("first", calls.append, f"{to}, today")
    await steps.sleep("a day", 86400)
    await steps.run("second", calls.append, f"{to}, the next day")

DAYS = ["ada, today", "ada, the next day"]

def test_a_sleep(penstock):
    remind.enqueue(penstock.queue("emails"), "ada")
    plain = Handlers()
    plain.handler(remind)
    assert penstock.work(plain) == {"suspended": 1}
    penstock.travel(86399)
    assert penstock.work(plain) == {}
    penstock.travel(1)
    assert penstock.work(plain) == {"done": 1}
    assert calls == DAYS

@pytest.mark.parametrize("handler", [remind, aremind])
def test_a_sleep_in_an_event_loop(apenstock, handler):
    async def work():
        await handler.enqueue(apenstock.queue("emails"), "ada")
        assert await apenstock.work(handlers) == {"suspended": 1}
        apenstock.travel(86400)
        assert await apenstock.work(handlers) == {"done": 1}

    asyncio.run(work())
    assert calls == DAYS

waiting = Handlers()

@waiting.handler
def buy(steps: Steps):
    try:
        calls.append(steps.wait("approval", timeout=86400)["by"])
    except StepTimeout:
        calls.append("nobody")

def test_a_signal(penstock):
    q = penstock.queue("purchases")
    jobs = [buy.enqueue(q).id for _ in range(2)]
    assert penstock.work(waiting) == {"suspended": 2}
    assert q.signal(jobs[1], "approval", {"by": "ada"})
    assert penstock.work(waiting) == {"done": 1}
    penstock.travel(86400)
    assert penstock.work(waiting) == {"done": 1}
    assert calls == ["ada", "nobody"]

def test_a_wait_without_a_server():
    buy(Steps.local({"approval": {"by": "ada"}}))
    buy(Steps.local())
    assert calls == ["ada", "nobody"]
"""
    )
    passed(run, 5)


def test_an_assertion_that_is_called_wrongly(run_pytest: RunPytest) -> None:
    """The error says what to pass; the report shows the line of the test and none of penstock."""
    run = run_pytest(
        HANDLERS
        + """
def test_a_name(penstock):
    penstock.assert_enqueued("welcome")

def test_an_argument(penstock):
    penstock.assert_not_enqueued(welcome, 7, 8, 9)
"""
    )
    assert run.counts == {"failed": 2}
    assert "must be a handler: assert_enqueued(welcome)" in run.out
    assert "too many positional arguments" in run.out
    assert "src/penstock" not in run.out
