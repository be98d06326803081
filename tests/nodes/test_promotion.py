"""A primary is killed under load and a replica promoted: jobs confirmed by all are not lost."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from penstock import DeliveryNotReplicated, Durable, Job, Penstock, Queue
from penstock.embedded import ServerBinary
from tests.nodes.promotion import Account, Promotion, one_run
from tests.support.binaries import chosen_binaries
from tests.support.twins import wait_for

BINARIES = chosen_binaries()


def check(account: Account) -> None:
    """Check that the run had jobs to lose."""
    assert not account.broken, account.broken
    assert not account.unexpected
    assert len(account.confirmed) >= 100
    assert len(account.acked) >= 100


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: str(binary.name))
@pytest.mark.parametrize("resting", [True, False])
def test_confirmed_by_all(binary: ServerBinary, resting: bool) -> None:
    """Either replica has every job and every ack that both confirmed."""
    account = one_run(2, before=random.uniform(0, 1), resting=resting, binary=binary)
    check(account)
    assert account.lost == {}
    assert account.back == []


def test_confirmed_by_all_behind_a_broken_link() -> None:
    """Calls that the promoted replica did not receive were not confirmed, and raised."""
    account = one_run(2, before=0.3, cut=0.3)
    check(account)
    assert account.lost == {}
    assert account.back == []
    assert account.refused


@pytest.mark.parametrize("replicas", [1, 0])
def test_jobs_unknown_to_the_promoted_replica_are_lost(replicas: int) -> None:
    """One of two confirmations is not enough if the other replica, with a broken link, is promoted.

    Jobs confirmed before the break are not lost. On a slow machine a run may lose none, so one of a
    few runs has to.
    """
    for _ in range(6):
        account = one_run(replicas, before=0.3, cut=0.5, resting=True)
        check(account)
        if account.lost:
            break
    assert min(account.lost.values()) > account.cut - 1  # breaking the link takes a moment


def is_confirmable(q: Queue, durable: Durable | None) -> bool:
    """Reserve from an empty queue; tell if the connection could confirm a delivery."""
    with suppress(DeliveryNotReplicated):
        return q.reserve(block=0, durable=durable) == []
    return False


@pytest.mark.parametrize("durable", [None, Durable(1, timeout=10), Durable(2, timeout=0.3)])
def test_a_delivery_at_most_once(durable: Durable | None) -> None:
    """A replica behind a broken link delivers the job a second time, unless all must confirm it.

    One confirmation of two is not enough for that. What is given up is delivered there, once.
    """
    taken, given_up = list[Job](), list[str]()
    with Promotion() as place, Penstock(place.door.url, retry_for=60) as ps:
        q = ps.queue("q")
        wait_for(lambda: is_confirmable(q, durable))
        q.enqueue("x", lease=0)
        wait_for(lambda: [raw.xlen("penstock:{q}:ready") for raw in place.raws] == [1, 1, 1])
        place.links[0].hole("down")
        try:
            taken += q.reserve(durable=durable)
        except DeliveryNotReplicated as error:
            given_up = [job.body for job in error.given_up]
        place.fall(1)
        taken += q.reserve(block=0)
    confirms_all = durable is not None and durable.replicas == 2
    assert [job.body for job in taken] == ["x"] * (1 if confirms_all else 2)
    assert given_up == ["x"] * confirms_all
