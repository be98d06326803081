"""The files of the demo: their names, and the digest that a worker makes of each."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

__all__ = ["Listing", "digest", "list_files", "path_name", "path_of", "standard_library"]

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__"}
BLOCK_BYTES = 1 << 20

Listing = dict[str, tuple[int, int]]
"""Name of a file -> its size and time of change when it was listed."""


def standard_library() -> Path:
    """Return the directory of Python's own sources."""
    return Path(sysconfig.get_paths()["stdlib"])


def path_name(path: str) -> str:
    """Quote a relative path for JSON: file names are bytes, and not always UTF-8."""
    return quote_from_bytes(os.fsencode(path))


def path_of(root: Path, name: str) -> Path:
    """Return the path that `path_name` has quoted."""
    return root / os.fsdecode(unquote_to_bytes(name))


def list_files(root: Path, suffix: str = "") -> Listing:
    """List every regular file below a directory, without links and installed packages.

    Args:
        root: the directory.
        suffix: only names with this ending.
    """
    return dict(_walk(root, suffix))


def _walk(root: Path, suffix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for directory, folders, files in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for file in sorted(files):
            path = Path(directory, file)
            if file.endswith(suffix) and path.is_file() and not path.is_symlink():
                yield path_name(str(path.relative_to(root))), stamp(path)


def stamp(path: Path) -> tuple[int, int]:
    """Return size and time of change."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def digest(path: Path) -> dict[str, Any]:
    """Read a file in blocks; return its size, number of lines and SHA-256."""
    size = lines = 0
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            size, lines = size + len(block), lines + block.count(b"\n")
            sha.update(block)
    return {"size": size, "lines": lines, "sha256": sha.hexdigest()}
