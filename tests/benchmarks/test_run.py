"""The whole command with few jobs: every section, row and output, without speeds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

import benchmarks
from benchmarks import disque, hold, pressure, workers
from benchmarks.bed import Bed
from benchmarks.command import SECTIONS
from benchmarks.contenders import (
    Ids,
    Jobs,
    NamedJobs,
    PipelinedJobs,
    PipelinedStreams,
    Streams,
)
from benchmarks.figures import Budget, Table
from benchmarks.machine import pinned, share_cores
from benchmarks.plan import FULL, QUICK
from benchmarks.pressure import Literal
from penstock import Durable, Penstock
from penstock.embedded import EmbeddedServer, EmbeddedServerError
from penstock.pressure import PressureQueue

pytestmark = pytest.mark.slow
TINY = ["--quick", "--rounds", "2", "--scale", "0.001"]
EXPECTED: dict[str, list[tuple[str | None, ...]]] = {
    "batches": [
        (n, step)
        for n in ("1", "10", "100", "1000")
        for step in ("add", "reserve", "ack", "whole life", "life, settle")
    ],
    "commands": [
        (n, step)
        for n in ("1", "10", "100", "1000")
        for step in ("add", "reserve", "ack", "settle")
    ],
    "memory": [("MEMORY USAGE",), ("used_memory",)],
    "dedup": [
        *(
            (f"{step} by {n}", "without", "us CPU/job")
            for n in (1, 10, 100)
            for step in ("add", "reserve", "ack", "whole life")
        ),
        ("waiting job (MEMORY USAGE)", "without", "bytes/job"),
        (
            "what an id adds (MEMORY USAGE)",
            "a hash entry + the record's growth",
            "bytes/job",
        ),
        ("waiting job (used_memory)", "without", "bytes/job"),
        ("what an id adds (used_memory)", "a hash entry + the record's growth", "bytes/job"),
    ],
    "results": [(f"{step} by 100",) for step in ("add", "reserve", "ack", "whole life")],
    "keys": [
        *(
            (f"{step} by 100", base, "us CPU/job")
            for step in ("add", "reserve", "ack", "whole life")
            for base in ("Streams", "plain jobs")
        ),
        ("parked job (MEMORY USAGE)", "plain", "bytes/job"),
        ("parked job (used_memory)", "plain", "bytes/job"),
        ("calls for all jobs of cold keys", "without the hot key", "calls"),
        *((f"p99 wait of a small tenant, {big} big", "a round", "job times") for big in (1, 4, 20)),
        ("slots in use by one tenant", "slots", "jobs"),
        ("life by 1, 1 keys on 8 slots", "per_key=8", "us CPU/job"),
        ("life by 1, 20 keys on 8 slots", "per_key=1", "us CPU/job"),
        ("worker, handlers of 1 ms", "no limits", "jobs/s"),
        ("life by 1, many keys with a rate", "10 keys", "commands"),
        ("a key in `turns` (MEMORY USAGE)", "none", "bytes/key"),
        ("sets left behind many keys with a rate", "none", "sets"),
    ],
    "python": [
        ("enqueue", "LPUSH"),
        ("enqueue_many by 100", "XADD pipelined by 100"),
        ("enqueue_many by 1000", "XADD pipelined by 100"),
        ("reserve + ack by 100", "XREADGROUP, XACK + XDEL by 100"),
        ("settle by 100", "XREADGROUP, XACK + XDEL by 100"),
        ("consume(), with job", "BLMOVE + LREM"),
        ("settle by 1", "BLMOVE + LREM"),
        ("reserve + job.ack", "BLMOVE + LREM"),
    ],
    "options": [("none",), ("delay",), ("priority",), ("ttl",), ("key",), ("result_ttl",)],
    "single": [
        ("enqueue(bytes)", "LPUSH", "jobs/s"),
        ("enqueue(bytes)", "LPUSH", "server us CPU/job"),
        ("enqueue(bytes)", "LPUSH", "bytes to Redis/job"),
        ("enqueue(text)", "LPUSH", "jobs/s"),
        ("handler.enqueue(queue, text)", "LPUSH", "jobs/s"),
        ("await enqueue(bytes)", "await LPUSH", "jobs/s"),
        ("await handler.enqueue(queue, text)", "await LPUSH", "jobs/s"),
        ("100 at once: enqueue(bytes)", "100 at once: LPUSH", "jobs/s"),
        ("handler bodies, enqueue_many by 100", "XADD pipelined by 100", "jobs/s"),
    ],
    "cycle": [("by 100 a call",), ("by 1 a call",), ("by 1 a call, 100 calls a trip",)],
    "disque": [
        ("enqueue, one by one", "ADDJOB", "us CPU/job"),
        ("reserve, one by one", "GETJOB", "us CPU/job"),
        ("ack, one by one", "ACKJOB", "us CPU/job"),
        ("enqueue_many by 100", "ADDJOB pipelined by 100", "us CPU/job"),
        ("reserve by 100", "GETJOB pipelined by 100", "us CPU/job"),
        ("ack by 100", "ACKJOB pipelined by 100", "us CPU/job"),
        ("whole life by 100", "the three, pipelined by 100", "us CPU/job"),
        ("LPUSH here, and beside Disque", "LPUSH pipelined by 100", "us CPU/job"),
        ("whole life by 100", "the three, pipelined by 100", "LPUSHes"),
        ("enqueue, one by one", "ADDJOB", "jobs/s"),
        ("reserve, one by one", "GETJOB", "jobs/s"),
        ("ack, one by one", "ACKJOB", "jobs/s"),
        ("enqueue_many by 100", "ADDJOB pipelined by 100", "jobs/s"),
        ("reserve by 100", "GETJOB pipelined by 100", "jobs/s"),
        ("ack by 100", "ACKJOB pipelined by 100", "jobs/s"),
        ("whole life by 100", "the three, pipelined by 100", "jobs/s"),
        ("enqueue_many by 1000", "no such call", "jobs/s"),
        ("reserve by 1000", "GETJOB COUNT 1000", "jobs/s"),
        ("ack by 1000", "ACKJOB of 1000 ids", "jobs/s"),
        ("waiting job", "queued", "bytes/job"),
    ],
    "copies": [
        ("enqueue, one by one, replicas=2", "ADDJOB REPLICATE 3", "adds/s"),
        ("enqueue, one by one, replicas=2", "ADDJOB REPLICATE 3", "us CPU/job"),
        ("enqueue_many by 100, replicas=2", "ADDJOB REPLICATE 3 pipelined by 100", "adds/s"),
        ("enqueue_many by 100, replicas=2", "ADDJOB REPLICATE 3 pipelined by 100", "us CPU/job"),
    ],
    "handover": [("p50",), ("p99",)],
    "awaited": [("p50",), ("p99",)],
    "delayed": [("p50 late",), ("most late",), ("least late (below 0 = early)",)],
    "idle": [
        ("commands/s sent by one of them",),
        ("consumers that wake for a fresh job (median)",),
        ("the same, mean",),
    ],
    "pressure": [("put_nowait",), ("get_nowait",), ("put_nowait + get_nowait",)],
    "workers": [
        ("thread, defaults", "BLMOVE + LREM"),
        ("asyncio, defaults", "BLMOVE + LREM"),
        ("thread, prefetch 0", "BLMOVE + LREM"),
        ("asyncio, prefetch 0", "BLMOVE + LREM"),
        ("thread, prefetch 100", "XREADGROUP, XACK + XDEL by 100"),
        ("asyncio, prefetch 100", "XREADGROUP, XACK + XDEL by 100"),
        ("thread, batches of 100", "XREADGROUP, XACK + XDEL by 100"),
        ("asyncio, batches of 100", "XREADGROUP, XACK + XDEL by 100"),
        ("the most trips of these", None),
    ],
    "pickup": [("thread", "p50"), ("thread", "p99"), ("asyncio", "p50"), ("asyncio", "p99")],
    "standby": [
        ("both", "commands/s sent by one of them"),
        *(
            (kind, figure)
            for kind in ("thread", "asyncio")
            for figure in ("p50 late, ms", "most late, ms", "least late, ms (below 0 = early)")
        ),
    ],
    "overload": [
        (load, figure)
        for load in ("20,000 jobs/s", "as fast as they can")
        for figure in ("added/s", "delivered/s", "longest reserve(block=0), ms")
    ],
    "hold": [
        *(("100 of 100 B", state.name) for state in hold.STATES),
        *(("3 of 1 MB", state.name) for state in hold.STATES),
        *(("2 of 4 MB", state.name) for state in hold.SINGLE_STATES),
    ],
    "backlog": [("100",), ("200",), ("300",)],
}
"""The first cells of every row, by section."""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the report of one small run of all sections."""
    path = tmp_path_factory.mktemp("bench") / "bench.json"
    assert benchmarks.main([*TINY, "--depths", "100", "200", "300", "--json", str(path)]) == 0
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_every_section_runs(report: dict[str, Any]) -> None:
    """The report has all sections, in order."""
    assert [table["name"] for table in report["tables"]] == list(SECTIONS) == list(EXPECTED)


