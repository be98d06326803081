"""Templates and static files of the page. The package may be in a zip archive."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["answer_static", "read_template"]

PACKAGE = resources.files("penstock.web")
CONTENT_TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
    "txt": "text/plain",
}
"""The media types of static files, by the ends of their names."""


class StaticFile(NamedTuple):
    """A static file; the ETag changes with its content."""

    content: bytes
    media_type: str
    etag: str


def read_template(name: str) -> str:
    """Return the text of a template."""
    return (PACKAGE / "templates" / name).read_text("utf-8")


@cache
def static_files() -> dict[str, StaticFile]:
    """Return the static files, by their names."""
    found = [file for file in (PACKAGE / "static").iterdir() if file.is_file()]
    return {file.name: _static_file(file.name, file.read_bytes()) for file in found}


def _static_file(name: str, content: bytes) -> StaticFile:
    media_type = CONTENT_TYPES.get(name.rpartition(".")[2], "application/octet-stream")
    return StaticFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:32]}"')


async def answer_static(request: Request) -> Response:
    """Answer with a static file, or with 304 if the browser has it.

    Raises:
        HTTPException: there is none of this name.
    """
    file = static_files().get(request.path_params["name"])
    if file is None:
        raise HTTPException(404)
    headers = {"etag": file.etag}
    known = request.headers.get("if-none-match", "").split(",")
    if not {"*", file.etag}.isdisjoint(tag.strip().removeprefix("W/") for tag in known):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
