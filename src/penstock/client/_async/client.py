"""The client: one server, or several, and their queues."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from penstock.client._async.queue import AsyncJob, AsyncQueue
from penstock.client._async.settling import check_jobs
from penstock.client._async.topology import AsyncTopology
from penstock.core.calls.config import ClientConfig, check_hosts, queue_filter
from penstock.core.calls.failures import passing
from penstock.core.flows import ReserveRequest
from penstock.core.jobs.job import Delivery, JobName
from penstock.core.jobs.merge import Answers, split_error, with_outcomes
from penstock.core.jobs.middleware import Middleware, check_middleware
from penstock.core.jobs.outcomes import Outcome, Settled
from penstock.core.jobs.queue_stats import QueuePage, QueueStats
from penstock.core.jobs.views import JobView
from penstock.core.nodes.merging import Partial
from penstock.core.values.checks import (
    BATCH,
    Duration,
    OnUnknown,
    StateName,
    check_block,
    check_choice,
    check_count,
    check_flag,
    check_party,
    duration_ms,
)
from penstock.core.values.codec import Codec, check_codec
from penstock.core.values.durable import Durable, delivery_wait
from penstock.core.values.ids import parse_id
from penstock.core.values.partitions import check_partitions
from penstock.core.values.urls import FROM_ENVIRONMENT, source_of
from penstock.errors import BadArgument, NodesMissed, ResultGone
from penstock.wire.keys import DEFAULT_PREFIX, check_prefix, check_queue_name, queue_crcs

if TYPE_CHECKING:
    from penstock.client._async.nodes.nodes import AsyncNodes
    from penstock.core.jobs.workers import WorkerView
    from penstock.core.nodes.node_views import Hello, Info
    from penstock.core.nodes.problems import Problem

Source = str | Redis


class AsyncPenstock:
    """Queues on one Redis, or on several.

    Several nodes are a federation: each job is on one of them, and its id names the node. Jobs are
    added to an available node and reserved from all. Every other call goes to the node of its job
    (protocol/nodes.md, Several nodes).

    The client opens its own connections when it needs them. From a redis-py client that is passed
    in it takes only the settings. It may be shared between tasks. A forked child opens new
    connections.

    Args:
        source: a URL (`redis://`, `rediss://`, `unix://`; `redis+sentinel://`, `rediss+sentinel://`,
            see docs/nodes.md; names and passwords percent-encoded) or a redis-py client, also one
            made by `Sentinel.master_for`; or a list of these, one for each node. These nodes list
            the others. Default: the URL in the variable PENSTOCK_URL, or those of several nodes,
            separated by spaces; without it `redis://localhost:6379/0`.
        prefix: prefix of all keys.
        owner: name of this consumer, stored with each delivery; default: host and process id.
        retry_for: seconds for which a call is tried again when the connection fails or the server
            is not ready (LOADING, BUSY, MISCONF), before redis-py's exception is raised; at most
            300.
        middleware: hooks around each enqueue, and around each run of a handler by a worker on this
            client; the first is the outermost.
        on_unknown: for a federation: the action of an enqueue when a reply is lost and the node may
            or may not have the job. "raise" = it raises; "next" = it tries the next node, so the
            job may exist twice.
        federation: whether a client of one source joins the nodes that this one lists, at its first
            call or within 30 s. False = it uses this node alone, and refuses to add jobs when the
            node is leaving.
        node_hosts: hosts of listed nodes to which this client may send its user name and
            password: exact names, or patterns such as `*.redis.internal`. A client that has a
            password or a certificate does not use listed nodes on other hosts.
        evict: True = if a server at maxmemory refuses an enqueue, evict delivered lease-0 jobs of
            the queue, at most 3,500, and try again. Evicted jobs are not delivered again, and an
            ack of one returns "gone". False = raise `OutOfMemory` at once.
        codec: encodes bodies that are not bytes, and decodes them; None = plain JSON
            (docs/bodies.md).

    Attributes:
        middleware: the middleware, as a tuple.

    Raises:
        BadArgument, ConfigurationError: the source can't be used.

    Examples:
        >>> from penstock import AsyncPenstock
        >>> ps = AsyncPenstock("redis://localhost:6379/0")
        >>> added = await ps.queue("emails").enqueue({"to": "ada"})
        >>> await ps.queues()
        ['emails']
    """

    def __init__(
        self,
        source: Source | Sequence[Source] = FROM_ENVIRONMENT,
        *,
        prefix: str = DEFAULT_PREFIX,
        owner: str | None = None,
        retry_for: Duration = 5,
        middleware: Iterable[Middleware] = (),
        on_unknown: OnUnknown = "raise",
        federation: bool = True,
        node_hosts: Iterable[str] = (),
        evict: bool = True,
        codec: Codec | None = None,
    ) -> None:
        self.prefix = check_prefix(prefix)
        self.owner = check_owner(owner)
        self.middleware = check_middleware(middleware)
        wait = duration_ms("retry_for", retry_for) / 1000
        if wait > 300:
            raise BadArgument("retry_for", retry_for, "must be at most 300 s")
        config = ClientConfig(
            prefix=self.prefix,
            owner=self.owner,
            retry_for=wait,
            middleware=self.middleware,
            on_unknown=check_choice("on_unknown", on_unknown, OnUnknown),
            node_hosts=check_hosts(node_hosts),
            evict=check_flag("evict", evict),
            codec=check_codec(codec),
        )
        self.topology = AsyncTopology(source_of(source), config, federation=federation)
        self._queues: dict[str, AsyncQueue] = {}
        self._partitions: dict[str, int] = {}

    def __repr__(self) -> str:
        prefix = "" if self.prefix == DEFAULT_PREFIX else f" prefix {self.prefix!r}"
        return f"<{type(self).__name__} at {self.topology.current.address}{prefix}>"

    @property
    def nodes(self) -> AsyncNodes:
        """Return the calls that manage whole nodes: list them, make one leave.

        From now on a client of one source is a client of several nodes.

        Raises:
            ConfigurationError: the client was made with `federation=False`.
        """
        from penstock.client._async.nodes.nodes import AsyncNodes

        return AsyncNodes(self.topology.join())

    async def connect(self) -> AsyncPenstock:
        """Connect to the server, check it and read its id. Every call does so if needed.

        With several nodes, one that answers is enough.

        Raises:
            UnsupportedServer: the server is older than Redis 6.2.
            ConfigurationError: two nodes have the same id.
            redis.exceptions.ConnectionError: the server was not reached within `retry_for`.
        """
        await self.topology.connect()
        return self

    async def close(self) -> None:
        """Close the connections. The client can still be used: the next call opens new ones."""
        await self.topology.close()

    async def __aenter__(self) -> AsyncPenstock:
        try:
            return await self.connect()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def queue(self, name: str, *, partitions: int | None = None) -> AsyncQueue:
        """Return the queue of this name. Nothing is sent.

        Args:
            name: 1 to 1024 bytes of UTF-8, without NUL.
            partitions: number of partitions, 1 to 256; None = the number that this client knows, or
                none (docs/nodes.md, Partitions). The first call stores the number, and it cannot be
                changed: calls with another number raise `QueuePartitioned`.

        Raises:
            BadArgument: an argument can't be used.
        """
        queue = self._queues.get(check_queue_name(name))
        count = check_partitions(partitions)
        if queue is None or (count is not None and queue.partitions != count):
            if count is None:
                count = self._partitions.get(name)
            else:
                self._partitions[name] = count
            queue = self.topology.queue(name, count)
            if len(self._queues) >= 10_000:
                self._queues.clear()
            self._queues[name] = queue
        return queue

    async def open(self, name: str) -> AsyncQueue:
        """Return the queue of this name, with the partitions that it has on the server.

        Raises:
            BadArgument: not the name of a queue.
        """
        count = await (await self.topology.refresh()).partitions(check_queue_name(name))
        if count == 0:
            self._forget(name)
        return self.queue(name, partitions=count or None)

    async def show(self, job: JobName) -> JobView | None:
        """Return all data of one job of any queue, or None if it is gone.

        Args:
            job: its id, or what `enqueue` has returned; the registry has the name of its queue.

        Raises:
            BadJobId: the id is malformed, or of another node.
            NodesMissed: a node that may have the job did not answer.
        """
        [job] = check_jobs("job", [job])
        name = await self._queue_of(job)
        return None if name is None else await (await self.open(name)).show(job)

    async def _queue_of(self, job: JobName) -> str | None:
        parsed = parse_id(job.id if isinstance(job, Delivery) else job)
        return await self.topology.queue_at(f"{parsed.crc:08x}{parsed.epoch}")

    async def _queue_with(self, job: JobName) -> AsyncQueue | None:
        """Return the queue of a job; None = it was deleted.

        If the node of the job is down, this client or another node may know the queue.

        Raises:
            NodesMissed: none of them does.
        """
        if isinstance(job, Delivery):
            crc = parse_id(job.id).crc
            return self._known([job.queue_name], crc) or await self.open(job.queue_name)
        try:
            name = await self._queue_of(job)
        except NodesMissed:
            parsed = parse_id(job)
            federation = self.topology.federation
            if federation is None or not any(parsed.node in one.known for one in federation.nodes):
                raise
            known = self._known(list(self._queues), parsed.crc)
            if known is not None:
                return known
            name = await self.topology.name_of(parsed.crc)
            if name is None:
                raise
        return None if name is None else await self.open(name)

    def _known(self, names: Iterable[str], crc: int) -> AsyncQueue | None:
        queues = (self._queues[name] for name in names if name in self._queues)
        known = (one for one in queues if crc in queue_crcs(one.name, one.partitions))
        return next(known, None)

    async def result(self, job: JobName, *, timeout: Duration | None = None) -> Any:
        """Wait until a job of any queue has ended, and return the value that its handler returned.

        Args:
            job: its id, or what `enqueue` has returned; the registry has the name of its queue.
            timeout: as in `AsyncQueue.result`.

        Returns, raises: as `AsyncQueue.result`; ResultGone if the registry has no such queue,
            NodesMissed if a node that may have it did not answer.
        """
        [job] = check_jobs("job", [job])
        name = await self._queue_of(job)
        if name is None:
            raise ResultGone(f"job {job!s} has no result: its queue was deleted, or is elsewhere")
        return await (await self.open(name)).result(job, timeout=timeout)

    async def reserve(
        self,
        queues: Iterable[AsyncQueue | str],
        n: int = 1,
        *,
        block: Duration | None = 5,
        durable: Durable | None = None,
    ) -> list[AsyncJob]:
        """Take up to n jobs from several queues, the first queue first.

        If a key of one queue has another type, jobs that this call took from other queues are given
        back.

        Args:
            queues: queues or names, in order of preference, each once.
            n, block, durable: as in `AsyncQueue.reserve`.

        Returns:
            The jobs in order; empty if there was none in time.

        Raises:
            QueueClosed: all of them are closed and drained.
            QueueDamaged: a key of one of the queues has another type.
            DeliveryNotReplicated, CannotSync: as `AsyncQueue.reserve`.
        """
        check_count("n", n)
        wait, confirm = check_block(block), delivery_wait(durable)
        listed = check_queues(queues)
        chosen = [q if isinstance(q, AsyncQueue) else self.queue(q) for q in listed]
        if not chosen or len({queue.name for queue in chosen}) < len(chosen):
            raise BadArgument(
                "queues", [q.name for q in chosen], "must name one or more queues, each once"
            )
        return await self.topology.reserve(chosen, ReserveRequest(n, wait, confirm))

    async def ack(self, jobs: Iterable[JobName]) -> Settled:
        """Finish jobs of any queues, as `AsyncQueue.ack` does for those of one.

        Args:
            jobs: deliveries, or ids; the registry has the names of their queues. Finding them costs
                two requests for each queue.

        Returns:
            An outcome for each, in order; gone if the queue was deleted.

        Raises:
            BadArgument, BadJobId: an id is malformed; nothing was done.
            IncompleteSettle: a queue failed; it has an outcome for each job, as the others were
                settled, unless they lie on the same server.
            NodesMissed: a node that may have a job did not answer; `results` has an outcome for
                each job.
            Other errors of `AsyncQueue.ack`: nothing was done.

        Examples:
            >>> mail, log = await ps.queue("mail").enqueue(1), await ps.queue("log").enqueue(2)
            >>> [str(outcome) for outcome in await ps.ack([mail.id, log.id])]
            ['done', 'done']
        """
        names = check_jobs("jobs", jobs)
        places: dict[tuple[int, str], list[int]] = {}
        for at, name in enumerate(names):
            parsed = parse_id(name.id if isinstance(name, Delivery) else name)
            places.setdefault((parsed.crc, parsed.epoch), []).append(at)
        answers = Answers(len(names), Outcome.UNKNOWN)
        for where in places.values():
            own = [names[at] for at in where]
            try:
                queue = await self._queue_with(own[0])
                gone = [Outcome.GONE] * len(own)
                answers.note(where, gone if queue is None else await queue.ack(own))
            except NodesMissed as error:
                answers.note(where, error.results)
                answers.missed.update(error.unreachable)
            except Exception as error:  # noqa: BLE001  # `checked` raises it
                done, _, failure = split_error(error)
                answers.note(where, done)
                answers.failure = answers.failure or failure
                if passing(error if failure is None else failure) and not self.topology.is_apart:
                    break
        with with_outcomes(names):
            return Settled(names, answers.checked(names))

    async def queues(self, pattern: str = "*") -> list[str]:
        """Return the names of the queues that exist, sorted.

        Args:
            pattern: only names that match: `*` any text, `?` any character, `[abc]` one of these.
        """
        return await (await self.topology.refresh()).queues(_check_pattern(pattern))

    async def scan_queues(
        self,
        cursor: str = "0",
        n: int = 100,
        *,
        pattern: str = "*",
        min_length: int | None = None,
        max_length: int | None = None,
        max_idle: Duration | None = None,
    ) -> QueuePage:
        """Return the next page of queues with their figures, in no order, in bounded time.

        A queue that exists from the first step to the last is found at least once, perhaps twice.

        Args:
            cursor: "0" to begin, then the cursor of the last page, until it is "0" again.
            n: about this many queues a step, up to 1000.
            pattern: only names that match, as in `queues`; others cost next to nothing.
            min_length, max_length: bounds of the number of jobs that could be reserved now; only
                queues within them.
            max_idle: only queues that were written to in the last `max_idle` seconds.
        """
        check_count("n", n, high=BATCH)
        is_wanted = queue_filter(min_length, max_length, max_idle)
        named = _check_pattern(pattern)
        federation = await self.topology.refresh()
        return await federation.scan_queues(cursor, n, is_wanted, pattern=named)

    async def scan_queues_iter(
        self,
        *,
        pattern: str = "*",
        min_length: int | None = None,
        max_length: int | None = None,
        max_idle: Duration | None = None,
        n: int = 100,
    ) -> AsyncIterator[QueueStats]:
        """Yield every queue with its figures, step by step. Arguments as in `scan_queues`."""
        cursor = "0"
        while True:
            page = await self.scan_queues(
                cursor,
                n,
                pattern=pattern,
                min_length=min_length,
                max_length=max_length,
                max_idle=max_idle,
            )
            for stats in page.queues:
                yield stats
            cursor = page.cursor
            if cursor == "0":
                return

    async def jobs(
        self,
        queues: Iterable[AsyncQueue | str] | None = None,
        state: StateName | Iterable[StateName] | None = None,
        *,
        n: int = 100,
    ) -> AsyncIterator[JobView]:
        """Yield every job of several queues, step by step; see `AsyncQueue.jobs`.

        Args:
            queues: queues or names; None = all that exist.
            state: only jobs in this state, or in these; None = all.
            n: about this many jobs a step.
        """
        wanted = state if state is None or isinstance(state, str) else list(state)
        for queue in await self.queues() if queues is None else check_queues(queues):
            opened = queue if isinstance(queue, AsyncQueue) else await self.open(queue)
            async for view in opened.jobs(wanted, n=n):
                yield view

    async def workers(self, *, jobs: bool = False) -> list[WorkerView]:
        """Return the workers that run, by name. Nothing is written.

        A worker is listed from a second after its start on. One that was killed is listed for up to
        40 s more.

        Args:
            jobs: whether to read the jobs that the workers hold: at most 1,000 of each queue,
                without their bodies.

        Returns:
            The workers. If some nodes could not be reached, the list has their addresses as
            `unreachable`.
        """
        from penstock.client._async import workers

        check_flag("jobs", jobs)
        answers, missed = await self.topology.each(
            lambda node: workers.read_workers(node.executor, self.prefix)
        )
        views = workers.merged_workers(answers)
        if jobs:
            held = [
                job
                for name in sorted({name for view in views for name in view.queues})
                for job in await workers.read_held_jobs(
                    (await self.open(name)).jobs("active", body=0, n=workers.MOST_HELD_JOBS)
                )
            ]
            views = workers.with_jobs(views, held)
        return Partial(views, missed)

    async def hello(self) -> Hello:
        """Return the version of the protocol, and the nodes with their ids."""
        return await (await self.topology.refresh()).hello()

    async def info(self) -> Info:
        """Return the state of the node and its number of queues and jobs; add up several nodes.

        It reads the figures of every queue.
        """
        return await (await self.topology.refresh()).info()

    async def find_problems(
        self,
        queues: Iterable[QueueStats] | None = None,
        *,
        longest_wait: Duration = 300,
        most_dead: int = 0,
        dead_since: Duration | None = None,
    ) -> list[Problem]:
        """Return what is wrong now with queues, their work, and nodes. Nothing is written.

        Args:
            queues: figures of queues that were just read; None = read those of all queues.
            longest_wait: seconds that a job may wait, and a tick of a schedule be late, in queues
                without a setting `longest_wait`.
            most_dead: dead letters that a queue may have.
            dead_since: seconds; dead letters are a problem only if the last death was not longer
                ago. None = always.

        Returns:
            The problems, the most urgent kind first; empty = nothing is wrong.

        Examples:
            >>> added = await ps.queue("emails").enqueue("ada")
            >>> await ps.queue("emails").pause()
            >>> [(problem.kind, problem.queue) for problem in await ps.find_problems()]
            [('paused', 'emails')]
        """
        from penstock.client._async.problems import read_work
        from penstock.core.nodes import problems

        bounds = problems.ProblemBounds(
            longest_wait=duration_ms("longest_wait", longest_wait) / 1000,
            most_dead=check_count("most_dead", most_dead, low=0),
            dead_since=None if dead_since is None else duration_ms("dead_since", dead_since) / 1000,
        )
        if queues is None:  # a scan may return a queue twice
            queues = {one.name: one async for one in self.scan_queues_iter()}.values()
        figures = list(queues)
        schedules, batches = await read_work(self.open, figures)
        workers, nodes = await self.workers(), (await self.hello()).nodes
        times, _ = await self.topology.each(lambda node: node.executor.time_ms())
        now = max(times) / 1000
        return problems.find_problems(
            figures,
            workers=workers,
            nodes=nodes,
            schedules=schedules,
            batches=batches,
            bounds=bounds,
            now=now,
        )

    async def clear(self, queues: Iterable[AsyncQueue | str]) -> list[str]:
        """Remove queues and all their contents.

        Args:
            queues: queues or names.

        Returns:
            The names of the queues that existed.
        """
        listed = check_queues(queues)
        opened = [one if isinstance(one, AsyncQueue) else await self.open(one) for one in listed]
        cleared = []
        for queue in opened:
            if (await (await queue.route.refresh()).clear())[0]:
                cleared.append(queue.name)
            self._forget(queue.name)
        return cleared

    def _forget(self, name: str) -> None:
        """Drop cached state: a re-created queue may have another number of partitions."""
        self._partitions.pop(name, None)
        self._queues.pop(name, None)

    async def clear_all(self, *, confirm: str) -> list[str]:
        """Remove every queue of this prefix, and nothing else.

        Args:
            confirm: the prefix, as a confirmation.

        Returns:
            The names of the queues that existed.

        Raises:
            BadArgument: `confirm` is not the prefix; nothing was removed.
        """
        if confirm != self.prefix:
            reason = f"must be the client's prefix, {self.prefix!r}: all its queues are removed"
            raise BadArgument("confirm", confirm, reason)
        return await self.clear(await self.queues())

    async def sweep(self) -> int:
        """Sweep every queue and return the number of jobs removed; see `AsyncQueue.sweep`."""
        return sum([await (await self.open(name)).sweep() for name in await self.queues()])


def check_queues(queues: object) -> list[AsyncQueue | str]:
    """Return queues and names as a list.

    Raises:
        BadArgument: not an iterable of them.
    """
    if isinstance(queues, (str, bytes)) or not isinstance(queues, Iterable):
        raise BadArgument("queues", queues, "must be an iterable of queues or names")
    return list(queues)


def check_owner(owner: object) -> str:
    """Return the name of a consumer: the given text, or host and process id.

    Raises:
        BadArgument: empty, over 200 bytes, or with control characters.
    """
    if owner is None:
        return f"{socket.gethostname()}:{os.getpid()}"[:200]
    return check_party("owner", owner)


def twin_of(
    client: AsyncPenstock, *, owner: str | None = None, federation: bool | None = None
) -> AsyncPenstock:
    """Return a client with the same settings and connections of its own.

    Args:
        client: the client.
        owner: name of the consumer; None = that of `client`.
        federation: whether it joins other nodes; None = as `client`.
    """
    twin = copy(client)  # both learn of the same queues' partitions
    twin.owner = check_owner(client.owner if owner is None else owner)
    twin.topology = AsyncTopology(
        client.topology.source,
        replace(client.topology.config, owner=twin.owner),
        federation=client.topology.joins if federation is None else federation,
    )
    twin._queues = {}
    return twin


def _check_pattern(pattern: object) -> str:
    """Return a pattern of names.

    Raises:
        BadArgument: not a text.
    """
    if not isinstance(pattern, str):
        raise BadArgument("pattern", pattern, "must be a str")
    return pattern
