"""The examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import pydoc
from typing import Any

import pytest

import penstock
from penstock import Handlers, Worker
from penstock.testing import PenstockKit
from tests.docs.test_coming_from import URL
from tests.support.backends import Backend

APART = ("_async", "penstock.spark", "penstock.__main__", "penstock.cli.__main__")
"""Examples of asynchronous code run in its generated twin; Spark has tests of its own."""
MODULES = [
    one.name
    for one in pkgutil.walk_packages(penstock.__path__, "penstock.")
    if not any(part in one.name for part in (*APART, "django"))
]


class Finder(doctest.DocTestFinder):
    """Finds functions by the file that defines them: methods are named after public classes."""

    def _from_module(self, module: Any, object: Any) -> bool:  # noqa: A002  # the name of the base
        if inspect.isfunction(object):
            return object.__globals__ is vars(module)
        found: bool = super()._from_module(module, object)  # type: ignore[misc]  # typeshed omits it
        return found


def test_examples(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each docstring runs alone, on an empty queue `q` of a client `ps`."""
    finder, runner = Finder(), doctest.DocTestRunner(verbose=False)
    found = {
        case.name: case
        for name in ("penstock", *MODULES)
        for case in finder.find(importlib.import_module(name))
        if case.examples
    }
    assert len(found) >= 30
    for case in found.values():
        client = PenstockKit(backend.sync_client())
        client.clear_all(confirm=client.prefix)
        monkeypatch.setattr(penstock, "Penstock", {URL: client}.__getitem__)
        case.globs.update(ps=client, q=client.queue("q"), Worker=Worker, Handlers=Handlers)
        runner.run(case)
        client.close()
    assert runner.summarize(verbose=False).failed == 0


@pytest.mark.parametrize("name", penstock.__all__)
def test_help_of_each_public_name(name: str) -> None:
    """It begins with a sentence, and shows no line that is too long for a terminal."""
    thing = getattr(penstock, name)
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return
    first = (inspect.getdoc(thing) or "").partition("\n\n")[0]
    assert first.rstrip().endswith((".", ":"))
    for line in (inspect.getdoc(thing) or "").splitlines():
        assert len(line) <= 100
    assert name in pydoc.plain(pydoc.render_doc(thing))


def test_help_of_the_package() -> None:
    """It has an example, and names the classes to begin with."""
    text = pydoc.plain(pydoc.render_doc(penstock))
    for name in ("Penstock", "Worker", "Handlers", "PenstockError", ">>> emails.enqueue"):
        assert name in text
