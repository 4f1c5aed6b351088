"""Operators' verbs for the keys whose holder is in this project: `from django_semq import semaphores`.

Each is one short transaction under the semaphore's lock, or part of the caller's (commit soon: rounds of the key
wait for it), and safe to repeat. What makes waiting items eligible
is felt at once: the local queues that wait are nudged in the same transaction. Lowering a limit and pausing take
back what is not claimed yet and let the rest drain; nothing that runs is preempted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django_semq import clock, conf
from django_semq.exceptions import InvalidItem
from django_semq.holder import ledger
from django_semq.holder.limits import KeyLimits, limits_of
from django_semq.holder.service import nudge_waiting
from django_semq.locking import delete_by_id, join, lock_semaphores, run, snapshot
from django_semq.models import Ceiling, Demand, IssuedGrant, IssuedLease, Semaphore
from django_semq.protocol.names import name_problem, shown
from django_semq.rows import alias_of, write_back


@dataclass(frozen=True, slots=True)
class GroupUsage:
    """What is issued of one group of a key."""

    ceiling: int | None
    footprint: int
    headroom: int | None
    """None without a ceiling; negative after it was lowered."""
    paused: bool


@dataclass(frozen=True, slots=True)
class Issued:
    """One grant or lease that is out."""

    client: str
    kind: str
    """"grant" or "lease"."""
    id: str
    group: str
    permits: int
    in_use: int
    since: datetime


@dataclass(frozen=True, slots=True)
class KeyUsage:
    """A key as its holder sees it."""

    limit: int | None
    source: str
    """Where the limit comes from: "override", "function", "rule" or "default"."""
    footprint: int
    headroom: int | None
    """None if unlimited; negative after the limit was lowered."""
    paused: bool
    groups: dict[str, GroupUsage]
    issued: list[Issued]


def set_limit(key: str, limit: int | None) -> None:
    """Override the limit of a key; 0 blocks it, None is unlimited. Raises `InvalidLimit`."""
    _override(key, None, conf.checked_limit(limit, f"the limit of key {shown(key)}"))


def set_ceiling(key: str, group: str, ceiling: int | None) -> None:
    """Override the ceiling of a group; 0 blocks it, None is none. Raises `InvalidLimit`."""
    what = f"the ceiling of group {shown(group)} of key {shown(key)}"
    _override(key, group, conf.checked_limit(ceiling, what))


def reset_limit(key: str, group: str | None = None) -> None:
    """Return to the base: what the project's function, rules and default say."""

    def reset(row: Semaphore | Ceiling) -> None:
        row.override, row.has_override = None, False

    _change(key, group, reset)


def pause(key: str, group: str | None = None) -> None:
    """Issue nothing more of the key, or of one group of it, until `resume`. What runs goes on."""
    _set_paused(key, group, True)


def resume(key: str, group: str | None = None) -> None:
    """Issue again; waiting items are looked at at once."""
    _set_paused(key, group, False)


def refresh(key: str | None = None) -> None:
    """Forget what the LIMITS function said, of one key or of all, and look at what waits."""
    now = clock.now()

    def forget() -> None:
        rows = Semaphore.objects.all() if key is None else Semaphore.objects.filter(name=key)
        rows.exclude(answered_at=None).update(answered_at=None)
        nudge_waiting(_waited_for(key), now=now)

    join(forget, using=alias_of(Semaphore))


def usage(key: str) -> KeyUsage:
    """What is issued of a key, to whom, and what is left, at one moment."""
    _check_names(key, None)
    with snapshot(alias_of(Semaphore)):
        return _usage(key)


def _usage(key: str) -> KeyUsage:
    semaphore = Semaphore.objects.filter(name=key).first()
    limits = limits_of(key, semaphore)
    if semaphore is None:
        return KeyUsage(limits.limit, limits.source, 0, limits.limit, False, {}, [])
    return KeyUsage(
        limit=limits.limit,
        source=limits.source,
        footprint=semaphore.footprint,
        headroom=_headroom(limits.limit, semaphore.footprint),
        paused=semaphore.paused,
        groups={row.name: _group_usage(row, limits) for row in semaphore.ceilings.order_by("name")},
        issued=_issued(semaphore),
    )


def nudge_all_waiting(now: datetime) -> None:
    """Look at everything that waits: a setting that limits depend on has changed."""
    run(lambda: nudge_waiting(_waited_for(None), now=now), using=alias_of(Semaphore))


def _override(key: str, group: str | None, limit: int | None) -> None:
    def override(row: Semaphore | Ceiling) -> None:
        row.override, row.has_override = limit, True

    _change(key, group, override)


