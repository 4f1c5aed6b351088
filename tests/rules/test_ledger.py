"""What a grant counts at the holder, whatever becomes of the reports about it."""

from copy import copy
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from django_semq.holder.ledger import absorb, clamp, footprint, is_spent
from django_semq.protocol.messages import Verdict

without_deadline = settings(deadline=None)


@dataclass
class Grant:
    permits: int
    claimed: int = 0
    released: int = 0
    clamped: bool = False


@dataclass(frozen=True)
class Report:
    claimed: int
    released: int
    closed: bool

    def reach(self, grant: Grant) -> Verdict:
        return absorb(grant, claimed=self.claimed, released=self.released, closed=self.closed)


counts = st.integers(0, 8)
any_report = st.builds(Report, claimed=counts, released=counts, closed=st.booleans())


@st.composite
def any_grant(draw: st.DrawFn) -> Grant:
    released, claimed, permits = sorted(draw(st.tuples(counts, counts, counts)))
    grant = Grant(permits, claimed, released)
    if draw(st.booleans()):
        clamp(grant)
    return grant


@st.composite
def life_of_a_grant(draw: st.DrawFn) -> tuple[int, list[Report]]:
    """The permits of a grant, and everything its client reports of it, in order: counts only rise, and nothing
    is claimed after it said that it had closed."""
    permits = draw(st.integers(1, 6))
    claimed, released, closed = 0, 0, False
    reports = []
    for step in draw(st.lists(st.sampled_from(["claim", "release", "close", "say"]), max_size=20)):
        if step == "claim" and claimed < permits and not closed:
            claimed += 1
        elif step == "release" and released < claimed:
            released += 1
        elif step == "close":
            closed = True
        reports.append(Report(claimed, released, closed))
    reports.append(Report(claimed, released, closed))
    return permits, reports


@without_deadline
@given(life_of_a_grant(), st.data())
def test_reports_lost_doubled_and_reordered_end_where_the_last_one_does(life, data):
    permits, reports = life
    grant = Grant(permits)
    for report in data.draw(st.permutations(data.draw(st.lists(st.sampled_from(reports))) + reports[-1:])):
        report.reach(grant)

    last = reports[-1]
    assert (grant.claimed, grant.released, grant.clamped) == (last.claimed, last.released, last.closed)
    assert grant.permits == (last.claimed if last.closed else permits)


@without_deadline
@given(any_grant(), any_report)
def test_a_report_that_arrives_twice_counts_once(grant, report):
    first = report.reach(grant)
    once = copy(grant)

    assert report.reach(grant) is first
    assert grant == once


@without_deadline
@given(any_grant(), st.lists(any_report))
def test_no_report_lowers_a_counter_or_breaks_the_chain(grant, reports):
    """(B13)"""
    for report in reports:
        before = copy(grant)
        report.reach(grant)
        assert grant.claimed >= before.claimed
        assert grant.released >= before.released
        assert 0 <= grant.released <= grant.claimed <= grant.permits <= before.permits


@without_deadline
@given(any_grant(), st.lists(any_report))
def test_no_report_raises_a_footprint(grant, reports):
    for report in reports:
        before = footprint(grant)
        report.reach(grant)
        assert footprint(grant) <= before


@without_deadline
@given(any_grant(), st.lists(any_report))
def test_what_a_clamp_refused_stays_refused(grant, reports):
    clamp(grant)
    claimed = grant.claimed
    for report in reports:
        assert report.reach(grant) is Verdict.CLAMPED
        assert grant.claimed == grant.permits == claimed


def test_an_open_grant_counts_what_is_reserved_and_a_clamped_one_what_runs():
    grant = Grant(permits=5, claimed=3, released=1)
    assert footprint(grant) == 4

    clamp(grant)
    assert footprint(grant) == 2


def test_an_open_grant_is_spent_only_when_nothing_of_it_can_be_claimed_any_more():
    assert not is_spent(Grant(permits=2, claimed=1, released=1))
    assert is_spent(Grant(permits=2, claimed=2, released=2))


def test_a_clamped_grant_is_spent_when_its_last_permit_is_back():
    grant = Grant(permits=5, claimed=3, released=2)
    clamp(grant)
    assert not is_spent(grant)

    Report(claimed=3, released=3, closed=False).reach(grant)
    assert is_spent(grant)


def test_claims_beyond_the_grant_are_not_accepted():
    """(B13)"""
    grant = Grant(permits=2)
    assert Report(claimed=5, released=4, closed=False).reach(grant) is Verdict.OK
    assert (grant.claimed, grant.released) == (2, 2)
