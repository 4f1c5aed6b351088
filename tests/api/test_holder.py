"""The holder's door for other services, as a client in another language finds it."""

import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from django.db import OperationalError, connection
from django.urls import include, path, resolve
from rest_framework.permissions import AllowAny
from rest_framework.test import APIClient
from rest_framework.views import APIView

from django_semq import clock, semaphores
from django_semq.exceptions import Held
from django_semq.holder import clients, remote
from django_semq.invariants import audit
from django_semq.models import Client, Demand, IssuedGrant, Semaphore

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.urls("tests.api.test_holder"),
]

urlpatterns = [path("holder/", include("django_semq.api.holder_urls"))]

NOON_MS = 1767614400000


@pytest.fixture
def shop() -> APIClient:
    return speaking_with(clients.add("shop"))


def speaking_with(token: str) -> APIClient:
    api = APIClient(raise_request_exception=True)
    api.credentials(HTTP_AUTHORIZATION=f"Bearer {token}")
    return api


def request(count: int = 1, client: str = "shop", grants=(), **more) -> dict:
    demand = [{"group": "", "count": count, "oldestAt": NOON_MS}]
    return {"type": "request", "v": 1, "clientId": client, "demand": demand, "grants": list(grants), **more}


def sync(client: str = "shop", grants=(), **more) -> dict:
    return {"type": "sync", "v": 1, "clientId": client, "grants": list(grants), **more}


def report(grant_id: str, claimed: int, released: int, **more) -> dict:
    return {"grantId": grant_id, "claimed": claimed, "released": released, **more}


def post(api: APIClient, key: str, message: dict):
    return api.post(f"/holder/semaphores/{quote(key, safe='')}/{message['type']}/", message, format="json")


def refusal(response) -> tuple:
    return response.status_code, response.json()["error"], response.json()["field"]


def test_a_client_of_the_first_version_gets_permits_and_gives_them_back(shop):
    semaphores.set_limit("acct-42", 2)
    begun = clock.now()

    answer = post(shop, "acct-42", request(3)).json()

    (grant,) = answer["grants"]
    assert grant == {"grantId": grant["grantId"], "group": "", "permits": 2}
    assert answer["blocked"] == [{"group": "", "reason": "key_limit"}]
    assert (answer["grantResults"], answer["contended"]) == ([], False)
    assert "leases" not in answer  # It named none: it would not know what they are.
    assert 0.9 < answer["nextRequestAt"] / 1000 - begun.timestamp() < 10

    answer = post(shop, "acct-42", sync(grants=[report(grant["grantId"], 2, 0)])).json()
    assert answer == {
        "grantResults": [{"grantId": grant["grantId"], "claimed": 2, "status": "ok"}],
        "contended": False,
    }
    post(shop, "acct-42", sync(grants=[report(grant["grantId"], 2, 2)]))
    assert semaphores.usage("acct-42").footprint == 0
    assert IssuedGrant.objects.count() == 0
    assert list(audit()) == []


def test_a_message_twice_is_answered_twice_and_counts_once(shop):
    semaphores.set_limit("acct-42", 5)
    (grant,) = post(shop, "acct-42", request(1)).json()["grants"]
    message = sync(grants=[report(grant["grantId"], 1, 1)])
    post(shop, "acct-42", message)
    answer = post(shop, "acct-42", message).json()
    assert answer["grantResults"] == [{"grantId": grant["grantId"], "claimed": 0, "status": "not_found"}]
    assert semaphores.usage("acct-42").footprint == 0


def test_a_lease_that_the_holder_does_not_know_is_echoed_as_nothing(shop):
    lease = {"leaseId": "l-1", "drawn": 2, "released": 1}
    answer = post(shop, "acct-42", sync(leases=[lease])).json()
    assert answer["leases"] == [{"leaseId": "l-1", "group": "", "permits": 0, "expiresAt": 0}]


@pytest.mark.parametrize(
    "key",
    [
        "a/b",
        "/a",
        "a//b",
        "..",
        "a.b",
        "with space",
        "émoji 🦀",
        "line\nbreak",
        "per%cent",
        "a/request",
        "x/sync/",
        "?q",
    ],
)
def test_a_key_may_hold_anything(shop, key):
    (grant,) = post(shop, key, request()).json()["grants"]
    assert IssuedGrant.objects.get(uid=grant["grantId"]).semaphore.name == key
    exchanged = {
        "v": 1,
        "clientId": "shop",
        "messages": [{"key": key, **sync(grants=[report(grant["grantId"], 1, 1)])}],
    }
    (reply,) = shop.post("/holder/exchange/", exchanged, format="json").json()["replies"]
    assert (reply["key"], reply["status"]) == (key, 200)
    assert IssuedGrant.objects.count() == 0


