"""What databases do to their users: old snapshots, lost connections, read-only standbys, limits of statements."""

import logging
import signal
import sqlite3
from contextlib import contextmanager, nullcontext
from itertools import count, cycle

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_semq import (
    cancel,
    clock,
    enqueue,
    enqueue_many,
    release,
    release_many,
    semaphores,
    status,
    usage,
)
from django_semq.driver.daemon import Daemon
from django_semq.driver.tick import Work
from django_semq.invariants import Finding, audit, repair
from django_semq.models import Driver, Item
from django_semq.queue.pump import driven_by
from tests.concurrency.states import leftovers
from tests.queue.application import in_thread

ONE = "acct-42"
FINISHED = "tests.queue.application.finished"


def many(ids, key=ONE):
    enqueue_many([{"key": key, "body": {}, "id": uid} for uid in ids])


def execute(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)


def live(app, prefix=""):
    """The whole life of some items."""
    many([f"{prefix}{n}" for n in range(4)])
    app.tick()
    cancel(f"{prefix}3")
    for number in range(3):
        assert release(f"{prefix}{number}")
        app.tick()
    assert app.admitted[-3:] == [f"{prefix}{n}" for n in range(3)]
    assert leftovers() == []


@pytest.fixture
def few_variables(transactional_db):
    """As many in a statement as older builds of SQLite take."""
    connection.ensure_connection()
    connection.connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
    yield
    connection.close()


@pytest.mark.databases("sqlite")
def test_a_thousand_variables_of_a_statement_are_enough(app, few_variables):
    """(B88)"""
    app.configure({"FINISHED": FINISHED, "MAX_ADMIT_BATCH": 1000}, holder={"DEFAULT_LIMIT": None})
    many([f"{n}" for n in range(1500)])
    enqueue_many([{"key": f"k{n}", "group": "g", "body": {}, "id": f"k{n}"} for n in range(1100)])
    app.tick()
    assert len(release_many([f"{n}" for n in range(1200)])) == 1200
    app.on_finished = lambda ids: ids
    app.pass_time(seconds=61)
    app.tick()
    assert leftovers() == []


@pytest.mark.databases("sqlite")
def test_the_doctor_mends_more_keys_than_a_statement_has_variables(app, few_variables):
    """(B88)"""
    repair([Finding("", f"k{n}", "", "footprint", 1, 0) for n in range(1000)], now=clock.now())
    assert audit() == []


@pytest.mark.databases("sqlite")  # Its planner knows no statistics, so that the plan does not hang on the rows.
def test_no_statement_of_an_item_s_life_reads_or_sorts_a_whole_table(app):
    """(B85)"""
    app.configure({"FINISHED": FINISHED})
    app.on_finished = lambda ids: ids[:1]
    with CaptureQueriesContext(connection) as queries:
        many("abcd")
        app.tick()
        status("b")
        cancel("d")
        release("a")
        app.tick()
        app.pass_time(seconds=61)
        app.tick()
        app.pass_time(days=2)
        app.tick()
    tables = ("item", "nudge", "grant", "key", "keygroup", "semaphore", "ceiling", "issuedgrant", "demand")
    scans = []
    for sql in {query["sql"] for query in queries}:
        if not sql.startswith(("SELECT", "UPDATE", "DELETE", "WITH")):
            continue
        with connection.cursor() as cursor:
            cursor.execute("EXPLAIN QUERY PLAN " + sql.replace("%", "%%"))
            plan = [row[3] for row in cursor.fetchall()]
        scans += [(step, sql) for step in plan for table in tables if step == f"SCAN django_semq_{table}"]
        scans += [(step, sql) for step in plan if "TEMP B-TREE" in step]
    assert scans == []


@pytest.fixture
def session(app):
    """Runs a statement that changes this session, which ends with the test."""
    yield execute
    connection.close()


