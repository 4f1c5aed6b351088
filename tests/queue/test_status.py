"""What a queue says of an item, and of itself."""

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_semq import cancel, clock, enqueue, enqueue_many, release, semaphores, status, usage
from django_semq.models import Item, KeyGroup, Nudge, State
from django_semq.queue.items import ItemStatus
from tests.factories import NOON, ItemFactory, KeyGroupFactory


def test_an_unknown_item_has_no_status(app):
    for uid in ["unknown", "", "x" * 300, "nul\0", None]:
        assert status(uid) is None


def test_a_queued_item_says_since_when_and_why_it_waits(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    before = clock.now()
    enqueue("acct-42", {}, id="a")

    said = status("a")

    assert (said.state, said.admitted_at, said.blocked) == ("queued", None, "key_limit")
    assert before <= said.enqueued_at <= clock.now()


def test_a_claiming_item_says_since_when_it_is_here(app):
    app.counters_agree = False
    ItemFactory(uid="a", claiming=True)
    KeyGroupFactory(blocked=True)
    assert status("a") == ItemStatus("claiming", NOON, None, None)


def test_an_admitted_item_says_since_when_and_is_never_blocked(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    item = Item.objects.get(uid="a")
    assert status("a") == ItemStatus("admitted", item.enqueued_at, item.admitted_at, None)
    assert status("b").blocked == "key_limit"


def test_an_item_admitted_nobody_knows_when_counts_from_its_arrival(app):
    app.counters_agree = False
    ItemFactory(uid="a", admitted=True, admitted_at=None)
    assert status("a").admitted_at == NOON
    app.tick()
    assert app.batches[0][0].admitted_at == NOON


def test_an_item_that_nobody_looked_at_yet_waits_for_no_known_reason(app):
    app.counters_agree = False
    ItemFactory(uid="a")
    assert status("a") == ItemStatus("queued", NOON, None, None)


def test_the_reason_is_that_of_the_item_s_own_key_and_group(app):
    app.configure(holder={"RULES": {"acct-*": {"limit": 10, "groups": {"exports": 0}}}})
    semaphores.pause("other")
    for uid, key, group in [("a", "acct-1", "exports"), ("b", "acct-1", "Exports"), ("c", "other", "exports")]:
        enqueue(key, {}, group=group, id=uid)
    assert status("a").blocked == "group_limit"
    assert status("b").state == "admitted"
    assert status("c").blocked == "paused"


def test_why_a_group_waits_outlives_the_process_and_goes_with_its_items(app):
    """It is a column, not a memory; and nothing of it is left for the items that come later."""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="a")
    assert KeyGroup.objects.get().blocked_reason == "key_limit"
    cancel("a")
    assert not KeyGroup.objects.exists()

    semaphores.set_limit("acct-42", 1)
    enqueue("acct-42", {}, id="b")
    assert KeyGroup.objects.get().blocked_reason == ""


def test_usage_has_all_three_counts_also_when_there_is_nothing(app):
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}


def test_usage_counts_over_all_keys_and_groups(app):
    enqueue_many([{"key": key, "group": group, "body": {}} for key in "xy" for group in "gh" for _n in range(2)])
    assert usage() == {"queued": 6, "claiming": 0, "admitted": 2}
    KeyGroup.objects.filter(key__name="x", admitted=1).update(claiming=2)
    app.counters_agree = False
    assert usage()["claiming"] == 2


def test_usage_counts_what_is_not_folded_yet_in_one_statement(app):
    app.configure(holder={"DEFAULT_LIMIT": 2})
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abcd"])
    with transaction.atomic():
        enqueue("acct-42", {}, id="e")
        release("a")
        cancel("d")
        assert Nudge.objects.count() == 3
        with CaptureQueriesContext(connection) as queries:
            assert usage() == {"queued": 2, "claiming": 0, "admitted": 1}
        assert len(queries) == 1


@pytest.mark.parametrize("state", State)
def test_a_status_is_one_statement(app, state):
    app.counters_agree = False
    ItemFactory(uid="a", state=state)
    with CaptureQueriesContext(connection) as queries:
        assert status("a").state == state.name.lower()
    assert len(queries) == 1
