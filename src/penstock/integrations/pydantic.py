"""Handler arguments of types that JSON lacks and pydantic knows: models, dataclasses, dates.

    handlers = Handlers(convert=converter)

    @handlers.handler("welcome")
    def welcome(user: User, at: datetime) -> None: ...

    welcome.enqueue(queue, user, at)

Needs the extra `pydantic`.
"""

from __future__ import annotations

from typing import Any

try:
    from pydantic import TypeAdapter, ValidationError
    from pydantic.errors import PydanticUserError
    from pydantic_core import to_json
except ModuleNotFoundError as error:
    reason = "penstock.integrations.pydantic needs pydantic: pip install 'penstock[pydantic]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

from penstock.errors import BadArgument
from penstock.worker.arguments import Conversion

__all__ = ["converter"]


def converter(annotation: Any) -> Conversion:
    """Return the conversion for an annotation, by pydantic's rules for JSON.

    Raises:
        BadArgument: pydantic can't use the annotation.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise BadArgument("annotation", annotation, reason) from error

    def load(value: Any) -> Any:
        try:
            return adapter.validate_json(to_json(value))
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(step) for step in first["loc"])
            raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from error

    def dump(value: Any) -> Any:
        return adapter.dump_python(value, mode="json", warnings="error")

    return Conversion(load, dump)
