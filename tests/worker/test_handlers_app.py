"""The app to which a handler belongs."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from penstock import BadArgument, Handlers
from penstock.worker.functions import app_of


def send() -> None:
    """Do nothing."""


def test_the_app_of_a_handler() -> None:
    """The top-level package of its function, or the name that its set was given."""
    assert Handlers().handler("send")(send).app == "tests"
    assert Handlers(app="shop of ada").handler("send")(send).app == "shop of ada"
    whole = Handlers(app="whole")
    part = Handlers(app="part")
    part.handler("send")(send)
    whole.include(part)
    assert [handler.app for handler in whole] == ["part"]


@pytest.mark.parametrize(
    "main, app",
    [
        ({"__spec__": None, "__file__": "/srv/shop.py"}, "shop"),
        ({"__spec__": SimpleNamespace(name="shop.tasks"), "__file__": "/srv/x.py"}, "shop"),
        ({"__spec__": None}, "__main__"),
    ],
)
def test_the_app_of_a_script(
    monkeypatch: pytest.MonkeyPatch, main: dict[str, object], app: str
) -> None:
    """The name of its file, or of the package that `python -m` runs."""
    module = ModuleType("__main__")
    vars(module).update(main)
    monkeypatch.setitem(sys.modules, "__main__", module)
    assert app_of(SimpleNamespace(__module__="__main__")) == app
    assert app_of(object()) in ("", "builtins")


def test_a_bad_app() -> None:
    """It is text."""
    with pytest.raises(BadArgument, match="app=''"):
        Handlers(app="")
