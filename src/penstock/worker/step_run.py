"""The steps of one run of a handler: those that were noted, the one that runs, and the next."""

from __future__ import annotations

import inspect
import json
import re
import threading
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, NamedTuple, NoReturn, Union

from penstock.core.calls.operations.consuming import JobsOfStep
from penstock.core.enqueuing.new_jobs import NewJob
from penstock.core.jobs.job import Delivery, forget_failures
from penstock.core.jobs.results import encoded_value
from penstock.core.values.checks import check_party
from penstock.core.values.methods import name_methods
from penstock.errors import (
    BadArgument,
    DuplicateStep,
    StepError,
    StepFailed,
    StepNotKept,
    StepOverlap,
    StepsChanged,
    StepTimeout,
)
from penstock.wire import replies
from penstock.wire.codes import Code
from penstock.worker.results import CallNote, SleepNote, Suspension, Verdict
from penstock.worker.step_calls import CALL_FRAME_BYTES, CalledSet, print_of, read_called

__all__ = [
    "RUN_STEP",
    "SLEEP_STEP",
    "BaseSteps",
    "RunEnded",
    "StepRun",
    "Suspended",
    "decoded_value",
    "outcomes_in",
    "refuse_awaitable",
    "steps_class",
]

MOST_STEPS = 1000
"""Most notes of a job, and most notes and timeouts of one that waits (protocol/steps.md)."""
MOST_NOTES_BYTES = 1_048_576
"""Most bytes of the notes of a job and of the outcomes of its waits."""
NOTE_FRAME_BYTES = len("r\t1800000000000\t\t")
"""Bytes of a note besides its name and its value."""
TIMEOUT_FRAME_BYTES = len("\n\tt\t1800000000000\t")
"""Bytes of the timeout of a wait besides its name."""
UNKNOWN_OUTCOME = "the outcome of an earlier note is not known, so no other step begins in this run"
RUN_STEP, SLEEP_STEP, CALL_STEP = b"r", b"s", b"c"
"""Kinds of notes."""
SIGNAL, TIMEOUT = b"s", b"t"
"""Kinds of the outcomes of waits."""
WAIT_PLACE = 0
"""The place of a wait in `suspend`: it is no note."""


class RunEnded(BaseException):
    """The delivery has ended, or the job is cancelled: no other step of this run may begin.

    It is no `Exception`, so `except Exception` in a handler does not catch it. Whatever the handler
    does with it, the job is reported as lost or cancelled. It is also raised behind a note whose
    outcome is not known, as after a time-out around it: then the attempt has failed.
    """


class Suspended(RunEnded):
    """The job sleeps or waits, and this run of its handler ends. It is no `Exception`."""


class NotedStep(NamedTuple):
    """A noted step, or the outcome of a wait: its kind, and its value as JSON."""

    kind: bytes
    value: bytes


