"""django-q2 as the driver, message by message and without a cluster: the schedule, wake-ups, `async_task`."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import transaction
from django_q.models import OrmQ, Schedule
from django_q.scheduler import scheduler

from django_semq import async_task, clock, enqueue, release, status
from django_semq.driver import djangoq
from django_semq.driver.tick import tick
from django_semq.exceptions import InvalidItem, SemqError
from django_semq.models import Driver, Item
from tests.e2e.journal import until

pytestmark = pytest.mark.django_db(transaction=True)

WORK = f"{__name__}.work"


@pytest.fixture(autouse=True)
def semq(settings, monkeypatch) -> Callable[..., None]:
    """Sets SEMQ; every test begins with a broker that nobody has been disappointed by."""

    def configure(**semq: dict) -> None:
        settings.SEMQ = semq

    monkeypatch.setattr(djangoq, "_no_wake_before", 0.0)
    configure()
    return configure


@pytest.fixture
def later(monkeypatch) -> Callable[..., None]:
    """Lets time pass, by all of the library's clocks."""
    ahead = timedelta(0)
    now, monotonic = clock.now, clock.monotonic
    monkeypatch.setattr(clock, "now", lambda: now() + ahead)
    monkeypatch.setattr(clock, "monotonic", lambda: monotonic() + ahead.total_seconds())

    def pass_time(**kwargs: float) -> None:
        nonlocal ahead
        ahead += timedelta(**kwargs)

    return pass_time


def messages(func: str) -> list[dict[str, Any]]:
    """What waits in the broker for this function, oldest first."""
    tasks = [message.task for message in OrmQ.objects.order_by("id")]
    return [task for task in tasks if task["func"] == func]


# ----------------------------------------------------------------------------------------------------------- schedule


def migrate() -> None:
    call_command("migrate", verbosity=0)


def test_migrations_make_the_one_schedule_of_a_minute():
    """(B104)"""
    Schedule.objects.all().delete()
    migrate()
    migrate()

    schedule = Schedule.objects.get()
    assert (schedule.name, schedule.func) == ("django_semq", djangoq.TICK)
    assert (schedule.schedule_type, schedule.minutes, schedule.repeats) == (Schedule.MINUTES, 1, -1)


def test_a_migration_removes_schedules_of_the_tick_that_were_made_by_hand_and_keeps_its_own():
    """(B104)"""
    kept = Schedule.objects.get()
    for _copy in range(2):
        Schedule.objects.create(name="django_semq", func=djangoq.TICK, schedule_type=Schedule.HOURLY)
    theirs = Schedule.objects.create(name="nightly", func="shop.jobs.nightly")
    migrate()

    assert set(Schedule.objects.all()) == {kept, theirs}


def test_a_migration_mends_a_schedule_that_was_changed_and_leaves_its_next_run():
    next_run = clock.now() - timedelta(days=2)
    Schedule.objects.update(args="(", repeats=0, minutes=7, next_run=next_run)
    migrate()

    schedule = Schedule.objects.get()
    assert (schedule.args, schedule.repeats, schedule.minutes) == (None, -1, 1)
    assert schedule.next_run == next_run


@pytest.mark.parametrize("next_run", [datetime(2096, 1, 1, tzinfo=UTC), None])
def test_a_migration_mends_a_schedule_that_would_not_run_for_years(next_run):
    """(B50)"""
    Schedule.objects.update(next_run=next_run)
    migrate()

    assert Schedule.objects.get().next_run <= clock.now() + timedelta(minutes=1)


def test_where_the_schedule_is_switched_off_a_migration_removes_it(semq):
    semq(DRIVER={"SCHEDULE": False})
    theirs = Schedule.objects.create(name="nightly", func="shop.jobs.nightly")
    migrate()

    assert list(Schedule.objects.all()) == [theirs]


def test_scheduled_ticks_save_no_results_and_are_not_delivered_again_after_a_failure():
    scheduler()

    (message,) = messages(djangoq.TICK)
    assert message["args"] == ()
    assert message["kwargs"] == {}
    assert message["save"] is False
    assert message["ack_failure"] is True


# ----------------------------------------------------------------------------------------------------------- wake-ups


def test_one_wake_up_is_on_its_way_until_a_tick_has_taken_it(later):
    async_task(WORK, key="acct-1")
    async_task(WORK, key="acct-2")
    (message,) = messages(djangoq.TICK)
    assert message["save"] is False

    djangoq.tick()
    async_task(WORK, key="acct-3")
    assert len(messages(djangoq.TICK)) == 2


def test_a_cluster_that_does_not_run_does_not_make_the_broker_grow():
    for number in range(20):
        async_task(WORK, key="acct-42", id=f"order:{number}")
        release(f"order:{number}")

    assert OrmQ.objects.count() == 1


