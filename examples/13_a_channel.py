"""A channel: one producer at a time, a bound, and an end for every consumer.

    python examples/13_a_channel.py

It prints:

    second producer: the producer role is held by reader-1: try again when it is free
    reader-1 had to stop; reader-2 goes on, with a higher number: True
    late call of reader-1: this client no longer holds the producer role: take the role again
    after the end: queue 'example.lines' is closed and takes no more jobs: reopen() ends that
    3 consumers have ended by themselves, with 20 lines, each once: True
"""

import threading

from server import url

from penstock import Penstock, QueueClosed, QueueInUse, RoleLost

done = []


def consume() -> None:
    with Penstock(url()) as ps:
        for job in ps.queue("example.lines").consume():  # ends with the queue
            with job:
                done.append(job.body)


with Penstock(url(), owner="reader-1") as one, Penstock(url(), owner="reader-2") as two:
    lines = one.queue("example.lines")
    lines.configure(max_length=5)  # stored on Redis: it applies to every producer
    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for consumer in consumers:
        consumer.start()

    # A process that dies loses the role when its lease ends; each call with the role renews it.
    with lines.exclusive("producer", lease=10) as first:
        first.queue.enqueue_many(range(10), block=30)
        try:
            two.queue("example.lines").exclusive("producer", block=0).take()
        except QueueInUse as refusal:
            print("second producer:", refusal)

    with two.queue("example.lines").exclusive("producer", block=30) as second:
        rises = second.fence > first.fence
        print("reader-1 had to stop; reader-2 goes on, with a higher number:", rises)
        try:
            first.queue.enqueue(10)
        except RoleLost as refusal:
            print("late call of reader-1:", refusal)
        second.queue.enqueue_many(range(10, 20), block=30)
        second.queue.close()
        try:
            second.queue.enqueue(20)
        except QueueClosed as refusal:
            print("after the end:", refusal)

    for consumer in consumers:
        consumer.join()
    whole = sorted(done) == list(range(20))
    print(f"3 consumers have ended by themselves, with {len(done)} lines, each once: {whole}")
    lines.reopen()
    lines.configure(max_length=None)
