"""Parties that are killed at random, in bouts, and the checks after each bout.

A bout has its own queue and a crew of processes. Some of them are killed, the others are told to
end, which they do within the limits of their calls. Then the queue is compared with the logs of the
members.

Counters are exact in this sense: each operation of ours is one script, so wherever its client dies,
messages in minus messages out are those that wait, and so are their bytes. A foreign client that
dies between its steps may have put or taken a message and not counted it: each such death explains
a difference of one. A client that dies between the reply and the log has taken a message that is
not logged: one for each dead consumer.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from penstock.embedded import EmbeddedServer
from tests.conformance.pressure import ROLES, STATS, Keys, Ours, Refused
from tests.conformance.pressure_crowd import LIMIT, Crowd, Member
from tests.support.workers import until, whole_lines

__all__ = ["Storm"]

OWN = ("sync", "async")
ALL = ("sync", "async", "foreign")
PUTS = ("put", "put_nowait", "put")
GETS = ("get", "get_nowait", "get")
ENDS = ("close", "delete", "create", "delete", "create")
FOREIGN_ENDS = ("close", "delete")
"""Without create: in the middle of a delete it makes half a queue, and fails."""
STUCK = 20.0
"""Seconds after which a member told to end counts as stuck: a call takes less than one."""


@dataclass
class Told:
    """The log records of a crew."""

    tried: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    put: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    got: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    last: dict[str, str] = field(default_factory=dict)
    events: Counter[str] = field(default_factory=Counter)

    def read(self, log: Path) -> Told:
        """Read a log."""
        for line in whole_lines(log.read_bytes()):
            client_id, event, deed, said = line.split(" ")
            self.events[f"{event} {deed}"] += 1
            if event == "tries":
                self.last[client_id] = deed
                if said:
                    self.tried[client_id].append(said)
            elif event == "refused":
                self.refused |= set(self.tried[client_id][-1:]) if deed.startswith("put") else set()
            elif deed.startswith("put"):
                self.put.add(said)
            elif deed.startswith("get"):
                self.got[client_id].append(said)
        return self

    def all_got(self) -> list[str]:
        """Return every message that a member got."""
        return [message for messages in self.got.values() for message in messages]


class Crew:
    """The members of one bout, and their ends."""

    def __init__(self, crowd: Crowd, **common: Any) -> None:
        self._crowd = crowd
        self._common = common
        self.members: list[Member] = []
        self.dead: list[Member] = []

    def join(self, kind: str, deeds: Sequence[str], dice: random.Random) -> None:
        """Start one more member."""
        client_id = f"{kind}{len(self.members)}_{deeds[0]}"
        task = {
            "kind": kind,
            "client_id": client_id,
            "deeds": list(deeds),
            "seed": dice.randrange(1 << 30),
        }
        self.members.append(self._crowd.start("live", **task, **self._common))

    def strike(self, dice: random.Random, free: Callable[[], None]) -> None:
        """Kill some members, and tell the others to end.

        A foreign delete waits without a limit for a role that a dead party holds. When all others
        have ended the role can be freed, and then it ends too.
        """
        self.dead = dice.sample(self.members, dice.randint(1, len(self.members)))
        for victim in self.dead:
            victim.signal(signal.SIGKILL)
            time.sleep(dice.choice((0, dice.uniform(0, 0.02))))
        for member in self.members:
            if member not in self.dead:
                member.signal(signal.SIGTERM)
        patient = [one for one in self.members if one not in self.dead and is_patient(one)]
        for member in self.members:
            if member not in patient:
                expected = -signal.SIGKILL if member in self.dead else 0
                assert member.ended(STUCK) == expected, f"{member.task} did not end as told"
        for member in patient:
            if member.exit_code is None:
                free()
            assert member.ended(STUCK) == 0, f"{member.task} did not end as told"

    def deaths(self, deeds: Sequence[str], kinds: Sequence[str] = ALL) -> list[str]:
        """Return the names of dead members that did one of these deeds."""
        return [
            one.task["client_id"]
            for one in self.dead
            if one.task["kind"] in kinds and set(one.task["deeds"]) & set(deeds)
        ]


def is_patient(member: Member) -> bool:
    """Tell if it may wait without a limit."""
    return member.task["kind"] == "foreign" and "delete" in member.task["deeds"]


class Storm:
    """Bouts on one server.

    Args:
        server: empty, and used by nothing else.
        crowd: where the members come from.
        logs: a directory for what they write.
        seed: of all that is left to chance here.
    """

    def __init__(self, server: EmbeddedServer, crowd: Crowd, logs: Path, seed: int) -> None:
        self.server = server
        self.crowd = crowd
        self.logs = logs
        self.dice = random.Random(seed)
        self.sums: Counter[str] = Counter()

    def run(self, seconds: float) -> Counter[str]:
        """Run bouts, and return how often each kind of end occurred."""
        deadline = time.monotonic() + seconds
        with redis.Redis.from_url(self.server.url, protocol=2) as raw:
            while time.monotonic() < deadline:
                self.sums["bouts"] += 1
                bout = Bout(self, raw)
                try:
                    bout.run()
                except BaseException as error:
                    error.args = (*error.args, f"in bout {self.sums['bouts']}: {bout.describe()}")
                    raise
        return self.sums


class Bout:
    """One queue and one crew."""

    def __init__(self, storm: Storm, raw: redis.Redis) -> None:
        self.storm = storm
        self.raw: Any = raw
        self.dice = dice = storm.dice
        self.number = storm.sums["bouts"]
        self.name = f"storm {self.number}"
        self.keys = Keys(self.name)
        self.kinds = dice.choice((OWN, OWN, ALL))
        self.bound = dice.randrange(5)
        self.waits = dice.random() < 0.7
        self.ends = dice.random() < 0.4
        self.log = storm.logs / f"{self.number}.log"
        self.log.touch()
        self.crew = Crew(storm.crowd, url=storm.server.url, name=self.name, log=str(self.log))

    def describe(self) -> dict[str, Any]:
        """Return the details needed to understand a failure."""
        return {
            "kinds": self.kinds,
            "bound": self.bound,
            "waits": self.waits,
            "ends": self.ends,
            "log": str(self.log),
            "dead": [one.task["client_id"] for one in self.crew.dead],
            "keys": {key: self.raw.type(key) for key in self.raw.keys(f"{self.keys.base}*")},
        }

    def run(self) -> None:
        """Run the bout and check the queue."""
        mine = Ours(self.storm.server.url, self.name, client_id="referee")
        try:
            mine.create(self.bound)
            self.live_and_die(mine)
            told = Told().read(self.log)
            self.check_order(told)
            if self.ends:
                self.check_lives(mine)
            else:
                self.check_counts(told)
                self.check_roles(mine, told)
                self.check_use(mine)
            self.storm.sums.update(told.events)
            self.storm.sums["kills"] += len(self.crew.dead)
        finally:
            mine.disconnect()

    def live_and_die(self, mine: Any) -> None:
        """Let the crew work and strike it; return when the server has closed its connections."""
        before = {client["id"] for client in self.raw.client_list()}
        puts = PUTS if self.waits else ("put_nowait",)
        gets = GETS if self.waits else ("get_nowait",)
        kind = self.dice.choice
        for _ in range(self.dice.randint(1, 3)):
            self.crew.join(kind(self.kinds), puts, self.dice)
        for _ in range(self.dice.randint(1, 2)):
            self.crew.join(kind(self.kinds), gets, self.dice)
        if self.ends:
            ender = kind(self.kinds)
            self.crew.join(ender, FOREIGN_ENDS if ender == "foreign" else ENDS, self.dice)
        lines = kind((1, 2, 5, 10))
        until(lambda: self.have_written(lines))
        time.sleep(self.dice.uniform(0.0, 0.1))  # the work to be interrupted
        if self.waits and not self.ends and self.dice.random() < 0.3:
            self.crew.join(kind(self.kinds), ("close",), self.dice)
            until(lambda: self.have_written(1))  # otherwise it has no handler for SIGTERM yet
        self.crew.strike(self.dice, lambda: self.free_roles(mine))
        until(lambda: {client["id"] for client in self.raw.client_list()} <= before)

    def have_written(self, lines: int) -> bool:
        """Tell if each member has written this many lines."""
        written = Counter(line.partition(" ")[0] for line in whole_lines(self.log.read_bytes()))
        counts = [written[member.task["client_id"]] for member in self.crew.members]
        return min(counts) >= lines

    # Checks

    def waiting(self) -> list[str]:
        """Return the messages in the queue, oldest first."""
        return [message.decode() for message in reversed(self.raw.lrange(self.keys(), 0, -1))]

    def counters(self) -> list[int]:
        """Return the four counters."""
        return [int(self.raw.get(self.keys(f"stats:{name}")) or 0) for name in STATS]

    def check_order(self, told: Told) -> None:
        """Check that no message is doubled or invented, and each producer's order is kept."""
        waiting, got = self.waiting(), told.all_got()
        tried = {message for messages in told.tried.values() for message in messages}
        assert max(Counter(got + waiting).values(), default=1) == 1, "doubled"
        assert set(got + waiting) <= tried - told.refused, "refused, and yet there"
        rests: dict[str, list[int]] = numbers_of(waiting)
        for messages in told.got.values():
            for client_id, numbers in numbers_of(messages).items():
                assert numbers == sorted(numbers), f"{client_id} was reordered"
                assert not rests.get(client_id) or max(numbers) < min(rests[client_id]), (
                    f"{client_id} was reordered"
                )
        for client_id, numbers in rests.items():
            assert numbers == sorted(numbers), f"{client_id} was reordered"

    def check_counts(self, told: Told) -> None:
        """Check that no message is lost, and the counters agree."""
        waiting, got = self.waiting(), told.all_got()
        entered, entered_bytes, left, left_bytes = self.counters()
        takers, givers = self.crew.deaths(GETS), self.crew.deaths(PUTS)
        lost = told.put - set(got) - set(waiting)
        assert len(lost) <= len(takers), f"lost: {lost}"
        strangers = self.crew.deaths(PUTS, ("foreign",)), self.crew.deaths(GETS, ("foreign",))
        difference = entered - left - len(waiting)
        assert -len(strangers[0]) <= difference <= len(strangers[1])
        if not any(strangers):
            assert entered_bytes - left_bytes == sum(map(len, waiting))
            assert len(got) <= left <= len(got) + len(takers)
            assert len(told.put) <= entered <= len(told.put) + len(givers)
            if left == len(got):
                assert left_bytes == sum(map(len, got))
            if entered == len(told.put):
                assert entered_bytes == sum(map(len, told.put))
        elif set(self.kinds) == set(OWN):
            raise AssertionError("a foreign client died where there was none")
        over = 0 if "foreign" not in self.kinds else 1
        assert not self.bound or len(waiting) <= self.bound + over

    def check_roles(self, mine: Any, told: Told) -> None:
        """Check that a role is taken only if its holder died, and that freeing it works."""
        lengths = {role: self.raw.llen(self.keys(f"{role}_free")) for role in ROLES}
        for role, length in lengths.items():
            assert length <= 1, f"the role of the {role} was given back twice"
            deeds = (*PUTS, "close") if role == "producer" else GETS
            if not length:
                assert self.crew.deaths(deeds), f"the role of the {role} is lost, and no party died"
                if "foreign" not in self.kinds:
                    self.check_held(role, told)
            assert mine.free_role(role) is (not length)
            self.storm.sums[f"freed {role}"] += not length
        assert [self.raw.llen(self.keys(f"{role}_free")) for role in ROLES] == [1, 1]
        if "foreign" not in self.kinds:
            self.check_room()

    def check_held(self, role: str, told: Told) -> None:
        """Check that one of ours that left a role taken was killed during a wait.

        It is named as the holder, unless it was served while it died.
        """
        waits = {"put", "close"} if role == "producer" else {"get"}
        dead = [one.task["client_id"] for one in self.crew.dead]
        assert waits & {told.last.get(client_id) for client_id in dead}, (
            "killed outside a wait, and yet stuck"
        )
        holder = self.raw.get(self.keys(role)).decode()
        self.storm.sums["named" if holder in dead else "in line"] += 1

    def check_room(self) -> None:
        """Check that the token of room exists exactly if there is room."""
        room = not self.bound or self.raw.llen(self.keys()) < self.bound
        assert self.raw.llen(self.keys("not_full")) == room

    def check_use(self, mine: Any) -> None:
        """Check that the queue works at once: get, put and delete."""
        waiting, before = self.waiting(), self.counters()
        for message in waiting:
            assert mine.get_nowait().decode() == message
        size = sum(map(len, waiting))
        assert self.counters() == [*before[:2], before[2] + len(waiting), before[3] + size]
        closed = mine.closed()
        assert refusal(mine.get_nowait) == ("closed" if closed else "empty")
        room = 0 if closed else self.bound or 3
        for _ in range(room):
            mine.put_nowait(b"probe")
        if closed or self.bound:
            assert refusal(mine.put_nowait, b"probe") == ("closed" if closed else "full")
        assert self.raw.llen(self.keys()) == room
        mine.delete(LIMIT)
        assert not self.raw.keys(f"{self.keys.base}*")

    def check_lives(self, mine: Any) -> None:
        """Check that a queue is complete or absent after freeing the roles; then the name is
        usable.

        A deletion begun by a dead party is finished by the next delete.
        """
        for role in ROLES:
            assert self.raw.llen(self.keys(f"{role}_free")) <= 1, "a role was given back twice"
        self.free_roles(mine)
        if not mine.exists() and self.raw.keys(f"{self.keys.base}*"):
            self.storm.sums["deletes finished"] += 1
            assert refusal(mine.delete, STUCK) in ("", "missing")
        if mine.exists():
            self.storm.sums["queues left"] += 1
            self.bound = mine.bound()
            entered, _, left, _ = self.counters()
            if "foreign" not in self.kinds:
                assert entered - left == self.raw.llen(self.keys())
                self.check_room()
            self.check_use(mine)
        assert not self.raw.keys(f"{self.keys.base}*")
        self.bound = 2
        mine.create(self.bound)
        self.check_use(mine)

    def free_roles(self, mine: Any) -> None:
        """Free the roles of dead parties; no other party is left."""
        for role in ROLES:
            with suppress(Refused):  # the queue does not exist
                self.storm.sums[f"freed {role}"] += mine.free_role(role)


def refusal(call: Any, *args: Any) -> str:
    """Return the kind of a refusal, or an empty text."""
    try:
        call(*args)
    except Refused as refused:
        return refused.kind
    return ""


def numbers_of(messages: Sequence[str]) -> dict[str, list[int]]:
    """Return the serial numbers of each producer, in the order of the messages."""
    found: dict[str, list[int]] = defaultdict(list)
    for message in messages:
        client_id, serial, _ = message.split(".")
        found[client_id].append(int(serial))
    return found
