"""Names, ids, records, counters and receipts equal the vectors byte by byte."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest

from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.dedup import UNTIL, Dedup, with_id
from penstock.core.jobs.job import parse_counters
from penstock.core.jobs.record import encode_body, encode_head, key_hash, parse_record
from penstock.core.values.ids import ORDERED_ALPHABET, encode_id, parse_id, ttl_code
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument, BadJobId
from penstock.wire.keys import KEY_KINDS, QueueKeys, check_prefix, check_queue_name, queue_crc, tag
from penstock.wire.scripts import script
from tests.protocol.clock import T0, run
from tests.protocol.pages import PAGES
from tests.protocol.seeds import EPOCH
from tests.protocol.vectors import FOLDER, placed
from tests.support.backends import Backend


def _cases(file: str, part: str) -> list[Any]:
    document = json.loads((FOLDER / f"{file}.json").read_text("utf-8"))
    found: list[Any] = placed(document[part], T0)
    return found


def crc16(data: bytes) -> int:
    """Return the CRC-16/XMODEM checksum, which maps a hash tag to its slot."""
    crc = 0
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = ((crc << 1) ^ 0x1021 if crc & 0x8000 else crc << 1) & 0xFFFF
    return crc


def hash_tag(key: bytes) -> bytes:
    """Return the part of a key that a cluster hashes: between the first { and the
    next }, if any.
    """
    start = key.find(b"{")
    end = key.find(b"}", start + 1)
    return key[start + 1 : end] if 0 <= start < end - 1 else key


@pytest.mark.parametrize("case", _cases("names", "names"), ids=lambda case: ascii(case["tag"])[:30])
def test_keys_of_a_queue(case: dict[str, Any]) -> None:
    """For any name every key of a queue equals the vector's, and all are in one slot."""
    keys = QueueKeys(case["name"], case["prefix"])
    assert tag(case["name"]) == case["tag"]
    assert f"{queue_crc(case['name']):08x}" == case["crc32"]
    for kind, name in case["keys"].items():
        assert keys[kind] == name.encode()
    names = [keys[kind] for kind in KEY_KINDS]
    assert {crc16(hash_tag(name)) % 16384 for name in names} == {case["slot"]}


def test_no_two_names_share_keys() -> None:
    """The escaping is reversible, so different names never share a key."""
    tags = [case["tag"] for case in _cases("names", "names")]
    assert len(set(tags)) == len(tags)


@pytest.mark.parametrize("case", _cases("names", "refused"), ids=lambda case: case["why"])
def test_invalid_names(case: dict[str, Any]) -> None:
    """Invalid names are refused before a key is made."""
    with pytest.raises(BadArgument):
        check_queue_name(case["name"])


@pytest.mark.parametrize("case", _cases("names", "refused_prefixes"), ids=lambda case: case["why"])
def test_invalid_prefixes_of_the_vectors(case: dict[str, Any]) -> None:
    """Invalid prefixes are refused before a key is made."""
    with pytest.raises(BadArgument):
        check_prefix(case["prefix"])


@pytest.mark.parametrize("name", [case["name"] for case in _cases("names", "names")], ids=ascii)
def test_a_queue_of_any_name_works(name: str, backend: Backend) -> None:
    """A job can be added and reserved under every name; all keys are documented ones."""
    raw, keys = backend.sync_client(), QueueKeys(name)
    assert run(raw, keys, "enqueue", (1, EPOCH, 0, "", 0, "", "1\nbody"))[0] == 1
    assert run(raw, keys, "reserve", (2, 1, 5, "ada", 0, ""))[8] == b"1\nbody"
    assert set(raw.keys("*")) <= {keys[kind] for kind in KEY_KINDS}


@pytest.mark.parametrize("case", _cases("ids", "ids"), ids=lambda case: case["case"])
def test_ids_have_the_parts_of_the_vectors(case: dict[str, Any]) -> None:
    """An id is built and parsed as the vector says."""
    crc = queue_crc(case["queue"])
    assert f"{crc:08x}" == case["crc32"]
    place = crc.to_bytes(4, "big") + bytes.fromhex(case["epoch"])
    ttl = ttl_code(case["ttl_ms"], at_most_once=case["at_most_once"])
    number = case["number"].encode()
    assert encode_id(case["node"], place, number, ttl) == case["id"]
    parsed = parse_id(case["id"])
    assert (parsed.node, parsed.ms, parsed.seq) == (case["node"], case["ms"], case["seq"])
    assert (parsed.crc, parsed.epoch, parsed.number) == (crc, case["epoch"], number)
    assert parsed.ttl_minutes == case["ttl_minutes"]
    assert parsed.at_most_once == case["at_most_once"]
    assert len(case["id"]) == 40


def test_ids_of_a_node_sort_by_creation() -> None:
    """The alphabet is in ASCII order, so text order is numeric order."""
    alphabet = json.loads((FOLDER / "ids.json").read_text("utf-8"))["alphabet"]
    assert alphabet.encode() == ORDERED_ALPHABET
    assert sorted(alphabet) == list(alphabet)
    ids = [case["id"] for case in _cases("ids", "ids") if case["node"] == "e6a1c3f0"]
    assert sorted(ids) == ids


