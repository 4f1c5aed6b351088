"""What holds for the pages of every table."""

from collections.abc import Callable
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_semq.admin import base
from django_semq.models import Driver
from tests import factories

TABLES: dict[str, Callable[[int], Any]] = {
    "item": lambda n: factories.ItemFactory(key=f"key {n}", admitted=n % 2 == 0),
    "key": lambda n: factories.KeyFactory(name=f"key {n}", set_aside=n % 2 == 0),
    "keygroup": lambda n: factories.KeyGroupFactory(key__name=f"key {n}", blocked=True),
    "grant": lambda n: factories.GrantFactory(key__name=f"key {n}"),
    "lease": lambda n: factories.LeaseFactory(key__name=f"key {n}"),
    "nudge": lambda n: factories.NudgeFactory(key=f"key {n}"),
    "driver": lambda n: Driver.objects.create(pk=100 + n),
    "semaphore": lambda n: factories.SemaphoreFactory(name=f"key {n}", overridden=n % 2 == 0),
    "ceiling": lambda n: factories.CeilingFactory(semaphore__name=f"key {n}"),
    "client": lambda n: factories.ClientFactory(client_id=f"shop-{n}"),
    "demand": lambda n: factories.DemandFactory(semaphore__name=f"key {n}", client__client_id=f"shop-{n}"),
    "issuedgrant": lambda n: factories.IssuedGrantFactory(semaphore__name=f"key {n}", client__client_id=f"shop-{n}"),
    "issuedlease": lambda n: factories.IssuedLeaseFactory(semaphore__name=f"key {n}", client__client_id=f"shop-{n}"),
}

every_table = pytest.mark.parametrize("table", TABLES)


def list_url(table: str) -> str:
    return reverse(f"admin:django_semq_{table}_changelist")


def page_url(table: str, row: Any, page: str = "change") -> str:
    return reverse(f"admin:django_semq_{table}_{page}", args=[row.pk])


def listed(client: Client, table: str, /, **query: Any) -> list[Any]:
    response = client.get(list_url(table), query)
    assert response.status_code == 200
    return list(response.context["cl"].result_list)


def test_every_table_has_its_pages() -> None:
    tables = {model for model in apps.get_app_config("django_semq").get_models() if admin.site.is_registered(model)}
    assert {model._meta.model_name for model in tables} >= set(TABLES)


@every_table
def test_a_list_shows_its_rows(operator: Client, table: str) -> None:
    row = TABLES[table](1)
    response = operator.get(list_url(table))
    assert row in response.context["cl"].result_list
    assert page_url(table, row) in response.text


@every_table
def test_a_row_has_a_page(operator: Client, table: str) -> None:
    row = TABLES[table](1)
    response = operator.get(page_url(table, row))
    assert response.status_code == 200
    assert response.context["original"] == row


