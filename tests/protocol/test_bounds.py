"""Scripts check their whole numbers, and how many jobs a call names, before anything is written."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.wire.codes import Code
from penstock.wire.keys import QueueKeys
from penstock.wire.replies import PARSERS
from penstock.wire.scripts import Bound, Script, all_scripts
from tests.protocol.clock import T0
from tests.protocol.keyspace import dump
from tests.protocol.scenes import Scene, plain_scene
from tests.protocol.seeds import EPOCH
from tests.support.backends import Backend

KEYS = QueueKeys("bounds")
BOUNDED = [found for found in all_scripts() if found.bounds]


def refused(scene: Scene, script: Script, bound: Bound, value: object) -> bool:
    """Tell if the script refuses the value of this argument; the others are as low as can be."""
    lowest = {one.name: one.least for one in script.bounds}
    given = {name: lowest.get(name, "") for name in script.args if name != "producer"}
    reply = scene.run(script.name, *(given | {"nonce": 8, bound.name: value}).values())
    nonce = str(value if bound.name == "nonce" else 8).encode()
    return reply == [Code.MALFORMED, nonce, bound.name.encode(), str(value).encode()]


@pytest.mark.parametrize("script", BOUNDED, ids=lambda script: script.name)
def test_a_number_at_its_bounds_is_no_reason_to_refuse(script: Script, backend: Backend) -> None:
    """A script takes the least and the most that its header allows."""
    scene = Scene(backend.sync_client(), KEYS, {})
    for bound in script.bounds:
        for value in (bound.least, bound.most):
            assert not refused(scene, script, bound, value), (bound.name, value)


@pytest.mark.parametrize("script", BOUNDED, ids=lambda script: script.name)
def test_a_number_beyond_its_bounds_is_refused(script: Script, backend: Backend) -> None:
    """No script takes a number that its header does not allow, and nothing changes."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    for bound in script.bounds:
        wrong = [bound.least - 1, bound.most + 1, "inf", "nan", "1e2", "0x1", " 1", "1.5"]
        for value in wrong if bound.may_be_empty else [*wrong, ""]:
            assert refused(scene, script, bound, value), (bound.name, value)
    assert dump(scene.raw) == before


MISTAKEN: list[tuple[str, str, tuple[Any, ...]]] = [
    ("ack", "number", (EPOCH, "1-abc", "", "?", "1 0 5")),
    ("nack", "number", (EPOCH, "", 0, 1, "broke", "", "?", "1 0 5")),
    ("delete", "number", (EPOCH, "?")),
    ("redrive", "number", (EPOCH, "", "", "?")),
    ("show", "number", (EPOCH, "?")),
    ("results", "number", (EPOCH, "", "?")),
    ("withdraw", "number", (EPOCH, "?")),
    ("close_batch", "number", (EPOCH, "?")),
    ("browse", "from", ("dead", "?", 1, 0, 0)),
    ("reserve", "owner", (1, 7, "?", 0, "", "")),
    ("reserve", "asked", (1, 7, "eve", 0, "", "?")),
    ("configure", "lease", ("", "lease", "?")),
    ("survey", "place", ("", "?", "", "", 1, 0)),
    ("survey", "from", ("", "ready", "?", "", 1, 0)),
    ("survey", "to", ("", "dead", "", "?", 1, 0)),
    ("pending", "score", ("?", 0, 0)),
    ("purge", "fence", ("ready", "?", 0)),
    ("schedules", "cursor", ("?",)),
    ("list_batches", "cursor", (EPOCH, "?")),
    ("settle", "number", (EPOCH, "1-abc", 0, 7, "eve", "", *["1-1000000000"] * 1000, "?")),
    ("list_batches", "number", (EPOCH, "", "?")),
    ("read_batch", "number", (EPOCH, "?", "dead", 0)),
    ("read_batch", "part", (EPOCH, "1-1000000000", "?", 0)),
    ("schedule", "hash", ("", "a", 0, "?", 0, "")),
    ("acquire", "kind", ("", "?", "0" * 16, "", 1, "eve")),
    ("acquire", "token", ("", "consumer", "?", "", 1, "eve")),
    ("acquire", "lease", ("", "consumer", "0" * 16, "", "?", "eve")),
    ("acquire", "owner", ("", "consumer", "0" * 16, "", 1, "?")),
    ("assign", "lease", ("", 0, 1, 1, 7, "eve", "?")),
    ("extend", "lease", (EPOCH, "", "?", "")),
    ("beat", "progress", (EPOCH, "", "?")),
    ("emit", "receipt", (EPOCH, "?", "1-1000000000", "", "t1", "a")),
    ("emit", "head", (EPOCH, "1-abc", "1-1000000000", "", "?", "a")),
    ("watch", "number", (EPOCH, "?", "0-0", "")),
    ("watch", "cursor", (EPOCH, "1-1000000000", "?", "")),
    ("note", "name", (EPOCH, "1-abc", "1-1000000000", 1, "?", "1")),
    ("note", "receipt", (EPOCH, "?", "1-1000000000", 1, "a", "1")),
    ("suspend", "name", (EPOCH, "1-abc", 1, "?", 0)),
    ("call_jobs", "name", (EPOCH, "1-abc", "1-1000000000", 1, "?", 1, "", "-", "")),
    ("call_jobs", "print", (EPOCH, "1-abc", "1-1000000000", 1, "a", 1, "", "?", "")),
    ("signal", "name", (EPOCH, "1-1000000000", "?", "1")),
    ("signal", "number", (EPOCH, "?", "a", "1")),
    ("read_notes", "receipt", (EPOCH, "?", "1-1000000000")),
    ("tick", "what", ("a", "", "", "", "?", "", "1\nx")),
]
"""Calls with a text that is none of an argument."""