@pytest.mark.databases("postgres")
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_our_transactions_need_no_setting_of_the_project(app, session, level):
    """They decide by what is true now, and conflict with nobody. (B94)"""
    session(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level.upper()}")
    levels = set()

    def look(execute, sql, params, many, context):
        # The row of the driver is written by single statements, each done again at the next pass.
        if sql.startswith(("INSERT", "UPDATE", "DELETE")) and Driver._meta.db_table not in sql:
            with context["connection"].connection.cursor() as cursor:
                levels.add(cursor.execute("SHOW transaction_isolation").fetchone()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look):
        live(app)
    assert levels == {"read committed"}


STALE = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "mysql": "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ",
}


@contextmanager
def old_snapshot():
    """The transaction of a caller that has read before what others do here."""
    execute(STALE[connection.vendor])
    with transaction.atomic():
        list(Item.objects.all())
        yield


@pytest.mark.databases("postgres", "mariadb")
def test_from_an_old_snapshot_no_id_is_stored_twice(app, session):
    """It is a duplicate, or an error of the database that the caller knows how to meet. (B93)"""
    refused = False
    try:
        with old_snapshot():
            in_thread(lambda: enqueue(ONE, "theirs", id="a"))
            assert not enqueue(ONE, "ours", id="a").created
            assert enqueue(ONE, "ours", id="b").created
    except OperationalError as error:
        refused = "serialize" in str(error)
        assert refused
    assert Item.objects.get(uid="a").body == '"theirs"'
    assert Item.objects.filter(uid="b").exists() is not refused


@pytest.mark.databases("postgres", "mariadb")
@pytest.mark.parametrize("verb", [release, cancel])
def test_from_an_old_snapshot_nothing_is_ended_twice(app, session, verb):
    """(B93)"""
    app.configure(holder={"DEFAULT_LIMIT": 1 if verb is release else 0})
    many("ab")
    refusal = pytest.raises(OperationalError, match="serialize") if connection.vendor == "postgresql" else nullcontext()
    with refusal, old_snapshot():
        assert in_thread(lambda: verb("a"))
        assert verb("a") is False
    app.tick()
    assert semaphores.usage(ONE).footprint == usage()["admitted"] == (1 if verb is release else 0)


PASSING = ["40001", "40P01", "55P03", "57014"]
"""A conflict of serialization, a deadlock, a lock and a statement that took too long."""


def fails(sqlstate):
    """A statement of PostgreSQL that fails like this, and breaks its transaction as any does."""
    return f"DO $$ BEGIN RAISE EXCEPTION 'for the test' USING ERRCODE = '{sqlstate}'; END $$"


@pytest.mark.databases("postgres")
def test_an_error_of_any_statement_is_over_when_its_reason_is(app, monkeypatch):
    """In the middle of everything a driver does. (B94)"""
    monkeypatch.setattr(clock, "pause", lambda seconds: None)
    for statement, sqlstate in zip(count(1), cycle(PASSING)):
        passed = 0

        def fail(execute, sql, params, many, context, statement=statement, sqlstate=sqlstate):
            nonlocal passed
            passed += 1
            if passed == statement:
                execute(fails(sqlstate), None, False, context)
            return execute(sql, params, many, context)

        uid = f"{statement}"
        with driven_by(lambda: None):
            enqueue(ONE, {}, id=uid)
        with connection.execute_wrapper(fail):
            app.tick()
        app.pass_time(minutes=6)
        app.tick()
        assert app.admitted[-1] == uid, f"{sqlstate} at statement {statement}"
        assert release(uid)
        if passed < statement:
            break
    assert statement > 20
    app.tick()
    assert leftovers() == []


@pytest.mark.databases("postgres")
def test_an_error_in_a_caller_s_own_transaction_is_the_caller_s(app):
    """It comes through as it is, and nothing is tried again in a transaction that is broken. (B94)"""
    tries = []

    def fail(execute, sql, params, many, context):
        if sql.startswith("INSERT"):
            tries.append(sql)
            execute(fails("40001"), None, False, context)
        return execute(sql, params, many, context)

    with pytest.raises(OperationalError, match="for the test"), transaction.atomic(), connection.execute_wrapper(fail):
        enqueue(ONE, {}, id="a")
    assert len(tries) == 1
    assert status("a") is None


