"""Handing items over, and asking which of them are finished: who gets what, when again, and what is noted."""

import dataclasses
import logging
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from django_semq import clock, enqueue, enqueue_many, release, semaphores, status, usage
from django_semq.models import Item, State
from django_semq.queue import admission
from django_semq.queue.admission import AdmittedItem
from tests.factories import ItemFactory, LeaseFactory
from tests.queue.application import in_thread, raising

ASKING = {"FINISHED": "tests.queue.application.finished"}
PATIENT = {"RETRY_DELAY": "tests.queue.application.retry_delay"}


@pytest.fixture(autouse=True)
def _without_a_limit(app):
    app.configure(holder={"DEFAULT_LIMIT": None})


def many(uids: str, key: str = "acct-42") -> None:
    enqueue_many([{"key": key, "body": {"is": uid}, "id": uid} for uid in uids])


def row(uid: str) -> Item:
    return Item.objects.get(uid=uid)


def fail_for(app, *bad: str) -> None:
    """From here on admit() fails for every batch with one of these items."""

    def admit(items: list[AdmittedItem]) -> None:
        if found := [item.id for item in items if item.id in bad]:
            raise RuntimeError(f"cannot take {', '.join(found)}")

    app.on_admit = admit


def fail_statements(of: str, *, containing: str):
    def refuse(execute, sql, params, many, context):
        if sql.startswith(of) and containing in sql and Item._meta.db_table in sql:
            raise DatabaseError("disk full")
        return execute(sql, params, many, context)

    return connection.execute_wrapper(refuse)


def test_an_admitted_item_says_what_it_is_and_how_it_got_here(app):
    enqueue("acct-42", {"order": 7}, group="exports", id="a")
    app.tick()
    (item,) = app.batches[0]
    stored = row("a")
    assert dataclasses.asdict(item) == {
        "id": "a",
        "key": "acct-42",
        "group": "exports",
        "body": {"order": 7},
        "enqueued_at": stored.enqueued_at,
        "admitted_at": stored.admitted_at,
        "via": "grant",
        "attempt": 1,
        "row": stored.pk,
    }


def test_an_item_with_a_permit_of_a_lease_says_so(app):
    app.counters_agree = False
    ItemFactory(uid="a", admitted=True, grant_id=None, lease_id=LeaseFactory(drawn=1).pk)
    app.tick()
    assert app.batches[0][0].via == "lease"


def test_items_are_handed_over_together_in_order_of_arrival(app):
    many("dbca")
    app.tick()
    assert [item.id for item in app.batches[0]] == ["d", "b", "c", "a"]


def test_a_batch_has_a_hundred_items_unless_said_otherwise(app):
    enqueue_many([{"key": "acct-42", "body": {}} for _n in range(230)])
    app.tick()
    assert [len(batch) for batch in app.batches] == [100, 100, 30]

    app.configure({"MAX_ADMIT_BATCH": 2}, holder={"DEFAULT_LIMIT": None})
    app.batches.clear()
    many("abcde")
    app.tick()
    assert [[item.id for item in batch] for batch in app.batches] == [["a", "b"], ["c", "d"], ["e"]]


def test_items_are_handed_over_after_their_admission_is_committed(app):
    """What admit() starts, in whatever process, finds the item admitted."""
    seen = []
    app.on_admit = lambda items: seen.append(in_thread(lambda: status(items[0].id).state))
    many("a")
    app.tick()
    assert seen == ["admitted"]


def test_admit_may_do_with_its_list_what_it_likes(app):
    app.on_admit = lambda items: items.clear()
    many("ab")
    app.tick()
    assert [row(uid).handed_over for uid in "ab"] == [True, True]


def test_what_admit_took_is_not_handed_over_again(app):
    many("ab")
    for _time in range(3):
        app.tick()
        app.pass_time(days=1)
    assert app.admitted == ["a", "b"]
    assert (row("a").handed_over, row("a").due_at, row("a").attempt) == (True, None, 1)


def test_nothing_is_handed_over_that_is_not_admitted(app):
    semaphores.set_limit("acct-42", 1)
    many("ab")
    app.tick()
    app.pass_time(days=1)
    app.tick()
    assert app.admitted == ["a"]


