"""Rows in each state, one factory a table.

They write tables as they are asked to and keep no sum over several of them: an item made here is in no
group's counters and its grant is unknown to the holder. A test whose rows must agree with each other
enqueues.
"""

import uuid
from datetime import UTC, datetime, timedelta

import factory
from factory.django import DjangoModelFactory

from django_semq import clock
from django_semq.models import (
    Ceiling,
    Client,
    Demand,
    Grant,
    IssuedGrant,
    IssuedLease,
    Item,
    Key,
    KeyGroup,
    Lease,
    Nudge,
    Semaphore,
    State,
)

NOON = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


class KeyFactory(DjangoModelFactory):
    """The key of this queue and name, made if there is none. Traits: `set_aside`."""

    class Meta:
        model = Key
        django_get_or_create = ("queue", "name")
        skip_postgeneration_save = True

    class Params:
        set_aside = factory.Trait(
            set_aside_until=factory.LazyFunction(lambda: clock.now() + timedelta(minutes=5)),
            set_aside_count=1,
            error="RuntimeError: it broke",
        )

    queue = "default"
    name = "acct-42"


class KeyGroupFactory(DjangoModelFactory):
    """The counters of one group. Traits: `blocked`."""

    class Meta:
        model = KeyGroup
        skip_postgeneration_save = True

    class Params:
        blocked = factory.Trait(blocked_reason="key_limit", blocked_at=NOON)

    key = factory.SubFactory(KeyFactory)
    name = ""
    queued = 1


class GrantFactory(DjangoModelFactory):
    """A grant whose permits are still to be claimed. Traits: `claimed_all`, `admitted_all` (and closed)."""

    class Meta:
        model = Grant
        skip_postgeneration_save = True

    class Params:
        claimed_all = factory.Trait(claimed=factory.SelfAttribute("permits"))
        admitted_all = factory.Trait(
            claimed=factory.SelfAttribute("permits"),
            confirmed=factory.SelfAttribute("permits"),
            admitted=factory.SelfAttribute("permits"),
            closed=True,
            acked_claimed=factory.SelfAttribute("permits"),
            acked_closed=True,
        )

    uid = factory.LazyFunction(lambda: uuid.uuid4().hex)
    key = factory.SubFactory(KeyFactory)
    group = ""
    permits = 1
    created_at = NOON


class LeaseFactory(DjangoModelFactory):
    """A live lease of which nothing is drawn. Traits: `stopped`, `settled`."""

    class Meta:
        model = Lease
        skip_postgeneration_save = True

    class Params:
        stopped = factory.Trait(state=Lease.State.STOPPED)
        settled = factory.Trait(state=Lease.State.SETTLED)

    uid = factory.LazyFunction(lambda: uuid.uuid4().hex)
    key = factory.SubFactory(KeyFactory)
    group = ""
    permits = 10
    created_at = NOON
    draw_until = NOON + timedelta(seconds=270)
    expires_at = NOON + timedelta(seconds=300)
    renew_at = NOON + timedelta(seconds=150)
    renew_seconds = 300.0


class ItemFactory(DjangoModelFactory):
    """An item, queued unless said otherwise. Traits: `queued`; `claiming` and `admitted`, each with a grant
    of its own; `handed_over_once`: admitted, and admit() has returned."""

    class Meta:
        model = Item
        skip_postgeneration_save = True

    class Params:
        queued = factory.Trait(state=State.QUEUED)
        claiming = factory.Trait(
            state=State.CLAIMING,
            grant_id=factory.LazyAttribute(lambda item: _grant_of(item, claimed_all=True)),
        )
        admitted = factory.Trait(
            state=State.ADMITTED,
            admitted_at=NOON + timedelta(seconds=1),
            due_at=clock.LONG_AGO,
            grant_id=factory.LazyAttribute(lambda item: _grant_of(item, admitted_all=True)),
        )
        handed_over_once = factory.Trait(admitted=True, handed_over=True, attempt=1, due_at=None)

    uid = factory.Sequence(lambda number: f"order:{number}")
    queue = "default"
    key = "acct-42"
    group = ""
    body = "{}"
    enqueued_at = NOON


