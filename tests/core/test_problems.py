"""What is wrong now: the rules, one by one."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import pytest

from penstock.core.enqueuing.batches import BatchState, BatchStatus
from penstock.core.enqueuing.schedules import ScheduleView
from penstock.core.jobs.queue_stats import QueueStats, Settings
from penstock.core.jobs.workers import WorkerView
from penstock.core.nodes.node_views import NodeView, PrimaryView
from penstock.core.nodes.problems import ProblemBounds, find_problems

NOW = 1_800_000_000.0
BOUNDS = ProblemBounds(300, 0)


def stats(name: str = "q", **figures: Any) -> QueueStats:
    """Return the figures of a queue; those not given are 0."""
    needed = {one.name: 0 for one in fields(QueueStats) if one.default is MISSING}
    needed.pop("nodes")
    told: dict[str, Any] = {**needed, "oldest": None, "settings": Settings(), "name": name}
    return QueueStats(**{**told, **figures})


def worker(*queues: str) -> WorkerView:
    """Return a worker of these queues."""
    return WorkerView("0" * 16, "w", "Worker", "h", 1, "1", queues, 8, NOW, NOW)


def schedule(**more: Any) -> ScheduleView:
    """Return a schedule that is due in a minute."""
    told: dict[str, Any] = {
        "name": "hourly", "spec": "every 1h", "cron": None, "tz": None, "every": 3600.0,
        "overlap": False, "missed": "one", "next": NOW + 60, "last": None, "last_run": None,
        "last_state": None, "runs": 0, "skipped": 0, "paused": False,
    }  # fmt: skip
    return ScheduleView(**{**told, **more})


def found(
    *queues: QueueStats,
    workers: tuple[WorkerView, ...] = (),
    nodes: tuple[NodeView, ...] = (),
    schedules: dict[str, list[ScheduleView]] | None = None,
    batches: dict[str, list[BatchStatus]] | None = None,
    bounds: ProblemBounds = BOUNDS,
) -> list[tuple[str, str | None, str]]:
    """Return kind, queue and text of the problems."""
    problems = find_problems(queues, workers, nodes, schedules or {}, batches or {}, bounds, NOW)
    assert all(one.remedy.startswith("penstock ") for one in problems)
    return [(one.kind, one.queue, one.text) for one in problems]


FULL = Settings(max_length=5)
UNTAKEN = "no worker: 8,000 jobs could be delivered, the first one for 23.0 min"
FULL_TEXT = "full: 5 jobs wait, the limit is 5"
SLOTS_TEXT = "7 jobs wait for a slot, the first one for 6.7 min: 5 of 5 run (max_active)"
HELD_TEXT = "7 jobs wait, the first one for 6.7 min: the queue is held for 30 s"
PAUSED_TEXT = "deliveries are paused, and 1 job could be delivered"
OWN_TEXT = "no worker: 2 jobs could be delivered, the first one for 61 s"
QUEUES: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, None, ""),
    ({"ready": 9, "oldest": 300.0}, None, ""),
    ({"ready": 8000, "oldest": 1380.0}, "worker", UNTAKEN),
    ({"ready": 7, "oldest": 400.0, "active": 5, "slots": 5}, "wait", SLOTS_TEXT),
    ({"ready": 7, "oldest": 400.0, "held": 30.0}, "wait", HELD_TEXT),
    ({"dead": 1}, "dead", "1 dead letter"),
    ({"dead": 2, "last_death": 59.0}, "dead", "2 dead letters, the last one just now"),
    ({"dead": 2, "last_death": 180.0}, "dead", "2 dead letters, the last one 3.0 min ago"),
    ({"settings": Settings(longest_wait=60), "ready": 2, "oldest": 60.0}, None, ""),
    ({"settings": Settings(longest_wait=60), "ready": 2, "oldest": 61.0}, "worker", OWN_TEXT),
    ({"settings": FULL, "ready": 2, "scheduled": 3, "dependent": 1}, None, ""),
    ({"settings": FULL, "ready": 2, "scheduled": 4, "dependent": 1}, "full", FULL_TEXT),
    ({"settings": Settings(paused="out")}, None, ""),
    ({"settings": Settings(paused="in"), "ready": 1}, None, ""),
    ({"settings": Settings(paused="all"), "ready": 1, "oldest": 999.0}, "paused", PAUSED_TEXT),
]  # fmt: skip


@pytest.mark.parametrize("figures, kind, text", QUEUES)
def test_queues(figures: dict[str, Any], kind: str | None, text: str) -> None:
    """A queue has a problem beyond its bounds, none at them."""
    assert found(stats(**figures)) == ([] if kind is None else [(kind, "q", text)])


def test_a_wait_with_a_worker() -> None:
    """The worker is too slow, or stuck: another problem than no worker."""
    [(kind, _, text)] = found(stats(ready=2, oldest=301.0), workers=(worker("a", "q"),))
    assert (kind, text) == ("wait", "2 jobs could be delivered, the first one for 5.0 min")


def test_a_worker_of_a_misspelled_queue() -> None:
    """Where no worker takes jobs, a worker of a similar queue that is not there is named."""
    waiting = stats(name="emails", ready=2, oldest=301.0)
    text = "no worker: 2 jobs could be delivered, the first one for 5.0 min"
    told = f"{text}; workers take those of 'emials'"
    lost = (worker("a", "emials"), worker("b", "reports"))
    assert found(waiting, workers=lost) == [("worker", "emails", told)]
    known = (waiting, stats(name="emials"))
    assert found(*known, workers=lost) == [("worker", "emails", text)]


def test_bounds() -> None:
    """Both can be chosen."""
    queue = stats(ready=2, oldest=31.0, dead=10)
    assert found(queue, bounds=ProblemBounds(31, 10)) == []
    assert [kind for kind, *_ in found(queue, bounds=ProblemBounds(30, 9))] == ["worker", "dead"]


def test_old_deaths() -> None:
    """Dead letters of which the last one died before a time can be left out."""
    queue, recent = stats(dead=9, last_death=3600.5), BOUNDS._replace(dead_since=3600)
    assert found(queue, bounds=recent) == []
    assert [kind for kind, *_ in found(queue, bounds=recent._replace(dead_since=3601))] == ["dead"]


def test_a_setting_wins() -> None:
    """The bound of a queue is for its waits and its schedules, shorter or longer than the usual."""
    patient = stats(ready=2, oldest=900.0, settings=Settings(longest_wait=1000))
    assert found(patient, schedules={"q": [schedule(next=NOW - 999)]}) == []
    strict = stats(settings=Settings(longest_wait=1))
    assert [kind for kind, *_ in found(strict, schedules={"q": [schedule(next=NOW - 2)]})] == [
        "schedule"
    ]


def test_batches() -> None:
    """One that waits for dead letters only, or whose callback is one, can't end by itself."""

    def of(state: BatchState, done: int, dead: int) -> list[tuple[str, str | None, str]]:
        batch = BatchStatus("b-1", state, "success", total=3, done=done, failed=0, dead=dead)
        return found(stats(), batches={"q": [batch]})

    assert of("open", 1, 2) == of("waiting", 1, 1) == of("called", 3, 0) == []
    text = "batch b-1 waits only for 2 dead letters"
    assert of("waiting", 1, 2) == [("batch", "q", text)]
    text = "batch b-1 has failed: its callback is a dead letter"
    assert of("failed", 1, 1) == [("batch", "q", text)]
    text = "batch b-1 was not closed: its callback is a dead letter"
    assert of("abandoned", 3, 0) == [("batch", "q", text)]


