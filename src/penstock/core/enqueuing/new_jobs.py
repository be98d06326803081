"""Jobs of handlers that are not added yet, and their options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic

from penstock.core.enqueuing.options import OPTIONS, RIVALS, unknown_option
from penstock.core.enqueuing.prepared import MANY, Prepared, prepared
from penstock.core.jobs.middleware import HANDLER, Middleware, enqueue_event, enqueuing
from penstock.core.values.codec import Codec
from penstock.errors import BadArgument

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:
    from typing import TypeVar

__all__ = ["JobOptions", "NewJob", "NewJobs", "headers_of", "hooked"]


def _merged(before: Mapping[str, Any], later: Mapping[str, Any]) -> dict[str, Any]:
    """Return options together: later ones win, and headers are added to earlier ones by name."""
    dropped = {RIVALS.get(name) for name, value in later.items() if value is not None}
    merged = {name: value for name, value in before.items() if name not in dropped}
    merged.update(later)
    old, new = before.get("headers") or {}, later.get("headers")
    if isinstance(new, Mapping):
        if HANDLER in old and new.get(HANDLER, old[HANDLER]) != old[HANDLER]:
            reason = f"the header {HANDLER!r} names the job's handler, {old[HANDLER]!r}: omit it"
            raise BadArgument("headers", new, reason)
        merged["headers"] = {**old, **new}
    elif new is None and old:
        merged["headers"] = old
    return merged


class JobOptions:
    """The options of a handler's jobs: checked, and prepared once for each codec.

    Args:
        options: the options, by name.

    Attributes:
        by_name: the argument.
        by_codec: codec -> the prepared options.

    Raises:
        BadArgument: one of them can't be used.
    """

    __slots__ = ("by_codec", "by_name")

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.by_name = options
        self.by_codec: dict[Codec | None, Prepared] = {}
        self.prepared(None)

    def __repr__(self) -> str:
        return (
            f"JobOptions({', '.join(f'{name}={value!r}' for name, value in self.by_name.items())})"
        )

    @property
    def headers(self) -> dict[str, str]:
        """A copy of the headers."""
        return dict(self.by_name.get("headers") or {})

    def prepared(self, codec: Codec | None) -> Prepared:
        """Return the options in the form of the wire."""
        options = self.by_codec.get(codec)
        if options is None:
            options = self.by_codec[codec] = prepared(codec, **self.by_name)
        return options

    def joined(self, call: Prepared) -> Prepared:
        """Return these options with those of a call, which win."""
        chosen = {
            name: value
            for name, value in call.arguments.items()
            if value is not None or OPTIONS[name].default is not None
        }
        if not chosen:
            return self.prepared(call.codec)
        return prepared(call.codec, MANY, **_merged(self.by_name, chosen))

    def refuse(self, names: Iterable[str], reason: str) -> None:
        """Refuse the options with these names.

        Raises:
            BadArgument: one of them is given; with this reason.
        """
        for name in names:
            if self.by_name.get(name) is not None:
                raise BadArgument(name, self.by_name[name], reason)

    def updated(self, others: Mapping[str, Any]) -> JobOptions:
        """Return these options with others, which win.

        Raises:
            BadArgument: there is no such option, or one of them can't be used.
        """
        for name, value in others.items():
            if name not in OPTIONS:
                raise unknown_option(name, value)
        return type(self)(_merged(self.by_name, others))


if TYPE_CHECKING:
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class NewJob(Generic[V_co]):
    """A job of a handler that is not added yet: the body of an `enqueue` or `enqueue_many`.

    `Handler.job` makes it. Type checkers know it by what the function of the handler returns.

    Attributes:
        body: the body, with the arguments of the function.
        options: the options of the handler.
        queue: name of the queue to which `Done(then=[...])` hands it over; None = the queue of the
            job that it follows. An `enqueue` has a queue of its own.
    """

    body: Any
    options: JobOptions
    queue: str | None = None


@dataclass(frozen=True, slots=True)
class NewJobs(Iterable[NewJob]):
    """Jobs of one handler that are not added yet, made as they are read. `Handler.jobs` makes it.

    Attributes:
        bodies: returns the bodies.
        options: the options of the handler.
        encoded: returns the bodies as JSON; None = the bodies may be bytes.
        queue: as of a `NewJob`.
    """

    bodies: Callable[[], Iterable[Any]]
    options: JobOptions
    encoded: Callable[[], Iterable[bytes]] | None = None
    queue: str | None = None

    def __iter__(self) -> Iterator[NewJob]:
        return (NewJob(body, self.options, self.queue) for body in self.bodies())


def headers_of(bodies: Any, headers: Any) -> Any:
    """Return the headers of an enqueue, with those of the handler whose jobs it adds."""
    if type(bodies) not in (NewJob, NewJobs):
        return headers
    return _merged(bodies.options.by_name, {"headers": headers})["headers"]


def hooked(
    job: NewJob, queue: str, *, middleware: Iterable[Middleware], clock: Callable[[], float]
) -> NewJob:
    """Return a job with the headers that middleware adds, for a job that another call adds later.

    Args:
        job: the job.
        queue: the name of its queue.
        middleware: of the client; none = the job stays as it is.
        clock: returns monotonic seconds.

    Raises:
        BadArgument: the headers can't be used.
        Any exception of the middleware.
    """
    if not middleware:
        return job
    event = enqueue_event(queue, 1, job.options.headers)
    with enqueuing(middleware, event, clock):
        pass
    return replace(job, options=job.options.updated({"headers": event.headers}))
