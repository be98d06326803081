# From tests/_async/test_surface.py by tools/unasync.py; do not edit.
"""The public objects as shown at a Python prompt."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from penstock import Job, Middleware, Penstock, Queue, Worker

URL = "redis://ada:secret@localhost:6390/0"


def test_a_client_shows_its_nodes_and_no_password() -> None:
    """The repr of a client has its nodes, no password, and a prefix other than the default."""
    one = Penstock(URL)
    assert repr(one) == "<Penstock at localhost:6390>"
    several = Penstock([URL, "redis://localhost:6391/2"], prefix="shop")
    assert repr(several) == "<Penstock at localhost:6390, localhost:6391/2 prefix 'shop'>"


def test_a_client_of_several_nodes_shows_which_are_down() -> None:
    """The repr of a federation marks nodes that did not answer."""
    ps = Penstock([URL, "redis://localhost:6391"])
    ps.topology.current.nodes[0].state.failed(0, OSError("refused"))  # type: ignore[union-attr]  # a federation
    assert repr(ps) == "<Penstock at localhost:6390 (down), localhost:6391>"


def test_a_queue_shows_its_name_its_partitions_and_its_nodes() -> None:
    """The repr of a queue has its public class, name, partitions and nodes."""
    ps = Penstock(URL)
    assert repr(ps.queue("mail")) == "<Queue 'mail' at localhost:6390>"
    parted = ps.queue("mail", partitions=4)
    assert repr(parted) == "<Queue 'mail' in 4 partitions at localhost:6390>"
    several = Penstock([URL, "redis://localhost:6391"]).queue("mail")
    assert repr(several) == "<Queue 'mail' at localhost:6390, localhost:6391>"


def test_the_objects_of_a_queue_show_it() -> None:
    """The repr of schedules, batches and jobs names their queue."""
    q = Penstock(URL).queue("mail")
    assert repr(q.schedules) == "<QueueSchedules of 'mail'>"
    assert repr(q.batches) == "<QueueBatches of 'mail'>"
    assert repr(q.jobs(["dead", "active"])) == "<JobSearch of dead, active jobs in 'mail'>"


def test_a_job_and_a_view_show_their_state(q: Queue) -> None:
    """The repr of a job or view has id, state, queue attempts; that of a view the error, too."""
    done = q.enqueue("x")
    [job] = q.reserve(block=0)
    assert repr(job) == f"<Job {done.id} held in 'q', attempt 1>"
    view = q.show(job)
    assert repr(view) == f"<JobView {done.id} active in 'q', attempts 1>"
    job.nack(delay=60, error="no room")
    assert repr(job) == f"<Job {done.id} settled in 'q', attempt 1>"
    view = q.show(job)
    assert repr(view) == f"<JobView {done.id} scheduled in 'q', attempts 1: no room>"


def test_a_role_shows_whether_it_is_held(q: Queue) -> None:
    """The repr of a role says if it is not taken, held or lost."""
    role = q.exclusive("consumer")
    assert repr(role) == "<Role consumer of 'q': not held>"
    with role:
        assert repr(role) == "<Role consumer of 'q': held>"
    assert repr(role) == "<Role consumer of 'q': lost>"


def test_a_worker_shows_its_name_its_queues_and_its_state(ps: Penstock) -> None:
    """The repr of a worker has name, queues and state, while it runs and afterwards."""
    worker = Worker(ps, ["mail", "low"], print, name="w1")
    assert repr(worker) == "<Worker 'w1' of 'mail', 'low': new>"
    with worker:
        assert repr(worker) == "<Worker 'w1' of 'mail', 'low': running>"
    assert repr(worker) == "<Worker 'w1' of 'mail', 'low': stopped>"


@pytest.mark.parametrize("value", ["both", None, 1, ["in"]])
def test_an_unknown_choice_is_refused(q: Queue, value: str) -> None:
    """An unknown choice is refused before anything is sent; the error has argument and choices."""
    with pytest.raises(ValueError, match=r"^side=.*: must be one of in, out, all$"):
        q.pause(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^role=.*: must be one of producer, consumer$"):
        q.exclusive(value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^state=.*: must be one of ready, scheduled, "):
        q.peek(state=value)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^on_unknown=.*: must be one of raise, next$"):
        Penstock(URL, on_unknown=value)  # type: ignore[arg-type]
    assert not q.stats().exists


ENQUEUE = (
    "self body delay at lease ttl headers max_length block replicas durable dedup_id dedup"
    " retry key result_ttl priority on_dead"
)
QUEUE = (
    "ack ack_and_reserve batch batches bury cancel chains clear close configure consume"
    " dedup_status delete enqueue enqueue_many exclusive extend handler handlers history hold"
    " job_type jobs log nack name ops partitions pause peek postpone promote purge recover redrive"
    " release reopen reserve result resume schedules show signal stats sweep watch"
)


def test_a_queue_has_few_methods() -> None:
    """A queue has only methods for callers, and two attributes for the rest of the package."""
    names = [name for name in dir(Queue) if not name.startswith("_")]
    assert [name for name in names if hasattr(Queue, name)] == QUEUE.split()


@pytest.mark.parametrize("options", [{}, {"partitions": 2}], ids=str)
@pytest.mark.parametrize("middleware", [[], [Middleware()]], ids=["", "middleware"])
def test_a_type_error_names_the_public_class(
    middleware: list[Middleware], options: dict[str, int]
) -> None:
    """Also for a queue in partitions, and with middleware: their classes are internal."""
    q: Any = Penstock(URL, middleware=middleware).queue("q", **options)
    for call in (q.postpone, q.extend, q.enqueue, q.show):
        with pytest.raises(TypeError, match=rf"^Queue\.{call.__name__}\(\) missing 1 "):
            call()
    for call in (q.schedules.run, q.schedules.add, q.batches.close, q.batches.open):
        name = f"{type(call.__self__).__name__}.{call.__name__}"
        with pytest.raises(TypeError, match=rf"^{name}\(\) missing 1 "):
            call()
    with pytest.raises(TypeError, match=r"^JobSearch\.page\(\) got an unexpected "):
        q.jobs().page(nothing=1)
    for call in (q.jobs, q.configure, q.stats, q.reserve):
        with pytest.raises(TypeError, match=rf"^Queue\.{call.__name__}\(\) "):
            call(nothing=1, more=2)
    with pytest.raises(TypeError, match=r"^Queue\.handler\(\) takes"):
        q.handler("one", "two")


@pytest.mark.parametrize(
    "name, call",
    [
        ("delay", "queue.enqueue(body, delay=seconds)"),
        ("send", "queue.enqueue(body)"),
        ("enqueue_in", "queue.enqueue(body, delay=seconds)"),
        ("enqueue_at", "queue.enqueue(body, at=when)"),
    ],
)
def test_a_call_of_another_library_is_answered(name: str, call: str) -> None:
    """The AttributeError names the right call; `hasattr` is false as for any missing attribute."""
    q = Penstock(URL).queue("q")
    assert not hasattr(q, name)
    with pytest.raises(AttributeError) as caught:
        getattr(q, name)
    assert str(caught.value) == f"queue has no {name}(): use {call}"


@pytest.mark.parametrize(
    "call, wanted",
    [
        (Queue.enqueue, ENQUEUE),
        (Queue.ack, "self jobs dedup_window replicas durable"),
        (Job.ack, "self dedup_window replicas durable"),
    ],
)
def test_options_that_belong_together_are_one(call: Callable[..., Any], wanted: str) -> None:
    """An enqueue has 16 options, two short forms and the body."""
    assert list(inspect.signature(call).parameters) == wanted.split()


def test_a_client_has_few_members() -> None:
    """Internal attributes for the worker, Spark and the command line are in `topology`."""
    names = {name for name in dir(Penstock("redis://localhost")) if not name.startswith("_")}
    assert names == set(
        "ack clear clear_all close connect hello info jobs middleware nodes open owner"  # noqa: SIM905
        " find_problems prefix queue queues reserve result scan_queues scan_queues_iter show sweep"
        " topology workers".split()
    )
