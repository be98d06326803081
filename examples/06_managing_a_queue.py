"""Inspect a queue and move its jobs: promote, postpone, recover, scan, delete.

    python examples/06_managing_a_queue.py

It prints:

    waiting: ['a', 'b', 'c'], from the end: ['c', 'b']
    later: ['d'] in 60 s; brought forward: done
    set aside: done; waiting: ['b', 'c', 'd']
    taken over from a silent worker: b, delivery 2
    the silent worker: a later delivery holds the job
    found: a scheduled, b active, c ready, d ready
    withdrawn before its delivery: done, the active one: refused
    the server: 4 jobs in 1 queue
"""

from server import url

from penstock import Penstock, StaleReceipt

with Penstock(url()) as ps:
    letters = ps.queue("example.letters")
    letters.enqueue_many(["a", "b", "c"])
    last = letters.enqueue("d", delay=60)

    waiting = [view.body for view in letters.peek()]
    print(f"waiting: {waiting}, from the end: {[v.body for v in letters.peek(2, newest=True)]}")

    [later] = letters.peek(state="scheduled")
    assert later.next_in is not None
    print(f"later: ['{later.body}'] in {later.next_in:.0f} s; ", end="")
    print(f"brought forward: {letters.promote([last.id])[0]}")

    first = letters.peek(1)[0]
    print(f"set aside: {letters.postpone([first.id])[0]}; ", end="")
    print(f"waiting: {[view.body for view in letters.peek()]}")

    [silent] = letters.reserve()  # its worker never reports
    [taken] = letters.recover(idle=0)
    print(f"taken over from a silent worker: {taken.body}, delivery {taken.deliveries}")
    try:
        silent.ack()
    except StaleReceipt as error:
        print("the silent worker:", str(error).partition(": ")[2].partition(",")[0])

    found = sorted((view.body, view.state) for view in letters.jobs())
    print("found:", ", ".join(f"{body} {state}" for body, state in found))

    outcomes = letters.delete([letters.peek(1)[0].id, taken], if_undelivered=True)
    print(f"withdrawn before its delivery: {outcomes[0]}, the active one: {outcomes[1]}")
    letters.enqueue("e")

    info = ps.info()
    print(f"the server: {info.registered_jobs} jobs in {info.registered_queues} queue")
    letters.purge("ready", "scheduled", "active", "dead")
