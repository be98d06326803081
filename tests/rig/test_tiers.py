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
from tests.support.touched import NOTHING, Touched

FAKE, SERVER, OTHER = Spec("fake", is_fake=True), Spec("redis-1"), Spec("redis-2")


@dataclass(eq=False)
class Case:
    """A case of a test, as collected by pytest."""

    test: str
    number: int = 0
    spec: Spec | None = None
    marks: dict[str, pytest.Mark] = field(default_factory=dict)
    fixturenames: tuple[str, ...] = ()
    script: str = ""
    call: str = ""

    @property
    def nodeid(self) -> str:
        return f"{self.test}[{self.spec.name if self.spec else ''}-{self.number}]"

    @property
    def path(self) -> Path:
        return Path(self.test.partition("::")[0])

    @property
    def callspec(self) -> Any:
        params: dict[str, Any] = {"backend": self.spec} if self.spec else {}
        if self.script:
            params["vector"] = SimpleNamespace(script=self.script)
        if self.call:
            params["call"] = self.call
        return SimpleNamespace(params=params)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marks.get(name)


def cases(test: str, count: int, *specs: Spec | None, **options: Any) -> list[Case]:
    """Return this many cases on each back end."""
    return [Case(test, number, spec, **options) for spec in specs for number in range(count)]


def kept(items: Any, *, whole: bool = False, touched: Touched = NOTHING) -> list[Case]:
    """Return the cases that are not left out."""
    left = set(left_out(items, whole=whole, touched=touched))
    return [item for item in items if item not in left]


@pytest.mark.parametrize("whole, count", [(False, 1), (True, 3)])
def test_each_case_runs_on_one_kind_of_back_end(whole: bool, count: int) -> None:
    """Cases run on fakeredis or on every server, about half each; on one kind alone, on that."""
    names = [f"tests/a.py::test_{n}" for n in range(40)]
    items = [c for name in names for c in cases(name, 3, FAKE, SERVER, OTHER)]
    ran = Counter((c.test, c.number, c.spec is FAKE) for c in kept(items, whole=whole))
    assert {count for (*_, is_fake), count in ran.items() if is_fake} == {1}
    assert {count for (*_, is_fake), count in ran.items() if not is_fake} == {2}
    assert {(test, number) for test, number, _ in ran} <= {(c.test, c.number) for c in items}
    assert Counter(test for test, *_ in ran) == dict.fromkeys(names, count)
    assert 13 * count < sum(is_fake for *_, is_fake in ran) < 27 * count
    assert len(kept(cases(names[0], 3, FAKE), whole=whole)) == count


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
    ours = [c for name in names for c in cases(f"tests/_async/{name}", 9, FAKE, SERVER)]
    twins = [c for name in names for c in cases(f"tests/_sync/{name}", 9, FAKE, SERVER)]
    alone = cases("tests/_async/b.py::test", 1, SERVER)
    starting = [cases(f"tests/{suite}/c.py::test", 1, None, fixturenames=("make_server",))
        for suite in ("_async", "_sync")]  # fmt: skip
    found = kept([*ours, *twins, *alone, *starting[0], *starting[1]])
    ran = Counter((c.test.rpartition("/")[2], c.number) for c in found)
    assert set(ran.values()) == {1}
    assert len(ran) == 3 * 40 + 1 + 1
    suites = Counter((c.path.parts[1], c.spec is FAKE) for c in found if c.spec)
    assert set(suites) == {("_async", False), ("_sync", True)}
    assert 40 < suites["_sync", True] < 80
    assert set(alone) | {starting[0][0]} <= set(found)
    assert kept(twins[:1]) == twins[:1]
    on_one = kept([c for c in [*ours, *twins] if c.spec is SERVER])
    assert Counter((c.test.rpartition("/")[2], c.number) for c in on_one) == ran - Counter(
        {("b.py::test", 0): 1, ("c.py::test", 0): 1}
    )


def test_sampled_and_slow_cases() -> None:
    """One case in four, at least one and at most four; slow ones only in a whole run."""
    counts = {"many": 40, "eight": 8, "few": 3, "one": 1}
    items = [
        c for name, count in counts.items() for c in cases(f"a.py::test_{name}", count, SERVER)
    ]
    slow = cases("a.py::test_slow", 1, None, marks={"slow": pytest.mark.slow.mark})
    found = kept([*items, *slow])
    assert Counter(c.test.rpartition("_")[2] for c in found) == {
        "many": 4, "eight": 2, "few": 1, "one": 1
    }  # fmt: skip
    assert kept([*items, *slow], whole=True) == [*items, *slow]
    assert kept([*items, *slow]) == found


def test_all_back_ends_have_the_same_cases() -> None:
    """A short run draws cases once for all back ends, and for both generated suites."""
    names = [f"a.py::test_{n}" for n in range(9)]
    ours = [c for name in names for c in cases(f"tests/_async/{name}", 9, SERVER, OTHER)]
    drawn = [{(c.test, c.number) for c in kept(ours) if c.spec is spec} for spec in (SERVER, OTHER)]
    assert drawn[0] == drawn[1]
    assert len(drawn[0]) == 27
    twins = [c for name in names for c in cases(f"tests/_sync/{name}", 9, SERVER)]
    ran = Counter(
        (c.test.rpartition("/")[2], c.number) for c in kept([*ours[:], *twins]) if c.spec is SERVER
    )
    assert ran == dict.fromkeys([(test.rpartition("/")[2], n) for test, n in drawn[0]], 1)


def test_a_short_run_has_all_cases_of_tests_that_a_change_touches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of a file, those of a script's vectors, and those of the protocol that begin with its
    name; no slow ones, and only so many.
    """
    many = cases("tests/b/test_a.py::test_many", 40, SERVER)
    slow = cases("tests/b/test_a.py::test_slow", 1, None, marks={"slow": pytest.mark.slow.mark})
    other = cases("tests/b/test_b.py::test_other", 40, SERVER)
    vectors = [*cases("tests/c.py::test_vector", 10, None, script="ack")]
    vectors += cases("tests/c.py::test_vector", 30, None, script="nack")
    touched = Touched(frozenset({"tests/b/test_a.py"}), frozenset({"ack"}))
    named = [*cases("tests/protocol/d.py::test_call", 10, None, call="ack due")]
    named += cases("tests/protocol/d.py::test_call", 30, None, call="acks")
    items = [*many, *slow, *other, *vectors, *named]
    ran = Counter(c.test for c in kept(items, touched=touched))
    assert ran["tests/b/test_a.py::test_many"] == 40
    assert ran["tests/b/test_b.py::test_other"] == 4
    assert 10 <= ran["tests/c.py::test_vector"] <= 14
    assert 10 <= ran["tests/protocol/d.py::test_call"] <= 14
    assert ran["tests/b/test_a.py::test_slow"] == 0
    monkeypatch.setattr("tests.support.tiers.MOST_TOUCHED", 20)
    assert len(kept(items, touched=touched)) == len(kept(items)) + 20
    assert kept(items, whole=True, touched=touched) == items
