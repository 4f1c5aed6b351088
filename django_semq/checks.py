"""System checks: what is wrong or risky in the settings, each with what to do about it.

They read settings only, but for those tagged `database`, which `check --database NAME` and `migrate` run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db import DatabaseError, connections

from django_semq import clock, conf, handlers
from django_semq.exceptions import Misconfigured
from django_semq.models import Item, Semaphore
from django_semq.rows import alias_of

TAG = "django_semq"
STALE_SCHEDULE = timedelta(minutes=3)
"""Of a schedule of a minute, either way: a cluster may be busy, and clocks differ."""


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """The SEMQ dict (E001 values, E002 names, E003 identities) and the functions it names (E004)."""
    found: list[CheckMessage] = [
        Error(problem.text, hint=problem.hint, id=problem.check) for problem in conf.problems()
    ]
    if not found:
        found += _handlers()
    return found


def _handlers() -> Iterator[CheckMessage]:
    settings = conf.settings()
    paths = [("SEMQ['HOLDER']['LIMITS']", settings.holder.limits)]
    for queue in settings.queues.values():
        where = f"SEMQ['QUEUES'][{queue.alias!r}]"
        if queue.admit == conf.TASK_ADMIT:
            if not apps.is_installed("django_q"):
                yield Error(
                    f"{where} has no ADMIT, so its items are django-q2 tasks, and django_q is not installed.",
                    hint="Add 'django_q' to INSTALLED_APPS, or name an ADMIT.",
                    id="semq.E005",
                )
            if queue.finished:
                yield Warning(
                    f"{where} has FINISHED and no ADMIT: its tasks give their permits back by themselves.",
                    hint="Leave FINISHED out, or name an ADMIT.",
                    id="semq.W005",
                )
        else:
            paths.append((f"{where}['ADMIT']", queue.admit))
        paths += [(f"{where}['FINISHED']", queue.finished), (f"{where}['RETRY_DELAY']", queue.retry_delay)]
    for setting, path in paths:
        if path is None:
            continue
        try:
            handlers.resolve(path, setting)
        except Misconfigured as error:
            yield Error(str(error), hint="Correct the setting or the function.", id="semq.E004")


@register(TAG)
def check_databases(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """One database for both halves (E010), READ COMMITTED (E011), aware datetimes (E012), SQLite's options (W010)."""
    if conf.problems():
        return []
    found: list[CheckMessage] = []
    is_local = any(queue.transport == conf.LOCAL_TRANSPORT for queue in conf.settings().queues.values())
    if is_local and alias_of(Item) != alias_of(Semaphore):
        found.append(
            Error(
                f"Item is written to database {alias_of(Item)!r} and Semaphore to {alias_of(Semaphore)!r}.",
                hint="LocalTransport needs both in one: correct DATABASE_ROUTERS.",
                id="semq.E010",
            )
        )
    if not django_settings.USE_TZ:
        found.append(
            Error(
                "USE_TZ is False.",
                hint="Set it to True: instants are stored with their zone.",
                id="semq.E012",
            )
        )
    for alias in sorted({alias_of(Item), alias_of(Semaphore)}):
        found += _database(alias)
    return found


def _database(alias: str) -> Iterator[CheckMessage]:
    connection = connections[alias]
    options = connection.settings_dict.get("OPTIONS", {})
    if connection.vendor == "mysql":
        level = options.get("isolation_level", "read committed")
        if level is None or level.lower() != "read committed":
            yield Error(
                f"DATABASES[{alias!r}]['OPTIONS']['isolation_level'] is {level!r}.",
                hint="Leave it out or set 'read committed': other levels take gap locks, for which callers wait.",
                id="semq.E011",
            )
    if connection.vendor == "sqlite" and options.get("transaction_mode") != "IMMEDIATE":
        yield Warning(
            f"DATABASES[{alias!r}]['OPTIONS'] has no 'transaction_mode': 'IMMEDIATE'.",
            hint="Set it, with 'timeout': 20 and 'init_command': 'PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;'."
            ' Otherwise your own transactions around our calls fail with "database is locked".',
            id="semq.W010",
        )


