"""Tests of enqueue, peek, scan, show, result and status."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import redis

from penstock import (
    Dedup,
    Enqueued,
    Handlers,
    JobSearch,
    Penstock,
    RetryPolicy,
    ScanPage,
    Steps,
    Worker,
    parse_id,
)
from penstock.cli import output
from penstock.cli.jobs import enqueue
from penstock.core.enqueuing.options import OPTIONS
from penstock.core.jobs.job import set_result
from penstock.core.jobs.record import key_hash
from penstock.core.jobs.results import results_of
from penstock.embedded import EmbeddedServer
from tests.cli.support import Cli, Result, following
from tests.support.backends import Backend


def test_enqueue_adds_the_body_as_bytes_and_prints_the_id(cli: Cli, client: Penstock) -> None:
    """Text on the command line becomes bytes; the output is the id."""
    result = cli("enqueue", "q", "grüße")
    job_id, state = result.out.split()
    assert (result.code, state, result.err) == (0, "ready", "")
    [job] = client.queue("q").reserve(block=0)
    assert (job.id, job.body) == (job_id, "grüße".encode())


def test_enqueue_json(cli: Cli, client: Penstock) -> None:
    """With --json-body a consumer gets the object; with --json the output is a document."""
    result = cli("enqueue", "q", '{"to": ["ada", 1.5, null]}', "--json-body", "--json")
    [job] = client.queue("q").reserve(block=0)
    assert job.body == {"to": ["ada", 1.5, None]}
    assert result.document == {
        "queue": "q",
        "count": 1,
        "duplicates": 0,
        "jobs": [added(job.id)],
    }


class Stable:
    """An object equal to every stable id, and to an empty one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and len(other) in (0, 12, 14)

    __hash__ = None  # type: ignore[assignment]


def added(job_id: str, **changes: Any) -> dict[str, Any]:
    """Return the expected document of one job: the attributes of `Enqueued`."""
    return {**Enqueued(job_id, **{"state": "ready", **changes}).as_dict(), "stable_id": Stable()}


def test_the_command_has_the_options_of_an_enqueue() -> None:
    """All but the absolute time and those of a bounded queue."""
    found = inspect.signature(enqueue).parameters
    split = {
        "headers": "header",
        "durable": "fsynced",
        "dedup": "on_duplicate",
        "retry": "max_attempts",
    }
    assert {name for name in OPTIONS if split.get(name, name) not in found} == {
        "at", "block", "max_length"
    }  # fmt: skip


def test_enqueue_takes_every_option(cli: Cli, client: Penstock) -> None:
    """Delay, lease, ttl and headers reach the job."""
    times = ["--delay", "60", "--lease", "7", "--ttl", "90"]
    result = cli("enqueue", "q", "", *times, "--header", "a=1", "--header", "b=x=y", "--json")
    [job] = client.queue("q").peek(state="scheduled")
    assert result.document["jobs"] == [added(job.id, state="scheduled")]
    assert (job.raw, job.lease, dict(job.headers)) == (b"", 7, {"a": "1", "b": "x=y"})
    assert job.due is not None
    assert job.expires is not None
    assert (round(job.due - job.created), round(job.expires - job.created)) == (60, 90)


def test_enqueue_reads_stdin_untouched(cli: Cli, client: Penstock) -> None:
    """`-` reads the whole stdin, of any bytes."""
    body = bytes(range(256)) + b"\n"
    assert cli("enqueue", "q", "-", stdin=body).code == 0
    assert [job.body for job in client.queue("q").peek()] == [body]


def test_enqueue_lines(cli: Cli, client: Penstock) -> None:
    """Each line is a job, in order, also empty ones; the last line needs no newline."""
    result = cli("enqueue", "q", "--lines", "--json", stdin=b"a\n\n\xff\r\nlast")
    views = client.queue("q").peek()
    assert [view.raw for view in views] == [b"a", b"", b"\xff\r", b"last"]
    assert result.document["count"] == 4
    assert [job["id"] for job in result.document["jobs"]] == [view.id for view in views]
    assert cli("enqueue", "q", "--lines", stdin=b"").out == "0 jobs added\n"


def test_enqueue_lines_of_json_in_several_chunks(cli: Cli, client: Penstock) -> None:
    """2001 lines become objects."""
    lines = b"".join(b'{"n": %d}\n' % n for n in range(2001))
    assert cli("enqueue", "q", "--lines", "--json-body", stdin=lines).out == "2,001 jobs added\n"
    assert client.queue("q").stats().ready == 2001
    assert client.queue("q").peek(1, start=1000)[0].body == {"n": 1000}


@pytest.mark.parametrize("good, code", [(0, 1), (1500, 1)])
def test_a_bad_line_is_named(cli: Cli, client: Penstock, good: int, code: int) -> None:
    """Complete chunks before it are added, and the message has their number."""
    result = cli("enqueue", "q", "--lines", "--json-body", stdin=b"1\n" * good + b"{\n")
    accepted = good // 1000 * 1000
    assert (result.code, client.queue("q").stats().ready) == (code, accepted)
    assert f"line {good + 1}='{{': must be JSON" in result.err
    assert (f"{accepted} jobs were added" in result.err) == (accepted > 0)


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["q"], "give a BODY"),
        (["q", "x", "--lines"], "give a BODY"),
        (["q", "x", "--header", "novalue"], "NAME=VALUE"),
        (["q", "x", "--header", "=v"], "NAME=VALUE"),
        (["q", "x", "--delay", "soon"], "--delay"),
        (["q", "x", "--dedup-id", "a", "--on-duplicate", "ask"], "--on-duplicate"),
        (["q", "x", "--dedup-id", "a", "--dedup-until", "dawn"], "--dedup-until"),
        (["q", "x", "--replicas", "some"], "--replicas"),
        (["q", "x", "--max-attempts", "some"], "--max-attempts"),
        ([], "QUEUE"),
    ],
)
def test_bad_usage_of_enqueue(cli: Cli, client: Penstock, argv: list[str], complaint: str) -> None:
    """The exit code is 2, no job is added, and the line has the reason."""
    result = cli("enqueue", *argv)
    assert (result.code, result.out) == (2, "")
    assert complaint in result.err
    assert client.queues() == []


