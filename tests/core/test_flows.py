"""Flows: the effects that they yield, and their order, for all kinds of answers."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from penstock import (
    BodyTooLarge,
    CannotSync,
    DeliveryNotReplicated,
    NotReplicated,
    OutOfMemory,
    PenstockError,
    QueueClosed,
    QueueDamaged,
    QueueFull,
    QueueInUse,
    QueuePaused,
    RoleLost,
    UnsupportedVersion,
)
from penstock.core import flows
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.calls.refusals import refusal
from penstock.core.flows import (
    POLL_INTERVAL,
    Cancelled,
    EndWait,
    Listen,
    Register,
    ReserveJobs,
    ReserveRequest,
    ReserveRules,
    Rest,
    Run,
    SweepDue,
    Unregister,
    WaitResult,
)
from penstock.core.jobs.job import number_of
from penstock.core.values.confirmations import Confirmed
from penstock.core.values.roles import RoleLease
from penstock.wire import replies
from penstock.wire.keys import QueueKeys
from penstock.wire.replies import PARSERS, Configure, Enqueue

Flow = Generator[flows.Effect, Any, Any]
ADDED = [1, b"1", b"1700000000000-1000000000", 1, b"01020304", 0, 0, 0, 0]
MISSING = [-5, b"1"]
NOTHING = Taken(-1, [])
OVER = Taken(-2, [])


def ops(name: str = "q") -> QueueOps:
    """Return the operations of a queue without a server."""
    return QueueOps(QueueKeys(name), "me", ["00000000"])


def test_replicas_confirm_jobs_that_were_added() -> None:
    """A job that was there before this call was not confirmed by its replicas."""
    number = b"1800000000000-1000000001"
    others = [(2, 2, number, b"ready", b"1;i=a"), (3, 3, number, b"once", b"1")]
    others += [(4, 0, number, b"ready", b"1"), (5, 0, b"", b"window", b"1")]
    reply = replies.Claim([1, b"8", number, 2, b"e0e0e0e0", 0, 0, 0, 1, others])
    found = ops().claimed(reply, [b"1;i=%d\nx" % at for at in range(5)], "ffff", 2)
    assert [(one.action, one.replicas, one.duplicate, one.state) for one in found] == [
        ("added", 2, False, "ready"),
        ("updated", 0, True, "ready"),
        ("requeued", 2, False, "active"),
        ("refused", 0, True, "ready"),
        ("refused", 0, True, "window"),
    ]
    assert [one.stable_id for one in found] == ["0", "1", "2", "", ""]


def is_transient(error: BaseException) -> bool:
    """Tell if an error is a failure of the connection."""
    return isinstance(error, ConnectionError)


class Clock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Driven:
    """A flow that is answered step by step.

    Args:
        flow: not started yet.

    Attributes:
        swept: the sweeps that it asked for; they are answered at once.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.swept: list[SweepDue] = []
        self.effect: Any = self._behind_sweeps(next(flow))

    def _behind_sweeps(self, effect: Any) -> Any:
        """Return the next effect after the sweeps, which are recorded in `swept`."""
        while isinstance(effect, SweepDue):
            self.swept.append(effect)
            effect = self._flow.send(None)
        return effect

    def answer(self, value: Any) -> Any:
        """Answer the last effect and return the next one. A list is a reply of a script."""
        if isinstance(self.effect, Run) and isinstance(value, list):
            if value[0] < 0:
                return self.fail(refusal("q", value, ()))
            value = self.effect.call.parse(value)
        self.effect = self._behind_sweeps(self._flow.send(value))
        return self.effect

    def fail(self, error: BaseException) -> Any:
        """Raise this error from the last effect and return the next one."""
        self.effect = self._behind_sweeps(self._flow.throw(error))
        return self.effect

    def ends_with(self, value: Any) -> Any:
        """Answer the last effect, which must end the flow, and return the flow's result."""
        with pytest.raises(StopIteration) as end:
            self.answer(value)
        return result(end.value.value)


def result(value: Any) -> Any:
    """Return the result of a flow, with replies unparsed."""
    if isinstance(value, tuple) and value and isinstance(value[0], Enqueue):
        assert value[1] == Confirmed()
        return list(value[0])
    if isinstance(value, tuple) and value and isinstance(value[1], Configure):
        return [*value[1][:4]]
    return value


def enqueue(clock: Clock | None = None, **changed: Any) -> Driven:
    """Return an enqueue of one record without options."""
    given: dict[str, Any] = {"block": 0, "in_parts": False, **changed}
    records, source = given.pop("records", [b"1\n"]), ops()
    make = partial(source.enqueue, bound=given.pop("bound", ""))
    return Driven(flows.enqueue(source, records, make, clock=clock or Clock(), **given))


