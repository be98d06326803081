"""Tests of queues, stats, pause, resume, redrive, promote, postpone, purge, evict,
sweep and clear.
"""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from penstock import Handlers, Penstock, Worker
from penstock.cli.app import loaded
from penstock.cli.commands import COMMANDS
from penstock.cli.parameters import Argument, described
from penstock.spark.calls import Staged, about_staged, staged_chunk
from tests.cli.support import Cli
from tests.support.backends import Backend
from tests.support.keyspace import advance


def test_queues_lists_names(cli: Cli, client: Penstock) -> None:
    """Names are sorted, one a line, escaped in the table and unchanged in the document."""
    for name in ("b", "a\x1b[0m {x}", "ü"):
        client.queue(name).enqueue("x")
    assert cli("queues").out == "a\\x1b[0m {x}\nb\nü\n"
    assert cli("queues", "--json").document == {"queues": ["a\x1b[0m {x}", "b", "ü"]}


@pytest.mark.parametrize(
    "options, names",
    [
        (["--min-length", "2"], ["many", "some"]),
        (["--max-length", "2"], ["none", "some"]),
        (["--min-length", "1", "--max-length", "2"], ["some"]),
        (["--max-idle", "60"], ["none", "some"]),
        (["--max-idle", "60", "--min-length", "0"], ["none", "some"]),
        (["--min-length", "3", "--max-idle", "60"], []),
    ],
    ids=str,
)
def test_queues_chooses(
    cli: Cli, client: Penstock, real_backend: Backend, options: list[str], names: list[str]
) -> None:
    """Filters are the number of ready jobs, and the time since the last write."""
    for name, count in (("many", 3), ("some", 2)):
        client.queue(name).enqueue_many(range(count))
    client.queue("none").enqueue("later", delay=60)
    raw = real_backend.sync_client()
    seconds, _ = raw.time()
    raw.hset("penstock:{many}:meta", "seen", (seconds - 100) * 1000)
    result = cli("queues", "--json", *options)
    assert (result.code, result.document) == (0, {"queues": names})
    assert cli("queues", *options).out == "".join(f"{name}\n" for name in names)


@pytest.mark.parametrize(
    "argv, names",
    [
        (["*"], ["Mail", "mail", "mail [1]", "mail-2"]),
        (["mail*"], ["mail", "mail [1]", "mail-2"]),
        (["mail?2"], ["mail-2"]),
        (["mail [[]1]"], ["mail [1]"]),
        (["[mM]ail"], ["Mail", "mail"]),
        (["ail"], []),
        (["mail*", "--min-length", "2"], ["mail-2"]),
        (["Mail", "--max-length", "1"], ["Mail"]),
    ],
    ids=str,
)
def test_queues_like_a_pattern(
    cli: Cli, client: Penstock, argv: list[str], names: list[str]
) -> None:
    """Only matching names are listed, with or without case; bounds filter further."""
    for name in ("mail", "Mail", "mail-2", "mail [1]"):
        client.queue(name).enqueue_many(range(2 if name == "mail-2" else 1))
    result = cli("queues", *argv, "--json")
    assert (result.code, result.document) == (0, {"queues": names})
    assert cli("queues", *argv).out == "".join(f"{name}\n" for name in names)


@pytest.mark.parametrize(
    "options, code",
    [
        (["--min-length", "-1"], 1),
        (["--max-length", "-1"], 1),
        (["--max-idle", "-1"], 1),
        (["--max-idle", "nan"], 1),
        (["--min-length", "few"], 2),
    ],
    ids=str,
)
def test_bad_bounds_of_queues(cli: Cli, options: list[str], code: int) -> None:
    """Errors that the parser finds are bad usage, those of the library are errors."""
    result = cli("queues", *options)
    assert (result.code, result.out) == (code, "")
    assert result.err


def test_nothing_at_all(cli: Cli) -> None:
    """An empty server has no queues, which is no failure."""
    assert cli("queues").code == 0
    assert cli("queues", "--json").document == {"queues": []}
    assert cli("stats", "--json").document == {"queues": []}
    assert cli("sweep", "--json").document == {"removed": 0, "queues": []}


def test_stats_counts_each_state(cli: Cli, client: Penstock) -> None:
    """The document has the fields of QueueStats; the table has a column for each count."""
    queue = client.queue("q")
    queue.configure(max_length=50, lease=20)
    queue.enqueue_many(range(4))
    queue.enqueue("later", delay=60)
    first, second, *_ = queue.reserve(3, block=0)
    first.ack()
    second.bury("no")
    [document] = cli("stats", "q", "--json").document["queues"]
    expected = {**asdict(queue.stats()), "unreachable": [], "differing": []}
    for span in ("oldest", "age", "idle", "last_death"):
        assert 0 <= document.pop(span) <= expected.pop(span)
    assert document == expected
    out = cli("stats", "q").out
    assert [column for column in MOVED if column in out] == []
    [row] = cli("stats", "q").rows
    cells = [cell.strip() for cell in row]
    assert cells[:9] == ["q", "1", "1", "1", "1", "5", "1", "0", "0"]
    assert [cell[-2:] for cell in cells[9:-1]] == [" s", " s", " s"]
    assert cells[-1] == "lease=20.0 max_length=50"


