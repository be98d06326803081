"""Values that the rules of the model draw, and the faults that strike their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.faults import Fault
from tests.model.jobs import Policy

__all__ = [
    "ACTIONS",
    "ACTS",
    "AMONG",
    "DELAYS",
    "ENDS",
    "FAULTS",
    "ID_ACTIONS",
    "ID_START",
    "KEYS",
    "LEASES",
    "LIMITS",
    "MODES",
    "NAMES",
    "PICKS",
    "POLICIES",
    "PROVISIONAL",
    "RETRY",
    "SETTINGS",
    "SHAPES",
    "SIDES",
    "SPANS",
    "TTLS",
    "UNDISTURBED",
    "UNTIL",
    "WAITING",
    "WINDOWS",
    "WRONG",
    "Acts",
    "Shape",
    "call",
]

WRONG = 19 * 365 * 86_400_000
"""Offsets of a wrong clock in ms."""

DELAYS = st.sampled_from([0, 0, 0, 1, 50, 3_000, 4_000, 60_000])
TTLS = st.sampled_from([None, None, None, 1, 60, 2_000, 70_000])
KEYS = st.sampled_from(["", "", "", "a", "a", "b", "mixed"])
"""The key of the jobs of a call; or several of them."""
LEASES = st.sampled_from([None, None, 0, 1, 1_000, 5_000])
PROVISIONAL = (1, 8)
"""Tags of the reserves that deliver suspects provisionally."""
SPANS = st.sampled_from([1, 9, 100, 999, 1_000, 1_001, 3_000, 3_000, 10_000, 61_000, 900_000])
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "lease": st.sampled_from([None, 1, 2_000, 60_000]),
        "max_length": st.sampled_from([None, None, 1, 3, 6]),
        "max_attempts": st.sampled_from([None, 0, 1, 2, 4]),
        "max_crashes": st.sampled_from([None, 0, 1, 2]),
        "max_releases": st.sampled_from([None, 0, 1, 2]),
        "max_snoozes": st.sampled_from([None, 0, 1, 2]),
        "replicas": st.sampled_from([None, 0]),
        "backoff_base": st.sampled_from([None, 1, 100]),
        "backoff_cap": st.sampled_from([None, 1, 300]),
        "dead_max": st.sampled_from([None, 0, 1, 3]),
        "dead_age": st.sampled_from([None, 1, 5_000]),
        "rate": st.sampled_from([None, None, 1, 1_000, 3_000, 20_000]),
        "burst": st.sampled_from([None, 1, 3]),
        "per_key": st.sampled_from([None, None, 1, 2]),
        "share": st.sampled_from([None, 1, 1, 2]),
        "ordered": st.sampled_from([None, None, 1]),
        "max_active": st.sampled_from([None, None, 1, 2, 3]),
        "key_rate": st.sampled_from([None, None, 1, 100, 3_000]),
        "key_burst": st.sampled_from([None, 1, 3]),
    },
)
MODES = {
    "refuse": "", "update": "u", "debounce": "ud", "requeue": "q", "requeue+update": "uq",
    "requeue+debounce": "udq",
}  # fmt: skip
"""Ways to handle a duplicate, and their letters in scripts."""
NAMES = st.lists(st.sampled_from([0, 0, 0, 1, 1, 2]), min_size=1, max_size=4)
"""Indexes of dedup ids; one may be repeated."""
WINDOWS = st.sampled_from([None, None, 1, 3_000, 60_000])
POLICIES: list[Policy | None] = [
    None, (1, None, None, None), (None, 1, 300, None), (2, 100, None, 1), (0, None, 1, None),
    (None, None, None, None), (None, None, None, 9), (None, None, None, 4), (None, None, None, 0),
]  # fmt: skip
"""Retry policies of jobs, attempts, base and cap; and their priorities."""
RETRY = st.sampled_from([None, None, None, None, None, None, *POLICIES])
ENDS = st.sampled_from([None, None, 0, 1, 3_000])
"""Windows given with an ack."""
UNTIL = st.sampled_from(["finished", "finished", "finished", "started", "enqueued"])
FAULTS: st.SearchStrategy[Fault] = st.sampled_from(
    ["", "", "", "before", "after", "flushed", "token lost", "token lost"]
)
PICKS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5]),
        st.sampled_from(["receipt", "receipt", "old receipt", "id"]),
    ),
    min_size=1,
    max_size=4,
)
"""Jobs to name: which of the known ones, and how; one may be repeated."""
Shape: TypeAlias = list[tuple[str, int | None, int | None, Policy | None]]
WAITING = {"ready": 0, "due": 1, "delayed": 3_000}
"""Fates of jobs that are not delivered, and their delay."""
SHAPES = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *WAITING,
                "held",
                "held",
                "ended",
                "once",
                "once",
                "dead",
                "dead",
                "failed",
                "returned",
            ]
        ),
        st.sampled_from([None, None, 2_500, 60_000]),
        st.sampled_from([None, None, None, 20_000, 70_000]),
        RETRY,
    ),
    max_size=9,
)
"""Jobs with their fate, lease, ttl and policy."""
ACTIONS: dict[str, dict[str, Sequence[Any]]] = {
    "ack": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "window": [None, 0, 3_000],
    },
    "begin_to_wait": {"tag": [4, 6]},
    "bury": {"picks": [0], "among": [["active"], ["dead", "scheduled"]], "reason": ["why"]},
    "claim": {
        "how": ["refuse", "requeue", "requeue+update", "debounce", "update", "requeue+debounce"],
        "ttl": [None, 4_000, 3_500, 70_000],
        "delay": [0, 0, 2_000, 5_000],
        "window": [3_000, None],
        "names": [[0], [0], [1], [0, 1, 0]],
        "until": ["finished", "finished", "started", "finished", "enqueued"],
        "lease": [None, 0, None, 1_000],
        "many": [False, True],
        "retry": POLICIES,
        "bound": [None],
        "key": ["", "a", "b"],
    },
    "cancel": {"picks": [0]},
    "clear": {},
    "close": {"closed": [True, True, False]},
    "delete": {"picks": [0]},
    "evict": {"n": [1, 2, 3], "dead": [True]},
    "extend": {"picks": [0], "lease": [80_000, None, 1, 3_000], "late": [False]},
    "extend_at_half": {"pick": [0, 1], "after": [0, 1, 0]},
    "look": {},
    "nack": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "delay": [0, 900_000, 3_000, None],
        "error": ["no"],
    },
    "pause": {"side": ["", "in", "out", "", "all"]},
    "postpone": {"picks": [0]},
    "promote": {"picks": [0]},
    "recover": {"n": [1, 1, 2, 3], "idle": [0, 0, 2], "tag": [1, 9]},
    "redrive": {"picks": [None, 0], "limit": [1, 2]},
    "release": {
        "picks": [0],
        "among": [["active"], ["dead", "scheduled"]],
        "delay": [0, 900_000, 0],
    },
    "reserve": {"n": [1, 2, 3], "tag": [2, 8]},
    "settle": {"picks": [0], "n": [1, 3], "tag": [3, 7]},
    "sweep": {"compacts": [True, False]},
    "time_comes": {"pick": [0, 0, 1, 2], "early": [0]},
    "time_passes": {"span": [3_000, 4_000, 4_000, 1, 4_000, 60_000]},
    "wake_up": {"n": [1, 1, 2, 0], "tag": [5, 1]},
    "withdraw": {"picks": [0]},
}
"""Actions on jobs, with the values of their arguments; the jobs are drawn."""
UNDISTURBED = ("begin_to_wait", "extend_at_half", "time_comes", "time_passes", "wake_up")
"""Those without faults."""
Acts: TypeAlias = list[tuple[str, list[tuple[int, str]], int]]
ACTS = st.lists(
    st.tuples(st.sampled_from(sorted(ACTIONS)), PICKS, st.integers(0, 9999)), max_size=8
)
"""Several actions in turn."""
ID_ACTIONS = (
    *["claim"] * 14,
    *["reserve"] * 6,
    *["ack", "settle", "nack", "release", "bury", "bury", "redrive", "redrive"],
    *["cancel", "delete", "withdraw", "evict", "promote", "recover", "look", "sweep"],
    *["time_comes", "time_passes"] * 3,
)
"""Actions on jobs with dedup ids; a frequent one is listed more than once."""
ID_START = ("claim", "reserve", "claim", "time_passes", "claim", "redrive")
"""Actions that begin a sequence of jobs with dedup ids."""
SIDES = st.sampled_from(["", "", "", "in", "out", "all", "closed", "closed", "drained"])
"""Sides that are paused, or closed, during the actions."""
AMONG = st.sampled_from([("active", "once"), ("active", "once"), ("scheduled", "dead")])
"""Which jobs to pick first."""
LIMITS = st.sampled_from(
    [
        {},
        {"max_crashes": 1},
        {"max_crashes": 1, "max_attempts": 2},
        {"max_crashes": 2},
        {"max_releases": 1},
        {"max_snoozes": 1},
        {"max_crashes": 0},
        {"per_key": 1},
        {"share": 1},
        {"share": 1, "per_key": 2},
        {"ordered": 1},
        {"max_active": 1},
        {"max_active": 2, "share": 1},
        {"key_rate": 3_000},
        {"key_rate": 1_000, "key_burst": 2, "per_key": 1},
        {"key_rate": 1_000, "ordered": 1},
    ]
)
"""Limits that most runs meet."""


def call(**arguments: Any) -> Callable[[Callable[..., None]], Any]:
    """Return a rule whose call may meet a failing connection, or a server without scripts."""

    def made(method: Callable[..., None]) -> Any:
        def with_fault(self: Any, fault: Fault, **values: Any) -> None:
            self.fault = fault
            method(self, **values)

        with_fault.__name__, with_fault.__doc__ = method.__name__, method.__doc__
        make: Any = rule(fault=FAULTS, **arguments)
        return make(with_fault)

    return made
