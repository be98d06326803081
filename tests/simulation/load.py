"""The load of a system: what its producers, its handlers and its operator do."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.exceptions import TryAgainError

from penstock import (
    AsyncJob,
    AsyncPenstock,
    AsyncQueue,
    AsyncSteps,
    Done,
    Handlers,
    JobCancelled,
    JobExpired,
    JobFailed,
    OutOfMemory,
    PenstockError,
    QueueClosed,
    QueueFull,
    QueuePaused,
    ResultGone,
    ResultTimeout,
    RetryPolicy,
    Snooze,
    StepFailed,
    StepTimeout,
)
from tests.simulation.faults import LONGEST_DELAY, LONGEST_TAIL
from tests.simulation.ledger import LOST, RESULT, Entry, Ledger, Rate, Run, follow_up_of
from tests.simulation.loop import current_process
from tests.simulation.places import urls_of
from tests.simulation.plan import FAULT_SECONDS, Plan
from tests.simulation.world import World

__all__ = ["LEASE", "PARTITIONS", "RATE", "SECONDS_OF_DEED", "TICK_SECONDS", "Load"]

QUEUE = "work"
LEASE = 3.0
STEPS, SLEEP_SECONDS = 3, 0.5
"""Of a job whose handler takes steps, and sleeps behind each."""
WAIT_SECONDS = 4.0
"""Of a job whose handler waits for a signal."""
CALLED_DEEDS = ("ok", "fails once", "long", "nap", "always fails")
"""Of the jobs that the steps of a handler call: the first alone, the next ones together."""
PARTITIONS = 3
DEEDS = (
    *("ok", "ok", "ok", "nap", "long", "longest"),
    *("fails once", "always fails", "snoozes", "once"),
)
DEEDS_OF_FEATURE = {
    "hand-over": ("hands over", "hands over"),
    "steps": ("steps", "steps"),
    "hold": ("holds",),
    "extend": ("extends",),
    "hands batch": ("hands a batch",),
    "on dead": ("always fails",),
    "waits": ("waits", "waits"),
    "calls": ("calls", "calls"),
}
OPTIONS_OF_DEED: dict[str, dict[str, Any]] = {
    "once": {"lease": 0},
    "steps": {"headers": {"handler": "steps"}},
    "waits": {"headers": {"handler": "waits"}},
    "calls": {"headers": {"handler": "calls"}},
}
EXTENSION = 2 * LEASE
SECONDS_OF_DEED = {"nap": 0.5, "long": 2.5 * LEASE, "longest": 6 * LEASE, "extends": EXTENSION}
KEYS = ("", "", "a", "b")
DEDUP_IDS = ("", "x", "y", "z")
MORTAL_DEEDS = ("ok", "nap", "long", "fails once", "snoozes")
"""Of jobs with a dedup id: they end, and free it."""
SCHEDULE, DECLARED, TICK_SECONDS = "often", "declared", 5.0
POLICY = RetryPolicy(max_attempts=3, base=0.2, cap=1.0)
"""Of jobs that always fail. The others have no limit: a crash counts as an attempt."""
PATIENT = RetryPolicy(max_attempts=0, base=0.2, cap=1.0)
DOCUMENTED = (PenstockError, RedisConnectionError, RedisTimeoutError, TryAgainError)
"""The errors that a call may raise; the last one in a cluster whose slot does not get on."""
REFUSALS = (OutOfMemory, QueueClosed, QueueFull, QueuePaused)
"""Errors of an enqueue that say that nothing was added."""
LONGEST_PAUSE = 8.0
"""Most seconds for which the operator pauses or holds the queue."""


RATE, KEY_RATE = Rate(6, 1.0, 4), Rate(2, 1.0, 2)
SLOTS = 3
"""The most jobs that are delivered at once."""


class Load:
    """The load of a system.

    Args:
        world: the world.
        plan: what the system consists of.
        ledger: gets what happens.
    """

    def __init__(self, world: World, plan: Plan, ledger: Ledger) -> None:
        self.world = world
        self.plan = plan
        self.ledger = ledger
        self.until = world.clock.now + FAULT_SECONDS
        self._serial = 0
        self._follow: Any = None

    def has(self, feature: str) -> bool:
        """Return whether the plan has a feature."""
        return feature in self.plan.features

    @property
    def _may_be_late(self) -> bool:
        """Whether a refused call may still run: a copy of it is late (durability.md)."""
        return any("delay request" in part or "slow server" in part for part in self.plan.parts)

    @property
    def slots(self) -> int | None:
        """Return how many jobs a node, or each of its partitions, delivers at once; None = any."""
        if not self.has("slots"):
            return None
        return max(1, SLOTS // self.parts)

    @property
    def parts(self) -> int:
        """Return the number of partitions; 1 = there are none."""
        return PARTITIONS if self.has("partitions") else 1

    @property
    def schedules(self) -> list[str]:
        """Return the names of the schedules: a client's own, and that of the handlers."""
        features = {"schedule": SCHEDULE, "declared": DECLARED}
        return [name for feature, name in features.items() if self.has(feature)]

    def client(self, name: str) -> AsyncPenstock:
        """Return a client that connects at its first call: the server may be down."""
        return self.world.client(name, *urls_of(self.plan))

    def queue(self, client: AsyncPenstock) -> AsyncQueue:
        """Return the queue."""
        return client.queue(QUEUE, partitions=PARTITIONS if self.has("partitions") else None)

    # -- producers -------------------------------------------------------------------------

    async def produce(self, name: str) -> None:
        """Add jobs until the faults end."""
        draws, clock = self.world.draws, self.world.clock
        client = self.client(name)
        try:
            queue = self.queue(client)
            await self.configure(queue)
            while clock.now < self.until:
                await asyncio.sleep(draws.expovariate(1.0))
                with suppress(*DOCUMENTED):
                    await self._act(queue, name)
        finally:
            await client.close()

    async def configure(self, queue: AsyncQueue) -> None:
        """Store the settings and the schedule, however often that fails."""
        settings: dict[str, Any] = {"lease": LEASE, "max_crashes": 0, "result_ttl": 600}
        if self.has("keys"):
            settings["ordered"] = True
        if self.has("share"):
            settings["share"] = 1
        if self.has("key rate"):
            pace = f"{KEY_RATE.count}/{KEY_RATE.seconds:.0f}s"
            settings |= {"key_rate": pace, "key_burst": KEY_RATE.burst}
        if self.has("bounded"):
            settings["max_length"] = 6
        if self.has("slots"):
            settings["max_active"] = SLOTS
        if self.has("rate"):
            settings |= {"rate": f"{RATE.count}/{RATE.seconds:.0f}s", "burst": RATE.burst}
        while True:
            with suppress(*DOCUMENTED):
                await queue.configure(**settings)
                if self.has("schedule"):
                    await queue.schedules.add(SCHEDULE, job={"tick": True}, every=TICK_SECONDS)
                return
            await asyncio.sleep(0.1)

    async def configure_anew(self) -> None:
        """Configure the queue with a client of its own."""
        client = self.client("operator")
        try:
            await self.configure(self.queue(client))
        finally:
            await client.close()

    async def _act(self, queue: AsyncQueue, name: str) -> None:
        draws = self.world.draws
        if self.has("batches") and draws.random() < 0.1:
            await self._add_batch(queue, name)
            return
        entry = self._draw_entry(name)
        added = await self._enqueue(queue, entry)
        if added is None:
            return
        if entry.deed == "waits":
            await self._signal(queue, entry, added)
        if draws.random() < 0.1:
            await self._cancel(queue, entry, added)
        elif draws.random() < 0.1:
            await self._await_result(queue, entry, added)

    async def _enqueue(self, queue: Any, entry: Entry) -> str | None:
        """Add a job; return its id, or None if it was refused or is a duplicate."""
        try:
            added = await queue.enqueue({"name": entry.name}, **self._options_of(entry))
        except DOCUMENTED as error:
            is_known = isinstance(error, REFUSALS) and not self._may_be_late
            self.ledger.refuse(entry, error, is_known=is_known)
            return None
        if added.duplicate:
            self.ledger.accept_duplicate(entry, added.id)
            return None
        self.ledger.accept(entry, added.id)
        return str(added.id)

    async def _add_batch(self, queue: AsyncQueue, name: str) -> None:
        then = self._entry(name, "ok")
        then.is_callback = True
        callback = {"name": then.name}
        async with queue.batch(then=callback, on="finished", results=True) as batch:
            deeds = ["ok", "nap", "always fails"]
            if self.has("hand-over"):
                deeds[0] = "hands over"
            for deed in deeds:
                member = self._entry(name, deed)
                then.members.append(member)
                await self._enqueue(batch, member)
        self.ledger.accept(then, batch.id)
        if self.world.draws.random() < 0.3:
            await self._watch_batch(queue, then, batch.id)
            await self._await_result(queue, then, batch.id)

    async def _watch_batch(self, queue: AsyncQueue, then: Entry, batch_id: str) -> None:
        """Look at the counts of a batch."""
        status = await queue.batches.get(batch_id)
        self.world.note("batch", then.name, status)
        if status is not None:
            ended = status.done + status.failed + status.dead
            joined = sum(member.is_accepted for member in then.members)
            excused = any(member.excuses for member in then.members)
            if not excused and not max(joined, ended) <= status.total <= len(then.members):
                self.ledger.complain(f"the batch of {then.name} has {status}")

    def _draw_entry(self, producer: str) -> Entry:
        draws = self.world.draws
        deeds = list(DEEDS)
        for feature, more in DEEDS_OF_FEATURE.items():
            deeds += more if self.has(feature) else ()
        if self.has("slots"):  # a delivery at most once that got lost has its slot for a day
            deeds.remove("once")
        entry = self._entry(producer, draws.choice(deeds))
        if self.has("keys") and entry.deed != "once":
            # A producer's own key: the order of two producers is not known to either.
            key = draws.choice(KEYS)
            entry.key = key and f"{producer}-{key}"
        elif self.has("dedup") and entry.deed in MORTAL_DEEDS:
            entry.dedup_id = draws.choice(DEDUP_IDS)
        if self.has("ttl") and entry.deed != "once" and draws.random() < 0.3:
            entry.ttl = draws.uniform(0.5, 15.0)
        return entry

    def _entry(self, producer: str, deed: str) -> Entry:
        self._serial += 1
        entry = Entry(f"{producer}.{self._serial}", deed)
        self.ledger.attempt(entry)
        return entry

    def _options_of(self, entry: Entry) -> dict[str, Any]:
        draws, options = self.world.draws, dict[str, Any]()
        options["retry"] = POLICY if entry.deed == "always fails" else PATIENT
        options |= OPTIONS_OF_DEED.get(entry.deed, {})
        if entry.ttl is not None:
            options["ttl"] = entry.ttl
        if self.has("replicas") and entry.deed != "once" and draws.random() < 0.5:
            options["replicas"], entry.is_confirmed = 1, True
        if self.has("bounded") and draws.random() < 0.3:
            options["block"] = draws.uniform(0.5, 5.0)
        if entry.key:
            options["key"] = entry.any_key = entry.key
            entry.paced_key = entry.key if self.has("key rate") else ""
            self._follow_death(entry, options)
            return options
        # With a key, a dedup id is one of the partition of the key.
        may_have_key = not (entry.dedup_id and self.has("partitions"))
        without_order = self.has("share") or self.has("key rate") or self.has("key hold")
        # One that is delivered at most once, and gets lost, keeps the ticket of its key for a day.
        if without_order and may_have_key and (key := draws.choice(KEYS)) and entry.deed != "once":
            options["key"] = entry.any_key = key
            entry.paced_key = key if self.has("key rate") else ""
        self._follow_death(entry, options)
        if entry.dedup_id:
            options["dedup_id"] = entry.dedup_id
        if draws.random() < 0.2:
            options["delay"] = draws.uniform(0.1, 5.0)
        if draws.random() < 0.2:
            options["priority"] = draws.randint(1, 9)
        return options

    def _follow_death(self, entry: Entry, options: dict[str, Any]) -> None:
        if self.has("on dead") and entry.deed == "always fails":
            options["on_dead"] = "mourns"
            self.ledger.expect_follow_up(entry)

    async def _cancel(self, queue: AsyncQueue, entry: Entry, job_id: str) -> None:
        entry.is_cancelled = True
        with suppress(*DOCUMENTED):
            (outcome,) = await queue.cancel([job_id])
            self.world.note("cancels", entry.name, outcome)

    async def _signal(self, queue: AsyncQueue, entry: Entry, job_id: str) -> None:
        """Give a job some signals of one name, before or behind its timeout."""
        draws = self.world.draws
        for number in range(draws.choice((0, 1, 2))):
            await asyncio.sleep(draws.uniform(0.0, 0.8 * WAIT_SECONDS))
            value = f"{entry.name} {number}"
            with suppress(*DOCUMENTED):
                outcome = await queue.signal(job_id, "go", value)
                self.world.note("signals", value, outcome)
                if outcome:
                    self.ledger.see_outcome(job_id, entry, value)

    async def _await_result(self, queue: AsyncQueue, entry: Entry, job_id: str) -> None:
        try:
            value = await queue.result(job_id, timeout=60)
        except JobFailed:
            if entry.deed != "always fails" and not entry.excuses:
                self.ledger.complain(f"the result of {entry.name} is a failure")
        except ResultGone:
            is_hinted = self.has("two nodes")  # an ack that another node keeps has no result
            if not (is_hinted or entry.excuses & {LOST, RESULT}):
                self.ledger.complain(f"the result of {entry.name} is gone")
        except JobExpired:
            if entry.ttl is None:
                self.ledger.complain(f"{entry.name} has expired, and has no ttl")
        except (ResultTimeout, JobCancelled, *DOCUMENTED[1:]) as error:
            self.world.note("no result", entry.name, type(error).__name__)
        else:
            self.world.note("result", entry.name, value)
            if value != entry.name:
                self.ledger.complain(f"the result of {entry.name} is {value!r}")

    # -- handlers --------------------------------------------------------------------------

    def handlers(self) -> Handlers:
        """Return the handlers of a worker."""
        handlers = Handlers()
        handlers.handler("steps")(self._take_steps)
        handlers.handler("mourns")(self._mourn)
        if self.has("declared"):
            declare = handlers.handler(DECLARED, queue=QUEUE, every=TICK_SECONDS)
            declare(self._run_declared)
        handlers.handler("waits")(self._wait)
        handlers.handler("calls")(self._call)
        self._follow = handlers.default(self._handle).options(retry=PATIENT)
        return handlers

    async def _handle(self, job: Any) -> Any:
        if "tick" in job.body:
            self.ledger.tick(job.scheduled_for, job, SCHEDULE)
            return None
        name = job.body["name"]
        run = self._begin(name, job)
        deed, is_done = run.entry.deed, False
        try:
            if deed == "extends":
                await self._extend(run)
            await asyncio.sleep(SECONDS_OF_DEED.get(deed, 0.02) * self.world.draws.uniform(0.5, 1))
            if deed == "always fails" or (deed == "fails once" and run.entry.runs == 1):
                raise ValueError(deed)
            if deed == "snoozes" and run.entry.runs == 1:
                return Snooze(0.5)
            if deed == "holds" and run.entry.runs == 1:
                return Snooze(0.5, hold="key" if run.entry.any_key else "queue")
            if run.entry.members:  # it is the callback of a batch
                self.ledger.see_values(run.entry, await job.batch_results(return_exceptions=True))
            is_done = True
        finally:
            self.ledger.end(run, is_done=is_done)
        if deed == "hands a batch":
            return self._hand_batch(run.entry)
        if deed == "hands over":
            child = self.ledger.hand_over(run.entry)
            return Done(name, then=[self._follow.job({"name": child.name})])
        return name

    def _hand_batch(self, entry: Entry) -> Done:
        then = self.ledger.hand_over_batch(entry, ("long", "ok", "always fails"))
        fails = self._follow.options(retry=POLICY)
        return Done(
            entry.name,
            batch=[
                (fails if one.deed == "always fails" else self._follow).job({"name": one.name})
                for one in then.members
            ],
            then=self._follow.job({"name": then.name}),
            on="finished",
            results=True,
        )

    async def _mourn(self, job: AsyncJob, name: str) -> None:
        run, is_done = self._begin(follow_up_of(name), job), False
        try:
            await asyncio.sleep(0.02)
            is_done = True
        finally:
            self.ledger.end(run, is_done=is_done)

    async def _run_declared(self, job: AsyncJob) -> None:
        self.ledger.tick(job.scheduled_for, job, DECLARED)

    def _begin(self, name: str, job: AsyncJob) -> Run:
        process = current_process()
        assert process is not None
        slots = None if self.slots is None else self.slots * self.parts
        return self.ledger.begin(name, job.id, job, process, slots)

    async def _wait(self, steps: AsyncSteps, job: AsyncJob, name: str) -> str:
        run, is_done = self._begin(name, job), False
        try:
            await asyncio.sleep(self.world.draws.uniform(0.0, LEASE / STEPS))
            try:
                value = await steps.wait("go", timeout=WAIT_SECONDS)
            except StepTimeout:
                value = None
            self.ledger.see_outcome(job.id, run.entry, value)
            await steps.sleep("a moment", SLEEP_SECONDS)
            is_done = True
        finally:
            self.ledger.end(run, is_done=is_done)
        return name

    async def _call(self, steps: AsyncSteps, job: AsyncJob, name: str) -> str:
        run, is_done = self._begin(name, job), False
        try:
            called = self.ledger.call(run.entry, CALLED_DEEDS)
            first, *middle, last = map(self._called_job, called)
            try:
                values = [await steps.call("first", first)]
                await asyncio.sleep(self.world.draws.uniform(0.0, LEASE / STEPS))
                values += await steps.gather("middle", middle)
                self.ledger.see_called(run.entry, values)
                await steps.call("last", last)
            except StepFailed as error:
                self.ledger.see_failed_call(run.entry, error)
            is_done = True
        finally:
            self.ledger.end(run, is_done=is_done)
        return name

    def _called_job(self, entry: Entry) -> Any:
        fails = self._follow.options(retry=POLICY)
        return (fails if entry.deed == "always fails" else self._follow).job({"name": entry.name})

    async def _take_steps(self, steps: AsyncSteps, job: AsyncJob, name: str) -> str:
        run, is_done = self._begin(name, job), False
        try:
            for number in range(STEPS):
                value = await steps.run(f"step {number}", self._take_step, run, number)
                self.ledger.see_step(run, number, value)
                await steps.sleep(f"sleep {number}", SLEEP_SECONDS)
            is_done = True
        finally:
            self.ledger.end(run, is_done=is_done)
        return name

    async def _take_step(self, run: Run, number: int) -> int:
        await asyncio.sleep(self.world.draws.uniform(0.0, LEASE / STEPS))
        return self.ledger.take_step(run, number)

    async def _extend(self, run: Run) -> None:
        """Ask for a longer lease, which the renewals of the worker leave as it is."""
        until = self.world.clock.now + EXTENSION
        if run.entry.ttl is not None:
            until = 0.0  # its end is that of the lease at the latest
        with suppress(*DOCUMENTED):
            await run.job.extend(EXTENSION)
            run.extended_to = until

    # -- the operator ----------------------------------------------------------------------

    async def operate(self) -> None:
        """Pause, hold, purge and clear the queue, each once at some time, if the plan has it."""
        acts = {
            "pause": self._pause,
            "hold": self._hold,
            "purge": self._purge,
            "clear": self._clear,
            "key hold": self._hold_keys,
        }
        client = self.client("operator")
        try:
            queue = self.queue(client)
            await asyncio.gather(*(act(queue) for name, act in acts.items() if self.has(name)))
        finally:
            await client.close()

    async def _sleep_some(self) -> None:
        await asyncio.sleep(self.world.draws.uniform(5.0, FAULT_SECONDS))

    async def _pause(self, queue: AsyncQueue) -> None:
        await self._sleep_some()
        draws, server = self.world.draws, next(iter(self.world.network.servers.values()))
        side = draws.choice(("in", "out", "all"))
        with suppress(*DOCUMENTED):
            await queue.pause(side)
            self.world.note("pauses", side)
            self.ledger.paused_at = server.time() if side != "in" else None
            self.ledger.refuses_since = self.world.clock.now if side != "out" else None
        await asyncio.sleep(draws.uniform(0.5, LONGEST_PAUSE))
        self.ledger.paused_at = self.ledger.refuses_since = None
        self.world.note("resumes")
        await self._resume(queue)
        # A power cut or a failover may have lost that.
        await asyncio.sleep(max(0.0, self.until - self.world.clock.now) + LONGEST_TAIL)
        await self._resume(queue)

    @staticmethod
    async def _resume(queue: AsyncQueue) -> None:
        while True:
            with suppress(*DOCUMENTED):
                await queue.resume()
                return
            await asyncio.sleep(0.1)

    async def _hold(self, queue: AsyncQueue) -> None:
        """Hold the queue. It ends by itself, or is ended before."""
        await self._sleep_some()
        draws, server = self.world.draws, next(iter(self.world.network.servers.values()))
        seconds, began = draws.uniform(0.5, LONGEST_PAUSE), server.time()
        with suppress(*DOCUMENTED):
            if await queue.hold(seconds) and not server.was_stepped:
                self.ledger.hold(server.time(), began + seconds)
        await asyncio.sleep(draws.uniform(0.5, LONGEST_PAUSE))
        self.ledger.held = None
        with suppress(*DOCUMENTED):
            await queue.hold(0)
            self.world.note("ends the hold")

    async def _hold_keys(self, queue: AsyncQueue) -> None:
        """Hold keys again and again. Most holds end by themselves, and some before."""
        draws, server = self.world.draws, next(iter(self.world.network.servers.values()))
        while self.world.clock.now < self.until:
            await asyncio.sleep(draws.expovariate(0.5))
            key = draws.choice([key for key in KEYS if key])
            if self.has("keys"):
                key = f"{draws.choice(self.plan.producers)}-{key}"
            seconds, began = draws.uniform(0.5, LONGEST_PAUSE), server.time()
            with suppress(*DOCUMENTED):
                if draws.random() < 0.2:
                    self.ledger.end_key_hold(key)
                    await queue.hold(0, key=key)
                elif await queue.hold(seconds, key=key) and not self._was_stepped:
                    self.ledger.hold_key(key, server.time(), began + seconds)

    @property
    def _was_stepped(self) -> bool:
        """Whether the time of a part of the queue may be another than that of a server."""
        return any(server.was_stepped for server in self.world.network.servers.values())

    async def _purge(self, queue: AsyncQueue) -> None:
        """Remove the jobs that wait. A request that is late may do so after its answer."""
        await self._sleep_some()
        self.world.note("purges")
        with self.ledger.excusing(LOST):
            with suppress(*DOCUMENTED):
                await queue.purge()
            await asyncio.sleep(LONGEST_DELAY)
        self.world.note("has purged")

    async def _clear(self, queue: AsyncQueue) -> None:
        """Remove the queue, and configure it again. A request that is late may do so again."""
        await self._sleep_some()
        self.world.note("clears")
        with self.ledger.wiping():
            with suppress(*DOCUMENTED):
                await queue.clear()
            await self.configure(queue)
            await asyncio.sleep(LONGEST_DELAY)
            await self.configure(queue)
        self.world.note("has cleared")