@pytest.mark.parametrize(
    "name, argument, args", MISTAKEN, ids=[f"{call[0]}-{call[1]}" for call in MISTAKEN]
)
def test_a_refusal_names_the_first_200_characters(
    name: str, argument: str, args: tuple[Any, ...], backend: Backend
) -> None:
    """A wrong text of any length makes no long reply."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    reply = scene.run(name, 90, *("x" * 300 if one == "?" else one for one in args))
    assert reply == [Code.MALFORMED, b"90", argument.encode(), b"x" * 200]
    assert dump(scene.raw) == before


LEADS = {1: b"\xc2\xdf", 2: b"\xe0\xef", 3: b"\xf0\xf4"}
"""First bytes of characters, the lowest and the highest, by how many bytes follow."""


@pytest.mark.parametrize("follow", LEADS)
def test_a_name_of_a_signal_is_utf8(follow: int, backend: Backend) -> None:
    """Each byte of a character has its bounds."""
    scene = plain_scene(backend.sync_client(), KEYS)
    first, last = LEADS[follow]
    tail = b"\x80\xbf\x80"[:follow]
    others = (b"\x7f", b"\xc0")
    wrong = [tail[:i] + other + tail[i + 1 :] for other in others for i in range(follow)]
    cases = {bytes([lead]) + tail: True for lead in (first, last)}
    cases |= {bytes([lead]) + tail: False for lead in (first - 1, last + 1)}
    cases |= {bytes([first]) + tail: False for tail in wrong}
    for name, is_utf8 in cases.items():
        reply = scene.run("signal", 8, EPOCH, scene.numbers["active"][0], name, "1")
        assert (reply[0] == Code.DONE) == is_utf8, name


@pytest.mark.parametrize("name, args", [("schedules", ()), ("list_batches", (EPOCH,))])
def test_a_cursor_has_64_bits(name: str, args: tuple[Any, ...], backend: Backend) -> None:
    """The server refuses a greater one with an error of its own."""
    scene = plain_scene(backend.sync_client(), KEYS)
    for cursor, is_taken in (((1 << 63) - 1, True), (1 << 64, False), (10**20, False)):
        reply = scene.run(name, 8, *args, cursor)
        assert (reply[0] != Code.MALFORMED) == is_taken, cursor


@pytest.mark.parametrize("name", ["ack", "nack", "delete", "redrive", "settle"])
def test_a_call_names_at_most_1000_jobs(name: str, backend: Backend) -> None:
    """The 1001st number is refused, with a receipt or without, and nothing changes."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    numbers = [b"1800000000000-%d" % (1_000_000_000 + i) for i in range(1001)]
    args = {
        "ack": ("1-abc", ""),
        "nack": ("", 0, 1, "broke", ""),
        "delete": (),
        "redrive": ("", ""),
        "settle": ("", 1, 7, "eve", ""),
    }[name]
    reply = scene.run(name, 8, EPOCH, *args, *numbers)
    assert reply == [Code.MALFORMED, b"8", b"number", numbers[-1]]
    assert dump(scene.raw) == before
    assert scene.run(name, 9, EPOCH, *args, *numbers[:1000])[0] == Code.DONE


