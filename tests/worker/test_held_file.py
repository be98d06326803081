"""Jobs of a process that has died run again at once, if its supervisor sees it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from penstock import Penstock, Queue
from penstock.core.jobs.job import epoch_of, number_of
from penstock.embedded import EmbeddedServer
from penstock.worker.held_file import NOTE_BYTES, HeldFile, HeldNote, make_held_file, read_notes
from tests.worker.programs import Program, Told

Worker = Callable[..., Program]
LEASE = 3600
"""Seconds, more than any test waits."""


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_job_of_a_killed_process_runs_again_at_once(
    worker: Worker, told: Told, server: EmbeddedServer, processes: str
) -> None:
    """Another process ends its lease, or the replacement; the death counts as a crash."""
    with Penstock(server.url) as client:
        jobs = client.queue("jobs")
        jobs.configure(lease=LEASE)
        program = worker("--processes", processes)
        told.do("long once")
        _, victim, _ = told.until("long once")
        os.kill(victim, signal.SIGKILL)
        _, heir, _ = told.until("long once")
        assert heir != victim
        program.line("gives back the jobs of the one that died: 1")
        assert jobs.stats().crashed == 1


def test_notes_tell_the_jobs_that_are_held(queue: Queue) -> None:
    """A note names queue, job and receipt; it goes with the job; a half-written one is none."""
    descriptor = make_held_file()
    try:
        file = HeldFile(descriptor)
        queue.enqueue_many(["a", "b", "c"])
        jobs = queue.reserve(3)
        file.hold(jobs)
        notes = read_notes(descriptor)
        assert [one.receipt for one in notes] == [job.receipt for job in jobs]
        assert {(one.queue, one.node) for one in notes} == {("work", "")}
        file.drop(jobs[:1])
        assert read_notes(descriptor) == notes[1:]
        os.pwrite(descriptor, b"\0", NOTE_BYTES)  # as before the last byte is written
        assert read_notes(descriptor) == notes[2:]
        file.hold(jobs[:1])
        assert sorted(read_notes(descriptor)) == sorted([notes[0], notes[2]])
    finally:
        os.close(descriptor)


def test_notes_wait_until_their_place_is_known() -> None:
    """A supervisor sends them early: the worker may not know its nodes and partitions yet."""
    descriptor = make_held_file()
    try:
        file, pokes = HeldFile(descriptor), list[int]()
        file.poke = lambda: pokes.append(1)
        a, b = (HeldNote(queue, "", "e", "1-0", "1-abc") for queue in "ab")
        file.add_left([a, b])
        assert pokes
        assert file.take_left({("a", "")}) == [a]
        assert file.has_left
        assert file.take_left({("a", ""), ("b", "")}) == [b]
        assert not file.has_left
    finally:
        os.close(descriptor)


def test_notes_end_only_the_leases_of_their_deliveries(queue: Queue, ps: Penstock) -> None:
    """A job that was delivered again keeps its lease: the receipt of the note is stale."""
    queue.enqueue_many(["a", "b"])
    a, b = queue.reserve(2)
    stale = [(number_of(job).decode(), job.receipt) for job in (a, b)]
    b.release()
    (again,) = queue.reserve(1)
    reply = ps.topology.executor.run(queue.ops.end_leases(epoch_of(a), stale))
    assert reply.untils[1] == -1
    (taken,) = queue.reserve(1, block=10)
    assert (taken.id, taken.crashes) == (a.id, 1)
    assert again.ack()


def test_an_error_at_the_start_ends_the_supervisor(worker: Worker) -> None:
    """An error in a task of the supervisor is raised, and not kept until the end."""
    before = "from penstock.worker import supervisor as s; s.notify_ready = lambda: 1 / 0"
    program = worker("--processes", "1", before=before)
    assert program.wait() == 1
    assert "ZeroDivisionError" in program.seen
