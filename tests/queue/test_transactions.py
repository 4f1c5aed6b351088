"""The callers' verbs are part of the caller's transaction, and nothing of the library's own is open around it."""

import pytest
from django.db import Error, OperationalError, connection, transaction

from django_semq import (
    InvalidItem,
    TransactionOpen,
    cancel,
    enqueue,
    enqueue_many,
    locking,
    release,
    status,
    usage,
)
from django_semq.models import Item, Key, Nudge
from django_semq.queue import admission
from tests.queue.application import in_thread, rolled_back


def test_what_a_transaction_enqueues_is_there_when_it_commits(app):
    with transaction.atomic():
        enqueue("acct-42", {}, id="a")
        assert status("a").state == "queued"  # The pump comes after the commit.
    assert status("a").state == "admitted"


def test_what_a_transaction_enqueues_goes_when_it_rolls_back(app):
    with rolled_back():
        enqueue_many([{"key": key, "body": {}} for key in "xyz"])
    assert not Item.objects.exists()
    assert not Nudge.objects.exists()
    assert not Key.objects.exists()


def test_a_release_and_a_cancel_roll_back_too(app):
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "ab"])
    with rolled_back():
        assert release("a")
        assert cancel("b")
        assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}
    assert (status("a").state, status("b").state) == ("admitted", "queued")
    assert usage() == {"queued": 1, "claiming": 0, "admitted": 1}
    assert release("a")
    assert status("b").state == "admitted"


@pytest.mark.databases("postgres", "mariadb")
def test_others_see_nothing_of_an_open_transaction(app):
    enqueue("acct-42", {}, id="a")
    with transaction.atomic():
        release("a")
        enqueue("acct-42", {}, id="b")
        assert in_thread(lambda: (status("a").state, status("b"))) == ("admitted", None)


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_along(app):
    with transaction.atomic():
        enqueue("x", {}, id="before")
        with rolled_back():
            enqueue("y", {}, id="inside")
        enqueue("z", {}, id="after")
    assert [status(uid) and status(uid).state for uid in ["before", "inside", "after"]] == [
        "admitted",
        None,
        "admitted",
    ]
    assert [event.id for event in app.events_of("queued")] == ["before", "after"]


@pytest.mark.parametrize("lost", ["first", "last"])
def test_a_lost_savepoint_does_not_take_the_others_wake_up_along(app, lost):
    """Each call leaves a hook of its own: one for the whole transaction would go with the savepoint it was made in."""
    with transaction.atomic():
        if lost == "last":
            enqueue("x", {}, id="kept")
        with rolled_back():
            enqueue("x", {}, id="lost")
        if lost == "first":
            enqueue("x", {}, id="kept")
    assert status("kept").state == "admitted"


def test_a_duplicate_and_a_bad_item_leave_the_caller_s_transaction_usable(app):
    enqueue("x", {}, id="a")
    with transaction.atomic():
        assert not enqueue("x", {}, id="a").created
        with pytest.raises(InvalidItem):
            enqueue("x", {1})
        enqueue("y", {}, id="b")
    assert status("b").state == "admitted"


def test_one_transaction_pumps_all_its_keys_after_its_end(app):
    with transaction.atomic():
        for number in range(120):
            enqueue(f"key-{number}", {}, id=f"item-{number}")
        assert connection.in_atomic_block
    app.tick()  # A hundred keys are the most that a caller pumps.
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 120}


def test_an_item_enqueued_and_cancelled_in_one_transaction_was_never_there(app):
    with transaction.atomic():
        enqueue("x", {}, id="a")
        assert cancel("a")
        assert enqueue("x", {}, id="a").created
        assert cancel("a")
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}
    assert app.events_of("admitted") == []


def test_no_transaction_of_ours_is_open_while_the_application_runs(app):
    """What is called inside one, the fixture notices: here all of it is called. (B98)"""
    app.configure(
        {
            "FINISHED": "tests.queue.application.finished",
            "RETRY_DELAY": "tests.queue.application.retry_delay",
        },
        holder={"LIMITS": "tests.queue.application.limits"},
    )

    def fail_once(items):
        if len(app.batches) == 1:
            raise RuntimeError("busy")

    app.on_admit = fail_once
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    cancel("c")
    app.tick()
    app.pass_time(seconds=120)
    app.tick()
    app.pass_time(seconds=120)
    app.on_finished = lambda ids: ids
    app.tick()
    release("b")

    assert app.limits_asked
    assert app.asked
    assert len(app.batches) >= 2
    assert {event.name for event in app.events} == {"queued", "blocked", "admitted", "released", "cancelled"}
    assert app.called_in_transaction == []


@pytest.mark.parametrize(
    "work",
    [
        lambda: admission.hand_over(admission.HandOver("default", [], {}, is_alone=False)),
        lambda: admission.ask(admission.Check("default", {}, {})),
        lambda: admission.retry_delay("default", 1),
    ],
)
def test_the_application_is_not_called_from_inside_a_transaction_of_ours(app, work):
    app.configure(
        {
            "FINISHED": "tests.queue.application.finished",
            "RETRY_DELAY": "tests.queue.application.retry_delay",
        }
    )
    with pytest.raises(TransactionOpen, match="this is a fault of the library"):
        locking.run(work, using="default")
    assert (app.batches, app.asked) == ([], [])


def test_our_transactions_start_outside_any_other(app):
    with transaction.atomic(), pytest.raises(TransactionOpen, match="call it after the commit"):
        locking.run(lambda: None, using="default")


def lose_server_at_the_end_of_a_transaction(patch: pytest.MonkeyPatch) -> None:
    """It goes away after the commit, when Django switches autocommit on again."""

    def fail(autocommit: bool) -> None:
        if autocommit:
            patch.undo()
            connection.connection.close()
            raise OperationalError("server has gone away")
        real(autocommit)

    connection.ensure_connection()
    real = connection._set_autocommit
    patch.setattr(connection, "_set_autocommit", fail)


def test_a_server_that_goes_away_as_one_of_our_transactions_ends_spoils_no_later_one(app):
    with pytest.MonkeyPatch.context() as patch:
        lose_server_at_the_end_of_a_transaction(patch)
        with pytest.raises(OperationalError):
            locking.run(lambda: None, using="default", tries=1)
    assert locking.run(Item.objects.count, using="default") == 0


def test_a_server_that_goes_away_as_one_of_the_applications_ends_spoils_none_of_ours(app):
    with pytest.MonkeyPatch.context() as patch:
        lose_server_at_the_end_of_a_transaction(patch)
        with pytest.raises(OperationalError), transaction.atomic():
            pass
    with pytest.raises(Error), transaction.atomic():
        pass
    assert locking.run(Item.objects.count, using="default") == 0


@pytest.mark.databases("sqlite")
@pytest.mark.django_db(transaction=True)
def test_the_projects_own_way_to_begin_a_transaction_outlives_the_first_of_ours():
    mode = connection.settings_dict["OPTIONS"]["transaction_mode"]

    def first() -> str:
        locking.run(lambda: None, using="default")
        return connection.transaction_mode

    assert in_thread(first) == mode == "IMMEDIATE"
