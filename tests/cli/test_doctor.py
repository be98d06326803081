"""Tests of `doctor` on healthy and damaged servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from penstock import Dedup, Penstock, parse_id
from penstock.cli.doctor import times
from penstock.cli.doctor.connections import DoctorServer
from penstock.cli.doctor.findings import Finding, Severity
from penstock.cli.doctor.server import SERVER_CHECKS
from penstock.core.nodes.servers import ServerFacts
from penstock.embedded import EmbeddedServer
from penstock.spark.calls import Staged, about_staged, staged_chunk
from penstock.wire.keys import end_of
from penstock.wire.scripts import all_scripts
from tests.cli.support import Cli, Result, poisoned
from tests.connection.sentinels import FakeSentinel, sentinel_url
from tests.protocol.keyspace import dump, same
from tests.support.backends import Backend

CHECKED = [
    "version", "persistence", "memory", "evicted", "replicas", "clock", "scripts", "queues", "keys",
    "work",
]  # fmt: skip


def found(result: Result, check: str, level: str) -> list[str]:
    """Return the messages of a check at a level."""
    findings = result.document["findings"]
    return [one["text"] for one in findings if (one["check"], one["level"]) == (check, level)]


def broken(result: Result) -> list[str]:
    """Return all messages about broken promises; the exit code must agree with them."""
    texts = [one["text"] for one in result.document["findings"] if one["level"] == "broken"]
    assert result.code == (1 if texts else 0)
    assert result.document["healthy"] == (not texts)
    return texts


def busy(client: Penstock) -> None:
    """Make queues with jobs in each state, ttls, dead letters, dedup ids and an odd name."""
    for name in ("q", "odd {name}% ü"):
        queue = client.queue(name)
        queue.enqueue_many(["a", "b", "c"], dedup=Dedup(str, window=600))
        queue.ack(queue.reserve(3, block=0)[:1])
        queue.enqueue_many(
            ["a", "b", "b", "d"], dedup=Dedup(str, on_duplicate="requeue", window=600)
        )
        queue.enqueue_many(range(50), ttl=600)
        queue.enqueue("once", lease=0)
        queue.enqueue("later", delay=60)
        jobs = queue.reserve(20, block=0)
        queue.bury(jobs[:5], "no")
        queue.nack(jobs[5:10], delay=60)
        queue.ack(jobs[10:12])
    client.queue("paused").pause()


def test_a_server_that_is_well(cli: Cli, client: Penstock) -> None:
    """Every check has a result, none is broken, and the document has the figures."""
    busy(client)
    result = cli("doctor", "--json")
    assert broken(result) == []
    document = result.document
    assert list(dict.fromkeys(one["check"] for one in document["findings"])) == CHECKED
    assert all(one["text"] for one in document["findings"])
    data = {one["check"]: one["data"] for one in document["findings"]}
    assert data["queues"]["queues"] == 3
    assert [(one["kind"], one["queue"]) for one in data["work"]["problems"]] == [
        ("dead", "odd {name}% ü"), ("dead", "q"),
    ]  # fmt: skip
    assert data["queues"]["complete"] is True
    assert data["keys"] == {"count": 0, "keys": []}
    assert data["scripts"]["of"] == len(all_scripts())
    assert {"enqueue", "reserve", "bury"} <= set(data["scripts"]["loaded"])
    assert abs(data["clock"]["ahead"]) < 1


def test_the_work(cli: Cli, real_backend: Backend) -> None:
    """It is a warning with the first problems, and ok without one; no server gets an id for it."""
    raw: Any = real_backend.sync_client()
    assert found(cli("doctor", "--json"), "work", "ok") == ["no client has used the server yet."]
    assert raw.dbsize() == 0
    queue = Penstock(raw).queue("q")
    queue.enqueue_many(range(2))
    assert found(cli("doctor", "--json"), "work", "ok") == ["nothing is wrong now."]
    queue.bury(queue.reserve(1, block=0), "no")
    queue.pause()
    text = "q: 1 dead letter, the last one just now; "
    text += "q: deliveries are paused, and 1 job could be delivered"
    result = cli("doctor", "--json")
    assert found(result, "work", "warning") == [f"{text}; see `penstock check`."]
    assert result.code == 0


def test_a_queue_with_priorities_and_a_rate_is_well(cli: Cli, client: Penstock) -> None:
    """Scores below 0 are no wrong times, and a rate is no wrong number."""
    queue = client.queue("q")
    queue.configure(rate="100/min", burst=20)
    queue.enqueue_many([1, 2], priority=9)
    queue.enqueue_many([1, 2], priority=5, delay=60)
    queue.reserve(1, block=0)
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert found(result, "times", "warning") + found(result, "queues", "warning") == []
    assert broken(cli("doctor", "--json", "--repair")) == []
    assert queue.stats().scheduled == 2


def test_a_queue_with_results_is_well(cli: Cli, client: Penstock) -> None:
    """Results of jobs that have ended are no damage, and their ends no wrong times."""
    queue = client.queue("q")
    queue.enqueue_many([b"1", b"2", b"3"], ttl=60, result_ttl=60)
    queue.ack(queue.reserve(2, block=0))
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert found(result, "times", "warning") == []
    assert broken(cli("doctor", "--json", "--repair")) == []
    assert queue.stats().kept == 2


def test_a_queue_with_batches_and_keys_is_well(cli: Cli, client: Penstock) -> None:
    """A callback that waits for its batch, and parked jobs, are no damage."""
    queue = client.queue("q")
    queue.configure(per_key=1)
    with queue.batch(then="closed") as batch:
        batch.enqueue_many([b"1", b"2"], key="k")
    queue.batch(then="open").__enter__()
    queue.schedules.add("hourly", every="1h", job=b"3")
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert found(result, "times", "warning") + found(result, "queues", "warning") == []
    assert broken(cli("doctor", "--json", "--repair")) == []
    stats = queue.stats()
    assert (stats.batches, stats.scheduled, stats.parked) == (2, 2, 1)


def test_the_report_for_people(cli: Cli, client: Penstock) -> None:
    """A line for each finding has level, check and message."""
    busy(client)
    result = cli("doctor")
    assert result.code == 0
    rows = [[cell.strip() for cell in row] for row in result.rows]
    assert [row[1] for row in rows] == CHECKED
    assert {row[0] for row in rows} <= {"ok", "warning"}


def test_nothing_is_written(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """No key changes or is created, also on an empty server."""
    raw: Any = real_backend.sync_client()
    assert cli("doctor").code == 0
    assert raw.dbsize() == 1  # the node's id, from this client
    busy(client)
    keys = sorted(raw.keys())
    before = [raw.dump(key) for key in keys]
    assert cli("doctor").code == 0
    assert sorted(raw.keys()) == keys
    assert [raw.dump(key) for key in keys] == before


# -- the server ----------------------------------------------------------------------------


def test_an_evicting_policy_breaks_a_promise(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer]
) -> None:
    """This holds before any eviction too; a policy for expiring keys is a warning."""
    server = make_server(tcp=True)
    raw = redis.Redis.from_url(server.url)
    raw.config_set("maxmemory", "100mb")
    raw.config_set("maxmemory-policy", "allkeys-lru")
    [text] = broken(run_cli("doctor", "--json", url=server.url))
    assert "allkeys-lru" in text
    assert run_cli("doctor", url=server.url).code == 1
    raw.config_set("maxmemory-policy", "volatile-ttl")
    result = run_cli("doctor", "--json", url=server.url)
    assert broken(result) == []
    assert "volatile-ttl" in found(result, "memory", "warning")[0]
    raw.close()


def test_evicted_keys_break_a_promise(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer]
) -> None:
    """This holds after the policy was corrected too."""
    server = make_server(tcp=True)
    raw: Any = redis.Redis.from_url(server.url)
    raw.config_set("maxmemory", raw.info("memory")["used_memory"] + 200_000)
    raw.config_set("maxmemory-policy", "allkeys-random")
    number = 0
    while not raw.info("stats")["evicted_keys"]:
        raw.set(f"filler {number}", b"x" * 10_000)
        number += 1
    raw.config_set("maxmemory-policy", "noeviction")
    raw.config_set("maxmemory", 0)
    [text] = broken(run_cli("doctor", "--json", url=server.url))
    assert "keys were evicted" in text
    raw.close()


def test_a_replica_breaks_a_promise_and_its_primary_names_it(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer]
) -> None:
    """A client on a replica is told; the primary reports the replica's state."""
    primary = make_server(tcp=True, args=("--repl-diskless-sync-delay", "0"))
    replica = make_server(tcp=True)
    with redis.Redis.from_url(replica.url) as raw:
        raw.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    with redis.Redis.from_url(primary.url, socket_timeout=60) as raw:
        raw.set("written", 1)
        assert raw.wait(1, 30_000) == 1  # the replica is online
    [text] = broken(run_cli("doctor", "--json", url=replica.url))
    assert f"replica of 127.0.0.1:{primary.port}" in text
    result = run_cli("doctor", "--json", url=primary.url)
    assert broken(result) == []
    assert f"127.0.0.1:{replica.port} is online" in found(result, "replicas", "ok")[-1]
    [text] = found(result, "replicas", "warning")
    assert text.startswith("this primary has no append-only file: if it restarts as the primary")
    with redis.Redis.from_url(primary.url) as raw:
        for policy, told in (("everysec", "may lack up to 2 s"), ("always", "survive a restart")):
            raw.config_set("appendfsync", policy)
            raw.config_set("appendonly", "yes")
            ok = found(run_cli("doctor", "--json", url=primary.url), "replicas", "ok")
            assert told in ok[0]


