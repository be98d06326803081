"""What handlers log with their jobs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from penstock import BadArgument, Handlers, Job, Penstock, Queue, RetryPolicy, Worker
from penstock.core.jobs.job import make_unsent
from penstock.core.jobs.marks import Unsent
from tests.support.backends import Backend
from tests.support.keyspace import Raw


@pytest.fixture
def raw(backend: Backend) -> Raw:
    """A plain client of an empty server."""
    return backend.sync_client()


@pytest.fixture
def ps(raw: Raw) -> Iterator[Penstock]:
    """A client of it."""
    with Penstock(raw) as client:
        yield client


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue."""
    return ps.queue("mail")


def texts(q: Queue, job_id: str) -> list[str]:
    """Return the lines of a job."""
    return [line.text for line in q.log(job_id)]


def test_a_handler_that_fails(ps: Penstock, q: Queue) -> None:
    """All its lines are there when the failure is, those of earlier attempts before them."""
    handlers = Handlers()

    @handlers.handler(retry=RetryPolicy(2, 0.001))
    def send(job: Job, to: str) -> None:
        job.log(f"to {to},\nattempt {job.attempt}")
        raise ValueError("no mail")

    added = q.enqueue(send.job("ada\x1b[31m"))
    Worker(ps, q, handlers, burst=True).run()
    while q.stats().dead == 0:
        Worker(ps, q, handlers, burst=True).run()
    told = ["to ada [31m,", "attempt 1", "to ada [31m,", "attempt 2"]
    assert texts(q, added.id) == told
    q.redrive([added.id])
    assert texts(q, added.id) == told


def test_a_handler_that_runs(ps: Penstock, q: Queue) -> None:
    """The heartbeat sends its lines meanwhile; when the job is done nothing is left of them."""
    handlers, seen = Handlers(), threading.Event()

    @handlers.handler
    def send(job: Job) -> None:
        job.log("begun")
        assert seen.wait(60)

    added = q.enqueue(send.job())
    worker = Worker(ps, q, handlers)
    with worker:
        while texts(q, added.id) != ["begun"]:
            pass
        seen.set()
        while q.stats().acked == 0:
            pass
    assert q.log(added.id) == []
    assert not ps.queue("mail").stats().active


def test_a_job_that_is_done_at_once_pays_nothing(ps: Penstock, q: Queue, raw: Raw) -> None:
    """Its lines are not sent, and nothing is written."""
    handlers = Handlers()

    @handlers.handler
    def send(job: Job) -> None:
        job.log("done")

    q.enqueue(send.job())
    Worker(ps, q, handlers, burst=True).run()
    assert not raw.exists(q.ops.keys["tally"])
    assert b"m" not in (raw.hget(q.ops.keys["meta"], "uses") or b"")


def test_the_last_lines_are_kept(q: Queue) -> None:
    """100, each of at most 500 bytes; a call that fails loses none."""
    q.enqueue("x")
    [job] = q.reserve(block=0)
    for number in range(70):
        job.log(f"{number} {'é' * 400}")
    assert job.send_progress()
    for number in range(70, 150):
        job.log(f"{number}")
    job.progress(1, 2)
    assert job.send_progress()
    lines = texts(q, job.id)
    assert [line.split()[0] for line in lines] == [str(number) for number in range(50, 150)]
    assert {len(line.encode()) for line in lines[:20]} == {499}
    view = q.show(job.id)
    assert view is not None
    assert (view.progress is not None, view.error) == (True, "")
    assert job.send_progress()
    assert texts(q, job.id) == lines
    job.bury("no")
    assert texts(q, job.id) == lines


def test_the_log_of_a_job_that_a_client_watches(ps: Penstock, q: Queue) -> None:
    """Its lines are stored with the heartbeat and the failure, its progress goes to the client."""
    handlers, seen = Handlers(), threading.Event()

    @handlers.handler(retry=RetryPolicy(1))
    def send(job: Job) -> None:
        job.log("begun")
        assert seen.wait(60)
        job.progress(1, 2)
        job.log("half")
        job.emit("chunk")
        raise ValueError("no mail")

    added = q.enqueue(send.job())
    told = []
    with Worker(ps, q, handlers):
        for event in q.watch(added.id, timeout=60):
            if event.kind != "waiting":  # for the worker
                told.append(event.kind)
            if event.kind == "started":
                while texts(q, added.id) != ["begun"]:
                    pass
                seen.set()
    told = list(dict.fromkeys(told))  # the loop may send what the heartbeat is sending
    assert told == ["started", "progress", "chunk", "failed", "ended"]
    assert texts(q, added.id) == ["begun", "half"]


def test_progress_is_kept_until_a_client_that_watches_has_it(q: Queue) -> None:
    """The look stores the lines at once, and the progress goes with the chunks."""
    added = q.enqueue("x")
    [job] = q.reserve(block=0)
    looks = iter(q.watch(added.id))
    assert next(looks).kind == "started"
    job.progress(1, 2)
    job.log("half")
    assert job.send_progress()
    view = q.show(added.id)
    assert view is not None
    assert view.progress is not None
    assert (view.progress.done, texts(q, added.id)) == (1, ["half"])
    assert next(looks).kind == "progress"
    assert not make_unsent(job)


def test_what_could_not_be_sent() -> None:
    """It stays in its order before what is newer, as far as there is room."""
    told = Unsent()
    told.add_lines("a\nb")
    told.progress = "1 2 "
    unsent = told.take()
    assert not told
    told.add_lines("c")
    told.progress = "2 2 "
    told.put_back(unsent)
    assert (list(told.lines), told.progress) == (["a", "b", "c"], "2 2 ")
    told.add_lines("\n".join(map(str, range(98))))
    unsent, more = told.take(), Unsent()
    more.add_lines("z")
    more.put_back(unsent)
    assert [more.lines[0], more.lines[-2], more.lines[-1]] == ["c", "97", "z"]
    assert len(more.lines) == 100


def test_a_text_that_can_not_be_used(q: Queue) -> None:
    """The error names it."""
    q.enqueue("x")
    with pytest.raises(BadArgument, match="text"):
        q.reserve(block=0)[0].log(b"bytes")  # type: ignore[arg-type]
