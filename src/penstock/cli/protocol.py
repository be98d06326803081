"""The command for authors of other clients: scripts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.wire.scripts import Script, all_scripts, pressure_scripts

__all__ = ["scripts"]


@command("scripts")
def scripts(
    session: Session,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Directory to write to.", file_okay=False, show_default=False
        ),
    ] = None,
) -> None:
    """List the Lua scripts, or write them, complete, for clients in other languages.

    With --out, index.json tells how to call them, and the directory vectors has test cases. The
    scripts of the protocol pressure are in a directory of that name.
    """
    found = (*all_scripts(), *pressure_scripts())
    if out is not None:
        write_scripts(found, out)
        shutil.copytree(vectors(), out / "vectors", dirs_exist_ok=True)
    session.answer(
        {"scripts": [script_document(script) for script in found]},
        lambda: _print_scripts(found, out),
    )


def script_document(script: Script) -> dict[str, Any]:
    """What index.json says of a script."""
    return {
        "name": script.name,
        "file": f"{script.name}.lua",
        "sha1": script.sha,
        "purpose": script.purpose,
        "keys": list(script.keys),
        "args": list(script.args),
        "repeated": list(script.rest),
    }


def write_scripts(found: tuple[Script, ...], directory: Path) -> None:
    """NAME.lua, the very bytes whose SHA-1 is meant; SHA1SUMS for `sha1sum -c`; index.json."""
    directory.mkdir(parents=True, exist_ok=True)
    for script in found:
        file = directory / f"{script.name}.lua"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(script.source.encode())
    sums = "".join(f"{script.sha}  {script.name}.lua\n" for script in found)
    (directory / "SHA1SUMS").write_bytes(sums.encode())
    index = {"scripts": [script_document(script) for script in found]}
    (directory / "index.json").write_bytes(json.dumps(index, indent=2).encode() + b"\n")


def vectors() -> Path:
    """Return the folder of test cases: in the installed package, or in the tests of a checkout."""
    inside = Path(__file__).parents[1] / "vectors"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "tests" / "vectors"


def _print_scripts(found: tuple[Script, ...], out: Path | None) -> None:
    if out is not None:
        output.write(f"{len(found)} scripts, SHA1SUMS, index.json and vectors written to {out}")
        return
    rows = [(one.name, one.sha, one.purpose) for one in found]
    output.table(("name", "sha1", "purpose"), rows)
