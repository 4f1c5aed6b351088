"""Recounts every counter from the rows. Shared by `semq_doctor`, the admin and the tests.

What must hold at every moment, with what callers left and the pump has not folded yet counted in:

- group: `queued + unfolded` = its queued items, and likewise claiming and admitted;
- grant: `admitted − released − unfolded returns` = its admitted items;
- semaphore and ceiling: `footprint` = the sum over what is issued;
- a local queue's grant and the holder's row of it say the same.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Case, Count, Exists, F, Min, OuterRef, Q, QuerySet, Sum, Value, When
from django.db.models.fields import BigIntegerField, IntegerField
from django.db.models.functions import Greatest

from django_semq import clock, conf
from django_semq.holder.service import GRANT_FOOTPRINT
from django_semq.locking import delete_by_id, lock_semaphores, run, snapshot
from django_semq.models import (
    Ceiling,
    Client,
    Demand,
    Grant,
    IssuedGrant,
    IssuedLease,
    Item,
    Key,
    KeyGroup,
    Nudge,
    Semaphore,
    State,
)
from django_semq.protocol.names import shown
from django_semq.queue.pump import with_keys
from django_semq.rows import alias_of, chunks

logger = logging.getLogger(__name__)

OLD_NUDGE = timedelta(minutes=1)
OVERDUE = timedelta(minutes=3)
"""What is left to drivers waits for 90 s, where only the schedule drives and a worker is free."""
GroupAt = tuple[str, str, str]
"""(queue, key, group); the holder's counters have no queue: ""."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One counter that does not say what the rows say."""

    queue: str
    key: str
    group: str
    counter: str
    stored: int
    counted: int

    def __str__(self) -> str:
        where = f"queue {self.queue} " if self.queue else "holder "
        group = f" group {shown(self.group)}" if self.group else ""
        return f"{where}key {shown(self.key)}{group}: {self.counter} is {self.stored}, should be {self.counted}"


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator should look at that no recount can mend."""

    text: str

    def __str__(self) -> str:
        return self.text


def audit() -> list[Finding]:
    """All findings, from one snapshot of the database. Safe to run beside everything else."""
    with snapshot(alias_of(Item)):
        counts = Counts.read()
        findings = [*_groups(counts, KeyGroup.objects.all()), *_grants(counts, Grant.objects.all())]
        if alias_of(Semaphore) == alias_of(Item):
            findings += [*_footprints(), *_pairs()]
    return findings


def notices(now: datetime) -> list[Notice]:
    """What is overdue, keys set aside, and waiting clients of queues that no setting knows."""
    known = set(conf.settings().queues)
    found = [
        Notice(f"queue {queue} key {shown(key)}: {what}; no driver runs, or it is frozen or cannot keep up")
        for queue, key, what in _overdue(now)
    ]
    found += [
        Notice(f"queue {key.queue} key {shown(key.name)}: set aside until {key.set_aside_until}: {key.error}")
        for key in Key.objects.filter(set_aside_count__gt=0).order_by("queue", "name")
    ]
    found += [
        Notice(f"the holder keeps demand of queue {queue}, which SEMQ['QUEUES'] does not have")
        for queue in Demand.objects.exclude(client__queue="").values_list("client__queue", flat=True).distinct()
        if queue not in known
    ]
    return found


def repair(findings: Iterable[Finding], *, now: datetime) -> int:
    """Write the right values of these findings' keys, each under its lock, and log them. Permits of items that no
    longer exist go back. Safe to repeat; what changed meanwhile is recounted under the lock.

    Returns how many are repaired: all but those of keys that another transaction has.
    """
    findings = list(findings)
    names = {finding.key for finding in findings}
    keys = {(finding.queue, finding.key) for finding in findings if finding.queue}
    for part in chunks(sorted(names)):
        keys |= set(Key.objects.filter(name__in=part).values_list("queue", "name"))
    run(partial(_make_rows, keys), using=alias_of(Key))
    held = {name for queue, name in sorted(keys) if not with_keys(queue, [name], partial(_repair_keys, now=now))}
    for name in sorted(names - {name for _queue, name in keys}):
        run(partial(_repair_holder, name, now), using=alias_of(Semaphore))
    for finding in findings:
        logger.warning("%s: %s", "not repaired, its key is in use" if finding.key in held else "repaired", finding)
    return sum(finding.key not in held for finding in findings)


# ------------------------------------------------------------------------------------------------------------- overdue


def _overdue(now: datetime) -> Iterator[tuple[str, str, str]]:
    """(queue, key, what of it waits) for all that somebody should have looked at: of a driver that is dead or frozen
    nothing else is to be seen. Callers admit without one.

    What is due "at once" does not say since when: items not before they were admitted, and a key not while its items
    are admitted.
    """
    before = now - OVERDUE
    items = Item.objects.filter(state=State.ADMITTED, due_at__lt=before, admitted_at__lt=before)
    items = items.annotate(since=Greatest("due_at", "admitted_at"))
    queues = conf.settings().queues
    unasked = [alias for alias, queue in queues.items() if queue.finished is None and queue.admit != conf.TASK_ADMIT]
    recent = Item.objects.filter(queue=OuterRef("queue"), key=OuterRef("name"), admitted_at__gte=before)
    nudges = Nudge.objects.filter(created_at__lt=now - OLD_NUDGE).annotate(since=F("created_at"))
    keys = Key.objects.filter(~Exists(recent), queue__in=queues, due_at__lt=before).annotate(since=F("due_at"))
    for rows, name, what in (
        (nudges, "key", "its oldest nudge is of {}"),
        (keys, "name", "it is due and nobody looks at it"),
        (items.filter(handed_over=False), "key", "an item has waited for its hand-over since {}"),
        (items.filter(handed_over=True).exclude(queue__in=unasked), "key", "nobody has asked after an item since {}"),
    ):
        by_key = rows.values("queue", name).annotate(oldest=Min("since")).order_by("queue", name)
        for queue, key, oldest in by_key.values_list("queue", name, "oldest"):
            yield queue, key, what.format(oldest.isoformat())


# ------------------------------------------------------------------------------------------------------------ counting


@dataclass
class Counts:
    """What the rows say, read in one statement: callers change items and nudges without a lock."""

    items: Counter[tuple[str, str, str, int]]
    queued: Counter[GroupAt]
    """Unfolded changes of queued."""
    returned: Counter[GroupAt]
    """Unfolded returned permits."""
    items_of: Counter[int]
    """Admitted items by grant row."""
    returned_of: Counter[int]

    @classmethod
    def read(cls, queue: str | None = None, key: str | None = None) -> Counts:
        only = Q() if queue is None else Q(queue=queue, key=key)
        items = (
            Item.objects.filter(only)
            .values("queue", "key", "group", "grant_id")
            .annotate(what=F("state"), number=Count("id"), back=Value(0, BigIntegerField()))
            .values_list("queue", "key", "group", "grant_id", "what", "number", "back")
        )
        nudges = (
            Nudge.objects.filter(only)
            .values("queue", "key", "group", "grant_id")
            .annotate(what=Value(-1, IntegerField()), number=Sum("queued_delta"), back=Sum("returned"))
            .values_list("queue", "key", "group", "grant_id", "what", "number", "back")
        )
        counts = cls(Counter(), Counter(), Counter(), Counter(), Counter())
        for row in items.union(nudges, all=True):
            counts.add(*row)
        return counts

    def add(self, queue: str, key: str, group: str, grant: int | None, what: int, number: Any, back: Any) -> None:
        at = (queue, key, group)
        if what == -1:
            self.queued[at] += int(number)
            self.returned[at] += int(back)
            if grant is not None:
                self.returned_of[grant] += int(back)
            return
        self.items[(*at, what)] += number
        if what == State.ADMITTED and grant is not None:
            self.items_of[grant] += number

    def of_group(self, at: GroupAt) -> dict[str, int]:
        """What the group's counters should say."""
        return {
            "queued": self.items[(*at, State.QUEUED)] - self.queued[at],
            "claiming": self.items[(*at, State.CLAIMING)],
            "admitted": self.items[(*at, State.ADMITTED)] + self.returned[at],
        }

    def of_grant(self, grant: int) -> int:
        """Permits of the grant that should be out."""
        return self.items_of[grant] + self.returned_of[grant]

    def groups(self) -> set[GroupAt]:
        return {(queue, key, group) for queue, key, group, _state in self.items} | set(self.queued)


