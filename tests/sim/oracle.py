"""The holder once more, in plain dictionaries: what it must answer to each message, and what it then remembers.

Written from the rules of the protocol, and sharing nothing with the service but the messages: every sum is taken over
all grants, every permit is given by itself, and the time is passed in. Rows go by their names, and the id of a grant is
its number in the order of issue.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta

from django_semq.protocol.messages import (
    Blocked,
    BlockedReason,
    Envelope,
    GrantOffer,
    GrantReport,
    GrantResult,
    PermitSync,
    Reply,
    Verdict,
)

WINDOW = timedelta(seconds=30)
"""What is not claimed by then comes back at the next message for the key, before the reports in it."""
AGED = timedelta(seconds=30)
FRESH = timedelta(seconds=12)
IDLE = timedelta(days=1)

At = tuple[str, str]
"""(client, group), of one key."""
Then = Callable[[Sequence[Envelope], Sequence[Reply | None]], Sequence[Envelope]]
"""What a client sends on hearing the replies to its messages."""


@dataclass(frozen=True)
class Base:
    """What holds for a key of which no operator said anything; None is unlimited, "*" any group not named."""

    limit: int | None
    ceilings: Mapping[str, int | None] = field(default_factory=dict)
    is_known: bool = True


@dataclass
class Key:
    """What operators said of a key (None) and of groups of it (their names)."""

    overrides: dict[str | None, int | None] = field(default_factory=dict)
    paused: set[str | None] = field(default_factory=set)
    idle_since: datetime | None = None


@dataclass
class Grant:
    key: str
    client: str
    group: str
    permits: int
    claim_until: datetime
    claimed: int = 0
    released: int = 0
    clamped: bool = False

    @property
    def footprint(self) -> int:
        return self.permits - self.released

    def absorb(self, report: GrantReport) -> Verdict:
        """Counts only grow, and 0 ≤ released ≤ claimed ≤ permits."""
        self.claimed = max(self.claimed, min(report.claimed, self.permits))
        self.released = max(self.released, min(report.released, self.claimed))
        if report.closed:
            self.clamp()
        return Verdict.CLAMPED if self.clamped else Verdict.OK

    def clamp(self) -> None:
        self.clamped, self.permits = True, self.claimed


@dataclass
class Demand:
    count: int
    since: datetime
    fresh_until: datetime


class Oracle:
    def __init__(self, base: Callable[[str], Base]) -> None:
        self.base = base
        self.keys: dict[str, Key] = {}
        self.grants: dict[str, Grant] = {}
        self.demands: dict[tuple[str, str, str], Demand] = {}
        self.evicted: set[str] = set()
        self.issued = 0

    # -------------------------------------------------------------------------------------------------- messages

    def converse(self, envelopes: Sequence[Envelope], then: Then, now: datetime) -> list[Reply | None]:
        replies = [self.answer(envelope, now) for envelope in envelopes]
        return replies + [self.answer(envelope, now) for envelope in then(envelopes, replies)]

    def answer(self, envelope: Envelope, now: datetime) -> Reply | None:
        """The reply; None to a client that is evicted."""
        name, message, client = envelope.key, envelope.message, envelope.message.client_id
        self.keys.setdefault(name, Key(idle_since=now))
        if client in self.evicted:
            return None
        for grant in self.open_grants(name):
            if grant.claim_until <= now:
                grant.clamp()
        reply = Reply(tuple(self.absorb(name, client, report) for report in message.grants))
        if not isinstance(message, PermitSync):
            self.demands = {at: demand for at, demand in self.demands.items() if at[:2] != (name, client)}
            for wanted in message.demand:
                demand = Demand(wanted.count, min(wanted.oldest_at, now), now + FRESH)
                self.demands[name, client, wanted.group] = demand
            reply = Reply(reply.grant_results, self.issue(name, client, now), self.blocked(name, client))
        self.forget(name, now)
        return reply

    def absorb(self, name: str, client: str, report: GrantReport) -> GrantResult:
        grant = self.grants.get(report.grant_id)
        if grant is None or (grant.key, grant.client) != (name, client):
            return GrantResult(report.grant_id, 0, Verdict.NOT_FOUND)
        verdict = grant.absorb(report)
        return GrantResult(report.grant_id, grant.claimed, verdict)

    def issue(self, name: str, client: str, now: datetime) -> tuple[GrantOffer, ...]:
        """The caller's part of the round; what the others would get stays free until they ask."""
        offers = []
        for (owner, group), permits in sorted(self.round(name, now).items()):
            if owner == client:
                offers.append(GrantOffer(str(self.issued), group, permits))
                self.grants[str(self.issued)] = Grant(name, client, group, permits, now + WINDOW)
                self.demands[name, client, group].count -= permits
                self.issued += 1
        return tuple(offers)

    def round(self, name: str, now: datetime) -> Counter[At]:
        """Half of what is free to those who wait for long, in turn, the oldest first; then each permit to whoever
        holds least, of equals to the oldest."""
        waiting = {
            (client, group): demand
            for (key, client, group), demand in self.demands.items()
            if key == name and demand.fresh_until > now
        }
        is_shared = len({client for client, _group in waiting}) > 1
        given: Counter[At] = Counter()
        free = min(self.room(name), sum(demand.count for demand in waiting.values()))

        def may_have(at: At) -> bool:
            in_group = sum(permits for (_client, group), permits in given.items() if group == at[1])
            return given[at] < waiting[at].count and in_group < self.room(name, at[1])

        def age(at: At) -> tuple:
            return (waiting[at].since, *at)

        def holding(at: At) -> int:
            """A client that waits alone evens its groups by all that is out of them."""
            return self.footprint(name, at[1], at[0] if is_shared else None) + given[at]

        aged = deque(sorted((at for at in waiting if now - waiting[at].since > AGED), key=age))
        while aged and given.total() < free / 2:
            if may_have(at := aged.popleft()):
                given[at] += 1
                aged.append(at)
        while given.total() < free and (able := [at for at in waiting if may_have(at)]):
            given[min(able, key=lambda at: (holding(at), age(at)))] += 1
        return given

    def blocked(self, name: str, client: str) -> tuple[Blocked, ...]:
        return tuple(
            Blocked(group, self.reason(name, group))
            for (key, owner, group), demand in sorted(self.demands.items())
            if (key, owner) == (name, client) and demand.count
        )

    def reason(self, name: str, group: str) -> BlockedReason:
        if self.keys[name].paused & {None, group}:
            return BlockedReason.PAUSED
        if not self.base(name).is_known and None not in self.keys[name].overrides:
            return BlockedReason.UNKNOWN_KEY
        if self.room(name, group) <= 0:
            return BlockedReason.GROUP_LIMIT
        return BlockedReason.KEY_LIMIT if self.room(name) <= 0 else BlockedReason.FAIR_SHARE

    # ------------------------------------------------------------------------------------------------- operators

    def set_limit(self, name: str, limit: int | None, now: datetime) -> None:
        self.set_ceiling(name, None, limit, now)

    def set_ceiling(self, name: str, group: str | None, ceiling: int | None, now: datetime) -> None:
        self.keys.setdefault(name, Key()).overrides[group] = ceiling
        self.take_back(name, now)

    def reset_limit(self, name: str, group: str | None, now: datetime) -> None:
        self.keys.setdefault(name, Key()).overrides.pop(group, None)
        self.take_back(name, now)

    def pause(self, name: str, group: str | None, now: datetime) -> None:
        self.keys.setdefault(name, Key()).paused.add(group)
        self.take_back(name, now)

    def resume(self, name: str, group: str | None, now: datetime) -> None:
        self.keys.setdefault(name, Key()).paused.discard(group)
        self.take_back(name, now)

    def evict(self, client: str, now: datetime) -> None:
        self.evicted.add(client)

    def readmit(self, client: str, now: datetime) -> None:
        self.evicted.discard(client)

    def take_back(self, name: str, now: datetime) -> None:
        """What is not claimed yet and does not fit any more, all at once. What runs goes on."""
        for grant in [grant for grant in self.open_grants(name) if not self.fits(grant)]:
            grant.clamp()
        self.forget(name, now)

    def fits(self, grant: Grant) -> bool:
        is_paused = self.keys[grant.key].paused & {None, grant.group}
        return not is_paused and self.room(grant.key) >= 0 and self.room(grant.key, grant.group) >= 0

    def sweep(self, now: datetime) -> None:
        """Keys that nothing needs go after a day."""
        issued = {grant.key for grant in self.grants.values()}
        for name, key in list(self.keys.items()):
            if name not in issued and key.idle_since is not None and key.idle_since <= now - IDLE:
                del self.keys[name]

    # -------------------------------------------------------------------------------------------------- counting

    def room(self, name: str, group: str | None = None) -> float:
        """How many more of the key, or of a group of it, may be issued; below 0 after a limit was lowered."""
        base, key = self.base(name), self.keys[name]
        by_base = base.limit if group is None else base.ceilings.get(group, base.ceilings.get("*"))
        limit = key.overrides.get(group, by_base)
        if group in key.paused:
            return 0
        return math.inf if limit is None else limit - self.footprint(name, group)

    def footprint(self, name: str, group: str | None = None, client: str | None = None) -> int:
        """Permits that are out: of the key, or only of this group, or only to this client."""
        return sum(
            grant.footprint
            for grant in self.grants.values()
            if grant.key == name and group in (None, grant.group) and client in (None, grant.client)
        )

    def open_grants(self, name: str) -> list[Grant]:
        return [grant for grant in self.grants.values() if grant.key == name and not grant.clamped]

    def forget(self, name: str, now: datetime) -> None:
        """Grants of which nothing counts or can again, and demand that is met."""
        self.grants = {uid: grant for uid, grant in self.grants.items() if grant.footprint}
        self.demands = {at: demand for at, demand in self.demands.items() if demand.count}
        key = self.keys[name]
        is_waited_for = name in {waited_for for waited_for, _client, _group in self.demands}
        if is_waited_for or self.footprint(name) or key.overrides or key.paused:
            key.idle_since = None
        else:
            key.idle_since = key.idle_since or now

    def snapshot(self) -> dict[str, dict]:
        """Everything that is remembered, table by table. A group is while it counts, or an operator said something."""
        groups = {(grant.key, grant.group) for grant in self.grants.values() if grant.footprint}
        for name, key in self.keys.items():
            groups |= {(name, group) for group in (key.overrides.keys() | key.paused) - {None}}
        return {
            "keys": {name: self.footprint(name) for name in self.keys},
            "groups": {(name, group): self.footprint(name, group) for name, group in groups},
            "grants": {uid: astuple(grant) for uid, grant in self.grants.items()},
            "demands": {at: astuple(demand) for at, demand in self.demands.items()},
        }
