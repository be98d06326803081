"""The driver of a drain, without Spark."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from penstock import BadArgument, Penstock, RetryPolicy
from penstock.core.values.ids import parse_id
from penstock.spark import Drained, OptionError, drain, drain_driver
from penstock.spark.drain_results import DrainOutput
from penstock.spark.errors import Unreachable
from penstock.worker.handlers import Handlers


def nothing(job: Any) -> None:
    """Do nothing."""


class Session:
    """A SparkSession whose tasks are not run: it has their arguments and makes up their figures."""

    def __init__(self, *figures: str) -> None:
        self.figures, self.ranges, self.works = figures, list[Any](), list[Any]()

    def range(self, *args: int) -> Session:
        self.ranges.append(args)
        return self

    def mapInArrow(self, run: Any, _: str) -> Session:  # noqa: N802  # Spark's name
        self.works.append(run.__self__)
        return self

    def collect(self) -> list[tuple[str]]:
        return [(one,) for one in self.figures]


@pytest.mark.parametrize(
    "given, ranges, shares",
    [
        ({}, (1 << 16,), ()),
        ({"parallelism": 3}, (0, 3, 1, 3), ()),
        ({"parallelism": 3, "max_jobs": 10}, (0, 3, 1, 3), (3, 3, 4)),
        ({"parallelism": 3, "max_jobs": 2}, (0, 3, 1, 3), (0, 1, 1)),
    ],
)
def test_tasks_and_their_shares(
    redis_url: str, given: dict[str, int], ranges: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    """There is a partition for each task, and `max_jobs` is divided; their figures are added."""
    spark = Session("9 1 2 3 1 2 1", "5 5 0 0 0 0 0")
    report = drain(spark, queue="mail", handler=nothing, url=redis_url, **given)  # type: ignore[arg-type]  # a dict
    assert report == Drained(taken=14, done=6, failed=2, dead=3, released=1, lost=2)
    assert spark.ranges == [ranges]
    [work] = spark.works
    assert (work.shares, work.batch_size, work.output) == (shares, 500, None)


@pytest.mark.parametrize("size", [None, 7])
@pytest.mark.parametrize("retry", [None, RetryPolicy(max_attempts=1)])
def test_a_function_becomes_a_handler(
    redis_url: str, size: int | None, retry: RetryPolicy | None
) -> None:
    """It is called for every job, or for lists of up to `size` jobs, and has the policy."""
    spark = Session()
    drain(spark, queue="mail", handler=nothing, url=redis_url, size=size, retry=retry)
    [handler] = spark.works[0].handlers
    assert (handler.name, handler.size, handler.retry) == (None, size, retry)


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"ack": "never"}, "ack"),
        ({"parallelism": 0}, "parallelism"),
        ({"batch_size": 1001}, "batch_size"),
        ({"max_jobs": 5}, "max_jobs"),
        ({"size": 0}, "size"),
        ({"handler": 5}, "handler"),
        ({"handler": None}, "handler"),
        ({"handler": Handlers()}, "handler"),
        ({"handler": Handlers(), "size": 3}, "size"),
        ({"ack": "output"}, "path"),
        ({"path": "out"}, "path"),
        ({"schema": "x int"}, "schema"),
        ({"ack": "output", "path": "out", "hold": 179}, "hold"),
        ({"ack": "output", "path": "out", "round_time": 0}, "round_time"),
        ({"ack": "output", "path": ""}, "path"),
        ({"handler": Handlers(), "retry": RetryPolicy()}, "retry"),
        ({"max_jobs": 0}, "max_jobs"),
        ({"maxJobsPerTrigger": 5}, "maxJobsPerTrigger"),
        ({"secret": "hidden"}, "secret"),
        ({"url": "nonsense"}, "url"),
        ({"queue": ""}, "queue"),
    ],
)
def test_bad_arguments_are_named(redis_url: str, changes: dict[str, Any], named: str) -> None:
    """An error before the first task has the argument, but not the value of an unknown one."""
    arguments = {"queue": "mail", "handler": nothing, "url": redis_url, **changes}
    with pytest.raises(BadArgument) as caught:
        drain(None, **arguments)
    assert caught.value.argument == named
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    "max_jobs, rounds, lefts",
    [
        (None, [(3, 1), (2, 0)], [None, None]),
        (5, [(3, 1), (2, 1)], [5, 2]),
        (1, [(0, 1)], [1]),  # a task without a share is cut
    ],
)
def test_rounds_end(
    ps: Penstock,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    max_jobs: int | None,
    rounds: list[tuple[int, int]],
    lefts: list[int | None],
) -> None:
    """Rounds end when no task was cut, none has taken a job, or all `max_jobs` are taken."""
    told = list[Any]()
    fields = [pa.field("result", pa.string())]

    def one_round(self: Any, run: str, schema: str, left: int | None) -> Counter[str]:
        told.append((self.work, run, schema, left))
        taken, cut = rounds[len(told) - 1]
        return Counter(taken=taken, done=taken, cut=cut)

    monkeypatch.setattr(drain_driver._DrainJob, "_run_round", one_round)
    monkeypatch.setattr(drain_driver, "_fields", lambda _: fields)  # it needs a JVM
    report = drain(
        *(None,), queue="mail", handler=nothing, url=redis_url, ack="output", path="out/",
        parallelism=2, max_jobs=max_jobs, hold=3, round_time=1,
    )  # fmt: skip
    works, runs, schemas, given = zip(*told, strict=True)
    assert list(given) == lefts
    assert set(schemas) == {"result string"}
    assert works[0].output == DrainOutput(fields, True, 1.0, 3000)
    ps.queue("mail").enqueue(1)
    [view] = ps.queue("mail").jobs()
    assert works[0].expected == (parse_id(view.id).node,)
    assert report == Drained(*2 * [sum(taken for taken, _ in rounds)], runs=runs)
    assert re.fullmatch("out/run=[0-9]{8}T[0-9]{6}-[0-9a-f]{6}-0000", runs[0])
    assert len(set(runs)) == len(runs)


def test_coroutines_are_refused(redis_url: str) -> None:
    """Coroutine functions are refused, as a task would not run them."""

    async def later(job: Any) -> None:
        """Never run."""

    with pytest.raises(BadArgument, match="coroutines"):
        drain(None, queue="mail", handler=later, url=redis_url)


def test_an_unreachable_server_is_reported_by_the_driver() -> None:
    """An unreachable server raises before a task starts."""
    with pytest.raises(Unreachable):
        drain(None, queue="mail", handler=nothing, url="redis://127.0.0.1:1", retryFor="0s")


def test_no_server_is_usual() -> None:
    """A server must be named."""
    with pytest.raises(OptionError, match="url"):
        drain(None, queue="mail", handler=nothing)
