"""Pages: what they show, and that looking never writes."""

from __future__ import annotations

import bz2
import os
import re
import subprocess
import sys
import zipfile
from html import unescape
from pathlib import Path
from urllib.parse import quote

import pytest

import penstock
from penstock import Handlers, Penstock, Queue, RetryPolicy, Steps, Worker
from penstock.client._sync.admin import ask_all
from penstock.core.jobs.history import TimesNote
from penstock.core.jobs.workers import worker_entry
from penstock.spark.calls import Staged, about_staged, staged_chunk
from penstock.web import files, pages
from penstock.wire.keys import worker_key, workers_key
from tests.support.keyspace import Raw, advance, dump
from tests.web.conftest import Open
from tests.web.support import Browser

HOSTILE = "<script>alert('x')</script>\"'&<img src=x onerror=alert(1)>\x1b[31m\u202e{{7*7}}{%x%}"


handlers = Handlers()


@handlers.handler("echo")
def echo(what: object) -> object:
    """Return the argument."""
    return what


def filled(ps: Penstock, name: str = "emails") -> Queue:
    """Make a queue with jobs in every state."""
    q = ps.queue(name)
    q.enqueue_many([{"to": f"ada{i}"} for i in range(5)], headers={"handler": "welcome"})
    q.enqueue_many(range(3), delay=1000, headers={"handler": "report"})
    held = q.reserve(3, block=0)
    held[0].bury("ValueError: no address")
    held[1].bury("KeyError: 'to'")
    return q


def test_the_overview_counts_jobs(ps: Penstock, page: Browser) -> None:
    """It lists each queue with its counts by state."""
    filled(ps)
    filled(ps, "reports").pause()
    found = page.get("/")
    assert found.status == 200
    assert "ready 4 scheduled 6 active 2 dead 4" in found.text
    assert "emails" in found.text
    assert "reports paused" in found.text
    assert "emails" not in page.get("/?q=rep").text
    assert page.get("/?q=none").text.count("No queue has") == 1


def test_queues_are_sorted(ps: Penstock, page: Browser) -> None:
    """A heading sorts by its figure."""
    for name, count in (("a", 1), ("b", 3), ("c", 2)):
        ps.queue(name).enqueue_many(range(count))
    for sort, expected in (("name", "abc"), ("ready", "bca")):
        html = page.get(f"/?sort={sort}").html
        assert "".join(re.findall(r'href="/queues/(\w)"', html)) == expected


def test_parked_jobs_have_a_column(ps: Penstock, page: Browser) -> None:
    """It is there if a queue has some, and sorts."""
    for name, count in (("a", 2), ("b", 3)):
        ps.queue(name).configure(per_key=1)
        ps.queue(name).enqueue_many(range(count), key="k")
    found = page.get("/?sort=parked")
    assert "parked 3" in found.text
    assert "b 1 0 2 0 0" in found.text
    assert re.findall(r'href="/queues/(\w)"', found.html) == ["b", "a"]


def test_a_queue_shows_its_slots(ps: Penstock, page: Browser) -> None:
    """Beside the figures there is how many of them are taken."""
    for name in "ab":
        ps.queue(name).enqueue_many(range(9))
    ps.queue("a").configure(max_active=2)
    ps.queue("a").reserve(5, block=0)
    assert "running 2 of 2" in page.get("/queues/a").text
    assert "running" not in page.get("/queues/b").text


def test_a_parked_job_waits_for_the_rate_of_its_key(ps: Penstock, page: Browser) -> None:
    """Its timeline has the time from which the key may have its next job."""
    queue = ps.queue("q")
    queue.configure(key_rate="1/h")
    job_id = queue.enqueue_many(range(2), key="k").ids[1]
    assert "waits for its key" not in page.get(f"/jobs/{job_id}").text
    queue.reserve(block=0)
    assert "waits for its key until" in page.get(f"/jobs/{job_id}").text