@every_table
def test_nobody_adds_changes_or_deletes_a_row(operator: Client, table: str) -> None:
    """(B113)"""
    row = TABLES[table](1)
    page = operator.get(page_url(table, row))
    assert "_save" not in page.text
    assert operator.get(reverse(f"admin:django_semq_{table}_add")).status_code == 403
    assert operator.post(page_url(table, row), {"name": "other"}).status_code == 403
    assert operator.post(page_url(table, row, "delete"), {"post": "yes"}).status_code == 403
    operator.post(list_url(table), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert row in listed(operator, table)


@every_table
def test_the_view_permission_shows_a_table_and_offers_no_action(client_with: Callable[..., Client], table: str) -> None:
    reader = client_with(f"view_{table}")
    row = TABLES[table](1)
    assert row in listed(reader, table)
    assert "_selected_action" not in reader.get(list_url(table)).text
    assert "/ask/" not in reader.get(page_url(table, row)).text


@every_table
def test_without_a_permission_there_is_no_page(client_with: Callable[..., Client], table: str) -> None:
    stranger = client_with("view_driver" if table != "driver" else "view_item")
    row = TABLES[table](1)
    assert stranger.get(list_url(table)).status_code == 403
    assert stranger.get(page_url(table, row)).status_code == 403


@every_table
def test_the_number_of_statements_of_a_list_does_not_grow_with_its_rows(operator: Client, table: str) -> None:
    """(B113)"""

    def statements() -> int:
        with CaptureQueriesContext(connection) as queries:
            listed(operator, table)
        return len(queries)

    for n in range(2):
        TABLES[table](n)
    few = statements()
    for n in range(2, 12):
        TABLES[table](n)
    assert statements() == few < 10


@every_table
def test_no_list_counts_or_sorts_its_whole_table(operator: Client, table: str) -> None:
    """(B113)"""
    TABLES[table](1)
    with CaptureQueriesContext(connection) as queries:
        listed(operator, table)
    sql = [query["sql"] for query in queries]
    assert [one for one in sql if "COUNT(*)" in one]
    assert [one for one in sql if "COUNT(*)" in one and "LIMIT" not in one] == []
    assert [one for one in sql if "DISTINCT" in one] == []


def test_a_list_is_cut_and_says_so(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "LISTED", 3)
    factories.ItemFactory.create_batch(3)
    whole = operator.get(list_url("item"))
    assert "There are more rows" not in whole.text
    factories.ItemFactory.create_batch(2)
    cut = operator.get(list_url("item"))
    assert "There are more rows" in cut.text
    assert cut.context["cl"].result_count == 3


def test_a_search_finds_a_whole_id_or_else_a_whole_key(operator: Client) -> None:
    by_id = factories.ItemFactory(uid="order: 7 %", key="a b")
    by_key = factories.ItemFactory(uid="order: 8", key="a b c")
    factories.ItemFactory(uid="order: 7 %%", key="a")
    assert listed(operator, "item", q="order: 7 %") == [by_id]
    assert listed(operator, "item", q="a b c") == [by_key]
    assert listed(operator, "item", q="order:") == []
    assert listed(operator, "item", q="a%") == []


@pytest.mark.parametrize(
    ("table", "term"),
    [
        ("key", "key 1"), ("keygroup", "key 1"), ("grant", "key 1"), ("lease", "key 1"), ("nudge", "key 1"),
        ("semaphore", "key 1"), ("ceiling", "key 1"), ("client", "shop-1"), ("demand", "key 1"),
        ("issuedgrant", "key 1"), ("issuedlease", "key 1"),
    ],
)  # fmt: skip
def test_every_other_list_is_searched_by_key(operator: Client, table: str, term: str) -> None:
    wanted, _other = TABLES[table](1), TABLES[table](2)
    assert listed(operator, table, q=term) == [wanted]


@pytest.mark.parametrize("table", ["grant", "lease", "issuedgrant", "issuedlease"])
def test_what_was_issued_is_searched_by_id(operator: Client, table: str) -> None:
    wanted, _other = TABLES[table](1), TABLES[table](2)
    assert listed(operator, table, q=wanted.uid) == [wanted]


def test_items_are_filtered_by_queue_state_key_and_group(operator: Client) -> None:
    running = factories.ItemFactory(key="a", group="x", admitted=True)
    waiting = factories.ItemFactory(key="a")
    other_queue = factories.ItemFactory(key="b", queue="reports", group="x")
    assert listed(operator, "item") == [running, waiting, other_queue]
    assert listed(operator, "item", queue="reports") == [other_queue]
    assert listed(operator, "item", state="queued") == [waiting, other_queue]
    assert listed(operator, "item", state="admitted", queue="default") == [running]
    assert listed(operator, "item", key="a") == [running, waiting]
    assert listed(operator, "item", key="a", group="x") == [running]
    assert listed(operator, "item", queue="gone") == []
    assert listed(operator, "item", state="rubbish", key="", group="") == [running, waiting, other_queue]


@pytest.mark.parametrize("table", ["keygroup", "grant", "lease", "nudge"])
def test_a_client_table_is_filtered_by_queue_and_key(operator: Client, table: str) -> None:
    wanted, other = TABLES[table](1), TABLES[table](2)
    assert listed(operator, table, queue="default") == [wanted, other]
    assert listed(operator, table, queue="default", key="key 1") == [wanted]
    factories.KeyFactory(queue="reports")
    factories.NudgeFactory(queue="reports", key="of another queue")
    assert listed(operator, table, queue="default") == [wanted, other]


@pytest.mark.parametrize("table", ["ceiling", "demand", "issuedgrant", "issuedlease"])
def test_a_holder_table_is_filtered_by_key(operator: Client, table: str) -> None:
    wanted, _other = TABLES[table](1), TABLES[table](2)
    assert listed(operator, table, key="key 1") == [wanted]


@pytest.mark.parametrize("table", ["demand", "issuedgrant", "issuedlease"])
def test_what_a_client_has_and_wants_is_filtered_by_client(operator: Client, table: str) -> None:
    wanted, _other = TABLES[table](1), TABLES[table](2)
    assert listed(operator, table, client="shop-1") == [wanted]


def test_groups_are_filtered_by_reason_and_keys_by_set_aside(operator: Client) -> None:
    blocked = factories.KeyGroupFactory(key__name="a", blocked=True)
    factories.KeyGroupFactory(key__name="b")
    aside = factories.KeyFactory(name="c", set_aside=True)
    assert listed(operator, "keygroup", reason="key_limit") == [blocked]
    assert listed(operator, "keygroup", reason="paused") == []
    assert listed(operator, "key", set_aside="yes") == [aside]


@pytest.mark.parametrize("parameter", ["queue", "key", "group"])
@pytest.mark.parametrize("value", ["unknown", "a\0b", "x" * 300])
def test_a_filter_for_what_there_is_not_finds_nothing(operator: Client, parameter: str, value: str) -> None:
    factories.ItemFactory()
    assert listed(operator, "item", **{parameter: value}) == []


@pytest.mark.parametrize("parameter", ["q", "state", "p", "o"])
def test_rubbish_in_the_address_of_a_list_breaks_nothing(operator: Client, parameter: str) -> None:
    factories.ItemFactory()
    response = operator.get(list_url("item"), {parameter: "a\0b"}, follow=True)
    assert response.status_code == 200


def test_a_list_is_asked_for_nothing_but_its_filters(operator: Client) -> None:
    grant = factories.GrantFactory(closed=True)
    assert listed(operator, "grant", closed__exact="1") == [grant]
    assert listed(operator, "grant", closed__exact="0") == []
    for parameter in ("uid", "uid__contains", "key__error__contains"):
        assert operator.get(list_url("grant"), {parameter: "a\0b"}).status_code == 400


def test_a_filter_keeps_the_others(operator: Client) -> None:
    factories.ItemFactory()
    page = operator.get(list_url("item"), {"state": "queued", "key": "acct-42"}).text
    forms = [form.partition("</form>")[0] for form in page.split('<form method="get">')]
    by_key, by_group = (
        next(form for form in forms if f'type="search" name="{name}"' in form) for name in ("key", "group")
    )
    assert '<input type="hidden" name="state" value="queued">' in by_key
    assert by_key.count('name="key"') == 1
    assert '<input type="hidden" name="key" value="acct-42">' in by_group


@pytest.mark.databases("sqlite")  # Its planner knows no statistics, so that the plan does not hang on the rows.
@pytest.mark.parametrize(
    "query",
    [{}, {"state": "admitted"}, {"key": "a"}, {"key": "a", "state": "queued", "group": "x"}, {"q": "id"}, {"q": "a"}],
    ids=str,
)
def test_an_index_serves_the_list_of_items(operator: Client, query: dict[str, str]) -> None:
    """(B85, B113)"""
    factories.ItemFactory(uid="id", key="a")
    plan = operator.get(list_url("item"), query).context["cl"].queryset[:100].explain()
    if query:
        assert "SEARCH django_semq_item USING INDEX" in plan
    else:
        assert "SCAN django_semq_item" in plan
        assert "TEMP B-TREE" not in plan


def test_the_queue_of_a_grant_costs_a_join_only_where_it_is_asked_for(operator: Client) -> None:
    factories.GrantFactory(key__queue="default")
    factories.GrantFactory(key__queue="reports")

    def sql(**query: str) -> str:
        return str(operator.get(list_url("grant"), query).context["cl"].queryset.query)

    assert "JOIN" not in sql(closed__exact="0")
    assert "JOIN" in sql(closed__exact="0", queue="reports")


def test_a_list_loads_no_bodies_and_a_page_cuts_a_long_one(operator: Client) -> None:
    """(B83)"""
    item = factories.ItemFactory(body='"<b>' + "x" * 100_000 + '"')
    (row,) = listed(operator, "item")
    assert "body" in row.get_deferred_fields()
    page = operator.get(page_url("item", item)).text
    assert "&quot;&lt;b&gt;xxx" in page
    assert len(page) < 50_000


def test_nobody_sees_a_token_hash(operator: Client) -> None:
    client = factories.ClientFactory(token_hash="pbkdf2$secret")
    for url in (list_url("client"), page_url("client", client)):
        assert "secret" not in operator.get(url).text
