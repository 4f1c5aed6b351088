"""A real `qcluster` as the driver: by the schedule alone, and by wake-ups."""

import json
import statistics
import time
from itertools import pairwise

import pytest
from django_q.models import Schedule

from django_semq import async_task, enqueue_many, usage
from django_semq.driver import djangoq
from django_semq.invariants import audit
from tests.e2e import application
from tests.e2e.conftest import ITEMS
from tests.e2e.journal import until

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

NOTHING = {"queued": 0, "claiming": 0, "admitted": 0}


def test_an_idle_cluster_starts_what_is_enqueued_without_waiting_for_the_schedule(project, journal):
    """(B50)"""
    project().qcluster()
    scheduled = Schedule.objects.get().next_run  # An hour away.
    waited = []
    for number in range(20):
        asked_at = time.monotonic()
        async_task(f"{application.MODULE}.work", f"order:{number}", key="acct-42", id=f"order:{number}")
        (start,) = journal.wait_for("start", id=f"order:{number}")
        waited.append(start.at - asked_at)
        journal.wait_for("released", id=f"order:{number}")

    assert Schedule.objects.get().next_run == scheduled
    print(f"from enqueue to start by wake-up: median {statistics.median(waited) * 1000:.0f} ms")


def test_two_daemons_and_a_cluster_hand_each_item_over_once(project, journal):
    """(B43)"""
    keys = [f"acct-{number}" for number in range(6)]
    busy = project(
        {
            "QUEUES": {"default": {"ADMIT": f"{application.MODULE}.admit", "MAX_ADMIT_BATCH": 2}},
            "HOLDER": {"DEFAULT_LIMIT": 3},
        }
    )
    for start in (busy.qcluster, busy.semq_run, busy.semq_run):
        start()
    ids = [f"order:{number}" for number in range(300)]
    for first in range(0, len(ids), 10):
        enqueue_many(
            {"key": keys[number % len(keys)], "body": None, "id": f"order:{number}"}
            for number in range(first, first + 10)
        )

    until(lambda: usage() == NOTHING, "every item is released")
    starts = journal.events("start")
    assert sorted(start.id for start in starts) == sorted(ids)
    assert {start.attempt for start in starts} == {1}
    assert len({start.pid for start in starts}) > 1, "one process did it all"
    assert audit() == []


@pytest.mark.databases("sqlite")
def test_a_cluster_drains_a_queue_by_its_schedule_alone(drain):
    """Wake-ups are off and no daemon runs: each item waits for the next tick, which the schedule sends every minute."""
    ends = drain.journal.wait_for("end", ITEMS, timeout=60 * ITEMS + 60)
    assert [end.id for end in ends] == [f"order:{number}" for number in range(ITEMS)]
    starts = drain.journal.events("start")
    assert [start.attempt for start in starts] == [1] * ITEMS
    drain.journal.wait_for("released", ITEMS)

    ticks = drain.journal.events("delivered", func=djangoq.TICK)
    assert all(any(before.at < tick.at < start.at for tick in ticks) for before, start in pairwise(starts)), (
        "an item was started by something else"
    )
    (stats,) = drain.run("django", "semq_stats", "--json").finish()
    assert json.loads(stats)["queues"]["default"] == NOTHING
    assert drain.run("django", "semq_doctor").finish() == ["all counters are right"]
