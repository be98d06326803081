"""Your own tests, without a server: the fixtures come with penstock, and run on fakeredis.

    pip install 'penstock[testing]'
    pytest examples/04_tests_with_the_fixture.py

It prints:

    3 passed
"""

from __future__ import annotations

import pytest

from penstock import AsyncPenstock, Job, Penstock, Queue


def sign_up(name: str, emails: Queue) -> None:
    """The code under test: a producer."""
    emails.enqueue({"welcome": name}, headers={"from": "sign-up"})


def send(job: Job, outbox: list[str]) -> None:
    """The code under test: a handler."""
    if "@" not in job.body["welcome"]:
        raise ValueError("no address")
    outbox.append(job.body["welcome"])


def test_who_signs_up_is_welcomed(penstock: Penstock) -> None:
    """Look into the queue with `peek`: nothing is taken."""
    emails = penstock.queue("emails")
    sign_up("ada@example.org", emails)
    [job] = emails.peek()
    assert job.body == {"welcome": "ada@example.org"}
    assert job.headers == {"from": "sign-up"}


def test_a_welcome_without_address_is_a_failed_attempt(penstock: Penstock) -> None:
    """Work the queue off with `consume(block=0)`: it ends when nothing is left."""
    emails, outbox = penstock.queue("emails"), []
    sign_up("ada@example.org", emails)
    sign_up("nobody", emails)
    for job in emails.consume(block=0):
        with job:
            send(job, outbox)
    assert outbox == ["ada@example.org"]
    [later] = emails.peek(state="scheduled")
    assert (later.nacks, later.error) == (1, "ValueError: no address")


@pytest.mark.asyncio
async def test_both_clients_see_one_server(penstock: Penstock, apenstock: AsyncPenstock) -> None:
    """`apenstock` is the asynchronous twin on the same server."""
    sign_up("ada@example.org", penstock.queue("emails"))
    [job] = await apenstock.queue("emails").reserve(block=0)
    assert await job.ack()
