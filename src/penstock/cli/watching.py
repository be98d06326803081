"""What a supervisor watches besides its processes: their memory, and the code of the app."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from penstock.core.logs import get_logger

__all__ = ["Changes", "resident"]

LOG = get_logger(__name__)


def resident(pids: Sequence[int]) -> dict[int, int]:
    """Resident bytes of children of this process, of their own descendants too.

    The process table is read once for all of them. Pages that processes share count in each.
    It needs `psutil`.
    """
    import psutil

    family = {process.pid: process for process in psutil.Process().children(recursive=True)}
    total = dict.fromkeys(pids, 0)
    for process in family.values():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            head = process
            while head is not None and head.pid not in total:
                head = family.get(head.ppid())
            if head is not None:
                total[head.pid] += process.memory_info().rss
    return total


class Changes:
    """Calls a function when a Python file changes, in a thread of its own, while entered.

    Args:
        directory: with all below it, but for environments, caches and the like.
        changed: called once for changes that come together.

    It needs `watchfiles`.
    """

    def __init__(self, directory: Path, changed: Callable[[], None]) -> None:
        import watchfiles

        self._left = threading.Event()
        self._batches = watchfiles.watch(
            directory,
            watch_filter=watchfiles.PythonFilter(),
            stop_event=self._left,
            raise_interrupt=False,
        )
        self._directory = directory
        self._changed = changed
        self._thread = threading.Thread(target=self._run, name="penstock-reload", daemon=True)

    def _run(self) -> None:
        for batch in self._batches:
            names = sorted({_relative(path, self._directory) for _, path in batch})
            LOG.info("changed: %s", ", ".join(names))
            self._changed()

    def __enter__(self) -> Changes:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._left.set()
        self._thread.join()


def _relative(path: str, directory: Path) -> str:
    found = Path(path)
    return str(found.relative_to(directory) if found.is_relative_to(directory) else found)
