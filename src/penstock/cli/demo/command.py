"""The command `demo`: start a server, run, print the report, clean up."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

from penstock import Penstock
from penstock.cli.app import Session, command
from penstock.cli.demo.files import list_files, standard_library
from penstock.cli.demo.report import print_report
from penstock.cli.demo.run import DemoRun, keys
from penstock.cli.demo.screen import screen
from penstock.cli.output import Failed
from penstock.cli.parameters import Option, directory
from penstock.embedded import EmbeddedServer
from penstock.worker.processes import reason_against_processes

__all__ = ["clean", "demo"]


@command("demo")
def demo(
    session: Session,
    path: Annotated[Path | None, Option(metavar="DIR", convert=directory)] = None,
    workers: Annotated[int, Option(low=2, high=32)] = 3,
) -> None:
    """Watch a queue at work: a job for each file of a directory, and a worker killed midway.

    Starts a server for the run, or uses that of --url or PENSTOCK_URL, with another prefix. Exit
    code 1 if a file has no result, keys are left, or no worker was killed.

    Args:
        path: directory of files. Default: the sources of Python's standard library.
        workers: number of worker processes.

    Examples:
        penstock demo
        penstock demo --path . --workers 4
    """
    if reason := reason_against_processes():
        raise Failed(f"the demo {reason}")
    root = path or standard_library()
    listing = list_files(root, "" if path else ".py")
    if not listing:
        raise Failed(f"--path {root} has no files: name a directory with files")
    with screen(as_json=session.as_json) as told, _server(session) as (url, own):
        ours = Session(url, prefix=f"penstock-demo-{secrets.token_hex(4)}")
        with ours.client() as client:
            name = client.topology.executor.server_facts().name
            told.say(f"{name}, {'started for this run' if own else 'the server you named'}")
            try:
                report = DemoRun(client, url, root, listing, workers, told).run()
            finally:
                clean(client)
    session.answer(report.document(), lambda: print_report(report))
    if not report.ok:
        raise SystemExit(1)


@contextmanager
def _server(session: Session) -> Iterator[tuple[str, bool]]:
    if session.given_url:
        yield session.given_url, False
    else:
        with EmbeddedServer() as server:
            yield server.url, True


def clean(client: Penstock) -> int:
    """Remove every key under the client's prefix; return how many there were."""
    client.topology.executor.command("PING")  # after it, no call of a dead worker is left to run
    found = list(keys(client))
    return client.topology.executor.command("UNLINK", *found) if found else 0
