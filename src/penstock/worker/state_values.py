"""The state of a worker: values that its lifespan yields, for the parameters of handlers."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias, TypeVar, cast

from penstock.errors import BadArgument

__all__ = ["STATE", "State", "is_state", "state_for"]

T = TypeVar("T")


class _FromState:
    """Marks a parameter that the state of the worker fills."""

    def __repr__(self) -> str:
        return "STATE"


STATE: Final[Any] = _FromState()
"""A default for a `State` parameter. With it, type checkers allow calls without the argument."""

State: TypeAlias = Annotated[T, STATE]
"""The annotation of a parameter that is no argument of the job: the worker's lifespan yields it.

`pool: State[Pool]` receives what the lifespan yields if that is a `Pool`. Otherwise it receives the
item `"pool"` of a mapping, or the attribute `pool` of an object.
"""


def is_state(annotation: Any) -> bool:
    """Return whether an annotation is `State[...]`."""
    return STATE in getattr(annotation, "__metadata__", ())


def state_for(name: str, annotation: Any, state: Any) -> Any:
    """Return the value for a `State` parameter.

    Args:
        name: of the parameter.
        annotation: its `State[...]`.
        state: the value that the lifespan has yielded.

    Raises:
        BadArgument: the state has no such value.
    """
    wanted = annotation.__origin__
    kind = typing.get_origin(wanted) or wanted
    if isinstance(kind, type) and _is_one(state, kind):
        return state
    given = "there is no lifespan" if state is None else f"it yields a {type(state).__name__}"
    if isinstance(state, Mapping):
        items = cast("Mapping[str, Any]", state)
        if name in items:
            return items[name]
    elif state is not None and hasattr(state, name):
        return getattr(state, name)
    shown = getattr(wanted, "__name__", str(wanted))
    reason = f"the worker's lifespan yields no {shown} and nothing with this name: {given}"
    raise BadArgument(name, state, reason)


def _is_one(value: Any, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except TypeError:  # a Protocol that is checked by type checkers alone
        return False
