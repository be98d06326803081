"""The jobs that a supervised process holds, in memory that outlives it.

The process notes each job that it takes in a file that its supervisor has made, and removes the
note when the server has answered the report. When the process dies, the supervisor reads the notes
and passes them to another process, which ends the leases of these jobs at once. Each note has the
receipt of its delivery: if that has ended, the note changes nothing.

A note costs no call of the system. One that is missing costs time only: the job comes back when its
lease ends.
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from penstock.core.calls.operations import QueueOps
from penstock.core.jobs.job import Delivery, QueueIdentity, number_of, ops_of, reservation_of

__all__ = ["HELD_VARIABLE", "HeldFile", "HeldNote", "make_held_file", "place_of", "read_notes"]

HELD_VARIABLE = "PENSTOCK_HELD"
"""The environment variable with the file descriptor of a process's notes."""
NOTE_BYTES = 512
"""Bytes of a note. A longer one is not written."""
MOST_NOTES = 4096
"""Most jobs that are noted. A process that holds more leaves the others out."""
NOTE = re.compile(
    rb"([^\0\t\n]+)\t([^\0\t\n]*)\t([0-9a-f]+)\t([0-9]+-[0-9]+)\t([0-9]+-[0-9a-f]{3})\n"
)


class HeldNote(NamedTuple):
    """A job that a process held.

    Attributes:
        queue: the name of its queue in keys, with the number of the partition.
        node: the id of its node; empty = the only one.
        epoch: of the queue.
        number: of the job.
        receipt: of the delivery.
    """

    queue: str
    node: str
    epoch: str
    number: str
    receipt: str


def place_of(ops: QueueOps) -> tuple[str, str]:
    """Return the queue and the node of a note."""
    return ops.keys.name, "" if ops.node is None else str(ops.node.id)


def make_held_file() -> int:
    """Return the descriptor of a new, empty file in memory, or else on disk.

    Raises:
        OSError: it can't be made.
    """
    with suppress(AttributeError, OSError):  # not a Linux, or one that refuses it
        return os.memfd_create("penstock-held")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def read_notes(descriptor: int) -> list[HeldNote]:
    """Return the jobs that the process of this file holds. A note that is half written is none."""
    written = os.pread(descriptor, NOTE_BYTES * MOST_NOTES, 0)
    notes = (NOTE.match(written, at) for at in range(0, len(written), NOTE_BYTES))
    return [HeldNote(*(part.decode() for part in note.groups())) for note in notes if note]


class HeldFile:
    """The process's side: notes and removes jobs, and keeps those of dead processes for a moment.

    Args:
        descriptor: of the file, which it empties.

    Attributes:
        poke: makes the heartbeat look at the notes of dead processes; callable from any thread.
    """

    def __init__(self, descriptor: int) -> None:
        os.ftruncate(descriptor, 0)
        os.ftruncate(descriptor, NOTE_BYTES * MOST_NOTES)
        self._memory = mmap.mmap(descriptor, NOTE_BYTES * MOST_NOTES)
        self._free = list(range(0, NOTE_BYTES * MOST_NOTES, NOTE_BYTES))[::-1]
        self._note_of: dict[Delivery, int] = {}
        self._head_of: dict[QueueIdentity, bytes] = {}
        self._left = deque[HeldNote](maxlen=MOST_NOTES)
        self.poke: Callable[[], None] = lambda: None

    @classmethod
    def inherit(cls) -> HeldFile:
        """Return the file that the supervisor has made for this process.

        Its name is removed from the environment: it is not for this process's own children.
        """
        descriptor = int(os.environ.pop(HELD_VARIABLE))
        os.set_inheritable(descriptor, False)
        return cls(descriptor)

    def hold(self, jobs: Sequence[Delivery]) -> None:
        """Note these jobs, too.

        The first byte is written last: until then there is no note, wherever the process dies.
        """
        for job in jobs:
            place = reservation_of(job).place
            head = self._head_of.get(place)
            if head is None:
                head = self._head_of[place] = _head(job)
            note = b"%b%b\t%b\n" % (head, number_of(job), job.receipt.encode())
            if self._free and len(note) <= NOTE_BYTES and job not in self._note_of:
                at = self._note_of[job] = self._free.pop()
                self._memory[at + 1 : at + len(note)] = note[1:]
                self._memory[at] = note[0]

    def drop(self, jobs: Sequence[Delivery]) -> None:
        """Remove the notes of these jobs."""
        for job in jobs:
            at = self._note_of.pop(job, None)
            if at is not None:
                self._memory[at] = 0
                self._free.append(at)

    @property
    def has_left(self) -> bool:
        """Return whether notes of a dead process wait for the heartbeat."""
        return bool(self._left)

    def add_left(self, notes: Iterable[HeldNote]) -> None:
        """Keep the notes of a process that has died, and poke the heartbeat. Thread-safe."""
        self._left.extend(notes)
        self.poke()

    def take_left(self, places: Container[tuple[str, str]]) -> list[HeldNote]:
        """Return the notes of these places, once. The others stay until their place is known."""
        notes = [self._left.popleft() for _ in range(len(self._left))]
        self._left.extend(note for note in notes if (note.queue, note.node) not in places)
        return [note for note in notes if (note.queue, note.node) in places]


def _head(job: Delivery) -> bytes:
    """Return the part of a note that is common to the jobs of a queue."""
    queue, node = place_of(ops_of(job))
    return f"{queue}\t{node}\t{reservation_of(job).place.epoch}\t".encode()
