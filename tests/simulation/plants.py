"""Faults that are planted into the product, to see that the simulation finds them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from penstock.client._async import batches
from penstock.client._async.transport.connection import AsyncProducerConnection
from penstock.core.values.confirmations import Confirmed
from penstock.core.values.producer import Producer
from penstock.worker import declared, deliveries, loop, terms
from penstock.worker._async import handler_runner, heartbeat
from penstock.worker.results import ACK
from tests.simulation.world import World

__all__ = ["PLANTS", "ClientPlant", "Plant", "ScriptPlant"]


@dataclass(frozen=True)
class Plant:
    """A fault.

    Attributes:
        name: what is wrong.
    """

    name: str

    @property
    def is_rare(self) -> bool:
        """Whether about ten seeds or more are needed to find it."""
        return self.name in RARE

    @contextmanager
    def planted(self, world: World) -> Iterator[None]:
        """Plant the fault into the product of a world."""
        raise NotImplementedError


@dataclass(frozen=True)
class ScriptPlant(Plant):
    """A fault in each script that has a text.

    Attributes:
        text: a text of scripts, whatever white space is between its words: it may be indented.
        fault: the text in its place.
    """

    text: str
    fault: str

    @contextmanager
    def planted(self, world: World) -> Iterator[None]:
        """Plant the fault."""
        world.plant(lambda source: self.pattern.sub(lambda _: self.fault, source.decode()).encode())
        yield

    @property
    def pattern(self) -> re.Pattern[str]:
        """Finds the text."""
        return re.compile(r"\s+".join(map(re.escape, self.text.split())))


@dataclass(frozen=True)
class ClientPlant(Plant):
    """A fault in a function of the client or the worker.

    Attributes:
        owner: its module or class.
        function: its name.
        fault: makes the function in its place of the true one.
    """

    owner: Any
    function: str
    fault: Callable[[Any], Any]

    @contextmanager
    def planted(self, world: World) -> Iterator[None]:
        """Plant the fault."""
        true = getattr(self.owner, self.function)
        with mock.patch.object(self.owner, self.function, self.fault(true)):
            yield


def _repeat_anew(true: Any) -> Any:
    async def exchange_again(own: Any, call: Any, caller: Producer) -> Any:
        return await true(own, call, Producer(caller.calls + 1000))

    return exchange_again


def _begin_at_reply(true: Any) -> Any:
    return lambda jobs, _sent, now: true(jobs, now, now)


def _renew_at_answer(true: Any) -> Any:
    def renew(jobs: Any, codes: Any, *, now_ms: int, sent: float, heard: float) -> Any:
        return true(jobs, codes, now_ms=now_ms, sent=heard, heard=heard)

    return renew


def _take_no_job(true: Any) -> Any:
    def reserve_by_token(state: Any, poll: Any) -> Any:
        del state, poll
        yield from ()
        return 0

    return reserve_by_token


def _in_reverse(real: Any) -> Any:
    return lambda *args, **options: real(*args, **options)[::-1]


async def _close_nothing(queue: Any, batch: Any) -> None:
    del queue, batch


def _renewed_for_ever(own: Any, code: int, *, now_ms: int, sent: float, heard: float) -> Any:
    del code, now_ms
    return own.extended(sent, heard, own.lease)


RARE = (
    "a lease may end early when another one has",
    "a stale receipt is accepted",
    "a job that no replica has counts as confirmed",
    "a pause does not stop deliveries",
    "a hold does not stop deliveries",
    "producers are not refused in a pause",
    "a stale hand-over adds its jobs",
    "no lost lease is noticed",
    "a worker forgets that its lease ends",
    "a lost schedule does not come back",
)
"""Names of faults that need about ten seeds or more."""
PLANTS: tuple[Plant, ...] = (
    ScriptPlant("a repeat is not recognized", "if number == nonce then", "if false then"),
    ScriptPlant(
        "a lease may end early when another one has",
        "string.format('%.0f', score_of(now, 4095)), 0, nil",
        "string.format('%.0f', score_of(now + 1500, 4095)), 0, nil",
    ),
    ScriptPlant(
        "a renewal changes nothing",
        "redis.call('ZADD', active, unpack(active_pairs))\n  if #begun",
        "redis.call('ZCARD', active)\n  if #begun",
    ),
    ScriptPlant(
        "a renewal shortens a lease",
        "local till = late == '2' and",
        "local till = late == '3' and",
    ),
    ScriptPlant(
        "a stale receipt is accepted",
        "if hex and (score % 4096 ~= wanted_tag or number ~= delivery_number) then",
        "if false then",
    ),
    ScriptPlant(
        "nobody is told of a coming event",
        "if at - now <= 4000 and (again or alarm <= now or at < alarm) then",
        "if false then",
    ),
    ScriptPlant(
        "a new job wakes nobody",
        "if token and wake_empty then\n  redis.call('RPUSH', wake, '1')",
        "if false then\n  redis.call('RPUSH', wake, '1')",
    ),
    ScriptPlant(
        "a finished job keeps its ticket",
        "keyed.give_back = function(ids)\n",
        "keyed.give_back = function(ids)\n    ids = {}\n",
    ),
    ScriptPlant(
        "two jobs of a key run at once",
        "local hard_limit = is_ordered and 1 or",
        "local hard_limit = is_ordered and 2 or",
    ),
    ScriptPlant(
        "a failure is not counted",
        "nacked = is_unknown and nacked + 0 or nacked + 1\n",
        "nacked = nacked + 0\n",
    ),
    ScriptPlant(
        "results are not kept",
        "if #ids == 0 then\n      return\n    end\n    local keeps_values",
        "if true then\n      return\n    end\n    local keeps_values",
    ),
    ScriptPlant("the rate is not kept", "used = used + took * period", "used = used + 0 * period"),
    ScriptPlant(
        "more jobs are delivered at once than max_active allows",
        "return most - redis.call('ZCARD', active)",
        "return most + 1 - redis.call('ZCARD', active)",
    ),
    ScriptPlant(
        "the rate of a key is not kept",
        "note(hash, tat_of(hash) + step)",
        "note(hash, tat_of(hash))",
    ),
    ScriptPlant(
        "a pause does not stop deliveries",
        "if paused == 'out' or paused == 'all' then\n    return",
        "if false then\n    return",
    ),
    ScriptPlant(
        "a hold does not stop deliveries",
        "held_until = held_until > now and",
        "held_until = false and",
    ),
    ScriptPlant(
        "producers are not refused in a pause",
        "if paused == 'in' or paused == 'all' then\n  return {-4",
        "if false then\n  return {-4",
    ),
    ScriptPlant(
        "a stale hand-over adds its jobs",
        "if acked == 0 then -- write something",
        "if false then -- write something",
    ),
    ScriptPlant(
        "a death adds no job",
        "    if #followed == 0 then\n",
        "    if true then\n",
    ),
    ScriptPlant(
        "a death adds two jobs",
        "for i = 1, #ids do\n      local value = values[i] or ''",
        "for j = 2, 2 * #ids + 1 do\n      local i = math.floor(j / 2)\n"
        "      local value = values[i] or ''",
    ),
    ScriptPlant(
        "a batch of an ack forgets a member",
        "join_batch({unpack(ids, 2)}, first)",
        "join_batch({unpack(ids, 3)}, first)",
    ),
    ScriptPlant(
        "a hold of a key stops nothing",
        "ends = ends > now and ends <= now + 90000000 and ends",
        "ends = false",
    ),
    ScriptPlant(
        "a hold of a key is forgotten early",
        "ends = ends > now and ends <= now + 90000000 and ends",
        "ends = ends > now + 1000 and ends",
    ),
    ScriptPlant(
        "a tick is added again",
        "not (is_due and due == tonumber(expected))",
        "not is_due",
    ),
    ClientPlant(
        "a lost schedule does not come back",
        declared.DeclaredSchedules,
        "finish_check",
        lambda _: lambda *_: declared.Missing(lost=[], removed=[]),
    ),
    ScriptPlant(
        "a second signal is taken",
        "if kind then\n  return {1, nonce, 2",
        "if false then\n  return {1, nonce, 2",
    ),
    ScriptPlant(
        "a wait does not look for a signal that came before",
        "if find_outcome(outcomes, string.match(redriven, '%d+$'), name) then",
        "if false then",
    ),
    ScriptPlant(
        "the end of a called job does not wake its caller",
        "if redis.call('ZSCORE', scheduled, caller) then",
        "if false then",
    ),
    ScriptPlant(
        "the value of a called job is lost",
        "front .. state .. ' ' .. text, 'n' .. caller",
        "front .. state .. ' ', 'n' .. caller",
    ),
    ClientPlant(
        "a repeat has a number of its own",
        AsyncProducerConnection,
        "exchange_again",
        _repeat_anew,
    ),
    ClientPlant("no lease is renewed", heartbeat, "due", lambda _: lambda *_: iter(())),
    ClientPlant("a lease begins with the reply", deliveries, "begin", _begin_at_reply),
    ClientPlant("a renewal begins with the answer", heartbeat, "renew", _renew_at_answer),
    ClientPlant(
        "no lost lease is noticed", heartbeat.AsyncHeartbeat, "_lose", lambda _: lambda *_: None
    ),
    ClientPlant("a snooze is an ack", handler_runner, "_judge_value", lambda _: lambda *_: None),
    ClientPlant(
        "a failure is an ack",
        handler_runner.AsyncHandlerRunner,
        "_judge_failure",
        lambda _: lambda _own, _handler, jobs, _error: [ACK] * len(jobs),
    ),
    ClientPlant("a woken worker takes no job", loop, "_reserve_by_token", _take_no_job),
    ClientPlant(
        "a job that no replica has counts as confirmed",
        Confirmed,
        "covers",
        lambda _: lambda *_: True,
    ),
    ClientPlant("no batch is closed", batches, "_close", lambda _: _close_nothing),
    ClientPlant("values of a batch have another order", batches, "values_of", _in_reverse),
    ClientPlant(
        "a worker forgets that its lease ends", terms.Term, "renewed", lambda _: _renewed_for_ever
    ),
)
