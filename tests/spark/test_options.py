"""Groups 1 and 10: options and columns are checked before anything is done."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from pyspark.sql.datasource import InputPartition

from penstock.errors import BadArgument
from penstock.spark import OptionError, shards
from penstock.spark.encoding import columns_of
from penstock.spark.errors import RowError
from penstock.spark.options import SPARK_OPTIONS, Connection, Read, Stream, Write
from penstock.spark.shards import ShardAddress, open_shards
from penstock.spark.stream import BatchRange
from tests.spark.hands import close_all
from tests.support.passwords import MARKS, URLS, seen_in

HERE = {"queue": "mail", "url": "redis://h:1/0"}


@pytest.mark.parametrize(
    "given, named",
    [
        ({"url": "redis://h"}, "queue"),
        ({"queue": ""}, "queue"),
        ({"queue": "mail"}, "url"),
        ({**HERE, "urlenv": "X"}, "urlEnv"),
        ({**HERE, "frobnicate": "1"}, "frobnicate"),
        ({**HERE, "batchsize": "0"}, "batchSize"),
        ({**HERE, "batchsize": "many"}, "batchSize"),
        ({**HERE, "batchsize": "1_0"}, "batchSize"),
        ({**HERE, "operation": "retry"}, "operation"),
        ({**HERE, "commitmode": "some"}, "commitMode"),
        ({**HERE, "onfull": "drop"}, "onFull"),
        ({**HERE, "stagettl": "0"}, "stageTtl"),
        ({**HERE, "fulltimeout": "for ever"}, "fullTimeout"),
        ({**HERE, "dedupwindow": "-1"}, "dedupWindow"),
        ({**HERE, "replicas": "two"}, "replicas"),
        ({**HERE, "requirequeue": "yes"}, "requireQueue"),
        ({**HERE, "payloadformat": "xml"}, "payloadFormat"),
        ({**HERE, "commitmode": "staged", "queuecolumn": "q"}, "queueColumn"),
        ({**HERE, "commitmode": "staged", "operation": "ack"}, "commitMode"),
        ({**HERE, "passwordenv": "A", "passwordfile": "B"}, "passwordFile"),
        ({**HERE, "prefix": "a{b"}, "prefix"),
        ({**HERE, "path": "mail"}, "path"),
        ({**HERE, "startingOffsets": "earliest"}, "startingOffsets"),
        ({"queue": "mail", "nodes": "redis://a,redis://b,redis://a"}, "nodes"),
        ({**HERE, "delay": "10s"}, "delay"),
        ({**HERE, "operation": "ack", "delay": "10s"}, "delay"),
        ({**HERE, "operation": "redrive", "error": "no"}, "error"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(given: dict[str, str], named: str) -> None:
    """An invalid option is named in its documented spelling, whatever case was given."""
    with pytest.raises(OptionError) as caught:
        Write.parse(given)
    assert caught.value.argument == named
    assert named in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("text", ["0", "50ms", "25d"])
def test_a_too_short_lease_is_refused(text: str) -> None:
    """A lease is renewed after a third of its time; every few ms would overload a server."""
    words = f"leaseDuration='{text}': must be at least 100 ms and at most 2073600 s"
    with pytest.raises(OptionError, match=words):
        Stream.parse({**HERE, "leaseDuration": text})


@pytest.mark.parametrize(
    "text", ["", ",", "ready,", "ready,gone", "[]", '["ready"', '["ready", ""]', '["ready", 5]']
)
def test_a_list_that_cannot_be_used_is_named(text: str) -> None:
    """Each of its texts must be one of those that are known, and there must be one."""
    with pytest.raises(OptionError, match=r"option states=.*: must be one or more of ready, "):
        Read.parse({**HERE, "states": text})


@pytest.mark.parametrize(
    "given",
    ["ready,dead", '["ready", "dead"]', str(["ready", "dead"]), str(("ready", "dead"))],
)
def test_a_list_in_any_form(given: str) -> None:
    """Spark passes a Python list or tuple on as its text."""
    assert Read.parse({**HERE, "states": given}).states == ("ready", "dead")


@pytest.mark.parametrize(
    "name, words",
    [
        ("Path", "option 'path': is not used: name the queue by"),
        ("startingOffsets", "a stream reads every job that waits"),
        ("batchSiz", "'batchSiz': unknown; did you mean 'batchSize'"),
        ("maxJobsPerTrigger", "'maxJobsPerTrigger': can't be used here"),
        ("frobnicate", "'frobnicate': unknown$"),
    ],
)
def test_an_unknown_option_leads_to_a_known_one(name: str, words: str) -> None:
    """The error has a similar name, or says where an option belongs."""
    with pytest.raises(OptionError, match=words):
        Connection.parse({**HERE, name: "1"}, strict=True)


def test_a_slice_is_shown_without_its_url() -> None:
    """A slice's repr has no URL, as a URL may have a password."""
    address = ShardAddress(f"redis://:{SECRET}@h", "1f2e3d4c", 0, 2)
    one = InputPartition(("ff66554433221100", [BatchRange(address, 1, 0, 10)]))
    assert SECRET not in f"{one!r} {one}"
    assert "1f2e3d4c" in repr(one)
    assert pickle.loads(pickle.dumps(one)).value == one.value


