"""Rows through Spark: sink, batch source, stream source and drain, compared with plain Python."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.bed import Bed, Refused
from benchmarks.figures import Budget, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.client._sync.client import Penstock
from penstock.core.dedup import Dedup

__all__ = ["is_there", "spark"]

ROUNDS = 3
TRIGGER = 50_000
PARTITIONS = 4
WINDOW = 86_400
SINK, STAGED = "Arrow sink, ids", "Arrow sink, staged"
DELAYS, TIMES, QUEUES = "3,600 delays", "ready_at of each row", "1,000 queues"
SHAPES = {
    DELAYS: "id % 3600 + 60 AS delay",
    TIMES: "timestamp_millis(4000000000000 + id) AS ready_at",
    QUEUES: "concat('shape.', id % 1000) AS q",
}
"""Writes of rows with ids and a third column."""
BATCH, STREAM, DRAIN = "batch source", "stream source", "drain"
DRAIN_OUTPUT = f"{DRAIN}, ack=output"
WHOLE = f"{STREAM}, start to end"
IDS = ", ids"
LEAST = {
    DELAYS: 30_000, TIMES: 40_000, QUEUES: 30_000, BATCH: 300_000, STREAM: 50_000,
    DRAIN: 100_000, DRAIN + IDS: 120_000, DRAIN_OUTPUT + IDS: 80_000,
}  # fmt: skip
SINK_BUDGET = 0.8
PATIENCE = 3600


def is_there() -> bool:
    """Tell if this machine can run Spark."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") or (home and Path(home, "bin", "java").exists())
    return bool(java) and importlib.util.find_spec("pyspark") is not None


def spark(bed: Bed, plan: Plan) -> Table:
    """Measure rows/s of each way in and out, on all cores, with driver and server."""
    if not is_there():
        raise Refused("the section spark needs Java and `pip install penstock[spark]`")
    rounds = min(plan.rounds, ROUNDS)
    with _everywhere(bed.pid):
        found = _measured(bed, rows=plan.memory, rounds=rounds)
    table = Table(
        "spark",
        "Rows through Spark, local[2]",
        ("what", "base", "rows/s", "x base"),
        f"{plan.memory} rows of {len(BODY)} bytes in {PARTITIONS} partitions, the first run left"
        " out. The base of the sink is a loop of plain Python in one process that adds the same"
        " jobs with the same kind of ids (enqueue_many); both keep ids for a day. Rows without ids"
        " are staged. The sources are read into Spark's `noop`, all columns; the stream takes"
        f" {TRIGGER} jobs a trigger and acknowledges them in the next: its rate is that of the"
        " triggers behind the first, and from the start of the query to its end.",
    )
    loop, bare = found["loop"], found["bare"]
    table.add("enqueue_many", "", median(bare), None)
    table.add("enqueue_many, ids", "", median(loop), None)
    ratio = pairwise(found[SINK], loop)
    budget = Budget("Spark: Arrow sink, x plain Python", ratio, SINK_BUDGET, least=True)
    table.add(SINK, "enqueue_many, ids", median(found[SINK]), ratio, budget=budget)
    ratio = pairwise(found[STAGED], found[SINK])
    table.add(STAGED, SINK, median(found[STAGED]), ratio)
    drains = (DRAIN, DRAIN + IDS, DRAIN_OUTPUT, DRAIN_OUTPUT + IDS)
    for name in (*SHAPES, BATCH, BATCH + IDS, STREAM, STREAM + IDS, WHOLE, WHOLE + IDS, *drains):
        rate, bound = median(found[name]), None
        if name in LEAST:
            bound = Budget(f"Spark: {name}", rate, LEAST[name], least=True, unit="rows/s")
        table.add(name, "", rate, None, budget=bound)
    for name, rates in found.items():
        table.rounds[f"{name}, rows/s"] = rates
    return table


def _measured(bed: Bed, **options: Any) -> dict[str, list[float]]:
    """Measure in a separate process, so that no JVM is left."""
    order = json.dumps({"url": bed.url, "prefix": bed.prefix, **options})
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.spark", order],
        stdout=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextlib.contextmanager
