"""A queue on three nodes: one dies meanwhile, one is drained, and every job is done.

    python examples/16_several_nodes.py

It prints:

    3 nodes, all in good order
    30 jobs added, while a node died
    the ack of a job of that node: hinted
    nodes missing in the figures: 1
    it is back: 30 jobs done, 0 ready, 0 active, nothing done twice
    leaving: empty True, no job for it
"""

import logging
import time
from contextlib import ExitStack

from server import url

from penstock import Penstock, parse_id
from penstock.embedded import EmbeddedServer

logging.getLogger("penstock").setLevel(logging.ERROR)  # no warning of a node that is down

with ExitStack() as stack:
    others = [stack.enter_context(EmbeddedServer(appendonly=True)) for _ in range(2)]
    sources = [url(), *(server.url for server in others)]
    ps = stack.enter_context(Penstock(sources, retry_for=1))
    letters = ps.queue("example.nodes")
    letters.configure()  # creates the queue on every node
    nodes = ps.nodes.list()
    assert {node.priority for node in nodes} == {1}
    print(f"{len(nodes)} nodes, all in good order")

    victim = others[0]
    with Penstock(victim.url) as direct:
        direct.queue("example.nodes").enqueue("on that node")
    [held] = letters.reserve()
    ids = [letters.enqueue(number).id for number in range(15)]
    victim.kill()
    ids += [letters.enqueue(number).id for number in range(15, 30)]
    print(f"{len(ids)} jobs added, while a node died")

    print(f"the ack of a job of that node: {letters.ack([held])[0]}")
    print(f"nodes missing in the figures: {len(letters.stats().unreachable)}")

    victim.restart()
    while letters.stats().unreachable:  # it is checked at least every two seconds
        time.sleep(0.1)
    done = []
    for job in letters.consume(block=5):
        with job:
            done.append(job.id)
        if len(done) == len(ids):
            break
    assert sorted(done) == sorted(ids)
    stats = letters.stats()
    print(
        f"it is back: {len(done)} jobs done, {stats.ready} ready, {stats.active} active", end=", "
    )
    print("nothing done twice" if stats.acked == len(ids) + 1 else stats)

    leaving = parse_id(letters.enqueue("one more").id).node
    ps.nodes.leave(leaving)
    letters.purge()
    last = letters.enqueue("the last")
    print(f"leaving: empty {bool(ps.nodes.check_drained(leaving))}, ", end="")
    print("no job for it" if parse_id(last.id).node != leaving else "a job for it")
    letters.delete([last.id])
    ps.nodes.join(leaving)
