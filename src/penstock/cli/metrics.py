"""The command `metrics`: the figures of all queues for Prometheus."""

from __future__ import annotations

import sys
import threading
from typing import Annotated

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.output import Failed
from penstock.cli.parameters import Argument, Option
from penstock.core.values.urls import host_and_port
from penstock.worker.signals import handle_signals

__all__ = ["metrics"]


@command("metrics")
def metrics(
    session: Session,
    pattern: Annotated[str, Argument("PATTERN")] = "*",
    port: Annotated[int | None, Option(metavar="PORT", low=1, high=65535)] = None,
    host: str = "127.0.0.1",
    most: Annotated[int, Option(low=1)] = 1000,
) -> None:
    """Print the figures of queues, workers and nodes for Prometheus, or serve them.

    It needs the extra `prometheus`. Without --port it prints them once, for a file that
    node_exporter collects. With it, it answers GET /metrics until SIGTERM or SIGINT. Exit code 1:
    the server does not answer.

    Args:
        pattern: only queues whose names match: * any text, ? any character, [abc] one of these.
        port: port to listen on.
        host: address to listen on.
        most: most queues with labels of their own.

    Examples:
        penstock metrics
        penstock metrics --port 9000 'shop.*'
    """
    try:
        from prometheus_client import CollectorRegistry, generate_latest, start_http_server

        from penstock.integrations.prometheus import QueueCollector
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise Failed(
            "this command needs one more package: pip install 'penstock[prometheus]'"
        ) from None
    registry, stopped = CollectorRegistry(), threading.Event()
    with session.client() as client:
        registry.register(QueueCollector(client, pattern, most))
        if port is None:
            sys.stdout.write(generate_latest(registry).decode())
            return
        handle_signals(lambda _: stopped.set())
        server, thread = start_http_server(port, host, registry)
        output.note(f"penstock: http://{host_and_port(host, port)}/metrics")
        stopped.wait()
        server.shutdown()
        server.server_close()
        thread.join()