@pytest.mark.parametrize(
    "argv, complaint",
    [
        (["", "x"], "queue='': a queue's name can't be empty"),
        (["q", "x", "--delay", "-1"], "delay=-1.0: can't be negative"),
        (["q", "x", "--delay", "nan"], "delay=nan: must be a finite number"),
        (["q", "x", "--ttl", "1", "--delay", "2"], "must be longer than the delay"),
        (["q", "x", "--lease", "9999999"], "at most 24 days"),
        (["q", "{", "--json-body"], "must be JSON"),
        (["q" * 1025, "x"], "at most 1024 bytes"),
        (["q", "x", "--dedup-id", ""], "id='': must be a str of 1 to 1024 bytes"),
        (["q", "x", "--dedup-window", "5"], "work only with --dedup-id"),
        (["q", "x", "--on-duplicate", "update"], "work only with --dedup-id"),
        (["q", "x", "--dedup-id", "a", "--dedup-until", "enqueued"], "needs a window"),
        (["q", "x", "--replicas", "-1"], "replicas=-1: "),
        (["q", "x", "--timeout", "0"], "timeout=0.0: "),
        (["q", "x", "--max-attempts", "-1"], "max_attempts=-1: "),
        (["q", "x", "--backoff-base", "0"], "base=0.0: can't be zero"),
        (["q", "x", "--backoff-cap", "nan"], "cap=nan: must be a finite number"),
    ],
)
def test_errors_of_the_library_are_one_line(
    cli: Cli, client: Penstock, argv: list[str], complaint: str
) -> None:
    """The exit code is 1, no job is added, and there is no traceback."""
    result = cli("enqueue", *argv)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("penstock: BadArgument: ")
    assert result.err.count("\n") == 1
    assert complaint in result.err
    assert client.queues() == []


def test_a_full_or_paused_queue_refuses(cli: Cli, client: Penstock) -> None:
    """The exit code is 1, and the line has the reason."""
    queue = client.queue("q")
    queue.configure(max_length=1)
    assert cli("enqueue", "q", "x").code == 0
    full = cli("enqueue", "q", "x")
    assert (full.code, full.err) == (
        1, "penstock: QueueFull: queue 'q' is full: 1 jobs wait, the limit is 1\n"
    )  # fmt: skip
    queue.pause("in")
    paused = cli("enqueue", "q", "x")
    assert (paused.code, paused.err) == (
        1, "penstock: QueuePaused: queue 'q' is paused (in): resume() ends that\n"
    )  # fmt: skip


# -- dedup ids ---------------------------------------------------------------------------


def with_owner(client: Penstock, where: str, **options: Any) -> str:
    """Return the id of the job with dedup id "a" in this state; "window" means done."""
    queue = client.queue("q")
    delay = 60 if where == "scheduled" else 0
    window = 600 if where == "window" else None
    job_id = queue.enqueue("old", dedup=Dedup("a", window=window), delay=delay, **options).id
    if where in ("active", "window"):
        [job] = queue.reserve(block=0)
        if where == "window":
            job.ack()
    return job_id


@pytest.mark.parametrize(
    "where, on_duplicate, action, state",
    [
        ("ready", None, "refused", "ready"),
        ("ready", "requeue", "refused", "ready"),
        ("ready", "update", "updated", "ready"),
        ("ready", "requeue+update", "updated", "ready"),
        ("scheduled", "refuse", "refused", "scheduled"),
        ("scheduled", "debounce", "updated", "scheduled"),
        ("active", "update", "refused", "active"),
    ],
)
def test_enqueue_of_a_duplicate_names_the_existing_job(
    cli: Cli, client: Penstock, where: str, on_duplicate: str | None, action: str, state: str
) -> None:
    """The answer is the existing job and the action; its content changes only by an update."""
    owner = with_owner(client, where)
    chosen = ["--on-duplicate", on_duplicate] if on_duplicate else []
    delay = ["--delay", "600"] if on_duplicate == "debounce" else []
    argv = ["enqueue", "q", "new", "--dedup-id", "a", *chosen, *delay]
    result = cli(*argv)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{owner} {state} (duplicate: {action})\n"
    document = cli(*argv, "--json").document
    assert (document["count"], document["duplicates"]) == (0, 1)
    assert document["jobs"] == [added(owner, state=state, duplicate=True, action=action)]
    view = client.queue("q").show(owner)
    assert view is not None
    assert view.raw == (b"new" if action == "updated" else b'"old"')
    assert [one.id for one in client.queue("q").jobs()] == [owner]
    if delay:
        assert view.next_in == pytest.approx(600, abs=60)


def test_enqueue_of_a_duplicate_in_a_window(cli: Cli, client: Penstock) -> None:
    """The job is done, so no id is printed; the line keeps its columns."""
    with_owner(client, "window")
    result = cli("enqueue", "q", "new", "--dedup-id", "a")
    assert (result.code, result.out, result.err) == (0, "- window (duplicate: refused)\n", "")
    document = cli("enqueue", "q", "new", "--dedup-id", "a", "--json").document
    assert document["jobs"] == [added("", state="window", duplicate=True, action="refused")]


@pytest.mark.parametrize("how", ["requeue", "requeue+debounce"])
@pytest.mark.parametrize("where", ["active", "window"])
def test_enqueue_to_run_afterwards(cli: Cli, client: Penstock, where: str, how: str) -> None:
    """With requeue the job is added, and the answer is its own id."""
    with_owner(client, where)
    result = cli("enqueue", "q", "new", "--dedup-id", "a", "--on-duplicate", how)
    job_id, *told = result.out.split()
    assert (result.code, told) == (0, ["scheduled", "(requeued)"])
    status = client.queue("q").dedup_status("a")
    assert status is not None
    successor = status.successor if where == "active" else status.job
    assert successor is not None
    assert (successor.id, successor.raw) == (job_id, b"new")


