"""The page in a browser: both themes, a phone, the keyboard, and actions with their effects."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from penstock import Handlers, Penstock, Queue, Steps, Worker
from penstock.core.jobs.workers import worker_entry
from penstock.web import pages
from penstock.wire.keys import worker_key, workers_key
from tests.browser.conftest import PATIENCE, Visit
from tests.support.backends import Backend

Keep = Callable[[Page, str], None]
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 375, "height": 740}
HOSTILE = "<script>alert('x')</script>\"'&<img src=x onerror=alert(1)>\u202e/%2F..#?"
SHOTS = {("queue", "dark-desk"), ("queue", "light-phone"), ("job", "light-desk")}
"""Screenshots for the docs."""
THINNEST = """() => Math.min(999, ...[...document.querySelectorAll(".facts dd")].map(
    (one) => one.getBoundingClientRect().width))"""
"""The width of the narrowest fact of a page."""
expect.set_options(timeout=PATIENCE)


def filled(ps: Penstock) -> Queue:
    """Make queues with jobs in every state; return that of the e-mails."""
    chosen = random.Random(7)
    for name, count in (("reports", 40), ("images", 7), ("a name/with a slash", 1)):
        ps.queue(name).enqueue_many(range(count), headers={"handler": name.split()[0]})
    q = ps.queue("emails")
    q.enqueue_many(
        [
            {"to": f"ada{number}@example.com", "lang": chosen.choice(["en", "de"])}
            for number in range(9)
        ],
        headers={"handler": "welcome"},
    )
    for number, job in enumerate(q.reserve(7, block=0)):
        if number < 5:
            trace = 'Traceback (most recent call last):\n  File "tasks.py", line 7, in welcome\n'
            job.nack(error="ConnectionError: mail.example.com", trace=trace, delay=0)
    for number, job in enumerate(q.reserve(5, block=0)):
        job.bury(f"{'ConnectionError: refused' if number % 2 else 'ValueError: no address'}")
    q.enqueue_many(
        [{"report": number} for number in range(4)], delay=900, headers={"handler": "report"}
    )
    q.enqueue_many([{"to": "eve"}] * 3, headers={"handler": "welcome"})
    q.schedules.add("digest", every="1h", job={"all": True})
    return q


def counts(q: Queue) -> tuple[int, int, int, int]:
    """Return the numbers of ready, scheduled, active and dead jobs."""
    stats = q.stats()
    return stats.ready, stats.scheduled, stats.active, stats.dead


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_page(
    ps: Penstock, visit: Visit, keep: Keep, scheme: str, size: dict[str, int]
) -> None:
    """In both themes and widths all pages fit, without an error in the console."""
    q = filled(ps)
    page = visit(color_scheme=scheme, viewport=size)
    name = f"{scheme}-{'phone' if size is PHONE else 'desk'}"
    [dead, *_] = q.jobs("dead", newest=True).page().ids
    paths = {
        "overview": "/",
        "queue": "/queues/emails?state=dead",
        "job": f"/jobs/{dead}",
        "schedules": "/schedules",
        "batches": "/batches",
        "nodes": "/nodes",
        "workers": "/workers",
        "actions": "/runs",
    }
    for shown, path in paths.items():
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (path, wide)
        if (shown, name) in SHOTS:
            keep(page, f"{shown}-{name}")
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back)[:3])) > 380) == (scheme == "light")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_long_names_fit(
    one_server: Backend, ps: Penstock, visit: Visit, size: dict[str, int]
) -> None:
    """Names without a blank are wrapped on every page, and the other column keeps room."""
    name = "n" * 200
    q = ps.queue(name)
    q.schedules.add(name, every="1h", job=1)
    with q.batch(then=1) as batch:
        batch.enqueue(2, headers={"handler": name, name: name}, dedup_id=name)
    [job] = q.reserve(block=0)
    job.nack(delay=0, error=f"{name}: {name}")
    [job] = q.reserve(block=0)
    job.bury(f"{name}: {name}")
    raw = one_server.sync_client()
    entry = {"kind": "Worker", "version": name, "concurrency": 8, "since_ms": 1, "seen_ms": 2}
    text = worker_entry(name=name, host=name, queues=[name], **entry)
    raw.set(worker_key("penstock", "0" * 16), text)
    raw.zadd(workers_key("penstock"), {"0" * 16: 5})
    page = visit(viewport=size)
    for path in (
        "/", f"/queues/{name}?state=dead&error={name}", f"/jobs/{job.id}", "/schedules",
        "/batches", "/workers", "/nodes",
    ):  # fmt: skip
        page.goto(path)
        expect(page.locator("h1")).to_be_visible()
        assert path == "/nodes" or name in page.locator("main").inner_text()
        wide = page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")
        assert wide <= 0, (path, wide)
        thin = page.evaluate(THINNEST)
        assert thin > 60, (path, thin)


def test_figures_are_live(ps: Penstock, visit: Visit) -> None:
    """New jobs appear without a reload, unless the updates are switched off."""
    q = filled(ps)
    page = visit("/queues/emails")
    ready = page.locator("#state-ready strong")
    expect(ready).to_have_text("5")
    page.locator("#state-ready").focus()
    q.enqueue_many(range(10))
    expect(ready).to_have_text("15")
    assert page.evaluate("document.activeElement.id") == "state-ready"
    switch = page.locator("#live-switch")
    switch.click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(page.locator("#live")).to_be_visible()


@pytest.mark.parametrize(
    "state, action, after",
    [
        ("dead", "redrive", (7, 4, 2, 3)),
        ("dead", "delete", (5, 4, 2, 3)),
        ("scheduled", "promote", (7, 2, 2, 5)),
        ("scheduled", "cancel", (5, 2, 2, 5)),
        ("ready", "delete", (3, 4, 2, 5)),
    ],
)
def test_selected_jobs(
    ps: Penstock, visit: Visit, state: str, action: str, after: tuple[int, ...]
) -> None:
    """Selected jobs are handled after a question that says how many, and no others."""
    q = filled(ps)
    page = visit(f"/queues/emails?state={state}")
    boxes = page.locator('input[name="id"][type="checkbox"]')
    for index in range(2):
        boxes.nth(index).check()
    page.get_by_role("button", name=f"{action.capitalize()} selected").click()
    before = counts(q)
    page.get_by_role("button", name=f"{action.capitalize()} 2 {state} jobs").click()
    expect(page.get_by_role("status")).to_contain_text("2 of 2")
    assert before == (5, 4, 2, 5)
    assert counts(q) == after


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_all_jobs_of_a_filter(ps: Penstock, visit: Visit, script: bool) -> None:
    """A filter's jobs are counted, confirmed and handled; also without JavaScript."""
    q = filled(ps)
    page = visit("/queues/emails?state=dead", java_script_enabled=script)
    page.get_by_label("Error contains").fill("refused")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".jobs tbody tr")).to_have_count(2)
    page.get_by_role("button", name="Redrive all that match").click()
    page.get_by_role("button", name="Redrive 2 jobs").click()
    expect(page.locator("h1")).to_have_text("Redrive: done")
    assert counts(q) == (7, 4, 2, 3)


