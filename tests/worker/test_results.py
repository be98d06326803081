"""Results of handlers: checked when constructed, comparable, copyable."""

from __future__ import annotations

import copy
import math
import pickle
from datetime import timedelta
from typing import Any

import pytest

from penstock import BadArgument, Handlers
from penstock.core.enqueuing.next_jobs import NextJobs
from penstock.worker import ACK, Done, Reject, Result, Retry, Snooze, Verdict
from penstock.worker.lifespan import LifespanError
from penstock.worker.results import described
from penstock.worker.target import NoWorker

HANDLERS = Handlers()


@HANDLERS.handler
def resize(path: str) -> None:
    """Take an argument."""


RESULTS: list[tuple[Result, Verdict, str]] = [
    (Done(), ACK, "Done()"),
    (Done({"a": 1}), ACK, "Done({'a': 1})"),
    (Done(dedup_window=60), Verdict("ack", window_ms=60_000), "Done(dedup_window=60)"),
    (Done(dedup_window=0), Verdict("ack", window_ms=0), "Done(dedup_window=0)"),
    (
        Done(5, then=(resize.job("a"),)),
        Verdict("ack", then=NextJobs((resize.job("a"),))),
        f"Done(5, then=[{resize.job('a')!r}])",
    ),
    (Retry(), Verdict("nack"), "Retry()"),
    (Retry(0), Verdict("nack", 0), "Retry(after=0)"),
    (Retry(1.5, "busy"), Verdict("nack", 1500, "busy"), "Retry(after=1.5, error='busy')"),
    (Retry(error="busy"), Verdict("nack", -1, "busy"), "Retry(error='busy')"),
    (
        Snooze(timedelta(seconds=2)),
        Verdict("release", 2000),
        "Snooze(datetime.timedelta(seconds=2))",
    ),
    (Reject("no"), Verdict("bury", text="no"), "Reject('no')"),
]


@pytest.mark.parametrize("result, verdict, text", RESULTS)
def test_effects_of_results(result: Result, verdict: Verdict, text: str) -> None:
    """Each result has one effect, and its repr shows its arguments."""
    assert result.verdict == verdict
    assert repr(result) == str(result) == text


@pytest.mark.parametrize("result", [result for result, *_ in RESULTS])
def test_results_can_be_copied_and_pickled(result: Result) -> None:
    """Copied and pickled results are equal and keep their exception."""
    for twin in (pickle.loads(pickle.dumps(result)), copy.copy(result), copy.deepcopy(result)):
        assert twin == result
        assert hash(twin) == hash(result)
        assert repr(twin) == repr(result)


def test_equality() -> None:
    """Results are equal by class and effect, with seconds in any form."""
    assert Retry(after=5) == Retry(timedelta(seconds=5))
    assert Retry(5) != Retry(6)
    assert Retry(5) != Retry(5, "busy")
    assert Done() != Retry()
    assert Done() != ACK
    assert Done(1) != Done(2)
    assert Done(then=[resize.job("a")]) == Done(then=resize.jobs(["a"]))
    assert Done(then=[resize.job("a")]) != Done(then=[resize.job("b")])
    assert {Snooze(5), Snooze(5), Snooze(6)} == {Snooze(6), Snooze(5)}


def test_success_is_one_object() -> None:
    """`Done()` without arguments is the single success object."""
    assert Done().verdict is ACK


@pytest.mark.parametrize(
    "make, argument",
    [
        (lambda: Done(dedup_window=-1), "dedup_window"),
        (lambda: Done(dedup_window="5"), "dedup_window"),  # type: ignore[arg-type]
        (lambda: Done(then=resize.job("a")), "then"),
        (lambda: Done(then=["a"]), "then"),
        (lambda: Done(then=[resize.job("a")] * 17), "then"),
        (lambda: Done(then=[resize.options(dedup_id="x").job("a")]), "dedup_id"),
        (lambda: Done(then=[resize.options(replicas=1).job("a")]), "replicas"),
        (lambda: Done(then=[resize.options(max_length=1).job("a")]), "max_length"),
        (lambda: Retry(-1), "after"),
        (lambda: Retry(math.nan), "after"),
        (lambda: Retry(True), "after"),
        (lambda: Retry(5, ValueError("x")), "error"),
        (lambda: Snooze(None), "seconds"),
        (lambda: Snooze(math.inf), "seconds"),
        (lambda: Reject(None), "reason"),
        (lambda: Reject(b"no"), "reason"),
    ],
)
def test_bad_arguments(make: Any, argument: str) -> None:
    """A bad argument is refused by name when the result is constructed."""
    with pytest.raises(BadArgument) as caught:
        make()
    assert caught.value.argument == argument


def test_the_base_class_of_results() -> None:
    """The base class can't be constructed; a subclass of the user is success."""
    with pytest.raises(TypeError, match="one of Done"):
        Result()

    class Stored(Result):
        pass

    assert Stored("there").verdict is ACK


def test_texts_are_cut() -> None:
    """Texts are cut as the script does, between characters."""
    assert len(Reject("x" * 5000).verdict.text) == 1024
    assert len(Retry(error="ä" * 5000).verdict.text) == 512


def test_the_text_of_an_error() -> None:
    """The text of an error is type and message, or the type alone."""

    class Shy(Exception):
        def __str__(self) -> str:
            raise SystemExit

    assert described(ValueError("a\nb")) == "ValueError: a\nb"
    assert described(KeyError()) == "KeyError"
    for text in (
        described(Shy()),
        str(LifespanError(print, "start", Shy())).partition(": ")[2],
        str(NoWorker.from_error("", Shy())).partition(": ")[2],
    ):
        assert text == "Shy"
    assert described(ValueError("\ud800")) == "ValueError: ?"
    assert len(described(ValueError("ä" * 5000)).encode()) <= 1024
