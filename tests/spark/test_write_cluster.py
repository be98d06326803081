"""Groups 4 and 5: attempts that outlive their write, and lost executors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Penstock
from tests.spark.loads import expected
from tests.spark.support import Driver, StandaloneCluster, wait_for

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.python.task.killTimeout": "60s",  # lets the slower attempt run this long
}


def waiting(ps: Penstock) -> Counter[bytes]:
    """Count the waiting bodies."""
    return Counter(job.raw for job in ps.queue("mail").scan_iter(n=1000))


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_an_attempt_that_outlives_the_write_adds_nothing(
    mode: str,
    cluster: StandaloneCluster,
    driver: Callable[..., Driver],
    ps: Penstock,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """Speculation: the slower attempt continues after `save()`, and its rows are recognised."""
    conf = {**SPECULATION, "spark.executor.memory": cluster.memory}
    started = driver(
        "tests.spark.loads:speculated", master=cluster.url, conf=conf, url=redis_url,
        sign=str(tmp_path / "sign"), commitMode=mode,
    )  # fmt: skip
    started.wait_for("saved")
    assert waiting(ps) == expected()
    started.result()
    assert (tmp_path / "sign").exists()
    assert waiting(ps) == expected()


@pytest.mark.parametrize("mode", ["direct", "staged"])
def test_an_executor_that_is_lost(
    mode: str,
    cluster: StandaloneCluster,
    driver: Callable[..., Driver],
    ps: Penstock,
    redis_url: str,
    tmp_path: Path,
) -> None:
    """A lost executor's tasks run again; their earlier writes count once."""
    sign = tmp_path / "sign"
    started = driver(
        "tests.spark.loads:written", master=cluster.url,
        conf={"spark.executor.memory": cluster.memory}, url=redis_url, sign=str(sign), how="hang",
        commitMode=mode,
    )  # fmt: skip
    wait_for(lambda: sign.exists() or started.process.poll() is not None)
    for executor in cluster.executors():
        cluster.kill_executor(executor)
    started.result()
    assert waiting(ps) == expected()