def test_a_long_run_shows_its_progress(ps: Penstock, visit: Visit) -> None:
    """The page of a run follows it to its end."""
    q = ps.queue("emails")
    q.enqueue_many(range(2000), delay=1000)
    page = visit("/queues/emails?state=scheduled")
    page.get_by_role("button", name="Delete all").click()
    expect(page.locator("h1")).to_contain_text("Delete 2,000 scheduled jobs")
    page.get_by_role("button", name="Delete 2,000 jobs").click()
    expect(page.locator("h1")).to_have_text("Delete: done")
    assert counts(q) == (0, 0, 0, 0)


def test_one_job(ps: Penstock, visit: Visit) -> None:
    """A job is found by its id, and redriven on its page."""
    q = filled(ps)
    [dead, *_] = q.jobs("dead").page().ids
    page = visit("/")
    page.get_by_label("Id of a job").fill(dead)
    page.get_by_role("button", name="Show").click()
    expect(page.locator("h1")).to_contain_text("dead")
    page.get_by_role("button", name="Redrive…").click()
    page.get_by_role("button", name="Redrive 1 dead job").click()
    expect(page.locator("h1")).to_contain_text("ready")
    assert counts(q) == (6, 4, 2, 4)


def test_an_active_job(ps: Penstock, visit: Visit) -> None:
    """It is marked as cancelled."""
    q = filled(ps)
    [job, *_] = q.jobs("active").page().ids
    page = visit(f"/jobs/{job}")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Cancel 1 active job").click()
    expect(page.locator("h1")).to_contain_text("cancelled")
    view = q.show(job)
    assert view is not None
    assert view.cancelled


