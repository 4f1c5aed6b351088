"""Everything that knows django-q2: the schedule, wake-ups as tasks, and `async_task`. Imported lazily: a project
may drive its queues with `semq_run` or `semq_tick` alone.

django-q2 delivers a message at least once with the ORM broker and at most once with Redis, and runs it again when
its worker dies. So nothing here relies on a message: the item's row says which attempt may run, once.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db import connections, router
from django.utils.module_loading import import_string

from django_semq import clock, conf
from django_semq.driver import tick as driver
from django_semq.exceptions import InvalidItem, SemqError
from django_semq.locking import lock_by_id
from django_semq.locking import run as in_transaction
from django_semq.models import Driver, Item, State
from django_semq.protocol.names import shown
from django_semq.queue.admission import AdmittedItem
from django_semq.queue.items import Enqueued, queues
from django_semq.rows import alias_of

logger = logging.getLogger(__name__)

TICK = "django_semq.driver.djangoq.tick"
RUN = "django_semq.driver.djangoq.run"
SCHEDULE_NAME = "django_semq"
UNSAVED = {"save": False, "ack_failure": True}
"""Results of ticks would push the project's own out of `save_limit`; a failed tick must not be delivered again."""

RUNS_FOR = timedelta(seconds=30)
"""A task that has not moved its `due_at` for this long has lost its worker."""
BEAT = timedelta(seconds=10)
"""A third of it: two lost beats are forgiven."""
SLOW_BROKER = 1.0
BROKER_REST = 30.0

_no_wake_before = 0.0


# ------------------------------------------------------------------------------------------------------ drive and wake


def tick() -> None:
    """The scheduled task: run everything due. A wake-up that comes after the mark is cleared is sent again."""
    Driver.objects.filter(pk=1, wake_asked_at__isnull=False).update(wake_asked_at=None)
    driver.tick()


def wake(*, queue: str, **_kwargs: Any) -> None:
    """Send one wake-up task, unless one is on its way. A broker that fails or is slow gets none for a while."""
    global _no_wake_before
    if not conf.settings().driver.wake or not apps.is_installed("django_q"):
        return
    started = clock.monotonic()
    if started < _no_wake_before or not _claim_wake():
        return
    try:
        _send(TICK, q_options=dict(UNSAVED))
    except Exception:
        logger.exception("django-q2's broker took no wake-up; none is sent for %g s", BROKER_REST)
        _no_wake_before = clock.monotonic() + BROKER_REST
        Driver.objects.filter(pk=1).update(wake_asked_at=None)
    if clock.monotonic() - started > SLOW_BROKER:
        _no_wake_before = clock.monotonic() + BROKER_REST


def _claim_wake() -> bool:
    asked = Driver.objects.filter(pk=1).values_list("wake_asked_at", flat=True).first()
    if asked is not None:
        return False
    now = clock.now()
    if Driver.objects.filter(pk=1, wake_asked_at=None).update(wake_asked_at=now):
        return True
    Driver.objects.bulk_create([Driver(pk=1)], ignore_conflicts=True)
    return bool(Driver.objects.filter(pk=1, wake_asked_at=None).update(wake_asked_at=now))


def install_schedule(*, using: str, **_kwargs: Any) -> None:
    """Make the one schedule of a minute, or remove it where SCHEDULE is False. After each migration; twice is once."""
    if not apps.is_installed("django_q"):
        return
    from django_q.models import Schedule

    homes = {model: router.db_for_write(model) for model in (Schedule, Driver)}
    if using not in homes.values() or not all(
        model._meta.db_table in connections[home].introspection.table_names() for model, home in homes.items()
    ):
        return  # The migration that makes the last of the tables comes here again.

    def install() -> None:
        lock_by_id(Driver, [1])
        ours = list(Schedule.objects.using(homes[Schedule]).filter(func=TICK).order_by("pk"))
        wanted = ours[:1] if conf.settings().driver.schedule else []
        for extra in ours[len(wanted) :]:
            extra.delete()
        if conf.settings().driver.schedule:
            schedule = wanted[0] if wanted else Schedule(func=TICK)
            schedule.name = SCHEDULE_NAME
            schedule.schedule_type = Schedule.MINUTES
            schedule.minutes = 1
            schedule.repeats = -1
            schedule.args = None  # An unreadable one would stop every schedule of the cluster.
            schedule.kwargs = f"q_options={UNSAVED}"
            soon = clock.now() + timedelta(minutes=1)
            schedule.next_run = min(schedule.next_run or soon, soon)  # A clock that was wrong may have put it far off.
            schedule.save(using=homes[Schedule])

    # Before, and not in the same transaction: InnoDB's insert-ignore takes a shared lock on the row that it finds.
    Driver.objects.bulk_create([Driver(pk=1)], ignore_conflicts=True)
    in_transaction(install, using=alias_of(Driver))


