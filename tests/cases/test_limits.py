"""What a limit means at its edges: negative room, none at all, changed under load, paused, written in odd ways."""

import io
from itertools import count

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django.urls import reverse

from django_semq import (
    InvalidItem,
    InvalidLimit,
    clock,
    enqueue,
    enqueue_many,
    release,
    release_many,
    semaphores,
    status,
)
from django_semq.holder.sweep import remove_idle
from django_semq.invariants import audit, repair
from django_semq.models import IssuedGrant, Item, Semaphore, State
from tests.cases.crashes import forget
from tests.queue.application import in_thread, raising

ONE = "acct-42"


def many(number, prefix="", key=ONE, group=""):
    enqueue_many([{"key": key, "group": group, "body": {}, "id": f"{prefix}{n}"} for n in range(number)])


def admitted(key=ONE):
    return Item.objects.filter(key=key, state=State.ADMITTED).count()


def test_below_zero_nothing_is_free(app):
    """(B14)"""
    app.configure(holder={"DEFAULT_LIMIT": 10})
    many(10)
    semaphores.set_limit(ONE, 4)
    many(100, "later ")
    app.tick()
    said = semaphores.usage(ONE)
    assert (said.footprint, said.headroom) == (10, -6)
    for number in range(10):
        release(f"{number}")
        app.tick()
        assert admitted() == max(4, 9 - number)
    assert not IssuedGrant.objects.filter(permits__lte=0).exists()


def test_what_runs_under_no_limit_counts_when_one_is_set(app):
    """(B25)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    many(50)
    semaphores.set_limit(ONE, 10)
    many(5, "later ")
    assert (semaphores.usage(ONE).footprint, semaphores.usage(ONE).headroom) == (50, -40)
    release_many([f"{number}" for number in range(40)])
    app.tick()
    assert (admitted(), status("later 0").blocked) == (10, "key_limit")
    release("40")
    assert (admitted(), status("later 0").state) == (10, "admitted")


def test_every_item_counts_in_its_own_group_and_none_is_no_group(app):
    """(B21)"""
    app.configure(holder={"DEFAULT_LIMIT": 10, "RULES": {"*": {"groups": {"a": 2}}}})
    for group in (None, 0, False):
        with pytest.raises(InvalidItem, match="group is"):
            enqueue(ONE, {}, group=group)
    for group in ("a", "", "0", "None"):
        many(10, f"{group} ", group=group)

    def by_group():
        return {name: group.footprint for name, group in semaphores.usage(ONE).groups.items() if group.footprint}

    before = by_group()
    assert before["a"] == 2
    assert sum(before.values()) == admitted() == 10
    forget()
    app.tick()
    assert by_group() == before
    release_many(Item.objects.filter(group="", state=State.ADMITTED).values_list("uid", flat=True))
    assert by_group()["a"] == 2
    assert admitted() == 10


def test_saying_the_same_limit_again_makes_no_room(app):
    """However it is said. (B31)"""
    app.configure(holder={"DEFAULT_LIMIT": 4})
    many(20)
    for _time in range(5):
        semaphores.set_limit(ONE, 4)
        semaphores.set_ceiling(ONE, "", 4)
        semaphores.refresh(ONE)
        call_command("semq_limit", ONE, "4", verbosity=0, stdout=io.StringIO())
        Semaphore.objects.update_or_create(name=ONE, defaults={"has_override": True, "override": 4})
    app.configure(holder={"DEFAULT_LIMIT": 4, "RULES": {ONE: {"limit": 4}}})
    forget()
    app.tick()
    assert semaphores.usage(ONE).footprint == admitted() == 4


def test_a_limit_that_is_set_while_permits_are_given_forgets_none(app):
    """Whatever it has read before it has the lock. (B31, B32)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    for statement in count(1):
        passed = 0

        def give_meanwhile(execute, sql, params, many_, context, statement=statement):
            nonlocal passed
            passed += not connection.in_atomic_block
            if passed == statement and not connection.in_atomic_block:
                in_thread(lambda: many(3, f"{statement} "))
            return execute(sql, params, many_, context)

        with connection.execute_wrapper(give_meanwhile):
            semaphores.set_limit(ONE, 1000)
        app.tick()
        assert semaphores.usage(ONE).footprint == admitted() == 3 * min(statement, passed)
        if passed < statement:
            break


