"""The application: options that every command has, errors as one line, exit codes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

import penstock
from penstock import BadArgument, EvictionWarning, Penstock, PenstockError
from penstock.cli import output
from penstock.core.logs import printable
from penstock.core.urls import HIDDEN, fault_of, redacted
from penstock.wire.keys import DEFAULT_PREFIX

__all__ = ["Failed", "Session", "app", "command", "run"]

DEFAULT_URL = "redis://localhost:6379/0"
QUIET = logging.NullHandler()
RETRY_FOR = 1.0
"""Seconds; who sits at a terminal tries again himself."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""Of click, which newer versions of typer contain and older ones import."""
Function = TypeVar("Function", bound=Callable[..., Any])

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=False,
        help="Server: redis://, rediss:// or unix://; several nodes with spaces between. Nodes "
        f"that it lists are used as well. Default: $PENSTOCK_URL, {DEFAULT_URL}.",
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        "--node-hosts",
        metavar="HOSTS",
        show_default=False,
        help="Listed nodes may get the password of --url if they are on these hosts: names or "
        "patterns such as *.redis.internal, with spaces between. Default: $PENSTOCK_NODE_HOSTS.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix",
        metavar="TEXT",
        show_default=False,
        help=f"Prefix of all keys. Default: {DEFAULT_PREFIX}.",
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON document instead of tables.")
]

COMMON = {
    "url": UrlOption,
    "prefix": PrefixOption,
    "as_json": JsonOption,
    "node_hosts": HostsOption,
}
"""Put these before or after the command."""

app = typer.Typer(
    name="penstock",
    help="Inspect and manage penstock queues on a Redis server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Failed(Exception):
    """A command can't do what was asked; its text is the line that the user reads."""


@dataclass(frozen=True)
class Session:
    """What the options shared by all commands say.

    Args:
        given_url: the server; None = not given.
        prefix: prefix of all keys.
        as_json: a document for programs instead of text for people.
        node_hosts: hosts whose nodes may be sent the server's password, with blanks between.
    """

    given_url: str | None = None
    prefix: str = DEFAULT_PREFIX
    as_json: bool = False
    node_hosts: str = ""

    @property
    def url(self) -> str:
        """The server, named or not."""
        return self.given_url or DEFAULT_URL

    def changed(
        self,
        url: str | None = None,
        prefix: str | None = None,
        as_json: bool = False,
        node_hosts: str | None = None,
    ) -> Session:
        """The same with what these options change."""
        return Session(
            self.given_url if url is None else url,
            self.prefix if prefix is None else prefix,
            self.as_json or as_json,
            self.node_hosts if node_hosts is None else node_hosts,
        )

    @contextlib.contextmanager
    def client(self) -> Iterator[Penstock]:
        """A connected client; what it warns of goes to stderr."""
        urls = self.url.split()
        if len(urls) > 1 and any(map(fault_of, urls)):  # perhaps one whose password has a blank
            raise BadArgument("url", HIDDEN, "URLs with blanks between; inside a URL one is %20")
        client = Penstock(
            urls if len(urls) > 1 else self.url,
            prefix=self.prefix,
            retry_for=RETRY_FOR,
            node_hosts=self.node_hosts.split(),
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", EvictionWarning)
            client.connect()
        for warning in caught:
            output.complain(f"warning: {warning.message}")
        try:
            yield client
        finally:
            client.close()

    def answer(self, document: Any, show: Callable[[], None]) -> None:
        """Print the document, or what `show` prints for people."""
        if self.as_json:
            output.write_json(document)
        else:
            show()


def _version(wanted: bool) -> None:
    if wanted:
        output.write(penstock.__version__)
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    url: UrlOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
    node_hosts: HostsOption = None,
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Inspect and manage penstock queues on a Redis server."""
    hosts = os.environ.get("PENSTOCK_NODE_HOSTS", "")
    given = Session(os.environ.get("PENSTOCK_URL") or None, node_hosts=hosts)
    ctx.obj = given.changed(url, prefix, as_json, node_hosts)


def command(name: str, *, common: bool = True) -> Callable[[Function], Function]:
    """Register a command: its function gets a `Session` first, then its own parameters.

    Args:
        name: as the user types it.
        common: whether the options that all commands share may stand after its name too.
    """
    shared = COMMON if common else {}

    def register(function: Function) -> Function:
        @functools.wraps(function)
        def call(ctx: typer.Context, **values: Any) -> None:
            session: Session = ctx.find_object(Session) or Session()
            changes = {option: values.pop(option) for option in shared}
            function(session.changed(**changes), **values)

        signature = inspect.signature(function, eval_str=True)
        parameters = [
            _parameter("ctx", typer.Context, inspect.Parameter.empty),
            *(_parameter(p.name, p.annotation, p.default) for p in _own(signature)),
            *(
                _parameter(n, kind, False if kind is JsonOption else None)
                for n, kind in shared.items()
            ),
        ]
        made: Any = call
        made.__signature__ = signature.replace(parameters=parameters)
        made.__annotations__ = {p.name: p.annotation for p in parameters}
        del made.__wrapped__  # or typer reads the signature of `function`
        app.command(name)(made)
        return function

    return register


def _own(signature: inspect.Signature) -> list[inspect.Parameter]:
    return list(signature.parameters.values())[1:]


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, annotation=annotation, default=default)


def run(argv: list[str]) -> int:
    """Run a command and turn what it raises into a line on stderr and an exit code."""
    logging.getLogger("penstock").addHandler(QUIET)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a body may hold any character
    try:
        code = _code(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`head`, say) has left; Python's own flush at exit must not complain of it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _code(argv: list[str]) -> int:
    try:
        return int(app(args=argv, prog_name="penstock", standalone_mode=False) or 0)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except UsageError as error:
        error.message = printable(redacted(error.message))  # it may quote an argument
        error.show()
        return int(error.exit_code)
    except typer.Abort:
        output.complain("aborted")
        return 1
    except BrokenPipeError:
        raise
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
