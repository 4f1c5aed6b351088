"""Answers messages: absorbs reports, computes the round of each key, issues grants. The only writer of what is issued.

`Books` opens no transaction: whoever makes one does, and holds the semaphores' locks until its end. Reports
are absorbed before the rounds of the same message, so what came back is given again at once; a permit is
issued only if the footprint stays within limit and ceiling, and every other step lowers a footprint or keeps it.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property

from django.db.models import Case, F, Min, Sum, When

from django_semq import conf
from django_semq.clock import LONG_AGO
from django_semq.exceptions import Held, HolderRefused, Unprepared
from django_semq.holder import ledger
from django_semq.holder.allocation import Waiting, allocate
from django_semq.holder.limits import KeyLimits, ask, is_stale, limits_of
from django_semq.locking import after_commit, delete_by_id, lock_semaphores, run
from django_semq.models import Ceiling, Client, Demand, IssuedGrant, Nudge, Semaphore
from django_semq.protocol.messages import (
    Blocked,
    BlockedReason,
    Envelope,
    GrantOffer,
    GrantReport,
    GrantResult,
    LeaseGrant,
    PermitRequest,
    Reply,
    Verdict,
)
from django_semq.protocol.names import shown
from django_semq.rows import alias_of, chunks, insert, select, select_tuples, write_back
from django_semq.signals import keys_nudged

GRANT_FOOTPRINT = Case(When(clamped=True, then=F("claimed")), default=F("permits")) - F("released")
"""`ledger.footprint` in SQL."""
GroupAt = tuple[int, str]
"""(semaphore id, group)"""


def prepare(names: Sequence[str], *, client_id: str, queue: str, now: datetime) -> None:
    """Make the rows that a round of these keys needs and ask the LIMITS function. No transaction may be open."""
    names = sorted(names)

    def introduce() -> None:
        known = {
            name
            for part in chunks(names)
            for name in Semaphore.objects.filter(name__in=part).values_list("name", flat=True)
        }
        missing = [Semaphore(name=name, idle_since=now) for name in names if name not in known]
        Semaphore.objects.bulk_create(missing, batch_size=500, ignore_conflicts=True)
        if not Client.objects.filter(client_id=client_id).exists():
            Client.objects.bulk_create([Client(client_id=client_id, queue=queue)], ignore_conflicts=True)

    run(introduce, using=alias_of(Semaphore))
    ask(names, now=now)


def nudge_waiting(semaphores: Iterable[Semaphore], *, but: int | None = None, now: datetime) -> None:
    """Tell every local queue that waits for these keys, fresh or not, that something may be had; the client `but`
    knows already. In the caller's transaction; the signal follows its commit."""
    names = {semaphore.pk: semaphore.name for semaphore in semaphores}
    waiting = {
        (queue, names[semaphore])
        for part in chunks(sorted(names))
        for semaphore, client, queue in Demand.objects.filter(semaphore_id__in=part)
        .exclude(client__queue="")
        .values_list("semaphore_id", "client_id", "client__queue")
        if client != but
    }
    tell(waiting, now=now)


def tell(waiting: Iterable[tuple[str, str]], *, now: datetime) -> None:
    """Nudge these (queue, key) pairs, and send the internal signal after the commit."""
    by_queue: dict[str, list[str]] = defaultdict(list)
    for queue, key in sorted(waiting):
        by_queue[queue].append(key)
    if not by_queue:
        return
    Nudge.objects.bulk_create(
        [Nudge(queue=queue, key=key, created_at=now) for queue, keys in by_queue.items() for key in keys],
        batch_size=500,
    )

    def send() -> None:
        for queue, keys in by_queue.items():
            keys_nudged.send_robust(sender=Semaphore, queue=queue, keys=keys)

    after_commit(send, using=alias_of(Nudge))


