"""The client in examples/other-languages/node: the vectors, and jobs exchanged with the Python
client.

npm installs ioredis, by the example's lock file, into a folder of the tests.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis

from penstock import Penstock
from penstock.embedded import EmbeddedServer
from penstock.wire.keys import QueueKeys
from tests.cli.support import environment, in_process_of_its_own
from tests.protocol.clock import frozen
from tests.protocol.pages import acl_rules
from tests.support.backends import Backend
from tests.support.twins import wait_for

SOURCE = Path(__file__).parents[2] / "examples/other-languages/node"
OLDEST = (20, 15)  # the first version with zlib.crc32
TIMEOUT = 120

Node = Callable[..., "subprocess.Popen[str]"]


def version() -> tuple[int, ...]:
    """Return the version of `node` on PATH, () if there is none."""
    if not (shutil.which("node") and shutil.which("npm")):
        return ()
    shown = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
    return tuple(int(part) for part in shown.stdout.strip().lstrip("v").split(".")[:2])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the example with its packages, and the exported scripts beside it."""
    if version() < OLDEST:
        pytest.skip("no Node.js 20.15 or newer with npm on PATH")
    place = tmp_path_factory.mktemp("node")
    for file in SOURCE.iterdir():
        if file.is_file():
            shutil.copy(file, place)
    install = ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--fetch-retries=1"]
    done = subprocess.run(
        install, cwd=place, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    if done.returncode:
        pytest.skip(f"npm can't install ioredis: {done.stderr.strip()[-300:]}")
    assert in_process_of_its_own("scripts", "--out", str(place / "scripts")).code == 0
    return place


@pytest.fixture
def node(folder: Path, real_backend: Backend) -> Node:
    """Return a function that starts a program of the example on this server."""
    if real_backend.cluster is not None or not real_backend.url:
        pytest.skip("the example is a client of one server")
    url = real_backend.url.removeprefix("unix://")

    def start(
        *words: str, at: str = url, scripts: Path = folder / "scripts"
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["node", *words],
            cwd=folder,
            env=environment(PENSTOCK_URL=at, PENSTOCK_SCRIPTS=str(scripts)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def output(program: subprocess.Popen[str]) -> list[str]:
    """Return the lines that a program prints; it must end well."""
    try:
        out, err = program.communicate(timeout=TIMEOUT)
    finally:
        program.kill()
    assert (program.returncode, err) == (0, ""), out + err
    return out.splitlines()


def blocked(backend: Backend) -> list[str]:
    """Return the ids of the connections that wait for a token."""
    listed = backend.sync_client().execute_command("CLIENT", "LIST").decode()
    return re.findall(r"^id=(\d+) .* flags=b\w* .* cmd=blpop ", listed, re.MULTILINE)


@pytest.fixture
def ps(real_backend: Backend) -> Penstock:
    """Return the Python client."""
    return Penstock(real_backend.sync_client(), federation=False)


def test_it_passes_the_vectors(node: Node) -> None:
    """Names, ids and records, and the calls of its levels' scripts, pass."""
    [line] = output(node("conformance.mjs"))
    assert int(line.split()[0]) > 400


def test_jobs_from_python_to_node(node: Node, ps: Penstock, real_backend: Backend) -> None:
    """Ids, bodies, headers and codecs agree; acknowledged jobs are gone."""
    q = ps.queue("emails }x %")
    bodies: list[Any] = [{"to": "ada", "n": [1, None, "日本"]}, "text", b"\x00bytes\xff"]
    given = [
        q.enqueue(bodies[0], headers={"trace": "a;b=c%", "n\u00e4me": "\u65e5"}, ttl=3600),
        q.enqueue(bodies[1], lease=0, ttl=60),
        q.enqueue(bodies[2], lease=7),
    ]
    jobs = [json.loads(line) for line in output(node("consumer.mjs", q.name, "1"))]
    assert [job["id"] for job in jobs] == [one.id for one in given]
    assert [job["body"] for job in jobs] == [bodies[0], "text", "AGJ5dGVz/w=="]
    assert jobs[0]["headers"] == {"trace": "a;b=c%", "n\u00e4me": "\u65e5"}
    assert [job["codec"] for job in jobs] == ["json", "json", ""]
    assert [job["extended"] for job in jobs] == ["done", "refused", "done"]
    assert {job["outcome"] for job in jobs} == {"done"}
    stats = q.stats()
    assert (stats.ready, stats.active, stats.acked) == (0, 0, 3)
    assert blocked(real_backend) == []


def test_jobs_from_node_to_python(node: Node, ps: Penstock) -> None:
    """A queue created by Node is listed; Python reads its jobs and ids."""
    options = {"headers": {"trace": "a;b"}, "lease": 9000, "ttl": 600_000, "retry": [3, None, 9]}
    printed = output(node("producer.mjs", "emails", '[{"to":"ada"}]', json.dumps(options)))
    printed += output(node("producer.mjs", "emails", '["日本", 7]', '{"delay":1}'))
    q = ps.queue("emails")
    assert ps.queues() == ["emails"]
    jobs = [q.reserve(block=10)[0] for _ in printed]
    assert [job.id for job in jobs] == printed
    assert [job.body for job in jobs] == [{"to": "ada"}, "日本", 7]
    assert dict(jobs[0].headers) == {"trace": "a;b"}
    assert len({job.stable_id for job in jobs}) == 3
    for job in jobs:
        job.ack()
    assert q.stats().acked == 3


def test_a_failed_job(node: Node, ps: Penstock) -> None:
    """Node buries the job; Python finds the dead letter."""
    q = ps.queue("emails")
    given = q.enqueue("x")
    [line] = output(node("consumer.mjs", "emails", "1", "bury"))
    assert json.loads(line)["outcome"] == "done"
    view = q.show(given.id)
    assert view is not None
    assert view.state == "dead"


def test_a_waiting_consumer(node: Node, ps: Penstock, real_backend: Backend) -> None:
    """It gets a job added during its wait, also after its connection was closed.

    It ends when the queue is closed and drained, and passes the token on.
    """
    q = ps.queue("emails")
    q.configure(lease=30)
    raw = real_backend.sync_client()
    program = node("consumer.mjs", "emails", "60000")
    try:
        wait_for(lambda: len(blocked(real_backend)) == 1)
        [first] = blocked(real_backend)
        raw.execute_command("CLIENT", "KILL", "ID", first)
        wait_for(lambda: blocked(real_backend) not in ([], [first]))
        given = q.enqueue("x")
        wait_for(lambda: q.stats().acked == 1)
        wait_for(lambda: len(blocked(real_backend)) == 1)
    finally:
        q.close()
        lines = output(program)
    assert [json.loads(line)["id"] for line in lines] == [given.id]
    assert raw.llen(QueueKeys("emails")["wake"]) == 1


def freeze(scripts: Path, now_ms: int) -> None:
    """Fix the clock of exported scripts, and name their new texts in the index."""
    index = json.loads((scripts / "index.json").read_text())
    for one in index["scripts"]:
        text = frozen((scripts / one["file"]).read_text(), now_ms).encode()
        (scripts / one["file"]).write_bytes(text)
        one["sha1"] = hashlib.sha1(text).hexdigest()
    (scripts / "index.json").write_text(json.dumps(index))


def test_a_consumer_that_leaves(
    node: Node, ps: Penstock, real_backend: Backend, folder: Path, tmp_path: Path
) -> None:
    """It passes an event on that only it knew: another consumer gets the token."""
    q = ps.queue("emails")
    raw = real_backend.sync_client()
    scripts = shutil.copytree(folder / "scripts", tmp_path / "scripts")
    q.enqueue("x", delay=3.9)
    seconds, micros = raw.time()
    freeze(scripts, seconds * 1000 + micros // 1000)  # or it is due before a slow Node.js has begun
    assert output(node("consumer.mjs", "emails", "500", scripts=scripts)) == []
    assert raw.llen(QueueKeys("emails")["wake"]) == 1


def test_the_access_rules(node: Node, make_server: Callable[..., EmbeddedServer]) -> None:
    """The rules of protocol/core.md are sufficient to produce, wait and consume."""
    server = make_server(tcp=True)
    with redis.Redis.from_url(server.url) as raw:
        rules = acl_rules("worker")
        if raw.info("server")["redis_version"].startswith("6."):
            rules.remove("%R~penstock:nodes")  # as the page says
        raw.execute_command("ACL", "SETUSER", "worker", *rules)
    url = server.url.replace("redis://", "redis://worker:secret@")
    [given] = output(node("producer.mjs", "emails", "[1]", at=url))
    [line] = output(node("consumer.mjs", "emails", "1", at=url))
    assert json.loads(line)["id"] == given
