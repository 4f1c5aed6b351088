"""Looking at items: pages, filters, what is shown."""

from base64 import b64encode
from datetime import datetime

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_semq.models import Item
from tests.factories import ItemFactory, KeyGroupFactory

pytestmark = pytest.mark.django_db

URL = "/semq/items/"


def ids_of(answer):
    assert answer.status_code == 200, answer.json()
    return [item["id"] for item in answer.json()["results"]]


def cursor(text):
    return b64encode(text.encode()).decode()


def test_names_and_addresses_are_what_front_ends_were_told():
    assert reverse("django_semq:item-list") == "/semq/items/"
    assert reverse("django_semq:item-detail", args=[1234]) == "/semq/items/1234/"
    assert reverse("django_semq:item-release", args=[1234]) == "/semq/items/1234/release/"
    assert reverse("django_semq:item-cancel", args=[1234]) == "/semq/items/1234/cancel/"
    assert reverse("django_semq:item-release-many") == "/semq/items/release/"
    assert reverse("django_semq:item-cancel-many") == "/semq/items/cancel/"


# ------------------------------------------------------------------------------------------------------------- one item


def test_an_item_shows_all_that_is_known_of_it(operator):
    item = ItemFactory(handed_over_once=True, uid="order:7", group="exports", body='{"order":7}', last_error="it broke")
    answer = operator.get(f"{URL}{item.pk}/")
    assert answer.status_code == 200
    shown = answer.json()
    assert datetime.fromisoformat(shown.pop("enqueued_at")) == item.enqueued_at
    assert datetime.fromisoformat(shown.pop("admitted_at")) == item.admitted_at
    assert shown == {
        "row": item.pk,
        "id": "order:7",
        "queue": "default",
        "key": "acct-42",
        "group": "exports",
        "body": {"order": 7},
        "state": "admitted",
        "blocked": None,
        "handed_over": True,
        "started": False,
        "attempt": 1,
        "last_error": "it broke",
        "grant": item.grant_id,
        "lease": None,
    }


def test_a_list_leaves_the_bodies_in_the_database(operator):
    """(B83)"""
    item = ItemFactory()
    with CaptureQueriesContext(connection) as queries:
        (shown,) = operator.get(URL).json()["results"]
    assert "body" not in shown
    assert shown["row"] == item.pk
    assert not [query["sql"] for query in queries if "body" in query["sql"]]


def test_a_body_that_is_no_json_is_shown_as_it_is(operator):
    item = ItemFactory(body="{broken by hand")
    assert operator.get(f"{URL}{item.pk}/").json()["body"] == "{broken by hand"


@pytest.mark.parametrize("row", ["99999999", "9" * 30, "9" * 5000, "order:7", "-1", "a%2Fb"])
def test_a_row_that_does_not_exist_is_not_found(row, operator):
    ItemFactory(uid="order:7")
    assert operator.get(f"{URL}{row}/").status_code == 404


def test_not_found_has_the_common_shape(operator):
    answer = operator.get(f"{URL}99999999/")
    assert answer.status_code == 404
    assert answer.json()["error"] == "not_found"
    assert answer.json()["field"] is None


@pytest.mark.parametrize(
    "uid", ["a/b", "a/b/release/", "../x", "50% & more? #1", "Zürich", "🚀 🚀", "trailing ", "release", "1234"]
)
def test_any_id_finds_its_item_and_its_row_is_its_address(uid, operator):
    item = ItemFactory(uid=uid)
    ItemFactory(uid=uid.upper() + ".")
    ItemFactory(uid=uid + " ")
    (found,) = operator.get(URL, {"id": uid}).json()["results"]
    assert found["row"] == item.pk
    assert operator.get(f"{URL}{found['row']}/").json()["id"] == uid


# --------------------------------------------------------------------------------------------------------- why it waits


def test_a_queued_item_says_why_it_waits(operator, enqueue):
    enqueue("first")
    enqueue("second")
    shown = {item["id"]: item for item in operator.get(URL).json()["results"]}
    assert (shown["first"]["state"], shown["first"]["blocked"]) == ("admitted", None)
    assert (shown["second"]["state"], shown["second"]["blocked"]) == ("queued", "key_limit")
    assert operator.get(f"{URL}{shown['second']['row']}/").json()["blocked"] == "key_limit"


