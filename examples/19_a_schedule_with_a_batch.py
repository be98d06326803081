"""A schedule that starts a batch: its jobs have keys and limits, and its callback has a result.

    python examples/19_a_schedule_with_a_batch.py

It prints:

    bills: every 1d
    result of the batch: 12 mails, 600 euros
    at most 2 at a time for one customer: True
    at most 100 a second: True
"""

import threading
import time
from collections import Counter

from server import url

from penstock import Handlers, Job, Penstock, Worker

handlers = Handlers()
lock, running, most, sent = threading.Lock(), Counter(), Counter(), []


@handlers.handler("bills", queue="example.bills", every="1d", result_ttl=60)
def bills() -> str:
    with queue.batch(then=total.options(result_ttl=60).job()) as batch:
        for customer in ("ada", "bob", "eve"):
            mails = [mail.job(customer, euros) for euros in (20, 40, 60, 80)]
            batch.enqueue_many(mails, key=customer)
    return batch.id  # the job id of its callback


@handlers.handler("mail")
def mail(job: Job, customer: str, euros: int) -> None:
    with lock:
        running[customer] += 1
        most[customer] = max(most[customer], running[customer])
    time.sleep(0.05)  # the work
    with lock:
        running[customer] -= 1
        sent.append((job.delivered, euros))


@handlers.handler("total")
def total(job: Job) -> str:  # runs once, when all mails are done
    status = queue.batches.get(job.id)
    return f"{status.done} mails, {sum(euros for _, euros in sent)} euros"


with Penstock(url()) as ps:
    queue = ps.queue("example.bills")
    queue.configure(per_key=2, rate="100/s", burst=4)

    with Worker(ps, "example.bills", handlers, concurrency=8):
        queue.schedules.add("bills", every="1d", job=bills.job())  # as a starting worker does
        print(f"bills: {queue.schedules.list()[0].spec}")
        batch_id = queue.schedules.run("bills").result(timeout=60)  # now, not at midnight
        print("result of the batch:", queue.result(batch_id, timeout=60))

    times = sorted(delivered for delivered, _ in sent)
    print("at most 2 at a time for one customer:", max(most.values()) <= 2)
    print("at most 100 a second:", times[-1] - times[0] >= 0.07)
    queue.schedules.remove("bills")
    queue.configure(per_key=None, rate=None, burst=None)
