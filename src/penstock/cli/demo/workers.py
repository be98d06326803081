"""The worker processes of the demo: start them, and kill one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from penstock import Penstock
from penstock.cli.demo.report import Kill
from penstock.cli.demo.worker import FILES_QUEUE

__all__ = ["DemoWorkers"]


WORKER_COMMAND = (sys.executable, "-m", "penstock.cli.demo.worker")


class DemoWorkers:
    """The worker processes of a run.

    Args:
        client: of the server.
        url: of the server.
        root: the directory that they read.
        batch: how many jobs a worker takes at once.
        pace: seconds by which each job is made longer.
        victim: name of a file. The worker that takes its job first waits to be killed.

    Attributes:
        running: name of a worker -> its process.
    """

    def __init__(
        self, client: Penstock, url: str, root: Path, *, batch: int, pace: float, victim: str
    ) -> None:
        self._client = client
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `end`
        self._plan = {
            "url": url, "prefix": client.prefix, "root": str(root),
            "batch": batch, "pace": pace, "victim": victim,
        }  # fmt: skip
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, count: int) -> None:
        """Start workers; each enqueues a result when it is ready."""
        for number in range(1, count + 1):
            name = f"worker-{number}"
            self.running[name] = subprocess.Popen(
                [*WORKER_COMMAND, json.dumps({**self._plan, "owner": name})],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C is for us, and we end them
            )

    def kill(self, name: str) -> Kill | None:
        """Kill a worker; return None if it has ended by itself."""
        process = self.running.get(name)
        if process is None or process.poll() is not None:
            return None
        process.kill()
        process.wait()
        del self.running[name]
        return Kill(name, process.pid, held=self._count_held(name))

    def _count_held(self, name: str) -> int:
        # When the server has answered a PING, it has read all that the worker had sent before.
        self._client.topology.executor.command("PING")
        views = self._client.queue(FILES_QUEUE).peek(1000, state="active")
        return sum(view.owner == name for view in views)

    def deaths(self) -> str:
        """Return the last output of workers that ended by themselves; empty if none has."""
        ended = [name for name, process in self.running.items() if process.poll() is not None]
        if not ended:
            return ""
        for name in ended:
            del self.running[name]
        self._errors.seek(0)
        last = self._errors.read().decode(errors="replace").strip().splitlines()[-3:]
        return f"{', '.join(ended)} ended: {' | '.join(last)}"

    def end(self) -> None:
        """Kill all workers."""
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        self.running.clear()
        self._errors.close()
