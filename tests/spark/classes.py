"""Write an archive of the classes that a Spark JVM loads; others start with it in half the time.

    python -m tests.spark.classes spark.jsa
    JAVA_TOOL_OPTIONS="-XX:SharedArchiveFile=spark.jsa" pytest tests/spark

The tests start about thirty JVMs. One that can't use the file ignores it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from penstock.embedded import EmbeddedServer, find_server
from tests.spark.programs import registered
from tests.spark.support import QUICK_START, new_session


def main(archive: str) -> None:
    """Write and read a few jobs; the JVM writes the file at its end."""
    Path(archive).unlink(missing_ok=True)  # of other versions, perhaps
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
        jvm.wait(300)


if __name__ == "__main__":
    main(sys.argv[1])