class Books:
    """The rows of the keys of a conversation, locked by its first message to them, and what changes in them;
    written once, at the end."""

    def __init__(self, now: datetime) -> None:
        self.now = now
        self.semaphores: dict[str, Semaphore] = {}
        self.by_id: dict[int, Semaphore] = {}
        self.clients: dict[str, Client] = {}
        self.limits: dict[int, KeyLimits] = {}
        self.issued: dict[str, IssuedGrant] = {}
        self.footprints: dict[GroupAt | int, int] = {}
        """As read: most keys end a round with the footprint they began with, and are not written."""
        self.clamps: dict[int, datetime | None] = {}
        """The same for when a semaphore's next window ends."""
        self.held_more: Counter[tuple[int, int, str]] = Counter()
        """(semaphore, client, group) -> permits held more than the rows say: they are written at the end."""
        self.changed_grants: set[str] = set()
        self.changed_demands: set[tuple[int, int, str]] = set()
        self.room_made: dict[int, int] = {}
        """Semaphores whose footprint fell, with the client that made the room."""

    def exchange(self, messages: Sequence[Envelope]) -> list[Reply | HolderRefused]:
        """Answer each message, in order; nothing is written before `write`.

        Repeating a message is safe: counts merge by max. Raises `Unprepared` for keys without a row or with too old
        an answer of the LIMITS function, and `Held` for keys that another transaction has.
        """
        self.open(sorted({envelope.key for envelope in messages} - self.semaphores.keys()))
        self.know({envelope.message.client_id for envelope in messages})
        self.read_issued(report.grant_id for envelope in messages for report in envelope.message.grants)
        return [self.answer(envelope) for envelope in messages]

    def open(self, names: Sequence[str]) -> None:
        if not names:
            return
        if self.semaphores:
            raise RuntimeError("the first messages of a conversation name all its keys: locks are taken in one order")
        # An operator's verb is part of the operator's transaction, which may stay open: nobody else waits for it.
        self.lock(names)
        absent = [name for name in names if name not in self.semaphores]
        if absent and (held := select_tuples(Semaphore, ["name"], "name IN %s", absent)):
            raise Held([name for (name,) in held])
        if unready := [n for n in names if n not in self.semaphores or is_stale(self.semaphores[n], self.now)]:
            raise Unprepared(unready)

    def lock(self, names: Sequence[str], *, skip_locked: bool = True) -> None:
        """Lock those of these keys that have a row, and that nobody else has; without `skip_locked`, wait for them."""
        self.semaphores = {row.name: row for row in lock_semaphores(names, skip_locked=skip_locked)}
        self.by_id = {row.pk: row for row in self.semaphores.values()}
        self.footprints |= {row.pk: row.footprint for row in self.by_id.values()}
        self.clamps = {row.pk: row.clamp_at for row in self.by_id.values()}

    def know(self, identities: set[str]) -> None:
        if unknown := identities - self.clients.keys():
            self.clients |= {row.client_id: row for row in select(Client, "client_id IN %s", sorted(unknown))}
            if identities - self.clients.keys():
                raise Unprepared(sorted(self.semaphores))

    def read_issued(self, uids: Iterable[str]) -> None:
        unread = [uid for uid in uids if uid not in self.issued]
        for part in chunks(unread):
            self.issued |= {row.uid: row for row in select(IssuedGrant, "uid IN %s", part)}

    # ------------------------------------------------------------------------------------------------ rows, lazily

    @cached_property
    def ceilings(self) -> dict[GroupAt, Ceiling]:
        rows = {
            (row.semaphore_id, row.name): row
            for part in chunks(sorted(self.by_id))
            for row in select(Ceiling, "semaphore_id IN %s", part)
        }
        self.footprints |= {at: row.footprint for at, row in rows.items()}
        return rows

    @cached_property
    def demands(self) -> dict[int, dict[tuple[int, str], Demand]]:
        rows: dict[int, dict[tuple[int, str], Demand]] = defaultdict(dict)
        for part in chunks(sorted(self.by_id)):
            for row in select(Demand, "semaphore_id IN %s", part):
                rows[row.semaphore_id][row.client_id, row.group] = row
        return rows

    @cached_property
    def holdings(self) -> dict[tuple[int, int, str], int]:
        """(semaphore, client, group) -> permits held when the conversation began, for keys of several clients."""
        ours = {client.pk for client in self.clients.values()}
        shared = [pk for pk, rows in self.demands.items() if len(ours | {client for client, _group in rows}) > 1]
        held: dict[tuple[int, int, str], int] = {}
        for part in chunks(sorted(shared)):
            for *at, permits in (
                IssuedGrant.objects.filter(semaphore_id__in=part)
                .values_list("semaphore_id", "client_id", "group")
                .annotate(held=Sum(GRANT_FOOTPRINT))
            ):
                held[at[0], at[1], at[2]] = permits
        return held

    def holding(self, row: Demand) -> int:
        at = (row.semaphore_id, row.client_id, row.group)
        return self.holdings.get(at, 0) + self.held_more[at]

    def ceiling(self, semaphore: Semaphore, group: str) -> Ceiling:
        at = (semaphore.pk, group)
        if at not in self.ceilings:
            self.ceilings[at] = Ceiling(semaphore=semaphore, name=group)
        return self.ceilings[at]

    def limits_of(self, semaphore: Semaphore) -> KeyLimits:
        if semaphore.pk not in self.limits:
            self.limits[semaphore.pk] = limits_of(semaphore.name, semaphore)
        return self.limits[semaphore.pk]

    # --------------------------------------------------------------------------------------------------- one message

    def answer(self, envelope: Envelope) -> Reply | HolderRefused:
        message = envelope.message
        semaphore = self.semaphores[envelope.key]
        client = self.clients[message.client_id]
        if client.evicted_at is not None:
            return HolderRefused(f"client {shown(client.client_id)} is evicted; re-admit it or give a new CLIENT_ID")
        self.clamp_overdue(semaphore)  # First: a claim that comes after the window is refused, by whatever message.
        results = tuple(self.absorb(semaphore, client, report) for report in message.grants)
        # None was ever given: an echo of nothing lets a client that has one settle it.
        leases = tuple(LeaseGrant(report.lease_id, "", 0, LONG_AGO) for report in message.leases or ())
        if not isinstance(message, PermitRequest):
            return Reply(grant_results=results, leases=leases)
        self.hear(semaphore, client, message)
        offers = self.round(semaphore, client)
        blocked = self.blocked(semaphore, client)
        return Reply(grant_results=results, leases=leases, grants=offers, blocked=blocked)

    def absorb(self, semaphore: Semaphore, client: Client, report: GrantReport) -> GrantResult:
        grant = self.issued.get(report.grant_id)
        if grant is None or grant.client_id != client.pk or grant.semaphore_id != semaphore.pk:
            return GrantResult(report.grant_id, 0, Verdict.NOT_FOUND)
        before = ledger.footprint(grant)
        verdict = ledger.absorb(grant, claimed=report.claimed, released=report.released, closed=report.closed)
        self.changed_grants.add(grant.uid)
        self.count(semaphore, grant, ledger.footprint(grant) - before)
        return GrantResult(grant.uid, grant.claimed, verdict)

    def clamp_overdue(self, semaphore: Semaphore) -> None:
        """Take back what was not claimed in time. The footprint falls by it, never by what runs."""
        if semaphore.clamp_at is None or semaphore.clamp_at > self.now:
            return
        open_grants = IssuedGrant.objects.filter(semaphore=semaphore, clamped=False)
        semaphore.clamp_at = open_grants.filter(claim_until__gt=self.now).aggregate(at=Min("claim_until"))["at"]
        for row in open_grants.filter(claim_until__lte=self.now):
            grant = self.issued.setdefault(row.uid, row)
            if grant.clamped:
                continue
            before = ledger.footprint(grant)
            ledger.clamp(grant)
            self.changed_grants.add(grant.uid)
            self.count(semaphore, grant, ledger.footprint(grant) - before)

    def forget(self, client: Client) -> int:
        """Strike out all that a client holds of these keys, and all it asks for; returns the number of permits."""
        freed = 0
        for part in chunks(sorted(self.by_id)):
            for grant in select(IssuedGrant, "client_id = %s AND semaphore_id IN %s", client.pk, part):
                counted = ledger.footprint(grant)
                ledger.strike_out(grant)
                self.issued[grant.uid] = grant
                self.changed_grants.add(grant.uid)
                self.count(self.by_id[grant.semaphore_id], grant, -counted)
                freed += counted
        for pk, rows in self.demands.items():
            for (owner, group), row in rows.items():
                if owner == client.pk:
                    row.count = 0
                    self.changed_demands.add((pk, owner, group))
        return freed

    def hear(self, semaphore: Semaphore, client: Client, message: PermitRequest) -> None:
        """The newest word on what a client wants replaces the older one; a group not named is not wanted."""
        rows = self.demands[semaphore.pk]
        named = {demand.group for demand in message.demand}
        for (owner, group), row in rows.items():
            if owner == client.pk and group not in named:
                row.count = 0
                self.changed_demands.add((semaphore.pk, owner, group))
        for demand in message.demand:
            at = (client.pk, demand.group)
            if at not in rows:
                if not demand.count:
                    continue
                rows[at] = Demand(semaphore=semaphore, client=client, group=demand.group)
            rows[at].count = demand.count
            rows[at].since = min(demand.oldest_at, self.now)
            rows[at].fresh_until = self.now + (conf.LOCAL_FRESH if client.queue else conf.REMOTE_FRESH)
            self.changed_demands.add((semaphore.pk, *at))

    def round(self, semaphore: Semaphore, client: Client) -> tuple[GrantOffer, ...]:
        """Compute the round for all fresh demand of the key and issue the caller's part.

        The others' parts are not stored: what they would get stays free until they ask, or are no longer fresh.
        """
        demands = [
            row
            for row in self.demands[semaphore.pk].values()
            if row.count > 0 and (row.fresh_until > self.now or row.client_id == client.pk)
        ]
        if not demands or semaphore.paused or self.limits_of(semaphore).is_unknown:
            return ()
        limit = self.limits_of(semaphore).limit
        is_shared = len({row.client_id for row in demands}) > 1
        rooms = {row.group: self.group_room(semaphore, row.group) for row in demands}
        shares = allocate(
            None if limit is None else limit - semaphore.footprint,
            [
                Waiting(
                    client=row.client_id,
                    group=row.group,
                    need=row.count,
                    holding=self.holding(row) if is_shared else self.ceiling(semaphore, row.group).footprint,
                    since=row.since,
                )
                for row in demands
            ],
            {group: room for group, room in rooms.items() if room is not None},
            now=self.now,
            aged=conf.AGED,
        )
        offers = []
        for (owner, group), permits in sorted(shares.items()):
            if owner != client.pk:
                continue
            grant = self.issue(semaphore, client, group, permits)
            offers.append(GrantOffer(grant.uid, group, permits))
            self.demands[semaphore.pk][owner, group].count -= permits
        return tuple(offers)

    def issue(self, semaphore: Semaphore, client: Client, group: str, permits: int) -> IssuedGrant:
        grant = IssuedGrant(
            uid=uuid.uuid4().hex,
            semaphore=semaphore,
            client=client,
            group=group,
            permits=permits,
            claim_until=self.now + conf.settings().holder.grant_timeout,
            issued_at=self.now,
        )
        self.issued[grant.uid] = grant
        self.changed_grants.add(grant.uid)
        self.count(semaphore, grant, permits)
        return grant

    def group_room(self, semaphore: Semaphore, group: str) -> int | None:
        """Headroom of a group; None if it has no ceiling."""
        row = self.ceiling(semaphore, group)
        ceiling = row.override if row.has_override else self.limits_of(semaphore).ceiling(group)
        if row.paused:
            return 0
        return None if ceiling is None else ceiling - row.footprint

    def blocked(self, semaphore: Semaphore, client: Client) -> tuple[Blocked, ...]:
        return tuple(
            Blocked(row.group, self.reason(semaphore, row.group))
            for row in self.demands[semaphore.pk].values()
            if row.client_id == client.pk and row.count > 0
        )

    def reason(self, semaphore: Semaphore, group: str) -> BlockedReason:
        limits = self.limits_of(semaphore)
        if semaphore.paused or self.ceiling(semaphore, group).paused:
            return BlockedReason.PAUSED
        if limits.is_unknown:
            return BlockedReason.UNKNOWN_KEY
        room = self.group_room(semaphore, group)
        if room is not None and room <= 0:
            return BlockedReason.GROUP_LIMIT
        if limits.limit is not None and limits.limit <= semaphore.footprint:
            return BlockedReason.KEY_LIMIT
        return BlockedReason.FAIR_SHARE

    def count(self, semaphore: Semaphore, grant: IssuedGrant, change: int) -> None:
        if not change:
            return
        for row in (semaphore, self.ceiling(semaphore, grant.group)):
            row.footprint += change
        self.held_more[semaphore.pk, grant.client_id, grant.group] += change
        if change < 0:
            self.room_made[semaphore.pk] = grant.client_id

    # --------------------------------------------------------------------------------------------------- the writing

    def write(self) -> None:
        """Write everything that has changed. Called once, at the end of the transaction."""
        self.write_grants()
        self.write_footprints()
        demands = [self.demands[pk][client, group] for pk, client, group in sorted(self.changed_demands)]
        delete_by_id(Demand, [row.pk for row in demands if row.count <= 0 and row.pk])
        write_back(
            Demand,
            [row for row in demands if row.count > 0],
            ["count", "since", "fresh_until"],
            ["semaphore", "client", "group"],
        )
        self.tell_waiting()

    def write_grants(self) -> None:
        grants = [self.issued[uid] for uid in sorted(self.changed_grants)]
        kept = [row for row in grants if not ledger.is_spent(row)]
        delete_by_id(IssuedGrant, [row.pk for row in grants if row.pk and ledger.is_spent(row)])
        write_back(IssuedGrant, [row for row in kept if row.pk], ["permits", "claimed", "released", "clamped"])
        new = [row for row in kept if not row.pk]
        insert(IssuedGrant, new)
        for row in new:
            semaphore = self.by_id[row.semaphore_id]
            if not row.clamped and (semaphore.clamp_at is None or semaphore.clamp_at > row.claim_until):
                semaphore.clamp_at = row.claim_until

    def write_footprints(self) -> None:
        asked = {pk for pk, _client, _group in self.changed_demands}
        semaphores = []
        for pk, row in sorted(self.by_id.items()):
            has_changed = row.footprint != self.footprints[pk] or row.clamp_at != self.clamps[pk]
            if has_changed or pk in asked:
                was_idle = row.idle_since is not None
                row.idle_since = None if self.is_needed(row) else self.now
                if has_changed or was_idle != (row.idle_since is not None):
                    semaphores.append(row)
        write_back(Semaphore, semaphores, ["footprint", "clamp_at", "idle_since"])
        if "ceilings" not in self.__dict__:
            return
        ceilings = [row for at, row in sorted(self.ceilings.items()) if row.footprint != self.footprints.get(at, 0)]
        delete_by_id(Ceiling, [row.pk for row in ceilings if row.pk and not _is_kept(row)])
        write_back(Ceiling, [row for row in ceilings if _is_kept(row)], ["footprint"], ["semaphore", "name"])

    def has_room_grown(self, pk: int) -> bool:
        groups = [row for (semaphore, _group), row in self.ceilings.items() if semaphore == pk]
        return self.by_id[pk].footprint < self.footprints[pk] or any(
            row.footprint < self.footprints.get((pk, row.name), 0) for row in groups
        )

    def is_contended(self, key: str, client_id: str) -> bool:
        """Whether others wait for this key."""
        me = self.clients[client_id].pk
        rows = self.demands[self.semaphores[key].pk].values()
        return any(row.count > 0 and row.client_id != me and row.fresh_until > self.now for row in rows)

    def is_needed(self, semaphore: Semaphore) -> bool:
        is_waited_for = any(row.count > 0 for row in self.demands[semaphore.pk].values())
        return bool(semaphore.footprint or is_waited_for or semaphore.has_override or semaphore.paused)

    def tell_waiting(self) -> None:
        """Room made on a key is every waiting local queue's business, in this same transaction. Permits that came and
        went in this conversation made none: two queues that cannot use theirs would wake each other for ever."""
        waiting = [
            (row.client_id, self.by_id[pk].name)
            for pk, by in self.room_made.items()
            if self.has_room_grown(pk)
            for row in self.demands[pk].values()
            if row.count > 0 and row.client_id != by
        ]
        if waiting:
            clients = Client.objects.filter(pk__in={client for client, _key in waiting})
            queues = dict(clients.exclude(queue="").values_list("pk", "queue"))
            tell({(queues[client], key) for client, key in waiting if client in queues}, now=self.now)


def _is_kept(ceiling: Ceiling) -> bool:
    return bool(ceiling.footprint or ceiling.has_override or ceiling.paused)
