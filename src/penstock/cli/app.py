"""The typer application: options that all commands share, errors and exit codes."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

import penstock
from penstock import BadArgument, EvictionWarning, Penstock, PenstockError, ServerError
from penstock.cli import output
from penstock.cli.output import Failed
from penstock.core.logs import printable
from penstock.core.urls import HIDDEN, fault_of, redacted
from penstock.wire.keys import DEFAULT_PREFIX

__all__ = ["Session", "app", "command", "run"]

DEFAULT_URL = "redis://localhost:6379/0"
QUIET = logging.NullHandler()
RETRY_FOR = 1.0
"""Seconds; a user at a terminal can repeat the command."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""Of click, which newer versions of typer contain and older ones import."""
Function = TypeVar("Function", bound=Callable[..., Any])

METAVARS = {float: "SECONDS", int: "N", str: "TEXT"}
"""Names of the values of options in the help, unless an option has one of its own."""

app = typer.Typer(
    name="penstock",
    help="Inspect and manage penstock queues on a Redis server.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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

    given_url: Annotated[str | None, typer.Option("--url", metavar="URL")] = None
    prefix: str = DEFAULT_PREFIX
    as_json: Annotated[bool, typer.Option("--json")] = False
    node_hosts: Annotated[str, typer.Option(metavar="HOSTS")] = ""

    @property
    def url(self) -> str:
        """URLs of the servers."""
        return self.given_url or DEFAULT_URL

    def changed(self, **options: str | bool | None) -> Session:
        """Return a copy with these options; None leaves an option as it is."""
        given = {name: value for name, value in options.items() if value is not None}
        return replace(self, **given)  # type: ignore[arg-type]  # typer has checked the values

    def urls(self) -> list[str]:
        """Return the URL of each server.

        Raises:
            BadArgument: there are several, and one of them is no URL.
        """
        urls = self.url.split()
        if len(urls) < 2:
            return [self.url]
        if any(map(fault_of, urls)):  # perhaps one whose password has a space
            raise BadArgument(
                "url", HIDDEN, "must be URLs separated by spaces; write a space in a URL as %20"
            )
        return urls

    @contextlib.contextmanager
    def client(self) -> Iterator[Penstock]:
        """Connect a client, and print its warnings to stderr."""
        urls = self.urls()
        client = Penstock(
            urls if len(urls) > 1 else urls[0],
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


def _parameters(documented: Callable[..., Any]) -> tuple[str, list[inspect.Parameter]]:
    """Return the text of a docstring before its Args, and the parameters for typer.

    A parameter may be marked with `typer.Argument` or `typer.Option`; otherwise it is an option.
    Its line in the Args becomes its help.
    """
    text, _, described = (inspect.getdoc(documented) or "").partition("\n\nArgs:\n")
    helps = dict(re.findall(r"^    (\w+): ((?:.|\n {8})+)", described, flags=re.MULTILINE))
    every = inspect.signature(documented, eval_str=True).parameters.values()
    return text, [_parameter(one, " ".join(helps.get(one.name, "").split())) for one in every]


def _parameter(one: inspect.Parameter, text: str) -> inspect.Parameter:
    kind: Any = one.annotation
    if get_origin(kind) is Annotated:
        kind, mark = get_args(kind)
        mark = copy(mark)  # commands share it
    elif kind is bool:
        mark = typer.Option("--" + one.name.replace("_", "-"))  # and no --no-...
    else:
        mark = typer.Option()
    mark.help = text[:1].upper() + text[1:]
    plain, *_ = get_args(kind) or (kind,)  # without `| None`
    mark.metavar = mark.metavar or METAVARS.get(plain)
    return one.replace(annotation=Annotated[kind, mark])


def _accepting(*parameters: inspect.Parameter) -> Callable[[Function], Function]:
    """Return a decorator: typer reads these parameters in place of `**values`."""

    def declare(function: Function) -> Function:
        *own, _ = inspect.signature(function, eval_str=True).parameters.values()
        every = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *parameters)]
        function.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]  # read by inspect
        function.__annotations__ = {one.name: one.annotation for one in every}
        return function

    return declare


COMMON = [one.replace(default=None) for one in _parameters(Session)[1]]


def _version(wanted: bool) -> None:
    if wanted:
        output.write(penstock.__version__)
        raise typer.Exit


@app.callback()
@_accepting(*COMMON)
def options(
    ctx: typer.Context,
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    **given: Any,
) -> None:
    """Inspect and manage penstock queues on a Redis server."""
    hosts = os.environ.get("PENSTOCK_NODE_HOSTS", "")
    ctx.obj = Session(os.environ.get("PENSTOCK_URL") or None, node_hosts=hosts).changed(**given)


def command(name: str, *, common: bool = True) -> Callable[[Function], Function]:
    """Register a command: its function gets a `Session` first, then its own parameters.

    The function's docstring is the help. Its Args are the help of arguments and options.

    Args:
        name: as the user types it.
        common: accept the options of `Session` after its name too.
    """
    shared = COMMON if common else []

    def register(function: Function) -> Function:
        text, (_, *own) = _parameters(function)

        @app.command(name, help=text)
        @_accepting(*own, *shared)
        def call(ctx: typer.Context, **values: Any) -> None:
            session: Session = ctx.obj
            changes = {one.name: values.pop(one.name) for one in shared}
            function(session.changed(**changes), **values)

        return function

    return register


def run(argv: list[str]) -> int:
    """Run a command; print its error as one line on stderr, and return the exit code."""
    logging.getLogger("penstock").addHandler(QUIET)
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
