"""Fill in missing expectations of vectors and transcripts, for a review by a person.

    PYTHONPATH=src python -m tests.protocol.record ack nack    # these files of tests/vectors
    PYTHONPATH=src python -m tests.protocol.record protocol/core.md  # commands without a reply

An existing expectation is never changed: to replace one, remove `reply` and `after` from the case,
run this, and read the diff.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import fakeredis

from tests.protocol.clock import T0
from tests.protocol.keyspace import LEEWAY_MS
from tests.protocol.pages import PAGES, ROOT
from tests.protocol.transcripts import Session, blocks
from tests.protocol.vectors import FOLDER, run_vector, unplaced, vectors_of


def fill(name: str) -> Iterator[str]:
    """Complete the cases without expectations, and yield a line for each."""
    path = FOLDER / f"{name}.json"
    document = json.loads(path.read_text("utf-8"))
    for case, vector in zip(document["cases"], vectors_of(name), strict=True):
        if "reply" in case and "after" in case:
            continue
        raw = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
        outcome = run_vector(raw, vector, T0)
        case["reply"] = unplaced(outcome.reply, T0)
        after = {key: _unplaced(key, value) for key, value in outcome.after.items()}
        for key in {*after, *case["before"]}:
            _round_px(after.get(key, {}), case["before"].get(key, {}))
        case["after"] = "unchanged" if after == case["before"] else after
        yield "\n".join([f"{name}: {vector.name}", f"  {case['reply']}", *_difference(case)])
    path.write_text(written(document), "utf-8")


def _unplaced(key: str, value: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = unplaced(value, T0, scored=key.endswith((":active", ":once")))
    return found


def _round_px(new: dict[str, Any], old: dict[str, Any]) -> None:
    """Round a time to live that has run for a moment up to its start."""
    for px in (old.get("px", 0), 60_000, 600_000, 604_800_000):
        if "px" in new and 0 <= px - new["px"] < LEEWAY_MS:
            new["px"] = px
            return


def _difference(case: dict[str, Any]) -> Iterator[str]:
    before, after = case["before"], case["after"]
    if after == "unchanged":
        yield "  nothing changes"
        return
    for key in sorted({*before, *after}):
        old, new = _flat(before.get(key)), _flat(after.get(key))
        for part in sorted({*old, *new}):
            if old.get(part) != new.get(part):
                yield f"  {key.rpartition(':')[2]:10} {part}: {old.get(part)} -> {new.get(part)}"


def _flat(value: dict[str, Any] | None) -> dict[str, str]:
    flat: dict[str, str] = {}
    for part, content in (value or {}).items():
        if part == "type":
            continue
        if isinstance(content, dict):
            flat.update({f"{part} {name}": repr(inner) for name, inner in content.items()})
        else:
            flat[part] = repr(content)
    return flat


def written(document: dict[str, Any]) -> str:
    """Return a document as its file has it: a line a key, a case a paragraph."""
    lines = ["{"]
    for name, value in document.items():
        if name != "cases":
            lines.append(f"  {json.dumps(name)}: {json.dumps(value)},")
    lines.append('  "cases": [')
    cases = [_case(case) for case in document["cases"]]
    return "\n".join([*lines, ",\n".join(cases), "  ]", "}"]) + "\n"


def _case(case: dict[str, Any]) -> str:
    parts = []
    for name, value in case.items():
        if name in ("before", "after") and value and isinstance(value, dict):
            keys = [f"        {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            parts.append(f"      {json.dumps(name)}: {{\n" + ",\n".join(keys) + "\n      }")
        else:
            parts.append(f"      {json.dumps(name)}: {json.dumps(value)}")
    return "    {\n" + ",\n".join(parts) + "\n    }"


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
    for name in names:
        for line in fill_transcripts(name) if name in PAGES else fill(name):
            print(line)  # noqa: T201 - output for a person
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
