"""The launcher of an unpacked server."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tools.servers import launcher


def test_a_server_runs_with_its_own_libraries(tmp_path: Path) -> None:
    """It is started by its own loader, under its own name, with all arguments."""
    root = tmp_path / "a folder"
    library = root / "usr/lib/some-machine"
    library.mkdir(parents=True)
    loader = library / "ld-linux-some.so.2"
    loader.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    loader.chmod(0o755)
    program = root / "redis-server"
    program.write_text(launcher(root, "redis"))
    program.chmod(0o755)
    done = subprocess.run(
        [program, "--port", "a  b"], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.splitlines() == [
        *("--argv0", "redis-server", "--library-path", str(library)),
        *(f"{root}/usr/bin/redis-check-rdb", "--port", "a  b"),
    ]
