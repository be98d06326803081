"""Faults of tools/mutate.py that change no behaviour, so no test can notice them.

By path below the package, line, and fault: the reason.
"""

from __future__ import annotations

__all__ = ["EQUIVALENT"]

LUA = "wire/lua/"
PAIRS = ("if #changes > 0 then", "0 -> 1")
EQUIVALENT = {
    (
        "core/jobs/record.py",
        "if not JSON_SCALARS.issuperset(map(type, value)):",
        "not JSON_SCALARS.issuperset(map(type, value)) -> True",
    ): "only slower",
    (
        "core/jobs/record.py",
        "if usual := PLAIN_HEAD.fullmatch(head):  # nearly every record",
        "usual := PLAIN_HEAD.fullmatch(head) -> False",
    ): "only slower",
    (
        "core/calls/call.py",
        "EARLY_RETRY_PAUSE if elapsed < 1 else LATE_RETRY_PAUSE, 0.005 * 2.0 ** min(tries, 10)",
        "10 -> 11",
    ): "both are longer than the other limit",
    (
        "core/enqueuing/prepared.py",
        "if type(body) is bytes:",
        "type(body) is bytes -> False",
    ): "only slower",
    (
        "core/enqueuing/schedules.py",
        "ANY_TIME = datetime(2025, 1, 1)  # noqa: DTZ001  # the zone is that of the schedule",
        "2025 -> 2026",
    ): "any time will do",
    (
        "wire/scripts.py",
        'header = "".join(line[4:] if line.startswith("--- ") else line[3:] for line in head)',
        "3 -> 4",
    ): "no header has an empty line",
    (
        f"{LUA}lib/deliver/choose_jobs.lua",
        "release_dedup({unpack(expired.ids, listed + 1)}, false)",
        "1 -> 0",
    ): "the one before is released already, and has no id any more",
    (
        f"{LUA}lib/dedup/decide_dedup.lua",
        (
            "answer = {updates and 2 or 0, added_at, "
            "added_due[added_at] > now and 'scheduled' or 'ready', ''}"
        ),
        "> -> >=",
    ): "a due time is 0 or later than now",
    (
        f"{LUA}lib/dedup/release_dedup.lua",
        "named_ids = {unpack(ids, 1, i - 1)}",
        "1 -> 0",
    ): "what is behind n is overwritten, or not read",
    (f"{LUA}evict.lua", *PAIRS): "changes are pairs",
    (f"{LUA}lib/deliver/next_event.lua", *PAIRS): "changes are pairs",
    (
        f"{LUA}scan.lua",
        "local size = looked > 0 and bytes / looked or 1048575",
        "0 -> 1",
    ): "the second step reads one entry, as the first does",
    (
        f"{LUA}lib/results/result_blocks.lua",
        "local from = find(block, '\\n', 1, true)",
        "1 -> 0",
    ): "Lua begins with the first character then, too",
}
