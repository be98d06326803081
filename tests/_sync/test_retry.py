# From tests/_async/test_retry.py by tools/unasync.py; do not edit.
"""Jobs with their own retry policy: stored with the job and applied by the scripts."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from penstock import BadArgument, Dedup, Outcome, Penstock, Queue, RetryPolicy
from tests.support.keyspace import Raw, advance, check_invariant, dump, queue_time_ms

POLICY = RetryPolicy(7, base=0.25, cap=timedelta(minutes=1))
DAYS = 86_400


def test_a_policy_comes_with_the_job(q: Queue, raw: Raw) -> None:
    """The holder and readers see the policy of a job; a job without one has None."""
    ids = [
        q.enqueue("own", retry=POLICY).id,
        q.enqueue("bare", retry=RetryPolicy()).id,
        q.enqueue("full", retry=POLICY, lease=9, ttl=99, headers={"p": "1"}).id,
        q.enqueue("none").id,
    ]
    wanted = [POLICY, RetryPolicy(), POLICY, None]
    assert [view.retry for view in [q.show(one) for one in ids] if view] == wanted
    jobs = q.reserve(4, block=0)
    assert [job.retry for job in jobs] == wanted
    assert (jobs[2].lease, jobs[2].ttl, jobs[2].headers) == (9, 99, {"p": "1"})
    assert jobs[0].retry == RetryPolicy(7, 0.25, 60)
    assert q.release(jobs)
    assert [job.retry for job in q.reserve(4, block=0)] == wanted
    check_invariant(raw)


def test_in_bulk(q: Queue) -> None:
    """Every job of a bulk has the policy, with and without dedup ids."""
    q.enqueue_many(range(2), retry=POLICY)
    q.enqueue_many(range(2), retry=POLICY, dedup_id=str)
    assert [job.retry for job in q.reserve(4, block=0)] == [POLICY] * 4


def test_its_own_backoff(q: Queue, raw: Raw) -> None:
    """A nack without a delay uses the base and cap of the job; its neighbour uses the queue's."""
    q.configure(backoff_base=0.001, backoff_cap=0.001)
    for policy in (RetryPolicy(base=900 * DAYS, cap=900 * DAYS), RetryPolicy(3), None):
        q.enqueue(1, retry=policy)
    jobs = q.reserve(3, block=0)
    now = queue_time_ms(raw, q.ops) / 1000
    assert q.nack(jobs)
    dues = [view.due or 0 for view in [q.show(job) for job in jobs] if view]
    assert now + 60 < dues[0] < now + 901 * DAYS
    assert dues[1] < now + 60 > dues[2]


def failures(q: Queue, raw: Raw, policy: RetryPolicy | None, ways: str) -> int:
    """Return the numbers of nacks (n) and crashes (c), in this order, that bury a job."""
    q.enqueue(1, retry=policy, lease=10)
    for count, way in enumerate(ways):
        jobs = q.reserve(block=0)
        if not jobs:
            return count
        if way == "n":
            assert jobs[0].nack(delay=0)
        else:
            advance(raw, q.ops, 11)
    q.delete(q.reserve(block=0))
    return len(ways)


def test_its_own_attempts(q: Queue, raw: Raw) -> None:
    """Failures and crashes count against the job's own limit; 0 means no limit."""
    q.configure(max_attempts=2, max_crashes=0)
    cases = {None: 2, RetryPolicy(1): 1, RetryPolicy(3): 3, RetryPolicy(0): 5, RetryPolicy(): 2}
    for policy, wanted in cases.items():
        for ways in ("nnnnn", "ccccc", "ncncn", "cncnc"):
            assert failures(q, raw, policy, ways) == wanted, (policy, ways)
    assert q.stats().ready == 0


def test_crashes_are_bounded_by_the_queue(q: Queue, raw: Raw) -> None:
    """A policy does not change the queue's bound of crashes: the third one buries the job."""
    for policy in (RetryPolicy(0), RetryPolicy(9)):
        assert failures(q, raw, policy, "nccnccn") == 5


def test_an_update_brings_a_policy_or_keeps_the_one_there(q: Queue) -> None:
    """An update without a policy keeps the old one."""
    update = partial(q.enqueue, dedup=Dedup("a", on_duplicate="update"))
    update(1, retry=POLICY)
    assert update(2).action == "updated"
    assert [(view.body, view.retry) for view in q.peek()] == [(2, POLICY)]
    update(3, retry=RetryPolicy(1))
    assert [(view.body, view.retry) for view in q.peek()] == [(3, RetryPolicy(1))]


def test_invalid_policies(q: Queue, raw: Raw) -> None:
    """Values other than a policy, and policies with Python rules, are refused; no key changes."""
    q.enqueue(1)
    before = dump(raw)
    values: list[Any] = [3, "policy", {"max_attempts": 3}, True]
    for value in [*values, RetryPolicy(on={OSError: RetryPolicy(1)})]:
        for call in (q.enqueue, q.enqueue_many, partial(q.enqueue, dedup_id="a")):
            with pytest.raises(BadArgument) as caught:
                call([1], retry=value)
            assert caught.value.argument == "retry"
    assert dump(raw) == before


@pytest.mark.parametrize(
    "field, policy",
    [
        (b"p=", RetryPolicy()),
        (b"p=2", RetryPolicy(2)),
        (b"p=2,x,-1,7", RetryPolicy(2)),
        (b"p=" + b"9" * 5000 + b",0," + b"8" * 14, RetryPolicy()),
        (b"p=\xb2,\xff,1e3", RetryPolicy()),
        (b"p=0,1,3162240000000;p=1,,", RetryPolicy(0, 0.001, 366 * 100 * DAYS)),
        (b"x=1;p=1,,", None),
    ],
)
def test_invalid_parts_of_a_stored_policy(
    q: Queue, raw: Raw, field: bytes, policy: RetryPolicy | None
) -> None:
    """Invalid parts of a stored policy count as not given, for readers and scripts alike."""
    q.enqueue(1)
    q.purge()
    q.route.node.executor.run(q.ops.enqueue([b"1;" + field + b"\nbody"]))
    (job,) = q.reserve(block=0)
    assert (job.retry, job.body) == (policy, b"body")
    q.configure(max_attempts=3)
    limit = 3 if policy is None or policy.max_attempts is None else policy.max_attempts
    for failures in range(1, 5):
        assert q.nack([job], delay=0)[0] is (Outcome.DEAD if failures == limit else Outcome.DONE)
        if failures == limit:
            break
        (job,) = q.reserve(block=0)


def test_policies_of_large_jobs(q: Queue) -> None:
    """The policies of 15 MB of jobs are read in one call, without the bodies."""
    q.enqueue_many([b"x" * 3_000_000] * 5, retry=RetryPolicy(1))
    q.enqueue(b"small")
    jobs: list[Any] = []
    for _ in range(6):
        jobs += q.reserve(block=0)
    assert jobs[1].ack()
    outcomes = q.nack(jobs)
    dead = Outcome.DEAD
    assert list(outcomes) == [dead, Outcome.GONE, dead, dead, dead, Outcome.DONE]
    assert q.stats().dead == 4


def test_a_queue_without_policies_pays_nothing(ps: Penstock, raw: Raw) -> None:
    """Only a queue whose jobs have policies is marked in meta, and only its nacks read records."""
    for name, policy in (("plain", None), ("own", POLICY)):
        queue = ps.queue(name)
        queue.enqueue(1, retry=policy)
        assert (b"p" in raw.hget(queue.ops.keys["meta"], "uses")) is (policy is not None)
