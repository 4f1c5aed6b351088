"""Enqueueing, releasing and cancelling: what is stored, what is refused, and that nothing is half done."""

import json

import pytest
from django.db import connection
from rest_framework.test import APIClient

from django_semq import queues, release, usage
from django_semq.api.views import ItemViewSet
from django_semq.models import Item, Nudge, State
from tests.factories import ItemFactory

pytestmark = pytest.mark.django_db

URL = "/semq/items/"
ITEM = {"key": "acct-42", "body": {"order": 7}}
LONG = "x" * 256


def post(client, body, url=URL):
    return client.post(url, body, format="json")


def post_text(client, text, url=URL, content_type="application/json"):
    return client.generic("POST", url, text, content_type=content_type)


def assert_refused(answer, status, error, field):
    assert answer.status_code == status, answer.content
    assert set(answer.json()) == {"error", "field", "detail"}
    assert (answer.json()["error"], answer.json()["field"]) == (error, field)
    assert answer.json()["detail"]
    assert not Item.objects.exists()
    assert not Nudge.objects.exists()


# ------------------------------------------------------------------------------------------------------------- one item


def test_a_new_item_is_created_and_has_an_address(operator):
    answer = post(operator, {**ITEM, "id": "order:7", "group": "exports"})
    assert answer.status_code == 201
    item = Item.objects.get()
    assert answer.json() == {"row": item.pk, "id": "order:7", "queue": "default", "created": True}
    assert answer.headers["Location"] == f"http://testserver/semq/items/{item.pk}/"
    shown = operator.get(answer.headers["Location"]).json()
    assert (shown["key"], shown["group"], shown["body"]) == ("acct-42", "exports", {"order": 7})


def test_a_known_id_is_answered_with_200_and_left_as_it_is(operator):
    first = post(operator, {**ITEM, "id": "order:7"})
    again = post(operator, {"key": "other", "group": "other", "body": "other", "id": "order:7"})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "created": False}
    assert again.headers["Location"] == first.headers["Location"]
    shown = operator.get(first.headers["Location"]).json()
    assert (shown["key"], shown["group"], shown["body"]) == ("acct-42", "", {"order": 7})


def test_an_item_without_an_id_gets_one(operator):
    one, other = post(operator, ITEM).json()["id"], post(operator, ITEM).json()["id"]
    assert one != other
    assert {item.uid for item in Item.objects.all()} == {one, other}


