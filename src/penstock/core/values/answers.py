"""Answers to HTTP requests."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import NamedTuple

__all__ = ["HttpAnswer", "json_answer", "unavailable"]


class HttpAnswer(NamedTuple):
    """The answer to a request: its status, its content type, and its body."""

    status: HTTPStatus
    content_type: str
    body: str


def json_answer(document: object, status: HTTPStatus = HTTPStatus.OK) -> HttpAnswer:
    """Return an answer with a JSON document."""
    return HttpAnswer(status, "application/json", json.dumps(document, default=str) + "\n")


def unavailable(reason: str) -> HttpAnswer:
    """Return an answer 503 with an error text."""
    return json_answer({"error": reason}, HTTPStatus.SERVICE_UNAVAILABLE)
