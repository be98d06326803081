"""Groups of errors on the page of a queue: what kills jobs, and actions on all of a kind."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import Penstock, Queue
from penstock.core.jobs.views import ScanPage
from penstock.errors import ServerUnreachable
from penstock.web import groups
from penstock.web.groups import GroupCounts
from tests.web.conftest import Open
from tests.web.support import Browser


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue with seven dead letters of three groups, and a ready job."""
    queue = ps.queue("emails")
    queue.enqueue_many(range(6), headers={"handler": "welcome"})
    queue.enqueue("other")
    for number, job in enumerate(queue.reserve(7, block=0)):
        job.bury(f"no user '{number}'" if number in (0, 2, 3, 5, 6) else "Timeout: 7 s")
    queue.enqueue("ready")
    return queue


def test_the_main_error_is_shown(q: Queue, page: Browser, open_page: Open) -> None:
    """The page of a queue says why its jobs are dead, whatever its list shows."""
    for state in ("ready", "dead"):
        found = page.get(f"/queues/emails?state={state}").text
        assert "Why jobs are dead" in found
        assert "4 57% no user '…' welcome" in found
        assert "2 29% Timeout: # s welcome" in found
        assert "1 14% no user '…'" in found
        assert found.index("Why jobs are dead") < found.index("added / s")
        assert "Redrive 4" not in found
    q.purge("dead")
    assert "Why jobs are dead" not in open_page().get("/queues/emails").text


def test_the_jobs_of_a_group(q: Queue, page: Browser) -> None:
    """The error leads to its jobs, and no others."""
    [main, *_] = q.jobs("dead").error_groups().groups
    links = [href for href, _ in page.get("/queues/emails").reader.links]
    path = f"/queues/emails?state=dead&group={main.id}"
    assert f"{path}#jobs" in links
    found = page.get(path)
    assert "Only jobs with errors like no user '…' in welcome" in found.text
    assert "4 jobs among the 7 looked at" in found.text


@pytest.mark.parametrize("action", ["redrive", "delete"])
def test_an_action_on_a_group(
    q: Queue, writable: Browser, caplog: pytest.LogCaptureFixture, action: str
) -> None:
    """The page asks with the number and the error; the other dead letters stay."""
    [main, *others] = q.jobs("dead").error_groups().groups
    form = writable.get("/queues/emails").form("all", action, main.id)
    asked = writable.submit(form, ("all", action))
    assert f"{action.capitalize()} 4 dead jobs of emails?" in asked.text
    assert "All jobs that are dead with errors like no user '…' in welcome" in asked.text
    assert q.stats().dead == 7
    with caplog.at_level(logging.INFO, "penstock.web.audit"):
        done = writable.press(asked, "do", "start")
    assert "Done for 4 of 4 jobs" in done.text
    assert "4 57%" not in writable.get("/queues/emails").text  # counted again at once
    left = q.jobs("dead").error_groups().groups
    assert [group.id for group in left] == [group.id for group in others]
    assert q.stats().ready == (5 if action == "redrive" else 1)
    assert "errors=\"no user '…' in welcome\"" in caplog.messages[0]


def test_many_groups(ps: Penstock, page: Browser) -> None:
    """Three are shown, and all on demand; an unknown group has no jobs."""
    queue = ps.queue("emails")
    for error in ("one", "two", "three", "four"):
        queue.enqueue(error)
        queue.bury(queue.reserve(), error)
    found = page.get("/queues/emails")
    assert "All 4 groups" in found.text
    assert "one" not in found.text.split("All 4 groups")[0].split()
    assert "groups=all" in found.html
    whole = page.get("/queues/emails?groups=all").text
    assert "All 4 groups" not in whole
    assert all(f"1 25% {error}" in whole for error in ("one", "two", "three", "four"))
    assert "No dead job matches" in page.get("/queues/emails?state=dead&group=nope").text


