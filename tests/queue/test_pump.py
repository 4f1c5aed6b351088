"""How permits reach items: in arrival order, past what is blocked, and never lost on the way."""

import logging
from datetime import timedelta

import pytest
from django.db import DatabaseError, connection, transaction

from django_semq import cancel, clock, enqueue, enqueue_many, release, release_many, semaphores, status, usage
from django_semq.models import Grant, IssuedGrant, Item, Key, KeyGroup, Nudge, Semaphore, State
from django_semq.queue import pump as pump_module
from django_semq.queue.pump import pump, with_keys
from tests.queue.application import in_thread


def admitted() -> list[str]:
    """Ids of the admitted items, in order of arrival."""
    return list(Item.objects.filter(state=State.ADMITTED).order_by("id").values_list("uid", flat=True))


def many(count: int, *, key: str = "acct-42", group: str = "", prefix: str = "") -> list[dict]:
    return [{"key": key, "group": group, "body": {}, "id": f"{prefix}{number}"} for number in range(count)]


def left_to_the_driver(work) -> None:
    """Do this as a process would that dies right after its commit: nobody pumps."""
    with pump_module.driven_by(lambda: None):
        work()


def test_items_are_admitted_in_order_of_arrival_also_within_one_call(app):
    """Not in the order of their ids, which say nothing, nor of their times, which are equal here."""
    ids = ["m", "z", "a", "k", "b"]
    enqueue_many([{"key": "acct-42", "body": {}, "id": uid} for uid in ids])
    assert len(set(Item.objects.values_list("enqueued_at", flat=True))) == 1

    for uid in ids:
        assert admitted() == [uid]
        release(uid)


def test_a_clock_that_goes_back_does_not_change_the_order(app):
    """(B40)"""
    enqueue_many(many(1))
    enqueue("acct-42", {}, id="earlier")
    app.pass_time(hours=-1)
    enqueue("acct-42", {}, id="later")
    release("0")
    assert admitted() == ["earlier"]


def test_each_group_is_served_in_its_own_order(app):
    app.configure(holder={"RULES": {"*": {"limit": 10, "groups": {"*": 1}}}})
    enqueue_many(
        [{"key": "acct-42", "group": group, "body": {}, "id": f"{group}{n}"} for n in (2, 1, 3) for group in "gh"]
    )
    assert admitted() == ["g2", "h2"]
    release_many(["g2", "h2"])
    assert admitted() == ["g1", "h1"]


def test_permits_go_to_the_oldest_of_all_that_fit_at_once(app):
    app.configure(holder={"DEFAULT_LIMIT": 3})
    enqueue_many(many(5))
    assert admitted() == ["0", "1", "2"]
    release_many(["0", "2"])
    assert admitted() == ["1", "3", "4"]


def test_three_hundred_items_of_a_blocked_group_do_not_delay_another(app):
    app.configure(holder={"RULES": {"*": {"limit": 5, "groups": {"blocked": 0}}}})
    enqueue_many(many(300, group="blocked", prefix="blocked"))
    enqueue_many(many(4, group="open", prefix="open"))

    assert admitted() == ["open0", "open1", "open2", "open3"]
    assert usage() == {"queued": 300, "claiming": 0, "admitted": 4}


def test_all_that_waits_is_asked_for_however_much_it_is(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue_many(many(300))
    semaphores.set_limit("acct-42", 300)
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 300}


def test_an_item_gets_a_permit_of_exactly_its_group(app):
    app.configure(holder={"RULES": {"*": {"limit": 10, "groups": {"exports": 1}}}})
    for uid, group in [("a", "exports"), ("b", "Exports"), ("c", "exports "), ("d", "exports"), ("e", "")]:
        enqueue("acct-42", {}, group=group, id=uid)
    assert admitted() == ["a", "b", "c", "e"]
    for item in Item.objects.filter(state=State.ADMITTED):
        assert Grant.objects.get(pk=item.grant_id).group == item.group