@register(TAG)
def check_drivers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """Somebody has to drive (W020), and django-q2's settings have sharp edges (W021 to W024)."""
    if conf.problems():
        return []
    if apps.is_installed("django_q"):
        return list(_cluster(getattr(django_settings, "Q_CLUSTER", {})))
    if conf.settings().driver.schedule:
        return [
            Warning(
                "SEMQ['DRIVER']['SCHEDULE'] is on and django_q is not installed: nothing drives the queues by itself.",
                hint="Add 'django_q' to INSTALLED_APPS, or set SCHEDULE to False and run `manage.py semq_run`.",
                id="semq.W020",
            )
        ]
    return []


def _cluster(cluster: dict[str, Any]) -> Iterator[CheckMessage]:
    timeout, retry = cluster.get("timeout"), cluster.get("retry", 60)
    settings = conf.settings()
    longest = settings.driver.tick_seconds + max(queue.attempt_timeout for queue in settings.queues.values())
    needed = int(longest.total_seconds()) + 1
    if timeout is None:
        yield Warning(
            "Q_CLUSTER['timeout'] is not set: a task that hangs keeps its worker for ever.",
            hint=f"Set it, to {needed} or more (TICK_SECONDS + ATTEMPT_TIMEOUT).",
            id="semq.W021",
        )
    elif timeout < needed:
        yield Warning(
            f"Q_CLUSTER['timeout'] is {timeout}: a tick that waits for a slow admit() is killed.",
            hint=f"Set it to {needed} or more (TICK_SECONDS + ATTEMPT_TIMEOUT).",
            id="semq.W022",
        )
    workers = cluster.get("workers") or 4
    prefetched = cluster.get("queue_limit") or workers**2
    if timeout is not None and retry < timeout * (prefetched / workers + 1):
        yield Warning(
            f"Q_CLUSTER['retry'] is {retry}: a task that waits in the cluster's own queue is delivered twice.",
            hint="Set retry to timeout * (queue_limit / workers + 1) or more, or queue_limit to the number of workers.",
            id="semq.W023",
        )
    if "orm" not in cluster and any(queue.admit == conf.TASK_ADMIT for queue in settings.queues.values()):
        yield Warning(
            "Q_CLUSTER has a broker that may lose messages: a lost task is sent again after five minutes.",
            hint="Use the ORM broker ('orm': 'default') if five minutes are too long, or silence this check.",
            id="semq.W024",
        )


@register(Tags.database)
def check_schedule(
    app_configs: Sequence[AppConfig] | None, databases: Sequence[str] | None = None, **kwargs: Any
) -> list[CheckMessage]:
    """The schedule's row is there and the cluster keeps up with it (W030, W031)."""
    if conf.problems() or not apps.is_installed("django_q") or not conf.settings().driver.schedule:
        return []
    from django_semq.driver.djangoq import next_scheduled_tick

    try:
        due = next_scheduled_tick(databases or [])
    except DatabaseError:
        return []  # Its tables are not there yet: `migrate` makes them, and the row.
    if due is None:
        return []
    if not due:
        return [
            Warning(
                "The schedule of the tick is missing, or is never due.",
                hint="Run `manage.py migrate`; it is made there.",
                id="semq.W030",
            )
        ]
    now = clock.now()
    if due[0] < now - STALE_SCHEDULE:
        return [
            Warning(
                f"The schedule of the tick was due at {due[0].isoformat()} and did not run.",
                hint="Start `manage.py qcluster`. If it runs, look for a broken Schedule row: one stops all others.",
                id="semq.W031",
            )
        ]
    if due[0] > now + STALE_SCHEDULE:
        return [
            Warning(
                f"The schedule of the tick does not run before {due[0].isoformat()}.",
                hint="Run `manage.py migrate`; it is set right there. See to the clocks of your hosts.",
                id="semq.W031",
            )
        ]
    return []
