"""How a simulated server runs scripts: as fakeredis does, with less around each command.

A system runs some ten thousand commands from scripts, so they are half of its time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from fakeredis._commands import COMMANDS_WITH_SUB, SUPPORTED_COMMANDS, Key
from fakeredis._core import CommandItem
from fakeredis._helpers import SimpleError
from fakeredis._msgs import FLAG_DO_NOT_CREATE, FLAG_LEAVE_EMPTY_VAL, WRONGTYPE_MSG
from fakeredis.commands_mixins.scripting_mixin import _convert_redis_arg
from fakeredis.model._command_info import get_all_commands_info, is_write_command

__all__ = [
    "DENIED_TO_FULL",
    "CompiledScripts",
    "ScriptCommand",
    "is_plain",
    "script_command",
    "show_to_lua",
]

PLAIN = frozenset({bytes, int, type(None)})
"""Types of replies that need no conversion; to Lua, None is false."""
DENIED_TO_FULL = frozenset(
    name.decode() for name, facts in get_all_commands_info().items() if b"denyoom" in facts[2]
)
"""Commands that a full server refuses, except in a script that has written before."""


class CompiledScripts:
    """The Lua interpreter of a server, which compiles a script once and not at each call.

    Args:
        runtime: the interpreter of fakeredis.
        alter: returns the text that runs in place of a script's own.
    """

    def __init__(self, runtime: Any, alter: Callable[[bytes], bytes]) -> None:
        self._runtime = runtime
        self._alter = alter
        self.globals = runtime.globals
        self.table_from = runtime.table_from
        self._compiled: dict[bytes, Callable[[], Any]] = {}

    def execute(self, source: bytes | str) -> Any:
        """Run a script."""
        if isinstance(source, str):  # fakeredis collects garbage after each call
            return None
        compiled = self._compiled.get(source)
        if compiled is None:
            compiled = self._compiled[source] = self._runtime.compile(self._alter(source))
        return compiled()


class ScriptCommand(NamedTuple):
    """A command with a number of arguments, as scripts send it.

    Attributes:
        name: in small letters.
        function: name of its method of a connection.
        is_write: whether it writes.
        needs_memory: whether a full server refuses it.
        keeps_empty: whether it leaves an empty value.
        parts: of each argument that is no plain bytes, its place, and its key or its decoder.
    """

    name: str
    function: str
    is_write: bool
    needs_memory: bool
    keeps_empty: bool
    parts: tuple[tuple[int, Any], ...]

    def run(self, session: Any, given: tuple[Any, ...]) -> Any:
        """Run the command; return its reply.

        Raises:
            SimpleError: the command fails.
        """
        values = [part if type(part) is bytes else _convert_redis_arg(part) for part in given]
        database = session._db
        for place, part in self.parts:
            if not isinstance(part, Key):
                values[place] = part.decode(values[place])
            elif part.missing_return is not Key.UNSPECIFIED and values[place] not in database:
                return part.missing_return
        items = []
        for place, part in self.parts:
            if isinstance(part, Key):
                values[place] = _open(part, values[place], database)
                items.append(values[place])
        try:
            return getattr(session, self.function)(*values)
        finally:
            for item in items:
                item.writeback(remove_empty_val=not self.keeps_empty)


def _open(key: Key, name: bytes, database: Any) -> CommandItem:
    """Return the value of a key; an empty one in place of a missing one."""
    item, kind = database.get(name), key.type_
    if item is None:
        is_made = kind is not None and kind is not bytes
        return CommandItem(name, database, None, default=kind() if is_made else None)
    if kind is not None and type(item.value) is not kind:
        raise SimpleError(WRONGTYPE_MSG)
    return CommandItem(name, database, item)


@cache
def script_command(name: bytes, count: int) -> ScriptCommand | None:
    """Return a command with so many arguments; None = fakeredis has to run it."""
    text = name.decode().lower()
    signature = SUPPORTED_COMMANDS.get(text)
    if signature is None or text in COMMANDS_WITH_SUB or signature.flags - {FLAG_LEAVE_EMPTY_VAL}:
        return None
    more = count - len(signature.fixed)
    if more < 0 or (more and (not signature.repeat or more % len(signature.repeat))):
        return None
    assert FLAG_DO_NOT_CREATE not in signature.flags
    repeated = [signature.repeat[place % len(signature.repeat)] for place in range(more)]
    types = enumerate([*signature.fixed, *repeated])
    return ScriptCommand(
        name=text,
        function=signature.func_name,
        is_write=is_write_command(text.encode()),
        needs_memory=text in DENIED_TO_FULL,
        keeps_empty=FLAG_LEAVE_EMPTY_VAL in signature.flags,
        parts=tuple((place, part) for place, part in types if part is not bytes),
    )


def is_plain(reply: Any) -> bool:
    """Return whether a reply is bytes, an integer, nothing, or a list of these."""
    kind = type(reply)
    return kind in PLAIN or (kind is list and all(type(part) in PLAIN for part in reply))


def show_to_lua(reply: Any, table_from: Callable[[list[Any]], Any]) -> Any:
    """Return a plain reply as a script gets it."""
    if type(reply) is list:
        return table_from([False if part is None else part for part in reply])
    return False if reply is None else reply
