"""Packed commands."""

from __future__ import annotations

import pytest

from penstock.core.operations import QueueOps
from penstock.wire.keys import QueueKeys
from penstock.wire.packing import pack, with_record


@pytest.mark.parametrize("record", [b"1\n", b"1;i=a\n" + b"x\r\n" * 1000])
def test_a_call_with_one_record_is_packed_as_any_other(record: bytes) -> None:
    """The bytes are the same as if the whole command were packed."""
    call = QueueOps(QueueKeys("emails", "p"), "owner", []).enqueue_plain(record)
    whole = (b"EVALSHA", call.script.sha, *call.head, b"12", b"producer", record)
    assert with_record(call.front, b"12", b"producer", *call.args) == pack(whole)