def test_a_tick_takes_the_wake_up_before_it_looks_for_work(monkeypatch):
    """What is admitted after its look must be able to wake the next one."""
    async_task(WORK, key="acct-1")

    def look_for_work() -> None:
        assert Driver.objects.get().wake_asked_at is None
        async_task(WORK, key="acct-2")

    monkeypatch.setattr(djangoq.driver, "tick", look_for_work)
    djangoq.tick()

    assert len(messages(djangoq.TICK)) == 2
    assert Driver.objects.get().wake_asked_at is not None


def test_a_broker_that_fails_gets_no_wake_up_for_half_a_minute(monkeypatch, later):
    asked = []

    def fail(func: str, *args: object, **kwargs: object) -> None:
        asked.append(func)
        raise ConnectionError("nobody is there")

    monkeypatch.setattr(djangoq, "_send", fail)
    for number in range(3):
        assert async_task(WORK, key=f"acct-{number}", id=f"order:{number}").created
    assert asked == [djangoq.TICK]
    assert Driver.objects.get().wake_asked_at is None, "other processes could not try either"

    later(seconds=29)
    async_task(WORK, key="acct-4")
    assert len(asked) == 1
    later(seconds=2)
    async_task(WORK, key="acct-5")
    assert len(asked) == 2


def test_a_broker_that_is_slow_gets_no_wake_up_for_half_a_minute(monkeypatch, later):
    asked = []

    def dawdle(func: str, *args: object, **kwargs: object) -> None:
        asked.append(func)
        later(seconds=1.5)

    monkeypatch.setattr(djangoq, "_send", dawdle)
    for number in range(2):
        async_task(WORK, key=f"acct-{number}")
        djangoq.tick()
    assert asked.count(djangoq.TICK) == 1

    later(seconds=31)
    async_task(WORK, key="acct-3")
    assert asked.count(djangoq.TICK) == 2


def test_nothing_is_sent_where_wake_ups_are_switched_off(semq):
    semq(DRIVER={"WAKE": False})
    async_task(WORK, key="acct-42")

    assert not OrmQ.objects.exists()
    assert not Driver.objects.exclude(wake_asked_at=None).exists()


# --------------------------------------------------------------------------------------------------------- async_task


done: list[tuple[tuple, dict]] = []
during_work: list[Callable[[], None]] = []


def work(*args: object, **kwargs: object) -> None:
    """What the tasks of these tests do."""
    done.append((args, kwargs))
    if during_work:
        during_work.pop()()


@pytest.fixture(autouse=True)
def _nothing_done():
    done.clear()
    during_work.clear()


def hand_over() -> list[tuple[int, int]]:
    """Everything due; (row, attempt) of all messages that were ever sent."""
    tick(threads=0)
    return [message["args"] for message in messages(djangoq.RUN)]


@pytest.mark.parametrize(
    ("args", "options"),
    [
        ([datetime(2026, 1, 5, tzinfo=UTC)], {}),
        ([{1, 2}], {}),
        ([float("nan")], {}),
        ([], {"when": object()}),
        ([], {"q_options": {"hook": print}}),
    ],
)
def test_arguments_that_are_not_json_are_refused_and_nothing_is_stored(args, options):
    with pytest.raises(InvalidItem) as caught:
        async_task(WORK, *args, key="acct-42", **options)

    assert caught.value.field == "body"
    assert not Item.objects.exists()


@pytest.mark.parametrize("func", [work, "work", None])
def test_a_function_is_named_by_its_dotted_path(func):
    with pytest.raises(InvalidItem, match="give a dotted path") as caught:
        async_task(func, key="acct-42")

    assert caught.value.field == "func"
    assert not Item.objects.exists()


def test_a_queue_with_a_handler_of_its_own_takes_no_tasks(semq):
    semq(QUEUES={"default": {}, "reports": {"ADMIT": "shop.jobs.admit"}})
    with pytest.raises(SemqError, match=r"'reports' has the ADMIT 'shop.jobs.admit'.*declare a second queue"):
        async_task(WORK, key="acct-42", queue="reports")

    assert not Item.objects.exists()


def test_a_task_is_part_of_the_callers_transaction():
    with transaction.atomic():
        async_task(WORK, key="acct-42")
        transaction.set_rollback(True)

    assert hand_over() == []


def test_a_task_runs_with_its_arguments_once_however_often_its_message_comes():
    assert async_task(WORK, 7, "seven", key="acct-42", id="order:7", fast=True).created
    assert not async_task(WORK, 8, key="acct-42", id="order:7").created
    ((row, attempt),) = hand_over()
    assert done == []

    for _copy in range(3):
        djangoq.run(row, attempt)
    assert done == [((7, "seven"), {"fast": True})]
    assert status("order:7") is None


