"""The command `scripts`, for authors of other clients."""

from __future__ import annotations

import bz2
import json
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

from penstock.cli import output
from penstock.cli.app import Session, command
from penstock.cli.parameters import BadUsage, Option
from penstock.wire.scripts import Script, all_scripts

__all__ = ["scripts"]


@command("scripts")
def scripts(
    session: Session,
    out: Annotated[Path | None, Option(metavar="DIR")] = None,
) -> None:
    """List the Lua scripts, or write them for clients in other languages.

    With --out, index.json says how to call them, and the directory vectors has test cases. The
    scripts of the protocol pressure are in a directory of that name.

    Args:
        out: directory to write to.

    Examples:
        penstock scripts --out lua
    """
    found = (*all_scripts(), *all_scripts("pressure/"))
    index = {"scripts": [_described(script) for script in found]}
    rows = [(one.name, one.sha, one.purpose) for one in found]
    if out is None:
        session.answer(index, lambda: output.table(("name", "sha1", "purpose"), rows))
        return
    if out.is_file():
        raise BadUsage(f"argument --out: {out} is a file: name a directory")
    for script in found:
        _write(out / f"{script.name}.lua", script.source)
    _write(out / "SHA1SUMS", "".join(f"{one.sha}  {one.name}.lua\n" for one in found))
    _write(out / "index.json", json.dumps(index, indent=2) + "\n")
    for name, text in vectors().items():
        _write(out / "vectors" / name, text)
    told = f"{len(found)} scripts, SHA1SUMS, index.json and vectors written to {out}"
    session.answer(index, told)


def _described(script: Script) -> dict[str, Any]:
    return {
        "name": script.name,
        "file": f"{script.name}.lua",
        "sha1": script.sha,
        "purpose": script.purpose,
        "keys": list(script.keys),
        "lane": script.lane,
        "args": list(script.args),
        "lane_args": script.lane_args if script.lane else 0,
        "repeated": list(script.rest),
        "bounds": {name: [least, most] for name, least, most, _ in script.bounds},
    }


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())  # a SHA-1 is that of these bytes: no newline is translated


def vectors() -> dict[str, str]:
    """Return the files of test cases, name -> text: those packed by `tools/wheel.py` into an
    installed package, or those in the tests of a checkout.
    """
    packed = resources.files("penstock") / "vectors.json.bz2"
    if packed.is_file():
        found: dict[str, str] = json.loads(bz2.decompress(packed.read_bytes()))
        return found
    folder = Path(__file__).parents[3] / "tests" / "vectors"
    files = sorted(folder.rglob("*.json"))
    return {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in files}
