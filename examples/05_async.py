"""Penstock with asyncio: three consumers and a producer in one event loop.

    python examples/05_async.py

It prints:

    fetched: ['/a', '/b', '/c', '/d', '/e', '/f']
    left: 0
"""

import asyncio

from server import url

from penstock import AsyncPenstock, AsyncQueue


async def fetch(pages: AsyncQueue, fetched: list[str]) -> None:
    async for job in pages.consume(block=0.5):
        async with job:
            await asyncio.sleep(0.05)  # the others continue meanwhile
            fetched.append(job.body["page"])


async def main() -> None:
    async with AsyncPenstock(url()) as ps:
        pages = ps.queue("example.pages")
        fetched: list[str] = []
        consumers = [asyncio.create_task(fetch(pages, fetched)) for _ in range(3)]
        await pages.enqueue_many({"page": f"/{letter}"} for letter in "abcdef")
        await asyncio.gather(*consumers)
        print("fetched:", sorted(fetched))
        print("left:", (await pages.stats()).ready)


asyncio.run(main())
