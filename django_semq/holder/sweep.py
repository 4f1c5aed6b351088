"""What the holder does of itself: removing keys that hold nothing, that nobody waits for and of which no operator
said anything."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef

from django_semq import conf
from django_semq.locking import delete_by_id, lock_semaphores, run
from django_semq.models import Ceiling, Demand, IssuedGrant, IssuedLease, Semaphore
from django_semq.rows import alias_of

AT_ONCE = 100
NEED_IT = (Demand, Ceiling, IssuedGrant, IssuedLease)
"""Whose rows keep the row of their key."""


def sweep(now: datetime) -> bool:
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