@pytest.mark.parametrize(
    "options, free_after",
    [
        ([], "ack"),
        (["--dedup-until", "finished"], "ack"),
        (["--dedup-until", "started"], "reserve"),
        (["--dedup-window", "600"], None),
        (["--dedup-until", "enqueued", "--dedup-window", "600"], None),
    ],
    ids=str,
)
def test_enqueue_sets_until_when_an_id_is_taken(
    cli: Cli, client: Penstock, options: list[str], free_after: str | None
) -> None:
    """The id is taken until the job has ended or started, or for a window."""
    queue = client.queue("q")
    assert cli("enqueue", "q", "x", "--dedup-id", "ü %;a", *options).code == 0
    taken = {"enqueue": queue.dedup_status("ü %;a") is not None}
    [job] = queue.reserve(block=0)
    assert job.dedup_id == "ü %;a"
    taken["reserve"] = queue.dedup_status("ü %;a") is not None
    job.ack()
    taken["ack"] = queue.dedup_status("ü %;a") is not None
    freed = next((step for step, is_taken in taken.items() if not is_taken), None)
    assert freed == free_after


def test_enqueue_lines_with_one_dedup_id(cli: Cli, client: Penstock) -> None:
    """All lines have the id: the first job is added, or the last one updates it."""
    refused = cli("enqueue", "q", "--lines", "--dedup-id", "a", stdin=b"1\n2\n3\n")
    assert (refused.code, refused.out) == (0, "1 job added, 2 duplicates: 2 refused\n")
    assert [view.raw for view in client.queue("q").peek()] == [b"1"]
    options = ["--lines", "--dedup-id", "a", "--on-duplicate", "update"]
    updated = cli("enqueue", "q", *options, "--json", stdin=b"4\n5\n")
    [view] = client.queue("q").peek()
    assert view.raw == b"5"
    document = updated.document
    assert (document["count"], document["duplicates"]) == (0, 2)
    assert document["jobs"] == [added(view.id, duplicate=True, action="updated")] * 2
    told = cli("enqueue", "q", *options, stdin=b"6\n").out
    assert told == "0 jobs added, 1 duplicates: 1 updated\n"


def test_enqueue_asks_replicas(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """With --replicas the answer has their number; with too few the job is withdrawn."""
    primary = make_server(tcp=True, args=("--repl-diskless-sync-delay", "0"))
    replica = make_server(tcp=True)
    with redis.Redis.from_url(replica.url) as raw:
        raw.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    with redis.Redis.from_url(primary.url, socket_timeout=60) as raw:
        raw.set("written", 1)
        assert raw.wait(1, 30_000) == 1  # the replica is online
    url, options = primary.url, ["--timeout", "30", "--json"]
    copied = cli_jobs(run_cli("enqueue", "q", "x", "--replicas", "1", *options, url=url))
    assert [job["replicas"] for job in copied] == [1]
    alone = cli_jobs(run_cli("enqueue", "q", "x", "--replicas", "0", "--json", url=url))
    assert [job["replicas"] for job in alone] == [0]
    lacking = run_cli("enqueue", "q", "y", "--replicas", "2", "--timeout", "0.05", url=url)
    assert (lacking.code, lacking.out) == (1, "")
    assert lacking.err.startswith("penstock: NotReplicated: ")
    with Penstock(url) as client:
        assert [view.raw for view in client.queue("q").peek()] == [b"x", b"x"]


def cli_jobs(result: Result) -> list[dict[str, Any]]:
    """Return the jobs of a successful command's document."""
    assert (result.code, result.err) == (0, "")
    jobs: list[dict[str, Any]] = result.document["jobs"]
    return jobs


# -- result --------------------------------------------------------------------------------


def test_result_prints_the_value(cli: Cli, client: Penstock) -> None:
    """The value is printed as JSON; `show` names the state; without a result the exit code is 1."""
    job = cli("enqueue", "q", "x", "--result-ttl", "60", "--json").document["jobs"][0]["id"]
    waiting = cli("result", job, "--timeout", "0")
    assert (waiting.code, "has not ended within 0.0 s" in waiting.err) == (1, True)
    (taken,) = client.queue("q").reserve(block=0)
    ops = client.queue("q").ops
    set_result(taken, ('{"ü":"y"}'.encode(), ""))
    text = results_of([taken], [0.25])
    client.queue("q").route.node.executor.run(ops.ack([taken], results=text))
    assert cli("result", job).out == '{"ü": "y"}\n'
    assert cli("result", "q", job, "--json").document == {"ü": "y"}
    assert cli("show", job, "--json").document["state"] == "done"
    told = [line.split()[0] for line in cli("show", job).out.splitlines()[2:]]
    assert told == ["id", "queue", "state", "created", "finished", "age", "attempts"]
    (other,) = client.queue("q").enqueue_many([b"1"]).ids
    client.queue("q").delete([other])
    gone = cli("result", other)
    assert (gone.code, "nothing is kept of it" in gone.err) == (1, True)
    assert "such as result_ttl=3600" in gone.err


# -- status --------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["ready", "scheduled", "active"])
def test_status_shows_the_job_that_has_the_id(cli: Cli, client: Penstock, where: str) -> None:
    """The job is printed as in `show`, with its state; without a job there is no output."""
    owner = with_owner(client, where)
    document = cli("dedup", "q", "a", "--json").document
    shown = cli("show", "q", owner, "--json").document
    job = document.pop("job")
    for clock in ("now", "age", "idle", "next_in"):
        job.pop(clock), shown.pop(clock)
    assert job == shown
    assert document == {
        "queue": "q", "dedup_id": "a", "state": where, "window_ends": None, "successor": None,
    }  # fmt: skip
    result = cli("dedup", "q", "a")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"a: {where}\n")
    [row] = [[cell.strip() for cell in row] for row in result.rows]
    assert row[:3] == ["job", owner, where]
    assert row[-1] == '"old"'


