"""A comparison with Disque 1.0-rc1: its figures, measured once, and ours of this run.

Disque is not started here. Its figures are those of a machine with 2 cores, which server, client
and, with three copies, all three nodes shared with other work: Disque 1.0-rc1 with its jemalloc
4.0.3, redis-py 8.1 with hiredis 3.5, bodies of 100 bytes, no persistence, medians of 5 rounds.
Processor times varied by 3 to 20 % from round to round, rates by up to three times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from benchmarks.bed import Bed
from benchmarks.contenders import Jobs
from benchmarks.cost import LIFE, Samples, life, stock, weigh
from benchmarks.figures import Budget, Sample, Table, median, pairwise
from benchmarks.machine import share_cores
from benchmarks.plan import BODY, Plan
from penstock.core.values.durable import Durable
from penstock.embedded import EmbeddedServer, EmbeddedServerError, find_server

__all__ = ["copies", "disque", "three"]

CPU, RATE, ADDS, BYTES = "us CPU/job", "jobs/s", "adds/s", "bytes/job"
CPU_BUDGET, MEMORY_BUDGET, COPIES_BUDGET = 0.9, 0.3, 10.0
ROUNDS = 7
REPLICAS = 2
PATIENCE = 30.0
"""Seconds: a replica that is late on a busy machine does not fail the measurement."""


@dataclass(frozen=True, slots=True)
class Known:
    """A figure of Disque's.

    Attributes:
        call: the measured call.
        figure: None = not measured.
    """

    call: str
    figure: float | None


# One by one: redis-benchmark without a pipeline; over a raw socket it was about 4 us less.
# By 100: single commands over a raw socket, pipelined by 100; the whole life is their sum.
DISQUE_CPU: Mapping[tuple[int, str], Known] = {
    (1, "add"): Known("ADDJOB", 13.0),
    (1, "reserve"): Known("GETJOB", 13.6),
    (1, "ack"): Known("ACKJOB", None),
    (100, "add"): Known("ADDJOB pipelined by 100", 1.84),
    (100, "reserve"): Known("GETJOB pipelined by 100", 2.72),
    (100, "ack"): Known("ACKJOB pipelined by 100", 1.31),
    (100, LIFE): Known("the three, pipelined by 100", 1.84 + 2.72 + 1.31),
}
# One by one: over a raw socket, without the cost of a client library. By 100: redis-py's pipeline.
# The whole life was noted as 149,000 jobs/s; the rates of its three steps allow for a third of it.
# By 1000: one command for all of them, the most that Disque gives.
DISQUE_RATE: Mapping[tuple[int, str], Known] = {
    (1, "add"): Known("ADDJOB", 52_700),
    (1, "reserve"): Known("GETJOB", 47_000),
    (1, "ack"): Known("ACKJOB", 50_700),
    (100, "add"): Known("ADDJOB pipelined by 100", 167_000),
    (100, "reserve"): Known("GETJOB pipelined by 100", 117_000),
    (100, "ack"): Known("ACKJOB pipelined by 100", 170_000),
    (100, LIFE): Known("the three, pipelined by 100", 149_000),
    (1000, "add"): Known("no such call", None),
    (1000, "reserve"): Known("GETJOB COUNT 1000", 1_270_000),
    (1000, "ack"): Known("ACKJOB of 1000 ids", 606_000),
}
# One LPUSH of the Redis on that machine, over a raw socket, pipelined by 100.
YARDSTICK = Known("LPUSH pipelined by 100", 0.42)
DISQUE_LIFE = Known("the three, pipelined by 100", (1.84 + 2.72 + 1.31) / 0.42)
# A million waiting jobs.
DISQUE_BYTES = Known("queued", 547)
# Three nodes on the two cores. A replicated ADDJOB blocks its connection: a pipeline gains nothing.
DISQUE_COPIES: Mapping[int, tuple[Known, Known]] = {
    1: (Known("ADDJOB REPLICATE 3", 10_400), Known("ADDJOB REPLICATE 3", 41.8)),
    100: (
        Known("ADDJOB REPLICATE 3 pipelined by 100", 10_300),
        Known("ADDJOB REPLICATE 3 pipelined by 100", 40.3),
    ),
}
COLUMNS = ("call", "Disque's", "unit", "penstock", "Disque 1.0-rc1", "x Disque")
MACHINE = (
    "Disque's figures were measured once, on a busy machine with 2 cores, and are not of this run:"
    " compare with them on a machine of that kind alone."
)


def disque(bed: Bed, plan: Plan) -> Table:
    """Compare server CPU, jobs/s and memory of ADDJOB, GETJOB and ACKJOB with penstock's calls."""
    table = Table(
        "disque",
        "Beside Disque 1.0-rc1",
        COLUMNS,
        f"{MACHINE} us CPU/job is that of the server; jobs/s are from Python, but Disque's one by"
        " one, and its calls for 1000 jobs, which had no client library to pay for. LPUSH tells"
        " this machine from that one; a life counted in LPUSHes owes the difference little.",
    )
    weights = weigh(bed, Jobs(bed.client, "disque weight"), plan.memory)
    pushes: list[Sample] = []
    rounds = {
        1: _lives(bed, plan, 1),
        100: _lives(bed, plan, 100, beside=lambda: pushes.append(_push(bed, plan.bulk))),
        1000: _lives(bed, plan, 1000),
    }
    for (n, step), known in DISQUE_CPU.items():
        found = [samples[step].server_us for samples in rounds[n]]
        limit = CPU_BUDGET if step == LIFE else None
        name = f"server CPU, whole life, batch {n}, x Disque"
        _add(table, _call(step, n), known, CPU, found, _at_most(name, limit))
    lengths = [push.server_us for push in pushes]
    _add(table, "LPUSH here, and beside Disque", YARDSTICK, CPU, lengths)
    lives = [samples[LIFE].server_us for samples in rounds[100]]
    bound = _at_most("the same, counted in LPUSHes, x Disque", CPU_BUDGET)
    _add(table, f"{LIFE} by 100", DISQUE_LIFE, "LPUSHes", [pairwise(lives, lengths)], bound)
    for (n, step), known in DISQUE_RATE.items():
        _add(table, _call(step, n), known, RATE, [samples[step].rate for samples in rounds[n]])
    bound = _at_most("memory per waiting job, x Disque", MEMORY_BUDGET)
    _add(table, "waiting job", DISQUE_BYTES, BYTES, [weights["used_memory"]], bound)
    return table


