"""Rules for several nodes, without servers: order, failures, and merged results."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from penstock.core import flows
from penstock.core.calls.operations import QueueOps, Taken
from penstock.core.flows import (
    POLL_INTERVAL,
    Cancelled,
    EndWait,
    Listen,
    ReserveJobs,
    ReserveRequest,
    ReserveRules,
    Run,
    SweepDue,
    WaitResult,
)
from penstock.core.jobs.job import Delivery, QueueIdentity, Reservation
from penstock.core.jobs.queue_stats import QueueStats, Settings
from penstock.core.nodes import merging
from penstock.core.nodes.merging import Partial
from penstock.core.nodes.node_views import Info, merged_info
from penstock.core.nodes.servers import ServerFacts
from penstock.core.nodes.state import NodeState, PollOrder, Sticky
from penstock.errors import BadArgument, NodesUnavailable, PenstockError, QueueClosed
from penstock.wire.keys import QueueKeys
from tests.core.test_flows import Clock, is_transient

NOTHING = Taken(-1, [])
CROWDED = ServerFacts({"used_memory": "76", "maxmemory": "100"})
ROOMY = ServerFacts({"used_memory": "75", "maxmemory": "100"})


class Node(str):  # noqa: SLOT000  # it has a state
    """A node with a state, which is up until it fails."""

    def __init__(self, name: str) -> None:
        self.state = NodeState(met=True)


def part(node: object, name: str = "q") -> QueueOps:
    """Return one shard of a queue."""
    ops = QueueOps(QueueKeys(name), "me", ["00000000"])
    ops.node = node
    return ops


def job_of(ops: QueueOps) -> Delivery:
    """A job reserved from this shard."""
    place = QueueIdentity(ops.name, "00000000", ops.crc, "01020304")
    reservation = Reservation(None, place, "me", tag=1, now=1_700_000_000_000, lease_ms=30_000)
    reservation.ops = ops
    return Delivery(reservation, b"1700000000000-1000000000", b"", b"1\n")


class Stage:
    """A consuming call on nodes, answered step by step.

    Args:
        names: of the nodes.
        options: of the call.
    """

    def __init__(self, *names: str, n: int = 1, block: float | None = None) -> None:
        self.clock = Clock()
        self.parts = {name: part(Node(name)) for name in names}
        self.borne: list[str] = []
        queues = list(self.parts.values())
        rules = ReserveRules(
            lambda: (queues, len(queues)),
            self.clock,
            is_transient,
            lambda _, __: None,
            apart=True,
            unavailable=lambda: NodesUnavailable("none", {}),
        )
        self.flow: Generator[Any, Any, Any] = flows.reserve(rules, ReserveRequest(n, block))
        self.swept: list[SweepDue] = []
        self.effect: Any = self._behind_sweeps(next(self.flow))

    def _behind_sweeps(self, effect: Any) -> Any:
        while isinstance(effect, SweepDue):
            self.swept.append(effect)
            effect = self.flow.send(None)
        return effect

    def asks(self, node: str, n: int = 1, *, idle: bool = False) -> bool:
        """Tell if this node is asked now."""
        return bool(self.effect == ReserveJobs(self.parts[node], n, idle, brief=True))

    def answer(self, value: Any) -> Stage:
        """Answer the last effect."""
        self.effect = self._behind_sweeps(self.flow.send(value))
        return self

    def fail(self, error: BaseException) -> Stage:
        """Raise an error from the last effect, and record it as a client does."""
        if isinstance(self.effect, ReserveJobs) and is_transient(error):
            node = self.effect.ops.node
            node.state.failed(self.clock(), error)
            self.borne.append(node)
        self.effect = self._behind_sweeps(self.flow.throw(error))
        return self

    def end(self, value: Any) -> Any:
        """Answer the last effect, which ends the call, and return the result."""
        with pytest.raises(StopIteration) as end:
            self.answer(value)
        return end.value.value

    def waits(self, *nodes: str) -> bool:
        """Tell if the call listens to exactly these nodes."""
        wanted = tuple(self.parts[node] for node in nodes)
        return isinstance(self.effect, Listen) and self.effect.queues == wanted

    def token(self, *nodes: str) -> WaitResult:
        """Return tokens of these nodes."""
        return WaitResult(tuple(self.parts[node] for node in nodes))


def test_settings_stored_last_go_to_the_others() -> None:
    """The newest settings go to the other nodes; of equally old ones all nodes get the same."""

    def values(age: int | None, lease: int | None) -> list[bytes | None]:
        found = dict.fromkeys(merging.STORED_SETTINGS, None) | {"configured": age, "lease": lease}
        return [None if one is None else b"%d" % one for one in found.values()]

    def told(found: dict[str, list[bytes | None]]) -> dict[str, tuple[int, bytes]]:
        result = merging.to_store(found)
        return {k: (v[1], v[v.index("lease") + 1]) for k, v in result.items()}

    assert told({"a": values(5, 7), "b": values(None, None), "c": values(9, 8)}) == {
        "a": (9, b"8"), "b": (9, b"8"),
    }  # fmt: skip
    assert told({"a": values(9, 8), "b": values(5, 8)}) == {}
    assert told({"a": values(None, None), "b": values(None, None)}) == {}
    assert told({"a": values(9, None), "b": values(5, 8)}) == {"b": (9, b"")}
    for order in ("ab", "ba"):
        both = {"a": values(5, 7), "b": values(5, 8)}
        assert told({name: both[name] for name in order}) == {"a": (6, b"8")}


def test_one_node_with_jobs_is_enough() -> None:
    """If one node has enough jobs, the others are not asked."""
    stage = Stage("a", "b")
    assert stage.asks("a")
    assert stage.end(Taken(0, ["job"])) == ["job"]


def test_missing_jobs_come_from_the_next_node() -> None:
    """Missing jobs are reserved from the next node, up to the requested number."""
    stage = Stage("a", "b", "c", n=3)
    assert stage.asks("a", 3)
    assert stage.answer(Taken(-1, ["x", "y"])).asks("b")
    assert stage.answer(NOTHING).asks("c")
    assert stage.end(Taken(-1, ["z"])) == ["x", "y", "z"]


def test_a_wait_begins_with_a_sweep() -> None:
    """A wait starts with a sweep of the parts on each node."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    assert stage.waits("a", "b")
    assert stage.swept == [SweepDue((stage.parts["a"], stage.parts["b"]))]


