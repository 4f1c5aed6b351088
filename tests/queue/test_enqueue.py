"""What a caller may enqueue, and what is stored of it."""

import re
import uuid

import pytest
from django.db import DatabaseError, connection

from django_semq import InvalidItem, clock, enqueue, enqueue_many, queues, release, status
from django_semq.models import Item, Key, Nudge, State
from django_semq.queue.items import Enqueued, EnqueueResult
from tests.queue.application import in_thread, values_of


def stored() -> list[str]:
    return list(Item.objects.order_by("id").values_list("uid", flat=True))


def test_an_item_needs_a_key_and_a_body_only(app):
    done = enqueue("acct-42", {"order": 7})

    item = Item.objects.get()
    assert done == Enqueued(item.uid, created=True)
    assert (item.key, item.group, item.body) == ("acct-42", "", '{"order":7}')
    assert uuid.UUID(done.id).version == 4


def test_items_without_an_id_get_ids_of_their_own(app):
    result = enqueue_many([{"key": "acct-42", "body": 1}, {"key": "acct-42", "body": 1, "id": None}])
    assert len(set(result.queued)) == 2
    assert result.duplicates == []


def test_a_new_item_waits_and_nothing_was_tried_yet(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    before = clock.now()
    enqueue("acct-42", {}, id="order:7")

    item = Item.objects.get()
    assert item.state == State.QUEUED
    assert before <= item.enqueued_at <= clock.now()
    assert (item.grant_id, item.lease_id, item.admitted_at, item.due_at) == (None, None, None, None)
    assert (item.attempt, item.handed_over, item.started, item.last_error) == (0, False, False, "")


def test_an_id_that_is_stored_already_changes_nothing(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {"order": 7}, group="exports", id="order:7")
    before = Item.objects.values().get()
    app.pass_time(seconds=5)

    assert enqueue("other", {"order": 8}, group="imports", id="order:7") == Enqueued("order:7", created=False)
    assert Item.objects.values().get() == before


def test_an_admitted_id_is_a_duplicate_too(app):
    enqueue("acct-42", 1, id="order:7")
    assert status("order:7").state == "admitted"

    assert not enqueue("acct-42", 2, id="order:7").created
    assert Item.objects.get().body == "1"


def test_the_answer_lists_queued_and_duplicates_in_input_order(app):
    enqueue("acct-42", {}, id="c")

    result = enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in ["d", "c", "a", "d", "b", "a"]])

    assert result == EnqueueResult(queued=["d", "a", "b"], duplicates=["c", "d", "a"])
    assert stored() == ["c", "d", "a", "b"]


def test_of_an_id_that_comes_twice_in_one_call_the_first_is_stored(app):
    enqueue_many([{"key": "acct-42", "body": 1, "id": "a"}, {"key": "other", "body": 2, "id": "a"}])
    assert Item.objects.values_list("key", "body").get() == ("acct-42", "1")


def test_a_released_id_may_come_again_and_runs_again(app):
    for _time in range(2):
        assert enqueue("acct-42", {}, id="order:7").created
        app.tick()
        assert release("order:7")
    assert app.admitted == ["order:7", "order:7"]


def test_enqueueing_nothing_or_only_duplicates_touches_no_key(app):
    enqueue("acct-42", {}, id="order:7")
    app.tick()
    keys = list(Key.objects.values())

    assert enqueue_many([]) == EnqueueResult([], [])
    assert not enqueue("other", {}, id="order:7").created

    assert not Nudge.objects.exists()
    assert list(Key.objects.values()) == keys


def test_a_body_comes_back_as_it_was_given(app):
    body = {"text": "Ærøskøbing 🦀 \0 \u2028", "list": [1, 2.5, None, True, {"nested": []}], "empty": {}}
    enqueue("acct-42", body)
    app.tick()
    assert app.batches[0][0].body == body


LONG = "x" * 256
GOOD = {"key": "acct-42", "body": {}}


@pytest.mark.parametrize(
    ("item", "field", "text"),
    [
        ({"body": {}}, "key", "key is missing; give one"),
        ({"key": "acct-42"}, "body", "body is missing; give one"),
        ({**GOOD, "key": None}, "key", "key is None: give a text"),
        ({**GOOD, "key": ""}, "key", "key is '': give a text that is not empty"),
        ({**GOOD, "key": LONG}, "key", f"key is {LONG!r:.50}…: it has 256 characters; give at most 255"),
        ({**GOOD, "group": None}, "group", "group is None: give a text"),
        ({**GOOD, "group": 5}, "group", "group is 5: give a text"),
        ({**GOOD, "group": "a\0"}, "group", "group is 'a\\x00': it has a NUL character; leave it out"),
        ({**GOOD, "id": ""}, "id", "id is '': give a text that is not empty"),
        ({**GOOD, "id": 7}, "id", "id is 7: give a text"),
        ({**GOOD, "id": "\ud800"}, "id", "id is '\\ud800': it has half of a surrogate pair"),
        ({**GOOD, "body": b""}, "body", "body is b'': it has a bytes, which JSON has not"),
        ({**GOOD, "priority": 1}, "priority", "an item has no field 'priority'; it has key, body, group, id"),
        ("acct-42", "", "an item is 'acct-42'; give a dict"),
    ],
)
def test_one_bad_item_is_named_and_nothing_of_the_call_is_stored(app, item, field, text):
    with pytest.raises(InvalidItem, match=f"^item 1: {re.escape(text)}") as refused:
        enqueue_many([GOOD, item, GOOD])

    assert (refused.value.field, refused.value.index) == (field, 1)
    assert stored() == []
    assert not Nudge.objects.exists()
    assert app.events == []


