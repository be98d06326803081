"""Executors as workers: a Spark job that does the jobs of a queue until none is left."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from penstock.core.options import BATCH, Duration, check_count, duration_ms
from penstock.core.policy import RetryPolicy
from penstock.errors import BadArgument
from penstock.spark import connect
from penstock.spark.drain_task import COUNTS, KEYS, Acking, Tally, Working
from penstock.spark.options import Connection
from penstock.worker.handlers import Handlers

__all__ = ["Drained", "drain"]

FIGURES = ", ".join(f"_{name} bigint" for name in COUNTS)


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain has done.

    A task that was lost has not told: the jobs that it had acknowledged are done, and not counted.

    Attributes:
        taken: deliveries, of which each is one of the others.
        done: acknowledged.
        failed: to be tried again, by the policy.
        dead: dead letters now.
        released: given back without a failure.
        lost: the lease ended before the job was settled: others do it, or have done it.
        runs: where the results are, one directory a round, with `ack="output"`.
    """

    taken: int = 0
    done: int = 0
    failed: int = 0
    dead: int = 0
    released: int = 0
    lost: int = 0
    runs: tuple[str, ...] = ()


def drain(
    spark: Any,
    *,
    queue: str,
    handler: Callable[[Any], Any] | Handlers,
    ack: str = "task",
    path: str | None = None,
    schema: str | None = None,
    parallelism: int | None = None,
    size: int | None = None,
    batch_size: int = 500,
    max_jobs: int | None = None,
    retry: RetryPolicy | None = None,
    round_time: Duration = 60,
    hold: Duration = 600,
    **options: Any,
) -> Drained:
    """Run a handler for each job of a queue on Spark's executors, until there is none to be taken.

    Jobs that fail are nacked: they are tried again later, or dead, as with a `Worker`. Jobs that
    are not due when the queue is empty are left to the next drain.

    Args:
        spark: a SparkSession, classic or Connect.
        queue: the queue's name.
        handler: a function that is called with a job, on an executor; or `Handlers`.
        ack: "task" = a job is acknowledged when its handler has returned: for handlers whose effect
            is elsewhere. "output" = when what it returned is safe, as parquet: at least once.
        path: of an output: the directory of the results. Each round adds `run=<name>` to it, with
            the columns `id`, `receipt`, `attempt`, `dedup_window_ms` and those of `schema`.
        schema: of an output: columns of what handlers return (a value, a tuple or a dict), as DDL;
            default `result string`, which holds texts, and others as JSON.
        parallelism: how many tasks; None = Spark's default.
        size: the function is called with a list of up to so many jobs; see `Handlers.batch`.
        batch_size: most jobs that a task takes at once.
        max_jobs: most jobs of all tasks; each has an equal part.
        retry: when failures of the function are tried again.
        round_time: of an output: seconds after which results are made safe and acknowledged.
        hold: of an output: seconds for which the lease of a finished job holds, renewed while its
            task runs: longer than any one call, and the writing, take.
        **options: of the connection, as for `format("penstock")`: `url`, `urlEnv`, `passwordEnv` …

    Returns:
        What became of the jobs.

    Raises:
        BadArgument: an argument or option can't be used; nothing was done.
        Unreachable: no server is reached.
    """
    connection = _connection(queue, options)
    if ack not in ("task", "output"):
        raise BadArgument("ack", ack, "task or output")
    work = Working(
        connection,
        _expected(spark, connection),
        _handlers(handler, size, retry),
        check_count("batch_size", batch_size, high=BATCH),
    )
    tasks = None if parallelism is None else check_count("parallelism", parallelism, high=10_000)
    if max_jobs is not None:
        check_count("max_jobs", max_jobs)
        if tasks is None:
            raise BadArgument("max_jobs", max_jobs, "needs parallelism= as well")
    if ack == "task":
        if path is not None or schema is not None:
            raise BadArgument("path" if path else "schema", path or schema, "for ack='output'")
        return _DrainJob(spark, work, tasks, max_jobs).once()
    if not isinstance(path, str) or not path:
        raise BadArgument("path", path, "is required: the directory of the results")
    seconds = duration_ms("round_time", round_time, zero=False) / 1000
    work = replace(
        work,
        fields=_fields(schema),
        usual=schema is None,
        seconds=seconds,
        hold=duration_ms("hold", hold, zero=False) / 1000,
    )
    if work.hold < 2 * seconds:
        raise BadArgument("hold", hold, f"must be at least twice round_time ({seconds} s)")
    return _DrainJob(spark, work, tasks, max_jobs).rounds(path, schema or "result string")


