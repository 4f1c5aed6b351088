from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from django_semq import clock, enqueue, semaphores, status, usage
from django_semq.admin import queue as pages
from django_semq.models import Item, Key, KeyGroup, State
from django_semq.queue import items as verbs
from tests import factories
from tests.admin.conftest import logged, messages_of

LIST = "admin:django_semq_item_changelist"

Fixture = Callable[..., Any]


def page(client: Client, item: Item) -> str:
    return client.get(reverse("admin:django_semq_item_change", args=[item.pk])).text


@pytest.fixture
def queue_up(committed: Fixture) -> Callable[..., list[Item]]:
    """Enqueue items of the key in this order; what fits its limit of 1 is admitted. Returns the rows."""

    def queue_up(*ids: str, key: str = "acct-42") -> list[Item]:
        for id in ids:
            committed(enqueue, key, {"n": id}, id=id)
        return [Item.objects.get(uid=id) for id in ids]

    return queue_up


# ------------------------------------------------------------------------------------------------------- why it waits


def test_list_and_page_say_why_an_item_waits_and_since_when(operator: Client, queue_up: Fixture) -> None:
    running, waiting = queue_up("first", "second")
    KeyGroup.objects.update(blocked_at=datetime(2026, 1, 5, 12, 34, tzinfo=UTC))
    assert "key_limit" in operator.get(reverse(LIST)).text
    text = page(operator, waiting)
    assert "key_limit: the limit of the key is reached" in text
    assert "Jan. 5, 2026, 6:34 a.m." in text  # the tests' time zone
    assert "key_limit" not in page(operator, running)


def test_a_paused_key_is_the_reason(operator: Client, committed: Fixture, queue_up: Fixture) -> None:
    committed(semaphores.pause, "acct-42")
    (waiting,) = queue_up("only")
    assert "paused: paused by an operator" in page(operator, waiting)


def test_an_item_whose_key_is_set_aside_shows_the_error(operator: Client, queue_up: Fixture) -> None:
    _running, waiting = queue_up("first", "second")
    Key.objects.update(set_aside_until=clock.now() + timedelta(minutes=5), error="RuntimeError: it <broke>")
    assert "key set aside" in operator.get(reverse(LIST)).text
    text = page(operator, waiting)
    assert "RuntimeError: it &lt;broke&gt;" in text
    assert "key_limit" not in text


def test_a_key_that_was_set_aside_once_is_no_reason_any_more(operator: Client, queue_up: Fixture) -> None:
    _running, waiting = queue_up("first", "second")
    Key.objects.update(set_aside_until=clock.now() - timedelta(seconds=1), error="RuntimeError: it broke")
    assert "it broke" not in page(operator, waiting)


def test_a_page_shows_the_attempts_and_the_last_error(operator: Client) -> None:
    item = factories.ItemFactory(admitted=True, attempt=17, last_error="ConnectionError: no route")
    assert "ConnectionError: no route" in operator.get(reverse(LIST)).text
    text = page(operator, item)
    assert "ConnectionError: no route" in text
    assert '<div class="readonly">17</div>' in text


def test_a_page_leads_to_the_key_and_the_grant(operator: Client, queue_up: Fixture) -> None:
    (running,) = queue_up("only")
    text = page(operator, running)
    for row in ("key", Key.objects.get().pk), ("grant", running.grant_id):
        assert f'href="/admin/django_semq/{row[0]}/{row[1]}/change/"' in text


def test_a_key_leads_to_its_items_groups_and_semaphore(operator: Client, queue_up: Fixture) -> None:
    queue_up("only", key="a&b c")
    key = Key.objects.get()
    response = operator.get(reverse("admin:django_semq_key_change", args=[key.pk]))
    assert 'href="/admin/django_semq/item/?queue=default&amp;key=a%26b+c"' in response.text
    assert "/admin/django_semq/keygroup/?queue=default" in response.text
    assert "/admin/django_semq/semaphore/" in response.text


def test_a_key_shows_how_many_items_wait_and_run(operator: Client, queue_up: Fixture) -> None:
    queue_up("one", "two", "three")
    (row,) = operator.get(reverse("admin:django_semq_key_changelist")).context["cl"].result_list
    assert (row.sum_queued, row.sum_admitted) == (2, 1)


