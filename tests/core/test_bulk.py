"""Options of an enqueue, and the division of bodies into chunks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import AsyncQueue, BadArgument, Dedup, Durable, Handlers, Queue, RetryPolicy
from penstock.core.enqueuing.chunks import CHUNK_BYTES, chunks, windows
from penstock.core.enqueuing.new_jobs import JobOptions, NewJob
from penstock.core.enqueuing.next_jobs import NextJobs
from penstock.core.enqueuing.options import (
    COMPUTED,
    OPTIONS,
    UNSHARED_OPTIONS,
    EnqueueManyOptions,
    EnqueueOptions,
)
from penstock.core.enqueuing.prepared import CHECKED_SETS, _shared, prepared
from penstock.core.values import stable
from penstock.core.values.confirmations import Wait
from penstock.core.values.durable import ack_wait, delivery_wait
from penstock.worker import Handler


@pytest.mark.parametrize("types", [EnqueueOptions, EnqueueManyOptions])
def test_each_option_has_a_type(types: type) -> None:
    """The table and the types of the options have the same names."""
    assert set(types.__annotations__) == set(OPTIONS)
    assert set(COMPUTED) < set(OPTIONS)


@pytest.mark.parametrize(
    "call, types",
    [
        (Queue.enqueue, EnqueueOptions),
        (AsyncQueue.enqueue, EnqueueOptions),
        (Queue.enqueue_many, EnqueueManyOptions),
        (AsyncQueue.enqueue_many, EnqueueManyOptions),
        (Handler.options, EnqueueOptions),
    ],
)
def test_a_signature_shows_each_option(call: Callable[..., Any], types: type) -> None:
    """With its type and its default, in the order of the table."""
    shown = inspect.signature(call).parameters.values()
    options = [one for one in shown if one.kind is one.KEYWORD_ONLY]
    assert [one.name for one in options] == list(OPTIONS)
    for one in options:
        assert one.default == OPTIONS[one.name].default
        assert one.annotation == types.__annotations__[one.name].__forward_arg__
    assert not any(one.kind is one.VAR_KEYWORD for one in shown)


def test_a_docstring_describes_each_option() -> None:
    """In the order of the table."""
    text = inspect.getdoc(Queue.enqueue) or ""
    described = re.findall(r"^    (\w+): ", text.partition("Returns:")[0], re.MULTILINE)
    assert described == ["body", *OPTIONS]


def test_an_unknown_option() -> None:
    """The error names it, the nearest option, and all options."""
    with pytest.raises(
        BadArgument, match=r"^dely=5: no such option \(did you mean 'delay'\?"
    ) as caught:
        prepared(dely=5)
    assert all(name in str(caught.value) for name in OPTIONS)
    with pytest.raises(BadArgument, match=r"^x=5: no such option: the options are delay, at, "):
        prepared(x=5)
    for name in ("many", "codec"):  # arguments of `prepared`, not of an enqueue
        with pytest.raises(BadArgument, match=f"^{name}=True: no such option"):
            prepared(**{name: True})
    with pytest.raises(BadArgument, match="did you mean 'priority'"):
        JobOptions({}).updated({"prio": 5})


SHARED: dict[str, Any] = {
    "lease": 60, "ttl": 120, "max_length": 7, "block": 5, "replicas": 0, "durable": Durable(0),
    "retry": RetryPolicy(3), "result_ttl": 5, "priority": 1, "on_dead": "told",
}  # fmt: skip
"""A value of each option that many jobs share."""


@pytest.mark.parametrize("name", SHARED)
def test_options_that_jobs_share_are_checked_once(name: str) -> None:
    """The second call with an equal value gets the same object."""
    assert set(SHARED) == set(OPTIONS) - UNSHARED_OPTIONS
    assert prepared(**{name: SHARED[name]}) is prepared(**{name: SHARED[name]})


@pytest.mark.parametrize(
    "name, value",
    [("priority", True), ("lease", True), ("max_length", True), ("priority", 1.0), ("block", True)],
)
def test_an_equal_value_of_another_type_is_still_refused(name: str, value: Any) -> None:
    """True equals 1, which was accepted before."""
    prepared(**{name: 1})
    with pytest.raises(BadArgument) as caught:
        prepared(**{name: value})
    assert caught.value.argument == name


def test_options_of_a_single_job_do_not_fill_the_cache() -> None:
    """Options that differ from job to job are kept nowhere; and what is kept is bounded."""
    prepared(ttl=3600)
    before = _shared.cache_info()
    for i in range(20):
        prepared(ttl=3600, delay=i, key=f"k{i}", headers={"trace": str(i)})
        prepared(ttl=3600, at=i, dedup=Dedup(f"d{i}"))
        prepared(ttl=3600, dedup_id=f"d{i}")
    after = _shared.cache_info()
    assert after.misses - before.misses <= 1  # with a dedup id
    assert after.maxsize == CHECKED_SETS


VALUES = SHARED | {
    "delay": 1, "at": 5, "headers": {"a": "b"}, "dedup_id": "a", "dedup": Dedup("a"), "key": "k",
}  # fmt: skip
"""A value of each option."""


@pytest.mark.parametrize("name", OPTIONS)
def test_the_table_names_the_field_of_an_option(name: str) -> None:
    """A letter is that of a field of the record; a word is an attribute of the checked options."""
    made, field = prepared(**{name: VALUES[name]}), OPTIONS[name].field
    if len(field) == 1:
        assert re.fullmatch(rf"1;{field}[=.][^;]*", made.head.decode())
    else:
        assert made.head == prepared().head
        assert getattr(made, field) != getattr(prepared(), field)


def test_options_of_plain_jobs() -> None:
    """Headers, a key, a lease and a time of keeping go the short way, and a 0 that means none. A
    job that waits for no confirmation does not: there the queue's setting counts.
    """
    plain = {name for name, value in VALUES.items() if prepared(**{name: value}).fits_lane}
    assert plain == {"headers", "key", "lease", "result_ttl"}
    assert prepared(delay=0, block=0, priority=0).fits_lane
    assert not prepared(lease=0).fits_lane
    assert not prepared(block=None).fits_lane
    assert not prepared(priority=5, key="k").fits_lane


def test_headers_are_copied() -> None:
    """The caller's dict may change after the call."""
    headers = {"a": "1"}
    first = prepared(headers=headers)
    headers["a"] = "2"
    assert first.head == b"1;h.a=1"
    assert prepared(headers=headers).head == b"1;h.a=2"


