"""Groups of errors: what is left of an error, and counts with bounds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.core.jobs.error_groups import (
    MAX_ERROR_GROUPS,
    PARTS_OF_TREND,
    ErrorCounter,
    error_pattern,
    group_id,
)
from penstock.core.jobs.views import JobView, ScanPage

JOB = JobView(
    id="D-1", queue="q", state="dead", raw=b"", codec="", headers={}, dedup_id=None, retry=None,
    now=9e9, created=1.0, due=None, lease=30.0, lease_until=None, expires=None, died=None,
    delivered=None, owner="", deliveries=1, nacks=1, crashes=0, releases=0, error="",
)  # fmt: skip


@pytest.mark.parametrize(
    "error, pattern",
    [
        ("KeyError: 'cust_1234'", "KeyError: '…'"),
        ("KeyError: b'abc'", "KeyError: '…'"),
        ('no file "a b.png" or `c`', 'no file "…" or `…`'),
        ("can't read the user's file 12", "can't read the user's file #"),
        ("Timeout after 30.5 s", "Timeout after # s"),
        ("Timeout after 7 s", "Timeout after # s"),
        ("order_1234 of 1,240", "order_# of #"),
        ("connection to 10.0.0.12:6379 refused.", "connection to #:# refused."),
        ("550 no such user ada@example.com", "# no such user …"),
        ("<Foo object at 0x7f3a2b>", "<Foo object at …>"),
        ("request 4f3e2a19-1111-2222-3333-444455556666 failed", "request … failed"),
        ("job D-00000000-P7DpjNzE00000-53DE00000000000.", "job …."),
        ("cus_NffrFeUfNV2Hib is no customer", "… is no customer"),
        ("/tmp/tmp8k2j3x_q/file", "/tmp/…/file"),
        ("commit deadbeef12 of utf-8", "commit … of utf-#"),
        ("ValueError: first\nsecond 2", "ValueError: first"),
        ("two  blanks\tand a tab", "two blanks and a tab"),
        ("\ud800 7", "\ud800 #"),
        ("", ""),
    ],
)
def test_what_is_left_of_an_error(error: str, pattern: str) -> None:
    """Numbers, ids, addresses and quoted parts are taken out; words stay."""
    assert error_pattern(error) == pattern
    assert group_id(replace(JOB, error=error)) == group_id(replace(JOB, error=error, id="D-2"))


def test_groups_are_told_apart_by_handler() -> None:
    """One error in two handlers makes two groups, and so do two errors in one."""
    jobs = [
        replace(JOB, headers={"handler": handler}, error=error)
        for handler, error in (("a", "x 1"), ("a", "x 2"), ("b", "x 1"), ("a", "y"))
    ]
    first, same, *others = map(group_id, jobs)
    assert first == same
    assert len({first, *others}) == 3


def test_the_trend_covers_the_time_of_all_groups() -> None:
    """All groups have equal parts of the same time; each job is in one of them."""
    hour = 3600.0
    deaths = [("a", 0), ("a", 12), ("b", 23.9), ("b", 24)]
    jobs = [replace(JOB, error=error, died=hour * 1000 + hour * at) for error, at in deaths]
    counter = ErrorCounter()
    counter.add(ScanPage("0", [], jobs, (), 4))
    found = counter.result
    assert found.until - found.since == 24 * hour
    trends = {group.error: group.trend for group in found.groups}
    assert {len(trend) for trend in trends.values()} == {PARTS_OF_TREND}
    assert [at for at, jobs in enumerate(trends["a"]) if jobs] == [0, 11]
    assert (trends["b"][-1], sum(trends["b"])) == (2, 2)


def test_the_time_of_a_job_that_is_not_dead() -> None:
    """It is that of its last delivery, or of its creation."""
    counter = ErrorCounter()
    counter.add(ScanPage("0", [], [replace(JOB, delivered=50.0), JOB], (), 2))
    [group] = counter.result.groups
    assert (group.first, group.last) == (1.0, 50.0)


def test_many_groups_are_counted_together() -> None:
    """Beyond the bound, jobs of new groups are only counted; those of known groups still are."""
    errors = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(MAX_ERROR_GROUPS)]
    jobs = [replace(JOB, error=error) for error in [*errors, "new", "newer", "new", errors[0]]]
    counter = ErrorCounter()
    counter.add(ScanPage("0", [], jobs, (), len(jobs)))
    found = counter.result
    assert (len(found.groups), found.others) == (MAX_ERROR_GROUPS, 3)
    assert (found.groups[0].jobs, found.groups[0].error) == (2, "a")


def test_nothing_to_count() -> None:
    """Without jobs there are no groups and no times."""
    found = ErrorCounter().result
    assert (found.groups, found.since, found.until, found.is_complete) == ([], 0.0, 0.0, False)