def _groups(counts: Counts, rows: QuerySet[KeyGroup]) -> Iterator[Finding]:
    stored = {(row.key.queue, row.key.name, row.name): row for row in rows.select_related("key")}
    for at in sorted(stored.keys() | counts.groups()):
        for counter, counted in counts.of_group(at).items():
            value = getattr(stored[at], counter) if at in stored else 0
            if value != counted:
                yield Finding(*at, counter, value, counted)


def _grants(counts: Counts, rows: QuerySet[Grant]) -> Iterator[Finding]:
    known = set()
    for grant in rows.select_related("key").order_by("pk"):
        known.add(grant.pk)
        out, counted = grant.admitted - grant.released, counts.of_grant(grant.pk)
        if out != counted:
            at = (grant.key.queue, grant.key.name, grant.group)
            yield Finding(*at, f"grant {grant.uid} admitted − released", out, counted)
    for pk in sorted(counts.items_of.keys() - known):
        item = Item.objects.filter(grant_id=pk).first()
        if item is not None and item.lease_id is None:
            at = (item.queue, item.key, item.group)
            yield Finding(*at, f"grant row {pk} admitted − released", 0, counts.items_of[pk])


def _footprints() -> Iterator[Finding]:
    semaphores = Semaphore.objects.all()
    of_group, of_key = footprints(semaphores)
    for semaphore in semaphores.order_by("name"):
        if semaphore.footprint != of_key[semaphore.pk]:
            yield Finding("", semaphore.name, "", "footprint", semaphore.footprint, of_key[semaphore.pk])
    stored = {
        (row.semaphore_id, row.name): row
        for row in Ceiling.objects.filter(semaphore__in=semaphores).select_related("semaphore")
    }
    names = {row.pk: row.name for row in semaphores}
    for at in sorted(stored.keys() | of_group.keys()):
        value = stored[at].footprint if at in stored else 0
        if value != of_group[at]:
            yield Finding("", names[at[0]], at[1], "group footprint", value, of_group[at])