def test_status_shows_a_successor(cli: Cli, client: Penstock) -> None:
    """The successor is shown; it has no due time."""
    owner = with_owner(client, "active")
    successor = client.queue("q").enqueue("new", dedup=Dedup("a", on_duplicate="requeue")).id
    document = cli("dedup", "q", "a", "--json").document
    assert (document["job"]["id"], document["successor"]["id"]) == (owner, successor)
    assert (document["successor"]["due"], document["successor"]["next_in"]) == (None, None)
    rows = [[cell.strip() for cell in row] for row in cli("dedup", "q", "a").rows]
    assert [row[:3] for row in rows] == [
        ["job", owner, "active"],
        ["successor", successor, "scheduled"],
    ]


def test_status_shows_a_window(cli: Cli, client: Penstock) -> None:
    """Its end is shown, and the job that waits for it, if any."""
    with_owner(client, "window")
    found = client.queue("q").dedup_status("a")
    assert found is not None
    empty = cli("dedup", "q", "a", "--json").document
    assert empty == {
        "queue": "q", "dedup_id": "a", "state": "window", "window_ends": found.window_ends,
        "job": None, "successor": None,
    }  # fmt: skip
    told = cli("dedup", "q", "a").out
    assert told == f"a: window, ends {output.moment(found.window_ends)}\n"
    successor = client.queue("q").enqueue("new", dedup=Dedup("a", on_duplicate="requeue")).id
    document = cli("dedup", "q", "a", "--json").document
    assert (document["state"], document["job"]["id"], document["successor"]) == (
        "window", successor, None
    )  # fmt: skip
    assert document["job"]["due"] == document["window_ends"] == found.window_ends


def test_status_of_a_free_id(cli: Cli, client: Penstock) -> None:
    """The exit code is 1, also in the document."""
    queue = client.queue("q")
    queue.enqueue("x", dedup_id="a")
    free = cli("dedup", "q", "b")
    assert (free.code, free.out) == (1, "")
    assert free.err == "penstock: no job has the dedup id 'b' in queue 'q'\n"
    document = cli("dedup", "q", "b", "--json")
    assert (document.code, document.document["state"], document.document["job"]) == (1, None, None)
    assert client.queues() == ["q"]
    for argv in (["q", ""], ["q", "x" * 1025], ["", "a"]):
        refused = cli("dedup", *argv)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("penstock: BadArgument: ")
    assert cli("dedup", "q").code == 2


def test_status_escapes_an_id(cli: Cli, client: Penstock) -> None:
    """Control characters of an id are escaped, here and in `show`."""
    name = "a\x1b[2J\n[red]"
    job_id = client.queue("q").enqueue("x", dedup_id=name).id
    for argv in (["dedup", "q", name], ["show", job_id]):
        out = cli(*argv).out
        assert r"a\x1b[2J\n[red]" in out
        assert "\x1b" not in out
    assert cli("dedup", "q", name, "--json").document["dedup_id"] == name


# -- peek ----------------------------------------------------------------------------------


BODIES: list[tuple[bytes, str, Any]] = [
    (b"text", "bytes", "text"),
    (b"\xff\x00", "bytes", {"base64": "/wA="}),
    (b"", "bytes", ""),
]


def test_peek_shows_bodies_as_documented(cli: Cli, client: Penstock) -> None:
    """JSON bodies are values; bytes are text if they are UTF-8, otherwise base 64."""
    queue = client.queue("q")
    queue.enqueue_many([body for body, _, _ in BODIES])
    queue.enqueue({"a": [1, "ü\x1b"]})
    queue.enqueue("text")
    document = cli("peek", "q", "--json").document
    shown = [(job["codec"], job["body"]) for job in document.pop("jobs")]
    assert document == {"queue": "q", "state": "ready", "start": 0, "newest": False}
    assert shown == [
        *((codec, body) for _, codec, body in BODIES),
        ("json", {"a": [1, "ü\x1b"]}),
        ("json", "text"),
    ]


def test_an_undecodable_body_is_shown_as_bytes(
    cli: Cli, client: Penstock, real_backend: Backend
) -> None:
    """NaN, broken JSON or an unknown codec does not stop a peek."""
    number = parse_id(client.queue("q").enqueue("x").id).number
    raw: Any = real_backend.sync_client()
    raw.delete("penstock:{q}:ready")
    ms, seq = number.decode().split("-")
    records = [b"1;c=json\nNaN", b"1;c=json\n{", b"1;c=zstd\n\xff", b"1;c=json\n" + b"[" * 100_000]
    for place, record in enumerate(records, 1):
        raw.xadd("penstock:{q}:ready", {"j": record}, id=f"{ms}-{int(seq) + place}")
    jobs = cli("peek", "q", "--json").document["jobs"]
    assert [(job["codec"], job["body"]) for job in jobs] == [
        ("bytes", "NaN"),
        ("bytes", "{"),
        ("zstd", {"base64": "/w=="}),
        ("bytes", "[" * 100_000),
    ]


