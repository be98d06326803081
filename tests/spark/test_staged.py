"""Group 1: staged writes by hand: commits, aborts, crashes, repeats, emptied queues."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
import redis
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import (
    BadArgument,
    NotReplicated,
    OutOfMemory,
    Penstock,
    QueueClosed,
    QueueFull,
    QueuePaused,
)
from penstock.client._sync.transport.executor import Executor
from penstock.core.flows.sweeping import IDLE_MS
from penstock.embedded import EmbeddedServer
from penstock.spark import OptionError
from penstock.spark.errors import StagesLost
from penstock.spark.staged_commit import StagedCommit
from penstock.spark.writer import BatchWriter, StreamWriter
from tests.spark.hands import PLAIN, ROWS, arrow, bodies, close_all, running, schema, write
from tests.support.proxy import Proxy
from tests.support.replicated import replicated


def staged(given: dict[str, str], rows: list[list[bytes]]) -> None:
    """Run a whole staged write."""
    writer = BatchWriter(given, schema(PLAIN), False)
    writer.commit(write(writer, rows))


def clear_by_client(ps: Penstock) -> None:
    """Clear the queue with the client."""
    ps.clear(["mail"])


def purge_all(ps: Penstock) -> None:
    """Purge the states in a special order."""
    ps.queue("mail").purge("active", "scheduled", "ready", "dead")


ENDS: dict[str, Callable[[Penstock], object]] = {
    "clear": lambda ps: ps.queue("mail").clear(),
    "clear by the client": clear_by_client,
    "purge": lambda ps: ps.queue("mail").purge(),
    "purge of every state": purge_all,
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("idle", [False, True])
def test_a_queue_that_was_emptied_on_purpose_is_written_again(
    end: str, idle: bool, ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeat after an intended clear writes again, also after an idle queue was removed."""
    given = options(commitMode="staged", writeId="load")
    staged(given, ROWS)
    if idle:
        consume_and_forget(ps)
    ENDS[end](ps)
    assert bodies(ps) == []
    staged(given, ROWS)
    assert bodies(ps) == sorted(body for part in ROWS for body in part)
    assert "before" not in caplog.text
    staged(given, ROWS)
    assert len(bodies(ps)) == 6


def consume_and_forget(ps: Penstock) -> None:
    """Do all jobs; then the idle queue is removed."""
    queue = ps.queue("mail")
    queue.ack(queue.reserve(1000, block=0))
    ps.topology.executor.command(
        "DEL", "penstock:{mail}:windows", "penstock:{mail}:dedup"
    )  # their time is over
    seconds, micros = ps.topology.executor.command("TIME")
    long_ago = int(seconds) * 1000 + int(micros) // 1000 - IDLE_MS
    ps.topology.executor.command("HSET", "penstock:{mail}:meta", "seen", long_ago)
    queue.sweep()
    assert not queue.stats().exists


