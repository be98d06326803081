"""Unpack the Redis and the Valkey of a Debian release into a folder; nothing is installed.

    python tools/servers.py FOLDER [--suite trixie]

Prints a line for each server, an executable that runs on this machine whatever its libc:
PENSTOCK_TEST_SERVERS takes them, joined by colons. Needs apt-get, dpkg-deb and Debian's keyring.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES = Path("/etc/apt")
MIRROR = "http://deb.debian.org/debian"
SERVERS = ("redis", "valkey")
VERSION = re.compile(r"v=(\d+\.\d+)")


def mirror() -> str:
    """Return the address of Debian's packages that this machine uses."""
    texts = [file.read_text() for file in sorted(SOURCES.glob("sources.list*/**/*.*"))]
    found = re.search(r"https?://\S+/debian/?(?=\s)", "\n".join(texts))
    return found[0] if found else MIRROR


def apt(folder: Path, *args: str) -> None:
    """Run apt-get with separate state: no package counts as installed."""
    options = {
        "Dir::Etc::sourcelist": folder / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State": folder / "state",
        "Dir::State::status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", "-q", "-y", *given, *args], check=True, stdout=sys.stderr)


def download(suite: str, folder: Path) -> list[Path]:
    """Download both servers and their dependencies."""
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    (folder / "sources.list").write_text(f"deb [signed-by={KEYRING}] {mirror()} {suite} main\n")
    apt(folder, "update")
    tools = [f"{server}-tools" for server in SERVERS]
    apt(folder, "--no-install-recommends", "--download-only", "install", *tools)
    return sorted((folder / "cache/archives").glob("*.deb"))


def launcher(root: Path, server: str) -> str:
    """Write a program that starts the server with the libraries next to it.

    The package has the server under the name of a tool; the first argument's name decides.
    """
    (loader,) = root.glob("usr/lib/*/ld-linux-*.so.*")
    command = [loader, "--argv0", f"{server}-server", "--library-path", loader.parent]
    words = shlex.join(map(str, [*command, root / "usr/bin" / f"{server}-check-rdb"]))
    return f'#!/bin/sh\nexec {words} "$@"\n'


def unpack(folder: Path, suite: str) -> list[Path]:
    """Unpack the servers of a suite, and return them named by version."""
    root = folder.resolve() / suite
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for package in download(suite, Path(temporary)):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    made = []
    for server in SERVERS:
        program = root / f"{server}-server"
        program.write_text(launcher(root, server))
        program.chmod(0o755)
        said = subprocess.run([program, "--version"], check=True, capture_output=True, text=True)
        (version,) = VERSION.findall(said.stdout)
        made.append(program.rename(root / f"{server}-{version}"))
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Unpack missing servers, and print all of them."""
    parser = argparse.ArgumentParser(description="Unpack servers from Debian's packages.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--suite", default="trixie", help="a release of Debian; default: trixie")
    args = parser.parse_args(argv)
    if not KEYRING.exists():
        parser.error(f"there is no {KEYRING}: install debian-archive-keyring")
    made = [path for name in SERVERS for path in (args.folder / args.suite).glob(f"{name}-[0-9]*")]
    is_whole = len(made) == len(SERVERS)  # not after an unpacking that was interrupted
    print(*(made if is_whole else unpack(args.folder, args.suite)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
