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
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar
from weakref import WeakSet

from django.db import DatabaseError, Error, InterfaceError, OperationalError, connections, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from django_semq import clock
from django_semq.exceptions import TransactionOpen
from django_semq.models import Item, Key, Semaphore, State
from django_semq.rows import alias_of, by_index, chunks, execute, select, select_tuples

T = TypeVar("T")
M = TypeVar("M", bound=models.Model)

TRIES = 5
CONNECTION_GONE = {"080", "57P", 0, 1927, 2006, 2013, 2055, 4031}
"""First letters of PostgreSQL's states for a connection that failed or a server that ends; numbers of MySQL's."""
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


def is_lost(error: DatabaseError) -> bool:
    """Whether the connection went away: then the error says nothing of the statement that met it. (Django may have
    connected anew already.)"""
    state = getattr(error.__cause__, "sqlstate", "")
    if state != "":
        return isinstance(error, (OperationalError, InterfaceError)) and (state is None or state[:3] in CONNECTION_GONE)
    return bool(error.args) and error.args[0] in CONNECTION_GONE


def drop_if_broken(connection: BaseDatabaseWrapper) -> None:
    """Let go of a connection whose server went away while a transaction began or ended: Django is then left between
    two states, in which every later transaction of this thread fails, and `close()` does nothing."""
    begun = connection.in_atomic_block and not connection.atomic_blocks
    unended = not connection.in_atomic_block and not connection.autocommit and connection.settings_dict["AUTOCOMMIT"]
    if begun or (unended and connection.connection is not None):
        connection.in_atomic_block = False
        connection.savepoint_ids = []
        connection.needs_rollback = False
        close(connection)


def close(connection: BaseDatabaseWrapper) -> None:
    """Close a connection that may be closed already: some drivers complain of that."""
    with suppress(Error):
        connection.close()


def after_commit(hook: Callable[[], None], *, using: str) -> None:
    """Call the hook after the commit, at once outside a transaction; its failure is logged and goes no further."""
    transaction.on_commit(hook, using=using, robust=True)


# ------------------------------------------------------------------------------------ statements that lock or delete


def lock_keys(queue: str, names: Sequence[str]) -> list[Key]:
    """The keys among these whose rows this transaction now holds; missing and locked ones are left out."""
    # By the index: a scan of a small table would lock, and so hide, keys that nobody asked for: their wake-up would
    # be lost.
    condition = f"queue = %s AND name IN %s ORDER BY name {_lock(Key, skip_locked=True)}"
    return select(Key, condition, queue, sorted(names), index="semq_key_name")


def lock_semaphores(names: Sequence[str], *, skip_locked: bool = False) -> list[Semaphore]:
    """The semaphores of these names, locked, in the order of their names; missing ones are left out."""
    condition = f"name IN %s ORDER BY name {_lock(Semaphore, skip_locked=skip_locked)}"
    return select(Semaphore, condition, sorted(names), index="semq_semaphore_name")


def lock_items(queue: str, uids: Sequence[str], state: State, fields: Sequence[str]) -> list[Item]:
    """Those of these items that are in this state, locked, with these fields. Waits for a pump or another caller on
    the same item."""
    found: list[Item] = []
    for part in chunks(sorted(uids)):
        if connections[alias_of(Item)].vendor == "mysql":
            ids = select_tuples(Item, ["id"], "queue = %s AND uid IN %s ORDER BY id", queue, part)
            found += lock_by_id(Item, [pk for (pk,) in ids], fields, state=state)
        else:
            condition = f"queue = %s AND uid IN %s AND state = %s ORDER BY id {_lock(Item)}"
            found += select(Item, condition, queue, part, int(state), fields=fields)
    return found


def lock_by_id(
    model: type[M], ids: Sequence[int], fields: Sequence[str] = (), *, skip_locked: bool = False, **equal: object
) -> list[M]:
    """The rows of these ids whose columns equal the given values, locked, in the order of their ids, with these
    fields (the body of an item may be large)."""
    values = [int(value) if isinstance(value, int) else value for value in equal.values()]
    lock = _lock(model, skip_locked=skip_locked)
    found: list[M] = []
    for part in chunks(ids):
        if connections[alias_of(model)].vendor == "mysql":
            columns = ", ".join(f"t.`{name}`" for name in ("id", *fields))
            where = " AND ".join(f"t.`{name}` = %s" for name in equal)
            sql = f"SELECT {columns} FROM {_rows_by_id(model, part)}{' WHERE ' + where if where else ''}"
            found += model._default_manager.raw(f"{sql} ORDER BY t.id {lock}", [*part, *values])
        else:
            where = "".join(f" AND {{{name}}} = %s" for name in equal)
            found += select(model, f"id IN %s{where} ORDER BY id {lock}", part, *values, fields=fields)
    return found