@pytest.fixture
def daemon(app, monkeypatch):
    """A daemon of which the test runs single rounds: `pass_once()`. It keeps its connection between them."""
    monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", None)
    connection.close()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    daemon = Daemon()
    daemon.work = Work.inline()

    def pass_once():
        daemon.stops = 0
        monkeypatch.setattr(daemon, "_wait", lambda **_how: setattr(daemon, "stops", 1))
        daemon._drive()

    daemon.pass_once = pass_once
    yield daemon
    connection.close()
    daemon.listener.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


KILL = {
    "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend({})"),
    "mysql": ("SELECT connection_id()", "KILL {}"),
}


def cut():
    """End this session as the server does with one that was idle for too long."""
    own, kill = KILL[connection.vendor]
    with connection.cursor() as cursor:
        cursor.execute(own)
        (pid,) = cursor.fetchone()
    in_thread(lambda: execute(kill.format(pid)))


@pytest.mark.databases("postgres", "mariadb")
def test_a_session_that_the_server_ended_costs_one_try(app, daemon):
    """(B96)"""
    enqueue(ONE, {}, id="a")
    cut()
    daemon.pass_once()
    daemon.pass_once()
    assert app.admitted == ["a"]


@pytest.mark.databases("postgres", "mariadb")
def test_a_session_that_the_server_ended_while_the_handler_ran_costs_one_attempt_at_most(app, daemon):
    """Only the mark is lost with it: the number of the attempt says that it comes again. (B95, B96)"""
    enqueue(ONE, {}, id="a")
    app.on_admit = lambda items: cut() if items[0].attempt == 1 else None
    for _minute in range(3):
        daemon.pass_once()
        app.pass_time(seconds=61)
    assert app.admitted in (["a"], ["a", "a"])
    assert [item.attempt for batch in app.batches for item in batch] == list(range(1, len(app.admitted) + 1))
    assert Item.objects.get().handed_over
    assert release("a")
    assert leftovers() == []


@pytest.mark.databases("postgres")
def test_a_session_that_reads_only_is_not_kept(app, daemon, caplog):
    """The server became a standby; a new connection leads to the one that writes. (B95)"""
    caplog.set_level(logging.ERROR)
    enqueue(ONE, {}, id="a")
    execute("SET default_transaction_read_only = on")
    for _pass in range(3):
        daemon.pass_once()
    assert app.admitted == ["a"]


def test_nobody_can_store_while_the_database_refuses_and_all_is_well_after(app):
    """(B95)"""
    enqueue(ONE, {}, id="a")

    def refuse(execute, sql, params, many, context):
        if not sql.startswith(("SELECT", "WITH", "BEGIN", "SAVEPOINT", "RELEASE", "ROLLBACK")):
            raise DatabaseError("cannot execute UPDATE in a read-only transaction")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        for _second in range(3):
            due = app.tick()
            assert due > clock.now()  # No loop without a pause.
            app.pass_time(seconds=1)
        with pytest.raises(DatabaseError):
            enqueue(ONE, {}, id="b")
        with pytest.raises(DatabaseError):
            release("a")
    assert app.admitted == []
    app.tick()
    assert app.admitted == ["a"]
    assert release("a")
    assert leftovers() == []


@pytest.mark.databases("mariadb")
def test_what_is_allowed_one_by_one_is_allowed_together(app):
    """However little a packet of the server takes. (B83)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@max_allowed_packet")
        (packet,) = cursor.fetchone()
    number = packet // 2**20 + 2
    body = "x" * (2**20 - 2)
    result = enqueue_many([{"key": ONE, "body": body, "id": f"{n}"} for n in range(number)])
    assert len(result.queued) == number
    app.tick()
    assert sum(len(item.body) for batch in app.batches for item in batch) == number * len(body)
