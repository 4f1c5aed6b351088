"""System checks: each is provoked by settings that deserve it, silent without them, and says what to do."""

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.checks import run_checks
from django.core.management import call_command
from django.db import connection, connections
from django.utils import timezone

from django_semq import checks, conf
from django_semq.models import Semaphore

TASKS = {"QUEUES": {"default": {}}}
GOOD_CLUSTER = {"name": "shop", "orm": "default", "workers": 2, "timeout": 90, "retry": 300}


def admit(items: list) -> None:
    """A handler for these settings to name."""


async def admit_later(items: list) -> None:
    """One that the driver's threads cannot call."""


not_callable = "a text"


def handler(name: str) -> str:
    return f"{__name__}.{name}"


def queue(**entry: Any) -> dict[str, Any]:
    return {"QUEUES": {"default": entry}}


def found(*, databases: list[str] | None = None) -> list[Any]:
    messages = run_checks(databases=databases)
    return [message for message in messages if message.id.startswith("semq.")]


# Where one setting is enough: check id -> the settings that deserve it.
DESERVED: dict[str, list[dict[str, Any]]] = {
    "semq.E001": [
        {"SEMQ": "everything"},
        {"SEMQ": {"QUEUES": {}}},
        {"SEMQ": {"QUEUES": {"": {}}}},
        {"SEMQ": queue(ATTEMPT_TIMEOUT=0)},
        {"SEMQ": queue(MAX_ADMIT_BATCH=True)},
        {"SEMQ": queue(ADMIT="admit")},
        {"SEMQ": queue(TRANSPORT_OPTIONS=[])},
        {"SEMQ": {"HOLDER": {"DEFAULT_LIMIT": -1}}},
        {"SEMQ": {"HOLDER": {"RULES": []}}},
        {"SEMQ": {"HOLDER": {"RULES": {"acct-*": {"groups": {"exports": 1.5}}}}}},
        {"SEMQ": {"DRIVER": {"WAKE": "yes"}}},
    ],
    "semq.E002": [
        {"SEMQ": {"QUEUE": {}}},
        {"SEMQ": queue(ATTEMPT_TIMEOUTS=60)},
        {"SEMQ": {"DRIVER": {"WORKERS": 2}}},
        {"SEMQ": {"HOLDER": {"RULES": {"acct-*": {"ceiling": 2}}}}},
    ],
    "semq.E003": [
        {"SEMQ": {"QUEUES": {"a": {"CLIENT_ID": "shop"}, "b": {"CLIENT_ID": "shop"}}}},
        {"SEMQ": queue(CLIENT_ID="")},
        {"SEMQ": queue(TRANSPORT="shop.transport.Transport")},
    ],
    "semq.E004": [
        {"SEMQ": queue(ADMIT="shop.jobs.admit")},
        {"SEMQ": queue(ADMIT=handler("not_callable"))},
        {"SEMQ": queue(ADMIT=handler("admit_later"))},
        {"SEMQ": queue(ADMIT=handler("admit"), FINISHED="shop.jobs.finished")},
        {"SEMQ": queue(ADMIT=handler("admit"), RETRY_DELAY="shop.jobs.delay")},
        {"SEMQ": {"HOLDER": {"LIMITS": "shop.limits.limits"}}},
    ],
    "semq.E005": [
        {
            "SEMQ": TASKS | {"DRIVER": {"SCHEDULE": False}},
            "INSTALLED_APPS": [app for app in django_settings.INSTALLED_APPS if app != "django_q"],
        }
    ],
    "semq.E012": [{"USE_TZ": False}],
    "semq.W005": [{"SEMQ": queue(FINISHED=handler("admit"))}],
    "semq.W020": [
        {
            "SEMQ": queue(ADMIT=handler("admit")),
            "INSTALLED_APPS": [app for app in django_settings.INSTALLED_APPS if app != "django_q"],
        }
    ],
    "semq.W021": [{"Q_CLUSTER": {**GOOD_CLUSTER, "timeout": None}}],
    "semq.W022": [
        {"Q_CLUSTER": {**GOOD_CLUSTER, "timeout": 60}},
        {"SEMQ": {"DRIVER": {"TICK_SECONDS": 60}}},
        {"SEMQ": queue(ATTEMPT_TIMEOUT=120)},
    ],
    "semq.W023": [
        {"Q_CLUSTER": {**GOOD_CLUSTER, "retry": 120}},
        {"Q_CLUSTER": {**GOOD_CLUSTER, "queue_limit": 20}},
    ],
    "semq.W024": [{"Q_CLUSTER": {name: value for name, value in GOOD_CLUSTER.items() if name != "orm"}}],
}


@pytest.fixture
def project(settings) -> Callable[..., None]:
    """Sets settings beside those of a project that gives no reason to complain."""

    def configure(**different: Any) -> None:
        for name, value in different.items():
            setattr(settings, name, value)

    configure(SEMQ={}, Q_CLUSTER=GOOD_CLUSTER)
    return configure


@pytest.mark.parametrize(("check", "different"), [(check, one) for check, all in DESERVED.items() for one in all])
def test_a_setting_that_is_wrong_or_risky_is_named_with_what_to_do(project, check, different):
    """(B73)"""
    project(**different)
    messages = found()

    assert [message.id for message in messages] == [check]
    assert messages[0].hint


