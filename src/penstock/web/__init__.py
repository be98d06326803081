"""The web page: look at queues, jobs, schedules and nodes in a browser, and manage them.

It needs the extra `web`. `penstock web` serves it; `app` makes an ASGI application to mount.
"""

from __future__ import annotations

try:
    from penstock.web.app import app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("starlette", "jinja2"):
        raise
    reason = "penstock.web needs starlette and jinja2: pip install 'penstock[web]'"
    raise ModuleNotFoundError(reason, name=error.name) from None

__all__ = ["app"]
