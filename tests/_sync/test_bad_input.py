# From tests/_async/test_bad_input.py by tools/unasync.py; do not edit.
"""Unusable arguments: the typed error names argument and value, and no key changes."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from penstock import (
    BadArgument,
    BadJobId,
    ConfigurationError,
    Durable,
    JobGone,
    Outcome,
    Penstock,
    PenstockError,
    Queue,
    WrongEpoch,
    WrongNode,
    WrongQueue,
)
from tests.support.backends import Backend
from tests.support.keyspace import Raw, dump
from tests.support.twins import WRONG_CLIENTS

NOT_DURATIONS = [-1, -0.001, math.nan, math.inf, -math.inf, True, False, "5", b"5", 10**400,
                 1e308, timedelta(seconds=-1), timedelta.max, 5j, [5]]  # fmt: skip
NOT_COUNTS = [0, -1, 1.0, True, "5", math.nan, None, 10**30]
CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(200_000):
    DEEP = [DEEP]
NOT_BODIES = [{1, 2}, object(), math.nan, {"a": [math.inf]}, CYCLE, DEEP, "\ud800", {"\udfff": 1},
              1 + 2j, timedelta(1), lambda: None, {(1, 2): 3}]  # fmt: skip
NOT_HEADERS = [
    {"a": 1}, {1: "a"}, {"a": None}, {"": "a"}, {"a": "\ud800"}, {"a": b"b"}, [("a", "b")], "a=b",
]  # fmt: skip
NOT_IDS = [
    "", "x", None, 5, b"D-", object(), "D-" + "0" * 38, "d" * 40,
    "D-00000000-000000000000000000000000-ffff",
    "D-GGGGGGGG--00000000000000000000000-ffff",
    "D-00000000--0000000000000000000000ü-ffff",
    "D-00000000--00000000000000000000000-FFFF",
    "D-00000000--0000000000000000000000+-ffff",
    "D-00000000--00000000000000000000000-ffff\n",
]  # fmt: skip


def refused(
    raw: Raw, argument: str, value: object, call: Callable[[], Any], kind: type = BadArgument
) -> None:
    """The call raises, names argument and value, and leaves every key as it was."""
    before = dump(raw)
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, BadArgument)
    assert isinstance(error, PenstockError)
    assert isinstance(error, ValueError)
    assert error.argument == argument
    assert str(error).startswith(f"{argument}={repr(value)[:60]}"), str(error)
    assert len(str(error)) < 400
    assert dump(raw) == before


@pytest.mark.parametrize("argument", ["delay", "ttl", "lease", "block"])
def test_durations_of_an_enqueue(q: Queue, raw: Raw, argument: str) -> None:
    """A duration is refused if it is negative, NaN, infinite, a bool, not a number or too large."""
    q.enqueue(1)
    for value in NOT_DURATIONS:
        options: dict[str, Any] = {argument: value}
        refused(raw, argument, value, partial(q.enqueue, 1, **options))
        refused(raw, argument, value, partial(q.enqueue_many, [1], **options))


def test_durations_of_other_calls(ps: Penstock, q: Queue, raw: Raw) -> None:
    """`block`, `delay` and `lease` are checked in every call that takes them."""
    q.enqueue_many([1, 2])
    (job,) = q.reserve(block=0)
    for value in NOT_DURATIONS:
        calls: list[tuple[str, Callable[[Any], Any]]] = [
            ("block", lambda v: q.reserve(block=v)),
            ("block", lambda v: ps.reserve(["q"], block=v)),
            ("block", lambda v: q.ack_and_reserve([job], 1, block=v)),
            ("delay", lambda v: job.nack(delay=v)),
            ("delay", lambda v: q.nack([job], delay=v)),
            ("delay", lambda v: job.release(delay=v)),
            ("lease", job.extend),
            ("lease", lambda v: q.configure(lease=v)),
            ("backoff_base", lambda v: q.configure(backoff_base=v)),
            ("backoff_cap", lambda v: q.configure(backoff_cap=v)),
            ("dead_age", lambda v: q.configure(dead_age=v)),
        ]
        for argument, call in calls:
            refused(raw, argument, value, partial(call, value))


def test_durations_that_cannot_be_zero(q: Queue, raw: Raw) -> None:
    """A ttl, an extension and the durations among the settings must be above zero."""
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    refused(raw, "ttl", 0, lambda: q.enqueue(1, ttl=0))
    refused(raw, "lease", 0, lambda: job.extend(0))
    refused(raw, "lease", 0, lambda: q.configure(lease=0))
    refused(raw, "backoff_base", 0, lambda: q.configure(backoff_base=0))
    refused(raw, "dead_age", 0, lambda: q.configure(dead_age=0))


def test_leases_beyond_24_days(q: Queue, raw: Raw) -> None:
    """A lease above 24 days is refused by every call that takes one."""
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    for value in (24 * 86_400 + 0.001, timedelta(days=25)):
        refused(raw, "lease", value, partial(q.enqueue, 1, lease=value))
        refused(raw, "lease", value, partial(job.extend, value))
        refused(raw, "lease", value, partial(q.configure, lease=value))


def test_moments(q: Queue, raw: Raw) -> None:
    """`at` is refused without a zone, before 1970, after 2109, not a datetime, or together with a
    delay.
    """
    q.enqueue(1)
    naive = datetime(2100, 1, 1)  # noqa: DTZ001  # that is the point
    for value in (naive, math.nan, math.inf, "now", -1, 5e9, True, 10**400, timedelta(1)):
        refused(raw, "at", value, partial(q.enqueue, 1, at=value))
    refused(raw, "at", 5, lambda: q.enqueue(1, at=5, delay=5))


@pytest.mark.parametrize("place", range(len(NOT_BODIES)))
def test_bodies_that_json_cannot_express(q: Queue, raw: Raw, place: int) -> None:
    """JSON cannot express sets, objects, NaN, cycles, lone surrogates or keys that are not text."""
    q.enqueue(1)
    body = NOT_BODIES[place]
    before = dump(raw)
    for call in (lambda: q.enqueue(body), lambda: q.enqueue_many([1, body])):
        with pytest.raises(BadArgument, match="body=") as caught:
            call()
        assert caught.value.argument == "body"
        assert len(str(caught.value)) < 600
    assert dump(raw) == before


def test_headers(q: Queue, raw: Raw) -> None:
    """Names and values of headers are valid text, and a name is not empty."""
    q.enqueue(1)
    for value in NOT_HEADERS:
        call: Any = value
        refused(raw, "headers", value, partial(q.enqueue, 1, headers=call))


def test_counts(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A count is a whole number between 1 and the maximum of the call."""
    q.enqueue_many([1, 2])
    (job,) = q.reserve(block=0)
    for value in NOT_COUNTS:
        calls: list[tuple[str, Callable[[Any], Any]]] = [
            ("n", lambda v: q.reserve(v, block=0)),
            ("n", lambda v: ps.reserve(["q"], v, block=0)),
            ("n", lambda v: q.ack_and_reserve([job], v)),
            ("n", q.peek),
            ("n", lambda v: q.recover(v, idle=1)),
            ("n", lambda v: q.jobs(n=v).page()),
            ("n", lambda v: ps.scan_queues(n=v)),
        ]
        if value is not None:
            calls += [
                ("max_length", lambda v: q.enqueue(1, max_length=v)),
                ("limit", lambda v: q.redrive(limit=v)),
                ("max_length", lambda v: q.configure(max_length=v)),
            ]
        for argument, call in calls:
            refused(raw, argument, value, partial(call, value))
    refused(raw, "n", 1001, lambda: q.ack_and_reserve([job], 1001))
    refused(raw, "n", 1001, lambda: q.peek(1001))
    refused(raw, "start", -1, lambda: q.peek(start=-1, newest=True))
    for start in (-1001, 1001, 0.5, None):
        whence: Any = start
        refused(raw, "start", start, partial(q.peek, start=whence))
    for many in (-1, 1001, "1"):
        count: Any = many
        refused(raw, "replicas", many, partial(q.enqueue, 1, replicas=count))
    refused(raw, "replicas", 1, lambda: q.enqueue(1, replicas=1, lease=0))
    for span in (0, -1, True, "1", 3601):
        wait: Any = span
        refused(raw, "timeout", span, lambda w=wait: q.enqueue(1, durable=Durable(timeout=w)))
    for idle in (-1, "1", None, True):
        silent: Any = idle
        refused(raw, "idle", idle, partial(q.recover, idle=silent))