def test_an_item_is_admitted_once_it_is_committed(operator, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        location = post(operator, ITEM).headers["Location"]
    assert operator.get(location).json()["state"] == "admitted"


@pytest.mark.django_db(transaction=True)
def test_an_item_that_came_and_went_within_the_request_has_no_address(operator, monkeypatch):
    real = ItemViewSet._created

    def created(view, queue, uid, code):
        release(uid)
        return real(view, queue, uid, code)

    monkeypatch.setattr(ItemViewSet, "_created", created)
    answer = post(operator, {**ITEM, "id": "quick"})
    assert answer.status_code == 201
    assert answer.json() == {"row": None, "id": "quick", "queue": "default", "created": True}
    assert "Location" not in answer.headers


@pytest.mark.parametrize(
    "body",
    [
        None, {}, [], "", 0, False, "null", "true", -1.5, 2**70, "Zürich 🚀", "nul \0 inside",
        {"a": {"b": [1, None, {"": []}]}}, [[[]]],
    ],
)  # fmt: skip
def test_a_body_is_any_json_and_comes_back_equal(body, operator):
    location = post(operator, {"key": "acct-42", "body": body}).headers["Location"]
    shown = operator.get(location).json()["body"]
    assert shown == body
    assert type(shown) is type(body)


@pytest.mark.parametrize("uid", ["a/b", "../x", "50% & more? #1", "Zürich 🚀", " both ends ", "x" * 255, "🚀" * 255])
def test_any_text_is_an_id_a_key_and_a_group(uid, operator):
    answer = post(operator, {"key": uid, "group": uid, "id": uid, "body": 1})
    assert answer.status_code == 201
    shown = operator.get(answer.headers["Location"]).json()
    assert (shown["id"], shown["key"], shown["group"]) == (uid, uid, uid)
    assert post(operator, {"key": uid, "group": uid, "id": uid, "body": 1}).status_code == 200


# ----------------------------------------------------------------------------------------------------------------- many


def test_many_items_are_stored_in_their_order_and_known_ids_are_named(operator):
    post(operator, {**ITEM, "id": "b"})
    answer = post(operator, [{**ITEM, "id": uid} for uid in ("c", "b", "a", "c")])
    assert answer.status_code == 201
    assert answer.json() == {"queue": "default", "queued": ["c", "a"], "duplicates": ["b", "c"]}
    assert list(Item.objects.order_by("pk").values_list("uid", flat=True)) == ["b", "c", "a"]


def test_many_items_of_which_none_is_new_are_answered_with_200(operator):
    items = [{**ITEM, "id": "a"}, {**ITEM, "id": "b"}]
    assert post(operator, items).status_code == 201
    again = post(operator, items)
    assert again.status_code == 200
    assert again.json() == {"queue": "default", "queued": [], "duplicates": ["a", "b"]}


def test_no_items_are_nothing_new(operator):
    answer = post(operator, [])
    assert answer.status_code == 200
    assert answer.json() == {"queue": "default", "queued": [], "duplicates": []}


def test_a_thousand_items_are_taken_and_one_more_is_refused(operator):
    """(B110)"""
    assert_refused(post(operator, [ITEM] * 1001), 413, "too_large", "items")
    assert post(operator, [ITEM] * 1000).status_code == 201
    assert Item.objects.count() == 1000


def test_fifty_items_take_as_many_statements_as_one(operator, queries_of):
    one = queries_of(lambda: post(operator, [{**ITEM, "id": "first"}]))
    fifty = [{**ITEM, "id": f"order:{number}"} for number in range(50)]
    assert queries_of(lambda: post(operator, fifty)) == one


# ------------------------------------------------------------------------------------------------------------- refusals

WRONG = [
    ({"body": 1}, "key"),
    ({"key": "acct-42"}, "body"),
    ({}, "key"),
    ({**ITEM, "key": None}, "key"),
    ({**ITEM, "key": ""}, "key"),
    ({**ITEM, "key": 42}, "key"),
    ({**ITEM, "key": ["acct-42"]}, "key"),
    ({**ITEM, "key": "a\0b"}, "key"),
    ({**ITEM, "key": LONG}, "key"),
    ({**ITEM, "key": "half \ud800"}, "key"),
    ({**ITEM, "group": None}, "group"),
    ({**ITEM, "group": 0}, "group"),
    ({**ITEM, "group": "a\0b"}, "group"),
    ({**ITEM, "group": LONG}, "group"),
    ({**ITEM, "id": ""}, "id"),
    ({**ITEM, "id": 7}, "id"),
    ({**ITEM, "id": "a\0b"}, "id"),
    ({**ITEM, "id": LONG}, "id"),
    ({**ITEM, "priority": 1}, "priority"),
    ({**ITEM, "half \ud800": 1}, "half \\ud800"),
    ({**ITEM, "body": "half \ud800"}, "body"),
    ({**ITEM, "body": "x" * 2**20}, "body"),
]


@pytest.mark.parametrize(("item", "field"), WRONG)
def test_a_wrong_item_is_refused_with_the_field_named(item, field, operator):
    answer = post_text(operator, json.dumps(item))
    assert_refused(answer, 400, "invalid_item", field)
    assert "item 0" not in answer.json()["detail"]


@pytest.mark.parametrize(("item", "field"), WRONG)
def test_one_wrong_item_of_many_is_named_and_none_is_stored(item, field, operator):
    answer = post_text(operator, json.dumps([ITEM, ITEM, ITEM, item, ITEM]))
    assert_refused(answer, 400, "invalid_item", f"items[3].{field}")


@pytest.mark.parametrize("item", [None, "acct-42", 7, True, [ITEM]])
def test_an_item_is_an_object(item, operator):
    if not isinstance(item, list):
        assert_refused(post_text(operator, json.dumps(item)), 400, "invalid_item", None)
    assert_refused(post_text(operator, json.dumps([ITEM, item])), 400, "invalid_item", "items[1]")


def test_a_request_without_a_body_is_refused(operator):
    assert_refused(operator.post(URL), 400, "invalid_item", "key")


@pytest.mark.parametrize("body", ["1e400", "[1, -1e400]", "[" * 101 + "]" * 101])
def test_a_body_that_the_queue_cannot_hold_is_refused(body, operator):
    answer = post_text(operator, f'{{"key": "acct-42", "body": {body}}}')
    assert_refused(answer, 400, "invalid_item", "body")


@pytest.mark.parametrize(
    "text",
    [
        '{"key": "acct-42", "body": NaN}',
        '{"key": "acct-42", "body": {"a": [Infinity]}}',
        '{"key": "acct-42", "body": -Infinity}',
        '{"key": "acct-42", "body": ' + "[" * 20_000 + "]" * 20_000 + "}",
        '{"key": "acct-42", "body": ' + "7" * 100_000 + "}",
        '{"key": "acct-42", "body": 1',
        "key=acct-42",
        b'{"key": "\xff", "body": 1}',
    ],
    ids=["NaN", "Infinity", "-Infinity", "deep", "digits", "cut off", "form", "bytes"],
)
def test_what_is_no_json_is_refused(text, operator):
    answer = post_text(operator, text)
    assert_refused(answer, 400, "parse_error", None)
    assert len(answer.json()["detail"]) < 300


@pytest.mark.parametrize("content_type", ["application/x-www-form-urlencoded", "text/plain", "application/xml"])
def test_other_content_types_are_refused(content_type, operator):
    answer = post_text(operator, "key=acct-42&body=1", content_type=content_type)
    assert_refused(answer, 415, "unsupported_media_type", None)


def test_a_request_that_is_larger_than_the_project_allows_is_refused(operator, settings):
    """(B110)"""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 1000
    assert_refused(post(operator, {**ITEM, "body": "x" * 1000}), 413, "too_large", None)


def test_texts_of_refusals_say_what_to_do_and_stay_short(operator):
    detail = post(operator, {**ITEM, "key": "k" * 100_000}).json()["detail"]
    assert detail == f"key is '{'k' * 49}…: it has 100000 characters; give at most 255"


# --------------------------------------------------------------------------------------------------------------- queues


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("?queue=reports", ITEM),
        ("", {**ITEM, "queue": "reports"}),
        ("?queue=reports", {**ITEM, "queue": "reports"}),
        ("?queue=reports", [ITEM]),
        ("", [{**ITEM, "queue": "reports"}] * 2),
        ("?queue=reports", [ITEM, {**ITEM, "queue": "reports"}]),
    ],
)
@pytest.mark.usefixtures("two_queues")
def test_the_queue_is_named_by_the_address_or_by_the_items(query, body, operator):
    answer = post(operator, body, URL + query)
    assert answer.status_code == 201
    assert answer.json()["queue"] == "reports"
    assert set(Item.objects.values_list("queue", flat=True)) == {"reports"}


