"""After a crash, a message that comes twice or never, a handler that is late: what counts is what the rows say."""

import threading
from datetime import timedelta

import pytest
from django.utils import timezone
from django_q.conf import Conf
from django_q.models import OrmQ, Schedule
from django_q.scheduler import scheduler

from django_semq import checks, clock, enqueue, enqueue_many, release, semaphores, status, usage
from django_semq.driver import djangoq
from django_semq.invariants import audit, notices, repair
from django_semq.models import Driver, Grant, Item, State
from django_semq.queue import admission
from tests.cases.crashes import Crash, dies, forget
from tests.concurrency.states import leftovers
from tests.queue.application import in_thread, raising

FINISHED = "tests.queue.application.finished"
ONE = "acct-42"


def many(ids, key=ONE):
    enqueue_many([{"key": key, "body": {}, "id": uid} for uid in ids])


def test_a_restart_forgets_no_holder_of_a_permit(app):
    """Of keys with one permit each, whoever starts first and whatever was cached. (B22)"""
    enqueue_many([{"key": f"k{n}", "body": {}, "id": f"k{n} {turn}"} for turn in range(3) for n in range(30)])
    app.tick()
    before = {f"k{n}": semaphores.usage(f"k{n}") for n in range(30)}
    forget()
    app.pass_time(hours=1)
    app.tick()
    assert {key: semaphores.usage(key) for key in before} == before
    assert sorted(app.admitted) == sorted(f"k{n} 0" for n in range(30))


