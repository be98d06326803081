"""The way of the usual calls: few functions, each of which does something."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import fakeredis
import pytest

import penstock
from penstock import Job, Penstock, Queue

OWN = str(Path(penstock.__file__).parent)
MOST = 12
"""Own functions that a warm call may pass."""


def passed(call: Callable[[], Any]) -> list[str]:
    """The own functions that a call passes, in the order in which they are entered."""
    found: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OWN):
            found.append(f"{Path(code.co_filename).name}:{code.co_name}")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found


@pytest.fixture
def queue() -> Iterator[Queue]:
    """A queue of a client of one source, which has been used before."""
    with Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as client:
        queue = client.queue("q")
        for _ in range(2):
            queue.enqueue(b"x")
            [job] = queue.reserve()
            job.ack()
        yield queue


def test_an_enqueue_passes_few_functions(queue: Queue) -> None:
    """Of bytes, without options."""
    found = passed(lambda: queue.enqueue(b"body"))
    print(f"enqueue: {len(found)}", *found, sep="\n  ")  # noqa: T201  # shown by pytest -s
    assert len(found) <= MOST


def test_a_reserve_passes_few_functions(queue: Queue) -> None:
    """Of one job that is there."""
    queue.enqueue(b"body")
    found = passed(queue.reserve)
    print(f"reserve: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST


def test_an_ack_passes_few_functions(queue: Queue) -> None:
    """Of the job itself."""
    queue.enqueue(b"body")
    job: Job
    [job] = queue.reserve()
    found = passed(job.ack)
    print(f"ack: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST
