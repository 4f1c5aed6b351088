"""The messages of protocol version 1 as frozen values. Plain Python: both sides and every transport share them.

Counts are cumulative since the grant or lease was made, so a message may be lost, doubled or reordered.
Instants are aware datetimes here and whole epoch milliseconds on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Verdict(StrEnum):
    """What the holder says of a reported grant; `clamped` and `not_found` are final."""

    OK = "ok"
    CLAMPED = "clamped"
    NOT_FOUND = "not_found"


class BlockedReason(StrEnum):
    """Why demand was not met in full."""

    KEY_LIMIT = "key_limit"
    GROUP_LIMIT = "group_limit"
    FAIR_SHARE = "fair_share"
    """Headroom exists, but belongs to older or smaller demand."""
    PAUSED = "paused"
    UNKNOWN_KEY = "unknown_key"
    """The LIMITS function raised LookupError for the key: nothing is given."""


@dataclass(frozen=True, slots=True)
class GroupDemand:
    group: str
    count: int
    """Items without a claim. 0 withdraws what was asked for before."""
    oldest_at: datetime


@dataclass(frozen=True, slots=True)
class GrantReport:
    grant_id: str
    claimed: int
    released: int
    closed: bool = False
    """Nothing more will be claimed: the unclaimed rest comes back now."""


@dataclass(frozen=True, slots=True)
class LeaseReport:
    lease_id: str
    drawn: int
    released: int
    retired: bool = False
    """Nothing more will be drawn: the undrawn rest comes back now."""


@dataclass(frozen=True, slots=True)
class PermitRequest:
    client_id: str
    demand: tuple[GroupDemand, ...]
    grants: tuple[GrantReport, ...] = ()
    leases: tuple[LeaseReport, ...] | None = None
    """None from a client that knows no leases: it is given none."""


@dataclass(frozen=True, slots=True)
class PermitSync:
    client_id: str
    grants: tuple[GrantReport, ...] = ()
    leases: tuple[LeaseReport, ...] | None = None


@dataclass(frozen=True, slots=True)
class Envelope:
    """A message and its address."""

    key: str
    message: PermitRequest | PermitSync


@dataclass(frozen=True, slots=True)
class GrantOffer:
    grant_id: str
    group: str
    permits: int


@dataclass(frozen=True, slots=True)
class LeaseGrant:
    """New (a size, a time to come), live (a time to come) or over (a time gone by): then `permits` is how many of it
    still count, in all; 0 of one that the holder does not know."""

    lease_id: str
    group: str
    permits: int
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class GrantResult:
    grant_id: str
    claimed: int
    """Claims accepted so far; with `clamped` the final number."""
    status: Verdict


@dataclass(frozen=True, slots=True)
class Blocked:
    group: str
    reason: BlockedReason


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to either message; a sync gets no grants and no pacing."""

    grant_results: tuple[GrantResult, ...] = ()
    grants: tuple[GrantOffer, ...] = ()
    blocked: tuple[Blocked, ...] = ()
    contended: bool = False
    next_request_at: datetime | None = None
    leases: tuple[LeaseGrant, ...] = ()
