"""The RETURNS lines of script headers, parsed for a comparison with replies."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from penstock.wire.scripts import Script, script
from tools.protocol import replies

__all__ = ["Returns", "codes_of", "returns_of"]


@dataclass(frozen=True)
class Returns:
    """One RETURNS line.

    Attributes:
        shape: `{1, nonce, acked}`.
        cause: its text in the header.
    """

    shape: str
    cause: str

    @property
    def code(self) -> int:
        """Return the reply's first integer."""
        return int(self.shape[1:].split(",")[0].rstrip("}"))

    def fits(self, reply: Sequence[Any]) -> bool:
        """Tell if a reply has this shape."""
        inner = self.shape.strip("{}")
        group = re.search(r"\w+: \(([^)]*)\)\.\.\.$", inner)
        fixed = inner[: group.start()] if group else re.sub(r"\w+\.\.\.$", "", inner)
        names = [part for part in re.split(r",\s*", fixed) if part]
        more = len(reply) - len(names)
        step = len(group.group(1).split(",")) if group else 1
        if not group and not inner.endswith("..."):
            return more == 0 and reply[0] == self.code
        return more >= 0 and more % step == 0 and reply[0] == self.code


def returns_of(found: Script) -> list[Returns]:
    """Return the RETURNS lines of a script's header, in order."""
    return [Returns(reply.shape, reply.cause) for reply in replies(found)]


def codes_of(name: str) -> set[int]:
    """Return the codes of single jobs in a script's header, following `as in ...`."""
    causes = " ".join(line.cause for line in returns_of(script(name)))
    found = {int(code) for code in re.findall(r"(?<![\w'.-])(-?[0-9]+) (?=[a-z])", causes)}
    for other in re.findall(r"codes? as in (\w+)|each as in (\w+)", causes):
        found |= codes_of(next(filter(None, other)))
    return found