def configure(*fields: Any) -> Flow:
    """Return a flow that stores settings."""
    source = ops()
    return flows.create_and_run(source, partial(source.configure, fields))


def created_with(registered: Register) -> list[Any]:
    """Return the reply to an enqueue that created the queue with the registered epoch."""
    return [*ADDED[:4], registered.epoch.encode(), 1, 0, 0, 0]


def args(effect: Any, script: str) -> tuple[Any, ...]:
    """Return the arguments of a call of that script."""
    assert isinstance(effect, Run)
    assert effect.call.script.name == script
    return effect.call.args


def test_an_enqueue_is_one_call() -> None:
    """If the queue exists and has room, an enqueue is one call."""
    flow = enqueue()
    assert args(flow.effect, "enqueue") == ("", b"0", "", b"0", "", b"1\n")
    assert flow.ends_with(ADDED) == ADDED


def test_a_queue_is_listed_before_its_first_job() -> None:
    """A crash between the steps leaves a listed queue without jobs, never an
    unlisted one with jobs.
    """
    flow = enqueue()
    registered = flow.answer(MISSING)
    assert isinstance(registered, Register)
    assert len(registered.epoch) == 8
    created = flow.answer(None)
    assert args(created, "enqueue")[0] == registered.epoch
    reply = created_with(registered)
    assert flow.answer(reply) == registered
    assert flow.ends_with(None) == reply


def test_a_failure_after_the_job_is_in_is_not_raised() -> None:
    """A failure after the job was added is not raised, as the caller needs the result."""
    flow = enqueue()
    reply = created_with(flow.answer(MISSING))
    flow.answer(None)
    flow.answer(reply)
    with pytest.raises(StopIteration) as end:
        flow.fail(ConnectionError("gone"))
    assert result(end.value.value) == reply


def test_each_life_of_a_queue_has_another_epoch() -> None:
    """Each epoch is different: eight hex digits, not all zero."""
    epochs = {flows.new_epoch() for _ in range(200)}
    assert len(epochs) == 200
    assert {len(epoch) for epoch in epochs} == {8}
    assert "00000000" not in epochs


def test_a_lost_race_leaves_no_entry_in_the_registry() -> None:
    """If another client created the queue, the unused epoch is removed from the registry."""
    flow = enqueue()
    registered = flow.answer(MISSING)
    flow.answer(None)
    assert flow.answer(ADDED) == Unregister(registered.ops, registered.epoch)
    assert flow.ends_with(None) == ADDED
    flow = enqueue(bound=5)
    registered = flow.answer(MISSING)
    flow.answer(None)
    assert flow.answer([-3, b"1", 7, 5, 0]) == Unregister(registered.ops, registered.epoch)
    with pytest.raises(QueueFull):
        flow.answer(None)


@pytest.mark.parametrize("error", [OutOfMemory, BodyTooLarge])
def test_a_server_that_refuses_a_job_leaves_no_entry_in_the_registry(
    error: type[PenstockError],
) -> None:
    """It adds nothing. Of a call that was sent again the first may have made the queue."""
    for resent in (0.0, 5.0):
        flow = enqueue()
        registered = flow.answer(MISSING)
        created = flow.answer(None)
        created.call.resent = resent
        if resent:
            with pytest.raises(error):
                flow.fail(error())
        else:
            assert flow.fail(error()) == Unregister(registered.ops, registered.epoch)
            with pytest.raises(error):
                flow.answer(None)


def test_a_leftover_that_cannot_be_unlisted_does_not_fail_the_call() -> None:
    """A failure to remove the leftover entry is not raised, as the jobs were added."""
    flow = enqueue()
    flow.answer(MISSING)
    flow.answer(None)
    assert isinstance(flow.answer(ADDED), Unregister)
    with pytest.raises(StopIteration) as end:
        flow.fail(ConnectionError("gone"))
    assert result(end.value.value) == ADDED


def test_settings_that_lose_the_race_leave_no_entry() -> None:
    """Settings that lose the race to create a queue leave no entry either."""
    flow = Driven(configure("lease", 5))
    registered = flow.answer(MISSING)
    flow.answer(None)
    reply = [1, b"1", b"01020304", 0]
    assert flow.answer(reply) == Unregister(registered.ops, registered.epoch)
    assert flow.ends_with(None) == reply


def test_a_full_queue_without_waiting() -> None:
    """Without waiting a full queue refuses at once; the error has both figures."""
    flow = enqueue(bound=5)
    with pytest.raises(QueueFull, match="'q' is full: 7 jobs wait, the limit is 5"):
        flow.answer([-3, b"1", 7, 5, 0])