class Dead:
    """A queue with dead letters, one a page; each page waits for a permission."""

    name = "q"

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.permits = asyncio.Semaphore(0)
        self.asked = 0

    def jobs(self, *_: Any, **__: Any) -> Any:
        """Return the search."""
        return SimpleNamespace(page=self.page)

    async def page(self, cursor: str) -> ScanPage:
        """Return a page when it is permitted."""
        self.asked += 1
        await self.permits.acquire()
        at = int(cursor) + 1
        job: Any = SimpleNamespace(
            id=f"D-{at}", headers={}, error=f"no {at}", died=float(at), delivered=None, created=0.0
        )
        return ScanPage("0" if at == self.pages else str(at), [job.id], [job], (), 1)

    def stats(self, died: int) -> Any:
        """Return the figures."""
        return SimpleNamespace(epoch="1", dead=self.pages, died=died)


def dead_queue(pages: int) -> Any:
    """Return a queue of its kind, as the page takes it."""
    return Dead(pages)


async def seen(counts: GroupCounts, queue: Any, looked: int) -> None:
    """Wait until so many jobs are counted."""
    for _ in range(10_000):
        found = await counts.read(queue, queue.stats(1))
        if found is not None and found.looked == looked:
            return
        await asyncio.sleep(0)
    raise AssertionError(looked)


async def test_a_long_count_is_shown_as_far_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page does not wait for it; it ends in the background, and is not repeated unchanged."""
    monkeypatch.setattr(groups, "FIRST_COUNT_SECONDS", 0.01)
    counts, queue = GroupCounts(), dead_queue(3)
    assert await counts.read(queue, queue.stats(1)) is None
    for looked in (1, 2, 3):
        queue.permits.release()
        await seen(counts, queue, looked)
    found = await counts.read(queue, queue.stats(1))
    assert found is not None
    assert found.is_complete
    assert [(group.jobs, group.error) for group in found.groups] == [(3, "no #")]
    assert queue.asked == 3
    await counts.close()


async def test_a_count_is_repeated_when_more_jobs_have_died(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Meanwhile the groups of the last one are shown, whole."""
    monkeypatch.setattr(groups, "SHORTEST_GROUP_REST", 0.0)
    monkeypatch.setattr(groups, "REST_PER_GROUP_COUNT", 0.0)
    counts, queue = GroupCounts(), dead_queue(2)
    queue.permits.release()
    queue.permits.release()
    await seen(counts, queue, 2)
    queue.pages = 3
    for _ in range(100):  # the first count may have to end
        found = await counts.read(queue, queue.stats(2))
        assert found is not None
        assert found.looked == 2
        await asyncio.sleep(0)
    assert queue.asked == 3
    await counts.close()


async def test_a_count_that_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The page goes on without groups; the next count begins after a rest."""
    monkeypatch.setattr(groups, "SHORTEST_GROUP_REST", 0.0)
    monkeypatch.setattr(groups, "REST_PER_GROUP_COUNT", 0.0)
    counts, queue = GroupCounts(), dead_queue(1)

    async def fail(_: str) -> ScanPage:
        queue.asked += 1
        raise ServerUnreachable("no answer")

    monkeypatch.setattr(queue, "page", fail)
    for number in (1, 2):
        assert await counts.read(queue, queue.stats(1)) is None
        assert queue.asked == number
    assert "groups of errors of 'q' are not counted: no answer" in caplog.text
    await counts.close()


async def test_counts_end_with_the_page() -> None:
    """Closing cancels one that is under way."""
    counts, queue = GroupCounts(), dead_queue(1)
    reading = asyncio.create_task(counts.read(queue, queue.stats(1)))
    while not queue.asked:  # noqa: ASYNC110  # a counter is no event
        await asyncio.sleep(0)
    await counts.close()
    assert await reading is None


async def test_few_queues_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was looked at longest ago is forgotten."""
    monkeypatch.setattr(groups, "KEPT_GROUP_COUNTS", 1)
    counts = GroupCounts()
    for name in ("a", "b"):
        queue = dead_queue(1)
        queue.name = name
        queue.permits.release()
        await seen(counts, queue, 1)
    queue = dead_queue(1)
    queue.name = "a"
    queue.permits.release()
    await seen(counts, queue, 1)
    assert queue.asked == 1
    await counts.close()
