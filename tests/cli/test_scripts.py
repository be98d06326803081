"""Tests of `scripts`, the export for clients in other languages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from penstock.wire.scripts import all_scripts
from tests.cli.support import Cli, in_process_of_its_own
from tests.protocol.vectors import FOLDER
from tests.support.backends import Backend

EVERY = (*all_scripts(), *all_scripts("pressure/"))


def test_scripts_are_written_complete(run_cli: Cli, real_backend: Backend, tmp_path: Path) -> None:
    """Includes are resolved; a server loads each file with the listed SHA-1."""
    place = tmp_path / "new" / "folder"
    result = run_cli("scripts", "--out", str(place))
    assert result.code == 0
    sums = dict(
        reversed(line.split("  ")) for line in (place / "SHA1SUMS").read_text().splitlines()
    )
    names = [script.name for script in EVERY]
    assert sorted(sums) == sorted(f"{name}.lua" for name in names)
    raw = real_backend.sync_client()
    for file, sha in sums.items():
        source = (place / file).read_bytes()
        assert b"--@include" not in source
        assert hashlib.sha1(source).hexdigest() == sha
        assert raw.script_load(source) == sha


def test_the_index_describes_the_calls(run_cli: Cli, tmp_path: Path) -> None:
    """Names, SHA-1, keys and arguments are in order; stdout has the same document."""
    result = run_cli("scripts", "--out", str(tmp_path), "--json")
    index = json.loads((tmp_path / "index.json").read_text())
    assert index == result.document
    [ack] = [one for one in index["scripts"] if one["name"] == "ack"]
    assert ack["keys"][:3] == ["meta", "ready", "wake"]
    assert (ack["lane"], ack["lane_args"]) == (7, 4)
    lanes = {one["name"]: one["lane_args"] for one in index["scripts"] if one["lane"]}
    assert lanes == {"ack": 4, "enqueue": 2, "reserve": 7, "settle": 7}
    assert {one["lane_args"] for one in index["scripts"] if not one["lane"]} == {0}
    assert (ack["args"], ack["repeated"]) == (["nonce", "wanted", "common", "window"], ["number"])
    assert hashlib.sha1((tmp_path / ack["file"]).read_bytes()).hexdigest() == ack["sha1"]


def test_vectors_are_written(run_cli: Cli, tmp_path: Path) -> None:
    """Every file of tests/vectors is written unchanged, also those of pressure."""
    assert run_cli("scripts", "--out", str(tmp_path)).code == 0
    out = tmp_path / "vectors"
    written = {path.relative_to(out) for path in out.glob("**/*.json")}
    assert written == {path.relative_to(FOLDER) for path in FOLDER.glob("**/*.json")}
    assert Path("pressure/put.json") in written
    for file in written:
        assert (out / file).read_bytes() == (FOLDER / file).read_bytes()


def test_scripts_are_listed(run_cli: Cli) -> None:
    """Without --out no file is written; the table has every script with its SHA-1."""
    out = run_cli("scripts").out
    assert [one.name for one in EVERY if one.sha not in out] == []


def test_a_place_that_cannot_be_written(run_cli: Cli, tmp_path: Path) -> None:
    """A file in the way is bad usage, and so is an empty path."""
    file = tmp_path / "file"
    file.write_text("x")
    assert run_cli("scripts", "--out", str(file)).code == 2
    below = run_cli("scripts", "--out", str(file / "below"))
    assert (below.code, below.out) == (1, "")
    assert below.err.count("\n") == 1


def test_no_server_is_needed() -> None:
    """No connection is made."""
    result = in_process_of_its_own("scripts", "--json", PENSTOCK_URL="redis://127.0.0.1:1")
    assert len(result.document["scripts"]) == len(EVERY)
