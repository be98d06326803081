"""doctor: what it finds on servers that are well, ill, and worse."""

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
from penstock.cli.doctor.server import CHECKS
from penstock.core.servers import ServerFacts
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import end_of
from penstock.wire.scripts import all_scripts
from tests.cli.support import Cli, Result, poisoned
from tests.connection.sentinels import FakeSentinel, sentinel_url
from tests.protocol.keyspace import dump, same
from tests.support.backends import Backend

CHECKED = [
    "version", "persistence", "memory", "evicted", "replicas", "clock", "scripts", "queues", "keys",
]  # fmt: skip


def found(result: Result, check: str, level: str) -> list[str]:
    """The sentences of a check at a level."""
    findings = result.document["findings"]
    return [one["text"] for one in findings if (one["check"], one["level"]) == (check, level)]


def broken(result: Result) -> list[str]:
    """Every sentence that says that a promise is broken; the exit code must agree with them."""
    texts = [one["text"] for one in result.document["findings"] if one["level"] == "broken"]
    assert result.code == (1 if texts else 0)
    assert result.document["healthy"] == (not texts)
    return texts


def busy(client: Penstock) -> None:
    """Queues with jobs in each state, ttls, dead letters, dedup ids and an odd name."""
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
    """Every check says something, nothing is broken, the figures are there for programs."""
    busy(client)
    result = cli("doctor", "--json")
    assert broken(result) == []
    document = result.document
    assert list(dict.fromkeys(one["check"] for one in document["findings"])) == CHECKED
    assert all(one["text"] for one in document["findings"])
    data = {one["check"]: one["data"] for one in document["findings"]}
    assert data["queues"]["queues"] == 3
    assert data["queues"]["complete"] is True
    assert data["keys"] == {"count": 0, "keys": []}
    assert data["scripts"]["of"] == len(all_scripts())
    assert {"enqueue", "reserve", "bury"} <= set(data["scripts"]["loaded"])
    assert abs(data["clock"]["ahead"]) < 1


def test_the_report_for_people(cli: Cli, client: Penstock) -> None:
    """A line for each finding: level, check, sentence."""
    busy(client)
    result = cli("doctor")
    assert result.code == 0
    rows = [[cell.strip() for cell in row] for row in result.rows]
    assert [row[1] for row in rows] == CHECKED
    assert {row[0] for row in rows} <= {"ok", "warning"}


