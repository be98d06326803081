"""A chunk handler: many jobs in one call, with a result for each.

    python examples/10_chunks.py

It prints:

    100 rows
    100 rows
    52 rows
    stored: 250 rows
    done 250, tried again later 1, given up 1
    row 13 is not a number
"""

import logging

from server import url

from penstock import Handlers, Job, Penstock, Reject, Retry, Worker

logging.getLogger("penstock").setLevel(logging.CRITICAL)

handlers = Handlers()
table: list[int] = []


@handlers.chunk("store", size=100, wait=0.05)  # up to 100; fewer after 50 ms
def store(jobs: list[Job]) -> list[Retry | Reject | None]:
    print(len(jobs), "rows")
    table.extend(job.body for job in jobs if isinstance(job.body, int))  # one INSERT, say
    return [verdict(job) for job in jobs]  # one for each job, in their order


def verdict(job: Job) -> Retry | Reject | None:
    if job.body == "locked":
        return Retry(after=60)
    if not isinstance(job.body, int):
        return Reject(f"row {job.body} is not a number")
    return None  # done. None instead of the list means all are done; an exception fails all of them


with Penstock(url()) as ps:
    rows = ps.queue("example.rows")
    rows.enqueue_many([*range(250), "locked", "13"], headers=store.headers)

    worker = Worker(ps, "example.rows", handlers, concurrency=1, burst=True)
    worker.run()

    print("stored:", len(table), "rows")
    counts = worker.status().stats.counts
    print("done {done}, tried again later {retried}, given up {rejected}".format(**counts))
    for letter in rows.peek(state="dead"):
        print(letter.error)
    rows.purge("dead", "scheduled")