def test_waiting_for_room() -> None:
    """The server notes that a producer waits; it tries again at a token or after a tick."""
    clock = Clock()
    flow = enqueue(clock, bound=5, block=30.0)
    assert args(flow.effect, "enqueue")[3] == b"%d" % (POLL_INTERVAL * 2000)
    waited = flow.answer([-3, b"1", 5, 5, 0])
    assert waited == Listen(waited.queues, clock.now + POLL_INTERVAL, "space")
    assert waited.queues[0].keys["space"] == b"penstock:{q}:space"
    clock.now += 1
    args(flow.answer(WaitResult(waited.queues)), "enqueue")
    waited = flow.answer([-3, b"1", 5, 5, 0])
    assert waited == Listen(waited.queues, clock.now + POLL_INTERVAL, "space")
    args(flow.answer(WaitResult()), "enqueue")
    assert flow.answer(ADDED) == EndWait()
    assert flow.ends_with(WaitResult()) == ADDED


def test_a_token_taken_on_leaving_is_passed_on() -> None:
    """A token taken while leaving is passed on to the next waiting producer."""
    flow = enqueue(bound=5, block=30.0)
    waited = flow.answer([-3, b"1", 5, 5, 0])
    flow.answer(WaitResult())
    flow.answer(ADDED)
    handed = flow.answer(WaitResult(waited.queues))
    assert args(handed, "enqueue")[5:] == ()
    assert flow.ends_with(ADDED) == ADDED


def test_room_that_does_not_appear() -> None:
    """When the time is over the producer tries once more and ends its wait before raising."""
    clock = Clock()
    flow = enqueue(clock, bound=5, block=2.0)
    assert flow.answer([-3, b"1", 5, 5, 0]).until == clock.now + 2
    clock.now += 2
    assert args(flow.answer(WaitResult()), "enqueue")[3] == b"0"
    assert flow.answer([-3, b"1", 5, 5, 0]) == EndWait()
    with pytest.raises(QueueFull):
        flow.answer(WaitResult())


def test_a_bulk_goes_in_as_room_appears() -> None:
    """A bulk adds as many jobs as fit; the reply has their number."""
    flow = enqueue(records=[b"1\na", b"1\nb", b"1\nc"], bound=5, block=None, in_parts=True)
    part = flow.answer([-3, b"1", 3, 5, 0])
    assert args(part, "enqueue")[5:] == (b"1\na", b"1\nb")
    reply = [1, b"1", b"1700000000000-1000000000", 2, b"01020304", 0, 0, 0, 0]
    assert flow.ends_with(reply) == reply


@pytest.mark.parametrize(
    "reply, kind",
    [
        ([-4, b"1", b"in"], QueuePaused),
        ([-6, b"1", b"2"], UnsupportedVersion),
        ([-14, b"1"], QueueClosed),
        ([-15, b"1", b"producer", b"ada", 9], QueueInUse),
        ([-16, b"1", b"producer"], RoleLost),
    ],
)
def test_refusals_are_raised(reply: list[Any], kind: type[Exception]) -> None:
    """Other refusals are raised without a wait."""
    flow = enqueue(block=30.0)
    with pytest.raises(kind):
        flow.answer(reply)


def test_a_producer_that_waited_leaves_in_order() -> None:
    """The queue is closed during the wait: the producer ends its wait and passes a token on."""
    flow = enqueue(bound=5, block=30.0)
    waited = flow.answer([-3, b"1", 5, 5, 0])
    flow.answer(WaitResult())
    assert flow.answer([-14, b"1"]) == EndWait()
    args(flow.answer(WaitResult(waited.queues)), "enqueue")
    with pytest.raises(QueueClosed):
        flow.answer([-14, b"1"])


def test_a_wait_for_room_is_shorter_than_a_third_of_a_role() -> None:
    """A producer with a role tries at least once in a third of its lease, which renews it."""
    clock, mine = Clock(), ops()
    mine.use_role(RoleLease("producer", 3000, "0123456789abcdef", 7))
    given: dict[str, Any] = {"block": None, "in_parts": False}
    flow = Driven(flows.enqueue(mine, [b"1\n"], mine.enqueue, clock=clock, **given))
    assert args(flow.effect, "enqueue")[4] == "7-0123456789abcdef"
    assert flow.answer([-3, b"1", 5, 5, 0]).until == clock.now + 1


def test_configure_makes_the_queue() -> None:
    """`configure` registers the queue before it creates it, as a first job does."""
    flow = Driven(configure("lease", 5))
    assert args(flow.effect, "configure") == ("", "lease", b"5")
    registered = flow.answer(MISSING)
    assert isinstance(registered, Register)
    assert args(flow.answer(None), "configure") == (registered.epoch, "lease", b"5")
    made = [1, b"1", registered.epoch.encode(), 1]
    assert flow.answer(made) == registered
    assert flow.ends_with(None) == made


