"""Executors as workers: a Spark job that processes the jobs of a queue until it is empty."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal

from pyarrow import Field

from penstock.core.values.checks import (
    BATCH,
    Duration,
    check_choice,
    check_count,
    duration_ms,
    lease_ms,
)
from penstock.core.values.policy import RetryPolicy
from penstock.errors import BadArgument
from penstock.spark.drain_acks import AckTask
from penstock.spark.drain_results import KEYS_SCHEMA, DrainOutput
from penstock.spark.drain_task import FIGURE_NAMES, DrainTask
from penstock.spark.options import Connection
from penstock.spark.shards import open_on_driver
from penstock.worker.handlers import Handlers
from penstock.worker.options import check_handlers, refuse_coroutines

__all__ = ["Drained", "drain"]

KEYS_DDL = "id string, attempt int, receipts string"
Ack = Literal["task", "output"]
"""When a job is acknowledged: after its handler, or after its result is written."""
FIGURES_DDL = "receipts string"
SUCCESS_FILE = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
RESERVED_COLUMNS = ("id", "receipts")
"""Columns whose values do not repeat: a dictionary of them only costs time."""


@dataclass(frozen=True, slots=True)
class Drained:
    """The result of a drain.

    Jobs that a lost task has acknowledged are done, but not counted.

    Attributes:
        taken: deliveries; each is counted in one of the others, too.
        done: acknowledged.
        failed: jobs that will be tried again, by their policy.
        dead: jobs that became dead letters.
        released: given back without a failure.
        lost: the lease ended before the job was settled; it is delivered again.
        runs: with `ack="output"`, the directories of the results, one for each round.
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
    ack: Ack = "task",
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
    """Run a handler for each job of a queue on Spark's executors, until no job is ready.

    Jobs that fail are nacked: they are tried again later, or become dead letters, as with a
    `Worker`. Jobs that are not due yet stay in the queue.

    Args:
        spark: a SparkSession, classic or Connect.
        queue: the queue's name.
        handler: a function that is called with a job, on an executor; or `Handlers`.
        ack: "task" = a job is acknowledged when its handler has returned. "output" = a job is
            acknowledged when its result is written as parquet: at least once.
        path: with "output": the directory of the results. Each round adds `run=<name>` to it, with
            the columns `id`, `attempt`, `receipts` (internal) and those of `schema`.
        schema: with "output": columns of the results (a value, a tuple or a dict), as DDL; default
            `result string`, which holds texts, and other values as JSON.
        parallelism: how many tasks; None = Spark's default.
        size: call the function with a list of up to so many jobs; see `Handlers.chunk`.
        batch_size: most jobs that a task holds. A task holds up to 16 jobs at first, and more if
            they are done quickly. For handlers that take many seconds choose 1.
        max_jobs: most jobs of all tasks; each task takes an equal part.
        retry: when failed jobs are tried again.
        round_time: with "output": seconds after which results are written and acknowledged.
        hold: with "output": seconds of the lease of each job, renewed while its task runs. At
            least half of them are left when the task ends: enough for the other tasks to end, and
            for writing the results. The jobs of a lost executor are delivered again after `hold`.
        **options: of the connection, as for `format("penstock")`: `url`, `urlEnv`, `passwordEnv` …

    Returns:
        The numbers of jobs by outcome.

    Raises:
        BadArgument: an argument or option can't be used; nothing was done. If only the tasks find
            that they can't write to `path`, jobs that they hold are delivered again after `hold`.
        Unreachable: no server can be reached.
    """
    if hasattr(spark, "isStreaming"):  # a DataFrame
        raise TypeError(f"spark must be a SparkSession, not a {type(spark).__name__}")
    connection = Connection.parse({**options, "queue": queue}, strict=True)
    check_choice("ack", ack, Ack)
    work = DrainTask(
        connection,
        _reach_nodes(spark, connection),
        _handlers(handler, size, retry),
        check_count("batch_size", batch_size, high=BATCH),
    )
    tasks = None if parallelism is None else check_count("parallelism", parallelism, high=10_000)
    if max_jobs is not None:
        check_count("max_jobs", max_jobs)
        if tasks is None:
            raise BadArgument("max_jobs", max_jobs, "needs parallelism= as well")
    if ack == "task":
        for name, value in (("path", path), ("schema", schema)):
            if value is not None:
                raise BadArgument(name, value, "is only for ack='output'")
        return _DrainJob(spark, work, tasks, max_jobs).run_once()
    if not isinstance(path, str) or not path:
        raise BadArgument("path", path, "is required: the directory of the results")
    seconds = duration_ms("round_time", round_time, zero=False) / 1000
    held = lease_ms("hold", hold, zero=False)
    if held < 3000 * seconds:
        raise BadArgument("hold", hold, f"must be at least three times round_time ({seconds} s)")
    work = replace(work, output=DrainOutput(_fields(schema), schema is None, seconds, held))
    return _DrainJob(spark, work, tasks, max_jobs).run_rounds(path, schema or "result string")


