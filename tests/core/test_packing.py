"""Packed commands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import redis

from penstock.client._sync.transport.settings import connection_factory
from penstock.core.calls.operations import QueueOps
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import pack, with_record


@pytest.mark.parametrize("record", [b"1\n", b"1;i=a\n" + b"x\r\n" * 1000])
def test_a_call_with_one_record_is_packed_as_any_other(record: bytes) -> None:
    """The bytes are the same as if the whole command were packed."""
    call = QueueOps(QueueKeys("emails", "p"), "owner", []).enqueue_plain(record)
    whole = (b"EVALSHA", call.script.sha, *call.head, b"12", b"producer", record)
    assert with_record(call.front, b"12", b"producer", *call.args) == pack(whole)


BURST = """
import random, signal
from penstock.client._acompat import HandshakePacker
from penstock.wire.packing import pack, words

def stop(*_):
    raise TimeoutError

signal.signal(signal.SIGALRM, stop)
args, hits = tuple(range(100)), 0
while hits < 200:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.000002, 0.0001))
        while True:
            pack(words(args))
            HandshakePacker().pack("SELECT", *args)
    except TimeoutError:
        hits += 1
print(hits)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGALRM")
def test_the_handler_of_a_signal_may_raise_while_a_command_is_packed() -> None:
    """The exception arrives, and the interpreter goes on."""
    done = subprocess.run(
        [sys.executable, "-c", BURST], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr


@pytest.mark.parametrize("source", ["redis://h/7", redis.Redis("h", db=7)], ids=["url", "lent"])
def test_redis_py_opens_connections_with_our_packer(source: object) -> None:
    """Its own passes the number of the database to hiredis."""
    conn = connection_factory(source)[0]()
    packer: Any = vars(conn)["_command_packer"]
    assert packer.pack("SELECT", 7) == [b"*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n"]
    assert type(packer).__module__.startswith("penstock.")