def reserve(
    clock: Clock,
    *names: str,
    n: int = 1,
    block: float | None = 30.0,
    eager: int = 99,
    noted: Callable[[QueueOps, int | None], None] = lambda _, __: None,
    apart: bool = False,
) -> tuple[Driven, list[QueueOps]]:
    """Return a reserve on queues of these names."""
    queues = [ops(name) for name in names or ("q",)]
    rules = ReserveRules(lambda: (queues, eager), clock, is_transient, noted, apart)
    return Driven(flows.reserve(rules, ReserveRequest(n, block))), queues


def test_a_reserve_that_finds_a_job_does_not_wait() -> None:
    """A reserve that finds a job is one call."""
    flow, (source,) = reserve(Clock())
    assert flow.effect == ReserveJobs(source, 1, False)
    assert flow.ends_with(Taken(-1, ["job"])) == ["job"]


def test_a_reserve_that_may_not_wait() -> None:
    """A reserve that may not wait is one call per queue, with or without a job."""
    flow, _ = reserve(Clock(), block=0.0)
    assert flow.ends_with(NOTHING) == []


def test_expired_jobs_do_not_hold_up_a_reserve_that_may_not_wait() -> None:
    """A reserve that may not wait skips expired jobs for LINGER seconds, or until
    it finds a job.
    """
    clock = Clock()
    flow, (a, b) = reserve(clock, "a", "b", block=0.0)
    bounded = Taken(0, [])
    assert flow.answer(bounded) == ReserveJobs(a, 1, False)
    clock.now += flows.EXPIRED_JOBS_GRACE
    assert flow.answer(bounded) == ReserveJobs(b, 1, False)
    assert flow.ends_with(bounded) == []
    flow, (a,) = reserve(clock, "a", block=0.0)
    assert flow.answer(bounded) == ReserveJobs(a, 1, False)
    assert flow.ends_with(Taken(0, ["job"])) == ["job"]


def test_expired_jobs_are_looked_behind_until_the_deadline() -> None:
    """A reserve that may wait skips expired jobs until its deadline."""
    clock = Clock()
    flow, (source,) = reserve(clock, block=5.0)
    clock.now += 4.9
    assert flow.answer(Taken(0, [])) == ReserveJobs(source, 1, False)
    clock.now += 0.1
    assert flow.ends_with(Taken(0, [])) == []


def test_a_node_that_does_not_answer_is_left_out() -> None:
    """A node that does not answer is left out: its failure is recorded, and it is
    asked again later.
    """
    clock, noted = Clock(), list[Any]()
    flow, (a, b) = reserve(clock, "a", "b", apart=True, noted=lambda *one: noted.append(one))
    assert flow.effect == ReserveJobs(a, 1, False, True)
    assert flow.fail(ConnectionError("gone")) == ReserveJobs(b, 1, False, True)
    assert isinstance(flow.answer(NOTHING), Listen)
    clock.now += flows.POLL_INTERVAL
    assert flow.answer(WaitResult()) == ReserveJobs(b, 1, True, True)
    assert isinstance(flow.answer(NOTHING), Listen)
    clock.now += flows.SILENT_QUEUE_PAUSE
    assert flow.answer(WaitResult()) == ReserveJobs(a, 1, True, True)
    assert noted == [(a, None), (b, 0), (b, 0)]


def test_a_node_is_asked_again_if_none_answers() -> None:
    """If no node answers, one is asked again with retries, and its failure is raised."""
    flow, (a, b) = reserve(Clock(), "a", "b", apart=True)
    assert flow.fail(ConnectionError("gone")) == ReserveJobs(b, 1, False, True)
    assert flow.fail(ConnectionError("gone")) == ReserveJobs(a, 1, False, False)
    with pytest.raises(ConnectionError):
        flow.fail(ConnectionError("gone"))


def test_with_some_jobs_only_nodes_with_jobs_are_asked_for_more() -> None:
    """With some jobs found, only nodes that just had jobs are asked for more."""
    flow, (_, b, _) = reserve(Clock(), "a", "b", "c", n=9, eager=2)
    assert flow.answer(Taken(-1, ["job"])) == ReserveJobs(b, 8, False)
    assert flow.ends_with(NOTHING) == ["job"]
    flow, (_, b, c) = reserve(Clock(), "a", "b", "c", n=9, eager=2)
    assert flow.answer(NOTHING) == ReserveJobs(b, 9, False)
    assert flow.answer(NOTHING) == ReserveJobs(c, 9, False)


def test_queues_are_asked_left_to_right() -> None:
    """Queues are asked from left to right until there are enough jobs."""
    flow, (a, b, c) = reserve(Clock(), "a", "b", "c", n=3)
    assert flow.effect == ReserveJobs(a, 3, False)
    assert flow.answer(Taken(-1, ["1"])) == ReserveJobs(b, 2, False)
    assert flow.ends_with(Taken(-1, ["2", "3"])) == ["1", "2", "3"]
    assert c.name == "c"


