"""Fixtures: the page in this process, and a client to check its effects."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from penstock import Penstock
from penstock.web import app
from tests.support.backends import Backend
from tests.support.keyspace import Raw
from tests.web.support import Browser

Open = Callable[..., Browser]


@pytest.fixture
def raw(real_backend: Backend) -> Raw:
    return real_backend.sync_client()


@pytest.fixture
def ps(real_backend: Backend) -> Iterator[Penstock]:
    with Penstock(real_backend.sync_client()) as client:
        yield client


@pytest.fixture
def open_page(real_backend: Backend) -> Iterator[Open]:
    """Make the page with some options, and a client of it on this machine."""
    with contextlib.ExitStack() as stack:

        def made(
            *,
            url: str = real_backend.url,
            client: tuple[str, int] = ("127.0.0.1", 1),
            **options: Any,
        ) -> Browser:
            page = app(url, **options)
            test = TestClient(page, "http://localhost", client=client, follow_redirects=True)
            return Browser(stack.enter_context(test))

        yield made


@pytest.fixture
def page(open_page: Open) -> Browser:
    """The page, read-only."""
    return open_page()


@pytest.fixture
def writable(open_page: Open) -> Browser:
    """The page with actions."""
    return open_page(write=True)
