"""Spark to break: a session, a standalone cluster, drivers in processes of their own.

with StandaloneCluster() as cluster:
    with Driver("tests.spark.programs:load", master=cluster.url, url=server.url) as driver:
        driver.wait_for("half")         # the program said `say("half")`
        cluster.kill_executor()
        assert driver.result() == 20_000
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

__all__ = [
    "LOCAL",
    "ROOT",
    "Driver",
    "StandaloneCluster",
    "environment",
    "new_session",
    "python_workers",
    "say",
    "wait_for",
]

ROOT = Path(__file__).parents[2]
LOCAL = "local[2,4]"
"""Two slots, and four attempts for a task; plain `local[2]` has one."""
PATIENCE = 180.0
QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.extraJavaOptions": QUICK_START,
    "spark.executor.extraJavaOptions": QUICK_START,
    "spark.log.level": "FATAL",  # faults on purpose need no pages of warnings
}


def environment(**changes: str) -> dict[str, str]:
    """Return the environment in which Spark and its Python find penstock and the tests."""
    import penstock

    own = [str(Path(penstock.__file__).parents[1]), str(ROOT)]
    before = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys([*own, *before])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(spark_home()),
        **changes,
    }


def spark_home() -> Path:
    """Return the directory of the installed Spark."""
    import pyspark

    return Path(pyspark.__file__).parent


def new_session(
    directory: Path, *, master: str = LOCAL, conf: Mapping[str, str] | None = None
) -> Any:
    """Make the session of this process; only one at a time.

    Args:
        directory: where it keeps what it keeps.
        master: where tasks run; `connect:local[2]` = a server of Spark Connect that runs them so.
        conf: further settings.
    """
    from pyspark.sql import SparkSession

    os.environ.update(environment())
    places = {
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.driver.defaultJavaOptions": f"-Dderby.system.home={directory / 'derby'}",
    }
    kind, _, rest = master.partition(":")
    if kind == "connect":  # its server starts with its own settings
        os.environ["SPARK_TESTING"] = "1"  # so it takes a free port, and the client asks for it
        return SparkSession.builder.remote(rest).getOrCreate()
    builder = SparkSession.builder.master(master).appName("penstock tests")
    for name, value in {**CONF, **places, **(conf or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def wait_for(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Wait until the condition is true, and return its value.

    Raises:
        TimeoutError: it never was.
    """
    deadline = time.monotonic() + timeout
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not true within {timeout} s")
        time.sleep(0.02)


def kill_tree(process: psutil.Process | None) -> None:
    """Kill a process and all its descendants."""
    if process is None:
        return
    found = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        found += process.children(recursive=True)
    for one in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(found, timeout=10)


def python_workers(parent: int | None = None) -> list[psutil.Process]:
    """Return the Python processes of tasks below a process: forks of Spark's daemon."""
    found = []
    for process in psutil.Process(parent).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "pyspark.daemon" in process.cmdline() and _is_below_daemon(process):
                found.append(process)
    return found


def _is_below_daemon(process: psutil.Process) -> bool:
    parent = process.parent()
    return parent is not None and "pyspark.daemon" in parent.cmdline()