@pytest.mark.parametrize("states", [("active",), ("scheduled", "dead")])
def test_a_write_that_is_repeated_when_its_jobs_are_done_adds_nothing(
    states: tuple[str, ...], ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeat after the jobs are done adds nothing, even if the idle queue was removed.

    A purge of other states changes nothing. The log has the time of the first write.
    """
    given = options(commitMode="staged", writeId="load")
    staged(given, ROWS)
    consume_and_forget(ps)
    ps.queue("mail").purge(*states)
    staged(given, [[b"a"] * 3, [b"b"]])
    assert bodies(ps) == []
    [told] = [one for one in caplog.records if "before" in one.getMessage()]
    text = r"queue 'mail', write 'load': it was done before, on \d{4}-\d\d-\d\d .*; none of these 4"
    assert re.match(text, told.getMessage())
    assert told.levelname == "WARNING"


def published_in_part(given: dict[str, str]) -> None:
    """Stage rows, and let the driver die while it publishes them."""
    writer = BatchWriter(given, schema(PLAIN), False)
    messages = write(writer, ROWS)
    with cut_after(4), suppress(Crash):
        writer.commit(messages)


def test_a_repeat_publishes_the_rest_and_says_so(
    ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A repeat of a write whose driver died adds the rest of the first one, and none of its own."""
    caplog.set_level("INFO", "penstock")
    given = options(commitMode="staged", writeId="load", batchSize=1)
    published_in_part(given)
    stats = ps.queue("mail").stats()
    assert stats.promised == 6 - stats.ready > 0
    staged(given, ROWS)
    assert len(bodies(ps)) == 6
    assert "the rest of it is published now, and none of these 6 rows are added" in caplog.text
    assert f"written 6 rows, {6 - stats.ready} added" in caplog.text


def test_the_largest_chunk_is_published_whole(ps: Penstock, options: Any) -> None:
    """It has 1,000 rows, the limit of `batchSize`."""
    rows = [b"%d" % number for number in range(1000)]
    staged(options(commitMode="staged", batchSize=1000), [rows])
    assert bodies(ps) == sorted(rows)


def test_a_task_of_a_known_write_sends_one_chunk(ps: Penstock, options: Any) -> None:
    """The server answers that the write is done, so the task only counts its other rows."""
    given = options(commitMode="staged", writeId="load", batchSize=1)
    staged(given, ROWS)
    with watched() as calls:
        staged(given, ROWS)
    assert [call.script.name for call in calls].count("stage") == 2  # two tasks have rows


@contextmanager
def watched() -> Iterator[list[Any]]:
    """List the calls."""
    real, calls = Executor.run, list[Any]()

    def run(self: Executor, call: Any, **kwargs: Any) -> Any:
        calls.append(call)
        return real(self, call, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", run)
        yield calls


@pytest.mark.parametrize(
    "more, hours",
    [
        ({"writeId": "w"}, 720),
        ({"writeId": "w", "dedupWindow": "1000h"}, 1000),
        ({"dedupWindow": "1000h"}, 2),
    ],
)
def test_how_long_a_write_is_known(
    more: dict[str, str], hours: int, ps: Penstock, options: Any
) -> None:
    """A write is known for 30 days, or a longer `dedupWindow`; without a name for `stageTtl`."""
    writer = BatchWriter(
        options(commitMode="staged", batchSize=1, stageTtl="2h", **more), schema(PLAIN), False
    )
    messages = write(writer, ROWS)
    assert hours_left(ps, "stage") == 2
    with cut_after(4), suppress(Crash):
        writer.commit(messages)
    assert hours_left(ps, "stage") == hours_left(ps, "commit") == hours
    writer.commit(messages)
    assert hours_left(ps, "commit") == hours


def hours_left(ps: Penstock, kind: str) -> int:
    """Return the hours until the only key of this kind expires."""
    [key] = ps.topology.executor.command("KEYS", f"penstock:{{mail}}:{kind}:*")
    return round(ps.topology.executor.command("PTTL", key) / 3_600_000)


def test_a_lost_reply_of_a_commit(
    ps: Penstock, spark_server: EmbeddedServer, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The commit is sent again and finds itself: nothing is logged, and all rows are added."""
    staged(options(commitMode="staged", queue="other"), ROWS)  # loads the scripts
    with Proxy(spark_server.address) as proxy:
        writer = BatchWriter(options(commitMode="staged", url=proxy.url), schema(PLAIN), False)
        messages = write(writer, ROWS)
        fault = proxy.eat_reply(after=messages[0].token.encode() + b"\r\n")
        writer.commit(messages)
        assert fault.has_struck
        close_all()
    assert len(bodies(ps)) == 6
    assert "before" not in caplog.text


def test_a_staged_write_with_too_few_replicas(ps: Penstock, options: Any) -> None:
    """With `replicas` nothing is committed. A queue's setting is only known from its replies: the
    rows are added, and the write fails.
    """
    given = options(commitMode="staged", replicationTimeout="10ms")
    with pytest.raises(NotReplicated, match="nothing was added"):
        staged({**given, "replicas": "1"}, ROWS)
    assert bodies(ps) == []
    ps.queue("mail").configure(replicas=1)
    with pytest.raises(NotReplicated, match="0 of 1") as caught:
        staged(given, ROWS)
    assert not caught.value.withdrawn
    assert "0 of 1 replicas confirmed; all rows are added" in str(caught.value)
    assert len(bodies(ps)) == 6
    staged({**given, "replicas": "0"}, ROWS)
    assert len(bodies(ps)) == 12


def test_replicas_confirm_a_staged_write(
    make_server: Callable[..., EmbeddedServer], options: Any
) -> None:
    """If one is lost after it was counted, all rows are added all the same.

    Then the write fails. No further chunk waits for confirmations.
    """
    with replicated(make_server) as trio:
        given = options(
            queue="q", url=trio.url, commitMode="staged", batchSize=1, replicas=2,
            replicationTimeout="1s",
        )  # fmt: skip
        staged(given, ROWS)
        assert [len(each) for each in trio.bodies()] == [6, 6, 6]
        trio.cut(0)
        with watched() as calls, pytest.raises(NotReplicated) as caught:
            staged(given, ROWS)
        assert caught.value.got == 1
        assert len(trio.bodies()[0]) == 12
        assert len([call for call in calls if call.wait]) == 2  # commit and first chunk
        close_all()


@pytest.mark.parametrize("end", ENDS)
def test_a_queue_that_is_emptied_while_a_write_is_published(
    end: str, ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All rows of the write are removed, and its repeat adds all of them."""
    given = options(commitMode="staged", writeId="load", batchSize=1)
    published_in_part(given)
    assert 0 < len(bodies(ps)) < 6
    ENDS[end](ps)
    with between_publishes(lambda: ENDS[end](ps)):
        staged(given, ROWS)
    assert bodies(ps) == []
    assert "was cleared or purged during this write" in caplog.text
    assert ps.topology.executor.command("KEYS", "penstock:{mail}:stage:*") == []
    staged(given, ROWS)
    assert len(bodies(ps)) == 6


@contextmanager
def between_publishes(happen: Callable[[], object]) -> Iterator[None]:
    """Run a callback before the third chunk of a write is published."""
    real = Executor.run
    seen = 0

    def run(self: Executor, call: Any, **kwargs: Any) -> Any:
        nonlocal seen
        seen += call.script.name == "publish"
        if call.script.name == "publish" and seen == 3:
            happen()
        return real(self, call, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", run)
        yield


def test_a_purge_leaves_jobs_promised_during_it(ps: Penstock, options: Any) -> None:
    """Promised jobs stay in a purge of other states, so a repeat adds nothing."""
    ps.queue("mail").enqueue_many([b"old"] * 10, delay=60)
    given = options(commitMode="staged", writeId="load")
    real, told = Executor.run, []

    def run(self: Executor, call: Any, **kwargs: Any) -> Any:
        if call.script.name == "purge":
            told.append(call)
            if len(told) == 2:
                staged(given, ROWS)
        return real(self, call, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", run)
        ps.queue("mail").purge()
    assert len(bodies(ps)) == 6
    staged(given, ROWS)
    assert len(bodies(ps)) == 6


def test_a_checkpoint_older_than_the_staged_batches(
    ps: Penstock, options: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """An old checkpoint's batches were done, maybe with other rows: none is added,
    and it is logged. Rows that were staged before are removed.
    """
    writer = StreamWriter(options(commitMode="staged"), schema(PLAIN), False)

    def task(batch: int) -> Any:
        with running(0, "q", batch):
            return writer.write(iter(arrow({"payload": [b"%d" % batch]})))

    late = task(3)
    for batch in (0, 0, 5, 5, 3):
        assert "batch 3" not in caplog.text
        writer.commit([task(batch)], batch)
    assert "queue 'mail', batch 0: it was done before, on 20" in caplog.text
    found = re.search("queue 'mail', batch 3: batch 5 was done before, on ([^;]+)", caplog.text)
    assert found is not None
    age = datetime.now(timezone.utc) - datetime.fromisoformat(found[1])
    assert abs(age) < timedelta(hours=1)
    writer.commit([late], 3)
    assert bodies(ps) == [b"0", b"5"]
    assert ps.topology.executor.command("KEYS", "penstock:{mail}:stage:*") == []


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_chunk_that_a_failover_has_lost(
    lost: int, ps: Penstock, redis_url: str, options: Any
) -> None:
    """The attempt, or the commit for the last chunk, fails; no part of the write is visible."""
    given = options(commitMode="staged", batchSize=1, writeId="w")
    writer = BatchWriter(given, schema(PLAIN), False)

    def rows() -> Iterator[Any]:
        for number in range(3):
            yield from arrow({"payload": [b"%d" % number]})
            if number == lost:
                with redis.Redis.from_url(redis_url) as raw:
                    [key] = raw.keys("*:stage:*")
                    [field] = [name for name in raw.hkeys(key) if name.endswith(b":%d" % lost)]
                    raw.hdel(key, field)

    def tried() -> None:
        with running(0):
            message = writer.write(rows())
        writer.commit([message])

    with pytest.raises(StagesLost, match="mail"):
        tried()
    assert bodies(ps) == []
    writer.commit(write(writer, [[b"0", b"1", b"2"]]))
    assert bodies(ps) == [b"0", b"1", b"2"]


def test_a_staged_stream_continues_where_it_was_killed(ps: Penstock, options: Any) -> None:
    """A promised earlier batch is published before a later one; a lost stage raises."""
    given = options(commitMode="staged", batchSize=1)

    def staged(batch: int, rows: list[bytes]) -> Any:
        with running(0, "q", batch):
            return StreamWriter(given, schema(PLAIN), False).write(iter(arrow({"payload": rows})))

    first = staged(0, [b"a", b"b", b"c"])
    with cut_after(3), pytest.raises(Crash):
        StreamWriter(given, schema(PLAIN), False).commit([first], 0)
    assert len(bodies(ps)) == 1
    second = staged(1, [b"d"])
    StreamWriter(given, schema(PLAIN), False).commit([second], 1)
    assert bodies(ps) == [b"a", b"b", b"c", b"d"]
    assert hours_left(ps, "commit") == 720
    late = staged(0, [b"a", b"b", b"c"])
    assert late.chunks == 0
    StreamWriter(given, schema(PLAIN), False).commit([late], 0)
    lost = staged(2, [b"e"])
    keys = ps.topology.executor.command("KEYS", "penstock:{mail}:stage:*")
    ps.topology.executor.command("DEL", *keys)
    with pytest.raises(StagesLost, match="No row is in the queue"):
        StreamWriter(given, schema(PLAIN), False).commit([lost], 2)
    assert len(bodies(ps)) == 4


def test_inside_foreach_batch_a_staged_write_needs_a_name(ps: Penstock, options: Any) -> None:
    """Without a name two writes of one batch would be indistinguishable, so one is required.

    A name distinguishes them, in each batch and query.
    """
    writer = BatchWriter(options(commitMode="staged"), schema(PLAIN), False)
    with running(0, "q", 3), pytest.raises(OptionError, match="writeId"):
        writer.write(iter(arrow({"payload": [b"x"]})))
    writes = [("a", "q", 3), ("b", "q", 3), ("a", "q", 4), ("a", "r", 4)]
    for name, query, batch in writes * 2:
        writer = BatchWriter(options(commitMode="staged", writeId=name), schema(PLAIN), False)
        with running(0, query, batch):
            message = writer.write(iter(arrow({"payload": [b"x"]})))
        writer.commit([message])
    assert len(bodies(ps)) == len(writes)


def test_a_promise_that_a_full_queue_holds_up(ps: Penstock, options: Any) -> None:
    """The error has the name with which the write is completed, given or generated."""
    queue = ps.queue("mail")
    queue.configure(max_length=3)
    rows = [[b"%d" % number for number in range(8)]]
    given = options(commitMode="staged", onFull="fail")
    writer = BatchWriter(given, schema(PLAIN), False)
    with pytest.raises(QueueFull, match=r"all staged rows are committed.*writeId=") as caught:
        writer.commit(write(writer, rows))
    assert (caught.value.waiting, caught.value.limit) == (3, 3)
    waiting = BatchWriter(
        options(commitMode="staged", writeId=writer.own, fullTimeout="300ms"), schema(PLAIN), False
    )
    with watched() as calls, pytest.raises(QueueFull, match="no room within fullTimeout"):
        waiting.commit(write(waiting, rows))
    assert len(calls) < 20  # it waits for a token
    queue.configure(max_length=100)
    name = re.search("writeId=([0-9a-f]+)", str(caught.value))
    assert name is not None
    again = BatchWriter({**given, "writeid": name[1]}, schema(PLAIN), False)
    again.commit(write(again, rows))
    assert bodies(ps) == rows[0]


def test_a_promise_that_a_closed_or_paused_queue_holds_up(ps: Penstock, options: Any) -> None:
    """The error has the name; the write is completed when the queue takes jobs again."""
    queue = ps.queue("mail")
    writer = BatchWriter(options(commitMode="staged", onFull="fail"), schema(PLAIN), False)
    messages = write(writer, ROWS)
    for stop, go, error in (
        (queue.close, queue.reopen, QueueClosed),
        (partial(queue.pause, "in"), queue.resume, QueuePaused),
    ):
        stop()
        with pytest.raises(error, match=rf"queue 'mail' is .*writeId={writer.own}"):
            writer.commit(messages)
        go()
    writer.commit(messages)
    assert len(bodies(ps)) == 6


def test_an_error_while_rows_are_published_has_the_name(
    ps: Penstock, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With that name another write adds the missing rows, and none twice."""
    publish = StagedCommit._publish_chunk

    def fails(self: StagedCommit, at: Any, field: str) -> None:
        if ps.queue("mail").stats().ready:
            raise OutOfMemory("the server is full")
        publish(self, at, field)

    writer = BatchWriter(options(commitMode="staged", batchSize=1), schema(PLAIN), False)
    messages = write(writer, ROWS)
    monkeypatch.setattr(StagedCommit, "_publish_chunk", fails)
    with pytest.raises(OutOfMemory) as caught:
        writer.commit(messages)
    monkeypatch.setattr(StagedCommit, "_publish_chunk", publish)
    assert str(caught.value).startswith("the server is full. To add the missing rows")
    name = str(caught.value).rpartition("writeId=")[2]
    assert len(bodies(ps)) == 1
    staged(options(commitMode="staged", writeId=name), ROWS)
    assert len(bodies(ps)) == 6


def test_priorities_are_refused_before_rows_of_an_ordered_queue_are_staged(
    ps: Penstock, options: Any
) -> None:
    """The rows could never be published."""
    ps.queue("mail").configure(ordered=True)
    with pytest.raises(BadArgument, match="column='Priority': queue 'mail' is ordered"):
        BatchWriter(options(), schema("payload binary, Priority int"), False)
    ps.queue("mail").configure(ordered=None)
    BatchWriter(options(), schema("payload binary, Priority int"), False)


# -- staged commit: any order of attempts, commits, aborts, crashes and repeats ------------------


class Crash(BaseException):
    """The simulated end of the process."""


@contextmanager
def cut_after(calls: int, *, answered: bool = True) -> Iterator[None]:
    """End the process after this many scripts; the last reply may be lost."""
    left = calls
    real = Executor.run

    def run(self: Executor, call: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left == 0 and answered:
            raise Crash
        left -= 1
        result = real(self, call, **kwargs)
        if left < 0:
            raise Crash
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "run", run)
        yield


class Load:
    """One write that is repeated, with the steps of its drivers, tasks and consumers.

    Attributes:
        seen: bodies of the jobs that were done.
    """

    ROWS = (("a-1", b"a"), ("b-1", b"b"), ("a-2", b"a"), ("a-3", b"a"), ("c-1", b"c"))
    """Ids and bodies; the ids are computed from the content."""

    def __init__(self, ps: Penstock, url: str, draw: random.Random, mode: str) -> None:
        name = f"load-{uuid.uuid4().hex}"
        self.ps, self.queue, self.draw = ps, ps.queue(name), draw
        self.text = PLAIN if mode == "staged" else f"{PLAIN}, id string"
        self.options = {"queue": name, "url": url, "commitmode": mode, "writeid": "w",
                        "batchsize": "1"}  # fmt: skip
        self.seen: list[bytes] = []

    def keys(self, kind: str) -> list[bytes]:
        """Return keys of this kind."""
        return list(
            self.ps.topology.executor.command("KEYS", f"penstock:{{{self.queue.name}}}:{kind}:*")
        )

    def writer(self) -> BatchWriter:
        """Return a driver's writer."""
        return BatchWriter(self.options, schema(self.text), False)

    def attempts(self, parts: int) -> list[Any]:
        """Run the tasks of this number of Spark partitions to their ends, in any order."""
        return [self.attempt(number, parts) for number in self.draw.sample(range(parts), parts)]

    def attempt(self, number: int, parts: int) -> Any:
        """Run a task to its end."""
        mine = self.ROWS[number::parts]
        mine = self.draw.sample(mine, len(mine))
        columns = {"payload": [body for _, body in mine], "id": [name for name, _ in mine]}
        if self.text == PLAIN:
            del columns["id"]
        with running(number):
            return self.writer().write(iter(arrow(columns, payload=pa.binary(), id=pa.string())))

    def consume(self) -> None:
        """Do some jobs."""
        jobs = self.queue.reserve(self.draw.randint(1, 3), block=0)
        self.seen.extend(job.raw for job in jobs)
        self.queue.ack(jobs)

    def step(self, what: str, parts: int, calls: int, *, answered: bool) -> None:
        """Run a task, a commit or an abort, cut off after this many scripts."""
        if what == "task":
            with cut_after(calls, answered=answered), suppress(Crash):
                self.attempt(self.draw.randrange(parts), parts)
            return
        messages: list[Any] = [None, None]
        if what == "commit":
            messages = self.attempts(parts)
            with cut_after(calls, answered=answered), suppress(Crash):
                self.writer().commit(messages)
        self.writer().abort(messages)
        if not self.keys("commit"):
            assert self.keys("stage") == []


STEP = st.tuples(
    st.sampled_from(["task", "commit", "abort"]),
    st.integers(1, 4),
    st.integers(0, 7),
    st.booleans(),
)


@pytest.mark.parametrize("mode", ["direct", "staged"])
@settings(max_examples=20)
@given(steps=st.lists(STEP, max_size=6), parts=st.integers(1, 4), seed=st.integers(0, 99))
def test_repeats_in_other_partitions_after_crashes(
    steps: list[tuple[str, int, int, bool]], parts: int, seed: int, mode: str,
    ps: Penstock, redis_url: str,
) -> None:  # fmt: skip
    """However often its parts crash, and in whatever partitions it is repeated, each row exists
    once at the end, with or without consumers.

    direct: rows have ids, computed from the content. staged: they have none; before the first
    promise no job is visible, and an abort then leaves nothing.
    """
    load = Load(ps, redis_url, random.Random(seed), mode)
    for what, count, calls, answered in steps:
        load.step(what, count, calls, answered=answered)
        if mode == "direct" or load.keys("commit"):
            load.consume()
        else:
            assert load.queue.stats().ready == 0
    load.writer().commit(load.attempts(parts))
    while load.queue.stats().ready:
        load.consume()
    assert sorted(load.seen) == [b"a", b"a", b"a", b"b", b"c"]
    assert load.keys("stage") == []
