"""A producer and a consumer.

    python examples/01_producer_and_consumer.py

It prints:

    send to ada
    send to grace
    send to edsger
    3 jobs done, 0 left
"""

from server import url

from penstock import Penstock

with Penstock(url()) as ps:
    emails = ps.queue("example.emails")

    # The producer: when enqueue has returned, the job will be delivered, even after a crash.
    emails.enqueue({"to": "ada"})
    emails.enqueue_many({"to": name} for name in ["grace", "edsger"])

    # The consumer, usually a separate process. Each job is leased to it: if it were killed here,
    # another consumer would get the job after 30 seconds.
    done = 0
    for job in emails.consume(block=0.5):  # ends after half a second without a job
        with job:  # acknowledges at the end; an exception would make it a failed attempt
            print("send to", job.body["to"])
            done += 1

    print(done, "jobs done,", emails.stats().ready, "left")