class StandaloneCluster:
    """A master and two single-core workers on different loopback addresses.

    Speculation never picks the host of the first attempt, so it needs two addresses.

    Args:
        workers: how many.
        memory: of each executor.
    """

    def __init__(self, workers: int = 2, *, memory: str = "512m") -> None:
        self.memory = memory
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-spark-"))
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            self._start(workers)
        except BaseException:
            self.close()
            raise

    def _start(self, workers: int) -> None:
        port, web = _free_ports(2)
        self.url = f"spark://127.0.0.1:{port}"
        options = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
        self._launch("master", "org.apache.spark.deploy.master.Master", *options)
        wait_for(lambda: "New state: ALIVE" in self.log("master"))
        for number in range(workers):
            options = ("--host", f"127.0.0.{number + 2}", "--cores", "1", "--memory", "1g")
            web_port = ("--webui-port", "0", "--work-dir", str(self._directory / f"work{number}"))
            name = "org.apache.spark.deploy.worker.Worker"
            self._launch(f"worker{number}", name, *options, *web_port, self.url)
        wait_for(lambda: self.log("master").count("Registering worker") == workers)

    def _launch(self, name: str, *command: str) -> None:
        script = spark_home() / "bin" / "spark-class"
        with (self._directory / f"{name}.log").open("wb") as log:
            started = subprocess.Popen(
                ["bash", str(script), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=environment(
                    SPARK_DAEMON_MEMORY="256m",
                    SPARK_DAEMON_JAVA_OPTS="-XX:+UseSerialGC",
                    SPARK_LOG_DIR=str(self._directory),
                    SPARK_NO_DAEMONIZE="1",
                ),
                start_new_session=True,
            )
        self._processes.append(started)

    def log(self, name: str) -> str:
        """Return the log of the master or a worker."""
        path = self._directory / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def executors(self) -> list[psutil.Process]:
        """Return the running executors' JVMs, in the order of the workers."""
        found = []
        for started in self._processes[1:]:
            for process in psutil.Process(started.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                        found.append(process)
        return found

    def kill_executor(self, process: psutil.Process | None = None) -> int:
        """Kill an executor and its Python processes (the first by default), and return its pid."""
        chosen = process or wait_for(self.executors)[0]
        kill_tree(chosen)
        return int(chosen.pid)

    def close(self) -> None:
        """End all processes."""
        for started in reversed(self._processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                kill_tree(psutil.Process(started.pid))
            started.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Driver:
    """A function that runs as a Spark driver in a process of its own, to be killed.

    The function is given a session and the arguments, and returns what JSON can hold. It reports
    progress by `say("word")`. Tasks can't: they leave a sign on the server or as a file.

    Args:
        function: where it is: `tests.spark.programs:load`.
        master: where its tasks run.
        conf: further settings of its session.
        env: further environment.
        arguments: what the function is given.
    """

    def __init__(
        self,
        function: str,
        *,
        master: str = LOCAL,
        conf: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        **arguments: Any,
    ) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="penstock-driver-"))
        self._log = (self._directory / "log").open("wb")
        order = {
            "function": function,
            "master": master,
            "conf": dict(conf or {}),
            "directory": str(self._directory),
            "arguments": arguments,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.support", json.dumps(order)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=environment(PENSTOCK_SIGNS=str(self._directory), **(env or {})),
            start_new_session=True,
        )

    @property
    def log(self) -> str:
        """Return its whole output."""
        return (self._directory / "log").read_text(errors="replace")

    def jvm(self) -> psutil.Process:
        """Return its JVM."""
        for process in psutil.Process(self.process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if process.name() == "java":
                    return process
        raise LookupError(f"no JVM: {self.log}")

    def python_workers(self) -> list[psutil.Process]:
        """Return the Python processes of its tasks, if they run in its own JVM."""
        return python_workers(self.process.pid)

    def said(self, word: str) -> bool:
        """Tell if it said the word; raise if it ended without."""
        if (self._directory / f"sign-{word}").exists():
            return True
        if self.process.poll() is not None:
            raise AssertionError(f"the driver ended before {word!r}:\n{self.log}")
        return False

    def wait_for(self, word: str, timeout: float = PATIENCE) -> None:
        """Wait until it says the word."""
        try:
            wait_for(lambda: self.said(word), timeout)
        except TimeoutError:
            raise AssertionError(f"{word!r} was not said in {timeout} s:\n{self.log}") from None

    def result(self, timeout: float = PATIENCE) -> Any:
        """Return the function's result.

        Raises:
            AssertionError: it raised, or has not ended in time.
        """
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the driver still runs after {timeout} s:\n{self.log}") from None
        if code != 0:
            raise AssertionError(f"the driver ended with {code}:\n{self.log}")
        return json.loads((self._directory / "result").read_text())

    def kill(self) -> None:
        """Kill it with its JVM and Python processes, like a power failure."""
        with contextlib.suppress(psutil.NoSuchProcess):
            kill_tree(psutil.Process(self.process.pid))
        self.process.wait()

    def kill_jvm(self) -> None:
        """Kill the JVM only; the program then fails by itself."""
        self.jvm().send_signal(signal.SIGKILL)

    def close(self) -> None:
        """End it if it runs, and remove its files."""
        self.kill()
        self._log.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def say(word: str) -> None:
    """Report progress; runs in a driver of `Driver`."""
    (Path(os.environ["PENSTOCK_SIGNS"]) / f"sign-{word}").touch()


@contextlib.contextmanager
def _session(order: Mapping[str, Any]) -> Iterator[Any]:
    directory = Path(order["directory"])
    spark = new_session(directory, master=order["master"], conf=order["conf"])
    try:
        yield spark
    finally:
        spark.stop()


def main(argument: str) -> None:
    """Run the function given to a `Driver`."""
    order = json.loads(argument)
    module, _, name = order["function"].partition(":")
    function = getattr(importlib.import_module(module), name)
    with _session(order) as spark:
        result = function(spark, **order["arguments"])
    (Path(order["directory"]) / "result").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1])