def test_a_message_that_comes_while_its_task_runs_does_nothing():
    async_task(WORK, key="acct-42", id="order:7")
    ((row, attempt),) = hand_over()
    during_work.append(lambda: djangoq.run(row, attempt))
    djangoq.run(row, attempt)

    assert len(done) == 1


def test_a_message_of_an_earlier_life_does_nothing_to_the_next_one():
    async_task(WORK, key="acct-42", id="order:7")
    ((row, attempt),) = hand_over()
    djangoq.run(row, attempt)
    async_task(WORK, key="acct-42", id="order:7")
    hand_over()
    djangoq.run(row, attempt)

    assert len(done) == 1
    assert status("order:7").state == "admitted"


def test_options_of_the_task_reach_django_q2_but_a_failure_is_always_acknowledged():
    options = {"group": "nightly", "save": False, "ack_failure": False}
    async_task(WORK, key="acct-42", q_options=options)
    hand_over()

    (message,) = messages(djangoq.RUN)
    assert (message["group"], message["save"], message["ack_failure"]) == ("nightly", False, True)


def test_a_task_that_raises_gives_its_permit_back_and_tells_django_q2():
    async_task(f"{__name__}.no_such_function", key="acct-42", id="order:7")
    async_task(WORK, key="acct-42", id="order:8")
    ((row, attempt),) = hand_over()
    with pytest.raises(ImportError):
        djangoq.run(row, attempt)

    assert status("order:7") is None
    assert status("order:8").state == "admitted"


def test_a_task_that_does_not_start_for_five_minutes_is_sent_again(later):
    async_task(WORK, key="acct-42", id="order:7")
    ((row, first),) = hand_over()
    later(minutes=4, seconds=59)
    assert hand_over() == [(row, first)]
    later(seconds=2)
    assert hand_over() == [(row, first), (row, first + 1)]

    djangoq.run(row, first)
    assert done == []
    djangoq.run(row, first + 1)
    assert len(done) == 1
    assert status("order:7") is None


def test_a_task_whose_worker_died_is_sent_again_and_its_ghost_releases_nothing(later):
    async_task(WORK, key="acct-42", id="order:7")
    ((row, first),) = hand_over()

    def freeze() -> None:
        """Nobody moves `due_at` for longer than the driver waits."""
        later(seconds=31)
        assert hand_over() == [(row, first), (row, first + 1)]

    during_work.append(freeze)
    djangoq.run(row, first)

    assert status("order:7").state == "admitted", "the ghost's end released the next attempt's permit"
    djangoq.run(row, first + 1)
    assert len(done) == 2
    assert status("order:7") is None


def test_a_task_that_runs_for_long_is_not_taken_for_dead(monkeypatch, later):
    monkeypatch.setattr(djangoq, "BEAT", timedelta(milliseconds=10))
    async_task(WORK, key="acct-42", id="order:7")
    ((row, first),) = hand_over()

    def run_for_long() -> None:
        for _half_minute in range(3):
            later(seconds=29)
            until(lambda: Item.objects.get(pk=row).due_at > clock.now() + timedelta(seconds=29), "a beat")
            assert hand_over() == [(row, first)]

    during_work.append(run_for_long)
    djangoq.run(row, first)
    assert len(done) == 1


def test_an_item_of_another_handler_fails_alone_and_says_what_to_do(semq):
    semq(QUEUES={"default": {"ADMIT": "shop.jobs.admit"}})
    enqueue("acct-1", {"order": 1}, id="order:1")
    semq()
    async_task(WORK, key="acct-2", id="order:2")
    hand_over()

    assert "enqueued while its queue had an ADMIT" in Item.objects.get(uid="order:1").last_error
    row = Item.objects.get(uid="order:2")
    assert (row.handed_over, row.last_error) == (True, "")
    # It was not sent in the batch that failed, so there is one message.
    assert [message["args"] for message in messages(djangoq.RUN)] == [(row.pk, row.attempt)]


def test_a_task_that_runs_already_is_not_sent_again_when_the_rest_of_its_batch_fails(monkeypatch):
    """A broker that fails halfway leaves tasks that were sent, and whose workers were quick."""
    for number in range(2):
        async_task(WORK, key=f"acct-{number}", id=f"order:{number}")
    first, _second = Item.objects.order_by("pk")
    send = djangoq._send

    def send_one(func: str, row: int, attempt: int, **kwargs: object) -> None:
        if attempt == 1 and row != first.pk:
            raise ConnectionError("the broker went away")
        send(func, row, attempt, **kwargs)
        if attempt == 1:
            assert djangoq._start(row, attempt) is not None

    monkeypatch.setattr(djangoq, "_send", send_one)
    sent = hand_over()

    assert [attempt for row, attempt in sent if row == first.pk] == [1]