def _lives(
    bed: Bed, plan: Plan, n: int, *, beside: Callable[[], None] = lambda: None
) -> list[Samples]:
    """Return the cost of each step with n jobs a call, by round; `beside` runs in each round."""
    jobs = Jobs(bed.client, f"disque {n}")
    stock(jobs, plan.standing)
    life(bed, jobs, n, 1000)
    found = []
    for _ in range(min(plan.rounds, ROUNDS)):
        found.append(life(bed, jobs, n, plan.cost[n]))
        beside()
    bed.drop(jobs.keys())
    return found


def _push(bed: Bed, jobs: int) -> Sample:
    """Measure LPUSH pipelined by 100 and prepared before: the cost of a plain command here."""
    key = bed.key("yardstick")
    with bed.redis.client() as client:  # with its own connection
        conn = client.connection
        trip = b"".join(conn.pack_command("LPUSH", key, BODY)) * 100

        def work() -> int:
            for _ in range(jobs // 100):
                conn.send_packed_command([trip])
                for _ in range(100):
                    conn.read_response()
            return jobs

        sample = bed.measure(work)
    bed.drop([key.encode()])
    return sample


CALLS = {
    "add": ("enqueue", "enqueue_many"),
    "reserve": ("reserve", "reserve"),
    "ack": ("ack", "ack"),
    LIFE: (LIFE, LIFE),
}


def _call(step: str, n: int) -> str:
    one, many = CALLS[step]
    return f"{one}, one by one" if n == 1 else f"{many} by {n}"


def _at_most(name: str, limit: float | None) -> Callable[[float], Budget] | None:
    return None if limit is None else lambda ratio: Budget(name, ratio, limit)


def _add(
    table: Table,
    call: str,
    known: Known,
    unit: str,
    figures: list[float],
    bound: Callable[[float], Budget] | None = None,
) -> None:
    """A row; the budget is on the ratio."""
    ours = median(figures)
    ratio = ours / known.figure if known.figure else None
    budget = bound(ratio) if bound is not None and ratio is not None else None
    table.add(call, known.call, unit, ours, known.figure, ratio, budget=budget)
    table.rounds[f"{call} {unit}"] = figures


def copies(bed: Bed, plan: Plan) -> Table:
    """Measure adds confirmed by two replicas, on separate servers."""
    table = Table(
        "copies",
        "Adds with three copies, beside Disque 1.0-rc1",
        COLUMNS,
        f"{MACHINE} A primary and {REPLICAS} replicas of our own share the cores of server and"
        " driver. enqueue_many sends one WAIT a call. us CPU/job is the primary's.",
    )
    try:
        with three(bed) as primary:
            rounds = _replicated(primary, plan)
    except EmbeddedServerError as error:
        table.note += f" Left out: {error}."
        return table
    for n, (rate, cpu) in DISQUE_COPIES.items():
        samples = rounds[n]
        call = f"{_call('add', n)}, replicas={REPLICAS}"
        bound = _tenfold if n == 100 else None
        _add(table, call, rate, ADDS, [sample.rate for sample in samples], bound)
        _add(table, call, cpu, CPU, [sample.server_us for sample in samples])
    return table


def _tenfold(ratio: float) -> Budget:
    return Budget("adds with three copies, by 100, x Disque", ratio, COPIES_BUDGET, least=True)


@contextlib.contextmanager
def three(bed: Bed) -> Iterator[Bed]:
    """Start a primary with two replicas in sync."""
    with contextlib.ExitStack() as stack:

        def start(*args: str) -> EmbeddedServer:
            return stack.enter_context(EmbeddedServer(find_server(), tcp=True, args=args))

        primary = start("--repl-diskless-sync-delay", "0")
        replicas = [start("--replicaof", "127.0.0.1", str(primary.port)) for _ in range(REPLICAS)]
        share_cores([primary.pid, *(replica.pid for replica in replicas)], bed.pid)
        found = Bed(primary.url, primary.pid, "with replicas")
        stack.callback(found.redis.close)
        stack.callback(found.client.close)
        found.redis.set(found.key("there"), "1")
        if found.redis.wait(REPLICAS, int(PATIENCE * 1000)) < REPLICAS:
            raise EmbeddedServerError(f"the replicas did not follow within {PATIENCE:g} s")
        yield found


def _replicated(bed: Bed, plan: Plan) -> dict[int, list[Sample]]:
    """Measure adds one by one and by 100, round by round."""
    queue = bed.client.queue("copies")
    durable = Durable(REPLICAS, timeout=PATIENCE)

    def one_by_one(jobs: int) -> int:
        for _ in range(jobs):
            queue.enqueue(BODY, durable=durable)
        return jobs

    def by_100(jobs: int) -> int:
        for _ in range(jobs // 100):
            queue.enqueue_many([BODY] * 100, durable=durable)
        return jobs

    by_100(500)
    found: dict[int, list[Sample]] = {1: [], 100: []}
    for _ in range(min(plan.rounds, ROUNDS)):
        found[1].append(bed.measure(lambda: one_by_one(plan.single)))
        found[100].append(bed.measure(lambda: by_100(plan.bulk)))
        bed.drop(list(queue.ops.keys.names.values()))
    return found