def test_a_suspended_job(ps: Penstock, visit: Visit) -> None:
    """Its timeline follows its steps, and what it waits for."""
    handlers, q = Handlers(queue="orders"), ps.queue("orders")

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("reserve stock", str, "blue")
        steps.wait("approval", timeout=3600)
        steps.sleep("a day", 86400)

    job = order.enqueue(q).id
    Worker(ps, handlers=handlers, burst=True).run()
    page = visit(f"/jobs/{job}")
    timeline = page.locator(".timeline")
    expect(timeline).to_contain_text("step reserve stock")
    expect(timeline).to_contain_text("waits for signal approval until")
    q.signal(job, "approval", {"by": "ada"})
    Worker(ps, handlers=handlers, burst=True).run()
    expect(timeline).to_contain_text("sleeps until")
    expect(timeline).not_to_contain_text("waits for")
    expect(page.locator("dl.facts").first).to_contain_text("the end of a sleep")


def test_pause_and_schedules(ps: Penstock, visit: Visit) -> None:
    """A queue is paused and resumed; a schedule is run, paused, resumed and removed."""
    q = filled(ps)
    page = visit("/queues/emails")
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    assert q.stats().settings.paused == "out"
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause, and refuse new jobs")).to_be_visible()
    assert q.stats().settings.paused is None
    page.goto("/schedules")
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status")).to_have_text("A job was added.")
    assert counts(q)[0] == 6
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused", exact=True)).to_be_visible()
    assert q.schedules.list()[0].paused
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert not q.schedules.list()[0].paused
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("button", name="Remove 1 schedule").click()
    expect(page.get_by_text("There are no schedules.")).to_be_visible()
    assert not q.schedules.list()


