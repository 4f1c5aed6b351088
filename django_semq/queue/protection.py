"""Keeps the ORM's `delete()` from rows whose permit would go with them, and the counters right for the others.

The library deletes items by primary key and sends no signal, so only others meet this.
"""

from __future__ import annotations

from typing import Any

from django.db.models import ProtectedError

from django_semq import clock
from django_semq.locking import lock_by_id
from django_semq.models import Item, Nudge, State
from django_semq.protocol.names import shown


def protect(sender: type[Item], instance: Item, **kwargs: Any) -> None:
    """Receiver of `pre_delete`: raises `ProtectedError` for claiming and admitted items, and lets queued ones go as
    `cancel` does, with a nudge.

    It asks the row, which the delete's own transaction then holds: the instance may have been read before its
    item was admitted.
    """
    for item in lock_by_id(Item, [instance.pk], ("uid", "queue", "key", "group", "state")):
        if item.state != State.QUEUED:
            state = State(item.state).name.lower()
            raise ProtectedError(
                f"item {shown(item.uid)} of queue {shown(item.queue)} is {state}:"
                " its permit would be lost with the row. Use release(), once it is admitted.",
                {item},
            )
        Nudge.objects.create(queue=item.queue, key=item.key, group=item.group, queued_delta=-1, created_at=clock.now())
