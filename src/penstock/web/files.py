"""Templates and static files of the page. The package may be in a zip archive."""

from __future__ import annotations

from functools import cache
from importlib import resources

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

__all__ = ["answer_static", "read_template"]

PACKAGE = resources.files("penstock.web")
TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}
"""The media types of static files, by the ends of their names."""


def read_template(name: str) -> str:
    """Return the text of a template."""
    return (PACKAGE / "templates" / name).read_text("utf-8")


@cache
def static_files() -> dict[str, bytes]:
    """Return the static files, by their names."""
    return {file.name: file.read_bytes() for file in (PACKAGE / "static").iterdir()}


async def answer_static(request: Request) -> Response:
    """Answer with a static file.

    Raises:
        HTTPException: there is none of this name.
    """
    name = request.path_params["name"]
    content = static_files().get(name)
    if content is None:
        raise HTTPException(404)
    return Response(content, media_type=TYPES[name.rpartition(".")[2]])
