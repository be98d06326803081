"""Fixtures: the command line in this process, and clients to check its effects."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Iterator

import pytest

from penstock import Penstock
from penstock.cli import main
from penstock.worker.signals import GROUP_SIGNALS
from tests.cli.support import Cli, Result
from tests.support.backends import Backend


@pytest.fixture
def run_cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run a command on the server of `url`, or on the one in the environment.

    `penstock worker` sets signal handlers for its whole process; the test restores them.
    """

    def run(*argv: str, stdin: bytes = b"", url: str | None = None) -> Result:
        monkeypatch.delenv("PENSTOCK_URL", raising=False)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        heard = {number: signal.getsignal(number) for number in GROUP_SIGNALS}
        try:
            code = main([*(["--url", url] if url else []), *argv])
        finally:
            for number, handler in heard.items():
                signal.signal(number, handler)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def cli(run_cli: Cli, real_backend: Backend) -> Cli:
    """Run a command on each server in turn."""

    def run(*argv: str, stdin: bytes = b"", url: str | None = None) -> Result:
        return run_cli(*argv, stdin=stdin, url=url or real_backend.url)

    return run


@pytest.fixture
def client(real_backend: Backend) -> Iterator[Penstock]:
    """A client of the same server."""
    with Penstock(real_backend.sync_client()) as client:
        yield client
