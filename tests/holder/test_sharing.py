"""Two local queues that share a key: fair, and each wakes the other."""

import pytest

from django_semq import clock, queues, semaphores
from django_semq.models import Nudge
from django_semq.queue import pump as pumping
from django_semq.queue.pump import driven_by, pump
from django_semq.signals import keys_nudged


@pytest.fixture
def two(app):
    app.configure(queues=["default", "reports"], holder={"DEFAULT_LIMIT": 4})
    app.tick()  # The first of all looks at whatever waits: what is tested here must not depend on it.
    return queues["default"], queues["reports"]


def fill(queue, count: int, prefix: str, group: str = "") -> list[str]:
    items = [{"key": "acct-42", "group": group, "body": {}, "id": f"{prefix}{n}"} for n in range(count)]
    return queue.enqueue_many(items).queued


def running(queue) -> int:
    return queue.usage()["admitted"]


def test_room_that_one_makes_goes_to_the_other_at_once(two):
    """(B52)"""
    default, reports = two
    mine = fill(default, 4, "d")
    fill(reports, 1, "r")
    assert running(reports) == 0
    default.release(mine[0])
    assert reports.status("r0").state == "admitted"


def test_over_time_both_hold_the_same(two):
    default, reports = two
    fill(default, 40, "d")
    fill(reports, 40, "r")
    assert (running(default), running(reports)) == (4, 0)
    for number in range(8):
        default.release(f"d{number}")
    for number in range(4):
        reports.release(f"r{number}")
    assert (running(default), running(reports)) == (2, 2)


def test_together_they_never_have_more_than_the_limit(two):
    default, reports = two
    fill(default, 20, "d")
    fill(reports, 20, "r")
    for number in range(20):
        default.release(f"d{number}")
        reports.release(f"r{number}")
        assert running(default) + running(reports) <= 4
        assert semaphores.usage("acct-42").footprint == running(default) + running(reports)
    assert running(default) + running(reports) == 0


def test_a_queue_that_waits_for_more_waits_no_longer_for_it(two):
    default, reports = two
    fill(default, 100, "d")
    fill(reports, 1, "r")
    default.release("d0")
    assert running(reports) == 1


def test_a_raised_limit_wakes_both(two):
    default, reports = two
    fill(default, 9, "d")
    fill(reports, 9, "r")
    semaphores.set_limit("acct-42", None)
    assert (running(default), running(reports)) == (9, 9)


def test_a_queue_whose_demand_is_long_not_fresh_is_woken_all_the_same(app, two):
    """Its part is kept for nobody, but it waits: else a nightly queue would sleep through every free permit."""
    default, reports = two
    mine = fill(default, 4, "d")
    fill(reports, 1, "r")
    app.pass_time(hours=3)
    default.release(mine[0])
    assert reports.status("r0").state == "admitted"


def test_what_one_waits_for_in_a_full_group_does_not_hold_up_the_other(app, two):
    app.configure(queues=["default", "reports"], holder={"RULES": {"*": {"limit": 4, "groups": {"exports": 1}}}})
    default, reports = queues["default"], queues["reports"]
    fill(default, 9, "d", group="exports")
    fill(reports, 9, "r", group="imports")
    assert (running(default), running(reports)) == (1, 3)


def test_who_made_the_room_is_not_nudged_for_it(two):
    """It has had its part of it in the same round."""
    default, reports = two
    mine = fill(default, 6, "d")
    fill(reports, 6, "r")
    nudged = []

    def note(queue, keys, **fields):
        nudged.append((queue, keys))

    keys_nudged.connect(note)
    default.release(mine[0])
    keys_nudged.disconnect(note)
    assert nudged == [("reports", ["acct-42"])]


def test_who_holds_less_comes_first_on_every_key_of_a_pump(app, two):
    """Holdings are read once for all keys of a pump, before it is known what this queue wants of each of them."""
    default, reports = two
    for key in ["a", "b"]:
        default.enqueue_many([{"key": key, "body": {}, "id": f"{key}{n}"} for n in range(9)])
    reports.enqueue("a", {}, id="first")  # Known to be shared.
    reports.enqueue("b", {}, id="second")
    reports.cancel("second")
    with driven_by(lambda: None):
        semaphores.set_limit("b", 5)
        for key in ["a", "b"]:
            reports.enqueue(key, {}, id=f"r{key}")
    pump("reports", ["a", "b"], now=clock.now())
    assert reports.status("rb").state == "admitted"


def test_a_permit_that_is_kept_for_one_who_wants_it_no_more_goes_to_the_next(app, two):
    """Nobody is told that the other has changed its mind: who waits for its share looks again."""
    default, reports = two
    mine = fill(default, 4, "d")
    fill(reports, 1, "r")
    with driven_by(lambda: None):
        reports.cancel("r0")  # Nobody has counted that yet.
        fill(default, 1, "last")
    pump("default", ["acct-42"], now=clock.now())
    default.release(mine[0])
    app.pass_time(seconds=1)
    app.tick()
    app.pass_time(seconds=1)
    app.tick()
    assert default.status("last0").state == "admitted"


def test_a_permit_that_is_kept_for_a_queue_that_is_gone_goes_to_the_next_after_a_minute(app, two):
    default, reports = two
    mine = fill(default, 4, "d")
    fill(reports, 1, "r")
    fill(default, 1, "last")
    app.configure(queues=["default"], holder={"DEFAULT_LIMIT": 4})
    default.release(mine[0])
    assert default.status("last0").blocked == "fair_share"
    app.pass_time(seconds=61)
    app.tick()
    assert default.status("last0").state == "admitted"


def test_permits_that_two_queues_cannot_use_do_not_wake_the_other_for_ever(app, two):
    """Other transactions have the items: each queue gives its permit back at once."""
    app.configure(queues=["default", "reports"], holder={"DEFAULT_LIMIT": 1})
    default, reports = two
    with pytest.MonkeyPatch.context() as patch, driven_by(lambda: None):
        patch.setattr(pumping, "oldest_ids", lambda queue, wants: [])
        fill(default, 2, "d")
        fill(reports, 2, "r")
        for queue in ["default", "reports", "default"]:
            pump(queue, ["acct-42"], now=clock.now())
            app.pass_time(seconds=1)  # Then both look again.
        assert not Nudge.objects.exists()
    app.pass_time(seconds=2)
    app.tick()
    assert running(default) + running(reports) == 1
