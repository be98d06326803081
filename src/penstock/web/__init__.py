"""The web page: look at queues, jobs, schedules and nodes in a browser, and manage them.

It needs the extra `web`. `penstock web` serves it; `app` makes an ASGI application to mount.
"""

from __future__ import annotations

from penstock.web.app import app

__all__ = ["app"]
