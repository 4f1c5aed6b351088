"""What the holder removes of itself, and what it must keep."""

from datetime import timedelta

import pytest
from django.db import connection

from django_semq import cancel, clock, enqueue, release, semaphores, status
from django_semq.holder import clients, remote
from django_semq.holder.sweep import remove_idle, take_back
from django_semq.invariants import audit
from django_semq.models import Ceiling, IssuedGrant, Semaphore
from django_semq.protocol.messages import Envelope, GroupDemand, PermitRequest, Reply


def ask_for_one_as_a_client_elsewhere() -> Reply:
    """Of whom nothing is heard afterwards."""
    clients.add("shop")
    now = clock.now()
    return remote.answer(Envelope("acct-42", PermitRequest("shop", (GroupDemand("", 1, now),))), now=now)


def test_what_a_client_elsewhere_claims_not_in_time_comes_back_without_a_message(app):
    assert ask_for_one_as_a_client_elsewhere().grants
    window_ends = IssuedGrant.objects.get().claim_until
    enqueue("acct-42", {}, id="a")
    assert app.tick() == window_ends
    assert status("a").state == "queued"

    app.pass_time(seconds=31)
    app.tick()

    assert status("a").state == "admitted"
    assert not take_back(clock.now())
    assert list(audit()) == []


def after_a_day(app) -> None:
    app.pass_time(days=1, seconds=1)
    app.tick()


def test_a_semaphore_of_which_nothing_is_out_goes_after_a_day(app):
    enqueue("acct-42", {}, id="a")
    after_a_day(app)
    assert Semaphore.objects.exists()
    release("a")
    assert not remove_idle(clock.now())
    after_a_day(app)
    assert not Semaphore.objects.exists()


def test_a_semaphore_of_which_nothing_was_ever_given_goes_too(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="a")
    cancel("a")
    after_a_day(app)
    assert not Semaphore.objects.exists()


def test_a_semaphore_that_somebody_waits_for_stays(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="a")
    after_a_day(app)
    after_a_day(app)
    assert Semaphore.objects.exists()
    semaphores.set_limit("acct-42", 1)
    assert status("a").state == "admitted"


OPERATORS_WORDS = {
    "a limit": lambda: semaphores.set_limit("acct-42", 5),
    "a ceiling": lambda: semaphores.set_ceiling("acct-42", "exports", 2),
    "a paused key": lambda: semaphores.pause("acct-42"),
    "a paused group": lambda: semaphores.pause("acct-42", "exports"),
}


@pytest.mark.parametrize("word", OPERATORS_WORDS)
def test_what_an_operator_said_outlives_every_pause_in_the_work(app, word):
    """(B63)"""
    OPERATORS_WORDS[word]()
    said = semaphores.usage("acct-42")
    enqueue("acct-42", {}, id="a")
    release("a")
    after_a_day(app)
    after_a_day(app)
    assert semaphores.usage("acct-42") == said


@pytest.mark.parametrize("word", OPERATORS_WORDS)
def test_what_an_operator_takes_back_keeps_nothing(app, word):
    OPERATORS_WORDS[word]()
    group = "exports" if "exports" in semaphores.usage("acct-42").groups else None
    semaphores.reset_limit("acct-42", group)
    semaphores.resume("acct-42", group)
    assert not Ceiling.objects.exists()
    after_a_day(app)
    assert not Semaphore.objects.exists()


def test_one_kept_semaphore_does_not_keep_the_others(app):
    semaphores.set_ceiling("aaa", "exports", 2)
    enqueue("zzz", {}, id="a")
    release("a")
    after_a_day(app)
    assert list(Semaphore.objects.values_list("name", flat=True)) == ["aaa"]


def test_at_most_a_hundred_go_at_once(app):
    """(B87)"""
    old = clock.now() - timedelta(days=2)
    Semaphore.objects.bulk_create([Semaphore(name=f"key-{n}", idle_since=old) for n in range(150)])
    assert remove_idle(clock.now())
    assert Semaphore.objects.count() == 50
    assert remove_idle(clock.now())
    assert not remove_idle(clock.now())


@pytest.mark.parametrize("word", OPERATORS_WORDS)
def test_a_semaphore_that_is_needed_again_meanwhile_stays(app, word):
    """Between the look for idle ones and the lock."""
    Semaphore.objects.create(name="acct-42", idle_since=clock.now() - timedelta(days=2))
    meanwhile = []

    def speak_first(execute, sql, params, many, context):
        found = execute(sql, params, many, context)
        if sql.startswith("SELECT") and "idle_since" in sql and not meanwhile:
            meanwhile.append(word)
            OPERATORS_WORDS[word]()
        return found

    with connection.execute_wrapper(speak_first):
        remove_idle(clock.now())
    assert meanwhile
    assert Semaphore.objects.filter(name="acct-42").exists()