def test_clients_of_a_key_share_it_and_see_nothing_of_each_other(shop):
    """(B109)"""
    mail = speaking_with(clients.add("mail"))
    semaphores.set_limit("acct-42", 1)
    (grant,) = post(shop, "acct-42", request()).json()["grants"]

    answer = post(mail, "acct-42", request(client="mail")).json()
    assert (answer["grants"], answer["blocked"]) == ([], [{"group": "", "reason": "key_limit"}])
    answer = post(mail, "acct-42", sync(client="mail", grants=[report(grant["grantId"], 1, 1)])).json()
    assert answer["grantResults"] == [{"grantId": grant["grantId"], "claimed": 0, "status": "not_found"}]
    assert semaphores.usage("acct-42").footprint == 1

    assert post(shop, "acct-42", sync(grants=[report(grant["grantId"], 1, 0)])).json()["contended"] is True
    post(shop, "acct-42", sync(grants=[report(grant["grantId"], 1, 1)]))
    assert len(post(mail, "acct-42", request(client="mail")).json()["grants"]) == 1


@pytest.mark.parametrize("header", [None, "Bearer", "Bearer nonsense", "Basic c2hvcDpzaG9w", "Bearer é"])
def test_without_a_token_of_a_client_nobody_is_heard(shop, header):
    api = APIClient()
    if header is not None:
        api.credentials(HTTP_AUTHORIZATION=header)
    response = post(api, "acct-42", request())
    assert response.status_code == 401
    assert response["WWW-Authenticate"] == "Bearer"
    assert not Semaphore.objects.exists()


@pytest.mark.parametrize("name", ["mail", "Shop", "shop "])
def test_a_client_speaks_for_itself_alone(shop, name):
    """(B109)"""
    clients.add(name)
    assert refusal(post(shop, "acct-42", request(client=name))) == (403, "not_you", "clientId")
    assert not Semaphore.objects.exists()


def test_a_queue_of_the_project_has_no_token_and_speaks_through_no_door():
    Client.objects.create(client_id="default", queue="default")
    assert clients.by_token("") is None
    with pytest.raises(LookupError):
        clients.rotate("default")
    with pytest.raises(LookupError):
        clients.evict("default", now=clock.now())


def test_a_client_may_be_confined_to_patterns_of_keys():
    api = speaking_with(clients.add("shop", patterns="acct-*\npool"))
    assert post(api, "acct-42", request()).status_code == 200
    assert post(api, "pool", request()).status_code == 200
    assert refusal(post(api, "other", request())) == (403, "key_not_allowed", "key")
    assert not Semaphore.objects.filter(name="other").exists()


def test_a_rotated_token_is_refused_and_the_new_one_finds_all_in_place(shop):
    (grant,) = post(shop, "acct-42", request()).json()["grants"]
    token = clients.rotate("shop")
    assert post(shop, "acct-42", sync()).status_code == 401
    answer = post(speaking_with(token), "acct-42", sync(grants=[report(grant["grantId"], 1, 0)])).json()
    assert answer["grantResults"][0]["status"] == "ok"


def test_an_evicted_client_is_refused_and_what_it_held_is_free_at_once(shop):
    semaphores.set_limit("acct-42", 1)
    mail = speaking_with(clients.add("mail"))
    (grant,) = post(shop, "acct-42", request()).json()["grants"]
    post(shop, "acct-42", request(1, grants=[report(grant["grantId"], 1, 0)]))
    assert post(mail, "acct-42", request(client="mail")).json()["grants"] == []

    assert clients.evict("shop", now=clock.now()) == 1

    assert refusal(post(shop, "acct-42", sync())) == (403, "evicted", None)
    assert not Demand.objects.filter(client__client_id="shop").exists()
    assert len(post(mail, "acct-42", request(client="mail")).json()["grants"]) == 1
    assert list(audit()) == []
    assert clients.evict("shop", now=clock.now()) == 0

    clients.readmit("shop")
    answer = post(shop, "acct-42", sync(grants=[report(grant["grantId"], 1, 0)])).json()
    assert answer["grantResults"][0]["status"] == "not_found"


def test_an_exchange_does_each_message_for_itself(shop):
    messages = [
        {"key": "a", **request()},
        {"key": "b", "type": "request", "demand": [], "grants": []},
        {"key": 5, "type": "sync", "grants": []},
        {"key": "c", "type": "nonsense", "grants": []},
        {"key": "d", "type": "sync", "grants": []},
    ]
    body = {"v": 1, "clientId": "shop", "messages": messages}
    replies = shop.post("/holder/exchange/", body, format="json").json()["replies"]
    assert [(reply["key"], reply["status"]) for reply in replies] == [
        ("a", 200),
        ("b", 400),
        (5, 400),
        ("c", 400),
        ("d", 200),
    ]
    assert len(replies[0]["reply"]["grants"]) == 1
    assert replies[1]["error"]["field"] == "demand"
    assert replies[2]["error"]["field"] == "key"
    assert replies[3]["error"]["field"] == "type"


def test_an_exchange_of_nothing_is_a_sign_of_life(shop):
    assert shop.post("/holder/exchange/", {"v": 1, "clientId": "shop", "messages": []}, format="json").json() == {
        "replies": []
    }
    assert Client.objects.get().last_seen is not None


