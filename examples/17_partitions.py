"""A partitioned queue: spread over servers, with the jobs of each user in order.

    python examples/17_partitions.py

It prints:

    400 jobs of 40 users in 8 partitions, all of them used
    taken by 3 consumers: 400 jobs, those of each user in order
    eve: queue 'example.partitions' has 8 partitions, but was opened without any: pass partitions=8
    open(): 8 partitions, 400 jobs done
"""

from collections import defaultdict

from server import url

from penstock import Penstock, QueuePartitioned, parse_id

with Penstock(url()) as ps, Penstock(url()) as other, Penstock(url()) as third:
    clicks = ps.queue("example.partitions", partitions=8)
    clicks.clear()
    bodies = [{"user": f"user:{number % 40}", "click": number} for number in range(400)]
    added = clicks.enqueue_many(bodies, key=lambda body: body["user"])
    used = {parse_id(job_id).crc for job_id in added.ids}
    users = {body["user"] for body in bodies}
    whole = "all" if len(used) == 8 else len(used)
    print(f"{len(added)} jobs of {len(users)} users in 8 partitions, {whole} of them used")

    seen = defaultdict(list)
    consumers = [client.open("example.partitions") for client in (ps, other, third)]
    while jobs := [job for queue in consumers for job in queue.reserve(5, block=0)]:
        for job in jobs:
            seen[job.body["user"]].append(job.body["click"])
            job.ack()
    count = sum(map(len, seen.values()))
    in_order = all(found == sorted(found) for found in seen.values())
    how = "in order" if in_order else "in disorder"
    print(f"taken by {len(consumers)} consumers: {count} jobs, those of each user {how}")

    with Penstock(url()) as stranger:
        try:
            stranger.queue("example.partitions").enqueue({"user": "eve"})
        except QueuePartitioned as error:
            print(f"eve: {error}")
        asked = stranger.open("example.partitions")
        print(f"open(): {asked.partitions} partitions, {asked.stats().acked} jobs done")
