"""The loop of `manage.py semq_run`: passes until nothing moves, then waits for whatever comes first.

It wakes by NOTIFY on PostgreSQL with psycopg 3, and by a poll elsewhere; the poll stays as the safety net, since
a notification is a hint. The first SIGTERM or SIGINT finishes what is under way, the second ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from typing import Any

from django.db import DatabaseError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_semq import clock, conf
from django_semq.driver.tick import Work
from django_semq.locking import CHANNEL, FREEZE_LIMIT
from django_semq.models import Item
from django_semq.queue.pump import set_daemon
from django_semq.rows import alias_of
from django_semq.signals import driver_wanted

logger = logging.getLogger(__name__)

BUSY_POLL = 0.05
"""Seconds between looks while there is work: the latency of what nobody announces, at 4 % of a core."""
BUSY_FOR = 2.0
"""Seconds after the last work in which more is expected."""
KEEP_CONNECTIONS = 60
"""Seconds, where the project says 0."""
EX_TEMPFAIL = 75
"""sysexits.h: tells a supervisor to start the process again."""


class Daemon:
    """One process that drives, and from its making on obeys signals. Any number may run beside each other."""

    def __init__(self) -> None:
        self.work = Work.of_process()
        self.listener = Listener(on_listening=self.work.wakeup.set)
        self.stops = 0
        signal.signal(signal.SIGTERM, self._on_signal)
        signal.signal(signal.SIGINT, self._on_signal)

    def run(self) -> int:
        """Drive until a signal; returns the exit code."""
        driver_wanted.connect(self._on_driver_wanted, dispatch_uid="django_semq.driver.daemon")
        connection_created.connect(_bound_frozen_transactions, dispatch_uid="django_semq.driver.daemon")
        connections.close_all()  # A connection that is open already would go without that bound.
        _keep_connections()
        set_daemon(self.work.wakeup.set)
        try:
            return self._drive()
        finally:
            set_daemon(None)

    def _drive(self) -> int:
        worked_at = clock.monotonic()
        while not self.stops:
            close_old_connections()
            if self.work.advance(clock.now()):
                worked_at = clock.monotonic()
                continue
            if self.work.crew is not None and self.work.crew.is_worn_out:
                logger.critical("too many calls of admit() hang: ending, so that a supervisor starts this again")
                return EX_TEMPFAIL
            self._wait(is_busy=clock.monotonic() - worked_at < BUSY_FOR or self.work.is_calling)
        return self._finish()

    def _wait(self, *, is_busy: bool) -> None:
        listening = self.listener.descriptor()
        idle = conf.settings().driver.poll_interval.total_seconds()
        seconds = min(idle, BUSY_POLL) if is_busy and listening is None else idle
        now = clock.now()
        if due := self.work.next_due(now):
            seconds = min(seconds, (due - now).total_seconds())
        if self.stops == 0:
            self.work.wait(seconds, [] if listening is None else [listening])
        self.listener.drain()

    def _finish(self) -> int:
        logger.info("stopping: waiting for the calls of admit() and finished() under way")
        while self.work.is_calling:
            self.work.wait(BUSY_POLL)
            self.work.advance(clock.now(), takes_new=False)
        self.listener.close()
        return 0

    def _on_signal(self, number: int, _frame: object) -> None:
        self.stops += 1
        if self.stops > 1:
            os._exit(128 + number)
        self.work.wakeup.set()

    def _on_driver_wanted(self, **_kwargs: Any) -> None:
        self.work.wakeup.set()


class Listener:
    """A connection of its own that LISTENs, where the database can; made again after it breaks.

    `on_listening` is called whenever it begins to listen: what was announced before is for one more pass to find.
    """

    def __init__(self, on_listening: Callable[[], None]) -> None:
        alias = alias_of(Item)
        self._can = connections[alias].vendor == "postgresql" and _is_psycopg3()
        self._connection: BaseDatabaseWrapper | None = None
        self._alias = alias
        self._on_listening = on_listening
        self._again_at = 0.0

    def descriptor(self) -> int | None:
        """What to wait for besides the time, None where nothing announces itself."""
        if not self._can:
            return None
        if self._connection is None and clock.monotonic() >= self._again_at:
            self._connect()
        return None if self._connection is None else int(self._connection.connection.fileno())

    def drain(self) -> None:
        """Take what was announced: that something is to do is all that counts, and the passes see for themselves."""
        if self._connection is None:
            return
        try:
            for _notification in self._connection.connection.notifies(timeout=0):
                pass
        except Exception as error:
            logger.warning("the listening connection broke (%s); polling until it is back", error)
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None
        self._again_at = clock.monotonic() + 1.0

    def _connect(self) -> None:
        connection = connections[self._alias].copy()
        try:
            connection.ensure_connection()
            with connection.cursor() as cursor:
                cursor.execute(f"LISTEN {CHANNEL}")
        except DatabaseError as error:
            logger.warning("no listening connection (%s); polling", error)
            connection.close()
            self._again_at = clock.monotonic() + 1.0
            return
        self._connection = connection
        self._on_listening()


def _is_psycopg3() -> bool:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return is_psycopg3


def _keep_connections() -> None:
    """A pass is no request: with CONN_MAX_AGE 0, made for web servers, each would connect anew."""
    for settings in connections.settings.values():
        if settings.get("CONN_MAX_AGE", 0) == 0:
            settings["CONN_MAX_AGE"] = KEEP_CONNECTIONS


def _bound_frozen_transactions(*, connection: BaseDatabaseWrapper, **_kwargs: Any) -> None:
    """MariaDB has this limit for a session only, so it is set in our own process and not in the project's."""
    if connection.vendor == "mysql" and connection.mysql_is_mariadb:  # type: ignore[attr-defined]
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION idle_write_transaction_timeout = {FREEZE_LIMIT.total_seconds():.0f}")
