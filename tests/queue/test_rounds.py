"""A round takes a bounded number of permits, and what is left has its turn at once."""

import pytest

from django_semq import enqueue_many, usage
from django_semq.driver.tick import tick
from django_semq.models import Grant, Item
from django_semq.queue import pump

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_long_backlog_without_a_limit_is_admitted_in_rounds(app, monkeypatch):
    monkeypatch.setattr(pump, "PERMITS_PER_ROUND", 3)
    app.configure(holder={"DEFAULT_LIMIT": None})
    enqueue_many({"key": "acct-42", "body": number, "id": f"i{number}"} for number in range(10))
    assert usage() == {"queued": 7, "claiming": 0, "admitted": 3}

    tick(threads=0)

    assert usage() == {"queued": 0, "claiming": 0, "admitted": 10}
    assert sorted(Grant.objects.values_list("permits", flat=True)) == [1, 3, 3, 3]
    assert app.admitted == list(Item.objects.order_by("pk").values_list("uid", flat=True))
