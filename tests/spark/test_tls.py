"""Groups 10 and 11 over TLS: `rediss://` with certificates named by the URL."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from penstock.embedded import EmbeddedServer
from penstock.spark import drain
from penstock.spark.errors import Unreachable
from penstock.spark.snapshot import SnapshotReader
from penstock.spark.writer import BatchWriter
from tests.connection.tls import CERTIFICATE, STRANGER, TlsEnd
from tests.spark.hands import close_all, schema

PASSWORD = "correct-horse-battery"
PEM = str(CERTIFICATE)
OWN = {"ssl_ca_certs": PEM, "ssl_certfile": PEM, "ssl_keyfile": PEM}
Make = Callable[..., EmbeddedServer]


@pytest.fixture
def guarded(make_server: Make) -> EmbeddedServer:
    """A server with a password."""
    server = make_server(args=("--requirepass", PASSWORD))
    assert isinstance(server.address, str)
    return server


@pytest.fixture
def ends(guarded: EmbeddedServer) -> Iterator[Callable[..., TlsEnd]]:
    """Make TLS proxies of it; all connections of Spark in this process are closed at the end."""
    made: list[TlsEnd] = []

    def make(**options: Any) -> TlsEnd:
        made.append(TlsEnd(guarded.address, **options))
        return made[-1]

    yield make
    close_all()
    for one in made:
        one.__exit__(None, None, None)


def given(end: TlsEnd, **files: str) -> dict[str, str]:
    """Return options of a reader or writer; the URL names the files."""
    url = f"{end.url.replace('//', f'//:{PASSWORD}@')}?{urlencode(files)}"
    return {"queue": "mail", "url": url, "retryFor": "0"}


def test_every_way(spark: Any, ends: Callable[..., TlsEnd], tmp_path: Path) -> None:
    """Write, table, stream and drain work on driver and tasks with client certificates."""
    # A handshake may fail in time on a busy machine.
    options = {**given(ends(asks=True), **OWN), "retryFor": "1m"}
    source = {**options, "checkpointLocation": str(tmp_path / "checkpoint")}
    rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS payload")
    rows.write.format("penstock").mode("append").options(**options, commitMode="staged").save()
    assert spark.read.format("penstock").options(**options).load().count() == 100
    jobs = spark.readStream.format("penstock").options(**options).load().select("payload")
    sink = jobs.writeStream.format("penstock").options(**{**source, "queue": "other"})
    sink.trigger(availableNow=True).start().awaitTermination()
    del options["queue"]
    assert drain(spark, queue="other", handler=len_of, parallelism=2, **options).done == 100


def len_of(job: Any) -> int:
    """Return the length of a body."""
    return len(job.raw)


def test_a_wrong_authority_is_an_error(ends: Callable[..., TlsEnd]) -> None:
    """An untrusted certificate fails on the driver, without the password; nothing is written.

    Its authority is enough if the server asks for no certificate of the client.
    """
    right = {**given(ends(), ssl_ca_certs=PEM), "retryFor": "1m"}
    assert SnapshotReader(right, schema("id string")).partitions() == []
    options = given(ends(), ssl_ca_certs=str(STRANGER))
    for work in (
        lambda: BatchWriter(options, schema("payload binary"), False),
        lambda: SnapshotReader(options, schema("id string")).partitions(),
    ):
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED") as caught:
            work()
        assert PASSWORD not in f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
