"""The process that runs suspects, from its start to its end."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from penstock.core.jobs.logs import get_logger
from penstock.errors import UnsupportedVersion
from penstock.worker.isolation import Isolated
from penstock.worker.lifespan import LifespanError
from penstock.worker.log import set_up
from penstock.worker.processes import Line
from penstock.worker.signals import GROUP_SIGNALS
from penstock.worker.target import NoWorker, load

__all__ = ["main"]

logger = get_logger("penstock")


def main(line: Line, target: str, options: dict[str, Any], setup: tuple[Any, ...]) -> None:
    """Run the process.

    Args:
        line: its end of the line.
        target: `module:name` of the worker.
        options: the options of the worker that the process takes over.
        setup: the worker's `chosen_setup`; empty = the app sets up its own log.
    """
    for number in GROUP_SIGNALS:  # for the worker, which ends this process
        signal.signal(number, lambda *_: None)
    try:
        worker = load(target)
    except NoWorker as error:
        logger.error("%s", "\n".join([str(error), *error.trace]))  # noqa: TRY400  # the app's trace
        sys.exit(2)
    if setup:
        set_up(*setup)
    try:
        running = worker._run_isolated(Isolated(line), options)
        if running is not None:
            asyncio.run(running)
    except (LifespanError, UnsupportedVersion) as error:
        logger.error("%s", error)  # noqa: TRY400  # the worker's own has its trace
        sys.exit(1)
