"""Tells transient failures from refusals, and gives refusals their typed errors."""

from __future__ import annotations

import re

from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    ClusterDownError,
    MasterDownError,
    MaxConnectionsError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.core.calls.troubles import raise_explained
from penstock.errors import (
    BodyTooLarge,
    NotPermitted,
    OutcomeUnknown,
    OutOfMemory,
    ProtocolError,
    QueueDamaged,
    ServerError,
)

CONNECTION_ERRORS = (RedisConnectionError, RedisTimeoutError, ProtocolError)
"""Errors of a call without an answer."""
CERTAIN_ERRORS = (AuthenticationError, AuthorizationError, MaxConnectionsError, OutcomeUnknown)
SLOT_ERRORS = (AskError, ClusterDownError, TryAgainError)
"""Errors of a cluster about a slot that has moved (MOVED is an AskError) or is in migration."""
PASSING_REFUSAL = (
    r"(?:^|-)(?:READONLY|MASTERDOWN|NOREPLICAS|UNBLOCKED|BUSY|MISCONF|TRYAGAIN) "
    r"|WAIT cannot be used with replica"
)
"""Finds refusals that are not about the call: the server is not a primary, is cut off from it or
from its replicas, runs a slow script (BUSY), or can't write to its disk (MISCONF). Redis 6.2 puts
text around the refusal of a command in a script."""

SIZE_REFUSAL = r"invalid (?:multi)?bulk length|max(?:imum)? request size|request (?:is )?too large"
"""Finds refusals of a call for its size, by Redis, which closes the connection, and hosted
services."""

COMMAND_REFUSAL = (
    r"run the '|(?:refuses|run) the command|(?:unknown|unsupported|disabled) (?:sub)?command"
    r"|command\b.*\bnot (?:allowed|supported|permitted|available|implemented)"
)
"""Finds refusals of a command by ACL rules, servers and proxies, and the errors made of them."""

TOO_LARGE = (
    "the body is too large for this server: send less at once, or raise its proto-max-bulk-len and "
    "client-query-buffer-limit"
)
MAY_BE_TOO_LARGE = (
    "the connection is closed during the call each time: the outcome is unknown; the body may be "
    "too large for this server or a proxy: look for the job, send less at once, or raise "
    "proto-max-bulk-len and client-query-buffer-limit"
)


def raise_typed(error: ResponseError, address: str = "the server", mistyped: str = "") -> None:
    """Raise the typed error for an error reply, if there is one.

    Args:
        error: the reply.
        address: address of the server.
        mistyped: the keys that have a wrong type, and their types, if that is known.

    Raises:
        OutOfMemory, BodyTooLarge, QueueDamaged, ServerError.
    """
    text = str(error)
    if refuses_size(error):
        raise BodyTooLarge(f"{address} answers {text!r}: {TOO_LARGE}") from None
    if is_full(error):
        refused = "the server has reached maxmemory and refused the job; nothing was written"
        raise OutOfMemory(refused) from error
    if "WRONGTYPE" in text:
        damage = mistyped or f"a key of the queue has the wrong type: {text}"
        raise QueueDamaged(f"{damage}; nothing was written") from (None if mistyped else error)
    raise_explained(error, address)


def refuses_size(error: BaseException) -> bool:
    """Return True for a refusal of a call because of its size."""
    return isinstance(error, ResponseError) and bool(re.search(SIZE_REFUSAL, str(error)))


def transient(error: BaseException) -> bool:
    """Return True for a failure of the connection, and a refusal of a server that is not ready.

    Any other refusal is the answer to the call.
    """
    if isinstance(error, ResponseError):
        codes = (ReadOnlyError, MasterDownError, TryAgainError)
        return isinstance(error, codes) or re.search(PASSING_REFUSAL, str(error)) is not None
    return isinstance(error, CONNECTION_ERRORS) and not isinstance(error, CERTAIN_ERRORS)


def loses_reply(error: BaseException | None) -> bool:
    """Return True if the connection was cut, or no reply came in time.

    The other connection errors, such as LOADING and NOAUTH, are replies.
    """
    is_cut = type(error) is RedisConnectionError
    return is_cut or isinstance(error, (RedisTimeoutError, OSError))


def passing(error: BaseException) -> bool:
    """Return True for a transient failure, and for that of a cluster which is changing."""
    return isinstance(error, SLOT_ERRORS) or transient(error)


def refuses_command(error: ResponseError) -> bool:
    """Return True if the server, or a proxy, lacks or forbids the command, whatever its arguments.

    An error in another text may be about the arguments.
    """
    is_other = is_full(error) or passing(error)
    return not is_other and re.search(COMMAND_REFUSAL, str(error), re.IGNORECASE) is not None


def is_full(error: ResponseError) -> bool:
    """Return True if the server has reached maxmemory."""
    # Redis 6.2 keeps the code in the text of a script's error; elsewhere redis-py takes it off.
    return "OOM" in str(error) or "'maxmemory'" in str(error)


def about_server(error: BaseException) -> bool:
    """Return True for an error of the server or the connection, whatever the call.

    Any other error concerns the call, or the queue of the call.
    """
    if isinstance(error, ServerError):
        return not isinstance(error, NotPermitted)  # which may allow other keys
    return passing(error) or isinstance(error, (*CONNECTION_ERRORS, OSError))
