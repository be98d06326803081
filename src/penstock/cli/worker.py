"""Commands that run workers, and tell how they are: worker, healthy."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from penstock import BadArgument
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.watching import Changes, resident
from penstock.core.logs import get_logger
from penstock.wire.keys import DEFAULT_PREFIX
from penstock.worker import AsyncWorker
from penstock.worker.children import NUMBER, SupervisorSocket, Terms
from penstock.worker.health import HealthFile, HealthServer, Probed, ailment
from penstock.worker.log import set_up
from penstock.worker.supervisor import BROKEN, DRAINED, Supervisor
from penstock.worker.target import AnyWorker, NoWorker, load

__all__ = ["healthy", "worker"]

LOG = get_logger(__name__)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class LogLevel(str, Enum):
    """The least that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Changed:
    """What the options change of the worker that the app has made; None = nothing.

    Args:
        queues: as the user wrote them.
    """

    queues: str | None
    concurrency: int | None
    prefetch: int | None
    grace: float | None
    burst: bool | None
    max_jobs: int | None
    name: str | None

    def arguments(self) -> list[str]:
        """The same for the command line of another process."""
        given = {option: value for option, value in vars(self).items() if value is not None}
        return [
            _option(name) if value is True else f"{_option(name)}={value}"
            for name, value in given.items()
        ]

    def apply(self, made: AnyWorker, target: str) -> None:
        """Change a worker, which `target` names.

        Raises:
            BadArgument: it refuses a value.
        """
        changes = {option: value for option, value in vars(self).items() if value is not None}
        if self.queues is not None:
            changes["queues"] = parse_queues(self.queues)
        number = os.environ.get(NUMBER)
        if number:
            changes["name"] = f"{self.name or made.name}-{number}"
        if made.options.isolate is None and os.name == "posix":
            changes["isolate"] = target
        made.change(**changes)


@dataclass(frozen=True)
class Health:
    """How probes are answered; None = not in this way."""

    host: str
    port: int | None
    file: Path | None

    def of(self, probed: Probed, stack: ExitStack) -> None:
        """Answer them until the stack ends."""
        if self.port is not None:
            try:
                server = stack.enter_context(HealthServer(probed, self.host, self.port))
            except (OSError, UnicodeError) as error:
                raise _bad("health_port", f"{self.host}:{self.port}: {error}") from error
            LOG.info("health is told at %s", server.url)
        if self.file is not None:
            try:
                stack.enter_context(HealthFile(self.file, probed))
            except OSError as error:
                raise _bad("health_file", f"{self.file}: {error.strerror}") from error


@command("worker", common=False)
def worker(
    session: Session,
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:NAME",
            help="A Worker or an AsyncWorker, or a function that returns one.",
            show_default=False,
        ),
    ],
    processes: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1000,
            help="Number of processes; dead ones are replaced. Default: run in this process.",
            show_default=False,
        ),
    ] = None,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[:WEIGHT],...", help="Replaces the queues of the app.", show_default=False
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Jobs to run at the same time.", show_default=False),
    ] = None,
    prefetch: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Jobs to reserve ahead.", show_default=False),
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Time for running jobs after SIGTERM; unfinished ones are then released.",
            show_default=False,
        ),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="End when there is no job to take.")
    ] = False,
    max_jobs: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Replace a process after this many jobs.", show_default=False
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Replace a process that uses more memory, with its children: 512M, 2G.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Name of the worker.", show_default=False)
    ] = None,
    reload: Annotated[
        bool,
        typer.Option(
            "--reload",
            help="For development: restart when a .py file in or below . changes.",
        ),
    ] = False,
    health_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            min=0,
            max=65535,
            help="Answer GET /health (200 or 503) and /status; 0 = any free port.",
            show_default=False,
        ),
    ] = None,
    health_host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    health_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the status there every second, for `penstock healthy`.",
            dir_okay=False,
            resolve_path=True,  # the app may leave this directory
            show_default=False,
        ),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(
            case_sensitive=False,
            help="Default: info, or the app's own setup.",
            show_default=False,
        ),
    ] = None,
    trial: Annotated[
        bool, typer.Option("--trial", help="Only check that the app can be loaded.", hidden=True)
    ] = False,
) -> None:
    """Run a worker, in one process or in several, until SIGTERM or SIGINT.

    The server is the app's own choice; --url before the command is handed to it as PENSTOCK_URL.
    Exit code 2 if the app can't be loaded, or refuses an option.
    """
    if session.prefix != DEFAULT_PREFIX:
        raise _bad("prefix", "set it in the app")
    if session.given_url:
        os.environ["PENSTOCK_URL"] = session.given_url
    changed = Changed(queues, concurrency, prefetch, grace, burst or None, max_jobs, name)
    if queues is not None:
        parse_queues(queues)
    limit = None if max_memory is None else parse_size(max_memory)
    health = Health(health_host, health_port, health_file)
    level = log_level and log_level.value
    if processes is None and limit is None and not reload:
        _work(target, changed, health, level, trial=trial)
        return
    set_up(level)
    arguments = [target, *changed.arguments(), *([f"--log-level={level}"] if level else [])]
    _supervise(arguments, health, processes or 1, limit, reload=reload)