MOVED = ("promoted", "postponed", "withdrawn", "evicted")


def test_stats_shows_moved_jobs(cli: Cli, client: Penstock) -> None:
    """Columns of moved or removed jobs appear if one queue has such jobs."""
    queue = client.queue("q")
    ids = queue.enqueue_many(range(10), delay=60).ids
    queue.promote(ids[:4])
    queue.postpone(ids[:3])
    queue.delete(ids[8:], if_undelivered=True)
    queue.enqueue("once", lease=0)
    queue.reserve(10, block=0)
    queue.sweep(evict=100)
    client.queue("other").enqueue("x")
    result = cli("stats")
    heads = result.out.split("\n", 1)[0].split()
    values = [[cell.strip() for cell in row] for row in result.rows]
    at = heads.index("promoted")
    assert tuple(heads[at : at + 4]) == MOVED
    assert [row[at : at + 4] for row in values] == [["0"] * 4, ["4", "3", "2", "1"]]
    documents = cli("stats", "--json").document["queues"]
    assert [[one[name] for name in MOVED] for one in documents] == [[0] * 4, [4, 3, 2, 1]]


def test_stats_shows_results_and_cancelled_jobs(cli: Cli, client: Penstock) -> None:
    """Kept results, and jobs that were cancelled, have columns if there are any."""
    queue = client.queue("q")
    one, two, _ = queue.enqueue_many([b"1", b"2", b"3"], result_ttl=60)
    assert [name for name in ("kept", "cancelled") if name in cli("stats").out] == []
    queue.cancel([one.id])
    queue.ack([two.id])
    result = cli("stats")
    heads = result.out.split("\n", 1)[0].split()
    at = heads.index("kept")
    assert heads[at : at + 2] == ["kept", "cancelled"]
    assert [[cell.strip() for cell in row][at : at + 2] for row in result.rows] == [["2", "1"]]


def test_stats_shows_staged_rows(cli: Cli, client: Penstock) -> None:
    """Rows of staged writes have columns while there are any, also if there is no queue yet."""
    ops, node = client.queue("q").ops, client.topology.executor
    assert "staged" not in cli("stats", "q").out
    at, chunk = Staged("node", "0a", 7), staged_chunk(0, [b"1;d=a\nx", b"1;d=b\nx"])
    node.run(about_staged(ops, "stage", at, at.batch, "one:0", 60_000, chunk))
    shown = cli("stats", "q").out
    assert ("staged" in shown, "promised" in shown) == (True, False)
    node.run(about_staged(ops, "commit", at, at.batch, 60_000, 2, "one", 1))
    (stats,) = cli("stats", "q", "--json").document["queues"]
    assert (stats["staged"], stats["promised"]) == (0, 2)


def test_stats_shows_the_holder_of_a_role(cli: Cli, client: Penstock) -> None:
    """A held role has a column: its holder, since when, and for how long."""
    client.queue("free").enqueue("x")
    queue = client.queue("q")
    queue.enqueue("x")
    assert "roles" not in cli("stats").out
    with queue.exclusive("producer", lease=600) as producer, queue.exclusive("consumer"):
        result = cli("stats")
        documents = cli("stats", "--json").document["queues"]
        owner = queue.stats().producer
    assert "roles" in result.out.split("\n", 1)[0].split()
    free, held = result.rows
    assert not any("=" in cell for cell in free)
    one = rf"={re.escape(str(owner))} \(for [\d.]+ s, [\d.]+ (s|min) left\)"
    assert re.fullmatch(f"producer{one}, consumer{one}", held[-1].strip())
    assert [document["producer"] for document in documents] == [None, documents[1]["producer"]]
    told = documents[1]["producer"]
    assert (told["owner"], told["fence"]) == (str(owner), producer.fence)
    assert 0 <= told["age"] < 590
    assert 0 < told["left"] <= 600
    assert "roles" not in cli("stats").out