@pytest.mark.parametrize("section", EXPECTED)
def test_every_row_is_there(report: dict[str, Any], section: str) -> None:
    """Each section has each of its rows with plausible figures."""
    (table,) = [table for table in report["tables"] if table["name"] == section]
    labels = EXPECTED[section]
    rows = [{k: v for k, v in row.items() if k != "budget"} for row in table["rows"]]
    assert [tuple(row.values())[: len(labels[0])] for row in rows] == labels
    figures = [v for row in rows for v in row.values() if not isinstance(v, str) and v is not None]
    assert figures
    assert all(isinstance(v, (int, float)) and v >= 0 for v in figures)


def test_the_machine_is_named(report: dict[str, Any]) -> None:
    """The report has the machine's size, versions and load."""
    facts = report["facts"]
    assert f"{os.cpu_count()} cores" in facts["machine"]
    assert facts["server"].startswith(("Redis ", "Valkey "))
    assert all(word in facts["client"] for word in ("Python ", "redis-py ", "hiredis "))
    assert {"cores", "rounds", "load before", "load after", "took"} <= set(facts)


def test_every_budget_is_judged(report: dict[str, Any]) -> None:
    """The closing list has the budget of each row with one, and a consistent verdict."""
    of_rows = [
        row["budget"] for table in report["tables"] for row in table["rows"] if "budget" in row
    ]
    assert report["budgets"] == of_rows
    for found in of_rows:
        budget = Budget(found["name"], found["value"], found["limit"], found["least"])
        assert found["holds"] is budget.holds
    assert report["holds"] is all(found["holds"] for found in of_rows)
    assert len({found["name"] for found in of_rows}) == len(of_rows)


