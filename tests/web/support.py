"""A client of the page that reads HTML and submits its forms."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from starlette.testclient import TestClient


@dataclass
class Form:
    """A form of a page: where it goes, its fields, and its buttons as (name, value, text)."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str, str]] = field(default_factory=list)


class Reader(HTMLParser):
    """Collects the text, the forms, the links and the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self.links: list[tuple[str, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[Any] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag == "form":
            self.forms.append(Form(given["action"] or "", given.get("method") or "get"))
        elif tag == "input" and self.forms and given.get("name"):
            if given.get("type") != "checkbox":
                self.forms[-1].fields.append((given["name"] or "", given.get("value") or ""))
        elif tag == "button" and self.forms:
            self.forms[-1].buttons.append((given.get("name") or "", given.get("value") or "", ""))
        elif tag == "a":
            self.links.append((given.get("href") or "", ""))

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.words.append(data)


class Page:
    """An answer of the page."""

    def __init__(self, response: Any) -> None:
        self.status = response.status_code
        self.headers = response.headers
        self.url = str(response.url)
        self.html = response.text
        self.reader = Reader()
        self.reader.feed(self.html)
        self.text = " ".join(" ".join(self.reader.words).split())

    def form(self, button: str, value: str | None = None, group: str = "") -> Form:
        """Return the action's form with a button of this name and value, about this group."""
        for form in self.reader.forms:
            if form.method == "get" or dict(form.fields).get("group", "") != group:
                continue
            for name, own, _ in form.buttons:
                if name == button and value in (None, own):
                    return form
        raise AssertionError(f"no button {button}={value}: {self.text[:300]}")


class Browser:
    """Reads pages and submits forms, as a browser without JavaScript."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def get(self, path: str, **options: Any) -> Page:
        """Read a page."""
        return Page(self.client.get(path, **options))

    def submit(self, form: Form, *fields: tuple[str, str]) -> Page:
        """Submit a form with more fields."""
        return self.post(form.action, [*form.fields, *fields])

    def post(self, path: str, fields: list[tuple[str, str]], **options: Any) -> Page:
        """Send the fields of a form."""
        data: dict[str, list[str]] = {}
        for name, value in fields:
            data.setdefault(name, []).append(value)
        return Page(self.client.post(path, data=data, **options))

    def press(self, page: Page, name: str, value: str, *fields: tuple[str, str]) -> Page:
        """Press a button of a page."""
        return self.submit(page.form(name, value), (name, value), *fields)