def test_keys_do_not_share_anything(app):
    for key in ["acct-1", "acct-2"]:
        enqueue_many(many(2, key=key, prefix=key))
    assert admitted() == ["acct-10", "acct-20"]


def test_a_grant_counts_what_was_claimed_of_it_on_both_sides(app):
    app.configure(holder={"DEFAULT_LIMIT": 3})
    enqueue_many(many(5))
    grant, issued = Grant.objects.get(), IssuedGrant.objects.get()
    assert (grant.permits, grant.claimed, grant.confirmed, grant.admitted, grant.released) == (3, 3, 3, 3, 0)
    assert grant.closed
    assert issued.uid == grant.uid
    assert (issued.permits, issued.claimed, issued.released, issued.clamped) == (3, 3, 0, True)

    with pump_module.driven_by(lambda: None):
        release("1")
    app.tick()
    grant.refresh_from_db()
    issued.refresh_from_db()
    assert (grant.admitted, grant.released, grant.acked_released) == (3, 1, 1)
    assert (issued.claimed, issued.released) == (3, 1)


def test_nothing_of_a_grant_is_left_when_its_last_permit_is_back(app):
    app.configure(holder={"DEFAULT_LIMIT": 2})
    enqueue_many(many(2))
    release("0")
    assert Grant.objects.exists()
    release("1")
    assert not Grant.objects.exists()
    assert not IssuedGrant.objects.exists()
    assert not KeyGroup.objects.exists()
    assert not Nudge.objects.exists()


def test_a_permit_that_comes_back_twice_frees_one(app, caplog):
    """What the rows cannot hold is logged and left out, and the pump goes on."""
    enqueue_many(many(2))
    grant = Grant.objects.get()
    Nudge.objects.create(queue="default", key="acct-42", grant_id=grant.pk, returned=5, created_at=clock.now())
    app.counters_agree = False
    app.tick()
    assert "5 permits came back, 1 were out" in caplog.text
    assert semaphores.usage("acct-42").footprint == 1


def test_what_never_changes_of_an_item_does_not_change(app):
    enqueue("acct-42", {"order": 7}, group="exports", id="a")
    columns = Item.objects.values("id", "uid", "queue", "key", "group", "body", "enqueued_at")
    before = columns.get()
    app.on_admit = lambda items: 1 / 0
    for _time in range(3):
        app.tick()
        app.pass_time(seconds=300)
        assert columns.get() == before


def test_what_a_dead_process_committed_is_found_by_the_next_tick(app):
    left_to_the_driver(lambda: enqueue_many(many(2)))
    assert admitted() == []
    app.tick()
    assert app.admitted == ["0"]

    left_to_the_driver(lambda: release("0"))
    app.tick()
    assert app.admitted == ["0", "1"]


def test_a_pump_that_fails_leaves_the_work_to_the_driver_and_the_caller_hears_nothing(app, caplog):
    def refuse(execute, sql, params, many, context):
        if sql.startswith(("UPDATE", "INSERT")) and Semaphore._meta.db_table in sql:
            raise DatabaseError("out of memory")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(refuse):
        assert enqueue("acct-42", {}, id="a").created
    assert status("a").state == "queued"

    app.tick()
    assert status("a").state == "admitted"


def test_a_nudge_that_comes_while_a_key_is_locked_is_looked_at_after_its_owner_s_end(app):
    """Its caller found the key taken and went away, so the owner has to look."""
    enqueue_many(many(2))
    row = Item.objects.get(uid="0")

    def leave_what_a_release_leaves(keys):
        Item.objects.filter(pk=row.pk)._raw_delete("default")
        Nudge.objects.create(queue="default", key="acct-42", grant_id=row.grant_id, returned=1, created_at=clock.now())

    with_keys("default", ["acct-42"], leave_what_a_release_leaves)
    assert admitted() == ["1"]