def test_a_script_that_reached_its_bound_is_repeated() -> None:
    """`next` of 0 without a job means that the script reached its bound and is to be repeated."""
    flow, (source,) = reserve(Clock(), block=0.0)
    assert flow.answer(Taken(0, [])) == ReserveJobs(source, 1, False)
    assert flow.ends_with(Taken(-1, ["job"])) == ["job"]


def test_a_wait_begins_with_a_sweep() -> None:
    """A wait starts with a sweep, each time no job was found; a call that may not
    wait never sweeps.
    """
    flow, queues = reserve(Clock(), "a", "b", block=None)
    assert flow.swept == []
    flow.answer(NOTHING)
    assert isinstance(flow.answer(NOTHING), Listen)
    assert flow.swept == [SweepDue(tuple(queues))]
    flow.answer(WaitResult((queues[0],)))
    assert isinstance(flow.answer(NOTHING), Listen)
    assert flow.swept == [SweepDue(tuple(queues))] * 2


def test_creating_a_queue_sweeps_others() -> None:
    """A client that created a second queue sweeps listed queues."""
    flow = enqueue()
    registered = flow.answer(MISSING)
    flow.answer(None)
    assert flow.answer(created_with(registered)) == Register(registered.ops, registered.epoch)
    assert flow.swept == []
    flow.ends_with(None)
    assert flow.swept == [SweepDue((), is_new=True)]


def test_waiting_for_a_token() -> None:
    """After a token the consumer reserves on the token's queue first."""
    clock = Clock()
    flow, (a, b) = reserve(clock, "a", "b")
    flow.answer(NOTHING)
    assert flow.answer(NOTHING) == Listen((a, b), clock.now + POLL_INTERVAL)
    assert flow.answer(WaitResult((b,))) == ReserveJobs(b, 1, True)
    assert flow.answer(Taken(-1, ["job"])) == EndWait()
    assert flow.ends_with(WaitResult()) == ["job"]


def test_a_token_taken_on_leaving_is_used() -> None:
    """A token taken while leaving is passed on by a reserve of 0 jobs."""
    flow, (source,) = reserve(Clock())
    flow.answer(NOTHING)
    flow.answer(WaitResult((source,)))
    flow.answer(Taken(-1, ["job"]))
    assert flow.answer(WaitResult((source,))) == ReserveJobs(source, 0, True)
    assert flow.ends_with(NOTHING) == ["job"]


def test_all_tokens_taken_on_leaving_are_used() -> None:
    """Queues on several nodes have several waits, each of which may have taken a token."""
    flow, (a, b, c) = reserve(Clock(), "a", "b", "c")
    flow.answer(NOTHING)
    flow.answer(NOTHING)
    flow.answer(NOTHING)
    flow.answer(WaitResult((b,)))
    assert flow.answer(Taken(-1, ["job"])) == EndWait()
    assert flow.answer(WaitResult((c, a))) == ReserveJobs(a, 0, True)
    assert flow.answer(NOTHING) == ReserveJobs(c, 0, True)
    assert flow.ends_with(NOTHING) == ["job"]


def test_a_tick_asks_every_queue() -> None:
    """After a tick without a token every queue is asked, whatever `block` is."""
    clock = Clock()
    flow, (a, b) = reserve(clock, "a", "b", block=None)
    flow.answer(NOTHING)
    flow.answer(NOTHING)
    clock.now += POLL_INTERVAL
    assert flow.answer(WaitResult()) == ReserveJobs(a, 1, True)
    assert flow.answer(NOTHING) == ReserveJobs(b, 1, True)
    assert flow.answer(NOTHING).until == clock.now + POLL_INTERVAL


def test_a_near_event_sets_a_timer() -> None:
    """For a near event the consumer sets its own timer, and then asks only that queue."""
    clock = Clock()
    flow, (_, b) = reserve(clock, "a", "b")
    flow.answer(NOTHING)
    waited = flow.answer(Taken(1500, []))
    assert waited.until == clock.now + 1.5
    clock.now += 1.5
    assert flow.answer(WaitResult()) == ReserveJobs(b, 1, True)


def test_a_near_event_is_passed_on() -> None:
    """A consumer that knew of an event and leaves with another job passes the event on."""
    clock = Clock()
    flow, (a, b) = reserve(clock, "a", "b")
    flow.answer(Taken(1500, []))
    flow.answer(NOTHING)
    flow.answer(WaitResult((b,)))
    assert flow.answer(Taken(-1, ["job"])) == EndWait()
    assert flow.answer(WaitResult()) == ReserveJobs(a, 0, True)
    assert flow.ends_with(NOTHING) == ["job"]
    assert b.name == "b"