def test_bounds_of_counts_and_limits(q: Queue, raw: Raw) -> None:
    """A count is at most 1000 for one call; a limit may be 0."""
    q.enqueue(1)
    for count in (-1, 1001, True, None, "5"):
        evict: Any = count
        refused(raw, "evict", count, partial(q.sweep, evict=evict))
    for call in (lambda n: q.jobs(n=n).page(), lambda n: q.recover(n, idle=1)):
        refused(raw, "n", 1001, partial(call, n=1001))
    for limit in ("max_attempts", "max_crashes", "max_releases", "replicas", "dead_max"):
        for wrong in (-1, "5", 1.5, True):
            refused(raw, limit, wrong, partial(q.configure, **{limit: wrong}))


def test_where_a_scan_continues(ps: Penstock, q: Queue, raw: Raw) -> None:
    """A scan takes the cursor "0" or one from a page; its bounds are whole numbers
    and durations.
    """
    q.enqueue(1)
    for value in ("", "1", "r", "h", "r5", "h-1", "R1-1000000000", "0 ", 0, None, b"0"):
        cursor: Any = value
        refused(raw, "cursor", value, partial(q.jobs().page, cursor))
    for value in ("", "x", "-1", "h0", "1 ", "\u0664", 0, None):
        cursor = value
        refused(raw, "cursor", value, partial(ps.scan_queues, cursor))
    for value in ((), "once", ["once"], [None], 5):
        states: Any = value
        refused(raw, "state", value, lambda states=states: q.jobs(states).page())
    for bound in ("min_length", "max_length", "max_idle"):
        refused(raw, bound, -1, partial(ps.scan_queues, **{bound: -1}))


