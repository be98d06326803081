"""Passwords at every place in URLs, and a search for them in errors."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator

from hypothesis import strategies as st

__all__ = ["MARKS", "URLS", "seen_in"]

MARKS = ("hunter2secret", "918273645", "correcthorse")
"""Parts of passwords: none of them may be shown."""
PASSWORDS = st.lists(
    st.sampled_from([*MARKS, *"/?#@:&=%[], \t+;'\"{}\\", "%2f", "password=", "é", "\u2100"]),
    min_size=1,
    max_size=7,
).map(lambda parts: MARKS[0] + "".join(parts) + MARKS[1])
FORMS = (
    "redis://:{}@127.0.0.1:1/0",
    "redis://ada:{}@127.0.0.1:1",
    "rediss://:{}@127.0.0.1:1/0",
    "redis://{}@127.0.0.1:1/0",
    "REDIS://:{}@127.0.0.1:1/0",
    "http://:{}@127.0.0.1:1/0",
    "redis:/:{}@127.0.0.1:1/0",
    ":{}@127.0.0.1:1",
    "unix://:{}@/nowhere/redis.sock",
    "redis://127.0.0.1:1/0?password={}",
    "redis://127.0.0.1:1/0?db=x&password={}",
    "redis://:{}@127.0.0.1:1/0?nonsense=1",
    "redis://:{}@127.0.0.1:99999/0",
    "redis+sentinel://:{}@127.0.0.1:1/jobs",
    "redis+sentinel://:{}@127.0.0.1:1,127.0.0.1:1/jobs/x",
    "redis+sentinel://127.0.0.1:1/jobs?sentinel_password={}",
)
NO_HOST = "redis://:{}"
"""The host is the part after the last @."""
URLS = st.builds(
    lambda form, password: form.format(password.replace("@", "") if form == NO_HOST else password),
    st.sampled_from((*FORMS, NO_HOST)),
    PASSWORDS,
)


def seen_in(error: BaseException) -> str:
    """Return everything that an error shows: texts, attributes, pickle, traceback, causes."""
    return "\n".join(_texts(error, set()))


def _texts(error: BaseException, seen: set[int]) -> Iterator[str]:
    if id(error) in seen:
        return
    seen.add(id(error))
    yield from (str(error), repr(error), repr(error.args), repr(vars(error)))
    yield pickle.dumps(error).decode("latin-1")
    yield "".join(traceback.format_exception_only(type(error), error))
    for other in (error.__cause__, error.__context__):
        if other is not None:
            yield from _texts(other, seen)
