"""Run the first two programs of a README on a server of their own, as a reader does.

    python tools/first_page.py README.md

It needs the extra `embedded`, and no checkout: `nox -s release` runs it with the built package.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from penstock.embedded import EmbeddedServer

URL = "redis://localhost:6379/0"
TIMEOUT = 60


def programs(text: str) -> list[str]:
    """Return the Python programs of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(page: Path) -> str:
    """Save the worker as app.py, run the producer beside it; return the worker's first line."""
    worker, producer = programs(page.read_text(encoding="utf-8"))[:2]
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
        Path(directory, "app.py").write_text(worker.replace(URL, server.url), encoding="utf-8")
        python = [sys.executable, "-u"]
        subprocess.run(
            [*python, "-c", producer.replace(URL, server.url)],
            cwd=directory, check=True, timeout=TIMEOUT,
        )  # fmt: skip
        working = subprocess.Popen(
            [*python, "app.py"], cwd=directory, stdout=subprocess.PIPE, text=True
        )
        assert working.stdout is not None
        limit = threading.Timer(TIMEOUT, working.kill)  # or a silent worker hangs this
        limit.start()
        try:
            return working.stdout.readline()
        finally:
            limit.cancel()
            working.terminate()
            working.communicate(timeout=TIMEOUT)


if __name__ == "__main__":
    printed = run(Path(sys.argv[1]))
    print(printed, end="")
    sys.exit(printed != "welcome ada\n")
