"""A worker: functions with typed arguments, each for the jobs with its name.

    python examples/08_worker.py

It prints:

    Welcome, user 1
    refused by the producer: user_id='seven': must be int
    Welcome, user 7
    Hallo, user 8
    resize a.png to 64 px, attempt 1
    without a name: {'anything': 'goes'}
    done: 4, given back: 1
    scheduled: no handler "fax"
"""

import logging

from server import url

from penstock import BadArgument, Handlers, Job, Penstock, Worker

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # it warns of a handler that is missing

handlers = Handlers()


@handlers.handler("welcome")
def welcome(user_id: int, lang: str = "en") -> None:
    print(f"{'Hallo' if lang == 'de' else 'Welcome'}, user {user_id}")


@handlers.handler("resize")
def resize(job: Job, path: str, *, width: int) -> None:  # `job` is the job itself
    print(f"resize {path} to {width} px, attempt {job.attempt}")


@handlers.handler(None)
def anything(job: Job) -> None:  # gets the jobs without a name
    print(f"without a name: {job.body}")


welcome(1)  # a handler is still a function

with Penstock(url()) as ps:
    tasks = ps.queue("example.tasks")

    try:
        welcome.enqueue(tasks, "seven")  # a type checker finds it, too
    except BadArgument as error:
        print("refused by the producer:", error)

    welcome.enqueue(tasks, 7)
    welcome.enqueue(tasks, 8, lang="de")
    resize.options(ttl=3600).enqueue(tasks, "a.png", width=64)  # also delay=, dedup_id= and so on
    tasks.enqueue({"anything": "goes"})
    tasks.enqueue({"number": 5}, headers={"handler": "fax"})  # no handler has that name

    # One at a time, so that the lines come in order; burst ends when no job is left.
    worker = Worker(ps, "example.tasks", handlers, concurrency=1, burst=True)
    worker.run()

    counts = worker.status().stats.counts
    print(f"done: {counts['done']}, given back: {counts['unknown']}")
    for job in tasks.peek(state="scheduled"):  # another worker may have the handler
        print(f"{job.state}: {job.error}")
    tasks.purge("scheduled")