YEARS = 3_162_240_000_000
NOT_DELAYS = [
    "inf", "nan", "-1", "1e3", "", str(YEARS + 1), str(1 << 53), f"@{T0 + YEARS + 1}", "@", "@inf",
]  # fmt: skip
NOT_TTLS = ["0", "", "inf", "-1", "1e3", str(YEARS + 1), str(1 << 51)]
NOT_LEASES = ["0", "inf", "nan", "-1", "1e3", "2073600001"]
NOT_RECORD_LEASES = ["", "inf", "1e3", "2073600001"]
SHORT = ["1", "999", "1000"]
CHUNK = f"80 99\n1;d={'a' * 74}\nx"
CALLED = (EPOCH, "1-abc", "1-1000000000", 1, "ship", 3)
HANDED = (EPOCH, "1-abc", "", "#", "")
CALLS: list[tuple[str, str, list[str], tuple[Any, ...]]] = [
    ("enqueue", "delay", NOT_DELAYS, ("", "?", "", 0, "", "1\nx")),
    ("claim", "delay", NOT_DELAYS, ("", "?", "", 0, "", "", "1;d=a\nx")),
    ("enqueue", "delay", ["1000,5000", "0,0"], ("", "?", "", 0, "", "1;t=3000\nx")),
    ("claim", "delay", ["1000,5000"], ("", "?", "", 0, "", "u", "1;d=a\nx", "1;d=b\nx")),
    ("claim", "delay", NOT_DELAYS, ("", "0,?", "", 0, "", "", "1;d=a\nx", "1;d=b\nx")),
    ("stage", "delay", NOT_DELAYS, (3, "a:0", 60_000, "? 7\n1;d=a\nx")),
    ("hand_over", "delays", ["inf", "1e3", str(YEARS + 1)], (*HANDED, "?", "1\nx")),
    ("call_jobs", "delays", ["inf", "1e3", str(YEARS + 1)], (*CALLED, "", "-", "?", "1\nx")),
    ("call_jobs", "parts", ["0", "2 1", "4", "1e0", "1 2"], (*CALLED, "?", "-", "", "1\nx")),
    ("call_jobs", "ttl", NOT_TTLS, (*CALLED, "", "-", "", "1;t=?\nx")),
    ("call_jobs", "ttl", SHORT, (*CALLED, "", "-", "0 1000", "1\nx", "1;t=?\nx")),
    ("reserve", "asked", NOT_LEASES, (1, 7, "eve", 0, "", "?")),
    ("acquire", "lease", NOT_LEASES, ("", "consumer", "0" * 16, "", "?", "eve")),
    ("assign", "lease", NOT_LEASES, ("", 0, 1, 1, 7, "eve", "?")),
    ("configure", "lease", NOT_LEASES, ("", "lease", "?")),
    ("extend", "lease", NOT_LEASES[1:], (EPOCH, "", "?", "")),
    ("enqueue", "lease", NOT_RECORD_LEASES, ("", 0, "", 0, "", "1;l=?\nx")),
    ("claim", "lease", NOT_RECORD_LEASES, ("", 0, "", 0, "", "", "1;l=?;d=a\nx")),
    ("hand_over", "lease", NOT_RECORD_LEASES, (*HANDED, "0", "1;l=?\nx")),
    ("enqueue", "ttl", NOT_TTLS, ("", 0, "", 0, "", "1;t=?\nx")),
    ("enqueue", "ttl", NOT_TTLS, ("", 0, "", 0, "", "1;l=5;t=?;c=json\nx")),
    ("claim", "ttl", NOT_TTLS, ("", 0, "", 0, "", "", "1;t=?;d=a\nx")),
    ("hand_over", "ttl", NOT_TTLS, (*HANDED, "0", "1;t=?\nx")),
    ("enqueue", "ttl", SHORT, ("", 1000, "", 0, "", "1\nx", "1;t=?\nx")),
    ("enqueue", "ttl", SHORT, ("", f"@{T0 + 1000}", "", 0, "", "1;l=5;t=?;p=3,,\nx")),
    ("claim", "ttl", SHORT, ("", f"@{T0 + 1000}", "", 0, "", "", "1;t=?;d=a\nx")),
    ("claim", "ttl", SHORT, ("", f"0,@{T0 + 1000}", "", 0, "", "", "1;d=b\nx", "1;t=?;d=a\nx")),
    ("stage", "ttl", SHORT, (3, "a:0", 60_000, f"@{T0 + 1000} {CHUNK}" + "1;t=?;d=b\nx")),
    ("stage", "ttl", NOT_TTLS, (3, "a:0", 60_000, f"0 {CHUNK}1;l=5;t=?;d=b\nx")),
    ("stage", "window", NOT_TTLS, (3, "a:0", 60_000, f"0 {CHUNK}1;c=json;d=b;w=?;u=e\nx")),
    ("stage", "lease", ["inf", "", "2073600001"], (3, "a:0", 60_000, f"0 {CHUNK}1;l=?;d=b\nx")),
    ("hand_over", "ttl", SHORT, (*HANDED, "0 1000", "1\nx", "1;t=?\nx")),
    ("claim", "window", NOT_TTLS, ("", 0, "", 0, "", "", "1;d=a;w=?\nx")),
    ("claim", "window", NOT_TTLS, ("", 0, "", 0, "", "", "1;d=a;wx=1\nx", "1;d=a;w=?\nx")),
    ("claim", "window", NOT_TTLS[2:3], ("", 0, "", 0, "", "", "1;d=a;w=?", "1;d=b;w=inf\nx")),
    ("claim", "window", NOT_TTLS, ("", 0, "", 0, "", "e", "1;c=json;d=a;w=?;u=e\nx")),
    ("ack", "kept", NOT_TTLS[2:], (EPOCH, "1-abc\n?", "", "#", "1 0 5")),
    ("settle", "kept", NOT_TTLS[2:], (EPOCH, "1-abc\n?", 0, 7, "eve", "", "#", "1 0 5")),
]
SETTINGS = {
    "backoff_base": ["0", "inf", str(YEARS + 1)], "dead_age": ["nan", "1e3"], "max_length": ["0"],
    "result_ttl": [str(1 << 51)], "dead_max": ["-1", str(1 << 53)], "burst": ["100001"],
    "rate": ["5", "0/5", "inf/5", "1/86400001", "9999999/5", "0005/09", "5/9/", "5/9/0"],
    "configured": ["inf"], "paused": ["xyz", "in out"], "ordered": ["7", "0"], "closed": ["0"],
    "per_key": ["007", "0"], "share": ["007", "0"], "key_burst": ["0", "100001"],
    "key_rate": ["5", "0/5", "1/86400001", "9999999/5", "05/9", "5/9/3", "5/9/"],
    "epoch": ["", "e1e1e1e1"],
    "max_active": ["0", "007", "5/", "5/0", "5/16/2", str((1 << 53) + 2)],
}  # fmt: skip


