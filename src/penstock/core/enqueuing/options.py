"""The options of an enqueue: their types, and the rules of each in one table."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, NoReturn, Protocol, TypedDict, TypeVar, get_type_hints

from penstock.core.enqueuing.dedup import Dedup
from penstock.core.jobs.record import (
    encode_headers,
)
from penstock.core.values.checks import (
    Duration,
    Moment,
    check_block,
    check_count,
    check_handler_name,
    check_label,
    duration_ms,
    lease_ms,
    moment_ms,
)
from penstock.core.values.durable import Durable
from penstock.core.values.policy import RETRY_FORM, RetryPolicy
from penstock.errors import BadArgument

__all__ = [
    "NEW_OPTIONS",
    "NOT_STORED",
    "OPTIONS",
    "RIVALS",
    "UNSHARED_OPTIONS",
    "EnqueueManyOptions",
    "EnqueueOptions",
    "FollowerOfSet",
    "NamedHandler",
    "OptionRules",
    "check_each",
    "refuse_others",
    "show_options",
    "unknown_option",
]

UNNAMED_KINDS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
"""Kinds of parameters that are not shown: arguments behind the body are refused."""
F = TypeVar("F", bound=Callable[..., Any])


class NamedHandler(Protocol):
    """A handler, as its jobs name it; the layer of workers has the class."""

    @property
    def name(self) -> str | None:
        """Name in the header of its jobs."""

    def check_takes(self, argument: str, body: Any) -> None:
        """Refuse the body of another handler's job that this one could not be called with."""


@dataclass(frozen=True, slots=True)
class FollowerOfSet:
    """The `on_dead` of a handler that has got that of its set, not one of its own.

    Attributes:
        handler: the handler of the set.
    """

    handler: NamedHandler

    @property
    def name(self) -> str | None:
        """Name in the header of its jobs."""
        return self.handler.name

    def check_takes(self, argument: str, body: Any) -> None:
        """Accept any body: the handler of a set gets whole jobs."""


class _SharedOptions(TypedDict, total=False):
    delay: Duration
    at: Moment | None
    lease: Duration | None
    ttl: Duration | None
    headers: Mapping[str, str] | None
    max_length: int | None
    block: Duration | None
    replicas: int | None
    durable: Durable | None
    dedup: Dedup | None
    retry: RetryPolicy | None
    result_ttl: Duration | None
    priority: int | None
    on_dead: NamedHandler | str | None


class EnqueueOptions(_SharedOptions, total=False):
    """Options of an enqueue, as `Queue.enqueue` describes them."""

    dedup_id: str | None
    key: str | None


class EnqueueManyOptions(_SharedOptions, total=False):
    """Options of `Queue.enqueue_many`, which may compute the dedup id and the key of a body."""

    dedup_id: Callable[[Any], str] | str | None
    key: Callable[[Any], str] | str | None


class OptionRules(NamedTuple):
    """The rules of an option.

    Attributes:
        check: returns the value in the form of the wire, from the name and the value.
        field: the field of the record that holds it, or else the attribute of `Prepared`.
        fits_lane: whether the fast lane takes jobs that have it; a 0 is as good as none.
        is_shared: whether many jobs have the same value: it is checked once.
        repeats: whether that is so of some programs only, such as for the keys of a few tenants.
        is_stored: whether a job that another call adds later can have it, such as one that a
            handler hands over.
        default: the value that stands for none; if it is not None, None is a value.
    """

    check: Callable[[str, Any], Any]
    field: str
    fits_lane: bool = False
    is_shared: bool = True
    repeats: bool = False
    is_stored: bool = True
    default: object = None


def _check_block(argument: str, value: Any) -> float | None:
    return check_block(value, argument)


def _check_durable(argument: str, value: object) -> Durable:
    if not isinstance(value, Durable):
        raise BadArgument(argument, value, "must be a Durable; a number is passed as replicas=")
    return value


def _check_dedup(argument: str, value: object) -> Dedup:
    if not isinstance(value, Dedup):
        raise BadArgument(argument, value, "must be a Dedup; a plain id is passed as dedup_id=")
    return value


def _check_retry(argument: str, value: object) -> RetryPolicy:
    if not isinstance(value, RetryPolicy):
        raise BadArgument(argument, value, RETRY_FORM)
    if value.on:
        reason = "rules for exceptions (on=) can't be stored with a job: give them to the worker"
        raise BadArgument(argument, value, reason)
    return value


def _check_on_dead(argument: str, value: Any) -> str:
    if not isinstance(value, FollowerOfSet) and not hasattr(type(value), "not_a_body"):
        if not isinstance(value, str):
            reason = "must be a handler, or the name of one: on_dead=refund"
            raise BadArgument(argument, value, reason)
        return check_handler_name(argument, value)
    name: str | None = value.name
    if name is None:
        reason = "has no name, which the job that a death adds needs: name the handler"
        raise BadArgument(argument, value, reason)
    return name


