"""FastAPI with a worker in the same process: the worker lives as long as the app.

    pip install penstock fastapi uvicorn
    PENSTOCK_URL=redis://localhost:6379/0 uvicorn app:app

    curl -X POST localhost:8000/welcome/ada     # adds a job
    curl localhost:8000/sent                    # ["ada"]
    curl localhost:8000/health                  # whether the worker is well

SIGTERM ends uvicorn's requests first, then the worker: running handlers have its grace to finish.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Response

from penstock import AsyncPenstock, AsyncWorker, Handlers
from penstock.worker import STATE, State

handlers = Handlers()


class Mailer:
    """Stands in for a connection that handlers share."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def send(self, to: str) -> None:
        self.sent.append(to)


@handlers.handler("welcome")
async def welcome(to: str, mailer: State[Mailer] = STATE) -> None:
    await mailer.send(to)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Run the worker from the app's start to its end."""
    mailer = app.state.mailer = Mailer()
    async with AsyncPenstock(os.environ.get("PENSTOCK_URL", "redis://localhost:6379/0")) as ps:
        worker = AsyncWorker(ps, "emails", handlers, concurrency=50)

        @worker.lifespan
        @asynccontextmanager
        async def resources() -> AsyncIterator[Mailer]:
            yield mailer
            print("the worker has ended")

        app.state.emails, app.state.worker = ps.queue("emails"), worker
        async with worker:
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/welcome/{name}", status_code=202)
async def add(name: str) -> dict[str, str]:
    job = await welcome.enqueue(app.state.emails, name)
    return {"id": job.id}


@app.get("/sent")
async def sent() -> list[str]:
    return app.state.mailer.sent


@app.get("/health")
async def health(response: Response) -> dict[str, bool]:
    well = app.state.worker.healthy()
    response.status_code = 200 if well else 503
    return {"healthy": well}
