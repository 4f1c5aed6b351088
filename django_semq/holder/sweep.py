"""What the holder does of itself: taking back what nobody claimed in time, and removing keys that hold nothing, that
nobody waits for and of which no operator said anything."""

from __future__ import annotations

from datetime import datetime

from django.db import connections
from django.db.models import Exists, OuterRef

from django_semq import conf
from django_semq.holder.service import Books
from django_semq.locking import delete_by_id, lock_semaphores, run
from django_semq.models import Ceiling, Demand, IssuedGrant, IssuedLease, Semaphore
from django_semq.rows import alias_of, as_datetime

AT_ONCE = 100
NEED_IT = (Demand, Ceiling, IssuedGrant, IssuedLease)
"""Whose rows keep the row of their key."""


def due(now: datetime) -> tuple[datetime | None, bool]:
    """When the first claim window ends, and whether a key may be removed: in one read, for every pass makes it."""
    needed = " OR ".join(f"EXISTS (SELECT 1 FROM {m._meta.db_table} n WHERE n.semaphore_id = s.id)" for m in NEED_IT)
    semaphore = Semaphore._meta.db_table
    connection = connections[alias_of(Semaphore)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT (SELECT MIN(clamp_at) FROM {semaphore}),"
            f" EXISTS (SELECT 1 FROM {semaphore} s WHERE s.idle_since <= %s AND NOT ({needed}))",
            [connection.ops.adapt_datetimefield_value(now - conf.IDLE_BEFORE_REMOVAL)],
        )
        first, is_any_idle = cursor.fetchone()
    return None if first is None else as_datetime(Semaphore, first), bool(is_any_idle)


def take_back(now: datetime) -> bool:
    """Free what was not claimed in time, of at most 100 keys; True if a window had ended. A client whose reply was lost
    may never speak of this key again, and others wait for it. Twice is safe."""
    ended = Semaphore.objects.filter(clamp_at__lte=now)
    names = list(ended.order_by("clamp_at").values_list("name", flat=True)[:AT_ONCE])
    if not names:
        return False

    def work() -> bool:
        books = Books(now)
        books.lock(names)
        for semaphore in books.semaphores.values():
            books.clamp_overdue(semaphore)
        books.write()
        return bool(books.semaphores)

    return run(work, using=alias_of(Semaphore))


def remove_idle(now: datetime) -> bool:
    """Remove at most 100 semaphores that were idle for a day; True if any was. Writes nothing if none is."""
    idle = Semaphore.objects.filter(idle_since__lte=now - conf.IDLE_BEFORE_REMOVAL).filter(
        *(~Exists(model.objects.filter(semaphore=OuterRef("pk"))) for model in NEED_IT)
    )
    names = list(idle.order_by("idle_since").values_list("name", flat=True)[:AT_ONCE])
    if not names:
        return False

    def remove() -> None:
        rows = lock_semaphores(names, skip_locked=True)
        still = {row.pk for row in rows if row.idle_since is not None and not row.footprint}
        for model in NEED_IT:
            still -= set(model.objects.filter(semaphore__in=still).values_list("semaphore_id", flat=True))
        delete_by_id(Semaphore, still)

    run(remove, using=alias_of(Semaphore))
    return True
