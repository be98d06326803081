"""Measure what an append-only file loses when the server is killed, and when the power is lost.

    python tools/durability.py                                # everysec and always, 10 runs each
    python tools/durability.py --policy everysec --stuck 1.5  # each fsync takes 1.5 s longer
    python tools/durability.py --fsynced                      # calls that wait for the disk
    python tools/durability.py --fsynced --believe            # by WAITAOF, whatever the server is
    python tools/durability.py --deliver 0                    # jobs of lease 0, delivered twice

How. A server runs under strace, which notes its writes to the append-only file, and its fsyncs, in
their order. One producer (with --fsynced 16 of them) enqueues job after job and notes the time of
each answer. At a random moment the server gets SIGKILL. Then a server is started twice:

- *killed*: on the file as it is. What had been written survives the process.
- *power*: on the file cut to what had been written when the last fsync that came back began. A
  disk that keeps its word has at least that.

Lost jobs are those whose enqueue was answered and that are not there. Lost seconds are those from
the answer to the first lost job to the kill. With --deliver a consumer takes jobs with that lease,
one by one. Lost are the deliveries that the server has forgotten: it delivers these jobs again.

What it is not. No power is cut. A kernel may write more by itself, so a real loss may be smaller; a
disk that lies about its cache loses more. The directory and the small files beside the append-only
file are taken as kept. strace slows the server (see calls/s): without it more jobs are lost in the
same seconds.

Linux with strace 5.3 or newer (Debian: apt-get install strace). Exit status 2 where that can't
trace, or where its account of the file is not whole.
"""

from __future__ import annotations

import argparse
import itertools
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

if __name__ == "__main__":  # the library of this checkout, installed or not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import redis

from penstock import CannotSync, Durable, NotReplicated, Penstock
from penstock.core.nodes.servers import ServerFacts, Syncing
from penstock.embedded import SOURCE_PREFERENCE, EmbeddedServer, ServerBinary, find_server

FILES = ("appendonlydir/appendonly.aof.1.incr.aof", "appendonly.aof")  # since Redis 7, and before
STRACE = "strace -D -f -q -s0 --seccomp-bpf -e signal=SIGKILL -e trace=write,fsync,fdatasync"
BEGINS = re.compile(r"(\d+) +(\w+)\(")
RETURNS = re.compile(r"(\d+) .*= (-?\d+)\b[^=]*$")
PATIENCE = 30.0
WAITING = 60_000
"""Jobs that wait for the consumer."""


class CannotTrace(Exception):
    """strace is missing or forbidden, or its trace of the file is incomplete."""


@dataclass
class Producer:
    """A producer that enqueues jobs until the server is gone, and records the time of each answer.

    One that waits for the disk has many threads: a file that is synced every second would confirm a
    job a second to each.
    """

    url: str
    fsynced: bool = False
    answered: dict[int, float] = field(default_factory=dict)
    refused: str = ""
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def start(self) -> list[threading.Thread]:
        """Add jobs 0, 1, 2 ... from now on."""
        threads = [threading.Thread(target=self._run) for _ in range(16 if self.fsynced else 1)]
        for thread in threads:
            thread.start()
        return threads

    def _run(self) -> None:
        gone = (redis.ConnectionError, redis.TimeoutError, NotReplicated)
        with suppress(*gone), Penstock(self.url, retry_for=0) as client:
            for number in self.numbers:
                try:
                    client.queue("q").enqueue(b"%d" % number, durable=Durable(fsynced=self.fsynced))
                except CannotSync as error:
                    self.refused = str(error)
                    return
                self.answered[number] = time.monotonic()

    def missing(self) -> list[int]:
        """Return the answered jobs that the server does not have."""
        with Penstock(self.url) as client:
            queue = client.queue("q")
            entries = client.topology.executor.command("XRANGE", queue.ops.keys["ready"], "-", "+")
            there = {int(fields[1].rpartition(b"\n")[2]) for _, fields in entries}
            if queue.stats().enqueued != len(there):
                raise AssertionError("a call is there in part")
        return [number for number in self.answered if number not in there]


@dataclass
class Consumer(Producer):
    """A consumer that takes jobs until the server is gone; it records when it got each of them."""

    lease: float = 0.0

    def start(self) -> list[threading.Thread]:
        """Add jobs, and take them from now on."""
        with Penstock(self.url) as client:
            client.queue("q").enqueue_many((b"%d" % n for n in range(WAITING)), lease=self.lease)
        return super().start()

    def _run(self) -> None:
        durable = Durable(fsynced=True) if self.fsynced else None
        gone = (redis.ConnectionError, redis.TimeoutError, NotReplicated)
        with suppress(*gone), Penstock(self.url, retry_for=0) as client:
            while True:
                try:
                    jobs = client.queue("q").reserve(block=0, durable=durable)
                except CannotSync as error:
                    self.refused = str(error)
                    return
                self.answered.update((int(job.body), time.monotonic()) for job in jobs)

    def missing(self) -> list[int]:
        """Return the delivered jobs that wait on the server."""
        with Penstock(self.url) as client:
            views = client.queue("q").jobs(state=["ready"], n=1000)
            return [number for view in views if (number := int(view.body)) in self.answered]


@dataclass
class Run:
    """The result of a run: calls a second, and for each failure the seconds and jobs lost."""

    rate: float
    lost: dict[str, tuple[float, int]] = field(default_factory=dict)


