"""One back end is sufficient, as middleware does not depend on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.backends import Backend


@pytest.fixture
def backend() -> Iterator[Backend]:
    """A fresh fakeredis."""
    with Backend("fakeredis", "").acquired() as acquired:
        yield acquired
