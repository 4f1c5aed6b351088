"""Looking at keys, grants and leases."""

from dataclasses import asdict
from datetime import datetime

import pytest

from django_semq import semaphores
from django_semq.models import Key, KeyGroup
from django_semq.transport.base import HolderTransport
from tests.factories import (
    GrantFactory,
    IssuedGrantFactory,
    KeyFactory,
    KeyGroupFactory,
    LeaseFactory,
    NudgeFactory,
)

pytestmark = pytest.mark.django_db

KEYS = "/semq/keys/"
LISTS = [KEYS, "/semq/grants/", "/semq/leases/"]


class HolderElsewhere(HolderTransport):
    def exchange(self, messages, *, now):
        raise AssertionError("looking at a key asks no holder")


def results(answer):
    assert answer.status_code == 200, answer.json()
    return answer.json()["results"]


def detail(client, **key):
    (found,) = results(client.get(KEYS, {"name": key.get("name", "acct-42"), **key}))
    return client.get(f"{KEYS}{found['row']}/").json()


# ------------------------------------------------------------------------------------------------------------- counters


def test_a_key_shows_what_waits_and_runs_and_why_it_waits(operator, enqueue):
    for number in range(3):
        enqueue(f"order:{number}")
    (shown,) = results(operator.get(KEYS, {"name": "acct-42"}))
    key = Key.objects.get(name="acct-42")
    assert shown == {
        "row": key.pk,
        "name": "acct-42",
        "queue": "default",
        "queued": 2,
        "claiming": 0,
        "admitted": 1,
        "blocked": "key_limit",
        "set_aside_until": None,
        "error": "",
        "next_request_at": None,
        "due_at": shown["due_at"],
    }


def test_a_list_shows_the_sums_and_the_detail_each_group(operator):
    KeyGroupFactory(name="a", queued=3, claiming=2, admitted=1)
    KeyGroupFactory(name="b", queued=10, admitted=20, blocked=True, blocked_reason="group_limit")
    KeyGroupFactory(key__name="acct-43", queued=1000)
    (shown,) = results(operator.get(KEYS, {"name": "acct-42"}))
    counters = {name: shown[name] for name in ("queued", "claiming", "admitted", "blocked")}
    assert counters == {"queued": 13, "claiming": 2, "admitted": 21, "blocked": "group_limit"}
    assert "groups" not in shown
    assert detail(operator)["groups"] == [
        {"name": "a", "queued": 3, "claiming": 2, "admitted": 1, "blocked": None},
        {"name": "b", "queued": 10, "claiming": 0, "admitted": 20, "blocked": "group_limit"},
    ]


def test_the_reason_of_a_key_is_the_one_that_stands_longest(operator):
    early, late = "2026-01-05T12:00:00Z", "2026-01-05T13:00:00Z"
    KeyGroupFactory(name="a", blocked_reason="paused", blocked_at=datetime.fromisoformat(late))
    KeyGroupFactory(name="b", blocked_reason="group_limit", blocked_at=datetime.fromisoformat(early))
    KeyGroupFactory(name="c")
    assert [key["blocked"] for key in results(operator.get(KEYS))] == ["group_limit"]


def test_a_key_that_is_set_aside_counts_what_nobody_has_folded(operator):
    """Its pump stands still, and that is when somebody looks."""
    key = KeyFactory(set_aside=True)
    KeyGroupFactory(key=key, name="a", queued=2, admitted=3)
    KeyGroupFactory(key=key, name="b", queued=4)
    NudgeFactory.create_batch(2, group="a", queued_delta=5)
    NudgeFactory(group="b", queued_delta=4)
    NudgeFactory(group="a", came_back=True)
    NudgeFactory(group="new", queued_delta=7)
    NudgeFactory(key="acct-43", queued_delta=1000)
    shown = detail(operator)
    assert datetime.fromisoformat(shown["set_aside_until"]) == Key.objects.get(pk=key.pk).set_aside_until
    assert shown["error"] == "RuntimeError: it broke"
    assert (shown["queued"], shown["claiming"], shown["admitted"]) == (27, 0, 2)
    assert shown["groups"] == [
        {"name": "a", "queued": 12, "claiming": 0, "admitted": 2, "blocked": None},
        {"name": "b", "queued": 8, "claiming": 0, "admitted": 0, "blocked": None},
        {"name": "new", "queued": 7, "claiming": 0, "admitted": 0, "blocked": None},
    ]


