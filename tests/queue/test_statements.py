"""How many statements things take, and that it depends on neither the number of keys nor that of items."""

import os
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.conf import settings as project
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_semq import clock, enqueue, enqueue_many, release, release_many, status, usage
from django_semq.models import Item, Key, KeyGroup, Semaphore, State
from django_semq.queue import admission
from django_semq.queue.items import queues
from django_semq.queue.pump import driven_by, pump

IDLE_KEYS = int(os.environ.get("SEMQ_TEST_IDLE_KEYS", "2000"))
"""100000 takes a minute and shows the same."""


def statements(work: Callable[[], object]) -> list[str]:
    """What the work sends to the database, but for what only begins and ends transactions."""
    with CaptureQueriesContext(connection) as queries:
        work()
    around = ("BEGIN", "COMMIT", "SET TRANSACTION", "SAVEPOINT", "RELEASE SAVEPOINT", "SELECT current_setting")
    sent = [re.sub(r"^[( ]+", "", query["sql"]) for query in queries]
    sent = [sql for sql in sent if not sql.startswith(around)]
    if connection.vendor == "sqlite":
        # Django splits its inserts there, at 999 variables; one by one they would be seen on the other databases.
        starts = [sql[:40] if sql.startswith("INSERT") else None for sql in sent]
        sent = [
            sql for sql, start, last in zip(sent, starts, [None, *starts], strict=False) if not start or start != last
        ]
    return sent


def kinds(sent: list[str]) -> list[str]:
    return [sql.split()[0] for sql in sent]


def unpumped(work: Callable[[], object]) -> object:
    """The verb alone: what its hook would do is another's."""
    with driven_by(lambda: None):
        return work()


def items(keys: int, each: int, prefix: str = "") -> list[dict]:
    return [
        {"key": f"key-{key:03}", "body": {}, "id": f"{prefix}{key}/{number}"}
        for number in range(each)
        for key in range(keys)
    ]


@pytest.mark.parametrize("count", [1, 100])
def test_enqueueing_is_a_look_for_known_ids_and_two_inserts(app, count):
    sent = statements(lambda: unpumped(lambda: enqueue_many(items(count, 1))))
    assert kinds(sent) == ["SELECT", "INSERT", "INSERT"]


def test_an_item_without_an_id_needs_no_look(app):
    sent = statements(lambda: unpumped(lambda: enqueue("acct-42", {})))
    assert kinds(sent) == ["INSERT", "INSERT"]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("verb", ["release_many", "cancel_many"])
def test_a_release_and_a_cancel_are_a_lock_a_delete_and_a_nudge(app, verb, count):
    app.configure(holder={"DEFAULT_LIMIT": None if verb == "release_many" else 0})
    enqueue_many(items(count, 1))
    app.tick()
    ids = [item["id"] for item in items(count, 1)]
    sent = statements(lambda: unpumped(lambda: getattr(queues["default"], verb)(ids)))
    lock = ["SELECT", "SELECT"] if project.DATABASE == "mariadb" else ["SELECT"]  # No lock by an IN list there.
    assert kinds(sent) == [*lock, "DELETE", "INSERT"]


def test_status_and_usage_are_one_each_whatever_there_is(app):
    enqueue_many(items(20, 5))
    assert kinds(statements(lambda: status("0/0"))) == ["SELECT"]
    assert len(statements(usage)) == 1


def counts_of_pumps(app, keys: int, each: int) -> dict[str, int]:
    """Statements of pumps that admit some items of each key and refuse some; that take permits back and give them
    again; and that take back the last ones."""
    app.configure(holder={"DEFAULT_LIMIT": each})
    names = [f"key-{key:03}" for key in range(keys)]
    enqueue_many(items(keys, 1, prefix="first"))
    app.tick()
    release_many([item["id"] for item in items(keys, 1, prefix="first")])
    app.tick()

    def one_pump() -> None:
        assert pump("default", names, now=clock.now()).left == []

    counts = {}
    unpumped(lambda: enqueue_many(items(keys, 2 * each)))
    counts["admit and refuse"] = len(statements(one_pump))
    assert usage() == {"queued": keys * each, "claiming": 0, "admitted": keys * each}
    for step, first in [("take back and admit", 0), ("take back", each)]:
        ids = [f"{key}/{number}" for key in range(keys) for number in range(first, first + each)]
        assert len(unpumped(lambda ids=ids: release_many(ids))) == keys * each
        counts[step] = len(statements(one_pump))
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}
    counts["nothing"] = len(statements(one_pump))
    return counts


def test_a_pump_of_a_hundred_keys_takes_as_many_statements_as_one_of_one(app):
    one = counts_of_pumps(app, keys=1, each=1)
    hundred = counts_of_pumps(app, keys=100, each=5)
    assert hundred == one
    assert one["admit and refuse"] <= 21
    assert one["take back and admit"] <= 23


def test_a_pump_of_many_groups_takes_no_more_than_one_of_one(app):
    def count(groups: int) -> int:
        enqueue("acct-42", {}, group=f"{groups}-first")
        unpumped(
            lambda: enqueue_many([{"key": "acct-42", "group": f"{groups}-{n}", "body": {}} for n in range(groups)])
        )
        return len(statements(lambda: pump("default", ["acct-42"], now=clock.now())))

    app.configure(holder={"DEFAULT_LIMIT": None})
    assert count(100) == count(1)


