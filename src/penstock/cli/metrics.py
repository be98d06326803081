"""The command `metrics`: the figures of queues for Prometheus and autoscalers."""

from __future__ import annotations

import sys
import threading
from typing import Annotated

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, Option
from penstock.client._sync.metrics import MAX_QUEUES, Metrics
from penstock.core.nodes.metrics import as_text
from penstock.core.values.urls import host_and_port
from penstock.worker.answering import METRIC_PATHS, AnswerServer, one_at_a_time
from penstock.worker.signals import handle_signals

__all__ = ["metrics"]


@command("metrics")
def metrics(
    session: Session,
    queues: Annotated[list[str] | None, Argument("PATTERN")] = None,
    port: Annotated[int | None, Option(metavar="PORT", low=0, high=65535)] = None,
    host: str = "127.0.0.1",
    most: Annotated[int, Option(low=1)] = MAX_QUEUES,
) -> None:
    """Print the figures of queues, workers and nodes for Prometheus, or serve them.

    Without --port it prints them once, for a file that node_exporter collects. With it, it answers
    GET /metrics, and GET /queues/NAME.json for autoscalers, until SIGTERM or SIGINT. Exit code 1:
    the server does not answer.

    Args:
        queues: names or patterns of queues: * any text, ? any character, [abc] one of these.
            Default: all queues.
        port: port to listen on; 0 = any free port.
        host: address to listen on.
        most: most queues with labels of their own.

    Examples:
        penstock metrics
        penstock metrics --port 9000 'shop.*' emails
    """
    stopped = threading.Event()
    with session.client() as client:
        figures = Metrics(client, queues or ["*"], most)
        if port is None:
            sys.stdout.write(as_text(figures.read()))
            return
        handle_signals(lambda _: stopped.set())
        try:
            server = AnswerServer(one_at_a_time(figures.answer), METRIC_PATHS, host, port)
        except (OSError, UnicodeError) as error:
            raise Failed(f"argument --port: {host_and_port(host, port)}: {error}") from error
        with server:
            output.note(f"penstock: {server.url_of('/metrics')}")
            stopped.wait()
