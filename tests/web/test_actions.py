"""Actions: each with its effect on Redis, and its line in the audit log."""

from __future__ import annotations

import logging

import pytest

from penstock import Penstock, Queue
from tests.support.keyspace import Raw, dump
from tests.web.support import Browser, Page


@pytest.fixture
def q(ps: Penstock) -> Queue:
    """A queue with jobs in every state: 3 ready, 4 scheduled, 2 active, 5 dead."""
    queue = ps.queue("emails")
    queue.enqueue_many(range(7), headers={"handler": "welcome"})
    for number, job in enumerate(queue.reserve(7, block=0)):
        if number < 5:
            job.bury(f"{'Key' if number % 2 else 'Value'}Error: {number}")
    queue.enqueue_many(range(4), delay=1000, key=lambda number: f"k{number % 2}")
    queue.enqueue_many(range(3))
    return queue


def counts(q: Queue) -> tuple[int, int, int, int]:
    """Return the numbers of ready, scheduled, active and dead jobs."""
    stats = q.stats()
    return stats.ready, stats.scheduled, stats.active, stats.dead


def chosen(page: Browser, state: str, action: str, ids: list[str]) -> Page:
    """Select jobs of a list, and press a button; return the page that asks."""
    listed = page.get(f"/queues/emails?state={state}")
    return page.press(listed, "action", action, *(("id", one) for one in ids))


@pytest.mark.parametrize(
    "state, action, after",
    [
        ("dead", "redrive", (5, 4, 2, 3)),
        ("dead", "delete", (3, 4, 2, 3)),
        ("scheduled", "promote", (5, 2, 2, 5)),
        ("scheduled", "cancel", (3, 2, 2, 5)),
        ("scheduled", "delete", (3, 2, 2, 5)),
        ("ready", "cancel", (1, 4, 2, 5)),
        ("ready", "delete", (1, 4, 2, 5)),
    ],
)
def test_selected_jobs(
    q: Queue,
    writable: Browser,
    caplog: pytest.LogCaptureFixture,
    state: str,
    action: str,
    after: tuple[int, ...],
) -> None:
    """The page asks with the number of jobs, acts on them alone, and logs a line."""
    ids = q.jobs(state).page().ids[:2]  # type: ignore[arg-type]  # of any state
    before = counts(q)
    asked = chosen(writable, state, action, ids)
    assert f"{action.capitalize()} 2 {state} jobs of emails?" in asked.text
    look = "go" if action in ("redrive", "promote") else "danger"
    assert f'<button class="{look}" autofocus>' in asked.html
    assert counts(q) == before
    with caplog.at_level(logging.INFO, "penstock.web.audit"):
        done = writable.press(asked, "", "")
    assert counts(q) == after
    assert "done for 2 of 2 jobs" in done.text
    assert not set(ids) & set(q.jobs(state).page().ids)  # type: ignore[arg-type]  # of any state
    [line] = caplog.messages
    assert line.startswith(f"action={action} user='-' client=127.0.0.1 queue='emails'")
    assert ids[0] in line


def test_an_active_job_is_cancelled(q: Queue, writable: Browser) -> None:
    """It is marked, and its page says so."""
    [job, *_] = q.jobs("active").page().ids
    asked = writable.press(writable.get(f"/jobs/{job}"), "action", "cancel")
    done = writable.press(asked, "", "")
    assert "cancelled" in done.text
    view = q.show(job)
    assert view is not None
    assert view.cancelled is not None


