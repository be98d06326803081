"""What a handler says of its job, and what the worker does for it.

A handler that returns has done its job, one that raises has failed. The four results say something
else; each may be returned or raised, with the same effect.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from penstock.core.options import Duration, check_text, duration_ms

__all__ = ["ACK", "Done", "Reject", "Result", "Retry", "Snooze", "Verdict", "described"]

MAX_TEXT = 1024
"""Bytes of a text that the scripts keep with a job (protocol/core.md, Counters)."""


class Verdict(NamedTuple):
    """What the worker does with a delivery.

    Attributes:
        kind: "ack", "nack", "release" or "bury".
        delay_ms: until the next try; -1 = the script decides, by the job's or the queue's policy.
        text: error or reason, at most 1024 bytes.
        window_ms: of an ack: the window of the job's dedup id for this end; None = the job's own.
        is_asked: whether the handler has said when the next try is due.
    """

    kind: str
    delay_ms: int = -1
    text: str = ""
    window_ms: int | None = None
    is_asked: bool = False


ACK = Verdict("ack")
"""The usual one. There is one such object, so that `verdict is ACK` tells it quickly."""


class Result(Exception):
    """What became of a job: `Done`, `Retry`, `Snooze` or `Reject`; returned or raised by a handler.

    Two results are equal when they are of one class and do the same.

    Attributes:
        verdict: what the worker does.
    """

    verdict: Verdict = ACK

    def __init__(self, *args: Any) -> None:
        if type(self) is Result:
            raise TypeError("one of Done, Retry, Snooze, Reject")
        super().__init__(*args)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Result):
            return NotImplemented
        return type(self) is type(other) and self.verdict == other.verdict

    def __hash__(self) -> int:
        return hash((type(self), self.verdict))

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), self.args)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(repr(arg) for arg in self.args)})"

    def __str__(self) -> str:
        return repr(self)


class Done(Result):
    """The job is finished, as if the handler had returned None.

    Args:
        dedup_window: seconds for which the job's dedup id stays taken from now on; 0 = it is free
            at once; None = the window that the job was given.

    Raises:
        BadArgument: not a duration.
    """

    def __init__(self, dedup_window: Duration | None = None) -> None:
        super().__init__(dedup_window)
        if dedup_window is not None:
            self.verdict = Verdict("ack", window_ms=duration_ms("dedup_window", dedup_window))


class Retry(Result):
    """The attempt failed, and the job is tried again; dead when its attempts are used up.

    Raised `from` another exception, that one is what policies look at, and gives the text if there
    is none.

    Args:
        after: seconds until the next try; None = by the policy.
        error: what went wrong; kept with the job, at most 1024 bytes.

    Raises:
        BadArgument: not a duration, or not a text.
    """

    def __init__(self, after: Duration | None = None, error: str = "") -> None:
        super().__init__(after, error)
        delay_ms = -1 if after is None else duration_ms("after", after)
        self.verdict = Verdict("nack", delay_ms, check_text("error", error, limit=MAX_TEXT))

    def __repr__(self) -> str:
        after, error = self.args
        shown = [] if after is None else [f"after={after!r}"]
        shown += [f"error={error!r}"] if error else []
        return f"{type(self).__name__}({', '.join(shown)})"


class Snooze(Result):
    """The job is not done, and nothing is wrong: it is put off, and no attempt is charged.

    Args:
        seconds: until it may be delivered again.

    Raises:
        BadArgument: not a duration.
    """

    def __init__(self, seconds: Duration) -> None:
        super().__init__(seconds)
        self.verdict = Verdict("release", duration_ms("seconds", seconds))


class Reject(Result):
    """The job is given up: it becomes a dead letter.

    Args:
        reason: kept with the job, at most 1024 bytes.

    Raises:
        BadArgument: not a text.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict("bury", text=check_text("reason", reason, limit=MAX_TEXT))


def described(error: BaseException) -> str:
    """`TypeName: message`, cut to 1024 bytes. An exception that can't be shown gives its name."""
    name = type(error).__name__
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # the __str__ of a user's class
        message = ""
    return check_text("error", f"{name}: {message}" if message else name, limit=MAX_TEXT)