OPTIONS = {
    "delay": OptionRules(duration_ms, "delay", is_shared=False, repeats=True, default=0),
    "at": OptionRules(moment_ms, "delay", is_shared=False, is_stored=False),
    "lease": OptionRules(lease_ms, "l", fits_lane=True),
    "ttl": OptionRules(partial(duration_ms, zero=False), "t"),
    "headers": OptionRules(encode_headers, "h", fits_lane=True, is_shared=False),
    "max_length": OptionRules(check_count, "bound", is_stored=False),
    "block": OptionRules(_check_block, "block", is_stored=False, default=0),
    "replicas": OptionRules(partial(check_count, low=0, high=1000), "wait", is_stored=False),
    "durable": OptionRules(_check_durable, "wait", is_stored=False),
    "dedup_id": OptionRules(check_label, "d", is_shared=False, is_stored=False),
    "dedup": OptionRules(_check_dedup, "d", is_shared=False, is_stored=False),
    "retry": OptionRules(_check_retry, "p"),
    "key": OptionRules(check_label, "q", fits_lane=True, is_shared=False, repeats=True),
    "result_ttl": OptionRules(duration_ms, "k", fits_lane=True),
    "priority": OptionRules(partial(check_count, low=0, high=9), "p"),
    "on_dead": OptionRules(_check_on_dead, "p"),
}
"""Name -> rules of each option, in the order in which signatures show them."""
RIVALS = {
    "delay": "at", "at": "delay", "replicas": "durable", "durable": "replicas",
    "dedup_id": "dedup", "dedup": "dedup_id",
}  # fmt: skip
"""Option -> the other form of it."""
UNSHARED_OPTIONS = frozenset(name for name, option in OPTIONS.items() if not option.is_shared)
"""Options that usually differ from job to job."""
NEW_OPTIONS = frozenset(name for name in UNSHARED_OPTIONS if not OPTIONS[name].repeats)
"""Options of which each job has another value, or one without a hash."""
NOT_STORED = tuple(name for name, option in OPTIONS.items() if not option.is_stored)
"""Options that only a call that adds the job at once can have."""
COMPUTED = ("dedup_id", "key")
"""Options for which `enqueue_many` takes a function that computes them from a body."""


def show_options(types: type) -> Callable[[F], F]:
    """Return a decorator that names each option in the signature of a function.

    `help()`, `inspect` and interactive shells show them instead of `**options`, and tools that read
    annotations get the type of each.

    Args:
        types: the TypedDict of the options.
    """
    annotations = get_type_hints(types)
    parameters = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=types.__annotations__[name].__forward_arg__,
        )
        for name, option in OPTIONS.items()
    ]

    def decorate(function: F) -> F:
        shown = inspect.signature(function)
        others = [one for one in shown.parameters.values() if one.kind not in UNNAMED_KINDS]
        described: Any = function
        described.__signature__ = shown.replace(parameters=[*others, *parameters])
        of_others = {one.name: one.annotation for one in others}
        described.__annotations__ = {
            **{name: annotation for name, annotation in of_others.items() if name != "self"},
            **{name: annotations[name] for name in OPTIONS},
            "return": shown.return_annotation,
        }
        return function

    return decorate


def check_each(options: Mapping[str, Any], *, many: bool) -> tuple[dict[str, Any], bool]:
    """Return the checked values by name, and whether the fast lane takes jobs that have them.

    Raises:
        BadArgument: there is no such option, or one of them can't be used.
    """
    checked: dict[str, Any] = {}
    fits_lane = True
    for name, value in options.items():
        option = OPTIONS.get(name)
        if option is None:
            raise unknown_option(name, value)
        if value is None and option.default is None:
            continue
        if name in COMPUTED and callable(value):
            if not many:
                raise BadArgument(name, value, "must be text; enqueue_many takes a function")
            checked[name] = value
        else:
            checked[name] = option.check(name, value)
        if not option.fits_lane and checked[name] != 0:
            fits_lane = False
    return checked, fits_lane


def refuse_others(body: Any, others: tuple[object, ...]) -> NoReturn:
    """Refuse arguments behind the body of a job.

    Raises:
        BadArgument: always.
    """
    if hasattr(type(body), "not_a_body"):  # a handler
        raise BadArgument("body", body, body.not_a_body)
    reason = "a job has one body: put the values into a list, or pass a job of a handler"
    raise BadArgument("body", (body, *others), reason)


def unknown_option(name: str, value: object) -> BadArgument:
    """Return the error for an option that does not exist."""
    from penstock.core.values.near import did_you_mean

    hint = did_you_mean(name, OPTIONS)
    return BadArgument(name, value, f"no such option{hint}: the options are {', '.join(OPTIONS)}")