def test_after_a_failed_batch_each_item_is_tried_alone_and_at_once(app):
    fail_for(app, "b")
    many("abc")
    app.tick()
    batches = [[item.id for item in batch] for batch in app.batches]
    assert batches[0] == ["a", "b", "c"]
    assert sorted(batches[1:]) == [["a"], ["b"], ["c"]]
    assert [row(uid).handed_over for uid in "abc"] == [True, False, True]


def test_an_item_that_fails_alone_waits_as_long_as_the_policy_says(app):
    app.configure(PATIENT, holder={"DEFAULT_LIMIT": None})
    delays = {1: 10, 2: 20, 3: 30}
    asked = []

    def delay(attempt):
        asked.append(attempt)
        return delays[attempt]

    app.on_retry_delay = delay
    fail_for(app, "a")
    many("a")
    for attempt, seconds in delays.items():
        before = clock.now()
        due = app.tick()
        assert len(app.batches) == attempt
        assert before + timedelta(seconds=seconds) <= row("a").due_at == due
        app.pass_time(seconds=seconds - 1)
        app.tick()
        assert len(app.batches) == attempt
        app.pass_time(seconds=2)
    assert asked == [1, 2, 3]
    assert [batch[0].attempt for batch in app.batches] == [1, 2, 3]


def test_a_failing_item_keeps_its_permit_and_is_tried_without_an_end(app):
    fail_for(app, "a")
    many("a")
    for attempt in range(1, 31):
        app.tick()
        assert row("a").attempt == attempt
        app.pass_time(seconds=91)
    assert status("a").state == "admitted"
    assert semaphores.usage("acct-42").footprint == 1


def test_a_failing_item_holds_up_nobody_else_of_its_key(app):
    fail_for(app, "bad")
    enqueue("acct-42", {}, id="bad")
    app.tick()
    many("abc")
    app.tick()
    assert [row(uid).handed_over for uid in "abc"] == [True, True, True]


def test_why_a_hand_over_failed_is_kept_with_the_item_until_one_succeeds(app, caplog):
    fail_for(app, "a")
    many("a")
    app.tick()
    assert row("a").last_error == "RuntimeError: cannot take a"
    assert "admit() failed for 1 item(s): RuntimeError: cannot take a" in caplog.text

    fail_for(app)
    app.pass_time(seconds=2)
    app.tick()
    assert (row("a").last_error, row("a").handed_over, row("a").attempt) == ("", True, 2)


def test_a_failure_sends_no_event(app):
    fail_for(app, "a")
    many("a")
    app.events.clear()
    app.tick()
    assert app.events == []


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error",
    [RuntimeError("nul \0"), RuntimeError("half \ud800"), RuntimeError("é🦀" * 3000), Unprintable()],
    ids=["nul", "half a surrogate pair", "long", "unprintable"],
)
def test_any_error_can_be_kept(app, error):
    """Else its item would be tried again at its deadline only, and nobody would see why."""
    app.on_admit = raising(error)
    many("a")
    before = clock.now()
    app.tick()
    assert row("a").last_error.startswith(type(error).__name__)
    assert len(row("a").last_error) <= 2100
    assert row("a").due_at < before + timedelta(seconds=10)


def test_an_item_may_be_tried_more_often_than_the_column_can_count(app):
    """(B66)"""
    fail_for(app, "a")
    many("a")
    app.tick()
    Item.objects.update(attempt=2**31 - 2)
    for _time in range(3):
        app.pass_time(seconds=91)
        app.tick()
    assert row("a").attempt == 2**31 - 1
    fail_for(app)
    app.pass_time(seconds=91)
    app.tick()
    assert row("a").handed_over


@pytest.mark.parametrize(
    "path", ["no.such.admit", "tests.queue.application.MODULE", "tests.driver.test_admission.async_admit"]
)
def test_an_admit_that_cannot_be_called_loses_nothing_and_is_told(app, settings, path):
    many("a")
    app.configure({"ADMIT": path}, holder={"DEFAULT_LIMIT": None})
    app.tick()
    assert row("a").last_error.startswith(f"Misconfigured: SEMQ['QUEUES']['default']['ADMIT'] is '{path}', which ")

    app.configure(holder={"DEFAULT_LIMIT": None})
    app.pass_time(seconds=2)
    app.tick()
    assert app.admitted == ["a"]


async def async_admit(items: list[AdmittedItem]) -> None:
    pass