# ---------------------------------------------------------------------------------------------------------- async_task


def async_task(
    func: str,
    *args: Any,
    key: str,
    group: str = "",
    id: str | None = None,
    queue: str = "default",
    q_options: dict[str, Any] | None = None,
    **kwargs: Any,
) -> Enqueued:
    """Run a function, by its dotted path, as a django-q2 task once it has a permit of the key.

    Arguments must be JSON. The permit is given back when the function ends or fails. If its worker dies, the item
    keeps its permit and runs again: at least once, never twice at the same time (but for a host that freezes and
    thaws). Raises `InvalidItem`, and `SemqError` on a queue with an `ADMIT` of its own.
    """
    if conf.queue(queue).admit != conf.TASK_ADMIT:
        raise SemqError(
            f"queue {queue!r} has the ADMIT {conf.queue(queue).admit!r}, so nobody would run its tasks;"
            " declare a second queue without ADMIT in SEMQ['QUEUES'] and name it with queue="
        )
    if not _is_path(func):
        text = f"func is {shown(func)}; give a dotted path, as in 'shop.jobs.export'"
        raise InvalidItem(text, field="func")
    body = {"func": func, "args": list(args), "kwargs": kwargs, "q_options": q_options or {}}
    return queues[queue].put(key, body, group=group, id=id)


def admit(items: Sequence[AdmittedItem]) -> None:
    """The `ADMIT` of queues that have none: send each item's task. Raises before any is sent if one is no task."""
    tasks = [(item, _options(item)) for item in items]
    for item, options in tasks:
        _send(RUN, item.row, item.attempt, q_options={**options, "ack_failure": True})


def run(row: int, attempt: int) -> None:
    """Run an admitted item's function, if this message is of its present attempt and the first to arrive."""
    item = _start(row, attempt)
    if item is None:
        return
    body = json.loads(item.body)
    try:
        with _beating(row, attempt):
            import_string(body["func"])(*body["args"], **body["kwargs"])
    finally:
        queues[item.queue].release_rows({row: attempt})


def _is_path(value: object) -> bool:
    return isinstance(value, str) and "." in value


def _options(item: AdmittedItem) -> dict[str, Any]:
    try:
        return dict(item.body["q_options"])
    except (TypeError, KeyError, ValueError):
        raise SemqError(
            f"item {shown(item.id)} is no task: it was enqueued while its queue had an ADMIT; name that one again in"
            " SEMQ['QUEUES'], or release the item"
        ) from None


def _start(row: int, attempt: int) -> Item | None:
    """Compare and set: of all copies of a message one starts, and none of an earlier attempt."""
    mine = Item.objects.filter(pk=row, state=State.ADMITTED, attempt=attempt)
    begun = in_transaction(
        lambda: mine.filter(started=False).update(started=True, due_at=clock.now() + RUNS_FOR),
        using=alias_of(Item),
    )
    return mine.first() if begun else None


@contextmanager
def _beating(row: int, attempt: int) -> Iterator[None]:
    """Move the row's `due_at` ahead while the function runs, from a thread with a connection of its own."""
    stop = threading.Event()

    def beat() -> None:
        try:
            while not stop.wait(BEAT.total_seconds()):
                try:
                    Item.objects.filter(pk=row, state=State.ADMITTED, attempt=attempt, started=True).update(
                        due_at=clock.now() + RUNS_FOR
                    )
                except Exception:
                    logger.exception("item row %d: a beat of its task failed", row)
                    connections[alias_of(Item)].close()
        finally:
            connections.close_all()

    thread = threading.Thread(target=beat, name="semq-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _send(func: str, *args: Any, q_options: dict[str, Any]) -> None:
    from django_q.tasks import async_task as send

    send(func, *args, q_options=q_options)


def next_scheduled_tick(databases: Sequence[str]) -> list[datetime] | None:
    """When the schedule's rows are due, but for those that never are; None if their database is not among these."""
    from django_q.models import Schedule

    using = router.db_for_write(Schedule)
    if using not in databases:
        return None
    rows = Schedule.objects.using(using).filter(func=TICK, next_run__isnull=False)
    return list(rows.order_by("next_run").values_list("next_run", flat=True))