def test_counted_things_are_exact(report: dict[str, Any]) -> None:
    """Figures that do not depend on speed are exact: trips, wake-ups, earliness."""
    tables = {table["name"]: table["rows"] for table in report["tables"]}
    for row in tables["commands"]:
        assert row["penstock trips/job"] == pytest.approx(1 / int(row["batch"]))
        if row["step"] != "settle":
            assert row["Streams trips/job"] == row["penstock trips/job"]
    assert tables["idle"][1]["value"] == 1
    assert tables["delayed"][2]["ms"] >= 0
    assert all(row["value"] >= 0 for row in tables["standby"] if "least late" in row["figure"])
    assert all(0 < row["trips/job"] <= 1 for row in tables["workers"])


def test_ratios_fit_their_rounds(report: dict[str, Any]) -> None:
    """The ratio of a row is the median of the ratios of its rounds."""
    (table,) = [table for table in report["tables"] if table["name"] == "python"]
    for row in table["rows"]:
        ours = table["rounds"][f"{row['penstock']} jobs/s"]
        base = table["rounds"][f"{row['base']} jobs/s"]
        assert len(ours) == len(base) == 2
        ratios = [a / b for a, b in zip(ours, base, strict=True)]
        assert row["x base"] == pytest.approx(sum(ratios) / 2)