@pytest.mark.usefixtures("two_queues")
def test_the_reason_is_that_of_its_own_queue_key_and_group(operator):
    KeyGroupFactory(blocked=True, name="a")
    KeyGroupFactory(key__name="acct-43", name="b", blocked_reason="paused")
    KeyGroupFactory(key__queue="reports", name="c", blocked_reason="fair_share")
    KeyGroupFactory(key__queue="reports", name="moves on")
    for queue, key, group in [
        ("default", "acct-42", "a"),
        ("default", "acct-42", "b"),
        ("default", "acct-43", "b"),
        ("default", "acct-42", "c"),
        ("reports", "acct-42", "c"),
        ("reports", "acct-42", "moves on"),
    ]:
        ItemFactory(queue=queue, key=key, group=group)
    reasons = [item["blocked"] for item in operator.get(URL).json()["results"]]
    assert reasons == ["key_limit", None, "paused", None, "fair_share", None]


def test_a_list_takes_as_many_statements_for_many_items_as_for_one(operator, queries_of):
    def add(number):
        ItemFactory(key=f"key {number}")
        ItemFactory(key=f"key {number}", admitted=True)
        KeyGroupFactory(key__name=f"key {number}", blocked=True)

    add(0)
    few = queries_of(lambda: operator.get(URL))
    for number in range(1, 20):
        add(number)
    assert queries_of(lambda: operator.get(URL)) == few
    assert [item["blocked"] for item in operator.get(URL).json()["results"]] == ["key_limit", None] * 20


# ---------------------------------------------------------------------------------------------------------------- pages


def test_pages_stay_as_they_were_while_items_come_and_go(operator):
    items = [ItemFactory(uid=f"order:{number}") for number in range(5)]
    first = operator.get(URL, {"page_size": 2})
    assert ids_of(first) == ["order:0", "order:1"]
    ItemFactory(uid="late")
    Item.objects.filter(pk=items[0].pk).delete()
    second = operator.get(first.json()["next"])
    assert ids_of(second) == ["order:2", "order:3"]
    ItemFactory(uid="later")
    third = operator.get(second.json()["next"])
    assert ids_of(third) == ["order:4", "late"]
    last = operator.get(third.json()["next"])
    assert ids_of(last) == ["later"]
    assert last.json()["next"] is None
    assert ids_of(operator.get(last.json()["previous"])) == ["order:4", "late"]


def test_pages_keep_the_filters(operator):
    for number in range(6):
        ItemFactory(uid=f"order:{number}", key=f"acct-{number % 2}")
    first = operator.get(URL, {"key": "acct-1", "page_size": 2})
    assert ids_of(first) == ["order:1", "order:3"]
    assert ids_of(operator.get(first.json()["next"])) == ["order:5"]


def test_a_page_has_a_hundred_items_and_a_thousand_at_most(operator):
    ItemFactory.create_batch(101)
    assert len(operator.get(URL).json()["results"]) == 100
    assert len(operator.get(URL, {"page_size": 101}).json()["results"]) == 101
    Item.objects.bulk_create(ItemFactory.build_batch(900))
    assert len(operator.get(URL, {"page_size": 1_000_000}).json()["results"]) == 1000


@pytest.mark.parametrize("text", ["", "o=5", "p=abc", "p=1%00", "p=" + "9" * 5000, "p=1&o=-1", "p=1&r=x"])
def test_a_cursor_that_was_never_given_is_refused(text, operator):
    answer = operator.get(URL, {"cursor": cursor(text)})
    assert answer.status_code == 400
    assert (answer.json()["error"], answer.json()["field"]) == ("invalid_filter", "cursor")


@pytest.mark.parametrize("text", ["rubbish", "ü", "\0", "%"])
def test_a_cursor_that_is_none_is_refused(text, operator):
    answer = operator.get(URL, {"cursor": text})
    assert answer.status_code == 400
    assert answer.json()["field"] == "cursor"


def test_a_cursor_beyond_all_rows_finds_nothing(operator):
    ItemFactory()
    assert ids_of(operator.get(URL, {"cursor": cursor("p=" + "9" * 30)})) == []