@pytest.mark.parametrize("case", _cases("ids", "refused"), ids=lambda case: case["why"])
def test_invalid_ids_of_the_vectors(case: dict[str, Any]) -> None:
    """Invalid ids are refused before anything is sent."""
    with pytest.raises(BadJobId):
        parse_id(case["id"])


def _policy(parts: dict[str, int]) -> RetryPolicy:
    seconds = {
        name: parts[f"{name}_ms"] / 1000 for name in ("base", "cap") if f"{name}_ms" in parts
    }
    return RetryPolicy(parts.get("max_attempts"), **seconds)


@pytest.mark.parametrize("case", _cases("records", "records"), ids=lambda case: case["case"])
def test_records(case: dict[str, Any]) -> None:
    """A record is parsed as the vector says, and encoded to exactly those bytes."""
    data = case["record"].encode("latin-1")
    record = parse_record(data)
    assert (record.lease_ms, record.ttl_ms) == (case["lease_ms"], case["ttl_ms"])
    assert (record.codec, dict(record.headers)) == (case["codec"], case["headers"])
    assert record.raw == case["body"].encode("latin-1")
    assert record.dedup_id == case.get("dedup_id", "")
    policy = _policy(case["retry"]) if "retry" in case else None
    assert record.stable_id == case.get("stable_id", "")
    assert record.result_ms == case.get("keep_ms", 0)
    hashed = key_hash(case["key"]) if "key" in case else ""
    assert record.key_hash == hashed
    assert (record.retry, record.priority) == (policy, case.get("priority", 0))
    assert record.on_dead == case.get("on_dead", "")
    assert record.follow_up == case.get("follow_up", "")
    if "value" in case:
        assert record.body() == case["value"]
    if case["canonical"]:
        dedup = None
        if "dedup_id" in case:
            until = {letter: name for name, letter in UNTIL.items()}[case["until"]]
            window = None if case["window_ms"] is None else case["window_ms"] / 1000
            dedup = Dedup(case["dedup_id"], window=window, until=until)
        plain, as_json = encode_head(
            lease_ms=case["lease_ms"],
            ttl_ms=case["ttl_ms"],
            headers=case["headers"],
            dedup="" if dedup is None else dedup.fields,
            retry=policy,
            priority=case.get("priority"),
            on_dead=record.on_dead,
            result_ms=case.get("keep_ms"),
            key=hashed,
        )
        body = encode_body(case["value"])[0] if "value" in case else record.raw
        head = as_json if case["codec"] else plain
        head = head if dedup is None else with_id(head, case["dedup_id"])
        stable = f";i={record.stable_id}".encode() if record.stable_id else b""
        assert head.replace(b"\n", stable + b"\n") + body == data


@pytest.mark.parametrize(
    "case", _cases("records", "counters"), ids=lambda case: repr(case["value"])
)
def test_counters(case: dict[str, Any]) -> None:
    """A value of tally is parsed as the vector says; a missing one is a first delivery."""
    found = parse_counters(case["value"].encode("latin-1"))
    assert found._asdict() == {name: case[name] for name in found._fields}


@pytest.mark.parametrize("case", _cases("records", "receipts"), ids=lambda case: case["receipt"])
def test_receipts(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A receipt is the number of the delivery and its tag in three hex digits."""
    ops = QueueOps(QueueKeys("q"), "ada", ["e6a1c3f0"])
    number, counters = b"1800000000000-1000000000", case["counters"].encode()
    reply = [1, b"1", -1, EPOCH.encode(), 30_000, T0, number, counters, b"1\nbody"]
    monkeypatch.setattr("random.getrandbits", lambda _: case["tag"])
    ops.decline(script("reserve"))  # the plain form delivers no job again
    (found,) = ops.reserve(1).parse(reply).deliveries
    assert found.receipt == case["receipt"]


@pytest.mark.parametrize("case", _cases("records", "held"), ids=lambda case: repr(case["value"]))
def test_values_of_held(case: dict[str, Any], backend: Backend) -> None:
    """The note of a delivery is separated from the record, whatever the record's content."""
    raw, keys = backend.sync_client(), QueueKeys("held")
    number = f"{T0 - 5000}-1000000000"
    raw.hset(keys["meta"], mapping={"v": 2, "epoch": EPOCH, "uses": "", "seen": T0})
    raw.hset(keys["held"], number, case["value"].encode("latin-1"))
    raw.zadd(keys["scheduled"], {number: T0 + 5000})
    job = run(raw, keys, "show", (1, EPOCH, number))[5]
    assert job[3] == str(case["delivered_ms"] or 0).encode()
    assert (job[4], job[6]) == (case["owner"].encode(), case["record"].encode("latin-1"))


def test_hashes_in_the_pages() -> None:
    """The examples of a key's hash and of a schedule's hash can be computed again."""
    own, page = key_hash("customer:7"), PAGES["protocol/keys.md"]
    assert f"q={own}" in page
    assert re.findall(r":(?:tickets|parked) +\S+  (\d+)", page) == [str(int(own, 16))] * 2
    (entry,) = re.findall(r":schedules +report +(.*)", PAGES["protocol/schedules.md"])
    head, _, value = entry.replace("<LF>", "\n").partition("\n")
    assert head.split()[5] == hashlib.sha1(value.encode(), usedforsecurity=False).hexdigest()[:16]