@pytest.mark.parametrize(
    "section, names",
    [
        ("workers", ("{worker} jobs/s", "{worker}, base jobs/s")),
        ("pickup", ("{worker} {figure} ms", "{worker} {figure}, bare ms")),
    ],
)
def test_ratios_of_workers_fit_their_rounds(
    report: dict[str, Any], section: str, names: tuple[str, str]
) -> None:
    """Ratios are taken for each round with its bare loop."""
    (table,) = [table for table in report["tables"] if table["name"] == section]
    key = {"workers": "x base", "pickup": "x bare"}[section]
    rows = [row for row in table["rows"] if row[key] is not None]
    assert len(table["rounds"]) == 2 * len(rows) > 0
    for row in rows:
        ours, base = (table["rounds"][name.format_map(row)] for name in names)
        ratios = [a / b for a, b in zip(ours, base, strict=True)]
        assert row[key] == pytest.approx(sum(ratios) / 2)


@pytest.mark.parametrize("section", ["disque", "copies"])
def test_a_figure_and_its_baseline_share_a_row(report: dict[str, Any], section: str) -> None:
    """The ratio belongs to the figures of its row; without a figure of Disque there is none."""
    (table,) = [table for table in report["tables"] if table["name"] == section]
    for row in table["rows"]:
        ours, theirs = row["penstock"], row["Disque 1.0-rc1"]
        assert row["x Disque"] == (pytest.approx(ours / theirs) if theirs else None)
    assert "not of this run" in table["note"]


def test_the_bounds_against_disque_and_streams(report: dict[str, Any]) -> None:
    """Promised bounds of a life, of memory, of three copies, and of a cycle are judged."""
    bounds = {found["name"]: (found["limit"], found["least"]) for found in report["budgets"]}
    promised = {
        "server CPU, whole life, batch 100, x Disque": (0.9, False),
        "the same, counted in LPUSHes, x Disque": (0.9, False),
        "memory per waiting job, x Disque": (0.3, False),
        "adds with three copies, by 100, x Disque": (10.0, True),
        "whole cycle by 100 a call, x Streams": (0.9, True),
        "whole cycle by 1 a call, x Streams": (0.4, True),
    }
    assert {name: bounds.get(name) for name in promised} == promised


def test_the_bounds_of_workers(report: dict[str, Any]) -> None:
    """Rates and pick-up are judged by bare loops; trips, idle traffic and earliness by counts."""
    bounds = {found["name"]: (found["unit"], found["least"]) for found in report["budgets"]}
    streams, kinds = "XREADGROUP, XACK + XDEL by 100", ("thread", "asyncio")
    ratios = [
        name
        for kind in kinds
        for name in (
            f"worker: {kind}, defaults, x BLMOVE + LREM",
            f"worker: {kind}, prefetch 100, x {streams}",
            f"worker: {kind}, batches of 100, x {streams}",
        )
    ]
    assert [bounds.get(name) for name in ratios] == [("x", True)] * 6
    for kind in kinds:
        assert bounds[f"fresh job to an idle worker's handler, {kind}, p50, x bare"] == ("x", False)
        assert bounds[f"delayed jobs, {kind} worker: latest start"] == ("ms", False)
        assert bounds[f"delayed jobs, {kind} worker: earliest start, ms late"] == ("ms", True)
    limits = {found["name"]: found["limit"] for found in report["budgets"]}
    assert limits["trips of a worker per job, the most of all"] == 1
    assert limits["commands/s of an idle worker"] == 0.5


def test_the_goals_of_workers_are_printed(report: dict[str, Any]) -> None:
    """Goals for a quiet machine are printed, and are not judged."""
    tables = {table["name"]: table["rows"] for table in report["tables"]}
    goals = [row["goal"] for row in tables["workers"]]
    assert goals == [30_000, 24_000, 12_000, 12_000, 40_000, 40_000, 100_000, 100_000, None]
    assert [row["goal ms"] for row in tables["pickup"]] == [0.5, 2, 0.5, 2]


def test_a_worker_that_misses_a_job_is_no_figure(bed: Bed) -> None:
    """A round in which the handler missed a job raises."""
    queue = bed.client.queue("q")
    queue.enqueue_many([b"x"] * 10)
    setting = dataclasses.replace(workers.SETTINGS[0], label="all")
    workers.worked(setting, bed.url, bed.prefix, queue.name, 10)
    queue.enqueue_many([b"x"] * 10)
    queue.enqueue(b"x", headers={"handler": "unknown"})
    with pytest.raises(AssertionError, match="10 of 11 jobs were handled"):
        workers.worked(setting, bed.url, bed.prefix, queue.name, 11)


