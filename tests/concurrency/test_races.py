"""Two processes at the same rows, one of them stopped between any two of its statements."""

import random

import pytest
from django.db import connection

from django_semq import clock, enqueue, queues, semaphores
from django_semq.invariants import audit
from django_semq.models import Item, Key, Semaphore, State
from django_semq.queue import admission
from tests.concurrency import HANDS_TO_NOBODY, QUIET, loaded
from tests.concurrency.actors import Actor, meetings
from tests.concurrency.rows import drive, enqueue_all, enqueue_only, footprint, make_idle, state
from tests.concurrency.states import wait_until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

CROWD = 12
TWO_QUEUES = {"default": HANDS_TO_NOBODY, "second": HANDS_TO_NOBODY}


def test_of_a_cancel_and_a_pump_exactly_one_gets_the_item(meet):
    """(B65)"""

    def arrange(name):
        enqueue_only(name, name)
        return [["cancel", "default", name]], [["pump", "default", name]]

    for name, cancelled, _admitted in meet(arrange):
        assert state(name) == ("gone" if cancelled else "admitted"), name
        assert footprint(name) == (0 if cancelled else 1), name


def test_of_a_delete_by_the_orm_and_a_pump_exactly_one_gets_the_item(meet):
    def arrange(name):
        enqueue_only(name, name)
        return [["delete", name]], [["pump", "default", name]]

    for name, deleted, _admitted in meet(arrange):
        assert state(name) == ("gone" if deleted else "admitted"), name


@pytest.mark.parametrize("atomic", [False, True])
def test_of_two_enqueues_of_one_id_exactly_one_stores_it(meet, atomic):
    def arrange(name):
        return [["enqueue", "default", name, name]], [["enqueue", "default", name, name]]

    for name, mine, yours in meet(arrange, atomic=atomic):
        assert sorted([mine, yours]) == [[], [name]], name
        assert state(name) == "admitted", name


def test_of_two_drivers_exactly_one_hands_an_item_over(meet):
    """(B43)"""

    def arrange(name):
        enqueue(name, None, id=name)
        return [["claim", "default"]], [["claim", "default"]]

    for name, mine, yours in meet(arrange):
        assert sorted([mine, yours]) == [[], [name]], name


def test_an_item_is_released_once_and_its_permit_comes_back_once(meet):
    """(B16)"""

    def arrange(name):
        enqueue_all(**{name: [name, f"{name} next", f"{name} last"]})
        return [["release", "default", name]], [["release", "default", name]]

    for name, mine, yours in meet(arrange):
        assert sorted([mine, yours]) == [False, True], name
        assert (state(f"{name} next"), state(f"{name} last")) == ("admitted", "queued"), name
        assert footprint(name) == 1, name


def test_a_release_and_the_mark_of_a_hand_over_do_not_hinder_each_other(meet):
    def arrange(name):
        enqueue(name, None, id=name)
        (batch,) = admission.claim("default", now=clock.now(), without=(), calls=1)
        return [["mark", "default", *batch.attempts.popitem()]], [["release", "default", name]]

    for name, _marked, released in meet(arrange):
        assert released, name
        assert state(name) == "gone", name
        assert footprint(name) == 0, name


def test_no_hand_over_begins_once_a_release_has_returned(actors, fresh):
    claiming, releasing = actors(2)

    def arrange(name):
        enqueue(name, None, id=name)
        return [["claim", "default"]], [["release", "default", name]]

    for name, claimed, released in meetings(claiming, releasing, arrange, f"{fresh} a"):
        assert released, name
        assert not (claimed and releasing.ended_inside), name
        assert (state(name), footprint(name)) == ("gone", 0), name
    for name, released, claimed in meetings(releasing, claiming, lambda name: arrange(name)[::-1], f"{fresh} b"):
        assert released, name
        assert claimed in ([], [name]), name
        assert (state(name), footprint(name)) == ("gone", 0), name
    assert audit() == []


def test_of_the_end_of_an_attempt_and_the_claim_of_the_next_exactly_one_gets_the_item(meet):
    def arrange(name):
        enqueue(name, None, id=name)
        (batch,) = admission.claim("default", now=clock.now(), without=(), calls=1)
        ((row, attempt),) = batch.attempts.items()
        Item.objects.filter(pk=row).update(due_at=admission.RETRY_AT_ONCE)
        return [["finish", "default", row, attempt]], [["claim", "default"]]

    for name, finished, claimed in meet(arrange):
        assert sorted([finished, claimed]) == [[], [name]], name
        assert state(name) == ("gone" if finished else "admitted"), name
        assert footprint(name) == (0 if finished else 1), name


