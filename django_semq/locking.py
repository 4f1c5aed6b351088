"""Transactions and the few statements that lock or delete rows, in the form each database needs.

Nothing else in the library opens a transaction, locks a row or deletes one. The rules kept here:

- A transaction of ours is outermost (`durable`), short, at READ COMMITTED, and is done again after a deadlock,
  a serialization failure or a lock timeout. What callers call joins their transaction instead.
- The pump never waits for a row that a caller's transaction may hold: it skips locked rows, and on MySQL and
  MariaDB no locking statement and no DELETE reaches rows by an IN list: on a small table the planner scans,
  even under FORCE INDEX (PRIMARY), and a scan waits for every foreign uncommitted row it meets.
- Several keys or semaphores are locked in the order of their names, keys before semaphores.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar
from weakref import WeakSet

from django.db import DatabaseError, connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_semq import clock
from django_semq.exceptions import TransactionOpen
from django_semq.models import Item, Key, Semaphore, State

T = TypeVar("T")
M = TypeVar("M", bound=models.Model)

CHUNK = 500
"""Values in one IN list or insert: SQLite before 3.32 takes 999 variables, and plans of long lists are slow."""

TRIES = 5
CHANNEL = "django_semq"
"""NOTIFY channel of the drivers; the payload is the queue's alias."""
FREEZE_LIMIT = timedelta(seconds=10)
"""A process that is frozen inside a transaction of ours loses its locks after this (PostgreSQL)."""


class _Open(threading.local):
    depth = 0


_open = _Open()
_other_isolation: WeakSet[BaseDatabaseWrapper] = WeakSet()


class _WrongIsolation(Exception):
    """The session's transactions do not start at READ COMMITTED."""


def alias_of(model: type[models.Model]) -> str:
    return router.db_for_write(model)


def refuse_if_open(what: str) -> None:
    """Raise `TransactionOpen` if this thread has a transaction of ours open."""
    if _open.depth:
        raise TransactionOpen(
            f"{what} was about to start inside a transaction of django_semq; this is a fault of the library"
        )


def run(work: Callable[[], T], *, using: str, tries: int = TRIES) -> T:
    """Do the work in a transaction of its own, again after a passing database error, and return its result.

    Raises the last error after `tries` tries, and `TransactionOpen` inside another transaction.
    """
    connection = connections[using]
    attempt = 0
    while True:
        attempt += 1
        try:
            with _outermost(connection):
                return work()
        except _WrongIsolation:
            attempt -= 1
        except DatabaseError as error:
            if attempt >= tries or not is_passing(error):
                raise
            clock.pause(random.uniform(0, 0.01 * 2**attempt))


def join(work: Callable[[], T], *, using: str) -> T:
    """Do the work all or nothing: inside the caller's transaction if there is one, else in one of its own."""
    if connections[using].in_atomic_block:
        with transaction.atomic(using=using):
            return work()
    return run(work, using=using)