def test_the_bounds_of_dedup_ids(report: dict[str, Any]) -> None:
    """The cost of an id is judged for single jobs and small batches, and by its bytes."""
    bounds = {found["name"]: (found["limit"], found["least"]) for found in report["budgets"]}
    promised = {
        "dedup ids, server CPU, whole life by 1, x without": (1.6, False),
        "dedup ids, server CPU, whole life by 10, x without": (1.6, False),
        "a dedup id's bytes (MEMORY USAGE), x a hash entry": (1.1, False),
        "a dedup id's bytes (used_memory), x a hash entry": (1.1, False),
    }
    assert {name: bounds.get(name) for name in promised} == promised
    own = [name for name in bounds if name.startswith(("dedup id", "a dedup id"))]
    assert len(own) == len(promised)


def test_the_cost_of_dedup_ids_is_taken_by_round(report: dict[str, Any]) -> None:
    """A step's ratio is the median over rounds, with ids over without."""
    (table,) = [table for table in report["tables"] if table["name"] == "dedup"]
    steps = [row for row in table["rows"] if row["unit"] == "us CPU/job"]
    assert len(table["rounds"]) == 2 * len(steps)
    for row in steps:
        base, own = (table["rounds"][f"{row['what']}, {side}, us"] for side in ("without", "with"))
        ratios = [a / b for a, b in zip(own, base, strict=True)]
        assert row["x base"] == pytest.approx(sum(ratios) / 2)


def test_disques_figures_add_up() -> None:
    """A whole life is the sum of its steps, and a replicated add gains nothing by a pipeline."""
    figures = {key: known.figure or 0.0 for key, known in disque.DISQUE_CPU.items()}
    assert figures[100, "whole life"] == pytest.approx(5.87)
    assert sum(figures[100, step] for step in ("add", "reserve", "ack")) == pytest.approx(5.87)
    one, many = (disque.DISQUE_COPIES[n][0].figure or 0.0 for n in (1, 100))
    assert 10_300 == many < one == 10_400


@pytest.fixture
def bed(make_server: Callable[..., EmbeddedServer]) -> Bed:
    """A bed on a fresh server."""
    server = make_server(tcp=True)
    return Bed(server.url, server.pid, "loopback TCP")


def test_the_literal_client_of_pressure_follows_the_protocol(bed: Bed) -> None:
    """Its client and ours exchange messages, and leave the same keys."""
    with PressureQueue("q", bed.url, prefix="p") as ours:
        ours.create(bound=2)
        literal = Literal(bed.redis, "p:q", 2)
        calls = bed.count(lambda: literal.put_nowait(b"one")).total
        ours.put_nowait(b"two")
        assert ours.get_nowait() == b"one"
        calls += bed.count(literal.get_nowait).total
        assert calls == 12 + 10
        assert ours.counters() == (2, 6, 2, 6)
        for name in ("producer_free", "consumer_free", "not_full"):
            assert bed.redis.llen(f"p:q:{name}") == 1


def test_the_bound_of_pressure(report: dict[str, Any]) -> None:
    """Put and take must reach at least 8 times the rate of the literal client."""
    (found,) = [found for found in report["budgets"] if "pressure" in found["name"]]
    assert (found["limit"], found["least"], found["unit"]) == (8.0, True, "x")


CONTENDERS: dict[str, Callable[[Bed], Any]] = {
    "Streams": lambda bed: Streams(bed.redis, "q"),
    "Streams pipelined": lambda bed: PipelinedStreams(bed.redis, "q"),
    "penstock": lambda bed: Jobs(bed.client, "q"),
    "penstock, dedup ids": lambda bed: NamedJobs(bed.client, "q"),
    "penstock pipelined": lambda bed: PipelinedJobs(bed.client, "q", bed.redis),
}


