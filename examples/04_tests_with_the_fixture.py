"""Your own tests without a server: penstock's fixtures run on fakeredis.

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


def test_a_new_user_is_welcomed(penstock: Penstock) -> None:
    """Use `peek` to inspect the queue; no job is reserved."""
    emails = penstock.queue("emails")
    sign_up("ada@example.org", emails)
    [job] = emails.peek()
    assert job.body == {"welcome": "ada@example.org"}
    assert job.headers == {"from": "sign-up"}


def test_a_welcome_without_address_is_a_failed_attempt(penstock: Penstock) -> None:
    """Use `consume(block=0)` to drain the queue; it ends when no job is left."""
    emails, outbox = penstock.queue("emails"), []
    sign_up("ada@example.org", emails)
    sign_up("no address", emails)
    for job in emails.consume(block=0):
        with job:
            send(job, outbox)
    assert outbox == ["ada@example.org"]
    [later] = emails.peek(state="scheduled")
    assert (later.nacks, later.error) == (1, "ValueError: no address")


@pytest.mark.asyncio
async def test_both_clients_see_one_server(penstock: Penstock, apenstock: AsyncPenstock) -> None:
    """`apenstock` is an asynchronous client of the same server."""
    sign_up("ada@example.org", penstock.queue("emails"))
    [job] = await apenstock.queue("emails").reserve(block=0)
    assert await job.ack()
