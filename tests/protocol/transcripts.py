"""Transcripts of the protocol pages, run and compared with redis-cli's output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import redis

from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script
from tests.protocol.clock import T0, frozen, keys_of
from tests.protocol.keyspace import Raw
from tests.protocol.vectors import placed

__all__ = ["Block", "Session", "Step", "blocks"]

BLOCK = re.compile(r"^```redis\n(.*?)^```$", re.DOTALL | re.MULTILINE)
WORD = re.compile(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'|\S+')
ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|.)")
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
SHOWN = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
QUEUE = QueueKeys("emails")


@dataclass
class Step:
    """A command, and the lines of its reply in the document."""

    command: str
    reply: list[str] = field(default_factory=list)


@dataclass
class Block:
    """One ```redis block.

    Attributes:
        line: where it begins in the document.
        steps: commands, and `@ time` lines as commands without a reply.
        is_new: it begins with an empty server.
    """

    line: int
    steps: list[Step]
    is_new: bool


def blocks(text: str) -> Iterator[Block]:
    """Return the transcripts of a document, in order."""
    for found in BLOCK.finditer(text):
        steps: list[Step] = []
        is_new = False
        for line in found.group(1).splitlines():
            if line.startswith("#") or not line.strip():
                is_new = is_new or line == "# an empty server"
            elif line.startswith(("> ", "@ ")):
                steps.append(Step(line))
            else:
                steps[-1].reply.append(line.rstrip())
        yield Block(text[: found.start()].count("\n") + 1, steps, is_new)


class Session:
    """A client that plays transcripts, one after the other, on one server.

    Args:
        raw: a client with undecoded replies.
    """

    def __init__(self, raw: Raw) -> None:
        raw.response_callbacks.clear()
        self._raw = raw
        self._now = T0

    def play(self, block: Block) -> Iterator[tuple[Step, list[str]]]:
        """Run a block; yield each command with the lines of its reply."""
        if block.is_new:
            self._raw.execute_command("FLUSHDB")
            self._now = T0
        for step in block.steps:
            if step.command.startswith("@ "):
                self._now = int(placed(step.command[2:].strip(), T0))
            else:
                yield step, self._run(step.command[2:])

    def _run(self, text: str) -> list[str]:
        words = [part for word in WORD.findall(text) for part in self._words(word)]
        try:
            reply = self._raw.execute_command(*words)
        except redis.ResponseError as error:
            return [f"(error) {error}"]
        return printed(reply)

    def _words(self, word: str) -> list[bytes]:
        loaded = re.fullmatch(r"<sha:(\w+)>", word)
        if loaded:
            source = frozen(script(loaded.group(1)).source, self._now)
            return [self._raw.execute_command("SCRIPT", "LOAD", source)]
        named = re.fullmatch(r"<(keys|lane):(\w+)>", word)
        if named:
            found = script(named.group(2))
            keys = keys_of(QUEUE, found)[: found.lane if named.group(1) == "lane" else None]
            return [b"%d" % len(keys), *keys]
        return [placed(unquoted(word), T0).encode("latin-1")]


def unquoted(word: str) -> str:
    """Return a word of a command without its quotes; between double ones escapes count."""
    if word[0] == "'":
        return word[1:-1]
    return ESCAPE.sub(_escaped, word[1:-1]) if word[0] == '"' else word


def _escaped(found: re.Match[str]) -> str:
    text = found.group(1)
    return chr(int(text[1:], 16)) if len(text) == 3 else ESCAPES.get(text, text)


def printed(reply: Any, indent: int = 0) -> list[str]:
    """Return a reply as redis-cli prints it."""
    if reply is None:
        return ["(nil)"]
    if isinstance(reply, int):
        return [f"(integer) {reply}"]
    if isinstance(reply, bytes):
        text = reply.decode("latin-1")
        return ["OK" if text == "OK" else f'"{"".join(map(_shown, text))}"']
    if not reply:
        return ["(empty array)"]
    width = len(str(len(reply)))
    lines = []
    for i, part in enumerate(reply, 1):
        head = f"{i:{width}d}) "
        inner = printed(part)
        lines += [head + inner[0], *(" " * len(head) + line for line in inner[1:])]
    return lines


def _shown(character: str) -> str:
    if character in SHOWN:
        return SHOWN[character]
    return character if " " <= character <= "~" else f"\\x{ord(character):02x}"
