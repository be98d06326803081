"""Codecs: how bodies that are not bytes become bytes, and the bytes bodies again."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from penstock.core.values.caught import message_of
from penstock.errors import BadArgument, UndecodableBody

__all__ = ["Codec", "check_codec"]

CODEC_NAME = r"json|x-[a-z0-9][a-z0-9._-]{0,61}"


@dataclass(frozen=True, slots=True)
class Codec:
    """A codec of bodies that are not bytes, in place of plain JSON.

    Pickling a `JobView` of such a client pickles its codec: give functions of a module then.

    Args:
        name: kept with each job. "json" = what `encode` returns is JSON, which every client in
            every language can read; any other name begins with "x-", and is read by clients that
            have a codec of this name.
        encode: makes bytes of a body. What it raises becomes a `BadArgument`.
        decode: makes a body of the bytes of a job with this name. What it raises becomes an
            `UndecodableBody`.

    Raises:
        BadArgument: an argument can't be used.

    Examples:
        >>> upper = Codec("x-upper", lambda body: body.upper().encode(), bytes.decode)
        >>> upper.decoded(upper.encoded("hello"))
        'HELLO'
    """

    name: str
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]

    def __post_init__(self) -> None:
        name: object = self.name
        if not isinstance(name, str) or re.fullmatch(CODEC_NAME, name) is None:
            raise BadArgument(
                "name", self.name, 'must be json, or "x-" and 1 to 62 of a-z 0-9 . _ -'
            )
        for method in ("encode", "decode"):
            if not callable(getattr(self, method)):
                raise BadArgument(method, getattr(self, method), "must be a function")

    def encoded(self, body: object) -> bytes:
        """Encode a body.

        Raises:
            BadArgument: the codec can't express it.
        """
        try:
            raw: Any = self.encode(body)
        except Exception as error:
            raise BadArgument("body", body, f"codec {self.name}: {message_of(error)}") from error
        if not isinstance(raw, bytes):
            kind = type(raw).__name__
            raise BadArgument(
                "body", body, f"codec {self.name} returned {kind}: it must return bytes"
            )
        return raw

    def decoded(self, raw: bytes) -> Any:
        """Decode a body.

        Raises:
            UndecodableBody: the codec can't read them.
        """
        try:
            return self.decode(raw)
        except Exception as error:
            raise UndecodableBody(f"codec {self.name}: {message_of(error)}") from error


def check_codec(value: object) -> Codec | None:
    """Return a client's codec.

    Raises:
        BadArgument: it is not a codec.
    """
    if value is not None and not isinstance(value, Codec):
        raise BadArgument("codec", value, "must be a penstock.Codec, or None for plain JSON")
    return value