@pytest.mark.usefixtures("two_queues")
def test_the_same_id_in_two_queues_is_two_items(operator):
    here = post(operator, {**ITEM, "id": "a"})
    there = post(operator, {**ITEM, "id": "a", "queue": "reports"})
    assert (here.status_code, there.status_code) == (201, 201)
    assert Item.objects.get(pk=here.json()["row"]).queue == "default"
    assert Item.objects.get(pk=there.json()["row"]).queue == "reports"


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ("?queue=nowhere", ITEM, "queue"),
        ("?queue=", ITEM, "queue"),
        ("?queue=nowhere", [], "queue"),
        ("", {**ITEM, "queue": "nowhere"}, "queue"),
        ("", {**ITEM, "queue": None}, "queue"),
        ("", {**ITEM, "queue": ["reports"]}, "queue"),
        ("", {**ITEM, "queue": "a\0b"}, "queue"),
        ("", [{**ITEM, "queue": "nowhere"}], "items[0].queue"),
        ("", [ITEM, {**ITEM, "queue": "nowhere"}], "items[1].queue"),
        ("", [ITEM, {**ITEM, "queue": {}}], "items[1].queue"),
    ],
)
@pytest.mark.usefixtures("two_queues")
def test_an_unknown_queue_is_refused(query, body, field, operator):
    answer = post(operator, body, URL + query)
    assert_refused(answer, 400, "unknown_queue", field)
    assert "queue" in answer.json()["detail"]