def test_it_waits_on_all_at_once() -> None:
    """The call waits on all nodes at once, and asks the one with the token."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    assert stage.waits("a", "b")
    assert stage.effect.until == stage.clock.now + POLL_INTERVAL
    assert stage.answer(stage.token("b")).asks("b", idle=True)
    assert isinstance(stage.answer(Taken(-1, ["job"])).effect, EndWait)
    assert stage.end(WaitResult()) == ["job"]


def test_two_tokens_and_one_job_wanted() -> None:
    """With two tokens and one job wanted, the unused token is passed on before the call ends."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    assert stage.answer(stage.token("a", "b")).asks("a", idle=True)
    assert isinstance(stage.answer(Taken(-1, ["job"])).effect, EndWait)
    assert stage.answer(WaitResult()).asks("b", 0, idle=True)
    assert stage.end(NOTHING) == ["job"]


def test_a_token_that_comes_while_it_leaves() -> None:
    """Tokens and events that come while the call leaves are passed on."""
    stage = Stage("a", "b", "c")
    stage.answer(NOTHING).answer(Taken(2500, [])).answer(NOTHING)
    assert stage.waits("a", "b", "c")
    assert stage.effect.until == stage.clock.now + 2.5
    stage.answer(stage.token("a")).answer(Taken(-1, ["job"]))
    assert isinstance(stage.effect, EndWait)
    found = {stage.answer(stage.token("c")).effect.ops.node, stage.answer(NOTHING).effect.ops.node}
    assert found == {"b", "c"}
    assert stage.end(NOTHING) == ["job"]


def test_a_node_that_fails_is_left_to_the_others() -> None:
    """A failed node is left out of the wait, and asked again when it is back."""
    stage = Stage("a", "b")
    assert stage.fail(ConnectionError("gone")).asks("b")
    assert stage.answer(NOTHING).waits("b")
    assert stage.borne == ["a"]
    stage.clock.now += 1
    stage.parts["a"].node.state.note_answer(0.0, leaving=False)
    assert stage.answer(WaitResult()).asks("a", idle=True)
    assert stage.answer(NOTHING).waits("a", "b")


