"""The schedule of sweeps: each queue about once a minute, sooner if something is left."""

from __future__ import annotations

from penstock.core.flows.sweeping import (
    BUSY_SWEEP_PAUSE,
    LISTED_PER_BUSY_SWEEP,
    LISTED_PER_SWEEP,
    LONGEST_SWEEP_PAUSE,
    MAX_SWEEP_TURNS,
    QUEUES_PER_SWEEP,
    SHORTEST_SWEEP_PAUSE,
    SweepSchedule,
)

GAP = 60.0


def turns() -> SweepSchedule:
    """Return turns that always draw the same gap."""
    return SweepSchedule(lambda: GAP)


def test_the_first_turn_is_after_a_gap() -> None:
    """The first sweep comes after a gap, so a short-lived client never sweeps."""
    made = turns()
    assert not made.is_due("q", 1000.0)
    assert not made.is_due("q", 1000.0 + GAP - 1)
    assert made.is_due("q", 1000.0 + GAP)
    assert not made.is_due("q", 1000.0 + GAP)


def test_each_queue_has_turns_of_its_own() -> None:
    """Each queue has its own schedule, which starts when it is first used."""
    made = turns()
    made.is_due("a", 0.0)
    made.is_due("b", 30.0)
    assert made.is_due("a", GAP)
    assert not made.is_due("b", GAP)
    assert made.is_due("b", 30.0 + GAP)


def test_the_turns_of_many_queues_are_forgotten() -> None:
    """A client of ever new queues keeps the turns of the last ones only."""
    made = turns()
    for number in range(MAX_SWEEP_TURNS):
        made.is_due(f"q{number}", 0.0)
    assert made.is_due("q0", GAP)
    made.is_due("one more", GAP)
    assert not made.is_due("q1", GAP)
    assert made.is_due("one more", 2 * GAP)


def test_gaps_are_drawn() -> None:
    """Gaps are random, 30 to 90 seconds, so clients that start together spread."""
    first = []
    for _ in range(200):
        made = SweepSchedule()
        made.is_due("q", 0.0)
        first.append(next(at for at in range(200) if made.is_due("q", float(at))))
    assert SHORTEST_SWEEP_PAUSE <= min(first) < 45
    assert 75 < max(first) <= LONGEST_SWEEP_PAUSE + 1


def test_an_incomplete_sweep_is_repeated_soon() -> None:
    """A queue with more to remove than one sweep does is swept again soon."""
    made = turns()
    made.is_due("q", 0.0)
    made.again("q", 0.0)
    assert not made.is_due("q", BUSY_SWEEP_PAUSE - 1)
    assert made.is_due("q", BUSY_SWEEP_PAUSE)


def test_listed_queues_are_few_until_one_is_removed() -> None:
    """Few listed queues are checked until one is removed; then many, soon."""
    made = turns()
    assert made.listed(0.0) == 0
    assert made.listed(GAP) == LISTED_PER_SWEEP
    assert made.listed(GAP + 1) == 0
    made.found(1, GAP)
    assert made.listed(GAP + BUSY_SWEEP_PAUSE) == LISTED_PER_BUSY_SWEEP
    made.found(0, GAP + BUSY_SWEEP_PAUSE)
    assert made.listed(2 * GAP + BUSY_SWEEP_PAUSE) == LISTED_PER_SWEEP


def test_creating_queues_sweeps_twice_as_many() -> None:
    """A client checks two listed queues for each one that it creates, so their
    number is bounded.
    """
    made = turns()
    assert sum(made.made() for _ in range(10 * QUEUES_PER_SWEEP)) == 20 * QUEUES_PER_SWEEP


def test_the_names_that_are_kept_are_bounded() -> None:
    """The number of stored schedules is bounded; the client forgets them all beyond it."""
    made = turns()
    for number in range(25_000):
        made.is_due(str(number), 0.0)
    assert len(made._at) <= 10_000
