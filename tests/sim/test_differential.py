"""The holder's service against the oracle: the same random messages, equal replies and equal tables after each.

A failure names its seed, the message and both answers; the same seed does the same again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pprint import pformat
from typing import Any

import pytest

from django_semq import clock, conf, locking, semaphores
from django_semq.holder import allocation, ledger, service
from django_semq.holder.limits import ask
from django_semq.holder.sweep import remove_idle
from django_semq.invariants import audit
from django_semq.models import Ceiling, Client, Demand, IssuedGrant, Semaphore
from django_semq.protocol.messages import (
    BlockedReason,
    Envelope,
    GrantReport,
    GroupDemand,
    PermitRequest,
    PermitSync,
    Reply,
    Verdict,
)
from tests.sim.oracle import Base, Oracle, Then

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)
SEEDS = range(4)
MESSAGES = 400
"""At least so many of each seed."""
TOO_MANY = 4000
"""What has not occurred by then does not occur."""
EVERYTHING = {"PermitRequest", "PermitSync", "evicted", "taken back", "swept", *Verdict, *BlockedReason}

CLIENTS = ["mail", "shop", "web"]
KEYS = ["acct", "lost", "ruled"]
GROUPS = ["", "exports", "imports"]
SIZES = [0, 1, 2, 3, 5, 8, 13, None]

RULED = Base(4, {"exports": 1, "*": 3})
"""What RULES say of the key of which LIMITS has no opinion."""
UNKNOWN = Base(0, is_known=False)
bases: dict[str, Base] = {}
"""What LIMITS says of the other keys."""


def limits(key: str) -> object:
    if key not in bases:
        return None
    if not bases[key].is_known:
        raise LookupError(key)
    return {"limit": bases[key].limit, "groups": bases[key].ceilings}


class Disagreement(AssertionError):
    """Oracle and service did not answer or remember the same."""


def by_the_clock(verb: Callable[..., None]) -> Callable[..., None]:
    """An operator's verb, which is not told the time."""
    return lambda self, *args: verb(*args[:-1])


class Service:
    """The real holder as the oracle shows itself: without row numbers, and with a grant's number as its id."""

    def __init__(self) -> None:
        self.uids: list[str] = []
        """In the order of issue."""
        for client in CLIENTS:  # In this order: of equally old demand that of the client known for longer comes first.
            service.prepare([], client_id=client, queue="", now=NOON)

    def converse(self, envelopes: Sequence[Envelope], then: Then, now: datetime) -> list[Reply | None]:
        client = envelopes[0].message.client_id
        service.prepare([envelope.key for envelope in envelopes], client_id=client, queue="", now=now)

        def work() -> list:
            books = service.Books(now)
            replies = books.exchange([self.sent(envelope) for envelope in envelopes])
            replies += books.exchange(then(envelopes, replies))
            books.write()
            return replies

        return [self.heard(reply) for reply in locking.run(work, using="default")]

    def sent(self, envelope: Envelope) -> Envelope:
        uids = {str(number): uid for number, uid in enumerate(self.uids)}
        reports = [
            replace(report, grant_id=uids.get(report.grant_id, report.grant_id)) for report in envelope.message.grants
        ]
        return replace(envelope, message=replace(envelope.message, grants=tuple(reports)))

    def heard(self, reply: Any) -> Reply | None:
        if not isinstance(reply, Reply):
            return None
        offers = sorted(reply.grants, key=lambda offer: offer.group)
        self.uids += [offer.grant_id for offer in offers]
        return replace(
            reply,
            grants=tuple(self.numbered(offer) for offer in offers),
            grant_results=tuple(self.numbered(result) for result in reply.grant_results),
            blocked=tuple(sorted(reply.blocked, key=lambda blocked: blocked.group)),
        )

    def numbered(self, row: Any) -> Any:
        return replace(row, grant_id=self.number(row.grant_id))

    def number(self, uid: str) -> str:
        return str(self.uids.index(uid)) if uid in self.uids else uid

    def evict(self, client: str, now: datetime) -> None:
        Client.objects.filter(client_id=client).update(evicted_at=now)

    def readmit(self, client: str, now: datetime) -> None:
        Client.objects.filter(client_id=client).update(evicted_at=None)

    def sweep(self, now: datetime) -> None:
        remove_idle(now)

    set_limit = by_the_clock(semaphores.set_limit)
    set_ceiling = by_the_clock(semaphores.set_ceiling)
    reset_limit = by_the_clock(semaphores.reset_limit)
    pause = by_the_clock(semaphores.pause)
    resume = by_the_clock(semaphores.resume)

    def snapshot(self) -> dict[str, dict]:
        at = "semaphore__name", "client__client_id", "group"
        grants = IssuedGrant.objects.values_list("uid", *at, "permits", "claim_until", "claimed", "released", "clamped")
        demands = Demand.objects.values_list(*at, "count", "since", "fresh_until")
        ceilings = Ceiling.objects.values_list("semaphore__name", "name", "footprint")
        return {
            "keys": dict(Semaphore.objects.values_list("name", "footprint")),
            "groups": {(key, group): footprint for key, group, footprint in ceilings},
            "grants": {self.number(uid): tuple(row) for uid, *row in grants},
            "demands": {(key, client, group): tuple(row) for key, client, group, *row in demands},
        }


