"""Who gets how many permits, against a reference that hands them out one by one."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from django_semq.holder.allocation import Shares, Waiting, allocate

NOW = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
AGED = timedelta(seconds=30)


@dataclass(frozen=True)
class Round:
    free: int | None
    rows: list[Waiting]
    caps: dict[str, int]

    def shares(self) -> Shares:
        return allocate(self.free, self.rows, self.caps, now=NOW, aged=AGED)


@st.composite
def rounds(draw: st.DrawFn, seconds: int = 60) -> Round:
    at = draw(st.lists(st.tuples(st.integers(1, 5), st.sampled_from("abc")), unique=True, max_size=8))
    rows = [
        Waiting(
            client=client,
            group=group,
            need=draw(st.integers(0, 12)),
            holding=draw(st.integers(0, 12)),
            since=NOW - timedelta(seconds=draw(st.integers(0, seconds))),
        )
        for client, group in at
    ]
    caps = draw(st.dictionaries(st.sampled_from("abc"), st.integers(-2, 12)))
    return Round(draw(st.none() | st.integers(-2, 40)), rows, caps)


def one_by_one(round: Round) -> Shares:
    """Half of what is free to those who have waited for long, the oldest first, again and again; the rest to
    whoever holds the least, ties to the oldest."""
    left = sum(row.need for row in round.rows)
    if round.free is not None:
        left = min(left, max(0, round.free))
    for_aged = (left + 1) // 2
    given: Shares = {}

    def age(row: Waiting) -> tuple:
        return (row.since, row.client, row.group)

    def has_room(row: Waiting) -> bool:
        taken = sum(permits for (_client, group), permits in given.items() if group == row.group)
        wants = given.get((row.client, row.group), 0) < row.need
        return wants and (row.group not in round.caps or taken < round.caps[row.group])

    def give(row: Waiting) -> None:
        given[row.client, row.group] = given.get((row.client, row.group), 0) + 1

    aged = sorted((row for row in round.rows if NOW - row.since > AGED), key=age)
    while for_aged and any(map(has_room, aged)):
        for row in aged:
            if for_aged and has_room(row):
                give(row)
                for_aged -= 1
    left -= sum(given.values())
    while left and (waiting := [row for row in round.rows if has_room(row)]):
        give(min(waiting, key=lambda row: (row.holding + given.get((row.client, row.group), 0), age(row))))
        left -= 1
    return given


@settings(deadline=None, max_examples=500)
@given(rounds())
def test_the_level_search_gives_what_handing_out_one_by_one_gives(round):
    assert round.shares() == one_by_one(round)


@settings(deadline=None, max_examples=300)
@given(rounds())
def test_nobody_gets_more_than_is_free_or_the_ceiling_has_or_it_wants(round):
    shares = round.shares()
    needs = {(row.client, row.group): row.need for row in round.rows}

    assert all(0 < permits <= needs[at] for at, permits in shares.items())
    if round.free is not None:
        assert sum(shares.values()) <= max(0, round.free)
    for group, cap in round.caps.items():
        assert sum(permits for (_client, name), permits in shares.items() if name == group) <= max(0, cap)


@settings(deadline=None, max_examples=300)
@given(rounds())
def test_no_permit_is_left_while_somebody_with_room_waits(round):
    shares = round.shares()
    if round.free is None or sum(shares.values()) < round.free:
        for row in round.rows:
            in_group = sum(permits for (_client, group), permits in shares.items() if group == row.group)
            is_met = shares.get((row.client, row.group), 0) == row.need
            assert is_met or in_group >= round.caps[row.group]


@settings(deadline=None, max_examples=300)
@given(rounds(seconds=90))
def test_the_oldest_of_those_who_waited_for_long_always_gets_something(round):
    """A row that always holds much would else wait for ever behind newcomers."""
    aged = [row for row in round.rows if NOW - row.since > AGED and row.need and round.caps.get(row.group, 1) > 0]
    if aged and (round.free is None or round.free > 0):
        oldest = min(aged, key=lambda row: (row.since, row.client, row.group))
        assert round.shares()[oldest.client, oldest.group] >= 1


def waiting(client: int, *, need: int, holding: int = 0, group: str = "", seconds: int = 0) -> Waiting:
    return Waiting(client, group, need, holding, NOW - timedelta(seconds=seconds))


def test_who_holds_less_gets_more_until_they_are_even():
    round = Round(6, [waiting(1, need=10, holding=4), waiting(2, need=10)], {})
    assert round.shares() == {(1, ""): 1, (2, ""): 5}


def test_a_tie_goes_to_the_one_that_waits_longer():
    round = Round(3, [waiting(1, need=5, seconds=1), waiting(2, need=5, seconds=2)], {})
    assert round.shares() == {(1, ""): 1, (2, ""): 2}


def test_a_full_group_takes_nothing_from_the_others():
    round = Round(4, [waiting(1, need=9, group="full"), waiting(1, need=9, group="open")], {"full": 0})
    assert round.shares() == {(1, "open"): 4}


def test_half_rounded_up_goes_to_who_waited_longer_than_the_age_however_much_it_holds():
    round = Round(5, [waiting(1, need=9, holding=50, seconds=31), waiting(2, need=9, seconds=30)], {})
    assert round.shares() == {(1, ""): 3, (2, ""): 2}


def test_unlimited_gives_everybody_everything():
    round = Round(None, [waiting(1, need=1000), waiting(2, need=1)], {})
    assert round.shares() == {(1, ""): 1000, (2, ""): 1}


def test_a_limit_that_was_lowered_below_what_is_out_gives_nothing():
    assert Round(-3, [waiting(1, need=1)], {}).shares() == {}