def test_all_queues_are_asked_after_a_lost_connection() -> None:
    """After a lost connection all queues are asked, as a token may have been lost."""
    flow, (a, b) = reserve(Clock(), "a", "b")
    flow.answer(NOTHING)
    flow.answer(NOTHING)
    assert flow.answer(WaitResult(lost=(a, b))) == ReserveJobs(a, 1, True)
    assert flow.answer(NOTHING) == ReserveJobs(b, 1, True)


def test_a_wait_ends_in_time() -> None:
    """When the time is over the consumer asks once more and ends its wait."""
    clock = Clock()
    flow, (source,) = reserve(clock, block=1.0)
    assert flow.answer(NOTHING).until == clock.now + 1
    clock.now += 1
    assert flow.answer(WaitResult()) == ReserveJobs(source, 1, True)
    assert flow.answer(NOTHING) == EndWait()
    assert flow.ends_with(WaitResult()) == []


def test_the_end_of_a_queue() -> None:
    """A drained queue ends its consumers; a waiting one ends its wait and tells the next."""
    flow, _ = reserve(Clock())
    with pytest.raises(QueueClosed, match="'q' is closed, and no job is left"):
        flow.answer(OVER)
    flow, _ = reserve(Clock(), block=0.0)
    with pytest.raises(QueueClosed):
        flow.answer(OVER)
    flow, (source,) = reserve(Clock())
    flow.answer(NOTHING)
    flow.answer(WaitResult((source,)))
    assert flow.answer(OVER) == EndWait()
    assert flow.answer(WaitResult((source,))) == ReserveJobs(source, 0, True)
    with pytest.raises(QueueClosed):
        flow.answer(OVER)


def test_the_last_jobs_are_returned_before_the_end() -> None:
    """The last jobs have lease 0, so nothing is left after them; the next call says so."""
    flow, _ = reserve(Clock())
    assert flow.ends_with(Taken(-2, ["job"])) == ["job"]


def test_a_drained_queue_is_not_waited_for() -> None:
    """A drained queue is not waited for, as it always has a token; it is asked
    again at the tick.
    """
    clock = Clock()
    flow, (a, b) = reserve(clock, "a", "b", block=None)
    flow.answer(OVER)
    assert flow.answer(NOTHING).queues == (b,)
    clock.now += POLL_INTERVAL
    assert flow.answer(WaitResult()) == ReserveJobs(a, 1, True)
    flow.answer(NOTHING)  # it was reopened
    assert flow.answer(NOTHING).queues == (a, b)


def test_several_drained_queues() -> None:
    """Two queues end one after the other: the first one is checked again before all have ended."""
    flow, (a, b) = reserve(Clock(), "a", "b")
    flow.answer(OVER)
    flow.answer(NOTHING)
    flow.answer(WaitResult((b,)))
    assert flow.answer(OVER) == ReserveJobs(a, 1, True)
    assert flow.answer(OVER) == ReserveJobs(b, 1, True)
    assert flow.answer(OVER) == EndWait()
    with pytest.raises(QueueClosed):
        flow.answer(WaitResult())


def test_a_consumer_that_is_refused_leaves_in_order() -> None:
    """A refused consumer passes its token or event on to the holder of the role."""
    clock = Clock()
    flow, (source,) = reserve(clock)
    flow.answer(Taken(1500, []))
    flow.answer(WaitResult((source,)))
    assert flow.fail(QueueInUse("consumer", "ada")) == EndWait()
    assert flow.answer(WaitResult()) == ReserveJobs(source, 0, True)
    with pytest.raises(QueueInUse):
        flow.fail(QueueInUse("consumer", "ada"))


def test_a_refusal_of_one_queue_passes_events_of_others_on() -> None:
    """One queue refuses: events of the other queues are passed on too."""
    flow, (a, b) = reserve(Clock(), "a", "b")
    flow.answer(Taken(1500, []))
    flow.answer(NOTHING)
    flow.answer(WaitResult((a,)))
    assert flow.fail(QueueInUse("consumer", "ada")) == EndWait()
    assert flow.answer(WaitResult((b,))) == ReserveJobs(a, 0, True)
    assert flow.fail(QueueInUse("consumer", "ada")) == ReserveJobs(b, 0, True)
    with pytest.raises(QueueInUse):
        flow.answer(NOTHING)


BUSY = [-15, b"1", b"producer", b"ada", 60_000]
HELD = [1, b"1", b"1700000000000", b"01020304", 0]


def acquire(clock: Clock, block: float | None) -> Driven:
    """Return a flow that takes a role."""
    role_lease = RoleLease("producer", 30_000, "0123456789abcdef")
    return Driven(flows.acquire(ops(), role_lease, block=block, clock=clock))