def footprints(semaphores: QuerySet[Semaphore]) -> tuple[Counter[tuple[int, str]], Counter[int]]:
    """Permits that count, summed over what is issued: by (semaphore, group), and by semaphore."""
    of_group: Counter[tuple[int, str]] = Counter()
    leased = Case(When(state=IssuedLease.State.RETIRED, then=F("drawn")), default=F("permits")) - F("released")
    for rows, counted in (
        (IssuedGrant.objects.filter(semaphore__in=semaphores), GRANT_FOOTPRINT),
        (IssuedLease.objects.filter(semaphore__in=semaphores), leased),
    ):
        for semaphore, group, permits in (
            rows.values("semaphore_id", "group")
            .annotate(held=Sum(counted))
            .values_list("semaphore_id", "group", "held")
        ):
            of_group[semaphore, group] += permits
    of_key: Counter[int] = Counter()
    for (semaphore, _group), permits in of_group.items():
        of_key[semaphore] += permits
    return of_group, of_key


def _pairs() -> Iterator[Finding]:
    """Both sides of each grant of a local queue. What a client had whose row is lost is nobody's."""
    queues = dict(Client.objects.values_list("pk", "queue"))
    theirs = {(row.client_id in queues, row.uid): row for row in _issued().select_related("semaphore")}
    ours = {(True, row.uid): row for row in _granted().select_related("key")}
    for at in sorted(theirs.keys() | ours.keys()):
        ours_out = ours[at].claimed - ours[at].acked_released if at in ours else 0
        theirs_out = theirs[at].claimed - theirs[at].released if at in theirs else 0
        if ours_out != theirs_out:
            if at in theirs:
                where = (queues.get(theirs[at].client_id, ""), theirs[at].semaphore.name, theirs[at].group)
            else:
                where = (ours[at].key.queue, ours[at].key.name, ours[at].group)
            yield Finding(*where, f"issued grant {at[1]} in use", theirs_out, ours_out)


def _issued() -> QuerySet[IssuedGrant]:
    """What local queues have at the holder; also what nobody has, because its client's row is lost."""
    return IssuedGrant.objects.exclude(client__in=Client.objects.filter(queue=""))


def _granted() -> QuerySet[Grant]:
    """What the holder of this project gave to local queues, by their own account."""
    return Grant.objects.filter(key__queue__in=[*_local_queues(), *_clients()])


def _local_queues() -> dict[str, conf.Queue]:
    queues = conf.settings().queues
    return {alias: queue for alias, queue in queues.items() if queue.transport == conf.LOCAL_TRANSPORT}


def _clients() -> dict[str, Client]:
    """Who asks for each local queue, also for those that settings no longer have."""
    rows = Client.objects.exclude(queue="")
    by_id = {row.client_id: row for row in rows}
    present = {alias: by_id[queue.client_id] for alias, queue in _local_queues().items() if queue.client_id in by_id}
    return {row.queue: row for row in rows} | present


# ------------------------------------------------------------------------------------------------------------- mending


def _make_rows(keys: set[tuple[str, str]]) -> None:
    """What a repair locks or refers to."""
    rows = [Key(queue=queue, name=name, due_at=clock.LONG_AGO) for queue, name in sorted(keys)]
    Key.objects.bulk_create(rows, batch_size=500, ignore_conflicts=True)
    known = set(Client.objects.values_list("client_id", flat=True))
    clients = [
        Client(client_id=queue.client_id, queue=queue.alias)
        for queue in _local_queues().values()
        if queue.client_id not in known
    ]
    Client.objects.bulk_create(clients, ignore_conflicts=True)


