"""Taking back what still waits."""

import pytest

from django_semq import InvalidItem, cancel, enqueue, enqueue_many, release, status, usage
from django_semq.queue.items import queues
from tests.factories import ItemFactory

cancel_many = queues["default"].cancel_many


def test_a_queued_item_is_cancelled_once_and_never_handed_over(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    assert cancel("b") is True
    assert cancel("b") is False
    assert status("b") is None

    release("a")
    assert status("c").state == "admitted"
    app.tick()
    assert app.admitted == ["c"]


def test_only_a_queued_item_can_be_cancelled(app):
    enqueue("acct-42", {}, id="admitted")
    app.counters_agree = False
    ItemFactory(uid="claiming", claiming=True)
    for uid in ["admitted", "claiming", "unknown", "", None]:
        assert cancel(uid) is False
    assert status("admitted").state == "admitted"
    assert status("claiming").state == "claiming"
    assert not app.events_of("cancelled")


def test_many_are_cancelled_in_one_call_and_told_in_input_order(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abcd"])
    assert cancel_many(["d", "a", "unknown", "b", "d"]) == ["d", "b"]
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 1}
    with pytest.raises(InvalidItem, match="give a list of ids"):
        cancel_many("c")


def test_a_cancelled_item_leaves_no_demand_behind(app):
    """Else the holder would go on keeping a part for it."""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="a")
    cancel("a")

    app.configure(holder={"DEFAULT_LIMIT": 1}, queues=["default", "reports"])
    queues["reports"].enqueue("acct-42", {}, id="b")
    assert queues["reports"].status("b").state == "admitted"
