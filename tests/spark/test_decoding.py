"""Columns, compared with the Python client's view of the same jobs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.core.jobs.job import parse_counters
from penstock.core.jobs.record import encode_head, escaped, parse_record
from penstock.core.values.ids import encode_id, ttl_code
from penstock.errors import UndecodableBody
from penstock.spark import decoding
from penstock.spark.decoding import Origin, Page, Shape, pages
from penstock.spark.schema import SCHEMA
from penstock.wire.keys import score_of
from tests.spark.hands import schema

PACKED = bytes.fromhex("a1b2c3d4e5f60718")
ALL = SCHEMA.replace("map<string,string>", "map")

texts = st.text(max_size=8).filter(lambda text: text.isprintable())
heads = st.builds(
    lambda own, lease, ttl, headers, dedup, window: encode_head(
        lease_ms=lease,
        ttl_ms=ttl,
        headers=headers,
        dedup=f";d={escaped(dedup)}{'' if window is None else f';w={window}'}" if dedup else "",
    )[own],
    st.integers(0, 1),
    st.sampled_from([None, 0, 60_000]),
    st.sampled_from([None, 1, 3_600_000]),
    st.dictionaries(texts.filter(bool), texts, max_size=2),
    st.sampled_from(["", "7", "mail:7", "é;=%\n"]) | texts,
    st.sampled_from([None, 5000]),
)
strange = st.sampled_from(
    [b"", b"1", b"no header at all", b"1;d=\xff\n", b"1;d\n", b"1;d=a%2\n", b"1;u=8;d=x\n", b"\n"]
)
bodies = st.binary(max_size=6) | st.just(b"a\nb")
notes = st.sampled_from([b"", b"@1795000000000 host:1\n", b"@1795000000001 \xc3\xa9 x\n"])
values = st.builds(lambda note, head, body: note + head + body, notes, heads | strange, bodies)
values = values.filter(lambda value: value[:1] != b"@" or value[:4] == b"@179")  # only notes do
numbers = st.builds(
    lambda ms, seq: b"%013d-%010d" % (ms, seq),
    st.integers(10**12, 10**13 - 1),
    st.integers(0, 2**32 - 1).filter(lambda seq: seq < 10**10),
)
counters = st.sampled_from([b"", b"2 1 0 0", b"3+ 1 1 0 boom", b"4 0 0 3 \xff"])
jobs = st.tuples(numbers, st.integers(1, 2**41), st.integers(0, 4095), counters, values)


def told(origin: Origin, job: tuple[bytes, int, int, bytes, bytes]) -> dict[str, Any]:
    """Return the expected columns of one job, from `parse_record` and `encode_id`."""
    number, score, tag, counted, value = job
    note = b""
    if value[:1] == b"@":
        note, _, value = value.partition(b"\n")
    record, counts = parse_record(value), parse_counters(counted)
    delivered = origin.place == "active"
    code = ttl_code(record.ttl_ms, at_most_once=record.lease_ms == 0)
    made = int(number[:13])
    owner = note.partition(b" ")[2].decode() if note else None
    return {
        "id": encode_id(origin.node, origin.packed, number, code),
        "queue": origin.queue,
        "state": origin.place,
        "payload": record.raw,
        "headers": list(record.headers.items()),
        "attempt": 1 + counts.nacks + counts.crashes,
        "nacks": counts.nacks,
        "crashes": counts.crashes,
        "receipt": f"{counts.deliveries}-{tag:03x}" if delivered else None,
        "dedup_id": record.dedup_id or None,
        "enqueued_at": made,
        "ready_at": made if origin.place == "ready" else None,
        "lease_until": score if delivered else None,
        "expires_at": None if record.ttl_ms is None else made + record.ttl_ms,
        "owner": owner,
        "last_error": counts.error or None,
        "node": origin.node,
    }


def scored(place: str, job: Any) -> bytes:
    """Return a job's score in the index of its structure."""
    return b"%d" % (score_of(job[1], job[2]) if place == "active" else job[1])


@settings(max_examples=300)
@given(st.lists(jobs, min_size=1, max_size=8), st.sampled_from(["ready", "active", "dead"]))
def test_every_column_equals_the_clients_view(found: list[Any], place: str) -> None:
    """Columns agree for any jobs: with and without notes, headers, dedup ids, or damaged."""
    origin = Origin("mail", "1f2e3d4c", PACKED, place)
    if place == "ready":  # neither delivered nor released
        found = [(number, 0, 0, b"", value) for number, _, _, _, value in found]
        parts = [part for job in found for part in (job[0], job[4])]
    else:
        parts = [part for job in found for part in (job[0], scored(place, job), job[3], job[4])]
    shape = Shape(schema(ALL))
    batch = shape.batch(Page(origin, parts))
    assert batch.schema.names == [column.split()[0] for column in SCHEMA.split(", ")]
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        column.validate(full=True)
        if str(column.type).startswith("timestamp"):
            shown = [None if us is None else us // 1000 for us in column.cast("int64").to_pylist()]
        else:
            shown = column.to_pylist()
        assert shown == [told(origin, job)[name] for job in found], name


def test_replies_are_joined_to_pages(monkeypatch: Any) -> None:
    """Replies are joined until a page has enough jobs or bytes, or its source changes."""
    one, other = Origin("q", "1f2e3d4c", PACKED, "active"), Origin("q", "1f2e3d4c", PACKED, "dead")
    monkeypatch.setattr(decoding, "JOBS_PER_PAGE", 5)
    monkeypatch.setattr(decoding, "BYTES_PER_PAGE", 1000)

    def reply(count: int, size: int = 3) -> list[bytes]:
        return [b"1800000000000-1000000000", b"4096", b"", b"1\n" + b"x" * size] * count

    replies = [(one, reply(2)), (one, reply(2)), (one, reply(2)), (one, reply(2))]
    replies += [(other, reply(0)), (other, reply(1)), (one, reply(1, 2000)), (one, reply(1))]
    found = [(page.origin.place, page.count) for page in pages(iter(replies))]
    assert found == [("active", 6), ("active", 2), ("dead", 1), ("active", 1), ("active", 1)]
    assert list(pages([])) == []


@pytest.mark.parametrize("nullable", [True, False])
def test_batches_have_the_schema_that_spark_expects(nullable: bool) -> None:
    """Spark refuses a batch whose schema differs from its own conversion."""
    fields = [StructField(one.name, one.dataType, nullable) for one in schema(ALL).fields]
    wanted = StructType(fields)
    assert Shape(wanted).target.equals(to_arrow_schema(wanted, timezone="UTC"))


def test_a_body_that_is_no_text() -> None:
    """For a text column a body that is not text raises; the error has column and job."""
    origin = Origin("q", "1f2e3d4c", PACKED, "ready")
    numbers = [b"1800000000000-%010d" % (1_000_000_000 + at) for at in range(3)]
    bodies = [b"1\nfine", b"1\n\xff", b"1\nfine"]
    page = Page(origin, [part for pair in zip(numbers, bodies, strict=True) for part in pair])
    shape = Shape(schema("payload string"))
    wrong = encode_id(origin.node, PACKED, numbers[1], ttl_code(None))
    with pytest.raises(UndecodableBody, match=f"column 'payload'.* {wrong} .*binary"):
        shape.batch(page)