@pytest.mark.databases("postgres", "mariadb")
def test_a_caller_does_not_wait_for_a_key_that_another_has(app):
    """(B91)"""
    enqueue_many(many(1))

    def work(keys):
        assert [key.name for key in keys] == ["acct-42"]
        in_thread(lambda: (release("0"), enqueue("acct-42", {}, id="next")))
        assert status("next").state == "queued"

    with_keys("default", ["acct-42"], work)
    assert status("next").state == "admitted"


@pytest.mark.databases("postgres", "mariadb")
def test_an_owner_that_rolls_back_looks_too(app):
    enqueue_many(many(1))

    def work(keys):
        in_thread(lambda: (release("0"), enqueue("acct-42", {}, id="next")))
        raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError):
        with_keys("default", ["acct-42"], work)
    assert status("next").state == "admitted"


@pytest.mark.databases("postgres", "mariadb")
def test_a_row_that_another_transaction_holds_is_passed_over_and_looked_at_again(app):
    """A cancel that rolls back leaves no nudge: the key is due again by itself."""
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue_many(many(2))

    with transaction.atomic():
        assert cancel("0")
        in_thread(lambda: semaphores.set_limit("acct-42", 1))
        assert in_thread(lambda: status("1").state) == "admitted"
        transaction.set_rollback(True)

    in_thread(lambda: semaphores.set_limit("acct-42", 2))
    assert (status("0").state, status("1").state) == ("admitted", "admitted")


@pytest.mark.databases("postgres", "mariadb")
def test_a_key_that_got_fewer_rows_than_it_counted_is_due_in_a_moment(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue_many(many(1))
    with transaction.atomic():
        assert cancel("0")
        in_thread(lambda: semaphores.set_limit("acct-42", 1))
        transaction.set_rollback(True)
    assert status("0").state == "queued"
    assert semaphores.usage("acct-42").footprint == 0  # A group that got no row keeps no permit.
    key = Key.objects.get()
    assert key.due_at is not None

    app.pass_time(seconds=1)
    app.tick()
    assert app.admitted == ["0"]


def test_a_pump_folds_a_mountain_of_nudges_in_several_rounds(app, monkeypatch):
    monkeypatch.setattr(pump_module, "NUDGES_PER_ROUND", 7)
    app.configure(holder={"DEFAULT_LIMIT": 15})

    def enqueue_one_by_one():
        for number in range(20):
            enqueue("acct-42", {}, id=f"{number}")

    left_to_the_driver(enqueue_one_by_one)
    assert Nudge.objects.count() == 20
    done = pump("default", ["acct-42"], now=clock.now())
    assert (done.folded, done.admitted, done.left) == (20, 15, [])


def test_a_caller_pumps_three_rounds_at_most(app, monkeypatch):
    """No request pays for what others left."""
    monkeypatch.setattr(pump_module, "NUDGES_PER_ROUND", 1)

    def enqueue_one_by_one():
        for number in range(10):
            enqueue("acct-42", {}, id=f"{number}")

    left_to_the_driver(enqueue_one_by_one)
    enqueue("acct-42", {}, id="last")
    assert Nudge.objects.exists()
    app.tick()
    assert not Nudge.objects.exists()


def test_a_release_in_admit_is_pumped_by_the_driver_that_called_it(app):
    enqueue_many(many(3))
    app.on_admit = lambda items: [release(item.id) for item in items]
    app.tick()
    assert app.admitted == ["0", "1", "2"]
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}


@pytest.fixture
def corrupt(app):
    """Items of the keys a, broken and z run and one of a and z waits. The holder's count of the key "broken" is too
    small by the permit that is out, so that the database refuses the row when it comes back."""
    app.counters_agree = False
    enqueue_many([{"key": key, "body": {}, "id": f"{key}1"} for key in ["a", "broken", "z"]])
    enqueue_many([{"key": key, "body": {}, "id": f"{key}2"} for key in ["a", "z"]])
    Semaphore.objects.filter(name="broken").update(footprint=0)