@pytest.mark.parametrize("version", [..., "1", 0, 2, 99, None])
def test_a_version_that_the_holder_does_not_speak_is_refused_by_name(shop, version):
    """(B107)"""
    message = request() | {"v": version}
    if version is ...:
        del message["v"]
    response = post(shop, "a", message)
    assert refusal(response) == (400, "invalid_message", "v")
    assert "this holder speaks version 1" in response.json()["detail"]
    assert not Semaphore.objects.exists()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"v": 9}, (400, "invalid_message", "v")),
        ({"clientId": "mail"}, (403, "not_you", "clientId")),
        ({"messages": None}, (400, "invalid_message", "messages")),
        ({"messages": [7]}, (400, "invalid_message", "messages[0]")),
        ({"messages": [{}] * 101}, (413, "too_large", "messages")),
    ],
)
def test_an_exchange_that_is_wrong_as_a_whole_does_nothing(shop, change, expected):
    body = {"v": 1, "clientId": "shop", "messages": [{"key": "a", **request()}], **change}
    assert refusal(shop.post("/holder/exchange/", body, format="json")) == expected
    assert not Semaphore.objects.exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"type": NaN}', "[" * 100_000, '"\\ud800"', "9" * 900_000, "\x1f\x8b gzip"]
)
def test_what_is_no_message_is_refused_with_nothing_stored(shop, text):
    """(B110)"""
    response = shop.post("/holder/semaphores/a/request/", text, content_type="application/json")
    assert response.status_code == 400
    assert set(response.json()) == {"error", "field", "detail"}
    assert not Semaphore.objects.exists()


def test_a_message_of_another_kind_is_refused(shop):
    """(B110)"""
    response = shop.post("/holder/semaphores/a/request/", "a=b", content_type="application/x-www-form-urlencoded")
    assert response.status_code == 415


@pytest.mark.parametrize("address", ["exchange/", "semaphores/a/request/", "semaphores/a/sync/"])
@pytest.mark.parametrize("method", ["get", "put", "patch", "delete", "options", "head", "post"])
@pytest.mark.parametrize("who", ["nobody", "a user"])
def test_an_address_is_open_to_clients_alone_whatever_the_project_allows(address, method, who, admin_user, settings):
    """(B108)"""
    api = APIClient(enforce_csrf_checks=True)
    if who == "a user":
        api.force_login(admin_user)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(APIView, "permission_classes", [AllowAny])
        assert getattr(api, method)(f"/holder/{address}").status_code == 401


def test_a_message_that_is_too_long_is_not_read(shop):
    """(B110)"""
    body = json.dumps(request() | {"padding": "x" * 2**20})
    response = shop.post("/holder/semaphores/a/request/", body, content_type="application/json")
    assert refusal(response) == (413, "too_large", None)


@pytest.mark.parametrize("error", [Held(["a"]), OperationalError(1213, "Deadlock found")])
def test_a_key_that_is_taken_for_the_moment_is_to_be_asked_again(shop, monkeypatch, error):
    def fail(*_args, **_kwargs):
        raise error

    if connection.vendor == "postgresql" and isinstance(error, OperationalError):
        error.args = ("database is locked",)  # As `is_passing` knows it without psycopg's own error behind.
    monkeypatch.setattr(remote, "answer", fail)
    response = post(shop, "a", request())
    assert (refusal(response), response["Retry-After"]) == ((503, "held", None), "1")
    body = {"v": 1, "clientId": "shop", "messages": [{"key": "a", **request()}]}
    (reply,) = shop.post("/holder/exchange/", body, format="json").json()["replies"]
    assert (reply["status"], reply["error"]["error"]) == (503, "held")


def test_django_rest_frameworks_throttles_hold_for_each_client(shop, settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
    from rest_framework.throttling import ScopedRateThrottle

    from django_semq.api.holder_views import HolderView

    mail = speaking_with(clients.add("mail"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HolderView, "throttle_classes", [ScopedRateThrottle])
        patch.setattr(ScopedRateThrottle, "THROTTLE_RATES", {"semq_holder": "2/min"})
        codes = [post(shop, "a", sync()).status_code for _number in range(3)]
        assert codes == [200, 200, 429]
        assert post(mail, "a", sync(client="mail")).status_code == 200


def test_who_was_heard_is_written_at_most_once_in_ten_seconds(shop):
    post(shop, "a", sync())
    seen = Client.objects.get().last_seen
    post(shop, "a", sync())
    assert Client.objects.get().last_seen == seen
    Client.objects.update(last_seen=datetime(2026, 1, 5, tzinfo=UTC))
    post(shop, "a", sync())
    assert Client.objects.get().last_seen > seen


def test_addresses_have_names():
    assert resolve("/holder/semaphores/a/b/sync/").url_name == "sync"
    assert resolve("/holder/semaphores/a/b/sync/").kwargs == {"key": "a/b"}
