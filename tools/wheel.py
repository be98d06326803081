"""Pack the test cases of the protocol into one file of the wheel; hatchling calls it.

The files repeat one another: together they take less than half of the space.
"""

from __future__ import annotations

import bz2
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

__all__ = ["PackVectors"]


class PackVectors(BuildHookInterface):
    """Adds `penstock/vectors.json.bz2`, which `penstock scripts --out` unpacks."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file, unless the install is editable: that reads the folder of the tests."""
        if version == "editable":
            return
        folder = Path(self.root, "tests", "vectors")
        files = sorted(folder.rglob("*.json"))
        texts = {file.relative_to(folder).as_posix(): file.read_text("utf-8") for file in files}
        self._made = TemporaryDirectory()
        packed = Path(self._made.name, "vectors.json.bz2")
        packed.write_bytes(bz2.compress(json.dumps(texts).encode()))
        build_data["force_include"][str(packed)] = f"penstock/{packed.name}"

    def finalize(self, version: str, *_: object) -> None:
        """Remove the file: it is in the wheel now."""
        if version != "editable":
            self._made.cleanup()
