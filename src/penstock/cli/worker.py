"""Commands that run workers and check their health: worker, healthy."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from redis.exceptions import ResponseError

from penstock import (
    BadArgument,
    NotPermitted,
    OutOfMemory,
    Penstock,
    QueueDamaged,
    UnsupportedVersion,
)
from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.parameters import Argument, BadUsage, Option
from penstock.cli.watching import calling_on_change, resident
from penstock.core.jobs.logs import TRACE_FIELD, get_logger
from penstock.core.values.answers import HttpAnswer, unavailable
from penstock.core.values.durable import Durable
from penstock.core.values.urls import URL_VARIABLE, host_and_port
from penstock.wire.keys import DEFAULT_PREFIX
from penstock.worker import AsyncWorker
from penstock.worker.answering import AnswerPath, one_at_a_time
from penstock.worker.children import NUMBER_VARIABLE, SupervisorLine
from penstock.worker.health import HealthFile, HealthServer, Probed, health_problem
from penstock.worker.held_file import HeldFile
from penstock.worker.lifespan import LifespanError
from penstock.worker.log import LogFormat, set_up
from penstock.worker.options import Order
from penstock.worker.processes import Line, reason_against_processes
from penstock.worker.signals import handle_signals, hear_hang_up
from penstock.worker.supervisor import BROKEN_APP_CODE, DRAINED_CODE, UNSTARTED_CODE, Supervisor
from penstock.worker.systemd import notify_ready
from penstock.worker.target import AnyWorker, NoWorker, load

__all__ = ["healthy", "worker"]

logger = get_logger(__name__)
AnswerProbes: TypeAlias = Callable[[Probed, ExitStack, AnswerPath], HealthServer | None]
PROCESS_ANSWER_SECONDS = 10.0
"""Seconds that a process may take to answer for its queues."""
BYTES_PER_UNIT = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@command("worker", common=False)
def worker(
    session: Session,
    target: Annotated[str, Argument("MODULE:NAME")],
    processes: Annotated[int | None, Option(low=1, high=1000)] = None,
    queues: Annotated[str | None, Option(metavar="NAME[:WEIGHT],...")] = None,
    order: Order | None = None,
    concurrency: Annotated[int | None, Option(low=1)] = None,
    prefetch: Annotated[int | None, Option(low=0)] = None,
    grace: Annotated[float | None, Option(low=0)] = None,
    time_limit: Annotated[float | None, Option(low=0.001)] = None,
    burst: bool = False,
    max_jobs: Annotated[int | None, Option(low=1)] = None,
    at_most_once: Annotated[str | None, Option(metavar="N[,fsynced][,timeout=S]")] = None,
    max_memory: Annotated[str | None, Option(metavar="SIZE")] = None,
    name: str | None = None,
    reload: bool = False,
    health_port: Annotated[int | None, Option(metavar="PORT", low=0, high=65535)] = None,
    health_host: Annotated[str, Option(metavar="ADDRESS")] = "127.0.0.1",
    health_file: Annotated[
        Path | None,
        # The app may change the directory.
        Option(convert=lambda text: Path(text).resolve()),
    ] = None,
    log_level: Literal["debug", "info", "warning", "error"] | None = None,
    log_format: LogFormat = "text",
    log_jobs: bool = False,
    trial: Annotated[bool, Option(hidden=True)] = False,
) -> None:
    """Run a worker, in one process or in several, until a signal stops it.

    SIGTERM and Ctrl-C do. SIGHUP replaces several processes one by one, and ends a worker that runs
    in this one, as the terminal was closed. The app chooses its server. A --url before the command
    is passed to it as PENSTOCK_URL. Exit code 2: the app can't be loaded, or refuses an option. 3:
    its lifespan fails at the start.

    Args:
        target: a Worker or an AsyncWorker, or a function that returns one.
        processes: number of processes; dead ones are replaced. Default: run in this process.
        queues: queues to use in place of those of the app.
        order: weighted = all queues by their weights; strict = the first one while it has jobs.
        concurrency: number of jobs to run at the same time.
        prefetch: number of jobs to hold in addition to those that run. Default: it adapts.
        grace: time for running jobs after SIGTERM; jobs that are not finished then are released.
        time_limit: time limit of a call, for handlers without one of their own.
        burst: end when there is no job to take.
        max_jobs: replace a process after this many jobs.
        at_most_once: replicas, and disks, that must confirm deliveries with lease 0; 0 = none.
        max_memory: replace a process that, with its children, uses more, such as 512M or 2G.
        name: name of the worker.
        reload: for development: restart when a .py file changes in the current directory or below.
        health_port: answer GET /health (200 or 503), /status, and the figures of its queues as
            `penstock metrics` does; 0 = any free port.
        health_host: address to listen on.
        health_file: write the status there every second, for `penstock healthy`.
        log_level: lowest level to log. Default: info, or the app's own setup.
        log_format: text, or json for one JSON document a line; unless the app has its own setup.
        log_jobs: log a line for each finished job.
        trial: only check that the app can be loaded.

    Examples:
        penstock worker app:worker --processes 4 --max-memory 512M
        penstock worker app:worker --queues emails:3,reports --reload
    """
    if session.prefix != DEFAULT_PREFIX:
        raise _bad("prefix", "the app chooses the prefix: set it there")
    if session.given_url:
        os.environ[URL_VARIABLE] = session.given_url
    options = {
        "queues": queues, "order": order, "concurrency": concurrency, "prefetch": prefetch,
        "grace": grace, "burst": burst or None, "max_jobs": max_jobs, "name": name,
        "log_jobs": log_jobs or None, "time_limit": time_limit, "at_most_once": at_most_once,
    }  # fmt: skip
    changes = {option: value for option, value in options.items() if value is not None}
    parse_options(changes)
    limit = None if max_memory is None else parse_size(max_memory)
    answer = partial(_answer_probes, host=health_host, port=health_port, file=health_file)
    if processes is None and limit is None and not reload:
        _work(session, target, changes, answer, log_level, log_format, trial=trial)
        return
    if reason := reason_against_processes():
        several = {"processes": processes, "max_memory": limit, "reload": reload or None}
        raise _bad(next(name for name, value in several.items() if value is not None), reason)
    set_up(log_level, log_format)
    if limit is not None:
        _need("psutil", "max_memory", "cli")
    if reload:
        _need("watchfiles", "reload", "reload")
    interpreter = [sys.executable, *(f"-W{option}" for option in sys.warnoptions)]
    asked = None if health_port is None else 0  # each process answers for its queues
    more = {"log_level": log_level, "log_format": log_format, "health_port": asked}
    arguments = _arguments({**changes, **more})
    command_line = [*interpreter, "-m", "penstock.cli", "worker", target, *arguments]
    supervisor = Supervisor(
        lambda number: command_line if number else [*command_line, "--trial"],
        processes or 1,
        max_memory=limit,
        memory=resident,
        development=reload,
    )
    with ExitStack() as stack:
        answer(supervisor, stack, partial(_answer_figures, supervisor))
        if reload:
            stack.enter_context(calling_on_change(Path.cwd(), supervisor.reload))
        code = supervisor.run()
    if code:
        raise SystemExit(code)


def _work(
    session: Session,
    target: str,
    changes: Mapping[str, Any],
    answer: AnswerProbes,
    level: str | None,
    log_format: LogFormat,
    *,
    trial: bool,
) -> None:
    inherited = Line.inherit()
    line = None if inherited is None else SupervisorLine(inherited, HeldFile.inherit())
    try:
        made = load(target)
        apply_options(changes, made, target)
    except NoWorker as error:
        _report_broken_app(error, level, log_format)
        raise SystemExit(BROKEN_APP_CODE) from error
    except BadArgument as error:
        name = "name" if error.argument == "owner" else error.argument
        raise _bad(name, error.reason) from error
    if trial:
        return
    set_up(level, log_format)
    _warn_of_other_server(session, made, target)
    # The worker handles signals while it runs; one that comes just before has to stop it too.
    handle_signals(lambda _: made.stop())
    hear_hang_up()
    if line is None:
        notify_ready()
    with ExitStack() as stack:
        server = answer(made, stack, made.answer_metrics)
        if line is not None:
            made.held_file = line.held_file
            line.report(made, made.options.grace, None if server is None else server.port)
        _run(made)
    if made.abandoned:
        logger.error(
            "%d jobs were neither reported nor released; they come back when their leases end",
            made.abandoned,
        )
        raise SystemExit(1)
    if line is not None and made.drained:
        raise SystemExit(DRAINED_CODE)


def _warn_of_other_server(session: Session, made: AnyWorker, target: str) -> None:
    """Warn if the app has not read the URL that was given: it chooses its server itself."""
    if session.given_url is None or os.environ.get(NUMBER_VARIABLE, "1") != "1":
        return
    named = Penstock(session.source, node_hosts=session.node_hosts.split()).topology.current.address
    if _one_name(named) != _one_name(made.address):
        logger.warning("%s uses %s, not %s", target, made.address, named)


def _one_name(address: str) -> str:
    return re.sub(r"\b127\.0\.0\.1:", "localhost:", address)


def _report_broken_app(error: NoWorker, level: str | None, log_format: LogFormat) -> None:
    if log_format == "json":
        set_up(level, log_format)
        logger.error("%s", error, extra={TRACE_FIELD: "\n".join(error.trace)})
        return
    output.complain(str(error))
    for line in error.trace:
        output.note(line)


def _run(made: AnyWorker) -> None:
    try:
        if isinstance(made, AsyncWorker):
            asyncio.run(made.run())
        else:
            made.run()
    except LifespanError as error:
        cause = error.__cause__ or error
        trace = cause.__traceback__
        while trace and trace.tb_frame.f_globals.get("__name__", "").startswith("penstock."):
            trace = trace.tb_next
        logger.error("%s", error, exc_info=(type(cause), cause, trace))  # noqa: TRY400  # with its cause
        raise SystemExit(UNSTARTED_CODE if error.phase == "start" else 1) from error
    except (
        UnsupportedVersion, BadArgument, QueueDamaged, NotPermitted, OutOfMemory, ResponseError
    ) as error:  # fmt: skip
        logger.error("%s", error)  # noqa: TRY400  # no trace: the error says all
        is_unfit = isinstance(error, BadArgument)  # a handler, for what the lifespan yields
        raise SystemExit(UNSTARTED_CODE if is_unfit else 1) from error


def apply_options(changes: Mapping[str, Any], made: AnyWorker, target: str) -> None:
    """Change the worker that `target` names.

    Raises:
        BadArgument: the worker refuses a value.
    """
    more = parse_options(changes)
    if number := os.environ.get(NUMBER_VARIABLE):
        more["name"] = f"{changes.get('name') or made.name}-{number}"
    if made.options.isolate is None and not reason_against_processes():
        more["isolate"] = target
    made.change(**{**changes, **more})


def _arguments(changes: Mapping[str, Any]) -> list[str]:
    """Return options, but for those that are None, as arguments of `penstock worker`."""
    given = {_option(name): value for name, value in changes.items() if value is not None}
    return [name if value is True else f"{name}={value}" for name, value in given.items()]


def _answer_probes(
    probed: Probed,
    stack: ExitStack,
    answer: AnswerPath,
    *,
    host: str,
    port: int | None,
    file: Path | None,
) -> HealthServer | None:
    server: HealthServer | None = None
    if port is not None:
        try:
            server = stack.enter_context(HealthServer(probed, host, port, one_at_a_time(answer)))
        except (OSError, UnicodeError) as error:
            raise _bad("health_port", f"{host_and_port(host, port)}: {error}") from error
        level = logging.DEBUG if NUMBER_VARIABLE in os.environ else logging.INFO
        logger.log(level, "probes are answered at %s", server.url)
    if file is not None:
        try:
            stack.enter_context(HealthFile(file, probed))
        except OSError as error:
            raise _bad("health_file", f"{file}: {error.strerror}") from error
    return server


def _answer_figures(supervisor: Supervisor, path: str) -> HttpAnswer | None:
    """Let a process answer for its queues: only the app knows its server and prefix."""
    reasons = []
    for slot in supervisor.status().processes:
        port = slot["worker"].get("health_port")
        if slot["pid"] is None or port is None:
            continue
        connection = HTTPConnection("127.0.0.1", port, timeout=PROCESS_ANSWER_SECONDS)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            text, content_type = answer.read().decode(), answer.headers["Content-Type"]
        except (OSError, HTTPException) as error:
            reasons.append(f"process {slot['number']}: {error!r}")
            if isinstance(error, TimeoutError):  # the others ask the same server
                break
            continue
        finally:
            connection.close()
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        return HttpAnswer(HTTPStatus(answer.status), content_type, text)
    return unavailable("; ".join(reasons) or "no process has begun: ask again later")


@command("healthy", common=False)
def healthy(
    session: Session,  # noqa: ARG001 - it needs no server
    file: Annotated[Path, Argument("FILE")],
    max_age: Annotated[float, Option(low=0)] = 15,
) -> None:
    """Check a worker by its file: exit code 0 = it is healthy, 1 = it is not.

    Args:
        file: the file that the worker writes (--health-file).
        max_age: longest time since the file was written.

    Examples:
        penstock healthy /run/penstock.json
    """
    wrong = health_problem(file, max_age=max_age)
    if wrong:
        output.complain(wrong)
        raise SystemExit(1)
    output.write("healthy")


def parse_options(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those options that are texts with a form of their own."""
    parsers = {"queues": parse_queues, "at_most_once": parse_durable}
    return {name: parse(changes[name]) for name, parse in parsers.items() if name in changes}