@contextmanager
def snapshot(using: str) -> Iterator[None]:
    """Reads inside see one moment of the database: for recounting."""
    connection = connections[using]
    if connection.vendor == "mysql" and not connection.in_atomic_block:
        _execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    with transaction.atomic(using=using):
        if connection.vendor == "postgresql" and len(connection.savepoint_ids) == 0:
            _execute(connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        yield


def is_passing(error: DatabaseError) -> bool:
    """Whether another try may succeed: deadlock, serialization failure, lock timeout, database is locked."""
    if getattr(error.__cause__, "sqlstate", None) in {"40001", "40P01", "55P03"}:
        return True
    return bool(error.args) and (error.args[0] in {1205, 1213, 1020} or "database is locked" in str(error))


def after_commit(hook: Callable[[], None], *, using: str) -> None:
    """Call the hook after the commit, at once outside a transaction; its failure is logged and goes no further."""
    transaction.on_commit(hook, using=using, robust=True)


# ------------------------------------------------------------------------------------ statements that lock or delete


def lock_keys(queue: str, names: Sequence[str]) -> list[Key]:
    """The keys among these whose rows this transaction now holds; missing and locked ones are left out."""
    connection = connections[alias_of(Key)]
    names = sorted(names)
    if connection.vendor == "mysql":
        # A scan of a small table would lock, and so hide, keys that nobody asked for: their wake-up would be lost.
        sql = (
            f"SELECT * FROM {Key._meta.db_table} FORCE INDEX (semq_key_name)"
            f" WHERE queue = %s AND name IN ({_marks(names)}) ORDER BY name FOR UPDATE SKIP LOCKED"
        )
        return list(Key.objects.get_queryset().raw(sql, [queue, *names]))
    rows = Key.objects.filter(queue=queue, name__in=names).order_by("name")
    return list(_locking(rows, connection, skip_locked=True))


def lock_semaphores(names: Sequence[str]) -> list[Semaphore]:
    """The semaphores of these names, locked, in the order of their names; missing ones are left out."""
    connection = connections[alias_of(Semaphore)]
    names = sorted(names)
    if connection.vendor == "mysql":
        sql = (
            f"SELECT * FROM {Semaphore._meta.db_table} FORCE INDEX (semq_semaphore_name)"
            f" WHERE name IN ({_marks(names)}) ORDER BY name FOR UPDATE"
        )
        return list(Semaphore.objects.get_queryset().raw(sql, names))
    rows = Semaphore.objects.filter(name__in=names).order_by("name")
    return list(_locking(rows, connection))


def lock_items(queue: str, uids: Sequence[str], state: State, fields: Sequence[str]) -> list[Item]:
    """Those of these items that are in this state, locked, with these fields. Waits for a pump or another caller on
    the same item."""
    connection = connections[alias_of(Item)]
    mine = Item.objects.filter(queue=queue)
    found: list[Item] = []
    for part in chunks(sorted(uids)):
        if connection.vendor == "mysql":
            ids = list(mine.filter(uid__in=part).order_by("pk").values_list("pk", flat=True))
            found += lock_by_id(Item, ids, fields, state=state)
        else:
            rows = mine.filter(uid__in=part, state=state).only(*fields).order_by("pk")
            found += _locking(rows, connection)
    return found


def lock_by_id(
    model: type[M], ids: Sequence[int], fields: Sequence[str] = (), *, skip_locked: bool = False, **equal: object
) -> list[M]:
    """The rows of these ids whose columns equal the given values, locked, in the order of their ids, with these
    fields (the body of an item may be large)."""
    connection = connections[alias_of(model)]
    found: list[M] = []
    for part in chunks(ids):
        if connection.vendor == "mysql":
            columns = ", ".join(f"t.`{name}`" for name in ("id", *fields))
            where = " AND ".join(f"t.`{name}` = %s" for name in equal)
            sql = (
                f"SELECT {columns} FROM {_rows_by_id(model, part)}"
                f"{' WHERE ' + where if where else ''} ORDER BY t.id FOR UPDATE"
                f"{' SKIP LOCKED' if skip_locked else ''}"
            )
            values = [int(value) if isinstance(value, int) else value for value in equal.values()]
            found += model._default_manager.get_queryset().raw(sql, [*part, *values])
        else:
            rows = model._default_manager.filter(pk__in=part, **equal).only("pk", *fields).order_by("pk")
            found += _locking(rows, connection, skip_locked=skip_locked)
    return found


def lock_due(rows: models.QuerySet[M], count: int) -> list[M]:
    """The first rows of an ordered queryset, locked, passing over locked ones. An index must serve the order:
    InnoDB locks every row that a sort has to look at, and others then see an empty queue."""
    return list(_locking(rows, connections[rows.db], skip_locked=True)[:count])


def oldest_ids(queue: str, wants: Sequence[tuple[str, str, int]]) -> list[tuple[int, int]]:
    """Lock the oldest n queued items of each (key, group, n), passing over locked ones.

    Returns pairs (position in `wants`, item id), oldest first within each. One statement for 100 wants.

    No state is below `queued`, so `<=` and the order by state say the same as `=` and the order by id. Said like
    that, PostgreSQL cannot take the primary key for the order: for the longest queue it would, and then walk over
    everything older of all other keys.
    """
    connection = connections[alias_of(Item)]
    quote = connection.ops.quote_name
    force = "FORCE INDEX (semq_item_oldest)" if connection.vendor == "mysql" else ""
    lock = {"postgresql": "FOR NO KEY UPDATE SKIP LOCKED", "mysql": "FOR UPDATE SKIP LOCKED"}
    found: list[tuple[int, int]] = []
    with connection.cursor() as cursor:
        for start in range(0, len(wants), 100):
            part = wants[start : start + 100]
            selects = [
                f"SELECT * FROM (SELECT {start + position} AS want, id FROM {Item._meta.db_table} {force}"
                f" WHERE queue = %s AND {quote('key')} = %s AND {quote('group')} = %s AND state <= {State.QUEUED:d}"
                f" ORDER BY state, id LIMIT {count:d} {lock.get(connection.vendor, '')}) x{start + position}"
                for position, (_key, _group, count) in enumerate(part)
            ]
            values = [value for key, group, _count in part for value in (queue, key, group)]
            cursor.execute(" UNION ALL ".join(selects), values)
            found += cursor.fetchall()
    found.sort()
    return found


def delete_by_id(model: type[models.Model], ids: Iterable[int]) -> None:
    """Delete exactly these rows. No signal is sent and nothing is collected: our tables have no cascades to run."""
    using = alias_of(model)
    connection = connections[using]
    for part in chunks(sorted(ids)):
        if connection.vendor == "mysql":
            _execute(connection, f"DELETE t FROM {_rows_by_id(model, part)}", part)
        else:
            model._default_manager.filter(pk__in=part)._raw_delete(using)


def write_back(model: type[M], rows: Sequence[M], fields: Sequence[str], unique: Sequence[str] = ("id",)) -> None:
    """Write different values to many rows that this transaction owns, missing rows included, in one statement:
    an upsert, where `bulk_update` would build a CASE for each row and column. `unique` names the columns that
    tell the row; without the id among them, rows with and without an id go into the same statement."""
    if not rows:
        return
    if "id" not in unique:
        for row in rows:
            row.pk = None
    mysql = connections[alias_of(model)].vendor == "mysql"
    model._default_manager.bulk_create(
        rows,
        batch_size=CHUNK,
        update_conflicts=True,
        update_fields=fields,
        unique_fields=None if mysql else unique,
    )


def notify(queue: str) -> None:
    """Wake listening daemons when this transaction commits, at once outside one. PostgreSQL only; else nothing."""
    connection = connections[alias_of(Item)]
    if connection.vendor == "postgresql":
        _execute(connection, "SELECT pg_notify(%s, %s)", [CHANNEL, queue])


def chunks(values: Sequence[T], size: int = CHUNK) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))