@dataclass
class _DrainJob:
    """A drain, on the driver."""

    spark: Any
    work: Working
    tasks: int | None
    max_jobs: int | None

    def once(self) -> Drained:
        """Acknowledge in the tasks."""
        made = self._input().mapInArrow(self._task(self.max_jobs), FIGURES)
        return _sum(made.collect())

    def rounds(self, path: str, schema: str) -> Drained:
        """Write, then acknowledge, until the queue is empty."""
        total, runs = Drained(), list[str]()
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        while True:
            left = None if self.max_jobs is None else self.max_jobs - total.taken
            run = f"{path.rstrip('/')}/run={name}-{len(runs):04d}"
            found, more = self._round(run, schema, left)
            runs.append(run)
            total = _added(total, found)
            if not more or found.taken == 0 or (left is not None and found.taken >= left):
                return replace(total, runs=tuple(runs))

    def _round(self, run: str, schema: str, left: int | None) -> tuple[Drained, bool]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        told = Observation()
        wanted = f"{KEYS}, {schema}"
        made = self._input().mapInArrow(self._task(left), f"{wanted}, {FIGURES}")
        sums = [f.sum(f"_{name}").alias(name) for name in COUNTS]
        made = made.observe(told, *sums).where("id IS NOT NULL")
        made.drop(*(f"_{name}" for name in COUNTS)).write.parquet(run)
        counted = {name: value or 0 for name, value in told.get.items()}
        rows = self.spark.read.schema(wanted).parquet(run)
        acking = Acking(self.work.connection, self.work.expected)
        keys = rows.select("id", "receipt", "dedup_window_ms")
        acked = _sum(keys.mapInArrow(_function(acking), FIGURES).collect())
        more = counted.pop("cut") > 0
        return _added(_drained(counted), acked), more

    def _input(self) -> Any:
        """A row for each task, with its number."""
        if self.tasks is None:
            return self.spark.range(1 << 16)  # in as many partitions as Spark likes
        return self.spark.range(0, self.tasks, 1, self.tasks)

    def _task(self, limit: int | None) -> Callable[[Any], Any]:
        """What each task does, with its part of what may be taken."""
        shares: tuple[int, ...] = ()
        if limit is not None and self.tasks is not None:
            shares = tuple((limit + at) // self.tasks for at in range(self.tasks))
        return _function(replace(self.work, shares=shares))


def _function(work: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A plain function: Spark looks at it as at one."""

    def task(batches: Any) -> Any:
        return work(batches)

    return task


def _connection(queue: Any, options: dict[str, Any]) -> Connection:
    given = {name: _text(value) for name, value in options.items() if value is not None}
    known = Connection.options()
    for name in given:
        if name.lower() not in known:
            raise BadArgument(
                name, "<not shown>", "is neither an argument of drain nor a connection option"
            )
    return Connection.parse({**given, "queue": queue})


def _text(value: Any) -> str:
    """As Spark hands options over."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _expected(spark: Any, connection: Connection) -> tuple[str, ...]:
    """The nodes that are reached from here; through Connect "here" is not Spark's driver."""
    if "connect" in type(spark).__module__:
        return ()
    return connect.identity(connection)


def _handlers(handler: Any, size: int | None, retry: RetryPolicy | None) -> Handlers:
    """The set that the tasks are given.

    Raises:
        BadArgument: no handler, or a coroutine function.
    """
    if isinstance(handler, Handlers):
        if size is not None or retry is not None:
            name = "retry" if size is None else "size"
            raise BadArgument(
                name, retry or size, "belongs to each handler of the set: pass it there"
            )
        made = handler
    else:
        made = Handlers()
        if size is None:
            made.handler(retry=retry)(handler)
        else:
            made.batch(size=size, retry=retry)(handler)
    made.check()
    for one in made:
        if one.is_async:
            raise BadArgument(
                "handler", one, "must be a plain function: only AsyncWorker runs coroutines"
            )
    if not list(made):
        raise BadArgument(
            "handler", handler, "must be a function, or Handlers with at least one handler"
        )
    return made


def _fields(schema: str | None) -> Any:
    """The Arrow fields of a schema.

    Raises:
        BadArgument: not DDL, or a column that has its name from us.
    """
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    try:
        found = StructType.fromDDL(schema or "result string")
        made = to_arrow_schema(found)
    except Exception as error:  # noqa: BLE001  # of the JVM, or of the far end of Connect
        raise BadArgument(
            "schema", schema, f"must be columns as DDL: {_first_line(error)}"
        ) from None
    taken = {part.split()[0] for part in KEYS.split(", ")} | {f"_{name}" for name in COUNTS}
    for name in made.names:
        if name.lower() in taken or made.names.count(name) > 1:
            raise BadArgument("schema", schema, f"has the column {name!r} twice")
    return list(made)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _sum(rows: list[Any]) -> Drained:
    total = Tally()
    for row in rows:
        for name, value in zip(COUNTS, row, strict=True):
            setattr(total, name, getattr(total, name) + value)
    counts = vars(total)
    del counts["cut"]
    return _drained(counts)


def _added(one: Drained, other: Drained) -> Drained:
    names = [each.name for each in fields(Drained) if each.name != "runs"]
    return _drained({name: getattr(one, name) + getattr(other, name) for name in names})


def _drained(counts: Mapping[str, Any]) -> Drained:
    return Drained(**counts)