def test_a_role_that_is_free_is_one_call() -> None:
    """Taking a free role is one call; the result is its number."""
    flow = acquire(Clock(), 0.0)
    taking = ("", "producer", "0123456789abcdef", "", b"30000", b"me")
    assert args(flow.effect, "acquire") == taking
    assert flow.ends_with(HELD) == 1_700_000_000_000


def test_a_role_of_a_queue_that_does_not_exist() -> None:
    """A role of a missing queue registers the queue before creating it, as a first job does."""
    flow = acquire(Clock(), 0.0)
    registered = flow.answer(MISSING)
    assert isinstance(registered, Register)
    assert args(flow.answer(None), "acquire")[0] == registered.epoch
    assert flow.answer([*HELD[:3], registered.epoch.encode(), 1]) == registered
    assert flow.ends_with(None) == 1_700_000_000_000


def test_a_role_is_waited_for() -> None:
    """A taken role is asked for soon at first, then every 2.5 s, and at the end of its lease."""
    clock = Clock()
    flow = acquire(clock, 10.0)
    pauses = []
    flow.answer(BUSY)
    while isinstance(flow.effect, Rest):
        pauses.append(round(flow.effect.until - clock.now, 1))
        clock.now = flow.effect.until
        flow.answer(None)
        if clock.now >= 1010:
            with pytest.raises(QueueInUse, match="ada"):
                flow.answer(BUSY)
            break
        flow.answer(BUSY)
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5, 1.9]
    flow = acquire(clock, None)
    assert flow.answer([*BUSY[:4], 40]) == Rest(clock.now + 0.04)


def test_a_taking_that_is_cancelled_is_given_back() -> None:
    """A cancelled taking is given back, as it may have reached the server."""
    flow = acquire(Clock(), None)
    given = flow.fail(Cancelled())
    assert args(given, "resign") == ("producer", "0123456789abcdef")
    with pytest.raises(Cancelled):
        flow.answer([1, b"1", 0])


def test_jobs_that_were_taken_are_the_callers() -> None:
    """A failure after the first jobs does not lose them: they are returned."""
    flow, (_, b) = reserve(Clock(), "a", "b", n=2)
    assert flow.answer(Taken(-1, ["job"])) == ReserveJobs(b, 1, False)
    with pytest.raises(StopIteration) as end:
        flow.fail(ConnectionError("gone"))
    assert end.value.value == ["job"]


@dataclass
class Taking:
    """A job as flows see it."""

    queue_name: str
    at_most_once: bool = False
    receipt: str = "1-abc"
    _reservation: Any = None


def test_a_refusal_gives_the_jobs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """When one queue refuses, jobs reserved from other queues are released; then it raises."""
    flow, (a, _) = reserve(Clock(), "a", "b", n=3)
    released: list[tuple[Any, int]] = []
    monkeypatch.setattr(a, "release", lambda jobs, delay: released.append((list(jobs), delay)))
    reservation = SimpleNamespace(ops=a)
    held = [Taking("a", _reservation=reservation), Taking("a", _reservation=reservation)]
    flow.answer(Taken(-1, held))
    assert flow.fail(QueueDamaged("another type")) == Run(None)  # type: ignore[arg-type]  # not called
    assert released == [(held, -1)]
    with pytest.raises(QueueDamaged, match="another type"):
        flow.fail(ConnectionError("gone"))


def test_a_refusal_returns_jobs_at_most_once() -> None:
    """A job with lease 0 can't be released, so reserved jobs are returned and the
    error comes later.
    """
    flow, _ = reserve(Clock(), "a", "b", n=3)
    held = [Taking("a"), Taking("a", at_most_once=True)]
    flow.answer(Taken(-1, held))
    with pytest.raises(StopIteration) as end:
        flow.fail(QueueDamaged("another type"))
    assert end.value.value == held


def test_a_server_that_cannot_confirm_is_skipped() -> None:
    """Jobs of another server are returned, whichever is asked first; without any it raises."""
    for error in (CannotSync("no append-only file"), DeliveryNotReplicated(1, 0, connected=0)):
        flow, (_, b) = reserve(Clock(), "a", "b", n=2, apart=True)
        assert flow.fail(error) == ReserveJobs(b, 2, False, True)
        held = [Taking("a")]
        assert flow.ends_with(Taken(-1, held)) == held
        flow, (_, b) = reserve(Clock(), "a", "b", n=2, apart=True)
        assert flow.answer(Taken(-1, held)) == ReserveJobs(b, 1, False, True)
        with pytest.raises(StopIteration) as end:
            flow.fail(error)
        assert end.value.value == held
        flow, _ = reserve(Clock(), "a", "b", apart=True)
        flow.fail(error)
        with pytest.raises(type(error)):
            flow.answer(NOTHING)


