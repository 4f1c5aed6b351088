"""Who may do what: nobody anything, until a permission says so."""

from base64 import b64encode

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from rest_framework.authentication import BasicAuthentication
from rest_framework.test import APIClient

from django_semq.api.views import ItemViewSet
from django_semq.models import Item, State
from tests.factories import GrantFactory, ItemFactory, KeyFactory, LeaseFactory

pytestmark = pytest.mark.django_db

ITEM = {"key": "acct-42", "body": {}}
ROUTES = [
    ("get", "item-list", "view_item"),
    ("get", "item-detail", "view_item"),
    ("head", "item-list", "view_item"),
    ("options", "item-list", "view_item"),
    ("post", "item-list", "add_item"),
    ("post", "item-release", "change_item"),
    ("post", "item-cancel", "change_item"),
    ("options", "item-release", "view_item"),
    ("post", "item-release-many", "change_item"),
    ("post", "item-cancel-many", "change_item"),
    ("get", "key-list", "view_key"),
    ("get", "key-detail", "view_key"),
    ("options", "key-list", "view_key"),
    ("get", "grant-list", "view_grant"),
    ("get", "grant-detail", "view_grant"),
    ("get", "lease-list", "view_lease"),
    ("get", "lease-detail", "view_lease"),
]
ALL = {
    f"{verb}_{model}"
    for verb in ("view", "add", "change", "delete")
    for model in ("item", "key", "keygroup", "grant", "lease", "semaphore", "nudge")
}
NAMES = [
    "item-list", "item-detail", "item-release", "item-cancel", "item-release-many", "item-cancel-many",
    "key-list", "key-detail", "grant-list", "grant-detail", "lease-list", "lease-detail",
]  # fmt: skip
OF_ONE_ROW = {"item-detail", "item-release", "item-cancel", "key-detail", "grant-detail", "lease-detail"}


@pytest.fixture
def rows():
    """A row of each kind that the routes with a row number may name."""
    return {
        "item": ItemFactory(),
        "key": KeyFactory(name="a key"),
        "grant": GrantFactory(key__name="a key"),
        "lease": LeaseFactory(key__name="a key"),
    }


def url_of(name, rows):
    args = [rows[name.partition("-")[0]].pk] if name in OF_ONE_ROW else []
    return reverse(f"django_semq:{name}", args=args)


def ask(client, method, name, rows):
    body = {"ids": ["order:1"]} if name.endswith("-many") else ITEM
    return getattr(client, method)(url_of(name, rows), body if method == "post" else None, format="json")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "options"])
def test_an_anonymous_request_is_refused_in_the_common_shape(name, method, rows):
    """(B108)"""
    answer = ask(APIClient(), method, name, rows)
    assert answer.status_code in (401, 403)
    assert answer.json() == {
        "error": "not_authenticated",
        "field": None,
        "detail": "Authentication credentials were not provided.",
    }
    assert list(Item.objects.all()) == [rows["item"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete", "options", "head"])
def test_a_user_without_permissions_is_refused(name, method, rows, client_with):
    """(B108)"""
    answer = ask(client_with(), method, name, rows)
    assert answer.status_code == 403
    if method != "head":
        assert answer.json()["error"] == "permission_denied"
    assert list(Item.objects.all()) == [rows["item"]]


@pytest.mark.parametrize(("method", "name", "permission"), ROUTES)
def test_one_permission_opens_a_route(method, name, permission, rows, client_with):
    if name == "item-release":
        Item.objects.update(state=State.ADMITTED)
    answer = ask(client_with(permission), method, name, rows)
    assert answer.status_code == (201 if (method, name) == ("post", "item-list") else 200)


@pytest.mark.parametrize(("method", "name", "permission"), ROUTES)
def test_all_other_permissions_together_do_not_open_it(method, name, permission, rows, client_with):
    """(B108)"""
    answer = ask(client_with(*ALL - {permission}), method, name, rows)
    assert answer.status_code == 403


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["put", "patch", "delete"])
def test_no_row_is_written_or_deleted_directly_whatever_the_permissions(name, method, rows, client_with):
    answer = ask(client_with(*ALL), method, name, rows)
    assert answer.status_code == 405
    assert answer.json()["error"] == "method_not_allowed"
    assert answer.json()["field"] is None


@pytest.mark.parametrize("name", ["key-list", "grant-list", "lease-list"])
def test_what_only_the_pump_writes_cannot_be_posted(name, rows, client_with):
    assert ask(client_with(*ALL), "post", name, rows).status_code == 405


def test_enqueueing_a_known_id_tells_nothing_of_the_item_that_has_it(client_with):
    other = ItemFactory(uid="order:1", key="secret", group="hidden", body='"private"')
    answer = client_with("add_item").post(reverse("django_semq:item-list"), {**ITEM, "id": "order:1"}, format="json")
    assert answer.json() == {"row": other.pk, "id": "order:1", "queue": "default", "created": False}


def test_a_session_without_a_csrf_token_cannot_write(client_with):
    """(B108)"""
    logged_in = client_with("add_item")
    client = APIClient(enforce_csrf_checks=True)
    client.cookies = logged_in.cookies
    answer = client.post(reverse("django_semq:item-list"), ITEM, format="json")
    assert answer.status_code == 403
    assert answer.json()["error"] == "permission_denied"
    assert "CSRF" in answer.json()["detail"]
    assert not Item.objects.exists()


def test_the_project_chooses_how_callers_prove_who_they_are(monkeypatch, client_with):
    monkeypatch.setattr(ItemViewSet, "authentication_classes", [BasicAuthentication])
    user = User.objects.create_superuser("ann", password="right")
    url = reverse("django_semq:item-list")

    def get(password):
        credentials = b64encode(f"{user.username}:{password}".encode()).decode()
        return APIClient().get(url, HTTP_AUTHORIZATION=f"Basic {credentials}")

    assert get("right").status_code == 200
    refused = get("wrong")
    assert refused.status_code == 401
    assert refused.headers["WWW-Authenticate"].startswith("Basic")
    assert refused.json()["error"] == "authentication_failed"
