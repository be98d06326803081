"""Fill in missing expectations of vectors and transcripts, for a review by a person.

    PYTHONPATH=src python -m tests.protocol.record             # every file of tests/vectors
    PYTHONPATH=src python -m tests.protocol.record ack nack    # these files
    PYTHONPATH=src python -m tests.protocol.record protocol/core.md  # commands without a reply

An existing expectation is never changed: a case with `"reply": "?"` gets a reply and `after`. Read
the diff.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

import fakeredis

from tests.protocol.clock import T0
from tests.protocol.differences import difference, written
from tests.protocol.keyspace import LEEWAY_MS, Space
from tests.protocol.pages import PAGES, ROOT
from tests.protocol.transcripts import Session, blocks
from tests.protocol.vectors import (
    FOLDER,
    all_files,
    parsed,
    placed,
    run_vector,
    unplaced,
    vectors_in,
)


def fill(name: str) -> Iterator[str]:
    """Complete the cases whose reply is a question mark, and yield a text for each.

    The lines of the file are written as `written` has them.
    """
    path = FOLDER / f"{name}.json"
    document = parsed(path.read_text("utf-8"))
    cases, prefix = document.get("cases", {}), document.get("prefix", "")
    for vector in vectors_in(document) if cases else ():
        case = cases[vector.name]
        if case.get("reply") != "?":
            continue
        raw = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
        outcome = run_vector(raw, vector, T0)
        before, after = _unplaced(placed(vector.before, T0)), _unplaced(outcome.after)
        for key, value in after.items():
            _round_px(value, before.get(key, {}))
        changes = difference(before, after)
        case["reply"] = unplaced(outcome.reply, T0)
        case["after"] = {key.removeprefix(prefix): value for key, value in changes.items()}
        if "from" in case and case["reply"] == cases[case["from"]]["reply"]:
            del case["reply"]
        if not changes:
            del case["after"]
        yield "\n".join([f"{name}: {vector.name}", f"  {outcome.reply}", *_lines(before, after)])
    path.write_text(written(document), "utf-8")


def _unplaced(space: Space) -> Space:
    return {
        key: unplaced(value, T0, scored=key.endswith((":active", ":once")))
        for key, value in space.items()
    }


def _round_px(new: dict[str, Any], old: dict[str, Any]) -> None:
    """Round a time to live that has run for a moment up to its start."""
    for px in (old.get("px", 0), 60_000, 600_000, 604_800_000):
        if "px" in new and 0 <= px - new["px"] < LEEWAY_MS:
            new["px"] = px
            return


def _lines(before: Space, after: Space) -> Iterator[str]:
    if after == before:
        yield "  nothing changes"
    for key in sorted({*before, *after}):
        old, new = _flat(before.get(key)), _flat(after.get(key))
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part):
                yield f"  {key.rpartition(':')[2]:10} {part}: {old.get(part)} -> {new.get(part)}"


def _flat(value: dict[str, Any] | None) -> dict[str, str]:
    flat: dict[str, str] = {}
    for part, content in (value or {}).items():
        if isinstance(content, dict):
            flat.update({f"{part} {name}": repr(inner) for name, inner in content.items()})
        else:
            flat[part] = repr(content)
    return flat


def fill_transcripts(page: str) -> Iterator[str]:
    """Write missing replies below the commands of a page, and yield a line for each."""
    raw = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
    session, text = Session(raw), PAGES[page]
    lines = text.splitlines()
    added = 0
    for block in blocks(text):
        replies = [(step, reply) for step, reply in session.play(block) if not step.reply]
        at = block.line + added
        for step, reply in replies:
            at = lines.index(step.command, at) + 1
            shown = [str(unplaced(line, T0)) for line in reply]
            lines[at:at] = shown
            added += len(shown)
            yield "\n".join([step.command, *shown])
    (ROOT / page).write_text("\n".join(lines) + "\n", "utf-8")


def main(names: Sequence[str]) -> int:
    """Run the command."""
    for name in names or all_files():
        for line in fill_transcripts(name) if name in PAGES else fill(name):
            print(line)  # noqa: T201 - output for a person
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