def test_no_enqueue_is_missed_by_a_pump(meet, project):
    project(HOLDER={"DEFAULT_LIMIT": 5})

    def arrange(name):
        enqueue_only(name, f"{name} first")
        return [["pump", "default", name]], [["enqueue", "default", name, name]]

    for name, _admitted, _queued in meet(arrange):
        assert (state(f"{name} first"), state(name)) == ("admitted", "admitted"), name


def test_two_pumps_on_one_key_give_each_permit_once(meet, project):
    project(HOLDER={"DEFAULT_LIMIT": 2})

    def arrange(name):
        enqueue_only(name, *(f"{name} {number}" for number in range(3)))
        return [["pump", "default", name]], [["pump", "default", name]]

    for name, mine, yours in meet(arrange):
        assert mine + yours == 2, name
        assert [state(f"{name} {number}") for number in range(3)] == ["admitted", "admitted", "queued"], name


@pytest.mark.parametrize("atomic", [False, True])
def test_two_keys_in_opposite_order_are_no_deadlock(meet, atomic):
    """(B90)"""

    def arrange(name):
        left, right = f"{name} left", f"{name} right"
        enqueue_all(**{key: [f"{key} 1", f"{key} 2"] for key in (left, right)})
        return (
            [["release", "default", f"{left} 1"], ["enqueue", "default", right, f"{right} 3"]],
            [["release", "default", f"{right} 1"], ["enqueue", "default", left, f"{left} 3"]],
        )

    for name, mine, yours in meet(arrange, atomic=atomic):
        assert mine[0], name
        assert yours[0], name
        for key in (f"{name} left", f"{name} right"):
            assert [state(f"{key} {number}") for number in (1, 2, 3)] == ["gone", "admitted", "queued"], key


def test_two_queues_that_share_a_key_share_its_permits(meet, project):
    project(QUEUES=TWO_QUEUES)

    def arrange(name):
        enqueue(name, None, id=name)
        return [["release", "default", name]], [["enqueue", "second", name, name]]

    for name, released, _queued in meet(arrange):
        assert released, name
        drive(name, *TWO_QUEUES)
        assert state(name, "second") == "admitted", name
        assert footprint(name) == 1, name


def test_two_queues_that_share_a_key_are_both_served_by_their_callers(meet, project):
    project(QUEUES=TWO_QUEUES, HOLDER={"DEFAULT_LIMIT": 2})

    def arrange(name):
        for uid in (f"{name} runs", f"{name} waits"):
            for queue in TWO_QUEUES:
                queues[queue].enqueue(name, None, id=uid)
        return [["release", "default", f"{name} runs"]], [["release", "second", f"{name} runs"]]

    for name, mine, yours in meet(arrange):
        assert mine, name
        assert yours, name
        drive(name, *TWO_QUEUES)
        assert [state(f"{name} waits", queue) for queue in TWO_QUEUES] == ["admitted", "admitted"], name
        assert Semaphore.objects.get(name=name).footprint == 2


def test_a_raised_limit_is_felt_by_an_item_that_comes_meanwhile(meet):
    def arrange(name):
        enqueue(name, None, id=f"{name} runs")
        return [["set_limit", name, 2]], [["enqueue", "default", name, name]]

    for name, _set, _queued in meet(arrange):
        drive(name)
        assert state(name) == "admitted", name


def test_a_lowered_limit_holds_from_its_return_on(meet, project):
    project(HOLDER={"DEFAULT_LIMIT": 3})

    def arrange(name):
        enqueue_only(name, *(f"{name} {number}" for number in range(3)))
        return [["set_limit", name, 1]], [["pump", "default", name]]

    for name, _set, _admitted in meet(arrange):
        drive(name)
        runs = Item.objects.filter(key=name, state=State.ADMITTED).count()
        assert runs in (1, 3), name  # Counted before the change, or after it: never in between.
        assert footprint(name) == runs, name
        enqueue(name, None, id=f"{name} late")
        assert Item.objects.filter(key=name, state=State.ADMITTED).count() == runs, name


def test_two_sweepers_remove_each_idle_semaphore_once(meet):
    def arrange(name):
        make_idle(*(f"{name} {number}" for number in range(3)))
        return [["sweep"]], [["sweep"]]

    for name, mine, yours in meet(arrange):
        assert mine or yours, name
        assert not Semaphore.objects.exists(), name


def test_a_lifted_pause_is_felt_by_an_item_that_comes_meanwhile(meet):
    def arrange(name):
        semaphores.pause(name)
        return [["resume", name]], [["enqueue", "default", name, name]]

    for name, _resumed, _queued in meet(arrange):
        drive(name)
        assert state(name) == "admitted", name


def test_a_savepoint_that_rolls_back_takes_no_other_wake_up_with_it(actors):
    (caller,) = actors(1)
    caller.do(["undone_then", "default", "key", "undone", "kept"])

    assert (state("undone"), state("kept")) == ("gone", "admitted")


