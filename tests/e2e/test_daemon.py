"""`semq_run` as a process: what its signals, its database and a handler that hangs do to it."""

import re
import signal
import statistics
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.db import connection

from django_semq import enqueue, enqueue_many, queues, status
from django_semq.models import Item
from tests.e2e import application
from tests.e2e.journal import until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]


def semq(admit: str, queue: dict | None = None, **sections: dict) -> dict:
    """SEMQ with one queue and no limits, so that nothing but the driver is waited for."""
    return {
        "QUEUES": {"default": {"ADMIT": f"{application.MODULE}.{admit}", **(queue or {})}},
        "HOLDER": {"DEFAULT_LIMIT": None},
        **sections,
    }


# ------------------------------------------------------------------------------------------------------------ its end


def test_the_first_signal_finishes_what_is_under_way_and_ends_well(project, journal):
    """(B103)"""
    daemon = project(semq("admit_at_gate")).semq_run()
    enqueue("acct-42", None, id="order:1")
    journal.wait_for("begun", ids=["order:1"])
    daemon.send_signal(signal.SIGTERM)
    daemon.wait_for_line("stopping")
    enqueue("acct-42", None, id="order:2")
    journal.open_gate("admit")

    daemon.finish()
    assert len(journal.events("over", ids=["order:1"])) == 1
    assert Item.objects.get(uid="order:1").handed_over
    # What came meanwhile is the next driver's.
    assert Item.objects.get(uid="order:2").attempt == 0
    assert not journal.events("begun", ids=["order:2"])


@pytest.mark.databases("postgres")
def test_an_idle_daemon_ends_at_the_first_signal(project):
    daemon = project(semq("admit", DRIVER={"POLL_INTERVAL": 600})).semq_run()
    daemon.send_signal(signal.SIGINT)

    daemon.finish()


@pytest.mark.databases("postgres")
def test_the_second_signal_ends_at_once(project, journal):
    daemon = project(semq("admit_at_gate")).semq_run()
    enqueue("acct-42", None, id="order:1")
    journal.wait_for("begun")
    daemon.send_signal(signal.SIGTERM)
    daemon.wait_for_line("stopping")
    daemon.send_signal(signal.SIGTERM)

    assert daemon.wait(30) == 128 + signal.SIGTERM
    assert not journal.events("over")
    item = Item.objects.get(uid="order:1")
    assert not item.handed_over
    assert item.due_at > item.admitted_at, "nobody would hand it over again"


@pytest.mark.databases("postgres")
def test_too_many_calls_that_hang_end_the_process_for_its_supervisor(project, journal):
    hanging = semq("admit_but_hang_on_stuck", {"ATTEMPT_TIMEOUT": 0.2, "MAX_ADMIT_BATCH": 1})
    # A process hands over nothing of a key of which a call hangs: twenty queues have twenty such keys.
    hanging["QUEUES"] |= {f"other{number}": hanging["QUEUES"]["default"] for number in range(20)}
    daemon = project(hanging).semq_run()
    for alias in hanging["QUEUES"]:
        queues[alias].enqueue("stuck", None)

    assert daemon.wait(60) == 75
    # One too many, and what the other threads were at.
    assert 16 < len(journal.events("hangs")) <= 16 + 4


# ----------------------------------------------------------------------------------------------- a handler that hangs


TIMEOUT = 2.0
"""ATTEMPT_TIMEOUT, and the length of a window in which starts are counted."""


@pytest.mark.databases("postgres")
def test_an_admit_that_hangs_for_one_key_does_not_slow_down_the_others(project, journal):
    """(B69)"""
    threads = 4
    daemon = project(
        semq("admit_but_hang_on_stuck", {"ATTEMPT_TIMEOUT": TIMEOUT}, DRIVER={"THREADS": threads})
    ).semq_run()
    most_threads = 0
    enqueued = 0

    def started_of_those_enqueued() -> float:
        """In a window: a machine that is busy with other things slows down both."""
        nonlocal most_threads, enqueued
        enqueued_before, started_before = enqueued, len(journal.events("start"))
        ends_at = time.monotonic() + TIMEOUT
        while time.monotonic() < ends_at:
            enqueue(f"acct-{enqueued % 8}", None, id=f"order:{enqueued}")
            enqueued += 1
            most_threads = max(most_threads, threads_of(daemon.pid))
        return (len(journal.events("start")) - started_before) / (enqueued - enqueued_before)

    usual = started_of_those_enqueued()
    enqueue("stuck", None, id="stuck")
    journal.wait_for("hangs")
    first, second = started_of_those_enqueued(), started_of_those_enqueued()

    print(f"started of those enqueued: {usual:.0%} before, {first:.0%} and {second:.0%} while one call hangs")
    assert min(first, second) >= usual / 2
    # Those that hang are replaced, at most 16; the rest is the process's own: its main thread, libraries'.
    assert most_threads <= threads + 16 + 4
    # Those that were in one call with it are handed over alone.
    journal.wait_for("start", enqueued)
    assert {start.id for start in journal.events("start")} == {f"order:{number}" for number in range(enqueued)}
    assert status("stuck").state == "admitted"


