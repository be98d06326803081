"""A worker in an event loop: concurrent coroutines, one that loses its job, a graceful end.

    python examples/09_async_worker.py

It prints:

    at work: /a, /b, /slow
    /slow: cancelled, its job is lost
    stop: no more jobs are taken
    /a: fetched
    /b: fetched
    still waiting: 1
"""

import asyncio
import logging

from server import url

from penstock import AsyncJob, AsyncPenstock, AsyncWorker, Handlers

logging.getLogger("penstock").setLevel(logging.CRITICAL)  # it logs the lost job

handlers = Handlers()
at_work: list[str] = []
three, cancelled, answered = asyncio.Event(), asyncio.Event(), asyncio.Event()


@handlers.handler("fetch", lease=1)  # renewed three times a second while the coroutine runs
async def fetch(job: AsyncJob, page: str) -> None:
    at_work.append(page)
    if len(at_work) == 3:
        three.set()
    try:
        await answered.wait()
    except asyncio.CancelledError:
        print(f"{page}: cancelled, its job is {'lost' if job.lost else 'still its own'}")
        cancelled.set()
        raise
    print(f"{page}: fetched")


async def main() -> None:
    async with AsyncPenstock(url()) as ps:
        pages = ps.queue("example.fetch")
        for page in ("/a", "/b"):
            await fetch.enqueue(pages, page)
        slow = await fetch.enqueue(pages, "/slow")

        # Leaving the block stops the worker, and waits up to 25 seconds for its handlers.
        async with AsyncWorker(ps, "example.fetch", handlers, concurrency=3) as worker:
            await three.wait()
            print("at work:", ", ".join(sorted(at_work)))
            await pages.delete([slow.id])  # removes the job while it runs
            await cancelled.wait()
            worker.stop()
            print("stop: no more jobs are taken")
            await fetch.enqueue(pages, "/late")
            answered.set()

        print("still waiting:", (await pages.stats()).ready)
        await pages.purge("ready")


asyncio.run(main())
