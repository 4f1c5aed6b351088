"""The operators' verbs: felt at once, safe to repeat, and nothing that runs is stopped."""

import re

import pytest

from django_semq import (
    InvalidItem,
    InvalidLimit,
    cancel,
    clock,
    enqueue_many,
    release,
    release_many,
    semaphores,
    status,
    usage,
)
from django_semq.holder.semaphores import GroupUsage
from django_semq.models import Ceiling, Nudge, Semaphore
from tests.factories import IssuedGrantFactory, IssuedLeaseFactory, SemaphoreFactory


def many(count: int, group: str = "", prefix: str = "") -> None:
    enqueue_many([{"key": "acct-42", "group": group, "body": {}, "id": f"{prefix}{number}"} for number in range(count)])


def test_a_raised_limit_is_felt_at_once(app):
    many(5)
    semaphores.set_limit("acct-42", 3)
    assert usage() == {"queued": 2, "claiming": 0, "admitted": 3}


def test_a_raised_ceiling_is_felt_at_once(app):
    app.configure(holder={"DEFAULT_LIMIT": 9, "RULES": {"*": {"groups": {"exports": 1}}}})
    many(5, group="exports")
    semaphores.set_ceiling("acct-42", "exports", 4)
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 4}


def test_a_limit_can_be_set_before_its_key_is_used(app):
    semaphores.set_limit("acct-42", 2)
    semaphores.set_ceiling("acct-42", "exports", 1)
    many(5, group="exports")
    assert usage()["admitted"] == 1


def test_a_lowered_limit_stops_nothing_that_runs_and_lets_the_rest_drain(app):
    app.configure(holder={"DEFAULT_LIMIT": 4})
    many(6)
    semaphores.set_limit("acct-42", 2)
    said = semaphores.usage("acct-42")
    assert (said.footprint, said.headroom) == (4, -2)

    release_many(["0", "1"])
    assert (status("4").state, status("5").state) == ("queued", "queued")
    release("2")
    assert (status("4").state, status("5").state) == ("admitted", "queued")


def test_zero_blocks_and_none_is_unlimited(app):
    semaphores.set_limit("acct-42", 0)
    many(3)
    assert status("0").blocked == "key_limit"
    semaphores.set_limit("acct-42", None)
    assert usage()["admitted"] == 3


def test_a_ceiling_of_none_lifts_that_of_the_rules(app):
    app.configure(holder={"DEFAULT_LIMIT": 9, "RULES": {"*": {"groups": {"*": 1}}}})
    many(5, group="exports")
    semaphores.set_ceiling("acct-42", "exports", None)
    assert usage()["admitted"] == 5
    assert semaphores.usage("acct-42").groups["exports"] == GroupUsage(None, 5, None, False)


def test_a_lowered_limit_takes_back_what_is_not_claimed_yet(app):
    """Of a client that has not said yet which of its permits it uses: those it did claim run on."""
    app.counters_agree = False
    semaphore = SemaphoreFactory(footprint=6, overridden=True)
    Ceiling.objects.create(semaphore=semaphore, name="", footprint=6)
    IssuedGrantFactory(semaphore=semaphore, client__remote=True, permits=6, claimed=2, released=1)
    Semaphore.objects.update(footprint=5)
    Ceiling.objects.update(footprint=5)

    semaphores.set_limit("acct-42", 4)
    said = semaphores.usage("acct-42")
    assert said.footprint == said.groups[""].footprint == 1
    assert [(one.permits, one.in_use) for one in said.issued] == [(2, 1)]


def test_a_paused_key_gives_nothing_until_it_is_resumed(app):
    app.configure(holder={"DEFAULT_LIMIT": 2})
    many(3)
    semaphores.pause("acct-42")
    release_many(["0", "1"])
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 0}
    assert status("2").blocked == "paused"
    assert semaphores.usage("acct-42").paused

    semaphores.resume("acct-42")
    assert status("2").state == "admitted"


def test_a_paused_group_stops_no_other(app):
    app.configure(holder={"DEFAULT_LIMIT": 9})
    semaphores.pause("acct-42", group="exports")
    many(2, group="exports", prefix="e")
    many(2, group="imports", prefix="i")
    assert [status(uid).state for uid in ["e0", "e1", "i0", "i1"]] == ["queued", "queued", "admitted", "admitted"]
    assert status("e0").blocked == "paused"

    semaphores.resume("acct-42", group="exports")
    assert usage()["admitted"] == 4