def test_a_call_with_one_item_names_no_place_in_a_list(app):
    with pytest.raises(InvalidItem, match=r"^key is 5: give a text$") as refused:
        enqueue(5, {})
    assert refused.value.index is None


def test_a_bad_item_is_a_value_error_to_those_who_do_not_know_us(app):
    with pytest.raises(ValueError, match="body is"):
        enqueue("acct-42", {1, 2})


NAMES = ["a", "A", "á", "a\u0301", "a ", " a", "a\t", "🦀", "x" * 255, "🦀" * 255, "%", "_", "'", '"', "\\", "a/b"]


def test_ids_keys_and_groups_are_told_apart_exactly(app):
    """By case, accent, trailing space and form of composition, on every database, at the greatest length."""
    app.configure(holder={"DEFAULT_LIMIT": None})
    result = enqueue_many(
        [{"key": name, "group": name, "id": name, "body": name} for name in NAMES]
        + [{"key": name, "body": name, "group": other, "id": name + other} for name in "aA" for other in "aA"]
    )

    assert result.duplicates == []
    assert set(Key.objects.values_list("name", flat=True)) == set(NAMES)
    app.tick()
    assert {item.id: (item.key, item.group) for batch in app.batches for item in batch} == {
        **{name: (name, name) for name in NAMES},
        **{name + other: (name, other) for name in "aA" for other in "aA"},
    }
    for name in NAMES:
        assert status(name).state == "admitted"
        assert release(name)
        assert status(name) is None


def test_composed_names_cannot_be_taken_for_each_other(app):
    app.configure(holder={"DEFAULT_LIMIT": 1})
    for key, group in [("a", "b:c"), ("a:b", "c"), ("a", '","b'), ('a","', "b")]:
        enqueue(key, {}, group=group, id=f"{key}|{group}")
    assert Item.objects.filter(state=State.ADMITTED).count() == 3  # Two share the key "a", whose limit is 1.
    assert Key.objects.count() == 3


def test_more_items_than_one_statement_takes_are_stored_in_order(app):
    """(B88)"""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    ids = [f"{number:05d}" for number in range(1200, 0, -1)]
    result = enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in ids])
    assert result.queued == ids
    assert stored() == ids


def test_a_database_error_stores_nothing_and_says_nothing(app):
    """Here while the nudge is written, after the item."""

    def refuse_nudges(execute, sql, params, many, context):
        if sql.startswith("INSERT") and Nudge._meta.db_table in sql:
            raise DatabaseError("disk full")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse_nudges), pytest.raises(DatabaseError, match="disk full"):
        enqueue("acct-42", {})

    assert stored() == []
    assert app.events == []


def test_an_id_that_another_caller_stores_meanwhile_is_a_duplicate(app):
    """Between our look for known ids and our insert: the database refuses the row, and the others are stored."""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", "theirs", id="b")
    looks = []

    def hide(value):
        return [hide(inner) for inner in value] if isinstance(value, list) else "" if value == "b" else value

    def look_too_early(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "b" in values_of(params) and not looks:
            looks.append(sql)
            params = [hide(value) for value in params]
        return execute(sql, params, many, context)

    with connection.execute_wrapper(look_too_early):
        result = enqueue_many([{"key": "acct-42", "body": "ours", "id": uid} for uid in ["c", "b", "a"]])

    assert looks
    assert result == EnqueueResult(queued=["c", "a"], duplicates=["b"])
    assert stored() == ["b", "c", "a"]
    assert Item.objects.get(uid="b").body == '"theirs"'
    assert queues["default"].usage()["queued"] == 3


@pytest.mark.databases("postgres", "mariadb")  # SQLite has one writer at a time.
def test_an_id_that_another_process_commits_meanwhile_is_a_duplicate(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    raced = []

    def race(execute, sql, params, many, context):
        if sql.startswith("INSERT") and Item._meta.db_table in sql and not raced:
            raced.append(sql)
            in_thread(lambda: enqueue("acct-42", "theirs", id="b"))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(race):
        result = enqueue_many([{"key": "acct-42", "body": "ours", "id": uid} for uid in ["c", "b", "a"]])

    assert result == EnqueueResult(queued=["c", "a"], duplicates=["b"])
    assert stored() == ["b", "c", "a"]
