"""The errors that take the place of those of redis-py."""

from __future__ import annotations

import pytest

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
