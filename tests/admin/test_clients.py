"""Tokens and evictions at the page of the clients."""

from typing import Any

import pytest
from django.test import Client as Browser
from django.urls import reverse

from django_semq import clock
from django_semq.holder import clients
from django_semq.models import Client, IssuedGrant
from tests.admin.conftest import logged
from tests.factories import IssuedGrantFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(db: None) -> Client:
    clients.add("shop")
    return Client.objects.get()


def said(response: Any) -> list[str]:
    return [str(message) for message in response.context["messages"]]


def test_a_new_token_is_shown_once_and_logged_without_it(operator: Browser, act: Any, shop: Client) -> None:
    (text,) = said(act(operator, "rotate", shop))
    token = text.rpartition(" ")[2]
    assert clients.by_token(token) == shop
    assert not any(token in words for entry in logged() for words in entry)
    page = operator.get(reverse("admin:django_semq_client_change", args=[shop.pk]))
    assert token not in page.content.decode()
    shop.refresh_from_db()
    assert shop.token_hash not in page.content.decode()


def test_an_evicted_client_loses_what_it_holds_and_may_be_re_admitted(
    operator: Browser, act: Any, shop: Client
) -> None:
    IssuedGrantFactory(client=shop, permits=1)
    Client.objects.filter(pk=shop.pk).update(last_seen=clock.now())
    grant = IssuedGrant.objects.get()
    type(grant.semaphore).objects.update(footprint=1)
    grant.semaphore.ceilings.create(name="", footprint=1)

    assert said(act(operator, "evict", shop)) == ["shop: Evicted; permits freed: 1."]

    shop.refresh_from_db()
    assert shop.evicted_at is not None
    assert not IssuedGrant.objects.exists()
    assert said(act(operator, "readmit", shop)) == ["shop: Re-admitted."]
    shop.refresh_from_db()
    assert shop.evicted_at is None


def test_a_queue_of_the_project_is_left_alone(operator: Browser, act: Any) -> None:
    row = Client.objects.create(client_id="default", queue="default")
    (text,) = said(act(operator, "evict", row))
    assert "there is no client 'default' that has a token" in text
    row.refresh_from_db()
    assert row.evicted_at is None


def test_who_may_only_look_may_not_act(client_with: Any, shop: Client) -> None:
    staff = client_with("view_client")
    assert staff.get(reverse("admin:django_semq_client_changelist")).status_code == 200
    url = reverse("admin:django_semq_client_ask", args=[shop.pk, "evict"])
    assert staff.get(url).status_code == 403