@dataclass
class _DrainJob:
    """A drain, on the driver."""

    spark: Any
    work: DrainTask
    tasks: int | None
    max_jobs: int | None
    began: float = field(default_factory=time.monotonic)

    def run_once(self) -> Drained:
        """Run one Spark job, whose tasks acknowledge."""
        made = self._input().mapInArrow(self._task(self.max_jobs).run, FIGURES_DDL)
        return _drained(_sum(row[0] for row in made.collect()))

    def run_rounds(self, path: str, schema: str) -> Drained:
        """Write results, then acknowledge their jobs, until the queue is empty."""
        total, runs = Counter[str](), list[str]()
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
        while True:
            left = None if self.max_jobs is None else self.max_jobs - total["taken"]
            run = f"{path.rstrip('/')}/run={name}-{len(runs):04d}"
            found = self._run_round(run, schema, left)
            runs.append(run)
            total.update(found)
            is_used_up = left is not None and found["taken"] >= left
            if not found["cut"] or not found["taken"] or is_used_up:
                return _drained(total, runs)

    def _run_round(self, run: str, schema: str, left: int | None) -> Counter[str]:
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        told = Observation()
        wanted = f"{KEYS_DDL}, {schema}"
        made = self._input().mapInArrow(self._task(left).run, wanted)
        texts = f.collect_list(f.expr("CASE WHEN id IS NULL THEN receipts END"))
        made = made.observe(told, f.array_join(texts, "\n").alias("figures"))
        write = made.where("id IS NOT NULL").write
        for name in RESERVED_COLUMNS:
            write.option(f"parquet.enable.dictionary#{name}", "false")
        try:
            write.parquet(run)
        except Exception:
            try:  # without rows: fails too if the path is the reason
                empty = self.spark.createDataFrame([], wanted).write.mode("append")
                empty.option(SUCCESS_FILE, "false").parquet(run)
            except Exception as error:  # noqa: BLE001  # of the JVM, or of the server of Connect
                raise _bad_argument("path", run, "can't be written", error) from None
            raise
        found = _sum(told.get["figures"].splitlines())
        receipts = self.spark.read.schema(FIGURES_DDL).parquet(run).where("receipts IS NOT NULL")
        age = time.monotonic() - self.began
        ack_task = AckTask(self.work.connection, self.work.expected, age)
        told_acks = receipts.mapInArrow(ack_task.run, FIGURES_DDL).collect()
        found.update(_sum(row[0] for row in told_acks))
        return found

    def _input(self) -> Any:
        if self.tasks is None:
            return self.spark.range(1 << 16)  # in Spark's default number of partitions
        return self.spark.range(0, self.tasks, 1, self.tasks)

    def _task(self, limit: int | None) -> DrainTask:
        if limit is None or self.tasks is None:
            return self.work
        shares = tuple((limit + at) // self.tasks for at in range(self.tasks))
        return replace(self.work, shares=shares)


def _reach_nodes(spark: Any, connection: Connection) -> tuple[str, ...]:
    """Return the nodes that the driver reaches. With Connect, this process is not the driver."""
    if "connect" in type(spark).__module__:
        return ()
    return open_on_driver(connection).nodes


def _handlers(handler: Any, size: int | None, retry: RetryPolicy | None) -> Handlers:
    if isinstance(handler, Handlers):
        if size is not None or retry is not None:
            name = "retry" if size is None else "size"
            reason = "belongs to each handler of the set: pass it there"
            raise BadArgument(name, retry or size, reason)
    elif callable(handler):
        made = Handlers()
        if size is None:
            made.handler(None, retry=retry)(handler)
        else:
            made.chunk(None, size=size, retry=retry)(handler)
        handler = made
    found = check_handlers(handler, "handler")
    found.check()
    refuse_coroutines(found, "handler")
    return found


def _fields(schema: str | None) -> list[Field]:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    zone = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    try:
        made = to_arrow_schema(StructType.fromDDL(schema or "result string"), **zone)
    except Exception as error:  # noqa: BLE001  # of the JVM, or of the server of Connect
        raise _bad_argument("schema", schema, "must be columns as DDL", error) from None
    taken = {*KEYS_SCHEMA.names}
    for name in made.names:
        if name.lower() in taken or made.names.count(name) > 1:
            raise BadArgument("schema", schema, f"has the column {name!r} twice")
    return list(made)


def _bad_argument(name: str, value: object, reason: str, error: Exception) -> BadArgument:
    """Return an error with the first line of Spark's error, without the stack of the JVM."""
    told = str(getattr(error, "java_exception", error)).strip() or type(error).__name__
    return BadArgument(name, value, f"{reason}: {told.splitlines()[0]}")


def _sum(texts: Iterable[str]) -> Counter[str]:
    total = Counter[str]()
    for text in texts:
        total.update(dict(zip(FIGURE_NAMES, map(int, text.split()), strict=True)))
    return total


def _drained(total: Counter[str], runs: Sequence[str] = ()) -> Drained:
    return Drained(
        **{name: total[name] for name in FIGURE_NAMES if name != "cut"}, runs=tuple(runs)
    )