def test_a_parked_job_waits_for_others_of_its_key_or_for_a_hold(
    ps: Penstock, page: Browser
) -> None:
    """Its page tells which, and until when; the page of the queue counts the keys."""
    queue = ps.queue("q")
    queue.configure(per_key=1)
    job_id = queue.enqueue_many(range(3), key="k").ids[2]
    assert "its key: 1 of 1 running or next" in page.get(f"/jobs/{job_id}").text
    queue.hold(60, key="k")
    text = page.get(f"/jobs/{job_id}").text
    assert "the end of a hold of its key" in text
    assert "its key is held until" in text
    listed = page.get("/queues/q?state=parked").text
    assert "keys held" in listed
    assert "the end of a hold of its key" in listed
    queue = ps.queue("held")
    queue.enqueue("x")
    queue.hold(60)
    assert "held for" in page.get("/queues/held").text


def test_a_suspended_job(ps: Penstock, page: Browser) -> None:
    """Its timeline has its steps, and until when it sleeps or waits for a signal."""
    handlers, queue = Handlers(queue="q"), ps.queue("q")

    @handlers.handler
    def order(steps: Steps) -> None:
        steps.run("reserve <stock>", str, "blue")
        steps.wait("approval", timeout=3600)
        steps.sleep("a day", 86400)

    job_id = order.enqueue(queue).id
    Worker(ps, handlers=handlers, burst=True).run()
    found = page.get(f"/jobs/{job_id}")
    for text in ("step reserve <stock>", "signal approval", "waits for signal approval until"):
        assert text in found.text
    assert "<stock>" not in found.html
    queue.signal(job_id, "approval")
    Worker(ps, handlers=handlers, burst=True).run()
    text = page.get(f"/jobs/{job_id}").text
    assert "the end of a sleep" in text
    places = [text.index(part) for part in ("step reserve", "signal approval", "sleep a day")]
    assert places == sorted(places)
    assert "sleeps until" in text


def test_an_overview_of_nothing(page: Browser) -> None:
    """A server without queues has an overview, too."""
    assert "There are no queues yet" in page.get("/").text


@pytest.mark.parametrize(
    "state, expected",
    [
        ("ready", ["ada3", "ada4"]),
        ("scheduled", ["in 16.", "report"]),
        ("active", ["ada2"]),
        ("dead", ["ValueError: no address", "KeyError: 'to'"]),
    ],
)
def test_a_queue_lists_the_jobs_of_a_state(
    ps: Penstock, page: Browser, state: str, expected: list[str]
) -> None:
    """Each state has its own list."""
    filled(ps)
    found = page.get(f"/queues/emails?state={state}")
    assert found.status == 200
    for text in expected:
        assert text in found.text
    assert found.html.count('class="id" href="/jobs/') == {"scheduled": 3, "active": 1}.get(
        state, 2
    )


def test_jobs_are_filtered(ps: Penstock, page: Browser) -> None:
    """Handler and error narrow the list."""
    filled(ps)
    listed = page.get("/queues/emails?state=dead&error=address").text.partition("Dead jobs")[2]
    assert "ValueError: no address" in listed
    assert "KeyError" not in listed
    assert "1 job among the 2 looked at" in page.get("/queues/emails?state=dead&error=key").text
    assert "No dead job matches" in page.get("/queues/emails?state=dead&handler=report").text
    assert "3 jobs" in page.get("/queues/emails?state=scheduled&handler=report").text