def test_an_unknown_queue_is_refused_with_the_ones_there_are(operator):
    answer = post(operator, {**ITEM, "queue": "nowhere"})
    assert answer.json()["detail"] == "queue 'nowhere' is not configured; SEMQ['QUEUES'] has default"


@pytest.mark.parametrize(
    ("query", "body", "field"),
    [
        ("?queue=default", {**ITEM, "queue": "reports"}, "queue"),
        ("?queue=reports", [ITEM, {**ITEM, "queue": "default"}], "items[1].queue"),
        ("", [ITEM, {**ITEM, "queue": "reports"}], "items[1].queue"),
        ("", [{**ITEM, "queue": "reports"}, ITEM], "items[1].queue"),
    ],
)
@pytest.mark.usefixtures("two_queues")
def test_one_request_is_for_one_queue(query, body, field, operator):
    assert_refused(post(operator, body, URL + query), 400, "invalid_item", field)


# ---------------------------------------------------------------------------------------------- release one, cancel one


def test_a_released_item_is_gone_and_the_next_one_is_admitted(operator, enqueue, django_capture_on_commit_callbacks):
    first, second = enqueue("first"), enqueue("second")
    assert (first.state, second.state) == (State.ADMITTED, State.QUEUED)
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post(f"{URL}{first.pk}/release/")
    assert answer.status_code == 200
    assert answer.json() == {"queue": "default", "released": ["first"]}
    assert operator.get(f"{URL}{first.pk}/").status_code == 404
    assert operator.get(f"{URL}{second.pk}/").json()["state"] == "admitted"
    assert operator.post(f"{URL}{first.pk}/release/").status_code == 404


def test_a_cancelled_item_is_gone_and_waits_no_more(operator, enqueue, django_capture_on_commit_callbacks):
    enqueue("first")
    second = enqueue("second")
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post(f"{URL}{second.pk}/cancel/")
    assert answer.status_code == 200
    assert answer.json() == {"queue": "default", "cancelled": ["second"]}
    assert operator.get(f"{URL}{second.pk}/").status_code == 404
    assert operator.post(f"{URL}{second.pk}/cancel/").status_code == 404
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}


@pytest.mark.parametrize(
    ("state", "verb", "detail"),
    [
        ("queued", "release", "is queued; only one that is admitted can be released"),
        ("claiming", "release", "is claiming; only one that is admitted can be released"),
        ("admitted", "cancel", "is admitted; only one that is queued can be cancelled"),
        ("claiming", "cancel", "is claiming; only one that is queued can be cancelled"),
    ],
)
def test_an_item_in_another_state_is_refused_and_left_alone(state, verb, detail, operator):
    item = ItemFactory(**{state: True})
    answer = operator.post(f"{URL}{item.pk}/{verb}/")
    assert answer.status_code == 409
    assert answer.json() == {"error": "wrong_state", "field": "state", "detail": f"item {item.pk} {detail}"}
    assert operator.get(f"{URL}{item.pk}/").json()["state"] == state
    assert not Nudge.objects.exists()