def test_the_sentinels_are_asked(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """The primary is checked, and each silent or outdated Sentinel is named."""
    server, other = make_server(tcp=True), make_server(tcp=True)
    with FakeSentinel(server.port, epoch=2) as good, FakeSentinel(server.port, epoch=2) as too:
        result = run_cli("doctor", "--json", url=sentinel_url(good, too))
        [text] = found(result, "sentinels", "ok")
        assert text == f"2 of 2 Sentinels name 127.0.0.1:{server.port}, epoch 2."
        assert found(result, "sentinels", "warning") == []
        assert found(result, "version", "ok")
        with FakeSentinel(other.port, epoch=1) as late, FakeSentinel(None) as ignorant:
            result = run_cli("doctor", "--json", url=sentinel_url(good, late, ignorant))
        assert [text] == [found(result, "sentinels", "ok")[0].replace("1 of 3", "2 of 2")]
        first, second = found(result, "sentinels", "warning")
        assert first == f"Sentinel {late.place} names 127.0.0.1:{other.port}, in epoch 1 of 2."
        assert ignorant.place in second
        assert result.code == 0
        assert run_cli("doctor", url="redis+sentinel://h:x/jobs").code == 1
        ignorant_url = sentinel_url(ignorant)
    assert run_cli("doctor", url=ignorant_url).code == 1


@pytest.mark.parametrize(
    "settings, level, words",
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "ok", "before it is answered"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "ok", "a second or two"),
        ({"appendonly": "yes", "appendfsync": "no"}, "warning", "had not written yet"),
        ({"appendonly": "no", "save": "900 1"}, "warning", "snapshots alone"),
        ({"appendonly": "no", "save": ""}, "warning", "a restart loses every job"),
    ],
    ids=["always", "everysec", "no-fsync", "snapshots", "nothing"],
)
def test_persistence(
    run_cli: Cli,
    make_server: Callable[..., EmbeddedServer],
    settings: dict[str, str],
    level: str,
    words: str,
) -> None:
    """The report says what a restart or a crash loses; that breaks no promise."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        for name, value in settings.items():
            raw.config_set(name, value)
    result = run_cli("doctor", "--json", url=server.url)
    assert broken(result) == []
    [text] = found(result, "persistence", level)
    assert words in text


def test_a_user_with_few_permissions(
    run_cli: Cli, make_server: Callable[..., EmbeddedServer]
) -> None:
    """A missing permission is a warning, and all other checks run."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        rights = "on >secret ~* +@all -info -config -time -script|exists".split()  # noqa: SIM905  # as typed
        try:
            raw.execute_command("ACL", "SETUSER", "ada", *rights)
        except redis.ResponseError:  # before 7.0 the denial of a subcommand raises
            raw.execute_command("ACL", "SETUSER", "ada", *rights[:-1], "-script")
    url = f"redis://ada:secret@127.0.0.1:{server.port}/0"
    result = run_cli("doctor", "--json", url=url)
    assert broken(result) == []
    assert "secret" not in result.out
    for check in ("version", "persistence", "memory", "evicted", "replicas", "clock", "scripts"):
        assert len(found(result, check, "warning")) == 1, check
    assert len(found(result, "queues", "ok")) == 1


