"""Counts what was issued: how a report is merged into a row, and what a row counts against the limit.

Plain Python over any object with the counters, so that the rules can be tested without a database. It never
decides how many permits to give (`allocation`) and knows neither limits nor clocks.

The invariant of a grant is `0 ≤ released ≤ claimed ≤ permits`, and of its footprint

    open                   permits − released      reserved, plus what runs
    clamped                claimed − released      what runs

so a report can only lower a footprint or leave it. Counters are merged by max: a report may be repeated, lost
or reordered, and the end is the same. `clamped` is final, because the client puts the refused items back into
its queue: a later "ok" for the same claim would let two of them run on one permit.

For example: 5 permits, the client claimed 3 and is done with 1; footprint 4. The window ends, the grant is
clamped, footprint 2: the two that run. A late report (claimed 5, released 1) changes nothing; (3, 3) makes it
0 and the row may go.
"""

from __future__ import annotations

from typing import Protocol

from django_semq.protocol.messages import Verdict


class GrantRow(Protocol):
    permits: int
    claimed: int
    released: int
    clamped: bool


def footprint(grant: GrantRow) -> int:
    """Permits of this grant that count against the limit."""
    return (grant.claimed if grant.clamped else grant.permits) - grant.released


def absorb(grant: GrantRow, *, claimed: int, released: int, closed: bool) -> Verdict:
    """Merge a report into the row, whatever order reports arrive in. Twice is once."""
    accepted = grant.claimed if grant.clamped else grant.permits
    grant.claimed = max(grant.claimed, min(claimed, accepted))
    grant.released = max(grant.released, min(released, grant.claimed))
    if closed:
        clamp(grant)
    return Verdict.CLAMPED if grant.clamped else Verdict.OK


def clamp(grant: GrantRow) -> None:
    """Shrink the grant to what was claimed, for good."""
    grant.clamped = True
    grant.permits = grant.claimed


def strike_out(grant: GrantRow) -> None:
    """Let nothing of the grant count any more, whatever runs on it: its client is evicted."""
    clamp(grant)
    grant.released = grant.claimed


def is_spent(grant: GrantRow) -> bool:
    """Nothing of it counts, and nothing can again: the row may be deleted. Of an open grant, all has been claimed and
    is back."""
    return footprint(grant) == 0