def test_the_keyboard(ps: Penstock, visit: Visit) -> None:
    """All is reached by keys alone: the first one skips to the content, and a job is redriven."""
    q = filled(ps)
    page = visit("/queues/emails?state=dead")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    reached = list[str]()
    for _ in range(60):
        page.keyboard.press("Tab")
        told: dict[str, Any] = page.evaluate(
            "(() => { const e = document.activeElement, s = getComputedStyle(e);"
            " return {name: e.name || e.id || e.textContent.trim(), outline: s.outlineStyle,"
            " type: e.type}; })()"
        )
        if told["name"] and told["name"] not in reached:
            assert told["outline"] != "none", told
        reached.append(told["name"])
        if (told["name"], told["type"]) == ("id", "checkbox"):
            page.keyboard.press("Space")
            break
    assert "Schedules" in reached
    page.get_by_role("button", name="Redrive selected").press("Enter")
    expect(page.get_by_role("button", name="Redrive 1 dead job")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("1 of 1")
    assert counts(q) == (6, 4, 2, 4)


def test_all_jobs_of_a_page_are_selected(ps: Penstock, visit: Visit) -> None:
    """One box selects them all."""
    q = filled(ps)
    page = visit("/queues/emails?state=dead")
    page.get_by_label("Select all jobs of this page").check()
    page.get_by_role("button", name="Delete selected").click()
    page.get_by_role("button", name="Delete 5 dead jobs").click()
    expect(page.get_by_role("status")).to_contain_text("5 of 5")
    assert counts(q) == (5, 4, 2, 0)


def test_hostile_data(ps: Penstock, visit: Visit) -> None:
    """Markup in names, bodies, headers and errors runs nothing, and its queue can be managed."""
    q = ps.queue(HOSTILE)
    q.enqueue({HOSTILE: HOSTILE}, headers={"handler": HOSTILE, HOSTILE: HOSTILE})
    [job] = q.reserve(block=0)
    job.nack(error=HOSTILE, trace=HOSTILE, delay=0)
    [job] = q.reserve(block=0)
    job.bury(HOSTILE)
    page = visit("/")
    page.locator("tbody th a").click()
    expect(page.locator("h1")).to_contain_text("alert('x')")
    page.locator("#state-dead").click()
    page.locator("a.id").click()
    expect(page.locator("pre").first).to_contain_text("alert('x')")
    page.get_by_role("button", name="Redrive…").click()
    page.get_by_role("button", name="Redrive 1 dead job").click()
    expect(page.locator("h1")).to_contain_text("ready")
    assert counts(q) == (1, 0, 0, 0)
    assert page.locator("img").count() == 0


def test_a_list_follows_its_counts(ps: Penstock, visit: Visit) -> None:
    """New jobs appear in the list, too; but not while some are chosen, and then it says so."""
    q = filled(ps)
    page = visit("/queues/emails?state=dead")
    rows, note = page.locator("#list tbody tr"), page.locator("#list-note")
    expect(rows).to_have_count(5)
    q.delete(q.jobs("dead").page().ids[:1])
    expect(rows).to_have_count(4)
    expect(page.locator("#all")).to_be_visible()
    box = page.locator('input[name="id"][type="checkbox"]').first
    box.check()
    q.delete(q.jobs("dead").page().ids[:1])
    expect(page.locator("#state-dead strong")).to_have_text("3")
    expect(note).to_contain_text("changed since this list was read")
    expect(rows).to_have_count(4)
    expect(box).to_be_checked()
    box.uncheck()
    box.evaluate("box => box.blur()")
    expect(rows).to_have_count(3)
    expect(note).to_be_hidden()


def test_a_search_is_not_repeated(ps: Penstock, visit: Visit) -> None:
    """Jobs that a filter has found stay, with a notice when there are others."""
    q = filled(ps)
    page = visit("/queues/emails?state=dead&error=ValueError")
    expect(page.locator("#list tbody tr")).to_have_count(3)
    q.delete(q.jobs("dead").page().ids)
    expect(page.locator("#state-dead strong")).to_have_text("0")
    expect(page.locator("#list-note")).to_be_visible()
    expect(page.locator("#list tbody tr")).to_have_count(3)
    page.get_by_role("link", name="Read it again").click()
    expect(page.locator("#list")).to_contain_text("No dead job matches")
    expect(page.locator("#list-note")).to_be_hidden()


def test_a_search_of_many_jobs(ps: Penstock, visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    """One click looks at all jobs in the background, with its progress; found ones are added."""
    monkeypatch.setattr(pages, "FIRST_SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(pages, "SEARCH_SECONDS", 0.02)
    q = ps.queue("emails")
    for start in range(5):
        q.enqueue_many(range(1000), headers={"handler": f"handler-{start}"})
        q.enqueue(start, headers={"handler": "rare"})
    page = visit("/queues/emails?state=ready")
    page.get_by_label("Handler").fill("rare")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#search progress")).to_be_visible()
    rows = page.locator("#list tbody tr")
    expect(rows.first).to_be_visible()
    page.locator('input[name="id"][type="checkbox"]').first.check()
    expect(page.locator("#search")).to_contain_text("5 jobs among the 5,005 looked at")
    expect(rows).to_have_count(5)
    expect(page.locator('input[name="id"][type="checkbox"]').first).to_be_checked()
    expect(page.locator("#search progress")).to_have_count(0)


def test_a_search_without_result(ps: Penstock, visit: Visit) -> None:
    """It ends by saying so."""
    filled(ps)
    page = visit("/queues/emails?state=dead&error=none")
    expect(page.locator("#search")).to_contain_text("No dead job matches among the 5 looked at")
    expect(page.locator("#list table")).to_be_hidden()


def test_a_pause_by_another_user_is_seen(ps: Penstock, visit: Visit) -> None:
    """The heading and its buttons are live."""
    q = filled(ps)
    page = visit("/queues/emails")
    expect(page.locator("#pause")).to_be_visible()
    q.pause()
    expect(page.locator("h1")).to_contain_text("paused")
    expect(page.locator("#resume")).to_be_visible()


def test_lines_are_drawn(ps: Penstock, visit: Visit, keep: Keep) -> None:
    """Rates and lines follow the work."""
    q = filled(ps)
    page = visit("/")
    row = page.locator("#live tbody tr", has_text="emails")
    expect(row.locator("polyline")).to_have_count(1)
    q.ack(q.enqueue_many(range(50)).ids)
    expect(row.locator('[data-label="done / s"]')).to_have_text(re.compile("[1-9]"))
    keep(page, "overview")
