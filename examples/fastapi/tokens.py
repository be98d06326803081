"""Tokens in a browser as they are made: FastAPI with server-sent events.

    pip install penstock fastapi uvicorn
    PENSTOCK_URL=redis://localhost:6379/0 uvicorn tokens:app

Open http://localhost:8000 and press the button, or:

    curl -X POST localhost:8000/stories/fox      # {"id": "D-..."}
    curl -N localhost:8000/stories/D-.../events  # event: chunk ... event: ended

The page may come late, or be reloaded: the tokens are kept for ten minutes. If the worker dies,
another one begins the story anew, and the page with it.
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
<button>Tell a story</button> <p></p>
<script>
document.querySelector("button").onclick = async () => {
  const { id } = await (await fetch("/stories/fox", { method: "POST" })).json()
  const events = new EventSource(`/stories/${id}/events`)
  const story = document.querySelector("p")
  events.addEventListener("started", () => { story.textContent = "" })
  events.addEventListener("chunk", ({ data }) => { story.textContent += JSON.parse(data).data })
  events.addEventListener("ended", ({ data }) => {
    events.close()
    const { state, error } = JSON.parse(data)
    if (state !== "done") story.textContent += ` (${state} ${error})`
  })
}
</script>
"""
handlers = Handlers()


async def tokens(subject: str) -> AsyncIterator[str]:
    """Stand in for a language model."""
    for word in f"Once upon a time, a {subject} met another {subject}.".split():
        await asyncio.sleep(0.05)
        yield f"{word} "


@handlers.handler("story", result_ttl=600)
async def story(job: AsyncJob, subject: str) -> str:
    text = ""
    async for token in tokens(subject):
        job.emit(token, ttl=600)
        text += token
    return text


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncPenstock(os.environ.get("PENSTOCK_URL", "redis://localhost:6379/0")) as ps:
        app.state.stories = ps.queue("stories")
        async with AsyncWorker(ps, "stories", handlers):  # or `penstock worker` elsewhere
            yield


app = FastAPI(lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.post("/stories/{subject}", status_code=202)
async def add(subject: str) -> dict[str, str]:
    job = await story.enqueue(app.state.stories, subject)
    return {"id": job.id}


@app.get("/stories/{job_id}/events")
async def events(job_id: str) -> StreamingResponse:
    try:
        found = await app.state.stories.show(job_id)
    except BadJobId:
        found = None
    if found is None:
        raise HTTPException(404, "no such story")
    return StreamingResponse(watch(job_id), media_type="text/event-stream")


async def watch(job_id: str) -> AsyncIterator[str]:
    """Tell each event of the job, until its end."""
    async for event in app.state.stories.watch(job_id):
        told = {"state": event.state, "data": event.data, "error": event.error}
        yield f"event: {event.kind}\ndata: {json.dumps(told)}\n\n"