@pytest.mark.parametrize(
    "text, ms",
    [("90", 90_000), ("90s", 90_000), ("500ms", 500), ("1.5h", 5_400_000), ("2d", 172_800_000),
     ("0.5", 500), ("5 m", 300_000)],
)  # fmt: skip
def test_durations_have_units(text: str, ms: int) -> None:
    """A number without a unit is in seconds."""
    assert Write.parse({**HERE, "dedupwindow": text}).dedup_window == ms


def test_default_options() -> None:
    """Defaults are as documented; options of other groups are allowed, as views read and write."""
    found = Write.parse({**HERE, "MAXJOBSPERTRIGGER": "5", "checkpointLocation": "/ck"})
    assert (found.batch_size, found.commit_mode) == (500, "")
    assert (found.full_timeout, found.dedup_window) == (60_000, 86_400_000)
    assert Read.parse({**HERE, "states": "dead, ready"}).states == ("dead", "ready")
    assert Stream.parse({**HERE, "maxJobsPerTrigger": "20000"}).max_jobs_per_trigger == 20_000


def test_one_name_means_one_thing() -> None:
    """Options of one name have one meaning in all groups, except for the default."""
    for name, option in SPARK_OPTIONS.items():
        for group in (Connection, Read, Stream, Write):
            known = group.options().get(name)
            assert known is None or known.name == option.name


SECRET = "hunter2"


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "mail", "url": f"redis://:{SECRET}@h:port"},
        {"queue": "mail", "url": f"http://:{SECRET}@h"},
        {"queue": "mail", "url": f":{SECRET}"},
        {"queue": "mail", "nodes": f"redis://:{SECRET}@a,redis://:{SECRET}@a"},
        {"queue": "mail", "nodes": f"redis://:{SECRET}@a,,"},
        {"queue": "mail", "url": f"redis://:{SECRET}@127.0.0.1:1/0", "retryfor": "0"},
        {"queue": "mail", "urlenv": f"redis://:{SECRET}@h"},
        {"queue": "mail", "url": "redis://h", "passwordenv": SECRET},
        {"queue": "mail", "url": "redis://h", "passwordfile": SECRET},
        {"queue": "mail", "url": f"redis://h:port/0?password={SECRET}"},
    ],
)
def test_no_error_shows_a_password(options: dict[str, str]) -> None:
    """For any error in a URL, neither text, value nor cause has the password."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # of several types
        open_shards(Write.parse(options))
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.args}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    close_all()


@pytest.mark.parametrize("way", ["url", "urlenv", "nodes"])
@settings(max_examples=100)
@given(url=URLS)
def test_no_part_of_a_generated_password_is_shown(
    monkeypatch: pytest.MonkeyPatch, way: str, url: str
) -> None:
    """A password is never shown, encoded or not, in any option."""
    monkeypatch.setenv("QUEUE_URL", url)
    value = "QUEUE_URL" if way == "urlenv" else url
    try:
        open_shards(Write.parse({"queue": "mail", way: value, "retryfor": "0"}))
    except Exception as error:  # noqa: BLE001  # of several types
        found = [mark for mark in MARKS if mark in seen_in(error)]
        assert not found
    finally:
        close_all()


def test_passwords_come_from_where_options_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A password is read from an environment variable or a file; a missing one is named."""
    monkeypatch.setenv("QUEUE_PASSWORD", "a:b@c")
    file = tmp_path / "password"
    file.write_text("line\n")
    url = "redis://ada@h:1/0?socket_timeout=3"
    by_env = Connection.parse({**HERE, "url": url, "passwordEnv": "QUEUE_PASSWORD"})
    made = shards._completed("url", by_env.url, shards._password(by_env))
    assert made == "redis://ada:a%3Ab%40c@h:1/0?socket_timeout=3&socket_connect_timeout=10"
    by_file = Connection.parse({**HERE, "passwordFile": str(file)})
    assert "//:line@" in shards._completed("url", by_file.url, shards._password(by_file))
    (tmp_path / "binary").write_bytes(b"\xff")
    for name, value, shown, reason in (
        ("passwordEnv", "NOWHERE", "NOWHERE", "before Spark starts"),
        ("passwordEnv", "MAYBE A SECRET", "<not shown>", "before Spark starts"),
        ("passwordFile", str(tmp_path / "none"), "none", "No such file"),
        ("passwordFile", str(tmp_path / "binary"), "binary", "must be a text file"),
    ):
        missing = Connection.parse({**HERE, name: value})
        with pytest.raises(OptionError, match=f"{name}=.*{shown}.*{reason}"):
            shards.get_client(missing)
    monkeypatch.setenv("QUEUE_URL", "redis://:b@h:1/0")
    shards.new_client(Connection.parse({"queue": "mail", "urlEnv": "QUEUE_URL"}))
    assert caplog.text == ""
    shards.new_client(Connection.parse({"queue": "mail", "url": "redis://:b@h:1/0"}))
    assert "option 'url' has a password" in caplog.text