WHOLE = (1 << 53) - 1
LONGEST_LEASE = 2_073_600_000
SPANS = {
    **dict.fromkeys(["backoff_base", "backoff_cap", "dead_age", "result_ttl"], (1, YEARS)),
    **dict.fromkeys(["max_length", "per_key", "share"], (1, WHOLE)),
    **dict.fromkeys(["max_attempts", "max_crashes", "max_releases", "max_snoozes"], (0, WHOLE)),
    **dict.fromkeys(["configured", "dead_max", "replicas", "result_size"], (0, WHOLE)),
    **dict.fromkeys(["results_bytes", "results_max"], (0, WHOLE)),
    "burst": (1, 100_000), "lease": (1, LONGEST_LEASE), "unknown_age": (1, YEARS),
    "longest_wait": (1, YEARS),
}  # fmt: skip
"""The least and the most of each setting that is a whole number."""
RATES = ["1/1", "1000000/86400000", "1/1/1", "1/1/999"]
NOT_RATES = ["0/1", "1/0", "1000001/1", "1/86400001", "1/1/1000"]
EDGES = {
    "rate": (RATES, NOT_RATES),
    **{
        name: ([str(least), str(most)], [str(least - 1), str(most + 1)])
        for name, (least, most) in SPANS.items()
    },
}
"""By setting, values at its bounds and values beyond."""


