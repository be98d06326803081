"""A connection for calls, which numbers them."""

from __future__ import annotations

import asyncio  # async only
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, NoScriptError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from penstock.client._acompat import ashield  # async only
from penstock.client._async.transport.confirming import (
    DONE,
    DONE_CODES,
    LANE,
    AsyncConfirmingConnection,
    pairs,
)
from penstock.client.clock import monotonic
from penstock.core.calls.call import Call, RawReply
from penstock.core.calls.failures import (
    CONNECTION_ERRORS,
    MAY_BE_TOO_LARGE,
    SLOT_ERRORS,
    TOO_LARGE,
    loses_reply,
    refuses_size,
    transient,
)
from penstock.core.calls.reply_limit import size_of
from penstock.core.calls.troubles import ScriptsRefused, reason_of
from penstock.core.jobs.job import ops_of  # async only
from penstock.core.jobs.logs import get_logger
from penstock.core.nodes.servers import Syncing
from penstock.core.values.caught import caught
from penstock.core.values.confirmations import NOTHING, Confirmed, Wait
from penstock.core.values.producer import Producer
from penstock.errors import (
    BodyTooLarge,
    OutcomeUnknown,
    ProtocolError,
)
from penstock.wire.codes import Code
from penstock.wire.packing import pack, with_record
from penstock.wire.scripts import Script

__all__ = ["AsyncProducerConnection"]

logger = get_logger("penstock")

LONG_CALL_REPEATS = 2
"""Number of repeats of a long call by a server that answers other commands."""
SIZE_LIMITS = ("proto-max-bulk-len", "client-query-buffer-limit")
"""Settings of the most bytes of an argument: a server can't run a call with a longer one."""
# [async only
DELIVERING_SCRIPTS = frozenset({"reserve", "settle"})
"""Scripts that deliver jobs."""
LATE_REPLY_SECONDS = 1.0
"""Seconds to wait for the reply of a cancelled call."""
# async only]


