"""Keeps what a JVM of Spark has loaded in a file, with which others start in half the time.

    python -m tests.spark.classes spark.jsa
    JAVA_TOOL_OPTIONS="-XX:SharedArchiveFile=spark.jsa" pytest tests/spark

The tests start some fifty of them. A JVM that can't use the file does without it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock.embedded import EmbeddedServer, find_server
from tests.spark.programs import registered
from tests.spark.support import QUICK_START, new_session


def main(archive: str) -> None:
    """Write a little and read it; the JVM writes the file as it ends."""
    with (
        tempfile.TemporaryDirectory() as directory,
        EmbeddedServer(find_server(), tcp=True) as server,
    ):
        options = f"{QUICK_START} -XX:ArchiveClassesAtExit={Path(archive).absolute()}"
        session = new_session(Path(directory), conf={"spark.driver.extraJavaOptions": options})
        jvm = session.sparkContext._gateway.proc
        registered(session, server.url)
        session.stop()
        jvm.stdin.close()
        jvm.wait(120)


if __name__ == "__main__":
    main(sys.argv[1])