def test_a_long_search_goes_on(
    ps: Penstock, page: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The open page asks for the next part by itself; each has the new jobs, and how far it is."""
    monkeypatch.setattr(pages, "FIRST_SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(pages, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(pages, "JOBS_PER_SEARCH_STEP", 10)
    q = ps.queue("emails")
    q.enqueue_many(range(45), headers={"handler": "other"})
    wanted = [q.enqueue(number, headers={"handler": "report"}).id for number in range(3)]
    found = page.get("/queues/emails?state=ready&handler=report")
    assert "Searching: 0 jobs among the 10 of 48 looked at" in found.text
    ids, parts, following = list[str](), 0, found
    while True:
        ids += re.findall(r'class="id" href="/jobs/([^"]+)"', following.html)
        [search] = [given for _, given in following.reader.tags if given.get("id") == "search"]
        if "hx-get" not in search:
            break
        assert search["hx-select-oob"] == "#found:beforeend,#paging"
        parts += 1
        following = page.get(str(search["hx-get"]), headers={"hx-request": "true"})
    assert (ids, parts) == (wanted, 4)
    assert "3 jobs among the 48 looked at" in following.text
    assert "Continue" not in following.text


def test_a_search_has_a_bound(ps: Penstock, page: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many jobs it waits for its user, who may go on."""
    monkeypatch.setattr(pages, "FIRST_SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(pages, "SEARCH_SECONDS", 0.0)
    monkeypatch.setattr(pages, "JOBS_PER_SEARCH_STEP", 10)
    monkeypatch.setattr(pages, "MAX_SEARCHED_JOBS", 20)
    ps.queue("emails").enqueue_many(range(45))
    path = "/queues/emails?state=ready&handler=report"
    first = page.get(path)
    assert "hx-get" in first.html.partition('id="search"')[2]
    [search] = [given for _, given in first.reader.tags if given.get("id") == "search"]
    bound = page.get(str(search["hx-get"]), headers={"hx-request": "true"})
    assert "No ready job matches among the" in bound.text
    assert "hx-get" not in bound.html
    assert "Continue the search" in bound.text


def test_a_queue_counts_staged_rows(ps: Penstock, page: Browser) -> None:
    """Rows of staged writes have figures of their own while there are any."""
    q = ps.queue("q")
    q.enqueue("x")
    ps.queue("other").enqueue("x")
    at, chunk = Staged("node", "0a", 7), staged_chunk(0, [b"1;d=a\nx", b"1;d=b\nx"])
    for one in (at, at._replace(batch=8)):
        ps.topology.executor.run(
            about_staged(q.ops, "stage", one, one.batch, "one:0", 60_000, chunk)
        )
    ps.topology.executor.run(about_staged(q.ops, "commit", at, at.batch, 60_000, 1, "one", 1))
    assert "staged rows 2 promised rows 1" in page.get("/queues/q").text
    assert "staged" not in page.get("/queues/other").text


def test_a_queue_counts_jobs_that_wait_for_others(ps: Penstock, page: Browser) -> None:
    """The callback of a batch is scheduled, and has a figure of its own while it waits."""
    ps.queue("other").enqueue("x")
    with ps.queue("q").batch(then="callback"):
        assert "waiting for other jobs 1" in page.get("/queues/q").text
    assert "wait for" not in page.get("/queues/other").text


def test_pages_of_a_long_queue(ps: Penstock, page: Browser) -> None:
    """Following the links shows each job once."""
    ids = set(ps.queue("emails").enqueue_many(range(120)).ids)
    found, path = list[str](), "/queues/emails?state=ready"
    while path:
        html = page.get(path).html
        found += re.findall(r'href="/jobs/([^"]+)"', html)
        following = re.search(r'rel="next" href="([^"]+)"', html)
        path = following.group(1).replace("&amp;", "&") if following else ""
    assert len(found) == 120
    assert set(found) == ids


def test_a_job(ps: Penstock, page: Browser) -> None:
    """Its page has the body, the headers, the times and the failures."""
    q = ps.queue("emails")
    q.enqueue({"to": "ada"}, headers={"handler": "welcome", "trace": "abc"}, dedup_id="one")
    [job] = q.reserve(block=0)
    job.nack(error="ValueError: first", trace="Traceback:\n  line 7\nValueError", delay=0)
    [job] = q.reserve(block=0)
    job.bury("KeyError: second")
    found = page.get(f"/jobs/{job.id}")
    assert found.status == 200
    for text in ("welcome", "one", '"to": "ada"', "ValueError: first", "line 7", "abc", "died"):
        assert text in found.text
    assert "KeyError: second" in page.get(f"/jobs?id={job.id}").text


def test_a_job_in_words(ps: Penstock, page: Browser) -> None:
    """Its failure stands before its death, and its policy and progress are words."""
    q = ps.queue("emails")
    q.enqueue("x", retry=RetryPolicy(max_attempts=2, base=1, cap=90))
    for attempt in (1, 2):
        [job] = q.reserve(block=0)
        if attempt == 1:
            job.progress(2, 1000)
            assert job.send_progress()
            assert "attempts 1 worker" in page.get(f"/jobs/{job.id}").text
        job.nack(error="KeyError: 1", delay=0)
    text = page.get(f"/jobs/{job.id}").text
    assert "attempts 2 last worker" in text
    assert "last progress 2 of 1000 (0%) (" in text
    assert "retry policy 2 attempts, backoff from 1 s, up to 90 s" in text
    assert text.rindex("failed", 0, text.index("Why it is dead")) < text.index("died")


def test_a_death_and_the_job_after_it_link_each_other(ps: Penstock, page: Browser) -> None:
    """The dead letter names the job that its death has added, and that one names it."""
    q = ps.queue("emails")
    added = q.enqueue("a", on_dead="tell")
    q.bury(q.reserve(), "no")
    view = q.show(added.id)
    assert view is not None
    told = view.follow_up
    dead = page.get(f"/jobs/{added.id}").text
    assert "on death a job of tell" in dead
    assert f"added after its death {told}" in dead
    assert f"added after the death of {added.id}" in page.get(f"/jobs/{told}").text


def test_dropped_dead_letters(ps: Penstock, page: Browser) -> None:
    """The page of a queue counts them."""
    q = ps.queue("emails")
    q.configure(dead_max=1)
    q.enqueue_many(range(3))
    q.bury(q.reserve(3, block=0), "no")
    q.sweep()
    ps.queue("other").enqueue(1)
    assert "dropped" not in page.get("/queues/other").text
    assert "dead letters dropped 2" in page.get("/queues/emails").text


def test_what_is_wrong_comes_first(ps: Penstock, raw: Raw, page: Browser, open_page: Open) -> None:
    """The overview begins with it: what, in which queue, and the command that mends it."""
    q = ps.queue("emails")
    q.enqueue_many(range(3))
    assert "Nothing is wrong now." in page.get("/").text
    advance(raw, q.ops, 1380)
    ps.queue("reports").enqueue(1)
    ps.queue("reports").reserve(block=0)[0].bury("no")
    found = open_page().get("/")
    assert "Nothing is wrong" not in found.text
    assert (
        "Wrong now emails : no worker: 3 jobs could be delivered, the first one for 23"
        in found.text
    )
    assert "penstock worker MODULE:NAME --queues emails" in found.text
    assert "reports : 1 dead letter, the last one just now penstock errors reports" in found.text
    links = {href for href, _ in found.reader.links}
    assert {"/queues/reports?state=dead", "/workers", "/queues/emails"} <= links
    assert found.text.index("Wrong now") < found.text.index("added / s")
    assert "emails" not in open_page().get("/?q=reports").text


def test_a_kept_result(ps: Penstock, page: Browser) -> None:
    """A job whose result is kept shows it."""
    added = ps.queue("emails").enqueue(echo.job({"sent": 7}), result_ttl=60)
    Worker(ps, "emails", handlers, burst=True).run()
    found = page.get(f"/jobs/{added.id}")
    assert "done" in found.text
    assert '"sent": 7' in found.text
    assert "attempts 1 Timeline" in found.text  # lease and counters are not kept


def test_the_log_of_a_job(ps: Penstock, page: Browser, open_page: Open) -> None:
    """Its lines have their times, and none is HTML; with hide_bodies there are none."""
    q = ps.queue("emails")
    q.enqueue("x")
    [job] = q.reserve(block=0)
    assert "Log" not in page.get(f"/jobs/{job.id}").text
    job.log("<b>3</b> rows\nof 7")
    job.send_progress()
    assert "Log <b>3</b> rows " in page.get(f"/jobs/{job.id}").text
    assert "Log" not in open_page(hide_bodies=True).get(f"/jobs/{job.id}").text


def test_bodies_are_hidden(ps: Penstock, open_page: Open) -> None:
    """With hide_bodies no page has a body or a result."""
    q = ps.queue("emails")
    added = q.enqueue(echo.job({"to": "secret"}), result_ttl=60)
    page = open_page(hide_bodies=True)
    for path in ("/queues/emails?state=ready", f"/jobs/{added.id}"):
        assert "secret" not in page.get(path).html
    Worker(ps, "emails", handlers, burst=True).run()
    assert "secret" not in page.get(f"/jobs/{added.id}").html


def test_schedules_and_nodes(ps: Penstock, page: Browser) -> None:
    """They have pages of their own."""
    assert "There are no schedules" in page.get("/schedules").text
    ps.queue("emails").schedules.add("hourly", every="1h", job={"x": 1})
    ps.queue("emails").enqueue(1)
    found = page.get("/nodes")
    assert ps.hello().node[:8] in found.text
    assert "up" in found.text


def test_a_schedule_is_listed(ps: Penstock, page: Browser) -> None:
    """Its ticks and its last job are shown."""
    q = ps.queue("emails")
    q.schedules.add("hourly", every="1h", job={"x": 1})
    q.schedules.run("hourly")
    found = page.get("/schedules")
    assert "hourly emails every 1h" in found.text
    assert "ready" in found.text


@pytest.mark.parametrize(
    "path, status",
    [
        ("/queues/none", 404),
        ("/jobs/none", 404),
        ("/nothing", 404),
        ("/workers", 200),
        ("/queues/emails?state=lost", 400),
        ("/queues/emails?cursor=yesterday", 400),
        ("/runs/none", 404),
        ("/?start=-1&sort=x", 200),
    ],
)
def test_bad_addresses(ps: Penstock, page: Browser, path: str, status: int) -> None:
    """They are answered with a page."""
    ps.queue("emails").enqueue(1)
    assert page.get(path).status == status


def test_a_job_that_is_gone(ps: Penstock, page: Browser) -> None:
    """Its page says so."""
    q = ps.queue("emails")
    added = q.enqueue(1)
    q.delete([added.id])
    found = page.get(f"/jobs/{added.id}")
    assert (found.status, "is gone" in found.text) == (404, True)


@pytest.mark.parametrize("name", [HOSTILE, "a/b", "..", ".", "ä ö?&#+", "a//b/", "x" * 1024])
def test_names_of_queues(ps: Penstock, page: Browser, name: str) -> None:
    """A queue of any name has a page, which the overview links to."""
    ps.queue(name).enqueue(1, headers={"handler": "welcome"})
    overview = page.get("/")
    [link] = {
        href for href, _ in overview.reader.links if "/queues/" in href and "state=" not in href
    }
    found = page.get(link)
    assert found.status == 200
    assert "welcome" in found.text


def test_hostile_data_stays_text(ps: Penstock, page: Browser) -> None:
    """Markup in names, bodies, headers, errors and traces is shown, not obeyed."""
    q = ps.queue(HOSTILE)
    for _ in range(2):
        q.enqueue({HOSTILE: HOSTILE}, headers={"handler": HOSTILE, HOSTILE: HOSTILE})
    [job, other] = q.reserve(2, block=0)
    job.nack(error=HOSTILE, trace=f"{HOSTILE}\n{HOSTILE}", delay=1000)
    other.bury(HOSTILE)
    name = quote(HOSTILE)
    paths = ["/", f"/?q={name}", f"/queues/?name={name}&state=dead", f"/jobs/{other.id}"]
    paths += [f"/jobs/{job.id}", f"/queues/?name={name}&state=dead&error={name}&handler={name}"]
    for path in (*paths, f"/queues/{name}{name}", f"/queues/?name={name}"):
        found = page.get(path)
        scripts = [given["src"] for tag, given in found.reader.tags if tag == "script"]
        assert scripts
        assert all(str(source).startswith("/static/") for source in scripts)
        assert "img" not in {tag for tag, _ in found.reader.tags}
        assert not [at for _, given in found.reader.tags for at in given if at.startswith("on")]
        assert not {"\x1b", "\u202e"} & set(found.text)
        assert "alert(" in found.text


def test_expired_jobs_are_counted(ps: Penstock, raw: Raw, page: Browser) -> None:
    """The page of a queue shows those that are still there, and the total, which never falls."""
    q = ps.queue("emails")
    q.enqueue_many(["milk", "eggs"], ttl=5)
    advance(raw, q.ops, 6)
    assert (q.stats().unswept, q.stats().expired) == (2, 0)
    q.sweep()
    q.enqueue("milk", ttl=5)
    advance(raw, q.ops, 6)
    assert (q.stats().unswept, q.stats().expired) == (1, 2)
    text = page.get("/queues/emails").text
    assert "expired 2" in text
    assert "unswept 1" in text


def test_looking_writes_nothing(ps: Penstock, raw: Raw, page: Browser) -> None:
    """No page changes a key, and expired jobs stay."""
    q = filled(ps)
    q.enqueue("milk", ttl=0.01)
    q.schedules.add("hourly", every="1h", job=1)
    q.enqueue_many(range(10), dedup_id=str)
    ps.queue("parts", partitions=4).enqueue_many(range(10))
    before = dump(raw)
    [dead, *_] = q.jobs("dead").page().ids
    paths = ["/", "/schedules", "/nodes", "/runs", f"/jobs/{dead}"]
    paths += [f"/queues/emails?state={one}" for one in ("ready", "scheduled", "active", "dead")]
    for path in (*paths, "/queues/emails?state=dead&error=x", "/queues/parts", "/workers"):
        assert page.get(path).status == 200, path
    assert dump(raw) == before


def test_a_user_that_may_only_read(ps: Penstock, raw: Raw, open_page: Open) -> None:
    """Reading commands are enough for every page."""
    q = filled(ps)
    [dead, *_] = q.jobs("dead").page().ids
    rights = ["+@read", "+@connection", "+evalsha", "+script|load", "+info", "+time"]
    raw.execute_command(
        "ACL", "SETUSER", "viewer", "on", ">secret", "~penstock:*", "-@all", *rights
    )
    try:
        made = raw.connection_pool.connection_kwargs
        url = f"unix://viewer@{made['path']}?db={made.get('db', 0)}&password=secret"
        page = open_page(url=url)
        for path in ("/", "/queues/emails?state=dead", f"/jobs/{dead}", "/schedules", "/nodes"):
            assert page.get(path).status == 200, path
        raw.delete(q.ops.keys["meta"])  # which only a user that may write restores
        ps.queue("others").enqueue(1)
        found = open_page(url=url).get("/")
        assert found.status == 200
        assert "others" in found.text
        assert not raw.exists(q.ops.keys["meta"])
    finally:
        raw.execute_command("ACL", "DELUSER", "viewer")


def test_a_server_that_does_not_answer(open_page: Open) -> None:
    """The page says so, without the password of the URL."""
    page = open_page(url="redis://:hunter2@127.0.0.1:1/0?socket_connect_timeout=1")
    found = page.get("/")
    assert found.status == 503
    assert "hunter2" not in found.html
    assert "does not answer" in found.text


def test_batches(ps: Penstock, open_page: Open) -> None:
    """The page lists the batches with their progress."""
    assert "There are no batches" in open_page().get("/batches").text
    q = ps.queue("emails")
    with q.batch(then="summary") as batch:
        batch.enqueue_many(range(4))
    [job] = q.reserve(block=0)
    job.ack()
    found = open_page().get("/batches")
    assert "emails waiting success 4 1 0 0" in found.text
    assert str(batch.id) in found.text
    *jobs, last = q.reserve(3)
    q.ack(jobs)
    last.bury("broken")
    found = open_page().get("/batches")
    assert "emails waiting for dead letters success 4 3 0 1" in found.text
    assert f"{last.id} dead broken" in found.text
    assert '<progress value="0.75"' in found.html
    q.enqueue("another")
    q.bury(q.reserve(), "other")
    link = re.search(r'href="(/queues/emails[?]state=dead[^"]+)"', found.html)
    assert link is not None
    dead = open_page().get(unescape(link[1]))
    assert f"Only jobs of the batch {batch.id}" in dead.text
    assert last.id in dead.html
    assert dead.html.count('class="id" href="/jobs/') == 2  # of the batch, and of the job
    assert open_page().get("/queues/emails?state=dead&batch=x").status == 400


def test_workers(ps: Penstock, raw: Raw, page: Browser) -> None:
    """The page lists the workers that run, with the jobs that they hold."""
    assert "No worker is running" in page.get("/workers").text
    filled(ps)
    text = worker_entry(
        name=ps.owner,
        kind="Worker",
        host="host",
        version="1.2",
        queues=["emails", HOSTILE],
        concurrency=8,
        since_ms=1000,
        seen_ms=2000,
    )
    raw.set(worker_key("penstock", "0" * 16), text)
    raw.zadd(workers_key("penstock"), {"0" * 16: 5})
    found = page.get("/workers")
    assert f"{ps.owner}" in found.text
    assert "1 of 8" in found.text
    assert "welcome" in found.text
    assert "<script>alert" not in found.html


def test_the_files_of_the_page(page: Browser) -> None:
    """Each has the media type that browsers ask for; nothing else of the machine is served.

    A browser that has a file already does not get it again.
    """
    for name, kind in (("style.css", "text/css"), ("page.js", "text/javascript")):
        answer = page.get(f"/static/{name}")
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (200, kind)
        tag = answer.headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = page.get(f"/static/{name}", headers={"if-none-match": known})
            assert (again.status, again.html, again.headers["etag"]) == (304, "", tag), known
        changed = page.get(f"/static/{name}", headers={"if-none-match": '"other"'})
        assert (changed.status, changed.html) == (200, answer.html)
    for name in ("nothing.js", "..%2fapp.py", "%2e%2e", "%00"):
        assert page.get(f"/static/{name}").status == 404, name


def test_entries_of_other_kinds(
    page: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory among the static files is left out; an unknown ending is that of any bytes."""
    (tmp_path / "static" / "__pycache__").mkdir(parents=True)
    (tmp_path / "static" / "font.woff2").write_bytes(b"font")
    monkeypatch.setattr(files, "PACKAGE", tmp_path)
    files.static_files.cache_clear()
    try:
        answer = page.get("/static/font.woff2")
        assert (answer.html, answer.headers["content-type"]) == ("font", "application/octet-stream")
        assert [*files.static_files()] == ["font.woff2"]
    finally:
        files.static_files.cache_clear()


@pytest.mark.slow
def test_a_package_in_an_archive(tmp_path: Path) -> None:
    """The page is made of files in a zip archive as well, and so are the test vectors."""
    root = Path(penstock.__file__).parent
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in root.rglob("*"):
            if file.is_file() and file.suffix not in (".pyc", ".bz2"):
                packed.write(file, Path("penstock") / file.relative_to(root))
        packed.writestr("penstock/vectors.json.bz2", bz2.compress(b'{"a.json": "{}"}'))
    program = """
from starlette.testclient import TestClient
import penstock
from penstock.cli.protocol import vectors
from penstock.web import app
http = TestClient(app("redis://127.0.0.1:1"), "http://localhost", client=("127.0.0.1", 1))
told = [http.get(path).status_code for path in ("/static/style.css", "/nothing")]
print(told, vectors(), ".zip" in penstock.__file__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(archive)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "[200, 404] {'a.json': '{}'} True\n", done.stderr


def test_the_history_of_a_queue(ps: Penstock, raw: Raw, page: Browser) -> None:
    """Charts with numbers on their axes, and the times of handlers; none before there is any."""
    q = ps.queue("emails")
    q.enqueue(1)
    assert not [tag for tag, given in page.get("/queues/emails").reader.tags if tag == "figure"]
    for i in range(3):
        note = TimesNote()
        note.runs += [("<resize>", 0.02, [0.2]), (None, 0.02, [2.0])]
        times = note.take()
        ask_all(q, lambda part, times=times: part.executor.run(part.ops.measure(times)))
        advance(raw, q.ops, 600)
        q.enqueue_many(range(30 * i))
    found = page.get("/queues/emails")
    svgs = [given for tag, given in found.reader.tags if tag == "svg"]
    drawings = [given for given in svgs if given.get("class") == "chart"]
    assert len(drawings) == 4
    assert "Jobs per minute, last 2 hours: added 30 at the end" in str(drawings[0]["aria-label"])
    assert found.text.count("-24 h") == 2
    assert "<resize> 3" in found.text
    assert "(default) 3" in found.text