class NudgeFactory(DjangoModelFactory):
    """What an enqueue of one item leaves. Traits: `came_back`, what a release leaves."""

    class Meta:
        model = Nudge
        skip_postgeneration_save = True

    class Params:
        came_back = factory.Trait(
            queued_delta=0,
            returned=1,
            grant_id=factory.LazyAttribute(lambda nudge: _grant_of(nudge, admitted_all=True)),
        )

    queue = "default"
    key = "acct-42"
    group = ""
    queued_delta = 1
    created_at = NOON


class SemaphoreFactory(DjangoModelFactory):
    """The semaphore of this name, made if there is none. Traits: `overridden` (to 5)."""

    class Meta:
        model = Semaphore
        django_get_or_create = ("name",)
        skip_postgeneration_save = True

    class Params:
        overridden = factory.Trait(has_override=True, override=5)

    name = "acct-42"


class CeilingFactory(DjangoModelFactory):
    """A group at the holder. Traits: `overridden` (to 2)."""

    class Meta:
        model = Ceiling
        skip_postgeneration_save = True

    class Params:
        overridden = factory.Trait(has_override=True, override=2)

    semaphore = factory.SubFactory(SemaphoreFactory)
    name = "exports"


class ClientFactory(DjangoModelFactory):
    """The client of this identity, made if there is none: a local queue. Traits: `remote`, `evicted`."""

    class Meta:
        model = Client
        django_get_or_create = ("client_id",)
        skip_postgeneration_save = True

    class Params:
        remote = factory.Trait(client_id=factory.Sequence(lambda number: f"shop-{number}"), queue="")
        evicted = factory.Trait(remote=True, evicted_at=NOON)

    client_id = "default"
    queue = factory.SelfAttribute("client_id")


class DemandFactory(DjangoModelFactory):
    class Meta:
        model = Demand
        skip_postgeneration_save = True

    semaphore = factory.SubFactory(SemaphoreFactory)
    client = factory.SubFactory(ClientFactory)
    group = ""
    count = 1
    since = NOON
    fresh_until = NOON + timedelta(seconds=60)


class IssuedGrantFactory(DjangoModelFactory):
    """A grant that is not claimed yet. Traits: `claimed_all` (and clamped)."""

    class Meta:
        model = IssuedGrant
        skip_postgeneration_save = True

    class Params:
        claimed_all = factory.Trait(claimed=factory.SelfAttribute("permits"), clamped=True)

    uid = factory.LazyFunction(lambda: uuid.uuid4().hex)
    semaphore = factory.SubFactory(SemaphoreFactory)
    client = factory.SubFactory(ClientFactory)
    group = ""
    permits = 1
    claim_until = NOON + timedelta(seconds=30)
    issued_at = NOON


class IssuedLeaseFactory(DjangoModelFactory):
    """A live lease of which nothing is drawn. Traits: `recalled`, `retired`."""

    class Meta:
        model = IssuedLease
        skip_postgeneration_save = True

    class Params:
        recalled = factory.Trait(state=IssuedLease.State.RECALLED)
        retired = factory.Trait(state=IssuedLease.State.RETIRED)

    uid = factory.LazyFunction(lambda: uuid.uuid4().hex)
    semaphore = factory.SubFactory(SemaphoreFactory)
    client = factory.SubFactory(ClientFactory)
    group = ""
    permits = 10
    expires_at = NOON + timedelta(seconds=300)
    issued_at = NOON


def _grant_of(row: object, **traits: bool) -> int:
    """The row number of a grant that fits an item or a nudge."""
    return GrantFactory(key__queue=row.queue, key__name=row.key, group=row.group, **traits).pk