@pytest.mark.usefixtures("two_queues")
def test_an_item_of_another_queue_is_ended_in_its_own(operator, enqueue):
    here, there = enqueue("a"), enqueue("a", queue="reports", key="acct-43")
    assert operator.post(f"{URL}{there.pk}/release/").json() == {"queue": "reports", "released": ["a"]}
    assert list(Item.objects.all()) == [here]


@pytest.mark.parametrize(("verb", "key"), [("release", "free"), ("cancel", "taken")])
def test_an_address_never_ends_another_item_that_has_the_id_by_then(verb, key, operator, enqueue, monkeypatch):
    enqueue("in the way", key="taken")
    item = enqueue("order:7", key=key)
    read = ItemViewSet.get_object

    def read_and_then_the_id_changes_hands(view):
        found = read(view)
        assert getattr(queues["default"], verb)("order:7")
        enqueue("order:7", key=key)
        return found

    monkeypatch.setattr(ItemViewSet, "get_object", read_and_then_the_id_changes_hands)
    answer = operator.post(f"{URL}{item.pk}/{verb}/")
    assert answer.status_code == 404
    assert Item.objects.get(uid="order:7").pk > item.pk


# ---------------------------------------------------------------------------------------------- release and cancel many


def test_of_many_ids_the_admitted_ones_are_released(operator, enqueue):
    for uid in ("a/1", "b", "Zürich 🚀"):
        enqueue(uid, key=uid)
    enqueue("waits", key="b")
    ids = ["Zürich 🚀", "unknown", "waits", "a/1", "a/1"]
    answer = post(operator, {"ids": ids}, f"{URL}release/")
    assert answer.status_code == 200
    assert answer.json() == {"queue": "default", "released": ["Zürich 🚀", "a/1"]}
    assert set(Item.objects.values_list("uid", flat=True)) == {"b", "waits"}
    assert post(operator, {"ids": ids}, f"{URL}release/").json() == {"queue": "default", "released": []}


def test_of_many_ids_the_queued_ones_are_cancelled(operator, enqueue):
    for uid in ("runs", "a/1", "b"):
        enqueue(uid)
    answer = post(operator, {"ids": ["b", "runs", "unknown", "a/1"]}, f"{URL}cancel/")
    assert answer.status_code == 200
    assert answer.json() == {"queue": "default", "cancelled": ["b", "a/1"]}
    assert list(Item.objects.values_list("uid", flat=True)) == ["runs"]


@pytest.mark.parametrize(("query", "more"), [("?queue=reports", {}), ("", {"queue": "reports"})])
@pytest.mark.usefixtures("two_queues")
def test_ids_are_looked_for_in_the_queue_that_is_named(query, more, operator, enqueue):
    enqueue("a")
    enqueue("a", queue="reports", key="acct-43")
    answer = post(operator, {"ids": ["a"], **more}, f"{URL}release/{query}")
    assert answer.json() == {"queue": "reports", "released": ["a"]}
    assert list(Item.objects.values_list("queue", flat=True)) == ["default"]


