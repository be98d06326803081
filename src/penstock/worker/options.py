"""The options of a worker: checked, and changeable before it runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from penstock.client._sync.handling import handlers_of
from penstock.core.values.checks import BATCH, check_choice, check_count, check_flag, duration_ms
from penstock.core.values.durable import Durable, delivery_wait
from penstock.core.values.urls import shown
from penstock.errors import BadArgument
from penstock.wire.keys import check_queue_name
from penstock.worker.calling import is_queue
from penstock.worker.functions import is_target, qualified
from penstock.worker.handlers import Handlers
from penstock.worker.monitor import Monitor
from penstock.worker.processes import reason_against_processes
from penstock.worker.registered import seconds_of

if TYPE_CHECKING:
    from penstock.client._async.queue import AsyncQueue
    from penstock.client._sync.queue import Queue

__all__ = [
    "HeartbeatKind",
    "Order",
    "Queues",
    "WorkerOptions",
    "check_handlers",
    "check_states",
    "handler_sets",
    "joined",
    "refuse_coroutines",
    "refuse_other_kind",
    "served",
]


HeartbeatKind: TypeAlias = Literal["thread", "process"]
"""Kind of the heartbeat that renews leases: a thread of the worker, or a process of its own."""

AnyQueue: TypeAlias = "str | Queue | AsyncQueue"
"""A queue or its name."""

Queues: TypeAlias = "AnyQueue | Iterable[AnyQueue] | Mapping[Any, int]"
"""A queue or its name, several of them, or a mapping of them to weights."""

Order: TypeAlias = Literal["strict", "weighted"]
"""Order of several queues: the first one while it has jobs, or all of them by their weights."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of a worker; see `Worker`. Durations are kept in seconds.

    Raises:
        BadArgument: an option can't be used.
    """

    queues: Any
    concurrency: int = 8
    prefetch: int | None = None
    grace: Any = 25
    burst: bool = False
    max_jobs: int | None = None
    throttle: Any = 0
    monitor: Monitor | None = None
    heartbeat: HeartbeatKind = "thread"
    name: str | None = None
    isolate: str | None = None
    log_jobs: bool = False
    order: Order = "weighted"
    time_limit: Any = None
    at_most_once: Durable | None = None

    def __post_init__(self) -> None:
        for name, value in self._converted().items():
            object.__setattr__(self, name, value)
        check_count("concurrency", self.concurrency, high=BATCH)
        if self.prefetch is not None:
            check_count("prefetch", self.prefetch, low=0, high=100 * BATCH)
        if self.max_jobs is not None:
            check_count("max_jobs", self.max_jobs)
        if self.monitor is not None and not callable(self.monitor):
            raise BadArgument("monitor", self.monitor, "must be a function that takes a LoopEvent")
        check_choice("heartbeat", self.heartbeat, HeartbeatKind)
        check_flag("burst", self.burst)
        check_flag("log_jobs", self.log_jobs)
        check_choice("order", self.order, Order)
        if self.order == "strict" and set(self.queues.values()) != {1}:
            raise BadArgument(
                "order", self.order, "needs queues without weights: pass a list of them"
            )
        delivery_wait(self.at_most_once, "at_most_once")
        isolate: object = self.isolate
        if isolate is not None and not (isinstance(isolate, str) and is_target(isolate)):
            raise BadArgument("isolate", isolate, 'must have the form "module:name"')
        if isolate is not None and (reason := reason_against_processes()):
            raise BadArgument("isolate", isolate, f"{reason}: omit it")

    def _converted(self) -> dict[str, Any]:
        converted = {
            "queues": check_queues(self.queues),
            "grace": duration_ms("grace", self.grace) / 1000,
            "time_limit": seconds_of("time_limit", self.time_limit),
        }
        if not callable(self.throttle):
            converted["throttle"] = duration_ms("throttle", self.throttle) / 1000
        return converted

    def shown(self) -> dict[str, Any]:
        """Return all options for JSON: durations in seconds, functions by their names."""
        options = {name: getattr(self, name) for name in self.__slots__}
        named = {name: qualified(value) for name, value in options.items() if callable(value)}
        once = self.at_most_once
        waits = once and asdict(once) | {"timeout": once.timeout_ms / 1000}
        return {**options, **named, "queues": dict(self.queues), "at_most_once": waits}


def _listed(queues: object) -> Collection[AnyQueue]:
    """Return a queue or several as a collection, a mapping as it is.

    Raises:
        BadArgument: neither.
    """
    if isinstance(queues, str) or is_queue(queues):
        return [cast("AnyQueue", queues)]
    if not isinstance(queues, Iterable) or isinstance(queues, (bytes, bytearray)):
        raise BadArgument(
            "queues",
            queues,
            "must be a queue or its name, several, or a mapping of them to weights",
        )
    return queues if isinstance(queues, Mapping) else list(queues)


def check_queues(queues: Any) -> dict[str, int]:
    """Return queue names and their weights.

    Raises:
        BadArgument: no queue, one that is named twice, or a weight below 1.
    """
    queues = _listed(queues)
    names = [queue.name if is_queue(queue) else queue for queue in queues]
    weights = queues.values() if isinstance(queues, Mapping) else [1] * len(names)
    weight_of: dict[str, int] = {}
    for name, weight in zip(names, weights, strict=True):
        check_queue_name(name)
        check_count("queues", weight, high=1_000_000)
        if name in weight_of:
            raise BadArgument("queues", names, "must name each queue once")
        weight_of[name] = weight
    if not weight_of:
        raise BadArgument("queues", queues, "must have at least one queue")
    return weight_of


def served(queues: Queues | None, handlers: Any) -> Collection[AnyQueue]:
    """Return the queues of a worker: the given ones, or else those that its handlers name.

    Raises:
        BadArgument: there are none.
    """
    if queues is not None:
        return _listed(queues)
    named = handlers if isinstance(handlers, Handlers) else ()
    queue_names = list(
        dict.fromkeys(handler.queue for handler in named if handler.queue is not None)
    )
    if not queue_names:
        reason = 'pass at least one queue, or name it at a handler: @handlers.handler(queue="mail")'
        raise BadArgument("queues", queues, reason)
    return queue_names


def handler_sets(handlers: Any, queues: Collection[AnyQueue], client: Any) -> list[Handlers]:
    """Return the handlers of a worker: those that it was given, and those of its queues.

    Args:
        handlers: `Handlers`, a function, or None.
        queues: as `served` returns them. A queue with partitions tells `client` their number.
        client: of the worker. It has the queues that were passed by name.

    Raises:
        BadArgument: there is no handler, or an argument can't be used.
    """
    found = [] if handlers is None else [check_handlers(handlers)]
    for queue in queues:
        if is_queue(queue) and queue.partitions is not None:
            client.queue(queue.name, partitions=queue.partitions)
        own = handlers_of(queue if is_queue(queue) else client.queue(queue))
        if own is not None and own not in found:
            found.append(own)
    if not any([*one] for one in found):
        reason = "pass at least one handler, or register one: @queue.handler"
        raise BadArgument("handlers", handlers, reason)
    return found


def joined(sets: list[Handlers]) -> Handlers:
    """Return one set of handlers; a single set as it is.

    Raises:
        BadArgument: two handlers have one name.
    """
    if len(sets) == 1:
        return sets[0]
    whole = Handlers()
    for part in sets:
        whole.include(part)
    return whole


def check_handlers(handlers: Any, argument: str = "handlers") -> Handlers:
    """Return the handlers of a worker.

    Args:
        handlers: `Handlers`, or a function.
        argument: the name that errors tell.

    Raises:
        BadArgument: neither `Handlers` nor a function, or no handler at all.
    """
    if isinstance(handlers, Handlers):
        chosen = handlers
    elif callable(handlers):
        chosen = Handlers()
        chosen.default(handlers)
    else:
        raise BadArgument(argument, handlers, "must be Handlers or a function")
    if not list(chosen):
        reason = "must have at least one handler: register a function, @handlers.handler"
        raise BadArgument(argument, handlers, reason)
    return chosen


def check_states(handlers: Handlers, state: Any) -> None:
    """Check that the worker's state has a value for each `State` parameter of its handlers.

    Raises:
        BadArgument: it has none.
    """
    for handler in handlers:
        if not handler.is_whole:
            handler.check().states(state)


def refuse_other_kind(source: object, wanted: type, worker: type) -> None:
    """Refuse a client of threads for an asyncio worker, and the other way round.

    Raises:
        BadArgument: the source is a client of the other kind.
    """
    kind = type(source).__name__
    if kind in ("Penstock", "AsyncPenstock", "Redis") and not isinstance(source, wanted):
        module = type(source).__module__
        is_async = module.startswith("redis.asyncio") or kind == "AsyncPenstock"
        if is_async != wanted.__name__.startswith("Async"):
            takes = "a redis.asyncio.Redis" if not is_async else "a redis.Redis"
            passed = f"{module}.{kind}" if kind == "Redis" else kind
            reason = f"{worker.__name__} takes a URL, {wanted.__name__} or {takes}, not {passed}"
            raise BadArgument("source", shown(source), reason)


def refuse_coroutines(handlers: Handlers, argument: str = "handlers") -> None:
    """Refuse coroutine functions, which threads can't run.

    Raises:
        BadArgument: a handler is a coroutine function.
    """
    for handler in handlers:
        if handler.is_async:
            reason = "a coroutine function needs an AsyncWorker: use that, or a plain function"
            raise BadArgument(argument, handler, reason)
