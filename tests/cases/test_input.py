"""Whatever callers, browsers and programs send: it is stored as it is or refused with a reason, never an error 500."""

import enum
import gzip
import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse
from rest_framework.test import APIClient

from django_semq import InvalidItem, enqueue, enqueue_many, release, semaphores, status
from django_semq.models import Item, Semaphore
from tests import factories

NUL, HALF, LONG = "a\0b", "\ud800", "x" * 100_000
BODIES = [
    None,
    {},
    [],
    "",
    0,
    False,
    True,
    "null",
    "true",
    -0.0,
    1e300,
    2**70,
    0.1,
    "a\0b",
    "\u2028",
    "🏳️‍🌈",
    {"": {"": []}},
]


@pytest.fixture
def client(db, admin_user):
    client = APIClient(raise_request_exception=False)
    client.force_login(admin_user)
    return client


@pytest.fixture
def operator(db, admin_user):
    client = Client(raise_request_exception=False)
    client.force_login(admin_user)
    return client


def test_a_body_comes_back_the_same_on_every_way(app, client):
    """(B81, B82)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    app.on_admit = lambda items: 1 / 0 if items[0].attempt == 1 else None
    url = reverse("django_semq:item-list")
    for place, body in enumerate(BODIES):
        enqueue("acct-42", body, id=f"{place} single")
        enqueue_many([{"key": "acct-42", "body": body, "id": f"{place} many {n}"} for n in range(2)])
        posted = client.post(url, {"key": "acct-42", "body": body, "id": f"{place} post"}, "json")
        shown = client.get(posted.headers["Location"]).json()["body"]
        assert (type(shown), repr(shown)) == (type(body), repr(body))
    app.tick()
    app.pass_time(minutes=5)
    app.tick()
    given = [item for batch in app.batches for item in batch]
    assert len({item.id for item in given}) == 4 * len(BODIES)
    for item in given:
        body = BODIES[int(item.id.partition(" ")[0])]
        assert (type(item.body), repr(item.body)) == (type(body), repr(body))


class Colour(enum.Enum):
    RED = 1


NO_BODIES = [
    float("nan"), float("inf"), [float("-inf")], Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), date(2026, 1, 1),
    uuid.UUID(int=1), b"bytes", {1, 2}, {1: "a"}, {None: 1}, {True: 1}, {("a",): 1}, object(), Colour.RED, HALF,
    {HALF: 1}, [[HALF]], 10**5000, range(3), len, ..., 1j,
]  # fmt: skip


def test_what_would_not_come_back_the_same_is_refused_with_its_whole_call(app):
    """(B81)"""
    items = [{"key": "acct-42", "body": {}, "id": f"{n}"} for n in range(100)]
    for items[57]["body"] in NO_BODIES:
        with pytest.raises(InvalidItem, match=r"^item 57: body is") as refused:
            enqueue_many(items)
        assert (refused.value.field, refused.value.index) == ("body", 57)
    assert not Item.objects.exists()


def test_a_body_nested_deeper_than_any_reader_follows_is_refused(app):
    """(B81)"""
    body = []
    for _level in range(5000):
        body = [body]
    with pytest.raises(InvalidItem, match="nested deeper"):
        enqueue("acct-42", body)


def test_a_body_that_is_missing_is_none_that_is_null(client):
    """(B82)"""
    missing = client.post(reverse("django_semq:item-list"), {"key": "acct-42"}, "json")
    assert (missing.status_code, missing.json()["field"]) == (400, "body")
    with pytest.raises(TypeError):
        enqueue("acct-42")
    assert client.post(reverse("django_semq:item-list"), {"key": "acct-42", "body": None}, "json").status_code == 201


LISTS = ["item-list", "key-list", "grant-list", "lease-list"]
VALUES = ["%00", "a%00b", "%ff", "%ed%a0%80", "x" * 8_000, "%F0%9F%A6%80", "%25", "%27%22--", "../..", "-1", "9" * 40]


@pytest.mark.parametrize("name", LISTS)
def test_no_filter_of_the_api_breaks_it(client, name):
    """(B78)"""
    factories.ItemFactory()
    for parameter in ("key", "group", "id", "queue", "name", "state", "cursor", "page_size", "search", "format"):
        for value in VALUES:
            answer = client.get(f"{reverse(f'django_semq:{name}')}?{parameter}={value}")
            assert answer.status_code in (200, 400, 404), (parameter, value)


@pytest.mark.parametrize("name", LISTS)
def test_no_address_of_a_row_breaks_the_api(client, name):
    """(B78)"""
    for row in ("%00", "a%00b", "%ff", "9" * 40, "-1", "1.0", "%D9%A1", "%2e%2e"):
        url = f"{reverse(f'django_semq:{name}')}{row}/"
        assert client.get(url).status_code in (400, 404), row
        for verb in ("release", "cancel"):
            assert client.post(f"{url}{verb}/").status_code in (400, 404), row


@pytest.mark.parametrize("name", ["item-release-many", "item-cancel-many"])
def test_no_id_in_a_list_breaks_the_api(client, name):
    """(B78)"""
    for uid in (NUL, HALF, LONG, "", None, 7, True, [], {}):
        text = json.dumps({"ids": ["a", uid]})
        answer = client.post(reverse(f"django_semq:{name}"), text, content_type="application/json")
        assert (answer.status_code, answer.json()["field"]) == (400, "ids[1]")


TABLES = [model._meta.model_name for model in admin.site._registry if model._meta.app_label == "django_semq"]


@pytest.mark.parametrize("table", TABLES)
def test_no_address_of_the_admin_breaks_it(operator, table):
    """(B78)"""
    url = reverse(f"admin:django_semq_{table}_changelist")
    parameters = ("q", "key", "group", "queue", "state", "p", "o", "uid") if table == "item" else ("q", "key")
    for query in (
        f"?{parameter}={value}" for parameter in parameters for value in ("%00", "%ff", "9" * 40, LONG[:8000])
    ):
        assert operator.get(url + query, follow=True).status_code in (200, 400), query
    for row in ("%00", "%ff", "9" * 40, "-1", "x"):
        assert operator.get(f"{url}{row}/change/", follow=True).status_code == 200, (
            row
        )  # Back at the start, with a word.


def test_an_action_on_rows_that_are_none_breaks_nothing(operator):
    """(B78)"""
    factories.ItemFactory()
    for action in ("cancel_items", "release_items", NUL, "delete_selected"):
        fields = {"action": action, "_selected_action": ["-1", "0"], "confirmed": "yes"}
        answer = operator.post(reverse("admin:django_semq_item_changelist"), fields, follow=True)
        assert answer.status_code == 200
    assert Item.objects.count() == 1


def test_names_that_differ_in_their_last_character_only_are_two(app):
    """Of the most bytes a name may have. (B79)"""
    left, right = "🦀" * 254 + "🦀", "🦀" * 254 + "🦞"
    for name in (left, right):
        assert enqueue(name, {}, group=name, id=name).created
    assert [status(name).state for name in (left, right)] == ["admitted", "admitted"]
    assert not enqueue("k", {}, id=left).created
    assert release(left)
    assert status(right).state == "admitted"


@pytest.mark.parametrize("name", ["x" * 256, "🦀" * 256, LONG], ids=["letters", "emoji", "long"])
def test_a_name_that_is_too_long_is_refused_before_a_database_cuts_it(app, name):
    """(B79)"""
    for item in ({"key": name}, {"key": "k", "group": name}, {"key": "k", "id": name}):
        with pytest.raises(InvalidItem, match="give at most 255"):
            enqueue_many([{"body": {}, **item}])
    for verb in (semaphores.set_limit, semaphores.usage, semaphores.pause):
        with pytest.raises(InvalidItem):
            verb(name, *([1] if verb is semaphores.set_limit else []))
    assert not Item.objects.exists()
    assert not Semaphore.objects.exists()


ALIKE = [
    "🦀", "🦞", "👨\u200d👩\u200d👧", "👨\u200d👩\u200d👦", "caf\u00e9", "cafe\u0301", "a\u200fb",
    "a\u200eb", "a\u00adb", "ab",
    "𠀀", "𠀁", "ß", "ss", "\u0131", "i", "İ", "ﬁ", "fi", "\uff11", "1", "\uff21", "A", "a",
]  # fmt: skip


def test_names_that_look_or_sort_alike_are_told_apart(app, client):
    """(B76)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    result = enqueue_many([{"key": name, "group": name, "id": name, "body": {name: name}} for name in ALIKE])
    assert result.queued == ALIKE
    semaphores.pause("🦞")
    enqueue("🦞", {}, id="paused")
    app.tick()
    assert [(item.id, item.key, item.group, item.body) for batch in app.batches for item in batch] == [
        (name, name, name, {name: name}) for name in ALIKE
    ]
    assert semaphores.usage("🦀").groups.keys() == {"🦀"}
    for name in ALIKE:
        (found,) = client.get(reverse("django_semq:item-list"), {"key": name, "state": "admitted"}).json()["results"]
        assert (found["id"], found["key"], found["group"]) == (name, name, name)
        assert release(name)