def test_a_backlog_makes_no_pump_longer(app):
    """(B85)"""
    enqueue_many(items(1, 2))
    release("0/0")
    short = len(statements(lambda: release("0/1")))
    enqueue_many(items(1, 1500, prefix="more"))
    release("more0/0")
    assert len(statements(lambda: release("more0/1"))) <= short + 5  # One of the two found nothing to admit.


def test_a_pump_that_finds_nothing_writes_nothing(app):
    enqueue_many(items(3, 2))
    sent = statements(lambda: pump("default", [f"key-{n:03}" for n in range(3)], now=clock.now()))
    assert set(kinds(sent)) == {"SELECT"}


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
def test_a_batch_of_a_hundred_takes_as_many_statements_as_one_of_one(app, outcome):
    app.configure({"FINISHED": "tests.queue.application.finished"}, holder={"DEFAULT_LIMIT": None})

    def hand_over() -> None:
        now = clock.now()
        (batch,) = admission.claim("default", now=now, without=(), calls=1)
        admission.hand_over(batch)
        if outcome == "succeeded":
            admission.succeeded(batch, now=now)
        else:
            admission.failed(batch, RuntimeError(), now=now)

    counts = []
    for count in [1, 100]:
        enqueue_many(items(1, count, prefix=f"{count}-"))
        counts.append(len(statements(hand_over)))
        assert len(app.batches[-1]) == count
        Item.objects.update(due_at=None)
    assert counts[0] == counts[1] <= 5


def test_a_question_about_a_hundred_takes_as_many_statements_as_about_one(app):
    app.configure({"FINISHED": "tests.queue.application.finished"}, holder={"DEFAULT_LIMIT": None})
    app.on_finished = lambda ids: ids

    def ask() -> None:
        check = admission.claim_check("default", now=clock.now())
        unpumped(lambda: admission.release_finished("default", admission.ask(check)))

    counts = []
    for count in [1, 100]:
        enqueue_many(items(1, count, prefix=f"{count}-"))
        app.tick()
        app.pass_time(seconds=61)
        counts.append(len(statements(ask)))
        assert len(app.asked[-1]) == count
        app.tick()
    assert counts[0] == counts[1] <= 5


def idle_keys(count: int) -> None:
    """Keys of each kind that may be there for long: one that runs an item, one that holds nothing any more, and one
    whose items wait."""
    now = clock.now()
    keys = Key.objects.bulk_create(
        [
            Key(queue="default", name=f"{kind}-{number}", due_at=now + timedelta(hours=20) if kind == "idle" else None)
            for kind in ["runs", "idle", "waits"]
            for number in range(count)
        ],
        batch_size=500,
    )
    keys = list(Key.objects.order_by("id"))
    Semaphore.objects.bulk_create(
        [
            Semaphore(
                name=key.name,
                footprint=int(key.name.startswith("runs")),
                idle_since=now - timedelta(hours=4) if key.name.startswith("idle") else None,
            )
            for key in keys
        ],
        batch_size=500,
    )
    KeyGroup.objects.bulk_create(
        [
            KeyGroup(key=key, admitted=int(key.name.startswith("runs")), queued=int(key.name.startswith("waits")))
            for key in keys
            if not key.name.startswith("idle")
        ],
        batch_size=500,
    )
    Item.objects.bulk_create(
        [
            Item(
                uid=key.name,
                queue="default",
                key=key.name,
                body="{}",
                state=State.ADMITTED if key.name.startswith("runs") else State.QUEUED,
                handed_over=key.name.startswith("runs"),
                grant_id=key.pk,
                enqueued_at=now,
            )
            for key in keys
            if not key.name.startswith("idle")
        ],
        batch_size=500,
    )


def rows_looked_at(sent: list[str]) -> int:
    """How many rows of our tables these reads look at, as far as the database tells."""
    looked_at = 0
    with connection.cursor() as cursor:
        for sql in sent:
            if connection.vendor == "sqlite":
                # A scan looks at all, and so does a sort; a search by an index only looks at what it finds.
                cursor.execute(f"EXPLAIN QUERY PLAN {sql}")
                plan = [row[3] for row in cursor.fetchall()]
                looked_at += sum(IDLE_KEYS for step in plan if re.match("SCAN django_semq_|USE TEMP B-TREE", step))
            elif connection.vendor == "postgresql":
                cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
                looked_at += sum(_rows(cursor.fetchone()[0][0]["Plan"]))
            else:
                cursor.execute("FLUSH STATUS")
                cursor.execute(sql)
                cursor.fetchall()
                cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read_%'")
                looked_at += sum(int(value) for name, value in cursor.fetchall())
    return looked_at


def _rows(plan: dict) -> list[float]:
    rows = [(plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]]
    return rows + [count for inner in plan.get("Plans", ()) for count in _rows(inner)]


def test_a_tick_with_nothing_due_makes_six_reads_and_no_write_however_many_keys_are_idle(app):
    """(B34, B85)"""
    app.counters_agree = False  # The holder knows nothing of these items.
    app.tick()
    few = statements(app.tick)
    idle_keys(IDLE_KEYS)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")  # As autovacuum does a moment later.
    app.limits_asked.clear()

    many = statements(app.tick)

    assert len(many) == len(few) <= 6
    assert set(kinds(many)) <= {"SELECT", "WITH"}
    # A page of due keys that are not due yet is the most that is read at once.
    assert rows_looked_at(many) <= 4 * 100


def test_a_second_queue_adds_four_reads_to_an_idle_tick(app):
    app.tick()
    one = len(statements(app.tick))
    app.configure(queues=["default", "reports"])
    app.tick()
    assert len(statements(app.tick)) == one + 4
