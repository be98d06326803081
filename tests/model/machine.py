"""Hypothesis drives a queue and its model side by side, and compares all that can be seen."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from penstock import (
    BulkEnqueued,
    Enqueued,
    Job,
    NotReplicated,
    Outcome,
    QueueClosed,
    QueueFull,
    QueuePaused,
    WrongEpoch,
)
from penstock.core.views import SETTING_KINDS
from penstock.wire.codes import Code
from tests.model.faults import Fault
from tests.model.model import NEVER, Answer, ModelJob, Name, Number, Policy
from tests.model.side import IDS, STATES, policy
from tests.model.waiting import TAGS, Waiting

__all__ = ["IdsMachine", "QueueMachine"]

WRONG = 19 * 365 * 86_400_000
"""ms by which a wrong clock is ahead, or behind."""

DELAYS = st.sampled_from([0, 0, 0, 1, 50, 3_000, 4_000, 60_000])
TTLS = st.sampled_from([None, None, None, 1, 60, 2_000, 70_000])
LEASES = st.sampled_from([None, None, 0, 1, 1_000, 5_000])
PROVISIONAL = (1, 8)
"""Tags of the reserves that deliver suspects provisionally."""
SPANS = st.sampled_from([1, 9, 100, 999, 1_000, 1_001, 3_000, 3_000, 10_000, 61_000, 900_000])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "lease": st.sampled_from([None, 1, 2_000, 60_000]),
        "max_length": st.sampled_from([None, None, 1, 3, 6]),
        "max_attempts": st.sampled_from([None, 0, 1, 2, 4]),
        "max_crashes": st.sampled_from([None, 0, 1, 2]),
        "max_releases": st.sampled_from([None, 0, 1, 2]),
        "replicas": st.sampled_from([None, 0]),
        "backoff_base": st.sampled_from([None, 1, 100]),
        "backoff_cap": st.sampled_from([None, 1, 300]),
        "dead_max": st.sampled_from([None, 0, 1, 3]),
        "dead_age": st.sampled_from([None, 1, 5_000]),
    },
)
MODES = {
    "refuse": "", "update": "u", "debounce": "ud", "requeue": "q", "requeue+update": "uq",
    "requeue+debounce": "udq",
}  # fmt: skip
"""What becomes of a duplicate, and the letters of it."""
NAMES = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2]), min_size=1, max_size=4)
"""Dedup ids, by place; one may come twice."""
WINDOWS = st.sampled_from([None, None, 1, 3_000, 60_000])
POLICIES: list[Policy | None] = [
    None, (1, None, None), (None, 1, 300), (2, 100, None), (0, None, 1), (None, None, None),
]  # fmt: skip
"""Retry policies of jobs: attempts, base and cap."""
RETRY = st.sampled_from([None, None, None, None, *POLICIES])
ENDS = st.sampled_from([None, None, 0, 1, 3_000])
"""Windows that an ack names."""
UNTIL = st.sampled_from(["finished", "finished", "finished", "started", "enqueued"])
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(
    ["", "", "", "before", "after", "flushed", "token lost", "token lost"]
)
PICKS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5]),
        st.sampled_from(["receipt", "receipt", "old receipt", "id"]),
    ),
    min_size=1,
    max_size=4,
)
"""Jobs to name: which of those known, and how; one may be named twice."""
Shape: TypeAlias = list[tuple[str, int | None, int | None, Policy | None]]
WAITING = {"ready": 0, "due": 1, "delayed": 3_000}
"""Fates of jobs that are not delivered, and their delay."""
SHAPES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *WAITING,
                "held",
                "held",
                "ended",
                "once",
                "once",
                "dead",
                "dead",
                "failed",
                "returned",
            ]
        ),
        st.sampled_from([None, None, 2_500, 60_000]),
        st.sampled_from([None, None, None, 20_000, 70_000]),
        RETRY,
    ),
    max_size=9,
)
"""Jobs with their fate, lease, ttl and policy."""
ACTIONS: dict[str, dict[str, Sequence[Any]]] = {
    "ack": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "window": [None, 0, 3_000],
    },
    "begin_to_wait": {"tag": [4, 6]},
    "bury": {"picks": [0], "among": [["active"], ["dead", "scheduled"]], "reason": ["why"]},
    "claim": {
        "how": ["refuse", "requeue", "requeue+update", "debounce", "update", "requeue+debounce"],
        "ttl": [None, 4_000, 3_500, 70_000],
        "delay": [0, 0, 2_000, 5_000],
        "window": [3_000, None],
        "names": [[0], [0], [1], [0, 1, 0]],
        "until": ["finished", "finished", "started", "finished", "enqueued"],
        "lease": [None, 0, None, 1_000],
        "many": [False, True],
        "retry": POLICIES,
        "bound": [None],
    },
    "clear": {},
    "close": {"closed": [True, True, False]},
    "delete": {"picks": [0]},
    "dequeue": {"picks": [0]},
    "evict": {"n": [1, 2, 3], "dead": [True]},
    "extend": {"picks": [0], "lease": [80_000, None, 1, 3_000], "late": [False]},
    "extend_at_half": {"pick": [0, 1], "after": [0, 1, 0]},
    "look": {},
    "nack": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "delay": [0, 900_000, 3_000, None],
        "error": ["no"],
    },
    "pause": {"side": ["", "in", "out", "", "all"]},
    "promote": {"picks": [0]},
    "recover": {"n": [1, 1, 2, 3], "idle": [0, 0, 2], "tag": [1, 9]},
    "redrive": {"picks": [None, 0], "limit": [1, 2]},
    "release": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "delay": [0, 900_000, 0],
    },
    "reserve": {"n": [1, 2, 3], "tag": [2, 8]},
    "settle": {"picks": [0], "n": [1, 3], "tag": [3, 7]},
    "sweep": {},
    "time_comes": {"pick": [0, 0, 1, 2], "early": [0]},
    "time_passes": {"span": [3_000, 4_000, 4_000, 1, 4_000, 60_000]},
    "wake_up": {"n": [1, 1, 2, 0], "tag": [5, 1]},
    "withdraw": {"picks": [0]},
}
"""What is done with jobs, with the values that arguments take; picks are drawn."""
UNDISTURBED = ("begin_to_wait", "extend_at_half", "time_comes", "time_passes", "wake_up")
"""Those of them that no fault strikes."""
Acts: TypeAlias = list[tuple[str, list[tuple[int, str]], int]]
ACTS = st.lists(
    st.tuples(st.sampled_from(sorted(ACTIONS)), PICKS, st.integers(0, 9999)), max_size=8
)
"""Several things, one after the other."""
ID_ACTIONS = (
    *["claim"] * 14,
    *["reserve"] * 6,
    *["ack", "settle", "nack", "release", "bury", "bury", "redrive", "redrive"],
    *["delete", "withdraw", "evict", "promote", "recover", "look", "sweep"],
    *["time_comes", "time_passes"] * 3,
)
"""What jobs with dedup ids meet, by weight."""
ID_START = ("claim", "reserve", "claim", "time_passes", "claim", "redrive")
"""What brings them together."""
SIDES = st.sampled_from(["", "", "", "in", "out", "all", "closed", "closed", "drained"])
"""What is paused, or closed, while something is done."""
AMONG = st.sampled_from([("active", "once"), ("active", "once"), ("scheduled", "dead")])
"""Which jobs to pick first."""
LIMITS = st.sampled_from(
    [
        {},
        {"max_crashes": 1},
        {"max_crashes": 1, "max_attempts": 2},
        {"max_crashes": 2},
        {"max_releases": 1},
        {"max_crashes": 0},
    ]
)
"""Limits that most runs meet."""


def call(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """A rule whose call may meet a connection that fails, or a server that lost its scripts."""

    def made(method: Callable[..., None]) -> Any:
        def with_fault(self: Any, fault: Fault, **values: Any) -> None:
            self.fault = fault
            method(self, **values)

        with_fault.__name__, with_fault.__doc__ = method.__name__, method.__doc__
        make: Any = rule(fault=FAULTS, **arguments)
        return make(with_fault)

    return made


class QueueMachine(Waiting):
    """Everything that can be done to a queue, and everything that can happen to it."""

    # -- adding ----------------------------------------------------------------------------

    @initialize(shape=SHAPES, limits=LIMITS, tag=TAGS, side=SIDES, acts=ACTS)
    def begin(
        self, shape: Shape, limits: dict[str, int | None], tag: int, side: str, acts: Acts
    ) -> None:
        """Most queues have jobs in several places; some allow few failures."""
        if limits:
            self.both(lambda: self.model.configure(limits), lambda: self.queue.configure(**limits))
        self.fill(shape, tag, side, acts)

    @rule(shape=SHAPES, tag=TAGS, side=SIDES, acts=ACTS)
    def fill_and_act(self, shape: Shape, tag: int, side: str, acts: Acts) -> None:
        """Some jobs more, in several places, and something is done with them."""
        self.fill(shape, tag, side, acts)

    @rule(seed=st.integers(0, 1 << 32), count=st.sampled_from([5, 20, 60, 60]))
    def ids_and_act(self, seed: int, count: int) -> None:
        """Jobs with dedup ids meet each other, and what ends them: much of it, so drawn by lot."""
        lot = random.Random(seed)
        self.open_up()
        hows = ("receipt", "receipt", "old receipt", "id")
        for at in range(count):
            if at % 15 == 0:  # one is held, another one waits, and time decides between them
                self.act([(name, [(0, "id")], lot.randrange(1 << 30)) for name in ID_START])
            picks = [(lot.choice([0, 0, 0, 1, 1, 2, 5]), lot.choice(hows))]
            picks += picks if lot.random() < 0.1 else [(1, "id")] if lot.random() < 0.2 else []
            self.act([(lot.choice(ID_ACTIONS), picks, lot.randrange(1 << 30))])

    def fill(self, shape: Shape, tag: int, side: str, acts: Acts) -> None:
        """Add jobs, pause perhaps, and do one thing after the other."""
        self.open_up()
        self.fill_with(shape, tag)
        if side == "drained":
            self.purge(fault="", states=["ready", "scheduled"])
        if side in ("closed", "drained"):
            self.close(fault="", closed=True)
        elif side:
            self.pause(fault="", side=side)
        self.act(acts)

    def open_up(self) -> None:
        """Jobs can be added, and delivered."""
        if self.model.paused:
            self.pause(fault="", side="")
        if self.model.closed:
            self.close(fault="", closed=False)

    def act(self, acts: Acts) -> None:
        """One thing after the other, each as likely as any: rules are not drawn evenly."""
        for name, picks, k in acts:
            values = {}
            for key, choices in ACTIONS[name].items():
                k, at = divmod(k, len(choices))
                values[key] = choices[at]
            if "picks" in values and values["picks"] is not None:
                values["picks"] = picks
            if name not in UNDISTURBED:
                values["fault"] = ""
            getattr(self, name)(**values)
            self.jobs_agree()
            self.ids_agree()
            self.tokens_are_there()
            self.nobody_oversleeps()

    def fill_with(self, shape: Shape, tag: int) -> None:
        """Add jobs, each with a lease, a ttl and a fate; those that are delivered come first."""
        for fate, lease, ttl, retry in sorted(shape, key=lambda part: part[0] in WAITING):
            own = {"once": 0, "ended": 1}.get(fate, lease)
            life = 50_000 if own == 0 and ttl is None else ttl
            delay = WAITING.get(fate, 0)
            self.add([self.body()], delay, None, own, life, None, retry, many=False)
            if fate not in WAITING:
                self.reserve_some(1, tag)
                self.end_last(fate)
        self.tokens_are_there()
        self.clock.set(self.clock.ms + 2)  # what is due in 1 ms is due

    def end_last(self, fate: str) -> None:
        """End the last delivery, if that is the fate of its job."""
        job = self.model.jobs.get(self.known[-1].number) if self.known else None
        if job is None or job.place != "active" or not self.known[-1].deliveries:
            return
        delivery = self.known[-1].deliveries[-1]
        name = (job.number, (job.deliveries, job.tag))
        if fate == "dead":
            self.both(lambda: self.model.bury([name], "why"), lambda: delivery.bury("why"))
        elif fate == "failed":
            self.both(
                lambda: self.model.nack([name], 3_000, "no"),
                lambda: delivery.nack(delay=3, error="no"),
            )
        elif fate == "returned":
            self.both(lambda: self.model.release([name], 0), delivery.release)

    def body(self) -> bytes:
        """A body like no other; some are as long as one may be beside its header, or longer."""
        self.bodies += 1
        return (b"body %d" % self.bodies).ljust({0: 4096, 1: 4097, 2: 9000}.get(self.bodies % 9, 0))

    @call(
        count=st.sampled_from([1, 1, 1, 2, 3, 120]),
        many=st.booleans(),
        delay=DELAYS,
        at=st.sampled_from([None, None, None, -500, 0, 1, 3_000]),
        lease=LEASES,
        ttl=TTLS,
        bound=st.sampled_from([None, None, None, 1, 4]),
        retry=RETRY,
    )
    def enqueue(
        self,
        count: int,
        many: bool,
        delay: int,
        at: int | None,
        lease: int | None,
        ttl: int | None,
        bound: int | None,
        retry: Policy | None,
    ) -> None:
        """Add one job, or several."""
        count = count if many else 1
        if lease == 0 and count > 100:
            lease = None  # one script removes 100 of them
        if lease == 0 and ttl is None:
            ttl = 50_000
        if at is not None:
            delay = max(at, 0)
        elif ttl is not None and ttl <= delay:
            delay = 0
        bodies = [self.body() for _ in range(count)]
        self.add(bodies, delay, at, lease, ttl, bound, retry, many=many)

    def add(
        self,
        bodies: list[bytes],
        delay: int,
        at: int | None,
        lease: int | None,
        ttl: int | None,
        bound: int | None,
        retry: Policy | None,
        *,
        many: bool,
    ) -> None:
        """Add jobs to both."""
        options: dict[str, Any] = {
            "delay": delay / 1000 if at is None else 0,
            "at": None if at is None else (self.clock.ms + at) / 1000,
            "lease": None if lease is None else lease / 1000,
            "ttl": None if ttl is None else ttl / 1000,
            "max_length": bound,
            "retry": policy(retry),
        }
        answers: list[Any] = []

        def model() -> Any:
            if not answers:
                answers.append(
                    self.model.enqueue(
                        bodies, delay=delay, lease=lease, ttl=ttl, bound=bound, retry=retry
                    )
                )
            return answers[0]

        def queue() -> Sequence[Enqueued] | str:
            try:
                if many:
                    return self.queue.enqueue_many(bodies, **options)
                return [self.queue.enqueue(bodies[0], **options)]
            except QueueFull:
                return "full"
            except QueuePaused:
                return "paused"
            except QueueClosed:
                return "closed"

        wanted, got, _ = self.both(model, queue)
        if isinstance(wanted, str):
            assert got == wanted
            return
        assert isinstance(got, (list, BulkEnqueued))
        assert [self.learn(result.id).number for result in got] == [job.number for job in wanted]
        assert {result.state for result in got} == {"scheduled" if delay else "ready"}
        if self.model.paused != "out" and not delay:
            self.must_wake = "jobs were added"

    @call(
        names=NAMES,
        many=st.booleans(),
        how=st.sampled_from(sorted(MODES)),
        until=UNTIL,
        window=WINDOWS,
        delay=DELAYS,
        lease=LEASES,
        ttl=TTLS,
        bound=st.sampled_from([None, None, None, 1, 4]),
        retry=RETRY,
    )
    def claim(
        self,
        names: list[int],
        many: bool,
        how: str,
        until: str,
        window: int | None,
        delay: int,
        lease: int | None,
        ttl: int | None,
        bound: int | None,
        retry: Policy | None,
    ) -> None:
        """Add jobs with dedup ids, which others may have."""
        how, window = (
            ("refuse" if until == "enqueued" else how),
            None if until == "started" else window,
        )
        window = 3_000 if until == "enqueued" and window is None else window
        mode = MODES[how] + {"finished": "", "started": "s", "enqueued": "e"}[until]
        ttl = 50_000 if lease == 0 and ttl is None else ttl
        delay = 0 if ttl is not None and ttl <= delay else delay
        jobs = [(IDS[at], self.body()) for at in (names if many else names[:1])]
        bodies = [body for _, body in jobs]
        of = {body: name for name, body in jobs}
        options: dict[str, Any] = {
            "delay": delay / 1000,
            "lease": None if lease is None else lease / 1000,
            "ttl": None if ttl is None else ttl / 1000,
            "max_length": bound,
            "dedup_window": None if window is None else window / 1000,
            "dedup_until": until,
            "on_duplicate": how,
            "retry": policy(retry),
        }
        answers: list[Any] = []

        def model() -> Any:
            if not answers:
                answers.append(
                    self.model.claim(
                        jobs,
                        mode,
                        delay=delay,
                        lease=lease,
                        ttl=ttl,
                        window=window,
                        bound=bound,
                        retry=retry,
                    )
                )
            return answers[0]

        def queue() -> Sequence[Enqueued] | str:
            try:
                if many:
                    return self.queue.enqueue_many(bodies, dedup_id=of.__getitem__, **options)
                return [self.queue.enqueue(bodies[0], dedup_id=of[bodies[0]], **options)]
            except QueueFull:
                return "full"
            except QueuePaused:
                return "paused"
            except QueueClosed:
                return "closed"

        wanted, got, _ = self.both(model, queue)
        if isinstance(wanted, str):
            assert got == wanted
            return
        assert isinstance(got, (list, BulkEnqueued))
        told = [
            Answer(self.learn(one.id).number if one.id else None, one.state, one.action)
            for one in got
        ]
        assert told == wanted
        assert [x.duplicate for x in got] == [x.action in ("updated", "refused") for x in told]
        added = any(x.action == "added" and x.state == "ready" for x in told)
        if added and self.model.paused != "out":
            self.must_wake = "jobs were added"

    @rule(many=st.booleans(), delay=st.sampled_from([0, 0, 50]), was_connected=st.booleans())
    def enqueue_unconfirmed(self, many: bool, delay: int, was_connected: bool) -> None:
        """No replica confirms: nothing is sent, or the job is taken back.

        A replica that confirmed the last call is expected to confirm this one. fakeredis never says
        how many are connected.
        """
        bodies = [self.body() for _ in range(1 + many)]
        self.queue.status(IDS[0])  # so that it is connected; stats would remove what has expired
        for connection in self.client._node._link.callers:
            connection._followers = int(was_connected)

        def model() -> str:
            if not was_connected and not self.bench.is_fake:
                return "0 of 1, True"
            added = self.model.enqueue(bodies, delay=delay)
            if isinstance(added, str):
                return added
            taken_back = self.model.withdraw([job.number for job in added])
            return f"0 of 1, {Outcome.REFUSED not in taken_back}"

        def queue() -> str:
            asked: dict[str, Any] = {"delay": delay / 1000, "replicas": 1, "timeout": 0.001}
            try:
                if many:
                    self.queue.enqueue_many(bodies, **asked)
                else:
                    self.queue.enqueue(bodies[0], **asked)
            except (QueueFull, QueuePaused, QueueClosed) as error:
                return {QueueFull: "full", QueuePaused: "paused"}.get(type(error), "closed")
            except NotReplicated as error:
                return f"{error.got} of {error.wanted}, {error.withdrawn}"
            return "added"

        self.fault = ""
        wanted, got, _ = self.both(model, queue)
        assert got == wanted

    @precondition(lambda self: self.model.exists)
    @rule()
    def wait_for_room(self) -> None:
        """A producer that waits takes the token of room, and tries to add a job."""
        self.raw.lpop(self.ops.keys["space"])
        body = self.body()

        def queue() -> int:
            call = self.ops.enqueue([b"1\n" + body], wait_ms=8_000)
            while True:
                try:
                    reply = self.client._node.run(call)
                    break
                except QueueFull as full:
                    if not full.swept:
                        return Code.FULL
                except QueuePaused:
                    return Code.PAUSED
                except QueueClosed:
                    return Code.CLOSED
            self.learn(self.ops.added(reply, b"1\n", "ffff", 0).id)
            return Code.DONE

        self.fault = ""
        wanted, got, _ = self.both(lambda: self.model.enqueue([body]), queue)
        assert got == {"full": -3, "paused": -4, "closed": -14}.get(str(wanted), 1)

    # -- delivering ------------------------------------------------------------------------

    @call(n=st.sampled_from([1, 1, 2, 3, 10, 200]), tag=TAGS)
    def reserve(self, n: int, tag: int) -> None:
        """Take jobs."""
        self.reserve_some(n, tag)

    def reserve_some(self, n: int, tag: int) -> None:
        """Take jobs from both."""
        self.bench.dice.tag = tag
        provisional = tag in PROVISIONAL

        def model() -> list[ModelJob]:
            while True:
                taken, more = self.model.reserve(n, tag, provisional=provisional)
                if taken or not more:
                    return taken

        def unseen() -> list[ModelJob]:
            # leased, and nobody knows
            return self.model.reserve(n, tag, provisional=provisional)[0]

        def queue() -> tuple[Sequence[Job], bool]:
            if provisional:
                return self.reserve_provisionally(n)
            try:
                return self.queue.reserve(n, block=0), False
            except QueueClosed:
                return [], True

        first = unseen if self.fault == "after" else model
        wanted, (got, is_over), _ = self.both(first, queue, model)
        self.received(wanted, got)
        assert is_over == (self.model.drained and not wanted)
        self.check_rearmed("reserve left something")

    def reserve_provisionally(self, n: int) -> tuple[Sequence[Job], bool]:
        """Take jobs as a worker does; whether the queue is drained."""
        self.client.connect()  # ids need the node's
        while True:
            taken = self.client._node.run(self.ops.reserve(n, provisional=True))
            if taken.deliveries or taken.next_ms != 0:
                return taken.deliveries, taken.is_over and not taken.deliveries

    # -- settling --------------------------------------------------------------------------

    def settle_with(
        self,
        picks: Iterable[tuple[int, str]],
        model: Callable[[list[Name]], Sequence[Any]],
        queue: Callable[[list[Any]], Sequence[Any]],
        fit: Sequence[str],
        gone: bool = False,
    ) -> list[Any]:
        """Name jobs in a call, and compare the outcome of each; what the (last) sending did."""
        names, jobs, current = self.named(picks, fit)
        if not jobs:
            return []
        if not current:
            with pytest.raises(WrongEpoch):
                queue(jobs)
            return []
        plain, got, resent = self.both(lambda: list(model(names)), lambda: list(queue(jobs)))
        mine = Outcome.GONE if gone else Outcome.ENDED
        told = [Outcome.DONE if resent and outcome is mine else outcome for outcome in plain]
        assert got == told
        return plain

    @call(picks=PICKS, among=AMONG, window=ENDS)
    def ack(self, picks: list[tuple[int, str]], among: Sequence[str], window: int | None) -> None:
        """Finish jobs, perhaps with a window of the call's."""
        seconds = None if window is None else window / 1000
        self.settle_with(
            picks,
            lambda names: self.model.ack(names, window),
            lambda jobs: self.queue.ack(jobs, dedup_window=seconds),
            among,
            gone=True,
        )

    @call(picks=PICKS, n=st.sampled_from([1, 2, 10]), tag=TAGS)
    def settle(self, picks: list[tuple[int, str]], n: int, tag: int) -> None:
        """Finish jobs and take others."""
        names, jobs, current = self.named(picks)
        self.bench.dice.tag = tag
        if not current:
            with pytest.raises(WrongEpoch):
                self.queue.settle(jobs, n)
            return

        def script() -> Any:
            return self.model.settle(names, n, tag)[:2]

        def model() -> Any:
            outcomes, taken, more = self.model.settle(names, n, tag)
            while more and not taken:  # whoever waited for the end of what is finished here
                taken, more = self.model.reserve(n, tag)
            return outcomes, taken

        first = script if self.fault == "after" else model
        (outcomes, wanted), (settled, got), resent = self.both(
            first, lambda: self.queue.settle(jobs, n), model
        )
        if resent:
            outcomes = [Outcome.DONE if o is Outcome.GONE else o for o in outcomes]
        assert list(settled) == outcomes
        self.received(wanted, got)
        self.check_rearmed("settle left something")

    @call(
        picks=PICKS,
        among=AMONG,
        delay=st.one_of(st.none(), DELAYS),
        error=st.sampled_from(["", "no", "a\nb"]),
    )
    def nack(
        self, picks: list[tuple[int, str]], among: Sequence[str], delay: int | None, error: str
    ) -> None:
        """Report failures."""
        seconds = None if delay is None else delay / 1000
        done = self.settle_with(
            picks,
            lambda names: self.model.nack(names, delay, error),
            lambda jobs: self.queue.nack(jobs, delay=seconds, error=error),
            among,
        )
        self.take_over_drawn()
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was nacked"

    @call(picks=PICKS, among=AMONG, delay=DELAYS)
    def release(self, picks: list[tuple[int, str]], among: Sequence[str], delay: int) -> None:
        """Give jobs back."""
        done = self.settle_with(
            picks,
            lambda names: self.model.release(names, delay),
            lambda jobs: self.queue.release(jobs, delay=delay / 1000),
            among,
        )
        if Outcome.DONE in done and delay == 0 and not self.model.paused:
            self.must_wake = "a job was released"

    @call(picks=PICKS, among=AMONG, reason=st.sampled_from(["", "poison", "é" * 600]))
    def bury(self, picks: list[tuple[int, str]], among: Sequence[str], reason: str) -> None:
        """Give jobs up."""
        kept = reason.encode()[:1024].decode()
        self.settle_with(
            picks,
            lambda names: self.model.bury(names, kept),
            lambda jobs: self.queue.bury(jobs, reason),
            among,
        )

    @call(
        n=st.sampled_from([1, 1, 2, 3, 1000]),
        idle=st.sampled_from([0, 1, 2, 1_000, 3_000, 20_000]),
        tag=TAGS,
    )
    def recover(self, n: int, idle: int, tag: int) -> None:
        """Take deliveries over that were made so long ago."""
        self.recover_some(n, idle, tag)

    @rule(n=st.integers(1, 3), pick=st.integers(0, 3), early=st.sampled_from([0, 0, 1]), tag=TAGS)
    def recover_to_the_ms(self, n: int, pick: int, early: int, tag: int) -> None:
        """The bound is the age of one of them, or 1 ms more."""
        self.set_model_clock()
        held = self.model.at("active")
        ages = sorted(max(0, self.model.now - (job.delivered or 0)) for job in held)
        if ages:
            self.fault = ""
            self.recover_some(n, ages[pick % len(ages)] + early, tag)

    def recover_some(self, n: int, idle: int, tag: int) -> None:
        """Take deliveries over from both; a fault strikes the script that takes them."""
        self.bench.dice.tag = tag
        lost = self.fault == "after"
        wanted, got, _ = self.both(
            list if lost else (lambda: self.model.recover(n, idle, tag)),
            lambda: self.queue.recover(n, idle=idle / 1000),
            lambda: self.model.recover(n, idle, tag, lost=True),
            spared=1,
        )
        self.received(wanted, got)

    @call(picks=PICKS, lease=st.sampled_from([None, 1, 3_000, 80_000]), late=st.booleans())
    def extend(self, picks: list[tuple[int, str]], lease: int | None, late: bool) -> None:
        """Renew leases."""

        def model(names: list[Name]) -> list[Any]:
            found = self.model.extend(names, lease, late)
            return [x if isinstance(x, Outcome) else x / 1000 for x in found]

        names, jobs, current = self.named(picks)
        if not current:
            return
        seconds = None if lease is None else lease / 1000
        wanted, got, _ = self.both(
            lambda: model(names), lambda: self.queue.extend(jobs, seconds, late=late)
        )
        assert got == wanted

    @rule(pick=st.integers(0, 3), after=st.sampled_from([0, 0, 1]))
    def extend_at_half(self, pick: int, after: int) -> None:
        """At the half of a ttl a lease may be extended, a ms after it no more."""
        self.set_model_clock()
        halves = [
            job.number[0] + job.ttl // 2 + after - self.model.now
            for job in self.model.at("active")
            if job.ttl
        ]
        ahead = [span for span in halves if span >= 0]
        if ahead:
            self.clock.set(self.clock.ms + ahead[pick % len(ahead)])
            self.extend(fault="", picks=[(0, "id"), (1, "id"), (2, "id")], lease=None, late=False)

    def take_over_drawn(self) -> None:
        """Due times that were drawn by lot: within their bounds, and from now on the model's."""
        for job in self.model.jobs.values():
            if job.drawn is not None:
                number = b"%d-%d" % job.number
                due = int(self.raw.zscore(self.ops.keys["scheduled"], number) or 0)
                assert due in job.drawn
                job.at, job.drawn = due, None

    # -- moving ----------------------------------------------------------------------------

    def move_with(
        self,
        picks: Iterable[tuple[int, str]],
        model: Callable[[Iterable[Number]], list[Outcome]],
        queue: Callable[[list[Any]], Sequence[Outcome]],
        mine: Outcome | None,
        fit: Sequence[str],
    ) -> list[Outcome]:
        """Name jobs in a call that asks for no receipt.

        Args:
            picks: which.
            model, queue: the call.
            mine: what a second sending answers for what the first one did.
            fit: which jobs to pick first.
        """
        names, jobs, current = self.named(picks, fit)
        if not jobs:
            return []
        if not current:
            with pytest.raises(WrongEpoch):
                queue(jobs)
            return []
        wanted, got, resent = self.both(
            lambda: model(number for number, _ in names), lambda: list(queue(jobs))
        )
        assert got == [Outcome.DONE if resent and x is mine else x for x in wanted]
        return wanted

    @call(picks=PICKS)
    def promote(self, picks: list[tuple[int, str]]) -> None:
        """Bring jobs forward."""
        done = self.move_with(
            picks, self.model.promote, self.queue.promote, Outcome.REFUSED, ["scheduled", "active"]
        )
        if Outcome.DONE in done and not self.model.paused:
            self.must_wake = "a job was brought forward"

    @call(picks=PICKS)
    def dequeue(self, picks: list[tuple[int, str]]) -> None:
        """Take jobs out for their lease."""
        self.move_with(picks, self.model.dequeue, self.queue.dequeue, Outcome.REFUSED, ["ready"])

    @call(picks=PICKS)
    def withdraw(self, picks: list[tuple[int, str]]) -> None:
        """Take back what nobody has been given."""
        self.move_with(
            picks, self.model.withdraw, self.queue.withdraw, Outcome.GONE, ["scheduled", "ready"]
        )

    @call(n=st.sampled_from([1, 1, 2, 3, 100]), dead=st.booleans())
    def evict(self, n: int, dead: bool) -> None:
        """Make room."""
        wanted, got, _ = self.both(
            lambda: self.model.evict(n, dead), lambda: self.queue.evict(n, dead=dead)
        )
        assert got == wanted

    # -- removing, bringing back -----------------------------------------------------------

    @call(picks=st.one_of(st.none(), PICKS), limit=st.sampled_from([None, 1, 2]))
    def redrive(self, picks: list[tuple[int, str]] | None, limit: int | None) -> None:
        """Bring dead letters back: by name, or the oldest."""
        names, jobs, current = self.named(picks or [], ["dead"])
        if picks is None:
            lost = self.fault == "after"
            wanted, got, resent = self.both(
                lambda: self.model.redrive(limit, step=lost),
                lambda: self.queue.redrive(limit=limit),
                lambda: self.model.redrive(limit),
            )
        elif current:
            outcomes, got, resent = self.both(
                lambda: self.model.redrive_these(number for number, _ in names),
                lambda: self.queue.redrive(jobs),
            )
            wanted = outcomes.count(Outcome.DONE)
            if resent:  # whatever is not dead now may be so by the first sending
                wanted += outcomes.count(Outcome.REFUSED)
        else:
            with pytest.raises(WrongEpoch):
                self.queue.redrive(jobs)
            return
        assert got == wanted
        if got and not resent and not self.model.paused:
            self.must_wake = "dead letters were brought back"

    @call(picks=PICKS)
    def delete(self, picks: list[tuple[int, str]]) -> None:
        """Remove jobs by name."""
        self.move_with(picks, self.model.delete, self.queue.delete, Outcome.GONE, ["active"])

    @call(states=st.lists(st.sampled_from(STATES), unique=True, max_size=4))
    def purge(self, states: list[str]) -> None:
        """Remove all jobs of some states."""
        chosen = states or ["ready", "scheduled"]
        first = 0 if self.fault == "after" else None  # only the first step is run twice
        wanted, got, _ = self.both(
            lambda: self.model.purge(chosen, first),
            lambda: self.queue.purge(*states),
            lambda: self.model.purge(chosen),
        )
        assert got == wanted

    @call()
    def sweep(self) -> None:
        """Give back what has ended."""
        existed = self.model.exists

        quiet = self.meta("seen")[0]

        def step() -> tuple[int, bool]:
            return self.model.sweep(self.model.now - quiet)

        def model() -> int:
            total, more = 0, True
            while more:
                removed, more = step()
                total += removed
            return total

        first: Callable[[], Any] = step if self.fault == "after" else model
        wanted, got, _ = self.both(first, self.queue.sweep, model)
        self.has_changed = False  # a sweep that keeps a queue alive would never end its life
        assert got == wanted
        self.nothing_is_left()
        if existed and not self.model.exists:
            self.begin_anew()

    @call()
    def clear(self) -> None:
        """Remove the queue with everything in it."""
        existed = self.model.exists
        wanted, got, _ = self.both(self.model.clear, self.queue.clear)
        assert got == wanted
        assert not self.raw.exists(*(self.ops.keys[kind] for kind in self.ops.keys.names))
        self.has_changed, self.had = False, (0, 0)
        if existed:
            self.begin_anew()

    def begin_anew(self) -> None:
        """The queue is gone: whatever is added now belongs to another life of it."""
        self.life += 1
        self.by_number.clear()
        self.latest_seen = 0

    # -- settings --------------------------------------------------------------------------

    @call(values=SETTINGS)
    def configure(self, values: dict[str, int | None]) -> None:
        """Change settings."""
        given: dict[str, Any] = {
            name: value / 1000 if value and SETTING_KINDS[name] in ("lease", "duration") else value
            for name, value in values.items()
        }
        _, got, _ = self.both(
            lambda: self.model.configure(values), lambda: self.queue.configure(**given)
        )
        assert got == self.settings()
        self.check_rearmed("the queue was configured")

    @call(side=st.sampled_from(["in", "out", "all", "", "", "", ""]))
    def pause(self, side: str) -> None:
        """Pause a side, or resume."""
        if side:
            self.both(lambda: self.model.pause(side), lambda: self.queue.pause(side))
        else:
            self.both(lambda: self.model.pause(""), self.queue.resume)
            self.must_wake = "the queue was resumed"

    @call(closed=st.sampled_from([True, False, False]))
    def close(self, closed: bool) -> None:
        """Close the queue, or open it again, and see whether it is over."""
        call = self.queue.close if closed else self.queue.reopen
        self.both(lambda: self.model.close(closed), call)
        self.tokens_are_there()
        self.reserve_some(1, 5)
        self.tokens_are_there()

    # -- time and failures -----------------------------------------------------------------

    @rule(span=SPANS)
    def time_passes(self, span: int) -> None:
        """The clock goes on."""
        self.clock.set(self.clock.ms + span)

    @rule(pick=st.integers(0, 9), early=st.sampled_from([0, 0, 1]))
    def time_comes(self, pick: int, early: int) -> None:
        """The clock goes on to the time of an event, or 1 ms before it."""
        self.set_model_clock()
        times = {job.at for job in self.model.jobs.values() if job.at != NEVER}
        times |= {one.end for one in self.model.ids.values()}
        lives = [(job.number[0], job.ttl) for job in self.model.jobs.values() if job.ttl]
        times |= {created + ttl for created, ttl in lives}
        times |= {created + ttl // 2 for created, ttl in lives}  # after it an extend is too late
        future = sorted(at for at in times if at - early > self.model.now)
        if pick < len(future):
            self.clock.set(self.clock.ms + future[pick] - early - self.model.now)

    @rule(span=st.sampled_from([1, 300, 999, 5_000, 100_000]))
    def clock_steps_back(self, span: int) -> None:
        """The server's clock is set back."""
        self.timer = None
        self.clock.set(self.clock.ms - span)

    @rule(span=st.sampled_from([-WRONG, -4_000_000, 4_000_000, WRONG]), acts=ACTS)
    def clock_is_wrong(self, span: int, acts: Acts) -> None:
        """The server's clock is wrong for a while, and then right again.

        Windows that have ended are removed first: one that is left would be open again.
        """
        self.timer = None
        self.sweep(fault="")
        self.clock.set(self.clock.ms + span)
        self.act(acts)
        self.clock.set(self.clock.ms - span)
        self.timer = None

    # -- looking -----------------------------------------------------------------------------

    @call()
    def look(self) -> None:
        """Every figure, and the lists of all states; a look gives back what has expired."""
        _, stats, _ = self.both(self.model.expire, self.queue.stats)
        self.has_changed = False  # it notes no time: a look would keep an unused queue alive
        self.counted(stats)
        assert stats.closed == self.model.closed
        for state in STATES:
            self.look_at(state, 1000, 0, newest=False)
            self.look_at(state, 1000, 0, newest=True)
            self.look_at(state, 2, -2, newest=False)

    @call(
        state=st.sampled_from(STATES),
        n=st.integers(1, 5),
        start=st.integers(-6, 4),
        newest=st.booleans(),
    )
    def peek(self, state: str, n: int, start: int, newest: bool) -> None:
        """A part of a list, from either end."""
        self.look_at(state, n, abs(start) if newest else start, newest=newest)

    def look_at(self, state: str, n: int, start: int, *, newest: bool) -> None:
        """A part of a list."""

        def model() -> list[ModelJob]:
            self.model.expire()
            jobs = self.model.listed(state)
            if newest:
                return jobs[::-1][start : start + n]
            if start < 0:
                return jobs[start:][:n] if -start <= len(jobs) else []
            return jobs[start : start + n]

        wanted, got, _ = self.both(
            model, lambda: self.queue.peek(n, state=state, start=start, newest=newest)
        )
        self.has_changed = False
        self.peeked(got, wanted)

    @rule(
        n=st.sampled_from([1, 2, 7, 100]),
        states=st.lists(st.sampled_from(STATES), unique=True, min_size=1),
        full=st.booleans(),
    )
    def scan(self, n: int, states: list[str], full: bool) -> None:
        """Every job of some states, in steps of any size."""
        self.set_model_clock()
        self.scanned(n, states, full=full)


class IdsMachine(QueueMachine):
    """Every run begins with jobs that have few dedup ids, and what ends them."""

    @initialize(seed=st.integers(0, 1 << 32))
    def begin_with_ids(self, seed: int) -> None:
        """Much of it, before anything else or behind a few jobs without ids."""
        self.ids_and_act(seed=seed, count=60)