class Actor(DoctorServer):
    """A server whose replies the test chooses."""

    def __init__(self, fields: dict[str, str], replies: dict[str, Any] | None = None) -> None:
        self.facts = ServerFacts(fields)
        self._replies = replies or {}

    def ask(self, *command: Any) -> Any:
        """Return the prepared reply."""
        return self._replies[command[0]]

    def config(self, name: str) -> str | None:
        """Return the prepared setting."""
        return self._replies.get(name)


NAMED = {check.__name__.removeprefix("check_"): check for check in SERVER_CHECKS}
WELL = {"redis_version": "7.0.1", "role": "master", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    "check, fields, level, words",
    [
        ("version", {"redis_version": "6.0.16"}, "broken", "needs Redis 6.2"),
        ("version", {"redis_version": "6.2.0"}, "ok", "Redis 6.2.0"),
        (
            "version",
            {"server_name": "valkey", "valkey_version": "9.1.2"},
            "ok",
            "Valkey 9.1",
        ),
        (
            "persistence",
            {"aof_enabled": "1", "aof_last_write_status": "err"},
            "broken",
            "fail",
        ),
        (
            "persistence",
            {"rdb_last_bgsave_status": "err"},
            "warning",
            "last snapshot failed",
        ),
        ("memory", {"maxmemory": "100", "used_memory": "91"}, "warning", "91 B of 100 B"),
        ("memory", {"maxmemory": "100", "used_memory": "89"}, "ok", "89 B of 100 B"),
        ("memory", {"maxmemory_policy": "allkeys-lfu"}, "broken", "allkeys-lfu"),
        ("evicted", {"evicted_keys": "1"}, "broken", "1 keys were evicted"),
        ("evicted", {"evicted_keys": "0"}, "ok", "no key was evicted"),
        (
            "replicas",
            {"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=5,lag=11"},
            "warning",
            "h:1 is online, last heard from 11 s ago",
        ),
        (
            "replicas",
            {"connected_slaves": "1", "slave0": "ip=h,port=1,state=wait_bgsave,lag=0"},
            "warning",
            "h:1 is wait_bgsave",
        ),
    ],
)
def test_levels_of_info(check: str, fields: dict[str, str], level: Severity, words: str) -> None:
    """Each value of INFO has its level; the last finding of the check is compared."""
    findings: list[Finding] = list(NAMED[check](Actor({**WELL, **fields})))
    assert findings[-1].level is level
    assert words in findings[-1].text