def test_a_value_without_a_hash_is_refused_as_any_other() -> None:
    """A list can't be looked up among the checked options."""
    for name in ("lease", "retry", "durable", "priority", "max_length"):
        with pytest.raises(BadArgument) as caught:
            prepared(**{name: []})
        assert caught.value.argument == name


def test_a_priority_of_0_is_stored_only_with_a_dedup_id() -> None:
    """It replaces that of an existing job. The two forms have the same shared options."""
    assert prepared(priority=0).head == b"1"
    assert prepared(priority=0, dedup_id="a").head == b"1;p=,,,0;d=a"
    assert prepared(priority=0).head == b"1"


@pytest.mark.parametrize("options", [{"key": lambda body: body["to"]}, {"dedup_id": str}])
def test_a_key_of_jobs_of_a_handler_is_computed_from_their_bodies(options: Any) -> None:
    """Not from the JSON that other jobs of a handler are encoded to at once."""

    def welcome(to: str) -> None: ...

    handler = Handlers().handler(welcome)
    jobs = handler.jobs(["ada"])
    made = jobs.options.joined(prepared(None, True, **options))
    ((records, _),) = chunks(jobs, made)
    one = made.record({"to": "ada"})
    assert records[0].partition(b";i=")[0] == one.partition(b";i=")[0]
    assert b";c=json" in records[0]


