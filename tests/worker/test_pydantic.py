"""Arguments through pydantic: models, dataclasses, dates, and validation errors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from penstock import BadArgument, Job
from penstock.integrations.pydantic import converter
from penstock.worker import Handlers, Unfit
from tests.worker.deliveries import named, stored


class User(BaseModel):
    """A strict model; JSON has no dates, so they are text."""

    model_config = ConfigDict(strict=True)

    name: str
    born: datetime | None = None


@dataclass
class Point:
    """A dataclass."""

    x: int
    y: int = 0


class Address(TypedDict):
    """A typed dict."""

    street: str


class Colour(Enum):
    """An enumeration."""

    RED = "red"


NOW = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc)
VALUES: list[tuple[Any, Any, Any]] = [
    (User, User(name="ada", born=NOW), {"name": "ada", "born": "2026-01-02T03:04:00Z"}),
    (Point, Point(1), {"x": 1, "y": 0}),
    (Address, {"street": "a"}, {"street": "a"}),
    (list[Point], [Point(1, 2)], [{"x": 1, "y": 2}]),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Point | None, None, None),
    (datetime, NOW, "2026-01-02T03:04:00Z"),
    (timedelta, timedelta(seconds=90), "PT1M30S"),
    (UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    (Decimal, Decimal("1.50"), "1.50"),
    (Colour, Colour.RED, "red"),
    (Path, Path("a/b"), "a/b"),
    (bytes, b"abc", "abc"),
    (tuple[int, str], (1, "a"), [1, "a"]),
    (Annotated[int, Field(gt=0)], 5, 5),
]


def handler(annotation: Any) -> Any:
    """Return a handler with one parameter of this type."""

    def function(job: Job, value):  # type: ignore[no-untyped-def]
        return value

    function.__annotations__["value"] = annotation
    return Handlers(convert=converter).handler("f")(function)


@pytest.mark.parametrize("annotation, value, said", VALUES)
def test_there_and_back(annotation: Any, value: Any, said: Any) -> None:
    """A value is stored as JSON and reaches the handler unchanged."""
    there = handler(annotation)
    assert there.job(value).body == {"value": said}
    assert there.arguments(named("f", there.job(value).body))[1]["value"] == value


@pytest.mark.parametrize(
    "annotation, said, reason",
    [
        (User, {"name": 5}, "value={...}: name: Input should be a valid string"),
        (User, {}, "value={}: name: Field required"),
        (
            list[Point],
            [{"x": 1}, {"x": "a"}],
            "value=[...]: 1.x: Input should be a valid integer, ",
        ),
        (datetime, "soon", "value='soon': Input should be a valid datetime"),
        (Annotated[int, Field(gt=0)], -5, "value=-5: Input should be greater than 0"),
        (Path, "\ud800", "value='\\ud800': "),
    ],
)
def test_unfit_bodies(annotation: Any, said: Any, reason: str) -> None:
    """The reason is one line with the place and the expected type."""
    job = stored(b'1;c=json;h.handler=f\n{"value":"\\ud800"}')
    with pytest.raises(Unfit) as caught:
        handler(annotation).arguments(job if said == "\ud800" else named("f", [said]))
    assert caught.value.reason.startswith(f"arguments don't fit f: {reason}")
    assert "\n" not in caught.value.reason


def test_wrong_values_at_the_producer() -> None:
    """A wrong value raises at the producer before anything is written."""
    for annotation, value in ((Point, 5), (Annotated[int, Field(gt=0)], -5), (datetime, "soon")):
        with pytest.raises(BadArgument) as caught:
            handler(annotation).job(value)
        assert caught.value.argument == "value"


def test_an_unknown_annotation() -> None:
    """An unknown annotation is refused at registration."""
    with pytest.raises(BadArgument, match="Unable to generate pydantic-core schema"):
        handler(Handlers)


def test_an_unknown_annotation_that_is_defined_later() -> None:
    """An unknown annotation defined later is refused at the worker's start; jobs are unfit."""
    module: dict[str, Any] = {}
    exec("def function(value: 'Later'): ...", module)
    handlers = Handlers(convert=converter)
    there = handlers.handler("f")(module["function"])
    module["Later"] = Handlers
    with pytest.raises(BadArgument, match="Unable to generate"):
        handlers.check()
    with pytest.raises(Unfit, match="Unable to generate"):
        there.arguments(named("f", [1]))
    module["Later"] = datetime
    handlers.check()
    with pytest.raises(Unfit, match="valid datetime"):
        there.arguments(named("f", ["soon"]))
