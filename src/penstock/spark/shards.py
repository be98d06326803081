"""Where a queue is: a client for each node, and the shards that it has there.

A shard is the queue itself, or one of its partitions, on one node. Each node has its own client. So
a call never chooses a node: rows and batches do that by their ids. Spark pickles readers and
writers, so they hold options and never a client.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, urlencode

from redis.exceptions import RedisError

from penstock import Penstock
from penstock.client._sync.queue import Queue
from penstock.client._sync.route.one_node import BoundRoute
from penstock.client._sync.route.part import Part
from penstock.core.calls.call import Call
from penstock.core.calls.failures import passing
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.node_list import URL_PATTERN, others
from penstock.core.values.urls import check_url
from penstock.errors import BadArgument, NodesUnavailable, QueueMissing
from penstock.spark.errors import NOT_SHOWN, OptionError, Unreachable, WrongServer
from penstock.spark.options import Connection

__all__ = [
    "OpenNode", "OpenShard", "OpenShards", "ShardAddress", "get_client", "new_client",
    "open_in_task", "open_listed", "open_node", "open_on_driver", "open_shards",
]  # fmt: skip

logger = get_logger("penstock")
R = TypeVar("R")

MAX_OPENING = 16
"""Most nodes that are opened at the same time."""

clients: dict[tuple[object, ...], Penstock] = {}
"""The clients of this process, by their options. They open new connections after a fork.

A worker process of Spark runs many tasks, one after the other. They share its client, so that each
slot has one connection.
"""


def get_client(options: Connection) -> Penstock:
    """Return the connected client of this process for the options of one node.

    It is a new one if the server has another id than before: after a FLUSHALL, or if another server
    answers at the address.
    """
    names = [one.name for one in fields(Connection) if one.name not in ("queue", "require_queue")]
    key = tuple(getattr(options, name) for name in names)
    if key not in clients:
        clients[key] = new_client(options)
    made = clients[key].connect()
    if made.topology.executor.whole_id()[:8] != made.topology.executor.id:
        made.close()
        made = clients[key] = new_client(options).connect()
    return made


@contextmanager
def reaching(options: Connection) -> Iterator[None]:
    """Raise connection errors of this block with the queue's name."""
    try:
        yield
    except (RedisError, NodesUnavailable) as error:
        text = f"queue {options.queue!r}: the server can't be reached: {str(error).rstrip('.')}"
        raise Unreachable(text) from error.with_traceback(None)  # Spark shows all of it


def new_client(options: Connection) -> Penstock:
    """Return another client; nothing is sent."""
    urls = list(options.nodes) or [options.url or _from_environment("urlEnv", options.url_env)]
    name = "nodes" if options.nodes else "urlEnv" if options.url_env else "url"
    secret = _password(options)
    try:
        sources = [_completed(name, url, secret) for url in urls]
        return Penstock(
            sources if len(sources) > 1 else sources[0],
            federation=len(sources) > 1,
            prefix=options.prefix,
            retry_for=options.retry_for / 1000,
        )
    except BadArgument as error:
        raise OptionError(name, NOT_SHOWN, error.reason) from None


def _completed(name: str, url: str, secret: str | None) -> str:
    found = URL_PATTERN.fullmatch(check_url(name, url))
    if found is None:
        raise BadArgument(name, NOT_SHOWN, "must be a URL such as redis://host:6379/0")
    scheme, user, place, query = found.groups(default="")
    if name == "url" and ":" in user:
        logger.warning("option 'url' has a password: use urlEnv, passwordEnv or passwordFile")
    given = dict(parse_qsl(query))
    merged = urlencode({"socket_timeout": 10, "socket_connect_timeout": 10, **given})
    if secret is not None:
        user = f"{user.partition(':')[0]}:{quote(secret, safe='')}"
    return f"{scheme}{user + '@' if user else ''}{place}?{merged}"


