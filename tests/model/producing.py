"""Rules that add jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from penstock import (
    BulkEnqueued,
    Dedup,
    Durable,
    Enqueued,
    NotReplicated,
    Outcome,
    QueueClosed,
    QueueFull,
    QueuePaused,
)
from penstock.wire.codes import Code
from tests.model.draws import (
    DELAYS,
    KEYS,
    LEASES,
    MODES,
    NAMES,
    RETRY,
    TTLS,
    UNTIL,
    WINDOWS,
    call,
)
from tests.model.jobs import Answer, Policy
from tests.model.side import IDS, policy
from tests.model.waiting import Waiting

__all__ = ["Producing"]


class Producing(Waiting):
    """Rules that add jobs, with or without dedup ids, and wait for room.

    Attributes:
        has_keys: all jobs that producers add by themselves have keys.
    """

    has_keys = False

    def body(self) -> bytes:
        """Return a unique body; some are of the maximum inline size, or longer."""
        self.bodies += 1
        return (b"body %d" % self.bodies).ljust({0: 4096, 1: 4097, 2: 9000}.get(self.bodies % 9, 0))

    def keys_of(self, bodies: Sequence[bytes], key: str) -> dict[bytes, str]:
        """Return the key of each body; mixed = a or b."""
        key = key or ("mixed" if self.has_keys else "")
        if key != "mixed":
            return dict.fromkeys(bodies, key) if key else {}
        return {body: "aba"[(self.bodies + at) % 3] for at, body in enumerate(bodies)}

    def allowed(self, retry: Policy | None) -> Policy | None:
        """Return a policy without its priority if the queue is ordered, or shall be."""
        if retry and (
            self.model.is_ordered or (self.has_keys and "per_key" not in self.model.settings)
        ):
            return (*retry[:3], None)
        self.is_prioritised |= bool(retry and retry[3])
        return retry

    @call(
        count=st.sampled_from([1, 1, 1, 2, 3, 120]),
        many=st.booleans(),
        delay=DELAYS,
        at=st.sampled_from([None, None, None, -500, 0, 1, 3_000]),
        lease=LEASES,
        ttl=TTLS,
        bound=st.sampled_from([None, None, None, 1, 4]),
        retry=RETRY,
        key=KEYS,
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
        key: str,
    ) -> None:
        """Add one job, or several."""
        count = min(count, 6 if key or self.has_keys else 120) if many else 1
        if lease == 0 and count > 100:
            lease = None  # one script removes 100 of them
        if lease == 0 and ttl is None:
            ttl = 50_000
        if at is not None:
            at = 0 if ttl is not None and ttl <= at else at
            delay = max(at, 0)
        elif ttl is not None and ttl <= delay:
            delay = 0
        bodies = [self.body() for _ in range(count)]
        self.add(bodies, delay, at, lease, ttl, bound, retry, many=many, key=key)

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
        key: str = "",
    ) -> None:
        """Add jobs to the model and the queue."""
        keys, retry = self.keys_of(bodies, key), self.allowed(retry)
        options: dict[str, Any] = {
            "delay": delay / 1000 if at is None else 0,
            "at": None if at is None else (self.clock.ms + at) / 1000,
            "lease": None if lease is None else lease / 1000,
            "ttl": None if ttl is None else ttl / 1000,
            "max_length": bound,
            "retry": policy(retry),
            "priority": retry and retry[3],
        }
        answers: list[Any] = []

        def model() -> Any:
            if not answers:
                answers.append(
                    self.model.enqueue(
                        bodies,
                        delay=delay,
                        lease=lease,
                        ttl=ttl,
                        bound=bound,
                        retry=retry,
                        keys=keys,
                    )
                )
            return answers[0]

        def queue() -> Sequence[Enqueued] | str:
            try:
                if many:
                    by_body = keys.__getitem__ if keys else None
                    return self.queue.enqueue_many(bodies, key=by_body, **options)
                return [self.queue.enqueue(bodies[0], key=keys.get(bodies[0]), **options)]
            except QueueFull:
                return "full"
            except QueuePaused:
                return "paused"
            except QueueClosed:
                return "closed"

        wanted, got, _ = self.both(model, queue, adds=True)
        if isinstance(wanted, str):
            assert got == wanted
            return
        assert isinstance(got, (list, BulkEnqueued))
        assert [self.learn(result.id).number for result in got] == [job.number for job in wanted]
        assert {result.state for result in got} == {"scheduled" if delay else "ready"}
        is_there = any(job.place != "parked" for job in wanted)
        if self.wakes_for_jobs and not delay and is_there:
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
        key=KEYS,
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
        key: str,
    ) -> None:
        """Add jobs with dedup ids that may be taken."""
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
        keys, retry = self.keys_of(bodies, key), self.allowed(retry)
        options: dict[str, Any] = {
            "delay": delay / 1000,
            "lease": None if lease is None else lease / 1000,
            "ttl": None if ttl is None else ttl / 1000,
            "max_length": bound,
            "retry": policy(retry),
            "priority": retry and retry[3],
        }
        chosen = Dedup(
            of.__getitem__ if many else of[bodies[0]],
            window=None if window is None else window / 1000,
            until=until,
            on_duplicate=how,
        )
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
                        keys=keys,
                    )
                )
            return answers[0]

        def queue() -> Sequence[Enqueued] | str:
            try:
                if many:
                    by_body = keys.__getitem__ if keys else None
                    return self.queue.enqueue_many(bodies, dedup=chosen, key=by_body, **options)
                key = keys.get(bodies[0])
                return [self.queue.enqueue(bodies[0], dedup=chosen, key=key, **options)]
            except QueueFull:
                return "full"
            except QueuePaused:
                return "paused"
            except QueueClosed:
                return "closed"

        wanted, got, _ = self.both(model, queue, adds=True)
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
        if added and self.wakes_for_jobs:
            self.must_wake = "jobs were added"

    @rule(many=st.booleans(), delay=st.sampled_from([0, 0, 50]), was_connected=st.booleans())
    def enqueue_unconfirmed(self, many: bool, delay: int, was_connected: bool) -> None:
        """Enqueue without a confirming replica: nothing is sent, or the job is withdrawn.

        A replica that confirmed the last call is expected to confirm this one. fakeredis never says
        how many are connected.
        """
        bodies = [self.body() for _ in range(1 + many)]
        self.queue.dedup_status(IDS[0])  # connects; stats would remove expired jobs
        for connection in self.client.topology.executor.connections.idle:
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
            asked: dict[str, Any] = {"delay": delay / 1000, "durable": Durable(1, timeout=0.001)}
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
        """Let a waiting producer take the token of room, and try to add a job."""
        self.raw.lpop(self.ops.keys["space"])
        body = self.body()

        def queue() -> int:
            call = self.ops.enqueue([b"1\n" + body], wait_ms=8_000)
            while True:
                try:
                    reply = self.client.topology.executor.run(call)
                    break
                except QueueFull as full:
                    if not full.expired:
                        return Code.FULL
                except QueuePaused:
                    return Code.PAUSED
                except QueueClosed:
                    return Code.CLOSED
            self.learn(self.ops.id_of(reply.first, reply.epoch, "ffff"))
            return Code.DONE

        self.fault = ""
        wanted, got, _ = self.both(lambda: self.model.enqueue([body]), queue)
        assert got == {"full": -3, "paused": -4, "closed": -14}.get(str(wanted), 1)