@pytest.mark.parametrize(
    "semq",
    [
        {},
        queue(ADMIT=handler("admit"), FINISHED=handler("admit"), RETRY_DELAY=handler("admit")),
        queue(MAX_ADMIT_BATCH=1, ATTEMPT_TIMEOUT=0.5),
        {
            "HOLDER": {
                "DEFAULT_LIMIT": None,
                "LIMITS": handler("admit"),
                "RULES": {"acct-*": {"limit": 5, "groups": {"exports": 2, "*": None}}},
                "DEAD_AFTER": 3600,
            }
        },
    ],
)
def test_settings_that_are_right_give_no_reason_to_complain(project, semq):
    project(SEMQ=semq)
    assert found() == []


def test_the_settings_of_these_tests_give_no_reason_to_complain():
    assert found() == []


def test_an_unknown_setting_is_shown_the_one_that_was_meant(project):
    project(SEMQ=queue(ATEMPT_TIMEOUT=30))
    (message,) = found()
    assert "'ATTEMPT_TIMEOUT'" in message.hint


def test_all_that_is_wrong_is_shown_at_once(project):
    project(SEMQ={"QUEUE": {}, "DRIVER": {"WAKE": 1, "THREADS": 0}})
    assert [message.id for message in found()] == ["semq.E002", "semq.E001", "semq.E001"]


# ------------------------------------------------------------------------------------------------------- the databases


class Router:
    """The holder's half is somewhere else."""

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "elsewhere" if model is Semaphore else None


@pytest.fixture
def elsewhere(monkeypatch):
    """A second database, which nobody ever connects to."""
    monkeypatch.setitem(connections.settings, "elsewhere", connections.settings["default"])
    yield
    del connections["elsewhere"]


def test_a_queue_and_its_local_holder_are_in_one_database(project, elsewhere):
    project(DATABASE_ROUTERS=[Router()])
    (message,) = found()
    assert message.id == "semq.E010"
    assert "'elsewhere'" in message.msg
    assert "DATABASE_ROUTERS" in message.hint


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("level", ["repeatable read", "SERIALIZABLE", None])
def test_isolation_that_takes_gap_locks_is_an_error(monkeypatch, project, level):
    """(B93)"""
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "isolation_level", level)
    (message,) = found()
    assert message.id == "semq.E011"
    assert "'read committed'" in message.hint


@pytest.mark.databases("mariadb")
def test_djangos_own_isolation_is_the_right_one(monkeypatch, project):
    monkeypatch.delitem(connection.settings_dict["OPTIONS"], "isolation_level")
    assert found() == []


@pytest.mark.databases("sqlite")
def test_sqlite_without_immediate_transactions_is_warned_of(monkeypatch, project):
    monkeypatch.delitem(connection.settings_dict["OPTIONS"], "transaction_mode")
    (message,) = found()
    assert message.id == "semq.W010"
    assert "IMMEDIATE" in message.msg
    assert "'init_command'" in message.hint


# -------------------------------------------------------------------------------------------------------- the schedule


@pytest.fixture
def schedule(db):
    from django_q.models import Schedule

    return Schedule.objects.filter(func="django_semq.driver.djangoq.tick")


def test_a_missing_schedule_is_warned_of_where_the_database_is_checked(project, schedule):
    """(B50)"""
    schedule.delete()
    assert found() == []
    (message,) = found(databases=["default"])
    assert message.id == "semq.W030"
    assert "migrate" in message.hint


def test_a_schedule_that_nobody_runs_is_warned_of(project, schedule):
    schedule.update(next_run=timezone.now() - timedelta(minutes=2))
    assert found(databases=["default"]) == []
    schedule.update(next_run=timezone.now() - timedelta(minutes=4))
    (message,) = found(databases=["default"])
    assert message.id == "semq.W031"
    assert "qcluster" in message.hint


def test_a_schedule_that_is_not_due_for_long_is_warned_of(project, schedule):
    """(B50)"""
    schedule.update(next_run=timezone.now() + timedelta(minutes=2))
    assert found(databases=["default"]) == []
    schedule.update(next_run=timezone.now() + timedelta(minutes=4))
    (message,) = found(databases=["default"])
    assert message.id == "semq.W031"
    assert "migrate" in message.hint
    schedule.update(next_run=None)
    assert [message.id for message in found(databases=["default"])] == ["semq.W030"]


def test_where_the_schedule_is_switched_off_nobody_misses_it(project, schedule):
    schedule.delete()
    project(SEMQ={"DRIVER": {"SCHEDULE": False}})
    assert found(databases=["default"]) == []


def test_a_fresh_migration_gives_no_reason_to_complain(project, schedule):
    schedule.delete()
    call_command("migrate", verbosity=0)
    assert found(databases=["default"]) == []


# --------------------------------------------------------------------------------------------------------- the whole


def test_every_check_is_provoked_here():
    elsewhere = {"semq.E010", "semq.E011", "semq.W010", "semq.W030", "semq.W031"}
    source = "".join(Path(module.__file__).read_text() for module in (checks, conf))
    assert set(re.findall(r'"(semq\.[EW]\d{3})"', source)) == DESERVED.keys() | elsewhere
