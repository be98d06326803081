"""Results of calls: sequences of results and outcomes, deliveries, errors."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from penstock import BulkEnqueued, Outcome, Settled, errors, parse_id
from penstock.core.jobs.enqueued import JobSpan
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation, epoch_of, parse_counters
from penstock.core.jobs.merge import with_outcomes
from penstock.core.values.ids import encode_id
from penstock.pressure import PutNotReplicated

PLACE = QueueIdentity("q", "deadbeef", 0xCAFEBABE, "01020304")
NUMBER = b"1700000000000-1000000005"
DONE, GONE, STALE, DEAD, ENDED = (
    Outcome.DONE, Outcome.GONE, Outcome.STALE, Outcome.DEAD, Outcome.ENDED,
)  # fmt: skip


def delivery(counts: bytes = b"", data: bytes = b"1;l=5000;t=60000;c=json;h.a=b\n[1]") -> Delivery:
    """Return a delivery as reserve makes it."""
    reservation = Reservation(None, PLACE, "me", tag=0x0AB, now=1_700_000_002_345, lease_ms=30_000)
    return Delivery(reservation, NUMBER, counts, data)


def test_a_first_delivery() -> None:
    """Without stored counters it is the first delivery."""
    job = delivery()
    assert (job.attempt, job.nacks, job.crashes, job.deliveries, job.last_error) == (1, 0, 0, 1, "")
    assert (job.body, job.raw, job.headers) == ([1], b"[1]", {"a": "b"})
    assert (job.lease, job.ttl, job.at_most_once) == (5, 60, False)
    assert (job.created, job.delivered) == (1_700_000_000.0, 1_700_000_002.345)
    assert (job.receipt, job.owner, job.queue_name, epoch_of(job)) == (
        "1-0ab",
        "me",
        "q",
        "01020304",
    )
    assert parse_id(job.id).number == NUMBER


def test_a_later_delivery() -> None:
    """A later delivery has counters of deliveries, nacks, crashes and releases, and
    the last error.
    """
    job = delivery(b"7 2 1 3 5 of 6 failed\nwith a line break")
    assert (job.deliveries, job.nacks, job.crashes, job.attempt) == (7, 2, 1, 4)
    assert parse_counters(b"7 2 1 3").releases == 3
    assert job.last_error == "5 of 6 failed\nwith a line break"
    assert job.receipt == "7-0ab"


def test_the_lease_of_the_queue() -> None:
    """The queue's lease applies to a job without its own; 0 is at most once."""
    assert delivery(data=b"1\n").lease == 30
    assert delivery(data=b"1;l=0;t=5\n").lease == 0
    assert delivery(data=b"1;l=0;t=5\n").at_most_once


def test_counters_that_are_no_text() -> None:
    """Bytes of an error that are not UTF-8 are replaced."""
    assert parse_counters(b"2 1 0 0 \xff").error == "\ufffd"
    assert parse_counters(b"2 1 0 0").error == ""


def test_bulk_results_over_several_chunks() -> None:
    """Indexes and slices work across chunks as in one list."""
    results = BulkEnqueued()
    assert len(results) == 0
    assert not results
    results.append(JobSpan(b"1700000000000-1000000008", 3, PLACE, "ready"))
    results.append(JobSpan(b"1700000000001-1000000000", 2, PLACE, "scheduled"))
    numbers = [parse_id(result.id).number for result in results]
    assert numbers == [
        b"1700000000000-1000000008",
        b"1700000000000-1000000009",
        b"1700000000000-1000000010",
        b"1700000000001-1000000000",
        b"1700000000001-1000000001",
    ]
    assert [results[i].id for i in range(-5, 0)] == results.ids
    assert [one.state for one in results[2:4]] == ["ready", "scheduled"]
    assert results[::-2] == [results[4], results[2], results[0]]
    assert results[3] in results
    assert "5 jobs" in repr(results)
    for index in (5, -6):
        with pytest.raises(IndexError):
            results[index]


def test_outcomes_when_all_are_done() -> None:
    """If the script lists no exceptions, all jobs are done."""
    settled = Settled(["a", "b"])
    assert settled
    assert list(settled) == [DONE, DONE]
    assert (settled[-1], settled[:1], settled.done) == (DONE, [DONE], 2)
    assert settled.ids() == ["a", "b"]
    assert settled.ids(GONE) == []
    with pytest.raises(IndexError):
        settled[2]


def test_outcomes_of_each() -> None:
    """Done and dead both count as done."""
    settled = Settled(["a", "b", "c", "d"], [DONE, DEAD, GONE, STALE])
    assert not settled
    assert list(settled) == [DONE, DEAD, GONE, STALE]
    assert (settled.done, settled.ids()) == (2, ["a", "b"])
    assert settled.ids(GONE, STALE) == ["c", "d"]
    assert Settled(["a", "b"], [DONE, DEAD])
    assert "2 of 4" in repr(settled)