def spoil(*uids: str) -> None:
    with connection.cursor() as cursor:
        for uid in uids:
            cursor.execute(f"UPDATE {Item._meta.db_table} SET body = %s WHERE uid = %s", ["{broken", uid])


def test_an_item_with_an_undecodable_body_is_kept_back_and_the_others_of_its_batch_go(app):
    many("abc")
    spoil("b")
    app.tick()
    assert app.admitted == ["a", "c"]
    assert row("b").last_error.startswith("ValueError: its body is no JSON")
    assert (row("b").attempt, row("b").handed_over) == (1, False)
    assert row("b").due_at > clock.now()


def test_a_batch_of_nothing_but_undecodable_bodies_does_not_hold_up_the_next(app):
    app.configure({"MAX_ADMIT_BATCH": 2}, holder={"DEFAULT_LIMIT": None})
    many("abcd")
    spoil("a", "b")
    app.tick()
    assert app.admitted == ["c", "d"]


def test_a_mended_body_is_handed_over(app):
    many("a")
    spoil("a")
    app.tick()
    Item.objects.update(body='{"mended": true}')
    app.pass_time(seconds=91)
    app.tick()
    assert [item.body for item in app.batches[0]] == [{"mended": True}]
    assert app.batches[0][0].attempt == 2


def claim_one(now) -> admission.HandOver:
    (batch,) = admission.claim("default", now=now, without=(), calls=1)
    return batch


def test_what_one_driver_claimed_no_other_claims_until_its_deadline(app):
    many("a")
    now = clock.now()
    claim_one(now)
    assert admission.claim("default", now=now + timedelta(seconds=59), without=(), calls=4) == []
    again = claim_one(now + timedelta(seconds=60))
    assert [item.attempt for item in again.items] == [2]


def test_what_a_dead_process_was_handing_over_is_tried_alone(app):
    """It may have died of one of them."""
    many("abc")
    claim_one(clock.now())
    app.pass_time(seconds=61)
    app.tick()
    assert sorted([item.id for item in batch] for batch in app.batches) == [["a"], ["b"], ["c"]]


def test_a_late_outcome_of_an_earlier_attempt_changes_nothing(app):
    many("a")
    now = clock.now()
    early = claim_one(now)
    late = claim_one(now + timedelta(seconds=60))
    before = Item.objects.values().get()

    assert admission.succeeded(early, now=now)
    assert admission.failed(early, RuntimeError("too late"), now=now)
    assert Item.objects.values().get() == before
    assert admission.succeeded(late, now=now)
    assert row("a").handed_over


def test_an_item_released_while_it_is_handed_over_is_gone(app):
    app.on_admit = lambda items: release("a")
    many("ab")
    app.tick()
    app.pass_time(days=1)
    app.tick()
    assert app.admitted == ["a", "b"]
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}


def test_an_id_enqueued_again_while_it_was_handed_over_is_another_item(app):
    def admit(items):
        if len(app.batches) == 1:
            release("a")
            enqueue("acct-42", {"second": True}, id="a")

    app.on_admit = admit
    many("a")
    app.tick()
    assert [item.body for batch in app.batches for item in batch] == [{"is": "a"}, {"second": True}]
    assert row("a").handed_over


def test_items_whose_claim_fails_stay_due(app):
    many("ab")
    with fail_statements("UPDATE", containing="attempt"):
        app.tick()
    assert app.admitted == []
    app.tick()
    assert app.admitted == ["a", "b"]


def test_items_whose_outcome_cannot_be_written_are_handed_over_again_at_their_deadline(app):
    many("a")
    with fail_statements("UPDATE", containing="handed_over"):
        app.tick()
    app.tick()
    assert app.admitted == ["a"]
    app.pass_time(seconds=61)
    app.tick()
    assert app.admitted == ["a", "a"]
    assert [batch[0].attempt for batch in app.batches] == [1, 2]


@pytest.mark.databases("postgres", "mariadb")
def test_a_row_that_another_transaction_holds_is_claimed_by_nobody_and_holds_up_nobody(app):
    many("ab")
    with transaction.atomic():
        release("a")
        in_thread(app.tick)
        transaction.set_rollback(True)
    assert app.admitted == ["b"]
    app.tick()
    assert app.admitted == ["b", "a"]


