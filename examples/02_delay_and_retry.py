"""Delayed jobs, failed jobs that are retried, and dead letters.

    python examples/02_delay_and_retry.py

It prints:

    call grace, attempt 1: line busy
    call grace, attempt 2: reached
    call ada, attempt 1: reached
    call alan, attempt 1: no such number
    call alan, attempt 2: no such number
    call alan, attempt 3: no such number
    given up: alan (OSError: no such number)
    brought back: 1
    call alan, attempt 1: reached
"""

import logging

from server import url

from penstock import Job, Penstock

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # it logs each failure

answers = {"ada": ["reached"], "grace": ["line busy", "reached"]}


def call(job: Job) -> None:
    name = job.body
    answer = answers[name].pop(0) if answers.get(name) else "no such number"
    print(f"call {name}, attempt {job.attempt}: {answer}")
    if answer != "reached":
        raise OSError(answer)


with Penstock(url()) as ps:
    calls = ps.queue("example.calls")
    # A failed job is retried after a random delay: below 5 s, then 10 s, 20 s ... up to 6 h, at
    # most 20 times. This example does not wait so long.
    calls.configure(max_attempts=3, backoff_base=0.01, backoff_cap=0.01)

    calls.enqueue("ada", delay=1)  # not before a second has gone by
    calls.enqueue("grace")
    for job in calls.consume(block=1.5):
        with job:  # an exception inside is a failed attempt
            call(job)

    calls.enqueue("alan")
    for job in calls.consume(block=0.5):
        with job:
            call(job)

    # After the third attempt it is a dead letter, which is kept for 14 days.
    for letter in calls.peek(state="dead"):
        print(f"given up: {letter.body} ({letter.error})")

    answers["alan"] = ["reached"]  # the number was corrected
    print("brought back:", calls.redrive())
    for job in calls.consume(block=0.5):
        with job:
            call(job)

    calls.configure(max_attempts=None, backoff_base=None, backoff_cap=None)  # back to the defaults
