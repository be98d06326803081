"""Dedup ids: refuse duplicates, update a waiting job, run again afterwards, throttle.

    python examples/07_dedup_ids.py

It prints:

    index page 7: added; again: refused, the job is ready
    with newer content: updated, in its old place: ['page 7, v3', 'page 8']
    while it runs: refused; asked to run again: requeued
    active now: page 7, v3; next: page 7, v4
    done; active now: page 7, v4
    report: added; within its window: refused, the id is in a window
    alerts let through: 1 of 5
    search, 0.2 s after the last key: ['penstock']
"""

from server import url

from penstock import Dedup, Penstock

with Penstock(url()) as ps:
    q = ps.queue("example.index")
    q.clear()  # ids of an earlier run may still be taken

    first = q.enqueue("page 7, v1", dedup_id="page 7")
    again = q.enqueue("page 7, v2", dedup_id="page 7")
    print(f"index page 7: {first.action}; again: {again.action}, the job is {again.state}")
    q.enqueue("page 8", dedup_id="page 8")
    newer = q.enqueue("page 7, v3", dedup=Dedup("page 7", on_duplicate="update"))
    places = [view.body for view in q.peek()]
    print(f"with newer content: {newer.action}, in its old place: {places}")

    [job] = q.reserve()
    late = q.enqueue("page 7, v4", dedup=Dedup("page 7", on_duplicate="update"))
    after = q.enqueue("page 7, v4", dedup=Dedup("page 7", on_duplicate="requeue+update"))
    print(f"while it runs: {late.action}; asked to run again: {after.action}")
    status = q.dedup_status("page 7")
    assert status is not None
    assert status.job is not None
    assert status.successor is not None
    print(f"{status.state} now: {status.job.body}; next: {status.successor.body}")
    job.ack()  # now the other one may run
    [_, job] = q.reserve(2)
    print(f"done; active now: {job.body}")
    q.purge("active")

    report = q.enqueue("report", dedup=Dedup("report", window=60))
    q.ack(q.reserve())
    soon = q.enqueue("report", dedup_id="report")
    print(f"report: {report.action}; within its window: {soon.action}, the id is in a {soon.state}")

    alerts = [
        q.enqueue("disk full", dedup=Dedup("disk", until="enqueued", window=60)) for _ in range(5)
    ]
    print(f"alerts let through: {sum(not alert.duplicate for alert in alerts)} of 5")
    q.ack(q.reserve())

    for typed in ("p", "pen", "penstock"):
        q.enqueue(typed, dedup=Dedup("search", on_duplicate="debounce"), delay=0.2)
    jobs = q.reserve()
    print(f"search, 0.2 s after the last key: {[job.body for job in jobs]}")
    q.ack(jobs)
