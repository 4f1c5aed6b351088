"""Giving permits back: only of admitted items, once, whatever became of the rows around."""

import pytest
from django.db import connection

from django_semq import InvalidItem, cancel, enqueue, enqueue_many, release, release_many, semaphores, status, usage
from django_semq.models import Grant, IssuedGrant, Item, Nudge
from django_semq.queue.items import queues
from tests.factories import ItemFactory, LeaseFactory
from tests.queue.application import values_of


def test_a_release_removes_the_item_and_its_permit_is_free(app):
    enqueue("acct-42", {}, id="a")
    assert semaphores.usage("acct-42").footprint == 1

    assert release("a") is True

    assert status("a") is None
    assert semaphores.usage("acct-42").footprint == 0
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}


def test_a_second_release_is_false_and_frees_nothing_more(app):
    """(B16)"""
    app.configure(holder={"DEFAULT_LIMIT": 2})
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    assert release("a") is True
    assert release("a") is False
    assert release_many(["a", "a"]) == []
    assert semaphores.usage("acct-42").footprint == 1


def test_only_an_admitted_item_can_be_released(app):
    """(B16)"""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="queued")
    app.counters_agree = False
    ItemFactory(uid="claiming", claiming=True)
    before = list(Item.objects.order_by("id").values())

    for uid in ["queued", "claiming", "unknown", "", "x" * 300, "nul\0", None]:
        assert release(uid) is False

    assert list(Item.objects.order_by("id").values()) == before
    assert not app.events_of("released")


def test_an_item_that_was_not_handed_over_yet_can_be_released_and_never_is(app):
    """(B16)"""
    enqueue("acct-42", {}, id="a")
    assert release("a")
    app.tick()
    assert app.admitted == []


def test_many_are_released_in_one_call_and_told_in_input_order(app):
    app.configure(holder={"DEFAULT_LIMIT": 3})
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abcd"])
    assert release_many(["c", "unknown", "a", "d", "c"]) == ["c", "a"]
    assert status("d").state == "admitted"  # It got one of the permits.
    assert status("b").state == "admitted"


def test_a_single_text_is_no_list_of_ids(app):
    enqueue("acct-42", {}, id="a")
    with pytest.raises(InvalidItem, match="ids is 'a', a single text; give a list of ids"):
        release_many("a")
    assert status("a") is not None


def test_a_permit_that_came_back_is_given_anew_by_the_holder(app):
    """It is not kept here: another client of the key may be the one to get it."""
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    first = Grant.objects.get().uid
    release("a")
    assert status("b").state == "admitted"
    assert Grant.objects.get().uid != first
    assert not IssuedGrant.objects.filter(uid=first).exists()


def test_the_next_item_is_admitted_by_the_release_itself(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    for uid, next_uid in ["ab", "bc"]:
        release(uid)
        assert status(next_uid).state == "admitted"


def test_an_item_whose_grant_is_gone_is_released_all_the_same(app, caplog):
    app.counters_agree = False
    enqueue("acct-42", {}, id="a")
    Grant.objects.all().delete()

    assert release("a")

    assert status("a") is None
    assert not Nudge.objects.exists()
    assert "1 permits that came back are ignored" in caplog.text


def test_a_release_names_the_lease_whose_permit_came_back(app):
    app.counters_agree = False
    lease = LeaseFactory(drawn=1)
    ItemFactory(uid="a", admitted=True, grant_id=None, lease_id=lease.pk)
    nudges = []

    def note(execute, sql, params, many, context):
        if sql.startswith("INSERT") and Nudge._meta.db_table in sql:
            nudges.append(params)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        assert release("a")
    assert any(lease.pk in values_of(params) for params in nudges)


def test_rows_are_released_by_number_and_attempt_not_by_their_id(app):
    """An id that was released and enqueued again is another item: an old finish must not give its permit back."""
    enqueue("acct-42", 1, id="a")
    app.tick()
    old = app.batches[-1][0]
    release("a")
    enqueue("acct-42", 2, id="a")
    app.tick()
    new = app.batches[-1][0]
    queue = queues["default"]

    assert queue.release_rows({old.row: old.attempt}) == []
    assert queue.release_rows({new.row: new.attempt + 1}) == []
    assert status("a").state == "admitted"
    assert queue.release_rows({new.row: new.attempt}) == ["a"]


def test_a_released_item_is_not_there_to_be_cancelled(app):
    enqueue("acct-42", {}, id="a")
    assert cancel("a") is False
    assert release("a") is True