def test_a_job_has_the_same_fields_everywhere(cli: Cli, client: Penstock) -> None:
    """The names are those of JobView, and stable for programs."""
    queue = client.queue("q")
    options: dict[str, Any] = {"lease": 9, "ttl": 600, "dedup_id": "d=1", "retry": RetryPolicy(5)}
    job_id = queue.enqueue(b"x", headers={"h": "v"}, **options).id
    [job] = queue.reserve(block=0)
    job.nack(delay=300, error="line busy")
    [peeked] = cli("peek", "q", "--state", "scheduled", "--json").document["jobs"]
    [found] = cli("scan", "q", "--json").document["jobs"]
    shown = cli("show", "q", job_id, "--json").document
    view = queue.show(job_id)
    assert view is not None
    assert [one["text"] for one in shown.pop("failures")] == ["line busy"]
    assert shown.pop("trace") == ""
    assert (shown.pop("steps"), shown.pop("log")) == ([], [])
    for document in (peeked, found, shown):
        assert view.now - 60 < document["now"] <= view.now
        assert document.pop("idle") == pytest.approx(document["now"] - view.delivered)
        assert document.pop("next_in") == pytest.approx(view.due - document["now"])
        assert document.pop("age") == pytest.approx(document["now"] - view.created)
        assert document.pop("ttl_left") == pytest.approx(view.expires - document.pop("now"))
        assert document == {
            "id": job_id, "queue": "q", "state": "scheduled", "codec": "bytes", "body": "x",
            "headers": {"h": "v"}, "dedup_id": "d=1", "stable_id": job.stable_id,
            "created": view.created, "due": view.due,
            "lease": 9.0, "lease_until": None, "expires": view.expires, "died": None,
            "finished": None,
            "delivered": view.delivered, "owner": client.owner, "deliveries": 1, "nacks": 1,
            "crashes": 0, "releases": 0, "error": "line busy", "attempts": 1, "redeliveries": 0,
            "snoozes": 0, "unknowns": 0, "cancelled": None, "progress": None, "priority": 0,
            "key_hash": None, "batch": None,
            "key_held": False, "key_taken": None, "key_limit": None, "signal": None,
            "step": None, "open_calls": 0, "caller": None,
            "on_dead": None, "follow_up": None, "death": None,
            "ttl": 600.0, "retry": {"max_attempts": 5, "base": None, "cap": None},
        }  # fmt: skip


@pytest.mark.parametrize("state", ["ready", "scheduled", "active", "dead"])
def test_peek_knows_every_state(cli: Cli, client: Penstock, state: str) -> None:
    """A job in each state is found there only, in the document and the table."""
    ids = one_in_each_state(client)
    jobs = cli("peek", "q", "--state", state, "--json").document["jobs"]
    assert [(job["id"], job["state"]) for job in jobs] == [(ids[state], state)]
    rows = cli("peek", "q", "--state", state).rows
    assert [row[0] for row in rows] == [ids[state]]
    assert ("hopeless" in rows[0][-1]) == (state == "dead")


def test_peek_hints_at_errors(cli: Cli, client: Penstock) -> None:
    """Below several dead letters a line says how to count them by handler and error."""
    queue, hint = client.queue("q"), "penstock errors q"
    for n in (1, 2):
        queue.enqueue(n)
        queue.bury(queue.reserve(), reason="hopeless")
        assert (hint in cli("peek", "q", "--state", "dead").err) == (n == 2)
    assert hint not in cli("peek", "q", "--state", "dead", "--json").err
    queue.enqueue_many([3, 4])
    assert hint not in cli("peek", "q").err


def test_peek_pages(cli: Cli, client: Penstock) -> None:
    """--n and --start select the page."""
    client.queue("q").enqueue_many(range(30))
    jobs = cli("peek", "q", "--json", "--n", "3", "--start", "25").document["jobs"]
    assert [job["body"] for job in jobs] == [25, 26, 27]
    assert len(cli("peek", "q").rows) == 10


@pytest.mark.parametrize(
    "options, bodies",
    [
        (["--start", "-3"], [27, 28, 29]),
        (["--start", "-3", "-n", "2"], [27, 28]),
        (["--start", "-31"], []),
        (["--start", "30"], []),
        (["--newest", "-n", "2"], [29, 28]),
        (["--newest", "--start", "28"], [1, 0]),
    ],
    ids=str,
)
def test_peek_from_the_end(
    cli: Cli, client: Penstock, options: list[str], bodies: list[int]
) -> None:
    """A negative start counts from the end, --newest goes backwards; there is nothing beyond."""
    client.queue("q").enqueue_many(range(30))
    result = cli("peek", "q", "--json", *options)
    assert (result.code, [job["body"] for job in result.document["jobs"]]) == (0, bodies)
    assert result.document["newest"] is ("--newest" in options)


def test_peek_escapes_and_does_not_cut_a_body(cli: Cli, client: Penstock) -> None:
    """Control characters are escaped, markup is text, an id is not cut in a pipe."""
    job_id = client.queue("q").enqueue(b"[red]\x1b[2J\n\xff" + b"x" * 200).id
    out = cli("peek", "q").out
    assert r"[red]\x1b[2J\n\xffxxx" in out
    assert "\x1b" not in out
    assert job_id in out
    assert "x…" in out


def test_an_empty_answer_has_a_reason(cli: Cli, client: Penstock) -> None:
    """An empty list is no failure."""
    client.queue("q").pause()
    empty = cli("peek", "q")
    assert (empty.code, empty.out, empty.err) == (0, "", "no ready jobs\n")
    assert cli("peek", "q", "--json").document["jobs"] == []


@pytest.mark.parametrize(
    "argv, code",
    [
        (["q", "--state", "lost"], 2),
        (["q", "--n", "many"], 2),
        (["q", "--n", "0"], 1),
        (["q", "--n", "1001"], 1),
        (["q", "--start", "-1001"], 1),
        (["q", "--newest", "--start", "-1"], 1),
    ],
)
def test_bad_usage_of_peek(cli: Cli, argv: list[str], code: int) -> None:
    """Errors that the parser finds are bad usage, those of the library are errors."""
    result = cli("peek", *argv)
    assert (result.code, result.out) == (code, "")
    assert result.err


# -- scan ----------------------------------------------------------------------------------