def test_outcomes_of_the_first_jobs() -> None:
    """Of a call that has failed there are outcomes of the first jobs only."""
    some = Settled(["a", "b", "c"], [DONE, GONE])
    assert (some.ids(), some.ids(GONE), len(some)) == (["a"], ["b"], 2)


def test_outcomes_of_several_calls() -> None:
    """Outcomes of several calls are joined in order."""
    both = Settled(["a"]).joined(Settled(["b", "c"], [GONE, DONE]))
    assert (list(both), both.ids()) == ([DONE, GONE, DONE], ["a", "c"])
    assert list(Settled(["a"]).joined(Settled(["b"]))) == [DONE, DONE]


def test_outcomes_of_an_extend_have_the_seconds_left() -> None:
    """A job whose lease was renewed is done; errors about several jobs have the seconds, too."""
    leases = [30.0, GONE]
    settled = Settled.of_leases(["a", "b"], leases)
    assert (list(settled), settled.seconds_left) == ([DONE, GONE], [30.0, None])
    assert not Settled(["a"]).seconds_left
    for error in (errors.NodesMissed({"node": "down"}, leases), errors.IncompleteSettle(leases)):
        with pytest.raises(type(error)) as caught, with_outcomes(["a", "b"], Settled.of_leases):
            raise error
        value: Any = caught.value
        found = value.results if isinstance(value, errors.NodesMissed) else value.outcomes
        assert (found.done, found.seconds_left) == (1, [30.0, None])


def test_the_effect_of_a_first_sending_counts_as_done() -> None:
    """After a lost reply an ack that finds no job, or a nack that finds its own mark, is done."""
    sent = Settled(["a", "b", "c"], [GONE, ENDED, STALE])
    assert list(sent.after_resend(0)) == [DONE, ENDED, STALE]
    assert list(sent.after_resend(2)) == [GONE, DONE, STALE]


def test_outcomes_are_words() -> None:
    """Outcomes are words, for people and for JSON."""
    assert [str(outcome) for outcome in (DONE, GONE)] == ["done", "gone"]
    assert Outcome("stale") is STALE


ERRORS: list[Any] = [
    errors.BadArgument("delay", -1, "can't be negative"),
    errors.BadJobId("id", "x", "a job id must be a str"),
    errors.StaleReceipt("D-1", "ack"),
    errors.StaleReceipt("D-1", "ack", "1-abc", "2-def"),
    errors.NotReplicated(2, 1, None),
    errors.NotReplicated(0, 0, True, False),
    errors.AckNotReplicated([1, 2], 1, 2, 1, True),
    errors.IncompleteSettle([1, 2]),
    errors.IncompleteEnqueue([1, 2]),
    errors.QueueFull("full"),
    errors.QueueInUse("producer", "host_pid7"),
    errors.OutcomeUnknown("lost"),
    errors.JobGone("gone"),
    PutNotReplicated(1, got=0),
    errors.DeliveryNotReplicated(2, 1, connected=1),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: errors.PenstockError) -> None:
    """Errors keep message and attributes when pickled."""
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_an_error_within_an_error_survives_pickling() -> None:
    """An error that contains another one keeps it when pickled."""
    error = errors.IncompleteSettle([1, 2], errors.AckNotReplicated([1, 2], 1, 2, 1, True))
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.outcomes == error.outcomes
    assert vars(again.not_replicated) == vars(error.not_replicated)


def test_every_error_has_one_root() -> None:
    """Every error is a PenstockError; those about arguments are ValueErrors too."""
    kinds = [getattr(errors, name) for name in errors.__all__]
    assert all(issubclass(kind, errors.PenstockError) for kind in kinds)
    for kind in (errors.BadJobId, errors.WrongNode, errors.WrongQueue, errors.WrongEpoch):
        assert issubclass(kind, ValueError)
    import penstock

    assert {kind.__name__ for kind in kinds} <= set(penstock.__all__)


class Unshowable:
    """An object whose repr fails."""

    def __repr__(self) -> str:
        raise RecursionError


@pytest.mark.parametrize(
    "value", ["x" * 10_000, 10**5000, list(range(10_000)), Unshowable()], ids=range(4)
)
def test_messages_stay_short(value: Any) -> None:
    """A long value, or one that cannot be shown, does not make the message long."""
    message = str(errors.BadArgument("body", value, "no good"))
    assert message.startswith("body=")
    assert message.endswith(": no good")
    assert len(message) < 200


def test_the_id_of_a_delivery_is_that_of_its_enqueue() -> None:
    """The id of a delivery equals that of its enqueue, as both have the same parts."""
    job = delivery()
    assert job.id == encode_id("deadbeef", PLACE.packed, NUMBER, "0001")
    assert job.id in repr(job)
