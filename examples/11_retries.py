"""The results that a handler can return, and the delay before a failed job is retried.

    python examples/11_retries.py

It prints:

    charge ada, attempt 1
    charge ada, attempt 2
    charge ada, attempt 3
    charge eve, attempt 1
    poll, attempt 1, delivery 1
    poll, attempt 2, delivery 2
    report, attempt 1, delivery 1
    report, attempt 1, delivery 2
    greet, attempt 1
    crawl, attempt 1
    crawl, attempt 2
    report again: refused, its id is in a window
    given up: ValueError: no such card
    given up: no such user
    given up: TimeoutError: no answer
"""

import logging

from server import url
from tenacity import stop_after_attempt, wait_fixed

from penstock import Done, Handlers, Job, Penstock, Reject, Retry, RetryPolicy, Snooze, Worker

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # it logs failures
handlers = Handlers()
# The delay after failure n is random between 0 and base * 2**(n - 1) seconds, at most cap.
patient = RetryPolicy(base=0.01, cap=0.05, on={ValueError: RetryPolicy(max_attempts=1)})


@handlers.handler("charge", retry=patient)  # stored with each job, except for its rules
def charge(job: Job, card: str) -> None:
    print(f"charge {card}, attempt {job.attempt}")
    if card == "eve":
        raise ValueError("no such card")
    if job.attempt < 3:
        raise OSError("line down")


@handlers.handler("poll")
def poll(job: Job) -> Retry | None:  # results may be returned, or raised
    print(f"poll, attempt {job.attempt}, delivery {job.deliveries}")
    return Retry(after=0.01) if job.attempt == 1 else None  # a failure with its own delay


@handlers.handler("report")
def report(job: Job) -> Done:
    print(f"report, attempt {job.attempt}, delivery {job.deliveries}")
    if job.deliveries == 1:
        raise Snooze(0.01)  # later, and not a failure
    return Done(dedup_window=60)  # its dedup id stays taken for a minute


@handlers.handler("greet")
def greet(job: Job) -> None:
    print(f"greet, attempt {job.attempt}")
    raise Reject("no such user")  # a retry would not help


@handlers.handler("crawl", wait=wait_fixed(0.01), stop=stop_after_attempt(2))  # tenacity's
def crawl(job: Job) -> None:
    print(f"crawl, attempt {job.attempt}")
    raise TimeoutError("no answer")


with Penstock(url()) as ps:
    q = ps.queue("example.retries")
    q.clear()  # the id of an earlier run may still be taken
    jobs = [charge.job("ada"), charge.job("eve"), poll.job()]
    jobs += [report.options(dedup_id="report").job(), greet.job(), crawl.job()]
    for job, deliveries in zip(jobs, [3, 1, 2, 2, 1, 2], strict=True):
        q.enqueue(job)
        Worker(ps, "example.retries", handlers, max_jobs=deliveries).run()

    again = report.options(dedup_id="report").enqueue(q)
    print(f"report again: {again.action}, its id is in a {again.state}")
    for letter in q.peek(state="dead"):
        print("given up:", letter.error)
    q.purge("dead")