def traced(binary: ServerBinary, home: Path, stuck: float) -> ServerBinary:
    """Return a script that starts the server under strace, which writes to `home/trace`.

    Raises:
        CannotTrace: strace is missing, too old, or forbidden.
    """
    command = [*shlex.split(STRACE), "-o", str(home / "trace")]
    if stuck:
        command += ["-e", f"inject=fsync,fdatasync:delay_enter={stuck * 1e6:.0f}"]
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotTrace(getattr(error, "stderr", "") or str(error)) from error
    paths = [word for name in FILES for word in ("-P", str(home / name))]
    script = home / "traced"
    script.write_text(f'#!/bin/sh\nexec {shlex.join([*command, *paths, str(binary.path)])} "$@"\n')
    script.chmod(0o700)
    return ServerBinary("traced", script)


def synced_size(home: Path, path: Path, main: int) -> int:
    """Return how much of the file completed fsyncs have certainly covered.

    Raises:
        CannotTrace: the trace has no end, or its writes do not add up to the file.
    """
    deadline = time.monotonic() + PATIENCE
    while f"{main} +++ killed by SIGKILL +++\n" not in (trace := (home / "trace").read_text()):
        if time.monotonic() > deadline:
            raise CannotTrace("the end of the trace is missing")
        time.sleep(0.02)
    written = synced = 0
    begun: dict[str, tuple[str, int]] = {}  # thread -> its call, and the size before it
    for line in trace.splitlines():
        if starts := BEGINS.match(line):
            begun[starts[1]] = (starts[2], written)
        if (ends := RETURNS.match(line)) and ends[1] in begun:
            call, before = begun.pop(ends[1])
            if call == "write":
                written += max(0, int(ends[2]))
            elif ends[2] == "0":
                synced = max(synced, before)
    if written != path.stat().st_size and not any(call == "write" for call, _ in begun.values()):
        raise CannotTrace(f"the trace has {written} bytes of the file's {path.stat().st_size}")
    return synced


def one_run(
    binary: ServerBinary,
    policy: str,
    seconds: float,
    stuck: float,
    home: Path,
    *,
    fsynced: bool,
    lease: float | None = None,
) -> Run:
    """Produce for some seconds, kill the server, and count the jobs left by each failure.

    With a lease, consume jobs that have it.

    Raises:
        CannotSync: the calls were to wait for the disk, and the server is not believed.
    """
    options = ("--appendfsync", policy, "--auto-aof-rewrite-percentage", "0", "--dir", str(home))
    wrapper = traced(binary, home, stuck)
    with EmbeddedServer(wrapper, appendonly=True, args=options) as server:
        producer, main = Producer(server.url, fsynced), server.pid
        if lease is not None:
            producer = Consumer(server.url, fsynced, lease=lease)
        threads = producer.start()
        time.sleep(seconds)
        cut = time.monotonic()
        server.kill()
        for thread in threads:
            thread.join()
        if producer.refused:
            raise CannotSync(producer.refused)
        path = next(home / name for name in FILES if (home / name).exists())
        whole, size = path.read_bytes(), synced_size(home, path, main)
        run = Run(len(producer.answered) / seconds)
        server.binary = binary
        for failure, kept in (("killed", whole), ("power", whole[:size])):
            path.write_bytes(kept)
            server.restart()
            missing = producer.missing()
            since = min((producer.answered[number] for number in missing), default=cut)
            run.lost[failure] = (max(0.0, cut - since), len(missing))
            server.kill()
    return run


def row(policy: str, failure: str, runs: list[Run]) -> str:
    """Return one line of the table."""
    seconds, jobs = zip(*(run.lost[failure] for run in runs), strict=True)
    summary = (min, statistics.median, max)
    times = "".join(f"{f(seconds):8.2f}" for f in summary)
    counts = "".join(f"{f(jobs):8.0f}" for f in summary)
    rate = statistics.median(run.rate for run in runs)
    return f"{policy:<9} {failure:<7} {len(runs):>4} {times} {counts} {rate:>8.0f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--policy", nargs="+", default=["everysec", "always"], metavar="P", help="of appendfsync")
    add("--runs", type=int, default=10, help="for each policy")
    add("--seconds", type=float, nargs=2, default=(2.0, 5.0), metavar="S", help="kill between them")
    add("--stuck", type=float, default=0.0, metavar="S", help="each fsync takes so much longer")
    add("--fsynced", action="store_true", help="calls with durable=Durable(fsynced=True)")
    add("--deliver", type=float, metavar="LEASE", help="take jobs with this lease, do not add any")
    add("--believe", action="store_true", help="whatever server it is, by WAITAOF")
    add("--server", choices=SOURCE_PREFERENCE, help="where the server comes from")
    args = parser.parse_args(argv)
    binary = find_server(args.server or SOURCE_PREFERENCE)
    if args.believe:
        ServerFacts.syncing = lambda *_: Syncing.WAITAOF  # type: ignore[method-assign]
    print(f"{binary.product()} {binary.version()}, each fsync {args.stuck:g} s longer")
    print(f"{'':23}{'seconds of calls lost':^24} {'jobs lost':^24}")
    print("setting   failure runs      min  median     max      min  median     max  calls/s")
    for policy in args.policy:
        runs = []
        for _ in range(args.runs):
            with tempfile.TemporaryDirectory() as home:
                moment = random.uniform(*args.seconds)
                place = Path(home).resolve()
                try:
                    more = {"fsynced": args.fsynced, "lease": args.deliver}
                    run = one_run(binary, policy, moment, args.stuck, place, **more)
                except CannotTrace as error:
                    print(f"durability: can't trace: {error}", file=sys.stderr)
                    return 2
                except CannotSync as error:
                    print(f"{policy:<9} refused: {error}")
                    break
                runs.append(run)
        if runs:
            print(row(policy, "killed", runs), row(policy, "power", runs), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
