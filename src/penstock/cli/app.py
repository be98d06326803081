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
from penstock import BadArgument, EvictionWarning, Penstock, PenstockError
from penstock.cli import output
from penstock.core.logs import printable
from penstock.core.urls import HIDDEN, fault_of, redacted
from penstock.wire.keys import DEFAULT_PREFIX

__all__ = ["Failed", "Session", "app", "command", "run"]

DEFAULT_URL = "redis://localhost:6379/0"
QUIET = logging.NullHandler()
RETRY_FOR = 1.0
"""Seconds; a user at a terminal can repeat the command."""

UsageError: Any = typer.BadParameter.__bases__[0]
"""Of click, which newer versions of typer contain and older ones import."""
Function = TypeVar("Function", bound=Callable[..., Any])

UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="Address of the server: redis://, rediss://, unix:// or redis+sentinel://; of several "
        "nodes separated by spaces. Nodes that these list are used as well. Default: "
        f"$PENSTOCK_URL, {DEFAULT_URL}.",
    ),
]
HostsOption = Annotated[
    str | None,
    typer.Option(
        "--node-hosts",
        metavar="HOSTS",
        help="Hosts of listed nodes that may get the password of --url: names or patterns such as "
        "*.redis.internal, separated by spaces. Default: $PENSTOCK_NODE_HOSTS.",
    ),
]
PrefixOption = Annotated[
    str | None,
    typer.Option(
        "--prefix", metavar="TEXT", help=f"Prefix of all keys. Default: {DEFAULT_PREFIX}."
    ),
]
JsonOption = Annotated[
    bool | None, typer.Option("--json", help="Print one JSON document instead of tables.")
]

COMMON = {
    "given_url": UrlOption,
    "prefix": PrefixOption,
    "as_json": JsonOption,
    "node_hosts": HostsOption,
}
"""The fields of `Session` and their options, which stand before or after the command's name."""

METAVARS = {
    float: "SECONDS", float | None: "SECONDS", int: "N", int | None: "N", str | None: "TEXT",
}  # fmt: skip
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


class Failed(Exception):
    """The error of a command; its text is the line that the user reads."""


@dataclass(frozen=True)
class Session:
    """The values of the options that all commands share.

    Args:
        given_url: URLs of the servers, separated by spaces; None = not given.
        prefix: prefix of all keys.
        as_json: print a JSON document instead of text.
        node_hosts: hosts of listed nodes that may get the password, separated by spaces.
    """

    given_url: str | None = None
    prefix: str = DEFAULT_PREFIX
    as_json: bool = False
    node_hosts: str = ""

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


def _version(wanted: bool) -> None:
    if wanted:
        output.write(penstock.__version__)
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    url: UrlOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = None,
    node_hosts: HostsOption = None,
    version: Annotated[  # noqa: ARG001 - its callback has answered
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Inspect and manage penstock queues on a Redis server."""
    hosts = os.environ.get("PENSTOCK_NODE_HOSTS", "")
    given = Session(os.environ.get("PENSTOCK_URL") or None, node_hosts=hosts)
    ctx.obj = given.changed(given_url=url, prefix=prefix, as_json=as_json, node_hosts=node_hosts)


def command(name: str, *, common: bool = True) -> Callable[[Function], Function]:
    """Register a command: its function gets a `Session` first, then its own parameters.

    The function's docstring is the help. Its Args are the help of arguments and options.

    Args:
        name: as the user types it.
        common: accept the options of `COMMON` after its name too.
    """
    shared = COMMON if common else {}

    def register(function: Function) -> Function:
        def call(ctx: typer.Context, **values: Any) -> None:
            session: Session = ctx.obj
            changes = {option: values.pop(option) for option in shared}
            function(session.changed(**changes), **values)

        text, helps = _split_docstring(function)
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("ctx", keyword, annotation=typer.Context),
            *(_parameter(one, helps.get(one.name)).replace(kind=keyword) for one in own),
            *(inspect.Parameter(n, keyword, annotation=t, default=None) for n, t in shared.items()),
        ]
        # typer reads these, not those of `call`
        call.__doc__ = text
        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by inspect
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(name)(call)
        return function

    return register


def _split_docstring(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the text before the Args, and the text of each argument."""
    text, _, described = (inspect.getdoc(function) or "").partition("\n\nArgs:\n")
    found = re.findall(r"^    (\w+): ((?:.|\n {8})+)", described, flags=re.MULTILINE)
    texts = {name: " ".join(lines.split()) for name, lines in found}
    return text, {name: one[0].upper() + one[1:] for name, one in texts.items()}


def _parameter(one: inspect.Parameter, text: str | None) -> inspect.Parameter:
    """Return a parameter with its help and the name of its value, for typer.

    Args:
        one: may be marked with `typer.Argument` or `typer.Option`; otherwise it is an option.
        text: the help.
    """
    kind: Any = one.annotation
    if get_origin(kind) is Annotated:
        kind, mark = get_args(kind)
        mark = copy(mark)  # commands share it
    elif kind is bool:
        mark = typer.Option("--" + one.name.replace("_", "-"))  # and no --no-...
    else:
        mark = typer.Option()
    mark.help = text
    mark.metavar = mark.metavar or METAVARS.get(kind)
    return one.replace(annotation=Annotated[kind, mark])


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