# --------------------------------------------------------------------------------------------------------- internals


@contextmanager
def _outermost(connection: BaseDatabaseWrapper) -> Iterator[None]:
    nested = connection.in_atomic_block
    if nested and not connection.atomic_blocks[-1]._from_testcase:  # type: ignore[attr-defined]
        raise TransactionOpen(
            "this starts a transaction of its own and was called inside yours: call it after the commit,"
            " for example with transaction.on_commit()"
        )
    mode = getattr(connection, "transaction_mode", None)
    if connection.vendor == "sqlite" and not nested:
        # A deferred transaction that read before another one wrote fails at its first write, without waiting.
        connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    elif connection.vendor == "mysql" and not nested and _isolation(connection) != "read committed":
        _execute(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    try:
        with transaction.atomic(using=connection.alias, durable=True):
            if connection.vendor == "postgresql":
                _start_postgresql(connection, nested)
            _open.depth += 1
            try:
                yield
            finally:
                _open.depth -= 1  # before the commit: its hooks may call the application
    finally:
        if connection.vendor == "sqlite":
            connection.transaction_mode = mode  # type: ignore[attr-defined]


def _start_postgresql(connection: BaseDatabaseWrapper, nested: bool) -> None:
    if connection in _other_isolation and not nested:
        _execute(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
    limit = f"{FREEZE_LIMIT.total_seconds():.0f}s"
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('transaction_isolation'), set_config('lock_timeout', %s, true),"
            " set_config('idle_in_transaction_session_timeout', %s, true)",
            [limit, limit],
        )
        isolation = cursor.fetchone()[0]
    if isolation != "read committed" and not nested:
        _other_isolation.add(connection)
        raise _WrongIsolation


def _isolation(connection: BaseDatabaseWrapper) -> str | None:
    connection.ensure_connection()  # the backend reads the option when it connects
    return connection.isolation_level  # type: ignore[attr-defined, no-any-return]


def _locking(
    rows: models.QuerySet[M], connection: BaseDatabaseWrapper, *, skip_locked: bool = False
) -> models.QuerySet[M]:
    if connection.vendor == "sqlite":
        return rows  # its one write lock is held since BEGIN IMMEDIATE
    no_key = connection.features.has_select_for_no_key_update
    return rows.select_for_update(skip_locked=skip_locked, no_key=no_key)


def _rows_by_id(model: type[models.Model], ids: Sequence[int]) -> str:
    """A FROM clause that visits exactly these rows `t` by primary key, on MySQL and MariaDB. STRAIGHT_JOIN without
    FORCE INDEX is not enough: it may read a small table into a join buffer."""
    rows = " UNION ALL ".join(["SELECT %s AS id"] * len(ids))
    table = model._meta.db_table
    return f"({rows}) d STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.id = d.id"


def _marks(values: Sequence[object]) -> str:
    return ", ".join(["%s"] * len(values))


def _execute(connection: BaseDatabaseWrapper, sql: str, values: Sequence[int | str] = ()) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