def test_a_key_that_fails_alone_is_set_aside_and_the_others_of_its_batch_drain(app, corrupt, caplog):
    with transaction.atomic():
        assert release_many(["a1", "broken1", "z1"]) == ["a1", "broken1", "z1"]

    assert admitted() == ["a2", "z2"]
    assert "key 'broken' is set aside" in caplog.text
    key = Key.objects.get(name="broken")
    assert key.set_aside_count == 1
    assert timedelta(0) < key.set_aside_until - clock.now() <= timedelta(seconds=1)
    assert "IntegrityError" in key.error


def test_a_key_set_aside_is_left_alone_until_its_time_and_for_longer_each_time(app, corrupt, caplog):
    caplog.set_level(logging.CRITICAL)
    release("broken1")
    key = Key.objects.get(name="broken")
    delays = [1.0]
    for _time in range(10):
        app.tick()  # Not its time yet.
        assert Key.objects.get(name="broken").set_aside_count == key.set_aside_count
        app.ahead += key.set_aside_until - clock.now() + timedelta(milliseconds=1)
        now = clock.now()
        due = app.tick()
        key.refresh_from_db()
        assert due <= key.set_aside_until
        delays.append((key.set_aside_until - now).total_seconds())
    assert [round(seconds) for seconds in delays] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_a_key_that_is_mended_comes_back(app, corrupt):
    release("broken1")
    Semaphore.objects.filter(name="broken").update(footprint=1)
    app.counters_agree = True

    enqueue("broken", {}, id="broken2")
    assert status("broken2").state == "queued"  # It is not its time yet.
    app.pass_time(seconds=2)
    app.tick()

    assert "broken2" in app.admitted
    key = Key.objects.get(name="broken")
    assert (key.set_aside_until, key.set_aside_count, key.error) == (None, 0, "")


def idle_rows() -> tuple[int, int]:
    return (Key.objects.count(), Semaphore.objects.count())


def test_a_key_that_holds_nothing_goes_after_a_day(app):
    enqueue("acct-42", {}, id="a")
    release("a")
    app.pass_time(hours=23)
    app.tick()
    assert idle_rows() == (1, 1)
    app.pass_time(hours=2)
    app.tick()
    assert idle_rows() == (0, 0)


def test_a_key_that_waits_or_runs_stays_for_as_long_as_it_does(app):
    app.configure(holder={"RULES": {"blocked": {"limit": 0}}})
    enqueue("acct-42", {}, id="running")
    enqueue("blocked", {}, id="waiting")
    for _day in range(5):
        app.pass_time(days=1, seconds=1)
        app.tick()
    assert idle_rows() == (2, 2)
    assert status("waiting").state == "queued"


def test_a_key_that_comes_back_before_its_day_is_over_works_on(app):
    enqueue("acct-42", {}, id="a")
    release("a")
    app.pass_time(hours=23)
    enqueue("acct-42", {}, id="b")
    app.pass_time(hours=23)
    app.tick()
    assert app.admitted == ["b"]
    release("b")
    app.pass_time(days=3)
    app.tick()
    app.tick()
    assert idle_rows() == (0, 0)


def test_a_removed_key_can_be_used_again(app):
    enqueue("acct-42", {}, id="a")
    release("a")
    app.pass_time(days=2)
    app.tick()
    enqueue("acct-42", {}, id="b")
    assert status("b").state == "admitted"


def test_a_key_whose_items_were_all_cancelled_goes_too(app):
    app.configure(holder={"DEFAULT_LIMIT": 0})
    enqueue("acct-42", {}, id="a")
    cancel("a")
    app.pass_time(days=2)
    app.tick()
    assert idle_rows() == (0, 0)


def test_many_idle_keys_go_a_hundred_at_a_time(app):
    """(B87)"""
    app.configure(holder={"DEFAULT_LIMIT": None})
    items = many(250)
    for number, item in enumerate(items):
        item["key"] = f"key-{number:03}"
    enqueue_many(items)
    app.tick()
    assert len(release_many(app.admitted)) == 250
    app.tick()
    app.pass_time(days=2)
    for _time in range(3):
        app.tick()
    assert idle_rows() == (0, 0)
