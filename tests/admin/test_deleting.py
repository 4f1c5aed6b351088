"""What deletes items past the library's verbs: their permits must not go with them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction
from django.db.models import ProtectedError

from django_semq import enqueue, release, status, usage
from django_semq.driver.tick import tick
from django_semq.invariants import audit
from django_semq.models import Item, Nudge, State
from tests import factories

pytestmark = pytest.mark.django_db

HOLDERS = [State.CLAIMING, State.ADMITTED]


@contextmanager
def refused(match: str = "its permit would be lost") -> Iterator[pytest.ExceptionInfo[ProtectedError]]:
    # Django's delete leaves the transaction around it to be rolled back.
    with pytest.raises(ProtectedError, match=match) as caught, transaction.atomic():
        yield caught


@pytest.mark.parametrize("state", HOLDERS)
def test_an_item_that_has_a_permit_is_not_deleted(state: State) -> None:
    item = factories.ItemFactory(uid="order:1", state=state)
    with refused(match=f"'order:1' of queue 'default' is {state.name.lower()}.*release"):
        item.delete()
    assert Item.objects.get() == item


@pytest.mark.parametrize("state", HOLDERS)
def test_a_bulk_delete_that_meets_one_deletes_nothing(state: State) -> None:
    items = [factories.ItemFactory(), factories.ItemFactory(state=state), factories.ItemFactory()]
    with refused() as caught:
        Item.objects.filter(key="acct-42").delete()
    assert caught.value.protected_objects == {items[1]}
    assert list(Item.objects.order_by("pk")) == items


def test_queued_items_may_be_deleted() -> None:
    factories.ItemFactory().delete()
    factories.ItemFactory.create_batch(3)
    Item.objects.all().delete()
    assert not Item.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_counters_follow_a_queued_item_that_is_deleted() -> None:
    for _ in range(3):
        enqueue("acct-42", {})
    assert usage() == {"queued": 2, "claiming": 0, "admitted": 1}
    Item.objects.filter(state=State.QUEUED).delete()
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}
    tick(threads=0)
    assert audit() == []


def test_an_item_that_was_read_before_it_was_admitted_is_not_deleted() -> None:
    read_before = factories.ItemFactory()
    Item.objects.update(state=State.ADMITTED)
    with refused():
        read_before.delete()
    with refused():
        Item.objects.defer("state").get().delete()
    assert Item.objects.exists()


def test_the_refused_item_can_be_released(committed: Callable[..., Any]) -> None:
    committed(enqueue, "acct-42", None, id="only")
    with refused():
        Item.objects.all().delete()
    assert committed(release, "only")
    assert status("only") is None
    assert not Nudge.objects.exists()
