"""One bad key, item, handler, receiver or statement, or one very busy key, holds up nobody else."""

import threading
import uuid
from contextlib import suppress
from types import SimpleNamespace

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext

from django_semq import cancel, enqueue, enqueue_many, handlers, queues, release, semaphores, status, usage
from django_semq.driver.tick import tick
from django_semq.holder import service
from django_semq.models import IssuedGrant, Item, Key, State
from django_semq.queue.pump import driven_by
from tests.concurrency.states import wait_until
from tests.queue.application import SIGNALS, in_thread, raising

ON_SERVERS = pytest.mark.databases("postgres", "mariadb")  # SQLite has one writer, and no lock on a row.
KEYS = [f"k{number}" for number in range(5)]


def waiting(*keys):
    """One item for each key, named as the key, for which nobody has looked yet."""
    with driven_by(lambda: None):
        enqueue_many([{"key": key, "body": {}, "id": key} for key in keys])


def states(*ids):
    return {uid: status(uid).state for uid in ids}


def test_items_that_cannot_run_cost_nothing_and_hold_up_nobody(app):
    """(B34)"""
    blocked = [f"blocked-{number}" for number in range(30)]
    app.configure(holder={"DEFAULT_LIMIT": 3, "RULES": {"blocked-*": {"limit": 0}}})
    enqueue_many([{"key": key, "body": {}} for key in blocked for _n in range(10)])
    app.tick()
    with CaptureQueriesContext(connection) as idle:
        app.tick()
    assert [query["sql"] for query in idle if not query["sql"].startswith(("SELECT", "WITH"))] == []

    waiting("free")
    with CaptureQueriesContext(connection) as busy:
        app.tick()
    assert app.admitted == ["free"]
    assert not [query["sql"] for query in busy if "blocked-" in query["sql"] and "UPDATE" in query["sql"]]


def test_a_key_with_a_long_backlog_and_a_slow_handler_leaves_the_others_their_turn(app):
    """(B35)"""
    app.configure({"MAX_ADMIT_BATCH": 10}, holder={"DEFAULT_LIMIT": None})
    goes_on = threading.Event()
    app.on_admit = lambda items: goes_on.wait(60) if items[0].key == "busy" else None
    enqueue_many([{"key": "busy", "body": {}} for _n in range(500)])
    quiet = [f"quiet-{number}" for number in range(50)]
    waiting(*quiet)
    driver = threading.Thread(target=lambda: in_thread(tick))
    driver.start()
    try:
        wait_until(lambda: set(quiet) <= set(app.admitted), 30, "every quiet key was handed over")
        assert len([uid for uid in app.admitted if uid not in quiet]) <= 10
    finally:
        goes_on.set()
        driver.join()


@ON_SERVERS
@pytest.mark.parametrize("model", [Key, Item])
def test_a_row_that_somebody_holds_holds_up_its_own_key_only(app, model):
    """(B47)"""
    waiting(*KEYS)
    app.tick()
    for uid in KEYS:
        release(uid)
    with driven_by(lambda: None):
        enqueue_many([{"key": key, "body": {}, "id": f"{key} next"} for key in KEYS])
    named = {"name": "k3"} if model is Key else {"key": "k3"}
    with transaction.atomic():
        list(model.objects.select_for_update().filter(**named))
        in_thread(app.tick)
        assert set(app.admitted) == {*KEYS, *(f"{key} next" for key in KEYS if key != "k3")}
    app.pass_time(seconds=1)
    app.tick()
    assert "k3 next" in app.admitted


@ON_SERVERS
def test_an_operator_s_open_transaction_holds_up_its_own_key_only(app):
    """(B47)"""
    waiting(*KEYS)
    app.tick()
    with driven_by(lambda: None):
        enqueue_many([{"key": key, "body": {}, "id": f"{key} next"} for key in KEYS])
        for uid in KEYS:
            release(uid)
    app.batches.clear()
    with transaction.atomic():
        semaphores.set_limit("k3", 2)
        driver = threading.Thread(target=lambda: in_thread(app.tick))
        driver.start()
        driver.join(30)  # So long only where it is held up.
        handed_over = set(app.admitted)
    driver.join()
    assert handed_over == {f"{key} next" for key in KEYS if key != "k3"}


def test_a_key_whose_pump_violates_a_constraint_is_set_aside_and_comes_back(app, caplog):
    """And its error poisons no transaction of another. (B49)"""
    enqueue("k4", {}, id="has the id of the grant")
    taken = uuid.UUID(hex=IssuedGrant.objects.get().uid)
    issue = service.Books.issue

    def issue_twice(books, semaphore, *args):
        with pytest.MonkeyPatch.context() as patch:
            if semaphore.name == "k0":
                patch.setattr(service, "uuid", SimpleNamespace(uuid4=lambda: taken))
            return issue(books, semaphore, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service.Books, "issue", issue_twice)
        waiting("k0", "k1")
        app.tick()
    assert status("k0").blocked == "set_aside"
    assert app.admitted == ["has the id of the grant", "k1"]
    assert "IntegrityError" in caplog.text
    app.pass_time(minutes=10)
    app.tick()
    assert app.admitted[2:] == ["k0"]


