"""The signals: what they say, when, and that they can break nothing."""

from datetime import timedelta

from django.db import transaction

from django_semq import cancel, clock, enqueue, enqueue_many, release, release_many, semaphores, status
from django_semq.models import Item
from tests.queue.application import raising, rolled_back


def test_an_item_s_life_is_told_with_its_id_key_and_group(app):
    before = clock.now()
    enqueue("acct-42", {}, group="exports", id="a")
    enqueue("acct-42", {}, group="exports", id="b")
    cancel("b")
    release("a")

    assert {event.name for event in app.events if event.fields.get("id") == "a"} == {"queued", "admitted", "released"}
    assert [event.name for event in app.events if event.fields.get("id") == "b"] == ["queued", "cancelled"]
    for event in app.events:
        assert (event.queue, event.key, event.group) == ("default", "acct-42", "exports")
        assert before <= event.timestamp <= clock.now()
        more = {"admitted": {"id", "wait_ms"}, "blocked": {"reason", "count"}}.get(event.name, {"id"})
        assert event.fields.keys() == {"queue", "key", "group", "timestamp"} | more


def test_queued_is_told_once_for_each_new_item_with_its_time_of_arrival(app):
    enqueue("acct-42", {}, id="a")
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in ["b", "a", "c", "b"]])
    assert [event.id for event in app.events_of("queued")] == ["a", "b", "c"]
    for event in app.events_of("queued"):
        assert event.timestamp == Item.objects.get(uid=event.id).enqueued_at


def test_queued_is_told_also_of_an_item_that_is_admitted_at_once(app):
    enqueue("acct-42", {}, id="a")
    assert status("a").state == "admitted"
    assert [event.id for event in app.events_of("queued")] == ["a"]


def test_admitted_tells_how_long_an_item_has_waited(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    app.pass_time(seconds=90)
    release("a")

    (first, second) = app.events_of("admitted")
    assert (first.id, second.id) == ("a", "b")
    assert first.wait_ms < 90_000 <= second.wait_ms
    item = Item.objects.get(uid="b")
    assert second.timestamp == item.admitted_at
    assert second.wait_ms == (item.admitted_at - item.enqueued_at) // timedelta(milliseconds=1)


def test_a_clock_that_was_set_back_makes_no_negative_wait(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    app.pass_time(hours=-1)
    release("a")
    assert app.events_of("admitted")[1].wait_ms == 0


def test_released_and_cancelled_are_told_of_what_was_and_of_nothing_else(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    release_many(["a", "unknown", "b"])
    cancel("b")
    cancel("c")
    assert [event.id for event in app.events_of("released")] == ["a"]
    assert [event.id for event in app.events_of("cancelled")] == ["c"]


def test_blocked_tells_the_reason_and_how_many_wait_once_for_each_reason(app):
    app.configure(holder={"DEFAULT_LIMIT": 1})
    enqueue_many([{"key": "acct-42", "group": "exports", "body": {}} for _n in range(4)])
    enqueue("acct-42", {}, group="exports")
    semaphores.pause("acct-42")

    assert [(event.reason, event.count) for event in app.events_of("blocked")] == [("key_limit", 3), ("paused", 4)]
    assert {(event.key, event.group) for event in app.events_of("blocked")} == {("acct-42", "exports")}


def test_nothing_is_told_before_the_commit_and_nothing_of_what_was_rolled_back(app):
    with transaction.atomic():
        enqueue("acct-42", {}, id="a")
        assert app.events == []
    assert [event.id for event in app.events_of("queued")] == ["a"]

    app.events.clear()
    with rolled_back():
        enqueue("acct-42", {}, id="b")
        release("a")
    assert app.events == []


def test_receivers_see_what_is_committed(app):
    seen = []
    app.on_event = lambda event: seen.append((event.name, status("a") and status("a").state))
    enqueue("acct-42", {}, id="a")
    release("a")
    assert ("released", None) in seen
    assert ("admitted", "admitted") in seen


def test_a_receiver_that_raises_breaks_nothing(app):
    """(B70)"""
    app.on_event = raising(RuntimeError("no mail server"))
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    release("a")
    assert status("b").state == "admitted"
    assert [event.id for event in app.events_of("admitted")] == ["a", "b"]


def test_a_receiver_may_use_the_queue(app):
    app.on_event = lambda event: event.name == "admitted" and release(event.id)
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    assert sorted(event.id for event in app.events_of("released")) == ["a", "b", "c"]