def test_missing_handlers() -> None:
    """One problem for each handler that workers do not have; other queues have none."""
    lacking = [
        replace(worker("q"), name=name, unknown={"q": names, "other": ("x",)})
        for name, names in (("a", ("new", "")), ("b", ("new",)))
    ]
    new = "jobs of handler 'new' are given back by a and 1 more: no such handler"
    nameless = "jobs without a handler's name are given back by a: no such handler"
    assert found(stats(), workers=(*lacking, worker("q"))) == [
        ("handler", "q", new),
        ("handler", "q", nameless),
    ]


def test_schedules() -> None:
    """A tick is late or waits for code, or the last job is dead; a paused one has no tick."""

    def of(**more: Any) -> list[tuple[str, str | None, str]]:
        return found(stats(), schedules={"q": [schedule(**more)]})

    assert of() == of(next=None, paused=True) == of(next=NOW - 300) == []
    text = "schedule 'hourly' is 301 s late: no worker of the queue runs"
    assert of(next=NOW - 301) == [("schedule", "q", text.replace("301 s", "5.0 min"))]
    text = "the last job of schedule 'hourly' is dead"
    assert of(last_state="dead") == [("schedule", "q", text)]
    failed = of(last_state="scheduled", last_failures=3, last_error="Timeout: 5 s\nmore")
    text = "the last job of schedule 'hourly' has failed 3 times: Timeout: 5 s"
    assert failed == [("schedule", "q", text)]
    assert of(last_state="scheduled", last_failures=1, last_error="Timeout") == []
    text = "schedule 'hourly' waits: app 'shop' runs without its handler"
    orphaned = of(next=None, orphaned=True, app="shop", last_state="dead")
    assert orphaned == [("schedule", "q", text)]


def test_nodes() -> None:
    """A node is down or nearly full; of a cluster each primary by itself."""
    assert found(nodes=(NodeView("a", "a:1", 1, 75, 100), NodeView("b", "b:1", 1, 9, 0))) == []
    assert found(nodes=(NodeView("a", "a:1", error="refused"),)) == [
        ("node", None, "a:1 does not answer: refused")
    ]
    parts = (
        PrimaryView("p:1", 10, 100),
        PrimaryView("p:2", 76, 100),
        PrimaryView("p:3", error="x"),
    )
    assert found(nodes=(NodeView("a", "a:1", 10, 86, 200, primaries=parts),)) == [
        ("node", None, "p:3 does not answer: x"),
        ("memory", None, "p:2 uses 76 B of its 100 B"),
    ]


def test_the_most_urgent_come_first() -> None:
    """Nodes before queues, and dead letters behind jobs that nobody takes."""
    queues = (stats("b", dead=1), stats("a", dead=2), stats("c", ready=1, oldest=400.0))
    kinds = [
        (kind, queue) for kind, queue, _ in found(*queues, nodes=(NodeView("n", "n", error="x"),))
    ]
    assert kinds == [("node", None), ("worker", "c"), ("dead", "a"), ("dead", "b")]
