"""The doctor finds each kind of wrong counter, names it, mends it, and the key drains."""

import io
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_semq import clock, enqueue_many, queues, release_many, semaphores, usage
from django_semq.driver.tick import tick
from django_semq.invariants import OVERDUE, audit, notices
from django_semq.models import Ceiling, Client, Grant, IssuedGrant, Item, Key, KeyGroup, Nudge, Semaphore, State
from django_semq.queue.admission import RETRY_AT_ONCE
from django_semq.queue.pump import driven_by
from tests.factories import ItemFactory, KeyFactory
from tests.queue.application import in_thread

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = 5
EACH = 6
LIMIT = 2


def finish(items):
    release_many([item.id for item in items])


@pytest.fixture(autouse=True)
def project(settings):
    settings.SEMQ = {
        "QUEUES": {"default": {"ADMIT": "tests.test_doctor.finish"}},
        "HOLDER": {"DEFAULT_LIMIT": LIMIT},
    }


@pytest.fixture
def waiting_items():
    """Some items of each key hold permits and the rest waits; the group is named, so that it has a ceiling row."""
    enqueue_many(
        {"key": f"k{key}", "group": "g", "body": {}, "id": f"k{key}-{number}"}
        for key in range(KEYS)
        for number in range(EACH)
    )
    assert usage() == {"queued": KEYS * (EACH - LIMIT), "claiming": 0, "admitted": KEYS * LIMIT}


def doctor(*arguments):
    out = io.StringIO()
    try:
        call_command("semq_doctor", *arguments, stdout=out)
    except SystemExit as ended:
        return ended.code, out.getvalue()
    return 0, out.getvalue()