@pytest.mark.parametrize("make", CONTENDERS.values(), ids=CONTENDERS)
def test_a_contender_moves_every_job_once(bed: Bed, make: Callable[[Bed], Any]) -> None:
    """Added jobs are reserved once, completely, and gone after the ack; each call is one trip."""
    contender = make(bed)
    contender.add(1)
    contender.add(7)
    held = contender.reserve(5)
    assert (len(held), contender.work(held)) == (5, 500)
    contender.ack(held)
    rest = contender.reserve(100)
    assert (len(rest), contender.reserve(1)) == (3, [])
    contender.ack(rest)
    assert contender.trips == 7
    keys = contender.keys()
    left = {key: bed.redis.type(key) for key in keys}
    assert b"zset" not in left.values()
    assert [bed.redis.xlen(key) for key in keys if left[key] == b"stream"] == [0]


def test_each_job_has_a_dedup_id_of_its_own(bed: Bed) -> None:
    """All jobs are added, in any way, and their ids are removed with them."""
    contender = NamedJobs(bed.client, "q")
    contender.add(1)
    contender.add(7)
    contender.fill(1200)
    jobs = [job for _ in range(2) for job in contender.reserve(1000)]
    ids = {job.dedup_id for job in jobs}
    assert (len(jobs), len(ids), None in ids) == (1208, 1208, False)
    dedup = contender.queue.ops.keys["dedup"]
    assert dedup in contender.keys()  # noqa: SIM118 - no mapping
    assert bed.redis.hlen(dedup) == 1208
    contender.ack(jobs)
    assert bed.redis.exists(dedup) == 0


def test_ids_by_hand_are_as_long_as_ours(bed: Bed) -> None:
    """The hash used for comparison has the same ids, and numbers of equal length."""
    ours, by_hand = NamedJobs(bed.client, "q"), Ids(bed.redis, "ids")
    for contender in (ours, by_hand):
        contender.add(3)
        contender.add(2)
    dedup = ours.queue.ops.keys["dedup"]
    kept, expected = bed.redis.hgetall("ids"), bed.redis.hgetall(dedup)
    assert kept.keys() == expected.keys()
    assert {len(number) for number in kept.values()} == {len(n) for n in expected.values()} == {24}


@pytest.mark.parametrize(
    "name, commands",
    [
        ("Streams pipelined", {"xadd": 9, "xreadgroup": 9, "xack": 9, "xdel": 9}),
        ("penstock pipelined", {"evalsha": 27}),
    ],
)
def test_pipelined_sides_send_a_command_a_job(
    bed: Bed, name: str, commands: dict[str, int]
) -> None:
    """Neither side names several jobs in one command: nine jobs need nine commands each."""
    contender = CONTENDERS[name](bed)

    def work() -> None:
        contender.add(9)
        contender.ack(contender.reserve(9))

    calls = bed.count(work).calls
    assert {name: calls.get(name, 0) for name in commands} == commands
    assert "multi" not in calls


def test_copies_are_confirmed_by_two_replicas(bed: Bed) -> None:
    """Each of the primary's two replicas has every job; all three end with the block."""
    with disque.three(bed) as primary:
        primary.client.queue("copies").enqueue_many(range(30), durable=Durable(2, timeout=30))
        facts = primary.redis.info("replication")
        ports = [facts[f"slave{i}"]["port"] for i in range(2)]
        for port in ports:
            with Redis(port=port) as replica, Penstock(replica, prefix=primary.prefix) as client:
                assert replica.info("replication")["role"] == "slave"
                assert (
                    client.topology.executor.command("XLEN", f"{primary.prefix}:{{copies}}:ready")
                    == 30
                )
    for port in ports:
        with Redis(port=port) as replica, pytest.raises(RedisConnectionError):
            replica.ping()


