"""Groups 4, 5 and 9: attempts that outlive their write, and lost executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import redis

from penstock import Penstock
from tests.spark.loads import MODES, expected
from tests.spark.support import Driver, StandaloneCluster, wait_for

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.python.task.killTimeout": "180s",  # lets the slower attempt run this long
    "spark.ui.liveUpdate.period": "0",  # the number of tasks is current
}


def waiting(ps: Penstock, queue: str) -> Counter[bytes]:
    """Count the waiting bodies."""
    return Counter(job.raw for job in ps.queue(queue).jobs(n=1000))


def test_an_attempt_that_outlives_the_write_adds_nothing(
    cluster: StandaloneCluster,
    driver: Callable[..., Driver],
    ps: Penstock,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """Speculation: the slower attempt continues after `save()`, and its rows are recognised."""
    conf = {**SPECULATION, "spark.executor.memory": cluster.memory}
    sign = str(tmp_path / "sign")
    started = driver(
        "tests.spark.loads:speculated", master=cluster.url, conf=conf, url=redis_url, sign=sign
    )
    for mode in MODES:
        started.wait_for(mode)
        assert Path(f"{sign}-{mode}").exists()
        assert waiting(ps, mode) == expected()
        Path(f"{sign}-{mode}-over").touch()
    started.result()
    assert [waiting(ps, mode) == expected() for mode in MODES] == [True, True]


def test_an_executor_that_is_lost(
    cluster: StandaloneCluster,
    driver: Callable[..., Driver],
    ps: Penstock,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """A lost executor's tasks run again; their earlier writes count once."""
    started = driver(
        "tests.spark.loads:hung", master=cluster.url,
        conf={"spark.executor.memory": cluster.memory}, url=redis_url,
        sign=str(tmp_path / "sign"),
    )  # fmt: skip
    for mode in MODES:
        sign = tmp_path / f"sign-{mode}"
        wait_for(lambda at=sign: at.exists() or started.process.poll() is not None)
        for executor in cluster.executors():
            cluster.kill_executor(executor)
    started.result()
    assert [waiting(ps, mode) == expected() for mode in MODES] == [True, True]


def test_a_killed_executor_loses_nothing(
    cluster: StandaloneCluster,
    driver: Callable[..., Driver],
    ps: Penstock,
    redis_url: str,
) -> None:
    """Acknowledged in the tasks: at most the killed one's block is done again."""
    jobs = ps.queue("mail")
    jobs.enqueue_many(range(400), lease=3, headers={"url": redis_url, "key": "marks"})
    started = driver(
        "tests.spark.programs:drain_slowly",
        master=cluster.url,
        conf={"spark.executor.memory": cluster.memory},
        url=redis_url,
    )
    wait_for(lambda: jobs.stats().acked > 50)
    cluster.kill_executor()
    started.result()
    assert jobs.stats().acked == 400
    with redis.Redis.from_url(redis_url) as client:
        marks = [int(count) for count in client.hvals("marks")]
    assert len(marks) == 400
    assert sum(marks) - 400 <= 32  # the block of the killed executor