@pytest.mark.databases("postgres")
def test_an_admit_that_hangs_for_one_key_leaves_the_others_their_permits(project, journal):
    short = semq("admit_but_hang_on_stuck", {"ATTEMPT_TIMEOUT": 3600})
    busy = project(short | {"HOLDER": {"DEFAULT_LIMIT": 1}})
    for key in ("acct-1", "acct-2", "stuck", "acct-3", "acct-4"):
        enqueue_many({"key": key, "body": None} for _number in range(10))
    busy.semq_run()
    journal.wait_for("hangs")

    journal.wait_for("start", timeout=10)


def threads_of(pid: int) -> int:
    return int(re.search(r"^Threads:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)[1])


# ------------------------------------------------------------------------------------------------------- its database


def listening() -> int | None:
    """The PostgreSQL process that a daemon's LISTEN is in."""
    return one("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN %'")


def one(sql: str):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        row = cursor.fetchone()
    return row and row[0]


@contextmanager
def no_new_connections():
    """To this database; those that are open go on."""
    name = connection.ops.quote_name(connection.settings_dict["NAME"])
    with connection._nodb_cursor() as cursor:
        cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        try:
            yield
        finally:
            cursor.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.databases("postgres")
def test_a_notification_starts_what_is_enqueued_without_waiting_for_a_poll(project, journal):
    # The next poll is further away than this test waits for anything.
    project(semq("admit", DRIVER={"POLL_INTERVAL": 600})).semq_run()
    until(listening, "the daemon listens")
    waited = []
    for number in range(50):
        asked_at = time.monotonic()
        enqueue("acct-42", None, id=f"order:{number}")
        (start,) = journal.wait_for("start", id=f"order:{number}")
        waited.append(start.at - asked_at)

    median, p95 = statistics.median(waited), statistics.quantiles(waited, n=20)[-1]
    print(f"from enqueue to start by NOTIFY: median {median * 1000:.1f} ms, p95 {p95 * 1000:.1f} ms")


@pytest.mark.databases("postgres")
def test_a_daemon_whose_listening_connection_is_cut_polls_until_it_listens_again(project, journal):
    daemon = project(semq("admit", DRIVER={"POLL_INTERVAL": 0.2}), more={"SEMQ_TEST_CONN_MAX_AGE": "600"}).semq_run()
    first = until(listening, "the daemon listens")
    enqueue("acct-42", None, id="by notification")
    journal.wait_for("start", id="by notification")

    with no_new_connections():
        assert one(f"SELECT pg_terminate_backend({first})")
        daemon.wait_for_line("no listening connection")
        enqueue("acct-42", None, id="by poll")
        journal.wait_for("start", id="by poll")
        assert listening() is None
    again = until(listening, "the daemon listens again")
    assert again != first
    enqueue("acct-42", None, id="by notification again")
    journal.wait_for("start", id="by notification again")


@pytest.mark.databases("postgres")
def test_a_daemon_that_loses_all_its_connections_goes_on(project, journal):
    """(B96)"""
    project(semq("admit"), more={"SEMQ_TEST_CONN_MAX_AGE": "600"}).semq_run()
    until(listening, "the daemon listens")
    one(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    enqueue("acct-42", None, id="order:1")

    journal.wait_for("start", id="order:1")


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("max_age", [0, 600])
def test_every_session_of_the_daemon_bounds_how_long_a_frozen_transaction_holds_its_locks(project, journal, max_age):
    # A session that was opened before the daemon's loop began must have the limit too.
    """(B50)"""
    project(
        semq("admit_and_note_session", {"RETRY_DELAY": f"{application.MODULE}.delay_and_note_session"}),
        more={"SEMQ_TEST_CONN_MAX_AGE": str(max_age)},
    ).semq_run()
    enqueue("acct-42", None)

    (session,) = journal.wait_for("session", of="admit")
    assert session.limit == 10
    (session,) = journal.wait_for("session", of="driver")
    assert session.limit == 10
