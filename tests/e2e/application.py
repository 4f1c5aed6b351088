"""The project's own code: functions for `async_task`, and the handlers of its queues."""

import os
import threading
import time
from collections.abc import Sequence

from django.db import connection

from django_semq import release_many
from django_semq.models import Item
from django_semq.queue.admission import AdmittedItem
from tests.e2e.journal import Journal

MODULE = __name__
journal = Journal(os.environ.get("SEMQ_TEST_JOURNAL", os.devnull))


# ---------------------------------------------------------------------------------------------- tasks


def work(id: str, seconds: float = 0) -> None:
    journal.note("start", id=id, attempt=_attempt(id))
    time.sleep(seconds)
    journal.note("end", id=id)


def fail(id: str) -> None:
    journal.note("start", id=id, attempt=_attempt(id))
    raise RuntimeError("this work cannot be done")


def work_at_gate(id: str) -> None:
    """Its first attempt does not end before the gate opens."""
    attempt = _attempt(id)
    journal.note("start", id=id, attempt=attempt)
    if attempt == 1:
        journal.at_gate(id)
    journal.note("end", id=id)


def _attempt(id: str) -> int:
    return Item.objects.get(uid=id).attempt


# ------------------------------------------------------------------------------------------- handlers


def admit(items: Sequence[AdmittedItem]) -> None:
    for item in items:
        journal.note("start", id=item.id, key=item.key, attempt=item.attempt)
    release_many([item.id for item in items])


def admit_at_gate(items: Sequence[AdmittedItem]) -> None:
    journal.note("begun", ids=[item.id for item in items])
    journal.at_gate("admit")
    journal.note("over", ids=[item.id for item in items])


def admit_but_hang_on_stuck(items: Sequence[AdmittedItem]) -> None:
    """Never returns where one of the items is of the key "stuck"."""
    if any(item.key == "stuck" for item in items):
        journal.note("hangs", ids=[item.id for item in items])
        threading.Event().wait()
    admit(items)


def admit_and_note_session(items: Sequence[AdmittedItem]) -> None:
    journal.note("session", of="admit", limit=_idle_write_limit())
    raise RuntimeError("so that the delay is asked for")


def delay_and_note_session(attempt: int) -> float:
    """RETRY_DELAY, which the driver's own thread calls."""
    journal.note("session", of="driver", limit=_idle_write_limit())
    return 60


def _idle_write_limit() -> int:
    """How long MariaDB lets a session of ours stand still in a transaction that has written."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@SESSION.idle_write_transaction_timeout")
        return cursor.fetchone()[0]
