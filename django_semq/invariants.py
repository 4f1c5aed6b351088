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

from django.db.models import Case, Count, F, Min, Q, QuerySet, Sum, Value, When
from django.db.models.fields import BigIntegerField, IntegerField

from django_semq import clock, conf
from django_semq.exceptions import shown
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
from django_semq.queue.pump import with_keys
from django_semq.rows import alias_of

logger = logging.getLogger(__name__)

OLD_NUDGE = timedelta(minutes=1)
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
            findings += [*_footprints(None), *_pairs(None)]
    return findings


def notices(now: datetime) -> list[Notice]:
    """Keys that nobody pumps, keys set aside, and waiting clients of queues that no setting knows."""
    known = set(conf.settings().queues)
    found = [
        Notice(
            f"queue {queue} key {shown(key)}: its oldest nudge is of {oldest.isoformat()}; no driver runs,"
            " or a frozen process holds the key"
        )
        for queue, key, oldest in Nudge.objects.values("queue", "key")
        .annotate(oldest=Min("created_at"))
        .filter(oldest__lt=now - OLD_NUDGE)
        .values_list("queue", "key", "oldest")
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


def repair(findings: Iterable[Finding], *, now: datetime) -> None:
    """Write the right values of these findings' keys, each under its lock, and log them. Permits of items that no
    longer exist go back. Safe to repeat; what changed meanwhile is recounted under the lock."""
    findings = list(findings)
    names = {finding.key for finding in findings}
    keys = {(finding.queue, finding.key) for finding in findings if finding.queue}
    keys |= set(Key.objects.filter(name__in=names).values_list("queue", "name"))
    run(
        lambda: Key.objects.bulk_create([Key(queue=queue, name=name) for queue, name in keys], ignore_conflicts=True),
        using=alias_of(Key),
    )
    for queue, name in sorted(keys):
        with_keys(queue, [name], partial(_repair_keys, now=now))
    for name in sorted(names - {name for _queue, name in keys}):
        run(partial(_repair_footprints, name), using=alias_of(Semaphore))
    for finding in findings:
        logger.warning("repaired: %s", finding)


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


def _footprints(name: str | None) -> Iterator[Finding]:
    semaphores = Semaphore.objects.all() if name is None else Semaphore.objects.filter(name=name)
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


def _pairs(name: str | None) -> Iterator[Finding]:
    """Both sides of each grant of a local queue."""
    issued = IssuedGrant.objects.exclude(client__queue="").select_related("semaphore", "client")
    grants = Grant.objects.select_related("key")
    if name is not None:
        issued, grants = issued.filter(semaphore__name=name), grants.filter(key__name=name)
    theirs = {row.uid: row for row in issued}
    local = set(Client.objects.exclude(queue="").values_list("queue", flat=True))
    ours = {row.uid: row for row in grants if row.key.queue in local}
    for uid in sorted(theirs.keys() | ours.keys()):
        ours_out = ours[uid].claimed - ours[uid].acked_released if uid in ours else 0
        theirs_out = theirs[uid].claimed - theirs[uid].released if uid in theirs else 0
        if ours_out != theirs_out:
            if uid in theirs:
                at = (theirs[uid].client.queue, theirs[uid].semaphore.name, theirs[uid].group)
            else:
                at = (ours[uid].key.queue, ours[uid].key.name, ours[uid].group)
            yield Finding(*at, f"issued grant {uid} in use", theirs_out, ours_out)


# ------------------------------------------------------------------------------------------------------------- mending


def _repair_keys(rows: list[Key], *, now: datetime) -> None:
    """Grants first, so that what they give back is counted into the groups; the pump then folds it as usual."""
    for key in rows:
        _repair_grants(key, Counts.read(key.queue, key.name), now)
        if alias_of(Semaphore) == alias_of(Item):
            _repair_pairs(key, now)
            _repair_footprints(key.name)
        _repair_groups(key, Counts.read(key.queue, key.name))
        Key.objects.filter(pk=key.pk).update(set_aside_until=None, set_aside_count=0, error="", due_at=clock.LONG_AGO)


def _repair_grants(key: Key, counts: Counts, now: datetime) -> None:
    known = set()
    for grant in Grant.objects.filter(key=key):
        known.add(grant.pk)
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
        grant_id__in=known
    )
    for group, number in orphans.values("group").annotate(number=Count("id")).values_list("group", "number"):
        grant = Grant.objects.create(
            uid=uuid.uuid4().hex,
            key=key,
            group=group,
            batch=uuid.uuid4(),
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


def _repair_pairs(key: Key, now: datetime) -> None:
    """The client's counts are the truth about its own permits: the holder only ever merges them by max."""
    client = Client.objects.filter(queue=key.queue).first()
    semaphores = lock_semaphores([key.name])
    if client is None or not semaphores:
        return
    (semaphore,) = semaphores
    issued = {row.uid: row for row in IssuedGrant.objects.filter(semaphore=semaphore, client=client)}
    grants = {row.uid: row for row in Grant.objects.filter(key=key)}
    delete_by_id(IssuedGrant, [row.pk for uid, row in issued.items() if uid not in grants])
    for uid, grant in grants.items():
        row = issued.get(uid) or IssuedGrant(
            uid=uid, semaphore=semaphore, client=client, group=grant.group, claim_until=now, issued_at=now
        )
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


def _repair_footprints(name: str) -> None:
    for semaphore in lock_semaphores([name]):
        of_group, of_key = footprints(Semaphore.objects.filter(pk=semaphore.pk))
        semaphore.footprint = of_key[semaphore.pk]
        semaphore.save(update_fields=["footprint"])
        stored = {row.name: row for row in Ceiling.objects.filter(semaphore=semaphore)}
        for group in sorted(stored.keys() | {group for _pk, group in of_group}):
            row = stored.get(group) or Ceiling(semaphore=semaphore, name=group)
            row.footprint = of_group[semaphore.pk, group]
            row.save()
