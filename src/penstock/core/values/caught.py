"""Exceptions of user code, and why no object of penstock keeps one.

An exception refers to its traceback, which refers to each frame that it has passed. A frame refers
to its local variables and to the frame that called it. So a local variable that holds an exception
closes a reference cycle, in any function of the stack: the frame refers to the exception, and the
exception to the frame. The cycle keeps the variables of all these functions, such as 40 MB of data
of the handler, until the garbage collector runs. These rules avoid that:

- No variable holds an exception beyond its `except` clause. A function that catches the exception
  of user code does not even bind it: on Python 3.12 and earlier, a log handler that reads the
  variables of each frame, as Sentry does, leaves a copy of them in the frame.
- What is needed later, such as the text or the traceback as text, is computed at once. Its own
  `__str__` may raise: `message_of` and `summary_of` do not.
- An exception that is raised elsewhere is handed over in a list. `raise errors.pop()` empties it.
- Values that user code returns may be exceptions, or contain them. The same rules hold for them.
"""

from __future__ import annotations

import sys

__all__ = ["caught", "message_of", "summary_of"]


def caught() -> BaseException:
    """Return the exception of the `except` clause that calls this."""
    error = sys.exc_info()[1]
    assert error is not None, "no exception is being handled"
    return error


def message_of(error: BaseException) -> str:
    """Return the message of an exception; empty if its `__str__` fails, in whatever way."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001  # the __str__ of a user's class
        return ""


def summary_of(error: BaseException) -> str:
    """Return `TypeName: message`, or the type alone if there is no message."""
    return f"{type(error).__name__}: {message_of(error)}".removesuffix(": ")
