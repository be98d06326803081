"""A primary is killed under load, a replica takes over: nothing that all confirmed is lost."""

from __future__ import annotations

import random

import pytest

from penstock.embedded import ServerBinary
from tests.nodes.promotion import Account, one_run
from tests.support.binaries import chosen_binaries

BINARIES = chosen_binaries()


def check(account: Account) -> None:
    """The account of a run that had something to lose."""
    assert not account.broken, account.broken
    assert not account.unexpected
    assert len(account.confirmed) >= 100
    assert len(account.acked) >= 100


@pytest.mark.parametrize("binary", BINARIES, ids=lambda binary: str(binary.name))
@pytest.mark.parametrize("resting", [True, False])
def test_confirmed_by_all(binary: ServerBinary, resting: bool) -> None:
    """Whichever replica takes over has every job, and knows of every end, that both confirmed."""
    account = one_run(2, before=random.uniform(0, 1), resting=resting, binary=binary)
    check(account)
    assert account.lost == {}
    assert account.back == []


def test_confirmed_by_all_behind_a_broken_link() -> None:
    """What the heir did not hear of was not confirmed, and is told of."""
    account = one_run(2, before=0.3, cut=0.3)
    check(account)
    assert account.lost == {}
    assert account.back == []
    assert account.refused


@pytest.mark.parametrize("replicas", [1, 0])
def test_what_the_heir_did_not_hear_of_is_lost(replicas: int) -> None:
    """One of two is not enough, when the other one takes over behind a broken link.

    What was confirmed before that is not lost. How much is depends on the machine, and in a run of
    a starved one nothing may be: in one of a few something is.
    """
    for _ in range(6):
        account = one_run(replicas, before=0.3, cut=0.5, resting=True)
        check(account)
        if account.lost:
            break
    assert min(account.lost.values()) > account.cut - 1  # the link takes a moment itself