# ------------------------------------------------------------------------------------------------- release and cancel


def test_release_asks_first_and_does_nothing_before(operator: Client, queue_up: Fixture) -> None:
    (running,) = queue_up("only")
    question = operator.post(reverse(LIST), {"action": "release_items", "_selected_action": [running.pk]})
    assert question.status_code == 200
    assert "only" in question.text
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}
    assert logged() == []


def test_release_gives_the_permit_to_the_next_item(operator: Client, act: Fixture, queue_up: Fixture) -> None:
    running, _waiting = queue_up("first", "second")
    response = act(operator, "release_items", running)
    assert status("first") is None
    assert status("second").state == "admitted"
    assert messages_of(response) == ["Released: 1."]
    assert logged() == [("first", "Released.")]


def test_cancel_removes_what_waits(operator: Client, act: Fixture, queue_up: Fixture) -> None:
    _running, second, third = queue_up("first", "second", "third")
    response = act(operator, "cancel_items", second, third)
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}
    assert messages_of(response) == ["Cancelled: 2."]
    assert logged() == [("second", "Cancelled."), ("third", "Cancelled.")]


def test_an_action_says_how_many_it_passed_over_and_why(operator: Client, act: Fixture, queue_up: Fixture) -> None:
    """(B65)"""
    running, waiting, gone = queue_up("first", "second", "third")
    act(operator, "cancel_items", gone)
    assert messages_of(act(operator, "cancel_items", running, waiting, gone)) == [
        "Cancelled: 1.",
        "Passed over, gone or changed meanwhile: 1.",
        "Passed over, no longer queued: 1.",
    ]
    (other,) = queue_up("fourth")
    assert messages_of(act(operator, "release_items", other)) == [
        "Released: 0.",
        "Passed over, without a permit: 1.",
    ]
    assert status("first").state == "admitted"
    assert status("fourth").state == "queued"


def test_a_claiming_item_is_neither_released_nor_cancelled(operator: Client, act: Fixture) -> None:
    item = factories.ItemFactory(claiming=True)
    act(operator, "release_items", item)
    act(operator, "cancel_items", item)
    assert Item.objects.get().state == State.CLAIMING
    assert logged() == []


