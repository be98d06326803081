"""The lease rules shared by workers, their helper process and Spark tasks."""

from __future__ import annotations

import math

import pytest

from penstock.core.jobs.job import term_of
from penstock.worker import heartbeat_process
from penstock.worker._sync import heartbeat
from penstock.worker.terms import LEASE_RENEWAL_SHARE, Term, begin, due, next_renewal, renew
from tests.worker.deliveries import made, stored


def test_a_term_counts_from_the_request() -> None:
    """A term starts with the request; it has the job's lease, bounded by its ttl;
    lease 0 has none.
    """
    usual, own, mortal, once = (
        stored(b"1\n"),
        made(1, lease_ms=5000),
        made(1, ttl_ms=1),
        made(1, lease_ms=0),
    )
    assert begin([usual, own, mortal, once], 100.0, 100.1)[0] == 5.0
    assert (term_of(usual), term_of(own)) == (Term(130.0, 30.0), Term(105.0, 5.0))
    assert (term_of(mortal).lease, term_of(mortal).until <= 105) == (0.0, True)
    assert (term_of(once), term_of(once).is_once) == (Term(math.inf, 0.0), True)


def test_a_lease_is_due_when_a_third_has_passed() -> None:
    """A lease is renewed after a third of its time; calls are grouped by lease."""
    jobs = [stored(b"1\n"), stored(b"1\n"), made(1, lease_ms=6000), made(1, lease_ms=0)]
    assert begin(jobs, 100.0, 100.0) == (6.0, next_renewal(jobs))
    assert (next_renewal(jobs), next_renewal(jobs[3:])) == (102.0, math.inf)
    assert list(due(jobs, 101.9)) == []
    assert list(due(jobs, 102.0)) == [(6.0, [jobs[2]])]
    assert list(due(jobs, 110.0)) == [(30.0, jobs[:2]), (6.0, [jobs[2]])]


def test_many_leases_are_renewed_in_several_calls() -> None:
    """One call extends at most 1,000 leases."""
    jobs = [stored(b"1\n") for _ in range(1001)]
    begin(jobs, 100.0, 100.0)
    assert [len(part) for _, part in due(jobs, 111.0)] == [1000, 1]


@pytest.mark.parametrize(
    "code, term",
    [
        (61_000, Term(160.0, 30.0)),  # 60 s from its sending
        (11_000, Term(110.0, 0.0)),  # shortened by the ttl
        (0, None),
    ],
)
def test_an_answer_makes_a_new_term(code: int, term: Term | None) -> None:
    """An answer is the new end of the lease, or says that another worker has the job."""
    job = stored(b"1\n")
    begin([job], 90.0, 90.0)
    gone = renew([job], [code], now_ms=1000, sent=100.0, heard=100.1)
    assert gone == ([job] if term is None else [])
    assert term_of(job) == (term or Term(120.0, 30.0))


@pytest.mark.parametrize("trip", [7.50005, 7.50045, 9.87654321])
def test_a_lengthened_lease_is_renewed_again_and_again(trip: float) -> None:
    """It has whole ms, as the server is asked for: an answer with less would end a ttl."""
    job = stored(b"1\n")
    begin([job], 90.0, 90.0 + trip)
    lease = term_of(job).lease
    assert lease == pytest.approx(8 * trip, abs=0.001)
    assert not renew([job], [1000 + round(lease * 1000)], now_ms=1000, sent=100.0, heard=100.1)
    assert term_of(job) == Term(100.0 + lease, lease)


def test_the_helper_is_earlier_than_the_thread() -> None:
    """While the helper process lives the worker's thread renews nothing."""
    assert heartbeat_process.HELPER_RENEWAL_SHARE > LEASE_RENEWAL_SHARE
    assert heartbeat.renew_each is heartbeat_process.renew_each