@pytest.mark.parametrize(
    "fields, options, named",
    [
        ([("body", "binary")], {}, "payload"),
        ([("body", "binary")], {}, "to_json"),
        ([("payload", "long")], {}, "payload"),
        ([("payload", "long")], {"payloadformat": "json"}, "payload"),
        ([("payload", "binary"), ("extra", "string")], {}, "extra"),
        ([("payload", "binary"), ("extra", "string")], {}, "to_json"),
        ([("payload", "string"), ("extra", "string")], {"payloadformat": "json"}, "extra"),
        ([("payload", "binary"), ("delay", "string")], {}, "delay"),
        ([("payload", "binary"), ("ready_at", "string")], {}, "ready_at"),
        ([("payload", "binary"), ("headers", "map<string,long>")], {}, "headers"),
        ([("payload", "binary"), ("delay", "long"), ("readyAt", "timestamp")], {}, "readyAt"),
        ([("payload", "binary"), ("max_attempts", "double")], {}, "max_attempts"),
        ([("payload", "binary"), ("priority", "string")], {}, "priority"),
        ([("payload", "binary"), ("key", "double")], {}, "key"),
        ([("payload", "binary")], {"idcolumn": "key"}, "idColumn"),
        ([("payload", "binary")], {"queuecolumn": "to"}, "queueColumn"),
        ([("payload", "binary"), ("to", "long")], {"queuecolumn": "to"}, "to"),
        ([("payload", "binary"), ("PAYLOAD", "binary")], {}, "payload"),
        ([("receipt", "string")], {"operation": "ack"}, "id"),
        ([("id", "long")], {"operation": "ack"}, "id"),
        ([("id", "string"), ("ID", "string")], {"operation": "delete"}, "id"),
        ([("id", "string"), ("extra", "string")], {"operation": "ack"}, "extra"),
        ([("id", "string"), ("receipt", "string")], {"operation": "redrive"}, "receipt"),
    ],
)
def test_a_column_that_cannot_be_used_is_named(
    fields: list[tuple[str, str]], options: dict[str, str], named: str
) -> None:
    """The driver checks columns by the schema alone."""
    with pytest.raises(BadArgument) as caught:
        columns_of(fields, Write.parse({**HERE, **options}))
    assert named in str(caught.value)


def test_a_value_of_a_row_is_named_by_column_and_row() -> None:
    """The error of a row has column and row, but not the value."""
    error = RowError("payload", "secret text", "bytes or text", 7)
    assert "'payload'" in str(error)
    assert "row 7" in str(error)
    assert "secret" not in str(error)
    assert "not a str of length 11" in str(error)
    again: Any = pickle.loads(pickle.dumps(error))
    assert (str(again), again.row) == (str(error), 7)
