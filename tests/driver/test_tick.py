"""One run of everything due: when it is needed next, what it leaves alone, and what cannot stop it."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic

import pytest
from django.db import DatabaseError, connection, transaction

from django_semq import async_task, clock, enqueue, enqueue_many, queues, release, semaphores, status, usage
from django_semq.driver.crew import MAX_HUNG, Crew
from django_semq.driver.tick import Work, tick
from django_semq.driver.wakeup import Wakeup
from django_semq.models import Item, Key, Nudge
from django_semq.queue.pump import driven_by
from django_semq.signals import driver_wanted
from tests.queue.application import in_thread, values_of

FINISHED = "tests.queue.application.finished"


def many(uids: str, key: str = "acct-42") -> None:
    enqueue_many([{"key": key, "body": {}, "id": uid} for uid in uids])


def row(uid: str) -> Item:
    return Item.objects.get(uid=uid)


def test_a_tick_without_anything_to_do_needs_no_other(app):
    assert app.tick() is None


def test_what_waits_for_a_permit_and_what_runs_need_no_tick_by_themselves(app):
    many("ab")
    assert app.tick() is None
    assert (status("a").state, status("b").state) == ("admitted", "queued")


def test_a_tick_is_needed_when_the_first_of_all_things_is_due(app):
    app.configure({"RETRY_DELAY": "tests.queue.application.retry_delay", "FINISHED": FINISHED})
    app.on_retry_delay = lambda attempt: 45

    def fail_b(items):
        if items[0].id == "b":
            raise RuntimeError

    app.on_admit = fail_b
    many("a", key="a")
    many("b", key="b")
    assert app.tick() == row("b").due_at
    app.on_retry_delay = lambda attempt: 90
    app.pass_time(seconds=46)
    assert app.tick() == row("a").due_at


def test_a_queue_of_tasks_is_looked_at_when_a_task_may_be_lost(settings, app):
    settings.SEMQ = {"DRIVER": {"WAKE": False}}
    before = clock.now()
    async_task("builtins.len", [], key="acct-42", id="a")
    due = app.tick()
    assert before + timedelta(minutes=5) <= due == row("a").due_at


def test_a_tick_repeats_until_nothing_moves(app):
    """Each release in admit() makes room for one more, which is handed over in the same tick."""
    app.on_admit = lambda items: [release(item.id) for item in items]
    many("abcdefgh")
    assert app.tick() is not None  # Its key goes after a day.
    assert app.admitted == list("abcdefgh")
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}


def test_after_its_time_a_tick_takes_nothing_new_and_is_needed_again_at_once(app, monkeypatch):
    app.configure(driver={"TICK_SECONDS": 20}, holder={"DEFAULT_LIMIT": None})
    real, late = clock.monotonic, [0.0]
    monkeypatch.setattr(clock, "monotonic", lambda: real() + late[0])

    def take_long(items):
        if items[0].id == "a":
            late[0] = 21
            enqueue("acct-42", {}, id="later")

    app.on_admit = take_long
    many("a")
    before = clock.now()
    due = app.tick()
    assert before <= due <= clock.now()
    assert (app.admitted, status("later").state) == (["a"], "admitted")

    assert app.tick() is None
    assert app.admitted == ["a", "later"]


@pytest.mark.databases("postgres", "mariadb")
def test_what_another_transaction_holds_is_looked_at_again_in_a_moment(app):
    app.configure(driver={"POLL_INTERVAL": 0.5})
    many("a")
    with transaction.atomic():
        Item.objects.select_for_update().get(uid="a")
        before = clock.now()
        due = in_thread(app.tick)
    assert before < due <= clock.now() + timedelta(seconds=0.5)
    assert app.admitted == []


def test_a_second_tick_finds_nothing_left_and_changes_nothing(app):
    app.configure({"FINISHED": FINISHED}, holder={"DEFAULT_LIMIT": 2})
    many("abc")
    app.tick()
    rows = [list(model.objects.order_by("pk").values()) for model in (Item, Key, Nudge)]
    app.tick()
    assert [list(model.objects.order_by("pk").values()) for model in (Item, Key, Nudge)] == rows


def test_ticks_at_the_same_time_hand_every_item_over_once(app):
    """(B43)"""
    app.configure({"MAX_ADMIT_BATCH": 3}, holder={"DEFAULT_LIMIT": None})
    enqueue_many([{"key": f"key-{n % 7}", "body": {}, "id": f"{n}"} for n in range(60)])
    threads = [threading.Thread(target=lambda: in_thread(app.tick)) for _n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    app.tick()
    assert sorted(app.admitted, key=int) == [f"{n}" for n in range(60)]


def fail_statements(of: str, *, containing: str):
    def refuse(execute, sql, params, many, context):
        if sql.startswith(of) and containing in sql:
            raise DatabaseError("disk full")
        return execute(sql, params, many, context)

    return connection.execute_wrapper(refuse)


@pytest.mark.parametrize(
    ("of", "containing"),
    [
        ("SELECT", "django_semq_key"),
        ("WITH", "django_semq_nudge"),
        ("SELECT", "rules_digest"),
        ("SELECT", "django_semq_semaphore"),
    ],
)
def test_a_part_that_fails_is_told_and_stops_no_other(app, caplog, of, containing):
    many("a")
    with fail_statements(of, containing=containing):
        due = app.tick()
    assert app.admitted == ["a"]
    assert due <= clock.now() + timedelta(seconds=1)
    assert "disk full" in caplog.text


def test_a_queue_that_fails_stops_no_other(app, settings, caplog):
    app.configure(queues=["default", "reports"])
    settings.SEMQ["QUEUES"]["default"]["TRANSPORT"] = "no.such.Transport"
    settings.SEMQ["QUEUES"]["default"]["CLIENT_ID"] = "shop"
    settings.SEMQ = dict(settings.SEMQ)
    queues["default"].enqueue("x", {})
    queues["reports"].enqueue("y", {}, id="r")
    app.tick()
    assert app.admitted == ["r"]
    assert "SEMQ['QUEUES']['default']['TRANSPORT'] is 'no.such.Transport', which cannot be made" in caplog.text


def test_no_queue_is_always_served_first(app):
    app.configure(queues=["default", "reports"], holder={"DEFAULT_LIMIT": None})
    firsts = set()
    work = Work.inline()
    for _time in range(2):
        for alias in ["default", "reports"]:
            queues[alias].enqueue("x", {}, id=alias)
        app.batches.clear()
        work.advance(clock.now())
        firsts.add(app.admitted[0])
        for alias in ["default", "reports"]:
            queues[alias].release(alias)
    assert firsts == {"default", "reports"}


class Drive:
    """A driving process with threads, pass by pass."""

    def __init__(self, threads: int) -> None:
        wakeup = Wakeup()
        self.work = Work(Crew(threads, on_end=wakeup.set), wakeup)

    def until(self, fact: Callable[[], bool]) -> None:
        """Pass until the fact holds. The time is only there so that a broken test ends."""
        ends_at = monotonic() + 60
        while not fact():
            assert monotonic() < ends_at
            if not self.work.advance(clock.now()):
                self.work.wait(0.01)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What hanging calls hang at."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def drive(app, gate) -> Iterator[Drive]:
    drive = Drive(4)
    yield drive
    gate.set()
    drive.until(lambda: not drive.work.crew.hung and not drive.work.crew.running)


def hang_for(app, gate, *uids: str) -> None:
    def admit(items):
        if any(item.id in uids for item in items):
            assert gate.wait(60)

    app.on_admit = admit


def test_a_handler_that_hangs_stops_nobody_else(app, gate, drive):
    """(B69)"""
    app.configure({"ATTEMPT_TIMEOUT": 0.1}, holder={"DEFAULT_LIMIT": None})
    hang_for(app, gate, "hangs")
    many(["hangs"], key="slow")
    drive.until(lambda: "hangs" in app.admitted)
    many("abc", key="quick")
    drive.until(lambda: Item.objects.filter(handed_over=True).count() == 3)
    assert row("a").handed_over
    assert not row("hangs").handed_over


def test_a_call_past_its_time_is_noted_and_its_items_are_tried_alone(app, gate, drive):
    app.configure({"ATTEMPT_TIMEOUT": 0.1}, holder={"DEFAULT_LIMIT": None})
    hang_for(app, gate, "hangs")
    many(["good", "hangs"])
    drive.until(lambda: len(drive.work.crew.hung) == 2 and row("good").handed_over)
    assert [[item.id for item in batch] for batch in app.batches[:3]] == [["good", "hangs"], ["good"], ["hangs"]]
    assert row("hangs").last_error == "TimeoutError: did not return within 0.1 s"


def test_nothing_more_is_handed_over_of_a_key_whose_single_item_hangs(app, gate, drive):
    """More of it would hang too, and take the threads from the others."""
    app.configure({"ATTEMPT_TIMEOUT": 0.1}, holder={"DEFAULT_LIMIT": None})
    hang_for(app, gate, "hangs")
    many(["hangs"], key="slow")
    drive.until(lambda: any(len(call.about.items) == 1 and call.about.is_alone for call in drive.work.crew.hung))
    tries = len(app.batches)
    app.pass_time(hours=1)
    many("ab", key="slow")
    many("cd", key="quick")
    drive.until(lambda: row("d").handed_over)
    assert app.admitted[tries:] == ["c", "d"]

    gate.set()
    drive.until(lambda: row("a").handed_over and row("hangs").handed_over)


def test_with_too_many_hung_handlers_nothing_is_handed_over_any_more(app, gate, drive, caplog):
    """(B69)"""
    app.configure({"ATTEMPT_TIMEOUT": 0.05, "MAX_ADMIT_BATCH": 1}, holder={"DEFAULT_LIMIT": None})
    uids = [f"hangs-{number}" for number in range(MAX_HUNG + 1)]
    hang_for(app, gate, *uids)
    enqueue_many([{"key": uid, "body": {}, "id": uid} for uid in uids])
    drive.until(lambda: len(drive.work.crew.hung) > MAX_HUNG)
    app.batches.clear()
    many("a", key="quick")
    for _time in range(3):
        drive.work.advance(clock.now())
    assert app.batches == []
    assert "too many hung calls of admit(); this process hands over nothing" in caplog.text

    gate.set()
    drive.until(lambda: row("a").handed_over)


def test_a_key_takes_one_thread_at_a_time(app, gate, drive):
    app.configure({"MAX_ADMIT_BATCH": 1}, holder={"DEFAULT_LIMIT": None})
    app.on_admit = lambda items: items[0].key == "slow" and gate.wait(60)
    many("abcdef", key="slow")
    drive.until(lambda: len(app.batches) == 1)
    for _time in range(3):
        drive.work.advance(clock.now())
    assert len(app.batches) == 1
    many("xyz", key="quick")
    drive.until(lambda: all(row(uid).handed_over for uid in "xyz"))


def test_a_question_that_hangs_is_given_up_and_asked_again(app, gate, drive, caplog):
    app.configure({"ATTEMPT_TIMEOUT": 0.1, "FINISHED": FINISHED, "FINISHED_CHECK": 60})
    many("a")
    drive.until(lambda: row("a").handed_over)
    app.on_finished = lambda ids: gate.wait(60)
    app.pass_time(seconds=61)
    drive.until(lambda: bool(drive.work.crew.hung))
    assert "finished() failed for 1 item(s)" in caplog.text
    assert "did not return within 0.1 s" in caplog.text
    app.on_finished = lambda ids: ids
    app.pass_time(seconds=61)
    drive.until(lambda: status("a") is None)
    assert app.asked == [["a"], ["a"]]


def test_an_outcome_that_cannot_be_written_loses_no_other(app, gate, drive, caplog):
    app.configure({"MAX_ADMIT_BATCH": 1}, holder={"DEFAULT_LIMIT": None})
    app.on_admit = lambda items: gate.wait(60)
    many("a", key="a")
    many("b", key="b")
    drive.until(lambda: len(app.batches) == 2)
    bad = row("a").pk

    def refuse(execute, sql, params, many, context):
        if sql.startswith("UPDATE") and "handed_over" in sql and bad in values_of(params):
            raise DatabaseError("disk full")
        return execute(sql, params, many, context)

    gate.set()
    for call in drive.work.crew.running:
        while not call.is_done:
            drive.work.wait(0.01)
    with connection.execute_wrapper(refuse):
        drive.work.advance(clock.now())
    assert row("b").handed_over
    assert not row("a").handed_over


def test_a_tick_waits_for_the_calls_it_has_begun(app, settings):
    app.configure(holder={"DEFAULT_LIMIT": None}, driver={"THREADS": 2})
    begun = threading.Event()

    def admit(items):
        begun.set()
        semaphores.usage("acct-42")  # As long as a statement takes.

    app.on_admit = admit
    many("abc")
    assert tick() is None
    assert begun.is_set()
    assert [row(uid).handed_over for uid in "abc"] == [True] * 3


def test_application_code_in_a_thread_leaves_the_pump_to_the_driver(app, drive):
    app.on_admit = lambda items: release(items[0].id)
    many("abc")
    drive.until(lambda: len(app.admitted) == 3)
    drive.until(lambda: usage() == {"queued": 0, "claiming": 0, "admitted": 0})


def test_a_driver_asks_for_no_other_driver(app, monkeypatch):
    wanted = []

    def note(**fields):
        wanted.append(fields["queue"])

    driver_wanted.connect(note)
    try:
        with driven_by(lambda: None):
            many("ab")
        app.tick()
        assert wanted == []
        release("a")
        assert wanted == ["default"]
    finally:
        driver_wanted.disconnect(note)


def test_logging_of_passing_errors_is_quiet(app, caplog):
    """A deadlock is done again and worth no alarm; what does not pass is."""
    caplog.set_level(logging.INFO)

    def lock_timeout(execute, sql, params, many, context):
        if sql.startswith("SELECT") and "django_semq_key" in sql:
            raise DatabaseError(1213, "Deadlock found; try restarting transaction")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(lock_timeout):
        app.tick()
    records = [record for record in caplog.records if "Deadlock" in record.getMessage()]
    assert records
    assert {record.levelno for record in records} == {logging.INFO}
