"""What the database itself refuses to store, whoever writes it."""

import itertools

import pytest
from django.db import IntegrityError, transaction

from django_semq.models import Grant, IssuedGrant, IssuedLease, Item, Key, KeyGroup, Lease, Semaphore, State
from tests.factories import (
    CeilingFactory,
    ClientFactory,
    GrantFactory,
    IssuedGrantFactory,
    IssuedLeaseFactory,
    ItemFactory,
    KeyFactory,
    KeyGroupFactory,
    LeaseFactory,
    SemaphoreFactory,
)

CHAINS = {
    GrantFactory: ["released", "admitted", "confirmed", "claimed", "permits"],
    LeaseFactory: ["released", "drawn", "permits"],
    IssuedGrantFactory: ["released", "claimed", "permits"],
    IssuedLeaseFactory: ["released", "drawn", "permits"],
}
LINKS = [(factory, *link) for factory, chain in CHAINS.items() for link in itertools.pairwise(chain)]


def refused(work) -> bool:
    try:
        with transaction.atomic():
            work()
    except IntegrityError:
        return True
    return False


@pytest.mark.django_db
@pytest.mark.parametrize(("factory", "less", "more"), LINKS, ids=lambda it: getattr(it, "__name__", it))
def test_no_counter_of_a_grant_or_lease_is_above_the_one_before_it(factory, less, more):
    chain = CHAINS[factory]
    full = dict.fromkeys(chain, 5)
    row = factory(**full)
    later = dict.fromkeys(chain[: chain.index(less) + 1], 6)
    assert refused(lambda: type(row).objects.filter(pk=row.pk).update(**later))
    assert not refused(lambda: type(row).objects.filter(pk=row.pk).update(**dict.fromkeys(chain, 6)))


@pytest.mark.django_db
@pytest.mark.parametrize("factory", CHAINS, ids=lambda it: it.__name__)
def test_no_counter_of_a_grant_or_lease_is_below_zero(factory):
    row = factory()
    assert refused(lambda: type(row).objects.filter(pk=row.pk).update(released=-1))


@pytest.mark.django_db
@pytest.mark.parametrize("factory", [SemaphoreFactory, CeilingFactory], ids=lambda it: it.__name__)
def test_no_footprint_is_below_zero(factory):
    row = factory()
    assert refused(lambda: type(row).objects.filter(pk=row.pk).update(footprint=-1))


@pytest.mark.django_db
def test_the_counters_of_a_group_may_be_below_zero_for_a_while():
    """What is not folded yet may belong before what is."""
    row = KeyGroupFactory()
    KeyGroup.objects.filter(pk=row.pk).update(queued=-3, admitted=-1)
    row.refresh_from_db()
    assert (row.queued, row.admitted) == (-3, -1)


@pytest.mark.django_db
def test_what_has_to_be_unique_is():
    item, grant, lease = ItemFactory(), GrantFactory(), LeaseFactory()
    group, client = KeyGroupFactory(), ClientFactory()
    issued, leased = IssuedGrantFactory(), IssuedLeaseFactory()
    for twice in [
        lambda: Item.objects.create(uid=item.uid, queue=item.queue, key="other", enqueued_at=item.enqueued_at),
        lambda: Key.objects.create(queue=grant.key.queue, name=grant.key.name),
        lambda: KeyGroup.objects.create(key=group.key, name=group.name),
        lambda: GrantFactory(uid=grant.uid),
        lambda: LeaseFactory(uid=lease.uid),
        lambda: Semaphore.objects.create(name=issued.semaphore.name),
        lambda: type(client).objects.create(client_id=client.client_id),
        lambda: IssuedGrantFactory(uid=issued.uid),
        lambda: IssuedLeaseFactory(uid=leased.uid),
    ]:
        assert refused(twice)
    assert KeyFactory(queue="other", name=grant.key.name).pk != grant.key.pk


def test_an_item_is_queued_claiming_or_admitted_and_nothing_else():
    assert [(state.value, state.name) for state in State] == [(0, "QUEUED"), (1, "CLAIMING"), (2, "ADMITTED")]
    assert Lease.State.values == [0, 1, 2]
    assert IssuedLease.State.values == [0, 1, 2]


def test_a_grant_of_the_client_and_one_of_the_holder_are_two_rows():
    """Only messages pass between them, so that a holder somewhere else changes nothing."""
    assert not {field.related_model for field in Grant._meta.get_fields()} & {IssuedGrant, IssuedLease, Semaphore}
    assert not {field.related_model for field in IssuedGrant._meta.get_fields()} & {Grant, Lease, Key, Item}
