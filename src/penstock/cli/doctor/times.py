"""Times that lie ahead because the clock of the server was wrong: find and correct them."""

from __future__ import annotations

import time
from collections.abc import Iterator

from redis.exceptions import ResponseError

from penstock.cli.doctor.connections import DoctorQueue, DoctorServer
from penstock.cli.doctor.findings import Finding, broken, ok, warning
from penstock.cli.output import Failed, span
from penstock.wire.codes import Code
from penstock.wire.scripts import script

__all__ = [
    "HORIZON_DAYS",
    "beside_ours",
    "check_times",
    "read_clock",
    "refuse_wrong_clock",
    "repair_times",
]

HORIZON_DAYS = 3660
"""Longest delay and window, unless the user gives another number."""
KINDS_WITH_TIMES = ("active", "once", "scheduled", "dead", "expiry", "windows", "meta")
MAX_REPAIR_CLOCK_SKEW = 60.0
"""Seconds by which the clocks may differ in a repair."""
MAX_REPAIR_PASSES = 5
DAY_MS = 86_400_000


def read_clock(server: DoctorServer) -> tuple[float, float]:
    """Return the seconds by which a server's clock is ahead of ours, and of the round trip."""
    before = time.time()
    seconds, micros = server.ask("TIME")
    after = time.time()
    return int(seconds) + int(micros) / 1e6 - (before + after) / 2, after - before


def beside_ours(ahead: float) -> str:
    """Return the difference between a clock and ours as people say it."""
    return f"{span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} ours"


def refuse_wrong_clock(server: DoctorServer) -> None:
    """Check that the clocks agree, or a repair would change correct times.

    Raises:
        Failed: the clock of the server, or ours, is wrong.
    """
    ahead, _ = read_clock(server)
    if abs(ahead) > MAX_REPAIR_CLOCK_SKEW:
        raise Failed(
            f"the clock of the server {server.address} is {beside_ours(ahead)}: correct the wrong"
            " clock first. Nothing was repaired, as correct times might be changed"
        )


def check_times(queue: DoctorQueue, days: int) -> Iterator[Finding]:
    """Check the latest times of each structure for values too far in the future."""
    try:
        pages = {place: _page(queue, place, 0, days, write=False)[0] for place in KINDS_WITH_TIMES}
    except ResponseError as error:
        yield queue.about(warning, f": its times could not be checked: {error}")
        return
    found = {place: count for place, count in pages.items() if count}
    if found:
        places = ", ".join(f"{place} {count}" for place, count in found.items())
        text = f"({places}, or more), as the server's clock was wrong: penstock doctor --repair"
        yield queue.about(broken, f": times are too far ahead {text}", found=found)
    yield from _numbers(queue)


def _numbers(queue: DoctorQueue) -> Iterator[Finding]:
    """Check the job numbers. Only the numbers of a drained queue can be lowered."""
    last, seconds = queue.ask("HGET", "meta", "last"), queue.server.ask("TIME")[0]
    digits = (last or b"").partition(b"-")[0]
    over = int(digits) / 1000 - int(seconds) if digits.isdigit() else 0.0
    if over > 30 * 86_400:
        text = (
            f": job numbers lie {span(over)} ahead, so new jobs come after delayed ones: penstock"
            " doctor --repair when the queue is empty"
        )
        yield queue.about(warning, text, ahead=over)


def repair_times(queue: DoctorQueue, days: int) -> Iterator[Finding]:
    """Bring back times that lie ahead (protocol/maintenance.md, Repairing times)."""
    total = 0
    for _ in range(MAX_REPAIR_PASSES):  # jobs move while pages are read
        before = total
        for place in KINDS_WITH_TIMES:
            skip = 0
            while skip >= 0:
                found, skip = _page(queue, place, skip, days, write=True)
                total += found
        if total == before:
            break
    if total:
        yield queue.about(ok, f": {total} times that lay ahead were brought back.", times=total)


def _page(queue: DoctorQueue, place: str, skip: int, days: int, *, write: bool) -> tuple[int, int]:
    """Return how many times of one page lie ahead, and the `skip` for the next page."""
    found = script("retime")
    keys, args = queue.keys.of(found.keys), (0, place, skip, days * DAY_MS, int(write))
    code, _, *told = queue.server.ask("EVAL", found.source, len(keys), *keys, *args)
    return (told[0], told[1]) if code == Code.DONE else (0, -1)