def one_in_each_state(client: Penstock, name: str = "q") -> dict[str, str]:
    """Return the ids of four jobs, by state."""
    queue = client.queue(name)
    ids = {"dead": queue.enqueue("to die").id}
    queue.reserve(block=0)[0].bury("hopeless")
    ids["active"] = queue.enqueue("to hold").id
    queue.reserve(block=0)
    ids["ready"] = queue.enqueue("to wait").id
    ids["scheduled"] = queue.enqueue("to come", delay=60).id
    return ids


@pytest.mark.parametrize(
    "states", [[], ["ready"], ["dead"], ["active", "scheduled", "active"]], ids=" ".join
)
def test_scan_finds_the_jobs_of_the_states_that_are_named(
    cli: Cli, client: Penstock, states: list[str]
) -> None:
    """Without states every job is listed with its state; --ids lists only the ids."""
    ids = one_in_each_state(client)
    options = [part for state in states for part in ("--state", state)]
    expected = {ids[state]: state for state in states or ids}
    chosen = list(dict.fromkeys(states)) or None
    document = cli("scan", "q", "--json", *options).document
    assert {job["id"]: job["state"] for job in document.pop("jobs")} == expected
    assert document == {"queue": "q", "states": chosen}
    document = cli("scan", "q", "--ids", "--json", *options).document
    assert sorted(document.pop("ids")) == sorted(expected)
    assert document == {"queue": "q", "states": chosen}
    assert sorted(cli("scan", "q", "--ids", *options).out.split()) == sorted(expected)
    assert {row[0]: row[1].strip() for row in cli("scan", "q", *options).rows} == expected


def test_scan_of_every_queue(cli: Cli, client: Penstock) -> None:
    """Without a name all queues are scanned, and the table has the queue of each job."""
    ids = {name: client.queue(name).enqueue(name).id for name in ("a", "b{}", "ü")}
    document = cli("scan", "--json").document
    assert {job["queue"]: job["id"] for job in document["jobs"]} == ids
    assert document["queue"] is None
    assert {row[1].strip(): row[0] for row in cli("scan").rows} == ids
    assert sorted(cli("scan", "--ids").out.split()) == sorted(ids.values())


def test_scan_takes_many_steps(cli: Cli, client: Penstock) -> None:
    """Thousands of jobs in every structure are listed once each."""
    queue = client.queue("q")
    ids = [
        *queue.enqueue_many(range(2500)).ids,
        *queue.enqueue_many(range(1500), delay=60).ids,
    ]
    queue.reserve(700, block=0)
    assert sorted(cli("scan", "q", "--ids").out.split()) == sorted(ids)
    jobs = cli("scan", "q", "--json").document["jobs"]
    assert sorted(job["id"] for job in jobs) == sorted(ids)
    assert len(cli("scan", "q", "--state", "active", "--ids").out.split()) == 700