@pytest.mark.parametrize("verb", ["release", "cancel"])
@pytest.mark.parametrize(
    ("body", "status", "error", "field"),
    [
        ({}, 400, "invalid", "ids"),
        ([], 400, "invalid", "ids"),
        (["a"], 400, "invalid", "ids"),
        ("a", 400, "invalid", "ids"),
        (None, 400, "invalid", "ids"),
        ({"ids": "a"}, 400, "invalid", "ids"),
        ({"ids": None}, 400, "invalid", "ids"),
        ({"ids": {"a": 1}}, 400, "invalid", "ids"),
        ({"ids": ["a", 7]}, 400, "invalid", "ids[1]"),
        ({"ids": [["a"]]}, 400, "invalid", "ids[0]"),
        ({"ids": [None]}, 400, "invalid", "ids[0]"),
        ({"ids": [""]}, 400, "invalid", "ids[0]"),
        ({"ids": ["a\0b"]}, 400, "invalid", "ids[0]"),
        ({"ids": [LONG]}, 400, "invalid", "ids[0]"),
        ({"ids": ["half \ud800"]}, 400, "invalid", "ids[0]"),
        ({"ids": ["a"], "id": "b"}, 400, "invalid", "id"),
        ({"ids": ["a"], "queue": "nowhere"}, 400, "unknown_queue", "queue"),
        ({"ids": ["a"], "queue": 7}, 400, "unknown_queue", "queue"),
        ({"ids": ["a"] * 1001}, 413, "too_large", "ids"),
    ],
)
def test_ids_that_are_none_are_refused(verb, body, status, error, field, operator):
    assert_refused(post_text(operator, json.dumps(body), f"{URL}{verb}/"), status, error, field)


def test_a_thousand_ids_are_taken(operator):
    ids = [f"order:{number}" for number in range(1000)]
    assert post(operator, {"ids": ids}, f"{URL}release/").json() == {"queue": "default", "released": []}


def test_releasing_many_takes_as_many_statements_as_releasing_one(operator, enqueue, queries_of):
    for number in range(21):
        enqueue(f"order:{number}", key=f"acct-{number}")
    ids = [f"order:{number}" for number in range(21)]
    one = queries_of(lambda: post(operator, {"ids": ids[:1]}, f"{URL}release/"))
    assert queries_of(lambda: post(operator, {"ids": ids[1:]}, f"{URL}release/")) == one
    assert not Item.objects.exists()


# --------------------------------------------------------------------------------------------------------- transactions


@pytest.fixture(params=[False, True], ids=["autocommit", "atomic requests"])
def atomic_requests(request, monkeypatch):
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)
    return request.param


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("atomic_requests")
def test_an_item_lives_its_life_in_committed_requests(operator):
    assert_refused(post(operator, [ITEM, {**ITEM, "key": ""}]), 400, "invalid_item", "items[1].key")
    first, second = (post(operator, {**ITEM, "id": uid}).headers["Location"] for uid in ("first", "second"))
    assert operator.get(first).json()["state"] == "admitted"
    assert operator.get(second).json()["state"] == "queued"
    assert operator.post(f"{first}cancel/").status_code == 409
    assert operator.post(f"{first}release/").status_code == 200
    assert operator.get(second).json()["state"] == "admitted"
    assert post(operator, {"ids": ["first", "second"]}, f"{URL}release/").json()["released"] == ["second"]
    assert not Item.objects.exists()
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}


@pytest.mark.django_db(transaction=True)
def test_what_a_request_stored_goes_with_its_transaction(atomic_requests, operator, monkeypatch):
    def fail(view, queue, uid, code):
        raise RuntimeError("a fault after the item was stored")

    monkeypatch.setattr(ItemViewSet, "_created", fail)
    operator.raise_request_exception = False
    assert post(operator, ITEM).status_code == 500
    assert Item.objects.exists() is not atomic_requests


def test_a_page_can_enqueue_with_its_session_and_csrf_token(operator):
    client = APIClient(enforce_csrf_checks=True)
    client.cookies = operator.cookies
    client.get("/admin/login/")
    token = client.cookies["csrftoken"].value
    answer = client.generic(
        "POST", URL, json.dumps(ITEM), content_type="application/json; charset=utf-8", HTTP_X_CSRFTOKEN=token
    )
    assert answer.status_code == 201


def test_a_task_cannot_be_made_from_outside(operator: APIClient, two_queues: None) -> None:
    """Its body names the function to run: whoever could write it could run anything."""
    body = {"func": "os.system", "args": ["true"], "kwargs": {}, "q_options": {}}
    response = operator.post(URL, {"key": "k", "body": body, "queue": "tasks"}, format="json")
    assert_refused(response, 409, "tasks_only", "queue")
    assert not Item.objects.exists()
