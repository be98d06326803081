"""When a client sweeps: each queue about once a minute, more where something is left."""

from __future__ import annotations

from penstock.core.sweeping import FEW, LONGEST, MADE, MANY, SHORTEST, SOON, SweepSchedule

GAP = 60.0


def turns() -> SweepSchedule:
    """Turns whose every gap is the same."""
    return SweepSchedule(lambda: GAP)


def test_the_first_turn_is_after_a_gap() -> None:
    """A client that lives shortly sweeps nothing."""
    made = turns()
    assert not made.is_due("q", 1000.0)
    assert not made.is_due("q", 1000.0 + GAP - 1)
    assert made.is_due("q", 1000.0 + GAP)
    assert not made.is_due("q", 1000.0 + GAP)


def test_each_queue_has_turns_of_its_own() -> None:
    """One that is met later is swept later."""
    made = turns()
    made.is_due("a", 0.0)
    made.is_due("b", 30.0)
    assert made.is_due("a", GAP)
    assert not made.is_due("b", GAP)
    assert made.is_due("b", 30.0 + GAP)


def test_gaps_are_drawn() -> None:
    """Between half a minute and one and a half, so that clients that begin together spread."""
    first = []
    for _ in range(200):
        made = SweepSchedule()
        made.is_due("q", 0.0)
        first.append(next(at for at in range(200) if made.is_due("q", float(at))))
    assert SHORTEST <= min(first) < 45
    assert 75 < max(first) <= LONGEST + 1


def test_what_is_left_is_swept_soon() -> None:
    """A queue with more than one turn can remove is not left for a minute."""
    made = turns()
    made.is_due("q", 0.0)
    made.again("q", 0.0)
    assert not made.is_due("q", SOON - 1)
    assert made.is_due("q", SOON)


def test_listed_queues_are_few_until_one_is_removed() -> None:
    """Then many, soon; and few again when there was nothing."""
    made = turns()
    assert made.listed(0.0) == 0
    assert made.listed(GAP) == FEW
    assert made.listed(GAP + 1) == 0
    made.found(1, GAP)
    assert made.listed(GAP + SOON) == MANY
    made.found(0, GAP + SOON)
    assert made.listed(2 * GAP + SOON) == FEW


def test_whoever_makes_queues_sweeps_twice_as_many() -> None:
    """So their number can't grow without bound."""
    made = turns()
    assert sum(made.made() for _ in range(10 * MADE)) == 20 * MADE


def test_the_names_that_are_kept_are_bounded() -> None:
    """A client that has waited for very many queues forgets their turns."""
    made = turns()
    for number in range(25_000):
        made.is_due(str(number), 0.0)
    assert len(made._at) <= 10_000