def _password(options: Connection) -> str | None:
    if options.password_env:
        return _from_environment("passwordEnv", options.password_env)
    if not options.password_file:
        return None
    try:
        return Path(options.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "must be a text file"
        shown = options.password_file if "/" in options.password_file else NOT_SHOWN
        raise OptionError("passwordFile", shown, f"can't be read here: {reason}") from None


def _from_environment(name: str, variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        is_name = variable.isidentifier() and variable.isupper()  # else it may be the secret itself
        reason = "is not set here: set it before Spark starts, on the driver and each executor"
        raise OptionError(name, variable if is_name else NOT_SHOWN, reason)
    return value


@dataclass(frozen=True)
class ShardAddress:
    """The address of a shard, for a task.

    Attributes:
        url: the node's, perhaps with a password; '' = that of the options.
        node: its id, 8 hex digits; '' = not known.
        number: of the partition; None = the queue has none.
        partitions: their number; None = the queue has none.
    """

    url: str = field(default="", repr=False)
    node: str = ""
    number: int | None = None
    partitions: int | None = None


def _do_nothing() -> None:
    pass


class OpenShard:
    """A shard that this process has reached.

    Attributes:
        key: its name in offsets.
        on_answer: called after each answer of the node.
    """

    def __init__(self, made: Penstock, name: str, address: ShardAddress = ShardAddress()) -> None:
        self.name = name
        self.queue = Queue(name)
        part = Part(made.topology.node, name, number=address.number, queue=self.queue)
        self.part = BoundRoute(made.topology, part, self.queue)
        self.queue.route = self.part
        self.ops = self.queue.ops
        self.ops.partitions = address.partitions
        self.node = made.topology.executor.id
        self.address = replace(address, node=self.node)
        self.on_answer: Callable[[], None] = _do_nothing
        self.key = self.node if address.number is None else f"{self.node}/{address.number}"

    def run(self, call: Call[R]) -> R:
        """Run a script and return its result."""
        result: R = self.part.executor.run(call)
        self.on_answer()
        return result


class OpenShards(list[OpenShard]):
    """The shards of a queue that can be reached.

    Attributes:
        clients: a client of each node that was reached, with the options that lead to it.
        unreached: the number of nodes that can't be reached.
        exists: whether one of them has the queue.
        partitions: the largest number of partitions on a node; 1 if the queue has none.
    """

    unreached = 0
    exists = True
    partitions = 1

    def __init__(self, shards: Iterable[OpenShard] = ()) -> None:
        super().__init__(shards)
        self.clients: list[tuple[Connection, Penstock]] = []

    @classmethod
    def found(cls, name: str, nodes: Sequence[OpenNode], unreached: int) -> OpenShards:
        """Return the shards of a queue on these nodes.

        For a node that does not have the queue, the number of partitions of another node counts.
        """
        shards = cls()
        shards.unreached = unreached
        shards.clients = [(one.options, one.client) for one in nodes]
        usual = next((one.partitions[name] for one in nodes if one.has(name)), None)
        shards.exists = usual is not None
        for one in nodes:
            count = (one.partitions[name] if one.has(name) else usual) or None
            shards.partitions = max(shards.partitions, count or 1)
            url = one.options.nodes[0] if one.options.nodes else ""
            for number in [None] if count is None else range(count):
                shards.append(OpenShard(one.client, name, ShardAddress(url, "", number, count)))
        return shards

    def look_up(self, *names: str) -> list[OpenShards]:
        """Return the shards of each queue on the same nodes."""
        nodes, unreached = _open_nodes([options for options, _ in self.clients], names)
        unreached += self.unreached
        return [OpenShards.found(name, nodes, unreached) for name in names]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Ids of the nodes."""
        return tuple(sorted({shard.node for shard in self}))

    def find(self, node: str, number: int = 0) -> OpenShard:
        """Return the shard of a partition on a node that has rows of a write."""
        for one in self:
            if (one.node, one.address.number or 0) == (node, number):
                return one
        raise NodesUnavailable(f"node {node} has rows of this write and can't be reached")

    def check(self, options: Connection, *, whole: bool) -> None:
        """Check that the queue exists, if it has to, and that every node was reached, if `whole`.

        The node of a row depends on the list of nodes.
        """
        if whole and self.unreached:
            raise Unreachable(
                f"queue {self[0].name!r}: {self.unreached} of {len(options.nodes)} nodes can't be "
                "reached: their jobs would be missed or added again (skipUnreachable allows it)"
            )
        if options.require_queue and not self.exists:
            raise QueueMissing(f"option 'requireQueue': queue {self[0].name!r} does not exist")


class OpenNode(NamedTuple):
    """A node that this process has reached.

    Attributes:
        options: those that lead to it.
        client: its client.
        partitions: their number, by the name of the queue; None = it does not have the queue.
    """

    options: Connection
    client: Penstock
    partitions: Mapping[str, int | None]

    def has(self, name: str) -> bool:
        """Return True if the queue is there."""
        return self.partitions[name] is not None


def open_node(options: Connection, *names: str) -> OpenNode:
    """Reach the only node of these options, and read how many partitions these queues have there.

    A queue may be created or re-created at any time, so that is read each time.

    Raises:
        Unreachable: the server did not answer for `retryFor`.
    """
    with reaching(options):
        client = get_client(options)
        counts = client.topology.node.partitions_of(names)
    return OpenNode(options, client, dict(zip(names, counts, strict=True)))


def open_shards(options: Connection) -> OpenShards:
    """Open all shards of a queue: each partition on each node that can be reached."""
    nodes, unreached = _open_nodes(options.each_node(), [options.queue])
    return OpenShards.found(options.queue, nodes, unreached)


def _open_nodes(given: Sequence[Connection], names: Sequence[str]) -> tuple[list[OpenNode], int]:
    """Open nodes at the same time; return those that were reached, and how many were not.

    Raises:
        Unreachable: that is all of them.
    """
    errors = list[Unreachable]()

    def try_node(options: Connection) -> OpenNode | None:
        try:
            return open_node(options, *names)
        except Unreachable as error:
            if not passing(error.__cause__ or error):
                raise
            errors.append(error)
            return None

    if len(given) == 1:
        return [open_node(given[0], *names)], 0
    with ThreadPoolExecutor(min(len(given), MAX_OPENING)) as pool:
        reached = [one for one in pool.map(try_node, given) if one is not None]
    if not reached:
        raise errors[0]
    for error in errors:
        logger.warning("a node can't be reached: %s", error)
    return reached, len(errors)


def open_listed(options: Connection, addresses: Iterable[ShardAddress]) -> Iterator[OpenShard]:
    """Open shards in turn, for a task. If another node answers at an address, that is an error."""
    opened: dict[str, Penstock] = {}
    for address in addresses:
        own = options.of_node(address.url)
        with reaching(own):
            if address.url not in opened:
                opened[address.url] = get_client(own)
            found = OpenShard(opened[address.url], options.queue, address)
        _check_nodes(own, (found.node,), (address.node,))
        yield found


def open_on_driver(options: Connection, *, whole: bool = False) -> OpenShards:
    """Return the shards, for the driver. Its tasks compare the ids of the nodes with theirs."""
    found = open_shards(options)
    found.check(options, whole=whole)
    executor = found[0].part.executor
    if not options.nodes and (listed := others(executor.read_node_list(), executor.whole_id())):
        text = "queue %r: only one of several nodes is used. Name all by option 'nodes', also %s"
        logger.warning(text, options.queue, ", ".join(map(repr, listed)))
    return found


def open_in_task(options: Connection, expected: Sequence[str]) -> OpenShards:
    """Return the shards, for a task; the driver reaches the `expected` nodes, if any are known."""
    _freeze_imports()
    found = open_shards(options)
    _check_nodes(options, found.nodes, expected)
    return found


@cache
def _freeze_imports() -> None:
    """Exempt all present objects from garbage collection, once in each process.

    Spark collects garbage after each task, and a busy task causes more collections. Each of them
    would look at everything that the process has imported, for 50 ms.
    """
    gc.freeze()


def _check_nodes(options: Connection, found: Sequence[str], expected: Sequence[str]) -> None:
    if expected and not set(found) & set(expected):
        raise WrongServer(
            f"queue {options.queue!r}: the driver reaches node {', '.join(expected)}, and this "
            f"task node {', '.join(found)}: a name such as localhost may be another machine here"
        )
