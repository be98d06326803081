"""A queue with a bound: producers are refused, or wait until there is room.

    python examples/03_bounded_queue.py

It prints:

    refused: queue 'example.thumbnails' is full: 3 jobs wait, the limit is 3
    accepted, 10 at a time or one by one, as room appears
    13 pictures done, in order: True
"""

import threading

from server import url

from penstock import Penstock, QueueFull

done = []


def work() -> None:
    with Penstock(url()) as ps:
        for job in ps.queue("example.thumbnails").consume(block=1):
            with job:
                done.append(job.body["picture"])


with Penstock(url()) as ps:
    thumbnails = ps.queue("example.thumbnails")
    thumbnails.configure(max_length=3)  # stored on Redis: it applies to every producer

    thumbnails.enqueue_many({"picture": number} for number in range(3))
    try:
        thumbnails.enqueue({"picture": 3})
    except QueueFull as refusal:
        print("refused:", refusal)

    worker = threading.Thread(target=work)
    worker.start()
    thumbnails.enqueue_many(({"picture": number} for number in range(3, 13)), block=10)
    print("accepted, 10 at a time or one by one, as room appears")

    worker.join()
    print(len(done), "pictures done, in order:", done == sorted(done))
    thumbnails.configure(max_length=None)