def test_nothing_is_written(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Not a key changes, and none is made, also on an empty server."""
    raw: Any = real_backend.sync_client()
    assert cli("doctor").code == 0
    assert raw.dbsize() == 1  # this client's own: the node's id
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
    """Also when nothing was evicted yet; a policy for keys with a time to live is a warning."""
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
    """Also when the policy has been put right since."""
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
    """A client that connects to a replica by mistake is told; the primary reports its state."""
    primary = make_server(tcp=True, args=("--repl-diskless-sync-delay", "0"))
    replica = make_server(tcp=True)
    with redis.Redis.from_url(replica.url) as raw:
        raw.execute_command("REPLICAOF", "127.0.0.1", primary.port)
    with redis.Redis.from_url(primary.url, socket_timeout=60) as raw:
        raw.set("written", 1)
        assert raw.wait(1, 30_000) == 1  # the replica has it, so it is online
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
    """The primary is looked at, and each Sentinel that is silent or has old news is named."""
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
    """The report says what a restart or a crash loses; that is no broken promise."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        for name, value in settings.items():
            raw.config_set(name, value)
    result = run_cli("doctor", "--json", url=server.url)
    assert broken(result) == []
    [text] = found(result, "persistence", level)
    assert words in text


def test_a_user_who_may_little(run_cli: Cli, make_server: Callable[..., EmbeddedServer]) -> None:
    """What is forbidden is a warning, and everything else is looked at."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        rights = "on >secret ~* +@all -info -config -time -script|exists".split()  # noqa: SIM905  # as it is typed
        try:
            raw.execute_command("ACL", "SETUSER", "ada", *rights)
        except redis.ResponseError:  # before 7.0 the denial of a subcommand
            raw.execute_command("ACL", "SETUSER", "ada", *rights[:-1], "-script")
    url = f"redis://ada:secret@127.0.0.1:{server.port}/0"
    result = run_cli("doctor", "--json", url=url)
    assert broken(result) == []
    assert "secret" not in result.out
    for check in ("version", "persistence", "memory", "evicted", "replicas", "clock", "scripts"):
        assert len(found(result, check, "warning")) == 1, check
    assert len(found(result, "queues", "ok")) == 1


class Actor(DoctorServer):
    """A server that says what the test makes it say."""

    def __init__(self, fields: dict[str, str], replies: dict[str, Any] | None = None) -> None:
        self.facts = ServerFacts(fields)
        self._replies = replies or {}

    def ask(self, *command: Any) -> Any:
        """The reply that the test has laid ready."""
        return self._replies[command[0]]

    def config(self, name: str) -> str | None:
        """The same for settings."""
        return self._replies.get(name)


WELL = {"redis_version": "7.0.1", "role": "master", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    "check, fields, level, words",
    [
        ("version", {"redis_version": "6.0.16"}, Severity.BROKEN, "needs Redis 6.2"),
        ("version", {"redis_version": "6.2.0"}, Severity.OK, "Redis 6.2.0"),
        (
            "version",
            {"server_name": "valkey", "valkey_version": "9.1.2"},
            Severity.OK,
            "Valkey 9.1",
        ),
        (
            "persistence",
            {"aof_enabled": "1", "aof_last_write_status": "err"},
            Severity.BROKEN,
            "fail",
        ),
        (
            "persistence",
            {"rdb_last_bgsave_status": "err"},
            Severity.WARNING,
            "last snapshot failed",
        ),
        ("memory", {"maxmemory": "100", "used_memory": "91"}, Severity.WARNING, "91 B of 100 B"),
        ("memory", {"maxmemory": "100", "used_memory": "89"}, Severity.OK, "89 B of 100 B"),
        ("memory", {"maxmemory_policy": "allkeys-lfu"}, Severity.BROKEN, "allkeys-lfu"),
        ("evicted", {"evicted_keys": "1"}, Severity.BROKEN, "1 keys were evicted"),
        ("evicted", {"evicted_keys": "0"}, Severity.OK, "no key was evicted"),
        (
            "replicas",
            {"connected_slaves": "1", "slave0": "ip=h,port=1,state=online,offset=5,lag=11"},
            Severity.WARNING,
            "h:1 is online, heard of 11 s ago",
        ),
        (
            "replicas",
            {"connected_slaves": "1", "slave0": "ip=h,port=1,state=wait_bgsave,lag=0"},
            Severity.WARNING,
            "h:1 is wait_bgsave",
        ),
    ],
)
def test_what_info_says(check: str, fields: dict[str, str], level: Severity, words: str) -> None:
    """Each reading of INFO has its level; the last finding of the check is the one looked at."""
    findings: list[Finding] = list(dict(CHECKS)[check](Actor({**WELL, **fields})))
    assert findings[-1].level is level
    assert words in findings[-1].text


@pytest.mark.parametrize(
    "ahead, level", [(0, Severity.OK), (30, Severity.WARNING), (-30, Severity.WARNING)]
)
def test_a_clock_that_is_wrong(
    ahead: int, level: Severity, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than a second of difference is worth a warning, in either direction."""
    monkeypatch.setattr("time.time", lambda: 1_000_000.0)
    actor = Actor(WELL, {"TIME": [b"%d" % (1_000_000 + ahead), b"0"]})
    [finding] = dict(CHECKS)["clock"](actor)
    assert finding.level is level
    assert ("ahead of" in finding.text, "behind" in finding.text) == (ahead > 0, ahead < 0)


# -- the keys ------------------------------------------------------------------------------

NUMBER = b"1700000000000-1000000000"


def other_type(raw: Any) -> None:
    """A string where a zset belongs."""
    raw.delete("penstock:{q}:dead")
    raw.set("penstock:{q}:dead", "x")


def without_meta(raw: Any) -> None:
    """What an eviction of meta leaves."""
    raw.delete("penstock:{q}:meta")


def newer_version(raw: Any) -> None:
    """A queue of a protocol that we do not know."""
    raw.hset("penstock:{q}:meta", "v", "3")


def in_no_index(raw: Any) -> None:
    """A held job that nothing points to."""
    raw.hset("penstock:{q}:held", NUMBER, "1\nx")


def in_two_indexes(raw: Any) -> None:
    """A dead letter that is scheduled as well."""
    number = raw.zrange("penstock:{q}:dead", 0, 0)[0]
    raw.zadd("penstock:{q}:scheduled", {number: 1})


def in_ready_and_held(raw: Any) -> None:
    """A dead letter that waits as well."""
    number = raw.zrange("penstock:{q}:dead", 0, 0)[0]
    raw.delete("penstock:{q}:ready")
    raw.xadd("penstock:{q}:ready", {"j": "1\nx"}, id=number)


def named_without_a_job(raw: Any) -> None:
    """A dedup id of a job that is gone."""
    raw.hset("penstock:{q}:dedup", "a", NUMBER)


def waiting_for_nobody(raw: Any) -> None:
    """A job that was to run when another one has ended, and that nothing names any more."""
    raw.hset("penstock:{q}:held", NUMBER, "1;c=json;d=a\nx")
    raw.zadd("penstock:{q}:scheduled", {NUMBER: 2**53 - 1})


def without_its_body(raw: Any) -> None:
    """A job with a large body that is gone."""
    raw.xadd("penstock:{q}:ready", {"j": "+;c=json\n"})


def without_its_header(raw: Any) -> None:
    """A large body that no job has."""
    raw.hset("penstock:{q}:held", b"=" + NUMBER, "x" * 5000)


def without_a_job(index: str) -> Callable[[Any], None]:
    """An index entry whose record is gone."""
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
        (waiting_for_nobody, "1 jobs that wait for the end of a job that does not exist"),
        (without_its_body, "1 jobs whose body is lost"),
        (without_its_header, "1 bodies without a job, such as 17"),
        (without_a_job("active"), "1 entries of active without a job"),
        (without_a_job("once"), "1 entries of once without a job"),
        (without_a_job("scheduled"), "1 entries of scheduled without a job"),
        (without_a_job("dead"), "1 entries of dead without a job"),
        (without_a_job("expiry"), "1 entries of expiry without a job"),
    ],
)
def test_a_damaged_queue_breaks_a_promise(
    cli: Cli, client: Penstock, real_backend: Backend, harm: Callable[[Any], None], words: str
) -> None:
    """The queue is named, and so is what is wrong with it; the queue beside it is well."""
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
    """A noted body is no damage; and bodies are not read."""
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
    """No queue can be made then."""
    real_backend.sync_client().set("penstock:queues", "x")
    [text] = broken(cli("doctor", "--json"))
    assert "the registry key is a string" in text


