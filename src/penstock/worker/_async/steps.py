"""Steps of handlers: their values are noted, so that a later delivery does not run them again."""

from __future__ import annotations

import asyncio  # async only
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeAlias, TypeVar, overload

from penstock.client._async.nodes.one_part import AsyncOnePart
from penstock.core.calls.call import Call
from penstock.core.calls.operations import QueueOps
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.jobs.job import Delivery, reservation_of
from penstock.core.values.annotations import Self
from penstock.core.values.checks import MAX_DURATION_MS, Duration, duration_ms
from penstock.errors import StepNotKept, WrongEpoch
from penstock.wire.codes import Code
from penstock.worker.step_calls import CoroutineJob, check_jobs, value_of_call
from penstock.worker.step_run import (
    RUN_STEP,
    SLEEP_STEP,
    BaseSteps,
    RunEnded,  # async only
    StepRun,
    decoded_value,
)

# sync only: from penstock.worker.step_run import refuse_awaitable
__all__ = ["AsyncSteps", "ask_server"]

P = ParamSpec("P")
T = TypeVar("T")
BuildNoteCall: TypeAlias = Callable[[QueueOps, Delivery], Call[Any]]
"""Builds a call about the notes of a job."""
AsyncAskServer: TypeAlias = Callable[[Delivery, BuildNoteCall], Awaitable[Any]]
"""Runs such a call, and returns its reply."""


async def ask_server(job: Delivery, build: BuildNoteCall) -> Any:
    """Run a call about the notes of a job on its node, and return the reply."""

    async def ask_part(part: AsyncOnePart, _: object) -> list[Any]:
        return [await part.executor.run(build(part.ops, job))]

    route = await reservation_of(job).queue.route.refresh()
    [reply] = await route.call_parts([job], ask_part, None)
    return reply


# [async only
def ask_from_thread(loop: asyncio.AbstractEventLoop, job: Delivery, build: BuildNoteCall) -> Any:
    """Run a call as `ask_server` does, for a handler in a thread beside the event loop."""
    call = ask_server(job, build)
    try:
        future = asyncio.run_coroutine_threadsafe(call, loop)
    except RuntimeError:  # the loop is closed
        call.close()
        raise RunEnded("the worker has ended") from None
    return future.result()


# async only]