@pytest.mark.usefixtures("two_queues")
def test_the_counters_are_those_of_its_own_queue(operator):
    KeyGroupFactory(queued=1)
    KeyGroupFactory(key__queue="reports", queued=10)
    NudgeFactory(queued_delta=100)
    NudgeFactory(queue="reports", queued_delta=1000)
    for queue, queued in [("default", 101), ("reports", 1010)]:
        shown = detail(operator, queue=queue)
        assert (shown["queue"], shown["queued"], shown["groups"][0]["queued"]) == (queue, queued, queued)


def test_a_key_without_items_counts_nothing(operator):
    KeyFactory()
    shown = detail(operator)
    assert (shown["queued"], shown["claiming"], shown["admitted"], shown["blocked"]) == (0, 0, 0, None)
    assert shown["groups"] == []


# ----------------------------------------------------------------------------------------------------------- the holder


def test_the_detail_shows_what_a_local_holder_has_issued(operator, enqueue):
    semaphores.set_limit("acct-42", 2)
    semaphores.set_ceiling("acct-42", "exports", 1)
    for number in range(3):
        enqueue(f"order:{number}", group="exports")
    holder = detail(operator)["holder"]
    usage = asdict(semaphores.usage("acct-42"))
    (issued,) = usage["issued"]
    assert datetime.fromisoformat(holder["issued"][0].pop("since")) == issued.pop("since")
    assert holder == usage
    assert (holder["limit"], holder["source"], holder["footprint"]) == (2, "override", 1)
    assert (holder["headroom"], holder["paused"]) == (1, False)
    assert holder["groups"]["exports"]["ceiling"] == 1
    assert issued["client"] == "default"


def test_the_detail_knows_nothing_of_a_holder_elsewhere(operator, settings):
    transport = f"{__name__}.{HolderElsewhere.__name__}"
    settings.SEMQ = {"QUEUES": {"default": {"CLIENT_ID": "shop", "TRANSPORT": transport}}}
    KeyGroupFactory(queued=3)
    shown = detail(operator)
    assert shown["holder"] is None
    assert shown["queued"] == 3


# -------------------------------------------------------------------------------------------------------------- lookups


@pytest.mark.parametrize("name", ["a/b", "../x", "50% & more? #1", "Zürich 🚀", "trailing ", "1234"])
def test_any_name_finds_its_key_and_its_row_is_its_address(name, operator):
    key = KeyFactory(name=name)
    KeyFactory(name=name + " ")
    KeyFactory(name=name.upper() + ".")
    (found,) = results(operator.get(KEYS, {"name": name}))
    assert found["row"] == key.pk
    assert operator.get(f"{KEYS}{key.pk}/").json()["name"] == name


@pytest.mark.parametrize("url", LISTS)
@pytest.mark.parametrize(
    ("query", "error"),
    [
        ({"queue": "nowhere"}, "unknown_queue"),
        ({"key": "a\0b", "name": "a\0b"}, "invalid_filter"),
        ({"key": "", "name": ""}, "invalid_filter"),
        ({"key": "k" * 256, "name": "k" * 256}, "invalid_filter"),
        ({"cursor": "rubbish"}, "invalid_filter"),
    ],
)
def test_a_wrong_filter_value_is_refused_and_named(url, query, error, operator):
    answer = operator.get(url, query)
    assert answer.status_code == 400
    assert answer.json()["error"] == error
    assert answer.json()["field"] in query


@pytest.mark.parametrize("url", LISTS)
def test_a_row_that_does_not_exist_is_not_found(url, operator):
    assert operator.get(f"{url}99999999/").status_code == 404


@pytest.mark.parametrize("factory", [KeyGroupFactory, GrantFactory, LeaseFactory])
def test_rows_of_a_queue_that_is_configured_no_more_are_not_shown(factory, operator):
    factory(key__queue="gone")
    assert [results(operator.get(url)) for url in LISTS] == [[], [], []]


@pytest.mark.parametrize("url", LISTS)
def test_pages_are_in_the_order_of_rows(url, operator):
    for number in range(5):
        KeyFactory(name=f"key {number}")
        GrantFactory(key__name=f"key {number}")
        LeaseFactory(key__name=f"key {number}")
    rows, next_url = [], f"{url}?page_size=2"
    for _page in range(3):
        answer = operator.get(next_url)
        rows += [row["row"] for row in results(answer)]
        next_url = answer.json()["next"]
    assert next_url is None
    assert len(rows) == 5
    assert rows == sorted(rows)


