"""The cases left out of a short run."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.backends import Spec
from tests.support.tiers import left_out

FAKE, SERVER, OTHER = Spec("fake", is_fake=True), Spec("redis-1"), Spec("redis-2")


@dataclass(eq=False)
class Case:
    """A case of a test, as collected by pytest."""

    test: str
    number: int = 0
    spec: Spec | None = None
    marks: dict[str, pytest.Mark] = field(default_factory=dict)
    fixturenames: tuple[str, ...] = ()

    @property
    def nodeid(self) -> str:
        return f"{self.test}[{self.spec.name if self.spec else ''}-{self.number}]"

    @property
    def path(self) -> Path:
        return Path(self.test.partition("::")[0])

    @property
    def callspec(self) -> Any:
        return SimpleNamespace(params={"backend": self.spec} if self.spec else {})

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


def cases(test: str, count: int, *specs: Spec | None, **options: Any) -> list[Case]:
    """Return this many cases on each back end."""
    return [Case(test, number, spec, **options) for spec in specs for number in range(count)]


def kept(items: Any, *, whole: bool = False) -> list[Case]:
    """Return the cases that are not left out."""
    left = set(left_out(items, whole=whole))
    return [item for item in items if item not in left]


@pytest.mark.parametrize("whole", [False, True])
def test_each_case_runs_on_one_kind_of_back_end(whole: bool) -> None:
    """Cases run on fakeredis or on every server, about half each; on one kind alone, on that."""
    names = [f"tests/a.py::test_{n}" for n in range(40)]
    items = [c for name in names for c in cases(name, 3, FAKE, SERVER, OTHER)]
    ran = Counter((c.test, c.number, c.spec is FAKE) for c in kept(items, whole=whole))
    assert {count for (*_, is_fake), count in ran.items() if is_fake} == {1}
    assert {count for (*_, is_fake), count in ran.items() if not is_fake} == {2}
    assert {(c.test, c.number) for c in items} == {(test, number) for test, number, _ in ran}
    assert len(ran) == 120
    assert 40 < sum(is_fake for *_, is_fake in ran) < 80
    assert len(kept(cases(names[0], 3, FAKE))) == 3


def test_generated_suites_share_the_back_ends() -> None:
    """The asynchronous tests run on servers; the synchronous ones use fakeredis,
    and start no server.
    """
    ours = cases("tests/_async/a.py::test", 2, FAKE, SERVER)
    twins = cases("tests/_sync/a.py::test", 2, FAKE, SERVER)
    starting = cases("tests/_sync/b.py::test", 1, None, fixturenames=("make_server",))
    plain = cases("tests/_sync/c.py::test", 1, None)
    found = kept([*ours, *twins, *starting, *plain], whole=True)
    assert found == [*ours[2:], *twins[:2], *plain]
    assert kept([*starting, *plain]) == [*starting, *plain]


def test_a_short_run_has_one_of_two_twins() -> None:
    """Each case runs in one suite; a case that only one suite has runs there."""
    names = [f"a.py::test_{n}" for n in range(40)]
    ours = [c for name in names for c in cases(f"tests/_async/{name}", 3, FAKE, SERVER)]
    twins = [c for name in names for c in cases(f"tests/_sync/{name}", 3, FAKE, SERVER)]
    alone = cases("tests/_async/b.py::test", 3, SERVER)
    starting = [cases(f"tests/{suite}/c.py::test", 1, None, fixturenames=("make_server",))
        for suite in ("_async", "_sync")]  # fmt: skip
    found = kept([*ours, *twins, *alone, *starting[0], *starting[1]])
    ran = Counter((c.test.rpartition("/")[2], c.number) for c in found)
    assert set(ran.values()) == {1}
    assert len(ran) == 120 + 3 + 1
    suites = Counter((c.path.parts[1], c.spec is FAKE) for c in found if c.spec)
    assert set(suites) == {("_async", False), ("_sync", True)}
    assert 40 < suites["_sync", True] < 80
    assert set(alone) | {starting[0][0]} <= set(found)
    assert kept(twins[:3]) == twins[:3]
    on_one = kept([c for c in [*ours, *twins] if c.spec is SERVER])
    assert Counter((c.test.rpartition("/")[2], c.number) for c in on_one) == dict.fromkeys(
        [(name, number) for name in names for number in range(3)], 1
    )


def test_sampled_and_slow_cases() -> None:
    """One case in n, at least one; slow ones only in a whole run."""
    marks = {"sampled": pytest.mark.sampled(4).mark}
    many = cases("tests/a.py::test_many", 40, SERVER, marks=marks)
    few = cases("tests/a.py::test_few", 2, SERVER, marks=marks)
    one = cases("tests/a.py::test_one", 1, SERVER, marks=marks)
    slow = cases("tests/a.py::test_slow", 1, None, marks={"slow": pytest.mark.slow.mark})
    items = [*many, *few, *one, *slow]
    assert Counter(c.test.rpartition("_")[2] for c in kept(items)) == {
        "many": 10, "few": 1, "one": 1
    }  # fmt: skip
    assert kept(items, whole=True) == items
