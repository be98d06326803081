"""Parties at a pressure queue as processes of their own, many at a time, to be killed.

    with Crowd() as crowd:
        member = crowd.start("live", kind="sync", url=server.url, ...)
        member.kill()
        assert member.ended() == -signal.SIGKILL

A member logs each attempt before it makes it, and the result afterwards.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.conformance.pressure import PREFIX, AsyncOurs, Foreign, Ours, Party, Refused
from tests.support.workers import Log, Nursery, await_word, tell, until

__all__ = ["LIMIT", "Crowd", "Member", "herd", "live", "move", "party_of", "wait"]

LIMIT = 0.15
"""Maximum of seconds that a member's call waits, if it has a limit."""
PAUSE = 0.002
"""Seconds before the next call when the queue does not exist."""


class Member:
    """One process.

    Args:
        crowd: which it belongs to.
        pid: its process id.
        task: what it does, as it was started.
    """

    def __init__(self, crowd: Crowd, pid: int, task: dict[str, Any]) -> None:
        self._crowd = crowd
        self._status: int | None = None
        self.pid = pid
        self.task = task

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.exit_code is None:
            os.kill(self.pid, number)

    def freeze(self) -> None:
        """Stop it; when this returns none of its threads runs."""
        self._crowd.ask({"freeze": self.pid})

    def kill(self) -> None:
        """Kill it."""
        self.signal(signal.SIGKILL)
        self.ended()

    @property
    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        if self._status is None:
            self._status = self._crowd.ask({"reap": self.pid})
        return None if self._status is None else os.waitstatus_to_exitcode(self._status)

    def ended(self, timeout: float = 30.0) -> int:
        """Wait for its end, and return its exit code.

        Raises:
            TimeoutError: it runs on.
        """
        until(lambda: self.exit_code is not None, timeout)
        assert self.exit_code is not None
        return self.exit_code


class Crowd:
    """A small process that forks the members; they all end with it."""

    def __init__(self) -> None:
        self._nursery = Nursery(__name__)
        self._herd = self._nursery.start("herd")
        self._members: list[Member] = []

    def start(self, task: str, **arguments: Any) -> Member:
        """Fork a member that runs a function of this module."""
        pid = self.ask({"fork": [task, arguments]})
        self._members.append(Member(self, pid, arguments))
        return self._members[-1]

    def ask(self, question: dict[str, Any]) -> Any:
        """Ask the forking process, and return its answer."""
        self._herd.send(json.dumps(question))
        event = self._herd.next_event()
        assert event is not None, "the forking process has ended"
        return event["answer"]

    def empty(self) -> None:
        """Kill all running members."""
        while self._members:
            self._members.pop().kill()

    def __enter__(self) -> Crowd:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._nursery.close()


# -- in the forking process ----------------------------------------------------------------------


def herd() -> None:
    """Fork, stop and reap members, as asked."""
    living: set[int] = set()
    try:
        while True:
            (question, what), *_ = json.loads(await_word()).items()
            if question == "fork":
                pid = _forked(*what)
                living.add(pid)
                tell({"answer": pid})
            elif question == "freeze":
                os.kill(what, signal.SIGSTOP)
                tell({"answer": os.waitpid(what, os.WUNTRACED)[1]})
            else:
                done, status = os.waitpid(what, os.WNOHANG)
                living -= {done}
                tell({"answer": status if done else None})
    finally:
        for pid in living:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _forked(task: str, arguments: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            globals()[task](**arguments)
        except BaseException:  # noqa: BLE001  # a copy of the parent must not continue
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


# -- in the members ------------------------------------------------------------------------------


class _Word:
    """Set by SIGTERM: end after the current call."""

    def __init__(self) -> None:
        self.is_said = False
        signal.signal(signal.SIGTERM, self._say)

    def _say(self, number: int, frame: object) -> None:
        del number, frame
        self.is_said = True


def party_of(kind: str, url: str, name: str, client_id: str, prefix: str = PREFIX) -> Party:
    """Return a party of this kind: sync, async or foreign."""
    if kind == "foreign":
        plain = {"protocol": 2, "socket_timeout": None, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(url, **plain)
        return Foreign(client, name, client_id=client_id, prefix=prefix)
    maker: Callable[..., Party] = Ours if kind == "sync" else AsyncOurs
    return maker(url, name, client_id=client_id, prefix=prefix)


def live(
    kind: str, url: str, name: str, client_id: str, log: str, deeds: list[str], seed: int
) -> None:
    """Do these deeds at random, until killed or told to end.

    Deeds are methods of a party; those that can wait do so for LIMIT seconds.
    """
    word, out, dice = _Word(), Log(log), random.Random(seed)
    party = party_of(kind, url, name, client_id)
    serial = 0
    while not word.is_said:
        deed = dice.choice(deeds)
        limited = deed in ("put", "get", "close") or (deed == "delete" and kind != "foreign")
        args: list[Any] = [LIMIT] if limited else []
        if deed == "create":
            args = [dice.randrange(4)]
        if deed.startswith("put"):
            serial += 1
            args = [f"{client_id}.{serial}.{'x' * dice.randrange(100)}".encode(), *args]
        said = args[0].decode() if deed.startswith("put") else ""
        out.write(client_id, "tries", deed, said)
        try:
            result = getattr(party, deed)(*args)
        except Refused as refused:
            out.write(client_id, "refused", deed, refused.kind)
            if refused.kind not in ("full", "empty", "in_use"):
                time.sleep(PAUSE)
        else:
            out.write(client_id, "done", deed, said or (result or b"").decode())
        if deed in ("create", "close", "delete"):
            time.sleep(dice.uniform(0, 0.03))  # a pause between the rounds
    party.disconnect()


def move(kind: str, url: str, name: str, client_id: str, log: str, count: int) -> None:
    """Put this many messages; without a number get all until the queue ends."""
    out = Log(log)
    party = party_of(kind, url, name, client_id)
    for serial in range(count):
        party.put(f"{client_id}.{serial}.".encode())
    while not count:
        try:
            message = party.get()
        except Refused as refused:
            out.write(client_id, "refused", "get", refused.kind)
            break
        out.write(client_id, "done", "get", message.decode())
    party.disconnect()


def wait(kind: str, url: str, name: str, client_id: str, verb: str) -> None:
    """Make one call without a limit."""
    args = (b"never",) if verb == "put" else ()
    getattr(party_of(kind, url, name, client_id), verb)(*args)
