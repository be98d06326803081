"""Actions on the jobs that options choose: how many they find, ask about, and change."""

from __future__ import annotations

import pytest

from penstock import Penstock, Queue
from penstock.cli.acting import JOBS_PER_STEP
from tests.cli.support import Cli
from tests.support.backends import Backend
from tests.support.keyspace import advance


@pytest.fixture
def q(client: Penstock) -> Queue:
    """A queue with two dead, two scheduled and three ready jobs of handlers a and b."""
    queue = client.queue("q")
    for handler, error in (("a", "no 'x'"), ("b", "no 'y'")):
        queue.enqueue(b"dead", headers={"handler": handler})
        queue.bury(queue.reserve(), error)
        queue.enqueue(b"later", headers={"handler": handler}, delay=1000)
    for key in ("k", "l"):
        queue.enqueue(key, headers={"handler": "a"}, key=key)
    queue.enqueue(b"plain")
    return queue


def counts(queue: Queue) -> tuple[int, int, int]:
    """Return the numbers of ready, scheduled and dead jobs."""
    stats = queue.stats()
    return stats.ready, stats.scheduled, stats.dead


@pytest.mark.parametrize(
    "argv, answer, after",
    [
        (["redrive", "q", "--handler", "a"], "1 job redriven", (4, 2, 1)),
        (["redrive", "q", "--error", "NO", "--limit", "1"], "1 job redriven", (4, 2, 1)),
        (["delete", "q", "--state", "dead", "--handler", "b", "-y"], "1 job deleted", (3, 2, 1)),
        (["delete", "q", "--state", "ready", "-y"], "3 jobs deleted", (0, 2, 2)),
        (["cancel", "q", "--state", "ready", "--key", "k", "-y"], "1 job cancelled", (2, 2, 2)),
        (["cancel", "q", "--state", "ready", "--handler=", "-y"], "1 job cancelled", (2, 2, 2)),
        (
            ["promote", "q", "--state", "scheduled", "--handler", "a"],
            "1 job brought forward",
            (4, 1, 2),
        ),
        (
            ["promote", "q", "--state", "scheduled", "--handler", "c"],
            "0 jobs brought forward",
            None,
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_chosen_jobs(
    cli: Cli, q: Queue, argv: list[str], answer: str, after: tuple[int, ...] | None
) -> None:
    """A dry run only counts them; then exactly these are changed."""
    before = counts(q)
    dry = cli(*argv, "--dry-run")
    state = "dead" if argv[0] == "redrive" else argv[3]
    number, noun, *words = answer.split()
    assert dry.out == f"{number} {noun} in state {state} would be {' '.join(words)}\n"
    assert counts(q) == before
    assert cli(*argv).out == f"{answer}\n"
    assert counts(q) == (after or before)


@pytest.mark.parametrize("command", ["delete", "cancel"])
def test_a_question_comes_first(cli: Cli, q: Queue, command: str) -> None:
    """It has the number of jobs; without a yes nothing is done, and without jobs none is asked."""
    argv = [command, "q", "--state", "ready", "--handler", "a"]
    refused = cli(*argv, stdin=b"n\n")
    assert refused.code == 1
    assert f"{command.capitalize()} 2 jobs in state ready of q?" in refused.err
    done = {"delete": "deleted", "cancel": "cancelled"}[command]
    assert f"nothing was {done}" in refused.err
    assert counts(q) == (3, 2, 2)
    assert cli(*argv, stdin=b"y\n").code == 0
    assert counts(q) == (1, 2, 2)
    assert cli(*argv).err == ""


def test_the_document_of_chosen_jobs(cli: Cli, q: Queue) -> None:
    """It has the numbers of jobs that match and that were changed."""
    argv = ["delete", "q", "--state", "dead", "--json"]
    told = {"queue": "q", "state": "dead", "matched": 2, "deleted": 0, "dry_run": True}
    assert cli(*argv, "--dry-run").document == told
    assert cli(*argv, "--yes").document == {**told, "deleted": 2, "dry_run": False}


def test_jobs_that_could_not_be_changed(cli: Cli, q: Queue) -> None:
    """The answer says of how many that matched."""
    told = cli("delete", "q", "--state", "dead", "--if-undelivered", "--yes").out
    assert told == "0 jobs deleted\n"
    assert counts(q) == (3, 2, 2)
    for state, told in (("dead", "0 jobs"), ("ready", "2 jobs"), ("scheduled", "2 jobs")):
        if state == "ready":
            q.release(q.reserve(block=0))
        argv = ["delete", "q", "--state", state, "--if-undelivered"]
        assert cli(*argv, "--dry-run").out == f"{told} in state {state} would be deleted\n"


def test_many_jobs_are_changed_in_steps(cli: Cli, client: Penstock) -> None:
    """More than one step takes are all changed."""
    queue = client.queue("q")
    queue.enqueue_many(range(JOBS_PER_STEP + 5), delay=1000)
    told = cli("promote", "q", "--state", "scheduled")
    assert told.out == f"{JOBS_PER_STEP + 5:,} jobs brought forward\n"


def test_old_jobs_and_batches(cli: Cli, q: Queue, real_backend: Backend) -> None:
    """Jobs are chosen by their age and their batch, too."""
    advance(real_backend.sync_client(), q.ops, 500)
    with q.batch(then=b"end") as batch:
        batch.enqueue_many([b"m", b"n"], delay=1000)
    argv = ["cancel", "q", "--state", "scheduled", "--yes", "--dry-run"]
    assert cli(*argv, "--older-than", "100").out.startswith("2 jobs in state scheduled would")
    assert cli(*argv, "--batch", batch.id).out.startswith("2 jobs in state scheduled would")


def test_jobs_are_shown_by_the_same_options(cli: Cli, q: Queue) -> None:
    """`peek` and `scan` take them."""
    peeked = cli("peek", "q", "--handler", "a", "--json").document["jobs"]
    assert [job["body"] for job in peeked] == ["k", "l"]
    second = cli("peek", "q", "--handler", "a", "--start", "1", "-n", "1", "--json").document
    assert [job["body"] for job in second["jobs"]] == ["l"]
    assert len(cli("scan", "--handler", "a", "--json").document["jobs"]) == 4
    [group] = [one for one in q.jobs("dead").error_groups().groups if one.handler == "b"]
    dead = cli("scan", "q", "--group", group.id, "--ids").out.split()
    assert dead == [view.id for view in q.jobs("dead", handler="b")]


@pytest.mark.parametrize(
    "argv, reason",
    [
        (["delete", "q"], "give ids, or --state"),
        (["delete", "q", "--handler", "a"], "give ids, or --state"),
        (["delete", "q", "D-1", "--state", "dead"], "don't go with ids"),
        (["cancel", "q", "D-1", "--handler", "a"], "don't go with ids"),
        (["promote", "q", "D-1", "--dry-run"], "don't go with ids"),
        (["redrive", "q", "D-1", "--key", "k"], "don't go with ids"),
        (["cancel", "q", "--state", "dead"], "invalid choice"),
        (["peek", "q", "--key", "k", "--start", "-1"], "negative --start"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_unclear_choices_are_refused(cli: Cli, q: Queue, argv: list[str], reason: str) -> None:
    """Nothing is done."""
    before = counts(q)
    result = cli(*argv)
    assert result.code == 2
    assert reason in result.err
    assert counts(q) == before
