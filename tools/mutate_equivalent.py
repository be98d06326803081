"""Faults of tools/mutate.py that change no behaviour, so no test can notice them.

By path below the package, line, and fault: the reason.
"""

from __future__ import annotations

import re

__all__ = ["EQUIVALENT", "reason_at"]

LUA = "wire/lua/"
STEP = (
    "local step = math.min(100, 1000 - moved_jobs, "
    "math.floor((1048576 - moved_bytes) * moved_jobs / (moved_bytes + 1)) + 1)"
)
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
        "core/enqueuing/chunks.py",
        "if type(bodies) is not NewJobs:",
        "type(bodies) is not NewJobs -> True",
    ): "only slower",
    (
        "core/enqueuing/schedules.py",
        "ANY_TIME = datetime(2025, 1, 1)  # noqa: DTZ001  # the zone is that of the schedule",
        "2025 -> 2026",
    ): "any time will do",
    (
        "core/enqueuing/schedules.py",
        "ANY_TIME = datetime(2025, 1, 1)  # noqa: DTZ001  # the zone is that of the schedule",
        "2025 -> 2024",
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
    (
        f"{LUA}lib/sweep/expired_at_head.lua",
        "local sub, ahead, rising, bytes, over = string.sub, {}, {}, 0, false",
        "0 -> 1",
    ): "only how many of the jobs one XTRIM removes; an XDEL removes the others",
    (
        f"{LUA}lib/sweep/move_sparse.lua",
        "if not paused and now - surveyed >= 600000 and redis.call('XLEN', ready) >= 64 then",
        "64 -> 63",
    ): "63 jobs have fewer than 64 nodes",
    (
        f"{LUA}lib/checks/check_role.lua",
        "local taken_by, left, lost = nil, 0, false",
        "0 -> 1",
    ): "it is read with taken_by only, which sets it",
    (
        f"{LUA}lib/deliver/choose_jobs.lua",
        "local leaves_out, listed = #expired.ids > 0, #expired.ids",
        "> -> >=",
    ): "only slower",
    (f"{LUA}schedules.lua", "if first[2] then", "2 -> 1"): "a member has a score",
    (
        f"{LUA}retime.lua",
        "if old < 9007199254740991 then",
        "9007199254740991 -> 9007199254740990",
    ): "no due time lies between",
    (
        f"{LUA}lib/dedup/decide_dedup.lua",
        "if sub(record, behind, behind + #same_window - 1) ~= same_window then",
        "1 -> 2",
    ): "only slower",
    (
        f"{LUA}lib/checks/check_first_deliveries.lua",
        "if all_valid and till ~= '' and count > 4 then -- perhaps all jobs of one reserve",
        "all_valid and till ~= '' and count > 4 -> false",
    ): "only slower",
    (
        f"{LUA}lib/read/append_rows.lua",
        (
            "local step = i == 0 and bytes == 0 and 1 or "
            "math.min(100, math.floor((1048576 - bytes) * i / (bytes + 1)) + 1)"
        ),
        "0 -> 1",
    ): "only how many entries a step reads",
    (f"{LUA}lib/sweep/expired_at_head.lua", "if #ids > 0 then", "> -> >="): "only slower",
    (
        f"{LUA}scan.lua",
        "local size = looked > 0 and bytes / looked or 1048575",
        "> -> >=",
    ): "only how many entries a step reads",
    (
        f"{LUA}lib/add/wrong_time.lua",
        "if third == 108 then -- the end of a lease fits into a score",
        "third == 108 -> true",
    ): "only slower",
    (
        f"{LUA}lib/deliver/choose_waiting.lua",
        "local lowest = (delivered + took - 15) / 16 % 9 * -4398046511104",
        "15 -> 14",
    ): "no score lies between",
    (
        f"{LUA}lib/deliver/choose_waiting.lua",
        "if tonumber(waiting_at) < lowest then",
        "< -> <=",
    ): "no job is due at 0",
    (
        f"{LUA}lib/results/result_blocks.lua",
        "local usual = math.min(most, has_lines and -1 or 200)",
        "200 -> 199",
    ): "only slower",
    (
        f"{LUA}lib/dedup/write_decision.lua",
        "for i = 2, ttl_ends and #ttl_ends or 0, 2 do",
        "0 -> 1",
    ): "the loop begins at 2",
    (
        f"{LUA}lib/deliver/choose_jobs.lua",
        "elseif has_urgent then -- jobs with a priority that are ready",
        "has_urgent -> true",
    ): "only slower",
    (
        f"{LUA}lib/deliver/next_ready.lua",
        (
            "if first_due and first_due < 9007199254740991 "
            "and not (soonest and soonest <= first_due) then "
            "-- not a successor: it has no due time yet"
        ),
        "9007199254740991 -> 9007199254740990",
    ): "no due time lies between",
    (
        f"{LUA}lib/checks/check_receipts.lua",
        "if has_counters and #counts == 0 then",
        "and -> or",
    ): "only slower",
    (f"{LUA}lib/batches/keep_values.lua", "if is_full == nil then", "is_full == nil -> true"): (
        "only slower"
    ),
    (f"{LUA}peek.lua", "if #page < 200 then", "200 -> 199"): "a page has pairs",
    (
        f"{LUA}redrive.lua",
        "local ends = tonumber(string.match(value, '@(%d+)$')) or 0",
        "0 -> 1",
    ): "now is later than both",
    (f"{LUA}pressure/put.lua", "if not fits and space > 0 then", "and -> or"): (
        "where it fits, there is nothing to delete"
    ),
    **{
        (
            f"{LUA}lib/deliver/choose_waiting.lua",
            "step = math.min(step, math.max(n - took, undelivered), read_count < 16 and 16 or 100)",
            change,
        ): "only how many entries a step reads"
        for change in ("16 -> 15", "16 -> 17", "100 -> 99", "100 -> 101")
    },
    **{
        (f"{LUA}lib/finish/notify_ended.lua", "if count > 0 and count < #ids then", change): (
            "only which of two reads finds the marks"
        )
        for change in (
            "< -> <=",
            "> -> >=",
            "and -> or",
            "0 -> 1",
            "count > 0 and count < #ids -> true",
            "count > 0 and count < #ids -> false",
        )
    },
    **{
        (f"{LUA}lib/sweep/move_sparse.lua", STEP, change): "only how many entries a step reads"
        for change in ("100 -> 101", "100 -> 99", "1048576 -> 1048577", "1048576 -> 1048575")
    },
}
FROM_FIRST = re.compile(rb"string\.(?:sub|byte|find)\((?:[^(),]|\([^()]*\))*, (?:'[^']*', )?$")
"""A call of a function of strings, up to the argument that says where it begins to read."""


def reason_at(before: bytes, change: str) -> str:
    """Return why a change of what stands behind this text on a line changes no behaviour."""
    if change == "1 -> 0" and FROM_FIRST.search(before):
        return "Lua begins with the first character then, too"
    return ""
