"""The progress of a job in a browser: FastAPI with server-sent events.

    pip install penstock fastapi uvicorn
    PENSTOCK_URL=redis://localhost:6379/0 uvicorn progress:app

Open http://localhost:8000 and press the button, or:

    curl -X POST localhost:8000/albums/30       # {"id": "D-..."}
    curl -N localhost:8000/albums/D-.../events  # event: progress ... event: done
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, StreamingResponse

from penstock import AsyncJob, AsyncPenstock, AsyncWorker, BadJobId, Handlers

PAGE = """<!doctype html>
<button>Make an album</button> <progress value="0"></progress> <output></output>
<script>
document.querySelector("button").onclick = async () => {
  const { id } = await (await fetch("/albums/30", { method: "POST" })).json()
  const events = new EventSource(`/albums/${id}/events`)
  const tell = (text) => { document.querySelector("output").textContent = text }
  events.addEventListener("progress", ({ data }) => {
    const { done, total, note } = JSON.parse(data)
    Object.assign(document.querySelector("progress"), { value: done, max: total })
    tell(note)
  })
  for (const end of ["done", "failed"]) {
    events.addEventListener(end, ({ data }) => { events.close(); tell(`${end}: ${data}`) })
  }
}
</script>
"""
handlers = Handlers()


@handlers.handler("album", result_ttl=600)
async def album(job: AsyncJob, pictures: int) -> str:
    for picture in range(pictures):
        job.progress(picture, pictures, f"picture {picture + 1}")
        await asyncio.sleep(0.1)
    return f"{pictures} pictures"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncPenstock(os.environ.get("PENSTOCK_URL", "redis://localhost:6379/0")) as ps:
        app.state.albums = ps.queue("albums")
        async with AsyncWorker(ps, "albums", handlers):  # or `penstock worker` in other processes
            yield


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.post("/albums/{pictures}", status_code=202)
async def add(pictures: int) -> dict[str, str]:
    job = await album.enqueue(app.state.albums, pictures)
    return {"id": job.id}


@app.get("/albums/{job_id}/events")
async def events(job_id: str) -> StreamingResponse:
    try:
        found = await app.state.albums.show(job_id)
    except BadJobId:
        found = None
    if found is None:
        raise HTTPException(404, "no such album")
    return StreamingResponse(watch(job_id), media_type="text/event-stream")


async def watch(job_id: str) -> AsyncIterator[str]:
    """Tell each progress, and the end of the job."""
    async for seen in app.state.albums.watch(job_id):
        if seen.progress is not None:
            told = seen.progress
            yield event("progress", {"done": told.done, "total": told.total, "note": told.note})
        elif seen.kind == "ended" and seen.state == "done":
            yield event("done", seen.value)
        elif seen.kind == "ended":
            yield event("failed", f"{seen.state} {seen.error}")


def event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"
