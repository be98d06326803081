"""The errors that take the place of those of redis-py."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from penstock import errors
from penstock.core.calls.troubles import raise_explained

EXPLAINED = [
    one
    for one in vars(errors).values()
    if isinstance(one, type) and issubclass(one, errors.ServerError)
]


@pytest.mark.parametrize("kind", EXPLAINED, ids=lambda kind: kind.__name__)
def test_an_explained_error_is_not_explained_again(kind: type[errors.ServerError]) -> None:
    """An error of ours passes on its way up several places that explain errors."""
    raise_explained(kind("127.0.0.1:6379 refuses the password"), "127.0.0.1:6379")


@pytest.mark.parametrize(
    "address, hint",
    [
        ("localhost:6379", ". To start one here: penstock dev"),
        ("127.0.0.1:6391", ". To start one here: penstock --url redis://127.0.0.1:6391 dev"),
        ("redis.example:6379", ""),
        ("/run/redis.sock", ""),
    ],
)
def test_a_server_of_this_machine_can_be_started(address: str, hint: str) -> None:
    """Where nothing listens on a loopback address, the error names the command that starts one."""
    refused = RedisConnectionError(f"Error 111 connecting to {address}. Connection refused.")
    with pytest.raises(errors.ServerUnreachable) as caught:
        raise_explained(refused, address)
    assert str(caught.value) == f"{address} can't be reached: Connection refused{hint}"
    with pytest.raises(errors.ServerUnreachable) as caught:
        raise_explained(RedisConnectionError("Connection closed by server."), address)
    assert "penstock" not in str(caught.value)