def test_scan_lists_a_job_once_though_it_is_found_twice(
    cli: Cli, client: Penstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job found by two steps is listed once."""
    ids = client.queue("q").enqueue_many(range(3)).ids
    read_page = JobSearch.page

    def twice(self: JobSearch, cursor: str = "0", **options: Any) -> ScanPage:
        page = read_page(self, **options)
        return replace(page, cursor="again" if cursor == "0" else "0", ids=[*page.ids, ids[0]])

    monkeypatch.setattr(JobSearch, "page", twice)
    assert sorted(cli("scan", "q", "--ids").out.split()) == sorted(ids)
    assert sorted(job["id"] for job in cli("scan", "q", "--json").document["jobs"]) == sorted(ids)


def test_scan_of_nothing(cli: Cli, client: Penstock) -> None:
    """An empty list is no failure."""
    empty = cli("scan")
    assert (empty.code, empty.out, empty.err) == (0, "", "no jobs\n")
    assert cli("scan", "--ids", "--json").document == {"queue": None, "states": None, "ids": []}
    assert client.queues() == []


def test_bad_usage_of_scan(cli: Cli) -> None:
    """An unknown state is bad usage, an invalid name an error."""
    assert cli("scan", "q", "--state", "lost").code == 2
    assert cli("scan", "").code == 1


# -- show ----------------------------------------------------------------------------------


def test_show_finds_the_queue_of_an_id(cli: Cli, client: Penstock) -> None:
    """An id has the crc of its queue's name, which the registry has in full."""
    name = "odd {name}% ü/1"
    job_id = client.queue(name).enqueue({"a": 1}).id
    client.queue("another").enqueue(1)
    found = cli("show", job_id, "--json").document
    assert (found["id"], found["queue"], found["body"]) == (job_id, name, {"a": 1})
    again = cli("show", name, job_id, "--json").document
    for clock in ("now", "age"):
        assert found.pop(clock) <= again.pop(clock)
    assert found == again


def test_show_prints_the_whole_body(cli: Cli, client: Penstock) -> None:
    """The table has every field with a value, then the body, escaped line by line."""
    body = "first\nsecond\x07" + "x" * 500
    queue = client.queue("q")
    options: dict[str, Any] = {"headers": {"trace": "t-1"}, "ttl": 60, "dedup_id": "once-only"}
    job_id = queue.enqueue(body.encode(), **options).id
    out = cli("show", "q", job_id).out
    assert out.endswith("first\nsecond\\x07" + "x" * 500 + "\n")
    for text in (job_id, "header trace", "t-1", "expires", "ready", "once-only", "stable id"):
        assert text in out
    assert "lease until" not in out
    assert "dedup id" not in cli("show", "q", queue.enqueue("another").id).out


def test_show_links_a_death_and_the_job_after_it(cli: Cli, client: Penstock) -> None:
    """The dead letter names the added job, and that one names it, also as JSON."""
    queue = client.queue("q")
    added = queue.enqueue("a", on_dead="tell")
    queue.bury(queue.reserve(), "no")
    view = queue.show(added.id)
    assert view is not None
    assert view.follow_up is not None
    out = cli("show", "q", added.id).out
    assert "a job of tell" in out
    assert view.follow_up in out
    assert added.id in cli("show", "q", view.follow_up).out
    found = cli("show", "q", view.follow_up, "--json").document
    assert (found["death"]["id"], found["death"]["error"]) == (added.id, "no")


@pytest.mark.parametrize("ending", ["ack", "gone", "cancel", "bury"])
def test_show_follows_a_job(ending: str, client: Penstock, real_backend: Backend) -> None:
    """A line tells each change of state, attempt and progress; the last one is the job's end."""
    queue = client.queue("q")
    job_id = queue.enqueue("x", result_ttl=None if ending == "gone" else 60).id
    with following(real_backend.url, "show", "--watch", job_id) as read:
        assert read().endswith("Z  ready")
        [job] = queue.reserve()
        assert "Z  active  attempt 1  " in read()
        job.progress(3, 10, "scene 3")
        job.send_progress()
        assert read().endswith("  3 of 10 (30%), scene 3")
        if ending == "cancel":
            queue.cancel([job_id])
            assert "Z  to be cancelled  attempt 1" in read()
            job.release()
            assert "Z  cancelled  " in read()
        elif ending == "bury":
            job.bury("no such scene")
            last = read()
            assert "Z  dead  " in last
            assert last.endswith("no such scene")
        else:
            job.ack()
            state = "done" if ending == "ack" else "gone: it finished without a kept result"
            assert state in read()
        assert read() == ""


def test_a_followed_job_as_json(cli: Cli, client: Penstock) -> None:
    """A document for each change; of a job that has ended there is one."""
    job_id = client.queue("q").enqueue("x").id
    [job] = client.queue("q").reserve()
    job.bury("no")
    assert cli("show", "--watch", job_id, "--json").document["state"] == "dead"


def test_peek_shows_progress(cli: Cli, client: Penstock) -> None:
    """Active jobs have a column with their progress, if there is any."""
    queue = client.queue("q")
    queue.enqueue_many(["x", "y"])
    jobs = queue.reserve(2)
    assert "progress" not in cli("peek", "q", "--state", "active").out
    jobs[0].progress(3, 10)
    jobs[0].send_progress()
    assert "3 of 10 (30%)" in cli("peek", "q", "--state", "active").out


def test_peek_shows_keys_and_cancelled_jobs(cli: Cli, client: Penstock) -> None:
    """Jobs with a key have a column with its hash, active ones another one if one is cancelled."""
    queue = client.queue("q")
    queue.configure(per_key=1)
    job, parked = (queue.enqueue("x", key="customer:7") for _ in range(2))
    queue.reserve(1, block=0)
    assert key_hash("customer:7") in cli("peek", "q", "--state", "parked").out
    for words in (("peek", "q", "--state", "parked"), ("scan", "q")):
        told = cli(*words).out
        assert "waits for" in told
        assert "its key: 1 of 1 running or next" in told
    assert key_hash("customer:7") in cli("show", parked.id).out
    assert "cancelled" not in cli("peek", "q", "--state", "active").out
    queue.cancel([job.id])
    assert "cancelled" in cli("peek", "q", "--state", "active").out


@pytest.mark.parametrize(
    "argv, policy, shown",
    [
        (["--max-attempts", "3"], RetryPolicy(3), "3 attempts"),
        (["--max-attempts", "0"], RetryPolicy(0), "unlimited attempts"),
        (
            ["--backoff-base", "0.5", "--backoff-cap", "600", "--lines"],
            RetryPolicy(base=0.5, cap=600),
            "backoff from 0.5 s, up to 10.0 min",
        ),
    ],
)
def test_a_policy_of_the_jobs_own(
    cli: Cli, client: Penstock, argv: list[str], policy: RetryPolicy, shown: str
) -> None:
    """It is stored with the job, and is in the table and the document."""
    body = [] if "--lines" in argv else ["x"]
    (job,) = cli("enqueue", "q", *body, *argv, "--json", stdin=b"x\n").document["jobs"]
    (view,) = client.queue("q").peek()
    assert (view.id, view.retry) == (job["id"], policy)
    (line,) = [row for row in cli("show", "q", view.id).out.splitlines() if "retry policy" in row]
    assert line.split(None, 2)[2].strip() == shown
    wanted = {name: getattr(policy, name) for name in ("max_attempts", "base", "cap")}
    assert cli("show", "q", view.id, "--json").document["retry"] == wanted


def test_no_policy_is_not_shown(cli: Cli, client: Penstock) -> None:
    """The queue's policy is not shown; a policy that leaves everything to the queue says so."""
    none, bare = (client.queue("q").enqueue(1, retry=r).id for r in (None, RetryPolicy()))
    assert "retry policy" not in cli("show", "q", none).out
    assert cli("show", "q", none, "--json").document["retry"] is None
    assert "the queue's" in cli("show", "q", bare).out


DAY = 86_400


def test_show_tells_what_a_parked_job_waits_for(cli: Cli, client: Penstock) -> None:
    """For others of its key, or for the end of a hold."""
    queue = client.queue("q")
    queue.configure(per_key=2)
    job_id = queue.enqueue_many(range(5), key="a").ids[-1]
    assert dict(row[:2] for row in rows_of(cli, job_id))["waits for"] == (
        "its key: 2 of 2 running or next"
    )
    queue.hold(60, key="a")
    view = queue.show(job_id)
    assert view is not None
    assert view.due is not None
    waiting = dict(row[:2] for row in rows_of(cli, job_id))
    assert waiting["waits for"] == "the end of a hold of its key"
    assert waiting["its key is held until"] == output.moment(view.due)
    assert cli("stats", "q").rows[0][-1].strip() == "per_key=2 (1 key held)"


def test_show_tells_how_long_a_job_waits_for_its_key(cli: Cli, client: Penstock) -> None:
    """A parked job has the time from which its key may have the next one, unless that is now."""
    queue = client.queue("q")
    queue.configure(key_rate="1/h")
    job_id = queue.enqueue_many(range(2), key="a").ids[1]
    assert "waits for its key until" not in cli("show", "q", job_id).out
    queue.reserve(block=0)
    view = queue.show(job_id)
    assert view is not None
    assert view.due is not None
    waiting = dict(row[:2] for row in rows_of(cli, job_id))
    assert waiting["waits for its key until"] == output.moment(view.due)
    assert "due" not in waiting
    assert waiting["next in"].endswith((" min", " h"))


def test_show_tells_what_a_suspended_job_waits_for(cli: Cli, client: Penstock) -> None:
    """It lists the steps of the job, too."""
    handlers, queue = Handlers(queue="q"), client.queue("q")

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("stock", str, "blue")
        steps.sleep("cool off", 0)
        steps.wait("approval", timeout=3600)
        steps.sleep("a day", 86400)

    job_id = order.enqueue(queue).id
    Worker(client, handlers=handlers, burst=True).run()
    told = cli("show", job_id).out
    assert "waits for signal approval until" in told
    assert "due" not in [line.split()[0] for line in told.splitlines() if line.strip()]
    assert [line.split()[-2:] for line in told.splitlines() if " run " in line] == [
        ["run", "stock"]
    ]
    document = cli("show", job_id, "--json").document
    assert document["signal"] == "approval"
    kinds = [(step["name"], step["kind"], step["seconds"]) for step in document["steps"]]
    assert kinds == [("stock", "run", None), ("cool off", "sleep", 0.0)]
    assert cli("signal", "q", job_id, "approval", "1").code == 0
    assert "waits for" not in cli("show", job_id).out
    Worker(client, handlers=handlers, burst=True).run()
    told = cli("show", job_id).out
    assert "sleeps until" in told
    assert ["signal", "approval"] in [line.split()[-2:] for line in told.splitlines()]


def test_show_prints_spans(cli: Cli, client: Penstock) -> None:
    """Times until the end of lease and ttl, and since the delivery, are shown if they exist."""
    queue = client.queue("q")
    job_id = queue.enqueue("x", ttl=20 * DAY, lease=10 * DAY).id
    waiting = dict(row[:2] for row in rows_of(cli, job_id))
    assert waiting["ttl left"] == "20.0 d"
    assert waiting["age"].endswith(" s")
    assert not waiting.keys() & {"idle", "next in"}
    queue.reserve(block=0)
    held = dict(row[:2] for row in rows_of(cli, job_id))
    assert held["next in"] == "10.0 d"
    assert held["idle"].endswith(" s")
    assert held["redeliveries"] == "0"


def rows_of(cli: Cli, job_id: str) -> list[list[str]]:
    """Return names and values of a job from `show`."""
    rows = [[cell.strip() for cell in row] for row in cli("show", job_id).rows]
    return [row for row in rows if len(row) == 2]


def test_a_job_that_is_gone(cli: Cli, client: Penstock) -> None:
    """A missing job has exit code 1."""
    queue = client.queue("q")
    job_id = queue.enqueue("x").id
    queue.delete([job_id])
    result = cli("show", job_id)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"penstock: queue 'q' has no job {job_id}: ")