def test_names_of_states_and_sides(q: Queue, raw: Raw) -> None:
    """Unknown states and sides are refused."""
    q.enqueue(1)
    for value in ("Ready", "once", "done", "", None, 5, ["ready"]):
        name: Any = value
        refused(raw, "state", value, partial(q.peek, state=name))
        refused(raw, "states", value, partial(q.purge, "ready", name))
    for value in ("In", "both", "", None, 5, ["in"]):
        side: Any = value
        refused(raw, "side", value, partial(q.pause, side))


def test_texts(q: Queue, raw: Raw) -> None:
    """An error and a reason must be str."""
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    for value in (None, 5, b"bytes", ValueError("x")):
        text: Any = value
        refused(raw, "error", value, partial(job.nack, error=text))
        refused(raw, "reason", value, partial(job.bury, text))


@pytest.mark.parametrize("name", ["", None, 5, b"q", "a\0b", "q" * 1025, "ü" * 513, "\ud800", []])
def test_queue_names(ps: Penstock, raw: Raw, name: Any) -> None:
    """A queue name is refused if it is empty, not a str, longer than 1024 bytes, or has a NUL."""

    def make() -> Queue:
        return ps.queue(name)

    refused(raw, "queue", name, make)
    if isinstance(name, str):
        refused(raw, "queue", name, lambda: ps.reserve([name], block=0))