@pytest.mark.parametrize(
    "query, action, number, after",
    [
        ("state=dead", "redrive", 5, (8, 4, 2, 0)),
        ("state=dead&error=keyerror", "redrive", 2, (5, 4, 2, 3)),
        ("state=dead&error=value&handler=welcome", "delete", 3, (3, 4, 2, 2)),
        ("state=scheduled", "promote", 4, (7, 0, 2, 5)),
        ("state=ready", "cancel", 3, (0, 4, 2, 5)),
        ("state=dead&handler=report", "delete", 0, (3, 4, 2, 5)),
        ("state=scheduled&key=k1", "cancel", 2, (3, 2, 2, 5)),
    ],
)
def test_all_jobs_of_a_filter(
    q: Queue,
    writable: Browser,
    caplog: pytest.LogCaptureFixture,
    query: str,
    action: str,
    number: int,
    after: tuple[int, ...],
) -> None:
    """The page counts them, asks, and acts on as many in the background."""
    before = counts(q)
    asked = writable.press(writable.get(f"/queues/emails?{query}"), "all", action)
    assert f"{action.capitalize()} {number} " in asked.text
    assert counts(q) == before
    if number:
        with caplog.at_level(logging.INFO, "penstock.web.audit"):
            done = writable.press(asked, "do", "start")
        while "running" in done.text:
            done = writable.get(done.url)
        assert f"Done for {number} of {number} jobs" in done.text
        started, ended = caplog.messages
        assert f"action={action}-all-started" in started
        assert f"matched={number} done={number} status='done'" in ended
        assert f"{number} of {number}" in writable.get("/runs").text
    assert counts(q) == after


def test_jobs_that_come_later_are_left_alone(q: Queue, writable: Browser) -> None:
    """A run handles no more jobs than the confirmation has said."""
    asked = writable.press(writable.get("/queues/emails?state=ready"), "all", "delete")
    assert "Delete 3 ready jobs" in asked.text
    late = q.enqueue_many(range(600)).ids
    q.delete(q.jobs("ready", n=1).page().ids)
    done = writable.press(asked, "do", "start")
    while "running" in done.text:
        done = writable.get(done.url)
    assert "Done for 3 of 3" in done.text
    assert counts(q)[0] == 599
    assert len(late) == 600


def test_a_run_is_stopped(q: Queue, writable: Browser) -> None:
    """A run that was stopped does not start."""
    asked = writable.press(writable.get("/queues/emails?state=dead"), "all", "delete")
    path = asked.form("do", "start").action
    token = dict(asked.form("do").fields)["csrf"]
    assert "stopped" in writable.post(path, [("csrf", token), ("do", "stop")]).text
    again = writable.post(path, [("csrf", token), ("do", "start")])
    assert "stopped" in again.text
    assert counts(q)[3] == 5