def test_an_item_handed_over_again_meanwhile_is_passed_over(
    operator: Client, act: Fixture, queue_up: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (running,) = queue_up("only")
    lock_by_id = verbs.lock_by_id

    def handed_over_first(*args: Any, **kwargs: Any) -> Any:
        Item.objects.update(attempt=5)
        return lock_by_id(*args, **kwargs)

    monkeypatch.setattr(verbs, "lock_by_id", handed_over_first)
    response = act(operator, "release_items", running)
    assert messages_of(response) == ["Released: 0.", "Passed over, gone or changed meanwhile: 1."]
    assert status("only").state == "admitted"


def test_an_id_that_belongs_to_another_item_by_now_is_not_cancelled(
    operator: Client, act: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = factories.ItemFactory(uid="same")
    lock_by_id = pages.lock_by_id

    def enqueued_again_first(*args: Any, **kwargs: Any) -> Any:
        Item.objects.filter(pk=chosen.pk).delete()
        factories.ItemFactory(uid="same")
        return lock_by_id(*args, **kwargs)

    monkeypatch.setattr(pages, "lock_by_id", enqueued_again_first)
    response = act(operator, "cancel_items", chosen)
    assert messages_of(response) == ["Cancelled: 0.", "Passed over, gone or changed meanwhile: 1."]
    assert Item.objects.get().pk != chosen.pk


def test_items_of_a_queue_that_is_no_longer_configured_are_passed_over(operator: Client, act: Fixture) -> None:
    stray = factories.ItemFactory(queue="removed")
    assert messages_of(act(operator, "cancel_items", stray)) == [
        "Cancelled: 0.",
        "Passed over, of a queue that is not in SEMQ['QUEUES']: 1.",
    ]
    assert Item.objects.get() == stray


def test_items_of_several_queues_are_acted_on_at_once(
    operator: Client, act: Fixture, settings: Any, committed: Fixture
) -> None:
    settings.SEMQ = {"QUEUES": {"default": {}, "reports": {}}}
    items = [factories.ItemFactory(uid="same"), factories.ItemFactory(uid="same", queue="reports")]
    assert messages_of(act(operator, "cancel_items", *items)) == ["Cancelled: 2."]
    assert logged() == [("same", "Cancelled."), ("same", "Cancelled.")]


def test_an_action_on_the_whole_list_keeps_to_its_filters(
    operator: Client, committed: Fixture, queue_up: Fixture
) -> None:
    _running, waiting = queue_up("first", "second")
    queue_up("elsewhere 1", "elsewhere 2", key="other")
    url = reverse(LIST) + "?key=acct-42&state=queued"
    answer = {"action": "cancel_items", "select_across": "1", "_selected_action": [waiting.pk], "index": "0"}
    question = operator.post(url, answer)
    assert 'name="select_across" value="1"' in question.text
    del answer["index"]
    response = committed(operator.post, url, {**answer, "confirmed": "yes"}, follow=True)
    assert messages_of(response) == ["Cancelled: 1."]
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 2}


def test_an_action_on_the_whole_list_reaches_as_far_as_the_list(
    operator: Client, committed: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "LISTED", 2)
    items = [factories.ItemFactory(uid=f"{n}") for n in range(4)]
    answer = {"action": "cancel_items", "select_across": "1", "_selected_action": [items[0].pk], "confirmed": "yes"}
    committed(operator.post, reverse(LIST), answer)
    assert [item.uid for item in Item.objects.order_by("pk")] == ["2", "3"]


def test_the_question_names_twenty_items_and_counts_the_others(operator: Client) -> None:
    items = [factories.ItemFactory(uid=f"id-{n}") for n in range(25)]
    answer = {"action": "cancel_items", "_selected_action": [item.pk for item in items]}
    text = operator.post(reverse(LIST), answer).text
    assert "id-19<" in text
    assert "id-20<" not in text
    assert "and 5 more" in text


@pytest.mark.parametrize("action", ["release_items", "cancel_items"])
def test_without_the_change_permission_an_action_does_nothing(
    client_with: Callable[..., Client], act: Fixture, action: str
) -> None:
    reader = client_with("view_item", "change_semaphore")
    items = [factories.ItemFactory(admitted=True), factories.ItemFactory()]
    act(reader, action, *items)
    assert list(Item.objects.order_by("pk")) == items
    assert LogEntry.objects.count() == 0
    ask = reverse("admin:django_semq_item_ask", args=[items[0].pk, action])
    assert reader.get(ask).status_code == 403


def test_the_change_permission_is_enough_for_an_action(
    client_with: Callable[..., Client], act: Fixture, queue_up: Fixture
) -> None:
    (running,) = queue_up("only")
    act(client_with("change_item"), "release_items", running)
    assert status("only") is None
    assert LogEntry.objects.get().user.username == "staff"


def test_a_page_offers_what_its_item_allows(operator: Client) -> None:
    offers = {
        state: [action for action in ("release_items", "cancel_items") if f"/ask/{action}/" in page(operator, item)]
        for state in ("queued", "claiming", "admitted")
        for item in [factories.ItemFactory(**{state: True})]
    }
    assert offers == {"queued": ["cancel_items"], "claiming": [], "admitted": ["release_items"]}


def test_the_question_of_a_page_acts_through_the_list(operator: Client, committed: Fixture, queue_up: Fixture) -> None:
    (running,) = queue_up("only")
    url = reverse("admin:django_semq_item_ask", args=[running.pk, "release_items"])
    question = operator.get(url, {"confirmed": "yes"})
    assert f'action="{reverse(LIST)}"' in question.text
    assert f'name="_selected_action" value="{running.pk}"' in question.text
    assert status("only").state == "admitted"
    assert operator.post(url, {"confirmed": "yes"}).status_code == 405
    assert operator.get(reverse("admin:django_semq_item_ask", args=[running.pk, "delete_selected"])).status_code == 403
    assert operator.get(reverse("admin:django_semq_item_ask", args=[0, "release_items"])).status_code == 404


def test_an_action_needs_the_csrf_token(queue_up: Fixture, operator: Client, admin_user: Any) -> None:
    (running,) = queue_up("only")
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(admin_user)
    answer = {"action": "release_items", "_selected_action": [running.pk], "confirmed": "yes"}
    assert strict.post(reverse(LIST), answer).status_code == 403
    assert status("only").state == "admitted"