def test_without_a_server_to_start_copies_are_left_out(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table has the reason why it is empty; the rest of the run is not affected."""

    def nothing() -> None:
        raise EmbeddedServerError("no server binary")

    monkeypatch.setattr(disque, "find_server", nothing)
    table = disque.copies(bed, QUICK.scaled(0.001))
    assert (table.rows, table.budgets) == ([], [])
    assert table.note.endswith("Left out: no server binary.")


def test_costs_are_those_of_the_work(bed: Bed) -> None:
    """A measurement has the jobs that the work returned, and no negative costs."""
    sample = bed.measure(lambda: bed.redis.lpush("list", *range(1000)))
    assert sample.jobs == 1000
    assert sample.wall > 0
    assert sample.server >= 0
    assert sample.client >= 0


def test_commands_are_counted_without_our_own(bed: Bed) -> None:
    """The INFO for counting is not counted; commands inside a script are."""
    counted = bed.count(lambda: bed.redis.eval("redis.call('PING') return redis.call('DBSIZE')", 0))
    assert counted.calls == {"eval": 1, "ping": 1, "dbsize": 1}
    assert counted.scripts == 0
    jobs = Jobs(bed.client, "q")
    jobs.add(1)
    assert bed.count(lambda: jobs.add(10)).scripts == 1


def test_a_database_in_use_is_left_alone(
    server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database with keys is refused; with --yes only the benchmark's keys are removed."""
    with Redis.from_url(server.url) as client:
        client.set("theirs", "1")
        assert benchmarks.main([*TINY, "--only", "memory", "--url", server.url]) == 2
        assert "holds 1 keys" in capsys.readouterr().err
        assert client.keys() == [b"theirs"]
        assert benchmarks.main([*TINY, "--only", "memory", "--url", server.url, "--yes"]) == 0
        assert client.keys() == [b"theirs"]


def test_check_makes_a_broken_budget_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exit code is always 0; with --check it is 1 when a budget is exceeded."""

    def over(bed: Bed, plan: object) -> Table:
        table = Table("memory", "Memory", ("figure",))
        table.add(2.0, budget=Budget("too much", 2.0, 1.0))
        return table

    monkeypatch.setitem(SECTIONS, "memory", over)
    arguments = [*TINY, "--only", "memory"]
    assert benchmarks.main([*arguments, "--markdown"]) == 0
    assert "| too much | 2 x | <= 1 x | over |" in capsys.readouterr().out
    assert benchmarks.main([*arguments, "--check"]) == 1


@pytest.mark.parametrize("bound, code", [(1e-3, 0), (1e9, 1)])
def test_check_judges_pressure_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], bound: float, code: int
) -> None:
    """The measured value of its section decides."""
    monkeypatch.setattr(pressure, "FASTER", bound)
    assert benchmarks.main([*TINY, "--only", "pressure", "--check", "--markdown"]) == code
    verdict = "over" if code else "ok"
    out = capsys.readouterr().out
    assert re.search(rf"pressure: .* \| [\d.,]+ x \| >= .* \| {verdict} \|", out)


def test_cores_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver is pinned during the measurement, and always released after it."""
    chosen: list[set[int]] = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {4, 5, 6}, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, to: chosen.append(to), raising=False)

    def measured() -> None:
        with pinned(123) as words:
            assert words == "server on core 4, driver on core 5"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measured()
    assert chosen == [{4}, {5}, {4, 5, 6}]


def test_servers_share_the_cores_of_driver_and_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers started later may use only the pinned server's and the driver's cores."""
    chosen: list[tuple[int, set[int]]] = []
    allowed = {0: {5}, 123: {4}}
    monkeypatch.setattr(os, "sched_getaffinity", allowed.__getitem__, raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *to: chosen.append(to), raising=False)
    share_cores([7, 8], 123)
    share_cores([9], None)
    assert chosen == [(7, {4, 5}), (8, {4, 5}), (9, {5})]


def test_one_core_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a single core nothing is pinned, and the report says so."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with pinned(123) as words:
        assert words == "not pinned"


def test_it_runs_as_a_module(tmp_path: Path) -> None:
    """`python -m benchmarks` runs without rich and typer."""
    for name in ("rich", "typer"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not here')\n")
    path = os.pathsep.join([str(tmp_path), *sys.path])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", *TINY, "--only", "memory"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "== Memory per waiting job" in done.stdout
    assert "== Budgets" in done.stdout


def test_the_plan_has_the_depths_that_are_promised() -> None:
    """A full run has up to five million waiting jobs; a quick one fewer."""
    assert FULL.depths == (1000, 1_000_000, 5_000_000)
    assert max(QUICK.depths) < 1_000_000