@pytest.mark.parametrize("ahead, level", [(0, "ok"), (30, "warning"), (-30, "warning")])
def test_a_clock_that_is_wrong(
    ahead: int, level: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A difference of more than a second in either direction is a warning."""
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    actor = Actor(WELL, {"TIME": [b"%d" % (1_000_000 + ahead), b"0"]})
    [finding] = NAMED["clock"](actor)
    assert finding.level is level
    assert ("ahead of" in finding.text, "behind" in finding.text) == (ahead > 0, ahead < 0)


# -- the keys ------------------------------------------------------------------------------

NUMBER = b"1700000000000-1000000000"


def other_type(raw: Any) -> None:
    """Write a string in place of a zset."""
    raw.delete("penstock:{q}:dead")
    raw.set("penstock:{q}:dead", "x")


def without_meta(raw: Any) -> None:
    """Remove meta, as an eviction does."""
    raw.delete("penstock:{q}:meta")


def newer_version(raw: Any) -> None:
    """Make a queue of an unknown protocol version."""
    raw.hset("penstock:{q}:meta", "v", "4")


def in_no_index(raw: Any) -> None:
    """Remove a held job from its index."""
    raw.hset("penstock:{q}:held", NUMBER, "1\nx")


def in_two_indexes(raw: Any) -> None:
    """Add a dead letter to scheduled too."""
    number = raw.zrange("penstock:{q}:dead", 0, 0)[0]
    raw.zadd("penstock:{q}:scheduled", {number: 1})


def in_ready_and_held(raw: Any) -> None:
    """Add a dead letter to ready too."""
    number = raw.zrange("penstock:{q}:dead", 0, 0)[0]
    raw.delete("penstock:{q}:ready")
    raw.xadd("penstock:{q}:ready", {"j": "1\nx"}, id=number)


def named_without_a_job(raw: Any) -> None:
    """Leave a dedup id of a missing job."""
    raw.hset("penstock:{q}:dedup", "a", NUMBER)


def waiting_without_owner(raw: Any) -> None:
    """Leave a successor that no dedup id names."""
    raw.hset("penstock:{q}:held", NUMBER, "1;c=json;d=a\nx")
    raw.zadd("penstock:{q}:scheduled", {NUMBER: 2**53 - 1})


def without_its_body(raw: Any) -> None:
    """Remove the large body of a job."""
    raw.xadd("penstock:{q}:ready", {"j": "+;c=json\n"})


def without_its_header(raw: Any) -> None:
    """Leave a large body without a job."""
    raw.hset("penstock:{q}:held", b"=" + NUMBER, "x" * 5000)


def without_a_job(index: str) -> Callable[[Any], None]:
    """Leave an index entry without a record."""
    return lambda raw: raw.zadd(f"penstock:{{q}}:{index}", {NUMBER: 2**52})


@pytest.mark.parametrize(
    "harm, words",
    [
        (other_type, "dead is a string, not a zset"),
        (without_meta, "jobs but no meta"),
        (newer_version, "version"),
        (in_no_index, "1 held jobs in no index, such as 1700000000000-1000000000"),
        (in_two_indexes, "1 held jobs in several indexes"),
        (in_ready_and_held, "1 jobs in both ready and held"),
        (named_without_a_job, "1 dedup ids without a job, such as 17"),
        (waiting_without_owner, "1 jobs that wait for the end of a job that does not exist"),
        (without_its_body, "1 jobs whose body is lost"),
        (without_its_header, "1 bodies without a job, such as 17"),
        (without_a_job("active"), "1 entries of active without a job"),
        (without_a_job("once"), "1 entries of once without a job"),
        (without_a_job("scheduled"), "1 entries of scheduled without a job"),
        (without_a_job("dead"), "1 entries of dead without a job"),
        (without_a_job("expiry"), "1 entries of expiry without a job"),
        (without_a_job("urgent"), "1 entries of urgent without a job that waits"),
    ],
)
def test_a_damaged_queue_breaks_a_promise(
    cli: Cli, client: Penstock, real_backend: Backend, harm: Callable[[Any], None], words: str
) -> None:
    """The damaged queue and the damage are named; the other queue is fine."""
    queue = client.queue("q")
    queue.enqueue_many(range(3))
    queue.bury(queue.reserve(2, block=0)[:1], "no")
    client.queue("well").enqueue("x")
    assert cli("doctor").code == 0
    harm(real_backend.sync_client())
    damage, summary = broken(cli("doctor", "--json"))
    assert damage.startswith("queue 'q'")
    assert words in damage
    assert "damage was found" in summary


def test_bodies_that_later_calls_remove(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """A body noted for removal is no damage; bodies are not read."""
    raw = real_backend.sync_client()
    client.queue("q").enqueue("x" * 5000)
    without_its_header(raw)
    raw.hset("penstock:{q}:held", "=", NUMBER + b" ")
    assert cli("doctor").code == 0
    before = raw.info("stats")["total_net_output_bytes"]
    raw.hset("penstock:{q}:held", b"=" + NUMBER, "x" * 5_000_000)
    assert cli("doctor").code == 0
    assert raw.info("stats")["total_net_output_bytes"] - before < 1_000_000


def test_a_registry_of_the_wrong_type(cli: Cli, real_backend: Backend) -> None:
    """With a registry of another type no queue can be created."""
    real_backend.sync_client().set("penstock:queues", "x")
    [text] = broken(cli("doctor", "--json"))
    assert "the registry key is a string" in text


def test_a_queue_that_is_not_listed(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Its jobs are safe, so it is a warning; a repair lists it."""
    client.queue("q").enqueue("x")
    client.queue("parts", partitions=2).enqueue("x")
    listed = real_backend.sync_client().hgetall("penstock:queues")
    real_backend.sync_client().delete("penstock:queues")
    result = cli("doctor", "--json")
    assert broken(result) == []
    [text] = [one for one in found(result, "queues", "warning") if "'q'" in one]
    assert "queue 'q' is not in the registry" in text
    assert not real_backend.sync_client().exists("penstock:queues")
    repaired = found(cli("doctor", "--repair", "--json"), "queues", "ok")
    assert "queue 'q' was not in the registry, and is now." in repaired
    assert real_backend.sync_client().hgetall("penstock:queues") == listed


def test_a_queue_that_is_listed_only(cli: Cli, real_backend: Backend) -> None:
    """A registration without a job, or after an interrupted removal, is a warning."""
    real_backend.sync_client().hset("penstock:queues", "000000000000000a", "ghost")
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert "queue 'ghost' is listed but does not exist" in found(result, "queues", "warning")[0]


def test_leftovers_of_a_queue(cli: Cli, real_backend: Backend) -> None:
    """Keys without jobs are a warning."""
    raw = real_backend.sync_client()
    raw.rpush("penstock:{gone}:wake", "1")
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert found(result, "queues", "warning") == [
        "queue 'gone' does not exist, but some of its keys do: wake."
    ]


def test_earlier_losses_are_reported(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Entries that reserve found without a job are counted in meta and reported."""
    client.queue("q").enqueue("x")
    real_backend.sync_client().hset("penstock:{q}:meta", "dangling", 3)
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert "3 entries without a job" in found(result, "queues", "warning")[0]


def test_fields_of_meta_that_are_no_numbers(
    cli: Cli, client: Penstock, real_backend: Backend
) -> None:
    """They are named, with advice."""
    client.queue("q").enqueue("x")
    fields = {"lease": "soon", "acked": "many", "cancelled": "few", "dangling": "some"}
    fields |= {"kept": "all", "rate": "fast", "key_rate": "0/5"}
    real_backend.sync_client().hset("penstock:{q}:meta", mapping=fields)
    told = found(cli("doctor", "--json"), "queues", "warning")
    assert [text.split()[2] for text in told] == list(fields)
    assert "HDEL penstock:{q}:meta lease" in told[0]


def test_unknown_keys(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Unknown keys with our prefix are a warning; other prefixes are not checked.

    Pattern characters in a prefix are escaped.
    """
    raw = real_backend.sync_client()
    client.queue("q").enqueue("x")
    for rest in ("writes", "staged", "commit:0a", "stage:0a:7", "checkpoint:0a"):  # those of Spark
        raw.set(f"penstock:{{q}}:{rest}", 1)
    strange = ["penstock:x", "penstock:{q}:nosuch", "penstock:{q}", "penstock:{a}b:meta"]
    for key in strange:
        raw.set(key, 1)
    raw.set("penstocks:x", 1)
    raw.set("other", 1)
    result = cli("doctor", "--json")
    assert broken(result) == []
    [data] = [one["data"] for one in result.document["findings"] if one["check"] == "keys"]
    assert (data["count"], sorted(data["keys"])) == (4, sorted(strange))
    starred = cli("doctor", "--json", "--prefix", "p*[a-z]?")
    assert found(starred, "keys", "ok") == ["no unknown key under the prefix."]


def test_staged_writes(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Staged rows are reported until they expire; a warning if they were committed long ago."""
    raw, ops, node = real_backend.sync_client(), client.queue("q").ops, client.topology.executor
    at = Staged(node.id, "0a", 7)
    for number in range(2):
        chunk = staged_chunk(0, [b"1;d=%d\nx" % number])
        node.run(about_staged(ops, "stage", at, at.batch, f"one:{number}", 60_000, chunk))
    raw.hset("penstock:{q}:staged", "0b:1", "1 5")  # its time is over
    [told] = found(cli("doctor", "--json"), "staged", "ok")
    assert "queue 'q': batch 7 of writer 0a has 2 staged rows, not committed." in told
    node.run(about_staged(ops, "commit", at, at.batch, 60_000, 2, "one", 2))
    [told] = found(cli("doctor", "--json"), "staged", "ok")
    assert " s ago: the write, repeated," in told
    raw.hset("penstock:{q}:commit:0a", "at", 1_700_000_000_000)
    assert len(found(cli("doctor", "--json"), "staged", "warning")) == 1
    client.clear(["q"])
    [told] = found(cli("doctor", "--json"), "staged", "ok")
    assert "not committed" in told


def test_times_that_a_wrong_clock_has_put_ahead(
    cli: Cli, client: Penstock, real_backend: Backend
) -> None:
    """They break a promise; a repair corrects leases at once, and numbers when the
    queue is empty.
    """
    raw: Any = real_backend.sync_client()
    keys = poisoned(raw)
    before = dump(raw)
    texts = broken(cli("doctor", "--json"))
    assert "queue 'q': times are too far ahead" in texts[0]
    assert "active 2, meta 1" in texts[0]
    assert same(dump(raw), before)
    result = cli("doctor", "--repair", "--json")
    assert broken(result) == []
    assert "2 times that lay ahead were brought back" in found(result, "repair", "ok")[0]
    assert "job numbers lie" in found(result, "times", "warning")[0]
    now = time.time() * 1000
    ends = [end_of(int(score)) for _, score in raw.zrange(keys["active"], 0, -1, withscores=True)]
    assert all(0 < end - now <= 30_000 for end in ends)
    queue = client.queue("q")
    assert queue.ack([view.id for view in queue.peek(2, state="active")]).done == 2
    assert found(cli("doctor", "--repair", "--json"), "times", "warning") == []
    assert abs(parse_id(queue.enqueue("x").id).ms - now) < 60_000


def test_a_repair_needs_a_clock_that_is_right(
    cli: Cli, real_backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a wrong clock a repair would change right times, so it is refused."""
    raw: Any = real_backend.sync_client()
    poisoned(raw)
    before = dump(raw)
    real = time.time
    monkeypatch.setattr(times, "time", SimpleNamespace(time=lambda: real() + 7200))
    result = cli("doctor", "--repair")
    assert result.code == 1
    assert "behind ours: correct the wrong clock first" in result.err
    assert same(dump(raw), before)


def test_a_horizon_of_a_repair(cli: Cli, client: Penstock) -> None:
    """A repair ends a delay beyond the horizon; otherwise it stays."""
    client.queue("q").enqueue("x", delay=400 * 86_400)
    assert broken(cli("doctor", "--json", "--repair")) == []
    assert client.queue("q").stats().ready == 0
    assert broken(cli("doctor", "--json", "--horizon", "366"))
    assert broken(cli("doctor", "--json", "--repair", "--horizon", "366")) == []
    assert client.queue("q").stats().ready == 1