class AsyncSteps(BaseSteps):
    """The steps of a handler. Their values are noted with the job, so a retry does not repeat them.

    A coroutine function that is a handler receives it by a parameter with this annotation, which is
    no argument of its jobs; a plain function annotates `Steps`. A handler runs from its beginning
    in each delivery. A step that was noted returns its value; the others run.

        @handlers.handler
        async def order(steps: AsyncSteps, order_id: str) -> str:
            stock = await steps.run("reserve", reserve_stock, order_id)
            await steps.run("charge", charge, order_id, key=steps.key("charge"))
            return await steps.run("ship", ship, order_id, stock)

    Args:
        run, ask, shield: internal: a worker makes the object. `AsyncSteps.local()` makes one for
            a call without a server.
    """

    is_async = True  # async only
    # sync only: is_async = False

    def __init__(
        self,
        run: StepRun,
        ask: AsyncAskServer = ask_server,
        shield: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        super().__init__(run)
        self._ask = ask
        self._shield = shield

    @classmethod
    def local(cls, values: Mapping[str, object] | None = None) -> Self:
        """Return steps without a server, to call a handler in a test: each one runs once.

        Args:
            values: what waits, calls and gathers return, by their names. Other waits time out at
                once, and other calls fail.

        Raises:
            StepNotKept: a value can't be written as JSON.

        Examples:
            >>> async def order(steps: AsyncSteps, order_id: str) -> list[str]:
            ...     return await steps.run("reserve", lambda: (order_id, "blue"))
            >>> await order(AsyncSteps.local(), "7")
            ['7', 'blue']
        """
        return cls(StepRun(None, values))

    # [async only
    @overload
    async def run(
        self, name: str, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    @overload
    async def run(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    # async only]
    async def run(
        self,
        name: str,
        # sync only: function: Callable[P, T],
        function: Callable[P, T | Awaitable[T]],  # async only
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Run a function once for the job, and note its value with the job.

        In a later delivery the function is not called, and the noted value is returned. If the
        worker dies between the call and the note, the function is called again: its effects happen
        at least once, its value is noted once. `key` helps the service that it calls. A note sets
        the job's nacks and crashes to 0: attempts count since the last step.

        Args:
            name: identifies the step: printable text of 1 to 200 bytes, used once in a run. Change
                it when the step does something else.
            function: called with the other arguments; a coroutine function is awaited.
            *args, **kwargs: its arguments.

        Returns:
            The value of the function as JSON returns it, in the first run too: a tuple is a list.

        Raises:
            BadArgument: the name can't be used; nothing was called.
            DuplicateStep, StepOverlap, StepsChanged: see there; the function was not called.
            StepNotKept: the value is no JSON, or has more than 64 KiB (or the queue's
                `result_size`, if that is larger), or the steps of the job have more than 1 MiB; it
                was not noted. Or they are more than 1,000; then the function was not called.
            NotesLost: the server has lost notes of this run.
            RunEnded: the delivery has ended, or the job is cancelled. It is no `Exception`. Like
                after any other failure of the server's call, no step begins in this run.
            Exception: whatever the function raises; nothing was noted.

        Section of the protocol: protocol/steps.md.
        """
        steps = self._run
        steps.begin(name)
        try:
            await self._read_notes()
            noted = steps.find(name, RUN_STEP)
            if noted is not None:
                before: T = decoded_value(noted.value)
                return before
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                # sync only: refuse_awaitable(value)
                value = await value  # async only
            raw = steps.encode(name, value)
            if steps.job is not None:
                await self._note(name, raw)
            steps.keep(name, raw)
            kept: T = decoded_value(raw)
            return kept
        finally:
            steps.end()

    async def sleep(self, name: str, seconds: Duration) -> None:
        """Let the job sleep. No worker is held: this run ends, and a later one passes the sleep.

        The sleep is noted in the step that gives the job back, so it is over when the job is
        delivered again: at its end, or before by `promote`. It ends at the latest with the job's
        ttl, and `cancel` and `delete` end the job. Like any note it sets nacks and crashes to 0.

        Args:
            name: as of `run`.
            seconds: how long, by the server's clock.

        Raises:
            BadArgument: the name can't be used, or not a duration.
            DuplicateStep, StepOverlap, StepsChanged, StepNotKept, RunEnded: as of `run`.
            Suspended: a `RunEnded`: this run ends. Whatever the handler makes of it is ignored.

        Examples:
            >>> async def remind(steps: AsyncSteps, to: str) -> str:
            ...     await steps.sleep("a day", 86400)
            ...     return await steps.run("send", lambda: f"sent to {to}")
            >>> await remind(AsyncSteps.local(), "ada")  # it does not sleep
            'sent to ada'

        Section of the protocol: protocol/steps.md.
        """
        steps, delay_ms = self._run, duration_ms("seconds", seconds)
        steps.begin(name)
        try:
            await self._read_notes()
            if steps.find(name, SLEEP_STEP) is None:
                steps.suspend(name, delay_ms)
        finally:
            steps.end()

    async def wait(self, name: str, *, timeout: Duration | None = None) -> Any:
        """Wait for a signal to the job. No worker is held: this run ends, and a later one goes on.

        `queue.signal(job_id, name, value)` gives it, also before the job waits. The
        outcome of a wait is the first of these: a signal, the end of the timeout, a promote,
        which ends the timeout. All later runs have the same one. Like a note a wait sets nacks and
        crashes to 0.

        Args:
            name: as of `run`; that of the signal.
            timeout: seconds from the first run that waits, by the server's clock; None = there is
                no end but that of the job's ttl.

        Returns:
            The value of the signal, as JSON returns it.

        Raises:
            StepTimeout: the timeout came first; so too in later runs, until a redrive. A handler
                that does not catch it makes its job a dead letter at once.
            BadArgument: the name can't be used, or not a duration.
            DuplicateStep, StepOverlap, StepsChanged, RunEnded: as of `run`.
            StepNotKept: the job has 1,000 steps and timeouts, or 1 MiB of them; it does not wait.
            Suspended: a `RunEnded`: this run ends. Whatever the handler makes of it is ignored.

        Examples:
            >>> async def pay(steps: AsyncSteps, euros: int) -> str:
            ...     answer = await steps.wait("approval", timeout=86400)
            ...     return f"{euros} euros, as {answer['by']} says"
            >>> await pay(AsyncSteps.local({"approval": {"by": "ada"}}), 300)
            '300 euros, as ada says'

        Section of the protocol: protocol/steps.md.
        """
        steps = self._run
        timeout_ms = MAX_DURATION_MS if timeout is None else duration_ms("timeout", timeout)
        steps.begin(name)
        try:
            await self._read_notes()
            return decoded_value(steps.end_wait(name, timeout_ms))
        finally:
            steps.end()

    @overload
    async def call(self, name: str, job: CoroutineJob[T]) -> T: ...
    @overload
    async def call(self, name: str, job: NewJob[T]) -> T: ...
    async def call(self, name: str, job: NewJob[Any]) -> Any:
        """Call a job of another handler, and return its value. No worker is held meanwhile.

        The job is added, and this run ends, in one step. The job is one of its own, in the queue of
        this one: it has its own attempts, and its end is noted with this job, in the step that ends
        it. Then this job is delivered again, and goes on. So it is called once, whatever crashes.
        If exactly one job follows it (`Done(then=[...])`, a chain), the value is that of the job
        which follows. Jobs that a cancelled, deleted or dead job has called run on.

        Args:
            name: as of `run`.
            job: a job of a handler, `ship.job(order_id)`, with its options, or a chain. Not with
                `at`, a dedup id, `replicas` and the like; on an ordered queue not with the key of
                this job, or of one that waits for it; in a queue with partitions no key that
                chooses another one.

        Returns:
            The value of its handler, as JSON returns it.

        Raises:
            StepFailed: the job is a dead letter, or was cancelled or removed, its ttl has ended, or
                its value was not kept. A handler that does not catch it makes its own job a dead
                letter at once; a redrive of that calls the job again.
            BadArgument: the name or the job can't be used; nothing was called.
            DuplicateStep, StepOverlap, StepsChanged, RunEnded: as of `run`.
            StepNotKept: the job has no room for another note; nothing was called.
            Suspended: a `RunEnded`: this run ends. Whatever the handler makes of it is ignored.

        Examples:
            >>> handlers = Handlers()
            >>> @handlers.handler
            ... def ship(order_id: str) -> str:
            ...     return f"label of {order_id}"
            >>> @handlers.handler
            ... async def order(steps: AsyncSteps, order_id: str) -> str:
            ...     return await steps.call("ship", ship.job(order_id))
            >>> await order(AsyncSteps.local({"ship": "a label"}), "7")
            'a label'

        Section of the protocol: protocol/steps.md.
        """
        return (await self._call_jobs(name, [job], is_one=True))[0]

    @overload
    async def gather(self, name: str, jobs: Iterable[CoroutineJob[T]]) -> list[T]: ...
    @overload
    async def gather(self, name: str, jobs: Iterable[NewJob[T]]) -> list[T]: ...
    async def gather(self, name: str, jobs: Iterable[NewJob[Any]]) -> list[Any]:
        """Call several jobs at once, and return their values, in the order of the jobs.

        All are added in one step, and run side by side; this job goes on when the last one has
        ended. All else is as of `call`.

        Args:
            name: as of `run`.
            jobs: as of `call`: at most 1,000, less the other steps of the job, and 1 MiB together.
                A later run has to come with the same jobs in the same order: make the list in a
                step, or of the arguments.

        Returns:
            The values. They have 1 MiB at most, with those of the other steps.

        Raises:
            StepFailed: some have ended without a value: the first one of these, when all have
                ended. A redrive of this job calls these again, and keeps the other values.
            StepsChanged: the step has called another number of jobs, or others, by their handlers
                and arguments.
            BadArgument, DuplicateStep, StepOverlap, StepNotKept, Suspended, RunEnded: as of `call`.

        Examples:
            >>> handlers = Handlers()
            >>> @handlers.handler
            ... def resize(path: str) -> str:
            ...     return f"small/{path}"
            >>> @handlers.handler
            ... async def album(steps: AsyncSteps, paths: list[str]) -> list[str]:
            ...     return await steps.gather("resize", [resize.job(path) for path in paths])
            >>> await album(AsyncSteps.local({"resize": ["small/a"]}), ["a"])
            ['small/a']

        Section of the protocol: protocol/steps.md.
        """
        return await self._call_jobs(name, jobs)

    async def _call_jobs(
        self, name: str, jobs: Iterable[NewJob[Any]], *, is_one: bool = False
    ) -> list[Any]:
        steps = self._run
        steps.begin(name)
        try:
            chosen = check_jobs(jobs, steps.job)
            if steps.job is None:
                given = steps.given_value(name, None if is_one else len(chosen))
                return [given] if is_one else given
            await self._read_notes()
            return [*map(value_of_call, steps.end_calls(name, chosen) if chosen else ())]
        finally:
            steps.end()

    async def _read_notes(self) -> None:
        if not self._run.has_read:
            reply = await self._call_server(lambda ops, job: ops.read_notes(job))
            self._run.take_notes(reply)

    async def _note(self, name: str, raw: bytes) -> None:
        index = self._run.next_index
        try:
            reply = await self._call_server(lambda ops, job: ops.note(job, index, name, raw))
        except StepNotKept as error:
            text = f"step {name!r}: its value of {len(raw)} bytes is too large: {error}"
            raise StepNotKept(text) from None
        self._run.check_outcome(reply.outcome)

    async def _call_server(self, build: BuildNoteCall) -> Any:
        """Run a call. If its end is not known, or it was refused, the run has ended."""
        steps = self._run
        assert steps.job is not None
        try:
            # sync only: with self._shield(): return self._ask(steps.job, build)
            return await self._ask(steps.job, build)  # async only
        except WrongEpoch:  # the queue was deleted and created again: it has no such job
            steps.check_outcome(Code.GONE)
        except StepNotKept:  # nothing was noted, so the run may go on
            raise
        except BaseException as error:
            steps.stop(error)
            raise
