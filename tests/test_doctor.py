"""The doctor finds each kind of wrong counter, names it, mends it, and the key drains."""

import io

import pytest
from django.core.management import call_command

from django_semq import enqueue_many, release_many, semaphores, usage
from django_semq.driver.tick import tick
from django_semq.invariants import audit
from django_semq.models import Ceiling, Grant, IssuedGrant, Item, Key, KeyGroup, Nudge, Semaphore, State

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
