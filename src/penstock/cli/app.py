"""The program: options that all commands share, errors and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

import penstock
from penstock import (
    EvictionWarning,
    Penstock,
    PenstockError,
    Queue,
    QueueDamaged,
    QueueStats,
    ServerError,
)
from penstock.cli import output
from penstock.cli.commands import COMMANDS
from penstock.cli.output import Failed
from penstock.cli.parameters import BadUsage, Described, Option, Parser, described
from penstock.core.values.near import did_you_mean
from penstock.core.values.urls import DEFAULT_URL, URL_VARIABLE, split_urls
from penstock.wire.keys import DEFAULT_PREFIX

__all__ = [
    "SESSION_PARAMETERS",
    "CliCommand",
    "Session",
    "command",
    "is_there",
    "loaded",
    "main_parser",
    "no_queue",
    "open_existing",
    "run",
]

SILENT_HANDLER = logging.NullHandler()
RETRY_SECONDS = 1.0
"""Seconds; a user at a terminal can repeat the command."""

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Session:
    """The options that all commands share; they stand before or after the command's name.

    Args:
        given_url: URL of the server: redis://, rediss://, unix:// or redis+sentinel://. Separate
            the URLs of several nodes by spaces; nodes that they list are used too. Default:
            $PENSTOCK_URL, redis://localhost:6379/0.
        prefix: prefix of all keys. Default: penstock.
        as_json: print one JSON document instead of tables.
        node_hosts: hosts that may get the password of --url when nodes list them: names or
            patterns such as *.redis.internal, separated by spaces. Default: $PENSTOCK_NODE_HOSTS.
    """

    given_url: Annotated[str | None, Option(("--url",), "URL")] = None
    prefix: str = DEFAULT_PREFIX
    as_json: Annotated[bool, Option(("--json",))] = False
    node_hosts: Annotated[str, Option(metavar="HOSTS")] = ""

    @property
    def url(self) -> str:
        """URLs of the servers."""
        return self.given_url or DEFAULT_URL

    def changed(self, **options: str | bool | None) -> Session:
        """Return a copy with these options; None leaves an option as it is."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)  # type: ignore[arg-type]  # the parser has checked the values

    @property
    def source(self) -> str | list[str]:
        """URL of the server, or those of several."""
        urls = self.urls()
        return urls if len(urls) > 1 else urls[0]

    @property
    def options(self) -> dict[str, Any]:
        """Options of clients."""
        hosts = self.node_hosts.split()
        return {"prefix": self.prefix, "retry_for": RETRY_SECONDS, "node_hosts": hosts}

    def urls(self) -> list[str]:
        """Return the URL of each server.

        Raises:
            BadArgument: there are several, and one of them is no URL.
        """
        return split_urls(self.url)

    @contextlib.contextmanager
    def client(self) -> Iterator[Penstock]:
        """Connect a client, and print its warnings to stderr."""
        client = Penstock(self.source, **self.options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EvictionWarning)
            client.connect()
        for warning in caught:
            output.complain(f"warning: {warning.message}")
        try:
            yield client
        finally:
            client.close()

    @contextlib.contextmanager
    def queue(self, name: str) -> Iterator[Queue]:
        """Connect a client, and open a queue that exists."""
        with self.client() as client:
            yield open_existing(client, name)

    def answer(self, document: object, shown: str | Callable[[], None]) -> None:
        """Print the result of a command.

        Args:
            document: printed as JSON with --json.
            shown: printed otherwise: a line, or a function that prints.
        """
        if self.as_json:
            output.write_json(document)
        elif isinstance(shown, str):
            output.write(shown)
        else:
            shown()


def open_existing(client: Penstock, name: str, advice: str = "") -> Queue:
    """Open a queue, unless its name is mistyped.

    Raises:
        Failed: there is no such queue.
    """
    queue = client.open(name)
    with contextlib.suppress(QueueDamaged):  # it exists, and may be repaired or removed
        if not is_there(queue.stats()):
            raise no_queue(client, name, advice)
    return queue


def is_there(stats: QueueStats) -> bool:
    """Return whether a queue exists, or may exist on a node that does not answer.

    One that has only staged writes exists, too.
    """
    return bool(stats.exists or stats.staged or stats.promised or stats.unreachable)


def no_queue(client: Penstock, name: str, advice: str = "") -> Failed:
    """Return the error that there is no such queue, with the name that was probably meant."""
    return Failed(f"no queue {name!r}{did_you_mean(name, client.queues())}{advice}")