class History:
    """One random history, told to both."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = NOON
        bases.clear()
        bases.update(acct=Base(5, {"exports": 2}), lost=UNKNOWN)
        self.oracle = Oracle(lambda key: bases.get(key, RULED))
        self.service = Service()
        self.sent: list[Envelope] = []
        self.seen: set[str] = set()

    def run(self) -> None:
        steps = {
            self.messages: 60,
            self.old_message: 10,
            self.closed_at_once: 10,
            self.operator: 15,
            self.eviction: 2,
            self.change_of_mind: 2,
            self.idle_day: 1,
        }
        while len(self.sent) < MESSAGES or (self.seen < EVERYTHING and len(self.sent) < TOO_MANY):
            self.now += timedelta(seconds=self.one_of(0, 0, 0, 0, 0.001, 1, 3, 7, 31))
            self.random.choices(list(steps), list(steps.values()))[0]()
        assert self.seen == EVERYTHING

    def tell(self, verb: str, *args: Any) -> Any:
        """What both answer, if they do the same."""
        told = f"seed {self.seed}, message {len(self.sent)}, at {self.now}: {verb}{pformat(args, width=120)}"
        expected = getattr(self.oracle, verb)(*args, self.now)
        try:
            answer = getattr(self.service, verb)(*args, self.now)
        except Exception as error:
            error.add_note(told)
            raise
        difference = differing(self.oracle.snapshot(), self.service.snapshot())
        if answer != expected or difference:
            raise Disagreement(
                f"{told}\noracle:\n{pformat(expected, width=120)}\nservice:\n{pformat(answer, width=120)}\n"
                f"rows (oracle, service):\n{pformat(difference, width=120)}"
            )
        return answer

    def one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    # -------------------------------------------------------------------------------------------------- messages

    def messages(self) -> None:
        """One client's requests and syncs for some keys."""
        client = self.one_of(*CLIENTS)
        self.converse([self.one_of(self.request, self.request, self.sync)(key, client) for key in self.some_keys()])

    def old_message(self) -> None:
        """What was sent before, doubled or late."""
        if self.sent:
            self.converse([self.one_of(*self.sent[-30:])])

    def closed_at_once(self) -> None:
        """Requests, and in the same transaction what is claimed of what they got, for good."""
        client = self.one_of(*CLIENTS)
        self.converse([self.request(key, client) for key in self.some_keys()], closing)

    def converse(self, envelopes: Sequence[Envelope], then: Then = lambda envelopes, replies: []) -> None:
        self.sent += envelopes
        self.seen |= {type(envelope.message).__name__ for envelope in envelopes}
        for reply in self.tell("converse", envelopes, then):
            if reply is None:
                self.seen.add("evicted")
            else:
                self.seen |= {result.status for result in reply.grant_results}
                self.seen |= {blocked.reason for blocked in reply.blocked}

    def some_keys(self) -> list[str]:
        return self.random.sample(KEYS, self.one_of(1, 1, 1, 2, 3))

    def request(self, key: str, client: str) -> Envelope:
        demand = [
            GroupDemand(group, self.one_of(0, 1, 2, 3, 5, 9, 40), self.now - timedelta(seconds=self.age()))
            for group in self.random.sample(GROUPS, self.one_of(0, 1, 2, 3))
        ]
        return Envelope(key, PermitRequest(client, tuple(demand), self.reports(key, client)))

    def age(self) -> float:
        """Of demand; below 0 where the client's clock is ahead."""
        return self.one_of(-5, 0, 0, 2, 20, 30, 31, 100)

    def sync(self, key: str, client: str) -> Envelope:
        return Envelope(key, PermitSync(client, self.reports(key, client)))

    def reports(self, key: str, client: str) -> tuple[GrantReport, ...]:
        """Mostly of grants of one's own, but also of another's, of another key's, of none."""
        grants = self.oracle.grants
        uids = [uid for uid, grant in grants.items() if (grant.key, grant.client) == (key, client)]
        if self.random.random() < 0.1:
            uids = [*grants, str(self.random.randrange(self.oracle.issued + 5))]
        return tuple(self.report(uid) for uid in self.random.sample(uids, min(len(uids), self.one_of(0, 1, 2, 4))))

    def report(self, uid: str) -> GrantReport:
        """As a client counts, or as none may."""
        claimed = self.random.randrange(11)
        return GrantReport(uid, claimed, self.one_of(0, claimed, self.random.randrange(12)), self.random.random() < 0.2)

    # ------------------------------------------------------------------------------------------------- operators

    def operator(self) -> None:
        key, group, size = self.one_of(*KEYS), self.one_of(*GROUPS), self.one_of(*SIZES)
        verb, *args = self.one_of(
            ("set_limit", key, size),
            ("set_limit", key, size),
            ("set_ceiling", key, group, size),
            ("reset_limit", key, None),
            ("reset_limit", key, group),
            ("pause", key, self.one_of(None, group)),
            ("resume", key, None),
            ("resume", key, None),
            ("resume", key, group),
        )
        open_before = len(self.oracle.open_grants(key))
        self.tell(verb, *args)
        if len(self.oracle.open_grants(key)) < open_before:
            self.seen.add("taken back")

    def change_of_mind(self) -> None:
        """LIMITS says something else from now on."""
        key = self.one_of(*bases)
        ceilings = {self.one_of(*GROUPS, "*"): self.one_of(*SIZES)}
        known = Base(self.one_of(*SIZES), ceilings)
        bases[key] = self.one_of(UNKNOWN, known, known, known)
        semaphores.refresh(key)
        ask([key], now=self.now)

    def eviction(self) -> None:
        self.tell(self.one_of("evict", "readmit", "readmit"), self.one_of(*CLIENTS))

    def idle_day(self) -> None:
        """Nobody wants anything of one key any more, and a day goes by."""
        key = self.one_of(*KEYS)
        for client in CLIENTS:
            self.tell("readmit", client)
            mine = [uid for uid, grant in self.oracle.grants.items() if grant.client == client and grant.key == key]
            done = tuple(GrantReport(uid, 99, 99, closed=True) for uid in mine)
            self.converse([Envelope(key, PermitRequest(client, (), done))])
        for group in [None, *GROUPS]:
            self.tell("resume", key, group)
            self.tell("reset_limit", key, group)
        self.tell("sweep")
        self.now += timedelta(days=1)
        keys_before = len(self.oracle.keys)
        self.tell("sweep")
        if len(self.oracle.keys) < keys_before:
            self.seen.add("swept")


