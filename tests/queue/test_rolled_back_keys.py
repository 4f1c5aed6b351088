"""Keys that only rolled-back work named leave nothing behind."""

import pytest
from django.db import transaction

from django_semq import enqueue
from django_semq.models import Key

pytestmark = pytest.mark.django_db(transaction=True)


def fail_after_enqueueing(key):
    with transaction.atomic():
        enqueue(key, 1)
        raise ZeroDivisionError


def test_a_key_of_a_rolled_back_transaction_is_not_pumped_by_the_next_commit():
    with pytest.raises(ZeroDivisionError):
        fail_after_enqueueing("never committed")

    enqueue("committed", 1)

    assert set(Key.objects.values_list("name", flat=True)) == {"committed"}


def test_a_key_of_a_rolled_back_savepoint_is_not_pumped_with_its_transaction():
    with transaction.atomic():
        enqueue("committed", 1)
        with pytest.raises(ZeroDivisionError):
            fail_after_enqueueing("never committed")

    assert set(Key.objects.values_list("name", flat=True)) == {"committed"}