@pytest.mark.parametrize(
    "spoil, error",
    [
        (lambda job_id: job_id[:-1] + "g", "BadJobId"),
        (lambda job_id: job_id.upper(), "BadJobId"),
        (lambda job_id: "D-" + "0" * 8 + job_id[10:], "WrongNode"),
    ],
)
def test_bad_ids(cli: Cli, client: Penstock, spoil: Any, error: str) -> None:
    """The exit code is 1, and the error is named, with and without a queue."""
    job_id = spoil(client.queue("q").enqueue("x").id)
    result = cli("show", "q", job_id)
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith(f"penstock: {error}: ")
    assert cli("show", job_id).code == 1


def test_an_id_of_another_queue_or_life(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """The exit code is 1: WrongQueue, WrongEpoch, or no listed queue."""
    job_id = client.queue("q").enqueue("x").id
    client.queue("p").enqueue("x")
    assert "WrongQueue" in cli("show", "p", job_id).err
    raw: redis.Redis = real_backend.sync_client()
    raw.delete("penstock:queues", "penstock:{q}:meta", "penstock:{q}:ready")
    client.queue("q").enqueue("anew")
    assert "WrongEpoch" in cli("show", "q", job_id).err
    unlisted = cli("show", job_id)
    assert (unlisted.code, unlisted.out) == (1, "")
    assert unlisted.err.startswith(f"penstock: no queue has {job_id}")


def test_documents_are_plain_ascii(cli: Cli, client: Penstock) -> None:
    """Documents work in any pipe and locale; json.loads restores the text."""
    client.queue("ü").enqueue("ü")
    out = cli("peek", "ü", "--json").out
    assert out.isascii()
    assert json.loads(out)["jobs"][0]["body"] == "ü"


def test_a_job_is_found_by_a_text(cli: Cli, client: Penstock) -> None:
    """Over all queues, also if it stands far behind in a body."""
    wanted = client.queue("mail").enqueue({"pad": "x" * 5000, "to": "ada@example.com"})
    client.queue("sms").enqueue({"to": "bob"})
    assert cli("scan", "--text", "ADA@example", "--ids").out == f"{wanted.id}\n"
    [one] = cli("scan", "--text", "ada@", "--json").document["jobs"]
    assert (one["id"], one["queue"]) == (wanted.id, "mail")


def test_the_log_of_a_job(cli: Cli, client: Penstock) -> None:
    """By `penstock show`, with the times of the lines, also as JSON."""
    queue = client.queue("q")
    added = queue.enqueue("x")
    [job] = queue.reserve(block=0)
    job.log("3 rows")
    job.send_progress()
    assert "3 rows" in cli("show", added.id).out
    [line] = cli("show", added.id, "--json").document["log"]
    assert line["text"] == "3 rows"
    assert line["at"] > 1.7e9