def test_a_record_is_built_in_one_form() -> None:
    """Only `RECORD` says where the stable id stands."""
    found = [
        path
        for path in Path(penstock.__file__).parent.rglob("*.py")
        if ";i=%b" in path.read_text(encoding="utf-8")
    ]
    assert [path.name for path in found] == ["record.py"]


def test_a_prepared_enqueue_without_options() -> None:
    """Without options the record is the shortest one, due at once and without a ttl."""
    usual = prepared()
    assert (usual.head, usual.coded_head) == (b"1", b"1;c=json")
    assert (usual.delay, usual.bound, usual.block, usual.ttl_code) == (b"0", b"", 0, "ffff")
    assert prepared(delay=0.0, headers={}) == usual


def test_a_prepared_enqueue_with_all_options() -> None:
    """Each option is at its place in the record and the call."""
    made = prepared(delay=1.5, lease=60, ttl=120, headers={"a": "b"}, max_length=7, block=2.5)
    assert made.head == b"1;l=60000;t=120000;h.a=b"
    assert (made.delay, made.bound, made.block, made.ttl_code) == (b"1500", b"7", 2.5, "0003")


def test_replicas_that_are_waited_for() -> None:
    """A call waits for the given replicas or those of the queue's setting; with
    lease 0 for none.
    """
    assert prepared().wait == Wait(None, 1000)
    assert prepared(delay=1).wait == Wait(None, 1000)
    assert prepared(durable=Durable(2, timeout=0.5)).wait == Wait(2, 500)
    assert prepared(durable=Durable(timeout=3)).wait == Wait(None, 3000)
    assert prepared(replicas=0).wait is None
    assert prepared(lease=0).wait is None


def test_the_disk_is_waited_for_longer() -> None:
    """A file is synced every second, so the disk needs a longer wait; lease 0 waits
    for no replica.
    """
    assert prepared(durable=Durable(fsynced=True)).wait == Wait(None, 5000, fsynced=True)
    assert prepared(durable=Durable(2, fsynced=True, timeout=0.5)).wait == Wait(
        2, 500, fsynced=True
    )
    assert prepared(durable=Durable(fsynced=True), lease=0).wait == Wait(0, 5000, fsynced=True)
    assert prepared(durable=Durable(0, fsynced=True)).wait == Wait(0, 5000, fsynced=True)


def test_an_ack_waits_only_for_its_own_replicas() -> None:
    """An ack waits only for the replicas of its own call, not for those of the queue's setting."""
    assert ack_wait(0, Durable(timeout=1)) is None
    assert ack_wait(0, None) is None
    assert ack_wait(2, None) == ack_wait(0, Durable(2)) == Wait(2, 1000, 2, refuses=False)
    assert ack_wait(0, Durable(fsynced=True)) == Wait(0, 5000, 0, fsynced=True, refuses=False)


def test_at_is_sent_unchanged() -> None:
    """`at` is sent as given; the server computes the delay."""
    assert prepared(at=1_700_000_000).delay == b"@1700000000000"


def test_at_most_once_has_an_end() -> None:
    """With lease 0 the ttl is a day unless given."""
    assert prepared(lease=0).head == b"1;l=0;t=86400000"
    assert prepared(lease=0).ttl_code == "05a0"
    assert prepared(lease=0, ttl=60).head == b"1;l=0;t=60000"


@pytest.mark.parametrize(
    "changed, argument",
    [
        ({"delay": -1}, "delay"),
        ({"delay": False}, "delay"),
        ({"block": False}, "block"),
        ({"block": -1}, "block"),
        ({"at": 5, "delay": 1}, "at"),
        ({"ttl": 0}, "ttl"),
        ({"ttl": 5, "delay": 5}, "ttl"),
        ({"lease": 86_400 * 25}, "lease"),
        ({"headers": [("a", "b")]}, "headers"),
        ({"headers": {"a": 1}}, "headers"),
        ({"max_length": 0}, "max_length"),
        ({"replicas": -1}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"replicas": 1001}, "replicas"),
        ({"replicas": 1, "lease": 0}, "replicas"),
        ({"replicas": 1, "durable": Durable()}, "replicas"),
        ({"durable": Durable(1), "lease": 0}, "replicas"),
        ({"durable": 1}, "durable"),
        ({"dedup_id": "a", "dedup": Dedup("a")}, "dedup_id"),
        ({"dedup": Dedup(str)}, "dedup"),
    ],
)
def test_invalid_options(changed: dict[str, Any], argument: str) -> None:
    """An invalid option is refused with the name of its argument."""
    with pytest.raises(BadArgument) as caught:
        prepared(**changed)
    assert caught.value.argument == argument