def test_a_queue_that_is_not_listed(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Its jobs are safe, so it is a warning."""
    client.queue("q").enqueue("x")
    real_backend.sync_client().delete("penstock:queues")
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert "queue 'q' is not in the registry" in found(result, "queues", "warning")[0]


def test_a_queue_that_is_listed_only(cli: Cli, real_backend: Backend) -> None:
    """A registration without a job, or a removal that was cut short: a warning."""
    real_backend.sync_client().hset("penstock:queues", "000000000000000a", "ghost")
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert "queue 'ghost' is listed but does not exist" in found(result, "queues", "warning")[0]


def test_what_a_queue_left_behind(cli: Cli, real_backend: Backend) -> None:
    """Keys without a job in them are a warning; those of producers vanish by themselves."""
    raw = real_backend.sync_client()
    raw.rpush("penstock:{gone}:wake", "1")
    raw.set("penstock:{asleep}:producer:0123456789abcdef", "1 x 1 a", px=60_000)
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert found(result, "queues", "warning") == ["queue 'gone' is gone, but left wake."]


def test_losses_of_the_past_are_told(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Entries that reserve found without a job are counted in meta."""
    client.queue("q").enqueue("x")
    real_backend.sync_client().hset("penstock:{q}:meta", "dangling", 3)
    result = cli("doctor", "--json")
    assert broken(result) == []
    assert "3 entries without a job" in found(result, "queues", "warning")[0]


def test_fields_of_meta_that_are_no_numbers(
    cli: Cli, client: Penstock, real_backend: Backend
) -> None:
    """Are named, with the way out."""
    client.queue("q").enqueue("x")
    fields = {"lease": "soon", "acked": "many", "dangling": "some"}
    real_backend.sync_client().hset("penstock:{q}:meta", mapping=fields)
    told = found(cli("doctor", "--json"), "queues", "warning")
    assert [text.split()[2] for text in told] == list(fields)
    assert "HDEL penstock:{q}:meta lease" in told[0]


def test_unknown_keys(cli: Cli, client: Penstock, real_backend: Backend) -> None:
    """Keys under our prefix that are none of ours are a warning; other prefixes are not looked at.

    Characters that mean something in a pattern mean nothing in a prefix.
    """
    raw = real_backend.sync_client()
    client.queue("q").enqueue("x")
    for rest in ("writes", "commit:0a", "stage:0a:7", "checkpoint:0a"):  # of Spark, as a rule
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


def test_times_that_a_wrong_clock_has_put_ahead(
    cli: Cli, client: Penstock, real_backend: Backend
) -> None:
    """They break a promise; a repair brings leases back at once, and numbers when it is drained."""
    raw: Any = real_backend.sync_client()
    keys = poisoned(raw)
    before = dump(raw)
    texts = broken(cli("doctor", "--json"))
    assert "queue 'q': times lie ahead" in texts[0]
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
    """Else right times would be taken for wrong ones."""
    raw: Any = real_backend.sync_client()
    poisoned(raw)
    before = dump(raw)
    real = time.time
    monkeypatch.setattr(times, "time", SimpleNamespace(time=lambda: real() + 7200))
    result = cli("doctor", "--repair")
    assert result.code == 1
    assert "behind ours: set the wrong one first" in result.err
    assert same(dump(raw), before)


def test_a_horizon_of_a_repair(cli: Cli, client: Penstock) -> None:
    """A delay beyond it is over; otherwise it stays."""
    client.queue("q").enqueue("x", delay=400 * 86_400)
    assert broken(cli("doctor", "--json", "--repair")) == []
    assert client.queue("q").stats().ready == 0
    assert broken(cli("doctor", "--json", "--horizon", "366"))
    assert broken(cli("doctor", "--json", "--repair", "--horizon", "366")) == []
    assert client.queue("q").stats().ready == 1