def test_a_run_that_raises_has_failed(
    q: Queue, writable: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any exception ends a run, and the page shows it."""
    asked = writable.press(writable.get("/queues/emails?state=dead"), "all", "delete")
    monkeypatch.setattr("penstock.web.runs.act", lambda *_: 1 // 0)
    done = writable.press(asked, "do", "start")
    while "running" in done.text:
        done = writable.get(done.url)
    assert "ZeroDivisionError" in done.text
    assert counts(q)[3] == 5


def test_a_queue_is_paused_and_resumed(q: Queue, writable: Browser) -> None:
    """Each side has a button."""
    for side, expected in (("out", "out"), ("", None), ("all", "all"), ("", None)):
        writable.press(writable.get("/queues/emails"), "side", side)
        assert q.stats().settings.paused == expected


def test_a_note_is_shown_once(q: Queue, writable: Browser) -> None:
    """A note belongs to the action: no address makes one, and no later page repeats it."""
    [job, *_] = q.jobs("dead").page().ids
    asked = writable.press(writable.get(f"/jobs/{job}"), "action", "redrive")
    done = writable.press(asked, "", "")
    assert "Redrive: done for 1 of 1 job." in done.text
    assert "done for" not in writable.get(done.url.removeprefix("http://localhost")).text
    for note in ("remove", "delete-999-999"):
        assert 'class="note"' not in writable.get(f"/?note={note}").html


@pytest.mark.parametrize("value", ["Removed.", "a.UmVtb3ZlZC4=", ".", "\xe9.UmVtb3ZlZC4="])
def test_a_forged_note(writable: Browser, value: str) -> None:
    """A cookie that the page has not made shows nothing."""
    writable.get("/")
    cookies = f"penstock_note={value}; penstock_csrf={writable.client.cookies['penstock_csrf']}"
    found = writable.get("/", headers={"cookie": cookies.encode("latin-1")})
    assert (found.status, 'class="note"' in found.html) == (200, False)


def test_schedules(q: Queue, writable: Browser) -> None:
    """A schedule is triggered, paused, resumed and, after a question, removed."""
    q.schedules.add("hourly", every="1h", job=1)
    writable.press(writable.get("/schedules"), "action", "trigger")
    assert q.stats().ready == 4
    writable.press(writable.get("/schedules"), "action", "pause")
    assert q.schedules.list()[0].paused
    writable.press(writable.get("/schedules"), "action", "resume")
    assert not q.schedules.list()[0].paused
    asked = writable.press(writable.get("/schedules"), "action", "remove")
    assert "Remove 1 schedule" in asked.text
    assert q.schedules.list()
    writable.press(asked, "action", "remove")
    assert not q.schedules.list()


PATHS = ("/actions/jobs", "/actions/pause", "/actions/schedule", "/actions/runs/x")


@pytest.mark.parametrize("path", PATHS)
def test_a_read_only_page_has_no_actions(q: Queue, raw: Raw, page: Browser, path: str) -> None:
    """It refuses them, and shows no button for them."""
    before = dump(raw)
    assert "<button name=" not in page.get("/queues/emails?state=dead").html
    assert page.post(path, [("queue", "emails"), ("side", "all")]).status == 403
    assert page.get(path).status == 405
    assert dump(raw) == before


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("token", ["", "0" * 64, "\xff"])
def test_a_form_without_its_token(
    q: Queue, raw: Raw, writable: Browser, path: str, token: str
) -> None:
    """It is refused: another site can't act for the user."""
    writable.get("/")
    before = dump(raw)
    fields = [("queue", "emails"), ("side", "all"), ("csrf", token)]
    found = writable.post(path, fields)
    assert found.status == 403
    assert "too old" in found.text
    assert dump(raw) == before


def test_the_token_of_another_user(q: Queue, writable: Browser) -> None:
    """A token is worth nothing with another cookie, nor without one."""
    token = dict(writable.get("/queues/emails").form("side").fields)["csrf"]
    fields = [("queue", "emails"), ("side", "all"), ("csrf", token)]
    writable.client.cookies.clear()
    assert writable.post("/actions/pause", fields).status == 403
    writable.client.cookies.clear()
    writable.get("/")
    assert writable.post("/actions/pause", fields).status == 403
    assert q.stats().settings.paused is None


@pytest.mark.parametrize(
    "path, fields, status",
    [
        ("/actions/jobs", {"action": "redrive"}, 400),
        ("/actions/jobs", {"action": "redrive", "state": "dead"}, 400),
        ("/actions/jobs", {"action": "redrive", "state": "ready", "id": "x"}, 400),
        ("/actions/jobs", {"action": "explode", "state": "dead", "id": "x"}, 400),
        ("/actions/jobs", {"action": "delete", "state": "dead", "id": "x", "confirmed": "1"}, 400),
        ("/actions/jobs", {"queue": "none"}, 404),
        ("/actions/pause", {"side": "up"}, 400),
        ("/actions/schedule", {"action": "trigger", "name": "none"}, 400),
        ("/actions/schedule", {"action": "explode", "name": "none"}, 400),
        ("/actions/schedule", {"action": "remove", "name": "none", "confirmed": "1"}, 404),
        ("/actions/runs/none", {"do": "start"}, 404),
        ("/actions/jobs", {"id": "x" * 300_000}, 413),
    ],
)
def test_bad_forms(
    q: Queue, raw: Raw, writable: Browser, path: str, fields: dict[str, str], status: int
) -> None:
    """They are refused, and nothing changes."""
    token = dict(writable.get("/queues/emails").form("side").fields)["csrf"]
    before = dump(raw)
    found = writable.post(path, list({"queue": "emails", "csrf": token, **fields}.items()))
    assert found.status == status
    assert dump(raw) == before