def test_an_item_whose_cancel_rolls_back_is_admitted_by_the_driver(actors, spawn, project):
    poll = 2.0
    project(DRIVER=QUIET | {"POLL_INTERVAL": poll})
    enqueue_only("key", "kept")
    undecided, pumping = actors(2)
    undecided.start(["cancel", "default", "kept"], holds=True, undoes=True)
    assert undecided.step() == "holds"

    # The pump passes over the row, and no nudge is left behind.
    pumping.start(["pump", "default", "key"])
    if connection.vendor != "sqlite":
        assert pumping.results() == 0
    spawn("django", "semq_run").wait_for_line("driving")
    undecided.go_on()
    assert undecided.results()

    took = wait_until(lambda: state("kept") == "admitted", 2 * poll, "two poll intervals")
    print(f"admitted {took:.2f} s after the rollback")


@pytest.mark.databases("postgres", "mariadb")  # SQLite has one writer: an open transaction stops everybody.
@pytest.mark.parametrize("rows", [2, 40])
@pytest.mark.parametrize("verb", ["enqueue", "release", "cancel", "duplicate"])
def test_a_caller_that_keeps_its_transaction_open_delays_nobody_else(actors, project, fresh, verb, rows):
    project(HOLDER={"DEFAULT_LIMIT": 3})
    keys = ("same", "other")
    runs, waits, new = (f"{fresh} {name}" for name in ("runs", "waits", "new"))
    enqueue("same", None, id=runs)
    enqueue_only("same", waits)
    for number in range(rows):
        enqueue_only(keys[number % 2], f"{fresh} {number}")
    holding, others = actors(2)
    held = {
        "enqueue": (["enqueue", "default", "same", new], new),
        "release": (["release", "default", runs], runs),
        "cancel": (["cancel", "default", waits], waits),
        "duplicate": (["enqueue", "default", "same", runs], None),
    }
    call, mine = held[verb]
    holding.start(call, holds=True)
    assert holding.step() == "holds"

    others.do(["pump", "default", *keys])
    for key in keys:
        others.do(["enqueue", "default", key, f"{fresh} {key} late"])
        others.do(["cancel", "default", f"{fresh} {key} late"])
    finish_all_but(mine, others)
    assert not holding.outcome(), "it was to be open all the time"

    holding.go_on()
    holding.results()
    assert audit() == []


def finish_all_but(held: str | None, others: Actor) -> None:
    """Release what is admitted until nothing is left but the item that an open transaction has."""
    rest = Item.objects.exclude(uid=held)
    while admitted := list(rest.filter(state=State.ADMITTED).values_list("uid", flat=True)):
        for uid in admitted:
            assert others.do(["release", "default", uid])
    assert list(rest.values_list("uid", flat=True)) == []


@pytest.mark.databases("postgres")  # InnoDB keeps a lock on the row that refused an insert.
def test_even_a_duplicate_that_lost_a_race_delays_nobody_else(actors):
    late, others = actors(2)
    late.start(["enqueue", "default", "key", "one"], holds=True, stop="INSERT")
    assert late.step().startswith("stopped inside")
    others.do(["enqueue", "default", "key", "one"])
    late.go_on()
    late.child.wait_for_line(f"#{late.number} holds")

    finish_all_but(None, others)
    assert not late.outcome()
    late.go_on()
    assert late.results() == []


def test_processes_that_meet_new_keys_at_once_die_of_nothing(actors, project):
    """(B61)"""
    project(HOLDER={"DEFAULT_LIMIT": 100})
    crowd = actors(loaded(CROWD), faults={"patient_callers": {}})
    keys = [f"key {number}" for number in range(10)]
    for number, one in enumerate(crowd):
        mine = random.Random(number).sample(keys, len(keys))
        one.start(*(["enqueue", "default", key, f"{key} of {number}"] for key in mine))
    for one in crowd:
        one.results()

    assert Item.objects.filter(state=State.ADMITTED).count() == len(crowd) * len(keys)
    complaints = [line for one in crowd for line in one.child.lines if not line.startswith("#")]
    assert complaints == []
    assert audit() == []


def test_a_limit_that_is_set_while_its_semaphore_is_swept_is_kept(meet):
    def arrange(name):
        make_idle(name)
        return [["sweep"]], [["set_limit", name, 5]]

    for name, _removed, _set in meet(arrange):
        assert semaphores.usage(name).limit == 5, name


def test_two_pumps_remove_an_idle_key_once(meet):
    def arrange(name):
        make_idle(name)
        Key.objects.filter(name=name).update(due_at=clock.LONG_AGO)
        return [["pump", "default", name]], [["pump", "default", name]]

    for name, _mine, _yours in meet(arrange):
        assert not Key.objects.filter(name=name, due_at=None).exists(), name  # Nobody would ever look at it again.