def _work(target: str, changed: Changed, health: Health, level: str | None, *, trial: bool) -> None:
    """Run the worker in this process."""
    line = SupervisorSocket.of_this_process()
    try:
        made = load(target)
        changed.apply(made, target)
    except NoWorker as error:
        output.complain(str(error))
        for line_of_trace in error.trace:
            output.note(line_of_trace)
        raise typer.Exit(BROKEN) from error
    except BadArgument as error:
        name = "name" if error.argument == "owner" else error.argument
        raise _bad(name, error.reason) from error
    if trial:
        return
    set_up(level)
    # The worker listens while it runs; a signal just before stops it too, one behind does no harm.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: made.stop())
    with ExitStack() as stack:
        health.of(made, stack)
        if line is not None:
            options = made.options
            terms = Terms(options.grace_s, options.burst, options.max_jobs is not None)
            line.report(made, terms)
        if isinstance(made, AsyncWorker):
            asyncio.run(made.run())
        else:
            made.run()
    if made.abandoned:
        LOG.error(
            "%d jobs were neither reported nor released; they come back when their leases end",
            made.abandoned,
        )
        raise typer.Exit(1)
    if line is not None and made.drained:
        raise typer.Exit(DRAINED)


def _supervise(
    arguments: Sequence[str],
    health: Health,
    processes: int,
    max_memory: int | None,
    *,
    reload: bool,
) -> None:
    """Run the worker in processes of its own."""
    if max_memory is not None:
        _need("psutil", "max_memory", "cli")
    if reload:
        _need("watchfiles", "reload", "reload")
    interpreter = [sys.executable, *(f"-W{option}" for option in sys.warnoptions)]
    ours = [*interpreter, "-m", "penstock.cli", "worker", *arguments]

    supervisor = Supervisor(
        lambda number: ours if number else [*ours, "--trial"],
        processes,
        max_memory=max_memory,
        memory=resident,
        development=reload,
    )
    with ExitStack() as stack:
        health.of(supervisor, stack)
        if reload:
            stack.enter_context(Changes(Path.cwd(), supervisor.reload))
        code = supervisor.run()
    if code:
        raise typer.Exit(code)


@command("healthy", common=False)
def healthy(
    session: Session,  # noqa: ARG001 - it needs no server
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    max_age: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0, help="Most seconds since the file was written."),
    ] = 15,
) -> None:
    """Tell whether the worker that writes FILE (--health-file) is well, by the exit code."""
    wrong = ailment(file, max_age=max_age)
    if wrong:
        output.complain(wrong)
        raise typer.Exit(1)
    output.write("healthy")


def parse_queues(text: str) -> list[str] | dict[str, int]:
    """Names, or names with their weights when there is one: "emails:8,low" is 8 to 1.

    Only digits after the last colon are a weight.
    """
    found: dict[str, int] = {}
    for part in text.split(","):
        split = re.fullmatch(r"(.+):([0-9]{1,9})", part, flags=re.DOTALL)
        queue, weight = (split[1], int(split[2])) if split else (part, 1)
        if not queue.strip() or queue != queue.strip() or queue in found or not weight:
            raise _bad("queues", f"{part!r}: must be NAME or NAME:WEIGHT, each name once")
        found[queue] = weight
    weighted = re.search(r":[0-9]{1,9}(,|$)", text)
    return found if weighted else list(found)


def parse_size(text: str) -> int:
    """Bytes; K, M and G are powers of 1024."""
    split = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMG]?)B?", text.strip().upper())
    size = int(float(split[1]) * UNITS[split[2]]) if split else 0
    if not size:
        raise _bad("max_memory", f"{text!r}: must be a size such as 512M or 2G")
    return size


def _need(package: str, option: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise _bad(option, f"it needs {package}: pip install 'penstock[{extra}]'")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bad(name: str, reason: str) -> typer.BadParameter:
    return typer.BadParameter(reason, param_hint=_option(name))