@pytest.mark.databases("postgres", "mariadb")
def test_an_outcome_whose_row_is_held_is_not_lost(app):
    many("a")
    now = clock.now()
    batch = claim_one(now)
    with transaction.atomic():
        Item.objects.select_for_update().get(uid="a")
        assert in_thread(lambda: admission.succeeded(batch, now=now)) is False
    assert admission.succeeded(batch, now=now) is True
    assert row("a").handed_over


@pytest.fixture
def asking(app):
    app.configure(ASKING, holder={"DEFAULT_LIMIT": None})
    return app


def test_without_finished_nobody_is_ever_asked(app):
    many("a")
    assert app.tick() is None
    app.pass_time(days=30)
    app.tick()
    assert app.asked == []
    assert status("a").state == "admitted"


def test_items_handed_over_are_asked_about_after_a_minute_and_every_minute(asking):
    before = clock.now()
    many("ab")
    due = asking.tick()
    assert before + timedelta(seconds=60) <= due <= clock.now() + timedelta(seconds=60)
    assert asking.asked == []
    for time in range(1, 4):
        asking.pass_time(seconds=61)
        asking.tick()
        asking.tick()
        assert asking.asked == [["a", "b"]] * time


def test_the_time_between_two_questions_can_be_set(app):
    app.configure({**ASKING, "FINISHED_CHECK": 5}, holder={"DEFAULT_LIMIT": None})
    many("a")
    app.tick()
    app.pass_time(seconds=6)
    app.tick()
    assert app.asked == [["a"]]


def test_what_is_finished_is_released_and_its_permit_is_free(asking):
    """Also a release that was lost on its way here: it comes back like this."""
    semaphores.set_limit("acct-42", 2)
    many("abc")
    asking.tick()
    asking.on_finished = lambda ids: ["b"]
    asking.pass_time(seconds=61)
    asking.tick()
    assert status("b") is None
    assert [event.id for event in asking.events_of("released")] == ["b"]
    assert asking.admitted == ["a", "b", "c"]


ANSWERS = [
    (lambda ids: None, ""),
    (lambda ids: [], ""),
    (lambda ids: ["b"], "b"),
    (lambda ids: (uid for uid in ids), "abc"),
    (lambda ids: {"a", "c"}, "ac"),
    (lambda ids: dict.fromkeys(ids), "abc"),
    (lambda ids: ["a", "a", "a"], "a"),
    (lambda ids: ["a", "unknown", None, 7, b"b", ["c"]], "a"),
    (lambda ids: "abc", ""),
    (lambda ids: 7, ""),
    (lambda ids: True, ""),
    (lambda ids: [ids.pop(), *ids], "abc"),
    (lambda ids: ids.append("unknown") or ids, "abc"),
    (lambda ids: ids.clear() or ["a"], "a"),
]


@pytest.mark.parametrize(("answer", "gone"), ANSWERS)
def test_only_what_was_asked_is_released_and_once_whatever_the_answer(asking, answer, gone):
    """(B71)"""
    many("abc")
    enqueue("other", {}, id="unasked")
    asking.tick()
    asking.pass_time(seconds=61)
    asking.on_finished = answer
    asking.tick()
    assert sorted(event.id for event in asking.events_of("released") if event.id != "unasked") == sorted(gone)
    assert usage()["admitted"] == 4 - len(gone) or "unasked" in asking.asked[0]


def test_an_item_of_another_queue_is_not_released_by_its_id(app):
    app.configure(ASKING, queues=["default", "reports"], holder={"DEFAULT_LIMIT": None})
    from django_semq import queues

    many("a")
    queues["reports"].enqueue("acct-42", {}, id="r")
    app.tick()
    app.pass_time(seconds=61)
    app.on_finished = lambda ids: ["r"] if ids == ["a"] else []
    app.tick()
    assert queues["reports"].status("r").state == "admitted"


def broken_generator(ids):
    yield ids[0]
    raise ConnectionError("lost the database")


@pytest.mark.parametrize("answer", [broken_generator, raising(ConnectionError("lost the database"))])
def test_a_finished_that_fails_releases_nobody_and_is_asked_again(asking, answer, caplog):
    """(B71)"""
    many("ab")
    asking.tick()
    asking.pass_time(seconds=61)
    asking.on_finished = answer
    asking.tick()
    assert usage()["admitted"] == 2
    assert "finished() failed for 2 item(s)" in caplog.text
    assert "lost the database" in caplog.text

    asking.pass_time(seconds=61)
    asking.on_finished = lambda ids: ids
    asking.tick()
    assert usage()["admitted"] == 0


