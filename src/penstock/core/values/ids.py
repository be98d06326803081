"""Job ids and job numbers (protocol/core.md, Job id).

A job number is the stream entry id `<ms>-<seq>`; seq is at least 1000000000, so both parts
have a fixed width and numbers sort as text. A job id is the number together with its node, queue,
epoch and ttl, in 40 characters like Disque's.
"""

from __future__ import annotations

import math
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass

from penstock.errors import BadJobId

__all__ = [
    "AT_LEAST_ONCE_FOREVER",
    "BASE64_TO_ORDERED",
    "ORDERED_ALPHABET",
    "JobId",
    "encode_id",
    "is_job_id",
    "number_after",
    "parse_id",
    "ttl_code",
]

BASE64_ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
ORDERED_ALPHABET = b"-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
BASE64_TO_ORDERED = bytes.maketrans(BASE64_ALPHABET, ORDERED_ALPHABET)
ORDERED_TO_BASE64 = bytes.maketrans(ORDERED_ALPHABET, BASE64_ALPHABET)

ID_LENGTH = 40
SEQ_BASE = 1_000_000_000
MAX_SEQ = 4_294_967_295
AT_LEAST_ONCE_FOREVER = "ffff"
"""The ttl field of a job that never expires: the cap, odd."""


def ttl_code(ttl_ms: int | None, *, at_most_once: bool = False) -> str:
    """Return the last four digits of an id: minutes rounded up and capped, odd = at least once."""
    if ttl_ms is None:
        return "fffe" if at_most_once else AT_LEAST_ONCE_FOREVER
    minutes = math.ceil(ttl_ms / 60_000)
    if minutes % 2 == at_most_once:
        minutes += 1
    return f"{min(minutes, 0xFFFE if at_most_once else 0xFFFF):04x}"


def number_after(number: bytes, count: int) -> bytes:
    """Return the job number `count` places further on in its ms."""
    ms, _, seq = number.partition(b"-")
    return b"%s-%010d" % (ms, int(seq) + count)


def encode_id(node: str, place: bytes, number: bytes, ttl: str) -> str:
    """Return the id of a job.

    Args:
        node: 8 hex digits of its node's id.
        place: crc32 of the queue's name and the queue's epoch, 4 bytes each.
        number: the job number, `<ms>-<seq>`.
        ttl: the four digits of `ttl_code`.
    """
    packed = ((int(number[:-11]) << 32) | int(number[-10:])).to_bytes(10, "big") + place
    text = b2a_base64(packed, newline=False).translate(BASE64_TO_ORDERED).decode("ascii")
    return f"D-{node}-{text}-{ttl}"


@dataclass(frozen=True, slots=True)
class JobId:
    """The parts of a job id.

    Attributes:
        node: 8 hex digits.
        ms: creation time, ms since 1970.
        seq: place within that ms.
        crc: crc32 of the queue's name.
        epoch: the queue's epoch, 8 hex digits.
        ttl_minutes: ttl rounded up, None for none.
        at_most_once: whether the job is delivered at most once.
    """

    node: str
    ms: int
    seq: int
    crc: int
    epoch: str
    ttl_minutes: int | None
    at_most_once: bool

    @property
    def number(self) -> bytes:
        """Job number, as scripts take it."""
        return b"%d-%010d" % (self.ms, self.seq)


def parse_id(text: object) -> JobId:
    """Parse a job id.

    Raises:
        BadJobId: it is not a str of the documented form, with the constant first character.

    Examples:
        >>> parse_id("D-e021c8e2--P7DpjNzE-53DEJ-fXRdhRjB-ffff").node
        'e021c8e2'
    """
    if not isinstance(text, str):
        raise BadJobId("id", text, "a job id must be a str")
    if len(text) != ID_LENGTH or text[:2] != "D-" or text[10] != "-" or text[35] != "-":
        raise BadJobId("id", text, "a job id must have the form D-<8 hex>-<24 characters>-<4 hex>")
    node, middle, ttl = text[2:10], text[11:35], text[36:]
    if (node + ttl).strip("0123456789abcdef"):
        raise BadJobId("id", text, "node and ttl of a job id must be lower-case hex digits")
    encoded = middle.encode("ascii", "replace")
    if encoded.translate(None, ORDERED_ALPHABET):
        raise BadJobId("id", text, "the middle part has a character that no job id has")
    packed = a2b_base64(encoded.translate(ORDERED_TO_BASE64))
    ms, seq = int.from_bytes(packed[:6], "big"), int.from_bytes(packed[6:10], "big")
    if middle[0] != "-" or seq < SEQ_BASE or ms == 0:
        raise BadJobId("id", text, "not a job id of this version of the protocol")
    minutes = int(ttl, 16)
    return JobId(
        node=node,
        ms=ms,
        seq=seq,
        crc=int.from_bytes(packed[10:14], "big"),
        epoch=packed[14:18].hex(),
        ttl_minutes=None if minutes >= 0xFFFE else minutes,
        at_most_once=minutes % 2 == 0,
    )


def is_job_id(text: str) -> bool:
    """Return True if a text has the form of a job id."""
    try:
        parse_id(text)
    except BadJobId:
        return False
    return True