def parse_queues(text: str) -> list[str] | dict[str, int]:
    """Parse names, or names with weights if one has a weight: in "emails:8,low" low has 1.

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


def parse_durable(text: str) -> Durable:
    """Parse confirmations such as "2,fsynced,timeout=0.5": of replicas, of disks, or of both."""
    replicas = r"([0-9]{1,4})(?:,(fsynced))?"
    split = re.fullmatch(rf"(?:{replicas}|(fsynced))(?:,timeout=([0-9.]{{1,9}}))?", text)
    with suppress(BadArgument, ValueError):
        if split:
            number = int(split[1]) if split[1] else None
            timeout = float(split[4]) if split[4] else None
            return Durable(number, fsynced=bool(split[2] or split[3]), timeout=timeout)
    raise _bad("at_most_once", f"{text!r}: must be such as 2 or 2,fsynced,timeout=0.5")


def parse_size(text: str) -> int:
    """Parse a number of bytes; K, M and G are powers of 1024."""
    split = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,3})?)([KMG]?)B?", text.strip().upper())
    size = int(float(split[1]) * BYTES_PER_UNIT[split[2]]) if split else 0
    if not size:
        raise _bad("max_memory", f"{text!r}: must be a size such as 512M or 2G")
    return size


def _need(package: str, option: str, extra: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise _bad(option, f"it needs {package}: pip install 'penstock[{extra}]'")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _bad(name: str, reason: str) -> BadUsage:
    return BadUsage(f"argument {_option(name)}: {reason}")
