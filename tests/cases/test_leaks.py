"""A permit that is out has an item that runs; whatever dies, fails, is doubled or deleted, it comes back, once."""

from itertools import count

import pytest
from django.db import DatabaseError, connection
from django.db.models import ProtectedError

from django_semq import cancel, clock, enqueue_many, release, release_many, semaphores, status, usage
from django_semq.invariants import audit, repair
from django_semq.models import Ceiling, Grant, IssuedGrant, Item, Key, KeyGroup, Nudge, Semaphore
from django_semq.queue.pump import driven_by
from tests.cases.crashes import Crash, dies, forget
from tests.concurrency.states import leftovers
from tests.factories import ItemFactory
from tests.queue.application import in_thread, raising

FINISHED = "tests.queue.application.finished"


def many(ids, key="acct-42", group=""):
    enqueue_many([{"key": key, "group": group, "body": {}, "id": uid} for uid in ids])


def footprint(key="acct-42"):
    return semaphores.usage(key).footprint


def test_another_process_hears_that_the_work_of_a_killed_one_has_ended(app):
    """Also when nothing waits that would make it look. (B01)"""
    app.configure({"FINISHED": FINISHED}, holder={"DEFAULT_LIMIT": 2})
    many("ab")
    app.tick()
    forget()

    app.on_finished = lambda ids: [uid for uid in ids if uid in "ab"]
    many("cde")
    app.pass_time(seconds=61)
    app.tick()
    assert app.admitted == list("abcd")
    assert [event.id for event in app.events_of("released")] == ["a", "b"]
    assert (footprint(), status("e").state) == (2, "queued")


def test_without_a_word_from_the_application_a_permit_stays_with_its_item(app):
    """Nobody else can know whether the work of a killed process still runs. (B01)"""
    many("ab")
    app.tick()
    forget()
    app.pass_time(days=30)
    app.tick()
    assert (app.admitted, footprint()) == (["a"], 1)


def test_a_process_may_die_after_any_of_its_commits(app):
    """Of the life of items from enqueue to release, hand-over and counting included. (B02)"""

    def live():
        many(ids)
        app.tick()
        release_many(ids)
        app.tick()

    for commits in count(1):
        ids = [f"{commits} {number}" for number in range(3)]
        app.batches.clear()
        has_died = dies(live, after_commit=commits)
        for _round in ids:
            app.pass_time(minutes=2)  # Past the deadline of every hand-over.
            app.tick()
            assert footprint() == usage()["admitted"] <= 1
            release_many(app.admitted)
        assert set(app.admitted) == set(ids)
        assert leftovers() == []
        if not has_died:
            break
    assert commits > 8


def test_a_process_may_die_while_it_hands_over(app):
    """The permit stays with the item, which is handed over again. (B02)"""
    many("ab")
    app.on_admit = raising(Crash())
    assert dies(app.tick)
    app.on_admit = lambda items: None
    app.pass_time(seconds=61)
    app.tick()
    assert app.admitted == ["a", "a"]
    assert footprint() == 1


def test_a_release_that_fails_halfway_has_done_nothing_and_can_be_repeated(app):
    """The item keeps its permit until both are gone together. (B04)"""
    many("ab")

    def refuse(execute, sql, params, many, context):
        if sql.startswith("INSERT") and Nudge._meta.db_table in sql:
            raise DatabaseError("disk full")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse), pytest.raises(DatabaseError, match="disk full"):
        release("a")
    assert (status("a").state, status("b").state, Nudge.objects.count()) == ("admitted", "queued", 0)
    assert app.events_of("released") == []

    assert release("a")
    assert (status("a"), status("b").state) == (None, "admitted")
    assert footprint() == 1


def test_the_parts_of_a_usage_sum_up_to_its_total_while_permits_come_and_go(app):
    """What is shown is one moment: else an operator looks for a permit that is not lost. (B06)"""
    app.configure(holder={"DEFAULT_LIMIT": 100})
    many([f"{number}" for number in range(30)], group="g")
    given = iter(range(30))

    for statement in count(1):
        passed = 0

        def race(execute, sql, params, many, context, statement=statement):
            nonlocal passed
            is_alone = connection.vendor == "sqlite" and connection.in_atomic_block
            passed += not is_alone
            if passed == statement and not is_alone:
                in_thread(lambda: release(f"{next(given)}"))
            return execute(sql, params, many, context)

        with connection.execute_wrapper(race):
            said = semaphores.usage("acct-42")
        in_use = sum(issued.in_use for issued in said.issued)
        assert said.footprint == said.groups["g"].footprint == in_use, f"before statement {statement}"
        if passed < statement:
            break


@pytest.mark.parametrize("delete", ["queryset", "row"])
def test_nobody_deletes_an_item_together_with_its_permit(app, delete):
    """Only what waits can be deleted, and it leaves no demand behind. (B07)"""
    app.configure(holder={"DEFAULT_LIMIT": 2})
    many("abcd")
    with pytest.raises(ProtectedError, match="permit would be lost"):
        Item.objects.filter(uid="a").delete() if delete == "queryset" else Item.objects.get(uid="a").delete()
    with pytest.raises(ProtectedError):
        Item.objects.filter(key="acct-42").delete()
    assert usage() == {"queued": 2, "claiming": 0, "admitted": 2}

    Item.objects.filter(uid="c").delete()
    release_many(["a", "b"])
    assert (status("d").state, footprint()) == ("admitted", 1)


BY_HAND = {
    "items": lambda: Item.objects.filter(uid__in="ab")._raw_delete(connection.alias),
    "grants": lambda: Grant.objects.all().delete(),
    "issued grants": lambda: IssuedGrant.objects.all().delete(),
    "keys": lambda: Key.objects.all().delete(),
    "groups": lambda: KeyGroup.objects.all().delete(),
    "semaphores": lambda: Semaphore.objects.all().delete(),
    "ceilings": lambda: Ceiling.objects.all().delete(),
    "nudges": lambda: Nudge.objects.all().delete(),
}


@pytest.mark.parametrize("table", BY_HAND)
def test_rows_deleted_by_hand_are_a_difference_for_a_while_only(app, table):
    """The doctor names it, and after its repair what runs is counted and what waits runs. (B07)"""
    app.configure(holder={"DEFAULT_LIMIT": 3})
    many("abcde", group="g")
    with driven_by(lambda: None):
        many("f", group="g")  # Its nudge is not folded yet.
    BY_HAND[table]()
    repair(audit(), now=clock.now())
    app.tick()
    assert audit() == []
    assert footprint() == usage()["admitted"] == 3

    while admitted := [item.uid for item in Item.objects.all() if status(item.uid).state == "admitted"]:
        release_many(admitted)
        app.tick()
        assert footprint() <= 3
    assert leftovers() == []


def test_cancelling_what_runs_is_refused_and_leaks_nothing(app):
    """(B11)"""
    many("ab")
    app.counters_agree = False
    ItemFactory(uid="c", key="other", claiming=True)
    assert [cancel(uid) for uid in "abc"] == [False, True, False]
    assert (status("a").state, status("b"), status("c").state) == ("admitted", None, "claiming")
    assert release("a")
    app.tick()
    assert app.admitted == []
    assert (footprint(), usage()["queued"]) == (0, 0)