def placed(text: str, texts: dict[str, str]) -> str:
    """Return the text with a value and a job number in the places of their marks."""
    for mark, value in texts.items():
        text = text.replace(mark, value)
    return text


@pytest.mark.parametrize(
    "name, argument, wrong, args", CALLS, ids=[f"{call[0]}-{call[1]}" for call in CALLS]
)
def test_a_time_beyond_its_bounds_is_refused(
    name: str, argument: str, wrong: list[str], args: tuple[Any, ...], backend: Backend
) -> None:
    """A delay, a ttl, a window and a time of keeping is at most 100 years, and nothing changes.
    The reply has the first 200 characters.
    """
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    for value in wrong if name == "stage" else [*wrong, "9" * 300]:  # its frames have a length
        texts = {"?": value, "#": scene.numbers["active"][0].decode()}
        given = [placed(one, texts) if isinstance(one, str) else one for one in args]
        reply = scene.run(name, 90, *given)
        assert reply == [Code.MALFORMED, b"90", argument.encode(), value[:200].encode()], value
    assert dump(scene.raw) == before


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_beyond_its_bounds_is_refused(setting: str, backend: Backend) -> None:
    """`configure` stores no value that the reference does not allow."""
    scene = plain_scene(backend.sync_client(), KEYS)
    before = dump(scene.raw)
    for value in [*SETTINGS[setting], "?" * 300]:
        reply = scene.run("configure", 8, "", "lease", 5000, setting, value)
        assert reply == [Code.MALFORMED, b"8", b"value", f"{setting} {value}"[:200].encode()]
    assert dump(scene.raw) == before


@pytest.mark.parametrize("setting", EDGES)
def test_a_setting_at_its_bounds_is_stored(setting: str, backend: Backend) -> None:
    """`configure` stores the least and the most that the reference allows, and no more."""
    scene = Scene(backend.sync_client(), KEYS, {})
    stored, refused = EDGES[setting]
    for value in stored:
        scene.raw.flushdb()
        reply = PARSERS["configure"](scene.run("configure", 8, EPOCH, setting, value))
        assert reply.code == Code.DONE, value
        assert scene.raw.hget(KEYS["meta"], setting) == value.encode()
    for value in refused:
        assert scene.run("configure", 8, EPOCH, setting, value)[0] == Code.MALFORMED, value


def test_an_endless_ttl_of_earlier_data_stops_nothing(backend: Backend) -> None:
    """Jobs whose ttl ends among the results do not stop acks with results and `sweep`."""
    scene = plain_scene(backend.sync_client(), KEYS)
    keeper, *others = scene.numbers["active"]
    scene.raw.hset(KEYS["meta"], mapping={"uses": "tk", "v": "3"})
    scene.raw.zadd(KEYS["expiry"], dict.fromkeys(others, (1 << 51) + T0))
    assert scene.run("ack", 8, EPOCH, "1-abc\n60000", "", keeper, "1 0 5")[2] == 1
    assert scene.run("sweep", 9, 600_000)[:4] == [1, b"9", 0, 0]
    [kept] = scene.raw.zrange(KEYS["expiry"], 0, -1)
    assert kept.startswith(b">")