# -------------------------------------------------------------------------------------------------------------- filters


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["a", "b", "c", "d", "e"]),
        ({"queue": "default"}, ["a", "b", "c", "d"]),
        ({"queue": "reports"}, ["e"]),
        ({"key": "acct-42"}, ["a", "b", "c", "e"]),
        ({"key": "ACCT-42"}, []),
        ({"key": "acct-42 "}, []),
        ({"group": ""}, ["a", "d"]),
        ({"group": "exports"}, ["b", "c", "e"]),
        ({"state": "queued"}, ["a", "d", "e"]),
        ({"state": "claiming"}, ["b"]),
        ({"state": "admitted"}, ["c"]),
        ({"key": "acct-42", "state": "queued"}, ["a", "e"]),
        ({"key": "acct-42", "group": "exports", "state": "admitted"}, ["c"]),
        ({"queue": "default", "key": "acct-42", "group": "exports"}, ["b", "c"]),
        ({"queue": "reports", "key": "acct-42", "group": "exports", "state": "queued"}, ["e"]),
        ({"queue": "reports", "state": "admitted"}, []),
        ({"id": "b"}, ["b"]),
        ({"id": "b", "queue": "reports"}, []),
        ({"id": "B"}, []),
    ],
)
@pytest.mark.usefixtures("two_queues")
def test_filters_are_exact_and_all_of_them_hold(filters, found, operator):
    ItemFactory(uid="a")
    ItemFactory(uid="b", group="exports", claiming=True)
    ItemFactory(uid="c", group="exports", admitted=True)
    ItemFactory(uid="d", key="acct-43")
    ItemFactory(uid="e", group="exports", queue="reports")
    assert ids_of(operator.get(URL, filters)) == found


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("queue", "nowhere", "unknown_queue"),
        ("queue", "", "unknown_queue"),
        ("queue", "a\0b", "unknown_queue"),
        ("state", "waiting", "invalid_filter"),
        ("state", "0", "invalid_filter"),
        ("state", "", "invalid_filter"),
        ("state", "QUEUED", "invalid_filter"),
        ("key", "", "invalid_filter"),
        ("key", "a\0b", "invalid_filter"),
        ("key", "k" * 256, "invalid_filter"),
        ("key", "k" * 100_000, "invalid_filter"),
        ("group", "a\0b", "invalid_filter"),
        ("group", "g" * 256, "invalid_filter"),
        ("id", "", "invalid_filter"),
        ("id", "a\0b", "invalid_filter"),
    ],
)
def test_a_wrong_filter_value_is_refused_and_named(name, value, error, operator):
    answer = operator.get(URL, {name: value})
    assert answer.status_code == 400
    assert answer.json()["error"] == error
    assert answer.json()["field"] == name
    assert name in answer.json()["detail"]
    assert len(answer.json()["detail"]) < 300


def test_a_state_is_refused_with_the_states_there_are(operator):
    detail = operator.get(URL, {"state": "waiting"}).json()["detail"]
    assert detail == "state is 'waiting'; give one of queued, claiming, admitted"


def test_bytes_that_are_no_utf8_find_nothing(operator):
    ItemFactory()
    assert ids_of(operator.get(f"{URL}?key=%ff")) == []


def test_items_of_a_queue_that_is_configured_no_more_are_not_shown(operator):
    gone = ItemFactory(queue="gone", uid="left over")
    ItemFactory(uid="here")
    assert ids_of(operator.get(URL)) == ["here"]
    assert operator.get(f"{URL}{gone.pk}/").status_code == 404
    assert operator.post(f"{URL}{gone.pk}/cancel/").status_code == 404


# -------------------------------------------------------------------------------------------------------- other callers


def test_a_browser_gets_a_page_with_the_items(operator):
    ItemFactory(uid="order:<script>7</script>", key="acct-42")
    for url in (URL, f"{URL}{Item.objects.get().pk}/", f"{URL}?state=nonsense"):
        answer = operator.get(url, HTTP_ACCEPT="text/html")
        assert answer.headers["Content-Type"].startswith("text/html")
        page = answer.content.decode()
        assert "Django REST framework" in page
        assert "<script>7" not in page
    page = operator.get(URL, HTTP_ACCEPT="text/html").content.decode()
    assert "order:&lt;script&gt;7" in page


def test_options_describe_the_resource(operator):
    answer = operator.options(URL)
    assert answer.status_code == 200
    assert answer.json()["parses"] == ["application/json"]
    assert operator.head(URL).status_code == 200