def closing(envelopes: Sequence[Envelope], replies: Sequence[Any]) -> list[Envelope]:
    """Half of each grant is claimed and no more of it will be."""
    return [
        Envelope(
            envelope.key,
            PermitSync(
                envelope.message.client_id,
                tuple(GrantReport(offer.grant_id, (offer.permits + 1) // 2, 0, closed=True) for offer in reply.grants),
            ),
        )
        for envelope, reply in zip(envelopes, replies, strict=True)
        if isinstance(reply, Reply)
    ]


def differing(expected: dict[str, dict], found: dict[str, dict]) -> dict[tuple[str, Any], tuple]:
    return {
        (table, at): (expected[table].get(at), found[table].get(at))
        for table in expected
        for at in expected[table].keys() | found[table].keys()
        if expected[table].get(at) != found[table].get(at)
    }


# ------------------------------------------------------------------------------------------------------ the tests


@pytest.fixture
def play(transactional_db, settings, monkeypatch):
    settings.SEMQ = {
        "HOLDER": {
            "LIMITS": f"{__name__}.limits",
            "RULES": {"ruled": {"limit": RULED.limit, "groups": RULED.ceilings}},
        }
    }

    def play(seed: int) -> None:
        history = History(seed)
        monkeypatch.setattr(clock, "now", lambda: history.now)
        history.run()

    return play


@pytest.mark.parametrize("seed", SEEDS)
def test_the_service_answers_and_counts_as_the_oracle_does(play, seed):
    play(seed)
    assert audit() == []


def last_report_wins(grant, *, absorb=ledger.absorb, **report):
    grant.claimed = grant.released = 0
    return absorb(grant, **report)


def claims_after_the_clamp(grant, *, claimed, absorb=ledger.absorb, **report):
    grant.permits = max(grant.permits, claimed)
    return absorb(grant, claimed=claimed, **report)


def evicted_is_forgotten(books, identities, *, know=service.Books.know):
    know(books, identities)
    for client in books.clients.values():
        client.evicted_at = None


def without_a_limit(free, *args, allocate=service.allocate, **times):
    return allocate(None, *args, **times)


def newest_first(row):
    return (NOON - row.since, row.client, row.group)


BROKEN_RULES = {
    "nothing is taken back": (ledger, "clamp", lambda grant: None),
    "the last report wins": (ledger, "absorb", last_report_wins),
    "more is claimed than was given": (ledger, "absorb", claims_after_the_clamp),
    "ceilings do not count": (service.Books, "group_room", lambda *args: None),
    "the limit does not count": (service, "allocate", without_a_limit),
    "of equals the newest comes first": (allocation, "_age", newest_first),
    "an evicted client is answered": (service.Books, "know", evicted_is_forgotten),
    "what one holds does not count": (service.Books, "holding", lambda *args: 0),
    "the window never ends": (service.Books, "clamp_overdue", lambda *args: None),
    "demand is fresh for ever": (conf, "REMOTE_FRESH", timedelta(days=9)),
    "nobody waits too long": (conf, "AGED", timedelta(days=9)),
    "a lowered limit takes nothing back": (semaphores, "_take_back_unclaimed", lambda semaphore: None),
    "everything is swept at once": (conf, "IDLE_BEFORE_REMOVAL", timedelta(0)),
}


@pytest.mark.parametrize("rule", BROKEN_RULES)
def test_a_broken_rule_is_noticed(play, monkeypatch, rule):
    monkeypatch.setattr(*BROKEN_RULES[rule])
    with pytest.raises(Disagreement):
        play(seed=0)
