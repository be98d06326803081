"""The number of functions that the common calls pass through."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import fakeredis
import pytest

import penstock
from penstock import Dedup, Durable, Handlers, Job, Penstock, Queue, RetryPolicy
from penstock.core.enqueuing.options import OPTIONS

OWN = str(Path(penstock.__file__).parent)
MOST = 12
"""Maximum of own functions in a warm call."""


def passed(call: Callable[[], Any]) -> list[str]:
    """Return the package's functions that a call enters, in order."""
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
    """A queue of a client of one source, already used before."""
    with Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as client:
        queue = client.queue("q")
        for _ in range(2):
            queue.enqueue(b"x")
            [job] = queue.reserve()
            job.ack()
        queue.route.node.taking_until = math.inf  # else a slow test would ask the node again
        yield queue


def test_an_enqueue_passes_few_functions(queue: Queue) -> None:
    """An enqueue of bytes without options."""
    found = passed(lambda: queue.enqueue(b"body"))
    print(f"enqueue: {len(found)}", *found, sep="\n  ")  # noqa: T201  # shown by pytest -s
    assert len(found) <= MOST - 2


def test_an_enqueue_of_a_dict_passes_few_functions(queue: Queue) -> None:
    """It is encoded as JSON, and its keys are checked: 4 functions more."""
    found = passed(lambda: queue.enqueue({"to": "ada"}))
    print(f"enqueue of a dict: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST + 2


NUMBERS = itertools.count(1)
VALUES: dict[str, Callable[[], Any]] = {
    "delay": lambda: 60 + next(NUMBERS),
    "at": lambda: 1_900_000_000 + next(NUMBERS),
    "lease": lambda: 60,
    "ttl": lambda: 3600,
    "headers": lambda: {"trace": str(next(NUMBERS))},
    "max_length": lambda: 1_000_000,
    "block": lambda: 5,
    "replicas": lambda: 0,
    "durable": lambda: Durable(0),
    "dedup_id": lambda: f"order-{next(NUMBERS)}",
    "dedup": lambda: Dedup(f"order-{next(NUMBERS)}", window=60),
    "retry": lambda: RetryPolicy(3),
    "key": lambda: f"customer-{next(NUMBERS)}",
    "result_ttl": lambda: 60,
    "priority": lambda: 5,
    "on_dead": lambda: "told",
}
"""Makes a value of each option: another one for each job where programs do so."""


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
def test_an_option_passes_few_functions(queue: Queue, is_used: bool) -> None:
    """Any option, also in a queue with features, where no job takes the short way; a dedup id is
    checked, written and answered.
    """
    assert set(VALUES) == set(OPTIONS)
    if is_used:
        queue.enqueue(b"other", ttl=3600, result_ttl=60, priority=5)
    for name, value in VALUES.items():
        queue.enqueue(b"body", **{name: value()})
        options = {name: value()}
        found = passed(lambda options=options: queue.enqueue(b"body", **options))  # type: ignore[misc]  # a default binds it
        print(f"enqueue with {name}: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
        assert len(found) <= (2 * MOST + 1 if name.startswith("dedup") else MOST + 4), name


@pytest.mark.parametrize(
    "options", [{"delay": 60}, {"key": "a tenant"}, {"ttl": 60}, {"priority": 5, "key": "a tenant"}]
)
def test_options_that_come_again_pass_no_checks(queue: Queue, options: dict[str, Any]) -> None:
    """The checked form of a set of options is kept: a second job passes hardly more functions than
    one without options.
    """
    queue.enqueue(b"body", **options)
    found = passed(lambda: queue.enqueue(b"body", **options))
    assert len(found) <= MOST


def test_a_handlers_enqueue_passes_few_functions(queue: Queue) -> None:
    """The call of a handler with two arguments, which are checked and encoded."""
    handlers = Handlers()

    @handlers.handler("welcome")
    def welcome(to: str, lang: str = "en") -> None: ...

    welcome.enqueue(queue, "ada")
    found = passed(lambda: welcome.enqueue(queue, "ada", lang="de"))
    print(f"handler: {len(found)}", *found, sep="\n  ")  # noqa: T201  # shown by pytest -s
    assert len(found) <= MOST + 2


def test_a_call_without_a_queue_passes_no_more_functions(queue: Queue) -> None:
    """The call of a handler that belongs to its queue, and of a copy with options."""

    @queue.handler
    def welcome(to: str, lang: str = "en") -> None: ...

    traced = welcome.options(headers={"trace": "1"})
    for handler in (welcome, traced):
        handler.enqueue("ada")
        found = passed(lambda handler=handler: handler.enqueue("ada", lang="de"))  # type: ignore[misc]  # a default binds it
        assert len(found) <= MOST + 2


def test_a_reserve_passes_few_functions(queue: Queue) -> None:
    """A reserve that finds one job."""
    queue.enqueue(b"body")
    found = passed(queue.reserve)
    print(f"reserve: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST


def test_an_ack_passes_few_functions(queue: Queue) -> None:
    """An ack by the job object."""
    queue.enqueue(b"body")
    job: Job
    [job] = queue.reserve()
    found = passed(job.ack)
    print(f"ack: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST


def test_an_ack_of_a_list_passes_few_functions(queue: Queue) -> None:
    """Of one job. A list of jobs is checked, and there is an outcome for each: 4 functions more."""
    queue.enqueue(b"body")
    jobs = queue.reserve()
    found = passed(lambda: queue.ack(jobs))
    print(f"ack of a list: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= MOST + 4


@pytest.fixture
def parted() -> Iterator[Queue]:
    """A queue with four partitions, each of which has given jobs and has some."""
    with Penstock(fakeredis.FakeRedis(server=fakeredis.FakeServer())) as client:
        queue = client.queue("parted", partitions=4)
        for _ in range(24):  # they go round
            queue.enqueue(b"x")
        for job in [job for _ in range(8) for job in queue.reserve()]:
            job.ack()
        queue.route.node.taking_until = queue.route.topology.look_at = math.inf
        yield queue


@pytest.mark.parametrize("call, most", [("enqueue", 16), ("reserve", 31), ("ack", 14)])
def test_calls_of_a_queue_with_partitions(parted: Queue, call: str, most: int) -> None:
    """A call goes to the part that it needs at once."""
    [job] = parted.reserve()
    calls = {"enqueue": lambda: parted.enqueue(b"body"), "reserve": parted.reserve, "ack": job.ack}
    found = passed(calls[call])
    print(f"{call}: {len(found)}", *found, sep="\n  ")  # noqa: T201  # same
    assert len(found) <= most