NO_LIMIT = [-1, 1.0, 1.5, True, "", "5", "05", "٣", 2**31, 2**63, 10**30, float("nan"), [], {}]
NO_NUMBER = ["", " ", "1.0", "1e3", "-1", "0x5", "five", "2147483648", "9" * 30, "null"]


@pytest.mark.parametrize("limit", NO_LIMIT, ids=repr)
def test_what_is_no_limit_is_refused_everywhere_a_limit_is_set(app, limit):
    """(B60)"""
    with pytest.raises(InvalidLimit):
        semaphores.set_limit(ONE, limit)
    with pytest.raises(InvalidLimit):
        semaphores.set_ceiling(ONE, "g", limit)
    app.configure(holder={"LIMITS": "tests.queue.application.limits"})
    app.on_limits = lambda key: {"limit": limit}
    assert not Semaphore.objects.filter(has_override=True).exists()
    many(2)
    assert admitted() == 1  # The default counts, and what waits is not lost.


@pytest.mark.parametrize("text", NO_NUMBER)
def test_a_limit_is_typed_as_a_plain_whole_number(app, admin_client: Client, text):
    """(B60)"""
    semaphores.set_limit(ONE, 7)
    with pytest.raises((CommandError, SystemExit)):
        call_command("semq_limit", ONE, "--", text, stderr=io.StringIO())
    semaphore = Semaphore.objects.get()
    url = reverse("admin:django_semq_semaphore_changelist")
    fields = {"action": "set_limit", "_selected_action": [semaphore.pk], "confirmed": "yes", "limit": text}
    assert admin_client.post(url, fields).status_code == 200
    assert semaphores.usage(ONE).limit == 7


@pytest.mark.parametrize("group", [None, "g"])
def test_zero_is_a_limit_and_the_largest_number_too(app, group):
    """(B60)"""

    def set_limit(limit):
        semaphores.set_limit(ONE, limit) if group is None else semaphores.set_ceiling(ONE, group, limit)

    app.configure(holder={"DEFAULT_LIMIT": None})
    set_limit(0)
    many(10, group="g")
    app.tick()
    assert (admitted(), status("0").blocked) == (0, "key_limit" if group is None else "group_limit")
    set_limit(5)
    assert admitted() == 5
    set_limit(2**31 - 1)
    assert admitted() == 10


def test_a_pause_holds_for_everything_that_would_admit(app):
    """Retries, questions, releases, repairs and new processes; what was admitted before goes on. (B62)"""
    app.configure({"FINISHED": "tests.queue.application.finished"}, holder={"DEFAULT_LIMIT": 3})
    app.on_admit = raising(ValueError("not now"))
    many(6)
    app.tick()
    semaphores.pause(ONE)
    before = len(app.batches)
    for _minute in range(5):
        app.pass_time(minutes=1)
        app.tick()
        forget()
        repair(audit(), now=clock.now())
    assert len(app.batches) > before
    assert set(app.admitted) == {"0", "1", "2"}

    app.on_admit = lambda items: None
    app.pass_time(minutes=2)
    app.tick()
    release_many(["0", "1", "2"])
    many(1, "new ")
    app.tick()
    assert (admitted(), status("3").blocked, status("new 0").state) == (0, "paused", "queued")
    assert semaphores.usage(ONE).footprint == 0

    app.batches.clear()
    semaphores.resume(ONE)
    app.tick()
    release_many(["3", "4", "5"])
    app.tick()
    assert app.admitted == ["3", "4", "5", "new 0"]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_pause_of_what_nobody_uses_is_kept_until_it_is_lifted(app, group):
    """(B63)"""

    def is_paused():
        said = semaphores.usage(ONE)
        return said.paused if group is None else said.groups[group].paused if group in said.groups else False

    semaphores.pause(ONE, group)
    semaphores.pause(ONE, group)
    app.pass_time(days=2)
    remove_idle(clock.now())
    forget()
    many(1, group="g")
    app.tick()
    assert is_paused()
    assert (status("0").state, status("0").blocked) == ("queued", "paused")
    many(1, "elsewhere ", key="other", group="g")
    many(1, "beside ", group="h")
    assert status("elsewhere 0").state == "admitted"
    assert status("beside 0").state == ("queued" if group is None else "admitted")

    release("beside 0")
    semaphores.resume(ONE, group)
    semaphores.resume(ONE, group)
    assert not is_paused()
    assert admitted() == 1