SESSION_PARAMETERS = [replace(one, default=None) for one in described(Session).parameters]
"""The options of `Session`; None = not given."""


@dataclass(frozen=True)
class CliCommand:
    """A command: its function, and whether it accepts the options of `Session` after its name."""

    name: str
    function: Callable[..., None]
    common: bool

    def parser(self) -> Parser:
        """Return the parser of its arguments."""
        shared = SESSION_PARAMETERS if self.common else ()
        return described(self.function).parser(f"penstock {self.name}", shared)

    def call(self, session: Session, argv: list[str]) -> None:
        """Parse the arguments, and call the function."""
        values = vars(self.parser().parse_intermixed_args(argv))
        shared = (
            {one.name: values.pop(one.name) for one in SESSION_PARAMETERS} if self.common else {}
        )
        self.function(session.changed(**shared), **described(self.function).bundle(values))


REGISTERED_COMMANDS: dict[str, CliCommand] = {}
"""The commands whose modules are imported, by name."""


def command(name: str, *, common: bool = True) -> Callable[[Function], Function]:
    """Register a command: its function gets a `Session` first, then its own parameters.

    The function's docstring is the help. Its Args are the help of arguments and options, its
    Examples are command lines. `penstock.cli.commands` names its module.

    Args:
        name: as the user types it.
        common: accept the options of `Session` after its name too.
    """

    def register(function: Function) -> Function:
        REGISTERED_COMMANDS[name] = CliCommand(name, function, common)
        return function

    return register


def loaded(name: str) -> CliCommand:
    """Return a command; its module is imported now.

    Raises:
        BadUsage: there is no such command.
    """
    if name not in COMMANDS:
        guess = did_you_mean(name, COMMANDS)
        raise BadUsage(f"there is no command {name!r}{guess}; see `penstock --help`")
    if name not in REGISTERED_COMMANDS:
        importlib.import_module(f"penstock.cli.{COMMANDS[name].module}")
    return REGISTERED_COMMANDS[name]


def main_parser() -> Parser:
    """Return the parser of the options before the command's name, and of that name."""
    listed = "\n".join(f"  {name:<10}  {one.summary}" for name, one in COMMANDS.items())
    text = "Inspect and manage penstock queues on a Redis server."
    parser = Described(text, SESSION_PARAMETERS, []).parser("penstock")
    parser.epilog = f"commands:\n{listed}".replace("%", "%%")
    parser.add_argument(
        "--version", action="version", version=penstock.__version__, help="Print the version."
    )
    parser.add_argument("command", metavar="COMMAND", help="One of the commands below.")
    parser.add_argument("rest", metavar="...", nargs=argparse.REMAINDER, help="Its arguments.")
    return parser


def _start(argv: list[str]) -> None:
    parser = main_parser()
    if not argv:
        parser.print_help()
        raise SystemExit(2)
    given = vars(parser.parse_args(argv))
    name, rest = given.pop("command"), given.pop("rest")
    if name != "worker":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    hosts = os.environ.get("PENSTOCK_NODE_HOSTS", "")
    session = Session(os.environ.get(URL_VARIABLE) or None, node_hosts=hosts)
    loaded(name).call(session.changed(**given), rest)


def run(argv: list[str]) -> int:
    """Run a command; print its error as one line on stderr, and return the exit code."""
    logging.getLogger("penstock").addHandler(SILENT_HANDLER)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed, as for a daemon
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115,PTH123  # for the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a body may hold any character
    try:
        code = _code(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as `head`, has ended. Python's own flush at exit must not report it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _code(argv: list[str]) -> int:
    try:
        _start(argv)
        return 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BadUsage as error:
        output.complain(str(error))
        return 2
    except KeyboardInterrupt:
        output.complain("aborted")
        return 1
    except BrokenPipeError:
        raise
    except ServerError as error:
        output.complain(" ".join(str(error).split()), hide=str)  # it has no URL but in advice
        return 1
    except (Failed, PenstockError, RedisError, OSError) as error:
        output.complain(_line(error))
        return 1


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, penstock.IncompleteEnqueue):
        return f"{text}: {_line(error.__cause__) if isinstance(error.__cause__, Exception) else ''}"
    if isinstance(error, (RedisConnectionError, RedisTimeoutError)):
        return f"the server can't be reached: {text}"
    if isinstance(error, (Failed, OSError)):
        return text
    return f"{type(error).__name__}: {text}"
