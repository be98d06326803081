"""queues, stats, pause, resume, redrive, purge, sweep."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from penstock import Penstock
from tests.cli.support import Cli
from tests.support.backends import Backend


def test_queues_lists_names(cli: Cli, client: Penstock) -> None:
    """Sorted, one a line, escaped for people and as they are for programs."""
    for name in ("b", "a\x1b[0m {x}", "ü"):
        client.queue(name).enqueue("x")
    assert cli("queues").out == "a\\x1b[0m {x}\nb\nü\n"
    assert cli("queues", "--json").document == {"queues": ["a\x1b[0m {x}", "b", "ü"]}


def test_nothing_at_all(cli: Cli) -> None:
    """An empty server has no queues, and that is no failure."""
    assert cli("queues").code == 0
    assert cli("queues", "--json").document == {"queues": []}
    assert cli("stats", "--json").document == {"queues": []}
    assert cli("sweep", "--json").document == {"removed": 0, "queues": []}


def test_stats_counts_each_state(cli: Cli, client: Penstock) -> None:
    """The document has the fields of QueueStats; the table has the counts in its columns."""
    queue = client.queue("q")
    queue.configure(max_length=50, lease=20)
    queue.enqueue_many(range(4))
    queue.enqueue("later", delay=60)
    first, second, *_ = queue.reserve(3, block=0)
    first.ack()
    second.bury("no")
    [document] = cli("stats", "q", "--json").document["queues"]
    expected = asdict(queue.stats())
    assert document.pop("oldest") >= 0
    assert expected.pop("oldest") >= 0
    assert document == expected
    [row] = cli("stats", "q").rows
    cells = [cell.strip() for cell in row]
    assert cells[:9] == ["q", "1", "1", "1", "1", "0", "5", "1", "0"]
    assert cells[-1] == "lease=20.0 max_length=50"


def test_stats_of_some_or_of_all(cli: Cli, client: Penstock) -> None:
    """The queues named, in that order, also one that does not exist; else every one."""
    for name in ("a", "b", "c"):
        client.queue(name).enqueue("x")

    def shown(*names: str) -> list[tuple[str, bool]]:
        document = cli("stats", *names, "--json").document
        return [(one["name"], one["exists"]) for one in document["queues"]]

    assert shown() == [("a", True), ("b", True), ("c", True)]
    assert shown("c", "nosuch") == [("c", True), ("nosuch", False)]
    assert "does not exist" in cli("stats", "nosuch").out
    assert client.queues() == ["a", "b", "c"]


@pytest.mark.parametrize("side", ["in", "out", "all"])
def test_pause_and_resume(cli: Cli, client: Penstock, side: str) -> None:
    """A side stops until resume; the default is both."""
    queue = client.queue("q")
    result = cli("pause", "q", "--side", side, "--json")
    assert (result.code, result.document) == (0, {"queue": "q", "paused": side})
    assert queue.stats().settings.paused == side
    assert cli("resume", "q", "--json").document == {"queue": "q", "paused": None}
    assert queue.stats().settings.paused is None
    assert cli("pause", "q").out == "q: paused (all)\n"
    assert cli("resume", "q").out == "q: not paused\n"


def test_resume_makes_no_queue(cli: Cli, client: Penstock) -> None:
    """A typing error does not leave a queue behind."""
    result = cli("resume", "nosuch")
    assert (result.code, client.queues()) == (0, [])
    assert result.err == "there is no queue 'nosuch' now\n"


def buried(client: Penstock, count: int) -> list[str]:
    """The ids of as many dead letters, oldest first."""
    queue = client.queue("q")
    ids = queue.enqueue_many(range(count)).ids
    queue.bury(queue.reserve(count, block=0), "no")
    return ids


def test_redrive_all_some_or_named(cli: Cli, client: Penstock) -> None:
    """Dead letters come back: the oldest up to --limit, those named, or all."""
    ids = buried(client, 6)
    queue = client.queue("q")
    assert cli("redrive", "q", "--limit", "2", "--json").document == {"queue": "q", "redriven": 2}
    assert [view.id for view in queue.peek()] == ids[:2]
    assert cli("redrive", "q", ids[5]).out == "1 dead letters brought back\n"
    assert [view.id for view in queue.peek(state="dead")] == ids[2:5]
    assert cli("redrive", "q", "--json").document["redriven"] == 3
    assert queue.stats().dead == 0


def test_redrive_of_what_is_not_dead(cli: Cli, client: Penstock) -> None:
    """Exit code 1 when one of the named could not be brought back; the others were."""
    ids = buried(client, 2)
    client.queue("q").delete([ids[0]])
    result = cli("redrive", "q", *ids, "--json")
    assert (result.code, result.document["redriven"]) == (1, 1)
    assert result.err.startswith("penstock: 1 of 2 could not be brought back")
    assert [view.id for view in client.queue("q").peek()] == [ids[1]]


def test_bad_usage_of_redrive(cli: Cli, client: Penstock) -> None:
    """Ids with --limit are bad usage, a bad id or limit is an error; nothing is brought back."""
    ids = buried(client, 1)
    assert cli("redrive", "q", ids[0], "--limit", "1").code == 2
    assert cli("redrive", "q", "--limit", "0").code == 1
    bad = cli("redrive", "q", ids[0], "D-x")
    assert bad.code == 1
    assert bad.err.startswith("penstock: BadJobId: ")
    assert client.queue("q").stats().dead == 1
    assert cli("redrive", "nosuch").err == "there is no queue 'nosuch' now\n"


def one_in_each_state(client: Penstock) -> None:
    """Ready 1, scheduled 1, active 1, dead 1."""
    buried(client, 1)
    queue = client.queue("q")
    queue.enqueue("to hold")
    queue.reserve(block=0)
    queue.enqueue("to wait")
    queue.enqueue("to come", delay=60)


@pytest.mark.parametrize(
    "states, left",
    [
        ([], (0, 0, 1, 1)),
        (["ready"], (0, 1, 1, 1)),
        (["dead", "active", "dead"], (1, 1, 0, 0)),
    ],
)
def test_purge_removes_the_states_that_are_named(
    cli: Cli, client: Penstock, states: list[str], left: tuple[int, ...]
) -> None:
    """Ready and scheduled unless others are named."""
    one_in_each_state(client)
    options = [part for state in states for part in ("--state", state)]
    document = cli("purge", "q", "--yes", "--json", *options).document
    counts = client.queue("q").stats()
    assert (counts.ready, counts.scheduled, counts.active, counts.dead) == left
    assert document == {
        "queue": "q",
        "states": list(dict.fromkeys(states)) or ["ready", "scheduled"],
        "purged": 4 - sum(left),
    }


def test_purge_asks(cli: Cli, client: Penstock) -> None:
    """The question says how many; only `y` removes; no answer is a no; stdout stays a document."""
    one_in_each_state(client)
    for answer in (b"n\n", b""):
        refused = cli("purge", "q", stdin=answer)
        assert (refused.code, refused.out) == (1, "")
        assert "Remove these jobs of q: 1 ready, 1 scheduled?" in refused.err
        assert client.queue("q").stats().ready == 1
    agreed = cli("purge", "q", "--json", stdin=b"y\n")
    assert (agreed.code, agreed.document["purged"]) == (0, 2)


def test_purge_of_nothing(cli: Cli, client: Penstock) -> None:
    """A queue that does not exist is named, and not made; a state that is none is bad usage."""
    result = cli("purge", "nosuch")
    assert (result.code, result.out) == (0, "0 jobs removed\n")
    assert result.err == "there is no queue 'nosuch' now\n"
    assert cli("purge", "q", "--state", "lost", "--yes").code == 2
    assert client.queues() == []


def test_sweep_removes_what_has_expired(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Of the queues named, or of all of them."""
    for name in ("a", "b"):
        client.queue(name).enqueue("stays")
        client.queue(name).enqueue_many(range(3), ttl=0.001)
    real_backend.sync_client().blpop(["no such key"], 0.01)  # until their ttl has ended
    swept = cli("sweep", "b", "--json").document
    assert swept == {"removed": 3, "queues": [{"queue": "b", "removed": 3}]}
    rows = cli("sweep").rows
    assert [[cell.strip() for cell in row] for row in rows] == [["a", "3"], ["b", "0"]]
    assert [client.queue(name).stats().ready for name in ("a", "b")] == [1, 1]
