"""An outbox: jobs are added when rows are committed, not before, not never, and not twice.

    pip install penstock sqlalchemy
    python examples/20_an_outbox.py

It prints:

    rolled back: 0 in the queue, 0 in the outbox
    committed: 0 in the queue, 1 in the outbox
    the relay dies before its commit: 1 in the queue, 1 in the outbox
    the next relay: 1 in the queue, 0 in the outbox
    charge ada, attempt 1
    charge ada, attempt 2
    paid: [('ada', 20)]
"""

import logging
from contextlib import suppress
from uuid import UUID, uuid4

from server import url
from sqlalchemy import JSON, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from penstock import Dedup, Handlers, Job, Penstock, Queue, Retry, Worker

engine = create_engine("sqlite:///file::memory:?cache=shared&uri=true")
logging.disable()
handlers = Handlers()


class Base(DeclarativeBase): ...


class Outbox(Base):  # jobs that are not in their queue yet
    __tablename__ = "outbox"
    number: Mapped[int] = mapped_column(primary_key=True)  # their order
    id: Mapped[UUID] = mapped_column(default=uuid4)
    handler: Mapped[str]
    arguments: Mapped[dict[str, object]] = mapped_column(JSON)


class Payment(Base):  # an effect, once for each stable id
    __tablename__ = "payment"
    stable_id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    euros: Mapped[int]


def relay(q: Queue, dies: bool = False) -> None:
    # Adds the jobs of the oldest rows, and deletes the rows. A repeat adds no job again.
    oldest = select(Outbox).order_by(Outbox.number).limit(100).with_for_update(skip_locked=True)
    with Session(engine) as session, session.begin():
        for row in session.scalars(oldest):
            once = Dedup(str(row.id), window=86400)  # relays are away for less than a day
            q.enqueue(row.arguments, headers={"handler": row.handler}, dedup=once)
            session.delete(row)
        if dies:
            raise SystemExit


@handlers.handler("charge")
def charge(job: Job, name: str, euros: int) -> None:
    print(f"charge {name}, attempt {job.attempt}")
    with Session(engine) as session, session.begin():
        if not session.get(Payment, job.stable_id):  # no earlier delivery has paid
            session.add(Payment(stable_id=job.stable_id, name=name, euros=euros))
    if job.attempt == 1:
        raise Retry(0, "no answer from the shop, after the commit")


def show(what: str) -> None:
    waiting = Session(engine).query(Outbox).count()
    print(f"{what}: {q.stats().ready} in the queue, {waiting} in the outbox")


Base.metadata.create_all(engine)
with Penstock(url()) as ps:
    q = ps.queue("example.orders")

    with Session(engine) as session:
        session.add(Outbox(handler="charge", arguments={"name": "eve", "euros": 50}))
        session.rollback()
        show("rolled back")
        session.add(Outbox(handler="charge", arguments={"name": "ada", "euros": 20}))
        session.commit()
        show("committed")

    with suppress(SystemExit):
        relay(q, dies=True)
    show("the relay dies before its commit")
    relay(q)
    show("the next relay")

    Worker(ps, q.name, handlers, burst=True).run()
    print("paid:", Session(engine).query(Payment.name, Payment.euros).all())