@pytest.mark.parametrize("path", ["no.such.finished", "tests.queue.application.MODULE"])
def test_a_finished_that_cannot_be_called_releases_nobody_and_is_told(app, path, caplog):
    app.configure({"FINISHED": path}, holder={"DEFAULT_LIMIT": None})
    many("a")
    app.tick()
    app.pass_time(seconds=61)
    app.tick()
    assert status("a").state == "admitted"
    assert f"SEMQ['QUEUES']['default']['FINISHED'] is '{path}', which " in caplog.text


@pytest.mark.parametrize("strange", [["unknown"], ["a", "a"], [None]])
def test_strange_answers_are_told_once_a_minute(asking, caplog, strange):
    asking.on_finished = lambda ids: strange
    for uid in "abc":
        many(uid)
        asking.tick()
        asking.pass_time(seconds=61)
        asking.tick()
    complaints = [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
    assert complaints == ["queue default: finished() named 1 ids that were not asked"]


def test_who_is_asked_about_is_put_off_before_the_question(asking):
    """A process that dies while it asks leaves nothing that would be asked again at once, in a loop."""
    many("a")
    asking.tick()
    asking.pass_time(seconds=61)
    seen = []
    asking.on_finished = lambda ids: seen.append(in_thread(lambda: row("a").due_at) - clock.now())
    asking.tick()
    assert timedelta(seconds=50) < seen[0] <= timedelta(seconds=60)


def test_many_are_asked_about_in_batches_the_longest_due_first(app):
    """(B71)"""
    app.configure({**ASKING, "MAX_ADMIT_BATCH": 2}, holder={"DEFAULT_LIMIT": None})
    many("ab")
    app.tick()
    app.pass_time(seconds=5)
    many("cde")
    app.tick()
    app.pass_time(seconds=61)
    app.tick()
    assert app.asked == [["a", "b"], ["c", "d"], ["e"]]


def test_an_item_that_was_never_handed_over_is_not_asked_about(asking):
    many("a")
    with fail_statements("UPDATE", containing="attempt"):
        for _time in range(3):
            asking.tick()
            asking.pass_time(seconds=61)
    assert asking.asked == []


def test_an_item_that_was_tried_is_asked_about_before_it_is_tried_again(asking):
    """The last attempt may have done its work and died before it said so."""
    fail_for(asking, "a")
    many("a")
    asking.tick()
    assert asking.asked == []
    asking.on_finished = lambda ids: ids
    asking.pass_time(seconds=2)
    asking.tick()
    assert asking.asked == [["a"]]
    assert len(asking.batches) == 1
    assert status("a") is None


def test_an_id_enqueued_again_during_the_question_is_another_item(asking):
    """What is finished is released by its row and attempt: its id says nothing any more."""
    many("a")
    asking.tick()
    asking.pass_time(seconds=61)

    def finished(ids):
        if release("a"):
            enqueue("acct-42", {}, id="a")
        asking.on_finished = lambda ids: None
        return ids

    asking.on_finished = finished
    asking.tick()
    assert status("a").state == "admitted"


def test_rows_whose_claim_for_a_question_fails_stay_due_and_the_rest_goes_on(asking):
    many("a")
    asking.tick()
    asking.pass_time(seconds=61)
    many("b")
    with fail_statements("UPDATE", containing="due_at"):
        asking.tick()
    assert asking.asked == []
    asking.tick()
    assert asking.asked == [["a"]]
    assert asking.admitted == ["a", "b"]


def test_finished_items_that_cannot_be_released_are_asked_about_again(asking):
    many("ab")
    asking.tick()
    asking.pass_time(seconds=61)
    asking.on_finished = lambda ids: ids
    with fail_statements("DELETE", containing=""):
        asking.tick()
    assert usage()["admitted"] == 2
    asking.pass_time(seconds=61)
    asking.tick()
    assert usage()["admitted"] == 0


def test_asking_nobody_writes_nothing(asking, django_assert_num_queries):
    many("a")
    asking.tick()
    with django_assert_num_queries(1):
        assert admission.next_check("default") is not None
    Item.objects.filter(state=State.ADMITTED).update(due_at=None)
    with django_assert_num_queries(1):
        assert admission.next_check("default") is None