WHAT = '{"key": "acct-42", "body": %s}'
TOO_MUCH = {
    "larger than allowed": (lambda: WHAT % f'"{"x" * 3_000_000}"', "application/json", (413,)),
    "deep": (lambda: WHAT % ("[" * 20_000 + "]" * 20_000), "application/json", (400,)),
    "deep objects": (lambda: WHAT % ('{"a":' * 20_000 + "1" + "}" * 20_000), "application/json", (400,)),
    "many": (lambda: "[" + ",".join(["1"] * 500_000) + "]", "application/json", (400, 413)),
    "digits": (lambda: WHAT % ("7" * 1_000_000), "application/json", (400,)),
    "form": (lambda: "key=a&body=1", "application/x-www-form-urlencoded", (415,)),
    "no type": (lambda: "{}", "", (400, 415)),
    "odd type": (lambda: "{}", "application/json; charset=no-such", (400, 415)),
    "cut": (lambda: '{"key": "acct-42", "bo', "application/json", (400,)),
}


@pytest.mark.parametrize("what", TOO_MUCH)
def test_a_request_that_is_too_much_is_refused_in_the_common_shape(client, what):
    """(B110)"""
    text, content_type, codes = TOO_MUCH[what]
    answer = client.generic("POST", reverse("django_semq:item-list"), text(), content_type)
    assert answer.status_code in codes
    assert set(answer.json()) == {"error", "field", "detail"}
    assert not Item.objects.exists()


def test_a_packed_request_is_not_unpacked(client):
    """(B110)"""
    packed = gzip.compress(b'{"key": "acct-42", "body": 1}')
    url = reverse("django_semq:item-list")
    answer = client.generic("POST", url, packed, "application/json", headers={"Content-Encoding": "gzip"})
    assert answer.status_code == 400


def test_pages_show_what_users_sent_as_text(operator):
    """(B113)"""
    evil = "<script>alert('x')</script>"
    item = factories.ItemFactory(uid=evil, key=evil, group=evil, body=json.dumps(evil), last_error=evil)
    factories.KeyFactory(name=evil, error=evil)
    factories.SemaphoreFactory(name=evil)
    pages = [reverse(f"admin:django_semq_{name}_changelist") for name in ("item", "key", "semaphore")]
    pages += [reverse("admin:django_semq_item_change", args=[item.pk]), pages[0] + "?key=%3Cscript%3E"]
    for page in pages:
        text = operator.get(page).text
        assert "<script>alert" not in text, page
        assert "&lt;script&gt;" in text, page