def test_deliveries_that_are_given_up_come_with_all_jobs() -> None:
    """The error has the jobs that other queues gave before, and its text counts them."""
    flow, _ = reserve(Clock(), "a", "b", n=4)
    held = [Taking("a"), Taking("b"), Taking("b", at_most_once=True)]
    flow.answer(Taken(-1, held[:1]))
    error = DeliveryNotReplicated(1, 0, jobs=held[1:2], given_up=held[2:])
    with pytest.raises(DeliveryNotReplicated, match="process the other 2") as caught:
        flow.fail(error)
    assert (caught.value.jobs, caught.value.given_up) == (held[:2], held[2:])


def withdrawal(answer: Any, resent: bool) -> NotReplicated:
    """Return the result of an enqueue that too few replicas confirmed."""
    flow = Driven(flows.withdraw(ops(), PARSERS["enqueue"](ADDED), wanted=2, got=1))
    assert flow.effect.call.script.name == "withdraw"
    assert flow.effect.call.args == (b"01020304", b"1700000000000-1000000000")
    flow.effect.call.resent = 1.0 if resent else 0.0
    with pytest.raises(StopIteration) as end:
        flow.fail(answer) if isinstance(answer, Exception) else flow.answer(answer)
    error: NotReplicated = end.value.value
    assert (error.wanted, error.got) == (2, 1)
    return error


@pytest.mark.parametrize(
    "answer, resent, withdrawn",
    [
        ([1, b"1", 1], False, True),
        ([1, b"1", 1], True, True),
        ([1, b"1", 0, 0], False, False),  # a consumer took it and finished
        ([1, b"1", 0, 0], True, None),  # or the first sending withdrew it
        ([1, b"1", 0, -2], False, False),
        ([1, b"1", 0, -2], True, False),
        (ConnectionError("gone"), False, None),
        ([-9, b"1", b"ffffffff"], False, None),
    ],
)
def test_an_unconfirmed_job_is_withdrawn(answer: Any, resent: bool, withdrawn: bool | None) -> None:
    """The error says that the job is withdrawn, or that this is unknown."""
    assert withdrawal(answer, resent).withdrawn is withdrawn


def page(*deliveries: tuple[bytes, int], score: bytes = b"", skip: int = 0) -> list[Any]:
    """Return a reply of `pending`: numbers and times of delivery."""
    flat = [part for number, at in deliveries for part in (number, b"1-abc", b"%d" % at)]
    return [1, b"1", 0, b"01020304", score, skip, *flat]


def test_deliveries_are_recovered_oldest_first() -> None:
    """All pages are read before the first recovery; a delivery on two pages is named once."""
    source = ops()
    flow = Driven(flows.recover(source, 2, 5))
    assert flow.effect == Run(source.pending("-inf", 0, 5))
    flow.answer(page((b"1-3", 30), (b"1-2", 20), score=b"77", skip=1))
    assert flow.effect == Run(source.pending(b"77", 1, 5))
    flow.answer(page((b"1-2", 20), (b"1-1", 10)))
    assert flow.effect.call.args[5:] == (b"1-1", b"1-abc", b"1-2", b"1-abc")
    # one had ended, so the next oldest replaces it
    flow.answer([1, b"2", 2, b"01020304", 30_000, 50, b"1-1", b"2 0 1 0", b"1\nx"])
    assert flow.effect.call.args[5:] == (b"1-3", b"1-abc")
    jobs = flow.ends_with([1, b"3", 1, b"01020304", 30_000, 50])
    assert [number_of(job) for job in jobs] == [b"1-1"]


def test_nothing_to_recover() -> None:
    """Without old deliveries there is one read and no recovery."""
    flow = Driven(flows.recover(ops(), 5, 5))
    assert flow.ends_with(page()) == []


def test_a_failure_before_the_first_job_is_raised() -> None:
    """A failure before the first job is raised."""
    flow, _ = reserve(Clock())
    with pytest.raises(ConnectionError):
        flow.fail(ConnectionError("gone"))


def test_more_than_a_script_takes() -> None:
    """Recovery runs in calls of a thousand jobs while each of them is full."""
    flow, (source,) = reserve(Clock(), n=2500)
    assert flow.effect == ReserveJobs(source, 1000, False)
    assert flow.answer(Taken(0, ["job"] * 1000)) == ReserveJobs(source, 1000, False)
    assert flow.answer(Taken(0, ["job"] * 1000)) == ReserveJobs(source, 500, False)
    assert len(flow.ends_with(Taken(0, ["job"] * 500))) == 2500


def test_flows_do_no_input_or_output() -> None:
    """Flows are plain generators: no code runs until they are driven."""
    role = RoleLease("producer", 30_000)
    made: list[Callable[[], Flow]] = [
        lambda: flows.acquire(ops(), role, block=None, clock=Clock()),
        configure,
    ]
    assert all(isinstance(make(), Generator) for make in made)
