"""Steps: a handler that fails half-way goes on where it was, and does nothing twice.

    pip install penstock
    python examples/21_steps.py

It prints:

    reserve a bicycle
    charge 300 euros
    the label printer is out of paper
    ship it from shelf 7
    order 7: sent
"""

import logging

from server import url

from penstock import Handlers, Penstock, Retry, Steps, Worker

logging.disable()
handlers = Handlers(queue="example.orders")
paper: list[str] = []
paid: dict[str, int] = {}


def reserve(article: str) -> dict[str, int]:
    print(f"reserve a {article}")
    return {"shelf": 7, "euros": 300}


def charge(euros: int, key: str) -> None:
    # A payment service does the work of one idempotency key once.
    if paid.setdefault(key, euros) == euros:
        print(f"charge {euros} euros")


def ship(shelf: int) -> str:
    if not paper:
        raise RuntimeError("the label printer is out of paper")
    print(f"ship it from shelf {shelf}")
    return "sent"


@handlers.handler
def order(steps: Steps, order_id: str, article: str) -> None:
    stock = steps.run("reserve", reserve, article)
    steps.run("charge", charge, stock["euros"], key=steps.key("charge"))
    try:
        state = steps.run("ship", ship, stock["shelf"])
    except RuntimeError as error:
        print(error)
        paper.append("a new roll")
        raise Retry(after=0) from error
    print(f"order {order_id}: {state}")


with Penstock(url()) as ps:
    order.enqueue(ps.queue("example.orders"), "7", article="bicycle")
    Worker(ps, handlers=handlers, burst=True).run()