# ---------------------------------------------------------------------------------------------------- grants and leases


def test_a_grant_shows_its_chain(operator):
    grant = GrantFactory(uid="g-1", permits=5, claimed=4, confirmed=3, admitted=2, released=1, group="exports")
    (shown,) = results(operator.get("/semq/grants/"))
    assert operator.get(f"/semq/grants/{grant.pk}/").json() == shown
    assert datetime.fromisoformat(shown.pop("created_at")) == grant.created_at
    assert shown == {
        "row": grant.pk,
        "id": "g-1",
        "queue": "default",
        "key": "acct-42",
        "group": "exports",
        "permits": 5,
        "claimed": 4,
        "confirmed": 3,
        "admitted": 2,
        "released": 1,
        "claim_until": None,
        "closed": False,
    }


def test_a_lease_shows_its_chain_and_its_state(operator):
    lease = LeaseFactory(uid="l-1", permits=5, drawn=4, released=3, group="exports", stopped=True)
    (shown,) = results(operator.get("/semq/leases/"))
    assert operator.get(f"/semq/leases/{lease.pk}/").json() == shown
    for name in ("created_at", "draw_until", "expires_at"):
        assert datetime.fromisoformat(shown.pop(name)) == getattr(lease, name)
    assert shown == {
        "row": lease.pk,
        "id": "l-1",
        "queue": "default",
        "key": "acct-42",
        "group": "exports",
        "permits": 5,
        "drawn": 4,
        "released": 3,
        "state": "stopped",
    }


@pytest.mark.parametrize(("url", "factory"), [("/semq/grants/", GrantFactory), ("/semq/leases/", LeaseFactory)])
@pytest.mark.usefixtures("two_queues")
def test_grants_and_leases_are_found_by_key_and_queue(url, factory, operator):
    factory(uid="a")
    factory(uid="b", key__name="a/b")
    factory(uid="c", key__queue="reports")

    def found(**filters):
        return [row["id"] for row in results(operator.get(url, filters))]

    assert found() == ["a", "b", "c"]
    assert found(key="acct-42") == ["a", "c"]
    assert found(key="a/b") == ["b"]
    assert found(key="acct-42", queue="reports") == ["c"]
    assert found(key="ACCT-42") == []


# ----------------------------------------------------------------------------------------------------------- statements


@pytest.mark.parametrize("url", LISTS)
def test_a_list_takes_as_many_statements_for_many_rows_as_for_one(url, operator, queries_of):
    def add(number):
        key = KeyFactory(name=f"key {number}")
        KeyGroupFactory(key=key, name="a", blocked=True)
        KeyGroupFactory(key=key, name="b")
        NudgeFactory(key=key.name)
        GrantFactory(key=key)
        LeaseFactory(key=key)

    add(0)
    few = queries_of(lambda: operator.get(url))
    for number in range(1, 20):
        add(number)
    assert queries_of(lambda: operator.get(url)) == few
    assert len(results(operator.get(url))) == 20


def test_the_detail_of_a_key_takes_as_many_statements_for_many_groups_as_for_one(operator, queries_of):
    key = KeyFactory()

    def add(number):
        KeyGroupFactory(key=key, name=f"group {number}", blocked=True)
        NudgeFactory(key=key.name, group=f"new group {number}")
        IssuedGrantFactory(client__remote=True)

    add(0)
    few = queries_of(lambda: operator.get(f"{KEYS}{key.pk}/"))
    for number in range(1, 20):
        add(number)
    assert queries_of(lambda: operator.get(f"{KEYS}{key.pk}/")) == few
    shown = operator.get(f"{KEYS}{key.pk}/").json()
    assert len(shown["groups"]) == 2 * KeyGroup.objects.count() == 40
    assert len(shown["holder"]["issued"]) == 20


@pytest.mark.parametrize("url", LISTS)
def test_a_browser_gets_a_page(url, operator):
    KeyGroupFactory(key__name="<script>7</script>")
    GrantFactory(key__name="<script>7</script>")
    LeaseFactory(key__name="<script>7</script>")
    (row,) = results(operator.get(url))
    for address in (url, f"{url}{row['row']}/"):
        page = operator.get(address, HTTP_ACCEPT="text/html").content.decode()
        assert "&lt;script&gt;7" in page
        assert "<script>7" not in page