def test_an_id_may_come_again_in_the_transaction_that_ends_it(app):
    """And is another item: it waits for a permit like any other. (B49, B115)"""
    enqueue("acct-42", "old", id="a")
    with transaction.atomic():
        assert release("a")
        assert enqueue("acct-42", "new", id="a").created
        assert not enqueue("acct-42", "newer", id="a").created
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 1}
    with transaction.atomic():
        assert release("a")
        enqueue("acct-42", "first", id="b")
        enqueue("acct-42", "newest", id="a")
    app.tick()
    assert [(item.id, item.body) for batch in app.batches for item in batch] == [("b", "first")]
    assert (status("a").state, status("a").blocked) == ("queued", "key_limit")
    assert semaphores.usage("acct-42").footprint == 1


def test_what_runs_may_enqueue_for_its_own_key(app):
    """It never waits there; if it waits for the outcome itself, the status says for what. (B115)"""
    seen = []

    def follow_up(items):
        if items[0].id == "first":
            enqueue("acct-42", {}, id="follow-up")
            with transaction.atomic():
                release("unknown")
            seen.append(status("follow-up").state)

    app.on_admit = follow_up
    enqueue("acct-42", {}, id="first")
    app.tick()
    assert seen == ["queued"]
    assert status("follow-up").blocked == "key_limit"
    release("first")
    app.tick()
    assert app.admitted == ["first", "follow-up"]


@pytest.mark.parametrize("name", SIGNALS)
def test_a_receiver_that_fails_stops_nothing_that_should_follow(app, name):
    """The caller hears nothing of it, and needs no driver to have the next item admitted. (B70)"""
    app.on_event = lambda event: raising(ValueError("broken"))() if event.name == name else None
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"])
    assert states("a", "c") == {"a": "admitted", "c": "queued"}
    assert cancel("b")
    assert release("a")
    assert states("c") == {"c": "admitted"}
    assert [event.name for event in app.events_of(name)] != []


class Ended(BaseException):
    """As KeyboardInterrupt: what no receiver should raise, and what comes while one runs."""


@pytest.mark.parametrize("name", SIGNALS)
def test_a_receiver_that_ends_its_process_leaves_nothing_undone(app, name):
    """What it was told is committed, and the next driver finds the rest. (B70)"""
    app.on_event = lambda event: raising(Ended())() if event.name == name else None
    for verb, *arguments in [
        (enqueue_many, [{"key": "acct-42", "body": {}, "id": uid} for uid in "abc"]),
        (cancel, "b"),
    ]:
        with suppress(Ended):
            verb(*arguments)
    with suppress(Ended):
        app.tick()
    with suppress(Ended):
        release("a")
    app.on_event = lambda event: None
    app.tick()
    assert app.admitted[-1] == "c"
    assert "b" not in app.admitted
    assert states("c") == {"c": "admitted"}
    assert not Item.objects.filter(state=State.QUEUED).exists()


@pytest.mark.parametrize("function", ["limits", "retry_delay"])
def test_a_function_of_the_project_that_hangs_stops_only_what_waits_for_its_answer(app, monkeypatch, function):
    """(B69)"""
    monkeypatch.setattr(handlers, "ANSWER_WITHIN", 0.5)
    app.configure(
        {"ATTEMPT_TIMEOUT": 1, "RETRY_DELAY": "tests.queue.application.retry_delay"},
        holder={"LIMITS": "tests.queue.application.limits", "DEFAULT_LIMIT": 1},
    )
    goes_on, hangs = threading.Event(), threading.Event()

    def hang(*args):
        hangs.set()
        goes_on.wait(60)

    def drive():
        while not goes_on.wait(0.05):
            tick()

    if function == "limits":
        app.on_limits = lambda key: hang() if key == "bad" else None
    else:
        app.on_retry_delay = hang
    app.on_admit = lambda items: 1 / 0 if items[0].key == "bad" else None
    waiting("bad")
    driver = threading.Thread(target=lambda: in_thread(drive))
    driver.start()
    try:
        assert hangs.wait(30)
        waiting("good")
        wait_until(lambda: "good" in app.admitted, 10, "another key was handed over")
    finally:
        goes_on.set()
        driver.join()


def test_an_error_of_one_statement_stops_one_queue_only(app):
    """(B94)"""
    app.configure(queues=["first", "second"], holder={"DEFAULT_LIMIT": None})
    with driven_by(lambda: None):
        queues["first"].enqueue("shared", {}, id="a")
        queues["second"].enqueue("shared", {}, id="b")

    def refuse(execute, sql, params, many, context):
        if params and "first" in params:
            raise DatabaseError("canceling statement due to statement timeout")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        app.tick()
    assert app.admitted == ["b"]
    app.pass_time(minutes=6)
    app.tick()
    assert app.admitted == ["b", "a"]