class AsyncProducerConnection(AsyncConfirmingConnection):
    """A connection that runs calls, one at a time."""

    __slots__ = ()

    async def exchange(self, call: Call[Any], caller: Producer) -> RawReply:
        """Send a call and read its reply, loading the script if the server does not know it.

        The question for confirmations goes out in the same trip, if it is known by then. The call
        gets the result.

        Args:
            call: the script with its arguments.
            caller: numbers the call; usually this connection.

        Raises:
            CannotSync: the server can't tell if the call is on disk; nothing was sent.
            NotReplicated: too few replicas are connected to confirm the jobs of this call; nothing
                was sent.
            ProtocolError: the reply is that of another call; the connection is closed.
        """
        nonce = b"%d" % caller.calls
        _, front, size, begin, omitted = call.target
        if call.ends_with_record:
            packed = with_record(begin, nonce, caller.producer, call.args, omitted)
        else:  # as `Call.pack`
            first = (nonce,) if call.adds_to is None else (nonce, caller.producer)
            words = (*first, *call.args[omitted:])
            packed = pack(words)
            size += len(words)
            packed = b"*%d\r\n%b%b" % (size, front, packed[packed.index(b"\n") + 1 :])
        wait = call.wait
        how, question = None, b""
        if wait is not None and (wait.expected or wait.fsynced or wait.delivers):
            how, question = await self._prepare_question(call, wait)
            packed += question
        is_taking = call.script.name in DELIVERING_SCRIPTS  # async only
        try:
            # sync only: reply: Any = self._socket.trip(packed)
            # [async only
            reply: Any = await self._socket.trip(packed, keep=is_taking)
        except asyncio.CancelledError:
            if is_taking:
                await ashield(self._give_back(call, nonce))
            raise
        # async only]
        except CONNECTION_ERRORS:
            self._note_lost_reply(call)
            raise
        except ResponseError:
            reply = await self._load_and_rerun(call, packed, how=how, question=question)
        if type(reply) is not list or len(reply) < 2 or reply[1] != nonce:
            await self.close()
            raise ProtocolError(f"{call.script.name}: the reply is not that of call {caller.calls}")
        # By the lane no setting of the queue asks for replicas.
        if wait is not None and (question or wait.delivers or reply[0] != LANE):
            await self._await_confirmations(call, wait, how, question=question, reply=reply)
        raw: RawReply = reply
        return raw

    async def exchange_again(self, call: Call[Any], caller: Producer) -> RawReply:
        """Send a call again whose reply was lost.

        Raises:
            BodyTooLarge, OutcomeUnknown: the server closes the connection during each repeat of a
                long call, and answers other commands. Its settings show that it can't have run the
                call, or they don't.
            As `exchange`.
        """
        repeats = 0
        while call.is_long and size_of(call) < 2:  # else the reply may be what is too large
            await self._check_answers()
            try:
                return await self.exchange(call, caller)
            except RedisConnectionError as error:
                repeats += 1
                if type(error) is not RedisConnectionError:  # such as that it is loading its data
                    raise
                if repeats == LONG_CALL_REPEATS:
                    if await self._has_limit_below(max(map(len, call.args))):
                        text = "the server closes the connection during the call"
                        raise BodyTooLarge(f"{text}: {TOO_LARGE}") from error
                    raise OutcomeUnknown(f"{call.script.name}: {MAY_BE_TOO_LARGE}") from error
            await self.close()
        return await self.exchange(call, caller)

    async def _has_limit_below(self, size: int) -> bool:
        limits: list[str] = []
        with suppress(ResponseError, *CONNECTION_ERRORS):
            for name in SIZE_LIMITS:
                limits += pairs(await self.command("CONFIG", "GET", name)).values()
        return any(int(limit) < size for limit in limits)

    async def _check_answers(self) -> None:
        """Raise an error if the server is not ready. A user may not be allowed to run PING."""
        try:
            await self.command("PING")
        except ResponseError as error:
            if transient(error):
                raise

    async def exchange_each(
        self, calls: Sequence[Call[Any]], callers: Sequence[Producer]
    ) -> list[RawReply | ResponseError]:
        """Send calls in one trip; return the reply, or the refusal, of each.

        Args:
            calls: of different queues, as a repeat is known only by the last number in its queue.
                They wait for no disk.
            callers: number the calls.

        Raises:
            NotReplicated, ProtocolError: as in `exchange`.
        """
        for call in calls:
            if call.wait is not None and call.wait.expected:
                await self.require(call.wait, call.adds_to)
        nonces, parts = [b"%d" % caller.calls for caller in callers], list[bytes]()
        for call, nonce, caller in zip(calls, nonces, callers, strict=True):
            parts.append(call.pack(nonce, caller.producer))
        answers = await self.replies(b"".join(parts), len(parts))
        for nonce, answer in zip(nonces, answers, strict=True):
            if isinstance(answer, list) and answer[1] != nonce:
                raise ProtocolError(f"the reply is not that of call {nonce.decode()}")
        await self._conclude_each(calls, answers)
        return answers

    async def _conclude_each(self, calls: Sequence[Call[Any]], answers: Sequence[Any]) -> None:
        """Wait for replicas, once for all calls with the same terms: a WAIT covers all writes."""
        confirmed_by = dict[tuple[int, int], Confirmed]()
        for call, answer in zip(calls, answers, strict=True):
            wait = call.wait
            if wait is not None and isinstance(answer, list) and answer[0] in DONE_CODES:
                wanted = call.parse(answer).replicas if wait.replicas is None else wait.replicas
                terms = wanted, wait.timeout_ms
                if wanted and terms not in confirmed_by:
                    await self._conclude(call, None, b"", code=Code.DONE, wanted=wanted)
                    confirmed_by[terms] = call.confirmed
                call.confirmed = confirmed_by.get(terms, NOTHING)

    def _note_lost_reply(self, call: Call[object]) -> None:
        """Let the repeat and later calls of the queue ask for less: the reply may be too large."""
        ops = call.ops
        if ops is None or not self._socket.has_sent or not loses_reply(caught()):
            return
        size = size_of(call)
        if not ops.reply_limit.note_loss(call, monotonic()):
            return
        if size > 1:
            text = "queue %r: a reply of %s about up to %d jobs was lost (%s): now up to %d a call"
            reason, most = reason_of(caught()), ops.reply_limit.most
            logger.warning(text, ops.name, call.script.name, size, reason, most)
        else:
            text = (
                "queue %r: a reply of %s about one job was lost again (%s); it may be larger than"
                " the server's client-output-buffer-limit, or a proxy, allows"
            )
            logger.warning(text, ops.name, call.script.name, reason_of(caught()))

    async def _load_and_rerun(
        self,
        call: Call[object],
        packed: bytes,
        how: Syncing | None,
        question: bytes,
        loads: int = 4,
    ) -> Any:
        """Load an unknown script, so often at most, and run it. Raise any other refusal again."""
        is_over = transient(caught()) and not isinstance(caught(), SLOT_ERRORS)
        if is_over or refuses_size(caught()):
            raise  # noqa: PLE0704  # no variable holds it; the caller closes the connection
        if question:
            await self._read_confirmations(how)
        if not isinstance(caught(), NoScriptError):
            raise  # noqa: PLE0704  # as above
        await self._load(call.script)
        try:
            return await self._socket.trip(packed)
        except ResponseError:  # the reply of a WAIT may follow
            if loads > 1 and isinstance(caught(), NoScriptError):  # another client has flushed it
                return await self._load_and_rerun(
                    call, packed, how=how, question=question, loads=loads - 1
                )
            await self.close()
            raise
        except CONNECTION_ERRORS:
            self._note_lost_reply(call)
            raise

    # [async only
    async def _give_back(self, call: Call[Any], nonce: bytes) -> None:
        """Wait for the reply of a cancelled call, and release its jobs, which no caller gets."""
        with suppress(Exception):
            reply = await asyncio.wait_for(self._socket.trip(), LATE_REPLY_SECONDS)
            code, own, *_ = reply
            if own == nonce and code in DONE_CODES:
                await self._release(call, reply)

    async def _release_anew(self, call: Call[Any], reply: RawReply) -> None:
        """Release the jobs of a reply on a new connection: this one waits for confirmations."""
        with suppress(Exception):
            await self.close()
            await asyncio.wait_for(self._release(call, reply), LATE_REPLY_SECONDS)

    async def _release(self, call: Call[Any], reply: RawReply) -> None:
        if jobs := [job for job in _deliveries(call, reply) if not job.at_most_once]:
            self.calls += 1
            await self.exchange(ops_of(jobs[0]).release(jobs, -1), self)

    # async only]
    async def _confirm_deliveries(
        self, call: Call[Any], how: Syncing | None, wait: Wait, reply: RawReply
    ) -> None:
        """Wait for the confirmations of a reply that delivers jobs at most once.

        If the connection fails, return the reply: its other jobs are still delivered.
        """
        if not any(job.at_most_once for job in _deliveries(call, reply)):
            call.confirmed = Confirmed(wait.expected, wait.fsynced)
            return
        try:
            call.confirmed = await self._confirm_last_write(how, wait)
        except (RedisConnectionError, RedisTimeoutError) as error:
            logger.info("%s: %s; its jobs with lease=0 are not confirmed", call.script.name, error)
            await self.close()
        # [async only
        except asyncio.CancelledError:
            await ashield(self._release_anew(call, reply))
            raise
        # async only]

    async def _await_confirmations(
        self, call: Call[Any], wait: Wait, how: Syncing | None, question: bytes, reply: RawReply
    ) -> None:
        code = reply[0]
        if wait.delivers:
            if code in DONE_CODES:
                await self._confirm_deliveries(call, how, wait, reply=reply)
        elif question or code in DONE_CODES:
            wanted = wait.replicas
            if wanted is None and code == DONE:  # the queue's setting, told by the reply
                wanted = call.parse(reply).replicas
            if question or wanted:
                await self._conclude(call, how, question, code=code, wanted=wanted or 0)

    async def _load(self, script: Script) -> None:
        try:
            sha = await self.command("SCRIPT", "LOAD", script.source)
        except ResponseError as error:
            if transient(error) or isinstance(error, NoPermissionError):
                raise
            raise ScriptsRefused(reason_of(error)) from None
        if sha.decode() != script.sha:
            raise ProtocolError(f"{script.name}: the server has another SHA-1 for it")


def _deliveries(call: Call[Any], reply: RawReply) -> list[Any]:
    result = call.parse(reply)
    deliveries: list[Any] = getattr(result, "taken", result).deliveries
    return deliveries
