"""The memory of processes, and changes of the app's code, for the supervisor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.core.jobs.logs import get_logger

__all__ = ["calling_on_change", "resident"]

logger = get_logger(__name__)


def resident(pids: Sequence[int]) -> dict[int, int]:
    """Return the resident bytes of child processes, with those of their descendants.

    Memory that processes share is counted in each. It needs `psutil`.
    """
    import psutil

    family = {process.pid: process for process in psutil.Process().children(recursive=True)}
    total = dict.fromkeys(pids, 0)
    for process in family.values():
        with suppress(psutil.Error):  # it has ended meanwhile
            head = process
            while head is not None and head.pid not in total:
                head = family.get(head.ppid())
            if head is not None:
                total[head.pid] += process.memory_info().rss
    return total


@contextmanager
def calling_on_change(directory: Path, changed: Callable[[], None]) -> Iterator[None]:
    """Call a function, in a thread, when Python files below a directory change.

    Environments, caches and the like are left out. Files that change together cause one call.
    It needs `watchfiles`.
    """
    import watchfiles

    left = threading.Event()
    batches = watchfiles.watch(
        directory,
        watch_filter=watchfiles.PythonFilter(),
        stop_event=left,
        raise_interrupt=False,
    )

    def run() -> None:
        for batch in batches:
            names = sorted({os.path.relpath(path, directory) for _, path in batch})
            logger.info("changed: %s", ", ".join(names))
            changed()

    thread = threading.Thread(target=run, name="penstock-reload", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()
        thread.join()