def test_a_resumed_key_leaves_a_paused_group_paused(app):
    app.configure(holder={"DEFAULT_LIMIT": 9})
    semaphores.pause("acct-42")
    semaphores.pause("acct-42", group="exports")
    many(1, group="exports")
    semaphores.resume("acct-42")
    assert status("0").blocked == "paused"


def test_what_runs_goes_on_and_can_be_released_while_its_key_is_paused(app):
    many(1)
    semaphores.pause("acct-42")
    app.tick()
    assert app.admitted == ["0"]
    assert release("0")


def test_each_verb_may_be_repeated(app):
    verbs = [
        lambda: semaphores.set_limit("acct-42", 3),
        lambda: semaphores.set_ceiling("acct-42", "exports", 2),
        lambda: semaphores.pause("acct-42"),
        lambda: semaphores.pause("acct-42", "exports"),
        lambda: semaphores.resume("acct-42", "exports"),
        lambda: semaphores.resume("acct-42"),
        lambda: semaphores.reset_limit("acct-42", "exports"),
        lambda: semaphores.reset_limit("acct-42"),
        lambda: semaphores.refresh("acct-42"),
    ]
    for verb in verbs:
        verb()
        said = semaphores.usage("acct-42")
        verb()
        assert semaphores.usage("acct-42") == said
    assert said == semaphores.KeyUsage(1, "default", 0, 1, False, {}, [])


def test_nobody_is_nudged_where_nobody_waits(app):
    many(1)
    semaphores.set_limit("acct-42", 5)
    cancel("0")
    semaphores.pause("other")
    assert not Nudge.objects.exists()


@pytest.mark.parametrize("limit", [-1, 1.0, True, "5", 2**31, float("inf")])
def test_what_is_no_limit_is_refused_with_what_to_give(app, limit):
    text = "give a whole number from 0 (blocks) to 2147483647, or None (unlimited)"
    with pytest.raises(InvalidLimit, match=f"^the limit of key 'acct-42' is {limit!r}; {re.escape(text)}"):
        semaphores.set_limit("acct-42", limit)
    with pytest.raises(InvalidLimit, match=f"^the ceiling of group 'g' of key 'acct-42' is {limit!r}; "):
        semaphores.set_ceiling("acct-42", "g", limit)
    assert not Semaphore.objects.exists()


@pytest.mark.parametrize(
    "verb", [semaphores.pause, semaphores.resume, semaphores.reset_limit, semaphores.usage], ids=lambda it: it.__name__
)
@pytest.mark.parametrize("key", ["", None, 5, "x" * 256, "nul\0"])
def test_what_is_no_key_is_refused(app, verb, key):
    with pytest.raises(InvalidItem, match=r"^key is ") as refused:
        verb(key)
    assert refused.value.field == "key"


def test_what_is_no_group_is_refused(app):
    with pytest.raises(InvalidItem, match=r"^group is 5: give a text"):
        semaphores.pause("acct-42", group=5)


def test_usage_shows_what_is_out_and_with_whom(app):
    app.configure(holder={"DEFAULT_LIMIT": 9, "RULES": {"*": {"limit": 9, "groups": {"exports": 5}}}})
    before = clock.now()
    many(3, group="exports")
    many(2, prefix="plain")
    release("0")

    said = semaphores.usage("acct-42")

    assert (said.limit, said.source, said.footprint, said.headroom, said.paused) == (9, "rule", 4, 5, False)
    assert said.groups == {"": GroupUsage(None, 2, None, False), "exports": GroupUsage(5, 2, 3, False)}
    assert [(one.client, one.kind, one.group, one.permits, one.in_use) for one in said.issued] == [
        ("default", "grant", "exports", 3, 2),
        ("default", "grant", "", 2, 2),
    ]
    assert all(before <= one.since <= clock.now() for one in said.issued)


def test_usage_shows_leases_too(app):
    app.counters_agree = False
    lease = IssuedLeaseFactory(client__remote=True, permits=10, drawn=4, released=1)
    (one,) = semaphores.usage("acct-42").issued
    assert (one.kind, one.id, one.permits, one.in_use) == ("lease", lease.uid, 10, 3)
