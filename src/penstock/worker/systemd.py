"""The line to systemd: a unit with Type=notify has started when its program says so."""

from __future__ import annotations

import os
import socket

__all__ = ["notify_ready"]

SOCKET_VARIABLE = "NOTIFY_SOCKET"


def notify_ready() -> None:
    """Tell systemd, if it waits for that, that the service has started.

    Only the first process of a service tells it: those that it starts later do not know the socket.
    """
    address = os.environ.pop(SOCKET_VARIABLE, "")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