DAMAGES = {
    "a group waits for items that are not there": lambda: KeyGroup.objects.filter(key__name="k0").update(queued=99),
    "a group forgot what waits": lambda: KeyGroup.objects.filter(key__name="k0").update(queued=0),
    "a group holds more than runs": lambda: KeyGroup.objects.filter(key__name="k0").update(admitted=9),
    "a footprint is too high": lambda: Semaphore.objects.filter(name="k0").update(footprint=9),
    "a footprint is too low": lambda: Semaphore.objects.filter(name="k0").update(footprint=0),
    "a group's footprint is wrong": lambda: Ceiling.objects.filter(semaphore__name="k0").update(footprint=7),
    "a grant lost a release": lambda: Grant.objects.filter(key__name="k0").update(released=1, acked_released=1),
    "the holder lost a grant": lambda: IssuedGrant.objects.filter(semaphore__name="k0").delete(),
    "the client lost a grant": lambda: Grant.objects.filter(key__name="k0").delete(),
    "the holder lost a key": lambda: Semaphore.objects.filter(name="k0").delete(),
    "the holder missed a release": lambda: IssuedGrant.objects.filter(semaphore__name="k0").update(released=1),
    "running items were deleted": lambda: Item.objects.filter(key="k0", state=State.ADMITTED)._raw_delete("default"),
    "waiting items were deleted": lambda: Item.objects.filter(key="k0", state=State.QUEUED)._raw_delete("default"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_wrong_counter_is_named_and_mended_and_its_key_drains(waiting_items, damage):
    damage()

    code, report = doctor()
    assert code == 1
    assert "k0" in report
    assert not any(f"k{other}" in report for other in range(1, KEYS))

    doctor("--repair")
    assert doctor() == (0, "all counters are right\n")
    tick(threads=0)
    assert not Item.objects.exists()
    assert usage() == {"queued": 0, "claiming": 0, "admitted": 0}
    assert all(semaphores.usage(f"k{key}").footprint == 0 for key in range(KEYS))
    assert audit() == []


def test_the_report_says_which_counter_of_which_key_and_both_values(waiting_items):
    KeyGroup.objects.filter(key__name="k3").update(queued=41)

    code, report = doctor()

    assert code == 1
    assert report == "queue default key 'k3' group 'g': queued is 41, should be 4\n"


def test_what_is_not_folded_yet_is_no_finding(waiting_items, monkeypatch):
    monkeypatch.setattr("django_semq.queue.items.pump_for_caller", lambda queue, keys: None)
    release_many(["k0-0"])
    enqueue_many([{"key": "k0", "group": "g", "body": {}}, {"key": "new", "body": {}}])
    assert Nudge.objects.exists()

    assert audit() == []


def test_a_key_that_fails_alone_is_set_aside_while_all_others_drain(waiting_items):
    """A footprint cannot fall below 0, so folding what comes back to k0 fails in the database, again and again."""
    semaphores.pause("k0")
    Semaphore.objects.filter(name="k0").update(footprint=0)
    Ceiling.objects.filter(semaphore__name="k0").update(footprint=0)

    tick(threads=0)

    assert {item.key for item in Item.objects.all()} == {"k0"}
    assert Key.objects.get(name="k0").set_aside_count > 0
    code, report = doctor()
    assert code == 1
    assert "holder key 'k0': footprint is 0, should be 2" in report
    assert "queue default key 'k0': set aside until" in report

    doctor("--repair")
    semaphores.resume("k0")
    tick(threads=0)
    assert not Item.objects.exists()
    assert doctor() == (0, "all counters are right\n")


@pytest.mark.parametrize("also_its_grants", [True, False])
def test_a_client_that_the_holder_lost_has_its_permits_again(waiting_items, also_its_grants):
    """Else the same permits are given to others, or never come back."""
    clients = Client.objects.all()
    clients.delete() if also_its_grants else clients._raw_delete(connection.alias)

    assert doctor()[0] == 1
    doctor("--repair")
    assert doctor() == (0, "all counters are right\n")
    assert all(semaphores.usage(f"k{key}").footprint == LIMIT for key in range(KEYS))
    tick(threads=0)
    assert not Item.objects.exists()
    assert all(semaphores.usage(f"k{key}").footprint == 0 for key in range(KEYS))


def test_a_lost_key_is_made_again_with_the_permits_of_all_its_queues(settings):
    """Both wait for more, and a pump of the one follows its repair at once."""
    settings.SEMQ = {
        "QUEUES": {
            "default": {"ADMIT": "tests.test_doctor.finish"},
            "nightly": {"ADMIT": "tests.test_doctor.finish", "CLIENT_ID": "shop"},
        },
        "HOLDER": {"DEFAULT_LIMIT": 4},
    }
    both = [queues["default"], queues["nightly"]]
    for queue in both:
        queue.enqueue_many([{"key": "k", "body": {}} for _number in range(2)])
    with driven_by(lambda: None):
        for queue in both:
            queue.enqueue_many([{"key": "k", "body": {}} for _number in range(4)])
    Semaphore.objects.all().delete()

    doctor("--repair")
    assert audit() == []
    assert [queue.usage()["admitted"] for queue in both] == [2, 2]
    assert semaphores.usage("k").footprint == 4


@pytest.mark.databases("postgres", "mariadb")
def test_a_key_that_is_in_use_is_not_said_to_be_repaired(waiting_items, caplog):
    KeyGroup.objects.filter(key__name__in=["k0", "k1"]).update(queued=99)
    with transaction.atomic():
        Key.objects.select_for_update().get(name="k0")
        _code, report = in_thread(lambda: doctor("--repair"))
    assert "repaired 1 counter(s)\nstill: queue default key 'k0' group 'g': queued is 99, should be 4\n" in report
    assert "not repaired, its key is in use: queue default key 'k0'" in caplog.text


# ------------------------------------------------------------------------------------------------------------ overdue


MINUTE = timedelta(minutes=1)


def an_item(queue="default", *, admitted_ago, **values):
    ItemFactory(queue=queue, admitted=True, admitted_at=clock.now() - admitted_ago, **values)


OVERDUE_WORK = {
    "a hand-over": lambda late: an_item(admitted_ago=late),
    "a hand-over in tasks": lambda late: an_item("tasks", admitted_ago=late),
    "a hand-over of a queue that settings do not have": lambda late: an_item("gone", admitted_ago=late),
    "another try at once": lambda late: an_item(admitted_ago=late, due_at=RETRY_AT_ONCE),
    "another try": lambda late: an_item(admitted_ago=60 * MINUTE, due_at=clock.now() - late),
    "a question": lambda late: an_item("asked", admitted_ago=60 * MINUTE, due_at=clock.now() - late, handed_over=True),
    "a task that beats no more": lambda late: an_item(
        "tasks", admitted_ago=60 * MINUTE, due_at=clock.now() - late, handed_over=True, started=True
    ),
    "a key": lambda late: KeyFactory(due_at=clock.now() - late),
    "a key that was set aside": lambda late: KeyFactory(due_at=clock.now() - late, set_aside_until=None),
}
NOBODY_S_WORK = {
    "an item that nobody asks after": lambda: an_item(
        admitted_ago=60 * MINUTE, due_at=clock.now() - 60 * MINUTE, handed_over=True
    ),
    "an item that runs": lambda: an_item("asked", admitted_ago=60 * MINUTE, due_at=None, handed_over=True),
    "a key of a queue that settings do not have": lambda: KeyFactory(queue="gone", due_at=clock.LONG_AGO),
    "a key of which much is admitted": lambda: (
        KeyFactory(due_at=clock.LONG_AGO),
        an_item(admitted_ago=MINUTE, due_at=None, handed_over=True),
    ),
}


@pytest.fixture
def three_queues(settings):
    """One for each way in which its items end."""
    handler = "tests.test_doctor.finish"
    settings.SEMQ = {
        "QUEUES": {"default": {"ADMIT": handler}, "asked": {"ADMIT": handler, "FINISHED": handler}, "tasks": {}}
    }


@pytest.mark.parametrize("work", OVERDUE_WORK.values(), ids=OVERDUE_WORK.keys())
def test_what_is_overdue_is_named(three_queues, work):
    """(B55)"""
    work(OVERDUE + MINUTE)
    (notice,) = notices(clock.now())
    assert "key 'acct-42': " in str(notice)
    assert "no driver runs" in str(notice)


@pytest.mark.parametrize("work", OVERDUE_WORK.values(), ids=OVERDUE_WORK.keys())
def test_what_is_due_for_as_long_as_a_schedule_needs_is_not_overdue(three_queues, work):
    work(OVERDUE - MINUTE)
    assert notices(clock.now()) == []


@pytest.mark.parametrize("work", NOBODY_S_WORK.values(), ids=NOBODY_S_WORK.keys())
def test_what_no_driver_has_to_look_at_is_not_overdue(three_queues, work):
    work()
    assert notices(clock.now()) == []
