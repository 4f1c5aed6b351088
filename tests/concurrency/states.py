"""What the database says about itself and about the library's rows."""

import re
import time
from collections.abc import Callable

from django.db import OperationalError, connection

from django_semq.invariants import audit
from django_semq.models import Ceiling, Grant, IssuedGrant, Item, KeyGroup, Nudge, Semaphore


def wait_until(is_so: Callable[[], object], seconds: float, what: str, look_every: float = 0.01) -> float:
    """Wait for a fact and return how long it took."""
    began = time.monotonic()
    while not is_so():
        assert time.monotonic() - began < seconds, f"not within {seconds:.0f} s: {what}"
        time.sleep(look_every)
    return time.monotonic() - began


MARIADB_TRANSACTIONS = """
    SELECT count(*) FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
    WHERE p.db = database() AND p.id <> connection_id()
"""
INNODB_LOCK_WAIT = r"TRX HAS BEEN WAITING .*\n.* table `{database}`\."
"""A session's part of InnoDB's report, which tells of this moment: the tables of the information schema are made anew
only when nobody has read them for 0.1 s."""
POSTGRESQL_SESSIONS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


def sessions_that_wait_for_a_lock() -> int:
    """Sessions on this database; 0 on SQLite, which does not tell."""
    if connection.vendor == "mysql":
        with connection.cursor() as cursor:
            cursor.execute("SHOW ENGINE INNODB STATUS")
            _engine, _name, report = cursor.fetchone()
        return len(re.findall(INNODB_LOCK_WAIT.format(database=re.escape(connection.settings_dict["NAME"])), report))
    return _number(
        postgresql=f"{POSTGRESQL_SESSIONS} AND wait_event_type = 'Lock'",
        sqlite="SELECT 0",
    )


def open_transactions() -> int:
    """Transactions of other sessions; on SQLite 1 if one of them may write."""
    if connection.vendor == "sqlite":
        return int(is_sqlite_locked())
    return _number(
        postgresql=f"{POSTGRESQL_SESSIONS} AND xact_start IS NOT NULL",
        mysql=MARIADB_TRANSACTIONS,
    )


def _number(**sql: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(sql[connection.vendor])
        return cursor.fetchone()[0]


def is_sqlite_locked() -> bool:
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("PRAGMA busy_timeout = 0")
            cursor.execute("BEGIN IMMEDIATE")
            cursor.execute("ROLLBACK")
    except OperationalError:
        return True
    finally:
        other.close()
    return False


def leftovers() -> list[str]:
    """All that must be gone when every item is: nothing waits, runs or is counted as given."""
    found = [
        f"{model.__name__}: {model.objects.count()} rows"
        for model in (Item, Nudge, KeyGroup, Grant, IssuedGrant)
        if model.objects.exists()
    ]
    for model in (Semaphore, Ceiling):
        found += [f"{model.__name__} {row}: footprint {row.footprint}" for row in model.objects.exclude(footprint=0)]
    return found + [str(finding) for finding in audit()]