def test_lists_of_queues(ps: Penstock, raw: Raw) -> None:
    """A list of queues has at least one name and no duplicates; a bare str is refused."""
    ps.queue("q").enqueue(1)
    before = dump(raw)
    lists: list[Any] = [[], ["q", "q"], ["q", ps.queue("q")], "q", None, 5, [5], ["q", None]]
    for queues in lists:
        with pytest.raises(BadArgument, match="queue"):
            ps.reserve(queues, block=0)
    for queues in ("q", 5, [5], ["q", None]):
        for call in (ps.clear, _scanned(ps)):
            with pytest.raises(BadArgument, match="queue"):
                call(queues)
    assert dump(raw) == before


def _scanned(ps: Penstock) -> Callable[[Any], Any]:
    def scanned(queues: Any) -> None:
        for _ in ps.jobs(queues):
            pass

    return scanned


@pytest.mark.parametrize("value", [None, 1, "no"])
def test_flags(ps: Penstock, q: Queue, raw: Raw, value: Any) -> None:
    """An argument that is True or False takes nothing else, also no text that looks like it."""
    q.enqueue(1)
    (job,) = q.reserve(block=0)
    refused(raw, "newest", value, lambda: q.peek(newest=value))
    refused(raw, "newest", value, lambda: q.jobs("ready", newest=value).page())
    refused(raw, "full", value, lambda: q.jobs().page(full=value))
    refused(raw, "late", value, lambda: q.extend([job], late=value))
    refused(raw, "dead", value, lambda: q.sweep(dead=value))
    refused(raw, "if_undelivered", value, lambda: q.delete([job], if_undelivered=value))
    refused(raw, "jobs", value, lambda: ps.workers(jobs=value))


def test_keys_of_a_search(q: Queue, raw: Raw) -> None:
    """A search takes the keys that an enqueue takes."""
    q.enqueue(1)
    for value in ("", 5, "x" * 1025, "\ud800"):
        refused(raw, "key", value, lambda key=value: q.jobs(key=key).page())


@pytest.mark.parametrize("name", NOT_IDS, ids=range(len(NOT_IDS)))
def test_malformed_ids(q: Queue, raw: Raw, name: Any) -> None:
    """Every call that takes an id refuses a malformed one."""
    done = q.enqueue(1)
    calls: list[Callable[[], Any]] = [
        lambda: q.ack([done.id, name]),
        lambda: q.nack([name]),
        lambda: q.release([name]),
        lambda: q.bury([name]),
        lambda: q.extend([name]),
        lambda: q.delete([done.id, name]),
        lambda: q.redrive([name]),
        lambda: q.ack_and_reserve([name], 1),
        lambda: q.show(name),
    ]
    for call in calls:
        refused(raw, "id", name, call, BadJobId)


def test_lists_of_jobs(q: Queue, raw: Raw) -> None:
    """Calls for many jobs refuse a single job."""
    done = q.enqueue(1)
    (job,) = q.reserve(block=0)
    for value in (done.id, job, None, 5, b"x"):
        jobs: Any = value
        for call in (q.ack, q.nack, q.release, q.bury, q.extend, q.delete):
            refused(raw, "jobs", value, partial(call, jobs))
        refused(raw, "done", value, partial(q.ack_and_reserve, jobs, 1))
        if value is not None:
            refused(raw, "jobs", value, partial(q.redrive, jobs))
    before = dump(raw)
    with pytest.raises(BadArgument, match=r"done=.*at most 1000"):
        q.ack_and_reserve([done.id] * 1001, 1)
    assert dump(raw) == before


def test_a_bad_id_among_many(q: Queue, raw: Raw) -> None:
    """One bad id fails the whole call, also beyond the first thousand; no job changes."""
    ids = q.enqueue_many(range(1100)).ids
    before = dump(raw)
    for call in (q.ack, q.bury, q.delete):
        with pytest.raises(BadJobId):
            call([*ids, "no id"])
    assert dump(raw) == before


