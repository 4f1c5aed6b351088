"""Whoever is killed, at whatever moment: what it held comes back, and everything runs."""

import json
import os
import random
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from django_semq.models import Item, State
from tests.concurrency import QUIET, STARTS, loaded
from tests.concurrency.observer import Event, Observer, exceeded
from tests.concurrency.states import leftovers, open_transactions, wait_until
from tests.processes import Child, kill9

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]

LIMIT = 3
POLL_INTERVAL = 0.2
ATTEMPT_TIMEOUT = 2
FINISHED_CHECK = 1
TASK_RUNS_FOR = 3
TASK_LOST_AFTER = 6
"""What the library waits for a task's beat, and for its start: 30 s and 5 min outside of tests."""
SLOWEST = 5
"""Items a second that are done at least, and"""
SPARE = 10
"""seconds, on a machine that does other things too."""
PATIENCE = 30

OPEN_PUMP = [
    "DELETE.*semq_nudge",
    "INSERT INTO.*semq_issuedgrant",
    "INSERT INTO.*semq_semaphore.*UPDATE",
    "INSERT INTO.*semq_grant",
    "UPDATE.*semq_item.*admitted_at",
    "INSERT INTO.*semq_keygroup",
]
"""Statements that only the pump's transaction has, from its beginning to its end."""

WORKER = "tests.concurrency.worker"
TASK_CALLER = "tests.concurrency.task_caller"
EVER = 10**6


class Crowd:
    """Processes by role, each replaced when it is killed."""

    def __init__(self, spawn: Callable[..., Child], seed: int) -> None:
        self.spawn = spawn
        self.random = random.Random(seed)
        self.alive: dict[str, list[Child]] = defaultdict(list)
        self.kills: Counter[str] = Counter()
        self.started = 0
        print(f"\nseed {seed}")

    def start(self, role: str, **how: object) -> Child:
        self.started += 1
        name = f"{role}{self.started}"
        arguments, ready = {
            "caller": ((WORKER, name, EVER, 0, 0.6, 0), "ready"),
            "worker": ((WORKER, name, 0, 3, 0, 0.1), "ready"),
            "both": ((WORKER, name, EVER, 3, 0.6, 0.1), "ready"),
            "task caller": ((TASK_CALLER, name, 0.25), "ready"),
            "driver": (("django", "semq_run"), "driving"),
            "cluster": (("django", "qcluster"), "running"),
        }[role]
        child = self.spawn(*arguments, **how)
        child.wait_for_line(ready, STARTS)
        child.tell("go")
        return child

    def add(self, role: str, number: int) -> None:
        self.alive[role] += [self.start(role) for _one in range(number)]

    def kill_one(self, role: str, kill: Callable[[Child], None] = kill9) -> None:
        """At a random time, wherever it is."""
        time.sleep(self.random.uniform(0, 0.5))
        victim = self.alive[role].pop(self.random.randrange(len(self.alive[role])))
        self.log(role)
        kill(victim)
        self.add(role, 1)

    def kill_in_an_open_pump(self) -> None:
        fault = {"pattern": self.random.choice(OPEN_PUMP), "nth": self.random.randint(1, 3)}
        victim = self.start("both", faults={"stands_still": fault})
        victim.wait_for_line("stands still", PATIENCE)
        self.log(f"pump before {fault['pattern']}")
        kill9(victim)

    def kill_in_admit(self) -> None:
        begins = self.random.random() < 0.5
        victim = self.start("driver", faults={"hangs_in_admit": {"begins": begins}})
        victim.wait_for_line("runs admit", PATIENCE)
        self.log(f"admit() at its {'end' if begins else 'beginning'}")
        kill9(victim)

    def stop(self, role: str) -> None:
        for child in self.alive.pop(role):
            child.tell("stop")
            child.finish()

    def log(self, what: str) -> None:
        """What is about to be killed, and the state of things at that moment."""
        self.kills[what] += 1
        queued, admitted = (Item.objects.filter(state=state).count() for state in (State.QUEUED, State.ADMITTED))
        print(
            f"kill {self.kills.total():3}: {what:50} queued {queued:4}, admitted {admitted:3},"
            f" open transactions {open_transactions()}"
        )


@pytest.fixture
def crowd(spawn) -> Crowd:
    return Crowd(spawn, seed=int(os.environ.get("SEMQ_TEST_SEED", random.randrange(10**6))))


def wait_for_the_end(bound: float) -> None:
    backlog = Item.objects.count()
    bound += POLL_INTERVAL + backlog / SLOWEST + SPARE
    took = wait_until(lambda: not Item.objects.exists() and not leftovers(), bound, "everything is back")
    print(f"the last {backlog} items were done after {took:.1f} s, the bound was {bound:.1f} s")


def test_killed_callers_workers_and_drivers_lose_nothing(crowd, spawn, project, observer, monkeypatch):
    project(
        QUEUES={
            "default": {
                "ADMIT": "tests.concurrency.work.admit",
                "FINISHED": "tests.concurrency.work.finished",
                "FINISHED_CHECK": FINISHED_CHECK,
                "ATTEMPT_TIMEOUT": ATTEMPT_TIMEOUT,
            }
        },
        HOLDER={"DEFAULT_LIMIT": LIMIT},
        DRIVER=QUIET | {"POLL_INTERVAL": POLL_INTERVAL},
    )
    monkeypatch.setenv("SEMQ_TEST_KEYS", json.dumps([[f"key-{number}", "", 1] for number in range(4)]))
    for role, number in {"driver": 2, "worker": 3, "caller": 2}.items():
        crowd.add(role, number)
    plan = [
        *(partial(crowd.kill_one, role) for role in ("caller", "worker", "driver") for _one in range(loaded(4))),
        *[crowd.kill_in_an_open_pump] * loaded(6),
        *[crowd.kill_in_admit] * loaded(6),
    ]
    crowd.random.shuffle(plan)
    for kill in plan:
        kill()
    crowd.stop("caller")
    wait_for_the_end(ATTEMPT_TIMEOUT + FINISHED_CHECK)

    began = set(observer.items("start"))
    assert set(observer.items("queued")) <= began <= set(observer.items("enqueuing"))
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]
    print(f"{len(began)} items, {crowd.kills.total()} kills: {dict(crowd.kills)}")


def test_killed_clusters_and_tasks_lose_nothing(crowd, spawn, project, observer, monkeypatch):
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
    for role, number in {"driver": 1, "cluster": 2, "task caller": 2}.items():
        crowd.add(role, number)

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

    plan = [
        *[partial(crowd.kill_one, "cluster", kill_a_cluster)] * loaded(5),
        *[kill_a_task] * loaded(6),
        *(partial(crowd.kill_one, role) for role in ("driver", "task caller") for _one in range(loaded(2))),
    ]
    crowd.random.shuffle(plan)
    for kill in plan:
        kill()
    crowd.stop("task caller")
    # A cluster one of whose idle workers was killed may stand still for good: that is django-q2's, not ours.
    for _one in range(2):
        crowd.kill_one("cluster", kill_a_cluster)
    wait_for_the_end(ATTEMPT_TIMEOUT + TASK_RUNS_FOR + TASK_LOST_AFTER)

    events = observer.events()
    assert set(observer.items("queued")) <= set(observer.items("end")) <= set(observer.items("enqueuing"))
    assert exceeded(events, lambda key: LIMIT, lambda key, group: None) == []
    assert twice_at_once(events) == []
    assert spawn("django", "semq_doctor").finish() == ["all counters are right"]
    print(f"{len(observer.items('queued'))} tasks, {crowd.kills.total()} kills: {dict(crowd.kills)}")


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
