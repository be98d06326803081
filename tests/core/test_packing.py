"""Packed commands."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import redis

from penstock.client._sync.transport.settings import connection_factory
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.calls.operations.producing import SHORT_RECORD_BYTES
from penstock.core.enqueuing.prepared import prepared
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import pack


@pytest.mark.parametrize("record", [b"1\n", b"1;i=a\n" + b"x\r\n" * 1000])
@pytest.mark.parametrize(
    "options", [{}, {"delay": 5, "max_length": 9}, {"at": 5}, {"dedup_id": "a"}]
)
def test_a_call_with_one_record_is_packed_as_any_other(
    record: bytes, options: dict[str, Any]
) -> None:
    """The bytes are the same as if the whole command were packed."""
    ops = QueueOps(QueueKeys("emails", "p"), "owner", [])
    call: Call[Any] = ops.enqueue_one(record, prepared(**options))
    whole = (b"EVALSHA", call.script.sha, *call.head, b"12", b"producer", *call.args)
    assert call.pack(b"12", b"producer") == pack(whole)
    call.ends_with_record = not call.ends_with_record
    assert call.pack(b"12", b"producer") == pack(whole)


@pytest.mark.parametrize("options", [{}, {"delay": 5, "max_length": 9}, {"dedup_id": "a"}])
def test_a_call_with_one_record_is_that_of_many_records(options: dict[str, Any]) -> None:
    """The direct call has the arguments that a flow gives; a long record is packed with it."""
    ops, made = QueueOps(QueueKeys("emails", "p"), "owner", []), prepared(**options)
    mode = None if made.dedup is None else made.dedup.mode
    for record in (b"1\n", b"1\n" + b"x" * SHORT_RECORD_BYTES):
        direct = ops.enqueue_one(record, made)
        usual = ops.enqueue([record], delay=made.delay, bound=made.bound, wait=made.wait, mode=mode)
        assert (direct.script, direct.head) == (usual.script, usual.head)
        assert direct.wait == usual.wait
        assert pack(direct.args) == pack(usual.args)
        assert direct.ends_with_record is (len(record) <= SHORT_RECORD_BYTES)


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
