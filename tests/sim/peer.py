"""Clients on foreign machines that speak plain version 1 of the protocol.

They stand for the library's own remote client until there is one: what the holder must bear from any client, they
do. A peer keeps the ids of the items that it started and ended, by grant, and derives its reports from them; nothing
else about permits is stored. Its rules are those of the protocol:

- a reply to a request counts once, and only while the peer awaits it;
- an item starts after a reply has confirmed its claim;
- `clamped` and `not_found` are final: what was claimed beyond is put back into the queue, at its old place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from django_semq.protocol.messages import (
    Envelope,
    GrantReport,
    GrantResult,
    GroupDemand,
    PermitRequest,
    PermitSync,
    Reply,
    Verdict,
)

if TYPE_CHECKING:
    from tests.sim.wire import Letter


@dataclass(order=True, slots=True)
class Wish:
    """An item of a peer."""

    number: int
    """Its place in the order of arrival."""
    key: str
    group: str
    since: datetime


@dataclass(slots=True)
class Held:
    """A grant as the peer knows it."""

    uid: str
    key: str
    group: str
    permits: int
    claimed: list[Wish] = field(default_factory=list)
    started: list[Wish] = field(default_factory=list)
    ended: list[Wish] = field(default_factory=list)
    is_final: bool = False
    """Nothing more can be claimed of it."""

    def report(self) -> GrantReport:
        return GrantReport(self.uid, len(self.claimed), len(self.ended))

    @property
    def running(self) -> list[Wish]:
        return [wish for wish in self.started if wish not in self.ended]


@dataclass
class Peer:
    name: str
    waiting: list[Wish] = field(default_factory=list)
    grants: dict[str, Held] = field(default_factory=dict)
    awaited: dict[str, int] = field(default_factory=dict)
    """Key -> number of the newest request, whose reply was not seen yet."""
    asked: set[str] = field(default_factory=set)
    """Keys of which the holder may believe that more is wanted."""
    is_eager: bool = True
    """Claims what it can as soon as it can."""
    numbers: int = 0

    def want(self, key: str, group: str, now: datetime) -> Wish:
        self.numbers += 1
        wish = Wish(self.numbers, key, group, now)
        self.waiting.append(wish)
        return wish

    # ---------------------------------------------------------------------------------------------------- messages

    def request(self, key: str) -> tuple[Envelope, int]:
        """A request, and its number: the reply to an older one will not count any more."""
        self.numbers += 1
        self.awaited[key] = self.numbers
        demand = {}
        for wish in sorted(self.waiting):
            if wish.key == key:
                count, since = demand.get(wish.group, (0, wish.since))
                demand[wish.group] = (count + 1, min(since, wish.since))
        if demand:
            self.asked.add(key)
        groups = tuple(GroupDemand(group, *wanted) for group, wanted in sorted(demand.items()))
        return Envelope(key, PermitRequest(self.name, groups, self.reports(key))), self.numbers

    def sync(self, key: str) -> tuple[Envelope, int]:
        self.numbers += 1
        return Envelope(key, PermitSync(self.name, self.reports(key))), self.numbers

    def reports(self, key: str) -> tuple[GrantReport, ...]:
        return tuple(held.report() for uid, held in sorted(self.grants.items()) if held.key == key)

    def receive(self, letter: Letter, reply: Reply) -> None:
        told = {report.grant_id: report for report in letter.envelope.message.grants}
        for result in reply.grant_results:
            if result.grant_id in self.grants:
                self.take_result(self.grants[result.grant_id], result, told[result.grant_id])
        if self.awaited.get(letter.envelope.key) == letter.number:
            del self.awaited[letter.envelope.key]
            if not letter.envelope.message.demand:
                self.asked.discard(letter.envelope.key)
            for offer in reply.grants:
                self.grants[offer.grant_id] = Held(offer.grant_id, letter.envelope.key, offer.group, offer.permits)
        if self.is_eager:
            self.claim(letter.envelope.key)

    def take_result(self, held: Held, result: GrantResult, told: GrantReport) -> None:
        if result.status == Verdict.NOT_FOUND:
            self.put_back(held, len(held.started))
            del self.grants[held.uid]
            return
        if result.status == Verdict.CLAMPED:
            held.is_final = True
            self.put_back(held, result.claimed)
        self.start(held, result.claimed)
        if self.is_settled(held, told):
            del self.grants[held.uid]

    def put_back(self, held: Held, accepted: int) -> None:
        self.waiting += held.claimed[accepted:]
        self.waiting.sort()
        del held.claimed[accepted:]

    def start(self, held: Held, confirmed: int) -> None:
        """Begin the items whose claims the holder has confirmed."""
        held.started += [wish for wish in held.claimed[:confirmed] if wish not in held.started]

    def is_settled(self, held: Held, told: GrantReport) -> bool:
        """The holder has answered a report that everything claimed is back, and nothing more can be claimed."""
        return held.is_final and told.released == len(held.ended) == len(held.claimed)

    # ------------------------------------------------------------------------------------------------------- items

    def claim(self, key: str, at_most: int | None = None) -> None:
        """Claim waiting items on grants that have permits left, oldest first."""
        for held in self.grants.values():
            room = held.permits - len(held.claimed) if held.key == key and not held.is_final else 0
            wishes = [wish for wish in self.waiting if (wish.key, wish.group) == (held.key, held.group)]
            for wish in wishes[: room if at_most is None else min(room, at_most)]:
                held.claimed.append(wish)
                self.waiting.remove(wish)

    def end(self, wish: Wish) -> None:
        """The work of an item is done."""
        (held,) = [held for held in self.grants.values() if wish in held.started]
        held.ended.append(wish)

    @property
    def running(self) -> list[Wish]:
        return [wish for held in self.grants.values() for wish in held.running]

    @property
    def may_start(self) -> list[Wish]:
        """What is claimed and not started: a reply that confirms it may be on its way."""
        return [wish for held in self.grants.values() for wish in held.claimed if wish not in held.started]

    @property
    def open_keys(self) -> list[str]:
        """Keys of which it has something to tell or to ask."""
        return sorted({wish.key for wish in self.waiting} | {held.key for held in self.grants.values()} | self.asked)