def _repair_keys(rows: list[Key], *, now: datetime) -> bool:
    """Grants first, so that what they give back is counted into the groups; the pump then folds it as usual. False if
    there is no key to be had."""
    for key in rows:
        _repair_grants(key, Counts.read(key.queue, key.name), now)
        if alias_of(Semaphore) == alias_of(Item):
            _repair_holder(key.name, now)
        _repair_groups(key, Counts.read(key.queue, key.name))
        Key.objects.filter(pk=key.pk).update(set_aside_until=None, set_aside_count=0, error="", due_at=clock.LONG_AGO)
    return bool(rows)


def _repair_grants(key: Key, counts: Counts, now: datetime) -> None:
    known = Grant.objects.filter(key=key)
    for grant in known:
        out, should = grant.admitted - grant.released, counts.of_grant(grant.pk)
        if out > should:
            Nudge.objects.create(
                queue=key.queue,
                key=key.name,
                group=grant.group,
                grant_id=grant.pk,
                returned=out - should,
                created_at=now,
            )
        elif out < should:
            grant.released = max(0, grant.admitted - should)
            grant.acked_released = min(grant.acked_released, grant.released)
            missing = should - (grant.admitted - grant.released)
            for counter in ("permits", "claimed", "confirmed", "admitted", "acked_claimed"):
                setattr(grant, counter, getattr(grant, counter) + missing)
            grant.save()
    orphans = Item.objects.filter(queue=key.queue, key=key.name, state=State.ADMITTED, lease_id=None).exclude(
        grant_id__in=known.values("pk")
    )
    for group, number in orphans.values("group").annotate(number=Count("id")).values_list("group", "number"):
        grant = Grant.objects.create(
            uid=uuid.uuid4().hex,
            key=key,
            group=group,
            permits=number,
            claimed=number,
            confirmed=number,
            admitted=number,
            closed=True,
            acked_claimed=number,
            acked_closed=True,
            created_at=now,
        )
        orphans.filter(group=group).update(grant_id=grant.pk)


def _repair_holder(name: str, now: datetime) -> None:
    """One transaction from the lost row to the right footprint: a pump in between would give all permits anew."""
    for semaphore in lock_semaphores([name]) or _make_semaphore(name):
        _repair_issued(semaphore, now)
        _repair_footprints(semaphore)


def _make_semaphore(name: str) -> list[Semaphore]:
    """The row of a key, locked, if permits of it are out."""
    if not _granted().filter(key__name=name).exists():
        return []
    Semaphore.objects.bulk_create([Semaphore(name=name)], ignore_conflicts=True)
    return lock_semaphores([name])


def _repair_issued(semaphore: Semaphore, now: datetime) -> None:
    """The clients' counts are the truth about their own permits: the holder only ever merges them by max. Those of all
    local queues, since their pumps write both sides under the semaphore's lock."""
    clients = _clients()
    issued = {row.uid: row for row in _issued().filter(semaphore=semaphore)}
    grants = {row.uid: row for row in _granted().filter(key__name=semaphore.name).select_related("key")}
    delete_by_id(IssuedGrant, [row.pk for uid, row in issued.items() if uid not in grants])
    for uid, grant in grants.items():
        row = issued.get(uid) or IssuedGrant(
            uid=uid, semaphore=semaphore, group=grant.group, claim_until=now, issued_at=now
        )
        row.client = clients[grant.key.queue]
        row.permits = row.claimed = grant.claimed
        row.released = grant.acked_released
        row.clamped = True
        row.save()


def _repair_groups(key: Key, counts: Counts) -> None:
    stored = {group.name: group for group in KeyGroup.objects.filter(key=key)}
    for at in sorted({(key.queue, key.name, name) for name in stored} | counts.groups()):
        group = stored.get(at[2]) or KeyGroup(key=key, name=at[2])
        right = counts.of_group(at)
        if any(right.values()):
            for counter, counted in right.items():
                setattr(group, counter, counted)
            group.save()
        elif group.pk:
            delete_by_id(KeyGroup, [group.pk])


def _repair_footprints(semaphore: Semaphore) -> None:
    of_group, of_key = footprints(Semaphore.objects.filter(pk=semaphore.pk))
    semaphore.footprint = of_key[semaphore.pk]
    semaphore.save(update_fields=["footprint"])
    stored = {row.name: row for row in Ceiling.objects.filter(semaphore=semaphore)}
    for group in sorted(stored.keys() | {group for _pk, group in of_group}):
        row = stored.get(group) or Ceiling(semaphore=semaphore, name=group)
        row.footprint = of_group[semaphore.pk, group]
        row.save()