def test_a_node_that_is_back_before_the_wait_is_asked_again() -> None:
    """A node that failed is asked after the next event, even if it was up again before the wait."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    stage.clock.now += POLL_INTERVAL
    stage.answer(WaitResult())
    assert stage.fail(ConnectionError("gone")).asks("b", idle=True)
    stage.parts["a"].node.state.note_answer(0.0, leaving=False)
    assert stage.answer(NOTHING).waits("a", "b")
    assert stage.answer(WaitResult()).asks("a", idle=True)


def test_a_node_is_asked_after_a_failed_wait() -> None:
    """After a failed wait the node is asked, as a token may have been lost."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    assert stage.answer(WaitResult(lost=(stage.parts["b"],))).asks("b", idle=True)
    assert stage.answer(NOTHING).waits("a", "b")


def test_every_node_is_asked_after_a_tick() -> None:
    """After a tick every node is asked, whatever was received."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    stage.clock.now += POLL_INTERVAL
    assert stage.answer(WaitResult()).asks("a", idle=True)
    assert stage.answer(NOTHING).asks("b", idle=True)


def test_no_node_answers() -> None:
    """If no node answers the error comes at the end of the time; an empty node is an answer."""
    stage = Stage("a", "b", block=0)
    with pytest.raises(NodesUnavailable):
        stage.fail(ConnectionError("gone")).fail(ConnectionError("gone"))
    stage = Stage("a", "b", block=0)
    assert stage.fail(ConnectionError("gone")).end(NOTHING) == []


def test_other_errors_than_failures_of_nodes_are_raised() -> None:
    """An error that is not a node's failure is raised, and jobs of other nodes are released."""
    stage = Stage("a", "b", n=2)
    job = job_of(stage.parts["a"])
    stage.answer(Taken(-1, [job]))
    stage.fail(PenstockError("damaged"))
    assert isinstance(stage.effect, Run)
    assert stage.effect.ops.node == "a"
    assert stage.effect.call.script.name == "release"
    with pytest.raises(PenstockError, match="damaged"):
        stage.answer([1, b"1", 1])


def test_a_queue_that_is_closed_and_drained_everywhere() -> None:
    """A queue ends if it is drained on all nodes; a node that is down may still have jobs."""
    stage = Stage("a", "b")
    over = Taken(-2, [])
    assert over.is_over
    assert stage.answer(over).asks("b")
    assert stage.answer(NOTHING).waits("b")
    assert stage.answer(stage.token("b")).asks("b", idle=True)
    assert stage.answer(over).asks("a", idle=True)  # not at the same time as b
    assert stage.answer(over).asks("b", idle=True)
    assert isinstance(stage.answer(over).effect, EndWait)
    with pytest.raises(QueueClosed):
        stage.answer(WaitResult())
    stage = Stage("a", "b", block=0)
    assert stage.fail(ConnectionError("gone")).end(over) == []


def test_a_cancelled_wait_is_left_in_order() -> None:
    """The token of a cancelled wait is passed on to another consumer."""
    stage = Stage("a", "b")
    stage.answer(NOTHING).answer(NOTHING)
    assert isinstance(stage.fail(Cancelled()).effect, EndWait)
    assert stage.answer(stage.token("a")).asks("a", 0, idle=True)
    with pytest.raises(Cancelled):
        stage.answer(NOTHING)


def test_a_sticky_producer() -> None:
    """A producer stays with the node of its last job; the others follow in a ring."""
    sticky = Sticky(4)
    assert sticky.order(["a", "b", "c"]) == ["b", "c", "a"]
    sticky.chose("c")
    assert sticky.order(["a", "b", "c"]) == ["c", "a", "b"]
    assert sticky.order(["a", "b"]) == ["a", "b"]  # a node was removed
    assert sticky.order([]) == []


def test_a_node_that_is_not_known_has_no_id() -> None:
    """Before its first call a client knows no node."""
    keys = QueueKeys("q")
    assert QueueOps(keys, "me", []).node_id == ""
    assert QueueOps(keys, "me", ["00000001", "00000000"]).node_id == "00000001"


def test_nodes_with_jobs_are_asked_first() -> None:
    """Nodes that had jobs are asked in turn; empty ones only after a pause."""
    poll_order = PollOrder()
    assert poll_order.order("abc", 0) == (["a", "b", "c"], 3)
    for name, count in (("a", 1), ("b", 0), ("c", 1)):
        poll_order.gave(name, count, 0)
    assert poll_order.order("abc", 0.001) == (["a", "c", "b"], 2)
    poll_order.gave("a", 1, 0.001)
    assert poll_order.order("abc", 0.001) == (["c", "a", "b"], 2)
    assert poll_order.order("abc", 0.02) == (["b", "c", "a"], 3)
    for i in range(10):
        poll_order.gave("b", 0, i)
    assert poll_order.order("abc", 9.2) == (["c", "a", "b"], 2)
    assert poll_order.order("abc", 9.3) == (["b", "c", "a"], 3)


