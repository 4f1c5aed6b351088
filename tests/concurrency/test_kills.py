"""Whoever is killed, at whatever moment: what it held comes back, and everything runs."""

import os
import signal
from collections import Counter
from contextlib import suppress
from functools import partial

import pytest

from tests.concurrency import KILL_SECONDS
from tests.concurrency.crowd import (
    ATTEMPT_TIMEOUT,
    LIMIT,
    PATIENCE,
    POLL_INTERVAL,
    over_the_limit,
    wait_for_the_end,
)
from tests.concurrency.observer import Event, Observer
from tests.concurrency.states import wait_until
from tests.concurrency.work import Spool
from tests.processes import Child, kill9

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

TASK_RUNS_FOR = 3
TASK_LOST_AFTER = 6
"""What the library waits for a task's beat, and for its start: 30 s and 5 min outside of tests."""


def test_killed_callers_workers_and_drivers_lose_nothing(application, crowd, spawn, observer):
    """(B02, B23)"""
    crowd.add({"driver": 2, "worker": 3, "caller": 2})
    spool = Spool(observer.path.parent)

    def kill_a_worker(worker: Child) -> None:
        """Its work is over when it stands, and not only when we have written so."""
        worker.send_signal(signal.SIGSTOP)
        os.waitpid(worker.pid, os.WUNTRACED)
        taken = spool.taken_by(worker.pid)
        note_killed(observer, [event for event in running(observer) if event.item in taken])
        kill9(worker)

    crowd.kill_for(
        KILL_SECONDS / 2,
        partial(crowd.kill_one, "caller"),
        partial(crowd.kill_one, "worker", kill_a_worker),
        partial(crowd.kill_one, "driver"),
        partial(crowd.kill_in_an_open_pump, kill_a_worker),
        crowd.kill_in_admit,
    )
    assert crowd.stop("caller") == []
    wait_for_the_end()

    began = set(observer.items("start"))
    assert set(observer.items("queued")) <= began <= set(observer.items("enqueuing"))
    assert over_the_limit(observer.events()) == []
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]
    assert all(crowd.kills[what] for what in ("caller", "worker", "driver", "pump", "admit()"))
    print(f"{len(began)} items")


def test_killed_clusters_and_tasks_lose_nothing(crowd, spawn, project, observer):
    """(B55)"""
    project(
        QUEUES={"default": {"ATTEMPT_TIMEOUT": ATTEMPT_TIMEOUT}},
        HOLDER={"DEFAULT_LIMIT": LIMIT},
        DRIVER={"POLL_INTERVAL": POLL_INTERVAL, "TICK_SECONDS": 1},
    )
    impatient = {
        "django_semq.driver.djangoq.RUNS_FOR": TASK_RUNS_FOR,
        "django_semq.driver.djangoq.BEAT": TASK_RUNS_FOR / 3,
        "django_semq.queue.admission.TASK_LOST_AFTER": TASK_LOST_AFTER,
    }
    crowd.spawn = partial(spawn, faults={"impatient": impatient})
    crowd.add({"driver": 1, "cluster": 2, "task caller": 2})

    def kill_a_task() -> None:
        wait_until(lambda: running(observer), PATIENCE, "a task runs")
        event = crowd.random.choice(running(observer))
        crowd.log("task")
        with suppress(ProcessLookupError):
            os.kill(event.pid, signal.SIGKILL)
        note_killed(observer, [event])

    def kill_a_cluster(cluster: Child) -> None:
        group = [event for event in running(observer) if is_in_group(event.pid, cluster.pid)]
        os.killpg(cluster.pid, signal.SIGKILL)
        cluster.wait()
        note_killed(observer, group)

    crowd.kill_for(
        KILL_SECONDS / 2,
        *[partial(crowd.kill_one, "cluster", kill_a_cluster)] * 2,
        *[kill_a_task] * 2,
        partial(crowd.kill_one, "driver"),
        partial(crowd.kill_one, "task caller"),
    )
    crowd.stop("task caller")
    # A cluster one of whose idle workers was killed may stand still for good: that is django-q2's, not ours.
    for _one in range(2):
        crowd.kill_one("cluster", kill_a_cluster)
    wait_for_the_end(ATTEMPT_TIMEOUT + TASK_RUNS_FOR + TASK_LOST_AFTER)

    events = observer.events()
    assert set(observer.items("queued")) <= set(observer.items("end")) <= set(observer.items("enqueuing"))
    assert over_the_limit(events) == []
    assert twice_at_once(events) == []
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]
    assert all(crowd.kills[what] for what in ("task caller", "task", "driver", "cluster"))
    print(f"{len(observer.items('queued'))} tasks")


def test_a_run_that_may_leave_nothing_out_kills_for_a_minute():
    assert KILL_SECONDS >= 60 or not os.environ.get("SEMQ_TEST_REQUIRE")


def running(observer: Observer) -> list[Event]:
    """The beginnings of those tasks that have not ended."""
    begun: dict[str, Event] = {}
    for event in observer.events():
        if event.what == "start":
            begun[event.item] = event
        elif event.what in ("end", "killed"):
            begun.pop(event.item, None)
    return list(begun.values())


def note_killed(observer: Observer, events: list[Event]) -> None:
    """Those that have not ended just before."""
    for event in running(observer):
        if event in events:
            observer.note("killed", event.key, event.group, event.item)


def is_in_group(pid: int, group: int) -> bool:
    try:
        return os.getpgid(pid) == group
    except ProcessLookupError:
        return False


def twice_at_once(events: list[Event]) -> list[str]:
    """Items of which a second run began before the first had ended."""
    change = {"start": 1, "end": -1, "killed": -1}
    runs: Counter[str] = Counter()
    twice = []
    for event in events:
        runs[event.item] += change.get(event.what, 0)
        if runs[event.item] > 1:
            twice.append(event.item)
    return twice
