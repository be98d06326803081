"""Many customers share one language model: turns, slots, and holds when it says "not now".

    python examples/22_many_tenants.py

It prints:

    acme: prompt 0
    beta: prompt 0
    free: 429, come back in 30 s
    acme: prompt 1
    beta: prompt 1
    acme: prompt 2
    acme: prompt 3
    1 customer is held: 1 prompt snoozed, 1 parked
    the second prompt of free waits for the end of a hold of its key
    free has paid
    free: prompt 1
    free: prompt 0
    acme: 503, all come back in 30 s
    held for 30 s, 1 waits
"""

import logging

from server import url

from penstock import Handlers, Penstock, Retry, Snooze, Worker

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # it logs starts and failures
handlers = Handlers()
refused = {"free"}  # accounts that are over their quota
overloaded = False


class Refused(Exception):
    """An answer of the model: a status, and the header Retry-After."""

    def __init__(self, status: int, retry_after: float) -> None:
        super().__init__(status)
        self.status, self.retry_after = status, retry_after


def ask_model(customer: str, prompt: str) -> str:
    if overloaded:
        raise Refused(503, 30)
    if customer in refused:
        raise Refused(429, 30)
    return f"{customer}: {prompt}"


@handlers.handler("complete")
def complete(customer: str, prompt: str) -> None:
    try:
        print(ask_model(customer, prompt))
    except Refused as error:
        wait = error.retry_after
        if error.status == 429:  # this customer: no attempt is counted, the others go on
            print(f"{customer}: 429, come back in {wait:.0f} s")
            raise Snooze(wait, hold="key") from error
        print(f"{customer}: 503, all come back in {wait:.0f} s")
        raise Retry(wait, hold="queue") from error  # the model: a failure, and nothing else starts


ps = Penstock(url())
prompts = ps.queue("prompts")
# One prompt of each customer in turn; at most 4 calls at once, over all workers.
prompts.configure(share=1, max_active=4)
ids = {}
for customer, count in (("acme", 4), ("beta", 2), ("free", 2)):
    jobs = [complete.job(customer, f"prompt {n}") for n in range(count)]
    ids[customer] = [prompts.enqueue(job, key=customer).id for job in jobs]

Worker(ps, prompts, handlers, concurrency=1, burst=True).run()
stats = prompts.stats()
print(f"{stats.held_keys} customer is held: {stats.scheduled} prompt snoozed,", end=" ")
print(stats.parked, "parked")
waiting = prompts.show(ids["free"][1])
assert waiting is not None
print("the second prompt of free waits for", waiting.waits_for)

print("free has paid")
refused.clear()
prompts.hold(0, key="free")
Worker(ps, prompts, handlers, concurrency=1, burst=True).run()
prompts.promote([ids["free"][0]])
Worker(ps, prompts, handlers, concurrency=1, burst=True).run()

overloaded = True
for n in range(2):
    prompts.enqueue(complete.job("acme", f"late prompt {n}"), key="acme")
Worker(ps, prompts, handlers, concurrency=1, burst=True).run()
stats = prompts.stats()
print(f"held for {stats.held or 0:.0f} s, {stats.ready + stats.parked} waits")
prompts.hold(0)
prompts.purge()
prompts.configure(share=None, max_active=None)
ps.close()
