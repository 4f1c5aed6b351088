"""Handing admitted items over to the application, and asking it which of them are finished.

The order is: claim rows for one attempt in a short transaction, call the application with nothing of ours open,
record what came of it. A crash in between leaves rows that are due again at their attempt's deadline, so
`admit()` is called at least once for each item; the attempt number on the row makes late outcomes harmless.

An item whose last hand-over did not succeed is handed over alone from then on: one bad item, an undecodable body
or a hanging handler holds back nobody else.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_semq import clock, conf, handlers
from django_semq.exceptions import described
from django_semq.locking import lock_by_id, lock_due, refuse_if_open, run
from django_semq.models import Item, State
from django_semq.protocol.names import shown
from django_semq.queue.items import queues
from django_semq.rows import alias_of, chunks, execute, select, select_tuples

logger = logging.getLogger(__name__)

MAX_ATTEMPT = 2**31 - 1
MAX_DELAY = 2**31 / 1000
"""Seconds: a longer delay of a policy is taken for rubbish."""
FALLBACK_DELAY = timedelta(seconds=60)
RETRY_AT_ONCE = clock.LONG_AGO + timedelta(seconds=1)
"""Due at once, but not fresh: the index tells apart by `due_at` what goes into batches and what goes alone."""
TASK_LOST_AFTER = timedelta(minutes=5)
"""A task of `async_task` that has not started by then, times its attempts, is taken for lost and sent again."""


@dataclass(frozen=True, slots=True)
class AdmittedItem:
    """An item with a permit, as `admit()` gets it."""

    id: str
    key: str
    group: str
    body: Any
    enqueued_at: datetime
    admitted_at: datetime
    via: str
    """"grant" or "lease": how its permit was given."""
    attempt: int
    """Hand-overs of this item so far, this one included."""
    row: int = field(repr=False)
    """Number of its row, which no other item ever has. With `attempt` it tells this hand-over from all others."""


@dataclass(slots=True)
class HandOver:
    """Items claimed for one call of `admit()`."""

    queue: str
    items: list[AdmittedItem]
    attempts: dict[int, int]
    """Row number -> attempt."""
    is_alone: bool

    @property
    def keys(self) -> set[str]:
        return {item.key for item in self.items}

    def with_items_of(self, other: HandOver) -> HandOver:
        return HandOver(self.queue, self.items + other.items, self.attempts | other.attempts, self.is_alone)


@dataclass(slots=True)
class Check:
    """Items claimed for one call of `finished()`."""

    queue: str
    rows: dict[str, int]
    """Public id -> row number."""
    attempts: dict[int, int]


# --------------------------------------------------------------------------------------------------------- hand-over


def next_hand_over(queue: str) -> datetime | None:
    """When the first admitted item is due for hand-over."""
    return _first_due(queue, handed_over=False)


def claim(queue: str, *, now: datetime, without: Collection[str], calls: int, spreads: bool = False) -> list[HandOver]:
    """Claim due items for at most this many calls: fresh ones in batches, and single ones that were tried before. No
    key is in two of the calls: one that hangs takes the permits of its own call's keys with it, and no others. For
    the same reason fresh items are spread over the calls, unless these run one after the other.

    Rows that somebody else holds are passed over. Items with an undecodable body are recorded as failed and left
    out. Until the attempt's deadline no other driver claims the same rows.
    """
    settings = conf.queue(queue)
    size = settings.max_admit_batch
    free, busy = (" AND {key} NOT IN %s", [sorted(without)]) if without else ("", [])

    def lock_fresh(count: int) -> list[Item]:
        due = f"{_ADMITTED}{free} AND due_at <= %s"
        return lock_due(due, *_admitted(queue, handed_over=False), *busy, clock.LONG_AGO, count=count)

    def lock_tried(count: int) -> list[Item]:
        due = f"{_ADMITTED}{free} AND due_at > %s AND due_at <= %s"
        return lock_due(due, *_admitted(queue, handed_over=False), *busy, clock.LONG_AGO, now, count=count)

    def work() -> tuple[list[list[Item]], list[Item]]:
        tried = {row.key: row for row in reversed(lock_tried(calls))}
        fresh = lock_fresh(size * calls if spreads else size)
        if fresh and len(tried) == calls:
            # Neither may keep the other waiting for ever.
            tried.pop(next(iter(tried)))
            if calls == 1 and random.random() < 0.5:
                fresh, tried = [], {row.key: row for row in lock_tried(1)}
        fresh = [row for row in fresh if row.key not in tried]
        batches = _spread(fresh, calls - len(tried) if spreads else 1, size)
        claimed = [row.pk for batch in [*batches, tried.values()] for row in batch]
        for part in chunks(claimed):
            sql = (
                f"UPDATE {{{Item._meta.db_table}}} SET due_at = %s, started = %s,"
                f" attempt = CASE WHEN attempt < {MAX_ATTEMPT} THEN attempt + 1 ELSE attempt END WHERE id IN %s"
            )
            execute(Item, sql, now + settings.attempt_timeout, False, part)
        return batches, list(tried.values())

    while True:
        fresh, tried = run(work, using=alias_of(Item))
        batches = [_hand_over(queue, rows, is_alone=False, now=now) for rows in fresh]
        batches += [_hand_over(queue, [row], is_alone=True, now=now) for row in tried]
        batches = [batch for batch in batches if batch.items]
        if batches or not fresh:  # Else all that was claimed was undecodable, and there may be more behind it.
            return batches


def _spread(rows: Sequence[Item], calls: int, size: int) -> list[list[Item]]:
    """Rows in at most this many batches of at most this size, all rows of a key in one, in their order. What does not
    fit is left for later."""
    batches: list[list[Item]] = [[] for _ in range(calls)]
    home: dict[str, list[Item]] = {}
    for row in rows:
        batch = home.setdefault(row.key, min(batches, key=len))
        if len(batch) < size:
            batch.append(row)
    return [batch for batch in batches if batch]


def _hand_over(queue: str, rows: Sequence[Item], *, is_alone: bool, now: datetime) -> HandOver:
    items, broken = _decode(rows)
    for row, error in broken:
        failed(HandOver(queue, [], {row.pk: _next(row.attempt)}, is_alone=True), error, now=now)
    return HandOver(queue, items, {item.row: item.attempt for item in items}, is_alone)


def hand_over(batch: HandOver) -> bool:
    """Call `admit()`, with no transaction of ours open. True if it returned, False if the item turned out finished.

    An item that was tried before is asked about first, where the queue has `finished()`: the last attempt may
    have done its work and died before saying so.
    """
    refuse_if_open("admit()")
    settings = conf.queue(batch.queue)
    if settings.finished is not None and batch.is_alone:
        (item,) = batch.items
        if item.id in _ask_application(settings, [item.id]):
            return False
    handlers.resolve(settings.admit, f"SEMQ['QUEUES'][{batch.queue!r}]['ADMIT']")(list(batch.items))
    return True


def succeeded(batch: HandOver, *, now: datetime) -> bool:
    """Mark items as handed over. False if a row is held by another transaction: mark again later, or it is handed
    over again at its deadline."""
    settings = conf.queue(batch.queue)
    if settings.admit == conf.TASK_ADMIT:
        # Each time later: behind a backlog that is longer, a task would only ever be sent again.
        due_at: datetime | None = now + TASK_LOST_AFTER * min(max(batch.attempts.values()), 12)
    else:
        due_at = now + settings.finished_check if settings.finished else None
    return _record(batch.attempts, due_at, "", handed_over=True)


def failed(batch: HandOver, error: BaseException, *, now: datetime) -> bool:
    """Make items due again: each alone and at once after a failed batch, after a delay if it failed alone."""
    text = described(error)
    logger.warning(
        "queue %s: admit() failed for %d item(s): %s", batch.queue, len(batch.attempts), text, exc_info=error
    )
    due_at = RETRY_AT_ONCE
    if batch.is_alone or len(batch.attempts) == 1:
        due_at = now + retry_delay(batch.queue, max(batch.attempts.values()))
    return _record(batch.attempts, due_at, text, handed_over=False)


def retry_delay(queue: str, attempt: int) -> timedelta:
    """How long an item that failed alone waits: the project's policy, or min(60, 2 ** (attempt − 1)) seconds times
    0.5 to 1.5. A policy that raises, hangs or answers no number of seconds gives a minute."""
    path = conf.queue(queue).retry_delay
    if path is None:
        return timedelta(seconds=min(60, 2 ** min(attempt - 1, 6)) * random.uniform(0.5, 1.5))
    refuse_if_open("RETRY_DELAY")
    try:
        seconds = handlers.answer(path, f"SEMQ['QUEUES'][{queue!r}]['RETRY_DELAY']", attempt)
    except Exception:
        logger.exception("queue %s: RETRY_DELAY failed; the item waits for a minute", queue)
        return FALLBACK_DELAY
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 <= seconds < MAX_DELAY:
        return timedelta(seconds=seconds)
    logger.error("queue %s: RETRY_DELAY said %s; the item waits for a minute", queue, shown(seconds))
    return FALLBACK_DELAY


# ------------------------------------------------------------------------------------------------------------ checks


def next_check(queue: str) -> datetime | None:
    """When the first handed-over item is due for a look."""
    return _first_due(queue, handed_over=True)


def claim_check(queue: str, *, now: datetime) -> Check | None:
    """Claim due items to be asked about. They are put off before the question: a crash asks again, later."""
    settings = conf.queue(queue)

    def work() -> list[Item]:
        rows = _lock_for_check(queue, now)
        for part in chunks(rows):
            Item.objects.filter(pk__in=[row.pk for row in part]).update(due_at=now + settings.finished_check)
        return rows

    rows = run(work, using=alias_of(Item))
    if not rows:
        return None
    return Check(queue, {row.uid: row.pk for row in rows}, {row.pk: row.attempt for row in rows})


def ask(check: Check) -> dict[int, int]:
    """Ask the application which of these items are finished; row number -> attempt of those that are."""
    refuse_if_open("finished()")
    done = _ask_application(conf.queue(check.queue), list(check.rows))
    return {check.rows[uid]: check.attempts[check.rows[uid]] for uid in done}


def release_finished(queue: str, rows: dict[int, int]) -> None:
    """Release by row and attempt: the id may belong to another item by now."""
    if rows:
        queues[queue].release_rows(rows)


def take_lost(queue: str, *, now: datetime) -> bool:
    """Tasks whose message or worker is lost are due for another hand-over; True if there was one."""

    def work() -> int:
        rows = _lock_for_check(queue, now)
        for part in chunks(rows):
            Item.objects.filter(pk__in=[row.pk for row in part]).update(
                handed_over=False,
                started=False,
                due_at=RETRY_AT_ONCE,
                last_error="its task was lost or its worker died",
            )
        return len(rows)

    return bool(run(work, using=alias_of(Item)))


# --------------------------------------------------------------------------------------------------------- internals


_ADMITTED = "queue = %s AND state = %s AND handed_over = %s"


def _admitted(queue: str, *, handed_over: bool) -> tuple[str, int, bool]:
    return (queue, int(State.ADMITTED), handed_over)


def _first_due(queue: str, *, handed_over: bool) -> datetime | None:
    condition = f"{_ADMITTED} AND due_at IS NOT NULL ORDER BY due_at, id LIMIT 1"
    for item in select(Item, condition, *_admitted(queue, handed_over=handed_over), fields=["due_at"]):
        return item.due_at
    return None


def _lock_for_check(queue: str, now: datetime) -> list[Item]:
    due = f"{_ADMITTED} AND due_at <= %s"
    return lock_due(due, *_admitted(queue, handed_over=True), now, count=conf.queue(queue).max_admit_batch)


def _record(attempts: dict[int, int], due_at: datetime | None, last_error: str, *, handed_over: bool) -> bool:
    """Write to the rows that are still at their attempt. False if some are held by another transaction. A task that
    runs already keeps its own time: it would run a second time beside itself."""

    def work() -> set[int]:
        rows = lock_by_id(Item, sorted(attempts), ("attempt",), skip_locked=True, state=State.ADMITTED)
        for part in chunks([row.pk for row in rows if row.attempt == attempts[row.pk]]):
            sql = (
                f"UPDATE {{{Item._meta.db_table}}} SET due_at = CASE WHEN started THEN due_at ELSE %s END,"
                " last_error = %s, handed_over = %s WHERE id IN %s"
            )
            execute(Item, sql, due_at, last_error, handed_over, part)
        return {row.pk for row in rows}

    seen = run(work, using=alias_of(Item))
    unseen = sorted(attempts.keys() - seen)
    return not any(
        attempt == attempts[pk]
        for part in chunks(unseen)
        for pk, attempt in select_tuples(Item, ["id", "attempt"], "id IN %s AND state = %s", part, int(State.ADMITTED))
    )


def _decode(rows: Sequence[Item]) -> tuple[list[AdmittedItem], list[tuple[Item, ValueError]]]:
    items, broken = [], []
    for row in sorted(rows, key=lambda row: row.pk):
        try:
            body = json.loads(row.body)
        except (ValueError, RecursionError) as error:
            broken.append((row, ValueError(f"its body is no JSON: {error}")))
            continue
        items.append(
            AdmittedItem(
                id=row.uid,
                key=row.key,
                group=row.group,
                body=body,
                enqueued_at=row.enqueued_at,
                admitted_at=row.admitted_at or row.enqueued_at,
                via="grant" if row.lease_id is None else "lease",
                attempt=_next(row.attempt),
                row=row.pk,
            )
        )
    return items, broken


def _next(attempt: int) -> int:
    return min(attempt + 1, MAX_ATTEMPT)


def _ask_application(settings: conf.Queue, ids: list[str]) -> list[str]:
    """Ids among these that `finished()` names; what was not asked, comes twice or is no text is passed over."""
    function = handlers.resolve(settings.finished or "", f"SEMQ['QUEUES'][{settings.alias!r}]['FINISHED']")
    answer = function(list(ids))
    if answer is None:
        return []
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        if handlers.may_complain(settings.finished or ""):
            logger.error("queue %s: finished() said %s; give a list of ids", settings.alias, shown(answer))
        return []
    asked = set(ids)
    done = []
    strange = 0
    for uid in answer:
        if isinstance(uid, str) and uid in asked:
            asked.discard(uid)
            done.append(uid)
        else:
            strange += 1
    if strange and handlers.may_complain(settings.finished or ""):
        logger.error("queue %s: finished() named %d ids that were not asked", settings.alias, strange)
    return done