def _everywhere(server: int | None) -> Iterator[None]:
    """Let server and Spark use every core."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    pids = [0, *([server] if server else [])]
    before = [(pid, os.sched_getaffinity(pid)) for pid in pids]
    for pid in pids:
        os.sched_setaffinity(pid, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        for pid, cores in before:
            os.sched_setaffinity(pid, cores)


class Runs:
    """The measurements, made in a separate process.

    Args:
        session: of Spark.
        client: of the server.
        url: of the server.
        rows: how many.
        place: for checkpoints.
    """

    def __init__(self, session: Any, client: Penstock, url: str, rows: int, place: Path) -> None:
        self.session = session
        self.client = client
        self.rows = rows
        self.place = place
        self.options: dict[str, Any] = {"url": url, "prefix": client.prefix}
        self.found: dict[str, list[float]] = {}
        frame = session.range(0, rows, 1, PARTITIONS)
        self.frame = frame.selectExpr("CAST(id AS STRING) id", f"repeat('x', {len(BODY)}) payload")

    def once(self) -> None:
        """Run each of them once."""
        self._timed("bare", self._bare)
        self._timed("loop", self._loop)
        self._timed(SINK, self._sink)
        self._timed(STAGED, self._staged)
        for queue, kind in (("bare", ""), ("sink", IDS)):
            self._timed(BATCH + kind, partial(self._source, queue))
            self._timed(WHOLE + kind, partial(self._stream, queue, kind))
        for name, column in SHAPES.items():
            self._timed(name, partial(self._shape, column))
            self.client.clear(self.client.queues("shape*"))
        for kind, fill in (("", self._bare), (IDS, self._ids)):
            for name in (DRAIN, DRAIN_OUTPUT):
                fill()
                self._timed(
                    name + kind, partial(self._drain, "output" if "out" in name else "task")
                )
        self.client.clear(["bare", "loop", "sink", "staged"])
        for key in self.client.backend.node.command(
            "KEYS", f"{self.client.prefix}:{{staged}}:commit:*"
        ):
            self.client.backend.node.command("UNLINK", key)

    def _timed(self, name: str, work: Callable[[], None]) -> None:
        begin = time.perf_counter()
        work()
        self._noted(name, self.rows / (time.perf_counter() - begin))

    def _noted(self, name: str, rate: float) -> None:
        self.found.setdefault(name, []).append(rate)

    def _bare(self) -> None:
        self.client.clear(["bare"])
        self.client.queue("bare").enqueue_many(BODY for _ in range(self.rows))

    def _ids(self) -> None:
        self.client.clear(["bare"])
        names = iter(range(self.rows))
        self.client.queue("bare").enqueue_many(
            (BODY for _ in range(self.rows)), dedup=Dedup(lambda _: str(next(names)))
        )

    def _loop(self) -> None:
        names = iter(range(self.rows))
        self.client.queue("loop").enqueue_many(
            (BODY for _ in range(self.rows)),
            dedup=Dedup(lambda _: str(next(names)), window=WINDOW),
        )

    def _sink(self) -> None:
        write = self.frame.write.format("penstock").mode("append")
        write.options(queue="sink", **self.options).save()
        self._check("sink", self.rows)

    def _staged(self) -> None:
        write = self.frame.select("payload").write.format("penstock").mode("append")
        write.options(queue="staged", **self.options).save()
        self._check("staged", self.rows)

    def _shape(self, column: str) -> None:
        frame = self.session.range(0, self.rows, 1, PARTITIONS)
        payload = f"repeat('x', {len(BODY)}) AS payload"
        rows = frame.selectExpr("CAST(id AS STRING) AS id", payload, column)
        more = {"queueColumn": "q"} if "q" in rows.columns else {}
        write = rows.write.format("penstock").mode("append")
        write.options(queue="shape", **more, **self.options).save()

    def _source(self, queue: str) -> None:
        read = self.session.read.format("penstock").options(queue=queue, **self.options)
        read.load().write.format("noop").mode("overwrite").save()

    def _stream(self, queue: str, kind: str) -> None:
        read = self.session.readStream.format("penstock").options(queue=queue, **self.options)
        jobs = read.option("maxJobsPerTrigger", min(TRIGGER, self.rows // 2)).load()
        checkpoint = str(self.place / f"checkpoint-{time.monotonic_ns()}")
        sink = jobs.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = sink.trigger(availableNow=True).start()
        query.awaitTermination()
        self._check(queue, 0)
        steady = [told for told in query.recentProgress if told["numInputRows"]][1:]
        spent = sum(told["durationMs"]["triggerExecution"] for told in steady) / 1000
        self._noted(STREAM + kind, sum(told["numInputRows"] for told in steady) / spent)

    def _drain(self, ack: str) -> None:
        from penstock.spark import drain

        output = {"path": str(self.place / f"out-{time.monotonic_ns()}")} if ack == "output" else {}
        options: dict[str, Any] = {"ack": ack, **output, **self.options}
        report = drain(self.session, queue="bare", handler=look, parallelism=2, **options)
        if report.done != self.rows:
            raise RuntimeError(f"{report.done} of {self.rows} jobs: {report}")

    def _check(self, queue: str, expected: int) -> None:
        stats = self.client.queue(queue).stats()
        if stats.ready + stats.active != expected:
            raise RuntimeError(f"{queue}: {stats.ready} ready, {stats.active} active")


def look(job: Any) -> None:
    """Read the body, as a handler."""
    len(job.raw)


def main(order: str) -> None:
    """Run the measurements; the last line is JSON."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = json.loads(order)
    with (
        tempfile.TemporaryDirectory() as directory,
        Penstock(options["url"], prefix=options["prefix"]) as client,
    ):
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "1g").config("spark.log.level", "ERROR")
        builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        builder = builder.config("spark.local.dir", f"{directory}/local")
        session = builder.getOrCreate()
        try:
            runs = Runs(session, client, options["url"], options["rows"], Path(directory))
            for _ in range(options["rounds"] + 1):
                runs.once()
        finally:
            session.stop()
            _reap()
    print(json.dumps({name: rates[1:] for name, rates in runs.found.items()}))


def _reap() -> None:
    """Wait for the JVM, so that its CPU time is counted."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