class StepRun:
    """The steps of one run. It does no I/O.

    Args:
        job: the delivery; None = there is no server, and notes live as long as this object.
        values: without a server: the values of signals and of called jobs, by the names of steps.

    Attributes:
        job: the argument.
        has_read: whether the notes of earlier deliveries are known.
        suspension: what the job waits for at the end of this run; None = it does not wait.
    """

    def __init__(self, job: Delivery | None, values: Mapping[str, object] | None = None) -> None:
        self.job = job
        self.has_read = job is None or job.deliveries == 1
        self._noted: dict[str, NotedStep] = {}
        self._called: dict[str, CalledSet] = {}
        self._voided = range(0)  # places at which failures of called jobs do not count
        self._count = 0
        self._bytes = 0
        self._timeouts = 0
        self._used: set[str] = set()
        self._running = ""
        self._busy = threading.Lock()
        self._is_over = False
        self._failure: BaseException | None = None
        self.suspension: Suspension | None = None
        self._outcomes = {
            name: NotedStep(SIGNAL, self.encode(name, value))
            for name, value in (values or {}).items()
        }

    def begin(self, name: str) -> None:
        """Begin a step.

        Raises:
            BadArgument: the name can't be used.
            DuplicateStep: the run has used the name.
            StepOverlap: another step has not ended.
            StepError: the job is delivered at most once.
            RunEnded: the run has ended.
        """
        check_step_name(name)
        if self.job is not None and (self.job.lost or self.job.cancelled):
            self._end_run(is_cancelled=not self.job.lost)
        if self._is_over:
            if isinstance(self._failure, RunEnded):
                raise self._failure
            raise RunEnded(UNKNOWN_OUTCOME if self.suspension is None else "the job is suspended")
        if self.job is not None and self.job.at_most_once:
            raise StepError(
                f"step {name!r}: a job with lease=0 is not delivered again, so it can't have steps:"
                " enqueue it with a lease"
            )
        if not self._busy.acquire(blocking=False):
            raise StepOverlap(
                f"step {name!r} begins while step {self._running!r} runs: take one after the other"
            )
        if name in self._used:
            self._busy.release()
            raise DuplicateStep(
                f"step {name!r} was taken before in this run: put the id of the item into the name"
            )
        self._used.add(name)
        self._running = name

    def end(self) -> None:
        """End the step that runs."""
        self._running = ""
        self._busy.release()

    def take_notes(self, reply: replies.ReadNotes) -> None:
        """Take the notes of earlier deliveries.

        Raises:
            RunEnded: the delivery has ended, or the job is cancelled.
            StepsChanged: a note can't be read.
        """
        self.check_outcome(reply.outcome)
        last = ""
        for place, note in enumerate(reply.notes, 1):
            kind, _, raw, value = note.split(b"\t", 3) if note.count(b"\t") > 2 else [b""] * 4
            name = raw.decode(errors="surrogateescape")
            if kind not in (RUN_STEP, SLEEP_STEP, CALL_STEP):
                self._refuse_notes(f"a note of the job is of another version: {note[:80]!r}")
            self._noted[name] = NotedStep(kind, value)
            self._bytes += len(note)
            if kind == CALL_STEP:
                called = read_called(place, value)
                self._called.setdefault(name, CalledSet())[called.part] = called
            if place <= reply.redriven:
                first = self._voided.start if last == name and self._voided else place
                self._voided, last = range(first, place + 1), name
        self._outcomes = outcomes_in(reply.waits, reply.voided)
        self._bytes += len(reply.waits)
        self._timeouts = len(re.findall(rb"\n[^\t]*\tt\t", reply.waits))
        self._count = len(reply.notes)
        self.has_read = True

    def _refuse_notes(self, reason: str) -> NoReturn:
        error = StepsChanged(reason)
        self.stop(error)
        raise error

    def find(self, name: str, kind: bytes) -> NotedStep | None:
        """Return the noted step of this name; None = it was not noted.

        Raises:
            StepNotKept: there is no room for another note.
            StepsChanged: a step of another kind was noted.
        """
        noted = self._noted.get(name)
        if noted is not None and noted.kind != kind:
            self._refuse_notes(f"step {name!r} was noted as another kind of step: rename it")
        if noted is None and self._count >= MOST_STEPS:
            raise StepNotKept(
                f"step {name!r} has not begun: a job has at most {MOST_STEPS} steps: do more in one"
                " step, or enqueue another job for the rest"
            )
        return noted

    def encode(self, name: str, value: object) -> bytes:
        """Return a value as JSON.

        Raises:
            StepNotKept: it is not JSON, or too large for any job.
        """
        try:
            raw = encoded_value(value)
        except BadArgument as error:
            raise StepNotKept(f"step {name!r}: its value {error.reason}") from error
        self._check_size(name, raw)
        return raw

    def _check_size(self, name: str, raw: bytes) -> None:
        if self._bytes + _size_of(name, raw) > MOST_NOTES_BYTES:
            raise StepNotKept(
                f"step {name!r}: with its value of {len(raw)} bytes the steps of the job have more"
                f" than {MOST_NOTES_BYTES} bytes: return less"
            )

    def suspend(self, name: str, delay_ms: int) -> None:
        """End the run: the job sleeps. Without a server it does not, and the run goes on.

        Raises:
            StepNotKept: the note would be too large.
            Suspended: always, if there is a server.
        """
        raw = b"%d" % delay_ms
        self._check_size(name, raw)
        if self.job is None:
            self.keep(name, raw, SLEEP_STEP)
            return
        self._suspend(self.next_index, name, delay_ms)

    def _suspend(self, place: int, name: str, delay_ms: int) -> NoReturn:
        doing = f"waits for signal {name!r}, at most" if place == WAIT_PLACE else "sleeps for"
        verdict = Verdict("suspend", delay_ms, sleep=SleepNote(place, name))
        self._end_with(verdict, f"the job {doing} {delay_ms / 1000:g} s")

    def _end_with(self, verdict: Verdict, reason: str) -> NoReturn:
        self.suspension = Suspension(verdict)
        self._is_over = True
        raise Suspended(reason)

    def end_calls(self, name: str, jobs: tuple[NewJob[Any], ...]) -> list[bytes]:
        """Return the values of the jobs that a step calls. If some have not ended, end the run.

        Raises:
            StepNotKept: there is no room for the notes.
            StepsChanged: another step of this name was noted, or one that called other jobs.
            StepFailed: a job has ended without a value; the first one of these.
            Suspended: the jobs have to be called, or have not ended.
        """
        noted = self._noted.get(name)
        if noted is not None and noted.kind != CALL_STEP:
            self._refuse_notes(f"step {name!r} was noted as another kind of step: rename it")
        called, text = self._called.get(name, CalledSet()), print_of(jobs)
        if called and (changed := called.check(name, len(jobs), text)) is not None:
            self._refuse_notes(f"{changed}: rename it")
        missing = called.missing(len(jobs), self._voided)
        if missing or any(one.is_open for one in called.values()):
            self._check_room_to_call(name, len(missing))
            step = JobsOfStep(self.next_index, name, len(jobs), tuple(missing), text)
            new = tuple(jobs[part - 1] for part in missing)
            verdict = Verdict("suspend", sleep=None, calls=CallNote(step, new))
            self._end_with(verdict, f"the job waits for {len(jobs)} called by step {name!r}")
        for part in range(1, len(jobs) + 1):
            if called[part].has_failed:
                raise called[part].failure(name, self.job)
        return [called[part].text for part in range(1, len(jobs) + 1)]

    def given_value(self, name: str, total: int | None) -> Any:
        """Return the value of a step that calls jobs, without a server.

        Args:
            name: of the step.
            total: the number of its values; None = it has one.

        Raises:
            StepFailed: none was given.
        """
        given = self._outcomes.get(name)
        value: Any = None if given is None else decoded_value(given.value)
        if given is None or (total is not None and len(value) != total):
            many = "value is" if total is None else f"list of {total} values is"
            reason = f"no {many} among those given to Steps.local({{{name!r}: ...}})"
            raise StepFailed(name, job_id="", state="removed", error=reason)
        return value

    def _check_room_to_call(self, name: str, count: int) -> None:
        size = count * (CALL_FRAME_BYTES + len(name.encode()))
        if self._count + count > MOST_STEPS or self._bytes + size > MOST_NOTES_BYTES:
            raise StepNotKept(
                f"step {name!r} has not begun: a job has at most {MOST_STEPS} steps and called jobs"
                f", and {MOST_NOTES_BYTES} bytes of them: call fewer jobs, or use a batch"
            )

    def end_wait(self, name: str, timeout_ms: int) -> bytes:
        """Return the value of a signal. If there is no outcome yet, end the run: the job waits.

        Raises:
            StepNotKept: there is no room for the outcome.
            StepsChanged: a step of this name was noted.
            StepTimeout: no signal came in time; without a server: none was given.
            Suspended: there is no outcome.
        """
        if name in self._noted:
            self._refuse_notes(f"step {name!r} was noted as another kind of step: rename it")
        outcome = self._outcomes.get(name)
        if outcome is None and self.job is not None:
            self._check_room_to_wait(name)
            self._suspend(WAIT_PLACE, name, timeout_ms)
        if outcome is None:
            raise StepTimeout(f"signal {name!r} is not among the values of Steps.local")
        if outcome.kind == TIMEOUT:
            raise StepTimeout(f"no signal {name!r} came before the timeout of the wait")
        return outcome.value

    def _check_room_to_wait(self, name: str) -> None:
        size = TIMEOUT_FRAME_BYTES + len(name.encode())
        if self._count + self._timeouts >= MOST_STEPS or self._bytes + size > MOST_NOTES_BYTES:
            raise StepNotKept(
                f"wait {name!r} has not begun: a job has at most {MOST_STEPS} steps and timeouts of"
                f" waits, and {MOST_NOTES_BYTES} bytes of them: enqueue another job for the rest"
            )

    @property
    def next_index(self) -> int:
        """The index of the next note."""
        return self._count + 1

    def keep(self, name: str, raw: bytes, kind: bytes = RUN_STEP) -> None:
        """Keep the value of a step that was noted."""
        self._noted[name] = NotedStep(kind, raw)
        self._count += 1
        self._bytes += _size_of(name, raw)
        if self.job is not None:
            forget_failures(self.job)

    def check_outcome(self, outcome: int) -> None:
        """Raise an error if no other step may begin, by the answer of the server.

        Raises:
            RunEnded: the delivery has ended, or the job is cancelled.
        """
        if outcome == Code.DONE:
            return
        assert self.job is not None
        if outcome == Code.CANCELLED:
            self.job.cancelled = True
        else:
            self.job.lost = True
        self._end_run(is_cancelled=outcome == Code.CANCELLED)

    def _end_run(self, *, is_cancelled: bool) -> NoReturn:
        lost = "the delivery has ended: another worker may have the job"
        ended = RunEnded("the job is cancelled" if is_cancelled else lost)
        self.stop(ended)
        raise ended

    def stop(self, failure: BaseException) -> None:
        """End the run: no other step begins.

        Args:
            failure: the reason, which decides on the job unless it is the handler's own.
        """
        self._is_over = True
        if self._failure is None and isinstance(failure, (Exception, RunEnded)):
            self._failure = failure

    def raise_failure(self) -> None:
        """Raise what has ended the run, if anything has, whatever the handler has made of it."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


@name_methods("Steps")
class BaseSteps:
    """The part that `Steps` and `AsyncSteps` share.

    Attributes:
        is_async: whether its handlers are coroutine functions.
    """

    is_async: ClassVar[bool]

    def __init__(self, run: StepRun) -> None:
        self._run = run

    def key(self, name: str) -> str:
        """Return a key for this job and name: the same in each delivery, also after a redrive.

        Pass it to a service that does not do the work of one idempotency key twice.

        Args:
            name: such as that of the step: printable text of 1 to 200 bytes.

        Raises:
            BadArgument: the name can't be used.

        Examples:
            >>> from penstock import Steps
            >>> Steps.local().key("charge")
            'local-charge'
        """
        check_step_name(name)
        job = self._run.job
        return f"{'local' if job is None else job.stable_id}-{name}"

    def raise_failure(self) -> None:
        """Raise what has ended the run. Internal: a worker calls it."""
        self._run.raise_failure()

    @property
    def suspension(self) -> Suspension | None:
        """The wait with which the run ends. Internal: for the worker."""
        return self._run.suspension

    def __repr__(self) -> str:
        job = self._run.job
        return f"<{type(self).__name__} {'local' if job is None else job.id}>"


def steps_class(annotation: object) -> type[BaseSteps] | None:
    """Return the class of steps that a parameter with this annotation receives; None = no steps."""
    if typing.get_origin(annotation) in (Annotated, Union, types.UnionType):
        return next(filter(None, map(steps_class, typing.get_args(annotation))), None)
    if isinstance(annotation, type) and typing.get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseSteps) else None
    return None


def check_step_name(name: str) -> None:
    """Raise an error if a step can't have this name.

    Raises:
        BadArgument: not text of 1 to 200 bytes that can be printed.
    """
    check_party("name", name)


def refuse_awaitable(value: Any) -> NoReturn:
    """Refuse the value of an asynchronous function in a handler that can't await it.

    Raises:
        BadArgument: always.
    """
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python warns that it was never awaited
    reason = "must be awaited: make the handler a coroutine function, and annotate AsyncSteps"
    raise BadArgument("function", value, reason)


def decoded_value(raw: bytes) -> Any:
    """Return the value of a step."""
    return json.loads(raw)


def outcomes_in(text: bytes, voided: int) -> dict[str, NotedStep]:
    """Return the outcomes of waits; timeouts in the first `voided` bytes do not count.

    A name that is not UTF-8 is that of no wait of a handler.
    """
    outcomes, place = dict[str, NotedStep](), 0
    for line in text.split(b"\n")[1:]:
        name, kind, _, value = line.split(b"\t", 3)
        if kind == SIGNAL or place >= voided:
            outcomes[name.decode(errors="surrogateescape")] = NotedStep(kind, value)
        place += len(line) + 1
    return outcomes


def _size_of(name: str, raw: bytes) -> int:
    return NOTE_FRAME_BYTES + len(name.encode()) + len(raw)