def test_ids_of_other_nodes_queues_and_epochs(ps: Penstock, q: Queue, raw: Raw) -> None:
    """An id of another node, queue or epoch is refused by every call, with an error of its own."""
    own = q.enqueue(1).id
    other = ps.queue("other").enqueue(1).id
    node = "00000000" if own[2:10] != "00000000" else "00000001"
    epoch = own[:31] + ("zzzz" if own[31:35] != "zzzz" else "0000") + own[35:]
    cases = [
        (own.replace(own[2:10], node), WrongNode),
        (other, WrongQueue),
        (epoch, WrongEpoch),
    ]
    before = dump(raw)
    for name, kind in cases:
        for call in (q.ack, q.nack, q.release, q.bury, q.extend, q.delete, q.redrive):
            with pytest.raises(kind):
                call([name])
        with pytest.raises(kind):
            q.show(name)
        with pytest.raises(kind):
            q.ack_and_reserve([name], 1)
    assert dump(raw) == before


def test_ids_that_were_never_assigned(q: Queue, raw: Raw) -> None:
    """A well-formed id without a job: calls for many report `gone`, and `extend` raises."""
    own = q.enqueue(1).id
    (job,) = q.reserve(block=0)
    unknown = own[:11] + "-0" + own[13:]
    before = dump(raw)
    for call in (q.ack, q.nack, q.release, q.bury, q.extend, q.delete):
        assert list(call([unknown])) == [Outcome.GONE]
    assert q.show(unknown) is None
    assert q.redrive([unknown]) == 0
    assert dump(raw) == before
    q.delete([own])
    with pytest.raises(JobGone, match=own):
        job.extend()


def test_sources_of_a_client(backend: Backend, raw: Raw) -> None:
    """A client takes a URL with a scheme that redis-py knows, or a redis-py client
    of its own kind.
    """
    for source in ("http://localhost", "localhost:6379", "", None, 5, object(), b"redis://h"):
        with pytest.raises(BadArgument, match="source=") as caught:
            Penstock(source)  # type: ignore[arg-type]  # that is the point
        assert caught.value.argument == "source"
    other = getattr(backend, WRONG_CLIENTS[Penstock.__name__])()
    with pytest.raises(BadArgument, match=r"source=.*a URL or a redis.*pass this one to \w+$"):
        Penstock(other)


def test_a_client_that_decodes(backend: Backend, raw: Raw) -> None:
    """A redis-py client with `decode_responses` is refused before the first
    command, with advice.
    """
    before = dump(raw)
    with backend.sync_client(decode_responses=True) as lent:
        with pytest.raises(ConfigurationError, match="decode_responses=True"):
            Penstock(lent)
    with pytest.raises(ConfigurationError, match="decode_responses=True"):
        Penstock("redis://localhost:1/0?decode_responses=True")
    assert dump(raw) == before


@pytest.mark.parametrize("owner", ["", "a\nb", "a\0", "x" * 201, "ü" * 101, 5, b"me", "\ud800"])
def test_owners(owner: Any) -> None:
    """An owner has at most 200 bytes of printable text."""
    with pytest.raises(BadArgument, match="owner="):
        Penstock("redis://localhost:1/0", owner=owner)


@pytest.mark.parametrize("prefix", ["", "{", "a}", "%", "a\nb", "x" * 101, None, 5, "\ud800"])
def test_prefixes(prefix: Any) -> None:
    """A prefix has 1 to 100 characters and no braces, which would break the hash
    tags of the keys.
    """
    with pytest.raises(BadArgument, match="prefix="):
        Penstock("redis://localhost:1/0", prefix=prefix)


@pytest.mark.parametrize("retry_for", [-1, math.nan, True, "5", 301, timedelta(hours=1)])
def test_times_to_retry(retry_for: Any) -> None:
    """A retry time is a duration below the lifetime of the stored replies."""
    with pytest.raises(BadArgument, match="retry_for="):
        Penstock("redis://localhost:1/0", retry_for=retry_for)


@pytest.mark.parametrize("evict", [None, 1, "yes", 100])
def test_evict_must_be_a_bool(evict: Any) -> None:
    """`evict` must be True or False."""
    with pytest.raises(BadArgument, match="evict="):
        Penstock("redis://localhost:1/0", evict=evict)
