"""A TLS proxy with a self-signed certificate for a server without TLS."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
from pathlib import Path
from types import TracebackType

from tests.support.proxy import LOOPBACK, Address, Listener

__all__ = ["CERTIFICATE", "STRANGER", "TlsEnd"]

CERTIFICATE = Path(__file__).with_name("localhost.pem")
"""A self-signed certificate with its key for localhost and 127.0.0.1, valid from 2020 to 2120.
It is used in these tests only, and not trusted by anything else.
"""
STRANGER = CERTIFICATE.with_name("stranger.pem")
"""Another one of that kind with the same names."""


class TlsEnd:
    """A TLS listener on a free loopback port that forwards all data without TLS.

    Args:
        upstream: path of a unix socket, or host and port.
        asks: whether a client has to show that certificate as well.
    """

    def __init__(self, upstream: Address, *, asks: bool = False) -> None:
        self._upstream = upstream
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(CERTIFICATE)
        if asks:
            self._context.verify_mode = ssl.CERT_REQUIRED
            # With TLS 1.3 a refused client learns it later, or that the connection is gone.
            self._context.maximum_version = ssl.TLSVersion.TLSv1_2
            self._context.load_verify_locations(CERTIFICATE)
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        listening = socket.socket()
        listening.bind((LOOPBACK, 0))
        self.url = f"rediss://localhost:{listening.getsockname()[1]}/0"
        self._listener = Listener(listening, self._accept)

    def _accept(self, accepted: socket.socket) -> None:
        self._open.append(accepted)
        thread = threading.Thread(target=self._serve, args=(accepted,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        family = socket.AF_UNIX if isinstance(self._upstream, str) else socket.AF_INET
        with contextlib.suppress(OSError), accepted, socket.socket(family) as upstream:
            upstream.connect(self._upstream)
            with self._context.wrap_socket(accepted, server_side=True) as secured:
                self._open.append(secured)
                _copy(secured, upstream)

    def __enter__(self) -> TlsEnd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._listener.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(5)


def _copy(secured: ssl.SSLSocket, plain: socket.socket) -> None:
    """Copy bytes both ways until one side closes."""
    while True:
        ready = [secured] if secured.pending() else select.select([secured, plain], [], [])[0]
        for source in ready:
            data = source.recv(65536)
            if not data:
                return
            (plain if source is secured else secured).sendall(data)
