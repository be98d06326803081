"""Jobs that survive their server: wait until a replica, or the disk, has them.

    python examples/14_replicas.py

It prints:

    refused at once: 0 of 1 replicas are connected
    1 replica has order 1; by the queue's setting 1 has order 2
    order 1 is shipped, and 1 replica knows it
    the replica is cut off: 0 of 1 replicas confirmed: the jobs were withdrawn
    order 2 is shipped, and no replica knows it: 0 of 1 confirmed, outcome: done
    the primary is gone; what the replica will deliver again: ['order 2']
    on disk: order 3
"""

from redis import Redis
from server import url

from penstock import AckNotReplicated, Durable, NotReplicated, Penstock
from penstock.embedded import EmbeddedServer

with Penstock(url()) as ps:
    q = ps.queue("example.orders")
    try:
        q.enqueue("order 0", replicas=1)
    except NotReplicated as error:  # no consumer will get the job
        print(f"refused at once: {error.connected} of {error.wanted} replicas are connected")
        q.enqueue("order 0")  # then without a copy
        q.reserve()[0].ack()

quick = ("--repl-diskless-sync-delay", "0")
with (
    EmbeddedServer(tcp=True, args=quick) as primary,
    EmbeddedServer(tcp=True) as replica,
    Penstock(primary.url) as ps,
    Penstock(replica.url) as promoted,
):
    with Redis(port=replica.port) as raw:
        raw.replicaof("127.0.0.1", str(primary.port))
    with Redis(port=primary.port) as raw:
        raw.wait(1, 3000)  # until it is connected
    q = ps.queue("orders")
    first = q.enqueue("order 1", durable=Durable(1, timeout=30))
    q.configure(replicas=1)  # from now on for all producers
    second = q.enqueue("order 2", durable=Durable(timeout=30))
    others = f"by the queue's setting {second.replicas} has order 2"
    print(f"{first.replicas} replica has order 1; {others}")

    jobs = q.reserve(2)
    shipped = q.ack(jobs[:1], durable=Durable(1, timeout=30))  # the setting does not apply to acks
    print(f"order 1 is shipped, and {shipped.replicas} replica knows it")

    with Redis(port=replica.port) as raw:
        raw.replicaof("NO", "ONE")
    try:
        q.enqueue("order 3", durable=Durable(timeout=0.2))
    except NotReplicated as error:
        print(f"the replica is cut off: {error}")
    try:
        jobs[1].ack(durable=Durable(1, timeout=0.2))
    except AckNotReplicated as error:  # it is done, and that is not undone
        told = f"{error.got} of {error.wanted} confirmed, outcome: {error.outcomes[0]}"
        print(f"order 2 is shipped, and no replica knows it: {told}")

    primary.kill()
    again = [view.body for view in promoted.queue("orders").peek(state="active")]
    print(f"the primary is gone; what the replica will deliver again: {again}")

# Redis 8.0 or newer may sync its file each second; other servers need this setting.
always = ("--appendfsync", "always")
with EmbeddedServer(appendonly=True, args=always) as server, Penstock(server.url) as ps:
    ps.queue("orders").enqueue("order 3", durable=Durable(fsynced=True))
    print(f"on disk: {ps.queue('orders').peek()[0].body}")