def lock_due(condition: str, *values: object, count: int) -> list[Item]:
    """The first due items that fulfil the condition, locked, passing over locked ones."""
    # By the index that serves the order: InnoDB locks every row that a sort has to look at, and others then see an
    # empty queue.
    order = f"ORDER BY due_at, id LIMIT {count:d} {_lock(Item, skip_locked=True)}"
    return select(Item, f"{condition} {order}", *values, index="semq_item_due")


def oldest_ids(queue: str, wants: Sequence[tuple[str, str, int]]) -> list[tuple[int, int]]:
    """Lock the oldest n queued items of each (key, group, n), passing over locked ones.

    Returns pairs (position in `wants`, item id), oldest first within each. One statement for 100 wants.

    No state is below `queued`, so `<=` and the order by state say the same as `=` and the order by id. Said like
    that, PostgreSQL cannot take the primary key for the order: for the longest queue it would, and then walk over
    everything older of all other keys.
    """
    connection = connections[alias_of(Item)]
    quote = connection.ops.quote_name
    by_oldest = by_index(connection.alias, "semq_item_oldest")
    lock = _lock(Item, skip_locked=True)
    found: list[tuple[int, int]] = []
    with connection.cursor() as cursor:
        for start in range(0, len(wants), 100):
            part = wants[start : start + 100]
            selects = [
                f"SELECT * FROM (SELECT {start + position} AS want, id FROM {Item._meta.db_table} {by_oldest}"
                f" WHERE queue = %s AND {quote('key')} = %s AND {quote('group')} = %s AND state <= {State.QUEUED:d}"
                f" ORDER BY state, id LIMIT {count:d} {lock}) x{start + position}"
                for position, (_key, _group, count) in enumerate(part)
            ]
            values = [value for key, group, _count in part for value in (queue, key, group)]
            cursor.execute(" UNION ALL ".join(selects), values)
            found += cursor.fetchall()
    found.sort()
    return found


def delete_by_id(model: type[models.Model], ids: Iterable[int]) -> None:
    """Delete exactly these rows. No signal is sent and nothing is collected: our tables have no cascades to run."""
    connection = connections[alias_of(model)]
    for part in chunks(sorted(ids)):
        if connection.vendor == "mysql":
            _execute(connection, f"DELETE t FROM {_rows_by_id(model, part)}", part)
        else:
            execute(model, f"DELETE FROM {{{model._meta.db_table}}} WHERE id IN %s", part)


def notify(queue: str) -> None:
    """Wake listening daemons when this transaction commits, at once outside one. PostgreSQL only; else nothing."""
    connection = connections[alias_of(Item)]
    if connection.vendor == "postgresql":
        _execute(connection, "SELECT pg_notify(%s, %s)", [CHANNEL, queue])


# --------------------------------------------------------------------------------------------------------- internals


@contextmanager
def _outermost(connection: BaseDatabaseWrapper) -> Iterator[None]:
    drop_if_broken(connection)
    nested = connection.in_atomic_block
    if nested and not connection.atomic_blocks[-1]._from_testcase:  # type: ignore[attr-defined]
        raise TransactionOpen(
            "this starts a transaction of its own and was called inside yours: call it after the commit,"
            " for example with transaction.on_commit()"
        )
    connection.ensure_connection()  # the backend reads the project's options when it connects
    mode = getattr(connection, "transaction_mode", None)
    if connection.vendor == "sqlite" and not nested:
        # A deferred transaction that read before another one wrote fails at its first write, without waiting.
        connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    elif connection.vendor == "mysql" and not nested and connection.isolation_level != "read committed":  # type: ignore[attr-defined]
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
        drop_if_broken(connection)


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


def _lock(model: type[models.Model], *, skip_locked: bool = False) -> str:
    """The locking clause. SQLite has none: its one write lock is held since BEGIN IMMEDIATE."""
    vendor = connections[alias_of(model)].vendor
    clause = {"postgresql": "FOR NO KEY UPDATE", "mysql": "FOR UPDATE"}.get(vendor, "")
    return f"{clause} SKIP LOCKED" if clause and skip_locked else clause


def _rows_by_id(model: type[models.Model], ids: Sequence[int]) -> str:
    """A FROM clause that visits exactly these rows `t` by primary key, on MySQL and MariaDB. STRAIGHT_JOIN without
    FORCE INDEX is not enough: it may read a small table into a join buffer."""
    rows = " UNION ALL ".join(["SELECT %s AS id"] * len(ids))
    table = model._meta.db_table
    return f"({rows}) d STRAIGHT_JOIN {table} t FORCE INDEX (PRIMARY) ON t.id = d.id"


def _execute(connection: BaseDatabaseWrapper, sql: str, values: Sequence[int | str] = ()) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