def _set_paused(key: str, group: str | None, paused: bool) -> None:
    def change(row: Semaphore | Ceiling) -> None:
        row.paused = paused

    _change(key, group, change)


def _change(key: str, group: str | None, change: Callable[[Semaphore | Ceiling], None]) -> None:
    """Change the key's row, or a group's, and what follows from it, under the semaphore's lock."""
    _check_names(key, group)
    now = clock.now()
    if not Semaphore.objects.filter(name=key).exists():
        join(
            lambda: Semaphore.objects.bulk_create([Semaphore(name=key, idle_since=now)], ignore_conflicts=True),
            using=alias_of(Semaphore),
        )

    def work() -> None:
        while not (rows := lock_semaphores([key])):  # The sweep may have removed it just now.
            Semaphore.objects.bulk_create([Semaphore(name=key, idle_since=now)], ignore_conflicts=True)
        (semaphore,) = rows
        if group is None:
            change(semaphore)
        else:
            ceiling = semaphore.ceilings.filter(name=group).first() or Ceiling(semaphore=semaphore, name=group)
            change(ceiling)
            ceiling.save()
        _take_back_unclaimed(semaphore)
        empty = semaphore.ceilings.filter(footprint=0, has_override=False, paused=False)
        delete_by_id(Ceiling, empty.values_list("pk", flat=True))
        held = semaphore.footprint or semaphore.has_override or semaphore.paused
        semaphore.idle_since = None if held else now
        semaphore.save()
        nudge_waiting([semaphore], now=now)

    join(work, using=alias_of(Semaphore))


def _take_back_unclaimed(semaphore: Semaphore) -> None:
    """A claim that is not confirmed may be refused at any moment: clamp all that is open where too much is out."""
    limits = limits_of(semaphore.name, semaphore)
    ceilings = {row.name: row for row in semaphore.ceilings.all()}
    is_over = semaphore.paused or _is_below(limits.limit, semaphore.footprint)
    over = {row.name for row in ceilings.values() if row.paused or _is_below(_ceiling(row, limits), row.footprint)}
    for grant in list(IssuedGrant.objects.filter(semaphore=semaphore, clamped=False)):
        if not is_over and grant.group not in over:
            continue
        before = ledger.footprint(grant)
        ledger.clamp(grant)
        if ledger.is_spent(grant):
            delete_by_id(IssuedGrant, [grant.pk])
        else:
            grant.save(update_fields=["clamped", "permits"])
        for row in (semaphore, ceilings[grant.group]):
            row.footprint += ledger.footprint(grant) - before
    write_back(Ceiling, list(ceilings.values()), ["footprint"])


def _waited_for(key: str | None) -> list[Semaphore]:
    rows = Semaphore.objects.filter(pk__in=Demand.objects.values("semaphore_id"))
    return list(rows if key is None else rows.filter(name=key))


def _group_usage(row: Ceiling, limits: KeyLimits) -> GroupUsage:
    ceiling = _ceiling(row, limits)
    return GroupUsage(ceiling, row.footprint, _headroom(ceiling, row.footprint), row.paused)


def _ceiling(row: Ceiling, limits: KeyLimits) -> int | None:
    return row.override if row.has_override else limits.ceiling(row.name)


def _is_below(limit: int | None, footprint: int) -> bool:
    return limit is not None and limit < footprint


def _headroom(limit: int | None, footprint: int) -> int | None:
    return None if limit is None else limit - footprint


def _issued(semaphore: Semaphore) -> list[Issued]:
    grants = [
        Issued(
            client=row.client.client_id,
            kind="grant",
            id=row.uid,
            group=row.group,
            permits=row.permits,
            in_use=row.claimed - row.released,
            since=row.issued_at,
        )
        for row in IssuedGrant.objects.filter(semaphore=semaphore).select_related("client").order_by("pk")
    ]
    leases = [
        Issued(
            client=row.client.client_id,
            kind="lease",
            id=row.uid,
            group=row.group,
            permits=row.permits,
            in_use=row.drawn - row.released,
            since=row.issued_at,
        )
        for row in IssuedLease.objects.filter(semaphore=semaphore).select_related("client").order_by("pk")
    ]
    return grants + leases


def _check_names(key: str, group: str | None) -> None:
    if problem := name_problem(key):
        raise InvalidItem(f"key is {shown(key)}: {problem}", field="key")
    if group is not None and (problem := name_problem(group, blank=True)):
        raise InvalidItem(f"group is {shown(group)}: {problem}", field="group")
