"""Rows through Spark: sink, batch source, stream source and drain, compared with plain Python."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
from redis import Redis

from benchmarks.bed import Bed, Refused
from benchmarks.figures import Budget, Table, median, pairwise
from benchmarks.plan import BODY, Plan
from penstock.client._sync.client import Penstock
from penstock.core.enqueuing.dedup import Dedup
from penstock.embedded import EmbeddedServer, find_server

__all__ = ["is_there", "spark"]

ROUNDS = 3
SECONDS = 420
"""After these seconds no further round begins."""
TRIGGER = 50_000
PARTITIONS = 4
WINDOW = 86_400
XADD = "XADD by hand, pipelined"
SINK, CONTENT, STAGED = "Arrow sink, ids", "Arrow sink, content ids", "Arrow sink, staged"
DELAYS, TIMES, QUEUES = "3,600 delays", "ready_at of each row", "1,000 queues"
SHAPES = {
    DELAYS: "id % 3600 + 60 AS delay",
    TIMES: "timestamp_millis(4000000000000 + id) AS ready_at",
    QUEUES: "concat('shape.', id % 1000) AS q",
}
"""Writes of rows with ids and a third column."""
BATCH, STREAM, DRAIN = "batch source", "stream source", "drain"
NODES = f"{STREAM}, 3 nodes"
DRAIN_OUTPUT = f"{DRAIN}, ack=output"
WHOLE = f"{STREAM}, start to end"
IDS = ", ids"
BARE, LOOP = "enqueue_many", f"enqueue_many{IDS}"
BASES = {
    **dict.fromkeys((SINK, CONTENT, STAGED, *SHAPES), (XADD, 1.5)),
    XADD: ("", 0.0), BARE: ("", 0.0), LOOP: ("", 0.0), NODES: (STREAM, 1.0),
}  # fmt: skip
"""Row -> the row that it is compared with, and the least ratio of their rates."""
LEAST = {
    DELAYS: 30_000, TIMES: 40_000, QUEUES: 30_000, BATCH: 300_000, STREAM: 50_000,
    DRAIN: 100_000, DRAIN + IDS: 120_000, DRAIN_OUTPUT + IDS: 80_000,
}  # fmt: skip
EMPTY = "trigger of 10 rows, x Spark's own of 1 row"
DRIVER = "driver of the stream, us/job"
PLAN = "plan of a batch read in 64 parts, bytes"
MOST = {EMPTY: (2.0, "x"), DRIVER: (2.0, "us"), PLAN: (1_000_000, "bytes")}
"""Figures that are no rates, their bounds and units."""
TRIGGERS = 15
"""Small triggers of each kind; fewer if there are few rows."""
PARTS = 64
PATIENCE = 3600
Found = dict[str, tuple[list[float], list[float]]]
"""Of each row: rates or other figures, and us of CPU a row."""


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
        ("what", "base", "rows/s", "x base", "us CPU/row", "CPU x base"),
        f"{plan.memory} rows of {len(BODY)} bytes in {PARTITIONS} partitions, the first of several"
        " runs left out. us CPU/row: server, JVM and Python, without processes that Spark kills."
        " XADD by hand sends 500 commands a trip from each partition. Rows without ids are staged;"
        " content ids are those of commitMode=direct; ids are kept for a day. The sources are read"
        f" into Spark's `noop`, all columns; the stream takes {TRIGGER} jobs a trigger and"
        " acknowledges them in the next. Its rate is that of the triggers after the first, and from"
        " the start of the query to its end. enqueue_many is a loop in one process, without Spark."
        " The driver's time is its own CPU time.",
    )
    for name, (rates, costs) in found.items():
        base, least = BASES.get(name, ("", 0.0))
        if name in MOST:
            limit, unit = MOST[name]
            most = Budget(f"Spark: {name}", median(rates), limit, unit=unit)
            table.add(name, "", None, None, None, None, budget=most)
            continue
        rate, bounds = median(rates), list[Budget | None]()
        ratio = pairwise(rates, found[base][0]) if base else None
        cost = pairwise(costs, found[base][1]) if base else None
        if ratio is not None:
            bounds.append(Budget(f"Spark: {name}, x {base}", ratio, least, least=True))
        if name in LEAST:
            bounds.append(Budget(f"Spark: {name}", rate, LEAST[name], least=True, unit="rows/s"))
        for bound in bounds or [None]:
            table.add(name, base, rate, ratio, median(costs), cost, budget=bound)
    for name, (rates, costs) in found.items():
        table.rounds[name] = rates
        table.rounds[f"{name}, us CPU/row"] = costs
    return table


def _measured(bed: Bed, **options: Any) -> Found:
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
    found: Found = json.loads(done.stdout.splitlines()[-1])
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
        nodes: urls of three further servers.
    """

    def __init__(
        self, session: Any, client: Penstock, url: str, *, rows: int, place: Path, nodes: list[str]
    ) -> None:
        self.session = session
        self.client = client
        self.rows = rows
        self.place = place
        self.nodes = nodes
        self.options: dict[str, Any] = {"url": url, "prefix": client.prefix}
        self.found: Found = {}
        frame = session.range(0, rows, 1, PARTITIONS)
        self.frame = frame.selectExpr("CAST(id AS STRING) id", f"repeat('x', {len(BODY)}) payload")

    def once(self) -> None:
        """Run each of them once."""
        self._timed(BARE, self._bare)
        self._timed(LOOP, self._loop)
        self._timed(XADD, partial(self.frame.foreachPartition, self._by_hand()))
        self.client.topology.executor.command("UNLINK", f"{self.client.prefix}:by-hand")
        self._timed(SINK, partial(self._write, self.frame, "sink"))
        plain = self.frame.select("payload")
        self._timed(CONTENT, partial(self._write, plain, "content", commitMode="direct"))
        self._timed(STAGED, partial(self._write, plain, "staged"))
        for name, column in SHAPES.items():
            self._timed(name, partial(self._shape, column))
            self.client.clear(self.client.queues("shape*"))
        self._driver()
        for queue, kind in (("bare", ""), ("sink", IDS)):
            self._timed(BATCH + kind, partial(self._source, queue))
            self._timed(WHOLE + kind, partial(self._stream, queue, STREAM + kind, self.options))
        self._three()
        for kind, fill in (("", self._bare), (IDS, self._ids)):
            for name in (DRAIN, DRAIN_OUTPUT):
                fill()
                self._timed(
                    name + kind, partial(self._drain, "output" if "out" in name else "task")
                )
        self._triggers(max(4, min(TRIGGERS, self.rows // 100)))
        self.client.clear(["bare", "loop", "sink", "staged", "content", "few"])
        for key in self.client.topology.executor.command(
            "KEYS", f"{self.client.prefix}:{{staged}}:commit:*"
        ):
            self.client.topology.executor.command("UNLINK", key)

    def _timed(self, name: str, work: Callable[[], Any]) -> None:
        before, begin = self._cpu(), time.perf_counter()
        work()
        seconds = time.perf_counter() - begin
        self._noted(name, self.rows / seconds, self._cpu() - before)

    def _noted(self, name: str, figure: float, cpu: float = 0.0) -> None:
        rates, costs = self.found.setdefault(name, ([], []))
        rates.append(figure)
        costs.append(cpu / self.rows * 1e6)

    def _cpu(self) -> float:
        """Return the CPU seconds of the server, and of this process and its children."""
        own, spent = psutil.Process(), 0.0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):  # its time is its parent's now
                used = process.cpu_times()
                spent += used.user + used.system + used.children_user + used.children_system
        server = self.client.topology.executor.command("INFO", "cpu")
        told = dict(line.split(":") for line in str(server, "ascii").splitlines() if ":" in line)
        return spent + float(told["used_cpu_user"]) + float(told["used_cpu_sys"])

    def _by_hand(self) -> Callable[[Any], None]:
        url, key = self.options["url"], f"{self.client.prefix}:by-hand"

        def add(rows: Any) -> None:
            with Redis.from_url(url) as client:
                while part := list(islice(rows, 500)):
                    pipe = client.pipeline(transaction=False)
                    for row in part:
                        pipe.xadd(key, {"id": row.id, "payload": row.payload})
                    pipe.execute()

        return add

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

    def _write(self, frame: Any, queue: str, **more: str) -> None:
        write = frame.write.format("penstock").mode("append")
        write.options(queue=queue, **more, **self.options).save()
        self._check(self.client, queue, self.rows)

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

    def _stream(self, queue: str, name: str, options: dict[str, Any]) -> None:
        before = self._cpu()
        read = self.session.readStream.format("penstock").options(queue=queue, **options)
        jobs = read.option("maxJobsPerTrigger", min(TRIGGER, self.rows // 2)).load()
        query = self._started(jobs, availableNow=True)
        query.awaitTermination()
        rows = [told["numInputRows"] for told in query.recentProgress if told["numInputRows"]]
        rate = sum(rows[1:]) / sum(_seconds(query)[1:])
        self._noted(name, rate, self._cpu() - before)

    def _started(self, frame: Any, **trigger: Any) -> Any:
        checkpoint = str(self.place / f"checkpoint-{time.monotonic_ns()}")
        sink = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        return sink.trigger(**trigger).start()

    def _three(self) -> None:
        """Stream from three nodes."""
        options = {"nodes": ",".join(self.nodes), "prefix": self.client.prefix}
        with Penstock(self.nodes, prefix=self.client.prefix, federation=True) as client:
            client.queue("bare").enqueue_many(BODY for _ in range(self.rows))
            self._stream("bare", NODES, options)
            self._check(client, "bare", 0)
            client.clear(["bare"])

    def _triggers(self, count: int) -> None:
        """Compare triggers of a few rows with those of a source of Spark."""
        rate = self.session.readStream.format("rate-micro-batch")
        query = self._started(
            rate.options(rowsPerBatch=1, numPartitions=1).load(), processingTime="0 seconds"
        )
        while len(base := _seconds(query)) < count:
            time.sleep(0.05)  # Spark tells of triggers only when it is asked
        query.stop()
        self.client.queue("few").enqueue_many(BODY for _ in range(10 * count))
        read = self.session.readStream.format("penstock").options(queue="few", **self.options)
        query = self._started(read.option("maxJobsPerTrigger", 10).load(), availableNow=True)
        query.awaitTermination()
        self._noted(EMPTY, median(_seconds(query)[2:]) / median(base[2:]))

    def _driver(self) -> None:
        """Reserve, cut and acknowledge a batch of all jobs; plan a read of as many. No tasks."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        from penstock.spark.source import PenstockDataSource

        options = {"queue": "loop", **self.options}
        load = self.session.read.format("penstock").options(**options).load
        stream = PenstockDataSource(options).streamReader(load().schema)
        begin, start = time.process_time(), stream.initialOffset()
        end = stream.latestOffset(start, ReadMaxRows(self.rows))
        stream.partitions(start, end)
        spent = time.process_time() - begin
        parts = {**options, "queue": "bare", "numpartitions": str(PARTS)}
        plan = PenstockDataSource(parts).reader(load().schema).partitions()
        self._noted(PLAN, len(pickle.dumps(plan)))
        begin = time.process_time()
        stream.commit(end)
        self._noted(DRIVER, (spent + time.process_time() - begin) / self.rows * 1e6)
        stream.stop()
        self._check(self.client, "loop", 0)

    def _drain(self, ack: str) -> None:
        from penstock.spark import drain

        output = {"path": str(self.place / f"out-{time.monotonic_ns()}")} if ack == "output" else {}
        options: dict[str, Any] = {"ack": ack, **output, **self.options}
        report = drain(self.session, queue="bare", handler=look, parallelism=2, **options)
        if report.done != self.rows:
            raise RuntimeError(f"{report.done} of {self.rows} jobs: {report}")

    def _check(self, client: Penstock, queue: str, expected: int) -> None:
        stats = client.queue(queue).stats()
        if stats.ready + stats.active != expected:
            raise RuntimeError(f"{queue}: {stats.ready} ready, {stats.active} active")


def _seconds(query: Any) -> list[float]:
    """Return the seconds of each trigger that had rows."""
    told = [one for one in query.recentProgress if one["numInputRows"]]
    return [one["durationMs"]["triggerExecution"] / 1000 for one in told]


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
        contextlib.ExitStack() as stack,
    ):
        started = time.monotonic()
        nodes = [EmbeddedServer(find_server(), tcp=True) for _ in range(3)]
        urls = [stack.enter_context(node).url for node in nodes]
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", "1g").config("spark.log.level", "ERROR")
        builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
        builder = builder.config("spark.local.dir", f"{directory}/local")
        builder = builder.config("spark.ui.showConsoleProgress", "false")
        session = builder.getOrCreate()
        try:
            size = {"rows": options["rows"], "place": Path(directory), "nodes": urls}
            runs = Runs(session, client, options["url"], **size)
            first = int(options["rounds"] > 1)  # a run that is left out
            for at in range(options["rounds"] + first):
                if at <= first or time.monotonic() < started + SECONDS:
                    runs.once()
        finally:
            session.stop()
            _reap()
    print(
        json.dumps({name: (kept[0][first:], kept[1][first:]) for name, kept in runs.found.items()})
    )


def _reap() -> None:
    """Wait for the JVM, so that its CPU time is counted."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


if __name__ == "__main__":
    main(sys.argv[1])
