"""Times that lie ahead because the clock of the server was wrong: find and correct them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redis.exceptions import ResponseError

from penstock.cli.doctor.findings import Finding, Severity
from penstock.cli.doctor.patient import DoctorServer
from penstock.cli.output import span
from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.scripts import script

__all__ = ["HORIZON_DAYS", "ahead", "clock_error", "repaired"]

HORIZON_DAYS = 3660
"""Longest delay and window, unless the user gives another number."""
PLACES = ("active", "once", "scheduled", "dead", "expiry", "windows", "meta")
CLOCK_SLACK = 60.0
"""Seconds by which the clocks may differ when times are brought back."""
PASSES = 5
DAY_MS = 86_400_000


def clock_error(server: DoctorServer) -> float:
    """Return the seconds by which the clock of a server is ahead of ours."""
    seconds, micros = server.ask("TIME")
    return int(seconds) + int(micros) / 1e6 - time.time()


def ahead(server: DoctorServer, keys: QueueKeys, name: str, days: int) -> Iterator[Finding]:
    """Check the latest times of each structure for values too far in the future."""
    try:
        found = {place: _page(server, keys, place, 0, days, write=False)[0] for place in PLACES}
    except ResponseError as error:
        text = f"queue {name!r}: its times could not be checked: {error}"
        yield Finding("times", Severity.WARNING, text, {"queue": name})
        return
    found = {place: count for place, count in found.items() if count}
    if found:
        places = ", ".join(f"{place} {count}" for place, count in found.items())
        text = (
            f"queue {name!r}: times lie ahead, the server's clock was wrong ({places}, or more): "
            "penstock doctor --repair"
        )
        yield Finding("times", Severity.BROKEN, text, {"queue": name, "found": found})
    yield from _numbers(server, keys, name)


def _numbers(server: DoctorServer, keys: QueueKeys, name: str) -> Iterator[Finding]:
    """Check the job numbers. Only the numbers of a drained queue can be lowered."""
    last, seconds = server.ask("HGET", keys["meta"], "last"), server.ask("TIME")[0]
    digits = (last or b"").partition(b"-")[0]
    over = int(digits) / 1000 - int(seconds) if digits.isdigit() else 0.0
    if over > 30 * 86_400:
        text = (
            f"queue {name!r}: job numbers lie {span(over)} ahead, so new jobs come after delayed "
            "ones: penstock doctor --repair when the queue is empty"
        )
        yield Finding("times", Severity.WARNING, text, {"queue": name, "ahead": over})


def repaired(server: DoctorServer, keys: QueueKeys, name: str, days: int) -> Iterator[Finding]:
    """Bring back times that lie ahead (protocol/maintenance.md, Repairing times)."""
    total = 0
    for _ in range(PASSES):  # jobs move while pages are read
        before = total
        for place in PLACES:
            skip = 0
            while skip >= 0:
                found, skip = _page(server, keys, place, skip, days, write=True)
                total += found
        if total == before:
            break
    if total:
        text = f"queue {name!r}: {total} times that lay ahead were brought back."
        yield Finding("repair", Severity.OK, text, {"queue": name, "times": total})


def _page(
    server: DoctorServer, keys: QueueKeys, place: str, skip: int, days: int, *, write: bool
) -> tuple[int, int]:
    """Return how many times of one page lie ahead, and the `skip` for the next page."""
    found = script("retime")
    args = (0, place, skip, days * DAY_MS, int(write))
    code, _, *told = server.run(found.source, keys.of(found.keys), args)
    return (told[0], told[1]) if code == Code.DONE else (0, -1)
