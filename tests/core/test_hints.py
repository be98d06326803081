"""Hints: calls that another node keeps; their format and their delivery."""

from __future__ import annotations

import pytest

from penstock.core.calls.operations import QueueOps
from penstock.core.jobs import hints
from penstock.core.jobs.hints import Hint, Intent
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation, set_result
from penstock.core.values.ids import encode_id, ttl_code
from penstock.wire.keys import QueueKeys

NOW = 1_763_700_000_000
NUMBER = b"1763700000123-1000000000"
PLACE = QueueIdentity("two words", "e6a1c3f0", 5, "1f2e3d4c")


def delivery(record: bytes = b"1\nbody") -> Delivery:
    """Return a job that was just delivered."""
    reservation = Reservation(None, PLACE, "me", tag=0xABC, now=NOW, lease_ms=30_000)
    return Delivery(reservation, NUMBER, b"", record)


def kept(name: Delivery | str, intent: Intent) -> Hint:
    """Return the hint for a job."""
    found = hints.hint_of(name, "e6a1c3f0", "two words", intent, NOW)
    assert found is not None
    return found


def test_the_form_of_a_hint() -> None:
    """The field of a hint has the job, and its value the expiry and the arguments."""
    hint = kept(delivery(), Intent("ack", 5000))
    assert hint.field == "e6a1c3f0 ack 1f2e3d4c 1763700000123-1000000000 1-abc two words"
    assert hint.value == f"{NOW + 0xFFFF * 60_000} 5000 "
    buried = kept(delivery(b"1;t=60000\n"), Intent("bury", reason="no good\n"))
    assert buried.value == f"{1763700000123 + 60_000 + hints.MAX_CLOCK_SKEW_MS} - no good\n"
    job_id = encode_id("e6a1c3f0", PLACE.packed, NUMBER, ttl_code(60_000))
    by_id = kept(job_id, Intent("delete"))
    assert by_id.field == "e6a1c3f0 delete 1f2e3d4c 1763700000123-1000000000 - two words"
    assert by_id.value == f"{1763700000123 + 60_000 + hints.MAX_CLOCK_SKEW_MS} - "
    for one in (hint, buried, by_id):
        assert hints.read_hint(one.field, one.value) == one


@pytest.mark.parametrize(
    "result, reason",
    [
        ((b'{"sum":3}', ""), "3600000 1 0 !hint"),
        ((b"", "large"), "3600000 1 0 !large"),
        ((b"null", ""), ""),
        (None, ""),
    ],
    ids=["value", "too large", "None", "no handler"],
)
def test_a_hint_tells_that_a_value_is_lost(result: tuple[bytes, str] | None, reason: str) -> None:
    """So the job does not look as if its handler had returned None."""
    job = delivery(b"1;k=3600000\n")
    if result is not None:
        set_result(job, result)
    hint = kept(job, Intent("ack"))
    assert hint.reason == reason
    assert hints.read_hint(hint.field, hint.value) == hint
    ops, place = QueueOps(QueueKeys("q", "penstock"), "me", ()), (hint.number, hint.receipt)
    call = ops.hinted("ack", hint.epoch, hint.window, hint.reason, place)
    proof, results = ("*\n3600000", [reason[8:]]) if reason else ("*", [])
    assert call.args == (hint.epoch, proof, "", *place, *results)


@pytest.mark.parametrize(
    "reason, sizes", [("", [1000, 200]), ("60000 1 0 !hint", [600, 600])], ids=["", "results"]
)
def test_a_call_with_results_names_no_job_twice(reason: str, sizes: list[int]) -> None:
    """Two deliveries of one job may have been acknowledged. Jobs of any receipts share a call."""
    both = [
        Hint(
            "e6a1c3f0", "ack", "01020304", str(number), f"{count}-{number:03x}", "q", 5, "-", reason
        )
        for number in range(600)
        for count in (1, 2)
    ]
    batches = hints.together(both)
    assert [len(part) for part in batches] == sizes
    assert sorted(hint for part in batches for hint in part) == sorted(both)
    assert not reason or all(len({hint.number for hint in part}) == len(part) for part in batches)


@pytest.mark.parametrize("record", [b"1;l=0;t=60000\n", b"1;t=1\n"])
def test_jobs_without_hints(record: bytes) -> None:
    """No hint is made for jobs with lease 0 or past their ttl."""
    when = NOW + 200 + hints.MAX_CLOCK_SKEW_MS
    assert hints.hint_of(delivery(record), "e6a1c3f0", "q", Intent("ack"), when) is None
    once = encode_id("e6a1c3f0", PLACE.packed, NUMBER, ttl_code(None, at_most_once=True))
    assert hints.hint_of(once, "e6a1c3f0", "q", Intent("ack"), when) is None


@pytest.mark.parametrize(
    "field, value",
    [
        ("", ""),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc", "5 - "),
        ("e6a1c3f0 fly 1f2e3d4c 1800000000000-1000000000 1-abc q", "5 - "),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc q", "5 -"),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc q", "x - "),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc q", "5 x "),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000 1-abc q", "5 - "),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc ", "5 - "),
        ("e6a1c3f0 ack 1f2e3d4c 1800000000000-1000000000 1-abc q\0/300-aaa", "5 - "),
    ],
)
def test_unparsable_hints(field: str, value: str) -> None:
    """A hint that cannot be parsed is left in place, as a newer version may have written it."""
    assert hints.read_hint(field, value) is None
    good = kept(delivery(), Intent("ack"))
    flat = [field.encode(), value.encode(), good.field.encode(), good.value.encode()]
    assert hints.read_hints(flat) == ([good], [field.encode()])


def test_hints_are_delivered_together() -> None:
    """Calls of one kind for one epoch of a queue are delivered together, up to a thousand."""
    many = [
        Hint("e6a1c3f0", kind, epoch, str(number), "", queue, 5, "-", "")
        for number in range(600)
        for kind, epoch, queue in (("ack", "01020304", "q"), ("ack", "01020304", "p"))
        for _ in range(2)
    ]
    batches = hints.together([*many, many[0]._replace(kind="bury"), many[0]._replace(window="5")])
    sizes = [(part[0].queue, part[0].kind, part[0].window, len(part)) for part in batches]
    assert sorted(sizes) == [
        ("p", "ack", "-", 200), ("p", "ack", "-", 1000),
        ("q", "ack", "-", 200), ("q", "ack", "-", 1000),
        ("q", "ack", "5", 1), ("q", "bury", "-", 1),
    ]  # fmt: skip
