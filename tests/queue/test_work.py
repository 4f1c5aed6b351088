"""How much the database does for a call: rows and index entries it reads, which no count of statements shows.

A plan that looks right on an empty table may walk over everything on a full one, so the work is counted on both.
"""

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from django.db import connection

from django_semq import clock, enqueue_many, release, release_many, status
from django_semq.models import Item, Key, Nudge, State
from django_semq.queue import admission
from django_semq.queue.pump import driven_by, nudged_after, pump
from django_semq.rows import chunks

BACKLOG = 2000
KEYS = [f"acct-{number}" for number in range(42, 342)]
STEP = 10
"""Instructions of SQLite's machine between two calls of our counter."""


@pytest.fixture(autouse=True)
def by_index_where_there_is_one(monkeypatch) -> Iterator[None]:
    """PostgreSQL scans a table of some pages, which is cheaper there and says nothing of a table of many."""
    monkeypatch.setenv("PGOPTIONS", f"{os.environ.get('PGOPTIONS', '')} -c enable_seqscan=off")
    connection.close()
    yield
    connection.close()


def work_of(call: Callable[[], object]) -> int:
    """Rows and index entries read for the call; on SQLite, tens of instructions."""
    if connection.vendor == "sqlite":
        return _instructions(call)
    before = _rows_read()
    call()
    return _rows_read() - before


def _instructions(call: Callable[[], object]) -> int:
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.ensure_connection()
    connection.connection.set_progress_handler(count, STEP)
    try:
        call()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return steps


def _rows_read() -> int:
    """So far in this session (MariaDB), by all sessions (PostgreSQL)."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT pg_stat_force_next_flush()")
            cursor.execute("SELECT SUM(seq_tup_read) FROM pg_stat_user_tables")
            (scanned,) = cursor.fetchone()
            cursor.execute("SELECT SUM(idx_tup_read) FROM pg_stat_user_indexes")
            (searched,) = cursor.fetchone()
            return int(scanned + searched)
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
        return sum(int(value) for _name, value in cursor.fetchall())


def renew_statistics() -> None:
    """As the database does by itself, a moment later."""
    with connection.cursor() as cursor:
        if connection.vendor == "mysql":
            cursor.execute("ANALYZE TABLE django_semq_item, django_semq_nudge, django_semq_keygroup, django_semq_key")
            cursor.fetchall()
        else:
            cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")
    connection.close()  # PostgreSQL checks foreign keys by the plans that a session began with.


def backlog(count: int, keys: int) -> None:
    """So many items wait, of two groups of each of so many keys."""
    places = [(key, group) for key in KEYS[:keys] for group in ("", "bulk")]
    with driven_by(lambda: None):
        enqueue_many(
            {"key": key, "group": group, "body": {}, "id": f"{count}/{number}"}
            for number, (key, group) in zip(range(count), places * count, strict=False)
        )
        for names in chunks(KEYS[:keys], 100):
            pump("default", names, now=clock.now())


def a_pump() -> None:
    """With a return to one key; the others are looked at."""
    pump("default", KEYS[:100], now=clock.now(), rounds=1)


def an_enqueue() -> None:
    with driven_by(lambda: None):
        enqueue_many([{"key": "acct-42", "body": {}, "id": f"new-{uuid.uuid4()}"}])


def a_hand_over() -> None:
    (batch,) = admission.claim("default", now=clock.now(), without=(), calls=1)
    admission.succeeded(batch, now=clock.now())


CALLS: dict[str, Callable[[], object]] = {
    "enqueue": an_enqueue,
    "pump": a_pump,
    "hand-over": a_hand_over,
    "status": lambda: status("first/19"),
}


@pytest.mark.parametrize("keys", [1, 7, 300])
@pytest.mark.parametrize("statistics", ["fresh", "of one key"])
def test_a_backlog_makes_no_call_dearer(app, statistics, keys):
    """(B85)"""
    app.configure(holder={"DEFAULT_LIMIT": 1})
    with driven_by(lambda: None):
        enqueue_many({"key": "acct-42", "body": {}, "id": f"first/{number}"} for number in range(20))
    renew_statistics()
    app.tick()
    work = {}
    for size in (0, BACKLOG):
        backlog(size + 2 * keys, keys)
        if statistics == "fresh" or connection.vendor == "postgresql":
            renew_statistics()
        Item.objects.filter(state=State.ADMITTED).update(handed_over=True)
        Key.objects.filter(name__in=KEYS[:100]).update(due_at=clock.LONG_AGO)
        with driven_by(lambda: None):
            release(Item.objects.get(state=State.ADMITTED, key="acct-42").uid)
        work[size] = {name: work_of(call) for name, call in CALLS.items()}
    for name, few in work[0].items():
        assert work[BACKLOG][name] <= 2 * few + 100, (name, work)


def nudges(keys: int, each: int) -> None:
    Nudge.objects.bulk_create(
        Nudge(queue="default", key=key, group="", queued_delta=0, created_at=clock.now())
        for _number in range(each)
        for key in KEYS[:keys]
    )


def test_finding_nudged_keys_is_a_probe_for_each_however_many_nudges_it_has(app):
    app.counters_agree = False
    nudges(keys=50, each=1)
    renew_statistics()
    few = work_of(lambda: nudged_after("default", "", clock.now()))
    nudges(keys=50, each=100)
    renew_statistics()
    found, last = nudged_after("default", "", clock.now())
    assert (found, last) == (sorted(KEYS[:50]), None)
    assert work_of(lambda: nudged_after("default", "", clock.now())) <= 3 * few
    found, last = nudged_after("default", KEYS[20], clock.now())
    assert found == [key for key in sorted(KEYS[:50]) if key > KEYS[20]]


@pytest.mark.parametrize("what", ["admits", "takes back"])
def test_a_pump_reads_as_much_for_each_of_many_items_as_for_a_few(app, what):
    app.configure(holder={"DEFAULT_LIMIT": 5})
    reads = {}
    for keys in (10, 100):
        with driven_by(lambda: None):
            enqueue_many({"key": key, "body": {}} for key in KEYS[:keys] for _number in range(5))
            if what == "takes back":
                pump("default", KEYS[:keys], now=clock.now())
                release_many(list(Item.objects.values_list("uid", flat=True)))
        renew_statistics()
        reads[keys] = work_of(lambda keys=keys: pump("default", KEYS[:keys], now=clock.now()))
        app.tick()
        with driven_by(lambda: None):
            release_many(list(Item.objects.values_list("uid", flat=True)))
        pump("default", KEYS[:keys], now=clock.now())
    assert reads[100] <= 20 * reads[10], reads