def test_a_node_that_fails_cools_down() -> None:
    """A failed node is left out for longer each time, up to two seconds, until it answers."""
    state = NodeState()
    assert not state.is_up
    state.note_answer(5, leaving=False, facts=ROOMY)
    assert state.is_up
    assert not state.crowded
    assert (state.is_stale(5.7), state.is_stale(5.8)) == (False, True)
    assert (state.is_unmeasured(5.9), state.is_unmeasured(6)) == (False, True)
    state.note_answer(5.8, leaving=False)
    assert (state.is_stale(6), state.is_unmeasured(6)) == (False, True)
    pauses = []
    for _ in range(20):
        state.failed(10, ConnectionError("refused"))
        pauses.append(round(state.until - 10, 3))
    assert pauses[:6] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert pauses[-1] == 2.0
    assert not state.is_up
    assert state.is_stale(10)
    assert state.reason == "ConnectionError: refused"
    state.note_answer(11, leaving=True, facts=CROWDED)
    assert (state.is_up, state.leaving, state.crowded, state.reason) == (True, True, True, "")


def stats(**values: Any) -> QueueStats:
    """Return the figures of a queue."""
    numbers = dict.fromkeys(merging.SUMMED_STATS, 0)
    given: dict[str, Any] = {"exists": True, "epoch": "01020304", "age": 5.0, "idle": 1.0}
    given |= {"closed": False, "producer": None, "consumer": None, **values}
    return QueueStats(
        name="q", oldest=given.pop("oldest", None), settings=given.pop("settings", Settings()),
        **{**numbers, **given},
    )  # fmt: skip


def test_figures_are_added_up() -> None:
    """Stats are sums, the longest wait and the shortest idle time; settings of the first queue."""
    none = stats(exists=False, epoch=None, age=None, idle=None)
    one = stats(ready=2, acked=5, oldest=3.0, settings=Settings(max_length=4))
    two = stats(ready=1, oldest=7.0, age=9.0, idle=4.0)
    merged = merging.merged_stats([none, one, two], ["c:1"])
    assert (merged.ready, merged.acked, merged.exists) == (3, 5, True)
    assert (merged.oldest, merged.age, merged.idle) == (7.0, 9.0, 1.0)
    assert (merged.epoch, merged.settings.max_length) == (None, 4)
    assert merged.unreachable == ("c:1",)
    assert merging.merged_stats([one]) == one
    slots = [stats(slots=2), none, stats(slots=3)]
    assert merging.merged_stats(slots).slots == 5
    assert merging.merged_stats([*slots, stats()]).slots is None
    assert merging.merged_stats([none]) == none
    assert merging.merged_stats([none, none]).exists is False
    closed = stats(closed=True)
    assert merging.merged_stats([closed, none]).closed
    assert not merging.merged_stats([closed, one]).closed


def test_nodes_taken_together() -> None:
    """Merged info has sums; values that differ are left out."""
    one = Info("a" * 40, "Redis 7", 5, 1, 0, 10, 0, "noeviction", True, 0, 1, 2, 2)
    two = replace(one, node="b" * 40, uptime=3, used_memory=None, maxmemory_policy="x")
    merged = merged_info([one, two])
    assert merged.node == f"{'a' * 40} {'b' * 40}"
    assert (merged.server, merged.uptime) == ("Redis 7", 3)
    assert (merged.registered_jobs, merged.connected_clients) == (4, 2)
    assert (merged.used_memory, merged.maxmemory_policy, merged.aof_enabled) == (None, None, True)


def test_cursors_of_several_parts() -> None:
    """A cursor of several shards has the shard and its own cursor."""
    assert merging.split_cursor("0") == ("", "0")
    assert merging.split_cursor("0a0b0c0d:17") == ("0a0b0c0d", "17")
    assert merging.split_cursor("0a0b0c0d-01020304:h5") == ("0a0b0c0d-01020304", "h5")
    for bad in ("", "1", "0a0b0c0d", "0A0B0C0D:1", "0a0b0c0d:", None, 0, b"0"):
        with pytest.raises(BadArgument):
            merging.split_cursor(bad)


def test_partial_answers_are_lists() -> None:
    """A partial result is a list with the names of nodes that did not answer."""
    found = Partial([1, 2], ["a:1"])
    assert found == [1, 2]
    assert found.unreachable == ("a:1",)
    assert Partial().unreachable == ()