@pytest.mark.parametrize(
    "options, argument",
    [
        ({"replicas": -1}, "replicas"),
        ({"replicas": True}, "replicas"),
        ({"fsynced": 1}, "fsynced"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": 3601}, "timeout"),
    ],
)
def test_an_invalid_durable(options: dict[str, Any], argument: str) -> None:
    """An invalid `Durable` is refused when it is constructed; the error names the argument."""
    with pytest.raises(BadArgument) as caught:
        Durable(**options)
    assert caught.value.argument == argument


def test_an_invalid_durable_of_an_ack() -> None:
    """Both forms together, or a value that is not a Durable, are refused."""
    for replicas, durable in ((1, Durable(1)), (0, 1), (True, None), (None, None)):
        with pytest.raises(BadArgument):
            ack_wait(replicas, durable)  # type: ignore[arg-type]


def test_a_head_of_many_ids_is_written_once() -> None:
    """The head is encoded once, and each body's id inserted; a long id counts for the bound."""
    made = prepared(None, True, ttl=60, headers={"a": "b"}, dedup=Dedup(str, window=5))
    assert made.record(7).startswith(b"1;t=60000;d=7;w=5000;c=json;h.a=b;i=")
    assert made.record(b";d").startswith(b"1;t=60000;d=b'%3Bd';w=5000;h.a=b;i=")
    large = prepared(None, True, headers={"a": "b" * 15_000}, dedup=Dedup(str))
    assert large.record(7)
    with pytest.raises(BadArgument, match=r"^headers=.*with the dedup id, must be at most 16284"):
        large.record(";" * 1000)


def test_chunks_of_a_thousand() -> None:
    """Chunks have a thousand bodies, the last one may have fewer, and none is empty."""
    assert [len(chunk) for chunk, _ in chunks(range(2001), prepared())] == [1000, 1000, 1]
    assert [len(chunk) for chunk, _ in chunks(range(1000), prepared())] == [1000]
    assert list(chunks([], prepared())) == []


@pytest.fixture
def fixed_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return stable ids of one length."""
    monkeypatch.setattr("penstock.core.values.stable.next_id", lambda: b"0123456789ab")


@pytest.mark.usefixtures("fixed_ids")
def test_chunks_with_a_ttl_are_half_as_long() -> None:
    """A chunk with a ttl has half the jobs, as each costs the server twice as much."""
    assert [len(chunk) for chunk, _ in chunks(range(1001), prepared(ttl=60))] == [500, 500, 1]


DIFFERENT: list[dict[str, Any]] = [
    {"durable": Durable(1)},
    {"durable": Durable(2)},
    {"durable": Durable(2, timeout=3)},
    {"durable": Durable(2, fsynced=True)},
    {"lease": 0},
    {"ttl": 60},
    {"delay": 1},
    {"delay": 2},
    {"max_length": 9},
    {"block": 1},
]


def test_jobs_whose_calls_differ_share_no_chunk() -> None:
    """An option of the call, such as `durable`, is never that of a neighbour."""
    jobs = [NewJob(b"x", JobOptions(given)) for given in DIFFERENT for _ in range(2)]
    cut = list(chunks(jobs, prepared()))
    assert [len(records) for records, _ in cut] == [2] * len(DIFFERENT)
    assert [options for _, options in cut] == [prepared(**given) for given in DIFFERENT]
    keyed = [NewJob(b"x", JobOptions({"key": "k", **given})) for given in DIFFERENT]
    sent = list(windows(keyed, prepared(), 2))
    assert [window.options.wait for window in sent] == [options.wait for _, options in cut]


@pytest.mark.usefixtures("fixed_ids")
@pytest.mark.parametrize("ttl, most", [(None, 1000), (60, 500)])
def test_windows_have_chunks_of_the_same_length(ttl: Any, most: int) -> None:
    """The jobs of a partition are sent in chunks as long as those of a queue without partitions."""
    found = windows([b"x"] * 2200, prepared(key="k", ttl=ttl), 4)
    lengths = [len(chunk) for window in found for chunk in window.chunks.values()]
    assert (max(lengths), sum(lengths)) == (most, 2200)


@pytest.mark.parametrize("wait", [partial(ack_wait, 0), delivery_wait])
def test_confirmations_of_another_type(wait: Callable[..., Any]) -> None:
    """The number of replicas alone is none."""
    assert wait(None) is None
    for durable in (1, True, "1"):
        with pytest.raises(BadArgument, match="durable"):
            wait(durable)


def test_jobs_that_follow_are_equal_by_what_they_say() -> None:
    """Two descriptions of the same jobs are equal, also with a body that has no hash."""

    def described(**options: Any) -> NextJobs:
        return NextJobs((NewJob(["x"], JobOptions(options), "q"),), ((0, b"1\nx"),))

    assert described(delay=1) == described(delay=1)
    assert hash(described(delay=1)) == hash(described(delay=1))
    assert described(delay=1) != described(delay=2)
    assert described() != NextJobs(described().jobs)
    assert described() != described().jobs


@pytest.mark.usefixtures("fixed_ids")
@pytest.mark.parametrize("key", [None, "k", lambda body: f"k{body}"])
def test_windows_have_the_records_of_chunks(key: Any) -> None:
    """A key that fixes the partition is not the dedup id."""
    options = prepared(None, True, key=key, dedup_id=lambda body: f"d{body}")
    [window] = windows([1, 2], options, 1)
    [(records, _)] = chunks([1, 2], options)
    assert [record for chunk in window.chunks.values() for record in chunk] == [*records]


def test_chunks_of_a_mebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are bounded by a mebibyte with heads; a larger body has a chunk of its own."""
    monkeypatch.setattr(stable, "next_id", stable.ids().__next__)  # of 12 characters
    half, head = CHUNK_BYTES // 2, len(b"1;i=0123456789ab\n")
    sizes = [half - head, half - head, 1, CHUNK_BYTES + 5, 3, half, half]
    made = chunks(map(bytes, sizes), prepared())
    cut = [[len(record) - head for record in chunk] for chunk, _ in made]
    assert cut == [[half - head, half - head], [1], [CHUNK_BYTES + 5], [3, half], [half]]


def test_bodies_are_read_chunk_by_chunk() -> None:
    """Bodies are read only as far as the requested chunk."""
    read = []

    def bodies() -> Iterator[int]:
        for number in range(2500):
            read.append(number)
            yield number

    made = chunks(bodies(), prepared())
    next(made)
    assert len(read) == 1000
    next(made)
    assert len(read) == 2000


@pytest.mark.usefixtures("fixed_ids")
def test_each_body_has_its_codec() -> None:
    """Each body has its own codec, so bytes and JSON may be mixed."""
    ((records, _),) = chunks([b"x", "x", bytearray(b"y"), None], prepared(headers={"a": "b"}))
    assert records == [
        b"1;h.a=b;i=0123456789ab\nx",
        b'1;c=json;h.a=b;i=0123456789ab\n"x"',
        b"1;h.a=b;i=0123456789ab\ny",
        b"1;c=json;h.a=b;i=0123456789ab\nnull",
    ]


@pytest.mark.parametrize("bodies", ["abc", b"abc", {"a": 1}, 5, None, memoryview(b"x")])
def test_a_single_body_is_refused(bodies: Any) -> None:
    """A single body passed as a list of bodies is refused."""
    with pytest.raises(BadArgument, match="bodies="):
        list(chunks(bodies, prepared()))
