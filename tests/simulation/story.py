"""The log of a world in words: time, client, effect, answer."""

from __future__ import annotations

import ast
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.wire.scripts import all_scripts

__all__ = ["tell"]

LONGEST_ARGUMENT = 40
"""Most characters of an argument or an answer."""
GREETINGS = frozenset({"HELLO", "CLIENT", "SELECT", "INFO", "SCRIPT", "PING"})
"""Commands that are left out, with their answers."""


def tell(log: Iterable[str]) -> Iterator[str]:
    """Yield a line for each note of a log, and for each call with its answer.

    A line has the time of the answer. A call whose answer is missing blocked to the end.
    """
    names: dict[Any, str] = {}
    asked: defaultdict[Any, deque[tuple[float, str]]] = defaultdict(deque)
    for line in log:
        at, *parts = ast.literal_eval(line)
        connection = tuple(parts[:2])
        if len(parts) == 4 and parts[2] == "is opened by":
            names[connection] = parts[3]
        elif connection not in names:
            yield f"{at:10.4f}  {'  '.join(map(str, parts))}"
        elif len(parts) == 3 and asked[connection]:
            sent, effect = asked[connection].popleft()
            if effect:
                waited = f" after {at - sent:.1f} s" if at - sent > 0.05 else ""
                who = f"{names[connection]:>8} → {parts[0]}"
                yield f"{at:10.4f}  {who}  {effect}  ⇒ {_show(parts[2])}{waited}"
        else:
            asked[connection].append((at, _describe(parts[2:])))


def _describe(command: list[bytes]) -> str:
    """Return a command in words; "" = it is left out."""
    name, *arguments = [part.decode(errors="replace") for part in command]
    if name.upper() in GREETINGS:
        return ""
    if name.upper() == "EVALSHA":
        sha, count, *rest = arguments
        scripts = {one.sha: one.name for one in all_scripts()}
        name, arguments = scripts.get(sha, sha[:8]), rest[int(count) :]
    return " ".join([name, *(_show(argument) for argument in arguments)])


def _show(text: str | bytes) -> str:
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    shown = " ".join(shown.split()) or "''"
    return shown if len(shown) <= LONGEST_ARGUMENT else f"{shown[:LONGEST_ARGUMENT]}…"
