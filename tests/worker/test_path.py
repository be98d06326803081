"""The path of one job through a worker, counted in functions of the package."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import penstock
from penstock import Queue, Worker
from penstock.embedded import EmbeddedServer
from penstock.worker.held_file import HeldFile, make_held_file

ROOT = str(Path(penstock.__file__).parent)
WARM = 5
"""Jobs run before the traced ones."""
TRACED = 5
"""Jobs traced: what a worker does once a second may fall between any two of them."""


class Tracer:
    """A handler that traces all threads from each job's call to the next job's call.

    A trace has the handler's return, the report, and the delivery of the next job.

    Args:
        look: what the handler does with a job.
    """

    def __init__(self, look: Callable[[Any], object]) -> None:
        self.functions: list[set[tuple[str, str, int]]] = [set() for _ in range(TRACED)]
        self._look = look
        self._runs = 0

    def __call__(self, job: Any) -> None:
        """Handle a job."""
        self._runs += 1
        self._look(job)

    def profile(self, frame: FrameType, event: str, arg: object) -> None:  # its form
        """Record a call; comprehensions and lambdas belong to their function."""
        code = frame.f_code
        is_own = code.co_filename.startswith(ROOT) and not code.co_name.startswith("<")
        if event == "call" and is_own and 0 <= self._runs - WARM < TRACED:
            self.functions[self._runs - WARM].add(
                (code.co_filename, code.co_name, code.co_firstlineno)
            )


@pytest.mark.parametrize(
    "look, most, noted",
    [(lambda _: None, 45, False), (lambda job: job.body, 49, False), (lambda _: None, 49, True)],
    ids=["the job", "the body", "under a supervisor"],
)
def test_a_job_passes_few_functions(
    look: Callable[[Any], object],
    most: int,
    noted: bool,
    queue: Queue,
    worker_server: EmbeddedServer,
) -> None:
    """Between two jobs a worker calls at most 45 functions. Decoding a body takes 4 more, a note
    for the supervisor too.
    """
    queue.enqueue_many(range(WARM + TRACED + 1))
    tracer = Tracer(look)
    worker = Worker(
        worker_server.url, "work", tracer.__call__, concurrency=1, prefetch=0, burst=True
    )
    if noted:
        worker.held_file = HeldFile(make_held_file())
    threading.setprofile(tracer.profile)
    try:
        worker.run(signals=False)
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.setprofile(None)
    assert tracer._runs == WARM + TRACED + 1
    fewest = min(tracer.functions, key=len)
    assert 20 < len(fewest) <= most, sorted(fewest)