def test_stats_with_a_damaged_queue(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """A damaged field of meta, or a key of another type, does not hide other queues."""
    for name in ("a", "b", "c"):
        client.queue(name).enqueue("x")
    raw = real_backend.sync_client()
    raw.hset("penstock:{a}:meta", mapping={"lease": "soon", "enqueued": "some", "made": "x"})
    document = cli("stats", "--json").document
    assert [one["name"] for one in document["queues"]] == ["a", "b", "c"]
    assert [stats.name for stats in client.scan_queues_iter()] != []
    raw.delete("penstock:{b}:dead")
    raw.set("penstock:{b}:dead", "x")
    result = cli("stats", "--json")
    assert result.code == 1
    assert [one["name"] for one in result.document["queues"]] == ["a", "c"]
    assert "queue 'b' is not shown" in result.err
    assert {stats.name for stats in client.scan_queues_iter()} == {"a", "c"}
    assert client.info().registered_queues == 2


def test_stats_of_some_or_of_all(cli: Cli, client: Penstock) -> None:
    """Named queues in that order; otherwise every queue."""
    for name in ("a", "b", "c"):
        client.queue(name).enqueue("x")

    def shown(*names: str) -> list[tuple[str, bool]]:
        document = cli("stats", *names, "--json").document
        return [(one["name"], one["exists"]) for one in document["queues"]]

    assert shown() == [("a", True), ("b", True), ("c", True)]
    assert shown("c", "a") == [("c", True), ("a", True)]


@pytest.mark.parametrize("side", ["in", "out", "all"])
def test_pause_and_resume(cli: Cli, client: Penstock, side: str) -> None:
    """A side stops until resume; by default that of the workers."""
    queue = client.queue("q")
    queue.enqueue("x")
    result = cli("pause", "q", "--side", side, "--json")
    assert (result.code, result.document) == (0, {"queue": "q", "paused": side})
    assert queue.stats().settings.paused == side
    assert cli("resume", "q", "--json").document == {"queue": "q", "paused": None}
    assert queue.stats().settings.paused is None
    assert cli("pause", "q").out == "q: paused (out)\n"
    assert cli("resume", "q").out == "q: not paused\n"


def test_a_rate_is_configured(cli: Cli, client: Penstock) -> None:
    """It is a text; stats show it with its burst."""
    client.queue("q").enqueue("x")
    result = cli("configure", "q", "rate=100/min", "burst=20", "--json")
    assert (result.code, result.document["settings"]["rate"]) == (0, "100/min")
    assert cli("stats", "q").rows[0][-1].strip() == "rate=100/min burst=20"
    assert client.queue("q").stats().settings.burst == 20
    refused = cli("configure", "q", "rate=fast")
    assert refused.code != 0
    assert "must be jobs in a time" in refused.err
    told = cli("configure", "q", "key_rate=60/min", "key_burst=3", "--json").document["settings"]
    assert (told["key_rate"], told["key_burst"]) == ("60/min", 3)
    assert cli("stats", "q").rows[0][-1].strip().endswith("key_rate=60/min key_burst=3")
    assert cli("configure", "q", "key_rate=fast").code != 0


def test_a_hold(cli: Cli, client: Penstock) -> None:
    """It is shown with the time that is left, and 0 ends it."""
    queue = client.queue("q")
    queue.enqueue("x")
    assert 59 < cli("hold", "q", "60", "--json").document["held"] <= 60
    assert cli("stats", "q").rows[0][-1].strip().startswith("(held for ")
    assert queue.reserve(block=0) == []
    assert cli("hold", "q", "0").out == "q: not held\n"
    assert cli("hold", "q", "86401").code != 0
    assert len(queue.reserve(block=0)) == 1


def test_a_hold_of_a_key(cli: Cli, client: Penstock) -> None:
    """Jobs of other keys are delivered, and 0 ends it."""
    queue = client.queue("q")
    queue.enqueue("x", key="a")
    queue.enqueue("y", key="b")
    assert cli("hold", "q", "60", "--key", "a", "--json").document == {
        "queue": "q",
        "key": "a",
        "held": 60,
    }
    assert [job.body for job in queue.reserve(5, block=0)] == ["y"]
    assert cli("hold", "q", "0", "--key", "a").out == "q, key a: not held\n"
    assert cli("hold", "q", "5", "--key", "").code != 0
    assert [job.body for job in queue.reserve(5, block=0)] == ["x"]


def test_slots(cli: Cli, client: Penstock) -> None:
    """Stats show how many of them are taken."""
    queue = client.queue("q")
    assert cli("configure", "q", "--create", "max_active=2").code == 0
    queue.enqueue_many(range(3))
    queue.reserve(3, block=0)
    assert cli("stats", "q").rows[0][-1].strip() == "max_active=2 (2 of 2 running)"
    [shown] = cli("stats", "q", "--json").document["queues"]
    assert (shown["active"], shown["slots"]) == (2, 2)
    refused = cli("configure", "q", "max_active=0")
    assert refused.code != 0
    assert "BadArgument: max_active=0" in refused.err
    cli("configure", "q", "max_active=default")
    assert queue.stats().slots is None


def test_close_and_reopen(cli: Cli, client: Penstock) -> None:
    """Producers are refused until reopen; stats show it with the settings."""
    queue = client.queue("q")
    queue.configure(max_length=5)
    assert cli("close", "q", "--json").document == {"queue": "q", "closed": True}
    assert queue.stats().closed
    assert [one["closed"] for one in cli("stats", "--json").document["queues"]] == [True]
    assert cli("stats", "q").rows[0][-1].strip() == "closed max_length=5"
    refused = cli("enqueue", "q", "x")
    assert (refused.code, refused.err) == (
        1, "penstock: QueueClosed: queue 'q' is closed and takes no more jobs: reopen() ends that\n"
    )  # fmt: skip
    assert cli("reopen", "q", "--json").document == {"queue": "q", "closed": False}
    assert not queue.stats().closed
    assert cli("close", "q").out == "q: closed\n"
    assert cli("reopen", "q").out == "q: open\n"
    assert cli("enqueue", "q", "x").code == 0


SOME_ID = "D-00000000-P7DpjNzE00000-53DE00000000000"
COMMANDS_OF_QUEUES: list[list[str]] = [
    ["pause"], ["resume"], ["hold", "5"], ["close"], ["reopen"], ["stats"], ["peek"],
    ["errors"], ["scan"], ["scan", "--ids"], ["redrive"],
    ["redrive", "--handler", "a"], ["peek", "--key", "k"], ["delete", "--state", "dead", "--yes"],
    ["cancel", SOME_ID], ["delete", SOME_ID], ["promote", SOME_ID],
    ["postpone", SOME_ID], ["signal", SOME_ID, "a"], ["evict"],
    ["purge", "--yes"], ["clear", "--yes"], ["sweep"],
    ["schedules"], ["batches"], ["dedup", "a"], ["configure"], ["configure", "lease=60"],
]  # fmt: skip


@pytest.mark.parametrize("argv", COMMANDS_OF_QUEUES, ids=" ".join)
def test_a_mistyped_name(cli: Cli, client: Penstock, argv: list[str]) -> None:
    """Commands that add no jobs refuse a name that no queue has, and create none."""
    client.queue("payments").enqueue("x")
    command, *rest = argv
    result = cli(command, "paymets", *rest)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("penstock: no queue 'paymets' (did you mean 'payments'?)")
    assert cli(command, "x", *rest).err.startswith("penstock: no queue 'x'")
    assert client.queues() == ["payments"]
    assert client.queue("payments").stats().settings.paused is None


def test_the_test_above_has_every_command_of_a_queue() -> None:
    """Commands whose first argument is a queue are in its list, but for those that may add one."""
    tested = {command for command, *_ in COMMANDS_OF_QUEUES}
    found = {
        name
        for name in COMMANDS
        for one in described(loaded(name).function).parameters
        if one.mark == Argument("QUEUE")
    }
    assert found - tested == {"enqueue"}
    assert tested <= found


def test_settings_of_a_new_queue(cli: Cli, client: Penstock) -> None:
    """Settings are stored before the first job if the user says so."""
    refused = cli("configure", "new", "lease=60")
    assert (refused.code, "--create" in refused.err) == (1, True)
    assert cli("configure", "new", "--create").code == 2
    made = cli("configure", "new", "lease=60", "--create")
    assert (made.code, client.queue("new").stats().settings.lease) == (0, 60)


def test_stats_of_a_missing_queue_beside_others(cli: Cli, client: Penstock) -> None:
    """The others are shown, and the exit code is 1."""
    client.queue("q").enqueue("x")
    result = cli("stats", "q", "nosuch", "--json")
    assert (result.code, [one["name"] for one in result.document["queues"]]) == (1, ["q"])
    assert result.err == "penstock: queue 'nosuch' is not shown: no queue 'nosuch'\n"


def buried(client: Penstock, count: int) -> list[str]:
    """Return the ids of this many dead letters, oldest first."""
    queue = client.queue("q")
    ids = queue.enqueue_many(range(count)).ids
    queue.bury(queue.reserve(count, block=0), "no")
    return ids


def test_redrive_all_some_or_named(cli: Cli, client: Penstock) -> None:
    """Dead letters are redriven: the oldest up to --limit, those named, or all."""
    ids = buried(client, 6)
    queue = client.queue("q")
    assert cli("redrive", "q", "--limit", "2", "--json").document == {"queue": "q", "redriven": 2}
    assert [view.id for view in queue.peek()] == ids[:2]
    assert cli("redrive", "q", ids[5]).out == "1 dead letter redriven\n"
    assert [view.id for view in queue.peek(state="dead")] == ids[2:5]
    assert cli("redrive", "q", "--json").document["redriven"] == 3
    assert queue.stats().dead == 0


def test_redrive_of_jobs_that_are_not_dead(cli: Cli, client: Penstock) -> None:
    """The exit code is 1 if a named job could not be redriven; the others were."""
    ids = buried(client, 2)
    client.queue("q").delete([ids[0]])
    result = cli("redrive", "q", *ids, "--json")
    assert (result.code, result.document["redriven"]) == (1, 1)
    assert result.err.startswith("penstock: 1 of 2 could not be redriven")
    assert [view.id for view in client.queue("q").peek()] == [ids[1]]


def test_bad_usage_of_redrive(cli: Cli, client: Penstock) -> None:
    """Ids with --limit are bad usage, a bad id or limit is an error; none is redriven."""
    ids = buried(client, 1)
    assert cli("redrive", "q", ids[0], "--limit", "1").code == 2
    assert cli("redrive", "q", "--limit", "0").code == 1
    bad = cli("redrive", "q", ids[0], "D-x")
    assert bad.code == 1
    assert bad.err.startswith("penstock: queue 'q' has no job whose id begins with 'D-x'")
    assert client.queue("q").stats().dead == 1


def test_promote(cli: Cli, client: Penstock) -> None:
    """Delayed and held jobs become ready; the document has each outcome."""
    queue = client.queue("q")
    held, late = queue.enqueue("held").id, queue.enqueue("late", delay=60).id
    queue.reserve(block=0)
    result = cli("promote", "q", held, late, late, "--json")
    assert result.code == 0
    assert result.document == {
        "queue": "q",
        "promoted": 2,
        "jobs": [{"id": held, "outcome": "done"}, {"id": late, "outcome": "done"}],
    }
    assert [job.id for job in queue.reserve(5, block=0)] == [held, late]
    assert cli("promote", "q", late).out == "1 job brought forward\n"


def test_signal(cli: Cli, client: Penstock) -> None:
    """A value is JSON, or text; what is not taken has the exit code 1, and the reason."""
    queue = client.queue("q")
    ids = [queue.enqueue(n).id for n in range(3)]
    once = queue.enqueue("once", lease=0, ttl=60).id
    assert cli("signal", "q", ids[0], "approval", '{"by": "ada"}').out == "signal approval: taken\n"
    again = cli("signal", "q", ids[0], "approval")
    assert (again.code, again.out) == (1, "signal approval: there already\n")
    assert "has an earlier signal of this name, or its wait has timed out" in again.err
    told = cli("signal", "q", ids[1], "approval", "yes, please", "--json")
    assert told.document == {
        "queue": "q", "id": ids[1], "name": "approval", "outcome": "taken",
    }  # fmt: skip
    assert "at most once (lease 0)" in cli("signal", "q", once, "approval").err
    queue.delete(ids)
    assert "was deleted before" in cli("signal", "q", ids[0], "approval").err
    bad = cli("signal", "q", once, "")
    assert bad.code == 1
    assert "name=" in bad.err


def test_errors(cli: Cli, client: Penstock) -> None:
    """Groups come with a trend and times; below them stands what is not listed."""
    queue = client.queue("q")
    for error in ("no user 'ada'", "no user 'bob'", "late", "no user 'eve'"):
        queue.enqueue(1)
        queue.bury(queue.reserve(), error)
    result = cli("errors", "q")
    shown = [(row[1].strip(), row[-1].strip()) for row in result.rows]
    assert shown == [("3", "no user '…'"), ("1", "late")]
    assert "█" in result.out
    assert result.err == ""
    few = cli("errors", "q", "-n", "1")
    assert len(few.rows) == 1
    assert few.err == "1 job in 1 more groups\n"
    queue.enqueue_many(range(3000))
    queue.bury(queue.reserve(1000, block=0), "late")
    queue.bury(queue.reserve(1000, block=0), "late")
    some = cli("errors", "q", "--limit", "10")
    assert some.err == "only the newest 1,000 are counted: see --limit\n"
    assert cli("errors", "q", "--state", "ready").rows[0][1].strip() == "1000"


def test_dead_letters_by_handler_and_error(cli: Cli, client: Penstock) -> None:
    """They are counted, and redriven, by handler and error; `show` has failures and trace."""
    queue = client.queue("q")
    for handler, error in (("a", "ValueError: 1"), ("a", "OSError: 2"), ("b", "ValueError: 1")):
        job = queue.enqueue(b"x", headers={"handler": handler})
        queue.bury(queue.reserve(1), error, trace=f"Traceback\n{error}")
    groups = cli("errors", "q", "--json").document["groups"]
    assert {(one["jobs"], one["handler"], one["example_error"]) for one in groups} == {
        (1, "a", "ValueError: 1"), (1, "a", "OSError: 2"), (1, "b", "ValueError: 1"),
    }  # fmt: skip
    assert "OSError: #" in cli("errors", "q").out
    told = cli("show", "q", job.id).out
    assert "failed at" in told
    assert told.count("ValueError: 1") == 3
    assert cli("redrive", "q", "--error", "ValueError", "--handler", "a").out.startswith("1 job")
    [group] = [one["id"] for one in groups if one["error"] == "OSError: #"]
    assert cli("redrive", "q", "--group", group).out == "1 job redriven\n"
    assert cli("redrive", "q", job.id, "--error", "x").code == 2
    assert queue.stats().dead == 1
    assert cli("redrive", "q", "--error", "ValueError").out == "1 job redriven\n"
    assert cli("errors", "q").err == "no dead jobs\n"


def test_cancel(cli: Cli, client: Penstock) -> None:
    """Waiting jobs are removed, active ones marked; others can't be cancelled."""
    queue = client.queue("q")
    one, other = queue.enqueue_many([b"x", b"y"])
    [taken] = queue.reserve(1)
    taken.progress(1, 4)
    taken.send_progress()
    assert cli("cancel", "q", one.id, other.id).out == "2 jobs cancelled\n"
    told = cli("show", "q", one.id).out
    assert "1 of 4 (25%)" in told
    assert "cancelled" in told
    gone = cli("cancel", "q", other.id, "--json")
    assert (gone.code, gone.document["cancelled"]) == (1, 0)
    assert gone.err == f"penstock: 1 of 1 could not be cancelled: {other.id} gone\n"


def test_postpone(cli: Cli, client: Penstock) -> None:
    """A ready job waits as long as a lease."""
    queue = client.queue("q")
    job_id = queue.enqueue("x", lease=600).id
    assert cli("postpone", "q", job_id).out == "1 job postponed\n"
    assert queue.reserve(block=0) == []
    [view] = queue.peek(state="scheduled")
    assert view.id == job_id
    assert view.next_in is not None
    assert 0 < view.next_in <= 600
    queue.promote([job_id])
    document = cli("postpone", "q", job_id, "--json").document
    assert document == {
        "queue": "q",
        "postponed": 1,
        "jobs": [{"id": job_id, "outcome": "done"}],
    }


@pytest.mark.parametrize(
    "command, counted, words",
    [("promote", "promoted", "brought forward"), ("postpone", "postponed", "postponed")],
)
def test_jobs_that_cannot_be_moved(
    cli: Cli, client: Penstock, command: str, counted: str, words: str
) -> None:
    """The exit code is 1 with a reason if a job is not moved; the others are moved."""
    queue = client.queue("q")
    [dead] = buried(client, 1)
    ready, late = queue.enqueue("x").id, queue.enqueue("x", delay=60).id
    gone = queue.enqueue("x").id
    queue.delete([gone])
    moved, refused = (late, ready) if command == "promote" else (ready, late)
    result = cli(command, "q", ready, late, dead, gone, "--json")
    outcomes = {job["id"]: job["outcome"] for job in result.document["jobs"]}
    assert (result.code, result.document[counted]) == (1, 1)
    assert outcomes == {moved: "done", refused: "refused", dead: "refused", gone: "gone"}
    assert result.err.startswith(f"penstock: 3 of 4 could not be {words}: ")
    assert f"{dead} refused" in result.err
    assert moved not in result.err


@pytest.mark.parametrize("command", ["promote", "postpone"])
def test_bad_ids_to_move(cli: Cli, client: Penstock, command: str) -> None:
    """Missing ids are bad usage; a malformed one is an error, and no job is moved."""
    queue = client.queue("q")
    late, ready = queue.enqueue("x", delay=60).id, queue.enqueue("x").id
    assert cli(command, "q").code == 2
    bad = cli(command, "q", late, ready, "D-x", "--json")
    assert (bad.code, bad.out) == (1, "")
    assert bad.err.startswith("penstock: queue 'q' has no job whose id begins with 'D-x'")
    client.queue("other").enqueue("x")
    other = cli(command, "other", late)
    assert (other.code, other.out) == (1, "")
    assert other.err.startswith("penstock: WrongQueue: ")
    counts = queue.stats()
    assert (counts.ready, counts.scheduled, client.queues()) == (1, 1, ["other", "q"])


def test_move_in_a_queue_that_is_gone(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """The exit code is 1, and the missing queue is named."""
    job_id = client.queue("q").enqueue("x").id
    real_backend.sync_client().delete("penstock:{q}:meta", "penstock:{q}:ready")
    result = cli("promote", "q", job_id, "--json")
    assert (result.code, result.out) == (1, "")
    assert result.err == "penstock: no queue 'q'\n"


def delivered_once(client: Penstock, count: int) -> list[str]:
    """Return the ids of this many jobs with lease 0 that were delivered and not acknowledged."""
    queue = client.queue("q")
    ids = [queue.enqueue("once", lease=0, ttl=100 + i).id for i in range(count)]
    queue.reserve(count, block=0)
    return ids


def test_evict_makes_room(cli: Cli, client: Penstock) -> None:
    """Delivered jobs with lease 0 go by end of ttl, then dead letters."""
    dead = buried(client, 2)
    ids = delivered_once(client, 3)
    queue = client.queue("q")
    kept = queue.enqueue("stays").id
    assert cli("evict", "q", "--count", "2", "--json").document == {"queue": "q", "evicted": 2}
    assert [view.id for view in queue.peek(state="active")] == ids[2:]
    assert cli("evict", "q", "--count", "2").out == "2 jobs removed\n"
    assert [view.id for view in queue.peek(state="dead")] == dead[1:]
    assert cli("evict", "q", "--json").document["evicted"] == 1
    assert cli("evict", "q", "--json").document["evicted"] == 0
    assert [view.id for view in queue.jobs()] == [kept]
    assert queue.stats().evicted == 5


def test_evict_leaves_dead_letters(cli: Cli, client: Penstock) -> None:
    """With --keep-dead only jobs with lease 0 go."""
    dead = buried(client, 2)
    delivered_once(client, 2)
    result = cli("evict", "q", "--keep-dead", "--json")
    assert (result.code, result.document["evicted"]) == (0, 2)
    assert sorted(view.id for view in client.queue("q").jobs()) == dead


def test_evict_takes_many_steps(cli: Cli, client: Penstock) -> None:
    """Several calls remove jobs; no more than --count."""
    buried(client, 2500)
    assert cli("evict", "q").out == "100 jobs removed\n"
    assert cli("evict", "q", "--count", "2300", "--json").document["evicted"] == 2300
    assert cli("evict", "q", "--count", "9999", "--json").document["evicted"] == 100
    assert client.queue("q").stats().dead == 0


def test_bad_usage_of_evict(cli: Cli, client: Penstock) -> None:
    """No job is removed."""
    buried(client, 1)
    assert cli("evict", "q", "--count", "many").code == 2
    for count in ("0", "-1"):
        refused = cli("evict", "q", "--count", count)
        assert (refused.code, refused.out) == (2, "")
        assert "--count" in refused.err
    assert client.queue("q").stats().dead == 1


def one_in_each_state(client: Penstock) -> None:
    """Make ready 1, scheduled 1, active 1, dead 1."""
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
    """The default is ready, scheduled and parked jobs."""
    one_in_each_state(client)
    options = [part for state in states for part in ("--state", state)]
    document = cli("purge", "q", "--yes", "--json", *options).document
    counts = client.queue("q").stats()
    assert (counts.ready, counts.scheduled, counts.active, counts.dead) == left
    assert document == {
        "queue": "q",
        "states": list(dict.fromkeys(states)) or ["ready", "scheduled", "parked"],
        "purged": 4 - sum(left),
    }


def test_purge_asks(cli: Cli, client: Penstock) -> None:
    """The question has the number; only `y` removes; no answer means no; stdout
    stays a document.
    """
    one_in_each_state(client)
    for answer in (b"n\n", b""):
        refused = cli("purge", "q", stdin=answer)
        assert (refused.code, refused.out) == (1, "")
        assert "Remove these jobs of q: 1 ready, 1 scheduled, 0 parked?" in refused.err
        assert client.queue("q").stats().ready == 1
    agreed = cli("purge", "q", "--json", stdin=b"y\n")
    assert (agreed.code, agreed.document["purged"]) == (0, 2)


def test_purge_of_nothing(cli: Cli, client: Penstock) -> None:
    """An unknown state is bad usage."""
    assert cli("purge", "q", "--state", "lost", "--yes").code == 2
    assert client.queues() == []


def test_sweep_removes_expired_jobs(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """The named queues are swept, or all of them."""
    for name in ("a", "b"):
        client.queue(name).enqueue("stays")
        client.queue(name).enqueue_many(range(3), ttl=0.001)
    real_backend.sync_client().blpop(["no such key"], 0.01)  # until their ttl has ended
    swept = cli("sweep", "b", "--json").document
    assert swept == {"removed": 3, "queues": [{"queue": "b", "removed": 3}]}
    rows = cli("sweep").rows
    assert [[cell.strip() for cell in row] for row in rows] == [["a", "3"], ["b", "0"]]
    assert [client.queue(name).stats().ready for name in ("a", "b")] == [1, 1]


def filled(client: Penstock, *names: str) -> None:
    """Make queues with a job in each state, settings, a pause and a dedup id."""
    for name in names:
        queue = client.queue(name)
        queue.configure(max_length=50)
        queue.enqueue_many(range(4), dedup_id=str)
        queue.enqueue("later", delay=60)
        first, _ = queue.reserve(2, block=0)
        first.bury("no")
        queue.pause("in")


def test_clear_removes_whole_queues(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Jobs in every state, settings and ids of the named queues are removed, and no others."""
    filled(client, "a", "b", "c")
    result = cli("clear", "a", "c", "a", "--yes", "--json")
    assert (result.code, result.err) == (0, "")
    assert result.document == {
        "jobs": 10, "queues": [{"queue": "a", "jobs": 5}, {"queue": "c", "jobs": 5}],
    }  # fmt: skip
    assert client.queues() == ["b"]
    raw = real_backend.sync_client()
    assert raw.keys("penstock:{[ac]}:*") == []
    counts = client.queue("b").stats()
    assert (counts.ready, counts.scheduled, counts.active, counts.dead) == (2, 1, 1, 1)
    assert counts.settings.max_length == 50
    assert client.queue("b").dedup_status("3") is not None
    assert cli("clear", "b", "-y").out == "1 queue removed, 5 jobs with them\n"


def test_clear_asks(cli: Cli, client: Penstock) -> None:
    """The question has queues and jobs; only `y` removes; stdout stays a document."""
    filled(client, "a", "b\x1b")
    for answer in (b"n\n", b"", b"maybe\n"):
        refused = cli("clear", "a", "b\x1b", stdin=answer)
        assert (refused.code, refused.out) == (1, "")
        question = "Remove these queues with all their jobs: a (5 jobs), b\\x1b (5 jobs)?"
        assert question in refused.err
        assert "penstock: nothing was removed" in refused.err
        assert client.queues() == ["a", "b\x1b"]
    agreed = cli("clear", "a", "--json", stdin=b"y\n")
    assert (agreed.code, agreed.document["jobs"]) == (0, 5)
    assert client.queues() == ["b\x1b"]


def test_clear_of_every_queue(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """--all clears the queues of the prefix after a question; other prefixes keep theirs."""
    filled(client, *(f"q{n:02}" for n in range(12)))
    raw = real_backend.sync_client()
    raw.set("theirs", 1)
    with Penstock(real_backend.sync_client(), prefix="other") as other:
        other.queue("q00").enqueue("x")
        refused = cli("clear", "--all", stdin=b"no\n")
        assert refused.code == 1
        assert "q09 (5 jobs) and 2 more?" in refused.err
        assert len(client.queues()) == 12
        result = cli("clear", "--all", "--yes", "--json")
        assert (result.code, result.document["jobs"]) == (0, 60)
        assert len(result.document["queues"]) == 12
        assert client.queues() == []
        assert other.queues() == ["q00"]
    assert raw.get("theirs") == b"1"
    nothing = cli("clear", "--all")
    assert (nothing.code, nothing.out) == (0, "0 queues removed, 0 jobs with them\n")


def test_clear_of_nothing(cli: Cli, client: Penstock) -> None:
    """If a queue is missing, nothing is cleared."""
    filled(client, "a")
    result = cli("clear", "a", "nosuch", "--yes", "--json")
    assert (result.code, result.err) == (1, "penstock: no queue 'nosuch'\n")
    assert client.queues() == ["a"]


@pytest.mark.parametrize("argv", [[], ["--yes"], ["a", "--all"], ["a", "--all", "--yes"]], ids=str)
def test_bad_usage_of_clear(cli: Cli, client: Penstock, argv: list[str]) -> None:
    """Either names or --all are needed; nothing is removed."""
    filled(client, "a")
    result = cli("clear", *argv)
    assert (result.code, result.out) == (2, "")
    assert "--all" in result.err
    assert client.queues() == ["a"]


def test_redrive_of_a_job_whose_id_is_taken(cli: Cli, client: Penstock) -> None:
    """It stays dead, as another job has its dedup id; other dead letters are redriven."""
    queue = client.queue("q")
    ids = queue.enqueue_many(["a", "b"], dedup_id=str).ids
    queue.bury(queue.reserve(2, block=0), "no")
    queue.enqueue("a again", dedup_id="a")
    result = cli("redrive", "q", *ids, "--json")
    assert (result.code, result.document["redriven"]) == (1, 1)
    assert [view.id for view in queue.peek(state="dead")] == ids[:1]
    assert cli("redrive", "q").out == "0 dead letters redriven\n"


def test_the_history_of_a_queue(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Rows of hours and minutes, and times by handler; also before there is any."""
    q = client.queue("mail")
    q.enqueue(1)
    assert cli("stats", "mail", "--history").out.startswith("queue 'mail' has no history")
    handlers = Handlers()
    handlers.handler("resize")(lambda size: size)
    raw = real_backend.sync_client()
    for _ in range(2):
        q.enqueue(["x"], headers={"handler": "resize"})
        Worker(client, "mail", handlers, burst=True).run()
        advance(raw, q.ops, 600)
    q.enqueue(["x"], headers={"handler": "resize"})
    Worker(client, "mail", handlers, burst=True).run()
    shown = cli("stats", "mail", "--history")
    assert shown.code == 0
    assert re.search(r"resize +3 +\S+ ms", shown.out)
    assert re.search(r"until +added +done +failed +dead +waiting", shown.out)
    document = cli("stats", "mail", "--history", "--json").document
    assert sum(point["done"] for point in document["history"]["minutes"]) == 2
    [resize] = document["history"]["handlers"]
    assert (resize["name"], resize["running"]["count"]) == ("resize", 3)
    assert cli("stats", "--history").code == 2
    assert cli("configure", "mail", "history=false").code == 0
    assert client.queue("mail").stats().settings.history is False
