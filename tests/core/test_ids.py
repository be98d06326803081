"""Job ids: their parts, their order, and invalid ones."""

from __future__ import annotations

import pytest

from penstock import BadJobId, parse_id
from penstock.core.values.ids import MAX_SEQ, ORDERED_ALPHABET, SEQ_BASE, encode_id, ttl_code

PLACE = bytes.fromhex("cafebabe01020304")
GOOD = encode_id("deadbeef", PLACE, b"1700000000000-1000000000", "ffff")


def test_an_id_has_a_fixed_form() -> None:
    """An id has 40 characters: D, node, 24 of the ordered alphabet, ttl."""
    assert GOOD == "D-deadbeef--NjEtLV-Dtf9-Bfyifs0-VB3-ffff"
    assert len(GOOD) == 40
    assert "/" not in GOOD
    assert "+" not in GOOD


@pytest.mark.parametrize("ms", [1, 1_700_000_000_000, (1 << 42) - 1])
@pytest.mark.parametrize("seq", [SEQ_BASE, SEQ_BASE + 1, 1_234_567_890, MAX_SEQ])
def test_every_part_comes_back(ms: int, seq: int) -> None:
    """Every encoded part is decoded, and gives the number in the form of the scripts."""
    number = b"%d-%010d" % (ms, seq)
    if len(str(ms)) < 13:
        number = b"%013d-%010d" % (ms, seq)
    parts = parse_id(encode_id("0badf00d", PLACE, number, "0003"))
    assert (parts.node, parts.ms, parts.seq) == ("0badf00d", ms, seq)
    assert (parts.crc, parts.epoch) == (0xCAFEBABE, "01020304")
    assert (parts.ttl_minutes, parts.at_most_once) == (3, False)
    assert parts.number == b"%d-%010d" % (ms, seq)


def test_the_alphabet_is_in_ascii_order() -> None:
    """The alphabet is in ASCII order, so ids sort as the bytes that they encode."""
    assert bytes(sorted(ORDERED_ALPHABET)) == ORDERED_ALPHABET
    assert len(set(ORDERED_ALPHABET)) == 64


def test_ids_of_a_node_sort_by_creation() -> None:
    """Ids of one node sort by millisecond and place in it, whatever the other parts are."""
    moments = [
        (ms, seq)
        for ms in (1, 999, 1_700_000_000_000, 1_700_000_000_001, (1 << 42) - 1)
        for seq in (SEQ_BASE, SEQ_BASE + 9, SEQ_BASE + 10, MAX_SEQ)
    ]
    ids = [
        encode_id("00000000", PLACE[::-1], b"%d-%d" % moment, code)
        for moment in moments
        for code in ("0001", "ffff")
    ]
    assert ids == sorted(ids)


def test_the_first_character_is_constant() -> None:
    """The first character is constant until 2109; another one means another version."""
    last = encode_id("00000000", PLACE, b"4398046511103-4294967295", "ffff")
    assert last[11] == "-"
    assert parse_id(last).ms == (1 << 42) - 1
    beyond = encode_id("00000000", PLACE, b"4398046511104-1000000000", "ffff")
    with pytest.raises(BadJobId, match="not a job id of this version"):
        parse_id(beyond)


@pytest.mark.parametrize(
    "ttl_ms, at_least_once, at_most_once",
    [
        (None, "ffff", "fffe"),
        (1, "0001", "0002"),
        (60_000, "0001", "0002"),
        (60_001, "0003", "0002"),
        (120_000, "0003", "0002"),
        (86_400_000, "05a1", "05a0"),
        (65_533 * 60_000, "fffd", "fffe"),
        (65_534 * 60_000, "ffff", "fffe"),
        (10**15, "ffff", "fffe"),
    ],
)
def test_the_ttl_in_minutes_rounded_up(
    ttl_ms: int | None, at_least_once: str, at_most_once: str
) -> None:
    """The ttl is in minutes, rounded up and capped; odd is at least once, even at most once."""
    assert ttl_code(ttl_ms) == at_least_once
    assert ttl_code(ttl_ms, at_most_once=True) == at_most_once


def test_a_capped_ttl_means_no_ttl() -> None:
    """A capped ttl is read as no ttl."""
    assert parse_id(GOOD).ttl_minutes is None
    assert parse_id(GOOD[:-4] + "fffe").ttl_minutes is None
    assert parse_id(GOOD[:-4] + "fffd").ttl_minutes == 0xFFFD
    assert [parse_id(GOOD[:-1] + digit).at_most_once for digit in "ef"] == [True, False]


@pytest.mark.parametrize("place", range(40))
def test_a_character_of_no_meaning_is_refused(place: int) -> None:
    """An unknown character is refused at every position."""
    for wrong in ("!", "ü", "\n", " ", "\0"):
        with pytest.raises(BadJobId, match="id="):
            parse_id(GOOD[:place] + wrong + GOOD[place + 1 :])


@pytest.mark.parametrize("text", [GOOD[:-1], GOOD + "f", GOOD.lower(), GOOD.upper(), "", GOOD * 2])
def test_another_form_is_refused(text: str) -> None:
    """An id that is too short, too long or in the wrong case is refused."""
    with pytest.raises(BadJobId):
        parse_id(text)


@pytest.mark.parametrize("seq", [0, 1, SEQ_BASE - 1])
def test_a_number_that_no_script_makes_is_refused(seq: int) -> None:
    """The place within a millisecond starts at 1000000000; a lower one is refused."""
    with pytest.raises(BadJobId):
        parse_id(encode_id("00000000", PLACE, b"1700000000000-%010d" % seq, "ffff"))


def test_parts_are_frozen_and_equal_by_value() -> None:
    """Parsed ids can be used as dictionary keys."""
    assert parse_id(GOOD) == parse_id(GOOD)
    assert len({parse_id(GOOD), parse_id(GOOD)}) == 1