def test_drivers_that_start_together_after_a_kill_wait_for_the_permit(app):
    """(B23)"""
    many("abc")
    app.on_admit = raising(Crash())
    assert dies(app.tick)
    app.on_admit = lambda items: None
    app.pass_time(minutes=5)
    threads = [threading.Thread(target=lambda: in_thread(app.tick)) for _n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert app.admitted == ["a", "a"]
    release("a")
    app.tick()
    assert app.admitted == ["a", "a", "b"]


def test_a_tick_that_is_delivered_again_while_it_runs_does_nothing_twice(app):
    """(B44)"""
    app.configure({"MAX_ADMIT_BATCH": 2}, holder={"DEFAULT_LIMIT": 4})
    app.on_admit = lambda items: in_thread(app.tick)
    many("abcdefgh")
    app.tick()
    assert sorted(app.admitted) == list("abcd")
    assert semaphores.usage(ONE).footprint == 4


@pytest.mark.parametrize(
    ("cluster", "warning"),
    [
        ({"retry": 60, "timeout": None}, "semq.W021"),
        ({"retry": 60}, "semq.W021"),
        ({"retry": 30, "timeout": 90}, "semq.W023"),
        ({"retry": 600, "timeout": 60}, "semq.W022"),
    ],
)
def test_settings_of_the_cluster_that_start_a_tick_twice_are_warned_of(settings, cluster, warning):
    """(B44)"""
    settings.Q_CLUSTER = {"orm": "default", "workers": 2, **cluster}
    assert warning in {message.id for message in checks.check_drivers(None)}


@pytest.fixture
def two_attempts(app):
    """Of one item, the second begun when the first was past its time."""
    app.configure({"ATTEMPT_TIMEOUT": 5, "RETRY_DELAY": "tests.queue.application.retry_delay"})
    many("ab")
    now = clock.now()
    return [claim_one(now), claim_one(now + timedelta(seconds=5))], now


def claim_one(now):
    (batch,) = admission.claim("default", now=now, without=(), calls=1)
    return batch


def test_the_late_success_of_an_attempt_that_was_given_up_does_not_count(app, two_attempts):
    """The later one failed, so a third runs; the number tells the handler which it is. (B45)"""
    (first, second), now = two_attempts
    admission.failed(second, ValueError("it failed"), now=now + timedelta(seconds=8))
    admission.succeeded(first, now=now + timedelta(seconds=12))
    app.pass_time(minutes=2)
    app.tick()
    assert [item.attempt for batch in app.batches for item in batch] == [3]
    assert semaphores.usage(ONE).footprint == 1


def test_the_late_failure_of_an_attempt_that_was_given_up_undoes_nothing(app, two_attempts):
    """(B45)"""
    (first, second), now = two_attempts
    admission.succeeded(second, now=now + timedelta(seconds=8))
    admission.failed(first, ValueError("it failed"), now=now + timedelta(seconds=12))
    app.pass_time(minutes=2)
    app.tick()
    assert app.batches == []
    assert release("a")
    app.tick()
    assert app.admitted == ["b"]


def test_items_whose_other_rows_are_gone_are_asked_about_and_released(app):
    """(B46)"""
    app.configure({"FINISHED": FINISHED}, holder={"DEFAULT_LIMIT": 2})
    many("abcd")
    app.tick()
    Grant.objects.all().delete()
    Item.objects.filter(state=State.QUEUED).update(grant_id=10**9, lease_id=10**9)
    app.on_finished = lambda ids: ["a"]
    app.pass_time(seconds=61)
    app.tick()
    assert (app.asked[0], status("a")) == (["a", "b"], None)
    assert release("b")

    repair(audit(), now=clock.now())
    app.tick()
    assert app.admitted == list("abcd")
    for uid in "cd":
        assert release(uid)
    assert leftovers() == []


def test_work_that_nobody_takes_is_named_whatever_kind_it_is(app):
    """Of a frozen driver nothing else is to be seen; callers admit without it. (B55)"""
    enqueue(ONE, {}, id="a")
    assert notices(clock.now()) == []
    app.pass_time(minutes=5)
    assert status("a").state == "admitted"
    assert notices(clock.now()) != []
    app.tick()
    assert notices(clock.now()) == []


@pytest.mark.parametrize("years", [-1, 70])
def test_a_schedule_that_does_not_run_is_warned_of_whatever_its_clock_said(db, years):
    """(B50)"""
    Schedule.objects.filter(func=djangoq.TICK).update(next_run=timezone.now() + timedelta(days=365 * years))
    warned = {message.id for message in checks.check_schedule(None, databases=["default"])}
    assert "semq.W031" in warned


@pytest.fixture
def waking(app):
    """Ticks come by messages alone: of the schedule, and one after an admission."""
    app.configure(driver={"WAKE": True})
    OrmQ.objects.all().delete()
    Driver.objects.all().delete()
    yield app
    OrmQ.objects.all().delete()


def test_a_lost_message_delays_nobody_beyond_the_next_tick(waking):
    """(B56)"""
    enqueue(ONE, {}, id="a")
    assert OrmQ.objects.count() == 1
    OrmQ.objects.all().delete()
    enqueue("other", {}, id="b")
    djangoq.tick()
    assert sorted(waking.admitted) == ["a", "b"]
    enqueue("third", {}, id="c")
    assert OrmQ.objects.count() == 1


def test_finished_may_release_by_itself(app):
    """(B71)"""
    app.configure({"FINISHED": FINISHED})
    many("abc")
    app.tick()

    def release_and_say(ids):
        for uid in ids:
            release(uid)
        return ids

    app.on_finished = release_and_say
    for _minute in range(3):
        app.pass_time(seconds=61)
        app.tick()
    assert app.admitted == list("abc")
    assert [event.id for event in app.events_of("released")] == list("abc")
    assert leftovers() == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda ids: dict.fromkeys(ids, True),
        lambda ids: (uid for uid in [*ids, *ids]),
        lambda ids: [*map(str, range(10**5)), *ids, None, 7, b"a"],
        lambda ids: iter([ids, *ids]),
    ],
    ids=["mapping", "generator", "many", "nested"],
)
def test_whatever_finished_answers_those_asked_are_released_once(app, answer):
    """(B71)"""
    app.configure({"FINISHED": FINISHED, "MAX_ADMIT_BATCH": 10}, holder={"DEFAULT_LIMIT": 25})
    enqueue_many([{"key": ONE, "body": {}, "id": f"a{n}"} for n in range(30)])
    app.tick()
    app.on_finished = lambda ids: answer(ids) if "a0" in ids else []
    app.pass_time(seconds=61)
    app.tick()
    asked = [uid for ids in app.asked for uid in ids]
    assert sorted(asked) == sorted(f"a{n}" for n in range(25))
    assert [event.id for event in app.events_of("released")] == [f"a{n}" for n in range(10)]
    assert usage()["admitted"] == 20


def test_projects_that_start_together_make_one_schedule(app):
    """(B104)"""
    Schedule.objects.filter(func=djangoq.TICK).delete()
    threads = [
        threading.Thread(target=lambda: in_thread(lambda: djangoq.install_schedule(using="default"))) for _n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Schedule.objects.filter(func=djangoq.TICK).count() == 1


@pytest.mark.parametrize("catch_up", [True, False])
def test_missed_ticks_do_not_come_all_at_once(waking, monkeypatch, catch_up):
    """(B104)"""
    monkeypatch.setattr(Conf, "CATCH_UP", catch_up)
    monkeypatch.setattr(Conf, "SCHEDULER", True)
    Schedule.objects.update(next_run=timezone.now() - timedelta(days=2))
    for _half_minute in range(2):
        scheduler()
    assert 1 <= OrmQ.objects.count() <= 2
    assert Schedule.objects.filter(func=djangoq.TICK).count() == 1
