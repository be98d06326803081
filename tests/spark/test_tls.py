"""Groups 10 and 11 over TLS: `rediss://` with certificates from options."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.embedded import EmbeddedServer
from penstock.spark import OptionError, drain
from penstock.spark.connect import close_all, shards_of
from penstock.spark.errors import Unreachable
from penstock.spark.options import Connection
from penstock.spark.snapshot import SnapshotReader
from penstock.spark.writer import BatchWriter
from tests.connection.tls import CERTIFICATE, STRANGER, TlsEnd
from tests.spark.hands import schema

PASSWORD = "correct-horse-battery"
PEM = str(CERTIFICATE)
OWN = {"sslCaFile": PEM, "sslCertFile": PEM, "sslKeyFile": PEM}
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


def given(end: TlsEnd, **more: str) -> dict[str, str]:
    """Return options of a reader or writer."""
    url = end.url.replace("//", f"//:{PASSWORD}@")
    return {"queue": "mail", "url": url, "retryFor": "0", **more}


@pytest.mark.parametrize("asks", [False, True])
def test_every_way(asks: bool, spark: Any, ends: Callable[..., TlsEnd], tmp_path: Path) -> None:
    """Write, table, stream and drain work on driver and tasks, also with client certificates."""
    files = OWN if asks else {"sslCaFile": PEM}
    # A handshake may fail in time on a busy machine.
    options = {**given(ends(asks=asks), **files), "retryFor": "1m"}
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


def test_a_wrong_authority_is_named_by_spark(spark: Any, ends: Callable[..., TlsEnd]) -> None:
    """With a wrong authority write, table and stream fail on the driver without the password."""
    options = given(ends(), sslCaFile=str(STRANGER))
    rows = spark.range(5).selectExpr("CAST(id AS STRING) AS payload")
    table = spark.read.format("penstock").options(**options)
    for work in (
        rows.write.format("penstock").mode("append").options(**options).save,
        lambda: table.load().count(),
        lambda: drain(spark, handler=len_of, **options),
    ):
        with pytest.raises(Exception, match="sslCaFile': no certificate in it") as caught:
            work()
        assert PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    "asks, files, told",
    [
        (False, {"sslCaFile": str(STRANGER)}, "option 'sslCaFile': no certificate in it"),
        (False, {}, "option 'sslCaFile': no certificate in it"),
        (True, {"sslCaFile": PEM}, "option 'sslCertFile': the server may require"),
        (
            True,
            {"sslCaFile": PEM, "sslCertFile": str(STRANGER)},
            "option 'sslCertFile': the server may require",
        ),
    ],
)
def test_untrusted_certificates_name_an_option(
    asks: bool, files: dict[str, str], told: str, ends: Callable[..., TlsEnd]
) -> None:
    """Untrusted certificates on either side name the option without the password;
    nothing is written.
    """
    options = given(ends(asks=asks), **files)
    for work in (
        lambda: BatchWriter(options, schema("payload binary"), False),
        lambda: SnapshotReader(options, schema("id string")).partitions(),
    ):
        with pytest.raises(Unreachable, match=told) as caught:
            work()
        shown = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
        assert PASSWORD not in shown
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_another_host(ends: Callable[..., TlsEnd]) -> None:
    """A trusted certificate with another host name than the URL is refused."""
    options = given(ends(), sslCaFile=PEM)
    options["url"] = options["url"].replace("localhost", "127.1")
    with pytest.raises(Unreachable, match="option 'url': the server's certificate is for another"):
        shards_of(Connection.parse(options))


@pytest.mark.parametrize("name", ["sslCaFile", "sslCertFile", "sslKeyFile"])
def test_files_are_checked_first(name: str, tmp_path: Path) -> None:
    """A missing or invalid certificate file is named before anything is sent."""
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    url = "rediss://127.0.0.1:1"
    for file, told in ((tmp_path / "none", "can't be read here"), (text, "can't be used")):
        files = {**OWN, name: str(file)}
        named = "sslCertFile" if name == "sslKeyFile" and file is text else name
        with pytest.raises(OptionError, match=f"option {named}=.*{told}") as caught:
            shards_of(Connection.parse({"queue": "mail", "url": url, **files}))
        assert caught.value.argument == named
    with pytest.raises(OptionError, match=f"option '{name}': needs a URL .* rediss://"):
        shards_of(Connection.parse({"queue": "mail", "url": "redis://127.0.0.1:1", name: PEM}))


def test_a_key_belongs_to_a_certificate() -> None:
    """A key without a certificate is refused."""
    options = {"queue": "mail", "url": "rediss://127.0.0.1:1", "sslKeyFile": PEM}
    with pytest.raises(OptionError, match=r"option sslKeyFile=.*works only with sslCertFile"):
        shards_of(Connection.parse(options))
